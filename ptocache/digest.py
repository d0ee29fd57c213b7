"""Content digests and the canonical encoding that keys are made of.

The encoding is labelled and length-prefixed, so that no two different documents encode alike:

    value   = tag (1 byte) length (8 bytes, little-endian) payload
    tag     = "n" nothing · "b" bytes · "s" text (UTF-8) · "i" integer (decimal text)
              "t" truth (payload "0" or "1") · "l" list · "m" map
    list    = the encodings of its values, in order
    map     = key value key value …, keys are text, in the order of their UTF-8 bytes

History
    1   the first form.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from .errors import BadRequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIGEST_HEX_LENGTH = 64
_LENGTH_BYTES = 8


class Digest(NamedTuple):
    """What identifies some bytes: SHA-256 (lower-case hex) and size in bytes."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        """The digest of ``data``."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))


def is_sha256(text: object) -> bool:
    """True for 64 lower-case hexadecimal digits."""
    return (
        isinstance(text, str)
        and len(text) == DIGEST_HEX_LENGTH
        and not text.strip("0123456789abcdef")
    )


def canonical(value: Any) -> bytes:
    """The canonical encoding of ``value`` (see the module's grammar).

    Raises :class:`~ptocache.errors.BadRequestError` for text that is not Unicode (a lone surrogate that
    stands for no byte) and for a type that the grammar does not have;
    floats are left out on purpose, since equal numbers may print differently.
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _piece(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


def _encode(value: Any, parts: list[bytes]) -> None:
    if isinstance(value, str):
        parts.append(_piece(b"s", _utf8(value)))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        parts.append(_piece(b"b", bytes(value)))
    elif value is None:
        parts.append(_piece(b"n", b""))
    elif isinstance(value, bool):
        parts.append(_piece(b"t", b"1" if value else b"0"))
    elif isinstance(value, int):
        parts.append(_piece(b"i", b"%d" % value))
    elif isinstance(value, (list, tuple)):
        inner: list[bytes] = []
        for item in value:
            _encode(item, inner)
        parts.append(_piece(b"l", b"".join(inner)))
    elif isinstance(value, dict):
        inner = []
        for key in sorted(value, key=_map_order):
            _encode(key, inner)
            _encode(value[key], inner)
        parts.append(_piece(b"m", b"".join(inner)))
    else:
        raise BadRequestError(f"a key cannot hold a value of type {type(value).__name__}")


def _map_order(key: object) -> bytes:
    if not isinstance(key, str):
        raise BadRequestError(f"a key's map has a field of type {type(key).__name__}, not text")
    return _utf8(key)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError(f"a text that no file or variable can have: {text!r}") from error
