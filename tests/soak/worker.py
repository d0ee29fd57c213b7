"""A client of the soak: takes a phase a line from standard input, and says how it went.

Run as ``python -m tests.soak.worker ROOT SEED`` with the daemon's variables in the environment.
"""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptocache.client import connect
from ptocache.errors import PtocacheError
from ptocache.outcome import Reason
from tests.soak import world

if TYPE_CHECKING:
    from ptocache.client import Client

SLOW_S = 60.0


def main() -> None:
    """Serve phases until standard input ends."""
    root, seed = Path(sys.argv[1]), sys.argv[2]
    draw = random.Random(seed)
    # That the daemon was away is counted, not said.
    warnings.simplefilter("ignore")
    with connect() as client:
        for line in sys.stdin:
            phase = json.loads(line)
            report = run(client, root, phase, draw)
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


def run(client: Client, root: Path, phase: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Ask ``requests`` times, judge each answer, and count outcomes by their labels."""
    state = world.State(phase["identities"], tuple(phase["headers"]), phase["latest"])
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slow = 0
    for _ in range(phase["requests"]):
        # A few kernels are asked for often, as in a training run; the rest as in a sweep.
        kernel = min(int(draw.expovariate(0.15)), world.KERNELS - 1)
        ask = world.Ask(
            kernel, draw.randrange(len(world.OPTIONS)), draw.randrange(len(world.ARCHS)),
            draw.choice(("A", "A", "B", "latest")),
        )  # fmt: skip
        began = time.monotonic()
        label, trouble = one(client, root, state, ask)
        slow += time.monotonic() - began > SLOW_S
        counts[label] += 1
        if trouble and len(wrong) < 10:
            wrong.append(f"{ask}: {trouble}")
    return {"counts": counts, "wrong": wrong, "hung": slow}


def one(client: Client, root: Path, state: world.State, ask: world.Ask) -> tuple[str, str]:
    """(outcome, what is wrong with the answer) of one request."""
    tree = str(root / ask.tree)
    try:
        result = client.compile(
            "ascendc", {f"k{ask.kernel}.asc": world.source(ask.kernel)},
            arch=world.ARCHS[ask.arch],
            options=[*world.OPTIONS[ask.options], f"-I{root / 'include'}"],
            env={"ASCEND_HOME_PATH": tree, "PATH": "/usr/bin:/bin"},
            symbols=[f"kernel{ask.kernel}"],
        )  # fmt: skip
    except PtocacheError as error:
        return "error", f"{error!r}"
    label = result.outcome.label
    if result.reason is Reason.NO_DAEMON:
        label = "alone"
    return label, world.wrong(ask, state, bytes(result.outputs["aibin"].buffer))


if __name__ == "__main__":
    main()
