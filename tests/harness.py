"""Real parts for tests: a daemon in its own process, a compiler that logs its runs, waiting with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ptocache import wire
from ptocache.client import Client, connect
from ptocache.config import Settings, load
from ptocache.errors import BadRequestError, PtocacheError
from ptocache.outcome import Outcome, Reason
from tests.nursery import Fostered, must_be_started, nursery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ptocache.result import Result

E = TypeVar("E", bound=PtocacheError)
BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from ptocache.daemon import main; main()"
)
DEADLINE_S = float(os.environ.get("PTOCACHE_TEST_DEADLINE_S", "100"))
"""How long a test waits for what must come: it ends a wait in vain, and never decides whether a test
passes, however slow the machine is. (The mutants, whose tests do wait in vain, have a shorter one.)"""
_LONGEST_PLACE = 60


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until ``condition()`` is true; fails naming ``what`` was awaited."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for: {what}")
        time.sleep(0.005)


def short_folder(prefix: str = "ptc-") -> Path:
    """A private folder of its own whose path leaves room for a socket's name, wherever TMPDIR is."""
    temporary = tempfile.gettempdir()
    fits = len(os.fsencode(temporary)) < _LONGEST_PLACE
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary if fits else "/tmp"))


class DaemonProcess:
    """A daemon of its own on a store of its own. ``settings`` are PTOCACHE_ variables without prefix."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.place = short_folder()
        self.socket = self.place / "s"
        self.log_path = self.place / "log"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PTOCACHE_")},
            "PTOCACHE_DIR": str(root),
            "PTOCACHE_SOCKET": str(self.socket),
            "PTOCACHE_AUTOSTART": "0",
            "PTOCACHE_FSYNC": "0",
            **{f"PTOCACHE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | Fostered | None = None

    def start(self) -> DaemonProcess:
        """Start it and wait until it answers."""
        with open(self.log_path, "ab") as log:
            if must_be_started(self.env):
                self.process = subprocess.Popen(
                    [sys.executable, "-c", BOOT],
                    env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                )  # fmt: skip
            else:
                self.process = nursery().start(self.env, log.fileno())
        self.until_it_answers()
        return self

    def until_it_answers(self) -> None:
        """Wait for it, after it was started in whatever way."""
        try:
            wait_for(self._answers, "the daemon to answer")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log: {self.log()}") from None

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}: {self.log()}")
        if "PTOCACHE_SOCKET" in self.env and not os.path.lexists(self.env["PTOCACHE_SOCKET"]):
            return False
        with contextlib.suppress(Exception), self.client() as client:
            client.call("ping", start=False)
            return True
        return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def settings(self, **overrides: object) -> Settings:
        return load(self.env, {k.replace("_", ".", 1): v for k, v in overrides.items()})

    def client(self, **overrides: object) -> Client:
        """A client of this daemon that requires it: no fallback hides a fault."""
        overrides.setdefault("client_require", True)
        return connect(root=None, env=self.env, **overrides)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def restart(self) -> DaemonProcess:
        """Stop in order and start again on the same store."""
        self.stop()
        return self.start()

    def log(self) -> str:
        """What it logged so far; of a living daemon's, a line counts when it is whole."""
        with contextlib.suppress(OSError):
            # Asked before: what it says while it ends may be half there.
            ended = self.process is None or self.process.poll() is not None
            text = self.log_path.read_text(errors="replace")
            return text if ended else text[: text.rfind("\n") + 1]
        return ""

    def stats(self) -> dict[str, Any]:
        """The binary cache's numbers."""
        with self.client() as client:
            found: dict[str, Any] = client.stats()["caches"]["binary"]
            return found

    def clean_up(self) -> None:
        """End it, however it is, and remove its socket's folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"the daemon did not end; its log: {self.log()}") from None
        shutil.rmtree(self.place, ignore_errors=True)


class Ended(NamedTuple):
    """How a daemon ended that was not to serve, and what it said."""

    returncode: int
    stderr: bytes


def start_in_vain(env: Mapping[str, str]) -> Ended:
    """Start a daemon in this environment, which must end by itself."""
    with tempfile.TemporaryFile() as said:
        process = nursery().start(env, said.fileno())
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said.seek(0)
            raise AssertionError(f"it serves: {said.read().decode(errors='replace')}") from None
        said.seek(0)
        return Ended(code, said.read())


class LoggingCompiler:
    """A wrapper script around the machine's compiler that logs each run of a compile or link.

    Set ``CC`` to :attr:`path` and trust it (:attr:`trust`): what it does is otherwise out of sight.
    ``before`` and ``after`` are shell code around the real compiler, for every start of the wrapper;
    ``extra`` are options for it.
    """

    def __init__(
        self, directory: Path, *, extra: str = "", before: str = "", after: str = ""
    ) -> None:
        # A folder of its own: a log beside the wrapper would change the wrapper's own folder.
        logs = directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.path = directory / "logging-cc"
        self.log_path = logs / "runs.log"
        self.starts_path = logs / "starts.log"
        self.write(extra=extra, before=before, after=after)

    def write(self, *, extra: str = "", before: str = "", after: str = "") -> None:
        """(Re)write the wrapper in place."""
        real = shutil.which("cc")
        assert real is not None
        call = f'"{real}" {extra} "$@"'
        script = (
            "#!/bin/sh\n"
            f'echo "$$ $*" >> "{self.starts_path}"\n'
            f"{before}\n"
            f'case " $* " in *" -o "*) echo "$$ $*" >> "{self.log_path}" ;; esac\n'
            + (f"{call}\nstatus=$?\n{after}\nexit $status\n" if after else f"exec {call}\n")
        )
        self.path.write_text(script)
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    @property
    def env(self) -> dict[str, str]:
        """What a client's environment must hold."""
        return {"PATH": os.environ.get("PATH", ""), "CC": str(self.path)}

    @property
    def trust(self) -> str:
        """The value of PTOCACHE_TRUST_SCRIPTS."""
        return str(self.path)

    def runs(self) -> list[str]:
        """One line per compile or link step that was really started."""
        return whole_lines(self.log_path)

    def starts(self) -> list[str]:
        """One line per start of the wrapper for whatever purpose, questions to it included."""
        return whole_lines(self.starts_path)

    def compiles(self) -> list[str]:
        """The runs that were no links."""
        return [line for line in self.runs() if " -c " in line]


class Gate:
    """Holds compile steps of a :class:`LoggingCompiler` until it is opened, and no longer than any test
    lasts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._open = directory / "open"
        self._arrivals = directory / "arrivals"

    @property
    def script(self) -> str:
        """Shell code for ``before`` or ``after``; only compile steps wait."""
        return (
            f'case " $* " in *" -c "*" -o "*) echo "$$" >> "{self._arrivals}"; n=0; '
            f'while [ ! -e "{self._open}" ] && [ $n -lt 15000 ]; do sleep 0.02; n=$((n+1)); done '
            ";; esac"
        )

    def arrivals(self) -> list[int]:
        """Pids of the steps that came to the gate so far."""
        return [int(line) for line in whole_lines(self._arrivals)]

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._open.touch()

    def close(self) -> None:
        """Hold who comes from now on."""
        self._open.unlink(missing_ok=True)


def stray(pid_file: Path) -> str:
    """Shell code for ``before`` of a :class:`LoggingCompiler`: a compile step leaves a child in a session
    of its own, and goes on once the child's pid stands in the file."""
    child = f'echo $$ > "{pid_file}.part"; mv "{pid_file}.part" "{pid_file}"; exec sleep 600'
    return (
        f'case " $* " in *" -c "*" -o "*) setsid sh -c \'{child}\' >/dev/null 2>&1 & '
        f'while [ ! -e "{pid_file}" ]; do sleep 0.02; done ;; esac'
    )


class ClientProcess:
    """A client in a process of its own, which asks for one compile when told to.

    ``env`` is the whole environment of the process; ``source`` the text of ``k.c``; ``request`` further
    parameters of :meth:`Client.compile`; ``compile_env`` its ``env``.
    """

    CODE = """
import hashlib, json, os, sys, warnings
from ptocache.client import connect
ask = json.loads(sys.stdin.readline())
client = connect()
print("ready", flush=True)
sys.stdin.readline()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = client.compile("host", {"k.c": ask["source"]}, check=False, **ask["request"])
print(json.dumps({
    "pid": os.getpid(), "outcome": result.outcome.label, "reason": result.reason.label,
    "why": result.why, "key": result.key, "warnings": [str(item.message) for item in caught],
    "outputs": {n: hashlib.sha256(o.buffer).hexdigest() for n, o in result.outputs.items()},
}), flush=True)
"""

    def __init__(
        self, source: str, env: Mapping[str, str], compile_env: Mapping[str, str] | None = None,
        **request: object,
    ) -> None:  # fmt: skip
        if compile_env is not None:
            request["env"] = dict(compile_env)
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE], env=dict(env), cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._say(json.dumps({"source": source, "request": request}))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ready(self) -> ClientProcess:
        """Wait until it has started and connects next."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line == b"ready\n", self.process.stderr.read().decode(errors="replace")
        return self

    def go(self) -> ClientProcess:
        """Let it ask."""
        self._say("go")
        return self

    def result(self) -> dict[str, object]:
        """What it got."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, err.decode(errors="replace")
        found: dict[str, object] = json.loads(out)
        return found

    def kill(self) -> None:
        """SIGKILL, and forget it; fine if it has ended."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class RawPeer:
    """A peer that says what it likes to a daemon; use as a context manager."""

    def __init__(self, path: Path, *, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))
        self._reader = wire.Reader()
        if greet:
            self.say(wire.hello("raw", os.getpid()))
            assert self.hear()["type"] == "welcome"

    def say(self, *messages: Mapping[str, Any]) -> None:
        """Send messages in one go."""
        self.socket.sendall(b"".join(wire.pack(message) for message in messages))

    def send(self, data: bytes) -> None:
        """Send bytes; who has closed meanwhile is no fault here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def hear(self) -> dict[str, Any]:
        """The next message; raises :class:`ConnectionError` if the daemon has closed."""
        while (message := self._reader.next()) is None:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the daemon closed the connection")
            self._reader.feed(data)
        return message

    def is_dropped(self) -> bool:
        """True once the daemon has closed; whatever it says before is passed over."""
        try:
            while self.socket.recv(1 << 18):
                continue
        except ConnectionResetError:
            return True
        return True

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


def at_once(clients: Iterable[ClientProcess]) -> list[dict[str, object]]:
    """Let all ask at one moment; what they got, in their order."""
    clients = list(clients)
    try:
        for client in clients:
            client.ready()
        for client in clients:
            client.go()
        return [client.result() for client in clients]
    finally:
        for client in clients:
            client.kill()


def alive(pid: int) -> bool:
    """True if there is such a process and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def daemons_of(root: Path) -> list[int]:
    """Pids of the daemons whose store is ``root``."""
    needle = b"PTOCACHE_DIR=" + os.fsencode(root)
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if b"ptocache.daemon" in words and needle in variables and alive(int(name)):
                found.append(int(name))
    return found


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that others write at this moment; none if there is no file yet.

    A reader can meet a line of which only the first pages are there: it does not count before its end.
    """
    with contextlib.suppress(OSError):
        text = path.read_text(errors="surrogateescape")
        return text[: text.rfind("\n") + 1].splitlines()
    return []


def raised(result: Result, kind: type[E]) -> E:
    """The error that a failed result raises, which must be of this kind."""
    try:
        result.check()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}: {result.outcome.label}")


def assert_bad_request(result: Result, words: str, hint: str) -> None:
    """A request was refused with these words and a way out."""
    assert (result.outcome, result.reason) == (Outcome.FAILURE, Reason.BAD_REQUEST)
    error = raised(result, BadRequestError)
    assert words in error.message
    assert hint in error.hint


def compile_directly(
    source: bytes,
    name: str,
    options: list[str],
    directory: Path,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """The object that the machine's compiler makes without any cache (for an oracle)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(source)
    target = directory / "direct.o"
    subprocess.run(
        ["cc", *options, "-c", name, "-o", str(target)],
        cwd=directory, check=True, capture_output=True, env=dict(env) if env else None,
    )  # fmt: skip
    return target.read_bytes()
