"""Requests with words and numbers that nothing means: answered or refused, and never a fault of the daemon's."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache import wire
from ptocache.outcome import Outcome
from tests.faults.peers import own_faults, request_of
from tests.faults.test_floods import FIELDS, packed
from tests.harness import DaemonProcess, RawPeer

if TYPE_CHECKING:
    from collections.abc import Callable

ENV = {"PATH": os.environ.get("PATH", "")}
ODD: tuple[Any, ...] = (
    1 << 63, (1 << 64) - 1, -(1 << 63), 1e308, float("nan"), "\udc80", "\0", "0" * 64, [None], {"B=": "x"},
    ["/a", "/a"], ["/\0"], ["/a="], ["/"] * 99,
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
    "compile",
    "peek",
    "reject",
    "digests",
    "bypassed",
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


MEANT: tuple[tuple[Any, ...], ...] = (
    ("/dev/zero", 0, 0, 0, 0, 0), ("/proc/self/mem", 1, 1, 1, 1, 1), ("/\udc80", -1, 1 << 63, 0, 0, 0),
    ("/\0", 0, 0, 0, 0, 0), ("/" * 70_000, 0, 0, 0, 0, 0), ("/tmp", True, 0, 0, 0, 0), ("/tmp",), ("", 0, 0, 0, 0, 0),
    (b"/tmp", 0, 0, 0, 0, 0), ("/tmp", 0.5, 0, 0, 0, 0), ("/tmp", (1 << 64) - 1, 0, 0, 0, 0),
)  # fmt: skip


def test_no_file_that_is_meant_oddly_has_a_digest(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon().start()
    with RawPeer(daemon.socket) as peer:
        for row in MEANT:
            peer.say({"type": "digests", "id": 1, "files": [list(row)]})
            found = peer.hear()
            assert found.get("value") == [""] or found["error"]["code"] == "bad_request"
        peer.say({"type": "digests", "id": 2, "files": [list(MEANT[0])] * 65})
        assert peer.hear()["error"]["code"] == "bad_request"
    assert own_faults(daemon) == []


NO_BASES: tuple[Any, ...] = (
    ["a"], ["/a/"], ["/a/../b"], ["//a"], ["/"], ["/a="], ["/\0"], ["/a"] * 17, [1], "/a", {"/a": 1},
)  # fmt: skip


@pytest.mark.parametrize("kind", ["compile", "peek", "get"])
def test_a_base_that_cannot_be_is_refused_by_the_daemon_too(
    kind: str, make_daemon: Callable[..., DaemonProcess]
) -> None:
    daemon = make_daemon().start()
    request = wire.request_document(request_of(b"int k;", full=True))
    for odd in NO_BASES:
        with RawPeer(daemon.socket) as peer:
            message = {"type": kind, "id": 1, "key": "0" * 64, "source_dir": "", "bases": odd}
            peer.say({**message, "request": packed({**request, "bases": odd})})
            found = peer.hear()
            found = msgpack.unpackb(found["answer"]) if kind == "compile" else found
            assert found["error"]["code"] == "bad_request"
            assert "base" in found["error"]["message"]
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
