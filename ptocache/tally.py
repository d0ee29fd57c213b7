"""Counting outcomes, reasons and events. No disk: the store keeps what :meth:`Tally.drain` gives.

The numbers add up by construction: ``requests`` is never counted, it is the sum of the outcomes.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

from .outcome import Cache, Event, Outcome, Reason


class Slot(NamedTuple):
    """What one number counts; the values are storage numbers of :mod:`ptocache.outcome`."""

    cache: int
    kind: str
    """``outcome``, ``event`` or ``saved_ms``."""
    what: int
    reason: int


# There are few of them, and one is needed for each hit.
_slot = lru_cache(Slot)


class Tally:
    """Numbers since the last drain, and a way to print any sum of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Slot] = Counter()

    def outcome(
        self, cache: Cache, outcome: Outcome, reason: Reason = Reason.NONE, saved_ms: int = 0
    ) -> None:
        """A request ended; ``saved_ms`` is the compile that a hit or a join did not pay for."""
        with self._lock:
            self._counts[_slot(cache, "outcome", outcome, reason)] += 1
            if saved_ms:
                self._counts[_slot(cache, "saved_ms", 0, 0)] += saved_ms

    def event(
        self, cache: Cache, event: Event, reason: Reason = Reason.NONE, count: int = 1
    ) -> None:
        """Something else happened ``count`` times."""
        with self._lock:
            self._counts[_slot(cache, "event", event, reason)] += count

    def drain(self) -> dict[Slot, int]:
        """Everything counted, which is then forgotten here."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return dict(counts)

    def restore(self, counts: dict[Slot, int]) -> None:
        """Give back what was drained but could not be written."""
        with self._lock:
            self._counts.update(counts)

    def peek(self) -> dict[Slot, int]:
        """Everything counted and not drained yet."""
        with self._lock:
            return dict(self._counts)


def report(counts: dict[Slot, int]) -> dict[str, dict[str, Any]]:
    """The ``caches`` part of ``stats --json``: the names are a contract with scripts."""
    return {cache.label: _cache_report(cache, counts) for cache in Cache}


def _cache_report(cache: Cache, counts: dict[Slot, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"requests": 0}
    for outcome in Outcome:
        reasons = _reasons(counts, cache, "outcome", outcome)
        found[outcome.label] = sum(reasons.values())
        found["requests"] += found[outcome.label]
        if outcome in (Outcome.BYPASS, Outcome.FAILURE):
            found[f"{outcome.label}_reasons"] = _labelled(reasons)
    for event in (Event.CORRUPT, Event.REJECTED, Event.STORE_FAILURE, Event.UNLOADABLE):
        reasons = _reasons(counts, cache, "event", event)
        found[event.label] = sum(reasons.values())
        found[f"{event.label}_reasons"] = _labelled(reasons)
    found["saved_ms"] = sum(_reasons(counts, cache, "saved_ms", 0).values())
    return found


def evicted(counts: dict[Slot, int]) -> int:
    """Entries removed to keep a limit, over both caches."""
    return sum(
        n for slot, n in counts.items() if slot.kind == "event" and slot.what == Event.EVICTED
    )


def _reasons(counts: dict[Slot, int], cache: Cache, kind: str, what: int) -> dict[int, int]:
    found: Counter[int] = Counter()
    for slot, count in counts.items():
        if slot.cache == cache and slot.kind == kind and slot.what == what:
            found[slot.reason] += count
    return found


def _labelled(reasons: dict[int, int]) -> dict[str, int]:
    known = {int(reason): reason.label for reason in Reason}
    return {
        known.get(number) or f"reason_{number}": count
        for number, count in sorted(reasons.items())
        if number != Reason.NONE
    }
