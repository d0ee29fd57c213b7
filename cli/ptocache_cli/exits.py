"""Exit codes, and the one place that turns an error into one."""

from __future__ import annotations

from ptocache.errors import (
    BadRequestError,
    ConfigError,
    PtocacheError,
    StoreBusyError,
    StoreError,
    UnknownEntryError,
    UnknownToolchainError,
    WireError,
)

DONE = 0
FAILED = 1
"""The compile failed, or something that has no code of its own."""
WRONG_USE = 2
NO_DAEMON = 3
BAD_STORE = 4
ALREADY_SERVED = 5
INTERRUPTED = 130
"""As a shell reports a death by SIGINT."""
NOBODY_READS = 141
"""As a shell reports a death by SIGPIPE."""

_TABLE: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((StoreBusyError,), ALREADY_SERVED),
    ((StoreError,), BAD_STORE),
    ((WireError,), NO_DAEMON),
    ((BadRequestError, ConfigError, UnknownEntryError, UnknownToolchainError), WRONG_USE),
)


def code_of(error: Exception) -> int:
    """The exit code of a command that this error ended."""
    for kinds, code in _TABLE:
        if isinstance(error, kinds):
            return code
    return FAILED


def text_of(error: Exception) -> str:
    """The error in one line: what happened, to what, and what to do."""
    if isinstance(error, PtocacheError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}"
    return (
        f"internal error: {error!r} (set PTOCACHE_TRACEBACK=1 to see where, and please report it)"
    )
