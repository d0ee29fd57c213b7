"""``verify``: damage of every kind is found, healed, and told by the exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.outcome import Outcome
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness import DaemonProcess

NAMES = ("one", "two", "three")


@pytest.fixture
def filled(daemon: DaemonProcess) -> DaemonProcess:
    """A daemon whose store holds one entry for each of ``NAMES``."""
    for name in NAMES:
        compile_one(daemon, name)
    return daemon


def compile_one(daemon: DaemonProcess, name: str) -> Outcome:
    source = f"const char {name}[200000] = {{1}};\n"
    with daemon.client() as client:
        return client.compile("host", {"k.c": source}, outputs=["object"], kernel=name).outcome


def output_of(daemon: DaemonProcess, name: str) -> Path:
    """The stored file of an entry's object."""
    with daemon.client() as client:
        source = f"const char {name}[200000] = {{1}};\n"
        found = client.compile("host", {"k.c": source}, outputs=["object"], kernel=name)
    sha256 = found.outputs["object"].digest
    path = daemon.root / "blobs" / sha256[:2] / sha256
    assert path.is_file()
    return path


def flip(path: Path) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def cut(path: Path) -> None:
    os.chmod(path, 0o600)
    os.truncate(path, path.stat().st_size // 2)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "checksum": flip, "truncated": cut, "missing": Path.unlink, "not_a_file": make_folder,
}  # fmt: skip


def test_a_whole_store_is_whole_at_either_depth(filled: DaemonProcess) -> None:
    for depth in ((), ("--fast",)):
        done = ptocache("verify", *depth, "--json", env=filled.env)
        assert (done.code, done.err) == (0, "")
        found = done.json()
        assert (found["entries"], found["damaged"]) == (3, [])
        assert found["bytes"] > 3 * 200_000


@pytest.mark.parametrize("reason", DAMAGES)
def test_damage_is_found_healed_and_made_again(filled: DaemonProcess, reason: str) -> None:
    DAMAGES[reason](output_of(filled, "two"))
    done = ptocache("verify", "--json", env=filled.env)
    assert done.code == 4
    (damaged,) = done.json()["damaged"]
    assert (damaged["kernel"], damaged["reason"]) == ("two", reason)
    assert ptocache("verify", env=filled.env).code == 0
    with filled.client() as client:
        counts = client.stats()["caches"]["binary"]
    assert counts["corrupt_reasons"] == {reason: 1}
    assert compile_one(filled, "two") is Outcome.MISS
    assert compile_one(filled, "one").is_hit


@pytest.mark.parametrize("reason", ["truncated", "missing", "not_a_file"])
def test_the_fast_look_finds_what_sizes_tell(filled: DaemonProcess, reason: str) -> None:
    DAMAGES[reason](output_of(filled, "two"))
    done = ptocache("verify", "--fast", "--json", env=filled.env)
    assert done.code == 4
    assert [item["kernel"] for item in done.json()["damaged"]] == ["two"]


def test_the_fast_look_reads_nothing(filled: DaemonProcess) -> None:
    flip(output_of(filled, "two"))
    assert ptocache("verify", "--fast", env=filled.env).code == 0
    assert ptocache("verify", env=filled.env).code == 4


def test_a_dry_run_leaves_everything_as_it_is(filled: DaemonProcess) -> None:
    flip(output_of(filled, "two"))
    for _ in range(2):
        done = ptocache("verify", "--dry-run", env=filled.env)
        assert done.code == 4
        assert "left as they are" in done.out
    assert not os.listdir(filled.root / "quarantine")


def test_two_entries_that_share_a_damaged_file_are_both_taken_out(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for salt in ("a", "b"):
            client.compile("host", {"k.c": "int f;\n"}, outputs=["object"], salt=salt)
        shared = client.compile("host", {"k.c": "int f;\n"}, outputs=["object"], salt="a")
    sha256 = shared.outputs["object"].digest
    flip(daemon.root / "blobs" / sha256[:2] / sha256)
    assert ptocache("verify", env=daemon.env).code == 4
    found = ptocache("verify", "--json", env=daemon.env).json()
    assert (found["entries"], found["damaged"]) == (0, [])


def test_a_page_begins_behind_the_entry_that_is_named(filled: DaemonProcess) -> None:
    with filled.client() as client:
        first = client.call("verify", after=0)
        assert (first["entries"], first["after"]) == (3, None)
        rest = client.call("verify", after=1)
        assert (rest["entries"], rest["after"]) == (2, None)
        assert client.call("verify", after=99)["entries"] == 0


def test_a_store_that_does_not_exist_is_whole(tmp_path: Path) -> None:
    env = {"PTOCACHE_DIR": str(tmp_path / "none"), "PTOCACHE_AUTOSTART": "0"}
    done = ptocache("verify", "--json", env=env)
    assert done.code == 0
    assert done.json()["entries"] == 0
    assert not (tmp_path / "none").exists()
