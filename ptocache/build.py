"""One compile from start to verdict, the same in the daemon and in the client's fallback. Blocking.

prepare a private directory → run the plan → validate → find out what was read. Nothing here stores,
counts or answers: the caller does, with what :class:`Built` says.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from . import __version__, bases
from .compiler import Cancel, Limits, NoRoomError, Ran, ToolFailedError, Workspace, run
from .contents import observe
from .digest import Digest
from .errors import (
    BadRequestError,
    CancelledError,
    OutputRejectedError,
    PtocacheError,
    StepKilledError,
    StepTimeoutError,
    ToolNotFoundError,
    UnknownToolchainError,
)
from .includes import scan
from .model import (
    Artifact,
    Bound,
    Dependency,
    Descriptor,
    Discovery,
    Identity,
    Prepared,
    Provenance,
)
from .outcome import Reason
from .signature import moment
from .toolchain import CheckedOutputs, Toolchain, validate
from .wire import INLINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .contents import Contents
    from .model import Output, Step

_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
_EPOCH = "SOURCE_DATE_EPOCH"


class Built(NamedTuple):
    """A good result and whether it may become an entry."""

    checked: CheckedOutputs
    ran: Ran
    dependencies: tuple[Dependency, ...]
    provenance: Provenance
    bound_to_source_dir: bool
    """True if an output or the log names the source's directory, or the toolchain says so."""
    bypass: Reason
    """Why this is an answer and not an entry; ``NONE`` if it may be one."""
    detail: str
    bound: Bound = ()
    """The bases that it holds for alone."""


class Failed(NamedTuple):
    """The tool's own no, and whether it would say the same again."""

    error: ToolFailedError
    dependencies: tuple[Dependency, ...]
    repeatable: bool
    refused: str = ""
    """What the private directory's file system refused, if that may be why: then another place may do."""


def build_anywhere(
    toolchain: Toolchain,
    prepared: Prepared,
    identity: Identity,
    data: Mapping[str, bytes],
    contents: Contents,
    scratch: str,
    spare: Callable[[Exception], str],
    limits: Limits,
    cancel: Cancel | None = None,
) -> Built | Failed:
    """:func:`build`, and once more in the place that ``spare(why)`` gives if ``scratch`` has no room.

    Raises what :func:`build` does, and :class:`~ptocache.compiler.NoRoomError` if neither has room.
    """

    def attempt(place: str) -> Built | Failed:
        found = build(toolchain, prepared, identity, data, contents, place, limits, cancel)
        if isinstance(found, Failed) and found.refused:
            raise NoRoomError(
                f"a tool failed for want of room in {place}: {found.refused}", path=place
            ) from OSError(_NUMBERS.get(found.refused, errno.ENOSPC), found.refused)
        return found

    try:
        return attempt(scratch)
    except NoRoomError as error:
        try:
            place = spare(error)
        except (OSError, PtocacheError):
            raise error from error.__cause__
        return attempt(place)


def build(
    toolchain: Toolchain,
    prepared: Prepared,
    identity: Identity,
    data: Mapping[str, bytes],
    contents: Contents,
    scratch: str,
    limits: Limits,
    cancel: Cancel | None = None,
) -> Built | Failed:
    """Compile. ``data`` holds the bytes of every input; ``scratch`` is where private directories go.

    Raises the errors of :func:`ptocache.compiler.run` except a tool's own non-zero exit, which is a
    :class:`Failed`, and :class:`~ptocache.errors.OutputRejectedError` from the validation.
    """
    scans = {name: scan(text) for name, text in data.items()}
    prepared = toolchain.judge_inputs(prepared, scans)
    job = prepared.job
    with Workspace(scratch) as workspace:
        for item in job.inputs:
            workspace.materialise(item.name, data[item.name], _input_time(dict(job.env)))
        started_ns = moment()
        for name, path in toolchain.beside(prepared, scans, contents).items():
            workspace.link(name, path)
        steps = toolchain.plan(prepared, identity.installation, workspace.work)
        try:
            ran, checked = _run(toolchain, prepared, steps, workspace, limits, cancel)
        except ToolFailedError as error:
            refused = workspace.refused(error.log.stdout + error.log.stderr)
            found = toolchain.discover(
                prepared, identity.installation, error.depfiles, contents, workspace.work
            )
            observed = observe(contents, found.present, found.absent, job.source_dir, started_ns)
            repeatable = error.complete and not (found.bypass or prepared.bypass or observed.moved)
            dependencies = bases.relocatable(observed.dependencies, prepared.bases)
            return Failed(error, dependencies, repeatable and not refused, refused)
        found = toolchain.discover(
            prepared, identity.installation, ran.depfiles, contents, workspace.work
        )
        observed = observe(contents, found.present, found.absent, job.source_dir, started_ns)
        bypass, detail = _verdict(prepared, found, ran, observed.moved, workspace.root)
        return Built(
            checked=checked,
            ran=ran,
            dependencies=bases.relocatable(observed.dependencies, prepared.bases),
            provenance=_provenance(steps, identity, ran, workspace.work),
            bound_to_source_dir=bool(job.source_dir) and _names(ran, job.source_dir),
            bypass=bypass,
            detail=detail,
            bound=_bound(prepared, found, ran),
        )


def _run(
    toolchain: Toolchain,
    prepared: Prepared,
    steps: tuple[Step, ...],
    workspace: Workspace,
    limits: Limits,
    cancel: Cancel | None,
) -> tuple[Ran, CheckedOutputs]:
    """Run the steps and judge what they made. A disk that was full is no fault of an output."""
    env = dict(prepared.job.env)
    try:
        ran = run(steps, toolchain.collect(prepared), workspace, env, limits, cancel)
        ran = ran._replace(outputs=toolchain.finish(prepared, ran.outputs))
        return ran, validate(toolchain, prepared, ran.outputs)
    except OutputRejectedError as error:
        refused = workspace.refused()
        if not refused:
            raise
        why = OSError(_NUMBERS.get(refused, errno.ENOSPC), refused)
        raise NoRoomError(
            f"an output is not whole ({error.message}): {refused}", path=workspace.root
        ) from why
    except StepKilledError as error:
        if error.fields.get("signal") != signal.SIGXFSZ:
            raise
        raise NoRoomError(
            "a step was ended because a file became too large (RLIMIT_FSIZE)", path=workspace.root
        ) from OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _verdict(
    prepared: Prepared, found: Discovery, ran: Ran, moved: str, private: str
) -> tuple[Reason, str]:
    """Why the result must not be stored, the most lasting reason first."""
    if prepared.bypass:
        return prepared.bypass, prepared.detail
    if found.bypass:
        return found.bypass, found.detail
    if ran.missing_depfiles:
        return Reason.NO_DEPENDENCIES, "a step wrote no dependency file"
    if _names(ran, private) or (prepared.bases and _names(ran, os.path.basename(private))):
        # Below a base, the longer of two prefixes is not the one that every compiler maps.
        return Reason.PATH_LEAK, f"an output or the log names the private directory {private}"
    if moved:
        return Reason.INPUT_CHANGED, f"{moved} changed while the compile ran"
    return Reason.NONE, ""


def _names(ran: Ran, directory: str) -> bool:
    needle = os.fsencode(directory)
    return any(needle in text for text in _texts(ran))


def _texts(ran: Ran) -> tuple[bytes, ...]:
    return (ran.log.stdout, ran.log.stderr, *(bytes(item.data) for item in ran.outputs))


def _bound(prepared: Prepared, found: Discovery, ran: Ran) -> Bound:
    """The bases that a result holds for alone: those that it names."""
    every = bases.everything(prepared.bases)
    if found.fixed:
        return every
    texts = _texts(ran)
    return tuple(item for item in every if any(bases.is_named(item[1], text) for text in texts))


def _provenance(steps: tuple[Step, ...], identity: Identity, ran: Ran, workdir: str) -> Provenance:
    return Provenance(
        commands=tuple(
            tuple(word.replace(workdir, "<private>") for word in step.argv) for step in steps
        ),
        components=identity.components,
        banner=identity.installation.banner,
        aslr_off=ran.aslr_off,
        ptocache=__version__,
    )


def _input_time(env: Mapping[str, str]) -> int:
    try:
        return max(0, int(env.get(_EPOCH, "0") or "0"))
    except ValueError as error:
        raise BadRequestError(
            f"{_EPOCH}={env[_EPOCH]!r} is not a number of seconds", hint="unset it or correct it"
        ) from error


def reason_of(error: PtocacheError) -> Reason:
    """The counted reason of an error."""
    table: tuple[tuple[type[PtocacheError], Reason], ...] = (
        (OutputRejectedError, Reason.OUTPUT_REJECTED),
        (StepTimeoutError, Reason.STEP_TIMEOUT),
        (StepKilledError, Reason.STEP_KILLED),
        (CancelledError, Reason.CANCELLED),
        (ToolNotFoundError, Reason.TOOL_NOT_FOUND),
        (UnknownToolchainError, Reason.TOOL_NOT_FOUND),
        (BadRequestError, Reason.BAD_REQUEST),
    )
    for kind, reason in table:
        if isinstance(error, kind):
            return reason
    codes: Mapping[str, Reason] = {
        "compile_failed": Reason.COMPILE_FAILED,
        "step_system": Reason.SYSTEM,
        "error": Reason.INTERNAL,
    }
    return codes.get(error.code, Reason.SYSTEM)


def artifact_of(output: Output) -> Artifact:
    """An artifact that was never stored: inline if small, else an anonymous read-only file."""
    data = bytes(output.data)
    digest = Digest.of(data)
    if len(data) <= INLINE_BYTES:
        return Artifact(output.name, digest, output.mode, data)
    fd = os.memfd_create("ptocache", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return Artifact(output.name, digest, output.mode, None, Descriptor(fd))
