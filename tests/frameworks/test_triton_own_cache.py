"""What Triton promises of its cache, with ptocache in its place: which kernels are the same, and its groups."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.frameworks.triton_rig import MANAGER, TritonRig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.frameworks.zygote import Zygote

SOURCE = """\
import triton
import triton.language as tl

SCALE: tl.constexpr = tl.constexpr(2)


@triton.jit
def inner(x):
    return x * 3


@triton.jit
def outer(X, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(X + offsets, inner(tl.load(X + offsets)) * SCALE)
"""
COMPILE = """\
import importlib.util, os
os.makedirs(os.path.dirname(place))
open(place, "w").write(text)
spec = importlib.util.spec_from_file_location("kernels_of_a_test", place)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
source = ASTSource(
    fn=module.outer, signature={"X": kind, "SIZE": "constexpr"}, constexprs={(1,): size}, attrs=attrs
)
kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
facts = kernel.metadata._asdict()
print(json.dumps({
    "asm": {name: str(text) for name, text in kernel.asm.items()},
    "facts": {name: str(facts[name]) for name in ("name", "hash", "shared", "num_warps")},
}))
"""


def compiled(rig: TritonRig, text: str = SOURCE, *, name: str = "a/mod.py", **more: Any) -> Any:
    """A kernel of ``text``, which lies in a file of its own."""
    chosen = {
        "kind": "*fp32", "size": 64, "arch": 80, "options": {}, "attrs": None, "text": text,
        **more,
    }  # fmt: skip
    words = "".join(f"{key} = {value!r}\n" for key, value in chosen.items())
    # Below the process's own directory.
    return rig.run(f"{words}place = __import__('os').path.abspath({name!r})\n" + COMPILE).told()


@pytest.fixture(scope="module")
def served(triton_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonRig]:
    """A rig whose daemon has the kernel."""
    found = TritonRig(triton_zygote, tmp_path_factory.mktemp("own-cache"))
    found.daemon.start()
    compiled(found)
    yield found
    found.close()
    shutil.rmtree(found.place, ignore_errors=True)


def outcomes(rig: TritonRig, before: dict[str, int]) -> dict[str, int]:
    after = rig.counts("kernel")
    return {
        name: after[name] - before.get(name, 0)
        for name in after
        if after[name] != before.get(name, 0)
    }


OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "body": (SOURCE.replace("* SCALE", "+ SCALE"), {}),
    "called function": (SOURCE.replace("x * 3", "x * 5"), {}),
    "global constant": (SOURCE.replace("constexpr(2)", "constexpr(4)"), {}),
    "line": ("\n" + SOURCE, {}),
    "constant argument": (SOURCE, {"size": 128}),
    "type": (SOURCE, {"kind": "*fp16"}),
    "alignment": (SOURCE, {"attrs": {(0,): [["tt.divisibility", 16]]}}),
    "target": (SOURCE, {"arch": 90}),
    "option": (SOURCE, {"options": {"num_warps": 8}}),
}  # fmt: skip
SAME = {
    "another process": (SOURCE, "a/mod.py"),
    "another folder": (SOURCE, "b/mod.py"),
    "another file name": (SOURCE, "b/other.py"),
    "text behind the kernel": (SOURCE + "\n\ndef unused():\n    pass\n", "a/mod.py"),
    "a constant that it does not use": (SOURCE + "\nOTHER = 7\n", "a/mod.py"),
}


@pytest.mark.parametrize("what", OTHER)
def test_kernel_that_differs_is_another_one(served: TritonRig, what: str) -> None:
    text, more = OTHER[what]
    before = served.counts("kernel")
    first = compiled(served, text, **more)
    assert outcomes(served, before) == {"miss": 1}
    assert compiled(served, text, **more) == first
    assert outcomes(served, before) == {"miss": 1, "memory_hit": 1}
    assert first["facts"]["hash"] != compiled(served)["facts"]["hash"]


@pytest.mark.parametrize("what", SAME)
def test_kernel_that_is_the_same_is_found(served: TritonRig, what: str) -> None:
    text, name = SAME[what]
    before = served.counts("kernel")
    compiled(served, text, name=name)
    assert outcomes(served, before) == {"memory_hit": 1}


def test_kernel_that_is_found_has_every_level_and_the_facts_of_the_built_one(
    served: TritonRig,
) -> None:
    built = compiled(served, SOURCE.replace("* 3", "* 7"))
    found = compiled(served, SOURCE.replace("* 3", "* 7"))
    assert found == built
    assert set(built["asm"]) >= {"source", "ttir", "ttgir", "llir", "ptx", "cubin"}


# --- groups of files

GROUPS = (
    "import os\n"
    "from triton.runtime.cache import get_cache_manager\n"
    "def manager(key='ab'):\n    return get_cache_manager(key * 32)\n"
    "def put(m, name, files):\n"
    "    m.put_group(name, {n: m.put(d, n, binary=isinstance(d, bytes)) for n, d in files.items()})\n"
    "def read(group):\n"
    "    return {n: open(p, 'rb').read() for n, p in group.items()}\n"
    "FILES = {'k.json': '{}', 'k.bin': b'\\0\\1', 'k.ir': 'text'}\n"
    "SAVED = {'k.json': b'{}', 'k.bin': b'\\0\\1', 'k.ir': b'text'}\n"
)


@pytest.mark.parametrize("manager", ["triton.runtime.cache:FileCacheManager", MANAGER])
def test_group_that_is_put_is_got_by_the_same_manager_and_by_others(
    triton_rig: TritonRig, manager: str
) -> None:
    """The same program with Triton's own manager."""
    triton_rig.daemon.start()
    code = GROUPS + (
        "m = manager()\n"
        "assert m.get_group('k.json') is None\n"
        "put(m, 'k.json', FILES)\n"
        "assert read(m.get_group('k.json')) == SAVED\n"
        "assert read(manager().get_group('k.json')) == SAVED\n"
        "n = manager('cd')\n"
        "assert n.get_group('k.json') is None\n"
        "put(n, 'k.json', {'k.json': '[]'})\n"
        "assert read(manager().get_group('k.json')) == SAVED\n"
    )
    later = GROUPS + (
        "group = manager().get_group('k.json')\n"
        "assert read(group) == SAVED\n"
        "assert read(manager('cd').get_group('k.json')) == {'k.json': b'[]'}\n"
        "os.unlink(group['k.bin'])\n"
        "again = manager().get_group('k.json')\n"
        "assert again is None or read(again) == SAVED\n"
    )
    for text in (code, later):
        ended = triton_rig.run(text, TRITON_CACHE_MANAGER=manager)
        assert ended.code == 0, ended.err


def test_folder_of_triton_is_where_its_single_files_go(triton_rig: TritonRig) -> None:
    triton_rig.daemon.start()
    place = triton_rig.place / "chosen"
    code = GROUPS + "print(json.dumps(manager().put(b'so', 'launcher.so')))\n"
    path = Path(triton_rig.run(code, TRITON_CACHE_DIR=str(place)).told())
    assert path.read_bytes() == b"so"
    assert path.is_relative_to(place)


# --- processes and threads


def test_kernel_is_compiled_in_a_forked_child_and_in_a_thread(triton_rig: TritonRig) -> None:
    triton_rig.daemon.start()
    triton_rig.build(
        "import os, threading\n"
        "compile_add(64)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    fine = compile_add(64).asm['cubin'] and compile_add(32).asm['cubin']\n"
        "    os._exit(0 if fine else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "thread = threading.Thread(target=compile_add, args=(32,))\n"
        "thread.start(); thread.join()\n"
    )
    assert len(triton_rig.compiles()) == 2
    assert triton_rig.counts("kernel") == {"miss": 2, "memory_hit": 2}
