"""Handles that somebody makes once and everybody uses: among the threads of a process, and across forks.

No I/O and no clock. What makes a handle may ask for others; what would wait for itself is told so instead.
"""

from __future__ import annotations

import threading
from _thread import get_ident

from .errors import LoadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any


class _Slot:
    """A handle, or one on its way: its owner makes it, the others wait."""

    __slots__ = ("handle", "keeper", "owner", "ready")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.ready = False
        self.handle: Any = None
        self.keeper: Any = None


class HandleTable:
    """Key → handle, each made once. Thread-safe; call :meth:`after_fork` in a child.

    A *keeper* is what must live as long as its handle: an open file, a buffer. ``let_go`` ends one whose
    handle was forgotten before it was made.
    """

    def __init__(self, let_go: Callable[[Any], None] = lambda keeper: None) -> None:
        self._let_go = let_go
        self._changed = threading.Condition(threading.Lock())
        self._slots: dict[Hashable, _Slot] = {}
        self._waiting: dict[int, _Slot] = {}
        self._inherited: list[tuple[Hashable, _Slot]] = []

    def get(self, key: Hashable, make: Callable[[], tuple[Any, Any]]) -> Any:
        """The handle of ``key``; ``make()`` gives it with its keeper if there is none.

        Raises what ``make`` raises: whoever waited then makes it in turn. Raises
        :class:`~ptocache.errors.LoadError` instead of waiting for the calling thread itself.
        """
        own = _Slot(get_ident())
        try:
            with self._changed:
                found = self._claim(key, own)
            if found is not own:
                return found.handle
            own.handle, own.keeper = make()
            own.ready = True
            return own.handle
        finally:
            with self._changed:
                kept = self._slots.get(key) is own
                if kept and not own.ready:
                    del self._slots[key]
                self._changed.notify_all()
            if own.ready and not kept:
                self._let_go(own.keeper)

    def _claim(self, key: Hashable, own: _Slot) -> _Slot:
        """The ready slot of ``key``, or ``own``, which is then the one that all wait for."""
        while True:
            found = self._slots.get(key)
            if found is None:
                self._slots[key] = own
                return own
            if found.ready:
                return found
            if self._waits_for(found, own.owner):
                raise LoadError(
                    "a loader asks for what waits for itself",
                    hint="a loader may load other artifacts, but not, at any remove, its own",
                )
            self._waiting[own.owner] = found
            try:
                self._changed.wait()
            finally:
                self._waiting.pop(own.owner, None)

    def _waits_for(self, slot: _Slot, thread: int) -> bool:
        """True if ``slot`` can only be made when ``thread`` goes on."""
        while slot.owner != thread:
            following = self._waiting.get(slot.owner)
            if following is None:
                return False
            slot = following
        return True

    def forget(self, meant: Callable[[Any], bool]) -> list[tuple[Any, Any]]:
        """Take out the handles whose keys are meant; returns (handle, keeper) of those that were ready.

        One that is being made is given to those who made it, and not kept.
        """
        with self._changed:
            keys = [key for key in self._slots if meant(key)]
            gone = [self._slots.pop(key) for key in keys]
            self._changed.notify_all()
        return [(slot.handle, slot.keeper) for slot in gone if slot.ready]

    def after_fork(self) -> None:
        """In a child: begin anew. A lock that a thread of the parent held is never let go here, and what a
        thread of the parent was making is never done; only what this very thread is making goes on.

        Handles of the parent stay alive, unused: to end one here might end it for the parent as well.
        """
        self._changed = threading.Condition(threading.Lock())
        self._waiting = {}
        me, known = get_ident(), self._slots
        self._slots = {
            key: slot for key, slot in known.items() if not slot.ready and slot.owner == me
        }
        self._inherited += [(key, slot) for key, slot in known.items() if slot.ready]

    def inherited(self, key: Hashable) -> Any:
        """The keeper of the handle that a parent of this process had for ``key``; ``None`` without one."""
        return next(
            (slot.keeper for known, slot in reversed(self._inherited) if known == key), None
        )

    def __len__(self) -> int:
        return len(self._slots)
