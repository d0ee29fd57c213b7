"""Real parts for tests: a daemon in its own process, a compiler that logs its runs, waiting with a deadline."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ptocache.client import Client, connect
from ptocache.config import Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BOOT = "import sys; sys.path[:] = [p for p in sys.path if p]; from ptocache.daemon import main; main()"
DEADLINE_S = 30.0


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until ``condition()`` is true; fails naming ``what`` was awaited."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for: {what}")
        time.sleep(0.005)


class DaemonProcess:
    """A daemon of its own on a store of its own. ``settings`` are PTOCACHE_ variables without prefix."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.place = Path(tempfile.mkdtemp(prefix="ptc-"))
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
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> DaemonProcess:
        """Start it and wait until it answers."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        wait_for(self._answers, f"the daemon to answer; its log: {self.log()}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}: {self.log()}")
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
        with contextlib.suppress(OSError):
            return self.log_path.read_text(errors="replace")
        return ""

    def stats(self) -> dict[str, int]:
        """The binary cache's numbers."""
        with self.client() as client:
            found: dict[str, int] = client.stats()["caches"]["binary"]
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
        shutil.rmtree(self.place, ignore_errors=True)


class LoggingCompiler:
    """A wrapper script around the machine's compiler that logs each run of a compile or link.

    Set ``CC`` to :attr:`path` and trust it (:attr:`trust`): what it does is otherwise out of sight.
    """

    def __init__(self, directory: Path, *, extra: str = "", before: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "logging-cc"
        self.log_path = directory / "runs.log"
        self.write(extra=extra, before=before)

    def write(self, *, extra: str = "", before: str = "") -> None:
        """(Re)write the wrapper in place: ``extra`` options for the compiler, ``before`` shell code."""
        real = shutil.which("cc")
        assert real is not None
        script = (
            "#!/bin/sh\n"
            f"{before}\n"
            f'case " $* " in *" -o "*) echo "$$ $*" >> "{self.log_path}" ;; esac\n'
            f'exec "{real}" {extra} "$@"\n'
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
        with contextlib.suppress(OSError):
            return self.log_path.read_text().splitlines()
        return []


def compile_directly(
    source: bytes, name: str, options: list[str], directory: Path, env: Mapping[str, str] | None = None
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
