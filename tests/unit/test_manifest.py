"""What a tree holds, as one digest: real trees, and a count of the files read."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptocache import manifest as manifest_module
from ptocache import signature as signature_module
from ptocache.manifest import Manifest, Trees, covering, holds
from ptocache.model import Tree
from ptocache.signature import moment
from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable


class Records:
    """What outlives a daemon."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def load_installation(self, key: str) -> dict[str, Any] | None:
        return self.kept.get(key)

    def save_installation(self, key: str, record: dict[str, Any]) -> None:
        self.kept[key] = record


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as long untouched, so that nobody must wait for it."""
    monkeypatch.setattr(signature_module, "SETTLE_NS", -(10**15))


def look(path: Path | str, *skip: str, trees: Trees | None = None) -> Manifest:
    return (trees or Trees()).manifest(Tree("tree:x", str(path), skip))


def digest(path: Path | str, *skip: str) -> str:
    return look(path, *skip).digest


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return root


SMALL = {"bin/tool": b"t", "include/a.h": b"1", "include/deep/b.h": b"2", "lib/libx.so": b"x"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return fill(tmp_path / "tree", SMALL)


# --- a function of names and contents

_NAMES = st.sampled_from(["a", "b", "include", "x.h", "ü", "a b", "\udcff", "-"])
_TREES = st.dictionaries(
    st.lists(_NAMES, min_size=1, max_size=3).map("/".join),
    st.binary(max_size=3),
    min_size=1,
    max_size=8,
).map(
    lambda files: {n: d for n, d in files.items() if not any(o.startswith(n + "/") for o in files)}
)


def spread(root: str, files: list[tuple[str, bytes]], shelf: str | None = None) -> None:
    """Write files; with a ``shelf``, as links to copies that lie there."""
    os.makedirs(root)
    for number, (name, data) in enumerate(files):
        place = os.path.join(root, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        target = place if shelf is None else os.path.join(shelf, str(number))
        with open(target, "wb") as file:
            file.write(data)
        if shelf is not None:
            os.symlink(target, place)


@settings(max_examples=12, deadline=None)
@given(_TREES, st.randoms(use_true_random=False))
def test_the_same_files_are_the_same_tree_whatever_their_order_place_age_and_links(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], random: Any
) -> None:
    place = tmp_path_factory.mktemp("trees")
    (place / "shelf").mkdir()
    listed = list(files.items())
    spread(f"{place}/one", listed)
    random.shuffle(listed)
    spread(f"{place}/other", listed)
    for name, _ in listed:
        os.utime(f"{place}/other/{name}", ns=(0, random.randrange(10**18)))
    spread(f"{place}/linked", listed, f"{place}/shelf")
    assert digest(f"{place}/one") == digest(f"{place}/other") == digest(f"{place}/linked")
    shutil.rmtree(place)


@settings(max_examples=12, deadline=None)
@given(_TREES, _TREES)
def test_other_files_are_another_tree(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    place = tmp_path_factory.mktemp("trees")
    spread(f"{place}/one", list(one.items()))
    spread(f"{place}/other", list(other.items()))
    assert (digest(f"{place}/one") == digest(f"{place}/other")) == (one == other)
    shutil.rmtree(place)


def test_the_number_of_files_and_bytes_is_told(tree: Path) -> None:
    found = look(tree)
    assert (found.files, found.size, found.roots) == (4, 4, (str(tree),))


def _remove(tree: Path) -> None:
    (tree / "include/a.h").unlink()


def _rename(tree: Path) -> None:
    (tree / "include/a.h").rename(tree / "include/c.h")


def _add(tree: Path) -> None:
    (tree / "include/new.h").write_bytes(b"")


def _add_folder(tree: Path) -> None:
    (tree / "include/c++").mkdir()


def _edit(tree: Path) -> None:
    (tree / "include/a.h").write_bytes(b"9")


def _make_executable(tree: Path) -> None:
    (tree / "lib/libx.so").chmod(0o755)


def _link_elsewhere(tree: Path) -> None:
    (tree / "include/a.h").unlink()
    (tree / "include/a.h").symlink_to("deep/b.h")


def _dangle(tree: Path) -> None:
    (tree / "include/a.h").unlink()
    (tree / "include/a.h").symlink_to("nothing")


def _exchange(tree: Path) -> None:
    (tree / "include/a.h").write_bytes(b"2")
    (tree / "include/deep/b.h").write_bytes(b"1")


CHANGES = [
    _remove, _rename, _add, _add_folder, _edit, _make_executable, _link_elsewhere, _dangle,
    _exchange,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_name_or_a_content_counts(
    change: Callable[[Path], None], tree: Path, quiet: None
) -> None:
    trees = Trees()
    before = look(tree, trees=trees).digest
    moment()
    change(tree)
    after = look(tree, trees=trees).digest
    assert after != before
    assert after == digest(tree)


def test_a_file_replaced_with_its_size_and_times_kept_is_read_again(
    tree: Path, quiet: None
) -> None:
    trees = Trees()
    header = tree / "include/a.h"
    before, stat = look(tree, trees=trees).digest, header.stat()
    moment()
    header.write_bytes(b"9")
    os.utime(header, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert look(tree, trees=trees).digest != before
    header.write_bytes(b"1")
    assert look(tree, trees=trees).digest == before


def test_what_is_skipped_and_byte_code_do_not_count(tree: Path) -> None:
    before = digest(tree, "opp")
    fill(tree, {"opp/deep/x": b"1", "include/__pycache__/a.pyc": b"2"})
    assert digest(tree, "opp") == before
    fill(tree, {"include/opp/x": b"1"})
    assert digest(tree, "opp") != before


def test_touching_everything_changes_stamps_and_not_the_digest(tree: Path, quiet: None) -> None:
    trees = Trees()
    before = look(tree, trees=trees)
    moment()
    for name in SMALL:
        os.utime(tree / name)
    after = look(tree, trees=trees)
    assert after.digest == before.digest
    assert after.stamps != before.stamps


# --- links


def test_a_folder_is_entered_once_and_either_way_round(tmp_path: Path) -> None:
    for name, real, link in (("one", "a", "z"), ("other", "z", "a")):
        fill(tmp_path / name, {f"{real}/file": b"1"})
        (tmp_path / name / link).symlink_to(real)
    assert digest(tmp_path / "one") == digest(tmp_path / "other")
    assert look(tmp_path / "one").files == 1


def test_links_in_circles_and_to_where_the_tree_lies_end(tree: Path) -> None:
    (tree / "include/deep/up").symlink_to("..")
    (tree / "include/self").symlink_to("self")
    (tree / "out").symlink_to("../..")
    (tree / "root").symlink_to("/")
    assert look(tree).files == 4
    assert look(tree).roots == (str(tree),)


def test_what_a_link_leads_to_outside_belongs_to_the_tree_and_is_worth_watching(
    tree: Path, tmp_path: Path, quiet: None
) -> None:
    outside = fill(tmp_path / "outside", {"in/c.h": b"3"})
    (tree / "include/more").symlink_to(outside)
    trees = Trees()
    before = look(tree, trees=trees)
    assert before.roots == (str(tree), str(outside))
    moment()
    (outside / "in/c.h").write_bytes(b"4")
    assert look(tree, trees=trees).digest != before.digest


def test_a_link_turned_away_and_back_is_noticed_by_its_stamps(
    tree: Path, tmp_path: Path, quiet: None
) -> None:
    link = tree / "include/x.h"
    link.symlink_to("a.h")
    folder = tree / "current"
    folder.symlink_to("include/deep")
    trees = Trees()
    for place, away in ((link, "deep/b.h"), (folder, "lib")):
        before = look(tree, trees=trees)
        target = os.readlink(place)
        for aim in (away, target):
            moment()
            place.unlink()
            place.symlink_to(aim)
        after = look(tree, trees=trees)
        assert after.digest == before.digest
        assert after.stamps != before.stamps


def test_a_tree_named_by_a_link_is_that_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tree)
    assert look(tmp_path / "latest") == look(f"{tree}/../tree/") == look(tree)


# --- what cannot be read


def test_pipes_sockets_and_dangling_links_stop_nobody_and_count_by_name(tree: Path) -> None:
    before = digest(tree)
    os.mkfifo(tree / "pipe")
    with_pipe = digest(tree)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tree / "socket"))
        with_socket = digest(tree)
    (tree / "dangling").symlink_to("nowhere")
    assert len({before, with_pipe, with_socket, digest(tree)}) == 4
    assert look(tree).files == 4


def _refuse(monkeypatch: pytest.MonkeyPatch, path: Path, error: type[OSError]) -> None:
    """Opening ``path`` fails, as it does for a user who may not (tests may run as one who may)."""
    real = os.open

    def refuse(name: str, *args: Any, **kwargs: Any) -> int:
        if name == str(path):
            raise error(errno.EIO if error is OSError else errno.EACCES, "refused", name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)


def test_a_file_that_may_not_be_read_counts_as_such(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(tree)
    _refuse(monkeypatch, tree / "include/a.h", PermissionError)
    refused = digest(tree)
    assert refused != before
    _edit(tree)
    assert digest(tree) == refused


def test_a_program_that_may_be_run_and_not_read_counts_by_its_stamps(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "bin/tool").chmod(0o755)
    _refuse(monkeypatch, tree / "bin/tool", PermissionError)
    before = digest(tree)
    assert digest(tree) == before
    moment()
    (tree / "bin/tool").write_bytes(b"u")
    assert digest(tree) != before


def test_trouble_that_says_nothing_about_a_file_is_no_manifest(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, tree / "include/a.h", OSError)
    with pytest.raises(OSError, match="refused"):
        look(tree)


def test_a_folder_that_may_not_be_read_is_not_an_empty_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tree / "include")
    (tree / "include").mkdir()
    empty = digest(tree)
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).endswith("/include") and real(path, mode)
    )
    assert digest(tree) != empty


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_what_is_no_folder_is_no_tree(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        look(tmp_path / name)


def test_a_tree_without_end_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MOST_THINGS", 6)
    with pytest.raises(OSError, match="more than 6 files"):
        look(tree)


def test_names_that_are_no_text_are_told_apart(tmp_path: Path) -> None:
    seen = set()
    for number, name in enumerate((b"\xff", b"\xfe", "\ufffd".encode())):
        place = os.fsencode(tmp_path) + b"/%d" % number
        os.mkdir(place)
        with open(place + b"/" + name, "wb"):
            seen.add(digest(os.fsdecode(place)))
    assert len(seen) == 3


# --- once, and only what moved


def test_a_quiet_tree_is_read_once(tree: Path, quiet: None) -> None:
    trees = Trees()
    for _ in range(3):
        look(tree, trees=trees)
    assert trees.files_read == 4


def test_a_long_first_look_tells_how_far_it_is(
    tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manifest_module, "_PROGRESS_S", -1)
    monkeypatch.setattr(manifest_module, "_BATCH", 2)
    with caplog.at_level("INFO", "ptocache.manifest"):
        look(tree)
    progress = [record.getMessage() for record in caplog.records]
    assert progress[0] == f"reading {tree}: 2 of 4 files, 0 of 0 MiB"
    assert progress[-1].startswith(f"read 4 files (0 MiB) of {tree} in ")


def test_only_the_file_that_moved_is_read_again(tree: Path, quiet: None) -> None:
    trees = Trees()
    look(tree, trees=trees)
    moment()
    _edit(tree)
    look(tree, trees=trees)
    assert trees.files_read == 5


def test_a_fresh_file_is_read_at_each_look(tree: Path) -> None:
    trees = Trees()
    old = 10**17
    look(tree, trees=trees)
    look(tree, trees=trees)
    assert trees.files_read == 8
    os.utime(tree / "bin/tool", ns=(old, old))
    look(tree, trees=trees)
    assert trees.files_read == 12


def test_a_restart_reads_nothing_and_finds_the_same(tree: Path, quiet: None) -> None:
    records = Records()
    before = look(tree, trees=Trees(records))
    trees = Trees(records)
    assert look(tree, trees=trees) == before
    assert trees.files_read == 0


def test_after_a_restart_only_what_moved_meanwhile_is_read(tree: Path, quiet: None) -> None:
    records = Records()
    before = look(tree, trees=Trees(records))
    moment()
    _edit(tree)
    trees = Trees(records)
    assert look(tree, trees=trees).digest != before.digest
    assert trees.files_read == 1


class Damage(NamedTuple):
    """What may have become of the records."""

    what: str
    do: Callable[[dict[str, dict[str, Any]]], None]


def _each(change: Callable[[dict[str, Any]], object]) -> Callable[[Any], None]:
    def do(kept: dict[str, dict[str, Any]]) -> None:
        for record in kept.values():
            change(record)

    return do


@pytest.mark.parametrize(
    "damage",
    [
        Damage("lost", lambda kept: kept.clear()),
        Damage("emptied", _each(lambda record: record.clear())),
        Damage("stamps of another time", _each(lambda r: r.update(stamps=b"", files=[]))),
        Damage("fields of another kind", _each(lambda r: r.update(stamps=7, files=[["x", 1, 2]]))),
        Damage("no list at all", _each(lambda r: r.update(roots=None, files=None))),
    ],
    ids=lambda damage: damage.what,
)
def test_records_that_are_damaged_cost_a_look_and_no_more(
    damage: Damage, tree: Path, quiet: None
) -> None:
    records = Records()
    before = look(tree, trees=Trees(records))
    damage.do(records.kept)
    trees = Trees(records)
    assert look(tree, trees=trees) == before
    assert trees.files_read == 4


def test_a_file_that_changes_while_the_tree_is_read_is_not_remembered(
    tree: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of the old bytes under the stamps of the new ones would be wrong for ever."""
    trees = Trees()
    real = manifest_module._sha256

    def meanwhile(path: str, buffer: bytearray) -> str:
        found = real(path, buffer)
        if path.endswith("a.h"):
            moment()
            _edit(tree)
        return found

    monkeypatch.setattr(manifest_module, "_sha256", meanwhile)
    look(tree, trees=trees)
    monkeypatch.setattr(manifest_module, "_sha256", real)
    assert look(tree, trees=trees).digest == digest(tree)


def test_callers_that_come_while_one_looks_share_the_next_look(
    tree: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = Trees()
    looks: list[str] = []
    inside, go_on = threading.Event(), threading.Event()
    real = manifest_module._walk

    def slow(asked: Tree) -> Any:
        looks.append(asked.path)
        inside.set()
        assert go_on.wait(DEADLINE_S)
        return real(asked)

    look(tree, trees=trees)
    monkeypatch.setattr(manifest_module, "_walk", slow)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(look, tree, trees=trees)
        assert inside.wait(DEADLINE_S)
        asked_s = time.monotonic()
        rest = [pool.submit(trees.manifest, Tree("tree:x", str(tree)), asked_s) for _ in range(8)]
        go_on.set()
        assert len({work.result().digest for work in (first, *rest)}) == 1
    assert len(looks) == 2


def test_a_look_that_is_recent_enough_is_taken(tree: Path, quiet: None) -> None:
    trees = Trees()
    since_s = time.monotonic()
    before = look(tree, trees=trees)
    moment()
    _edit(tree)
    asked = Tree("tree:x", str(tree))
    assert trees.manifest(asked, since_s).digest == before.digest
    assert trees.manifest(asked).digest != before.digest


# --- which paths belong to it


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("include/a.h", True), ("include/opp/a.h", True), ("opp/a.h", False), ("opp", False),
        ("lib/__pycache__/a.pyc", False), ("../x", False), ("include/../../x", False),
    ],
)  # fmt: skip
def test_a_tree_holds_what_its_manifest_covers(path: str, inside: bool, tmp_path: Path) -> None:
    assert holds(Tree("tree:x", str(tmp_path), ("opp",)), f"{tmp_path}/{path}") is inside


def test_a_path_is_covered_however_it_is_spelled(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tree)
    covered = covering((Tree("tree:x", str(tmp_path / "latest"), ("lib",)),))
    assert covered(f"{tmp_path}/latest/include/a.h")
    assert covered(f"{tree}/include/a.h")
    assert covered(str(tree))
    assert covered(f"{tree}/lib/../include/a.h")
    assert not covered(f"{tree}/lib/libx.so")
    assert not covered(str(tmp_path / "elsewhere"))
