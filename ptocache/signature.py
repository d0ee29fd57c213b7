"""Stat signatures, and the clock that they can be compared with. Linux.

A signature that did not move means content that did not move, with one exception: two writes within
one step of the clock that stamps files. So a digest is remembered only for a file that has been quiet
for :data:`SETTLE_NS`; until then it is taken anew.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

SETTLE_NS = 2_000_000_000
"""Two seconds: the coarsest timestamps in use (FAT), and room for a file server's clock."""

# Linux's CLOCK_REALTIME_COARSE: file timestamps are taken from it (one step is 1 to 10 ms).
_COARSE_CLOCK = 5
_MOST_LINKS = 40


class Signature(NamedTuple):
    """What ``stat`` says of a file; link targets count, links do not."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def signature_of(path: str) -> Signature | None:
    """The signature of ``path``; ``None`` if there is nothing (or nothing that may be looked at)."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return Signature(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def links_on(path: str) -> tuple[tuple[str, Signature], ...]:
    """The symbolic links on the way to ``path``, each with the signature of the link itself: a link that
    was moved and moved back is another one."""
    found: list[tuple[str, Signature]] = []
    parts = path.split("/")[::-1]
    current = "/"
    while parts and len(found) < _MOST_LINKS:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        place = os.path.join(current, part)
        sign = signature_of_link(place)
        if sign is None:
            current = place
            continue
        found.append((place, sign))
        target = os.readlink(place)
        if target.startswith("/"):
            current = "/"
        parts += target.split("/")[::-1]
    return tuple(found)


def signature_of_link(path: str) -> Signature | None:
    """The signature of the symbolic link ``path`` itself; ``None`` if it is none."""
    try:
        info = os.lstat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISLNK(info.st_mode):
        return None
    return Signature(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def unmoved(path: str, known: Signature | None) -> bool:
    """True if ``path`` still has this signature; the form of :func:`signature_of` for every hit."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return known is None
    return (
        known is not None
        and info.st_ctime_ns == known.ctime_ns
        and info.st_mtime_ns == known.mtime_ns
        and info.st_size == known.size
        and info.st_ino == known.inode
        and info.st_dev == known.device
    )


def of_descriptor(fd: int) -> Signature:
    """The signature of an open file."""
    info = os.fstat(fd)
    return Signature(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def settled(signature: Signature, now_ns: int) -> bool:
    """True if the file was quiet for long enough at ``now_ns`` (wall clock) to trust its stamps."""
    return signature.ctime_ns + SETTLE_NS < now_ns and signature.mtime_ns + SETTLE_NS < now_ns


def moment() -> int:
    """A point in time that parts changes: what was changed before this call has a ctime (ns) at or
    before the result, what is changed after it returns has a later one. Waits one clock step."""
    now = time.time_ns()
    while time.clock_gettime_ns(_COARSE_CLOCK) <= now:
        time.sleep(0.001)
    return now
