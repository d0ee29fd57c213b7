"""What the disk refused: by name, counted, and said once."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from pathlib import Path

import pytest

from ptocache.accounting import Recency, Use
from ptocache.outcome import Reason
from ptocache.paths import StorePaths, store_at
from ptocache.store.health import Health, failure_reason, is_damage, name_of
from ptocache.store.store import Store
from ptocache.tally import Tally
from ptocache_cli import doctor, render


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def said_by_sqlite(sql: str) -> sqlite3.Error:
    with pytest.raises(sqlite3.Error) as caught:
        sqlite3.connect(":memory:").execute(sql)
    return caught.value


@pytest.mark.parametrize(
    ("error", "name", "reason"),
    [
        (OSError(errno.ENOSPC, "x"), "ENOSPC", Reason.NO_SPACE),
        (OSError(errno.EDQUOT, "x"), "EDQUOT", Reason.NO_SPACE),
        (OSError(errno.EIO, "x"), "EIO", Reason.IO_ERROR),
        (OSError(9999, "x"), "errno 9999", Reason.IO_ERROR),
        (OSError("no number"), "OSError", Reason.IO_ERROR),
        (caused(OSError("x"), OSError(errno.EROFS, "y")), "EROFS", Reason.IO_ERROR),
        (sqlite3.OperationalError("database or disk is full"), "SQLITE_FULL", Reason.NO_SPACE),
        (sqlite3.OperationalError("database is locked"), "SQLITE_BUSY", Reason.IO_ERROR),
        (sqlite3.DatabaseError("the index is malformed: x"), "SQLITE_CORRUPT", Reason.IO_ERROR),
        (sqlite3.OperationalError("else"), "SQLITE_ERROR", Reason.IO_ERROR),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), "SQLITE_MISUSE",
         Reason.IO_ERROR),
    ],
)  # fmt: skip
def test_an_error_has_a_name_and_a_reason(error: Exception, name: str, reason: Reason) -> None:
    assert name_of(error) == name
    assert failure_reason(error) is reason


@pytest.mark.parametrize(
    ("error", "damage"),
    [
        (sqlite3.DatabaseError("database disk image is malformed"), True),
        (sqlite3.DatabaseError("file is not a database"), True),
        (sqlite3.OperationalError("disk I/O error"), False),
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), False),
        (OSError(errno.EIO, "x"), False),
    ],
)
def test_only_a_contradiction_is_damage(error: Exception, damage: bool) -> None:
    assert is_damage(error) is damage


def test_an_index_without_our_tables_is_damaged() -> None:
    assert is_damage(said_by_sqlite("SELECT * FROM entries"))


def test_failures_are_counted_by_name_and_the_last_is_told() -> None:
    health = Health("/s")
    assert health.report() == {"failures": {}, "last_failure": None}
    health.note(OSError(errno.EIO, "x", "/s/blobs/ab/cd"), "read", "m")
    health.note(OSError(errno.EIO, "x", "/s/tmp/blob-1", None, "/s/blobs/ab/cd"), "publish", "m")
    health.note(OSError(errno.ENOSPC, "x", "/s/tmp/blob-1"), "publish", "m")
    found = health.report()
    assert found["failures"] == {"EIO": 2, "ENOSPC": 1}
    last = found["last_failure"]
    assert (last["error"], last["doing"], last["place"]) == ("ENOSPC", "publish", "tmp")
    assert last["at_s"] > 0


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (sqlite3.OperationalError("x"), "index"),
        (caused(OSError("x"), sqlite3.OperationalError("x")), "index"),
        (OSError(1, "x", "/s/blobs/ab/cd"), "blobs"),
        (OSError(1, "x", "/s/tmp/x", None, "/s/blobs/ab/cd"), "blobs"),
        (OSError(1, "x", "/elsewhere"), ""),
        (OSError(1, "x", "/sibling/s"), ""),
        (OSError(1, "x"), ""),
        (OSError(1, "x", b"/s/bytes"), ""),
    ],
)
def test_a_failure_tells_where_it_was(error: Exception, place: str) -> None:
    assert Health("/s").note(error, "read", "m").place == place


def test_the_same_trouble_is_said_once_until_it_was_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ptocache.store")
    health = Health("/s")
    for _ in range(3):
        health.note(OSError(errno.ENOSPC, "full"), "publish", "not stored")
    health.note(OSError(errno.ENOSPC, "full"), "statistics", "not written")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    caplog.clear()
    health.well("publish")
    health.well("publish")
    assert [record.getMessage() for record in caplog.records] == ["publish works again"]
    caplog.clear()
    health.note(OSError(errno.ENOSPC, "full"), "publish", "not stored")
    health.note(OSError(errno.ENOSPC, "full"), "statistics", "not written")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# --- what is told of it

LAST = {"error": "ENOSPC", "doing": "publish", "place": "tmp", "at_s": 0.0}
WORDS = "the last was ENOSPC in tmp (publish), 1970-01-01 00:00:00 UTC"


def test_the_last_failure_is_told_in_words() -> None:
    assert render.failure(LAST) == WORDS
    assert render.failure({**LAST, "place": ""}).startswith("the last was ENOSPC (publish)")


@pytest.mark.parametrize(
    ("health", "verdict"),
    [
        ({"read_only": False, "failures": {}, "last_failure": None}, doctor.OK),
        ({"read_only": False, "failures": {"ENOSPC": 3}, "last_failure": LAST}, doctor.NOTE),
        ({"read_only": True, "failures": {"ENOSPC": 3}, "last_failure": LAST}, doctor.PROBLEM),
        ({"read_only": True, "failures": {}, "last_failure": None}, doctor.PROBLEM),
    ],
)
def test_doctor_judges_it(health: dict[str, object], verdict: str) -> None:
    line = doctor.judge_health(health)
    assert line.verdict == verdict
    assert bool(line.hint) is (verdict != doctor.OK)
    assert (WORDS in line.text) is (health["last_failure"] is not None)


# --- what is not lost by it


def test_uses_that_could_not_be_written_are_given_back() -> None:
    recency = Recency()
    recency.touch(1, 10.0)
    recency.touch(1, 11.0)
    recency.touch(2, 12.0)
    drained = recency.drain()
    recency.touch(1, 20.0)
    recency.restore(drained)
    assert recency.drain() == {1: Use(3, 20.0), 2: Use(1, 12.0)}


# --- where what cannot lie in the store lies


def test_a_read_only_store_is_written_to_nowhere_below_its_root(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    plain, reading = StorePaths(root), StorePaths(root, read_only=True)
    assert (plain.read_only, reading.read_only) == (False, True)
    names = ("lock", "start_lock", "log", "tmp")
    for name in names:
        assert getattr(plain, name).startswith(root + os.sep)
        assert getattr(reading, name).startswith(reading.aside + os.sep)
    assert (reading.index, reading.blobs) == (plain.index, plain.blobs)
    assert reading.spare == plain.spare == reading.tmp
    assert str(os.geteuid()) in reading.aside


def test_two_stores_have_nothing_in_common_aside(tmp_path: Path) -> None:
    one, two = (StorePaths(str(tmp_path / name), read_only=True) for name in "ab")
    assert one.aside != two.aside


def test_only_a_warm_store_is_read_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    refused: set[str] = set()
    access = os.access

    def asked(path: str, mode: int) -> bool:
        return str(path) not in refused and access(path, mode)

    monkeypatch.setattr(os, "access", asked)
    refused.add(str(root))
    assert not store_at(str(root)).read_only, "there is nothing to read"
    root.mkdir()
    assert not store_at(str(root)).read_only
    (root / "index.sqlite").touch()
    assert store_at(str(root)).read_only
    refused.clear()
    assert not store_at(str(root)).read_only
    refused.add(str(root / "index.sqlite"))
    assert store_at(str(root)).read_only


def test_place_aside_is_private_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptocache.paths._PASSING_PLACES", (str(tmp_path),))
    paths = StorePaths(str(tmp_path / "store"))
    paths.make_aside(paths.spare)
    paths.make_aside(paths.spare)
    for directory in (Path(paths.spare), Path(paths.aside), Path(paths.aside).parent):
        assert directory.stat().st_mode & 0o777 == 0o700
    Path(paths.spare).rmdir()
    Path(paths.spare).symlink_to("/")
    with pytest.raises(OSError, match="link"):
        paths.make_aside(paths.spare)


@pytest.mark.parametrize("which", ["aside", "above"])
def test_link_in_the_place_aside_costs_nobody_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr("ptocache.paths._PASSING_PLACES", (str(tmp_path),))
    paths = StorePaths(str(tmp_path / "store"))
    victim = tmp_path / "victim"
    aside = Path(paths.aside)
    if which == "aside":
        (victim / "tmp").mkdir(parents=True, mode=0o700)
        aside.parent.mkdir(mode=0o700)
        aside.symlink_to(victim)
    else:
        (victim / aside.name / "tmp").mkdir(parents=True, mode=0o700)
        aside.parent.symlink_to(victim)
    precious = Path(paths.spare) / "precious"
    precious.write_bytes(b"x")
    store = Store(paths, limit=1 << 20, low_water=0.9, memory=1 << 20, fsync=False, tally=Tally())
    store.sweep_unfinished()
    with pytest.raises(OSError, match="link"):
        store.scratch_failed(OSError(errno.ENOSPC, "full"))
    store.close()
    assert precious.exists()


def test_what_a_dead_daemon_left_aside_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptocache.paths._PASSING_PLACES", (str(tmp_path),))
    paths = StorePaths(str(tmp_path / "store"))
    store = Store(paths, limit=1 << 20, low_water=0.9, memory=1 << 20, fsync=False, tally=Tally())
    left = Path(store.scratch_failed(OSError(errno.ENOSPC, "full"))) / "job-x"
    left.mkdir()
    store.sweep_unfinished()
    assert not left.exists()
    store.close()
    assert not Path(paths.aside).exists()
