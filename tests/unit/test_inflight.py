"""One build per key: the first leads, others join, and who leaves hands over in order."""

from __future__ import annotations

from ptocache.inflight import InFlight


def test_the_first_leads_and_others_join() -> None:
    flights: InFlight[str, int] = InFlight()
    assert flights.enter("k", 1)
    assert not flights.enter("k", 2)
    assert not flights.enter("k", 3)
    assert flights.leader("k") == 1
    assert flights.members("k") == 3


def test_keys_do_not_meet() -> None:
    flights: InFlight[str, int] = InFlight()
    assert flights.enter("a", 1)
    assert flights.enter("b", 1)
    assert len(flights) == 2
    assert flights.land("a") == (1,)
    assert flights.leader("b") == 1


def test_landing_tells_everybody_the_leader_first_and_ends_the_flight() -> None:
    flights: InFlight[str, int] = InFlight()
    for member in (5, 3, 9):
        flights.enter("k", member)
    assert flights.land("k") == (5, 3, 9)
    assert (flights.members("k"), flights.leader("k"), len(flights)) == (0, None, 0)
    assert flights.enter("k", 7), "the next one leads a new flight"


def test_landing_twice_or_without_a_flight_tells_nobody() -> None:
    flights: InFlight[str, int] = InFlight()
    flights.enter("k", 1)
    flights.land("k")
    assert flights.land("k") == ()
    assert flights.land("never") == ()


def test_a_leader_that_leaves_hands_over_to_who_waited_longest() -> None:
    flights: InFlight[str, int] = InFlight()
    for member in (9, 4, 7, 1):
        flights.enter("k", member)
    assert flights.leave("k", 9) == 4
    assert flights.leave("k", 4) == 7
    assert flights.leave("k", 7) == 1
    assert flights.leave("k", 1) is None
    assert len(flights) == 0


def test_a_joiner_that_leaves_changes_nobodys_part() -> None:
    flights: InFlight[str, int] = InFlight()
    for member in (1, 2, 3):
        flights.enter("k", member)
    assert flights.leave("k", 2) is None
    assert flights.leader("k") == 1
    assert flights.land("k") == (1, 3)


def test_who_joins_again_keeps_the_place_in_the_line() -> None:
    flights: InFlight[str, int] = InFlight()
    for member in (1, 2, 3):
        flights.enter("k", member)
    assert not flights.enter("k", 2)
    assert flights.members("k") == 3
    assert flights.leave("k", 1) == 2


def test_leaving_what_one_is_not_in_does_nothing() -> None:
    flights: InFlight[str, int] = InFlight()
    assert flights.leave("k", 1) is None
    flights.enter("k", 1)
    assert flights.leave("k", 2) is None
    assert flights.leader("k") == 1


def test_the_last_to_leave_ends_the_flight_and_the_next_leads_a_new_one() -> None:
    flights: InFlight[str, int] = InFlight()
    flights.enter("k", 1)
    flights.leave("k", 1)
    assert flights.leader("k") is None
    assert flights.enter("k", 2)


def test_a_member_named_by_something_false_leads_as_well() -> None:
    flights: InFlight[str, int] = InFlight()
    flights.enter("k", 0)
    flights.enter("k", 1)
    assert flights.leader("k") == 0
    assert flights.leave("k", 0) == 1


def test_waiting_counts_everybody_over_all_flights() -> None:
    flights: InFlight[str, int] = InFlight()
    assert flights.waiting() == 0
    for key, member in (("a", 1), ("a", 2), ("b", 3)):
        flights.enter(key, member)
    assert flights.waiting() == 3
    flights.land("a")
    assert flights.waiting() == 1
