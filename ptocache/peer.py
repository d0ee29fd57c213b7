"""Does the process at the other end of a connection still run? Seen through ``/proc``."""

from __future__ import annotations

from typing import NamedTuple

STOPPED_LOOKS = 3
"""So many looks in a row must find a process stopped: a stop may be short."""


class Process(NamedTuple):
    """A process as ``/proc/<pid>/stat`` shows it (proc_pid_stat(5))."""

    state: str
    """One letter: ``T`` is stopped, ``Z`` and ``X`` are dead."""
    start: int
    """When it started, in clock ticks since boot: tells it from a later one with its number."""


def process_of(pid: int) -> Process | None:
    """The process of this number, if it can be seen from here (0: it lives in another namespace)."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return Process(fields[0], int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


class Vigil:
    """Watches one process; one that could not be seen at first is never judged."""

    __slots__ = ("_first", "_pid", "_stopped")

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first = process_of(pid)
        self._stopped = 0

    def look(self) -> str:
        """Why nothing is to be expected of the process any more; empty if it runs."""
        if self._first is None:
            return ""
        now = process_of(self._pid)
        if now is None or now.start != self._first.start or now.state in "ZX":
            return f"the process {self._pid} has ended"
        self._stopped = self._stopped + 1 if now.state == "T" else 0
        return f"the process {self._pid} is stopped" if self._stopped >= STOPPED_LOOKS else ""
