"""One compiler command through the cache, with the same bytes, text and exit code as without it.

    ptocache wrap -- COMMAND …      runs a command
    DIR/gcc …                       does the same, where DIR was made by ``ptocache shims DIR``

A command that is understood (:mod:`ptocache.integrations.commandline`) is compiled, or was compiled before,
by the daemon, which runs it as it was written. Everything else, and every command that the daemon cannot
answer for whatever reason, becomes the tool itself: this process is replaced by it, and nothing is printed
that the tool would not print.

It starts once for each source of a build: what a hit does not need is imported when it is used.
"""

from __future__ import annotations

import os

from . import commandline
from .commandline import Command, NotUnderstood

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn

SHIM_MARK = b"ptocache-shim"
"""In the first bytes of each launcher; as in ``ptocache_cfamily.programs``."""
WRAPPED_VARIABLE = "PTOCACHE_WRAPPED"
"""The tools that commands were handed over to, on the way to this process: a launcher that meets one of them
again goes on to the next."""
RECORD_VARIABLE = "PTOCACHE_RECORD"
"""As of the setting ``client.record``."""
EXPLAIN_VARIABLE = "PTOCACHE_WRAP_EXPLAIN"
"""If it is set, one line on standard error says how each command was answered."""

_HEAD_BYTES = 1024
_NOT_FOUND = 127
_NOT_STARTED = 126
_FAILED = 1
_OTHER_CACHES = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})
_MESSAGES = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")
# With these a driver runs other programs or writes other files than its words say.
_CHANGING = (
    "COMPILER_PATH", "GCC_EXEC_PREFIX", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "OBJC_INCLUDE_PATH",
    "CCC_OVERRIDE_OPTIONS", "GCC_COMPARE_DEBUG", "CC_LOG_DIAGNOSTICS", "CC_PRINT_OPTIONS", "CC_PRINT_HEADERS",
    "CLANG_CONFIG_FILE_SYSTEM_DIR", "CLANG_CONFIG_FILE_USER_DIR", "CC_PRINT_INTERNAL_STAT",
)  # fmt: skip
# How a loader or an interpreter says that a program did not even begin.
_NOT_BEGUN = (
    b"error while loading shared libraries",
    b"cannot execute",
    b"cannot open shared object",
)
_PRIVATE = (b"/d/d/d/d/d/d", b"/job-")


class Answer:
    """How the daemon answered."""

    __slots__ = ("code", "outcome", "outputs", "reason", "stderr", "stdout")

    def __init__(
        self,
        outcome: str,
        reason: str,
        code: int,
        stdout: bytes,
        stderr: bytes,
        outputs: Mapping[str, tuple[int, bytes | memoryview]],
    ) -> None:
        self.outcome = outcome
        self.reason = reason
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.outputs = outputs
        """Name → permission bits and bytes."""


class Asked:
    """A command as a request."""

    __slots__ = (
        "called",
        "cwd",
        "env",
        "kernel",
        "name",
        "options",
        "outputs",
        "source_dir",
        "text",
        "toolchain",
    )

    def __init__(
        self, command: Command, called: str, tool: str, path: str, env: Mapping[str, str]
    ) -> None:
        """``called``: the tool as the caller names it. Raises :class:`OSError` if the source or the directory cannot be read, and
        :class:`NotUnderstood`."""
        source = command.source
        self.called = called
        self.cwd = _directory(env)
        full = os.path.join(self.cwd, source)
        with open(full, "rb") as file:
            self.text = file.read()
        self.source_dir = os.path.realpath(os.path.dirname(full))
        self.toolchain = command.toolchain
        # Objects of the host name their source; of a device's kernel only what it holds is of interest.
        neutral = ""
        if self.toolchain != "host" and not command.shows_places:
            neutral = commandline.neutral_name(full, _temporary())
        self.name = neutral or os.path.basename(source)
        self.kernel = os.path.splitext(self.name)[0]
        spelled = "" if neutral else source
        suffix = os.path.splitext(command.output)[1]
        fields = [
            f"tool={tool}",
            f"language={command.language}",
            f"source={spelled}",
            f"suffix={suffix}",
        ]
        if command.target:
            fields.append(f"target={command.target}")
        if not command.lists_all:
            fields.append("lists=no")
        fields += _messages(env)
        colour = _colour(command, env)
        self.options = (*fields, "--", *colour, *command.words)
        self.outputs = ("command", "depfile") if command.depfile else ("command",)
        self.env = {**env, **tool_variables(command.toolchain, command.language, tool, path)}


def tool_variables(toolchain: str, language: str, tool: str, path: str) -> dict[str, str]:
    """The variables with which a plugin finds the tool of a command: the one that the caller would run.
    ``path``: the caller's ``PATH`` without the launchers before it."""
    found = {"PATH": path}
    if toolchain == "host":
        quoted = "'" + tool.replace("'", "'\"'\"'") + "'"
        found["CC" if language == "c" else "CXX"] = quoted
    return found


def shim(argv: list[str]) -> NoReturn:
    """What a launcher does: ``argv[0]`` is the name under which it was called. It never returns."""
    # Without the clean-up of an interpreter, which nobody needs here.
    os._exit(_guarded(os.path.basename(argv[0]), argv[1:]))


def wrap(words: list[str]) -> int:
    """What ``ptocache wrap`` does with the words behind it. Returns an exit code, or does not return."""
    if words[:1] == ["--"]:
        words = words[1:]
    if not words or words[0] in ("-h", "--help"):
        _say("usage: ptocache wrap -- COMPILER OPTION …")
        return 0 if words else 2
    return _guarded(words[0], words[1:])


def _guarded(tool: str, words: list[str]) -> int:
    try:
        return _run(tool, words)
    except KeyboardInterrupt:
        import signal

        # As the tool would end: whoever waits for it must see the signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130


def _run(tool: str, words: list[str]) -> int:
    env = os.environ
    met = [item for item in env.get(WRAPPED_VARIABLE, "").split(os.pathsep) if item]
    name = os.path.basename(tool)
    found = find(tool, env.get("PATH", os.defpath), met)
    if found is None:
        _say(f"ptocache: {name}: command not found (besides ptocache's own launchers)")
        return _NOT_FOUND
    real, path = found
    if not commandline.tool_kind(name):
        # No compiler: what it starts may be one, and has a right to the cache.
        _report(commandline.NOT_A_COMPILE, f"{name} is no compiler that is known", name)
        _become(real, words, env)
    inner = {**env, WRAPPED_VARIABLE: os.pathsep.join([*met, real])}
    if met:
        _become(real, words, inner)
    try:
        changing = next((item for item in _CHANGING if env.get(item)), "")
        if changing:
            raise NotUnderstood(commandline.UNSUPPORTED_OPTION, f"{changing} is set")
        command = commandline.understand(name, words)
        _check_outputs(command)
        asked = Asked(command, tool, real, path, env)
    except NotUnderstood as why:
        _report(why.reason, why.detail, name)
        _become(real, words, inner)
    except OSError as error:
        _report(commandline.COMMAND_FORM, str(error), name)
        _become(real, words, inner)
    answer = _ask(asked)
    if isinstance(answer, int):
        return answer
    if answer is None or not _is_whole(answer, command):
        _become(real, words, inner)
    _explain(name, answer.outcome, answer.reason, asked.kernel)
    try:
        return _deliver(answer, command, asked.cwd)
    except OSError:
        # The tool says it in its own words.
        _become(real, words, inner)


def find(tool: str, path: str, met: Iterable[str] = ()) -> tuple[str, str] | None:
    """The real tool and the ``PATH`` without the launchers before it: the first program of that name that is
    no launcher of ours, no link to another cache, and none of ``met``. ``None`` if there is none.

    A tool with a slash in its name is itself, unless it is a launcher.
    """
    seen = set(met)
    if "/" in tool:
        place = os.path.abspath(tool)
        if not _is_program(place) or not _leads_back(place, seen):
            return place, path
    name = os.path.basename(tool)
    folders = path.split(os.pathsep)
    kept = []
    for number, folder in enumerate(folders):
        place = os.path.abspath(os.path.join(folder or ".", name))
        if not _is_program(place):
            kept.append(folder)
        elif not _leads_back(place, seen):
            return place, os.pathsep.join([*kept, *folders[number:]])
    return None


def _leads_back(place: str, met: set[str]) -> bool:
    if place in met or os.path.basename(os.path.realpath(place)) in _OTHER_CACHES:
        return True
    return is_shim(place)


def is_shim(place: str) -> bool:
    """True for a launcher of ours, by what it holds."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return SHIM_MARK in os.read(fd, _HEAD_BYTES)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_program(place: str) -> bool:
    return os.access(place, os.X_OK) and os.path.isfile(place)


def _become(real: str, words: list[str], env: Mapping[str, str]) -> NoReturn:
    """Go on as the tool itself."""
    try:
        os.execve(real, [real, *words], env)
    except OSError as error:
        _say(f"ptocache: {real}: {error.strerror}")
        raise SystemExit(_NOT_STARTED) from error


# --- the request


def _directory(env: Mapping[str, str]) -> str:
    """The working directory as compilers name it: ``$PWD`` where that is true."""
    named = env.get("PWD", "")
    if named.startswith("/"):
        try:
            here, there = os.stat("."), os.stat(named)
        except OSError:
            return os.getcwd()
        if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return named
    return os.getcwd()


def _temporary() -> list[str]:
    places = ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp"))
    return [os.path.realpath(place) for place in places]


def _messages(env: Mapping[str, str]) -> list[str]:
    """The variables that decide the language of messages and how quotation marks are written."""
    given = [(name, env.get(name, "")) for name in _MESSAGES]
    if all(value in ("", "C", "POSIX") for _, value in given):
        return []
    return [f"env:{name}={value}" for name, value in given if value]


def _colour(command: Command, env: Mapping[str, str]) -> list[str]:
    """What makes the compiler write as it would to the terminal that its words go to."""
    told = any(word.startswith(("-fdiagnostics-color", "-fno-diagnostics-color", "-fcolor-diagnostics"))
               for word in command.words)  # fmt: skip
    if command.toolchain != "host" or told or env.get("TERM", "dumb") == "dumb" or not os.isatty(2):
        return []
    return ["-fdiagnostics-color=always"]


def _check_outputs(command: Command) -> None:
    """Refuse a place that is no ordinary file, or two outputs in one place.

    Raises :class:`NotUnderstood`.
    """
    for place in filter(None, (command.output, command.depfile)):
        if place.endswith("/") or (os.path.lexists(place) and not os.path.isfile(place)):
            raise NotUnderstood(commandline.COMMAND_FORM, f"{place} is no ordinary file")
    if os.path.abspath(command.output) in map(
        os.path.abspath, (command.source, command.depfile or "/")
    ):
        raise NotUnderstood(commandline.COMMAND_FORM, f"{command.output} is named twice")


def _ask(asked: Asked) -> Answer | int | None:
    """The daemon's answer; ``None`` if there is none, and an exit code if there must be one."""
    try:
        return _answered(asked)
    except Exception as error:
        # Whatever it is, a fault of ours included: it is no reason for a build to fail.
        if _is_required():
            _say(f"ptocache: {error}")
            return _FAILED
        _explain(asked.kernel, "not asked", "", str(error))
        return None


def _is_required() -> bool:
    """True if the settings make it an error that no daemon answers."""
    from ..config import load
    from ..errors import PtocacheError

    try:
        return bool(load()["client.require"])
    except PtocacheError:
        return False


def _answered(asked: Asked) -> Answer:
    from . import quick

    env = os.environ
    place = quick.place(env)
    if place:
        try:
            talk = quick.Talk(place)
        except (FileNotFoundError, ConnectionRefusedError):
            # The real client starts one.
            return _answered_by_client(asked)
        try:
            recorded = _recorded(
                env.get(RECORD_VARIABLE, ""), asked, talk.chosen(asked.toolchain, asked.env)
            )
            found = talk.compile(
                asked.toolchain, asked.name, asked.text, options=asked.options, env=asked.env,
                outputs=asked.outputs, source_dir=asked.source_dir, cwd=asked.cwd,
                kernel=asked.kernel, salt=env.get("PTOCACHE_SALT", ""),
            )  # fmt: skip
        finally:
            talk.close()
        if found.outcome == "failure":
            recorded(found.reason)
        return Answer(
            found.outcome, found.reason, found.code, found.stdout, found.stderr, found.outputs
        )
    return _answered_by_client(asked)


def _answered_by_client(asked: Asked) -> Answer:
    from ..client import Client
    from ..config import load

    # What is recorded is the command, and not only what it came down to.
    settings = load(None, {"client.require": True, "client.record": ""})
    recorded = _recorded(load()["client.record"], asked, None)
    with Client(settings) as client:
        pending = client.job(
            asked.toolchain, {asked.name: asked.text}, options=asked.options, env=asked.env,
            outputs=asked.outputs, source_dir=asked.source_dir, kernel=asked.kernel,
            priority="interactive",
        )  # fmt: skip
        request = pending.request
        pending.request = request._replace(job=request.job._replace(cwd=asked.cwd))
        _, result = next(client.compile_many([pending], progress=False))
        if not result.ok:
            recorded(result.reason.label)
        outputs = {name: (item.mode, item.buffer) for name, item in result.outputs.items()}
        return Answer(
            result.outcome.label, result.reason.label, result.exit_code, result.log.stdout,
            result.log.stderr, outputs,
        )  # fmt: skip


def _recorded(place: str, asked: Asked, env: Mapping[str, str] | None) -> Callable[[str], None]:
    """Record the request, if this run is recorded; what to do when it fails, for a reason."""
    if not place:
        return lambda reason: None
    from ..hashing import sha256_hex
    from ..recording import FAILED_REASONS, Recorder, wanted

    recorder = Recorder(place, lambda cause, text: _explain(asked.called, cause, "", text))
    sha256 = sha256_hex(asked.text)
    if env is None:
        patterns = wanted(asked.toolchain)
        from ..model import select

        env = dict(select(patterns, dict(asked.env)))
    document = {
        "toolchain": asked.toolchain, "arch": "", "options": list(asked.options), "env": env,
        "inputs": [[asked.name, sha256, len(asked.text)]], "outputs": list(asked.outputs),
        "symbols": [], "source_dir": asked.source_dir, "cwd": asked.cwd, "kernel": asked.kernel,
        "salt": os.environ.get("PTOCACHE_SALT", ""),
    }  # fmt: skip
    name = recorder.request(document, {sha256: asked.text}, called=asked.called)

    def failed(reason: str) -> None:
        if reason in FAILED_REASONS:
            recorder.failure(name)

    return failed


# --- the answer


def _is_whole(answer: Answer, command: Command) -> bool:
    """True if the answer is all that the tool would have given: then it need not run itself."""
    said = answer.stdout + answer.stderr
    if b"[ptocache: cut, " in said or answer.reason == "path_leak":
        return False
    if answer.outcome != "failure":
        return "command" in answer.outputs and ("depfile" in answer.outputs or not command.depfile)
    if answer.reason not in ("compile_failed", "remembered_failure") or answer.code <= 0:
        return False
    # A compiler that fails writes its dependency file all the same, and may remove an older output.
    return not (
        command.depfile
        or os.path.lexists(command.output)
        or any(word in said for word in (*_PRIVATE, *_NOT_BEGUN))
        or answer.code in (_NOT_STARTED, _NOT_FOUND)
    )


def _deliver(answer: Answer, command: Command, cwd: str) -> int:
    """Write what the tool would have written. Raises :class:`OSError` before anything is printed."""
    output = os.path.join(cwd, command.output)
    if answer.outcome != "failure":
        umask = os.umask(0o077)
        os.umask(umask)
        if command.depfile:
            _write(os.path.join(cwd, command.depfile), *answer.outputs["depfile"], umask)
        _write(output, *answer.outputs["command"], umask)
    _print(1, answer.stdout)
    _print(2, answer.stderr)
    return answer.code


def _write(path: str, mode: int, data: bytes | memoryview, umask: int) -> None:
    """Write a file whole or not at all, with the permissions that a tool would leave here."""
    if mode in (0o644, 0o755):
        mode = (0o777 if mode & 0o100 else 0o666) & ~umask
    partial = f"{path}.{os.getpid():x}.part"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def _print(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


def _say(text: str) -> None:
    _print(2, text.encode("utf-8", "surrogateescape") + b"\n")


# --- what people can ask for


def _report(reason: str, detail: str, name: str) -> None:
    """Have a command that was kept from the cache counted, if a daemon is there: none is started for that."""
    _explain(name, "bypass", reason, detail)
    from ..errors import PtocacheError
    from . import quick

    fields = {"reason": reason, "detail": detail, "kernel": "", "toolchain": name}
    try:
        place = quick.place(os.environ)
        if not place:
            from ..config import load

            place = load().socket
        talk = quick.Talk(place)
        try:
            talk.bypassed(fields)
        finally:
            talk.close()
    except (PtocacheError, OSError):
        return


def _explain(name: str, outcome: str, reason: str, what: str) -> None:
    if os.environ.get(EXPLAIN_VARIABLE):
        because = f" ({reason})" if reason else ""
        _say(f"ptocache: {name}: {outcome}{because}: {what}")
