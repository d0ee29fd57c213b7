"""The files of a kernel that comes in piece by piece, bounded and in order; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BadRequestError
from .model import Output
from .wire import MAX_FILES

if TYPE_CHECKING:
    from .wire import Piece


class Room:
    """Bytes that all bundles on their way may take together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free = limit

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, if there is room for them."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        """Bytes that are not held any more."""
        self.free += size


class Bundle:
    """Collects files. One that no room is left for, or that nobody wants, is dropped: its further
    pieces are still checked, but not kept."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._files: dict[str, tuple[int, bytearray]] = {}
        self._open = ""
        self._held = 0
        self.dropped = ""
        """Why the bytes are not kept; empty while they are."""

    def add(self, piece: Piece) -> None:
        """Take in the next piece.

        Raises :class:`~ptocache.errors.BadRequestError` for a second file of a name, a file begun
        before the one before it was whole, and more files than a bundle may have.
        """
        if self._open and piece.name != self._open:
            raise BadRequestError(f"{piece.name!r} begins before {self._open!r} is whole")
        if not self._open:
            if piece.name in self._files:
                raise BadRequestError(f"two files of a bundle are called {piece.name!r}")
            if len(self._files) >= MAX_FILES:
                raise BadRequestError(f"a bundle of more than {MAX_FILES} files")
            self._files[piece.name] = (piece.mode, bytearray())
        self._open = piece.name if piece.more else ""
        self._keep(piece)

    def _keep(self, piece: Piece) -> None:
        if self.dropped:
            return
        if not self._room.take(len(piece.data)):
            self.drop(f"bundles on their way may take {self._room.limit} bytes")
            return
        self._held += len(piece.data)
        self._files[piece.name][1].extend(piece.data)

    def drop(self, why: str) -> None:
        """Keep no bytes any more, and give back the room that they took."""
        self.dropped = self.dropped or why
        self._files = {name: (mode, bytearray()) for name, (mode, _) in self._files.items()}
        self._room.give_back(self._held)
        self._held = 0

    def outputs(self) -> tuple[Output, ...]:
        """The files, in the order of their arrival; raises
        :class:`~ptocache.errors.BadRequestError` if the last one is not whole."""
        if self._open:
            raise BadRequestError(f"{self._open!r} is not whole")
        return tuple(
            Output(name, memoryview(data).toreadonly(), mode)
            for name, (mode, data) in self._files.items()
        )
