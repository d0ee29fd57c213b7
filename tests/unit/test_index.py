"""The index: entries and the blobs they share, generations, memories, and files that are no index."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.accounting import Use
from ptocache.digest import Digest
from ptocache.errors import StoreDamagedError, StoreUnusableError
from ptocache.outcome import Cache, Outcome
from ptocache.signature import Signature
from ptocache.store import index as index_module
from ptocache.store.index import SCHEMA, BlobRow, Index, Row, Selection
from ptocache.tally import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "index.sqlite")


@pytest.fixture
def index(path: str) -> Iterator[Index]:
    with closing(Index(path)) as made:
        yield made


def blob(name: str, size: int = 100) -> BlobRow:
    return BlobRow(Digest(Digest.of(name.encode()).sha256, size), 4096, b"\x01" * 16)


def key(number: int) -> str:
    return f"{number:064x}"


def row(number: int, **changes: object) -> Row:
    made = Row(
        0, key(number), "a" * 63 + f"{number % 10}", Cache.BINARY, "host", "x86_64", "saxpy",
        blob(f"document {number}").digest.sha256, 100.0 + number, 100.0 + number, 0, 321, 500,
    )  # fmt: skip
    return made._replace(**changes)  # type: ignore[arg-type]


def add(index: Index, number: int, *blobs: str, **changes: object) -> int:
    names = (f"document {number}", *(blobs or (f"output {number}",)))
    added = index.insert(row(number, **changes), map(blob, names), index.generation())
    assert added is not None
    return added[0]


def sha(name: str) -> str:
    return blob(name).digest.sha256


def test_an_entry_is_found_by_its_action_with_its_blobs(index: Index) -> None:
    number = add(index, 1, "one", "two")
    (found,) = index.candidates("a" * 63 + "1")
    assert found == row(1, id=number)
    assert set(index.blob_rows(number).values()) == {blob("document 1"), blob("one"), blob("two")}
    assert index.candidates("b" * 64) == []
    assert index.blob_rows(999) == {}


def test_candidates_come_last_used_first_and_are_bounded(index: Index) -> None:
    for number in range(40):
        add(index, number, action="a" * 64, last_s=float((number * 7) % 40))
    found = [item.last_s for item in index.candidates("a" * 64)]
    assert found == sorted(found, reverse=True)
    assert len(found) == 32
    assert found[0] == 39.0


def test_an_insert_tells_what_it_added_to_the_disk(index: Index) -> None:
    first = index.insert(row(1), [blob("d1"), blob("shared")], 1)
    second = index.insert(row(2), [blob("d2"), blob("shared")], 1)
    assert first is not None
    assert second is not None
    assert first[1:] == (8192, [])
    assert second[1:] == (4096, []), "a shared blob is counted once"
    assert index.totals() == (2, 3 * 4096)


def test_the_same_blob_twice_in_one_entry_counts_once(index: Index) -> None:
    added = index.insert(row(1), [blob("d"), blob("o"), blob("o")], 1)
    assert added is not None
    assert added[1:] == (8192, [])


def test_replacing_an_entry_frees_the_blobs_that_only_it_needed(index: Index) -> None:
    add(index, 1, "old", "kept")
    add(index, 2, "shared")
    old = add(index, 3, "shared", "alone")
    replaced = index.insert(row(1), [blob("document 1"), blob("kept"), blob("new")], 1)
    assert replaced is not None
    number, added, orphans = replaced
    assert orphans == [sha("old")]
    assert added == 0, "one came and one went"
    assert set(index.blob_rows(number)) == {sha("document 1"), sha("kept"), sha("new")}
    assert [item.id for item in index.candidates("a" * 63 + "1")] == [number]
    assert index.totals()[0] == 3
    assert set(index.delete([old])[0]) == {sha("alone"), sha("document 3")}
    assert index.has_blob(sha("shared"))


def test_deleting_frees_the_blobs_that_nobody_else_needs(index: Index) -> None:
    one, two = add(index, 1, "shared", "alone"), add(index, 2, "shared")
    orphans, freed = index.delete([one])
    assert set(orphans) == {sha("alone"), sha("document 1")}
    assert freed == 8192
    assert index.has_blob(sha("shared"))
    orphans, freed = index.delete([two, 999])
    assert set(orphans) == {sha("shared"), sha("document 2")}
    assert index.totals() == (0, 0)


def test_the_entries_of_a_blob_are_known(index: Index) -> None:
    one, two = add(index, 1, "shared"), add(index, 2, "shared")
    assert sorted(index.entries_of_blob(sha("shared"))) == [one, two]
    assert index.entries_of_blob(sha("none")) == []


def test_what_entries_need_is_listed_for_some_or_for_all(index: Index) -> None:
    one, two = add(index, 1, "shared"), add(index, 2, "shared")
    every = index.needs()
    assert {number: {name for name, _ in needs} for number, needs in every.items()} == {
        one: {sha("shared"), sha("document 1")},
        two: {sha("shared"), sha("document 2")},
    }
    assert index.needs([two, 999]) == {two: every[two]}


def test_an_entry_of_an_older_generation_is_not_inserted(index: Index) -> None:
    generation = index.generation()
    index.invalidate(Selection(everything=True))
    assert index.generation() == generation + 1
    assert index.insert(row(1), [blob("d")], generation) is None
    assert index.totals() == (0, 0)
    assert index.insert(row(1), [blob("d")], generation + 1) is not None


def test_even_an_invalidation_that_removes_nothing_raises_the_generation(index: Index) -> None:
    before = index.generation()
    assert index.invalidate(Selection(kernel="none")) == ([], [], 0)
    assert index.generation() == before + 1


# --- selections


@pytest.fixture
def filled(index: Index) -> Index:
    add(index, 0xA1, toolchain="host", kernel="saxpy", arch="x86_64", last_s=10.0)
    add(index, 0xA2, toolchain="host", kernel="gemm", arch="x86_64", last_s=20.0)
    add(index, 0xA3, toolchain="pto", kernel="gemm", arch="910B1", last_s=30.0)
    add(index, 0xB4, toolchain="pto", kernel="gemm", arch="910_9382", last_s=40.0)
    return index


SELECTIONS = [
    (Selection(), []),
    (Selection(everything=True), [0xA1, 0xA2, 0xA3, 0xB4]),
    (Selection(keys=(key(0xA2),)), [0xA2]),
    (Selection(keys=(key(0xA2), key(0xB4))), [0xA2, 0xB4]),
    (Selection(keys=("0" * 62 + "a",)), [0xA1, 0xA2, 0xA3]),
    (Selection(keys=("f",)), []),
    (Selection(keys=("a" * 63 + "1",)), [0xA1]),
    (Selection(keys=("a",)), [0xA1, 0xA2, 0xA3, 0xB4]),
    (Selection(toolchain="pto"), [0xA3, 0xB4]),
    (Selection(kernel="gemm"), [0xA2, 0xA3, 0xB4]),
    (Selection(arch="910B1"), [0xA3]),
    (Selection(arch="910"), []),
    (Selection(toolchain="pto", kernel="saxpy"), []),
    (Selection(toolchain="host", kernel="gemm"), [0xA2]),
    (Selection(older_than_s=30.0), [0xA1, 0xA2]),
    (Selection(older_than_s=1000.0, toolchain="pto"), [0xA3, 0xB4]),
    (Selection(everything=True, kernel="saxpy"), [0xA1]),
    (Selection(kernel="' OR 1 --"), []),
    (Selection(keys=("%",)), []),
]


@pytest.mark.parametrize(("selection", "numbers"), SELECTIONS, ids=lambda item: repr(item)[:60])
def test_a_selection_means_these_entries_least_recently_used_first(
    selection: Selection, numbers: list[int], filled: Index
) -> None:
    action_tail = {0xA1: 1, 0xA2: 2, 0xA3: 3, 0xB4: 0}
    assert all(number % 10 == tail for number, tail in action_tail.items())
    assert [item.key for item in filled.select(selection)] == [key(number) for number in numbers]
    assert len(filled.select(selection, 1)) == min(1, len(numbers))


@pytest.mark.parametrize(("selection", "numbers"), SELECTIONS, ids=lambda item: repr(item)[:60])
def test_an_invalidation_removes_exactly_what_is_meant(
    selection: Selection, numbers: list[int], filled: Index
) -> None:
    ids, orphans, freed = filled.invalidate(selection)
    assert len(ids) == len(numbers)
    assert len(orphans) == 2 * len(numbers)
    assert freed == len(orphans) * 4096
    left = {item.key for item in filled.select(Selection(everything=True))}
    assert left == {key(n) for n in (0xA1, 0xA2, 0xA3, 0xB4)} - {key(n) for n in numbers}


def test_the_oldest_come_first_and_only_those_before_a_time_if_one_is_given(
    filled: Index,
) -> None:
    assert [item.last_s for item in filled.oldest(3)] == [10.0, 20.0, 30.0]
    assert [item.last_s for item in filled.oldest(9, 30.0)] == [10.0, 20.0]
    assert len(filled.oldest(-1)) == 4


def test_earlier_entries_come_newest_first_and_end_before_the_one_meant(filled: Index) -> None:
    for number, created_s in ((0xC1, 5000.0), (0xC2, 7000.0), (0xC3, 5000.0), (0xC4, 5000.0)):
        add(filled, number, toolchain="gas", kernel="gemm", created_s=created_s)
    add(filled, 0xC5, toolchain="gas", kernel="other", created_s=6000.0)
    found = filled.earlier("gas", "gemm")
    assert [row.key for row in found] == [key(n) for n in (0xC2, 0xC4, 0xC3, 0xC1)]
    assert [row.key for row in filled.earlier("gas", "gemm", limit=1)] == [key(0xC2)]
    before = filled.earlier("gas", "gemm", before=found[1])
    assert [row.key for row in before] == [key(0xC3), key(0xC1)]
    assert [row.key for row in filled.earlier("gas", before=found[2])] == [key(0xC2), key(0xC1)]
    assert filled.earlier("gas", "none") == []


def test_the_newest_entry_is_the_one_made_last(filled: Index) -> None:
    add(filled, 0xC1, toolchain="pto", kernel="gemm", created_s=5000.0)
    add(filled, 0xC2, toolchain="pto", kernel="other", created_s=4000.0)
    for kernel, number in (("gemm", 0xC1), ("other", 0xC2), (None, 0xC2)):
        found = filled.newest(kernel)
        assert found is not None
        assert found.key == key(number)
    assert filled.newest("none") is None


def test_uses_add_up_and_time_never_runs_back(index: Index) -> None:
    number = add(index, 1, last_s=100.0)
    index.touch({number: Use(3, 200.0), 999: Use(1, 1.0)})
    index.touch({number: Use(2, 150.0)})
    index.touch({})
    (found,) = index.candidates("a" * 63 + "1")
    assert (found.hits, found.last_s) == (5, 200.0)


def test_every_blob_is_walked_over_the_pages(index: Index) -> None:
    names = [f"blob {number}" for number in range(2500)]
    index.insert(row(1), map(blob, names), 1)
    found = [item.digest.sha256 for item in index.all_blobs()]
    assert found == sorted(map(sha, names))


# --- memories


def test_statistics_add_up_over_reopens(path: str) -> None:
    slot = Slot(Cache.BINARY, "outcome", Outcome.MISS, 0)
    for _ in range(3):
        with closing(Index(path)) as index:
            index.add_counts({slot: 2, slot._replace(reason=7): 1})
            index.add_counts({})
    with closing(Index(path)) as index:
        assert index.counts() == {slot: 6, slot._replace(reason=7): 3}
        index.clear_counts()
        assert index.counts() == {}


SIGNATURE = Signature(1, 2, 3, 4, 5)


def test_a_file_digest_is_remembered_for_exactly_one_signature(index: Index) -> None:
    odd = "/odd/\udcff name"
    for name in ("/lib/a.so", odd):
        index.save_file_digest(name, SIGNATURE, "ab" * 32)
        assert index.load_file_digest(name, SIGNATURE) == "ab" * 32
        for field in Signature._fields:
            other = SIGNATURE._replace(**{field: 99})
            assert index.load_file_digest(name, other) == ""
    index.save_file_digest("/lib/a.so", SIGNATURE._replace(size=9), "cd" * 32)
    assert index.load_file_digest("/lib/a.so", SIGNATURE) == "", "only the newest is kept"
    assert index.load_file_digest("/none", SIGNATURE) == ""


def test_file_digests_that_cannot_be_read_are_unknown(index: Index, path: str) -> None:
    index.save_file_digest("/lib/a.so", SIGNATURE, "ab" * 32)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE files")
    assert index.load_file_digest("/lib/a.so", SIGNATURE) == ""


def test_an_installation_is_remembered_with_its_types(index: Index) -> None:
    record = {
        "facts": {"dirs": ["/a", "/odd/\udcff"], "yes": True, "n": 7, "none": None},
        "files": [["cc", "/usr/bin/cc", True]],
    }
    index.save_installation("k", record)
    assert index.load_installation("k") == record
    assert index.load_installation("none") is None


def test_the_newest_installations_stay_the_fewer_the_larger_they_are(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_INSTALLATIONS_KEPT", ((1000, 2), (0, 4)))
    for name in ("large1", "small1", "large2", "small2", "large3"):
        index.save_installation(name, {"x": "x" * (1000 if "large" in name else 1)})
    kept = [
        n for n in ("large1", "small1", "large2", "small2", "large3") if index.load_installation(n)
    ]
    assert kept == ["small1", "large2", "small2", "large3"]
    index.save_installation("small3", {"x": 1})
    assert index.load_installation("small1") is None
    assert index.load_installation("large2") is not None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x07", b"\x92\x01", b"\xff" * 10])
def test_a_damaged_installation_is_none(data: bytes, path: str, index: Index) -> None:
    index.save_installation("k", {"a": 1})
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE installations SET record = ?", (data,))
    assert index.load_installation("k") is None


def test_a_store_is_clean_until_it_is_used_and_again_after_it_was_closed(path: str) -> None:
    with closing(Index(path)) as index:
        assert index.is_clean()
        index.set_clean(False)
    with closing(Index(path)) as index:
        assert not index.is_clean()
        index.set_clean(True)
        assert index.is_clean()


# --- files that are no index


def test_everything_survives_a_reopen(path: str) -> None:
    with closing(Index(path)) as index:
        assert index.created
        number = add(index, 1)
        index.invalidate(Selection(kernel="none"))
    with closing(Index(path)) as index:
        assert not index.created
        assert [item.id for item in index.select(Selection(everything=True))] == [number]
        assert index.generation() == 2


@pytest.mark.parametrize("data", [b"this is no database", b"\x00" * 5000, b"SQLite format 3\x00x"])
def test_another_file_is_damage(data: bytes, path: str) -> None:
    Path(path).write_bytes(data)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        Index(path)


def test_an_empty_file_becomes_an_index(path: str) -> None:
    Path(path).write_bytes(b"")
    with closing(Index(path)) as index:
        assert index.totals() == (0, 0)


def test_a_database_without_a_schema_is_damage(path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER)")
    with pytest.raises(StoreDamagedError, match="has no schema"):
        Index(path)


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, 99])
def test_another_schema_is_refused_and_left_as_it_was(schema: int, path: str) -> None:
    with closing(Index(path)) as index:
        add(index, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,))
    for read_only in (False, True):
        with pytest.raises(StoreUnusableError, match=f"has schema {schema}, this ptocache knows"):
            Index(path, read_only=read_only)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_a_folder_in_the_place_of_an_index_is_damage(path: str) -> None:
    os.mkdir(path)
    for read_only in (False, True):
        with pytest.raises(StoreDamagedError, match="is a directory"):
            Index(path, read_only=read_only)


def test_a_missing_folder_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError):
        Index(str(tmp_path / "none" / "index.sqlite"))


def test_a_read_only_index_reads_and_makes_nothing(path: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError):
        Index(path, read_only=True)
    assert not os.path.exists(path)
    with closing(Index(path)) as index:
        add(index, 1)
    before = Path(path).read_bytes()
    with closing(Index(path, read_only=True)) as reader:
        assert reader.totals()[0] == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.clear_counts()
    assert Path(path).read_bytes() == before
    # Shared memory and an empty journal are SQLite's own business.
    names = {path, path + "-shm", path + "-wal"}
    assert {str(item) for item in tmp_path.iterdir()} <= names


def test_a_read_only_index_reads_beside_its_writer(path: str, index: Index) -> None:
    with closing(Index(path, read_only=True)) as reader:
        add(index, 1)
        assert reader.totals()[0] == 1
    assert index.totals()[0] == 1


def test_a_path_of_odd_letters_can_be_read_only(tmp_path: Path) -> None:
    path = str(tmp_path / "100%?#&.sqlite")
    Index(path).close()
    with closing(Index(path, read_only=True)) as reader:
        assert reader.totals() == (0, 0)


def test_a_failed_transaction_changes_nothing(index: Index) -> None:
    add(index, 1)

    def broken() -> Iterator[BlobRow]:
        yield blob("new")
        raise RuntimeError("the disk went away")

    with pytest.raises(RuntimeError, match="went away"):
        index.insert(row(2), broken(), 1)
    assert index.totals() == (1, 2 * 4096)
    assert not index.has_blob(sha("new"))
    add(index, 3)


def test_many_threads_may_use_one_index(index: Index) -> None:
    start = threading.Barrier(4)
    troubles: list[BaseException] = []

    def work(base: int) -> None:
        try:
            start.wait()
            for number in range(base, base + 20):
                add(index, number, "shared", f"own {number}")
                index.candidates("a" * 63 + "1")
                index.totals()
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(base * 100,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    assert index.totals() == (80, (1 + 2 * 80) * 4096)
