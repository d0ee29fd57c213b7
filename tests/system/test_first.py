"""The first thing to work: a miss, then hits, through a real daemon and a real compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptocache.client import connect
from ptocache.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.harness import DaemonProcess, LoggingCompiler

SOURCE = b"int answer(void) { return 42; }\n"


def test_second_request_is_a_hit_and_starts_no_tool(
    make_daemon: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        first = client.compile("host", {"k.c": SOURCE}, env=logging_compiler.env)
        runs = len(logging_compiler.runs())
        second = client.compile("host", {"k.c": SOURCE}, env=logging_compiler.env)
    assert first.outcome is Outcome.MISS
    assert second.outcome is Outcome.MEMORY_HIT
    assert runs == 2, "one compile and one link"
    assert len(logging_compiler.runs()) == runs
    assert bytes(second.outputs["shared"].buffer) == bytes(first.outputs["shared"].buffer)


def test_a_daemon_does_not_take_over_the_mode_and_salt_of_who_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("PTOCACHE_IDLE_TIMEOUT", "60s")
    with monkeypatch.context() as starting:
        starting.setenv("PTOCACHE_MODE", "refresh")
        starting.setenv("PTOCACHE_SALT", "mine")
        with connect() as starter:
            salted = starter.compile("host", {"k.c": SOURCE}, outputs=["object"])
    with connect(client_require=True, client_autostart=False) as client:
        plain = client.compile("host", {"k.c": SOURCE}, outputs=["object"])
        again = client.compile("host", {"k.c": SOURCE}, outputs=["object"])
        client.call("stop")
    assert plain.key != salted.key
    assert plain.outcome is Outcome.MISS
    assert again.outcome is Outcome.MEMORY_HIT, "the daemon itself is in the mode 'use'"
