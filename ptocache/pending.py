"""Requests on their way: as they are made, and as they are sent again. Part of the light client."""

from __future__ import annotations

import os
import sys
import time

from . import wire
from .model import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .connection import Connection
    from .model import Answer, Descriptor, Environment, Job

    Source = bytes | str | os.PathLike[str]
    Variables = dict[Any, Any]
    """Names and values of all variables; of this process's own, their bytes."""

PYTHON_VARIABLE = "PTOCACHE_PYTHON"
_REPEATS = 256
_REPEATED_BYTES = 32 << 10
"""Of sources and words, and of an answer: what is remembered takes some megabytes of the user's process at most."""


class _Shared:
    """What a request and its repetitions have in common: its frame for a daemon that wants certain
    variables, the last answer, and the name under which it was recorded."""

    __slots__ = ("frame", "heard", "recorded")

    def __init__(self) -> None:
        self.recorded = ""
        self.frame: tuple[tuple[list[str], bool], bytes] = (([], False), b"")
        self.heard: tuple[bytes, Answer | None] = (b"", None)


class Pending:
    """A request on its way through the client."""

    __slots__ = ("_shared", "data", "env", "files", "given_to", "priority", "request", "started")

    def __init__(
        self, request: wire.Request, data: dict[str, bytes], env: Environment, priority: int
    ) -> None:
        self.priority = priority
        self.request = request
        """Without its environment: the daemon says which variables it wants."""
        self.data = data
        self.env = env
        self.files: dict[str, str] = {}
        """Input name → absolute path, for those that were read from a file; kept for a recording only."""
        self.given_to: Connection | None = None
        """Who has had the bytes of the inputs."""
        self.started = time.perf_counter()
        self._shared = _Shared()

    def again(self) -> Pending:
        """The same request once more."""
        other = Pending(self.request, self.data, self.env, self.priority)
        other.files = self.files
        other._shared = self._shared
        return other

    @property
    def recorded(self) -> str:
        """The name of this request in a recording; empty if it is in none."""
        return self._shared.recorded

    @recorded.setter
    def recorded(self, name: str) -> None:
        self._shared.recorded = name

    def message(self, number: int, connection: Connection, *, full: bool) -> dict[str, Any]:
        """The message to send, with the bytes of the inputs if ``full``."""
        job = self.request.job
        patterns = connection.variables.get(job.toolchain, [])
        job = job._replace(
            env=with_python(select(patterns, self.env), patterns), bases=_bases_for(connection, job)
        )
        data = self.data if full else {}
        return wire.compile_message(
            number, self.request._replace(job=job, data=data), self.priority
        )

    def frame(self, connection: Connection) -> bytes:
        """The frame of :meth:`message` number 0 without the bytes of the inputs; packed once for as long
        as the daemon wants the same."""
        job = self.request.job
        wants = (connection.variables.get(job.toolchain, []), bool(_bases_for(connection, job)))
        wanted, frame = self._shared.frame
        if not frame or wanted != wants:
            frame = wire.pack(self.message(0, connection, full=False))
            self._shared.frame = (wants, frame)
        return frame

    def answer(self, message: dict[str, Any], fds: list[Descriptor]) -> Answer:
        """The answer in a message; the same bytes as the last time are not read again.

        Raises :class:`~ptocache.errors.FrameError` for a message that is none.
        """
        packed = message.get("answer")
        heard, answer = self._shared.heard
        if answer is not None and heard == packed and not fds:
            return answer
        answer = wire.parse_answer(message, fds)
        if isinstance(packed, bytes) and len(packed) <= _REPEATED_BYTES and not fds:
            self._shared.heard = (packed, answer)
        return answer


class Repeats:
    """The requests that were made before and are small, ready to be made again. Thread-safe.

    ``asked`` is what a caller said, everything but the environment; the environment is compared as a
    whole, which costs less than to choose from it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Variables, Pending]] = {}
        self._variables: Variables = {}

    def find(self, asked: tuple[object, ...], env: Environment) -> Pending | None:
        """The request, if it was made before in the same environment."""
        try:
            known = self._known.get(asked)
        except TypeError:
            # Words that are none: whoever reads the request says so.
            return None
        if known is None or known[0] != _variables_of(env):
            return None
        return known[1].again()

    def keep(self, asked: tuple[object, ...], pending: Pending) -> Pending:
        """Remember a request and give it back; what is full begins anew."""
        variables = _variables_of(pending.env)
        if variables is None or _size_of(pending) > _REPEATED_BYTES:
            return pending
        if len(self._known) >= _REPEATS:
            self._known.clear()
        # A copy, since the caller's goes on to change; one for all requests, which rarely differ in it.
        kept = self._variables
        if kept != variables:
            # Of this request, whatever other threads ask meanwhile.
            kept = self._variables = dict(variables)
        pending.env = RawEnvironment(kept) if isinstance(pending.env, RawEnvironment) else kept
        try:
            self._known[asked] = (kept, pending.again())
        except TypeError:
            return pending
        return pending


class RawEnvironment:
    """``os.environ`` without its checks and conversions of names that are not set: a request looks up a
    dozen of them, and they would cost it as much as the round trip."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self.raw = raw

    def get(self, name: str, default: str | None = None) -> str | None:
        """As of a mapping."""
        value = self.raw.get(name.encode("utf-8", "surrogateescape"))
        return default if value is None else os.fsdecode(value)

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self.raw)

    def __getitem__(self, name: str) -> str:
        return os.fsdecode(self.raw[name.encode("utf-8", "surrogateescape")])

    def items(self) -> list[tuple[str, str]]:
        """As of a mapping."""
        return [(os.fsdecode(name), os.fsdecode(value)) for name, value in self.raw.items()]


def process_environment() -> Environment:
    """The variables of this process, as they are now."""
    # The dictionary behind os.environ is an internal of CPython: without it, or with another encoding
    # than UTF-8, the public way serves as well.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict) and sys.getfilesystemencoding() == "utf-8":
        return RawEnvironment(raw)
    return os.environ


def _bases_for(connection: Connection, job: Job) -> tuple[str, ...]:
    """The bases of a request, for a daemon that knows what they are."""
    return job.bases if job.bases and wire.BASE_DIRS in connection.capabilities else ()


def with_python(
    env: tuple[tuple[str, str], ...], patterns: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """``env`` with the interpreter of this process, for a toolchain that runs a part of itself in its
    caller's Python, unless the caller has named one."""
    if PYTHON_VARIABLE not in patterns or not sys.executable or PYTHON_VARIABLE in dict(env):
        return env
    return tuple(sorted((*env, (PYTHON_VARIABLE, sys.executable))))


def _size_of(pending: Pending) -> int:
    """Bytes of the sources, and characters of the words, of a request."""
    job = pending.request.job
    words = (*job.options, *job.outputs, *job.symbols, *pending.data)
    # Words that are none are for the daemon to refuse.
    said = sum(len(word) for word in words if isinstance(word, str))
    return said + sum(map(len, pending.data.values()))


def _variables_of(env: Environment) -> Variables | None:
    """The dictionary behind an environment, if there is one to compare with."""
    if isinstance(env, RawEnvironment):
        return env.raw
    return env if type(env) is dict else None
