"""What a storm costs: 64 client processes at a barrier, all asking for one kernel.

The unit is the time that one compile takes alone. The rival is what frameworks without a daemon do: each
process compiles by itself. The compiler is the machine's own and the source takes it a good part of a
second, so that the rival pays with processor time, as it does with real tools.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common import finish, private_daemon
from ptocache.client import connect
from tests.faults.peers import Forked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client

CLIENTS = int(os.environ.get("PTOCACHE_BENCH_CLIENTS", "64"))
ROUNDS = int(os.environ.get("PTOCACHE_BENCH_ROUNDS", "3"))
FUNCTIONS = 60
ENV = {"PATH": os.environ.get("PATH", "")}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="pts-") as place, private_daemon() as client:
        for number in range(ROUNDS):
            one_round(client, Path(place), number)


def one_round(client: Client, place: Path, number: int) -> None:
    """All four, one after the other: the last line is for scripts."""
    source = program(number)
    tool_s = timed_once(lambda: directly(source, place))

    def ask(_: int) -> str:
        with connected(client) as own:
            return own.compile("host", {"k.c": source}, env=ENV, options=["-O2"]).outcome.label

    def alone(rank: int) -> str:
        own = place / str(rank)
        own.mkdir(exist_ok=True)
        directly(source, own)
        return "alone"

    cold_s, outcomes = storm(ask)
    if outcomes.count("miss") != 1:
        raise SystemExit(f"{outcomes.count('miss')} compiles of one key")
    warm_s, outcomes = storm(ask)
    if set(outcomes) != {"memory_hit"}:
        raise SystemExit(f"not all were hits: {sorted(set(outcomes))}")
    each_s, _ = storm(alone)
    print(f"\nround {number + 1}: one tool alone takes {tool_s:.2f} s")
    figures = {"one cold key": cold_s, "hits": warm_s, "each compiles by itself": each_s}
    for name, seconds in figures.items():
        print(
            f"  {f'{CLIENTS} clients, {name}':42}{seconds:8.2f} s{seconds / tool_s:9.2f} tool times"
        )
    ratios = {name: round(seconds / tool_s, 3) for name, seconds in figures.items()}
    finish({"clients": CLIENTS, "tool_s": round(tool_s, 3), "tool_times": ratios})


def connected(client: Client) -> Client:
    """A client of a forked child: its parent's connections are not its own."""
    settings = client.settings
    return connect(
        env={"PTOCACHE_SOCKET": settings.socket, "PTOCACHE_DIR": settings["store.root"]},
        client_require=True, client_autostart=False,
    )  # fmt: skip


def storm(work: Callable[[int], str]) -> tuple[float, list[str]]:
    """Seconds from the opening of the barrier to the end of the last, and what each gave."""
    ranks = Forked(CLIENTS, work, deadline_s=600)
    found: list[str] = []
    seconds = timed_once(lambda: found.extend(ranks.go().results()))
    return seconds, found


def timed_once(action: Callable[[], object]) -> float:
    """Seconds of one run."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def program(number: int) -> str:
    """A source that no round before has compiled."""
    function = (
        "double f%d(double *a, int n) { double s = %d; for (int i = 0; i < n; i++)"
        " for (int j = 0; j < n; j++) s += a[i * n + j] * s - a[j]; return s; }\n"
    )
    return "".join(function % (each, number) for each in range(FUNCTIONS))


def directly(source: str, place: Path) -> None:
    """The compiler's own work on it: compile and link, as the toolchain does."""
    (place / "k.c").write_text(source)
    for words in (
        ["-O2", "-fPIC", "-c", "k.c", "-o", "k.o"],
        ["-shared", "k.o", "-o", "k.so"],
    ):
        subprocess.run(["cc", *words], cwd=place, check=True)


if __name__ == "__main__":
    main()
