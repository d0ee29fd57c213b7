"""One open, greeted socket to a daemon: messages and descriptors, and whether the other side lives."""

from __future__ import annotations

import array
import os
import socket
import struct
import time

from . import __version__, paths, wire
from .errors import (
    DaemonUnavailableError,
    FrameError,
    PeerRefusedError,
    ProtocolMismatchError,
    PtocacheError,
    WireError,
    from_wire,
)
from .model import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any

CONNECT_S = 2.0
_AGAIN_S = 0.01
LIVENESS_S = 5.0
"""A daemon that says nothing for so long is asked whether it lives, and given as long to answer."""
_LIVENESS_ID = -1
_READ_BYTES = 1 << 18
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * wire.MAX_DESCRIPTORS)
# Plain numbers: a flag of an enumeration costs two microseconds whenever it is combined.
_CUT_SHORT = int(socket.MSG_CTRUNC)
_AT_ONCE = int(socket.MSG_DONTWAIT)


class Connection:
    """One open, greeted socket. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """Raises :class:`OSError` if nobody answers, :class:`~ptocache.errors.WireError` if somebody
        else does."""
        self._reader = wire.Reader()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._fds: list[Descriptor] = []
        self.variables: dict[str, list[str]] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.was_idle = False
        """True if it was used before: it may lead to a daemon that has gone since."""
        paths.verify_socket_directory(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._connect(path)
            self._check_peer(path)
            self._socket.settimeout(None)
            # The kernel's own time limits: Python's would poll before every call.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _timeval(LIVENESS_S))
            self.send(wire.hello(__version__, os.getpid()))
            self._greeted(self.receive(ask=False)[0])
        except ProtocolMismatchError as error:
            # Such a daemon understands a signal at most.
            error.fields["pid"] = self._peer_pid
            self._socket.close()
            raise
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, path: str) -> None:
        """Connect; a daemon whose queue is full at this moment is asked again for a while."""
        deadline = time.monotonic() + CONNECT_S
        self._socket.setblocking(False)
        while True:
            try:
                self._socket.connect(path)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DaemonUnavailableError(
                        f"the daemon at {path} has no room for another connection"
                    ) from error
                time.sleep(_AGAIN_S)

    def _check_peer(self, path: str) -> None:
        data = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        credentials = array.array("i", data)
        self._peer_pid, uid = credentials[0], credentials[1]
        if uid != os.geteuid():
            raise PeerRefusedError(f"the daemon at {path} belongs to user {uid}", path=path)

    def _greeted(self, message: dict[str, Any]) -> None:
        if message["type"] != "welcome":
            raise FrameError("the daemon does not greet")
        if message.get("protocol") != wire.PROTOCOL:
            raise ProtocolMismatchError(
                f"the daemon speaks protocol {message.get('protocol')!r}, the client {wire.PROTOCOL}",
                hint="stop it (ptocache stop): the next request starts one of this version",
            )
        variables = message.get("variables")
        if isinstance(variables, dict):
            self.variables = {
                name: [item for item in patterns if isinstance(item, str)]
                for name, patterns in variables.items()
                if isinstance(patterns, list)
            }
        capabilities = message.get("capabilities")
        if isinstance(capabilities, list):
            self.capabilities = frozenset(item for item in capabilities if isinstance(item, str))

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        self.send_frame(wire.pack(message))

    def send_frame(self, frame: bytes) -> None:
        """Send a message that is packed already."""
        data = memoryview(frame)
        while data:
            try:
                data = data[self._socket.send(data, _AT_ONCE) :]
            except BlockingIOError:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        """Wait until the daemon takes more. While too many of its answers wait to be read it takes
        nothing: so they are read meanwhile."""
        import select

        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        ready = poll.poll(LIVENESS_S * 1000)
        if not ready:
            raise DaemonUnavailableError(
                "the daemon takes no request", hint="it may be stopped: ptocache status"
            )
        if ready[0][1] & select.POLLIN:
            self._reader.feed(self._arrived())

    def receive(self, *, ask: bool = True) -> tuple[dict[str, Any], list[Descriptor]]:
        """The next message with its descriptors; raises the daemon's error if it is one.

        However long a compile takes, a living daemon answers the question whether it lives: one that
        was stopped or hangs is given up (:class:`~ptocache.errors.DaemonUnavailableError`).
        """
        asked = not ask
        message = self._reader.next()
        while True:
            if message is not None:
                if message.get("id") != _LIVENESS_ID:
                    break
                asked = False
                message = self._reader.next()
                continue
            try:
                message = self._reader.take(self._arrived())
            except BlockingIOError as error:
                if asked:
                    raise DaemonUnavailableError(
                        "the daemon does not answer", hint="it may be stopped: ptocache status"
                    ) from error
                asked = True
                self.send({"type": "ping", "id": _LIVENESS_ID})
        if message["type"] == "error":
            told = message.get("error")
            raise from_wire(told if isinstance(told, dict) else {})
        return message, self._descriptors_of(message)

    def receive_for(self, asked: Container[int]) -> tuple[int, dict[str, Any], list[Descriptor]]:
        """The next ``answer``, or ``need`` of input bytes, to one of the compiles that were asked for, with
        its number and descriptors.

        Raises :class:`~ptocache.errors.FrameError` for any other message, and as :meth:`receive` does.
        """
        try:
            message, fds = self.receive()
        except WireError:
            raise
        except PtocacheError as error:
            # No answer to a compile looks like this: it is the daemon that is in trouble.
            raise DaemonUnavailableError(f"it answered: {error.message}") from error
        number = message.get("id")
        if not isinstance(number, int) or number not in asked:
            raise FrameError("an answer to a request that was not made")
        if message["type"] not in ("answer", "need"):
            raise FrameError(f"an answer of type {message['type']!r}")
        return number, message, fds

    def _descriptors_of(self, message: Mapping[str, Any]) -> list[Descriptor]:
        """The descriptors of a message; raises :class:`~ptocache.errors.FrameError` if there are others
        than it says: the next message must not get those of this one."""
        count = message.get("fds", 0)
        if count == 0 and not self._fds:
            return []
        if not isinstance(count, int) or not 0 <= count <= min(
            len(self._fds), wire.MAX_DESCRIPTORS
        ):
            raise FrameError(
                f"a message with {count!r} descriptors, of which {len(self._fds)} came"
            )
        fds, self._fds = self._fds[:count], self._fds[count:]
        if self._fds and not self._reader.pending:
            raise FrameError(f"{len(self._fds)} descriptors that belong to no message")
        return fds

    def _arrived(self) -> memoryview:
        """What arrives next, until the next call; its descriptors are kept."""
        count, ancillary, flags, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        if ancillary:
            self._take_descriptors(ancillary)
        if not count:
            raise DaemonUnavailableError("the daemon closed the connection")
        if flags & _CUT_SHORT:
            raise FrameError("descriptors were lost: this process has no room for more")
        return self._buffer[:count]

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                for number in numbers:
                    os.set_inheritable(number, False)
                    self._fds.append(Descriptor(number))

    def interrupt(self) -> None:
        """Hang up from another thread: whoever sends or waits on it finds the daemon gone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket; descriptors of answers stay with their holders."""
        self._fds.clear()
        self._socket.close()


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
