"""The light, synchronous client: asks the daemon, starts it if there is none, and compiles by itself
if that does not help either.

Thread-safe, and safe to use on both sides of a fork: each call takes an idle connection or opens one,
and a child process never touches its parent's. Imports nothing heavy until it is needed.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from . import paths, wire
from .config import MODES, Settings, load
from .connection import Connection
from .digest import Digest
from .errors import (
    BadRequestError,
    DaemonUnavailableError,
    FrameError,
    PeerRefusedError,
    PtocacheError,
    PtocacheWarning,
    WireError,
)
from .model import Answer, Descriptor, Input, Job, select
from .outcome import Reason
from .result import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .model import Environment

    Source = bytes | str | os.PathLike[str]

START_S = 20.0
_IDLE_CONNECTIONS = 8
_PACKAGE = os.path.dirname(__file__) + os.sep
_BATCH = 256
# The daemon's own trouble, not the compile's: this process may well succeed.
_STEP_ASIDE = frozenset({Reason.CANCELLED, Reason.SYSTEM, Reason.INTERNAL})


class Pending:
    """A request on its way through :meth:`Client.compile_many`."""

    __slots__ = ("data", "env", "request", "started")

    def __init__(self, request: wire.Request, data: dict[str, bytes], env: Environment) -> None:
        self.request = request
        """Without its environment: the daemon says which variables it wants."""
        self.data = data
        self.env = env
        self.started = time.perf_counter()

    def message(self, number: int, connection: Connection, *, full: bool) -> dict[str, Any]:
        """The message to send, with the bytes of the inputs if ``full``."""
        patterns = connection.variables.get(self.request.job.toolchain, [])
        job = self.request.job._replace(env=select(patterns, self.env))
        data = self.data if full else {}
        return wire.compile_message(number, self.request._replace(job=job, data=data))


class Client:
    """A connection to the daemon of one store; use as a context manager or close it.

    Made by :func:`connect`. ``settings`` decide the socket, the mode, the salt, and whether a daemon
    is started or required.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._idle: list[Connection] = []
        self._pid = os.getpid()
        self._warned = False
        self._given_up_s = 0.0

    # --- compiling

    def compile(
        self,
        toolchain: str,
        inputs: Mapping[str, Source],
        *,
        arch: str = "",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        symbols: Sequence[str] = (),
        source_dir: str | os.PathLike[str] = "",
        kernel: str = "",
        mode: str = "",
        salt: str = "",
        check: bool = True,
    ) -> Result:
        """Compile, or get what was compiled before.

        ``inputs``: relative name → bytes, text, or the path of a file to read. ``env``: where declared
        variables are taken from (default: this process's environment). ``source_dir``: where quoted
        includes are looked for. ``kernel``: a name for people. ``mode``: ``use``, ``refresh``,
        ``bypass`` or ``read-only``. ``salt``: text that enters the key.

        Raises what the failure was (:class:`~ptocache.errors.CompileFailedError` …) with the result as
        its ``result`` attribute, unless ``check`` is false; and
        :class:`~ptocache.errors.DaemonUnavailableError` only if the settings require a daemon.
        """
        job = self.job(
            toolchain, inputs, arch=arch, options=options, env=env, outputs=outputs,
            symbols=symbols, source_dir=source_dir, kernel=kernel, mode=mode, salt=salt,
        )  # fmt: skip
        result = self._one(job)
        return result.check() if check else result

    def job(
        self,
        toolchain: str,
        inputs: Mapping[str, Source],
        *,
        arch: str = "",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        symbols: Sequence[str] = (),
        source_dir: str | os.PathLike[str] = "",
        kernel: str = "",
        mode: str = "",
        salt: str = "",
    ) -> Pending:
        """A request for :meth:`compile_many`; the parameters are those of :meth:`compile`."""
        if isinstance(options, (str, bytes)):
            raise BadRequestError("options is one text", hint="give a list of words")
        chosen = mode or self.settings["request.mode"]
        if chosen not in MODES:
            raise BadRequestError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
        data = {name: _bytes(name, source) for name, source in inputs.items()}
        directory = os.path.realpath(source_dir) if os.fspath(source_dir) else ""
        job = Job(
            toolchain=toolchain,
            arch=arch,
            options=tuple(options),
            env=(),
            inputs=tuple(sorted(Input(name, Digest.of(text)) for name, text in data.items())),
            outputs=tuple(outputs),
            symbols=tuple(symbols),
            source_dir=directory,
            cwd=_cwd(),
            kernel=kernel or os.path.splitext(os.path.basename(next(iter(data), "")))[0],
        )
        request = wire.Request(job, {}, chosen, salt or self.settings["request.salt"])
        return Pending(request, data, _process_environment() if env is None else env)

    def compile_many(self, jobs: Iterable[Pending]) -> Iterator[tuple[int, Result]]:
        """Compile jobs made by :meth:`job`; yields (position, result) as they finish. Failures are
        results here: look at ``result.ok``."""
        return self._run(list(jobs))

    # --- asking

    def get(self, key: str, *, source_dir: str | os.PathLike[str] = "") -> Result | None:
        """The stored result of an action key, if there is one and its discovered inputs (those beside
        the source are looked for in ``source_dir``) are as they were. Compiles nothing, counts nothing.

        Raises :class:`~ptocache.errors.DaemonUnavailableError` if no daemon answers.
        """
        started = time.perf_counter()
        directory = os.path.realpath(source_dir) if os.fspath(source_dir) else ""
        message, fds = self._exchange(
            {"type": "get", "id": 1, "key": key, "source_dir": directory}, start=True
        )
        answer = wire.parse_answer(message, fds) if message["type"] == "answer" else None
        return Result(answer, "", (time.perf_counter() - started) * 1000) if answer else None

    def describe(self, key: str) -> dict[str, Any]:
        """Everything that is known of an entry, by its key or the beginning of it.

        Raises :class:`~ptocache.errors.UnknownEntryError`, and
        :class:`~ptocache.errors.DaemonUnavailableError` if no daemon answers.
        """
        found: dict[str, Any] = self.call("show", key=key)
        return found

    def stats(self) -> dict[str, Any]:
        """Lifetime statistics; the names are documented in docs/reference/statistics.md."""
        found: dict[str, Any] = self.call("stats")
        return found

    def call(self, kind: str, *, start: bool = True, **fields: Any) -> Any:
        """An administrative request (docs/reference/wire.md lists them).

        Raises the daemon's error, and :class:`~ptocache.errors.DaemonUnavailableError`.
        """
        message, _ = self._exchange({"type": kind, "id": 1, **fields}, start=start)
        if message["type"] == "result":
            return message.get("value")
        raise FrameError(f"an answer of type {message['type']!r} to {kind}")

    def close(self) -> None:
        """Close every connection; the client can be used again."""
        if self._pid == os.getpid():
            while self._idle:
                self._idle.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the inside

    def _one(self, pending: Pending) -> Result:
        """One request over an idle connection: the way of nearly every hit. Whatever is unusual about
        it goes the way of :meth:`_run`."""
        connection = self._idle_one()
        if connection is not None:
            answer = None
            try:
                connection.send(pending.message(0, connection, full=False))
                while answer is None:
                    _, answer = _answer(connection, {0: pending})
            except (WireError, OSError):
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                self._give(connection)
                if answer.reason not in _STEP_ASIDE:
                    return _result(pending, answer)
        return next(result for _, result in self._run([pending]))

    def _run(self, jobs: list[Pending]) -> Iterator[tuple[int, Result]]:
        if not jobs:
            return
        waiting = dict(enumerate(jobs))
        reused = bool(self._idle)
        connection: Connection | None = None
        try:
            connection = asked = self._take(start=True)
            sent = 0
            while waiting:
                # Never more than two batches under way: a daemon that has enough to do reads nothing
                # more, the question whether it lives included.
                if sent < len(jobs) and sent - (len(jobs) - len(waiting)) <= _BATCH:
                    numbers = range(sent, min(sent + _BATCH, len(jobs)))
                    _ask(asked, {number: waiting[number] for number in numbers})
                    sent = numbers.stop
                    continue
                number, answer = _answer(asked, waiting)
                if answer is None:
                    continue
                pending = waiting.pop(number)
                if answer.reason in _STEP_ASIDE and not self.settings["client.require"]:
                    self._warn(DaemonUnavailableError(f"it answered: {answer.detail}"))
                    result = self._alone(pending)
                else:
                    result = _result(pending, answer)
                if not waiting:
                    # Before the last result: who takes only that one never comes back here.
                    self._give(asked)
                    connection = None
                yield number, result
        except (WireError, OSError) as error:
            if reused and len(waiting) == len(jobs):
                self.close()
                yield from self._run(jobs)
                return
            if self.settings["client.require"]:
                raise _unavailable(error) from error
            self._warn(error)
            for number in list(waiting):
                yield number, self._alone(waiting.pop(number))
        finally:
            if connection is not None:
                connection.close()

    def _exchange(
        self, message: dict[str, Any], *, start: bool
    ) -> tuple[dict[str, Any], list[Descriptor]]:
        """One message, one answer; asked again if the connection turns out to be a dead one."""
        while True:
            reused = bool(self._idle)
            connection = self._take(start)
            try:
                connection.send(message)
                found = connection.receive()
            except (DaemonUnavailableError, BrokenPipeError, ConnectionResetError) as error:
                connection.close()
                if not reused:
                    raise _unavailable(error) from error
                self.close()
            except PtocacheError:
                # The daemon's own no: the connection is as good as before.
                self._give(connection)
                raise
            except BaseException:
                connection.close()
                raise
            else:
                self._give(connection)
                return found

    def _idle_one(self) -> Connection | None:
        """An idle connection of this process, if there is one."""
        if self._pid != os.getpid():
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _take(self, start: bool) -> Connection:
        """An idle connection, or a new one. An idle one may lead to a daemon that has gone since:
        that shows when it is used, and asking costs each request a system call."""
        if self._pid != os.getpid():
            # The parent's connections: closing our copies of the descriptors is all that is allowed.
            for connection in self._idle:
                connection.close()
            self._idle = []
            self._pid = os.getpid()
        return self._idle_one() or self._open(start)

    def _give(self, connection: Connection) -> None:
        if len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def _open(self, start: bool) -> Connection:
        try:
            return Connection(self.settings.socket)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if not (start and self.settings["client.autostart"]):
                raise DaemonUnavailableError(
                    f"no daemon serves {self.settings.socket}",
                    hint="start one: ptocache serve --detach",
                    path=self.settings.socket,
                ) from error
        return self._start()

    def _start(self) -> Connection:
        """Start a daemon, or wait for the one that somebody else is starting."""
        from .starter import start_daemon

        root = os.path.realpath(self.settings["store.root"])
        if time.monotonic() < self._given_up_s:
            raise DaemonUnavailableError("no daemon could be started a moment ago")
        store = paths.StorePaths(root)
        found = start_daemon(
            self.settings, store, lambda: Connection(self.settings.socket), START_S
        )
        if isinstance(found, str):
            # A process with a thousand kernels must not try a thousand times.
            self._given_up_s = time.monotonic() + START_S
            raise DaemonUnavailableError(
                f"no daemon could be started: {found}",
                hint=f"its log is {store.log}",
                path=store.log,
            )
        return found

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            import warnings

            # The line to name is the caller's, however deep in here the trouble was met.
            level, frame = 1, sys._getframe(0)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
                level, frame = level + 1, frame.f_back
            warnings.warn(
                f"ptocache compiles without its daemon: {error}", PtocacheWarning, stacklevel=level
            )

    def _alone(self, pending: Pending) -> Result:
        """Compile in this process through the same plugin, without a cache."""
        from .fallback import compile_alone

        job = pending.request.job._replace(env=tuple(sorted(pending.env.items())))
        request = pending.request._replace(job=job)
        return _result(pending, compile_alone(request, pending.data, self.settings))


def connect(
    *,
    root: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **overrides: object,
) -> Client:
    """A client for the store that the settings name; no connection is made before it is needed.

    ``root``: another store's directory. ``overrides``: settings by their names with ``_`` for ``.``
    (``client_require=True``).

    Raises :class:`~ptocache.errors.ConfigError` for settings that cannot be used.
    """
    named: dict[str, object] = {
        name.replace("_", ".", 1): value for name, value in overrides.items()
    }
    if root is not None:
        named["store.root"] = os.path.abspath(root)
    return Client(load(env, named))


class _RawEnvironment:
    """``os.environ`` without its checks and conversions of names that are not set: a request looks up a
    dozen of them, and they would cost it as much as the round trip."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def get(self, name: str, default: str | None = None) -> str | None:
        """As of a mapping."""
        value = self._raw.get(name.encode("utf-8", "surrogateescape"))
        return default if value is None else os.fsdecode(value)

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self._raw)

    def __getitem__(self, name: str) -> str:
        return os.fsdecode(self._raw[name.encode("utf-8", "surrogateescape")])

    def items(self) -> list[tuple[str, str]]:
        """As of a mapping."""
        return [(os.fsdecode(name), os.fsdecode(value)) for name, value in self._raw.items()]


def _process_environment() -> Environment:
    # The dictionary behind os.environ is an internal of CPython: without it, or with another encoding
    # than UTF-8, the public way serves as well.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict) and sys.getfilesystemencoding() == "utf-8":
        return _RawEnvironment(raw)
    return os.environ


def _ask(connection: Connection, jobs: Mapping[int, Pending]) -> None:
    """Send requests in one message; input bytes stay here until the daemon asks for them."""
    messages = [item.message(number, connection, full=False) for number, item in jobs.items()]
    if len(messages) == 1:
        connection.send(messages[0])
    else:
        connection.send({"type": "batch", "id": 0, "requests": messages})


def _answer(connection: Connection, waiting: Mapping[int, Pending]) -> tuple[int, Answer | None]:
    """The next answer; ``None`` if it was a request for input bytes, which is then fulfilled."""
    message, fds = connection.receive()
    number = message.get("id")
    if not isinstance(number, int) or number not in waiting:
        raise FrameError("an answer to a request that was not made")
    if message["type"] == "need":
        connection.send(waiting[number].message(number, connection, full=True))
        return number, None
    if message["type"] != "answer":
        raise FrameError(f"an answer of type {message['type']!r}")
    return number, wire.parse_answer(message, fds)


def _bytes(name: str, source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, str):
        return source.encode()
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadRequestError(
            f"the input {name} ({os.fspath(source)}) cannot be read: {error.strerror}",
            path=os.fspath(source),
        ) from error


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _result(pending: Pending, answer: Answer) -> Result:
    total_ms = (time.perf_counter() - pending.started) * 1000
    return Result(answer, pending.request.job.toolchain, total_ms)


def _unavailable(error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return PeerRefusedError(str(error))
    return DaemonUnavailableError(str(error))
