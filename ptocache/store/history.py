"""Which entries were there before: what a miss is explained by."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Protocol

from ..errors import PtocacheError
from ..outcome import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..entry import Entry
    from .index import Index, Row

LIMIT = 32
"""Documents read at most."""


class Readable(Protocol):
    """What this needs of a store."""

    index: Index

    def read_entry(self, row: Row) -> Entry:
        """The document of an entry."""


def earlier_entries(
    store: Readable,
    action: str,
    toolchain: str,
    kernel: str,
    before: Row | None = None,
    cache: Cache = Cache.BINARY,
) -> Iterator[Entry]:
    """Entries to compare with, at most :data:`LIMIT`, read one by one as they are asked for: those of
    the same action, then the newest of the same toolchain and kernel in the same cache; of other kernels
    only if this one has none. ``before``: only those made before that entry. What cannot be read is passed over."""
    try:
        rows = _rows(store.index, action, toolchain, kernel, before, cache)
    except sqlite3.Error:
        # An explanation is never worth an answer.
        return
    seen: set[int] = set()
    for row in rows:
        if row.id in seen:
            continue
        if len(seen) >= LIMIT:
            return
        seen.add(row.id)
        try:
            yield store.read_entry(row)
        except (OSError, PtocacheError, sqlite3.Error):
            continue


def _rows(
    index: Index, action: str, toolchain: str, kernel: str, before: Row | None, cache: Cache
) -> list[Row]:
    own = [row for row in index.candidates(action) if before is None or _precedes(row, before)]
    like = index.earlier(toolchain, kernel, before, LIMIT, cache)
    if not own and not like:
        like = index.earlier(toolchain, None, before, LIMIT, cache)
    own.sort(key=lambda row: (row.created_s, row.id), reverse=True)
    return own + like


def _precedes(row: Row, other: Row) -> bool:
    return (row.created_s, row.id) < (other.created_s, other.id)
