"""What a compile with bases is bound to, with a tool that writes what it is told to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ptocache.build import Built, build
from ptocache.compiler import Limits
from ptocache.contents import Contents
from ptocache.digest import Digest
from ptocache.model import Discovery, Identity, Input, Installation, Job, Prepared, Step
from ptocache.outcome import Reason
from ptocache.toolchain import BaseToolchain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ptocache.model import Output
    from ptocache.toolchain import Files, Probe

DATA = b"int a;\n"
HERE = Identity("i", Installation("", ()), ())


class Printer(BaseToolchain):
    """Writes a text, in which ``{private}`` is the name of the private directory, as output or as message."""

    name = "printer"
    version = "1"
    ENV: tuple[str, ...] = ()

    def __init__(self, text: str, *, fixed: bool = False, aloud: bool = False) -> None:
        self.text = text
        self.fixed = fixed
        self.aloud = aloud

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        return HERE.installation

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        return Prepared(job, bases=job.bases)

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        private = next(part for part in workdir.split("/") if part.startswith("job-"))
        text = self.text.replace("{private}", private)
        script = 'printf %s "$0" >&2; printf x > out' if self.aloud else 'printf %s "$0" > out'
        return (Step("print", ("/bin/sh", "-c", script, text), ("out",)),)

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        return {"out": "out"}

    def discover(
        self,
        prepared: Prepared,
        installation: Installation,
        depfiles: Mapping[str, str],
        files: Files,
        workdir: str,
    ) -> Discovery:
        return Discovery(present=(("", f"{prepared.bases[0]}/x.h"),), fixed=self.fixed)

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        pass


def built(place: Path, toolchain: Printer) -> Built:
    """A compile with two bases, below the first of which its private directory lies."""
    first, second = str(place), str(place.parent / "second")
    (place / "x.h").write_text("")
    toolchain.text = toolchain.text.format(first=first, second=second, private="{private}")
    job = Job(
        "printer", "", (), (), (Input("k.c", Digest.of(DATA)),), ("out",), bases=(first, second)
    )
    prepared = toolchain.prepare(job, HERE.installation)
    found = build(toolchain, prepared, HERE, {"k.c": DATA}, Contents(), os.fspath(place), Limits())
    assert isinstance(found, Built)
    return found


@pytest.mark.parametrize("aloud", [False, True], ids=["output", "log"])
@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("base0/x.h", []), ("{first}/x.h", [0]), ("-I{second}", [1]), ("{second}:{first}", [0, 1]),
        ("../x.h", []),
    ],
)  # fmt: skip
def test_a_result_holds_for_the_bases_that_it_names(
    tmp_path: Path, text: str, positions: list[int], aloud: bool
) -> None:
    found = built(tmp_path, Printer(text, aloud=aloud))
    assert [position for position, _ in found.bound] == positions
    assert found.bypass is Reason.NONE
    assert [(item.base, item.path) for item in found.dependencies] == [("<base 0>", "x.h")]


def test_a_result_that_may_depend_on_its_bases_unseen_holds_for_all_of_them(tmp_path: Path) -> None:
    found = built(tmp_path, Printer("nothing", fixed=True))
    assert found.bound == ((0, str(tmp_path)), (1, str(tmp_path.parent / "second")))


def test_the_private_directory_below_a_base_is_a_leak_under_its_mapped_name_too(
    tmp_path: Path,
) -> None:
    """Clang before 17 maps the shorter of two prefixes in debug information."""
    assert built(tmp_path, Printer("base0/{private}/d/d")).bypass is Reason.PATH_LEAK
