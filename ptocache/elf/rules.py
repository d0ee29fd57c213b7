"""What every image must keep, whatever it is for: bounds, links, kind and symbols."""

from __future__ import annotations

import struct

from .headers import machine_name, read_image
from .reading import SHOWN_CHARACTERS, Strings, content_of, refused, require_range, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .values import Image, Rule, Section, Segment

_HEADER_BYTES_32 = 52
_SYMBOL_BYTES = 24

_VISIBLE_BINDINGS = frozenset({1, 2, 10})  # global, weak, GNU unique
_FILE_OR_SECTION = frozenset({3, 4})
FUNCTIONS = frozenset({0, 2, 10})
# Assembly and linker scripts leave a symbol's type open; such a symbol can be looked up too.
LOOKED_UP = frozenset(range(16)) - _FILE_OR_SECTION
NAMED_THINGS = frozenset({1, 2, 5, 6, 10})  # object, function, common, thread-local, ifunc


def checked_image(view: memoryview) -> Image:
    """The image that begins ``view``, if it keeps every rule."""
    image = read_image(view)
    for index, section in enumerate(image.sections):
        _check_section(index, section, image.sections, len(view))
    check_segments(image.segments, len(view))
    for kind in ("SYMTAB", "DYNSYM"):
        count = sum(section.type == kind for section in image.sections)
        # Also what keeps reading symbols linear: many tables could share the same bytes.
        if count > 1:
            raise refused("symbol_table", f"{count} sections of type {kind}", found=count)
    return image


def checked_kind(view: memoryview, machine: int | None, types: tuple[str, ...] | None) -> Image:
    """The same, for one machine and of certain types; ``None`` allows any."""
    image = checked_image(view)
    check_kind(image, machine, types)
    return image


def _check_section(
    index: int, section: Section, sections: tuple[Section, ...], file_size: int
) -> None:
    if section.type == "NULL":
        return
    title, name = title_of(index, section), section.name[:SHOWN_CHARACTERS]
    if section.in_file:
        require_range(
            "section_bounds", title, section.offset, section.size, file_size, section=name
        )
    _check_align("section_align", title, section.align, section=name)
    if section.type in ("SYMTAB", "DYNSYM", "REL", "RELA") and section.link >= len(sections):
        raise refused(
            "section_link",
            f"{title} is linked to section {section.link} of {len(sections)}",
            section=name,
            found=section.link,
        )
    if section.type in ("SYMTAB", "DYNSYM"):
        _check_symbol_table(title, section, sections[section.link])


def _check_symbol_table(title: str, section: Section, strings: Section) -> None:
    name = section.name[:SHOWN_CHARACTERS]
    if strings.type != "STRTAB":
        raise refused(
            "section_link",
            f"{title} has its names in section {section.link}, a {strings.type}, not a STRTAB",
            section=name,
            wanted="STRTAB",
            found=strings.type,
        )
    if section.entry_size != _SYMBOL_BYTES or section.size % _SYMBOL_BYTES:
        raise refused(
            "symbol_table",
            f"{title}: {section.size} bytes of {section.entry_size}-byte entries are not a number"
            f" of {_SYMBOL_BYTES}-byte symbols",
            section=name,
            size=section.size,
            wanted=_SYMBOL_BYTES,
            found=section.entry_size,
        )


def check_segments(segments: tuple[Segment, ...], file_size: int) -> None:
    """Refuse segments beyond the file, larger than their memory, or of an odd alignment."""
    for index, segment in enumerate(segments):
        if segment.type == "NULL":
            continue
        title = f"segment {segment.type} (number {index})"
        require_range(
            "segment_bounds", title, segment.offset, segment.file_size, file_size, segment=index
        )
        if segment.type == "LOAD" and segment.file_size > segment.memory_size:
            raise refused(
                "segment_size",
                f"{title}: {segment.file_size} bytes of the file do not fit into"
                f" {segment.memory_size} bytes of memory",
                segment=index,
                size=segment.memory_size,
                found=segment.file_size,
            )
        _check_align("segment_align", title, segment.align, segment=index)


def _check_align(rule: Rule, title: str, align: int, **fields: Any) -> None:
    if align & (align - 1):
        raise refused(
            rule, f"{title}: alignment {align} is not a power of two", found=align, **fields
        )


def check_kind(image: Image, machine: int | None, types: tuple[str, ...] | None) -> None:
    """Refuse another machine or another type; ``None`` allows any."""
    if machine is not None and image.machine != machine:
        raise refused(
            "machine",
            f"for machine {image.machine} ({image.machine_name}) instead of {machine}"
            f" ({machine_name(machine)})",
            wanted=machine,
            found=image.machine,
        )
    if types is not None and image.type not in types:
        raise refused(
            "type",
            f"of type {image.type} instead of {' or '.join(types)}",
            wanted=list(types),
            found=image.type,
        )


def check_symbols(view: memoryview, image: Image, symbols: tuple[str, ...]) -> None:
    """Refuse if one of ``symbols`` is not defined or only local."""
    if not symbols:
        return
    defined = defined_names(view, image, LOOKED_UP)
    missing = [name for name in symbols if name not in defined]
    if missing:
        raise refused(
            "symbol",
            f"does not define {', '.join(map(shown, missing))}",
            section=".dynsym" if image.type == "DYN" else ".symtab",
            wanted=missing,
        )


def defined_names(view: memoryview, image: Image, kinds: frozenset[int]) -> frozenset[str]:
    """Names of the global symbols of certain types (``st_info``) that the image defines."""
    tables = ("DYNSYM",) if image.type == "DYN" else ("SYMTAB", "DYNSYM")
    found: set[str] = set()
    for section in image.sections:
        if section.type in tables:
            found |= _defined_in(view, image, section, kinds)
    return frozenset(found - {""})


def _defined_in(
    view: memoryview, image: Image, section: Section, kinds: frozenset[int]
) -> set[str]:
    wanted = {info for info in range(256) if info >> 4 in _VISIBLE_BINDINGS and info & 0xF in kinds}
    entry = ("<" if image.byte_order == "little" else ">") + "IBxH16x"
    symbols = struct.iter_unpack(entry, content_of(view, section))
    offsets = {name for name, info, index in symbols if index and info in wanted}
    title = title_of(section.link, image.sections[section.link])
    strings = Strings(content_of(view, image.sections[section.link]), title)
    owner = section.name[:SHOWN_CHARACTERS]
    return {strings.at(offset, "symbol", section=owner) for offset in offsets}


def title_of(index: int, section: Section) -> str:
    """A section as messages name it."""
    return f"section {shown(section.name)} (number {index})"


def check_32_bits(view: memoryview) -> None:
    """Refuse a 32-bit image whose header or tables are not in the file."""
    if len(view) < _HEADER_BYTES_32 or view[5] not in (1, 2):
        raise refused(
            "header_size",
            f"the {len(view)} bytes of the file hold no header of a 32-bit image",
            offset=0,
            size=_HEADER_BYTES_32,
            file_size=len(view),
        )
    order = "<" if view[5] == 1 else ">"
    segments, sections = struct.unpack_from(order + "II", view, 28)
    sizes = struct.unpack_from(order + "HHHHH", view, 40)
    tables: tuple[tuple[Rule, str, int, int], ...] = (
        ("segment_table", "program header table", segments, sizes[1] * sizes[2]),
        ("section_table", "section header table", sections, sizes[3] * sizes[4]),
    )
    for rule, title, offset, size in tables:
        require_range(rule, title, offset, size, len(view))
