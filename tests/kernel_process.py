"""A framework's process for tests: it asks for kernels and holds leases as it is told to."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.harness import DEADLINE_S, DaemonProcess, alive, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CODE = """
import json, os, sys
from ptocache.client import connect
from ptocache.errors import PtocacheError
from ptocache.kernel import Lease

def told(found):
    if isinstance(found, Lease):
        return {"got": "lease", "key": found.key, "why": found.why, "stored": found.stored}
    return {
        "got": "result", "key": found.key, "outcome": found.outcome.label,
        "reason": found.reason.label, "why": found.why,
        "files": {name: bytes(item.buffer).hex() for name, item in found.outputs.items()},
    }

def do(word):
    global lease
    if word["do"] == "ask":
        lease = client.kernel("host", word["material"], **word["more"])
        return told(lease)
    if word["do"] == "put":
        return told(lease.put({name: bytes.fromhex(data) for name, data in word["files"].items()}))
    if word["do"] == "abandon":
        lease.abandon(word["error"])
        return {"got": "abandoned"}
    if word["do"] == "fork":
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        return {"got": "forked"}

client, lease = connect(), None
print(json.dumps({"got": "ready"}), flush=True)
for line in sys.stdin:
    try:
        answer = do(json.loads(line))
    except PtocacheError as error:
        answer = {"got": "error", "code": error.code, "message": str(error)}
    print(json.dumps(answer), flush=True)
"""


class KernelProcess:
    """One process with one client; use as a context manager. ``variables`` are added to its
    environment."""

    def __init__(self, daemon: DaemonProcess, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE],
            env={**daemon.env, "PTOCACHE_REQUIRE": "1", **variables},
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._ready = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> KernelProcess:
        """Wait until it has started."""
        if not self._ready:
            assert self.hear() == {"got": "ready"}
            self._ready = True
        return self

    def ask(self, material: Mapping[str, str], **more: object) -> None:
        """Let it ask for a kernel; the answer comes by :meth:`hear`."""
        self.ready()
        self._say({"do": "ask", "material": dict(material), "more": more})

    def put(self, **files: bytes) -> dict[str, Any]:
        """Let it put these files; what it got."""
        self.start_put(**files)
        return self.hear()

    def start_put(self, **files: bytes) -> None:
        """The same without waiting."""
        self._say({"do": "put", "files": {name: data.hex() for name, data in files.items()}})

    def abandon(self, error: str) -> None:
        """Let it abandon its lease."""
        self._say({"do": "abandon", "error": error})
        assert self.hear() == {"got": "abandoned"}

    def fork(self) -> None:
        """Let it leave a child behind that holds all that it has open."""
        self._say({"do": "fork"})
        assert self.hear() == {"got": "forked"}

    def _say(self, word: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word).encode() + b"\n")
        self.process.stdin.flush()

    def has_said(self) -> bool:
        """True if an answer can be heard without waiting."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def hear(self) -> dict[str, Any]:
        """Its next answer."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, "the process says nothing"
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def stop(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def __enter__(self) -> KernelProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self.process.wait(DEADLINE_S)
        assert not alive(self.pid)


def first_of(processes: Iterable[KernelProcess]) -> KernelProcess:
    """The first that has something to say."""
    found: list[KernelProcess] = []

    def said() -> bool:
        found.extend(item for item in processes if item.has_said())
        return bool(found)

    wait_for(said, "one of the processes to get an answer")
    return found[0]


def until_waiting(daemon: DaemonProcess, count: int) -> None:
    """Wait until so many requests hold a lease or wait for one."""
    with daemon.client() as client:
        wait_for(lambda: client.call("status")["waiting"] == count, f"{count} requests to wait")


def kernel_stats(daemon: DaemonProcess) -> dict[str, Any]:
    """The kernel cache's numbers, which must add up."""
    with daemon.client() as client:
        found: dict[str, Any] = client.stats()["caches"]["kernel"]
    outcomes = ("memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure")
    assert found["requests"] == sum(found[name] for name in outcomes)
    return found
