"""What an integration has once in a process: the client, the lock, the one warning; forks and errors."""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING

import pytest

from ptocache.errors import DaemonUnavailableError, PtocacheWarning
from ptocache.integrations.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PTOCACHE_REQUIRE", raising=False)
    found = Process("Some")
    yield found
    found.end()


def in_child(fine: Callable[[], bool]) -> bool:
    """What ``fine`` says in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if fine() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def test_client_is_made_once_and_anew_after_the_end(process: Process) -> None:
    first = process.client()
    assert process.client() is first
    process.end()
    assert process.client() is not first


def test_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_holds(
    process: Process,
) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with process.lock:
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        assert not process.lock.acquire(blocking=False)
        assert in_child(lambda: process.lock.acquire(blocking=False))
    finally:
        let_go.set()
        thread.join()


def test_one_warning_a_process_and_those_that_are_said_besides(process: Process) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        process.warn("besides", again=True)
        process.warn("first")
        process.warn("second")
        process.warn("besides", again=True)
        process.end()
        process.warn("after the end")
    assert [(str(item.message), item.category) for item in found] == [
        (f"ptocache and Some: {text}", PtocacheWarning)
        for text in ("besides", "first", "besides", "after the end")
    ]


def test_warning_that_would_be_an_error_is_one_line(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings.simplefilter("error")
    process.step_aside(LookupError("no device"))
    process.step_aside(LookupError("again"))
    said = capsys.readouterr().err
    assert said == "ptocache and Some: Some goes on in its own way: LookupError: no device\n"


@pytest.mark.parametrize("required", ["", "1"])
def test_daemon_that_is_missing_is_an_error_only_where_one_is_required(
    process: Process, required: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_REQUIRE", required)
    process.client()
    trouble = DaemonUnavailableError("no daemon")
    if required:
        with pytest.raises(DaemonUnavailableError):
            process.step_aside(trouble)
    else:
        with pytest.warns(PtocacheWarning, match="no daemon"):
            process.step_aside(trouble)
    process.end()
    process.client()
    with pytest.warns(PtocacheWarning, match="LookupError"):
        process.step_aside(LookupError("of another kind"))
