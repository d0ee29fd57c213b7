"""Is everything in the store what it was when it entered? Asked page by page, so that it can be watched
and never holds anybody up for longer than a page."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from ..digest import Digest
from ..errors import StoreDamagedError
from ..outcome import Reason
from .blobs import DamagedBlobError

if TYPE_CHECKING:
    from .index import BlobRow, Row
    from .store import Store

PAGE_ENTRIES = 256
PAGE_BYTES = 64 << 20


class Damage(NamedTuple):
    """An entry that is not whole."""

    row: Row
    sha256: str
    """The blob that is damaged; empty if it is the entry itself."""
    reason: Reason
    detail: str


class Page(NamedTuple):
    """What a part of the store is like."""

    entries: int
    bytes: int
    """Bytes of outputs and documents that were looked at."""
    damaged: tuple[Damage, ...]
    after: int | None
    """Where the next page begins; ``None`` if this was the last one."""


def verify(store: Store, after: int, *, fast: bool, heal: bool) -> Page:
    """Look at the entries that follow the one numbered ``after`` (0: the first page).

    Every blob is read and its SHA-256 and checksum are compared; ``fast``: only its size. ``heal``: what
    is damaged goes to the quarantine, with every entry that needs it, so that it is made again.
    """
    rows = store.index.rows_after(after, PAGE_ENTRIES)
    damaged: list[Damage] = []
    looked = entries = 0
    last: int | None = None
    known: set[str] = set()
    for row in rows:
        if looked >= PAGE_BYTES:
            break
        last, entries, looked = row.id, entries + 1, looked + row.bytes
        found = _damage_of(store, row, fast, known)
        # What was removed meanwhile lacks everything, and nobody will ask for it.
        if found is None or not _is_there(store, row):
            continue
        damaged.append(found)
        if heal:
            store.heal(row, found.reason, found.detail)
    more = last is not None and (entries < len(rows) or len(rows) == PAGE_ENTRIES)
    return Page(entries, looked, tuple(damaged), last if more else None)


def _damage_of(store: Store, row: Row, fast: bool, known: set[str]) -> Damage | None:
    try:
        blobs = store.index.blob_rows(row.id)
        for sha256, blob in blobs.items():
            if sha256 in known:
                continue
            wrong = _wrong_size(store, blob) if fast else _wrong_bytes(store, blob)
            if wrong is not None:
                return Damage(row, sha256, *wrong)
            known.add(sha256)
        if row.document not in blobs:
            return Damage(row, "", Reason.BAD_DOCUMENT, "the entry has no document")
        if not fast:
            entry = store.read_entry(row)
            if entry.key != row.key:
                return Damage(row, "", Reason.BAD_DOCUMENT, "the document is another entry's")
    except StoreDamagedError as error:
        return Damage(row, row.document, Reason.BAD_DOCUMENT, error.message)
    except (OSError, sqlite3.Error) as error:
        return Damage(row, "", Reason.IO_ERROR, str(error))
    return None


def _is_there(store: Store, row: Row) -> bool:
    try:
        return store.index.has_entry(row.id)
    except sqlite3.Error:
        # An index that cannot be read is damage, whatever became of this entry.
        return True


def _wrong_size(store: Store, blob: BlobRow) -> tuple[Reason, str] | None:
    try:
        size = os.lstat(store.paths.blob(blob.digest.sha256)).st_size
    except FileNotFoundError:
        return Reason.MISSING, f"blob {blob.digest.sha256} is missing"
    if size != blob.digest.size:
        return (
            Reason.TRUNCATED,
            f"blob {blob.digest.sha256} has {size} bytes, not {blob.digest.size}",
        )
    return None


def _wrong_bytes(store: Store, blob: BlobRow) -> tuple[Reason, str] | None:
    try:
        data = store.blobs.read(blob.digest, blob.checksum)
    except DamagedBlobError as error:
        return error.reason, error.message
    if Digest.of(data) != blob.digest:
        return Reason.CHECKSUM, f"blob {blob.digest.sha256} is not what its name says"
    return None
