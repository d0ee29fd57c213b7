"""The story of a request for a finished kernel: identify → key → find → lease or wait → check → publish.

Only a framework's own process can build its kernels. So the first who asks for one that is not there
gets a *lease*: it builds, sends the files and ends the lease, and whoever asks meanwhile waits. A lease
goes on to the next in the queue when its holder gives up, disconnects, or, while somebody waits, has
died, was stopped or took too long. It runs on the daemon's event loop; nothing here knows of sockets.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import __version__, action, answers, log
from .build import artifact_of, reason_of
from .bundle import Bundle, Room
from .entry import Entry
from .errors import (
    BadRequestError,
    CancelledError,
    CompileFailedError,
    FrameError,
    OutputRejectedError,
    PtocacheError,
)
from .explain import Asked, Explanation, Side, explain
from .inflight import InFlight
from .model import Answer, Log, Provenance, select
from .outcome import SPARED, Cache, Event, Outcome, Reason
from .peer import Vigil
from .resolver import Resolver, is_small, remember
from .store.history import earlier_entries
from .toolchain import check_bundle
from .wire import effective_mode, pack_answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from .action import Action, ActionKey
    from .contents import Contents
    from .explain import Memory
    from .identity import Identities
    from .model import Identity, Job, Output
    from .resolver import Resolved
    from .store.store import Store
    from .tally import Tally
    from .toolchain import CheckedOutputs, Registry
    from .wire import KernelRequest, Piece

_log = logging.getLogger("ptocache.kernels")
LOOK_S = 1.0
"""Between two looks at the holders for whom somebody waits."""
ROOM_BYTES = 1 << 30
"""Most bytes that the bundles on their way may take in memory, all together."""
MAX_LEASES = 64
"""Most leases of one connection."""


class Holder(Protocol):
    """A connection, as far as a lease is concerned."""

    pid: int
    """The process at its other end; 0 if that cannot be seen from here."""


class Granted(NamedTuple):
    """Not an answer: a lease to build."""

    lease: int
    """Its number."""
    key: str
    wanted: bool
    """False if nothing will be stored: then the files need not come."""
    why: str
    """Why this was no hit, or why nothing will be stored."""


class _Question(NamedTuple):
    """A request that has been understood."""

    request: KernelRequest
    identity: Identity
    action: Action


class _Word(enum.Enum):
    """What a waiter is told when there is no answer for it."""

    LEAD = 1
    ASK_AGAIN = 2


class _Alone(NamedTuple):
    """What waiters are told when no bundle can be shared: each builds for itself, all at once."""

    reason: Reason
    detail: str


_Told = Answer | _Word | _Alone


class _Seat:
    """A request that takes part in a flight."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told: asyncio.Future[_Told] = asyncio.get_running_loop().create_future()

    def tell(self, word: _Told) -> None:
        if not self.told.done():
            self.told.set_result(word)


class _Lease:
    """A lease under way. One without a seat stores nothing, for the reason that it names."""

    def __init__(self, holder: Holder, request: KernelRequest, bundle: Bundle, key: str) -> None:
        self.holder = holder
        self.request = request
        self.bundle = bundle
        self.key = key
        self.seat: _Seat | None = None
        self.question: _Question | None = None
        self.generation = 0
        self.reason = Reason.NONE
        self.detail = ""
        self.why = Explanation("")
        self.granted_s = time.monotonic()
        self.vigil: Vigil | None = None

    def void(self, reason: Reason, detail: str) -> None:
        """Nothing of it will be stored."""
        self.seat = None
        self.reason, self.detail = reason, detail
        self.bundle.drop(detail or reason.label)


class _Verdict(NamedTuple):
    """How a lease ended: for its holder, and for those who wait."""

    answer: Answer
    told: _Told


class Kernels:
    """Answers requests for kernels. All methods belong to the loop's thread."""

    def __init__(
        self,
        registry: Registry,
        identities: Identities,
        contents: Contents,
        store: Store,
        tally: Tally,
        memory: Memory,
        *,
        io_executor: Executor,
        salt: str = "",
        mode: str = "use",
        lease_timeout_s: float = 900.0,
        look_s: float = LOOK_S,
        room: int = ROOM_BYTES,
        on_published: Callable[[], None] = lambda: None,
    ) -> None:
        self._resolver = Resolver(registry, identities)
        self._contents = contents
        self._store = store
        self._tally = tally
        self._memory = memory
        self._io = io_executor
        self._salt = salt
        self._mode = mode
        self._lease_timeout_s = lease_timeout_s
        self._look_s = look_s
        self._room = Room(room)
        self._on_published = on_published
        self._flights: InFlight[ActionKey, _Seat] = InFlight()
        self._leases: dict[int, _Lease] = {}
        self._held: dict[Holder, set[int]] = {}
        self._last_number = 0
        self._keys: dict[tuple[KernelRequest, str], Action] = {}
        self._looking: asyncio.Task[None] | None = None
        self._finishing: set[asyncio.Task[Answer]] = set()
        self._ending = False

    # --- asking

    def quick(self, request: KernelRequest) -> Answer | None:
        """The answer, if it is in memory and its toolchain has not moved."""
        if effective_mode(self._mode, request.mode) not in ("use", "read-only"):
            return None
        try:
            known = self._resolver.confirmed(_asking(request))
            if known is None or known.identity.uncertain:
                return None
            question = self._understood(request, known)
        except Exception:
            # Said by the slow way, which gives a lease instead.
            return None
        return self._hot(question)

    # --- the slow way

    async def ask(self, request: KernelRequest, holder: Holder) -> Answer | Granted:
        """The kernel, or a lease to build it; waits while somebody else builds it. Whatever is wrong
        with the toolchain or the store gives a lease that stores nothing, so that the build goes on."""
        if self._ending:
            return self.refuse(CancelledError("the daemon stops"))
        if len(self._held.get(holder, ())) >= MAX_LEASES:
            return self.refuse(BadRequestError(f"more than {MAX_LEASES} leases at once"))
        try:
            return await self._ask(request, holder)
        except PtocacheError as error:
            return self._grant_void(request, holder, "", reason_of(error), error.message)
        except asyncio.CancelledError:
            self._settle(_cancelled(""), request)
            raise
        except Exception as error:
            _log.exception("a request ended in a fault of ptocache or of a plugin")
            detail = f"internal error: {error!r}"
            return self._grant_void(request, holder, "", Reason.INTERNAL, detail)

    async def _ask(self, request: KernelRequest, holder: Holder) -> Answer | Granted:
        mode = effective_mode(self._mode, request.mode)
        while True:
            question = await self._question(request)
            key = question.action.key
            if mode == "bypass":
                return self._grant_void(request, holder, key, Reason.ASKED, "asked for")
            if question.identity.uncertain:
                why = Reason.UNIDENTIFIED_TOOLCHAIN
                return self._grant_void(request, holder, key, why, question.identity.uncertain)
            found = await self._find(question) if mode != "refresh" else None
            if found is not None:
                return found
            seat = _Seat()
            told: _Told = _Word.LEAD
            if not self._flights.enter(key, seat):
                told = await self._wait(key, seat)
            if isinstance(told, Answer):
                return self._settle(told, request)
            if isinstance(told, _Alone):
                return self._grant_void(request, holder, key, told.reason, told.detail)
            granted = await self._lead(request, holder, key, seat) if told is _Word.LEAD else None
            if granted is not None:
                return granted

    async def _wait(self, key: ActionKey, seat: _Seat) -> _Told:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await seat.told
        except asyncio.CancelledError:
            self._leave(key, seat)
            raise

    async def _lead(
        self, request: KernelRequest, holder: Holder, key: ActionKey, seat: _Seat
    ) -> Granted | None:
        """Grant the lease of a flight; ``None`` if its toolchain moved while this request waited."""
        try:
            question = await self._question(request)
            if question.action.key != key or question.identity.uncertain:
                self._leave(key, seat)
                return None
            generation = await self._in_io(self._store.generation)
            stored_before = self._memory.was_stored(key)
            why = await self._in_io(self._why, question, stored_before)
            why = self._memory.cause(key, why)
        except BaseException:
            self._leave(key, seat)
            raise
        lease = _Lease(holder, request, Bundle(self._room), key)
        lease.seat, lease.question, lease.generation = seat, question, generation
        lease.why, lease.vigil = why, Vigil(holder.pid)
        return Granted(self._register(lease), key, True, why.words)

    def _grant_void(
        self, request: KernelRequest, holder: Holder, key: str, reason: Reason, detail: str
    ) -> Granted:
        lease = _Lease(holder, request, Bundle(self._room), key)
        lease.void(reason, detail)
        return Granted(self._register(lease), key, False, detail)

    def _register(self, lease: _Lease) -> int:
        self._last_number += 1
        self._leases[self._last_number] = lease
        self._held.setdefault(lease.holder, set()).add(self._last_number)
        return self._last_number

    # --- the end of a lease

    def put(self, holder: Holder, piece: Piece) -> None:
        """Take in a piece of a file.

        Raises :class:`~ptocache.errors.WireError` for a lease that the holder does not have, and
        :class:`~ptocache.errors.BadRequestError` for a piece that cannot follow.
        """
        self._lease(holder, piece.lease).bundle.add(piece)

    def finish(self, holder: Holder, number: int, compile_ms: int) -> asyncio.Task[Answer]:
        """The bundle is complete: judge and publish it, whether or not its holder stays to hear.

        Raises :class:`~ptocache.errors.WireError` for a lease that the holder does not have.
        """
        task = asyncio.get_running_loop().create_task(
            self._finish(self._take(holder, number), compile_ms)
        )
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    def abandon(self, holder: Holder, number: int, error: str) -> Answer:
        """The holder could not build it: the next who waits has the lease.

        Raises :class:`~ptocache.errors.WireError` for a lease that the holder does not have.
        """
        lease = self._take(holder, number)
        self._pass_on(lease)
        failed = CompileFailedError(error or "the build was abandoned")
        return self._settle(answers.failure(failed, lease.key), lease.request)

    def gone(self, holder: Holder) -> None:
        """A connection has closed: what it held goes on to the next."""
        for number in tuple(self._held.get(holder, ())):
            lease = self._take(holder, number)
            self._pass_on(lease)
            self._settle(_cancelled(lease.key), lease.request)

    def _lease(self, holder: Holder, number: int) -> _Lease:
        if number not in self._held.get(holder, ()):
            raise FrameError("a lease that this peer does not hold")
        return self._leases[number]

    def _take(self, holder: Holder, number: int) -> _Lease:
        lease = self._lease(holder, number)
        del self._leases[number]
        self._held[holder].discard(number)
        if not self._held[holder]:
            del self._held[holder]
        return lease

    def _pass_on(self, lease: _Lease) -> None:
        lease.bundle.drop("the lease ended")
        if lease.seat is not None:
            assert lease.question is not None
            self._leave(lease.question.action.key, lease.seat)

    def _leave(self, key: ActionKey, seat: _Seat) -> None:
        following = self._flights.leave(key, seat)
        if following is not None:
            following.tell(_Word.LEAD)

    async def _finish(self, lease: _Lease, compile_ms: int) -> Answer:
        try:
            verdict = await self._judge(lease, compile_ms)
        except (OutputRejectedError, BadRequestError) as error:
            if isinstance(error, OutputRejectedError):
                self._tally.event(Cache.KERNEL, Event.REJECTED)
            verdict = _Verdict(answers.failure(error, lease.key), _Word.LEAD)
        except Exception as error:
            _log.exception("a bundle could not be taken in")
            answer = _unstored(lease, Reason.INTERNAL, f"internal error: {error!r}", compile_ms)
            verdict = _Verdict(answer, _Word.LEAD)
        answer = verdict.answer
        job = lease.request.job
        log.event(
            _log, logging.INFO, "kernel", key=lease.key[:12], toolchain=job.toolchain,
            kernel=job.kernel or None, outcome=answer.outcome.label,
            reason=answer.reason.label if answer.reason else None, compile_ms=compile_ms,
        )  # fmt: skip
        self._tell(lease, verdict.told)
        lease.bundle.drop("the lease ended")
        return self._settle(answer, lease.request)

    def _tell(self, lease: _Lease, told: _Told) -> None:
        if lease.seat is None or lease.question is None:
            return
        key = lease.question.action.key
        if told is _Word.LEAD:
            self._leave(key, lease.seat)
            return
        for seat in self._flights.land(key):
            seat.tell(told)

    async def _judge(self, lease: _Lease, compile_ms: int) -> _Verdict:
        question = lease.question
        if lease.seat is None or question is None:
            answer = _unstored(lease, lease.reason, lease.detail, compile_ms)
            return _Verdict(answer, _Word.LEAD)
        if lease.bundle.dropped:
            alone = _Alone(Reason.TOO_LARGE, lease.bundle.dropped)
            return _Verdict(_unstored(lease, *alone, compile_ms), alone)
        if not await self._in_io(self._unmoved, question):
            detail = "the toolchain changed meanwhile"
            answer = _unstored(lease, Reason.TOOLCHAIN_CHANGED, detail, compile_ms)
            return _Verdict(answer, _Word.ASK_AGAIN)
        outputs = lease.bundle.outputs()
        checked = await self._in_io(check_bundle, outputs)
        if effective_mode(self._mode, question.request.mode) == "read-only":
            answer = _unstored(lease, Reason.READ_ONLY, "asked for", compile_ms)
            return _Verdict(answer, await self._shared(answer, outputs))
        return await self._publish(lease, question, checked, compile_ms)

    async def _publish(
        self, lease: _Lease, question: _Question, checked: CheckedOutputs, compile_ms: int
    ) -> _Verdict:
        published = await self._in_io(
            self._store.publish, question.action, _entry(question, compile_ms), checked,
            lease.generation, Cache.KERNEL,
        )  # fmt: skip
        if published.loaded is None:
            answer = _unstored(lease, published.reason, published.detail, compile_ms)
            if published.reason is Reason.INVALIDATED:
                return _Verdict(answer, _Word.ASK_AGAIN)
            return _Verdict(answer, await self._shared(answer, checked.outputs))
        self._on_published()
        self._memory.explained(question.action.key, lease.why)
        answer = answers.carry(
            published.loaded, lease.key, question.identity.digest, Outcome.MISS
        )._replace(detail=lease.why.words)
        return _Verdict(answer, _joined(answer))

    async def _shared(self, answer: Answer, outputs: tuple[Output, ...]) -> _Told:
        """What waiters are told of a good bundle that is not stored: here it is all the same."""
        try:
            artifacts = await self._in_io(lambda: tuple(artifact_of(item) for item in outputs))
        except OSError:
            return _Word.LEAD
        return _joined(answer._replace(artifacts=artifacts))

    # --- looking after the holders

    async def _look(self) -> None:
        while self._flights.waiting() > len(self._flights):
            await asyncio.sleep(self._look_s)
            for lease in list(self._leases.values()):
                if lease.seat is not None and self._awaited(lease):
                    why = self._doubt(lease)
                    if why:
                        self._take_away(lease, why)

    def _awaited(self, lease: _Lease) -> bool:
        return lease.question is not None and (self._flights.members(lease.question.action.key) > 1)

    def _doubt(self, lease: _Lease) -> str:
        """Why a holder has had the lease for long enough; empty while it may keep it."""
        limit_s = self._lease_timeout_s
        if limit_s and time.monotonic() - lease.granted_s > limit_s:
            return f"it has lasted longer than {limit_s:g} s"
        return lease.vigil.look() if lease.vigil is not None else ""

    def _take_away(self, lease: _Lease, why: str) -> None:
        _log.warning("%s: the lease goes on to the next: %s", lease.key[:12], why)
        self._pass_on(lease)
        lease.void(Reason.LEASE_LOST, f"the lease had gone on to another: {why}")

    # --- understanding

    async def _question(self, request: KernelRequest) -> _Question:
        job = _asking(request)
        known = self._resolver.confirmed(job)
        if known is None:
            known = await self._in_io(self._resolver.resolve, job)
        return self._understood(request, known)

    def _understood(self, request: KernelRequest, known: Resolved) -> _Question:
        toolchain, identity, _ = known
        asked = (request, identity.digest)
        found = self._keys.get(asked)
        if found is None:
            env = select(toolchain.ENV, dict(request.job.env))
            found = action.kernel_action(
                request.job._replace(env=env),
                request.texts,
                plugin_version=toolchain.version,
                identity=identity.digest,
                salt=(self._salt, request.salt),
            )
            if is_small(request.job, request.texts):
                remember(self._keys, asked, found)
        return _Question(request, identity, found)

    def _unmoved(self, question: _Question) -> bool:
        return self._resolver.unmoved(_asking(question.request), question.identity)

    def _hot(self, question: _Question) -> Answer | None:
        key = question.action.key
        loaded = self._store.find_hot(key, self._contents, "")
        if loaded is None:
            return None
        identity = question.identity.digest
        hit = answers.hit(loaded, key, identity, Outcome.MEMORY_HIT)
        return self._settle(hit, question.request)

    async def _find(self, question: _Question) -> Answer | None:
        found = self._hot(question)
        if found is not None:
            return found
        key = question.action.key
        loaded = await self._in_io(self._store.find, key, self._contents, "", Cache.KERNEL)
        if loaded is not None:
            identity = question.identity.digest
            hit = answers.hit(loaded, key, identity, Outcome.DISK_HIT)
            return self._settle(hit, question.request)
        # Published while the disk was asked?
        return self._hot(question)

    def _why(self, question: _Question, stored_before: bool) -> Explanation:
        """Why this was no hit: what differs from the nearest entry that is there."""
        job, found = question.request.job, question.action
        identity = question.identity
        return explain(
            Side(found.document, (), identity.components, identity.installation.banner),
            earlier_entries(self._store, found.key, job.toolchain, job.kernel, cache=Cache.KERNEL),
            job.kernel,
            refresh=effective_mode(self._mode, question.request.mode) == "refresh",
            stored_before=stored_before,
        )

    # --- answering

    def _settle(self, answer: Answer, request: KernelRequest | None = None) -> Answer:
        """Count how a request ended, and remember it if it was no hit: every one passes here once."""
        spared_ms = answer.compile_ms if answer.outcome in SPARED else 0
        self._tally.outcome(Cache.KERNEL, answer.outcome, answer.reason, spared_ms)
        if request is not None and not answer.outcome.is_hit:
            self._memory.note(Asked.of(Cache.KERNEL, request.job, answer, time.time()))
        return answer

    def refuse(self, error: PtocacheError) -> Answer:
        """The counted answer to a request that cannot be served."""
        return self._settle(answers.failure(error, ""))

    async def _in_io(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._io, function, *args)

    # --- life

    @property
    def waiting(self) -> int:
        """Requests that hold a lease or wait for one."""
        return self._flights.waiting()

    @property
    def leases(self) -> int:
        """Leases whose bundle would be stored, and bundles being taken in."""
        held = sum(1 for lease in self._leases.values() if lease.seat is not None)
        return held + len(self._finishing)

    def shut_down(self) -> None:
        """End what is left: who waits is told, and no lease stores anything any more."""
        self._ending = True
        stops = CancelledError("the daemon stops")
        for lease in self._leases.values():
            self._tell(lease, answers.failure(stops, lease.key))
            if lease.seat is not None:
                lease.void(Reason.CANCELLED, stops.message)


def _asking(request: KernelRequest) -> Job:
    """The job whose toolchain says what a kernel depends on besides its material: one without inputs."""
    return request.job._replace(inputs=(), kernel="")


def _cancelled(key: str) -> Answer:
    return answers.failure(CancelledError("the client has gone"), key)


def _joined(answer: Answer) -> Answer:
    found = answers.joined(answer)
    return found._replace(packed=pack_answer(found))


def _unstored(lease: _Lease, reason: Reason, detail: str, compile_ms: int) -> Answer:
    """An answer without the files, which the holder has itself."""
    identity = lease.question.identity.digest if lease.question is not None else ""
    return Answer(
        outcome=Outcome.BYPASS,
        key=lease.key,
        reason=reason,
        detail=detail,
        compile_ms=compile_ms,
        identity=identity,
    )


def _entry(question: _Question, compile_ms: int) -> Entry:
    identity = question.identity
    return Entry(
        action=question.action.document,
        dependencies=(),
        outputs=(),
        log=Log(),
        source_dir="",
        kernel=question.request.job.kernel,
        created_s=int(time.time()),
        compile_ms=compile_ms,
        provenance=Provenance(
            commands=(),
            components=identity.components,
            banner=identity.installation.banner,
            aslr_off=False,
            ptocache=__version__,
        ),
    )
