"""What an artifact is, and whether its toolchain's output would be stored: for showing to people.

Pure: bytes in, values out. The rules are those of :mod:`ptocache.elf`; what a refused image says
about itself is told as far as it can be read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from . import elf
from .errors import ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["device", "host", "foreign", "unknown"]

_FORMS = {"REL": "object", "DYN": "shared object", "EXEC": "executable"}


class Verdict(NamedTuple):
    """Whether the bytes keep every rule, and the first one that they break."""

    accepted: bool
    reason: str
    """In words, with names and numbers; empty if accepted."""
    fields: dict[str, Any]
    """``rule`` and the numbers of :class:`~ptocache.errors.ElfError`; empty if accepted."""


class NestedImage(NamedTuple):
    """A device image in the section ``.aicore_binary``, or of a file that such a section became."""

    offset: int
    """Bytes from the start of the artifact."""
    size: int
    """Bytes."""
    image: elf.Image
    entry_symbols: tuple[str, ...]


class Report(NamedTuple):
    """What an artifact is."""

    kind: Kind
    """``device``: an Ascend image; ``host``: for this machine; ``foreign``: for another one;
    ``unknown``: not ELF, or its header cannot be read."""
    size: int
    """Bytes."""
    image: elf.Image | None
    """``None`` for ``unknown``."""
    entry_symbols: tuple[str, ...]
    """Of a device image: its kernels; of any other: its global functions. Empty if refused."""
    nested_images: tuple[NestedImage, ...]
    """In the order of the section, up to the first that is refused."""
    verdict: Verdict

    @property
    def form(self) -> str:
        """``object``, ``shared object``, ``executable``, else the name of the ELF type."""
        if self.image is None:
            return ""
        return _FORMS.get(self.image.type, self.image.type)

    def to_map(self) -> dict[str, Any]:
        """The report as ``inspect --json`` prints it; docs/reference/artifacts.md lists the keys."""
        image = self.image
        found: dict[str, Any] = {"kind": self.kind, "form": self.form, "size": self.size}
        if image is not None:
            found |= {
                "byte_order": image.byte_order,
                "machine": image.machine,
                "machine_name": image.machine_name,
                "flags": image.flags,
                "entry": image.entry,
                "sections": [_section(item) for item in image.sections],
                "segments": [item._asdict() for item in image.segments],
                "entry_symbols": list(self.entry_symbols),
                "nested_images": [_nested_image(item) for item in self.nested_images],
            }
        found["verdict"] = "accepted" if self.verdict.accepted else "rejected"
        return found | {"reason": self.verdict.reason, "fields": self.verdict.fields}


def report(data: elf.Data) -> Report:
    """What ``data`` is. Raises nothing: a refusal is the verdict."""
    with memoryview(data) as view:
        size = view.nbytes
    try:
        image = elf.inspect(data)
    except ElfError as error:
        return Report("unknown", size, None, (), (), _rejected(error))
    section = _section_of_images(data, image)
    images = () if section is None else tuple(_readable(data, section))
    try:
        symbols = _judged(data, image, section)
    except ElfError as error:
        return Report(_kind(image), size, image, (), images, _rejected(error))
    return Report(_kind(image), size, image, symbols, images, Verdict(True, "", {}))


def _kind(image: elf.Image) -> Kind:
    if image.machine == elf.AICORE_MACHINE:
        return "device"
    return "host" if image.machine == elf.host_machine() else "foreign"


def _section_of_images(data: elf.Data, image: elf.Image) -> str | None:
    """The section that holds device images, empty for the whole file, ``None`` without any."""
    if image.section(elf.FAT_SECTION) is not None:
        return elf.FAT_SECTION
    is_device = image.machine == elf.AICORE_MACHINE
    return "" if is_device and elf.is_followed(data, image) else None


def _judged(data: elf.Data, image: elf.Image, section: str | None) -> tuple[str, ...]:
    """The entry symbols of what every rule accepts; of many images none is *the* one's."""
    if section == "":
        elf.check_images(data)
        return ()
    if image.machine == elf.AICORE_MACHINE:
        elf.check_device(data, types=tuple(_FORMS))
    if section:
        elf.check_fat(data, machine=image.machine)
    return elf.entry_symbols(data)


def _readable(data: elf.Data, section: str) -> Iterator[NestedImage]:
    for item in elf.readable_images(data, section):
        # One whose symbols cannot be read is shown all the same.
        symbols: tuple[str, ...] = ()
        with suppress(ElfError):
            symbols = _entries(data, item)
        yield NestedImage(item.offset, item.size, item.image, symbols)


def _entries(data: elf.Data, item: elf.Nested) -> tuple[str, ...]:
    with (
        memoryview(data) as whole,
        whole.cast("B") as view,
        view[item.offset : item.offset + item.size] as nested,
    ):
        return elf.entry_symbols(nested)


def _rejected(error: ElfError) -> Verdict:
    return Verdict(accepted=False, reason=error.message, fields=error.fields)


def _section(item: elf.Section) -> dict[str, Any]:
    return {
        "name": item.name,
        "type": item.type,
        "flags": item.flags,
        "address": item.address,
        "offset": item.offset,
        "size": item.size,
        "align": item.align,
    }


def _nested_image(item: NestedImage) -> dict[str, Any]:
    return {
        "offset": item.offset,
        "size": item.size,
        "form": _FORMS.get(item.image.type, item.image.type),
        "machine": item.image.machine,
        "flags": item.image.flags,
        "sections": len(item.image.sections),
        "entry_symbols": list(item.entry_symbols),
    }
