"""Which entries a miss is compared with, and which request an ``explain`` means."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ptocache.control import Controls
from ptocache.digest import Digest
from ptocache.entry import Entry
from ptocache.errors import StoreDamagedError, UnknownEntryError
from ptocache.explain import Asked, Memory
from ptocache.model import Log, Provenance
from ptocache.outcome import Cache
from ptocache.store.history import LIMIT, earlier_entries
from ptocache.store.index import BlobRow, Index, Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Shelf:
    """An index, and documents that say which entry they are of."""

    def __init__(self, path: str) -> None:
        self.index = Index(path)
        self.read: list[str] = []
        self.damaged: set[str] = set()

    def add(
        self, key: str, action: str, kernel: str = "k", created_s: float = 1.0,
        cache: Cache = Cache.BINARY,
    ) -> Row:  # fmt: skip
        row = Row(
            0,
            key * 64,
            action * 64,
            cache,
            "host",
            "",
            kernel,
            "d" * 64,
            created_s,
            created_s,
            0,
            1,
            1,
        )
        blob = BlobRow(Digest("d" * 64, 1), 1, bytes(16))
        made = self.index.insert(row, [blob], self.index.generation())
        assert made is not None
        return row._replace(id=made[0])

    def read_entry(self, row: Row) -> Entry:
        self.read.append(row.key[0])
        if row.key[0] in self.damaged:
            raise StoreDamagedError("cut")
        return Entry({}, (), (), Log(), "", row.key[0], 0, 0, Provenance((), (), "", True, ""))

    def names(self, action: str, kernel: str = "k", before: Row | None = None) -> str:
        """First digits of the entries' keys, in order."""
        found = earlier_entries(self, action * 64, "host", kernel, before)
        return "".join(item.kernel for item in found)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(str(tmp_path / "index.sqlite"))
    yield made
    made.index.close()


def test_the_same_action_comes_first_then_the_newest_of_the_kernel(shelf: Shelf) -> None:
    shelf.add("1", "a")
    shelf.add("2", "b", created_s=5.0)
    shelf.add("3", "c", created_s=9.0)
    shelf.add("4", "a", created_s=3.0)
    shelf.add("5", "d", "other", created_s=8.0)
    assert shelf.names("a") == "4132"
    assert shelf.names("b") == "2341"
    assert shelf.names("f") == "3241"


def test_other_kernels_count_only_if_this_one_has_no_entry(shelf: Shelf) -> None:
    shelf.add("1", "a", "one")
    shelf.add("2", "b", "two", created_s=2.0)
    assert shelf.names("c", "three") == "21"
    assert shelf.names("c", "one") == "1"
    # The name does not count in a key.
    assert shelf.names("a", "three") == "1"


def test_the_two_caches_are_not_compared_with_each_other(shelf: Shelf) -> None:
    shelf.add("1", "a", cache=Cache.KERNEL)
    shelf.add("2", "b", created_s=2.0)
    assert shelf.names("c") == "2"
    found = earlier_entries(shelf, "c" * 64, "host", "k", cache=Cache.KERNEL)
    assert [item.kernel for item in found] == ["1"]


def test_only_what_was_there_before_counts(shelf: Shelf) -> None:
    first = shelf.add("1", "a", created_s=5.0)
    second = shelf.add("2", "a", created_s=5.0)
    shelf.add("3", "b", created_s=4.0)
    shelf.add("4", "a", created_s=6.0)
    assert shelf.names("a", before=second) == "13"
    assert shelf.names("a", before=first) == "3"


def test_what_cannot_be_read_is_passed_over_and_the_rest_is_not_read_before_it_is_asked_for(
    shelf: Shelf,
) -> None:
    for number in "123":
        shelf.add(number, number, created_s=float(number))
    shelf.damaged.add("3")
    found = earlier_entries(shelf, "a" * 64, "host", "k")
    assert next(found).kernel == "2"
    assert shelf.read == ["3", "2"]


def test_no_more_documents_are_read_than_the_limit(shelf: Shelf) -> None:
    for number in range(LIMIT + 8):
        shelf.add(chr(ord("A") + number), "a" if number % 2 else "b")
    assert len(shelf.names("a")) == LIMIT


def test_an_index_that_cannot_be_asked_explains_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[Row]:
        raise sqlite3.DatabaseError("malformed")

    monkeypatch.setattr(shelf.index, "earlier", broken)
    assert shelf.names("a") == ""


# --- which request is meant


def controls(shelf: Shelf, *keys: str) -> Controls:
    memory = Memory()
    for key in keys:
        memory.note(Asked(1.0, key, "binary", "host", "k", "", "bypass", "asked", "asked for"))

    async def in_io(function: Any, *args: Any) -> Any:
        return function(*args)

    service = SimpleNamespace(memory=memory)
    return Controls(cast("Any", SimpleNamespace(service=service, store=shelf, in_io=in_io)))


def test_a_beginning_that_fits_two_requests_or_a_request_and_an_entry_is_refused(
    shelf: Shelf,
) -> None:
    two = controls(shelf, "abcd" + "0" * 60, "abcd" + "1" * 60)
    with pytest.raises(UnknownEntryError, match="several entries: abcd000000000000, abcd1111"):
        asyncio.run(two.explain({"key": "abcd"}))
    shelf.add("1", "a")
    one = controls(shelf, "aaaa" + "0" * 60)
    with pytest.raises(UnknownEntryError, match="several entries"):
        asyncio.run(one.explain({"key": "aaaa"}))
    found = asyncio.run(one.explain({"key": "aaaa0"}))
    assert (found["source"], found["why"]) == ("memory", "asked for")
