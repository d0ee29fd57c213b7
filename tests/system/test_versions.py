"""Client and daemon of different versions: the outcomes that docs/reference/wire.md promises."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import __version__, wire
from ptocache.digest import Digest
from ptocache.errors import DaemonUnavailableError, ProtocolMismatchError, PtocacheWarning
from ptocache.kernel import Lease
from ptocache.model import Answer, Artifact, Log
from ptocache.outcome import Outcome, Reason
from tests.faults.fake_daemon import FakeDaemon, Side
from tests.faults.peers import ENV, PreparedDaemon, request_of
from tests.harness import DEADLINE_S, DaemonProcess, RawPeer, compile_directly
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCE = b"int answer(void) { return 42; }\n"
MADE = b"made by another version"
NEWER = wire.PROTOCOL + 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("versions") / "store")
    daemon.env["HOME"] = str(daemon.place)
    yield daemon.start()
    daemon.clean_up()


# --- clients of other versions


@pytest.mark.parametrize("version", ["0.0.1", "99.0", "", None, 7])
def test_client_of_another_package_version_is_served(
    served: DaemonProcess, version: object
) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({**wire.hello("", 1), "version": version})
        found = peer.hear()
        assert (found["type"], found["version"]) == ("welcome", __version__)
        peer.say(wire.compile_message(1, request_of(SOURCE, full=True)))
        assert wire.parse_answer(peer.hear(), []).artifacts


@pytest.mark.parametrize("protocol", [0, NEWER, "1", None, 1 << 63, [1]])
def test_client_of_another_protocol_is_told_what_to_do_and_nothing_else(
    served: DaemonProcess, protocol: object
) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({**wire.hello("99", 1), "protocol": protocol}, {"type": "ping", "id": 1})
        found = peer.hear()
        assert (found["type"], found["id"]) == ("error", 0)
        assert found["error"]["code"] == "protocol_mismatch"
        assert found["error"]["fields"] == {"ours": wire.PROTOCOL}
        assert "ptocache stop" in found["error"]["hint"]
        with pytest.raises(ConnectionError):
            peer.hear()


# --- daemons of other versions


def served_by(**greeting: Any) -> Callable[[Side], None]:
    """A daemon that greets so, and answers what it is asked."""

    def script(side: Side) -> None:
        side.greet(**greeting)
        while True:
            number = side.hear()["id"]
            output = Artifact("object", Digest.of(MADE), 0o644, MADE)
            answer = Answer(Outcome.MEMORY_HIT, "ab" * 32, artifacts=(output,), log=Log())
            side.say(wire.answer_message(number, answer)[0])

    return script


@pytest.mark.parametrize("version", ["0.0.1", "99.0", None])
def test_daemon_of_another_package_version_is_used(version: object) -> None:
    greeting = {"version": version, "newer": {"field": [1]}}
    with FakeDaemon(served_by(**greeting)) as fake, fake.client(client_require=True) as client:
        found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
    assert bytes(found.outputs["object"].buffer) == MADE


def refused(side: Side) -> None:
    """A daemon of a newer protocol, before which this client's greeting finds no favour."""
    side.hear()
    error = ProtocolMismatchError("the client speaks protocol 1", hint="stop it: ptocache stop")
    side.say({"type": "error", "id": 0, "error": error.to_wire()})


@pytest.mark.parametrize(
    "script",
    [served_by(protocol=NEWER), served_by(protocol=None), refused],
    ids=["newer", "none", "refused"],
)
def test_daemon_of_another_protocol_is_done_without_and_named(
    script: Callable[[Side], None], tmp_path: Path
) -> None:
    with FakeDaemon(script) as fake:
        with fake.client() as client:
            with pytest.warns(PtocacheWarning, match=r"protocol .*ptocache stop"):
                found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
            assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.NO_DAEMON)
            wanted = compile_directly(SOURCE, "k.c", [], tmp_path / "direct")
            assert bytes(found.outputs["object"].buffer) == wanted
        with (
            fake.client(client_require=True) as strict,
            pytest.raises(ProtocolMismatchError) as caught,
        ):
            strict.call("status")
    assert caught.value.fields["pid"] == os.getpid()


def test_daemon_that_is_too_old_to_be_asked_what_would_be_a_hit_is_named() -> None:
    older = [item for item in wire.CAPABILITIES if item != wire.BASE_DIRS]
    with FakeDaemon(served_by(capabilities=older)) as fake, fake.client() as client:
        job = client.job("host", {"k.c": SOURCE})
        with pytest.raises(DaemonUnavailableError, match="older than peek") as caught:
            client.peek(job)
    assert "ptocache stop" in caught.value.hint


def test_daemon_without_a_capability_is_used_for_what_it_can() -> None:
    older = [item for item in wire.CAPABILITIES if item != wire.KERNELS]
    with FakeDaemon(served_by(capabilities=older)) as fake, fake.client() as client:
        with pytest.warns(PtocacheWarning, match="older than leases"):
            lease = client.kernel("host", {"k": "x"}, env=ENV)
        assert isinstance(lease, Lease)
        assert not lease.stored
        found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert bytes(found.outputs["object"].buffer) == MADE


class NewerDaemon(PreparedDaemon):
    """A whole daemon of a later protocol."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, f"import ptocache.wire as wire; wire.PROTOCOL = {NEWER}")

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer,
        ):
            peer.connect(str(self.socket))
            return True
        return False


@pytest.mark.parametrize("words", [["stop"], ["stop", "--now"]], ids=" ".join)
def test_stop_ends_a_daemon_of_another_protocol(tmp_path: Path, words: list[str]) -> None:
    daemon = NewerDaemon(tmp_path / "store")
    daemon.start()
    try:
        done = ptocache(*words, env=daemon.env)
        assert done.code == 0, done.err
        assert str(daemon.pid) in done.out
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == 0
        assert not daemon.socket.exists()
    finally:
        daemon.clean_up()


def test_stop_signals_nobody_who_is_no_daemon_of_ours() -> None:
    """Who listens may be a service manager, or this very test: it must not get the signal."""
    with FakeDaemon(served_by(protocol=NEWER)) as fake:
        env = {
            "PTOCACHE_SOCKET": str(fake.path),
            "PTOCACHE_DIR": str(fake.place / "store"),
        }
        done = ptocache("stop", env=env)
    assert done.code != 0
    assert "protocol" in done.err
