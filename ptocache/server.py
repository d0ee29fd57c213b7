"""The Unix socket: accept, check the peer, greet, frames in and out. No cache logic.

Everything runs on one event loop. A connection is bounded in what it may have unread, unsent and under
way, so that one peer cannot take memory or time from another.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import resource
import select
import socket
import stat
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from . import __version__, paths, wire
from .errors import (
    BadRequestError,
    CancelledError,
    FrameError,
    PeerRefusedError,
    ProtocolMismatchError,
    PtocacheError,
    StoreUnusableError,
)
from .kernels import Granted
from .service import NeedInputs
from .slots import Slots, Turn

if TYPE_CHECKING:
    from .kernels import Kernels
    from .model import Answer, Descriptor
    from .service import Repeat, Service

_log = logging.getLogger("ptocache.server")

BACKLOG = 512
READ_BYTES = 1 << 18
READS_PER_TURN = 4
"""How much one connection may read before the others have their turn."""
MESSAGES_PER_TURN = 4
"""How many of its messages are handled before the others have their turn."""
MAX_UNSENT_BYTES = 16 << 20
MAX_HELD_BYTES = 128 << 20
"""What the requests of one connection that are under way, and their answers to come, may take: nothing
more is read from it beyond that. The client never has more than 512 small ones under way."""
MAX_INPUT_BYTES = 64 << 20
"""Inputs that one connection is asked for at a time; further requests wait before they are asked."""
MAX_UNDER_WAY = 4096
MAX_CONNECTIONS = 4096
_MIN_CONNECTIONS = 16
_BUNDLE_BYTES = wire.MAX_FILES * wire.INLINE_BYTES
"""The longest answer whose outputs travel inline."""
GREETING_S = 10.0
STALL_S = 60.0
"""A peer in the middle of a frame must go on within this time."""
UNREAD_S = 3600.0
"""A peer with unread answers must read within this time: it may be busy with the ones before."""
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.1
MAX_FLYING = 512
"""Descriptors sent to one peer that it has not taken: the kernel counts them for the whole user, and
lets nobody send more when there are too many (unix(7), ETOOMANYREFS)."""
_SEND_AGAIN_S = 0.005
_SAY_AGAIN_S = 10.0
_REMEMBERED_REQUESTS = 4096
_REMEMBERED_BYTES = 4096
_REMEMBERED_REPEATS = 1024
MAX_LOOKS = 4
"""How many of them one peer may have under way; a client has one, and asks beside it whether we live."""
_BREATH_S = 0.002
"""Between two of those that queue."""
_LOOKS = ("status", "stats", "show", "explain")
"""Controls that only look, and take a moment."""
T = TypeVar("T")
Control = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""An administrative request: a message in, a value of plain types out."""


class Server:
    """Serves both caches and the controls on one socket."""

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        kernels: Kernels,
        controls: Mapping[str, Control],
        variables: Mapping[str, list[str]],
    ) -> None:
        self._listener = listener
        self._service = service
        self._kernels = kernels
        self._controls = controls
        self._variables = variables
        self._connections: set[_Connection] = set()
        self._requests = _Parsed(wire.parse_compile)
        self._kernel_requests = _Parsed(wire.parse_kernel)
        self.repeats = _Repeats()
        self._lane = Slots(1)
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._hangups = select.epoll()
        self._unread: dict[int, _Connection] = {}
        self._most_connections = most_connections()
        self.most_flying = most_flying()
        self._no_room = _Seldom("no room for another connection: %s")
        self._refused = _Seldom("refused a connection: %d are open")
        # One for all connections: a buffer of its own for every read costs more than the read.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.last_activity_s = time.monotonic()

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._loop.add_reader(self._hangups.fileno(), self._hung_up)
        self._loop.call_later(STALL_S / 4, self._drop_stalled)

    def stop_accepting(self) -> None:
        """Withdraw the socket: whoever comes now finds nobody, and who asks on an open connection
        gets what is in memory and no compile."""
        self._stopping = True
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    async def close(self, patience_s: float) -> None:
        """Send what is still unsent, for at most ``patience_s``, and close every connection."""
        deadline = time.monotonic() + patience_s
        while any(item.unsent for item in self._connections) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
        self._loop.remove_reader(self._hangups.fileno())
        self._hangups.close()

    @property
    def under_way(self) -> int:
        """Requests that have no answer yet, and leases whose bundle is still to come."""
        return sum(len(item.tasks) for item in self._connections) + self._kernels.leases

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._no_room.warn(error.strerror)
                    self._pause_accepting()
                return
            if len(self._connections) >= self._most_connections:
                self._refused.warn(len(self._connections))
                peer.close()
                continue
            pid, uid = peer_credentials(peer)
            if uid != os.geteuid():
                _log.warning("refused a peer of user %d", uid)
                peer.close()
                continue
            self._connections.add(_Connection(self, peer, pid))

    def _pause_accepting(self) -> None:
        self._loop.remove_reader(self._listener.fileno())

        def go_on() -> None:
            if self._listener.fileno() >= 0:
                self._loop.add_reader(self._listener.fileno(), self._accept)

        self._loop.call_later(_ACCEPT_PAUSE_S, go_on)

    def _drop_stalled(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            limit_s = connection.patience_s
            if connection.waiting and now - connection.moved_s > limit_s:
                _log.warning("closed a connection that did not move for %.0f s", limit_s)
                connection.close()
        if self._listener.fileno() >= 0:
            self._loop.call_later(min(STALL_S, GREETING_S) / 4, self._drop_stalled)

    def watch(self, number: int, connection: _Connection) -> None:
        """Nothing is read from this connection for now: only its end is to be noticed."""
        if number not in self._unread:
            self._unread[number] = connection
            self._hangups.register(number, select.EPOLLRDHUP)

    def unwatch(self, number: int) -> None:
        """It is read again, or closed; fine if it was not watched."""
        if self._unread.pop(number, None) is not None:
            self._hangups.unregister(number)

    def _hung_up(self) -> None:
        for number, _ in self._hangups.poll(0):
            self._unread[number].close()

    def forget(self, connection: _Connection) -> None:
        """A connection has closed."""
        self._connections.discard(connection)
        self._kernels.gone(connection)

    # --- messages

    def handle(self, connection: _Connection, message: dict[str, Any]) -> None:
        """One whole message of a peer. Raises :class:`~ptocache.errors.WireError` for what ends the
        connection."""
        kind = message["type"]
        if not connection.greeted:
            self._greet(connection, message)
            return
        self.last_activity_s = time.monotonic()
        if kind == "compile":
            self._compile(connection, message)
        elif kind == "batch":
            self._batch(connection, message)
        elif kind == "ping":
            connection.send({"type": "result", "id": _id(message), "value": {}})
        elif kind == "get":
            key, source_dir = message.get("key"), message.get("source_dir")
            if not isinstance(key, str) or not isinstance(source_dir, str):
                raise FrameError("get needs a key and a source_dir")
            bases = wire.bases_of(message)
            connection.begin(
                self._get(connection, _id(message), key, source_dir, bases), _BUNDLE_BYTES
            )
        elif kind == "kernel":
            self._kernel(connection, message)
        elif kind in ("put", "finish", "abandon"):
            self._lease(connection, kind, message)
        elif kind in self._controls:
            request_id = _id(message)
            if kind in _LOOKS:
                connection.looks += 1
                connection.begin(self._look(connection, request_id, kind, message))
            else:
                connection.begin(self._control(connection, request_id, kind, message))
        else:
            raise FrameError(f"there is no request {kind[:40]!r}")

    def again(self, repeat: Repeat) -> Answer | None:
        """The answer to what was answered before, if all that it rested on stands."""
        self.last_activity_s = time.monotonic()
        return self._service.again(repeat)

    def _greet(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        if message["type"] != "hello":
            raise FrameError("the first message is not a greeting")
        if message.get("protocol") != wire.PROTOCOL:
            raise ProtocolMismatchError(
                f"the client speaks protocol {message.get('protocol')!r}, the daemon {wire.PROTOCOL}",
                hint="stop the daemon (ptocache stop), so that the client's version starts its own",
                ours=wire.PROTOCOL,
            )
        connection.greet()
        connection.send(wire.welcome(__version__, os.getpid(), self._variables))

    def _batch(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        requests = message.get("requests")
        if not isinstance(requests, list) or len(requests) > wire.MAX_BATCH:
            raise FrameError(f"a batch is not a list of at most {wire.MAX_BATCH} requests")
        if not all(isinstance(request, dict) for request in requests):
            raise FrameError("a batch holds something else than requests")
        connection.put_off([_kept(request) for request in requests])

    def _compile(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        request_id = _id(message)
        asked = connection.asked_for(request_id)
        try:
            request = self._requests.of(message)
        except BadRequestError as error:
            connection.answer(request_id, self._service.refuse(error))
            return
        found = self._service.quick(request)
        if found is not None:
            answer, repeat = found
            connection.answer(request_id, answer)
            if repeat is not None:
                connection.repeat = _Again(request_id, repeat)
        elif self._stopping:
            stops = CancelledError("the daemon stops and begins no other compile")
            connection.answer(request_id, self._service.refuse(stops))
        else:
            priority = wire.priority_of(message)
            outputs = max(1, len(request.job.outputs)) * wire.INLINE_BYTES
            connection.begin(
                self._compile_slowly(connection, request_id, request, priority),
                len(message["request"]) + min(outputs, _BUNDLE_BYTES),
                asked,
            )

    async def _compile_slowly(
        self, connection: _Connection, request_id: int, request: wire.Request, priority: int
    ) -> None:
        answer = await self._service.answer(request, connection, priority)
        if isinstance(answer, NeedInputs):
            wanted = sum(item.digest.size for item in request.job.inputs)
            await connection.ask_for(request_id, wanted)
            connection.send({"type": "need", "id": request_id, "names": list(answer.names)})
        else:
            connection.answer(request_id, answer)
        self.last_activity_s = time.monotonic()

    def _kernel(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        request_id = _id(message)
        try:
            request = self._kernel_requests.of(message)
        except BadRequestError as error:
            connection.answer(request_id, self._kernels.refuse(error))
            return
        answer = self._kernels.quick(request)
        if answer is not None:
            connection.answer(request_id, answer)
        elif self._stopping:
            stops = CancelledError("the daemon stops and grants no other lease")
            connection.answer(request_id, self._kernels.refuse(stops))
        else:
            held = len(message["request"]) + _BUNDLE_BYTES
            connection.begin(self._kernel_slowly(connection, request_id, request), held)

    async def _kernel_slowly(
        self, connection: _Connection, request_id: int, request: wire.KernelRequest
    ) -> None:
        found = await self._kernels.ask(request, connection)
        if isinstance(found, Granted):
            connection.send(wire.lease_message(request_id, **found._asdict()))
        else:
            connection.answer(request_id, found)
        self.last_activity_s = time.monotonic()

    def _lease(self, connection: _Connection, kind: str, message: Mapping[str, Any]) -> None:
        if kind == "put":
            self._kernels.put(connection, wire.parse_put(message))
        elif kind == "finish":
            judged = self._kernels.finish(connection, *wire.parse_finish(message))
            connection.begin(self._finish(connection, _id(message), judged), _BUNDLE_BYTES)
        else:
            answer = self._kernels.abandon(connection, *wire.parse_abandon(message))
            connection.answer(_id(message), answer)

    async def _finish(
        self, connection: _Connection, request_id: int, judged: asyncio.Task[Answer]
    ) -> None:
        # What others wait for goes on if this peer goes.
        connection.answer(request_id, await asyncio.shield(judged))

    async def _get(
        self,
        connection: _Connection,
        request_id: int,
        key: str,
        source_dir: str,
        bases: tuple[str, ...],
    ) -> None:
        answer = await self._service.stored(key, source_dir, bases)
        if answer is None:
            connection.send({"type": "nothing", "id": request_id})
        else:
            connection.answer(request_id, answer)

    async def _look(
        self, connection: _Connection, request_id: int, kind: str, message: Mapping[str, Any]
    ) -> None:
        """A control that only looks: one at a time, by turns, so that thousands of them do not stand between
        others and their hits."""
        try:
            async with self._lane.use(Turn(connection, 0)):
                await self._control(connection, request_id, kind, message)
                if self._lane.waiting:
                    await asyncio.sleep(_BREATH_S)
        finally:
            connection.looks -= 1

    async def _control(
        self, connection: _Connection, request_id: int, kind: str, message: Mapping[str, Any]
    ) -> None:
        try:
            value = await self._controls[kind](message)
        except PtocacheError as error:
            connection.send({"type": "error", "id": request_id, "error": error.to_wire()})
        except Exception as error:
            _log.exception("the request %s ended in a fault", kind)
            wrapped = PtocacheError(f"internal error: {error!r}", hint="the daemon's log has more")
            connection.send({"type": "error", "id": request_id, "error": wrapped.to_wire()})
        else:
            connection.send({"type": "result", "id": request_id, "value": value})


class _Parsed(Generic[T]):
    """Reads the requests in messages; one that was read before is not read again."""

    def __init__(self, parse: Callable[[Mapping[str, Any]], T]) -> None:
        self._parse = parse
        self._known: dict[bytes, T] = {}

    def of(self, message: Mapping[str, Any]) -> T:
        """The request; raises :class:`~ptocache.errors.BadRequestError`."""
        document = message.get("request")
        if not isinstance(document, bytes) or len(document) > _REMEMBERED_BYTES:
            return self._parse(message)
        known = self._known.get(document)
        if known is None:
            known = self._parse(message)
            if len(self._known) >= _REMEMBERED_REQUESTS:
                self._known.clear()
            self._known[document] = known
        return known


class _Again(NamedTuple):
    """A frame that was answered by a hit in memory."""

    request_id: int
    repeat: Repeat


class _Repeats:
    """The frames that were answered by a hit in memory: equal bytes ask for the same, whoever sends them.
    Clients ask for the same kernels again and again, and to read their frames would cost more than to
    look at the stamps of all that the answer rests on."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Again] = {}

    def find(self, frame: memoryview) -> _Again | None:
        """What answers this frame, if it was answered before."""
        return self._known.get(bytes(frame)) if len(frame) <= _REMEMBERED_BYTES else None

    def keep(self, frame: memoryview, again: _Again) -> None:
        """Remember a frame; what is full begins anew."""
        if len(frame) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED_REPEATS:
                self._known.clear()
            self._known[bytes(frame)] = again

    def drop(self, frame: memoryview) -> None:
        """What it rested on has moved."""
        self._known.pop(bytes(frame), None)


class _Held(NamedTuple):
    """Bytes that a request under way takes."""

    all: int
    """Itself and its answer to come."""
    inputs: int
    """Inputs that its peer was asked for."""


class _Seldom:
    """A warning that a flood would repeat: said once in a while, with how often it was not said."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._said_s = -_SAY_AGAIN_S
        self._unsaid = 0

    def warn(self, *args: object) -> None:
        """Say it, unless it was said a moment ago."""
        now = time.monotonic()
        if now - self._said_s < _SAY_AGAIN_S:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more times before)" if self._unsaid else ""
        _log.warning(self._text + more, *args)
        self._said_s, self._unsaid = now, 0


class _Connection:
    """One peer."""

    def __init__(self, server: Server, peer: socket.socket, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._reader = wire.Reader(limit=wire.MAX_GREETING_BYTES)
        self.repeat: _Again | None = None
        """How to answer the message that was handled last once more."""
        self._out: deque[tuple[memoryview, tuple[Descriptor, ...]]] = deque()
        self._put_off: deque[dict[str, Any]] = deque()
        self._late: deque[tuple[int, Answer]] = deque()
        self.unsent = 0
        self.tasks: dict[asyncio.Task[None], _Held] = {}
        self._flying = 0
        self._paused = False
        self._resting = False
        self.looks = 0
        """Of :data:`_LOOKS` under way."""
        self._held_bytes = 0
        self._input_bytes = 0
        self._asked: dict[int, int] = {}
        self._to_ask: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.greeted = False
        self.moved_s = time.monotonic()
        self._reading = False
        self._closed = False
        peer.setblocking(False)
        self._read_on()

    @property
    def patience_s(self) -> float:
        """How long this peer may stand still while it owes us something."""
        if not self.greeted:
            return GREETING_S
        return UNREAD_S if self.unsent else STALL_S

    @property
    def waiting(self) -> bool:
        """True if the peer owes us something: a greeting, the rest of a frame, or reading."""
        # While nothing is read from it, the rest of a frame may have been sent for long.
        in_a_frame = self._reading and self._reader.pending > 0
        return not self.greeted or in_a_frame or self.unsent > 0

    def greet(self) -> None:
        """The peer has introduced itself: longer frames are fine now."""
        self.greeted = True
        self._reader.limit = wire.MAX_FRAME_BYTES

    def put_off(self, messages: Iterable[dict[str, Any]]) -> None:
        """Handle these as soon as there is room for their answers, and before anything newer."""
        self._put_off.extend(messages)

    def begin(self, work: Any, held_bytes: int = wire.INLINE_BYTES, input_bytes: int = 0) -> None:
        """Run a request to its end; it is cancelled if the peer goes. ``held_bytes``: what it and its
        answer may take; ``input_bytes``: what :meth:`asked_for` gave for it."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self.tasks[task] = _Held(held_bytes, input_bytes)
        self._held_bytes += held_bytes
        self._input_bytes += input_bytes
        task.add_done_callback(self._finished)
        if self._busy:
            self._read_off()

    def _finished(self, task: asyncio.Task[None]) -> None:
        held = self.tasks.pop(task)
        self._held_bytes -= held.all
        self._input_bytes -= held.inputs
        if not task.cancelled() and task.exception() is not None:
            _log.error("a request's task failed", exc_info=task.exception())
            # No answer would ever come: a peer that is told so goes on by itself.
            self.close()
        self._ask_more()
        self._read_on()

    async def ask_for(self, request_id: int, size: int) -> None:
        """Wait until this peer may be asked for ``size`` bytes of inputs: what it sends is kept until
        it is compiled. What is longer than all that may be asked for is asked for alone."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._to_ask.append((size, turn))
        self._ask_more()
        await turn
        self._asked[request_id] = self._asked.get(request_id, 0) + size

    def asked_for(self, request_id: int) -> int:
        """The bytes that were asked for, now that they are here; they count until given back."""
        size = self._asked.pop(request_id, 0)
        self._input_bytes -= size
        if self._to_ask:
            self._loop.call_soon(self._ask_more)
        return size

    def _ask_more(self) -> None:
        while self._to_ask:
            size, turn = self._to_ask[0]
            if not turn.done():
                if self._input_bytes and self._input_bytes + size > MAX_INPUT_BYTES:
                    return
                self._input_bytes += size
                turn.set_result(None)
            self._to_ask.popleft()

    def answer(self, request_id: int, answer: Answer) -> None:
        """Send an answer with its descriptors; one that has to wait is not packed before it is its
        turn: many may share their outputs."""
        if self.unsent > MAX_UNSENT_BYTES:
            self._late.append((request_id, answer))
            return
        self._send(*wire.answer_frame(request_id, answer))

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, at once if the peer takes it."""
        self._send(wire.pack(message), ())

    def _send(self, frame: bytes, descriptors: tuple[Descriptor, ...]) -> None:
        if self._closed:
            return
        data = memoryview(frame)
        if not self._out:
            data, descriptors = self._push(data, descriptors)
            if not data or self._closed:
                return
            if not self._paused:
                self._loop.add_writer(self._peer.fileno(), self._write)
        self._out.append((data, descriptors))
        self.unsent += len(data)
        if self.unsent > MAX_UNSENT_BYTES:
            self._read_off()

    def _push(
        self, data: memoryview, descriptors: tuple[Descriptor, ...]
    ) -> tuple[memoryview, tuple[Descriptor, ...]]:
        """Send as much as the peer takes; what remains. Descriptors go with the first byte."""
        try:
            if descriptors:
                if not self._may_fly(len(descriptors)):
                    self._pause_sending()
                    return data, descriptors
                numbers = array.array("i", [item.fileno() for item in descriptors])
                sent = self._peer.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())]
                )
                self._flying += len(descriptors)
                descriptors = ()
            else:
                sent = self._peer.send(data)
        except BlockingIOError:
            return data, descriptors
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                self._pause_sending()
                return data, descriptors
            self.close()
            return data[:0], ()
        self.moved_s = time.monotonic()
        return data[sent:], descriptors

    def _may_fly(self, count: int) -> bool:
        most = self._server.most_flying
        if self._flying + count > most and not _unread(self._peer):
            self._flying = 0
        return not self._flying or self._flying + count <= most

    def _pause_sending(self) -> None:
        """Try again a little later: the socket has room, so that nothing would tell us when."""
        if self._paused:
            return
        self._paused = True
        self._loop.remove_writer(self._peer.fileno())
        self._loop.call_later(_SEND_AGAIN_S, self._send_again)

    def _send_again(self) -> None:
        self._paused = False
        if not self._closed:
            self._loop.add_writer(self._peer.fileno(), self._write)

    def _write(self) -> None:
        while self._out:
            data, descriptors = self._out[0]
            rest, descriptors = self._push(data, descriptors)
            if self._closed:
                return
            self.unsent -= len(data) - len(rest)
            if rest:
                self._out[0] = (rest, descriptors)
                return
            self._out.popleft()
        self._loop.remove_writer(self._peer.fileno())
        while self._late and self.unsent <= MAX_UNSENT_BYTES and not self._closed:
            self.answer(*self._late.popleft())
        self._read_on()

    @property
    def _busy(self) -> bool:
        """True while nothing more of this peer is begun: it must read, or wait for answers or its turn,
        first."""
        return (
            self._resting
            or self.looks >= MAX_LOOKS
            or self.unsent > MAX_UNSENT_BYTES
            or self._held_bytes >= MAX_HELD_BYTES
            or len(self.tasks) >= MAX_UNDER_WAY
        )

    def _read_on(self) -> None:
        """Go on: with what arrived and was left, then with what the peer sends."""
        if self._reading or self._closed:
            return
        self._take()
        if not self._closed and not self._busy:
            self._reading = True
            self.moved_s = time.monotonic()
            self._server.unwatch(self._peer.fileno())
            self._loop.add_reader(self._peer.fileno(), self._read)

    def _read_off(self) -> None:
        if self._reading and not self._closed:
            self._reading = False
            self._loop.remove_reader(self._peer.fileno())
            # Who reads nothing sees no end either, and what was begun would go on for nobody.
            self._server.watch(self._peer.fileno(), self)

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                count = self._peer.recv_into(self._server.buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            if not count:
                self.close()
                return
            self.moved_s = time.monotonic()
            data = self._server.buffer[:count]
            if not self._take(data):
                return
            if count < READ_BYTES:
                return

    def _answer_again(self, data: memoryview) -> bool:
        """Answer a frame that came alone and was answered before; False if that is not the case."""
        if self._put_off or self._asked or self._reader.pending or self._busy or not self.greeted:
            return False
        known = self._server.repeats.find(data)
        if known is None:
            return False
        answer = self._server.again(known.repeat)
        if answer is None:
            self._server.repeats.drop(data)
            return False
        self.answer(known.request_id, answer)
        return True

    def _take(self, data: memoryview | None = None) -> bool:
        """Handle whole messages, after ``data`` has arrived, while there is room for their answers; False
        if the connection must not be read on."""
        try:
            if data is not None and self._answer_again(data):
                return self._reading
            alone = data is not None and not self._put_off and not self._reader.pending
            message, handled = self._next(data), 0
            while message is not None:
                self.repeat = None
                self._server.handle(self, message)
                if self._closed:
                    return False
                if (
                    self.repeat is not None
                    and alone
                    and data is not None
                    and not self._reader.pending
                ):
                    self._server.repeats.keep(data, self.repeat)
                alone = False
                handled += 1
                if handled == MESSAGES_PER_TURN:
                    self._rest()
                message = self._next()
        except PtocacheError as error:
            _log.warning("closed a connection: %s", error)
            self.send({"type": "error", "id": 0, "error": error.to_wire()})
            self.close()
            return False
        except Exception:
            _log.exception("a message ended in a fault")
            # No answer would ever come: a peer that is told so goes on by itself.
            self.close()
            return False
        return self._reading

    def _rest(self) -> None:
        """Go on when the others had their turn."""
        self._resting = True
        self._read_off()
        self._loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._read_on()

    def _next(self, data: memoryview | None = None) -> dict[str, Any] | None:
        if data is not None and not self._put_off and not self._busy:
            return self._reader.take(data)
        if data is not None:
            self._reader.feed(data)
        if self._busy:
            return None
        return self._put_off.popleft() if self._put_off else self._reader.next()

    def close(self) -> None:
        """Close, and give up what this peer waited for."""
        if self._closed:
            return
        self._read_off()
        self._closed = True
        self._server.unwatch(self._peer.fileno())
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._out.clear()
        self._put_off.clear()
        self._late.clear()
        self.unsent = 0
        for task in list(self.tasks):
            task.cancel()
        self._server.forget(self)


def _id(message: Mapping[str, Any]) -> int:
    value = message.get("id")
    if not isinstance(value, int) or isinstance(value, bool):
        raise FrameError("a request without a number as its id")
    return value


def _kept(request: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a part of a batch while it waits for its turn: nothing that is not needed."""
    document = request.get("request")
    return {
        "type": "compile",
        "id": _id(request),
        "request": document if isinstance(document, bytes) else None,
        "priority": wire.priority_of(request),
    }


def most_connections() -> int:
    """How many connections may be open: descriptors must be left for what they ask for."""
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, _descriptor_limit() // 2))


def most_flying() -> int:
    """How many descriptors may be under way to one peer: the limit is that of all together."""
    return max(_MIN_CONNECTIONS, min(MAX_FLYING, _descriptor_limit() // 8))


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _unread(peer: socket.socket) -> int:
    """What was sent and not read yet, in bytes of the kernel's memory (SIOCOUTQ, unix(7))."""
    number = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return int.from_bytes(number, sys.byteorder)


def peer_credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user at the other end (SO_PEERCRED, unix(7)); the process is 0 if it lives in a
    namespace that cannot be seen from here."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return int(pid), int(uid)


def listen(path: str) -> socket.socket:
    """Bind the socket; the caller holds the store's lock, so a socket that nobody serves is stale.

    Raises :class:`~ptocache.errors.StoreUnusableError` if something that is no socket stands there
    or another daemon serves it, :class:`~ptocache.errors.PeerRefusedError` for an unsafe directory.
    """
    try:
        paths.make_socket_directory(path)
        if os.path.lexists(path):
            _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except PtocacheError:
        raise
    except OSError as error:
        raise StoreUnusableError(
            f"the socket {path} cannot be made: {error.strerror or error}",
            hint="choose another place with PTOCACHE_SOCKET",
            path=path,
        ) from error
    return listener


def _remove_stale(path: str) -> None:
    info = os.lstat(path)
    if not stat.S_ISSOCK(info.st_mode):
        raise StoreUnusableError(
            f"{path} is in the way: it is not a socket, and it is left as it is",
            hint="move it away, or choose another place with PTOCACHE_SOCKET",
            path=path,
        )
    if info.st_uid != os.geteuid():
        raise PeerRefusedError(f"the socket {path} belongs to user {info.st_uid}", path=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass
    raise StoreUnusableError(
        f"the socket {path} is served by the daemon of another store",
        hint="stop that daemon, or choose another place with PTOCACHE_SOCKET",
        path=path,
    )
