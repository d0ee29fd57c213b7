"""Runs a plugin's steps: environment, directory, limits, output, clean-up. Blocking; for a thread.

What is not in the key cannot reach the compiler: each step runs in an environment made here from
constants and the declared variables, in a private directory that holds the inputs and nothing else,
in a process group of its own that ends with the step. Used by the daemon and by the client's fallback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from .errors import (
    BadRequestError,
    CancelledError,
    CompileFailedError,
    OutputRejectedError,
    StepKilledError,
    StepSystemError,
    StepTimeoutError,
)
from .guard import end_tools
from .model import Log, Output
from .toolchain import COMPILE_PATH, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .model import Step

_CONSTANTS = {
    "PATH": COMPILE_PATH,
    "LANG": "C",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "TZ": "UTC0",
}
_ADDR_NO_RANDOMIZE = 0x0040000
_PERSONALITY_QUERY = 0xFFFFFFFF
_GRACE_S = 2.0
_POLL_S = 0.05
_DEPTH = 6
"""How many ``..`` an include may begin with and still stay in the private directory."""
_READ_BYTES = 1 << 16
_PROBE_TIMEOUT_S = 60.0
_PROBE_BYTES = 64 << 20
_ROOM_BYTES = 1 << 20
_REFUSALS = (
    *map(
        os.strerror,
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE),
    ),
    "File size limit exceeded",
)
_left: set[str] = set()
"""Private directories that could not be removed yet."""
_CUT_NOTE = b"\n[ptocache: cut, %d more bytes]\n"


class Limits(NamedTuple):
    """What a compile may take."""

    step_timeout_s: float = 900.0
    log_bytes: int = 1 << 20
    """Kept of each stream over all steps."""


class Ran(NamedTuple):
    """A finished compile."""

    outputs: tuple[Output, ...]
    log: Log
    depfiles: dict[str, str]
    """Step name → text of its dependency file."""
    missing_depfiles: bool
    aslr_off: bool
    compile_ms: int


class ToolFailedError(CompileFailedError):
    """A step exited non-zero: with what it printed, and what is known of what it had read."""

    def __init__(
        self, message: str, *, log: Log, exit_code: int, depfiles: dict[str, str], complete: bool,
        step: str,
    ) -> None:  # fmt: skip
        super().__init__(message, step=step, exit_code=exit_code)
        self.log = log
        self.exit_code = exit_code
        self.depfiles = depfiles
        self.complete = complete
        """True if the dependency files say everything that the failed compile depended on."""


class NoRoomError(StepSystemError):
    """The place of the private directory refused something: no space, a quota, a read-only file system."""


def _no_room(parent: str, error: OSError) -> NoRoomError:
    return NoRoomError(
        f"no private directory can be made in {parent}: {error.strerror}",
        hint="make room, or check the permissions of that directory",
        path=parent,
    )


class Cancel:
    """Lets another thread end a running compile. Thread-safe."""

    def __init__(self) -> None:
        # Re-entered by a signal's handler that cancels what its own thread runs.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self.requested = False

    def cancel(self) -> None:
        """End the running step now and start no other."""
        with self._lock:
            self.requested = True
            if self._process is not None:
                end_group(self._process.pid)

    @contextlib.contextmanager
    def watching(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """The step's process, while it runs."""
        with self._lock:
            self._process = process
            if self.requested:
                end_group(process.pid)
        try:
            yield
        finally:
            with self._lock:
                self._process = None


class Workspace:
    """A private directory below ``parent``: ``work`` is the steps' cwd, ``tmp`` their TMPDIR."""

    def __init__(self, parent: str) -> None:
        """Raises :class:`~ptocache.errors.StepSystemError` if it cannot be made."""
        try:
            # Canonical, because a tool that asks for its directory gets it so, and it must be mapped away.
            self.root = tempfile.mkdtemp(prefix="job-", dir=os.path.realpath(parent))
            self.work = os.path.join(self.root, *("d" * _DEPTH))
            self.tmp = os.path.join(self.root, "t")
            os.makedirs(self.work, 0o700)
            os.mkdir(self.tmp, 0o700)
        except OSError as error:
            raise _no_room(parent, error) from error

    def materialise(self, name: str, data: bytes, mtime_s: int) -> str:
        """Write an input under its name; its times are a constant, so that they cannot count.

        Raises :class:`~ptocache.errors.StepSystemError`.
        """
        path = os.path.join(self.work, name)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
            os.utime(path, (mtime_s, mtime_s))
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise BadRequestError(f"two inputs cannot both lie at {name}") from error
        except OverflowError as error:
            raise BadRequestError(f"no file can have the time {mtime_s} (seconds)") from error
        except OSError as error:
            raise NoRoomError(
                f"the input {name} cannot be written: {error.strerror}", path=path
            ) from error
        return path

    def link(self, name: str, target: str) -> None:
        """Let ``target`` be found under ``name``, which may lead out of the working directory by ``..``
        but not out of this private one: a name that would is left out, as is one that is taken.

        Raises :class:`~ptocache.errors.StepSystemError`.
        """
        path = os.path.normpath(os.path.join(self.work, name))
        if not path.startswith(self.root + os.sep):
            return
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.symlink(target, path)
        except (FileExistsError, NotADirectoryError):
            return
        except OSError as error:
            raise NoRoomError(f"{name} cannot be linked: {error.strerror}", path=path) from error

    def refused(self, said: bytes = b"") -> str:
        """What kept a tool from writing here, if it was that; else empty. ``said``: its messages."""
        found = [text for text in _REFUSALS if text.encode() in said]
        if found:
            return found[0]
        try:
            # Space of a quota shows only to who tries.
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(bytes(_ROOM_BYTES))
                file.flush()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def remove(self) -> None:
        """Remove it with all that the tools left."""
        remove_directory(self.root)
        if os.path.exists(self.root):
            _left.add(self.root)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def remove_directory(path: str) -> None:
    """Remove a folder with all that it holds, as far as it can be removed."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.exists(path):
        _make_removable(path)
        shutil.rmtree(path, ignore_errors=True)


def tidy() -> None:
    """Try once more to remove private directories that could not be removed (a network file system may
    be busy with them for a while)."""
    for path in tuple(_left):
        remove_directory(path)
        if not os.path.exists(path):
            _left.discard(path)


def environment(
    declared: Mapping[str, str], tmp: str, more: Mapping[str, str] = {}
) -> dict[str, str]:
    """Everything that a tool sees of an environment; ``more`` wins over the constants."""
    return {**declared, **_CONSTANTS, **more, "TMPDIR": tmp}


def run(
    steps: tuple[Step, ...],
    wanted: Mapping[str, str],
    workspace: Workspace,
    env: Mapping[str, str],
    limits: Limits,
    cancel: Cancel | None = None,
) -> Ran:
    """Run the steps in order and read the wanted outputs (name → file).

    Raises :class:`ToolFailedError`, :class:`~ptocache.errors.StepTimeoutError`,
    :class:`~ptocache.errors.StepKilledError`, :class:`~ptocache.errors.StepSystemError`,
    :class:`~ptocache.errors.CancelledError`, and
    :class:`~ptocache.errors.OutputRejectedError` for a file that a step did not make.
    """
    cancel = cancel or Cancel()
    started = time.monotonic()
    stdout, stderr = _Kept(limits.log_bytes), _Kept(limits.log_bytes)
    depfiles: dict[str, str] = {}
    complete = True
    aslr_off = True
    for step in steps:
        if cancel.requested:
            raise CancelledError(f"cancelled before the step {step.name}")
        code, quiet = _run_step(step, workspace, env, limits, cancel, stdout, stderr)
        aslr_off = aslr_off and quiet
        if step.depfile:
            text = _read_text(os.path.join(workspace.work, step.depfile))
            complete = complete and text is not None
            depfiles[step.name] = text or ""
        if code != 0:
            log = Log(stdout.bytes(), stderr.bytes())
            raise ToolFailedError(
                f"the step {step.name} failed with exit code {code}",
                log=log, exit_code=code, depfiles=depfiles, complete=complete, step=step.name,
            )  # fmt: skip
        for name in step.creates:
            if not os.path.isfile(os.path.join(workspace.work, name)):
                raise OutputRejectedError(
                    f"the step {step.name} exited with 0 and did not write {name}", step=step.name
                )
    return Ran(
        outputs=tuple(_read_output(workspace, name, file) for name, file in wanted.items()),
        log=Log(stdout.bytes(), stderr.bytes()),
        depfiles=depfiles,
        missing_depfiles=not complete,
        aslr_off=aslr_off,
        compile_ms=int((time.monotonic() - started) * 1000),
    )


def probe(
    argv: tuple[str, ...],
    env: Mapping[str, str] = {},
    *,
    scratch: str | None = None,
    spare: Callable[[Exception], str] | None = None,
) -> ProbeResult:
    """Ask a tool (see :class:`ptocache.toolchain.Probe`). ``scratch``: where its directory goes; below
    a store's ``tmp`` the daemon's guard finds it (:mod:`ptocache.guard`). ``spare``: gives another place
    if that refuses."""
    with _probe_directory(scratch, spare) as directory:
        process = subprocess.Popen(
            argv,
            env=environment(env, directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        stdout, stderr = _Kept(_PROBE_BYTES), _Kept(_PROBE_BYTES)
        try:
            in_time = _collect(process, time.monotonic() + _PROBE_TIMEOUT_S, stdout, stderr)
        finally:
            # What it left running in its group ends with it; what left the group may hold its streams.
            end_group(process.pid)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
    if not in_time:
        raise TimeoutError(f"{argv[0]} did not answer in {_PROBE_TIMEOUT_S:.0f} s")
    return ProbeResult(
        process.returncode,
        stdout.bytes().decode("utf-8", "replace"),
        stderr.bytes().decode("utf-8", "replace"),
    )


@contextlib.contextmanager
def _probe_directory(
    scratch: str | None, spare: Callable[[Exception], str] | None
) -> Iterator[str]:
    try:
        directory = tempfile.mkdtemp(prefix="probe-", dir=scratch)
    except OSError as error:
        if spare is None:
            raise _no_room(scratch or "a temporary folder", error) from error
        directory = tempfile.mkdtemp(prefix="probe-", dir=spare(error))
    try:
        yield directory
    finally:
        remove_directory(directory)
        if os.path.exists(directory):
            _left.add(directory)


def end_group(group: int) -> None:
    """End a process group at once; fine if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class _Kept:
    """The head of a stream, and how much more there was."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        room = max(0, self._limit - len(self._data))
        self._data += data[:room]
        self._dropped += max(0, len(data) - room)

    def bytes(self) -> bytes:
        note = _CUT_NOTE % self._dropped if self._dropped else b""
        return bytes(self._data) + note


def _run_step(
    step: Step,
    workspace: Workspace,
    env: Mapping[str, str],
    limits: Limits,
    cancel: Cancel,
    stdout: _Kept,
    stderr: _Kept,
) -> tuple[int, bool]:
    """Run one step; returns (exit code, whether address randomisation was off)."""
    with _without_aslr() as quiet:
        try:
            process = subprocess.Popen(
                step.argv,
                executable=step.argv[0],
                cwd=step.cwd or workspace.work,
                env=environment(env, workspace.tmp, dict(step.env)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=0o022,
            )
        except OSError as error:
            raise StepSystemError(
                f"{step.argv[0]} cannot be started: {error.strerror}", path=step.argv[0]
            ) from error
    deadline = time.monotonic() + limits.step_timeout_s
    try:
        with cancel.watching(process):
            in_time = _collect(process, deadline, stdout, stderr)
            # Whatever the tool left running in its group ends with it.
            end_group(process.pid)
            code = process.wait()
    except BaseException:
        end_group(process.pid)
        process.wait()
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    if cancel.requested or not in_time:
        # What left its group (a session of its own) still bears the mark of this private directory.
        end_tools(workspace.root)
    if cancel.requested:
        raise CancelledError(f"the step {step.name} was cancelled")
    if not in_time:
        raise StepTimeoutError(
            f"the step {step.name} ran longer than {limits.step_timeout_s:g} s and was ended",
            hint="raise compile.step_timeout (PTOCACHE_STEP_TIMEOUT) if that is its normal time",
            step=step.name,
        )
    if code < 0:
        raise StepKilledError(
            f"the step {step.name} was ended by signal {-code} ({_signal_name(-code)})",
            hint="the machine may be short of memory",
            step=step.name,
            signal=-code,
        )
    return code, quiet


def _collect(
    process: subprocess.Popen[bytes], deadline: float, stdout: _Kept, stderr: _Kept
) -> bool:
    """Read both streams until the process has ended; False if the deadline came first.

    The end of the process counts, not the end of its streams: a child that it left behind may hold
    them open for ever.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, stdout), (process.stderr, stderr)):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream.fileno(), selectors.EVENT_READ, kept)
        ended_fd = _pidfd(process.pid)
        if ended_fd >= 0:
            selector.register(ended_fd, selectors.EVENT_READ, None)
        try:
            ended = False
            while not ended:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                wait = remaining if ended_fd >= 0 else min(remaining, _POLL_S)
                for ready, _ in selector.select(wait):
                    if ready.fd == ended_fd:
                        # Not waited for yet: until its group is ended, its number stays taken.
                        ended = True
                    elif not _drain(ready.fd, ready.data, once=True):
                        selector.unregister(ready.fd)
                ended = ended or (ended_fd < 0 and process.poll() is not None)
            for stream, kept in ((process.stdout, stdout), (process.stderr, stderr)):
                _drain(stream.fileno(), kept, once=False)
            return True
        finally:
            if ended_fd >= 0:
                os.close(ended_fd)


def _drain(fd: int, kept: _Kept, *, once: bool) -> bool:
    """Read what is there; False at the end of the stream."""
    while True:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        kept.feed(data)
        if once:
            return True


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def can_fix_addresses() -> bool:
    """True if this system lets steps run without address-space randomisation."""
    with _without_aslr() as fixed:
        return fixed


@contextlib.contextmanager
def _without_aslr() -> Iterator[bool]:
    """What this thread starts meanwhile runs without address-space randomisation, if it may.

    The personality belongs to the thread and is inherited by its children: nothing needs to run
    between fork and exec.
    """
    personality = _personality()
    before = personality(_PERSONALITY_QUERY)
    changed = before != -1 and personality(before | _ADDR_NO_RANDOMIZE) != -1
    try:
        yield changed
    finally:
        if changed:
            personality(before)


def _personality() -> Callable[[int], int]:
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).personality
    except (OSError, AttributeError):
        return lambda _: -1
    function.argtypes = [ctypes.c_ulong]
    function.restype = ctypes.c_int
    found: Callable[[int], int] = function
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return None


def _read_output(workspace: Workspace, name: str, file: str) -> Output:
    path = os.path.join(workspace.work, file)
    try:
        with open(path, "rb") as opened:
            data = opened.read()
            mode = os.fstat(opened.fileno()).st_mode & 0o777
    except OSError as error:
        raise OutputRejectedError(
            f"the output {name} ({file}) cannot be read: {error.strerror}"
        ) from error
    return Output(name, data, mode)


def _make_removable(root: str) -> None:
    """A tool may leave folders without permissions behind."""
    with contextlib.suppress(OSError):
        os.chmod(root, 0o700)
    for directory, names, _ in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            # What a link leads to is not ours.
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
