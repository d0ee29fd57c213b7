"""Many processes that all find no daemon at the same moment.

``PTOCACHE_START_ROUNDS`` is how often forty serves and forty clients start at once (``make soak``: 50).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import client as client_module
from ptocache.client import connect
from tests.faults.peers import Forked
from tests.harness import (
    DEADLINE_S,
    ClientProcess,
    at_once,
    compile_directly,
    daemons_of,
    short_folder,
    wait_for,
)
from tests.nursery import nursery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nursery import Fostered

SOURCE = "int answer(void) { return 42; }\n"
STARTERS = 40
ALONE = 8
"""Of those who compile by themselves: nothing of theirs is shared, and each costs a second of work."""
ROUNDS = int(os.environ.get("PTOCACHE_START_ROUNDS", "1"))
EXIT_ALREADY_SERVED = 5


def only_one(root: Path) -> int:
    """The pid of the one daemon of a store. (A tool that it starts is still called like it for a moment.)"""
    wait_for(lambda: len(daemons_of(root)) == 1, "one daemon to serve")
    return daemons_of(root)[0]


def gone(root: Path) -> None:
    wait_for(lambda: not daemons_of(root), "the daemon to end")


@pytest.fixture
def place() -> Iterator[Path]:
    """A short, private folder for sockets and stores; daemons that live in it are ended."""
    made = short_folder()
    yield made
    for root in made.iterdir():
        for pid in daemons_of(root / "store"):
            with contextlib.suppress(ProcessLookupError):
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


def storm(env: dict[str, str]) -> list[dict[str, object]]:
    return Forked(STARTERS, lambda _: ask_as(env)).go().results()


def all_answered(results: list[dict[str, object]]) -> None:
    """Each has the same bytes from one compile, and nobody had to say anything."""
    outcomes = [item["outcome"] for item in results]
    assert outcomes.count("miss") == 1
    assert set(outcomes) <= {"miss", "joined", "memory_hit", "disk_hit"}
    assert [item["warnings"] for item in results] == [[]] * STARTERS
    assert len({str(item["outputs"]) for item in results}) == 1


@pytest.mark.kind("daemon_started_twice")
def test_daemon_started_twice_by_forty_clients_is_one_and_answers_each(place: Path) -> None:
    own = place / "0"
    own.mkdir()
    results = storm(environment(own, PTOCACHE_REQUIRE="1"))
    all_answered(results)
    served = only_one(own / "store")
    os.kill(served, signal.SIGTERM)
    gone(own / "store")
    assert not (own / "run" / "s").exists()


class Serves:
    """``ptocache serve``, many times."""

    def __init__(self, env: dict[str, str], place: Path) -> None:
        self._env = env
        self._logs = [place / f"serve-{number}" for number in range(STARTERS)]
        self._processes: list[Fostered] = []

    def start_one(self) -> None:
        with open(self._logs[len(self._processes)], "wb") as log:
            words = ["ptocache", "serve"]
            self._processes.append(
                nursery().command(words, self._env, "/", log.fileno(), log.fileno())
            )

    def left(self) -> list[Fostered]:
        """Those that have not ended."""
        return [process for process in self._processes if process.poll() is None]

    def losers(self) -> set[tuple[int | None, str]]:
        """How those ended that have, each way once: exit code and everything that they said."""
        ends = zip(self._processes, self._logs, strict=True)
        return {
            (process.returncode, log.read_text())
            for process, log in ends
            if process.returncode is not None
        }


def ask_as(env: dict[str, str]) -> dict[str, object]:
    """What a client in this environment gets; for a process of its own."""
    os.environ.clear()
    os.environ.update(env)
    # Forty and what else the machine has to do: patience is not what is tested.
    client_module.START_S = DEADLINE_S
    with warnings.catch_warnings(record=True) as caught, connect() as client:
        warnings.simplefilter("always")
        found = client.compile("host", {"k.c": SOURCE}, outputs=["object"])
        digest = hashlib.sha256(found.outputs["object"].buffer).hexdigest()
    said = [str(item.message) for item in caught]
    return {"outcome": found.outcome.label, "outputs": digest, "warnings": said}


@pytest.mark.kind("daemon_started_twice")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_daemon_started_twice_by_forty_serves_and_forty_clients_is_one_and_losers_are_quiet(
    place: Path, number: int
) -> None:
    own = place / str(number)
    own.mkdir()
    store = own / "store"
    env = environment(own, PTOCACHE_REQUIRE="1")
    serves = Serves(env, own)
    clients = Forked(STARTERS, lambda _: ask_as(env), DEADLINE_S)
    # Most clients find nobody, some serves come when one is served: the barrier opens in between.
    for count in range(STARTERS):
        serves.start_one()
        if count == number % STARTERS:
            clients.go()
    all_answered(clients.results())

    def living() -> list[int]:
        return [*(process.pid for process in serves.left()), *daemons_of(store)]

    wait_for(lambda: len(living()) == 1, "all but one to end")
    (served,) = living()
    said = (
        f"ptocache: a daemon already serves the store {store} (ptocache status tells more of it)\n"
    )
    assert serves.losers() == {(EXIT_ALREADY_SERVED, said)}
    with connect(env=env) as client:
        assert client.call("status")["pid"] == served
    os.kill(served, signal.SIGTERM)
    wait_for(lambda: not living(), "the one to end")
    assert not (own / "run" / "s").exists()


@pytest.mark.kind("stale_socket_file")
def test_stale_socket_file_keeps_none_of_forty_clients_from_starting_one_daemon(
    place: Path,
) -> None:
    own = place / "0"
    own.mkdir()
    env = environment(own, PTOCACHE_REQUIRE="1")
    assert [item["outcome"] for item in at_once([ClientProcess(SOURCE, env, outputs=["object"])])]
    os.kill(daemons_of(own / "store")[0], signal.SIGKILL)
    gone(own / "store")
    assert (own / "run" / "s").exists()
    results = storm(env)
    only_one(own / "store")
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
    results = at_once([ClientProcess(SOURCE, env, outputs=["object"]) for _ in range(2)])
    for item in results:
        assert (item["outcome"], item["reason"]) == ("bypass", "no_daemon")
        warned = item["warnings"]
        assert isinstance(warned, list)
        assert len(warned) == 1
        assert "version '999'" in warned[0]
    assert daemons_of(own / "store") == []
