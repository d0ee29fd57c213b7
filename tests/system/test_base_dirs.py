"""Base directories: who shares an entry with another checkout, and who must not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.client import connect
from ptocache.errors import ConfigError, PtocacheWarning
from ptocache.outcome import Outcome, Reason
from tests.checkouts import ENV, Checkout, made
from tests.system.page import run_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ptocache.result import Result
    from tests.harness import DaemonProcess

    Pair = tuple[Checkout, Checkout]

MISS, HIT = Outcome.MISS, Outcome.MEMORY_HIT
INCLUDED = ("-I", "{here}/include", "-isystem", "{here}/venv/include", "-g", "-Wall")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Two places of different lengths and depths, one with a space in it."""
    return tmp_path / "one user" / "proj", tmp_path / "u" / "two" / "deeper" / "checkout"


@pytest.fixture
def pair(shared_daemon: DaemonProcess, places: tuple[Path, Path]) -> Iterator[Pair]:
    """Two checkouts with the same files."""
    one, other = (Checkout(place, shared_daemon) for place in places)
    write_both((one, other), "include/x.h", "static const char *x_h(void) { return __FILE__; }\n")
    write_both((one, other), "venv/include/v.h", "#define V 7\nstatic char v_h[] = __FILE__;\n")
    write_both((one, other), "src/near.h", '#define NEAR "../include/x.h"\n')
    yield one, other
    for checkout in (one, other):
        checkout.client.close()


def write_both(pair: Pair, name: str, text: str) -> None:
    for checkout in pair:
        checkout.write(name, text)


def unique(tmp_path: Path, text: str) -> str:
    """A source that no other test has: one daemon serves them all."""
    return f"{text}\n/* {tmp_path.name} */\n"


SOURCE = """#include <x.h>
#include <v.h>
#include "near.h"
#include <stdint.h>
const char *of(int n) { return n == V ? x_h() : n ? v_h : __FILE__; }
"""


def outcomes(
    pair: Pair, source: str, options: tuple[str, ...] = INCLUDED, **more: Any
) -> list[Outcome]:
    return [checkout.ask(source, options, **more).outcome for checkout in pair]


def test_checkouts_at_different_prefixes_share_what_lies_below_them(
    pair: Pair, tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    found = [checkout.ask(source, INCLUDED) for checkout in pair]
    assert [item.outcome for item in found] == [MISS, HIT]
    for checkout, item in zip(pair, found, strict=True):
        assert made(item) == checkout.direct(source, INCLUDED, tmp_path / "direct")
        data = made(item).data
        assert str(checkout.place).encode() not in data
        assert b"base0/include/x.h" in data
        assert b"base0/venv/include/v.h" in data


def test_without_bases_the_same_checkouts_share_nothing(
    pair: Pair, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    with shared_daemon.client() as plain:
        for checkout in pair:
            checkout.client = plain
        assert outcomes(pair, source) == [MISS, MISS]
        assert outcomes(pair, source) == [HIT, HIT]


def test_an_entry_without_bases_is_none_with_bases_and_the_other_way_round(
    pair: Pair, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    source = unique(tmp_path, "#include <stdint.h>\nint plain;")
    one, other = pair
    with shared_daemon.client() as plain:
        found = [one.ask(source), other.ask(source)]
        found.append(plain.compile("host", {"k.c": source}, outputs=["object"], env=ENV))
    assert [item.outcome for item in found] == [MISS, HIT, MISS]


@pytest.mark.parametrize("name", ["include/x.h", "venv/include/v.h", "src/near.h"])
def test_a_header_that_differs_in_one_checkout_is_a_miss_there_alone(
    pair: Pair, tmp_path: Path, name: str
) -> None:
    source = unique(tmp_path, SOURCE)
    one, other = pair
    text = (other.place / name).read_text()
    other.write(name, f"{text}extern int more;\n")
    assert outcomes(pair, source) == [MISS, MISS]
    assert other.ask(source, INCLUDED).outcome is HIT
    one.write(name, f"{text}extern int more;\n")
    assert one.ask(source, INCLUDED).outcome is HIT
    other.write(name, text)
    assert other.ask(source, INCLUDED).outcome is HIT
    assert made(other.ask(source, INCLUDED)) == other.direct(source, INCLUDED, tmp_path / "direct")


def test_a_header_that_comes_earlier_in_one_checkout_alone_is_a_miss_there_alone(
    pair: Pair, tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    one, other = pair
    other.write("include/v.h", "#define V 8\nstatic char v_h[] = __FILE__;\n")
    assert outcomes(pair, source) == [MISS, MISS]
    assert outcomes(pair, source) == [HIT, HIT]
    assert made(other.ask(source, INCLUDED)) == other.direct(source, INCLUDED, tmp_path / "direct")
    (other.place / "include/v.h").unlink()
    found = other.ask(source, INCLUDED)
    assert found.outcome is HIT
    assert made(found) == one.direct(source, INCLUDED, tmp_path / "direct")


def test_a_warning_names_the_header_of_who_asks(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "#include <w.h>\n")
    write_both(pair, "include/w.h", "#warning look here\n")
    assert outcomes(pair, source) == [MISS, MISS]
    for checkout in pair:
        found = checkout.ask(source, INCLUDED)
        assert found.outcome is HIT
        assert str(checkout.place / "include/w.h").encode() in found.log.stderr
        assert made(found) == checkout.direct(source, INCLUDED, tmp_path / "direct")


def test_a_warning_in_the_source_alone_is_shared(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "static void f(void) { int unused; }\n#include <d.h>\n")
    write_both(pair, "include/d.h", "#define D 1\n")
    assert outcomes(pair, source) == [MISS, HIT]
    found = pair[1].ask(source, INCLUDED)
    assert b"unused" in found.log.stderr
    assert made(found) == pair[1].direct(source, INCLUDED, tmp_path / "direct")


def test_a_failure_names_the_header_of_who_asks(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "#include <e.h>\n")
    write_both(pair, "include/e.h", "#error stop here\n")
    for checkout in (*pair, *pair):
        found = checkout.ask(source, INCLUDED)
        assert found.outcome is Outcome.FAILURE
        assert str(checkout.place / "include/e.h").encode() in found.log.stderr


TO_ONE = [
    '#if __has_include("{one}/include/x.h")\nint there = 1;\n#endif',
    '#if __has_include("{one}/include/y.h")\nint there = 1;\n#endif',
    '#include "{one}/include/x.h"',
    "#include <{one}/include/x.h>",
    '#define H "{one}/include/x.h"\n#include H',
    '#line 7 "{one}/include/x.h"\nconst char *line = __FILE__;',
    '# 7 "{one}/include/x.h"\nconst char *line = __FILE__;',
    '#define L "{one}/include/x.h"\n#line 7 L\nconst char *line = __FILE__;',
]


@pytest.mark.parametrize("first", [0, 1], ids=["the one that is named", "the other"])
@pytest.mark.parametrize(
    "text", TO_ONE, ids=lambda text: text.split("\n")[-2 if "const" in text else -1][:9]
)
def test_a_text_that_names_a_place_of_one_checkout_means_that_in_both(
    pair: Pair, tmp_path: Path, text: str, first: int
) -> None:
    one = pair[0]
    source = unique(tmp_path, text.replace("{one}", str(one.place)))
    order = (pair[first], pair[1 - first])
    for _ in range(2):
        for checkout in order:
            found = checkout.ask(source, INCLUDED)
            assert made(found) == checkout.direct(source, INCLUDED, tmp_path / "direct")
    one.write("include/x.h", "static int changed = 1;\n")
    one.write("include/y.h", "static int appeared = 1;\n")
    for checkout in order:
        found = checkout.ask(source, INCLUDED)
        assert made(found) == checkout.direct(source, INCLUDED, tmp_path / "direct")


def test_an_option_that_names_a_header_by_a_macro_means_its_place(
    pair: Pair, tmp_path: Path
) -> None:
    source = unique(tmp_path, "#include PICK\n")
    options = (f'-DPICK="{pair[0].place}/include/x.h"', *INCLUDED)
    for checkout in (*pair, *pair):
        found = checkout.ask(source, options)
        assert made(found) == checkout.direct(source, options, tmp_path / "direct")
    pair[0].write("include/x.h", "static int changed = 1;\n")
    for checkout in pair:
        found = checkout.ask(source, options)
        assert made(found) == checkout.direct(source, options, tmp_path / "direct")


BESIDES = [
    "#define M int a;\n#include <m.h>\n#undef M\n#define M int b;\n{absolute}",
    "#if 0\n#include <m.h>\n#endif\n#define M int b;\n{absolute}",
]


@pytest.mark.parametrize("absolute", ["#include PICK", '/**/ #include "{one}/include/m.h"'])
@pytest.mark.parametrize("text", BESIDES, ids=["active", "inactive"])
def test_a_header_that_is_named_by_its_place_besides_means_that_in_both(
    pair: Pair, tmp_path: Path, text: str, absolute: str
) -> None:
    one = pair[0]
    write_both(pair, "include/m.h", "M\n")
    source = unique(tmp_path, text.replace("{absolute}", absolute).replace("{one}", str(one.place)))
    options = (f'-DPICK="{one.place}/include/m.h"', *INCLUDED)
    for text in ("M\n", "M int changed;\n"):
        one.write("include/m.h", text)
        for checkout in (*pair, *pair):
            found = checkout.ask(source, options)
            assert made(found) == checkout.direct(source, options, tmp_path / "direct")


@pytest.mark.parametrize("first", [0, 1], ids=["one file", "two files"])
@pytest.mark.parametrize("join", [os.symlink, os.link], ids=["symlink", "link"])
def test_a_header_that_is_read_once_is_one_where_it_is_one_file(
    pair: Pair, tmp_path: Path, join: Callable[[Path, Path], None], first: int
) -> None:
    one, other = pair
    write_both(pair, "include/p.h", "#pragma once\nP\n")
    other.write("include/sub/p.h", "#pragma once\nP\n")
    # Of another time, or they would count as one here too.
    os.utime(other.place / "include/sub/p.h", (5, 5))
    (one.place / "include/sub").mkdir()
    join(one.place / "include/p.h", one.place / "include/sub/p.h")
    text = "#define P int a;\n#include <p.h>\n#undef P\n#define P int b;\n#include <sub/p.h>\n"
    source = unique(tmp_path, text)
    for checkout in (pair[first], pair[1 - first]) * 2:
        found = checkout.ask(source, INCLUDED)
        assert made(found) == checkout.direct(source, INCLUDED, tmp_path / "direct")


def test_headers_that_are_read_once_are_shared(pair: Pair, tmp_path: Path) -> None:
    write_both(pair, "include/p.h", "#pragma once\nint p;\n")
    write_both(pair, "include/q.h", "#pragma once\n#include <p.h>\nint q;\n")
    source = unique(tmp_path, "#include <p.h>\n#include <q.h>\n")
    assert outcomes(pair, source) == [MISS, HIT]


def test_a_text_of_an_option_counts_as_it_is(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "const char *root = ROOT;\n")
    options = ('-DROOT="{here}"',)
    assert outcomes(pair, source, options) == [MISS, MISS]
    for checkout in pair:
        found = checkout.ask(source, options)
        assert str(checkout.place).encode() in made(found).data


@pytest.mark.parametrize("first", [0, 1], ids=["the link's", "the file's"])
def test_a_header_that_is_a_link_in_one_checkout_is_called_by_its_place_in_both(
    pair: Pair, tmp_path: Path, first: int
) -> None:
    one, other = pair
    target = one.write("venv/v", "const char *linked = __FILE__;\n")
    (one.place / "venv/include/l.h").symlink_to(target)
    other.write("venv/include/l.h", target.read_text())
    source = unique(tmp_path, "#include <l.h>\n")
    found = [checkout.ask(source, INCLUDED) for checkout in (pair[first], pair[1 - first])]
    assert [item.outcome for item in found] == [MISS, HIT]
    assert b"base0/venv/include/l.h" in made(found[1]).data


def test_a_header_that_an_option_includes_is_shared(pair: Pair, tmp_path: Path) -> None:
    options = ("-include", "{here}/include/x.h", "-g")
    source = unique(tmp_path, "const char *f(void) { return x_h(); }\n")
    assert outcomes(pair, source, options) == [MISS, HIT]
    assert made(pair[1].ask(source, options)) == pair[1].direct(
        source, options, tmp_path / "direct"
    )


def test_directories_of_variables_count_relative_too(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "#include <x.h>\n#include <v.h>\n")
    found = []
    for checkout in (*pair, pair[0]):
        env = {"CPATH": f"{checkout.place}/include:{checkout.place}/venv/include"}
        found.append(checkout.ask(source, ("-g",), env=env))
    assert [item.outcome for item in found] == [MISS, HIT, HIT]


def test_libraries_below_a_base_are_found_and_shared(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    # The list that GNU ld writes of what it opened escapes no blanks: no such place here.
    one, other = (Checkout(tmp_path / name, shared_daemon) for name in ("one", "the/other"))
    source = unique(tmp_path, "extern int q;\nint *f(void) { return &q; }\n")

    def link(checkout: Checkout) -> Result:
        return checkout.client.compile(
            "host", {"k.c": source}, options=checkout.words(("-L", "{here}/lib", "-lq")), env=ENV,
            outputs=["shared"],
        )  # fmt: skip

    def linked() -> list[Outcome]:
        return [link(checkout).outcome for checkout in (one, other)]

    write_both((one, other), "lib/libq.so", "q = 1;\n")
    assert linked() == [MISS, HIT]
    other.write("lib/libq.so", "q = 2;\n")
    assert linked() == [HIT, MISS]
    # The same script in both, which leads into one of them.
    write_both((one, other), "lib/libq.so", f"INPUT({other.place}/lib/libr.a)\n")
    write_both((one, other), "lib/libr.a", "q = 3;\n")
    assert linked() == [MISS, MISS]
    assert linked() == [HIT, HIT]
    other.write("lib/libr.a", "q = 4;\n")
    assert linked() == [MISS, MISS]
    assert shared_bytes(link(one)) == shared_bytes(link(other))
    for checkout in (one, other):
        checkout.client.close()


def shared_bytes(result: Result) -> bytes:
    return bytes(result.outputs["shared"].buffer)


def test_what_is_packed_so_that_nobody_finds_a_path_in_it_is_not_shared(
    pair: Pair, tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    for word in ("-flto", "-gz"):
        assert outcomes(pair, source, (*INCLUDED, word)) == [MISS, MISS]
        assert outcomes(pair, source, (*INCLUDED, word)) == [HIT, HIT]


def test_a_message_for_programs_names_the_header_of_who_asks(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    pair = Checkout(tmp_path / 'a "b"', shared_daemon), Checkout(tmp_path / "c\\d", shared_daemon)
    write_both(pair, "include/w.h", "#warning look here\n")
    source = unique(tmp_path, "#include <w.h>\n")
    options = ("-I", "{here}/include", "-fdiagnostics-format=json")
    for checkout in (*pair, *pair):
        found = checkout.ask(source, options)
        assert made(found) == checkout.direct(source, options, tmp_path / "direct")
    for checkout in pair:
        checkout.client.close()


# --- several bases


def test_the_deepest_base_counts_and_positions_are_not_confused(
    shared_daemon: DaemonProcess, places: tuple[Path, Path], tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    asked = []
    for place in places:
        asked.append(Checkout(place, shared_daemon, place, place / "venv"))
        asked.append(Checkout(place, shared_daemon, place / "venv", place))
    for checkout in asked:
        checkout.write("include/x.h", "static const char *x_h(void) { return __FILE__; }\n")
        checkout.write("venv/include/v.h", "#define V 7\nstatic char v_h[] = __FILE__;\n")
        checkout.write("src/near.h", "")
    found = [checkout.ask(source, INCLUDED) for checkout in asked]
    assert [item.outcome for item in found] == [MISS, MISS, HIT, HIT]
    for checkout, item, name in zip(asked, found, (b"base1", b"base0") * 2, strict=True):
        assert made(item) == checkout.direct(source, INCLUDED, tmp_path / "direct")
        assert name + b"/include/v.h" in made(item).data
        checkout.client.close()


def test_nested_bases_share_with_bases_that_are_nested_alike_only(
    shared_daemon: DaemonProcess, places: tuple[Path, Path], tmp_path: Path
) -> None:
    source = unique(tmp_path, "#include <x.h>\n")
    nested = Checkout(places[0], shared_daemon, places[0], places[0] / "venv")
    apart = Checkout(places[1], shared_daemon, places[1], tmp_path / "venv")
    for checkout in (nested, apart):
        checkout.write("include/x.h", "int x;\n")
    assert outcomes((nested, apart), source, ("-I", "{here}/include")) == [MISS, MISS]
    for checkout in (nested, apart):
        checkout.client.close()


def test_a_neighbour_whose_name_begins_like_a_base_does_not_lie_in_it(
    pair: Pair, tmp_path: Path
) -> None:
    source = unique(tmp_path, "#include <n.h>\n")
    for checkout in pair:
        neighbour = checkout.place.with_name(f"{checkout.place.name}-old")
        neighbour.mkdir()
        (neighbour / "n.h").write_text("const char *n_h = __FILE__;\n")
        options = ("-I", f"{neighbour}", "-g")
        found = checkout.ask(source, options)
        assert found.outcome is MISS
        assert str(neighbour / "n.h").encode() in made(found).data
        assert made(found) == checkout.direct(source, options, tmp_path / "direct")


def test_a_base_is_known_through_links_and_so_are_the_paths_below_it(
    shared_daemon: DaemonProcess, places: tuple[Path, Path], tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    found = []
    for number, place in enumerate(places):
        link = tmp_path / f"link{number}"
        link.symlink_to(place)
        checkout = Checkout(place, shared_daemon, link)
        checkout.write("include/x.h", "static const char *x_h(void) { return __FILE__; }\n")
        checkout.write("venv/include/v.h", "#define V 7\nstatic char v_h[] = __FILE__;\n")
        checkout.write("src/near.h", "")
        spelled = tuple(word.replace("{here}", str(link)) for word in INCLUDED)
        for words in (INCLUDED, spelled):
            found.append(checkout.ask(source, words).outcome)
        checkout.client.close()
    assert found == [MISS, HIT, HIT, HIT]


def test_a_base_that_is_not_there_holds_nothing_and_keeps_its_position(
    shared_daemon: DaemonProcess, places: tuple[Path, Path], tmp_path: Path
) -> None:
    source = unique(tmp_path, "#include <x.h>\n")
    asked = [Checkout(p, shared_daemon, p.with_name("gone"), p) for p in places]
    for checkout in asked:
        checkout.write("include/x.h", "const char *x_h = __FILE__;\n")
    options = ("-I", "{here}/include")
    found = [checkout.ask(source, options) for checkout in asked]
    assert [item.outcome for item in found] == [MISS, HIT]
    assert b"base1/include/x.h" in made(found[1]).data
    for checkout in asked:
        checkout.client.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/", "every path"), ("//", "every path"), ("proj", "not an absolute path"),
        ("/a/b=c", "a path with ="), (":".join(f"/b{n}" for n in range(17)), "more than 16"),
    ],
)  # fmt: skip
def test_a_base_that_cannot_be_is_an_error_that_names_it(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"request.base_dirs.*{why}") as caught:
        connect(env={"PTOCACHE_BASE_DIRS": text})
    assert caught.value.fields["source"] == "PTOCACHE_BASE_DIRS"


def test_a_link_to_what_cannot_be_a_base_is_an_error_too(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "root").symlink_to("/")
    with (
        shared_daemon.client(request_base_dirs=[str(tmp_path / "root")]) as client,
        pytest.raises(ConfigError, match="every path"),
    ):
        client.compile("host", {"k.c": "int a;"}, env=ENV)


# --- around


def test_the_how_to_works_as_it_is_written(daemon: DaemonProcess, tmp_path: Path) -> None:
    run_page("docs/how-to/share-between-checkouts.md", tmp_path, daemon.env)
    with daemon.client() as client:
        numbers = client.stats()["caches"]["binary"]
    assert (numbers["miss"], numbers["memory_hit"] + numbers["disk_hit"]) == (1, 1)


def test_a_store_below_a_base_shows_in_no_output(
    make_daemon: Callable[..., DaemonProcess], places: tuple[Path, Path], tmp_path: Path
) -> None:
    daemon = make_daemon(places[0] / ".cache" / "store").start()
    asked = [Checkout(place, daemon) for place in places]
    source = "#include <x.h>\nconst char *here = __FILE__;\n"
    for checkout in asked:
        checkout.write("include/x.h", "const char *x_h = __FILE__;\n")
    options = ("-I", "{here}/include", "-g")
    found = [checkout.ask(source, options) for checkout in asked]
    assert [item.outcome for item in found] == [MISS, HIT]
    assert b"job-" not in made(found[0]).data
    for checkout in asked:
        checkout.client.close()


def test_a_prefix_map_of_the_request_means_what_it_says(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, SOURCE)
    found = pair[0].ask(source, (*INCLUDED, "-ffile-prefix-map={here}=mine"))
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.UNSUPPORTED_OPTION)
    data = made(found).data
    assert b"mine/include/x.h" in data
    assert b"base0" not in data


def test_a_word_that_looks_like_a_base_is_not_taken_for_one(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "int looks;\n")
    options = ("-I", "{here}/include", "-DB=<base 0>/include")
    assert outcomes(pair, source, options) == [MISS, MISS]


def test_the_fallback_makes_the_same_bytes(
    pair: Pair, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    source = unique(tmp_path, SOURCE)
    wanted = made(pair[0].ask(source, INCLUDED))
    env = {**shared_daemon.env, "PTOCACHE_SOCKET": str(tmp_path / "none")}
    with connect(env=env, request_base_dirs=[str(pair[1].place)]) as alone:
        pair[1].client = alone
        with pytest.warns(PtocacheWarning, match="without its daemon"):
            found = pair[1].ask(source, INCLUDED)
    assert found.reason is Reason.NO_DAEMON
    assert made(found) == wanted


def test_an_entry_is_got_by_its_key_from_either_checkout(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, SOURCE)
    found = pair[0].ask(source, INCLUDED)
    for checkout in pair:
        got = checkout.client.get(found.key, source_dir=checkout.place / "src")
        assert got is not None
        assert made(got) == made(found)
    pair[1].write("include/x.h", "int changed;\n")
    assert pair[1].client.get(found.key, source_dir=pair[1].place / "src") is None


def test_what_differs_is_explained_by_its_place_below_the_base(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, SOURCE)
    pair[0].ask(source, INCLUDED)
    pair[1].write("include/x.h", "static const char *x_h(void) { return 0; }\n")
    found = pair[1].ask(source, INCLUDED)
    told = pair[1].client.call("explain", key=found.key)
    fields = [item["field"] for item in told["changes"]]
    assert fields == ["dependencies.<base 0>/include/x.h"]
    shown = entry_of(pair[1], found)
    assert "<base 0>/include" in shown["action"]["options"]
    assert shown["action"]["keyed"]["base_dirs"] == "0"
    assert ("<base 0>", "include/x.h") in {
        (item["base"], item["path"]) for item in shown["dependencies"]
    }
    assert shown["base_dirs"] == {}


def test_a_bond_to_a_base_is_explained(pair: Pair, tmp_path: Path) -> None:
    source = unique(tmp_path, "#include <w.h>\n")
    write_both(pair, "include/w.h", "#warning look here\n")
    found = [checkout.ask(source, INCLUDED) for checkout in pair]
    assert "the entry holds for the base directory" in found[1].why
    told = pair[1].client.call("explain", key=found[1].key)
    change = {"field": "base_dirs.0", "old": str(pair[0].place), "new": str(pair[1].place)}
    assert change.items() <= told["changes"][0].items()
    assert entry_of(pair[1], found[1])["base_dirs"] == {"0": str(pair[1].place)}


def entry_of(checkout: Checkout, found: Result) -> dict[str, Any]:
    """The newest entry of the key of an answer."""
    entries: list[dict[str, Any]] = checkout.client.describe(found.key)["entries"]
    return max(entries, key=lambda item: item["created_s"])
