"""What the disk refused: counted by the error's name, the last one remembered, each said once.

The lifetime statistics know only why an entry could not be stored; this knows of every trouble, of this
daemon alone, and is there to be read when the index itself cannot be.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

from ..outcome import Reason

_log = logging.getLogger("ptocache.store")
_FULL = frozenset({"ENOSPC", "EDQUOT", "SQLITE_FULL"})
_DAMAGE = (
    "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_SCHEMA", "SQLITE_MISMATCH",
    "SQLITE_CONSTRAINT",
)  # fmt: skip
# Before Python 3.11 sqlite3's errors tell their code in words only.
_WORDS = (
    ("disk is full", "SQLITE_FULL"),
    ("readonly database", "SQLITE_READONLY"),
    ("locked", "SQLITE_BUSY"),
    ("disk I/O error", "SQLITE_IOERR"),
    ("malformed", "SQLITE_CORRUPT"),
    ("not a database", "SQLITE_NOTADB"),
    ("unable to open", "SQLITE_CANTOPEN"),
)


class Failure(NamedTuple):
    """Something that the disk refused."""

    error: str
    """``ENOSPC``, ``SQLITE_FULL`` …: see :func:`name_of`."""
    doing: str
    """``publish``, ``read``, ``remove``, ``statistics``, ``scratch`` or ``open``."""
    place: str
    """``index``, or the folder below the store's root (``blobs``, ``tmp``, ``quarantine``); empty if unknown."""
    at_s: float
    """When, in seconds since the epoch."""


class Health:
    """Troubles of one daemon with its store. Thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: set[tuple[str, str]] = set()
        self.last: Failure | None = None

    def note(self, error: Exception, doing: str, message: str) -> Failure:
        """Remember a failure; ``message`` goes to the log, unless the same was said and has not been
        :meth:`well` since."""
        found = Failure(name_of(error), doing, self._place(error), time.time())
        with self._lock:
            self._counts[found.error] += 1
            self.last = found
            new = (doing, found.error) not in self._said
            self._said.add((doing, found.error))
        _log.log(logging.WARNING if new else logging.DEBUG, "%s: %s", message, error)
        return found

    def well(self, doing: str) -> None:
        """It works (again)."""
        if not self._said:
            return
        with self._lock:
            over = {pair for pair in self._said if pair[0] == doing}
            self._said -= over
        if over:
            _log.info("%s works again", doing)

    def report(self) -> dict[str, Any]:
        """``failures`` (error's name → number since the daemon started) and ``last_failure``."""
        with self._lock:
            last = self.last._asdict() if self.last is not None else None
            return {"failures": dict(sorted(self._counts.items())), "last_failure": last}

    def _place(self, error: Exception) -> str:
        if isinstance(error, sqlite3.Error) or isinstance(error.__cause__, sqlite3.Error):
            return "index"
        # A rename names two files; what it was to become is the one that tells where.
        path = getattr(error, "filename2", None) or getattr(error, "filename", None)
        if not isinstance(path, str) or not path.startswith(self._root + os.sep):
            return ""
        return path[len(self._root) + 1 :].partition(os.sep)[0]


def name_of(error: BaseException) -> str:
    """``ENOSPC``, ``SQLITE_FULL`` … of the error itself or of what caused it; else its class's name."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, sqlite3.Error):
            return _sqlite_name(cause)
        if isinstance(cause, OSError) and cause.errno:
            return errno.errorcode.get(cause.errno, f"errno {cause.errno}")
        cause = cause.__cause__
    return type(error).__name__


def _sqlite_name(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None)
    if isinstance(name, str):
        return name
    if isinstance(error, sqlite3.ProgrammingError):
        # A connection that is closed, because the index could not be opened again.
        return "SQLITE_MISUSE"
    return next((name for words, name in _WORDS if words in str(error)), "SQLITE_ERROR")


def failure_reason(error: Exception) -> Reason:
    """The counted reason of a store failure."""
    return Reason.NO_SPACE if name_of(error) in _FULL else Reason.IO_ERROR


def is_damage(error: BaseException) -> bool:
    """True if SQLite says that the index is no database, contradicts itself, or does not hold what our
    own statements, which are always the same, ask for."""
    return name_of(error).startswith(_DAMAGE)
