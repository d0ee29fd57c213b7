"""Stored files that are not what entered: a counted miss that answers right and heals itself."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import entry as entry_document
from ptocache.outcome import Outcome
from tests.harness import DaemonProcess, compile_directly, start_in_vain

if TYPE_CHECKING:
    from collections.abc import Callable

ENV = {"PATH": os.environ.get("PATH", "")}
SMALL = b"int answer(void) { return 42; }\n"
LARGE = b"const char big[300000] = {1};\n"
EXIT_UNUSABLE = 4


def ask(daemon: DaemonProcess, source: bytes = SMALL) -> Any:
    with daemon.client() as client:
        return client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])


def files_of(daemon: DaemonProcess) -> dict[str, list[Path]]:
    """The stored files by what they are: ``document`` and ``output``."""
    found: dict[str, list[Path]] = {"document": [], "output": []}
    for path in (daemon.root / "blobs").glob("*/*"):
        document = path.read_bytes().startswith(entry_document.MAGIC[:-1])
        found["document" if document else "output"].append(path)
    return found


# --- ways of damage: each takes the path of a stored file


def cut_to_half(path: Path) -> None:
    os.chmod(path, 0o600)
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.chmod(path, 0o600)
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x10
    os.chmod(path, 0o600)
    path.write_bytes(data)


def flip_first(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 0x01
    os.chmod(path, 0o600)
    path.write_bytes(data)


def append(path: Path) -> None:
    os.chmod(path, 0o600)
    with path.open("ab") as file:
        file.write(b"\0")


def make_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def make_a_link_to_the_same_bytes(path: Path) -> None:
    aside = path.parents[2] / "aside"
    path.rename(aside)
    path.symlink_to(aside)


def make_a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def delete(path: Path) -> None:
    path.unlink()


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def make_the_folder_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"x")


WAYS: list[tuple[Callable[[Path], None], str]] = [
    (cut_to_half, "truncated"),
    (empty, "truncated"),
    (flip, "checksum"),
    (flip_first, "checksum"),
    (append, "truncated"),
    (make_a_directory, "not_a_file"),
    (make_a_link_to_the_same_bytes, "not_a_file"),
    (make_a_dangling_link, "not_a_file"),
    (make_a_pipe, "not_a_file"),
    (delete, "missing"),
]


def source_for(number: int, length: int) -> bytes:
    return b"const char big_%d[%d] = {1};\n" % (number, length)


@pytest.mark.kind("damaged_entry")
@pytest.mark.parametrize("length", [1, 300000], ids=["small", "large"])
@pytest.mark.parametrize("which", ["document", "output"])
def test_damaged_entry_is_one_counted_miss_that_heals(
    daemon: DaemonProcess, tmp_path: Path, which: str, length: int
) -> None:
    places: list[Path] = []
    before: set[Path] = set()
    for number in range(len(WAYS)):
        assert ask(daemon, source_for(number, length)).outcome is Outcome.MISS
        now = files_of(daemon)
        places.append(next(path for path in now[which] if path not in before))
        before = {*now["document"], *now["output"]}
    daemon.stop()
    for (harm, _), path in zip(WAYS, places, strict=True):
        harm(path)
    daemon.start()
    for number, (harm, reason) in enumerate(WAYS):
        source = source_for(number, length)
        wanted = compile_directly(source, "k.c", [], tmp_path / "direct")
        earlier = daemon.stats()
        healed, again = ask(daemon, source), ask(daemon, source)
        later = daemon.stats()
        assert (healed.outcome, again.outcome) == (Outcome.MISS, Outcome.MEMORY_HIT), harm
        assert healed.outputs["object"].buffer == wanted, harm
        assert again.outputs["object"].buffer == wanted, harm
        assert later["corrupt"] - earlier["corrupt"] == 1, harm
        known = [stats["corrupt_reasons"].get(reason, 0) for stats in (earlier, later)]
        assert known[1] - known[0] == 1, (harm, later["corrupt_reasons"])
    daemon.restart()
    for number in range(len(WAYS)):
        assert ask(daemon, source_for(number, length)).outcome is Outcome.DISK_HIT


@pytest.mark.parametrize(
    ("harm", "reason"), [(delete_the_folder, "missing"), (make_the_folder_a_file, "not_a_file")]
)
def test_damaged_folder_is_one_counted_miss_that_heals(
    daemon: DaemonProcess, harm: Callable[[Path], None], reason: str
) -> None:
    first = ask(daemon)
    daemon.stop()
    harm(files_of(daemon)["output"][0])
    daemon.start()
    healed = ask(daemon)
    assert healed.outcome is Outcome.MISS
    assert healed.outputs["object"].buffer == first.outputs["object"].buffer
    assert daemon.stats()["corrupt_reasons"] == {reason: 1}
    daemon.restart()
    assert ask(daemon).outcome is Outcome.DISK_HIT


def test_damage_to_what_two_entries_share_is_healed_for_both(daemon: DaemonProcess) -> None:
    # A comment makes another key and the same object.
    one, two = SMALL, SMALL + b"/* the same object */\n"
    first = ask(daemon, one)
    assert ask(daemon, two).outputs["object"].digest == first.outputs["object"].digest
    daemon.stop()
    flip(files_of(daemon)["output"][0])
    daemon.start()
    assert ask(daemon, one).outcome is Outcome.MISS
    assert ask(daemon, two).outcome is Outcome.MISS
    assert daemon.stats()["corrupt"] == 1
    daemon.restart()
    assert ask(daemon, one).outcome is Outcome.DISK_HIT
    assert ask(daemon, two).outcome is Outcome.DISK_HIT


@pytest.mark.parametrize("harm", [flip, cut_to_half, empty])
def test_large_output_that_is_written_to_under_a_running_daemon_is_not_served(
    daemon: DaemonProcess, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    wanted = compile_directly(LARGE, "k.c", [], tmp_path / "direct")
    ask(daemon, LARGE)
    assert ask(daemon, LARGE).outcome is Outcome.MEMORY_HIT
    harm(files_of(daemon)["output"][0])
    healed = ask(daemon, LARGE)
    assert healed.outcome is Outcome.MISS
    assert healed.outputs["object"].buffer == wanted
    assert daemon.stats()["corrupt"] == 1
    assert ask(daemon, LARGE).outcome is Outcome.MEMORY_HIT


def test_file_that_goes_under_a_running_daemon_is_still_served_by_it(
    daemon: DaemonProcess,
) -> None:
    first = ask(daemon, LARGE)
    for paths in files_of(daemon).values():
        for path in paths:
            path.unlink()
    again = ask(daemon, LARGE)
    assert again.outcome in (Outcome.MEMORY_HIT, Outcome.MISS)
    assert again.outputs["object"].buffer == first.outputs["object"].buffer


def test_damaged_files_are_kept_for_inspection_within_bounds(daemon: DaemonProcess) -> None:
    ask(daemon)
    daemon.stop()
    path = files_of(daemon)["output"][0]
    flip(path)
    bad = path.read_bytes()
    for number in range(100):
        (daemon.root / "quarantine" / f"old-{number}").write_bytes(b"x")
    daemon.start()
    ask(daemon)
    kept = list((daemon.root / "quarantine").iterdir())
    assert len(kept) == 64
    assert any(item.is_file() and item.read_bytes() == bad for item in kept)


# --- the index


def wreck(daemon: DaemonProcess, how: str) -> None:
    index = daemon.root / "index.sqlite"
    for suffix in ("-wal", "-shm"):
        Path(f"{index}{suffix}").unlink(missing_ok=True)
    if how == "half":
        os.truncate(index, index.stat().st_size // 2)
    elif how == "empty":
        os.truncate(index, 0)
    elif how == "garbage":
        index.write_bytes(os.urandom(5000))
    elif how == "garbage inside":
        with index.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * 8192)
    elif how == "directory":
        index.unlink()
        index.mkdir()
    elif how == "no tables":
        index.unlink()
        with sqlite3.connect(index) as connection:
            connection.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER)")
        connection.close()
    elif how == "deleted":
        index.unlink()
    elif how == "stale journal":
        Path(f"{index}-wal").write_bytes(os.urandom(5000))


@pytest.mark.parametrize(
    ("how", "reasons"),
    [
        ("half", {"bad_document": 1}),
        ("empty", {}),
        ("garbage", {"bad_document": 1}),
        ("garbage inside", {"bad_document": 1}),
        ("directory", {"bad_document": 1}),
        ("no tables", {"bad_document": 1}),
        ("deleted", {}),
        ("stale journal", {}),
    ],
)
def test_entries_outlive_a_wrecked_index(
    daemon: DaemonProcess, how: str, reasons: dict[str, int]
) -> None:
    first = ask(daemon)
    ask(daemon, LARGE)
    daemon.stop()
    wreck(daemon, how)
    daemon.start()
    again = ask(daemon)
    assert again.outcome is Outcome.DISK_HIT
    assert again.outputs["object"].buffer == first.outputs["object"].buffer
    assert ask(daemon, LARGE).outcome is Outcome.DISK_HIT
    with daemon.client() as client:
        stats = client.stats()
    assert stats["caches"]["binary"]["corrupt_reasons"] == reasons
    assert stats["store"]["entries"] == 2


def test_index_of_a_newer_schema_is_refused_and_left_as_it_is(daemon: DaemonProcess) -> None:
    ask(daemon)
    daemon.stop()
    with sqlite3.connect(daemon.root / "index.sqlite") as connection:
        connection.execute("UPDATE meta SET value = 999 WHERE key = 'schema'")
    connection.close()
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    assert b"schema 999" in done.stderr
    assert not daemon.socket.exists()
    with sqlite3.connect(daemon.root / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    connection.close()


def test_store_of_a_newer_version_is_refused(daemon: DaemonProcess) -> None:
    daemon.stop()
    (daemon.root / "VERSION").write_text("2\n")
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    assert b"version '2'" in done.stderr


@pytest.mark.parametrize("how", ["half", "garbage", "deleted"])
def test_index_that_is_wrecked_under_a_running_daemon_breaks_no_build(
    daemon: DaemonProcess, tmp_path: Path, how: str
) -> None:
    ask(daemon)
    wreck(daemon, how)
    other = b"int other(void) { return 43; }\n"
    with daemon.client(client_require=False) as client:
        for source in (SMALL, other, LARGE):
            found = client.compile(
                "host", {"k.c": source}, env=ENV, outputs=["object"], check=False
            )
            wanted = compile_directly(source, "k.c", [], tmp_path / "direct")
            assert found.ok, found.why
            assert found.outputs["object"].buffer == wanted
    daemon.kill()
    daemon.start()
    assert ask(daemon, other).outputs["object"].size > 0
    assert ask(daemon, other).outcome is Outcome.MEMORY_HIT


# --- what does not belong there


def test_stray_files_anywhere_do_not_matter(daemon: DaemonProcess) -> None:
    ask(daemon)
    daemon.stop()
    root = daemon.root
    output = files_of(daemon)["output"][0]
    for place in (root, root / "blobs", root / "quarantine", output.parent):
        (place / "stray").write_bytes(b"x")
        (place / "folder").mkdir()
        (place / "folder" / "inside").write_bytes(b"x")
        (place / "link").symlink_to("/nowhere")
        os.mkfifo(place / "pipe")
    (root / "tmp" / "job-old" / "w").mkdir(parents=True)
    (root / "tmp" / "blob-old").write_bytes(b"x")
    os.chmod(root / "tmp" / "job-old", 0)
    (root / "blobs" / "zz").mkdir()
    (root / "blobs" / "zz" / ("z" * 64)).write_bytes(b"x")
    misplaced = root / "blobs" / "00" / output.name
    misplaced.parent.mkdir(exist_ok=True)
    misplaced.write_bytes(b"x")
    daemon.start()
    assert ask(daemon).outcome is Outcome.DISK_HIT
    assert ask(daemon, LARGE).outcome is Outcome.MISS
    assert daemon.stats()["corrupt"] == 0
    assert os.listdir(root / "tmp") == [], "what a dead daemon left is swept"
    with daemon.client() as client:
        client.call("gc", max_size=0)
    assert daemon.stats()["store_failure"] == 0


def test_blob_that_no_entry_needs_is_swept_after_a_crash(daemon: DaemonProcess) -> None:
    ask(daemon)
    daemon.kill()
    name = "ab" * 32
    orphan = daemon.root / "blobs" / "ab" / name
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"nobody's")
    daemon.start()
    assert ask(daemon).outcome is Outcome.DISK_HIT
    from tests.harness import wait_for

    wait_for(lambda: not orphan.exists(), "the orphan to be swept")


@pytest.mark.parametrize("payload", ["document", "output"])
def test_pickle_in_place_of_a_stored_file_is_never_loaded(
    daemon: DaemonProcess, tmp_path: Path, payload: str
) -> None:
    canary = tmp_path / "canary"
    # The pickle of a call: os.system("touch <canary>").
    pickled = b"cos\nsystem\n(S'touch %s'\ntR." % os.fsencode(canary)
    ask(daemon)
    daemon.stop()
    path = files_of(daemon)[payload][0]
    os.chmod(path, 0o600)
    path.write_bytes(pickled)
    daemon.start()
    assert ask(daemon).outcome is Outcome.MISS
    assert daemon.stats()["corrupt"] == 1
    assert not canary.exists()
