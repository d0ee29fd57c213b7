"""Kernels that a framework builds by itself: hits, leases, keys, modes, and what is never stored."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import wire
from ptocache.client import connect
from ptocache.errors import (
    BadRequestError,
    DaemonUnavailableError,
    OutputRejectedError,
    PtocacheWarning,
)
from ptocache.kernel import Lease
from ptocache.outcome import Cache, Outcome, Reason
from ptocache.result import Result
from ptocache_cli.render import entries
from tests.harness import DEADLINE_S, DaemonProcess, LoggingCompiler, wait_for
from tests.kernel_process import KernelProcess, first_of, kernel_stats, until_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ptocache.client import Client

    MakeDaemon = Callable[..., DaemonProcess]

MATERIAL = {"source": "__global__ void gemm();" * 20, "block": "128x64", "framework": "tile 1.0"}
FILES = {"kernel.so": b"machine code", "params.json": b'{"n": 4}'}


def ask(client: Client, material: Any = MATERIAL, **more: Any) -> Result | Lease:
    return client.kernel("host", material, **{"kernel": "gemm", **more})


def lease(client: Client, material: Any = MATERIAL, **more: Any) -> Lease:
    found = ask(client, material, **more)
    assert isinstance(found, Lease)
    return found


def hit(client: Client, material: Any = MATERIAL, **more: Any) -> Result:
    found = ask(client, material, **more)
    assert isinstance(found, Result)
    return found


def held(result: Result) -> dict[str, bytes]:
    return {name: bytes(item.buffer) for name, item in result.outputs.items()}


@pytest.fixture
def client(shared_daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of the shared daemon."""
    with shared_daemon.client(request_salt=request.node.name) as found:
        yield found


@pytest.fixture
def own(daemon: DaemonProcess) -> Iterator[Client]:
    """A client of a daemon of its own."""
    with daemon.client() as found:
        yield found


def is_stored(client: Client, key: str) -> bool:
    return client.get(key) is not None


# --- hits and leases


def test_who_asks_first_builds_and_who_asks_later_has_it(
    daemon: DaemonProcess, own: Client
) -> None:
    first = lease(own)
    assert first.stored
    assert first.why == "no entry of this kernel yet"
    put = first.put(FILES, compile_ms=6300)
    assert (put.outcome, put.key, held(put)) == (Outcome.MISS, first.key, FILES)
    again = hit(own)
    assert (again.outcome, again.key, held(again)) == (Outcome.MEMORY_HIT, first.key, FILES)
    assert again.compile_ms == 6300
    assert again.identity == put.identity != ""
    daemon.restart()
    later = hit(own)
    assert (later.outcome, held(later)) == (Outcome.DISK_HIT, FILES)
    numbers = kernel_stats(daemon)
    assert (numbers["miss"], numbers["memory_hit"], numbers["disk_hit"]) == (1, 1, 1)
    assert numbers["saved_ms"] == 2 * 6300


def test_one_of_sixteen_processes_builds_and_fifteen_join(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    processes = [KernelProcess(daemon) for _ in range(16)]
    try:
        for process in processes:
            process.ready()
        for process in processes:
            process.ask(MATERIAL)
        until_waiting(daemon, 16)
        leader = first_of(processes)
        assert leader.hear()["got"] == "lease"
        assert not any(process.has_said() for process in processes)
        assert leader.put(k=b"built once")["outcome"] == "miss"
        others = [process.hear() for process in processes if process is not leader]
    finally:
        for process in processes:
            process.__exit__()
    assert {(item["outcome"], item["files"]["k"]) for item in others} == {
        ("joined", b"built once".hex())
    }
    numbers = kernel_stats(daemon)
    assert (numbers["requests"], numbers["miss"], numbers["joined"]) == (16, 1, 15)


def test_large_files_and_file_modes_arrive_as_they_were(client: Client, tmp_path: Path) -> None:
    large = bytes(range(256)) * ((2 * wire.PIECE_BYTES + 256) // 256)
    path = tmp_path / "tool"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o750)
    put = lease(client).put({"large": large, "bin/tool": path, "text": "grün", "empty": b""})
    for found in (put, hit(client)):
        assert held(found) == {
            "large": large, "bin/tool": b"#!/bin/sh\n", "text": "grün".encode(), "empty": b"",
        }  # fmt: skip
        assert found.outputs["bin/tool"].mode == 0o750
        assert found.outputs["large"].file is not None


def test_sixty_four_large_files_travel_as_descriptors(client: Client) -> None:
    files = {f"f{n}": bytes([n]) * (wire.INLINE_BYTES + 1) for n in range(wire.MAX_FILES)}
    assert lease(client).put(files).outcome is Outcome.MISS
    assert held(hit(client)) == files


def test_kernel_or_build_builds_once(client: Client) -> None:
    built: list[int] = []

    def build() -> dict[str, bytes]:
        built.append(1)
        return FILES

    found = [client.kernel_or_build("host", MATERIAL, build) for _ in range(3)]
    assert built == [1]
    assert [item.outcome for item in found] == [
        Outcome.MISS, Outcome.MEMORY_HIT, Outcome.MEMORY_HIT,
    ]  # fmt: skip
    assert all(held(item) == FILES for item in found)


def test_an_abandoned_lease_goes_to_the_next_who_waits(daemon: DaemonProcess) -> None:
    with KernelProcess(daemon) as one, KernelProcess(daemon) as other:
        one.ask(MATERIAL)
        assert one.hear()["got"] == "lease"
        other.ask(MATERIAL)
        until_waiting(daemon, 2)
        one.abandon("no memory for the front end")
        assert other.hear()["got"] == "lease"
        assert other.put(k=b"second try")["outcome"] == "miss"
    numbers = kernel_stats(daemon)
    assert (numbers["miss"], numbers["failure_reasons"]) == (1, {"compile_failed": 1})


def test_an_error_in_the_block_abandons_and_passes_through(
    daemon: DaemonProcess, own: Client
) -> None:
    with pytest.raises(ZeroDivisionError), lease(own):
        raise ZeroDivisionError("in the framework")
    found = own.call("explain", kernel="gemm")
    assert found["request"]["detail"] == "in the framework"
    with lease(own):
        pass
    assert kernel_stats(daemon)["failure_reasons"] == {"compile_failed": 2}
    # The connection went back: a third lease is granted over it.
    assert lease(own).put(FILES).outcome is Outcome.MISS


def test_a_lease_ends_once(client: Client) -> None:
    first = lease(client)
    first.put(FILES)
    with pytest.raises(BadRequestError, match="ended"):
        first.put(FILES)
    first.abandon("too late, and no error")
    assert hit(client).outcome is Outcome.MEMORY_HIT


def test_a_thread_that_asks_again_for_what_it_holds_does_not_wait_for_itself(
    client: Client,
) -> None:
    first = lease(client)
    lease(client)
    again = lease(client)
    assert (again.key, again.stored) == (first.key, True)
    assert again.put({"k": b"again"}).outcome is Outcome.MISS
    late = first.put({"k": b"first"})
    assert (late.outcome, late.reason, held(late)) == (
        Outcome.BYPASS, Reason.LEASE_LOST, {"k": b"first"},
    )  # fmt: skip
    assert held(hit(client)) == {"k": b"again"}
    # Asked again only where it is the same request.
    assert lease(client, {"n": "1"}).key != lease(client, {"n": "2"}).key


def test_a_thread_with_two_clients_does_not_wait_for_itself(
    shared_daemon: DaemonProcess, client: Client
) -> None:
    first = lease(client)
    with shared_daemon.client(request_salt=client.settings["request.salt"]) as second:
        again = lease(second)
        assert (again.key, again.stored) == (first.key, True)
        assert again.put(FILES).outcome is Outcome.MISS
    assert first.put(FILES).reason is Reason.LEASE_LOST
    assert hit(client).key == first.key


def test_files_that_cannot_be_sent_leave_the_lease_as_it_was(
    client: Client, tmp_path: Path
) -> None:
    first = lease(client)
    wrong: list[dict[str, Any]] = [
        {}, {"../k": b""}, {"": b""}, {"k": tmp_path / "absent"}, {"\ud800": b""}, {"k": "\ud800"},
        {f"f{n}": b"" for n in range(wire.MAX_FILES + 1)},
    ]  # fmt: skip
    for files in wrong:
        with pytest.raises(BadRequestError):
            first.put(files)
    with pytest.raises(BadRequestError, match="compile_ms"):
        first.put(FILES, compile_ms=-1)
    assert first.put(FILES).outcome is Outcome.MISS


@pytest.mark.parametrize("material", [{}, {"n": 4}, {"path": None}, {"t": "\ud800" * 300}])
def test_material_that_could_be_misread_is_refused(client: Client, material: Any) -> None:
    with pytest.raises(BadRequestError):
        ask(client, material)


# --- keys


@pytest.mark.parametrize(
    ("material", "more"),
    [
        ({**MATERIAL, "block": "64x64"}, {}),
        ({**MATERIAL, "source": MATERIAL["source"] + " "}, {}),
        ({**MATERIAL, "extra": ""}, {}),
        ({**MATERIAL, "block": MATERIAL["framework"], "framework": MATERIAL["block"]}, {}),
        ({**MATERIAL, "block": MATERIAL["block"].encode()}, {}),
        (MATERIAL, {"arch": "dav-2201"}),
        (MATERIAL, {"salt": "pepper"}),
        (MATERIAL, {"env": {"CPATH": "/opt/include"}}),
        (MATERIAL, {"env": {"SOURCE_DATE_EPOCH": "1"}}),
    ],
)
def test_whatever_counts_misses_and_the_first_kernel_stays(
    client: Client, material: dict[str, Any], more: dict[str, Any]
) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    changed = {**more, "env": {**env, **more.get("env", {})}}
    first = lease(client, env=env).put({"k": b"first"})
    other = lease(client, material, **changed).put({"k": b"other"})
    assert other.key != first.key
    assert held(hit(client, env=env)) == {"k": b"first"}
    assert held(hit(client, material, **changed)) == {"k": b"other"}


def test_what_cannot_change_a_kernel_does_not_count(client: Client) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    lease(client, env=env).put(FILES)
    reordered = dict(reversed(MATERIAL.items()))
    assert hit(client, reordered, env=env).outcome is Outcome.MEMORY_HIT
    assert hit(client, kernel="another name", env=env).outcome is Outcome.MEMORY_HIT
    undeclared = {**env, "HOME": "/elsewhere", "RANK": "7"}
    assert hit(client, env=undeclared).outcome is Outcome.MEMORY_HIT
    as_bytes = {**MATERIAL, "source": MATERIAL["source"].encode()}
    assert hit(client, as_bytes, env=env).outcome is Outcome.MEMORY_HIT


def test_a_declared_variable_counts_in_every_process(shared_daemon: DaemonProcess) -> None:
    material = {**MATERIAL, "of": "two processes"}
    with (
        KernelProcess(shared_daemon, CPATH="/a") as one,
        KernelProcess(shared_daemon, CPATH="/b") as other,
    ):
        one.ask(material)
        assert one.hear()["got"] == "lease"
        one.put(k=b"for /a")
        other.ask(material)
        asked = other.hear()
        assert asked["got"] == "lease"
        assert "CPATH" in asked["why"]
        other.put(k=b"for /b")
    with KernelProcess(shared_daemon, CPATH="/a") as again:
        again.ask(material)
        found = again.hear()
    assert (found["outcome"], found["files"]["k"]) == ("memory_hit", b"for /a".hex())


def test_a_compile_and_a_kernel_never_answer_for_each_other(client: Client) -> None:
    source = {"k.c": "int one(void) { return 1; }\n"}
    before = client.stats()["caches"]
    object_ = held(client.compile("host", source, outputs=["object"]))
    lease(client, source).put(FILES)
    assert held(hit(client, source)) == FILES
    assert held(client.compile("host", source, outputs=["object"])) == object_
    after = client.stats()["caches"]
    for cache in ("binary", "kernel"):
        assert after[cache]["requests"] - before[cache]["requests"] == 2


def test_short_texts_are_shown_and_long_ones_are_not_stored(client: Client) -> None:
    secret = "def kernel(): ...\n" * 20
    put = lease(client, {"source": secret, "block": "128x64"}, kernel="shown").put(FILES)
    (entry,) = client.describe(put.key)["entries"]
    assert entry["action"]["kind"] == "kernel"
    assert entry["action"]["keyed"] == {"block": "128x64"}
    assert entry["action"]["inputs"]["source"]["size"] == len(secret)
    assert entry["commands"] == []
    assert entry["components"][0]["role"] == "c"
    shown = entries(client.describe(put.key), 0.0)
    assert "block=128x64" in shown
    assert "by its framework" in shown
    assert "randomised" not in shown
    other = lease(client, {"source": secret, "block": "64x64"}, kernel="shown")
    assert "128x64" in other.why
    assert "64x64" in other.why
    other.abandon()


# --- modes


def test_refresh_builds_again_and_replaces(client: Client) -> None:
    old = lease(client).put({"k": b"old"})
    assert lease(client, mode="refresh").put({"k": b"new"}).outcome is Outcome.MISS
    assert held(hit(client)) == {"k": b"new"}
    assert len(client.describe(old.key)["entries"]) == 1


@pytest.mark.parametrize(("mode", "reason"), [("bypass", "asked"), ("read-only", "read_only")])
def test_bypass_and_read_only_store_nothing(client: Client, mode: str, reason: str) -> None:
    put = lease(client, mode=mode).put(FILES)
    assert (put.outcome, put.reason.label, held(put)) == (Outcome.BYPASS, reason, FILES)
    assert not is_stored(client, put.key)
    lease(client).put(FILES)
    found = ask(client, mode=mode)
    assert isinstance(found, Lease if mode == "bypass" else Result)


def test_who_waits_for_a_kernel_that_is_not_stored_gets_it_too(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(mode="read-only").start()
    with KernelProcess(daemon) as one, KernelProcess(daemon) as other:
        one.ask(MATERIAL)
        assert one.hear()["got"] == "lease"
        other.ask(MATERIAL)
        until_waiting(daemon, 2)
        big = b"x" * (wire.INLINE_BYTES + 1)
        assert one.put(k=big)["reason"] == "read_only"
        joined = other.hear()
    assert (joined["outcome"], joined["files"]["k"]) == ("joined", big.hex())


def test_the_salt_of_the_daemon_counts(client: Client, make_daemon: MakeDaemon) -> None:
    plain = lease(client, salt="same")
    with make_daemon(salt="pepper").start().client() as other:
        salted = lease(other, salt="same")
        assert salted.key != plain.key
        salted.abandon()


# --- what is not stored


def test_a_toolchain_replaced_while_the_kernel_is_built_makes_no_entry(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with (
        KernelProcess(daemon, **logging_compiler.env) as one,
        KernelProcess(daemon, **logging_compiler.env) as other,
    ):
        one.ask(MATERIAL)
        old = one.hear()
        other.ask(MATERIAL)
        until_waiting(daemon, 2)
        logging_compiler.write(extra="-O1")
        put = one.put(k=b"by the old one")
        assert (put["outcome"], put["reason"]) == ("bypass", "toolchain_changed")
        assert bytes.fromhex(put["files"]["k"]) == b"by the old one"
        new = other.hear()
        assert new["got"] == "lease"
        assert new["key"] != old["key"]
        assert other.put(k=b"by the new one")["outcome"] == "miss"
        one.ask(MATERIAL)
        assert bytes.fromhex(one.hear()["files"]["k"]) == b"by the new one"
    assert kernel_stats(daemon)["bypass_reasons"] == {"toolchain_changed": 1}


def test_a_toolchain_removed_while_the_kernel_is_built_breaks_no_build(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        first = lease(client, env=logging_compiler.env)
        logging_compiler.path.unlink()
        put = first.put(FILES)
        assert (put.outcome, held(put)) == (Outcome.BYPASS, FILES)
        assert put.reason is Reason.TOOLCHAIN_CHANGED
        again = lease(client, env=logging_compiler.env)
        assert not again.stored
        assert again.put(FILES).reason is Reason.TOOL_NOT_FOUND


def test_a_waiter_whose_toolchain_moved_meanwhile_asks_anew(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with (
        KernelProcess(daemon, **logging_compiler.env) as one,
        KernelProcess(daemon, **logging_compiler.env) as other,
    ):
        one.ask(MATERIAL)
        old = one.hear()
        other.ask(MATERIAL)
        until_waiting(daemon, 2)
        logging_compiler.write(extra="-O1")
        one.abandon("given up")
        new = other.hear()
        assert (new["got"], new["stored"]) == ("lease", True)
        assert new["key"] != old["key"]
        assert other.put(k=b"by the new one")["outcome"] == "miss"


def test_an_invalidate_while_the_kernel_is_built_keeps_it_out(client: Client) -> None:
    first = lease(client)
    client.call("invalidate", all=True)
    put = first.put(FILES)
    assert (put.outcome, put.reason) == (Outcome.BYPASS, Reason.INVALIDATED)
    assert held(put) == FILES
    assert isinstance(ask(client), Lease)


def test_an_uncertain_toolchain_gives_a_lease_that_stores_nothing(
    client: Client, logging_compiler: LoggingCompiler
) -> None:
    for _ in range(2):
        first = lease(client, env=logging_compiler.env)
        assert not first.stored
        assert "script" in first.why
        put = first.put(FILES)
        assert (put.outcome, held(put)) == (Outcome.BYPASS, FILES)
        assert put.reason is Reason.UNIDENTIFIED_TOOLCHAIN


def test_a_toolchain_that_is_not_there_breaks_no_build(
    shared_daemon: DaemonProcess, client: Client
) -> None:
    before = kernel_stats(shared_daemon)["bypass_reasons"].get("tool_not_found", 0)
    put = lease(client, env={"CC": "/nowhere/cc"}).put(FILES)
    assert (put.outcome, put.reason) == (Outcome.BYPASS, Reason.TOOL_NOT_FOUND)
    unknown = client.kernel("no-such", MATERIAL)
    assert isinstance(unknown, Lease)
    assert held(unknown.put(FILES)) == FILES
    assert kernel_stats(shared_daemon)["bypass_reasons"]["tool_not_found"] == before + 2


def compiled(directory: Path) -> bytes:
    (directory / "k.c").write_text("int one(void) { return 1; }\n")
    cc = shutil.which("cc")
    assert cc is not None
    subprocess.run([cc, "-shared", "-o", "k.so", "k.c"], cwd=directory, check=True)
    return (directory / "k.so").read_bytes()


def test_a_damaged_elf_image_is_refused_and_the_next_may_build(
    shared_daemon: DaemonProcess, client: Client, tmp_path: Path
) -> None:
    before = kernel_stats(shared_daemon)["rejected"]
    whole = compiled(tmp_path)
    with pytest.raises(OutputRejectedError, match=r"lib/k\.so") as caught:
        lease(client).put({"note": b"fine", "lib/k.so": whole[:-1]})
    assert caught.value.result.outcome is Outcome.FAILURE  # type: ignore[attr-defined]
    assert not is_stored(client, caught.value.result.key)  # type: ignore[attr-defined]
    assert lease(client).put({"lib/k.so": whole}).outcome is Outcome.MISS
    assert held(hit(client)) == {"lib/k.so": whole}
    assert kernel_stats(shared_daemon)["rejected"] == before + 1


def test_a_refused_kernel_hands_the_lease_to_who_waits(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    material = {**MATERIAL, "of": "the refused"}
    whole = compiled(tmp_path)
    with KernelProcess(shared_daemon) as one, KernelProcess(shared_daemon) as other:
        one.ask(material)
        assert one.hear()["got"] == "lease"
        other.ask(material)
        until_waiting(shared_daemon, 2)
        assert one.put(k=whole[:100])["code"] == "bad_elf"
        assert other.hear()["got"] == "lease"
        assert other.put(k=whole)["outcome"] == "miss"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon whose store may hold 1 MiB."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("small") / "store", max_size="1M")
    try:
        yield daemon.start()
    finally:
        daemon.clean_up()


@pytest.mark.parametrize("size", [(1 << 20) - 100, (1 << 20) + 1])
def test_a_kernel_too_large_for_the_store_is_an_answer_and_no_entry(
    small: DaemonProcess, size: int
) -> None:
    with small.client(request_salt=str(size)) as client:
        put = lease(client).put({"k": b"x" * size})
        assert (put.outcome, put.reason) == (Outcome.BYPASS, Reason.TOO_LARGE)
        assert put.outputs["k"].size == size
        assert not is_stored(client, put.key)
        assert lease(client).put({"k": b"small"}).outcome is Outcome.MISS


def test_who_waits_for_what_no_room_is_left_for_builds_at_once(small: DaemonProcess) -> None:
    daemon = small
    processes = [KernelProcess(daemon).ready() for _ in range(3)]
    try:
        for process in processes:
            process.ask(MATERIAL)
        until_waiting(daemon, 3)
        leader = first_of(processes)
        leader.hear()
        assert leader.put(k=b"x" * ((1 << 20) + 1))["reason"] == "too_large"
        others = [process.hear() for process in processes if process is not leader]
        assert [(item["got"], item["stored"]) for item in others] == [("lease", False)] * 2
    finally:
        for process in processes:
            process.__exit__()


# --- the store's other ways


def test_invalidate_gc_and_a_lost_index_treat_kernels_like_everything(
    daemon: DaemonProcess, own: Client
) -> None:
    put = lease(own).put(FILES)
    daemon.stop()
    for path in daemon.root.glob("index.sqlite*"):
        path.unlink()
    daemon.start()
    assert held(hit(own)) == FILES
    with sqlite3.connect(daemon.root / "index.sqlite") as connection:
        rows = connection.execute("SELECT action, cache, kernel FROM entries").fetchall()
    connection.close()
    assert rows == [(put.key, Cache.KERNEL, "gemm")]
    assert own.call("invalidate", kernel="gemm")["entries"] == 1
    lease(own).put(FILES)
    assert own.call("gc", max_size=0)["entries"] == 1
    assert isinstance(ask(own), Lease)


# --- without a daemon


def test_without_a_daemon_the_build_goes_on_and_says_so_once(tmp_path: Path) -> None:
    client = connect(root=tmp_path / "store", env={"HOME": str(tmp_path)}, client_autostart=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = lease(client)
        put = first.put(FILES)
        lease(client).put(FILES)
    assert [item.category for item in caught] == [PtocacheWarning]
    assert caught[0].filename == __file__
    assert not first.stored
    assert (put.outcome, put.reason) == (Outcome.BYPASS, Reason.NO_DAEMON)
    assert held(put) == FILES


def test_a_required_daemon_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    client = connect(
        root=tmp_path / "store", env={"HOME": str(tmp_path)},
        client_autostart=False, client_require=True,
    )  # fmt: skip
    with pytest.raises(DaemonUnavailableError):
        ask(client)


def test_a_daemon_that_grants_no_leases_is_as_good_as_none(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "KERNELS", "kernels of another kind")
    with (
        daemon.client(client_require=False) as client,
        pytest.warns(PtocacheWarning, match="older"),
    ):
        assert held(lease(client).put(FILES)) == FILES
    with daemon.client() as client, pytest.raises(DaemonUnavailableError, match="older"):
        ask(client)
    assert kernel_stats(daemon)["requests"] == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_daemon_that_ends_while_the_kernel_is_built_costs_nothing_but_the_entry(
    daemon: DaemonProcess, how: str
) -> None:
    with daemon.client(client_require=False) as client:
        first = lease(client)
        if how == "kill":
            daemon.kill()
        else:
            with daemon.client() as other:
                other.call("stop", now=True)
            assert daemon.process is not None
            daemon.process.wait(DEADLINE_S)
        with pytest.warns(PtocacheWarning):
            put = first.put(FILES)
    assert (put.outcome, put.reason, held(put)) == (Outcome.BYPASS, Reason.NO_DAEMON, FILES)


def test_a_daemon_that_stops_waits_for_the_lease(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        first = lease(client)
        with daemon.client() as other:
            other.call("stop")
        with daemon.client() as other:
            wait_for(lambda: not daemon.socket.exists(), "the socket to be withdrawn")
        assert first.put(FILES).outcome is Outcome.MISS
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == 0
        daemon.start()
        assert hit(client).outcome is Outcome.DISK_HIT


# --- the numbers


def test_every_request_ends_as_exactly_one_outcome(daemon: DaemonProcess, own: Client) -> None:
    lease(own).put(FILES)
    hit(own)
    lease(own, {"n": "1"}).abandon("no")
    lease(own, {"n": "2"}, mode="bypass").put(FILES)
    with pytest.raises(OutputRejectedError):
        lease(own, {"n": "3"}).put({"k": b"\x7fELF"})
    forgotten = lease(own, {"n": "4"})
    del forgotten
    wait_for(lambda: kernel_stats(daemon)["requests"] == 6, "the forgotten lease to be counted")
    numbers = kernel_stats(daemon)
    assert (numbers["miss"], numbers["memory_hit"], numbers["bypass"]) == (1, 1, 1)
    assert numbers["failure_reasons"] == {
        "compile_failed": 1, "output_rejected": 1, "cancelled": 1,
    }  # fmt: skip
