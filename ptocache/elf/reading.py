"""Bytes, ranges of them and names in them, and the one error for all that is wrong with them."""

from __future__ import annotations

from contextlib import contextmanager

from ..errors import ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .values import Data, Rule, Section

SHOWN_CHARACTERS = 80
_NAME_REREADS = 8


@contextmanager
def opened(data: Data) -> Iterator[memoryview]:
    """The bytes of ``data``, for as long as the block lasts."""
    # Released even when an error's traceback keeps frames alive: a mapped file could not be closed
    # while views of it exist.
    with memoryview(data) as whole, whole.cast("B") as view:
        yield view


def refused(rule: Rule, message: str, **fields: Any) -> ElfError:
    """The error that names the broken rule."""
    return ElfError(message, rule=rule, **fields)


def shown(name: str) -> str:
    """A name as messages quote it, cut if it is long."""
    return repr(name if len(name) <= SHOWN_CHARACTERS else name[:SHOWN_CHARACTERS] + "…")


def require_range(
    rule: Rule, title: str, offset: int, size: int, file_size: int, **fields: Any
) -> None:
    """Refuse ``size`` bytes at ``offset`` that do not lie within the file."""
    # In this form nothing overflows in any language: no sum of two numbers from the file.
    if offset > file_size or size > file_size - offset:
        raise refused(
            rule,
            f"{title}: {size} bytes at offset {offset} do not lie within the {file_size} bytes"
            " of the file",
            offset=offset,
            size=size,
            file_size=file_size,
            **fields,
        )


def content_of(view: memoryview, section: Section) -> bytes:
    """A copy of a section; its range has been checked."""
    return bytes(view[section.offset : section.offset + section.size])


class Strings:
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
            raise refused(
                rule,
                f"a name at offset {offset} has no end within the {len(self._table)} bytes of"
                f" {self._title}",
                offset=offset,
                size=len(self._table),
                **fields,
            )
        self._budget_bytes -= end - offset
        if self._budget_bytes < 0:
            raise refused(
                "string",
                f"names overlap to more than {_NAME_REREADS} times the {len(self._table)} bytes of"
                f" {self._title}",
                size=len(self._table),
                **fields,
            )
        # Not surrogateescape: names end up in messages, which must be valid text.
        return self._table[offset:end].decode("utf-8", "backslashreplace")
