"""Which toolchain is this? Located by the plugin, identified by content, confirmed by stat.

An identity is resolved once per (plugin, flavour, variables) and remembered: in memory, and in the store across
restarts. On every request a stat of the principal files confirms it. Everything else that belongs to
it (libraries, the folders in which tools look for each other, the empty earlier places of a search) is
confirmed when an event hints at
it, by the periodic re-scan, and before and after each compile.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .digest import Digest, canonical
from .errors import ToolNotFoundError
from .model import Component, Identity, Installation, ToolFile, select
from .signature import Signature, settled, signature_of, unmoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .contents import Contents
    from .toolchain import Probe, Toolchain

SCHEMA = 1
_KNOWN_LIMIT = 1024
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


class _Known(NamedTuple):
    identity: Identity
    principals: tuple[tuple[str, Signature | None], ...]
    others: tuple[tuple[str, Signature | None], ...]
    directories: tuple[tuple[str, Signature | None], ...]
    absent: tuple[str, ...]
    unsettled: tuple[tuple[str, str], ...]
    """(path, SHA-256) of files too fresh for their stamps to be trusted."""


_Memo = tuple[str, str, str, tuple[tuple[str, str], ...]]


class Identities:
    """Resolves and remembers identities. ``confirmed`` is for every request, the rest for misses."""

    def __init__(
        self,
        contents: Contents,
        probe: Probe,
        records: InstallationRecords | None = None,
        options: Options = Options(),
        on_found: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._contents = contents
        self._probe = probe
        self._records = records
        self._options = options
        self._on_found = on_found
        self._known: dict[_Memo, _Known] = {}
        self._suspect: set[_Memo] = set()
        self._lock = threading.Lock()
        self._cpu = cpu_signature()

    def confirmed(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> Identity | None:
        """The remembered identity, if a stat of its principal files confirms it."""
        memo = (toolchain.name, toolchain.version, flavour, variables)
        known = self._known.get(memo)
        if known is None or memo in self._suspect:
            return None
        for path, signature in known.principals:
            if not unmoved(path, signature):
                return None
        # Not left to events: a compiler that was put first on the path counts from the next request on.
        for path in known.absent:
            if os.access(path, os.F_OK):
                return None
        for path, sha256 in known.unsettled:
            if self._contents.sha256(path) != sha256:
                return None
        return known.identity

    def resolve(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> Identity:
        """The identity now; locates, probes and reads what is not known. Slow, and one at a time.

        Raises :class:`~ptocache.errors.ToolNotFoundError` (and what the plugin raises).
        """
        memo = (toolchain.name, toolchain.version, flavour, variables)
        with self._lock:
            # First: a hint that comes during the look is about what the look may not have seen.
            self._suspect.discard(memo)
            known = self._known.get(memo)
            if known is not None and self._unmoved(known):
                return known.identity
            try:
                known = self._look(toolchain, flavour, variables)
            except BaseException:
                # What was known before must not be confirmed again.
                self._known.pop(memo, None)
                raise
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            self._known[memo] = known
        if self._on_found is not None:
            self._on_found(self._directories(known.identity.installation))
        return known.identity

    def _look(
        self, toolchain: Toolchain, flavour: str, variables: tuple[tuple[str, str], ...]
    ) -> _Known:
        key = self._record_key(toolchain, flavour, variables)
        installation = self._remembered(key)
        if installation is None:
            before = time.time_ns()
            installation = toolchain.locate(dict(variables), self._probe, flavour)
            self._remember(key, installation, before)
        return self._identify(toolchain, installation)

    def unmoved(
        self,
        toolchain: Toolchain,
        flavour: str,
        variables: tuple[tuple[str, str], ...],
        identity: Identity,
    ) -> bool:
        """True if no file of this toolchain was touched since it was identified, and asking the
        tools again would find the same ones."""
        known = self._known.get((toolchain.name, toolchain.version, flavour, variables))
        if known is None or known.identity is not identity or not self._files_unmoved(known):
            return False
        # A folder that moved may hold something new; the files alone do not tell.
        return self.resolve(toolchain, flavour, variables).digest == identity.digest

    def hint(self, path: str) -> None:
        """Something happened at ``path``: what lives there is confirmed in full when next asked."""
        for memo, known in list(self._known.items()):
            places = (*known.principals, *known.others, *known.directories)
            touched = any(path == place or os.path.dirname(path) == place for place, _ in places)
            if touched or path in known.absent:
                self._suspect.add(memo)

    def rescan(self) -> int:
        """Confirm everything in full; returns how many identities are now in doubt."""
        for memo, known in list(self._known.items()):
            if not self._unmoved(known):
                self._suspect.add(memo)
        return len(self._suspect)

    def known(self) -> list[tuple[str, Identity]]:
        """Every identity in memory with its toolchain's name."""
        return [(memo[0], known.identity) for memo, known in list(self._known.items())]

    def _unmoved(self, known: _Known) -> bool:
        return self._files_unmoved(known) and all(
            signature_of(path) == sign for path, sign in known.directories
        )

    def _files_unmoved(self, known: _Known) -> bool:
        return (
            all(signature_of(path) == sign for path, sign in (*known.principals, *known.others))
            and not any(os.access(path, os.F_OK) for path in known.absent)
            and all(self._contents.sha256(path) == sha256 for path, sha256 in known.unsettled)
        )

    def _identify(self, toolchain: Toolchain, installation: Installation) -> _Known:
        principals: list[tuple[str, Signature | None]] = []
        others: list[tuple[str, Signature | None]] = []
        unsettled: list[tuple[str, str]] = []
        components: list[Component] = []
        uncertain = installation.uncertain
        directories = tuple((path, signature_of(path)) for path in installation.directories)
        for file in installation.files:
            now_ns = time.time_ns()
            signature = signature_of(file.path)
            (principals if file.principal else others).append((file.path, signature))
            sha256 = self._contents.sha256(file.path)
            if signature is None or not sha256:
                raise ToolNotFoundError(
                    f"{file.path} ({file.role}) cannot be read", path=file.path, looked=[file.path]
                )
            if not settled(signature, now_ns):
                unsettled.append((file.path, sha256))
            if not self._trusted(file):
                uncertain = uncertain or f"{file.path} ({file.role}) is a script"
            components.append(
                Component(
                    file.role,
                    file.path,
                    os.path.realpath(file.path),
                    Digest(sha256, signature.size),
                )
            )
        digest = identity_digest(toolchain, installation, components, self._options.relocatable)
        identity = Identity(digest, installation, tuple(components), uncertain)
        return _Known(
            identity,
            tuple(principals),
            tuple(others),
            directories,
            installation.absent,
            tuple(unsettled),
        )

    def _trusted(self, file: ToolFile) -> bool:
        """A script may lead anywhere; only one that the user vouches for is identified by itself."""
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
            installation = Installation(
                banner=record["banner"],
                files=tuple(ToolFile(*fields) for fields in record["files"]),
                absent=tuple(record["absent"]),
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
        if self._records is None:
            return
        places = [file.path for file in installation.files] + list(installation.directories)
        signatures = [(path, signature_of(path)) for path in places]
        # A stamp as fresh as the look itself proves nothing later: ask the tools again next time.
        if any(sign is not None and not settled(sign, located_ns) for _, sign in signatures):
            return
        self._records.save_installation(
            key,
            {
                "banner": installation.banner,
                "files": [list(file) for file in installation.files],
                "absent": list(installation.absent),
                "directories": list(installation.directories),
                "facts": dict(installation.facts),
                "local": dict(installation.local),
                "uncertain": installation.uncertain,
                "signatures": [[path, list(sign) if sign else None] for path, sign in signatures],
            },
        )

    @staticmethod
    def _directories(installation: Installation) -> set[str]:
        found = set(installation.directories)
        found.update(os.path.dirname(path) for path in installation.absent)
        for file in installation.files:
            found.add(os.path.dirname(file.path))
            found.add(os.path.dirname(os.path.realpath(file.path)))
        return found


def identity_digest(
    toolchain: Toolchain,
    installation: Installation,
    components: Iterable[Component],
    relocatable: bool = False,
) -> str:
    """SHA-256 hex of what identifies a toolchain: per file its role, the name under which it is
    invoked, its canonical path (unless ``relocatable``) and its content; and the plugin's facts.
    The banner is for people and does not count."""
    document = [
        SCHEMA,
        toolchain.name,
        sorted(
            [
                item.role,
                os.path.basename(item.path),
                "" if relocatable else item.canonical,
                item.digest.sha256,
            ]
            for item in components
        ),
        dict(installation.facts),
    ]
    return hashlib.sha256(_DOMAIN + canonical(document)).hexdigest()


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
    return select((*toolchain.ENV, *toolchain.SEARCH), env)
