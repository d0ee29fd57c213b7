"""``ptocache demo`` keeps what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptocache_cli.demo import Step, text
from ptocache_cli.demo_run import Run
from tests.harness import DaemonProcess, Gate, LoggingCompiler, wait_for
from tests.system.cli_runner import finish, ptocache, start

HITS = ("memory_hit", "disk_hit", "remote_hit")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demonstration puts its temporary things: short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="ptd-", dir="/tmp") as place:
        yield Path(place)


def processes_of(place: Path) -> list[int]:
    """Processes that know the directory by their environment or command line."""
    needle = os.fsencode(place)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_demonstration(scratch: Path, daemon: DaemonProcess, tmp_path: Path) -> None:
    env = {**daemon.env, "TMPDIR": str(scratch)}
    kept = tmp_path / "kept"
    done = ptocache("demo", "--json", "--dir", str(kept), env=env)
    assert (done.code, done.err) == (0, "")
    found = done.json()
    assert set(found) >= {"kernels", "cold_s", "warm_s", "warm_hits", "wrong_results"}
    assert found["kernels"] >= 24
    assert found["warm_hits"] == found["kernels"]
    assert found["wrong_results"] == 0
    assert found["cold_s"] > 0
    assert found["warm_s"] > 0

    def outcomes(number: int) -> tuple[int, int]:
        counts = found["steps"][number]["outcomes"]
        hits = sum(counts[name] for name in HITS)
        assert hits + counts["miss"] == sum(counts.values())
        return hits, counts["miss"]

    assert [step["name"] for step in found["steps"]] == [
        "cold", "warm, in a fresh process", "header touched", "header edited", "header restored",
    ]  # fmt: skip
    assert [outcomes(number) for number in range(5)] == [
        (0, 24),
        (24, 0),
        (24, 0),
        (4, 20),
        (24, 0),
    ]
    # The user's own cache, and the machine, are as they were.
    assert daemon.stats()["requests"] == 0
    assert list(scratch.iterdir()) == []
    wait_for(lambda: processes_of(scratch) == [], "every process to end")
    # The store was to be kept.
    stats = ptocache("stats", "--json", "--dir", str(kept)).json()
    assert stats["daemon"] is None
    assert stats["store"]["entries"] == 44
    assert stats["caches"]["binary"]["requests"] == 120
    # And the same for people.
    steps = [Step(step.pop("name"), Run(**step)) for step in found["steps"]]
    told = text(steps, found)
    assert "24 kernels, -O3" in told
    assert "All 120 artifacts were loaded, run and found right." in told
    assert f"ptocache stats --dir {kept}" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_demonstration_that_is_ended_takes_everything_along(
    number: signal.Signals, scratch: Path, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "cc", before=gate.script)
    trusted = {**compiler.env, "PTOCACHE_TRUST_SCRIPTS": compiler.trust}
    process = start("demo", env={"TMPDIR": str(scratch), **trusted})
    try:
        wait_for(gate.arrivals, "the first compile")
        assert list(scratch.glob("ptocache-demo-*/store/index.sqlite"))
        assert len(processes_of(scratch)) > 1
    finally:
        process.send_signal(number)
        done = finish(process)
    assert (done.code, done.out) == (128 + number, "")
    assert list(scratch.iterdir()) == []
    # Who was killed may take a moment to die.
    wait_for(lambda: processes_of(scratch) == [], "every process to end")


def test_a_store_that_is_served_already_is_exit_code_5(
    scratch: Path, daemon: DaemonProcess
) -> None:
    done = ptocache("demo", "--dir", str(daemon.root), env={"TMPDIR": str(scratch)})
    assert (done.code, done.out) == (5, "")
    assert "already serves" in done.err
    assert list(scratch.iterdir()) == []


def test_without_a_compiler_it_is_exit_code_1(scratch: Path) -> None:
    done = ptocache("demo", "--json", env={"TMPDIR": str(scratch), "PATH": str(scratch)})
    assert (done.code, done.out) == (1, "")
    assert "no C compiler was found" in done.err
    assert list(scratch.iterdir()) == []
