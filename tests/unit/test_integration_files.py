"""What a framework's compilers read besides the key: flags, folders, programs."""

from __future__ import annotations

import hashlib
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


# --- digests that somebody else has


LARGE = b"x" * (256 << 10)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A large file that counts as long untouched, and is not known yet."""
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    monkeypatch.setattr(files, "_digests", {})
    path = tmp_path / "tool"
    path.write_bytes(LARGE)
    return str(path)


def test_digest_that_is_told_of_a_large_file_is_not_read_again(large: str) -> None:
    asked: list[object] = []

    def ask(rows: list[list[object]]) -> object:
        asked.extend(rows)
        return ["a" * 64]

    files.learn([large], ask)
    files.learn([large], ask)
    info = os.stat(large)
    sign = [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
    assert asked == [[large, *sign]]
    assert digest_of_program(large, "") == "a" * 64
    # Of exactly this file: what comes into its place is read.
    os.replace(_copy(large), large)
    assert digest_of_program(large, "") == hashlib.sha256(LARGE).hexdigest()


def _copy(path: str) -> str:
    with open(path + ".new", "wb") as file:
        file.write(LARGE)
    return path + ".new"


@pytest.mark.parametrize(
    "answer", [[], [""], ["a" * 63], [b"a" * 64], ["a" * 64] * 2, None, "a" * 64, {}]
)
def test_answer_that_is_none_leaves_the_file_to_be_read(large: str, answer: object) -> None:
    files.learn([large], lambda rows: answer)
    assert digest_of_program(large, "") == hashlib.sha256(LARGE).hexdigest()


def test_nobody_is_asked_about_what_is_small_fresh_gone_or_has_no_full_path(
    large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(rows: list[list[object]]) -> object:
        raise AssertionError(rows)

    small = large + ".small"
    with open(small, "wb") as file:
        file.write(LARGE[1:])
    folder = os.path.dirname(large)
    files.learn([small, folder, large + "\0", large + "\udcff", "/nowhere"], ask)
    monkeypatch.chdir(folder)
    files.learn([os.path.basename(large)], ask)
    monkeypatch.setattr(files, "_SETTLED_NS", 10**18)
    files.learn([large], ask)


def test_many_files_are_many_questions(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_ASKED", 1)
    asked: list[int] = []

    def ask(rows: list[list[object]]) -> object:
        asked.append(len(rows))
        return ["b" * 64]

    files.learn([large, _copy(large)], ask)
    assert asked == [1, 1]
