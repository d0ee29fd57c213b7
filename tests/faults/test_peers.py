"""Peers that lie, stall, flood, or belong to somebody else: nobody but themselves is hurt."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest

from ptocache import wire
from ptocache.outcome import Outcome
from tests.faults.peers import ENV, MIB, connections, own_faults, request_of, resident
from tests.harness import DEADLINE_S, DaemonProcess, RawPeer, short_folder, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = b"int answer(void) { return 42; }\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all: each test leaves it able to serve the next."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("peers") / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, env=ENV).outcome is Outcome.MISS
    yield daemon
    faults = own_faults(daemon)
    daemon.clean_up()
    assert faults == []


@pytest.fixture(autouse=True)
def _still_served(served: DaemonProcess) -> Iterator[None]:
    pid = served.pid
    yield
    with served.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, env=ENV).outcome is Outcome.MEMORY_HIT
        assert client.call("status")["pid"] == pid


def nested(depth: int) -> bytes:
    return b"\x81\xa4type" + b"\x91" * depth + b"\xc0"


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


# --- lies

LIES = {
    "length 0": b"\0\0\0\0",
    "length 2^31": (1 << 31).to_bytes(4, "little") + b"x" * 100,
    "length 2^32-1": b"\xff\xff\xff\xff" + b"x" * 100,
    "length 2^63, were it 8 bytes": (1 << 63).to_bytes(8, "little"),
    "one byte more than allowed": (64 * MIB + 1).to_bytes(4, "little"),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no msgpack": framed(b"\xc1" * 50),
    "a list": framed(msgpack.packb([1, 2, 3])),
    "a map without a type": framed(msgpack.packb({"id": 1})),
    "a type that is no text": framed(msgpack.packb({"type": 5})),
    "keys that are no text": framed(msgpack.packb({1: 2})),
    "an extension type": framed(msgpack.packb({"type": msgpack.ExtType(4, b"boom")})),
    "more after the map": framed(msgpack.packb({"type": "ping", "id": 1}) + b"\xc0"),
    "a map that is cut": framed(b"\xdf\xff\xff\xff\xff"),
    "a list of 2^32 items": framed(b"\x81\xa4type\xdd\xff\xff\xff\xff"),
    "nested 100,000 times": framed(nested(100_000)),
    "an unknown request": framed(msgpack.packb({"type": "x" * 100, "id": 1})),
    "a request without an id": framed(msgpack.packb({"type": "compile", "request": b""})),
    "an id that is no number": framed(msgpack.packb({"type": "compile", "id": "1"})),
    "a question without an id": framed(msgpack.packb({"type": "ping"})),
    "a batch of numbers": framed(msgpack.packb({"type": "batch", "requests": [1, 2]})),
    "a batch that is too long": framed(msgpack.packb({"type": "batch", "requests": [{}] * 4097})),
}


@pytest.mark.kind("message_size_limit")
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_message_size_limit_ends_the_connection_of_a_lie_which_takes_no_memory(
    served: DaemonProcess, lie: bytes
) -> None:
    before = resident(served)
    with RawPeer(served.socket) as peer:
        peer.send(lie)
        assert peer.is_dropped()
    assert resident(served) - before < 16 * MIB


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_lie_instead_of_a_greeting_ends_the_connection(served: DaemonProcess, lie: bytes) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.send(lie)
        assert peer.is_dropped()


def test_nothing_is_answered_before_a_greeting(served: DaemonProcess) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({"type": "ping", "id": 1})
        assert peer.hear()["error"]["code"] == "bad_frame"
        assert peer.is_dropped()


def test_greeting_of_another_protocol_is_refused_with_what_to_do(served: DaemonProcess) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.say({**wire.hello("9", 1), "protocol": wire.PROTOCOL + 1})
        error = peer.hear()["error"]
        assert error["code"] == "protocol_mismatch"
        assert "ptocache stop" in error["hint"]
        assert peer.is_dropped()


def test_second_greeting_ends_the_connection(served: DaemonProcess) -> None:
    with RawPeer(served.socket) as peer:
        peer.say(wire.hello("raw", 1))
        assert peer.hear()["error"]["code"] == "bad_frame"
        assert peer.is_dropped()


def test_greeting_longer_than_a_greeting_is_refused(served: DaemonProcess) -> None:
    with RawPeer(served.socket, greet=False) as peer:
        peer.send(wire.pack({**wire.hello("1", 1), "more": "x" * wire.MAX_GREETING_BYTES}))
        assert peer.is_dropped()


def test_largest_frame_that_is_allowed_is_read(served: DaemonProcess) -> None:
    # A comment, so that the compiler has nothing to do for all these bytes.
    request = request_of(SOURCE)
    message = {"type": "ping", "id": 7, "more": b""}
    room = wire.MAX_FRAME_BYTES - len(msgpack.packb(message)) - 3
    with RawPeer(served.socket) as peer:
        peer.send(wire.pack({**message, "more": b"x" * room}))
        assert peer.hear() == {"type": "result", "id": 7, "value": {}}
        peer.say(wire.compile_message(8, request))
        assert peer.hear()["id"] == 8


# --- stalls


def test_half_a_frame_and_then_silence_holds_nobody_up(served: DaemonProcess) -> None:
    frame = wire.pack(wire.compile_message(1, request_of(SOURCE, full=True)))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(RawPeer(served.socket)) for _ in range(20)]
        for number, peer in enumerate(silent):
            peer.send(frame[: 1 + number * len(frame) // 21])
        with served.client() as client:
            for _ in range(20):
                found = client.compile("host", {"k.c": SOURCE}, env=ENV)
                assert found.outcome is Outcome.MEMORY_HIT
        silent[-1].send(frame[1 + 19 * len(frame) // 21 :])
        assert silent[-1].hear()["type"] == "answer"
    wait_for(lambda: connections(served) == 0, "the silent ones to be forgotten")


def test_peers_that_never_greet_hold_nobody_up(served: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(RawPeer(served.socket, greet=False))
        with served.client() as client:
            assert client.call("ping") == {}
    wait_for(lambda: connections(served) == 0, "them to be forgotten")


def test_sender_of_single_bytes_is_served(served: DaemonProcess) -> None:
    source = b"int slow;\n"
    with RawPeer(served.socket, greet=False) as peer:
        for message in (
            wire.hello("raw", os.getpid()),
            wire.compile_message(1, request_of(source, full=True)),
        ):
            for byte in wire.pack(message):
                peer.send(bytes([byte]))
        assert peer.hear()["type"] == "welcome"
        answer = wire.parse_answer(peer.hear(), [])
    assert answer.outcome is Outcome.MISS
    assert answer.artifacts[0].data


def test_reader_that_never_reads_is_bounded_and_blocks_nobody(served: DaemonProcess) -> None:
    source = b"const char big[100000] = {1};\n"
    with served.client() as client:
        client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
    request = request_of(source)
    with RawPeer(served.socket) as warm:
        warm.say(wire.compile_message(1, request))
        assert wire.parse_answer(warm.hear(), []).outcome is Outcome.MEMORY_HIT
    before = resident(served)
    batch = [wire.compile_message(number, request) for number in range(4000)]
    with RawPeer(served.socket) as greedy:
        greedy.say({"type": "batch", "id": 0, "requests": batch})
        with served.client() as client:
            assert client.call("ping") == {}
            assert resident(served) - before < 64 * MIB, "400 MiB were asked for"
            found = client.compile("host", {"k.c": SOURCE}, env=ENV)
            assert found.outcome is Outcome.MEMORY_HIT
        # Once it reads, it gets everything.
        numbers = {greedy.hear()["id"] for _ in range(4000)}
        assert numbers == set(range(4000))


def test_requests_in_one_burst_from_a_reader_that_never_reads_are_bounded(
    served: DaemonProcess,
) -> None:
    source = b"const char big[100000] = {1};\n"
    with served.client() as client:
        client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
    burst = b"".join(
        wire.pack(wire.compile_message(number, request_of(source))) for number in range(3000)
    )
    before = resident(served)
    with RawPeer(served.socket) as greedy:
        greedy.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while burst:
                burst = burst[greedy.socket.send(burst) :]
        with served.client() as client:
            assert client.call("ping") == {}
            assert client.call("ping") == {}
        assert resident(served) - before < 64 * MIB


# --- floods


def test_five_hundred_connections_opened_and_dropped_leave_nothing(served: DaemonProcess) -> None:
    descriptors = len(os.listdir(f"/proc/{served.pid}/fd"))
    for greet in (False, True):
        for _ in range(5):
            peers = [RawPeer(served.socket, greet=greet) for _ in range(50)]
            for peer in peers:
                peer.socket.close()
    wait_for(lambda: connections(served) == 0, "them to be forgotten")
    wait_for(
        lambda: len(os.listdir(f"/proc/{served.pid}/fd")) <= descriptors, "descriptors to be closed"
    )


def test_peers_that_go_with_requests_under_way_leave_nothing(served: DaemonProcess) -> None:
    for number in range(20):
        source = b"int gone%d;\n" % number
        with RawPeer(served.socket) as peer:
            peer.say(wire.compile_message(1, request_of(source, full=True)))
    wait_for(lambda: connections(served) == 0, "them to be forgotten")
    with served.client() as client:
        wait_for(lambda: client.call("status")["compiling"] == 0, "their compiles to end")
        wait_for(lambda: not os.listdir(served.root / "tmp"), "their directories to go")
        again = client.compile("host", {"k.c": b"int gone3;\n"}, env=ENV, outputs=["object"])
        assert again.ok


# --- somebody else

AS_SOMEBODY_ELSE = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
peer.settimeout(30)
try:
    peer.connect(sys.argv[1])
    peer.sendall(bytes.fromhex(sys.argv[2]))
    print("closed" if peer.recv(1000) == b"" else "answered")
except ConnectionError:
    print("closed")
except PermissionError:
    print("out of reach")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a socket may be, in a folder of its own."""
    folder = short_folder()
    yield folder / "s"
    shutil.rmtree(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user to be had")


def as_somebody_else(daemon: DaemonProcess) -> str:
    hello = wire.pack(wire.hello("1", 1)).hex()
    done = subprocess.run(
        [sys.executable, "-c", AS_SOMEBODY_ELSE, str(daemon.socket), hello],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S, cwd="/",
    )  # fmt: skip
    return done.stdout.strip()


@needs_root
def test_peer_of_another_user_does_not_reach_the_socket(served: DaemonProcess) -> None:
    assert as_somebody_else(served) == "out of reach"


@needs_root
def test_peer_of_another_user_who_reaches_the_socket_is_refused(served: DaemonProcess) -> None:
    os.chmod(served.place, 0o755)
    os.chmod(served.socket, 0o666)
    try:
        assert as_somebody_else(served) == "closed"
    finally:
        os.chmod(served.socket, 0o600)
        os.chmod(served.place, 0o700)
    assert "refused a peer of user 65534" in served.log()


def test_daemon_at_a_place_open_to_others_is_not_talked_to(served: DaemonProcess) -> None:
    os.chmod(served.place, 0o755)
    try:
        with (
            served.client() as client,
            pytest.raises(PermissionError, match="open to others"),
        ):
            client.compile("host", {"k.c": SOURCE}, env=ENV)
    finally:
        os.chmod(served.place, 0o700)


@needs_root
def test_daemon_of_another_user_is_not_talked_to(served: DaemonProcess, place: Path) -> None:
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); s.bind(sys.argv[1])\n"
        # SO_PEERCRED names who listened: the listener gives its rights up first.
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); s.listen()\n"
        "print('ready', flush=True); s.accept(); sys.stdin.read()\n"
    )
    impostor = subprocess.Popen(
        [sys.executable, "-c", code, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == b"ready\n"
        env = {**served.env, "PTOCACHE_SOCKET": str(place), "PTOCACHE_REQUIRE": "1"}
        code = "from ptocache.client import connect; connect().call('ping')"
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
        assert b"PeerRefusedError" in done.stderr
        assert b"user 65534" in done.stderr
    finally:
        impostor.kill()
        impostor.communicate()


def test_something_else_behind_the_socket_is_found_out(place: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place))
        listener.listen()
        env = {"PTOCACHE_SOCKET": str(place), "PTOCACHE_DIR": str(tmp_path / "store"), **ENV}
        code = "from ptocache.client import connect; connect().call('ping')"
        asking = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            _, err = asking.communicate(timeout=DEADLINE_S)
    assert asking.returncode != 0
    assert b"FrameError" in err
