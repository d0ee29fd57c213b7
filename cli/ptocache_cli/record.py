"""``record``: one command, and a manifest of everything that it asked ptocache for."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from ptocache.errors import PtocacheError

from . import exits, screen
from .passing import PassedOn, passed_on
from .run import NOT_EXECUTABLE, NOT_FOUND
from .session import examples

if TYPE_CHECKING:
    from types import FrameType

    from ptocache.recorded import Recording

DEFAULT = "ptocache.jsonl"
VARIABLE = "PTOCACHE_RECORD"
_BY_SIGNAL = 128
_PASSED = (signal.SIGTERM, signal.SIGHUP)
_SHARED = (signal.SIGINT, signal.SIGQUIT)
"""A terminal sends these to the command as well."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "record",
        cls=PassedOn,
        short_help="Run a command and write down what it asks for.",
        options_metavar="[OPTIONS] -- COMMAND...",
        epilog=examples(
            "ptocache record -- python train.py",
            "ptocache record --output kernels.jsonl -- ptocache run -- python train.py",
            "ptocache record --append -- make        adds what this run asks for",
        ),
    )(record)


def record(
    ctx: typer.Context,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where the manifest goes.")
    ] = DEFAULT,
    append: Annotated[bool, typer.Option("--append", help="Keep what is in FILE already.")] = False,
    base: Annotated[
        str,
        typer.Option(metavar="DIR", help="What lies below it is named relative to it."),
    ] = ".",
) -> None:
    """Run a command and write down what it asks of ptocache, for `ptocache warm`.

    The command's exit code is the one of this command. A process that is killed, forked or started
    below it is recorded up to its end.
    """
    command = passed_on(ctx)
    if not command:
        screen.complain("give a command behind --")
        raise typer.Exit(exits.WRONG_USE)
    from ptocache import recorded

    if os.path.exists(output) and not os.path.isfile(output):
        # A manifest takes the place of what was there: not that of a directory or a device.
        screen.complain(f"{output} is not a file: name one for the manifest")
        raise typer.Exit(exits.WRONG_USE)
    # The file, and not a link to it.
    called, output = output, os.path.realpath(output)
    place = os.path.realpath(base)
    earlier = recorded.Recording()
    if append and os.path.exists(output):
        # Before the run: what it asks for must not be lost to a file that cannot be read.
        earlier = recorded.read(output, place)
    journal = _begin(output)
    try:
        code = _run(command, {**os.environ, VARIABLE: journal})
    except OSError as error:
        os.unlink(journal)
        missing = isinstance(error, FileNotFoundError)
        screen.complain(f"{command[0]}: {'not found' if missing else error.strerror}")
        raise typer.Exit(NOT_FOUND if missing else NOT_EXECUTABLE) from None
    try:
        _finish(journal, output, place, earlier, called)
    except (PtocacheError, OSError) as error:
        screen.complain(f"{exits.text_of(error)}; what was recorded is still in {journal}")
        code = code or exits.FAILED
    raise typer.Exit(code)


def _begin(output: str) -> str:
    """Make the journal beside the manifest; its absolute path. Raises :class:`OSError`."""
    from ptocache import recording

    journal = f"{os.path.abspath(output)}.{os.getpid():x}.journal"
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, recording.MODE)
    try:
        os.write(fd, recording.dumped(recording.header(journal=True)) + b"\n")
    finally:
        os.close(fd)
    return journal


def _run(command: list[str], env: dict[str, str]) -> int:
    """The command's exit code, as a shell says it. Raises :class:`OSError` if it cannot be started."""
    early: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # Handlers, not SIG_IGN: the command would inherit that. What is ignored already (nohup) stays so for both.
    before = {
        number: signal.signal(number, pass_on if number in _PASSED else lambda *_: None)
        for number in (*_PASSED, *_SHARED)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    screen.flush()
    try:
        # What the caller's shell opened for the command, it gets: <(…), a jobserver.
        process = subprocess.Popen(command, env=env, close_fds=False)
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _BY_SIGNAL - code


def _finish(journal: str, output: str, base: str, earlier: Recording, called: str) -> None:
    """Make the manifest of the journal, and say so; ``called``: as the caller names it. Raises :class:`OSError` and what the journal's reader does."""
    from ptocache import recorded, recording
    from ptocache.toolchain import Registry

    found = recorded.read(journal)
    lost = bool(stat.S_IMODE(os.stat(journal).st_mode) == recording.LOST_MODE or found.damaged)
    declared = {toolchain.name: toolchain.ENV for toolchain in Registry.discover().all()}
    plain = recorded.joined([recorded.without_search(found, declared)])
    if lost:
        why = "a process could not write down all that it asked for"
        plain = plain._replace(left_out=(*plain.left_out, recorded.LeftOut("", "", "", why)))
    recorded.write(output, recorded.joined([earlier, plain]), base)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(journal)
    screen.complain(f"{_words(plain)} in {called}")
    if lost:
        screen.complain("some requests are missing: a process was killed, or the disk is full")


def _words(recording: Recording) -> str:
    kernels = sum(kind.number for kind in recording.kernels)
    parts = [f"recorded {_counted(len(recording.compiles), 'request')}"]
    failed = sum(item.failed for item in recording.compiles)
    if failed:
        parts.append(f"{failed} of them failed")
    if kernels:
        parts.append(f"{_counted(kernels, 'kernel')} that only the framework itself can build")
    if recording.left_out:
        parts.append(f"{len(recording.left_out)} left out")
    return ", ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
