"""The store: entries whole or not at all, healed when damaged, evicted by last use, and kept over restarts."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.action import Action, binary_action
from ptocache.contents import Contents
from ptocache.digest import Digest
from ptocache.entry import Entry
from ptocache.errors import StoreUnusableError
from ptocache.model import Dependency, Input, Job, Log, Output, Prepared, Provenance
from ptocache.outcome import Cache, Event, Reason
from ptocache.paths import StorePaths
from ptocache.store.collect import collect
from ptocache.store.index import SCHEMA, Selection
from ptocache.store.store import Loaded, Published, Store, prepare_root
from ptocache.store.verify import verify
from ptocache.tally import Tally, evicted, report
from ptocache.toolchain import CheckedOutputs, validate
from ptocache.wire import INLINE_BYTES
from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptocache.store.index import Row

SMALL = b"small output " * 100
LARGE = os.urandom(1 << 10) * ((INLINE_BYTES >> 10) + 1)
BLOCK = 4096
EVERYTHING = Selection(everything=True)


class Anything:
    """A toolchain that is content with every output."""

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        pass


def checked(*outputs: bytes) -> CheckedOutputs:
    made = tuple(Output(f"o{n}", data, 0o755) for n, data in enumerate(outputs))
    prepared = Prepared(Job("fake", "", (), (), (), ()))
    return validate(Anything(), prepared, made)  # type: ignore[arg-type]


def action_of(name: str, **changes: Any) -> Action:
    job = Job("fake", "910B1", (name,), (), (Input("k.c", Digest.of(b"k")),), ("o0",), kernel=name)
    return binary_action(Prepared(job._replace(**changes)), plugin_version="1", identity="ab" * 32)


def entry_of(action: Action, dependencies: tuple[Dependency, ...] = (), **changes: Any) -> Entry:
    entry = Entry(
        action=action.document, dependencies=dependencies, outputs=(),
        log=Log(b"said", b"warned"), source_dir="", kernel=action.document["options"][0],
        created_s=int(time.time()), compile_ms=321,
        provenance=Provenance((("cc",),), (), "banner", True, "0.1.0"),
    )  # fmt: skip
    return entry._replace(**changes)


class World:
    """A store on disk; :meth:`reopen` is another daemon on it."""

    def __init__(self, root: Path) -> None:
        self.paths = StorePaths(str(root))
        self.settings: dict[str, Any] = {"limit": 1 << 30, "low_water": 0.5, "memory": 1 << 20}
        self.contents = Contents()
        self.store = self.open()

    def open(self) -> Store:
        self.tally = Tally()
        return Store(self.paths, fsync=False, tally=self.tally, **self.settings)

    def reopen(self, **settings: Any) -> Store:
        self.store.close()
        self.settings.update(settings)
        self.store = self.open()
        return self.store

    def publish(
        self, name: str, *outputs: bytes, dependencies: tuple[Dependency, ...] = (), **changes: Any
    ) -> Published:
        action = action_of(name)
        return self.store.publish(
            action, entry_of(action, dependencies, **changes), checked(*(outputs or (SMALL,))),
            self.store.index.generation(),
        )  # fmt: skip

    def find(self, name: str, source_dir: str = "") -> Loaded | None:
        return self.store.find(action_of(name).key, self.contents, source_dir)

    def find_hot(self, name: str, source_dir: str = "") -> Loaded | None:
        return self.store.find_hot(action_of(name).key, self.contents, source_dir)

    def blob(self, data: bytes) -> Path:
        return Path(self.paths.blob(Digest.of(data).sha256))

    def names(self) -> list[str]:
        """Kernels of the entries in the index, least recently used first."""
        return [row.kernel for row in self.store.index.select(EVERYTHING)]

    def blob_count(self) -> int:
        return sum(1 for _ in self.store.blobs.walk())

    def report(self) -> dict[str, Any]:
        return report(self.store.counts())["binary"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.store.close()


def data_of(loaded: Loaded | None) -> list[bytes]:
    assert loaded is not None
    found = []
    for item in loaded.artifacts:
        if item.data is not None:
            found.append(item.data)
        else:
            assert item.file is not None
            found.append(os.pread(item.file.fileno(), item.digest.size, 0))
    return found


# --- publish and find


def test_what_was_published_is_found_in_memory_and_on_disk(world: World) -> None:
    published = world.publish("k", SMALL, LARGE)
    assert published.reason is Reason.NONE
    assert data_of(published.loaded) == [SMALL, LARGE]
    assert data_of(world.find_hot("k")) == [SMALL, LARGE]
    assert data_of(world.find("k")) == [SMALL, LARGE]
    world.reopen()
    assert world.find_hot("k") is None, "a new daemon's memory is empty"
    assert data_of(world.find("k")) == [SMALL, LARGE]
    assert data_of(world.find_hot("k")) == [SMALL, LARGE]


def test_small_outputs_are_in_memory_and_large_ones_are_open_files(world: World) -> None:
    loaded = world.publish("k", b"x" * INLINE_BYTES, b"x" * (INLINE_BYTES + 1)).loaded
    assert loaded is not None
    assert [item.data is None for item in loaded.artifacts] == [False, True]
    assert [item.file is None for item in loaded.artifacts] == [True, False]
    assert [item.mode for item in loaded.artifacts] == [0o755, 0o755]
    assert loaded.intact()


def test_the_entry_says_everything_that_was_known(world: World) -> None:
    loaded = world.publish("k", SMALL).loaded
    assert loaded is not None
    entry = loaded.entry
    assert entry.log == Log(b"said", b"warned")
    assert [item.digest for item in entry.outputs] == [Digest.of(SMALL)]
    assert entry.action == action_of("k").document
    (row,) = world.store.index.select(EVERYTHING)
    assert (row.key, row.action) == (entry.key, action_of("k").key)
    assert (row.toolchain, row.arch, row.kernel) == ("fake", "910B1", "k")
    assert world.store.read_entry(row) == entry


def test_another_action_is_not_found(world: World) -> None:
    world.publish("k")
    assert world.find("other") is None
    assert world.find_hot("other") is None


def test_an_entry_is_found_only_while_its_conditions_hold(world: World, tmp_path: Path) -> None:
    header = tmp_path / "a.h"
    header.write_bytes(b"one")
    needs = (Dependency("", str(header), Digest.of(b"one").sha256),)
    world.publish("k", b"with one", dependencies=needs)
    assert data_of(world.find_hot("k")) == [b"with one"]
    header.write_bytes(b"two")
    assert world.find_hot("k") is None
    assert world.find("k") is None
    needs = (Dependency("", str(header), Digest.of(b"two").sha256),)
    world.publish("k", b"with two", dependencies=needs)
    assert data_of(world.find("k")) == [b"with two"]
    header.write_bytes(b"one")
    assert data_of(world.find_hot("k")) == [b"with one"], "both states are kept"


def test_the_outputs_of_an_entry_that_does_not_answer_are_not_read(
    world: World, tmp_path: Path
) -> None:
    header = tmp_path / "a.h"
    header.write_bytes(b"one")
    needs = (Dependency("", str(header), Digest.of(b"one").sha256),)
    world.publish("k", b"with one", dependencies=needs)
    world.reopen()
    world.blob(b"with one").unlink()
    header.write_bytes(b"two")
    assert world.find("k") is None
    assert world.report()["corrupt"] == 0, "nobody looked"
    header.write_bytes(b"one")
    assert world.find("k") is None
    assert world.report()["corrupt"] == 1


def test_a_store_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(StoreUnusableError, match="written to by everybody"):
        World(root)
    assert not list(root.iterdir()), "and it is left as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    os.chown(root, 12345, -1)
    with pytest.raises(StoreUnusableError, match="belongs to user 12345"):
        World(root)


def test_an_entry_that_names_its_folder_answers_for_that_folder_only(world: World) -> None:
    world.publish("k", source_dir="/home/me")
    assert world.find_hot("k", "/home/me") is not None
    for look in (world.find_hot, world.find):
        assert look("k", "/home/you") is None
        assert look("k") is None


def test_entries_of_two_folders_are_kept_beside_each_other(world: World) -> None:
    world.publish("k", b"mine", source_dir="/home/me")
    world.publish("k", b"yours", source_dir="/home/you")
    for look in (world.find_hot, world.find):
        assert data_of(look("k", "/home/me")) == [b"mine"]
        assert data_of(look("k", "/home/you")) == [b"yours"]


def test_publishing_an_entry_again_replaces_it_and_frees_its_old_bytes(world: World) -> None:
    world.publish("k", b"old", b"kept")
    used = world.store.budget.used
    world.publish("k", b"new", b"kept")
    assert data_of(world.find_hot("k")) == [b"new", b"kept"]
    assert data_of(world.find("k")) == [b"new", b"kept"]
    assert not world.blob(b"old").exists()
    assert world.names() == ["k"]
    assert world.store.budget.used == used == world.store.index.totals()[1]
    assert world.blob_count() == 3, "two outputs and a document"


def test_bytes_that_two_entries_share_are_stored_once_and_survive_one_of_them(
    world: World,
) -> None:
    world.publish("a", SMALL)
    before = world.store.budget.used
    world.publish("b", SMALL)
    assert world.store.budget.used == before + BLOCK, "its document"
    (row,) = world.store.index.select(Selection(kernel="a"))
    world.store.remove([row])
    assert world.find("a") is None
    assert data_of(world.find("b")) == [SMALL]
    assert world.store.budget.used == before


def test_an_entry_larger_than_the_limit_is_served_and_not_stored(world: World) -> None:
    world.reopen(limit=10_000)
    published = world.publish("k", b"x" * 10_000)
    assert published.loaded is None
    assert published.reason is Reason.TOO_LARGE
    assert world.blob_count() == 0
    assert world.store.budget.excess(0) == 0, "nothing stays reserved"


def test_nothing_unfinished_stays_after_a_publish(world: World) -> None:
    world.publish("k", SMALL, LARGE)
    world.publish("k", SMALL, LARGE)
    assert os.listdir(world.paths.tmp) == []


def test_a_publish_that_cannot_write_is_counted_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(fd: int, data: Any) -> int:
        if bytes(data[:5]) == LARGE[:5]:
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    published = world.publish("k", SMALL, LARGE)
    monkeypatch.undo()
    assert published.loaded is None
    assert published.reason is Reason.STORE_FAILED
    assert world.report()["store_failure_reasons"] == {"no_space": 1}
    assert os.listdir(world.paths.tmp) == []
    assert world.blob_count() == 0
    assert world.store.budget.excess(0) == 0
    assert world.publish("k", SMALL, LARGE).loaded is not None, "and storing resumes"


def test_a_publish_whose_index_is_locked_out_leaves_no_blob(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.store.index, "insert", locked)
    published = world.publish("k")
    monkeypatch.undo()
    assert published.reason is Reason.STORE_FAILED
    assert world.report()["store_failure_reasons"] == {"no_space": 1}
    assert world.blob_count() == 0
    assert world.publish("k").loaded is not None


def test_a_failed_publish_does_not_take_the_blobs_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("a", SMALL)

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(world.store.index, "insert", broken)
    assert world.publish("b", SMALL, b"alone").loaded is None
    monkeypatch.undo()
    assert world.report()["store_failure_reasons"] == {"io_error": 1}
    world.reopen()
    assert data_of(world.find("a")) == [SMALL]
    assert not world.blob(b"alone").exists()


# --- invalidate


def test_an_invalidation_stops_what_was_begun_before_it(world: World) -> None:
    action = action_of("k")
    generation = world.store.index.generation()
    world.store.invalidate(Selection(kernel="something else"))
    published = world.store.publish(action, entry_of(action), checked(SMALL), generation)
    assert (published.loaded, published.reason) == (None, Reason.INVALIDATED)
    assert world.find("k") is None
    assert world.blob_count() == 0
    assert world.store.budget.excess(0) == 0


def test_an_invalidated_entry_is_gone_from_memory_and_disk(world: World) -> None:
    for name in ("a", "b"):
        world.publish(name, name.encode())
    removed = world.store.invalidate(Selection(kernel="a"))
    assert removed == (1, 2 * BLOCK)
    assert world.find_hot("a") is None
    assert world.find("a") is None
    assert data_of(world.find_hot("b")) == [b"b"]
    assert not world.blob(b"a").exists()
    assert world.store.budget.used == world.store.index.totals()[1] == 2 * BLOCK


def test_the_last_use_counts_for_an_invalidation_though_it_is_not_written_yet(
    world: World,
) -> None:
    world.publish("used")
    world.publish("unused", b"other")
    before = time.time()
    world.find_hot("used")
    world.store.invalidate(Selection(older_than_s=before))
    assert world.names() == ["used"]


# --- damage


def damage_output(world: World, how: str) -> None:
    for data in (SMALL, LARGE):
        place = world.blob(data)
        place.chmod(0o600)
        if how == "truncated":
            os.truncate(place, 100)
        elif how == "empty":
            os.truncate(place, 0)
        elif how == "flipped":
            place.write_bytes(place.read_bytes()[:-1] + b"!")
        else:
            place.unlink()
        if how == "folder":
            place.mkdir()
            (place / "x").write_bytes(b"")
        elif how == "link":
            place.symlink_to("/etc/hostname")


DAMAGE = {
    "truncated": "truncated",
    "empty": "truncated",
    "flipped": "checksum",
    "deleted": "missing",
    "folder": "not_a_file",
    "link": "not_a_file",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_output_is_one_counted_miss_that_heals(how: str, world: World) -> None:
    world.publish("k", SMALL, LARGE)
    world.publish("sound", b"sound")
    world.reopen()
    damage_output(world, how)
    assert world.find("k") is None
    assert world.report()["corrupt_reasons"] == {DAMAGE[how]: 1}
    assert world.names() == ["sound"]
    kept = os.listdir(world.paths.quarantine)
    assert len(kept) == (0 if how == "deleted" else 2)
    assert world.find("k") is None
    assert world.report()["corrupt"] == 1, "counted once"
    assert world.store.budget.used == world.store.index.totals()[1]
    assert data_of(world.publish("k", SMALL, LARGE).loaded) == [SMALL, LARGE]
    world.reopen()
    assert data_of(world.find("k")) == [SMALL, LARGE]
    assert data_of(world.find("sound")) == [b"sound"]


def document_place(world: World, name: str) -> Path:
    (row,) = world.store.index.select(Selection(kernel=name))
    return Path(world.paths.blob(row.document))


def test_a_damaged_document_takes_its_entry_out(world: World) -> None:
    world.publish("k", SMALL)
    place = document_place(world, "k")
    world.reopen()
    place.chmod(0o600)
    place.write_bytes(place.read_bytes()[:-1] + b"!")
    assert world.find("k") is None
    assert world.report()["corrupt_reasons"] == {"checksum": 1}
    assert world.names() == []
    assert world.publish("k", SMALL).loaded is not None


def test_damaged_bytes_that_two_entries_share_take_both_out(world: World) -> None:
    world.publish("a", SMALL)
    world.publish("b", SMALL)
    world.publish("c", b"own")
    world.reopen()
    place = world.blob(SMALL)
    place.chmod(0o600)
    place.write_bytes(b"!" * len(SMALL))
    assert world.find("a") is None
    assert world.names() == ["c"]
    assert world.find("b") is None
    assert world.report()["corrupt"] == 1


def test_a_large_output_written_to_while_it_is_in_memory_is_not_served(world: World) -> None:
    world.publish("k", LARGE)
    assert world.find_hot("k") is not None
    place = world.blob(LARGE)
    place.chmod(0o600)
    with place.open("r+b") as file:
        file.write(b"!!!!")
    assert world.find_hot("k") is None
    assert world.find("k") is None
    assert world.report()["corrupt_reasons"] == {"checksum": 1}


def test_a_large_output_in_memory_is_served_though_its_name_is_gone(world: World) -> None:
    published = world.publish("k", LARGE)
    world.blob(LARGE).unlink()
    assert data_of(published.loaded) == [LARGE]


def test_a_look_at_everything_finds_every_damage_without_touching_it(world: World) -> None:
    world.publish("a", SMALL)
    world.publish("b", LARGE)
    world.publish("c", b"sound")
    assert verify(world.store, 0, fast=False, heal=False).damaged == ()
    world.blob(SMALL).unlink()
    world.blob(LARGE).chmod(0o600)
    os.truncate(world.blob(LARGE), 7)
    page = verify(world.store, 0, fast=False, heal=False)
    found = {damage.sha256: damage.reason for damage in page.damaged}
    assert found == {
        Digest.of(SMALL).sha256: Reason.MISSING,
        Digest.of(LARGE).sha256: Reason.TRUNCATED,
    }
    assert sorted(world.names()) == ["a", "b", "c"]


# --- memory


def test_memory_is_bounded_and_the_least_recently_used_go_first(world: World) -> None:
    world.reopen(memory=20_000)
    for name in "abcd":
        world.publish(name, name.encode() * 2000)
        assert world.find_hot("a") is not None
    hot = [name for name in "abcd" if world.find_hot(name) is not None]
    assert hot == ["a", "c", "d"]
    assert data_of(world.find("b")) == [b"b" * 2000], "still on disk"


def test_an_entry_too_large_for_the_memory_is_served_from_disk(world: World) -> None:
    world.reopen(memory=1000)
    assert data_of(world.publish("k", SMALL).loaded) == [SMALL]
    assert world.find_hot("k") is None
    assert data_of(world.find("k")) == [SMALL]


def test_closing_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    world = World(tmp_path / "store")
    for number in range(5):
        world.publish(str(number), LARGE + b"%d" % number)
    world.store.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- eviction


@pytest.mark.parametrize("fast", [True, False])
def test_entry_that_goes_while_everything_is_looked_at_is_no_damage(
    fast: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_in_order(world, "ab")
    rows_after = world.store.index.rows_after

    def then_gone(after: int, limit: int) -> list[Row]:
        rows = rows_after(after, limit)
        world.store.remove(rows)
        return rows

    monkeypatch.setattr(world.store.index, "rows_after", then_gone)
    page = verify(world.store, 0, fast=fast, heal=True)
    assert (page.damaged, len(rows_after(0, 10))) == ((), 0)


def test_what_marks_a_store_is_whole_whenever_another_daemon_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StorePaths(str(tmp_path / "store"))
    rename, written = os.rename, []

    def renamed(source: str, target: str) -> None:
        assert not os.path.exists(target)
        written.append(target)
        assert Path(source).read_bytes()
        rename(source, target)

    monkeypatch.setattr("ptocache.store.store.os.rename", renamed)
    prepare_root(paths)
    assert written == [paths.cachedir_tag, paths.version]
    assert sorted(os.listdir(paths.root)) == [
        "CACHEDIR.TAG",
        "VERSION",
        "blobs",
        "quarantine",
        "tmp",
    ]
    prepare_root(paths)
    assert len(written) == 2


def publish_in_order(world: World, names: str) -> None:
    for number, name in enumerate(names):
        world.publish(name, name.encode())
        with closing(sqlite3.connect(world.paths.index, isolation_level=None)) as connection:
            connection.execute(
                "UPDATE entries SET last_s = ? WHERE kernel = ?", (1000.0 + number, name)
            )


def test_nothing_is_evicted_below_the_limit(world: World) -> None:
    publish_in_order(world, "abc")
    assert collect(world.store) == (0, 0, 6 * BLOCK)
    assert world.names() == list("abc")


def test_above_the_limit_the_least_recently_used_go_down_to_low_water(world: World) -> None:
    world.reopen(limit=8 * BLOCK, low_water=0.5)
    publish_in_order(world, "abcd")
    assert collect(world.store).entries == 0, "at the limit"
    publish_in_order(world, "abcde")
    assert collect(world.store) == (3, 6 * BLOCK, 4 * BLOCK)
    assert world.names() == list("de")
    assert world.blob_count() == 4
    assert evicted(world.store.counts()) == 3


def test_evictions_are_counted_for_the_cache_of_the_entry(world: World) -> None:
    publish_in_order(world, "abc")
    with closing(sqlite3.connect(world.paths.index, isolation_level=None)) as connection:
        connection.execute("UPDATE entries SET cache = 1 WHERE kernel = 'b'")
    collect(world.store, max_size=0)
    counted = {
        slot.cache: number
        for slot, number in world.store.counts().items()
        if slot.kind == "event" and slot.what == Event.EVICTED
    }
    assert counted == {Cache.BINARY: 2, Cache.KERNEL: 1}


def test_a_use_saves_an_entry_though_it_is_not_written_yet(world: World) -> None:
    publish_in_order(world, "abc")
    assert world.find_hot("a") is not None
    collect(world.store, max_size=2 * BLOCK)
    assert world.names() == ["a"]


def test_recency_survives_a_restart(world: World) -> None:
    publish_in_order(world, "abc")
    assert world.find("a") is not None
    world.reopen()
    assert world.names() == list("bca")
    collect(world.store, max_size=2 * BLOCK)
    assert world.names() == ["a"]


def test_an_explicit_size_is_reached_and_a_dry_run_foresees_it(world: World) -> None:
    publish_in_order(world, "abcdef")
    foreseen = collect(world.store, max_size=5 * BLOCK, dry_run=True)
    assert world.names() == list("abcdef")
    assert collect(world.store, max_size=5 * BLOCK) == foreseen == (4, 8 * BLOCK, 4 * BLOCK)
    assert world.names() == list("ef")


def test_a_dry_run_counts_shared_bytes_as_a_real_one(world: World) -> None:
    for name in "abc":
        world.publish(name, SMALL)
    foreseen = collect(world.store, max_size=2 * BLOCK, dry_run=True)
    assert collect(world.store, max_size=2 * BLOCK) == foreseen


def test_everything_unused_since_a_time_goes_whatever_its_size(world: World) -> None:
    publish_in_order(world, "abcd")
    foreseen = collect(world.store, unused_since_s=1002.0, dry_run=True)
    assert collect(world.store, unused_since_s=1002.0) == foreseen
    assert world.names() == list("cd")


def test_an_evicted_entry_is_gone_from_memory_and_its_readers_keep_it(world: World) -> None:
    loaded = world.publish("k", LARGE).loaded
    collect(world.store, max_size=0)
    assert world.find_hot("k") is None
    assert world.store.budget.used == 0
    assert data_of(loaded) == [LARGE]


# --- opening


def test_a_new_store_has_its_tag_and_its_version(world: World) -> None:
    assert Path(world.paths.cachedir_tag).read_bytes() == world.paths.tag_bytes
    assert Path(world.paths.version).read_text() == "1\n"
    assert Path(world.paths.root).stat().st_mode & 0o077 == 0


def test_everything_is_still_there_after_a_restart(world: World) -> None:
    for name in "abc":
        world.publish(name, name.encode())
    used = world.store.budget.used
    world.reopen()
    assert world.store.was_clean
    assert world.store.budget.used == used
    assert all(data_of(world.find(name)) == [name.encode()] for name in "abc")


def test_a_store_that_was_not_closed_in_order_says_so(world: World) -> None:
    world.store.index.close()
    world.store = world.open()
    assert not world.store.was_clean
    world.reopen()
    assert world.store.was_clean


def test_statistics_outlive_the_daemon_and_add_up(world: World) -> None:
    world.tally.event(Cache.BINARY, Event.REJECTED)
    world.reopen()
    world.tally.event(Cache.BINARY, Event.REJECTED)
    assert world.report()["rejected"] == 2
    world.store.flush()
    assert world.report()["rejected"] == 2
    world.store.reset_counts()
    assert world.report()["rejected"] == 0


def test_statistics_that_cannot_be_written_are_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    world.tally.event(Cache.BINARY, Event.REJECTED)
    monkeypatch.setattr(world.store.index, "add_counts", locked)
    monkeypatch.setattr(world.store.index, "touch", locked)
    world.store.flush()
    monkeypatch.undo()
    world.store.flush()
    world.reopen()
    assert world.report()["rejected"] == 1


def test_what_a_dead_daemon_left_unfinished_is_swept(world: World) -> None:
    job = Path(world.paths.tmp, "job-x", "w")
    job.mkdir(parents=True)
    (job / "k.c").write_bytes(b"")
    Path(world.paths.tmp, "blob-x").write_bytes(b"")
    assert world.store.sweep_unfinished() == 2
    assert os.listdir(world.paths.tmp) == []


def test_blobs_that_no_entry_needs_are_swept(world: World) -> None:
    world.publish("k", SMALL)
    pending = world.store.blobs.write(b"orphan")
    world.store.blobs.place(pending)
    stray = Path(world.paths.blobs, "stray")
    stray.write_bytes(b"")
    assert world.store.sweep_orphans() == 1
    assert world.store.sweep_orphans() == 0
    assert data_of(world.find("k")) == [SMALL]
    assert stray.exists()


def damage_index(world: World, data: bytes) -> None:
    world.store.close()
    for suffix in ("-wal", "-shm"):
        Path(world.paths.index + suffix).unlink(missing_ok=True)
    Path(world.paths.index).write_bytes(data)
    world.store = world.open()


@pytest.mark.parametrize("data", [b"no database" * 100, b"\x00" * 4096, b"SQLite format 3\x00" * 9])
def test_a_damaged_index_is_set_aside_and_its_entries_are_taken_in_again(
    data: bytes, world: World
) -> None:
    world.publish("a", SMALL)
    world.publish("b", SMALL, LARGE)
    used = world.store.budget.used
    damage_index(world, data)
    assert any(name.startswith("index-") for name in os.listdir(world.paths.quarantine))
    assert sorted(world.names()) == ["a", "b"]
    assert data_of(world.find("a")) == [SMALL]
    assert data_of(world.find("b")) == [SMALL, LARGE]
    assert world.store.budget.used == world.store.index.totals()[1] == used
    assert not world.store.was_clean, "what was not taken in must be swept"
    assert world.report()["corrupt_reasons"] == {"bad_document": 1}


def test_the_entries_of_a_lost_index_are_taken_in_again(world: World) -> None:
    world.publish("a", SMALL)
    used = world.store.budget.used
    world.store.close()
    for suffix in ("", "-wal", "-shm"):
        Path(world.paths.index + suffix).unlink(missing_ok=True)
    world.store = world.open()
    assert data_of(world.find("a")) == [SMALL]
    assert world.store.budget.used == used
    assert not world.store.was_clean


def test_a_folder_in_the_place_of_the_index_is_set_aside(world: World) -> None:
    world.publish("a", SMALL)
    world.store.close()
    path = Path(world.paths.index)
    path.unlink()
    path.mkdir()
    (path / "stray").write_bytes(b"")
    world.store = world.open()
    assert data_of(world.find("a")) == [SMALL]
    assert data_of(world.publish("b", b"b").loaded) == [b"b"]


def test_only_whole_entries_are_taken_in_again(world: World) -> None:
    world.publish("whole", SMALL)
    world.publish("no output", b"gone")
    world.publish("cut output", b"cut this")
    world.publish("bad document", b"fine")
    world.blob(b"gone").unlink()
    world.blob(b"cut this").chmod(0o600)
    os.truncate(world.blob(b"cut this"), 3)
    place = document_place(world, "bad document")
    place.chmod(0o600)
    place.write_bytes(place.read_bytes()[:-1] + b"!")
    damage_index(world, b"no database")
    assert world.names() == ["whole"]


def test_a_planted_document_that_can_have_no_key_stops_nothing(world: World) -> None:
    import msgpack

    from ptocache.entry import MAGIC, encode

    world.publish("whole", SMALL)
    good = encode(entry_of(action_of("k")))
    body = msgpack.unpackb(good[len(MAGIC) :])
    body["action"] = {"toolchain": 1.5}
    body["outputs"] = [["o", Digest.of(SMALL).sha256, len(SMALL), 0o644, b"\x00" * 16]]
    world.store.blobs.place(world.store.blobs.write(MAGIC + msgpack.packb(body)))
    damage_index(world, b"no database")
    assert world.names() == ["whole"]


def test_the_index_of_a_newer_version_is_refused_and_left_alone(world: World) -> None:
    world.publish("k")
    world.store.close()
    with closing(sqlite3.connect(world.paths.index, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA + 1,))
    with pytest.raises(StoreUnusableError, match=f"schema {SCHEMA + 1}"):
        world.open()
    with closing(sqlite3.connect(world.paths.index, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA,))
    world.store = world.open()
    assert world.names() == ["k"]


@pytest.mark.parametrize("version", ["2\n", "", "one"])
def test_a_store_of_another_version_is_refused(version: str, world: World) -> None:
    world.store.close()
    Path(world.paths.version).write_text(version)
    with pytest.raises(StoreUnusableError, match="this ptocache knows '1'"):
        world.open()
    Path(world.paths.version).write_text("1\n")
    world.store = world.open()


def test_a_file_in_the_stores_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnusableError, match="cannot be used") as caught:
        World(tmp_path / "file")
    assert caught.value.fields["path"] == str(tmp_path / "file")


@pytest.mark.parametrize("stray", ["blobs/ab", "quarantine/x", "tmp/y", "notes.txt", "blobs/zz"])
def test_stray_files_in_the_store_stop_nothing(stray: str, world: World) -> None:
    world.store.close()
    path = Path(world.paths.root, stray)
    path.write_bytes(b"stray")
    world.store = world.open()
    # Its bytes belong into the folder in whose place one of the files stands.
    data = next(d for d in map(b"%d".__mod__, range(9999)) if world.blob(d).parent.name == "ab")
    assert data_of(world.publish("k", data).loaded) == [data]
    world.reopen()
    assert data_of(world.find("k")) == [data]
    assert world.report()["store_failure"] == 0


def test_counts_on_their_way_to_the_index_are_missed_by_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.tally.event(Cache.BINARY, Event.REJECTED, count=7)
    before, found = world.store.counts(), []
    add = world.store.index.add_counts
    asking = threading.Thread(target=lambda: found.append(world.store.counts()))

    def slowly(counts: Any) -> None:
        # They are in neither place now: who does not wait has its answer long before this ends.
        asking.start()
        asking.join(0.3)
        add(counts)

    with monkeypatch.context() as patched:
        patched.setattr(world.store.index, "add_counts", slowly)
        world.store.flush()
    asking.join(DEADLINE_S)
    assert found == [before]
