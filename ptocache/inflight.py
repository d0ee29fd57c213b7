"""One build per key: who leads, who joins, who takes over. No I/O, no clock, no threads of its own.

A *member* is whatever the caller uses to name a waiter (a future, a connection). The first member of
a key leads: it builds. Later ones join: they are told when the flight ends. A leader that gives up
hands the flight over to the member that has waited longest.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Hashable)


class InFlight(Generic[K, M]):
    """The flights under way. Not locked: it belongs to one thread (the daemon's loop)."""

    def __init__(self) -> None:
        # Insertion order is the order of arrival; the first member leads.
        self._flights: dict[K, dict[M, None]] = {}

    def enter(self, key: K, member: M) -> bool:
        """Take part in the build of ``key``; True if this member leads it."""
        members = self._flights.get(key)
        if members is None:
            self._flights[key] = {member: None}
            return True
        members[member] = None
        return False

    def leave(self, key: K, member: M) -> M | None:
        """Give up. Returns the member that leads from now on if the leader left, else ``None``.

        The flight ends without a result when its last member leaves.
        """
        members = self._flights.get(key)
        if members is None or member not in members:
            return None
        led = next(iter(members)) == member
        del members[member]
        if not members:
            del self._flights[key]
            return None
        return next(iter(members)) if led else None

    def land(self, key: K) -> tuple[M, ...]:
        """End the flight; returns everybody who waited for it, the leader first."""
        return tuple(self._flights.pop(key, {}))

    def leader(self, key: K) -> M | None:
        """Who builds ``key`` now, if anybody."""
        members = self._flights.get(key)
        return next(iter(members)) if members else None

    def members(self, key: K) -> int:
        """How many take part in the build of ``key``, its leader included."""
        return len(self._flights.get(key, ()))

    def waiting(self) -> int:
        """How many take part in builds, over all keys."""
        return sum(len(members) for members in self._flights.values())

    def __len__(self) -> int:
        return len(self._flights)
