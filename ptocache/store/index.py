"""The index of entries: one SQLite file. An entry exists when its transaction has committed.

Schema, version 1 (times in seconds since the epoch, sizes in bytes):

    meta(key, value)                    schema, generation, clean
    entries(id, key, action, cache, toolchain, arch, kernel, document, created_s, last_s, hits,
            compile_ms, bytes)          one row an entry; ``document`` is a blob (ptocache.entry)
    blobs(sha256, size, disk, checksum) one row a blob
    entry_blobs(entry, blob)            which entries need which blobs, their documents included
    counts(cache, kind, what, reason, n)   lifetime statistics (ptocache.tally)
    files(path, signature, sha256)      digests of large files (ptocache.contents)
    installations(key, record)          located toolchains (ptocache.identity)

History
    1   the first form.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from ..digest import Digest, is_sha256
from ..errors import StoreDamagedError, StoreUnusableError
from ..outcome import Cache
from ..tally import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ..accounting import Use
    from ..signature import Signature

SCHEMA = 1
BUSY_MS = 2000
_CANDIDATES = 32
# (bytes of a record, the newest of that size or more that stay): a tree of 20,000 files takes 2 MB.
_INSTALLATIONS_KEPT = ((256 << 10, 16), (0, 2048))

_CREATE = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entries(
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, action TEXT NOT NULL,
    cache INTEGER NOT NULL, toolchain TEXT NOT NULL, arch TEXT NOT NULL, kernel TEXT NOT NULL,
    document TEXT NOT NULL, created_s REAL NOT NULL, last_s REAL NOT NULL,
    hits INTEGER NOT NULL DEFAULT 0, compile_ms INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX entries_action ON entries(action);
CREATE INDEX entries_last ON entries(last_s);
CREATE INDEX entries_kernel ON entries(kernel, created_s);
CREATE TABLE blobs(
    sha256 TEXT PRIMARY KEY, size INTEGER NOT NULL, disk INTEGER NOT NULL, checksum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE entry_blobs(
    entry INTEGER NOT NULL, blob TEXT NOT NULL, PRIMARY KEY(entry, blob)) WITHOUT ROWID;
CREATE INDEX entry_blobs_blob ON entry_blobs(blob);
CREATE TABLE counts(
    cache INTEGER NOT NULL, kind TEXT NOT NULL, what INTEGER NOT NULL, reason INTEGER NOT NULL,
    n INTEGER NOT NULL, PRIMARY KEY(cache, kind, what, reason)) WITHOUT ROWID;
CREATE TABLE files(path TEXT PRIMARY KEY, signature TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE installations(key TEXT PRIMARY KEY, record BLOB NOT NULL, saved_s REAL NOT NULL) WITHOUT ROWID;
"""


class Row(NamedTuple):
    """An entry as the index knows it."""

    id: int
    key: str
    action: str
    cache: int
    toolchain: str
    arch: str
    kernel: str
    document: str
    created_s: float
    last_s: float
    hits: int
    compile_ms: int
    bytes: int
    """Bytes of its outputs and its document."""


_COLUMNS = ", ".join(Row._fields)


class BlobRow(NamedTuple):
    """A blob as the index knows it."""

    digest: Digest
    disk: int
    checksum: bytes


class Selection(NamedTuple):
    """Which entries an ``invalidate`` or a listing means; an empty one means none."""

    keys: tuple[str, ...] = ()
    """Action or entry keys, or prefixes of them."""
    toolchain: str = ""
    kernel: str = ""
    arch: str = ""
    older_than_s: float = 0.0
    """Not used since this time."""
    everything: bool = False

    def where(self) -> tuple[str, list[Any]]:
        """The SQL condition and its values."""
        parts: list[str] = []
        values: list[Any] = []
        if self.keys:
            one = "(key >= ? AND key < ?) OR (action >= ? AND action < ?)"
            parts.append("(" + " OR ".join([one] * len(self.keys)) + ")")
            for key in self.keys:
                values += [key, key + "g", key, key + "g"]
        for column in ("toolchain", "kernel", "arch"):
            wanted = getattr(self, column)
            if wanted:
                parts.append(f"{column} = ?")
                values.append(plain(wanted))
        if self.older_than_s:
            parts.append("last_s < ?")
            values.append(self.older_than_s)
        if not parts:
            return ("1" if self.everything else "0"), []
        return " AND ".join(parts), values


def plain(text: str) -> str:
    """A text as the index spells it: bytes that are no UTF-8 (of file names) as question marks."""
    return text.encode("utf-8", "replace").decode()


class Index:
    """One writing and one reading connection, each behind its lock; usable from any thread."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """Open or create the index.

        Raises :class:`~ptocache.errors.StoreDamagedError` for a file that is no usable index,
        :class:`~ptocache.errors.StoreUnusableError` for one of another version or out of reach.
        """
        self.path = path
        self.created = False
        """True if there was no index before."""
        self.schema = SCHEMA
        """The version that it was found to have."""
        self.read_only = read_only
        """True if it was opened for reading alone."""
        self.journal = ""
        """SQLite's journal mode: ``wal``, another one where that cannot work, empty if only read."""
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._generation = 0
        """The last one known; a new index begins with the next."""
        self._patient = True
        self._open()

    def _open(self) -> None:
        path, read_only = self.path, self.read_only
        if os.path.isdir(path):
            raise StoreDamagedError(f"the index {path} is a directory", path=path)
        try:
            self._writer = _connect(path, read_only)
            self._reader = _connect(path, read_only) if not read_only else self._writer
            self._check_schema(read_only)
            if not read_only:
                self.journal = str(self._writer.execute("PRAGMA journal_mode").fetchone()[0])
        except UnicodeError as error:
            # SQLite's own message quotes what it found.
            self._close_quietly()
            raise StoreDamagedError(f"the index {path} is damaged: {error}", path=path) from error
        except sqlite3.DatabaseError as error:
            self._close_quietly()
            if isinstance(error, sqlite3.OperationalError) and not _is_damage(error):
                raise StoreUnusableError(
                    f"the index {path} cannot be opened: {error}",
                    hint="another process has locked it: end that one, nobody but ptocache needs it"
                    if "locked" in str(error)
                    else "check the permissions of the store's directory, and its free space",
                    path=path,
                ) from error
            raise StoreDamagedError(f"the index {path} is damaged: {error}", path=path) from error

    def _check_schema(self, read_only: bool) -> None:
        writer = self._writer
        made = writer.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[
            0
        ]
        if not made:
            if read_only:
                raise StoreDamagedError(f"the index {self.path} is empty", path=self.path)
            writer.executescript(
                "BEGIN IMMEDIATE;" + _CREATE + f"INSERT INTO meta VALUES('schema', {SCHEMA});"
                f"INSERT INTO meta VALUES('generation', {self._generation + 1}); COMMIT;"
            )
            self.created = True
        row = writer.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        found = row[0] if row else None
        if found != SCHEMA:
            self._close_quietly()
            if found is None:
                raise StoreDamagedError(f"the index {self.path} has no schema", path=self.path)
            raise StoreUnusableError(
                f"the index {self.path} has schema {found}, this ptocache knows {SCHEMA}",
                hint="use the ptocache that made it, or another store (PTOCACHE_DIR)",
                path=self.path,
            )

    def reopen(self, *, read_only: bool, before: Callable[[], None] = lambda: None) -> None:
        """Close, call ``before()``, and open or create it once more. A new one begins with a generation
        that no running compile has seen. Raises what making an :class:`Index` does, and then every
        method raises :class:`sqlite3.Error` until this succeeds."""
        with self._write_lock, self._read_lock:
            self._close_quietly()
            before()
            self.read_only = read_only
            self._open()

    def close(self) -> None:
        """Close both connections."""
        with self._write_lock, self._read_lock:
            self._close_quietly()

    def _close_quietly(self) -> None:
        for name in ("_reader", "_writer"):
            connection = getattr(self, name, None)
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock:
            connection = self._writer
            self._begin(connection)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                # Some errors have rolled back by themselves; what is still open would be in the way of
                # every later transaction.
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if isinstance(error, (UnicodeError, TypeError)):
                    raise _malformed(str(error)) from error
                raise

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Wait for a foreign lock once, and not again before it was seen to be gone."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if self._patient and "locked" in str(error):
                self._patient = False
                connection.execute("PRAGMA busy_timeout = 0")
            raise
        if not self._patient:
            self._patient = True
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _read(self, sql: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self._read_lock:
            try:
                return self._reader.execute(sql, tuple(values)).fetchall()
            except UnicodeError as error:
                raise _malformed("a text is not UTF-8") from error

    # --- entries

    def candidates(self, action: str) -> list[Row]:
        """The entries of an action, last used first."""
        return [
            _row(row)
            for row in self._read(
                f"SELECT {_COLUMNS} FROM entries WHERE action = ? ORDER BY last_s DESC LIMIT ?",
                (action, _CANDIDATES),
            )
        ]

    def blob_rows(self, entry_id: int) -> dict[str, BlobRow]:
        """The blobs of an entry, by SHA-256."""
        rows = self._read(
            "SELECT b.sha256, b.size, b.disk, b.checksum FROM entry_blobs e JOIN blobs b"
            " ON b.sha256 = e.blob WHERE e.entry = ?",
            (entry_id,),
        )
        return {row[0]: _blob_row(row) for row in rows}

    def insert(
        self, row: Row, blobs: Iterable[BlobRow], generation: int
    ) -> tuple[int, int, list[str]] | None:
        """Add an entry (``row.id`` is ignored), replacing the one with its key.

        Returns (id, bytes added on disk, blobs that no entry needs any more), or ``None`` if the
        generation moved: then nothing is written.
        """
        with self._transaction() as connection:
            if _generation(connection) != generation:
                return None
            old = connection.execute("SELECT id FROM entries WHERE key = ?", (row.key,)).fetchone()
            cursor = connection.cursor()
            if old:
                cursor.execute("DELETE FROM entries WHERE id = ?", old)
                cursor.execute(
                    "INSERT INTO entry_blobs SELECT ?, blob FROM entry_blobs WHERE entry = ?",
                    (-old[0], old[0]),
                )
                cursor.execute("DELETE FROM entry_blobs WHERE entry = ?", old)
            marks = ", ".join("?" * len(Row._fields))
            cursor.execute(f"INSERT INTO entries({_COLUMNS}) VALUES ({marks})", (None, *row[1:]))
            entry_id = cursor.lastrowid or 0
            added = 0
            for blob in blobs:
                cursor.execute(
                    "INSERT OR IGNORE INTO blobs VALUES(?, ?, ?, ?)",
                    (blob.digest.sha256, blob.digest.size, blob.disk, blob.checksum),
                )
                added += blob.disk if cursor.rowcount == 1 else 0
                cursor.execute(
                    "INSERT OR IGNORE INTO entry_blobs VALUES(?, ?)", (entry_id, blob.digest.sha256)
                )
            orphans, freed = _release(connection, [-old[0]]) if old else ([], 0)
        return entry_id, added - freed, orphans

    def delete(self, ids: Iterable[int]) -> tuple[list[str], int]:
        """Remove entries; returns the blobs that no entry needs any more and their bytes on disk."""
        ids = list(ids)
        with self._transaction() as connection:
            connection.executemany("DELETE FROM entries WHERE id = ?", [(item,) for item in ids])
            return _release(connection, ids)

    def needs(self, ids: Iterable[int] | None = None) -> dict[int, list[tuple[str, int]]]:
        """Entry → (blob, bytes on disk) of all that it needs, for these entries or for all."""
        sql = (
            "SELECT e.entry, b.sha256, b.disk FROM entry_blobs e JOIN blobs b ON b.sha256 = e.blob"
        )
        found: dict[int, list[tuple[str, int]]] = {}
        rows = (
            self._read(sql)
            if ids is None
            else [row for item in ids for row in self._read(sql + " WHERE e.entry = ?", (item,))]
        )
        for entry, sha256, disk in rows:
            found.setdefault(entry, []).append((sha256, disk))
        return found

    def entries_of_blob(self, sha256: str) -> list[int]:
        """Ids of the entries that need a blob."""
        return [
            row[0] for row in self._read("SELECT entry FROM entry_blobs WHERE blob = ?", (sha256,))
        ]

    def select(self, selection: Selection, limit: int = -1) -> list[Row]:
        """The entries meant, least recently used first."""
        where, values = selection.where()
        return [
            _row(row)
            for row in self._read(
                f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY last_s LIMIT ?",
                [*values, limit],
            )
        ]

    def invalidate(self, selection: Selection) -> tuple[list[int], list[str], int]:
        """Remove the entries meant and raise the generation, in one step.

        Returns (ids, blobs that no entry needs any more, their bytes on disk).
        """
        where, values = selection.where()
        with self._transaction() as connection:
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")
            self._generation = _generation(connection)
            ids = [
                row[0]
                for row in connection.execute(f"SELECT id FROM entries WHERE {where}", values)
            ]
            connection.executemany("DELETE FROM entries WHERE id = ?", [(item,) for item in ids])
            orphans, freed = _release(connection, ids)
        return ids, orphans, freed

    def generation(self) -> int:
        """How many invalidations there have been; a publish must find it as its compile did."""
        with self._read_lock:
            self._generation = _generation(self._reader)
            return self._generation

    def earlier(
        self,
        toolchain: str,
        kernel: str | None = None,
        before: Row | None = None,
        limit: int = -1,
        cache: Cache = Cache.BINARY,
    ) -> list[Row]:
        """Entries of a toolchain in one of the caches, newest first: of one kernel if ``kernel`` is
        given, and only those made before the entry ``before`` if that is."""
        where = ["toolchain = ?", "cache = ?"]
        values: list[Any] = [toolchain, int(cache)]
        # Ids rise with time; by time is sorted only where an index of SQLite's gives that order.
        order = "id DESC" if kernel is None else "created_s DESC, id DESC"
        more: list[Any] = []
        if kernel is not None:
            where.append("kernel = ?")
            values.append(plain(kernel))
        if before is not None and kernel is not None:
            where.append("(created_s, id) < (?, ?)")
            more = [before.created_s, before.id]
        elif before is not None:
            where.append("id < ?")
            more = [before.id]
        rows = self._read(
            f"SELECT {_COLUMNS} FROM entries WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?",
            [*values, *more, limit],
        )
        return [_row(row) for row in rows]

    def newest(self, kernel: str | None = None) -> Row | None:
        """The entry that was made last, of one kernel or of all."""
        rows = (
            self._read(f"SELECT {_COLUMNS} FROM entries ORDER BY id DESC LIMIT 1")
            if kernel is None
            else self._read(
                f"SELECT {_COLUMNS} FROM entries WHERE kernel = ?"
                " ORDER BY created_s DESC, id DESC LIMIT 1",
                [plain(kernel)],
            )
        )
        return _row(rows[0]) if rows else None

    def oldest(self, count: int, before_s: float | None = None) -> list[Row]:
        """The least recently used entries; only those last used before ``before_s`` if given."""
        return [
            _row(row)
            for row in self._read(
                f"SELECT {_COLUMNS} FROM entries WHERE last_s < ? ORDER BY last_s, id LIMIT ?",
                (before_s if before_s is not None else float("inf"), count),
            )
        ]

    def rows_after(self, entry_id: int, count: int) -> list[Row]:
        """The entries that follow a number, in the order of their numbers."""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM entries WHERE id > ? ORDER BY id LIMIT ?", (entry_id, count)
        )
        return [_row(row) for row in rows]

    def touch(self, uses: Mapping[int, Use]) -> None:
        """Write collected uses."""
        if not uses:
            return
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE entries SET hits = hits + ?, last_s = max(last_s, ?) WHERE id = ?",
                [(use.hits, use.last_s, entry_id) for entry_id, use in uses.items()],
            )

    def totals(self) -> tuple[int, int]:
        """(entries, bytes on disk)."""
        entries = self._read("SELECT count(*) FROM entries")[0][0]
        disk = self._read("SELECT coalesce(sum(disk), 0) FROM blobs")[0][0]
        return int(entries), int(disk)

    def has_entry(self, entry_id: int) -> bool:
        """True if there is an entry with this id."""
        return bool(self._read("SELECT 1 FROM entries WHERE id = ?", (entry_id,)))

    def has_blob(self, sha256: str) -> bool:
        """True if some entry needs this blob."""
        return bool(self._read("SELECT 1 FROM blobs WHERE sha256 = ?", (sha256,)))

    def all_blobs(self) -> Iterator[BlobRow]:
        """Every blob, in the order of the names, read in pages."""
        last = ""
        while True:
            rows = self._read(
                "SELECT sha256, size, disk, checksum FROM blobs WHERE sha256 > ? ORDER BY sha256"
                " LIMIT 1000",
                (last,),
            )
            if not rows:
                return
            yield from map(_blob_row, rows)
            last = rows[-1][0]

    def is_clean(self) -> bool:
        """True unless a daemon that opened the store did not close it."""
        rows = self._read("SELECT value FROM meta WHERE key = 'clean'")
        return not rows or bool(rows[0][0])

    def set_clean(self, clean: bool) -> None:
        """Note that the store is in use, or closed in order."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES('clean', ?)", (int(clean),))

    # --- statistics

    def add_counts(self, counts: Mapping[Slot, int]) -> None:
        """Add to the lifetime statistics."""
        if not counts:
            return
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO counts VALUES(?, ?, ?, ?, ?)"
                " ON CONFLICT(cache, kind, what, reason) DO UPDATE SET n = n + excluded.n",
                [(int(s.cache), s.kind, int(s.what), int(s.reason), n) for s, n in counts.items()],
            )

    def counts(self) -> dict[Slot, int]:
        """The lifetime statistics."""
        rows = self._read("SELECT cache, kind, what, reason, n FROM counts")
        return {Slot(cache, kind, what, reason): n for cache, kind, what, reason, n in rows}

    def clear_counts(self) -> None:
        """Start the lifetime statistics anew."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM counts")

    # --- memories of other parts

    def load_file_digest(self, path: str, signature: Signature) -> str:
        """See :class:`ptocache.contents.DigestRecords`; one that cannot be read is unknown."""
        with contextlib.suppress(sqlite3.Error, StoreDamagedError):
            rows = self._read(
                "SELECT sha256 FROM files WHERE path = ? AND signature = ?",
                (os.fsencode(path).hex(), _stamp(signature)),
            )
            return str(rows[0][0]) if rows else ""
        return ""

    def save_file_digest(self, path: str, signature: Signature, sha256: str) -> None:
        """See :class:`ptocache.contents.DigestRecords`; losing one costs a read, no more."""
        with contextlib.suppress(sqlite3.Error), self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO files VALUES(?, ?, ?)",
                (os.fsencode(path).hex(), _stamp(signature), sha256),
            )

    def load_installation(self, key: str) -> dict[str, Any] | None:
        """See :class:`ptocache.identity.InstallationRecords`."""
        rows = self._read("SELECT record FROM installations WHERE key = ?", (key,))
        if not rows:
            return None
        try:
            record = msgpack.unpackb(rows[0][0], raw=False, unicode_errors="surrogateescape")
        except (ValueError, TypeError, msgpack.UnpackException):
            return None
        return record if isinstance(record, dict) else None

    def save_installation(self, key: str, record: dict[str, Any]) -> None:
        """See :class:`ptocache.identity.InstallationRecords`; losing one costs a look, no more."""
        packed = msgpack.packb(record, unicode_errors="surrogateescape")
        with contextlib.suppress(sqlite3.Error), self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO installations VALUES(?, ?, ?)", (key, packed, time.time())
            )
            for size, kept in _INSTALLATIONS_KEPT:
                connection.execute(
                    "DELETE FROM installations WHERE key IN (SELECT key FROM installations"
                    " WHERE length(record) >= ? ORDER BY saved_s DESC LIMIT -1 OFFSET ?)",
                    (size, kept),
                )


def _connect(path: str, read_only: bool) -> sqlite3.Connection:
    if read_only:
        return _connect_read_only(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        # Where the file system cannot do WAL (no shared memory), SQLite says so and stays as it was.
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        # With another journal, NORMAL could damage the index in a power failure.
        level = "NORMAL" if mode and mode[0] == "wal" else "FULL"
        connection.execute(f"PRAGMA synchronous = {level}")
        connection.execute("PRAGMA trusted_schema = OFF")
    except (sqlite3.Error, UnicodeError):
        connection.close()
        raise
    return connection


def _connect_read_only(path: str) -> sqlite3.Connection:
    from urllib.parse import quote

    where = "file:" + quote(os.fsencode(path))
    last: sqlite3.Error | None = None
    # A store on a read-only place has no shared memory file to open: only "immutable" reads it.
    for query in ("?mode=ro", "?mode=ro&immutable=1"):
        connection = sqlite3.connect(
            where + query, uri=True, timeout=BUSY_MS / 1000, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if "locked" in str(error):
                # "immutable" would read past the lock.
                raise
            last = error
        except (sqlite3.Error, UnicodeError):
            connection.close()
            raise
    assert last is not None
    raise last


_ROW_TYPES = (int, str, str, int, str, str, str, str, float, float, int, int, int)


def _malformed(what: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"the index is malformed: {what}")


def _row(values: tuple[Any, ...]) -> Row:
    # SQLite's columns hold what they are given: a page that was written over may give anything.
    if tuple(map(type, values)) != _ROW_TYPES:
        raise _malformed("an entry's row holds other things than an entry's")
    return Row(*values)


def _blob_row(values: tuple[Any, ...]) -> BlobRow:
    sha256, size, disk, check = values
    if not (is_sha256(sha256) and type(size) is type(disk) is int and type(check) is bytes):
        raise _malformed("a blob's row holds other things than a blob's")
    return BlobRow(Digest(sha256, size), disk, check)


def _is_damage(error: sqlite3.OperationalError) -> bool:
    return "malformed" in str(error) or "not a database" in str(error)


def _stamp(signature: Signature) -> str:
    return ",".join(map(str, signature))


def _generation(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
    if not row or type(row[0]) is not int:
        raise _malformed("it has no generation")
    return row[0]


def _release(connection: sqlite3.Connection, ids: list[int]) -> tuple[list[str], int]:
    """Drop the blobs that only these entries needed; returns their names and bytes on disk."""
    orphans: list[str] = []
    freed = 0
    for entry_id in ids:
        needed = connection.execute(
            "SELECT blob FROM entry_blobs WHERE entry = ?", (entry_id,)
        ).fetchall()
        connection.execute("DELETE FROM entry_blobs WHERE entry = ?", (entry_id,))
        for (blob,) in needed:
            used = connection.execute("SELECT 1 FROM entry_blobs WHERE blob = ? LIMIT 1", (blob,))
            if used.fetchone():
                continue
            row = connection.execute("SELECT disk FROM blobs WHERE sha256 = ?", (blob,)).fetchone()
            connection.execute("DELETE FROM blobs WHERE sha256 = ?", (blob,))
            orphans.append(blob)
            freed += row[0] if row else 0
    return orphans, freed
