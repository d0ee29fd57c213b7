"""Requests that are made again: the same only if all that they were made of is the same."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import wire
from ptocache.digest import Digest
from ptocache.errors import FrameError
from ptocache.model import Answer, Artifact, Descriptor, Input, Job
from ptocache.outcome import Outcome
from ptocache.pending import Pending, RawEnvironment, Repeats, process_environment

if TYPE_CHECKING:
    from ptocache.connection import Connection
    from ptocache.model import Environment

SOURCE = b"int f(void);"


class Greeted:
    """What a request needs of a connection."""

    def __init__(self, *patterns: str) -> None:
        self.variables = {"host": list(patterns)}


def greeted(*patterns: str) -> Connection:
    made: Any = Greeted(*patterns)
    return made  # type: ignore[no-any-return]


def pending(env: Environment, data: bytes = SOURCE) -> Pending:
    job = Job("host", "", (), (), (Input("k.c", Digest.of(data)),), ("object",))
    return Pending(wire.Request(job, {}), {"k.c": data}, env, 0)


def environment_of(frame: bytes) -> dict[str, str]:
    message = wire.Reader().take(memoryview(frame))
    assert message is not None
    return dict(wire.parse_compile(message).job.env)


def test_what_was_kept_is_found_by_the_same_words_in_the_same_environment() -> None:
    repeats = Repeats()
    kept = repeats.keep(("a", 1), pending({"CC": "gcc"}))
    found = repeats.find(("a", 1), {"CC": "gcc"})
    assert found is not None
    assert found is not kept, "each has times and connections of its own"
    assert found.request is kept.request
    assert repeats.find(("a", 2), {"CC": "gcc"}) is None
    assert repeats.find(("a", 1), {"CC": "clang"}) is None
    assert repeats.find(("a", 1), {"CC": "gcc", "X": ""}) is None


def test_variable_that_changes_and_comes_back_is_asked_as_it_is() -> None:
    repeats, raw, connection = Repeats(), {b"CC": b"gcc"}, greeted("CC")
    kept = repeats.keep(("a",), pending(RawEnvironment(raw)))
    raw[b"CC"] = b"clang"
    assert environment_of(kept.frame(connection)) == {"CC": "gcc"}, "as it was when it was kept"
    assert repeats.find(("a",), RawEnvironment(raw)) is None
    raw[b"CC"] = b"gcc"
    found = repeats.find(("a",), RawEnvironment(raw))
    assert found is not None
    assert environment_of(found.frame(connection)) == {"CC": "gcc"}


def test_own_environment_is_not_that_of_a_dictionary_of_the_same_names() -> None:
    repeats = Repeats()
    repeats.keep(("a",), pending(RawEnvironment({b"CC": b"gcc"})))
    assert repeats.find(("a",), {"CC": "gcc"}) is None


def test_environment_that_cannot_be_compared_is_not_kept() -> None:
    class Odd:
        def get(self, name: str, default: str | None = None) -> str | None:
            return default

        def __iter__(self) -> Any:
            return iter(())

        def __getitem__(self, name: str) -> str:
            raise KeyError(name)

        def items(self) -> list[tuple[str, str]]:
            return []

    repeats = Repeats()
    repeats.keep(("a",), pending(Odd()))
    assert repeats.find(("a",), Odd()) is None


def test_large_sources_are_not_kept() -> None:
    repeats = Repeats()
    repeats.keep(("a",), pending({}, b"x" * (1 << 20)))
    assert repeats.find(("a",), {}) is None


def test_only_so_many_are_kept() -> None:
    repeats = Repeats()
    for number in range(1000):
        repeats.keep((number,), pending({}))
    found = [number for number in range(1000) if repeats.find((number,), {})]
    assert 999 in found
    assert len(found) <= 256


def test_long_words_are_not_kept() -> None:
    job = pending({}).request.job._replace(options=("-D" + "x" * (1 << 20),))
    repeats, asked = Repeats(), Pending(wire.Request(job, {}), {}, {}, 0)
    repeats.keep(("a",), asked)
    assert repeats.find(("a",), {}) is None


def test_request_has_the_environment_of_who_asks_while_others_ask_in_another() -> None:
    class Interrupted(str):
        """A value at whose comparison another thread has its turn."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            repeats.keep(("other",), pending({"CC": "clang"}))
            return str(self) == other

    repeats = Repeats()
    repeats.keep(("first",), pending({"CC": "gcc"}))
    asked = repeats.keep(("second",), pending({"CC": Interrupted("gcc")}))
    assert environment_of(asked.frame(greeted("CC"))) == {"CC": "gcc"}


def test_what_is_kept_holds_no_connection() -> None:
    repeats, connection = Repeats(), greeted()
    asked = repeats.keep(("a",), pending({}))
    asked.given_to = connection
    references = sys.getrefcount(connection)
    del asked
    assert sys.getrefcount(connection) == references - 1


def test_words_that_cannot_be_hashed_are_not_kept() -> None:
    repeats, asked = Repeats(), pending({})
    assert repeats.keep(([],), asked) is asked
    assert repeats.find(([],), {}) is None


def test_frame_is_packed_once_until_the_daemon_wants_other_variables() -> None:
    asked = pending({"CC": "gcc", "CPATH": "/x"})
    first = asked.frame(greeted("CC"))
    assert asked.again().frame(greeted("CC")) is first
    other = asked.again().frame(greeted("CC", "CPATH"))
    assert environment_of(other) == {"CC": "gcc", "CPATH": "/x"}
    assert environment_of(asked.frame(greeted("CC"))) == {"CC": "gcc"}


def test_environment_of_the_process_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTO_FLAGS", "--one")
    repeats = Repeats()
    repeats.keep(("a",), pending(process_environment()))
    assert repeats.find(("a",), process_environment()) is not None
    monkeypatch.setenv("PTO_FLAGS", "--two")
    assert repeats.find(("a",), process_environment()) is None
    monkeypatch.delenv("PTO_FLAGS")
    assert repeats.find(("a",), process_environment()) is None


def answer_message(**fields: Any) -> dict[str, Any]:
    artifact = Artifact("object", Digest.of(b"bytes"), 0o644, b"bytes")
    found = Answer(Outcome.MEMORY_HIT, "key", artifacts=(artifact,))._replace(**fields)
    return wire.answer_message(0, found)[0]


def test_answer_of_the_same_bytes_is_not_read_again() -> None:
    asked = pending({})
    first = asked.answer(answer_message(), [])
    assert asked.again().answer(answer_message(), []) is first
    other = asked.again().answer(answer_message(detail="other"), [])
    assert (first.detail, other.detail) == ("", "other")
    assert asked.answer(answer_message(), []) == first


def test_answer_with_descriptors_has_its_own_each_time() -> None:
    artifact = Artifact(
        "object", Digest.of(b"x"), 0o644, None, Descriptor(os.open("/dev/null", os.O_RDONLY))
    )
    message = answer_message(artifacts=(artifact,))
    asked = pending({})
    files = [Descriptor(os.open("/dev/null", os.O_RDONLY)) for _ in range(2)]
    found = [asked.answer(message, [file]).artifacts[0].file for file in files]
    assert found == files
    with pytest.raises(FrameError):
        asked.answer(message, [])


@pytest.mark.parametrize("packed", [None, b"", b"\xc0", "text"], ids=repr)
def test_answer_that_is_none_is_an_error_each_time(packed: object) -> None:
    asked = pending({})
    for _ in range(2):
        with pytest.raises(FrameError):
            asked.answer({"type": "answer", "id": 0, "answer": packed, "fds": 0}, [])
