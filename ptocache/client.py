"""The light, synchronous client: asks the daemon, starts it if there is none, and compiles by itself
if that does not help either.

Thread-safe, and safe to use on both sides of a fork: each call takes an idle connection or opens one,
and a child process never touches its parent's. Imports nothing heavy until it is needed.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import time

from . import __version__, paths, wire
from .config import MODES, Settings, load
from .digest import Digest
from .errors import (
    BadRequestError,
    CompileFailedError,
    DaemonUnavailableError,
    FrameError,
    PeerRefusedError,
    ProtocolMismatchError,
    PtocacheError,
    PtocacheWarning,
    WireError,
    from_wire,
)
from .model import Answer, Artifact, Descriptor, Input, Job, Log, select
from .outcome import Outcome, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Source = bytes | str | os.PathLike[str]

CONNECT_S = 2.0
START_S = 20.0
_IDLE_CONNECTIONS = 8
_READ_BYTES = 1 << 18
_BATCH = 256
LIVENESS_S = 5.0
"""A daemon that says nothing for so long is asked whether it lives, and given as long to answer."""
_LIVENESS_ID = -1
# The daemon's own trouble, not the compile's: this process may well succeed.
_STEP_ASIDE = frozenset({Reason.CANCELLED, Reason.SYSTEM, Reason.INTERNAL})


class ResultOutput:
    """One output of a compile."""

    __slots__ = ("_artifact", "_view")

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._view: memoryview | None = None

    @property
    def name(self) -> str:
        """The name under which it was wanted."""
        return self._artifact.name

    @property
    def size(self) -> int:
        """Bytes."""
        return self._artifact.digest.size

    @property
    def digest(self) -> str:
        """SHA-256, lower-case hex."""
        return self._artifact.digest.sha256

    @property
    def mode(self) -> int:
        """Permission bits that the tool gave the file."""
        return self._artifact.mode

    @property
    def buffer(self) -> memoryview:
        """The bytes, read-only and without a copy: inline ones, or a mapping of the stored file."""
        if self._view is None:
            if self._artifact.data is not None:
                self._view = memoryview(self._artifact.data)
            else:
                import mmap

                assert self._artifact.file is not None
                mapped = mmap.mmap(self._artifact.file.fileno(), self.size, access=mmap.ACCESS_READ)
                self._view = memoryview(mapped)
        return self._view

    @property
    def file(self) -> Descriptor | None:
        """The open file of a large output; ``None`` for one that came inline."""
        return self._artifact.file

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to ``path`` with the tool's permission bits, whole or not at all.

        Raises :class:`OSError`.
        """
        target = os.fspath(path)
        partial = f"{target}.{os.getpid()}-{time.monotonic_ns():x}.part"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self.buffer)
                os.fchmod(file.fileno(), self.mode)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise


class Result:
    """How a compile request ended."""

    __slots__ = ("_answer", "outputs", "toolchain", "total_ms")

    def __init__(self, answer: Answer, toolchain: str, total_ms: float) -> None:
        self._answer = answer
        self.toolchain = toolchain
        """Name of the toolchain that was asked."""
        self.total_ms = total_ms
        """What the caller waited, in milliseconds."""
        self.outputs: dict[str, ResultOutput] = {
            item.name: ResultOutput(item) for item in answer.artifacts
        }
        """Output name → output; empty for a failure."""

    @property
    def outcome(self) -> Outcome:
        """Memory hit, disk hit, miss, …"""
        return self._answer.outcome

    @property
    def reason(self) -> Reason:
        """Why this was a bypass or a failure."""
        return self._answer.reason

    @property
    def why(self) -> str:
        """The reason in words; for a miss, what differs from the latest entry of the kernel."""
        return self._answer.detail

    @property
    def ok(self) -> bool:
        """True if there are outputs."""
        return self._answer.outcome is not Outcome.FAILURE

    @property
    def key(self) -> str:
        """The action key (hex); empty if the request was never keyed."""
        return self._answer.key

    @property
    def log(self) -> Log:
        """What the tools printed, now or when the entry was made."""
        return self._answer.log

    @property
    def exit_code(self) -> int:
        """The tool's exit code."""
        return self._answer.exit_code

    @property
    def compile_ms(self) -> int:
        """What the compile cost when it ran."""
        return self._answer.compile_ms

    @property
    def identity(self) -> str:
        """Digest of the toolchain that made it."""
        return self._answer.identity

    @property
    def error(self) -> PtocacheError | None:
        """What went wrong, for a failure."""
        if self.ok:
            return None
        if self._answer.error is not None:
            return from_wire(self._answer.error)
        return CompileFailedError(self._answer.detail or "the compile failed")

    def check(self) -> Result:
        """This result; raises its :attr:`error`, with the result as ``error.result``, for a failure."""
        error = self.error
        if error is not None:
            error.result = self  # type: ignore[attr-defined]
            raise error
        return self


class _Pending:
    """A request on its way through :meth:`Client.compile_many`."""

    __slots__ = ("data", "env", "request", "started")

    def __init__(
        self, request: wire.Request, data: dict[str, bytes], env: Mapping[str, str]
    ) -> None:
        self.request = request
        """Without its environment: the daemon says which variables it wants."""
        self.data = data
        self.env = env
        self.started = time.perf_counter()

    def message(self, number: int, patterns: Iterable[str], *, full: bool) -> dict[str, Any]:
        """The message to send, with the bytes of the inputs if ``full``."""
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
        self._idle: list[_Connection] = []
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
        for result in self._run([job]):
            return result[1].check() if check else result[1]
        raise AssertionError("a request without an answer")

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
    ) -> _Pending:
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
        return _Pending(request, data, os.environ if env is None else env)

    def compile_many(self, jobs: Iterable[_Pending]) -> Iterator[tuple[int, Result]]:
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

    def _run(self, jobs: list[_Pending]) -> Iterator[tuple[int, Result]]:
        if not jobs:
            return
        waiting = dict(enumerate(jobs))
        reused = bool(self._idle)
        connection: _Connection | None = None
        try:
            connection = asked = self._take(start=True)
            sent = 0
            while waiting:
                # Never more than two batches under way: a daemon that has enough to do reads nothing
                # more, the question whether it lives included.
                if sent < len(jobs) and sent - (len(jobs) - len(waiting)) <= _BATCH:
                    numbers = range(sent, min(sent + _BATCH, len(jobs)))
                    asked.ask({number: waiting[number] for number in numbers})
                    sent = numbers.stop
                    continue
                number, answer = asked.answer(waiting)
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

    def _take(self, start: bool) -> _Connection:
        """An idle connection, or a new one. An idle one may lead to a daemon that has gone since:
        that shows when it is used, and asking costs each request a system call."""
        if self._pid != os.getpid():
            # The parent's connections: closing our copies of the descriptors is all that is allowed.
            for connection in self._idle:
                connection.close()
            self._idle = []
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open(start)

    def _give(self, connection: _Connection) -> None:
        if len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def _open(self, start: bool) -> _Connection:
        try:
            return _Connection(self.settings.socket)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if not (start and self.settings["client.autostart"]):
                raise DaemonUnavailableError(
                    f"no daemon serves {self.settings.socket}",
                    hint="start one: ptocache serve --detach",
                    path=self.settings.socket,
                ) from error
        return self._start()

    def _start(self) -> _Connection:
        """Start a daemon, or wait for the one that somebody else is starting."""
        from .starter import start_daemon

        root = os.path.realpath(self.settings["store.root"])
        if time.monotonic() < self._given_up_s:
            raise DaemonUnavailableError("no daemon could be started a moment ago")
        store = paths.StorePaths(root)
        found = start_daemon(
            self.settings, store, lambda: _Connection(self.settings.socket), START_S
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

            warnings.warn(
                f"ptocache compiles without its daemon: {error}", PtocacheWarning, stacklevel=4
            )

    def _alone(self, pending: _Pending) -> Result:
        """Compile in this process through the same plugin, without a cache."""
        from .fallback import compile_alone

        job = pending.request.job._replace(env=tuple(sorted(pending.env.items())))
        request = pending.request._replace(job=job)
        return _result(pending, compile_alone(request, pending.data, self.settings))


class _Connection:
    """One open, greeted socket. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """Raises :class:`OSError` if nobody answers, :class:`~ptocache.errors.WireError` if somebody
        else does."""
        self._reader = wire.Reader()
        self._fds: list[Descriptor] = []
        self.variables: dict[str, list[str]] = {}
        paths.verify_socket_directory(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(path)
            self._check_peer(path)
            self._socket.settimeout(None)
            # The kernel's own time limits: Python's would poll before every call.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _timeval(LIVENESS_S))
            self.send(wire.hello(__version__, os.getpid()))
            self._greeted(self.receive(ask=False)[0])
        except BaseException:
            self._socket.close()
            raise

    def _check_peer(self, path: str) -> None:
        data = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        uid = int.from_bytes(data[4:8], "little" if array.array("H", [1]).tobytes()[0] else "big")
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
        self.variables = variables if isinstance(variables, dict) else {}

    def ask(self, jobs: dict[int, _Pending]) -> None:
        """Send requests in one message; input bytes stay here until the daemon asks for them."""
        messages = [
            pending.message(number, self._patterns(pending), full=False)
            for number, pending in jobs.items()
        ]
        if len(messages) == 1:
            self.send(messages[0])
        else:
            self.send({"type": "batch", "id": 0, "requests": messages})

    def answer(self, waiting: dict[int, _Pending]) -> tuple[int, Answer | None]:
        """The next answer; ``None`` if it was a request for input bytes, which is then fulfilled."""
        message, fds = self.receive()
        number = message.get("id")
        if not isinstance(number, int) or number not in waiting:
            raise FrameError("an answer to a request that was not made")
        if message["type"] == "need":
            pending = waiting[number]
            self.send(pending.message(number, self._patterns(pending), full=True))
            return number, None
        if message["type"] != "answer":
            raise FrameError(f"an answer of type {message['type']!r}")
        return number, wire.parse_answer(message, fds)

    def _patterns(self, pending: _Pending) -> list[str]:
        return self.variables.get(pending.request.job.toolchain, [])

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        data = memoryview(wire.pack(message))
        while data:
            try:
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
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
            self._pull()

    def receive(self, *, ask: bool = True) -> tuple[dict[str, Any], list[Descriptor]]:
        """The next message with its descriptors; raises the daemon's error if it is one.

        However long a compile takes, a living daemon answers the question whether it lives: one that
        was stopped or hangs is given up (:class:`~ptocache.errors.DaemonUnavailableError`).
        """
        asked = not ask
        while True:
            message = self._reader.next()
            if message is not None:
                if message.get("id") != _LIVENESS_ID:
                    break
                asked = False
                continue
            try:
                self._pull()
            except BlockingIOError as error:
                if asked:
                    raise DaemonUnavailableError(
                        "the daemon does not answer", hint="it may be stopped: ptocache status"
                    ) from error
                asked = True
                self.send({"type": "ping", "id": _LIVENESS_ID})
        if message["type"] == "error":
            raise from_wire(message.get("error") or {})
        count = message.get("fds", 0)
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds

    def _pull(self) -> None:
        """Take in what arrives next."""
        data, ancillary, flags, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        self._take_descriptors(ancillary)
        if not data:
            raise DaemonUnavailableError("the daemon closed the connection")
        if flags & socket.MSG_CTRUNC:
            raise FrameError("descriptors were lost: this process has no room for more")
        self._reader.feed(data)

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                for number in numbers:
                    os.set_inheritable(number, False)
                    self._fds.append(Descriptor(number))

    def close(self) -> None:
        """Close the socket; descriptors of answers stay with their holders."""
        self._socket.close()


_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * wire.MAX_DESCRIPTORS)


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


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def _result(pending: _Pending, answer: Answer) -> Result:
    total_ms = (time.perf_counter() - pending.started) * 1000
    return Result(answer, pending.request.job.toolchain, total_ms)


def _unavailable(error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return PeerRefusedError(str(error))
    return DaemonUnavailableError(str(error))
