"""``compile`` as its users know compilers: options, files, streams, exit codes, JSON."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import DaemonProcess, compile_directly
from tests.system.cli_runner import EXECUTABLE, Done, ptocache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness import LoggingCompiler

SOURCE = '#include "k.h"\nint answer(void) { return ANSWER; }\n'
CONTRACT = {"key", "outcome", "outputs", "compile_ms", "total_ms", "toolchain"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with ``src/k.c``, its header, and a source that does not compile."""
    source = tmp_path / "work" / "src"
    source.mkdir(parents=True)
    (source / "k.c").write_text(SOURCE)
    (source / "k.h").write_text("#define ANSWER 42\n")
    (source / "bad.c").write_text("int f( {\n")
    return source.parent


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for tests that ask it for nothing that it keeps."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("shared") / "store")
    try:
        yield daemon.start()
    finally:
        daemon.clean_up()


def compile_(daemon: DaemonProcess, place: Path, *words: str) -> Done:
    return ptocache("compile", *words, env=daemon.env, cwd=place)


def one(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


# --- outcomes and JSON


def test_json_keeps_its_contract_for_a_miss_and_a_hit(daemon: DaemonProcess, place: Path) -> None:
    miss = one(compile_(daemon, place, "src/k.c", "--json"))
    hit = one(compile_(daemon, place, "src/k.c", "--json"))
    assert (miss["outcome"], hit["outcome"]) == ("miss", "memory_hit")
    for found in (miss, hit):
        assert set(found) >= CONTRACT
        assert "reason" not in found
        assert re.fullmatch(r"[0-9a-f]{64}", str(found["key"]))
        assert found["file"] == "src/k.c"
        (output,) = found["outputs"]
        assert set(output) >= {"name", "path", "size", "digest"}
        assert output["name"] == "shared"
        assert output["path"] == str(place / "k.so")
        assert output["size"] == (place / "k.so").stat().st_size
        assert isinstance(found["compile_ms"], int)
        assert found["toolchain"]["name"] == "host"
        assert re.fullmatch(r"[0-9a-f]{64}", found["toolchain"]["identity"])
    assert miss["key"] == hit["key"]
    assert ctypes.CDLL(str(place / "k.so")).answer() == 42


def test_json_tells_the_reason_of_a_bypass(daemon: DaemonProcess, place: Path) -> None:
    found = one(compile_(daemon, place, "src/k.c", "--json", "--mode", "bypass"))
    assert (found["outcome"], found["reason"]) == ("bypass", "asked")


def test_json_tells_the_reason_of_a_failure_and_keeps_standard_output_to_itself(
    daemon: DaemonProcess, place: Path
) -> None:
    done = compile_(daemon, place, "src/bad.c", "--json")
    found = done.json()
    assert done.code == 1
    assert (found["outcome"], found["reason"]) == ("failure", "compile_failed")
    assert found["outputs"] == []
    assert found["exit_code"] == 1
    assert "error" in done.err
    assert not (place / "bad.so").exists()


def test_several_files_are_told_in_their_order(daemon: DaemonProcess, place: Path) -> None:
    names = [f"k{number}.c" for number in range(6)]
    for number, name in enumerate(names):
        (place / name).write_text(f"int f(void) {{ return {number}; }}\n")
    done = compile_(daemon, place, *names, "src/bad.c", "--json", "--output", "made")
    assert done.code == 1
    assert [item["file"] for item in done.json_lines()] == [*names, "src/bad.c"]
    for number, name in enumerate(names):
        made = ctypes.CDLL(str(place / "made" / name).replace(".c", ".so"))
        assert made.f() == number


def test_a_line_a_file_tells_outcome_key_and_place(daemon: DaemonProcess, place: Path) -> None:
    done = compile_(daemon, place, "src/k.c")
    pattern = r"src/k\.c: miss  [0-9a-f]{12}  [\d.]+ m?s  -> k\.so\n"
    assert re.fullmatch(pattern, done.out), done.out
    assert done.err == ""
    assert compile_(daemon, place, "src/k.c", "--quiet").out == ""


def test_explain_tells_why_and_what_was_saved(daemon: DaemonProcess, place: Path) -> None:
    first = compile_(daemon, place, "src/k.c", "--explain", "--", "-O1")
    assert "miss: no entry of this kernel yet" in first.out
    second = compile_(daemon, place, "src/k.c", "--explain", "--", "-O2")
    assert "miss: options: +-O2 -O1\n" in second.out
    third = compile_(daemon, place, "src/k.c", "--explain", "--quiet", "--", "-O2")
    assert re.search(r"^    saved +[\d.]+ m?s of compiling$", third.out, re.MULTILINE)
    assert re.search(r"^    key +[0-9a-f]{64}$", third.out, re.MULTILINE)
    assert re.search(r"^    toolchain +host [0-9a-f]{64}$", third.out, re.MULTILINE)


# --- options


def test_options_reach_the_tool_after_two_dashes_and_by_option(
    daemon: DaemonProcess, place: Path
) -> None:
    (place / "d.c").write_text("int d(void) { return ONE * 10 + TWO; }\n")
    words = ("d.c", "--json", "--option=-DONE=4", "--option", "-O1", "--", "-D", "TWO=2")
    found = one(compile_(daemon, place, *words))
    assert ctypes.CDLL(str(place / "d.so")).d() == 42
    shown = ptocache("show", str(found["key"]), "--json", env=daemon.env).json()
    assert shown["entries"][0]["action"]["options"] == ["-DONE=4", "-O1", "-DTWO=2"]


def test_an_option_of_the_tool_in_the_wrong_place_is_explained(
    daemon: DaemonProcess, place: Path
) -> None:
    done = compile_(daemon, place, "src/k.c", "-O3")
    assert done.code == 2
    assert "options for the tool go after --" in done.err


def test_an_object_is_what_the_compiler_makes_directly(
    daemon: DaemonProcess, place: Path, tmp_path: Path
) -> None:
    done = compile_(daemon, place, "src/k.c", "--kind", "object", "--", "-O2")
    assert done.code == 0
    include = ["-O2", "-iquote", str(place / "src")]
    expected = compile_directly(SOURCE.encode(), "k.c", include, tmp_path / "direct")
    assert (place / "k.o").read_bytes() == expected


def test_a_symbol_that_is_not_defined_fails_the_compile(daemon: DaemonProcess, place: Path) -> None:
    assert compile_(daemon, place, "src/k.c", "--symbol", "answer").code == 0
    done = compile_(daemon, place, "src/k.c", "--symbol", "question")
    assert done.code == 1
    assert "'question'" in done.err


# --- where artifacts go


def test_output_names_the_file_of_one_source(daemon: DaemonProcess, place: Path) -> None:
    found = one(compile_(daemon, place, "src/k.c", "-o", "lib.so.1", "--json"))
    assert found["outputs"][0]["path"] == str(place / "lib.so.1")
    assert os.access(place / "lib.so.1", os.X_OK)
    assert sorted(path.name for path in place.iterdir()) == ["lib.so.1", "src"]


def test_output_with_a_slash_is_a_directory_and_is_made(daemon: DaemonProcess, place: Path) -> None:
    assert compile_(daemon, place, "src/k.c", "-o", "a/b/").code == 0
    assert (place / "a" / "b" / "k.so").exists()


def test_a_hit_replaces_an_older_artifact(daemon: DaemonProcess, place: Path) -> None:
    compile_(daemon, place, "src/k.c")
    made = (place / "k.so").read_bytes()
    (place / "k.so").write_bytes(b"old")
    compile_(daemon, place, "src/k.c")
    assert (place / "k.so").read_bytes() == made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("src/nope.c",), "cannot be read"),
        (("src/k.h",), "no input is a C or C++ source"),
        (("src/k.c", "src/k.c"), "would be written to the same place"),
        (("src/k.c", "--toolchain", "none"), "there is no toolchain 'none'"),
        (("src/k.c", "--mode", "none"), "there is no mode 'none'"),
        (("src/k.c", "--kind", "none"), "makes no output 'none'"),
        (("src/k.c", "--arch", "none"), "not none"),
        (("src/k.c", "--", "-o", "x"), "-o has no place"),
        (("src/k.c", "-o", "src/k.c"), "would replace its source"),
        (("src/k.c", "src/bad.c", "-o", "src/k.h"), "is no directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_exit_code_2_and_says_what(
    words: tuple[str, ...], said: str, shared_daemon: DaemonProcess, place: Path
) -> None:
    done = compile_(shared_daemon, place, *words)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert (place / "src" / "k.c").read_text() == SOURCE
    assert [path.name for path in place.iterdir()] == ["src"]


def test_a_place_that_cannot_be_written_is_named(daemon: DaemonProcess, place: Path) -> None:
    done = compile_(daemon, place, "src/k.c", "-o", "none/k.so")
    assert done.code == 1
    assert done.err == f"ptocache: src/k.c: {place}/none/k.so: No such file or directory\n"


# --- streams


def test_what_the_tool_prints_is_replayed_byte_for_byte_on_a_hit(
    daemon: DaemonProcess, place: Path
) -> None:
    (place / "w.c").write_bytes(b'#warning "gr\xc3\xbc\xc3\x9fe \xff"\nint w;\n')
    miss = compile_(daemon, place, "w.c", "--quiet")
    hit = compile_(daemon, place, "w.c", "--quiet")
    assert b"#warning" in miss.stderr
    assert b"\xff" in miss.stderr
    assert (hit.stdout, hit.stderr) == (miss.stdout, miss.stderr) == (b"", miss.stderr)
    assert daemon.stats()["memory_hit"] == 1


def test_what_the_tool_prints_to_standard_output_stays_there(
    daemon: DaemonProcess, place: Path, logging_compiler: LoggingCompiler
) -> None:
    logging_compiler.write(before='case " $* " in *" -c "*) printf "to out\\n" ;; esac')
    env = {**daemon.env, **logging_compiler.env, "PTOCACHE_MODE": "bypass"}
    plain = ptocache("compile", "src/k.c", "--quiet", env=env, cwd=place)
    assert (plain.out, plain.err) == ("to out\n", "")
    as_json = ptocache("compile", "src/k.c", "--json", env=env, cwd=place)
    assert as_json.json()["outcome"] == "bypass"
    assert as_json.err == "to out\n"


def test_a_bar_is_shown_on_a_terminal_and_results_stay_whole(
    daemon: DaemonProcess, place: Path
) -> None:
    (place / "l.c").write_text("int l;\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [EXECUTABLE, "compile", "src/k.c", "l.c", "--json"], cwd=place, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, **daemon.env, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 1 << 16):
            shown += data
    except OSError:
        pass  # The terminal's other side is closed.
    finally:
        os.close(ours)
    assert process.stdout is not None
    with process.stdout:
        lines = process.stdout.read().splitlines()
    assert process.wait() == 0
    assert [json.loads(line)["file"] for line in lines] == ["src/k.c", "l.c"]
    assert b"2/2" in shown


# --- no daemon


def lonely(tmp_path: Path) -> dict[str, str]:
    return {
        "PTOCACHE_DIR": str(tmp_path / "store"),
        "PTOCACHE_SOCKET": str(tmp_path / "place" / "s"),
        "PTOCACHE_AUTOSTART": "0",
    }


def test_without_a_daemon_it_compiles_and_says_so_once(place: Path, tmp_path: Path) -> None:
    (place / "l.c").write_text("int l;\n")
    words = ("compile", "src/k.c", "l.c", "--json")
    done = ptocache(*words, env=lonely(tmp_path), cwd=place)
    assert done.code == 0
    for found in done.json_lines():
        assert (found["outcome"], found["reason"]) == ("bypass", "no_daemon")
    assert done.err.count("ptocache: warning: ") == 1
    assert done.err.count("\n") == 1
    assert ctypes.CDLL(str(place / "k.so")).answer() == 42


def test_without_a_daemon_that_is_required_it_is_exit_code_3(place: Path, tmp_path: Path) -> None:
    env = {**lonely(tmp_path), "PTOCACHE_REQUIRE": "1"}
    done = ptocache("compile", "src/k.c", env=env, cwd=place)
    assert (done.code, done.out) == (3, "")
    assert done.err.count("\n") == 1
    assert not (place / "k.so").exists()


def test_without_a_compiler_it_is_exit_code_1(daemon: DaemonProcess, place: Path) -> None:
    env = {**daemon.env, "PATH": str(place)}
    done = ptocache("compile", "src/k.c", env=env, cwd=place)
    assert done.code == 1
    assert "src/k.c: failure (tool_not_found)" in done.out
    assert done.err.count("\n") == 1
