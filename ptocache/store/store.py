"""Publish, find, remove: the store as the service sees it.

Locks, in the order in which they may be taken: ``_change`` (one publish, eviction or invalidation at a
time: a blob must not be removed between the rename and the commit of another entry that needs it), then
``_counting``, then the index's own, then ``_hot_lock``. The path of a hit takes ``_hot_lock`` alone, for
a few lookups.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import entry as entry_document
from ..accounting import Budget, Recency
from ..bases import is_bound_to
from ..contents import Conditions
from ..digest import Digest
from ..errors import PtocacheError, StoreDamagedError, StoreError, StoreUnusableError
from ..model import Artifact, StoredOutput
from ..outcome import Cache, Event, Reason
from ..paths import INDEX_PATH_LIMIT
from ..signature import Signature, of_descriptor
from ..tally import Slot, Tally
from ..wire import INLINE_BYTES
from .blobs import Blobs, DamagedBlobError, Pending, disk_bytes, remove_tree
from .health import Health, failure_reason, is_damage, name_of
from .index import BlobRow, Index, Row, Selection, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..action import Action, ActionKey
    from ..contents import Contents
    from ..entry import Entry
    from ..model import Answer
    from ..paths import StorePaths
    from ..toolchain import CheckedOutputs

VERSION = "1"
_VERSION_LENGTH = 40
_ENTRY_OVERHEAD_BYTES = 2048
_HOT_DESCRIPTORS = 256
_RETRY_S = 2.0
"""Between two attempts to bring an index that failed back into use."""
_log = logging.getLogger("ptocache.store")


class Loaded(NamedTuple):
    """An entry in memory: verified, its small outputs inline and its large ones open."""

    id: int
    entry: Entry
    conditions: Conditions
    artifacts: tuple[Artifact, ...]
    verified: tuple[Signature | None, ...]
    """Per artifact the signature under which its file was verified; ``None`` for inline bytes."""
    weight: int
    """Bytes that it takes in memory."""
    answers: list[Answer]
    """Room for the one answer that it gives whenever it is hit, made once."""

    def intact(self) -> bool:
        """True unless the file behind a large output was written to since it was verified."""
        for artifact, signature in zip(self.artifacts, self.verified, strict=True):
            if artifact.file is not None and of_descriptor(artifact.file.fileno()) != signature:
                return False
        return True


class Published(NamedTuple):
    """What became of a publish: a loaded entry, or why there is none."""

    loaded: Loaded | None
    reason: Reason = Reason.NONE
    detail: str = ""


class Removed(NamedTuple):
    """What a removal took away."""

    entries: int
    bytes: int


class Rejected(NamedTuple):
    """What was taken away because a loader refused it."""

    entries: int
    bytes: int
    cache: Cache
    outputs: tuple[frozenset[tuple[str, str]], ...]
    """Of each entry its outputs, as (name, SHA-256)."""


class Store:
    """The store of one root, opened for writing by the one daemon that holds its lock."""

    def __init__(
        self,
        paths: StorePaths,
        *,
        limit: int,
        low_water: float,
        memory: int,
        fsync: bool,
        tally: Tally,
    ) -> None:
        """Open or create the store.

        Raises :class:`~ptocache.errors.StoreUnusableError` if it cannot be used at all. A damaged
        index goes to the quarantine, and the entries whose documents are whole are taken in again. An
        index that can be read and not written (no room, a read-only place, a foreign lock) gives hits
        alone: :attr:`read_only`.
        """
        self.paths = paths
        self.tally = tally
        self.health = Health(paths.root)
        prepare_root(paths)
        self.blobs = Blobs(paths, fsync=fsync)
        self._unremoved: set[str] = set()
        """Blobs that no entry needs and that could not be removed yet."""
        self._suspect = False
        """True if the index contradicts itself, and is to be built anew."""
        self._unadopted = False
        """True while entries may lie on disk that a new index does not know."""
        self._next_try_s = 0.0
        self.index = self._open_index()
        # A lost index as well leaves whole entries behind, and files that nothing else would count.
        rebuilt = self.index.created
        self._change = threading.Lock()
        self._hot_lock = threading.Lock()
        # Counts on their way from memory to the index are in neither: nobody adds them up meanwhile.
        self._counting = threading.Lock()
        self._hot: OrderedDict[int, Loaded] = OrderedDict()
        self._by_action: dict[str, list[int]] = {}
        self._hot_bytes = 0
        self._hot_files = 0
        self._memory = memory
        self.recency = Recency()
        self.budget = Budget(limit, low_water)
        self.was_clean = True
        """True if the last daemon closed the store in order: then there is nothing to sweep."""
        try:
            if rebuilt:
                self._unadopted = True
                self.adopt()
            self.budget.reset(self.index.totals()[1])
            self.was_clean = self.index.is_clean() and not rebuilt
            if not self.read_only:
                self.index.set_clean(False)
        except sqlite3.Error as error:
            self._begin_wrongly(error)

    @property
    def read_only(self) -> bool:
        """True while the index is not to be written: hits are given, nothing is stored or removed."""
        return self.index.read_only

    def _open_index(self) -> Index:
        paths = self.paths
        if paths.read_only:
            _log.warning("the store %s cannot be written to: it is only read", paths.root)
            return self._index_to_read()
        try:
            return Index(paths.index)
        except StoreDamagedError as error:
            _log.error("%s; it goes to the quarantine and is built anew", error)
            quarantine_index(paths)
            self.tally.event(Cache.BINARY, Event.CORRUPT, Reason.BAD_DOCUMENT)
            return Index(paths.index)
        except StoreUnusableError as error:
            if not isinstance(error.__cause__, sqlite3.Error) or not os.path.isfile(paths.index):
                raise
            try:
                found = self._index_to_read()
            except StoreError:
                raise error from error.__cause__
            self.health.note(error, "open", "the store is only read until it can be written to")
            return found

    def _index_to_read(self) -> Index:
        try:
            return Index(self.paths.index, read_only=True)
        except StoreDamagedError as error:
            raise StoreUnusableError(
                f"the store {self.paths.root} cannot be written to, and its index is damaged",
                hint="make it writable, so that the index can be built anew",
                path=self.paths.index,
            ) from error

    def _begin_wrongly(self, error: sqlite3.Error) -> None:
        """The index opens and cannot be used as it is."""
        self.health.note(error, "open", "the index cannot be written to, or read, at the start")
        try:
            if is_damage(error):
                self._rebuild()
                return
            self.index.reopen(read_only=True)
            self.budget.reset(self.index.totals()[1])
        except (sqlite3.Error, StoreError) as worse:
            self.index.close()
            raise StoreUnusableError(
                f"the index {self.paths.index} cannot be used: {error}",
                hint="check the permissions of the store's directory, and its free space",
                path=self.paths.index,
            ) from worse
        self._next_try_s = time.monotonic() + _RETRY_S

    def close(self) -> None:
        """Write what was collected and close the index."""
        self.flush()
        with self._hot_lock:
            self._hot.clear()
            self._by_action.clear()
        if not self.read_only:
            with contextlib.suppress(sqlite3.Error):
                self.index.set_clean(not self._unremoved)
        self.index.close()
        if self.paths.owns_aside():
            remove_tree(self.paths.spare)
            with contextlib.suppress(OSError):
                os.rmdir(self.paths.aside)

    # --- find

    def find_hot(
        self, key: ActionKey, contents: Contents, source_dir: str, bases: tuple[str, ...] = ()
    ) -> Loaded | None:
        """An entry in memory whose conditions hold. No lock but the shortest, no subprocess, no read
        of anything but stamps."""
        ids = self._by_action.get(key)
        if not ids:
            return None
        for entry_id in tuple(ids):
            loaded = self._used(entry_id, contents, source_dir, bases)
            if loaded is not None:
                return loaded
        return None

    def find_again(
        self, entry_id: int, key: ActionKey, contents: Contents, source_dir: str,
        bases: tuple[str, ...] = (),
    ) -> Loaded | None:  # fmt: skip
        """The same for one entry, that answered this key before."""
        # A number may be that of another entry by now.
        if entry_id not in self._by_action.get(key, ()):
            return None
        return self._used(entry_id, contents, source_dir, bases)

    def _used(
        self, entry_id: int, contents: Contents, source_dir: str, bases: tuple[str, ...]
    ) -> Loaded | None:
        loaded = self._hot.get(entry_id)
        if loaded is None or not _answers(
            loaded.entry, loaded.conditions, contents, source_dir, bases
        ):
            return None
        if not loaded.intact():
            self._forget([entry_id])
            return None
        with self._hot_lock:
            if entry_id in self._hot:
                self._hot.move_to_end(entry_id)
        self.recency.touch(entry_id, time.time())
        return loaded

    def find(
        self, key: ActionKey, contents: Contents, source_dir: str, cache: Cache = Cache.BINARY,
        bases: tuple[str, ...] = (),
    ) -> Loaded | None:  # fmt: skip
        """An entry on disk whose conditions hold, verified and taken into memory. An index that cannot
        be read has none: that is counted, and never raised."""
        try:
            return self._find(key, contents, source_dir, cache, bases)
        except sqlite3.Error as error:
            self._index_failed(error, "read", "an entry could not be looked for")
            self.tally.event(cache, Event.CORRUPT, Reason.IO_ERROR)
            return None

    def _find(
        self, key: ActionKey, contents: Contents, source_dir: str, cache: Cache,
        bases: tuple[str, ...],
    ) -> Loaded | None:  # fmt: skip
        for row in self.index.candidates(key):
            found = self._read(row, cache)
            if found is not None and found.action_key != key:
                # SQLite has no checksums: a page that was written over may give another entry's row.
                self.tally.event(cache, Event.CORRUPT, Reason.BAD_DOCUMENT)
                self._suspect = True
                continue
            if found is None or not _answers(
                found, Conditions(found.dependencies), contents, source_dir, bases
            ):
                continue
            loaded = self._load(row, cache, found)
            if loaded is not None:
                self._keep(loaded)
                self.recency.touch(loaded.id, time.time())
                return loaded
        return None

    def read_entry(self, row: Row) -> Entry:
        """The document of an entry. Raises :class:`~ptocache.errors.StoreDamagedError`."""
        return read_entry(self.index, self.blobs, row)

    def _read(self, row: Row, cache: Cache) -> Entry | None:
        """The document of an entry; a damaged one takes the entry with it."""
        try:
            return self.read_entry(row)
        except StoreDamagedError as error:
            self.heal(row, getattr(error, "reason", Reason.BAD_DOCUMENT), str(error))
        except OSError as error:
            self._unreadable(row, cache, error)
        return None

    def _load(self, row: Row, cache: Cache, found: Entry) -> Loaded | None:
        """Read and verify an entry's outputs; a damaged one is counted, quarantined and removed."""
        artifacts: list[Artifact] = []
        verified: list[Signature | None] = []
        try:
            for item in found.outputs:
                if item.digest.size <= INLINE_BYTES:
                    data = self.blobs.read(item.digest, item.checksum)
                    artifacts.append(Artifact(item.name, item.digest, item.mode, data))
                    verified.append(None)
                else:
                    opened = self.blobs.open(item.digest, item.checksum)
                    artifacts.append(Artifact(item.name, item.digest, item.mode, None, opened.file))
                    verified.append(opened.signature)
        except DamagedBlobError as error:
            self.heal(row, error.reason, str(error))
            return None
        except OSError as error:
            self._unreadable(row, cache, error)
            return None
        return _loaded(row.id, found, artifacts, verified)

    def _unreadable(self, row: Row, cache: Cache, error: OSError) -> None:
        self.health.note(error, "read", f"entry {row.key[:12]} cannot be read")
        self.tally.event(cache, Event.CORRUPT, Reason.IO_ERROR)

    def heal(self, row: Row, reason: Reason, message: str) -> None:
        """Take a damaged entry out, with every entry that shares its damage."""
        try:
            self._heal(row, reason, message)
        except (OSError, sqlite3.Error) as error:
            self._forget([row.id])
            self._index_failed(error, "remove", f"the damaged entry {row.key[:12]} stays")

    def _heal(self, row: Row, reason: Reason, message: str) -> None:
        with self._change:
            if not self.index.has_entry(row.id):
                # Removed, files last, while it was being read, or healed by another request.
                return
            _log.warning("entry %s is damaged and will be made again: %s", row.key[:12], message)
            self.tally.event(Cache(row.cache), Event.CORRUPT, reason)
            if self.read_only:
                self._forget([row.id])
                return
            ids = {row.id}
            for sha256, blob in self.index.blob_rows(row.id).items():
                try:
                    self.blobs.read(blob.digest, blob.checksum)
                except DamagedBlobError as error:
                    self.blobs.quarantine(sha256, error.reason)
                    ids.update(self.index.entries_of_blob(sha256))
                except OSError:
                    continue
            self._forget(ids)
            orphans, freed = self.index.delete(ids)
            self._remove_blobs(orphans)
            self.budget.freed(freed)

    # --- memory

    def _keep(self, loaded: Loaded) -> None:
        files = sum(1 for item in loaded.artifacts if item.file is not None)
        with self._hot_lock:
            self._drop_locked(loaded.id)
            self._hot[loaded.id] = loaded
            self._by_action.setdefault(loaded.entry.action_key, []).insert(0, loaded.id)
            self._hot_bytes += loaded.weight
            self._hot_files += files
            while self._hot and (
                self._hot_bytes > self._memory or self._hot_files > _HOT_DESCRIPTORS
            ):
                self._drop_locked(next(iter(self._hot)))
        # Removed between its look-up and now: whoever removed it could not forget it yet.
        self._forget_removed([loaded.id])

    def _drop_locked(self, entry_id: int) -> None:
        loaded = self._hot.pop(entry_id, None)
        if loaded is None:
            return
        self._hot_bytes -= loaded.weight
        self._hot_files -= sum(1 for item in loaded.artifacts if item.file is not None)
        ids = self._by_action.get(loaded.entry.action_key, [])
        if entry_id in ids:
            ids.remove(entry_id)
        if not ids:
            self._by_action.pop(loaded.entry.action_key, None)

    def _forget(self, ids: Iterable[int]) -> None:
        with self._hot_lock:
            for entry_id in ids:
                self._drop_locked(entry_id)

    def _forget_removed(self, ids: Iterable[int]) -> None:
        """What is no entry any more must not answer from memory."""
        ids = tuple(ids)
        try:
            gone = [item for item in ids if not self.index.has_entry(item)]
        except sqlite3.Error as error:
            self._index_failed(error, "read", "entries in memory could not be confirmed")
            gone = list(ids)
        self._forget(gone)

    # --- publish

    def publish(
        self, action: Action, entry: Entry, checked: CheckedOutputs, generation: int,
        cache: Cache = Cache.BINARY,
    ) -> Published:  # fmt: skip
        """Make an entry of checked outputs: whole or not at all.

        ``entry.outputs`` is filled in here, from the bytes. Never raises for the store's own
        troubles: they are counted, and the caller still has its result.
        """
        if self.read_only:
            return Published(None, Reason.READ_ONLY, "the store is read-only")
        if generation < 0:
            self.tally.event(cache, Event.STORE_FAILURE, Reason.IO_ERROR)
            return Published(None, Reason.STORE_FAILED, "the index could not be read")
        size = sum(len(item.data) for item in checked.outputs) + _ENTRY_OVERHEAD_BYTES
        if not self.budget.fits(size):
            return Published(None, Reason.TOO_LARGE, f"{size} bytes, limit {self.budget.limit}")
        self.budget.reserve(size)
        pending: list[Pending] = []
        written = 0
        try:
            for item in checked.outputs:
                pending.append(self.blobs.write(item.data))
            entry = entry._replace(
                outputs=tuple(
                    StoredOutput(item.name, blob.digest, item.mode, blob.checksum)
                    for item, blob in zip(checked.outputs, pending, strict=True)
                )
            )
            pending.append(self.blobs.write(entry_document.encode(entry)))
            row, written = self._commit(action, entry, pending, generation, cache)
        except (OSError, sqlite3.Error) as error:
            self._index_failed(error, "publish", f"entry {action.key[:12]} could not be stored")
            self.tally.event(cache, Event.STORE_FAILURE, failure_reason(error))
            return Published(None, Reason.STORE_FAILED, str(error))
        finally:
            for blob in pending:
                self.blobs.discard(blob)
            self.budget.commit(size, written)
        if row is None:
            return Published(None, Reason.INVALIDATED, "an invalidate came meanwhile")
        self.health.well("publish")
        return self._read_back(row, cache)

    def _commit(
        self, action: Action, entry: Entry, pending: list[Pending], generation: int, cache: Cache
    ) -> tuple[Row | None, int]:
        """Make blobs and entry visible; returns its row, or ``None`` if an ``invalidate`` came, and the
        bytes on disk that it added."""
        key = entry.key
        now = time.time()
        row = Row(
            0, key, action.key, cache, action.document["toolchain"],
            plain(action.document["arch"]), plain(entry.kernel), pending[-1].digest.sha256,
            now, now, 0, entry.compile_ms, sum(blob.digest.size for blob in pending),
        )  # fmt: skip
        rows = [BlobRow(blob.digest, blob.disk, blob.checksum) for blob in pending]
        with self._change:
            if self.index.generation() != generation:
                return None, 0
            try:
                for blob in pending:
                    self.blobs.place(blob)
                inserted = self.index.insert(row, rows, generation)
            except (OSError, sqlite3.Error):
                self._remove_unneeded(pending)
                raise
            if inserted is None:
                self._remove_unneeded(pending)
                return None, 0
            entry_id, added, orphans = inserted
            # The entry that this one replaced, if there was one.
            self._forget_removed(tuple(self._by_action.get(action.key, ())))
            self._remove_blobs(orphans)
        return row._replace(id=entry_id), added

    def _read_back(self, row: Row, cache: Cache) -> Published:
        """The new entry as its readers will find it."""
        try:
            written = self._read(row, cache)
            loaded = self._load(row, cache, written) if written is not None else None
        except sqlite3.Error as error:
            self._index_failed(error, "read", f"the new entry {row.key[:12]} cannot be read back")
            loaded = None
        if loaded is None:
            self.tally.event(cache, Event.STORE_FAILURE, Reason.IO_ERROR)
            return Published(None, Reason.STORE_FAILED, "the new entry cannot be read back")
        self._keep(loaded)
        return Published(loaded)

    def _remove_unneeded(self, pending: list[Pending]) -> None:
        self._remove_blobs(
            blob.digest.sha256 for blob in pending if not self._index_has(blob.digest.sha256)
        )

    def _index_has(self, sha256: str) -> bool:
        # When even this fails, the blob stays: a sweep removes what nothing needs.
        try:
            return self.index.has_blob(sha256)
        except sqlite3.Error:
            return True

    def _remove_blobs(self, names: Iterable[str]) -> None:
        for sha256 in names:
            try:
                self.blobs.remove(sha256)
            except OSError as error:
                self._unremoved.add(sha256)
                self.health.note(error, "remove", f"blob {sha256[:12]} cannot be removed yet")

    # --- remove

    def remove(self, rows: Iterable[Row]) -> Removed:
        """Remove entries (an eviction): index first, then files, so that a crash leaves orphans and
        never an entry without its bytes. Raises :class:`~ptocache.errors.StoreError`."""
        ids = [row.id for row in rows]
        with self._change, self._changing("remove"):
            orphans, freed = self.index.delete(ids)
            self._forget(ids)
            self._remove_blobs(orphans)
        self.budget.freed(freed)
        return Removed(len(ids), freed)

    def invalidate(self, selection: Selection) -> Removed:
        """Remove the entries meant; no compile begun before this publishes after it. Raises
        :class:`~ptocache.errors.StoreError` if nothing was removed."""
        self.flush()
        with self._change, self._changing("remove"):
            ids, orphans, freed = self.index.invalidate(selection)
            self._forget(ids)
            self._remove_blobs(orphans)
        self.budget.freed(freed)
        return Removed(len(ids), freed)

    def holds(self, key: str, outputs: frozenset[tuple[str, str]]) -> bool:
        """True if an entry of this action has these very outputs, as (name, SHA-256). Raises
        :class:`~ptocache.errors.StoreError`."""
        with self._asking("read"):
            return bool(self._with_outputs(key, outputs))

    def reject(self, key: str, outputs: frozenset[tuple[str, str]]) -> Rejected:
        """Remove the entries of this action that have these very outputs, as (name, SHA-256), and the
        blobs that no other entry needs. Raises :class:`~ptocache.errors.StoreError` if none was removed."""
        with self._change, self._changing("remove"):
            meant = self._with_outputs(key, outputs)
            orphans, freed = self.index.delete(row.id for row, _ in meant)
            self._forget(row.id for row, _ in meant)
            self._remove_blobs(orphans)
        self.budget.freed(freed)
        cache = Cache(meant[0][0].cache) if meant else Cache.BINARY
        return Rejected(len(meant), freed, cache, tuple(found for _, found in meant))

    def _with_outputs(
        self, key: str, outputs: frozenset[tuple[str, str]]
    ) -> list[tuple[Row, frozenset[tuple[str, str]]]]:
        meant = []
        for row in self.index.select(Selection(keys=(key,))):
            # One that cannot be read heals when it is looked for.
            with contextlib.suppress(StoreDamagedError, OSError):
                hot = self._hot.get(row.id)
                entry = hot.entry if hot is not None else self.read_entry(row)
                found = frozenset((item.name, item.digest.sha256) for item in entry.outputs)
                if entry.action_key == key and outputs <= found:
                    meant.append((row, found))
        return meant

    @contextlib.contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        """Turns what the index says into an error for whoever asked for the change."""
        if self.read_only:
            raise StoreUnusableError(
                f"the store {self.paths.root} is read-only",
                hint="make room, or check its permissions; then try again",
                path=self.paths.root,
            )
        with self._asking(doing):
            yield

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._index_failed(error, doing, f"the index failed ({doing})")
            raise StoreError(
                f"the index {self.paths.index} failed: {error}",
                hint="check the disk's space and health, and try again",
                path=self.paths.index,
                error=name_of(error),
            ) from error

    # --- upkeep

    def generation(self) -> int:
        """What a publish must find unchanged (:meth:`Index.generation`); -1 if it cannot be read: then
        nothing can be published."""
        try:
            return self.index.generation()
        except sqlite3.Error as error:
            self._index_failed(error, "read", "the generation could not be read")
            return -1

    def scratch_failed(self, error: Exception) -> str:
        """The spare place for private directories, because :attr:`StorePaths.tmp` refused one.

        Raises :class:`OSError` or :class:`~ptocache.errors.PtocacheError` if there is none."""
        self.health.note(error, "scratch", "a compile goes on in another place")
        self.paths.make_aside(self.paths.spare)
        return self.paths.spare

    def _index_failed(self, error: Exception, doing: str, message: str) -> None:
        self.health.note(error, doing, message)
        self._suspect = self._suspect or is_damage(error)

    def flush(self) -> None:
        """Write collected uses and counts, and see to what went wrong before; what cannot be done now
        stays for the next time."""
        self._recover()
        self.blobs.tidy()
        if self.read_only:
            return
        self._remove_late()
        uses = self.recency.drain()
        try:
            self.index.touch(uses)
        except sqlite3.Error as error:
            self.recency.restore(uses)
            self._index_failed(error, "statistics", "last uses could not be written")
        try:
            with self._counting:
                counts = self._write_counts()
        except sqlite3.Error as error:
            self._index_failed(error, "statistics", "statistics could not be written")
        else:
            if counts:
                self.health.well("statistics")

    def _write_counts(self) -> dict[Slot, int]:
        counts = self.tally.drain()
        try:
            self.index.add_counts(counts)
        except sqlite3.Error:
            self.tally.restore(counts)
            raise
        return counts

    def _remove_late(self) -> None:
        if not self._unremoved:
            return
        with self._change:
            names, self._unremoved = self._unremoved, set()
            self._remove_blobs(name for name in names if not self._index_has(name))

    def _recover(self) -> None:
        """Build a damaged index anew, and write again once that is possible; not too often."""
        lost = self._suspect or (self.read_only and not self.paths.read_only)
        if not lost or time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + _RETRY_S
        try:
            if self._suspect and not self.paths.read_only:
                self._rebuild()
            elif self.read_only and not self.paths.read_only:
                self._write_again()
        except (OSError, sqlite3.Error, StoreError) as error:
            self.health.note(error, "open", "the index is still out of use")

    def _write_again(self) -> None:
        with self._change:
            try:
                self.index.reopen(read_only=False)
                if self._unadopted:
                    self.adopt()
                self.index.set_clean(False)
            except (sqlite3.Error, StoreError):
                self.index.reopen(read_only=True)
                raise
            self.budget.reset(self.index.totals()[1])
        self.health.well("open")

    def _rebuild(self) -> None:
        """Set a damaged index aside under a running daemon, and take in what lies whole on disk."""
        _log.error("the index %s is damaged: it goes to the quarantine", self.paths.index)
        with self._change:
            try:
                counts = self.index.counts()
            except sqlite3.Error:
                counts = {}
            self.index.reopen(read_only=False, before=lambda: quarantine_index(self.paths))
            self._suspect = False
            with self._hot_lock:
                for entry_id in tuple(self._hot):
                    self._drop_locked(entry_id)
            self.recency.drain()
            self.tally.event(Cache.BINARY, Event.CORRUPT, Reason.BAD_DOCUMENT)
            self.tally.restore(counts)
            self._unadopted = True
            self.adopt()
            self.budget.reset(self.index.totals()[1])
            self.index.set_clean(False)
        self.health.well("open")

    def counts(self) -> dict[Slot, int]:
        """Lifetime statistics, the ones not yet written included. Raises
        :class:`~ptocache.errors.StoreError` if they cannot be read."""
        with self._asking("statistics"), self._counting:
            found = self.index.counts()
            fresh = self.tally.peek()
        for slot, count in fresh.items():
            plain = Slot(int(slot.cache), slot.kind, int(slot.what), int(slot.reason))
            found[plain] = found.get(plain, 0) + count
        return found

    def reset_counts(self) -> None:
        """Start the statistics anew. Raises :class:`~ptocache.errors.StoreError` if that cannot be."""
        with self._changing("statistics"), self._counting:
            self.index.clear_counts()
            self.tally.drain()

    def sweep_unfinished(self) -> int:
        """Remove what a dead daemon left in ``tmp/``; only before this one compiles. How many."""
        try:
            with os.scandir(self.paths.tmp) as found:
                items = list(found)
        except OSError as error:
            self.health.note(error, "remove", "what a dead daemon left could not be looked for")
            items = []
        for item in items:
            remove_tree(item.path)
        if self.paths.spare != self.paths.tmp and self.paths.owns_aside():
            remove_tree(self.paths.spare)
        return len(items)

    def sweep_orphans(self) -> int:
        """Remove blobs that no entry needs (a crash between file and index); returns how many."""
        removed = 0
        if self.read_only:
            return removed
        try:
            for sha256, _ in self.blobs.walk():
                if self.index.has_blob(sha256):
                    continue
                # Looked at again under the lock: a publish may be between its rename and its commit.
                with self._change:
                    if not self.index.has_blob(sha256):
                        self._remove_blobs([sha256])
                        removed += 1
        except sqlite3.Error as error:
            self._index_failed(error, "read", "files that nothing needs could not be looked for")
        return removed

    def adopt(self) -> int:
        """Take in the entries whose documents and outputs lie whole on disk; returns how many."""
        taken = 0
        for sha256, size in self.blobs.walk():
            document = self._document(sha256, size)
            if document is None:
                continue
            found, check = document
            blobs = [BlobRow(Digest(sha256, size), disk_bytes(size), check)]
            blobs += [
                BlobRow(item.digest, disk_bytes(item.digest.size), item.checksum)
                for item in found.outputs
            ]
            if any(not _same_size(self.paths.blob(b.digest.sha256), b.digest.size) for b in blobs):
                continue
            key = found.action_key
            cache = Cache.KERNEL if found.action.get("kind") == Cache.KERNEL.label else Cache.BINARY
            row = Row(
                0, found.key, key, cache, str(found.action.get("toolchain", "")),
                str(found.action.get("arch", "")), plain(found.kernel), sha256,
                found.created_s, found.created_s, 0, found.compile_ms,
                sum(blob.digest.size for blob in blobs),
            )  # fmt: skip
            self.index.insert(row, blobs, self.index.generation())
            taken += 1
        self._unadopted = False
        return taken

    def _document(self, sha256: str, size: int) -> tuple[Entry, bytes] | None:
        from .blobs import checksum

        try:
            with open(self.paths.blob(sha256), "rb") as file:
                if file.read(len(entry_document.MAGIC)) != entry_document.MAGIC:
                    return None
                file.seek(0)
                data = file.read()
        except OSError:
            return None
        if Digest.of(data) != Digest(sha256, size):
            return None
        try:
            return entry_document.decode(data), checksum(data)
        except StoreDamagedError:
            return None

    def status(self) -> dict[str, Any]:
        """The ``store`` part of ``stats --json`` without ``evicted``. Raises
        :class:`~ptocache.errors.StoreError` if the index cannot be read."""
        with self._asking("statistics"):
            entries, disk = self.index.totals()
        return {"entries": entries, "bytes": disk, "limit": self.budget.limit}

    def condition(self) -> dict[str, Any]:
        """The ``health`` part of ``stats`` and ``status``; needs no index."""
        return {"read_only": self.read_only, **self.health.report()}


def _answers(
    entry: Entry,
    conditions: Conditions,
    contents: Contents,
    source_dir: str,
    bases: tuple[str, ...],
) -> bool:
    if entry.source_dir not in ("", source_dir):
        return False
    if entry.bound and not is_bound_to(entry.bound, bases):
        return False
    return conditions.hold(contents, source_dir, bases)


def read_entry(index: Index, blobs: Blobs, row: Row) -> Entry:
    """The document of an entry. Raises :class:`~ptocache.errors.StoreDamagedError`."""
    blob = index.blob_rows(row.id).get(row.document)
    if blob is None:
        raise StoreDamagedError(f"entry {row.key} has no document")
    return entry_document.decode(blobs.read(blob.digest, blob.checksum))


def prepare_root(paths: StorePaths) -> None:
    """Create the folders of a store; raises :class:`~ptocache.errors.StoreUnusableError`."""
    _verify_length(paths)
    try:
        _make_folders(paths)
        with open(paths.version, encoding="ascii", errors="replace") as file:
            found = file.read(_VERSION_LENGTH).strip()
    except PtocacheError:
        raise
    except OSError as error:
        raise StoreUnusableError(
            f"the store {paths.root} cannot be used: {error.strerror or error}",
            hint="check its permissions, or choose another place with PTOCACHE_DIR",
            path=paths.root,
        ) from error
    if found != VERSION:
        raise StoreUnusableError(
            f"the store {paths.root} has version {found!r}, this ptocache knows {VERSION!r}",
            hint="use the ptocache that made it, or another store (PTOCACHE_DIR)",
            path=paths.root,
        )


def _verify_length(paths: StorePaths) -> None:
    """SQLite would only say that it cannot open the index."""
    length = len(os.fsencode(paths.index))
    if length > INDEX_PATH_LIMIT:
        raise StoreUnusableError(
            f"the index {paths.index} has a path of {length} bytes, the limit is {INDEX_PATH_LIMIT}",
            hint="choose a place with a shorter path with PTOCACHE_DIR",
            path=paths.root,
        )


def _make_folders(paths: StorePaths) -> None:
    if paths.read_only:
        _verify_owner(paths)
        paths.make_aside(paths.tmp)
        return
    os.makedirs(paths.root, mode=0o700, exist_ok=True)
    _verify_owner(paths)
    for directory in (paths.blobs, paths.tmp, paths.quarantine):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    _write_once(paths.cachedir_tag, paths.tag_bytes)
    _write_once(paths.version, VERSION.encode() + b"\n")


def _verify_owner(paths: StorePaths) -> None:
    """A store that somebody else can write to may hold what somebody else compiled."""
    info = os.stat(paths.root)
    wrong = ""
    # What root has put into an image or a mount is as good as root's word on anything else.
    trusted = (os.geteuid(), 0) if paths.read_only else (os.geteuid(),)
    if info.st_uid not in trusted:
        wrong = f"belongs to user {info.st_uid}, not to {os.geteuid()}"
    elif stat.S_IMODE(info.st_mode) & 0o002:
        wrong = "can be written to by everybody"
    if wrong:
        raise StoreUnusableError(
            f"the store {paths.root} {wrong}",
            hint="choose a place of your own with PTOCACHE_DIR",
            path=paths.root,
        )


def quarantine_index(paths: StorePaths) -> None:
    """Move a damaged index out of the way, with its journal files.

    Raises :class:`~ptocache.errors.StoreUnusableError` if it cannot be moved."""
    stamp = f"{time.time_ns()}-{os.getpid()}"
    try:
        os.makedirs(paths.quarantine, mode=0o700, exist_ok=True)
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(
                    paths.index + suffix, os.path.join(paths.quarantine, f"index-{stamp}{suffix}")
                )
    except OSError as error:
        raise StoreUnusableError(
            f"the damaged index {paths.index} cannot be set aside: {error.strerror}",
            hint="move it away by hand, with its -wal and -shm files",
            path=paths.index,
        ) from error


def _write_once(path: str, content: bytes) -> None:
    """Make a file that never changes. Others may do so at this moment: nobody finds half of it."""
    if os.path.exists(path):
        return
    partial = f"{path}.{os.getpid()}"
    try:
        with open(partial, "wb") as file:
            file.write(content)
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _same_size(path: str, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except OSError:
        return False


def _loaded(
    entry_id: int, entry: Entry, artifacts: list[Artifact], verified: list[Signature | None]
) -> Loaded:
    # Twice: an answer ready to be sent holds them once more.
    weight = _ENTRY_OVERHEAD_BYTES + 2 * sum(len(item.data or b"") for item in artifacts)
    weight += len(entry.log.stdout) + len(entry.log.stderr) + 256 * len(entry.dependencies)
    return Loaded(
        entry_id,
        entry,
        Conditions(entry.dependencies),
        tuple(artifacts),
        tuple(verified),
        weight,
        [],
    )
