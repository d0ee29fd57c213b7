"""Handles are made once: among threads, by makers that ask for others, and on both sides of a fork."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.errors import LoadError
from ptocache.handles import HandleTable
from tests.harness import DEADLINE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


def run(*works: Callable[[], object]) -> list[object]:
    """Run each in a thread of its own; what they gave or raised, in their order."""
    found: list[object] = [None] * len(works)

    def one(number: int) -> None:
        try:
            found[number] = works[number]()
        except Exception as error:
            found[number] = error

    threads = [
        threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return found


class Maker:
    """Makes handles that differ, when ``opened``; counts, and tells that it was called."""

    def __init__(self) -> None:
        self.made: list[object] = []
        self.called = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> tuple[object, object]:
        self.called.set()
        assert self.opened.wait(DEADLINE_S)
        self.made.append(object())
        return self.made[-1], None


def ready() -> Maker:
    maker = Maker()
    maker.opened.set()
    return maker


def failing(error: BaseException) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        raise error

    return make


def test_sixteen_threads_make_a_handle_once() -> None:
    table, maker = HandleTable(), Maker()
    together = threading.Barrier(17, action=maker.opened.set)

    def ask() -> object:
        together.wait(DEADLINE_S)
        return table.get("k", maker)

    found = run(*[ask] * 16, lambda: together.wait(DEADLINE_S))
    assert len(maker.made) == 1
    assert found[:16] == maker.made * 16


def test_keys_do_not_wait_for_each_other() -> None:
    table, slow = HandleTable(), Maker()

    def other() -> object:
        assert slow.called.wait(DEADLINE_S)
        handle = table.get("other", ready())
        slow.opened.set()
        return handle

    assert None not in run(lambda: table.get("k", slow), other)


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_a_maker_raises_is_raised_and_the_next_makes_it(error: BaseException) -> None:
    table = HandleTable()
    with pytest.raises(type(error)) as caught:
        table.get("k", failing(error))
    assert caught.value is error
    maker = ready()
    assert run(lambda: table.get("k", maker)) == maker.made


def test_who_waited_for_a_maker_that_failed_makes_it_in_turn() -> None:
    table, second = HandleTable(), ready()
    called, opened = threading.Event(), threading.Event()

    def fails() -> tuple[Any, Any]:
        called.set()
        assert opened.wait(DEADLINE_S)
        raise OSError("no")

    def waits() -> object:
        assert called.wait(DEADLINE_S)
        return table.get("k", second)

    def opens() -> None:
        wait_for(lambda: table._waiting, "the second to wait")
        opened.set()

    found = run(lambda: table.get("k", fails), waits, opens)
    assert isinstance(found[0], OSError)
    assert second.made == [found[1]]


# --- makers that ask


def test_a_maker_may_ask_for_another_handle() -> None:
    table, inner = HandleTable(), ready()
    assert table.get("outer", lambda: (table.get("inner", inner), None)) is inner.made[0]
    assert table.get("inner", ready()) is inner.made[0]


def test_a_maker_that_asks_for_its_own_handle_is_told_so() -> None:
    table = HandleTable()
    with pytest.raises(LoadError, match="waits for itself"):
        table.get("k", lambda: (table.get("k", ready()), None))
    assert table.get("k", ready())


def test_makers_that_wait_for_each_other_are_told_so_and_nobody_hangs() -> None:
    table, together = HandleTable(), threading.Barrier(2)

    def crossing(own: str, other: str) -> Callable[[], object]:
        def make() -> tuple[Any, Any]:
            together.wait(DEADLINE_S)
            return table.get(other, ready()), None

        return lambda: table.get(own, make)

    found = run(crossing("a", "b"), crossing("b", "a"))
    assert sum(isinstance(item, LoadError) for item in found) == 1


# --- forgetting


def test_forgotten_handles_are_given_back_with_their_keepers_and_made_anew() -> None:
    table = HandleTable()
    table.get(("a", 0), lambda: ("zero", "keeper of zero"))
    table.get(("a", 1), lambda: ("one", "keeper of one"))
    assert table.forget(lambda key: key[1] == 0) == [("zero", "keeper of zero")]
    assert table.get(("a", 0), lambda: ("anew", None)) == "anew"
    assert table.get(("a", 1), ready()) == "one"


def test_a_handle_that_is_forgotten_while_it_is_made_is_not_kept() -> None:
    let_go: list[object] = []
    table, slow = HandleTable(let_go.append), Maker()

    def forgets() -> object:
        assert slow.called.wait(DEADLINE_S)
        gone = table.forget(lambda key: True)
        slow.opened.set()
        return gone

    found = run(lambda: table.get("k", lambda: (slow()[0], "keeper")), forgets)
    assert found == [slow.made[0], []]
    assert let_go == ["keeper"]
    assert table.get("k", ready()) is not slow.made[0]


# --- forks


def in_child(table: HandleTable, work: Callable[[], bool]) -> bool:
    """What ``work`` says in a forked child; false if it hangs or raises."""
    pid = os.fork()
    if pid == 0:
        # Whatever happens, no child goes on with the tests.
        try:
            table.after_fork()
            os._exit(0 if run(work) == [True] else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_makes_its_own_handles_and_leaves_those_of_its_parent_alone() -> None:
    table, mine = HandleTable(), ready()
    handle = table.get("k", mine)

    def child() -> bool:
        own = ready()
        return table.get("k", own) is own.made[0] and table.get("k", ready()) is own.made[0]

    assert in_child(table, child)
    assert table.get("k", ready()) is handle


def test_a_handle_that_a_thread_of_the_parent_was_making_is_made_by_the_child() -> None:
    table, slow = HandleTable(), Maker()

    def forks() -> object:
        assert slow.called.wait(DEADLINE_S)

        def child() -> bool:
            own = ready()
            return table.get("k", own) is own.made[0]

        done = in_child(table, child)
        slow.opened.set()
        return done

    assert run(lambda: table.get("k", slow), forks) == [slow.made[0], True]


def test_a_lock_that_another_thread_held_at_the_fork_stops_no_child() -> None:
    table = HandleTable()
    held, opened = threading.Event(), threading.Event()

    def holds() -> None:
        with table._changed:
            held.set()
            assert opened.wait(DEADLINE_S)

    def forks() -> object:
        assert held.wait(DEADLINE_S)

        def child() -> bool:
            return table.get("k", ready()) is not None

        done = in_child(table, child)
        opened.set()
        return done

    assert run(holds, forks) == [None, True]


def test_a_maker_that_forks_ends_in_parent_and_child() -> None:
    table = HandleTable()

    pid, mine = -1, os.getpid()

    def make() -> tuple[Any, Any]:
        nonlocal pid
        pid = os.fork()
        if pid == 0:
            table.after_fork()
        return "child" if pid == 0 else "parent", None

    try:
        found = table.get("k", make)
        again = table.get("k", ready())
        if os.getpid() != mine:
            os._exit(0 if found == again == "child" else 1)
    finally:
        if os.getpid() != mine:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert found == again == "parent"
