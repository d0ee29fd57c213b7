"""Requests with words and numbers that nothing means: answered or refused, and never a fault of the daemon's."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import wire
from ptocache.outcome import Outcome
from tests.faults.peers import own_faults
from tests.faults.test_floods import FIELDS
from tests.harness import DaemonProcess, RawPeer

if TYPE_CHECKING:
    from collections.abc import Callable

ENV = {"PATH": os.environ.get("PATH", "")}
ODD: tuple[Any, ...] = (
    1 << 63, (1 << 64) - 1, -(1 << 63), 1e308, float("nan"), "\udc80", "\0", "0" * 64, [None], {"B=": "x"},
)  # fmt: skip
KINDS = (
    "get",
    "show",
    "explain",
    "verify",
    "gc",
    "invalidate",
    "identify",
    "reset-stats",
    "finish",
)


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_may_hold_anything(kind: str, make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon().start()
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(RawPeer(daemon.socket))
        for field in FIELDS:
            for value in ODD:
                body = wire.pack({"id": 1, "type": kind, "dry_run": True, field: value})
                try:
                    peer.send(body + wire.pack({"type": "ping", "id": -7}))
                    while peer.hear()["id"] != -7:
                        continue
                except ConnectionError:
                    # Closed, for what is no request at all.
                    peer = stack.enter_context(RawPeer(daemon.socket))
        with daemon.client() as client:
            assert client.call("ping") == {}
    assert own_faults(daemon) == []


def test_kernel_whose_name_is_no_text_is_found_by_it(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon().start()
    name = os.fsdecode(b"k\x80")
    with daemon.client() as client:
        for options in ([], ["-DA"]):
            found = client.compile(
                "host", {"k.c": "int k;"}, kernel=name, options=options, env=ENV, outputs=["object"]
            )
            assert found.outcome is Outcome.MISS
        assert "-DA" in found.why
        assert client.call("explain", kernel=name)
        assert client.call("invalidate", kernel=name, dry_run=True)["entries"] == 2
        assert client.call("invalidate", kernel=name)["entries"] == 2
        daemon.restart()
        assert client.call("invalidate", all=True)["entries"] == 0
    assert own_faults(daemon) == []
