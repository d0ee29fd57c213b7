"""What the benchmarks share: a private daemon, interleaved rounds, and one way to print figures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.client import Client, connect
from ptocache.config import load
from ptocache.paths import StorePaths
from ptocache.starter import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Spread(NamedTuple):
    """Figures of one thing measured many times, in microseconds."""

    median: float
    p99: float
    worst: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Sort and pick."""
        ordered = sorted(seconds)

        def pick(part: float) -> float:
            return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e6

        return cls(pick(0.5), pick(0.99), ordered[-1] * 1e6, len(ordered))


def timed(action: Callable[[], object], count: int) -> list[float]:
    """Seconds of ``count`` runs of ``action``."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return found


def interleaved(
    actions: dict[str, Callable[[], object]], rounds: int, each: int
) -> dict[str, Spread]:
    """Run all actions in turn, round by round, so that a change of the machine's speed hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name] += timed(action, each)
    return {name: Spread.of(found) for name, found in seconds.items()}


@contextlib.contextmanager
def private_daemon(root: Path | None = None, **settings: object) -> Iterator[Client]:
    """A client of a daemon that serves a temporary store (or the one at ``root``)."""
    place = Path(tempfile.mkdtemp(prefix="ptb-"))
    env = {k: v for k, v in os.environ.items() if not k.startswith("PTOCACHE_")}
    env["PTOCACHE_DIR"] = str(root or place / "store")
    env["PTOCACHE_SOCKET"] = str(place / "s")
    env.update({f"PTOCACHE_{name.upper()}": str(value) for name, value in settings.items()})
    paths = StorePaths(env["PTOCACHE_DIR"])
    os.makedirs(paths.root, exist_ok=True)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    process = spawn(load(env), paths)
    os.environ.clear()
    os.environ.update(before)
    client = connect(env=env, client_require=True, client_autostart=False)
    try:
        wait_ready(client, process)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(60)
        shutil.rmtree(place, ignore_errors=True)


def wait_ready(client: Client, process: subprocess.Popen[bytes], limit_s: float = 60.0) -> float:
    """Seconds until the daemon answers."""
    start = time.perf_counter()
    while time.perf_counter() - start < limit_s:
        with contextlib.suppress(Exception):
            client.call("ping", start=False)
            return time.perf_counter() - start
        if process.poll() is not None:
            raise RuntimeError(f"the daemon ended with exit code {process.returncode}")
        time.sleep(0.002)
    raise RuntimeError("the daemon does not answer")


def show(title: str, spreads: dict[str, Spread], base: str) -> dict[str, Any]:
    """Print a table with ratios to ``base``, and give the same as a document."""
    print(f"\n{title}")
    print(f"  {'':34}{'median µs':>11}{'p99 µs':>11}{'ratio':>9}")
    document = {}
    for name, spread in spreads.items():
        ratio = spread.median / spreads[base].median
        print(f"  {name:34}{spread.median:11.1f}{spread.p99:11.1f}{ratio:9.2f}")
        document[name] = {**spread._asdict(), "ratio": round(ratio, 3)}
    return document


def finish(document: dict[str, Any]) -> None:
    """One JSON line last, for scripts."""
    print(json.dumps(document, separators=(",", ":")))
    sys.stdout.flush()
