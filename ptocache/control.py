"""What the daemon answers besides compiles: one function a request, plain values in and out."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Protocol

from . import __version__, tally
from .entry import Entry
from .errors import BadRequestError, StoreDamagedError, UnknownEntryError
from .store.blobs import Blobs
from .store.collect import collect
from .store.index import Index, Row, Selection
from .store.store import read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .config import Settings
    from .identity import Identities
    from .paths import StorePaths
    from .server import Control, Server
    from .service import Service
    from .store.store import Store

STATS_SCHEMA = 1
_LISTING_LIMIT = 1000


class Running(Protocol):
    """What the controls need of the daemon that they belong to."""

    settings: Settings
    paths: StorePaths
    store: Store
    service: Service
    identities: Identities
    server: Server
    started_s: float

    async def in_io(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something that blocks in a thread."""

    def ask_to_stop(self) -> None:
        """Begin to stop; a second time does not wait for running compiles."""


class Controls:
    """The administrative requests of one daemon."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon

    def table(self) -> dict[str, Control]:
        """Request type → what answers it."""
        return {
            "ping": self.ping,
            "status": self.status,
            "stats": self.stats,
            "reset-stats": self.reset_stats,
            "gc": self.gc,
            "invalidate": self.invalidate,
            "show": self.show,
            "stop": self.stop,
        }

    async def ping(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing, as fast as the socket goes."""
        return {}

    async def status(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Who serves what, and since when."""
        daemon = self._daemon
        return {
            **self._daemon_part(),
            "socket": daemon.settings.socket,
            "root": daemon.paths.root,
            "connections": daemon.server.connections,
            "under_way": daemon.server.under_way,
            "compiling": daemon.service.compiling,
            "waiting": daemon.service.waiting,
            "jobs": daemon.settings["compile.jobs"],
            "mode": daemon.settings["request.mode"],
            "toolchains": [
                {
                    "name": name,
                    "identity": identity.digest,
                    "banner": identity.installation.banner,
                    "uncertain": identity.uncertain,
                }
                for name, identity in daemon.identities.known()
            ],
        }

    async def stats(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Lifetime statistics."""
        daemon = self._daemon
        found = await daemon.in_io(stats_of, daemon.store)
        return {**found, "daemon": self._daemon_part()}

    async def reset_stats(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Start the statistics anew."""
        await self._daemon.in_io(self._daemon.store.reset_counts)
        return {}

    async def gc(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Evict now: ``max_size`` in bytes, ``max_age`` in seconds, both optional; ``dry_run``."""
        max_size, max_age = message.get("max_size"), message.get("max_age")
        for name, value in (("max_size", max_size), ("max_age", max_age)):
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise BadRequestError(f"{name} is not a number of at least 0")

        def work() -> dict[str, Any]:
            found = collect(
                self._daemon.store,
                max_size=int(max_size) if max_size is not None else None,
                unused_since_s=time.time() - max_age if max_age is not None else None,
                dry_run=bool(message.get("dry_run")),
            )
            return found._asdict()

        found: dict[str, Any] = await self._daemon.in_io(work)
        return found

    async def invalidate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the entries meant; with ``dry_run`` only say which."""
        selection = _selection(message)
        store = self._daemon.store
        dry_run = bool(message.get("dry_run"))
        limit = -1 if dry_run else _LISTING_LIMIT
        rows = await self._daemon.in_io(store.index.select, selection, limit)
        listed = [summary(row) for row in rows[:_LISTING_LIMIT]]
        if dry_run:
            return {"entries": len(rows), "bytes": sum(r.bytes for r in rows), "removed": listed}
        removed = await self._daemon.in_io(store.invalidate, selection)
        self._daemon.service.forget_failures()
        return {"entries": removed.entries, "bytes": removed.bytes, "removed": listed}

    async def show(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Everything about the entries of one key."""
        key = message.get("key")
        if not isinstance(key, str):
            raise BadRequestError("show needs a key")
        found: dict[str, Any] = await self._daemon.in_io(describe, self._daemon.store, key)
        return found

    async def stop(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to stop; ``now`` does not wait for running compiles."""
        self._daemon.ask_to_stop()
        if message.get("now"):
            self._daemon.ask_to_stop()
        return {"pid": os.getpid()}

    def _daemon_part(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._daemon.started_s, 3),
        }


def stats_of(store: Store) -> dict[str, Any]:
    """``stats --json`` without its ``daemon`` part."""
    return _stats(store.counts(), {**store.status()})


def stats_of_index(index: Index, limit: int) -> dict[str, Any]:
    """The same, read from a store that no daemon serves."""
    entries, disk = index.totals()
    return _stats(index.counts(), {"entries": entries, "bytes": disk, "limit": limit})


def stats_of_nothing(limit: int) -> dict[str, Any]:
    """The same, of a store that does not exist yet."""
    return _stats({}, {"entries": 0, "bytes": 0, "limit": limit})


def _stats(counts: dict[tally.Slot, int], store: dict[str, Any]) -> dict[str, Any]:
    store["evicted"] = tally.evicted(counts)
    return {"schema": STATS_SCHEMA, "caches": tally.report(counts), "store": store}


def summary(row: Row) -> dict[str, Any]:
    """An entry in one line."""
    return {
        "key": row.action, "entry": row.key, "toolchain": row.toolchain, "arch": row.arch,
        "kernel": row.kernel, "bytes": row.bytes, "hits": row.hits, "created_s": row.created_s,
        "last_s": row.last_s, "compile_ms": row.compile_ms,
    }  # fmt: skip


class Readable(Protocol):
    """What :func:`describe` needs of a store."""

    index: Index

    def read_entry(self, row: Row) -> Entry:
        """The document of an entry."""


class StoreAtRest:
    """A store that no daemon serves, opened for reading only; use as a context manager."""

    def __init__(self, paths: StorePaths) -> None:
        """Raises :class:`~ptocache.errors.StoreError` and its kind if it cannot be read."""
        self.index = Index(paths.index, read_only=True)
        self._blobs = Blobs(paths)

    def read_entry(self, row: Row) -> Entry:
        """The document of an entry. Raises :class:`~ptocache.errors.StoreDamagedError`."""
        return read_entry(self.index, self._blobs, row)

    def __enter__(self) -> StoreAtRest:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.index.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise StoreDamagedError(
                f"the index {self.index.path} cannot be read: {error}", path=self.index.path
            ) from error


def describe(store: Readable, key: str) -> dict[str, Any]:
    """The entries whose action or entry key begins with ``key``.

    Raises :class:`~ptocache.errors.UnknownEntryError` for none, or for several actions.
    """
    if len(key) < 4 or key.strip("0123456789abcdef"):
        raise BadRequestError(f"{key!r} is not a key", hint="give at least 4 hexadecimal digits")
    rows = store.index.select(Selection(keys=(key,)))
    if not rows:
        raise UnknownEntryError(f"no entry has the key {key}", hint="ptocache stats counts entries")
    if len({row.action for row in rows}) > 1:
        names = ", ".join(sorted({row.action[:16] for row in rows})[:5])
        raise UnknownEntryError(f"{key} names several entries: {names} …", hint="give more digits")
    return {"key": rows[0].action, "entries": [_entry(store, row) for row in rows]}


def _entry(store: Readable, row: Row) -> dict[str, Any]:
    entry: Entry = store.read_entry(row)
    return {
        **summary(row),
        "action": entry.action,
        "dependencies": [item._asdict() for item in entry.dependencies],
        "outputs": [
            {"name": o.name, "digest": o.digest.sha256, "size": o.digest.size, "mode": o.mode}
            for o in entry.outputs
        ],
        "stdout": entry.log.stdout,
        "stderr": entry.log.stderr,
        "source_dir": entry.source_dir,
        "commands": [list(command) for command in entry.provenance.commands],
        "components": [
            {"role": c.role, "path": c.path, "canonical": c.canonical, "digest": c.digest.sha256}
            for c in entry.provenance.components
        ],
        "banner": entry.provenance.banner,
        "aslr_off": entry.provenance.aslr_off,
        "ptocache": entry.provenance.ptocache,
    }  # fmt: skip


def _selection(message: Mapping[str, Any]) -> Selection:
    keys = message.get("keys") or []
    if not isinstance(keys, list) or any(
        not isinstance(key, str) or len(key) < 4 or key.strip("0123456789abcdef") for key in keys
    ):
        raise BadRequestError("a key is at least 4 hexadecimal digits")
    older_than = message.get("older_than") or 0
    if not isinstance(older_than, (int, float)) or older_than < 0:
        raise BadRequestError("older_than is not a number of seconds")
    texts = {name: message.get(name) or "" for name in ("toolchain", "kernel", "arch")}
    if any(not isinstance(text, str) for text in texts.values()):
        raise BadRequestError("toolchain, kernel and arch are text")
    selection = Selection(
        keys=tuple(keys),
        toolchain=texts["toolchain"],
        kernel=texts["kernel"],
        arch=texts["arch"],
        older_than_s=time.time() - older_than if older_than else 0.0,
        everything=bool(message.get("all")),
    )
    if selection == Selection():
        raise BadRequestError(
            "invalidate needs to know what to remove",
            hint="give keys, --toolchain, --kernel, --arch, --older-than or --all",
        )
    return selection
