"""The demonstration kernels compute what they claim, and their checks notice when they do not."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ptocache_cli import demo_kernels
from ptocache_cli.demo_kernels import KERNELS, DemoKernel, sources

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)

# One statement per kernel whose sign matters to every output element.
MUTATIONS = {
    "vector_add": ("a[i] + b[i]", "a[i] - b[i]"),
    "saxpy": ("* x[i] + y[i]", "* x[i] - y[i]"),
    "softmax": ("lanes[lane] += e", "lanes[lane] -= e"),
    "layer_norm": ("gamma[col] + beta", "gamma[col] - beta"),
    "gemm": ("sums[i][j] += scale", "sums[i][j] -= scale"),
    "conv1d": ("sums[t] += weight", "sums[t] -= weight"),
}

# The last statement in each kernel that stores an output element, to spoil what it stores.
STORES = {
    "vector_add": "out[i] = ",
    "saxpy": "y[i] = ",
    "softmax": "target[col] *= ",
    "layer_norm": "target[col] = ",
    "gemm": "c[(row + i) * n + col + j] = ",
    "conv1d": "out[t] = ",
}


def run_cc(source: Path, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["cc", "-O3", "-shared", "-fPIC", *flags, "-I", str(sources())]
    command += [str(source), "-o", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(source: Path, folder: Path, tile: int, *flags: str) -> ctypes.CDLL:
    # The loader returns the old library when a path is opened again, hence a name per build.
    output = folder / f"{source.stem}-{tile}.so"
    result = run_cc(source, output, f"-DTILE={tile}", *flags)
    assert result.returncode == 0, result.stderr
    return ctypes.CDLL(str(output))


def mutant(kernel: DemoKernel, folder: Path, old: str, new: str) -> ctypes.CDLL:
    """A build of `kernel` whose source has `new` for every `old`."""
    text = (sources() / kernel.source).read_text(encoding="utf-8")
    assert old in text
    path = folder / f"mutant_{kernel.source}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return build(path, folder, kernel.tiles[0])


def test_there_are_enough_compiles_and_no_two_alike() -> None:
    jobs = [(kernel.source, tile) for kernel in KERNELS for tile in kernel.tiles]
    assert len(jobs) >= 24
    assert len(set(jobs)) == len(jobs)


def test_sources_hold_exactly_the_kernels_and_the_header() -> None:
    found = {path.name for path in sources().iterdir() if path.suffix in {".c", ".h"}}
    assert found == {kernel.source for kernel in KERNELS} | {"tile.h"}


def test_an_edit_of_the_header_concerns_some_kernels_and_not_others() -> None:
    including = {
        kernel.name
        for kernel in KERNELS
        if '#include "tile.h"' in (sources() / kernel.source).read_text(encoding="utf-8")
    }
    assert including == {"saxpy", "softmax", "layer_norm", "gemm", "conv1d"}


@pytest.mark.parametrize("path", sorted(sources().glob("*.[ch]")), ids=lambda path: path.name)
def test_the_output_depends_on_the_sources_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"__DATE__|__TIME__|__TIMESTAMP__|__FILE__", text)


@needs_cc
@each_kernel
def test_every_tile_size_is_right(kernel: DemoKernel, tmp_path: Path) -> None:
    for tile in kernel.tiles:
        library = build(sources() / kernel.source, tmp_path, tile)
        assert kernel.check(library, tile), f"{kernel.name} is wrong with TILE={tile}"


@needs_cc
@each_kernel
@pytest.mark.parametrize("tile", [1, 3, 4096], ids=lambda tile: f"tile{tile}")
def test_odd_tile_sizes_are_right(kernel: DemoKernel, tile: int, tmp_path: Path) -> None:
    if kernel.name == "gemm":
        tile = min(tile, 128)  # The block of sums is on the stack: TILE * TILE * 4 bytes.
    assert kernel.check(build(sources() / kernel.source, tmp_path, tile), tile)


@needs_cc
@each_kernel
def test_sources_are_strict_c11_without_warnings(kernel: DemoKernel, tmp_path: Path) -> None:
    flags = ("-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Wconversion", "-DTILE=16")
    result = run_cc(sources() / kernel.source, tmp_path / "strict.so", *flags)
    assert (result.returncode, result.stderr) == (0, "")


@needs_cc
@each_kernel
@pytest.mark.parametrize("flags", [(), ("-DTILE=0",)], ids=["missing", "zero"])
def test_a_tile_size_is_required(
    kernel: DemoKernel, flags: tuple[str, ...], tmp_path: Path
) -> None:
    result = run_cc(sources() / kernel.source, tmp_path / "bad.so", *flags)
    assert result.returncode != 0
    assert "TILE" in result.stderr


@needs_cc
@each_kernel
def test_a_wrong_sign_is_noticed(kernel: DemoKernel, tmp_path: Path) -> None:
    library = mutant(kernel, tmp_path, *MUTATIONS[kernel.name])
    assert kernel.check(library, kernel.tiles[0]) is False


@needs_cc
@each_kernel
def test_nan_is_noticed(kernel: DemoKernel, tmp_path: Path) -> None:
    store = STORES[kernel.name]
    library = mutant(kernel, tmp_path, store, f"{store}(0.0f / 0.0f) * ")
    assert kernel.check(library, kernel.tiles[0]) is False


@needs_cc
@each_kernel
def test_a_function_that_does_nothing_is_noticed(kernel: DemoKernel, tmp_path: Path) -> None:
    path = tmp_path / "idle.c"
    path.write_text(f"void {kernel.symbol}(void) {{}}\n", encoding="utf-8")
    assert kernel.check(build(path, tmp_path, 1), kernel.tiles[0]) is False


@needs_cc
@each_kernel
def test_the_library_of_another_kernel_is_noticed(kernel: DemoKernel, tmp_path: Path) -> None:
    other = KERNELS[(KERNELS.index(kernel) + 1) % len(KERNELS)]
    library = build(sources() / other.source, tmp_path, other.tiles[0])
    assert kernel.check(library, kernel.tiles[0]) is False


@needs_cc
def test_a_write_past_the_end_is_noticed(tmp_path: Path) -> None:
    kernel = KERNELS[0]
    library = mutant(kernel, tmp_path, "i < count", "i < count + (count != TILE)")
    assert kernel.check(library, kernel.tiles[0]) is False


@needs_cc
@each_kernel
def test_a_failed_check_does_not_spoil_the_next(kernel: DemoKernel, tmp_path: Path) -> None:
    path = tmp_path / "vandal.c"
    # The first array is the first argument of pointer type; overwrite its first element.
    parameters = "float alpha, float *x" if kernel.name == "saxpy" else "float *x"
    path.write_text(f"void {kernel.symbol}({parameters}) {{ x[0] = 1e9f; }}\n", encoding="utf-8")
    tile = kernel.tiles[0]
    assert kernel.check(build(path, tmp_path, 1), tile) is False
    assert kernel.check(build(sources() / kernel.source, tmp_path, tile), tile)


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_the_reference_is_computed_once_and_fast(name: str) -> None:
    case = getattr(demo_kernels, f"_{name}_case")
    case.cache_clear()
    start = time.process_time()
    first = case()
    # Far above the usual few milliseconds, to hold on a busy machine as well.
    assert time.process_time() - start < 0.5
    assert case() is first
