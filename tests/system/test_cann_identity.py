"""Finding a simulated CANN from the declared variables, and what it is then: real files, real probes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ptocache.client import Client
from ptocache.compiler import probe
from ptocache.contents import Contents
from ptocache.errors import PtocacheWarning, ToolNotFoundError
from ptocache.identity import Identities, Options, variables_of
from ptocache.result import Result
from ptocache.signature import moment, settled, signature_of
from ptocache.toolchain import ProbeResult, Registry
from ptocache_cann import installation
from tests.harness import DaemonProcess, wait_for
from tests.simcann import KERNEL, PTO, SimCann, build_tool, make_pip_ptoas, make_ptoas_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Literal

    from ptocache.model import Identity

SYSTEM = "/usr/bin:/bin"


class Asker:
    """Identities as a daemon has them."""

    def __init__(self, **options: Any) -> None:
        self.identities = Identities(Contents(), probe, None, Options(**options))
        self._registry = Registry.discover()

    def ascendc(self, env: Mapping[str, str]) -> Identity:
        """bisheng and ld.lld."""
        return self.identities.resolve(*self._whom("ascendc", "link", env))

    def pto(self, env: Mapping[str, str]) -> Identity:
        """ptoas alone."""
        return self.identities.resolve(*self._whom("pto", "ptoas", env))

    def confirmed(self, env: Mapping[str, str]) -> Identity | None:
        return self.identities.confirmed(*self._whom("ascendc", "link", env))

    def _whom(self, name: str, flavour: str, env: Mapping[str, str]) -> Any:
        toolchain = self._registry.get(name)
        return toolchain, flavour, variables_of(toolchain, env)


@pytest.fixture
def cann(tmp_path: Path) -> SimCann:
    return SimCann.make(tmp_path / "cann")


def place(identity: Identity, role: str) -> str:
    return identity.installation.path(role)


def trees(identity: Identity) -> dict[str, str]:
    return {tree.role: tree.path for tree in identity.installation.trees}


# --- where it is found


@pytest.mark.parametrize("layout", ["new", "old"])
@pytest.mark.parametrize("arch_folder", [True, False])
def test_every_layout_is_found_and_identified_as_a_whole(
    layout: Literal["new", "old"], arch_folder: bool, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann", layout=layout, arch_folder=arch_folder)
    found = Asker().ascendc({"ASCEND_HOME_PATH": str(cann.root), "PATH": SYSTEM})
    assert found.uncertain == ""
    assert place(found, "bisheng") == str(cann.tool("bisheng"))
    assert place(found, "ld.lld") == str(cann.tool("ld.lld"))
    assert trees(found) == {"tree:cann": str(cann.root)}
    assert found.installation.banner.startswith("CANN 8.5.0; bisheng clang version 15.0.5")


@pytest.mark.parametrize(
    "variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "BISHENG_HOME", "PATH"]
)
def test_each_variable_alone_finds_it(variable: str, cann: SimCann) -> None:
    value = {"BISHENG_HOME": cann.compiler, "PATH": cann.bin}.get(variable, cann.root)
    found = Asker().ascendc({variable: str(value)})
    assert os.path.realpath(place(found, "bisheng")) == str(cann.compiler / "bin" / "bisheng")
    assert found.uncertain == ""


def test_a_compiler_on_path_brings_the_tree_that_it_lies_in(cann: SimCann) -> None:
    found = Asker().ascendc({"PATH": str(cann.bin)})
    assert trees(found) == {"tree:bisheng": str(cann.compiler)}


def test_the_order_of_the_search_is_documented(cann: SimCann, tmp_path: Path) -> None:
    other = SimCann.make(tmp_path / "other", identity="B")
    third = SimCann.make(tmp_path / "third", identity="C")
    env = {"PATH": str(third.bin)}
    for variable, tree in (
        ("ASCEND_TOOLKIT_HOME", cann.root), ("ASCEND_HOME_PATH", other.root),
        ("BISHENG_HOME", third.compiler),
    ):  # fmt: skip
        env[variable] = str(tree)
        assert place(Asker().ascendc(env), "bisheng").startswith(f"{tree}/")


def test_the_linker_beside_the_compiler_is_taken_before_path(cann: SimCann, tmp_path: Path) -> None:
    build_tool(tmp_path / "else", log=cann.log, knobs=cann.knobs, name="ld.lld")
    path = f"{tmp_path / 'else'}:{cann.compiler / 'bin'}"
    found = Asker().ascendc({"PATH": path})
    assert place(found, "ld.lld") == str(cann.compiler / "bin" / "ld.lld")


def test_a_multi_call_driver_keeps_the_name_by_which_it_is_invoked(tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "cann", multicall=True)
    found = Asker().ascendc(cann.env())
    named = {item.role: item for item in found.components}
    assert named["bisheng"].canonical == named["ld.lld"].canonical
    for role in ("bisheng", "ld.lld"):
        assert installation.invoked(found.installation, role) == str(cann.bin / role)


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "BISHENG_HOME"])
def test_what_is_not_found_is_said_with_every_place(variable: str, tmp_path: Path) -> None:
    with pytest.raises(ToolNotFoundError) as caught:
        Asker().ascendc({variable: str(tmp_path), "PATH": f"{tmp_path}/bin2:relative"})
    for name in ("bin/bisheng", "bisheng", "compiler/ccec_compiler/bin/bisheng", "bin2/bisheng"):
        assert f"{tmp_path}/{name}" in caught.value.fields["looked"]
    assert f"{tmp_path}/bin2/bisheng" in str(caught.value.hint)
    assert not any("relative" in place for place in caught.value.fields["looked"])


@pytest.mark.parametrize(
    ("value", "why"), [("/nonexistent", "is no directory"), ("cann", "is no absolute path")]
)
def test_a_variable_that_leads_nowhere_is_named(value: str, why: str) -> None:
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "BISHENG_HOME"):
        with pytest.raises(ToolNotFoundError, match=f"{variable}={value} {why}"):
            Asker().ascendc({variable: value, "PATH": "/nonexistent"})
    with pytest.raises(ToolNotFoundError, match=f"PTOAS_ROOT={value} {why}"):
        Asker().pto({"PTOAS_ROOT": value, "PATH": SYSTEM})


def test_a_relative_variable_finds_nothing_in_the_daemons_own_directory(
    cann: SimCann, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cann.root.parent)
    for variable in ("ASCEND_HOME_PATH", "BISHENG_HOME"):
        with pytest.raises(ToolNotFoundError):
            Asker().ascendc({variable: "cann", "PATH": "cann/bin:"})


def test_an_installation_that_appears_where_a_variable_points_is_noticed(
    cann: SimCann, tmp_path: Path
) -> None:
    asker, env = Asker(), {"ASCEND_HOME_PATH": str(tmp_path / "later"), "PATH": str(cann.bin)}
    before = asker.ascendc(env)
    assert asker.confirmed(env) is before
    SimCann.make(tmp_path / "later")
    assert asker.confirmed(env) is None
    assert place(asker.ascendc(env), "bisheng").startswith(str(tmp_path / "later"))


def test_a_tool_that_appears_in_an_earlier_folder_of_the_tree_is_noticed(tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "cann", layout="old")
    asker, env = Asker(), cann.env()
    before = asker.ascendc(env)
    assert asker.confirmed(env) is before
    build_tool(cann.root / "bin", log=cann.log, knobs=cann.knobs, name="bisheng")
    assert asker.confirmed(env) is None
    assert place(asker.ascendc(env), "bisheng") == str(cann.root / "bin" / "bisheng")


def test_a_link_of_another_cache_is_passed_over_until_a_compiler_comes_there(
    cann: SimCann, tmp_path: Path
) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    shutil.copy("/bin/true", tmp_path / "ccache")
    (masks / "bisheng").symlink_to(tmp_path / "ccache")
    asker, env = Asker(), {"PATH": f"{masks}:{cann.bin}"}
    assert place(asker.ascendc(env), "bisheng") == str(cann.tool("bisheng"))
    (masks / "bisheng").unlink()
    build_tool(masks, log=cann.log, knobs=cann.knobs, name="bisheng")
    asker.identities.rescan()
    assert place(asker.ascendc(env), "bisheng") == str(masks / "bisheng")


def test_a_home_or_a_system_prefix_is_no_tree_of_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for where in (tmp_path, Path("/usr"), Path("/usr/local"), Path("/home/somebody")):
        assert installation._own_home(f"{where}/bin/bisheng") == ""
    (tmp_path / "lib" / "clang").mkdir(parents=True)
    assert installation._own_home(f"{tmp_path}/bin/bisheng") == f"{tmp_path}/lib/clang"
    assert installation._own_home(f"{tmp_path}/cann/bin/bisheng") == f"{tmp_path}/cann"
    (tmp_path / "cann" / "lib" / "python3.11").mkdir(parents=True)
    assert installation._own_home(f"{tmp_path}/cann/bin/bisheng") == ""


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "BISHENG_HOME", "PTOAS_ROOT"])
def test_a_variable_that_names_a_whole_system_makes_no_tree_of_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler in ``/usr/bin`` is found by BISHENG_HOME=/usr."""
    cann = SimCann.make(tmp_path / "usr", ptoas="bin")
    monkeypatch.setattr(installation, "_SYSTEM_PREFIXES", frozenset({str(cann.root)}))
    env = {variable: str(cann.root), "PATH": str(cann.bin)}
    asker = Asker()
    found = asker.pto(env) if variable == "PTOAS_ROOT" else asker.ascendc(env)
    assert found.uncertain == ""
    assert str(cann.root) not in trees(found).values()


# --- ptoas


@pytest.mark.parametrize(
    ("era", "tool"), [("0.30", "ptoas"), ("0.52", "bin/ptoas"), ("0.56", "ptoas.sh")]
)
def test_a_release_of_each_era_is_identified_as_a_whole(
    era: Literal["0.30", "0.52", "0.56"], tool: str, cann: SimCann, tmp_path: Path
) -> None:
    root = tmp_path / "pto"
    make_ptoas_release(root, era=era, log=cann.log, knobs=cann.knobs)
    env = {"PTOAS_ROOT": str(root), "PATH": SYSTEM}
    asker = Asker()
    before = asker.pto(env)
    assert before.uncertain == ""
    assert place(before, "ptoas") == str(root / tool)
    assert trees(before)["tree:ptoas"] == str(root)
    assert "ptoas 0.27" in before.installation.banner
    (root / "lib" / "VERSION").write_text("0.99\n")
    asker.identities.hint(str(root / "lib" / "VERSION"))
    assert asker.pto(env).digest != before.digest


def test_a_release_may_bring_its_python_at_its_top(cann: SimCann, tmp_path: Path) -> None:
    make_ptoas_release(tmp_path / "pto", era="0.52", log=cann.log, knobs=cann.knobs)
    (tmp_path / "pto" / "lib" / "python3.11").mkdir()
    found = Asker().pto({"PTOAS_ROOT": str(tmp_path / "pto"), "PATH": SYSTEM})
    assert trees(found)["tree:ptoas"] == str(tmp_path / "pto")


def test_path_is_not_searched_if_a_release_is_named(tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "cann", ptoas="bin")
    assert place(Asker().pto(cann.env()), "ptoas") == str(cann.ptoas)
    with pytest.raises(ToolNotFoundError) as caught:
        Asker().pto(cann.env(PTOAS_ROOT=str(tmp_path)))
    assert caught.value.fields["looked"] == [
        f"{tmp_path}/ptoas.sh",
        f"{tmp_path}/bin/ptoas",
        f"{tmp_path}/ptoas",
    ]


def test_a_shim_on_path_is_not_identified_unless_it_is_trusted(
    cann: SimCann, tmp_path: Path
) -> None:
    real = build_tool(tmp_path / "opt", log=cann.log, knobs=cann.knobs, name="ptoas")
    shim = tmp_path / "shims" / "ptoas"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    shim.chmod(0o755)
    env = {"PATH": str(shim.parent)}
    assert str(shim) in Asker().pto(env).uncertain
    assert "identity.trust_scripts" in Asker().pto(env).uncertain
    assert Asker(trust_scripts=(str(shim),)).pto(env).uncertain == ""


def test_a_script_in_the_place_of_the_compiler_is_described_when_it_is_trusted(
    cann: SimCann, tmp_path: Path
) -> None:
    real = cann.compiler / "bin" / "bisheng"
    shim = tmp_path / "bin" / "bisheng"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    shim.chmod(0o755)
    found = Asker(trust_scripts=(str(shim),)).ascendc({"PATH": f"{shim.parent}:{cann.bin}"})
    assert found.uncertain == ""
    assert (
        str(cann.compiler / "lib/clang/15.0.5/include") in found.installation.facts["include_dirs"]
    )


def test_a_launcher_of_pip_is_identified_with_its_package(cann: SimCann, tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(prefix)], check=True)
    launcher = make_pip_ptoas(prefix, log=cann.log, knobs=cann.knobs, python=f"{prefix}/bin/python")
    asker, env = Asker(), {"PATH": f"{launcher.parent}:{SYSTEM}"}
    before = asker.pto(env)
    assert before.uncertain == ""
    native = Path(trees(before)["tree:ptoas package ptoas"]) / "_native" / "ptoas"
    native.write_bytes(native.read_bytes() + b"!")
    asker.identities.hint(str(native))
    assert asker.pto(env).digest != before.digest


# --- version files


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


VERSIONS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "ambiguous": lambda path: path.write_text("Version=8.5.0\nVersion=9.0.0\n"),
    "binary": lambda path: path.write_bytes(b"Version=8.5.0\0"),
    "no version": lambda path: path.write_text("hello\n"),
    "a directory": _directory,
}


@pytest.mark.parametrize("damage", VERSIONS.values(), ids=VERSIONS)
def test_a_version_file_that_is_not_certain_leaves_all_uncertain_until_it_is_repaired(
    damage: Callable[[Path], object], cann: SimCann
) -> None:
    path = cann.root / "version.info"
    damage(path)
    asker, env = Asker(), cann.env()
    assert str(path) in asker.ascendc(env).uncertain
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    moment()
    path.write_text("Version=9.0.0\n")
    assert asker.confirmed(env) is None
    repaired = asker.ascendc(env)
    assert repaired.uncertain == ""
    assert repaired.installation.banner.startswith("CANN 9.0.0;")


@pytest.mark.parametrize("dangling", [False, True])
def test_a_version_file_may_be_missing_and_is_noticed_when_it_comes(
    dangling: bool, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann")
    path = cann.root / "version.info"
    path.unlink()
    if dangling:
        path.symlink_to(tmp_path / "version.info")
    asker, env = Asker(), cann.env()
    before = asker.ascendc(env)
    assert bool(before.uncertain) is dangling
    assert asker.confirmed(env) is before
    path.write_text("Version=8.5.0\n")
    assert asker.confirmed(env) is None
    assert asker.ascendc(env).uncertain == ""


# --- tools that answer oddly, or not at all


@pytest.mark.parametrize("knob", ["version-to-stderr", "version-exit"])
def test_an_odd_answer_to_version_changes_nothing(knob: str, cann: SimCann) -> None:
    before = Asker().ascendc(cann.env())
    cann.knob(f"all.{knob}", 1)
    after = Asker().ascendc(cann.env())
    assert after.digest == before.digest
    assert after.uncertain == ""
    assert "clang version 15.0.5" in after.installation.banner


def no_answer(argv: tuple[str, ...]) -> ProbeResult:
    raise TimeoutError(f"{argv[0]} did not answer")


def refusal(argv: tuple[str, ...]) -> ProbeResult:
    return ProbeResult(1, "", "")


@pytest.mark.parametrize("answer", [no_answer, refusal])
def test_a_compiler_that_does_not_answer_leaves_all_uncertain(
    answer: Callable[[tuple[str, ...]], ProbeResult], cann: SimCann
) -> None:
    def asked(argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
        return probe(argv, env) if "LD_TRACE_LOADED_OBJECTS" in env else answer(argv)

    asker = Asker()
    asker.identities = Identities(Contents(), asked)
    found = asker.ascendc(cann.env())
    assert "does not say where it looks for headers" in found.uncertain
    assert "bisheng of unknown version" in found.installation.banner


def test_a_tool_that_cannot_start_for_want_of_a_library_is_uncertain(tmp_path: Path) -> None:
    lib, tool = tmp_path / "lib" / "libgone.so", tmp_path / "bin" / "ptoas"
    for path in (lib, tool):
        path.parent.mkdir()
    cc = shutil.which("cc") or "cc"
    (tmp_path / "m.c").write_text("int f(void); int main(void) { return f(); }")
    (tmp_path / "f.c").write_text("int f(void) { return 0; }")
    subprocess.run([cc, "-shared", "-fPIC", tmp_path / "f.c", "-o", lib], check=True)
    subprocess.run([cc, tmp_path / "m.c", lib, "-o", tool], check=True)
    env = {"PATH": str(tool.parent)}
    assert Asker().pto(env).uncertain == ""
    lib.unlink()
    found = Asker().pto(env)
    assert "ptoas cannot start" in found.uncertain
    assert "libgone.so" in found.uncertain


# --- what counts


def test_spellings_of_the_same_place_are_the_same_identity(cann: SimCann, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("cann")
    spellings = (f"{cann.root}/", f"{tmp_path}/latest", f"{tmp_path}/./cann/../cann")
    digests = {
        Asker().ascendc({variable: spelled, "PATH": SYSTEM}).digest
        for spelled in spellings
        for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    }
    assert len(digests) == 1


def test_the_same_installation_elsewhere_is_the_same_only_if_relocatable(
    cann: SimCann, tmp_path: Path
) -> None:
    shutil.copytree(cann.root, tmp_path / "copy", symlinks=True)
    copy = {"ASCEND_HOME_PATH": str(tmp_path / "copy"), "PATH": SYSTEM}
    env = {"ASCEND_HOME_PATH": str(cann.root), "PATH": SYSTEM}
    for relocatable in (True, False):
        asker = Asker(relocatable=relocatable)
        assert (asker.ascendc(env).digest == asker.ascendc(copy).digest) is relocatable


def test_a_configuration_file_beside_a_compiler_counts(tmp_path: Path, cann: SimCann) -> None:
    """Also where the folder is no part of a tree."""
    folder = tmp_path / "tools"
    for name in ("bisheng", "ld.lld"):
        build_tool(folder, log=cann.log, knobs=cann.knobs, name=name)
    asker, env = Asker(), {"PATH": str(folder)}
    before = asker.ascendc(env)
    assert trees(before) == {}
    (folder / "bisheng.cfg").write_text("-O0\n")
    assert asker.confirmed(env) is None
    assert asker.ascendc(env).digest != before.digest


def test_what_a_compiler_may_start_from_its_folder_counts_where_that_is_no_tree(
    tmp_path: Path, cann: SimCann
) -> None:
    folder = tmp_path / "tools"
    for name in ("bisheng", "ld.lld", "llvm-objcopy", "unrelated"):
        build_tool(folder, log=cann.log, knobs=cann.knobs, name=name)
    asker, env = Asker(), {"PATH": str(folder)}
    before = asker.ascendc(env)
    assert place(before, "beside llvm-objcopy") == str(folder / "llvm-objcopy")
    assert place(before, "beside unrelated") == ""
    build_tool(folder, log=cann.log, knobs=cann.knobs, name="llvm-objcopy", identity="B")
    asker.identities.rescan()
    changed = asker.ascendc(env)
    assert changed.digest != before.digest
    build_tool(folder, log=cann.log, knobs=cann.knobs, name="clang-15")
    asker.identities.rescan()
    assert asker.ascendc(env).digest != changed.digest


def test_two_libraries_of_one_name_both_count(tmp_path: Path) -> None:
    """Two tools, each linked with a ``libdevice.so`` of its own in an unrelated folder."""
    cc = shutil.which("cc") or "cc"
    (tmp_path / "f.c").write_text("int f(void) { return 0; }")
    (tmp_path / "m.c").write_text("int f(void); int main(void) { return f(); }")
    for name in ("bisheng", "ld.lld"):
        lib, tool = tmp_path / f"of-{name}" / "libdevice.so", tmp_path / "tools" / name
        for path in (lib, tool):
            path.parent.mkdir(exist_ok=True)
        subprocess.run([cc, "-shared", "-fPIC", tmp_path / "f.c", "-o", lib], check=True)
        subprocess.run([cc, tmp_path / "m.c", lib, "-o", tool], check=True)
    found = {item.path for item in Asker().ascendc({"PATH": str(tmp_path / "tools")}).components}
    assert {f"{tmp_path}/of-{name}/libdevice.so" for name in ("bisheng", "ld.lld")} <= found


def test_options_are_shortened_only_where_a_manifest_covers_what_they_name(
    cann: SimCann,
) -> None:
    found = Asker().ascendc(cann.env()).installation
    root = str(cann.root)
    words = (f"{root}/include", root, f"{root}/opp/include", f"{root}x/include", "-I")
    short = installation.shorten(words, found)
    assert short == ("{tree:cann}/include", "{tree:cann}", *words[2:])
    assert installation.expand(short, found) == words


def test_a_tool_that_hangs_when_asked_for_its_version_costs_one_wait(cann: SimCann) -> None:
    asked: list[tuple[str, ...]] = []

    def hangs(argv: tuple[str, ...], env: Mapping[str, str] = {}) -> Any:
        asked.append(argv)
        if "--version" in argv:
            raise TimeoutError(f"{argv[0]} did not answer")
        return probe(argv, env)

    asker = Asker()
    asker.identities = Identities(Contents(), hangs)
    found = asker.ascendc(cann.env())
    assert found.uncertain == ""
    assert "bisheng of unknown version; ld.lld of unknown version" in found.installation.banner
    assert len([argv for argv in asked if "--version" in argv]) == 1


def test_a_library_from_elsewhere_counts(tmp_path: Path, cann: SimCann) -> None:
    named = {item.role: item for item in Asker().ascendc(cann.env()).components}
    assert "lib:libc.so.6" in named
    assert os.path.exists("/etc/ld.so.cache") <= (
        "/etc/ld.so.cache" in Asker().ascendc(cann.env()).installation.directories
    )


# --- through a daemon


def files_read(daemon: DaemonProcess) -> int:
    with daemon.client() as client:
        return int(client.call("status")["identity"]["files_read"])


def compiled(client: Client, cann: SimCann, **env: str) -> Result:
    return client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env(**env), check=False)


@pytest.fixture(scope="module")
def probing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon whose shell speaks Chinese."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("probing") / "store")
    daemon.env.update(LANG="zh_CN.UTF-8", LC_MESSAGES="zh_CN.UTF-8")
    yield daemon.start()
    daemon.clean_up()


class Tool(NamedTuple):
    """A request that leads to a tool which is not easily asked."""

    toolchain: str
    env: dict[str, str]
    inputs: dict[str, str]

    def ask(self, client: Client, **env: str) -> Result:
        outputs = ["cpp"] if self.toolchain == "pto" else []
        return client.compile(
            self.toolchain, self.inputs, env={**self.env, **env}, outputs=outputs, check=False
        )


def of_ptoas(path: str) -> Tool:
    return Tool("pto", {"PATH": path}, {"k.pto": PTO})


def of_bisheng(env: dict[str, str]) -> Tool:
    return Tool("ascendc", env, {"k.asc": KERNEL})


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def launcher_of_pip(cann: SimCann, place: Path) -> Tool:
    prefix = place / "venv"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(prefix)], check=True)
    launcher = make_pip_ptoas(prefix, log=cann.log, knobs=cann.knobs, python=f"{prefix}/bin/python")
    return of_ptoas(f"{launcher.parent}:{SYSTEM}")


def link_of_ccache(cann: SimCann, place: Path) -> Tool:
    (place / "masks").mkdir()
    shutil.copy("/bin/true", place / "ccache")
    (place / "masks" / "bisheng").symlink_to(place / "ccache")
    return of_bisheng({"PATH": f"{place / 'masks'}:{cann.bin}"})


def answers_on_stderr(cann: SimCann, _: Path) -> Tool:
    cann.knob("all.version-to-stderr")
    return of_bisheng(cann.env())


def answers_with_an_error(cann: SimCann, _: Path) -> Tool:
    cann.knob("all.version-exit", 1)
    return of_bisheng(cann.env())


def answers_in_english_only_if_asked_to(cann: SimCann, _: Path) -> Tool:
    real = cann.compiler / "bin" / "bisheng"
    (cann.compiler / "libexec").mkdir()
    real.rename(cann.compiler / "libexec" / "bisheng")
    script(
        real,
        '[ "$LC_ALL$LANG" = CC ] || { echo "virhe: tuntematon valitsin" >&2; exit 1; }\n'
        'exec "$(dirname "$(readlink -f "$0")")/../libexec/bisheng" "$@"',
    )
    return of_bisheng(cann.env())


PROBES = [
    launcher_of_pip, link_of_ccache, answers_on_stderr, answers_with_an_error,
    answers_in_english_only_if_asked_to,
]  # fmt: skip
SHELLS = ({"LANG": "zh_CN"}, {"LC_ALL": "de_DE.UTF-8"}, {"LANG": "fi_FI.UTF-8", "LANGUAGE": "fi"})


@pytest.mark.kind("toolchain_probe_fails")
@pytest.mark.parametrize("make", PROBES)
def test_toolchain_probe_fails_for_no_launcher_shim_or_language_that_is_met_in_the_wild(
    make: Callable[[SimCann, Path], Tool], probing: DaemonProcess, cann: SimCann, tmp_path: Path
) -> None:
    tool = make(cann, tmp_path)
    with probing.client() as client:
        assert tool.ask(client).outcome.label == "miss"
        for shell in SHELLS:
            assert tool.ask(client, **shell).outcome.label == "memory_hit"


def shim_of_ptoas(cann: SimCann, place: Path) -> tuple[Tool, str]:
    real = build_tool(place / "opt", log=cann.log, knobs=cann.knobs, name="ptoas")
    shim = script(place / "shims" / "ptoas", f'exec {real} "$@"')
    return of_ptoas(str(shim.parent)), f"{shim} (ptoas) is a script that may lead anywhere"


def shim_of_ccache(cann: SimCann, place: Path) -> tuple[Tool, str]:
    shim = script(place / "shims" / "bisheng", f'exec {cann.tool("bisheng")} "$@"')
    env = {"PATH": f"{shim.parent}:{cann.bin}"}
    return of_bisheng(env), f"{shim} (bisheng) is a script that may lead anywhere"


def version_file_that_is_empty(cann: SimCann, _: Path) -> tuple[Tool, str]:
    (cann.root / "version.info").write_text("")
    return of_bisheng(cann.env()), f"{cann.root}/version.info is empty"


@pytest.mark.kind("toolchain_probe_fails")
@pytest.mark.parametrize("make", [shim_of_ptoas, shim_of_ccache, version_file_that_is_empty])
def test_toolchain_probe_fails_and_statistics_and_one_warning_name_the_reason(
    make: Callable[[SimCann, Path], tuple[Tool, str]],
    probing: DaemonProcess, cann: SimCann, tmp_path: Path,
) -> None:  # fmt: skip
    tool, why = make(cann, tmp_path)
    before = bypassed(probing)
    with probing.client() as client:
        with pytest.warns(PtocacheWarning) as warned:
            results = [tool.ask(client) for _ in range(2)]
        for result in results:
            assert result.outcome.label == "bypass"
            assert result.reason.label == "unidentified_toolchain"
            assert why in result.why
            assert [item.size > 0 for item in result.outputs.values()] == [True]
    (warning,) = warned
    assert str(warning.message).startswith("ptocache stores nothing that is compiled with")
    assert why in str(warning.message)
    assert warning.filename == __file__
    assert bypassed(probing) == before + 2
    assert len([run for run in cann.runs() if run.tool in ("bisheng", "ptoas")]) == 2


def bypassed(daemon: DaemonProcess) -> int:
    return int(daemon.stats()["bypass_reasons"].get("unidentified_toolchain", 0))


EACH_ASKS = """
import os, sys
from ptocache.client import connect
for _ in range(int(sys.argv[1])):
    # One after the other, and none of them has ever asked before.
    if os.fork() == 0:
        with connect() as client:
            print(client.compile("ascendc", {"k.asc": sys.argv[2]}).outcome.label, flush=True)
        os._exit(0)
    os.wait()
"""
MANY = 4_000
SMALL_PRINCIPALS = 8
"""Files too small to be kept by their stamps."""


def test_a_new_daemon_asks_nothing_and_reads_no_file_of_a_tree(
    make_daemon: Callable[..., DaemonProcess], cann: SimCann
) -> None:
    daemon = make_daemon(rescan=3600).start()

    def read_by_a_hit() -> int:
        before = files_read(daemon)
        with daemon.client() as client:
            assert compiled(client, cann).outcome.is_hit
        return files_read(daemon) - before

    with daemon.client() as client:
        compiled(client, cann)
    wait_for(lambda: read_by_a_hit() == 0, "stamps old enough to be trusted")
    # What was too young when it was located is asked once more, and remembered then.
    daemon.restart()
    read_by_a_hit()
    daemon.restart()
    asked = len(cann.runs(probes=True))
    with daemon.client() as client:
        assert compiled(client, cann).outcome.label == "disk_hit"
    assert len(cann.runs(probes=True)) == asked
    assert files_read(daemon) <= SMALL_PRINCIPALS


@pytest.mark.kind("cost_of_fingerprinting")
def test_cost_of_fingerprinting_is_paid_once_a_daemon_and_a_changed_file_is_noticed(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann", files=MANY)
    last = sorted((cann.root / "include" / "generated").rglob("*.h"))[-1]
    daemon = make_daemon(rescan=3600).start()

    def ask(processes: int = 1) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", EACH_ASKS, str(processes), KERNEL],
            env={**daemon.env, **cann.env()}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.split()

    wait_for(lambda: quiet(last) and quiet(cann.root / "version.info"), "stamps to be trusted")
    before = files_read(daemon)
    assert ask() == ["miss"]
    assert MANY < files_read(daemon) - before < MANY + 200, "each file once"
    with Opened(cann.root) as opened:
        read, asked = files_read(daemon), len(cann.runs(probes=True))
        assert ask(64) == ["memory_hit"] * 64
        assert (files_read(daemon), len(cann.runs(probes=True))) == (read, asked)
        assert opened.names() == set(), "nothing of the tree was opened, not even a folder"
    last.write_text("#define OTHER 1\n")
    wait_for(lambda: ask() == ["miss"], "the change to be noticed")
    assert files_read(daemon) - read <= SMALL_PRINCIPALS, "of the tree, only what changed"


def quiet(path: Path) -> bool:
    stamp = signature_of(str(path))
    assert stamp is not None
    return settled(stamp, time.time_ns())


class Opened:
    """Tells what is opened in the folders of a tree, and which of these are listed (inotify)."""

    _OPEN = 0x20

    def __init__(self, root: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        folders = [folder for folder, _, _ in os.walk(root)]
        for folder in folders:
            assert libc.inotify_add_watch(self._fd, os.fsencode(folder), self._OPEN) > 0
        # It sees what it is made for.
        os.listdir(folders[-1])
        assert "" in self.names()

    def names(self) -> set[str]:
        """Names of what was opened since this was last asked; of a watched folder itself, empty."""
        found = set()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, 1 << 20):
                while data:
                    *_, length = struct.unpack_from("iIII", data)
                    found.add(data[16 : 16 + length].rstrip(b"\0").decode())
                    data = data[16 + length :]
        return found

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


def test_a_ptoas_of_a_release_compiles_through_a_daemon(
    daemon: DaemonProcess, cann: SimCann, tmp_path: Path
) -> None:
    make_ptoas_release(tmp_path / "pto", era="0.56", log=cann.log, knobs=cann.knobs)
    env = {"PTOAS_ROOT": str(tmp_path / "pto"), "PATH": SYSTEM}
    with daemon.client() as client:
        for outcome in ("miss", "memory_hit"):
            result = client.compile("pto", {"k.pto": PTO}, env=env, outputs=["cpp"])
            assert result.outcome.label == outcome
