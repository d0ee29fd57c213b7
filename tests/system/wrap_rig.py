"""Compilers through shims: a folder of them, a daemon, and a place to compile in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness import DEADLINE_S
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.harness import DaemonProcess

COUNTED = ("memory_hit", "disk_hit", "joined", "miss", "bypass", "failure")


class Ran(NamedTuple):
    """How a command ended, and every file of its folder afterwards: name → (mode, bytes)."""

    code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, tuple[int, bytes]]


class Bench:
    """A folder to compile in, with compilers and shims for them."""

    def __init__(self, place: Path, daemon: DaemonProcess, env: Mapping[str, str] = {}) -> None:
        self.daemon = daemon
        self.shims = place / "shims"
        self.work = place / "work"
        self.work.mkdir(parents=True)
        self.plain_env = {**daemon.env, "LC_ALL": "C", **env, "PWD": str(self.work)}
        done = ptocache("shims", str(self.shims), "--all", env=self.plain_env)
        assert done.code == 0, done.err
        self.env = {**self.plain_env, "PATH": f"{self.shims}:{self.plain_env['PATH']}"}

    def run(self, *words: str, real: bool = False, cwd: Path | None = None, **env: str) -> Ran:
        """Run a command through the shims, or without them."""
        folder = cwd or self.work
        variables = {**(self.plain_env if real else self.env), "PWD": str(folder), **env}
        done = subprocess.run(
            words, cwd=folder, env=variables, capture_output=True, stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Ran(done.returncode, done.stdout, done.stderr, self.files())

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Every file of the folder."""
        return {
            str(path.relative_to(self.work)): (path.stat().st_mode & 0o7777, path.read_bytes())
            for path in sorted(self.work.rglob("*"))
            if path.is_file()
        }

    def restore(self, files: Mapping[str, tuple[int, bytes]]) -> None:
        """Make the folder what it was."""
        for name in set(self.files()) - set(files):
            (self.work / name).unlink()
        for name, (mode, data) in files.items():
            path = self.work / name
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod(mode)

    def numbers(self) -> dict[str, Any]:
        """The daemon's statistics."""
        return self.daemon.stats()

    def outcome_of(self, *words: str, cwd: Path | None = None, **env: str) -> tuple[Ran, str, str]:
        """Run through the shims; how it was counted (empty if it was not), and the reason."""
        before = self.numbers()
        ran = self.run(*words, real=False, cwd=cwd, **env)
        after = self.numbers()
        counted = [name for name in COUNTED if after[name] > before[name]]
        assert sum(after[name] - before[name] for name in COUNTED) == len(counted) < 2
        outcome = counted[0] if counted else ""
        reasons = after.get(f"{outcome}_reasons", {})
        old = before.get(f"{outcome}_reasons", {})
        moved = [name for name, count in reasons.items() if count > old.get(name, 0)]
        return ran, outcome, moved[0] if moved else ""

    def same_as_real(
        self, *words: str, cold: str = "miss", warm: str = "memory_hit", reason: str = "",
        cwd: Path | None = None, **env: str,
    ) -> Ran:  # fmt: skip
        """Run a command without the cache, then cold and warm through the shims: everything must be the
        same each time."""
        before = self.files()
        oracle = self.run(*words, real=True, cwd=cwd, **env)
        for expected in (cold, warm):
            self.restore(before)
            ran, outcome, why = self.outcome_of(*words, cwd=cwd, **env)
            assert ran == oracle
            reasoned = reason if expected in ("bypass", "failure") else ""
            assert (outcome, why) == (expected, reasoned), self.daemon.log()[-2000:]
        return oracle

    def write(self, **texts: str) -> None:
        """Write sources; ``__`` in a name is a dot, ``___`` a slash."""
        for name, text in texts.items():
            path = self.work / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def clear(self) -> None:
        """Empty the folder."""
        shutil.rmtree(self.work)
        self.work.mkdir()


def without(env: Mapping[str, str], *names: str) -> dict[str, str]:
    """An environment without these variables."""
    return {name: value for name, value in env.items() if name not in names}


def real_path(name: str) -> str:
    """The machine's own program of that name."""
    found = shutil.which(name)
    assert found, name
    return os.path.abspath(found)
