"""Which files a C-family compile looked at: dependency files, include search, words that matter. Pure.

A dependency file lists what was opened. It does not list where the compiler looked before and found
nothing, and a file that appears there later changes the output. So the include operands of every
opened file are looked up again along the compiler's own search order, and each earlier empty place
becomes an *absent* dependency.

Sources: the GNU make rule syntax that ``-MD`` writes (GCC manual, "Preprocessor Options"), the search
order in the GCC manual, "Search Path", and ISO C 6.10.2.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .toolchain import Scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOKENS = ("__DATE__", "__TIME__", "__TIMESTAMP__", ".incbin", "computed __has_include")
"""Words that decide whether a result may be kept (the last one is a finding, not a word)."""

EMPTY_SCAN = Scan((), (), frozenset())

_INCLUDE = re.compile(
    rb"^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>)",
    re.MULTILINE,
)
_HAS_INCLUDE = re.compile(
    rb"__has_(?:include|include_next|embed)\b[ \t]*(?:\([ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>|(\w+)))?"
)
_SPLICE = re.compile(rb"\\\r?\n")
_PLAIN_TOKENS = tuple(token.encode() for token in TOKENS[:-1])


class SearchPath(NamedTuple):
    """The directories in which a compiler looks, in order; absolute."""

    quote: tuple[str, ...]
    """For ``#include "…"``, after the including file's own directory."""
    angle: tuple[str, ...]
    """For ``#include <…>``, and for quotes after ``quote``."""


def scan(text: bytes) -> Scan:
    """Find the include operands and the words of :data:`TOKENS` in a source's bytes.

    Comments and inactive branches count too: the answer may name more than the compiler reads,
    never less, except for what macros build.
    """
    joined = _SPLICE.sub(b"", text)
    quoted: dict[str, None] = {}
    angled: dict[str, None] = {}
    tokens = {token.decode() for token in _PLAIN_TOKENS if token in joined}
    for match in _INCLUDE.finditer(joined):
        _note(match.group(1), match.group(2), quoted, angled)
    for match in _HAS_INCLUDE.finditer(joined):
        if match.group(3):
            tokens.add(TOKENS[-1])
        else:
            _note(match.group(1), match.group(2), quoted, angled)
    return Scan(tuple(quoted), tuple(angled), frozenset(tokens))


def _note(
    quote: bytes | None, angle: bytes | None, quoted: dict[str, None], angled: dict[str, None]
) -> None:
    if quote is not None:
        quoted[os.fsdecode(quote)] = None
    elif angle is not None:
        angled[os.fsdecode(angle)] = None


def parse_depfile(text: str) -> tuple[str, ...]:
    """The prerequisites in a dependency file, in order, each once.

    Understands continued lines, escaped spaces, ``#`` and ``$$``, several rules, and the empty rules
    that ``-MP`` and linkers add.
    """
    found: dict[str, None] = {}
    for rule in _logical_lines(text):
        target, separator, rest = _split_rule(rule)
        if separator and target:
            for word in _words(rest):
                found[word] = None
    return tuple(found)


def _logical_lines(text: str) -> Iterable[str]:
    return (line for line in re.sub(r"\\\r?\n", " ", text).splitlines() if line.strip())


def _split_rule(line: str) -> tuple[str, str, str]:
    # A colon ends the target only before white space or the end: targets may hold colons themselves.
    match = re.search(r":(?=\s|$)", line)
    if not match:
        return "", "", ""
    return line[: match.start()].strip(), ":", line[match.end() :]


def _words(text: str) -> Iterable[str]:
    for word in re.findall(r"(?:\\.|\$\$|[^\s\\]|\\)+", text):
        yield re.sub(r"\\([ #\t\\:])", r"\1", word).replace("$$", "$")


def absent_places(
    opened: Iterable[str],
    scan_of: Callable[[str], Scan],
    exists: Callable[[str], bool],
    search: SearchPath,
    directory_of: Callable[[str], str] = os.path.dirname,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The places that were empty when the compiler looked, and files whose mere presence counted.

    ``opened`` are all files that were read, the sources included. ``directory_of`` gives the
    directory that stands for "beside this file" (a source lies in a private directory while it is
    compiled, and beside its headers for its author). Returns (absent, present): both in the order of
    the search; ``present`` are operands that exist but were not opened (``__has_include``, or a file
    that an inactive branch names).
    """
    opened = tuple(opened)
    known = set(opened)
    absent: dict[str, None] = {}
    present: dict[str, None] = {}
    explained: set[str] = set()

    def look_up(name: str, directories: Iterable[str]) -> None:
        places = (name,) if os.path.isabs(name) else (os.path.join(d, name) for d in directories)
        for place in places:
            if place in known:
                explained.add(place)
                return
            if exists(place):
                present[place] = None
                return
            absent[place] = None

    angle = search.angle
    for path in opened:
        found = scan_of(path)
        if found.quoted:
            beside = directory_of(path)
            for name in found.quoted:
                look_up(name, (beside, *search.quote, *angle))
        for name in found.angled:
            look_up(name, angle)
            _look_past_self(path, name, angle, look_up)
    for path in opened:
        if path not in explained:
            _explain_by_place(path, (*search.quote, *angle), exists, absent)
    return tuple(absent), tuple(present)


def _look_past_self(
    path: str, name: str, angle: tuple[str, ...], look_up: Callable[[str, Iterable[str]], None]
) -> None:
    """``#include_next`` goes on behind the directory of the file that says it."""
    for index, directory in enumerate(angle):
        if path == os.path.join(directory, name):
            look_up(name, angle[index + 1 :])


def _explain_by_place(
    path: str, directories: Iterable[str], exists: Callable[[str], bool], absent: dict[str, None]
) -> None:
    """For a header whose name a macro built: every earlier directory in which it might have stood."""
    earlier: list[str] = []
    for directory in directories:
        prefix = directory.rstrip("/") + "/"
        if path.startswith(prefix):
            for other in earlier:
                place = os.path.join(other, path[len(prefix) :])
                if not exists(place):
                    absent[place] = None
        earlier.append(directory)
