"""File-system events turned into one callback with a path: a hint, never the truth.

Only changes are asked for. Without a filter, every start of a compiler would be an event ("opened").
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirModifiedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from watchdog.observers.api import ObservedWatch

_log = logging.getLogger("ptocache.watch")
_CHANGES: list[type[FileSystemEvent]] = [
    FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent,
    DirCreatedEvent, DirDeletedEvent, DirModifiedEvent, DirMovedEvent,
]  # fmt: skip


class _Watch(NamedTuple):
    """A directory that is watched, or could not be."""

    place: tuple[int, int]
    """Device and inode: another directory may come into its place."""
    watch: ObservedWatch | None


class Watcher(FileSystemEventHandler):
    """Watches directories (not what lies below their folders) and whole trees until :meth:`stop`."""

    def __init__(self, on_change: Callable[[str], None], *, enabled: bool = True) -> None:
        self._on_change = on_change
        self._observer = Observer()
        self._enabled = enabled
        self._watched: dict[tuple[str, bool], _Watch] = {}
        self._lock = threading.Lock()
        self._started = False
        self.trouble = "" if enabled else "switched off (daemon.watch)"
        """Why some directory is not watched (a limit of the kernel, no such file system)."""

    def watch(self, directories: Iterable[str], trees: Iterable[str] = ()) -> None:
        """Watch these too. What cannot be watched is left to the re-scan, and said once."""
        if not self._enabled:
            return
        with self._lock:
            for tree in sorted(trees):
                self._watch(tree, whole=True)
            for directory in sorted(directories):
                if (directory, True) not in self._watched:
                    self._watch(directory, whole=False)

    def _watch(self, directory: str, *, whole: bool) -> None:
        place = _place(directory)
        known = self._watched.get((directory, whole))
        if place is None or (known is not None and known.place == place):
            return
        if known is not None and known.watch is not None:
            # The kernel watches what lay there before, wherever it is now.
            self._observer.unschedule(known.watch)
        watch = None
        try:
            # One watch of the kernel for each folder, but one thread for all of a tree.
            watch = self._observer.schedule(self, directory, recursive=whole, event_filter=_CHANGES)
            if not self._started:
                self._observer.start()
                self._started = True
        except (OSError, RuntimeError) as error:
            if not self.trouble:
                _log.warning("%s is not watched: %s; the re-scan covers it", directory, error)
            self.trouble = f"{directory}: {error}"
        self._watched[directory, whole] = _Watch(place, watch)

    def state(self) -> dict[str, Any]:
        """What is watched: ``directories`` and ``trees`` (numbers), ``trouble`` (text)."""
        whole = [is_whole for (_, is_whole), known in self._watched.items() if known.watch]
        return {
            "directories": whole.count(False),
            "trees": whole.count(True),
            "trouble": self.trouble,
        }

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Called by watchdog in its own thread."""
        for path in (event.src_path, event.dest_path):
            if path:
                self._on_change(os.fsdecode(path))

    def stop(self) -> None:
        """End the watch; no callback comes after this returns."""
        if self._started:
            self._observer.stop()
            self._observer.join(timeout=5)


def _place(directory: str) -> tuple[int, int] | None:
    try:
        info = os.stat(directory)
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISDIR(info.st_mode) else None
