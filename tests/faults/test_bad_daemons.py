"""A daemon that talks nonsense, stops in the middle, or lies: the client compiles by itself, says so
once, and is right."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache import wire
from ptocache.client import Client
from ptocache.digest import Digest
from ptocache.errors import DaemonUnavailableError, FrameError, PtocacheWarning, WireError
from ptocache.kernel import Lease
from ptocache.model import Answer, Artifact, Log
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from tests.faults.fake_daemon import FakeDaemon, Side
from tests.harness import compile_directly

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = b"int answer(void) { return 42; }\n"
ENV = {"PATH": os.environ.get("PATH", "")}
FORGED = b"forged"
OBJECT = Artifact("object", Digest.of(FORGED), 0o644, FORGED)
ANSWER = Answer(
    Outcome.MEMORY_HIT, "ab" * 32, artifacts=(OBJECT,), log=Log(b"", b""), identity="cd"
)
DOCUMENT: dict[str, Any] = msgpack.unpackb(wire.pack_answer(ANSWER))
EMPTY = os.open("/dev/null", os.O_RDONLY)


def answer(**changes: Any) -> dict[str, Any]:
    """An answer to request 0 with fields changed: those of the message, or those of the inner map."""
    message: dict[str, Any] = {"type": "answer", "id": 0, "fds": 0}
    outer: dict[str, Any] = {
        name: changes.pop(name) for name in ("id", "fds", "type") if name in changes
    }
    return {**message, **outer, "answer": msgpack.packb({**DOCUMENT, **changes})}


def artifact(**changes: Any) -> dict[str, Any]:
    """An answer whose only output has parts changed."""
    parts = dict(
        zip(("name", "sha256", "size", "mode", "data"), DOCUMENT["artifacts"][0], strict=True)
    )
    outer = {name: changes.pop(name) for name in ("fds",) if name in changes}
    return answer(artifacts=[[*{**parts, **changes}.values()]], **outer)


NEED = {"type": "need", "id": 0, "names": ["k.c"]}


def question_for_ever(side: Side) -> None:
    for _ in range(50):
        side.say(NEED)
        side.hear()
    # Who has gone on answering so far would go on for ever.
    side.say(answer())


def descriptors_without_end(side: Side) -> None:
    side.send(b"\xff\xff\xff\0", [EMPTY] * 64)
    for _ in range(20):
        side.send(b"x", [EMPTY] * 64)


NONSENSE: dict[str, Callable[[Side], None]] = {
    "nothing": lambda side: None,
    "text": lambda side: side.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "a length of 2^32-1": lambda side: side.send(b"\xff" * 64),
    "a length of 0": lambda side: side.send(b"\0" * 64),
    "half a frame": lambda side: side.send(wire.pack(answer())[:40]),
    "no msgpack": lambda side: side.send(b"\x05\0\0\0\xc1\xc1\xc1\xc1\xc1"),
    "deep nesting": lambda side: side.send(b"\x50\0\0\0" + b"\x91" * 0x50),
    "another id": lambda side: side.say(answer(id=5)),
    "an id that is a list": lambda side: side.say(answer(id=[0])),
    "no answer inside": lambda side: side.say({"type": "answer", "id": 0, "answer": b"\xc1"}),
    "a number inside": lambda side: side.say({"type": "answer", "id": 0, "answer": 5}),
    "a result": lambda side: side.say({"type": "result", "id": 0, "value": 1}),
    "an unknown type": lambda side: side.say({"type": "surprise", "id": 0}),
    "an error of an unknown kind": lambda side: side.say({"type": "error", "id": 0, "error": {"code": "x"}}),
    "an error that is text": lambda side: side.say({"type": "error", "id": 0, "error": "no"}),
    "a bad request by itself": lambda side: side.say({"type": "error", "id": 0, "error": {"code": "bad_request"}}),
    "the same question for ever": question_for_ever,
    "an unknown outcome": lambda side: side.say(answer(outcome="luck")),
    "an outcome that is a list": lambda side: side.say(answer(outcome=[])),
    "a key that is a number": lambda side: side.say(answer(key=5)),
    "words that are bytes": lambda side: side.say(answer(detail=b"x")),
    "an exit code that is text": lambda side: side.say(answer(exit_code="0")),
    "output that is text": lambda side: side.say(answer(stderr="x")),
    "an error inside that is text": lambda side: side.say(answer(error="x")),
    "outputs that are a number": lambda side: side.say(answer(artifacts=7)),
    "an output of two parts": lambda side: side.say(answer(artifacts=[["object", "x"]])),
    "an output without a name": lambda side: side.say(artifact(name=None)),
    "an output of text": lambda side: side.say(artifact(data="forged")),
    "an output that is cut": lambda side: side.say(artifact(data=FORGED[:-1])),
    "an output of a negative size": lambda side: side.say(artifact(size=-1)),
    "an output whose descriptor is missing": lambda side: side.say(artifact(data=None)),
    "descriptors that did not come": lambda side: side.say(artifact(data=None, fds=1)),
    "a negative number of descriptors": lambda side: side.say(answer(fds=-1)),
    "descriptors counted in text": lambda side: side.say(answer(fds="1")),
    "a descriptor that nobody announced": lambda side: side.say(answer(), [EMPTY]),
    "more descriptors than there may be": lambda side: side.say(answer(fds=200), [EMPTY] * 200),
    "descriptors without end": descriptors_without_end,
}  # fmt: skip


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_directly(SOURCE, "k.c", [], tmp_path_factory.mktemp("direct"))


def descriptors() -> int:
    # Those of earlier tests that stand in a circle are none of this test's.
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("name", NONSENSE)
def test_client_of_a_daemon_that_says_nonsense_compiles_by_itself(name: str, wanted: bytes) -> None:
    def script(side: Side) -> None:
        side.greet()
        side.hear()
        NONSENSE[name](side)

    before = descriptors()
    with FakeDaemon(script) as fake:
        with fake.client() as client:
            with pytest.warns(PtocacheWarning, match="without its daemon") as said:
                result = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
            assert (result.outcome, result.reason) == (Outcome.BYPASS, Reason.NO_DAEMON)
            assert bytes(result.outputs["object"].buffer) == wanted
            assert len(said) == 1
        with fake.client(client_require=True) as strict, pytest.raises(WireError):
            strict.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
    assert descriptors() == before


GREETINGS: dict[str, Callable[[Side], None]] = {
    "nothing": lambda side: None,
    "text": lambda side: side.send(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half a greeting": lambda side: side.send(wire.pack(wire.welcome("1", 1, {}))[:-1]),
    "an answer": lambda side: side.say(answer()),
    "a greeting without a protocol": lambda side: side.say({"type": "welcome"}),
    "another protocol": lambda side: side.say({**wire.welcome("1", 1, {}), "protocol": 2}),
    "a greeting with a descriptor": lambda side: side.say(wire.welcome("1", 1, {}), [EMPTY]),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_client_of_a_daemon_that_greets_wrongly_compiles_by_itself(
    name: str, wanted: bytes
) -> None:
    def script(side: Side) -> None:
        side.hear()
        GREETINGS[name](side)

    with FakeDaemon(script) as fake, fake.client() as client:
        with pytest.warns(PtocacheWarning, match="without its daemon"):
            result = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert bytes(result.outputs["object"].buffer) == wanted


@pytest.mark.parametrize(
    "variables",
    [None, 5, [], {"host": 5}, {"host": [1, None]}, {"host": "PATH"}, {"host": {"PATH": 1}}],
    ids=repr,
)
def test_variables_of_any_kind_do_not_stop_a_client(variables: object) -> None:
    def script(side: Side) -> None:
        side.greet(variables=variables)
        side.hear()
        side.say(answer())

    with FakeDaemon(script) as fake, fake.client(client_require=True) as client:
        result = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert bytes(result.outputs["object"].buffer) == FORGED


@pytest.mark.parametrize("part", ["welcome", "need", "answer", "kernel answer"])
def test_daemon_that_goes_at_any_byte_of_what_it_says_is_done_without(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own compile is replaced: a real one for each byte would take minutes."""
    alone: list[object] = []

    def compile_alone(_: Client, pending: object, cancel: object = None) -> Any:
        alone.append(pending)
        return Result(ANSWER._replace(detail="by itself"), "", 0.0)

    monkeypatch.setattr(Client, "_alone", compile_alone)
    # None of the warnings is the test's matter: they are said once a client.
    monkeypatch.setattr(Client, "_warn", lambda _, __: None)
    whole = {
        "welcome": wire.pack(wire.welcome("1", 1, {"host": ["PATH"]})),
        "need": wire.pack(NEED),
        "answer": wire.pack(answer()),
        "kernel answer": wire.pack(answer(id=1)),
    }[part]
    cuts = iter(range(len(whole)))

    def script(side: Side) -> None:
        if part == "welcome":
            side.hear()
        else:
            side.greet()
            side.hear()
        cut = next(cuts)
        if cut:
            side.send(whole[:cut])

    with FakeDaemon(script) as fake:
        for _ in whole:
            with fake.client() as client:
                if part == "kernel answer":
                    found = client.kernel("host", {"k": "x"}, env=ENV)
                    assert isinstance(found, Lease)
                    assert not found.stored
                    continue
                result = client.compile(
                    "host", {"k.c": SOURCE}, env=ENV, outputs=["object"], check=False
                )
                assert result.why == "by itself"
    assert len(alone) == (0 if part == "kernel answer" else len(whole))
    assert next(cuts, None) is None, "not every cut was tried"


def test_what_comes_after_a_wrong_frame_is_no_answer_to_the_next_question() -> None:
    def script(side: Side) -> None:
        side.greet()
        while True:
            asked = side.hear()
            # The first question gets nonsense, behind which stands an answer that nobody asked for.
            stale = {"type": "result", "id": asked["id"], "value": "stale"}
            side.send(b"\x01\0\0\0\xc1" + wire.pack(stale))

    with FakeDaemon(script) as fake, fake.client(client_require=True) as client:
        for _ in range(2):
            with pytest.raises(FrameError, match="not msgpack"):
                client.call("status")
        assert fake.accepted == 2, "the connection was used again"


def test_daemon_that_refuses_each_message_of_a_kernel_leaves_the_build_to_the_client() -> None:
    def script(side: Side) -> None:
        side.greet()
        lease = {"type": "lease", "id": 1, "lease": 3, "key": "ab", "wanted": True, "why": ""}
        side.hear()
        side.say(lease)
        side.hear()
        side.send(b"nonsense")

    with FakeDaemon(script) as fake, fake.client() as client:
        lease = client.kernel("host", {"k": "x"}, env=ENV)
        assert isinstance(lease, Lease)
        with pytest.warns(PtocacheWarning):
            result = lease.put({"k": b"built"})
        assert (result.outcome, bytes(result.outputs["k"].buffer)) == (Outcome.BYPASS, b"built")
    with FakeDaemon(script) as fake, fake.client(client_require=True) as client:
        lease = client.kernel("host", {"k": "x"}, env=ENV)
        assert isinstance(lease, Lease)
        with pytest.raises((FrameError, DaemonUnavailableError)):
            lease.put({"k": b"built"})
