"""Whatever bytes arrive: a message, or one of our errors; never another exception."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptocache import wire
from ptocache.digest import Digest
from ptocache.errors import BadRequestError, FrameError, from_wire
from ptocache.model import Answer, Artifact, Input, Job, Log
from ptocache.outcome import Outcome, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

fuzz = settings(max_examples=200, deadline=None)
PLAIN = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
    | st.binary(max_size=8)
)  # fmt: skip
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=10,
)
NAME = st.text(
    st.characters(exclude_characters="\0\\/", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and not name.startswith("-"))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
VARIABLE = TEXT.filter(lambda name: name and "=" not in name)
DIRECTORY = st.just("") | TEXT.map(lambda text: "/" + text)


@st.composite
def requests(draw: Callable[..., Any]) -> wire.Request:
    contents = draw(st.dictionaries(NAME, st.binary(max_size=20), min_size=1, max_size=3))
    sent = draw(st.sets(st.sampled_from(sorted(contents))))
    texts = st.lists(TEXT, max_size=3).map(tuple)
    job = Job(
        toolchain=draw(TEXT), arch=draw(TEXT), options=draw(texts),
        env=tuple(sorted(draw(st.dictionaries(VARIABLE, TEXT, max_size=3)).items())),
        inputs=tuple(sorted(Input(name, Digest.of(data)) for name, data in contents.items())),
        outputs=draw(texts), symbols=draw(texts), source_dir=draw(DIRECTORY), cwd=draw(DIRECTORY),
        kernel=draw(TEXT),
    )  # fmt: skip
    data = {name: contents[name] for name in sent}
    mode = draw(st.sampled_from(("use", "refresh", "bypass", "read-only")))
    return wire.Request(job, data, mode, draw(TEXT))


@st.composite
def kernel_requests(draw: Callable[..., Any]) -> wire.KernelRequest:
    names = draw(st.lists(VARIABLE, min_size=1, max_size=4, unique=True))
    known = draw(st.integers(0, len(names)))
    job = Job(
        toolchain=draw(TEXT), arch=draw(TEXT), options=(),
        env=tuple(sorted(draw(st.dictionaries(VARIABLE, TEXT, max_size=3)).items())),
        inputs=tuple(sorted(Input(name, Digest.of(name.encode())) for name in names[:known])),
        outputs=(), kernel=draw(TEXT),
    )  # fmt: skip
    texts = tuple(sorted((name, draw(TEXT)) for name in names[known:]))
    mode = draw(st.sampled_from(wire.MODES))
    return wire.KernelRequest(job, texts, mode, draw(TEXT))


ANSWERS = st.builds(
    Answer,
    outcome=st.sampled_from(Outcome),
    key=TEXT,
    reason=st.sampled_from(Reason),
    detail=TEXT,
    artifacts=st.lists(
        st.tuples(NAME, st.binary(max_size=20), st.integers(0, 0o777)).map(
            lambda item: Artifact(item[0], Digest.of(item[1]), item[2], item[1])
        ),
        max_size=3,
    ).map(tuple),
    log=st.builds(Log, st.binary(max_size=20), st.binary(max_size=20)),
    exit_code=st.integers(0, 255),
    compile_ms=st.integers(0, 1 << 40),
    identity=TEXT,
    error=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
)


def parsed(body: bytes) -> None:
    """Read a body in every way; our errors are fine."""
    with contextlib.suppress(FrameError, BadRequestError):
        message = wire.unpack(body)
        assert isinstance(message["type"], str)
        assert all(isinstance(key, str) for key in message)
        with contextlib.suppress(BadRequestError):
            assert isinstance(wire.parse_compile(message), wire.Request)
        with contextlib.suppress(BadRequestError):
            assert isinstance(wire.parse_kernel(message), wire.KernelRequest)
        for parse in (wire.parse_put, wire.parse_finish, wire.parse_abandon):
            with contextlib.suppress(BadRequestError):
                assert parse(message) is not None
        with contextlib.suppress(FrameError):
            assert isinstance(wire.parse_answer(message, []), Answer)
        error = message.get("error")
        if isinstance(error, dict):
            assert str(from_wire(error)) is not None


def damaged(draw: Any, data: bytes) -> bytes:
    """The same bytes with a few changed, cut out, doubled or put in."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        how = draw(st.sampled_from(("change", "cut", "double", "insert", "end")))
        if how == "change" and at < len(found):
            found[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del found[at : at + draw(st.integers(1, 8))]
        elif how == "double":
            found[at:at] = found[at : at + draw(st.integers(1, 8))]
        elif how == "insert":
            found[at:at] = draw(st.binary(min_size=1, max_size=4))
        else:
            del found[at:]
    return bytes(found)


@given(st.binary(max_size=200))
@example(b"\xc1")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc7\x00\xff")
@example(b"\xd6\xff\x00\x00\x00\x00")
@example(b"\x91" * 5000)
@example(b"\x81" * 5000)
@fuzz
def test_arbitrary_bytes_are_a_message_or_our_error(body: bytes) -> None:
    parsed(body)


@given(TREES, st.sampled_from(("compile", "answer", "error", "hello")))
@fuzz
def test_arbitrary_values_are_a_message_or_our_error(value: Any, kind: str) -> None:
    parsed(msgpack.packb(value))
    parsed(msgpack.packb({"type": kind, "request": value, "answer": value, "error": value}))
    inner = msgpack.packb(value)
    parsed(msgpack.packb({"type": kind, "request": inner, "answer": inner}))


@given(requests(), st.data())
@fuzz
def test_a_request_with_any_field_replaced_is_read_or_refused(
    request: wire.Request, data: st.DataObject
) -> None:
    document = wire.request_document(request)
    for field in data.draw(st.sets(st.sampled_from(sorted(document)), min_size=1, max_size=3)):
        document[field] = data.draw(TREES)
    with contextlib.suppress(BadRequestError):
        found = wire.parse_request(document)
        assert found.job.inputs
        assert all(Digest.of(text) == _digest(found, name) for name, text in found.data.items())


def _digest(request: wire.Request, name: str) -> Digest:
    return next(item.digest for item in request.job.inputs if item.name == name)


@given(requests(), st.integers(0, 1 << 40))
@fuzz
def test_a_request_comes_out_as_it_went_in(request: wire.Request, number: int) -> None:
    reader = wire.Reader()
    reader.feed(wire.pack(wire.compile_message(number, request)))
    message = reader.next()
    assert message is not None
    assert (message["id"], wire.parse_compile(message)) == (number, request)
    assert (reader.next(), reader.pending) == (None, 0)


@given(ANSWERS)
@fuzz
def test_an_answer_comes_out_as_it_went_in(answer: Answer) -> None:
    message, descriptors = wire.answer_message(7, answer)
    assert descriptors == ()
    body = wire.pack(message)[wire.HEADER_BYTES :]
    assert wire.parse_answer(wire.unpack(body), []) == answer


@given(requests() | ANSWERS, st.data())
@fuzz
def test_a_damaged_frame_is_a_message_or_our_error(
    what: wire.Request | Answer, data: st.DataObject
) -> None:
    if isinstance(what, wire.Request):
        message, field = wire.compile_message(1, what), "request"
    else:
        message, field = wire.answer_message(1, what)[0], "answer"
    parsed(damaged(data.draw, wire.pack(message)[wire.HEADER_BYTES :]))
    message[field] = damaged(data.draw, message[field])
    parsed(wire.pack(message)[wire.HEADER_BYTES :])
    reader = wire.Reader()
    reader.feed(damaged(data.draw, wire.pack(message)))
    with contextlib.suppress(FrameError):
        while reader.next() is not None:
            pass


@given(
    st.lists(st.dictionaries(st.text(max_size=5), PLAIN.filter(lambda x: x == x), max_size=3), max_size=4),
    st.lists(st.integers(1, 12), min_size=1),
)  # fmt: skip
@fuzz
def test_the_cut_of_a_stream_into_reads_does_not_count(
    bodies: list[dict[str, Any]], cuts: list[int]
) -> None:
    messages = [{**body, "type": "x"} for body in bodies]
    stream = b"".join(wire.pack(message) for message in messages)
    reader, at = wire.Reader(), 0
    found: list[dict[str, Any]] = []
    while at < len(stream):
        step = cuts[len(found) % len(cuts)]
        reader.feed(stream[at : at + step])
        at += step
        while (message := reader.next()) is not None:
            found.append(message)
    assert (found, reader.pending) == (messages, 0)


@given(st.integers(0, (1 << 32) - 1), st.integers(1, wire.MAX_FRAME_BYTES))
@fuzz
def test_a_length_beyond_the_limit_is_refused_before_its_body_comes(
    length: int, limit: int
) -> None:
    reader = wire.Reader(limit)
    reader.feed(length.to_bytes(4, "little"))
    if 0 < length <= limit:
        assert reader.next() is None
    else:
        with pytest.raises(FrameError):
            reader.next()


@fuzz
@given(kernel_requests())
def test_every_kernel_request_comes_back_as_it_went(request: wire.KernelRequest) -> None:
    body = wire.pack(wire.kernel_message(1, request))[wire.HEADER_BYTES :]
    assert wire.parse_kernel(wire.unpack(body)) == request


@fuzz
@given(TREES)
def test_any_tree_for_a_kernel_request_is_a_request_or_our_error(tree: Any) -> None:
    with contextlib.suppress(BadRequestError, OverflowError):
        wire.parse_kernel({"type": "kernel", "id": 1, "request": msgpack.packb(tree)})


@fuzz
@given(st.sampled_from(("put", "finish", "abandon")), st.data())
def test_any_field_of_a_lease_message_may_be_anything(kind: str, data: st.DataObject) -> None:
    messages: dict[str, dict[str, Any]] = {
        "put": next(wire.put_messages(3, "k.so", 0o755, b"x")),
        "finish": wire.finish_message(1, 3, 6300),
        "abandon": wire.abandon_message(1, 3, "no"),
    }
    message = messages[kind]
    message[data.draw(st.sampled_from(sorted(message)))] = data.draw(TREES)
    parse: Any = getattr(wire, f"parse_{kind}")
    with contextlib.suppress(BadRequestError):
        parse(message)
