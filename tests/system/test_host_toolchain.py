"""The host toolchain through a real daemon: what it makes, what it keys, what it leaves alone."""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.elffile import ELFFile

from ptocache.client import Client
from ptocache.errors import (
    CompileFailedError,
    OutputRejectedError,
    PtocacheWarning,
    ToolNotFoundError,
)
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from ptocache.signature import settled, signature_of
from tests.harness import DaemonProcess, LoggingCompiler, compile_directly, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

ENV = {"PATH": os.environ.get("PATH", "")}
SOURCE = b"int answer(void) { return 42; }\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all tests that do not change it; their sources differ."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("host") / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    yield daemon
    daemon.clean_up()


@pytest.fixture
def client(served: DaemonProcess) -> Iterator[Client]:
    with served.client() as found:
        yield found


def compiled(client: Client, source: bytes | str, name: str = "k.c", **more: Any) -> Result:
    """An object; ``env`` is added to the PATH."""
    more["env"] = {**ENV, **more.get("env", {})}
    return client.compile("host", {name: source}, **{"outputs": ["object"], **more})


def object_bytes(result: Result) -> bytes:
    return bytes(result.outputs["object"].buffer)


def loaded(result: Result, directory: Path) -> ctypes.CDLL:
    """The shared object, loaded."""
    path = directory / f"{result.outputs['shared'].digest}.so"
    result.outputs["shared"].write(path)
    return ctypes.CDLL(str(path))


# --- what it makes


def test_shared_object_of_c_loads_and_runs(client: Client, tmp_path: Path) -> None:
    found = client.compile("host", {"k.c": SOURCE}, env=ENV, symbols=["answer"])
    assert loaded(found, tmp_path).answer() == 42


def test_shared_object_of_cpp_loads_and_runs(client: Client, tmp_path: Path) -> None:
    source = (
        b"#include <vector>\n#include <string>\n"
        b'extern "C" int total() { std::vector<int> v{1, 2}; return v[0] + v[1] + '
        b"int(std::to_string(1234).size()); }\n"
    )
    found = client.compile("host", {"k.cpp": source}, env=ENV, symbols=["total"])
    assert found.outcome is Outcome.MISS
    assert loaded(found, tmp_path).total() == 7
    again = client.compile("host", {"k.cpp": source}, env=ENV, symbols=["total"])
    assert again.outcome is Outcome.MEMORY_HIT


def test_several_sources_in_two_languages_become_one_shared_object(
    client: Client, tmp_path: Path
) -> None:
    inputs = {
        "a.c": b'#include "sub/shared.h"\nint half(void);\nint whole(void) { return TWICE * half(); }\n',
        "sub/b.cc": b'#include "shared.h"\nextern "C" int half() { return 10 + TWICE; }\n',
        "sub/shared.h": b"#define TWICE 2\n",
    }
    found = client.compile("host", inputs, env=ENV, symbols=["half", "whole"])
    assert loaded(found, tmp_path).whole() == 24
    assert client.compile("host", inputs, env=ENV, symbols=["half", "whole"]).outcome.is_hit
    changed = {**inputs, "sub/shared.h": b"#define TWICE 3\n"}
    other = client.compile("host", changed, env=ENV, symbols=["half", "whole"])
    assert other.outcome is Outcome.MISS
    assert loaded(other, tmp_path).whole() == 39


def test_object_equals_the_one_that_the_compiler_makes(client: Client, tmp_path: Path) -> None:
    for options in ([], ["-O2"], ["-O3", "-march=native"], ["-std=c11", "-DX=1"]):
        found = compiled(client, SOURCE, options=options)
        assert object_bytes(found) == compile_directly(SOURCE, "k.c", options, tmp_path / "d")


def test_both_outputs_come_from_one_request(client: Client) -> None:
    found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["shared", "object"])
    assert sorted(found.outputs) == ["object", "shared"]
    assert client.compile(
        "host", {"k.c": SOURCE}, env=ENV, outputs=["object", "shared"]
    ).outcome.is_hit


def test_output_without_the_wanted_symbol_is_rejected_and_counted(
    served: DaemonProcess, client: Client
) -> None:
    before = served.stats()
    with pytest.raises(OutputRejectedError, match="absent"):
        client.compile("host", {"k.c": SOURCE}, env=ENV, symbols=["answer", "absent"])
    hidden = b'__attribute__((visibility("hidden"))) int hidden_one(void) { return 1; }\n'
    with pytest.raises(OutputRejectedError, match="hidden_one"):
        client.compile("host", {"k.c": hidden}, env=ENV, symbols=["hidden_one"])
    after = served.stats()
    assert after["rejected"] - before["rejected"] == 2
    assert after["store_failure"] == before["store_failure"]


# --- what never reaches an output


@pytest.mark.parametrize("output", ["object", "shared"])
@pytest.mark.parametrize("options", [["-g"], ["-g3", "-O2"], []], ids=" ".join)
def test_place_of_the_compile_reaches_no_output(
    served: DaemonProcess, client: Client, tmp_path: Path, options: list[str], output: str
) -> None:
    (tmp_path / "h.h").write_text("static const char *header(void) { return __FILE__; }\n")
    source = (
        b'#include "h.h"\n#include <assert.h>\n'
        b"const char *here(void) { assert(header()); return __FILE__; }\n"
        b"const char *base(void) { return __builtin_FILE(); }\n"
    )
    found = client.compile(
        "host", {"k.c": source}, env=ENV, options=options, outputs=[output],
        source_dir=tmp_path,
    )  # fmt: skip
    assert found.outcome is Outcome.MISS, found.why
    data = bytes(found.outputs[output].buffer)
    for secret in (str(served.root), "job-", str(tmp_path), os.getcwd()):
        assert secret.encode() not in data
    assert b"k.c" in data
    again = client.compile(
        "host", {"k.c": source}, env=ENV, options=options, outputs=[output],
        source_dir=tmp_path,
    )  # fmt: skip
    assert again.outcome.is_hit


def test_two_checkouts_share_what_does_not_name_them(client: Client, tmp_path: Path) -> None:
    source = b'#include "h.h"\nint checkout(void) { return VALUE; }\n'
    folders = [tmp_path / "one", tmp_path / "two" / "deeper"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "h.h").write_text("#define VALUE 5\n")
    first, second = (compiled(client, source, source_dir=folder) for folder in folders)
    assert first.outcome is Outcome.MISS
    assert second.outcome is Outcome.MEMORY_HIT
    (folders[1] / "h.h").write_text("#define VALUE 6\n")
    third = compiled(client, source, source_dir=folders[1])
    assert third.outcome is Outcome.MISS
    assert object_bytes(third) != object_bytes(first)
    assert compiled(client, source, source_dir=folders[0]).outcome.is_hit


def test_checkouts_do_not_share_a_warning_that_names_one_of_them(
    client: Client, tmp_path: Path
) -> None:
    source = b'#include "h.h"\nint warned(void) { return 1; }\n'
    logs = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "h.h").write_text("#warning look here\n")
        found = compiled(client, source, source_dir=folder)
        again = compiled(client, source, source_dir=folder)
        assert found.log == again.log
        assert again.outcome.is_hit
        logs.append(found.log.stderr)
    for name, log in zip(("one", "two"), logs, strict=True):
        assert str(tmp_path / name).encode() in log or b"look here" in log
        other = "two" if name == "one" else "one"
        assert str(tmp_path / other).encode() not in log


# --- what it includes


def test_quoted_include_comes_from_the_sources_own_directory(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "src" / "h.h").write_text('#include "sub/deep.h"\n#define VALUE 1 + DEEP\n')
    (tmp_path / "src" / "sub" / "deep.h").write_text('#include "beside.h"\n')
    (tmp_path / "src" / "sub" / "beside.h").write_text("#define DEEP 10\n")
    (tmp_path / "other" / "h.h").write_text("#define VALUE 2\n")
    source = b'#include "h.h"\nint quoted(void) { return VALUE; }\n'
    options = ["-I", str(tmp_path / "other")]
    request: dict[str, Any] = {
        "options": options, "source_dir": tmp_path / "src", "outputs": ["shared"],
    }  # fmt: skip
    first = compiled(client, source, **request)
    assert loaded(first, tmp_path).quoted() == 11
    assert compiled(client, source, **request).outcome.is_hit
    (tmp_path / "src" / "sub" / "beside.h").write_text("#define DEEP 20\n")
    second = compiled(client, source, **request)
    assert second.outcome is Outcome.MISS
    assert loaded(second, tmp_path).quoted() == 21
    (tmp_path / "src" / "h.h").unlink()
    third = compiled(client, source, **request)
    assert loaded(third, tmp_path).quoted() == 2


def test_order_of_include_directories_counts(client: Client, tmp_path: Path) -> None:
    for value in (1, 2):
        (tmp_path / str(value)).mkdir()
        (tmp_path / str(value) / "h.h").write_text(f"#define VALUE {value}\n")
    source = b"#include <h.h>\nint ordered(void) { return VALUE; }\n"
    one, two = (f"-I{tmp_path}/1", f"-I{tmp_path}/2")
    for options, value in (
        ([one, two], 1),
        ([two, one], 2),
        (["-isystem", *one[2:].split(), two], 2),
    ):
        found = compiled(client, source, options=options, outputs=["shared"])
        assert found.outcome is Outcome.MISS
        assert loaded(found, tmp_path).ordered() == value
        again = compiled(client, source, options=options, outputs=["shared"])
        assert again.outcome.is_hit


@pytest.mark.parametrize("include", ["<h.h>", '"h.h"', '"sub/h.h"'])
def test_header_that_appears_before_the_one_that_was_found_is_noticed(
    client: Client, tmp_path: Path, include: str
) -> None:
    name = include.strip('<>"')
    for folder in ("early", "late"):
        (tmp_path / folder / "sub").mkdir(parents=True)
    (tmp_path / "late" / name).write_text("#define VALUE 1\n")
    source = f"#include {include}\nint shadow(void) {{ return VALUE; }}\n"
    options = [f"-I{tmp_path}/early", f"-I{tmp_path}/late"]

    def ask() -> Result:
        return compiled(client, source, options=options, outputs=["shared"])

    assert loaded(ask(), tmp_path).shadow() == 1
    assert ask().outcome.is_hit
    (tmp_path / "early" / name).write_text("#define VALUE 2\n")
    second = ask()
    assert second.outcome is Outcome.MISS
    assert loaded(second, tmp_path).shadow() == 2
    (tmp_path / "early" / name).unlink()
    assert ask().outcome.is_hit, "the old entry holds again"


def test_header_behind_a_dangling_link_is_noticed_when_it_appears(
    client: Client, tmp_path: Path
) -> None:
    for folder in ("early", "late"):
        (tmp_path / folder).mkdir()
    (tmp_path / "late" / "h.h").write_text("#define VALUE 1\n")
    (tmp_path / "early" / "h.h").symlink_to(tmp_path / "not-yet.h")
    source = b"#include <h.h>\nint dangling(void) { return VALUE; }\n"
    options = [f"-I{tmp_path}/early", f"-I{tmp_path}/late"]

    def ask() -> Result:
        return compiled(client, source, options=options, outputs=["shared"])

    def quiet() -> bool:
        signature = signature_of(str(tmp_path / "early"))
        return signature is not None and settled(signature, time.time_ns())

    assert loaded(ask(), tmp_path).dangling() == 1
    wait_for(quiet, "the stamps of the empty place to be trusted")
    assert ask().outcome.is_hit
    (tmp_path / "not-yet.h").write_text("#define VALUE 2\n")
    second = ask()
    assert second.outcome is Outcome.MISS
    assert loaded(second, tmp_path).dangling() == 2


@pytest.mark.parametrize(
    ("variable", "name"),
    [("CPATH", "k.c"), ("C_INCLUDE_PATH", "k.c"), ("CPLUS_INCLUDE_PATH", "k.cc")],
)
def test_variable_with_include_directories_is_honoured_and_keyed(
    client: Client, tmp_path: Path, variable: str, name: str
) -> None:
    for value in (1, 2):
        (tmp_path / str(value)).mkdir()
        (tmp_path / str(value) / "from_variable.h").write_text(f"#define VALUE {value}\n")
    source = "#include <from_variable.h>\n"
    source += 'extern "C" ' if name.endswith("cc") else ""
    source += "int from_variable(void) { return VALUE; }\n"

    def ask(value: int) -> Result:
        env = {variable: str(tmp_path / str(value))}
        return compiled(client, source, name, env=env, outputs=["shared"])

    first, second = ask(1), ask(2)
    assert [item.outcome for item in (first, second)] == [Outcome.MISS] * 2
    assert loaded(first, tmp_path).from_variable() == 1
    assert loaded(second, tmp_path).from_variable() == 2
    assert ask(1).outcome.is_hit
    with pytest.raises(CompileFailedError):
        compiled(client, source, name, outputs=["shared"])


# --- what tells the time, or reads what nobody lists


@pytest.mark.parametrize("macro", ["__DATE__", "__TIME__", "__TIMESTAMP__"])
def test_source_that_tells_the_time_is_a_bypass_with_its_reason(client: Client, macro: str) -> None:
    source = f"const char *when(void) {{ return {macro}; }}\n"
    for _ in range(2):
        found = compiled(client, source)
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.TIME_MACRO)
        assert macro in found.why
        assert "k.c" in found.why


@pytest.mark.parametrize("macro", ["__DATE__", "__TIME__"])
def test_header_that_tells_the_time_is_a_bypass_with_its_reason(
    client: Client, tmp_path: Path, macro: str
) -> None:
    (tmp_path / "when.h").write_text(f"#define WHEN {macro}\n")
    source = b'#include "when.h"\nconst char *when(void) { return WHEN; }\n'
    found = compiled(client, source, source_dir=tmp_path)
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.TIME_MACRO)
    assert "when.h" in found.why
    epoch = {"SOURCE_DATE_EPOCH": "86400"}
    kept = compiled(client, source, source_dir=tmp_path, env=epoch)
    assert kept.outcome is Outcome.MISS
    assert compiled(client, source, source_dir=tmp_path, env=epoch).outcome.is_hit


def test_option_that_tells_the_time_is_a_bypass(client: Client) -> None:
    source = b"const char *when(void) { return WHEN; }\n"
    found = compiled(client, source, options=["-DWHEN=__DATE__"])
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.TIME_MACRO)


def test_time_by_source_date_epoch_is_kept_and_right(client: Client, tmp_path: Path) -> None:
    source = (
        b'const char *when(void) { return __DATE__ " " __TIME__; }\n'
        b"const char *stamp(void) { return __TIMESTAMP__; }\n"
    )
    seen = []
    for epoch in ("0", "1000000000"):
        env = {"SOURCE_DATE_EPOCH": epoch}
        found = compiled(client, source, env=env, outputs=["shared"])
        assert found.outcome is Outcome.MISS, found.why
        assert compiled(client, source, env=env, outputs=["shared"]).outcome.is_hit
        library = loaded(found, tmp_path)
        for function in (library.when, library.stamp):
            function.restype = ctypes.c_char_p
            seen.append(function())
    assert seen == [
        b"Jan  1 1970 00:00:00", b"Thu Jan  1 00:00:00 1970",
        b"Sep  9 2001 01:46:40", b"Sun Sep  9 01:46:40 2001",
    ]  # fmt: skip


def test_bytes_that_the_assembler_brings_in_are_a_bypass(client: Client, tmp_path: Path) -> None:
    blob = tmp_path / "blob.bin"
    source = f'__asm__(".data\\n.globl blob\\nblob: .incbin \\"{blob}\\"\\n");\n'
    for content in (b"first....", b"second..."):
        blob.write_bytes(content)
        found = compiled(client, source)
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.UNSEEN_INPUT)
        assert content in object_bytes(found)


@pytest.mark.parametrize(
    "options",
    [
        ["-fprofile-use"],
        ["@/nonexistent-response"],
        ["-B/usr/bin"],
        ["-specs=/dev/null"],
        ["-save-temps"],
        ["--coverage"],
        ["-Wa,-L"],
        ["-Wp,-DX=1"],
        ["-fuse-ld=bfd"],
        ["-gsplit-dwarf"],
        ["-Xassembler", "-L"],
    ],
    ids=" ".join,
)
def test_option_whose_effect_no_key_sees_is_a_bypass_that_names_it(
    client: Client, options: list[str]
) -> None:
    found = client.compile(
        "host", {"k.c": SOURCE}, env=ENV, options=options, outputs=["object"], check=False
    )
    if options[0].startswith("@"):
        assert found.outcome is Outcome.FAILURE, "there is no such file"
        return
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.UNSUPPORTED_OPTION), found.why
    assert options[0] in found.why


def test_native_is_keyed_by_what_it_means_here(served: DaemonProcess, client: Client) -> None:
    found = compiled(client, b"int native;\n", options=["-march=native", "-mtune=native"])
    entry = client.describe(found.key)["entries"][0]
    meaning = entry["action"]["keyed"]["native"]
    assert "-march=" in meaning
    assert "native" not in meaning
    plain = compiled(client, b"int native;\n", options=["-O1"])
    assert client.describe(plain.key)["entries"][0]["action"]["keyed"] == {}


# --- what the tools say


def test_warnings_are_replayed_exactly(client: Client) -> None:
    source = "int warned(void) { int unused; \n#warning \u00e9l\u00e8ve\n return 0; }\n".encode()
    first = compiled(client, source, options=["-Wall", "-Wextra"])
    again = compiled(client, source, options=["-Wall", "-Wextra"])
    assert again.outcome is Outcome.MEMORY_HIT
    assert again.log == first.log
    assert "\u00e9l\u00e8ve".encode() in first.log.stderr
    assert b"unused variable" in first.log.stderr
    assert first.log.stdout == b""
    assert first.exit_code == again.exit_code == 0


def test_output_of_a_failing_compile_is_replayed_with_its_exit_code(client: Client) -> None:
    source = b"int failing(void) { return nowhere; }\n"
    results = [
        client.compile("host", {"k.c": source}, env=ENV, outputs=["object"], check=False)
        for _ in range(2)
    ]
    assert [item.reason for item in results] == [
        Reason.COMPILE_FAILED, Reason.REMEMBERED_FAILURE,
    ]  # fmt: skip
    assert results[0].log == results[1].log
    assert results[0].exit_code == results[1].exit_code == 1


def test_failure_is_forgotten_when_a_header_appears_or_changes(
    client: Client, tmp_path: Path
) -> None:
    source = b'#include "needed.h"\nint needing(void) { return VALUE; }\n'

    def ask() -> Result:
        return client.compile(
            "host", {"k.c": source}, env=ENV, outputs=["object"], source_dir=tmp_path, check=False
        )

    assert ask().outcome is Outcome.FAILURE
    (tmp_path / "needed.h").write_text("#define VALUE nowhere\n")
    assert ask().reason is Reason.COMPILE_FAILED
    assert ask().reason is Reason.REMEMBERED_FAILURE
    (tmp_path / "needed.h").write_text("#define VALUE 1\n")
    assert ask().outcome is Outcome.MISS


def test_long_output_is_cut_with_a_note(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(log_limit="1k").start()
    source = b"".join(b"#warning number %d\n" % n for n in range(200)) + b"int noisy;\n"
    with daemon.client() as client:
        first, again = compiled(client, source), compiled(client, source)
    assert len(first.log.stderr) < 1200
    assert b"[ptocache: cut, " in first.log.stderr
    assert again.log == first.log
    assert again.outcome.is_hit


# --- which compiler


def test_compiler_with_options_in_its_name_is_used_and_keyed(client: Client) -> None:
    plain = compiled(client, b"int prefixed;\n", env={"CC": "gcc"})
    prefixed = compiled(client, b"int prefixed;\n", env={"CC": "gcc -m64 -O3"})
    assert prefixed.outcome is Outcome.MISS
    assert prefixed.key != plain.key
    entry = client.describe(prefixed.key)["entries"][0]
    assert entry["commands"][0][1:3] == ["-m64", "-O3"]
    assert compiled(client, b"int prefixed;\n", env={"CC": "gcc -m64 -O3"}).outcome.is_hit


def test_launcher_in_front_of_the_compiler_is_left_out(client: Client) -> None:
    plain = compiled(client, b"int launched;\n", env={"CC": "gcc"})
    found = compiled(client, b"int launched;\n", env={"CC": "ccache gcc"})
    assert found.key == plain.key
    assert found.outcome.is_hit


def test_missing_compiler_is_told_with_where_it_was_looked_for(
    client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ToolNotFoundError, match="no C compiler was found") as named:
        client.compile("host", {"k.c": SOURCE}, env={**ENV, "CC": "no-such-cc"})
    assert "no-such-cc" in str(named.value)
    with pytest.raises(ToolNotFoundError, match="install one of cc, gcc, clang") as unnamed:
        client.compile("host", {"k.c": SOURCE}, env={"PATH": str(tmp_path)})
    assert str(tmp_path / "cc") in str(unnamed.value)
    with pytest.raises(ToolNotFoundError, match="no C\\+\\+ compiler"):
        client.compile("host", {"k.cc": SOURCE}, env={**ENV, "CXX": "/nowhere/c++"})


def test_compiler_that_appears_earlier_on_the_path_is_noticed(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    early = LoggingCompiler(tmp_path / "early")
    place = tmp_path / "bin"
    place.mkdir()
    daemon = make_daemon(trust_scripts=f"{early.path}:{place / 'cc'}").start()
    env = {"PATH": f"{place}:{ENV['PATH']}"}
    with daemon.client() as client:
        first = client.compile("host", {"k.c": SOURCE}, env=env)
        assert client.compile("host", {"k.c": SOURCE}, env=env).outcome.is_hit
        (place / "cc").symlink_to(early.path)
        second = client.compile("host", {"k.c": SOURCE}, env=env)
        assert second.outcome is Outcome.MISS
        assert len(early.runs()) == 2
        (place / "cc").unlink()
        third = client.compile("host", {"k.c": SOURCE}, env=env)
    assert third.outcome.is_hit
    assert third.key == first.key != second.key


def test_compiler_replaced_in_place_with_its_old_size_and_times_is_noticed(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    logging_compiler.write(extra="-DVALUE=1")
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    source = b"const char value[VALUE] = {1};\n"
    sizes = []
    with daemon.client() as client:
        for value in (1, 2, 1):
            info = logging_compiler.path.stat()
            logging_compiler.write(extra=f"-DVALUE={value}")
            os.utime(logging_compiler.path, ns=(info.st_atime_ns, info.st_mtime_ns))
            assert logging_compiler.path.stat().st_size == info.st_size
            found = compiled(client, source, env=logging_compiler.env)
            sizes.append((found.outcome, _symbol_size(object_bytes(found), "value")))
    assert [size for _, size in sizes] == [1, 2, 1]
    assert [outcome for outcome, _ in sizes] == [Outcome.MISS, Outcome.MISS, Outcome.MEMORY_HIT]


def _symbol_size(data: bytes, name: str) -> int:
    table: Any = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    return int(table.get_symbol_by_name(name)[0]["st_size"])


def test_script_as_compiler_is_a_bypass_unless_it_is_trusted(
    served: DaemonProcess, client: Client, logging_compiler: LoggingCompiler
) -> None:
    with pytest.warns(PtocacheWarning):
        results = [compiled(client, SOURCE, env=logging_compiler.env) for _ in range(2)]
    for found in results:
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.UNIDENTIFIED_TOOLCHAIN)
        assert str(logging_compiler.path) in found.why
        assert "script" in found.why
    assert len(logging_compiler.compiles()) == 2


def test_compiler_behind_a_link_is_followed(client: Client, tmp_path: Path) -> None:
    real = shutil.which("gcc")
    assert real is not None
    link = tmp_path / "my-gcc"
    link.symlink_to(real)
    found = compiled(client, b"int linked;\n", env={"CC": str(link)})
    assert found.outcome is Outcome.MISS
    entry = client.describe(found.key)["entries"][0]
    driver = next(item for item in entry["components"] if item["role"] == "c")
    assert driver["path"] == str(link)
    assert driver["canonical"] == os.path.realpath(real)


# --- libraries


def library(directory: Path, value: int, *, static: bool = False) -> None:
    """A library ``own`` whose function gives ``value``."""
    directory.mkdir(exist_ok=True)
    (directory / "own.c").write_text(f"int own(void) {{ return {value}; }}\n")
    made = directory / ("own.o" if static else "libown.so")
    kind = ["-c"] if static else ["-shared"]
    subprocess.run(["cc", "-fPIC", *kind, str(directory / "own.c"), "-o", str(made)], check=True)
    if static:
        subprocess.run(["ar", "rcs", str(directory / "libown.a"), str(made)], check=True)


USES_OWN = b"int own(void);\nint uses_own(void) { return own(); }\n"


def test_system_library_is_linked(client: Client, tmp_path: Path) -> None:
    source = b"#include <math.h>\ndouble root(double x) { return cbrt(x); }\n"
    found = client.compile("host", {"k.c": source}, env=ENV, options=["-lm", "-O0"])
    function = loaded(found, tmp_path).root
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    assert function(27.0) == pytest.approx(3.0)
    again = client.compile("host", {"k.c": source}, env=ENV, options=["-lm", "-O0"])
    assert again.outcome.is_hit


def test_own_library_that_changes_is_a_miss(client: Client, tmp_path: Path) -> None:
    library(tmp_path / "lib", 1, static=True)
    options = ["-L", str(tmp_path / "lib"), "-lown"]

    def ask() -> Result:
        return client.compile("host", {"k.c": USES_OWN}, env=ENV, options=options)

    first = ask()
    assert loaded(first, tmp_path).uses_own() == 1
    assert ask().outcome.is_hit
    library(tmp_path / "lib", 2, static=True)
    second = ask()
    assert second.outcome is Outcome.MISS
    assert loaded(second, tmp_path).uses_own() == 2


def test_library_that_appears_before_the_one_that_was_found_is_noticed(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "early").mkdir()
    library(tmp_path / "late", 1, static=True)
    options = [f"-L{tmp_path}/early", f"-L{tmp_path}/late", "-lown"]

    def ask() -> Result:
        return client.compile("host", {"k.c": USES_OWN}, env=ENV, options=options)

    assert loaded(ask(), tmp_path).uses_own() == 1
    assert ask().outcome.is_hit
    library(tmp_path / "early", 2, static=True)
    second = ask()
    assert second.outcome is Outcome.MISS
    assert loaded(second, tmp_path).uses_own() == 2


def test_variable_with_library_directories_is_honoured_and_keyed(
    client: Client, tmp_path: Path
) -> None:
    for value in (1, 2):
        library(tmp_path / str(value), value, static=True)

    def ask(value: int) -> Result:
        env = {**ENV, "LIBRARY_PATH": str(tmp_path / str(value))}
        return client.compile("host", {"k.c": USES_OWN}, env=env, options=["-lown"])

    first, second = ask(1), ask(2)
    assert [loaded(item, tmp_path).uses_own() for item in (first, second)] == [1, 2]
    assert ask(1).outcome.is_hit
    with pytest.raises(CompileFailedError) as failed:
        client.compile("host", {"k.c": USES_OWN}, env=ENV, options=["-lown"])
    assert b"own" in failed.value.result.log.stderr  # type: ignore[attr-defined]


def test_mode_of_an_output_is_the_tools_own(client: Client) -> None:
    found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["shared", "object"])
    assert stat.S_IMODE(found.outputs["shared"].mode) == 0o755
    assert stat.S_IMODE(found.outputs["object"].mode) == 0o644
