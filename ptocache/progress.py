"""How far a batch has come, on standard error: a bar on a terminal, lines elsewhere, never an error.

The bar is drawn by rich, which is imported when the first one is shown. No thread redraws it: it belongs to
processes that fork.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from .batch import Progress

_REDRAW_S = 0.1
_LINES = 10
"""So many lines at most, where there is no bar and the number of jobs is known."""
_LINE_EVERY = 100
"""Results between two lines, where it is not."""


def words(progress: Progress) -> str:
    """``12/40: 8 hits, 4 misses, 3.2 s saved``."""
    of = f"/{progress.total}" if progress.total is not None else ""
    parts = [
        _counted(progress.hits + progress.joined, "hit"),
        _counted(progress.compiled + progress.bypassed, "miss"),
    ]
    if progress.failed:
        parts.append(_counted(progress.failed, "failure"))
    if progress.saved_ms:
        parts.append(f"{progress.saved_ms / 1000:.1f} s saved")
    return f"{progress.done}{of}: {', '.join(parts)}"


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


class Bar:
    """What shows how far a batch has come. This one tells nobody."""

    def show(self, progress: Progress) -> None:
        """Another result is there."""

    def end(self, progress: Progress) -> None:
        """No other comes; called any number of times."""


def bar(total: int | None, wanted: bool | None) -> Bar:
    """What shows a batch of ``total`` jobs (``None``: not known). ``wanted``: ``None`` for a bar on a
    terminal, and for several jobs, only."""
    stream = sys.stderr
    try:
        terminal = stream is not None and stream.isatty()
    except ValueError:
        terminal = False
    if stream is None or wanted is False or (wanted is None and not (terminal and total != 1)):
        return Bar()
    if terminal:
        try:
            return _Careful(_Drawn(total))
        except Exception:
            # No rich, or one that does not like this terminal.
            return _Careful(_Lines(stream, total))
    return _Careful(_Lines(stream, total))


class _Careful(Bar):
    """What goes wrong with showing ends the showing and nothing else."""

    def __init__(self, inner: Bar) -> None:
        self._inner = inner

    def show(self, progress: Progress) -> None:
        try:
            self._inner.show(progress)
        except Exception:
            self._inner = Bar()

    def end(self, progress: Progress) -> None:
        try:
            self._inner.end(progress)
        except Exception:
            self._inner = Bar()


class _Lines(Bar):
    def __init__(self, stream: TextIO, total: int | None) -> None:
        self._stream = stream
        self._step = max(1, total // _LINES) if total is not None else _LINE_EVERY
        self._said = 0

    def show(self, progress: Progress) -> None:
        if progress.done - self._said >= self._step or progress.done == progress.total:
            self._say(progress)

    def end(self, progress: Progress) -> None:
        if progress.done != self._said:
            self._say(progress)

    def _say(self, progress: Progress) -> None:
        self._said = progress.done
        self._stream.write(f"ptocache: {words(progress)}\n")
        self._stream.flush()


class _Drawn(Bar):
    def __init__(self, total: int | None) -> None:
        from rich import progress as rich_progress
        from rich.console import Console

        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("ptocache"),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=total)
        self._drawn_s = 0.0
        self._ended = False
        self._bar.start()

    def show(self, progress: Progress) -> None:
        self._update(progress)
        now_s = time.monotonic()
        if now_s - self._drawn_s >= _REDRAW_S or progress.done == progress.total:
            self._drawn_s = now_s
            self._bar.refresh()

    def end(self, progress: Progress) -> None:
        if not self._ended:
            self._ended = True
            self._update(progress)
            self._bar.stop()

    def _update(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            description=words(progress),
        )
