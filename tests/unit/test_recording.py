"""The recorder: one append a request, and nothing of its troubles reaches the run."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from ptocache import recorded, recording, wire
from ptocache.digest import Digest
from ptocache.model import Input, Job
from ptocache.outcome import Reason
from ptocache.pending import Pending
from ptocache.recording import Recorder

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """A journal and a recorder that appends to it."""

    def __init__(self, place: Path) -> None:
        self.path = place / "journal"
        self.path.touch(0o600)
        self.said: list[str] = []
        self.recorder = Recorder(str(self.path), lambda cause, text: self.said.append(text))

    def read(self) -> recorded.Recording:
        return recorded.read(str(self.path))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def pending(text: bytes = b"int k;\n", *options: str, **env: str) -> Pending:
    job = Job("host", "", options, (), (Input("k.c", Digest.of(text)),), ("object",), kernel="k")
    return Pending(wire.Request(job, {}), {"k.c": text}, env, 0)


def test_a_request_is_one_append_however_often_it_is_made(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    write = os.write

    def noted(fd: int, data: bytes) -> int:
        writes.append(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    for _ in range(3):
        same = pending()
        journal.recorder.compile(same, ["CPATH"])
        journal.recorder.compile(same.again(), ["CPATH"])
    assert len(writes) == 1
    journal.recorder.compile(pending(b"int k;\n", "-O2"), ["CPATH"])
    assert b'"record":"input"' in writes[0]
    assert b'"record":"input"' not in writes[1], "the same source is written once"
    assert len(journal.read().compiles) == 2


def test_only_declared_variables_are_written(journal: Journal) -> None:
    journal.recorder.compile(pending(CPATH="/inc", TOKEN="secret"), ["CPATH", "LANG*"])
    (found,) = journal.read().compiles
    assert found.request.job.env == (("CPATH", "/inc"),)
    assert b"secret" not in journal.path.read_bytes()


def test_two_recorders_share_a_journal(journal: Journal) -> None:
    other = Recorder(str(journal.path), lambda *_: None)
    journal.recorder.compile(pending(b"int a;\n"), [])
    other.compile(pending(b"int a;\n"), [])
    other.compile(pending(b"int b;\n"), [])
    assert len(journal.read().compiles) == 2


def test_failures_that_would_repeat_themselves_are_noted(journal: Journal) -> None:
    good, bad = pending(b"int a;\n"), pending(b"int b\n")
    for item in (good, bad):
        journal.recorder.compile(item, [])
    journal.recorder.failed(good, Reason.STEP_TIMEOUT)
    journal.recorder.failed(bad, Reason.COMPILE_FAILED)
    journal.recorder.failed(bad, Reason.REMEMBERED_FAILURE)
    assert sorted(item.failed for item in journal.read().compiles) == [False, True]
    assert journal.path.read_bytes().count(b'"failed"') == 1


def test_inputs_that_are_too_long_leave_a_note(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "REQUEST_BYTES", 100)
    journal.recorder.compile(pending(b" " * 101), [])
    found = journal.read()
    assert found.compiles == ()
    assert [(item.kernel, "longer than 100" in item.why) for item in found.left_out] == [
        ("k", True)
    ]


def test_a_kernels_material_is_not_written(journal: Journal) -> None:
    for word in ("secret", "secret", "other"):
        job = Job("host", "", (), (), (), (), kernel="gemm")
        journal.recorder.kernel(wire.KernelRequest(job, (("source", word),)))
    assert journal.read().kernels == (recorded.Kernels("host", "", "gemm", 2),)
    assert b"secret" not in journal.path.read_bytes()


def full(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("trouble", ["full", "cut", "long"])
def test_trouble_is_one_warning_and_a_mark_on_the_file(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    journal.recorder.compile(pending(b"int first;\n"), [])
    write = os.write
    if trouble == "full":
        monkeypatch.setattr(os, "write", full)
    elif trouble == "cut":
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    else:
        monkeypatch.setattr(recording, "LIMIT_BYTES", 10)
    for number in range(3):
        journal.recorder.compile(pending(b"int n%d;\n" % number), [])
    monkeypatch.undo()
    assert len(journal.said) == 1
    assert "records nothing more" in journal.said[0]
    assert stat.S_IMODE(journal.path.stat().st_mode) == recording.LOST_MODE
    assert len(journal.read().compiles) == 1
    other = Recorder(str(journal.path), lambda *_: None)
    other.compile(pending(b"int after;\n"), [])
    assert len(journal.read().compiles) == 2, "what was cut short spoils nothing behind it"


def test_where_no_journal_is_none_is_made(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(str(tmp_path / "none"), lambda cause, text: said.append(text))
    recorder.compile(pending(), [])
    recorder.compile(pending(b"int other;\n"), [])
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_outlives_its_recording_says_nothing(journal: Journal) -> None:
    journal.recorder.compile(pending(), [])
    journal.path.unlink()
    for number in range(2):
        journal.recorder.compile(pending(b"int n%d;\n" % number), [])
    assert journal.said == []
    assert not journal.path.exists()


def test_no_descriptor_is_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(recording, "LIMIT_BYTES", 300)
    for number in range(4):
        journal.recorder.compile(pending(b"int n%d;\n" % number), [])
    assert len(journal.said) == 1
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    "content", [b"mine\n", b'{"record":"something"}\n', b"x" * 300 + b'"ptocache-recording"\n']
)
def test_a_file_that_is_no_recording_stays_as_it_is(journal: Journal, content: bytes) -> None:
    journal.path.write_bytes(content)
    for number in range(2):
        journal.recorder.compile(pending(b"int n%d;\n" % number), [])
    assert len(journal.said) == 1
    assert "is no recording" in journal.said[0]
    assert journal.path.read_bytes() == content
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "folder"])
def test_what_is_no_file_stays_as_it_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "/dev/null" if kind == "device" else "odd"
    reader = -1
    if kind == "fifo":
        os.mkfifo(place)
        reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    elif kind == "folder":
        os.mkdir(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(place)
    before = os.stat(place).st_mode
    changed: list[int] = []
    monkeypatch.setattr(os, "fchmod", lambda fd, mode: changed.append(mode))
    said: list[str] = []
    recorder = Recorder(place, lambda cause, text: said.append(text))
    for number in range(2):
        recorder.compile(pending(b"int n%d;\n" % number), [])
    assert len(said) == 1
    assert (os.stat(place).st_mode, changed) == (before, [])
    if reader >= 0:
        assert os.read(reader, 100) == b""
        os.close(reader)


def test_a_request_that_cannot_be_understood_is_no_error(journal: Journal) -> None:
    broken = pending()
    broken.data = {}
    journal.recorder.compile(broken, [])
    assert len(journal.said) == 1
