"""The options of a PTO job, sorted by the tool that reads them.

``PTO_FLAGS`` comes first, then the options of the request, so that the request wins. Which tool reads a
word is decided by its form:

    --kernel=NAME               the front end
    --pto-*, --enable-*, --disable-*, --emit-*, --mlir-*, --plan-memory*     ptoas
    everything else             bisheng
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import BadRequestError
from ptocache_cann import arch, bisheng

if TYPE_CHECKING:
    from ptocache.model import Job

VARIABLE = "PTO_FLAGS"
_KERNEL = "--kernel="
_FOR_PTOAS = ("--pto-", "--enable-", "--disable-", "--emit-", "--mlir-", "--plan-memory")
_ARCH = "--pto-arch="
_BACKEND = "--pto-backend="


class PtoOptions(NamedTuple):
    """Options by their readers, without those that name the device."""

    kernels: tuple[str, ...]
    ptoas: tuple[str, ...]
    bisheng: tuple[str, ...]
    vpto: bool
    """True if ptoas itself calls the device compiler, and writes a fat object."""


def words_of(job: Job) -> tuple[str, ...]:
    """All words, in their order.

    Raises :class:`~ptocache.errors.BadRequestError` for a ``PTO_FLAGS`` that cannot be split.
    """
    return (*bisheng.flags_of(VARIABLE, dict(job.env)), *job.options)


def uses_vpto(job: Job) -> bool:
    """True if the last word on the backend is ``vpto``."""
    backends = [word for word in words_of(job) if word.startswith(_BACKEND)]
    return bool(backends) and backends[-1] == f"{_BACKEND}vpto"


def split(job: Job) -> tuple[arch.Arch, PtoOptions]:
    """The device of a job, and its options by their readers.

    Raises :class:`~ptocache.errors.BadRequestError`.
    """
    words = words_of(job)
    generations = {word[len(_ARCH) :] for word in words if word.startswith(_ARCH)}
    words = tuple(word for word in words if not word.startswith(_ARCH))
    if len(generations) > 1:
        raise BadRequestError(f"the options name two devices: {', '.join(sorted(generations))}")
    device, words = arch.choose(job.arch or next(iter(generations), ""), words, dict(job.env))
    named = next(iter(generations), "")
    if named and arch.understood(named).pto != device.pto:
        raise BadRequestError(
            f"the request is for {device.name} and its options for {named}",
            hint="leave one of them out",
        )
    kernels: list[str] = []
    for_ptoas: list[str] = []
    for_bisheng: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        if before in bisheng.DIALECT.separate:
            for_bisheng.append(word)
        elif word.startswith(_KERNEL):
            kernels.append(word[len(_KERNEL) :])
        else:
            (for_ptoas if word.startswith(_FOR_PTOAS) else for_bisheng).append(word)
    return device, PtoOptions(
        tuple(kernels), tuple(for_ptoas), tuple(for_bisheng), vpto=uses_vpto(job)
    )
