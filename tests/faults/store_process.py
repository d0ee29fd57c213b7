"""A store in a process of its own below a fault layer: orders on standard input, a JSON line for each.

``python -m tests.faults.store_process ROOT`` obeys; :class:`StoreProcess` gives the orders. The layer's
rule is in force during an order's own operation alone. With ``fork`` a child opens the store, obeys and
ends, so that an order may kill it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptocache.contents import Contents
from ptocache.digest import Digest
from ptocache.errors import PtocacheError
from ptocache.outcome import Cache, Outcome
from ptocache.paths import store_at
from ptocache.store.index import Selection
from ptocache.store.store import Loaded, Store
from ptocache.tally import Tally
from ptocache.wire import INLINE_BYTES
from tests.harness import DEADLINE_S
from tests.unit.test_store import action_of, checked, entry_of

if TYPE_CHECKING:
    from tests.faults.faultlayer import FaultLayer


def outputs_of(name: str) -> tuple[bytes, bytes]:
    """What the entry ``name`` holds: an output that travels inline, and one that does not."""
    seed = bytes.fromhex(Digest.of(name.encode()).sha256)
    return seed * 10, seed * (INLINE_BYTES // len(seed) + 1)


def open_store(root: str, *, fsync: bool = False) -> Store:
    """The store at ``root`` as a daemon opens it."""
    return Store(
        store_at(root), limit=1 << 30, low_water=0.9, memory=1 << 20, fsync=fsync, tally=Tally()
    )


def bytes_of(loaded: Loaded) -> tuple[bytes, ...]:
    """The outputs of an entry."""
    found = []
    for item in loaded.artifacts:
        if item.data is None:
            assert item.file is not None
            found.append(os.pread(item.file.fileno(), item.digest.size + 1, 0))
        else:
            found.append(item.data)
    return tuple(found)


def find(store: Store, name: str) -> str:
    """``right``, ``wrong`` or ``nothing``."""
    loaded = store.find(action_of(name).key, Contents(), "")
    if loaded is None:
        return "nothing"
    return "right" if bytes_of(loaded) == outputs_of(name) else "wrong"


def publish(store: Store, name: str) -> str:
    """``right`` or ``wrong`` for what was stored, else the reason why it was not."""
    action = action_of(name)
    published = store.publish(
        action, entry_of(action), checked(*outputs_of(name)), store.generation()
    )
    if published.loaded is None:
        return published.reason.label
    return "right" if bytes_of(published.loaded) == outputs_of(name) else "wrong"


def obey(store: Store, order: str, name: str) -> Any:
    """Do one thing."""
    if order == "publish":
        return publish(store, name)
    if order == "find":
        return find(store, name)
    if order == "evict":
        return store.remove(store.index.select(Selection(kernel=name))).entries
    if order == "invalidate":
        return store.invalidate(Selection(kernel=name)).entries
    if order == "count":
        find(store, name)
        store.tally.outcome(Cache.BINARY, Outcome.DISK_HIT)
        return None
    if order == "flush":
        return store.flush()
    assert order == "close", order
    return store.close()


class _Rule:
    """Puts the layer's rule into force while an order is obeyed."""

    def __init__(self) -> None:
        self._control = os.open(os.environ["FAULT_CONTROL"], os.O_RDWR)

    def __enter__(self) -> None:
        os.pwrite(self._control, b"\1\0\0\0", 0)

    def __exit__(self, *exc: object) -> None:
        os.pwrite(self._control, b"\0\0\0\0", 0)


def _answer(rule: _Rule, root: str, store: Store | None, order: dict[str, Any]) -> dict[str, Any]:
    kind, name = order["order"], order["name"]
    try:
        if kind == "open":
            with rule:
                opened = open_store(root, fsync=True)
                found = find(opened, name)
            return {"result": found, **opened.condition()}
        own = store or open_store(root, fsync=True)
        if order["before"]:
            obey(own, order["before"], name)
        with rule:
            result = obey(own, kind, name)
        return {"result": result, **own.condition()}
    except PtocacheError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"raised": repr(error)}


def _in_child(rule: _Rule, root: str, order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, json.dumps(_answer(rule, root, None, order)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status, **(json.loads(said) if said else {})}


def main() -> None:
    """Obey until standard input ends."""
    root, rule = sys.argv[1], _Rule()
    store: Store | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["fork"]:
            answer = _in_child(rule, root, order)
        else:
            store = store or open_store(root, fsync=True)
            answer = _answer(rule, root, store, order)
        print(json.dumps(answer), flush=True)
    if store is not None:
        store.close()


class StoreProcess:
    """Gives orders to such a process; use as a context manager."""

    def __init__(self, root: Path, layer: FaultLayer) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(root)],
            env={**os.environ, **layer.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def order(
        self, order: str, name: str = "", *, before: str = "", fork: bool = False
    ) -> dict[str, Any]:
        """What came of an order; ``before``: another one, that the layer lets through."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"order": order, "name": name, "before": before, "fork": fork})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "raised" not in answer, answer
        return answer

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=DEADLINE_S)


if __name__ == "__main__":
    main()
