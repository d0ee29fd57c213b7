"""What is dropped when a loader refuses an artifact, what stays, and what is remembered of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.digest import Digest
from ptocache.errors import BadRequestError, StoreError
from ptocache.explain import Explanation, Memory
from ptocache.outcome import Cache, Reason
from ptocache.rejection import MOST_DROPS, Rejections, Report, parse
from ptocache.tally import report as tallied
from tests.harness import DEADLINE_S
from tests.unit.test_store import World, action_of, checked, entry_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = b"first bytes", b"second bytes"


async def in_io(function: Any, *args: Any) -> Any:
    return await asyncio.to_thread(function, *args)


class Desk:
    """A store, and where reports on it go."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.memory = Memory()
        self.rejections = Rejections(self.world.store, self.memory, in_io, limit=4)

    def report(self, name: str, *outputs: bytes, detail: str = "no", **more: Any) -> Reason:
        return asyncio.run(
            self.rejections.rule(report_of(name, *outputs, detail=detail), **more)
        ).verdict

    def counted(self, cache: str = "binary") -> dict[str, int]:
        found = tallied(self.world.store.counts())[cache]
        assert found["unloadable"] == sum(found["unloadable_reasons"].values())
        return dict(found["unloadable_reasons"])


def report_of(name: str, *outputs: bytes, detail: str = "no") -> Report:
    named = {(f"o{n}", Digest.of(data).sha256) for n, data in enumerate(outputs)}
    return Report(action_of(name).key, frozenset(named), detail)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "store")
    yield made
    made.world.store.close()


def test_an_entry_with_the_bytes_of_the_report_is_dropped_from_memory_and_disk(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    desk.world.publish("other", SECOND)
    assert desk.report("k", FIRST) is Reason.DROPPED
    assert desk.world.find_hot("k") is None
    assert desk.world.find("k") is None
    assert not desk.world.blob(FIRST).exists()
    assert desk.world.names() == ["other"]
    assert desk.counted() == {"dropped": 1}


@pytest.mark.parametrize("reported", [(SECOND,), (FIRST, FIRST)], ids=["bytes", "output"])
def test_an_entry_with_other_outputs_stays(desk: Desk, reported: tuple[bytes, ...]) -> None:
    desk.world.publish("k", FIRST)
    assert desk.report("k", *reported) is Reason.REPLACED
    assert desk.world.find_hot("k") is not None


def test_a_report_of_one_of_several_outputs_drops_the_entry(desk: Desk) -> None:
    desk.world.publish("k", FIRST, SECOND)
    assert desk.report("k", FIRST) is Reason.DROPPED
    assert desk.world.find("k") is None


def test_another_key_that_shares_the_blob_keeps_its_entry_until_it_is_reported(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    desk.world.publish("twin", FIRST)
    assert desk.report("k", FIRST) is Reason.DROPPED
    assert desk.world.blob(FIRST).exists()
    assert desk.world.find("twin") is not None
    assert desk.report("twin", FIRST) is Reason.DROPPED
    assert not desk.world.blob(FIRST).exists()


def test_what_is_dropped_leaves_the_budget(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    assert desk.world.store.budget.used > 0
    desk.report("k", FIRST)
    assert desk.world.store.budget.used == 0
    assert desk.world.store.status()["bytes"] == 0


def test_the_same_bytes_made_again_stay_and_the_report_says_so(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    desk.report("k", FIRST)
    assert desk.report("k", FIRST) is Reason.REPLACED, "not made again yet"
    desk.world.publish("k", FIRST)
    for _ in range(3):
        assert desk.report("k", FIRST) is Reason.SAME_BYTES
    assert desk.world.find_hot("k") is not None
    assert desk.counted() == {"dropped": 1, "replaced": 1, "same_bytes": 3}


def test_other_bytes_are_dropped_in_turn_and_no_key_is_dropped_from_for_ever(desk: Desk) -> None:
    for number in range(MOST_DROPS):
        desk.world.publish("k", b"%d" % number)
        assert desk.report("k", b"%d" % number) is Reason.DROPPED
    desk.world.publish("k", b"last")
    assert desk.report("k", b"last") is Reason.GIVEN_UP
    assert desk.world.find_hot("k") is not None
    assert desk.report("k", b"another") is Reason.REPLACED


def test_an_invalidation_lets_a_key_be_dropped_from_again(desk: Desk) -> None:
    for _ in range(2):
        desk.world.publish("k", FIRST)
        assert desk.report("k", FIRST) is Reason.DROPPED
        desk.rejections.forget()


def test_only_so_many_keys_are_remembered_the_latest_ones(desk: Desk) -> None:
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        desk.world.publish(name, name.encode())
        desk.report(name, name.encode())
    for name in reversed(names):
        desk.world.publish(name, name.encode())
        expected = Reason.DROPPED if name == "a" else Reason.SAME_BYTES
        assert desk.report(name, name.encode()) is expected


def test_reports_at_once_drop_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.world.publish("k", FIRST)
    first_is_at_it, second_has_come = threading.Event(), threading.Event()
    real = desk.world.store.reject

    def slow(*args: Any) -> Any:
        first_is_at_it.set()
        assert second_has_come.wait(DEADLINE_S)
        found = real(*args)
        # Before the second is ruled on, it is made again.
        desk.world.publish("k", FIRST)
        return found

    monkeypatch.setattr(desk.world.store, "reject", slow)

    async def both() -> list[Reason]:
        one = asyncio.create_task(desk.rejections.rule(report_of("k", FIRST)))
        await asyncio.to_thread(first_is_at_it.wait, DEADLINE_S)
        other = asyncio.create_task(desk.rejections.rule(report_of("k", FIRST)))
        await asyncio.sleep(0)
        second_has_come.set()
        return [(await one).verdict, (await other).verdict]

    assert asyncio.run(both()) == [Reason.DROPPED, Reason.SAME_BYTES]


def test_a_whole_kernel_counts_in_its_own_cache(desk: Desk) -> None:
    action = action_of("k")
    for verdict in ("dropped", "same_bytes"):
        desk.world.store.publish(
            action, entry_of(action), checked(FIRST), desk.world.store.generation(), Cache.KERNEL
        )
        desk.report("k", FIRST)
        assert desk.counted("kernel")[verdict] == 1
    assert desk.counted("binary") == {}


def test_a_daemon_that_only_reads_drops_nothing(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    assert desk.report("k", FIRST, read_only=True) is Reason.READ_ONLY
    assert desk.world.find_hot("k") is not None


def test_an_index_that_fails_keeps_the_entry_and_the_next_report_drops_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.world.publish("k", FIRST)

    def fails(*args: Any) -> Any:
        raise StoreError("the index failed")

    with monkeypatch.context() as failing:
        failing.setattr(desk.world.store, "reject", fails)
        assert desk.report("k", FIRST) is Reason.STORE_FAILED
    assert desk.report("k", FIRST) is Reason.DROPPED


def test_an_entry_whose_document_cannot_be_read_is_left_to_heal(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    (row,) = desk.world.store.index.candidates(action_of("k").key)
    Path(desk.world.paths.blob(row.document)).unlink()
    assert desk.report("k", FIRST) is Reason.DROPPED, "it is in memory"
    desk.world.publish("k", SECOND)
    (row,) = desk.world.store.index.candidates(action_of("k").key)
    Path(desk.world.paths.blob(row.document)).unlink()
    desk.world.store._forget([row.id])
    assert desk.report("k", SECOND) is Reason.REPLACED


# --- why the next is a miss


def test_the_next_miss_says_what_the_loader_said_until_it_is_made_again() -> None:
    memory, plain = Memory(), Explanation("first")
    memory.explained("k", plain)
    memory.rejected("k", "a loader refused it: no symbol x")
    assert memory.cause("k", plain).words == "a loader refused it: no symbol x"
    assert memory.cause("other", plain) is plain
    memory.explained("k", memory.cause("k", plain))
    assert memory.cause("k", plain) is plain


def test_what_is_remembered_for_the_next_misses_is_bounded() -> None:
    memory, plain = Memory(2), Explanation("first")
    for key in "abc":
        memory.rejected(key, key * 3)
    assert [memory.cause(key, plain).words for key in "abc"] == ["first", "bbb", "ccc"]


def test_the_words_of_a_loader_reach_the_miss_in_one_line(desk: Desk) -> None:
    desk.world.publish("k", FIRST)
    plain = report_of("k", FIRST)
    said = parse({"key": plain.key, "outputs": dict(plain.outputs), "detail": "one\n\n two\x00"})
    assert said.detail.startswith("one two")
    asyncio.run(desk.rejections.rule(said))
    assert "a loader refused it: one two" in desk.memory.cause(plain.key, Explanation("")).words


# --- reading a report

KEY, DIGEST = "ab" * 32, "cd" * 32


@pytest.mark.parametrize(
    "changed",
    [
        {"key": None}, {"key": "ab"}, {"key": "AB" * 32}, {"key": 7}, {"outputs": None},
        {"outputs": {}}, {"outputs": ["o"]}, {"outputs": {"o": "short"}}, {"outputs": {"o": None}},
        {"outputs": {7: DIGEST}}, {"outputs": {f"o{n}": DIGEST for n in range(5000)}},
    ],
    ids=lambda changed: str(changed)[:30],
)  # fmt: skip
def test_a_report_of_another_form_is_a_bad_request(changed: dict[str, Any]) -> None:
    message = {"type": "reject", "id": 1, "key": KEY, "outputs": {"o": DIGEST}, "detail": "no"}
    assert parse(message) == Report(KEY, frozenset({("o", DIGEST)}), "no")
    with pytest.raises(BadRequestError):
        parse({**message, **changed})


@pytest.mark.parametrize("detail", [None, 7, b"x", ["x"]], ids=repr)
def test_words_that_are_none_are_left_out(detail: object) -> None:
    assert parse({"key": KEY, "outputs": {"o": DIGEST}, "detail": detail}).detail == ""


def test_words_without_end_are_cut() -> None:
    found = parse({"key": KEY, "outputs": {"o": DIGEST}, "detail": "x" * 100_000})
    assert len(found.detail) == 1000
