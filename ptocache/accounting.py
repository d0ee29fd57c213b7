"""Bytes and recency: what fits, what must go, what was used. No disk, and no clock of its own.

The store asks before it writes (:meth:`Budget.reserve`), says what became of it (:meth:`commit` or
:meth:`release`), and is told how many bytes an eviction must free. Uses are collected here and
written to the index in batches, so that a hit never writes.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class Use(NamedTuple):
    """Uses of one entry since the last time they were written."""

    hits: int
    last_s: float
    """Time of the last use, in seconds since the epoch."""


class Budget:
    """Bytes on disk against a limit. Thread-safe; every method is short and calls nothing outside."""

    def __init__(self, limit: int, low_water: float, used: int = 0) -> None:
        self.limit = limit
        self._low = int(limit * low_water)
        self._lock = threading.Lock()
        self._used = used
        self._reserved = 0

    @property
    def used(self) -> int:
        """Bytes that committed entries hold."""
        return self._used

    def fits(self, size: int) -> bool:
        """True unless ``size`` bytes could never be stored, even alone."""
        return size <= self.limit

    def reserve(self, size: int) -> None:
        """Count ``size`` bytes as good as written."""
        with self._lock:
            self._reserved += size

    def commit(self, reserved: int, written: int) -> None:
        """A reservation became ``written`` bytes on disk."""
        with self._lock:
            self._reserved -= reserved
            self._used += written

    def release(self, reserved: int) -> None:
        """A reservation came to nothing."""
        with self._lock:
            self._reserved -= reserved

    def freed(self, size: int) -> None:
        """``size`` bytes are gone from the disk."""
        with self._lock:
            self._used = max(0, self._used - size)

    def reset(self, used: int) -> None:
        """Set what is on disk, after counting it."""
        with self._lock:
            self._used = used

    def excess(self, limit: int | None = None) -> int:
        """Bytes that an eviction must free: down to the low-water mark once the limit is passed.

        With an explicit ``limit`` (``gc --max-size``): down to exactly that.
        """
        with self._lock:
            total = self._used + self._reserved
            if limit is not None:
                return max(0, total - limit)
            return total - self._low if total > self.limit else 0


class Recency:
    """Uses not yet written to the index. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[int, Use] = {}

    def touch(self, entry_id: int, now_s: float) -> None:
        """Entry ``entry_id`` was served at ``now_s``."""
        with self._lock:
            use = self._uses.get(entry_id)
            self._uses[entry_id] = Use(use.hits + 1 if use else 1, now_s)

    def drain(self) -> dict[int, Use]:
        """Everything collected, which is then forgotten here."""
        with self._lock:
            uses, self._uses = self._uses, {}
            return uses

    def restore(self, uses: dict[int, Use]) -> None:
        """Give back what was drained but could not be written."""
        with self._lock:
            for entry_id, use in uses.items():
                now = self._uses.get(entry_id, Use(0, use.last_s))
                self._uses[entry_id] = Use(now.hits + use.hits, max(now.last_s, use.last_s))
