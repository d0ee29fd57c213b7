"""The guard: ends every tool of a dead daemon wherever it went, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import guard
from tests.harness import DEADLINE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start long-lived processes; each is ended when the test is."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **env: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(argv or ("sleep", "300"), env={"PATH": os.defpath, **env}))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def marker(tmp_path: Path) -> str:
    folder = tmp_path / "store" / "tmp"
    folder.mkdir(parents=True)
    return str(folder)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def orphan(start: Callable[..., subprocess.Popen[bytes]], place: Path, **env: str) -> int:
    """A process that left its parent, its group and its session behind."""
    path = place / "orphan"
    script = f"(setsid sh -c 'echo $$ > {path}; exec sleep 300' &) & exit 0"
    start("sh", "-c", script, **env).wait(DEADLINE_S)
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), "the orphan's pid")
    return int(path.read_text())


def test_tools_are_found_by_where_their_temporary_files_go(
    start: Callable[..., subprocess.Popen[bytes]], marker: str
) -> None:
    mine = start(TMPDIR=f"{marker}/job-1/t")
    start(TMPDIR=f"{marker}-other/job-1/t")
    start(TMPDIR=marker)
    start(XTMPDIR=f"{marker}/job-1/t")
    start(OTHER=f"x TMPDIR={marker}/job-1/t")
    start()
    wait_for(lambda: guard.tools(marker), "the tool to be seen")
    assert guard.tools(marker) == [mine.pid]
    assert guard.tools(marker + "/") == [mine.pid]


def test_nobody_is_found_where_nobody_is(marker: str) -> None:
    assert guard.tools(marker) == []
    assert guard.end_tools(marker) == 0


def test_a_tool_that_left_its_group_session_and_parent_ends_and_nobody_else_does(
    start: Callable[..., subprocess.Popen[bytes]], marker: str, tmp_path: Path
) -> None:
    others = [start(TMPDIR=f"{marker}-other/t"), start(TMPDIR=marker), start()]
    mine = start(TMPDIR=f"{marker}/job-1/t")
    gone_away = orphan(start, tmp_path, TMPDIR=f"{marker}/job-2/t")
    wait_for(lambda: {mine.pid, gone_away} <= set(guard.tools(marker)), "both to be seen")
    assert guard.end_tools(marker) >= 2
    assert guard.tools(marker) == []
    assert mine.wait(DEADLINE_S) == -signal.SIGKILL
    wait_for(lambda: not is_running(gone_away), "the orphan's end")
    assert [process.poll() for process in others] == [None, None, None]


def test_a_tool_that_ignores_signals_and_one_that_is_stopped_end_too(
    start: Callable[..., subprocess.Popen[bytes]], marker: str
) -> None:
    deaf = start("sh", "-c", "trap '' TERM INT HUP; sleep 300", TMPDIR=f"{marker}/t")
    stopped = start(TMPDIR=f"{marker}/t")
    wait_for(lambda: {deaf.pid, stopped.pid} <= set(guard.tools(marker)), "both to be seen")
    stopped.send_signal(signal.SIGSTOP)
    guard.end_tools(marker)
    assert deaf.wait(DEADLINE_S) == stopped.wait(DEADLINE_S) == -signal.SIGKILL


class Guarded:
    """A guard process with its pipe in our hand, as a daemon holds it."""

    def __init__(self, marker: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, marker], stdin=subprocess.PIPE
        )

    def close(self, word: bytes = b"") -> int:
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(word)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def guarded(marker: str) -> Iterator[Guarded]:
    made = Guarded(marker)
    yield made
    made.process.kill()
    made.process.wait()
    if made.process.stdin is not None:
        made.process.stdin.close()


@pytest.fixture
def tool(start: Callable[..., subprocess.Popen[bytes]], marker: str) -> subprocess.Popen[bytes]:
    made = start(TMPDIR=f"{marker}/job-1/t")
    wait_for(lambda: guard.tools(marker), "the tool to be seen")
    return made


def test_a_daemon_that_died_without_a_word_has_its_tools_ended(
    guarded: Guarded, tool: subprocess.Popen[bytes]
) -> None:
    assert guarded.close() == 0
    assert tool.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_word_that_is_no_goodbye_is_none(guarded: Guarded, tool: subprocess.Popen[bytes]) -> None:
    assert guarded.close(b"something") == 0
    assert tool.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_daemon_that_said_goodbye_keeps_what_it_left_running(
    guarded: Guarded, tool: subprocess.Popen[bytes]
) -> None:
    assert guarded.close(guard.GOODBYE) == 0
    assert tool.poll() is None


def test_the_guard_outlives_the_signals_that_end_a_whole_group(
    guarded: Guarded, tool: subprocess.Popen[bytes]
) -> None:
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

    def ignored() -> bool:
        with open(f"/proc/{guarded.process.pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("SigIgn"))
        return all(int(line.split()[1], 16) >> (number - 1) & 1 for number in wanted)

    wait_for(ignored, "the guard to ignore signals")
    for number in wanted:
        guarded.process.send_signal(number)
    assert guarded.close() == 0
    assert tool.wait(DEADLINE_S) == -signal.SIGKILL
