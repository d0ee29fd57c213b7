"""Modes, salt and remembered failures: per request and per process."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.outcome import Outcome, Reason
from tests.harness import DaemonProcess, LoggingCompiler, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.client import Client
    from ptocache.result import Result

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = b"int answer(void) { return 42; }\n"
BROKEN = b"int broken(void) { return nothing; }\n"


@pytest.fixture
def start(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> Callable[..., DaemonProcess]:
    """Start a daemon that trusts the logging compiler."""

    def started(**settings: object) -> DaemonProcess:
        return make_daemon(trust_scripts=logging_compiler.trust, **settings).start()

    return started


def ask(client: Client, compiler: LoggingCompiler, source: bytes = SOURCE, **more: Any) -> Result:
    return client.compile(
        "host", {"k.c": source}, env=compiler.env, outputs=["object"], check=False, **more
    )


def entries(client: Client) -> int:
    return int(client.stats()["store"]["entries"])


# --- per request


def test_refresh_compiles_and_replaces(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = start()
    with daemon.client() as client:
        first = ask(client, logging_compiler)
        fresh = ask(client, logging_compiler, mode="refresh")
        assert fresh.outcome is Outcome.MISS
        assert fresh.key == first.key
        assert len(logging_compiler.compiles()) == 2
        assert ask(client, logging_compiler).outcome is Outcome.MEMORY_HIT
        assert entries(client) == 1
    daemon.restart()
    with daemon.client() as client:
        assert ask(client, logging_compiler).outcome is Outcome.DISK_HIT


def test_refresh_gives_a_remembered_failure_another_try(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start().client() as client:
        ask(client, logging_compiler, BROKEN)
        assert ask(client, logging_compiler, BROKEN).reason is Reason.REMEMBERED_FAILURE
        again = ask(client, logging_compiler, BROKEN, mode="refresh")
    assert again.reason is Reason.COMPILE_FAILED
    assert len(logging_compiler.compiles()) == 2


def test_bypass_neither_reads_nor_writes(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start().client() as client:
        for _ in range(2):
            found = ask(client, logging_compiler, mode="bypass")
            assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.ASKED)
        assert entries(client) == 0
        kept = ask(client, logging_compiler)
        assert kept.outcome is Outcome.MISS
        passed = ask(client, logging_compiler, mode="bypass")
        assert passed.outcome is Outcome.BYPASS
        assert passed.outputs["object"].digest == kept.outputs["object"].digest
    assert len(logging_compiler.compiles()) == 4


def test_read_only_reads_and_does_not_write(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start().client() as client:
        for _ in range(2):
            found = ask(client, logging_compiler, mode="read-only")
            assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.READ_ONLY)
        assert entries(client) == 0
        assert ask(client, logging_compiler).outcome is Outcome.MISS
        assert ask(client, logging_compiler, mode="read-only").outcome is Outcome.MEMORY_HIT


# --- per process


@pytest.mark.parametrize(
    ("mode", "reason"), [("bypass", Reason.ASKED), ("read-only", Reason.READ_ONLY)]
)
def test_mode_of_the_clients_process_holds_unless_a_request_says_otherwise(
    start: Callable[..., DaemonProcess],
    logging_compiler: LoggingCompiler,
    mode: str,
    reason: Reason,
) -> None:
    daemon = start()
    daemon.env["PTOCACHE_MODE"] = mode
    with daemon.client() as client:
        assert ask(client, logging_compiler).reason is reason
        assert ask(client, logging_compiler, mode="use").outcome is Outcome.MISS


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [
        ("refresh", [Outcome.MISS, Outcome.MISS]),
        ("bypass", [Outcome.BYPASS, Outcome.BYPASS]),
        ("read-only", [Outcome.BYPASS, Outcome.BYPASS]),
    ],
)
def test_mode_of_the_daemon_holds_for_everybody(
    start: Callable[..., DaemonProcess],
    logging_compiler: LoggingCompiler,
    mode: str,
    outcomes: list[Outcome],
) -> None:
    with start(mode=mode).client(request_mode="use") as client:
        assert [ask(client, logging_compiler).outcome for _ in range(2)] == outcomes
        assert entries(client) == (1 if mode == "refresh" else 0)
        if mode == "read-only":
            assert ask(client, logging_compiler, mode="refresh").reason is Reason.READ_ONLY
        assert ask(client, logging_compiler, mode="bypass").reason is Reason.ASKED


def test_read_only_daemon_gives_hits_of_a_warm_store(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = start()
    with daemon.client() as client:
        ask(client, logging_compiler)
    daemon.env["PTOCACHE_MODE"] = "read-only"
    daemon.restart()
    with daemon.client() as client:
        assert ask(client, logging_compiler).outcome is Outcome.DISK_HIT
        assert ask(client, logging_compiler).outcome is Outcome.MEMORY_HIT
        other = ask(client, logging_compiler, b"int other;\n")
        assert other.reason is Reason.READ_ONLY
        assert entries(client) == 1


# --- salt


def test_salt_of_request_process_and_daemon_each_make_another_key(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = start()
    keys = []
    with daemon.client() as plain, daemon.client(request_salt="a") as salted:
        keys.append(ask(plain, logging_compiler).key)
        keys.append(ask(salted, logging_compiler).key)
        again = ask(plain, logging_compiler, salt="a")
        assert again.outcome is Outcome.MEMORY_HIT
        assert again.key == keys[1]
        keys.append(ask(salted, logging_compiler, salt="b").key)
    daemon.env["PTOCACHE_SALT"] = "a"
    daemon.restart()
    with daemon.client(request_salt="") as client:
        found = ask(client, logging_compiler)
        assert found.outcome is Outcome.MISS
        keys.append(found.key)
    assert len(set(keys)) == 4


# --- failures


def test_failure_is_remembered_for_its_time_and_no_longer(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start(negative_ttl="1s").client() as client:
        began = time.monotonic()
        assert ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED
        wait_for(
            lambda: ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED,
            "the failure to be forgotten",
        )
        assert time.monotonic() - began >= 1.0
    assert len(logging_compiler.compiles()) == 2


def test_failures_are_not_remembered_when_told_so(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start(negative_ttl="0").client() as client:
        for _ in range(3):
            assert ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED
    assert len(logging_compiler.compiles()) == 3


def test_remembered_failure_ends_with_an_invalidate_and_with_the_daemon(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = start()
    with daemon.client() as client:
        ask(client, logging_compiler, BROKEN)
        client.call("invalidate", all=True)
        assert ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED
        assert ask(client, logging_compiler, BROKEN).reason is Reason.REMEMBERED_FAILURE
    daemon.restart()
    with daemon.client() as client:
        assert ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED


def test_failure_counts_for_its_compiler_only(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    with start().client() as client:
        assert ask(client, logging_compiler, BROKEN).reason is Reason.COMPILE_FAILED
        logging_compiler.write(extra="-Dnothing=1")
        assert ask(client, logging_compiler, BROKEN).outcome is Outcome.MISS


@pytest.mark.parametrize(
    ("ending", "limit", "reason"),
    [("kill -SEGV $$", "60s", Reason.STEP_KILLED), ("sleep 600", "1s", Reason.STEP_TIMEOUT)],
)
def test_accident_is_not_remembered(
    start: Callable[..., DaemonProcess],
    logging_compiler: LoggingCompiler,
    ending: str,
    limit: str,
    reason: Reason,
) -> None:
    accident = f'case " $* " in *" -c "*" -o "*) {ending} ;; esac'
    logging_compiler.write(before=accident)
    daemon = start(step_timeout=limit)
    with daemon.client() as client:
        for _ in range(2):
            found = ask(client, logging_compiler)
            assert found.outcome is Outcome.FAILURE
            assert found.reason is reason
        assert os.listdir(daemon.root / "tmp") == []
    assert (
        len([line for line in logging_compiler.starts() if " -c " in line and " -o " in line]) == 2
    )


def test_numbers_add_up_over_every_kind_of_end(
    start: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = start()
    with daemon.client() as client:
        for source, mode in (
            (SOURCE, "use"), (SOURCE, "use"), (SOURCE, "refresh"), (SOURCE, "bypass"),
            (BROKEN, "use"), (BROKEN, "use"), (b"char *t = __TIME__;\n", "use"), (b"", "read-only"),
        ):  # fmt: skip
            ask(client, logging_compiler, source, mode=mode)
    stats = daemon.stats()
    parts = ("memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure")
    assert stats["requests"] == 8 == sum(stats[part] for part in parts)
    assert stats["bypass_reasons"] == {"asked": 1, "time_macro": 1, "read_only": 1}
    assert stats["failure_reasons"] == {"compile_failed": 1, "remembered_failure": 1}
    assert (stats["memory_hit"], stats["miss"]) == (1, 2)
    with daemon.client() as client:
        client.call("reset-stats")
        assert daemon.stats()["requests"] == 0
