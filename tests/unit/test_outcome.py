"""Outcomes and reasons: the numbers stand in stores, the names in scripts."""

from __future__ import annotations

from ptocache.outcome import OUTCOME_BY_LABEL, REASON_BY_LABEL, Cache, Event, Outcome, Reason

OUTCOMES = {
    "memory_hit": 0, "disk_hit": 1, "remote_hit": 2, "joined": 3, "miss": 4, "bypass": 5,
    "failure": 6,
}  # fmt: skip
EVENTS = {"corrupt": 0, "rejected": 1, "store_failure": 2, "evicted": 3, "unloadable": 4}
REASONS = {
    "": 0, "asked": 1, "no_daemon": 2, "unidentified_toolchain": 3, "unsupported_option": 4,
    "time_macro": 5, "unseen_input": 6, "toolchain_changed": 7, "input_changed": 8, "read_only": 9,
    "too_large": 10, "invalidated": 11, "path_leak": 12, "store_failed": 13, "no_dependencies": 14,
    "lease_lost": 15,
    "not_a_compile": 16,
    "command_form": 17,
    "compile_failed": 32, "remembered_failure": 33, "step_timeout": 34, "step_killed": 35,
    "output_rejected": 36, "cancelled": 37, "tool_not_found": 38, "bad_request": 39, "system": 40,
    "internal": 41, "checksum": 64, "truncated": 65, "missing": 66, "not_a_file": 67,
    "bad_document": 68, "no_space": 69, "io_error": 70,
    "dropped": 71, "replaced": 72, "same_bytes": 73, "given_up": 74,
}  # fmt: skip


def test_outcomes_keep_their_numbers_and_names() -> None:
    assert {outcome.label: int(outcome) for outcome in Outcome} == OUTCOMES


def test_caches_and_events_keep_their_numbers_and_names() -> None:
    assert {cache.label: int(cache) for cache in Cache} == {"binary": 0, "kernel": 1}
    assert {event.label: int(event) for event in Event} == EVENTS


def test_no_reason_was_renumbered_or_renamed() -> None:
    # Newer reasons may follow; these stay.
    now = {reason.label: int(reason) for reason in Reason}
    assert {label: now.get(label) for label in REASONS} == REASONS


def test_every_label_leads_back() -> None:
    assert all(OUTCOME_BY_LABEL[outcome.label] is outcome for outcome in Outcome)
    assert all(REASON_BY_LABEL[reason.label] is reason for reason in Reason)


def test_hits_are_the_three_that_wait_for_nobody() -> None:
    hits = {outcome for outcome in Outcome if outcome.is_hit}
    assert hits == {Outcome.MEMORY_HIT, Outcome.DISK_HIT, Outcome.REMOTE_HIT}
