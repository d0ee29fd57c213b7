"""The real Triton, compiled for a GPU that is not there: the outcome that each situation should have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.triton_rig import TOLD, TritonRig
from tests.harness import wait_for
from tests.kernel_process import until_waiting
from tests.system.page import run_page

REMOTE = {
    "TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager",
    "TRITON_REMOTE_CACHE_BACKEND": "ptocache.integrations.triton:RemoteCacheBackend",
}


@pytest.fixture
def rig(triton_rig: TritonRig) -> TritonRig:
    return triton_rig


@pytest.fixture
def warm(rig: TritonRig) -> TritonRig:
    """A rig whose daemon has the kernel; ptxas ran once."""
    rig.daemon.start()
    rig.told()
    assert (len(rig.compiles()), rig.counts("kernel")) == (1, {"miss": 1})
    return rig


def test_kernel_is_the_same_in_a_fresh_process_without_ptxas(rig: TritonRig) -> None:
    rig.daemon.start()
    cold = rig.told()
    assert not (rig.place / "triton").exists(), "nothing went to Triton's own cache"
    assert rig.told() == cold
    rig.daemon.restart()
    assert rig.told() == cold
    assert cold["warnings"] == []
    assert len(rig.compiles()) == 1
    assert rig.counts("kernel") == {"miss": 1, "memory_hit": 1, "disk_hit": 1}


def test_kernel_is_a_hit_in_the_same_process(rig: TritonRig) -> None:
    rig.daemon.start()
    rig.told("compile_add()\ncompile_told()\n")
    assert len(rig.compiles()) == 1
    assert rig.counts("kernel") == {"miss": 1, "memory_hit": 1}


@pytest.mark.parametrize("change", ["num_warps=8", "size=128"])
def test_other_options_or_sizes_are_another_kernel(warm: TritonRig, change: str) -> None:
    warm.told(f"compile_told({change})\n")
    warm.told(f"compile_told({change})\n")
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


def test_variable_of_the_compiler_is_in_the_key(warm: TritonRig) -> None:
    warm.told(DISABLE_PTXAS_OPT="1")
    assert warm.counts("kernel") == {"miss": 2}


def test_another_ptxas_of_the_same_version_is_another_kernel(warm: TritonRig) -> None:
    warm.write_compiler("--opt-level 1")
    warm.told()
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2}


def test_script_that_nobody_trusts_is_a_bypass(rig: TritonRig) -> None:
    rig.daemon.start()
    rig.told(PTOCACHE_TRUST_SCRIPTS="")
    rig.told(PTOCACHE_TRUST_SCRIPTS="")
    assert len(rig.compiles()) == 2
    assert rig.counts("kernel") == {"bypass asked": 2}


def test_always_compile_builds_again(warm: TritonRig) -> None:
    warm.told(TRITON_ALWAYS_COMPILE="1")
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2}


def test_one_of_two_processes_compiles_and_the_other_joins(rig: TritonRig) -> None:
    rig.daemon.start()
    rig.hold()
    children = [rig.start(TOLD) for _ in range(2)]
    until_waiting(rig.daemon, 2)
    rig.let_go()
    first, second = (child.wait().told() for child in children)
    assert first == second
    assert len(rig.compiles()) == 1
    assert rig.counts("kernel") == {"miss": 1, "joined": 1}


def test_compile_that_fails_gives_its_lease_up_though_the_error_is_kept(rig: TritonRig) -> None:
    rig.daemon.start()
    rig.told(
        "try:\n    compile_wrong()\nexcept Exception as error:\n    kept = error\ncompile_told()\n"
    )
    assert rig.counts("kernel") == {"failure compile_failed": 1, "miss": 1}


def test_process_without_a_daemon_uses_the_cache_of_triton(rig: TritonRig) -> None:
    alone = {"PTOCACHE_AUTOSTART": "0"}
    assert len(rig.told(**alone)["warnings"]) == 1
    rig.told(**alone)
    assert len(rig.compiles()) == 1
    assert list((rig.place / "triton").rglob("*.cubin"))


def test_daemon_killed_while_a_kernel_is_built_breaks_nothing(rig: TritonRig) -> None:
    rig.daemon.start()
    rig.hold()
    child = rig.start(TOLD, env={"PTOCACHE_AUTOSTART": "0"})
    wait_for(rig.compiles, "ptxas to run")
    rig.daemon.kill()
    rig.let_go()
    told = child.wait().told()
    assert told["elf"]
    assert len(told["warnings"]) == 1
    rig.daemon.start()
    assert rig.told()["cubin"] == told["cubin"]
    assert rig.counts("kernel") == {"miss": 1}


def test_fault_of_ptocache_leaves_the_kernel_to_triton(rig: TritonRig) -> None:
    rig.daemon.start()
    broken = "import ptocache.integrations.triton as t\nt._material = None\n" + TOLD
    assert "goes on in its own way" in rig.told(broken)["warnings"][0]
    assert list((rig.place / "triton").rglob("*.cubin"))
    assert rig.counts("kernel") == {}


def test_remote_backend_shares_the_entries_of_the_manager(warm: TritonRig) -> None:
    warm.told(**REMOTE)
    assert warm.counts("kernel") == {"miss": 1, "memory_hit": 1}
    warm.told("compile_told(size=64)\n", **REMOTE)
    warm.told("compile_told(size=64)\n")
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 2}


def test_single_files_and_dumps_are_those_of_triton(rig: TritonRig) -> None:
    """As Triton's own manager: what was put is found, what was not is not."""
    code = (
        "import ptocache.integrations.triton as t\n"
        "m = t.CacheManager('K')\n"
        "path = m.put(b'so', 'l.so')\n"
        "d = t.CacheManager('K', dump=True).put('ir', 'k.ttir', binary=False)\n"
        "print(json.dumps([m.get_file('l.so') == path, open(path).read(), m.get_file('x'),"
        " t.CacheManager('K').get_file('l.so') == path, open(d).read()]))\n"
    )
    dump = str(rig.place / "dump")
    assert rig.run(code, TRITON_DUMP_DIR=dump).told() == [True, "so", None, True, "ir"]


def test_variable_of_the_hook_breaks_nothing_where_ptocache_was_removed(rig: TritonRig) -> None:
    removed = rig.place / "removed"
    removed.mkdir()
    (removed / "ptocache.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'ptocache'\", name='ptocache')\n"
    )
    from ptocache import integrations

    startup = Path(integrations.__file__).parent / "startup"
    env = rig.env(PYTHONPATH=f"{startup}:{removed}", PTOCACHE_TRITON="1")
    del env["TRITON_CACHE_MANAGER"]
    # Beside a copy of its kernels, from where the ptocache of this checkout is not found first.
    shutil.copy(Path(__file__).with_name("triton_kernels.py"), rig.place)
    code = "from triton_kernels import *\ncompile_told()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=rig.place, check=False, capture_output=True,
        text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ptocache is not installed for") == 1
    assert list((rig.place / "triton").rglob("*.cubin"))


def test_page_of_triton_runs_line_by_line(rig: TritonRig) -> None:
    work = rig.place / "work"
    work.mkdir()
    env = rig.env(PTOCACHE_AUTOSTART="1", PTOCACHE_TRUST_SCRIPTS=str(rig.compiler))
    del env["TRITON_CACHE_MANAGER"]
    try:
        run_page("docs/how-to/triton.md", work, env)
    finally:
        command = Path(sys.executable).with_name("ptocache")
        subprocess.run(
            [command, "stop"], env={**os.environ, **env}, check=True, capture_output=True
        )
    assert len(rig.compiles()) == 1
