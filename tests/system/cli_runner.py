"""Runs the installed ``ptocache`` executable, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

EXECUTABLE = str(Path(sys.executable).with_name("ptocache"))


class Done(NamedTuple):
    """How a command ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.stdout)

    def json_lines(self) -> list[Any]:
        """Standard output as one JSON document a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


def start(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the command; ``env`` is added to this process's environment."""
    return subprocess.Popen(
        [EXECUTABLE, *words], env={**os.environ, **(env or {})}, cwd=cwd,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> Done:
    """Wait for a started command. No command ever shows a traceback."""
    try:
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"the command did not end; it said: {stderr.decode()}") from None
    assert b"Traceback" not in stderr, stderr.decode()
    assert b"internal error" not in stderr, stderr.decode()
    return Done(process.returncode, stdout, stderr)


def ptocache(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """Run the command to its end."""
    return finish(start(*words, env=env, cwd=cwd))
