"""Builds ELF64 images from a description, and damages them one field at a time.

Written from the gABI with ``struct`` alone, so that it shares no mistake with what it tests. The
bytes come in this order: header, program headers, contents of the sections, section headers (as in
real device images, the file ends where they end).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeAlias

    ByteOrder: TypeAlias = Literal["little", "big"]

REL, EXEC, DYN = 1, 2, 3
X86_64, AARCH64, AICORE = 62, 183, 0x1029

NULL, PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS, DYNSYM = 0, 1, 2, 3, 4, 7, 8, 11
PT_NULL, PT_LOAD, PT_DYNAMIC, PT_INTERP = 0, 1, 2, 3
LOCAL, GLOBAL, WEAK = 0, 1, 2
NOTYPE, OBJECT, FUNC = 0, 1, 2
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 1, 5, 10, 15, 29

HEADER_BYTES = 64
SECTION_BYTES = 64
SEGMENT_BYTES = 56
SYMBOL_BYTES = 24
EXTENDED = 0xFFFF

_HEADER_FIELDS = {
    "e_type": (16, "H"),
    "e_machine": (18, "H"),
    "e_version": (20, "I"),
    "e_entry": (24, "Q"),
    "e_phoff": (32, "Q"),
    "e_shoff": (40, "Q"),
    "e_flags": (48, "I"),
    "e_ehsize": (52, "H"),
    "e_phentsize": (54, "H"),
    "e_phnum": (56, "H"),
    "e_shentsize": (58, "H"),
    "e_shnum": (60, "H"),
    "e_shstrndx": (62, "H"),
}
_SECTION_FIELDS = {
    "sh_name": (0, "I"),
    "sh_type": (4, "I"),
    "sh_flags": (8, "Q"),
    "sh_addr": (16, "Q"),
    "sh_offset": (24, "Q"),
    "sh_size": (32, "Q"),
    "sh_link": (40, "I"),
    "sh_info": (44, "I"),
    "sh_addralign": (48, "Q"),
    "sh_entsize": (56, "Q"),
}
_SEGMENT_FIELDS = {
    "p_type": (0, "I"),
    "p_flags": (4, "I"),
    "p_offset": (8, "Q"),
    "p_vaddr": (16, "Q"),
    "p_paddr": (24, "Q"),
    "p_filesz": (32, "Q"),
    "p_memsz": (40, "Q"),
    "p_align": (48, "Q"),
}
HEADER_FIELDS = tuple(_HEADER_FIELDS)
SECTION_FIELDS = tuple(_SECTION_FIELDS)
SEGMENT_FIELDS = tuple(_SEGMENT_FIELDS)


class Sec(NamedTuple):
    """A section; its number is its place in the description, counted from 1."""

    name: str
    content: bytes = b""
    type: int = PROGBITS
    flags: int = 0
    address: int = 0
    align: int = 1
    link: int = 0
    info: int = 0
    entry_size: int = 0
    size: int | None = None
    """Bytes; needed for ``NOBITS`` only, else the length of ``content``."""


class Seg(NamedTuple):
    """A segment over a section, or (``section == ""``) over the whole file."""

    section: str
    type: int = PT_LOAD
    vaddr: int = 0
    memory_size: int | None = None
    """Bytes; as many as the file has if not given."""
    align: int = 1
    flags: int = 5


class Sym(NamedTuple):
    """A symbol; section 0 makes it undefined."""

    name: str
    section: int = 1
    binding: int = GLOBAL
    kind: int = FUNC
    value: int = 0
    size: int = 0


class _Placed(NamedTuple):
    offset: int
    size: int


def build(
    *,
    machine: int = X86_64,
    file_type: int = REL,
    flags: int = 0,
    entry: int = 0,
    sections: Sequence[Sec] = (Sec(".text", b"\x90" * 16),),
    segments: Sequence[Seg] = (),
    symbols: Sequence[Sym] = (),
    dynamic_symbols: Sequence[Sym] = (),
    extended: bool = False,
    byte_order: ByteOrder = "little",
) -> bytes:
    """An image. ``extended`` puts all three numbers into section 0, however small they are."""
    all_sections = _with_tables(sections, symbols, dynamic_symbols, byte_order)
    order = _order(byte_order)
    body = bytearray(HEADER_BYTES + SEGMENT_BYTES * len(segments))
    placed = [_place(body, section) for section in all_sections]
    _align(body, 8)
    section_headers = len(body)
    names = all_sections[-1].content
    body += _first_header(order, all_sections, segments) if extended else bytes(SECTION_BYTES)
    for section, place in zip(all_sections, placed, strict=True):
        body += _section_header(order, section, place, names)
    for index, segment in enumerate(segments):
        start = HEADER_BYTES + SEGMENT_BYTES * index
        header = _segment_header(order, segment, all_sections, placed, len(body))
        body[start : start + SEGMENT_BYTES] = header
    ident = b"\x7fELF" + bytes([2, 1 if byte_order == "little" else 2, 1]) + bytes(9)
    body[:HEADER_BYTES] = ident + struct.pack(
        order + "HHIQQQIHHHHHH",
        file_type,
        machine,
        1,
        entry,
        HEADER_BYTES if segments else 0,
        section_headers,
        flags,
        HEADER_BYTES,
        SEGMENT_BYTES if segments else 0,
        EXTENDED if extended and segments else len(segments),
        SECTION_BYTES,
        0 if extended else len(all_sections) + 1,
        EXTENDED if extended else len(all_sections),
    )
    return bytes(body)


def device_image(
    *symbols: str,
    content: bytes = b"\x01" * 64,
    flags: int = 0x940000,
    file_type: int = EXEC,
    notes: Sequence[Sec] = (),
) -> bytes:
    """An image as the device linker makes it; ``notes`` are further sections."""
    return build(
        machine=AICORE,
        file_type=file_type,
        flags=flags,
        sections=(
            Sec(".text", content, align=4, flags=6),
            Sec(".ascend.meta", bytes(16), type=NOTE),
            Sec(".bss", type=NOBITS, size=1 << 30, align=32, flags=3),
            *notes,
        ),
        segments=(Seg(".text", align=0x1000),),
        symbols=[Sym(name, kind=FUNC) for name in symbols],
    )


def fat_object(
    *images: bytes,
    padding: int = 0,
    machine: int = X86_64,
    file_type: int = REL,
    section: str = ".aicore_binary",
) -> bytes:
    """A host object with device images, each followed by ``padding`` zero bytes."""
    content = b"".join(image + bytes(padding) for image in images)
    return build(
        machine=machine,
        file_type=file_type,
        sections=(
            Sec(".text", b"\x90" * 16, align=16),
            Sec(section, content, align=8),
            Sec(".comment", b"host\0"),
        ),
        symbols=[Sym("launch")],
    )


def dynamic_executable(
    *,
    interpreter: str = "/lib/ld.so",
    needed: Sequence[str] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    byte_order: ByteOrder = "little",
    machine: int = X86_64,
) -> bytes:
    """An executable for the loader: one loaded segment, in which addresses equal file offsets."""
    strings = b"\0" + b"".join(text.encode() + b"\0" for text in (*needed, rpath, runpath) if text)
    entries = [(DT_NEEDED, strings.index(name.encode() + b"\0")) for name in needed]
    for tag, path in ((DT_RPATH, rpath), (DT_RUNPATH, runpath)):
        if path is not None:
            entries.append((tag, strings.index(path.encode() + b"\0")))
    # Right after the three program headers.
    address = HEADER_BYTES + 3 * SEGMENT_BYTES
    entries += [(DT_STRTAB, address), (DT_STRSZ, len(strings)), (0, 0)]
    table = b"".join(struct.pack(_order(byte_order) + "QQ", *entry) for entry in entries)
    return build(
        machine=machine,
        file_type=DYN,
        byte_order=byte_order,
        sections=(
            Sec(".dynstr", strings, type=STRTAB, address=address),
            Sec(".interp", interpreter.encode() + b"\0"),
            Sec(".dynamic", table, type=6, align=8, link=1, entry_size=16),
        ),
        segments=(Seg(""), Seg(".interp", PT_INTERP), Seg(".dynamic", PT_DYNAMIC)),
    )


def header_field(data: bytes, field: str) -> int:
    """A field of the ELF header."""
    return _get(data, 0, _HEADER_FIELDS[field])


def section_field(data: bytes, section: int | str, field: str) -> int:
    """A field of a section header; the section by number or by name."""
    return _get(data, _section_start(data, section), _SECTION_FIELDS[field])


def segment_field(data: bytes, segment: int, field: str) -> int:
    """A field of a program header."""
    return _get(data, _segment_start(data, segment), _SEGMENT_FIELDS[field])


def set_header(data: bytes, field: str, value: int) -> bytes:
    """A copy with one field of the ELF header changed."""
    return _set(data, 0, _HEADER_FIELDS[field], value)


def set_section(data: bytes, section: int | str, field: str, value: int) -> bytes:
    """A copy with one field of a section header changed; the section by number or by name."""
    return _set(data, _section_start(data, section), _SECTION_FIELDS[field], value)


def set_segment(data: bytes, segment: int, field: str, value: int) -> bytes:
    """A copy with one field of a program header changed."""
    return _set(data, _segment_start(data, segment), _SEGMENT_FIELDS[field], value)


def set_byte(data: bytes, offset: int, value: int) -> bytes:
    """A copy with one byte changed."""
    return data[:offset] + bytes([value]) + data[offset + 1 :]


def field_limit(field: str) -> int:
    """The largest value that a field of any of the three headers can hold."""
    fields = {**_HEADER_FIELDS, **_SECTION_FIELDS, **_SEGMENT_FIELDS}
    return int((1 << 8 * struct.calcsize("<" + fields[field][1])) - 1)


def section_count(data: bytes) -> int:
    """Number of sections, the empty one included."""
    return header_field(data, "e_shnum") or section_field(data, 0, "sh_size")


def section_number(data: bytes, name: str) -> int:
    """Number of the first section of that name; raises LookupError without one."""
    index = header_field(data, "e_shstrndx")
    table = section_field(data, 0, "sh_link") if index == EXTENDED else index
    names = section_content(data, table)
    for number in range(section_count(data)):
        start = section_field(data, number, "sh_name")
        if names[start : names.index(b"\0", start)] == name.encode():
            return number
    raise LookupError(name)


def section_content(data: bytes, section: int | str) -> bytes:
    """The bytes of a section."""
    offset = section_field(data, section, "sh_offset")
    return data[offset : offset + section_field(data, section, "sh_size")]


def _with_tables(
    sections: Sequence[Sec],
    symbols: Sequence[Sym],
    dynamic_symbols: Sequence[Sym],
    byte_order: ByteOrder,
) -> list[Sec]:
    found = list(sections)
    for prefix, kind, described in (("sym", SYMTAB, symbols), ("dyn", DYNSYM, dynamic_symbols)):
        if described:
            table, strings = _symbol_table(described, byte_order)
            names = (".symtab", ".strtab") if prefix == "sym" else (".dynsym", ".dynstr")
            link = len(found) + 2
            entry = SYMBOL_BYTES
            found.append(Sec(names[0], table, kind, align=8, link=link, info=1, entry_size=entry))
            found.append(Sec(names[1], strings, STRTAB))
    names_content = _string_table([*(section.name for section in found), ".shstrtab"])
    return [*found, Sec(".shstrtab", names_content, STRTAB)]


def _symbol_table(symbols: Sequence[Sym], byte_order: ByteOrder) -> tuple[bytes, bytes]:
    strings = bytearray(b"\0")
    table = bytearray(SYMBOL_BYTES)
    for symbol in symbols:
        info = symbol.binding << 4 | symbol.kind
        table += struct.pack(
            _order(byte_order) + "IBBHQQ",
            len(strings) if symbol.name else 0,
            info,
            0,
            symbol.section,
            symbol.value,
            symbol.size,
        )
        strings += symbol.name.encode() + b"\0"
    return bytes(table), bytes(strings)


def _string_table(names: Sequence[str]) -> bytes:
    return b"\0" + b"".join(name.encode() + b"\0" for name in dict.fromkeys(names) if name)


def _name_offset(names: bytes, name: str) -> int:
    return names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0


def _place(body: bytearray, section: Sec) -> _Placed:
    _align(body, section.align)
    offset = len(body)
    body += section.content
    return _Placed(offset, len(section.content) if section.size is None else section.size)


def _align(body: bytearray, align: int) -> None:
    body += bytes(-len(body) % max(align, 1))


def _first_header(order: str, sections: Sequence[Sec], segments: Sequence[Seg]) -> bytes:
    return struct.pack(
        order + "IIQQQQIIQQ", 0, 0, 0, 0, 0, len(sections) + 1, len(sections), len(segments), 0, 0
    )


def _section_header(order: str, section: Sec, place: _Placed, names: bytes) -> bytes:
    return struct.pack(
        order + "IIQQQQIIQQ",
        _name_offset(names, section.name),
        section.type,
        section.flags,
        section.address,
        place.offset,
        place.size,
        section.link,
        section.info,
        section.align,
        section.entry_size,
    )


def _segment_header(
    order: str, segment: Seg, sections: Sequence[Sec], placed: Sequence[_Placed], file_size: int
) -> bytes:
    places = {section.name: place for section, place in zip(sections, placed, strict=True)}
    place = places[segment.section] if segment.section else _Placed(0, file_size)
    return struct.pack(
        order + "IIQQQQQQ",
        segment.type,
        segment.flags,
        place.offset,
        segment.vaddr,
        segment.vaddr,
        place.size,
        place.size if segment.memory_size is None else segment.memory_size,
        segment.align,
    )


def _section_start(data: bytes, section: int | str) -> int:
    number = section_number(data, section) if isinstance(section, str) else section
    return header_field(data, "e_shoff") + number * SECTION_BYTES


def _segment_start(data: bytes, segment: int) -> int:
    return header_field(data, "e_phoff") + segment * SEGMENT_BYTES


def _get(data: bytes, start: int, layout: tuple[int, str]) -> int:
    offset, code = layout
    value: int = struct.unpack_from(_order_of(data) + code, data, start + offset)[0]
    return value


def _set(data: bytes, start: int, layout: tuple[int, str], value: int) -> bytes:
    offset, code = layout
    changed = bytearray(data)
    struct.pack_into(_order_of(data) + code, changed, start + offset, value)
    return bytes(changed)


def _order(byte_order: ByteOrder) -> str:
    return "<" if byte_order == "little" else ">"


def _order_of(data: bytes) -> str:
    return "<" if data[5] == 1 else ">"
