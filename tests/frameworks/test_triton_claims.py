"""What docs/how-to/triton.md says, claim by claim, with the real Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.triton_rig import MANAGER, TOLD, TritonRig

TTIR = (
    "def ir_of(kernel, name, old, new):\n"
    "    text = kernel.asm['ttir'].replace(old, new)\n"
    "    assert old in kernel.asm['ttir']\n"
    "    open(name, 'w').write(text)\n"
)
"""Writes the IR of a kernel to a file, with a change by which its PTX can be told."""
HALVES = "'arith.addf', 'arith.mulf'"
IS_MUL = "'mul.f32' in kernel.asm['ptx'] and 'add.f32' not in kernel.asm['ptx']"


@pytest.fixture
def rig(triton_rig: TritonRig) -> TritonRig:
    triton_rig.daemon.start()
    return triton_rig


# --- what reads files that no key has


def test_kernel_with_an_ir_override_is_right_and_not_stored(rig: TritonRig) -> None:
    code = TTIR + (
        f"ir_of(compile_add(), 'mine.ttir', {HALVES})\n"
        "kernel = compile_add(ir_override=os.path.abspath('mine.ttir'))\n"
        f"print(json.dumps({IS_MUL}))\n"
    )
    assert rig.run("import os\n" + code).told() is True
    assert rig.counts("kernel") == {"miss": 1, "failure compile_failed": 1}
    assert rig.run("import os\n" + code).told() is True
    assert rig.counts("kernel") == {"miss": 1, "memory_hit": 1, "failure compile_failed": 2}


OVERRIDDEN = "kernel = compile_add()\nprint(json.dumps('mul.f32' in kernel.asm['ptx']))\n"


def test_files_of_the_override_folder_are_used_and_not_stored(rig: TritonRig) -> None:
    place = rig.place / "override"
    code = TTIR + (
        "import os\n"
        "from triton.runtime.cache import get_override_manager\n"
        "signature = {'X': '*fp32', 'Y': '*fp32', 'Z': '*fp32', 'n': 'i32', 'SIZE': 'constexpr'}\n"
        "source = ASTSource(fn=add, signature=signature, constexprs={(4,): 256})\n"
        "place = get_override_manager(source.hash())._own().cache_dir\n"
        "kernel = compile_add()\n"
        "os.makedirs(place)\n"
        f"ir_of(kernel, os.path.join(place, 'add.ttir'), {HALVES})\n"
        "print(json.dumps('mul.f32' in kernel.asm['ptx']))\n"
    )
    env = {"TRITON_OVERRIDE_DIR": str(place)}
    assert rig.run(code, **env).told() is False
    for count in (1, 2):
        assert rig.run(OVERRIDDEN, TRITON_KERNEL_OVERRIDE="1", **env).told() is True
        assert rig.counts("kernel") == {"miss": 1, "bypass asked": count}
    assert rig.run(OVERRIDDEN, TRITON_KERNEL_OVERRIDE="0", **env).told() is False
    assert rig.counts("kernel") == {"miss": 1, "bypass asked": 2, "memory_hit": 1}


def test_locations_of_a_file_of_ir_are_a_bypass(rig: TritonRig) -> None:
    code = "kernel = compile_add()\nprint(json.dumps('add.ttgir' in kernel.asm['ptx']))\n"
    assert rig.run(code).told() is False
    for count in (1, 2):
        ended = rig.run(code, USE_IR_LOC="ttgir")
        assert ended.code == 0, ended.err
        assert ended.out.splitlines()[-1] == "true"
        assert rig.counts("kernel") == {"miss": 1, "bypass asked": count}
    assert rig.run(code).told() is False


# --- what the program itself has set


def test_knob_that_the_program_has_set_counts_like_its_variable(rig: TritonRig) -> None:
    other = rig.place / "compiler" / "other-ptxas"
    other.write_text(rig.compiler.read_text().replace('"$@"\n', '--opt-level 1 "$@"\n'))
    other.chmod(0o755)
    rig.daemon.stop()
    rig.daemon.env["PTOCACHE_TRUST_SCRIPTS"] += f":{other}"
    rig.daemon.start()
    plain = rig.told()
    chosen = (
        "from triton import knobs\nknobs.propagate_env = False\n"
        f"knobs.nvidia.ptxas = {str(other)!r}\n" + TOLD
    )
    assert rig.told(chosen)["cubin"] != plain["cubin"]
    assert rig.counts("kernel") == {"miss": 2}
    assert rig.told()["cubin"] == plain["cubin"]
    assert rig.counts("kernel") == {"miss": 2, "memory_hit": 1}
    always = (
        "from triton import knobs\nknobs.propagate_env = False\nknobs.compilation.always_compile = True\n"
        + TOLD
    )
    rig.told(always)
    assert rig.counts("kernel") == {"miss": 3, "memory_hit": 1}


# --- switching it on and off

SEEN = (
    "from triton import knobs\n"
    "import ptocache.integrations.triton as own\n"
    "from triton.runtime.cache import FileCacheManager\n"
    "class Mine(FileCacheManager):\n    pass\n"
    "def seen():\n    return dict(vars(knobs.cache))\n"
)
NO_VARIABLE = {"TRITON_CACHE_MANAGER": ""}


def test_uninstalling_leaves_what_was_there(rig: TritonRig) -> None:
    code = SEEN + (
        "before = seen()\n"
        "own.install(); own.install()\n"
        "assert knobs.cache.manager_class is own.CacheManager\n"
        "compile_add()\n"
        "own.uninstall()\n"
        "assert seen() == before and knobs.cache.manager_class is None\n"
        "knobs.cache.manager_class = None\n"
        "before = seen()\n"
        "own.install(); own.uninstall()\n"
        "assert seen() == before and 'manager_class' in before\n" + TOLD
    )
    env = rig.env()
    del env["TRITON_CACHE_MANAGER"]
    child = rig._zygote.start("from tests.frameworks.triton_kernels import *\n" + code, env)
    rig._children.append(child)
    assert child.wait().told()["elf"]
    assert rig.counts("kernel") == {"miss": 1}
    assert list((rig.place / "triton").rglob("*.cubin")), "the second is Triton's own"


@pytest.mark.parametrize("by", ["program", "variable"])
def test_manager_that_the_user_has_chosen_is_kept(rig: TritonRig, by: str) -> None:
    chosen = "triton.runtime.cache:FileCacheManager"
    code = SEEN + (
        ("knobs.cache.manager_class = Mine\n" if by == "program" else "Mine = FileCacheManager\n")
        + "before = seen()\n"
        "own.install()\n"
        "assert knobs.cache.manager_class is Mine\n"
        "own.uninstall()\n"
        "assert knobs.cache.manager_class is Mine and seen() == before\n" + TOLD
    )
    rig.told(code, TRITON_CACHE_MANAGER=chosen)
    assert rig.counts("kernel") == {}
    assert list((rig.place / "triton").rglob("*.cubin"))


def test_manager_that_is_chosen_after_the_installation_is_kept(rig: TritonRig) -> None:
    code = SEEN + (
        "own.install()\n"
        "knobs.cache.manager_class = Mine\n"
        "own.uninstall()\n"
        "assert knobs.cache.manager_class is Mine\n" + TOLD
    )
    rig.told(code, TRITON_CACHE_MANAGER=MANAGER)
    assert rig.counts("kernel") == {}


@pytest.mark.parametrize(("switch", "counts"), [("--triton", {"miss": 1}), ("--tilelang", {})])
def test_switch_of_run_means_one_framework(
    rig: TritonRig, switch: str, counts: dict[str, int]
) -> None:
    program = (
        "import os\nfrom tests.frameworks.triton_kernels import *\ncompile_add()\n"
        "print(os.environ['PTOCACHE_TRITON'], os.environ['PTOCACHE_TILELANG'])\n"
    )
    env = rig.env(PYTHONPATH=str(Path(__file__).parents[2]))
    del env["TRITON_CACHE_MANAGER"]
    command = Path(sys.executable).with_name("ptocache")
    done = subprocess.run(
        [command, "run", switch, "--", sys.executable, "-c", program], env=env, cwd=rig.place,
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["1", "0"] if switch == "--triton" else ["0", "1"])
    assert rig.counts("kernel") == counts


# --- without a daemon


def test_required_daemon_that_is_absent_is_an_error(triton_rig: TritonRig) -> None:
    ended = triton_rig.run(TOLD, PTOCACHE_REQUIRE="1")
    assert ended.code == 1
    assert "DaemonUnavailableError" in ended.err
    assert not triton_rig.compiles()


def test_missing_daemon_is_no_error_where_warnings_are(triton_rig: TritonRig) -> None:
    code = (
        "warnings.simplefilter('error', PtocacheWarning)\n"
        "print(json.dumps(compile_add().asm['cubin'][:4] == b'\\x7fELF'))\n"
    )
    ended = triton_rig.run("from ptocache.errors import PtocacheWarning\n" + code)
    assert ended.told() is True
    assert ended.err.count("ptocache compiles without its daemon") == 1
