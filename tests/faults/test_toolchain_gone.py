"""A toolchain that is removed under a running compile: its result is an answer, and no entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptocache.outcome import Outcome, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness import DaemonProcess, LoggingCompiler


def test_what_a_compiler_made_before_it_was_removed_is_answered(
    make_daemon: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    remove = f'case " $* " in *" -c "*" -o "*) rm -f "{logging_compiler.path}" ;; esac'
    logging_compiler.write(after=remove)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        found = client.compile(
            "host", {"k.c": "int one(void) { return 1; }\n"}, outputs=["object"],
            env=logging_compiler.env, check=False,
        )  # fmt: skip
        assert client.stats()["store"]["entries"] == 0
    assert not logging_compiler.path.exists()
    assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.TOOLCHAIN_CHANGED)
    assert found.outputs["object"].size > 0
