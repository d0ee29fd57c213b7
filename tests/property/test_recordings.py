"""Recordings under hostile and under any content: the reader understands a file, or says what is wrong."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ptocache import recorded, wire
from ptocache.digest import Digest
from ptocache.errors import BadRecordingError
from ptocache.model import Input, Job
from ptocache.recorded import Kernels, LeftOut, Recorded, Recording

WORDS = st.text('a/=,:é\udc80 "{', max_size=5)
BASE = "/home/u/p"
PLACES = st.one_of(
    st.just(""), st.just(BASE), st.just("/opt/x"), WORDS.map(lambda w: f"{BASE}/{w}")
)
OPTIONS = st.one_of(
    WORDS, PLACES, PLACES.map("-I{}".format), st.tuples(WORDS, PLACES).map("=".join)
)
NAMES = st.sampled_from(["k.c", "a/k.cpp", "é.pto"])


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """A recording of a few requests."""
    compiles = []
    inputs = {}
    for _ in range(draw(st.integers(0, 3))):
        data = draw(st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=2))
        digests = {name: Digest.of(text) for name, text in data.items()}
        inputs.update({digests[name].sha256: text for name, text in data.items()})
        variables = draw(st.dictionaries(st.sampled_from(["A", "LC_é"]), OPTIONS, max_size=2))
        job = Job(
            toolchain=draw(WORDS), arch=draw(WORDS), options=tuple(draw(st.lists(OPTIONS, max_size=3))),
            env=tuple(sorted(variables.items())),
            inputs=tuple(sorted(Input(*item) for item in digests.items())),
            outputs=tuple(draw(st.lists(WORDS, max_size=2))), source_dir=draw(PLACES),
            cwd=draw(PLACES), kernel=draw(WORDS),
        )  # fmt: skip
        files = tuple(sorted((name, f"{BASE}/{name}") for name in data if draw(st.booleans())))
        request = wire.Request(job, {}, salt=draw(WORDS))
        compiles.append(Recorded(request, files, draw(WORDS), draw(st.booleans())))
    kernels = draw(st.lists(st.tuples(WORDS, WORDS, WORDS, st.integers(1, 99)), max_size=2))
    left = draw(st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), max_size=2))
    found = Recording(
        tuple(compiles),
        inputs,
        tuple(Kernels(*k) for k in kernels),
        tuple(LeftOut(*x) for x in left),
    )
    return recorded.joined([found])


@given(recordings())
def test_whatever_is_written_comes_back(found: Recording) -> None:
    data = b"".join(recorded.lines(found, BASE))
    assert recorded.parse(data, BASE) == found
    assert b"".join(recorded.lines(recorded.parse(data, BASE), BASE)) == data


@given(recordings(), recordings())
def test_two_runs_are_joined_in_any_order_to_the_same_bytes(one: Recording, two: Recording) -> None:
    both, reverse = recorded.joined([one, two]), recorded.joined([two, one])
    assert b"".join(recorded.lines(both)) == b"".join(recorded.lines(reverse))
    assert recorded.joined([both, two]) == both


def understood(data: bytes) -> None:
    """The reader says what is wrong, or gives values that a request can be made of."""
    with contextlib.suppress(BadRecordingError):
        for item in recorded.parse(data, BASE).compiles:
            job = item.request.job
            assert all(isinstance(word, str) for word in (*job.options, job.cwd, item.called))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    understood(data)
    understood(b'{"record":"ptocache-recording","version":1}\n' + data)
    understood(b'{"record":"ptocache-recording","version":1,"journal":true}\n' + data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A manifest of which one field of one line is something else, is missing, or is new."""
    lines = [json.loads(line) for line in recorded.lines(draw(recordings()))]
    line: dict[str, Any] = draw(st.sampled_from(lines))
    field = draw(st.sampled_from(sorted(line)) | st.text(max_size=8))
    if draw(st.booleans()):
        line[field] = draw(VALUES)
    else:
        line.pop(field, None)
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


@given(spoilt())
def test_a_manifest_with_one_thing_wrong_is_read_or_refused(data: bytes) -> None:
    understood(data)


@given(recordings(), st.data())
def test_a_manifest_that_is_cut_or_changed_in_a_byte_is_read_or_refused(
    found: Recording, draw: st.DataObject
) -> None:
    data = bytearray(b"".join(recorded.lines(found)))
    at = draw.draw(st.integers(0, len(data) - 1))
    understood(bytes(data[:at]))
    data[at] = draw.draw(st.integers(0, 255))
    understood(bytes(data))
