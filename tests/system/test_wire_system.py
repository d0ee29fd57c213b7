"""The wire as a foreign client would speak it, from docs/reference/wire.md alone: no client library."""

from __future__ import annotations

import array
import hashlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache import __version__, config, wire
from tests.harness import DaemonProcess, Gate, LoggingCompiler, RawPeer, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("wire") / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    yield daemon
    daemon.clean_up()


def message(
    number: int,
    source: bytes,
    *,
    full: bool = False,
    env: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A compile request of the fewest fields, made by hand."""
    document = {
        "toolchain": "host",
        "inputs": [
            ["k.c", hashlib.sha256(source).hexdigest(), len(source), source if full else None]
        ],
        "outputs": ["object"],
        "env": env or {"PATH": os.environ.get("PATH", "")},
        **more,
    }
    return {"type": "compile", "id": number, "request": msgpack.packb(document)}


def answer_of(found: dict[str, Any]) -> dict[str, Any]:
    assert found["type"] == "answer", found
    document: dict[str, Any] = msgpack.unpackb(found["answer"])
    return document


def test_greeting_says_who_serves_and_which_variables_to_send(served: DaemonProcess) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({"type": "hello", "protocol": 1, "version": "someone's", "pid": 1})
        found = peer.hear()
    assert (found["type"], found["protocol"]) == ("welcome", 1)
    assert (found["version"], found["pid"]) == (__version__, served.pid)
    assert set(found["capabilities"]) >= {"batch", "descriptors", "inputs-on-demand"}
    assert {"SOURCE_DATE_EPOCH", "CC", "PATH"} <= set(found["variables"]["host"])


def test_inputs_are_asked_for_and_then_compiled(served: DaemonProcess) -> None:
    source = b"int on_demand;\n"
    with RawPeer(served.socket) as peer:
        peer.say(message(5, source))
        assert peer.hear() == {"type": "need", "id": 5, "names": ["k.c"]}
        peer.say(message(5, source, full=True))
        first = answer_of(peer.hear())
        peer.say(message(6, source))
        found = peer.hear()
        again = answer_of(found)
    assert found["id"] == 6
    assert (first["outcome"], again["outcome"]) == ("miss", "memory_hit")
    name, sha256, size, mode, data = again["artifacts"][0]
    assert (name, mode) == ("object", 0o644)
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (sha256, size)
    assert first["artifacts"] == again["artifacts"]
    assert first["key"] == again["key"]


def test_requests_may_be_sent_before_earlier_ones_are_answered(served: DaemonProcess) -> None:
    sources = {number: b"int piped_%d;\n" % number for number in range(100, 120)}
    with RawPeer(served.socket) as peer:
        peer.say(*(message(number, text, full=True) for number, text in sources.items()))
        answers = {}
        for _ in sources:
            found = peer.hear()
            answers[found["id"]] = answer_of(found)
    assert set(answers) == set(sources)
    for number, answer in answers.items():
        assert b"piped_%d" % number in answer["artifacts"][0][4]


def test_answers_come_as_they_are_ready_not_as_they_were_asked(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.open()
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    env = logging_compiler.env
    with RawPeer(daemon.socket) as peer:
        peer.say(message(1, b"int quick;\n", full=True, env=env))
        assert peer.hear()["id"] == 1
        gate.close()
        peer.say(
            message(2, b"int slow;\n", full=True, env=env),
            message(3, b"int quick;\n", env=env),
            {"type": "ping", "id": 4},
        )
        assert [peer.hear()["id"] for _ in range(2)] == [3, 4]
        wait_for(lambda: len(gate.arrivals()) == 2, "the slow one to begin")
        gate.open()
        assert peer.hear()["id"] == 2


def test_one_message_may_ask_for_many_keys(served: DaemonProcess) -> None:
    with RawPeer(served.socket) as peer:
        requests = [message(n, b"int many_%d;\n" % (n % 10), full=True) for n in range(50)]
        peer.say({"type": "batch", "id": 0, "requests": requests})
        answers = {}
        for _ in requests:
            found = peer.hear()
            answers[found["id"]] = answer_of(found)
    assert sorted(answers) == list(range(50))
    assert len({answer["key"] for answer in answers.values()}) == 10
    outcomes = [answer["outcome"] for answer in answers.values()]
    assert outcomes.count("miss") == 10
    # A hit on disk: published between a look into memory and a look at the disk.
    assert set(outcomes) <= {"miss", "joined", "memory_hit", "disk_hit"}


def test_large_output_comes_as_a_read_only_descriptor_with_its_frame(
    served: DaemonProcess,
) -> None:
    source = b"const char wide[300000] = {1};\n"
    with RawPeer(served.socket) as peer:
        peer.say(message(1, source, full=True))
        data, ancillary, _, _ = peer.socket.recvmsg(1 << 18, socket.CMSG_SPACE(4 * 8))
    reader = wire.Reader()
    reader.feed(data)
    found = reader.next()
    assert found is not None
    assert found["fds"] == 1
    level, kind, packed = ancillary[0]
    assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    numbers = array.array("i", packed)
    assert len(numbers) == 1
    try:
        name, sha256, size, _, inline = answer_of(found)["artifacts"][0]
        assert (name, inline) == ("object", None)
        content = os.pread(numbers[0], size + 1, 0)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, sha256)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(numbers[0], b"x")
    finally:
        os.close(numbers[0])


def test_fields_that_the_daemon_does_not_know_do_not_matter(served: DaemonProcess) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({**wire.hello("99", 1), "newer": {"a": [1]}})
        assert peer.hear()["type"] == "welcome"
        peer.say({**message(1, b"int newer;\n", full=True, newer="x"), "priority": 5})
        assert answer_of(peer.hear())["outcome"] == "miss"


def wrong(**fields: Any) -> dict[str, Any]:
    return message(9, b"int wrong;\n", full=True, **fields)


def test_modes_of_the_wire_are_those_of_the_settings() -> None:
    assert wire.MODES == config.MODES


SHA = hashlib.sha256(b"").hexdigest()
WRONG: dict[str, dict[str, Any]] = {
    "no request": {"type": "compile", "id": 9},
    "request that is no map": {"type": "compile", "id": 9, "request": msgpack.packb([1])},
    "request that is cut": {"type": "compile", "id": 9, "request": b"\x85\xa1"},
    "inputs that are no list": wrong(inputs={"k.c": "x"}),
    "no inputs": wrong(inputs=[]),
    "input with too few parts": wrong(inputs=[["k.c", SHA]]),
    "input that leads out": wrong(inputs=[["../k.c", SHA, 0, b""]]),
    "input with an absolute name": wrong(inputs=[["/k.c", SHA, 0, b""]]),
    "input that is no digest": wrong(inputs=[["k.c", "x" * 64, 0, b""]]),
    "input that is not its digest": wrong(inputs=[["k.c", SHA, 1, b"x"]]),
    "input with a negative size": wrong(inputs=[["k.c", SHA, -1, None]]),
    "two inputs of one name": wrong(inputs=[["k.c", SHA, 0, b""]] * 2),
    "options that are text": wrong(options="-O2"),
    "option that is a number": wrong(options=[2]),
    "option with a NUL": wrong(options=["-D\0"]),
    "environment that is a list": wrong(env=["A=1"]),
    "variable with an equals sign": wrong(env={"A=B": "1"}),
    "relative directory": wrong(source_dir="src"),
    "toolchain that is a number": wrong(toolchain=7),
    "salt that is a list": wrong(salt=[]),
    "mode that there is not": wrong(mode="sometimes"),
    "too many options": wrong(options=["-O2"] * 5000),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_is_answered_counted_and_ends_nothing(
    served: DaemonProcess, name: str
) -> None:
    before = served.stats()
    with RawPeer(served.socket) as peer:
        peer.say(WRONG[name], {"type": "ping", "id": 10})
        found = {item["id"]: item for item in (peer.hear(), peer.hear())}
    answer = answer_of(found[9])
    assert (answer["outcome"], answer["reason"]) == ("failure", "bad_request")
    assert answer["error"]["code"] == "bad_request"
    assert answer["detail"]
    assert found[10] == {"type": "result", "id": 10, "value": {}}
    after = served.stats()
    assert after["requests"] - before["requests"] == 1
    counts = [stats["failure_reasons"].get("bad_request", 0) for stats in (before, after)]
    assert counts[1] - counts[0] == 1


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({"type": "show", "key": "zz"}, "bad_request"),
        ({"type": "show", "key": "abcdef"}, "unknown_entry"),
        ({"type": "show"}, "bad_request"),
        ({"type": "invalidate"}, "bad_request"),
        ({"type": "invalidate", "keys": "abcdef"}, "bad_request"),
        ({"type": "invalidate", "kernel": 5}, "bad_request"),
        ({"type": "gc", "max_size": "1G"}, "bad_request"),
        ({"type": "gc", "max_age": -1}, "bad_request"),
    ],
    ids=str,
)
def test_wrong_question_is_an_error_with_its_code_and_ends_nothing(
    served: DaemonProcess, question: dict[str, Any], code: str
) -> None:
    with RawPeer(served.socket) as peer:
        peer.say({**question, "id": 3})
        found = peer.hear()
        assert (found["type"], found["id"]) == ("error", 3)
        assert found["error"]["code"] == code
        assert found["error"]["message"]
        peer.say({"type": "ping", "id": 4})
        assert peer.hear()["id"] == 4


def test_status_and_stats_have_their_documented_parts(served: DaemonProcess) -> None:
    with RawPeer(served.socket) as peer:
        peer.say({"type": "status", "id": 1}, {"type": "stats", "id": 2})
        found = {item["id"]: item["value"] for item in (peer.hear(), peer.hear())}
    assert found[1]["root"] == str(served.root)
    assert found[1]["socket"] == str(served.socket)
    assert found[1]["pid"] == found[2]["daemon"]["pid"] == served.pid
    stats = found[2]
    assert stats["schema"] == 1
    assert set(stats["caches"]) == {"binary", "kernel"}
    binary = stats["caches"]["binary"]
    assert set(binary) >= {
        "requests", "memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure",
        "corrupt", "rejected", "store_failure", "saved_ms", "bypass_reasons", "failure_reasons",
    }  # fmt: skip
    assert set(stats["store"]) >= {"entries", "bytes", "limit", "evicted"}
    assert set(stats["daemon"]) >= {"pid", "version", "uptime_s"}
