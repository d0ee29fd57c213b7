"""Reports that a loader refused a stored artifact: what is dropped, and what is not dropped again.

An entry goes if it still holds the bytes of the report. Its blobs are forgotten, not kept in the quarantine:
they are what the tool wrote. An entry of another key that shares them stays until it is reported itself.

What was dropped is remembered, so that a loader that refuses everything makes no compile storm: bytes
that were dropped from a key once, and came back, stay, and so does whatever a key holds that was dropped
from often enough. Belongs to the daemon's loop; nothing here knows of sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from . import log
from .digest import is_sha256
from .errors import BadRequestError, StoreError
from .outcome import Cache, Event, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .explain import Memory
    from .store.store import Store

    Outputs = frozenset[tuple[str, str]]
    """(name, SHA-256) of outputs."""

MEMORY = 1024
"""Keys that are remembered."""
MOST_DROPS = 3
"""How often one key may be dropped from, each time with other bytes."""
_MOST_OUTPUTS = 4096
_MOST_WORDS = 1000
_log = logging.getLogger("ptocache.rejection")


class Report(NamedTuple):
    """What a client says."""

    key: str
    """Of the action, 64 hex digits."""
    outputs: Outputs
    """What it could not load; the entry may have more."""
    detail: str
    """The loader's words."""


class Ruling(NamedTuple):
    """What becomes of a report."""

    verdict: Reason
    entries: int
    """How many were dropped."""
    detail: str
    """The verdict in words."""


def parse(message: Mapping[str, Any]) -> Report:
    """Read and check a ``reject``. Raises :class:`~ptocache.errors.BadRequestError`."""
    key, outputs, detail = (message.get(name) for name in ("key", "outputs", "detail"))
    if not isinstance(key, str) or not is_sha256(key):
        raise BadRequestError("reject needs the key of an action, 64 hexadecimal digits")
    if not isinstance(outputs, dict) or not 0 < len(outputs) <= _MOST_OUTPUTS:
        raise BadRequestError("reject needs outputs, a map of name to SHA-256")
    if not all(isinstance(n, str) and is_sha256(digest) for n, digest in outputs.items()):
        raise BadRequestError("reject needs outputs, a map of name to SHA-256")
    words = " ".join(detail.split()) if isinstance(detail, str) else ""
    return Report(key, frozenset(outputs.items()), words[:_MOST_WORDS])


class _Known(NamedTuple):
    """What was dropped from a key."""

    cache: Cache
    dropped: list[tuple[Outputs, ...]]
    """Each time: all outputs of each entry."""


class Rejections:
    """Rules on reports, one after the other."""

    def __init__(
        self,
        store: Store,
        memory: Memory,
        in_io: Callable[..., Awaitable[Any]],
        limit: int = MEMORY,
    ) -> None:
        self._store = store
        self._memory = memory
        self._in_io = in_io
        self._limit = limit
        self._known: OrderedDict[str, _Known] = OrderedDict()
        # Two reports of one entry: the second must find what the first has done.
        self._lock = asyncio.Lock()

    async def rule(self, report: Report, *, read_only: bool = False) -> Ruling:
        """Drop what the report means, if it is to be dropped, and count it. Raises nothing of the store's."""
        async with self._lock:
            cache, ruling = await self._ruling(report, read_only)
        self._store.tally.event(cache, Event.UNLOADABLE, ruling.verdict)
        log.event(
            _log, logging.WARNING, "an artifact could not be loaded", key=report.key[:12],
            verdict=ruling.verdict.label, outputs=" ".join(sorted(name for name, _ in report.outputs)),
            detail=report.detail,
        )  # fmt: skip
        return ruling

    async def _ruling(self, report: Report, read_only: bool) -> tuple[Cache, Ruling]:
        key = report.key
        known = self._known.get(key)
        cache = known.cache if known else Cache.BINARY
        try:
            if read_only or self._store.read_only:
                words = "nothing is dropped from a store that is only read"
                return cache, Ruling(Reason.READ_ONLY, 0, words)
            stays = self._stays(report, known)
            if stays is not None:
                held = await self._in_io(self._store.holds, key, report.outputs)
                return cache, stays if held else _REPLACED
            dropped = await self._in_io(self._store.reject, key, report.outputs)
        except StoreError as error:
            return cache, Ruling(Reason.STORE_FAILED, 0, f"the entry stays: {error.message}")
        if not dropped.entries:
            return cache, _REPLACED
        self._remember(key, dropped.cache, dropped.outputs)
        self._memory.rejected(key, f"its entry was dropped, a loader refused it: {report.detail}")
        return dropped.cache, Ruling(Reason.DROPPED, dropped.entries, "the entry was dropped")

    @staticmethod
    def _stays(report: Report, known: _Known | None) -> Ruling | None:
        """Why the entry stays, if it still holds the bytes."""
        if known is None:
            return None
        if any(report.outputs <= outputs for drop in known.dropped for outputs in drop):
            return _SAME_BYTES
        return _GIVEN_UP if len(known.dropped) >= MOST_DROPS else None

    def _remember(self, key: str, cache: Cache, outputs: tuple[Outputs, ...]) -> None:
        known = self._known.setdefault(key, _Known(cache, []))
        known.dropped.append(outputs)
        self._known.move_to_end(key)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Begin anew (an ``invalidate``): somebody has seen to it."""
        self._known.clear()


_REPLACED = Ruling(Reason.REPLACED, 0, "the entry holds other bytes by now, or is gone")
_SAME_BYTES = Ruling(
    Reason.SAME_BYTES, 0, "it was dropped and made again already, with the same bytes"
)
_GIVEN_UP = Ruling(
    Reason.GIVEN_UP, 0, f"it was dropped and made again {MOST_DROPS} times, each with other bytes"
)
