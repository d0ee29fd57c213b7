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

pyelftools takes headers apart (``headers``); the rules are in ``rules``, ``nested`` and ``device``.
:func:`inspect` reads, :func:`check` judges; for Ascend, :func:`check_device` judges images and
:func:`check_fat` what holds them. docs/reference/artifacts.md lists the rules for users.

Whatever the bytes are, the only error is :class:`~ptocache.errors.ElfError`, whose ``rule`` field
names the rule; time and memory grow with the size of the data, not with numbers found in it. All
offsets and sizes are bytes. No memory of the caller is referred to after a function returns, so a
map can be closed at once.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import ElfError
from .device import (
    ARCH_ALIASES,
    ARCH_FLAGS,
    ENTRY_SUFFIXES,
    UNDECIDED_FLAGS,
    checked_aicore,
    checked_device,
    device_images,
    entry_names,
    names_of_fat,
    names_of_images,
    require_entries,
)
from .dynamic import dynamic_names, interpreter_of, only_segment
from .headers import (
    MAGIC,
    MAX_HEADERS,
    host_machine,
    is_elf,
    read_header,
    read_image,
    read_segments,
)
from .nested import MAX_NESTED, holder_of, images_in, skip_zeros, whole_as_section
from .reading import content_of, opened, refused
from .rules import (
    FUNCTIONS,
    NAMED_THINGS,
    check_32_bits,
    check_kind,
    check_segments,
    check_symbols,
    checked_image,
    checked_kind,
    defined_names,
)
from .values import AICORE_MACHINE, FAT_SECTION, Image, NeededLibraries, Nested, Section, Segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .values import Data as Data
    from .values import Rule as Rule

__all__ = [
    "AICORE_MACHINE",
    "ARCH_ALIASES",
    "ARCH_FLAGS",
    "ENTRY_SUFFIXES",
    "FAT_SECTION",
    "MAX_HEADERS",
    "MAX_NESTED",
    "UNDECIDED_FLAGS",
    "Image",
    "NeededLibraries",
    "Nested",
    "Section",
    "Segment",
    "check",
    "check_any",
    "check_device",
    "check_fat",
    "check_images",
    "defined_symbols",
    "entry_symbols",
    "host_machine",
    "inspect",
    "is_elf",
    "is_followed",
    "needed_libraries",
    "nested_images",
    "readable_images",
    "section_bytes",
]

_CLASS_AT, _CLASS_32 = 4, 1
_KERNEL_META = ".ascend.meta."

_FURTHEST_BYTES = 1 << 16


def inspect(data: Data) -> Image:
    """What the headers say, true or not: for showing an image that :func:`check` may refuse.

    Raises :class:`~ptocache.errors.ElfError` only if the header, its two tables or the sections'
    names cannot be read.
    """
    with opened(data) as view:
        return read_image(view)


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
    with opened(data) as view:
        image = checked_image(view)
        check_kind(image, machine, types)
        check_symbols(view, image, tuple(symbols))
        return image


def defined_symbols(data: Data) -> frozenset[str]:
    """Names of the global and weak functions and objects that the image defines.

    From ``.dynsym`` for a shared object (type ``DYN``), else from ``.symtab`` and ``.dynsym``.
    Raises :class:`~ptocache.errors.ElfError` for an image that :func:`check` refuses, or one whose
    symbols have names outside their string table.
    """
    with opened(data) as view:
        return defined_names(view, checked_image(view), NAMED_THINGS)


def needed_libraries(data: Data) -> NeededLibraries:
    """What the loader brings in first; all empty for a static executable or a relocatable object.

    Looks at segments only, as the loader does: an executable stripped of its sections is fine.
    Raises :class:`~ptocache.errors.ElfError` if the header, a segment or the dynamic entries break
    a rule.
    """
    with opened(data) as view:
        segments = read_segments(view, read_header(view))
        check_segments(segments, len(view))
        interpreter = interpreter_of(view, only_segment(segments, "INTERP"))
        needed, runpath = dynamic_names(view, segments, only_segment(segments, "DYNAMIC"))
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
    with opened(data) as view:
        holder = holder_of(checked_image(view), section)
        return tuple(images_in(view, holder, lambda rest: checked_kind(rest, machine, None)))


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
    with opened(data) as view:
        image = checked_device(view, types, arch)
        require_entries(symbols, entry_names(view, image))
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
    with opened(data) as view:
        host = checked_image(view)
        check_kind(host, host_machine() if machine is None else machine, types)
        holder = holder_of(host, section)
        found = device_images(view, holder, arch)
        require_entries(symbols, names_of_fat(view, host, found))
        return found


def check_images(data: Data, *, arch: str = "", symbols: Iterable[str] = ()) -> tuple[Nested, ...]:
    """The device images that ``data`` itself is made of, back to back: what a fat file has in its
    section. Judged, and refused, as :func:`check_fat` does; each of ``symbols`` must be defined by
    one of them.
    """
    with opened(data) as view:
        if not len(view):
            raise refused("nested_section", "no device image: the data is empty", size=0)
        found = device_images(view, whole_as_section(view), arch)
        require_entries(symbols, names_of_images(view, found))
        return found


def check_any(data: Data) -> None:
    """Accept bytes of any kind, but nothing that says ELF and is broken.

    What does not begin with the ELF magic passes. A 64-bit image of any machine must keep the rules
    of :func:`check`, and those of :func:`nested_images` if it has a section ``.aicore_binary``. Of a
    32-bit image only the header and the place of its two tables are judged. Raises
    :class:`~ptocache.errors.ElfError`.
    """
    with opened(data) as view:
        if view[: len(MAGIC)] != MAGIC:
            return
        if len(view) > _CLASS_AT and view[_CLASS_AT] == _CLASS_32:
            check_32_bits(view)
            return
        image = checked_image(view)
        if image.section(FAT_SECTION) is not None:
            for _ in images_in(view, holder_of(image, FAT_SECTION), checked_aicore):
                pass


def entry_symbols(data: Data) -> tuple[str, ...]:
    """Names of the kernels that a device image defines, sorted.

    Where it has sections ``.ascend.meta.NAME``, its global functions of these names (what else is
    global there are their helpers); else all its global functions, those without a type included.
    Raises :class:`~ptocache.errors.ElfError` as :func:`defined_symbols` does.
    """
    with opened(data) as view:
        image = checked_image(view)
        functions = defined_names(view, image, FUNCTIONS)
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
    with opened(data) as view, suppress(ElfError):
        holder = holder_of(checked_image(view), section) if section else whole_as_section(view)
        found.extend(images_in(view, holder, checked_aicore))
    return tuple(found)


def is_followed(data: Data, image: Image) -> bool:
    """True if after ``image``, the first in ``data``, another one begins.

    Looked for behind zero bytes, but not further than 64 KiB: the data may be a huge sparse file.
    """
    with opened(data) as view:
        end = min(len(view), image.end + _FURTHEST_BYTES)
        if image.end >= end:
            return False
        start = skip_zeros(view, image.end, end)
        with view[start : start + len(MAGIC)] as rest:
            return start < end and is_elf(rest)


def section_bytes(data: Data, name: str = FAT_SECTION) -> bytes:
    """A copy of the bytes of the one section of that name.

    Raises :class:`~ptocache.errors.ElfError` for an image that :func:`check` refuses, and (rule
    ``nested_section``) if no section, or more than one, has the name, or it is empty.
    """
    with opened(data) as view:
        return content_of(view, holder_of(checked_image(view), name))
