"""Fresh processes without the import of a framework: one that has imported it forks them.

A child has its own environment, descriptors and memory, and nothing of ptocache is installed in the process
that it is forked from. Only the five seconds that importing TileLang takes are spent once.

As a program: reads a JSON line a request (``start``: code, env, directory; ``poll``: pid), answers each with one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    """How a child ended."""

    code: int
    out: str
    err: str

    def told(self) -> Any:
        """What it printed last, as JSON; it must have ended well."""
        assert self.code == 0, f"it ended with {self.code}:\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])


class Child:
    """A process that runs some code."""

    def __init__(self, zygote: Zygote, pid: int, place: Path) -> None:
        self._zygote = zygote
        self.pid = pid
        self._place = place

    def wait(self, deadline_s: float = 60.0) -> Ended:
        """Until it has ended; fails with what it said if it does not."""
        from tests.harness import wait_for

        code: list[int] = []

        def ended() -> bool:
            found = self._zygote.ask({"poll": self.pid})["code"]
            code.extend([] if found is None else [found])
            return bool(code)

        wait_for(ended, f"process {self.pid} to end: {self._said()}", deadline_s)
        return Ended(code[0], *self._said())

    def _said(self) -> tuple[str, str]:
        texts = [(self._place / name).read_text(errors="replace") for name in ("out", "err")]
        return texts[0], texts[1]

    def kill(self) -> None:
        """End it, however it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self.wait()


class Zygote:
    """The process that children are forked from; ``modules`` are what it imports."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str], place: Path) -> None:
        self._place = place
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.frameworks.zygote", *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=dict(env), text=True,
        )  # fmt: skip
        assert self._hear() == {"ready": True}

    def start(self, code: str, env: Mapping[str, str]) -> Child:
        """A child that runs ``code`` with exactly this environment."""
        self._count += 1
        place = self._place / f"child-{self._count}"
        place.mkdir(parents=True)
        for name in ("out", "err"):
            (place / name).touch()
        found = self.ask({"start": code, "env": dict(env), "place": str(place)})
        return Child(self, found["pid"], place)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _become(request: dict[str, Any]) -> None:
    place = Path(request["place"])
    for number, name in ((1, "out"), (2, "err")):
        fd = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    os.chdir(place)
    # Runs what the process would run at its end, too.
    path = place / "program.py"
    path.write_text(request["start"])
    try:
        exec(compile(request["start"], str(path), "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    import atexit

    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ended: dict[int, int] = {}

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"ready": True})
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "poll" in request:
            pid = request["poll"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            say({"code": ended.get(pid)})
            continue
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            answers.close()
            _become(request)
        say({"pid": pid})


if __name__ == "__main__":
    main()
