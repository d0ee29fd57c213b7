"""A command as a job: what of it counts, what is refused, and how it is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ptocache.compiler import environment
from ptocache.digest import Digest
from ptocache.errors import BadRequestError
from ptocache.model import Input, Job, Prepared
from ptocache.outcome import Reason
from ptocache_cfamily import command

TOOL = command.Tool("/bin/sh", lists_linked=True)
OBJECT = ("-O2", "-c", command.SOURCE, "-o", command.OUTPUT)


def job_of(
    *words: str, cwd: str = "/p", outputs: tuple[str, ...] = ("command",), **fields: str
) -> Job:
    given = {"tool": "/bin/sh", "language": "c", "source": "src/k.c", "suffix": ".o", **fields}
    options = [f"{name.replace('__', ':')}={value}" for name, value in given.items()]
    return Job(
        "host", "", (*options, "--", *(words or OBJECT)), (("CPATH", "/i"), ("HOME", "/h")),
        (Input("k.c", Digest("0" * 64, 1)),), outputs, source_dir="/p/src", cwd=cwd,
    )  # fmt: skip


def prepared(job: Job, tool: command.Tool = TOOL) -> Prepared:
    return command.prepare(job, tool, ("CPATH",), arch="x86_64")


def test_the_tool_is_no_part_of_the_options_and_others_variables_are_dropped() -> None:
    found = prepared(job_of()).job
    assert not [word for word in found.options if word.startswith("tool=")]
    assert found.env == (("CPATH", "/i"),)
    assert found.arch == "x86_64"


@pytest.mark.parametrize(
    ("words", "source", "keyed"),
    [
        (OBJECT, "src/k.c", {"way"}),
        (("-g", *OBJECT), "src/k.c", {"way", "cwd"}),
        (("-g0", *OBJECT), "src/k.c", {"way"}),
        (OBJECT, "/p/src/k.c", set()),
        (("-I", "inc", *OBJECT), "/p/src/k.c", {"cwd"}),
        (("-I", "/inc", *OBJECT), "/p/src/k.c", set()),
        (("-include", "x.h", *OBJECT), "/p/src/k.c", {"cwd"}),
        (("-I", "../inc", *OBJECT), "", {"cwd"}),
        (OBJECT, "", set()),
    ],
)
def test_a_directory_counts_where_it_has_a_say(
    words: tuple[str, ...], source: str, keyed: set[str]
) -> None:
    assert {name for name, _ in prepared(job_of(*words, source=source)).keyed} == keyed


def test_the_way_between_the_two_directories_is_what_two_checkouts_share() -> None:
    one = prepared(job_of())
    other = prepared(job_of(cwd="/q")._replace(source_dir="/q/src"))
    assert one.keyed == other.keyed == (("way", ".."),)


@pytest.mark.parametrize(
    "job",
    [
        job_of(tool="/bin/cat"),
        job_of("--coverage", *OBJECT),
        job_of("-fplugin=x.so", *OBJECT),
        job_of(cwd=""),
        job_of(outputs=("command", "shared")),
        job_of()._replace(options=("-c",)),
    ],
    ids=["tool", "coverage", "plugin", "cwd", "outputs", "form"],
)
def test_what_would_not_be_the_commands_own_result_is_refused(job: Job) -> None:
    with pytest.raises(BadRequestError):
        prepared(job)


def test_a_linker_that_lists_nothing_is_a_bypass() -> None:
    job = job_of("-shared", *OBJECT)
    assert prepared(job).bypass is Reason.NONE
    assert prepared(job, command.Tool("/bin/sh")).bypass is Reason.NO_DEPENDENCIES


def test_native_counts_by_what_it_stands_for() -> None:
    job = job_of("-march=native", *OBJECT)
    found = command.prepare(job, TOOL, (), native="-march=znver9")
    assert ("native", "-march=znver9") in found.keyed
    assert prepared(job).bypass is Reason.UNSUPPORTED_OPTION


def test_it_runs_where_its_caller_is_and_writes_to_the_private_directory(tmp_path: Path) -> None:
    (step,) = command.plan(
        prepared(job_of(env__LC_ALL="de_DE", env__HOME="/x")), TOOL, str(tmp_path)
    )
    assert step.argv == (
        "/bin/sh", "-O2", "-c", "src/k.c", "-o", f"{tmp_path}/output.o", "-MD", "-MF",
        f"{tmp_path}/headers.d",
    )  # fmt: skip
    assert step.cwd == "/p"
    assert dict(step.env) == {"LC_ALL": "de_DE", "PWD": "/p"}


def test_a_dependency_file_without_system_headers_gets_a_second_run_that_lists_them(
    tmp_path: Path,
) -> None:
    words = ("-MMD", *OBJECT, "-MF", command.DEPENDENCIES)
    job = job_of(*words, outputs=("command", "depfile"), target="k.o", lists="no")
    first, second = command.plan(prepared(job), TOOL, str(tmp_path))
    assert first.argv[-2:] == ("-MQ", "k.o")
    assert first.depfile == ""
    assert second.argv == ("/bin/sh", "-O2", "src/k.c", "-M", "-MF", f"{tmp_path}/headers.d")
    assert second.depfile == "headers.d"


def test_a_step_decides_over_the_constants_but_not_over_the_mark_of_its_directory() -> None:
    found = environment({"LANG": "x", "A": "1"}, "/t", {"LC_ALL": "de_DE", "TMPDIR": "/other"})
    assert (found["LANG"], found["LC_ALL"], found["TMPDIR"], found["A"]) == (
        "C",
        "de_DE",
        "/t",
        "1",
    )


def test_the_launchers_of_ptocache_are_known(tmp_path: Path) -> None:
    from ptocache_cfamily.programs import is_shim

    (tmp_path / "gcc").write_text("#!/bin/sh\n# ptocache-shim\n")
    assert is_shim(str(tmp_path / "gcc"))
    assert not is_shim(os.path.realpath("/bin/sh"))
    assert not is_shim(str(tmp_path / "none"))
