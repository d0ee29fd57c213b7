"""Bundles come in whole and in order, and never take more room than there is."""

from __future__ import annotations

import pytest

from ptocache.bundle import Bundle, Room
from ptocache.errors import BadRequestError
from ptocache.wire import MAX_FILES, Piece


def piece(name: str, data: bytes = b"x", *, more: bool = False, mode: int = 0o644) -> Piece:
    return Piece(1, name, mode, data, more)


def test_pieces_become_files_in_the_order_of_their_arrival() -> None:
    bundle = Bundle(Room(100))
    for item in (piece("b", b"12", more=True), piece("b", b"34", mode=0), piece("a", b"")):
        bundle.add(item)
    assert [(item.name, bytes(item.data), item.mode) for item in bundle.outputs()] == [
        ("b", b"1234", 0o644),
        ("a", b"", 0o644),
    ]


def test_a_file_that_is_not_whole_is_no_output() -> None:
    bundle = Bundle(Room(100))
    bundle.add(piece("k", more=True))
    with pytest.raises(BadRequestError, match="not whole"):
        bundle.outputs()


@pytest.mark.parametrize("dropped", [False, True])
def test_the_rules_hold_whether_or_not_the_bytes_are_kept(dropped: bool) -> None:
    bundle = Bundle(Room(100))
    if dropped:
        bundle.drop("nobody wants it")
    bundle.add(piece("k"))
    with pytest.raises(BadRequestError, match="two files"):
        bundle.add(piece("k"))
    bundle.add(piece("open", more=True))
    with pytest.raises(BadRequestError, match="before"):
        bundle.add(piece("other"))
    bundle.add(piece("open"))
    for number in range(MAX_FILES - 2):
        bundle.add(piece(f"f{number}"))
    with pytest.raises(BadRequestError, match=f"more than {MAX_FILES}"):
        bundle.add(piece("one too many"))


def test_all_bundles_share_the_room_and_give_it_back() -> None:
    room = Room(10)
    one, other = Bundle(room), Bundle(room)
    one.add(piece("k", b"123456"))
    other.add(piece("k", b"1234", more=True))
    assert (one.dropped, other.dropped, room.free) == ("", "", 0)
    other.add(piece("k", b"5", more=True))
    assert "10 bytes" in other.dropped
    assert room.free == 4
    other.add(piece("k", b"6789"))
    assert [bytes(item.data) for item in other.outputs()] == [b""]
    assert room.free == 4
    one.drop("the lease ended")
    one.drop("and ended")
    assert (room.free, one.dropped) == (10, "the lease ended")


def test_outputs_stay_readable_when_the_bundle_is_dropped() -> None:
    bundle = Bundle(Room(10))
    bundle.add(piece("k", b"whole"))
    (output,) = bundle.outputs()
    bundle.drop("the lease ended")
    assert bytes(output.data) == b"whole"
    with pytest.raises(TypeError):
        output.data[0:1] = b"X"  # type: ignore[index]
