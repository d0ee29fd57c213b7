"""What it costs to know which toolchain this is, with a CANN of 20,000 files.

The rivals are what caches inside frameworks do in each fresh process before they can even ask: hash the
tree, or run the two tools with ``--version``. The tree and its tools are simulated (``tests/simcann``); its
files are small, so a real tree makes the first look and the first rival slower, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.common import Spread, finish, private_daemon, show, timed
from ptocache.compiler import probe
from ptocache.contents import Contents
from ptocache.identity import Identities, variables_of
from ptocache.paths import StorePaths
from ptocache.signature import SETTLE_NS
from ptocache.store.store import Store, prepare_root
from ptocache.tally import Tally
from ptocache.toolchain import Registry
from ptocache.watch import Watcher
from tests.simcann import KERNEL, SimCann

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client

FILES = int(os.environ.get("PTOCACHE_BENCH_FILES", "20000"))
PROCESSES = 64
SLOW_EACH = 16
"""A slow rival is measured beside every 16th process."""
FRESH = """
import json, sys, time
from ptocache.client import connect
ask = json.load(sys.stdin)
began = time.perf_counter()
client = connect(client_require=True, client_autostart=False)
client.call("ping", start=False)
connected = time.perf_counter()
found = client.compile("ascendc", {"k.asc": ask["source"]}, env=ask["env"])
done = time.perf_counter()
print(json.dumps([found.outcome.label, connected - began, done - connected]))
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="pti-") as place:
        cann = SimCann.make(Path(place) / "cann", files=FILES)
        # Files younger than this are read anew at each look: not what a user sees later.
        time.sleep(SETTLE_NS / 1e9 + 0.1)
        looks = show(f"a tree of {FILES:,} files", looked(cann), "first look")
        hits, read = fresh_processes(cann)
        warm = show(f"{PROCESSES} fresh processes in a row", hits, "hit, asked and answered")
        print(f"\n  files read and tools asked meanwhile: {read.files} and {read.questions}")
    finish({"bench": "identity", "looks": looks, "fresh": warm, "meanwhile": read._asdict()})


# --- one process that identifies


def looked(cann: SimCann) -> dict[str, Spread]:
    """The looks that a daemon takes, each by a daemon's own parts on one store."""
    with tempfile.TemporaryDirectory(prefix="pti-") as place:
        prepare_root(StorePaths(place))
        first, _ = look(cann, place)
        again, parts = look(cann, place)
    seconds = {"first look": first, "first look after a restart": again, **parts}
    return {name: Spread.of(found) for name, found in seconds.items()}


def look(cann: SimCann, place: str) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of a new daemon's first look, and of what comes later."""
    store = Store(
        StorePaths(place), limit=1 << 30, low_water=0.9, memory=1 << 20, fsync=False, tally=Tally()
    )
    roots: set[str] = set()
    identities = Identities(
        Contents(store.index), probe, store.index, on_found=lambda _, found: roots.update(found)
    )
    toolchain = Registry.discover().get("ascendc")
    whom = (toolchain, "link", variables_of(toolchain, cann.env()))
    first = timed(lambda: identities.resolve(*whom), 1)
    identity = identities.resolve(*whom)
    watcher = Watcher(lambda path: None)
    later = {
        "watching it": timed(lambda: watcher.watch([], roots), 1),
        "confirmed after a compile": timed(
            lambda: identities.unmoved(*whom, identity) or sys.exit("it moved"), 9
        ),
        "confirmed on a hit": timed(
            lambda: identities.confirmed(*whom) or sys.exit("not confirmed"), 999
        ),
    }
    watcher.stop()
    store.close()
    return first, later


# --- many processes that ask


class Meanwhile(NamedTuple):
    """What the daemon did while they asked."""

    files: int
    questions: int


def fresh_processes(cann: SimCann) -> tuple[dict[str, Spread], Meanwhile]:
    """Time the request of each fresh process, and its rivals in turn with them."""
    seconds: dict[str, list[float]] = {
        "hit, asked and answered": [], "connecting before that": [],
        "rival: two --version": [], "rival: hash the tree": [],
    }  # fmt: skip
    with private_daemon(rescan=3600) as client:
        env = settled(client, cann)
        before = Meanwhile(files_read(client), len(cann.runs(probes=True)))
        rivals = 0
        for number in range(PROCESSES):
            connected, asked = fresh(env, cann)
            seconds["hit, asked and answered"].append(asked)
            seconds["connecting before that"].append(connected)
            if number % SLOW_EACH == 0:
                seconds["rival: two --version"] += timed(two_versions(cann), 3)
                seconds["rival: hash the tree"] += timed(hash_tree(cann), 1)
                rivals += 3 * 2
        after = Meanwhile(files_read(client), len(cann.runs(probes=True)) - rivals)
    found = {name: Spread.of(each) for name, each in seconds.items()}
    return found, Meanwhile(after.files - before.files, after.questions - before.questions)


def settled(client: Client, cann: SimCann) -> dict[str, str]:
    """A daemon that has the entry, and trusts the stamps; the environment that leads to it."""
    client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env())
    time.sleep(SETTLE_NS / 1e9 + 0.1)
    client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env())
    return {**os.environ, "PTOCACHE_SOCKET": str(client.call("status")["socket"])}


def files_read(client: Client) -> int:
    """The daemon's own count."""
    return int(client.call("status")["identity"]["files_read"])


def fresh(env: dict[str, str], cann: SimCann) -> tuple[float, float]:
    """Seconds that a new process needs to connect, and then for a hit."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], env=env, check=True, stdout=subprocess.PIPE,
        input=json.dumps({"source": KERNEL, "env": cann.env()}).encode(),
    )  # fmt: skip
    outcome, connected, asked = json.loads(done.stdout)
    if outcome != "memory_hit":
        raise SystemExit(f"not a hit: {outcome}")
    return connected, asked


def two_versions(cann: SimCann) -> Callable[[], object]:
    """What a framework asks before it looks into its cache."""

    def action() -> None:
        for name in ("bisheng", "ld.lld"):
            subprocess.run([cann.tool(name), "--version"], check=True, capture_output=True)

    return action


def hash_tree(cann: SimCann) -> Callable[[], object]:
    """SHA-256 of every file of the tree, as a framework does it, in one thread."""

    def action() -> str:
        digest = hashlib.sha256()
        for folder, folders, files in os.walk(cann.root):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(name.encode() + hashlib.sha256(file.read()).digest())
        return digest.hexdigest()

    return action


if __name__ == "__main__":
    main()
