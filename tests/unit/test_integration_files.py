"""What a framework's compilers read besides the key: flags, folders, programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ptocache.integrations import files
from ptocache.integrations.files import (
    Brought,
    behind_shims,
    brought,
    digest_of_folders,
    digest_of_program,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "include"
    (found / "deep").mkdir(parents=True)
    (found / "one.h").write_text("1")
    (found / "deep" / "two.h").write_text("2")
    return found


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [
            "-O2",
            "-DX=1",
            "-D",
            "Y",
            "-std=c++17",
            "-fPIC",
            "-mllvm",
            "-cce-aicore-x=true",
            "-x",
            "c++",
        ],
    ],
)
def test_flags_that_bring_in_nothing(flags: list[str]) -> None:
    assert brought(flags) == Brought(True, "")


@pytest.mark.parametrize(
    "word",
    ["-lm", "-L/lib", "@options", "-Wl,x.o", "-fplugin=x.so", "/lib/x.o", "--sysroot=/", "-Xclang"],
)
def test_flags_that_bring_in_what_nobody_lists(word: str) -> None:
    assert brought(["-O2", word]) == Brought(False, "")


@pytest.mark.parametrize("form", [["-I{}"], ["-I", "{}"], ["-isystem", "{}"], ["-iquote{}"]])
def test_folders_of_flags_are_read_whatever_their_spelling(folder: Path, form: list[str]) -> None:
    found = brought([word.format(folder) for word in form])
    assert found == Brought(True, digest_of_folders([str(folder)]))


def test_folders_of_variables_count_like_those_of_flags(folder: Path) -> None:
    assert brought([], ["", f":{folder}:"]) == brought([f"-I{folder}"])


def test_file_of_a_flag_counts_by_its_content(folder: Path) -> None:
    first = brought(["-include", f"{folder}/one.h"])
    assert first.known
    (folder / "one.h").write_text("another")
    assert brought(["-include", f"{folder}/one.h"]).digest != first.digest
    assert brought(["-include", f"{folder}/none.h"]) == Brought(False, "")


@pytest.mark.parametrize("change", ["content", "new", "renamed", "removed"])
def test_every_change_in_a_folder_moves_its_digest(folder: Path, change: str) -> None:
    before = digest_of_folders([str(folder)])
    two = folder / "deep" / "two.h"
    if change == "content":
        two.write_text("3")
    elif change == "new":
        (folder / "deep" / "three.h").write_text("")
    elif change == "renamed":
        two.rename(folder / "deep" / "three.h")
    else:
        two.unlink()
    after = digest_of_folders([str(folder)])
    assert after not in ("", before)


def test_same_size_and_time_do_not_hide_another_content(folder: Path) -> None:
    before = digest_of_folders([str(folder)])
    path = folder / "one.h"
    info = path.stat()
    path.write_text("7")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert digest_of_folders([str(folder)]) != before


def test_place_of_a_folder_does_not_count_and_the_order_does(folder: Path, tmp_path: Path) -> None:
    before = digest_of_folders([str(folder), str(tmp_path / "none")])
    other = tmp_path / "elsewhere"
    folder.rename(other)
    assert digest_of_folders([str(other), str(tmp_path / "none")]) == before
    assert digest_of_folders([str(tmp_path / "none"), str(other)]) != before


def test_folder_that_leads_to_itself_is_read_once(folder: Path) -> None:
    before = digest_of_folders([str(folder)])
    (folder / "again").symlink_to(folder)
    (folder / "nowhere").symlink_to(folder / "none")
    assert digest_of_folders([str(folder)]) == before


def test_header_behind_a_link_counts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x.h").write_text("1")
    (folder / "far").symlink_to(tmp_path / "far")
    before = digest_of_folders([str(folder)])
    (tmp_path / "far" / "x.h").write_text("2")
    assert digest_of_folders([str(folder)]) != before


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_folders_beyond_a_limit_are_not_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    # Two files of a byte each: one below, at, and above.
    for value, known in ((1, False), (2, True), (3, True)):
        monkeypatch.setattr(files, limit, value)
        assert bool(digest_of_folders([str(folder)])) is known


def test_pipe_in_a_folder_is_not_known_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert digest_of_folders([str(folder)]) == ""


def test_shim_stands_for_the_program_behind_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, text in ((first, "# ptocache-shim"), (second, "the tool")):
        folder.mkdir()
        (folder / "g++").write_text(text)
        (folder / "g++").chmod(0o755)
    path = f"{first}:{second}"
    assert behind_shims(str(first / "g++"), path) == str(second / "g++")
    assert behind_shims(str(second / "g++"), path) == str(second / "g++")
    assert behind_shims(str(first / "g++"), str(first)) == ""


def test_program_is_found_as_it_would_be_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "g++"
    program.write_text("one")
    by_path = digest_of_program("g++", f"{tmp_path}:{tmp_path / 'bin'}")
    assert by_path == digest_of_program(str(program), "")
    program.write_text("two")
    assert digest_of_program(str(program), "") not in ("", by_path)
    assert digest_of_program("g++", str(tmp_path)) == digest_of_program("", str(tmp_path)) == ""
