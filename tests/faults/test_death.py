"""Killed at every call: afterwards nothing is wrong, half or left over, and only what was interrupted is
made again.

The store's own operations are killed before and after each of their calls, in children that are cheap.
A whole daemon is killed at some of its calls here, and at all of them with ``PTOCACHE_DEATH_POINTS=all``
(``make soak``).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.errors import WireError
from ptocache.outcome import Outcome
from ptocache.store.index import Selection
from ptocache.store.verify import verify
from tests.faults.store_process import StoreProcess, find, open_store, publish
from tests.harness import (
    DEADLINE_S,
    ClientProcess,
    DaemonProcess,
    Gate,
    LoggingCompiler,
    alive,
    compile_directly,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptocache.store.store import Store
    from tests.faults.faultlayer import FaultLayer

ENV = {"PATH": os.environ.get("PATH", "")}
KEPT = ("a", "b")
KILLED = -signal.SIGKILL
ALL_POINTS = os.environ.get("PTOCACHE_DEATH_POINTS") == "all"


@contextlib.contextmanager
def reopened(root: Path) -> Iterator[Store]:
    """The store, as the next daemon finds and sweeps it."""
    store = open_store(str(root))
    try:
        store.sweep_unfinished()
        store.sweep_orphans()
        yield store
    finally:
        store.close()


def judge(store: Store) -> None:
    """Nothing is half, left over or uncounted."""
    page = verify(store, 0, fast=False, heal=False)
    assert (page.damaged, page.after) == ((), None)
    assert os.listdir(store.paths.tmp) == []
    assert os.listdir(store.paths.quarantine) == []
    needed = {blob.digest.sha256 for blob in store.index.all_blobs()}
    assert {sha256 for sha256, _ in store.blobs.walk()} == needed
    assert store.budget.used == store.index.totals()[1]


def fill(root: Path, *names: str) -> None:
    with reopened(root) as store:
        for name in names:
            assert publish(store, name) == "right"


def kills(
    root: Path, layer: FaultLayer, order: str, *, before: str = "", name: str = "k", least: int
) -> Iterator[int]:
    """Kill a child at each call of an order; yields the call's number after each child, the one that
    lives through it included. Killed after one call is killed before the next: both are done for the
    last one alone, unless all points are wanted."""

    def kill(process: StoreProcess, number: int, after: bool) -> bool:
        layer.kill(number, after=after, armed=False)
        status = process.order(order, name, before=before, fork=True)["status"]
        assert status in (0, KILLED)
        return bool(status)

    with StoreProcess(root, layer) as process:
        number = 1
        while kill(process, number, after=False):
            yield number
            if ALL_POINTS and kill(process, number, after=True):
                yield number
            number += 1
        yield number
        assert number > least, "it makes many calls"
        if kill(process, number - 1, after=True):
            yield number - 1


@pytest.mark.kind("incomplete_entry_after_a_kill")
def test_incomplete_entry_after_a_kill_is_left_at_no_call_of_a_publish(
    tmp_path: Path, layer: FaultLayer
) -> None:
    root = tmp_path / "store"
    fill(root, *KEPT)
    found = set()
    for _ in kills(root, layer, "publish", least=20):
        with reopened(root) as store:
            judge(store)
            assert [find(store, name) for name in KEPT] == ["right", "right"]
            found.add(find(store, "k"))
            store.invalidate(Selection(kernel="k"))
    assert found == {"nothing", "right"}


def test_a_kill_at_any_call_of_a_replacement_leaves_the_old_entry_or_the_new(
    tmp_path: Path, layer: FaultLayer
) -> None:
    root = tmp_path / "store"
    fill(root, "k")
    for _ in kills(root, layer, "publish", least=20):
        with reopened(root) as store:
            judge(store)
            assert find(store, "k") == "right"
            assert store.index.totals()[0] == 1


@pytest.mark.parametrize("order", ["evict", "invalidate"])
def test_a_kill_at_any_call_of_a_removal_leaves_a_whole_entry_or_none(
    tmp_path: Path, layer: FaultLayer, order: str
) -> None:
    root = tmp_path / "store"
    fill(root, *KEPT, "k")
    found = set()
    for _ in kills(root, layer, order, least=8):
        with reopened(root) as store:
            judge(store)
            assert [find(store, name) for name in KEPT] == ["right", "right"]
            found.add(find(store, "k"))
            assert publish(store, "k") == "right"
    assert found == {"nothing", "right"}


def test_a_kill_at_any_call_of_a_flush_counts_each_request_once_or_not_yet(
    tmp_path: Path, layer: FaultLayer
) -> None:
    root = tmp_path / "store"
    fill(root, *KEPT)
    known, gains = 0, set()
    for _ in kills(root, layer, "flush", before="count", name="a", least=2):
        with reopened(root) as store:
            judge(store)
            counted = sum(n for slot, n in store.index.counts().items() if slot.kind == "outcome")
            gains.add(counted - known)
            known = counted
    assert gains == {0, 1}


@pytest.mark.parametrize("order", ["open", "close"])
def test_a_kill_at_any_call_of_a_start_or_a_stop_loses_nothing(
    tmp_path: Path, layer: FaultLayer, order: str
) -> None:
    root = tmp_path / "store"
    fill(root, *KEPT)
    for _ in kills(root, layer, order, name="a", least=4):
        with reopened(root) as store:
            judge(store)
            assert [find(store, name) for name in KEPT] == ["right", "right"]


# --- a whole daemon


def source(number: int) -> bytes:
    """Every other one has an output that does not travel inline."""
    if number % 2:
        return b"const char big_%d[200000] = {%d};\n" % (number, number % 100)
    return b"int kernel_%d(void) { return %d; }\n" % (number, number)


def ask(daemon: DaemonProcess, number: int, **overrides: object) -> Any:
    with daemon.client(**overrides) as client:
        return client.compile("host", {"k.c": source(number)}, env=ENV, outputs=["object"])


def calls_of_a_compile(daemon: DaemonProcess, layer: FaultLayer) -> int:
    """How many calls a compile makes that is stored, the statistics' included."""
    layer.watch()
    ask(daemon, 0)
    wait_for(lambda: daemon.stats()["miss"] == 1, "the compile to be counted")
    layer.off()
    return layer.seen


def test_a_daemon_killed_at_a_call_of_a_compile_is_followed_by_one_that_is_right(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    daemon = layer.on(make_daemon(fsync=1)).start()
    last = calls_of_a_compile(daemon, layer)
    assert last > 40
    points = range(1, last + 1) if ALL_POINTS else range(3, last + 1, last // 4)
    asked, counted = 1, 1
    for number in points:
        layer.kill(number)
        fresh = number
        # A compile may make fewer calls than its fellow: then the next one is interrupted.
        while not layer.fired:
            asked += 1
            with contextlib.suppress(WireError):
                ask(daemon, fresh)
            fresh += 1000
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == KILLED
        layer.off()
        daemon.start()
        assert os.listdir(daemon.root / "tmp") == []
        found = ask(daemon, number)
        wanted = compile_directly(source(number), "k.c", [], tmp_path / "direct")
        assert found.outputs["object"].buffer == wanted
        assert ask(daemon, 0).outcome is Outcome.DISK_HIT, "what was stored before is still there"
        asked += 2
        stats = daemon.stats()
        assert stats["corrupt"] == 0
        # What a killed daemon counted in its last second is lost; nothing is counted twice. (It may
        # have been killed between the count and the answer.)
        assert counted <= stats["requests"] <= asked
        counted = stats["requests"]
    daemon.stop()
    with reopened(daemon.root) as store:
        judge(store)


def _came(gate: Gate, seen: int) -> bool:
    return len(gate.arrivals()) > seen


def test_tool_that_is_killed_fails_one_request_and_is_not_remembered(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    chance = random.Random(4)
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "logging", before=gate.script)
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    for number in range(4):
        gate.close()
        seen = len(gate.arrivals())
        client = ClientProcess(source(number).decode(), daemon.env, compiler.env)
        client.ready().go()
        wait_for(partial(_came, gate, seen), "the compiler to run")
        for _ in range(chance.randrange(50)):
            os.listdir(daemon.root / "tmp")
        os.kill(gate.arrivals()[-1], signal.SIGKILL)
        gate.open()
        assert client.result()["outcome"] == "failure"
        with daemon.client() as asking:
            found = asking.compile("host", {"k.c": source(number)}, env=compiler.env)
        assert found.outcome is Outcome.MISS
    stats = daemon.stats()
    assert stats["failure_reasons"] == {"step_killed": 4}
    assert (stats["requests"], stats["miss"]) == (8, 4)
    wait_for(lambda: os.listdir(daemon.root / "tmp") == [], "private directories to go")


def test_client_that_is_killed_takes_nothing_from_others(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "logging", before=gate.script)
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    text = source(1).decode()
    clients = [ClientProcess(text, daemon.env, compiler.env).ready() for _ in range(3)]
    clients[0].go()
    wait_for(gate.arrivals, "the compiler to run")
    for client in clients[1:]:
        client.go()

    def waiting() -> int:
        with daemon.client() as asking:
            return int(asking.call("status")["waiting"])

    wait_for(lambda: waiting() == 3, "all to wait")
    clients[0].kill()
    clients[1].kill()
    wait_for(lambda: waiting() == 1, "the dead to be forgotten")
    gate.open()
    assert clients[2].result()["outcome"] in ("miss", "joined")
    assert len(compiler.compiles()) == 1
    stats = daemon.stats()
    assert stats["requests"] == 3
    assert stats["failure_reasons"] == {"cancelled": 2}
    wait_for(lambda: os.listdir(daemon.root / "tmp") == [], "private directories to go")
    wait_for(
        lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) <= before + 2, "descriptors to be closed"
    )


def test_client_notices_a_dead_daemon_though_a_grandchild_of_a_tool_lives_on(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    child = tmp_path / "child"
    # Of another session and without the environment by which the guard would find it.
    leave = f"env -i setsid sh -c 'echo $$ > {child}; exec sleep 600' &"
    compiler = LoggingCompiler(
        tmp_path / "logging", before=f'case " $* " in *" -c "*) {leave} ;; esac\n{gate.script}'
    )
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    said: list[Exception] = []

    def wait_for_an_answer() -> None:
        with daemon.client() as client:
            try:
                client.compile("host", {"k.c": source(0)}, env=compiler.env)
            except WireError as error:
                said.append(error)

    waiting = threading.Thread(target=wait_for_an_answer)
    waiting.start()
    wait_for(gate.arrivals, "the compiler to run")
    wait_for(lambda: child.exists() and child.read_text().strip(), "its child to run")
    grandchild = int(child.read_text())
    try:
        daemon.kill()
        waiting.join(DEADLINE_S)
        assert len(said) == 1
        # And not by asking whether it lives, which takes its time.
        assert "does not answer" not in str(said[0])
        assert alive(grandchild)
        wait_for(lambda: not alive(gate.arrivals()[0]), "the tool to end with its daemon")
    finally:
        os.kill(grandchild, signal.SIGKILL)
    assert daemon.start().stats()["corrupt"] == 0
    assert os.listdir(daemon.root / "tmp") == []
