"""What the loader of the system is told: its own path, the libraries and where to look for them."""

from __future__ import annotations

import struct

from .reading import Strings, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .values import ByteOrder, Segment

_DYNAMIC_BYTES = 16

_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 15, 29


def only_segment(segments: tuple[Segment, ...], kind: str) -> Segment | None:
    """The segment of a type that an image may have once."""
    found = [segment for segment in segments if segment.type == kind]
    if len(found) > 1:
        raise refused("dynamic", f"{len(found)} segments of type {kind}", found=len(found))
    return found[0] if found else None


def interpreter_of(view: memoryview, segment: Segment | None) -> str:
    """The path in the segment INTERP; empty without one."""
    if segment is None:
        return ""
    end = segment.offset + segment.file_size
    return Strings(bytes(view[segment.offset : end]), "segment INTERP").at(0, "dynamic")


def dynamic_names(
    view: memoryview, segments: tuple[Segment, ...], segment: Segment | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the needed libraries, and the directories to search for them."""
    if segment is None:
        return (), ()
    order: ByteOrder = "little" if view[5] == 1 else "big"
    entries = _dynamic_entries(view, segment, order)
    needed = [value for tag, value in entries if tag == _DT_NEEDED]
    last = dict(entries)
    # The loader ignores the older of the two where both are given.
    path = last.get(_DT_RUNPATH, last.get(_DT_RPATH))
    if not needed and path is None:
        return (), ()
    strings = _dynamic_strings(view, segments, last)
    runpath = () if path is None else tuple(strings.at(path, "dynamic").split(":"))
    return tuple(strings.at(offset, "dynamic") for offset in needed), runpath


def _dynamic_entries(
    view: memoryview, segment: Segment, byte_order: ByteOrder
) -> list[tuple[int, int]]:
    whole = segment.file_size - segment.file_size % _DYNAMIC_BYTES
    table = bytes(view[segment.offset : segment.offset + whole])
    found = []
    wanted = {_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH}
    for tag, value in struct.iter_unpack(("<" if byte_order == "little" else ">") + "QQ", table):
        if tag == _DT_NULL:
            break
        if tag in wanted:
            found.append((tag, value))
    return found


def _dynamic_strings(
    view: memoryview, segments: tuple[Segment, ...], entries: dict[int, int]
) -> Strings:
    address, size = entries.get(_DT_STRTAB), entries.get(_DT_STRSZ)
    if address is None or size is None:
        raise refused("dynamic", "dynamic entries with names, but without a string table")
    for segment in segments:
        start = address - segment.vaddr
        if segment.type == "LOAD" and start >= 0 and size <= segment.file_size - start:
            offset = segment.offset + start
            return Strings(bytes(view[offset : offset + size]), "the dynamic string table")
    raise refused(
        "dynamic",
        f"the dynamic string table, {size} bytes at address {address}, is in no loaded segment",
        offset=address,
        size=size,
        file_size=len(view),
    )
