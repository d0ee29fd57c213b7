"""A layer between a daemon and its files: makes chosen calls fail, fall short, or be its last.

``faultlayer.c`` is the library, built by the machine's compiler and preloaded into the daemon; this is
how a test rules it while the daemon lives.
"""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.harness import whole_lines

if TYPE_CHECKING:
    from tests.harness import DaemonProcess

SOURCE = Path(__file__).with_name("faultlayer.c")
KINDS = (
    "open_read", "open_write", "read", "write", "sync", "rename", "unlink", "mkdir", "rmdir",
    "chmod", "truncate", "lock", "stat", "access", "map", "list", "link", "utime",
)  # fmt: skip
"""Kinds of calls, in the library's order."""
CHANGES = (
    "open_write", "write", "sync", "rename", "unlink", "mkdir", "rmdir", "chmod", "truncate",
    "link", "utime",
)  # fmt: skip
"""Those that leave a trace on the disk."""
ALWAYS = (1 << 64) - 1
_ACTIONS = {"fail": 1, "kill before": 2, "kill after": 3, "fall short": 4}
_TIMES = 24
_RULE = struct.Struct("<IIIiQQQQ256s")


class Call(NamedTuple):
    """A counted call."""

    number: int
    kind: str
    path: str


def build(directory: Path) -> Path:
    """Compile the library into ``directory``."""
    library = directory / "faultlayer.so"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(library), str(SOURCE),
         "-ldl"],
        check=True, capture_output=True,
    )  # fmt: skip
    return library


class FaultLayer:
    """The layer of one daemon, counting on paths below ``below``; off until a rule is given."""

    def __init__(self, library: Path, directory: Path, below: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "calls.log"
        control = directory / "control"
        control.write_bytes(bytes(4096))
        self._log.write_bytes(b"")
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)
        self.env = {
            "LD_PRELOAD": str(library),
            "FAULT_ROOT": str(below),
            "FAULT_CONTROL": str(control),
            "FAULT_LOG": str(self._log),
        }

    def on(self, daemon: DaemonProcess) -> DaemonProcess:
        """The same daemon, which will start with this layer."""
        daemon.env.update(self.env)
        return daemon

    def watch(self, *kinds: str, needle: str = "", armed: bool = True) -> None:
        """Count and log these calls (default: those that change something), and let them through.

        ``armed``: whether the rule is in force at once, here as with every other rule; else whoever
        has the control file puts it into force.
        """
        self._rule("fail", kinds or CHANGES, needle=needle, times=0, armed=armed)

    def fail(
        self,
        error: int,
        *kinds: str,
        needle: str = "",
        skip: int = 0,
        times: int = 1,
        armed: bool = True,
    ) -> None:
        """Let ``times`` of these calls fail with ``error``, after ``skip`` that go through."""
        self._rule(
            "fail",
            kinds or CHANGES,
            error=error,
            needle=needle,
            skip=skip,
            times=times,
            armed=armed,
        )

    def fall_short(
        self, *, needle: str = "", skip: int = 0, times: int = 1, armed: bool = True
    ) -> None:
        """Let writes write only half."""
        self._rule("fall short", ("write",), needle=needle, skip=skip, times=times, armed=armed)

    def kill(
        self, number: int, *kinds: str, after: bool = False, needle: str = "", armed: bool = True
    ) -> None:
        """Let the call with this number (from 1 on) be the last, before or after it is done."""
        action = "kill after" if after else "kill before"
        self._rule(action, kinds or CHANGES, needle=needle, skip=number - 1, times=1, armed=armed)

    def make_read_only(self) -> None:
        """All that would change something fails from now on, as on a read-only mount."""
        self.fail(errno.EROFS, *CHANGES, "access", times=ALWAYS)

    def off(self) -> None:
        """Let everything through, and count nothing."""
        self._map[0:4] = struct.pack("<I", 0)
        # Nor if somebody puts the rule into force once more.
        self._map[_TIMES : _TIMES + 8] = struct.pack("<Q", 0)

    def _rule(
        self,
        action: str,
        kinds: tuple[str, ...],
        *,
        error: int = 0,
        needle: str,
        skip: int = 0,
        times: int,
        armed: bool = True,
    ) -> None:
        self.off()
        self._log.write_bytes(b"")
        mask = sum(1 << KINDS.index(kind) for kind in kinds)
        rule = (mask, _ACTIONS[action], error, skip, times, 0, 0, needle.encode())
        self._map[0 : _RULE.size] = _RULE.pack(0, *rule)
        self._map[0:4] = struct.pack("<I", armed)

    @property
    def seen(self) -> int:
        """Calls counted since the rule was given."""
        return int(_RULE.unpack_from(self._map)[6])

    @property
    def fired(self) -> int:
        """Calls that met the rule's action."""
        return int(_RULE.unpack_from(self._map)[7])

    def calls(self) -> list[Call]:
        """What was counted since the rule was given, in order."""
        found = []
        for line in whole_lines(self._log):
            number, kind, path = line.split(" ", 2)
            found.append(Call(int(number), kind, path))
        return found

    def close(self) -> None:
        """Let go of the control file."""
        self._map.close()
