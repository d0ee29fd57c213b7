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
from _thread import get_ident

from . import bases, paths, wire
from .config import MODES, Settings, load
from .connection import Connection
from .digest import Digest
from .errors import (
    BadRequestError,
    ConfigError,
    DaemonUnavailableError,
    FrameError,
    PeerRefusedError,
    PtocacheError,
    PtocacheWarning,
    WireError,
)
from .kernel import Lease, material_of
from .model import Answer, Descriptor, Input, Job, select
from .outcome import Outcome, Reason
from .pending import PYTHON_VARIABLE, Pending, Repeats, process_environment, with_python
from .result import DAEMON_TROUBLE, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar
    from weakref import ref

    from .batch import Batch
    from .kernel import Files, Material
    from .model import Environment
    from .pending import Source
    from .recording import Recorder

    T = TypeVar("T")

START_S = 20.0
_IDLE_CONNECTIONS = 8
_PACKAGE = os.path.dirname(__file__) + os.sep


_Asked = tuple[int, str, bytes]
"""A thread, the daemon's socket, and the request that it made."""


class _Held(PtocacheError):
    """What is asked for is being built by the very thread that asks."""

    def __init__(self, lease: Lease, asked: _Asked) -> None:
        super().__init__("this thread holds the lease")
        self.lease = lease
        self.asked = asked


_leases: dict[_Asked, ref[Lease]] = {}
"""Of the whole process: another client of the same thread would wait for it all the same."""


def _remember(asked: _Asked, lease: Lease) -> None:
    from weakref import ref

    for other, held in list(_leases.items()):
        known = held()
        if known is None or not known.is_held:
            _leases.pop(other, None)
    _leases[asked] = ref(lease)


class Client:
    """A connection to the daemon of one store; use as a context manager or close it.

    Made by :func:`connect`. ``settings`` decide the socket, the mode, the salt, and whether a daemon
    is started or required.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._idle: list[Connection] = []
        self._repeats = Repeats()
        self._pid = os.getpid()
        self._said: set[str] = set()
        self._given_up_s = 0.0
        self._recorder: Recorder | None = None
        if settings["client.record"]:
            from .recording import Recorder

            self._recorder = Recorder(settings["client.record"], self._say)
        self._bases: tuple[str, ...] | None = None

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
        priority: str = "interactive",
        check: bool = True,
    ) -> Result:
        """Compile, or get what was compiled before.

        ``inputs``: relative name → bytes, text, or the path of a file to read. ``env``: where declared
        variables are taken from (default: this process's environment). ``source_dir``: where quoted
        includes are looked for. ``kernel``: a name for people. ``mode``: ``use``, ``refresh``,
        ``bypass`` or ``read-only``. ``salt``: text that enters the key. ``priority``: ``interactive`` for
        what somebody waits for, ``sweep`` for what is prepared; the setting ``request.priority`` decides
        instead of it, if it is set.

        Raises what the failure was (:class:`~ptocache.errors.CompileFailedError` …) with the result as
        its ``result`` attribute, unless ``check`` is false; and
        :class:`~ptocache.errors.DaemonUnavailableError` only if the settings require a daemon.
        """
        variables = process_environment() if env is None else env
        if not isinstance(options, (str, bytes)):
            # Read once: what is asked for and what it is known by must be the same words.
            options = tuple(options)
        outputs, symbols = tuple(outputs), tuple(symbols)
        asked = _as_said(
            inputs, options, toolchain, arch, outputs, symbols,
            os.path.realpath(source_dir) if source_dir else "", kernel, mode, salt, priority,
        )  # fmt: skip
        pending = self._repeats.find(asked, variables) if asked else None
        if pending is None:
            pending = self.job(
                toolchain, inputs, arch=arch, options=options, env=variables, outputs=outputs,
                symbols=symbols, source_dir=source_dir, kernel=kernel, mode=mode, salt=salt,
                priority=priority,
            )  # fmt: skip
            if asked:
                pending = self._repeats.keep(asked, pending)
        result = self._one(pending)
        return result.check() if check else result

    def job(
        self,
        toolchain: str,
        inputs: Mapping[str, Source],
        *,
        arch: str = "",
        options: Sequence[str] = (),
        env: Environment | None = None,
        outputs: Sequence[str] = (),
        symbols: Sequence[str] = (),
        source_dir: str | os.PathLike[str] = "",
        kernel: str = "",
        mode: str = "",
        salt: str = "",
        priority: str = "sweep",
    ) -> Pending:
        """A request for :meth:`compile_many`; the parameters are those of :meth:`compile`."""
        if isinstance(options, (str, bytes)):
            raise BadRequestError("options is one text", hint="give a list of words")
        chosen = self._chosen(mode)
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
            bases=self._base_dirs(),
        )
        request = wire.Request(job, {}, chosen, salt or self.settings["request.salt"])
        chosen = self.settings["request.priority"] or priority
        if chosen not in wire.PRIORITIES:
            raise BadRequestError(
                f"there is no priority {chosen!r}", hint=f"one of {', '.join(wire.PRIORITIES)}"
            )
        variables = process_environment() if env is None else env
        pending = Pending(request, data, variables, wire.PRIORITIES.index(chosen))
        if self._recorder is not None:
            pending.files = _files_of(inputs)
        return pending

    def _base_dirs(self) -> tuple[str, ...]:
        """The bases of every request, links followed once.

        Raises :class:`~ptocache.errors.ConfigError` for a link that leads to what can be no base.
        """
        if self._bases is None:
            spelled = self.settings["request.base_dirs"]
            try:
                self._bases = bases.canonical(spelled)
            except ValueError as error:
                raise ConfigError(
                    f"request.base_dirs: one of {', '.join(spelled)} cannot be used: {error}",
                    hint="it leads there through a link",
                    setting="request.base_dirs",
                ) from error
        return self._bases

    def _chosen(self, mode: str) -> str:
        chosen: str = mode or self.settings["request.mode"]
        if chosen not in MODES:
            raise BadRequestError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
        return chosen

    def compile_many(self, jobs: Iterable[Pending], *, progress: bool | None = None) -> Batch:
        """Compile jobs made by :meth:`job`; iterate over it for (position, result) as they finish. Failures
        are results here: look at ``result.ok``.

        ``jobs`` may be a generator, of which no more than some hundred are held at a time, or a list that
        grows meanwhile. ``progress``: show on standard error how far it has come (default: with several
        jobs, if that is a terminal). Give up by leaving the loop, or with
        :meth:`~ptocache.batch.Batch.cancel` from any thread: what has not begun ends, and so does what
        nobody else waits for.
        """
        from .batch import Batch, Ways
        from .progress import bar

        ways = Ways(
            take=lambda: self._take(start=True),
            give=self._give,
            forget=self.close,
            asked=self._asked,
            answered=self._answered,
            alone=self._alone,
            step_aside=self._step_aside,
            required=self.settings["client.require"],
        )
        return Batch(jobs, ways, lambda total: bar(total, progress))

    def load(
        self,
        toolchain: str,
        inputs: Mapping[str, Source],
        *,
        loader: Callable[[Any], T],
        output: str = "",
        device: Hashable = 0,
        by: str = "path",
        **request: Any,
    ) -> T:
        """What ``loader`` returns for an output of a compile, or of what was compiled before: loaded once
        per process, loader and device.

        ``output``: which one; may be left out if there is only one. ``by``: what the loader is given, see
        :func:`ptocache.launch.load`. ``request``: the other parameters of :meth:`compile`. An output that
        the loader refuses is reported, dropped, compiled again and loaded, once.

        Raises what :meth:`compile` raises, and :class:`~ptocache.errors.LoadError` as
        :func:`ptocache.launch.load_or_remake` does.
        """
        from .launch import load_or_remake

        return load_or_remake(
            self, lambda: self.compile(toolchain, inputs, **request), loader, output=output,
            device=device, by=by,
        )  # fmt: skip

    # --- kernels that the caller builds

    def kernel(
        self,
        toolchain: str,
        material: Material,
        *,
        arch: str = "",
        env: Mapping[str, str] | None = None,
        kernel: str = "",
        mode: str = "",
        salt: str = "",
    ) -> Result | Lease:
        """The finished kernel that ``material`` makes, or the lease to build it; waits while another
        process builds it.

        ``material``: name → text or bytes, everything that makes the kernel: source, parameters, the
        framework's own version. The daemon adds the toolchain's identity and its declared variables
        (taken from ``env``, default: this process's environment). The other parameters are those of
        :meth:`compile`.

        Raises :class:`~ptocache.errors.BadRequestError` for material that is neither text nor bytes,
        and :class:`~ptocache.errors.DaemonUnavailableError` only if the settings require a daemon.
        """
        started = time.perf_counter()
        digests, texts = material_of(material)
        job = Job(
            toolchain=toolchain, arch=arch, options=(), env=(), inputs=digests, outputs=(),
            kernel=kernel,
        )  # fmt: skip
        request = wire.KernelRequest(
            job, texts, self._chosen(mode), salt or self.settings["request.salt"]
        )
        variables = process_environment() if env is None else env
        try:
            found = self._ask_kernel(request, variables)
        except _Held as held:
            lease = held.lease.renewed(started)
            _remember(held.asked, lease)
            return lease
        except (WireError, OSError) as error:
            self._step_aside(error)
            return self._lease(toolchain, None, {"why": str(error)}, started)
        if not isinstance(found, Answer):
            connection, granted, asked = found
            lease = self._lease(toolchain, connection, granted, started)
            _remember(asked, lease)
            return lease
        if found.reason in DAEMON_TROUBLE:
            self._step_aside(DaemonUnavailableError(f"it answered: {found.detail}"))
            return self._lease(toolchain, None, {"why": found.detail}, started)
        return Result(found, toolchain, (time.perf_counter() - started) * 1000).check()

    def _ask_kernel(
        self, request: wire.KernelRequest, variables: Environment
    ) -> Answer | tuple[Connection, dict[str, Any], _Asked]:
        """The answer, or a lease with the connection that belongs to it and what was asked for.

        Raises :class:`_Held` for what this thread holds the lease of: it would wait for itself.
        """
        asked: _Asked = (0, "", b"")

        def message(connection: Connection) -> dict[str, Any]:
            if wire.KERNELS not in connection.capabilities:
                raise _older("leases for kernels")
            patterns = connection.variables.get(request.job.toolchain, [])
            job = request.job._replace(env=select(patterns, variables))
            found = wire.kernel_message(1, request._replace(job=job))
            nonlocal asked
            asked = (get_ident(), self.settings.socket, found["request"])
            if self._recorder is not None:
                self._recorder.kernel(request)
            held = _leases.get(asked)
            lease = held() if held is not None else None
            if lease is not None and lease.is_held:
                raise _Held(lease, asked)
            return found

        connection, found, fds = self._converse(message, start=True)
        if found["type"] == "lease" and isinstance(found.get("lease"), int):
            return connection, found, asked
        try:
            answer = wire.parse_answer(found, fds)
        except WireError:
            connection.close()
            raise
        self._give(connection)
        return answer

    def kernel_or_build(
        self,
        toolchain: str,
        material: Material,
        build: Callable[[], Files],
        *,
        arch: str = "",
        env: Mapping[str, str] | None = None,
        kernel: str = "",
        mode: str = "",
        salt: str = "",
    ) -> Result:
        """The finished kernel; ``build()``, which gives its files, is called if this process is the one
        to build it. The parameters are those of :meth:`kernel`, the errors those of :meth:`kernel`, of
        :meth:`ptocache.kernel.Lease.put` and of ``build``."""
        found = self.kernel(
            toolchain, material, arch=arch, env=env, kernel=kernel, mode=mode, salt=salt
        )
        if isinstance(found, Result):
            return found
        with found as lease:
            return lease.put(build())

    def _lease(
        self,
        toolchain: str,
        connection: Connection | None,
        message: Mapping[str, object],
        started: float,
    ) -> Lease:
        return Lease(toolchain, connection, message, started, self._give, self._step_aside)

    # --- asking

    def get(self, key: str, *, source_dir: str | os.PathLike[str] = "") -> Result | None:
        """The stored result of an action key, if there is one and its discovered inputs (those beside
        the source are looked for in ``source_dir``) are as they were. Compiles nothing, counts nothing.

        Raises :class:`~ptocache.errors.DaemonUnavailableError` if no daemon answers.
        """
        started = time.perf_counter()
        directory = os.path.realpath(source_dir) if os.fspath(source_dir) else ""
        found = self._base_dirs()
        asked = {"type": "get", "id": 1, "key": key, "source_dir": directory}
        message, fds = self._exchange(
            {**asked, "bases": list(found)} if found else asked, start=True
        )
        answer = wire.parse_answer(message, fds) if message["type"] == "answer" else None
        return Result(answer, "", (time.perf_counter() - started) * 1000) if answer else None

    def peek(self, job: Pending) -> dict[str, Any]:
        """How a job made by :meth:`job` would end now: ``outcome``, ``reason``, ``key``, ``detail``,
        ``compile_ms``, ``error``. What only a compile would show is a ``miss``. Compiles nothing, counts nothing.

        Raises the daemon's error, and :class:`~ptocache.errors.DaemonUnavailableError`.
        """

        def message(connection: Connection) -> dict[str, Any]:
            if wire.BASE_DIRS not in connection.capabilities:
                # Which came together.
                raise _older("peek")
            return {**job.message(1, connection, full=False), "type": "peek"}

        connection, found, _ = self._converse(message, start=True)
        self._give(connection)
        value = found.get("value")
        if found["type"] != "result" or not isinstance(value, dict):
            raise FrameError(f"an answer of type {found['type']!r} to peek")
        return value

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
        it goes the way of :meth:`compile_many`."""
        connection = self._idle_one()
        if connection is not None:
            answer = None
            if self._recorder is not None:
                self._asked(pending, connection)
            try:
                connection.send_frame(pending.frame(connection))
                while answer is None:
                    _, answer = _answer(connection, {0: pending})
            except (WireError, BadRequestError, OSError):
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                self._give(connection)
                if answer.reason not in DAEMON_TROUBLE:
                    return self._answered(pending, answer)
        _, result = next(self.compile_many([pending], progress=False))
        result.total_ms = (time.perf_counter() - pending.started) * 1000
        return result

    def _exchange(
        self, message: dict[str, Any], *, start: bool
    ) -> tuple[dict[str, Any], list[Descriptor]]:
        """One message, one answer."""
        connection, found, fds = self._converse(lambda _: message, start=start)
        self._give(connection)
        return found, fds

    def _converse(
        self, message: Callable[[Connection], dict[str, Any]], *, start: bool
    ) -> tuple[Connection, dict[str, Any], list[Descriptor]]:
        """One message, one answer, and the connection, which is the caller's now; asked again if it
        turns out to be a dead one."""
        while True:
            reused = bool(self._idle)
            connection = self._take(start)
            try:
                connection.send(message(connection))
                found, fds = connection.receive()
            except (DaemonUnavailableError, BrokenPipeError, ConnectionResetError) as error:
                connection.close()
                if not reused:
                    raise _unavailable(error) from error
                self.close()
            except WireError:
                # What else comes from there would be taken for the answer to the next request.
                connection.close()
                raise
            except PtocacheError:
                # The daemon's own no: the connection is as good as before.
                self._give(connection)
                raise
            except BaseException:
                connection.close()
                raise
            else:
                return connection, found, fds

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
        connection.was_idle = True
        if len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def _open(self, start: bool) -> Connection:
        try:
            place = self.settings.socket
        except BadRequestError as error:
            raise DaemonUnavailableError(error.message, hint=error.hint, **error.fields) from error
        try:
            return Connection(place)
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
        from .starter import log_of, start_daemon

        root = os.path.realpath(self.settings["store.root"])
        if time.monotonic() < self._given_up_s:
            raise DaemonUnavailableError("no daemon could be started a moment ago")
        store = paths.store_at(root)
        found = start_daemon(
            self.settings, store, lambda: Connection(self.settings.socket), START_S
        )
        if isinstance(found, str):
            # A process with a thousand kernels must not try a thousand times.
            self._given_up_s = time.monotonic() + START_S
            raise DaemonUnavailableError(
                f"no daemon could be started: {found}",
                hint=f"its log is {log_of(self.settings, store)}",
                path=log_of(self.settings, store),
            )
        return found

    def _step_aside(self, error: Exception) -> None:
        """Go on without a daemon, and say so once; raises if the settings require one."""
        if self.settings["client.require"]:
            raise _unavailable(error) from error
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        self._say("no daemon", f"ptocache compiles without its daemon: {error}")

    def _say(self, cause: str, text: str) -> None:
        if cause not in self._said:
            self._said.add(cause)
            import warnings

            # The line to name is the caller's, however deep in here the trouble was met.
            level, frame = 1, sys._getframe(0)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
                level, frame = level + 1, frame.f_back
            warnings.warn(text, PtocacheWarning, stacklevel=level)

    def _asked(self, pending: Pending, connection: Connection) -> None:
        if self._recorder is not None:
            wanted = connection.variables.get(pending.request.job.toolchain, [])
            self._recorder.compile(pending, wanted)

    def _answered(self, pending: Pending, answer: Answer) -> Result:
        if self._recorder is not None and answer.outcome is Outcome.FAILURE:
            self._recorder.failed(pending, answer.reason)
        if answer.reason is Reason.UNIDENTIFIED_TOOLCHAIN:
            # A cache that is off without a sign costs more than one that is missing.
            name, why = pending.request.job.toolchain, answer.detail
            self._say(why, f"ptocache stores nothing that is compiled with {name}: {why}")
        return _result(pending, answer)

    def _alone(self, pending: Pending, cancel: Any = None) -> Result:
        """Compile in this process through the same plugin, without a cache."""
        from .fallback import compile_alone

        if self._recorder is not None:
            self._recorder.compile(pending, None)
        env = with_python(tuple(sorted(pending.env.items())), (PYTHON_VARIABLE,))
        request = pending.request._replace(job=pending.request.job._replace(env=env))
        return _result(pending, compile_alone(request, pending.data, self.settings, cancel))


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


def _answer(connection: Connection, waiting: Mapping[int, Pending]) -> tuple[int, Answer | None]:
    """The next answer; ``None`` if it was a request for input bytes, which is then fulfilled."""
    number, message, fds = connection.receive_for(waiting)
    if message["type"] == "need":
        if waiting[number].given_to is connection:
            raise FrameError("a second question for the bytes of the same inputs")
        waiting[number].given_to = connection
        connection.send(waiting[number].message(number, connection, full=True))
        return number, None
    return number, waiting[number].answer(message, fds)


def _as_said(
    inputs: Mapping[str, Source], options: Sequence[str], *words: object
) -> tuple[object, ...]:
    """A request in the caller's words; empty if it cannot be known by them."""
    if isinstance(options, (str, bytes)):
        return ()
    for text in inputs.values():
        # A file may have changed since.
        if type(text) is not bytes and type(text) is not str:
            return ()
    return (*words, _cwd(), tuple(options), *inputs.items())


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


def _files_of(inputs: Mapping[str, Source]) -> dict[str, str]:
    """The inputs that are read from files, and from which."""
    return {
        name: os.path.abspath(os.fsdecode(source))
        for name, source in inputs.items()
        if not isinstance(source, (bytes, str))
    }


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _result(pending: Pending, answer: Answer) -> Result:
    total_ms = (time.perf_counter() - pending.started) * 1000
    return Result(answer, pending.request.job.toolchain, total_ms)


def _older(what: str) -> DaemonUnavailableError:
    return DaemonUnavailableError(
        f"the daemon is older than {what}",
        hint="stop it (ptocache stop): the next request starts one of this version",
    )


def _unavailable(error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return PeerRefusedError(str(error))
    return DaemonUnavailableError(str(error))
