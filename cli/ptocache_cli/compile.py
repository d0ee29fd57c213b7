"""``compile``: files through the cache, like a compiler."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ptocache.client import Client
from ptocache.errors import BadRequestError, PtocacheError

from . import exits, render, screen
from .passing import PassedOn, passed_on
from .session import SocketPath, StoreDirectory, examples, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptocache.result import Result

_SUFFIXES = {"shared": ".so", "object": ".o"}
"""Output name → suffix of the file; any other output gets its own name as the suffix."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "compile",
        cls=PassedOn,
        epilog=examples(
            "ptocache compile saxpy.c -- -O3 -march=native     makes ./saxpy.so",
            "ptocache compile saxpy.c --kind object --option=-O3 --output build/saxpy.o",
            "ptocache compile kernels/*.c --output build/ -- -O2 -I include",
            "ptocache compile saxpy.c --explain -- -DTILE=64",
            "ptocache compile saxpy.c --json | jq -r .outcome",
        ),
    )(compile_files)


def compile_files(
    ctx: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Sources; each becomes an artifact of its own."),
    ],
    toolchain: Annotated[
        str, typer.Option("--toolchain", "-t", metavar="NAME", help="Which plugin compiles.")
    ] = "host",
    arch: Annotated[
        str, typer.Option(metavar="ARCH", help="Target, in the toolchain's own words.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="WORD", help="For the tool (--option=-O3); may be repeated."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="A file for one source, a directory for several."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The output wanted (host: shared, object)."),
    ] = None,
    symbol: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A symbol that must be defined; may be repeated."),
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="use, refresh, bypass or read-only.")
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each file was a hit or a miss.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what the tool prints, and errors.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a file.")] = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Compile files, or get what was compiled before.

    Everything after -- goes to the tool, as does every --option. Artifacts are written to the
    current directory as <stem>.so, <stem>.o or <stem>.<output>, unless --output names another
    place. What the tool prints is replayed, on a hit too. Ends with code 1 if a compile failed.
    """
    settings = settings_of(directory, socket, reachable=False)
    places = _Places(files, output, tuple(kind or ()))
    options = (*(option or ()), *passed_on(ctx))
    report = _Report(as_json=as_json, explain=explain, quiet=quiet)
    with Client(settings) as client:
        jobs = [
            client.job(
                toolchain, {os.path.basename(file): _path(file)}, arch=arch, options=options,
                outputs=tuple(kind or ()), symbols=tuple(symbol or ()),
                source_dir=os.path.dirname(file) or ".", mode=mode,
            )
            for file in files
        ]  # fmt: skip
        code = exits.DONE
        with screen.progress("compiling", len(files)) as progress:
            for number, result in _in_order(client.compile_many(jobs, progress=False)):
                progress.advance(files[number])
                with progress.aside():
                    code = _worse(code, report.show(files[number], result, places))
    if code:
        raise typer.Exit(code)


def _path(file: str) -> os.PathLike[str]:
    from pathlib import Path

    return Path(file)


def _in_order(results: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
    """The results in the order of the files, each as soon as those before it are there."""
    early: dict[int, Result] = {}
    wanted = 0
    for number, result in results:
        early[number] = result
        while wanted in early:
            yield wanted, early.pop(wanted)
            wanted += 1


def _worse(one: int, other: int) -> int:
    """A failed compile weighs more than one that could not be asked for."""
    return exits.FAILED if exits.FAILED in (one, other) else max(one, other)


class _Places:
    """Where artifacts go."""

    def __init__(self, files: list[str], output: str | None, kinds: tuple[str, ...]) -> None:
        """Raises :class:`~ptocache.errors.BadRequestError` if two would go to the same place."""
        self._file = ""
        self._directory = ""
        into = output is not None and (output.endswith(os.sep) or os.path.isdir(output))
        if output is not None and not into and len(files) == 1 and len(kinds) < 2:
            self._file = output
        else:
            self._directory = output or ""
        if self._file:
            return
        if self._directory and os.path.lexists(self._directory) and not into:
            raise BadRequestError(
                f"--output {output} is no directory, and there are several artifacts to write",
                hint="name a directory",
            )
        seen: dict[str, str] = {}
        for file in files:
            other = seen.setdefault(_stem(file), file)
            if other is not file:
                raise BadRequestError(
                    f"{other} and {file} would be written to the same place",
                    hint="compile them one by one, each with its own --output",
                )

    def of(self, file: str, names: list[str]) -> dict[str, str]:
        """Output name → absolute path, for the outputs of one source.

        Raises :class:`~ptocache.errors.BadRequestError` for several outputs and one file's name, or
        an artifact that would replace its source.
        """
        if self._file and len(names) > 1:
            raise BadRequestError(
                f"{file} makes several outputs ({', '.join(names)}), --output names one file",
                hint="name a directory, or choose with --kind",
            )
        found = {}
        for name in names:
            suffix = _SUFFIXES.get(name, name if name.startswith(".") else f".{name}")
            path = self._file or os.path.join(self._directory, _stem(file) + suffix)
            if os.path.exists(path) and os.path.samefile(path, file):
                raise BadRequestError(f"the artifact of {file} would replace its source")
            found[name] = os.path.abspath(path)
        return found

    def make_directory(self) -> None:
        """Create the directory that ``--output`` names; raises :class:`OSError`."""
        if self._directory:
            os.makedirs(self._directory, exist_ok=True)


def _stem(file: str) -> str:
    return os.path.splitext(os.path.basename(file))[0]


class _Report(NamedTuple):
    """How results are told."""

    as_json: bool
    explain: bool
    quiet: bool

    def show(self, file: str, result: Result, places: _Places) -> int:
        """Replay the tool's output, write the artifacts, tell the result; returns the exit code."""
        # JSON has standard output to itself.
        screen.replay(result.log.stdout, sys.stderr if self.as_json else sys.stdout)
        screen.replay(result.log.stderr, sys.stderr)
        error: Exception | None = result.error
        paths: dict[str, str] = {}
        if error is None:
            try:
                paths = _write(file, result, places)
            except (PtocacheError, OSError) as trouble:
                error = trouble
        self._tell(file, result, paths)
        if error is None:
            return exits.DONE
        screen.complain(f"{file}: {exits.text_of(error)}")
        return exits.code_of(error)

    def _tell(self, file: str, result: Result, paths: dict[str, str]) -> None:
        if self.as_json:
            screen.say(render.to_json(render.compiled(file, result, paths), indent=None))
            return
        if self.explain or not self.quiet:
            relative = {name: os.path.relpath(path) for name, path in paths.items()}
            screen.say(render.compiled_line(file, result, relative))
        if self.explain:
            screen.say(render.explained(result))


def _write(file: str, result: Result, places: _Places) -> dict[str, str]:
    paths = places.of(file, list(result.outputs))
    places.make_directory()
    for name, path in paths.items():
        try:
            result.outputs[name].write(path)
        except OSError as error:
            # Not the name of the unfinished file beside it, which says nothing to anybody.
            raise OSError(error.errno, error.strerror, path) from error
    return paths
