"""Is this a whole ELF64 image, for the right machine, with the symbols that were asked for?

Source: System V Application Binary Interface (gABI), chapters 4 "Object Files" and 5 "Program
Loading and Dynamic Linking", for the 64-bit class. Sizes of the structures, in bytes:

    header              64      at offset 0
    section header      64      ``e_shnum`` of them at ``e_shoff``
    program header      56      ``e_phnum`` of them at ``e_phoff``
    symbol              24      st_name 4, st_info 1, st_other 1, st_shndx 2, st_value 8, st_size 8
    dynamic entry       16      d_tag 8, d_val 8

    extended form       e_shnum 0          the number of sections is sh_size of section 0
                        e_shstrndx 0xffff  the name table's index is sh_link of section 0
                        e_phnum 0xffff     the number of segments is sh_info of section 0

pyelftools takes headers apart; the rules are here. :func:`inspect` reads, :func:`check` judges; for
Ascend, :func:`check_device` judges images and :func:`check_fat` what holds them. docs/reference/
artifacts.md lists the rules for users.

Whatever the bytes are, the only error is :class:`~ptocache.errors.ElfError`, whose ``rule`` field
names the rule; time and memory grow with the size of the data, not with numbers found in it. All
offsets and sizes are bytes. No memory of the caller is referred to after a function returns, so a
map can be closed at once.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from typing import NamedTuple

from elftools.common.exceptions import ELFError as ParseError
from elftools.common.utils import struct_parse
from elftools.elf.enums import ENUM_E_MACHINE
from elftools.elf.structs import ELFStructs

from .errors import ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Literal, TypeAlias

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
MAX_HEADERS = 1 << 17
"""Most sections, or segments, in one image: each costs the parser about 15 µs."""
MAX_NESTED = 1 << 14
"""Most images in one section of a fat object."""
FAT_SECTION = ".aicore_binary"
"""The section of a host image that holds the device images."""

ENTRY_SUFFIXES = ("_mix_aic", "_mix_aiv")
"""What the device compiler appends to the name of a kernel for both kinds of core (cube, vector)."""
ARCH_ALIASES = {
    "dav-c220": "dav-2201",
    "a3": "dav-2201",
    "dav-c310": "dav-3510",
    "dav-3101": "dav-3510",
    "a5": "dav-3510",
}
"""Other names of an arch (of ``--cce-aicore-arch``, of ``--pto-arch``, older) → that of ``--npu-arch``.

Source: the platform files of CANN (``NpuArch=3510`` beside ``CCEC_AIC_version=dav-c310-cube``)."""
ARCH_FLAGS = {"dav-2201": 0x940000, "dav-3510": 0x990000}
"""Arch → ``e_flags`` of its images, linked or not; only what real images were seen to carry.

dav-2201: the 21 linked and 21 relocatable images of the wheel pto-kernels 0.1.7, and the examples of
CANN's msobjdump. dav-3510: readelf of what ptoas (``--pto-arch=a5``, CANN 9.1.0 beta) and
bishengir-compile (Ascend910_9589) made. What the bits mean is not public: flags or archs that are
not here are not judged."""
UNDECIDED_FLAGS = frozenset({0x940000})
"""Flags that contradict no arch: nearly all published images carry them, and that no release writes them
for a later device is not known."""

_MAGIC = b"\x7fELF"
_CLASS_AT = 4
_CLASS_32, _CLASS_64 = 1, 2
_HEADER_BYTES_32 = 52
_CURRENT_VERSION = 1
_HEADER_BYTES = 64
_MACHINE_START, _MACHINE_END = 18, 20
_SECTION_BYTES = 64
_SEGMENT_BYTES = 56
_SYMBOL_BYTES = 24
_DYNAMIC_BYTES = 16

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

_VISIBLE_BINDINGS = frozenset({1, 2, 10})  # global, weak, GNU unique
_FILE_OR_SECTION = frozenset({3, 4})
_FUNCTIONS = frozenset({0, 2, 10})
# Assembly and linker scripts leave a symbol's type open; such a symbol can be looked up too.
_LOOKED_UP = frozenset(range(16)) - _FILE_OR_SECTION
_NAMED_THINGS = frozenset({1, 2, 5, 6, 10})  # object, function, common, thread-local, ifunc

_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 15, 29

_NESTED_TYPES = ("EXEC", "REL", "DYN")
_ARCH_NAME = re.compile(rb"(?<![0-9A-Za-z_-])dav-[0-9A-Za-z]{1,40}")
_KERNEL_META = ".ascend.meta."

_NAME_REREADS = 8
_SHOWN_CHARACTERS = 80
_SKIP_BYTES = 4096
_FURTHEST_BYTES = 1 << 16


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


def is_elf(data: Data) -> bool:
    """True if the first four bytes say ELF, of whatever class."""
    with _opened(data) as view:
        return view[: len(_MAGIC)] == _MAGIC


def inspect(data: Data) -> Image:
    """What the headers say, true or not: for showing an image that :func:`check` may refuse.

    Raises :class:`~ptocache.errors.ElfError` only if the header, its two tables or the sections'
    names cannot be read.
    """
    with _opened(data) as view:
        return _image(view)


def check(
    data: Data,
    *,
    machine: int | None = None,
    types: tuple[str, ...] | None = None,
    symbols: Iterable[str] = (),
) -> Image:
    """The image, if it keeps every rule; ``None`` for ``machine`` or ``types`` allows any.

    ``symbols`` must be defined and not local: in ``.dynsym`` for a shared object (type ``DYN``),
    else in ``.symtab`` or ``.dynsym``. Raises :class:`~ptocache.errors.ElfError`, whose fields are
    ``rule`` and those of section, segment, offset, size, file_size, wanted, found that apply.
    """
    with _opened(data) as view:
        image = _checked(view)
        _check_kind(image, machine, types)
        _check_symbols(view, image, tuple(symbols))
        return image


def defined_symbols(data: Data) -> frozenset[str]:
    """Names of the global and weak functions and objects that the image defines.

    From ``.dynsym`` for a shared object (type ``DYN``), else from ``.symtab`` and ``.dynsym``.
    Raises :class:`~ptocache.errors.ElfError` for an image that :func:`check` refuses, or one whose
    symbols have names outside their string table.
    """
    with _opened(data) as view:
        return _defined(view, _checked(view), _NAMED_THINGS)


def needed_libraries(data: Data) -> NeededLibraries:
    """What the loader brings in first; all empty for a static executable or a relocatable object.

    Looks at segments only, as the loader does: an executable stripped of its sections is fine.
    Raises :class:`~ptocache.errors.ElfError` if the header, a segment or the dynamic entries break
    a rule.
    """
    with _opened(data) as view:
        segments = _segments(view, _header(view))
        _check_segments(segments, len(view))
        interpreter = _interpreter(view, _only(segments, "INTERP"))
        needed, runpath = _dynamic(view, segments, _only(segments, "DYNAMIC"))
        return NeededLibraries(interpreter, needed, runpath)


def nested_images(
    data: Data, section: str = FAT_SECTION, *, machine: int | None = AICORE_MACHINE
) -> tuple[Nested, ...]:
    """The complete images that ``section`` holds back to back, at least one.

    Each must keep the rules of :func:`check` by itself, for ``machine`` (``None``: any). Between
    and after them only zero bytes may stand. Raises :class:`~ptocache.errors.ElfError` otherwise;
    the fields ``nested`` (counted from 0) and ``nested_offset`` (bytes from the start of ``data``)
    then say which image it was.
    """
    with _opened(data) as view:
        holder = _holder(_checked(view), section)
        return tuple(_images_in(view, holder, lambda rest: _checked_kind(rest, machine, None)))


def check_device(
    data: Data,
    *,
    arch: str = "",
    types: tuple[str, ...] = ("EXEC",),
    symbols: Iterable[str] = (),
) -> Image:
    """The device image (machine 0x1029), if it keeps every rule and holds any content.

    ``symbols`` are entry symbols: each must be defined, by its name or, for a kernel for both kinds
    of core, with one of :data:`ENTRY_SUFFIXES`. ``arch`` is the requested one (``dav-2201``; empty:
    not judged): an image whose ``e_flags`` are surely those of another arch (:data:`ARCH_FLAGS`), or one
    of whose note sections names another ``dav-…``, is refused. Raises
    :class:`~ptocache.errors.ElfError` as :func:`check` does.
    """
    with _opened(data) as view:
        image = _checked_device(view, types, arch)
        _require_entries(symbols, _entry_symbols(view, image))
        return image


def check_fat(
    data: Data,
    *,
    arch: str = "",
    machine: int | None = None,
    types: tuple[str, ...] = ("REL", "DYN", "EXEC"),
    symbols: Iterable[str] = (),
    section: str = FAT_SECTION,
) -> tuple[Nested, ...]:
    """The device images of a host image (``machine``; ``None``: this machine's), at least one.

    The host image must keep every rule of :func:`check`, and its ``section`` (objects that are still
    to be linked have ``__aicore_rel_binary`` instead) must hold complete device images and zero
    bytes alone. Each of ``symbols`` may be defined by any of the device images or by the host
    image. With ``arch`` each device image is judged as
    :func:`check_device` does, and all must have the same ``e_flags``. Raises
    :class:`~ptocache.errors.ElfError`, with ``nested`` and ``nested_offset`` as
    :func:`nested_images` does.
    """
    with _opened(data) as view:
        host = _checked(view)
        _check_kind(host, host_machine() if machine is None else machine, types)
        holder = _holder(host, section)
        found = _device_images(view, holder, arch)
        _require_entries(symbols, _fat_symbols(view, host, found))
        return found


def check_images(data: Data, *, arch: str = "", symbols: Iterable[str] = ()) -> tuple[Nested, ...]:
    """The device images that ``data`` itself is made of, back to back: what a fat file has in its
    section. Judged, and refused, as :func:`check_fat` does; each of ``symbols`` must be defined by
    one of them.
    """
    with _opened(data) as view:
        if not len(view):
            raise _refused("nested_section", "no device image: the data is empty", size=0)
        found = _device_images(view, _whole(view), arch)
        _require_entries(symbols, _symbols_of(view, found))
        return found


def check_any(data: Data) -> None:
    """Accept bytes of any kind, but nothing that says ELF and is broken.

    What does not begin with the ELF magic passes. A 64-bit image of any machine must keep the rules
    of :func:`check`, and those of :func:`nested_images` if it has a section ``.aicore_binary``. Of a
    32-bit image only the header and the place of its two tables are judged. Raises
    :class:`~ptocache.errors.ElfError`.
    """
    with _opened(data) as view:
        if view[: len(_MAGIC)] != _MAGIC:
            return
        if len(view) > _CLASS_AT and view[_CLASS_AT] == _CLASS_32:
            _check_32_bits(view)
            return
        image = _checked(view)
        if image.section(FAT_SECTION) is not None:
            for _ in _images_in(view, _holder(image, FAT_SECTION), _checked_aicore):
                pass


def entry_symbols(data: Data) -> tuple[str, ...]:
    """Names of the kernels that a device image defines, sorted.

    Where it has sections ``.ascend.meta.NAME``, its global functions of these names (what else is
    global there are their helpers); else all its global functions, those without a type included.
    Raises :class:`~ptocache.errors.ElfError` as :func:`defined_symbols` does.
    """
    with _opened(data) as view:
        image = _checked(view)
        functions = _defined(view, image, _FUNCTIONS)
    described = {
        section.name.removeprefix(_KERNEL_META)
        for section in image.sections
        if section.name.startswith(_KERNEL_META)
    }
    return tuple(sorted(functions & described or functions))


def readable_images(data: Data, section: str = FAT_SECTION) -> tuple[Nested, ...]:
    """The device images up to the first that :func:`nested_images` refuses; raises nothing.

    With no ``section`` those that ``data`` itself is made of, as for :func:`check_images`.
    """
    found: list[Nested] = []
    with _opened(data) as view, suppress(ElfError):
        holder = _holder(_checked(view), section) if section else _whole(view)
        found.extend(_images_in(view, holder, _checked_aicore))
    return tuple(found)


def is_followed(data: Data, image: Image) -> bool:
    """True if after ``image``, the first in ``data``, another one begins.

    Looked for behind zero bytes, but not further than 64 KiB: the data may be a huge sparse file.
    """
    with _opened(data) as view:
        end = min(len(view), image.end + _FURTHEST_BYTES)
        if image.end >= end:
            return False
        start = _skip_zeros(view, image.end, end)
        with view[start : start + len(_MAGIC)] as rest:
            return start < end and is_elf(rest)


def section_bytes(data: Data, name: str = FAT_SECTION) -> bytes:
    """A copy of the bytes of the one section of that name.

    Raises :class:`~ptocache.errors.ElfError` for an image that :func:`check` refuses, and (rule
    ``nested_section``) if no section, or more than one, has the name, or it is empty.
    """
    with _opened(data) as view:
        return _content(view, _holder(_checked(view), name))


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
        raise _refused("machine", f"no ELF machine number is known for {name}", found=name)
    return _HOST_MACHINES[name]


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


class _Strings:
    """Names out of one string table, each read once.

    Names may share their ends, so a small table can spell names whose total length is the square
    of its size. What real linkers share is far below the budget here.
    """

    def __init__(self, table: bytes, title: str) -> None:
        self._table = table
        self._title = title
        self._known: dict[int, str] = {}
        self._budget_bytes = _NAME_REREADS * len(table)

    def at(self, offset: int, rule: Rule, **fields: Any) -> str:
        """The name at ``offset``; the fields go into the error."""
        name = self._known.get(offset)
        if name is None:
            name = self._known[offset] = self._read(offset, rule, fields)
        return name

    def _read(self, offset: int, rule: Rule, fields: dict[str, Any]) -> str:
        if offset == 0 and not self._table:
            return ""
        end = self._table.find(b"\0", offset)
        if offset >= len(self._table) or end < 0:
            raise _refused(
                rule,
                f"a name at offset {offset} has no end within the {len(self._table)} bytes of"
                f" {self._title}",
                offset=offset,
                size=len(self._table),
                **fields,
            )
        self._budget_bytes -= end - offset
        if self._budget_bytes < 0:
            raise _refused(
                "string",
                f"names overlap to more than {_NAME_REREADS} times the {len(self._table)} bytes of"
                f" {self._title}",
                size=len(self._table),
                **fields,
            )
        # Not surrogateescape: names end up in messages, which must be valid text.
        return self._table[offset:end].decode("utf-8", "backslashreplace")


@contextmanager
def _opened(data: Data) -> Iterator[memoryview]:
    # Released even when an error's traceback keeps frames alive: a mapped file could not be closed
    # while views of it exist.
    with memoryview(data) as whole, whole.cast("B") as view:
        yield view


def _refused(rule: Rule, message: str, **fields: Any) -> ElfError:
    return ElfError(message, rule=rule, **fields)


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "…")


def _title(index: int, section: Section) -> str:
    return f"section {_shown(section.name)} (number {index})"


def _machine_name(machine: int) -> str:
    return _MACHINE_NAMES.get(machine, f"0x{machine:x}")


def _word(value: str | int, prefix: str) -> str:
    return f"0x{value:x}" if isinstance(value, int) else value.removeprefix(prefix)


def _require_range(
    rule: Rule, title: str, offset: int, size: int, file_size: int, **fields: Any
) -> None:
    # In this form nothing overflows in any language: no sum of two numbers from the file.
    if offset > file_size or size > file_size - offset:
        raise _refused(
            rule,
            f"{title}: {size} bytes at offset {offset} do not lie within the {file_size} bytes"
            " of the file",
            offset=offset,
            size=size,
            file_size=file_size,
            **fields,
        )


def _parsed(layout: Any, stream: BytesIO) -> Any:
    try:
        return struct_parse(layout, stream)
    except ParseError as error:
        raise _refused("header_size", f"a header cannot be parsed: {error}") from error


def _image(view: memoryview) -> Image:
    header = _header(view)
    return Image(
        bits=64,
        byte_order=header.byte_order,
        machine=header.machine,
        machine_name=_machine_name(header.machine),
        type=header.type,
        flags=header.flags,
        entry=header.entry,
        sections=_sections(view, header),
        segments=_segments(view, header),
        headers_end=max(_HEADER_BYTES, header.sections.end, header.segments.end),
    )


def _header(view: memoryview) -> _Header:
    byte_order = _identified(view)
    # pyelftools replaces the numbers that it knows by names; the rules want the number.
    machine = int.from_bytes(view[_MACHINE_START:_MACHINE_END], byte_order)
    _check_byte_order(byte_order, machine)
    structs = _structs(byte_order, machine)
    fields = _parsed(structs.Elf_Ehdr, BytesIO(view[:_HEADER_BYTES]))
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
    if ident[:4] != _MAGIC:
        raise _refused("magic", "not an ELF image: the magic number is missing", offset=0)
    if len(view) < _HEADER_BYTES:
        raise _refused(
            "header_size",
            f"the {len(view)} bytes of the file end within the {_HEADER_BYTES} bytes of the header",
            offset=0,
            size=_HEADER_BYTES,
            file_size=len(view),
        )
    if ident[4] != _CLASS_64:
        raise _refused("class", f"class {ident[4]} instead of 2 (64 bits)", found=ident[4])
    if ident[5] not in (1, 2):
        raise _refused("byte_order", f"byte order {ident[5]} is neither 1 nor 2", found=ident[5])
    if ident[6] != _CURRENT_VERSION:
        raise _refused("version", f"ELF version {ident[6]} instead of 1", found=ident[6])
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
        raise _refused(
            "byte_order",
            f"{byte_order}-endian, but {_machine_name(machine)} is {wanted}-endian",
            wanted=wanted,
            found=byte_order,
        )


@lru_cache(maxsize=16)
def _structs(byte_order: ByteOrder, machine: int) -> ELFStructs:
    # Building these costs a millisecond, parsing a header with them 15 µs.
    structs = ELFStructs(little_endian=byte_order == "little", elfclass=64)
    structs.create_basic_structs()
    number = machine.to_bytes(2, byte_order)
    blank = bytes(_MACHINE_START) + number + bytes(_HEADER_BYTES - _MACHINE_END)
    structs.create_advanced_structs(e_machine=structs.Elf_Ehdr.parse(blank).e_machine)
    return structs


def _check_header(fields: Any) -> None:
    # CUDA counts the versions of its own images there.
    if fields.e_version != "EV_CURRENT" and fields.e_machine != "EM_CUDA":
        raise _refused("version", f"object version {fields.e_version} instead of 1")
    sizes = [("e_ehsize", fields.e_ehsize, _HEADER_BYTES)]
    if fields.e_shoff:
        sizes.append(("e_shentsize", fields.e_shentsize, _SECTION_BYTES))
    if fields.e_phnum:
        sizes.append(("e_phentsize", fields.e_phentsize, _SEGMENT_BYTES))
    for field, found, wanted in sizes:
        if found != wanted:
            raise _refused(
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
    _require_range("section_table", "section header table", offset, _SECTION_BYTES, len(view))
    return _parsed(structs.Elf_Shdr, BytesIO(view[offset : offset + _SECTION_BYTES]))


def _section_table(fields: Any, first: Any, file_size: int) -> _Table:
    count = fields.e_shnum
    if first is None:
        if count:
            raise _refused("section_count", f"{count} sections, but no table of them", found=count)
        return _Table(0, 0, _SECTION_BYTES)
    if count >= _FIRST_RESERVED_INDEX:
        raise _refused(
            "section_count", f"{count} sections need the extended form of the number", found=count
        )
    table = _Table(fields.e_shoff, count or first.sh_size, _SECTION_BYTES)
    return _bounded("section", "section_count", "section_table", table, file_size)


def _segment_table(fields: Any, first: Any, file_size: int) -> _Table:
    count = fields.e_phnum
    if count == _EXTENDED_SEGMENTS:
        if first is None:
            raise _refused("segment_count", "the number of segments is in a section that is not")
        count = first.sh_info
    elif not count:
        return _Table(0, 0, _SEGMENT_BYTES)
    if not fields.e_phoff:
        raise _refused("segment_count", f"{count} segments, but no table of them", found=count)
    table = _Table(fields.e_phoff, count, _SEGMENT_BYTES)
    return _bounded("program", "segment_count", "segment_table", table, file_size)


def _bounded(title: str, count_rule: Rule, rule: Rule, table: _Table, file_size: int) -> _Table:
    if not 0 < table.entries <= MAX_HEADERS:
        raise _refused(
            count_rule,
            f"a {title} header table of {table.entries} entries (1 to {MAX_HEADERS} are allowed)",
            found=table.entries,
        )
    size = table.entries * table.entry_bytes
    _require_range(rule, f"{title} header table", table.offset, size, file_size)
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


def _section(raw: Any, index: int, names: _Strings) -> Section:
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


def _section_names(view: memoryview, header: _Header, stream: BytesIO) -> _Strings:
    index = header.names_index
    if index >= header.sections.entries:
        raise _refused(
            "name_table",
            f"section {index} should hold the names, but there are {header.sections.entries}",
            section=index,
            found=header.sections.entries,
        )
    stream.seek(index * _SECTION_BYTES)
    raw = _parsed(header.structs.Elf_Shdr, stream)
    kind = _word(raw.sh_type, "SHT_")
    if kind != "STRTAB":
        raise _refused(
            "name_table",
            f"section {index} should hold the names, but is a {kind} instead of a STRTAB",
            section=index,
            wanted="STRTAB",
            found=kind,
        )
    title = f"the section name table (number {index})"
    offset, size = raw.sh_offset, raw.sh_size
    _require_range("section_bounds", title, offset, size, len(view), section=index)
    return _Strings(bytes(view[offset : offset + size]), title)


def _segments(view: memoryview, header: _Header) -> tuple[Segment, ...]:
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


def _checked(view: memoryview) -> Image:
    image = _image(view)
    for index, section in enumerate(image.sections):
        _check_section(index, section, image.sections, len(view))
    _check_segments(image.segments, len(view))
    for kind in ("SYMTAB", "DYNSYM"):
        count = sum(section.type == kind for section in image.sections)
        # Also what keeps reading symbols linear: many tables could share the same bytes.
        if count > 1:
            raise _refused("symbol_table", f"{count} sections of type {kind}", found=count)
    return image


def _check_section(
    index: int, section: Section, sections: tuple[Section, ...], file_size: int
) -> None:
    if section.type == "NULL":
        return
    title, name = _title(index, section), section.name[:_SHOWN_CHARACTERS]
    if section.in_file:
        _require_range(
            "section_bounds", title, section.offset, section.size, file_size, section=name
        )
    _check_align("section_align", title, section.align, section=name)
    if section.type in ("SYMTAB", "DYNSYM", "REL", "RELA") and section.link >= len(sections):
        raise _refused(
            "section_link",
            f"{title} is linked to section {section.link} of {len(sections)}",
            section=name,
            found=section.link,
        )
    if section.type in ("SYMTAB", "DYNSYM"):
        _check_symbol_table(title, section, sections[section.link])


def _check_symbol_table(title: str, section: Section, strings: Section) -> None:
    name = section.name[:_SHOWN_CHARACTERS]
    if strings.type != "STRTAB":
        raise _refused(
            "section_link",
            f"{title} has its names in section {section.link}, a {strings.type}, not a STRTAB",
            section=name,
            wanted="STRTAB",
            found=strings.type,
        )
    if section.entry_size != _SYMBOL_BYTES or section.size % _SYMBOL_BYTES:
        raise _refused(
            "symbol_table",
            f"{title}: {section.size} bytes of {section.entry_size}-byte entries are not a number"
            f" of {_SYMBOL_BYTES}-byte symbols",
            section=name,
            size=section.size,
            wanted=_SYMBOL_BYTES,
            found=section.entry_size,
        )


def _check_segments(segments: tuple[Segment, ...], file_size: int) -> None:
    for index, segment in enumerate(segments):
        if segment.type == "NULL":
            continue
        title = f"segment {segment.type} (number {index})"
        _require_range(
            "segment_bounds", title, segment.offset, segment.file_size, file_size, segment=index
        )
        if segment.type == "LOAD" and segment.file_size > segment.memory_size:
            raise _refused(
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
        raise _refused(
            rule, f"{title}: alignment {align} is not a power of two", found=align, **fields
        )


def _check_kind(image: Image, machine: int | None, types: tuple[str, ...] | None) -> None:
    if machine is not None and image.machine != machine:
        raise _refused(
            "machine",
            f"for machine {image.machine} ({image.machine_name}) instead of {machine}"
            f" ({_machine_name(machine)})",
            wanted=machine,
            found=image.machine,
        )
    if types is not None and image.type not in types:
        raise _refused(
            "type",
            f"of type {image.type} instead of {' or '.join(types)}",
            wanted=list(types),
            found=image.type,
        )


def _check_symbols(view: memoryview, image: Image, symbols: tuple[str, ...]) -> None:
    if not symbols:
        return
    defined = _defined(view, image, _LOOKED_UP)
    missing = [name for name in symbols if name not in defined]
    if missing:
        raise _refused(
            "symbol",
            f"does not define {', '.join(map(_shown, missing))}",
            section=".dynsym" if image.type == "DYN" else ".symtab",
            wanted=missing,
        )


def _defined(view: memoryview, image: Image, kinds: frozenset[int]) -> frozenset[str]:
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
    symbols = struct.iter_unpack(entry, _content(view, section))
    offsets = {name for name, info, index in symbols if index and info in wanted}
    title = _title(section.link, image.sections[section.link])
    strings = _Strings(_content(view, image.sections[section.link]), title)
    owner = section.name[:_SHOWN_CHARACTERS]
    return {strings.at(offset, "symbol", section=owner) for offset in offsets}


def _content(view: memoryview, section: Section) -> bytes:
    return bytes(view[section.offset : section.offset + section.size])


def _only(segments: tuple[Segment, ...], kind: str) -> Segment | None:
    found = [segment for segment in segments if segment.type == kind]
    if len(found) > 1:
        raise _refused("dynamic", f"{len(found)} segments of type {kind}", found=len(found))
    return found[0] if found else None


def _interpreter(view: memoryview, segment: Segment | None) -> str:
    if segment is None:
        return ""
    end = segment.offset + segment.file_size
    return _Strings(bytes(view[segment.offset : end]), "segment INTERP").at(0, "dynamic")


def _dynamic(
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
) -> _Strings:
    address, size = entries.get(_DT_STRTAB), entries.get(_DT_STRSZ)
    if address is None or size is None:
        raise _refused("dynamic", "dynamic entries with names, but without a string table")
    for segment in segments:
        start = address - segment.vaddr
        if segment.type == "LOAD" and start >= 0 and size <= segment.file_size - start:
            offset = segment.offset + start
            return _Strings(bytes(view[offset : offset + size]), "the dynamic string table")
    raise _refused(
        "dynamic",
        f"the dynamic string table, {size} bytes at address {address}, is in no loaded segment",
        offset=address,
        size=size,
        file_size=len(view),
    )


def _holder(image: Image, name: str) -> Section:
    found = [section for section in image.sections if section.name == name]
    if len(found) != 1:
        raise _refused(
            "nested_section",
            f"{len(found)} sections {_shown(name)} instead of one",
            section=name,
            found=len(found),
        )
    if not found[0].in_file or not found[0].size:
        raise _refused("nested_section", f"section {_shown(name)} is empty", section=name, size=0)
    return found[0]


def _device_images(view: memoryview, holder: Section, arch: str) -> tuple[Nested, ...]:
    found = tuple(_images_in(view, holder, lambda rest: _checked_device(rest, _NESTED_TYPES, arch)))
    if arch:
        _require_same_flags(found, holder.name)
    return found


def _whole(view: memoryview) -> Section:
    """All of the data as if it were the section that a fat file has."""
    return Section(FAT_SECTION, "PROGBITS", 0, 0, 0, len(view), 1)


def _images_in(
    view: memoryview, holder: Section, judge: Callable[[memoryview], Image]
) -> Iterator[Nested]:
    position, end = holder.offset, holder.offset + holder.size
    for count in range(MAX_NESTED):
        image = _nested_image(view, position, holder, judge, count)
        yield Nested(position, image.end, image)
        position = _skip_zeros(view, position + image.end, end)
        if position == end:
            return
    raise _refused(
        "nested_count",
        f"section {_shown(holder.name)} holds more than {MAX_NESTED} images",
        section=holder.name,
        found=MAX_NESTED,
    )


def _nested_image(
    view: memoryview,
    position: int,
    holder: Section,
    judge: Callable[[memoryview], Image],
    count: int,
) -> Image:
    place: dict[str, Any] = {"nested": count, "nested_offset": position}
    with view[position : holder.offset + holder.size] as rest:
        if not is_elf(rest):
            raise _refused(
                "nested_padding",
                f"section {_shown(holder.name)} holds at offset {position - holder.offset} neither"
                " an ELF image nor zeros to its end",
                section=holder.name,
                offset=position,
                size=len(rest),
                **place,
            )
        try:
            return judge(rest)
        except ElfError as error:
            raise ElfError(
                f"image {count} in section {_shown(holder.name)}: {error.message}",
                **{**error.fields, **place},
            ) from error


def _skip_zeros(view: memoryview, start: int, end: int) -> int:
    # In steps, since stripping a copy of all that is left would be quadratic in the images.
    for position in range(start, end, _SKIP_BYTES):
        chunk = bytes(view[position : min(position + _SKIP_BYTES, end)])
        content = chunk.lstrip(b"\0")
        if content:
            return position + len(chunk) - len(content)
    return end


def _checked_kind(view: memoryview, machine: int | None, types: tuple[str, ...] | None) -> Image:
    image = _checked(view)
    _check_kind(image, machine, types)
    return image


def _checked_aicore(view: memoryview) -> Image:
    return _checked_kind(view, AICORE_MACHINE, None)


def _checked_device(view: memoryview, types: tuple[str, ...], arch: str) -> Image:
    image = _checked_kind(view, AICORE_MACHINE, types)
    _require_content(image)
    if arch:
        _check_arch_flags(image, arch)
        _check_arch_notes(view, image, arch)
    return image


def _require_content(image: Image) -> None:
    # A header alone, or one with a name table, keeps every rule of the format.
    sections = any(s.in_file and s.size and s.type != "STRTAB" for s in image.sections)
    if not sections and not any(s.type == "LOAD" and s.file_size for s in image.segments):
        raise _refused("content", "no section and no loaded segment has any content")


def _entry_symbols(view: memoryview, image: Image) -> frozenset[str]:
    return _defined(view, image, _LOOKED_UP)


def _fat_symbols(view: memoryview, host: Image, found: tuple[Nested, ...]) -> frozenset[str]:
    return _entry_symbols(view, host) | _symbols_of(view, found)


def _symbols_of(view: memoryview, found: tuple[Nested, ...]) -> frozenset[str]:
    symbols: set[str] = set()
    for item in found:
        with view[item.offset : item.offset + item.size] as nested:
            symbols |= _entry_symbols(nested, item.image)
    return frozenset(symbols)


def _require_entries(symbols: Iterable[str], defined: frozenset[str]) -> None:
    missing = [
        name
        for name in symbols
        if name not in defined and defined.isdisjoint(name + end for end in ENTRY_SUFFIXES)
    ]
    if missing:
        raise _refused(
            "symbol", f"does not define {', '.join(map(_shown, missing))}", wanted=missing
        )


def _check_arch_flags(image: Image, arch: str) -> None:
    wanted = _family(arch)
    if image.flags in UNDECIDED_FLAGS:
        return
    owners = [name for name, flags in ARCH_FLAGS.items() if flags == image.flags]
    if wanted in ARCH_FLAGS and owners and wanted not in owners:
        raise _refused(
            "arch_flags",
            f"flags 0x{image.flags:x} are those of {' and '.join(owners)}, not of {wanted}",
            wanted=wanted,
            found=image.flags,
        )


def _check_arch_notes(view: memoryview, image: Image, arch: str) -> None:
    wanted = _family(arch)
    if not _ARCH_NAME.fullmatch(wanted.encode("utf-8", "surrogatepass")):
        return
    for start, end, section in _note_ranges(image):
        with view[start:end] as note:
            _check_arch_note(note, start, section, wanted)


def _check_arch_note(note: memoryview, start: int, section: str, wanted: str) -> None:
    # Notes of real images do not have the form of the gABI; a name is looked for in any of them.
    for match in _ARCH_NAME.finditer(note):
        name = match.group().decode("ascii")
        if _family(name) != wanted:
            raise _refused(
                "arch_note",
                f"section {_shown(section)} names {_shown(name)}, but {wanted} was asked for",
                section=section[:_SHOWN_CHARACTERS],
                offset=start + match.start(),
                wanted=wanted,
                found=name,
            )


def _note_ranges(image: Image) -> list[tuple[int, int, str]]:
    """Start, end and (first) name of the notes; none twice, however much they overlap."""
    notes = sorted(
        (s.offset, s.offset + s.size, s.name) for s in image.sections if s.type == "NOTE"
    )
    found: list[tuple[int, int, str]] = []
    for start, end, name in notes:
        if found and start < found[-1][1]:
            first, last, owner = found.pop()
            found.append((first, max(last, end), owner))
        else:
            found.append((start, end, name))
    return found


def _family(arch: str) -> str:
    """The one name of an arch that has several; the kind of core is left out."""
    plain = arch.removesuffix("-cube").removesuffix("-vec")
    return ARCH_ALIASES.get(plain, plain)


def _require_same_flags(found: tuple[Nested, ...], section: str) -> None:
    first = found[0].image.flags
    for count, item in enumerate(found):
        if item.image.flags != first:
            raise _refused(
                "arch_flags",
                f"image {count} in section {_shown(section)} has flags"
                f" 0x{item.image.flags:x}, image 0 has 0x{first:x}: not of one arch",
                section=section,
                wanted=first,
                found=item.image.flags,
                nested=count,
                nested_offset=item.offset,
            )


def _check_32_bits(view: memoryview) -> None:
    if len(view) < _HEADER_BYTES_32 or view[5] not in (1, 2):
        raise _refused(
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
        _require_range(rule, title, offset, size, len(view))
