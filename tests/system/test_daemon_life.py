"""A daemon's life: how it starts, what it refuses, how it stops, and what is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.outcome import Outcome, Reason
from ptocache.result import Result
from ptocache.signature import settled, signature_of
from tests.faults.peers import PreparedDaemon
from tests.harness import (
    BOOT,
    DEADLINE_S,
    DaemonProcess,
    Gate,
    LoggingCompiler,
    alive,
    daemons_of,
    start_in_vain,
    stray,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = b"int answer(void) { return 42; }\n"
EXIT_UNUSABLE = 4
EXIT_ALREADY_SERVED = 5


class Asking(threading.Thread):
    """One compile in a thread of its own."""

    def __init__(self, daemon: DaemonProcess, compiler: LoggingCompiler) -> None:
        super().__init__()
        self._daemon = daemon
        self._compiler = compiler
        self.found: Result | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._daemon.client() as client:
                self.found = client.compile(
                    "host", {"k.c": SOURCE}, env=self._compiler.env, outputs=["object"], check=False
                )
        except Exception as error:
            self.error = error

    def result(self) -> Result:
        self.join(DEADLINE_S)
        assert self.found is not None, self.error
        return self.found


@pytest.fixture
def held(make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate) -> DaemonProcess:
    """A daemon whose compiles stay at the gate."""
    logging_compiler.write(before=gate.script)
    return make_daemon(trust_scripts=logging_compiler.trust).start()


def asking(daemon: DaemonProcess, compiler: LoggingCompiler, gate: Gate) -> Asking:
    """A client whose compile is under way."""
    found = Asking(daemon, compiler)
    wait_for(gate.arrivals, "the compile to begin")
    return found


def left_over(daemon: DaemonProcess) -> list[str]:
    """What should not be there once a daemon has gone."""
    scratch = [str(path) for path in (daemon.root / "tmp").iterdir()]
    marker = f"TMPDIR={daemon.root}/tmp/".encode()
    tools = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker in Path(f"/proc/{name}/environ").read_bytes() and alive(int(name)):
                tools.append(f"process {name}")
        except OSError:
            continue
    return scratch + tools + ([str(daemon.socket)] if daemon.socket.exists() else [])


# --- stopping


@pytest.mark.kind("orphan_compilers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_orphan_compilers_are_not_left_by_a_signal_that_lets_a_compile_finish(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate, number: signal.Signals
) -> None:
    client = asking(held, logging_compiler, gate)
    os.kill(held.pid, number)
    wait_for(lambda: not held.socket.exists(), "the socket to be withdrawn")
    assert alive(held.pid)
    assert alive(gate.arrivals()[0])
    gate.open()
    assert client.result().outcome is Outcome.MISS
    assert held.process is not None
    assert held.process.wait(DEADLINE_S) == 0
    assert left_over(held) == []


def test_compile_finished_while_stopping_is_stored(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    client = asking(held, logging_compiler, gate)
    os.kill(held.pid, signal.SIGTERM)
    wait_for(lambda: not held.socket.exists(), "the socket to be withdrawn")
    gate.open()
    first = client.result()
    assert held.stop() == 0
    held.start()
    again = Asking(held, logging_compiler).result()
    assert again.outcome is Outcome.DISK_HIT
    assert bytes(again.outputs["object"].buffer) == bytes(first.outputs["object"].buffer)


@pytest.mark.kind("orphan_compilers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_orphan_compilers_are_not_left_by_a_second_signal_and_their_client_is_told(
    held: DaemonProcess,
    logging_compiler: LoggingCompiler,
    gate: Gate,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    strayed = tmp_path / "strayed"
    logging_compiler.write(before=f"{stray(strayed)}\n{gate.script}")
    client = asking(held, logging_compiler, gate)
    os.kill(held.pid, number)
    wait_for(lambda: not held.socket.exists(), "the socket to be withdrawn")
    os.kill(held.pid, number)
    found = client.result()
    assert found.outcome is Outcome.FAILURE
    assert found.reason is Reason.CANCELLED
    assert held.stop() == 0
    assert not any(map(alive, [*gate.arrivals(), int(strayed.read_text())]))
    assert left_over(held) == []


def test_stop_request_ends_it_in_order(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.compile("host", {"k.c": SOURCE}, env={"PATH": os.environ["PATH"]})
        assert client.call("stop") == {"pid": daemon.pid}
    assert daemon.process is not None
    assert daemon.process.wait(DEADLINE_S) == 0
    assert left_over(daemon) == []


def test_stop_request_with_now_does_not_wait_for_a_compile(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    client = asking(held, logging_compiler, gate)
    with held.client() as other:
        other.call("stop", now=True)
    assert client.result().reason is Reason.CANCELLED
    assert held.stop() == 0
    assert left_over(held) == []


def test_stopping_daemon_begins_no_other_compile_and_still_gives_what_it_has(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    job = {"env": logging_compiler.env, "outputs": ["object"], "check": False}
    gate.open()
    with held.client() as open_before:
        open_before.compile("host", {"k.c": b"int had;\n"}, **job)  # type: ignore[arg-type]
        gate.close()
        first = Asking(held, logging_compiler)
        wait_for(lambda: len(gate.arrivals()) == 2, "the compile to begin")
        os.kill(held.pid, signal.SIGTERM)
        wait_for(lambda: not held.socket.exists(), "the socket to be withdrawn")
        had = open_before.compile("host", {"k.c": b"int had;\n"}, **job)  # type: ignore[arg-type]
        late = open_before.compile("host", {"k.c": b"int late;\n"}, **job)  # type: ignore[arg-type]
        gate.open()
        assert had.outcome is Outcome.MEMORY_HIT
        assert late.outcome is Outcome.FAILURE
        assert late.reason is Reason.CANCELLED
        assert first.result().outcome is Outcome.MISS
        assert held.process is not None
        assert held.process.wait(DEADLINE_S) == 0
    assert left_over(held) == []


def test_question_to_a_compiler_that_does_not_answer_ends_with_the_daemon(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    logging_compiler.write(before="sleep 600")
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    client = Asking(daemon, logging_compiler)
    wait_for(logging_compiler.starts, "the compiler to be asked")
    os.kill(daemon.pid, signal.SIGTERM)
    wait_for(lambda: not daemon.socket.exists(), "the socket to be withdrawn")
    os.kill(daemon.pid, signal.SIGTERM)
    assert client.result().reason is Reason.CANCELLED
    assert daemon.stop() == 0
    assert left_over(daemon) == []


def test_question_to_a_compiler_ends_with_a_killed_daemon(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    logging_compiler.write(before="sleep 600")
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    client = Asking(daemon, logging_compiler)
    wait_for(logging_compiler.starts, "the compiler to be asked")
    pid = int(logging_compiler.starts()[0].split()[0])
    assert alive(pid)
    daemon.kill()
    wait_for(lambda: not alive(pid), "the compiler to end")
    client.join(DEADLINE_S)
    assert isinstance(client.error, OSError)


@pytest.mark.kind("daemon_started_twice")
def test_daemon_started_twice_while_one_stops_serves_who_comes_then(
    held: DaemonProcess, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    first = asking(held, logging_compiler, gate)
    os.kill(held.pid, signal.SIGTERM)
    wait_for(lambda: not held.socket.exists(), "the socket to be withdrawn")
    env = {**held.env, "PTOCACHE_AUTOSTART": "1", "PTOCACHE_REQUIRE": "1"}
    script = (
        "from ptocache.client import connect\n"
        "with connect() as client: print(client.call('status')['pid'])\n"
    )
    late = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
    try:
        # Its own daemon has found the store taken and has gone again.
        wait_for(
            lambda: "already serves" in _text(held.root / "daemon.log"),
            "a second daemon to give up",
        )
        gate.open()
        assert first.result().outcome is Outcome.MISS
        assert held.stop() == 0
        out, _ = late.communicate(timeout=DEADLINE_S)
        assert daemons_of(held.root) == [int(out)]
    finally:
        late.kill()
        late.wait()
        for pid in daemons_of(held.root):
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not daemons_of(held.root), "the late daemon to end")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


LOOK_WHEN_TOLD = """
import os, ptocache.daemon as daemon
daemon._FLUSH_S = 0.02
look = daemon.Daemon._stop_if_idle
def when_told(self):
    if os.path.exists({told!r}):
        look(self)
        open({looks!r}, "a").write("x")
daemon.Daemon._stop_if_idle = when_told
"""


class Idle(PreparedDaemon):
    """A daemon that may be idle for a tenth of a second, once it is told to look: a test that the machine
    holds up while it connects must not find it gone."""

    def __init__(self, place: Path, **settings: object) -> None:
        self._told, self._looks = place / "told", place / "looks"
        code = LOOK_WHEN_TOLD.format(told=str(self._told), looks=str(self._looks))
        super().__init__(place / "store", code, idle_timeout="0.1s", **settings)

    def look(self) -> None:
        """Let it look from now on."""
        self._told.touch()

    @property
    def looks(self) -> int:
        """How often it has looked and gone on."""
        return self._looks.stat().st_size if self._looks.exists() else 0


def test_idle_daemon_ends_by_itself(tmp_path: Path) -> None:
    daemon = Idle(tmp_path)
    try:
        daemon.start()
        daemon.look()
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == 0
        assert left_over(daemon) == []
    finally:
        daemon.clean_up()


def test_daemon_with_a_compile_under_way_is_not_idle(
    tmp_path: Path, logging_compiler: LoggingCompiler, gate: Gate
) -> None:
    logging_compiler.write(before=gate.script)
    daemon = Idle(tmp_path, trust_scripts=logging_compiler.trust)
    try:
        daemon.start()
        client = asking(daemon, logging_compiler, gate)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 0.3, "the idle limit to pass")
        daemon.look()
        wait_for(lambda: daemon.looks > 2 or not alive(daemon.pid), "some looks")
        assert alive(daemon.pid)
        gate.open()
        assert client.result().outcome is Outcome.MISS
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == 0
    finally:
        gate.open()
        daemon.clean_up()


# --- one daemon per store


def test_second_daemon_on_a_store_leaves_and_the_first_is_untouched(
    daemon: DaemonProcess, make_daemon: MakeDaemon
) -> None:
    second = make_daemon(daemon.root)
    done = start_in_vain(second.env)
    assert done.returncode == EXIT_ALREADY_SERVED
    assert b"already serves" in done.stderr
    assert not second.socket.exists()
    with daemon.client() as client:
        assert client.call("status")["pid"] == daemon.pid


def test_daemon_of_another_store_does_not_take_a_served_socket(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    env = {**daemon.env, "PTOCACHE_DIR": str(tmp_path / "other")}
    done = start_in_vain(env)
    assert done.returncode == EXIT_UNUSABLE
    assert b"served by the daemon of another store" in done.stderr
    with daemon.client() as client:
        assert client.call("status")["root"] == str(daemon.root)


# --- sudden death


@pytest.mark.kind("stale_socket_file")
def test_stale_socket_file_of_a_killed_daemon_is_taken_over(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        first = client.compile("host", {"k.c": SOURCE}, env={"PATH": os.environ["PATH"]})
    daemon.kill()
    assert daemon.socket.exists(), "a killed daemon leaves its socket"
    daemon.start()
    with daemon.client() as client:
        again = client.compile("host", {"k.c": SOURCE}, env={"PATH": os.environ["PATH"]})
    assert again.outcome is Outcome.DISK_HIT
    assert bytes(again.outputs["shared"].buffer) == bytes(first.outputs["shared"].buffer)


@pytest.mark.kind("orphan_compilers")
def test_orphan_compilers_of_a_killed_daemon_end_with_it_wherever_they_went(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, gate: Gate, tmp_path: Path
) -> None:
    strayed = tmp_path / "strayed"
    logging_compiler.write(before=f"{stray(strayed)}\n{gate.script}")
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    client = asking(daemon, logging_compiler, gate)
    pids = [*gate.arrivals(), int(strayed.read_text())]
    assert all(map(alive, pids))
    daemon.kill()
    wait_for(lambda: not any(map(alive, pids)), "the tools to end")
    client.join(DEADLINE_S)
    assert isinstance(client.error, OSError)
    daemon.start()
    assert left_over(daemon) == [str(daemon.socket)]


def test_grandchild_of_a_tool_ends_when_the_daemon_stops_in_order(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    strayed = tmp_path / "strayed"
    logging_compiler.write(before=stray(strayed))
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    assert Asking(daemon, logging_compiler).result().outcome is Outcome.MISS
    assert daemon.stop() == 0
    wait_for(lambda: not alive(int(strayed.read_text())), "the grandchild to end")
    assert left_over(daemon) == []


# --- the socket's place


@pytest.mark.kind("stale_socket_file")
def test_stale_socket_file_that_is_a_regular_file_is_refused_and_left_alone(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon()
    daemon.socket.write_bytes(b"mine")
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    assert str(daemon.socket).encode() in done.stderr
    assert b"not a socket" in done.stderr
    assert daemon.socket.read_bytes() == b"mine"


@pytest.mark.kind("stale_socket_file")
def test_stale_socket_file_that_is_a_directory_is_refused_and_left_alone(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon()
    daemon.socket.mkdir()
    (daemon.socket / "mine").touch()
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    assert b"not a socket" in done.stderr
    assert (daemon.socket / "mine").exists()


def test_link_at_the_sockets_place_is_refused_and_left_alone(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    daemon = make_daemon()
    daemon.socket.symlink_to(tmp_path / "elsewhere")
    done = start_in_vain(daemon.env)
    assert done.returncode == EXIT_UNUSABLE
    assert daemon.socket.is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_socket_that_replaced_the_daemons_own_is_left_alone(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(daemon.socket))
        assert daemon.stop() == 0
        assert daemon.socket.exists()


def test_daemon_serves_a_socket_that_it_was_handed(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(daemon.socket))
        listener.listen()
        os.chmod(daemon.socket, 0o600)
        env = {**daemon.env, "LISTEN_FDS": "1"}
        # sd_listen_fds(3): descriptors from 3 on, and LISTEN_PID names the process itself.
        launcher = (
            f"import os, sys; os.dup2({listener.fileno()}, 3); os.set_inheritable(3, True); "
            "os.environ['LISTEN_PID'] = str(os.getpid()); "
            f"os.execv(sys.executable, [sys.executable, '-c', {BOOT!r}])"
        )
        with open(daemon.log_path, "ab") as log:
            daemon.process = subprocess.Popen(
                [sys.executable, "-c", launcher],
                env=env, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
    with daemon.client() as client:
        status = client.call("status")
        assert status["pid"] == daemon.pid
        found = client.compile("host", {"k.c": SOURCE}, env={"PATH": os.environ["PATH"]})
        assert found.outcome is Outcome.MISS
    assert daemon.stop() == 0
    assert daemon.socket.exists(), "who handed the socket over keeps its name"


# --- a warm store, a long life


def test_first_request_of_a_fresh_daemon_on_a_warm_store_starts_no_process(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    folder = str(logging_compiler.path.parent)

    def quiet() -> bool:
        signs = [signature_of(str(logging_compiler.path)), signature_of(folder)]
        return all(sign is not None and settled(sign, time.time_ns()) for sign in signs)

    wait_for(quiet, "the wrapper's stamps to be old enough to be trusted")
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        first = client.compile("host", {"k.c": SOURCE}, env=logging_compiler.env)
    assert first.outcome is Outcome.MISS
    asked = len(logging_compiler.starts())
    assert asked > len(logging_compiler.runs())
    daemon.restart()
    children = _children(daemon.pid)
    with daemon.client() as client:
        again = client.compile("host", {"k.c": SOURCE}, env=logging_compiler.env)
    assert again.outcome is Outcome.DISK_HIT
    assert len(logging_compiler.starts()) == asked
    assert _children(daemon.pid) == children
    assert bytes(again.outputs["shared"].buffer) == bytes(first.outputs["shared"].buffer)


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_descriptors_stay_flat_over_many_hits_of_large_outputs(daemon: DaemonProcess) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    source = b"const char big[300000] = {1};\n"
    with daemon.client() as client:
        job = {"env": {"PATH": os.environ["PATH"]}, "outputs": ["object"]}
        first = client.compile("host", {"k.c": source}, **job)  # type: ignore[arg-type]
        assert first.outputs["object"].file is not None
        client.compile("host", {"k.c": source}, **job)  # type: ignore[arg-type]
        before, ours = descriptors(), len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            found = client.compile("host", {"k.c": source}, **job)  # type: ignore[arg-type]
            assert found.outcome is Outcome.MEMORY_HIT
        assert descriptors() == before
        del found
        assert len(os.listdir("/proc/self/fd")) <= ours + 1
