"""What the daemon answers besides compiles: one function a request, plain values in and out."""

from __future__ import annotations

import os
import resource
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Protocol

from . import __version__, known_files, tally
from .compiler import can_fix_addresses
from .entry import Entry
from .errors import BadRequestError, PtocacheError, StoreDamagedError, UnknownEntryError
from .explain import FIRST, Asked, Explanation, explain, side_of
from .identity import variables_of
from .model import Answer, Job
from .outcome import REASON_BY_LABEL, Cache, Outcome, Reason
from .rejection import Rejections, parse
from .store.blobs import Blobs
from .store.collect import collect
from .store.history import earlier_entries
from .store.index import Index, Row, Selection
from .store.store import read_entry
from .store.verify import verify
from .wire import parse_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from subprocess import Popen

    from .config import Settings
    from .contents import Contents
    from .identity import Identities
    from .kernels import Kernels
    from .model import Component
    from .paths import StorePaths
    from .server import Control, Server
    from .service import Service
    from .store.store import Store
    from .toolchain import Registry, Toolchain
    from .watch import Watcher

STATS_SCHEMA = 1
EXPLAIN_SCHEMA = 1
IDENTIFY_SCHEMA = 1
_LISTING_LIMIT = 1000
_MOST = 1 << 62
_MOST_KEYS = 4096
_MOST_WORDS = 1000
_COMPONENTS = 256
"""Components of one toolchain that ``identify`` lists; it tells how many there are."""


class Running(Protocol):
    """What the controls need of the daemon that they belong to."""

    settings: Settings
    paths: StorePaths
    store: Store
    service: Service
    kernels: Kernels
    identities: Identities
    contents: Contents
    registry: Registry
    watcher: Watcher
    guard: Popen[bytes]
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
        self._rejections = Rejections(daemon.store, daemon.service.memory, daemon.in_io)

    def table(self) -> dict[str, Control]:
        """Request type → what answers it."""
        return {
            "status": self.status,
            "stats": self.stats,
            "reset-stats": self.reset_stats,
            "gc": self.gc,
            "invalidate": self.invalidate,
            "show": self.show,
            "verify": self.verify,
            "explain": self.explain,
            "identify": self.identify,
            "bypassed": self.bypassed,
            "peek": self.peek,
            "reject": self.reject,
            "digests": self.digests,
            "stop": self.stop,
        }

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
            "waiting": daemon.service.waiting + daemon.kernels.waiting,
            "leases": daemon.kernels.leases,
            "jobs": daemon.settings["compile.jobs"],
            "mode": daemon.settings["request.mode"],
            "journal": daemon.store.index.journal,
            "watch": daemon.watcher.state(),
            "identity": daemon.identities.counts(),
            "guard": {"pid": daemon.guard.pid, "alive": daemon.guard.poll() is None},
            "limits": _descriptors(),
            "aslr_can_be_off": await daemon.in_io(can_fix_addresses),
            "variables": daemon.registry.variables(),
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
            if value is not None and not _is_amount(value):
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
        self._rejections.forget()
        return {"entries": removed.entries, "bytes": removed.bytes, "removed": listed}

    async def show(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Everything about the entries of one key."""
        key = message.get("key")
        if not isinstance(key, str):
            raise BadRequestError("show needs a key")
        found: dict[str, Any] = await self._daemon.in_io(describe, self._daemon.store, key)
        return found

    async def explain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Why a request was no hit: the latest, that of a ``key``, or the latest of a ``kernel``."""
        key, kernel = _whose(message)
        asked = self._remembered(key, kernel)
        store = self._daemon.store
        if asked is None:
            found: dict[str, Any] = await self._daemon.in_io(explain_entry, store, key, kernel)
            return found
        if key:
            rows = await self._daemon.in_io(store.index.select, Selection(keys=(key,)))
            others = [row.action for row in rows if row.action != asked.key]
            if others:
                raise _several(key, [asked.key, *others])
        return explained(asked, "memory")

    def _remembered(self, key: str, kernel: str) -> Asked | None:
        memory = self._daemon.service.memory
        if kernel:
            return memory.of_kernel(kernel)
        if not key:
            return memory.last()
        found = memory.of_key(key)
        if len(found) > 1:
            raise _several(key, [item.key for item in found])
        return found[0] if found else None

    async def identify(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Which toolchains are found by the variables in ``env``, and what each is."""
        env = message.get("env")
        if not isinstance(env, dict) or not all(
            isinstance(word, str) for pair in env.items() for word in pair
        ):
            raise BadRequestError("identify needs env, a map of text")
        registry, found = self._daemon.registry, []
        for name in registry.names():
            toolchain = registry.get(name)
            for flavour in getattr(toolchain, "FLAVOURS", ("",)):
                found.append(
                    await self._daemon.in_io(
                        identified, self._daemon.identities, toolchain, flavour, env
                    )
                )
        return {"schema": IDENTIFY_SCHEMA, "toolchains": found}

    async def verify(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Look at a page of the store, the one behind entry number ``after``; ``fast``, ``dry_run``."""
        after = message.get("after") or 0
        if not isinstance(after, int) or not _is_amount(after):
            raise BadRequestError("after is not the number of an entry")

        def work() -> dict[str, Any]:
            page = verify(
                self._daemon.store,
                after,
                fast=bool(message.get("fast")),
                heal=not message.get("dry_run"),
            )
            damaged = [
                {**summary(item.row), "blob": item.sha256, "reason": item.reason.label,
                 "detail": item.detail}
                for item in page.damaged
            ]  # fmt: skip
            return {
                "entries": page.entries,
                "bytes": page.bytes,
                "damaged": damaged,
                "after": page.after,
            }

        found: dict[str, Any] = await self._daemon.in_io(work)
        return found

    async def bypassed(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Count a compile that a client kept from the cache by itself: ``reason`` (a label), ``toolchain``,
        ``kernel`` and ``detail`` for people."""
        reason = REASON_BY_LABEL.get(str(message.get("reason")), Reason.NONE)
        if not Reason.NONE < reason < Reason.COMPILE_FAILED:
            raise BadRequestError("bypassed needs the reason of a bypass")
        toolchain, kernel, detail = (
            str(message.get(name, ""))[:_MOST_WORDS] for name in ("toolchain", "kernel", "detail")
        )
        daemon = self._daemon
        daemon.store.tally.outcome(Cache.BINARY, Outcome.BYPASS, reason)
        job = Job(toolchain, "", (), (), (), (), kernel=kernel)
        answer = Answer(Outcome.BYPASS, "", reason, detail)
        daemon.service.memory.note(Asked.of(Cache.BINARY, job, answer, time.time()))
        return {}

    async def digests(self, message: Mapping[str, Any]) -> list[str]:
        """The SHA-256 of each of the ``files``, or an empty text; see :mod:`ptocache.known_files`."""
        daemon = self._daemon
        # One by one: what others ask of the disk takes turns with them.
        return [
            await daemon.in_io(known_files.digest, daemon.contents, meant)
            for meant in known_files.parse(message)
        ]

    async def reject(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Drop an entry whose artifact a loader refused: ``key``, ``outputs``, ``detail``."""
        ruling = await self._rejections.rule(
            parse(message), read_only=self._daemon.settings["request.mode"] == "read-only"
        )
        return {**ruling._asdict(), "verdict": ruling.verdict.label}

    async def peek(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """How the compile ``request`` would end now; compiles nothing, counts nothing."""
        answer = await self._daemon.service.peek(parse_compile(message))
        return {
            "outcome": answer.outcome.label, "reason": answer.reason.label, "key": answer.key,
            "detail": answer.detail, "compile_ms": answer.compile_ms, "error": answer.error,
        }  # fmt: skip

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
            "health": self._daemon.store.condition(),
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
    _verify_key(key)
    rows = store.index.select(Selection(keys=(key,)))
    if not rows:
        raise UnknownEntryError(f"no entry has the key {key}", hint="ptocache stats counts entries")
    if len({row.action for row in rows}) > 1:
        raise _several(key, [row.action for row in rows])
    return {"key": rows[0].action, "entries": [_entry(store, row) for row in rows]}


def explain_entry(store: Readable, key: str, kernel: str) -> dict[str, Any]:
    """Why an entry had to be made: that of a key, else the newest of a kernel, else the newest.

    Raises :class:`~ptocache.errors.UnknownEntryError` if there is none.
    """
    if key:
        rows = store.index.select(Selection(keys=(key,)))
        if len({row.action for row in rows}) > 1:
            raise _several(key, [row.action for row in rows])
        row = max(rows, key=lambda row: (row.created_s, row.id), default=None)
    else:
        row = store.index.newest(kernel or None)
    if row is None:
        meant = f"has the key {key}" if key else f"is of {kernel}" if kernel else "is known"
        raise UnknownEntryError(
            f"no entry, and no request remembered, {meant}",
            hint="only the latest requests since the daemon started are remembered",
        )
    entry = store.read_entry(row)
    cache = Cache(row.cache)
    earlier = earlier_entries(store, row.action, row.toolchain, row.kernel, row, cache)
    why = explain(side_of(entry), earlier, row.kernel)
    if why.words == FIRST:
        why = Explanation("no earlier entry of this kernel is there")
    asked = Asked(
        float(entry.created_s), row.action, cache.label, row.toolchain, row.kernel,
        row.arch, Outcome.MISS.label, "", why.words, why,
    )  # fmt: skip
    return explained(asked, "store")


def explain_at_rest(store: Readable, key: str, kernel: str) -> dict[str, Any]:
    """The same, of a store that no daemon serves: nothing else remembers anything.

    Raises :class:`~ptocache.errors.BadRequestError` for a key that is none.
    """
    return explain_entry(store, *_whose({"key": key, "kernel": kernel}))


def explained(asked: Asked, source: str) -> dict[str, Any]:
    """``explain --json``; ``source`` is ``memory`` or ``store``."""
    why = asked.explanation or Explanation(asked.detail or asked.reason.replace("_", " "))
    request = asked._asdict()
    del request["explanation"]
    return {"schema": EXPLAIN_SCHEMA, "source": source, "request": request, **why.plain()}


def identified(
    identities: Identities, toolchain: Toolchain, flavour: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """One toolchain as ``doctor`` tells of it, or the error that looking for it gave."""
    variables = variables_of(toolchain, env)
    started_s = time.perf_counter()
    found: dict[str, Any] = {
        "toolchain": toolchain.name, "version": toolchain.version, "flavour": flavour,
        "variables": dict(variables), "identity": "", "banner": "", "uncertain": "",
        "components": [], "components_total": 0, "error": None,
        "known": False,
    }  # fmt: skip
    try:
        found["known"] = identities.confirmed(toolchain, flavour, variables) is not None
        identity = identities.resolve(toolchain, flavour, variables)
    except PtocacheError as error:
        found["error"] = error.to_wire()
    except Exception as error:
        wrapped = PtocacheError(f"the plugin failed: {error!r}", hint="report it to its author")
        found["error"] = wrapped.to_wire()
    else:
        found |= {
            "identity": identity.digest,
            "banner": identity.installation.banner,
            "uncertain": identity.uncertain,
            "components": [_component(item) for item in identity.components[:_COMPONENTS]],
            "components_total": len(identity.components),
        }
    found["ms"] = round((time.perf_counter() - started_s) * 1000, 3)
    return found


def _component(item: Component) -> dict[str, Any]:
    return {
        "role": item.role, "path": item.path, "canonical": item.canonical,
        "digest": item.digest.sha256, "size": item.digest.size,
    }  # fmt: skip


def _descriptors() -> dict[str, int]:
    """Open files of this process, and its limits (-1: none)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"open_files": len(os.listdir("/proc/self/fd")), "soft": soft, "hard": hard}


def _whose(message: Mapping[str, Any]) -> tuple[str, str]:
    """The key and the kernel that an ``explain`` names, one of them empty; both mean the latest."""
    key, kernel = message.get("key") or "", message.get("kernel") or ""
    if not isinstance(key, str) or not isinstance(kernel, str) or (key and kernel):
        raise BadRequestError("explain takes a key, or the name of a kernel, or neither")
    if key:
        _verify_key(key)
    return key, kernel


def _verify_key(key: str) -> None:
    if len(key) < 4 or key.strip("0123456789abcdef"):
        raise BadRequestError(f"{key!r} is not a key", hint="give at least 4 hexadecimal digits")


def _several(key: str, actions: list[str]) -> UnknownEntryError:
    names = ", ".join(sorted({action[:16] for action in actions})[:5])
    return UnknownEntryError(f"{key} names several entries: {names} …", hint="give more digits")


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
        "base_dirs": {str(position): directory for position, directory in entry.bound},
        "commands": [list(command) for command in entry.provenance.commands],
        "components": [
            {"role": c.role, "path": c.path, "canonical": c.canonical, "digest": c.digest.sha256}
            for c in entry.provenance.components
        ],
        "banner": entry.provenance.banner,
        "aslr_off": entry.provenance.aslr_off,
        "ptocache": entry.provenance.ptocache,
    }  # fmt: skip


def _is_amount(value: object) -> bool:
    """True for a number that is one, and that the index and the clock can count to."""
    return isinstance(value, (int, float)) and 0 <= value <= _MOST


def _selection(message: Mapping[str, Any]) -> Selection:
    keys = message.get("keys") or []
    if not isinstance(keys, list) or any(
        not isinstance(key, str) or len(key) < 4 or key.strip("0123456789abcdef") for key in keys
    ):
        raise BadRequestError("a key is at least 4 hexadecimal digits")
    if len(keys) > _MOST_KEYS:
        raise BadRequestError(f"more than {_MOST_KEYS} keys at once")
    older_than = message.get("older_than") or 0
    if not _is_amount(older_than):
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
