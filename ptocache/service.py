"""The story of a request: identify → key → find → join or compile → validate → publish → answer.

It runs on the daemon's event loop. What blocks is handed to threads: ``_io`` looks things up on disk
and asks toolchains who they are, ``_jobs`` runs compilers. Nothing here knows of sockets or frames.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import action as action_module
from . import answers, log
from .bases import everything
from .build import Built, Failed, artifact_of, build_anywhere
from .compiler import Cancel, Limits
from .contents import Conditions
from .entry import Entry
from .errors import (
    CancelledError,
    OutputRejectedError,
    PtocacheError,
)
from .explain import Asked, Explanation, Memory, Side, explain
from .inflight import InFlight
from .model import Answer, select
from .outcome import SPARED, Cache, Event, Outcome, Reason
from .resolver import Resolver, is_small, remember
from .slots import Slots, Turn
from .store.history import earlier_entries
from .wire import effective_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import Executor

    from .action import Action
    from .contents import Contents
    from .identity import Identities, Standing
    from .model import Identity, Job, Prepared
    from .resolver import Resolved
    from .store.store import Loaded, Store
    from .tally import Tally
    from .toolchain import Registry, Toolchain
    from .wire import Request

_log = logging.getLogger("ptocache.service")
_NEGATIVE_LIMIT = 1024


class NeedInputs(NamedTuple):
    """Not an answer: the same request again, please, with the bytes of these inputs."""

    names: tuple[str, ...]


class _Question(NamedTuple):
    """A request that has been understood: who compiles it, and under which key."""

    request: Request
    toolchain: Toolchain
    identity: Identity
    prepared: Prepared
    action: Action


class Repeat(NamedTuple):
    """What a hit in memory rested on, to answer the very same request once more."""

    question: _Question
    standing: Standing
    entry_id: int
    """Not the entry itself: how long that stays in memory is for the store to decide."""


class _Result(NamedTuple):
    """What a flight brought, for everybody who waited for it."""

    answer: Answer
    conditions: Conditions | None
    """What the result depends on; a waiter for whom it does not hold asks again."""
    lasting: bool
    """False if something moved while it was made: then it answers only who asked first."""


class _Remembered(NamedTuple):
    """A failure that would repeat itself."""

    answer: Answer
    conditions: Conditions
    until_s: float


class _Course:
    """How long a compile waited and took, for the log."""

    __slots__ = ("_began_s", "compile_ms", "queued_ms")

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.queued_ms = 0
        self.compile_ms = 0

    def say(self, question: _Question, answer: Answer) -> None:
        """The one line of a compile; ``exit`` is the tool's own code, absent if it never came to one."""
        job = question.prepared.job
        said = answer.outcome is not Outcome.FAILURE or answer.reason is Reason.COMPILE_FAILED
        log.event(
            _log, logging.INFO, "compile", key=question.action.key[:12], toolchain=job.toolchain,
            kernel=job.kernel or None, outcome=answer.outcome.label,
            reason=answer.reason.label if answer.reason else None,
            exit=answer.exit_code if said else None, queued_ms=self.queued_ms,
            compile_ms=self.compile_ms, total_ms=_ms_since(self._began_s),
        )  # fmt: skip


_Flight = tuple[str, str, tuple[str, ...]]
"""(action key, source directory, bases): discovered inputs may lie in the latter."""
_Ticket = asyncio.Future[_Result]


class Service:
    """Answers compile requests. All methods but :meth:`shut_down` belong to the loop's thread."""

    def __init__(
        self,
        registry: Registry,
        identities: Identities,
        contents: Contents,
        store: Store,
        tally: Tally,
        limits: Limits,
        *,
        jobs: int,
        jobs_executor: Executor,
        io_executor: Executor,
        salt: str = "",
        negative_ttl_s: float = 300.0,
        mode: str = "use",
        on_published: Callable[[], None] = lambda: None,
    ) -> None:
        self._resolver = Resolver(registry, identities)
        self._contents = contents
        self._store = store
        self._tally = tally
        self._limits = limits
        self._slots = Slots(jobs)
        self._jobs = jobs_executor
        self._io = io_executor
        self._salt = salt
        self._negative_ttl_s = negative_ttl_s
        self._mode = mode
        self._on_published = on_published
        self._flights: InFlight[_Flight, _Ticket] = InFlight()
        self._tasks: dict[_Flight, asyncio.Task[None]] = {}
        self._turns: dict[_Flight, Turn] = {}
        self._keys: dict[tuple[Job, str, str], tuple[Prepared, Action]] = {}
        self._negative: dict[_Flight, _Remembered] = {}
        self._running: set[Cancel] = set()
        self._ending = False
        self.memory = Memory()
        """The latest requests that were no hits, for ``explain``."""

    # --- the way of a hit

    def quick(self, request: Request) -> tuple[Answer, Repeat | None] | None:
        """The answer, if it is in memory and nothing that it depends on has moved, and how to give it once
        more. Only stamps are looked at: no subprocess, no read, no lock that a miss holds."""
        if self._mode_of(request) not in ("use", "read-only"):
            return None
        try:
            known = self._resolver.confirmed(request.job)
            if known is None:
                return None
            question = self._understood(request, known)
            if question.identity.uncertain or question.prepared.bypass:
                return None
            loaded = self._store.find_hot(
                question.action.key, self._contents, question.prepared.job.source_dir,
                question.prepared.bases,
            )  # fmt: skip
        except PtocacheError:
            return None
        if loaded is None:
            return None
        repeat = None
        if known.standing is not None and self._repeats(request, question.identity):
            repeat = Repeat(question, known.standing, loaded.id)
        return self._hit(question, loaded, Outcome.MEMORY_HIT), repeat

    def again(self, repeat: Repeat) -> Answer | None:
        """The answer of :meth:`quick` to a request that had one before, while all that it rested on stands:
        looked at no less, but not looked up."""
        question, standing, entry_id = repeat
        if not self._resolver.stands(standing):
            return None
        loaded = self._store.find_again(
            entry_id, question.action.key, self._contents, question.prepared.job.source_dir,
            question.prepared.bases,
        )  # fmt: skip
        return self._hit(question, loaded, Outcome.MEMORY_HIT) if loaded is not None else None

    async def stored(self, key: str, source_dir: str, bases: tuple[str, ...] = ()) -> Answer | None:
        """The entry of a key, if its conditions hold; no request, so nothing is counted."""
        known = action_module.ActionKey(key)
        outcome = Outcome.MEMORY_HIT
        loaded = self._store.find_hot(known, self._contents, source_dir, bases)
        if loaded is None:
            outcome = Outcome.DISK_HIT
            loaded = await self._in_io(
                self._store.find, known, self._contents, source_dir, Cache.BINARY, bases
            )
        if loaded is None:
            return None
        identity = str(loaded.entry.action.get("identity", ""))
        return answers.carry(loaded, key, identity, outcome)

    async def peek(self, request: Request) -> Answer:
        """How a request would end now, as far as that is known without a compile: as a hit, a bypass or a
        failure, else as a miss. Nothing is counted, and nothing compiled."""
        try:
            question = await self._question(request)
        except PtocacheError as error:
            return answers.failure(error, "")
        key, prepared, identity = question.action.key, question.prepared, question.identity
        if identity.uncertain:
            return Answer(
                Outcome.BYPASS, key, Reason.UNIDENTIFIED_TOOLCHAIN, identity.uncertain
            )  # fmt: skip
        if prepared.bypass:
            return Answer(Outcome.BYPASS, key, prepared.bypass, prepared.detail)
        found = await self.stored(key, prepared.job.source_dir, prepared.bases)
        return found or Answer(Outcome.MISS, key)

    # --- the way of everything else

    async def answer(
        self, request: Request, client: Hashable = None, priority: int = 0
    ) -> Answer | NeedInputs:
        """The answer, whatever it takes; never raises for what is wrong with a request. ``client`` is who
        asks: compiles are begun in turn among clients, those of lower ``priority`` numbers first."""
        try:
            found = await self._answer(request, Turn(client, priority))
        except asyncio.CancelledError:
            gone = Answer(Outcome.FAILURE, "", Reason.CANCELLED, "the client has gone")
            self._note(request, gone)
            raise
        if isinstance(found, Answer):
            self._note(request, found)
        return found

    async def _answer(self, request: Request, turn: Turn) -> Answer | NeedInputs:
        try:
            question = await self._question(request)
            if self._mode_of(request) == "bypass":
                return await self._alone(question, turn, Reason.ASKED, "asked for")
            if question.identity.uncertain:
                return await self._alone(
                    question, turn, Reason.UNIDENTIFIED_TOOLCHAIN, question.identity.uncertain
                )
            if question.prepared.bypass:
                return await self._alone(
                    question, turn, question.prepared.bypass, question.prepared.detail
                )
            return await self._cached(question, turn)
        except PtocacheError as error:
            # What a question to a tool or a step says once it was ended is not the tool's word.
            return self._refused(CancelledError("the daemon stops") if self._ending else error)
        except asyncio.CancelledError:
            self._tally.outcome(Cache.BINARY, Outcome.FAILURE, Reason.CANCELLED)
            raise
        except Exception as error:
            _log.exception("a request ended in a fault of ptocache or of a plugin")
            return self._refused(PtocacheError(f"internal error: {error!r}"), Reason.INTERNAL)

    async def _cached(self, question: _Question, turn: Turn) -> Answer | NeedInputs:
        prepared = question.prepared
        flight = (question.action.key, prepared.job.source_dir, prepared.bases)
        while True:
            found = await self._find(question)
            if found is not None:
                return found
            missing = self._missing(question)
            if missing and self._flights.leader(flight) is None:
                return NeedInputs(missing)
            ticket: _Ticket = asyncio.get_running_loop().create_future()
            leads = self._flights.enter(flight, ticket)
            if leads:
                # Asked anew after a flight that was no answer to it: a turn is for one use.
                self._turns[flight] = turn = Turn(turn.client, turn.priority)
                self._tasks[flight] = asyncio.create_task(self._fly(flight, question, turn))
            elif flight in self._turns:
                self._slots.hurry(self._turns[flight], turn.priority)
            result = await self._wait(flight, ticket)
            if leads:
                return self._settle(result.answer)
            if result.lasting and self._holds(result, flight):
                return self._settle(answers.joined(result.answer))
            # What the leader read has changed since: its result is not the answer to this request.

    async def _wait(self, flight: _Flight, ticket: _Ticket) -> _Result:
        """Wait for a flight; who gives up leaves it, and the last to leave ends it."""
        try:
            return await ticket
        except asyncio.CancelledError:
            self._flights.leave(flight, ticket)
            if not self._flights.members(flight) and flight in self._tasks:
                self._tasks.pop(flight).cancel()
            raise

    def _holds(self, result: _Result, flight: _Flight) -> bool:
        _, source_dir, bases = flight
        conditions = result.conditions
        return conditions is None or conditions.hold(self._contents, source_dir, bases)

    async def _fly(self, flight: _Flight, question: _Question, turn: Turn) -> None:
        """Compile for everybody who waits, and tell them however it ends."""
        course = _Course()
        try:
            result = await self._compile(flight, question, turn, course)
        except PtocacheError as error:
            result = _Result(answers.failure(error, flight[0]), None, True)
        except asyncio.CancelledError:
            gone = CancelledError("nobody waits for this compile any more")
            result = _Result(answers.failure(gone, flight[0]), None, False)
        except Exception as error:
            _log.exception("a compile ended in a fault of ptocache or of a plugin")
            answer = answers.failure(PtocacheError(f"internal error: {error!r}"), flight[0])
            result = _Result(answer._replace(reason=Reason.INTERNAL), None, True)
        course.say(question, result.answer)
        if self._turns.get(flight) is turn:
            del self._turns[flight]
        if self._tasks.get(flight) is asyncio.current_task():
            del self._tasks[flight]
            for ticket in self._flights.land(flight):
                if not ticket.done():
                    ticket.set_result(result)

    async def _find(self, question: _Question) -> Answer | None:
        """A hit in memory or on disk, or a failure that would only repeat itself."""
        if self._mode_of(question.request) == "refresh":
            return None
        key, source_dir = question.action.key, question.prepared.job.source_dir
        bases = question.prepared.bases
        flight = (key, source_dir, bases)
        hot = self._store.find_hot(key, self._contents, source_dir, bases)
        if hot is not None:
            return self._hit(question, hot, Outcome.MEMORY_HIT)
        remembered = self._negative.get(flight)
        if remembered is not None:
            if remembered.until_s > time.monotonic() and remembered.conditions.hold(
                self._contents, source_dir, bases
            ):
                return self._settle(remembered.answer._replace(reason=Reason.REMEMBERED_FAILURE))
            del self._negative[flight]
        loaded = await self._in_io(
            self._store.find, key, self._contents, source_dir, Cache.BINARY, bases
        )
        if loaded is not None:
            return self._hit(question, loaded, Outcome.DISK_HIT)
        # Published while the disk was asked: who would lead a flight now would compile it again.
        hot = self._store.find_hot(key, self._contents, source_dir, bases)
        return self._hit(question, hot, Outcome.MEMORY_HIT) if hot is not None else None

    async def _compile(
        self, flight: _Flight, question: _Question, turn: Turn, course: _Course
    ) -> _Result:
        """Compile, validate and publish."""
        generation = await self._in_io(self._store.generation)
        built = await self._build(question, turn, course)
        if isinstance(built, Failed):
            answer = self._tool_failure(question, built)
            conditions = Conditions(built.dependencies)
            # A toolchain that was exchanged meanwhile says nothing of the one that was asked.
            lasting = built.repeatable and await self._in_io(self._unmoved, question)
            if lasting:
                self._remember(flight, answer, conditions)
            return _Result(answer, conditions, lasting)
        bypass, detail = built.bypass, built.detail
        if not bypass and not await self._in_io(self._unmoved, question):
            bypass, detail = Reason.TOOLCHAIN_CHANGED, "the toolchain changed meanwhile"
        if bypass:
            return _Result(self._unstored(question, built, bypass, detail), None, False)
        conditions = Conditions(built.dependencies)
        if self._mode_of(question.request) == "read-only":
            answer = self._unstored(question, built, Reason.READ_ONLY, "asked for")
            return _Result(answer, conditions, True)
        why = await self._in_io(
            self._why, question, built, self.memory.was_stored(question.action.key)
        )
        published = await self._in_io(
            self._store.publish, question.action, _entry(question, built), built.checked, generation
        )
        if published.loaded is None:
            answer = self._unstored(question, built, published.reason, published.detail)
            return _Result(answer, conditions, published.reason is not Reason.INVALIDATED)
        self._negative.pop(flight, None)
        self._on_published()
        identity = question.identity.digest
        answer = answers.carry(published.loaded, question.action.key, identity, Outcome.MISS)
        why = self.memory.cause(question.action.key, why)
        self.memory.explained(question.action.key, why)
        answer = answer._replace(detail=why.words)
        return _Result(answer, conditions, True)

    async def _build(self, question: _Question, turn: Turn, course: _Course) -> Built | Failed:
        if self._ending:
            raise CancelledError("the daemon stops")
        cancel = Cancel()
        self._running.add(cancel)
        asked_s = started_s = time.monotonic()
        try:
            async with self._slots.use(turn):
                started_s = time.monotonic()
                return await asyncio.get_running_loop().run_in_executor(
                    self._jobs, build_anywhere, question.toolchain, question.prepared,
                    question.identity, question.request.data, self._contents,
                    self._store.paths.tmp, self._store.scratch_failed, self._limits, cancel,
                )  # fmt: skip
        except OutputRejectedError:
            self._tally.event(Cache.BINARY, Event.REJECTED)
            raise
        except asyncio.CancelledError:
            cancel.cancel()
            raise
        finally:
            self._running.discard(cancel)
            course.queued_ms = int((started_s - asked_s) * 1000)
            course.compile_ms = _ms_since(started_s)

    async def _alone(
        self, question: _Question, turn: Turn, reason: Reason, detail: str
    ) -> Answer | NeedInputs:
        """Compile for this request only, and store nothing."""
        missing = self._missing(question)
        if missing:
            return NeedInputs(missing)
        course = _Course()
        try:
            built = await self._build(question, turn, course)
        except (PtocacheError, asyncio.CancelledError) as error:
            gone = CancelledError("the client has gone")
            what = error if isinstance(error, PtocacheError) else gone
            course.say(question, answers.failure(what, question.action.key))
            raise
        if isinstance(built, Failed):
            answer = self._tool_failure(question, built)
        else:
            answer = self._unstored(question, built, reason, detail)
        course.say(question, answer)
        return self._settle(answer)

    # --- understanding

    async def _question(self, request: Request) -> _Question:
        known = self._resolver.confirmed(request.job)
        if known is None:
            known = await self._in_io(self._resolver.resolve, request.job)
        return self._understood(request, known)

    def _understood(self, request: Request, known: Resolved) -> _Question:
        prepared, action = self._key(request, known.toolchain, known.identity)
        return _Question(request, known.toolchain, known.identity, prepared, action)

    def _unmoved(self, question: _Question) -> bool:
        return self._resolver.unmoved(question.request.job, question.identity)

    def _key(
        self, request: Request, toolchain: Toolchain, identity: Identity
    ) -> tuple[Prepared, Action]:
        """Normal form and key; remembered where the file system has no say in them."""
        asked = self._asked(request, identity)
        known = self._keys.get(asked)
        if known is not None:
            return known
        job = request.job._replace(env=select(toolchain.ENV, dict(request.job.env)))
        prepared = toolchain.prepare(job, identity.installation)
        action = action_module.binary_action(
            prepared,
            plugin_version=toolchain.version,
            identity=identity.digest,
            salt=(self._salt, request.salt),
        )
        if not prepared.looked and is_small(request.job):
            remember(self._keys, asked, (prepared, action))
        return prepared, action

    @staticmethod
    def _asked(request: Request, identity: Identity) -> tuple[Job, str, str]:
        return request.job, request.salt, identity.digest

    def _repeats(self, request: Request, identity: Identity) -> bool:
        """True if the same request has the same normal form and key for as long as this identity stands."""
        return not request.data and self._asked(request, identity) in self._keys

    def _mode_of(self, request: Request) -> str:
        """The request's mode, unless the daemon's own is stricter."""
        return effective_mode(self._mode, request.mode)

    @staticmethod
    def _missing(question: _Question) -> tuple[str, ...]:
        held = question.request.data
        return tuple(item.name for item in question.prepared.job.inputs if item.name not in held)

    def _why(self, question: _Question, built: Built, stored_before: bool) -> Explanation:
        """Why this was a miss: what differs from the nearest entry that is there."""
        job, action = question.prepared.job, question.action
        new = Side(
            action.document,
            built.dependencies,
            question.identity.components,
            question.identity.installation.banner,
            job.source_dir,
            everything(question.prepared.bases),
        )
        return explain(
            new,
            earlier_entries(self._store, action.key, job.toolchain, job.kernel),
            job.kernel,
            refresh=self._mode_of(question.request) == "refresh",
            stored_before=stored_before,
        )

    def _note(self, request: Request | None, answer: Answer) -> None:
        """Remember a request that was no hit."""
        if answer.outcome.is_hit:
            return
        job = request.job if request is not None else None
        self.memory.note(Asked.of(Cache.BINARY, job, answer, time.time()))

    # --- answering

    def _settle(self, answer: Answer) -> Answer:
        """Count how a request ended: every answer passes here exactly once."""
        spared_ms = answer.compile_ms if answer.outcome in SPARED else 0
        self._tally.outcome(Cache.BINARY, answer.outcome, answer.reason, spared_ms)
        return answer

    def _hit(self, question: _Question, loaded: Loaded, outcome: Outcome) -> Answer:
        key, identity = question.action.key, question.identity.digest
        return self._settle(answers.hit(loaded, key, identity, outcome))

    def _unstored(self, question: _Question, built: Built, reason: Reason, detail: str) -> Answer:
        return Answer(
            outcome=Outcome.BYPASS,
            key=question.action.key,
            reason=reason,
            detail=detail,
            artifacts=tuple(artifact_of(item) for item in built.checked.outputs),
            log=built.ran.log,
            compile_ms=built.ran.compile_ms,
            identity=question.identity.digest,
        )

    def _tool_failure(self, question: _Question, failed: Failed) -> Answer:
        return answers.failure(failed.error, question.action.key)._replace(
            log=failed.error.log,
            exit_code=failed.error.exit_code,
            identity=question.identity.digest,
        )

    def refuse(self, error: PtocacheError) -> Answer:
        """The counted answer to a request that cannot even be read, or not any more."""
        answer = self._refused(error)
        self._note(None, answer)
        return answer

    def _refused(self, error: PtocacheError, reason: Reason | None = None) -> Answer:
        answer = answers.failure(error, "")
        if reason is not None:
            answer = answer._replace(reason=reason)
        return self._settle(answer)

    def _remember(self, flight: _Flight, answer: Answer, conditions: Conditions) -> None:
        if self._negative_ttl_s <= 0:
            return
        while len(self._negative) >= _NEGATIVE_LIMIT:
            self._negative.pop(next(iter(self._negative)))
        until_s = time.monotonic() + self._negative_ttl_s
        self._negative[flight] = _Remembered(answer, conditions, until_s)

    async def _in_io(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._io, function, *args)

    # --- life

    @property
    def compiling(self) -> int:
        """Compiles running or waiting for a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that lead a compile or wait for one."""
        return self._flights.waiting()

    def forget_failures(self) -> None:
        """Drop remembered failures (an ``invalidate``)."""
        self._negative.clear()

    def shut_down(self) -> None:
        """End what is left: every compile is cancelled, its waiters get an answer, none begins."""
        self._ending = True
        for cancel in list(self._running):
            cancel.cancel()


def _ms_since(began_s: float) -> int:
    return int((time.monotonic() - began_s) * 1000)


def _entry(question: _Question, built: Built) -> Entry:
    job = question.prepared.job
    return Entry(
        action=question.action.document,
        dependencies=built.dependencies,
        outputs=(),
        log=built.ran.log,
        source_dir=job.source_dir if built.bound_to_source_dir else "",
        kernel=job.kernel,
        created_s=int(time.time()),
        compile_ms=built.ran.compile_ms,
        provenance=built.provenance,
        bound=built.bound,
    )
