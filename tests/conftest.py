"""Fixtures for every level: nothing of the user's own settings reaches a test."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import DaemonProcess, Gate, LoggingCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_SURROUNDINGS = (
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
    "SOURCE_DATE_EPOCH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME", "BISHENG_HOME", "PTOAS_ROOT", "PTO_FLAGS", "COLUMNS", "LINES", "NO_COLOR",
    "FORCE_COLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
)  # fmt: skip
"""What a user, make or a service for tests may have set, and what a compiler or a terminal asks for."""


_LONGEST_TMPDIR = 12


def _forget_surroundings() -> None:
    """Also before fixtures of a whole module begin."""
    for name in _SURROUNDINGS:
        os.environ.pop(name, None)
    # A shell starts what runs in its background with the interrupt ignored, and so does whatever that starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _shorten_paths() -> None:
    """The path of a socket has 107 bytes, and the folder of a test takes ninety of them below TMPDIR."""
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TMPDIR and os.access("/tmp", os.W_OK):
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"


def _settle_hypothesis() -> None:
    """What is drawn is the same in every run, and a slow machine is no failure; ``PTOCACHE_RANDOM=1``
    (``make soak``) draws anew each time, and a failure then tells how to see it again."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        # The environment of tests/frameworks has none.
        return
    settings.register_profile(
        "ptocache", deadline=None, database=None, print_blob=True,
        derandomize=os.environ.get("PTOCACHE_RANDOM") != "1",
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    settings.load_profile("ptocache")


# Before the modules with tests are imported, whose own settings are made from these.
_settle_hypothesis()
_forget_surroundings()
_shorten_paths()


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with nothing in it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_places(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME and the XDG folders are empty ones; no PTOCACHE_ variable is set."""
    for name in list(os.environ):
        if name.startswith(("PTOCACHE_", "XDG_")):
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
