"""Real device images: a library of the wheel pto-kernels, which ``make test`` downloads."""

from __future__ import annotations

import sys
import zipfile
from functools import lru_cache
from pathlib import Path

WHEEL = "pto_kernels-0.1.7-cp311-cp311-manylinux_2_34_x86_64.whl"
LIBRARY = "pto_kernels/lib/libno_workspace_kernel.so"
STARTS = (
    0x0, 0x5B810, 0x73098, 0x902C8, 0xB6468, 0x11DE98, 0x1814F8, 0x1E9430, 0x23DC68, 0x2AC938,
    0x312650, 0x38E3A8, 0x418BA0, 0x476EB0, 0x533EC8, 0x8DCDD0, 0x92CC70, 0xA32AA0, 0xA53048,
    0xAB5AD8, 0xAF1680,
)  # fmt: skip
"""Bytes from the start of ``.aicore_binary`` to each of its images; found by their magic numbers."""
SECTION_OFFSET, SECTION_SIZE = 0xC2F978, 12_360_824
"""Where readelf sees ``.aicore_binary``, in bytes from the start of the library."""


def wheel() -> Path:
    """The wheel; fails with what to do if it is not there."""
    places = [Path(sys.prefix, "wheels"), Path(__file__).parents[1] / ".venv" / "wheels"]
    for place in places:
        if (place / WHEEL).is_file():
            return place / WHEEL
    raise AssertionError(f"{WHEEL} is not in {places[0]}: run `make test`, which downloads it")


@lru_cache(maxsize=1)
def library() -> bytes:
    """The library: an x86-64 shared object of 25 MB with 21 device images; read once a process."""
    with zipfile.ZipFile(wheel()) as archive:
        return archive.read(LIBRARY)


def section() -> memoryview:
    """The bytes of its section ``.aicore_binary``."""
    return memoryview(library())[SECTION_OFFSET : SECTION_OFFSET + SECTION_SIZE]


@lru_cache(maxsize=1)
def images() -> tuple[bytes, ...]:
    """The device images, cut out at :data:`STARTS`, not by the reader under test."""
    ends = (*STARTS[1:], SECTION_SIZE)
    return tuple(bytes(section()[start:end]) for start, end in zip(STARTS, ends, strict=True))
