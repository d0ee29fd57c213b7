"""The document of an entry: exact bytes, and that no damage is more than a damaged document."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

from ptocache import action as action_module
from ptocache import entry as entry_document
from ptocache.digest import Digest
from ptocache.entry import MAGIC, Entry, decode, encode
from ptocache.errors import StoreDamagedError
from ptocache.model import Component, Dependency, Log, Provenance, StoredOutput

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ENTRY = Entry(
    action={
        "schema": 1,
        "kind": "binary",
        "toolchain": "host",
        "options": ["-O3", "-I", "/odd/\udcff"],
        "env": {"CPATH": "/opt/include"},
        "inputs": {"k.c": {"sha256": sha("k.c"), "size": 7}},
        "salt": ["", ""],
    },
    dependencies=(
        Dependency("", "/usr/include/math.h", sha("math")),
        Dependency("source", "tile.h", sha("tile")),
        Dependency("", "/opt/include/tile.h", ""),
    ),
    outputs=(
        StoredOutput("object", Digest(sha("object"), 1200), 0o644, bytes(range(16))),
        StoredOutput("shared", Digest(sha("shared"), 16128), 0o755, b"\xff" * 16),
    ),
    log=Log(b"said\n", b"warning: \xff\n"),
    source_dir="",
    kernel="saxpy",
    created_s=1_700_000_000,
    compile_ms=321,
    provenance=Provenance(
        commands=(("/usr/bin/cc", "-c", "k.c"), ("/usr/bin/cc", "-shared")),
        components=(
            Component("c", "/usr/bin/cc", "/usr/bin/gcc-12", Digest(sha("gcc"), 1_300_000)),
        ),
        banner="gcc version 12",
        aslr_off=True,
        ptocache="0.1.0",
    ),
)


def body_of(entry: Entry = ENTRY) -> dict[str, Any]:
    found = msgpack.unpackb(encode(entry)[len(MAGIC) :], unicode_errors="surrogateescape")
    assert isinstance(found, dict)
    return found


def document(body: object) -> bytes:
    packed = msgpack.packb(body, unicode_errors="surrogateescape")
    assert isinstance(packed, bytes)
    return MAGIC + packed


def test_an_entry_comes_back_as_it_went() -> None:
    assert decode(encode(ENTRY)) == ENTRY


def test_the_bytes_are_the_golden_ones() -> None:
    assert encode(ENTRY) == (GOLDEN / "entry.bin").read_bytes()


def test_the_golden_bytes_still_read_as_the_entry() -> None:
    assert decode((GOLDEN / "entry.bin").read_bytes()) == ENTRY


def test_keys_of_an_entry_are_made_of_its_action_and_dependencies() -> None:
    key = action_module.key_of_document(ENTRY.action)
    assert ENTRY.action_key == key
    assert ENTRY.key == action_module.entry_key(key, ENTRY.dependencies)
    bound = ENTRY._replace(source_dir="/home/me")
    assert bound.key == action_module.entry_key(key, ENTRY.dependencies, "/home/me") != ENTRY.key


def test_an_entry_that_is_bound_to_bases_says_so_and_has_another_key() -> None:
    bound = ENTRY._replace(bound=((0, "/home/me/proj"), (2, "/odd/\udcff")))
    assert decode(encode(bound)) == bound
    keys = {
        ENTRY._replace(bound=bond, source_dir=place).key
        for bond in ((), bound.bound, bound.bound[:1], ((1, "/home/me/proj"),))
        for place in ("", "/home/me/proj")
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    "bond", [7, "x", [7], [[7]], [["0", "/a"]], [[-1, "/a"]], [[0, 7]], [[0, "/a", 1]]]
)
def test_a_bond_of_another_form_is_damage(bond: object) -> None:
    with pytest.raises(StoreDamagedError):
        decode(document({**body_of(), "bases": bond}))


def test_every_truncation_is_damage() -> None:
    whole = encode(ENTRY)
    for end in range(len(whole)):
        with pytest.raises(StoreDamagedError):
            decode(whole[:end])


def test_every_byte_of_the_golden_document_may_flip_and_nothing_worse_comes_of_it() -> None:
    whole = (GOLDEN / "entry.bin").read_bytes()
    damaged = 0
    for place in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(whole)
            data[place] ^= flip
            try:
                found = decode(bytes(data))
            except StoreDamagedError:
                damaged += 1
                continue
            assert isinstance(found, Entry)
            # What a reader of the index asks of a decoded entry.
            assert len(found.key) == len(found.action_key) == 64
    assert damaged > len(whole), "most flips are noticed"


def test_bytes_after_the_end_are_damage() -> None:
    with pytest.raises(StoreDamagedError):
        decode(encode(ENTRY) + b"\x00")


def test_fields_of_a_newer_minor_version_are_skipped() -> None:
    body = body_of()
    body["of_tomorrow"] = {"x": [1, 2, 3]}
    body["provenance"]["of_tomorrow"] = "y"
    assert decode(document(body)) == ENTRY


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused(version: int) -> None:
    data = bytearray(encode(ENTRY))
    data[len(MAGIC) - 1] = version
    with pytest.raises(StoreDamagedError, match="another version"):
        decode(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"P", b"PTOCENT", b"\x7fELF", b"\x80\x04K\x01.", b"PTOCENU\x01\x80"]
)
def test_what_is_no_entry_document_is_refused(data: bytes) -> None:
    with pytest.raises(StoreDamagedError):
        decode(data)


@pytest.mark.parametrize("body", [None, 0, [], "x", b"x", {}, [["action"]], {"action": {}}])
def test_a_body_that_is_no_whole_map_is_damage(body: object) -> None:
    with pytest.raises(StoreDamagedError):
        decode(document(body))


@pytest.mark.parametrize("field", sorted(body_of()))
def test_each_field_is_needed(field: str) -> None:
    body = body_of()
    del body[field]
    with pytest.raises(StoreDamagedError):
        decode(document(body))


@pytest.mark.parametrize("field", sorted(body_of()))
def test_a_field_of_another_type_is_damage(field: str) -> None:
    body = body_of()
    own = type(body[field])
    for value in (None, True, 1.5, "text", b"bytes", 7, [7], {"a": 7}):
        # An action document may hold any fields; every other map and list has a grammar.
        if type(value) is own and (own not in (list, dict) or field == "action"):
            continue
        with pytest.raises(StoreDamagedError):
            decode(document({**body, field: value}))


@pytest.mark.parametrize("field", sorted(body_of()["provenance"]))
def test_each_field_of_the_provenance_is_needed_and_typed(field: str) -> None:
    body = body_of()
    body["provenance"][field] = 1.5
    with pytest.raises(StoreDamagedError):
        decode(document(body))
    del body["provenance"][field]
    with pytest.raises(StoreDamagedError):
        decode(document(body))


def output(**changes: object) -> list[object]:
    made: dict[str, object] = {
        "name": "o", "sha256": sha("o"), "size": 1, "mode": 0o644, "checksum": b"\x00" * 16,
    }  # fmt: skip
    return list({**made, **changes}.values())


@pytest.mark.parametrize(
    "bad",
    [
        output(name=b"o"),
        output(name=None),
        output(sha256="xyz"),
        output(sha256=sha("o").upper()),
        output(sha256="../../../../etc/passwd"),
        output(size=-1),
        output(size=True),
        output(size="1"),
        output(mode=None),
        output(mode=-1),
        output(checksum=b"\x00" * 15),
        output(checksum="0" * 16),
        output()[:4],
        [*output(), "more"],
        "object",
        None,
    ],
    ids=repr,
)
def test_an_output_with_a_wrong_field_is_damage(bad: object) -> None:
    body = body_of()
    body["outputs"] = [bad]
    with pytest.raises(StoreDamagedError):
        decode(document(body))


@pytest.mark.parametrize(
    "bad",
    [["", "/x"], ["", "/x", "zz"], ["", "/x", 7], [b"", "/x", ""], ["", None, ""], "", 3],
    ids=repr,
)
def test_a_dependency_with_a_wrong_field_is_damage(bad: object) -> None:
    body = body_of()
    body["dependencies"] = [bad]
    with pytest.raises(StoreDamagedError):
        decode(document(body))


def test_an_entry_without_outputs_is_damage() -> None:
    with pytest.raises(StoreDamagedError, match="without outputs"):
        decode(encode(ENTRY._replace(outputs=())))


def test_permission_bits_beyond_the_plain_ones_are_dropped() -> None:
    forged = ENTRY.outputs[0]._replace(mode=0o104755)
    assert decode(encode(ENTRY._replace(outputs=(forged,)))).outputs[0].mode == 0o755


@pytest.mark.parametrize(
    "action", [{"a": 1.5}, {"a": {b"x": 1}}, {"a": [[1.5]]}], ids=["float", "key", "deep float"]
)
def test_an_action_that_can_have_no_key_is_damage(action: dict[str, Any]) -> None:
    body = body_of()
    body["action"] = action
    with pytest.raises(StoreDamagedError):
        decode(document(body))


# Just within what msgpack reads (but not what can be encoded again), and far beyond it.
@pytest.mark.parametrize("depth", [1000, 10_000])
def test_an_action_nested_beyond_reason_is_damage(depth: int) -> None:
    nested = b"\x91" * depth + b"\xc0"
    marker = b"\xa6marker"
    body = body_of()
    body["action"] = {"a": "marker"}
    with pytest.raises(StoreDamagedError):
        decode(document(body).replace(marker, nested))


def test_extension_types_are_damage() -> None:
    body = body_of()
    body["action"] = {"a": msgpack.ExtType(5, b"payload")}
    with pytest.raises(StoreDamagedError):
        decode(document(body))
    body["action"] = {"a": msgpack.Timestamp(1, 2)}
    with pytest.raises(StoreDamagedError):
        decode(document(body))


def test_the_magic_carries_the_version() -> None:
    assert MAGIC == b"PTOCENT\x01"
    assert entry_document.VERSION == 1
