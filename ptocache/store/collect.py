"""Keeping the store within its limits: eviction by size and age."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ..outcome import Cache, Event

if TYPE_CHECKING:
    from .index import Row
    from .store import Store

BATCH = 64
"""Entries removed in one step: a publish waits for at most one step."""


class Collected(NamedTuple):
    """What a collection removed, or would remove."""

    entries: int
    bytes: int
    remaining: int
    """Bytes on disk afterwards."""


def collect(
    store: Store,
    *,
    max_size: int | None = None,
    unused_since_s: float | None = None,
    dry_run: bool = False,
) -> Collected:
    """Evict the least recently used entries.

    ``max_size``: down to that many bytes on disk; without it down to the low-water mark, and only if
    the limit is passed. ``unused_since_s``: also everything last used before that time.
    """
    store.flush()
    if dry_run:
        return _foresee(store, max_size, unused_since_s)
    entries = freed = 0
    evicted: Counter[int] = Counter()
    while rows := store.index.oldest(BATCH, unused_since_s) if unused_since_s is not None else []:
        removed = store.remove(rows)
        evicted.update(row.cache for row in rows)
        entries, freed = entries + removed.entries, freed + removed.bytes
    while excess := store.budget.excess(max_size):
        rows = _first_worth(store, store.index.oldest(BATCH), excess)
        if not rows:
            break
        removed = store.remove(rows)
        evicted.update(row.cache for row in rows)
        entries, freed = entries + removed.entries, freed + removed.bytes
    for cache, count in evicted.items():
        store.tally.event(Cache(cache), Event.EVICTED, count=count)
    return Collected(entries, freed, store.budget.used)


def _first_worth(store: Store, rows: list[Row], excess: int) -> list[Row]:
    """As many of the oldest as free ``excess`` bytes on disk, if they share nothing with others."""
    needs = store.index.needs(row.id for row in rows)
    chosen: list[Row] = []
    for row in rows:
        if excess <= 0:
            break
        chosen.append(row)
        excess -= sum(disk for _, disk in needs.get(row.id, ()))
    return chosen


def _foresee(store: Store, max_size: int | None, unused_since_s: float | None) -> Collected:
    excess = store.budget.excess(max_size)
    needs = store.index.needs()
    users = Counter(sha256 for blobs in needs.values() for sha256, _ in blobs)
    entries = freed = 0
    for row in store.index.oldest(-1):
        too_old = unused_since_s is not None and row.last_s < unused_since_s
        if not too_old and freed >= excess:
            break
        entries += 1
        for sha256, disk in needs.get(row.id, ()):
            users[sha256] -= 1
            freed += disk if users[sha256] == 0 else 0
    return Collected(entries, freed, max(0, store.budget.used - freed))
