"""The header and its two tables, taken apart by pyelftools and held to their bounds."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from io import BytesIO
from typing import NamedTuple

from elftools.common.exceptions import ELFError as ParseError
from elftools.common.utils import struct_parse
from elftools.elf.enums import ENUM_E_MACHINE
from elftools.elf.structs import ELFStructs

from .reading import Strings, opened, refused, require_range
from .values import AICORE_MACHINE, Image, Section, Segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .values import ByteOrder, Data, Rule

MAX_HEADERS = 1 << 17
"""Most sections, or segments, in one image: each costs the parser about 15 µs."""

MAGIC = b"\x7fELF"
_CLASS_64 = 2
_CURRENT_VERSION = 1
HEADER_BYTES = 64
_MACHINE_START, _MACHINE_END = 18, 20
_SECTION_BYTES = 64
_SEGMENT_BYTES = 56

_FIRST_RESERVED_INDEX = 0xFF00
_EXTENDED_INDEX = 0xFFFF
_EXTENDED_SEGMENTS = 0xFFFF

_X86_64_MACHINE = 62
_AARCH64_MACHINE = 183
_HOST_MACHINES = {"x86_64": _X86_64_MACHINE, "aarch64": _AARCH64_MACHINE}
_LITTLE_ENDIAN_ONLY = frozenset({AICORE_MACHINE, _X86_64_MACHINE})
_MACHINE_NAMES = {
    **{n: name[3:].lower() for name, n in ENUM_E_MACHINE.items() if name.startswith("EM_")},
    AICORE_MACHINE: "aicore",
}


def is_elf(data: Data) -> bool:
    """True if the first four bytes say ELF, of whatever class."""
    with opened(data) as view:
        return view[: len(MAGIC)] == MAGIC


@lru_cache(maxsize=1)
def host_machine() -> int:
    """``e_machine`` of the programs that this machine runs.

    Read from this interpreter's own file. Raises :class:`~ptocache.errors.ElfError` on a machine
    where that is not an ELF file and whose name is not known here.
    """
    try:
        with open(sys.executable or "", "rb") as file:
            head = file.read(_MACHINE_END)
    except OSError:
        head = b""
    if is_elf(head) and len(head) == _MACHINE_END:
        return int.from_bytes(head[_MACHINE_START:_MACHINE_END], sys.byteorder)
    name = os.uname().machine
    if name not in _HOST_MACHINES:
        raise refused("machine", f"no ELF machine number is known for {name}", found=name)
    return _HOST_MACHINES[name]


def machine_name(machine: int) -> str:
    """Lower-case name of an ``e_machine``; hexadecimal if unknown."""
    return _MACHINE_NAMES.get(machine, f"0x{machine:x}")


class _Table(NamedTuple):
    """Where a table of headers is; known to lie within the file."""

    offset: int
    entries: int
    entry_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.entries * self.entry_bytes if self.entries else 0


class _Header(NamedTuple):
    """The ELF header with the extended form resolved."""

    structs: ELFStructs
    byte_order: ByteOrder
    type: str
    machine: int
    flags: int
    entry: int
    sections: _Table
    segments: _Table
    names_index: int


def read_image(view: memoryview) -> Image:
    """All that the headers say; see :class:`~ptocache.elf.Image`."""
    header = read_header(view)
    return Image(
        bits=64,
        byte_order=header.byte_order,
        machine=header.machine,
        machine_name=machine_name(header.machine),
        type=header.type,
        flags=header.flags,
        entry=header.entry,
        sections=_sections(view, header),
        segments=read_segments(view, header),
        headers_end=max(HEADER_BYTES, header.sections.end, header.segments.end),
    )


def read_header(view: memoryview) -> _Header:
    """The ELF header, and where its two tables are: both lie within ``view``."""
    byte_order = _identified(view)
    # pyelftools replaces the numbers that it knows by names; the rules want the number.
    machine = int.from_bytes(view[_MACHINE_START:_MACHINE_END], byte_order)
    _check_byte_order(byte_order, machine)
    structs = _structs(byte_order, machine)
    fields = _parsed(structs.Elf_Ehdr, BytesIO(view[:HEADER_BYTES]))
    _check_header(fields)
    first = _first_section(view, structs, fields)
    return _Header(
        structs=structs,
        byte_order=byte_order,
        type=_word(fields.e_type, "ET_"),
        machine=machine,
        flags=fields.e_flags,
        entry=fields.e_entry,
        sections=_section_table(fields, first, len(view)),
        segments=_segment_table(fields, first, len(view)),
        names_index=_names_index(fields, first),
    )


def _identified(view: memoryview) -> ByteOrder:
    ident = bytes(view[:16])
    if ident[:4] != MAGIC:
        raise refused("magic", "not an ELF image: the magic number is missing", offset=0)
    if len(view) < HEADER_BYTES:
        raise refused(
            "header_size",
            f"the {len(view)} bytes of the file end within the {HEADER_BYTES} bytes of the header",
            offset=0,
            size=HEADER_BYTES,
            file_size=len(view),
        )
    if ident[4] != _CLASS_64:
        raise refused("class", f"class {ident[4]} instead of 2 (64 bits)", found=ident[4])
    if ident[5] not in (1, 2):
        raise refused("byte_order", f"byte order {ident[5]} is neither 1 nor 2", found=ident[5])
    if ident[6] != _CURRENT_VERSION:
        raise refused("version", f"ELF version {ident[6]} instead of 1", found=ident[6])
    return "little" if ident[5] == 1 else "big"


def _check_byte_order(byte_order: ByteOrder, machine: int) -> None:
    # AArch64 images come in both orders, and the other one cannot be loaded here.
    if machine in _LITTLE_ENDIAN_ONLY:
        wanted = "little"
    elif machine == host_machine():
        wanted = sys.byteorder
    else:
        return
    if byte_order != wanted:
        raise refused(
            "byte_order",
            f"{byte_order}-endian, but {machine_name(machine)} is {wanted}-endian",
            wanted=wanted,
            found=byte_order,
        )


@lru_cache(maxsize=16)
def _structs(byte_order: ByteOrder, machine: int) -> ELFStructs:
    # Building these costs a millisecond, parsing a header with them 15 µs.
    structs = ELFStructs(little_endian=byte_order == "little", elfclass=64)
    structs.create_basic_structs()
    number = machine.to_bytes(2, byte_order)
    blank = bytes(_MACHINE_START) + number + bytes(HEADER_BYTES - _MACHINE_END)
    structs.create_advanced_structs(e_machine=structs.Elf_Ehdr.parse(blank).e_machine)
    return structs


def _parsed(layout: Any, stream: BytesIO) -> Any:
    try:
        return struct_parse(layout, stream)
    except ParseError as error:
        raise refused("header_size", f"a header cannot be parsed: {error}") from error


def _word(value: str | int, prefix: str) -> str:
    return f"0x{value:x}" if isinstance(value, int) else value.removeprefix(prefix)


def _check_header(fields: Any) -> None:
    # CUDA counts the versions of its own images there.
    if fields.e_version != "EV_CURRENT" and fields.e_machine != "EM_CUDA":
        raise refused("version", f"object version {fields.e_version} instead of 1")
    sizes = [("e_ehsize", fields.e_ehsize, HEADER_BYTES)]
    if fields.e_shoff:
        sizes.append(("e_shentsize", fields.e_shentsize, _SECTION_BYTES))
    if fields.e_phnum:
        sizes.append(("e_phentsize", fields.e_phentsize, _SEGMENT_BYTES))
    for field, found, wanted in sizes:
        if found != wanted:
            raise refused(
                "header_size",
                f"{field} is {found} bytes instead of {wanted}",
                wanted=wanted,
                found=found,
            )


def _first_section(view: memoryview, structs: ELFStructs, fields: Any) -> Any:
    """Header of section 0, where numbers too large for the ELF header are kept; None without."""
    if not fields.e_shoff:
        return None
    offset = fields.e_shoff
    require_range("section_table", "section header table", offset, _SECTION_BYTES, len(view))
    return _parsed(structs.Elf_Shdr, BytesIO(view[offset : offset + _SECTION_BYTES]))


def _section_table(fields: Any, first: Any, file_size: int) -> _Table:
    count = fields.e_shnum
    if first is None:
        if count:
            raise refused("section_count", f"{count} sections, but no table of them", found=count)
        return _Table(0, 0, _SECTION_BYTES)
    if count >= _FIRST_RESERVED_INDEX:
        raise refused(
            "section_count", f"{count} sections need the extended form of the number", found=count
        )
    table = _Table(fields.e_shoff, count or first.sh_size, _SECTION_BYTES)
    return _bounded("section", "section_count", "section_table", table, file_size)


def _segment_table(fields: Any, first: Any, file_size: int) -> _Table:
    count = fields.e_phnum
    if count == _EXTENDED_SEGMENTS:
        if first is None:
            raise refused("segment_count", "the number of segments is in a section that is not")
        count = first.sh_info
    elif not count:
        return _Table(0, 0, _SEGMENT_BYTES)
    if not fields.e_phoff:
        raise refused("segment_count", f"{count} segments, but no table of them", found=count)
    table = _Table(fields.e_phoff, count, _SEGMENT_BYTES)
    return _bounded("program", "segment_count", "segment_table", table, file_size)


def _bounded(title: str, count_rule: Rule, rule: Rule, table: _Table, file_size: int) -> _Table:
    if not 0 < table.entries <= MAX_HEADERS:
        raise refused(
            count_rule,
            f"a {title} header table of {table.entries} entries (1 to {MAX_HEADERS} are allowed)",
            found=table.entries,
        )
    size = table.entries * table.entry_bytes
    require_range(rule, f"{title} header table", table.offset, size, file_size)
    return table


def _names_index(fields: Any, first: Any) -> int:
    index: int = fields.e_shstrndx
    if index == _EXTENDED_INDEX and first is not None:
        index = first.sh_link
    return index


def _sections(view: memoryview, header: _Header) -> tuple[Section, ...]:
    table = header.sections
    if not table.entries:
        return ()
    layout = header.structs.Elf_Shdr
    stream = BytesIO(view[table.offset : table.end])
    names = _section_names(view, header, stream)
    stream.seek(0)
    return tuple(_section(_parsed(layout, stream), index, names) for index in range(table.entries))


def _section(raw: Any, index: int, names: Strings) -> Section:
    return Section(
        name=names.at(raw.sh_name, "section_name", section=index),
        type=_word(raw.sh_type, "SHT_"),
        flags=raw.sh_flags,
        address=raw.sh_addr,
        offset=raw.sh_offset,
        size=raw.sh_size,
        align=raw.sh_addralign,
        link=raw.sh_link,
        info=raw.sh_info,
        entry_size=raw.sh_entsize,
    )


def _section_names(view: memoryview, header: _Header, stream: BytesIO) -> Strings:
    index = header.names_index
    if index >= header.sections.entries:
        raise refused(
            "name_table",
            f"section {index} should hold the names, but there are {header.sections.entries}",
            section=index,
            found=header.sections.entries,
        )
    stream.seek(index * _SECTION_BYTES)
    raw = _parsed(header.structs.Elf_Shdr, stream)
    kind = _word(raw.sh_type, "SHT_")
    if kind != "STRTAB":
        raise refused(
            "name_table",
            f"section {index} should hold the names, but is a {kind} instead of a STRTAB",
            section=index,
            wanted="STRTAB",
            found=kind,
        )
    title = f"the section name table (number {index})"
    offset, size = raw.sh_offset, raw.sh_size
    require_range("section_bounds", title, offset, size, len(view), section=index)
    return Strings(bytes(view[offset : offset + size]), title)


def read_segments(view: memoryview, header: _Header) -> tuple[Segment, ...]:
    """The table of program headers, in order."""
    table = header.segments
    stream = BytesIO(view[table.offset : table.end])
    layout = header.structs.Elf_Phdr
    return tuple(_segment(_parsed(layout, stream)) for _ in range(table.entries))


def _segment(raw: Any) -> Segment:
    return Segment(
        type=_word(raw.p_type, "PT_"),
        offset=raw.p_offset,
        vaddr=raw.p_vaddr,
        file_size=raw.p_filesz,
        memory_size=raw.p_memsz,
        align=raw.p_align,
        flags=raw.p_flags,
    )
