"""Which toolchain a job means, and what that is now. Every request asks, so the way to it is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .errors import PtocacheError
from .identity import variables_of

if TYPE_CHECKING:
    from .identity import Identities, Standing
    from .model import Identity, Job
    from .toolchain import Registry, Toolchain

K = TypeVar("K")
V = TypeVar("V")

_REMEMBERED = 8192
_SMALL_BYTES = 32 << 10
_ITEM_BYTES = 64
_Whom = tuple["Toolchain", str, tuple[tuple[str, str], ...]]
"""A toolchain, the flavour of it, and the variables that decide where its tools are."""


class Resolved(NamedTuple):
    """A toolchain and its identity."""

    toolchain: Toolchain
    identity: Identity
    standing: Standing | None = None
    """How to confirm it again."""


class Resolver:
    """Knows the toolchains of jobs."""

    def __init__(self, registry: Registry, identities: Identities) -> None:
        self._registry = registry
        self._identities = identities
        self._whoms: dict[Job, _Whom] = {}

    def confirmed(self, job: Job) -> Resolved | None:
        """The toolchain of a job, if its identity is known and a few stats confirm it.

        Raises :class:`~ptocache.errors.UnknownToolchainError`, and what the plugin raises for the job.
        """
        whom = self._whom(job)
        standing = self._identities.standing(*whom)
        return Resolved(whom[0], standing.identity, standing) if standing is not None else None

    def stands(self, standing: Standing) -> bool:
        """True if what was confirmed before is confirmed again."""
        return self._identities.stands(standing)

    def resolve(self, job: Job) -> Resolved:
        """The same, found out if it is not known. Slow: for a thread.

        Raises :class:`~ptocache.errors.ToolNotFoundError` besides.
        """
        whom = self._whom(job)
        return Resolved(whom[0], self._identities.resolve(*whom))

    def unmoved(self, job: Job, identity: Identity) -> bool:
        """True if nothing of this toolchain was touched since it was identified. Slow: for a thread."""
        try:
            return self._identities.unmoved(*self._whom(job), identity)
        except (PtocacheError, OSError):
            # It cannot be found any more: what it made before that is as good as it was.
            return False

    def _whom(self, job: Job) -> _Whom:
        known = self._whoms.get(job)
        if known is None:
            toolchain = self._registry.get(job.toolchain)
            known = (toolchain, toolchain.flavour(job), variables_of(toolchain, dict(job.env)))
            if is_small(job):
                remember(self._whoms, job, known)
        return known


def remember(memo: dict[K, V], key: K, value: V) -> None:
    """Keep a value that can be found out again; what is full begins anew."""
    if len(memo) >= _REMEMBERED:
        memo.clear()
    memo[key] = value


def is_small(job: Job, more: tuple[tuple[str, str], ...] = ()) -> bool:
    """True if a job, with ``more`` texts beside it, may be remembered: thousands of them must not take
    the memory."""
    pairs = (*job.env, *more)
    texts = sum(len(name) + len(value) for name, value in pairs)
    texts += sum(map(len, job.options)) + sum(map(len, job.symbols)) + sum(map(len, job.bases))
    items = len(pairs) + len(job.options) + len(job.symbols) + len(job.inputs)
    return texts + _ITEM_BYTES * items < _SMALL_BYTES
