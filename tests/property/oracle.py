"""What the compiler says without any cache: the same command line, run directly, in a fresh directory.

The command line is written down here a second time, on purpose: neither the plugin's plan nor any other
part of ptocache is used, so that a fault there cannot excuse itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_PATH_OPTIONS = ("-I", "-iquote", "-isystem", "-idirafter", "-include")
_CONSTANTS = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C",
    "LC_ALL": "C",
    "TZ": "UTC0",
    "HOME": "/nonexistent",
}


class Compile(NamedTuple):
    """One compile of one source."""

    compiler: tuple[str, ...]
    source: str
    """Name of the source among ``inputs``."""
    inputs: dict[str, bytes]
    options: tuple[str, ...]
    """Compile options; a path option stands apart from its operand."""
    libraries: tuple[str, ...]
    env: dict[str, str]
    """The declared variables."""
    source_dir: str
    output: str
    """``object`` or ``shared``."""


class Expected(NamedTuple):
    """What came of it."""

    exit_code: int
    stderr: bytes
    output: bytes
    """Empty for a failure."""


def compile_directly(asked: Compile, directory: Path) -> Expected:
    """Compile (and link) in ``directory``, which is made for it and removed after."""
    work, tmp = directory / "w", directory / "t"
    tmp.mkdir(parents=True)
    epoch = int(asked.env.get("SOURCE_DATE_EPOCH", "0"))
    for name, data in asked.inputs.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (epoch, epoch))
    steps = [_compile_command(asked, work)]
    if asked.output == "shared":
        steps.append(_link_command(asked))
    env = {**asked.env, **_CONSTANTS, "TMPDIR": str(tmp)}
    code, stderr = 0, b""
    for step in steps:
        done = subprocess.run(step, cwd=work, env=env, capture_output=True, check=False)
        code, stderr = done.returncode, stderr + done.stderr
        if code:
            break
    output = b"" if code else (work / ("out.so" if len(steps) > 1 else "0.o")).read_bytes()
    shutil.rmtree(directory)
    return Expected(code, stderr, output)


def _compile_command(asked: Compile, work: Path) -> list[str]:
    beside = os.path.normpath(os.path.join(asked.source_dir, os.path.dirname(asked.source)))
    seed = hashlib.sha256(asked.inputs[asked.source]).hexdigest()
    return [
        *asked.compiler, "-iquote", beside, *(["-fPIC"] if asked.output == "shared" else []),
        *_canonical(asked.options), f"-ffile-prefix-map={asked.source_dir}=.",
        f"-ffile-prefix-map={work}=.", f"-frandom-seed={seed}", "-c", asked.source, "-o", "0.o",
    ]  # fmt: skip


def _link_command(asked: Compile) -> list[str]:
    plain = [word for word in _without_paths(asked.options) if not word.startswith(("-D", "-W"))]
    return [
        *asked.compiler, "-shared", *plain, "0.o", *_canonical(asked.libraries), "-o", "out.so",
    ]  # fmt: skip


def _canonical(options: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for word in options:
        is_path = bool(found) and found[-1] in (*_PATH_OPTIONS, "-L")
        found.append(os.path.realpath(word) if is_path else word)
    return found


def _without_paths(options: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    skip = False
    for word in options:
        if not skip and word not in _PATH_OPTIONS:
            found.append(word)
        skip = not skip and word in _PATH_OPTIONS
    return found
