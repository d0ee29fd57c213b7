"""Ends what a dead daemon left running. Run as a process by the daemon: ``python guard.py MARKER…``.

Its standard input is a pipe whose other end only the daemon holds. When that end closes and no word
was said before, the daemon died: every process of this user whose ``TMPDIR`` lies below a MARKER (the
store's ``tmp``, and its spare) is a tool of it, wherever it went: into another group, session or parent. A daemon that
stops by itself says so first.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_ROUNDS = 50
_PAUSE_S = 0.02
GOODBYE = b"bye"


def tools(*markers: str) -> list[int]:
    """Pids of this user's processes that were started with a ``TMPDIR`` below one of ``markers``."""
    needles = [b"\0TMPDIR=" + os.fsencode(marker).rstrip(b"/") + b"/" for marker in markers]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                words = b"\0" + file.read()
                if any(needle in words for needle in needles):
                    found.append(int(name))
        except OSError:
            continue
    return found


def end_tools(*markers: str) -> int:
    """Kill them, and what they start meanwhile; returns how many signals were sent."""
    sent = 0
    for _ in range(_ROUNDS):
        alive = tools(*markers)
        if not alive:
            break
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
                sent += 1
            except OSError:
                continue
        time.sleep(_PAUSE_S)
    return sent


def main() -> None:
    """Wait for the daemon's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last = b""
    while True:
        data = os.read(0, 64)
        if not data:
            break
        last = data
    if last != GOODBYE:
        end_tools(*sys.argv[1:])


if __name__ == "__main__":
    main()
