"""Is a process still there to build? Real processes, looked at through /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ptocache import peer
from ptocache.peer import STOPPED_LOOKS, Process, Vigil, process_of
from tests.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its end."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def until_state(pid: int, states: str) -> None:
    wait_for(lambda: (found := process_of(pid)) and found.state in states, f"{pid} to be {states}")


def test_this_process_is_seen() -> None:
    found = process_of(os.getpid())
    assert found is not None
    assert found.state in "RS"
    assert found.start > 0


@pytest.mark.parametrize("pid", [0, -1, 1 << 30])
def test_a_process_that_cannot_be_seen_is_never_judged(pid: int) -> None:
    assert process_of(pid) is None
    assert Vigil(pid).look() == ""


def test_a_stop_must_last_for_some_looks(child: subprocess.Popen[bytes]) -> None:
    vigil = Vigil(child.pid)
    for looks in (STOPPED_LOOKS - 1, STOPPED_LOOKS - 1):
        child.send_signal(signal.SIGSTOP)
        until_state(child.pid, "T")
        assert [vigil.look() for _ in range(looks)] == [""] * looks
        child.send_signal(signal.SIGCONT)
        until_state(child.pid, "RS")
        assert vigil.look() == ""
    child.send_signal(signal.SIGSTOP)
    until_state(child.pid, "T")
    assert [bool(vigil.look()) for _ in range(STOPPED_LOOKS)] == [False, False, True]


def test_a_dead_process_is_gone_before_and_after_its_parent_asks(
    child: subprocess.Popen[bytes],
) -> None:
    vigil = Vigil(child.pid)
    child.kill()
    until_state(child.pid, "Z")
    assert "has ended" in vigil.look()
    child.wait()
    assert "has ended" in vigil.look()


def test_another_process_of_the_same_number_is_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vigil = Vigil(os.getpid())
    monkeypatch.setattr(peer, "process_of", lambda pid: Process("S", 1))
    assert "has ended" in vigil.look()
