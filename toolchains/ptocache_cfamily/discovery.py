"""What a C-family compile looked at, as dependencies, and what in a source forbids keeping its result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ptocache.bases import relative
from ptocache.includes import (
    ABSOLUTE_LINE,
    HIDDEN_INCLUDE,
    ONCE,
    SearchPath,
    absent_places,
    parse_depfile,
    unexplained,
)
from ptocache.model import ABSOLUTE_BASE, SOURCE_BASE, Discovery
from ptocache.outcome import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ptocache.model import Job, Prepared
    from ptocache.toolchain import Files, Scan

    from .options import Options

EPOCH = "SOURCE_DATE_EPOCH"
INCLUDE_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_CLOCK_TOKENS = ("__DATE__", "__TIME__")
_FILE_CLOCK_TOKEN = "__TIMESTAMP__"
_UNSEEN_TOKENS = (".incbin", ".include", "computed __has_include")


class Places:
    """Where files lie: a relative name that a compiler used means an input, in the private directory,
    or a file in the source's own one."""

    def __init__(self, job: Job, workdir: str, files: Files) -> None:
        self._inside = workdir.rstrip("/") + "/"
        self._inputs = {item.name for item in job.inputs}
        self._source_dir = job.source_dir
        self._files = files

    def of(self, path: str) -> tuple[str, str] | None:
        """(base, path) of a dependency; ``None`` for an input, and for what can be nowhere else."""
        if not path.startswith(self._inside):
            return ABSOLUTE_BASE, path
        name = path[len(self._inside) :]
        if os.path.normpath(name) in self._inputs or not self._source_dir:
            return None
        return SOURCE_BASE, name

    def real(self, path: str) -> str:
        """The file behind a path as the compiler spelled it."""
        found = self.of(path)
        if found is None or found[0] == ABSOLUTE_BASE:
            return path
        return os.path.join(self._source_dir, found[1])

    def scan(self, path: str) -> Scan:
        """What the file behind a path includes."""
        return self._files.scan(self.real(path))

    def exists(self, path: str) -> bool:
        """True if there is a file behind a path."""
        return self._files.exists(self.real(path))

    def sha256(self, path: str) -> str:
        """The digest of the file behind a path; empty if there is none."""
        return self._files.sha256(self.real(path))


class Looked(NamedTuple):
    """Paths as the tools spelled them: what was opened, and earlier places that were empty."""

    opened: tuple[str, ...]
    absent: tuple[str, ...]
    fixed: bool = False
    """True if where a base lies (:mod:`ptocache.bases`) may have a say that shows nowhere."""


def looked_at(
    source: str,
    depfile: str,
    search: SearchPath,
    place: Places,
    workdir: str,
    bases: tuple[str, ...] = (),
    forced: tuple[str, ...] = (),
) -> Looked:
    """What the compile of one source looked at: the files of its dependency file (its text), and the
    places of the search in which they were not. ``bases``: those that count; ``forced``: canonical paths of
    headers that options name."""
    read = [os.path.join(workdir, path) for path in (source, *parse_depfile(depfile))]
    missing, met = absent_places(dict.fromkeys(read), place.scan, place.exists, search)
    return Looked(
        tuple(dict.fromkeys((*read, *met))),
        tuple(dict.fromkeys(missing)),
        bool(bases) and _is_fixed(read, met, search, place, bases, forced),
    )


def _is_fixed(
    read: list[str],
    met: Iterable[str],
    search: SearchPath,
    place: Places,
    bases: tuple[str, ...],
    forced: tuple[str, ...],
) -> bool:
    """True if a header of a base was not found by its place in the base, or a text names an absolute place
    as its own: who asks from another base would have read, or written, something else."""
    for path in read:
        found = place.scan(path)
        if ABSOLUTE_LINE in found.tokens or HIDDEN_INCLUDE in found.tokens:
            return True
        if any(relative(name, bases) for name in (*found.quoted, *found.angled)):
            # Asked for by its absolute name, found or not.
            return True
    known = set(read)
    if any(relative(path, bases) and os.path.realpath(path) in known for path in met):
        # Found through a link, and called by what that leads to.
        return True
    opened = dict.fromkeys(read)
    return _counts_once((*read, *met), place) or any(
        relative(path, bases) for path in unexplained(opened, place.scan, search, forced)
    )


def _counts_once(paths: Iterable[str], place: Places) -> bool:
    """True if the compiler may have passed over a file because it was the same as another one: that is a
    matter of links and, of files with the same content, of times (GCC, ``should_stack_file`` in libcpp)."""
    files = {os.path.normpath(path): path for path in paths}
    scans = {path: place.scan(path) for path in files.values()}
    if not any(ONCE in found.tokens for found in scans.values()):
        return False
    digests = [digest for path in files.values() if (digest := place.sha256(path))]
    return len(digests) != len(set(digests))


def discovery(
    job: Job,
    looked: Iterable[Looked],
    place: Places,
    covered: Callable[[str], bool] = lambda _: False,
    bases: tuple[str, ...] = (),
) -> Discovery:
    """The dependencies of a compile. What is ``covered`` by the toolchain's identity is none; it is
    judged all the same. What is called by its place below one of ``bases`` always is one: elsewhere there
    may be no link into the toolchain."""
    looked = tuple(looked)
    opened: dict[str, None] = {}
    absent: dict[str, None] = {}
    for item in looked:
        opened.update(dict.fromkeys(item.opened))
        absent.update(dict.fromkeys(item.absent))
    headers = [path for path in opened if place.of(path) is not None and not _is_library(path)]
    bypass, detail = _judge_headers(job, headers, place)
    return Discovery(
        present=tuple(_pairs(opened, place, covered, bases)),
        absent=tuple(_pairs(absent, place, covered, bases)),
        bypass=bypass,
        detail=detail,
        fixed=any(item.fixed for item in looked),
    )


def search_path(
    options: Options, env: Mapping[str, str], language_variable: str, own: Iterable[str]
) -> SearchPath:
    """The include search of a driver: ``own`` are the directories that it brings itself, and
    ``language_variable`` the path list of its language."""
    system = (
        *options.system,
        *path_list(env.get(language_variable, "")),
        *(() if options.no_system else own),
        *options.after,
    )
    # A directory that is also a system directory is searched among those only (GCC manual, -I).
    late = {os.path.realpath(path) for path in system}
    plain = (*options.angle, *path_list(env.get("CPATH", "")))
    first = [path for path in plain if os.path.realpath(path) not in late]
    quote = [path for path in options.quote if os.path.realpath(path) not in late]
    return SearchPath(tuple(quote), tuple(dict.fromkeys((*first, *system))))


def judge_sources(prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
    """A source that tells the time, or reads what nobody lists, makes a bypass."""
    if prepared.bypass:
        return prepared
    clock_set = dict(prepared.job.env).get(EPOCH, "")
    options = " ".join(prepared.job.options)
    for name, found in scans.items():
        for token in (*_CLOCK_TOKENS, _FILE_CLOCK_TOKEN):
            # An input's own time stamp is made from the same variable.
            if not clock_set and (token in found.tokens or token in options):
                return prepared._replace(bypass=Reason.TIME_MACRO, detail=f"{token} in {name}")
        for token in _UNSEEN_TOKENS:
            if token in found.tokens:
                return prepared._replace(bypass=Reason.UNSEEN_INPUT, detail=f"{token} in {name}")
    return prepared


def earlier_libraries(
    names: Iterable[str], directories: Iterable[str], opened: Iterable[str]
) -> Iterable[str]:
    """Places that come before the libraries that a linker opened: it looks for ``names`` (operands of
    ``-l``) in ``directories``, in order."""
    known = set(opened)
    directories = tuple(directories)
    for name in dict.fromkeys(names):
        files = (name[1:],) if name.startswith(":") else (f"lib{name}.so", f"lib{name}.a")
        earlier: list[str] = []
        for directory in directories:
            places = [os.path.join(directory, file) for file in files]
            hit = next((place for place in places if place in known), None)
            if hit is not None:
                yield from (*earlier, *places[: places.index(hit)])
                break
            earlier += places


def is_led_elsewhere(
    names: Iterable[str],
    directories: Iterable[str],
    opened: Iterable[str],
    bases: tuple[str, ...],
) -> bool:
    """True if a linker opened a file of a base that none of ``names`` stands for in ``directories``: a
    script of the linker, or a library, named its place."""
    files = [
        file
        for name in names
        for file in ((name[1:],) if name.startswith(":") else (f"lib{name}.so", f"lib{name}.a"))
    ]
    reached = {os.path.join(directory, file) for directory in directories for file in files}
    return any(relative(path, bases) and path not in reached for path in opened)


def canonical_path_list(text: str, cwd: str) -> str:
    """A list of directories with canonical members; an empty or relative one counts from ``cwd``."""
    return os.pathsep.join(
        os.path.realpath(os.path.join(cwd or "/", item)) for item in text.split(os.pathsep)
    )


def path_list(text: str) -> tuple[str, ...]:
    """The members of a list of directories, without empty ones."""
    return tuple(item for item in text.split(os.pathsep) if item)


def _pairs(
    paths: Iterable[str], place: Places, covered: Callable[[str], bool], bases: tuple[str, ...]
) -> Iterable[tuple[str, str]]:
    for path in paths:
        pair = place.of(path)
        if pair is None:
            continue
        if pair[0] != ABSOLUTE_BASE or relative(path, bases) or not covered(path):
            yield pair


def _is_library(path: str) -> bool:
    return path.endswith((".so", ".a", ".o")) or ".so." in path


def _judge_headers(job: Job, headers: Iterable[str], place: Places) -> tuple[Reason, str]:
    clock_set = dict(job.env).get(EPOCH, "")
    for spelled in headers:
        tokens, path = place.scan(spelled).tokens, place.real(spelled)
        for token in _CLOCK_TOKENS:
            if token in tokens and not clock_set:
                return Reason.TIME_MACRO, f"{token} in {path}"
        if _FILE_CLOCK_TOKEN in tokens:
            # A header's own time stamp is not content, and no variable sets it.
            return Reason.TIME_MACRO, f"{_FILE_CLOCK_TOKEN} in {path}"
        for token in _UNSEEN_TOKENS:
            if token in tokens:
                return Reason.UNSEEN_INPUT, f"{token} in {path}"
    return Reason.NONE, ""
