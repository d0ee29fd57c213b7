"""Digests of files that a framework's own compilers read besides what a key has: headers of the framework,
folders that flags name, the program of a compiler.

Contents are read once a process and remembered by their stat signature, so that asking again costs a stat
a file. Folders are read up to a limit; what is larger is *not known*, and a kernel made with it must not
be stored.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import NamedTuple

from .wrap import is_shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_FILES = 1024
"""Most files of all folders together."""
MAX_BYTES = 32 << 20
"""Most bytes of them."""
_MAX_PROGRAM = 1 << 30
_LARGE_BYTES = 256 << 10
"""From here on reading a file takes longer than asking for its digest."""
_MOST_ASKED = 64
_PIECE = 1 << 20
_SETTLED_NS = 2 * 10**9

_FOLDER_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
_FILE_FLAGS = ("-include", "-imacros")
# Whatever else brings in files that nobody lists here.
_UNKNOWN_FLAGS = (
    "@", "-L", "-l", "-B", "-T", "-Wl,", "-Wp,", "-Wa,", "-X", "-fplugin", "-iprefix", "-isysroot",
    "--sysroot", "--config", "-specs", "--gcc-toolchain", "-ivfsoverlay", "-fmodule",
)  # fmt: skip

_Signature = tuple[int, int, int, int, int]
_digests: dict[str, tuple[_Signature, str]] = {}


class Brought(NamedTuple):
    """What flags bring in."""

    known: bool
    """False if it cannot be said what it is."""
    digest: str
    """Of the names and contents of all of it; empty if it is nothing, or not known."""


def brought(flags: Sequence[str], path_lists: Iterable[str] = ()) -> Brought:
    """What compiler flags, and variables with lists of folders, bring in."""
    folders = [item for text in path_lists for item in text.split(os.pathsep) if item]
    named: list[str] = []
    rest = iter(flags)
    for word in rest:
        flag = next((item for item in (*_FOLDER_FLAGS, *_FILE_FLAGS) if word.startswith(item)), "")
        if flag:
            value = word[len(flag) :].removeprefix("=") or next(rest, "")
            (named if flag in _FILE_FLAGS else folders).append(value)
        elif word.startswith(_UNKNOWN_FLAGS) or _is_path(word):
            return Brought(False, "")
    if not folders and not named:
        return Brought(True, "")
    digest = digest_of_folders(folders, named)
    return Brought(bool(digest), digest)


def _is_path(word: str) -> bool:
    """True for a word by itself that may be a file; the operand of another flag may be plain text."""
    return not word.startswith("-") and ("/" in word or os.path.exists(word))


def digest_of_folders(folders: Iterable[str], more: Iterable[str] = ()) -> str:
    """Digest of all files below these folders, with their names relative to them, and of ``more`` files;
    empty if that is too much, or something cannot be read. A folder that is not there holds nothing."""
    total = hashlib.sha256()
    count = size = 0
    try:
        for number, folder in enumerate(folders):
            for name, path in _walk(folder):
                found = _digest(path, MAX_BYTES - size)
                count, size = count + 1, size + found[1]
                if not found[0] and os.path.islink(path) and not os.path.exists(path):
                    continue
                if not found[0] or count > MAX_FILES:
                    return ""
                total.update(f"{number}\0{name}\0{found[0]}\0".encode("utf-8", "surrogateescape"))
    except OSError:
        return ""
    for path in more:
        found = _digest(path, MAX_BYTES)
        if not found[0]:
            return ""
        total.update(f"\0{found[0]}\0".encode())
    return total.hexdigest()


def digest_of_program(name: str, path: str) -> str:
    """Digest of an executable as it would be started by ``name``; empty if it cannot be read."""
    if not name:
        return ""
    folders = [""] if "/" in name else path.split(os.pathsep)
    digests = (_digest(os.path.join(folder, name), _MAX_PROGRAM)[0] for folder in folders)
    return next((found for found in digests if found), "")


def learn(paths: Iterable[str], ask: Callable[[list[list[object]]], object]) -> None:
    """Have the digests of large files from who keeps them, so that this process need not read them.

    ``ask`` is given lists of a path and the five numbers of its signature, and gives a digest for each, empty
    where it has none for exactly that file. What comes of it or not changes no digest, only who reads.
    """
    wanted = [(path, sign) for path in paths if (sign := _worth_asking(path)) is not None]
    for start in range(0, len(wanted), _MOST_ASKED):
        part = wanted[start : start + _MOST_ASKED]
        found = ask([[path, *sign] for path, sign in part])
        if not isinstance(found, list) or len(found) != len(part):
            return
        for (path, sign), digest in zip(part, found, strict=True):
            if isinstance(digest, str) and len(digest) == hashlib.sha256().digest_size * 2:
                _digests[path] = (sign, digest)


def _worth_asking(path: str) -> _Signature | None:
    """The signature of a large file that is not known here, and that has been quiet."""
    try:
        info = os.stat(path)
        path.encode()
    except (OSError, ValueError):
        return None
    sign = _signature(info)
    known = _digests.get(path)
    if (
        not path.startswith("/")
        or not stat.S_ISREG(info.st_mode)
        or not _LARGE_BYTES <= info.st_size <= _MAX_PROGRAM
        or not _is_settled(info)
        or (known is not None and known[0] == sign)
    ):
        return None
    return sign


def behind_shims(program: str, path: str) -> str:
    """The program itself, or, if it is a shim of ptocache, the next of its name on ``path`` that is none;
    empty if there is none."""
    if not is_shim(program):
        return program
    name = os.path.basename(program)
    places = [os.path.join(folder, name) for folder in path.split(os.pathsep) if folder]
    return next((item for item in places if os.access(item, os.X_OK) and not is_shim(item)), "")


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """(relative name, path) of the files below a folder, in order. A folder that is met again (a link
    upwards) is not entered again."""
    if not os.path.isdir(folder):
        return
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        info = os.stat(place)
        if (info.st_dev, info.st_ino) in seen:
            folders.clear()
            continue
        seen.add((info.st_dev, info.st_ino))
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            yield os.path.relpath(path, folder), path


def _raise(error: OSError) -> None:
    raise error


def _digest(path: str, limit: int) -> tuple[str, int]:
    """SHA-256 and size of a file; an empty text if it cannot be read or has more than ``limit`` bytes."""
    try:
        info = os.stat(path)
        signature = _signature(info)
        known = _digests.get(path)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            return "", 0
        if known is not None and known[0] == signature:
            return known[1], info.st_size
        found = hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError:
        return "", 0
    if _is_settled(info):
        _digests[path] = (signature, found.hexdigest())
    return found.hexdigest(), info.st_size


def _signature(info: os.stat_result) -> _Signature:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _is_settled(info: os.stat_result) -> bool:
    # Written a moment ago, it may be written again within the same tick of the file system's clock.
    return abs(time.time_ns() - info.st_ctime_ns) > _SETTLED_NS
