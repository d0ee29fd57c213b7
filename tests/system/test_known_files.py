"""Digests of large files, asked of a real daemon: right, of exactly the file that is meant, and kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.contents import PERSIST_BYTES
from ptocache.errors import BadRequestError
from ptocache.integrations import files
from ptocache.integrations.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness import DaemonProcess

    MakeDaemon = Callable[..., DaemonProcess]


def mapped() -> set[str]:
    """The files that this process has mapped: libraries, which have been there for long."""
    with open("/proc/self/maps") as lines:
        names = {line.split(maxsplit=5)[-1].strip() for line in lines}
    return {name for name in names if name.startswith("/") and os.path.isfile(name)}


LARGE = Path(max(mapped(), key=os.path.getsize))


def row(path: Path) -> list[Any]:
    info = path.stat()
    return [
        str(path), info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
    ]  # fmt: skip


def files_read(daemon: DaemonProcess) -> int:
    with daemon.client() as client:
        found: int = client.call("status")["identity"]["files_read"]
    return found


def test_digest_of_a_large_file_is_read_once_in_the_life_of_a_store(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon().start()
    sha256 = hashlib.sha256(LARGE.read_bytes()).hexdigest()
    for reads in (1, 0):
        with daemon.client() as client:
            for _ in range(2):
                assert client.call("digests", files=[row(LARGE)]) == [sha256]
        assert files_read(daemon) == reads
        daemon.restart()


def test_other_file_than_the_one_meant_is_nothing(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"x" * PERSIST_BYTES)
    other = [*row(LARGE)[:-1], row(LARGE)[-1] + 1]
    gone = ["/nowhere/at/all", *row(LARGE)[1:]]
    with daemon.client() as client:
        assert client.call("digests", files=[other, row(fresh), gone]) == ["", "", ""]
    assert files_read(daemon) == 0


def test_question_that_is_none_is_a_bad_request_and_the_connection_goes_on(
    make_daemon: MakeDaemon,
) -> None:
    with make_daemon().start().client() as client:
        with pytest.raises(BadRequestError, match="at most 64 files"):
            client.call("digests", files=[row(LARGE)] * 65)
        assert client.call("digests", files=[]) == []


def test_integration_learns_digests_and_reads_for_itself_without_a_daemon(
    make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make_daemon().start()
    for name, value in daemon.env.items():
        monkeypatch.setenv(name, value)
    sha256 = hashlib.sha256(LARGE.read_bytes()).hexdigest()
    process = Process("Some")
    try:
        monkeypatch.setattr(files, "_digests", {})
        files.learn([str(LARGE)], process.digests)
        assert [found for _, found in files._digests.values()] == [sha256]
        assert files.digest_of_program(str(LARGE), "") == sha256
        daemon.stop()
        monkeypatch.setattr(files, "_digests", {})
        files.learn([str(LARGE)], process.digests)
        assert files._digests == {}
        assert files.digest_of_program(str(LARGE), "") == sha256
    finally:
        process.end()
