"""The key of a kernel that a framework builds by itself: what counts, what does not, and its material."""

from __future__ import annotations

from typing import Any

import pytest

from ptocache.action import Action, binary_action, kernel_action, key_of_document
from ptocache.digest import Digest
from ptocache.errors import BadRequestError
from ptocache.kernel import material_of
from ptocache.model import Input, Job, Prepared
from ptocache.wire import MAX_SHORT_TEXT

SOURCE = Input("source", Digest.of(b"__global__ void gemm();"))
JOB = Job(
    toolchain="pto",
    arch="dav-2201",
    options=(),
    env=(("PTO_FLAGS", "--enable-insert-sync"),),
    inputs=(SOURCE,),
    outputs=(),
    kernel="gemm",
)
TEXTS = (("block", "128x64"), ("framework", "tile 1.0"))


def action(job: Job = JOB, texts: tuple[tuple[str, str], ...] = TEXTS, **facts: Any) -> Action:
    return kernel_action(job, texts, **{"plugin_version": "1", "identity": "ab" * 32, **facts})


def test_the_document_says_what_it_is_and_leads_to_its_key() -> None:
    made = action(salt=("daemon", "request"))
    assert made.document == {
        "schema": 1,
        "kind": "kernel",
        "toolchain": "pto",
        "plugin": "1",
        "identity": "ab" * 32,
        "arch": "dav-2201",
        "options": [],
        "env": {"PTO_FLAGS": "--enable-insert-sync"},
        "inputs": {"source": {"sha256": SOURCE.digest.sha256, "size": SOURCE.digest.size}},
        "outputs": [],
        "symbols": [],
        "keyed": {"block": "128x64", "framework": "tile 1.0"},
        "salt": ["daemon", "request"],
    }
    assert key_of_document(made.document) == made.key


def test_the_key_never_moves() -> None:
    # Stores hold it: another grammar is another schema number.
    assert action().key == "d6a406ebe6344fb475f921f7cf5cff9f7661786f4064b4743a9d1e7482f2762d"


CHANGES: dict[str, Action] = {
    "toolchain": action(JOB._replace(toolchain="ascendc")),
    "plugin": action(plugin_version="2"),
    "identity": action(identity="cd" * 32),
    "arch": action(JOB._replace(arch="dav-3510")),
    "variable": action(JOB._replace(env=(("PTO_FLAGS", ""),))),
    "no variable": action(JOB._replace(env=())),
    "digest": action(JOB._replace(inputs=(Input("source", Digest.of(b"other")),))),
    "name of a digest": action(JOB._replace(inputs=(SOURCE._replace(name="text"),))),
    "no digest": action(JOB._replace(inputs=())),
    "text": action(texts=(("block", "64x64"), TEXTS[1])),
    "texts exchanged": action(texts=(("block", "tile 1.0"), ("framework", "128x64"))),
    "no texts": action(texts=()),
    "salt of the daemon": action(salt=("pepper", "")),
    "salt of the request": action(salt=("", "pepper")),
}


def test_whatever_counts_gives_a_key_of_its_own() -> None:
    keys = {action().key} | {made.key for made in CHANGES.values()}
    assert len(keys) == 1 + len(CHANGES)


def test_name_order_and_places_do_not_count() -> None:
    other = JOB._replace(kernel="another", source_dir="/src", cwd="/tmp")
    assert action(other, tuple(reversed(TEXTS))).key == action().key


def test_a_compile_of_the_same_facts_has_another_key() -> None:
    compiled = binary_action(Prepared(JOB, TEXTS), plugin_version="1", identity="ab" * 32)
    made = action().document
    assert {name for name in made if made[name] != compiled.document[name]} == {"kind"}
    assert compiled.key != action().key


# --- material


def test_short_texts_stand_for_themselves_and_the_rest_is_known_by_digest() -> None:
    longest, longer = "x" * MAX_SHORT_TEXT, "x" * (MAX_SHORT_TEXT + 1)
    digests, texts = material_of({"z": longest, "y": longer, "b": b"bytes", "a": "", "n": "a\0b"})
    assert texts == (("a", ""), ("z", longest))
    assert digests == (
        Input("b", Digest.of(b"bytes")),
        Input("n", Digest.of(b"a\0b")),
        Input("y", Digest.of(longer.encode())),
    )


def test_undecodable_bytes_of_a_path_count_as_they_are() -> None:
    digests, texts = material_of({"path": "/odd/\udcff" * 60})
    assert (digests[0].digest, texts) == (Digest.of(b"/odd/\xff" * 60), ())


@pytest.mark.parametrize("value", [4, 1.5, None, True, ["a"], {"a": 1}, bytearray(b"a")])
def test_a_value_that_is_neither_text_nor_bytes_is_refused(value: Any) -> None:
    with pytest.raises(BadRequestError, match="'n'"):
        material_of({"n": value})


def test_no_material_is_refused() -> None:
    with pytest.raises(BadRequestError, match="without material"):
        material_of({})
