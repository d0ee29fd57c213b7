"""``warm``: compile beforehand what a recorded run asked for."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ptocache.client import Client
from ptocache.errors import BadRequestError, OutputRejectedError, from_wire
from ptocache.outcome import Outcome, Reason

from . import exits, render, screen
from .session import SocketPath, StoreDirectory, examples, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ptocache.digest import Digest
    from ptocache.pending import Pending
    from ptocache.recorded import Recorded, Recording
    from ptocache.result import Result

SCHEMA = 1
NEEDS_FRAMEWORK = "needs the framework itself"
_STORED = frozenset({Outcome.MISS, Outcome.JOINED})


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "warm",
        short_help="Compile beforehand what a recorded run asked for.",
        epilog=examples(
            "ptocache warm ptocache.jsonl",
            "ptocache warm ptocache.jsonl --check         what would be a hit? compiles nothing",
            "ptocache warm ptocache.jsonl --base /app     where the recorded directory lies here",
        ),
    )(warm)


def warm(
    manifest: Annotated[str, typer.Argument(metavar="MANIFEST", help="Made by `ptocache record`.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only say what would be a hit; compile nothing.")
    ] = False,
    base: Annotated[
        str,
        typer.Option(metavar="DIR", help="Where the directory of the recording lies here."),
    ] = ".",
    without_kernels: Annotated[
        bool,
        typer.Option(
            "--without-kernels", help="Kernels that only their framework can build do not count."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Compile what a recorded run asked for, or see that it is there.

    Ends with code 0 only if everything in the manifest is in the store afterwards (with --check: is in
    the store). Tools are found by this environment, not by that of the recording. A manifest is to be
    trusted as a makefile is: its sources are compiled with its options.
    """
    from ptocache import recorded

    place = os.path.realpath(base)
    try:
        recording = recorded.read(manifest, place)
    except OSError as error:
        raise BadRequestError(
            f"{manifest} cannot be read: {error.strerror}", hint="ptocache record makes one"
        ) from error
    report = Report(manifest, recording, without_kernels=without_kernels)
    settings = settings_of(directory, socket, client_require=True)
    wanted = Wanted(recording, report)
    with Client(settings) as client:
        jobs = Jobs(client, wanted)
        if check:
            for item, job in zip(jobs.items, jobs, strict=True):
                report.peeked(item, client.peek(job))
        else:
            for position, result in client.compile_many(jobs):
                report.ended(jobs.items[position], result)
    report.tell(as_json=as_json, check=check)
    if not report.is_whole:
        raise typer.Exit(exits.FAILED)


class Problem(NamedTuple):
    """Something that is not in the store, and why."""

    toolchain: str
    arch: str
    kernel: str
    why: str


class Wanted:
    """What of a recording can be asked for here."""

    def __init__(self, recording: Recording, report: Report) -> None:
        from ptocache.toolchain import Registry

        self.inputs = recording.inputs
        self._registry = {item.name: item for item in Registry.discover().all()}
        self.items: list[Recorded] = []
        for item in recording.compiles:
            why = "" if item.failed else self._why_not(item)
            if item.failed:
                report.failed_before += 1
            elif why:
                report.cannot(item, why)
            else:
                self.items.append(item)

    def _why_not(self, item: Recorded) -> str:
        """Why it cannot be asked for here; empty if it can."""
        job = item.request.job
        if job.toolchain not in self._registry:
            return f"there is no plugin for the toolchain {job.toolchain!r} here"
        if item.called and _tool_of(item) is None:
            return f"toolchain not found here: no {item.called}"
        digests = {part.name: part.digest for part in job.inputs}
        places = dict(item.files)
        if item.called:
            source = _field(item, "source=")
            if not os.path.isdir(job.cwd):
                return f"the directory {job.cwd} is not there: name the base with --base"
            if source:
                places = {job.inputs[0].name: os.path.join(job.cwd, source)}
        for name, path in places.items():
            if name not in digests:
                continue
            found = _found_at(path, digests[name].size)
            if found is None and item.called:
                return f"the source {path} is not there: name the base with --base"
            if found is not None and found != digests[name]:
                return f"the source {path} has changed since: record the run again"
        return ""

    def job(self, client: Client, item: Recorded) -> Pending:
        """The request, for the tools of this environment."""
        from ptocache.recorded import TOOL, without_tool

        job = item.request.job
        options = job.options
        env = self._env(item)
        if item.called:
            tool = _tool_of(item)
            assert tool is not None
            options = (f"{TOOL}{tool[0]}", *without_tool(options))
            env |= _tool_variables(item, *tool)
        pending = client.job(
            job.toolchain,
            {part.name: self.inputs[part.digest.sha256] for part in job.inputs},
            arch=job.arch, options=options, env=env, outputs=job.outputs, symbols=job.symbols,
            source_dir=job.source_dir, kernel=job.kernel, mode="use", salt=item.request.salt,
        )  # fmt: skip
        request = pending.request
        pending.request = request._replace(job=request.job._replace(cwd=job.cwd))
        return pending

    def _env(self, item: Recorded) -> dict[str, str]:
        """What finds tools comes from here, what counts by its value from the recording."""
        from ptocache.model import select

        toolchain = self._registry[item.request.job.toolchain]
        here = dict(select(toolchain.SEARCH, os.environ))
        declared = {name for name, _ in select(toolchain.ENV, here)}
        recorded = select(toolchain.ENV, dict(item.request.job.env))
        return {
            **{name: value for name, value in here.items() if name not in declared},
            **dict(recorded),
        }


class Jobs:
    """The requests, made one by one: their sources are not all in memory twice."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        self._client = client
        self._wanted = wanted
        self.items = wanted.items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Pending]:
        return (self._wanted.job(self._client, item) for item in self.items)


class Report:
    """What became of a manifest."""

    def __init__(self, manifest: str, recording: Recording, *, without_kernels: bool) -> None:
        self.failed_before = 0
        self._manifest = manifest
        self._recording = recording
        self._without_kernels = without_kernels
        self._hits = 0
        self._compiled = 0
        self._to_compile = 0
        self._cost_ms = 0
        self._problems: list[Problem] = [
            Problem(item.toolchain, item.arch, item.kernel, f"was not recorded: {item.why}")
            for item in recording.left_out
        ]

    def cannot(self, item: Recorded, why: str) -> None:
        """It cannot be asked for here."""
        job = item.request.job
        self._problems.append(Problem(job.toolchain, job.arch, job.kernel, why))

    def ended(self, item: Recorded, result: Result) -> None:
        """It was asked for."""
        self._cost_ms += result.compile_ms
        if result.outcome.is_hit:
            self._hits += 1
        elif result.outcome in _STORED:
            self._compiled += 1
        elif result.outcome is Outcome.BYPASS:
            self.cannot(item, f"is not stored ({result.reason.label}): {result.why}")
        else:
            self.cannot(item, _failure(result))

    def peeked(self, item: Recorded, found: Mapping[str, Any]) -> None:
        """It was looked for."""
        outcome = found["outcome"]
        if outcome in ("memory_hit", "disk_hit", "remote_hit"):
            self._hits += 1
            self._cost_ms += found["compile_ms"]
        elif outcome == "miss":
            self._to_compile += 1
        elif found["reason"] == Reason.TOOL_NOT_FOUND.label:
            self.cannot(item, f"toolchain not found here: {from_wire(found['error'])}")
        else:
            why = f"would not be stored ({found['reason']}): {found['detail']}"
            self.cannot(item, why)

    @property
    def is_whole(self) -> bool:
        """True if everything is in the store."""
        kernels = self._recording.kernels and not self._without_kernels
        return not (self._problems or self._to_compile or kernels)

    def tell(self, *, as_json: bool, check: bool) -> None:
        """Print it."""
        if as_json:
            screen.say(render.to_json(self._document(check)))
            return
        for line in self._lines(check):
            screen.say(line)

    def _document(self, check: bool) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "manifest": self._manifest,
            "check": check,
            "whole": self.is_whole,
            "requests": len(self._recording.compiles),
            "hits": self._hits,
            "compiled": self._compiled,
            "to_compile": self._to_compile,
            "failed_before": self.failed_before,
            "compile_ms": self._cost_ms,
            "problems": [item._asdict() for item in self._problems],
            "kernels": [
                {**kind._asdict(), "why": NEEDS_FRAMEWORK} for kind in self._recording.kernels
            ],
        }

    def _lines(self, check: bool) -> Iterator[str]:
        parts = [f"{self._hits} {'are' if check else 'were'} there"]
        if check:
            parts.append(f"{self._to_compile} would be compiled")
        else:
            parts.append(f"{self._compiled} compiled")
        if self.failed_before:
            parts.append(f"{self.failed_before} failed when recorded and are left out")
        total = len(self._recording.compiles)
        seconds = self._cost_ms / 1000
        requests = f"{total} request{'' if total == 1 else 's'}"
        yield f"{self._manifest}: {requests}: {', '.join(parts)} ({seconds:.1f} s of compile time)"
        for item in self._problems:
            yield f"  {_title(item.toolchain, item.arch, item.kernel)}: {item.why}"
        for kind in self._recording.kernels:
            title = _title(kind.toolchain, kind.arch, kind.kernel)
            yield f"  {title}: {NEEDS_FRAMEWORK} ({kind.number} different)"


def _title(toolchain: str, arch: str, kernel: str) -> str:
    of = " ".join(word for word in (toolchain, arch) if word)
    return f"{kernel or 'a request'}{f' ({of})' if of else ''}"


def _failure(result: Result) -> str:
    if result.reason is Reason.TOOL_NOT_FOUND:
        return f"toolchain not found here: {result.error}"
    said = result.log.stderr.decode("utf-8", "replace").strip().splitlines()
    because = f": {said[0]}" if said and not isinstance(result.error, OutputRejectedError) else ""
    return f"failed ({result.reason.label}): {result.why}{because}"


def _field(item: Recorded, name: str) -> str:
    """A field of a wrapped command; empty if it has none."""
    for word in item.request.job.options:
        if word == "--":
            break
        if word.startswith(name):
            return word[len(name) :]
    return ""


def _tool_of(item: Recorded) -> tuple[str, str] | None:
    """Where the compiler of a wrapped command is here, and the ``PATH`` without launchers before it."""
    from ptocache.integrations import commandline, wrap

    name = item.called
    if not commandline.tool_kind(os.path.basename(name)):
        return None
    if "/" in name:
        name = os.path.join(item.request.job.cwd, name)
    found = wrap.find(name, os.environ.get("PATH", os.defpath))
    return found if found is not None and os.access(found[0], os.X_OK) else None


def _tool_variables(item: Recorded, tool: str, path: str) -> dict[str, str]:
    """As a wrapped command sets them."""
    from ptocache.integrations import wrap

    return wrap.tool_variables(item.request.job.toolchain, _field(item, "language="), tool, path)


def _found_at(path: str, size: int) -> Digest | None:
    """The digest of a file, without its SHA-256 if it has another size; ``None`` if there is none. What a
    manifest names may be anything: it is not waited for, and no more is read than would fit."""
    from ptocache.digest import Digest

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return None
            if found.st_size != size:
                return Digest("", found.st_size)
            return Digest.of(file.read(size))
    except OSError:
        return None
