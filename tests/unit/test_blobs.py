"""Content-addressed files: whole or not there, checked when read, and out of the way when damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ptocache.digest import Digest
from ptocache.outcome import Reason
from ptocache.paths import StorePaths
from ptocache.store.blobs import (
    QUARANTINE_LIMIT,
    Blobs,
    DamagedBlobError,
    Pending,
    checksum,
    disk_bytes,
    remove_tree,
)
from ptocache.store.store import prepare_root

DATA = b"some bytes of an artifact" * 100


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    found = StorePaths(str(tmp_path / "store"))
    prepare_root(found)
    return found


@pytest.fixture
def blobs(paths: StorePaths) -> Blobs:
    return Blobs(paths, fsync=False)


def stored(blobs: Blobs, data: bytes = DATA) -> Pending:
    pending = blobs.write(data)
    blobs.place(pending)
    return pending


def place_of(paths: StorePaths, pending: Pending) -> Path:
    return Path(paths.blob(pending.digest.sha256))


@pytest.mark.parametrize("data", [b"", b"x", DATA, b"\x00" * (3 << 20)], ids=len)
@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_written_is_read_back(data: bytes, fsync: bool, paths: StorePaths) -> None:
    blobs = Blobs(paths, fsync=fsync)
    pending = stored(blobs, data)
    assert pending.digest == Digest.of(data)
    assert pending.checksum == checksum(data)
    assert pending.disk == disk_bytes(len(data))
    assert blobs.read(pending.digest, pending.checksum) == data
    opened = blobs.open(pending.digest, pending.checksum)
    assert os.pread(opened.file.fileno(), len(data) + 1, 0) == data
    assert os.listdir(paths.tmp) == []


def test_a_view_is_written_as_its_bytes(blobs: Blobs) -> None:
    pending = stored(blobs, memoryview(b"xxDATAxx")[2:6].tobytes())
    view = blobs.write(memoryview(b"xxDATAxx")[2:6])
    assert view.digest == pending.digest
    assert view.checksum == pending.checksum


@pytest.mark.parametrize(("size", "disk"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_a_file_takes_whole_blocks(size: int, disk: int) -> None:
    assert disk_bytes(size) == disk


def test_the_checksum_is_the_canonical_xxh3_128() -> None:
    assert checksum(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert checksum(b"abc").hex() == "06b05ab6733a618578af5f94892f3950"


def test_a_blob_is_read_only_and_private_and_named_by_its_content(
    blobs: Blobs, paths: StorePaths
) -> None:
    pending = stored(blobs)
    place = place_of(paths, pending)
    assert place.stat().st_mode & 0o777 == 0o400
    assert place.name == pending.digest.sha256
    assert place.parent.name == pending.digest.sha256[:2]
    assert place.parent.stat().st_mode & 0o077 == 0


def test_what_was_not_placed_is_not_there(blobs: Blobs, paths: StorePaths) -> None:
    pending = blobs.write(DATA)
    with pytest.raises(DamagedBlobError) as caught:
        blobs.read(pending.digest, pending.checksum)
    assert caught.value.reason is Reason.MISSING
    blobs.discard(pending)
    blobs.discard(pending)
    assert os.listdir(paths.tmp) == []


def test_a_failed_write_leaves_nothing_behind(
    blobs: Blobs, paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        blobs.write(DATA)
    monkeypatch.undo()
    assert os.listdir(paths.tmp) == []


def test_short_writes_are_continued(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    pending = stored(blobs)
    monkeypatch.undo()
    assert blobs.read(pending.digest, pending.checksum) == DATA


def test_placing_the_same_bytes_again_replaces_the_file(blobs: Blobs, paths: StorePaths) -> None:
    first = stored(blobs)
    inode = place_of(paths, first).stat().st_ino
    stored(blobs)
    assert place_of(paths, first).stat().st_ino != inode
    assert blobs.read(first.digest, first.checksum) == DATA


def truncate(place: Path) -> None:
    place.chmod(0o600)
    os.truncate(place, place.stat().st_size // 2)


def empty(place: Path) -> None:
    place.chmod(0o600)
    os.truncate(place, 0)


def grow(place: Path) -> None:
    place.chmod(0o600)
    with place.open("ab") as file:
        file.write(b"x")


def flip(place: Path) -> None:
    place.chmod(0o600)
    with place.open("r+b") as file:
        file.seek(place.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def make_folder(place: Path) -> None:
    place.unlink()
    place.mkdir()
    (place / "something").write_bytes(b"x")


def make_pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def make_link(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to("moved")


def make_dangling(place: Path) -> None:
    place.unlink()
    place.symlink_to("nowhere")


def delete(place: Path) -> None:
    place.unlink()


def delete_folder(place: Path) -> None:
    remove_tree(str(place.parent))


def file_for_folder(place: Path) -> None:
    remove_tree(str(place.parent))
    place.parent.write_bytes(b"x")


DAMAGE = {
    truncate: Reason.TRUNCATED,
    empty: Reason.TRUNCATED,
    grow: Reason.TRUNCATED,
    flip: Reason.CHECKSUM,
    make_folder: Reason.NOT_A_FILE,
    make_pipe: Reason.NOT_A_FILE,
    make_link: Reason.NOT_A_FILE,
    make_dangling: Reason.NOT_A_FILE,
    delete: Reason.MISSING,
    delete_folder: Reason.MISSING,
    file_for_folder: Reason.NOT_A_FILE,
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_each_damage_is_noticed_with_its_reason_and_heals(  # type: ignore[no-untyped-def]
    damage, blobs: Blobs, paths: StorePaths
) -> None:
    pending = stored(blobs)
    damage(place_of(paths, pending))
    for look in (blobs.read, blobs.open):
        with pytest.raises(DamagedBlobError) as caught:
            look(pending.digest, pending.checksum)
        assert caught.value.reason is DAMAGE[damage]
        assert caught.value.fields == {"reason": DAMAGE[damage].label}
    blobs.quarantine(pending.digest.sha256, DAMAGE[damage])
    assert not os.path.lexists(place_of(paths, pending))
    stored(blobs)
    assert blobs.read(pending.digest, pending.checksum) == DATA


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_new_blob_takes_the_place_of_whatever_stands_there(  # type: ignore[no-untyped-def]
    damage, blobs: Blobs, paths: StorePaths
) -> None:
    pending = stored(blobs)
    damage(place_of(paths, pending))
    stored(blobs)
    assert blobs.read(pending.digest, pending.checksum) == DATA


def test_no_descriptor_stays_open_after_a_damage(blobs: Blobs, paths: StorePaths) -> None:
    pending = stored(blobs)
    flip(place_of(paths, pending))
    before = len(os.listdir("/proc/self/fd"))
    for look in (blobs.read, blobs.open):
        with pytest.raises(DamagedBlobError):
            look(pending.digest, pending.checksum)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_open_blob_survives_its_removal(blobs: Blobs) -> None:
    pending = stored(blobs)
    opened = blobs.open(pending.digest, pending.checksum)
    blobs.remove(pending.digest.sha256)
    blobs.remove(pending.digest.sha256)
    assert os.pread(opened.file.fileno(), len(DATA), 0) == DATA


def test_a_removed_blob_is_missing(blobs: Blobs) -> None:
    pending = stored(blobs)
    blobs.remove(pending.digest.sha256)
    with pytest.raises(DamagedBlobError) as caught:
        blobs.read(pending.digest, pending.checksum)
    assert caught.value.reason is Reason.MISSING


def test_the_quarantine_keeps_what_was_damaged_with_its_reason(
    blobs: Blobs, paths: StorePaths
) -> None:
    pending = stored(blobs)
    blobs.quarantine(pending.digest.sha256, Reason.CHECKSUM)
    (name,) = os.listdir(paths.quarantine)
    assert name.startswith(f"{pending.digest.sha256}.checksum.")
    assert Path(paths.quarantine, name).read_bytes() == DATA


def test_quarantining_what_is_gone_is_fine(blobs: Blobs, paths: StorePaths) -> None:
    blobs.quarantine("0" * 64, Reason.MISSING)
    assert os.listdir(paths.quarantine) == []


def test_the_quarantine_is_bounded(blobs: Blobs, paths: StorePaths) -> None:
    for number in range(QUARANTINE_LIMIT + 5):
        pending = stored(blobs, b"%d" % number)
        if number % 2:
            make_folder(place_of(paths, pending))
        blobs.quarantine(pending.digest.sha256, Reason.CHECKSUM)
    kept = os.listdir(paths.quarantine)
    assert len(kept) == QUARANTINE_LIMIT
    assert any(name.startswith(pending.digest.sha256) for name in kept), "the newest stays"


def test_a_walk_finds_every_blob_and_passes_over_stray_things(
    blobs: Blobs, paths: StorePaths
) -> None:
    found = {stored(blobs, b"%d" % number).digest for number in range(5)}
    folder = Path(paths.blobs)
    (folder / "stray file").write_bytes(b"")
    (folder / "zz").mkdir()
    (folder / "00").mkdir(exist_ok=True)
    (folder / "00" / "not a digest").write_bytes(b"")
    (folder / "00" / ("ff" + "0" * 62)).write_bytes(b"in a wrong folder")
    (folder / "00" / ("00" + "0" * 62)).mkdir()
    (folder / "00" / ("00" + "1" * 62)).symlink_to("nowhere")
    os.mkfifo(folder / "00" / ("00" + "2" * 62))
    assert {Digest(*item) for item in blobs.walk()} == found


def test_a_walk_of_a_store_without_blobs_finds_nothing(blobs: Blobs, paths: StorePaths) -> None:
    os.rmdir(paths.blobs)
    assert list(blobs.walk()) == []


def test_a_tree_is_removed_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "file").write_bytes(b"")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    for name in ("file", "folder", "link", "none"):
        remove_tree(str(tmp_path / name))
    assert os.listdir(tmp_path) == ["target"], "a link's target is not its own"
