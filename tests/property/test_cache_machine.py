"""A state machine against a real daemon: whatever is edited, replaced, killed or removed, each answer is
what the compiler says without a cache, and what did not change is a hit.

``PTOCACHE_MACHINE_EXAMPLES`` and ``PTOCACHE_MACHINE_STEPS`` enlarge the budget (``make soak``);
``PTOCACHE_MACHINE_SHRINK=0`` shows a failure as it was found.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ptocache.guard import tools
from ptocache.outcome import Outcome, Reason
from ptocache.paths import StorePaths
from ptocache.store.index import Index
from tests.harness import DaemonProcess, wait_for
from tests.property import tree
from tests.property.oracle import Compile, Expected, compile_directly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptocache.client import Client
    from ptocache.result import Result

EXAMPLES = int(os.environ.get("PTOCACHE_MACHINE_EXAMPLES", "10"))
STEPS = int(os.environ.get("PTOCACHE_MACHINE_STEPS", "24"))
SHRINK = os.environ.get("PTOCACHE_MACHINE_SHRINK", "1") == "1"
"""A hunt for several faults at once is shorter without it."""
SETTLE_NS = int(os.environ.get("PTOCACHE_MACHINE_SETTLE_NS", "30000000"))
"""Quiet time after which the daemon under test trusts a stamp: short, so that both cases occur."""

HITS = (Outcome.MEMORY_HIT, Outcome.DISK_HIT)
HOW = st.sampled_from(("replace", "in place", "backdated"))
NUMBER = st.integers(0, 9)
ASK = st.booleans()
MODE = st.sampled_from(("use", "refresh", "read-only"))
DRY_RUN = st.sampled_from((False, False, True))
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import ptocache.signature; "
    "ptocache.signature.SETTLE_NS = {settle}; from ptocache.daemon import main; main()"
)
_WRAPPER = """#!/bin/sh
# Variant {number}
hook() {{
    case " $* " in *" -MD "*) if [ -e "{hooks}/$when" ]; then
        mv "{hooks}/$when" "{hooks}/done"; . "{hooks}/done"; fi ;; esac
}}
when=before; hook "$@"
"{real}" -DVARIANT={number} "$@"
code=$?
when=after; hook "$@"
exit $code
"""


class _Daemon(DaemonProcess):
    """A daemon that trusts stamps sooner than in real life."""

    def start(self) -> _Daemon:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(settle=SETTLE_NS)],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        self.until_it_answers()
        return self


class Rig(NamedTuple):
    """What all examples share: a daemon, a client, a folder, a compiler wrapper."""

    daemon: _Daemon
    client: Client
    folder: Path
    wrapper: Path
    hooks: Path


class Asked(NamedTuple):
    """A request, and everything that may count for it as one text: equal texts must be answered alike,
    and the second time by a hit."""

    compile: Compile
    state: str


class CacheMachine(RuleBasedStateMachine):
    """The model is the state of the files; the oracle is the compiler."""

    rig: Rig
    examples = 0

    def __init__(self) -> None:
        super().__init__()
        CacheMachine.examples += 1
        self.base = self.rig.folder / f"example-{CacheMachine.examples}"
        self.salt = str(CacheMachine.examples)
        self.files: dict[str, bytes] = {}
        self.link = tree.LINK_TARGETS[0]
        self.variant = 1
        self.source_name = "k.c"
        self.source_kind = "quote"
        self.source_number = 1
        self.sent: dict[str, bytes] = {}
        self.directories: tuple[str, ...] = tree.DIRECTORIES[0]
        self.extra: tuple[str, ...] = ()
        self.level = "-O0"
        self.define: tuple[str, ...] = ()
        self.searched: dict[str, tuple[str, ...]] = {}
        self.epoch = tree.EPOCHS[1]
        self.library_options: tuple[str, ...] = ()
        self.prefix = ""
        self.output = "object"
        self.root = "A"
        self.undeclared = {"LANG": "C"}
        self.path = "/usr/bin:/bin"
        self.stored: set[str] = set()
        self.known: dict[str, Expected] = {}
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    @initialize(
        kind=st.sampled_from(tree.SOURCE_KINDS), directories=st.sampled_from(tree.DIRECTORIES),
        headers=st.lists(st.sampled_from(tree.KEPT_KINDS), min_size=3, max_size=3),
        searched=st.sampled_from(tree.SEARCHED), extra=st.sampled_from(tree.EXTRAS),
        name=st.sampled_from(tree.SOURCE_NAMES),
    )  # fmt: skip
    def begin(
        self, kind: str, directories: tuple[str, ...], headers: list[str],
        searched: dict[str, tuple[str, ...]], extra: tuple[str, ...], name: str,
    ) -> None:  # fmt: skip
        self.source_kind, self.source_name, self.directories = kind, name, directories
        self.searched, self.extra = searched, extra
        for folder in tree.FOLDERS:
            (self.base / folder / "sub").mkdir(parents=True)
        for folder in ("inc", "sys"):
            for name in tree.NAMES:
                self._write(f"{folder}/{name}", tree.header(f"{folder}/{name}", "plain", 1))
        for spot in ("A/a.h", "B/a.h", "after/a.h"):
            self._write(spot, tree.header(spot, "plain", 1))
        for spot, header in zip(("inc/a.h", "inc/sub/n.h", "A/a.h"), headers, strict=True):
            self._write(spot, tree.header(spot, header, 1))
        for spot in tree.UNRELATED:
            self._write(spot, b"1")
        for spot in tree.LIBRARIES[-2:]:
            self._write(spot, tree.library(1))
        (self.base / tree.LINK).symlink_to(self.base / self.link)
        self._write_wrapper("replace")
        if self.rig.daemon.process is None or self.rig.daemon.process.poll() is not None:
            self.rig.daemon.start()
        self.rig.client.call("invalidate", all=True)
        self._start_counting()

    # --- what changes

    @rule(kind=st.sampled_from(tree.SOURCE_KINDS), number=NUMBER, ask=ASK)
    def edit_source(self, kind: str, number: int, ask: bool) -> None:
        self.source_kind, self.source_number = kind, number
        self._ask_if(ask)

    @rule(
        name=st.sampled_from(tree.SOURCE_NAMES), send=st.booleans(), number=NUMBER,
        options=st.sampled_from(tree.LIBRARY_OPTIONS), output=st.sampled_from(("object", "shared")),
        prefix=st.sampled_from(("", "", "", " -DPREFIX=1")), root=st.sampled_from(tree.ROOTS),
    )  # fmt: skip
    def change_request(
        self, name: str, send: bool, number: int, options: tuple[str, ...], output: str, prefix: str,
        root: str,
    ) -> None:  # fmt: skip
        self.source_name, self.root, self.prefix = name, root, prefix
        self.library_options, self.output = options, output
        self.sent = {"a.h": tree.header("sent/a.h", "quote", number)} if send else {}

    @rule(
        spot=st.sampled_from(tree.SPOTS), kind=st.sampled_from(tree.HEADER_KINDS), number=NUMBER,
        how=HOW, ask=ASK,
    )  # fmt: skip
    def write_header(self, spot: str, kind: str, number: int, how: str, ask: bool) -> None:
        self._write(spot, tree.header(spot, kind, number), how)
        self._ask_if(ask)

    @precondition(lambda self: self._headers())
    @rule(data=st.data(), number=NUMBER, how=HOW)
    def edit_header(self, data: st.DataObject, number: int, how: str) -> None:
        """The same size: only the content tells."""
        self._request()
        spot = data.draw(st.sampled_from(self._read_headers()))
        new = rb"int d_\g<1>_%d = %d;" % (number, number)
        text = re.sub(rb"int d_(\w+)_\d = \d;", new, self.files[spot])
        assert len(text) == len(self.files[spot])
        self._write(spot, text, how)
        self._request()

    @precondition(lambda self: self._headers())
    @rule(data=st.data(), ask=ASK)
    def delete_header(self, data: st.DataObject, ask: bool) -> None:
        self._ask_if(ask)
        spot = data.draw(st.sampled_from(self._read_headers()))
        (self.base / spot).unlink()
        del self.files[spot]
        self._ask_if(ask)

    @precondition(lambda self: self._headers())
    @rule(data=st.data(), number=NUMBER, keep=st.booleans())
    def shadow_header(self, data: st.DataObject, number: int, keep: bool) -> None:
        self._shadow(data, number, keep)

    # What goes wrong most easily is tried most often.
    @precondition(lambda self: self._headers())
    @rule(data=st.data(), number=NUMBER, keep=st.booleans())
    def shadow_another_header(self, data: st.DataObject, number: int, keep: bool) -> None:
        self._shadow(data, number, keep)

    @precondition(lambda self: self._headers())
    @rule(data=st.data(), number=NUMBER, kind=st.sampled_from(tree.SOURCE_KINDS))
    def edit_source_and_shadow(self, data: st.DataObject, number: int, kind: str) -> None:
        self.source_kind = kind
        self._shadow(data, number, keep=False)

    def _shadow(self, data: st.DataObject, number: int, keep: bool) -> None:
        """Put headers where others of their name might be found from now on."""
        if self._expected().exit_code:
            self._repair()
        self._request()
        spot = data.draw(st.sampled_from(self._read_headers()))
        for shadow in data.draw(st.permutations(self._shadows(spot)))[:8]:
            self._write(shadow, tree.header(shadow, "plain", number))
            self._request()
            if not keep:
                (self.base / shadow).unlink()
                del self.files[shadow]
                self._request()

    @rule(data=st.data(), folder=st.sampled_from((*tree.FOLDERS, "nowhere")), ask=ASK)
    def link_header(self, data: st.DataObject, folder: str, ask: bool) -> None:
        """A header that is a link, perhaps to nothing yet."""
        spot = data.draw(st.sampled_from(tree.SPOTS))
        aim = f"{folder}/{spot.partition('/')[2]}"
        if spot in self.files or aim == spot:
            return
        place = self.base / spot
        if place.is_symlink():
            place.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(self.base / aim)
        self._ask_if(ask)

    @rule(spot=st.sampled_from(tree.LIBRARIES), number=NUMBER, how=HOW, keep=st.booleans(), ask=ASK)
    def change_library(self, spot: str, number: int, how: str, keep: bool, ask: bool) -> None:
        if keep:
            self._write(spot, tree.library(number), how)
        elif spot in self.files:
            (self.base / spot).unlink()
            del self.files[spot]
        self._ask_if(ask)

    @rule(directories=st.sampled_from(tree.DIRECTORIES), ask=ASK)
    def change_directories(self, directories: tuple[str, ...], ask: bool) -> None:
        self.directories = directories
        self._ask_if(ask)

    @rule(
        level=st.sampled_from(tree.LEVELS), define=st.sampled_from(tree.DEFINES),
        extra=st.sampled_from(tree.EXTRAS), ask=ASK,
    )  # fmt: skip
    def change_options(
        self, level: str, define: tuple[str, ...], extra: tuple[str, ...], ask: bool
    ) -> None:
        self.level, self.define, self.extra = level, define, extra
        self._ask_if(ask)

    @rule(epoch=st.sampled_from(tree.EPOCHS), searched=st.sampled_from(tree.SEARCHED), ask=ASK)
    def change_declared_variable(
        self, epoch: str, searched: dict[str, tuple[str, ...]], ask: bool
    ) -> None:
        self.epoch, self.searched = epoch, searched
        self._ask_if(ask)

    @rule(
        data=st.data(), number=NUMBER,
        name=st.sampled_from(("LANG", "LC_ALL", "TMPDIR", "RANK", "FOO", "HOME", "PWD", "GCC_COLORS")),
        value=st.sampled_from(("", "de_DE.UTF-8", "/nowhere", "7")),
        path=st.sampled_from(("/usr/bin:/bin", "/nowhere:/bin", "")),
    )  # fmt: skip
    def change_what_does_not_count(
        self, data: st.DataObject, number: int, name: str, value: str, path: str
    ) -> None:
        """Undeclared variables, times, and files that nobody reads."""
        self._request()
        self.undeclared[name], self.path = value, path
        touched = data.draw(st.sampled_from([*self._headers(), "wrapper", "inc", "A"]))
        place = self.rig.wrapper if touched == "wrapper" else self.base / touched
        os.utime(place, ns=(data.draw(st.integers(0, 10**18)),) * 2)
        self._write(data.draw(st.sampled_from(tree.UNRELATED)), b"%d" % number)
        self._request()

    @rule(folder=st.sampled_from(tree.LINK_TARGETS), ask=ASK)
    def turn_link(self, folder: str, ask: bool) -> None:
        self.link = folder
        (self.base / tree.LINK).unlink()
        (self.base / tree.LINK).symlink_to(self.base / folder)
        self._ask_if(ask)

    @rule(number=NUMBER, how=HOW, ask=ASK)
    def replace_compiler(self, number: int, how: str, ask: bool) -> None:
        """The wrapper keeps its name and its size."""
        self.variant = number
        self._write_wrapper(how)
        self._ask_if(ask)

    # --- what happens to the daemon and its store

    @rule()
    def rest(self) -> None:
        """Be quiet for so long that stamps are trusted from here on."""
        until_ns = time.time_ns() + SETTLE_NS + 10_000_000
        wait_for(lambda: time.time_ns() > until_ns, "the stamps to settle")
        self._request()

    @rule(kill=st.booleans())
    def end_daemon(self, kill: bool) -> None:
        """Entries outlive it; what was counted in the last second of a killed one does not."""
        self._request()
        if kill:
            self.rig.daemon.kill()
            self.rig.daemon.start()
            self._start_counting()
        else:
            self._check_counts()
            assert self.rig.daemon.stop() == 0, self.rig.daemon.log()
            self.rig.daemon.start()
            self._check_counts()
        self._request()

    @rule(dry_run=DRY_RUN, size=st.sampled_from((0, 0, 1 << 30)), before=MODE, after=MODE)
    def collect(self, dry_run: bool, size: int, before: str, after: str) -> None:
        self._request(before)
        found = self.rig.client.call("gc", max_size=size, dry_run=dry_run)
        if size == 0:
            assert found["remaining"] == 0
            if not dry_run:
                self.stored.clear()
                assert self.rig.client.stats()["store"]["bytes"] == 0
        self._request(after)

    @rule(
        dry_run=DRY_RUN, what=st.sampled_from(("all", "kernel", "nobody", "key")), before=MODE,
        after=MODE,
    )  # fmt: skip
    def invalidate(self, dry_run: bool, what: str, before: str, after: str) -> None:
        self._request(before)
        entries = self.rig.client.stats()["store"]["entries"]
        selections: dict[str, dict[str, Any]] = {
            "all": {"all": True},
            "kernel": {"kernel": "k"},
            "nobody": {"kernel": "nobody"},
            "key": {"keys": ["0" * 64]},
        }
        found = self.rig.client.call("invalidate", dry_run=dry_run, **selections[what])
        everything = what in ("all", "kernel")
        assert found["entries"] == (entries if everything else 0)
        if everything and not dry_run:
            self.stored.clear()
        self._request(after)

    # --- requests

    @rule()
    def request_twice(self) -> None:
        self._request()
        self._request()

    @rule(mode=st.sampled_from(("refresh", "read-only", "bypass")))
    def request_in_mode(self, mode: str) -> None:
        self._request(mode)

    @rule(root=st.sampled_from(tree.ROOTS))
    def request_from_both_checkouts(self, root: str) -> None:
        other = tree.ROOTS[1 - tree.ROOTS.index(root)]
        for self.root in (root, other, root, other):
            self._request()

    @rule()
    def request_at_once(self) -> None:
        """Equal requests on one connection, none waiting for the answer of another."""
        asked, expected = self._asked(), self._expected()
        also = () if asked.state in self.stored else (Outcome.JOINED,)
        jobs = [self.rig.client.job(**self._fields(asked)) for _ in range(3)]
        for _, result in self.rig.client.compile_many(jobs):
            self._count(result)
            self._judge(asked, expected, result, "use", *also)

    @rule(
        data=st.data(), when=st.sampled_from(("before", "after")), number=NUMBER, remove=st.booleans()
    )  # fmt: skip
    def request_while_editing(
        self, data: st.DataObject, when: str, number: int, remove: bool
    ) -> None:
        """A header changes while the compiler runs: the answer is one of the two, and no entry lies."""
        if self._tells_time():
            return
        old = self._expected()
        if old.exit_code or not self._headers():
            return
        read = data.draw(st.sampled_from(self._read_headers()))
        spot = data.draw(st.sampled_from([read, *self._shadows(read)]))
        if when == "before" and self._is_named_otherwise(spot):
            return
        text = tree.header(spot, "plain", number)
        staged = self.rig.hooks / "staged"
        staged.write_bytes(text)
        remove = remove and spot in self.files
        action = "rm -f" if remove else f'mkdir -p "$(dirname "{self.base}/{spot}")"; mv "{staged}"'
        (self.rig.hooks / when).write_text(f'{action} "{self.base}/{spot}"\n')
        result = self._send(self._asked(), "refresh")
        if (self.rig.hooks / when).exists():
            (self.rig.hooks / when).unlink()
        elif remove:
            del self.files[spot]
        else:
            self.files[spot] = text
        new = self._expected()
        if result.outcome in (*HITS, Outcome.MISS):
            self.stored.add("one of the two")
        assert _given(result) in (_wanted(old, self.output), _wanted(new, self.output))
        self._request()

    # --- the inside

    def _headers(self) -> list[str]:
        return sorted(spot for spot in self.files if spot in tree.SPOTS)

    def _read_headers(self) -> list[str]:
        """The headers that the compiler reads today; all of them if it reads none (of ours)."""
        here = os.path.realpath(self.base)
        opened = {
            os.path.normpath(os.path.join(here, self.root, path))
            for path in self._expected().opened
        }
        found = [spot for spot in self._headers() if f"{here}/{spot}" in opened]
        return found or self._headers()

    def _is_named_otherwise(self, spot: str) -> bool:
        """A header that comes beside the source while its compile begins, into a folder that is searched by
        an option as well, is found by that: its name in the (unstored) answer is that folder's."""
        beside = os.path.dirname(spot)
        if spot in self.files or beside not in (self.root, f"{self.root}/sub"):
            return False
        return not self._searched_folders().isdisjoint((self.root, beside))

    def _searched_folders(self) -> set[str]:
        """What options and variables name."""
        words = [*self.directories, *(item for items in self.searched.values() for item in items)]
        return {self.link if word == tree.LINK else word for word in words}

    def _shadows(self, spot: str) -> list[str]:
        """Empty places in which something of this header's name might be looked for."""
        beside = [self.root, f"{self.root}/sub"]
        folders = [*self._searched_folders(), *beside, *map(os.path.dirname, self._read_headers())]
        names = {spot.partition("/")[2], os.path.basename(spot)}
        found = {f"{folder}/{name}" for folder in folders for name in names}
        return sorted(found & set(tree.SPOTS) - set(self.files))

    def _repair(self) -> None:
        """Make it compile again."""
        self.directories = tree.DIRECTORIES[0]
        for folder in ("inc", "sys"):
            for name in tree.NAMES:
                self._write(f"{folder}/{name}", tree.header(f"{folder}/{name}", "plain", 1))
        if self._expected().exit_code:
            self.source_kind = "nested angle"

    def _write(self, spot: str, data: bytes, how: str = "replace") -> None:
        if (self.base / spot).is_symlink():
            (self.base / spot).unlink()
        tree.write(self.base / spot, data, how)
        self.files[spot] = data

    def _write_wrapper(self, how: str) -> None:
        real = shutil.which("cc")
        assert real
        text = _WRAPPER.format(number=self.variant, hooks=self.rig.hooks, real=real)
        tree.write(self.rig.wrapper, text.encode(), how)
        self.rig.wrapper.chmod(0o755)

    def _paths(self, options: tuple[str, ...]) -> tuple[str, ...]:
        known = {*tree.FOLDERS, "inc/sub", "A/sub", "inc/b.h", ".", "gone", "link", "lib1", "lib2"}
        return tuple(
            os.path.normpath(self.base / word) if word in known else word for word in options
        )

    def _asked(self) -> Asked:
        env = {
            name: os.pathsep.join(str(self.base / item) for item in items)
            for name, items in self.searched.items()
        }
        if self.epoch:
            env["SOURCE_DATE_EPOCH"] = self.epoch
        text = tree.source(self.source_kind, self.source_number, self.base)
        compile_ = Compile(
            compiler=(str(self.rig.wrapper), *self.prefix.split()),
            source=self.source_name,
            inputs={self.source_name: text, **self.sent},
            options=(*self._paths(self.directories), self.level, *self.define, *self._paths(self.extra)),
            libraries=self._paths(self.library_options) if self.output == "shared" else (),
            env=env,
            base=str(self.base),
            source_dir=str(self.base / self.root),
            output=self.output,
        )  # fmt: skip
        files = {spot: data for spot, data in self.files.items() if spot not in tree.UNRELATED}
        for spot in tree.SPOTS:
            if (self.base / spot).is_symlink():
                files[spot] = b"-> " + os.fsencode(os.readlink(self.base / spot))
        state = repr((compile_, sorted(files.items()), self.link, self.variant))
        return Asked(compile_, state)

    def _expected(self) -> Expected:
        asked = self._asked()
        if asked.state not in self.known:
            self.known[asked.state] = compile_directly(asked.compile, self.rig.folder / "oracle")
        return self.known[asked.state]

    def _fields(self, asked: Asked, mode: str = "use") -> dict[str, Any]:
        compiler = " ".join(asked.compile.compiler)
        return {
            "toolchain": "host",
            "inputs": asked.compile.inputs,
            "options": [*asked.compile.options, *asked.compile.libraries],
            "env": {
                **self.undeclared, **asked.compile.env,
                "PATH": self.path, "CC": compiler, "CXX": compiler,
            },
            "outputs": [self.output],
            "source_dir": asked.compile.source_dir,
            "mode": mode,
            "salt": self.salt,
        }  # fmt: skip

    def _ask_if(self, ask: bool) -> None:
        if ask:
            self._request()

    def _request(self, mode: str = "use") -> None:
        asked, expected = self._asked(), self._expected()
        result = self._send(asked, mode)
        note(f"{mode}: {result.outcome.label} {result.reason.label} {result.why}")
        self._judge(asked, expected, result, mode)

    def _send(self, asked: Asked, mode: str) -> Result:
        result = self.rig.client.compile(**self._fields(asked, mode), check=False)
        self._count(result)
        return result

    def _count(self, result: Result) -> None:
        self.outcomes[result.outcome.label] += 1
        if result.reason:
            self.reasons[result.reason.label] += 1

    def _tells_time(self) -> bool:
        texts = [*self._asked().compile.inputs.values(), *self.files.values()]
        return not self.epoch and any(map(tree.tells_time, texts))

    # --- the judge

    def _judge(
        self, asked: Asked, expected: Expected, result: Result, mode: str, *also: Outcome
    ) -> None:
        if result.reason is not Reason.TIME_MACRO:
            assert _given(result) == _wanted(expected, self.output)
        if expected.exit_code:
            assert result.outcome is Outcome.FAILURE
            assert result.reason in (Reason.COMPILE_FAILED, Reason.REMEMBERED_FAILURE)
            return
        reason = self._bypass_of_source(asked, mode)
        if reason:
            assert (result.outcome, result.reason) == (Outcome.BYPASS, reason)
        elif asked.state in self.stored and mode != "refresh":
            assert result.outcome in (*HITS, *also), result.why
        elif result.outcome is Outcome.BYPASS:
            assert result.reason in self._bypasses_of_headers(mode), result.why
        elif mode == "refresh":
            assert result.outcome is Outcome.MISS
        else:
            hits = HITS if self.stored else ()
            assert result.outcome in (*hits, Outcome.MISS, *also), "a hit on an empty store"
        if result.outcome is not Outcome.BYPASS:
            self.stored.add(asked.state)

    def _bypass_of_source(self, asked: Asked, mode: str) -> Reason:
        """Why this request is a bypass whatever its headers say."""
        if mode == "bypass":
            return Reason.ASKED
        text = asked.compile.inputs[asked.compile.source]
        if tree.tells_time(text) and not self.epoch:
            return Reason.TIME_MACRO
        return Reason.UNSEEN_INPUT if tree.is_unseen(text) else Reason.NONE

    def _bypasses_of_headers(self, mode: str) -> set[Reason]:
        found = {Reason.READ_ONLY} if mode == "read-only" else set()
        for text in self.files.values():
            if tree.tells_time(text) and not self.epoch:
                found.add(Reason.TIME_MACRO)
            if tree.is_unseen(text):
                found.add(Reason.UNSEEN_INPUT)
        return found

    # --- the books

    def _start_counting(self) -> None:
        self.rig.client.call("reset-stats")
        self.outcomes.clear()
        self.reasons.clear()

    def _check_counts(self) -> None:
        found = self.rig.client.stats()["caches"]["binary"]
        labels = [outcome.label for outcome in Outcome]
        assert {label: found[label] for label in labels} == {n: self.outcomes[n] for n in labels}
        assert found["requests"] == sum(self.outcomes.values())
        assert Counter(found["bypass_reasons"]) + Counter(found["failure_reasons"]) == self.reasons
        assert (found["corrupt"], found["rejected"], found["store_failure"]) == (0, 0, 0)

    def _check_store(self) -> None:
        paths = StorePaths(str(self.rig.daemon.root))
        blobs = {path.name: path for path in Path(paths.blobs).glob("*/*")}
        for name, path in blobs.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == name
        index = Index(paths.index, read_only=True)
        rows = {row.digest.sha256: row.disk for row in index.all_blobs()}
        index.close()
        assert rows.keys() == blobs.keys()
        assert self.rig.client.stats()["store"]["bytes"] == sum(rows.values())
        assert os.listdir(paths.tmp) == []
        assert os.listdir(paths.quarantine) == []
        assert tools(paths.tmp) == []

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._check_counts()
                self._check_store()
        finally:
            shutil.rmtree(self.base, ignore_errors=True)
            shutil.rmtree(self.rig.folder / "oracle", ignore_errors=True)
            for name in ("before", "after"):
                (self.rig.hooks / name).unlink(missing_ok=True)


def _given(result: Result) -> tuple[int, bytes, dict[str, bytes]]:
    outputs = {name: bytes(output.buffer) for name, output in result.outputs.items()}
    return result.exit_code, result.log.stdout + result.log.stderr, outputs


def _wanted(expected: Expected, output: str) -> tuple[int, bytes, dict[str, bytes]]:
    outputs = {} if expected.exit_code else {output: expected.output}
    return expected.exit_code, expected.stderr, outputs


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    folder = Path(os.path.realpath(tmp_path))
    hooks = folder / "hooks"
    hooks.mkdir()
    wrapper = folder / "tools" / "wrapper"
    wrapper.parent.mkdir()
    daemon = _Daemon(folder / "store", trust_scripts=wrapper, memory="200K")
    try:
        daemon.start()
        with daemon.client() as client:
            yield Rig(daemon, client, folder, wrapper, hooks)
    finally:
        daemon.clean_up()


@pytest.mark.timeout(0)
def test_every_answer_is_the_compilers_own_and_what_did_not_change_is_a_hit(rig: Rig) -> None:
    machine = type("Machine", (CacheMachine,), {"rig": rig})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=list(Phase) if SHRINK else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
