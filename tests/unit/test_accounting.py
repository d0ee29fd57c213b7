"""Bytes and recency: the limits at, below and above, and sums that add up."""

from __future__ import annotations

import threading

import pytest

from ptocache.accounting import Budget, Recency, Use


@pytest.mark.parametrize(("size", "fits"), [(0, True), (99, True), (100, True), (101, False)])
def test_what_is_larger_than_the_limit_never_fits(size: int, fits: bool) -> None:
    assert Budget(100, 0.9, used=100).fits(size) is fits


@pytest.mark.parametrize(("used", "excess"), [(0, 0), (90, 0), (99, 0), (100, 0), (101, 11)])
def test_an_eviction_starts_above_the_limit_and_goes_down_to_low_water(
    used: int, excess: int
) -> None:
    assert Budget(100, 0.9, used=used).excess() == excess


@pytest.mark.parametrize(("limit", "excess"), [(0, 50), (49, 1), (50, 0), (51, 0)])
def test_an_explicit_limit_is_reached_exactly(limit: int, excess: int) -> None:
    assert Budget(100, 0.9, used=50).excess(limit) == excess


def test_what_is_reserved_counts_as_used_until_it_is_committed() -> None:
    budget = Budget(100, 0.5)
    budget.reserve(101)
    assert budget.used == 0
    assert budget.excess() == 51
    budget.commit(101, 40)
    assert budget.used == 40
    assert budget.excess() == 0
    assert budget.excess(0) == 40


def test_a_released_reservation_leaves_nothing() -> None:
    budget = Budget(100, 0.5)
    budget.reserve(60)
    budget.reserve(60)
    budget.release(60)
    assert budget.excess() == 0
    budget.release(60)
    assert (budget.used, budget.excess(0)) == (0, 0)


def test_freed_bytes_are_no_longer_used_and_never_less_than_nothing() -> None:
    budget = Budget(100, 0.5, used=30)
    budget.freed(10)
    assert budget.used == 20
    budget.freed(1000)
    assert budget.used == 0


def test_a_replacement_may_shrink_what_is_used() -> None:
    budget = Budget(100, 0.5, used=30)
    budget.reserve(10)
    budget.commit(10, -20)
    assert budget.used == 10


def test_a_count_of_the_disk_replaces_what_was_believed() -> None:
    budget = Budget(100, 0.5, used=30)
    budget.reset(77)
    assert budget.used == 77


def test_bytes_add_up_under_many_threads() -> None:
    budget = Budget(10**9, 0.9)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            budget.reserve(10)
            budget.commit(10, 8)
            budget.freed(3)
            budget.reserve(5)
            budget.release(5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.used == 8 * 500 * 5
    assert budget.excess(0) == budget.used, "no reservation is left"


def test_uses_of_one_entry_are_counted_and_the_last_time_stays() -> None:
    recency = Recency()
    recency.touch(1, 10.0)
    recency.touch(2, 11.0)
    recency.touch(1, 12.0)
    assert recency.drain() == {1: Use(2, 12.0), 2: Use(1, 11.0)}


def test_what_was_drained_is_forgotten() -> None:
    recency = Recency()
    recency.touch(1, 10.0)
    first = recency.drain()
    assert recency.drain() == {}
    recency.touch(1, 20.0)
    assert first == {1: Use(1, 10.0)}
    assert recency.drain() == {1: Use(1, 20.0)}


def test_no_use_is_lost_between_threads() -> None:
    recency = Recency()
    start = threading.Barrier(5)
    drained: list[dict[int, Use]] = []

    def touch() -> None:
        start.wait()
        for second in range(500):
            recency.touch(second % 3, float(second))

    threads = [threading.Thread(target=touch) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    drained += [recency.drain() for _ in range(100)]
    for thread in threads:
        thread.join()
    drained.append(recency.drain())
    assert sum(use.hits for found in drained for use in found.values()) == 2000
