"""A toolchain that is exchanged under a running daemon: what is stored says which one made it.

Every output of the simulated tools names what it was made by, so a wrong hit shows in its bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.errors import PtocacheWarning
from tests.harness import DaemonProcess, wait_for
from tests.simcann import KERNEL, PTO, SimCann, depends_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptocache.client import Client
    from ptocache.result import Result

    MakeDaemon = Callable[..., DaemonProcess]

NEVER = 3600
"""Seconds between re-scans: none comes within a test."""


@pytest.fixture
def cann(tmp_path: Path) -> SimCann:
    return SimCann.make(tmp_path / "cann", ptoas="bin")


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that neither events nor re-scans tell anything. One for all: each test has its own
    trees, and a tree's place is in every key."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("blind") / "store", watch=0, rescan=NEVER)
    yield daemon.start()
    daemon.clean_up()


@pytest.fixture
def client(blind: DaemonProcess) -> Iterator[Client]:
    with blind.client() as found:
        yield found


def kernel(client: Client, cann: SimCann, text: str = KERNEL, **how: object) -> Result:
    """A device executable, of bisheng and ld.lld."""
    env = how.pop("env", cann.env())
    return client.compile("ascendc", {"k.asc": text}, env=env, check=False, **how)  # type: ignore[arg-type]


def cpp(client: Client, cann: SimCann) -> Result:
    """The C++ that ptoas makes."""
    return client.compile("pto", {"k.pto": PTO}, env=cann.env(), outputs=["cpp"], check=False)


def bytes_of(result: Result) -> bytes:
    return bytes(next(iter(result.outputs.values())).buffer)


def made_by(result: Result, identity: str) -> bool:
    return f"identity={identity}" in depends_of(bytes_of(result))


def ended(result: Result) -> str:
    return result.outcome.label if result.outcome.label != "bypass" else result.reason.label


# --- replaced in place


@pytest.mark.kind("toolchain_upgrade_in_place")
@pytest.mark.parametrize("tool", ["bisheng", "ld.lld", "ptoas"])
def test_toolchain_upgrade_in_place_of_a_tool_is_noticed_at_once_and_hits_when_taken_back(
    tool: str, client: Client, cann: SimCann
) -> None:
    ask = cpp if tool == "ptoas" else kernel
    first = ask(client, cann)
    assert ended(ask(client, cann)) == "memory_hit"
    cann.replace_tool(tool, "B")
    second = ask(client, cann)
    assert ended(second) == "miss"
    assert made_by(second, "B")
    assert bytes_of(second) != bytes_of(first)
    cann.replace_tool(tool, "A")
    third = ask(client, cann)
    assert third.outcome.is_hit
    assert bytes_of(third) == bytes_of(first)


def test_a_multi_call_driver_replaced_in_place_is_noticed(client: Client, tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "multi", multicall=True)
    kernel(client, cann)
    cann.replace_tool("bisheng", "B")
    again = kernel(client, cann)
    assert ended(again) == "miss"
    assert made_by(again, "B")


def test_a_version_file_replaced_in_place_is_noticed_by_the_next_request(
    client: Client, cann: SimCann
) -> None:
    kernel(client, cann)
    for text, outcomes in (("8.5.1", {"miss"}), ("8.5.0", {"memory_hit", "disk_hit"})):
        for path in cann.version_files():
            before = path.stat()
            path.write_text(path.read_text().replace("8.5.0", text).replace("8.5.1", text))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))
            assert path.stat().st_size == before.st_size
        assert ended(kernel(client, cann)) in outcomes


@pytest.mark.parametrize(
    "settings", [{"rescan": NEVER}, {"watch": 0, "rescan": "0.05"}], ids=["event", "rescan"]
)
def test_a_library_replaced_in_place_is_noticed_soon(
    settings: dict[str, object], make_daemon: MakeDaemon, cann: SimCann
) -> None:
    daemon = make_daemon(**settings).start()
    with daemon.client() as client:
        first = kernel(client, cann)
        assert kernel(client, cann).outcome.is_hit
        cann.replace_library("runtime", "B")
        # One that is noticed before the compile ends is answered, and stored by the one after it.
        wait_for(lambda: not kernel(client, cann).outcome.is_hit, "the library to be noticed")
        wait_for(lambda: kernel(client, cann).outcome.is_hit, "an entry of the new library")
        assert kernel(client, cann).key != first.key


def test_a_library_that_nobody_told_of_is_noticed_after_a_compile(
    client: Client, cann: SimCann
) -> None:
    first = kernel(client, cann)
    cann.replace_library("runtime", "B")
    other = KERNEL.replace("gemm", "other")
    assert ended(kernel(client, cann, other)) == "toolchain_changed"
    assert ended(kernel(client, cann, other)) == "miss"
    again = kernel(client, cann)
    assert ended(again) == "miss"
    assert again.key != first.key
    cann.replace_library("runtime", "A")
    assert ended(kernel(client, cann, KERNEL.replace("gemm", "third"))) == "toolchain_changed"
    assert kernel(client, cann).outcome.is_hit
    assert kernel(client, cann).key == first.key


# --- links and renames


def linked(cann: SimCann, link: Path) -> dict[str, str]:
    """The environment of an installation that is named by a link."""
    return {"ASCEND_HOME_PATH": str(link), "PATH": "/usr/bin:/bin"}


def turn(link: Path, target: Path) -> None:
    """As an administrator does: a new link, renamed over the old one."""
    draft = link.with_name("draft")
    draft.symlink_to(target)
    draft.rename(link)


@pytest.fixture
def pair(cann: SimCann, tmp_path: Path) -> tuple[SimCann, SimCann, Path]:
    """A, B and a link ``latest`` to A; both log to one place."""
    other = SimCann.make(
        tmp_path / "other", identity="B", version="9.0.0", log=cann.log, knobs=cann.knobs
    )
    latest = tmp_path / "latest"
    latest.symlink_to(cann.root)
    return cann, other, latest


def test_a_link_from_one_tree_to_another_and_back_never_gives_the_bytes_of_the_wrong_one(
    client: Client, pair: tuple[SimCann, SimCann, Path]
) -> None:
    one, other, latest = pair
    outcomes = []
    for tree, identity in ((one, "A"), (other, "B"), (one, "A"), (other, "B")):
        turn(latest, tree.root)
        result = kernel(client, one, env=linked(one, latest))
        assert made_by(result, identity)
        outcomes.append(result.outcome.is_hit)
    assert outcomes == [False, False, True, True]


@pytest.mark.kind("toolchain_upgrade_in_place")
def test_toolchain_upgrade_in_place_by_a_variable_or_a_link_never_gives_the_bytes_of_the_other(
    client: Client, pair: tuple[SimCann, SimCann, Path]
) -> None:
    one, other, latest = pair
    asked = []
    for tree, identity in ((one, "A"), (other, "B"), (one, "A")):
        result = kernel(client, tree, env=linked(tree, tree.root))
        assert made_by(result, identity)
        asked.append(ended(result))
    assert asked == ["miss", "miss", "memory_hit"]
    runs = len(one.runs())
    for tree, identity in ((one, "A"), (other, "B"), (one, "A")):
        turn(latest, tree.root)
        result = kernel(client, tree, env=linked(tree, latest))
        assert result.outcome.is_hit
        assert made_by(result, identity)
    assert len(one.runs()) == runs


def test_a_link_that_is_turned_to_and_fro_during_a_compile_makes_no_entry(
    client: Client, pair: tuple[SimCann, SimCann, Path]
) -> None:
    one, other, latest = pair
    during(one, lambda: kernel(client, one, env=linked(one, latest)), "toolchain_changed", (
        lambda: turn(latest, other.root), lambda: turn(latest, one.root),
    ))  # fmt: skip
    again = kernel(client, one, env=linked(one, latest))
    assert ended(again) == "miss"
    assert made_by(again, "A")


def test_a_tree_that_is_renamed_with_its_link_goes_on_working(
    client: Client, pair: tuple[SimCann, SimCann, Path], tmp_path: Path
) -> None:
    one, _, latest = pair
    first = kernel(client, one, env=linked(one, latest))
    one.root.rename(tmp_path / "moved")
    turn(latest, tmp_path / "moved")
    again = kernel(client, one, env=linked(one, latest))
    assert ended(again) == "miss"
    assert again.key != first.key
    assert kernel(client, one, env=linked(one, latest)).outcome.is_hit


@pytest.mark.kind("toolchain_memoised")
def test_toolchain_memoised_behind_a_shim_that_never_changes_is_that_of_its_latest_target(
    client: Client, cann: SimCann, tmp_path: Path
) -> None:
    """What the shim starts is named in a file that nobody knows of."""
    other = SimCann.make(tmp_path / "other", identity="B", ptoas="bin")
    shim, named = tmp_path / "shims" / "ptoas", tmp_path / "which"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "$(cat {named})" "$@"\n')
    shim.chmod(0o755)
    stamps = shim.stat()

    def ask(tree: SimCann) -> Result:
        named.write_text(f"{tree.ptoas}")
        return client.compile(
            "pto", {"k.pto": PTO}, env={"PATH": str(shim.parent)}, outputs=["cpp"], check=False
        )

    with pytest.warns(PtocacheWarning, match="ptocache stores nothing") as warned:
        results = [ask(tree) for tree in (cann, other, cann)]
    assert len(warned) == 1
    for result, identity in zip(results, "ABA", strict=True):
        assert ended(result) == "unidentified_toolchain"
        assert str(shim) in result.why
        assert made_by(result, identity)
    assert shim.stat()[:] == stamps[:]


# --- while a compile runs


@contextlib.contextmanager
def held(cann: SimCann, compile_it: Callable[[], Result]) -> Iterator[Future[Result]]:
    """A compile whose bisheng has started, and goes on when the block ends; it has ended then."""
    cann.knob("bisheng.hold")
    cann.clear_log()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(compile_it)
        try:
            wait_for(lambda: cann.runs("bisheng"), "bisheng to start")
            yield running
        finally:
            cann.unknob("bisheng.hold")


def during(
    cann: SimCann,
    compile_it: Callable[[], Result],
    how: str,
    changes: tuple[Callable[[], object], ...],
) -> Result:
    """Make the changes while bisheng works; it must end as ``how`` says."""
    with held(cann, compile_it) as running:
        for change in changes:
            change()
    result = running.result()
    assert ended(result) == how
    assert result.outputs
    return result


CHANGES: dict[str, Callable[[SimCann], object]] = {
    "linker": lambda cann: cann.replace_tool("ld.lld", "B"),
    "library": lambda cann: cann.replace_library("c_sec", "B"),
    "version.info": lambda cann: cann.set_version("9.0.0"),
    "header": lambda cann: (cann.root / "include" / "new.h").touch(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_upgrade_in_the_middle_of_a_compile_makes_no_entry(
    change: Callable[[SimCann], object], client: Client, cann: SimCann
) -> None:
    during(cann, lambda: kernel(client, cann), "toolchain_changed", (lambda: change(cann),))
    assert ended(kernel(client, cann)) == "miss"
    assert kernel(client, cann).outcome.is_hit


def test_a_failure_of_a_toolchain_that_came_meanwhile_is_not_remembered(
    client: Client, cann: SimCann
) -> None:
    kernel(client, cann, KERNEL.replace("gemm", "earlier"))
    with held(cann, lambda: kernel(client, cann)) as running:
        cann.replace_tool("ld.lld", "B")
        cann.knob("ld.lld.exit", 1)
    assert running.result().reason.label == "compile_failed"
    cann.unknob()
    cann.replace_tool("ld.lld", "A")
    assert ended(kernel(client, cann)) == "miss"


def test_a_library_exchanged_and_restored_in_the_middle_of_a_compile_makes_no_entry(
    client: Client, cann: SimCann
) -> None:
    kernel(client, cann, KERNEL.replace("gemm", "earlier"))
    during(cann, lambda: kernel(client, cann), "toolchain_changed", (
        lambda: cann.replace_library("runtime", "B"), lambda: cann.replace_library("runtime", "A"),
    ))  # fmt: skip
    assert ended(kernel(client, cann)) == "miss"


# --- what must not count


def test_what_a_run_writes_and_what_is_only_touched_makes_no_miss(
    client: Client, cann: SimCann
) -> None:
    kernel(client, cann)
    for name in ("log/plog.txt", "opp/built-in/x.json", "var/lock", "include/__pycache__/a.pyc"):
        place = cann.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("1")
    for path in cann.root.rglob("*.h"):
        os.utime(path)
    for path in (cann.tool("bisheng"), cann.root / "version.info"):
        os.utime(path)
    assert kernel(client, cann).outcome.is_hit


def test_a_new_header_of_the_tree_counts(client: Client, cann: SimCann) -> None:
    first = kernel(client, cann)
    (cann.root / "include" / "new.h").touch()
    kernel(client, cann, KERNEL.replace("gemm", "other"))
    assert kernel(client, cann).key != first.key


# --- relocatable


@pytest.mark.parametrize("relocatable", [1, 0])
def test_the_same_tree_at_another_prefix_hits_only_if_relocatable(
    relocatable: int, make_daemon: MakeDaemon, cann: SimCann, tmp_path: Path
) -> None:
    shutil.copytree(cann.root, tmp_path / "copy" / "cann", symlinks=True)
    daemon = make_daemon(relocatable=relocatable).start()
    with daemon.client() as client:
        found = []
        for root in (cann.root, tmp_path / "copy" / "cann"):
            result = kernel(
                client, cann, env={"ASCEND_HOME_PATH": str(root), "PATH": "/usr/bin:/bin"},
                options=[f"-I{root}/include", f"-I{root}"],
            )  # fmt: skip
            found.append(result.outcome.is_hit)
    assert found == [False, bool(relocatable)]
