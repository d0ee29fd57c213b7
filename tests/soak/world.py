"""What the soak asks for, and what the right answer to it says.

The simulated tools write into each output all that it depended on, so that an answer can be judged
without compiling: its text must name the source, the headers, the options and the tools as they are now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.simcann import depends_of

KERNELS = 48
ARCHS = ("dav-2201", "dav-3510")
OPTIONS: tuple[tuple[str, ...], ...] = ((), ("-O3",), ("-DTILE=64", "-O3"), ("-DTILE=128",))
HEADERS = 4
_FNV_START, _FNV_PRIME, _FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class Ask(NamedTuple):
    """One request."""

    kernel: int
    options: int
    arch: int
    tree: str
    """Which installation: ``A``, ``B`` or the link ``latest``."""


class State(NamedTuple):
    """What the world is like now."""

    identities: dict[str, str]
    """Tree → what its tools say that they are."""
    headers: tuple[int, ...]
    """Number of each header's present text."""
    latest: str
    """The tree to which the link leads."""


def source(kernel: int) -> bytes:
    """The text of a kernel; it includes one of the headers."""
    return (
        f'#include "tile{kernel % HEADERS}.h"\n#include "kernel_operator.h"\n'
        f'extern "C" __global__ __aicore__ void kernel{kernel}(void *a) {{ /* {kernel} */ }}\n'
    ).encode()


def header(number: int, version: int) -> bytes:
    """The text of a header."""
    return f"#pragma once\n#define TILE{number} {version}\n".encode()


def write_headers(directory: Path, versions: tuple[int, ...]) -> None:
    """Put the headers where the kernels look for them."""
    directory.mkdir(exist_ok=True)
    for number, version in enumerate(versions):
        partial = directory / "part"
        partial.write_bytes(header(number, version))
        partial.rename(directory / f"tile{number}.h")


def material(ask: Ask, state: State) -> dict[str, str]:
    """What a framework says that its finished kernel is made of: it reads the headers itself."""
    number = ask.kernel % HEADERS
    return {
        "source": source(ask.kernel).decode(),
        "options": " ".join(OPTIONS[ask.options]),
        "header": header(number, state.headers[number]).decode(),
    }


def bundle(ask: Ask, state: State) -> dict[str, str]:
    """The files of a finished kernel, which name all that it was made of, the toolchain included."""
    tree = state.latest if ask.tree == "latest" else ask.tree
    made_of = {**material(ask, state), "identity": state.identities[tree], "arch": ARCHS[ask.arch]}
    return {"params.json": json.dumps(made_of), "kernel.so": json.dumps(made_of) * 50}


def wrong(ask: Ask, state: State, data: bytes) -> str:
    """What is wrong with an answer; empty if it is right."""
    tree = state.latest if ask.tree == "latest" else ask.tree
    number = ask.kernel % HEADERS
    lines = depends_of(data).splitlines()
    wanted = [
        f"identity={state.identities[tree]}",
        f"arch={ARCHS[ask.arch]}",
        f"file=k{ask.kernel}.asc fnv={_fnv(source(ask.kernel)):016x}",
        f"file=tile{number}.h fnv={_fnv(header(number, state.headers[number])):016x}",
        *(f"option={word}" for word in OPTIONS[ask.options]),
    ]
    missing = [line for line in wanted if line not in lines]
    foreign = [line for line in lines if line.startswith("identity=") and line != wanted[0]]
    defines = [line for line in lines if line.startswith("option=-DTILE") and line not in wanted]
    return "; ".join([*(f"lacks {line}" for line in missing), *foreign, *defines])


def _fnv(data: bytes) -> int:
    value = _FNV_START
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _FNV_MASK
    return value
