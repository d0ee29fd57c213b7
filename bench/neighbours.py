"""What hostile peers cost the others: a hit over an open connection, alone and beside each kind of peer.

The rival is the same hit on the same daemon a moment before. Each kind of peer is a process of its own,
which goes on for as long as the measurement beside it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING, NoReturn

from bench.common import Spread, finish, private_daemon, show, timed
from ptocache import wire
from ptocache.signature import SETTLE_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client

ROUNDS, EACH = 5, 300
CONNECTIONS = 200
SOURCE = b"const char data[15000] = {1};\nint f(void) { return 3; }\n"
_NAP_S = 0.01


def main() -> None:
    """Measure and print."""
    with private_daemon() as client:

        def ask() -> None:
            client.compile("host", {"k.c": SOURCE}, options=["-O2"], outputs=["object"])

        ask()
        # Files younger than this are read anew on each request: not what a user sees later.
        time.sleep(SETTLE_NS / 1e9 + 0.1)
        alone: list[float] = []
        beside: dict[str, list[float]] = {name: [] for name in PEERS}
        for _ in range(ROUNDS):
            for name, peer in PEERS.items():
                alone += timed(ask, EACH)
                child = started(peer, client)
                beside[name] += timed(ask, EACH)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        spreads = {"alone": Spread.of(alone), **{k: Spread.of(v) for k, v in beside.items()}}
        document = show("a hit beside hostile peers", spreads, "alone")
    finish({"bench": "neighbours", "results": document})


def started(peer: Callable[[str], NoReturn], client: Client) -> int:
    """The pid of a process that is such a peer."""
    place = client.settings.socket
    child = os.fork()
    if child == 0:
        try:
            peer(place)
        finally:
            os._exit(1)
    time.sleep(10 * _NAP_S)
    return child


def connected(place: str, *, greet: bool = True) -> socket.socket:
    """A connection without manners."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(place)
    if greet:
        made.sendall(wire.pack(wire.hello("0", os.getpid())))
        made.recv(1 << 16)
    return made


def half_frames(place: str) -> NoReturn:
    """Many that send half of a frame, and nothing more."""
    held = [connected(place) for _ in range(CONNECTIONS)]
    for item in held:
        item.sendall(wire.pack({"type": "ping", "id": 1})[:-1])
    forever()


def silent(place: str) -> NoReturn:
    """Many that never greet."""
    held = [connected(place, greet=False) for _ in range(CONNECTIONS)]
    forever(held)


def forged(place: str) -> NoReturn:
    """One that lies about a frame's length and comes back at once, again and again."""
    while True:
        with connected(place) as item:
            item.sendall(b"\xff\xff\xff\xff")
            item.recv(1 << 16)


def never_read(place: str) -> NoReturn:
    """Many that ask, as often as they may, and read no answer."""
    held = [connected(place) for _ in range(CONNECTIONS // 10)]
    frame = wire.pack({"type": "stats", "id": 1})
    for item in held:
        item.setblocking(False)
    while True:
        for item in held:
            try:
                item.send(frame)
            except BlockingIOError:
                time.sleep(_NAP_S)


def pings(place: str) -> NoReturn:
    """One that asks without a pause, and reads."""
    with connected(place) as item:
        frame = wire.pack({"type": "ping", "id": 1}) * 64
        while True:
            item.sendall(frame)
            item.recv(1 << 18)


def forever(*held: object) -> NoReturn:
    """Hold what is held."""
    while True:
        time.sleep(60)


PEERS: dict[str, Callable[[str], NoReturn]] = {
    f"{CONNECTIONS} that never greet": silent,
    f"{CONNECTIONS} with half a frame": half_frames,
    f"{CONNECTIONS // 10} that never read": never_read,
    "one that lies about lengths": forged,
    "one that asks without a pause": pings,
}

if __name__ == "__main__":
    main()
