"""The simulated CANN can be trusted: what a run depended on is in its output, log and depfile."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import elf
from ptocache.errors import ElfError
from tests.harness import DEADLINE_S, alive, wait_for
from tests.simcann import (
    KERNEL,
    PTO,
    SimCann,
    build_tool,
    depends_of,
    make_frontend,
    make_pip_ptoas,
    make_ptoas_release,
)
from tests.simcann.releases import pip_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simcann.releases import Era
    from tests.simcann.tree import Layout, PtoasForm

DEVICE = ("-O2", "--npu-arch=dav-2201", "--cce-aicore-only", "k.asc", "-o", "k.o")
LIBRARY = ("-O2", "-fPIC", "-xcce", "--npu-arch=dav-2201", "--shared", "k.asc", "-o", "k.so")
LINK = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "k.o", "-o", "k.aibin")


class Bench:
    """A tree, and a working directory with one kernel in both languages."""

    def __init__(self, cann: SimCann, cwd: Path) -> None:
        self.cann, self.cwd = cann, cwd
        cwd.mkdir()
        (cwd / "k.asc").write_text(KERNEL)
        (cwd / "k.pto").write_text(PTO)

    def run(self, tool: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = self.cann.ptoas if tool == "ptoas" else self.cann.tool(tool)
        return subprocess.run(
            [str(path), *words], cwd=self.cwd, env=self.cann.env(**env), capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def output(self, tool: str, *words: str, **env: str) -> bytes:
        """The file behind ``-o``; the run must succeed."""
        done = self.run(tool, *words, **env)
        assert done.returncode == 0, done.stderr
        return (self.cwd / words[words.index("-o") + 1]).read_bytes()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    cann = SimCann.make(tmp_path / "cann", ptoas="bin")
    yield Bench(cann, tmp_path / "work")
    for pid in cann.children():
        os.kill(pid, signal.SIGKILL)


def test_every_run_is_one_line_of_the_log(bench: Bench) -> None:
    bench.output("bisheng", *DEVICE, EXTRA='a "quoted"\nvalue')
    bench.run("ld.lld", "--version")
    (run,) = bench.cann.runs()
    assert run.tool == "bisheng"
    assert run.argv == (str(bench.cann.tool("bisheng")), *DEVICE)
    assert run.cwd == str(bench.cwd)
    assert run.env == bench.cann.env(EXTRA='a "quoted"\nvalue')
    assert [each.tool for each in bench.cann.runs(probes=True)] == ["bisheng", "ld.lld"]
    bench.cann.clear_log()
    assert bench.cann.runs(probes=True) == []


def test_a_line_of_the_log_that_is_half_there_does_not_count_yet(bench: Bench) -> None:
    bench.output("bisheng", *DEVICE)
    whole = bench.cann.log.read_bytes()
    bench.cann.log.write_bytes(whole + whole[: len(whole) // 2])
    assert len(bench.cann.runs()) == 1


@pytest.mark.parametrize("layout", ["new", "old"])
@pytest.mark.parametrize("multicall", [False, True])
def test_both_layouts_build_a_kernel_from_source_to_device_image(
    tmp_path: Path, layout: Layout, multicall: bool
) -> None:
    cann = SimCann.make(tmp_path / "cann", layout=layout, multicall=multicall)
    bench = Bench(cann, tmp_path / "work")
    relocatable = bench.output("bisheng", *DEVICE)
    linked = bench.output("ld.lld", *LINK)
    for data, kind in ((relocatable, "REL"), (linked, "EXEC")):
        image = elf.check(data, machine=elf.AICORE_MACHINE, types=(kind,), symbols=["gemm"])
        assert image.flags == 0x940000
        assert image.end == image.headers_end == len(data)
    assert depends_of(relocatable) in depends_of(linked)


def test_a_library_holds_an_image_for_each_source_and_can_be_loaded(bench: Bench) -> None:
    (bench.cwd / "second.cce").write_text('extern "C" __global__ __aicore__ void add(int);')
    data = bench.output("bisheng", "second.cce", "-lruntime", "-lm", *LIBRARY)
    elf.check(data, machine=elf.host_machine(), types=("DYN",), symbols=["gemm", "add"])
    images = elf.nested_images(data)
    assert [nested.image.type for nested in images] == ["EXEC", "EXEC"]
    assert "library=runtime" in depends_of(data)
    assert isinstance(ctypes.CDLL(str(bench.cwd / "k.so")).gemm(), int)


def test_an_object_is_carried_over_into_a_library_and_extracted(bench: Bench) -> None:
    compiled = bench.output("bisheng", "-xcce", "-c", "k.asc", "-o", "k.o")
    elf.check(compiled, machine=elf.host_machine(), types=("REL",), symbols=["gemm"])
    library = bench.output("bisheng", "-shared", "k.o", "-o", "k.so")
    elf.check(library, types=("DYN",), symbols=["gemm"])
    extract = ("-O", "binary", "--only-section=.aicore_binary", "k.so", "-o")
    assert bench.run("llvm-objcopy", *extract).returncode == 1
    assert bench.run("llvm-objcopy", *extract[:-1], "k.bin").returncode == 0
    nested = elf.nested_images(compiled)[0]
    image = compiled[nested.offset : nested.offset + nested.size]
    assert (bench.cwd / "k.bin").read_bytes() == image


def test_plain_cpp_has_no_device_image(bench: Bench) -> None:
    (bench.cwd / "host.cpp").write_text('extern "C" int call(int n) { return n; }')
    image = elf.check(bench.output("bisheng", "-c", "host.cpp", "-o", "h.o"), symbols=["call"])
    assert image.section(".aicore_binary") is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("-DN=2",), "option=-DN=2"),
        (("-O3",), "option=-O3"),
        (("-mllvm", "-x=1"), "option=-mllvm -x=1"),
        (("-std=c++20",), "option=-std=c++20"),
        (("--npu-arch=dav-3510",), "arch=dav-3510"),
        (("--cce-enable-print",), "option=--cce-enable-print"),
        (("-include", "forced.h"), "file=forced.h"),
        (("-Xclang", "-y"), "option=-Xclang -y"),
    ],
)
def test_an_option_is_in_the_output(bench: Bench, changed: tuple[str, ...], named: str) -> None:
    (bench.cwd / "forced.h").write_text("")
    before = bench.output("bisheng", *DEVICE)
    after = bench.output("bisheng", *DEVICE[:2], *changed, *DEVICE[2:])
    assert named in depends_of(after)
    assert named not in depends_of(before)
    assert bench.output("bisheng", *DEVICE) == before


def test_names_of_outputs_and_directories_are_not_in_the_output(bench: Bench) -> None:
    before = bench.output("bisheng", *DEVICE)
    other = bench.output("bisheng", "-I.", "-MD", "-MF", "d", *DEVICE[:-1], "other.o", PWD="/x")
    assert other == before


@pytest.mark.parametrize("header", ["kernel_operator.h", "kernel_tensor.h", "ascendc/basic.h"])
def test_a_header_of_the_tree_is_in_the_output(bench: Bench, header: str) -> None:
    before = bench.output("bisheng", *DEVICE)
    path = bench.cann.root / "include" / header
    text = path.read_text()
    path.write_text(text + "\n")
    assert bench.output("bisheng", *DEVICE) != before
    path.write_text(text)
    assert bench.output("bisheng", *DEVICE) == before


@pytest.mark.parametrize("tool", ["bisheng", "ld.lld", "ptoas"])
def test_a_replaced_tool_keeps_size_and_inode_and_is_seen_in_the_output(
    bench: Bench, tool: str
) -> None:
    bench.output("bisheng", *DEVICE)
    words = {"bisheng": DEVICE, "ld.lld": LINK, "ptoas": ("k.pto", "-o", "k.cpp")}[tool]
    path = bench.cann.ptoas if tool == "ptoas" else bench.cann.tool(tool)
    assert path is not None
    first, before = bench.output(tool, *words), path.stat()
    bench.cann.replace_tool(tool, "Other")
    after = path.stat()
    assert (after.st_size, after.st_ino) == (before.st_size, before.st_ino)
    assert after.st_mtime_ns < before.st_mtime_ns
    assert "identity=Other" in depends_of(bench.output(tool, *words))
    bench.cann.replace_tool(tool, "A")
    assert bench.output(tool, *words) == first


def test_a_replaced_library_keeps_its_size_and_is_seen_by_a_link(bench: Bench) -> None:
    before = bench.output("bisheng", "-lruntime", *LIBRARY)
    size = (bench.cann.root / "lib64/libruntime.so").stat().st_size
    bench.cann.replace_library("runtime", "B")
    assert (bench.cann.root / "lib64/libruntime.so").stat().st_size == size
    assert bench.output("bisheng", "-lruntime", *LIBRARY) != before
    assert bench.run("bisheng", "-lnone", *LIBRARY).stderr == (
        "ld.lld: error: unable to find library -lnone\n"
    )


def test_declared_variables_and_a_nonce_are_in_the_output(bench: Bench) -> None:
    bench.cann.knob("bisheng.env-names", "TL_X")
    bench.cann.knob("all.nonce", "n1")
    text = depends_of(bench.output("bisheng", *DEVICE, TL_X="7"))
    assert "env=TL_X=7\nnonce=n1\n" in text
    bench.cann.unknob()
    assert "nonce" not in depends_of(bench.output("bisheng", *DEVICE))


def test_the_depfile_names_what_was_opened_as_clang_spells_it(bench: Bench) -> None:
    for place, text in {
        "inc/a.h": '#include "b.h"\n#include <c.h>', "inc/b.h": "", "sys/c.h": "",
    }.items():  # fmt: skip
        (bench.cwd / place).parent.mkdir(exist_ok=True)
        (bench.cwd / place).write_text(text)
    (bench.cwd / "s p.asc").write_text('#include "a.h"\n')
    words = ("-Iinc", "-isystem", "sys", "--cce-aicore-only", "s p.asc", "-o", "k.o")
    bench.output("bisheng", "-MD", *words)
    expected = "k.o: s\\ p.asc \\\n  inc/a.h \\\n  inc/b.h"
    assert (bench.cwd / "k.d").read_text() == expected + " \\\n  sys/c.h\n"
    bench.output("bisheng", "-MMD", "-MF", "mine", "-MT", "t1", "-MQ", "t$", *words)
    assert (bench.cwd / "mine").read_text() == expected.replace("k.o:", "t1 t$$:") + "\n"


@pytest.mark.parametrize(
    ("source", "is_seen"),
    [
        ("#ifdef ON\n#include <x.h>\n#endif", True),
        ("#ifndef ON\n#include <x.h>\n#endif", False),
        ("#if defined(ON) && !defined(OFF)\n#include <x.h>\n#endif", True),
        ("#if ON > 1\n#elif ON == 1\n#include <x.h>\n#else\n#error no\n#endif", True),
        ("#if 0\n#if 1\n#else\n#include <x.h>\n#endif\n#endif", False),
        ("#define GUARD\n#ifndef GUARD\n#include <x.h>\n#endif", False),
        ("// #include <x.h>\n/*\n#include <x.h>\n*/", False),
        ("#if __has_include(<x.h>)\n#include <x.h>\n#endif", True),
        ("#define NAME <x.h>\n#include NAME", True),
        ("#include <x.h>\n#include <x.h>", True),
    ],
)
def test_only_active_includes_are_opened(bench: Bench, source: str, is_seen: bool) -> None:
    (bench.cwd / "x.h").write_text("#pragma once\n")
    (bench.cwd / "k.asc").write_text(source)
    text = depends_of(bench.output("bisheng", "-I.", "-DON", *DEVICE))
    assert text.count("file=x.h") == is_seen


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("\n#include <none.h>", "k.asc:2:10: fatal error: 'none.h' file not found\n"),
        ("#ifndef ON\n#error MSG here\n#endif", "k.asc:2:2: error: MSG here\n"),
    ],
)
def test_a_wrong_source_fails_with_the_place(bench: Bench, source: str, error: str) -> None:
    (bench.cwd / "k.asc").write_text(source)
    done = bench.run("bisheng", *DEVICE)
    assert (done.returncode, done.stderr) == (1, error)
    assert not (bench.cwd / "k.o").exists()


def test_the_spelled_path_is_in_the_output_only_if_the_source_asks(bench: Bench) -> None:
    (bench.cwd / "k.asc").write_text("const char *here = __FILE__;")
    full = str(bench.cwd / "k.asc")
    words = ("--cce-aicore-only", full, "-o", "k.o")
    assert f"path={full}\n" in depends_of(bench.output("bisheng", *words))
    mapped = bench.output("bisheng", f"-ffile-prefix-map={bench.cwd}=.", *words)
    assert "path=./k.asc\n" in depends_of(mapped)
    assert str(bench.cwd).encode() not in mapped


@pytest.mark.parametrize(
    ("tool", "words", "error"),
    [
        ("bisheng", ("--nonsense", *DEVICE), "error: unknown argument: '--nonsense'"),
        ("bisheng", ("-O2",), "no input files"),
        ("bisheng", ("-c", "none.cpp"), "no such file or directory: 'none.cpp'"),
        ("ld.lld", ("-m", "elf_x86_64", "k.o", "-o", "x"), "unknown emulation: elf_x86_64"),
        ("ld.lld", ("-m", "aicorelinux", "k.asc", "-o", "x"), "k.asc is incompatible"),
        ("ptoas", ("--nonsense", "k.pto"), "Unknown command line argument '--nonsense'"),
        ("ptoas", ("--pto-arch=a4", "k.pto"), "option named 'a4'"),
    ],
)
def test_wrong_words_fail(bench: Bench, tool: str, words: tuple[str, ...], error: str) -> None:
    done = bench.run(tool, *words)
    assert done.returncode == 1
    assert error in done.stderr


def test_the_search_list_is_printed_as_clang_does(bench: Bench) -> None:
    (bench.cwd / "inc").mkdir()
    done = bench.run("bisheng", "-E", "-v", "-x", "asc", "-Iinc", "-Inone", "/dev/null")
    lines = done.stderr.splitlines()
    start = lines.index("#include <...> search starts here:")
    resources = bench.cann.compiler / "lib/clang/15.0.5/include"
    assert lines[start + 1 : lines.index("End of search list.")] == [
        " inc", f" {resources}", f" {bench.cann.root / 'include'}",
    ]  # fmt: skip
    assert bench.cann.runs() == []


@pytest.mark.parametrize(
    "option",
    ["--pto-arch=a5", "--pto-level=level3", "--enable-insert-sync", "--disable-infer-layout",
     "--emit-addptr-trace", "--pto-insert-sync-debug=2"],
)  # fmt: skip
def test_ptoas_names_its_options_in_what_it_emits(bench: Bench, option: str) -> None:
    before = bench.output("ptoas", "k.pto", "-o", "k.cpp")
    after = bench.output("ptoas", option, "k.pto", "-o", "k.cpp")
    assert before != after
    assert option.rpartition("=")[2] in depends_of(after)
    assert bench.output("ptoas", "k.pto", "-o", "k.cpp") == before


def test_ptoas_reads_stdin_and_chatters(bench: Bench) -> None:
    expected = bench.output("ptoas", "k.pto", "-o", "k.cpp").decode()
    done = subprocess.run(
        [str(bench.cann.ptoas), "-", "-o", "-"], input=PTO, capture_output=True, text=True,
        check=True, env=bench.cann.env(),
    )  # fmt: skip
    assert done.stdout == expected
    assert len(done.stderr) > 8000


def test_ptoas_reports_an_error_at_its_place(bench: Bench) -> None:
    (bench.cwd / "k.pto").write_text("module {\n  error!\n}")
    done = bench.run("ptoas", "k.pto", "-o", "k.cpp")
    assert done.returncode == 1
    assert done.stderr.startswith('loc("k.pto":2:3): error: ')


def test_the_pto_chain_carries_what_ptoas_depended_on(bench: Bench) -> None:
    bench.output("ptoas", "k.pto", "-o", "k.cpp")
    words = ("-xcce", "--npu-arch=dav-2201", "-fPIC", "-shared", "k.cpp", "-o", "k.so")
    data = bench.output("bisheng", *words)
    elf.check(data, symbols=["gemm"])
    assert "carried=tool=ptoas identity=A arch=a3" in depends_of(data)


def test_vpto_finds_bisheng_and_the_version_through_the_environment(bench: Bench) -> None:
    words = ("--pto-backend=vpto", "--pto-arch=a5", "k.pto", "-o", "fat.o")
    data = bench.output("ptoas", *words)
    (nested,) = elf.nested_images(data)
    assert nested.image.flags == 0x990000
    assert [run.tool for run in bench.cann.runs()] == ["ptoas", "bisheng"]
    assert bench.output("ptoas", *words) == data
    bench.cann.set_version("9.0.0")
    assert "option=-DCANN_ABI=9.0.0" in depends_of(bench.output("ptoas", *words))
    assert bench.run("ptoas", *words, ASCEND_HOME_PATH="/none").returncode == 1


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("truncate", "section_table"),
        ("empty", "magic"),
        ("not-elf", "magic"),
        ("section-out-of-bounds", "section_bounds"),
        ("wrong-machine", "machine"),
        ("no-aicore", "nested_section"),
    ],
)
def test_damaged_output_is_refused_by_its_rule(bench: Bench, kind: str, rule: str) -> None:
    bench.cann.knob("bisheng.damage", kind)
    data = bench.output("bisheng", *LIBRARY)
    with pytest.raises(ElfError) as caught:
        elf.check(data, machine=elf.host_machine())
        elf.nested_images(data)
    assert caught.value.fields["rule"] == rule


def test_a_wrong_arch_shows_in_the_flags(bench: Bench) -> None:
    bench.cann.knob("bisheng.damage", "wrong-arch")
    assert elf.check(bench.output("bisheng", *DEVICE)).flags == 0x990000


def test_knobs_decide_how_a_run_ends_and_what_it_prints(bench: Bench) -> None:
    cann = bench.cann
    cann.knob("all.exit", 3)
    assert bench.run("bisheng", *DEVICE).returncode == 3
    assert bench.run("bisheng", "--version").returncode == 0
    cann.unknob("all.exit")
    cann.knob("bisheng.nothing")
    assert bench.run("bisheng", *DEVICE).returncode == 0
    assert not (bench.cwd / "k.o").exists()
    cann.unknob("bisheng.nothing")
    cann.knob("bisheng.stderr-bytes", 100_000)
    cann.knob("bisheng.output-bytes", 50_000)
    assert len(bench.run("bisheng", *DEVICE).stderr) == 100_000
    section = elf.check((bench.cwd / "k.o").read_bytes()).section(".data")
    assert section is not None
    assert section.size == 50_000
    cann.knob("bisheng.fail-if-contains", "SIM_TENSOR")
    assert "kernel_tensor.h:1:1: error" in bench.run("bisheng", *DEVICE).stderr
    with pytest.raises(ValueError, match="no knob"):
        cann.knob("bisheng.slep-ms", 1)


def test_the_version_can_go_to_stderr_and_fail(bench: Bench) -> None:
    assert bench.run("ptoas", "--version").stdout == "ptoas 0.27\n"
    assert len(bench.run("bisheng", "--version").stdout.splitlines()) == 3
    bench.cann.knob("ptoas.version-to-stderr")
    bench.cann.knob("ptoas.version-exit", 4)
    done = bench.run("ptoas", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "ptoas 0.27\n")


def test_a_hanging_tool_logs_that_it_runs(bench: Bench) -> None:
    bench.cann.knob("bisheng.hang")
    command = [str(bench.cann.tool("bisheng")), *DEVICE]
    with subprocess.Popen(command, cwd=bench.cwd, env=bench.cann.env()) as process:
        try:
            wait_for(bench.cann.runs, "the run in the log")
            assert process.poll() is None
        finally:
            process.kill()
    assert bench.cann.runs()[0].pid == process.pid


def test_a_child_is_left_that_holds_stdout_open(bench: Bench) -> None:
    bench.cann.knob("bisheng.child")
    read_end, write_end = os.pipe()
    command = [str(bench.cann.tool("bisheng")), *DEVICE]
    subprocess.run(
        command, cwd=bench.cwd, env=bench.cann.env(), stdout=write_end, check=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    os.close(write_end)
    wait_for(bench.cann.children, "the child in the log")
    os.set_blocking(read_end, False)
    with open(read_end, "rb") as stdout:
        assert stdout.read() is None
        (child,) = bench.cann.children()
        assert alive(child)
    assert [run.tool for run in bench.cann.runs()] == ["bisheng"]


def test_builds_differ_in_content_and_not_in_size(tmp_path: Path) -> None:
    first, second = (
        build_tool(tmp_path / text, log=tmp_path / "log", knobs=tmp_path, identity=text)
        for text in ("A", "another build")
    )
    assert first.read_bytes() != second.read_bytes()
    assert first.stat().st_size == second.stat().st_size
    with pytest.raises(ValueError, match="longer than"):
        build_tool(tmp_path, log=tmp_path, knobs=tmp_path, identity="x" * 1008)


def test_a_tree_has_its_version_in_every_file_and_as_many_files_as_wanted(tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "cann", version="8.2.RC1", files=130, tools=["bisheng"])
    assert len(cann.version_files()) == 3
    assert all("ersion=8.2.RC1\n" in path.read_text() for path in cann.version_files())
    assert len(list((cann.root / "include/generated").rglob("*.h"))) == 130
    old = SimCann.make(tmp_path / "old", layout="old", arch_folder=False, tools=[])
    assert old.version_files() == [old.root / "compiler/version.info"]
    elf.check((old.root / "lib64/libruntime.so").read_bytes(), types=("DYN",))


@pytest.mark.parametrize("form", ["bin", "plain", "launcher"])
def test_ptoas_of_a_tree_runs_in_each_form(tmp_path: Path, form: PtoasForm) -> None:
    bench = Bench(SimCann.make(tmp_path / "cann", ptoas=form, tools=[]), tmp_path / "work")
    assert bench.run("ptoas", "--version").stdout == "ptoas 0.27\n"
    assert bench.cann.runs(probes=True)[0].argv[0].endswith("ptoas")


@pytest.mark.parametrize("era", ["0.30", "0.52", "0.56"])
def test_a_release_runs_in_each_layout(tmp_path: Path, era: Era) -> None:
    root = tmp_path / "release"
    tool = make_ptoas_release(root, era=era, log=tmp_path / "log", knobs=tmp_path)
    assert tool.relative_to(root) == Path(
        {"0.30": "ptoas", "0.52": "bin/ptoas", "0.56": "ptoas.sh"}[era]
    )
    assert (root / "ptoas").is_dir() == (era != "0.30")
    done = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "ptoas 0.27\n"


def test_the_launcher_of_pip_runs_the_package(tmp_path: Path) -> None:
    tool = make_pip_ptoas(tmp_path / "venv", log=tmp_path / "log", knobs=tmp_path)
    done = subprocess.run(
        [str(tool), "--version"], env={"PYTHONPATH": str(pip_site(tmp_path / "venv"))},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "ptoas 0.27\n"


def test_the_front_end_names_constants_meta_data_and_its_version(tmp_path: Path) -> None:
    script = (
        "from ptodsl import to_ir_module\n"
        "@to_ir_module\ndef first(): return 7\n"
        "@to_ir_module(meta_data=lambda: {'dtype': 'f16'})\ndef second(): return 'x'\n"
        "print(first, second)"
    )
    texts = []
    for version in ("0.1.0", "0.2.0"):
        make_frontend(tmp_path, version)
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        texts.append(done.stdout)
    assert "func.func @first() {" in texts[0]
    assert "constants: None; 7\n" in texts[0]
    assert "meta_data: [('dtype', 'f16')]\n" in texts[0]
    assert texts[0] == texts[1].replace("0.2.0", "0.1.0") != texts[1]
