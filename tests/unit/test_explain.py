"""Why something was no hit: which entry is the nearest, and what the differences read like."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.digest import Digest
from ptocache.entry import Entry
from ptocache.explain import (
    FIRST,
    Asked,
    Explanation,
    Memory,
    Side,
    changes,
    explain,
    side_of,
)
from ptocache.model import Component, Dependency, Log, Provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

Deps = tuple[Dependency, ...]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def source(text: str) -> dict[str, Any]:
    return {"sha256": sha(text), "size": len(text)}


ACTION: dict[str, Any] = {
    "schema": 1,
    "kind": "binary",
    "toolchain": "pto",
    "plugin": "1",
    "identity": sha("toolchain"),
    "arch": "dav-2201",
    "options": ["-O2", "-DTILE=16"],
    "env": {"PTO_FLAGS": "--pto-level=level2", "SOURCE_DATE_EPOCH": "1"},
    "inputs": {"gemm.cpp": source("gemm"), "tile.pto": source("tile")},
    "outputs": ["aibin"],
    "symbols": ["gemm"],
    "keyed": {"native": "-march=x"},
    "salt": ["", ""],
}


def component(role: str, content: str, path: str = "", canonical: str = "") -> Component:
    path = path or f"/opt/cann/bin/{role}"
    return Component(role, path, canonical or path, Digest(sha(content), len(content)))


BANNER = "CANN 8.5.0; ptoas 0.27; bisheng clang version 15.0.5"
TOOLS = (
    component("version.info", "8.5.0", "/opt/cann/version.info"),
    component("ptoas", "ptoas"),
    component("bisheng", "bisheng"),
    component("ld.lld", "lld"),
    component("tree:cann", "many", "/opt/cann"),
)
READ = (
    Dependency("source", "tile.h", sha("tile.h")),
    Dependency("", "/opt/include/gemm.h", sha("gemm.h")),
    Dependency("", "/first/gemm.h", ""),
    Dependency("", "/usr/lib/libm.so.6", sha("libm")),
)
OLD = Side(ACTION, READ, TOOLS, BANNER, "/src")


def entry(
    created_s: int = 1000,
    kernel: str = "gemm",
    dependencies: Deps = READ,
    components: tuple[Component, ...] = TOOLS,
    banner: str = BANNER,
    source_dir: str = "",
    **fields: Any,
) -> Entry:
    return Entry(
        action={**ACTION, **fields},
        dependencies=dependencies,
        outputs=(),
        log=Log(),
        source_dir=source_dir,
        kernel=kernel,
        created_s=created_s,
        compile_ms=1,
        provenance=Provenance((), components, banner, True, "1"),
    )


def with_tools(banner: str = BANNER, **content: str) -> Side:
    """The new side with the content of some roles changed (``_`` stands for ``.``)."""
    changed = {role.replace("_", "."): text for role, text in content.items()}
    tools = tuple(
        item._replace(digest=Digest(sha(changed[item.role]), 1)) if item.role in changed else item
        for item in TOOLS
    )
    action = {**ACTION, "identity": sha("another")}
    return OLD._replace(action=action, components=tools, banner=banner)


def words(new: Side, old: Side = OLD) -> list[str]:
    return [item.words for item in changes(old, new)]


def test_equal_sides_do_not_differ() -> None:
    assert changes(OLD, OLD) == ()
    assert changes(side_of(entry()), side_of(entry(created_s=9, kernel="other"))) == ()


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"kind": "kernel"}, "kind", "kind binary → kernel"),
        ({"toolchain": "ascendc"}, "toolchain", "toolchain pto → ascendc"),
        ({"plugin": "2"}, "plugin", "plugin version 1 → 2"),
        ({"schema": 2}, "schema", "key schema 1 → 2"),
        ({"arch": "dav-3510"}, "arch", "arch dav-2201 → dav-3510"),
        ({"arch": ""}, "arch", "arch dav-2201 → (empty)"),
        ({"options": ["-O3", "-DTILE=16"]}, "options", "options: +-O3 -O2"),
        ({"options": ["-DTILE=16", "-O2"]}, "options", "options: order changed"),
        ({"options": ["-O2", "-DTILE=16", "-O2"]}, "options", "options: +-O2"),
        ({"options": ["-O2", "-DTILE=16", "-D", "A B"]}, "options", "options: +-D +'A B'"),
        ({"outputs": ["cpp"]}, "outputs", "outputs: +cpp -aibin"),
        ({"symbols": []}, "symbols", "symbols: -gemm"),
        ({"salt": ["", "x"]}, "salt", "salt: the request's '' → x"),
        ({"salt": ["a", ""]}, "salt", "salt: the daemon's '' → a"),
        ({"keyed": {"native": "-march=y"}}, "keyed.native", "native: -march=x → -march=y"),
        ({"keyed": {}}, "keyed.native", "native: -march=x → (not set)"),
        ({"newer": 7}, "newer", "newer (not set) → 7"),
    ],
)  # fmt: skip
def test_a_field_of_the_action_is_said_in_words(
    fields: dict[str, Any], field: str, said: str
) -> None:
    found = changes(OLD, OLD._replace(action={**ACTION, **fields}))
    assert [(item.field, item.words) for item in found] == [(field, said)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("--pto-level=level2 --enable-insert-sync", "PTO_FLAGS: +--enable-insert-sync"),
        ("--pto-level=level3", "PTO_FLAGS: +--pto-level=level3 --pto-level=level2"),
        ("-x 'a b' --pto-level=level2", "PTO_FLAGS: +-x +'a b'"),
        ("  --pto-level=level2", "PTO_FLAGS: --pto-level=level2 → --pto-level=level2"),
        ("-x 'a", "PTO_FLAGS: --pto-level=level2 → -x 'a"),
        ("", "PTO_FLAGS: --pto-level=level2"),
        (None, "PTO_FLAGS: --pto-level=level2"),
    ],
)
def test_a_variable_of_flags_is_compared_word_by_word(value: str | None, said: str) -> None:
    env = {"SOURCE_DATE_EPOCH": "1", "PTO_FLAGS": value}
    if value is None:
        del env["PTO_FLAGS"]
    found = changes(OLD, OLD._replace(action={**ACTION, "env": env}))
    assert [(item.field, item.words) for item in found] == [("env.PTO_FLAGS", said)]


def test_options_that_a_variable_brought_are_told_once() -> None:
    flags = ACTION["env"]["PTO_FLAGS"] + " -g"
    action = {**ACTION, "options": [*ACTION["options"], "-g"], "env": {"PTO_FLAGS": flags}}
    new = OLD._replace(action={**action, "env": {**ACTION["env"], "PTO_FLAGS": flags}})
    assert words(new) == ["PTO_FLAGS: +-g"]
    new.action["options"].append("-h")
    assert words(new) == ["options: +-g +-h", "PTO_FLAGS: +-g"]


def test_another_variable_is_said_with_both_values() -> None:
    env = {**ACTION["env"], "SOURCE_DATE_EPOCH": "2", "CPATH": "/x"}
    assert words(OLD._replace(action={**ACTION, "env": env})) == [
        "CPATH: (not set) → /x",
        "SOURCE_DATE_EPOCH: 1 → 2",
    ]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"gemm.cpp": source("GEMM"), "tile.pto": source("tile")}, ["source gemm.cpp changed"]),
        ({"gemm.cpp": source("gemm")}, ["source tile.pto is gone"]),
        ({**ACTION["inputs"], "a.h": source("a")}, ["source a.h is new"]),
        (
            {"gemm.cpp": source("gemm"), "t2.pto": source("tile")},
            ["source tile.pto → t2.pto (same bytes)"],
        ),
    ],
)
def test_inputs_are_told_by_name(inputs: dict[str, Any], said: list[str]) -> None:
    assert words(OLD._replace(action={**ACTION, "inputs": inputs})) == said


def test_inputs_of_a_whole_kernel_are_no_sources() -> None:
    old = OLD._replace(action={**ACTION, "kind": "kernel"})
    new = {**old.action, "inputs": {**ACTION["inputs"], "a": source("a")}}
    assert words(OLD._replace(action=new), old) == ["input a is new"]


# --- the toolchain


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (
            with_tools(BANNER.replace("8.5.0", "9.0.0"), version_info="9.0.0"),
            ["CANN 8.5.0 → 9.0.0 (version.info)"],
        ),
        (with_tools(version_info="8.5.0 "), ["version.info changed (same version text)"]),
        (with_tools(bisheng="other"), ["bisheng changed (same version text)"]),
        (with_tools(ld_lld="other"), ["ld.lld changed (same version text)"]),
        (
            with_tools(BANNER.replace("0.27", "0.28"), ptoas="other"),
            ["ptoas 0.27 → 0.28"],
        ),
        (
            with_tools(BANNER.replace("15.0.5", "16.1.0"), bisheng="other"),
            ["bisheng clang version 15.0.5 → 16.1.0"],
        ),
        (
            with_tools(BANNER.replace("8.5.0", "9.0.0"), version_info="9", bisheng="b"),
            ["CANN 8.5.0 → 9.0.0 (version.info)", "bisheng changed (same version text)"],
        ),
        # Whose version text is nobody's own may well have another one.
        (
            with_tools(BANNER.replace("8.5.0", "9.0.0"), version_info="9", ld_lld="b"),
            ["CANN 8.5.0 → 9.0.0 (version.info)", "ld.lld changed"],
        ),
        (with_tools(**{"tree:cann": "other"}), ["files of the tree /opt/cann changed"]),
        (with_tools(BANNER.partition("; ")[0]), ["ptoas 0.27 is gone",
                                                 "bisheng clang version 15.0.5 is gone"]),
        (with_tools(BANNER + "; lld 15"), ["lld 15 has appeared"]),
        (with_tools(), ["the toolchain's own answers changed (its files did not)"]),
    ],
)  # fmt: skip
def test_a_toolchain_is_told_by_its_parts(new: Side, said: list[str]) -> None:
    assert words(new) == said


def test_a_tree_that_differs_by_a_file_that_is_told_is_not_told_as_well() -> None:
    changed = {"version_info": "9", "tree:cann": "other"}
    new = with_tools(BANNER.replace("8.5.0", "9.0.0"), **changed)
    assert words(new) == ["CANN 8.5.0 → 9.0.0 (version.info)"]
    elsewhere = tuple(
        i._replace(path="/mnt", canonical="/mnt") if i.role == "tree:cann" else i for i in TOOLS
    )
    old = OLD._replace(components=elsewhere)
    new = new._replace(
        components=tuple(
            i._replace(digest=Digest(sha("other"), 1)) if i.role in ("tree:cann", "bisheng") else i
            for i in elsewhere
        ),
        banner=BANNER,
    )
    assert words(new, old) == [
        "bisheng changed (same version text)",
        "files of the tree /mnt changed",
    ]


def test_of_several_version_files_the_most_telling_is_named() -> None:
    more = component("x86_64-linux/ascend_toolkit_install.info", "i", "/opt/cann/x/a_install.info")
    old = OLD._replace(components=(*TOOLS, more))
    new = with_tools(BANNER.replace("8.5.0", "9.0.0"), version_info="9")
    other = more._replace(digest=Digest(sha("j"), 1))
    new = new._replace(components=(*(new.components or ()), other))
    assert words(new, old) == ["CANN 8.5.0 → 9.0.0 (version.info)"]
    only = new._replace(components=(*TOOLS, other))
    assert words(only, old) == ["CANN 8.5.0 → 9.0.0 (a_install.info)"]


def test_another_compiler_is_told_by_both_version_texts() -> None:
    gcc = OLD._replace(components=(component("c", "g", "/usr/bin/cc"),), banner="gcc version 12")
    clang = with_tools("clang version 15")._replace(
        components=(component("c", "l", "/usr/bin/clang"),)
    )
    assert words(clang, gcc)[0] == "gcc version 12 → clang version 15"


def test_a_compilers_version_is_found_behind_its_link() -> None:
    def of(version: str) -> tuple[Component, ...]:
        return (component("c", version, "/usr/bin/cc", f"/usr/bin/gcc-{version}"),)

    old = OLD._replace(components=of("12"), banner="gcc version 12.2.0 (Debian 12.2.0-14)")
    new = with_tools("gcc version 13.1.0 (Debian 13.1.0-1)")._replace(components=of("13"))
    said = "gcc version 12.2.0 (Debian 12.2.0-14) → 13.1.0 (Debian 13.1.0-1) (cc)"
    assert words(new, old) == [said]


def test_parts_that_come_and_go_are_told() -> None:
    more = with_tools()._replace(components=(*TOOLS[1:], component("llvm-objcopy", "o")))
    assert words(more) == [
        "llvm-objcopy is part of the toolchain now",
        "version.info is no part of the toolchain any more",
    ]


def test_a_tool_that_only_moved_is_told_with_both_places() -> None:
    there = component("bisheng", "bisheng", "/opt/cann/bin/bisheng", "/opt/cann-9/bin/bisheng")
    new = with_tools()._replace(components=(*TOOLS[:2], there, *TOOLS[3:]))
    assert words(new) == ["bisheng moved: /opt/cann/bin/bisheng → /opt/cann-9/bin/bisheng"]


def test_a_tool_that_is_only_called_by_another_name_is_told_so() -> None:
    there = component("bisheng", "bisheng", "/opt/cann/bin/clang", "/opt/cann/bin/bisheng")
    new = with_tools()._replace(components=(*TOOLS[:2], there, *TOOLS[3:]))
    assert words(new) == ["bisheng → clang (the same program by another name)"]


def test_many_tools_that_moved_together_are_told_in_one_line() -> None:
    new = with_tools()._replace(
        components=tuple(i._replace(canonical="/mnt" + i.canonical) for i in TOOLS)
    )
    assert words(new) == ["5 files of the toolchain moved: /opt/cann → /mnt/opt/cann"]


def test_a_tree_that_differs_is_told_even_if_all_tools_in_it_only_moved() -> None:
    moved = tuple(i._replace(canonical="/mnt" + i.canonical) for i in TOOLS[2:])
    changed = tuple(
        i._replace(digest=Digest(sha("x"), 1)) if i.role == "tree:cann" else i for i in moved
    )
    new = with_tools()._replace(components=(*TOOLS[:2], *changed))
    assert words(new) == [
        "files of the tree /opt/cann changed",
        "bisheng moved: /opt/cann/bin/bisheng → /mnt/opt/cann/bin/bisheng",
        "ld.lld moved: /opt/cann/bin/ld.lld → /mnt/opt/cann/bin/ld.lld",
    ]


def test_the_name_of_a_tree_and_the_folder_of_a_tool_do_not_count() -> None:
    new = with_tools()._replace(
        components=tuple(
            i._replace(path=f"/spelled/{'latest' if i.role.startswith('tree:') else i.role}")
            for i in TOOLS
        )
    )
    assert words(new) == ["the toolchain's own answers changed (its files did not)"]


def test_a_toolchain_of_which_nothing_is_known_is_told_by_its_digest() -> None:
    new = with_tools()._replace(components=None)
    assert words(new) == [f"toolchain identity {sha('toolchain')[:12]} → {sha('another')[:12]}"]


def test_equal_identities_are_not_compared_part_by_part() -> None:
    assert changes(OLD, OLD._replace(components=(), banner="")) == ()


# --- discovered inputs


def reads(*changed: Dependency) -> Side:
    places = {(item.base, item.path): item for item in (*READ, *changed)}
    return OLD._replace(dependencies=tuple(places.values()))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (reads(Dependency("source", "tile.h", sha("x"))), "header tile.h changed"),
        (reads(Dependency("", "/opt/include/gemm.h", sha("x"))), "header gemm.h changed"),
        (reads(Dependency("", "/usr/lib/libm.so.6", sha("x"))), "library libm.so.6 changed"),
        (
            reads(Dependency("", "/first/gemm.h", sha("x"))),
            "gemm.h has appeared, and is found first",
        ),
        (reads(Dependency("", "/opt/include/gemm.h", "")), "gemm.h is gone"),
        (reads(Dependency("", "/new/a.h", sha("x"))), "newly read: a.h"),
    ],
)
def test_a_discovered_input_is_told_by_what_became_of_it(new: Side, said: str) -> None:
    assert words(new) == [said]


def test_the_whole_path_of_a_discovered_input_is_in_its_field() -> None:
    (found,) = changes(OLD, reads(Dependency("", "/opt/include/gemm.h", sha("x"))))
    assert found.field == "dependencies./opt/include/gemm.h"
    assert (found.old, found.new) == (sha("gemm.h"), sha("x"))


def test_what_is_no_longer_read_is_told_and_where_nothing_is_looked_for_is_not() -> None:
    assert words(OLD._replace(dependencies=READ[:2])) == ["no longer read: libm.so.6"]
    assert words(OLD, OLD._replace(dependencies=READ[:2])) == ["newly read: libm.so.6"]


def test_many_headers_newly_read_are_told_in_one_line_and_last() -> None:
    many = (Dependency("", f"/n/{i}.h", sha("n")) for i in range(9))
    new = reads(*many)._replace(action={**ACTION, "arch": "a"})
    assert words(new) == ["arch dav-2201 → a", "newly read: 0.h, 1.h, 2.h and 6 more"]


def test_unknown_dependencies_are_not_compared() -> None:
    assert changes(OLD, OLD._replace(dependencies=None)) == ()


def test_another_source_directory_counts_only_for_an_entry_that_is_bound_to_one() -> None:
    new = OLD._replace(source_dir="/other")
    assert words(new) == ["the entry holds for the source directory /src only"]
    assert words(new, OLD._replace(source_dir="")) == []


def test_a_base_that_lies_elsewhere_counts_only_for_an_entry_that_is_bound_to_it() -> None:
    new = OLD._replace(bases=((0, "/p"), (1, "/v")))
    assert words(new, OLD._replace(bases=((1, "/v"),))) == []
    assert words(new, OLD._replace(bases=((0, "/q"), (1, "/v")))) == [
        "the entry holds for the base directory /q only"
    ]
    assert words(OLD, OLD._replace(bases=((0, "/q"),))) == []


def test_a_header_below_a_base_is_named_by_it() -> None:
    was, now = (reads(Dependency("<base 0>", "i/x.h", sha(text))) for text in ("a", "b"))
    (change,) = changes(was, now)
    assert (change.field, change.words) == ("dependencies.<base 0>/i/x.h", "header x.h changed")


# --- which is the nearest


def test_the_fewest_differing_fields_win_and_then_the_newest() -> None:
    far = entry(5000, arch="x", options=[])
    candidates = [
        far,
        entry(4000, options=["-O0"], salt=["", "s"]),
        entry(3000, arch="y", plugin="0"),
    ]
    found = explain(OLD, candidates, "gemm")
    assert found.nearest is not None
    assert found.nearest.created_s == 5000
    found = explain(OLD, [*candidates, entry(1000, arch="z")], "gemm")
    assert found.nearest is not None
    assert (found.nearest.created_s, found.words) == (1000, "arch z → dav-2201")


def test_a_toolchain_with_many_new_files_is_one_field() -> None:
    new_tools = with_tools(bisheng="b", ptoas="p", ld_lld="l")
    near = entry(1000, identity=sha("another"), components=new_tools.components or ())
    found = explain(OLD, [entry(2000, arch="x", plugin="0"), near], "gemm")
    assert found.nearest is not None
    assert found.nearest.created_s == 1000


def test_an_entry_of_the_same_action_is_nearer_than_one_of_another() -> None:
    changed = (READ[0]._replace(sha256=sha("1")), READ[1]._replace(sha256=sha("2")))
    own = entry(1000, dependencies=(*changed, *READ[2:]))
    found = explain(OLD, [own, entry(2000, arch="x")], "gemm")
    assert found.words == "header tile.h changed; header gemm.h changed"


def test_no_more_is_read_than_needed() -> None:
    read = []

    def candidates() -> Iterator[Entry]:
        for number in range(32):
            read.append(number)
            yield entry(2000 - number, arch="x") if number else entry(2000, arch="x", plugin="0")

    assert explain(OLD, candidates(), "gemm").words == "arch x → dav-2201"
    assert read == [0, 1]


def test_a_sentence_names_three_differences_and_counts_the_others() -> None:
    found = explain(OLD, [entry(arch="x", plugin="0", options=[], symbols=[], outputs=[])], "gemm")
    assert found.words == (
        "plugin version 0 → 1; arch x → dav-2201; options: +-O2 +-DTILE=16 (and 2 more)"
    )
    assert len(found.changes) == 5


def test_a_sentence_stays_short_and_on_one_line_however_long_the_values_are() -> None:
    found = explain(
        OLD, [entry(arch="a\n" * 999, options=["-x" * 999], env={"CPATH": "/p" * 999})], "gemm"
    )
    assert len(found.words) <= 400
    assert "\n" not in found.words
    assert found.changes[0].old == "a\n" * 999


def test_without_any_entry_it_is_the_first_of_its_kernel() -> None:
    assert explain(OLD, [], "gemm") == Explanation(FIRST)
    assert explain(OLD, [], "gemm", refresh=True).words == "asked to compile anew"
    assert "evicted" in explain(OLD, [], "gemm", stored_before=True).words


def test_an_entry_of_another_kernel_is_named() -> None:
    found = explain(OLD, [entry(kernel="softmax", arch="x")], "gemm")
    assert found.words == f"{FIRST}; from the nearest, softmax: arch x → dav-2201"


def test_an_entry_that_was_there_before_is_said_to_have_gone() -> None:
    found = explain(OLD, [entry(arch="x")], "gemm", stored_before=True)
    assert found.words.startswith("its entry was evicted, invalidated or damaged")
    assert found.words.endswith("arch x → dav-2201")
    changed = entry(dependencies=(READ[0]._replace(sha256=sha("1")), *READ[1:]))
    found = explain(OLD, [changed], "gemm", stored_before=True)
    assert found.words == "header tile.h changed"


def test_where_nothing_differs_it_is_said_what_that_means() -> None:
    found = explain(OLD, [entry()], "gemm")
    assert found.changes == ()
    assert "nothing differs" in found.words
    assert explain(OLD, [entry()], "gemm", refresh=True).words == "asked to compile anew"


def test_an_explanation_becomes_plain_data() -> None:
    near = entry(arch="x")
    assert explain(OLD, [near], "gemm").plain() == {
        "why": "arch x → dav-2201",
        "nearest": {
            "key": near.action_key, "entry": near.key, "kernel": "gemm", "created_s": 1000,
        },
        "changes": [
            {"field": "arch", "old": "x", "new": "dav-2201", "words": "arch x → dav-2201"}
        ],
    }  # fmt: skip
    assert Explanation("so").plain() == {"why": "so", "nearest": None, "changes": []}


@pytest.mark.parametrize("field", sorted(ACTION))
@pytest.mark.parametrize("value", [None, 7, "text", ["a", 1], {"a": [1]}, {"x": {"sha256": 1}}])
def test_documents_of_any_shape_are_compared(field: str, value: object) -> None:
    odd = OLD._replace(action={**ACTION, field: value})
    for one, other in ((OLD, odd), (odd, OLD)):
        assert all("\n" not in item.words and item.words for item in changes(one, other))
        assert {item.field.partition(".")[0] for item in changes(one, other)} <= {field}
        assert changes(one, other)


# --- what is remembered


def asked(key: str, outcome: str = "bypass", kernel: str = "k") -> Asked:
    return Asked(1.0, key, "binary", "host", kernel, "", outcome, "", "")


def test_a_memory_is_bounded_and_gives_the_latest_first() -> None:
    memory = Memory(3)
    assert memory.last() is None
    for number in range(5):
        memory.note(asked(f"{number:04x}", kernel=f"k{number % 2}"))
    last, odd = memory.last(), memory.of_kernel("k1")
    assert last is not None
    assert odd is not None
    assert (last.key, odd.key) == ("0004", "0003")
    assert memory.of_kernel("none") is None
    assert [item.key for item in memory.of_key("00")] == ["0002", "0003", "0004"]
    assert memory.of_key("0001") == []


def test_a_key_is_told_by_its_latest_request() -> None:
    memory = Memory()
    memory.note(asked("aaaa", "failure"))
    memory.note(asked("aaaa", "bypass"))
    assert [item.outcome for item in memory.of_key("aa")] == ["bypass"]


def test_a_miss_and_who_joined_it_get_the_explanation_of_their_key_and_a_bypass_does_not() -> None:
    memory = Memory()
    memory.explained("aaaa", Explanation("so"))
    for outcome, expected in (
        ("miss", Explanation("so")), ("joined", Explanation("so")), ("bypass", None),
    ):  # fmt: skip
        memory.note(asked("aaaa", outcome))
        last = memory.last()
        assert last is not None
        assert last.explanation == expected


def test_explanations_are_bounded_too() -> None:
    memory = Memory(2)
    for key in ("a", "b", "a", "c"):
        memory.explained(key, Explanation(key))
    assert [memory.was_stored(key) for key in "abc"] == [True, False, True]
