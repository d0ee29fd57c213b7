"""The Unix socket: accept, check the peer, greet, frames in and out. No cache logic.

Everything runs on one event loop. A connection is bounded in what it may have unread, unsent and under
way, so that one peer cannot take memory or time from another.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import __version__, paths, wire
from .errors import (
    BadRequestError,
    CancelledError,
    FrameError,
    PeerRefusedError,
    ProtocolMismatchError,
    PtocacheError,
    StoreUnusableError,
)
from .service import NeedInputs

if TYPE_CHECKING:
    from .model import Answer, Descriptor
    from .service import Service

_log = logging.getLogger("ptocache.server")

BACKLOG = 512
READ_BYTES = 1 << 18
READS_PER_TURN = 4
"""How much one connection may read before the others have their turn."""
MAX_UNSENT_BYTES = 16 << 20
MAX_UNDER_WAY = 4096
MAX_CONNECTIONS = 4096
GREETING_S = 10.0
STALL_S = 60.0
"""A peer in the middle of a frame must go on within this time."""
UNREAD_S = 3600.0
"""A peer with unread answers must read within this time: it may be busy with the ones before."""
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.1
_REMEMBERED_REQUESTS = 4096
_REMEMBERED_BYTES = 4096

Control = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""An administrative request: a message in, a value of plain types out."""


class Server:
    """Serves :class:`~ptocache.service.Service` and the controls on one socket."""

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        controls: Mapping[str, Control],
        variables: Mapping[str, list[str]],
    ) -> None:
        self._listener = listener
        self._service = service
        self._controls = controls
        self._variables = variables
        self._connections: set[_Connection] = set()
        self._requests: dict[bytes, wire.Request] = {}
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        # One for all connections: a buffer of its own for every read costs more than the read.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.last_activity_s = time.monotonic()

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._loop.call_later(STALL_S / 4, self._drop_stalled)

    def stop_accepting(self) -> None:
        """Withdraw the socket: whoever comes now finds nobody, and who asks on an open connection
        gets what is in memory and no compile."""
        self._stopping = True
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    async def close(self, patience_s: float) -> None:
        """Send what is still unsent, for at most ``patience_s``, and close every connection."""
        deadline = time.monotonic() + patience_s
        while any(item.unsent for item in self._connections) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()

    @property
    def under_way(self) -> int:
        """Requests that have no answer yet."""
        return sum(len(item.tasks) for item in self._connections)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    _log.warning("no room for another connection: %s", error.strerror)
                    self._pause_accepting()
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                _log.warning("refused a connection: %d are open", len(self._connections))
                peer.close()
                continue
            uid = peer_uid(peer)
            if uid != os.geteuid():
                _log.warning("refused a peer of user %d", uid)
                peer.close()
                continue
            self._connections.add(_Connection(self, peer))

    def _pause_accepting(self) -> None:
        self._loop.remove_reader(self._listener.fileno())

        def go_on() -> None:
            if self._listener.fileno() >= 0:
                self._loop.add_reader(self._listener.fileno(), self._accept)

        self._loop.call_later(_ACCEPT_PAUSE_S, go_on)

    def _drop_stalled(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            limit_s = connection.patience_s
            if connection.waiting and now - connection.moved_s > limit_s:
                _log.warning("closed a connection that did not move for %.0f s", limit_s)
                connection.close()
        if self._listener.fileno() >= 0:
            self._loop.call_later(min(STALL_S, GREETING_S) / 4, self._drop_stalled)

    def forget(self, connection: _Connection) -> None:
        """A connection has closed."""
        self._connections.discard(connection)

    # --- messages

    def handle(self, connection: _Connection, message: dict[str, Any]) -> None:
        """One whole message of a peer. Raises :class:`~ptocache.errors.WireError` for what ends the
        connection."""
        kind = message["type"]
        if not connection.greeted:
            self._greet(connection, message)
            return
        self.last_activity_s = time.monotonic()
        if kind == "compile":
            self._compile(connection, message)
        elif kind == "batch":
            self._batch(connection, message)
        elif kind == "get":
            key, source_dir = message.get("key"), message.get("source_dir")
            if not isinstance(key, str) or not isinstance(source_dir, str):
                raise FrameError("get needs a key and a source_dir")
            connection.begin(self._get(connection, _id(message), key, source_dir))
        elif kind in self._controls:
            connection.begin(self._control(connection, _id(message), kind, message))
        else:
            raise FrameError(f"there is no request {kind[:40]!r}")

    def _greet(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        if message["type"] != "hello":
            raise FrameError("the first message is not a greeting")
        if message.get("protocol") != wire.PROTOCOL:
            raise ProtocolMismatchError(
                f"the client speaks protocol {message.get('protocol')!r}, the daemon {wire.PROTOCOL}",
                hint="stop the daemon (ptocache stop), so that the client's version starts its own",
                ours=wire.PROTOCOL,
            )
        connection.greet()
        connection.send(wire.welcome(__version__, os.getpid(), self._variables))

    def _batch(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        requests = message.get("requests")
        if not isinstance(requests, list) or len(requests) > wire.MAX_BATCH:
            raise FrameError(f"a batch is not a list of at most {wire.MAX_BATCH} requests")
        if not all(isinstance(request, dict) for request in requests):
            raise FrameError("a batch holds something else than requests")
        connection.put_off({**request, "type": "compile"} for request in requests)

    def _compile(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        request_id = _id(message)
        try:
            request = self._request(message)
        except BadRequestError as error:
            connection.answer(request_id, self._service.refuse(error))
            return
        answer = self._service.quick(request)
        if answer is not None:
            connection.answer(request_id, answer)
        elif self._stopping:
            stops = CancelledError("the daemon stops and begins no other compile")
            connection.answer(request_id, self._service.refuse(stops))
        else:
            connection.begin(self._compile_slowly(connection, request_id, request))

    def _request(self, message: Mapping[str, Any]) -> wire.Request:
        """The request in a message; one that was read before is not read again."""
        document = message.get("request")
        if not isinstance(document, bytes) or len(document) > _REMEMBERED_BYTES:
            return wire.parse_compile(message)
        known = self._requests.get(document)
        if known is None:
            known = wire.parse_compile(message)
            if len(self._requests) >= _REMEMBERED_REQUESTS:
                self._requests.clear()
            self._requests[document] = known
        return known

    async def _compile_slowly(
        self, connection: _Connection, request_id: int, request: wire.Request
    ) -> None:
        answer = await self._service.answer(request)
        if isinstance(answer, NeedInputs):
            connection.send({"type": "need", "id": request_id, "names": list(answer.names)})
        else:
            connection.answer(request_id, answer)
        self.last_activity_s = time.monotonic()

    async def _get(
        self, connection: _Connection, request_id: int, key: str, source_dir: str
    ) -> None:
        answer = await self._service.stored(key, source_dir)
        if answer is None:
            connection.send({"type": "nothing", "id": request_id})
        else:
            connection.answer(request_id, answer)

    async def _control(
        self, connection: _Connection, request_id: int, kind: str, message: Mapping[str, Any]
    ) -> None:
        try:
            value = await self._controls[kind](message)
        except PtocacheError as error:
            connection.send({"type": "error", "id": request_id, "error": error.to_wire()})
        except Exception as error:
            _log.exception("the request %s ended in a fault", kind)
            wrapped = PtocacheError(f"internal error: {error!r}", hint="the daemon's log has more")
            connection.send({"type": "error", "id": request_id, "error": wrapped.to_wire()})
        else:
            connection.send({"type": "result", "id": request_id, "value": value})


class _Connection:
    """One peer."""

    def __init__(self, server: Server, peer: socket.socket) -> None:
        self._server = server
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._reader = wire.Reader(limit=wire.MAX_GREETING_BYTES)
        self._out: deque[tuple[memoryview, tuple[Descriptor, ...]]] = deque()
        self._put_off: deque[dict[str, Any]] = deque()
        self.unsent = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.greeted = False
        self.moved_s = time.monotonic()
        self._reading = False
        self._closed = False
        peer.setblocking(False)
        self._read_on()

    @property
    def patience_s(self) -> float:
        """How long this peer may stand still while it owes us something."""
        if not self.greeted:
            return GREETING_S
        return UNREAD_S if self.unsent else STALL_S

    @property
    def waiting(self) -> bool:
        """True if the peer owes us something: a greeting, the rest of a frame, or reading."""
        return not self.greeted or self._reader.pending > 0 or self.unsent > 0

    def greet(self) -> None:
        """The peer has introduced itself: longer frames are fine now."""
        self.greeted = True
        self._reader.limit = wire.MAX_FRAME_BYTES

    def put_off(self, messages: Iterable[dict[str, Any]]) -> None:
        """Handle these as soon as there is room for their answers, and before anything newer."""
        self._put_off.extend(messages)

    def begin(self, work: Any) -> None:
        """Run a request to its end; it is cancelled if the peer goes."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._finished)
        if len(self.tasks) >= MAX_UNDER_WAY:
            self._read_off()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a request's task failed", exc_info=task.exception())
        self._read_on()

    def answer(self, request_id: int, answer: Answer) -> None:
        """Send an answer with its descriptors."""
        message, descriptors = wire.answer_message(request_id, answer)
        self.send(message, descriptors)

    def send(self, message: Mapping[str, Any], descriptors: tuple[Descriptor, ...] = ()) -> None:
        """Send a message, at once if the peer takes it."""
        if self._closed:
            return
        data = memoryview(wire.pack(message))
        if not self._out:
            data, descriptors = self._push(data, descriptors)
            if not data or self._closed:
                return
            self._loop.add_writer(self._peer.fileno(), self._write)
        self._out.append((data, descriptors))
        self.unsent += len(data)
        if self.unsent > MAX_UNSENT_BYTES:
            self._read_off()

    def _push(
        self, data: memoryview, descriptors: tuple[Descriptor, ...]
    ) -> tuple[memoryview, tuple[Descriptor, ...]]:
        """Send as much as the peer takes; what remains. Descriptors go with the first byte."""
        try:
            if descriptors:
                numbers = array.array("i", [item.fileno() for item in descriptors])
                sent = self._peer.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())]
                )
                descriptors = ()
            else:
                sent = self._peer.send(data)
        except BlockingIOError:
            return data, descriptors
        except OSError:
            self.close()
            return data[:0], ()
        self.moved_s = time.monotonic()
        return data[sent:], descriptors

    def _write(self) -> None:
        while self._out:
            data, descriptors = self._out[0]
            rest, descriptors = self._push(data, descriptors)
            if self._closed:
                return
            self.unsent -= len(data) - len(rest)
            if rest:
                self._out[0] = (rest, descriptors)
                return
            self._out.popleft()
        self._loop.remove_writer(self._peer.fileno())
        self._read_on()

    @property
    def _busy(self) -> bool:
        """True while nothing more of this peer is begun: it must read, or wait for answers, first."""
        return self.unsent > MAX_UNSENT_BYTES or len(self.tasks) >= MAX_UNDER_WAY

    def _read_on(self) -> None:
        """Go on: with what arrived and was left, then with what the peer sends."""
        if self._reading or self._closed:
            return
        self._take()
        if not self._closed and not self._busy:
            self._reading = True
            self._loop.add_reader(self._peer.fileno(), self._read)

    def _read_off(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._loop.remove_reader(self._peer.fileno())

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                count = self._peer.recv_into(self._server.buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            if not count:
                self.close()
                return
            self.moved_s = time.monotonic()
            self._reader.feed(self._server.buffer[:count])
            if not self._take():
                return
            if count < READ_BYTES:
                return

    def _take(self) -> bool:
        """Handle whole messages while there is room for their answers; False if the connection must
        not be read on."""
        try:
            while not self._busy and (message := self._next()) is not None:
                self._server.handle(self, message)
                if self._closed:
                    return False
        except PtocacheError as error:
            _log.warning("closed a connection: %s", error)
            self.send({"type": "error", "id": 0, "error": error.to_wire()})
            self.close()
            return False
        return self._reading

    def _next(self) -> dict[str, Any] | None:
        return self._put_off.popleft() if self._put_off else self._reader.next()

    def close(self) -> None:
        """Close, and give up what this peer waited for."""
        if self._closed:
            return
        self._read_off()
        self._closed = True
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._out.clear()
        self._put_off.clear()
        self.unsent = 0
        for task in list(self.tasks):
            task.cancel()
        self._server.forget(self)


def _id(message: Mapping[str, Any]) -> int:
    value = message.get("id")
    if not isinstance(value, int) or isinstance(value, bool):
        raise FrameError("a request without a number as its id")
    return value


def peer_uid(peer: socket.socket) -> int:
    """The user at the other end (SO_PEERCRED, unix(7))."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    return int(uid)


def listen(path: str) -> socket.socket:
    """Bind the socket; the caller holds the store's lock, so a socket that nobody serves is stale.

    Raises :class:`~ptocache.errors.StoreUnusableError` if something that is no socket stands there
    or another daemon serves it, :class:`~ptocache.errors.PeerRefusedError` for an unsafe directory.
    """
    try:
        paths.make_socket_directory(path)
        if os.path.lexists(path):
            _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except PtocacheError:
        raise
    except OSError as error:
        raise StoreUnusableError(
            f"the socket {path} cannot be made: {error.strerror or error}",
            hint="choose another place with PTOCACHE_SOCKET",
            path=path,
        ) from error
    return listener


def _remove_stale(path: str) -> None:
    info = os.lstat(path)
    if not stat.S_ISSOCK(info.st_mode):
        raise StoreUnusableError(
            f"{path} is in the way: it is not a socket, and it is left as it is",
            hint="move it away, or choose another place with PTOCACHE_SOCKET",
            path=path,
        )
    if info.st_uid != os.geteuid():
        raise PeerRefusedError(f"the socket {path} belongs to user {info.st_uid}", path=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass
    raise StoreUnusableError(
        f"the socket {path} is served by the daemon of another store",
        hint="stop that daemon, or choose another place with PTOCACHE_SOCKET",
        path=path,
    )
