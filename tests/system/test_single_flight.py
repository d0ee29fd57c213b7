"""One compile per key, whoever asks and however many, and nobody waits for a dead owner."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ptocache.client import Client
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from tests.harness import (
    DEADLINE_S,
    ClientProcess,
    DaemonProcess,
    Gate,
    LoggingCompiler,
    alive,
    at_once,
    compile_directly,
    daemons_of,
    stray,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = "int answer(void) { return 42; }\n"
HITS = (Outcome.MEMORY_HIT, Outcome.DISK_HIT)
HOLD_A_CLIENT = """
import json, signal, sys
from ptocache.client import connect
# A shell may have started the tests with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
connect().compile("host", {"k.c": sys.argv[1]}, outputs=["object"], env=json.loads(sys.argv[2]))
"""


@pytest.fixture
def held(make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate) -> DaemonProcess:
    """A daemon whose compiles stay at the gate, and that has room for two of them."""
    logging_compiler.write(before=gate.script)
    return make_daemon(trust_scripts=logging_compiler.trust, jobs=2).start()


class Asking(threading.Thread):
    """A compile in a thread of its own."""

    def __init__(self, client: Client, source: str, **request: object) -> None:
        super().__init__()
        self._work = (client, source, request)
        self.found: Result | None = None
        self.start()

    def run(self) -> None:
        client, source, request = self._work
        self.found = client.compile("host", {"k.c": source}, check=False, **request)  # type: ignore[arg-type]

    def result(self) -> Result:
        self.join(DEADLINE_S)
        assert self.found is not None
        return self.found


def ask(client: Client, compiler: LoggingCompiler, source: str = SOURCE, **more: object) -> Asking:
    return Asking(client, source, **{"env": compiler.env, "outputs": ["object"], **more})


def waiting(daemon: DaemonProcess, count: int) -> None:
    """Wait until that many requests lead a compile or wait for one."""
    with daemon.client() as client:
        wait_for(
            lambda: client.call("status")["waiting"] == count,
            f"{count} requests in flight",
        )


# --- joining


def test_equal_requests_of_many_threads_run_one_compile(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    with held.client() as client:
        asked = [ask(client, logging_compiler) for _ in range(24)]
        waiting(held, 24)
        gate.open()
        results = [item.result() for item in asked]
    assert len(logging_compiler.compiles()) == 1
    assert Counter(item.outcome for item in results) == {Outcome.MISS: 1, Outcome.JOINED: 23}
    assert len({bytes(item.outputs["object"].buffer) for item in results}) == 1
    stats = held.stats()
    assert (stats["requests"], stats["miss"], stats["joined"]) == (24, 1, 23)


def test_equal_requests_of_many_processes_run_one_compile(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    clients = [
        ClientProcess(SOURCE, held.env, logging_compiler.env, outputs=["object"]) for _ in range(24)
    ]

    def open_when_all_wait() -> None:
        waiting(held, 24)
        gate.open()

    opener = threading.Thread(target=open_when_all_wait)
    opener.start()
    results = at_once(clients)
    opener.join(DEADLINE_S)
    assert len(logging_compiler.compiles()) == 1
    assert Counter(item["outcome"] for item in results) == {"miss": 1, "joined": 23}
    direct = compile_directly(SOURCE.encode(), "k.c", [], tmp_path / "direct")
    digest = hashlib.sha256(direct).hexdigest()
    assert all(item["outputs"] == {"object": digest} for item in results)
    assert len({item["pid"] for item in results}) == 24


def test_requests_that_came_while_others_waited_are_hits_afterwards(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    gate.open()
    with held.client() as client:
        ask(client, logging_compiler).result()
        again = [ask(client, logging_compiler) for _ in range(8)]
        assert {item.result().outcome for item in again} == {Outcome.MEMORY_HIT}
    assert len(logging_compiler.compiles()) == 1


@pytest.mark.parametrize("jobs", [1, 3])
def test_different_keys_compile_at_once_up_to_jobs_and_never_more(
    make_daemon: MakeDaemon,
    logging_compiler: LoggingCompiler,
    gate: Gate,
    tmp_path: Path,
    jobs: int,
) -> None:
    spans = tmp_path / "spans"
    only_compiles = 'case " $* " in *" -c "*" -o "*) %s ;; esac'
    logging_compiler.write(
        before=only_compiles % f'echo begin >> "{spans}"' + "\n" + gate.script,
        after=only_compiles % f'echo end >> "{spans}"',
    )
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=jobs).start()
    with daemon.client() as client:
        asked = [ask(client, logging_compiler, f"int n{n};\n") for n in range(7)]
        waiting(daemon, 7)
        wait_for(lambda: len(gate.arrivals()) == jobs, "every slot to be taken")
        gate.open()
        assert {item.result().outcome for item in asked} == {Outcome.MISS}
    running = most = 0
    for line in spans.read_text().splitlines():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert most == jobs
    assert len(logging_compiler.compiles()) == 7


# --- who gives up


def hold_a_client(daemon: DaemonProcess, compiler: LoggingCompiler) -> subprocess.Popen[bytes]:
    """A process that asks and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD_A_CLIENT, SOURCE, json.dumps(compiler.env)],
        env=daemon.env, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def interrupt(client: subprocess.Popen[bytes]) -> None:
    """What Ctrl-C does; it has ended then."""
    client.send_signal(signal.SIGINT)
    assert client.wait(DEADLINE_S) != 0


@pytest.mark.kind("orphan_compilers")
def test_orphan_compilers_run_on_for_who_still_waits_when_one_client_is_interrupted(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    leader = hold_a_client(held, logging_compiler)
    wait_for(gate.arrivals, "the compile to begin")
    with held.client() as client:
        asked = [ask(client, logging_compiler) for _ in range(3)]
        waiting(held, 4)
        interrupt(leader)
        waiting(held, 3)
        gate.open()
        results = [item.result() for item in asked]
    assert {item.outcome for item in results} == {Outcome.JOINED}
    assert len({bytes(item.outputs["object"].buffer) for item in results}) == 1
    assert len(logging_compiler.compiles()) == 1
    stats = held.stats()
    assert stats["failure_reasons"] == {"cancelled": 1}
    assert stats["requests"] == 4


def test_a_waiter_that_was_killed_takes_nothing_from_the_others(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    with held.client() as client:
        first = ask(client, logging_compiler)
        wait_for(gate.arrivals, "the compile to begin")
        waiter = hold_a_client(held, logging_compiler)
        waiting(held, 2)
        waiter.kill()
        waiter.wait()
        waiting(held, 1)
        gate.open()
        assert first.result().outcome is Outcome.MISS
    assert len(logging_compiler.compiles()) == 1


@pytest.mark.kind("orphan_compilers")
def test_orphan_compilers_end_with_all_their_children_when_the_only_client_is_interrupted(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    strayed = tmp_path / "strayed"
    logging_compiler.write(before=f"{stray(strayed)}\n{gate.script}")
    only = hold_a_client(held, logging_compiler)
    wait_for(gate.arrivals, "the compile to begin")
    tree = [*gate.arrivals(), int(strayed.read_text())]
    assert all(map(alive, tree))
    interrupt(only)
    wait_for(lambda: not any(map(alive, tree)), "the tool and its child to end")
    wait_for(lambda: not os.listdir(held.root / "tmp"), "its directory to be removed")
    gate.open()
    with held.client() as client:
        again = ask(client, logging_compiler).result()
    assert again.outcome is Outcome.MISS
    assert held.stats()["failure_reasons"] == {"cancelled": 1}


def test_client_that_goes_while_its_compile_waits_for_a_slot_starts_no_tool(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=1).start()
    with daemon.client() as client:
        first = ask(client, logging_compiler, "int other;\n")
        wait_for(gate.arrivals, "the only slot to be taken")
        second = hold_a_client(daemon, logging_compiler)
        waiting(daemon, 2)
        second.kill()
        second.wait()
        waiting(daemon, 1)
        gate.open()
        assert first.result().outcome is Outcome.MISS
        third = ask(client, logging_compiler, "int third;\n").result()
        assert third.outcome is Outcome.MISS
    assert len(logging_compiler.compiles()) == 2


# --- who owned it was killed


@pytest.fixture
def by_itself(held: DaemonProcess) -> Iterator[dict[str, str]]:
    """The environment of clients that start a daemon of their own if there is none any more."""
    yield {**held.env, "PTOCACHE_AUTOSTART": "1"}
    for pid in daemons_of(held.root):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not daemons_of(held.root), "a daemon that a client started to end")


@pytest.mark.kind("lock_left_by_killed_process")
@pytest.mark.parametrize("owner", ["client", "tool", "daemon"])
def test_lock_left_by_killed_process_holds_up_nobody_who_asks_next(
    held: DaemonProcess,
    by_itself: dict[str, str],
    logging_compiler: LoggingCompiler,
    gate: Gate,
    tmp_path: Path,
    owner: str,
) -> None:
    first, following = (
        ClientProcess(SOURCE, by_itself, logging_compiler.env, outputs=["object"]) for _ in "ab"
    )
    try:
        first.ready().go()
        wait_for(gate.arrivals, "the compile to begin")
        (tool,) = gate.arrivals()
        if owner == "client":
            first.kill()
        elif owner == "tool":
            os.kill(tool, signal.SIGKILL)
            assert first.result()["reason"] == "step_killed"
        else:
            # Its client is not to compile by itself before the other asks.
            first.kill()
            held.kill()
        wait_for(lambda: not alive(tool), "the tool to end")
        gate.open()
        (found,) = at_once([following])
    finally:
        first.kill()
        following.kill()
    assert (found["outcome"], found["warnings"]) == ("miss", [])
    direct = compile_directly(SOURCE.encode(), "k.c", [], tmp_path / "direct")
    assert found["outputs"] == {"object": hashlib.sha256(direct).hexdigest()}


# --- failures


def test_failing_compile_runs_once_for_all_and_is_remembered(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    source = "int broken(void) { return nothing; }\n"
    with held.client() as client:
        asked = [ask(client, logging_compiler, source) for _ in range(6)]
        waiting(held, 6)
        gate.open()
        results = [item.result() for item in asked]
        later = ask(client, logging_compiler, source).result()
    assert len(logging_compiler.compiles()) == 1
    assert {item.outcome for item in results} == {Outcome.FAILURE}
    assert {item.reason for item in results} == {Reason.COMPILE_FAILED}
    assert len({item.log.stderr for item in results}) == 1
    assert b"nothing" in results[0].log.stderr
    assert later.reason is Reason.REMEMBERED_FAILURE
    assert later.log == results[0].log
    assert later.exit_code == results[0].exit_code == 1


def test_rejected_output_is_answered_to_all_and_not_remembered(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    with held.client() as client:
        asked = [ask(client, logging_compiler, symbols=["missing"]) for _ in range(4)]
        waiting(held, 4)
        gate.open()
        results = [item.result() for item in asked]
        assert {item.reason for item in results} == {Reason.OUTPUT_REJECTED}
        assert len(logging_compiler.compiles()) == 1
        again = ask(client, logging_compiler, symbols=["missing"]).result()
    assert again.reason is Reason.OUTPUT_REJECTED
    assert len(logging_compiler.compiles()) == 2
    assert held.stats()["rejected"] == 2


# --- what changes meanwhile

INCLUDES = '#include "h.h"\nint answer(void) { return VALUE; }\n'


def expected(tmp_path: Path, value: int) -> bytes:
    folder = tmp_path / f"direct-{value}"
    folder.mkdir(exist_ok=True)
    (folder / "h.h").write_text(f"#define VALUE {value}\n")
    return compile_directly(INCLUDES.encode(), "k.c", [], folder)


def bytes_of(result: Result) -> bytes:
    return bytes(result.outputs["object"].buffer)


def test_who_asks_after_a_header_changed_gets_the_new_bytes_from_no_old_run(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    source_dir = tmp_path / "src"
    source_dir.mkdir()
    header = source_dir / "h.h"
    header.write_text("#define VALUE 1\n")
    # The compiler has read the old header, and only then comes to the gate.
    logging_compiler.write(after=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=2).start()
    with daemon.client() as client:
        old = ask(client, logging_compiler, INCLUDES, source_dir=str(source_dir))
        wait_for(gate.arrivals, "the compile to be done")
        header.write_text("#define VALUE 2\n")
        new = [ask(client, logging_compiler, INCLUDES, source_dir=str(source_dir)) for _ in "abc"]
        waiting(daemon, 4)
        gate.open()
        first = old.result()
        later = [item.result() for item in new]
    wanted = expected(tmp_path, 2)
    assert [bytes_of(item) for item in later] == [wanted] * 3
    assert first.outcome is Outcome.BYPASS
    assert first.reason is Reason.INPUT_CHANGED
    assert len(logging_compiler.compiles()) == 2
    # A hit on disk: published between a look into memory and a look at the disk.
    assert {item.outcome for item in later} <= {Outcome.MISS, Outcome.JOINED, *HITS}


def test_header_that_changes_before_the_compiler_reads_it_gives_everybody_the_new_bytes(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    source_dir = tmp_path / "src"
    source_dir.mkdir()
    header = source_dir / "h.h"
    header.write_text("#define VALUE 1\n")
    with held.client() as client:
        asked = [ask(client, logging_compiler, INCLUDES, source_dir=str(source_dir)) for _ in "abc"]
        waiting(held, 3)
        wait_for(gate.arrivals, "the compile to begin")
        header.write_text("#define VALUE 2\n")
        gate.open()
        results = [item.result() for item in asked]
        wanted = expected(tmp_path, 2)
        assert [bytes_of(item) for item in results] == [wanted] * 3
        header.write_text("#define VALUE 1\n")
        back = ask(client, logging_compiler, INCLUDES, source_dir=str(source_dir)).result()
    assert bytes_of(back) == expected(tmp_path, 1)


def test_equal_sources_beside_different_headers_do_not_share_a_run(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    folders = []
    for value in (1, 2):
        folders.append(tmp_path / f"src{value}")
        folders[-1].mkdir()
        (folders[-1] / "h.h").write_text(f"#define VALUE {value}\n")
    with held.client() as client:
        asked = [ask(client, logging_compiler, INCLUDES, source_dir=str(f)) for f in folders]
        waiting(held, 2)
        gate.open()
        results = [item.result() for item in asked]
    for value, item in zip((1, 2), results, strict=True):
        assert bytes_of(item) == expected(tmp_path, value)
    assert len(logging_compiler.compiles()) == 2
