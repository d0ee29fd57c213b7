"""The first thing to work: a miss, then hits, through a real daemon and a real compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptocache.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

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
