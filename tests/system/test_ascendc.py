"""The AscendC toolchain: its commands, its outputs, and what it does with a tool that misbehaves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ptocache import elf
from ptocache.client import Client
from ptocache.errors import (
    CompileFailedError,
    OutputRejectedError,
    StepTimeoutError,
    ToolNotFoundError,
)
from ptocache.model import Job, Output, Prepared
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from ptocache_ascendc import AscendCToolchain
from tests.elf_builder import REL, Sec, Sym, build, device_image
from tests.harness import DaemonProcess, alive, assert_bad_request, raised, wait_for
from tests.simcann import KERNEL, SimCann, depends_of
from tests.system.page import run_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    MakeDaemon = Callable[..., DaemonProcess]


class Rig(NamedTuple):
    cann: SimCann
    daemon: DaemonProcess
    client: Client

    def ask(self, source: str = "", **more: Any) -> Result:
        """Compile the kernel with ``source`` behind it; failures are results."""
        inputs = more.pop("inputs", {"k.asc": KERNEL + source})
        env = {**self.cann.env(), **more.pop("env", {})}
        return self.client.compile("ascendc", inputs, env=env, check=False, **more)

    def words(self) -> list[list[str]]:
        """The command lines since the log was cleared, with the tools' names and ``DIR`` for the
        private directory."""
        found = []
        for run in self.cann.runs():
            words = [word.replace(run.cwd, "DIR") for word in run.argv]
            assert words[0] == str(self.cann.bin / run.tool)
            found.append([run.tool, *words[1:]])
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("ascendc")
    cann = SimCann.make(place / "cann")
    daemon = DaemonProcess(place / "store", step_timeout="20s", log_limit="64K")
    daemon.env["HOME"] = str(daemon.place)
    with daemon.start().client() as client:
        yield Rig(cann, daemon, client)
    daemon.clean_up()


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    shared.cann.clear_log()
    yield shared
    shared.cann.unknob()


# --- commands

MAPPED = ["-ffile-prefix-map=DIR=."]


def test_commands_of_a_tilelang_kernel(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    found = rig.ask(
        "// tilelang\n",
        arch="dav-3510",
        options=[f"-I{tmp_path}/src", "-DEXTRA", "--cce-enable-print"],
    )
    assert found.outcome is Outcome.MISS
    assert rig.words() == [
        [
            "bisheng", "-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false",
            "--npu-arch=dav-3510", "-I", f"{tmp_path}/src", "-DEXTRA", "--cce-enable-print", *MAPPED,
            "-MD", "-MF", "kernel.rel.d", "--cce-aicore-only", "k.asc", "-o", "kernel.rel.o",
        ],
        [
            "ld.lld", "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "kernel.rel.o",
            "-o", "kernel.aibin",
        ],
    ]  # fmt: skip


def test_option_that_the_plan_sets_itself_is_not_given_twice(rig: Rig) -> None:
    first = rig.ask("// only\n")
    again = rig.ask("// only\n", options=["--cce-aicore-only"])
    assert (again.outcome, again.key) == (Outcome.MEMORY_HIT, first.key)


def test_commands_of_the_host_forms(rig: Rig) -> None:
    found = rig.ask("// host\n", arch="dav-c220", outputs=["object", "shared"], options=["-O3"])
    assert set(found.outputs) == {"object", "shared"}
    always = [
        "-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false",
        "--cce-aicore-arch=dav-c220",
    ]  # fmt: skip
    assert rig.words() == [
        ["bisheng", *always, "-O3", *MAPPED, "-MD", "-MF", "kernel.d", "-c", "k.asc", "-o", "kernel.o"],
        [
            "bisheng", "-shared", "-fPIC", "--cce-aicore-arch=dav-c220", "-O3",
            "-Wl,--no-mmap-output-file", "kernel.o", "-Wl,--dependency-file=link.d", "-o",
            "kernel.so",
        ],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "language"),
    [
        ("k.asc", [], []),
        ("k.cpp", [], ["-xasc"]),
        ("k.cc", [], ["-xasc"]),
        ("k.cce", ["-xcce"], ["-xcce"]),
        ("k.asc", ["-x", "cce"], ["-xcce"]),
    ],
)
def test_language_follows_the_suffix_unless_it_is_told(
    rig: Rig, name: str, options: list[str], language: list[str]
) -> None:
    found = rig.ask(inputs={name: KERNEL + f"// {name} {options}\n"}, options=options)
    assert found.outcome is Outcome.MISS, found.log.stderr
    compiled = rig.words()[0]
    assert [word for word in compiled if word.startswith("-x")] == language


def test_every_output_of_one_request_comes_from_one_run_of_each_step(rig: Rig) -> None:
    found = rig.ask("// all\n", outputs=["shared", "object", "aibin"], symbols=["gemm"])
    assert sorted(found.outputs) == ["aibin", "object", "shared"]
    assert [line[0] for line in rig.words()] == ["bisheng", "ld.lld", "bisheng", "bisheng"]
    kinds = {name: elf.check(bytes(item.buffer)) for name, item in found.outputs.items()}
    assert kinds["aibin"].machine == elf.AICORE_MACHINE
    assert kinds["object"].machine == kinds["shared"].machine == elf.host_machine()
    assert found.outputs["aibin"].mode & 0o111
    again = rig.ask("// all\n", outputs=["shared", "object", "aibin"], symbols=["gemm"])
    assert again.outcome is Outcome.MEMORY_HIT


# --- links


def test_words_for_the_linker_reach_the_device_link(rig: Rig) -> None:
    found = rig.ask("// words\n", options=["-Wl,-z,now,--gc-sections", "-O1", "-s"])
    assert found.outcome is Outcome.MISS, found.log.stderr
    link = rig.words()[1]
    assert link[link.index("kernel.rel.o") :] == [
        "kernel.rel.o", "-s", "-z", "now", "--gc-sections", "-o", "kernel.aibin",
    ]  # fmt: skip


@pytest.mark.parametrize("output", ["shared", "aibin"])
def test_library_of_the_user_is_a_dependency(rig: Rig, tmp_path: Path, output: str) -> None:
    def library(text: str) -> bytes:
        if output == "aibin":
            return device_image(content=text.encode().ljust(64, b"\0"), file_type=REL)
        return build(
            machine=elf.host_machine(),
            file_type=3,
            sections=(Sec(".text", text.encode().ljust(64, b"\0"), align=16),),
            dynamic_symbols=[Sym("of_library")],
        )

    name = "libmine.a" if output == "aibin" else "libmine.so"
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / name).write_bytes(library("one"))
    request: dict[str, Any] = {
        "outputs": [output],
        "options": ["-L", str(first), f"-L{second}", "-lmine"],
    }
    one = rig.ask(f"// library {output}\n", **request)
    assert one.outcome is Outcome.MISS, (one.why, one.log.stderr)
    (second / name).write_bytes(library("two"))
    assert rig.ask(f"// library {output}\n", **request).outcome is Outcome.MISS
    (second / name).write_bytes(library("one"))
    assert rig.ask(f"// library {output}\n", **request).outcome.is_hit
    (first / name).write_bytes(library("earlier"))
    assert rig.ask(f"// library {output}\n", **request).outcome is Outcome.MISS


def test_operand_that_looks_like_a_word_of_the_linker_stays_with_the_compiler(rig: Rig) -> None:
    found = rig.ask("// operand\n", options=["-mllvm", "-lsr-complexity-limit=9"])
    assert found.check().outcome is Outcome.MISS
    compiled, linked = rig.words()
    assert "-lsr-complexity-limit=9" in compiled
    assert "-lsr-complexity-limit=9" not in linked


def test_library_that_the_compiler_itself_would_load_is_not_stored(rig: Rig) -> None:
    found = rig.ask("// pass\n", options=["-mllvm", "-pass-file=/opt/pass.so"])
    assert (found.reason, found.why) == (
        Reason.UNSUPPORTED_OPTION, "-mllvm -pass-file=/opt/pass.so",
    )  # fmt: skip


def test_file_among_the_words_for_the_linker_counts(rig: Rig, tmp_path: Path) -> None:
    more = tmp_path / "more.o"

    def rebuild(name: str) -> None:
        """Another object of the device, as users link them in."""
        (tmp_path / "more.asc").write_text(KERNEL.replace("gemm", name))
        words = ["--npu-arch=dav-3510", "--cce-aicore-only", "more.asc", "-o", str(more)]
        tool = str(rig.cann.tool("bisheng"))
        subprocess.run([tool, *words], cwd=tmp_path, env=rig.cann.env(), check=True)

    def linked() -> Result:
        return rig.ask("// linked in\n", options=[f"-Wl,{more}"])

    rebuild("one")
    assert linked().check().outcome is Outcome.MISS
    rebuild("two")
    assert linked().outcome is Outcome.MISS
    rebuild("one")
    assert linked().outcome.is_hit


# --- failures


def test_failing_compile_says_what_the_tool_said(rig: Rig) -> None:
    rig.cann.knob("bisheng.fail-if-contains", "BROKEN")
    said = b"k.asc:1:1: error: the input contains 'BROKEN'\n"
    found = rig.ask("// BROKEN\n")
    assert (found.outcome, found.reason) == (Outcome.FAILURE, Reason.COMPILE_FAILED)
    assert found.log.stderr == said
    error = raised(found, CompileFailedError)
    assert error.fields["step"] == "device compile"
    # A clang that fails leaves no list of what it read: nobody knows when it would do otherwise.
    assert rig.ask("// BROKEN\n").reason is Reason.COMPILE_FAILED
    rig.cann.unknob()
    assert rig.ask("// BROKEN\n").outcome is Outcome.MISS


def test_failing_link_is_remembered_with_what_it_said(rig: Rig) -> None:
    rig.cann.knob("ld.lld.exit", 3)
    found = rig.ask("// link fails\n")
    assert (found.reason, found.exit_code) == (Reason.COMPILE_FAILED, 3)
    assert found.log.stderr == b"ld.lld: error: told to fail by a knob\n"
    again = rig.ask("// link fails\n")
    assert again.reason is Reason.REMEMBERED_FAILURE
    assert (again.log.stderr, again.exit_code) == (found.log.stderr, 3)
    assert [line[0] for line in rig.words()] == ["bisheng", "ld.lld"]


def test_missing_header_is_no_lasting_failure(rig: Rig, tmp_path: Path) -> None:
    request = {"options": ["-I", str(tmp_path)]}
    failed = rig.ask("#include <late.h>\n", **request)
    assert failed.outcome is Outcome.FAILURE
    assert b"late.h" in failed.log.stderr
    (tmp_path / "late.h").write_text("int late;\n")
    assert rig.ask("#include <late.h>\n", **request).outcome is Outcome.MISS


@pytest.mark.parametrize(
    ("request_", "words", "hint"),
    [
        ({"outputs": ["ptx"]}, "makes no output 'ptx'", "aibin, object or shared"),
        ({"inputs": {"k.h": ""}}, "0 of the inputs are sources", "known suffixes: .asc, .cpp"),
        (
            {"inputs": {"a.asc": "", "b.cpp": ""}},
            "2 of the inputs are sources, and exactly one must be",
            "other inputs are headers",
        ),
        ({"arch": "sm_90"}, "no device is called 'sm_90'", "dav-2201"),
        ({"env": {"ASCEND_NPU_ARCH": "x"}}, "no device is called 'x'", "dav-2201"),
        (
            {"arch": "a5", "options": ["--npu-arch=dav-2201"]},
            "the request is for a5 and its options for dav-2201",
            "leave one of them out",
        ),
        ({"options": ["-c"]}, "the option -c has no place", "name the outputs"),
        ({"options": ["-o", "x"]}, "the option -o has no place", "name the outputs"),
        ({"options": ["x.o"]}, "'x.o' stands among the options", "sources are inputs"),
        ({"options": ["-mllvm"]}, "the option -mllvm has no operand", ""),
        ({"env": {"SOURCE_DATE_EPOCH": "soon"}}, "SOURCE_DATE_EPOCH='soon' is not", "unset it"),
    ],
)
def test_request_that_cannot_be_served_is_refused_with_a_way_out(
    rig: Rig, request_: dict[str, Any], words: str, hint: str
) -> None:
    assert_bad_request(rig.ask(**request_), words, hint)
    assert rig.words() == []


def test_missing_tool_is_named_with_the_places(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    env = {"ASCEND_HOME_PATH": str(tmp_path / "home"), "ASCEND_TOOLKIT_HOME": "", "PATH": "/bin"}
    found = rig.ask(env=env)
    error = raised(found, ToolNotFoundError)
    assert found.reason is Reason.TOOL_NOT_FOUND
    assert error.message.startswith("bisheng was not found")
    for place in (f"{tmp_path}/home/bin/bisheng", "/bin/bisheng"):
        assert place in error.hint
        assert place in error.fields["looked"]
    assert "set_env.sh" in error.hint


def test_missing_linker_stops_only_what_needs_it(rig: Rig, tmp_path: Path) -> None:
    bare = SimCann.make(tmp_path / "cann", tools=("bisheng",))
    env = {**bare.env(), "PATH": str(bare.bin)}
    assert raised(rig.ask(env=env), ToolNotFoundError).message.startswith("ld.lld was not found")
    assert rig.ask(env=env, outputs=["object"]).outcome is Outcome.MISS


# --- what must not be stored

DAMAGES = ["truncate", "empty", "not-elf", "section-out-of-bounds", "wrong-machine", "wrong-arch"]


@pytest.mark.parametrize(
    ("output", "tool", "kind"),
    [
        *[("aibin", "ld.lld", kind) for kind in DAMAGES],
        *[("object", "bisheng", kind) for kind in (*DAMAGES, "no-aicore")],
        ("shared", "bisheng", "no-aicore"),
    ],
)
def test_damaged_output_is_refused_counted_and_not_stored(
    rig: Rig, output: str, tool: str, kind: str
) -> None:
    before = rig.client.stats()
    rig.cann.knob(f"{tool}.damage", kind)
    source = f"// {output} {kind}\n"
    request: dict[str, Any] = {"outputs": [output], "arch": "dav-2201"}
    found = rig.ask(source, **request)
    assert (found.outcome, found.reason) == (Outcome.FAILURE, Reason.OUTPUT_REJECTED)
    assert not found.outputs
    error = raised(found, OutputRejectedError)
    assert error.fields["output"] == output
    if kind == "section-out-of-bounds":
        assert error.fields["section"]
        assert error.fields["offset"] > error.fields["file_size"]
    rig.cann.unknob()
    after = rig.client.stats()
    assert rejected(after) == rejected(before) + 1
    assert after["store"]["entries"] == before["store"]["entries"]
    good = rig.ask(source, **request)
    assert good.outcome is Outcome.MISS
    assert rig.ask(source, **request).outcome is Outcome.MEMORY_HIT


def rejected(stats: dict[str, Any]) -> int:
    count: int = stats["caches"]["binary"]["rejected"]
    return count


def test_missing_symbol_is_refused_by_name(rig: Rig) -> None:
    found = rig.ask("// symbol\n", symbols=["gemm", "conv"])
    assert "conv" in raised(found, OutputRejectedError).message


def test_tool_that_writes_nothing_is_refused_by_its_step(rig: Rig) -> None:
    rig.cann.knob("ld.lld.nothing")
    error = raised(rig.ask("// nothing\n"), OutputRejectedError)
    assert error.message == "the step device link exited with 0 and did not write kernel.aibin"


@pytest.mark.parametrize("section", [".aicore_binary", "__aicore_rel_binary", "both", "second"])
def test_object_may_carry_its_images_in_either_section(section: str) -> None:
    names = {
        "both": [".aicore_binary", "__aicore_rel_binary"],
        "second": ["__aicore_rel_binary"],
    }.get(section, [section])
    image = device_image()
    sections = [Sec(name, image, align=16) for name in names]
    if section == "second":
        sections.insert(0, Sec(".aicore_binary", b"", align=16))
    judge("object", build(machine=elf.host_machine(), file_type=REL, sections=tuple(sections)))


@pytest.mark.parametrize(
    "names", [[], [".aicore_binary"], [".aicore_binary", "__aicore_rel_binary"]]
)
def test_object_with_its_images_in_neither_section_is_refused(names: list[str]) -> None:
    sections = tuple(Sec(name, b"", align=16) for name in names)
    data = build(
        machine=elf.host_machine(),
        file_type=REL,
        sections=(Sec(".text", b"\0" * 16, align=16), *sections),
    )
    with pytest.raises(OutputRejectedError, match=r"\.aicore_binary"):
        judge("object", data)


def test_library_may_not_carry_its_images_in_the_section_of_an_object() -> None:
    data = build(
        machine=elf.host_machine(),
        file_type=3,
        sections=(Sec("__aicore_rel_binary", device_image(), align=16),),
    )
    with pytest.raises(OutputRejectedError, match=r"\.aicore_binary"):
        judge("shared", data)


def judge(output: str, data: bytes) -> None:
    job = Job("ascendc", "dav-2201", (), (), (), (output,))
    AscendCToolchain().validate(Prepared(job), (Output(output, data, 0o644),))


# --- tools that misbehave


def test_hanging_step_is_ended_at_its_limit_and_not_remembered(
    make_daemon: MakeDaemon, shared: Rig
) -> None:
    rig = shared
    # Time enough for a tool to log that it runs.
    daemon = make_daemon(step_timeout="1s").start()
    rig.cann.clear_log()
    rig.cann.knob("bisheng.hang")
    try:
        with daemon.client() as client:
            quick = rig._replace(client=client)
            found = quick.ask("// hang\n")
            assert found.reason is Reason.STEP_TIMEOUT
            assert "longer than 1 s" in raised(found, StepTimeoutError).message
            (run,) = rig.cann.runs()
            wait_for(lambda: not alive(run.pid), "the tool to end")
            rig.cann.unknob()
            assert quick.ask("// hang\n").reason is not Reason.REMEMBERED_FAILURE
    finally:
        rig.cann.unknob()


def test_child_that_a_tool_leaves_behind_ends_with_its_step(rig: Rig) -> None:
    rig.cann.knob("bisheng.child")
    assert rig.ask("// child\n").outcome is Outcome.MISS
    (child,) = rig.cann.children()
    wait_for(lambda: not alive(child), "the child to end")


def test_flood_of_messages_is_kept_in_part_and_hurts_nothing(rig: Rig) -> None:
    rig.cann.knob("bisheng.stderr-bytes", 100_000)
    found = rig.ask("// flood\n")
    assert found.outcome is Outcome.MISS
    assert found.log.stderr.endswith(b"\n[ptocache: cut, %d more bytes]\n" % (100_000 - (64 << 10)))
    assert rig.ask("// flood\n").outcome is Outcome.MEMORY_HIT


# --- what makes a bypass


@pytest.mark.parametrize(
    ("source", "request_", "reason", "words"),
    [
        ("const char *d = __DATE__;\n", {}, Reason.TIME_MACRO, "__DATE__ in k.asc"),
        ('asm(".incbin \\"x\\"");\n', {}, Reason.UNSEEN_INPUT, ".incbin in k.asc"),
        ("// n\n", {"options": ["-mcpu=native"]}, Reason.UNSUPPORTED_OPTION, "means this machine"),
    ],
)
def test_what_the_key_cannot_see_is_compiled_and_not_stored(
    rig: Rig, source: str, request_: dict[str, Any], reason: Reason, words: str
) -> None:
    for _ in range(2):
        found = rig.ask(source, **request_)
        assert (found.outcome, found.reason) == (Outcome.BYPASS, reason), found.log.stderr
        assert words in found.why
        assert found.outputs["aibin"].size
    assert len(rig.words()) == 4


def test_date_is_cached_when_the_epoch_is_set(rig: Rig) -> None:
    env = {"SOURCE_DATE_EPOCH": "1700000000"}
    source = "const char *when = __DATE__;\n"
    assert rig.ask(source, env=env).outcome is Outcome.MISS
    assert rig.ask(source, env=env).outcome is Outcome.MEMORY_HIT


def test_quoted_header_beside_the_source_and_checkouts_share_an_entry(
    rig: Rig, tmp_path: Path
) -> None:
    source = '#include "tile.h"\n'
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tile.h").write_text("#define TILE 1\n")
        found.append(rig.ask(source, source_dir=tmp_path / name))
    assert [item.outcome for item in found] == [Outcome.MISS, Outcome.MEMORY_HIT]
    text = depends_of(bytes(found[0].outputs["aibin"].buffer))
    assert "tile.h" in text
    assert str(tmp_path) not in text


def test_nothing_is_left_in_the_private_directories(rig: Rig) -> None:
    rig.ask("// leftovers\n")
    assert os.listdir(rig.daemon.root / "tmp") == []


def test_how_to_works_as_it_is_written(rig: Rig, tmp_path: Path) -> None:
    run_page(
        "docs/how-to/compile-ascendc-kernels.md", tmp_path, {**rig.daemon.env, **rig.cann.env()}
    )
