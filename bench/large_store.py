"""A store of 100,000 small entries against one of 100: start, hits, statistics, and eviction meanwhile.

The entries are published through the store itself, under the keys that real requests have, with small
synthetic outputs: making 100,000 objects with a compiler would take an hour and measure the compiler.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.common import Spread, finish, private_daemon, show, timed
from ptocache.action import binary_action
from ptocache.compiler import probe
from ptocache.contents import Contents
from ptocache.digest import Digest
from ptocache.entry import Entry
from ptocache.identity import Identities, variables_of
from ptocache.model import Input, Job, Log, Output, Prepared, Provenance, select
from ptocache.outcome import Outcome
from ptocache.paths import StorePaths
from ptocache.store.store import Store
from ptocache.tally import Tally
from ptocache.toolchain import Registry, validate

if TYPE_CHECKING:
    from ptocache.client import Client
    from ptocache.toolchain import CheckedOutputs, Toolchain

SIZES = (100, int(os.environ.get("PTOCACHE_BENCH_ENTRIES", "100000")))
SAMPLE = 100
HITS = 4000
SOURCE = b"int f(void) { return 3; }\n"


class _Accepting:
    """Stands for a toolchain in the one call that makes checked outputs."""

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """Accept."""


def checked(number: int) -> CheckedOutputs:
    """A small output that differs from every other."""
    text = b"\x7fELF synthetic %d " % number
    accepting: Any = _Accepting()
    nothing: Any = None
    return validate(accepting, nothing, (Output("object", text * 16, 0o644),))


def fill(root: Path, count: int) -> float:
    """Publish ``count`` entries; returns the seconds it took."""
    toolchain: Toolchain = Registry.discover().get("host")
    env = {"PATH": os.environ["PATH"]}
    variables = variables_of(toolchain, env)
    store = Store(
        StorePaths(str(root)), limit=1 << 40, low_water=0.9, memory=1 << 20, fsync=False, tally=Tally()
    )  # fmt: skip
    identity = Identities(Contents(store.index), probe, store.index).resolve(
        toolchain, "c", variables
    )
    generation = store.index.generation()
    start = time.perf_counter()
    for number in range(count):
        job = Job(
            "host", "", (f"-DN={number}",), select(toolchain.ENV, env),
            (Input("k.c", Digest.of(SOURCE)),), ("object",), cwd="/",
        )  # fmt: skip
        prepared = toolchain.prepare(job, identity.installation)
        action = binary_action(prepared, plugin_version=toolchain.version, identity=identity.digest)
        entry = Entry(
            action.document, (), (), Log(), "", "k", int(time.time()), 50,
            Provenance((), (), "synthetic", True, "bench"),
        )  # fmt: skip
        store.publish(action, entry, checked(number), generation)
    store.close()
    return time.perf_counter() - start


def ask(client: Client, number: int, wanted: tuple[Outcome, ...]) -> None:
    """A request that must be a hit."""
    result = client.compile(
        "host", {"k.c": SOURCE}, options=[f"-DN={number}"], outputs=["object"], check=False,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    if result.outcome not in wanted:
        raise SystemExit(
            f"entry {number}: {result.outcome.label} {result.reason.label} {result.why}"
        )


def measure(root: Path, count: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Latencies by kind, and single figures."""
    chosen = random.Random(1).sample(range(count), SAMPLE)
    start = time.perf_counter()
    with private_daemon(root, max_size="1T") as client:
        figures = {"ready_s": time.perf_counter() - start}
        hits = (Outcome.MEMORY_HIT, Outcome.DISK_HIT)
        found = {
            "disk hit": [
                timed(lambda n=number: ask(client, n, hits), 1)[0]  # type: ignore[misc]
                for number in chosen
            ]
        }
        found["memory hit"] = [
            timed(lambda n=chosen[i % SAMPLE]: ask(client, n, hits), 1)[0]  # type: ignore[misc]
            for i in range(HITS)
        ]
        found["stats"] = timed(client.stats, 20)
        if count > SIZES[0]:
            found["hit during gc"], figures["gc_s"] = during_gc(client, chosen)
    return found, figures


def during_gc(client: Client, chosen: list[int]) -> tuple[list[float], float]:
    """Hits while a second connection evicts half of the store, oldest first."""
    size = client.stats()["store"]["bytes"]
    over = threading.Event()
    took: list[float] = []

    def evict() -> None:
        start = time.perf_counter()
        client.call("gc", max_size=size // 2)
        took.append(time.perf_counter() - start)
        over.set()

    thread = threading.Thread(target=evict)
    found: list[float] = []
    thread.start()
    number = 0
    while not over.is_set():
        # Just used, so the last to go: these stay hits all along.
        wanted = chosen[number % SAMPLE]
        found += timed(lambda n=wanted: ask(client, n, (Outcome.MEMORY_HIT,)), 1)  # type: ignore[misc]
        number += 1
    thread.join()
    return found, took[0]


def main() -> None:
    """Measure both sizes and print."""
    spreads: dict[str, Spread] = {}
    figures: dict[str, Any] = {}
    place = Path(tempfile.mkdtemp(prefix="ptl-"))
    try:
        for count in SIZES:
            root = place / str(count)
            figures[f"fill_{count}_s"] = round(fill(root, count), 2)
            found, single = measure(root, count)
            spreads.update({f"{k}, {count:,} entries": Spread.of(v) for k, v in found.items()})
            figures.update({f"{k}_{count}": round(v, 3) for k, v in single.items()})
    finally:
        shutil.rmtree(place, ignore_errors=True)
    document = {}
    for kind in ("memory hit", "disk hit", "stats", "hit during gc"):
        chosen = {name: spread for name, spread in spreads.items() if name.startswith(kind)}
        base = next(iter(chosen))
        document[kind] = show(kind, chosen, base)
    print("\n" + "\n".join(f"  {name:24}{value:>10}" for name, value in figures.items()))
    finish({"bench": "large_store", "results": document, "figures": figures})


if __name__ == "__main__":
    main()
