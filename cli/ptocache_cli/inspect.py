"""``inspect``: what an artifact is, and whether it would be stored."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ptocache.errors import BadRequestError

from . import exits, render, screen
from .session import AsJson, examples

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "inspect",
        epilog=examples(
            "ptocache inspect kernel.o",
            "ptocache inspect libkernels.so --json | jq .nested_images",
            "ptocache inspect kernel.aibin && echo whole",
        ),
    )(inspect)


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An object, library or image.")],
    as_json: AsJson = False,
) -> None:
    """Print what an artifact is and whether it would be accepted into a store.

    Host or device, machine, sections, device images inside it with their entry symbols; then the
    verdict, and for a refusal its reason. Exit code 0: accepted, 1: rejected. Asks no daemon.
    """
    from ptocache import artifact

    with _mapped(file) as data:
        found = artifact.report(data)
    if as_json:
        screen.say(render.to_json({"file": file, **found.to_map()}))
    else:
        screen.say(render.inspected(file, found.to_map()))
    if not found.verdict.accepted:
        raise typer.Exit(exits.FAILED)


@contextmanager
def _mapped(path: str) -> Iterator[bytes | mmap.mmap]:
    """The bytes of a regular file, which may be larger than the memory.

    Raises :class:`~ptocache.errors.BadRequestError` for what is not there or is no such file.
    """
    import mmap

    try:
        # Without O_NONBLOCK a FIFO would wait for a writer.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise BadRequestError(f"{path}: not a regular file", path=path)
        if not status.st_size:
            # Nothing cannot be mapped.
            yield b""
            return
        try:
            mapped = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _unreadable(path, error) from error
        with mapped:
            yield mapped
    finally:
        os.close(number)


def _unreadable(path: str, error: OSError | ValueError) -> BadRequestError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    hint = "give the path of a file that is there" if _is_absent(error) else ""
    return BadRequestError(f"{path}: {reason}", hint=hint, path=path)


def _is_absent(error: OSError | ValueError) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)
