"""The values that travel between the parts: frozen, comparable, without behaviour.

Named tuples instead of dataclasses, because the client imports this file in every fresh process of
its user and ``dataclasses`` alone costs more than the rest of the client.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

from .digest import Digest
from .outcome import Outcome, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

SOURCE_BASE = "source"
"""Base of a dependency that was found relative to the source's own directory."""
ABSOLUTE_BASE = ""
"""Base of a dependency with an absolute path."""


class Input(NamedTuple):
    """A named input: a relative POSIX path without ``..`` and the digest of its bytes."""

    name: str
    digest: Digest


class Job(NamedTuple):
    """What a caller wants compiled; everything but ``source_dir``, ``cwd`` and ``kernel`` counts, and of
    ``bases`` what lies below them instead of where they lie."""

    toolchain: str
    arch: str
    """Target, in the toolchain's own words; empty for the toolchain's default."""
    options: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """The declared variables only, in the order of their names."""
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    """Names of the outputs wanted, out of those that the toolchain offers."""
    symbols: tuple[str, ...] = ()
    """Symbols that the artifact must define."""
    source_dir: str = ""
    """Canonical absolute directory from which quoted includes resolve; empty if there is none."""
    cwd: str = ""
    """Absolute directory from which relative paths in options resolve."""
    kernel: str = ""
    """A name for people (``stats``, ``invalidate --kernel``)."""
    bases: tuple[str, ...] = ()
    """Canonical directories that paths count relative to (:mod:`ptocache.bases`), known by their positions."""


Bound = tuple[tuple[int, str], ...]
"""(position, directory) of the bases that something holds for alone; empty if it holds for any."""


class ToolFile(NamedTuple):
    """A file that makes a toolchain what it is."""

    role: str
    path: str
    """Absolute path, spelled as the tool is invoked (its name may decide what it does)."""
    principal: bool
    """True if its stat signature is confirmed on every request, not only by events and re-scans."""
    followed: bool = False
    """True for a script whose way the plugin followed: what it leads to is among the files and trees."""


class Tree(NamedTuple):
    """A directory whose whole content belongs to a toolchain (:mod:`ptocache.manifest`)."""

    role: str
    """``tree:`` and a word."""
    path: str
    """Absolute path."""
    skip: tuple[str, ...] = ()
    """Names at its top that do not belong to it."""


class Installation(NamedTuple):
    """What a plugin found: the files of a toolchain and what it learned from asking them."""

    banner: str
    """The version text, for people; it is not what identifies the toolchain."""
    files: tuple[ToolFile, ...]
    absent: tuple[str, ...] = ()
    """Paths whose appearance would change what was found (earlier places of the search)."""
    trees: tuple[Tree, ...] = ()
    """Whole directories that belong to it: libraries, headers, what a launcher may lead to."""
    directories: tuple[str, ...] = ()
    """Directories (and files), there or not yet, that decide what the tool itself would find: they do not
    identify it, but when one of them moves it is located again."""
    facts: Mapping[str, Any] = {}
    """What the tools said when asked; all of it is part of the identity. Text, lists and maps."""
    local: Mapping[str, Any] = {}
    """What the tools said of this machine (``-march=native``); a job that depends on it says so in
    its key, so it is not part of the identity."""
    uncertain: str = ""
    """Why this toolchain cannot be identified for sure; empty when it can."""

    def path(self, role: str) -> str:
        """The path of the file with this role; empty if there is none."""
        for file in self.files:
            if file.role == role:
                return file.path
        return ""


class Component(NamedTuple):
    """One identified file of a toolchain."""

    role: str
    path: str
    canonical: str
    digest: Digest


class Identity(NamedTuple):
    """Which toolchain this is: a digest over names, places, contents and facts."""

    digest: str
    """SHA-256, lower-case hex."""
    installation: Installation
    components: tuple[Component, ...]
    uncertain: str = ""
    """Why nothing compiled with it may be stored; empty when it may."""


class Prepared(NamedTuple):
    """A job in the toolchain's own normal form: paths canonical, defaults explicit."""

    job: Job
    keyed: tuple[tuple[str, str], ...] = ()
    """Further labelled facts that belong into the key."""
    bypass: Reason = Reason.NONE
    """Why the result must not be stored, if it must not."""
    detail: str = ""
    """The bypass in words: which option, which input."""
    looked: bool = False
    """True if the file system had a say (canonical paths): the same job may be prepared otherwise
    the next time."""
    bases: tuple[str, ...] = ()
    """The bases of the job that count here, at their positions; empty if the toolchain knows none."""
    paths: tuple[int, ...] = ()
    """Which of the job's options are paths: they enter the key relative to their base."""
    path_lists: tuple[str, ...] = ()
    """Variables that hold lists of paths: the same."""


class Step(NamedTuple):
    """One run of a tool inside the private directory."""

    name: str
    argv: tuple[str, ...]
    """``argv[0]`` is the absolute path under which the tool was found."""
    creates: tuple[str, ...]
    """Files that must exist afterwards, relative to the private directory."""
    depfile: str = ""
    """The dependency file that the step writes; empty if it opens nothing undeclared."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that follow from the installation or the job, added to those of the job; they win over
    the constants of every compile, except ``TMPDIR``."""
    cwd: str = ""
    """Where it runs, if not in the private directory: for a command whose output depends on that. All that
    it opens there must be found out by :meth:`~ptocache.toolchain.Toolchain.discover`."""


class Discovery(NamedTuple):
    """What a compile really looked at, as (base, path) pairs."""

    present: tuple[tuple[str, str], ...] = ()
    """Files that were opened."""
    absent: tuple[tuple[str, str], ...] = ()
    """Places that come earlier in a search and held nothing."""
    bypass: Reason = Reason.NONE
    detail: str = ""
    fixed: bool = False
    """True if the result may depend on where the job's bases lie in a way that does not show in it: it then
    holds for these bases alone."""


class Dependency(NamedTuple):
    """A discovered input with its content: the digest's hex, or empty for "there was no such file"."""

    base: str
    """:data:`ABSOLUTE_BASE`, :data:`SOURCE_BASE`, or a label of :mod:`ptocache.bases`."""
    path: str
    sha256: str


class Output(NamedTuple):
    """A file that a compile made, still in memory or mapped."""

    name: str
    data: bytes | memoryview
    mode: int
    """Permission bits."""


class StoredOutput(NamedTuple):
    """An output as an entry names it."""

    name: str
    digest: Digest
    mode: int
    checksum: bytes
    """XXH3-128 of the bytes, 16 bytes big-endian."""


class Log(NamedTuple):
    """What the tools printed: exact bytes, bounded; a cut is noted at the end of the bytes."""

    stdout: bytes = b""
    stderr: bytes = b""


class Provenance(NamedTuple):
    """How an entry came to be; for people, never for keys."""

    commands: tuple[tuple[str, ...], ...]
    components: tuple[Component, ...]
    banner: str
    aslr_off: bool
    """True if address-space randomisation was off for every step."""
    ptocache: str
    """The version that compiled it."""


class Descriptor:
    """An open file that is closed with its last holder, so that nobody closes it under another.

    The file offset may be shared with other processes: map it or use ``os.pread``, never ``read``.
    """

    __slots__ = ("_close", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Bound here: at interpreter exit the module may be gone before its last descriptor.
        self._close = os.close

    def fileno(self) -> int:
        """The descriptor's number; raises :class:`ValueError` once closed."""
        if self._fd < 0:
            raise ValueError("the descriptor is closed")
        return self._fd

    def close(self) -> None:
        """Close it now; closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    def __del__(self) -> None:
        self.close()


class Artifact(NamedTuple):
    """An output as an answer carries it: inline bytes, or an open descriptor of a read-only file."""

    name: str
    digest: Digest
    mode: int
    data: bytes | None
    file: Descriptor | None = None


class Answer(NamedTuple):
    """How a request ended, with what it gave."""

    outcome: Outcome
    key: str
    reason: Reason = Reason.NONE
    detail: str = ""
    """The reason in words, or why this was a miss."""
    artifacts: tuple[Artifact, ...] = ()
    log: Log = Log()
    exit_code: int = 0
    compile_ms: int = 0
    """What the compile cost when it ran; on a hit, what was saved."""
    identity: str = ""
    error: Mapping[str, Any] | None = None
    packed: bytes = b""
    """The answer as the wire carries it, if it was packed before; not part of its value."""


class Environment(Protocol):
    """What :func:`select` needs of a mapping of variables."""

    def get(self, name: str, /) -> str | None:
        """The value; ``None`` if it is not set."""

    def __iter__(self) -> Iterator[str]:
        """The names."""

    def __getitem__(self, name: str, /) -> str:
        """The value; raises :class:`KeyError`."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Names and values."""


def select(patterns: Iterable[str], env: Environment) -> tuple[tuple[str, str], ...]:
    """The variables of ``env`` that the patterns name (``fnmatch`` forms), sorted by name.

    Here, because client and daemon must choose alike.
    """
    chosen: dict[str, str] = {}
    for pattern in patterns:
        if "*" in pattern or "?" in pattern or "[" in pattern:
            from fnmatch import fnmatchcase

            chosen.update((name, env[name]) for name in env if fnmatchcase(name, pattern))
        else:
            value = env.get(pattern)
            if value is not None:
                chosen[pattern] = value
    return tuple(sorted(chosen.items()))
