"""Bytes and recency against a naive model: lists that are added up anew each time."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ptocache import action as action_module
from ptocache.accounting import Budget, Recency, Use
from ptocache.contents import Contents
from ptocache.entry import Entry
from ptocache.model import Dependency, Job, Log, Output, Prepared, Provenance
from ptocache.outcome import Reason
from ptocache.paths import StorePaths
from ptocache.store.blobs import disk_bytes
from ptocache.store.collect import collect
from ptocache.store.index import Selection
from ptocache.store.store import Store
from ptocache.store.verify import verify
from ptocache.tally import Tally
from ptocache.toolchain import CheckedOutputs, validate

SIZE = st.integers(0, 5000)
LIMIT = 60_000


class BudgetMachine(RuleBasedStateMachine):
    """Writes under way and writes done, each in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(10_000, 0.8)
        self.reserved: list[int] = []
        self.written: list[int] = []
        self.recency = Recency()
        self.uses: list[tuple[int, float]] = []

    @rule(size=SIZE)
    def reserve(self, size: int) -> None:
        self.budget.reserve(size)
        self.reserved.append(size)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), written=SIZE)
    def commit(self, data: st.DataObject, written: int) -> None:
        size = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        self.budget.commit(size, written)
        self.written.append(written)

    @precondition(lambda self: self.reserved)
    @rule()
    def release(self) -> None:
        self.budget.release(self.reserved.pop())

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.budget.freed(self.written.pop(data.draw(st.integers(0, len(self.written) - 1))))

    @rule(size=SIZE)
    def count_anew(self, size: int) -> None:
        self.written = [size]
        self.budget.reset(size)

    @rule(entry=st.integers(0, 5), now=st.floats(0, 1e9))
    def touch(self, entry: int, now: float) -> None:
        self.recency.touch(entry, now)
        self.uses.append((entry, now))

    @rule()
    def drain(self) -> None:
        naive: dict[int, Use] = {}
        for entry, now in self.uses:
            naive[entry] = Use(sum(1 for other, _ in self.uses if other == entry), now)
        assert self.recency.drain() == naive
        assert self.recency.drain() == {}
        self.uses = []

    @invariant()
    def bytes_agree(self) -> None:
        total = sum(self.written) + sum(self.reserved)
        assert self.budget.used == sum(self.written)
        assert self.budget.excess() == (total - 8000 if total > 10_000 else 0)
        assert self.budget.excess(3000) == max(0, total - 3000)
        assert self.budget.fits(10_000)
        assert not self.budget.fits(10_001)


class _Accepting:
    """A toolchain that finds every output good."""

    def validate(self, prepared: Any, outputs: Any) -> None:
        return


def checked(data: bytes) -> CheckedOutputs:
    return validate(_Accepting(), None, (Output("object", data, 0o644),))  # type: ignore[arg-type]


class StoreMachine(RuleBasedStateMachine):
    """A real store; the model is a list of entries in the order of their last use."""

    @initialize()
    def open(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="ptc-"))
        self.contents = Contents()
        self.model: list[tuple[str, str]] = []
        """(entry key, action key), least recently used first."""
        self.bound: dict[str, tuple[str, str]] = {}
        self.clock = 0.0
        self._open()

    def _open(self) -> None:
        self.store = Store(
            StorePaths(str(self.root / "store")), limit=LIMIT, low_water=0.5, memory=20_000,
            fsync=False, tally=Tally(),
        )  # fmt: skip

    @rule(
        kernel=st.sampled_from("abc"), header=st.sampled_from("12"), size=st.sampled_from((0, 10, 9000)),
        filling=st.sampled_from(b"xy"), stale=st.booleans(),
    )  # fmt: skip
    def publish(self, kernel: str, header: str, size: int, filling: int, stale: bool) -> None:
        job = Job("host", "", (), (), (), ("object",), kernel=kernel)
        found = action_module.binary_action(
            Prepared(job._replace(options=(kernel,))), plugin_version="1", identity=""
        )
        place = self.root / f"{kernel}{header}.h"
        place.write_text(header)
        dependencies = (Dependency("", str(place), self.contents.sha256(str(place))),)
        entry = Entry(
            found.document,
            dependencies,
            (),
            Log(),
            "",
            kernel,
            0,
            1,
            Provenance((), (), "", True, ""),
        )
        generation = self.store.index.generation() - stale
        done = self.store.publish(found, entry, checked(bytes([filling]) * size), generation)
        if stale:
            assert (done.loaded, done.reason) == (None, Reason.INVALIDATED)
            return
        assert done.loaded is not None
        self._use(entry.key, found.key)

    def _use(self, key: str, action: str) -> None:
        self.model = [item for item in self.model if item[0] != key] + [(key, action)]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        _, action = data.draw(st.sampled_from(self.model))
        key = action_module.ActionKey(action)
        found = self.store.find_hot(key, self.contents, "") or self.store.find(
            key, self.contents, ""
        )
        assert found is not None
        assert (found.entry.key, action) in self.model
        self._use(found.entry.key, action)

    @rule(size=st.sampled_from((0, 8192, 20_000, 40_000, LIMIT)), dry_run=st.booleans())
    def collect(self, size: int, dry_run: bool) -> None:
        foreseen = collect(self.store, max_size=size, dry_run=True)
        assert self.store.index.totals()[0] == len(self.model)
        if dry_run:
            return
        before = self.store.budget.used
        done = collect(self.store, max_size=size)
        assert done == foreseen
        assert done.remaining == before - done.bytes == self.store.budget.used <= max(size, 0)
        self.model = self.model[done.entries :]

    @rule()
    def collect_as_configured(self) -> None:
        over = self.store.budget.used > LIMIT
        done = collect(self.store)
        assert bool(done.entries) == over
        self.model = self.model[done.entries :]
        assert self.store.budget.used <= LIMIT

    @rule(kernel=st.sampled_from("abc"))
    def invalidate(self, kernel: str) -> None:
        gone = {row.key for row in self.store.index.select(Selection(kernel=kernel))}
        done = self.store.invalidate(Selection(kernel=kernel))
        assert done.entries == len(gone)
        self.model = [item for item in self.model if item[0] not in gone]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()
        assert self.store.was_clean

    @invariant()
    def books_agree(self) -> None:
        entries, disk = self.store.index.totals()
        on_disk = {
            path.name: path.stat().st_size for path in Path(self.store.paths.blobs).glob("*/*")
        }
        assert disk == self.store.budget.used == sum(map(disk_bytes, on_disk.values()))
        assert entries == len(self.model)
        rows = self.store.index.select(Selection(everything=True))
        assert {row.key for row in rows} == {key for key, _ in self.model}
        page = verify(self.store, 0, fast=False, heal=False)
        assert (page.damaged, page.after) == ((), None)
        assert os.listdir(self.store.paths.tmp) == []

    @invariant()
    def order_agrees(self) -> None:
        self.store.flush()
        assert [row.key for row in self.store.index.oldest(-1)] == [key for key, _ in self.model]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root)


small = settings(
    max_examples=30, stateful_step_count=25, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestBudgetAgainstLists = BudgetMachine.TestCase
TestBudgetAgainstLists.settings = small
TestStoreAgainstAList = StoreMachine.TestCase
TestStoreAgainstAList.settings = small
