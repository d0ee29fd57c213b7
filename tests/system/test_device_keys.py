"""What counts in the key of a device compile, and what does not: every element with its opposite.

A state is a function that brings about one version of the world and returns the request to make in
it. What counts is tested by going from one state to another and back: two misses with the bytes of
each, then two hits with the first bytes again. The simulated tools write all that they depended on into
what they make, the values of a few variables included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ptocache.client import Client
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from tests.harness import BOOT, DEADLINE_S, DaemonProcess, wait_for
from tests.simcann import SimCann, depends_of, make_frontend

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHED = (
    "SOURCE_DATE_EPOCH PTO_FLAGS ASCEND_NPU_ARCH HOME LANG RANK LOCAL_RANK "
    "ASCEND_RT_VISIBLE_DEVICES ASCEND_DEVICE_ID ASCEND_GLOBAL_LOG_LEVEL PYTHONHASHSEED PWD"
)
"""Variables whose values the simulated tools write down, if they see them."""
KERNEL = 'extern "C" __global__ __aicore__ void gemm(void *a, void *b) {}\n'
INCLUDES = '#include "beside.h"\n#include <far.h>\n'
PYTHON_KERNEL = """\
import sys
from ptodsl import to_ir_module
import helper
@to_ir_module(meta_data={"helper": helper.VALUE, "prefix": sys.prefix, "order": list({"a", "b", "c", "d"})})
def gemm():
    return 1
"""
CHAINS = {"ascendc": "k.asc", "pto": "k.pto", "pto/c++": "k.cpp", "pto/python": "k.py"}
"""Chain → its kind of source."""


class World(NamedTuple):
    """The surroundings of one test: a folder of its own, and a text that no other test compiles."""

    cann: SimCann
    site: Path
    """Where the front end is installed; shared, since finding out what belongs to it takes its time."""
    place: Path
    chain: str
    text: str

    def request(self, source: str = "", **more: Any) -> dict[str, Any]:
        """Parameters of :meth:`Client.compile`; ``env`` and ``inputs`` are added to those of the chain."""
        name = CHAINS[self.chain]
        inputs = {name: self.source() + source, **more.pop("inputs", {})}
        env = {**self.cann.env(), "PYTHONPATH": str(self.site), **more.pop("env", {})}
        return {
            "toolchain": self.chain.partition("/")[0],
            "inputs": inputs,
            "env": env,
            "options": [*more.pop("options", []), *self.options()],
            "source_dir": str(self.place / "src"),
            **more,
        }

    def source(self) -> str:
        if self.chain == "pto":
            return f"// {self.text}\nmodule {{\n  func.func @gemm() {{\n    return\n  }}\n}}\n"
        if self.chain == "pto/python":
            return f"# {self.text}\n{PYTHON_KERNEL}print(gemm)\n"
        return f"// {self.text}\n{INCLUDES}{KERNEL}"

    def options(self) -> list[str]:
        return ["-I", str(self.place / "include")] if self.chain in ("ascendc", "pto/c++") else []

    def write(self, name: str, text: str) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class Rig(NamedTuple):
    cann: SimCann
    site: Path
    daemon: DaemonProcess


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("device-keys")
    cann = SimCann.make(place / "cann", ptoas="bin")
    cann.knob("all.env-names", WATCHED)
    daemon = DaemonProcess(place / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    (place / "site").mkdir()
    (place / "site" / "helper.py").write_text("VALUE = 1\n")
    make_frontend(place / "site")
    yield Rig(cann, place / "site", daemon)
    daemon.clean_up()


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    with rig.daemon.client() as found:
        yield found


def world(rig: Rig, place: Path, chain: str, name: str) -> World:
    found = World(rig.cann, rig.site, place, chain, f"{chain} {name}")
    found.write("src/beside.h", "#define BESIDE 1\n")
    found.write("include/far.h", "#define FAR 1\n")
    return found


def ask(client: Client, request: dict[str, Any]) -> Result:
    return client.compile(**request)


def shown(result: Result) -> dict[str, str]:
    """Output name → what it depended on, in words."""
    return {name: depends_of(bytes(item.buffer)) for name, item in result.outputs.items()}


def content(result: Result) -> dict[str, str]:
    return {name: item.digest for name, item in result.outputs.items()}


# --- what counts

State = Callable[[World], dict[str, Any]]


def with_(**changes: Any) -> State:
    return lambda w: w.request(**changes)


def plain(w: World) -> dict[str, Any]:
    return w.request()


def file(name: str, text: str, **changes: Any) -> State:
    """The request, with this text in a file of the test's folder."""

    def state(w: World) -> dict[str, Any]:
        w.write(name, text)
        return w.request(**changes)

    return state


def no_file(name: str, **changes: Any) -> State:
    def state(w: World) -> dict[str, Any]:
        (w.place / name).unlink(missing_ok=True)
        return w.request(**changes)

    return state


def folder(variable: str, name: str) -> State:
    """The request, with a variable that names a folder of the test's."""
    return lambda w: w.request(env={variable: str(w.place / name)})


def include_first(change: State) -> State:
    """Another directory before the one that holds the header."""

    def state(w: World) -> dict[str, Any]:
        (w.place / "first").mkdir(exist_ok=True)
        request = change(w)
        request["options"] = ["-I", str(w.place / "first"), *request["options"]]
        return request

    return state


def path_list(variable: str, number: int) -> State:
    """A variable of include directories, of which only one's content differs."""

    def state(w: World) -> dict[str, Any]:
        for index in (1, 2):
            w.write(f"by-variable{index}/named.h", f"#define NAMED {index}\n")
        source = "#include <named.h>\n"
        return w.request(source, env={variable: str(w.place / f"by-variable{number}")})

    return state


def tool(name: str, identity: str) -> State:
    def state(w: World) -> dict[str, Any]:
        # In place, of the same size, and older than what was there.
        w.cann.replace_tool(name, identity)
        return w.request()

    return state


def version(text: str) -> State:
    def state(w: World) -> dict[str, Any]:
        w.cann.set_version(text)
        return w.request()

    return state


def library(seed: str) -> State:
    def state(w: World) -> dict[str, Any]:
        w.cann.replace_library("runtime", seed)
        return linked(w)

    return state


def linked(w: World) -> dict[str, Any]:
    output = "shared" if w.chain == "ascendc" else "image"
    return w.request(outputs=[output], options=["-L", str(w.cann.root / "lib64"), "-lruntime"])


def tree_header(text: str) -> State:
    def state(w: World) -> dict[str, Any]:
        (w.cann.root / "include" / "of_tree.h").write_text(text)
        return w.request("#include <of_tree.h>\n")

    return state


def isa(root: str, text: str) -> State:
    def state(w: World) -> dict[str, Any]:
        w.write(f"{root}/include/isa.h", text)
        return w.request("#include <isa.h>\n", env={"PTO_ISA_ROOT": str(w.place / root)})

    return state


def front_end(number: str) -> State:
    def state(w: World) -> dict[str, Any]:
        # In place: this is how a developer's install changes.
        place = w.site / "ptodsl" / "__init__.py"
        lines = place.read_text().splitlines(keepends=True)
        lines[1] = f'VERSION = "{number}"\n'
        place.write_text("".join(lines))
        return w.request()

    return state


def linked_site(number: str) -> State:
    """A link on PYTHONPATH that leads to one of two versions."""

    def state(w: World) -> dict[str, Any]:
        site = w.place / f"site-{number}"
        if not site.exists():
            make_frontend(site, number)
            w.write(f"{site.name}/helper.py", "VALUE = 1\n")
        link = w.place / "latest"
        link.unlink(missing_ok=True)
        link.symlink_to(site)
        return w.request(env={"PYTHONPATH": str(link)})

    return state


def outputs(number: int) -> State:
    names = {"ascendc": ("object", "shared"), "pto": ("cpp", "image")}
    return lambda w: w.request(outputs=[names[w.chain][number]])


def relative(cwd: str) -> State:
    def state(w: World) -> dict[str, Any]:
        w.write(f"{cwd}/rel/rel.h", f"// {cwd}\n")
        os.chdir(w.place / cwd)
        return w.request("#include <rel.h>\n", options=["-Irel"])

    return state


def interpreter(name: str) -> State:
    """An environment of its own around the one interpreter."""

    def state(w: World) -> dict[str, Any]:
        base = os.path.realpath(sys.executable)
        python = w.place / name / "bin" / "python"
        if not python.exists():
            python.parent.mkdir(parents=True)
            python.symlink_to(base)
            w.write(f"{name}/pyvenv.cfg", f"home = {os.path.dirname(base)}\n")
        return w.request(env={"PTOCACHE_PYTHON": str(python)})

    return state


def module_path(*names: str) -> State:
    def state(w: World) -> dict[str, Any]:
        for number, name in enumerate(sorted(names)):
            w.write(f"{name}/helper.py", f"VALUE = {number + 10}\n")
        path = ":".join([*(str(w.place / name) for name in names), str(w.site)])
        return w.request(env={"PYTHONPATH": path})

    return state


def helper(text: str) -> State:
    def state(w: World) -> dict[str, Any]:
        (w.site / "helper.py").write_text(text)
        return w.request()

    return state


def early_path(change: State) -> State:
    """Another directory before the one that holds the module."""

    def state(w: World) -> dict[str, Any]:
        (w.place / "early").mkdir(exist_ok=True)
        request = change(w)
        request["env"]["PYTHONPATH"] = f"{w.place / 'early'}:{w.site}"
        return request

    return state


class Element(NamedTuple):
    chains: str
    """The chains it is an element of."""
    one: State
    other: State
    told: bool = True
    """True if the bytes must tell the two apart; some elements only say what is asked for."""
    late: bool = False
    """True for what is noticed by events, so not always at the very next request."""


C = "ascendc pto/c++"
BISHENG = "ascendc pto"
PTOAS = "pto pto/python"
ELEMENTS = {
    "source": Element("ascendc pto pto/c++", plain, with_(source="// more\n")),
    "python source": Element("pto/python", plain, with_(source="print('// more')\n")),
    "second input": Element(
        C,
        with_(source='#include "in.h"\n', inputs={"in.h": "#define IN 1\n"}),
        with_(source='#include "in.h"\n', inputs={"in.h": "#define IN 2\n"}),
    ),
    "header of -I": Element(
        C, file("include/far.h", "#define FAR 1\n"), file("include/far.h", "#define FAR 2\n")
    ),
    "header beside": Element(
        C, file("src/beside.h", "#define BESIDE 1\n"), file("src/beside.h", "#define BESIDE 2\n")
    ),
    "header that comes earlier": Element(
        C, include_first(no_file("first/far.h")), include_first(file("first/far.h", "int f;\n"))
    ),
    "option": Element(BISHENG, plain, with_(options=["-O1"])),
    "options' order": Element(
        BISHENG, with_(options=["-O1", "-O3"]), with_(options=["-O3", "-O1"])
    ),
    "define": Element(BISHENG, with_(options=["-DX=1"]), with_(options=["-DX=2"])),
    "option of the back end": Element(
        BISHENG,
        with_(options=["-mllvm", "-cce-aicore-stack-size=0x8000"]),
        with_(options=["-mllvm", "-cce-aicore-stack-size=0x4000"]),
    ),
    "arch of the request": Element(
        "ascendc pto pto/c++ pto/python", with_(arch="dav-2201"), with_(arch="dav-3510")
    ),
    "arch of an option": Element(
        BISHENG,
        with_(options=["--npu-arch=dav-2201"]),
        with_(options=["--npu-arch=dav-3510"]),
    ),
    "arch of the variable": Element(
        BISHENG,
        with_(env={"ASCEND_NPU_ARCH": "dav-2201"}),
        with_(env={"ASCEND_NPU_ARCH": "dav-3510"}),
    ),
    "arch by default": Element(BISHENG, plain, with_(env={"ASCEND_NPU_ARCH": "dav-2201"})),
    "symbol": Element(BISHENG, plain, with_(symbols=["gemm"]), told=False),
    "salt": Element("ascendc pto", plain, with_(salt="pepper"), told=False),
    "SOURCE_DATE_EPOCH": Element(
        BISHENG,
        with_(env={"SOURCE_DATE_EPOCH": "1"}),
        with_(env={"SOURCE_DATE_EPOCH": "2"}),
    ),
    "CPATH": Element(C, path_list("CPATH", 1), path_list("CPATH", 2)),
    "CPLUS_INCLUDE_PATH": Element(
        C, path_list("CPLUS_INCLUDE_PATH", 1), path_list("CPLUS_INCLUDE_PATH", 2)
    ),
    "PTO_FLAGS": Element("pto/python", plain, with_(env={"PTO_FLAGS": "--enable-insert-sync"})),
    "PTO_FLAGS for bisheng": Element("pto", plain, with_(env={"PTO_FLAGS": "-DX"})),
    "flags of the request": Element("pto/python", plain, with_(options=["--pto-level=level3"])),
    "flags of ptoas, their order": Element(
        "pto",
        with_(options=["--pto-level=level3", "--pto-level=level1"]),
        with_(options=["--pto-level=level1", "--pto-level=level3"]),
    ),
    "PTO_FLAGS before the request": Element(
        "pto",
        with_(options=["--pto-level=level3"], env={"PTO_FLAGS": "--pto-level=level1"}),
        with_(options=["--pto-level=level1"], env={"PTO_FLAGS": "--pto-level=level3"}),
    ),
    "bisheng": Element(BISHENG, tool("bisheng", "A"), tool("bisheng", "B")),
    "ld.lld": Element("ascendc", tool("ld.lld", "A"), tool("ld.lld", "B")),
    "ptoas": Element(PTOAS, tool("ptoas", "A"), tool("ptoas", "B")),
    "version.info": Element(BISHENG, version("8.5.0"), version("9.0.0"), told=False),
    "library of the tree": Element("ascendc pto", library("A"), library("B"), late=True),
    "header of the tree": Element(C, tree_header("int a;\n"), tree_header("int b;\n"), late=True),
    "headers of the ISA": Element("pto/c++", isa("isa", "int a;\n"), isa("isa", "int b;\n")),
    "place of the ISA": Element("pto/c++", isa("isa1", "int a;\n"), isa("isa2", "int b;\n")),
    "front end's package": Element("pto/python", front_end("0.1.0"), front_end("0.2.0")),
    "link to the front end": Element("pto/python", linked_site("0.1.0"), linked_site("0.3.0")),
    "outputs": Element(BISHENG, outputs(0), outputs(1)),
    "folder of a relative -I": Element("ascendc", relative("one"), relative("two")),
    "helper module": Element("pto/python", helper("VALUE = 1\n"), helper("VALUE = 2\n")),
    "order of PYTHONPATH": Element(
        "pto/python", module_path("one", "two"), module_path("two", "one")
    ),
    "module that comes earlier": Element(
        "pto/python",
        early_path(no_file("early/helper.py")),
        early_path(file("early/helper.py", "VALUE = 5\n")),
    ),
    "interpreter": Element("pto/python", interpreter("venv1"), interpreter("venv2")),
}
CASES = [
    pytest.param(chain, name, id=f"{chain}: {name}")
    for name, element in ELEMENTS.items()
    for chain in element.chains.split()
]


@pytest.mark.parametrize(("chain", "name"), CASES)
def test_a_change_misses_and_going_back_hits_the_first_entry(
    rig: Rig, client: Client, tmp_path: Path, chain: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    element = ELEMENTS[name]
    here = world(rig, tmp_path, chain, name)
    before = element.one(here)
    first = ask(client, before)
    assert first.outcome is Outcome.MISS, first.why
    assert ask(client, before).outcome is Outcome.MEMORY_HIT

    request = element.other(here)
    second = noticed(client, request, first) if element.late else ask(client, request)
    assert second.outcome is Outcome.MISS
    if element.told:
        assert content(second) != content(first)
        assert shown(second) != shown(first)

    request = element.one(here)
    back = noticed(client, request, second) if element.late else ask(client, request)
    assert back.outcome.is_hit
    assert back.key == first.key
    assert content(back) == content(first)


def noticed(client: Client, request: dict[str, Any], old: Result) -> Result:
    """The first answer that is not the old one any more."""
    answers: list[Result] = []

    def is_new() -> bool:
        answers.append(ask(client, request))
        return answers[-1].key != old.key

    wait_for(is_new, "the change to be noticed")
    return answers[-1]


FLAGS: dict[str, tuple[str, State]] = {
    "of the request": ("ascendc", with_(options=["-ffast-math"])),
    "of the request, for ptoas": ("pto", with_(options=["--pto-level=level3"])),
    "of the request, for bisheng": ("pto", with_(options=["-ffast-math"])),
    "of PTO_FLAGS, for ptoas": ("pto", with_(env={"PTO_FLAGS": "--enable-insert-sync"})),
    "of PTO_FLAGS, for bisheng": ("pto", with_(env={"PTO_FLAGS": "-ffast-math"})),
}


@pytest.mark.kind("stale_key_flags")
@pytest.mark.parametrize(("chain", "with_flag"), FLAGS.values(), ids=FLAGS)
def test_stale_key_flags_with_without_and_with_again_is_two_runs_and_the_first_bytes_again(
    rig: Rig, client: Client, tmp_path: Path, chain: str, with_flag: State
) -> None:
    here = world(rig, tmp_path, chain, f"flags {with_flag(world(rig, tmp_path, chain, ''))}")
    before = len(rig.cann.runs("bisheng"))
    once = ask(client, here.request())
    a_run = len(rig.cann.runs("bisheng")) - before
    answers = [ask(client, state(here)) for state in (with_flag, plain, with_flag)]
    assert [once.outcome, *(item.outcome for item in answers)] == [
        Outcome.MISS, Outcome.MISS, Outcome.MEMORY_HIT, Outcome.MEMORY_HIT,
    ]  # fmt: skip
    assert len(rig.cann.runs("bisheng")) - before == 2 * a_run
    first, without, third = map(content, answers)
    assert first != without
    assert first == third


HEADERS = '#include "beside.h"\n#include <far.h>\n#include <isa.h>\n'


@pytest.mark.kind("stale_key_source_header_arch")
@pytest.mark.parametrize("name", ["src/beside.h", "include/far.h", "first/far.h"])
def test_stale_key_source_header_arch_is_looked_at_for_a_request_that_was_answered_before(
    rig: Rig, client: Client, tmp_path: Path, name: str
) -> None:
    """The same words of one client, which daemon and client know from the last time. The first file is
    found without a path among the words, the last one comes before another."""
    here = world(rig, tmp_path, "ascendc", f"answered before {name}")
    place = here.place / name
    before = place.read_text() if place.exists() else None
    (here.place / "first").mkdir()
    request = here.request(options=["-I", str(here.place / "first")])
    if name == "src/beside.h":
        request.update(
            options=[], inputs={"k.asc": f'// {here.text}\n#include "beside.h"\n{KERNEL}'}
        )
    first = ask(client, request)
    hits = [ask(client, request).outcome for _ in range(3)]
    assert hits == [Outcome.MEMORY_HIT] * 3
    here.write(name, "#define OTHER 7\n")
    changed = ask(client, request)
    assert changed.outcome is Outcome.MISS
    assert content(changed) != content(first)
    assert [ask(client, request).outcome for _ in range(3)] == hits
    if before is None:
        place.unlink()
    else:
        here.write(name, before)
    again = ask(client, request)
    assert again.outcome.is_hit
    assert content(again) == content(first)


@pytest.mark.kind("stale_key_source_header_arch")
def test_stale_key_source_header_arch_each_state_has_its_own_answer_and_hits_when_restored(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    """Always the same files, written anew, as a framework generates them."""
    here = world(rig, tmp_path, "pto/c++", "regenerated")

    def state(text: str, header: int, isa_header: int, arch: str) -> Result:
        source = here.write("src/k.cpp", f"// {here.text} {text}\n{HEADERS}{KERNEL}")
        here.write("include/far.h", f"#define FAR {header}\n")
        here.write("isa/include/isa.h", f"#define ISA {isa_header}\n")
        request = here.request(env={"PTO_ISA_ROOT": str(tmp_path / "isa")}, arch=arch)
        return ask(client, {**request, "inputs": {"k.cpp": source}})

    states = (
        ("one", 1, 1, "a2a3"), ("two", 1, 1, "a2a3"), ("two", 2, 1, "a2a3"), ("two", 2, 2, "a2a3"),
        ("two", 2, 2, "a5"),
    )  # fmt: skip
    made = [state(*item) for item in states]
    assert [item.outcome for item in made] == [Outcome.MISS] * len(states)
    assert len({str(content(item)) for item in made}) == len(states)
    runs = len(rig.cann.runs())
    for item, first in zip(states, made, strict=True):
        again = state(*item)
        assert again.outcome is Outcome.MEMORY_HIT
        assert content(again) == content(first)
    assert len(rig.cann.runs()) == runs


# --- devices

SOCS = ("Ascend910B1", "Ascend910_9382")
"""Two that the compiler is told of by one name."""
WAYS: dict[str, Callable[[str], State]] = {
    "request": lambda soc: with_(arch=soc),
    "flag": lambda soc: with_(options=[f"--npu-arch={soc}"]),
    "variable": lambda soc: with_(env={"ASCEND_NPU_ARCH": soc}),
}


@pytest.mark.kind("arch_mixing")
@pytest.mark.parametrize("chain", ["ascendc", "pto"])
def test_arch_mixing_two_socs_and_the_default_share_nothing_however_they_are_named(
    rig: Rig, client: Client, tmp_path: Path, chain: str
) -> None:
    here = world(rig, tmp_path, chain, "socs")
    keys = {}
    for soc in SOCS:
        results = [ask(client, way(soc)(here)) for way in WAYS.values()]
        assert [item.outcome for item in results][:1] == [Outcome.MISS]
        keys[soc] = {item.key for item in results}
    default = ask(client, here.request())
    assert default.outcome is Outcome.MISS
    keys["default"] = {default.key}
    assert len(set.union(*keys.values())) == sum(map(len, keys.values()))


@pytest.mark.kind("arch_mixing")
@pytest.mark.parametrize(("chain", "tool"), [("ascendc", "ld.lld"), ("pto", "bisheng")])
def test_arch_mixing_an_image_for_another_device_is_refused_and_not_stored(
    rig: Rig, client: Client, tmp_path: Path, chain: str, tool: str
) -> None:
    here = world(rig, tmp_path, chain, "another device")
    rig.cann.knob(f"{tool}.damage", "wrong-arch")
    try:
        refused = client.compile(**here.request(arch="Ascend910B1"), check=False)
    finally:
        rig.cann.unknob(f"{tool}.damage")
    assert (refused.outcome, refused.reason) == (Outcome.FAILURE, Reason.OUTPUT_REJECTED)
    assert not refused.outputs
    assert ask(client, here.request(arch="Ascend910B1")).outcome is Outcome.MISS


@pytest.mark.kind("arch_mixing")
def test_arch_mixing_invalidate_by_soc_leaves_the_other_soc_alone(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    here = world(rig, tmp_path, "ascendc", "invalidated")
    first, other = SOCS
    for soc in SOCS:
        ask(client, here.request(arch=soc))
    removed = client.call("invalidate", arch=first)["removed"]
    assert {item["arch"] for item in removed} == {first}
    assert ask(client, here.request(arch=other)).outcome is Outcome.MEMORY_HIT
    assert ask(client, here.request(arch=first)).outcome is Outcome.MISS


# --- what does not count


def touched(*names: str) -> State:
    """The request, after files of the installation got other times."""

    def state(w: World) -> dict[str, Any]:
        for name in names:
            os.utime(w.cann.root / name, (1, 1))
        return w.request()

    return state


def touched_headers(w: World) -> dict[str, Any]:
    for name in ("src/beside.h", "include/far.h"):
        os.utime(w.place / name, (1, 1))
    return w.request()


def other_files(w: World) -> dict[str, Any]:
    w.write("src/other.h", "#error\n")
    w.write("include/other.h", "#error\n")
    return w.request()


def home_by_link(w: World) -> dict[str, Any]:
    """The installation by another name of its folder."""
    link = w.place / "latest"
    link.symlink_to(w.cann.root)
    names = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    return w.request(env=dict.fromkeys(names, str(link)))


def spelled_include(spelling: Callable[[str], str]) -> State:
    def state(w: World) -> dict[str, Any]:
        request = w.request()
        request["options"] = ["-I" + spelling(str(w.place / "include"))]
        return request

    return state


def include_by_link(w: World) -> dict[str, Any]:
    link = w.place / "link"
    link.symlink_to(w.place / "include")
    request = w.request()
    request["options"] = ["-I", str(link)]
    return request


def source_by_link(w: World) -> dict[str, Any]:
    link = w.place / "link"
    link.symlink_to(w.place / "src")
    return w.request(source_dir=f"{link}/")


def reversed_env(w: World) -> dict[str, Any]:
    request = w.request()
    request["env"] = dict(reversed(request["env"].items()))
    return request


def more_path(w: World) -> dict[str, Any]:
    (w.place / "no-tools").mkdir()
    path = f"{w.place / 'no-tools'}:{w.place / 'missing'}:{w.cann.env()['PATH']}:/sbin"
    return w.request(env={"PATH": path})


def site_by_link(w: World) -> dict[str, Any]:
    link = w.place / "link"
    link.symlink_to(w.site)
    return w.request(env={"PYTHONPATH": f"{link}/"})


def current_folders_on_the_module_path(w: World) -> dict[str, Any]:
    return w.request(env={"PYTHONPATH": f":.:{w.site}"})


RUNTIME = {
    "ASCEND_RT_VISIBLE_DEVICES": "3", "ASCEND_DEVICE_ID": "7", "ASCEND_GLOBAL_LOG_LEVEL": "0",
    "ASCEND_PROCESS_LOG_PATH": "/var/log/x", "ASCEND_SLOG_PRINT_TO_STDOUT": "1",
    "ASCEND_CACHE_PATH": "/cache", "ASCEND_WORK_PATH": "/work-path", "ASCEND_OPP_PATH": "/opp",
}  # fmt: skip
RANKS = {"RANK": "5", "LOCAL_RANK": "5", "RANK_ID": "2", "RANK_SIZE": "16", "WORLD_SIZE": "16"}
SHELL = {
    "HOME": "/home/other", "TMPDIR": "/var/tmp", "PWD": "/elsewhere", "LANG": "zh_CN.UTF-8",
    "LC_ALL": "fi_FI.UTF-8", "TZ": "Asia/Tokyo", "USER": "other", "LD_PRELOAD": "/nowhere.so",
    "LD_LIBRARY_PATH": "/nowhere", "PYTHONHASHSEED": "77", "CFLAGS": "-DX", "GCC_EXEC_PREFIX": "/x",
}  # fmt: skip
EVERY = "ascendc pto pto/c++ pto/python"


class Nothing(NamedTuple):
    """A difference that must make none."""

    chains: str
    other: State
    one: State = plain


NOTHINGS = {
    "variables of the runtime": Nothing(EVERY, with_(env=RUNTIME)),
    "ranks": Nothing("ascendc pto pto/python", with_(env=RANKS)),
    "the shell's variables": Nothing(EVERY, with_(env=SHELL)),
    "order of variables": Nothing("ascendc", reversed_env),
    "PATH entries without tools": Nothing("ascendc pto", more_path),
    "name for people": Nothing("ascendc pto", with_(kernel="other"), with_(kernel="one")),
    "times of headers": Nothing(C, touched_headers),
    "times of tools": Nothing("ascendc pto", touched("bin/bisheng", "bin/ptoas", "bin/ld.lld")),
    "times of the tree": Nothing("ascendc", touched("version.info", "include/kernel_tensor.h")),
    "files nobody reads": Nothing(C, other_files),
    "link to the installation": Nothing("ascendc pto", home_by_link),
    "slash behind a path": Nothing(C, spelled_include(lambda path: f"{path}//")),
    "way of a path": Nothing("ascendc", spelled_include(lambda path: f"{path}/../src/../include")),
    "link to a directory": Nothing(C, include_by_link),
    "link to the source's folder": Nothing(C, source_by_link),
    "order and repetition of outputs": Nothing(
        "ascendc",
        with_(outputs=["shared", "aibin", "shared"]),
        with_(outputs=["aibin", "shared"]),
    ),
    "order of symbols": Nothing(
        "ascendc",
        with_(symbols=["b", "gemm", "b"], source=KERNEL.replace("gemm", "b")),
        with_(symbols=["gemm", "b"], source=KERNEL.replace("gemm", "b")),
    ),
    "output that is the default": Nothing("ascendc pto", with_(outputs=["aibin"])),
    "arch that is the default": Nothing("ascendc pto", with_(arch="dav-3510")),
    "who names the arch": Nothing(
        "ascendc pto",
        with_(options=["--npu-arch=dav-2201"]),
        with_(env={"ASCEND_NPU_ARCH": "dav-2201"}),
    ),
    "variable that the arch of the request hides": Nothing(
        "ascendc",
        with_(arch="dav-2201", env={"ASCEND_NPU_ARCH": "dav-3510"}),
        with_(arch="dav-2201"),
    ),
    "quoting in PTO_FLAGS": Nothing(
        "pto",
        with_(env={"PTO_FLAGS": "  '--pto-level=level3'   --enable-\"insert\"-sync\n"}),
        with_(env={"PTO_FLAGS": "--pto-level=level3 --enable-insert-sync"}),
    ),
    "empty PTO_FLAGS": Nothing("pto pto/python", with_(env={"PTO_FLAGS": " "})),
    "what only bisheng reads": Nothing(
        "pto",
        with_(outputs=["cpp"], options=["-O3", "-DX"], env={"CPATH": "/x"}),
        with_(outputs=["cpp"]),
    ),
    "folder of a source that is no C++": Nothing(
        "pto pto/python", lambda w: {**w.request(), "source_dir": str(w.place)}
    ),
    "link on PYTHONPATH": Nothing("pto/python", site_by_link),
    "current folders on PYTHONPATH": Nothing("pto/python", current_folders_on_the_module_path),
    "PYTHONPATH without a front end": Nothing("pto ascendc", with_(env={"PYTHONPATH": "/x:/y"})),
}


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        pytest.param(chain, name, id=f"{chain}: {name}")
        for name, nothing in NOTHINGS.items()
        for chain in nothing.chains.split()
    ],
)
def test_a_difference_that_cannot_reach_the_output_makes_none(
    rig: Rig, client: Client, tmp_path: Path, chain: str, name: str
) -> None:
    here = world(rig, tmp_path, chain, name)
    first = ask(client, NOTHINGS[name].one(here))
    assert first.outcome is Outcome.MISS, first.why
    runs = len(rig.cann.runs())
    again = ask(client, NOTHINGS[name].other(here))
    assert again.outcome.is_hit, again.why
    assert again.key == first.key
    assert content(again) == content(first)
    assert len(rig.cann.runs()) == runs


ASK = """
import json, os, platform, socket, sys
node = sys.argv[2]
socket.gethostname = platform.node = lambda: node
os.uname = lambda name=os.uname(): os.uname_result((name[0], node, *name[2:]))
from ptocache.client import connect
with connect() as client:
    result = client.compile(**json.loads(sys.argv[1]))
print(result.outcome.label, result.key)
"""


@pytest.mark.kind("volatile_input_in_key")
@pytest.mark.parametrize("chain", ["ascendc", "pto/python"])
def test_volatile_input_in_key_processes_that_differ_in_everything_else_share_one_run(
    rig: Rig, tmp_path: Path, chain: str
) -> None:
    request = world(rig, tmp_path, chain, "process").request()
    variables = request.pop("env")
    around: list[dict[str, str]] = [
        {},
        {
            **RUNTIME, **RANKS, **SHELL, "LD_PRELOAD": "", "HOSTNAME": "node1",
            "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "HCCL_IF_BASE_PORT": "50000",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "5601", "TMPDIR": str(tmp_path),
        },
        {
            "RANK": "6", "LOCAL_RANK": "6", "PYTHONHASHSEED": "5", "LANG": "de_DE.UTF-8",
            "LC_ALL": "C.UTF-8", "HOSTNAME": "node2", "MASTER_PORT": "29501", "PWD": "/nowhere",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "5602", "HOME": str(tmp_path), "SHLVL": "7",
        },
    ]  # fmt: skip
    rig.cann.clear_log()
    answers = []
    for number, env in enumerate(around):
        cwd = tmp_path / f"cwd{number}"
        # Called like the front end's package: in a script's own folder it would be the first one found.
        (cwd / "ptodsl").mkdir(parents=True)
        (cwd / "ptodsl" / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
        done = subprocess.run(
            [sys.executable, "-c", ASK, json.dumps(request), f"node{number}"],
            env={**rig.daemon.env, **variables, **env}, cwd=cwd,
            capture_output=True, text=True, check=True, timeout=DEADLINE_S,
        )  # fmt: skip
        answers.append(done.stdout.split())
    outcomes, keys = zip(*answers, strict=True)
    assert outcomes == ("miss", "memory_hit", "memory_hit")
    assert len(set(keys)) == 1
    tools = [run.tool for run in rig.cann.runs()]
    assert tools
    assert len(tools) == len(set(tools)) + (chain == "pto/python"), "each step ran once"


def test_folder_called_like_the_front_end_does_not_shadow_it(
    rig: Rig, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(rig, tmp_path, "pto/python", "shadow")
    here.write("ptodsl/__init__.py", "raise RuntimeError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    request = here.request(source_dir=str(tmp_path), env={"PYTHONPATH": f".:{here.site}"})
    assert ask(client, request).outcome is Outcome.MISS


# --- nothing of an earlier request


def told(cann: SimCann) -> list[tuple[list[str], dict[str, str]]]:
    """Command line and environment of each run, without the names of its private directories."""
    found = []
    for run in cann.runs():
        private = os.path.dirname(run.env["TMPDIR"])
        words = [word.replace(private, "PRIVATE") for word in run.argv]
        found.append((words, {k: v.replace(private, "PRIVATE") for k, v in run.env.items()}))
    return found


@pytest.mark.kind("flags_left_behind")
def test_flags_left_behind_by_one_request_are_in_no_command_environment_or_key_of_the_next(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    here = world(rig, tmp_path, "pto", "sticky")
    flags = world(rig, tmp_path, "pto", "sticky before").request(
        options=["--enable-insert-sync", "-O3", "-DSTICKY"],
        env={
            "PTO_FLAGS": "--pto-level=level3 -DSTICKY_TOO", "SOURCE_DATE_EPOCH": "77",
            "CPATH": str(tmp_path / "include"),
        },
    )  # fmt: skip
    ask(client, flags)
    rig.cann.clear_log()
    found = ask(client, here.request())
    seen = told(rig.cann)
    alone = DaemonProcess(tmp_path / "store")
    try:
        with alone.start().client() as second:
            rig.cann.clear_log()
            fresh = ask(second, here.request())
    finally:
        alone.clean_up()
    assert seen
    assert seen == told(rig.cann)
    assert (found.key, content(found)) == (fresh.key, content(fresh))


@pytest.mark.kind("environment_of_first_client")
def test_environment_of_first_client_and_of_the_daemon_reach_no_later_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SimCann.make(tmp_path / "one", ptoas="bin")
    two = SimCann.make(tmp_path / "two", ptoas="bin", identity="B")
    for folder, value in (("x", 1), ("y", 2)):
        (tmp_path / folder / "rel").mkdir(parents=True)
        (tmp_path / folder / "rel" / "rel.h").write_text(f"int of_{folder} = {value};\n")
    of_x = {
        **one.env(), "PTO_FLAGS": "--pto-level=level3 -DOF_X", "SOURCE_DATE_EPOCH": "77",
        "CPATH": str(tmp_path / "x" / "rel"), "PWD": str(tmp_path / "x"),
    }  # fmt: skip
    daemon = DaemonProcess(tmp_path / "store")
    daemon.env.update(of_x)
    request: dict[str, Any] = {
        "toolchain": "pto",
        "inputs": {"k.cpp": f"#include <rel.h>\n{KERNEL}"},
        "options": ["-Irel"],
    }
    try:
        with open(daemon.log_path, "ab") as log:
            daemon.process = subprocess.Popen(
                [sys.executable, "-c", BOOT], env=daemon.env, stderr=log, cwd=tmp_path / "x"
            )
        daemon.until_it_answers()
        with daemon.client() as client:
            monkeypatch.chdir(tmp_path / "x")
            assert ask(client, {**request, "env": of_x}).outcome is Outcome.MISS
            one.clear_log()
            monkeypatch.chdir(tmp_path / "y")
            found = ask(client, {**request, "env": two.env()})
            assert found.outcome is Outcome.MISS
            assert one.runs(probes=True) == []
            assert {run.tool for run in two.runs()} == {"bisheng"}
            assert "identity=B" in shown(found)["aibin"]
            seen = json.dumps([[run.argv, run.env] for run in two.runs(probes=True)])
            assert not [word for word in ("OF_X", "77", str(tmp_path / "x")) if word in seen]
            monkeypatch.chdir("/")
            request["options"] = [f"-I{tmp_path / 'y' / 'rel'}"]
            again = ask(client, {**request, "env": two.env()})
            assert (again.outcome, again.key) == (Outcome.MEMORY_HIT, found.key)
    finally:
        daemon.clean_up()


# --- what the tools see

CONSTANTS = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "TZ": "UTC0",
    "HOME": "/nonexistent",
}  # fmt: skip


@pytest.mark.parametrize("chain", ["ascendc", "pto/c++", "pto/python"])
def test_tools_see_constants_and_what_counts_and_nothing_else(
    rig: Rig, client: Client, tmp_path: Path, chain: str
) -> None:
    here = world(rig, tmp_path, chain, "environment")
    declared = {"SOURCE_DATE_EPOCH": "5", "CPATH": str(tmp_path / "include")}
    more = {**RUNTIME, **RANKS, **SHELL, "SECRET": "1", "PTO_FLAGS": "", **declared}
    rig.cann.clear_log()
    ask(client, here.request(env=more))
    root = str(rig.cann.root)
    given = {"ASCEND_HOME_PATH": root, "ASCEND_TOOLKIT_HOME": root}
    runs = rig.cann.runs()
    assert {run.tool for run in runs} >= {"bisheng"}
    for run in runs:
        rest = dict(run.env)
        assert rest.pop("TMPDIR").startswith(str(rig.daemon.root / "tmp"))
        libraries = rest.pop("LD_LIBRARY_PATH").split(":")
        assert all(item.startswith(root) for item in libraries)
        assert rest == {**CONSTANTS, **given, **declared}
        assert run.cwd.startswith(str(rig.daemon.root / "tmp"))
