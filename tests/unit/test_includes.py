"""What a C compile looked at: dependency files, scans, and the empty places of the search, judged by
the machine's own compiler: wherever a new header would be read, the place must have been named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from ptocache.includes import (
    ABSOLUTE_LINE,
    EMPTY_SCAN,
    HIDDEN_INCLUDE,
    ONCE,
    TOKENS,
    SearchPath,
    absent_places,
    companions,
    parse_depfile,
    scan,
    unexplained,
)
from ptocache.toolchain import Scan

LINES = [
    ('#line 7 "/a/x.h"', True), ('# 7 "/a/x.h" 3 4', True), ("#line N F", True), ('#line N "x.h"', True),
    ('  %:line 7 "/a/x.h"', True), ('??=line 7 "/a/x.h"', True), ('#\\\nline 7 "/a/x.h"', True),
    ("#line 7", False), ('#line 7 "x.h"', False), ('# 7 "x.h" 1 3', False), ("# 7\r", False),
    ("#define line 7", False), ("int line; // 7 #", False), ("#include <x.h>", False), ("#lines", False),
    ('#line 7 "x.h" /a', True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "is_absolute"), LINES)
def test_a_line_directive_that_may_name_an_absolute_place_is_noticed(
    text: str, is_absolute: bool
) -> None:
    found = scan(f"int a;\n{text}\nint b;\n".encode())
    assert (ABSOLUTE_LINE in found.tokens) is is_absolute


HIDDEN = [
    ("#include M", True), ("# include_next M", True), ("  %:include M(x)", True), ("??=import M", True),
    ('/* a */ #include "/a/x.h"', True), ('/* a\n b */ #include "/a/x.h"', True),
    ("#/* a */include/* b */</a/x.h>", True), ("#in\\\nclude M", True), ("#include /* <x.h> */ M", True),
    ('#include "/a/x.h"', False), ('#include "x.h"', False), ("/* a */ #include <x.h>", False),
    (" * Do not #include this", False), ("// #include M", False), ('#error "include M"', False),
    ("#error include M", False), ("#define include M", False), ("#includes M", False), ("#if A\n", False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "is_hidden"), HIDDEN)
def test_an_include_that_may_name_an_absolute_place_unseen_is_noticed(
    text: str, is_hidden: bool
) -> None:
    found = scan(f"int a;\n{text}\nint b;\n".encode())
    assert (HIDDEN_INCLUDE in found.tokens) is is_hidden


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("#pragma once", True), ("# pragma  once", True), ("%:pragma once", True), ("#import <x.h>", True),
        ('_Pragma ( "once" )', True), ("#pra\\\ngma once", True),
        ("int once;", False), ("#pragma onces", False), ("#pragma GCC poison once", False),
    ],
)  # fmt: skip
def test_a_file_that_is_read_once_is_noticed(text: str, counts: bool) -> None:
    assert (ONCE in scan(f"int a;\n{text}\nint b;\n".encode()).tokens) is counts


def test_what_no_relative_operand_leads_to_is_unexplained() -> None:
    texts = {
        "/s/k.c": '#include "a.h"\n#include <b.h>\n#include "/p/abs.h"\n#include M\n',
        "/s/a.h": '#include "../up.h"\n',
        "/i/b.h": '#include "beside.h"\n',
    }
    search = SearchPath(("/q",), ("/i",))
    explained = ["/s/k.c", "/s/a.h", "/s/../up.h", "/i/b.h", "/i/beside.h", "/f/forced.h"]
    opened = [*explained, "/p/abs.h", "/q/macro.h"]
    found = unexplained(
        opened, lambda path: scan(texts.get(path, "").encode()), search, ("/f/forced.h",)
    )
    assert found == ("/p/abs.h", "/q/macro.h")


# --- dependency files


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("\n\n", ()),
        ("k.o:", ()),
        ("k.o: k.c", ("k.c",)),
        ("k.o: k.c a.h\n", ("k.c", "a.h")),
        ("k.o: k.c \\\n a.h \\\n b.h\n", ("k.c", "a.h", "b.h")),
        ("k.o: k.c \\\r\n a.h\r\n", ("k.c", "a.h")),
        ("k.o:\\\n k.c", ("k.c",)),
        ("k.o: k.c a.h k.c a.h\n", ("k.c", "a.h")),
        ("k.o k.d: k.c\n", ("k.c",)),
        ("k.o: a.h\n\na.h:\n\nb.h:\n", ("a.h",)),
        ("k.o: a.h\nk.p: b.h a.h\n", ("a.h", "b.h")),
        ("k.o: with\\ space.h a\\\tb.h\n", ("with space.h", "a\tb.h")),
        ("k.o: hash\\#.h money$$.h\n", ("hash#.h", "money$.h")),
        ("k.o: two$$$$.h\n", ("two$$.h",)),
        ("k.o: colon\\:.h drive:x.h\n", ("colon:.h", "drive:x.h")),
        ("k.o: back\\slash.h end\\\\\\ x.h\n", ("back\\slash.h", "end\\ x.h")),
        ("dir:with:colons/k.o: a.h\n", ("a.h",)),
        ("no rule at all\n", ()),
        (": a.h\n", ()),
        # As the linkers write it.
        ("out.so: \\\n  0.o \\\n  /lib/libc.so.6\n\n0.o:\n\n/lib/libc.so.6:\n", ("0.o", "/lib/libc.so.6")),
    ],
)  # fmt: skip
def test_prerequisites_of_a_dependency_file(text: str, found: tuple[str, ...]) -> None:
    assert parse_depfile(text) == found


def preprocess(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cc", "-E", *words], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
    )  # fmt: skip


ODD_NAMES = [
    "plain.h", "with space.h", "two  spaces.h", "hash#.h", "money$.h", "$$.h", "colon:.h",
    "back\\slash.h", "tab\there.h", "ends\\ x.h", "per%cent.h", "semi;colon.h", "a=b.h", "~x.h",
    "käse.h", "(x).h", "*.h", "[x].h", "quote'.h", "amp&.h",
]  # fmt: skip


def test_odd_names_come_back_from_what_the_compiler_writes(tmp_path: Path) -> None:
    for name in ODD_NAMES:
        (tmp_path / name).write_text("")
    (tmp_path / "k.c").write_text("".join(f'#include "{name}"\n' for name in ODD_NAMES))
    done = preprocess("-nostdinc", "-MD", "-MP", "-MF", "d", "-o", "k.i", "k.c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = parse_depfile(os.fsdecode((tmp_path / "d").read_bytes()))
    assert [name for name in found if name != "k.c"] == ODD_NAMES


# --- scans


@pytest.mark.parametrize(
    ("text", "quoted", "angled"),
    [
        (b'#include "a.h"', ("a.h",), ()),
        (b"#include <a.h>", (), ("a.h",)),
        (b' \t#\t include\t"a.h" // why', ("a.h",), ()),
        (b'#include"a.h"\n#include<b.h>', ("a.h",), ("b.h",)),
        (b"#include_next <a.h>", (), ("a.h",)),
        (b'#import "a.h"', ("a.h",), ()),
        (b'#embed "a.bin" limit(4)', ("a.bin",), ()),
        (b'#include "dir/with space.h"', ("dir/with space.h",), ()),
        (b'#inc\\\nlude "a\\\r\n.h"', ("a.h",), ()),
        (b'#include \\ \n "a.h"', ("a.h",), ()),
        (b'#if 0\n#include "a.h"\n#endif', ("a.h",), ()),
        (b'/*\n#include "a.h"\n*/', ("a.h",), ()),
        (b'#include "a.h"\n#include "a.h"\n#include <a.h>', ("a.h",), ("a.h",)),
        (b'#include "b.h"\n#include "a.h"', ("b.h", "a.h"), ()),
        (b'#if __has_include("a.h")', ("a.h",), ()),
        (b"#if __has_include ( <a.h> )", (), ("a.h",)),
        (b"#if __has_include_next(<a.h>)", (), ("a.h",)),
        (b'#if __has_embed("a.bin" limit(1))', ("a.bin",), ()),
        (b'#if __has_include("a.h") && __has_include(<b.h>)', ("a.h",), ("b.h",)),
        (b"#include MACRO", (), ()),
        (b'char *s = "#include"; "a.h"', (), ()),
        (b'#pragma include "a.h"', (), ()),
        (b"", (), ()),
    ],
)
def test_operands_that_a_scan_finds(
    text: bytes, quoted: tuple[str, ...], angled: tuple[str, ...]
) -> None:
    found = scan(text)
    assert (found.quoted, found.angled) == (quoted, angled)


def test_a_name_that_is_not_utf8_is_the_name_of_the_file() -> None:
    assert scan(b'#include "\xff.h"').quoted == (os.fsdecode(b"\xff.h"),)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b"int x;", set()),
        (b"char *s = __DATE__;", {"__DATE__"}),
        (b"__DATE__ __TIME__ __TIMESTAMP__", {"__DATE__", "__TIME__", "__TIMESTAMP__"}),
        (b"__TI\\\nME__", {"__TIME__"}),
        (b"// __TIME__ in a comment counts too", {"__TIME__"}),
        (b"#define NOW __DATE__ \" \" __TIME__", {"__DATE__", "__TIME__"}),
        (b'asm(".incbin \\"x.bin\\"");', {".incbin"}),
        (b"#include MACRO", {"computed #include", "hidden #include"}),
        (b'%:include "a.h"', {"computed #include"}),
        (b'/* */ #include "a.h"', {"computed #include"}),
        (b'#include /* */ "a.h"', {"computed #include", "hidden #include"}),
        (b'  #  include "a.h"\n#include <b.h>', set()),
        (b'asm(".include \\"x.s\\"");', {".include"}),
        (b"asm(R\"(.include 'x.s')\");", set()),
        (b'.include "x.s"', {".include"}),
        (b"options.include(x);", set()),
        (b"_date_ DATE TIME", set()),
        (b"#ifdef __has_include", set()),
        (b"#if defined(__has_include)", set()),
        (b"#if defined __has_include && defined(X)", set()),
        (b"#if __has_include(MACRO)", {"computed __has_include"}),
        (b"#define HAS(x) __has_include(x)", {"computed __has_include"}),
        (b'#if __has_include(/* why */ "a.h")', {"computed __has_include"}),
        (b'#if __has_include /* why */ ("a.h")', {"computed __has_include"}),
        (b'#if __has_include("a.h")', set()),
    ],
)  # fmt: skip
def test_words_that_decide_whether_a_result_may_be_kept(text: bytes, tokens: set[str]) -> None:
    assert scan(text).tokens == tokens
    assert tokens <= set(TOKENS)


# --- empty places of the search


class Tree(NamedTuple):
    """A source tree, how it is searched, and the names that a header might be given."""

    files: dict[str, str]
    flags: tuple[str, ...] = ("-I", "one", "-I", "two")
    names: tuple[str, ...] = ("a.h",)
    folders: tuple[str, ...] = ()
    """Further folders in which a header might appear."""


TREES: dict[str, Tree] = {
    "angle": Tree({"k.c": "#include <a.h>\n", "two/a.h": "int a;\n"}),
    "quote found last": Tree({"k.c": '#include "a.h"\n', "two/a.h": "int a;\n"}),
    "quote found beside": Tree({"k.c": '#include "a.h"\n', "a.h": "int a;\n"}),
    "iquote": Tree(
        {"k.c": '#include "a.h"\n#include <b.h>\n', "q2/a.h": "int a;\n", "two/b.h": "int b;\n"},
        ("-iquote", "q1", "-iquote", "q2", "-I", "one", "-I", "two"),
        ("a.h", "b.h"),
    ),
    "system": Tree(
        {"k.c": '#include <a.h>\n#include "b.h"\n', "after/a.h": "int a;\n", "sys/b.h": "int b;\n"},
        ("-idirafter", "after", "-isystem", "sys", "-I", "one", "-iquote", "q1"),
        ("a.h", "b.h"),
    ),
    "beside the includer": Tree(
        {
            "k.c": '#include "sub/outer.h"\n',
            "one/sub/outer.h": '#include "a.h"\n#include "deep/a.h"\n',
            "two/a.h": "int a;\n",
            "two/deep/a.h": "int deep;\n",
        },
        names=("a.h", "deep/a.h", "sub/outer.h", "sub/a.h"),
    ),
    "nested folders": Tree(
        {
            "k.c": "#include <lib/a.h>\n",
            "two/lib/a.h": '#include "detail/b.h"\n#include <lib/c.h>\n',
            "two/lib/detail/b.h": '#include "../c.h"\n',
            "two/lib/c.h": "int c;\n",
        },
        names=("lib/a.h", "lib/detail/b.h", "lib/c.h", "detail/b.h", "c.h", "detail/c.h"),
    ),
    "include_next": Tree(
        {
            "k.c": "#include <a.h>\n",
            "two/a.h": "int two;\n#include_next <a.h>\n",
            "four/a.h": "int four;\n",
        },
        ("-I", "one", "-I", "two", "-I", "three", "-isystem", "four", "-isystem", "five"),
    ),
    "include_next twice": Tree(
        {
            "k.c": '#include "a.h"\n',
            "one/a.h": '#include_next "a.h"\n',
            "three/a.h": "#include_next <a.h>\n",
            "five/a.h": "int five;\n",
        },
        ("-I", "one", "-I", "two", "-I", "three", "-I", "four", "-I", "five"),
    ),
    "has_include that fails": Tree(
        {"k.c": '#if __has_include("a.h") || __has_include(<b.h>)\nint yes;\n#endif\nint k;\n'},
        names=("a.h", "b.h"),
    ),
    "has_include that holds": Tree(
        {"k.c": "#if __has_include(<a.h>)\nint yes;\n#endif\n", "two/a.h": "int a;\n"},
    ),
    "has_include in a header": Tree(
        {
            "k.c": "#include <b.h>\n",
            "two/b.h": '#if __has_include("a.h")\n#include "a.h"\n#endif\n',
        },
        names=("a.h", "b.h"),
    ),
    "has_include_next": Tree(
        {
            "k.c": "#include <a.h>\n",
            "one/a.h": "#if __has_include_next(<a.h>)\nint more;\n#endif\n",
        },
        ("-I", "one", "-I", "two", "-isystem", "three"),
    ),
    "inactive branch": Tree(
        {"k.c": "#ifdef NEVER\n#include <b.h>\n#endif\n#include <a.h>\n", "two/a.h": "int a;\n"},
        names=("a.h", "b.h"),
    ),
    "folders that do not exist": Tree(
        {"k.c": "#include <a.h>\n", "two/a.h": "int a;\n"},
        ("-I", "none", "-I", "none/deeper", "-I", "two"),
    ),
    "macro in angles": Tree(
        {"k.c": "#define H <a.h>\n#include H\n", "two/a.h": "int a;\n"},
    ),
    "macro in quotes": Tree(
        {"k.c": '#define H "a.h"\n#include H\n', "two/a.h": "int a;\n"},
    ),
    "macro in a header in quotes": Tree(
        {
            "k.c": "#include <sub/b.h>\n",
            "one/sub/b.h": '#define H "a.h"\n#include H\n',
            "two/a.h": "int a;\n",
        },
        names=("a.h", "sub/a.h", "sub/b.h"),
    ),
    "digraph and comments": Tree(
        {
            "k.c": '%:include "a.h"\n/**/ # /**/ include /**/ "b.h"\n',
            "two/a.h": "int a;\n",
            "two/b.h": "int b;\n",
        },
        names=("a.h", "b.h"),
    ),
    "a folder of the header's name": Tree(
        {"k.c": "#include <a.h>\n", "one/a.h/x": "", "two/a.h": "int a;\n"},
        names=("b.h",),
    ),
    "same header by two names": Tree(
        {
            "k.c": '#include "two/a.h"\n#include <a.h>\n#include "one/../two/a.h"\n',
            "two/a.h": "int a;\n",
            "one/x": "",
        },
        names=("a.h", "two/a.h"),
    ),
}


NOTHING_TO_ADD = {
    "quote found beside",
    "a folder of the header's name",
    "has_include that holds",
}
"""Trees in which no new header changes what the compiler makes of them."""


class Laid(NamedTuple):
    """A tree on disk."""

    root: Path
    tree: Tree
    folders: tuple[str, ...]
    flags: tuple[str, ...]


def lay_out(root: Path, tree: Tree) -> Laid:
    for name, text in tree.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    # Without any folder at all the compiler refuses to search.
    (root / "base").mkdir()
    wanted = (*tree.flags, "-idirafter", "base")
    flags = tuple(w if w.startswith("-") else str(root / w) for w in wanted)
    named = [word for word in tree.flags if not word.startswith("-")]
    holders = [os.path.dirname(name) for name in tree.files]
    return Laid(root, tree, tuple(dict.fromkeys(["", *named, *holders, *tree.folders])), flags)


def search_of(laid: Laid) -> SearchPath:
    pairs = list(zip(laid.flags[::2], laid.flags[1::2], strict=True))

    def of(flag: str) -> tuple[str, ...]:
        return tuple(path for name, path in pairs if name == flag)

    return SearchPath(of("-iquote"), (*of("-I"), *of("-isystem"), *of("-idirafter")))


def look(laid: Laid) -> tuple[str, tuple[str, ...]]:
    """What the compiler makes of the tree, and the files that it opened."""
    done = preprocess(
        "-nostdinc", *laid.flags, "-MD", "-MF", "d", str(laid.root / "k.c"), cwd=laid.root
    )
    opened = parse_depfile((laid.root / "d").read_text()) if done.returncode == 0 else ()
    return f"{done.returncode}\n{done.stdout}", opened


def places_of(laid: Laid, opened: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    def scan_of(path: str) -> Scan:
        return scan(Path(path).read_bytes())

    return absent_places(opened, scan_of, lambda path: os.path.isfile(path), search_of(laid))


@pytest.mark.parametrize("name", TREES)
def test_wherever_a_new_header_would_be_read_the_place_is_named(name: str, tmp_path: Path) -> None:
    laid = lay_out(tmp_path, TREES[name])
    before, opened = look(laid)
    assert opened, before
    absent = {os.path.normpath(path) for path in places_of(laid, opened)[0]}
    candidates = {
        os.path.normpath(tmp_path / folder / header)
        for folder in laid.folders
        for header in laid.tree.names
    }
    missed = []
    counted = 0
    for place in sorted(path for path in candidates if not os.path.lexists(path)):
        made = [p for p in Path(place).parents if not p.exists()]
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text("int intruder;\n")
        after, _ = look(laid)
        Path(place).unlink()
        for folder in made:
            folder.rmdir()
        if after != before:
            counted += 1
            if place not in absent:
                missed.append(os.path.relpath(place, tmp_path))
    assert not missed
    if name not in NOTHING_TO_ADD:
        assert counted, "some place must count, or the test shows nothing"
    assert look(laid)[0] == before


@pytest.mark.parametrize("name", TREES)
def test_no_place_that_is_named_holds_anything_and_none_lies_outside_the_search(
    name: str, tmp_path: Path
) -> None:
    laid = lay_out(tmp_path, TREES[name])
    _, opened = look(laid)
    absent, present = places_of(laid, opened)
    assert not [path for path in absent if os.path.isfile(path)]
    assert all(os.path.isfile(path) for path in present)
    assert all(path.startswith(str(tmp_path)) for path in (*absent, *present))
    assert not set(present) & set(opened)


@pytest.mark.parametrize("name", TREES)
def test_every_file_whose_removal_counts_was_opened_or_is_named_as_present(
    name: str, tmp_path: Path
) -> None:
    laid = lay_out(tmp_path, TREES[name])
    before, opened = look(laid)
    named = {os.path.normpath(path) for path in (*opened, *places_of(laid, opened)[1])}
    missed = []
    for file in set(laid.tree.files) - {"k.c"}:
        path = tmp_path / file
        path.rename(tmp_path / "aside")
        if look(laid)[0] != before and str(path) not in named:
            missed.append(file)
        (tmp_path / "aside").rename(path)
    assert not missed


def places(tmp_path: Path, name: str) -> tuple[list[str], list[str]]:
    laid = lay_out(tmp_path, TREES[name])
    absent, present = places_of(laid, look(laid)[1])
    return [os.path.relpath(p, tmp_path) for p in absent], [
        os.path.relpath(p, tmp_path) for p in present
    ]


def test_places_are_named_in_the_order_of_the_search(tmp_path: Path) -> None:
    absent, _ = places(tmp_path, "iquote")
    assert absent == ["a.h", "q1/a.h", "one/b.h"]


def test_a_header_found_first_leaves_no_empty_place(tmp_path: Path) -> None:
    assert places(tmp_path, "quote found beside") == ([], [])


def test_a_header_that_was_only_asked_for_counts_as_present(tmp_path: Path) -> None:
    assert places(tmp_path, "has_include that holds") == (["one/a.h"], ["two/a.h"])


def test_an_absolute_operand_is_looked_for_in_one_place(tmp_path: Path) -> None:
    header = tmp_path / "elsewhere.h"
    source = f'#if __has_include("{header}")\nint yes;\n#endif\n'
    laid = lay_out(tmp_path, Tree({"k.c": source}))
    assert places_of(laid, look(laid)[1]) == ((str(header),), ())


HOME = {
    "/home/me/a.h": Scan(("sub/b.h", "/usr/include/x.h"), (), frozenset()),
    "/home/me/sub/b.h": Scan(("c.h", "../a.h", "../../up.h"), (), frozenset()),
    "/home/me/sub/c.h": EMPTY_SCAN,
    "/home/me/sub/../../up.h": EMPTY_SCAN,
    "/home/me/other.h": EMPTY_SCAN,
}


def companions_of(inputs: dict[str, Scan]) -> dict[str, str]:
    return companions(
        inputs, "/home/me", HOME.__getitem__, HOME.__contains__, lambda _: ["a.h", "other.h", "sub"]
    )


def test_companions_are_what_quotes_reach_from_the_inputs_folder_to_the_end() -> None:
    found = companions_of({"k.c": Scan(("a.h", "gone.h"), ("other.h",), frozenset())})
    assert found == {
        "a.h": "/home/me/a.h",
        "sub/b.h": "/home/me/sub/b.h",
        "sub/c.h": "/home/me/sub/c.h",
        "../up.h": "/home/me/sub/../../up.h",
    }


def test_an_input_stands_for_the_file_of_its_name() -> None:
    inputs = {"k.c": Scan(("a.h",), (), frozenset()), "a.h": Scan(("other.h",), (), frozenset())}
    assert companions_of(inputs) == {"other.h": "/home/me/other.h"}


def test_where_a_macro_builds_a_name_every_file_beside_is_a_companion() -> None:
    found = companions_of({"k.c": Scan((), (), frozenset({"computed #include"}))})
    assert {"a.h", "other.h"} <= set(found)
