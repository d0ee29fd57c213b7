"""Directories that paths count relative to (``request.base_dirs``): two checkouts, or two virtual environments,
whose prefixes differ share what is the same below them. Pure, except for :func:`canonical`.

A base is known by its position in the setting. In a key, and as the base of a dependency, a path below base
0 is ``<base 0>/include``; in an output, to which compilers write what they are told by
``-ffile-prefix-map``, it is ``base0/include``. The deepest base that holds a path is the one that it counts
from; of two equal ones the first. A base that does not count for a toolchain is an empty text, so that
the others keep their positions.

Everything here compares texts, because that is what compilers do: options and bases are canonical before
they come here, and a path is named as the compiler would open it.
"""

from __future__ import annotations

import os
import re

from .model import ABSOLUTE_BASE, SOURCE_BASE, Dependency

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .model import Bound, Prepared

MOST = 16
"""Most bases of a request."""
KEYED = "base_dirs"
"""Name of the fact in a key that says which bases count, and how they lie to each other."""
_MARK = "<base "
_UNMAPPED = rb"(?<!base[0-9])(?<!base1[0-9])(?<!\.)"


def judged(path: str) -> str:
    """``path``, if it can be a base.

    Raises :class:`ValueError` in words for the user.
    """
    # Two slashes at the begin stay two in its normal form, and would hold nothing.
    if path[:1] != "/" or path[:2] == "//" or os.path.normpath(path) != path or "\0" in path:
        raise ValueError("not an absolute path in its shortest form")
    if path == "/":
        raise ValueError("every path lies below /: name a checkout or a virtual environment")
    if "=" in path:
        raise ValueError("a compiler that maps prefixes cannot be told of a path with =")
    return path


def canonical(paths: Iterable[str]) -> tuple[str, ...]:
    """The bases of a request: links followed, in the order of the setting. One that is not there yet is
    kept: nothing lies below it.

    Raises :class:`ValueError` in words for the user, as :func:`judged` does.
    """
    return tuple(judged(os.path.realpath(path)) for path in paths)


def label(position: int) -> str:
    """What stands for a base in keys and dependencies."""
    return f"{_MARK}{position}>"


def is_label(base: str) -> bool:
    """True for the base of a dependency that was found below a base of its request."""
    return base.startswith(_MARK)


def holds(directory: str, path: str) -> bool:
    """True if ``path`` is that directory or lies below it; a base that does not count holds nothing."""
    return bool(directory) and (path == directory or path.startswith(directory + "/"))


def _holder(path: str, bases: tuple[str, ...]) -> int:
    """Position of the deepest base that holds a path; -1 if none does."""
    found, depth = -1, 0
    for position, base in enumerate(bases):
        if len(base) > depth and holds(base, path):
            found, depth = position, len(base)
    return found


def relative(path: str, bases: tuple[str, ...]) -> tuple[str, str] | None:
    """(label, rest) of a path below a base; ``None`` for any other. The rest of a base itself is empty."""
    position = _holder(path, bases)
    return None if position < 0 else (label(position), path[len(bases[position]) + 1 :])


def named(path: str, bases: tuple[str, ...]) -> str:
    """The path as it enters a key: ``<base 0>/include``, or as it is."""
    found = relative(path, bases)
    return path if found is None else "/".join(found).rstrip("/")


def place(base: str, path: str, source_dir: str, bases: tuple[str, ...] = ()) -> str:
    """The full path of a dependency for who asks from ``source_dir`` with ``bases``; empty if there is no
    such base."""
    if base == ABSOLUTE_BASE:
        return path
    if base == SOURCE_BASE:
        return os.path.join(source_dir, path)
    for position, directory in enumerate(bases):
        if directory and base == label(position):
            # A base may be a file.
            return f"{directory}/{path}" if path else directory
    return ""


def resolved(
    dependencies: Iterable[Dependency], bases: tuple[str, ...]
) -> tuple[Dependency, ...] | None:
    """The dependencies of an entry with the paths of who asks; ``None`` if a compile of theirs would name
    them otherwise: then the entry is no answer.

    So is an absolute path that lies below a base of theirs: what they compile calls it by that base.
    """
    found: list[Dependency] = []
    for item in dependencies:
        if item.base == SOURCE_BASE:
            found.append(item)
            continue
        path = place(item.base, item.path, "", bases)
        if not path or (relative(path, bases) or (ABSOLUTE_BASE, path)) != (item.base, item.path):
            return None
        found.append(Dependency(ABSOLUTE_BASE, path, item.sha256))
    return tuple(found)


def relocatable(
    dependencies: Iterable[Dependency], bases: tuple[str, ...]
) -> tuple[Dependency, ...]:
    """The dependencies of a compile as its entry keeps them; the inverse of :func:`resolved`."""
    found = []
    for item in dependencies:
        inside = relative(item.path, bases) if item.base == ABSOLUTE_BASE else None
        found.append(Dependency(*inside, item.sha256) if inside is not None else item)
    return tuple(found)


def counting(bases: tuple[str, ...], roots: tuple[str, ...]) -> tuple[str, ...]:
    """The bases that count beside a toolchain that has its own places at ``roots``: one that lies in such a
    place does not, because what is there is known as the toolchain's. Empty if none counts."""
    found = tuple("" if any(holds(root, base) for root in roots) else base for base in bases)
    return found if any(found) else ()


def layout(bases: tuple[str, ...], roots: Iterable[str]) -> str:
    """Which bases count, which of them lies in which, and what of a toolchain (``roots``) lies in one: with
    another layout, the same place may get another name in an output."""
    parts = []
    for position, base in enumerate(bases):
        others = tuple(
            other if other != base or number < position else ""
            for number, other in enumerate(bases)
        )
        inside = named(base, others) if base else "-"
        parts.append(f"{position}" if inside == base else f"{position}={inside}")
    below = sorted({named(root, bases) for root in roots if _holder(root, bases) >= 0})
    return " ".join(parts + [f"toolchain={item}" for item in below])


def count(
    prepared: Prepared,
    roots: tuple[str, ...],
    *,
    paths: tuple[int, ...] = (),
    path_lists: tuple[str, ...] = (),
) -> Prepared:
    """The job with the bases that count for it, for a plugin that adds :func:`prefix_maps` to its plan.
    ``paths``: which of its options are paths; ``path_lists``: variables that hold lists of them."""
    bases = counting(prepared.job.bases, roots)
    if not bases:
        return prepared
    facts = (*prepared.keyed, (KEYED, layout(bases, roots)))
    return prepared._replace(bases=bases, paths=paths, path_lists=path_lists, keyed=facts)


def mapped(position: int) -> str:
    """What stands for a base in outputs."""
    return f"base{position}"


def is_named(base: str, text: bytes) -> bool:
    """True if an output or a log names a base. What a compiler mapped, and a relative path, may hold the
    same letters: of ``/src`` they are in ``base0/src``, and in ``../src``."""
    needle = os.fsencode(base)
    return needle in text and re.search(_UNMAPPED + re.escape(needle), text) is not None


def prefix_maps(bases: tuple[str, ...]) -> tuple[str, ...]:
    """The options that have a compiler write mapped names; the deepest base last, since the last wins.

    Source: the GCC manual ("Overall Options", ``-ffile-prefix-map``) and the Clang command line reference.
    """
    known: dict[str, int] = {}
    for position, base in enumerate(bases):
        if base:
            known.setdefault(base, position)
    # Up to the slash: a neighbour whose name begins like a base does not lie in it.
    return tuple(
        f"-ffile-prefix-map={base}/={mapped(known[base])}/" for base in sorted(known, key=len)
    )


def keyed(prepared: Prepared) -> Prepared:
    """A job as its key tells it: paths below a base relative to that, and the layout of the bases."""
    bases = prepared.bases
    if not bases:
        return prepared
    job = prepared.job
    options = list(job.options)
    for number in prepared.paths:
        options[number] = named(options[number], bases)
    env = tuple(
        (name, _named_list(value, bases) if name in prepared.path_lists else value)
        for name, value in job.env
    )
    return prepared._replace(job=job._replace(options=tuple(options), env=env))


def _named_list(text: str, bases: tuple[str, ...]) -> str:
    return os.pathsep.join(named(item, bases) for item in text.split(os.pathsep))


def is_spelled(words: Iterable[str]) -> bool:
    """True if a word holds what stands for a base: then nobody could tell them apart."""
    return any(_MARK in word for word in words)


def everything(bases: tuple[str, ...]) -> Bound:
    """A bond to all bases that count."""
    return tuple((position, base) for position, base in enumerate(bases) if base)


def is_bound_to(bound: Bound, bases: tuple[str, ...]) -> bool:
    """True if what is bound so holds for these bases."""
    return all(position < len(bases) and bases[position] == base for position, base in bound)
