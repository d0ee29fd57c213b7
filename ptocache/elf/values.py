"""What the parts of the reader hand to each other: an image, its sections and segments, and images in images."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Literal, TypeAlias

    Data: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
    ByteOrder: TypeAlias = Literal["little", "big"]
    Rule: TypeAlias = Literal[
        "magic",
        "class",
        "byte_order",
        "version",
        "header_size",
        "section_count",
        "section_table",
        "segment_count",
        "segment_table",
        "name_table",
        "section_name",
        "section_bounds",
        "section_align",
        "section_link",
        "symbol_table",
        "segment_bounds",
        "segment_size",
        "segment_align",
        "machine",
        "type",
        "symbol",
        "string",
        "dynamic",
        "nested_section",
        "nested_padding",
        "nested_count",
        "content",
        "arch_flags",
        "arch_note",
    ]

AICORE_MACHINE = 0x1029
"""``e_machine`` of an Ascend device image."""
FAT_SECTION = ".aicore_binary"
"""The section of a host image that holds the device images."""


class Section(NamedTuple):
    """A section as its header describes it; nothing here says that the description is true."""

    name: str
    """UTF-8; other bytes appear as ``\\xNN``."""
    type: str
    """Without its prefix: ``PROGBITS``, ``NOBITS``; hexadecimal if it has no known name."""
    flags: int
    address: int
    offset: int
    """Bytes from the start of the image."""
    size: int
    """Bytes."""
    align: int
    link: int = 0
    info: int = 0
    entry_size: int = 0

    @property
    def in_file(self) -> bool:
        """True if the section's bytes are part of the file."""
        return self.type not in ("NOBITS", "NULL")


class Segment(NamedTuple):
    """A segment as its program header describes it."""

    type: str
    """Without its prefix: ``LOAD``, ``DYNAMIC``; hexadecimal if it has no known name."""
    offset: int
    """Bytes from the start of the image."""
    vaddr: int
    file_size: int
    """Bytes."""
    memory_size: int
    """Bytes."""
    align: int
    flags: int = 0


class Image(NamedTuple):
    """An ELF64 image."""

    bits: int
    """Always 64: the other class is refused."""
    byte_order: ByteOrder
    machine: int
    machine_name: str
    """Lower case: ``x86_64``, ``aarch64``, ``aicore``; hexadecimal if unknown."""
    type: str
    """``REL``, ``EXEC``, ``DYN``, ``CORE``, ``NONE``; hexadecimal if unknown."""
    flags: int
    entry: int
    """Virtual address."""
    sections: tuple[Section, ...]
    """In the order of their numbers; number 0 is the empty one."""
    segments: tuple[Segment, ...]
    headers_end: int
    """Where the last of the header and the two tables ends, in bytes."""

    @property
    def end(self) -> int:
        """Bytes from the start to the end of the last thing that any header points to."""
        sections = (item.offset + item.size for item in self.sections if item.in_file)
        segments = (s.offset + s.file_size for s in self.segments if s.type != "NULL")
        return max((self.headers_end, *sections, *segments))

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return next((item for item in self.sections if item.name == name), None)


class Nested(NamedTuple):
    """An image inside a fat object."""

    offset: int
    """Bytes from the start of the *fat object*, so ``data[offset:offset + size]`` is the image."""
    size: int
    """Bytes."""
    image: Image


class NeededLibraries(NamedTuple):
    """What the loader of the system is told to look for."""

    interpreter: str
    """Path of the loader; empty if the image names none."""
    needed: tuple[str, ...]
    """Names in load order, as written."""
    runpath: tuple[str, ...]
    """Directories as written: ``$ORIGIN`` unexpanded, empty for the working directory."""
