"""Programs on disk: where one is looked for, and the shared libraries that it loads."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ptocache.elf import is_elf, needed_libraries
from ptocache.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ptocache.toolchain import Probe

SHIM_MARK = b"ptocache-shim"
"""In the first bytes of such a launcher; :mod:`ptocache.integrations.wrap` writes it."""
_HEAD_BYTES = 1024
_LOADED = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


def is_program(path: str) -> bool:
    """True for a file that this user may run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_shim(path: str) -> bool:
    """True for a launcher of ptocache itself that stands in a compiler's place (``ptocache shims``)."""
    try:
        with open(path, "rb") as file:
            return SHIM_MARK in file.read(_HEAD_BYTES)
    except OSError:
        return False


def on_path(name: str, path: str) -> Iterable[str]:
    """The places of ``name`` on a PATH, in order; relative folders are none."""
    return [
        os.path.join(folder, name) for folder in path.split(os.pathsep) if os.path.isabs(folder)
    ]


def loaded_libraries(path: str, probe: Probe, env: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Absolute paths of the shared libraries that a program loads, as the dynamic loader itself
    resolves them with the variables of ``env``; none for what is no dynamic program."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if not is_elf(data) or not needed_libraries(data).interpreter:
            return ()
        # The loader's documented way to list instead of run; only for programs that have a loader.
        answer = probe((path,), {**env, "LD_TRACE_LOADED_OBJECTS": "1"})
    except (OSError, ElfError):
        return ()
    found = (match.group(1) for match in _LOADED.finditer(answer.stdout))
    return tuple(dict.fromkeys(item for item in found if os.path.isfile(item)))
