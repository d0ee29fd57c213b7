"""Wrapped compilers of the host: the same bytes, text, modes and exit code as without the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.errors import BadRequestError
from tests.harness import DEADLINE_S, DaemonProcess, Gate, LoggingCompiler, wait_for
from tests.projects import kit
from tests.system.cli_runner import ptocache
from tests.system.page import run_page
from tests.system.wrap_rig import Bench, real_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = '#include "part.h"\n#include <stddef.h>\nint half(int x) { return x / PART; }\n'


COMMANDS = [
    "gcc -O2 -Iinc -c half.c -o half.o",
    "gcc -Iinc -c half.c",
    "gcc -g -Iinc -c half.c -o half.o",
    "gcc -g3 -O1 -c src/half.c -o half.o -MD -MP",
    "gcc -c src/half.c -o half.o -MMD -MF deps.d -MT target",
    "gcc -Iinc -fPIC -shared half.c -o libhalf.so -lm",
    "gcc -Iinc -fPIC -shared -g half.c -o libhalf.so -MD -MF half.d -Wl,-soname,libhalf.so.1",
    "cc -O3 -march=native -Iinc -c half.c",
    "gcc -Wall -Wno-error -c warn.c -o warn.o -Wno-int-conversion",
    "gcc -c name.c -o name.o",
    "g++ -std=c++17 -O2 -g -c half.cpp -o half.o",
    "gcc -x c++ -c half.c -Iinc -o half.o",
    "gcc -flto -ffat-lto-objects -frandom-seed=7 -Iinc -c half.c -o half.o",
    "gcc -include inc/far.h -c src/half.c -o half.o",
    "gcc -ffile-prefix-map=src=elsewhere -g -c src/half.c -o half.o",
]
CLANG_COMMANDS = [
    "clang -O2 -Iinc -c half.c -o half.o",
    "clang -g -Iinc -c half.c",
    "clang -g -c src/half.c -o half.o -MD -MP",
    "clang -c src/half.c -o half.o -MMD -MF deps.d",
    "clang -Iinc -fPIC -shared half.c -o libhalf.so -lm",
    "clang -O3 -march=native -Iinc -c half.c",
    "clang -Wall -Wno-int-conversion -c warn.c -o warn.o -lm",
    "clang -c name.c -o name.o",
    "clang++ -std=c++17 -O2 -g -c half.cpp -o half.o",
    "clang -flto -Iinc -c half.c -o half.o",
    "clang -ffile-prefix-map=src=elsewhere -g -c src/half.c -o half.o",
]
if shutil.which("clang"):
    COMMANDS += CLANG_COMMANDS


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory, shared_daemon: DaemonProcess) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), shared_daemon)


@pytest.fixture
def bench(shared_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    # The text is the test's own, so that what others made is no hit.
    shared_bench.write(
        src___half__c=f"/* {tmp_path} */\n{SOURCE}",
        src___part__h="#define PART 2\n",
        inc___far__h="#define FAR 1\n",
        half__c=f"/* {tmp_path} */\n#include <far.h>\nint half(int x) {{ return x / 2 + FAR; }}\n",
        warn__c=f'/* {tmp_path} */\nint warn(int x) {{ int unused = x; return "s"; }}\n',
        name__c=f"/* {tmp_path} */\n#include <assert.h>\nvoid f(int x) {{ assert(x); }}\n",
        half__cpp=f"/* {tmp_path} */\n#include <utility>\nint half(int x) {{ return std::move(x); }}\n",
    )
    yield shared_bench
    shared_bench.clear()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_what_it_gives_without_the_cache(bench: Bench, command: str) -> None:
    assert bench.same_as_real(*command.split()).code == 0


def test_absolute_names_reach_the_output_as_they_are_spelled(bench: Bench) -> None:
    source, out = str(bench.work / "name.c"), str(bench.work / "name.o")
    ran = bench.same_as_real("gcc", "-g", "-c", source, "-o", out, f"-I{bench.work}/inc", "-MD")
    assert source.encode() in ran.files["name.o"][1]


def test_the_way_by_which_a_directory_was_entered_counts_where_it_shows(bench: Bench) -> None:
    way = bench.work.parent / "way"
    way.symlink_to(bench.work)
    try:
        bench.same_as_real("gcc", "-g", "-c", "name.c")
        ran = bench.same_as_real("gcc", "-g", "-c", "name.c", PWD=str(way))
        assert str(way).encode() in ran.files["name.o"][1]
    finally:
        way.unlink()


def test_the_name_of_a_source_counts_because_objects_show_it(bench: Bench) -> None:
    bench.run("gcc", "-Iinc", "-c", "half.c", "-o", "half.o")
    (bench.work / "other.c").write_bytes((bench.work / "half.c").read_bytes())
    bench.same_as_real("gcc", "-Iinc", "-c", "other.c", "-o", "half.o")


def test_the_name_of_an_output_does_not_count(bench: Bench) -> None:
    bench.run("gcc", "-Iinc", "-c", "half.c", "-o", "half.o")
    _, outcome, _ = bench.outcome_of("gcc", "-Iinc", "-c", "half.c", "-o", "tmpa1b2c3.o")
    assert outcome == "memory_hit"


def test_two_checkouts_share_what_shows_no_path(bench: Bench) -> None:
    for name in ("one", "two"):
        (bench.work / name / "src").mkdir(parents=True)
        for file in ("src/half.c", "src/part.h"):
            (bench.work / name / file).write_bytes((bench.work / file).read_bytes())
    command = ("gcc", "-O2", "-Isrc", "-c", "src/half.c", "-o", "half.o")
    assert bench.outcome_of(*command, cwd=bench.work / "one")[1] == "miss"
    assert bench.outcome_of(*command, cwd=bench.work / "two")[1] == "memory_hit"
    (bench.work / "two" / "src" / "part.h").write_text("#define PART 3\n")
    bench.same_as_real(*command, cwd=bench.work / "two")


def test_a_relative_include_counts_from_the_directory_of_the_caller(bench: Bench) -> None:
    for name, value in (("one", 1), ("two", 2)):
        (bench.work / name / "inc").mkdir(parents=True)
        (bench.work / name / "inc" / "far.h").write_text(f"#define FAR {value}\n")
    source = str(bench.work / "half.c")
    for name in ("one", "two"):
        bench.same_as_real(
            "gcc", "-Iinc", "-c", source, "-o", "half.o", cwd=bench.work / name
        )  # fmt: skip


def test_a_header_that_appears_earlier_in_the_search_is_seen(bench: Bench) -> None:
    command = ("gcc", "-Inew", "-Iinc", "-c", "half.c")
    bench.same_as_real(*command)
    bench.write(new___far__h="#define FAR 9\n")
    bench.same_as_real(*command)


def test_changed_flags_sources_and_headers_give_their_own_results(bench: Bench) -> None:
    bench.same_as_real("gcc", "-Iinc", "-c", "half.c")
    bench.same_as_real("gcc", "-Iinc", "-DX", "-O2", "-c", "half.c")
    bench.write(inc___far__h="#define FAR 2\n")
    bench.same_as_real("gcc", "-Iinc", "-c", "half.c")
    with open(bench.work / "half.c", "a") as file:
        file.write("int more;\n")
    bench.same_as_real("gcc", "-Iinc", "-c", "half.c")


def test_warnings_are_replayed_in_the_language_that_was_asked_for(bench: Bench) -> None:
    command = ("gcc", "-Wall", "-c", "warn.c")
    plain = bench.same_as_real(*command)
    curly = bench.same_as_real(*command, LC_ALL="C.UTF-8")
    assert b"'unused'" in plain.stderr
    assert "‘unused’".encode() in curly.stderr


@pytest.mark.parametrize("older", [False, True], ids=["alone", "with-an-older-object"])
def test_a_failure_is_replayed(bench: Bench, tmp_path: Path, older: bool) -> None:
    bench.write(wrong__c=f"int f(void) {{ return nothing; }}\n/* {tmp_path} */\n")
    if older:
        bench.write(wrong__o="older")
    before = bench.files()
    oracle = bench.run("gcc", "-c", "wrong.c", real=True)
    assert oracle.code == 1
    for reason in ("compile_failed", "remembered_failure"):
        bench.restore(before)
        ran, outcome, why = bench.outcome_of("gcc", "-c", "wrong.c")
        assert ran == oracle
        assert (outcome, why) == ("failure", reason)


def test_a_failure_with_a_dependency_file_is_the_compilers_own(bench: Bench) -> None:
    bench.write(wrong__c="int f(void) { return nothing; }\n")
    before = bench.files()
    oracle = bench.run("gcc", "-c", "wrong.c", "-MD", real=True)
    assert "wrong.d" in oracle.files
    for _ in range(2):
        bench.restore(before)
        assert bench.run("gcc", "-c", "wrong.c", "-MD") == oracle


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("gcc --version", "not_a_compile"),
        ("gcc -E half.c -Iinc", "not_a_compile"),
        ("gcc -S half.c -Iinc -o -", "not_a_compile"),
        ("gcc -M half.c -Iinc", "not_a_compile"),
        ("gcc -print-prog-name=as", "not_a_compile"),
        ("gcc -c -Iinc half.c name.c", "command_form"),
        ("gcc -c -Iinc half.c -o /dev/null", "command_form"),
        ("gcc -c no-such.c", "command_form"),
        ("gcc -c -Iinc half.c -save-temps", "unsupported_option"),
        ("gcc -c -Iinc half.c -gsplit-dwarf", "unsupported_option"),
        ("gcc -c -Iinc half.c -fstack-usage", "unsupported_option"),
        ("gcc -c -Iinc half.c -no-such-option", "unsupported_option"),
    ],
)
def test_anything_else_goes_through_untouched_with_its_reason(
    bench: Bench, command: str, reason: str
) -> None:
    bench.same_as_real(*command.split(), cold="bypass", warm="bypass", reason=reason)


def test_a_source_that_tells_the_time_is_compiled_and_not_stored(bench: Bench) -> None:
    bench.write(time__c="const char *now = __TIME__;\n")
    for _ in range(2):
        ran, outcome, reason = bench.outcome_of("gcc", "-c", "time.c")
        assert (ran.code, outcome, reason) == (0, "bypass", "time_macro")
        assert ran.files["time.o"][1].startswith(b"\x7fELF")


def test_a_large_output_comes_whole(bench: Bench, tmp_path: Path) -> None:
    bench.write(large__c=f"/* {tmp_path} */\nchar large[3 << 20] = {{1}};\n")
    ran = bench.same_as_real("gcc", "-c", "large.c", "-o", "large.o", "-MD")
    assert len(ran.files["large.o"][1]) > 3 << 20


def test_settings_that_are_not_usual_are_kept_to(bench: Bench, tmp_path: Path) -> None:
    command = ("gcc", "-Iinc", "-c", "half.c")
    bench.same_as_real(*command)
    assert bench.outcome_of(*command, PTOCACHE_MODE="bypass")[1:] == ("bypass", "asked")
    assert bench.outcome_of(*command, PTOCACHE_MODE="refresh")[1:] == ("miss", "")
    assert bench.outcome_of(*command, PTOCACHE_SALT="another")[1:] == ("miss", "")
    assert bench.outcome_of(*command, PTOCACHE_SALT="another")[1:] == ("memory_hit", "")
    (tmp_path / "config.toml").write_text("[request]\nsalt = 'a file'\n")
    file = str(tmp_path / "config.toml")
    assert bench.outcome_of(*command, PTOCACHE_CONFIG=file)[1:] == ("miss", "")
    assert bench.outcome_of("gcc", "--version", PTOCACHE_CONFIG=file)[1] == "bypass"
    (tmp_path / "config.toml").write_text("nonsense")
    assert bench.outcome_of(*command, PTOCACHE_CONFIG=file)[0].code == 0


def test_a_response_file_stands_for_its_words(bench: Bench) -> None:
    bench.write(args__rsp="-O2 '-DTEXT=\"a b\"'\n-Iinc -c half.c\n")
    bench.same_as_real("gcc", "@args.rsp", "-o", "half.o")


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_files_get_the_permissions_of_the_callers_umask(bench: Bench, umask: int) -> None:
    script = f"umask {umask:o}; gcc -Iinc -c half.c -MD && gcc -Iinc -shared -fPIC half.c -o h.so"
    before = bench.files()
    oracle = bench.run("sh", "-c", script, real=True)
    for _ in range(2):
        bench.restore(before)
        assert bench.run("sh", "-c", script) == oracle
    assert oracle.files["half.o"][0] == 0o666 & ~umask


def test_an_output_that_is_a_link_is_replaced_and_its_target_kept(bench: Bench) -> None:
    bench.write(target="kept")
    (bench.work / "half.o").symlink_to("target")
    bench.run("gcc", "-Iinc", "-c", "half.c", "-o", "half.o")
    assert not (bench.work / "half.o").is_symlink()
    assert (bench.work / "target").read_text() == "kept"


def test_a_folder_that_is_not_there_is_the_compilers_to_tell(bench: Bench) -> None:
    before = bench.files()
    oracle = bench.run("gcc", "-Iinc", "-c", "half.c", "-o", "none/half.o", real=True)
    ran = bench.run("gcc", "-Iinc", "-c", "half.c", "-o", "none/half.o")
    assert (ran.code, ran.files) == (oracle.code, before)
    assert b"none/half.o" in ran.stderr


def test_a_variable_that_changes_what_a_driver_runs_is_not_guessed_at(bench: Bench) -> None:
    _, outcome, reason = bench.outcome_of(
        "gcc", "-Iinc", "-c", "half.c", DEPENDENCIES_OUTPUT="all.d"
    )
    assert (outcome, reason) == ("bypass", "unsupported_option")
    assert (bench.work / "all.d").exists()


def test_include_variables_reach_the_compiler_as_they_are(bench: Bench) -> None:
    bench.same_as_real("gcc", "-c", "half.c", "-MD", CPATH="inc")
    bench.same_as_real("gcc", "-c", "half.c", "-MD", C_INCLUDE_PATH=f"{bench.work}/src/../inc")


def test_what_was_asked_is_told_on_demand(bench: Bench) -> None:
    ran = bench.run("gcc", "--version", PTOCACHE_WRAP_EXPLAIN="1")
    assert ran.stderr.startswith(b"ptocache: gcc: bypass (not_a_compile): --version\n")


def test_explain_knows_a_command_that_went_through(bench: Bench) -> None:
    bench.run("gcc", "-c", "half.c", "name.c", "-Iinc")
    done = ptocache("explain", "--last", env=bench.daemon.env)
    assert "more than one source" in done.out


def test_only_the_reasons_of_a_bypass_are_counted_for_a_client(bench: Bench) -> None:
    with bench.daemon.client() as client:
        before = client.stats()["caches"]["binary"]
        for reason in ("compile_failed", "", "no such reason"):
            with pytest.raises(BadRequestError, match="the reason of a bypass"):
                client.call("bypassed", reason=reason)
        assert client.stats()["caches"]["binary"] == before


# --- finding the compiler


def test_two_folders_of_shims_lead_to_one_compiler(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert ptocache("shims", str(other), "--names", "gcc", env=bench.plain_env).code == 0
    path = f"{other}:{bench.env['PATH']}"
    ran, outcome, _ = bench.outcome_of("gcc", "-Iinc", "-c", "half.c", PATH=path)
    assert (ran.code, outcome) == (0, "miss")


def test_links_of_another_cache_never_lead_in_a_circle(bench: Bench, tmp_path: Path) -> None:
    # Like ccache, it looks for the compiler on PATH behind itself, and meets the shim again.
    cache = tmp_path / "ccache"
    cache.write_text(
        '#!/bin/sh\nname=$(basename "$0")\nfor place in $(echo "$PATH" | tr : " "); do\n'
        f'  [ "$place" = "{tmp_path}/links" ] || [ ! -x "$place/$name" ] || exec "$place/$name" "$@"\n'
        "done\n"
    )
    cache.chmod(0o755)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "gcc").symlink_to(cache)
    path = f"{tmp_path}/links:{bench.env['PATH']}"
    for order in (path, f"{bench.shims}:{tmp_path}/links:{bench.plain_env['PATH']}"):
        ran = bench.run("gcc", "-Iinc", "-c", "half.c", PATH=order)
        assert (ran.code, ran.stderr) == (0, b"")
        assert bench.run("gcc", "--version", PATH=order).code == 0


def test_a_wrapper_that_calls_the_compiler_by_name_is_handed_on(
    bench: Bench, tmp_path: Path
) -> None:
    # A script called gcc, which calls gcc: without a marker they would call each other for ever.
    (tmp_path / "gcc").write_text(
        f'#!/bin/sh\nPATH="{bench.shims}:$PATH" exec gcc -DWRAPPED "$@"\n'
    )
    (tmp_path / "gcc").chmod(0o755)
    path = f"{bench.shims}:{tmp_path}:{bench.plain_env['PATH']}"
    ran = bench.run("gcc", "-E", "-dM", "-x", "c", "/dev/null", PATH=path)
    assert ran.code == 0
    assert b"#define WRAPPED 1" in ran.stdout


def test_without_a_compiler_it_says_so_as_a_shell_does(bench: Bench) -> None:
    ran = bench.run(str(bench.shims / "clang++"), "-c", "half.c", PATH=str(bench.shims))
    assert ran.code == 127
    assert b"clang++: command not found" in ran.stderr


def test_a_request_of_the_library_does_not_take_a_shim_for_a_compiler(bench: Bench) -> None:
    with bench.daemon.client() as client:
        result = client.compile(
            "host", {"k.c": b"int three(void) { return 3; }"}, env={"PATH": bench.env["PATH"]}
        )
    assert result.outcome.label in ("miss", "memory_hit")


# --- ptocache wrap


def test_wrap_runs_one_command(bench: Bench) -> None:
    oracle = bench.run("gcc", "-Iinc", "-c", "half.c", real=True)
    for expected in ("miss", "memory_hit"):
        before = bench.numbers()[expected]
        done = ptocache(
            "wrap", "--", "gcc", "-Iinc", "-c", "half.c", env=bench.plain_env, cwd=bench.work
        )
        assert (done.code, bench.files()) == (0, oracle.files)
        assert bench.numbers()[expected] == before + 1


def test_wrap_takes_a_path_and_any_other_program(bench: Bench) -> None:
    for words, code, out in (
        ((real_path("gcc"), "-dumpversion"), 0, None),
        (("sh", "-c", "echo hello; exit 3"), 3, b"hello\n"),
        (("no-such-program",), 127, b""),
    ):
        done = ptocache("wrap", "--", *words, env=bench.plain_env, cwd=bench.work)
        assert done.code == code
        assert out is None or done.stdout == out


def test_the_command_begins_without_the_command_line_interface() -> None:
    code = (
        "import sys; sys.argv = ['ptocache', 'wrap', '--', 'sh', '-c', 'exit 4']\n"
        "import os; os.execve = lambda *args: os._exit(5 if 'typer' in sys.modules else 4)\n"
        "from ptocache_cli.entry import run; run()"
    )
    path = ":".join(str(Path(__file__).parents[2] / part) for part in (".", "cli", "toolchains"))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 4


# --- shims


def test_shims_says_what_it_made_and_can_be_renewed(bench: Bench, tmp_path: Path) -> None:
    for _ in range(2):
        done = ptocache("shims", str(tmp_path / "s"), "--names", "gcc,g++", env=bench.plain_env)
        assert done.code == 0
        assert done.out.splitlines()[0].split() == ["gcc", real_path("gcc")]
        assert done.out.splitlines()[-1] == f"export PATH={tmp_path}/s:$PATH"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        ".ptocache-shim", "g++", "gcc",
    ]  # fmt: skip


def test_shims_makes_only_names_that_are_found_unless_told_otherwise(
    bench: Bench, tmp_path: Path
) -> None:
    assert ptocache("shims", str(tmp_path / "s"), env=bench.plain_env).code == 0
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert {"gcc", "cc"} <= names
    assert "ptoas" not in names
    assert (bench.shims / "ptoas").is_symlink()


def test_shims_replaces_nothing_of_others(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("mine")
    done = ptocache("shims", str(tmp_path), "--names", "gcc", env=bench.plain_env)
    assert done.code == 2
    assert "is no shim" in done.err
    assert (tmp_path / "gcc").read_text() == "mine"


@pytest.mark.parametrize("words", [["--names", "make"], ["--names", "gcc", "--all"]])
def test_shims_refuses_what_makes_no_sense(bench: Bench, tmp_path: Path, words: list[str]) -> None:
    assert ptocache("shims", str(tmp_path / "s"), *words, env=bench.plain_env).code == 2
    assert not (tmp_path / "s").exists()


def test_a_shim_works_when_ptocache_is_gone(bench: Bench, tmp_path: Path) -> None:
    text = (bench.shims / ".ptocache-shim").read_text()
    root = str(Path(__file__).parents[2])
    assert root in text
    (tmp_path / "gcc").write_text(text.replace(root, "/nowhere"))
    (tmp_path / "gcc").chmod(0o755)
    oracle = bench.run("gcc", "-Iinc", "-c", "half.c", real=True)
    ran = bench.run(str(tmp_path / "gcc"), "-Iinc", "-c", "half.c", PATH=bench.env["PATH"])
    assert ran == oracle


# --- a daemon in trouble


def test_without_a_daemon_the_compiler_itself_runs_and_nothing_is_said(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "store")
    bench = Bench(tmp_path, daemon)
    try:
        bench.write(k__c="int k(void) { return x; }\n", good__c="int good;\n")
        for source in ("k.c", "good.c"):
            oracle = bench.run("gcc", "-c", source, real=True)
            assert bench.run("gcc", "-c", source) == oracle
            assert bench.run("gcc", "--version").code == 0
        assert not daemon.root.exists()
    finally:
        daemon.clean_up()


def test_a_daemon_that_is_required_and_not_there_is_an_error(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "store")
    bench = Bench(tmp_path, daemon)
    try:
        bench.write(good__c="int good;\n")
        ran = bench.run("gcc", "-c", "good.c", PTOCACHE_REQUIRE="1")
        assert ran.code == 1
        assert b"no daemon serves" in ran.stderr
        assert "good.o" not in ran.files
    finally:
        daemon.clean_up()


def test_the_first_command_starts_a_daemon(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "store", autostart="1", idle_timeout="60s")
    bench = Bench(tmp_path, daemon)
    try:
        bench.write(good__c="int good;\n")
        assert bench.run("gcc", "-c", "good.c").code == 0
        assert bench.run("gcc", "-c", "good.c").code == 0
        numbers = daemon.stats()
        assert (numbers["miss"], numbers["memory_hit"]) == (1, 1)
    finally:
        ptocache("stop", env=daemon.env)
        daemon.clean_up()


def test_a_bypass_starts_no_daemon(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "store", autostart="1")
    bench = Bench(tmp_path, daemon)
    try:
        assert bench.run("gcc", "--version").code == 0
        assert not daemon.root.exists()
    finally:
        daemon.clean_up()


@pytest.fixture
def gated(tmp_path: Path, make_daemon: MakeDaemon, gate: Gate) -> Bench:
    """A bench whose gcc waits at the gate when it compiles."""
    compiler = LoggingCompiler(tmp_path / "bin", before=gate.script)
    (tmp_path / "bin" / "gcc").symlink_to(compiler.path)
    daemon = make_daemon(trust_scripts=f"{compiler.trust}:{tmp_path}/bin/gcc").start()
    path = f"{tmp_path}/bin:{daemon.env['PATH']}"
    bench = Bench(tmp_path, daemon, {"PATH": path})
    bench.write(good__c="int good;\n")
    return bench


def _start(bench: Bench, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, cwd=bench.work, env=bench.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_daemon_that_is_killed_in_mid_request_costs_nothing_but_time(
    gated: Bench, gate: Gate
) -> None:
    process = _start(gated, "gcc", "-c", "good.c")
    wait_for(gate.arrivals, "the daemon's compile to begin")
    gate.open()
    gate.close()
    gated.daemon.kill()
    wait_for(lambda: len(gate.arrivals()) > 1 or process.poll() is not None, "the compiler itself")
    gate.open()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert (gated.work / "good.o").read_bytes().startswith(b"\x7fELF")


def test_many_identical_commands_compile_once(gated: Bench, gate: Gate) -> None:
    processes = [_start(gated, "gcc", "-c", "good.c", "-o", f"{n}.o") for n in range(4)]
    wait_for(gate.arrivals, "the one compile to begin")
    wait_for(lambda: _waiting(gated) == 4, "all to wait for it")
    gate.open()
    assert [process.wait(DEADLINE_S) for process in processes] == [0] * 4
    for process in processes:
        process.communicate()
    assert len(gate.arrivals()) == 1
    assert len({(gated.work / f"{n}.o").read_bytes() for n in range(4)}) == 1
    numbers = gated.numbers()
    assert (numbers["miss"], numbers["joined"]) == (1, 3)


def _waiting(bench: Bench) -> int:
    with bench.daemon.client() as client:
        found: int = client.call("status")["waiting"]
        return found


def test_a_source_that_changes_while_it_compiles_is_answered_and_not_stored(
    gated: Bench, gate: Gate
) -> None:
    process = _start(gated, "gcc", "-c", "good.c")
    wait_for(gate.arrivals, "the compile to begin")
    gated.write(good__c="int better;\n")
    gate.open()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert b"better" in (gated.work / "good.o").read_bytes()
    assert gated.numbers()["bypass_reasons"] == {"input_changed": 1}


def test_an_interrupted_command_leaves_no_object(gated: Bench, gate: Gate) -> None:
    process = _start(gated, "gcc", "-c", "good.c")
    wait_for(gate.arrivals, "the compile to begin")
    process.send_signal(2)
    process.communicate(timeout=DEADLINE_S)
    gate.open()
    assert process.returncode == -2
    assert sorted(path.name for path in gated.work.iterdir()) == ["good.c"]


def test_a_changed_compiler_compiles_again(tmp_path: Path, make_daemon: MakeDaemon) -> None:
    compiler = LoggingCompiler(tmp_path / "bin")
    (tmp_path / "bin" / "gcc").symlink_to(compiler.path)
    daemon = make_daemon(trust_scripts=f"{compiler.trust}:{tmp_path}/bin/gcc").start()
    bench = Bench(tmp_path, daemon, {"PATH": f"{tmp_path}/bin:{daemon.env['PATH']}"})
    bench.write(k__c="int size[N];\n")
    compiler.write(extra="-DN=1")
    bench.same_as_real("gcc", "-c", "k.c")
    compiler.write(extra="-DN=2")
    bench.same_as_real("gcc", "-c", "k.c")


# --- what the documentation says


def test_the_how_to_does_what_it_says(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "store", autostart="1", idle_timeout="60s")
    work = tmp_path / "work"
    work.mkdir()
    try:
        run_page("docs/how-to/wrap-a-compiler.md", work, daemon.env)
        numbers = daemon.stats()
        assert (numbers["miss"], numbers["memory_hit"]) == (2, 3)
    finally:
        ptocache("stop", env=daemon.env)
        daemon.clean_up()


# --- a whole project


@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if shutil.which(name)])
def test_a_project_is_built_alike_and_the_second_time_without_a_compiler(
    tmp_path: Path, daemon: DaemonProcess, compiler: str
) -> None:
    bench = Bench(tmp_path, daemon)
    kit.write(bench.work)
    sources = bench.files()
    assert len(sources) >= 40
    oracle = bench.run("make", "-j3", "-s", "check", f"CXX={compiler}", real=True)
    assert oracle.code == 0, oracle.stderr.decode()
    found = []
    for _ in range(2):
        bench.run("make", "-s", "clean", real=True)
        ran = bench.run("make", "-j3", "-s", "check", f"CXX={compiler}")
        assert (ran.code, ran.stdout, ran.files) == (0, oracle.stdout, oracle.files)
        found.append(bench.numbers())
    cold, warm = found
    assert (cold["miss"], cold["memory_hit"], cold["failure"]) == (kit.SOURCES, 0, 0)
    assert (warm["miss"], warm["memory_hit"], warm["failure"]) == (kit.SOURCES, kit.SOURCES, 0)
    # The libraries and programs are linked each time, by the linker itself.
    assert warm["bypass_reasons"] == {"not_a_compile": 2 * (1 + len(kit.TESTS))}
