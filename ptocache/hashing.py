"""SHA-256 for processes that hash little: the interpreter's own, since starting OpenSSL costs as much as all
the rest that such a process imports."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MUCH = 1 << 19


def sha256_hex(data: bytes) -> str:
    """Lower-case hex."""
    found: str = _constructor(len(data))(data).hexdigest()
    return found


def _constructor(size: int) -> Any:
    if size < _MUCH:
        # By version: to look for a module that is not there costs as well.
        with_sha2 = sys.version_info >= (3, 12)
        try:
            return __import__("_sha2" if with_sha2 else "_sha256").sha256
        except ImportError:
            pass
    # Much faster, once it has started.
    from hashlib import sha256

    return sha256
