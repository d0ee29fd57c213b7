"""Command lines that are understood, and those that are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptocache.integrations import commandline
from ptocache.integrations.commandline import Command, NotUnderstood, understand
from ptocache_cfamily.options import _UNSEEN


def words_of(command: Command) -> list[str]:
    places = {"{source}": "SRC", "{output}": "OUT", "{depfile}": "DEP"}
    return [places.get(word, word) for word in command.words]


@pytest.mark.parametrize(
    ("name", "words", "files", "language"),
    [
        ("gcc", "-c a.c", ("a.c", "a.o", ""), "c"),
        ("gcc", "-O2 -c sub/a.c -o b/x.o", ("sub/a.c", "b/x.o", ""), "c"),
        ("gcc", "-c a.cpp -oa.o", ("a.cpp", "a.o", ""), "c++"),
        ("g++", "-c a.c", ("a.c", "a.o", ""), "c++"),
        ("g++", "-x c -c a.cpp", ("a.cpp", "a.o", ""), "c"),
        ("x86_64-linux-gnu-g++-12", "-c a.cc -MD", ("a.cc", "a.o", "a.d"), "c++"),
        ("cc", "-MMD -MP -MF d/a.d -c a.c -o o/a.o", ("a.c", "o/a.o", "d/a.d"), "c"),
        ("clang-19", "-shared -fPIC a.c -o liba.so -lm", ("a.c", "liba.so", ""), "c"),
        (
            "bisheng",
            "-xasc --npu-arch=dav-2201 --shared k.cpp -o k.so",
            ("k.cpp", "k.so", ""),
            "asc",
        ),
        ("bisheng", "--cce-aicore-only k.asc -o k.rel.o", ("k.asc", "k.rel.o", ""), "asc"),
        ("ccec", "-c k.cce -o k.o", ("k.cce", "k.o", ""), "cce"),
        ("ptoas", "k.pto -o k.cpp --pto-level=level3", ("k.pto", "k.cpp", ""), "pto"),
    ],
)
def test_a_compile_of_one_source_is_understood(
    name: str, words: str, files: tuple[str, str, str], language: str
) -> None:
    command = understand(name, words.split())
    assert (command.source, command.output, command.depfile) == files
    assert command.language == language


@pytest.mark.parametrize(
    ("name", "words", "toolchain"),
    [
        ("gcc", "-c a.c", "host"),
        ("bisheng", "-c k.asc", "ascendc"),
        ("bisheng", "-xcce -c k.cpp", "pto"),
        ("bisheng", "-c k.cpp", "ascendc"),
        ("ccec", "-c k.cpp", "pto"),
        ("ptoas", "k.pto -o k.cpp", "pto"),
    ],
)
def test_each_tool_has_its_toolchain(name: str, words: str, toolchain: str) -> None:
    assert understand(name, words.split()).toolchain == toolchain


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("gcc", "", "not_a_compile"),
        ("gcc", "--version", "not_a_compile"),
        ("gcc", "-dumpmachine", "not_a_compile"),
        ("gcc", "-print-file-name=libc.so", "not_a_compile"),
        ("gcc", "-v -c a.c", "not_a_compile"),
        ("gcc", "-### -c a.c", "not_a_compile"),
        ("gcc", "-E a.c", "not_a_compile"),
        ("gcc", "-S a.c", "not_a_compile"),
        ("gcc", "-M a.c", "not_a_compile"),
        ("gcc", "-MM a.c", "not_a_compile"),
        ("gcc", "a.c -o a", "not_a_compile"),
        ("gcc", "-c a.s", "not_a_compile"),
        ("gcc", "-c a.h", "not_a_compile"),
        ("gcc", "a.o b.o -shared -o c.so", "not_a_compile"),
        ("ptoas", "--version", "not_a_compile"),
        ("ld", "a.o", "not_a_compile"),
        ("gcc", "-c a.c b.c", "command_form"),
        ("gcc", "-shared a.c b.o -o c.so", "command_form"),
        ("gcc", "-c -", "command_form"),
        ("gcc", "-xc -c -", "command_form"),
        ("gcc", "-c a.c -o -", "command_form"),
        ("gcc", "-c a.c -o a.o -o b.o", "command_form"),
        ("gcc", "-shared -fPIC a.c", "command_form"),
        ("gcc", "-c a.c -o", "command_form"),
        ("gcc", "-c a.c -MF x.d", "command_form"),
        ("gcc", "-c a.c -MD -MMD", "command_form"),
        ("gcc", "-shared a.c -o a.so -MD", "command_form"),
        ("gcc", "-c a.c -o a.obj -MD", "command_form"),
        ("gcc", "-c a.c @no/such/file", "command_form"),
        ("ptoas", "- -o k.cpp", "command_form"),
        ("ptoas", "k.pto", "command_form"),
        ("gcc", "-xassembler -c a.c", "unsupported_option"),
        ("gcc", "-c a.c -xc++", "unsupported_option"),
        ("gcc", "-c a.c -save-temps", "unsupported_option"),
        ("gcc", "-c a.c --coverage", "unsupported_option"),
        ("gcc", "-c a.c -fprofile-arcs", "unsupported_option"),
        ("gcc", "-c a.c -fplugin=x.so", "unsupported_option"),
        ("gcc", "-c a.cpp -fmodules-ts", "unsupported_option"),
        ("gcc", "-c a.c -gsplit-dwarf", "unsupported_option"),
        ("gcc", "-c a.c -Wa,-adhln=x.lst", "unsupported_option"),
        ("gcc", "-c a.c -Wp,-MD,x.d", "unsupported_option"),
        ("gcc", "-c a.c -aux-info x", "unsupported_option"),
        ("gcc", "-c a.c -fdump-tree-all", "unsupported_option"),
        ("gcc", "-c a.c -fdiagnostics-format=sarif-file", "unsupported_option"),
        ("gcc", "-c a.c --output=a.o", "unsupported_option"),
        ("gcc", "-c a.c -I=/usr/x", "unsupported_option"),
        ("gcc", "-c a.c -D {source}", "unsupported_option"),
        ("gcc", "-shared a.c -o a.so -Wl,-Map=x.map", "unsupported_option"),
        ("gcc", "-shared a.c -o a.so -Wl,extra.o", "unsupported_option"),
        ("bisheng", "-c k.cpp -MMD", "unsupported_option"),
        ("bisheng", "-c k.cpp --cce-save=/x", "unsupported_option"),
        ("ptoas", "k.pto -o k.o --pto-backend=vpto", "unsupported_option"),
        ("ptoas", "k.pto -o k.cpp --mlir-print-ir-tree-dir=/x", "unsupported_option"),
        ("ptoas", "k.pto -o k.cpp -x", "unsupported_option"),
    ],
)
def test_whatever_else_is_not_touched(name: str, words: str, reason: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        understand(name, words.split())
    assert caught.value.reason == reason


def test_options_stay_in_their_order_with_the_files_replaced() -> None:
    command = understand(
        "gcc",
        [
            "-O2",
            "-Iinc",
            "-D",
            "X=1",
            "-include",
            "conf.h",
            "-c",
            "s.c",
            "-g",
            "-o",
            "o.o",
            "-isystem",
            "sys",
            "-MD",
            "-Wall",
        ],
    )
    assert words_of(command) == [
        "-O2", "-I", "inc", "-DX=1", "-include", "conf.h", "-c", "SRC", "-g", "-o", "OUT",
        "-isystem", "sys", "-MD", "-Wall", "-MF", "DEP",
    ]  # fmt: skip
    assert command.target == "o.o"


def test_a_target_that_is_named_is_left_as_it_is() -> None:
    command = understand("gcc", ["-c", "s.c", "-o", "o.o", "-MMD", "-MT", "x", "-MQ", "$y", "-MP"])
    assert (command.target, command.lists_all) == ("", False)
    assert words_of(command)[4:] == ["-MMD", "-MT", "x", "-MQ", "$y", "-MP", "-MF", "DEP"]


def test_words_for_the_linker_may_have_operands_that_look_like_files() -> None:
    word = "-Wl,-soname,liba.so,-rpath,/opt/lib,--as-needed,-z,now"
    assert word in understand("gcc", ["-shared", "a.c", "-o", "a.so", word]).words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-c  a.c\n-O2", ["-c", "a.c", "-O2"]),
        ("'a b' \"c d\" e\\ f", ["a b", "c d", "e f"]),
        ('-DX=\\"y\\"', ['-DX="y"']),
        ("'a\\'b'", ["a'b"]),
        ("'' x", ["", "x"]),
        ("", []),
    ],
)
def test_a_response_file_is_split_as_compilers_do(text: str, words: list[str]) -> None:
    assert commandline.split(text) == words


def test_response_files_stand_for_their_words_in_one_another_too(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("-O2 @two")
    (tmp_path / "two").write_text("-c a.c")
    assert words_of(understand("gcc", ["@one"], str(tmp_path))) == ["-O2", "-c", "SRC", "-o", "OUT"]


def test_a_response_file_that_names_itself_is_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "loop").write_text("@loop")
    with pytest.raises(NotUnderstood, match="too deep"):
        understand("gcc", ["@loop"], str(tmp_path))


@pytest.mark.parametrize("pattern", _UNSEEN)
def test_what_a_toolchain_would_not_see_is_not_even_asked(pattern: str) -> None:
    if pattern.endswith("-prefix-map=*"):
        # Refused there because ptocache maps places itself: here the command runs where it was written.
        return
    word = pattern.replace("*", "x")
    with pytest.raises(NotUnderstood):
        understand("gcc", [word, "-c", "a.c"])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/proj/k.cpp", ""),
        ("/proj/tmpab12cd_3.cpp", "source.cpp"),
        ("/tmp/k.cpp", "source.cpp"),
        ("/tmp/tmpab12cd_3/tl_kernel.asc", "tl_kernel.asc"),
        ("/tmpx/k.cpp", ""),
    ],
)
def test_a_name_counts_unless_its_place_is_temporary(path: str, name: str) -> None:
    assert commandline.neutral_name(path, ["/tmp"]) == name
