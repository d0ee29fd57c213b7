"""Images that lie back to back in a section, or make up a file."""

from __future__ import annotations

from ..errors import ElfError
from .headers import is_elf
from .reading import refused, shown
from .values import FAT_SECTION, Image, Nested, Section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MAX_NESTED = 1 << 14
"""Most images in one section of a fat object."""
_SKIP_BYTES = 4096


def holder_of(image: Image, name: str) -> Section:
    """The one section of that name, which has bytes in the file."""
    found = [section for section in image.sections if section.name == name]
    if len(found) != 1:
        raise refused(
            "nested_section",
            f"{len(found)} sections {shown(name)} instead of one",
            section=name,
            found=len(found),
        )
    if not found[0].in_file or not found[0].size:
        raise refused("nested_section", f"section {shown(name)} is empty", section=name, size=0)
    return found[0]


def whole_as_section(view: memoryview) -> Section:
    """All of the data as if it were the section that a fat file has."""
    return Section(FAT_SECTION, "PROGBITS", 0, 0, 0, len(view), 1)


def images_in(
    view: memoryview, holder: Section, judge: Callable[[memoryview], Image]
) -> Iterator[Nested]:
    """The images in ``holder``, as ``judge`` accepts them, with only zeros between and behind them."""
    position, end = holder.offset, holder.offset + holder.size
    for count in range(MAX_NESTED):
        image = _nested_image(view, position, holder, judge, count)
        yield Nested(position, image.end, image)
        position = skip_zeros(view, position + image.end, end)
        if position == end:
            return
    raise refused(
        "nested_count",
        f"section {shown(holder.name)} holds more than {MAX_NESTED} images",
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
            raise refused(
                "nested_padding",
                f"section {shown(holder.name)} holds at offset {position - holder.offset} neither"
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
                f"image {count} in section {shown(holder.name)}: {error.message}",
                **{**error.fields, **place},
            ) from error


def skip_zeros(view: memoryview, start: int, end: int) -> int:
    """The first offset in ``start:end`` that is not a zero byte; ``end`` if all are."""
    # In steps, since stripping a copy of all that is left would be quadratic in the images.
    for position in range(start, end, _SKIP_BYTES):
        chunk = bytes(view[position : min(position + _SKIP_BYTES, end)])
        content = chunk.lstrip(b"\0")
        if content:
            return position + len(chunk) - len(content)
    return end
