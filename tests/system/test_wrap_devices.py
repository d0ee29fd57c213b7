"""Wrapped device compilers: the command lines of real frameworks, against the simulated CANN."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import DEADLINE_S, DaemonProcess, wait_for
from tests.simcann import KERNEL, SimCann, depends_of
from tests.system.wrap_rig import Bench, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

PTO = "module { func.func @k() attributes {pto.kernel} { return } }\n"
TILELANG = (
    "bisheng -O2 -fPIC -std=c++20 -mllvm -cce-aicore-dcpreload-args=false --npu-arch=dav-3510 "
    "-I{templates} --cce-aicore-only {source} -o {output}"
)
"""Of TileLang; an object of the device."""
TILELANG_ASCEND = (
    "bisheng --npu-arch=dav-2201 -O2 -std=c++17 -xasc -I{cann}/include -I{templates} -DBACKEND_HYBM "
    "-L{cann}/lib64 -lruntime -lascendcl -lm -ltiling_api -lplatform -lc_sec -ldl -fPIC --shared "
    "{source} -o {output}"
)
"""Of tilelang-ascend; a library with its source in a temporary file."""
TILELANG_PTO = (
    "bisheng --cce-aicore-arch=dav-c220 -DMEMORY_BASE -O2 -std=gnu++17 -xcce -mllvm "
    "-cce-aicore-stack-size=0x8000 -I../../src/ -I{templates} -I{cann}/include -fPIC --shared {source} "
    "-o {output}"
)
"""The same for PTO, with a relative directory."""
PTO_ISA = (
    "bisheng -fPIC -shared -xcce -O2 -std=c++17 --npu-arch=dav-2201 -DMEMORY_BASE -I{templates} "
    "{source} -o {output}"
)
CCEC = "ccec -c -O2 -std=c++17 -xcce --cce-aicore-arch=dav-c220 -I{templates} {source} -o {output}"
PTOAS = "ptoas {source} -o {output} --enable-insert-sync --pto-level=level2"
PTOAS_DEBUG = (
    "ptoas {source} -o {output} --enable-insert-sync --pto-level=level3 --mlir-print-ir-after-all"
)


class Rig:
    """A simulated CANN on PATH, behind shims."""

    def __init__(self, place: Path) -> None:
        self.cann = SimCann.make(place / "cann", ptoas="bin")
        self.daemon = DaemonProcess(place / "store")
        # Where a framework's temporary files go, which pytest's own folder is not.
        self.temporary = place / "tmp"
        self.temporary.mkdir()
        env = {**self.cann.env(), "TMPDIR": str(self.temporary)}
        self.bench = Bench(place, self.daemon.start(), env)

    def command(self, form: str, source: str, output: str) -> list[str]:
        return form.format(
            source=source,
            output=output,
            cann=self.cann.root,
            templates=self.bench.work / "templates",
        ).split()

    def fresh(self, suffix: str, text: str) -> str:
        """A source under a name that was made up."""
        fd, path = tempfile.mkstemp(suffix=suffix, dir=self.temporary)
        os.close(fd)
        Path(path).write_text(text)
        return path

    def runs(self) -> int:
        """Compiles since the log was cleared."""
        return len(self.cann.runs())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("wrapped"))
    yield rig
    rig.daemon.clean_up()


@pytest.fixture
def rig(shared: Rig, tmp_path: Path) -> Iterator[Rig]:
    text = f"// {tmp_path}\n{KERNEL}"
    shared.bench.write(
        templates___common__h="#define COMMON 1\n", k__asc=text, k__cpp=f'#include "common.h"\n{text}',
        k__pto=f"// {tmp_path}\n{PTO}",
    )  # fmt: skip
    shared.cann.clear_log()
    yield shared
    shared.bench.clear()
    shared.cann.unknob()


@pytest.mark.parametrize(
    ("form", "source", "output"),
    [
        (TILELANG, "k.asc", "k.rel.o"),
        (TILELANG_ASCEND, "k.cpp", "k.so"),
        (TILELANG_PTO, "k.cpp", "k.so"),
        (PTO_ISA, "k.cpp", "k.so"),
        (CCEC, "k.cpp", "k.o"),
        (CCEC + " -MD", "k.cpp", "k.o"),
        (PTOAS, "k.pto", "k.out.cpp"),
        (PTOAS_DEBUG, "k.pto", "k.out.cpp"),
    ],
)
def test_the_command_of_a_framework_gives_what_it_gives_without_the_cache(
    rig: Rig, form: str, source: str, output: str
) -> None:
    ran = rig.bench.same_as_real(*rig.command(form, source, output))
    assert (ran.code, output in ran.files) == (0, True)
    # Once by itself, once by the daemon, and not again.
    assert rig.runs() == 2


@pytest.mark.parametrize("form", [TILELANG_ASCEND, TILELANG_PTO])
def test_names_that_were_made_up_do_not_count(rig: Rig, form: str) -> None:
    text = (rig.bench.work / "k.cpp").read_text()
    found = []
    for expected in ("miss", "memory_hit", "memory_hit"):
        source = rig.fresh(".cpp", text)
        output = source.replace(".cpp", ".so")
        ran, outcome, _ = rig.bench.outcome_of(*rig.command(form, source, output))
        assert (ran.code, ran.stdout, ran.stderr, outcome) == (0, b"", b"", expected)
        found.append(Path(output).read_bytes())
    assert len(set(found)) == 1
    assert rig.runs() == 1


def test_a_folder_that_was_made_up_does_not_count(rig: Rig) -> None:
    found = []
    for expected in ("miss", "memory_hit"):
        folder = Path(tempfile.mkdtemp(dir=rig.temporary))
        (folder / "tl_kernel.asc").write_bytes((rig.bench.work / "k.asc").read_bytes())
        words = rig.command(TILELANG, f"{folder}/tl_kernel.asc", f"{folder}/tl_kernel.rel.o")
        assert rig.bench.outcome_of(*words)[1] == expected
        found.append((folder / "tl_kernel.rel.o").read_bytes())
    assert found[0] == found[1] == _direct(rig, TILELANG, "tl_kernel.asc", "k.asc")


def _direct(rig: Rig, form: str, name: str, text_of: str) -> bytes:
    """What the compiler itself makes of a source under that name."""
    folder = Path(tempfile.mkdtemp(dir=rig.temporary))
    (folder / name).write_bytes((rig.bench.work / text_of).read_bytes())
    words = rig.command(form, str(folder / name), str(folder / "direct.o"))
    assert rig.bench.run(*words, real=True).code == 0
    return (folder / "direct.o").read_bytes()


@pytest.mark.parametrize(
    "reveals", ["const char *where = __FILE__;\n", None], ids=["macro", "debug"]
)
def test_where_a_made_up_name_reaches_the_output_it_is_the_right_one(
    rig: Rig, reveals: str | None
) -> None:
    text = (rig.bench.work / "k.cpp").read_text() + (reveals or "")
    form = TILELANG_ASCEND + ("" if reveals else " -g")
    for _ in range(2):
        source = rig.fresh(".cpp", text)
        output = source.replace(".cpp", ".so")
        ran, outcome, reason = rig.bench.outcome_of(*rig.command(form, source, output))
        expected = ("bypass", "path_leak") if reveals else ("miss", "")
        assert (ran.code, outcome, reason) == (0, *expected)
        assert source in depends_of(Path(output).read_bytes())


def test_a_relative_directory_counts_from_the_caller(rig: Rig) -> None:
    for name, value in (("one", 1), ("two", 2)):
        (rig.bench.work / name / "a" / "b").mkdir(parents=True)
        (rig.bench.work / name / "src").mkdir()
        (rig.bench.work / name / "src" / "near.h").write_text(f"#define NEAR {value}\n")
    text = '#include "near.h"\n' + (rig.bench.work / "k.cpp").read_text()
    found = []
    for name in ("one", "two", "one"):
        source = rig.fresh(".cpp", text)
        output = source.replace(".cpp", ".so")
        cwd = rig.bench.work / name / "a" / "b"
        ran, outcome, _ = rig.bench.outcome_of(
            *rig.command(TILELANG_PTO, source, output), cwd=cwd
        )  # fmt: skip
        assert ran.code == 0, ran.stderr
        found.append((outcome, Path(output).read_bytes()))
    assert [outcome for outcome, _ in found] == ["miss", "miss", "memory_hit"]
    assert found[0][1] == found[2][1] != found[1][1]


@pytest.mark.parametrize(
    "change",
    ["--cce-enable-print", "-D_DEBUG", "-O3"],
)
def test_changed_flags_compile_again(rig: Rig, change: str) -> None:
    command = rig.command(PTO_ISA, "k.cpp", "k.so")
    rig.bench.same_as_real(*command)
    rig.bench.same_as_real(*command, change)


def test_a_changed_header_compiles_again(rig: Rig) -> None:
    command = rig.command(PTO_ISA, "k.cpp", "k.so")
    rig.bench.same_as_real(*command)
    rig.bench.write(templates___common__h="#define COMMON 2\n")
    rig.bench.same_as_real(*command)


@pytest.mark.parametrize(
    ("form", "source", "tool"),
    [(TILELANG, "k.asc", "bisheng"), (PTOAS, "k.pto", "ptoas"), (CCEC, "k.cpp", "ccec")],
)
def test_a_changed_tool_compiles_again(rig: Rig, form: str, source: str, tool: str) -> None:
    command = rig.command(form, source, "k.out")
    rig.bench.same_as_real(*command)
    rig.cann.replace_tool(tool, f"another {tool}")
    rig.bench.same_as_real(*command)


def test_chatter_and_failures_are_replayed_byte_for_byte(rig: Rig) -> None:
    rig.cann.knob("ptoas.stderr-bytes", 20_000)
    ran = rig.bench.same_as_real(*rig.command(PTOAS, "k.pto", "k.out.cpp"))
    assert len(ran.stderr) >= 20_000
    rig.bench.write(bad__pto="error!\n")
    command = rig.command(PTOAS, "bad.pto", "bad.cpp")
    oracle = rig.bench.run(*command, real=True)
    for reason in ("compile_failed", "remembered_failure"):
        again, outcome, why = rig.bench.outcome_of(*command)
        assert again == oracle
        assert (outcome, why) == ("failure", reason)
    assert b'loc("bad.pto":1' in oracle.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("bisheng --version", "not_a_compile"),
        ("bisheng -E -v -xc++ /dev/null", "not_a_compile"),
        ("ptoas --version", "not_a_compile"),
        ("bisheng -c k.cpp k.asc", "command_form"),
        ("ptoas k.pto -o -", "command_form"),
        ("bisheng -xcce -c k.cpp -o k.o -Xclang -x", "unsupported_option"),
    ],
)
def test_anything_else_goes_through(rig: Rig, words: str, reason: str) -> None:
    _, outcome, why = rig.bench.outcome_of(*words.split())
    assert (outcome, why) == ("bypass", reason)


def test_another_installation_than_the_one_on_path_is_not_asked(rig: Rig, tmp_path: Path) -> None:
    other = SimCann.make(tmp_path / "other", identity="B")
    path = f"{rig.bench.shims}:{other.bin}:/usr/bin:/bin"
    command = rig.command(PTO_ISA, "k.cpp", "k.so")
    oracle = rig.bench.run(*command, real=True, PATH=f"{other.bin}:/usr/bin:/bin")
    ran: Ran = rig.bench.run(*command, PATH=path)
    assert ran == oracle
    assert "identity=B" in depends_of(ran.files["k.so"][1])


def test_a_daemon_that_is_killed_while_the_device_compiler_runs_costs_nothing_but_time(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    try:
        rig.bench.write(k__asc=KERNEL, other__asc=f"// other\n{KERNEL}")
        # So that the tools are known, which are asked who they are at first.
        rig.bench.run(*rig.command(TILELANG, "other.asc", "other.o"))
        rig.cann.clear_log()
        rig.cann.knob("bisheng.hold")
        process = subprocess.Popen(
            rig.command(TILELANG, "k.asc", "k.o"), cwd=rig.bench.work, env=rig.bench.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_for(rig.runs, "the daemon's compile to begin")
        rig.daemon.kill()
        rig.cann.unknob("bisheng.hold")
        assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
        assert process.returncode == 0
        assert "identity=A" in depends_of((rig.bench.work / "k.o").read_bytes())
        # The daemon's, which ended with it, and that of the command itself.
        assert rig.runs() == 2
    finally:
        rig.daemon.clean_up()


def test_without_a_daemon_the_tools_themselves_run(rig: Rig, tmp_path: Path) -> None:
    for form, source in ((TILELANG, "k.asc"), (PTOAS, "k.pto"), (CCEC, "k.cpp")):
        command = rig.command(form, source, "k.out")
        oracle = rig.bench.run(*command, real=True)
        ran = rig.bench.run(*command, PTOCACHE_SOCKET=str(tmp_path / "none"))
        assert ran == oracle
