"""Compiles in the caller's own process when no daemon can: the same plugin, the same rules, no cache."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from .build import Failed, artifact_of, build, reason_of
from .compiler import Limits, probe
from .contents import Contents
from .errors import PtocacheError
from .identity import Identities, Options, variables_of
from .model import Answer, select
from .outcome import Outcome, Reason
from .toolchain import Registry
from .wire import parse_request, request_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .compiler import Cancel
    from .config import Settings
    from .toolchain import ProbeResult
    from .wire import Request


def _probe(argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
    return probe(argv, env, scratch=_scratch())


_contents = Contents()
_registry: Registry | None = None
# Reading thousands of files to identify what makes a result that nobody stores would be for nothing.
_identities = Identities(_contents, _probe, options=Options(read=False))


def compile_alone(
    request: Request, data: dict[str, bytes], settings: Settings, cancel: Cancel | None = None
) -> Answer:
    """The answer of a compile that nothing stores; a failure is an answer too. ``cancel`` ends it."""
    try:
        _check(request, data)
        return _compile(request, data, settings, cancel)
    except PtocacheError as error:
        return Answer(
            outcome=Outcome.FAILURE,
            key="",
            reason=reason_of(error),
            detail=error.message,
            error=error.to_wire(),
        )


def _check(request: Request, data: dict[str, bytes]) -> None:
    """Refuse what the daemon would refuse: an input's name must not lead out of its directory.

    Raises :class:`~ptocache.errors.BadRequestError`.
    """
    plain = request._replace(job=request.job._replace(env=()), data=data)
    parse_request(request_document(plain))


def _compile(
    request: Request, data: dict[str, bytes], settings: Settings, cancel: Cancel | None
) -> Answer:
    global _registry
    _registry = _registry or Registry.discover()
    toolchain = _registry.get(request.job.toolchain)
    env = dict(request.job.env)
    identity = _identities.resolve(
        toolchain, toolchain.flavour(request.job), variables_of(toolchain, env)
    )
    job = request.job._replace(env=select(toolchain.ENV, env))
    prepared = toolchain.prepare(job, identity.installation)
    limits = Limits(settings["compile.step_timeout"], settings["compile.log_limit"])
    built = build(toolchain, prepared, identity, data, _contents, _scratch(), limits, cancel)
    if isinstance(built, Failed):
        return Answer(
            outcome=Outcome.FAILURE,
            key="",
            reason=Reason.COMPILE_FAILED,
            detail=built.error.message,
            log=built.error.log,
            exit_code=built.error.exit_code,
            error=built.error.to_wire(),
        )
    return Answer(
        outcome=Outcome.BYPASS,
        key="",
        reason=Reason.NO_DAEMON,
        detail="no daemon could be reached",
        artifacts=tuple(artifact_of(item) for item in built.checked.outputs),
        log=built.ran.log,
        compile_ms=built.ran.compile_ms,
    )


def _scratch() -> str:
    """Where private directories go. On a read-only system Python itself finds no place for them."""
    places = tuple(_places())
    return next((p for p in places if os.access(p, os.W_OK | os.X_OK)), places[0])


def _places() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        yield tempfile.gettempdir()
    yield from ("/var/tmp", "/dev/shm")
