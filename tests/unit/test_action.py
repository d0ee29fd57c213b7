"""Keys: which facts move them, which do not, and that they never change by accident."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptocache import action
from ptocache.action import Action, binary_action, entry_key
from ptocache.digest import Digest, canonical
from ptocache.model import Dependency, Input, Job, Prepared
from ptocache.outcome import Reason

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"

JOB = Job(
    toolchain="host",
    arch="x86_64",
    options=("-O3", "-march=native", "-D", "N=16"),
    env=(("CPATH", "/opt/include"), ("SOURCE_DATE_EPOCH", "1700000000")),
    inputs=(
        Input("include/tile.h", Digest.of(b"#define TILE 16\n")),
        Input("saxpy.c", Digest.of(b"void saxpy(void) {}\n")),
    ),
    outputs=("object", "shared"),
    symbols=("saxpy", "launch"),
    source_dir="/home/me/kernels",
    cwd="/home/me",
    kernel="saxpy",
)
PREPARED = Prepared(JOB, keyed=(("native", "-march=skylake"),))


def make(prepared: Prepared = PREPARED, **changes: Any) -> Action:
    facts: dict[str, Any] = {
        "plugin_version": "1",
        "identity": "ab" * 32,
        "salt": ("of the daemon", "of the request"),
    }
    return binary_action(prepared, **{**facts, **changes})


def with_job(**changes: Any) -> Action:
    return make(PREPARED._replace(job=JOB._replace(**changes)))


def test_key_and_document_are_the_golden_ones() -> None:
    made = make()
    assert json.loads((GOLDEN / "action.json").read_text()) == made.document
    assert canonical(made.document) == (GOLDEN / "action.bin").read_bytes()
    assert made.key == (GOLDEN / "action.key").read_text().strip()


def test_entry_key_is_the_golden_one() -> None:
    dependencies = (
        Dependency("", "/usr/include/math.h", "11" * 32),
        Dependency("source", "tile.h", "22" * 32),
        Dependency("", "/opt/include/tile.h", ""),
    )
    assert entry_key(make().key, dependencies) == (GOLDEN / "entry.key").read_text().strip()


def test_the_document_has_exactly_the_fields_of_its_grammar() -> None:
    grammar = [
        "schema", "kind", "toolchain", "plugin", "identity", "arch", "options", "env", "inputs",
        "outputs", "symbols", "keyed", "salt",
    ]  # fmt: skip
    assert list(make().document) == grammar


OTHER = Input("other.c", Digest.of(b"int other;\n"))
MOVES: dict[str, Action] = {
    "toolchain": with_job(toolchain="pto"),
    "plugin": make(plugin_version="2"),
    "identity": make(identity="cd" * 32),
    "arch": with_job(arch="aarch64"),
    "no arch": with_job(arch=""),
    "option added": with_job(options=(*JOB.options, "-g")),
    "option removed": with_job(options=JOB.options[1:]),
    "option order": with_job(options=tuple(reversed(JOB.options))),
    "option split": with_job(options=("-O3", "-march=native", "-DN=16")),
    "no options": with_job(options=()),
    "variable's value": with_job(env=(("CPATH", "/other"), JOB.env[1])),
    "variable's name": with_job(env=(("C_INCLUDE_PATH", "/opt/include"), JOB.env[1])),
    "variable removed": with_job(env=JOB.env[1:]),
    "variable empty": with_job(env=(("CPATH", ""), JOB.env[1])),
    "input's name": with_job(inputs=(JOB.inputs[0], Input("axpy.c", JOB.inputs[1].digest))),
    "input's bytes": with_job(inputs=(JOB.inputs[0], Input("saxpy.c", Digest.of(b"x")))),
    "input's size": with_job(
        inputs=(JOB.inputs[0], Input("saxpy.c", JOB.inputs[1].digest._replace(size=1)))
    ),
    "input added": with_job(inputs=(*JOB.inputs, OTHER)),
    "input removed": with_job(inputs=JOB.inputs[1:]),
    "inputs exchanged": with_job(
        inputs=(
            Input("include/tile.h", JOB.inputs[1].digest),
            Input("saxpy.c", JOB.inputs[0].digest),
        )
    ),
    "output removed": with_job(outputs=("shared",)),
    "output order": with_job(outputs=("shared", "object")),
    "symbol added": with_job(symbols=(*JOB.symbols, "third")),
    "symbol removed": with_job(symbols=JOB.symbols[1:]),
    "keyed fact": make(PREPARED._replace(keyed=(("native", "-march=znver4"),))),
    "keyed fact's name": make(PREPARED._replace(keyed=(("tune", "-march=skylake"),))),
    "no keyed fact": make(PREPARED._replace(keyed=())),
    "salt of the daemon": make(salt=("another", "of the request")),
    "salt of the request": make(salt=("of the daemon", "another")),
    "salts exchanged": make(salt=("of the request", "of the daemon")),
}


@pytest.mark.parametrize("name", MOVES)
def test_the_key_moves_with(name: str) -> None:
    assert MOVES[name].key != make().key


def test_each_of_these_changes_gives_a_key_of_its_own() -> None:
    assert len({made.key for made in MOVES.values()}) == len(MOVES)


def test_the_key_moves_with_the_schema_and_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    document = make().document
    assert action.key_of_document({**document, "schema": 2}) != make().key
    assert action.key_of_document({**document, "kind": "kernel"}) != make().key
    monkeypatch.setattr(action, "SCHEMA", action.SCHEMA + 1)
    assert make().document["schema"] == 2


def test_an_action_is_never_taken_for_an_entry() -> None:
    # The two have domains of their own, so that one's bytes are never the other's.
    assert str(entry_key(make().key, ())) != str(make().key)


STAYS: dict[str, Action] = {
    "kernel": with_job(kernel="a name for people"),
    "cwd": with_job(cwd="/elsewhere"),
    "source_dir": with_job(source_dir="/home/you/kernels"),
    "order of the environment": with_job(env=tuple(reversed(JOB.env))),
    "order of the inputs": with_job(inputs=tuple(reversed(JOB.inputs))),
    "order of the symbols": with_job(symbols=tuple(reversed(JOB.symbols))),
    "a symbol said twice": with_job(symbols=(*JOB.symbols, *JOB.symbols)),
    "order of the keyed facts": make(PREPARED._replace(keyed=(*PREPARED.keyed,))),
    "a bypass": make(PREPARED._replace(bypass=Reason.ASKED, detail="asked", looked=True)),
}


@pytest.mark.parametrize("name", STAYS)
def test_the_key_stays_whatever_the(name: str) -> None:
    assert STAYS[name].key == make().key


def test_order_of_keyed_facts_does_not_count() -> None:
    facts = (("a", "1"), ("b", "2"))
    one = make(PREPARED._replace(keyed=facts))
    other = make(PREPARED._replace(keyed=tuple(reversed(facts))))
    assert one.key == other.key


def test_the_key_of_a_stored_document_is_that_of_its_action() -> None:
    made = make()
    assert action.key_of_document(json.loads(json.dumps(made.document))) == made.key


HEADER = Dependency("", "/usr/include/math.h", "11" * 32)
BESIDE = Dependency("source", "tile.h", "22" * 32)
ABSENT = Dependency("", "/opt/include/tile.h", "")


@pytest.mark.parametrize(
    "others",
    [
        (),
        (HEADER,),
        (HEADER, BESIDE, ABSENT, HEADER._replace(path="/usr/include/other.h")),
        (HEADER._replace(sha256="33" * 32), BESIDE, ABSENT),
        (HEADER._replace(sha256=""), BESIDE, ABSENT),
        (HEADER._replace(base="source"), BESIDE, ABSENT),
        (HEADER._replace(path="/usr/include/maths.h"), BESIDE, ABSENT),
    ],
    ids=["none", "fewer", "more", "content", "absent", "base", "path"],
)
def test_entry_key_moves_with_each_discovered_input(others: tuple[Dependency, ...]) -> None:
    key = make().key
    assert entry_key(key, others) != entry_key(key, (HEADER, BESIDE, ABSENT))


def test_entry_key_does_not_depend_on_the_order_of_discovery() -> None:
    key = make().key
    assert entry_key(key, (HEADER, BESIDE, ABSENT)) == entry_key(key, (ABSENT, BESIDE, HEADER))


def test_entry_key_moves_with_the_folder_to_which_the_entry_is_bound() -> None:
    key = make().key
    keys = {entry_key(key, (HEADER,), folder) for folder in ("", "/home/me", "/home/you")}
    assert len(keys) == 3
    assert entry_key(key, (HEADER,), "") == entry_key(key, (HEADER,))
