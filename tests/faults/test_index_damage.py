"""An index that was written over, cut, swapped or locked: set aside or refused, never served wrongly."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.action import ActionKey
from ptocache.contents import Contents
from ptocache.outcome import Outcome, Reason
from ptocache.store import index as index_module
from ptocache.store.index import SCHEMA
from tests.faults.store_process import bytes_of, find, open_store, outputs_of, publish
from tests.harness import DaemonProcess, compile_directly, start_in_vain, wait_for
from tests.unit.test_store import action_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.store.store import Store

ENV = {"PATH": os.environ.get("PATH", "")}
EXIT_UNUSABLE = 4
NAMES = [f"k{number}" for number in range(6)]
PAGE = 4096


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with the entries of :data:`NAMES`, closed in order."""
    found = tmp_path / "store"
    store = open_store(str(found))
    for name in NAMES:
        assert publish(store, name) == "right"
    store.close()
    return found


def answers(store: Store) -> list[str]:
    return [find(store, name) for name in NAMES]


def test_page_of_the_index_that_is_written_over_serves_nothing_wrong_and_is_built_anew(
    root: Path,
) -> None:
    index = root / "index.sqlite"
    whole = index.read_bytes()
    chance = random.Random(7)
    rebuilt = 0
    for page in range(len(whole) // PAGE):
        data = bytearray(whole)
        data[page * PAGE : (page + 1) * PAGE] = chance.randbytes(PAGE)
        _put_back(root, bytes(data))
        store = open_store(str(root))
        first = answers(store)
        assert "wrong" not in first
        rebuilt += store.index.created
        # What a request or a publish meets is set aside at the next flush, a second later in a daemon.
        for _ in range(2):
            store._next_try_s = 0.0
            store.flush()
            assert "wrong" not in answers(store)
            for name in NAMES:
                assert publish(store, name) in ("right", Reason.STORE_FAILED.label)
        for name in NAMES:
            assert publish(store, name) == "right"
        assert answers(store) == ["right"] * len(NAMES)
        store.close()
        shutil.rmtree(root / "quarantine")
    assert rebuilt > 3


def _put_back(root: Path, data: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{root}/index.sqlite{suffix}").unlink(missing_ok=True)
    (root / "index.sqlite").write_bytes(data)


def test_bits_of_the_index_that_flip_serve_nothing_wrong(root: Path) -> None:
    whole = (root / "index.sqlite").read_bytes()
    chance = random.Random(int(os.environ.get("PTOCACHE_FLIP_SEED", "3")))
    for _ in range(int(os.environ.get("PTOCACHE_FLIPS", "30"))):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 8, 64))):
            data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        _put_back(root, bytes(data))
        store = open_store(str(root))
        assert "wrong" not in answers(store)
        store._next_try_s = 0.0
        store.flush()
        assert publish(store, "k0") in ("right", Reason.STORE_FAILED.label)
        store.close()


def test_row_that_leads_to_another_entrys_document_is_not_served(root: Path) -> None:
    with sqlite3.connect(root / "index.sqlite") as connection:
        one, two = (
            connection.execute(
                "SELECT id, document FROM entries WHERE kernel = ?", (name,)
            ).fetchone()
            for name in ("k0", "k1")
        )
        connection.execute("UPDATE entries SET document = ? WHERE id = ?", (two[1], one[0]))
        connection.execute(
            "INSERT OR IGNORE INTO entry_blobs SELECT ?, blob FROM entry_blobs WHERE entry = ?",
            (one[0], two[0]),
        )
    connection.close()
    store = open_store(str(root))
    found = store.find(ActionKey(action_of("k0").key), Contents(), "")
    assert found is None or bytes_of(found) == outputs_of("k0")
    assert find(store, "k1") == "right"
    assert sum(n for slot, n in store.counts().items() if slot.kind == "event") == 1
    store._next_try_s = 0.0
    store.flush()
    assert answers(store) == ["right"] * len(NAMES), "what lies whole on disk is taken in again"
    store.close()


@pytest.mark.parametrize("how", ["random", "half", "empty", "gone", "tail"])
def test_journal_that_a_killed_daemon_left_damaged_serves_nothing_wrong(
    tmp_path: Path, how: str
) -> None:
    root = tmp_path / "store"
    store = open_store(str(root))
    for name in NAMES:
        publish(store, name)
    copy = tmp_path / "copy"
    # As a daemon that is killed leaves it: nothing was moved from the journal to the index yet.
    shutil.copytree(root, copy)
    store.close()
    journal = copy / "index.sqlite-wal"
    size = journal.stat().st_size
    assert size > PAGE
    if how == "random":
        with journal.open("r+b") as file:
            file.seek(size // 2)
            file.write(random.Random(1).randbytes(PAGE))
    elif how in ("half", "tail"):
        os.truncate(journal, size // 2 if how == "half" else size - 100)
    elif how == "empty":
        os.truncate(journal, 0)
    else:
        journal.unlink()
    store = open_store(str(copy))
    assert "wrong" not in answers(store)
    store.sweep_orphans()
    for name in NAMES:
        assert publish(store, name) == "right"
    assert answers(store) == ["right"] * len(NAMES)
    needed = {blob.digest.sha256 for blob in store.index.all_blobs()}
    assert {sha256 for sha256, _ in store.blobs.walk()} == needed
    store.close()


def test_generation_of_an_index_that_is_built_anew_lets_no_older_compile_publish(
    root: Path,
) -> None:
    store = open_store(str(root))
    begun = store.generation()
    store._suspect = True
    store.flush()
    assert answers(store) == ["right"] * len(NAMES)
    assert store.generation() > begun
    store.close()


def test_counts_outlive_an_index_that_is_set_aside_under_a_living_daemon(root: Path) -> None:
    store = open_store(str(root))
    before = store.counts()
    store._suspect = True
    store.flush()
    after = store.counts()
    assert {slot: after[slot] for slot in before} == before
    store.close()


def test_foreign_lock_is_waited_for_once_and_not_again_before_it_was_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BUSY_MS", 20)
    store = open_store(str(root))

    def patience() -> int:
        return int(store.index._writer.execute("PRAGMA busy_timeout").fetchone()[0])

    foreign = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    assert patience() == 20
    for name in ("new", "newer"):
        assert publish(store, name) == Reason.STORE_FAILED.label
        assert patience() == 0
    assert answers(store) == ["right"] * len(NAMES), "readers wait for nobody"
    foreign.execute("ROLLBACK")
    foreign.close()
    assert publish(store, "new") == "right"
    assert patience() == 20
    store.close()


# --- a whole daemon


def source(number: int) -> bytes:
    return b"int kernel_%d(void) { return %d; }\n" % (number, number)


def ask(daemon: DaemonProcess, number: int) -> Any:
    with daemon.client() as client:
        return client.compile("host", {"k.c": source(number)}, env=ENV, outputs=["object"])


def refusal(daemon: DaemonProcess) -> str:
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    said = done.stderr.decode()
    assert "Traceback" not in said
    return said


def test_index_that_is_written_over_under_a_running_daemon_is_built_anew_by_it(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    for number in range(20):
        ask(daemon, number)
    index = daemon.root / "index.sqlite"
    # A checkpoint, so that the pages are read from the file and not from the journal.
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with index.open("r+b") as file:
        file.seek(PAGE)
        file.write(b"\xa5" * (index.stat().st_size - PAGE))
    for number in range(20, 24):
        found = ask(daemon, number)
        wanted = compile_directly(source(number), "k.c", [], tmp_path / "direct")
        assert found.outputs["object"].buffer == wanted

    def stores_again() -> bool:
        found = ask(daemon, 30)
        return found.outcome is Outcome.MEMORY_HIT

    wait_for(stores_again, "the index to be built anew")
    assert any(name.startswith("index-") for name in os.listdir(daemon.root / "quarantine"))
    with daemon.client() as client:
        told = client.call("status")["health"]
        assert client.stats()["store"]["entries"] > 20
    assert any(name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) for name in told["failures"])
    daemon.restart()
    assert ask(daemon, 3).outcome is Outcome.DISK_HIT
    assert "Traceback" not in daemon.log()


def test_index_deleted_under_a_running_daemon_comes_back_with_the_next(
    daemon: DaemonProcess,
) -> None:
    ask(daemon, 0)
    # Its journal stays, as somebody's clean-up of *.sqlite would leave it.
    (daemon.root / "index.sqlite").unlink()
    assert ask(daemon, 0).outcome is Outcome.MEMORY_HIT
    assert ask(daemon, 1).ok
    daemon.kill()
    daemon.start()
    assert ask(daemon, 0).outcome is Outcome.DISK_HIT
    assert ask(daemon, 1).ok
    assert ask(daemon, 1).outcome is Outcome.MEMORY_HIT


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_index_of_another_schema_is_refused_by_name_and_left_as_it_is(
    daemon: DaemonProcess, schema: int
) -> None:
    ask(daemon, 0)
    daemon.stop()
    index = daemon.root / "index.sqlite"
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,))
    connection.close()
    before = index.read_bytes()
    for _ in range(2):
        assert f"schema {schema}" in refusal(daemon)
    assert index.read_bytes() == before
    assert os.listdir(daemon.root / "quarantine") == []


def test_index_that_a_foreign_process_holds_alone_is_refused_and_says_why(
    daemon: DaemonProcess,
) -> None:
    ask(daemon, 0)
    daemon.stop()
    foreign = sqlite3.connect(daemon.root / "index.sqlite", isolation_level=None)
    foreign.execute("PRAGMA locking_mode = EXCLUSIVE")
    foreign.execute("BEGIN EXCLUSIVE")
    foreign.execute("UPDATE meta SET value = value")
    said = refusal(daemon)
    assert "locked" in said
    assert "another process" in said
    foreign.execute("ROLLBACK")
    foreign.close()
    daemon.start()
    assert ask(daemon, 0).outcome is Outcome.DISK_HIT


def test_start_beside_a_foreign_writer_gives_hits_and_stores_once_it_is_gone(
    daemon: DaemonProcess,
) -> None:
    ask(daemon, 0)
    daemon.stop()
    foreign = sqlite3.connect(daemon.root / "index.sqlite", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    daemon.start()
    assert ask(daemon, 0).outcome is Outcome.DISK_HIT
    found = ask(daemon, 1)
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.READ_ONLY)
    foreign.execute("ROLLBACK")
    foreign.close()
    wait_for(lambda: ask(daemon, 1).outcome is Outcome.MEMORY_HIT, "storing to resume")
    daemon.restart()
    assert ask(daemon, 1).outcome is Outcome.DISK_HIT


def test_damaged_index_that_cannot_be_set_aside_is_refused_and_says_why(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon().start()
    ask(daemon, 0)
    daemon.stop()
    (daemon.root / "index.sqlite").write_bytes(b"no database" * 1000)
    shutil.rmtree(daemon.root / "quarantine")
    (daemon.root / "quarantine").symlink_to("nowhere")
    said = refusal(daemon)
    assert str(daemon.root) in said
