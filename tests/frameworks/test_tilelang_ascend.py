"""The real TileLang, Ascend target up to the device image, with the simulated CANN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.frameworks.rig import add_headers
from tests.harness import wait_for
from tests.simcann import PTO, SimCann

if TYPE_CHECKING:
    from tests.frameworks.rig import Rig

FACTS = (
    "def facts(kernel):\n"
    "    place = kernel._tilelang_cache_path\n"
    "    with open(os.path.join(place, 'executable.so'), 'rb') as file:\n"
    "        data = file.read()\n"
    "    names = [name for name in ('A', 'B') if b'identity=' + name.encode() + b'\\n' in data]\n"
    "    return {'names': names, 'one': b'option=-DONE' in data, 'debug': b'file=' in data}\n"
)
BUILD = FACTS + "tell(**facts(compile_npu()))\n"
WARNED = "with Warned() as warned:\n    compile_npu()\ntell(warnings=warned.texts)\n"
BOTH = ["bisheng", "ld.lld"]


def build(rig: Rig, code: str = BUILD, **env: str) -> dict[str, Any]:
    found: dict[str, Any] = rig.start(code, env=env).wait().told()
    return found


@pytest.fixture
def warm(rig: Rig) -> Rig:
    """A rig whose daemon has the kernel and its device binary."""
    assert rig.cann
    rig.daemon.start()
    assert build(rig)["names"] == ["A"]
    assert rig.device_runs() == BOTH
    assert (rig.counts("kernel"), rig.counts("binary")) == ({"miss": 1}, {"miss": 1})
    return rig


def test_kernel_is_loaded_in_a_fresh_process_without_a_tool(warm: Rig) -> None:
    assert build(warm)["names"] == ["A"]
    warm.daemon.restart()
    assert build(warm)["names"] == ["A"]
    assert warm.device_runs() == BOTH
    assert len(warm.compiles()) == 1
    assert warm.counts("kernel") == {"miss": 1, "memory_hit": 1, "disk_hit": 1}
    assert warm.counts("binary") == {"miss": 1}


def test_kernel_is_the_same_object_in_the_same_process(warm: Rig) -> None:
    assert build(warm, "tell(same=compile_npu() is compile_npu())\n") == {"same": True}
    assert warm.device_runs() == BOTH
    assert warm.counts("kernel") == {"miss": 1, "memory_hit": 2}


def test_command_line_is_that_of_tilelang(rig: Rig) -> None:
    cann = rig.cann
    build(rig, "compile_npu(pass_configs={'tl.device_compile_flags': ['-DONE -DTWO=2']})\ntell()\n",
          TILELANG_DISABLE_CACHE="1")  # fmt: skip
    theirs = [run.argv[1:] for run in cann.runs()]
    cann.clear_log()
    rig.daemon.start()
    build(rig, "compile_npu(pass_configs={'tl.device_compile_flags': ['-DONE -DTWO=2']})\ntell()\n")
    ours = [run.argv[1:] for run in cann.runs()]
    for their, our in zip(theirs, ours, strict=True):
        assert [word for word in map(_plain, their) if word not in set(map(_plain, our))] == []
    assert [word for word in ours[0] if word.startswith("-D")] == ["-DONE", "-DTWO=2"]


def _plain(word: str) -> str:
    """Without the names of files in private directories, and a folder's spelling."""
    if word.startswith("-I") or "/src" in word:
        return "-I"
    name = word.rpartition("/")[2]
    ending = name.rpartition(".")[2]
    return f"a .{ending}" if ending in ("asc", "o", "aibin") else word


@pytest.mark.parametrize("tool", ["bisheng", "ld.lld"])
def test_tool_replaced_in_place_makes_another_kernel(warm: Rig, tool: str) -> None:
    warm.cann.replace_tool(tool, "B")
    assert "B" in build(warm)["names"]
    assert (warm.counts("kernel"), warm.counts("binary")) == ({"miss": 2}, {"miss": 2})


def test_another_version_of_cann_makes_another_kernel(warm: Rig) -> None:
    warm.cann.set_version("9.0.0")
    build(warm)
    assert (warm.counts("kernel"), warm.counts("binary")) == ({"miss": 2}, {"miss": 2})


def test_tool_replaced_within_a_process_makes_another_kernel(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    code = (
        FACTS + "from pathlib import Path\nfrom tests.simcann import rebake\n"
        "first = facts(compile_npu())\n"
        f"rebake(Path({str(rig.cann.tool('bisheng'))!r}), 'B')\n"
        "tell(first=first['names'], second=facts(compile_npu())['names'])\n"
    )
    found = build(rig, code)
    assert found["first"] == ["A"]
    assert "B" in found["second"]
    assert (rig.counts("kernel"), rig.counts("binary")) == ({"miss": 2}, {"miss": 2})


def test_pto_flags_are_in_the_key_of_the_kernel(warm: Rig) -> None:
    build(warm, PTO_FLAGS="--pto-level=level3")
    build(warm, PTO_FLAGS="--pto-level=level3")
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}
    # They say nothing to the compiler of AscendC.
    assert warm.counts("binary") == {"miss": 1, "memory_hit": 1}
    assert warm.device_runs() == BOTH


def test_pto_flags_count_within_a_process(warm: Rig) -> None:
    code = (
        "first = compile_npu()\nos.environ['PTO_FLAGS'] = '-x'\nsecond = compile_npu()\n"
        "del os.environ['PTO_FLAGS']\n"
        "tell(second=second is first, third=compile_npu() is first)\n"
    )
    assert build(warm, code) == {"second": False, "third": True}


@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("compile_npu(pass_configs={'tl.device_compile_flags': ['-DONE']})", {}),
        ("compile_npu(compile_flags=['-DONE'])", {}),
        ("compile_npu()", {"ASCEND_NPU_ARCH": "dav-2201"}),
    ],
    ids=["device flags", "compile flags", "arch"],
)
def test_other_flags_make_another_kernel(warm: Rig, code: str, env: dict[str, str]) -> None:
    found = build(warm, f"{FACTS}tell(**facts({code}))\n", **env)
    assert found["one"] == ("DONE" in code)
    assert (warm.counts("kernel"), warm.counts("binary")) == ({"miss": 2}, {"miss": 2})


def test_device_binary_is_found_where_only_the_kernel_is_new(warm: Rig) -> None:
    # Another host compiler: the device code is the same.
    warm.write_compiler("-DANOTHER")
    assert build(warm)["names"] == ["A"]
    assert warm.counts("kernel") == {"miss": 2}
    assert warm.counts("binary") == {"miss": 1, "memory_hit": 1}
    assert warm.device_runs() == BOTH


def test_device_code_is_made_for_a_build_alone(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    code = (
        "from tilelang.cache import _ascend_dispatch_map\n"
        "from tilelang.jit.kernel import JITKernel\n"
        "seen = []\n"
        "make = JITKernel._compile_and_create_adapter\n"
        "def count(self, *args, **kwargs):\n"
        "    seen.append(self)\n    return make(self, *args, **kwargs)\n"
        "JITKernel._compile_and_create_adapter = count\n"
        "first = compile_npu()\n"
        "built = len(seen)\n"
        "_ascend_dispatch_map['tvm_ffi']._memory_cache.clear()\n"
        "assert compile_npu() is not first\n"
        "tell(built=built, loaded=len(seen) - built)\n"
    )
    assert build(rig, code) == {"built": 1, "loaded": 0}
    assert build(rig, code) == {"built": 0, "loaded": 0}


def test_kernel_whose_code_somebody_rewrites_is_a_bypass(warm: Rig) -> None:
    code = (
        "from tilelang.ascend.callback import register_ascend_postproc\n"
        "register_ascend_postproc(lambda code, target: code + '// rewritten')\n"
        "kernel = compile_npu()\n"
        "tell(rewritten='// rewritten' in kernel.get_kernel_source())\n"
    )
    for count in (1, 2):
        assert build(warm, code)["rewritten"]
        assert warm.counts("kernel") == {"miss": 1, "bypass asked": count}
    # The device binary is known by its code, whoever wrote it.
    assert warm.counts("binary") == {"miss": 2, "memory_hit": 1}


# --- where the tools are


def test_bisheng_of_the_path_is_taken_before_that_of_cann(rig: Rig) -> None:
    first, other = rig.cann, SimCann.make(rig.place / "other", identity="B")
    add_headers(other)
    rig.daemon.start()
    search = f"{other.bin}:{rig.env()['PATH']}"
    # TileLang takes bisheng from there, but ld.lld from ASCEND_HOME_PATH: nothing here can say so.
    mixed = build(rig, WARNED, PATH=search)
    assert "of another installation" in mixed["warnings"][0]
    assert rig.counts("kernel") == {}
    first.tool("ld.lld").unlink()
    assert build(rig, PATH=search)["names"] == ["B"]
    assert rig.counts("kernel") == {"miss": 1}


def test_bisheng_home_is_taken_first(rig: Rig) -> None:
    rig.daemon.start()
    home = str(rig.cann.compiler)
    env = {"BISHENG_HOME": home, "PATH": "/usr/bin:/bin"}
    assert build(rig, **env)["names"] == ["A"]
    assert {run.argv[0].rpartition("/")[0] for run in rig.cann.runs()} == {f"{home}/bin"}
    assert rig.counts("binary") == {"miss": 1}


# --- trouble


def test_without_a_daemon_the_process_compiles_through_the_toolchain(rig: Rig) -> None:
    assert rig.cann
    for number in (1, 2):
        (warning,) = build(rig, WARNED)["warnings"]
        assert "without its daemon" in warning
        assert rig.device_runs() == BOTH * number
    rig.cann.replace_tool("bisheng", "B")
    build(rig, "compile_npu()\ntell()\n")
    assert rig.device_runs() == BOTH * 3


def test_daemon_that_is_killed_while_the_device_compiler_runs_breaks_nothing(rig: Rig) -> None:
    rig.cann.knob("bisheng.hang")
    rig.daemon.start()
    child = rig.start(WARNED)
    wait_for(rig.device_runs, "the device compiler to run")
    rig.cann.unknob()
    rig.daemon.kill()
    (warning,) = child.wait().told()["warnings"]
    assert "without its daemon" in warning
    rig.daemon.start()
    assert build(rig)["names"] == ["A"]
    assert (rig.counts("kernel"), rig.counts("binary")) == ({"miss": 1}, {"miss": 1})


def test_compile_error_of_the_device_is_tilelangs_error_with_the_tools_words(rig: Rig) -> None:
    rig.cann.knob("bisheng.fail-if-contains", "add_npu")
    rig.daemon.start()
    code = "try:\n    compile_npu()\nexcept RuntimeError as error:\n    tell(error=str(error))\n"
    text = build(rig, code)["error"]
    assert "Ascend device compilation failed" in text
    assert "add_npu" in text.partition("Compiler output:")[2].partition("Source:")[0]
    assert rig.counts("kernel") == {"failure compile_failed": 1}
    assert rig.counts("binary") == {"failure compile_failed": 1}
    assert rig.device_runs() == ["bisheng"]


def test_output_that_is_refused_is_left_to_tilelang(rig: Rig) -> None:
    rig.cann.knob("ld.lld.damage", "wrong-machine")
    rig.daemon.start()
    (warning,) = build(rig, WARNED)["warnings"]
    assert "ElfError" in warning
    assert rig.device_runs() == BOTH * 2
    # Nothing that was refused is stored inside of a whole kernel.
    assert rig.counts("kernel") == {"failure compile_failed": 1}
    assert rig.counts("binary") == {"failure output_rejected": 1}


def test_switch_off_leaves_the_callback_to_tilelang(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    for number in (1, 2):
        build(rig, "compile_npu()\ntell()\n", TILELANG_DISABLE_CACHE="1")
        assert rig.device_runs() == BOTH * number
    assert (rig.counts("kernel"), rig.counts("binary")) == ({}, {})


def test_callback_that_somebody_registers_later_stays(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    code = (
        "import tvm_ffi, ptocache.integrations.tilelang as own\n"
        "name = 'tilelang_callback_ascend_compile'\n"
        "def mine(code, target, config=None):\n    return bytearray(b'mine')\n"
        "tvm_ffi.register_global_func(name, f=mine, override=True)\n"
        "compile_npu()\n"
        "own.uninstall()\n"
        "tell(mine=bytes(tvm_ffi.get_global_func(name)('', None)).decode())\n"
    )
    assert build(rig, code) == {"mine": "mine"}
    # No key can name what it does.
    assert (rig.counts("kernel"), rig.counts("binary")) == ({}, {})


# --- PTO

PTO_CODE = (
    "import tvm_ffi, tilelang\n"
    "from tvm.target import Target\n"
    "name = 'tilelang_callback_pto_compile'\n"
    "asked = []\n"
    "def theirs(code, target, config=None):\n"
    "    asked.append(str(code))\n"
    "    return bytearray(b'theirs')\n"
    "def register():\n"
    "    tvm_ffi.register_global_func(name, f=theirs, override=True)\n"
    "def ask(code, flags=''):\n"
    "    config = {'tl.device_compile_flags': flags} if flags else {}\n"
    "    return bytes(tvm_ffi.get_global_func(name)(code, Target('ascend'), config))\n"
    f"PTO = {PTO!r}\n"
)
ASK = (
    "register()\ninstall()\n"
    "with Warned() as warned:\n    data = ask(PTO)\n"
    "tell(elf=data[:4] == b'\\x7fELF', theirs=len(asked), warnings=warned.texts)\n"
)


def test_pto_callback_goes_through_the_pto_toolchain(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    for _ in range(2):
        told = rig.plain(PTO_CODE + ASK, ASCEND_NPU_ARCH="dav-2201").told()
        assert told == {"elf": True, "theirs": 0, "warnings": []}
    assert rig.counts("binary") == {"miss": 1, "memory_hit": 1}
    assert rig.device_runs() == ["ptoas", "bisheng", "bisheng"]


def test_pto_flags_are_in_the_key_of_a_pto_binary(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    env = {"ASCEND_NPU_ARCH": "dav-2201"}
    rig.plain(PTO_CODE + ASK, **env).told()
    rig.plain(PTO_CODE + ASK, PTO_FLAGS="--pto-level=level3", **env).told()
    flags = ASK.replace("ask(PTO)", "ask(PTO, '--enable-insert-sync')")
    rig.plain(PTO_CODE + flags, **env).told()
    assert rig.counts("binary") == {"miss": 3}
    words = [run.argv for run in rig.cann.runs("ptoas")]
    assert ["--pto-level=level3" in item for item in words] == [False, True, False]
    assert ["--enable-insert-sync" in item for item in words] == [False, False, True]


def test_kernel_of_a_pto_target_has_the_pto_toolchain_in_its_key(rig: Rig) -> None:
    assert rig.cann.ptoas
    rig.daemon.start()
    code = (
        "from types import SimpleNamespace as Some\n"
        "import ptocache.integrations.tilelang as own\n"
        "pto = Some(module=Some(name='pto'))\n"
        "of = own._toolchain_of\n"
        "own._toolchain_of = lambda context, target: of(pto, target)\n"
        "compile_npu()\n"
    )
    for flags in ("", "", "--pto-level=level3"):
        rig.build(code, PTO_FLAGS=flags)
    assert rig.counts("kernel") == {"miss": 2, "memory_hit": 1}
    rig.cann.replace_tool("ptoas", "B")
    rig.build(code)
    assert rig.counts("kernel") == {"miss": 3, "memory_hit": 1}


def test_pto_callback_that_comes_later_is_hooked_at_the_next_kernel(rig: Rig) -> None:
    assert rig.cann
    rig.daemon.start()
    code = PTO_CODE + (
        "register()\ncompile_c(16)\ntell(elf=ask(PTO)[:4] == b'\\x7fELF', theirs=len(asked))\n"
    )
    told = rig.run(code, ASCEND_NPU_ARCH="dav-2201").told()
    assert told == {"elf": True, "theirs": 0}


def test_pto_callback_is_tilelangs_own_where_the_tools_are_missing(rig: Rig) -> None:
    rig.cann.tool("bisheng").unlink()
    rig.daemon.start()
    told = rig.plain(PTO_CODE + ASK).told()
    assert (told["elf"], told["theirs"], len(told["warnings"])) == (False, 1, 1)


def test_nothing_is_registered_where_tilelang_has_no_pto_target(rig: Rig) -> None:
    code = PTO_CODE + "tell(found=tvm_ffi.get_global_func(name, allow_missing=True) is not None)\n"
    assert rig.run(code).told() == {"found": False}
