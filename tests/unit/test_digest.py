"""The canonical encoding: its exact bytes, and that no two different values share them."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ptocache.digest import Digest, canonical, is_sha256
from ptocache.errors import BadRequestError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"

SAMPLE: dict[str, Any] = {
    "nothing": None,
    "truth": [True, False],
    "numbers": [0, 1, -1, 2**63, -(2**70)],
    "text": ["", "a", "Größe", "\udcff"],
    "bytes": [b"", b"\x00\xff"],
    "nested": {"b": {"z": [], "a": {}}, "a": [[[]]]},
}


def length(number: int) -> bytes:
    return number.to_bytes(8, "little")


def test_encoding_of_everything_is_the_golden_one() -> None:
    assert canonical(SAMPLE) == (GOLDEN / "canonical.bin").read_bytes()


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"n" + length(0)),
        (True, b"t" + length(1) + b"1"),
        (False, b"t" + length(1) + b"0"),
        (0, b"i" + length(1) + b"0"),
        (-12, b"i" + length(3) + b"-12"),
        (10**30, b"i" + length(31) + b"1" + b"0" * 30),
        ("ab", b"s" + length(2) + b"ab"),
        ("é", b"s" + length(2) + b"\xc3\xa9"),
        ("\udcff", b"s" + length(1) + b"\xff"),
        (b"\x00", b"b" + length(1) + b"\x00"),
        (bytearray(b"x"), b"b" + length(1) + b"x"),
        (memoryview(b"x"), b"b" + length(1) + b"x"),
        ([], b"l" + length(0)),
        ((), b"l" + length(0)),
        (["a"], b"l" + length(10) + b"s" + length(1) + b"a"),
        ({}, b"m" + length(0)),
        ({"a": None}, b"m" + length(19) + b"s" + length(1) + b"a" + b"n" + length(0)),
    ],
)
def test_encoding_of_one_value_is_tag_length_payload(value: Any, encoded: bytes) -> None:
    assert canonical(value) == encoded


DIFFERENT: list[tuple[Any, Any]] = [
    (["a", "b"], ["ab"]),
    (["a", "b"], ["a", ["b"]]),
    (["a", "b"], ["b", "a"]),
    ([["a"], "b"], [["a", "b"]]),
    (["", "a"], ["a", ""]),
    ([""], []),
    ([[]], []),
    ({}, []),
    ({}, None),
    ({}, ""),
    ([], ""),
    ("", b""),
    ("a", b"a"),
    (1, True),
    (0, False),
    (1, "1"),
    (True, "1"),
    (True, "true"),
    (None, "None"),
    (None, False),
    (None, 0),
    ({"a": "b"}, ["a", "b"]),
    ({"a": "b"}, {"b": "a"}),
    ({"a": "b", "c": "d"}, {"a": "bcd"}),
    ({"a": {"b": "c"}}, {"a": ["b", "c"]}),
    ({"a": None}, {}),
    ({"a": "", "b": ""}, {"ab": ""}),
    ("s" + "\x01" + "\x00" * 7 + "a", ["a"]),
    (12, [1, 2]),
    (-1, "-1"),
    ("e\u0301", "\u00e9"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=repr)
def test_different_values_encode_differently(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)
    assert canonical([one]) != canonical([other])
    assert canonical({"x": one}) != canonical({"x": other})


def test_all_samples_together_have_as_many_encodings_as_there_are_values() -> None:
    values = {repr(value): value for pair in DIFFERENT for value in pair}
    assert len({canonical(value) for value in values.values()}) == len(values)


def test_no_encoding_is_the_beginning_of_another() -> None:
    encodings = sorted({canonical(value) for pair in DIFFERENT for value in pair})
    assert not any(b.startswith(a) for a, b in pairwise(encodings))


def test_order_of_a_map_does_not_count() -> None:
    one = {"a": 1, "b": {"x": 1, "y": 2}}
    other = {"b": {"y": 2, "x": 1}, "a": 1}
    assert canonical(one) == canonical(other)


def test_fields_of_a_map_are_in_the_order_of_their_bytes() -> None:
    # U+FFFD sorts before U+10000 by bytes, and after it in UTF-16.
    encoded = canonical({"\U00010000": 1, "\ufffd": 2, "a": 3, "B": 4})
    places = [encoded.index(name.encode()) for name in ("B", "a", "\ufffd", "\U00010000")]
    assert places == sorted(places)


def test_lists_and_tuples_are_the_same_and_so_are_kinds_of_bytes() -> None:
    assert canonical([1, (2, 3)]) == canonical((1, [2, 3]))
    assert canonical(b"x") == canonical(bytearray(b"x")) == canonical(memoryview(b"x"))


def test_an_enum_of_integers_encodes_as_its_number() -> None:
    from ptocache.outcome import Reason

    assert canonical(Reason.ASKED) == canonical(1)


@pytest.mark.parametrize(
    "value", [1.0, float("nan"), 1j, {1, 2}, object(), [1.5], {"a": {1: 2}}, {b"a": 1}, {None: 1}]
)
def test_a_value_that_the_grammar_lacks_is_refused(value: Any) -> None:
    with pytest.raises(BadRequestError):
        canonical(value)


def test_digest_is_sha256_and_size() -> None:
    assert Digest.of(b"abc") == Digest(hashlib.sha256(b"abc").hexdigest(), 3)
    assert Digest.of(memoryview(b"xabc")[1:]) == Digest.of(bytearray(b"abc"))
    assert Digest.of(b"").size == 0


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("0" * 64, True),
        (hashlib.sha256(b"").hexdigest(), True),
        ("0" * 63, False),
        ("0" * 65, False),
        ("A" * 64, False),
        ("g" * 64, False),
        ("0" * 63 + "\n", False),
        ("٣" * 64, False),
        ("0" * 31 + "/" + "0" * 32, False),
        ("." * 64, False),
        (b"0" * 64, False),
        (None, False),
        (0, False),
        (["0"] * 64, False),
    ],
)
def test_a_sha256_is_64_lower_case_hexadecimal_digits(text: object, right: bool) -> None:
    assert is_sha256(text) is right
