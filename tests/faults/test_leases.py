"""Leases whose holders die, stop, dawdle or lie: who waits goes on, and nothing wrong is stored."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import wire
from ptocache.errors import PtocacheWarning
from ptocache.kernel import Lease
from ptocache.model import Job
from ptocache.outcome import Outcome, Reason
from tests.harness import DEADLINE_S, DaemonProcess, RawPeer, wait_for
from tests.kernel_process import KernelProcess, kernel_stats, until_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

MATERIAL = {"source": "__global__ void gemm();"}


@pytest.fixture
def two(daemon: DaemonProcess) -> Iterator[tuple[KernelProcess, KernelProcess]]:
    """A holder and one who waits."""
    with KernelProcess(daemon) as holder, KernelProcess(daemon) as waiter:
        waiter.ready()
        holder.ask(MATERIAL)
        assert holder.hear()["got"] == "lease"
        waiter.ask(MATERIAL)
        until_waiting(daemon, 2)
        yield holder, waiter


def takes_over(waiter: KernelProcess) -> None:
    assert waiter.hear()["got"] == "lease"
    assert waiter.put(k=b"by the next")["outcome"] == "miss"


# --- holders that fail


@pytest.mark.kind("lock_left_by_killed_process")
def test_lock_left_by_killed_process_is_a_lease_that_goes_on_to_who_waits(
    daemon: DaemonProcess, two: tuple[KernelProcess, KernelProcess]
) -> None:
    holder, waiter = two
    holder.kill()
    takes_over(waiter)
    numbers = kernel_stats(daemon)
    assert (numbers["miss"], numbers["failure_reasons"]) == (1, {"cancelled": 1})


def test_a_killed_holder_whose_child_keeps_its_connection_hands_the_lease_on(
    two: tuple[KernelProcess, KernelProcess],
) -> None:
    holder, waiter = two
    holder.fork()
    holder.kill()
    takes_over(waiter)


def test_a_stopped_holder_hands_the_lease_on_and_its_late_put_is_not_stored(
    daemon: DaemonProcess, two: tuple[KernelProcess, KernelProcess]
) -> None:
    holder, waiter = two
    holder.stop()
    takes_over(waiter)
    holder.go_on()
    late = holder.put(k=b"too late")
    assert (late["outcome"], late["reason"]) == ("bypass", "lease_lost")
    assert "stopped" in late["why"]
    assert bytes.fromhex(late["files"]["k"]) == b"too late"
    holder.ask(MATERIAL)
    assert bytes.fromhex(holder.hear()["files"]["k"]) == b"by the next"
    numbers = kernel_stats(daemon)
    assert (numbers["requests"], numbers["miss"], numbers["memory_hit"]) == (3, 1, 1)
    assert numbers["bypass_reasons"] == {"lease_lost": 1}


def test_a_holder_that_takes_too_long_loses_the_lease_to_who_waits(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(lease_timeout="0.01s").start()
    with KernelProcess(daemon) as holder, KernelProcess(daemon) as waiter:
        holder.ask(MATERIAL)
        assert holder.hear()["got"] == "lease"
        waiter.ask(MATERIAL)
        assert waiter.hear()["got"] == "lease"
        # Both are late now, but nobody waits for the second.
        late = holder.put(k=b"too late")
        assert (late["reason"], late["why"].count("longer than")) == ("lease_lost", 1)
        assert waiter.put(k=b"in peace")["outcome"] == "miss"


def test_a_lost_lease_cannot_be_put_while_the_next_still_builds(
    two: tuple[KernelProcess, KernelProcess],
) -> None:
    holder, waiter = two
    holder.stop()
    assert waiter.hear()["got"] == "lease"
    holder.go_on()
    assert holder.put(k=b"too late")["reason"] == "lease_lost"
    assert waiter.put(k=b"by the next")["outcome"] == "miss"


def test_a_waiter_that_is_killed_is_passed_over(daemon: DaemonProcess) -> None:
    processes = [KernelProcess(daemon).ready() for _ in range(3)]
    try:
        for count, process in enumerate(processes, start=1):
            process.ask(MATERIAL)
            until_waiting(daemon, count)
        holder, gone, last = processes
        gone.kill()
        until_waiting(daemon, 2)
        holder.kill()
        takes_over(last)
    finally:
        for process in processes:
            process.__exit__()
    assert kernel_stats(daemon)["failure_reasons"] == {"cancelled": 2}


def test_a_put_goes_on_for_who_waits_when_its_holder_dies_at_the_end_of_it(
    daemon: DaemonProcess,
) -> None:
    with RawPeer(daemon.socket) as holder, KernelProcess(daemon) as waiter:
        number = granted(holder)["lease"]
        waiter.ask(MATERIAL)
        until_waiting(daemon, 2)
        holder.say(
            *wire.put_messages(number, "k", 0o644, b"whole"), wire.finish_message(2, number, 1)
        )
        holder.socket.close()
        found = waiter.hear()
    assert (found["outcome"], bytes.fromhex(found["files"]["k"])) == ("joined", b"whole")
    assert kernel_stats(daemon)["miss"] == 1


def test_a_stop_that_does_not_wait_tells_who_waits(
    daemon: DaemonProcess, two: tuple[KernelProcess, KernelProcess]
) -> None:
    holder, waiter = two
    with daemon.client() as client:
        client.call("stop", now=True)
    told = waiter.hear()
    assert (told["got"], told["code"]) == ("error", "no_daemon")
    assert daemon.process is not None
    daemon.process.wait(DEADLINE_S)
    assert holder.put(k=b"x")["code"] == "no_daemon"


def test_a_forked_child_has_no_part_in_the_lease_of_its_parent(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        lease = client.kernel("host", MATERIAL)
        assert isinstance(lease, Lease)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                put = lease.put({"k": b"by the child"})
                lease.abandon("by the child")
                right = (put.outcome, put.reason) == (Outcome.BYPASS, Reason.LEASE_LOST)
                code = 0 if right else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lease.put({"k": b"by the parent"}).outcome is Outcome.MISS
        assert kernel_stats(daemon)["requests"] == 1


def test_threads_of_one_client_take_turns(daemon: DaemonProcess) -> None:
    built: list[int] = []
    results: list[Any] = []

    def build() -> dict[str, bytes]:
        built.append(1)
        until_waiting(daemon, 8)
        return {"k": b"once"}

    with daemon.client() as client:
        threads = [
            threading.Thread(
                target=lambda: results.append(client.kernel_or_build("host", MATERIAL, build))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert built == [1]
    assert [bytes(item.outputs["k"].buffer) for item in results] == [b"once"] * 8
    assert sorted(item.outcome.label for item in results) == ["joined"] * 7 + ["miss"]


# --- peers that lie


ENV = (("PATH", os.environ.get("PATH", "")),)
REQUEST = wire.KernelRequest(Job("host", "", (), ENV, (), ()), tuple(MATERIAL.items()))


def granted(peer: RawPeer, request: wire.KernelRequest = REQUEST) -> dict[str, Any]:
    """A lease over a raw connection."""
    peer.say(wire.kernel_message(1, request))
    found = peer.hear()
    assert (found["type"], found["wanted"]) == ("lease", True)
    return found


def put(number: int, name: str = "k", data: bytes = b"x", **changes: Any) -> dict[str, Any]:
    return {**next(wire.put_messages(number, name, 0o644, data)), **changes}


LIES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "the lease of nobody": lambda n: [put(n + 1000)],
    "finish the lease of nobody": lambda n: [wire.finish_message(2, n + 1000, 1)],
    "abandon the lease of nobody": lambda n: [wire.abandon_message(2, n + 1000, "")],
    "the same name twice": lambda n: [put(n), put(n)],
    "two files at once": lambda n: [put(n, more=True), put(n, name="other")],
    "too many files": lambda n: [put(n, name=f"f{i}") for i in range(wire.MAX_FILES + 1)],
    "empty pieces without end": lambda n: [put(n, data=b"", more=True)],
    "a name that leads out": lambda n: [put(n, name="../../etc/k")],
    "a mode with more than permissions": lambda n: [put(n, mode=0o4755)],
    "a put after the end": lambda n: [wire.abandon_message(2, n, ""), put(n)],
    "no number": lambda n: [put(n, lease=None)],
    "a cost beyond measure": lambda n: [wire.finish_message(2, n, 1 << 63)],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_breaks_the_rules_is_dropped_and_who_waits_goes_on(
    shared_daemon: DaemonProcess, lie: str
) -> None:
    request = REQUEST._replace(salt=lie)
    with RawPeer(shared_daemon.socket) as liar, RawPeer(shared_daemon.socket) as waiter:
        number = granted(liar, request)["lease"]
        waiter.say(wire.kernel_message(1, request))
        until_waiting(shared_daemon, 2)
        liar.say(*LIES[lie](number))
        assert liar.is_dropped()
        following = waiter.hear()
        assert following["type"] == "lease"
        waiter.say(put(following["lease"]), wire.finish_message(2, following["lease"], 1))
        assert waiter.hear()["type"] == "answer"
    kernel_stats(shared_daemon)


def test_a_peer_that_waits_for_itself_and_goes_is_passed_over(shared_daemon: DaemonProcess) -> None:
    request = REQUEST._replace(salt="waits for itself")
    with RawPeer(shared_daemon.socket) as peer, RawPeer(shared_daemon.socket) as waiter:
        granted(peer, request)
        peer.say(wire.kernel_message(2, request), wire.kernel_message(3, request))
        until_waiting(shared_daemon, 3)
        waiter.say(wire.kernel_message(1, request))
        until_waiting(shared_daemon, 4)
        peer.socket.close()
        assert waiter.hear()["type"] == "lease"
        until_waiting(shared_daemon, 1)
    kernel_stats(shared_daemon)


def test_a_peer_cannot_touch_the_lease_of_another(shared_daemon: DaemonProcess) -> None:
    request = REQUEST._replace(salt="touched by another")
    with RawPeer(shared_daemon.socket) as holder:
        number = granted(holder, request)["lease"]
        for word in (
            put(number, data=b"forged"), wire.finish_message(2, number, 1),
            wire.abandon_message(2, number, "forged"),
        ):  # fmt: skip
            with RawPeer(shared_daemon.socket) as other:
                other.say(word)
                assert other.is_dropped()
        holder.say(put(number, data=b"mine"), wire.finish_message(2, number, 1))
        answer = wire.parse_answer(holder.hear(), [])
    assert answer.outcome is Outcome.MISS
    assert [(item.name, item.data) for item in answer.artifacts] == [("k", b"mine")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (lambda n: [wire.finish_message(2, n, 1)], "output_rejected"),
        (lambda n: [put(n, more=True), wire.finish_message(2, n, 1)], "bad_request"),
    ],
    ids=["no file", "half a file"],
)
def test_a_bundle_that_is_not_whole_is_refused(
    shared_daemon: DaemonProcess, words: Callable[[int], list[dict[str, Any]]], code: str
) -> None:
    with RawPeer(shared_daemon.socket) as holder:
        lease = granted(holder, REQUEST._replace(salt=code))
        holder.say(*words(lease["lease"]))
        answer = wire.parse_answer(holder.hear(), [])
        assert answer.outcome is Outcome.FAILURE
        assert answer.error is not None
        assert answer.error["code"] == code
        assert granted(holder, REQUEST._replace(salt=code))["key"] == lease["key"]


def test_a_connection_may_hold_only_so_many_leases(shared_daemon: DaemonProcess) -> None:
    with RawPeer(shared_daemon.socket) as peer:
        for number in range(64):
            granted(peer, REQUEST._replace(salt=f"one of many {number}"))
        peer.say(wire.kernel_message(1, REQUEST._replace(salt="one too many")))
        answer = wire.parse_answer(peer.hear(), [])
    assert (answer.outcome, answer.reason) == (Outcome.FAILURE, Reason.BAD_REQUEST)
    with shared_daemon.client() as client:
        wait_for(lambda: client.call("status")["leases"] == 0, "the leases to end with their peer")


def test_a_request_that_cannot_be_read_is_a_counted_failure(shared_daemon: DaemonProcess) -> None:
    before = kernel_stats(shared_daemon)["failure_reasons"].get("bad_request", 0)
    with RawPeer(shared_daemon.socket) as peer:
        peer.say({"type": "kernel", "id": 1, "request": b"\xc1"})
        answer = wire.parse_answer(peer.hear(), [])
    assert (answer.outcome, answer.reason) == (Outcome.FAILURE, Reason.BAD_REQUEST)
    assert kernel_stats(shared_daemon)["failure_reasons"]["bad_request"] == before + 1


@pytest.mark.parametrize("answer", ["lease", "nonsense"])
def test_a_daemon_that_dies_between_two_words_leaves_the_client_to_itself(
    daemon: DaemonProcess, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer == "nonsense":
        monkeypatch.setattr(
            wire, "kernel_message", lambda n, _: {"type": "ping", "id": n, "request": b""}
        )
    with daemon.client(client_require=False) as client:
        if answer == "lease":
            found = client.kernel("host", MATERIAL)
            assert isinstance(found, Lease)
            daemon.kill()
            with pytest.warns(PtocacheWarning):
                found.put({"k": b"x"})
        else:
            with pytest.warns(PtocacheWarning):
                found = client.kernel("host", MATERIAL)
            assert isinstance(found, Lease)
            assert found.put({"k": b"x"}).reason is Reason.NO_DAEMON
