"""The client of one request: what :mod:`ptocache.client` does, for a process that lives for one answer.

The same frames (:mod:`ptocache.wire`), without the modules that read them elsewhere: to import those takes a
process longer than the request. What is unusual (a settings file, no daemon yet) is left to the
real client.

Source of the encoding: github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import _socket
import os
import sys

from .. import __version__, paths
from ..errors import DaemonUnavailableError, FrameError, PeerRefusedError, PtocacheError
from ..hashing import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PROTOCOL = 1
"""As in :mod:`ptocache.wire`."""
_HEADER_BYTES = 4
_MAX_FRAME_BYTES = 64 << 20
_MAX_DESCRIPTORS = 64
_READ_BYTES = 1 << 18
_CONNECT_S = 2.0
_LIVENESS_S = 5.0
_LIVENESS_ID = -1
_FD_BYTES = 4
# Settings besides the places that a request of this module knows nothing of.
_UNUSUAL = ("PTOCACHE_MODE", "PTOCACHE_PRIORITY", "PTOCACHE_CONFIG")


def place(env: Mapping[str, str]) -> str:
    """The socket of the daemon that these variables mean; empty if it takes all the settings to know that, or
    to make the request."""
    root = env.get("PTOCACHE_DIR", "") or paths.default_root(env)
    file = paths.config_file(env)
    if not os.path.isabs(root) or (file and os.path.exists(file)):
        return ""
    if any(env.get(name) for name in _UNUSUAL):
        return ""
    return paths.socket_path(env, root)


class Outcome:
    """An answer, as far as a command needs it."""

    __slots__ = ("code", "outcome", "outputs", "reason", "stderr", "stdout")

    def __init__(self, document: Mapping[str, Any], fds: list[int]) -> None:
        """Raises :class:`LookupError`, :class:`TypeError` or :class:`ValueError` for what is no answer."""
        self.outcome: str = _of(str, document["outcome"])
        self.reason: str = _of(str, document["reason"])
        self.code: int = _of(int, document["exit_code"])
        self.stdout: bytes = _of(bytes, document["stdout"])
        self.stderr: bytes = _of(bytes, document["stderr"])
        self.outputs: dict[str, tuple[int, bytes]] = {}
        """Name → permission bits and bytes."""
        for name, _, size, mode, data in document["artifacts"]:
            found = _read(fds.pop(0), _of(int, size)) if data is None else _of(bytes, data)
            if len(found) != size:
                raise ValueError(f"the output {name!r} has {len(found)} bytes, not {size}")
            self.outputs[_of(str, name)] = (_of(int, mode), found)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _read(fd: int, size: int) -> bytes:
    """The bytes of a stored file; its offset may be shared with others."""
    pieces = []
    at = 0
    while at < size and (piece := os.pread(fd, size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


class Talk:
    """One greeted connection; close it."""

    def __init__(self, path: str) -> None:
        """Raises :class:`OSError` if nobody answers, :class:`~ptocache.errors.WireError` if somebody else
        does."""
        paths.verify_socket_directory(path)
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(_CONNECT_S)
            self._socket.connect(path)
            credentials = self._socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
            uid = int.from_bytes(credentials[4:8], sys.byteorder)
            if uid != os.geteuid():
                raise PeerRefusedError(f"the daemon at {path} belongs to user {uid}", path=path)
            self._socket.settimeout(_LIVENESS_S)
            self._say(
                {"type": "hello", "protocol": PROTOCOL, "version": __version__, "pid": os.getpid()}
            )
            welcome = self._hear()
            if welcome.get("type") != "welcome" or welcome.get("protocol") != PROTOCOL:
                raise FrameError("the daemon does not greet, or speaks another protocol")
            self._variables = welcome.get("variables") or {}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it, and every descriptor that came."""
        while self._fds:
            os.close(self._fds.pop())
        self._socket.close()

    def chosen(self, toolchain: str, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that count for a toolchain."""
        return _chosen(self._variables.get(toolchain, []), env)

    def bypassed(self, fields: Mapping[str, str]) -> None:
        """Have a command counted that is not asked of the cache."""
        self._say({"type": "bypassed", "id": 1, **fields})
        self._hear()

    def compile(
        self,
        toolchain: str,
        name: str,
        text: bytes,
        *,
        options: tuple[str, ...],
        env: Mapping[str, str],
        outputs: tuple[str, ...],
        source_dir: str,
        cwd: str,
        kernel: str,
        salt: str,
    ) -> Outcome:
        """The answer to one compile of one input.

        Raises :class:`~ptocache.errors.PtocacheError` and :class:`OSError` if there is none.
        """
        item = [name, sha256_hex(text), len(text), None]
        document = {
            "toolchain": toolchain, "arch": "", "options": list(options),
            "env": self.chosen(toolchain, env), "inputs": [item], "outputs": list(outputs), "symbols": [],
            "source_dir": source_dir, "cwd": cwd, "kernel": kernel, "mode": "use", "salt": salt,
        }  # fmt: skip
        self._say({"type": "compile", "id": 0, "request": pack(document)})
        message = self._hear()
        if message.get("type") == "need":
            item[3] = text
            self._say({"type": "compile", "id": 0, "request": pack(document)})
            message = self._hear()
        if message.get("type") != "answer":
            raise FrameError(f"an answer of type {message.get('type')!r}")
        try:
            return Outcome(unpack(message["answer"]), self._fds[: message.get("fds", 0)])
        except (LookupError, TypeError, ValueError) as error:
            raise FrameError(f"an answer that cannot be read: {error!r}") from error

    def _say(self, message: Mapping[str, Any]) -> None:
        body = pack(message)
        self._socket.sendall(len(body).to_bytes(_HEADER_BYTES, "little") + body)

    def _hear(self) -> dict[str, Any]:
        """The next message. However long a compile takes, a living daemon answers whether it lives."""
        asked = False
        while True:
            message = self._next()
            if message is None:
                try:
                    self._pull()
                except TimeoutError as error:
                    if asked:
                        raise DaemonUnavailableError("the daemon does not answer") from error
                    asked = True
                    self._say({"type": "ping", "id": _LIVENESS_ID})
            elif message.get("id") == _LIVENESS_ID:
                asked = False
            elif message.get("type") == "error":
                raise DaemonUnavailableError(f"it answered: {message.get('error')!r}")
            else:
                return message

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < _HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_HEADER_BYTES], "little")
        if not 0 < length <= _MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes")
        end = _HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER_BYTES:end])
        del self._buffer[:end]
        return unpack(body)

    def _pull(self) -> None:
        data, ancillary, _, _ = self._socket.recvmsg(
            _READ_BYTES, _socket.CMSG_SPACE(_FD_BYTES * _MAX_DESCRIPTORS)
        )
        for level, kind, words in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                for at in range(0, len(words) - len(words) % _FD_BYTES, _FD_BYTES):
                    self._fds.append(int.from_bytes(words[at : at + _FD_BYTES], sys.byteorder))
        if not data:
            raise DaemonUnavailableError("the daemon closed the connection")
        self._buffer += data


def _chosen(patterns: list[str], env: Mapping[str, str]) -> dict[str, str]:
    """As :func:`ptocache.model.select`."""
    found: dict[str, str] = {}
    for pattern in patterns:
        if "*" in pattern or "?" in pattern or "[" in pattern:
            from fnmatch import fnmatchcase

            found.update((name, env[name]) for name in env if fnmatchcase(name, pattern))
        elif pattern in env:
            found[pattern] = env[pattern]
    return dict(sorted(found.items()))


def pack(value: Any) -> bytes:
    """msgpack, in the shortest forms.

    Raises :class:`~ptocache.errors.PtocacheError` for text with a surrogate that stands for no byte.
    """
    out: list[bytes] = []
    try:
        _pack(value, out)
    except UnicodeEncodeError as error:
        raise PtocacheError(
            f"a text that no file or variable can have: {error.object!r}"
        ) from error
    return b"".join(out)


def _pack(value: Any, out: list[bytes]) -> None:
    if value is None:
        out.append(b"\xc0")
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        out += (_head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)), data)
    elif isinstance(value, bytes):
        out += (_head(len(value), 0, 0, (0xC4, 0xC5, 0xC6)), value)
    elif isinstance(value, int):
        out.append(_number(value))
    elif isinstance(value, (list, tuple)):
        out.append(_head(len(value), 0x90, 16, (0, 0xDC, 0xDD)))
        for item in value:
            _pack(item, out)
    else:
        out.append(_head(len(value), 0x80, 16, (0, 0xDE, 0xDF)))
        for key, item in value.items():
            _pack(key, out)
            _pack(item, out)


def _head(count: int, short: int, limit: int, longer: tuple[int, int, int]) -> bytes:
    """The bytes before a value that is counted: ``short`` holds counts below ``limit`` itself."""
    if count < limit:
        return bytes((short | count,))
    for size, first in zip((1, 2, 4), longer, strict=True):
        if first and count < 1 << (8 * size):
            return bytes((first,)) + count.to_bytes(size, "big")
    raise PtocacheError(f"a value of {count} parts")


def _number(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes((value & 0xFF,))
    if value >= 0:
        for size, first in ((1, 0xCC), (2, 0xCD), (4, 0xCE), (8, 0xCF)):
            if value < 1 << (8 * size):
                return bytes((first,)) + value.to_bytes(size, "big")
    raise PtocacheError(f"a number that is not sent: {value}")


def unpack(data: bytes) -> dict[str, Any]:
    """The map in a body; raises :class:`~ptocache.errors.FrameError` for anything else."""
    try:
        value, end = _unpack(data, 0)
    except (IndexError, ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"a frame that is not msgpack: {error}") from error
    if not isinstance(value, dict) or end != len(data):
        raise FrameError("a frame that is not a message")
    return value


# First byte → (what follows, bytes of its length or of the number itself).
_FORMS = {
    0xC4: ("b", 1), 0xC5: ("b", 2), 0xC6: ("b", 4), 0xD9: ("s", 1), 0xDA: ("s", 2), 0xDB: ("s", 4),
    0xDC: ("l", 2), 0xDD: ("l", 4), 0xDE: ("m", 2), 0xDF: ("m", 4), 0xCC: ("u", 1), 0xCD: ("u", 2),
    0xCE: ("u", 4), 0xCF: ("u", 8), 0xD0: ("i", 1), 0xD1: ("i", 2), 0xD2: ("i", 4), 0xD3: ("i", 8),
}  # fmt: skip
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return (first if first < 0x80 else first - 0x100), at
    if first < 0xC0:
        kind = "m" if first < 0x90 else "l" if first < 0xA0 else "s"
        count = first & (0x1F if kind == "s" else 0x0F)
    elif first in _PLAIN:
        return _PLAIN[first], at
    elif first in _FORMS:
        kind, size = _FORMS[first]
        if at + size > len(data):
            raise ValueError("cut short")
        count = int.from_bytes(data[at : at + size], "big", signed=kind == "i")
        at += size
    else:
        # A fraction or an extension: no message of this module has one.
        raise ValueError(f"a value that begins with {first:#x}")
    if kind in "ui":
        return count, at
    if count > len(data) - at:
        raise ValueError("cut short")
    if kind in "bs":
        piece = data[at : at + count]
        return (piece if kind == "b" else piece.decode("utf-8", "surrogateescape")), at + count
    if kind == "l":
        items = []
        for _ in range(count):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    found = {}
    for _ in range(count):
        key, at = _unpack(data, at)
        found[key], at = _unpack(data, at)
    return found, at
