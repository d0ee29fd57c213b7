"""Storms: many processes at a barrier ask for one cold key, or each for its own."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.client import Client
from ptocache.kernel import Lease
from ptocache.result import Result
from tests.faults.peers import Forked, own_faults
from tests.harness import DaemonProcess, Gate, LoggingCompiler, wait_for
from tests.simcann import KERNEL, SimCann

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeDaemon = Callable[..., DaemonProcess]

RANKS = 64
WARM = 24
MATERIAL = {"source": "kernel gemm", "block": "128x64"}


def told(result: Result) -> dict[str, str]:
    """A result as a process tells it: how it ended, and what it got."""
    digests = [hashlib.sha256(item.buffer).hexdigest() for item in result.outputs.values()]
    return {"outcome": result.outcome.label, "bytes": ",".join(digests), "key": result.key}


def wait_until(daemon: DaemonProcess, field: str, count: int) -> None:
    with daemon.client() as client:
        wait_for(lambda: client.call("status")[field] >= count, f"{count} to be {field}")


@pytest.mark.kind("compile_storm")
def test_compile_storm_of_sixty_four_processes_on_one_cold_key_runs_each_tool_once(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann")
    cann.knob("bisheng.hold")
    daemon = make_daemon().start()

    def compile_it(_: int) -> dict[str, str]:
        with daemon.client() as client:
            return told(client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env()))

    asking = Forked(RANKS, compile_it).go()
    wait_until(daemon, "waiting", RANKS)
    cann.unknob("bisheng.hold")
    found = asking.results()
    assert [run.tool for run in cann.runs()] == ["bisheng", "ld.lld"]
    assert Counter(item["outcome"] for item in found) == {"miss": 1, "joined": RANKS - 1}
    assert len({(item["bytes"], item["key"]) for item in found}) == 1
    stats = daemon.stats()
    assert (stats["requests"], stats["miss"]) == (RANKS, 1)
    with daemon.client() as client:
        wait_for(lambda: client.call("status")["compiling"] == 0, "the compile to be over")
    assert own_faults(daemon) == []


@pytest.mark.kind("compile_storm")
def test_compile_storm_of_sixty_four_processes_on_one_cold_kernel_gets_one_lease(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    built = tmp_path / "built"
    files = {"kernel.so": b"host side", "k.bin": b"x" * 300_000}

    def build() -> dict[str, bytes]:
        with open(built, "a", encoding="ascii") as log:
            log.write(f"{os.getpid()}\n")
        # Until all the others wait for this very build.
        wait_until(daemon, "waiting", RANKS)
        return files

    def ask(_: int) -> dict[str, str]:
        with daemon.client() as client:
            return told(client.kernel_or_build("host", MATERIAL, build))

    found = Forked(RANKS, ask).go().results()
    assert len(built.read_text().splitlines()) == 1
    assert Counter(item["outcome"] for item in found) == {"miss": 1, "joined": RANKS - 1}
    wanted = ",".join(hashlib.sha256(data).hexdigest() for data in files.values())
    assert {item["bytes"] for item in found} == {wanted}
    assert own_faults(daemon) == []


def test_each_holder_of_a_storm_that_dies_passes_the_lease_on(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    count = 12
    daemon = make_daemon().start()
    built = tmp_path / "built"

    def build() -> dict[str, bytes]:
        with open(built, "a", encoding="ascii") as log:
            log.write(f"{os.getpid()}\n")
        died = len(built.read_text().splitlines()) - 1
        wait_until(daemon, "waiting", count - died)
        if died < count - 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"k": b"the last but one"}

    def ask(_: int) -> dict[str, str]:
        with daemon.client() as client:
            return told(client.kernel_or_build("host", MATERIAL, build))

    found = Forked(count, ask).go().results()
    left = [item for item in found if item is not None]
    assert sorted(item["outcome"] for item in left) == ["joined", "miss"]
    assert len({item["bytes"] for item in left}) == 1
    assert len(set(built.read_text().splitlines())) == count - 1
    with daemon.client() as client:
        stats = client.stats()["caches"]["kernel"]
    assert stats["failure_reasons"] == {"cancelled": count - 2}
    assert stats["requests"] == count


@pytest.mark.kind("compile_storm")
def test_compile_storm_of_sixteen_processes_on_sixteen_keys_runs_side_by_side_up_to_jobs(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    gate, spans = Gate(tmp_path / "gate"), tmp_path / "spans"
    only_compiles = 'case " $* " in *" -c "*" -o "*) %s ;; esac'
    logging_compiler.write(
        before=only_compiles % f'echo begin >> "{spans}"' + "\n" + gate.script,
        after=only_compiles % f'echo end >> "{spans}"',
    )
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=4).start()

    def ask(number: int) -> dict[str, str]:
        with daemon.client() as client:
            source = f"int n{number};\n"
            return told(
                client.compile(
                    "host", {"k.c": source}, env=logging_compiler.env, outputs=["object"]
                )
            )

    asking = Forked(16, ask).go()
    wait_until(daemon, "waiting", 16)
    wait_for(lambda: len(gate.arrivals()) == 4, "every slot to be taken")
    gate.open()
    found = asking.results()
    assert [item["outcome"] for item in found] == ["miss"] * 16
    assert len({item["bytes"] for item in found}) == 16
    running = most = 0
    for line in spans.read_text().splitlines():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert most == 4
    assert len(logging_compiler.compiles()) == 16


@pytest.mark.parametrize("way", ["compile", "kernel"])
def test_storm_on_a_warm_key_starts_nothing(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, way: str
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()

    def ask(client: Client) -> Any:
        if way == "kernel":
            return client.kernel("host", MATERIAL, env=logging_compiler.env)
        return client.compile(
            "host", {"k.c": "int k;\n"}, env=logging_compiler.env, outputs=["object"]
        )

    with daemon.client() as client:
        first = ask(client)
        if isinstance(first, Lease):
            first = first.put({"k": b"built"})
    before = logging_compiler.starts()

    def again(_: int) -> dict[str, str]:
        with daemon.client() as own:
            return told(ask(own))

    found = Forked(WARM, again).go().results()
    assert {item["outcome"] for item in found} == {"memory_hit"}
    assert {item["bytes"] for item in found} == {told(first)["bytes"]}
    assert logging_compiler.starts() == before
