"""The demonstration kernels: what to compile, and how to tell that a result is right.

Each kernel is one C11 file in `sources()`, built once for every tile size in `DemoKernel.tiles`
with ``-DTILE=n``.  `DemoKernel.check` runs a loaded build and compares it with a reference in
plain Python, so that a cache which hands out the wrong object does not pass unnoticed.

All arrays are float32, row-major and dense; references are computed in double precision from the
same float32 inputs.
"""

from __future__ import annotations

import ctypes
import math
import random
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

_F32 = ctypes.c_float
_F32_POINTER = ctypes.POINTER(_F32)
_SIZE = ctypes.c_size_t

_SEED = 20240229

# Elements behind each output that a kernel must leave alone, and their value.
_GUARD_ELEMENTS = 64
_GUARD = -12345.0

# Along an axis that is tiled the extent is a prime above the largest tile, so that every build runs
# both its full tiles and its code for the remainder.
_VECTOR_SIZE = 2083
_ROWS, _COLS = 7, 151
_GEMM_M, _GEMM_N, _GEMM_K = 37, 41, 43
_CONV_CHANNELS_IN, _CONV_CHANNELS_OUT, _CONV_SAMPLES, _CONV_TAPS = 3, 5, 313, 7

# Both are float32 numbers, so that C and Python work with the same value.
_ALPHA = 1.75
_EPSILON = 2.0**-17


class DemoKernel(NamedTuple):
    """One kernel of the demonstration."""

    name: str
    """Short name for reports."""
    source: str
    """File name of the C source in `sources()`."""
    symbol: str
    """Name of the one function it exports."""
    tiles: tuple[int, ...]
    """Tile sizes to build, in elements."""
    check: Callable[[ctypes.CDLL, int], bool]
    """``check(library, tile)``: whether a build with that tile size computes the right result.

    False also when the library lacks the symbol, writes out of bounds or yields NaN.
    """


class _Case(NamedTuple):
    """Inputs of a kernel and what it has to make of them.

    The leading axis of the output has ``items`` items, and a run on the first ``n`` of them has to
    yield the first ``n`` items of ``expected``.
    """

    inputs: tuple[array[float], ...]
    initial: array[float] | None
    """Output before the call, for kernels that work in place; else None."""
    expected: list[float]
    items: int
    rtol: float
    atol: float


_Run = Callable[
    [Callable[..., None], Sequence["ctypes.Array[_F32]"], "ctypes.Array[_F32]", int], None
]


def sources() -> Path:
    """Folder with the C sources and the header that they share."""
    return Path(__file__).resolve().parent / "kernels"


def _uniform(name: str, count: int, low: float = -1.0, high: float = 1.0) -> array[float]:
    """`count` float32 numbers between `low` and `high`, always the same for a `name`."""
    generator = random.Random(f"{_SEED} {name}")
    return array("f", (generator.uniform(low, high) for _ in range(count)))


def _rows(values: Sequence[float], cols: int) -> list[Sequence[float]]:
    """The rows of a row-major matrix, each of shape (cols,)."""
    return [values[start : start + cols] for start in range(0, len(values), cols)]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(mul, a, b))


def _close(actual: Sequence[float], expected: Sequence[float], case: _Case) -> bool:
    # Written so that NaN, for which every comparison is false, counts as a difference.
    return all(
        abs(a - e) <= case.atol + case.rtol * abs(e) for a, e in zip(actual, expected, strict=True)
    )


def _copy(values: array[float]) -> ctypes.Array[_F32]:
    return (_F32 * len(values)).from_buffer_copy(values)


def _verify(
    library: ctypes.CDLL, symbol: str, argtypes: Sequence[Any], tile: int, case: _Case, run: _Run
) -> bool:
    """Run a kernel on nothing, on one tile and on the whole of `case`; whether all is right."""
    try:
        function = library[symbol]
    except AttributeError:
        return False
    function.argtypes = list(argtypes)
    function.restype = None

    width = len(case.expected) // case.items
    for items in (0, min(tile, case.items), case.items):
        size = items * width
        # An element that is not written stays NaN, which differs from any expected value.
        output = case.initial[:size] if case.initial else array("f", [math.nan]) * size
        output.extend([_GUARD] * _GUARD_ELEMENTS)
        buffer = _copy(output)
        # Copies: a faulty kernel that writes to its inputs must not spoil the memoised ones.
        run(function, [_copy(values) for values in case.inputs], buffer, items)
        if not _close(buffer[:size], case.expected[:size], case):
            return False
        if buffer[size:] != [_GUARD] * _GUARD_ELEMENTS:
            return False
    return True


@cache
def _vector_add_case() -> _Case:
    """a, b -> out, each of shape (n,)."""
    a = _uniform("vector_add a", _VECTOR_SIZE)
    b = _uniform("vector_add b", _VECTOR_SIZE)
    expected = [x + y for x, y in zip(a, b, strict=True)]
    return _Case((a, b), None, expected, _VECTOR_SIZE, rtol=1e-6, atol=0.0)


def _check_vector_add(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32_POINTER, _F32_POINTER, _F32_POINTER, _SIZE)
    return _verify(
        library,
        "vector_add",
        argtypes,
        tile,
        _vector_add_case(),
        lambda function, inputs, out, items: function(*inputs, out, items),
    )


@cache
def _saxpy_case() -> _Case:
    """x, y -> y, each of shape (n,)."""
    x = _uniform("saxpy x", _VECTOR_SIZE)
    y = _uniform("saxpy y", _VECTOR_SIZE)
    expected = [_ALPHA * u + v for u, v in zip(x, y, strict=True)]
    # Absolute: the product is rounded before a sum that may cancel.
    return _Case((x,), y, expected, _VECTOR_SIZE, rtol=1e-6, atol=1e-6)


def _check_saxpy(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32, _F32_POINTER, _F32_POINTER, _SIZE)
    return _verify(
        library,
        "saxpy",
        argtypes,
        tile,
        _saxpy_case(),
        lambda function, inputs, out, items: function(_ALPHA, *inputs, out, items),
    )


@cache
def _softmax_case() -> _Case:
    """Maps x to out, both of shape (rows, cols)."""
    # The last rows overflow, or vanish, unless the maximum is subtracted first.
    x = _uniform("softmax x", _ROWS * _COLS, -6.0, 6.0)
    for index in range(len(x)):
        row = index // _COLS
        x[index] += 200.0 * (row == _ROWS - 1) - 200.0 * (row == _ROWS - 2)
    expected: list[float] = []
    for row_values in _rows(x, _COLS):
        top = max(row_values)
        powers = [math.exp(value - top) for value in row_values]
        total = math.fsum(powers)
        expected.extend(power / total for power in powers)
    return _Case((x,), None, expected, _ROWS, rtol=1e-5, atol=1e-9)


def _check_softmax(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32_POINTER, _F32_POINTER, _SIZE, _SIZE)
    return _verify(
        library,
        "softmax",
        argtypes,
        tile,
        _softmax_case(),
        lambda function, inputs, out, items: function(*inputs, out, items, _COLS),
    )


@cache
def _layer_norm_case() -> _Case:
    """Maps x (rows, cols), gamma (cols,), beta (cols,) to out (rows, cols)."""
    # Off-centre, so that a variance that forgets the mean does not pass.
    x = _uniform("layer_norm x", _ROWS * _COLS, -1.0, 4.0)
    gamma = _uniform("layer_norm gamma", _COLS, 0.5, 1.5)
    beta = _uniform("layer_norm beta", _COLS)
    expected: list[float] = []
    for row in _rows(x, _COLS):
        mean = math.fsum(row) / _COLS
        variance = math.fsum((value - mean) ** 2 for value in row) / _COLS
        scale = 1.0 / math.sqrt(variance + _EPSILON)
        expected.extend(
            (value - mean) * scale * g + b for value, g, b in zip(row, gamma, beta, strict=True)
        )
    return _Case((x, gamma, beta), None, expected, _ROWS, rtol=1e-5, atol=1e-5)


def _check_layer_norm(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32_POINTER, _F32_POINTER, _F32_POINTER, _F32_POINTER, _SIZE, _SIZE, _F32)
    return _verify(
        library,
        "layer_norm",
        argtypes,
        tile,
        _layer_norm_case(),
        lambda function, inputs, out, items: function(*inputs, out, items, _COLS, _EPSILON),
    )


@cache
def _gemm_case() -> _Case:
    """Maps a (m, k), b (k, n) to c (m, n)."""
    a = _uniform("gemm a", _GEMM_M * _GEMM_K)
    b = _uniform("gemm b", _GEMM_K * _GEMM_N)
    columns = [b[col::_GEMM_N] for col in range(_GEMM_N)]
    expected = [_dot(row, column) for row in _rows(a, _GEMM_K) for column in columns]
    return _Case((a, b), None, expected, _GEMM_M, rtol=1e-5, atol=1e-5)


def _check_gemm(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32_POINTER, _F32_POINTER, _F32_POINTER, _SIZE, _SIZE, _SIZE)
    return _verify(
        library,
        "gemm",
        argtypes,
        tile,
        _gemm_case(),
        lambda function, inputs, out, items: function(*inputs, out, items, _GEMM_N, _GEMM_K),
    )


@cache
def _conv1d_case() -> _Case:
    """Maps x (in, samples + taps - 1), weights (out, in, taps), bias (out,) to out."""
    length = _CONV_SAMPLES + _CONV_TAPS - 1
    x = _uniform("conv1d x", _CONV_CHANNELS_IN * length)
    weights = _uniform("conv1d weights", _CONV_CHANNELS_OUT * _CONV_CHANNELS_IN * _CONV_TAPS)
    bias = _uniform("conv1d bias", _CONV_CHANNELS_OUT)
    channels = _rows(x, length)
    windows = [
        [value for channel in channels for value in channel[start : start + _CONV_TAPS]]
        for start in range(_CONV_SAMPLES)
    ]
    filters = _rows(weights, _CONV_CHANNELS_IN * _CONV_TAPS)
    expected = [
        offset + _dot(taps, window)
        for taps, offset in zip(filters, bias, strict=True)
        for window in windows
    ]
    return _Case((x, weights, bias), None, expected, _CONV_CHANNELS_OUT, rtol=1e-5, atol=1e-5)


def _check_conv1d(library: ctypes.CDLL, tile: int) -> bool:
    argtypes = (_F32_POINTER, _F32_POINTER, _F32_POINTER, _F32_POINTER, *[_SIZE] * 4)
    length = _CONV_SAMPLES + _CONV_TAPS - 1
    return _verify(
        library,
        "conv1d",
        argtypes,
        tile,
        _conv1d_case(),
        lambda function, inputs, out, items: function(
            *inputs, out, _CONV_CHANNELS_IN, items, length, _CONV_TAPS
        ),
    )


KERNELS: tuple[DemoKernel, ...] = (
    DemoKernel("vector_add", "vector_add.c", "vector_add", (16, 64, 256, 1024), _check_vector_add),
    DemoKernel("saxpy", "saxpy.c", "saxpy", (16, 64, 256, 1024), _check_saxpy),
    DemoKernel("softmax", "softmax.c", "softmax", (8, 16, 32, 64), _check_softmax),
    DemoKernel("layer_norm", "layer_norm.c", "layer_norm", (8, 16, 32, 64), _check_layer_norm),
    DemoKernel("gemm", "gemm.c", "gemm", (4, 8, 16, 32), _check_gemm),
    DemoKernel("conv1d", "conv1d.c", "conv1d", (16, 32, 64, 128), _check_conv1d),
)
"""Every kernel of the demonstration, cheapest first."""
