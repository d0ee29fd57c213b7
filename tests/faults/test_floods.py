"""Floods: far more of something than any client sends. Memory and descriptors stay bounded for each
connection, others are answered meanwhile, and everything is given back afterwards.

``PTOCACHE_FLOOD_CONNECTIONS`` and ``PTOCACHE_FUZZ_FRAMES`` make the longer runs of ``make soak``.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import resource
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache import wire
from ptocache.digest import Digest
from ptocache.model import Job
from ptocache.outcome import Outcome, Reason
from tests.faults.peers import (
    ENV,
    MIB,
    Peak,
    PreparedDaemon,
    connections,
    descriptors,
    own_faults,
    request_of,
)
from tests.harness import DEADLINE_S, DaemonProcess, Gate, LoggingCompiler, RawPeer, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = b"int answer(void) { return 42; }\n"
LARGE = b"const char large[300000] = {1};\n"
SMALL = b"const char small[100000] = {1};\n"
CONNECTIONS = int(os.environ.get("PTOCACHE_FLOOD_CONNECTIONS", "400"))
FRAMES = int(os.environ.get("PTOCACHE_FUZZ_FRAMES", "400"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("floods") / "store", max_size="64M")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    with daemon.client() as client:
        for source in (SOURCE, SMALL, LARGE):
            assert client.compile("host", {"k.c": source}, env=ENV, outputs=["object"]).ok
    yield daemon
    faults = own_faults(daemon)
    daemon.clean_up()
    assert faults == []


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The daemon of the module is the same afterwards, with the connections and descriptors it had."""
    if "served" not in request.fixturenames:
        yield
        return
    daemon: DaemonProcess = request.getfixturevalue("served")
    before, pid = descriptors(daemon), daemon.pid
    yield
    wait_for(lambda: connections(daemon) == 0, "all peers to be forgotten")
    wait_for(lambda: descriptors(daemon) <= before, "their descriptors to be closed")
    with daemon.client() as client:
        assert client.call("status")["pid"] == pid
        found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert found.outcome is Outcome.MEMORY_HIT


def others_are_served(daemon: DaemonProcess) -> None:
    """Answers in memory and by the loop, from a client of its own."""
    with daemon.client() as client:
        for _ in range(10):
            assert client.call("ping") == {}
            for source in (SOURCE, LARGE):
                found = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
                assert found.outcome is Outcome.MEMORY_HIT
                assert len(found.outputs["object"].buffer) > 0


def pushed(peer: RawPeer, data: bytes) -> int:
    """Send as much as the daemon takes while it answers others; how much that was."""
    peer.socket.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while sent < len(data):
            sent += peer.socket.send(data[sent : sent + MIB])
    return sent


# --- floods of words


def test_flood_of_pings_from_a_reader_that_never_reads_is_bounded(served: DaemonProcess) -> None:
    ping = wire.pack({"type": "ping", "id": 1, "more": "x" * 1000})
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        for _ in range(10):
            pushed(peer, ping * 1000)
            others_are_served(served)
        assert peak.growth < 48 * MIB


def test_flood_of_batches_is_bounded_and_each_part_is_answered(served: DaemonProcess) -> None:
    batch = [wire.compile_message(number, request_of(SOURCE)) for number in range(1000)]
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        frame = wire.pack({"type": "batch", "id": 0, "requests": batch})
        thread = threading.Thread(target=peer.send, args=(frame * 3,))
        thread.start()
        others_are_served(served)
        assert peak.growth < 48 * MIB
        heard = [peer.hear()["id"] for _ in range(3000)]
        thread.join(DEADLINE_S)
    assert sorted(heard) == sorted([*range(1000)] * 3)


BOMBS = {
    "maps": b"\x81\xa4type\xdd\x02\x00\x00\x00" + b"\x80" * (1 << 25),
    "lists of lists": b"\x81\xa4type\xdd\x00\x20\x00\x00" + (b"\xdc\x00\x0f" + b"\x90" * 15) * (1 << 21),
    "numbers": b"\x82\xa4type\xa4ping\xa4more\xdd\x00\x80\x00\x00" + b"\xcd\xff\xff" * (1 << 23),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_frame_of_millions_of_values_is_refused_before_they_are_made(
    served: DaemonProcess, bomb: str
) -> None:
    body = BOMBS[bomb]
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        peer.send(len(body).to_bytes(4, "little") + body)
        assert peer.is_dropped()
    # The frame itself, as it grew.
    assert peak.growth < 3 * len(body) + 16 * MIB


def test_request_of_millions_of_values_is_a_bad_request(served: DaemonProcess) -> None:
    document = b"\x81\xa7options\xdd\x01\x00\x00\x00" + b"\xa0" * (1 << 24)
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        peer.say({"type": "compile", "id": 7, "request": document})
        answer = wire.parse_answer(peer.hear(), [])
        assert answer.reason is Reason.BAD_REQUEST
    assert peak.growth < 6 * len(document) + 16 * MIB


def test_long_words_of_many_requests_are_not_remembered(served: DaemonProcess) -> None:
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        for number in range(150):
            options = ((f"-DN{number}=" + "x" * MIB)[:MIB],)
            peer.say(wire.compile_message(number, request_of(SOURCE, options=options)))
            assert peer.hear()["type"] == "need"
    assert peak.growth < 64 * MIB, "150 MiB of options were sent"


def test_flood_of_pieces_of_a_bundle_takes_no_more_than_their_room(served: DaemonProcess) -> None:
    job = Job("host", "", (), tuple(sorted(ENV.items())), (), ())
    peak = Peak(served)
    with RawPeer(served.socket) as peer:
        peer.say(wire.kernel_message(1, wire.KernelRequest(job, (("flood", "pieces"),))))
        lease = peer.hear()["lease"]
        piece = next(wire.put_messages(lease, "k", 0o644, b"x" * (4 * MIB)))
        for _ in range(64):
            peer.say({**piece, "more": True})
        peer.say({**piece, "more": False})
        others_are_served(served)
        peer.say(wire.finish_message(2, lease, 1))
        answer = wire.parse_answer(peer.hear(), [])
    assert (answer.outcome, answer.reason) == (Outcome.BYPASS, Reason.TOO_LARGE)
    # The room is as large as the store; a list of pieces being joined may hold it twice.
    assert peak.growth < 160 * MIB, "260 MiB were sent"


# --- slow readers


def received(peer: RawPeer, count: int) -> tuple[int, int]:
    """Read ``count`` messages with their descriptors, which are closed; how many of both came."""
    reader, messages, files = wire.Reader(), 0, 0
    while messages < count:
        data, ancillary, _, _ = peer.socket.recvmsg(1 << 18, socket.CMSG_SPACE(4 * 64))
        assert data, "the daemon closed the connection"
        for _, _, packed in ancillary:
            numbers = array.array("i", packed)
            files += len(numbers)
            for number in numbers:
                os.close(number)
        reader.feed(data)
        while reader.next() is not None:
            messages += 1
    return messages, files


def test_slow_reader_of_large_outputs_holds_nobody_up_and_gets_them_all(
    served: DaemonProcess,
) -> None:
    batch = [wire.compile_message(number, request_of(LARGE)) for number in range(2000)]
    peak = Peak(served)
    with RawPeer(served.socket) as slow:
        slow.say({"type": "batch", "id": 0, "requests": batch})
        others_are_served(served)
        assert peak.growth < 32 * MIB
        assert received(slow, 2000) == (2000, 2000)


NO_PRIVILEGE = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
for capability in (21, 24):  # SYS_ADMIN, SYS_RESOURCE: they lift the limit for descriptors under way
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; only root has to
if "again" not in sys.argv:
    os.execv(sys.executable, [*sys.orig_argv, "again"])
"""


def test_reader_that_takes_no_descriptors_leaves_others_theirs(tmp_path: Path) -> None:
    """The kernel counts descriptors under way for the whole user: a peer must not use them up."""
    daemon = PreparedDaemon(tmp_path / "store", NO_PRIVILEGE)
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    try:
        with daemon.client() as client:
            client.compile("host", {"k.c": LARGE}, env=ENV, outputs=["object"])
            client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        request = request_of(LARGE)
        with RawPeer(daemon.socket) as warm:
            warm.say(wire.compile_message(1, request))
            assert warm.hear()["fds"] == 1
        batch = [wire.compile_message(number, request) for number in range(600)]
        with RawPeer(daemon.socket) as greedy:
            greedy.say({"type": "batch", "id": 0, "requests": batch})
            others_are_served(daemon)
            assert received(greedy, 600) == (600, 600)
        assert own_faults(daemon) == []
    finally:
        daemon.clean_up()


# --- who stands still

IMPATIENT = """
import os, ptocache.server as server
server.GREETING_S, server.STALL_S, server.UNREAD_S = 0.2, 0.4, 0.6
limit = server._Connection.patience_s.fget
server._Connection.patience_s = property(
    lambda self: limit(self) if os.path.exists({sign!r}) else 3600.0
)
"""


class Impatient(PreparedDaemon):
    """A daemon that waits for fractions of a second, not for minutes, but only where the test does not
    have to be as fast."""

    def __init__(self, place: Path) -> None:
        self._sign = place / "impatient"
        super().__init__(place / "store", IMPATIENT.format(sign=str(self._sign)))

    @contextlib.contextmanager
    def impatience(self) -> Iterator[None]:
        self._sign.touch()
        try:
            yield
        finally:
            self._sign.unlink()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Impatient]:
    daemon = Impatient(tmp_path)
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    yield daemon
    daemon.clean_up()


def half_a_frame(peer: RawPeer) -> None:
    peer.send(wire.pack({"type": "ping", "id": 1})[:-1])


def test_peer_that_stands_still_is_dropped(impatient: Impatient) -> None:
    with impatient.client() as idle:
        found = idle.compile("host", {"k.c": SMALL}, env=ENV, outputs=["object"])
        assert found.outcome is Outcome.MISS
        with RawPeer(impatient.socket, greet=False) as silent, impatient.impatience():
            assert silent.is_dropped()
        with RawPeer(impatient.socket) as half:
            half_a_frame(half)
            with impatient.impatience():
                assert half.is_dropped()
                # One that owes nothing may stand still for ever.
                assert idle.call("ping") == {}
        with RawPeer(impatient.socket) as greedy:
            greedy.say(*(wire.compile_message(n, request_of(SMALL)) for n in range(20)))
            with impatient.impatience():
                wait_for(lambda: idle.call("status")["connections"] == 1, "it to be dropped")
    assert impatient.log().count("did not move") == 3
    assert own_faults(impatient) == []


def test_peer_that_is_not_read_from_is_not_taken_for_one_that_stands_still(
    impatient: Impatient,
) -> None:
    job = Job("host", "", (), tuple(sorted(ENV.items())), (), ())
    request = wire.KernelRequest(job, (("held", "for long"),))
    with RawPeer(impatient.socket) as holder, RawPeer(impatient.socket) as busy:
        holder.say(wire.kernel_message(1, request))
        lease = holder.hear()["lease"]
        # Sixteen are all that may be under way: the last word stays unread.
        # In one go, so that it lies in the daemon already.
        kernels = [wire.kernel_message(number, request) for number in range(16)]
        busy.say(*kernels, {"type": "ping", "id": 99})
        wait_for(lambda: waiting(impatient) == 17, "them to wait")
        for _ in range(3):
            with RawPeer(impatient.socket) as half:
                half_a_frame(half)
                with impatient.impatience():
                    assert half.is_dropped()
        holder.say(
            *wire.put_messages(lease, "k", 0o644, b"built"), wire.finish_message(2, lease, 1)
        )
        assert holder.hear()["type"] == "answer"
        assert sorted(busy.hear()["id"] for _ in range(17)) == [*range(16), 99]
    assert own_faults(impatient) == []


# --- what is under way


@pytest.fixture
def held(make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate) -> DaemonProcess:
    """A daemon with one slot whose compiles stay at the gate."""
    logging_compiler.write(before=gate.script)
    return make_daemon(trust_scripts=logging_compiler.trust, jobs=1).start()


def waiting(daemon: DaemonProcess) -> int:
    with daemon.client() as client:
        return int(client.call("status")["waiting"])


def test_answers_to_slow_requests_of_one_peer_are_bounded(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    env = tuple(sorted(logging_compiler.env.items()))
    count = 3000
    first = wire.compile_message(0, request_of(SMALL, full=True, env=env))
    request = request_of(SMALL, full=True, env=env)
    burst = b"".join(wire.pack(wire.compile_message(n, request)) for n in range(1, count))
    with RawPeer(held.socket) as greedy:
        greedy.say(first)
        wait_for(gate.arrivals, "the compile to begin")
        sender = threading.Thread(target=greedy.send, args=(burst,))
        sender.start()
        wait_for(lambda: waiting(held) >= 1000, "a thousand to be under way")
        peak = Peak(held)
        gate.open()
        with held.client() as client:
            wait_for(lambda: client.call("status")["waiting"] == 0, "the compile to end")
            assert client.call("ping") == {}
            assert peak.growth < 64 * MIB, "100 MiB of answers are due, and 200 later"
        heard = {greedy.hear()["id"] for _ in range(count)}
        sender.join(DEADLINE_S)
    assert heard == set(range(count))
    assert len(logging_compiler.compiles()) == 1
    assert own_faults(held) == []


def test_inputs_that_nobody_asked_for_are_read_up_to_a_limit(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    env = tuple(sorted(logging_compiler.env.items()))
    size, count = 16 * MIB, 16

    def send(peer: RawPeer) -> None:
        with contextlib.suppress(OSError):
            for number in range(count):
                source = b"int n%d; //" % number + b"x" * size
                peer.say(wire.compile_message(number, request_of(source, full=True, env=env)))

    peak = Peak(held)
    with RawPeer(held.socket) as greedy:
        sender = threading.Thread(target=send, args=(greedy,))
        sender.start()
        wait_for(lambda: waiting(held) >= 8, "half of them to be under way")
        for _ in range(20):
            assert waiting(held) == 8, "more than 128 MiB were taken"
        assert sender.is_alive()
        # What is kept, the frame that is being read, and what a freed one leaves behind.
        assert peak.growth < 256 * MIB
        greedy.socket.shutdown(socket.SHUT_RDWR)
        sender.join(DEADLINE_S)
    wait_for(lambda: waiting(held) == 0, "what was under way to be given up")


def test_large_inputs_of_a_sweep_are_asked_for_in_turn(
    held: DaemonProcess, logging_compiler: LoggingCompiler
) -> None:
    env = tuple(sorted(logging_compiler.env.items()))
    sources = [b"int n%d; //" % number + b"x" * (16 * MIB - 100) for number in range(9)]

    def nothing_more(peer: RawPeer) -> None:
        for _ in range(3):
            peer.say({"type": "ping", "id": 99})
            assert peer.hear()["id"] == 99, "it was asked for more than 64 MiB"

    with RawPeer(held.socket) as peer:
        peer.say(*(wire.compile_message(n, request_of(s, env=env)) for n, s in enumerate(sources)))
        asked = [peer.hear() for _ in range(4)]
        assert [item["type"] for item in asked] == ["need"] * 4
        nothing_more(peer)
        # What ends at once makes room for the next, as what was sent for another request does not.
        for _ in range(3):
            number = asked.pop(0)["id"]
            request = request_of(sources[number], env=env)
            peer.say(wire.compile_message(number, request._replace(data={"k.c": b"other"})))
            found = [peer.hear(), peer.hear()]
            assert {item["type"] for item in found} == {"answer", "need"}
            asked += [item for item in found if item["type"] == "need"]
        for item in asked:
            request = request_of(sources[item["id"]], full=True, env=env)
            peer.say(wire.compile_message(item["id"], request))
        wait_for(lambda: waiting(held) == 4, "them to be under way")
        nothing_more(peer)
    wait_for(lambda: waiting(held) == 0, "them to be given up")
    assert own_faults(held) == []


def test_input_larger_than_all_that_may_be_asked_for_is_asked_for_alone(
    served: DaemonProcess,
) -> None:
    request = request_of(b"int large;\n")
    large = request.job.inputs[0]._replace(digest=Digest("1" * 64, 1 << 40))
    request = request._replace(job=request.job._replace(inputs=(large,)))
    with RawPeer(served.socket) as peer:
        peer.say(wire.compile_message(1, request))
        assert peer.hear()["type"] == "need"
        peer.say(wire.compile_message(2, request_of(b"int behind;\n")), {"type": "ping", "id": 3})
        assert peer.hear()["id"] == 3
        # Given up: the same request again, as a client whose file has gone would do.
        peer.say(wire.compile_message(1, request_of(SOURCE)))
        assert {(item["id"], item["type"]) for item in (peer.hear(), peer.hear())} == {
            (1, "answer"), (2, "need"),
        }  # fmt: skip


# --- floods of connections

FEW_DESCRIPTORS = """
import resource, ptocache.server as server
resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))
server._SAY_AGAIN_S = 1e6
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon that may have 256 descriptors, or as many as half the connections of the flood."""
    code = FEW_DESCRIPTORS.format(max(256, min(CONNECTIONS // 2, 10_000)))
    daemon = PreparedDaemon(tmp_path / "store", code)
    daemon.env["HOME"] = str(daemon.place)
    yield daemon.start()
    daemon.clean_up()


def test_more_connections_than_descriptors_leave_some_for_the_work(small: DaemonProcess) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > CONNECTIONS + 100, "the test itself needs more descriptors"
    before = descriptors(small)
    with small.client() as client, contextlib.ExitStack() as stack:
        assert client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"]).ok
        peers = []
        for _ in range(CONNECTIONS):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peers.append(stack.enter_context(peer))
            # Blocking: with a time limit, connect(2) would not wait for room in the queue.
            peer.connect(str(small.socket))
            peer.settimeout(DEADLINE_S)
        # In the order of arrival: once the last is refused, so are all that will be.
        assert peers[-1].recv(1) == b""
        status = client.call("status")
        assert 100 <= status["connections"] < CONNECTIONS
        # A new compile needs files, pipes and a process.
        for number in range(3):
            found = client.compile("host", {"k.c": b"int new%d;\n" % number}, env=ENV)
            assert found.outcome is Outcome.MISS
        found = client.compile("host", {"k.c": LARGE}, env=ENV, outputs=["object"])
        assert found.outcome is Outcome.MISS
    wait_for(lambda: connections(small) == 0, "the flood to be forgotten")
    others_after = small.client()
    with others_after as client:
        assert client.call("ping") == {}
    # A few more than at first: the index and the entries in memory.
    wait_for(lambda: descriptors(small) <= before + 12, "the flood's descriptors to be closed")
    assert small.log().count("refused a connection") == 1, "said once, not for each"
    assert own_faults(small) == []


def test_connection_for_which_there_is_no_descriptor_is_taken_later(small: DaemonProcess) -> None:
    with small.client() as client:
        assert client.call("ping") == {}
        _, hard = resource.prlimit(small.pid, resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir(f"/proc/{small.pid}/fd")) + 1
        resource.prlimit(small.pid, resource.RLIMIT_NOFILE, (used, hard))
        filled = [RawPeer(small.socket, greet=False) for _ in range(40)]
        wait_for(lambda: "no room for another connection" in small.log(), "accept to fail")
        assert client.call("ping") == {}
        resource.prlimit(small.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for peer in filled:
            with peer:
                peer.say(wire.hello("late", os.getpid()))
                assert peer.hear()["type"] == "welcome"
    assert small.log().count("no room for another connection") == 1, "said once, not each time"
    assert own_faults(small) == []


# --- generated frames

KINDS = (
    "compile", "batch", "get", "kernel", "put", "finish", "abandon", "ping", "status", "stats",
    "reset-stats", "gc", "invalidate", "show", "verify", "explain", "identify", "hello",
    "peek", "reject", "digests", "bypassed",
)  # fmt: skip
"""All that a daemon understands, but for ``stop``."""
FIELDS = (
    "id", "request", "requests", "priority", "key", "source_dir", "lease", "name", "mode", "data",
    "more", "compile_ms", "error", "max_size", "max_age", "dry_run", "keys", "toolchain", "kernel",
    "arch", "older_than", "all", "after", "fast", "env", "now",
    "bases", "files", "outputs", "detail",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.5, -1.0,
    float("inf"), float("nan"), 1e308, "", "host", "k", "abcd", "0" * 64, "/", "/nowhere", "../x",
    "\udc80", "\0", "x" * 70_000, b"", b"\xc1", b"x" * 70_000, [], [1], ["abcd"], [None], {},
    {"PATH": "/bin"}, {"A": 1}, {"": ""}, {"B=": "x"}, [[]], [{}], msgpack.Timestamp(1, 2),
    ["/"], ["/nowhere"], ["/\udc80"], [["/dev/zero", 0, 0, 0, 0, 0]], {"object": "0" * 64},
)  # fmt: skip


def frame_of(random_: random.Random) -> bytes:
    """A message of a kind that there is, with fields of any kind, now and then damaged."""
    message: dict[str, Any] = {"type": random_.choice(KINDS), "id": random_.randrange(100)}
    for field in random_.sample(FIELDS, random_.randrange(6)):
        message[field] = random_.choice(VALUES)
    if random_.random() < 0.3:
        document = wire.request_document(request_of(SOURCE, full=True))
        document[random_.choice([*document])] = random_.choice(VALUES)
        with contextlib.suppress(OverflowError):
            message["request"] = packed(document)
    with contextlib.suppress(OverflowError):
        body = bytearray(packed(message))
        if random_.random() < 0.3:
            body[random_.randrange(len(body))] ^= 1 << random_.randrange(8)
        if random_.random() < 0.1:
            body = body[: random_.randrange(len(body)) + 1]
        return len(body).to_bytes(4, "little") + bytes(body)
    return frame_of(random_)


def packed(message: dict[str, Any]) -> bytes:
    found: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogateescape")
    return found


ODD_AMOUNTS: tuple[Any, ...] = (float("nan"), float("inf"), -1, -0.5, 1 << 63, "1", [], b"1")


@pytest.mark.parametrize("amount", ODD_AMOUNTS, ids=repr)
@pytest.mark.parametrize(
    ("kind", "field"),
    [("gc", "max_size"), ("gc", "max_age"), ("invalidate", "older_than")],
)
def test_amount_that_is_none_is_a_bad_request(
    served: DaemonProcess, kind: str, field: str, amount: object
) -> None:
    question = {"type": kind, "id": 1, "all": True, "dry_run": True, field: amount}
    with RawPeer(served.socket) as peer:
        peer.say(question)
        found = peer.hear()
    if amount == [] and kind == "invalidate":
        assert found["type"] == "result", "nothing is asked for with it"
    else:
        assert found["error"]["code"] == "bad_request"


def test_more_keys_than_the_index_can_look_for_are_a_bad_request(served: DaemonProcess) -> None:
    with RawPeer(served.socket) as peer:
        peer.say({"type": "invalidate", "id": 1, "keys": ["abcd"] * 50_000, "dry_run": True})
        assert peer.hear()["error"]["code"] == "bad_request"


def is_stop(frame: bytes) -> bool:
    with contextlib.suppress(Exception):
        return bool(wire.unpack(frame[4:])["type"] == "stop")
    return False


@pytest.mark.parametrize("seed", range(4))
def test_generated_frames_are_answered_or_refused_and_nothing_breaks(
    tmp_path: Path, make_daemon: MakeDaemon, seed: int
) -> None:
    daemon = make_daemon()
    daemon.start()
    random_ = random.Random(seed)
    with daemon.client() as client:
        for number in range(FRAMES // 4):
            frames = [frame_of(random_) for _ in range(random_.randrange(1, 4))]
            end = wire.pack({"type": "ping", "id": -7})
            with RawPeer(daemon.socket) as peer:
                peer.send(b"".join(item for item in frames if not is_stop(item)) + end)
                with contextlib.suppress(ConnectionError):
                    while peer.hear().get("id") != -7:
                        continue
            if number % 20 == 0:
                assert client.call("ping") == {}
        wait_for(lambda: client.call("status")["waiting"] == 0, "all of them to end")
        found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert found.ok
    assert own_faults(daemon) == []
    wait_for(lambda: connections(daemon) == 0, "all of them to be forgotten")
