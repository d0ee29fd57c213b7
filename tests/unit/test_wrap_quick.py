"""The small client's encoding is the wire's."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ptocache import wire
from ptocache.errors import FrameError, PtocacheError
from ptocache.hashing import sha256_hex
from ptocache.integrations import commandline, quick, wrap
from ptocache.outcome import REASON_BY_LABEL
from ptocache_cfamily import command, programs

VALUES: list[Any] = [
    None, "", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65536, "ü\udcff", b"", b"x" * 255,
    b"x" * 256, b"x" * 65536, 0, 127, 128, 255, 256, 65535, 65536, 1 << 32, -1, -32, [], list(range(16)),
    [[]] * 70000, {}, {str(n): n for n in range(16)}, {str(n): n for n in range(70000)},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_values_are_packed_and_read_as_by_the_wire(value: Any) -> None:
    document = {"type": "x", "value": value}
    packed = quick.pack(document)
    assert packed == wire.pack_document(document)
    assert quick.unpack(packed) == document


@pytest.mark.parametrize("value", [True, False, -33, -129, -40000, -(1 << 40)])
def test_what_only_a_daemon_sends_is_read(value: Any) -> None:
    assert quick.unpack(wire.pack_document({"value": value})) == {"value": value}


def test_every_cut_of_a_message_is_an_error() -> None:
    packed = wire.pack_document({"type": "answer", "answer": b"y" * 300, "fds": 70000, "a": ["b"]})
    for end in range(len(packed)):
        with pytest.raises(FrameError):
            quick.unpack(packed[:end])


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\xca\0\0\0\0", b"\x81\x91\x01\x02", b"\x93\x01\x02\x03", b"\x80x"]
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        quick.unpack(data)


def test_a_text_that_stands_for_no_bytes_is_refused() -> None:
    with pytest.raises(PtocacheError, match="no file or variable"):
        quick.pack({"x": "\ud800"})


@pytest.mark.parametrize("size", [0, 1000, 1 << 20])
def test_the_hash_is_the_one_that_everybody_knows(size: int) -> None:
    assert sha256_hex(b"x" * size) == hashlib.sha256(b"x" * size).hexdigest()


def test_what_is_spelled_twice_is_spelled_alike() -> None:
    assert quick.PROTOCOL == wire.PROTOCOL
    assert wrap.SHIM_MARK == programs.SHIM_MARK
    assert (commandline.SOURCE, commandline.OUTPUT, commandline.DEPENDENCIES) == (
        command.SOURCE, command.OUTPUT, command.DEPENDENCIES,
    )  # fmt: skip
    for label in (
        commandline.NOT_A_COMPILE, commandline.COMMAND_FORM, commandline.UNSUPPORTED_OPTION,
    ):  # fmt: skip
        assert label in REASON_BY_LABEL
