"""Frames and messages: exact bytes, limits before anything is allocated, and every wrong field."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from ptocache import wire
from ptocache.digest import Digest
from ptocache.errors import BadRequestError, FrameError, ProtocolMismatchError
from ptocache.model import Answer, Artifact, Descriptor, Input, Job, Log
from ptocache.outcome import Outcome, Reason
from ptocache.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Reader,
    Request,
    pack,
    pack_document,
    parse_compile,
    unpack,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1" / "frames"

SOURCE = b"int answer(void) { return 42; }\n"
HEADER = b"#define TILE 16\n"
REQUEST = Request(
    job=Job(
        toolchain="host",
        arch="x86_64",
        options=("-O3", "-I", "/odd/\udcff"),
        env=(("CC", "/usr/bin/cc"), ("CPATH", "/opt/include")),
        inputs=(Input("include/tile.h", Digest.of(HEADER)), Input("k.c", Digest.of(SOURCE))),
        outputs=("shared",),
        symbols=("answer",),
        source_dir="/home/me/kernels",
        cwd="/home/me",
        kernel="answer",
    ),
    data={"k.c": SOURCE},
    mode="refresh",
    salt="pepper",
)
KERNEL = wire.KernelRequest(
    job=Job(
        toolchain="host",
        arch="dav-2201",
        options=(),
        env=(("CPATH", "/opt/include"), ("PTO_FLAGS", "--enable-insert-sync")),
        inputs=(Input("source", Digest.of(SOURCE)),),
        outputs=(),
        kernel="gemm",
    ),
    texts=(("block", "128x64"), ("framework", "tilelang 0.1.15")),
    mode="read-only",
    salt="pepper",
)
BASED = REQUEST._replace(job=REQUEST.job._replace(bases=("/home/me/proj", "/home/me/venv")))
MISS = Answer(
    outcome=Outcome.MISS,
    key="ab" * 32,
    detail="options differ",
    artifacts=(Artifact("shared", Digest.of(b"\x7fELF"), 0o755, b"\x7fELF"),),
    log=Log(b"said\n", b"warning: \xff\n"),
    compile_ms=321,
    identity="cd" * 32,
)
FAILURE = Answer(
    outcome=Outcome.FAILURE,
    key="ab" * 32,
    reason=Reason.COMPILE_FAILED,
    detail="the step compile k.c failed with exit code 1",
    log=Log(b"", b"error: no\n"),
    exit_code=1,
    error={"code": "compile_failed", "message": "no", "hint": "", "fields": {"exit_code": 1}},
)

MESSAGES: dict[str, dict[str, Any]] = {
    "hello": wire.hello("0.1.0", 4711),
    # What a daemon says that grants no leases: still to be understood.
    "welcome": {
        "type": "welcome",
        "protocol": 1,
        "version": "0.1.0",
        "pid": 4712,
        "capabilities": ["batch", "descriptors", "inputs-on-demand"],
        "variables": {"host": ["CPATH", "CC"], "pto": ["PTO_*"]},
    },
    # The same of one that knows no bases.
    "welcome_kernels": {
        "type": "welcome",
        "protocol": 1,
        "version": "0.1.0",
        "pid": 4712,
        "capabilities": ["batch", "descriptors", "inputs-on-demand", "kernels"],
        "variables": {"host": ["CPATH", "CC"], "pto": ["PTO_*"]},
    },
    "welcome_bases": wire.welcome("0.1.0", 4712, {"host": ["CPATH", "CC"], "pto": ["PTO_*"]}),
    "compile": wire.compile_message(7, REQUEST),
    "compile_bases": wire.compile_message(7, BASED),
    "answer_miss": wire.answer_message(7, MISS)[0],
    "answer_failure": wire.answer_message(8, FAILURE)[0],
    "batch": {
        "type": "batch",
        "id": 0,
        "requests": [wire.compile_message(1, REQUEST), wire.compile_message(2, REQUEST)],
    },
    "need": {"type": "need", "id": 7, "names": ["include/tile.h", "k.c"]},
    "get": {"type": "get", "id": 9, "key": "ab" * 32, "source_dir": "/home/me/kernels"},
    "nothing": {"type": "nothing", "id": 9},
    "ping": {"type": "ping", "id": -1},
    "result": {"type": "result", "id": -1, "value": {"pid": 4712, "uptime_s": 1.5, "busy": False}},
    "gc": {"type": "gc", "id": 10, "max_size": 1 << 30, "max_age": 86400.0, "dry_run": True},
    "invalidate": {
        "type": "invalidate", "id": 11, "keys": ["ab12"], "toolchain": "", "kernel": "saxpy",
        "arch": "", "older_than": 0, "all": False, "dry_run": False,
    },
    "show": {"type": "show", "id": 12, "key": "ab12"},
    "stop": {"type": "stop", "id": 13, "now": True},
    "kernel": wire.kernel_message(14, KERNEL),
    "lease": wire.lease_message(14, 3, "ab" * 32, wanted=True, why="no entry of this kernel yet"),
    "put": next(wire.put_messages(3, "lib/kernel.so", 0o755, b"\x7fELF")),
    "finish": wire.finish_message(15, 3, 6300),
    "abandon": wire.abandon_message(16, 3, "ImportError: no module named tile"),
    "error": {
        "type": "error",
        "id": 0,
        "error": ProtocolMismatchError("another protocol", hint="upgrade", ours=1, theirs=2).to_wire(),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_the_frame_of_each_message_is_the_golden_one(name: str) -> None:
    assert pack(MESSAGES[name]) == (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_golden_frame_reads_as_its_message(name: str) -> None:
    reader = Reader()
    reader.feed((GOLDEN / f"{name}.bin").read_bytes())
    assert reader.next() == MESSAGES[name]
    assert reader.next() is None
    assert reader.pending == 0


def test_the_protocol_is_version_1_with_its_capabilities_and_limits() -> None:
    # Every one of these is in the reference; a change is a change of the protocol.
    assert wire.PROTOCOL == 1
    assert wire.CAPABILITIES == (
        "batch", "descriptors", "inputs-on-demand", "kernels", "base-dirs",
    )  # fmt: skip
    assert wire.PIECE_BYTES == 8 << 20
    assert wire.MAX_FILES == 64
    assert wire.MAX_SHORT_TEXT == 256
    assert MAX_FRAME_BYTES == 64 << 20
    assert wire.MAX_GREETING_BYTES == 4096
    assert wire.INLINE_BYTES == 128 << 10
    assert wire.MAX_DESCRIPTORS == 64


def test_a_compile_request_comes_back_as_it_went() -> None:
    assert parse_compile(unpack(pack(MESSAGES["compile"])[HEADER_BYTES:])) == REQUEST


def test_a_compile_request_with_bases_comes_back_as_it_went() -> None:
    assert parse_compile(unpack(pack(MESSAGES["compile_bases"])[HEADER_BYTES:])) == BASED


@pytest.mark.parametrize(
    ("bases", "word"),
    [
        ("/a", "not a list"), ([7], "not text"), (["a"], "not an absolute path"), (["/"], "below /"),
        (["/a/"], "shortest form"), (["/a/../b"], "shortest form"), ([""], "not an absolute path"),
        (["/a=b"], "with ="), ([f"/b{number}" for number in range(17)], "more than 16"),
    ],
)  # fmt: skip
def test_each_base_that_cannot_be_is_refused(bases: object, word: str) -> None:
    document = {**wire.request_document(REQUEST), "bases": bases}
    with pytest.raises(BadRequestError, match=word):
        wire.parse_request(document)


def test_inputs_and_variables_are_put_in_order() -> None:
    document = wire.request_document(REQUEST)
    document["inputs"].reverse()
    document["env"] = dict(reversed(document["env"].items()))
    assert wire.parse_request(document) == REQUEST


def test_equal_requests_are_equal_bytes_whatever_their_id() -> None:
    one, other = (wire.compile_message(number, REQUEST) for number in (1, 2))
    assert one["request"] == other["request"]


@pytest.mark.parametrize(
    "request_bytes",
    [None, "text", {}, b"", b"\xc1", b"\xc0", b"\x90", b"\x80\x00", b"\x91" * 10_000],
    ids=lambda value: repr(value)[:20],
)
def test_a_compile_message_without_a_readable_request_is_a_bad_request(
    request_bytes: object,
) -> None:
    with pytest.raises(BadRequestError):
        parse_compile({"type": "compile", "id": 1, "request": request_bytes})
    with pytest.raises(BadRequestError):
        parse_compile({"type": "compile", "id": 1})


@pytest.mark.parametrize("answer", [MISS, FAILURE], ids=["miss", "failure"])
def test_an_answer_comes_back_as_it_went(answer: Answer) -> None:
    message, fds = wire.answer_message(3, answer)
    assert fds == ()
    assert wire.parse_answer(unpack(pack(message)[HEADER_BYTES:]), []) == answer


def test_descriptors_belong_to_the_artifacts_without_bytes_in_order(tmp_path: Path) -> None:
    import os

    (tmp_path / "f").write_bytes(b"x")
    files = [Descriptor(os.open(tmp_path / "f", os.O_RDONLY)) for _ in range(2)]
    artifacts = (
        Artifact("a", Digest.of(b"x"), 0o644, None, files[0]),
        Artifact("b", Digest.of(b"y"), 0o644, b"y"),
        Artifact("c", Digest.of(b"x"), 0o644, None, files[1]),
    )
    message, fds = wire.answer_message(3, MISS._replace(artifacts=artifacts))
    assert list(fds) == files
    assert message["fds"] == 2
    got = wire.parse_answer(unpack(pack(message)[HEADER_BYTES:]), files)
    assert [item.file for item in got.artifacts] == [files[0], None, files[1]]


def test_an_answer_with_fewer_descriptors_than_it_says_is_no_answer() -> None:
    artifact = Artifact("a", Digest.of(b"x"), 0o644, None, None)
    message, _ = wire.answer_message(3, MISS._replace(artifacts=(artifact,)))
    with pytest.raises(FrameError):
        wire.parse_answer(message, [])


ANSWER_FIELDS = sorted(msgpack.unpackb(wire.pack_answer(MISS)))


def answer_without(field: str) -> dict[str, Any]:
    document = msgpack.unpackb(wire.pack_answer(FAILURE))
    del document[field]
    return {"type": "answer", "id": 1, "answer": pack_document(document), "fds": 0}


def answer_with(**changes: object) -> dict[str, Any]:
    document = {**msgpack.unpackb(wire.pack_answer(FAILURE)), **changes}
    return {"type": "answer", "id": 1, "answer": pack_document(document), "fds": 0}


@pytest.mark.parametrize("field", ANSWER_FIELDS)
def test_an_answer_without_a_field_is_no_answer(field: str) -> None:
    with pytest.raises(FrameError):
        wire.parse_answer(answer_without(field), [])


def test_a_reason_of_a_newer_daemon_is_no_reason_but_still_an_answer() -> None:
    message = answer_with(reason="of_tomorrow", of_tomorrow=1)
    assert wire.parse_answer(message, []).reason is Reason.NONE


@pytest.mark.parametrize("artifacts", [None, 3, [3], [[]], [["a", "b"]], "ab", [None]], ids=repr)
def test_an_answer_with_malformed_artifacts_is_no_answer(artifacts: object) -> None:
    with pytest.raises(FrameError):
        wire.parse_answer(answer_with(artifacts=artifacts), [])


@pytest.mark.parametrize("answer", [None, b"", b"\xc0", b"\x90", b"\xc1", "text"], ids=repr)
def test_an_answer_that_is_no_map_of_fields_is_no_answer(answer: object) -> None:
    with pytest.raises(FrameError):
        wire.parse_answer({"type": "answer", "id": 1, "answer": answer, "fds": 0}, [])


def test_an_answer_packed_once_is_sent_as_it_is() -> None:
    packed = wire.pack_answer(MISS)
    message, _ = wire.answer_message(3, MISS._replace(packed=packed))
    assert message["answer"] is packed
    assert message == wire.answer_message(3, MISS)[0]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 1 << 20])
@pytest.mark.parametrize(
    "answer", [MISS, FAILURE, MISS._replace(artifacts=())], ids=["miss", "failure", "empty"]
)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "new"])
def test_the_frame_of_an_answer_says_what_its_message_says(
    number: int, answer: Answer, packed: bool
) -> None:
    if packed:
        answer = answer._replace(packed=wire.pack_answer(answer))
    message, fds = wire.answer_message(number, answer)
    frame, with_it = wire.answer_frame(number, answer)
    reader = wire.Reader()
    assert reader.take(memoryview(frame)) == message
    assert (with_it, reader.pending) == (fds, 0)


def test_a_message_that_comes_alone_is_read_as_one_among_others() -> None:
    frame = wire.pack({"type": "a", "data": b"x" * 1000})
    reader = wire.Reader()
    assert reader.take(memoryview(frame[:3])) is None
    assert reader.take(memoryview(frame[3:] + frame[:2])) == {"type": "a", "data": b"x" * 1000}
    assert reader.take(memoryview(frame[2:])) == {"type": "a", "data": b"x" * 1000}
    assert reader.pending == 0
    with pytest.raises(FrameError):
        wire.Reader(limit=10).take(memoryview(frame))


# --- kernels


def kernel_document(**changes: Any) -> dict[str, Any]:
    message = wire.kernel_message(1, KERNEL)
    document: dict[str, Any] = msgpack.unpackb(message["request"])
    document.update(changes)
    return {**message, "request": pack_document(document)}


def test_a_kernel_request_comes_back_as_it_went() -> None:
    assert wire.parse_kernel(unpack(pack(MESSAGES["kernel"])[HEADER_BYTES:])) == KERNEL


def test_a_kernel_request_is_put_in_order() -> None:
    two = [["z", "ab" * 32, 1], ["a", "cd" * 32, 2]]
    found = wire.parse_kernel(kernel_document(digests=two, texts={"y": "1", "b": "2"}))
    assert [item.name for item in found.job.inputs] == ["a", "z"]
    assert found.texts == (("b", "2"), ("y", "1"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"digests": [["source", "ab" * 32]]}, "not \\[name"),
        ({"digests": [["source", "AB" * 32, 1]]}, "no SHA-256"),
        ({"digests": [["source", "ab" * 32, -1]]}, "no SHA-256"),
        ({"digests": [["", "ab" * 32, 1]]}, "no name"),
        ({"digests": [[7, "ab" * 32, 1]]}, "no name"),
        ({"digests": [["block", "ab" * 32, 1]]}, "same name"),
        ({"digests": [["a", "ab" * 32, 1], ["a", "ab" * 32, 1]]}, "same name"),
        ({"digests": [], "texts": {}}, "without material"),
        ({"texts": {"block": "x" * 257}}, "longer than 256"),
        ({"texts": {"n" * 1025: "x"}}, "longer than 1024"),
        ({"texts": {"": "x"}}, "empty name"),
        ({"texts": {"block": 7}}, "not text"),
        ({"texts": ["block"]}, "not a map"),
        ({"env": {"A=B": "x"}}, "no variable can have"),
        ({"mode": "off"}, "no mode"),
        ({"toolchain": 7}, "not text"),
    ],
)
def test_each_wrong_field_of_a_kernel_request_is_named(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRequestError, match=word):
        wire.parse_kernel(kernel_document(**changes))


@pytest.mark.parametrize("request_bytes", [None, "text", b"", b"\xc1", b"\x90"])
def test_a_kernel_message_without_a_readable_request_is_refused(request_bytes: object) -> None:
    with pytest.raises(BadRequestError, match="request"):
        wire.parse_kernel({"type": "kernel", "id": 1, "request": request_bytes})


def pieces(data: bytes) -> list[wire.Piece]:
    return [wire.parse_put(item) for item in wire.put_messages(3, "k.so", 0o755, data)]


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8, 9])
def test_a_file_comes_back_from_its_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", 4)
    data = bytes(range(size))
    found = pieces(data)
    assert b"".join(item.data for item in found) == data
    assert [item.more for item in found] == [True] * (len(found) - 1) + [False]
    assert len(found) == max(1, -(-size // 4))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../k.so"), ("name", "/k.so"), ("name", ""), ("name", "a//b"), ("name", 7),
        ("name", "-o"), ("mode", 0o1777), ("mode", -1), ("mode", True), ("mode", None),
        ("data", "text"), ("data", None), ("more", 1), ("more", None), ("lease", "3"),
        ("lease", -3), ("lease", None), ("lease", True),
    ],
)  # fmt: skip
def test_each_wrong_field_of_a_put_is_refused(field: str, value: object) -> None:
    message = next(wire.put_messages(3, "k.so", 0o755, b"x"))
    with pytest.raises(BadRequestError):
        wire.parse_put({**message, field: value})


def test_a_piece_is_bounded_and_an_empty_one_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    message = next(wire.put_messages(3, "k.so", 0o755, b"12345"))
    with pytest.raises(BadRequestError, match="empty"):
        wire.parse_put({**message, "data": b"", "more": True})
    monkeypatch.setattr(wire, "PIECE_BYTES", 4)
    with pytest.raises(BadRequestError, match="at most 4"):
        wire.parse_put(message)


@pytest.mark.parametrize("cost_ms", [-1, (1 << 40) + 1, 1.5, "1", None, True])
def test_a_finish_says_what_the_build_cost(cost_ms: object) -> None:
    message = {**wire.finish_message(1, 3, 6300), "compile_ms": cost_ms}
    with pytest.raises(BadRequestError, match="compile_ms"):
        wire.parse_finish(message)


def test_finish_and_abandon_come_back_as_they_went() -> None:
    assert wire.parse_finish(MESSAGES["finish"]) == (3, 6300)
    assert wire.parse_abandon(MESSAGES["abandon"]) == (3, "ImportError: no module named tile")
    with pytest.raises(BadRequestError):
        wire.parse_abandon({**MESSAGES["abandon"], "error": 7})


STRICTER = {
    "use": {m: m for m in wire.MODES},
    "refresh": {"use": "refresh", "refresh": "refresh", "bypass": "bypass", "read-only": "refresh"},
    "bypass": dict.fromkeys(wire.MODES, "bypass"),
    "read-only": {
        "use": "read-only", "refresh": "read-only", "bypass": "bypass", "read-only": "read-only",
    },
}  # fmt: skip


@pytest.mark.parametrize("own", wire.MODES)
def test_the_mode_of_the_daemon_goes_before_the_request_s_but_for_bypass(own: str) -> None:
    assert {asked: wire.effective_mode(own, asked) for asked in wire.MODES} == STRICTER[own]


# --- frames


def header(length: int) -> bytes:
    return length.to_bytes(HEADER_BYTES, "little")


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_forged_length_is_refused_before_its_body_comes(length: int) -> None:
    reader = Reader()
    reader.feed(header(length))
    with pytest.raises(FrameError, match=f"a frame of {length} bytes"):
        reader.next()


@pytest.mark.parametrize("length", [1, MAX_FRAME_BYTES])
def test_a_length_within_the_limit_is_waited_for(length: int) -> None:
    reader = Reader()
    reader.feed(header(length))
    assert reader.next() is None
    assert reader.pending == HEADER_BYTES


def test_a_greeting_has_a_limit_of_its_own_that_is_lifted_afterwards() -> None:
    reader = Reader(wire.MAX_GREETING_BYTES)
    reader.feed(header(wire.MAX_GREETING_BYTES + 1))
    with pytest.raises(FrameError):
        reader.next()
    reader = Reader(wire.MAX_GREETING_BYTES)
    frame = pack({"type": "hello", "padding": "x" * wire.MAX_GREETING_BYTES})
    reader.feed(pack(wire.hello("0.1.0", 1)) + frame)
    assert reader.next() == wire.hello("0.1.0", 1)
    reader.limit = MAX_FRAME_BYTES
    assert reader.next() is not None


def test_a_greeting_of_just_the_limit_is_read() -> None:
    message = {"type": "hello", "padding": ""}
    room = wire.MAX_GREETING_BYTES - (len(pack(message)) - HEADER_BYTES)
    frame = pack({"type": "hello", "padding": "x" * (room - 2)})
    assert len(frame) - HEADER_BYTES == wire.MAX_GREETING_BYTES
    reader = Reader(wire.MAX_GREETING_BYTES)
    reader.feed(frame)
    assert reader.next() is not None


def test_a_message_longer_than_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 100)
    assert pack({"type": "x", "data": b"x" * 80})
    with pytest.raises(BadRequestError, match="longer than the limit of 100"):
        pack({"type": "x", "data": b"x" * 100})


NO_MESSAGES: dict[str, bytes] = {
    "nothing": b"\xc0",
    "number": b"\x07",
    "list": msgpack.packb(["type", "hello"]),
    "text": msgpack.packb("hello"),
    "no type": msgpack.packb({"id": 1}),
    "type of bytes": msgpack.packb({"type": b"hello"}),
    "type of a number": msgpack.packb({"type": 1}),
    "key of a number": msgpack.packb({"type": "x", 1: 2}),
    "key of nothing": msgpack.packb({"type": "x", None: 2}),
    "key of bytes": msgpack.packb({"type": "x", b"id": 2}),
    "key of a list": b"\x81\x91\x01\x02",
    "ext": msgpack.packb({"type": "x", "a": msgpack.ExtType(1, b"12")}),
    "timestamp": msgpack.packb({"type": "x", "a": msgpack.Timestamp(1, 2)}),
    "cut": msgpack.packb({"type": "x", "a": "long text"})[:-3],
    "more": msgpack.packb({"type": "x"}) + b"\x00",
    "reserved byte": b"\xc1",
    "bad text": b"\x82\xa4type\xa1x\xa1a\xa1\xff"[:-1] + b"\xed\xa0\x80",
    "huge list": b"\x82\xa4type\xa1x\xa1a\xdd\xff\xff\xff\xff",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge text": b"\x82\xa4type\xa1x\xa1a\xdb\xff\xff\xff\xff",
    "huge bytes": b"\x82\xa4type\xa1x\xa1a\xc6\xff\xff\xff\xff",
    "10,000 lists deep": b"\x82\xa4type\xa1x\xa1a" + b"\x91" * 10_000 + b"\xc0",
    "10,000 maps deep": b"\x82\xa4type\xa1x\xa1a" + b"\x81\xa1a" * 10_000 + b"\xc0",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_a_body_that_is_no_message_is_a_frame_error(name: str) -> None:
    with pytest.raises(FrameError):
        unpack(NO_MESSAGES[name])


def test_a_body_cut_anywhere_is_a_frame_error() -> None:
    body = pack(MESSAGES["compile"])[HEADER_BYTES:]
    for end in range(len(body)):
        with pytest.raises(FrameError):
            unpack(body[:end])


def test_a_body_with_any_byte_flipped_is_a_message_or_a_frame_error_or_a_bad_request() -> None:
    body = pack(MESSAGES["compile"])[HEADER_BYTES:]
    for place in range(len(body)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(body)
            data[place] ^= flip
            try:
                parse_compile(unpack(data))
            except (FrameError, BadRequestError):
                continue


STREAM = b"".join(pack(message) for message in MESSAGES.values())


def read_in_pieces(cuts: list[int]) -> list[dict[str, Any]]:
    reader = Reader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        reader.feed(memoryview(STREAM)[start:end])
        while (message := reader.next()) is not None:
            found.append(message)
    assert reader.pending == 0
    return found


def test_a_stream_fed_byte_by_byte_gives_the_same_messages() -> None:
    assert read_in_pieces(list(range(1, len(STREAM)))) == list(MESSAGES.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_cut_anywhere_gives_the_same_messages(seed: int) -> None:
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, len(STREAM)), chance.randint(0, 40)))
    assert read_in_pieces(cuts) == list(MESSAGES.values())


def test_a_reader_is_still_in_step_after_a_message_that_is_none() -> None:
    reader = Reader()
    reader.feed(header(1) + b"\xc0" + pack(MESSAGES["hello"]))
    with pytest.raises(FrameError):
        reader.next()


# --- compile requests, field by field


def changed(**changes: Any) -> dict[str, Any]:
    document = {**wire.request_document(REQUEST), **changes}
    return {"type": "compile", "id": 1, "request": pack_document(document)}


TEXT = ["toolchain", "arch", "source_dir", "cwd", "kernel", "mode", "salt"]
TEXTS = ["options", "outputs", "symbols"]
NOT_TEXT: list[object] = [None, 1, True, 1.5, b"bytes", ["x"], {"x": "y"}, "with\0nul"]


@pytest.mark.parametrize("field", TEXT)
@pytest.mark.parametrize("value", NOT_TEXT, ids=repr)
def test_a_text_field_of_another_type_is_a_bad_request(field: str, value: object) -> None:
    with pytest.raises(BadRequestError, match=field):
        parse_compile(changed(**{field: value}))


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", [None, 1, "text", b"bytes", {"x": "y"}], ids=repr)
def test_a_list_field_of_another_type_is_a_bad_request(field: str, value: object) -> None:
    with pytest.raises(BadRequestError, match=field):
        parse_compile(changed(**{field: value}))


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", NOT_TEXT, ids=repr)
def test_an_item_that_is_no_text_is_a_bad_request(field: str, value: object) -> None:
    with pytest.raises(BadRequestError, match=field):
        parse_compile(changed(**{field: ["-O2", value]}))


@pytest.mark.parametrize(
    "env",
    [
        None, 1, "A=b", ["A"], [["A", "b"]], {"A": 1}, {"A": None}, {"A": b"x"}, {b"A": "x"},
        {"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"},
    ],
    ids=repr,
)  # fmt: skip
def test_an_environment_that_no_process_can_have_is_a_bad_request(env: object) -> None:
    with pytest.raises(BadRequestError, match="env"):
        parse_compile(changed(env=env))


@pytest.mark.parametrize("field", ["source_dir", "cwd"])
@pytest.mark.parametrize("value", ["relative", "./x", "../x", "~"])
def test_a_directory_that_is_not_absolute_is_a_bad_request(field: str, value: str) -> None:
    with pytest.raises(BadRequestError, match=field):
        parse_compile(changed(**{field: value}))


def an_input(name: object = "k.c", content: object = SOURCE, **changes: object) -> list[object]:
    digest = Digest.of(SOURCE)
    facts: dict[str, object] = {"sha256": digest.sha256, "size": digest.size, **changes}
    return [name, facts["sha256"], facts["size"], content]


BAD_NAMES = [
    "", ".", "..", "../k.c", "a/../k.c", "a/./k.c", "./k.c", "/k.c", "/", "a//k.c", "a/", "k.c\0",
    "a\\k.c", "..\\k.c", "-k.c", "a/-k.c", "-", "x" * 1025, None, 7, b"k.c", ["k.c"],
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_an_input_name_that_leads_anywhere_else_is_a_bad_request(name: object) -> None:
    with pytest.raises(BadRequestError):
        parse_compile(changed(inputs=[an_input(name)]))


@pytest.mark.parametrize("name", ["k.c", "a/b/k.c", ".hidden", "..a", "a..", "ä.c", "x" * 1024])
def test_a_plain_relative_name_is_fine(name: str) -> None:
    assert parse_compile(changed(inputs=[an_input(name)])).job.inputs[0].name == name


@pytest.mark.parametrize(
    "item",
    [
        an_input(sha256="zz"),
        an_input(sha256=Digest.of(SOURCE).sha256.upper()),
        an_input(sha256=None),
        an_input(size=-1),
        an_input(size=True),
        an_input(size="32"),
        an_input(size=1.0),
        an_input(content="text"),
        an_input(content=SOURCE + b"more"),
        an_input(content=SOURCE[:-1]),
        an_input(content=b""),
        an_input(size=1),
        an_input(sha256="0" * 64),
        an_input()[:3],
        [*an_input(), "more"],
        "k.c",
        None,
        {"name": "k.c"},
    ],
    ids=lambda item: repr(item)[-30:],
)
def test_a_malformed_input_is_a_bad_request(item: object) -> None:
    with pytest.raises(BadRequestError):
        parse_compile(changed(inputs=[item]))


@pytest.mark.parametrize("inputs", [[], None, "k.c", {"k.c": SOURCE}], ids=repr)
def test_a_request_without_a_list_of_inputs_is_a_bad_request(inputs: object) -> None:
    with pytest.raises(BadRequestError):
        parse_compile(changed(inputs=inputs))


def test_two_inputs_of_one_name_are_a_bad_request() -> None:
    with pytest.raises(BadRequestError, match="same name"):
        parse_compile(changed(inputs=[an_input(), an_input(content=None)]))


def test_an_input_may_come_without_its_bytes() -> None:
    request = parse_compile(changed(inputs=[an_input(content=None)]))
    assert request.data == {}
    assert request.job.inputs == (Input("k.c", Digest.of(SOURCE)),)


def test_fields_left_out_have_their_defaults() -> None:
    request = wire.parse_request({"inputs": [an_input()]})
    assert request.mode == "use"
    assert request.salt == ""
    assert request.job == Job("", "", (), (), (Input("k.c", Digest.of(SOURCE)),), ())


def test_a_field_of_a_newer_client_is_passed_over() -> None:
    assert parse_compile(changed(of_tomorrow=[1, 2])) == REQUEST


@pytest.mark.parametrize("field", [*TEXTS, "inputs"])
def test_more_items_than_the_limit_are_a_bad_request(field: str) -> None:
    items: list[object] = ["x"] * (wire.MAX_ITEMS + 1)
    with pytest.raises(BadRequestError, match=str(wire.MAX_ITEMS)):
        parse_compile(changed(**{field: items}))


def test_longer_text_than_the_limit_is_a_bad_request() -> None:
    assert parse_compile(changed(salt="x" * wire.MAX_TEXT)).salt
    with pytest.raises(BadRequestError, match="salt"):
        parse_compile(changed(salt="x" * (wire.MAX_TEXT + 1)))
    with pytest.raises(BadRequestError, match="env"):
        parse_compile(changed(env={str(i): "x" for i in range(wire.MAX_ITEMS + 1)}))
