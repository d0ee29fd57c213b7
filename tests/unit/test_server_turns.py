"""Peers of one daemon take turns: who asks much does not stand between others and their answers."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

from ptocache import wire
from ptocache.digest import Digest
from ptocache.model import Input, Job
from ptocache.server import MAX_LOOKS, MESSAGES_PER_TURN, Server, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

ENOUGH = 10_000


class NoKernels:
    """What the server wants of the kernel cache."""

    leases = 0

    def gone(self, holder: object) -> None:
        """Nobody holds anything."""


class Peer:
    """A connection that is greeted."""

    def __init__(self, place: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(place)
        self.socket.setblocking(False)
        self._reader = wire.Reader()
        self.say(wire.hello("0", os.getpid()))

    def say(self, *messages: Mapping[str, Any]) -> None:
        """Send them in one piece."""
        data = b"".join(wire.pack(message) for message in messages)
        assert self.socket.send(data) == len(data)

    def heard(self) -> int:
        """How many messages have come since the last time."""
        try:
            self._reader.feed(self.socket.recv(1 << 20))
        except BlockingIOError:
            return 0
        count = 0
        while self._reader.next() is not None:
            count += 1
        return count

    def closed(self) -> bool:
        """True once the server has ended it."""
        try:
            return not self.socket.recv(1 << 20)
        except BlockingIOError:
            return False


async def until(done: Callable[[], int]) -> None:
    """Let the loop turn until ``done()`` is true."""
    for _ in range(ENOUGH):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


def serve(
    tmp_path: Path,
    controls: Mapping[str, Callable[[Mapping[str, Any]], Coroutine[Any, Any, Any]]],
    story: Callable[[Peer, Peer], Coroutine[Any, Any, None]],
) -> None:
    """Run ``story(busy, other)`` with two peers of a server in one loop."""

    async def run() -> None:
        place = str(tmp_path / "run" / "s")
        missing: Any = None
        kernels: Any = NoKernels()
        server = Server(listen(place), missing, kernels, controls, {})
        server.start()
        busy, other = Peer(place), Peer(place)
        try:
            await until(busy.heard)
            await until(other.heard)
            await story(busy, other)
        finally:
            busy.socket.close()
            other.socket.close()
            server.stop_accepting()
            await server.close(0)

    asyncio.run(run())


def test_peer_that_asks_without_a_pause_lets_others_have_their_turn(tmp_path: Path) -> None:
    async def story(busy: Peer, other: Peer) -> None:
        busy.say(*({"type": "ping", "id": number} for number in range(2000)))
        other.say({"type": "ping", "id": 1})
        await until(other.heard)
        answered = busy.heard()
        assert answered <= 2 * MESSAGES_PER_TURN
        left = 2000 - answered

        def all_heard() -> bool:
            nonlocal left
            left -= busy.heard()
            return not left

        await until(all_heard)

    serve(tmp_path, {}, story)


def test_peer_whose_request_ends_in_a_fault_is_not_left_waiting(tmp_path: Path) -> None:
    """There is no service behind this server at all."""
    job = Job("host", "", (), (), (Input("k.c", Digest.of(b"")),), ())

    async def story(busy: Peer, other: Peer) -> None:
        busy.say(wire.compile_message(1, wire.Request(job, {})))
        await until(busy.closed)
        other.say({"type": "ping", "id": 1})
        await until(other.heard)

    serve(tmp_path, {}, story)


def test_looks_of_a_peer_queue_and_those_of_others_come_in_turn(tmp_path: Path) -> None:
    running, most, begun = 0, 0, 0

    async def stats(message: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal running, most, begun
        begun += 1
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return {}

    async def story(busy: Peer, other: Peer) -> None:
        busy.say(*({"type": "stats", "id": number} for number in range(100)))
        await until(lambda: begun)
        other.say({"type": "stats", "id": 1})
        heard = busy.heard()
        while not other.heard():
            await asyncio.sleep(0.001)
        assert heard + busy.heard() <= MAX_LOOKS
        assert most == 1

    serve(tmp_path, {"stats": stats}, story)


def test_question_whether_the_daemon_lives_does_not_wait_for_looks(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def stats(message: Mapping[str, Any]) -> dict[str, Any]:
        await release.wait()
        return {}

    async def story(busy: Peer, other: Peer) -> None:
        busy.say({"type": "stats", "id": 1}, {"type": "ping", "id": 2})
        await until(busy.heard)
        release.set()
        await until(busy.heard)

    serve(tmp_path, {"stats": stats}, story)
