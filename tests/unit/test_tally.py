"""Numbers: every request counted once, reasons by name, and sums that add up."""

from __future__ import annotations

import threading

import pytest

from ptocache.outcome import Cache, Event, Outcome, Reason
from ptocache.tally import Slot, Tally, evicted, report

OUTCOME_NAMES = [outcome.label for outcome in Outcome]
# A contract: scripts read these names.
FIELDS = {
    "requests", "memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure",
    "bypass_reasons", "failure_reasons", "corrupt", "corrupt_reasons", "rejected",
    "rejected_reasons", "store_failure", "store_failure_reasons", "unloadable",
    "unloadable_reasons", "saved_ms",
}  # fmt: skip


def test_a_report_of_nothing_has_every_name_and_zeros() -> None:
    found = report({})
    assert set(found) == {"binary", "kernel"}
    for cache in found.values():
        assert set(cache) == FIELDS
        assert all(value in (0, {}) for value in cache.values())


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.label)
@pytest.mark.parametrize("cache", Cache, ids=lambda cache: cache.label)
def test_each_outcome_counts_as_itself_and_as_one_request(cache: Cache, outcome: Outcome) -> None:
    tally = Tally()
    tally.outcome(cache, outcome)
    found = report(tally.peek())
    counted = {name for name in OUTCOME_NAMES if found[cache.label][name]}
    assert counted == {outcome.label}
    assert found[cache.label]["requests"] == 1
    other = Cache.KERNEL if cache is Cache.BINARY else Cache.BINARY
    assert found[other.label]["requests"] == 0


def filled() -> Tally:
    tally = Tally()
    for number, outcome in enumerate(Outcome, start=1):
        for _ in range(number):
            tally.outcome(Cache.BINARY, outcome, saved_ms=10)
    tally.outcome(Cache.BINARY, Outcome.BYPASS, Reason.ASKED)
    tally.outcome(Cache.BINARY, Outcome.BYPASS, Reason.TIME_MACRO)
    tally.outcome(Cache.BINARY, Outcome.BYPASS, Reason.TIME_MACRO)
    tally.outcome(Cache.BINARY, Outcome.FAILURE, Reason.COMPILE_FAILED)
    tally.event(Cache.BINARY, Event.CORRUPT, Reason.CHECKSUM)
    tally.event(Cache.BINARY, Event.CORRUPT, Reason.MISSING, 2)
    tally.event(Cache.BINARY, Event.REJECTED)
    tally.event(Cache.KERNEL, Event.STORE_FAILURE, Reason.NO_SPACE)
    tally.event(Cache.BINARY, Event.EVICTED, count=5)
    tally.event(Cache.KERNEL, Event.EVICTED, count=2)
    return tally


def test_requests_are_the_sum_of_the_seven_outcomes() -> None:
    for found in report(filled().peek()).values():
        assert found["requests"] == sum(found[name] for name in OUTCOME_NAMES)


def test_reasons_are_named_and_add_up_to_what_has_one() -> None:
    found = report(filled().peek())
    assert found["binary"]["bypass"] == 6 + 3
    assert found["binary"]["bypass_reasons"] == {"asked": 1, "time_macro": 2}
    assert found["binary"]["failure_reasons"] == {"compile_failed": 1}
    assert found["binary"]["corrupt"] == 3
    assert found["binary"]["corrupt_reasons"] == {"checksum": 1, "missing": 2}
    assert found["binary"]["rejected"] == 1
    assert found["binary"]["store_failure"] == 0
    assert found["kernel"]["store_failure_reasons"] == {"no_space": 1}


def test_saved_time_adds_up() -> None:
    found = report(filled().peek())
    assert found["binary"]["saved_ms"] == 10 * sum(range(1, 8))
    assert found["kernel"]["saved_ms"] == 0


def test_evictions_count_over_both_caches() -> None:
    assert evicted(filled().peek()) == 7
    assert evicted({}) == 0


def test_a_reason_of_a_newer_version_in_the_store_keeps_its_number_as_its_name() -> None:
    counts = {Slot(Cache.BINARY, "outcome", Outcome.BYPASS, 999): 4}
    found = report(counts)["binary"]
    assert found["bypass_reasons"] == {"reason_999": 4}
    assert found["bypass"] == found["requests"] == 4


def test_peek_leaves_and_drain_takes() -> None:
    tally = filled()
    before = tally.peek()
    assert tally.peek() == before
    assert tally.drain() == before
    assert tally.peek() == {}


def test_what_could_not_be_written_is_given_back_and_added_to_what_came_meanwhile() -> None:
    tally = Tally()
    tally.outcome(Cache.BINARY, Outcome.MISS)
    drained = tally.drain()
    tally.outcome(Cache.BINARY, Outcome.MISS)
    tally.outcome(Cache.BINARY, Outcome.MEMORY_HIT)
    tally.restore(drained)
    found = report(tally.peek())["binary"]
    assert (found["miss"], found["memory_hit"], found["requests"]) == (2, 1, 3)


def test_nothing_is_lost_between_threads() -> None:
    tally = Tally()
    start = threading.Barrier(5)

    def count() -> None:
        start.wait()
        for _ in range(500):
            tally.outcome(Cache.BINARY, Outcome.MEMORY_HIT, saved_ms=2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    total = Tally()
    for _ in range(100):
        total.restore(tally.drain())
    for thread in threads:
        thread.join()
    total.restore(tally.drain())
    found = report(total.peek())["binary"]
    assert (found["requests"], found["saved_ms"]) == (2000, 4000)
