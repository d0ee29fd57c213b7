"""The document of a stored entry.

    magic       8 bytes   b"PTOCENT" + version (1 byte)
    body        msgpack map, with exactly these fields and possibly newer ones, which are skipped:
        action          map     the action document (:mod:`ptocache.action`)
        dependencies    list    [base, path, sha256 hex or "" for "was not there"]
        outputs         list    [name, sha256 hex, size, mode, XXH3-128 (16 bytes, big-endian)]
        stdout, stderr  bytes   what the tools printed
        source_dir      text    set when an output or the log names that directory, or an option leads
                                into it: the entry then holds for that directory only
        bases           list    [position, directory] of the bases that an output or the log names; the entry
                                then holds for these only. Absent if it is bound to none
        kernel          text    name for people
        created_s       integer seconds since the epoch
        compile_ms      integer what the compile cost
        provenance      map     commands, components, banner, aslr_off, ptocache

The document is itself stored as a blob: the index can be rebuilt from blobs that begin with the magic.

History
    1   the first form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from .action import ActionKey, EntryKey, entry_key, key_of_document
from .digest import Digest, is_sha256
from .errors import StoreDamagedError
from .model import Bound, Component, Dependency, Log, Provenance, StoredOutput

VERSION = 1
MAGIC = b"PTOCENT" + bytes([VERSION])
_CHECKSUM_BYTES = 16


class Entry(NamedTuple):
    """A whole entry, without the bytes of its outputs."""

    action: dict[str, Any]
    dependencies: tuple[Dependency, ...]
    outputs: tuple[StoredOutput, ...]
    log: Log
    source_dir: str
    kernel: str
    created_s: int
    compile_ms: int
    provenance: Provenance
    bound: Bound = ()
    """The bases that it holds for alone."""

    @property
    def action_key(self) -> ActionKey:
        """The key of the action that this entry answers."""
        return key_of_document(self.action)

    @property
    def key(self) -> EntryKey:
        """The key of this entry."""
        return entry_key(self.action_key, self.dependencies, self.source_dir, self.bound)


def encode(entry: Entry) -> bytes:
    """The bytes of the document."""
    provenance = entry.provenance
    body = {
        "action": entry.action,
        "dependencies": [list(item) for item in entry.dependencies],
        "outputs": [
            [item.name, item.digest.sha256, item.digest.size, item.mode, item.checksum]
            for item in entry.outputs
        ],
        "stdout": entry.log.stdout,
        "stderr": entry.log.stderr,
        "source_dir": entry.source_dir,
        "kernel": entry.kernel,
        "created_s": entry.created_s,
        "compile_ms": entry.compile_ms,
        "provenance": {
            "commands": [list(command) for command in provenance.commands],
            "components": [
                [item.role, item.path, item.canonical, item.digest.sha256, item.digest.size]
                for item in provenance.components
            ],
            "banner": provenance.banner,
            "aslr_off": provenance.aslr_off,
            "ptocache": provenance.ptocache,
        },
    }
    if entry.bound:
        body["bases"] = [list(item) for item in entry.bound]
    return MAGIC + _pack(body)


def decode(data: bytes) -> Entry:
    """The entry that ``data`` holds.

    Raises :class:`~ptocache.errors.StoreDamagedError` if it is cut, of another version, or has a
    field of another type; never anything else.
    """
    if data[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise StoreDamagedError("not an entry document")
    if len(data) < len(MAGIC) or data[len(MAGIC) - 1] != VERSION:
        raise StoreDamagedError("an entry document of another version")
    try:
        body = msgpack.unpackb(
            data[len(MAGIC) :],
            raw=False,
            strict_map_key=True,
            max_ext_len=0,
            unicode_errors="surrogateescape",
        )
        entry = _entry(body)
        # A document whose action can have no key (a float, endless nesting) answers nothing.
        key_of_document(entry.action)
        return entry
    except StoreDamagedError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        msgpack.UnpackException,
    ) as error:
        raise StoreDamagedError(f"an entry document that cannot be read: {error}") from error


def _entry(body: Any) -> Entry:
    provenance = _typed(body, "provenance", dict)
    entry = Entry(
        action=_typed(body, "action", dict),
        dependencies=tuple(_dependency(item) for item in _typed(body, "dependencies", list)),
        outputs=tuple(_output(item) for item in _typed(body, "outputs", list)),
        log=Log(_typed(body, "stdout", bytes), _typed(body, "stderr", bytes)),
        source_dir=_typed(body, "source_dir", str),
        kernel=_typed(body, "kernel", str),
        created_s=_typed(body, "created_s", int),
        compile_ms=_typed(body, "compile_ms", int),
        provenance=Provenance(
            commands=tuple(
                tuple(_text(word) for word in command)
                for command in _typed(provenance, "commands", list)
            ),
            components=tuple(_component(item) for item in _typed(provenance, "components", list)),
            banner=_typed(provenance, "banner", str),
            aslr_off=_typed(provenance, "aslr_off", bool),
            ptocache=_typed(provenance, "ptocache", str),
        ),
        bound=tuple(_bond(item) for item in _typed(body, "bases", list)) if "bases" in body else (),
    )
    if not entry.outputs:
        raise StoreDamagedError("an entry document without outputs")
    return entry


def _typed(body: Any, field: str, kind: type) -> Any:
    value = body[field]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise StoreDamagedError(f"an entry document whose {field} is a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise StoreDamagedError(f"an entry document with {type(value).__name__} for text")
    return value


def _sha256(value: Any) -> str:
    if not is_sha256(value):
        raise StoreDamagedError("an entry document with something else for a digest")
    return _text(value)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StoreDamagedError("an entry document with something else for a size")
    return value


def _dependency(item: Any) -> Dependency:
    base, path, sha256 = item
    return Dependency(_text(base), _text(path), _sha256(sha256) if sha256 else "")


def _bond(item: Any) -> tuple[int, str]:
    position, directory = item
    return _size(position), _text(directory)


def _output(item: Any) -> StoredOutput:
    name, sha256, size, mode, checksum = item
    if not isinstance(checksum, bytes) or len(checksum) != _CHECKSUM_BYTES:
        raise StoreDamagedError("an entry document with something else for a checksum")
    return StoredOutput(
        _text(name), Digest(_sha256(sha256), _size(size)), _size(mode) & 0o777, checksum
    )


def _component(item: Any) -> Component:
    role, path, canonical_path, sha256, size = item
    return Component(
        _text(role), _text(path), _text(canonical_path), Digest(_sha256(sha256), _size(size))
    )


def _pack(body: dict[str, Any]) -> bytes:
    packed = msgpack.packb(body, use_bin_type=True, unicode_errors="surrogateescape")
    assert isinstance(packed, bytes)
    return packed
