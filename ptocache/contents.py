"""What files hold, remembered by stat signature: digests, scans, and whether dependencies still hold."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import OrderedDict
from typing import NamedTuple, Protocol

from . import bases as base_dirs
from .bases import place
from .includes import EMPTY_SCAN, scan
from .model import SOURCE_BASE, Dependency
from .signature import Signature, of_descriptor, settled, signature_of, unmoved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .toolchain import Scan

PERSIST_BYTES = 256 << 10
"""Digests of files from this size on are kept across restarts; below it, reading is as cheap."""
SCAN_LIMIT_BYTES = 32 << 20
_MEMO_LIMIT = 200_000
_CHUNK = 1 << 20
_SEEN_LIMIT = 8
"""Different bases from which the conditions of one entry are remembered."""
_FEW = 2
"""``access`` of a name takes a third of the time of a ``stat``, and no settled stamp."""


class DigestRecords(Protocol):
    """Where digests of large files outlive the daemon."""

    def load_file_digest(self, path: str, signature: Signature) -> str:
        """SHA-256 hex of the file with exactly this signature; empty if unknown."""

    def save_file_digest(self, path: str, signature: Signature, sha256: str) -> None:
        """Remember one."""


class Contents:
    """Digests and scans of files. Thread-safe: every memo is replaced whole."""

    def __init__(self, records: DigestRecords | None = None) -> None:
        self._records = records
        self._digests: OrderedDict[str, tuple[Signature, str]] = OrderedDict()
        self._scans: dict[str, Scan] = {}
        self.files_read = 0
        """Files read so far: a hit reads none."""

    def sha256(self, path: str) -> str:
        """SHA-256 hex of the regular file at ``path``; empty if there is none."""
        known = self._digests.get(path)
        if known is not None and unmoved(path, known[0]):
            return known[1]
        signature = signature_of(path)
        if signature is None:
            return ""
        if self._records is not None and signature.size >= PERSIST_BYTES:
            remembered = self._records.load_file_digest(path, signature)
            if remembered:
                self._remember(path, signature, remembered)
                return remembered
        return self._read(path)

    def scan(self, path: str) -> Scan:
        """The scan of the file at ``path``; an empty one if it cannot be read."""
        digest = self.sha256(path)
        if not digest:
            return EMPTY_SCAN
        found = self._scans.get(digest)
        if found is None:
            try:
                with open(path, "rb") as file:
                    found = scan(file.read(SCAN_LIMIT_BYTES))
            except OSError:
                return EMPTY_SCAN
            if len(self._scans) >= _MEMO_LIMIT:
                self._scans.clear()
            self._scans[digest] = found
        return found

    def entries(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none if it cannot be read."""
        try:
            return sorted(os.listdir(directory))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """True if a compiler that looks for a file at ``path`` would find one."""
        try:
            return not stat.S_ISDIR(os.stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def _read(self, path: str) -> str:
        for _ in range(3):
            now_ns = time.time_ns()
            try:
                with open(path, "rb", opener=_open_at_once) as file:
                    before = of_descriptor(file.fileno())
                    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        return ""
                    digest = hashlib.sha256()
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                    after = of_descriptor(file.fileno())
            except (OSError, ValueError):
                return ""
            self.files_read += 1
            if before == after:
                break
        found = digest.hexdigest()
        if before == after and settled(before, now_ns):
            self._remember(path, before, found)
            if self._records is not None and before.size >= PERSIST_BYTES:
                self._records.save_file_digest(path, before, found)
        return found

    def _remember(self, path: str, signature: Signature, sha256: str) -> None:
        self._digests[path] = (signature, sha256)
        while len(self._digests) > _MEMO_LIMIT:
            self._digests.popitem(last=False)


class Conditions:
    """The dependencies of one entry, in the form in which they are checked on every hit.

    Many absent places of one directory are checked by it: a directory whose signature did not move since
    its places were all empty needs one ``stat``, however many they are. To look for a few is cheaper.
    """

    __slots__ = (
        "_absent",
        "_absent_here",
        "_few_absent",
        "_from",
        "_present",
        "_present_here",
        "_quiet",
        "_relative",
        "_told",
    )

    def __init__(self, dependencies: Iterable[Dependency]) -> None:
        self._told = dependencies = tuple(dependencies)
        self._relative = any(base_dirs.is_label(item.base) for item in dependencies)
        self._from: dict[tuple[str, ...], Conditions | None] = {}
        self._present: list[tuple[str, str]] = []
        self._present_here: list[tuple[str, str]] = []
        absent: dict[str, list[str]] = {}
        self._absent_here: list[str] = []
        self._quiet: dict[str, Signature] = {}
        for item in dependencies:
            here = item.base == SOURCE_BASE
            if item.sha256:
                (self._present_here if here else self._present).append((item.path, item.sha256))
            elif here:
                self._absent_here.append(item.path)
            else:
                absent.setdefault(os.path.dirname(item.path), []).append(item.path)
        self._absent = {place: paths for place, paths in absent.items() if len(paths) > _FEW}
        self._few_absent = tuple(
            path
            for paths in absent.values()
            if len(paths) <= _FEW
            for path in paths
            if "\0" not in path
        )

    def hold(self, contents: Contents, source_dir: str, bases: tuple[str, ...] = ()) -> bool:
        """True if every dependency is as it was for who asks from ``source_dir``, with ``bases``."""
        if bases or self._relative:
            here = self._seen_from(bases)
            return here is not None and here.hold(contents, source_dir)
        sha256 = contents.sha256
        for path, digest in self._present:
            if sha256(path) != digest:
                return False
        for path, digest in self._present_here:
            if sha256(os.path.join(source_dir, path)) != digest:
                return False
        for path in self._absent_here:
            if contents.exists(os.path.join(source_dir, path)):
                return False
        for path in self._few_absent:
            # What can be reached may still be a directory, which no compiler takes for a header.
            if os.access(path, os.F_OK) and contents.exists(path):
                return False
        return not self._absent or all(self._empty(contents, place) for place in self._absent)

    def _seen_from(self, bases: tuple[str, ...]) -> Conditions | None:
        """The same with the paths of who asks; ``None`` if they are no conditions of theirs."""
        if bases not in self._from:
            if len(self._from) >= _SEEN_LIMIT:
                self._from.clear()
            found = base_dirs.resolved(self._told, bases)
            self._from[bases] = Conditions(found) if found is not None else None
        return self._from[bases]

    def _empty(self, contents: Contents, directory: str) -> bool:
        quiet = self._quiet.get(directory)
        if quiet is not None and unmoved(directory, quiet):
            return True
        signature = signature_of(directory)
        if signature is None:
            return True
        now_ns = time.time_ns()
        if any(contents.exists(path) for path in self._absent[directory]):
            return False
        # A link that leads nowhere yet may lead somewhere without a trace in its directory.
        links = any(os.path.islink(path) for path in self._absent[directory])
        if settled(signature, now_ns) and not links:
            self._quiet[directory] = signature
        return True


class Observed(NamedTuple):
    """Discovered inputs turned into dependencies."""

    dependencies: tuple[Dependency, ...]
    moved: str
    """Path of an input that changed after the given moment; empty if none did."""


def observe(
    contents: Contents,
    present: Iterable[tuple[str, str]],
    absent: Iterable[tuple[str, str]],
    source_dir: str,
    since_ns: int,
) -> Observed:
    """Digest what a compile opened, and notice what changed since ``since_ns`` (see ``moment``)."""
    found: list[Dependency] = []
    moved = ""
    for base, path in present:
        full = place(base, path, source_dir)
        digest = contents.sha256(full)
        after = signature_of(full)
        # Whoever else may have read it meanwhile: what was changed since is not what was compiled.
        if not digest or after is None or after.ctime_ns > since_ns:
            moved = moved or full
        found.append(Dependency(base, path, digest))
    for base, path in absent:
        full = place(base, path, source_dir)
        if contents.exists(full):
            moved = moved or full
        found.append(Dependency(base, path, ""))
    return Observed(tuple(found), moved)


def _open_at_once(path: str, flags: int) -> int:
    # A pipe in a header's place must not stop whoever looks at it.
    return os.open(path, flags | os.O_NONBLOCK)
