"""Processes that wait for each other's kernels, and forks in the middle: nobody waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks.triton_rig import TOLD
from tests.harness import wait_for
from tests.kernel_process import until_waiting

if TYPE_CHECKING:
    from tests.frameworks.rig import Rig
    from tests.frameworks.triton_rig import TritonRig

MEET = (
    "import os, time\n"
    "def meet(place, mine, other):\n"
    "    '''Wait until both processes are here.'''\n"
    "    open(os.path.join(place, mine), 'w').close()\n"
    "    end = time.monotonic() + 60\n"
    "    while not os.path.exists(os.path.join(place, other)):\n"
    "        assert time.monotonic() < end, 'the other process does not come'\n"
    "        time.sleep(0.01)\n"
)
WAIT_FOR_CHILD = "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"


def both_directions(rig: Rig, one: str, other: str) -> None:
    """Two processes that begin with one compile each, and then ask for what the other one has begun."""
    rig.hold()
    children = [rig.start(one), rig.start(other)]
    wait_for(lambda: len(rig.compiles()) == 2, "both processes to compile")
    rig.let_go()
    ended = [child.wait() for child in children]
    assert [item.code for item in ended] == [0, 0], ended
    assert len(rig.compiles()) == 2
    found = rig.counts("kernel")
    assert found.pop("miss") == 2
    assert sum(found.values()) == 2
    assert set(found) <= {"joined", "memory_hit"}


# --- Triton


def test_next_process_compiles_for_triton_when_the_builder_is_killed(triton_rig: TritonRig) -> None:
    triton_rig.daemon.start()
    triton_rig.hold()
    first = triton_rig.start(TOLD)
    wait_for(triton_rig.compiles, "the first process to run ptxas")
    second = triton_rig.start(TOLD)
    until_waiting(triton_rig.daemon, 2)
    first.kill()
    triton_rig.let_go()
    assert second.wait().told()["elf"]
    assert len(triton_rig.compiles()) == 2
    assert triton_rig.counts("kernel") == {"failure cancelled": 1, "miss": 1}


def test_two_processes_compile_two_kernels_of_triton_in_opposite_order(
    triton_rig: TritonRig,
) -> None:
    triton_rig.daemon.start()
    one, other = "compile_add(64)\n", "compile_add(128)\n"
    both_directions(triton_rig, one + other, other + one)


GROUP = MEET + (
    "import ptocache.integrations.triton as own\n"
    "def ask(key):\n"
    "    manager = own.CacheManager(key)\n"
    "    return manager, manager.get_group('k.json')\n"
    "def put(manager):\n"
    "    path = manager.put('{}', 'k.json')\n"
    "    manager.put_group('k.json', {'k.json': path})\n"
)


def test_process_that_begins_another_kernel_of_triton_gives_the_first_one_up(
    triton_rig: TritonRig,
) -> None:
    triton_rig.daemon.start()

    def holding(mine: str, other: str) -> str:
        return GROUP + (
            f"first, found = ask({mine!r})\n"
            "assert found is None\n"
            f"meet({str(triton_rig.place)!r}, {mine!r}, {other!r})\n"
            f"second, found = ask({other!r})\n"
            "found or put(second)\n"
            "put(first)\n"
        )

    children = [triton_rig.start(holding(*names)) for names in (("A", "B"), ("B", "A"))]
    ended = [child.wait() for child in children]
    assert [item.code for item in ended] == [0, 0], ended
    # Each gave its first one up, and built the other's, unless that one was quicker.
    found = triton_rig.counts("kernel")
    assert found.pop("failure compile_failed") == 2
    assert found.pop("miss") == 2
    assert not found


def test_fork_between_asking_and_storing_leaves_the_lease_to_the_parent(
    triton_rig: TritonRig,
) -> None:
    triton_rig.daemon.start()
    code = GROUP + (
        "manager, found = ask('K')\n"
        "assert found is None\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    put(manager)\n"
        "    os._exit(0)\n" + WAIT_FOR_CHILD + "put(manager)\n"
    )
    triton_rig.build(code)
    assert triton_rig.counts("kernel") == {"miss": 1}
    triton_rig.build(GROUP + "assert set(ask('K')[1]) == {'k.json'}\n")
    assert triton_rig.counts("kernel") == {"miss": 1, "memory_hit": 1}


# --- TileLang


def test_two_processes_build_two_kernels_of_tilelang_in_opposite_order(rig: Rig) -> None:
    rig.daemon.start()
    one, other = "compile_c(64)\n", "compile_c(128)\n"
    both_directions(rig, one + other, other + one)


WITHIN = MEET + (
    "from tilelang.jit.kernel import JITKernel\n"
    "make = JITKernel.__init__\n"
    "def once(work):\n"
    "    def making(self, *args, **kwargs):\n"
    "        JITKernel.__init__ = make\n"
    "        work()\n"
    "        make(self, *args, **kwargs)\n"
    "    JITKernel.__init__ = making\n"
)
"""Does something when the lease is held, and before the kernel is built."""


def test_kernel_that_is_built_within_the_building_of_another_waits_for_nobody(rig: Rig) -> None:
    rig.daemon.start()

    def nested(mine: int, other: int) -> str:
        return WITHIN + (
            "def work():\n"
            f"    meet({str(rig.place)!r}, '{mine}', '{other}')\n"
            f"    compile_c({other})\n"
            "once(work)\n"
            f"compile_c({mine})\n"
        )

    children = [rig.start(nested(*sizes)) for sizes in ((64, 128), (128, 64))]
    ended = [child.wait() for child in children]
    assert [item.code for item in ended] == [0, 0], ended
    assert rig.counts("kernel") == {"miss": 2, "bypass asked": 2}


def test_fork_while_a_kernel_is_built_leaves_the_lease_to_the_parent(rig: Rig) -> None:
    rig.daemon.start()
    code = WITHIN + (
        "pids = []\n"
        "once(lambda: pids.append(os.fork()))\n"
        "compile_c()\n"
        "(pid,) = pids\n"
        "if pid == 0:\n"
        "    os._exit(0)\n" + WAIT_FOR_CHILD
    )
    rig.build(code)
    assert len(rig.compiles()) == 2
    assert rig.counts("kernel") == {"miss": 1}
    rig.build("compile_c()\n")
    assert rig.counts("kernel") == {"miss": 1, "memory_hit": 1}
