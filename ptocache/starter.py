"""Starts a daemon as a process of its own. Imported only when there is none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from .errors import PtocacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Settings
    from .paths import StorePaths

T = TypeVar("T")

_POLL_S = 0.01
_AGAIN_S = 0.25
_ALREADY_SERVED = 5
# What a client asks for itself must not become the rule for everybody whom its daemon serves.
_OWN_VARIABLES = (
    "PTOCACHE_MODE", "PTOCACHE_SALT", "PTOCACHE_REQUIRE", "PTOCACHE_AUTOSTART", "PTOCACHE_RECORD",
)  # fmt: skip
# Only the entry that "-c" adds is dropped: a file in "/" must not stand in for a module.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from ptocache.daemon import main; main()"
)


def start_daemon(
    settings: Settings, store: StorePaths, connect: Callable[[], T], patience_s: float
) -> T | str:
    """Start one and connect to it; returns why not, if it cannot be.

    However many processes do this at once, one of them starts the daemon and the others wait for it.
    """
    deadline = time.monotonic() + patience_s
    try:
        if store.read_only:
            store.make_aside()
        else:
            os.makedirs(store.root, mode=0o700, exist_ok=True)
        lock = os.open(store.start_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PtocacheError as error:
        return str(error)
    except OSError as error:
        return f"the store {store.root} cannot be used: {error.strerror}"
    process: subprocess.Popen[bytes] | None = None
    not_before = 0.0
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return connect()
            if process is None and time.monotonic() > not_before and _locked(lock):
                # Looked at again: the one before us may have just finished.
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    return connect()
                process = spawn(settings, store)
            if process is not None and process.poll() == _ALREADY_SERVED:
                # A daemon that is about to stop holds the store, and serves nobody any more.
                process, not_before = None, time.monotonic() + _AGAIN_S
            elif process is not None and process.poll() is not None:
                return (
                    f"it ended with exit code {process.returncode}: {last_words(settings, store)}"
                )
            time.sleep(_POLL_S)
    except PtocacheError as error:
        return str(error)
    except OSError as error:
        return str(error)
    finally:
        os.close(lock)
        if process is not None:
            # It lives on by itself; nobody will wait for it, and that is no fault to warn of.
            process.returncode = 0
    return f"it did not answer within {patience_s:g} s"


def spawn(settings: Settings, store: StorePaths) -> subprocess.Popen[bytes]:
    """The daemon's process, detached: own session, own log, no standard input."""
    env = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    env["PTOCACHE_DIR"] = settings["store.root"]
    env["PTOCACHE_SOCKET"] = settings.socket
    # What the interpreter itself says, and what is said before the settings are known, goes there too.
    place = env["PTOCACHE_LOG_FILE"] = log_of(settings, store)
    try:
        log = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        # A full disk, say: a daemon without a log is better than none.
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(log)


def log_of(settings: Settings, store: StorePaths) -> str:
    """The log of a daemon that a client starts."""
    place: str = settings["daemon.log_file"] or store.log
    return place


def last_words(settings: Settings, store: StorePaths) -> str:
    """The last thing that the daemon's log tells."""
    place = log_of(settings, store)
    try:
        with open(place, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return f"see {place}"
    return _message(lines[-1]) if lines else f"{place} is empty"


def _message(line: str) -> str:
    """What a line says, without the rest of it if that is JSON."""
    import json

    try:
        return str(json.loads(line)["message"])
    except (ValueError, TypeError, KeyError):
        return line


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: the daemon is the one to judge it, and to say so.
        return True
    return True
