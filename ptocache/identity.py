"""Which toolchain is this? Located by the plugin, identified by content, confirmed by stat.

An identity is resolved once per (plugin, flavour, variables) and remembered: in memory, and in the store across
restarts. On every request a stat of the principal files, and of the empty earlier places of the search,
confirms it. Everything else that belongs to it (trees, libraries, the folders in which tools look for
each other) is confirmed when an event hints at it, by the periodic re-scan, and after each compile.

What is there and cannot be read, or moves while it is read, leaves an identity uncertain: what is
compiled with it is answered and not stored.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .digest import Digest, canonical
from .errors import ToolNotFoundError
from .manifest import LEFT_OUT, Manifest, Trees, holds
from .model import Component, Identity, Installation, ToolFile, Tree, select
from .signature import (
    Signature,
    links_on,
    moment,
    settled,
    signature_of,
    signature_of_link,
    unmoved,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .contents import Contents
    from .toolchain import Probe, Toolchain

SCHEMA = 2
_KNOWN_LIMIT = 1024
_LOOKS = 3
"""At a toolchain that is exchanged under each of them."""
_DOMAIN = b"ptocache identity\n"
_CPU_FIELDS = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)  # fmt: skip


class InstallationRecords(Protocol):
    """Where resolved installations outlive the daemon."""

    def load_installation(self, key: str) -> dict[str, Any] | None:
        """The record under this key, if any."""

    def save_installation(self, key: str, record: dict[str, Any]) -> None:
        """Remember one."""


class Options(NamedTuple):
    """The settings that identity depends on."""

    relocatable: bool = False
    trust_scripts: tuple[str, ...] = ()
    read: bool = True
    """False for who stores nothing: a toolchain is found and not identified; its digests are empty."""


class _Known(NamedTuple):
    identity: Identity
    principals: tuple[tuple[str, Signature | None], ...]
    others: tuple[tuple[str, Signature | None], ...]
    directories: tuple[tuple[str, Signature | None], ...]
    links: tuple[tuple[str, Signature], ...]
    """The links on the ways to its trees."""
    other_links: tuple[tuple[str, Signature], ...]
    """Those on the ways to its files."""
    trees: tuple[tuple[Tree, Manifest], ...]
    absent: tuple[str, ...]
    unsettled: tuple[tuple[str, str], ...]
    """(path, SHA-256) of files too fresh for their stamps to be trusted."""


class _Seen:
    """What one look at an installation gathers."""

    def __init__(self, uncertain: str) -> None:
        self.principals: list[tuple[str, Signature | None]] = []
        self.others: list[tuple[str, Signature | None]] = []
        self.unsettled: list[tuple[str, str]] = []
        self.trees: list[tuple[Tree, Manifest]] = []
        self.components: list[Component] = []
        self.uncertain = uncertain

    def doubt(self, why: str) -> None:
        """Leave it uncertain; the first reason stays."""
        self.uncertain = self.uncertain or why


_Memo = tuple[str, str, str, tuple[tuple[str, str], ...]]


class Standing(NamedTuple):
    """A remembered identity, to be confirmed again without looking it up."""

    known: _Known
    changes: object
    """Stands for what was known of all identities when this one was found."""

    @property
    def identity(self) -> Identity:
        """What stands."""
        return self.known.identity


class Identities:
    """Resolves and remembers identities. ``confirmed`` is for every request, the rest for misses."""

    def __init__(
        self,
        contents: Contents,
        probe: Probe,
        records: InstallationRecords | None = None,
        options: Options = Options(),
        on_found: Callable[[Iterable[str], Iterable[str]], None] | None = None,
    ) -> None:
        """``on_found`` is told the directories, and the roots of whole trees, that are worth watching."""
        self._contents = contents
        self._probe = probe
        self._records = records
        self._options = options
        self._on_found = on_found
        self.trees = Trees(records)
        self._known: dict[_Memo, _Known] = {}
        self._suspect: set[_Memo] = set()
        self._changes = object()
        """Another one after every change of the two above: what rests on an older one is looked up anew."""
        self._locks: dict[_Memo, threading.Lock] = {}
        self._cpu = cpu_signature()

    def confirmed(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> Identity | None:
        """The remembered identity, if a stat of its principal files confirms it."""
        standing = self.standing(toolchain, flavour, variables)
        return standing.identity if standing is not None else None

    def standing(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> Standing | None:
        """The same, in a form in which it is confirmed again by :meth:`stands` alone."""
        memo = (toolchain.name, toolchain.version, flavour, variables)
        # Before the look: what changes meanwhile makes the standing one of before.
        changes = self._changes
        known = self._known.get(memo)
        if known is None or memo in self._suspect or not self._confirms(known):
            return None
        return Standing(known, changes)

    def stands(self, standing: Standing) -> bool:
        """True if a stat of its principal files confirms it again, and nobody has learned better."""
        return standing.changes is self._changes and self._confirms(standing.known)

    def _confirms(self, known: _Known) -> bool:
        for path, signature in known.principals:
            if not unmoved(path, signature):
                return False
        # A tree that was renamed with its link has the same files in another place.
        for path, link in known.links:
            if signature_of_link(path) != link:
                return False
        # Not left to events: a compiler that was put first on the path counts from the next request on.
        for path in known.absent:
            if os.access(path, os.F_OK):
                return False
        return not known.unsettled or all(
            self._contents.sha256(path) == sha256 for path, sha256 in known.unsettled
        )

    def resolve(
        self,
        toolchain: Toolchain,
        flavour: str,
        variables: tuple[tuple[str, str], ...],
        since_s: float | None = None,
    ) -> Identity:
        """The identity now, or at ``since_s`` (monotonic) or later; locates, probes and reads what is
        not known. Slow, and one at a time for each toolchain.

        Raises :class:`~ptocache.errors.ToolNotFoundError` (and what the plugin raises).
        """
        memo = (toolchain.name, toolchain.version, flavour, variables)
        since_s = time.monotonic() if since_s is None else since_s
        with self._locks.setdefault(memo, threading.Lock()):
            # First: a hint that comes during the look is about what the look may not have seen.
            self._suspect.discard(memo)
            known = self._known.get(memo)
            known = self._reconfirmed(known, since_s) if known is not None else None
            if known is None:
                try:
                    known = self._look(toolchain, flavour, variables, since_s)
                except BaseException:
                    # What was known before must not be confirmed again.
                    self._known.pop(memo, None)
                    self._changes = object()
                    raise
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            self._learn(memo, known)
        if self._on_found is not None:
            self._on_found(*_worth_watching(known))
        return known.identity

    def _learn(self, memo: _Memo, known: _Known) -> None:
        if self._known.get(memo) is not known:
            self._known[memo] = known
            self._changes = object()

    def _doubt(self, memo: _Memo) -> None:
        self._suspect.add(memo)
        self._changes = object()

    def _look(
        self,
        toolchain: Toolchain,
        flavour: str,
        variables: tuple[tuple[str, str], ...],
        since_s: float,
    ) -> _Known:
        key = self._record_key(toolchain, flavour, variables)
        installation = self._remembered(key)
        if installation is not None:
            return self._identify(toolchain, installation, since_s)
        for _ in range(_LOOKS):
            asked_ns = moment()
            found = toolchain.locate(dict(variables), self._probe, flavour)
            known = self._identify(toolchain, found, since_s)
            # What a tool said of itself before it was exchanged is not true of the new one.
            if not any(sign and sign.ctime_ns > asked_ns for _, sign in known.principals):
                break
        self._remember(key, found, asked_ns)
        return known

    def unmoved(
        self,
        toolchain: Toolchain,
        flavour: str,
        variables: tuple[tuple[str, str], ...],
        identity: Identity,
    ) -> bool:
        """True if no file of this toolchain was touched since it was identified, and asking the
        tools again would find the same ones."""
        memo = (toolchain.name, toolchain.version, flavour, variables)
        since_s = time.monotonic()
        known = self._known.get(memo)
        if known is None or known.identity is not identity:
            return False
        # Stamps, not digests: what is as it was may have been something else meanwhile.
        if not self._files_unmoved(known) or not all(
            self._untouched(tree, manifest, since_s) for tree, manifest in known.trees
        ):
            self._doubt(memo)
            return False
        # A folder that moved may hold something new; the files alone do not tell.
        return self.resolve(toolchain, flavour, variables, since_s).digest == identity.digest

    def hint(self, path: str) -> None:
        """Something happened at ``path``: what lives there is confirmed in full when next asked."""
        for memo, known in list(self._known.items()):
            places = (*known.principals, *known.others, *known.directories)
            touched = any(path == place or os.path.dirname(path) == place for place, _ in places)
            if touched or path in known.absent or _in_trees(path, known.trees):
                self._doubt(memo)

    def rescan(self) -> int:
        """Confirm everything in full; returns how many identities are now in doubt."""
        since_s = time.monotonic()
        for memo, known in list(self._known.items()):
            fresh = self._reconfirmed(known, since_s)
            if fresh is None:
                self._doubt(memo)
            elif self._known.get(memo) is known:
                self._learn(memo, fresh)
        return len(self._suspect)

    def known(self) -> list[tuple[str, Identity]]:
        """Every identity in memory with its toolchain's name."""
        return [(memo[0], known.identity) for memo, known in list(self._known.items())]

    def counts(self) -> dict[str, int]:
        """``known`` identities, those in ``doubt``, and the ``files_read`` so far (of trees and by
        themselves): a hit reads none."""
        return {
            "known": len(self._known),
            "doubt": len(self._suspect),
            "files_read": self._contents.files_read + self.trees.files_read,
        }

    def _reconfirmed(self, known: _Known, since_s: float) -> _Known | None:
        """The same with fresh stamps of its trees; ``None`` if something has another content."""
        # The reason of an uncertainty may be gone without a trace in what was found.
        if (
            known.identity.uncertain
            or not self._files_unmoved(known)
            or any(signature_of(path) != sign for path, sign in known.directories)
        ):
            return None
        trees: list[tuple[Tree, Manifest]] = []
        for tree, manifest in known.trees:
            try:
                now = self.trees.manifest(tree, since_s)
            except OSError:
                return None
            if now.digest != manifest.digest:
                return None
            trees.append((tree, now))
        return known._replace(trees=tuple(trees))

    def _untouched(self, tree: Tree, manifest: Manifest, since_s: float) -> bool:
        try:
            return self.trees.manifest(tree, since_s).stamps == manifest.stamps
        except OSError:
            return False

    def _files_unmoved(self, known: _Known) -> bool:
        return (
            all(signature_of(path) == sign for path, sign in (*known.principals, *known.others))
            and not any(os.access(path, os.F_OK) for path in known.absent)
            and all(
                signature_of_link(path) == sign for path, sign in (*known.links, *known.other_links)
            )
            and all(self._contents.sha256(path) == sha256 for path, sha256 in known.unsettled)
        )

    def _identify(self, toolchain: Toolchain, installation: Installation, since_s: float) -> _Known:
        seen = _Seen(installation.uncertain)
        links = _links([tree.path for tree in installation.trees])
        other_links = _links([file.path for file in installation.files]) - links
        directories = tuple((path, signature_of(path)) for path in installation.directories)
        for file in installation.files:
            self._see_file(file, seen)
        for tree in installation.trees if self._options.read else ():
            self._see_tree(tree, since_s, seen)
        digest = ""
        if self._options.read:
            digest = identity_digest(
                toolchain, installation, seen.components, self._options.relocatable
            )
        return _Known(
            identity=Identity(digest, installation, tuple(seen.components), seen.uncertain),
            principals=tuple(seen.principals),
            others=tuple(seen.others),
            directories=directories,
            links=tuple(sorted(links)),
            other_links=tuple(sorted(other_links)),
            trees=tuple(seen.trees),
            absent=installation.absent,
            unsettled=tuple(seen.unsettled),
        )

    def _see_file(self, file: ToolFile, seen: _Seen) -> None:
        now_ns = time.time_ns()
        signature = signature_of(file.path)
        if signature is None:
            raise ToolNotFoundError(
                f"{file.path} ({file.role}) has vanished", path=file.path, looked=[file.path]
            )
        (seen.principals if file.principal else seen.others).append((file.path, signature))
        if not self._options.read:
            return
        # By its own name: a link that is moved to and fro makes nobody read it again.
        place = os.path.realpath(file.path)
        sha256 = self._contents.sha256(place)
        if not sha256:
            seen.doubt(f"{file.path} ({file.role}) cannot be read")
        elif signature_of(place) != signature:
            seen.doubt(f"{file.path} ({file.role}) changed while it was read")
        elif not settled(signature, now_ns):
            seen.unsettled.append((file.path, sha256))
        if not self._trusted(file):
            seen.doubt(
                f"{file.path} ({file.role}) is a script that may lead anywhere; "
                "identity.trust_scripts lists those to trust"
            )
        seen.components.append(
            Component(file.role, file.path, place, Digest(sha256, signature.size))
        )

    def _see_tree(self, tree: Tree, since_s: float, seen: _Seen) -> None:
        try:
            manifest = self.trees.manifest(tree, since_s)
        except OSError as error:
            seen.doubt(f"{tree.path} ({tree.role}) cannot be read: {error.strerror}")
            manifest = Manifest("", 0, 0, (os.path.realpath(tree.path),), b"")
        seen.trees.append((tree, manifest))
        seen.components.append(
            Component(
                tree.role,
                tree.path,
                os.path.realpath(tree.path),
                Digest(manifest.digest, manifest.size),
            )
        )

    def _trusted(self, file: ToolFile) -> bool:
        """A script may lead anywhere; only one that the user vouches for is identified by itself."""
        if file.followed:
            return True
        if {file.path, os.path.realpath(file.path)} & set(self._options.trust_scripts):
            return True
        try:
            with open(file.path, "rb") as opened:
                return opened.read(2) != b"#!"
        except OSError:
            return False

    def _record_key(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> str:
        asked = [SCHEMA, toolchain.name, toolchain.version, flavour, list(variables), self._cpu]
        return hashlib.sha256(canonical(asked)).hexdigest()

    def _remembered(self, key: str) -> Installation | None:
        """The installation of an earlier daemon, if no file and no directory of it moved."""
        record = self._records.load_installation(key) if self._records is not None else None
        if record is None:
            return None
        try:
            for path, fields in record["signatures"]:
                if signature_of(path) != (Signature(*fields) if fields else None):
                    return None
            if any(os.path.realpath(path) != place for path, place in record["canonical"]):
                return None
            installation = Installation(
                banner=record["banner"],
                files=tuple(ToolFile(*fields) for fields in record["files"]),
                absent=tuple(record["absent"]),
                trees=tuple(Tree(role, path, tuple(skip)) for role, path, skip in record["trees"]),
                directories=tuple(record["directories"]),
                facts=dict(record["facts"]),
                local=dict(record["local"]),
                uncertain=record["uncertain"],
            )
        except (KeyError, TypeError, ValueError):
            return None
        if any(os.access(path, os.F_OK) for path in installation.absent):
            return None
        return installation

    def _remember(self, key: str, installation: Installation, located_ns: int) -> None:
        # What is uncertain may be repaired without a trace in what was found.
        if self._records is None or installation.uncertain:
            return
        places = [file.path for file in installation.files] + list(installation.directories)
        signatures = [(path, signature_of(path)) for path in places]
        named = [file.path for file in installation.files] + [t.path for t in installation.trees]
        # A stamp as fresh as the look itself proves nothing later: ask the tools again next time.
        if any(sign is not None and not settled(sign, located_ns) for _, sign in signatures):
            return
        self._records.save_installation(
            key,
            {
                "banner": installation.banner,
                "files": [list(file) for file in installation.files],
                "absent": list(installation.absent),
                "trees": [[tree.role, tree.path, list(tree.skip)] for tree in installation.trees],
                "directories": list(installation.directories),
                "facts": dict(installation.facts),
                "local": dict(installation.local),
                "uncertain": installation.uncertain,
                "canonical": [[path, os.path.realpath(path)] for path in named],
                "signatures": [[path, list(sign) if sign else None] for path, sign in signatures],
            },
        )


def _worth_watching(known: _Known) -> tuple[set[str], set[str]]:
    """The directories, and the roots of whole trees, whose events tell of changes. Of a tree, what does
    not belong to it is left out: that may be much, and be written to all the time."""
    installation = known.identity.installation
    directories = set(installation.directories)
    directories.update(os.path.dirname(path) for path in installation.absent)
    links = (*known.links, *known.other_links)
    directories.update(os.path.dirname(path) for path, _ in links)
    for file in installation.files:
        directories.add(os.path.dirname(file.path))
        directories.add(os.path.dirname(os.path.realpath(file.path)))
    roots: set[str] = set()
    for tree, manifest in known.trees:
        top, *outside = manifest.roots
        roots.update(outside)
        if any(os.path.isdir(os.path.join(top, name)) for name in tree.skip):
            directories.add(top)
            roots.update(_folders(top, tree.skip))
        else:
            roots.add(top)
    return directories, roots


def _links(paths: list[str]) -> set[tuple[str, Signature]]:
    return {link for path in paths for link in links_on(path)}


def _folders(directory: str, skip: tuple[str, ...]) -> list[str]:
    try:
        with os.scandir(directory) as listing:
            return [
                entry.path
                for entry in listing
                if entry.is_dir(follow_symlinks=False) and entry.name not in (*skip, LEFT_OUT)
            ]
    except OSError:
        return []


def identity_digest(
    toolchain: Toolchain,
    installation: Installation,
    components: Iterable[Component],
    relocatable: bool = False,
) -> str:
    """SHA-256 hex of what identifies a toolchain: per file its role, the name under which it is
    invoked, its canonical path (unless ``relocatable``) and its content; the same of a tree, but for its
    name, by which nobody invokes it; and the plugin's facts. The banner is for people and does not count.
    """
    document = [
        SCHEMA,
        toolchain.name,
        sorted(
            [
                item.role,
                "" if item.role.startswith("tree:") else os.path.basename(item.path),
                "" if relocatable else item.canonical,
                item.digest.sha256,
            ]
            for item in components
        ),
        dict(installation.facts),
    ]
    return hashlib.sha256(_DOMAIN + canonical(document)).hexdigest()


def _in_trees(path: str, trees: tuple[tuple[Tree, Manifest], ...]) -> bool:
    """True if ``path`` (as an event names it: below a watched root) belongs to one of these trees."""
    return any(
        holds(Tree(tree.role, root, tree.skip if root == manifest.roots[0] else ()), path)
        for tree, manifest in trees
        for root in manifest.roots
    )


def cpu_signature(path: str = "/proc/cpuinfo") -> str:
    """SHA-256 hex over what a compiler can learn of this processor: its model and its features."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = file.read().split("\n\n", 1)[0]
    except OSError:
        first = os.uname().machine
    lines = [line for line in first.splitlines() if line.split(":")[0].strip() in _CPU_FIELDS]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def variables_of(toolchain: Toolchain, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables of ``env`` on which this toolchain's location depends, sorted by name."""
    return select(toolchain.SEARCH, env)
