"""One pass over the demonstration kernels: compile or get each, load it, run it, check it."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache import launch
from ptocache.outcome import Outcome

from . import screen
from .demo_kernels import KERNELS, DemoKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client
    from ptocache.result import Result

_NATIVE = {"x86_64": ("-march=native",), "aarch64": ("-march=native",)}
OPTIONS = ("-O3", *_NATIVE.get(platform.machine(), ()))


class Run(NamedTuple):
    """How a pass went; plain values, so that it travels as JSON."""

    kernels: int
    options: list[str]
    seconds: float
    """From the first question to the last answer, without loading and checking."""
    outcomes: dict[str, int]
    """Outcome → how many."""
    saved_ms: int
    """Compile time that hits did not pay for."""
    wrong: list[str]
    """The kernels whose result is not right."""
    reasons: list[str]
    """Why something was not stored."""


class _Job(NamedTuple):
    kernel: DemoKernel
    tile: int

    def __str__(self) -> str:
        return f"{self.kernel.name} TILE={self.tile}"


def jobs() -> list[_Job]:
    """What a pass compiles."""
    return [_Job(kernel, tile) for kernel in KERNELS for tile in kernel.tiles]


def run(client: Client, sources: str, advance: Callable[[str], None] = lambda _: None) -> Run:
    """Do one pass with the sources in that directory; ``advance`` is told each finished compile.

    Raises what a failed compile was, after replaying what the compiler said.
    """
    wanted = jobs()
    started_s = time.perf_counter()
    asked = [_ask(client, job, sources) for job in wanted]
    results: dict[int, Result] = {}
    for number, result in client.compile_many(asked, progress=False):
        results[number] = result
        advance(str(wanted[number]))
    seconds = time.perf_counter() - started_s
    for result in results.values():
        if not result.ok:
            screen.replay(result.log.stderr, sys.stderr)
        result.check()
    outcomes = Counter(result.outcome for result in results.values())
    return Run(
        kernels=len(wanted),
        options=list(OPTIONS),
        seconds=round(seconds, 6),
        outcomes={outcome.label: outcomes[outcome] for outcome in Outcome},
        saved_ms=sum(r.compile_ms for r in results.values() if r.outcome.is_hit),
        wrong=[str(job) for n, job in enumerate(wanted) if not _is_right(job, results[n])],
        reasons=sorted({r.why for r in results.values() if r.outcome is Outcome.BYPASS}),
    )


def _ask(client: Client, job: _Job, sources: str) -> Any:
    return client.job(
        "host",
        {job.kernel.source: Path(sources, job.kernel.source)},
        options=(*OPTIONS, f"-DTILE={job.tile}", "-lm"),
        outputs=("shared",),
        symbols=(job.kernel.symbol,),
        source_dir=sources,
        kernel=job.kernel.name,
    )


def _is_right(job: _Job, result: Result) -> bool:
    """Load the artifact as a framework does, run it, compare it with the reference."""
    try:
        library = launch.load(result.outputs["shared"], ctypes.CDLL)
    except (OSError, KeyError):
        return False
    return job.kernel.check(library, job.tile)
