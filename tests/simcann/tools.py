"""The simulated tools as files: compiled once a machine, then patched; and what their log says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ptocache import elf

SOURCE = Path(__file__).with_name("simcann.c")
BAKED_BYTES = 1024
"""Length of each marked buffer, of which the mark takes the first 16; as in ``simcann.c``."""

_LOG = b"\x01simcann-log---\x01"
_KNOBS = b"\x01simcann-knobs-\x01"
_IDENTITY = b"\x01simcann-ident-\x01"
_HOUR_NS = 3600 * 10**9


class Run(NamedTuple):
    """One run of a tool, as it logged itself when it started."""

    tool: str
    """The name that it was invoked by."""
    argv: tuple[str, ...]
    """All words, the first one as invoked."""
    cwd: str
    env: dict[str, str]
    pid: int


def build_tool(
    directory: Path, *, log: Path, knobs: Path, identity: str = "A", name: str = "bisheng"
) -> Path:
    """An executable ``directory/name`` (folders are made) that is the tool of that name.

    ``log`` and ``knobs`` are baked in. All builds are of one size, whatever their ``identity``.
    Raises :class:`ValueError` for a text of more than 1007 bytes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(_baked(_template(), {_LOG: str(log), _KNOBS: str(knobs), _IDENTITY: identity}))
    path.chmod(0o755)
    return path


def rebake(path: Path, identity: str) -> None:
    """Give an executable another identity in place: same inode, same size, an mtime one hour older.

    A tool that runs at this moment cannot be replaced (:class:`OSError`, text file busy).
    """
    before = path.stat()
    data = _baked(path.read_bytes(), {_IDENTITY: identity})
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - _HOUR_NS))


def read_log(log: Path) -> list[Run]:
    """The runs in the order in which they started; none if there is no log yet.

    A reader can meet a line of which only the first pages are there: it does not count before its end.
    """
    try:
        lines = log.read_text("utf-8", "surrogateescape").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [_run(json.loads(line)) for line in lines if line.endswith("\n")]


def depends_of(data: bytes) -> str:
    """All that an output depended on, in text lines (``tool=``, ``identity=``, ``option=``,
    ``file=NAME fnv=…``, ``carried=`` …).

    Of an ELF file: its own section, then that of each device image in it. Of text (ptoas): the
    lines of its comments. Raises :class:`~ptocache.errors.ElfError` for damaged files.
    """
    if not elf.is_elf(data):
        mark = "// sim-depends: "
        lines = data.decode(errors="replace").splitlines()
        return "\n".join(line.removeprefix(mark) for line in lines if line.startswith(mark))
    texts = [_section_text(data, elf.check(data))]
    if elf.check(data).section(".aicore_binary"):
        for nested in elf.nested_images(data):
            image = data[nested.offset : nested.offset + nested.size]
            texts.append(_section_text(image, nested.image))
    return "\n".join(texts)


def _section_text(data: bytes, image: elf.Image) -> str:
    section = image.section(".sim.depends")
    if section is None:
        return ""
    return data[section.offset : section.offset + section.size].decode(errors="replace")


def _run(line: dict[str, object]) -> Run:
    argv, env, pid = line["argv"], line["env"], line["pid"]
    assert isinstance(argv, list)
    assert isinstance(env, list)
    assert isinstance(pid, int)
    pairs = dict(str(item).partition("=")[::2] for item in env)
    return Run(str(line["tool"]), tuple(map(str, argv)), str(line["cwd"]), pairs, pid)


def _baked(data: bytes, texts: dict[bytes, str]) -> bytes:
    patched = bytearray(data)
    for mark, text in texts.items():
        start, room = data.index(mark) + len(mark), BAKED_BYTES - len(mark)
        value = os.fsencode(text)
        if len(value) >= room:
            raise ValueError(f"{text!r} is longer than the {room - 1} bytes of room")
        patched[start : start + room] = value.ljust(room, b"\0")
    return bytes(patched)


@lru_cache(maxsize=1)
def _template() -> bytes:
    """The compiled program, whose buffers are still to be filled in."""
    compiled = _private_directory() / "simcann"
    if not compiled.exists():
        # Renamed into place: workers that start together may compile twice, never read a half.
        draft = compiled.with_name(f"simcann.{os.getpid()}")
        # Without -Werror: which warnings there are depends on the compiler.
        command = ["cc", "-O1", "-Wall", "-Wextra", str(SOURCE), "-o", str(draft)]
        # A test may have set a PATH without a compiler.
        path = os.pathsep.join([os.environ.get("PATH", ""), os.defpath])
        subprocess.run(command, check=True, env={"PATH": path})
        os.replace(draft, compiled)
    return compiled.read_bytes()


def _private_directory() -> Path:
    """One a source text and user, in the temporary directory; nobody else can have written it."""
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    name = f"ptocache-simcann-{os.getuid()}-{os.uname().machine}-{source}"
    place = Path(tempfile.gettempdir()) / name
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o7777 != 0o700:
        return Path(tempfile.mkdtemp(prefix="ptocache-simcann-"))
    return place
