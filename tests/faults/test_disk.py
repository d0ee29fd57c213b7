"""A disk that refuses: every answer is right, what is stored is still hit, nothing is left over, the
trouble is counted by its name, and storing resumes when the cause is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sqlite3
import subprocess
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.outcome import Event, Outcome, Reason
from ptocache.paths import StorePaths
from tests.faults.faultlayer import ALWAYS, CHANGES
from tests.faults.store_process import StoreProcess, find, open_store, publish
from tests.harness import DaemonProcess, compile_directly, wait_for
from tests.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptocache.store.store import Store
    from tests.faults.faultlayer import Call, FaultLayer

ENV = {"PATH": os.environ.get("PATH", "")}
ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EBUSY, errno.EMFILE,
    errno.EFBIG, errno.EXDEV,
)  # fmt: skip
READS = ("open_read", "read", "stat")
MIB = 1 << 20


def place_of(call: Call, root: Path) -> tuple[str, str]:
    """What kind of call it is, on what kind of file."""
    below = call.path.removeprefix(str(root))
    for name in ("index.sqlite-wal", "index.sqlite-shm", "index.sqlite", "/tmp/blob-", "/tmp/job-",
                 "/tmp/probe-", "/blobs/", "/quarantine/"):  # fmt: skip
        if name in below:
            return call.kind, name
    return call.kind, ""


def distinct(layer: FaultLayer, root: Path) -> list[tuple[str, str]]:
    """The kinds of calls that were counted, each once, in their order."""
    return list(dict.fromkeys(place_of(call, root) for call in layer.calls()))


# --- the store's own calls, each with each error


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with the entries ``a`` and ``b``."""
    found = tmp_path / "store"
    store = open_store(str(found))
    for name in "ab":
        assert publish(store, name) == "right"
    store.close()
    return found


@contextlib.contextmanager
def afterwards(root: Path) -> Iterator[Store]:
    """The store when all is over: whole, with nothing left over."""
    store = open_store(str(root))
    try:
        assert store.was_clean, "whatever happened, it was closed in order"
        assert os.listdir(store.paths.tmp) == []
        needed = {blob.digest.sha256 for blob in store.index.all_blobs()}
        assert {sha256 for sha256, _ in store.blobs.walk()} == needed
        assert [find(store, name) for name in "ab"] == ["right", "right"]
        yield store
    finally:
        store.close()


def blobs_of(root: Path) -> set[str]:
    return {path.name for path in (root / "blobs").glob("*/*")}


def counted(answer: dict[str, Any]) -> int:
    return sum(answer["failures"].values())


def test_each_call_of_a_publish_may_fail_in_each_way(root: Path, layer: FaultLayer) -> None:
    with StoreProcess(root, layer) as process:
        layer.watch(armed=False)
        assert process.order("publish", "first")["result"] == "right"
        kinds = distinct(layer, root)
        assert {("write", "/tmp/blob-"), ("rename", "/blobs/"), ("write", "index.sqlite-wal")} <= {
            *kinds
        }
        known = 0
        for number, (kind, place) in enumerate(kinds):
            for error in ERRORS:
                name = f"k{number}-{error}"
                before = blobs_of(root)
                layer.fail(error, kind, needle=place, armed=False)
                found = process.order("publish", name)
                assert layer.fired == 1, (kind, place)
                assert found["result"] in ("right", Reason.STORE_FAILED.label), (kind, place)
                if found["result"] != "right":
                    assert blobs_of(root) == before, "what was made visible is taken back"
                if found["result"] != "right" or kind == "unlink":
                    assert counted(found) >= known + (kind != "unlink"), (kind, place, error)
                    if place.startswith("index"):
                        assert found["last_failure"]["place"] == "index"
                        assert found["last_failure"]["error"].startswith("SQLITE_")
                    elif kind != "unlink":
                        assert found["last_failure"]["error"] == errno.errorcode[error]
                        assert found["last_failure"]["doing"] == "publish"
                known = counted(found)
                layer.off()
                assert process.order("find", "a")["result"] == "right"
                assert process.order("publish", name)["result"] == "right", "storing resumes"
        process.order("flush")
    with afterwards(root) as store:
        stats = store.index.counts()
        stored = store.index.totals()[0]
        assert stored == 3 + len(kinds) * len(ERRORS)
        assert sum(n for slot, n in stats.items() if slot.kind == "event") > len(ERRORS)


def test_unfinished_file_that_cannot_be_removed_at_once_is_removed_later(
    root: Path, layer: FaultLayer
) -> None:
    with StoreProcess(root, layer) as process:
        layer.fail(errno.EBUSY, "chmod", "unlink", needle="/tmp/blob-", times=2, armed=False)
        assert process.order("publish", "k")["result"] == Reason.STORE_FAILED.label
        assert layer.fired == 2
        assert len(os.listdir(root / "tmp")) == 1
        layer.off()
        process.order("flush")
        assert os.listdir(root / "tmp") == []
    with afterwards(root):
        pass


@pytest.mark.kind("network_file_system")
def test_network_file_system_that_hides_what_was_just_stored_costs_a_counted_entry_at_worst(
    root: Path, layer: FaultLayer
) -> None:
    hidden = [
        (error, kind, skip)
        for error in (errno.ENOENT, errno.ESTALE)
        for kind in ("open_read", "read")
        for skip in (0, 1)
    ]
    with StoreProcess(root, layer) as process:
        for number, (error, kind, skip) in enumerate(hidden):
            name = f"k{number}"
            layer.fail(error, kind, needle="/blobs/", skip=skip, armed=False)
            found = process.order("publish", name)
            assert (found["result"], layer.fired) == (Reason.STORE_FAILED.label, 1)
            layer.off()
            assert process.order("publish", name)["result"] == "right"
        process.order("flush")
    with afterwards(root) as store:
        events = {slot.what: n for slot, n in store.index.counts().items() if slot.kind == "event"}
        assert store.index.totals()[0] == 2 + len(hidden)
        assert events[Event.STORE_FAILURE] == len(hidden)


@pytest.mark.parametrize("order", ["evict", "invalidate"])
def test_each_call_of_a_removal_may_fail_in_each_way(
    root: Path, layer: FaultLayer, order: str
) -> None:
    with StoreProcess(root, layer) as process:
        process.order("publish", "k")
        layer.watch(armed=False)
        assert process.order(order, "k")["result"] == 1
        kinds = distinct(layer, root)
        assert kinds == [("write", "index.sqlite-wal"), ("unlink", "/blobs/")]
        for kind, place in kinds:
            for error in ERRORS:
                assert process.order("publish", "k")["result"] == "right"
                layer.fail(error, kind, needle=place, armed=False)
                found = process.order(order, "k", before="flush")
                assert layer.fired == 1
                if place.startswith("index"):
                    assert "index" in found["error"], "who asked for it is told"
                    assert process.order("find", "k")["result"] == "right", "and nothing is removed"
                else:
                    assert found["result"] == 1
                    assert found["last_failure"]["error"] == errno.errorcode[error]
                    assert found["last_failure"]["place"] == "blobs"
                process.order("flush")
                process.order(order, "k")
                assert process.order("find", "k")["result"] == "nothing"
                assert process.order("find", "a")["result"] == "right"
    with afterwards(root):
        pass


def test_each_call_of_a_flush_may_fail_in_each_way_and_loses_no_count(
    root: Path, layer: FaultLayer
) -> None:
    with StoreProcess(root, layer) as process:
        layer.watch(armed=False)
        process.order("flush", "a", before="count")
        writes = layer.seen
        assert writes > 2
        for skip in range(writes):
            for error in ERRORS:
                layer.fail(error, "write", needle="index.sqlite-wal", skip=skip, armed=False)
                found = process.order("flush", "a", before="count")
                assert layer.fired == 1
                assert found["last_failure"]["doing"] == "statistics"
                layer.off()
                process.order("flush")
    with afterwards(root) as store:
        counts = store.index.counts()
        requests = sum(n for slot, n in counts.items() if slot.kind == "outcome")
        assert requests == 1 + writes * len(ERRORS)
        hits = {row.kernel: row.hits for row in store.index.oldest(-1)}
        assert hits["a"] == 1 + writes * len(ERRORS)


def test_each_call_of_a_look_up_may_fail_in_each_way(root: Path, layer: FaultLayer) -> None:
    with StoreProcess(root, layer) as process:
        process.order("find", "b")
        layer.watch(*READS, armed=False)
        assert process.order("find", "a")["result"] == "right"
        kinds = distinct(layer, root)
        assert ("open_read", "/blobs/") in kinds
        for kind, place in kinds:
            for error in (*ERRORS, errno.ENOENT):
                layer.fail(error, kind, needle=place, armed=False)
                found = process.order("find", "a")
                assert found["result"] in ("right", "nothing")
                if found["result"] == "nothing" and error != errno.ENOENT:
                    assert counted(found) > 0
                layer.off()
                # ENOENT is what a file that is gone says: then the entry goes.
                assert process.order("publish", "a")["result"] == "right"
                assert process.order("find", "a")["result"] == "right"
    with afterwards(root):
        pass


def test_each_call_of_a_start_may_fail_in_each_way(root: Path, layer: FaultLayer) -> None:
    with StoreProcess(root, layer) as process:
        layer.watch(*CHANGES, "open_read", "read", "lock", "map", armed=False)
        assert process.order("open", "a", fork=True)["result"] == "right"
        kinds = list(dict.fromkeys(distinct(layer, root)))
        assert ("open_write", "index.sqlite-wal") in kinds
        refused = served = 0
        for kind, place in kinds:
            for error in ERRORS:
                layer.fail(error, kind, needle=place, armed=False)
                found = process.order("open", "a", fork=True)
                assert found["status"] == 0
                if "error" in found:
                    assert str(root) in found["error"], "refused, and it says what"
                    refused += 1
                else:
                    assert found["result"] in ("right", "nothing")
                    served += found["result"] == "right"
            layer.off()
            assert process.order("open", "a", fork=True)["result"] == "right"
        assert served > refused, "a store that opens gives its hits"
    store = open_store(str(root))
    assert [find(store, name) for name in "ab"] == ["right", "right"]
    assert os.listdir(store.paths.quarantine) == [], "a disk that refuses is no damage"
    store.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_index_without_room_for_its_journal_is_read_until_there_is_room(
    root: Path, layer: FaultLayer, error: int
) -> None:
    with StoreProcess(root, layer) as process:
        layer.fail(
            error,
            "open_write",
            "write",
            "truncate",
            needle="index.sqlite-",
            times=ALWAYS,
            armed=False,
        )
        found = process.order("open", "a", fork=True)
        assert (found["result"], found["read_only"]) == ("right", True)
        assert found["last_failure"]["doing"] == "open"
        assert found["last_failure"]["place"] == "index"
        layer.off()
        assert process.order("open", "a", fork=True)["read_only"] is False
    store = open_store(str(root))
    assert [find(store, name) for name in "ab"] == ["right", "right"]
    store.close()


def test_short_writes_are_no_failure(root: Path, layer: FaultLayer) -> None:
    with StoreProcess(root, layer) as process:
        layer.fall_short(times=ALWAYS, armed=False)
        found = process.order("publish", "k")
        assert layer.fired > 4
        assert (found["result"], found["failures"]) == ("right", {})
    with afterwards(root) as store:
        assert find(store, "k") == "right"


# --- a whole daemon


def source(number: int, size: int = 1) -> bytes:
    return b"const char kernel_%d[%d] = {%d};\n" % (number, size, number % 100 + 1)


def ask(daemon: DaemonProcess, number: int, size: int = 1, **overrides: object) -> Any:
    with daemon.client(**overrides) as client:
        return client.compile(
            "host", {"k.c": source(number, size)}, env=ENV, outputs=["object"], check=False
        )


def verify_bytes(found: Any, directory: Path, number: int, size: int = 1) -> None:
    wanted = compile_directly(source(number, size), "k.c", [], directory / "direct")
    assert found.outputs["object"].buffer == wanted


def health(daemon: DaemonProcess) -> dict[str, Any]:
    """As ``status`` and ``stats`` tell it."""
    found: list[dict[str, Any]] = []

    def both_tell_the_same() -> bool:
        # A flush that fails in between, once a second, is told by the later one alone.
        with daemon.client() as client:
            found[:] = client.call("status")["health"], client.call("stats")["daemon"]["health"]
        return found[0] == found[1]

    wait_for(both_tell_the_same, "both to tell the same")
    return found[0]


def wait_for_tidiness(daemon: DaemonProcess) -> None:
    wait_for(lambda: os.listdir(daemon.root / "tmp") == [], "nothing to be left in tmp/")


def test_every_client_is_served_whatever_one_call_of_its_compile_says(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    daemon = layer.on(make_daemon(fsync=1)).start()
    # The toolchain is asked who it is but once.
    ask(daemon, 1000)
    layer.watch()
    ask(daemon, 0)
    wait_for(lambda: any(c.path.endswith("-wal") for c in layer.calls()[-1:]), "the flush")
    kinds = distinct(layer, daemon.root)
    assert ("mkdir", "/tmp/job-") in kinds
    number = 0
    for (kind, place), error in zip(kinds, cycle(ERRORS), strict=False):
        number += 1
        layer.fail(error, kind, needle=place)
        found = ask(daemon, number, client_require=True)
        assert found.outcome in (Outcome.MISS, Outcome.BYPASS), (kind, place, found.why)
        assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
        wait_for(lambda: layer.fired == 1, f"{kind} of {place}")
        layer.off()
        verify_bytes(found, tmp_path, number)
        assert ask(daemon, number).outcome in (Outcome.MISS, Outcome.MEMORY_HIT)
        assert ask(daemon, number).outcome is Outcome.MEMORY_HIT
    wait_for_tidiness(daemon)
    stats = daemon.stats()
    assert stats["requests"] == 2 + 4 * number
    assert stats["store_failure"] == stats["bypass"] == stats["bypass_reasons"]["store_failed"] > 0
    assert stats["failure"] == 0
    # The last fault may have met the flush, which goes on beside the compiles.
    assert health(daemon)["last_failure"]["doing"] in ("scratch", "publish", "statistics")
    assert daemon.stop() == 0
    with open_and_close(daemon.root) as store:
        assert store.was_clean
    assert "Traceback" not in daemon.log()


@contextlib.contextmanager
def open_and_close(root: Path) -> Iterator[Store]:
    store = open_store(str(root))
    try:
        yield store
    finally:
        store.close()


@pytest.mark.kind("full_disk")
def test_full_disk_takes_no_answer_and_no_hit_and_storing_resumes_with_room(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "store", 5 * MIB) as real:
        daemon = layer.on(make_daemon()).start()
        if not real:
            # A file that is there is opened on a full disk as well.
            layer.fail(errno.ENOSPC, "write", "mkdir", skip=150, times=ALWAYS)
        size = MIB
        for number in range(12):
            found = ask(daemon, number, size)
            assert found.outcome in (Outcome.MISS, Outcome.BYPASS), found.why
            verify_bytes(found, tmp_path, number, size)
        stats = daemon.stats()
        assert stats["miss"] + stats["bypass"] == 12
        assert stats["bypass_reasons"] == {"store_failed": stats["bypass"]}
        assert stats["store_failure_reasons"] == {"no_space": stats["bypass"]}
        assert min(stats["miss"], stats["bypass"]) > 1
        last = health(daemon)["last_failure"]
        assert last["error"] in ("ENOSPC", "SQLITE_FULL")
        assert last["at_s"] > 0
        assert ask(daemon, 0, size).outcome is Outcome.MEMORY_HIT
        wait_for_tidiness(daemon)
        if not real:
            # What is there keeps its room: SQLite's shared memory has its own again.
            layer.fail(errno.ENOSPC, "write", "mkdir", needle="/tmp/", times=ALWAYS)
        daemon.restart()
        assert ask(daemon, 0, size).outcome is Outcome.DISK_HIT, "a start on a full disk gives hits"
        layer.off()
        with daemon.client() as client:
            client.call("gc", max_size=size)
        wait_for(lambda: ask(daemon, 13, size).outcome is not Outcome.BYPASS, "storing to resume")
        assert ask(daemon, 13, size).outcome is Outcome.MEMORY_HIT
        wait_for_tidiness(daemon)
        assert "Traceback" not in daemon.log()
        daemon.stop()


@pytest.mark.kind("full_disk")
def test_full_disk_on_which_a_tool_failed_is_left_for_another_place_and_forgotten(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "store", 2 * MIB) as real:
        daemon = layer.on(make_daemon()).start()
        ask(daemon, 0)
        size = 4 * MIB if real else 1
        if not real:
            layer.fail(errno.ENOSPC, "mkdir", "open_write", "write", times=ALWAYS)
        found = ask(daemon, 1, size, client_require=True)
        assert found.reason is Reason.STORE_FAILED
        verify_bytes(found, tmp_path, 1, size)
        assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
        wait_for_tidiness(daemon)
        spare = Path(StorePaths(str(daemon.root)).spare)
        wait_for(lambda: os.listdir(spare) == [], "nothing to be left in the other place")
        daemon.stop()
        assert not spare.parent.exists()


@pytest.mark.kind("unwritable_cache_directory")
@pytest.mark.parametrize("way", ["layer", "mount"])
def test_unwritable_cache_directory_that_is_warm_gives_hits_and_counts_what_it_cannot_store(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path, way: str
) -> None:
    with small_disk(tmp_path / "store", 8 * MIB) as real:
        daemon = layer.on(make_daemon()).start()
        ask(daemon, 0)
        ask(daemon, 1, 300000)
        daemon.stop()
        before = _everything(daemon.root)
        if way == "mount" and real:
            subprocess.run(["mount", "-o", "remount,ro", str(daemon.root)], check=True)
        else:
            layer.make_read_only()
        daemon.start()
        for _ in range(2):
            assert ask(daemon, 0).outcome.is_hit
            assert ask(daemon, 1, 300000).outcome.is_hit
        for _ in range(2):
            fresh = ask(daemon, 2)
            assert (fresh.outcome, fresh.reason) == (Outcome.BYPASS, Reason.READ_ONLY)
            verify_bytes(fresh, tmp_path, 2)
        verify_bytes(ask(daemon, 1, 300000), tmp_path, 1, 300000)
        assert health(daemon)["read_only"] is True
        stats = daemon.stats()
        assert stats["bypass_reasons"] == {"read_only": 2}
        assert daemon.log().count("it is only read") == 1
        with daemon.client() as client, pytest.raises(OSError, match="read-only"):
            client.call("invalidate", all=True)
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log()
        assert _everything(daemon.root) == before
        aside = Path(StorePaths(str(daemon.root)).aside)
        assert os.listdir(aside) == ["daemon.lock"], "no private directory is left there either"
        shutil.rmtree(aside)
        layer.off()
        if way == "mount" and real:
            subprocess.run(["mount", "-o", "remount,rw", str(daemon.root)], check=True)
        daemon.start()
        assert health(daemon)["read_only"] is False
        assert ask(daemon, 2).outcome is Outcome.MISS
        daemon.stop()


def _everything(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_store_that_becomes_read_only_gives_hits_and_stores_again_afterwards(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    daemon = layer.on(make_daemon()).start()
    ask(daemon, 0)
    layer.make_read_only()
    found = ask(daemon, 1)
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.STORE_FAILED)
    verify_bytes(found, tmp_path, 1)
    assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
    assert health(daemon)["failures"]["EROFS"] > 0
    layer.off()
    assert ask(daemon, 1).outcome is Outcome.MISS
    assert ask(daemon, 1).outcome is Outcome.MEMORY_HIT


def test_limit_on_file_sizes_kills_no_daemon_and_breaks_no_build(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    ask(daemon, 0)
    old = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (64 << 10, old[1]))
    with pytest.warns(UserWarning, match="without its daemon"):
        # The tools inherit the limit, wherever they write: the client's own have none.
        large = ask(daemon, 1, 300000, client_require=False)
    verify_bytes(large, tmp_path, 1, 300000)
    for number in range(2, 6):
        found = ask(daemon, number)
        assert found.outcome in (Outcome.MISS, Outcome.BYPASS)
        verify_bytes(found, tmp_path, number)
    assert daemon.stats()["store_failure"] > 0
    assert any(
        name in health(daemon)["failures"]
        for name in ("EFBIG", "SQLITE_FULL", "SQLITE_IOERR_WRITE")
    )
    assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, old)
    assert ask(daemon, 1, 300000).outcome is Outcome.MISS, "the failure was not remembered"
    assert ask(daemon, 1, 300000).outcome is Outcome.MEMORY_HIT
    assert daemon.stop() == 0


def test_foreign_lock_on_the_index_costs_entries_and_no_answer(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    ask(daemon, 0)
    foreign = sqlite3.connect(daemon.root / "index.sqlite", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    for number in (1, 2, 3):
        found = ask(daemon, number)
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.STORE_FAILED)
        verify_bytes(found, tmp_path, number)
    assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
    assert health(daemon)["last_failure"]["error"] == "SQLITE_BUSY"
    foreign.execute("ROLLBACK")
    foreign.close()
    assert ask(daemon, 1).outcome is Outcome.MISS
    assert daemon.stats()["store_failure"] == 3


@pytest.mark.kind("network_file_system")
def test_network_file_system_that_is_busy_or_stale_costs_a_recompile_at_worst(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    daemon = layer.on(make_daemon()).start()
    ask(daemon, 0)
    rules: list[tuple[int, tuple[str, ...], dict[str, Any]]] = [
        (errno.EBUSY, ("unlink", "rmdir"), {"needle": "", "times": ALWAYS}),
        (errno.ESTALE, ("rename",), {"needle": "/blobs/"}),
        (errno.ESTALE, ("rename",), {"needle": "/blobs/", "skip": 1}),
        # Of the output itself, right after it was renamed to its place.
        (errno.ENOENT, ("open_read",), {}),
        (errno.ESTALE, ("open_read",), {}),
        (errno.ESTALE, ("read",), {}),
    ]
    for number, (error, kinds, more) in enumerate(rules, 1):
        made = compile_directly(source(number), "k.c", [], tmp_path / "direct")
        layer.fail(error, *kinds, **{"needle": sha256(made).hexdigest(), **more})
        found = ask(daemon, number)
        assert found.outcome is (Outcome.MISS if error == errno.EBUSY else Outcome.BYPASS)
        assert found.outputs["object"].buffer == made
        assert layer.fired > 0
        layer.off()
        assert ask(daemon, number).outcome in (Outcome.MEMORY_HIT, Outcome.DISK_HIT, Outcome.MISS)
        assert ask(daemon, number).outcome is Outcome.MEMORY_HIT
        assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
    stats = daemon.stats()
    assert stats["failure"] == 0
    assert stats["bypass_reasons"] == {"store_failed": len(rules) - 1}
    assert stats["store_failure"] == len(rules) - 1, "each of them is counted"
    wait_for_tidiness(daemon)
    daemon.stop()
    with open_and_close(daemon.root) as store:
        needed = {blob.digest.sha256 for blob in store.index.all_blobs()}
        assert {sha256 for sha256, _ in store.blobs.walk()} == needed


@pytest.mark.kind("cross_device_rename")
def test_cross_device_rename_is_none_wherever_tmpdir_the_tools_and_the_outputs_are(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    elsewhere, third = tmp_path / "elsewhere", tmp_path / "third"
    with (
        small_disk(tmp_path / "store", 32 * MIB),
        small_disk(elsewhere, 4 * MIB),
        small_disk(third, 4 * MIB),
    ):
        daemon = make_daemon()
        layer.on(daemon).env["TMPDIR"] = str(elsewhere)
        daemon.start()
        for number, tools_elsewhere in enumerate((False, True)):
            if tools_elsewhere:
                # The private directory of this compile lies in /tmp, and what the tool makes as well.
                layer.fail(errno.ENOSPC, "mkdir", needle="/tmp/job-")
                assert ask(daemon, 10).outcome is Outcome.MISS
                assert layer.fired == 1
            layer.watch("rename", "open_write", needle="/blobs/")
            found = ask(daemon, number, 300_000)
            assert found.outcome is Outcome.MISS
            kinds = [call.kind for call in layer.calls()]
            assert kinds == ["rename"] * 2, "nobody sees a file before it is whole"
            layer.off()
            assert ask(daemon, number, 300_000).outcome is Outcome.MEMORY_HIT
            found.outputs["object"].write(third / "k.o")
            verify_bytes(found, tmp_path, number, 300_000)
            assert (third / "k.o").read_bytes() == found.outputs["object"].buffer
            assert os.listdir(third) == ["k.o"]
        devices = {(daemon.root / name).stat().st_dev for name in ("tmp", "blobs")}
        assert len(devices) == 1
        assert os.listdir(elsewhere) == []
        assert daemon.stats()["store_failure"] == 0
        daemon.stop()


@pytest.mark.kind("cross_device_rename")
def test_cross_device_rename_out_of_a_mounted_tmp_costs_entries_and_no_answer(
    make_daemon: Callable[..., DaemonProcess], layer: FaultLayer, tmp_path: Path
) -> None:
    daemon = layer.on(make_daemon())
    daemon.root.mkdir(mode=0o700)
    with small_disk(daemon.root / "tmp", 8 * MIB) as real:
        daemon.start()
        if not real:
            layer.fail(errno.EXDEV, "rename", needle="/blobs/", times=ALWAYS)
        found = ask(daemon, 0)
        assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.STORE_FAILED)
        verify_bytes(found, tmp_path, 0)
        assert health(daemon)["failures"] == {"EXDEV": 1}
        assert daemon.stats()["store_failure_reasons"] == {"io_error": 1}
        wait_for_tidiness(daemon)
        daemon.stop()
