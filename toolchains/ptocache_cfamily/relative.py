"""Base directories (:mod:`ptocache.bases`) beside a compiler of the C family."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from ptocache import bases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptocache.model import Prepared

    from .options import Options

_MAPS = ("-ffile-prefix-map", "-fdebug-prefix-map", "-fmacro-prefix-map", "-fcoverage-prefix-map",
         "-fprofile-prefix-map")  # fmt: skip
# What is packed tells nobody which paths are in it, and a message that is made for programs has quotes and
# backslashes escaped.
_PACKING = ("-flto", "-gz", "-fdiagnostics-format", "-fdiagnostics-add-output", "-fdiagnostics-set-output",
            "-fdiagnostics-parseable-fixits")  # fmt: skip
_NOT_PACKING = frozenset({"-gz=none", "-fdiagnostics-format=text"})


def count(
    prepared: Prepared,
    options: Options,
    own: Iterable[str],
    path_lists: tuple[str, ...],
    *,
    before: int = 0,
) -> Prepared:
    """The job with the bases that count for it. ``own``: the directories that the toolchain brings;
    ``path_lists``: variables that hold lists of directories; ``before``: the words of the job before those
    of ``options``.

    None count for a job that has a prefix map of its own (that is what it asks for), or in which something
    looks like a base already.
    """
    job = prepared.job
    if not job.bases or any(word.startswith(_MAPS) for word in options.all):
        return prepared
    if bases.is_spelled((*job.options, *(value for _, value in job.env))):
        return prepared
    return bases.count(
        prepared,
        _both_spellings(tuple(own)),
        paths=tuple(before + number for number in options.places),
        path_lists=path_lists,
    )


@lru_cache(maxsize=64)
def _both_spellings(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*paths, *map(os.path.realpath, paths))))


def hides_paths(options: Options) -> bool:
    """True if an output may name a path in a form that nobody finds."""
    return any(word.startswith(_PACKING) and word not in _NOT_PACKING for word in options.all)
