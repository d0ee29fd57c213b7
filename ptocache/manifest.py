"""What a directory tree holds, as one digest: read once, afterwards confirmed by stamps.

A manifest is the SHA-256 of the canonical list of what lies in the tree, in the order of the names:

    [relative name, "file", SHA-256 of its bytes]
    [relative name, "program", SHA-256]    a file that somebody may execute
    [relative name, "directory", ""]       its own things follow
    [relative name, "again", relative name under which this directory was met before]
    [relative name, "unreadable", ""]      also what is neither file nor directory, and dangling links
    [relative name, "above", ""]           a link to a directory in which the tree itself lies

Links are followed, to files and to directories alike, so that a tree is the same wherever it was
unpacked, whichever of its directories is the link to the other, and whether a file is a copy or a link.
A directory is entered once. ``__pycache__`` is left out: it holds what a run of the tool makes of the
sources beside it.

Stamps decide what is read again (:mod:`ptocache.signature`); nothing here rests on events. Thread-safe.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import operator
import os
import stat
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from .digest import canonical
from .signature import Signature, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .model import Tree

SCHEMA = 2
LEFT_OUT = "__pycache__"
MOST_THINGS = 500_000
"""Most files in one tree: beyond it, a link leads where no toolchain is."""
_THREADS = 4
_CHUNK = 1 << 20
_HEX = 64
_PROGRESS_S = 2.0
_SUMMARY, _FILES = f"tree {SCHEMA}:", f"tree-files {SCHEMA}:"
_BATCH = 64
_ANYBODY_EXECUTES = 0o111
_FIVE = struct.Struct("=QQqqq").pack
_name = operator.attrgetter("name")
_log = logging.getLogger("ptocache.manifest")


class TreeRecords(Protocol):
    """Where manifests outlive the daemon."""

    def load_installation(self, key: str) -> dict[str, Any] | None:
        """The record under this key, if any."""

    def save_installation(self, key: str, record: dict[str, Any]) -> None:
        """Remember one."""


class Manifest(NamedTuple):
    """What a tree held when it was looked at."""

    digest: str
    """SHA-256, lower-case hex."""
    files: int
    size: int
    """Bytes of all files together."""
    roots: tuple[str, ...]
    """Canonical directories that lead to all of it: the tree first, then what its links lead to outside."""
    stamps: bytes
    """Hash over names, links and signatures. Equal ones say that nothing was touched in between; equal
    digests only that what was touched is as it was."""


class _Found(NamedTuple):
    """One thing in a tree, by its stamps alone."""

    name: str
    kind: str
    detail: str
    path: str
    signature: Signature | None
    link: tuple[int, ...] = ()
    """(inode, ctime) of the link by which it is reached, if it is one: a link that was turned away and
    back is another one."""


class _Known(NamedTuple):
    """The last look at a tree."""

    began_s: float
    settled: bool
    """False if a file was too fresh for its stamps to be trusted."""
    manifest: Manifest


class Trees:
    """Manifests of trees, remembered by stamps, across restarts if there are records."""

    def __init__(self, records: TreeRecords | None = None) -> None:
        self._records = records
        self._known: dict[str, _Known] = {}
        self._files: dict[str, dict[str, tuple[Signature, str]]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self.files_read = 0
        """Files read so far: a tree that did not move costs none."""

    def manifest(self, tree: Tree, since_s: float | None = None) -> Manifest:
        """The manifest as it is now: a look that began after this call, or at ``since_s`` (monotonic)
        or later. Callers that come while one looks share the next look, however many they are.

        Raises :class:`OSError` if the tree itself is no directory that can be read, or holds too much.
        """
        asked_s = time.monotonic() if since_s is None else since_s
        key = _key(tree)
        with self._locks.setdefault(key, threading.Lock()):
            known = self._known.get(key) or self._remembered(key)
            if known is not None and known.began_s >= asked_s:
                return known.manifest
            found = self._look(tree, key, known)
            self._known[key] = found
            return found.manifest

    def _look(self, tree: Tree, key: str, known: _Known | None) -> _Known:
        began_s = time.monotonic()
        now_ns = time.time_ns()
        os.scandir(tree.path).close()
        things, roots = _walk(tree)
        stamps = _stamps(things)
        if known is not None and known.settled and known.manifest.stamps == stamps:
            return known._replace(began_s=began_s)
        before = self._files.pop(key, None) or self._remembered_files(key)
        digests = self._digests(tree, things, before)
        listed = [[t.name, t.kind, digests.get(t.name, t.detail)] for t in things]
        manifest = Manifest(
            digest=hashlib.sha256(canonical([SCHEMA, listed])).hexdigest(),
            files=len(digests),
            size=sum(t.signature.size for t in things if t.signature is not None),
            roots=roots,
            stamps=stamps,
        )
        quiet = all(t.signature is None or settled(t.signature, now_ns) for t in things)
        # Read while it was written to: what was read may be neither the old nor the new file.
        again, _ = _walk(tree)
        found = _Known(began_s, quiet and _stamps(again) == stamps, manifest)
        self._save(key, things, digests, found, now_ns)
        return found

    def _digests(
        self, tree: Tree, things: list[_Found], before: dict[str, tuple[Signature, str]]
    ) -> dict[str, str]:
        """SHA-256 hex by name, read where the stamps are not those of ``before``."""
        digests: dict[str, str] = {}
        unread: list[_Found] = []
        for thing in things:
            if thing.signature is None:
                continue
            known = before.get(thing.name)
            if known is not None and known[0] == thing.signature:
                digests[thing.name] = known[1]
            else:
                unread.append(thing)
        if unread:
            digests.update(self._read(tree, unread))
        for thing in unread:
            # It may be run though not read: then only its stamps tell one from another.
            if not digests[thing.name] and thing.kind == "program":
                digests[thing.name] = f"unread {thing.signature}"
        return digests

    def _read(self, tree: Tree, unread: list[_Found]) -> Iterator[tuple[str, str]]:
        """(name, SHA-256 hex) of each file, with a line of progress in the log now and then."""
        total = sum(item.signature.size for item in unread if item.signature is not None)
        done = done_bytes = 0
        said_s = began_s = time.monotonic()
        batches = [unread[start : start + _BATCH] for start in range(0, len(unread), _BATCH)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="tree") as pool:
            for batch, digests in zip(batches, pool.map(_sha256_each, batches), strict=True):
                done += len(batch)
                done_bytes += sum(item.signature.size for item in batch if item.signature)
                if time.monotonic() - said_s > _PROGRESS_S:
                    said_s = time.monotonic()
                    _log.info(
                        "reading %s: %d of %d files, %d of %d MiB",
                        tree.path, done, len(unread), done_bytes >> 20, total >> 20,
                    )  # fmt: skip
                yield from zip((item.name for item in batch), digests, strict=True)
        self.files_read += len(unread)
        _log.info(
            "read %d files (%d MiB) of %s in %.1f s",
            len(unread), total >> 20, tree.path, time.monotonic() - began_s,
        )  # fmt: skip

    # --- across restarts

    def _remembered(self, key: str) -> _Known | None:
        record = self._records.load_installation(_SUMMARY + key) if self._records else None
        if record is None:
            return None
        try:
            manifest = Manifest(
                str(record["digest"]),
                int(record["files"]),
                int(record["size"]),
                tuple(record["roots"]),
                bytes(record["stamps"]),
            )
            return _Known(float("-inf"), bool(record["settled"]), manifest)
        except (KeyError, TypeError, ValueError):
            return None

    def _remembered_files(self, key: str) -> dict[str, tuple[Signature, str]]:
        record = self._records.load_installation(_FILES + key) if self._records else None
        if record is None:
            return {}
        try:
            return {
                name: (Signature(*fields), sha256.hex()) for name, fields, sha256 in record["files"]
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}

    def _save(
        self,
        key: str,
        things: list[_Found],
        digests: dict[str, str],
        found: _Known,
        now_ns: int,
    ) -> None:
        kept = {
            thing.name: (thing.signature, digests[thing.name])
            for thing in things
            if thing.signature is not None
            and settled(thing.signature, now_ns)
            and len(digests[thing.name]) == _HEX
        }
        if self._records is None:
            self._files[key] = kept
            return
        files = [[name, list(sign), bytes.fromhex(sha256)] for name, (sign, sha256) in kept.items()]
        self._records.save_installation(_FILES + key, {"files": files})
        self._records.save_installation(
            _SUMMARY + key,
            {
                **found.manifest._asdict(),
                "roots": list(found.manifest.roots),
                "settled": found.settled,
            },
        )


def holds(tree: Tree, path: str) -> bool:
    """True if ``path``, as spelled, lies in the part of the tree that its manifest covers."""
    root = tree.path.rstrip("/") + "/"
    if not path.startswith(root):
        return False
    parts = path[len(root) :].split("/")
    return parts[0] not in tree.skip and LEFT_OUT not in parts and ".." not in parts


def covering(trees: tuple[Tree, ...]) -> Callable[[str], bool]:
    """A function that is true for paths, however spelled, that the trees' manifests cover."""
    real = tuple(tree._replace(path=os.path.realpath(tree.path)) for tree in trees)

    def covered(path: str) -> bool:
        if any(path == tree.path or holds(tree, path) for tree in trees):
            return True
        canonical_path = os.path.realpath(path)
        return any(canonical_path == tree.path or holds(tree, canonical_path) for tree in real)

    return covered


def _key(tree: Tree) -> str:
    """Plain text whatever the names are: paths need not be UTF-8."""
    asked = [os.path.realpath(tree.path), sorted(tree.skip)]
    return hashlib.sha256(canonical(asked)).hexdigest()


def _walk(tree: Tree) -> tuple[list[_Found], tuple[str, ...]]:
    """Everything in the tree in the order of the names, and the directories that lead to it."""
    root = os.path.realpath(tree.path)
    met = {root: ""}
    roots = [root]
    things: list[_Found] = []
    # A stack, and each directory's things before those of the directories in it: an order that depends
    # on names alone.
    waiting = [(root, "")]
    while waiting:
        directory, prefix = waiting.pop()
        below: list[tuple[str, str]] = []
        for entry in _listed(directory):
            if entry.name == LEFT_OUT or (not prefix and entry.name in tree.skip):
                continue
            thing = _thing(entry, prefix)
            if thing.kind == "directory":
                real = os.path.realpath(entry.path) if thing.link else entry.path
                if real in met:
                    thing = thing._replace(kind="again", detail=met[real])
                elif real == "/" or root.startswith(real + "/"):
                    thing = thing._replace(kind="above")
                elif not os.access(entry.path, os.R_OK | os.X_OK):
                    thing = thing._replace(kind="unreadable")
                else:
                    met[real] = thing.name
                    if thing.link and not any(real.startswith(item + "/") for item in roots):
                        roots.append(real)
                    below.append((real, thing.name + "/"))
            things.append(thing)
        if len(things) > MOST_THINGS:
            raise OSError(errno.E2BIG, f"more than {MOST_THINGS} files", tree.path)
        waiting += reversed(below)
    return things, tuple(roots)


def _listed(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as listing:
            return sorted(listing, key=_name)
    except OSError:
        return []


def _thing(entry: os.DirEntry[str], prefix: str) -> _Found:
    name, path, link = prefix + entry.name, entry.path, ()  # type: str, str, tuple[int, ...]
    try:
        if entry.is_symlink():
            own = entry.stat(follow_symlinks=False)
            link = (own.st_ino, own.st_ctime_ns)
        info = entry.stat()
    except OSError:
        return _Found(name, "unreadable", "", path, None, link)
    if stat.S_ISREG(info.st_mode):
        sign = Signature(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        kind = "program" if info.st_mode & _ANYBODY_EXECUTES else "file"
        return _Found(name, kind, "", path, sign, link)
    kind = "directory" if stat.S_ISDIR(info.st_mode) else "unreadable"
    return _Found(name, kind, "", path, None, link)


def _stamps(things: list[_Found]) -> bytes:
    """Of names, kinds, links and signatures."""
    hashed = xxhash.xxh3_128()
    for name, kind, detail, _, signature, link in things:
        hashed.update(os.fsencode(f"{name}\0{kind}\0{detail}\0"))
        if signature is not None:
            hashed.update(_FIVE(*signature))
        if link:
            hashed.update(b"link %d %d\0" % link)
    return hashed.digest()


def _sha256_each(things: list[_Found]) -> list[str]:
    buffer = bytearray(_CHUNK)
    return [_sha256(thing.path, buffer) for thing in things]


def _sha256(path: str, buffer: bytearray) -> str:
    """SHA-256 hex of a file; empty if it may not be read, which is then all that a tool sees of it.

    Raises :class:`OSError` for any other trouble: it says nothing about the file.
    """
    digest = hashlib.sha256()
    try:
        # At once: a pipe may have come into the file's place.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (PermissionError, FileNotFoundError):
        return ""
    try:
        while size := os.readv(fd, [buffer]):
            digest.update(memoryview(buffer)[:size])
    finally:
        os.close(fd)
    return digest.hexdigest()
