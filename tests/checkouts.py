"""Checkouts at different places with base directories, and what a compiler makes of them without a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ptocache.client import Client
    from ptocache.result import Result
    from tests.harness import DaemonProcess

ENV = {"PATH": os.environ.get("PATH", "")}
_PATH_OPTIONS = ("-I", "-iquote", "-isystem", "-idirafter", "-include", "-imacros")
_CONSTANTS = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C",
    "LC_ALL": "C",
    "TZ": "UTC0",
    "HOME": "/nonexistent",
}


class Made(NamedTuple):
    """An object, or none, and what was said on the way."""

    data: bytes
    stderr: bytes


class Checkout:
    """A place of its own with a client whose bases are ``bases`` (default: the place alone). The source lies
    in its folder ``source_dir``."""

    def __init__(
        self, place: Path, daemon: DaemonProcess, *bases: Path, source_dir: str = "src"
    ) -> None:
        self.place = place
        self.source_dir = source_dir
        (place / source_dir).mkdir(parents=True, exist_ok=True)
        self.bases = tuple(map(os.path.realpath, bases or (place,)))
        self.client: Client = daemon.client(request_base_dirs=list(map(str, bases or (place,))))

    def write(self, name: str, text: str) -> Path:
        """A file of the checkout."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def ask(self, source: str, options: Iterable[str] = (), **more: Any) -> Result:
        """Compile ``k.c`` to an object; words ``{here}`` in the options are the place."""
        more.setdefault("source_dir", self.place / self.source_dir)
        words = self.words(options)
        env = {**ENV, **more.pop("env", {})}
        return self.client.compile(
            "host", {"k.c": source}, options=words, outputs=["object"], env=env, check=False, **more
        )

    def words(self, options: Iterable[str]) -> list[str]:
        """Options with the place filled in."""
        return [word.replace("{here}", str(self.place)) for word in options]

    def direct(self, source: str, options: Iterable[str], scratch: Path) -> Made:
        """What the machine's compiler makes of the same, told of the same names; the command is written
        down a second time on purpose. It runs in a copy, which is removed."""
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self.place, scratch, symlinks=True)
        work = scratch / self.source_dir
        (work / "k.c").write_text(source)
        os.utime(work / "k.c", (0, 0))
        order = sorted(range(len(self.bases)), key=lambda number: len(self.bases[number]))
        maps = [f"-ffile-prefix-map={self.bases[number]}/=base{number}/" for number in order]
        done = subprocess.run(
            [
                "cc", *_canonical(self.words(options)), *maps, f"-ffile-prefix-map={work}=.",
                "-fno-canonical-system-headers",
                f"-frandom-seed={hashlib.sha256(source.encode()).hexdigest()}",
                "-c", "k.c", "-o", "direct.o",
            ],
            cwd=work, env=_CONSTANTS, capture_output=True, check=False,
        )  # fmt: skip
        data = (work / "direct.o").read_bytes() if done.returncode == 0 else b""
        shutil.rmtree(scratch)
        return Made(data, done.stderr)


def made(result: Result) -> Made:
    """What an answer brought."""
    data = bytes(result.outputs["object"].buffer) if result.outputs else b""
    return Made(data, result.log.stderr)


def _canonical(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        is_path = bool(found) and found[-1] in _PATH_OPTIONS and "/" in word
        found.append(os.path.realpath(word) if is_path else word)
    return found
