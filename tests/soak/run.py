"""The long run: many processes, all kinds of trouble, and an account of it in one JSON line.

    python -m tests.soak.run [--requests 100000] [--workers 4] [--seed N] [--minutes 15]

Phases of a few thousand requests each. Between two phases one thing of the world changes (a tool replaced
in place, a header edited, a link moved, entries invalidated, a file of the store damaged); in the middle
of some the daemon is killed, restarted or made to evict, or a process that holds the lease of a kernel is
killed. A quarter of the requests are for finished kernels, which the clients build themselves. Within a phase the right answer to
each request is known, so every answer is judged. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness import DaemonProcess, wait_for
from tests.simcann import SimCann
from tests.soak import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PHASE_REQUESTS = 5000
STORE_LIMIT = "4M"
"""Small, so that entries are evicted all the time."""
_OUTCOMES = ("memory_hit", "disk_hit", "joined", "miss", "bypass", "failure")
_BY_DAEMON = (*_OUTCOMES, *(f"kernel_{label}" for label in _OUTCOMES))


class Soak:
    """One run."""

    def __init__(self, root: Path, workers: int, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.trees = {
            name: SimCann.make(root / name, identity=f"{name}0", log=root / "log") for name in "AB"
        }
        self.state = world.State({"A": "A0", "B": "B0"}, (0,) * world.HEADERS, "A")
        (root / "latest").symlink_to("A")
        world.write_headers(root / "include", self.state.headers)
        self.daemon = DaemonProcess(
            root / "store", max_size=STORE_LIMIT, rescan="5s", memory="4M", negative_ttl="5s"
        ).start()
        self.workers = [self._worker(f"{seed}-{number}") for number in range(workers)]
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.hung = 0
        self.mutations = 0
        self.exact = True
        self.phases = 0
        self.levels: list[tuple[int, int]] = []
        """(descriptors, resident KiB) of the daemon after each phase without a restart."""

    def _worker(self, seed: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak.worker", str(self.root), seed],
            env=self.daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    # --- phases

    def phase(self, requests: int) -> None:
        """Let everybody ask, disturb some of it, and judge the answers."""
        self.phases += 1
        disturb = self.draw.choice(self._disturbances())
        calm = disturb not in (self.kill_daemon, self.restart_daemon)
        before = self._counts() if calm else {}
        runs = len(self.trees["A"].runs("bisheng"))
        self._tell(requests)
        seen = disturb()
        counts = self._hear()
        counts.update(seen or ())
        self.outcomes.update(counts)
        if calm:
            self._account(before, counts, len(self.trees["A"].runs("bisheng")) - runs)
            self.levels.append(_levels(self.daemon.pid))
        self.trees["A"].clear_log()

    def _tell(self, requests: int) -> None:
        order = {"requests": requests // len(self.workers), **self.state._asdict()}
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(order) + "\n")
            worker.stdin.flush()

    def _hear(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for worker in self.workers:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line:
                raise SystemExit(f"a worker of the soak ended with {worker.wait()}")
            report = json.loads(line)
            counts.update(report["counts"])
            self.wrong += report["wrong"]
            self.hung += report["hung"]
        return counts

    def _account(self, before: dict[str, int], counts: Counter[str], runs: int) -> None:
        """The daemon counted what the clients saw, and each tool ran once for each compile."""
        after = self._counts()
        for label in _BY_DAEMON:
            counted = after[label] - before[label]
            if counted != counts[label]:
                self._inexact(f"{label}: {counted} counted, {counts[label]} seen")
        compiles = counts["miss"] + counts["bypass"] + counts["failure"] + counts["alone"]
        if runs != compiles:
            self._inexact(f"{runs} runs of the compiler, {compiles} compiles")

    def _inexact(self, what: str) -> None:
        self.exact = False
        sys.stderr.write(f"soak: phase {self.phases}: {what}\n")

    def _counts(self) -> dict[str, int]:
        with self.daemon.client() as client:
            caches = client.stats()["caches"]
        binary, kernel = caches["binary"], caches["kernel"]
        return {
            **{label: binary[label] for label in _OUTCOMES},
            **{f"kernel_{label}": kernel[label] for label in _OUTCOMES},
        }

    # --- in the middle of a phase

    def _disturbances(self) -> list[Callable[[], list[str] | None]]:
        """Each gives the outcomes of requests of its own, if it makes any."""
        return [
            self.nothing, self.nothing, self.collect, self.kill_daemon, self.restart_daemon,
            self.stop_a_worker, self.verify, self.kill_holders,
        ]  # fmt: skip

    def nothing(self) -> None:
        """A quiet phase."""

    def collect(self) -> None:
        """Evict most of the store."""
        self.faults["eviction"] += 1
        with self.daemon.client() as client:
            client.call("gc", max_size=200_000)

    def kill_daemon(self) -> None:
        """SIGKILL at a random moment; a new daemon a moment later."""
        self.faults["daemon_killed"] += 1
        time.sleep(self.draw.random() * 0.5)
        self.daemon.kill()
        time.sleep(self.draw.random() * 0.2)
        self.daemon.start()

    def restart_daemon(self) -> None:
        """Stop in order, start again."""
        self.faults["daemon_restarted"] += 1
        time.sleep(self.draw.random() * 0.5)
        if self.daemon.stop() != 0:
            self.wrong.append("the daemon stopped with an error")
        self.daemon.start()

    def stop_a_worker(self) -> None:
        """A client stands still for a while; the others must not notice."""
        self.faults["client_stopped"] += 1
        pid = self.draw.choice(self.workers).pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.draw.random())
        os.kill(pid, signal.SIGCONT)

    def kill_holders(self) -> list[str]:
        """Processes that ask for a kernel and are killed, with the lease if they got that: others may wait
        for the same."""
        phase = json.dumps({**self.state._asdict()})
        seen = []
        for number in range(5):
            self.faults["holder_killed"] += 1
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.soak.worker", str(self.root),
                    f"holder-{self.phases}-{number}", "--hold", phase,
                ],
                env=self.daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            with process:
                assert process.stdout is not None
                seen.append(process.stdout.readline().strip())
                process.kill()
        return seen

    def verify(self) -> None:
        """Read everything in the store while it is used."""
        self.faults["verified"] += 1
        with self.daemon.client() as client:
            after: int | None = 0
            while after is not None:
                page = client.call("verify", after=after)
                self.wrong += [f"damaged: {item['detail']}" for item in page["damaged"]]
                after = page["after"]

    # --- between two phases

    def change(self) -> None:
        """Change one thing of the world."""
        self.mutations += 1
        self.draw.choice(
            [
                self.replace_tools, self.edit_header, self.restore_header, self.move_link,
                self.invalidate, self.damage_store, self.upgrade,
            ]
        )()  # fmt: skip

    def replace_tools(self) -> None:
        """Another build in place: same size, older time."""
        self.faults["tool_replaced"] += 1
        name = self.draw.choice("AB")
        identity = f"{name}{self.draw.randrange(4)}"
        for tool in ("bisheng", "ld.lld"):
            self.trees[name].replace_tool(tool, identity)
        self.state = self.state._replace(identities={**self.state.identities, name: identity})

    def upgrade(self) -> None:
        """Another text in the version files."""
        self.faults["version_changed"] += 1
        self.trees[self.draw.choice("AB")].set_version(f"8.{self.draw.randrange(4)}.0")

    def edit_header(self) -> None:
        """A header that some kernels include."""
        self.faults["header_edited"] += 1
        self._set_header(self.draw.randrange(1, 4))

    def restore_header(self) -> None:
        """Back to the first text: its entries hit again."""
        self.faults["header_restored"] += 1
        self._set_header(0)

    def _set_header(self, version: int) -> None:
        number = self.draw.randrange(world.HEADERS)
        headers = list(self.state.headers)
        headers[number] = version
        self.state = self.state._replace(headers=tuple(headers))
        world.write_headers(self.root / "include", self.state.headers)

    def move_link(self) -> None:
        """``latest`` leads to the other tree."""
        self.faults["link_moved"] += 1
        latest = "B" if self.state.latest == "A" else "A"
        (self.root / "next").symlink_to(latest)
        (self.root / "next").rename(self.root / "latest")
        self.state = self.state._replace(latest=latest)

    def invalidate(self) -> None:
        """Some kernels are to be made again."""
        self.faults["invalidated"] += 1
        with self.daemon.client() as client:
            client.call("invalidate", kernel=f"k{self.draw.randrange(8)}")

    def damage_store(self) -> None:
        """One byte of one file of the store."""
        files = [path for path in (self.root / "store" / "blobs").glob("*/*") if path.is_file()]
        if not files:
            return
        self.faults["blob_damaged"] += 1
        path = self.draw.choice(files)
        data = bytearray(path.read_bytes())
        data[self.draw.randrange(len(data))] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        # Or the hot copy of it would be found whole by the next look at everything.
        with self.daemon.client() as client:
            client.call("verify")

    # --- the end

    def end(self) -> dict[str, Any]:
        """Stop everything, and look for what was left behind."""
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(30)
        descriptors = _growth([count for count, _ in self.levels])
        store = self.root / "store"
        self.daemon.stop()
        self.daemon.clean_up()
        left = os.listdir(store / "tmp")
        pids = list(_processes_of(self.root))
        return {
            "requests": sum(self.outcomes.values()),
            "outcomes": dict(sorted(self.outcomes.items())),
            "phases": self.phases,
            "faults": dict(sorted(self.faults.items())),
            "mutations": self.mutations,
            "wrong": len(self.wrong),
            "hung": self.hung,
            "leaked_processes": len(pids),
            "leaked_descriptors": descriptors,
            "leaked_files": len(left),
            "memory_kib": [kib for _, kib in self.levels[:1] + self.levels[-1:]],
            "statistics_exact": self.exact,
        }


def _levels(pid: int) -> tuple[int, int]:
    """Open descriptors and resident KiB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), pages * os.sysconf("SC_PAGE_SIZE") >> 10


def _growth(counts: list[int]) -> int:
    """By how much the later half's least exceeds the earlier half's greatest; 0 for none."""
    middle = len(counts) // 2
    if not middle:
        return 0
    return max(0, min(counts[middle:]) - max(counts[:middle]))


def _processes_of(root: Path) -> Iterator[int]:
    """Processes that have the soak's directory in their command line or environment."""
    needle = os.fsencode(root)
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            variables = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if needle in words or needle in variables:
            yield int(name)


def main() -> int:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="begin no phase after this time"
    )
    wanted = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ptocache-soak-"))
    sys.stderr.write(f"soak: seed {wanted.seed}, in {root}\n")
    soak = Soak(root, wanted.workers, wanted.seed)
    began = time.monotonic()
    try:
        while (
            sum(soak.outcomes.values()) < wanted.requests
            and time.monotonic() - began < wanted.minutes * 60
        ):
            soak.phase(PHASE_REQUESTS)
            soak.change()
    finally:
        account = soak.end()
        wait_for(lambda: not list(_processes_of(root)), "processes of the soak to end", 10)
    for item in soak.wrong[:20]:
        sys.stderr.write(f"soak: wrong: {item}\n")
    account["seed"], account["seconds"] = wanted.seed, round(time.monotonic() - began)
    print(json.dumps(account))
    bad = account["wrong"] or account["hung"] or not account["statistics_exact"]
    leaked = any(account[name] for name in account if name.startswith("leaked"))
    if not (bad or leaked):
        shutil.rmtree(root, ignore_errors=True)
    return 1 if bad or leaked else 0


if __name__ == "__main__":
    sys.exit(main())
