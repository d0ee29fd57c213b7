"""Rendering is pure: values in, text or JSON out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptocache import errors
from ptocache.digest import Digest
from ptocache.model import Answer, Artifact
from ptocache.outcome import Cache, Event, Outcome, Reason
from ptocache.result import Result
from ptocache.tally import Tally, report
from ptocache_cli import exits, render

KEY = "ab" * 32


def result(outcome: Outcome, **fields: Any) -> Result:
    data = b"artifact"
    fields.setdefault("artifacts", (Artifact("shared", Digest.of(data), 0o755, data),))
    answer = Answer(outcome, KEY, identity="cd" * 32, compile_ms=1500, **fields)
    return Result(answer, "host", 2.5)


def stats(tally: Tally, daemon: dict[str, Any] | None = None) -> dict[str, Any]:
    store = {"entries": 2, "bytes": 3 << 20, "limit": 1 << 30, "evicted": 1}
    return {"schema": 1, "caches": report(tally.peek()), "store": store, "daemon": daemon}


# --- units


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"),
        (150 << 10, "150 KiB"), ((150 << 10) + 512, "150 KiB"), (1 << 20, "1 MiB"),
        (10 << 30, "10 GiB"), (5 << 40, "5 TiB"), (5 << 50, "5120 TiB"),
    ],
)  # fmt: skip
def test_sizes_read_well(number: int, text: str) -> None:
    assert render.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (0.0004, "0.40 ms"), (0.00999, "9.99 ms"), (0.0123, "12 ms"), (1.0, "1.00 s"),
        (2.314, "2.31 s"), (119.9, "119.90 s"), (120, "2 min"), (7200, "2.0 h"), (172800, "2.0 d"),
    ],
)  # fmt: skip
def test_durations_read_well(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


def test_a_moment_has_its_date_and_its_age() -> None:
    assert render.moment(86400.0, 86400.0 + 600) == "1970-01-02 00:00:00 UTC (10 min ago)"


def test_a_moment_in_the_future_is_now() -> None:
    assert render.moment(86400.0, 0.0).endswith("(0 s ago)")


def test_counts_have_their_plurals() -> None:
    assert render.count(1, "entry", "entries") == "1 entry"
    assert render.count(2, "entry", "entries") == "2 entries"
    assert render.count(0, "hit") == "0 hits"


# --- shapes


@given(st.binary())
def test_bytes_in_json_can_be_had_back(data: bytes) -> None:
    text = render.to_json({"log": data})
    assert text.isascii()
    assert json.loads(text)["log"].encode("utf-8", "surrogateescape") == data


def test_json_of_nested_shapes() -> None:
    value = {"a": (1, {"b": [memoryview(b"x"), None, True]}), 2: 0.5}
    assert json.loads(render.to_json(value, indent=None)) == {
        "a": [1, {"b": ["x", None, True]}],
        "2": 0.5,
    }


def test_a_value_of_several_lines_stays_in_its_column() -> None:
    assert render.fields([("a", "1\n2"), ("long", ""), ("b", "3")]) == (
        "a     1\n      2\nlong\nb     3"
    )


def test_a_table_aligns_its_columns() -> None:
    assert render.table(["", "n"], [["one", "1"], ["x", "100"]]) == "       n\none    1\nx    100"


# --- compile


def test_reason_is_there_for_a_bypass_and_a_failure_alone() -> None:
    for outcome in Outcome:
        found = render.compiled("k.c", result(outcome, reason=Reason.ASKED), {})
        assert ("reason" in found) == (outcome in (Outcome.BYPASS, Outcome.FAILURE))
        assert found["outcome"] == outcome.label


def test_outputs_are_those_that_were_written() -> None:
    hit = result(Outcome.DISK_HIT)
    assert render.compiled("k.c", hit, {})["outputs"] == []
    (output,) = render.compiled("k.c", hit, {"shared": "/x/k.so"})["outputs"]
    digest = Digest.of(b"artifact").sha256
    assert output == {"name": "shared", "path": "/x/k.so", "size": 8, "digest": digest}


def test_the_line_of_a_failure_has_its_reason() -> None:
    failed = result(Outcome.FAILURE, reason=Reason.STEP_TIMEOUT, artifacts=())
    line = render.compiled_line("k.c", failed, {})
    assert line == f"k.c: failure (step_timeout)  {KEY[:12]}  2.50 ms"


def test_every_outcome_is_explained() -> None:
    for outcome in Outcome:
        text = render.explained(result(outcome))
        assert f"{outcome.label}: " in text
        assert KEY in text
        assert ("saved" in text) == (outcome.is_hit or outcome is Outcome.JOINED)


# --- statistics


def test_the_hit_rate_leaves_bypasses_and_failures_out() -> None:
    tally = Tally()
    for outcome in (Outcome.MEMORY_HIT, Outcome.DISK_HIT, Outcome.JOINED, Outcome.MISS):
        tally.outcome(Cache.BINARY, outcome, saved_ms=0 if outcome is Outcome.MISS else 1000)
    tally.outcome(Cache.BINARY, Outcome.BYPASS, Reason.TIME_MACRO)
    tally.outcome(Cache.BINARY, Outcome.FAILURE, Reason.COMPILE_FAILED)
    tally.event(Cache.KERNEL, Event.CORRUPT, Reason.TRUNCATED)
    lines = [line.split() for line in render.statistics(stats(tally), "/store").splitlines()]
    assert ["requests", "6", "0"] in lines
    assert ["hit", "rate", "75.0", "%", "-"] in lines
    assert ["time", "saved", "3.00", "s", "0", "s"] in lines
    assert ["time_macro", "1", "0"] in lines
    assert ["truncated", "0", "1"] in lines
    assert ["daemon", "none"] in lines


def test_a_limit_of_zero_is_no_division() -> None:
    found = stats(Tally())
    found["store"]["limit"] = 0
    assert "3 MiB of 0 B\n" in render.statistics(found, "/store")


def test_prometheus_counts_are_whole_and_labels_are_escaped() -> None:
    tally = Tally()
    tally.event(Cache.BINARY, Event.CORRUPT, Reason.CHECKSUM, count=123456789)
    tally.outcome(Cache.BINARY, Outcome.MEMORY_HIT, saved_ms=1500)
    daemon = {"pid": 1, "version": 'a"b\\c\nd', "uptime_s": 1.25}
    text = render.prometheus(stats(tally, daemon))
    lines = text.splitlines()
    assert 'ptocache_events_total{cache="binary",event="corrupt"} 123456789' in lines
    corrupt = 'ptocache_reasons_total{cache="binary",of="corrupt",reason="checksum"} 123456789'
    assert corrupt in lines
    assert 'ptocache_saved_seconds_total{cache="binary"} 1.5' in lines
    assert "ptocache_daemon_uptime_seconds 1.25" in lines
    assert r'ptocache_daemon_info{version="a\"b\\c\nd"} 1' in lines


# --- the store


def test_a_collection_in_words() -> None:
    found = {"entries": 1, "bytes": 2048, "remaining": 0}
    assert render.collected(found, dry_run=False) == "removed 1 entry (2 KiB); 0 B remain"
    expected = "would remove 1 entry (2 KiB); 0 B would remain"
    assert render.collected(found, dry_run=True) == expected


def test_a_long_invalidation_names_some_and_counts_the_rest() -> None:
    item = {"key": KEY, "toolchain": "host", "arch": "", "kernel": "k", "bytes": 1}
    found = {"entries": 1500, "bytes": 1, "removed": [item] * 1000}
    lines = render.invalidated(found, dry_run=False).splitlines()
    assert lines[0] == "removed 1500 entries (1 B)"
    assert lines[1] == f"  {KEY[:12]}  host k  1 B"
    assert len(lines) == 22
    assert lines[-1] == "  and 1480 more"


def test_an_invalidation_of_nothing_is_one_line() -> None:
    found = {"entries": 0, "bytes": 0, "removed": []}
    assert render.invalidated(found, dry_run=True) == "would remove 0 entries (0 B)"


# --- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CompileFailedError("x"), 1),
        (errors.StepTimeoutError("x"), 1),
        (errors.ToolNotFoundError("x"), 1),
        (errors.PtocacheError("x"), 1),
        (OSError(28, "No space left on device"), 1),
        (ZeroDivisionError("x"), 1),
        (errors.BadRequestError("x"), 2),
        (errors.ConfigError("x"), 2),
        (errors.UnknownEntryError("x"), 2),
        (errors.UnknownToolchainError("x"), 2),
        (errors.DaemonUnavailableError("x"), 3),
        (errors.PeerRefusedError("x"), 3),
        (errors.ProtocolMismatchError("x"), 3),
        (errors.StoreDamagedError("x"), 4),
        (errors.StoreUnusableError("x"), 4),
        (errors.StoreBusyError("x"), 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exits.code_of(error) == code


def test_an_error_is_one_line_with_what_to_do() -> None:
    assert exits.text_of(errors.StoreError("it broke", hint="mend it")) == "it broke (mend it)"
    assert exits.text_of(OSError(2, "No such file", "/x")) == "/x: No such file"
    assert "ZeroDivisionError" in exits.text_of(ZeroDivisionError("x"))
