"""Processes without the start of an interpreter: one that has imported everything forks them.

A daemon or a command of a test is the same as ever, a process of its own with its own environment and
descriptors; only the third of a second in which Python imports its modules is spent once a session. What
has an environment that speaks to the loader or to Python itself is started in full
(:func:`must_be_started`).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_BYTES = 1 << 20
_POLL_S = 0.005
_FOR_INTERPRETERS = ("LD_", "PYTHON", "MALLOC_", "LC_", "LANG")


def must_be_started(env: Mapping[str, str]) -> bool:
    """True if a fork of ours would not be what this environment makes of a process."""
    changed = {name for name in {*env, *os.environ} if env.get(name) != os.environ.get(name)}
    return any(name.startswith(_FOR_INTERPRETERS) for name in changed)


class Fostered:
    """A forked process, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int, number: int) -> None:
        self._nursery = nursery
        self.pid = pid
        # Process numbers come again, after some ten thousand forks on most machines.
        self._number = number
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; ``None`` while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ask({"poll": self._number})["code"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fostered process", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: by its parent, for whom its number is its own so long."""
        self.returncode = self._nursery.ask({"poll": self._number, "signal": number})["code"]

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks; one for each process that runs tests."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        )  # fmt: skip
        theirs.close()
        atexit.register(self.close)

    def start(self, env: Mapping[str, str], log: int) -> Fostered:
        """Fork a daemon whose output goes to the descriptor ``log``."""
        return self._fork(env, "/", ["-c"], log, log)

    def command(
        self, words: Sequence[str], env: Mapping[str, str], cwd: str, stdout: int, stderr: int
    ) -> Fostered:
        """Fork the command ``ptocache`` with these words, its own name first."""
        return self._fork(env, cwd, words, stdout, stderr)

    def _fork(
        self, env: Mapping[str, str], cwd: str, words: Sequence[str], stdout: int, stderr: int
    ) -> Fostered:
        mask = os.umask(0)
        os.umask(mask)
        request = {"env": dict(env), "umask": mask, "cwd": cwd, "words": list(words)}
        born = self.ask(request, stdout, stderr)
        return Fostered(self, born["pid"], born["number"])

    def ask(self, request: dict[str, Any], *fds: int) -> Any:
        """One question, one answer."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with self._lock:
            self._control.sendmsg([json.dumps(request).encode()], ancillary)
            return json.loads(self._control.recv(_MOST_BYTES))

    def close(self) -> None:
        """End it, with every daemon that is left."""
        self._control.close()
        self._process.wait(30)


_nursery: Nursery | None = None


def nursery() -> Nursery:
    """The one of this process."""
    global _nursery
    _nursery = _nursery or Nursery()
    return _nursery


# --- the other side


def _serve(control: socket.socket) -> None:
    import gc

    import ptocache.daemon
    import ptocache_cli.main
    from ptocache.toolchain import Registry

    assert ptocache.daemon
    assert ptocache_cli.main
    # What typer imports when a command runs, if this version does.
    with contextlib.suppress(ImportError):
        importlib.import_module("pydantic")
    Registry.discover()
    gc.freeze()
    ended: dict[int, int] = {}
    living: dict[int, int] = {}
    born = 0
    while True:
        ready, _, _ = select.select([control], [], [], 0.1)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[living.pop(pid)] = os.waitstatus_to_exitcode(status)
        if not ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not data:
            break
        request = json.loads(data)
        if "poll" in request:
            for pid in [pid for pid, number in living.items() if number == request["poll"]]:
                if "signal" in request:
                    os.kill(pid, request["signal"])
            control.send(json.dumps({"code": ended.get(request["poll"])}).encode())
            continue
        pid = os.fork()
        if not pid:
            control.close()
            _live(request, *fds)
        for fd in fds:
            os.close(fd)
        born += 1
        living[pid] = born
        control.send(json.dumps({"pid": pid, "number": born}).encode())
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _live(request: dict[str, Any], stdout: int, stderr: int) -> None:
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, place in ((nothing, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, place)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(request["env"])
        os.umask(request["umask"])
        os.chdir(request["cwd"])
        sys.argv = request["words"]
        code = _run(is_daemon=sys.argv == ["-c"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(*, is_daemon: bool) -> int:
    if is_daemon:
        from ptocache.daemon import main as daemon_main

        daemon_main()
        return 0
    from ptocache_cli.main import run

    return run()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
