"""Whose compile is begun next, through a real daemon with one slot."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from ptocache.errors import BadRequestError
from ptocache.outcome import Outcome
from tests.harness import DEADLINE_S, Gate, LoggingCompiler, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness import DaemonProcess


_SOURCE = re.compile(r" -c (\w+)\.c ")


class Queue:
    """A daemon that compiles one thing at a time, held up until :meth:`open`."""

    def __init__(self, make: Callable[..., DaemonProcess], place: Path) -> None:
        self.gate = Gate(place / "gate")
        self.compiler = LoggingCompiler(place / "cc", before=self.gate.script)
        self.daemon = make(jobs=1, trust_scripts=self.compiler.trust).start()
        self.answered: list[str] = []
        self.threads: list[threading.Thread] = []
        self.asked = 0
        self.kernels: set[str] = set()

    def ask(self, name: str, priority: str = "interactive") -> None:
        """Ask for a kernel from a client of its own, and wait until it stands in the queue."""
        self.ask_many([name], priority)

    def ask_many(self, names: list[str], priority: str = "interactive") -> None:
        """The same for several, in one batch of one client."""

        def work() -> None:
            with self.daemon.client() as client:
                jobs = [
                    client.job(
                        "host", {f"{name}.c": f"int {name};\n"}, outputs=["object"],
                        env=self.compiler.env, kernel=name, priority=priority,
                    )
                    for name in names
                ]  # fmt: skip
                for number, result in client.compile_many(jobs):
                    assert result.outcome in (Outcome.MISS, Outcome.JOINED), result.why
                    self.answered.append(names[number])

        thread = threading.Thread(target=work)
        thread.start()
        self.threads.append(thread)
        self.asked += len(names)
        self.kernels.update(names)
        wait_for(self._all_stand, "the request to stand in the queue")

    def _all_stand(self) -> bool:
        with self.daemon.client() as client:
            status = client.call("status")
        # A request waits a moment before its compile stands in the queue for a slot.
        compiles: bool = status["compiling"] >= len(self.kernels)
        return compiles and status["waiting"] >= self.asked

    def open(self) -> list[str]:
        """Let the compiler work until all have their answers; the order in which it was begun.

        (In which order the clients' threads note their answers is the machine's business.)"""
        self.gate.open()
        for thread in self.threads:
            thread.join(DEADLINE_S)
        assert len(self.answered) == self.asked
        return [_SOURCE.findall(run)[0] for run in self.compiler.compiles()]


@pytest.fixture
def queue(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Queue:
    return Queue(make_daemon, tmp_path)


def test_what_somebody_waits_for_comes_before_a_sweep(queue: Queue) -> None:
    queue.ask("first", "sweep")
    queue.ask_many(["sweep0", "sweep1", "sweep2"], "sweep")
    queue.ask("person")
    assert queue.open()[:2] == ["first", "person"]


def test_a_client_with_many_requests_lets_others_have_their_turn(queue: Queue) -> None:
    queue.ask_many([f"many{number}" for number in range(5)])
    queue.ask("single")
    order = queue.open()
    assert order.index("single") == 2


def test_a_sweep_that_somebody_joins_who_waits_is_begun_earlier(queue: Queue) -> None:
    queue.ask("first")
    queue.ask_many(["sweep0", "sweep1", "wanted"], "sweep")
    queue.ask("wanted")
    order = queue.open()
    assert order[:2] == ["first", "wanted"]
    assert sorted(order[2:]) == ["sweep0", "sweep1"]
    assert queue.answered.count("wanted") == 2


def test_a_priority_that_does_not_exist_is_named(daemon: DaemonProcess) -> None:
    with daemon.client() as client, pytest.raises(BadRequestError, match="interactive, sweep"):
        client.compile("host", {"k.c": "int k;\n"}, priority="urgent")


def test_the_setting_decides_for_every_call(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    with daemon.client(request_priority="sweep") as client:
        assert client.job("host", {"k.c": "int k;\n"}, priority="interactive").priority == 1
