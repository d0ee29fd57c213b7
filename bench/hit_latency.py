"""What a hit costs over an open connection, against a bare echo of messages of the same sizes.

The echo server is a process of its own. It reads frames of the same length as the requests and writes
frames of the same length as the answers over the same kind of socket, from an event loop that could
serve many peers (``selectors``), as a daemon must. For scale, the same without a loop: one blocking peer.
"""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
import time
from typing import TYPE_CHECKING

from bench.common import finish, interleaved, private_daemon, show
from ptocache import wire
from ptocache.model import Answer, Artifact
from ptocache.outcome import Outcome
from ptocache.signature import SETTLE_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client, Result

ROUNDS, EACH = 20, 200
SOURCES = {
    "object, 16 KiB": ("object", b"const char data[15000] = {1};\nint f(void) { return 3; }\n"),
    "shared object, 16 KiB": ("shared", b"#include <math.h>\nint f(void) { return 3; }\n"),
    "object, 400 KB (descriptor)": ("object", b"const char data[400000] = {1};\n"),
}


def main() -> None:
    """Measure and print."""
    with private_daemon() as client:
        actions: dict[str, Callable[[], object]] = {}
        children: list[int] = []
        for name, (output, source) in SOURCES.items():
            result = client.compile("host", {"k.c": source}, options=["-O2"], outputs=[output])
            request, answer = sizes(result, source)
            for kind, server in (
                ("echo", selector_server),
                ("echo, one blocking peer", blocking_server),
            ):
                action, child = echo_client(request, answer, server)
                children.append(child)
                actions[f"{kind}: {name}"] = action
            actions[f"hit: {name}"] = hit(client, output, source)
        # Files younger than this are read anew on each request: not what a user sees later.
        time.sleep(SETTLE_NS / 1e9 + 0.1)
        spreads = interleaved(actions, ROUNDS, EACH)
        document = {}
        for name in SOURCES:
            pair = {k: v for k, v in spreads.items() if k.endswith(name)}
            document[name] = show(name, pair, f"echo: {name}")
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    finish({"bench": "hit_latency", "results": document})


def hit(client: Client, output: str, source: bytes) -> Callable[[], object]:
    """A request that is a memory hit, or the run is void."""

    def action() -> None:
        result = client.compile("host", {"k.c": source}, options=["-O2"], outputs=[output])
        if result.outcome is not Outcome.MEMORY_HIT:
            raise SystemExit(f"not a hit: {result.outcome.label} {result.why}")

    return action


def sizes(result: Result, source: bytes) -> tuple[int, int]:
    """Bytes of the request's and of the answer's frame."""
    from ptocache.digest import Digest
    from ptocache.model import Input, Job

    job = Job("host", "", ("-O2",), (("PATH", os.environ["PATH"]),), (Input("k.c", Digest.of(source)),), ("object",), cwd=os.getcwd(), kernel="k")  # fmt: skip
    request = wire.pack(wire.compile_message(0, wire.Request(job, {})))
    artifacts = tuple(
        Artifact(o.name, Digest(o.digest, o.size), o.mode, bytes(o.buffer) if not o.file else b"")
        for o in result.outputs.values()
    )
    answer = Answer(Outcome.MEMORY_HIT, result.key, artifacts=artifacts, identity=result.identity)
    return len(request), len(wire.pack(wire.answer_message(0, answer)[0]))


def echo_client(
    request: int, answer: int, serve: Callable[[socket.socket, int, bytes], None]
) -> tuple[Callable[[], object], int]:
    """A round trip with a server that does nothing else; and the server's pid."""
    path = os.path.join(tempfile.mkdtemp(prefix="pte-"), "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    child = os.fork()
    if child == 0:
        serve(listener, request, bytes(answer))
        os._exit(0)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    data = bytes(request)

    def action() -> None:
        connection.sendall(data)
        left = answer
        while left:
            left -= len(connection.recv(left))

    return action, child


def selector_server(listener: socket.socket, request: int, answer: bytes) -> None:
    """Serve any number of peers from one loop."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    unread: dict[int, int] = {}
    while True:
        for ready, _ in selector.select():
            peer = ready.fileobj
            assert isinstance(peer, socket.socket)
            if peer is listener:
                peer, _ = listener.accept()
                peer.setblocking(False)
                selector.register(peer, selectors.EVENT_READ)
                unread[peer.fileno()] = request
                continue
            got = len(peer.recv(1 << 18))
            if not got:
                return
            unread[peer.fileno()] -= got
            if unread[peer.fileno()] <= 0:
                unread[peer.fileno()] += request
                peer.send(answer)


def blocking_server(listener: socket.socket, request: int, answer: bytes) -> None:
    """Serve one peer, and nobody else meanwhile."""
    peer, _ = listener.accept()
    while True:
        left = request
        while left:
            got = len(peer.recv(left))
            if not got:
                return
            left -= got
        peer.sendall(answer)


if __name__ == "__main__":
    main()
