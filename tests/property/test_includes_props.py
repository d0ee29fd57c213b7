"""Reading sources and dependency files: never an exception, names come back whole, and no place is left
out in which a new header would be read (against a preprocessor of a few lines)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ptocache.includes import TOKENS, SearchPath, absent_places, parse_depfile, scan

SEARCHES = int(os.environ.get("PTOCACHE_SEARCH_EXAMPLES", "500"))
few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=300, deadline=None)

NAMES = st.text(
    st.sampled_from("ab.\\ \t#$:%'*?[](){}=~&;!@+,\u00a0\u3000\u2028\x85\x0b\x0c\x1c\u00e9"),
    min_size=1, max_size=6,
).map(lambda text: f"x{text}.h")  # fmt: skip
PIECES = st.sampled_from(
    [b"#", b"include", b"include_next", b"__has_include", b"(", b")", b'"', b"<", b">", b"a.h", b" ", b"\n",
     b"\\", b"\\\n", b"/*", b"*/", b"//", b"__DATE__", b".incbin", b"%:", b"\t", b"\r\n", b"\xff", b"\0", b"M"]
)  # fmt: skip
SOUP = st.lists(PIECES | st.binary(max_size=3), max_size=40).map(b"".join)


@given(SOUP)
@many
def test_a_scan_of_anything_is_a_scan(text: bytes) -> None:
    found = scan(text)
    assert found.tokens <= set(TOKENS)
    assert all(name and "\n" not in name for name in (*found.quoted, *found.angled))


@given(
    SOUP, st.sampled_from(['"', "<"]), st.sampled_from(["include", "include_next", "  include\t"])
)
@many
def test_a_plain_include_is_found_whatever_stands_around_it(
    around: bytes, opening: str, word: str
) -> None:
    closing = {'"': '"', "<": ">"}[opening]
    line = f"\n#{word} {opening}sub/found.h{closing}\n".encode()
    found = scan(around.rstrip(b"\\\r \t\v\f") + line + around)
    assert "sub/found.h" in (found.quoted if opening == '"' else found.angled)


@given(SOUP, st.integers(0, 80))
@many
def test_splices_do_not_hide_an_include(around: bytes, at: int) -> None:
    line = b'#include "found.h"'
    at = min(at, len(line))
    spliced = line[:at] + b"\\\n" + line[at:]
    assert "found.h" in scan(b"\n" + spliced + b"\n" + around).quoted


@given(SOUP)
@many
def test_a_dependency_file_of_anything_gives_names(text: bytes) -> None:
    found = parse_depfile(os.fsdecode(text))
    assert len(set(found)) == len(found)
    assert all(found)


def escaped(name: str) -> str:
    """As GCC's manual and GNU make have it: see ``munge`` in GCC's mkdeps."""
    written = ""
    for index, letter in enumerate(name):
        if letter in " \t":
            run = len(name[:index]) - len(name[:index].rstrip("\\"))
            written += "\\" * run + "\\"
        elif letter == "#":
            written += "\\"
        elif letter == "$":
            written += "$"
        written += letter
    return written


@given(
    st.lists(NAMES, max_size=8, unique=True), st.sampled_from([" ", " \\\n ", "  ", " \\\r\n\t"])
)
@example(["x\\\\.h", "x\\ .h", "x\\\\ .h", "x\\#.h"], " ")
@many
def test_escaped_names_come_back(names: list[str], between: str) -> None:
    names = [name for name in names if "\\:" not in name]
    text = "0.o:" + "".join(between + escaped(name) for name in names) + "\n"
    assert parse_depfile(text) == tuple(names)


@given(st.lists(NAMES, min_size=1, max_size=20, unique=True))
@few
def test_names_come_back_from_the_compilers_own_dependency_file(names: list[str]) -> None:
    # Newer compilers escape colons, older ones do not: a backslash before one is not told apart.
    names = [name for name in names if "\\:" not in name]
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            Path(directory, name).touch()
        lines = "".join(f'#include "{name}"\n' for name in names)
        Path(directory, "k.c").write_text(lines)
        subprocess.run(
            ["cc", "-nostdinc", "-MD", "-MF", "d", "-c", "k.c", "-o", "0.o"],
            cwd=directory, check=True, capture_output=True,
        )  # fmt: skip
        found = parse_depfile(os.fsdecode(Path(directory, "d").read_bytes()))
    assert [name for name in found if name != "k.c"] == names


# --- the empty places of a search, against a preprocessor of a few lines

DIRECTORIES = ("/work", "/work/sub", "/q", "/q2", "/i1", "/i1/sub", "/i2", "/sys")
LEAVES = ("a.h", "b.h", "sub/a.h", "sub/b.h")
PLACES = tuple(sorted({f"{directory}/{leaf}" for directory in DIRECTORIES for leaf in LEAVES}))
QUOTE = ("/q", "/q2")
ANGLE = ("/i1", "/i1/sub", "/i2", "/sys")


class Line(NamedTuple):
    """One line of a file: what is done with which name, in which kind of quotes."""

    word: str
    """``include``, ``include_next`` or ``has`` (include it if it is there)."""
    quoted: bool
    name: str

    def text(self) -> str:
        operand = f'"{self.name}"' if self.quoted else f"<{self.name}>"
        if self.word == "has":
            return f"#if __has_include({operand})\n#include {operand}\n#endif"
        return f"#{self.word} {operand}"


LINES = st.lists(
    st.builds(
        Line, st.sampled_from(("include", "include_next", "has")), st.booleans(), st.sampled_from(LEAVES)
    ),
    max_size=3,
).map(tuple)  # fmt: skip
Tree = dict[str, tuple[Line, ...]]


def preprocess(files: Tree, source: tuple[Line, ...]) -> tuple[str, ...]:
    """The headers that are read, in order, each once (as if it had a guard); ends at a missing one.

    ``#include_next`` goes on behind the place in the chain where its file was found, whatever the
    quotes; for a file found beside its includer that is the chain's begin (GCC, ``search_path_head``).
    """
    chain = (*QUOTE, *ANGLE)
    read: list[str] = []

    def visit(lines: tuple[Line, ...], beside: str, position: int | None) -> bool:
        for line in lines:
            if line.word == "include_next" and position is not None:
                places = [(at, chain[at]) for at in range(position + 1, len(chain))]
            elif line.quoted:
                places = [(-1, beside), *enumerate(chain)]
            else:
                places = [(at, chain[at]) for at in range(len(QUOTE), len(chain))]
            hit = next(
                ((at, f"{d}/{line.name}") for at, d in places if f"{d}/{line.name}" in files), None
            )
            if hit is None:
                if line.word == "has":
                    continue
                return False
            at, path = hit
            if path not in read:
                read.append(path)
                if not visit(files[path], os.path.dirname(path), at):
                    return False
        return True

    return tuple(read) if visit(source, "/work", None) else (*read, "(missing)")


@given(
    st.dictionaries(st.sampled_from(PLACES), LINES, max_size=8),
    LINES,
    st.sampled_from(PLACES),
    LINES,
)
@settings(max_examples=SEARCHES, deadline=None)
def test_every_place_where_a_new_header_would_be_read_is_named(
    files: Tree, source: tuple[Line, ...], place: str, lines: tuple[Line, ...]
) -> None:
    opened = preprocess(files, source)
    if "(missing)" in opened or place in files:
        return
    texts = {"/work/k.c": source, **files}
    absent, present = absent_places(
        ("/work/k.c", *opened),
        lambda path: scan("\n".join(line.text() for line in texts[path]).encode()),
        files.__contains__,
        SearchPath(QUOTE, ANGLE),
    )
    assert set(present) <= set(files)
    assert not set(absent) & set(files)
    changed = preprocess({**files, place: lines}, source)
    if changed != opened:
        assert place in absent
