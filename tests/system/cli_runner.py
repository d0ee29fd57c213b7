"""Runs the command ``ptocache``: the installed executable (:func:`start`), or a fork that has it imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness import DEADLINE_S
from tests.nursery import must_be_started, nursery

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
    return _judged(Done(process.returncode, stdout, stderr))


def ptocache(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """Run the command to its end."""
    whole = {**os.environ, **(env or {})}
    if must_be_started(whole):
        return finish(start(*words, env=env, cwd=cwd))
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = nursery().command(
            [EXECUTABLE, *words], whole, str(cwd or os.getcwd()), stdout.fileno(), stderr.fileno()
        )
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stderr.seek(0)
            raise AssertionError(
                f"the command did not end; it said: {stderr.read().decode()}"
            ) from None
        stdout.seek(0)
        stderr.seek(0)
        return _judged(Done(code, stdout.read(), stderr.read()))


def _judged(done: Done) -> Done:
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert b"internal error" not in done.stderr, done.stderr.decode()
    return done
