"""Whose compile is next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ptocache.slots import Slots, Turn
from tests.harness import DEADLINE_S


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


class Stage:
    """Slots, and the order in which turns had theirs."""

    def __init__(self, count: int) -> None:
        self.slots = Slots(count)
        self.order: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.turns: dict[str, Turn] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, client: str, priority: int = 0) -> None:
        self.gates[name] = asyncio.Event()
        self.turns[name] = Turn(client, priority)
        self.tasks[name] = asyncio.create_task(self._run(name))
        await asyncio.sleep(0)

    async def _run(self, name: str) -> None:
        async with self.slots.use(self.turns[name]):
            self.order.append(name)
            await self.gates[name].wait()

    async def end(self, name: str) -> None:
        self.gates[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def end_all(self) -> list[str]:
        """Let each finish as soon as it has its slot; the order in which they had it."""
        while not all(task.done() for task in self.tasks.values()):
            for name in list(self.order):
                self.gates[name].set()
            await asyncio.sleep(0)
        return self.order


def test_as_many_run_at_once_as_there_are_slots() -> None:
    async def story() -> None:
        stage = Stage(2)
        for name in "abc":
            await stage.ask(name, "one")
        assert (stage.order, stage.slots.waiting) == (["a", "b"], 1)
        await stage.end("b")
        assert (stage.order, stage.slots.waiting) == (["a", "b", "c"], 0)
        await stage.end_all()
        await stage.ask("d", "one")
        assert stage.order[-1] == "d"
        await stage.end_all()

    play(story)


def test_one_client_is_served_by_arrival() -> None:
    async def story() -> None:
        stage = Stage(1)
        for name in "abcd":
            await stage.ask(name, "one")
        assert await stage.end_all() == list("abcd")

    play(story)


def test_clients_take_turns_however_many_requests_each_has() -> None:
    async def story() -> None:
        stage = Stage(1)
        for number in range(5):
            await stage.ask(f"sweep{number}", "sweeper")
        await stage.ask("single", "other")
        await stage.ask("third", "yet another")
        order = await stage.end_all()
        assert order[:4] == ["sweep0", "sweep1", "single", "third"]
        assert order[4:] == ["sweep2", "sweep3", "sweep4"]

    play(story)


def test_what_a_person_waits_for_comes_before_a_sweep() -> None:
    async def story() -> None:
        stage = Stage(1)
        await stage.ask("first", "a", 1)
        for number in range(3):
            await stage.ask(f"sweep{number}", f"client{number}", 1)
        await stage.ask("person", "b", 0)
        assert (await stage.end_all())[:2] == ["first", "person"]

    play(story)


def test_a_turn_that_somebody_more_urgent_waits_for_comes_earlier() -> None:
    async def story() -> None:
        stage = Stage(1)
        for name in ("first", "second", "third"):
            await stage.ask(name, "a", 1)
        stage.slots.hurry(stage.turns["third"], 0)
        stage.slots.hurry(stage.turns["second"], 2)
        stage.slots.hurry(stage.turns["first"], 0)
        assert await stage.end_all() == ["first", "third", "second"]

    play(story)


def test_who_gives_up_in_the_queue_takes_nothing_with_it() -> None:
    async def story() -> None:
        stage = Stage(1)
        for name in "abc":
            await stage.ask(name, "one")
        stage.tasks["b"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.tasks["b"]
        assert stage.slots.waiting == 1
        assert await stage.end_all() == ["a", "c"]

    play(story)


def test_a_slot_given_to_who_gives_up_at_that_moment_is_not_lost() -> None:
    async def story() -> None:
        stage = Stage(1)
        for name in "abc":
            await stage.ask(name, "one")
        stage.gates["a"].set()
        # a ends and hands its slot to b, which is cancelled before it can run.
        while not stage.turns["b"].ready.done():
            await asyncio.sleep(0)
        stage.tasks["b"].cancel()
        stage.gates["c"].set()
        await asyncio.wait_for(stage.tasks["c"], DEADLINE_S)
        assert stage.order[-1] == "c"

    play(story)


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_and_none_is_used_twice(seed: int) -> None:
    async def story() -> None:
        draw = random.Random(seed)
        slots, used, most = Slots(3), [0], [0]

        async def work() -> None:
            turn = Turn(draw.randrange(4), draw.randrange(3))
            async with slots.use(turn):
                used[0] += 1
                most[0] = max(most[0], used[0])
                try:
                    for _ in range(draw.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    used[0] -= 1

        tasks = []
        for _ in range(200):
            tasks.append(asyncio.create_task(work()))
            if draw.random() < 0.3:
                draw.choice(tasks).cancel()
            if draw.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), DEADLINE_S)
        assert (used, most, slots.waiting) == ([0], [3], 0)
        again = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.gather(*again)

    play(story)
