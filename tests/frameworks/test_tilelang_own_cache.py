"""What TileLang promises of its cache, with ptocache in its place: which kernels are kept apart."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.frameworks.zygote import Zygote


@pytest.fixture(scope="module")
def served(zygote: Zygote, memo: Path) -> Iterator[Rig]:
    """A rig whose daemon has the kernel."""
    found = Rig(zygote, memo)
    assert found.cann
    found.daemon.start()
    found.build("compile_c()\n")
    yield found
    found.close()
    shutil.rmtree(found.place, ignore_errors=True)


def outcomes(rig: Rig, before: dict[str, int]) -> dict[str, int]:
    after = rig.counts("kernel")
    return {
        name: after[name] - before.get(name, 0)
        for name in after
        if after[name] != before.get(name, 0)
    }


OUT = (
    "kernel = tilelang.compile(add(), target='c', out_idx=[2])\n"
    "a = torch.rand(256)\n"
    "assert torch.allclose(kernel(a, a), 2 * a)\n"
)
OTHER = {
    "size": "compile_c(512)\n",
    "constant": "compile_c(factor=3.0)\n",
    "outputs": OUT,
    "pass configuration": "compile_c(pass_configs={'tl.disable_vectorize_256': True})\n",
    "value in the pass configuration": "compile_c(pass_configs={'tl.config_index_bitwidth': 64})\n",
    "compile flags": "compile_c(compile_flags=['-DONE'])\n",
    "order of compile flags": "compile_c(compile_flags=['-DTWO', '-DONE'])\n",
    "target": "compile_npu()\n",
}
SAME = {
    "another process": "compile_c()\n",
    "the default said": "compile_c(factor=1.0, execution_backend='cython')\n",
    "the decorator": "assert is_right(tilelang.jit(add, target='c')(256, 1.0))\n",
    "several at once": (
        "first, second = tilelang.par_compile([add(), add()], target='c')\n"
        "assert is_right(first) and is_right(second)\n"
    ),
}


@pytest.mark.parametrize("what", OTHER)
def test_kernel_that_differs_is_another_one(served: Rig, what: str) -> None:
    before = served.counts("kernel")
    code = "import torch\n" + OTHER[what]
    served.build(code)
    assert outcomes(served, before) == {"miss": 1}
    served.build(code)
    assert outcomes(served, before) == {"miss": 1, "memory_hit": 1}


@pytest.mark.parametrize("what", SAME)
def test_kernel_that_is_the_same_is_found(served: Rig, what: str) -> None:
    before = served.counts("kernel")
    served.build(SAME[what])
    assert set(outcomes(served, before)) <= {"memory_hit", "joined"}


def test_cached_kernel_is_what_the_memory_of_tilelang_knows(served: Rig) -> None:
    served.build(
        "from tilelang.cache import _dispatch_map\n"
        "first, other = compile_c(), compile_c(512)\n"
        "memory = _dispatch_map['cython']._memory_cache\n"
        "assert memory[first._tilelang_cache_key] is first\n"
        "assert memory[other._tilelang_cache_key] is other and other is not first\n"
        "assert os.path.isdir(first._tilelang_cache_path)\n"
    )
