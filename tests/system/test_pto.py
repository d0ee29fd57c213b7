"""The PTO toolchain: its chain, its outputs, its front end, and what it refuses."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ptocache import elf
from ptocache.client import Client, connect
from ptocache.errors import (
    CompileFailedError,
    OutputRejectedError,
    PtocacheWarning,
    ToolNotFoundError,
)
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from tests.harness import DaemonProcess, assert_bad_request, raised, wait_for
from tests.simcann import (
    KERNEL,
    PTO,
    SimCann,
    depends_of,
    make_frontend,
    make_pip_ptoas,
    make_ptoas_release,
)
from tests.system.page import run_page

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = """\
from ptodsl import to_ir_module

@to_ir_module(meta_data=lambda: {"dtype": "f16"})
def gemm():
    return 41
"""


class Rig(NamedTuple):
    cann: SimCann
    site: Path
    daemon: DaemonProcess
    client: Client

    def ask(self, source: str = PTO, name: str = "k.pto", **more: Any) -> Result:
        """Compile one source; failures are results."""
        inputs = more.pop("inputs", {name: source})
        client = more.pop("client", self.client)
        env = {**self.cann.env(PYTHONPATH=str(self.site)), **more.pop("env", {})}
        found: Result = client.compile("pto", inputs, env=env, check=False, **more)
        return found

    def python(self, source: str, *options: str, **more: Any) -> Result:
        return self.ask(source, "k.py", options=options, **more)

    def words(self) -> list[list[str]]:
        """The command lines since the log was cleared, with the tools' names and ``DIR`` for the
        private directory."""
        return [
            [run.tool, *(word.replace(run.cwd, "DIR") for word in run.argv[1:])]
            for run in self.cann.runs()
        ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("pto")
    cann = SimCann.make(place / "cann", ptoas="bin")
    make_frontend(place / "site")
    daemon = DaemonProcess(place / "store")
    daemon.env["HOME"] = str(daemon.place)
    with daemon.start().client() as client:
        yield Rig(cann, place / "site", daemon, client)
    daemon.clean_up()


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    shared.cann.clear_log()
    yield shared
    shared.cann.unknob()


def unique(text: str) -> str:
    """A PTO source that no other test compiles."""
    return f"// {text}\n{PTO}"


def text_of(result: Result, name: str) -> str:
    return bytes(result.outputs[name].buffer).decode()


# --- the chain

COMPILE = ["-ffile-prefix-map=DIR=.", "-MD", "-MF", "kernel.d", "-c"]


def test_commands_of_the_whole_chain(rig: Rig, tmp_path: Path) -> None:
    found = rig.ask(
        unique("chain"),
        arch="Ascend910B1",
        options=["--pto-level=level3", "-O3", "-I", str(tmp_path)],
        env={"PTO_FLAGS": "--enable-insert-sync -DFROM_ENV='a b' --pto-level=level1"},
    )
    assert found.outcome is Outcome.MISS, found.log.stderr
    assert rig.words() == [
        [
            "ptoas", "--pto-arch=a3", "--enable-insert-sync", "--pto-level=level1",
            "--pto-level=level3", "k.pto", "-o", "kernel.cpp",
        ],
        [
            "bisheng", "-fPIC", "-O2", "-std=c++17", "-xcce", "--npu-arch=dav-2201",
            "-DMEMORY_BASE", "-DFROM_ENV=a b", "-O3", "-I", str(tmp_path), *COMPILE, "kernel.cpp",
            "-o", "kernel.o",
        ],
        [
            "bisheng", "-shared", "-fPIC", "--npu-arch=dav-2201", "-O3",
            "-Wl,--no-mmap-output-file", "kernel.o", "-Wl,--dependency-file=link.d", "-o",
            "kernel.so",
        ],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "language"),
    [("k.cpp", ["-xcce"]), ("k.cce", ["-xcce"]), ("k.asc", [])],
)
def test_c_plus_plus_goes_to_bisheng_at_once(rig: Rig, name: str, language: list[str]) -> None:
    found = rig.ask(f"// {name}\n{KERNEL}", name, outputs=["fatobj"])
    assert found.outcome is Outcome.MISS, found.log.stderr
    (compiled,) = rig.words()
    assert [word for word in compiled if word.startswith("-x")] == language
    assert "-DREGISTER_BASE" in compiled
    assert name in compiled


def test_words_for_ptoas_mean_nothing_to_c_plus_plus(rig: Rig) -> None:
    source = f"// no ptoas\n{KERNEL}"
    flags = "--pto-backend=vpto --enable-insert-sync -DX"
    found = rig.ask(source, "k.cpp", outputs=["image"], env={"PTO_FLAGS": flags})
    assert found.outcome is Outcome.MISS, found.log.stderr
    assert [line[0] for line in rig.words()] == ["bisheng", "bisheng"]
    plain = rig.ask(source, "k.cpp", outputs=["image"], options=["-DX"])
    again = rig.ask(source, "k.cpp", outputs=["image"], options=["-DX", "--pto-level=level3"])
    assert (again.outcome, again.key) == (Outcome.MEMORY_HIT, plain.key)


def test_language_that_is_told_replaces_the_usual_one(rig: Rig) -> None:
    rig.ask(f"// told\n{KERNEL}", "k.cpp", outputs=["fatobj"], options=["-xasc"])
    assert [word for word in rig.words()[0] if word.startswith("-x")] == ["-xasc"]


def test_outputs_of_one_request_come_from_one_run_of_each_step(rig: Rig) -> None:
    outputs = ["image", "cpp", "aibin", "fatobj"]
    found = rig.ask(unique("all"), outputs=outputs, symbols=["gemm"])
    assert sorted(found.outputs) == sorted(outputs)
    assert [line[0] for line in rig.words()] == ["ptoas", "bisheng", "bisheng"]
    image = bytes(found.outputs["image"].buffer)
    aibin = bytes(found.outputs["aibin"].buffer)
    assert elf.section_bytes(image) == aibin
    assert elf.check(aibin).machine == elf.AICORE_MACHINE
    assert "func" not in text_of(found, "cpp").partition("//")[0]
    assert found.outputs["aibin"].mode == 0o644
    assert rig.ask(unique("all"), outputs=outputs, symbols=["gemm"]).outcome is Outcome.MEMORY_HIT


def test_cpp_needs_no_bisheng(rig: Rig, tmp_path: Path) -> None:
    tool = make_ptoas_release(tmp_path / "pto", era="0.52", log=rig.cann.log, knobs=rig.cann.knobs)
    env = {"PATH": "/bin", "PTOAS_ROOT": str(tool.parent.parent)}
    empty = {"ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": ""}
    found = rig.ask(unique("alone"), outputs=["cpp"], env={**env, **empty})
    assert found.outcome is Outcome.MISS
    missing = rig.ask(unique("alone"), outputs=["fatobj"], env={**env, **empty})
    assert raised(missing, ToolNotFoundError).message.startswith("bisheng was not found")


def test_debug_text_of_ptoas_does_not_hurt(rig: Rig) -> None:
    found = rig.ask(unique("chatter"), outputs=["cpp"])
    assert len(found.log.stderr) > 10_000
    assert rig.ask(unique("chatter"), outputs=["cpp"]).outcome is Outcome.MEMORY_HIT


def test_vpto_makes_the_fat_object_by_itself(rig: Rig) -> None:
    request: dict[str, Any] = {"outputs": ["fatobj", "aibin"], "options": ["--pto-backend=vpto"]}
    found = rig.ask(unique("vpto"), **request)
    assert found.outcome is Outcome.MISS, found.log.stderr
    ptoas, inner, link = rig.words()
    assert ptoas == ["ptoas", "--pto-arch=a5", "--pto-backend=vpto", "k.pto", "-o", "kernel.o"]
    assert "-DCANN_ABI=8.5.0" in inner
    assert link[:3] == ["bisheng", "-shared", "-fPIC"]
    assert rig.ask(unique("vpto"), **request).outcome is Outcome.MEMORY_HIT


def test_vpto_with_include_variables_is_not_stored(rig: Rig, tmp_path: Path) -> None:
    found = rig.ask(
        unique("vpto"),
        outputs=["fatobj"],
        options=["--pto-backend=vpto"],
        env={"CPATH": str(tmp_path)},
    )
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.NO_DEPENDENCIES)
    assert "CPATH" in found.why


def test_header_beside_the_generated_source_is_nobodys(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text("not the generated one\n")
    (tmp_path / "kernel.pto").write_text("not the generated one\n")
    first = rig.ask(unique("beside"), source_dir=tmp_path)
    assert first.outcome is Outcome.MISS
    (tmp_path / "kernel.cpp").write_text("changed\n")
    assert rig.ask(unique("beside"), source_dir=tmp_path).outcome is Outcome.MEMORY_HIT


@pytest.mark.parametrize("root", ["", "relative"])
def test_isa_root_that_is_no_absolute_path_is_passed_over(rig: Rig, root: str) -> None:
    rig.ask(unique(f"isa {root}"), outputs=["fatobj"], env={"PTO_ISA_ROOT": root})
    assert "-I" not in rig.words()[1]


def test_isa_root_is_searched_behind_the_directories_of_the_request(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "isa" / "include").mkdir(parents=True)
    rig.ask(
        unique("isa"),
        outputs=["fatobj"],
        options=["-I", str(tmp_path)],
        env={"PTO_ISA_ROOT": str(tmp_path / "isa")},
    )
    compiled = rig.words()[1]
    found = [compiled[i + 1] for i, word in enumerate(compiled) if word == "-I"]
    assert found == [str(tmp_path), str(tmp_path / "isa" / "include")]


def test_isa_root_counts_for_a_kernel_that_its_framework_builds(rig: Rig, tmp_path: Path) -> None:
    def asked(root: str) -> str:
        """The key of the kernel with the headers below ``root``; stored on the way."""
        env = rig.cann.env(PTO_ISA_ROOT=str(tmp_path / root))
        found = rig.client.kernel("pto", {"source": "isa"}, env=env)
        return found.key if isinstance(found, Result) else found.put({"kernel": root}).key

    none = asked("later")
    header = tmp_path / "isa" / "include" / "pto.hpp"
    header.parent.mkdir(parents=True)
    header.write_text("#define PTO 1\n")
    first = asked("isa")
    assert first != none
    # No compile of ours reads it: it is noticed as a file of a tree is.
    header.write_text("#define PTO 2\n")
    wait_for(lambda: asked("isa") != first, "the change to be noticed")
    header.write_text("#define PTO 1\n")
    wait_for(lambda: asked("isa") == first, "the change back to be noticed")
    header.parent.parent.rename(tmp_path / "later")
    assert asked("later") not in (none, first)


# --- refusals


@pytest.mark.parametrize(
    ("request_", "words", "hint"),
    [
        ({"outputs": ["ptx"]}, "makes no output 'ptx'", "aibin, cpp, fatobj, image"),
        ({"inputs": {"k.mlir": ""}}, "0 of the inputs are sources", ".py, .pto, .cpp"),
        ({"inputs": {"a.pto": "", "b.py": ""}}, "2 of the inputs are sources", ".py, .pto, .cpp"),
        ({"arch": "dav-2002"}, "ptoas knows no device dav-2002", "dav-2201 (a3)"),
        ({"arch": "gfx90"}, "no device is called 'gfx90'", "dav-2201"),
        (
            {"arch": "a5", "options": ["--pto-arch=a3"]},
            "the request is for a5 and its options for a3",
            "leave one of them out",
        ),
        ({"name": "k.cpp", "outputs": ["cpp"]}, "k.cpp is C++ already", "another output"),
        (
            {"outputs": ["cpp"], "options": ["--pto-backend=vpto"]},
            "--pto-backend=vpto makes no C++",
            "leave the output cpp out",
        ),
        (
            {"outputs": ["fatobj"], "options": ["--pto-backend=vpto", "-DX"]},
            "with --pto-backend=vpto nobody reads -DX",
            "leave the option out",
        ),
        (
            {"outputs": ["aibin"], "options": ["--pto-backend=vpto", "-I/x"]},
            "with --pto-backend=vpto nobody reads -I",
            "leave the option out",
        ),
        ({"options": ["--kernel=gemm"]}, "--kernel=gemm needs a Python source", ""),
        ({"env": {"PTO_FLAGS": "-D'X"}}, 'PTO_FLAGS="-D\'X" cannot be understood', "quotation"),
        ({"options": ["-o", "x"]}, "the option -o has no place", "name the outputs"),
        ({"options": ["level3"]}, "'level3' stands among the options", "sources are inputs"),
    ],
)
def test_request_that_cannot_be_served_is_refused_with_a_way_out(
    rig: Rig, request_: dict[str, Any], words: str, hint: str
) -> None:
    assert_bad_request(rig.ask(**request_), words, hint)
    assert rig.words() == []


def test_missing_ptoas_is_named_with_the_places(rig: Rig, tmp_path: Path) -> None:
    error = raised(rig.ask(env={"PTOAS_ROOT": str(tmp_path)}), ToolNotFoundError)
    assert error.message.startswith("ptoas was not found")
    assert error.fields["looked"] == [
        f"{tmp_path}/ptoas.sh", f"{tmp_path}/bin/ptoas", f"{tmp_path}/ptoas",
    ]  # fmt: skip
    assert "PTOAS_ROOT must name an unpacked release" in error.hint


# --- failures and damage


def test_failing_ptoas_says_what_it_said_and_is_remembered(rig: Rig) -> None:
    found = rig.ask(unique("bad") + "error!\n", outputs=["cpp"])
    assert found.reason is Reason.COMPILE_FAILED
    assert raised(found, CompileFailedError).fields["step"] == "ptoas"
    assert b'loc("k.pto":' in found.log.stderr
    again = rig.ask(unique("bad") + "error!\n", outputs=["cpp"])
    assert again.reason is Reason.REMEMBERED_FAILURE
    assert again.log.stderr == found.log.stderr
    assert len(rig.words()) == 1


@pytest.mark.parametrize(
    ("output", "knob", "kind"),
    [
        ("cpp", "ptoas.damage", "empty"),
        ("fatobj", "bisheng.damage", "truncate"),
        ("fatobj", "bisheng.damage", "no-aicore"),
        ("fatobj", "bisheng.damage", "section-out-of-bounds"),
        ("fatobj", "bisheng.damage", "wrong-arch"),
        ("fatobj", "bisheng.damage", "wrong-machine"),
        ("aibin", "bisheng.damage", "no-aicore"),
    ],
)
def test_damaged_output_is_refused_counted_and_not_stored(
    rig: Rig, output: str, knob: str, kind: str
) -> None:
    before = rig.client.stats()
    rig.cann.knob(knob, kind)
    source = unique(f"{output} {kind}")
    request: dict[str, Any] = {"outputs": [output], "arch": "a3"}
    found = rig.ask(source, **request)
    assert (found.outcome, found.reason) == (Outcome.FAILURE, Reason.OUTPUT_REJECTED)
    raised(found, OutputRejectedError)
    rig.cann.unknob()
    after = rig.client.stats()
    count = [stats["caches"]["binary"]["rejected"] for stats in (before, after)]
    assert count[1] == count[0] + 1
    assert after["store"]["entries"] == before["store"]["entries"]
    assert rig.ask(source, **request).outcome is Outcome.MISS
    assert rig.ask(source, **request).outcome is Outcome.MEMORY_HIT


def test_missing_symbol_of_the_image_is_refused_by_name(rig: Rig) -> None:
    found = rig.ask(unique("symbol"), symbols=["gemm", "conv"])
    assert "conv" in raised(found, OutputRejectedError).message


# --- the front end


def test_kernel_of_a_python_source_goes_the_whole_way(rig: Rig) -> None:
    found = rig.python(PYTHON, "--kernel=gemm", symbols=["gemm"], outputs=["aibin", "cpp"])
    assert found.outcome is Outcome.MISS, found.log.stderr
    assert "func.func @gemm" in text_of(found, "cpp")
    again = rig.python(PYTHON, "--kernel=gemm", symbols=["gemm"], outputs=["aibin", "cpp"])
    assert again.outcome is Outcome.MEMORY_HIT
    assert [line[0] for line in rig.words()] == ["ptoas", "bisheng", "bisheng"]


def test_each_kernel_of_one_source_has_its_own_entry(rig: Rig) -> None:
    source = PYTHON + PYTHON.partition("\n")[2].replace("gemm", "conv")
    one = rig.python(source, "--kernel=gemm", outputs=["cpp"])
    two = rig.python(source, "--kernel=conv", outputs=["cpp"])
    both = rig.python(source, "--kernel=gemm", "--kernel=conv", outputs=["cpp"])
    assert [item.outcome for item in (one, two, both)] == [Outcome.MISS] * 3
    assert "@conv" not in text_of(one, "cpp")
    assert "@gemm" not in text_of(two, "cpp")
    assert "@gemm" in text_of(both, "cpp")
    assert "@conv" in text_of(both, "cpp")
    assert rig.python(source, "--kernel=gemm", outputs=["cpp"]).key == one.key


def test_callers_own_interpreter_is_taken_unless_another_is_named(rig: Rig, tmp_path: Path) -> None:
    source = "import sys\nprint(f'// {sys.executable}')\n"
    mine = rig.python(source, outputs=["cpp"])
    assert sys.executable in text_of(mine, "cpp")
    named = os.path.realpath(sys.executable)
    other = rig.python(source, outputs=["cpp"], env={"PTOCACHE_PYTHON": named})
    assert named in text_of(other, "cpp")


def test_client_without_a_daemon_takes_its_own_interpreter_too(rig: Rig, tmp_path: Path) -> None:
    env = {"PTOCACHE_DIR": str(tmp_path), "PTOCACHE_SOCKET": str(tmp_path / "s")}
    with (
        connect(env=env, client_autostart=False) as client,
        pytest.warns(PtocacheWarning, match="without its daemon"),
    ):
        found = rig.python(PYTHON, "--kernel=gemm", outputs=["cpp"], client=client)
    assert found.reason is Reason.NO_DAEMON
    assert "@gemm" in text_of(found, "cpp")


@pytest.mark.parametrize("python", ["", "python3", "/nowhere/python3"])
def test_interpreter_that_is_none_is_refused(rig: Rig, python: str) -> None:
    found = rig.python(PYTHON, env={"PTOCACHE_PYTHON": python})
    error = raised(found, ToolNotFoundError)
    assert f"PTOCACHE_PYTHON={python!r}" in error.message
    assert "set PTOCACHE_PYTHON" in error.hint


def test_interpreter_without_a_front_end_is_refused_with_its_search_path(
    rig: Rig, tmp_path: Path
) -> None:
    found = rig.python(PYTHON, env={"PYTHONPATH": str(tmp_path)})
    error = raised(found, ToolNotFoundError)
    assert "none of the front ends ptodsl" in error.message
    assert str(tmp_path) in error.fields["looked"]


def test_exception_is_a_compile_failure_with_its_traceback(rig: Rig) -> None:
    found = rig.python("def build():\n    raise ValueError('no tile fits')\nbuild()\n")
    assert found.reason is Reason.COMPILE_FAILED
    assert raised(found, CompileFailedError).fields["step"] == "front end"
    said = found.log.stderr.decode()
    assert said.startswith("Traceback")
    assert 'File "k.py", line 2, in build' in said
    assert said.endswith("ValueError: no tile fits\n")
    assert str(rig.daemon.root) not in said
    assert rig.words() == []


def test_missing_module_is_no_lasting_failure(rig: Rig, tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{tmp_path}:{rig.site}"}
    source = "import late\nprint('// late', late.X)\n"
    failed = rig.python(source, outputs=["cpp"], env=env)
    assert b"No module named 'late'" in failed.log.stderr
    (tmp_path / "late.py").write_text("X = 1\n")
    assert rig.python(source, outputs=["cpp"], env=env).outcome is Outcome.MISS


def test_data_files_and_optional_modules_are_dependencies(rig: Rig, tmp_path: Path) -> None:
    data, module = tmp_path / "tiles.txt", tmp_path / "fast.py"
    data.write_text("16")
    source = (
        f"print('// tiles', open({str(data)!r}).read())\n"
        "try:\n    import fast\n    print('// fast')\nexcept ImportError:\n    print('// slow')\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{rig.site}"}
    first = rig.python(source, outputs=["cpp"], env=env)
    assert first.outcome is Outcome.MISS, first.why
    assert "tiles 16" in text_of(first, "cpp")
    data.write_text("32")
    second = rig.python(source, outputs=["cpp"], env=env)
    assert second.outcome is Outcome.MISS
    assert "tiles 32" in text_of(second, "cpp")
    module.write_text("")
    third = rig.python(source, outputs=["cpp"], env=env)
    assert third.outcome is Outcome.MISS
    assert "fast" in text_of(third, "cpp")
    module.unlink()
    data.write_text("16")
    back = rig.python(source, outputs=["cpp"], env=env)
    assert back.outcome.is_hit
    assert back.key == first.key
    assert back.outputs["cpp"].digest == first.outputs["cpp"].digest


def test_input_beside_the_source_can_be_opened(rig: Rig) -> None:
    inputs = {"k.py": "print('//', open('data/tile.txt').read())\n", "data/tile.txt": "64"}
    found = rig.ask(inputs=inputs, outputs=["cpp"])
    assert (found.outcome, found.reason) == (Outcome.MISS, Reason.NONE)
    assert "// 64" in text_of(found, "cpp")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import subprocess\nsubprocess.run(['/bin/true'])\n", "starts a program"),
        ("import os\nos.listdir('/')\n", "lists the directory /"),
        ("open('/dev/zero', 'rb').read(1)\n", "reads /dev/zero"),
    ],
)
def test_what_no_list_covers_is_answered_and_not_stored(rig: Rig, source: str, words: str) -> None:
    for _ in range(2):
        found = rig.python(f"{source}print('// x')\n", outputs=["cpp"])
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.UNSEEN_INPUT)
        assert words in found.why
        assert "// x" in text_of(found, "cpp")


def test_order_of_sets_is_the_same_in_every_run(rig: Rig) -> None:
    source = "print('//', *{f'tile{n}' for n in range(20)})\n"
    one = rig.python(source, outputs=["cpp"])
    two = rig.python(source, outputs=["cpp"], mode="refresh", env={"PYTHONHASHSEED": "9"})
    assert one.outputs["cpp"].digest == two.outputs["cpp"].digest


def test_launcher_of_pip_and_the_front_end_may_have_different_interpreters(
    rig: Rig, tmp_path: Path
) -> None:
    base = os.path.realpath(sys.executable)
    prefix = tmp_path / "env"
    python = prefix / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(base)
    (prefix / "pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\n")
    make_pip_ptoas(prefix, log=rig.cann.log, knobs=rig.cann.knobs, identity="P", python=str(python))
    source = "import sys\nprint(f'// {sys.executable}')\n"
    path = f"{prefix / 'bin'}:/usr/bin:/bin"
    found = rig.python(source, outputs=["cpp"], env={"PATH": path})
    assert found.outcome is Outcome.MISS, (found.why, found.log.stderr)
    assert sys.executable in text_of(found, "cpp")
    assert "identity=P" in depends_of(bytes(found.outputs["cpp"].buffer))


def test_how_to_works_as_it_is_written(rig: Rig, tmp_path: Path) -> None:
    run_page(
        "docs/how-to/compile-pto-kernels.md",
        tmp_path,
        {**rig.daemon.env, **rig.cann.env(PYTHONPATH=str(rig.site))},
    )
