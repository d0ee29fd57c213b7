"""The canonical encoding says everything: a reader written from its grammar gets every value back, so no
two different documents encode alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptocache.digest import canonical
from ptocache.errors import BadRequestError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
UNDECODABLE = st.binary(max_size=6).map(lambda data: data.decode("utf-8", "surrogateescape"))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 20) | TEXT | UNDECODABLE
    | st.binary(max_size=12) | st.sampled_from(["1", b"1", 1, True, "", b"", [], {}, "0", b"0", 0])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT | UNDECODABLE, inner, max_size=4)
    ),
    max_leaves=12,
)


def meaning(value: Any) -> Any:
    """A value with its type beside it (in Python ``True == 1``), text as its bytes, maps unordered."""
    if isinstance(value, str):
        return ("s", value.encode("utf-8", "surrogateescape"))
    if isinstance(value, dict):
        pairs = {meaning(key)[1]: meaning(item) for key, item in value.items()}
        return ("m", frozenset(pairs.items()))
    if isinstance(value, (list, tuple)):
        return ("l", tuple(meaning(item) for item in value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("b", bytes(value))
    return ({type(None): "n", bool: "t", int: "i"}[type(value)], value)


def read(data: bytes) -> tuple[Any, bytes]:
    """One value of the grammar in ``ptocache.digest``, and what follows it."""
    tag, size = data[:1].decode(), int.from_bytes(data[1:9], "little")
    payload, rest = data[9 : 9 + size], data[9 + size :]
    assert len(payload) == size
    if tag == "n":
        assert payload == b""
        return ("n", None), rest
    if tag == "t":
        return ("t", {b"0": False, b"1": True}[payload]), rest
    if tag == "i":
        return ("i", int(payload)), rest
    if tag in "sb":
        return (tag, payload), rest
    items = []
    while payload:
        item, payload = read(payload)
        items.append(item)
    if tag == "l":
        return ("l", tuple(items)), rest
    assert tag == "m"
    names = [name for _, name in items[::2]]
    assert names == sorted(set(names)), "fields are in order, and each stands once"
    return ("m", frozenset(zip(names, items[1::2], strict=True))), rest


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_a_reader_of_the_grammar_gets_every_value_back(value: Any) -> None:
    assert read(canonical(value)) == (meaning(value), b"")


@given(VALUES, VALUES)
@settings(max_examples=300, deadline=None)
def test_two_values_encode_alike_exactly_when_they_are_equal(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


@given(st.dictionaries(TEXT, VALUES, max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_a_map_and_the_kind_of_a_sequence_do_not_count(
    value: Any, random: Any
) -> None:
    names = list(value)
    random.shuffle(names)
    shuffled = {
        name: tuple(value[name]) if isinstance(value[name], list) else value[name] for name in names
    }
    assert canonical(shuffled) == canonical(value)


@given(VALUES, st.sampled_from([1.0, float("nan"), {1}, object, {1: 2}, {None: 1}, "\ud800"]))
@settings(max_examples=50, deadline=None)
def test_what_the_grammar_does_not_have_is_refused(value: Any, strange: Any) -> None:
    with pytest.raises(BadRequestError):
        canonical([value, strange])
