"""Something that listens where a daemon should and says what a test lets it say."""

from __future__ import annotations

import array
import contextlib
import os
import shutil
import socket
import threading
from typing import TYPE_CHECKING, Any

from ptocache import __version__, wire
from ptocache.client import Client, connect
from tests.harness import DEADLINE_S, short_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VARIABLES = {"host": ["PATH"]}


class Side:
    """The daemon's end of one connection."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self._reader = wire.Reader()

    def hear(self) -> dict[str, Any]:
        """The client's next message; raises :class:`ConnectionError` once it has gone."""
        while (message := self._reader.next()) is None:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the client has gone")
            self._reader.feed(data)
        return message

    def say(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, with descriptors of its first byte."""
        self.send(wire.pack(message), fds)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes, with descriptors of the first one."""
        numbers = array.array("i", fds).tobytes()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if fds else []
        self.socket.sendmsg([data], ancillary)

    def greet(self, **changes: Any) -> None:
        """Answer the client's greeting as a daemon does, but for ``changes``."""
        self.hear()
        self.say({**wire.welcome(__version__, os.getpid(), VARIABLES), **changes})


class FakeDaemon:
    """Use as a context manager. ``script`` is what each connection meets; when it returns, or the
    client goes, the connection is closed."""

    def __init__(self, script: Callable[[Side], None]) -> None:
        self._script = script
        self.place = short_folder()
        self.path = self.place / "s"
        self.accepted = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            peer.settimeout(DEADLINE_S)
            with peer, contextlib.suppress(ConnectionError):
                self._script(Side(peer))

    def client(self, *, client_require: bool = False) -> Client:
        """A client that takes this for its daemon, and starts no other."""
        env = {
            "PTOCACHE_SOCKET": str(self.path),
            "PTOCACHE_DIR": str(self.place / "store"),
            "PTOCACHE_AUTOSTART": "0",
        }
        return connect(env=env, client_require=client_require)

    def __enter__(self) -> FakeDaemon:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        # Closing alone would not wake up who accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)
        shutil.rmtree(self.place)
