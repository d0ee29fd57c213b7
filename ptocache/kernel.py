"""The client's side of kernels that a framework builds by itself: their material, and the lease.

A lease is the right, and while others wait the duty, to build one. It ends with :meth:`Lease.put` or
:meth:`Lease.abandon`; its connection belongs to it until then. Imports nothing heavy.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from . import wire
from .digest import Digest
from .errors import BadRequestError, DaemonUnavailableError, FrameError, PtocacheError
from .model import Answer, Artifact, Input
from .outcome import Outcome, Reason
from .result import DAEMON_TROUBLE, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .connection import Connection

    Material = Mapping[str, bytes | str]
    Files = Mapping[str, bytes | str | os.PathLike[str]]

_MODE = 0o644
_ERROR_LIMIT = 4096


class _File(NamedTuple):
    name: str
    mode: int
    data: bytes


def material_of(material: Material) -> tuple[tuple[Input, ...], tuple[tuple[str, str], ...]]:
    """What makes a kernel, as (digests, texts), both sorted by name: texts of at most 256 characters
    stand for themselves, so that ``explain`` can show them; of the rest only the digest travels.

    Raises :class:`~ptocache.errors.BadRequestError` for a value that is neither text nor bytes.
    """
    if not material:
        raise BadRequestError(
            "a kernel without material", hint="give everything that makes it: source, parameters …"
        )
    digests: list[Input] = []
    texts: list[tuple[str, str]] = []
    for name, value in material.items():
        if isinstance(value, str) and len(value) <= wire.MAX_SHORT_TEXT and "\0" not in value:
            texts.append((name, value))
        elif isinstance(value, (str, bytes)):
            digests.append(Input(name, Digest.of(_encoded(name, value))))
        else:
            raise BadRequestError(
                f"the material {name!r} is a {type(value).__name__}",
                hint="give bytes or text: two values that differ must not look alike",
            )
    return tuple(sorted(digests)), tuple(sorted(texts))


def _encoded(name: str, value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{name!r}: a text that is not Unicode") from error


class Lease:
    """The lease to build one kernel; use as a context manager, by one thread of one process.

    Made by :meth:`ptocache.client.Client.kernel`. Leaving the ``with`` block without a :meth:`put`
    abandons it.
    """

    def __init__(
        self,
        toolchain: str,
        connection: Connection | None,
        message: Mapping[str, object],
        started: float,
        give_back: Callable[[Connection], None],
        step_aside: Callable[[Exception], None],
    ) -> None:
        """``connection`` is ``None`` for a lease that no daemon granted: it stores nothing.
        ``step_aside`` is told of a daemon that has gone; it raises if one is required."""
        number, key, why = message.get("lease"), message.get("key"), message.get("why")
        self.toolchain = toolchain
        self.key = key if isinstance(key, str) else ""
        """The action key (hex); empty if the request was never keyed."""
        self.why = why if isinstance(why, str) else ""
        """Why this was no hit, or why the kernel will not be stored."""
        self.stored = connection is not None and message.get("wanted") is True
        """False if it is known already that the kernel will not be stored."""
        self._number = number if isinstance(number, int) else 0
        self._connection = connection
        self._started = started
        self._granted = time.perf_counter()
        self._give_back = give_back
        self._step_aside = step_aside
        self._pid = os.getpid()
        self._ended = False
        self._renewed = False

    @property
    def is_held(self) -> bool:
        """True until it has ended, in the process that asked for it."""
        return self._connection is not None and self._pid == os.getpid()

    def renewed(self, started: float) -> Lease:
        """The same lease for who asks again where it is held (a build that was broken off and begins
        anew): the put of this one is a bypass from now on."""
        connection, self._connection = self._connection, None
        self._renewed = True
        message = {
            "lease": self._number, "key": self.key, "why": self.why, "wanted": self.stored,
        }  # fmt: skip
        return Lease(
            self.toolchain, connection, message, started, self._give_back, self._step_aside
        )

    def put(self, files: Files, *, compile_ms: int | None = None) -> Result:
        """End the lease with the kernel's files: name → bytes, text, or the path of a file to read.

        Names are relative paths; at most 64 files. ``compile_ms``: what building cost (default: the time
        since the lease was granted). The result is a miss if the kernel was stored, else a bypass with
        its reason; both have the files as outputs.

        Raises :class:`~ptocache.errors.BadRequestError` for files that cannot be read or named so (the
        lease then goes on), :class:`~ptocache.errors.OutputRejectedError` for a damaged ELF image, and
        :class:`~ptocache.errors.WireError` only if the settings require a daemon.
        """
        if self._ended:
            raise BadRequestError("the lease has ended", hint="ask for the kernel again")
        given = [_file(name, source) for name, source in files.items()]
        if not given or len(given) > wire.MAX_FILES:
            raise BadRequestError(f"a kernel has 1 to {wire.MAX_FILES} files, not {len(given)}")
        if compile_ms is None:
            compile_ms = int((time.perf_counter() - self._granted) * 1000)
        if not 0 <= compile_ms <= wire.MAX_MS:
            raise BadRequestError(f"compile_ms is {compile_ms}, not a number of milliseconds")
        answer = self._sent(given, compile_ms)
        if answer.outcome is Outcome.BYPASS:
            own = (
                Artifact(item.name, Digest.of(item.data), item.mode, item.data) for item in given
            )
            answer = answer._replace(artifacts=tuple(own))
        total_ms = (time.perf_counter() - self._started) * 1000
        return Result(answer, self.toolchain, total_ms).check()

    def abandon(self, error: str | BaseException = "") -> None:
        """End the lease without a kernel: the next who waits has it. Never raises for a daemon that has
        gone; abandoning twice is fine."""
        connection = self._end()
        if connection is None:
            return
        text = str(error) or (type(error).__name__ if isinstance(error, BaseException) else "")
        # A text that no message can carry is no reason to keep the lease.
        text = text[:_ERROR_LIMIT].replace("\0", " ").encode("utf-8", "replace").decode()
        try:
            connection.send(wire.abandon_message(1, self._number, text))
            connection.receive()
        except (PtocacheError, OSError):
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            self._give_back(connection)

    def _sent(self, given: list[_File], compile_ms: int) -> Answer:
        """The daemon's answer to the files, or the one that stands for none."""
        forked = self._pid != os.getpid()
        connection = self._end()
        if forked or self._renewed:
            whose = "the process that forked" if forked else "who asked again"
            return self._unstored(Reason.LEASE_LOST, f"the lease belongs to {whose}", compile_ms)
        if connection is None:
            return self._unstored(Reason.NO_DAEMON, self.why, compile_ms)
        try:
            for item in given if self.stored else ():
                for message in wire.put_messages(self._number, *item):
                    connection.send(message)
            connection.send(wire.finish_message(1, self._number, compile_ms))
            found, fds = connection.receive()
            if found["type"] != "answer":
                raise FrameError(f"an answer of type {found['type']!r} to finish")
            answer = wire.parse_answer(found, fds)
        except (PtocacheError, OSError) as error:
            connection.close()
            self._step_aside(error)
            return self._unstored(Reason.NO_DAEMON, str(error), compile_ms)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        if answer.outcome is Outcome.FAILURE and answer.reason in DAEMON_TROUBLE:
            self._step_aside(DaemonUnavailableError(f"it answered: {answer.detail}"))
            return self._unstored(answer.reason, answer.detail, compile_ms)
        return answer

    def _unstored(self, reason: Reason, detail: str, compile_ms: int) -> Answer:
        return Answer(Outcome.BYPASS, self.key, reason=reason, detail=detail, compile_ms=compile_ms)

    def _end(self) -> Connection | None:
        """The connection, once; a child process has no part in its parent's."""
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None and self._pid != os.getpid():
            connection.close()
            return None
        return connection

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._ended:
            self.abandon(error if error is not None else "the block ended without a put")

    def __del__(self) -> None:
        # Forgotten: the daemon sees the connection close.
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()


def _file(name: str, source: bytes | str | os.PathLike[str]) -> _File:
    if not wire.is_file_name(name):
        # Before anything is sent: the daemon would end the connection, and the lease with it.
        raise BadRequestError(
            f"the file name {name!r} is not usable",
            hint="use a relative path with / and without . or .. parts",
        )
    _encoded(name, name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _File(name, _MODE, bytes(source))
    if isinstance(source, str):
        return _File(name, _MODE, _encoded(name, source))
    try:
        with open(source, "rb") as file:
            return _File(name, os.fstat(file.fileno()).st_mode & 0o777, file.read())
    except OSError as error:
        raise BadRequestError(
            f"the file {name} ({os.fspath(source)}) cannot be read: {error.strerror}",
            path=os.fspath(source),
        ) from error
