"""Fixtures for every level: nothing of the user's own settings reaches a test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import DaemonProcess, Gate, LoggingCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with nothing in it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_places(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME and the XDG folders are empty ones; no PTOCACHE_ variable is set."""
    for name in list(os.environ):
        if name.startswith(("PTOCACHE_", "XDG_")) or name in ("CC", "CXX", "SOURCE_DATE_EPOCH"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(empty_home))


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Make (not start) daemons; each is ended when the test is."""
    made: list[DaemonProcess] = []

    def make(root: Path | None = None, **settings: object) -> DaemonProcess:
        made.append(DaemonProcess(root or tmp_path / "store", **settings))
        return made[-1]

    yield make
    for daemon in made:
        daemon.clean_up()


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A running daemon on an empty store."""
    return make_daemon().start()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for the tests of a module that leave no trace but entries under keys of their own."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("shared") / "store")
    try:
        yield daemon.start()
    finally:
        daemon.clean_up()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate for a :class:`~tests.harness.LoggingCompiler`, closed."""
    return Gate(tmp_path / "gate")


@pytest.fixture
def logging_compiler(tmp_path: Path) -> LoggingCompiler:
    """A compiler that logs its runs."""
    return LoggingCompiler(tmp_path / "logging")
