"""Outputs around every limit of the wire, and far beyond: byte-equal on miss and hit, and no more of
them in the daemon's memory than passes through it. ``PTOCACHE_LARGEST_MIB`` is the largest size."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ptocache import wire
from ptocache.kernel import Lease
from ptocache.outcome import Outcome
from tests.faults.peers import MIB, Peak, own_faults, resident
from tests.harness import DaemonProcess, wait_for
from tests.simcann import KERNEL, SimCann

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptocache.client import Client
    from ptocache.result import Result

SIZES = (
    wire.INLINE_BYTES - 1, wire.INLINE_BYTES, wire.INLINE_BYTES + 1, MIB - 1, MIB + 1,
    wire.PIECE_BYTES, wire.PIECE_BYTES + 1, int(os.environ.get("PTOCACHE_LARGEST_MIB", 100)) * MIB + 1,
)  # fmt: skip


class Rig(NamedTuple):
    cann: SimCann
    daemon: DaemonProcess
    client: Client


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("large")
    cann = SimCann.make(place / "cann")
    daemon = DaemonProcess(place / "store")
    daemon.env["HOME"] = str(daemon.place)
    with daemon.start().client() as client:
        yield Rig(cann, daemon, client)
        faults = own_faults(daemon)
    daemon.clean_up()
    assert faults == []


def digest_of(result: Result) -> tuple[int, str]:
    (output,) = result.outputs.values()
    return len(output.buffer), hashlib.sha256(output.buffer).hexdigest()


def forget_memory(rig: Rig) -> None:
    """Another daemon on the same store: the next hit comes from the disk."""
    rig.client.close()
    rig.daemon.restart()


@pytest.mark.kind("message_size_limit")
@pytest.mark.parametrize("size", SIZES)
def test_message_size_limit_is_none_for_a_kernel_which_comes_back_as_it_went(
    rig: Rig, size: int
) -> None:
    data = hashlib.sha256(b"%d" % size).digest() * (size // 32 + 1)
    data = data[:size]
    wanted = (size, hashlib.sha256(data).hexdigest())
    material = {"size": str(size)}
    peak = Peak(rig.daemon)
    lease = rig.client.kernel("host", material)
    assert isinstance(lease, Lease)
    made = lease.put({"k.bin": data})
    assert (made.outcome, digest_of(made)) == (Outcome.MISS, wanted)
    hit = rig.client.kernel("host", material)
    assert not isinstance(hit, Lease)
    assert (hit.outcome, digest_of(hit)) == (Outcome.MEMORY_HIT, wanted)
    # The bundle while it is taken in, which grows piece by piece; nothing of it afterwards.
    assert peak.growth < 3 * size + 64 * MIB
    assert hit.outputs["k.bin"].file is None or size > wire.INLINE_BYTES
    wait_for(lambda: resident(rig.daemon) < 160 * MIB, "the daemon to give it back")


@pytest.mark.kind("message_size_limit")
@pytest.mark.parametrize("size", SIZES)
def test_message_size_limit_is_none_for_a_compile_which_comes_back_as_the_tool_made_it(
    rig: Rig, size: int
) -> None:
    def compile_it() -> Result:
        return rig.client.compile(
            "ascendc", {"k.asc": KERNEL + f"// {size}\n"}, env=rig.cann.env(), outputs=["aibin"]
        )

    rig.cann.knob("ld.lld.output-bytes", size - overhead(rig))
    peak = Peak(rig.daemon)
    made = compile_it()
    # The sections behind the padding are aligned: a size that is no multiple of 8 cannot be had.
    length, _ = digest_of(made)
    assert abs(length - size) < 8
    assert made.outcome is Outcome.MISS
    hit = compile_it()
    assert (hit.outcome, digest_of(hit)) == (Outcome.MEMORY_HIT, digest_of(made))
    assert peak.growth < 3 * size + 64 * MIB
    wait_for(lambda: resident(rig.daemon) < 160 * MIB, "the daemon to give it back")


def test_largest_of_both_come_from_the_disk_as_they_were(rig: Rig) -> None:
    """A restarted daemon checks them before it serves them for the first time."""
    size = SIZES[-2]
    rig.cann.knob("ld.lld.output-bytes", size)
    made = rig.client.compile("ascendc", {"k.asc": KERNEL + "// disk\n"}, env=rig.cann.env())
    lease = rig.client.kernel("host", {"from": "disk"})
    assert isinstance(lease, Lease)
    put = lease.put({"k.bin": b"\0" * size})
    forget_memory(rig)
    hit = rig.client.compile("ascendc", {"k.asc": KERNEL + "// disk\n"}, env=rig.cann.env())
    kernel = rig.client.kernel("host", {"from": "disk"})
    assert not isinstance(kernel, Lease)
    assert (hit.outcome, digest_of(hit)) == (Outcome.DISK_HIT, digest_of(made))
    assert (kernel.outcome, digest_of(kernel)) == (Outcome.DISK_HIT, digest_of(put))


def overhead(rig: Rig) -> int:
    """What the simulated linker's file holds besides its padding."""
    padding = 100_000
    rig.cann.knob("ld.lld.output-bytes", padding)
    small = rig.client.compile("ascendc", {"k.asc": KERNEL + "// small\n"}, env=rig.cann.env())
    return digest_of(small)[0] - padding
