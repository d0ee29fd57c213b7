"""What is written to the terminal: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


def set_up() -> None:
    """A path or a message that the terminal's encoding lacks must not end a command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The descriptor was closed by who started us.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """A result."""
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Trouble, or a remark that is no result."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(f"ptocache: {text}\n")
    sys.stderr.flush()


def replay(data: bytes, stream: TextIO) -> None:
    """Bytes of a tool, exactly."""
    if data:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def flush() -> None:
    """Bring out what is still unwritten. Raises :class:`OSError`; that stream is then given up."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            give_up(stream)
            raise


def give_up(stream: TextIO) -> None:
    """Let what is still to be written go nowhere: the interpreter's own flush at its end would fail
    loudly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Progress:
    """How far a long work has come. This one tells nobody; see :func:`progress`."""

    def advance(self, item: str, count: int = 1) -> None:
        """``count`` more items are done, the last of them with this name."""

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While other things are written to the same terminal."""
        yield


class _Bar(Progress):
    def __init__(self, label: str, total: int) -> None:
        # Heavy, and needed on a terminal only.
        from rich import progress as rich_progress
        from rich.console import Console

        self._bar = rich_progress.Progress(
            rich_progress.TextColumn(label),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=total)

    def advance(self, item: str, count: int = 1) -> None:
        self._bar.update(self._task, advance=count, description=item)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        self._bar.stop()
        try:
            yield
            sys.stdout.flush()
        finally:
            self._bar.start()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


@contextlib.contextmanager
def progress(label: str, total: int) -> Iterator[Progress]:
    """A bar on standard error, if that is a terminal and there are several items to do."""
    if total < 2 or not sys.stderr.isatty():
        yield Progress()
        return
    with _Bar(label, total) as bar:
        yield bar
