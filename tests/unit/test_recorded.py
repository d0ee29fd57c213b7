"""Recordings: what is written comes back, on another machine too, and what is wrong in one is named."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import recorded, recording, wire
from ptocache.digest import Digest
from ptocache.errors import BadRecordingError
from ptocache.model import Input, Job
from ptocache.recorded import Kernels, LeftOut, Recorded, Recording

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = b"int k;\n"
BINARY = bytes(range(256))
HOME = "/home/u/proj"


def recorded_job(
    *options: str, data: bytes = SOURCE, source_dir: str = "", cwd: str = "", **more: Any
) -> Recorded:
    job = Job(
        toolchain=more.pop("toolchain", "host"), arch="", options=options,
        env=tuple(sorted(more.pop("env", {}).items())), inputs=(Input("k.c", Digest.of(data)),),
        outputs=("object",), source_dir=source_dir, cwd=cwd, kernel=more.pop("kernel", "k"),
    )  # fmt: skip
    return Recorded(wire.Request(job, {}, "use", more.pop("salt", "")), **more)


def whole(*items: Recorded, **more: Any) -> Recording:
    known = {Digest.of(data).sha256: data for data in (SOURCE, BINARY)}
    used = {part.digest.sha256 for item in items for part in item.request.job.inputs}
    return Recording(items, {name: known[name] for name in used}, **more)


def text(recording: Recording, base: str = "") -> bytes:
    return b"".join(recorded.lines(recording, base))


def test_what_is_written_comes_back() -> None:
    given = whole(
        recorded_job("-O2", "-DX=\udc80é", env={"CPATH": "/inc"}, salt="s", kernel="a"),
        recorded_job(data=BINARY, files=(("k.c", "/src/k.c"),), failed=True, kernel="b"),
        recorded_job("--", "-c", called="gcc", source_dir="/src", cwd="/src"),
        kernels=(Kernels("ascendc", "910", "gemm", 3),),
        left_out=(LeftOut("host", "", "big", "too long"),),
    )
    assert recorded.parse(text(given)) == recorded.joined([given])


def test_order_does_not_depend_on_the_run() -> None:
    items = [recorded_job(f"-D{n}") for n in range(5)]
    assert text(whole(*items)) == text(whole(*items[::-1], *items[:2]))


def test_people_can_read_sources_that_are_text() -> None:
    lines = [json.loads(line) for line in text(whole(recorded_job())).splitlines()]
    assert lines[0] == {"record": "ptocache-recording", "version": 1}
    assert lines[1]["text"] == "int k;\n"
    assert [line["record"] for line in lines] == [recording.FORMAT, "input", "compile"]


PLACES = [
    HOME,
    f"{HOME}/include",
    f"-I{HOME}/include",
    f"-I{HOME}",
    f"{HOME}/",
    f"{HOME}//x",
    f"-Wl,-rpath,{HOME}/lib,-L{HOME}",
    f'-DROOT="{HOME}/x"',
    f"--a={HOME}/1:{HOME}/2",
]
ELSEWHERE = [f"{HOME}x/include", f"/other{HOME}/include", "-I/opt/include", "include", "", "{base}"]


@pytest.mark.parametrize("word", PLACES)
def test_places_below_the_base_move_with_it(word: str) -> None:
    given = whole(recorded_job(word, source_dir=HOME, cwd=HOME, env={"CPATH": word}))
    data = text(given, HOME)
    assert HOME.encode() not in data
    there = recorded.parse(data, "/app").compiles[0].request.job
    assert there.options == (word.replace(HOME, "/app"),)
    assert dict(there.env)["CPATH"] == word.replace(HOME, "/app")
    assert (there.source_dir, there.cwd) == ("/app", "/app")
    assert recorded.parse(data, HOME) == recorded.joined([given])


@pytest.mark.parametrize("word", ELSEWHERE)
def test_other_words_stay_as_they_are(word: str) -> None:
    data = text(whole(recorded_job(word)), HOME)
    assert recorded.parse(data, "/app").compiles[0].request.job.options == (word,)


def test_two_checkouts_give_the_same_manifest() -> None:
    one, two = (
        text(whole(recorded_job(f"-I{base}/i", source_dir=base, cwd=base)), base)
        for base in ("/home/a/p", "/build/p")
    )
    assert one == two


def test_variables_that_only_find_tools_are_left_out() -> None:
    env = {"CPATH": "/inc", "PATH": "/usr/bin", "CC": "gcc", "PTOCACHE_PYTHON": "/venv/python"}
    found = recorded.without_search(
        whole(
            recorded_job("tool=/usr/bin/gcc", "source=k.c", "--", "tool=1", called="gcc", env=env),
            recorded_job("tool=/usr/bin/gcc", toolchain="unknown", env=env),
        ),
        {"host": ("CPATH",)},
    )
    plain, unknown = (item.request.job for item in found.compiles)
    assert dict(plain.env) == {"CPATH": "/inc"}
    assert plain.options == ("source=k.c", "--", "tool=1")
    assert dict(unknown.env) == env, "nobody knows which of them count"


def test_what_succeeded_in_one_run_is_no_failure() -> None:
    good, bad = recorded_job(), recorded_job(failed=True)
    for order in ([good, bad], [bad, good]):
        (found,) = recorded.joined([whole(item) for item in order]).compiles
        assert not found.failed
    assert recorded.joined([whole(bad)]).compiles[0].failed


def test_kernels_of_two_runs_are_not_counted_twice() -> None:
    runs = [Recording(kernels=(Kernels("host", "", "k", number),)) for number in (2, 3)]
    assert recorded.joined(runs).kernels == (Kernels("host", "", "k", 3),)


# --- journals


def journal(*lines: bytes) -> bytes:
    head = recording.dumped(recording.header(journal=True))
    return b"\n".join([head, *lines, b""])


def test_a_journal_that_was_cut_short_gives_all_but_the_last() -> None:
    one, two = (text(whole(recorded_job(f"-D{n}"))).splitlines()[1:] for n in range(2))
    found = recorded.parse(journal(*one, two[1][:50], b"", two[1]))
    assert len(found.compiles) == 2
    assert found.damaged == 1


def test_a_request_whose_source_was_lost_counts_as_damaged() -> None:
    lines = text(whole(recorded_job())).splitlines()
    found = recorded.parse(journal(lines[2]))
    assert (found.compiles, found.damaged) == ((), 1)


def test_failures_and_kernels_of_a_journal_are_put_together() -> None:
    lines = text(whole(recorded_job())).splitlines()
    name = recording.name_of(lines[2])
    kernel = {"record": "kernel", "toolchain": "host", "arch": "", "kernel": "k"}
    kernels = [recording.dumped({**kernel, "material": word}) for word in ("a", "b", "a")]
    failed = recording.dumped({"record": "failed", "request": name})
    found = recorded.parse(journal(failed, *lines[1:], *kernels))
    assert found.compiles[0].failed
    assert found.kernels == (Kernels("host", "", "k", 2),)


# --- what is wrong

GOOD = text(whole(recorded_job())).splitlines()


def changed(line: bytes, **fields: Any) -> bytes:
    document = json.loads(line)
    for name, value in fields.items():
        if value is ...:
            del document[name]
        else:
            document[name] = value
    return json.dumps(document).encode()


WRONG: dict[str, tuple[list[bytes], int, str]] = {
    "empty": ([], 0, "the first line is not that of a recording"),
    "something else": ([b"#!/bin/sh"], 1, "the first line is not"),
    "no header": ([GOOD[1]], 1, "the first line is not that of a recording"),
    "newer": ([changed(GOOD[0], version=2)], 1, "version 2"),
    "no version": ([changed(GOOD[0], version=...)], 1, "version None"),
    "cut": ([*GOOD[:2], GOOD[2][:-5]], 3, "not JSON"),
    "a list": ([GOOD[0], b"[1]"], 2, "not a map"),
    "a kind": ([GOOD[0], b'{"record":"exec"}'], 2, "no record 'exec'"),
    "a kind of list": ([GOOD[0], b'{"record":[]}'], 2, "no record"),
    "other bytes": ([GOOD[0], changed(GOOD[1], text="int j;")], 2, "do not match their SHA-256"),
    "no base64": ([GOOD[0], b'{"record":"input","sha256":"","base64":"@"}'], 2, "SHA-256"),
    "no source": ([GOOD[0], GOOD[2]], 2, "bytes of its input k.c"),
    "fewer bytes": (
        [*GOOD[:2], changed(GOOD[2], inputs=[[*json.loads(GOOD[2])["inputs"][0][:2], 1 << 60]])],
        3, "bytes of its input k.c",
    ),
    "no options": ([*GOOD[:2], changed(GOOD[2], options=...)], 3, "'options' is missing"),
    "options": ([*GOOD[:2], changed(GOOD[2], options="-O2")], 3, "a list is needed"),
    "an option": ([*GOOD[:2], changed(GOOD[2], options=[7])], 3, "neither text nor a list"),
    "a part outside": (
        [*GOOD[:2], changed(GOOD[2], options=[[{"base": "x"}]])], 3, "a part that",
    ),
    "a part": ([*GOOD[:2], changed(GOOD[2], options=[[{"home": "x"}]])], 3, "a part that"),
    "a place": ([*GOOD[:2], changed(GOOD[2], source_dir="here")], 3, "source_dir is not"),
    "an input": ([*GOOD[:2], changed(GOOD[2], inputs=[["../k.c", "a" * 64, 1]])], 3, "not usable"),
    "an environment": ([*GOOD[:2], changed(GOOD[2], env=[])], 3, "a map is needed"),
    "failed": ([*GOOD[:2], changed(GOOD[2], failed="no")], 3, "failed is neither"),
    "a number": ([GOOD[0], b'{"record":"kernel","toolchain":"","arch":"","kernel":"","number":0}'], 2, "number is not"),
    "depth": ([GOOD[0], b"[" * 100_000], 2, ""),
    "digits": ([GOOD[0], b'{"record":' + b"9" * 5000 + b"}"], 2, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    lines, number, words = WRONG[name]
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.raises(BadRecordingError) as caught:
        recorded.read(os.fspath(path))
    assert caught.value.fields == {"path": str(path), "line": number}
    assert f"{path}: line {number}: " in caught.value.message
    assert words in caught.value.message
    assert caught.value.hint


def test_a_manifest_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"old")

    class Broken(Recorded):
        @property
        def called(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded.write(str(path), whole(Broken(*recorded_job())))
    assert [item.name for item in tmp_path.iterdir()] == ["m.jsonl"]
    assert path.read_bytes() == b"old"
