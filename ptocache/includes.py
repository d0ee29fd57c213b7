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
    from collections.abc import Callable, Iterable, Mapping

_COMPUTED_TEST = "computed __has_include"
_COMPUTED_INCLUDE = "computed #include"
_ASSEMBLER_INCLUDE = ".include"
_WORDS = ("__DATE__", "__TIME__", "__TIMESTAMP__", ".incbin")
_NEXT = "include_next"
ABSOLUTE_LINE = "absolute #line"
HIDDEN_INCLUDE = "hidden #include"
ONCE = "once"
TOKENS = (
    *_WORDS, _ASSEMBLER_INCLUDE, _COMPUTED_TEST, _COMPUTED_INCLUDE, _NEXT, ABSOLUTE_LINE, HIDDEN_INCLUDE,
    ONCE,
)  # fmt: skip
"""Words that decide whether a result may be kept, and findings about operands that were not read:
a computed test has no known place; a computed include has the places beside its file and in the
search path, and ``#include_next`` those behind its file, which :func:`absent_places` names. A ``#line`` that
may name an absolute place opens nothing, but that name is written into outputs. A hidden include is a
computed one that no comment only speaks of: it may name an absolute place. ``#pragma once`` and ``#import``
make it count which files are the same."""

BELOW_LIMIT = 2000
"""Most entries that are looked at for an include whose name a macro built."""

EMPTY_SCAN = Scan((), (), frozenset())

_INCLUDE = re.compile(
    rb"^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>)",
    re.MULTILINE,
)
_ANY_INCLUDE = re.compile(
    rb"^[^\n\"<]*?(?:#|%:|\?\?=)[^\n\"<]*\b(?:include|include_next|import|embed)\b", re.MULTILINE
)
_HAS_INCLUDE = re.compile(
    rb"__has_(?:include|include_next|embed)\b[ \t]*"
    rb"(?:\([ \t]*(?:\"([^\"\n]+)\"|<([^>\n]+)>)|([(/]))?"
)
# A line marker of preprocessed text has no word, and a macro may build what stands behind the word.
_LINE = re.compile(
    rb"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:line\b|(?=[0-9]))"
    rb"(?![ \t]*[0-9]+[ \t]*(?:\"[^/\"\n][^\"\n]*\"[ \t0-9]*)?\r?$)",
    re.MULTILINE,
)
_HIDDEN = re.compile(
    rb"^(?:[^\n]*\*/)?[ \t\f\v]*(?:#|%:|\?\?=)(?:[ \t\f\v]|/\*[^\n]*?\*/)*"
    rb"(?:include|include_next|import|embed)\b(?![ \t]*[\"<][^/\n])",
    re.MULTILINE,
)
_ONCE = re.compile(
    rb"(?:#|%:|\?\?=)[ \t]*(?:pragma[ \t]+once|import)\b|\b_Pragma[ \t]*\([ \t]*\"[ \t]*once\b"
)
# The assembler's own directive, in a string of the source: its operand is quoted.
_IN_ASSEMBLER = re.compile(rb"\.include[ \t]*\\?\"")
# Compilers accept blanks between the backslash and the end of the line.
_SPLICE = re.compile(rb"\\[ \t\f\v]*\r?\n")
_PLAIN_TOKENS = tuple(token.encode() for token in _WORDS)


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
    if _IN_ASSEMBLER.search(joined):
        tokens.add(_ASSEMBLER_INCLUDE)
    if _NEXT.encode() in joined:
        tokens.add(_NEXT)
    if _LINE.search(joined):
        tokens.add(ABSOLUTE_LINE)
    if any(not _INCLUDE.match(joined, found.start()) for found in _HIDDEN.finditer(joined)):
        tokens.add(HIDDEN_INCLUDE)
    if _ONCE.search(joined):
        tokens.add(ONCE)
    for match in _INCLUDE.finditer(joined):
        _note(match.group(1), match.group(2), quoted, angled)
    if any(not _INCLUDE.match(joined, found.start()) for found in _ANY_INCLUDE.finditer(joined)):
        tokens.add(_COMPUTED_INCLUDE)
    for match in _HAS_INCLUDE.finditer(joined):
        if match.group(3):
            tokens.add(_COMPUTED_TEST)
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
    # Not splitlines: its other line ends, and blanks beyond ASCII, are letters of a name here.
    return (line for line in re.sub(r"\\\r?\n", " ", text).replace("\r\n", "\n").split("\n"))


def _split_rule(line: str) -> tuple[str, str, str]:
    # A colon ends the target only before white space or the end: targets may hold colons themselves.
    match = re.search(r":(?=[ \t]|$)", line)
    if not match:
        return "", "", ""
    return line[: match.start()].strip(), ":", line[match.end() :]


def _words(text: str) -> Iterable[str]:
    for word in re.findall(r"(?:(?:\\\\)*\\[ \t]|\\+|[^ \t\\])+", text):
        yield re.sub(r"(\\+)([ \t#:])", _unescaped, word).replace("$$", "$")


def _unescaped(match: re.Match[str]) -> str:
    """Backslashes are doubled before a blank, one is put before ``#``, and elsewhere they are themselves."""
    run, follower = len(match.group(1)), match.group(2)
    return "\\" * (run - 1 if follower in "#:" else run // 2) + follower


def absent_places(
    opened: Iterable[str],
    scan_of: Callable[[str], Scan],
    exists: Callable[[str], bool],
    search: SearchPath,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The places that were empty when the compiler looked, and files whose mere presence counted.

    ``opened`` are all files that were read, the sources included, spelled as the compiler spells them.
    Returns (absent, present): both in the order of
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

    chain = (*search.quote, *search.angle)
    computing: dict[str, None] = {}
    going_on: list[str] = []
    beside_another: set[str] = set()
    for path in opened:
        found = scan_of(path)
        if found.quoted:
            beside = os.path.dirname(path)
            for name in found.quoted:
                look_up(name, (beside, *chain))
                beside_another.add(os.path.join(beside, name))
        for name in found.angled:
            look_up(name, search.angle)
        if _COMPUTED_INCLUDE in found.tokens:
            computing[os.path.dirname(path)] = None
        if _NEXT in found.tokens:
            going_on.append(path)
    for path in going_on:
        found = scan_of(path)
        for rest in _behind(path, chain, path in beside_another):
            for name in (*found.quoted, *found.angled):
                look_up(name, rest)
    for path in opened:
        # A name that a macro built may lead to a file that was also found in another way.
        if computing or path not in explained:
            for place in _earlier_places(path, tuple(computing), chain):
                # One that exists was passed over, or has come since: whoever asks for it will see.
                if place not in known:
                    (present if exists(place) else absent)[place] = None
    return tuple(absent), tuple(present)


def companions(
    inputs: Mapping[str, Scan],
    source_dir: str,
    scan_of: Callable[[str], Scan],
    exists: Callable[[str], bool],
    entries_of: Callable[[str], Iterable[str]],
) -> dict[str, str]:
    """Name in the private directory → file of the source's directory, for every file that a quoted
    include could find *beside* an input, or beside another companion.

    An input lies in a private directory while it is compiled, and "beside it" is where a compiler looks
    first. A search option for its own directory would not do: that holds for the quoted includes of every
    other header as well. Names may begin with ``..``. A name that a macro built may lead to any file
    below that directory (at most :data:`BELOW_LIMIT` of them are found).
    """
    found: dict[str, str] = {}
    computing: dict[str, str] = {}
    waiting = [(name, os.path.join(source_dir, name), seen) for name, seen in inputs.items()]
    while waiting:
        name, origin, seen = waiting.pop()
        operands = list(seen.quoted)
        if _COMPUTED_INCLUDE in seen.tokens:
            operands += entries_of(os.path.dirname(origin))
            computing[os.path.dirname(name)] = os.path.dirname(origin)
        for operand in operands:
            if os.path.isabs(operand):
                continue
            inside = os.path.normpath(os.path.join(os.path.dirname(name), operand))
            place = os.path.join(os.path.dirname(origin), operand)
            if inside in found or inside in inputs or not exists(place):
                continue
            found[inside] = place
            waiting.append((inside, place, scan_of(place)))
    for inside, place in _below(computing, exists, entries_of):
        if inside not in inputs:
            found.setdefault(inside, place)
    return found


def _below(
    roots: Mapping[str, str],
    exists: Callable[[str], bool],
    entries_of: Callable[[str], Iterable[str]],
) -> Iterable[tuple[str, str]]:
    """The files below the folders of ``roots`` (inside → origin), the nearest first."""
    folders = list(roots.items())
    looked_at = 0
    for inside, origin in folders:
        for entry in entries_of(origin):
            looked_at += 1
            if looked_at > BELOW_LIMIT:
                return
            place = os.path.join(origin, entry)
            name = os.path.normpath(os.path.join(inside, entry))
            if exists(place):
                yield name, place
            elif not entry.startswith("."):
                folders.append((name, place))


def unexplained(
    opened: Iterable[str],
    scan_of: Callable[[str], Scan],
    search: SearchPath,
    forced: Iterable[str] = (),
) -> tuple[str, ...]:
    """Those of ``opened`` that no relative operand leads to: an absolute one does, or one that a macro
    built, or the compiler made the name shorter. The first one is the source; ``forced`` are named by
    options."""
    opened = tuple(opened)
    known = set(opened)
    reached = {*opened[:1], *forced}
    for path in opened:
        found = scan_of(path)
        for operands, places in (
            (found.quoted, (os.path.dirname(path), *search.quote, *search.angle)),
            (found.angled, search.angle),
        ):
            for name in operands:
                if not os.path.isabs(name):
                    reached.update(
                        place for place in (os.path.join(d, name) for d in places) if place in known
                    )
    return tuple(path for path in opened if path not in reached)


def _behind(path: str, chain: tuple[str, ...], beside: bool) -> Iterable[tuple[str, ...]]:
    """Where ``#include_next`` goes on: behind each directory through which ``path`` may have been
    found, whatever its quotes; for a file found beside another one that is the chain's begin (GCC,
    ``search_path_head`` in libcpp)."""
    if beside:
        yield chain
    for index, directory in enumerate(chain):
        if path.startswith(directory.rstrip("/") + "/"):
            yield chain[index + 1 :]


def _earlier_places(path: str, computing: tuple[str, ...], chain: tuple[str, ...]) -> Iterable[str]:
    """For a header whose name a macro built: every earlier directory in which it might have stood,
    those beside the files that build names (``computing``) included."""
    earlier = list(computing)
    for directory in chain:
        prefix = directory.rstrip("/") + "/"
        if path.startswith(prefix):
            yield from (os.path.join(other, path[len(prefix) :]) for other in earlier)
        earlier.append(directory)
