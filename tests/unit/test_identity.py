"""Which toolchain is this? Real files, a plugin in memory, and counts of what was asked and read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import manifest as manifest_module
from ptocache import signature as signature_module
from ptocache.contents import PERSIST_BYTES, Contents
from ptocache.errors import ToolNotFoundError
from ptocache.identity import (
    Identities,
    Options,
    Standing,
    cpu_signature,
    identity_digest,
    variables_of,
)
from ptocache.model import (
    Discovery,
    Identity,
    Installation,
    Job,
    Output,
    Prepared,
    Step,
    ToolFile,
    Tree,
)
from ptocache.signature import Signature, moment
from ptocache.toolchain import BaseToolchain, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ptocache.toolchain import Files, Probe, Scan

COMPILER = b"\x7fELF compiler"
LIBRARY = b"\x7fELF library" + b"x" * PERSIST_BYTES


class Plugin(BaseToolchain):
    """A toolchain whose files lie below a folder; asks its compiler one question."""

    name = "fake"
    version = "1"
    ENV: tuple[str, ...] = ("FAKE_*",)
    SEARCH: tuple[str, ...] = ("FAKEHOME",)

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.changes = changes
        self.located = 0

    def flavour(self, job: Job) -> str:
        return ""

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        self.located += 1
        compiler = str(self.root / "bin" / "cc")
        banner = probe((compiler, "--version")).stdout
        found = Installation(
            banner=banner,
            files=(
                ToolFile("cc", compiler, True),
                ToolFile("lib", str(self.root / "lib" / "libcc.so"), False),
            ),
            directories=(str(self.root / "bin"),),
            facts={"target": "of today", "flavour": flavour},
            local={"native": "skylake"},
        )
        return found._replace(**self.changes)

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        raise NotImplementedError

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        raise NotImplementedError

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        raise NotImplementedError

    def discover(
        self, prepared: Prepared, installation: Installation, depfiles: Mapping[str, str],
        files: Files, workdir: str,
    ) -> Discovery:  # fmt: skip
        raise NotImplementedError

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        raise NotImplementedError

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        raise NotImplementedError

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        raise NotImplementedError


class Records:
    """What outlives a daemon, in dicts."""

    def __init__(self) -> None:
        self.installations: dict[str, dict[str, Any]] = {}
        self.digests: dict[tuple[str, Signature], str] = {}

    def load_installation(self, key: str) -> dict[str, Any] | None:
        return self.installations.get(key)

    def save_installation(self, key: str, record: dict[str, Any]) -> None:
        self.installations[key] = record

    def load_file_digest(self, path: str, signature: Signature) -> str:
        return self.digests.get((path, signature), "")

    def save_file_digest(self, path: str, signature: Signature, sha256: str) -> None:
        self.digests[path, signature] = sha256


class World:
    """A toolchain on disk and a daemon's view of it; :meth:`restart` is another daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.compiler = root / "bin" / "cc"
        self.library = root / "lib" / "libcc.so"
        for path, data in ((self.compiler, COMPILER), (self.library, LIBRARY)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.records = Records()
        self.asked: list[tuple[str, ...]] = []
        self.watched: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None
        self.options = Options()
        self.plugin = Plugin(root)
        self.restart()

    def restart(self) -> None:
        moment()
        self.contents = Contents(self.records)
        self.identities = Identities(
            self.contents, self.probe, self.records, self.options, self.watched.update
        )
        self.standing: Standing | None = None
        self.asked.clear()
        self.plugin.located = 0

    def probe(self, argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
        self.asked.append(argv)
        self.meanwhile()
        return ProbeResult(0, "fake compiler 1.0", "")

    def resolve(self) -> Identity:
        return self.identities.resolve(self.plugin, "", ())

    def confirmed(self) -> Identity | None:
        """What is confirmed now; what stood before stands only if that is still the same."""
        found = self.identities.confirmed(self.plugin, "", ())
        if self.standing is not None and self.identities.stands(self.standing):
            assert found is self.standing.identity
        self.standing = self.identities.standing(self.plugin, "", ())
        return found


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as long untouched, so that nobody must wait for it."""
    monkeypatch.setattr(signature_module, "SETTLE_NS", -(10**15))


@pytest.fixture(params=["fresh", "quiet"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """With stamps that are not trusted yet, and with stamps that are."""
    if request.param == "quiet":
        request.getfixturevalue("quiet")
    return World(tmp_path / "cann")


def replace_in_place(path: Path) -> None:
    """Other bytes of the same size, with the old times."""
    moment()
    info = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def replace_by_rename(path: Path) -> None:
    moment()
    info = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.rename(path)


def test_nothing_is_confirmed_before_it_was_resolved(world: World) -> None:
    assert world.confirmed() is None


def test_an_untouched_toolchain_is_confirmed_without_asking_it_again(world: World) -> None:
    identity = world.resolve()
    asked = len(world.asked)
    assert all(world.confirmed() is identity for _ in range(5))
    assert world.resolve() is identity
    assert len(world.asked) == asked == 1
    assert world.plugin.located == 1


def test_what_stood_stands_until_an_identity_is_learned_or_doubted(world: World) -> None:
    world.resolve()
    assert world.confirmed()
    standing = world.standing
    assert standing is not None
    assert all(world.identities.stands(standing) for _ in range(3))
    world.identities.hint(str(world.compiler))
    assert not world.identities.stands(standing), "doubted, though its stamps are as they were"
    world.resolve()
    again = world.identities.standing(world.plugin, "", ())
    assert again is not None
    world.identities.resolve(world.plugin, "other", ())
    assert not world.identities.stands(again), "what another look has found may be about it"
    assert world.confirmed()


@pytest.mark.usefixtures("quiet")
def test_confirming_a_quiet_toolchain_reads_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.resolve()
    read = world.contents.files_read
    assert all(world.confirmed() for _ in range(5))
    assert world.contents.files_read == read == 2


def test_the_identity_names_the_components_with_their_content(world: World) -> None:
    identity = world.resolve()
    assert [item.role for item in identity.components] == ["cc", "lib"]
    assert [item.digest.size for item in identity.components] == [len(COMPILER), len(LIBRARY)]
    assert identity.uncertain == ""
    assert identity.installation.banner == "fake compiler 1.0"
    assert identity.installation.path("lib") == str(world.library)
    assert identity.installation.path("none") == ""


@pytest.mark.parametrize("replace", [replace_in_place, replace_by_rename])
@pytest.mark.kind("toolchain_memoised")
def test_toolchain_memoised_by_size_and_time_would_miss_a_replaced_compiler_that_has_them(  # type: ignore[no-untyped-def]
    replace, world: World
) -> None:
    before = world.resolve()
    replace(world.compiler)
    assert world.confirmed() is None
    after = world.resolve()
    assert after.digest != before.digest
    assert world.confirmed() is after


def test_a_compiler_that_was_only_touched_keeps_its_identity(world: World) -> None:
    before = world.resolve()
    moment()
    os.utime(world.compiler)
    assert world.resolve().digest == before.digest


def test_a_compiler_that_vanished_is_not_confirmed_and_not_found(world: World) -> None:
    world.resolve()
    world.compiler.unlink()
    assert world.confirmed() is None
    with pytest.raises(ToolNotFoundError) as caught:
        world.resolve()
    assert caught.value.fields["looked"] == [str(world.compiler)]


@pytest.mark.usefixtures("quiet")
def test_a_library_replaced_in_place_is_noticed_after_a_hint(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    replace_in_place(world.library)
    world.identities.hint(str(world.library))
    assert world.confirmed() is None
    assert world.resolve().digest != before.digest


@pytest.mark.usefixtures("quiet")
def test_a_library_replaced_in_place_is_noticed_by_the_rescan(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    assert world.identities.rescan() == 0
    assert world.confirmed() is before
    replace_in_place(world.library)
    assert world.identities.rescan() == 1
    assert world.confirmed() is None
    assert world.resolve().digest != before.digest
    assert world.identities.rescan() == 0


def test_a_library_replaced_in_place_is_noticed_after_a_compile(world: World) -> None:
    identity = world.resolve()
    assert world.identities.unmoved(world.plugin, "", (), identity)
    replace_in_place(world.library)
    assert not world.identities.unmoved(world.plugin, "", (), identity)


def test_a_fresh_library_replaced_in_place_is_noticed_at_once(tmp_path: Path) -> None:
    # Its stamps prove nothing yet, so its content is looked at with every request.
    world = World(tmp_path)
    world.resolve()
    replace_in_place(world.library)
    assert world.confirmed() is None


def test_a_hint_without_a_change_costs_one_look_and_changes_nothing(world: World) -> None:
    identity = world.resolve()
    world.identities.hint(str(world.library))
    assert world.confirmed() is None
    assert world.resolve() is identity
    assert world.confirmed() is identity


@pytest.mark.parametrize("name", ["bin/cc", "bin/new-tool", "lib/libcc.so", "bin"])
def test_a_hint_counts_for_the_files_and_the_folders_of_a_toolchain(
    name: str, world: World
) -> None:
    world.resolve()
    world.identities.hint(str(world.root / name))
    assert world.confirmed() is None


@pytest.mark.parametrize("name", ["elsewhere", "include/a.h", "bin/deep/er"])
def test_a_hint_at_another_place_does_not_count(name: str, world: World) -> None:
    identity = world.resolve()
    world.identities.hint(str(world.root / name))
    assert world.confirmed() is identity


def test_an_empty_earlier_place_counts_when_something_appears_there(world: World) -> None:
    earlier = world.root / "earlier" / "cc"
    earlier.parent.mkdir()
    world.plugin.changes = {"absent": (str(earlier),)}
    identity = world.resolve()
    earlier.write_bytes(b"")
    world.identities.hint(str(earlier))
    assert world.confirmed() is None
    assert not world.identities.unmoved(world.plugin, "", (), identity)
    world.resolve()
    assert world.plugin.located == 2, "the plugin was asked to look again"


def test_a_new_tool_in_a_folder_of_the_toolchain_makes_the_plugin_look_again(world: World) -> None:
    world.resolve()
    moment()
    (world.root / "bin" / "new-tool").write_bytes(b"")
    assert world.identities.rescan() == 1
    world.resolve()
    assert world.plugin.located == 2


def test_the_folders_of_a_toolchain_are_handed_to_the_watcher(tmp_path: Path) -> None:
    world = World(tmp_path / "cann")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    world.compiler.rename(elsewhere / "real-cc")
    world.compiler.symlink_to(elsewhere / "real-cc")
    world.plugin.changes = {"absent": (str(tmp_path / "earlier" / "cc"),)}
    world.resolve()
    folders = {str(world.root / "bin"), str(world.root / "lib"), str(elsewhere)}
    assert world.watched >= folders | {str(tmp_path / "earlier")}


def test_a_toolchain_that_lost_a_file_is_not_confirmed_again_after_it_was_not_found(
    world: World,
) -> None:
    before = world.resolve()
    kept = world.library.rename(world.root / "kept")
    world.identities.hint(str(world.library))
    for _ in range(2):
        with pytest.raises(ToolNotFoundError):
            world.resolve()
        assert world.confirmed() is None
    kept.rename(world.library)
    assert world.resolve().digest == before.digest


def test_a_hint_that_comes_while_the_plugin_looks_is_not_lost(world: World) -> None:
    world.resolve()

    world.meanwhile = lambda: world.identities.hint(str(world.library))
    replace_in_place(world.compiler)
    world.resolve()
    assert world.confirmed() is None, "it must be looked at once more"


# --- across restarts


@pytest.mark.usefixtures("quiet")
def test_after_a_restart_nothing_is_asked_and_no_large_file_is_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    world.restart()
    assert world.resolve().digest == before.digest
    assert world.asked == []
    assert world.plugin.located == 0
    assert world.contents.files_read == 1, "the small one"


@pytest.mark.usefixtures("quiet")
def test_facts_and_components_survive_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    world.restart()
    assert world.resolve() == before


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["bin/cc", "lib/libcc.so"])
def test_a_file_replaced_between_two_daemons_is_noticed(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    replace_in_place(tmp_path / name)
    world.restart()
    assert world.resolve().digest != before.digest
    assert world.plugin.located == 1


@pytest.mark.usefixtures("quiet")
def test_a_tool_that_appeared_between_two_daemons_makes_the_plugin_look(tmp_path: Path) -> None:
    world = World(tmp_path)
    earlier = tmp_path / "earlier"
    world.plugin.changes = {"absent": (str(earlier),)}
    world.resolve()
    world.restart()
    world.resolve()
    assert world.plugin.located == 0
    earlier.write_bytes(b"")
    world.restart()
    world.resolve()
    assert world.plugin.located == 1


def test_a_toolchain_too_fresh_to_be_trusted_is_located_again_after_a_restart(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.resolve()
    assert world.records.installations == {}
    world.restart()
    world.resolve()
    assert world.plugin.located == 1


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "damage", ["banner", "files", "absent", "directories", "facts", "local", "signatures"]
)
def test_a_damaged_record_is_as_good_as_none(damage: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.resolve()
    for value in (None, 7, "gone"):
        (record,) = world.records.installations.values()
        if value == "gone":
            del record[damage]
        else:
            record[damage] = value
        world.restart()
        assert world.resolve().digest == before.digest


@pytest.mark.usefixtures("quiet")
def test_a_record_is_of_its_plugin_version_flavour_variables_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.resolve()
    world.identities.resolve(world.plugin, "c++", ())
    world.identities.resolve(world.plugin, "", (("FAKE_X", "1"),))
    world.plugin.version = "2"
    world.resolve()
    monkeypatch.setattr("ptocache.identity.cpu_signature", lambda: "another processor")
    world.restart()
    world.resolve()
    assert len(world.records.installations) == 5


# --- what identifies


def test_variables_that_lead_to_two_toolchains_are_remembered_apart(world: World) -> None:
    one = world.identities.resolve(world.plugin, "", (("FAKEHOME", "/a"),))
    assert world.identities.confirmed(world.plugin, "", (("FAKEHOME", "/b"),)) is None
    two = world.identities.resolve(world.plugin, "", (("FAKEHOME", "/b"),))
    assert one.digest == two.digest, "the same files are the same toolchain"
    assert world.plugin.located == 2
    assert len(world.identities.known()) == 2


def test_the_variables_of_a_toolchain_are_those_of_its_search() -> None:
    env = {"FAKE_B": "2", "FAKEHOME": "/x", "FAKE_A": "1", "HOME": "/h", "FAKER": "no"}
    plugin = Plugin(Path("/nowhere"))
    assert variables_of(plugin, env) == (("FAKEHOME", "/x"),)


def digest_of(root: Path, *, relocatable: bool = False, **changes: Any) -> str:
    world = World(root)
    world.plugin.changes = changes
    identity = world.resolve()
    return identity_digest(world.plugin, identity.installation, identity.components, relocatable)


def test_the_same_files_in_another_place_are_the_same_only_if_relocatable(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "b"
    assert digest_of(here) != digest_of(there)
    assert digest_of(here, relocatable=True) == digest_of(there, relocatable=True)
    assert digest_of(here) == digest_of(here)


def test_the_setting_makes_identities_relocatable(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        world = World(tmp_path / name)
        world.options = Options(relocatable=True)
        world.restart()
        found.append(world.resolve().digest)
    assert found[0] == found[1]


def test_the_name_under_which_a_tool_is_invoked_is_part_of_the_identity(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "c++").symlink_to("cc")
    world = World(tmp_path)
    as_cc = world.resolve().digest
    other = (ToolFile("cc", str(tmp_path / "bin" / "c++"), True),
             ToolFile("lib", str(world.library), False))  # fmt: skip
    assert digest_of(tmp_path, files=other) != as_cc
    assert digest_of(tmp_path, files=other, relocatable=True) != digest_of(
        tmp_path, relocatable=True
    )


@pytest.mark.parametrize("relocatable", [False, True])
def test_facts_identify_and_banner_and_local_facts_do_not(
    relocatable: bool, tmp_path: Path
) -> None:
    plain = digest_of(tmp_path, relocatable=relocatable)
    assert digest_of(tmp_path, relocatable=relocatable, banner="other") == plain
    assert digest_of(tmp_path, relocatable=relocatable, local={"native": "zen"}) == plain
    assert digest_of(tmp_path, relocatable=relocatable, facts={"target": "other"}) != plain


def test_a_role_is_part_of_the_identity(tmp_path: Path) -> None:
    World(tmp_path)
    files = (ToolFile("cc", str(tmp_path / "bin/cc"), True),
             ToolFile("other", str(tmp_path / "lib/libcc.so"), False))  # fmt: skip
    assert digest_of(tmp_path, files=files) != digest_of(tmp_path)


# --- scripts


def test_a_script_is_not_identified_unless_it_is_trusted(world: World) -> None:
    world.compiler.write_bytes(b"#!/bin/sh\nexec cc\n")
    assert "is a script" in world.resolve().uncertain
    world.options = Options(trust_scripts=(str(world.compiler),))
    world.restart()
    assert world.resolve().uncertain == ""


def test_a_script_may_be_trusted_by_its_canonical_path(world: World) -> None:
    real = world.root / "real-cc"
    world.compiler.rename(real)
    real.write_bytes(b"#!/bin/sh\n")
    world.compiler.symlink_to(real)
    assert world.resolve().uncertain
    world.options = Options(trust_scripts=(str(real),))
    world.restart()
    assert world.resolve().uncertain == ""


def test_a_trusted_script_counts_by_its_content(world: World) -> None:
    world.compiler.write_bytes(b"#!/bin/sh\nexec one\n")
    world.options = Options(trust_scripts=(str(world.compiler),))
    world.restart()
    before = world.resolve()
    replace_in_place(world.compiler)
    assert world.confirmed() is None
    assert world.resolve().digest != before.digest


def test_what_the_plugin_is_not_sure_of_stays_uncertain(world: World) -> None:
    world.plugin.changes = {"uncertain": "two version files"}
    assert world.resolve().uncertain == "two version files"


# --- the processor

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model\t\t: 85
model name\t: Xeon
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse2{flags}
bogomips\t: 4000

processor\t: 1
vendor_id\t: GenuineIntel
"""


def test_a_processor_is_its_model_and_features_and_not_its_clock(tmp_path: Path) -> None:
    def of(**values: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(CPUINFO.format(**{"mhz": "2000", "flags": "", **values}))
        return cpu_signature(str(path))

    assert of() == of(mhz="3100.5")
    assert of() != of(flags=" avx2")
    assert len(of()) == 64


def test_a_machine_without_cpuinfo_has_a_signature_too(tmp_path: Path) -> None:
    assert len(cpu_signature(str(tmp_path / "none"))) == 64
    assert cpu_signature() == cpu_signature()


# --- whole trees


class TreeWorld(World):
    """A toolchain with a tree besides: ``include``, of which ``log`` does not belong to it."""

    def __init__(self, root: Path) -> None:
        self.header = root / "include" / "a.h"
        self.header.parent.mkdir(parents=True)
        self.header.write_bytes(b"1")
        self.watched_roots: set[str] = set()
        super().__init__(root)
        self.plugin.changes["trees"] = (Tree("tree:x", str(root / "include"), ("log",)),)

    def restart(self) -> None:
        super().restart()
        self.identities = Identities(
            self.contents, self.probe, self.records, self.options, self._found
        )

    def _found(self, directories: Iterable[str], roots: Iterable[str]) -> None:
        self.watched.update(directories)
        self.watched_roots.update(roots)

    def unmoved(self, identity: Identity) -> bool:
        return self.identities.unmoved(self.plugin, "", (), identity)


@pytest.fixture
def planted(tmp_path: Path, quiet: None) -> TreeWorld:
    return TreeWorld(tmp_path / "cann")


def test_a_tree_is_a_component_with_its_manifest(planted: TreeWorld) -> None:
    found = {item.role: item for item in planted.resolve().components}["tree:x"]
    assert found.canonical == str(planted.root / "include")
    assert found.digest.size == 1


@pytest.mark.parametrize("notice", ["hint", "rescan"])
def test_a_header_of_a_tree_replaced_in_place_is_noticed(notice: str, planted: TreeWorld) -> None:
    before = planted.resolve()
    replace_in_place(planted.header)
    assert planted.confirmed() is before
    if notice == "hint":
        planted.identities.hint(str(planted.header))
    else:
        assert planted.identities.rescan() == 1
    assert planted.confirmed() is None
    assert planted.resolve().digest != before.digest


def test_a_header_of_a_tree_replaced_in_place_is_noticed_after_a_compile(
    planted: TreeWorld,
) -> None:
    before = planted.resolve()
    replace_in_place(planted.header)
    assert not planted.unmoved(before)
    assert planted.confirmed() is None


def test_a_header_that_was_another_one_during_a_compile_is_noticed_after_it(
    planted: TreeWorld,
) -> None:
    """Its content is as it was, and what was compiled meanwhile may not be."""
    before = planted.resolve()
    moment()
    planted.header.write_bytes(b"2")
    planted.header.write_bytes(b"1")
    assert not planted.unmoved(before)
    again = planted.resolve()
    assert again.digest == before.digest
    assert planted.unmoved(again)


def test_a_link_that_led_elsewhere_during_a_compile_is_noticed_after_it(
    planted: TreeWorld, tmp_path: Path
) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to("cann")
    planted.plugin.root = latest
    before = planted.resolve()
    assert planted.unmoved(before)
    moment()
    latest.unlink()
    latest.symlink_to("cann")
    assert not planted.unmoved(before)


def test_a_tree_that_was_only_touched_keeps_its_identity_and_costs_no_doubt_later(
    planted: TreeWorld,
) -> None:
    before = planted.resolve()
    moment()
    os.utime(planted.header)
    planted.identities.hint(str(planted.header))
    assert planted.resolve() is before
    assert planted.unmoved(before)
    moment()
    os.utime(planted.header)
    assert planted.identities.rescan() == 0
    assert planted.unmoved(before)


def test_a_restart_reads_no_file_of_a_quiet_tree(planted: TreeWorld) -> None:
    before = planted.resolve()
    planted.restart()
    assert planted.resolve().digest == before.digest
    assert planted.identities.trees.files_read == 0
    assert planted.asked == []


def test_the_numbers_tell_of_files_read_and_of_doubt(planted: TreeWorld) -> None:
    planted.resolve()
    assert planted.identities.counts() == {"known": 1, "doubt": 0, "files_read": 3}
    planted.identities.hint(str(planted.header))
    assert planted.identities.counts() == {"known": 1, "doubt": 1, "files_read": 3}


def test_a_hint_counts_for_what_belongs_to_a_tree_only(planted: TreeWorld, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "log").mkdir(parents=True)
    (planted.root / "include" / "more").symlink_to(outside)
    identity = planted.resolve()
    for name in ("log/x", "log/deep/x", "deep/__pycache__/x.pyc"):
        planted.identities.hint(str(planted.root / "include" / name))
        assert planted.confirmed() is identity
    for path in (planted.root / "include" / "deep" / "new.h", outside / "log" / "x"):
        planted.identities.hint(str(path))
        assert planted.confirmed() is None
        assert planted.resolve() is identity


def test_what_does_not_belong_to_a_tree_is_not_watched(planted: TreeWorld, tmp_path: Path) -> None:
    include, outside = planted.root / "include", tmp_path / "outside"
    outside.mkdir()
    (include / "more").symlink_to(outside)
    planted.resolve()
    assert planted.watched_roots == {str(include), str(outside)}
    for name in ("log", "deep"):
        (include / name).mkdir()
    planted.watched_roots.clear()
    planted.identities.rescan()
    planted.resolve()
    assert planted.watched_roots == {str(include / "deep"), str(outside)}
    assert str(include) in planted.watched


def test_a_rescan_looks_once_at_a_tree_however_many_identities_have_it(
    planted: TreeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        planted.identities.resolve(planted.plugin, "", (("PATH", str(number)),))
    looks: list[Tree] = []
    real = manifest_module._walk

    def counted(tree: Tree) -> Any:
        looks.append(tree)
        return real(tree)

    monkeypatch.setattr(manifest_module, "_walk", counted)
    assert planted.identities.rescan() == 0
    assert len(looks) == 1


def test_a_tree_that_cannot_be_read_leaves_the_identity_uncertain(planted: TreeWorld) -> None:
    planted.plugin.changes["trees"] = (Tree("tree:x", str(planted.root / "nothing")),)
    identity = planted.resolve()
    assert identity.uncertain == (
        f"{planted.root}/nothing (tree:x) cannot be read: No such file or directory"
    )
    planted.root.joinpath("nothing").mkdir()
    planted.identities.rescan()
    assert planted.resolve().uncertain == ""


def test_the_same_tree_in_another_place_is_the_same_only_if_relocatable(tmp_path: Path) -> None:
    digests: dict[bool, set[str]] = {True: set(), False: set()}
    for name in ("one", "other"):
        for relocatable, found in digests.items():
            world = TreeWorld(tmp_path / f"{name}{relocatable}")
            world.options = Options(relocatable=relocatable)
            world.restart()
            found.add(world.resolve().digest)
    assert len(digests[True]) == 1
    assert len(digests[False]) == 2


# --- what is there and cannot be read


@pytest.mark.parametrize("principal", [True, False])
def test_a_file_that_cannot_be_read_leaves_the_identity_uncertain(
    principal: bool, world: World
) -> None:
    """A directory in its place is what a user who may read everything can make of it."""
    place = world.root / "version.info"
    place.mkdir()
    files = world.plugin.locate({}, world.probe, "").files
    world.plugin.changes["files"] = (*files, ToolFile("version.info", str(place), principal))
    identity = world.resolve()
    assert identity.uncertain == f"{place} (version.info) cannot be read"
    place.rmdir()
    place.write_text("Version=8.5.0")
    world.identities.rescan()
    assert world.resolve().uncertain == ""


@pytest.mark.usefixtures("quiet")
def test_a_file_that_changes_while_it_is_read_leaves_the_identity_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    real = world.contents.sha256

    def meanwhile(path: str) -> str:
        found = real(path)
        if path == str(world.compiler):
            replace_in_place(world.compiler)
        return found

    monkeypatch.setattr(world.contents, "sha256", meanwhile)
    assert world.resolve().uncertain == f"{world.compiler} (cc) changed while it was read"
    monkeypatch.undo()
    assert world.confirmed() is None


@pytest.mark.usefixtures("quiet")
def test_what_is_uncertain_is_looked_at_anew_by_the_next_daemon(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plugin.changes = {"uncertain": "version.info is empty"}
    assert world.resolve().uncertain
    world.plugin.changes = {}
    world.restart()
    assert world.resolve().uncertain == ""


@pytest.mark.usefixtures("quiet")
def test_what_a_tool_said_before_it_was_exchanged_is_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    exchanges = [lambda: replace_in_place(world.compiler)]

    def meanwhile() -> None:
        while exchanges:
            exchanges.pop()()

    world.meanwhile = meanwhile
    world.resolve()
    assert world.plugin.located == 2
    world.restart()
    world.resolve()
    assert world.plugin.located == 0


@pytest.mark.usefixtures("quiet")
def test_a_toolchain_that_is_exchanged_under_each_look_does_not_keep_the_request_for_ever(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.meanwhile = lambda: replace_in_place(world.compiler)
    world.resolve()
    assert world.plugin.located == 3


def test_who_stores_nothing_reads_nothing(planted: TreeWorld) -> None:
    planted.options = Options(read=False)
    planted.restart()
    identity = planted.resolve()
    assert identity.installation.path("cc") == str(planted.compiler)
    assert (identity.digest, identity.components, identity.uncertain) == ("", (), "")
    assert planted.identities.counts()["files_read"] == 0
    replace_in_place(planted.compiler)
    assert planted.confirmed() is None


@pytest.mark.usefixtures("quiet")
def test_a_file_that_could_not_be_read_for_a_moment_is_read_after_the_rescan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(world.contents, "sha256", lambda path: "")
        assert world.resolve().uncertain == f"{world.compiler} (cc) cannot be read"
    assert world.identities.rescan() == 1
    assert world.resolve().uncertain == ""
