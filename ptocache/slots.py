"""Whose compile is next: by priority, then in turn among the clients, then by arrival.

A client with hundreds of requests (a tuning sweep) must not keep another's one request waiting until all
of its own are done, and what a person waits for comes before what a sweep prepares. It belongs to one
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable


class Turn:
    """A place in the queue, or a slot in use."""

    __slots__ = ("client", "priority", "ready")

    def __init__(self, client: Hashable, priority: int) -> None:
        self.client = client
        self.priority = priority
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Slots:
    """``count`` slots. Lower priorities come first."""

    def __init__(self, count: int) -> None:
        self._free = count
        # Priority → client → its turns by arrival; the client that comes next stands first.
        self._waiting: dict[int, OrderedDict[Hashable, deque[Turn]]] = {}

    @property
    def waiting(self) -> int:
        """Turns that have no slot yet."""
        return sum(len(turns) for level in self._waiting.values() for turns in level.values())

    @contextlib.asynccontextmanager
    async def use(self, turn: Turn) -> AsyncIterator[None]:
        """Wait for a slot, and have it for the length of the block."""
        await self._take(turn)
        try:
            yield
        finally:
            self._give_back()

    def hurry(self, turn: Turn, priority: int) -> None:
        """Somebody more urgent waits for the same: let the turn come as early as theirs would."""
        if priority >= turn.priority or turn.ready.done() or not self._remove(turn):
            turn.priority = min(turn.priority, priority)
            return
        turn.priority = priority
        self._add(turn)

    async def _take(self, turn: Turn) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            turn.ready.set_result(None)
            return
        self._add(turn)
        try:
            await turn.ready
        except asyncio.CancelledError:
            if turn.ready.done() and not turn.ready.cancelled():
                # It was given a slot at the moment at which its owner gave up.
                self._give_back()
            else:
                self._remove(turn)
            raise

    def _give_back(self) -> None:
        # One whose owner has given up, and has not been told yet, needs no slot.
        while (turn := self._next()) is not None and turn.ready.cancelled():
            pass
        if turn is None:
            self._free += 1
        else:
            turn.ready.set_result(None)

    def _add(self, turn: Turn) -> None:
        level = self._waiting.setdefault(turn.priority, OrderedDict())
        level.setdefault(turn.client, deque()).append(turn)

    def _remove(self, turn: Turn) -> bool:
        turns = self._waiting.get(turn.priority, OrderedDict()).get(turn.client)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        self._tidy(turn.priority, turn.client)
        return True

    def _next(self) -> Turn | None:
        """The turn that comes next; its client goes to the end of the queue."""
        if not self._waiting:
            return None
        priority = min(self._waiting)
        level = self._waiting[priority]
        client, turns = next(iter(level.items()))
        turn = turns.popleft()
        level.move_to_end(client)
        self._tidy(priority, client)
        return turn

    def _tidy(self, priority: int, client: Hashable) -> None:
        level = self._waiting[priority]
        if not level[client]:
            del level[client]
        if not level:
            del self._waiting[priority]
