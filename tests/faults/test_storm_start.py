"""Many processes that all find no daemon at the same moment."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness import ClientProcess, at_once, compile_directly, daemons_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = "int answer(void) { return 42; }\n"
STARTERS = 40
ALONE = 16
"""Of those who compile by themselves: nothing of theirs is shared, and each costs a second of work."""
ENOUGH_S = 8.0
"""New rounds begin for so long; the first always does."""


def gone(root: Path) -> None:
    wait_for(lambda: not daemons_of(root), "the daemon to end")


@pytest.fixture
def place() -> Iterator[Path]:
    """A short, private folder for sockets and stores; daemons that live in it are ended."""
    made = Path(tempfile.mkdtemp(prefix="ptc-"))
    yield made
    for root in made.iterdir():
        for pid in daemons_of(root / "store"):
            os.kill(pid, signal.SIGTERM)
        gone(root / "store")
    shutil.rmtree(made)


def environment(place: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(place),
        "PTOCACHE_DIR": str(place / "store"),
        "PTOCACHE_SOCKET": str(place / "run" / "s"),
        "PTOCACHE_FSYNC": "0",
        **more,
    }


def storm(
    env: dict[str, str], compile_env: dict[str, str] | None = None
) -> list[dict[str, object]]:
    return at_once(
        [ClientProcess(SOURCE, env, compile_env, outputs=["object"]) for _ in range(STARTERS)]
    )


def test_forty_starters_get_one_daemon_and_each_an_answer(place: Path) -> None:
    deadline = time.monotonic() + ENOUGH_S
    rounds = 0
    while not rounds or time.monotonic() < deadline:
        own = place / str(rounds)
        own.mkdir()
        results = storm(environment(own, PTOCACHE_REQUIRE="1"))
        served = daemons_of(own / "store")
        assert len(served) == 1
        outcomes = [item["outcome"] for item in results]
        assert outcomes.count("miss") == 1
        assert set(outcomes) <= {"miss", "joined", "memory_hit"}
        assert [item["warnings"] for item in results] == [[]] * STARTERS
        assert len({str(item["outputs"]) for item in results}) == 1
        os.kill(served[0], signal.SIGTERM)
        gone(own / "store")
        assert not (own / "run" / "s").exists()
        rounds += 1


def test_forty_starters_after_a_killed_daemon_get_one_daemon(place: Path) -> None:
    own = place / "0"
    own.mkdir()
    env = environment(own, PTOCACHE_REQUIRE="1")
    assert [item["outcome"] for item in at_once([ClientProcess(SOURCE, env, outputs=["object"])])]
    os.kill(daemons_of(own / "store")[0], signal.SIGKILL)
    gone(own / "store")
    assert (own / "run" / "s").exists()
    results = storm(env)
    assert len(daemons_of(own / "store")) == 1
    assert {item["outcome"] for item in results} <= {"disk_hit", "memory_hit"}


def test_starters_without_a_place_for_a_store_compile_by_themselves(
    place: Path, tmp_path: Path
) -> None:
    own = place / "0"
    own.mkdir()
    (own / "file").write_bytes(b"in the way")
    env = environment(own, PTOCACHE_DIR=str(own / "file" / "store"))
    results = at_once([ClientProcess(SOURCE, env, outputs=["object"]) for _ in range(ALONE)])
    wanted = compile_directly(SOURCE.encode(), "k.c", [], tmp_path / "direct")
    digest = hashlib.sha256(wanted).hexdigest()
    for item in results:
        assert (item["outcome"], item["reason"]) == ("bypass", "no_daemon")
        assert item["outputs"] == {"object": digest}
        warned = item["warnings"]
        assert isinstance(warned, list)
        assert len(warned) == 1
        assert "cannot be used" in warned[0]
    assert (own / "file").read_bytes() == b"in the way"


def test_store_that_its_daemon_refuses_is_said_and_each_compiles_by_itself(place: Path) -> None:
    own = place / "0"
    (own / "store").mkdir(parents=True)
    (own / "store" / "VERSION").write_text("999\n")
    env = environment(own)
    results = at_once([ClientProcess(SOURCE, env, outputs=["object"]) for _ in range(4)])
    for item in results:
        assert (item["outcome"], item["reason"]) == ("bypass", "no_daemon")
        warned = item["warnings"]
        assert isinstance(warned, list)
        assert len(warned) == 1
        assert "version '999'" in warned[0]
    assert daemons_of(own / "store") == []
