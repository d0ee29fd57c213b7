# mypy: ignore-errors
# ruff: noqa: N803, N812
"""Kernels for TileLang, and what tests do with them in processes of their own.

The kernels have what a compiler and a cache see of real ones: several sizes, flags, outputs.
"""

import json
import warnings

import tilelang
import tilelang.ascend.language as A
import tilelang.language as T
import torch


def add(size=256, factor=1.0):
    """``C = A + factor * B`` for the CPU."""

    def add_c(
        A: T.Tensor((size,), "float32"),
        B: T.Tensor((size,), "float32"),
        C: T.Tensor((size,), "float32"),
    ):
        with T.Kernel(1):
            for i in T.serial(size):
                C[i] = A[i] + B[i] * T.float32(factor)

    return T.prim_func(add_c)


def add_ascend(size=256):
    """``C = A + B`` for the vector core."""

    def add_npu(
        X: A.Tensor((size,), "float32"),
        Y: A.Tensor((size,), "float32"),
        Z: A.Tensor((size,), "float32"),
    ):
        with A.Kernel(1):
            x = A.alloc_shared((size,), "float32")
            y = A.alloc_shared((size,), "float32")
            A.copy(X, x)
            A.copy(Y, y)
            with A.SimdVF():
                for i in A.Parallel(size):
                    x[i] = x[i] + y[i]
            A.copy(x, Z)

    return A.prim_func(add_npu)


def is_right(kernel, size=256, factor=1.0):
    """True if a kernel of :func:`add` computes what it should."""
    a, b, c = torch.rand(size), torch.rand(size), torch.zeros(size)
    kernel(a, b, c)
    return bool(torch.allclose(c, a + factor * b))


def compile_c(size=256, factor=1.0, **more):
    """A kernel of :func:`add`, which must be right."""
    kernel = tilelang.compile(add(size, factor), target="c", **more)
    assert is_right(kernel, size, factor)
    return kernel


def compile_npu(size=256, **more):
    """A kernel of :func:`add_ascend`, and the device image in its library."""
    return tilelang.compile(add_ascend(size), target="ascend", **more)


timed = []
"""What the tuner has timed."""


def _time(self, jit_kernel, **more):
    """In the place of a device's clock: the kernel with the larger step is the quicker one."""
    timed.append(jit_kernel)
    return (0.5 if is_step(jit_kernel, 2) else 1.0), None


@tilelang.autotune(configs=[{"step": 1}, {"step": 2}], warmup=1, rep=1)
@tilelang.jit(target="c")
def tuned(size, step=1):
    """``C = A + step``, tuned."""

    @T.prim_func
    def main(A: T.Tensor((size,), "float32"), C: T.Tensor((size,), "float32")):
        with T.Kernel(1):
            for i in T.serial(size):
                C[i] = A[i] + T.float32(step)

    return main


def is_step(kernel, step, size=64):
    """True if a kernel of :func:`tuned` adds ``step``."""
    a, c = torch.rand(size), torch.zeros(size)
    kernel(a, c)
    return bool(torch.allclose(c, a + step))


tilelang.autotuner.tuner.AutoTuner._benchmark_target = _time


def install():
    """ptocache, by hand."""
    import ptocache.integrations.tilelang

    ptocache.integrations.tilelang.install()


def tell(**facts):
    """The last line of a program: what its test looks at."""
    print(json.dumps(facts))


class Warned:
    """Collects the warnings of a block."""

    def __enter__(self):
        self._catch = warnings.catch_warnings(record=True)
        self._list = self._catch.__enter__()
        warnings.simplefilter("always")
        self.texts = []
        return self

    def __exit__(self, *exc):
        self.texts += [str(item.message) for item in self._list if "ptocache" in str(item.message)]
        return self._catch.__exit__(*exc)
