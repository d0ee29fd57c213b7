"""An event is a line, whatever it holds and whatever becomes of the place where lines go."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import log
from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NASTY = 'a\nb\x1b[31m\udcff\u2028"\\ \x85\x7fé'
LOGGER = logging.Logger("t")
"""Known to nobody else: what is logged here must not go into the report of a test, which cannot carry it."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What is logged to the logger ``t``."""
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    LOGGER.handlers = [Keep()]
    LOGGER.setLevel(logging.INFO)
    yield found
    LOGGER.handlers = []


def one(records: list[logging.LogRecord], message: str, *words: object, **fields: object) -> Any:
    """The record of one event."""
    if words:
        LOGGER.info(message, *words)
    else:
        log.event(LOGGER, logging.INFO, message, **fields)
    return records[-1]


# --- text


def test_text_is_time_level_logger_message_and_fields(records: list[logging.LogRecord]) -> None:
    line = log.TextFormatter().format(one(records, "compile", key="ab12", exit=0, good=True))
    assert STAMP.match(line)
    assert STAMP.sub("", line, count=1) == "INFO t: compile key=ab12 exit=0 good=true"


def test_time_is_utc_with_milliseconds(records: list[logging.LogRecord]) -> None:
    record = one(records, "x")
    record.created, record.msecs = 86400.0625, 62.5
    assert log.TextFormatter().format(record).startswith("1970-01-02T00:00:00.062Z INFO")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain/path.c", "plain/path.c"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nbreak", '"line\\nbreak"'),
    ],
)
def test_field_ends_where_it_seems_to_end(
    value: str, word: str, records: list[logging.LogRecord]
) -> None:
    line = log.TextFormatter().format(one(records, "m", field=value, after=1))
    assert line.endswith(f": m field={word} after=1")


def test_fields_that_are_none_are_left_out(records: list[logging.LogRecord]) -> None:
    record = one(records, "m", there=0, gone=None)
    assert log.TextFormatter().format(record).endswith(": m there=0")
    assert "gone" not in json.loads(log.JsonFormatter().format(record))


def test_nothing_below_the_level_is_even_made(records: list[logging.LogRecord]) -> None:
    log.event(LOGGER, logging.DEBUG, "quiet", key=1)
    assert records == []


# --- one line each


@pytest.mark.parametrize("form", [log.TextFormatter(), log.JsonFormatter()], ids=["text", "json"])
def test_whatever_a_peer_sends_is_one_line_of_printable_text(
    form: logging.Formatter, records: list[logging.LogRecord]
) -> None:
    for record in (one(records, "%s", NASTY), one(records, NASTY, kernel=NASTY)):
        line = form.format(record)
        assert line.isprintable()
        assert len(line.splitlines()) == 1


def test_json_gives_back_what_was_logged(records: list[logging.LogRecord]) -> None:
    found = json.loads(log.JsonFormatter().format(one(records, "compile", kernel=NASTY, exit=3)))
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info", "logger": "t", "message": "compile", "kernel": NASTY, "exit": 3,
    }  # fmt: skip


def test_field_cannot_stand_in_for_time_or_message(records: list[logging.LogRecord]) -> None:
    record = one(records, "real")
    record.fields = {"message": "forged", "level": "x", "own": 1}
    found = json.loads(log.JsonFormatter().format(record))
    assert (found["message"], found["level"], found["own"]) == ("real", "info", 1)


def test_traceback_is_marked_in_text_and_a_value_in_json(
    records: list[logging.LogRecord],
) -> None:
    try:
        raise KeyError(NASTY)
    except KeyError:
        LOGGER.exception("a fault")
    text = log.TextFormatter().format(records[-1]).splitlines()
    assert text[0].endswith("ERROR t: a fault")
    assert text[1] == "  | Traceback (most recent call last):"
    assert all(line.startswith("  | ") and line.isprintable() for line in text[1:])
    line = log.JsonFormatter().format(records[-1])
    assert len(line.splitlines()) == 1
    assert json.loads(line)["traceback"].startswith("Traceback")


# --- where it goes: each in a process of its own, whose descriptors are the matter

SETTINGS: Mapping[str, object] = {
    "daemon.log_level": "info",
    "daemon.log_format": "text",
    "daemon.log_file": "",
    "daemon.log_size": 0,
    "daemon.log_count": 2,
}


def run(code: str, place: Path | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run ``code`` after the log was set up, to the file ``place`` if there is one."""
    settings = {**SETTINGS, "daemon.log_file": str(place or ""), **options.pop("settings", {})}
    head = "import logging, os, sys\nfrom ptocache import log\n"
    return subprocess.run(
        [sys.executable, "-c", f"{head}log.set_up({settings!r})\nl = logging.getLogger('t')\n{code}"],
        capture_output="stderr" not in options, timeout=DEADLINE_S, check=False, **options,
    )  # fmt: skip


def test_standard_error_gets_whole_lines() -> None:
    done = run("l.info('first'); l.warning('sécond'); l.debug('not this')")
    assert done.returncode == 0
    assert [STAMP.sub("", line) for line in done.stderr.decode().splitlines()] == [
        "INFO t: first",
        "WARNING t: sécond",
    ]


def test_full_place_for_standard_error_ends_nothing() -> None:
    with open("/dev/full", "wb") as full:
        done = run("for _ in range(100): l.info('x' * 1000)", stderr=full)
    assert done.returncode == 0


def test_closed_standard_error_is_held_so_that_no_file_takes_its_place(tmp_path: Path) -> None:
    code = (
        "f = open(sys.argv[1], 'wb'); assert f.fileno() > 2, f.fileno(); l.error('lost');"
        "os.write(2, b'a library says'); f.write(b'mine')"
    )
    settings = dict(SETTINGS)
    boot = (
        "import logging, os, sys\nfor fd in (0, 1, 2): os.close(fd)\nfrom ptocache import log\n"
        f"log.set_up({settings!r})\nl = logging.getLogger('t')\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", boot, str(tmp_path / "f")], timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_reader_that_is_stuck_holds_nobody_up_and_is_told_what_it_missed() -> None:
    reader, writer = os.pipe()
    code = (
        "for n in range(3000): l.info('%d %s', n, 'x' * 100)\n"
        "print('done', flush=True); sys.stdin.readline(); l.info('the last')"
    )
    head = "import logging, os, sys\nfrom ptocache import log\n"
    boot = f"{head}log.set_up({dict(SETTINGS)!r})\nl = logging.getLogger('t')\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", boot],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer,
    )  # fmt: skip
    os.close(writer)
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    os.set_blocking(reader, False)
    first = os.read(reader, 1 << 20)
    os.set_blocking(reader, True)
    process.communicate(b"go\n", timeout=DEADLINE_S)
    lines = (first + os.read(reader, 1 << 20)).decode().splitlines()
    os.close(reader)
    assert process.returncode == 0
    assert all(STAMP.match(line) for line in lines)
    told = re.search(r"WARNING ptocache.log: (\d+) lines of the log", lines[-2])
    assert told
    assert lines[-1].endswith("INFO t: the last")
    assert int(told[1]) + len(lines) - 2 == 3000


def test_file_is_this_users_alone_and_is_rotated_by_size(tmp_path: Path) -> None:
    place = tmp_path / "log"
    settings = {"daemon.log_size": 1000, "daemon.log_count": 2}
    done = run(
        "for n in range(100): l.info('%03d', n)", place, settings=settings,
        umask=0,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1", "log.2"]
    for name in os.listdir(tmp_path):
        info = (tmp_path / name).stat()
        assert stat.S_IMODE(info.st_mode) == 0o600
        assert info.st_size <= 1000
    kept = b"".join((tmp_path / name).read_bytes() for name in ("log.2", "log.1", "log"))
    numbers = [int(line.split()[-1]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 100)), "nothing is lost between two files"


def test_what_shares_the_file_as_its_standard_error_moves_along(tmp_path: Path) -> None:
    place = tmp_path / "log"
    settings = {"daemon.log_size": 200, "daemon.log_count": 1}
    with open(place, "ab") as raw:
        done = run(
            "for n in range(20): l.info('%03d', n)\nos.write(2, b'from below\\n')",
            place, settings=settings, stderr=raw,
        )  # fmt: skip
    assert done.returncode == 0
    assert place.read_bytes().endswith(b"from below\n")


def test_file_that_cannot_be_opened_gives_standard_error_and_says_so(tmp_path: Path) -> None:
    done = run("l.info('still here')", tmp_path / "none" / "log")
    lines = done.stderr.decode().splitlines()
    assert "the log cannot be a file" in lines[0]
    assert str(tmp_path / "none" / "log") in lines[0]
    assert lines[1].endswith("INFO t: still here")


def test_file_on_a_full_disk_ends_nothing() -> None:
    done = run("for _ in range(100): l.info('x' * 1000)", Path("/dev/full"))
    assert (done.returncode, done.stderr) == (0, b"")
