"""``ptocache inspect``: exit codes, JSON, and files that are none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ptocache import elf
from tests import elf_builder as b
from tests import real_images
from tests.harness import DEADLINE_S
from tests.system.cli_runner import ptocache

DEVICE = b.device_image("saxpy")


def written(folder: Path, data: bytes, name: str = "artifact") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def test_a_whole_artifact_is_accepted(tmp_path: Path) -> None:
    file = written(
        tmp_path, b.fat_object(DEVICE, b.device_image("two"), machine=elf.host_machine())
    )
    done = ptocache("inspect", file)
    assert (done.code, done.err) == (0, "")
    assert "host object" in done.out
    assert "saxpy" in done.out
    assert done.out.endswith("verdict  accepted\n")


def test_json_tells_the_same(tmp_path: Path) -> None:
    data = b.fat_object(DEVICE, b.device_image("two", flags=3), machine=elf.host_machine())
    file = written(tmp_path, data)
    done = ptocache("inspect", file, "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json()
    assert (found["file"], found["kind"], found["size"]) == (file, "host", len(data))
    assert (found["verdict"], found["reason"], found["fields"]) == ("accepted", "", {})
    first, second = found["nested_images"]
    assert data[first["offset"] : first["offset"] + first["size"]] == DEVICE
    assert (first["flags"], first["entry_symbols"]) == (0x940000, ["saxpy"])
    assert (second["flags"], second["entry_symbols"]) == (3, ["two"])


def test_a_damaged_artifact_is_rejected_with_its_reason(tmp_path: Path) -> None:
    file = written(tmp_path, DEVICE[:-1])
    done = ptocache("inspect", file)
    assert (done.code, done.err) == (1, "")
    assert "verdict  rejected: " in done.out
    done = ptocache("inspect", file, "--json")
    assert done.code == 1
    assert done.json()["verdict"] == "rejected"
    assert done.json()["fields"]["rule"] == "section_table"


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n"], ids=["empty", "script"])
def test_what_is_no_elf_is_rejected(tmp_path: Path, data: bytes) -> None:
    done = ptocache("inspect", written(tmp_path, data), "--json")
    assert done.code == 1
    assert done.json()["kind"] == "unknown"
    assert "magic number" in done.json()["reason"]


@pytest.mark.parametrize("what", ["absent", "folder", "fifo", "loop", "below a file", "long name"])
def test_what_cannot_be_read_is_wrong_use(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "below a file":
        path.write_bytes(b"")
        path /= "y"
    name = "n" * 5000 if what == "long name" else str(path)
    done = ptocache("inspect", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"ptocache: {name}: ")
    assert done.err.count("\n") == 1


def test_a_huge_file_is_not_read_into_memory(tmp_path: Path) -> None:
    path = Path(written(tmp_path, DEVICE))
    # Sparse: 64 GiB that no memory of a test machine could hold.
    os.truncate(path, 64 << 30)
    done = ptocache("inspect", str(path), "--json")
    assert done.code == 0
    assert done.json()["size"] == 64 << 30


def test_what_this_machine_s_compiler_makes_is_accepted(tmp_path: Path) -> None:
    source = tmp_path / "k.c"
    source.write_text("int k(int x) { return x + 1; }\n")
    output = tmp_path / "k.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", output], check=True, timeout=DEADLINE_S)
    found = ptocache("inspect", str(output), "--json").json()
    assert (found["kind"], found["form"], found["verdict"]) == ("host", "shared object", "accepted")
    assert "k" in found["entry_symbols"]


def test_a_real_fat_library(tmp_path: Path) -> None:
    found = ptocache("inspect", written(tmp_path, real_images.library()), "--json").json()
    assert found["verdict"] == "accepted"
    assert [item["offset"] - real_images.SECTION_OFFSET for item in found["nested_images"]] == list(
        real_images.STARTS
    )


def test_it_asks_no_daemon_and_makes_no_store(tmp_path: Path) -> None:
    env = {"PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_AUTOSTART": "1"}
    assert ptocache("inspect", written(tmp_path, DEVICE), env=env).code == 0
    assert not (tmp_path / "store").exists()
