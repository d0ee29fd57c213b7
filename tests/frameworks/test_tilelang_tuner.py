"""TileLang's autotuner: results from its own cache, and kernels of the present toolchain from ptocache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness import wait_for

if TYPE_CHECKING:
    from tests.frameworks.rig import Rig

TUNED = (
    "from tests.frameworks.tilelang_kernels import tuned\n"
    "kernel = tuned(64)\n"
    "tell(config=kernel.config, latency=kernel.latency, right=is_step(kernel, 2), tuned=len(timed))\n"
)
TOLD = {"config": {"step": 2}, "latency": 0.5, "right": True}


def told(rig: Rig, *, tuned: int, code: str = TUNED, **env: str) -> None:
    """Tune, or load what was tuned; so many configurations must have been timed for it."""
    found = rig.run("from tests.frameworks.tilelang_kernels import is_step, timed\n" + code, **env)
    assert found.told() == {**TOLD, "tuned": tuned}


@pytest.fixture
def warm(rig: Rig) -> Rig:
    """A rig in which the two configurations were compiled and timed."""
    rig.daemon.start()
    told(rig, tuned=2)
    assert (len(rig.compiles()), rig.counts("kernel")) == (2, {"miss": 2})
    return rig


def test_result_is_that_of_the_tuner_and_its_kernel_that_of_ptocache(warm: Rig) -> None:
    told(warm, tuned=0)
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


def test_result_is_the_same_in_the_same_process(warm: Rig) -> None:
    code = TUNED.replace("tell(", "assert tuned(64) is kernel\ntell(")
    told(warm, tuned=0, code=code)
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


def test_kernel_of_an_old_result_is_compiled_by_the_present_toolchain(warm: Rig) -> None:
    warm.write_compiler("-DANOTHER")
    told(warm, tuned=0)
    assert len(warm.compiles()) == 3
    assert warm.counts("kernel") == {"miss": 3}


def test_flags_that_the_tuners_key_lacks_make_another_kernel(warm: Rig) -> None:
    code = (
        "from tests.frameworks import tilelang_kernels as all\n"
        "all.tuned.jit_impl.compile_flags = ['-DONE']\n"
    )
    told(warm, tuned=0, code=code + TUNED)
    assert "-DONE" in warm.compiles()[-1]
    assert warm.counts("kernel") == {"miss": 3}


def test_without_a_daemon_the_kernel_of_a_result_is_compiled(warm: Rig) -> None:
    warm.daemon.stop()
    told(warm, tuned=0)
    assert len(warm.compiles()) == 3


def test_daemon_that_is_killed_while_configurations_are_built_breaks_nothing(rig: Rig) -> None:
    rig.daemon.start()
    rig.hold()
    child = rig.start("from tests.frameworks.tilelang_kernels import is_step, timed\n" + TUNED)
    wait_for(rig.compiles, "a configuration to be compiled")
    rig.daemon.kill()
    rig.let_go()
    assert child.wait().told() == {**TOLD, "tuned": 2}
    rig.daemon.start()
    told(rig, tuned=0)
    assert rig.counts("kernel") == {"miss": 1}


def test_result_whose_kernel_cannot_be_compiled_any_more_is_tuned_anew(warm: Rig) -> None:
    code = (
        "from tests.frameworks import tilelang_kernels as all\n"
        "import ptocache.integrations.tilelang_tuner as own\n"
        "def broken(*args):\n    raise RuntimeError('no longer')\n"
        "own._compiled = broken\n"
    )
    told(warm, tuned=2, code=code + TUNED)


@pytest.mark.parametrize("file", ["best_config.json", "latency.json"])
def test_result_that_is_not_whole_is_tuned_anew(warm: Rig, file: str) -> None:
    (found,) = (warm.place / "tilelang").rglob(file)
    found.write_text("{")
    told(warm, tuned=2)


def test_switches_of_tilelang_are_respected(warm: Rig) -> None:
    told(warm, tuned=2, TILELANG_AUTO_TUNING_DISABLE_CACHE="1")
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 2}
    told(warm, tuned=2, TILELANG_DISABLE_CACHE="1")
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 2}
