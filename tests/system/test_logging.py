"""What a daemon's log tells, what it never tells, and that a daemon does not depend on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache.errors import PtocacheError
from ptocache.outcome import Outcome
from tests.harness import (
    BOOT,
    ClientProcess,
    DaemonProcess,
    LoggingCompiler,
    RawPeer,
    at_once,
    daemons_of,
    wait_for,
)
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = "int answer(void) { return 42; }\n"
ENV = {"PATH": os.environ.get("PATH", "")}
OBJECT: dict[str, Any] = {"env": ENV, "outputs": ["object"]}


def events(daemon: DaemonProcess, message: str = "") -> list[dict[str, Any]]:
    """The events of a JSON log, in order; every line of it must be one."""
    found = [json.loads(line) for line in daemon.log().splitlines()]
    return [item for item in found if message in ("", item["message"])]


# --- a line a compile


def test_each_compile_is_one_line_with_what_became_of_it(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(log_format="json").start()
    with daemon.client() as client:
        miss = client.compile("host", {"k.c": SOURCE}, kernel="good", **OBJECT)
        client.compile("host", {"k.c": SOURCE}, kernel="good", **OBJECT)
        failed = client.compile("host", {"k.c": "no C"}, kernel="bad", check=False, **OBJECT)
        client.compile("host", {"k.c": "no C"}, kernel="bad", check=False, **OBJECT)
        client.compile("host", {"k.c": SOURCE}, kernel="aside", mode="bypass", **OBJECT)
    daemon.stop()
    lines = events(daemon, "compile")
    told = [{k: v for k, v in x.items() if k not in ("time", "key")} for x in lines]
    durations = [{name: x.pop(name) for name in list(x) if name.endswith("_ms")} for x in told]
    common = {"level": "info", "logger": "ptocache.service", "message": "compile"}
    assert told == [
        {**common, "toolchain": "host", "kernel": "good", "outcome": "miss", "exit": 0},
        {
            **common, "toolchain": "host", "kernel": "bad", "outcome": "failure",
            "reason": "compile_failed", "exit": failed.exit_code,
        },
        {
            **common, "toolchain": "host", "kernel": "aside", "outcome": "bypass",
            "reason": "asked", "exit": 0,
        },
    ]  # fmt: skip
    assert failed.exit_code != 0
    assert lines[0]["key"] == miss.key[:12]
    for item in durations:
        assert set(item) == {"queued_ms", "compile_ms", "total_ms"}
        assert 0 < item["compile_ms"] <= item["total_ms"]
        assert item["queued_ms"] >= 0


def test_who_waits_for_a_compile_adds_no_line(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(log_format="json", trust_scripts=logging_compiler.trust).start()
    results = at_once(
        [
            ClientProcess(SOURCE, daemon.env, logging_compiler.env, outputs=["object"])
            for _ in range(4)
        ]
    )
    assert len(results) == 4
    assert len(logging_compiler.compiles()) == 1
    assert len(events(daemon, "compile")) == 1


def test_compile_that_is_ended_is_a_line_without_an_exit_code(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    logging_compiler.write(before='case " $* " in *" -c "*" -o "*) kill -9 $$ ;; esac')
    daemon = make_daemon(log_format="json", trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        for mode in ("use", "bypass"):
            found = client.compile(
                "host", {"k.c": SOURCE}, env=logging_compiler.env, mode=mode, check=False
            )
            assert found.outcome is Outcome.FAILURE
    lines = events(daemon, "compile")
    assert [item["reason"] for item in lines] == ["step_killed", "step_killed"]
    assert not any("exit" in item for item in lines)


def test_text_log_tells_the_same_in_words(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        found = client.compile("host", {"k.c": SOURCE}, kernel="two\nlines", **OBJECT)
    line = next(x for x in daemon.log().splitlines() if " compile " in x)
    assert re.fullmatch(
        rf'\S+Z INFO ptocache\.service: compile key={found.key[:12]} toolchain=host '
        r'kernel="two\\nlines" outcome=miss exit=0 queued_ms=\d+ compile_ms=\d+ total_ms=\d+',
        line,
    )  # fmt: skip


def test_kernel_that_a_framework_built_is_a_line_too(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(log_format="json").start()
    with daemon.client() as client:
        for _ in range(2):
            client.kernel_or_build(
                "host", {"source": SOURCE}, lambda: {"k.bin": b"built"}, env=ENV, kernel="mine"
            )
    (line,) = events(daemon, "kernel")
    assert (line["kernel"], line["outcome"]) == ("mine", "miss")
    assert line["compile_ms"] >= 0


# --- what is never in it

SECRET = "hunter2-do-not-log-me"


def test_undeclared_variables_of_client_and_daemon_are_never_logged(
    make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make_daemon(log_level="debug")
    for name in ("SECRET_TOKEN", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY"):
        monkeypatch.setenv(name, SECRET)
        daemon.env[name] = SECRET
    daemon.start()
    with daemon.client() as client:
        # The environment of a request is this process's own.
        good = client.compile("host", {"k.c": SOURCE}, kernel="k")
        assert good.outcome is Outcome.MISS
        assert client.compile("host", {"k.c": "no C"}, check=False).outcome is Outcome.FAILURE
        assert client.compile("host", {"k.c": SOURCE}, mode="bypass").outcome is Outcome.BYPASS
        client.kernel_or_build("host", {"source": SOURCE}, lambda: {"k.bin": b"built"})
        for kind in ("status", "stats", "verify", "gc"):
            client.call(kind)
        for kind in ("show", "explain"):
            client.call(kind, key=good.key)
        client.call("identify", env=dict(os.environ))
        for _ in range(2):
            with contextlib.suppress(PtocacheError):
                client.call("invalidate", keys=[good.key])
    with RawPeer(daemon.socket) as peer:
        peer.send(b"\0\0\0\0")
        assert peer.is_dropped()
    daemon.stop()
    assert " compile " in daemon.log(), "it was on"
    places = [*daemon.root.rglob("*"), *daemon.place.rglob("*")]
    files = [path for path in places if path.is_file()]
    assert daemon.log_path in files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_hostile_peers_and_failing_compiles_leave_no_traceback(daemon: DaemonProcess) -> None:
    junk = [
        b"\xff" * 8, b"\0\0\0\0", msgpack.packb({"type": 5}),
        msgpack.packb({"type": "compile", "id": 1, "request": b"\x80"}),
        msgpack.packb({"type": "kernel", "id": 1, "request": 7}),
        msgpack.packb({"type": "show", "id": 1, "key": ["x"]}),
        msgpack.packb({"type": "gc", "id": 1, "max_size": {"a": []}}),
        msgpack.packb({"type": "invalidate", "id": 1, "keys": 3}),
        msgpack.packb({"type": "explain", "id": 1, "key": b"\xff"}),
        msgpack.packb({"type": "identify", "id": 1, "env": [1]}),
        msgpack.packb({"type": "get", "id": 1, "key": "no key", "source_dir": "\0"}),
        msgpack.packb({"type": "finish", "id": 1, "lease": -1}),
        msgpack.packb({"type": "verify", "id": 1, "fast": "x", "reproduce": "y"}),
    ]  # fmt: skip
    for body in junk:
        with RawPeer(daemon.socket) as peer:
            peer.send(len(body).to_bytes(4, "little") + body)
            with contextlib.suppress(ConnectionError):
                peer.hear()
    with daemon.client() as client:
        client.compile("host", {"k.c": "no C"}, check=False, **OBJECT)
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MISS
    assert daemon.stop() == 0
    assert "closed a connection" in daemon.log()
    assert "Traceback" not in daemon.log()
    assert "internal error" not in daemon.log()


# --- where it goes


def start_by(daemon: DaemonProcess, shell: str) -> None:
    """Start a daemon through a shell's redirections; it has no other log."""
    daemon.process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {shell}', sys.executable, BOOT],
        env=daemon.env, cwd="/", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    daemon.until_it_answers()


@pytest.mark.parametrize("shell", ["0<&- 1>&- 2>&-", ">/dev/full 2>&1"], ids=["closed", "full"])
def test_daemon_whose_standard_error_is_of_no_use_goes_on_serving(
    shell: str, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(log_level="debug")
    start_by(daemon, shell)
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MISS
        bad = client.compile("host", {"k.c": "no C"}, check=False, **OBJECT)
        assert bad.outcome is Outcome.FAILURE
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MEMORY_HIT
    held = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert set(held) <= {"/dev/null", "/dev/full"}
    assert daemon.stop() == 0


def test_daemon_whose_log_nobody_reads_goes_on_serving(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(log_level="debug")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    daemon.process = subprocess.Popen(
        [sys.executable, "-c", BOOT], env=daemon.env, cwd="/", stdin=subprocess.DEVNULL,
        stderr=writer,
    )  # fmt: skip
    os.close(writer)
    daemon.until_it_answers()
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MISS
    assert daemon.stop() == 0
    os.close(reader)


def started_by_a_client(place: Path, **more: str) -> dict[str, str]:
    """The environment in which a client starts a daemon by itself."""
    return {
        **ENV, "HOME": str(place), "PTOCACHE_DIR": str(place / "store"), "PTOCACHE_FSYNC": "0",
        "PTOCACHE_SOCKET": str(place / "run" / "s"), "PTOCACHE_REQUIRE": "1", **more,
    }  # fmt: skip


@pytest.fixture
def place(make_daemon: MakeDaemon) -> Any:
    """A short folder; the daemon of the store in it is ended."""
    found = make_daemon().place
    yield found
    for pid in daemons_of(found / "store"):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not daemons_of(found / "store"), "the daemon to end")


def test_daemon_of_a_client_logs_into_the_store_and_rotates(place: Path) -> None:
    env = started_by_a_client(place, PTOCACHE_LOG_SIZE="600", PTOCACHE_LOG_COUNT="2")
    for number in range(2):
        work = place / "work"
        work.mkdir(exist_ok=True)
        for name in "abc":
            (work / f"{name}.c").write_text(f"int {name}{number};\n")
        done = ptocache(
            "compile", "--mode", "bypass", *(f"{n}.c" for n in "abc"), env=env, cwd=work
        )
        assert done.code == 0, done.err
    logs = sorted(path.name for path in (place / "store").glob("daemon.log*"))
    assert logs == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    for name in logs:
        info = (place / "store" / name).stat()
        assert info.st_size <= 600
        assert info.st_mode & 0o777 == 0o600
    pid = daemons_of(place / "store")[0]
    assert os.readlink(f"/proc/{pid}/fd/2") == str(place / "store" / "daemon.log")


def test_log_file_that_the_settings_name_is_used_and_named(place: Path) -> None:
    mine = place / "mine.log"
    (place / "k.c").write_text(SOURCE)
    env = started_by_a_client(place, PTOCACHE_LOG_FILE=str(mine))
    (place / "taken").touch()
    broken = {**env, "PTOCACHE_SOCKET": str(place / "taken")}
    done = ptocache("compile", "k.c", env=broken, cwd=place)
    assert done.code == 3
    assert "is not a socket" in done.err
    assert f"its log is {mine}" in done.err
    assert ptocache("compile", "k.c", env=env, cwd=place).code == 0
    assert re.findall(r" ERROR | INFO (?=\S+ serving)", mine.read_text()) == [
        " ERROR ",
        " INFO ",
    ], mine.read_text()
    assert not (place / "store" / "daemon.log").exists()


def test_reason_why_no_daemon_starts_comes_out_of_a_json_log_as_words(place: Path) -> None:
    (place / "store").mkdir(mode=0o700)
    (place / "store" / "VERSION").write_text("999\n")
    env = started_by_a_client(place, PTOCACHE_LOG_FORMAT="json", PTOCACHE_REQUIRE="0")
    (result,) = at_once([ClientProcess(SOURCE, env, outputs=["object"])])
    assert result["outcome"] == "bypass"
    warned = result["warnings"]
    assert isinstance(warned, list)
    (warning,) = warned
    assert "has version '999'" in warning
    assert '{"' not in warning


def test_serve_logs_as_its_options_say(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    quiet, loud = make_daemon(), tmp_path / "loud.json"
    idle = ("serve", "--idle-timeout", "0.01s")
    done = ptocache(*idle, "--log-level", "error", env=quiet.env)
    assert (done.code, done.err) == (0, "")
    done = ptocache(*idle, "--log-format", "json", env=quiet.env)
    assert [json.loads(x)["level"] for x in done.err.splitlines()].count("info") >= 2
    done = ptocache(*idle, "--log-format", "json", "--log-file", str(loud), env=quiet.env)
    assert (done.code, done.err) == (0, "")
    assert json.loads(loud.read_text().splitlines()[-1])["message"] == "stopped"
    done = ptocache(*idle, "--log-level", "shout", env=quiet.env)
    assert done.code == 2
    assert "not one of debug, info, warning, error" in done.err
