"""How a request ended, and why: one enum each, in storage order.

The numbers are written into the store's statistics, so a number is never reused and never moved;
a new outcome or reason is added at the end of its block.
"""

from __future__ import annotations

from enum import IntEnum


class _Number(IntEnum):
    """A storage number with a name; as a key it is its number, and found as fast."""

    __hash__ = int.__hash__


class Outcome(_Number):
    """Every request ends as exactly one of these; their sum is the number of requests."""

    MEMORY_HIT = 0
    DISK_HIT = 1
    REMOTE_HIT = 2
    JOINED = 3
    MISS = 4
    BYPASS = 5
    FAILURE = 6

    @property
    def label(self) -> str:
        """The name in JSON, on the wire and in Prometheus text: ``memory_hit`` …"""
        return self.name.lower()

    @property
    def is_hit(self) -> bool:
        """True when nothing was compiled and nobody was waited for."""
        return self <= Outcome.REMOTE_HIT


SPARED = frozenset(item for item in Outcome if item.is_hit or item is Outcome.JOINED)
"""How a request ends that did not pay for the compile."""


class Cache(_Number):
    """Which of the two caches a request addressed."""

    BINARY = 0
    KERNEL = 1

    @property
    def label(self) -> str:
        """The name in JSON: ``binary`` or ``kernel``."""
        return self.name.lower()


class Event(_Number):
    """What is counted beside the outcome of a request (a request may cause none or several)."""

    CORRUPT = 0
    """A stored blob or document was not what it was when it entered."""
    REJECTED = 1
    """A compile's output did not pass validation."""
    STORE_FAILURE = 2
    """A good result could not be stored."""
    EVICTED = 3
    """An entry was removed to keep the size or age limit."""
    UNLOADABLE = 4
    """A caller reported that its loader refused a stored artifact."""

    @property
    def label(self) -> str:
        """The name in JSON: ``corrupt`` …"""
        return self.name.lower()


class Reason(_Number):
    """Why a request was a bypass or a failure, or why an event happened."""

    NONE = 0
    # Bypass: answered, and on purpose not stored.
    ASKED = 1
    """The request's mode was ``bypass``."""
    NO_DAEMON = 2
    """No daemon could be reached: the client compiled by itself."""
    UNIDENTIFIED_TOOLCHAIN = 3
    """The toolchain's identity is not certain (a script, an unreadable version file)."""
    UNSUPPORTED_OPTION = 4
    """An option brings in files or programs that the key would not see."""
    TIME_MACRO = 5
    """``__DATE__``, ``__TIME__`` or ``__TIMESTAMP__`` decide the output."""
    UNSEEN_INPUT = 6
    """The source names an input that no dependency file lists (``.incbin``, computed include test)."""
    TOOLCHAIN_CHANGED = 7
    """The toolchain changed while the compile ran."""
    INPUT_CHANGED = 8
    """A discovered input changed while the compile ran."""
    READ_ONLY = 9
    """The request's mode, or the store, allows no writing."""
    TOO_LARGE = 10
    """The entry is larger than the store's limit."""
    INVALIDATED = 11
    """An ``invalidate`` came between the start and the end of the compile."""
    PATH_LEAK = 12
    """The name of the private directory reached an output."""
    STORE_FAILED = 13
    """The result is good but the store could not take it."""
    NO_DEPENDENCIES = 14
    """The tool gave no list of the inputs it opened."""
    LEASE_LOST = 15
    """The lease to build a kernel had gone on to another: its holder was stopped, or took too long."""
    NOT_A_COMPILE = 16
    """A wrapped command asks for something else than an object or a shared object of one source."""
    COMMAND_FORM = 17
    """A wrapped command has a form that is not understood for sure (several sources, standard input)."""
    # Failure: no usable result.
    COMPILE_FAILED = 32
    """The tool exited non-zero."""
    REMEMBERED_FAILURE = 33
    """The same compile failed a short time ago; its output is replayed."""
    STEP_TIMEOUT = 34
    """A step reached its time limit."""
    STEP_KILLED = 35
    """A step was ended by a signal."""
    OUTPUT_REJECTED = 36
    """The outputs were missing or not valid."""
    CANCELLED = 37
    """Everybody who waited has gone, or the daemon stopped."""
    TOOL_NOT_FOUND = 38
    """No compiler was found."""
    BAD_REQUEST = 39
    """The request could not be understood by the toolchain."""
    SYSTEM = 40
    """The machine failed the step: no disk, no memory, no process."""
    INTERNAL = 41
    """A fault in ptocache or a plugin; the log has the traceback."""
    # Events.
    CHECKSUM = 64
    """A blob's checksum did not match."""
    TRUNCATED = 65
    """A blob's size did not match."""
    MISSING = 66
    """A blob was not there."""
    NOT_A_FILE = 67
    """Something else stands where a blob should be."""
    BAD_DOCUMENT = 68
    """An entry's document could not be read."""
    NO_SPACE = 69
    """ENOSPC or EDQUOT."""
    IO_ERROR = 70
    """Another error of the file system."""
    DROPPED = 71
    """What a loader refused was dropped."""
    REPLACED = 72
    """What a loader refused was not there any more."""
    SAME_BYTES = 73
    """What a loader refused had been dropped once, and was made again with the same bytes."""
    GIVEN_UP = 74
    """What a loader refused is kept: its key was dropped from too often."""

    @property
    def label(self) -> str:
        """The name in JSON and on the wire; the empty string for :attr:`NONE`."""
        return "" if self is Reason.NONE else self.name.lower()


OUTCOME_BY_LABEL = {outcome.label: outcome for outcome in Outcome}
REASON_BY_LABEL = {reason.label: reason for reason in Reason}
