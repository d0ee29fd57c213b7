"""What the tests of hostile and numerous peers share: a daemon's use of memory and descriptors, its
log, frames, clients by the dozen."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptocache import wire
from ptocache.digest import Digest
from ptocache.model import Input, Job
from tests.harness import BOOT, DEADLINE_S, DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
ENV = {"PATH": os.environ.get("PATH", "")}
OWN_FAULTS = ("Traceback", "internal error", "ended in a fault", "a request's task failed")
"""What a daemon's log must not hold, whatever its peers do."""


class PreparedDaemon(DaemonProcess):
    """A daemon before whose start ``code`` (Python) is run in its process."""

    def __init__(self, root: Path, code: str, **settings: object) -> None:
        super().__init__(root, **settings)
        self._code = code

    def start(self) -> DaemonProcess:
        """Start it and wait until it answers."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{self._code}\n{BOOT}"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        self.until_it_answers()
        return self


def request_of(source: bytes, *, full: bool = False, **job: Any) -> wire.Request:
    """A request for an object, as a client would send it."""
    item = Input("k.c", Digest.of(source))
    fields: dict[str, Any] = {
        "toolchain": "host", "arch": "", "options": (), "env": tuple(sorted(ENV.items())),
        "inputs": (item,), "outputs": ("object",), **job,
    }  # fmt: skip
    return wire.Request(Job(**fields), {"k.c": source} if full else {})


def _status(daemon: DaemonProcess, field: str) -> int:
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")


def resident(daemon: DaemonProcess) -> int:
    """Bytes of memory that the daemon holds."""
    return _status(daemon, "VmRSS")


class Peak:
    """How far the daemon's memory has grown since this was made, at the worst moment."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        # Sets the high-water mark to what is held now (proc_pid_clear_refs(5)).
        Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")
        self._before = resident(daemon)

    @property
    def growth(self) -> int:
        return _status(self._daemon, "VmHWM") - self._before


def descriptors(daemon: DaemonProcess) -> int:
    """How many descriptors the daemon has open."""
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def connections(daemon: DaemonProcess) -> int:
    """Open connections, the asking one not counted."""
    with daemon.client() as client:
        return int(client.call("status")["connections"]) - 1


def own_faults(daemon: DaemonProcess) -> list[str]:
    """Lines of the daemon's log that tell of a fault of its own."""
    return [line for line in daemon.log().splitlines() if any(word in line for word in OWN_FAULTS)]


class Forked:
    """Children of this process, which all do ``work(number)`` once they are let go, and tell what it
    gave (plain values). To fork costs a tenth of what it costs to start a client anew."""

    def __init__(
        self, count: int, work: Callable[[int], object], deadline_s: float = DEADLINE_S
    ) -> None:
        self._deadline_s = deadline_s
        self._gate_reader, self._gate = os.pipe()
        self._results: list[int] = []
        self.pids: list[int] = []
        for number in range(count):
            reader, writer = os.pipe()
            with warnings.catch_warnings():
                # Of threads that other parts of the test runner may have: the children touch none.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                self._child(number, work, writer)
            os.close(writer)
            self._results.append(reader)
            self.pids.append(pid)

    def _child(self, number: int, work: Callable[[int], object], writer: int) -> None:
        """Never returns."""
        try:
            os.close(self._gate)
            os.read(self._gate_reader, 1)
            found: dict[str, object] = {"value": work(number)}
        except BaseException:
            found = {"error": traceback.format_exc()}
        with contextlib.suppress(OSError):
            os.write(writer, json.dumps(found).encode())
        os._exit(0)

    def go(self) -> Forked:
        """Open the barrier."""
        os.close(self._gate)
        os.close(self._gate_reader)
        return self

    def results(self) -> list[Any]:
        """What each gave, ``None`` for one that was killed; all have ended then."""
        found = [self._result(reader) for reader in self._results]
        for pid in self.pids:
            os.waitpid(pid, 0)
        return found

    def _result(self, reader: int) -> Any:
        deadline = time.monotonic() + self._deadline_s
        data = b""
        with open(reader, "rb", buffering=0) as pipe:
            while part := pipe.read(1 << 16):
                data += part
                assert time.monotonic() < deadline
        if not data:
            return None
        told = json.loads(data)
        assert "error" not in told, told["error"]
        return told["value"]
