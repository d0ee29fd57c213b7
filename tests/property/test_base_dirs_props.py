"""Whatever two checkouts ask in turn, each gets what a compile in its own place makes, byte for byte."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkouts import Checkout, made
from tests.property import tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness import DaemonProcess

EXAMPLES = int(os.environ.get("PTOCACHE_BASES_EXAMPLES", "8"))
FOLDERS = ("A", "A-inc", "inc", "sys")
SPOTS = tuple(f"{folder}/{name}" for folder in FOLDERS for name in ("a.h", "b.h", "opt.h"))
HEADERS = ("file", "file", "warn", "warn", "plain", "quote", "angle", "next", "has", "macro quote")
"""Twice what shows where it lies."""
SOURCES = (
    "quote", "angle", "angle", "both", "has", "macro quote", "file", "up", "warning", "error", "absolute",
    "absolute", "option",
)  # fmt: skip
LINES = '#line 9 "{base}/inc/a.h"\nconst char *line_k = __FILE__;\n'
OPTIONS = (
    ("-I", "inc", "-isystem", "sys"),
    ("-I", "A-inc", "-I", "inc", "-idirafter", "sys"),
    ("-iquote", "sys", "-I", "A", "-I", "inc"),
    ("-isystem", "inc", "-isystem", "A-inc"),
)
EXTRAS = (
    (),
    ("-g",),
    ("-Wall", "-g"),
    ("-include", "inc/b.h"),
    ('-DPICK="b.h"',),
    ("-DPICK=<a.h>",),
)
BASES = (("",), ("", "sys"), ("sys", ""), ("sys",), ("inc", "gone"))
PLACES = ("one", "u/two/deeper place")


class Write(NamedTuple):
    """A header gets another text in some of the checkouts; an empty kind removes it."""

    spot: str
    kind: str
    number: int
    where: tuple[int, ...]


class Ask(NamedTuple):
    """A checkout compiles."""

    who: int
    kind: str
    line: bool
    options: tuple[str, ...]


WRITES = st.builds(
    Write,
    st.sampled_from(SPOTS),
    st.sampled_from(("", *HEADERS)),
    st.integers(0, 2),
    st.sampled_from(((0, 1), (0, 1), (0,), (1,))),
)
ASKS = st.builds(
    lambda kind, line, options, extras: (kind, line, (*options, *extras)),
    st.sampled_from(SOURCES),
    st.sampled_from((False, False, True)),
    st.sampled_from(OPTIONS),
    st.sampled_from(EXTRAS),
)

LAYOUTS = st.one_of(
    st.sampled_from([(names, names) for names in BASES]),
    st.tuples(st.sampled_from(BASES), st.sampled_from(BASES)),
)
"""With the same one, checkouts share."""


@st.composite
def histories(draw: st.DrawFn) -> list[Write | Ask]:
    """Writes, each of some of a few compiles by both checkouts between them."""
    asked = draw(st.lists(ASKS, min_size=2, max_size=3))
    steps: list[Write | Ask] = []
    for _ in range(draw(st.integers(2, 3))):
        steps += draw(st.lists(WRITES, min_size=1, max_size=4))
        order = draw(st.sampled_from(((0, 1), (1, 0))))
        steps += [Ask(who, *words) for words in asked for who in order]
    return steps


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bases=LAYOUTS, steps=histories())
def test_an_answer_is_what_a_compile_in_the_asking_checkout_makes(
    bases: tuple[tuple[str, ...], tuple[str, ...]],
    steps: list[Write | Ask],
    shared_daemon: DaemonProcess,
    tmp_path: Path,
) -> None:
    checkouts = []
    for name, names in zip(PLACES, bases, strict=True):
        place = tmp_path / name
        shutil.rmtree(place, ignore_errors=True)
        where = [place / item for item in names]
        checkouts.append(Checkout(place, shared_daemon, *where, source_dir="A"))
        for spot, number in zip(SPOTS, itertools.count()):
            if not spot.endswith("opt.h"):
                checkouts[-1].write(spot, tree.header(spot, "file", number).decode())
    for step in steps:
        if isinstance(step, Write):
            _write([checkouts[number] for number in step.where], step)
        else:
            _ask(checkouts[step.who], step, checkouts[0].place, tmp_path / "direct")
    for checkout in checkouts:
        checkout.client.close()


def _write(checkouts: list[Checkout], step: Write) -> None:
    for checkout in checkouts:
        if step.kind:
            checkout.write(step.spot, tree.header(step.spot, step.kind, step.number).decode())
        else:
            (checkout.place / step.spot).unlink(missing_ok=True)


def _ask(checkout: Checkout, step: Ask, first: Path, scratch: Path) -> None:
    line = LINES.format(base=first) if step.line else ""
    source = tree.source(step.kind, 0, first).decode() + line
    options = tuple(
        f"{{here}}/{word}" if word.split("/")[0] in FOLDERS else word for word in step.options
    )
    found = checkout.ask(source, options)
    assert made(found) == checkout.direct(source, options, scratch), (step, found.outcome)
