"""A client of the soak: takes a phase a line from standard input, and says how it went.

Run as ``python -m tests.soak.worker ROOT SEED`` with the daemon's variables in the environment. With
``--hold PHASE`` after them it asks for one finished kernel, says what it got, and stands still: with the
lease, if it got that.
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
from ptocache.kernel import Lease
from ptocache.outcome import Reason
from tests.soak import world

if TYPE_CHECKING:
    from ptocache.client import Client
    from ptocache.result import Result

SLOW_S = 60.0
_KERNELS = 0.25
"""The share of requests for finished kernels, which the caller builds."""
_BROKEN = 0.05
"""The share of builds that fail."""


def main() -> None:
    """Serve phases until standard input ends."""
    root, seed = Path(sys.argv[1]), sys.argv[2]
    draw = random.Random(seed)
    # That the daemon was away is counted, not said.
    warnings.simplefilter("ignore")
    with connect() as client:
        if sys.argv[3:4] == ["--hold"]:
            hold(client, root, json.loads(sys.argv[4]), draw)
            return
        for line in sys.stdin:
            phase = json.loads(line)
            report = run(client, root, phase, draw)
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


def run(client: Client, root: Path, phase: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Ask ``requests`` times, judge each answer, and count outcomes by their labels."""
    state = _state(phase)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slow = 0
    for _ in range(phase["requests"]):
        ask = _draw(draw)
        began = time.monotonic()
        if draw.random() < _KERNELS:
            label, trouble = finished(client, root, state, ask, broken=draw.random() < _BROKEN)
        else:
            label, trouble = one(client, root, state, ask)
        slow += time.monotonic() - began > SLOW_S
        counts[label] += 1
        if trouble and len(wrong) < 10:
            wrong.append(f"{ask}: {trouble}")
    return {"counts": counts, "wrong": wrong, "hung": slow}


def _state(phase: dict[str, Any]) -> world.State:
    return world.State(phase["identities"], tuple(phase["headers"]), phase["latest"])


def _draw(draw: random.Random) -> world.Ask:
    """A few kernels are asked for often, as in a training run; the rest as in a sweep."""
    kernel = min(int(draw.expovariate(0.15)), world.KERNELS - 1)
    return world.Ask(
        kernel, draw.randrange(len(world.OPTIONS)), draw.randrange(len(world.ARCHS)),
        draw.choice(("A", "A", "B", "latest")),
    )  # fmt: skip


def ask_for_finished(
    client: Client, root: Path, state: world.State, ask: world.Ask
) -> Result | Lease:
    """Ask for a finished kernel."""
    return client.kernel(
        "ascendc", world.material(ask, state), arch=world.ARCHS[ask.arch],
        env={"ASCEND_HOME_PATH": str(root / ask.tree), "PATH": "/usr/bin:/bin"},
        kernel=f"whole{ask.kernel}",
    )  # fmt: skip


def finished(
    client: Client, root: Path, state: world.State, ask: world.Ask, *, broken: bool
) -> tuple[str, str]:
    """(outcome, what is wrong with it) of one request for a finished kernel; a ``broken`` build gives its
    lease up."""
    wanted = world.bundle(ask, state)
    try:
        found = ask_for_finished(client, root, state, ask)
        if isinstance(found, Lease):
            alone = not found.key
            if broken:
                found.abandon("the build fails now and then")
                return ("kernel_alone" if alone else "kernel_failure"), ""
            found = found.put(wanted)
    except PtocacheError as error:
        return "kernel_error", f"{error!r}"
    alone = found.reason is Reason.NO_DAEMON
    got = {name: bytes(item.buffer).decode() for name, item in found.outputs.items()}
    trouble = "" if got == wanted else f"another kernel: {got.get('params.json', '')[:200]}"
    return ("kernel_alone" if alone else f"kernel_{found.outcome.label}"), trouble


def hold(client: Client, root: Path, phase: dict[str, Any], draw: random.Random) -> None:
    """Ask for one finished kernel, and hold what came of it."""
    found = ask_for_finished(client, root, _state(phase), _draw(draw))
    label = "kernel_failure" if isinstance(found, Lease) else f"kernel_{found.outcome.label}"
    sys.stdout.write(label + "\n")
    sys.stdout.flush()
    sys.stdin.read()


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
