"""The rules of Ascend device images: content, kernels, and the arch that they are for."""

from __future__ import annotations

import re

from .nested import images_in
from .reading import SHOWN_CHARACTERS, refused, shown
from .rules import LOOKED_UP, checked_kind, defined_names
from .values import AICORE_MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .values import Image, Nested, Section

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

_NESTED_TYPES = ("EXEC", "REL", "DYN")
_ARCH_NAME = re.compile(rb"(?<![0-9A-Za-z_-])dav-[0-9A-Za-z]{1,40}")


def device_images(view: memoryview, holder: Section, arch: str) -> tuple[Nested, ...]:
    """The device images of ``holder``, each judged for ``arch``; with an arch all of one kind."""
    found = tuple(images_in(view, holder, lambda rest: checked_device(rest, _NESTED_TYPES, arch)))
    if arch:
        _require_same_flags(found, holder.name)
    return found


def checked_aicore(view: memoryview) -> Image:
    """The first image of ``view``, if it is one for the device that keeps every rule of the format."""
    return checked_kind(view, AICORE_MACHINE, None)


def checked_device(view: memoryview, types: tuple[str, ...], arch: str) -> Image:
    """The same for one of certain types, which has content and does not contradict ``arch``."""
    image = checked_kind(view, AICORE_MACHINE, types)
    _require_content(image)
    if arch:
        _check_arch_flags(image, arch)
        _check_arch_notes(view, image, arch)
    return image


def _require_content(image: Image) -> None:
    # A header alone, or one with a name table, keeps every rule of the format.
    sections = any(s.in_file and s.size and s.type != "STRTAB" for s in image.sections)
    if not sections and not any(s.type == "LOAD" and s.file_size for s in image.segments):
        raise refused("content", "no section and no loaded segment has any content")


def entry_names(view: memoryview, image: Image) -> frozenset[str]:
    """All names that a loader of this image can look up."""
    return defined_names(view, image, LOOKED_UP)


def names_of_fat(view: memoryview, host: Image, found: tuple[Nested, ...]) -> frozenset[str]:
    """The same of a host image and of the device images in it."""
    return entry_names(view, host) | names_of_images(view, found)


def names_of_images(view: memoryview, found: tuple[Nested, ...]) -> frozenset[str]:
    """The same of device images that lie in ``view``."""
    symbols: set[str] = set()
    for item in found:
        with view[item.offset : item.offset + item.size] as nested:
            symbols |= entry_names(nested, item.image)
    return frozenset(symbols)


def require_entries(symbols: Iterable[str], defined: frozenset[str]) -> None:
    """Refuse if one of ``symbols`` is not defined, nor a form of it for one kind of core."""
    missing = [
        name
        for name in symbols
        if name not in defined and defined.isdisjoint(name + end for end in ENTRY_SUFFIXES)
    ]
    if missing:
        raise refused("symbol", f"does not define {', '.join(map(shown, missing))}", wanted=missing)


def _check_arch_flags(image: Image, arch: str) -> None:
    wanted = _family(arch)
    if image.flags in UNDECIDED_FLAGS:
        return
    owners = [name for name, flags in ARCH_FLAGS.items() if flags == image.flags]
    if wanted in ARCH_FLAGS and owners and wanted not in owners:
        raise refused(
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
            raise refused(
                "arch_note",
                f"section {shown(section)} names {shown(name)}, but {wanted} was asked for",
                section=section[:SHOWN_CHARACTERS],
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
            raise refused(
                "arch_flags",
                f"image {count} in section {shown(section)} has flags"
                f" 0x{item.image.flags:x}, image 0 has 0x{first:x}: not of one arch",
                section=section,
                wanted=first,
                found=item.image.flags,
                nested=count,
                nested_offset=item.offset,
            )
