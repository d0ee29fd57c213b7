"""File-system events turned into one callback with a path: a hint, never the truth.

Only changes are asked for. Without a filter, every start of a compiler would be an event ("opened").
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

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

_log = logging.getLogger("ptocache.watch")
_CHANGES: list[type[FileSystemEvent]] = [
    FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent,
    DirCreatedEvent, DirDeletedEvent, DirModifiedEvent, DirMovedEvent,
]  # fmt: skip


class Watcher(FileSystemEventHandler):
    """Watches directories (not what lies below their folders) until :meth:`stop`."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._observer = Observer()
        self._watched: set[str] = set()
        self._started = False
        self.trouble = ""
        """Why some directory is not watched (a limit of the kernel, no such file system)."""

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these too. What cannot be watched is left to the re-scan, and said once."""
        for directory in directories:
            if directory in self._watched or not os.path.isdir(directory):
                continue
            self._watched.add(directory)
            try:
                self._observer.schedule(self, directory, event_filter=_CHANGES)
                if not self._started:
                    self._observer.start()
                    self._started = True
            except (OSError, RuntimeError) as error:
                if not self.trouble:
                    _log.warning("%s is not watched: %s; the re-scan covers it", directory, error)
                self.trouble = f"{directory}: {error}"

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
