"""What a batch shows: words, lines, and that nothing about it can be an error."""

from __future__ import annotations

import builtins
import io
import sys
from typing import Any

import pytest

from ptocache import progress as shown
from ptocache.batch import Progress


class Terminal(io.StringIO):
    """Standard error that is a terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


class Gone(Terminal):
    """A terminal that has been closed."""

    def write(self, text: str) -> int:
        raise OSError("gone")


SOME = Progress(12, 40, hits=7, joined=1, compiled=3, failed=1, saved_ms=3210)


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(), "0: 0 hits, 0 misses"),
        (SOME, "12/40: 8 hits, 3 misses, 1 failure, 3.2 s saved"),
        (Progress(2, hits=1, bypassed=1), "2: 1 hit, 1 miss"),
    ],
)
def test_words_say_what_became_of_the_requests(progress: Progress, words: str) -> None:
    assert shown.words(progress) == words


def lines(monkeypatch: pytest.MonkeyPatch, total: int | None, count: int) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = shown.bar(total, True)
    for done in range(1, count + 1):
        bar.show(Progress(done, total, compiled=done))
    bar.end(Progress(count, count, compiled=count))
    bar.end(Progress(count, count, compiled=count))
    return stream.getvalue().splitlines()


def test_lines_are_few_however_many_jobs_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines(monkeypatch, 1000, 1000)
    assert len(found) == 10
    assert found[-1] == "ptocache: 1000/1000: 0 hits, 1000 misses"


def test_lines_of_an_unknown_number_end_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.split(":")[1] for line in lines(monkeypatch, None, 250)] == [
        " 100", " 200", " 250/250",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "total", "wanted"),
    [
        (io.StringIO(), 5, None),
        (io.StringIO(), 5, False),
        (Terminal(), 1, None),
        (Terminal(), 5, False),
        (None, 5, True),
    ],
)
def test_nothing_is_shown_without_a_terminal_or_for_one_job(
    monkeypatch: pytest.MonkeyPatch, stream: Any, total: int, wanted: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    bar = shown.bar(total, wanted)
    bar.show(SOME)
    bar.end(SOME)
    assert type(bar) is shown.Bar
    assert stream is None or stream.getvalue() == ""


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **more)

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(builtins, "__import__", without)
    bar = shown.bar(2, None)
    bar.show(Progress(1, 2, hits=1))
    bar.end(Progress(2, 2, hits=2))
    assert stream.getvalue().splitlines()[-1] == "ptocache: 2/2: 2 hits, 0 misses"


@pytest.mark.parametrize("wanted", [None, True])
def test_a_terminal_that_is_gone_is_no_error(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    bar = shown.bar(5, wanted)
    for _ in range(2):
        bar.show(SOME)
        bar.end(SOME)
