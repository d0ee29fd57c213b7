"""Digests of large files that a client would read itself: asked of the daemon, whose memory outlives processes.

A framework's process that starts anew would hash its compilers again, hundreds of megabytes in all. The
daemon has their digests by stat signature, across restarts. A client says which file it means by path *and*
signature, and gets a digest only for exactly that one: a daemon that sees another file under the path (in
another container), or none, says nothing, and the client reads the file itself.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import BadRequestError
from .signature import Signature, settled, signature_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .contents import Contents

MAX_FILES = 64
"""Most files of one question."""
MAX_BYTES = 1 << 30
"""Most bytes of one file: what is larger the client reads itself, or leaves alone."""


class Meant(NamedTuple):
    """A file that a client means."""

    path: str
    signature: Signature


def parse(message: Mapping[str, Any]) -> list[Meant]:
    """The files of a ``digests`` message: a list of [path, device, inode, size, mtime_ns, ctime_ns].

    Raises :class:`~ptocache.errors.BadRequestError`.
    """
    rows = message.get("files")
    if not isinstance(rows, list) or len(rows) > MAX_FILES:
        raise BadRequestError(f"digests needs a list of at most {MAX_FILES} files")
    return [_meant(row) for row in rows]


def _meant(row: object) -> Meant:
    if not isinstance(row, list) or len(row) != 1 + len(Signature._fields):
        raise BadRequestError("a file is its path and the numbers of its stat signature")
    path, *numbers = row
    if not isinstance(path, str) or not path.startswith("/"):
        raise BadRequestError("a file needs an absolute path")
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in numbers):
        raise BadRequestError("a stat signature is numbers")
    return Meant(path, Signature(*numbers))


def digest(contents: Contents, meant: Meant) -> str:
    """SHA-256 hex of the regular file that is meant; empty if another one, or none, lies there, if it was
    written a moment ago, or is too large. Reads the file at most once in the life of a store."""
    if not _lies_there(meant) or not settled(meant.signature, time.time_ns()):
        return ""
    found = contents.sha256(meant.path)
    # What was read is what is meant only if nothing else came in between.
    return found if _lies_there(meant) else ""


def _lies_there(meant: Meant) -> bool:
    try:
        # Opening what is no file may do something by itself.
        regular = stat.S_ISREG(os.stat(meant.path).st_mode)
    except (OSError, ValueError):
        return False
    return (
        regular
        and meant.signature.size <= MAX_BYTES
        and signature_of(meant.path) == meant.signature
    )
