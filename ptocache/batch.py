"""Many requests at once: asked in messages of some hundred, answered as they finish, cancelled as a whole.

Part of the light client. A batch has a connection of its own while it runs: who gives the batch up closes it,
and the daemon ends whatever nobody else waits for. Of the jobs no more than two messages' worth are held at a
time, so that they may come from a generator.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sized
from typing import NamedTuple

from . import wire
from .errors import BadRequestError, DaemonUnavailableError, FrameError, PtocacheError, WireError
from .model import Answer
from .outcome import SPARED, Outcome, Reason
from .result import DAEMON_TROUBLE, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from types import TracebackType
    from typing import Any

    from .connection import Connection
    from .pending import Pending
    from .progress import Bar

WINDOW = 256
"""Most requests in one message, and most that are under way when the next one is sent: a daemon that has
enough to do reads nothing more, the question whether it lives included."""
_FIRST_WINDOW = 16
"""Of jobs whose number is not known: the first compiles should begin before the last job is made."""
_MESSAGE_BYTES = 8 << 20
_ENVELOPE_BYTES = 4096
_ASIDE_S = 20.0
"""How long a batch that lost its daemon goes on by itself before it looks for one again."""


class Ways(NamedTuple):
    """What a batch needs of its client."""

    take: Callable[[], Connection]
    """A connection; raises what :func:`ptocache.client.connect` may meet."""
    give: Callable[[Connection], None]
    """Give it back, as good as before."""
    forget: Callable[[], None]
    """Idle connections lead to a daemon that has gone."""
    asked: Callable[[Pending, Connection], None]
    """A request is about to be asked for."""
    answered: Callable[[Pending, Answer], Result]
    alone: Callable[[Pending, Any], Result]
    """Compile without a daemon, until a :class:`~ptocache.compiler.Cancel` says otherwise."""
    step_aside: Callable[[Exception], None]
    """Warns that there is no daemon; raises if one is required."""
    required: bool


class Progress(NamedTuple):
    """How far a batch has come, in requests; the parts add up to ``done``."""

    done: int = 0
    total: int | None = None
    """``None`` while the jobs come from an iterator that has not ended."""
    hits: int = 0
    joined: int = 0
    compiled: int = 0
    bypassed: int = 0
    failed: int = 0
    saved_ms: int = 0
    """Compile time that hits and joined requests did not pay again."""

    def after(self, result: Result) -> Progress:
        """With one more result."""
        outcome = result.outcome
        return self._replace(
            done=self.done + 1,
            hits=self.hits + outcome.is_hit,
            joined=self.joined + (outcome is Outcome.JOINED),
            compiled=self.compiled + (outcome is Outcome.MISS),
            bypassed=self.bypassed + (outcome is Outcome.BYPASS),
            failed=self.failed + (outcome is Outcome.FAILURE),
            saved_ms=self.saved_ms + (result.compile_ms if outcome in SPARED else 0),
        )


class Batch:
    """The results of many jobs, as they finish: an iterator of (position, result).

    Made by :meth:`ptocache.client.Client.compile_many`. Leaving the loop early, :meth:`cancel` (from any
    thread) and the end of a ``with`` block end what has not begun, and the compiles that nobody else waits
    for. Iterated by one thread of one process.
    """

    def __init__(
        self, jobs: Iterable[Pending], ways: Ways, bar: Callable[[int | None], Bar]
    ) -> None:
        self._flow = _Flow(jobs, ways)
        # Not a method of this object: it would be kept alive by what it is to end.
        self._results = self._flow.results()
        self._make_bar = bar
        self._bar: Bar | None = None
        self._pid = os.getpid()
        self.progress = Progress(total=self._flow.total)
        """Of the results that were taken so far."""

    @property
    def cancelled(self) -> bool:
        """True once it was given up."""
        return self._flow.cancelled

    def __iter__(self) -> Batch:
        return self

    def __next__(self) -> tuple[int, Result]:
        if self._pid != os.getpid():
            raise BadRequestError(
                "a batch belongs to the process that made it", hint="ask anew after a fork"
            )
        if self._bar is None:
            self._bar = self._make_bar(self.progress.total)
        try:
            number, result = next(self._results)
        except BaseException:
            self.progress = self.progress._replace(total=self._flow.total)
            self._end_bar()
            raise
        self.progress = self.progress._replace(total=self._flow.total).after(result)
        self._bar.show(self.progress)
        return number, result

    def cancel(self) -> None:
        """Give up what has no result yet; thread-safe. The iteration ends, the client goes on."""
        self._flow.cancel()

    def close(self) -> None:
        """The same, by the thread that iterates; closing twice is fine."""
        self._flow.cancel()
        self._results.close()
        self._end_bar()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _end_bar(self) -> None:
        # The terminal is the process's that drew on it.
        if self._bar is not None and self._pid == os.getpid():
            self._bar.end(self.progress)

    def __del__(self) -> None:
        # Forgotten in mid-loop: the terminal must get its cursor back.
        if getattr(self, "_bar", None) is not None:
            self._end_bar()


class _Source:
    """The jobs, by position, taken as they are needed."""

    def __init__(self, jobs: Iterable[Pending]) -> None:
        self._sized = jobs if isinstance(jobs, Sized) else None
        self.window = WINDOW if self._sized is not None else _FIRST_WINDOW
        self.error: BaseException | None = None
        """What the caller's own iterator raised: told when all before it have their results."""
        self._jobs = iter(jobs)
        self._taken = 0
        self.ended = False
        """True once the iterator has said so."""

    @property
    def total(self) -> int | None:
        """How many there are, if that is known; a list may grow meanwhile."""
        if self.ended or self._sized is None:
            return self._taken if self.ended else None
        return max(self._taken, len(self._sized))

    @property
    def seems_ended(self) -> bool:
        """True if there is no other as far as is known without asking the iterator. A list's, once it has
        said that it ends, says so forever."""
        return self.ended or self._taken == self.total

    def take(self, most: int) -> Iterator[tuple[int, Pending]]:
        """At most so many further jobs."""
        while most > 0 and not self.ended:
            try:
                job = self._again(next(self._jobs))
            except StopIteration:
                self.ended = True
                return
            except Exception as error:
                self.ended = True
                self.error = error
                return
            yield self._taken, job
            self._taken += 1
            most -= 1
            if self.seems_ended:
                return

    def _again(self, job: Pending) -> Pending:
        """A request of its own: its time begins now, and a job may be given twice."""
        try:
            return job.again()
        except AttributeError as error:
            raise BadRequestError(
                f"job number {self._taken} is none: {job!r:.60}",
                hint="make jobs with the client's method job()",
            ) from error

    @property
    def ahead(self) -> int:
        """Most that are under way when the next message is sent."""
        return WINDOW if self.window == WINDOW else self.window // 2

    def grow(self) -> None:
        """The next message may be longer."""
        self.window = min(WINDOW, 2 * self.window)


class _GivenUp(Exception):
    """The batch was given up while it was connecting."""


class _Flow:
    """The inside of a batch: what waits, and the connection that it waits on."""

    def __init__(self, jobs: Iterable[Pending], ways: Ways) -> None:
        self._source = _Source(jobs)
        self._ways = ways
        self._waiting: dict[int, Pending] = {}
        # On this connection: asked for and not answered, asked for the bytes of inputs, and those whose
        # bytes cannot be sent.
        self._asked: set[int] = set()
        self._fed: set[int] = set()
        self._unsent: dict[int, BadRequestError] = {}
        self._heard = False
        self._pid = os.getpid()
        # Over the next three, which cancel() of another thread looks at.
        # Re-entered by a signal's handler that cancels: it runs wherever its thread is.
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._end_own: Callable[[], None] | None = None
        self.cancelled = False

    @property
    def total(self) -> int | None:
        """How many jobs there are, if that is known."""
        return self._source.total

    def cancel(self) -> None:
        """Give up; whoever waits for an answer here stops to wait."""
        self.cancelled = True
        if self._pid != os.getpid():
            # A child process would hang up on its parent's daemon, and end its parent's compiler.
            return
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()
            if self._end_own is not None:
                self._end_own()

    def results(self) -> Generator[tuple[int, Result]]:
        """(position, result) as they finish."""
        try:
            while not self.cancelled and (self._waiting or not self._source.ended):
                try:
                    yield from self._served()
                except _GivenUp:
                    return
                except (WireError, OSError) as error:
                    yield from self._lost(error)
            if self._source.error is not None and not self.cancelled:
                raise self._source.error
        finally:
            self._drop()

    # --- with a daemon

    def _served(self) -> Iterator[tuple[int, Result]]:
        """Ask a daemon for all there is. Raises :class:`~ptocache.errors.WireError` and :class:`OSError`
        when it is lost: what then waits has no result."""
        if not self._waiting and not self._fill(self._source.window):
            return
        connection = self._adopt(self._ways.take())
        self._asked, self._fed, self._unsent, self._heard = set(), set(), {}, False
        while True:
            yield from self._ask_more(connection)
            if not self._asked:
                break
            number, answer = self._hear(connection)
            if answer is None:
                continue
            self._heard = True
            self._asked.discard(number)
            result = self._judge(self._waiting.pop(number), number, answer)
            last = not self._waiting and self._source.seems_ended
            if last:
                # Before the last result: who takes only that one never comes back here.
                self._release()
            if self.cancelled:
                return
            yield number, result
            if last or self.cancelled:
                return
        self._release()

    def _ask_more(self, connection: Connection) -> Iterator[tuple[int, Result]]:
        """Send what there is room for; the results of what cannot be sent."""
        while len(self._asked) <= self._source.ahead:
            left = [number for number in self._waiting if number not in self._asked]
            numbers = left[:WINDOW]
            if not numbers and not self._source.seems_ended:
                numbers = self._fill(self._source.window)
            if not numbers:
                return
            self._source.grow()
            for number, error in self._send(connection, numbers):
                pending = self._waiting.pop(number)
                yield number, self._ways.answered(pending, _refusal(error))
                if self.cancelled:
                    return

    def _fill(self, most: int) -> list[int]:
        """Take further jobs; their positions."""
        taken = dict(self._source.take(most))
        self._waiting.update(taken)
        return list(taken)

    def _send(
        self, connection: Connection, numbers: list[int]
    ) -> list[tuple[int, BadRequestError]]:
        """Ask for these, in one message unless that gets too long; what no message can carry."""
        refused: list[tuple[int, BadRequestError]] = []
        messages: list[dict[str, object]] = []
        size = 0
        for number in numbers:
            pending = self._waiting[number]
            try:
                message = pending.message(number, connection, full=False)
                length = _length(message)
            except BadRequestError as error:
                refused.append((number, error))
                continue
            self._ways.asked(pending, connection)
            self._asked.add(number)
            if messages and size + length > _MESSAGE_BYTES:
                _post(connection, messages)
                messages, size = [], 0
            messages.append(message)
            size += length
        if messages:
            _post(connection, messages)
        return refused

    def _hear(self, connection: Connection) -> tuple[int, Answer | None]:
        """The next answer; ``None`` if it was a request for input bytes, which is then fulfilled."""
        number, message, fds = connection.receive_for(self._asked)
        pending = self._waiting[number]
        if message["type"] == "need":
            self._feed(connection, number, pending)
            return number, None
        return number, pending.answer(message, fds)

    def _feed(self, connection: Connection, number: int, pending: Pending) -> None:
        if number in self._fed:
            raise FrameError("a second question for the bytes of the same inputs")
        self._fed.add(number)
        try:
            connection.send(pending.message(number, connection, full=True))
        except BadRequestError as error:
            # They are longer than a message may be. The daemon keeps room for them until it is told.
            self._unsent[number] = error
            connection.send({"type": "compile", "id": number, "request": b""})

    def _judge(self, pending: Pending, number: int, answer: Answer) -> Result:
        if number in self._unsent:
            return self._ways.answered(pending, _refusal(self._unsent[number]))
        if answer.reason in DAEMON_TROUBLE and not self._ways.required and not self.cancelled:
            self._ways.step_aside(DaemonUnavailableError(f"it answered: {answer.detail}"))
            return self._by_ourselves(pending)
        return self._ways.answered(pending, answer)

    # --- without one

    def _lost(self, error: Exception) -> Iterator[tuple[int, Result]]:
        """A daemon was lost, or there is none: look for another, or compile here for a while."""
        connection = self._connection
        again = connection is not None and (connection.was_idle or self._heard)
        self._drop()
        if self.cancelled:
            return
        if again:
            self._ways.forget()
            return
        self._ways.step_aside(error)
        until_s = time.monotonic() + _ASIDE_S
        while (self._waiting or self._fill(1)) and not self.cancelled:
            number = next(iter(self._waiting))
            pending = self._waiting.pop(number)
            result = self._by_ourselves(pending)
            twins = [at for at, other in self._waiting.items() if _equal(other, pending)]
            if self.cancelled:
                return
            yield number, result
            for twin in twins:
                if self.cancelled:
                    return
                del self._waiting[twin]
                yield twin, result
            if time.monotonic() > until_s:
                return

    def _by_ourselves(self, pending: Pending) -> Result:
        from .compiler import Cancel

        cancel = Cancel()
        with self._lock:
            self._end_own = cancel.cancel
            if self.cancelled:
                cancel.cancel()
        try:
            return self._ways.alone(pending, cancel)
        finally:
            with self._lock:
                self._end_own = None

    # --- the connection

    def _adopt(self, connection: Connection) -> Connection:
        with self._lock:
            self._connection = connection
            if not self.cancelled:
                return connection
        raise _GivenUp

    def _release(self) -> None:
        """Nothing is under way on it: the client's next request may have it."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.cancelled:
            connection.close()
        else:
            self._ways.give(connection)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _post(connection: Connection, messages: list[dict[str, object]]) -> None:
    if len(messages) == 1:
        connection.send(messages[0])
    else:
        connection.send({"type": "batch", "id": 0, "requests": messages})


def _length(message: dict[str, object]) -> int:
    """Bytes of a request; raises :class:`~ptocache.errors.BadRequestError` for one that no frame holds."""
    request = message["request"]
    length = len(request) if isinstance(request, bytes) else 0
    if length > wire.MAX_FRAME_BYTES - _ENVELOPE_BYTES:
        raise BadRequestError(
            f"a request of {length} bytes is longer than the limit of {wire.MAX_FRAME_BYTES}",
            hint="give fewer or shorter options",
        )
    return length


def _refusal(error: PtocacheError) -> Answer:
    return Answer(Outcome.FAILURE, "", Reason.BAD_REQUEST, error.message, error=error.to_wire())


def _equal(one: Pending, other: Pending) -> bool:
    """True if both would be compiled alike."""
    return one.request == other.request and list(one.env.items()) == list(other.env.items())
