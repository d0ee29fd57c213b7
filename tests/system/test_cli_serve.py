"""``serve``, ``status`` and ``stop`` on real daemons."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import Gate, LoggingCompiler, alive, wait_for
from tests.system.cli_runner import Done, finish, ptocache, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness import DaemonProcess

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def env(make_daemon: Callable[..., DaemonProcess]) -> Iterator[dict[str, str]]:
    """A store and a socket place of its own; a daemon that a test left there is ended."""
    found = make_daemon().env
    yield found
    done = ptocache("status", "--json", env=found)
    if done.code == 0:
        os.kill(done.json()["pid"], signal.SIGKILL)


def detach(env: dict[str, str], *words: str) -> Done:
    done = ptocache("serve", "--detach", *words, env=env)
    assert done.code == 0, done.err
    return done


def test_detach_comes_back_when_the_daemon_answers(env: dict[str, str]) -> None:
    done = detach(env)
    status = ptocache("status", "--json", env=env)
    assert status.code == 0
    assert done.out == f"serving {env['PTOCACHE_DIR']} (pid {status.json()['pid']})\n"


def test_a_detached_daemon_has_what_the_command_line_said(env: dict[str, str]) -> None:
    detach(env, "--jobs", "3", "--max-size", "5M")
    assert ptocache("status", "--json", env=env).json()["jobs"] == 3
    assert ptocache("stats", "--json", env=env).json()["store"]["limit"] == 5 << 20


@pytest.mark.parametrize("how", ["--foreground", "--detach"])
def test_a_second_serve_is_exit_code_5_and_one_line(how: str, daemon: DaemonProcess) -> None:
    done = ptocache("serve", how, env=daemon.env)
    assert (done.code, done.out) == (5, "")
    assert done.err == (
        f"ptocache: a daemon already serves the store {daemon.root} "
        "(ptocache status tells more of it)\n"
    )
    assert ptocache("status", "--json", env=daemon.env).json()["pid"] == daemon.pid


@pytest.mark.kind("daemon_started_twice")
def test_daemon_started_twice_by_commands_is_one_that_serves_and_others_that_say_5(
    env: dict[str, str],
) -> None:
    processes = [start("serve", "--detach", env=env) for _ in range(4)]
    codes = sorted(finish(process).code for process in processes)
    assert codes == [0, 5, 5, 5]


def test_an_idle_daemon_ends_by_itself(env: dict[str, str]) -> None:
    done = finish(start("serve", "--idle-timeout", "0.01s", env=env))
    assert (done.code, done.out) == (0, "")
    assert "idle" in done.err


def test_status_tells_of_the_daemon(daemon: DaemonProcess) -> None:
    found = ptocache("status", "--json", env=daemon.env).json()
    assert found["pid"] == daemon.pid
    assert found["root"] == str(daemon.root)
    assert found["socket"] == str(daemon.socket)
    text = ptocache("status", env=daemon.env).out
    assert f"pid {daemon.pid}" in text
    assert str(daemon.socket) in text
    assert "requests   0 under way" in text, "the question itself is not told of"


def test_stop_comes_back_when_the_daemon_has_ended(daemon: DaemonProcess) -> None:
    done = ptocache("stop", env=daemon.env)
    assert daemon.process is not None
    assert daemon.process.poll() == 0, "it has ended before the command did"
    assert (done.code, done.err) == (0, "")
    assert done.out == f"stopped the daemon of {daemon.root} (pid {daemon.pid})\n"
    assert ptocache("stop", env=daemon.env).code == 3


class Compiling:
    """A daemon whose one compile is held at a gate."""

    def __init__(self, make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> None:
        self.gate = Gate(tmp_path / "gate")
        compiler = LoggingCompiler(tmp_path / "cc", before=self.gate.script)
        self.daemon = make_daemon(trust_scripts=compiler.trust).start()
        self.place = tmp_path / "work"
        self.place.mkdir()
        (self.place / "k.c").write_text(SOURCE)
        env = {**self.daemon.env, **compiler.env}
        self.client = start("compile", "k.c", "--json", env=env, cwd=self.place)
        wait_for(self.gate.arrivals, "the compile to start")


@pytest.fixture
def compiling(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Iterator[Compiling]:
    held = Compiling(make_daemon, tmp_path)
    yield held
    held.gate.open()
    if held.client.poll() is None:
        held.client.kill()
    held.client.communicate()


def test_stop_waits_for_running_compiles_and_says_so(compiling: Compiling) -> None:
    process = start("stop", env=compiling.daemon.env)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line == b"ptocache: waiting for 1 running compile (ptocache stop --now does not)\n"
    assert process.poll() is None
    compiling.gate.open()
    assert finish(process).code == 0
    done = finish(compiling.client)
    assert (done.code, done.json()["outcome"]) == (0, "miss")


def test_stop_now_ends_running_compiles(compiling: Compiling) -> None:
    tools = compiling.gate.arrivals()
    done = ptocache("stop", "--now", env=compiling.daemon.env)
    assert (done.code, done.err) == (0, "")
    assert not any(alive(pid) for pid in tools)
    # Its caller is not left alone: it compiles by itself, and says so.
    compiling.gate.open()
    answer = finish(compiling.client)
    assert (answer.code, answer.json()["outcome"]) == (0, "bypass")
    assert answer.json()["reason"] == "no_daemon"
    assert b"ptocache: warning: " in answer.stderr


@pytest.mark.kind("orphan_compilers")
def test_orphan_compilers_are_not_left_by_ctrl_c_which_ends_a_compile_quietly(
    compiling: Compiling,
) -> None:
    tools = compiling.gate.arrivals()
    compiling.client.send_signal(signal.SIGINT)
    done = finish(compiling.client)
    assert (done.code, done.out, done.err) == (130, "", "ptocache: interrupted\n")
    wait_for(lambda: not any(alive(pid) for pid in tools), "the compiler to end")
    assert not list(compiling.place.glob("k.so*"))
