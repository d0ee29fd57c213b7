"""Base directories as texts: what lies in which, and how it is named in keys, dependencies and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ptocache import bases
from ptocache.action import binary_action
from ptocache.contents import Conditions, Contents
from ptocache.digest import Digest
from ptocache.model import Dependency, Input, Job, Prepared

if TYPE_CHECKING:
    from pathlib import Path

ONE = ("/home/me/proj", "/home/me/venv")
OTHER = ("/w/checkout", "/opt/v")
NESTED = ("/p", "/p/venv")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/home/me/proj/include/x.h", ("<base 0>", "include/x.h")),
        ("/home/me/proj", ("<base 0>", "")),
        ("/home/me/venv/x.h", ("<base 1>", "x.h")),
        ("/home/me/proj-old/x.h", None),
        ("/home/me", None),
        ("include/x.h", None),
        ("/home/me/proj/../x.h", ("<base 0>", "../x.h")),
    ],
)
def test_a_path_is_relative_to_the_base_that_holds_its_text(
    path: str, found: tuple[str, str] | None
) -> None:
    assert bases.relative(path, ONE) == found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_deepest_base_wins_whatever_the_order(order: tuple[int, int]) -> None:
    known = tuple(NESTED[number] for number in order)
    venv, whole = known.index("/p/venv"), known.index("/p")
    assert bases.relative("/p/venv/x.h", known) == (f"<base {venv}>", "x.h")
    assert bases.relative("/p/x.h", known) == (f"<base {whole}>", "x.h")


def test_of_two_equal_bases_the_first_counts() -> None:
    assert bases.relative("/p/x", ("/p", "/p")) == ("<base 0>", "x")
    assert bases.prefix_maps(("/p", "/p")) == ("-ffile-prefix-map=/p/=base0/",)
    assert bases.layout(("/p", "/p"), ()) == "0 1=<base 0>"


def test_a_name_in_a_key_has_no_slash_at_its_end() -> None:
    assert bases.named("/p", NESTED) == "<base 0>"
    assert bases.named("/p/venv/include", NESTED) == "<base 1>/include"
    assert bases.named("/q", NESTED) == "/q"


def test_prefix_maps_name_the_deepest_base_last_and_end_at_its_slash() -> None:
    assert bases.prefix_maps(("/p/venv", "", "/p")) == (
        "-ffile-prefix-map=/p/=base2/",
        "-ffile-prefix-map=/p/venv/=base0/",
    )
    assert bases.prefix_maps(()) == ()


@pytest.mark.parametrize(
    ("known", "roots", "text"),
    [
        (ONE, (), "0 1"),
        (OTHER, ("/usr/include",), "0 1"),
        (NESTED, (), "0 1=<base 0>/venv"),
        (("/p/venv", "/p"), (), "0=<base 1>/venv 1"),
        (("", "/p"), (), "0=- 1"),
        (("/p",), ("/p/cann", "/usr"), "0 toolchain=<base 0>/cann"),
    ],
)
def test_the_layout_says_which_bases_count_and_how_they_lie(
    known: tuple[str, ...], roots: tuple[str, ...], text: str
) -> None:
    assert bases.layout(known, roots) == text


def test_a_base_in_a_place_of_the_toolchain_does_not_count() -> None:
    assert bases.counting(ONE, ("/home/me/venv",)) == ("/home/me/proj", "")
    assert bases.counting(ONE, ("/home/me/venv", "/home/me/proj/cann")) == ("/home/me/proj", "")
    assert bases.counting(ONE, ("/home/me",)) == ()
    assert bases.counting((), ("/home/me",)) == ()


DEPENDENCIES = (
    Dependency("", "/home/me/proj/x.h", "11"),
    Dependency("", "/home/me/venv/y.h", ""),
    Dependency("", "/usr/include/z.h", "22"),
    Dependency("source", "near.h", "33"),
)


def test_dependencies_move_with_the_bases() -> None:
    kept = bases.relocatable(DEPENDENCIES, ONE)
    assert [item.base for item in kept] == ["<base 0>", "<base 1>", "", "source"]
    assert bases.resolved(kept, ONE) == DEPENDENCIES
    moved = bases.resolved(kept, OTHER)
    assert moved is not None
    assert [item.path for item in moved] == [
        "/w/checkout/x.h", "/opt/v/y.h", "/usr/include/z.h", "near.h",
    ]  # fmt: skip


def test_a_base_may_be_a_file() -> None:
    (kept,) = bases.relocatable((Dependency("", "/a/x.h", "1"),), ("/a/x.h",))
    assert (kept.base, kept.path) == ("<base 0>", "")
    assert bases.resolved((kept,), ("/b/y.h",)) == (Dependency("", "/b/y.h", "1"),)


@pytest.mark.parametrize(
    "asker",
    [
        (),
        ("/w/checkout",),
        ("/w/checkout", ""),
        ("/w/checkout", "/usr"),
        ("/w", "/opt/v", "/w/x.h"),
    ],
    ids=["none", "fewer", "one that does not count", "absolute in a base", "deeper"],
)
def test_dependencies_that_the_asker_would_name_otherwise_are_none_of_theirs(
    asker: tuple[str, ...],
) -> None:
    assert bases.resolved(bases.relocatable(DEPENDENCIES, ONE), asker) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"/src/x.h", True), (b"-I/src", True), (b"\0/src\0", True), (b"base0/src/x.h", False),
        (b"base15/src/x.h", False), (b"../src/x.h", False), (b"base0/x.h", False),
        (b"base0/src/x.h\0/src/y.h", True), (b"database/src", True),
    ],
)  # fmt: skip
def test_a_base_is_named_by_its_path_and_not_by_the_same_letters_in_a_mapped_one(
    text: bytes, named: bool
) -> None:
    assert bases.is_named("/src", text) is named


@pytest.mark.parametrize("path", ["/", "//", "//a", "a", "", "/a/", "/a/../b", "/a=b", "/a\0b"])
def test_what_can_be_no_base_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        bases.judged(path)


def test_canonical_bases_follow_links_and_keep_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "link").symlink_to("real dir")
    here = str(tmp_path.resolve())
    found = bases.canonical([f"{tmp_path}/link/", f"{tmp_path}/missing", f"{tmp_path}/link/.."])
    assert found == (f"{here}/real dir", f"{here}/missing", here)
    (tmp_path / "equal=").mkdir()
    (tmp_path / "to equal").symlink_to("equal=")
    with pytest.raises(ValueError, match="="):
        bases.canonical([f"{tmp_path}/to equal"])


# --- keys


def prepared(root: str, *more: str) -> Prepared:
    job = Job(
        toolchain="host", arch="x86_64", options=("-I", f"{root}/include", "-DROOT=/w", *more),
        env=(("CPATH", f"{root}/i:/usr/i"), ("OTHER", f"{root}/i")),
        inputs=(Input("k.c", Digest.of(b"x")),), outputs=("object",), bases=(root,),
    )  # fmt: skip
    return Prepared(job)


def key(found: Prepared) -> str:
    return binary_action(found, plugin_version="1", identity="i").key


def count(found: Prepared, *roots: str) -> Prepared:
    return bases.count(found, roots, paths=(1,), path_lists=("CPATH",))


def test_a_key_names_paths_by_their_bases_and_nothing_else() -> None:
    document = binary_action(count(prepared("/w")), plugin_version="1", identity="i").document
    assert document["options"] == ["-I", "<base 0>/include", "-DROOT=/w"]
    assert document["env"] == {"CPATH": "<base 0>/i:/usr/i", "OTHER": "/w/i"}
    assert document["keyed"] == {"base_dirs": "0"}


def test_a_job_whose_bases_do_not_count_has_the_key_of_one_without() -> None:
    plain = prepared("/w")
    without = plain._replace(job=plain.job._replace(bases=()))
    assert key(plain) == key(without) == key(count(without)) == key(count(plain, "/w"))
    assert key(count(plain)) != key(plain)
    assert key(count(plain, "/w/cann")) not in (key(count(plain)), key(plain))


# --- conditions


def test_conditions_are_looked_at_where_the_asker_has_them(tmp_path: Path) -> None:
    contents = Contents()
    places = tuple(str(tmp_path / name) for name in ("one", "other"))
    for place, text in zip(places, ("same", "same"), strict=True):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.h").write_text(text)
    seen = [Dependency("", f"{places[0]}/x.h", contents.sha256(f"{places[0]}/x.h"))]
    seen += [Dependency("", f"{places[0]}/{name}.h", "") for name in "abcd"]
    conditions = Conditions(bases.relocatable(seen, places[:1]))
    assert conditions.hold(contents, "", places[:1])
    assert conditions.hold(contents, "", places[1:])
    assert not conditions.hold(contents, "", ())
    assert not conditions.hold(contents, "", (str(tmp_path / "none"),))
    (tmp_path / "other" / "c.h").write_text("")
    assert conditions.hold(contents, "", places[:1])
    assert not conditions.hold(contents, "", places[1:])
    (tmp_path / "one" / "x.h").write_text("changed")
    assert not conditions.hold(contents, "", places[:1])


def test_absolute_conditions_below_a_base_of_the_asker_do_not_hold(tmp_path: Path) -> None:
    conditions = Conditions([Dependency("", str(tmp_path / "x.h"), "")])
    assert conditions.hold(Contents(), "", ())
    assert conditions.hold(Contents(), "", (str(tmp_path / "y"),))
    assert not conditions.hold(Contents(), "", (str(tmp_path),))


def test_many_askers_are_told_apart(tmp_path: Path) -> None:
    """More than are remembered at once."""
    conditions = Conditions([Dependency("<base 0>", "x.h", "")])
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "7" / "x.h").write_text("")
    held = [conditions.hold(Contents(), "", (str(tmp_path / str(n)),)) for n in range(20)]
    assert [number for number, is_held in enumerate(held) if not is_held] == [7]
