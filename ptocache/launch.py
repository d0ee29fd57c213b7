"""An artifact as the launch path wants it: a buffer, a path that a loader accepts, and loaded once.

``load`` keeps what a loader returned for the life of the process, per artifact, loader and device:
asking again gives the same handle. The artifact's file stays open as long, so that its path
(``/proc/self/fd/N``) can never come to mean another one, which a dynamic loader would not notice: it
knows libraries by their names.
"""

from __future__ import annotations

import os
import threading
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .result import ResultOutput

T = TypeVar("T")


class OpenArtifact:
    """An artifact that lies in an open, anonymous or stored, read-only file."""

    __slots__ = ("_fd", "digest", "size")

    def __init__(self, output: ResultOutput) -> None:
        """Raises :class:`OSError` if there is no room for another file."""
        self.digest = output.digest
        self.size = output.size
        if output.file is not None:
            self._fd = os.dup(output.file.fileno())
        else:
            self._fd = _anonymous(output.buffer, output.digest)

    @property
    def path(self) -> str:
        """A path that names the artifact in this process for as long as it is held."""
        if self._fd < 0:
            raise ValueError("the artifact is closed")
        return f"/proc/self/fd/{self._fd}"

    def close(self) -> None:
        """Give the file up; its path must not be used any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> OpenArtifact:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Loaded:
    """One handle on its way: the first who asks loads, the others wait for it."""

    __slots__ = ("artifact", "handle", "lock", "ready")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = False
        self.handle: object = None
        self.artifact: OpenArtifact | None = None


_table: dict[tuple[str, object, Hashable], _Loaded] = {}
_table_lock = threading.Lock()


def load(output: ResultOutput, loader: Callable[[str], T], device: Hashable = 0) -> T:
    """What ``loader(path)`` returns for this artifact, loaded once per process and device.

    ``loader`` is ``ctypes.CDLL``, or a function around a device's own loader; it is given a path.
    Raises what the loader raises; the next call then tries again.
    """
    key = (output.digest, loader, device)
    with _table_lock:
        entry = _table.setdefault(key, _Loaded())
    with entry.lock:
        if not entry.ready:
            artifact = OpenArtifact(output)
            try:
                entry.handle = loader(artifact.path)
            except BaseException:
                artifact.close()
                raise
            entry.artifact = artifact
            entry.ready = True
    found: T = entry.handle  # type: ignore[assignment]
    return found


def _after_fork() -> None:
    """A child must not wait for a lock that a thread of its parent held."""
    global _table_lock
    _table_lock = threading.Lock()
    for key, entry in list(_table.items()):
        if entry.ready:
            entry.lock = threading.Lock()
        else:
            del _table[key]


os.register_at_fork(after_in_child=_after_fork)


def _anonymous(data: memoryview, digest: str) -> int:
    fd = os.memfd_create(f"ptocache-{digest[:16]}", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BaseException:
        os.close(fd)
        raise
    return fd
