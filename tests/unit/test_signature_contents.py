"""Stamps, digests remembered by them, and whether what an entry depends on still holds."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import signature as signature_module
from ptocache.contents import PERSIST_BYTES, Conditions, Contents, observe
from ptocache.includes import EMPTY_SCAN
from ptocache.model import ABSOLUTE_BASE, SOURCE_BASE, Dependency
from ptocache.signature import (
    SETTLE_NS,
    Signature,
    links_on,
    moment,
    of_descriptor,
    settled,
    signature_of,
    signature_of_link,
    unmoved,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as long untouched, so that nobody must wait for it."""
    monkeypatch.setattr(signature_module, "SETTLE_NS", -(10**15))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes) -> Path:
    """Write ``data`` so that its stamps differ from those of everything before."""
    moment()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# --- stamps


def test_a_moment_parts_what_was_changed_before_it_from_what_is_changed_after(
    tmp_path: Path,
) -> None:
    for number in range(20):
        before = tmp_path / f"before{number}"
        before.write_bytes(b"")
        now = moment()
        after = tmp_path / f"after{number}"
        after.write_bytes(b"")
        assert before.stat().st_ctime_ns <= now < after.stat().st_ctime_ns


@pytest.mark.parametrize(
    ("age", "right"), [(SETTLE_NS + 1, True), (SETTLE_NS, False), (0, False), (-1, False)]
)
def test_stamps_are_trusted_after_the_settling_time(age: int, right: bool) -> None:
    now, old = 10**18, 10**18 - 10 * SETTLE_NS
    assert settled(Signature(1, 2, 3, mtime_ns=old, ctime_ns=now - age), now) is right
    assert settled(Signature(1, 2, 3, mtime_ns=now - age, ctime_ns=old), now) is right


def test_a_signature_is_the_one_of_what_a_link_leads_to(tmp_path: Path) -> None:
    file = write(tmp_path / "file", b"x")
    (tmp_path / "link").symlink_to(file)
    assert signature_of(str(tmp_path / "link")) == signature_of(str(file))
    with file.open("rb") as opened:
        assert of_descriptor(opened.fileno()) == signature_of(str(file))


@pytest.mark.parametrize("name", ["none", "none/deeper", "with\0nul", "x" * 300, ""])
def test_what_cannot_be_looked_at_has_no_signature(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}" if name else ""
    assert signature_of(path) is None
    assert unmoved(path, None)
    assert not unmoved(path, Signature(1, 2, 3, 4, 5))


def test_the_links_on_a_way_are_found_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "8.5" / "bin").mkdir(parents=True)
    (tmp_path / "8.5" / "bin" / "clang").touch()
    (tmp_path / "8.5" / "bin" / "cc").symlink_to("clang")
    (tmp_path / "current").symlink_to("8.5")
    (tmp_path / "latest").symlink_to(tmp_path / "current")
    found = [path for path, _ in links_on(f"{tmp_path}/latest/./bin/../bin//cc")]
    real = os.path.realpath(tmp_path)
    assert [path for path in found if path.startswith(real)] == [
        f"{real}/latest",
        f"{real}/current",
        f"{real}/8.5/bin/cc",
    ]
    assert links_on(f"{real}/8.5/bin/clang") == links_on(f"{real}/nothing/at/all") == ()


def test_a_circle_of_links_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(links_on(str(tmp_path / "a"))) == 40


def test_a_link_that_was_turned_away_and_back_has_another_signature(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to("8.5")
    before = signature_of_link(str(link))
    for aim in ("9.0", "8.5"):
        moment()
        link.unlink()
        link.symlink_to(aim)
    assert before is not None
    assert signature_of_link(str(link)) not in (None, before)
    assert signature_of_link(str(tmp_path)) is None
    assert signature_of_link(str(tmp_path / "nothing")) is None


def test_unmoved_means_an_equal_signature(tmp_path: Path) -> None:
    path = str(write(tmp_path / "file", b"x"))
    known = signature_of(path)
    assert known is not None
    assert unmoved(path, known)
    assert not unmoved(path, None)
    for field in Signature._fields:
        assert not unmoved(path, known._replace(**{field: getattr(known, field) + 1})), field


def touch_only(path: Path) -> None:
    os.utime(path)


def change_mode(path: Path) -> None:
    path.chmod(0o600)


def rewrite_with_old_times(path: Path) -> None:
    info = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def replace_by_rename(path: Path) -> None:
    info = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize(
    "change", [touch_only, change_mode, rewrite_with_old_times, replace_by_rename]
)
def test_every_change_moves_the_signature(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "file", b"abc")
    before = signature_of(str(path))
    moment()
    change(path)
    assert signature_of(str(path)) != before


# --- digests


def test_a_fresh_file_is_read_every_time(tmp_path: Path) -> None:
    path = str(write(tmp_path / "file", b"abc"))
    contents = Contents()
    for count in (1, 2, 3):
        assert contents.sha256(path) == sha(b"abc")
        assert contents.files_read == count


@pytest.mark.usefixtures("quiet")
def test_a_quiet_file_is_read_once(tmp_path: Path) -> None:
    path = str(write(tmp_path / "file", b"abc"))
    contents = Contents()
    assert [contents.sha256(path) for _ in range(3)] == [sha(b"abc")] * 3
    assert contents.files_read == 1


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("change", [rewrite_with_old_times, replace_by_rename, touch_only])
def test_a_changed_file_is_read_again_though_size_and_mtime_are_the_same(  # type: ignore[no-untyped-def]
    change, tmp_path: Path
) -> None:
    path = write(tmp_path / "file", b"abc")
    contents = Contents()
    contents.sha256(str(path))
    moment()
    change(path)
    assert contents.sha256(str(path)) == sha(path.read_bytes())
    assert contents.files_read == 2


@pytest.mark.usefixtures("quiet")
def test_a_removed_file_has_no_digest_and_a_new_one_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "file", b"abc")
    contents = Contents()
    contents.sha256(str(path))
    path.unlink()
    assert contents.sha256(str(path)) == ""
    write(path, b"xyz")
    assert contents.sha256(str(path)) == sha(b"xyz")


@pytest.mark.usefixtures("quiet")
def test_a_flipped_link_gives_the_digest_of_where_it_leads_now(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        write(tmp_path / name / "a.h", name.encode())
    link = tmp_path / "latest"
    link.symlink_to("v1")
    contents = Contents()
    assert contents.sha256(str(link / "a.h")) == sha(b"v1")
    link.unlink()
    link.symlink_to("v2")
    assert contents.sha256(str(link / "a.h")) == sha(b"v2")


def test_what_is_no_regular_file_has_no_digest_and_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    contents = Contents()
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "dangling", tmp_path / "circle",
                 tmp_path / "none", Path("/dev/null")):  # fmt: skip
        assert contents.sha256(str(path)) == "", path
        assert contents.scan(str(path)) == EMPTY_SCAN, path
    assert contents.sha256("nul\0") == ""


class Records:
    """Digests that outlive a daemon, in a dict."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, Signature], str] = {}

    def load_file_digest(self, path: str, signature: Signature) -> str:
        return self.kept.get((path, signature), "")

    def save_file_digest(self, path: str, signature: Signature, sha256: str) -> None:
        self.kept[path, signature] = sha256


@pytest.mark.usefixtures("quiet")
def test_digests_of_large_files_outlive_the_daemon_and_small_ones_do_not(tmp_path: Path) -> None:
    large = write(tmp_path / "large", b"x" * PERSIST_BYTES)
    small = write(tmp_path / "small", b"x" * (PERSIST_BYTES - 1))
    records = Records()
    first = Contents(records)
    digests = [first.sha256(str(path)) for path in (large, small)]
    assert [path for path, _ in records.kept] == [str(large)]
    second = Contents(records)
    assert [second.sha256(str(path)) for path in (large, small)] == digests
    assert second.files_read == 1, "the small one"


@pytest.mark.usefixtures("quiet")
def test_a_remembered_digest_of_an_earlier_state_is_not_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "large", b"x" * PERSIST_BYTES + b"yz")
    records = Records()
    Contents(records).sha256(str(path))
    moment()
    rewrite_with_old_times(path)
    assert Contents(records).sha256(str(path)) == sha(path.read_bytes())


def test_the_digest_of_a_fresh_large_file_is_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "large", b"x" * PERSIST_BYTES)
    records = Records()
    Contents(records).sha256(str(path))
    assert not records.kept


@pytest.mark.usefixtures("quiet")
def test_a_scan_is_that_of_the_content_now(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h", b'#include "b.h"\n')
    contents = Contents()
    assert contents.scan(str(path)).quoted == ("b.h",)
    moment()
    path.write_bytes(b'#include "c.h"\n')
    assert contents.scan(str(path)).quoted == ("c.h",)


def test_a_compiler_finds_everything_but_folders(tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    exists = Contents().exists
    found = [name for name in os.listdir(tmp_path) if exists(str(tmp_path / name))]
    assert sorted(found) == ["file", "link", "pipe"]
    assert not exists(str(tmp_path))
    assert not exists("nul\0")


# --- conditions


def present(path: Path, data: bytes) -> Dependency:
    return Dependency(ABSOLUTE_BASE, str(path), sha(data))


def absent(path: Path) -> Dependency:
    return Dependency(ABSOLUTE_BASE, str(path), "")


@pytest.fixture(params=["fresh", "quiet"])
def contents(request: pytest.FixtureRequest) -> Contents:
    """With stamps that are trusted, and with stamps that are not yet."""
    if request.param == "quiet":
        request.getfixturevalue("quiet")
    return Contents()


@pytest.fixture(params=["few", "many"])
def alone(request: pytest.FixtureRequest) -> Callable[[Path], Conditions]:
    """Makes the condition that one place is empty; "many" others of its directory are with it, which is
    then looked at as a whole."""
    others = 20 if request.param == "many" else 0

    def make(path: Path) -> Conditions:
        more = [absent(path.with_name(f"other{number}.h")) for number in range(others)]
        return Conditions([absent(path), *more])

    return make


def test_no_conditions_hold(contents: Contents) -> None:
    assert Conditions(()).hold(contents, "")


def test_a_header_holds_by_its_content_alone(contents: Contents, tmp_path: Path) -> None:
    path = write(tmp_path / "a.h", b"one")
    conditions = Conditions([present(path, b"one")])
    assert conditions.hold(contents, "")
    for same in (touch_only, change_mode, replace_by_rename):
        moment()
        same(path)
        assert conditions.hold(contents, ""), same
    write(path, b"two")
    assert not conditions.hold(contents, "")
    write(path, b"one")
    assert conditions.hold(contents, ""), "the old state answers again"
    path.unlink()
    assert not conditions.hold(contents, "")


def test_a_header_beside_the_source_counts_from_the_callers_folder(
    contents: Contents, tmp_path: Path
) -> None:
    write(tmp_path / "mine" / "a.h", b"one")
    write(tmp_path / "yours" / "a.h", b"one")
    write(tmp_path / "other" / "a.h", b"two")
    conditions = Conditions([Dependency(SOURCE_BASE, "a.h", sha(b"one"))])
    held = [conditions.hold(contents, str(tmp_path / d)) for d in ("mine", "yours", "other", "no")]
    assert held == [True, True, False, False]


def test_an_empty_place_holds_until_something_appears(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    conditions = Conditions([absent(tmp_path / "a.h"), absent(tmp_path / "b.h")])
    assert conditions.hold(contents, "")
    assert conditions.hold(contents, "")
    write(tmp_path / "unrelated.h", b"")
    assert conditions.hold(contents, "")
    write(tmp_path / "b.h", b"")
    assert not conditions.hold(contents, "")
    assert not conditions.hold(contents, "")
    (tmp_path / "b.h").unlink()
    assert conditions.hold(contents, "")


def test_a_folder_in_an_empty_place_is_as_good_as_nothing(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    conditions = alone(tmp_path / "a.h")
    assert conditions.hold(contents, "")
    moment()
    (tmp_path / "a.h").mkdir()
    assert conditions.hold(contents, "")


def test_an_empty_place_beside_the_source_counts_from_the_callers_folder(
    contents: Contents, tmp_path: Path
) -> None:
    write(tmp_path / "other" / "a.h", b"")
    conditions = Conditions([Dependency(SOURCE_BASE, "a.h", "")])
    held = [conditions.hold(contents, str(tmp_path / name)) for name in ("none", "other")]
    assert held == [True, False]


def test_a_folder_may_vanish_and_come_back_with_a_header(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    folder = tmp_path / "inc"
    folder.mkdir()
    conditions = alone(folder / "a.h")
    assert conditions.hold(contents, "")
    folder.rmdir()
    assert conditions.hold(contents, "")
    write(folder / "a.h", b"")
    assert not conditions.hold(contents, "")


def test_a_folder_may_appear_with_a_header(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    conditions = alone(tmp_path / "not" / "yet" / "a.h")
    assert conditions.hold(contents, "")
    write(tmp_path / "not" / "yet" / "b.h", b"")
    assert conditions.hold(contents, "")
    write(tmp_path / "not" / "yet" / "a.h", b"")
    assert not conditions.hold(contents, "")


def test_a_folder_may_be_exchanged_for_one_that_has_the_header(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    write(tmp_path / "v1" / "b.h", b"")
    write(tmp_path / "v2" / "a.h", b"")
    link = tmp_path / "latest"
    link.symlink_to("v1")
    conditions = alone(link / "a.h")
    assert conditions.hold(contents, "")
    link.unlink()
    link.symlink_to("v2")
    assert not conditions.hold(contents, "")


def test_a_flipped_link_counts_by_what_it_leads_to(contents: Contents, tmp_path: Path) -> None:
    for name, data in (("v1", b"one"), ("v2", b"one"), ("v3", b"two")):
        write(tmp_path / name / "a.h", data)
    link = tmp_path / "latest"
    conditions = Conditions([present(link / "a.h", b"one")])
    held = []
    for name in ("v1", "v2", "v3"):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        held.append(conditions.hold(contents, ""))
    assert held == [True, True, False]


def test_a_link_that_led_nowhere_may_lead_somewhere_now(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "a.h").symlink_to("../generated/a.h")
    conditions = alone(tmp_path / "inc" / "a.h")
    assert conditions.hold(contents, "")
    write(tmp_path / "generated" / "a.h", b"")
    assert not conditions.hold(contents, "")


class Counting(Contents):
    """Counts the places looked at."""

    looked = 0

    def exists(self, path: str) -> bool:
        self.looked += 1
        return super().exists(path)


@pytest.mark.usefixtures("quiet")
def test_a_quiet_folder_is_looked_at_once_however_many_places_it_has(tmp_path: Path) -> None:
    counting = Counting()
    conditions = Conditions([absent(tmp_path / f"{number}.h") for number in range(50)])
    assert all(conditions.hold(counting, "") for _ in range(5))
    assert counting.looked == 50


def test_a_folder_changed_just_now_is_looked_at_every_time(tmp_path: Path) -> None:
    write(tmp_path / "b.h", b"")
    counting = Counting()
    conditions = Conditions([absent(tmp_path / f"{number}.h") for number in range(3)])
    assert all(conditions.hold(counting, "") for _ in range(3))
    assert counting.looked == 9


def test_a_directory_is_no_header(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    conditions = alone(tmp_path / "a.h")
    (tmp_path / "a.h").mkdir()
    assert conditions.hold(contents, "")


def test_a_name_that_no_file_can_have_is_absent(
    contents: Contents, alone: Callable[[Path], Conditions], tmp_path: Path
) -> None:
    assert alone(tmp_path / "a\0.h").hold(contents, "")


# --- what a compile opened


def test_what_was_opened_becomes_dependencies_with_content(tmp_path: Path) -> None:
    write(tmp_path / "a.h", b"one")
    write(tmp_path / "src" / "b.h", b"two")
    observed = observe(
        Contents(),
        [(ABSOLUTE_BASE, str(tmp_path / "a.h")), (SOURCE_BASE, "b.h")],
        [(ABSOLUTE_BASE, str(tmp_path / "none.h")), (SOURCE_BASE, "none.h")],
        str(tmp_path / "src"),
        moment(),
    )
    assert observed.moved == ""
    assert observed.dependencies == (
        present(tmp_path / "a.h", b"one"),
        Dependency(SOURCE_BASE, "b.h", sha(b"two")),
        absent(tmp_path / "none.h"),
        Dependency(SOURCE_BASE, "none.h", ""),
    )
    assert Conditions(observed.dependencies).hold(Contents(), str(tmp_path / "src"))


@pytest.mark.parametrize("change", [rewrite_with_old_times, replace_by_rename, touch_only])
def test_what_was_touched_since_the_compile_began_has_moved(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "a.h", b"abc")
    since = moment()
    change(path)
    observed = observe(Contents(), [(ABSOLUTE_BASE, str(path))], [], "", since)
    assert observed.moved == str(path)


@pytest.mark.usefixtures("quiet")
def test_a_change_during_the_compile_counts_though_somebody_else_has_read_it_since(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.h", b"one")
    contents = Contents()
    since = moment()
    path.write_bytes(b"two")
    assert contents.sha256(str(path)) == sha(b"two"), "another request asks meanwhile"
    observed = observe(contents, [(ABSOLUTE_BASE, str(path))], [], "", since)
    assert observed.moved == str(path)


def test_what_vanished_or_appeared_since_has_moved(tmp_path: Path) -> None:
    gone, new = tmp_path / "gone.h", write(tmp_path / "new.h", b"")
    since = moment()
    assert observe(Contents(), [(ABSOLUTE_BASE, str(gone))], [], "", since).moved == str(gone)
    assert observe(Contents(), [], [(ABSOLUTE_BASE, str(new))], "", since).moved == str(new)


def test_the_moments_of_two_calls_are_in_order() -> None:
    first = moment()
    second = moment()
    assert first < second <= time.time_ns()
