"""What the compiler says without any cache: the same options, run directly, beside the source's headers.

The command line is written down here a second time, on purpose: neither the plugin's plan nor any other
part of ptocache is used, so that a fault there cannot excuse itself. The compiler runs where the source
would lie if there were no cache, in a copy of the tree, so that nobody sees the original move.
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
    base: str
    """The tree around the source, which is copied."""
    source_dir: str
    """The source's directory in it; the compiler's working directory."""
    output: str
    """``object`` or ``shared``."""


class Expected(NamedTuple):
    """What came of it."""

    exit_code: int
    stderr: bytes
    output: bytes
    """Empty for a failure."""
    opened: tuple[str, ...] = ()
    """The headers that were read; empty for a failure."""


def compile_directly(asked: Compile, directory: Path) -> Expected:
    """Compile (and link) in ``directory``, which is made for it and removed after."""
    tmp = directory / "t"
    tmp.mkdir(parents=True)
    shutil.copytree(asked.base, directory / "c", symlinks=True)
    work = directory / "c" / os.path.relpath(asked.source_dir, asked.base)
    epoch = int(asked.env.get("SOURCE_DATE_EPOCH", "0"))
    for name, data in asked.inputs.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
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
    output = b""
    opened: tuple[str, ...] = ()
    if not code:
        output = (work / ("out.so" if len(steps) > 1 else "0.o")).read_bytes()
        opened = _opened(work / "0.d")
    shutil.rmtree(directory)
    return Expected(code, stderr, output, opened)


def _opened(path: Path) -> tuple[str, ...]:
    """The names in a dependency file; those of the oracle's users hold nothing to escape."""
    words = path.read_text().replace("\\\n", " ").split()
    return tuple(word for word in words if word.endswith(".h"))


def _compile_command(asked: Compile, work: Path) -> list[str]:
    seed = hashlib.sha256(asked.inputs[asked.source]).hexdigest()
    return [
        *asked.compiler, *(["-fPIC"] if asked.output == "shared" else []),
        *_canonical(asked.options), f"-ffile-prefix-map={work}=.", f"-frandom-seed={seed}",
        "-MD", "-MF", "0.d", "-c", asked.source, "-o", "0.o",
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
