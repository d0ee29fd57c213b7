"""What a hit costs over an open connection, against a bare echo of equal messages.

The rival is a process of its own that answers with a message equal to the daemon's: the same kind of
socket, the same event loop (asyncio), the same frames and the same msgpack on both sides, and nothing
else: no toolchain to confirm, no key, no conditions to check. For scale, the same bytes without reading
them: from a ``selectors`` loop, and from one blocking peer that serves nobody else.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import tempfile
import time
from typing import TYPE_CHECKING, Any

from bench.common import finish, interleaved, private_daemon, show
from ptocache import wire
from ptocache.digest import Digest
from ptocache.model import Answer, Artifact, Descriptor, Input, Job
from ptocache.outcome import Outcome
from ptocache.signature import SETTLE_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client
    from ptocache.result import Result

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
            request, answer = messages(result, source)
            for kind, server in RIVALS.items():
                action, child = echo_client(request, answer, server, read=kind == "echo")
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


def messages(result: Result, source: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request's and the answer's message, as the client and the daemon would send them."""
    job = Job(
        "host", "", ("-O2",), (("PATH", os.environ["PATH"]),), (Input("k.c", Digest.of(source)),),
        ("object",), cwd=os.getcwd(), kernel="k",
    )  # fmt: skip
    artifacts = tuple(
        Artifact(
            o.name, Digest(o.digest, o.size), o.mode, None if o.file else bytes(o.buffer), o.file
        )
        for o in result.outputs.values()
    )
    answer = Answer(Outcome.MEMORY_HIT, result.key, artifacts=artifacts, identity=result.identity)
    message, _ = wire.answer_message(0, answer)
    return wire.compile_message(0, wire.Request(job, {})), message


def echo_client(
    request: dict[str, Any],
    answer: dict[str, Any],
    serve: Callable[[socket.socket, int, dict[str, Any]], None],
    *,
    read: bool,
) -> tuple[Callable[[], object], int]:
    """A round trip with a server that does nothing else; and the server's pid."""
    path = os.path.join(tempfile.mkdtemp(prefix="pte-"), "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    child = os.fork()
    if child == 0:
        serve(listener, len(wire.pack(request)), answer)
        os._exit(0)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    data = wire.pack(request)
    length = len(wire.pack(answer))
    reader = wire.Reader()
    # The rival sends no descriptors: an answer that goes with some is read with one of ours.
    instead = Descriptor(os.open(os.devnull, os.O_RDONLY))

    def bytes_only() -> None:
        connection.sendall(data)
        left = length
        while left:
            left -= len(connection.recv(left))

    def whole_messages() -> None:
        connection.sendall(wire.pack(request))
        while (message := reader.take(memoryview(connection.recv(1 << 18)))) is None:
            pass
        wire.parse_answer(message, [instead] * answer["fds"])

    return (whole_messages if read else bytes_only), child


class _Echo(asyncio.Protocol):
    """Reads messages, and answers each with the same one."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._reader = wire.Reader()
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        message = self._reader.take(memoryview(data))
        while message is not None:
            self._transport.write(wire.pack(self._answer))
            message = self._reader.next()


def message_server(listener: socket.socket, request: int, answer: dict[str, Any]) -> None:
    """Serve any number of peers from asyncio's loop, reading and writing messages."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Echo(answer), sock=listener
        )
        await server.serve_forever()

    asyncio.run(run())


def selector_server(listener: socket.socket, request: int, answer: dict[str, Any]) -> None:
    """Serve any number of peers from one loop, looking at nothing."""
    data = wire.pack(answer)
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
                peer.send(data)


def blocking_server(listener: socket.socket, request: int, answer: dict[str, Any]) -> None:
    """Serve one peer, and nobody else meanwhile."""
    data = wire.pack(answer)
    peer, _ = listener.accept()
    while True:
        left = request
        while left:
            got = len(peer.recv(left))
            if not got:
                return
            left -= got
        peer.sendall(data)


RIVALS = {
    "echo": message_server,
    "bytes only": selector_server,
    "bytes only, one blocking peer": blocking_server,
}

if __name__ == "__main__":
    main()
