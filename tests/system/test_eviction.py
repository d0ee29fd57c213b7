"""The store within its limits: what goes, in which order, and what does not mind."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.client import Client
from ptocache.errors import BadRequestError, UnknownEntryError
from ptocache.kernel import Lease
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from tests.harness import DEADLINE_S, DaemonProcess, Gate, LoggingCompiler, wait_for
from tests.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeDaemon = Callable[..., DaemonProcess]

ENV = {"PATH": os.environ.get("PATH", "")}
KIB = 1 << 10
MIB = 1 << 20


def source(number: int, size: int = 200_000) -> bytes:
    """A kernel whose object takes a little more than ``size`` bytes."""
    return b"const char big_%d[%d] = {%d};\n" % (number, size, number % 100 + 1)


def ask(client: Client, number: int, size: int = 200_000, **more: Any) -> Result:
    return client.compile(
        "host", {"k.c": source(number, size)}, env=ENV, outputs=["object"],
        **{"kernel": f"kernel{number}", "options": ["-O0"], **more},
    )  # fmt: skip


def fill(client: Client, numbers: range, size: int = 200_000) -> None:
    for number in numbers:
        assert ask(client, number, size).ok


def store_part(client: Client) -> dict[str, int]:
    found: dict[str, int] = client.stats()["store"]
    return found


def settled_part(client: Client, entries: int, limit: int) -> dict[str, int]:
    """The same once the eviction, which runs beside the requests and is counted at its end, is over:
    each of so many entries is there or was evicted."""

    def is_over() -> bool:
        part = store_part(client)
        return part["bytes"] <= limit and part["entries"] + part["evicted"] == entries

    wait_for(is_over, "the cap to be kept and each entry to be counted")
    return store_part(client)


def disk_blocks(root: Path) -> int:
    """Bytes that the stored files take by their blocks."""
    found = 0
    for path in (root / "blobs").glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


def age(daemon: DaemonProcess, ages: dict[str, float]) -> None:
    """Say of a stopped store when its kernels were last used: seconds ago."""
    with sqlite3.connect(daemon.root / "index.sqlite") as connection:
        for kernel, seconds in ages.items():
            connection.execute(
                "UPDATE entries SET last_s = ? WHERE kernel = ?", (time.time() - seconds, kernel)
            )
    connection.close()


def kept(client: Client, numbers: range) -> list[int]:
    """Which kernels are stored; asks without compiling."""
    found = []
    for number in numbers:
        try:
            result = ask(client, number, mode="read-only")
        except OSError:
            continue
        if result.outcome.is_hit:
            found.append(number)
    return found


# --- the cap


OLDEST = range(10)
ENTRIES = 100


def kernel(client: Client, number: int) -> Result | Lease:
    return client.kernel("host", {"number": str(number)})


def bundle(number: int) -> dict[str, bytes]:
    """The files of a kernel that a framework builds: 1 MiB."""
    return {"k": bytes([number]) * MIB}


def held(result: Result) -> dict[str, bytes]:
    return {name: bytes(item.buffer) for name, item in result.outputs.items()}


class Reader(threading.Thread):
    """Reads the oldest entries whenever it is told to; what is no hit, or another's bytes, is a fault."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self.told: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.read: queue.SimpleQueue[list[object]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while self.told.get():
            try:
                self.read.put([number for number in OLDEST if not self._is_there(number)])
            except BaseException as error:
                self.read.put([error])

    def _is_there(self, number: int) -> bool:
        found = kernel(self._client, number)
        return isinstance(found, Result) and held(found) == bundle(number)


@pytest.mark.kind("unbounded_growth")
def test_unbounded_growth_ends_at_the_cap_and_what_is_read_stays(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    # Without times of access nothing but the store itself knows what is read.
    with small_disk(tmp_path / "store", 64 * MIB, "noatime"):
        daemon = make_daemon(max_size="20M").start()
        with daemon.client() as client, daemon.client() as one, daemon.client() as two:

            def store(number: int) -> None:
                lease = kernel(client, number)
                assert isinstance(lease, Lease)
                assert lease.put(bundle(number)).outcome is Outcome.MISS

            for number in OLDEST:
                store(number)
            readers = [Reader(one), Reader(two)]
            try:
                for number in range(len(OLDEST), ENTRIES):
                    if number % 3 == 1:
                        for reader in readers:
                            reader.told.put(True)
                    store(number)
                    if number % 3 == 0:
                        read = [reader.read.get(timeout=DEADLINE_S) for reader in readers]
                        assert read == [[], []]
                        # The eviction runs beside the requests.
                        wait_for(lambda: disk_blocks(daemon.root) <= 20 * MIB, "the cap to be kept")
            finally:
                for reader in readers:
                    reader.told.put(False)
                    reader.join(DEADLINE_S)
            part = settled_part(client, ENTRIES, 20 * MIB)
            assert part["limit"] == 20 * MIB
            assert part["entries"] > len(OLDEST)
            for number, is_there in ((0, True), (9, True), (10, False), (ENTRIES - 1, True)):
                found = kernel(client, number)
                assert isinstance(found, Result) is is_there, number
                if isinstance(found, Lease):
                    found.abandon()
            kernels = client.stats()["caches"]["kernel"]
            assert (kernels["store_failure"], kernels["corrupt"]) == (0, 0)
        daemon.stop()


@pytest.mark.kind("unbounded_growth")
def test_unbounded_growth_by_small_entries_ends_as_well_since_whole_blocks_count(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon(max_size="300k", low_water="0.5").start()
    with daemon.client() as client:
        jobs = [
            client.job("host", {"k.c": b"int n%d;\n" % n}, env=ENV, outputs=["object"])
            for n in range(60)
        ]
        assert all(result.ok for _, result in client.compile_many(jobs))
        part = settled_part(client, 60, 300 * KIB)
        assert part["bytes"] == disk_blocks(daemon.root)


def test_least_recently_used_goes_first(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        fill(client, range(8))
        for number in (0, 1):
            assert ask(client, number).outcome is Outcome.MEMORY_HIT
        size = store_part(client)["bytes"]
        client.call("gc", max_size=size // 2)
        assert kept(client, range(8)) == [0, 1, 6, 7]


def test_order_of_use_survives_a_restart_and_a_kill(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        fill(client, range(8))
        ask(client, 1)
    daemon.restart()
    with daemon.client() as client:
        ask(client, 0)

        def written() -> bool:
            entry = client.describe(ask(client, 0, mode="read-only").key)["entries"][0]
            return bool(entry["hits"] >= 1)

        wait_for(written, "the use to be written")
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        client.call("gc", max_size=store_part(client)["bytes"] // 2)
        assert kept(client, range(8)) == [0, 1, 6, 7]


def test_entry_larger_than_the_cap_is_served_and_not_stored(make_daemon: MakeDaemon) -> None:
    with make_daemon(max_size="100k").start().client() as client:
        small = ask(client, 1, 1000)
        for _ in range(2):
            found = ask(client, 2, 200_000)
            assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.TOO_LARGE)
            assert found.outputs["object"].size > 200_000
            assert b"big_2" in bytes(found.outputs["object"].buffer)
        assert store_part(client)["entries"] == 1
        assert ask(client, 1, 1000).outcome is Outcome.MEMORY_HIT
        assert small.key


def test_outputs_stay_readable_after_their_entries_went(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(max_size="2M", low_water="0.5").start()
    with daemon.client() as client:
        held = [ask(client, number) for number in range(4)]
        before = [bytes(item.outputs["object"].buffer) for item in held]
        client.call("gc", max_size=0)
        assert store_part(client) | {"evicted": 0} == {
            "entries": 0, "bytes": 0, "limit": 2 * MIB, "evicted": 0,
        }  # fmt: skip
        assert list((daemon.root / "blobs").glob("*/*")) == []
        assert [bytes(item.outputs["object"].buffer) for item in held] == before
        for item, data in zip(held, before, strict=True):
            descriptor = item.outputs["object"].file
            assert descriptor is not None
            assert os.pread(descriptor.fileno(), len(data), 0) == data


def test_readers_never_fail_while_entries_come_and_go(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(max_size="1500k", low_water="0.5").start()
    faults: list[object] = []
    done = threading.Event()

    def read(client: Client) -> None:
        try:
            while not done.is_set():
                for number in range(3):
                    found = ask(client, number)
                    if b"big_%d" % number not in bytes(found.outputs["object"].buffer):
                        faults.append(found)
        except BaseException as error:
            faults.append(error)

    with daemon.client() as client:
        readers = [threading.Thread(target=read, args=(client,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        with daemon.client() as writer:
            fill(writer, range(10, 30))
        done.set()
        for reader in readers:
            reader.join(DEADLINE_S)
        assert faults == []
        wait_for(lambda: store_part(client)["evicted"] > 0, "an eviction to be counted")
        binary = client.stats()["caches"]["binary"]
    assert binary["corrupt"] == 0, "an eviction is no damage"
    assert binary["store_failure"] == 0
    assert binary["failure"] == 0


# --- gc


def test_gc_by_age_takes_what_was_not_used_for_so_long(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        fill(client, range(4))
    daemon.stop()
    age(daemon, {"kernel0": 3600, "kernel1": 7200, "kernel2": 60})
    daemon.start()
    with daemon.client() as client:
        foreseen = client.call("gc", max_age=1800, dry_run=True)
        assert foreseen["entries"] == 2
        assert store_part(client)["entries"] == 4
        removed = client.call("gc", max_age=1800)
        assert removed == foreseen
        assert kept(client, range(4)) == [2, 3]
        assert store_part(client)["evicted"] == 2


def test_gc_by_size_keeps_what_fits_and_says_what_it_did(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        fill(client, range(6))
        before = store_part(client)
        limit = before["bytes"] // 3
        foreseen = client.call("gc", max_size=limit, dry_run=True)
        assert store_part(client) == before, "a dry run changes nothing"
        assert len(list((daemon.root / "blobs").glob("*/*"))) == 12
        removed = client.call("gc", max_size=limit)
        after = store_part(client)
        assert removed == foreseen
        assert removed["entries"] == before["entries"] - after["entries"] == 4
        assert removed["bytes"] == before["bytes"] - after["bytes"]
        assert removed["remaining"] == after["bytes"] <= limit
        assert after["bytes"] == disk_blocks(daemon.root)


def test_gc_without_limits_does_nothing_while_the_cap_is_kept(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        fill(client, range(2), 1000)
        assert client.call("gc")["entries"] == 0
        assert store_part(client)["entries"] == 2
        for wrong in ({"max_size": -1}, {"max_age": "old"}):
            with pytest.raises(BadRequestError):
                client.call("gc", **wrong)


def test_daemon_takes_by_itself_what_is_too_old(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(max_age="1h", rescan="0.1s").start()
    with daemon.client() as client:
        fill(client, range(3), 1000)
    daemon.stop()
    age(daemon, {"kernel0": 7200, "kernel1": 7200})
    daemon.start()
    with daemon.client() as client:
        wait_for(lambda: store_part(client)["entries"] == 1, "the old ones to go")
        wait_for(lambda: store_part(client)["evicted"] == 2, "them to be counted")


def test_blob_that_two_entries_need_stays_with_the_last(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        first = ask(client, 1)
        second = ask(client, 1, options=["-O0", "-DUNUSED"])
        assert first.key != second.key
        assert first.outputs["object"].digest == second.outputs["object"].digest
        client.call("invalidate", keys=[first.key])
        again = ask(client, 1, options=["-O0", "-DUNUSED"])
        assert again.outcome is Outcome.MEMORY_HIT
    daemon.restart()
    with daemon.client() as client:
        client.call("gc", max_size=0)
    assert list((daemon.root / "blobs").glob("*/*")) == []


# --- invalidate


@pytest.fixture
def four(daemon: DaemonProcess) -> DaemonProcess:
    """A daemon with the kernels 0 to 3, of which the first two are old."""
    with daemon.client() as client:
        fill(client, range(4), 1000)
    daemon.stop()
    age(daemon, {"kernel0": 7200, "kernel1": 7200})
    return daemon.start()


def stored(client: Client) -> list[int]:
    return [n for n in range(4) if ask(client, n, 1000, mode="read-only").outcome.is_hit]


@pytest.mark.parametrize(
    ("meant", "left"),
    [
        ({"kernel": "kernel2"}, [0, 1, 3]),
        ({"older_than": 3600}, [2, 3]),
        ({"older_than": 3600, "kernel": "kernel0"}, [1, 2, 3]),
        ({"toolchain": "host"}, []),
        ({"toolchain": "other"}, [0, 1, 2, 3]),
        ({"arch": os.uname().machine}, []),
        ({"arch": "ascend910b"}, [0, 1, 2, 3]),
        ({"all": True}, []),
    ],
    ids=str,
)
def test_invalidate_takes_what_is_meant(
    four: DaemonProcess, meant: dict[str, Any], left: list[int]
) -> None:
    with four.client() as client:
        foreseen = client.call("invalidate", dry_run=True, **meant)
        assert store_part(client)["entries"] == 4
        removed = client.call("invalidate", **meant)
        assert removed["entries"] == foreseen["entries"] == 4 - len(left)
        assert removed["removed"] == foreseen["removed"]
        assert {item["kernel"] for item in removed["removed"]} == {
            f"kernel{n}" for n in range(4) if n not in left
        }
        assert store_part(client)["evicted"] == 0, "an invalidation is no eviction"
        assert stored(client) == left
        assert len(list((four.root / "blobs").glob("*/*"))) == 2 * len(left)


def test_invalidate_by_keys_and_beginnings_of_keys(four: DaemonProcess) -> None:
    with four.client() as client:
        keys = [ask(client, n, 1000, mode="read-only").key for n in range(4)]
        removed = client.call("invalidate", keys=[keys[0], keys[2][:12]])
        assert removed["entries"] == 2
        assert stored(client) == [1, 3]
        with pytest.raises(UnknownEntryError):
            client.describe(keys[0])
        for wrong in ({}, {"keys": ["xyz!"]}, {"keys": ["abc"]}, {"older_than": -1}):
            with pytest.raises(BadRequestError):
                client.call("invalidate", **wrong)
        assert stored(client) == [1, 3]


def test_invalidate_keeps_a_running_compile_from_being_stored(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    results: list[Result] = []

    def compile_it() -> None:
        with daemon.client() as client:
            results.append(client.compile("host", {"k.c": b"int x;\n"}, env=logging_compiler.env))

    thread = threading.Thread(target=compile_it)
    thread.start()
    wait_for(gate.arrivals, "the compile to begin")
    with daemon.client() as client:
        # Even one that means nothing that is stored.
        assert client.call("invalidate", kernel="nobody's")["entries"] == 0
        gate.open()
        thread.join(DEADLINE_S)
        assert (results[0].outcome, results[0].reason) == (Outcome.BYPASS, Reason.INVALIDATED)
        assert store_part(client)["entries"] == 0
        again = client.compile("host", {"k.c": b"int x;\n"}, env=logging_compiler.env)
        assert again.outcome is Outcome.MISS
    assert len(logging_compiler.compiles()) == 2


def test_waiters_of_an_invalidated_compile_compile_anew(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client, daemon.client() as other:
        jobs = [
            client.job("host", {"k.c": b"int x;\n"}, env=logging_compiler.env) for _ in range(3)
        ]

        def invalidate() -> None:
            wait_for(lambda: other.call("status")["waiting"] == 3, "all to wait")
            wait_for(gate.arrivals, "the compile to begin")
            other.call("invalidate", all=True)
            gate.open()

        thread = threading.Thread(target=invalidate)
        thread.start()
        outcomes = sorted(result.outcome for _, result in client.compile_many(jobs))
        thread.join(DEADLINE_S)
        assert outcomes.count(Outcome.BYPASS) == 1
        assert outcomes.count(Outcome.MISS) == 1
        assert store_part(client)["entries"] == 1
    assert len(logging_compiler.compiles()) == 2
