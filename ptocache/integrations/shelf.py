"""Folders for the files of kernels that a process uses: a loader wants a path, for as long as it likes.

Each process has one folder, in the system's place for temporary files, which it removes at its end. One
that was killed leaves its folder to the next process: a folder is in use for as long as anybody holds its
lock, and forked children hold that of their parent.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading

_PREFIX = "ptocache-kernels-"


class Shelf:
    """The folder of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._root = ""
        self._held = -1
        self._count = 0

    def place(self) -> str:
        """A new, empty folder that stays until the process ends.

        Raises :class:`OSError` if it cannot be made.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._open()
            self._count += 1
            place = os.path.join(self._root, str(self._count))
        os.mkdir(place, 0o700)
        return place

    def _open(self) -> None:
        if not self._pid:
            sweep()
        while True:
            root = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.geteuid()}-")
            held = _locked(root)
            if held >= 0:
                break
        # What a parent left here is held open on purpose: its kernels are this process's too.
        self._root, self._held, self._pid, self._count = root, held, os.getpid(), 0
        atexit.register(self._close, os.getpid())

    def _close(self, pid: int) -> None:
        if pid != os.getpid() or pid != self._pid:
            return
        os.close(self._held)
        self._pid = 0
        _remove(self._root)

    def after_fork(self) -> None:
        """A child must not wait for a lock that a thread of its parent held."""
        self._lock = threading.Lock()


def sweep() -> None:
    """Remove what killed processes of this user left."""
    place = tempfile.gettempdir()
    prefix = f"{_PREFIX}{os.geteuid()}-"
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        if name.startswith(prefix):
            _remove(os.path.join(place, name))


def _remove(root: str) -> None:
    """Remove a folder of this user that nobody holds."""
    held = _locked(root)
    if held >= 0:
        shutil.rmtree(root, ignore_errors=True)
        os.close(held)


def _locked(root: str) -> int:
    """A descriptor that holds the lock of a folder; -1 if it cannot be had."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        info = os.fstat(fd)
        if info.st_uid == os.geteuid() and not stat.S_IMODE(info.st_mode) & 0o022:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Removed by a sweep between its making and its lock?
            if os.stat(root).st_ino == info.st_ino:
                return fd
    except OSError:
        pass
    os.close(fd)
    return -1


shelf = Shelf()
"""The one of this process."""
os.register_at_fork(after_in_child=shelf.after_fork)
