"""SIGKILL at any moment: afterwards every answer is right, no entry is half, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from ptocache.outcome import Outcome
from ptocache.paths import StorePaths
from ptocache.store.store import Store
from ptocache.store.verify import verify
from ptocache.tally import Tally
from tests.harness import (
    DEADLINE_S,
    DaemonProcess,
    LoggingCompiler,
    alive,
    compile_directly,
    wait_for,
)

ENV = {"PATH": os.environ.get("PATH", "")}
ROUNDS = int(os.environ.get("PTOCACHE_KILL_ROUNDS", "6"))
KERNELS = 5
HELD = "-DHELD"
"""An option with which a compile never ends."""


def source(number: int) -> bytes:
    """Every other one has a large output."""
    if number % 2:
        return b"const char big_%d[200000] = {%d};\n" % (number, number)
    return b"int kernel_%d(void) { return %d; }\n" % (number, number)


class Burst(threading.Thread):
    """Compiles kernels through a daemon until it goes; counts the answers. The last of them is none that
    ever ends: the daemon is killed at work, whenever that is."""

    def __init__(
        self, daemon: DaemonProcess, compiler: LoggingCompiler, numbers: list[int]
    ) -> None:
        super().__init__()
        self._daemon = daemon
        self._env = compiler.env
        self._numbers = numbers
        self.answers: dict[int, bytes] = {}
        self.stored: set[int] = set()
        self.start()

    def run(self) -> None:
        try:
            with self._daemon.client() as client:
                jobs = [
                    client.job("host", {"k.c": source(n)}, env=self._env, outputs=["object"])
                    for n in self._numbers
                ]
                held = {"k.c": b"int held;\n"}
                jobs.append(client.job("host", held, env=self._env, options=[HELD]))
                for position, result in client.compile_many(jobs):
                    number = self._numbers[position]
                    self.answers[number] = bytes(result.outputs["object"].buffer)
                    if result.outcome is not Outcome.BYPASS:
                        self.stored.add(number)
        except OSError:
            return


def open_store(root: Path) -> Store:
    return Store(
        StorePaths(str(root)), limit=1 << 30, low_water=0.9, memory=1 << 20, fsync=False,
        tally=Tally(),
    )  # fmt: skip


def stop_with_all_below(pid: int) -> list[int]:
    """Stop a process and all that it started, so that nothing more is started; their pids."""
    found = [pid]
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += stop_with_all_below(int(child))
    return found


def kill_all(daemon: DaemonProcess) -> None:
    """As a container ends: the daemon, its guard and its tools at one moment."""
    for pid in stop_with_all_below(daemon.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    daemon.kill()


def kill_after(
    daemon: DaemonProcess, burst: Burst, answers: int, pauses: int, *, everything: bool
) -> None:
    """Kill once that many answers have come, and a number of looks at the store later."""
    wait_for(lambda: len(burst.answers) >= answers, "answers to come")
    for _ in range(pauses):
        os.listdir(daemon.root / "tmp")
    if everything:
        kill_all(daemon)
    else:
        daemon.kill()
    burst.join(DEADLINE_S)
    assert not burst.is_alive()


@pytest.mark.kind("incomplete_entry_after_a_kill")
@pytest.mark.parametrize("seed", [1])
def test_incomplete_entry_after_a_kill_at_a_random_moment_is_never_found(
    make_daemon: type[DaemonProcess], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    compiler = LoggingCompiler(
        tmp_path / "cc", before=f'case " $* " in *" {HELD} "*) sleep 600 ;; esac'
    )
    daemon = make_daemon(tmp_path / "store", jobs=2, trust_scripts=compiler.trust)
    known: dict[int, bytes] = {}
    stored: set[int] = set()
    for round_number in range(ROUNDS):
        daemon.start()
        assert os.listdir(daemon.root / "tmp") == []
        fresh = [round_number * KERNELS + n for n in range(KERNELS)]
        burst = Burst(daemon, compiler, [*chance.sample(sorted(known), min(4, len(known))), *fresh])
        old = len(burst._numbers) - KERNELS
        at_least = old + chance.randrange(KERNELS - 2)
        everything = bool(round_number % 2)
        kill_after(daemon, burst, at_least, chance.randrange(2000), everything=everything)
        stored |= burst.stored
        for number in fresh:
            known[number] = compile_directly(source(number), "k.c", [], tmp_path / "direct")
        assert all(known[number] == data for number, data in burst.answers.items())
        store = open_store(daemon.root)
        try:
            page = verify(store, 0, fast=False, heal=False)
            assert (page.damaged, page.after) == ((), None)
        finally:
            store.close()
    daemon.start()
    with daemon.client() as client:
        jobs = [
            client.job("host", {"k.c": source(n)}, env=compiler.env, outputs=["object"])
            for n in sorted(known)
        ]
        answers = dict(client.compile_many(jobs))
    for position, number in enumerate(sorted(known)):
        assert bytes(answers[position].outputs["object"].buffer) == known[number]
    kept = {n for position, n in enumerate(sorted(known)) if answers[position].outcome.is_hit}
    assert stored <= kept, "what was answered before a kill is still there"
    assert len(stored) >= ROUNDS
    assert daemon.stats()["corrupt"] == 0
    assert os.listdir(daemon.root / "tmp") == []
    daemon.stop()
    index = open_store(daemon.root)
    try:
        entries, _ = index.index.totals()
        assert entries == len(known)
        needed = {row.digest.sha256 for row in index.index.all_blobs()}
    finally:
        index.close()
    on_disk = {path.name for path in (daemon.root / "blobs").glob("*/*")}
    assert needed <= on_disk


def test_orphans_of_killed_daemons_are_swept_by_the_next(
    make_daemon: type[DaemonProcess], tmp_path: Path
) -> None:
    daemon = make_daemon(tmp_path / "store").start()
    with daemon.client() as client:
        client.compile("host", {"k.c": source(0)}, env=ENV, outputs=["object"])
    daemon.kill()
    # What a kill between the rename of a blob and the commit of its entry leaves.
    orphan = daemon.root / "blobs" / "cd" / ("cd" * 32)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x" * 1000)
    daemon.start()
    wait_for(lambda: not orphan.exists(), "the orphan to be swept")
    with daemon.client() as client:
        again = client.compile("host", {"k.c": source(0)}, env=ENV, outputs=["object"])
    assert again.outcome is Outcome.DISK_HIT


def test_killed_guard_is_not_missed_by_the_daemon(
    make_daemon: type[DaemonProcess], tmp_path: Path
) -> None:
    daemon = make_daemon(tmp_path / "store").start()
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
    guards = [int(pid) for pid in children.split()]
    assert len(guards) == 1
    os.kill(guards[0], 9)
    wait_for(lambda: not alive(guards[0]), "the guard to be gone")
    with daemon.client() as client:
        found = client.compile("host", {"k.c": source(0)}, env=ENV, outputs=["object"])
    assert found.outcome is Outcome.MISS
    assert daemon.stop() == 0
