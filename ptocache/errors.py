"""Every error a user of ptocache can meet: one small tree.

Each class says when it is raised, has a stable ``code`` (what crosses the wire and what scripts
test), carries the facts as fields, says what to do in ``hint``, and derives from the standard class
that a caller would already catch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar


class PtocacheError(Exception):
    """The root. ``str(error)`` is what happened and to what; ``hint`` is what to do about it."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields: dict[str, Any] = fields

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_wire(self) -> dict[str, Any]:
        """The map that the wire carries; :func:`from_wire` is its inverse."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "fields": self.fields,
        }


class BadRequestError(PtocacheError, ValueError):
    """A request that no toolchain could serve: a missing field, an impossible value."""

    code = "bad_request"


class BadRecordingError(BadRequestError):
    """A recording of requests that cannot be read. ``fields``: path, line."""

    code = "bad_recording"


class ConfigError(PtocacheError, ValueError):
    """A setting that cannot be used; the fields name the setting, its value and its source."""

    code = "bad_config"


class ToolchainError(PtocacheError):
    """The family of what can go wrong between a job and its compiler."""

    code = "toolchain"


class UnknownToolchainError(ToolchainError, LookupError):
    """No installed plugin has the name that was asked for."""

    code = "unknown_toolchain"


class PluginError(ToolchainError, TypeError):
    """A plugin that does not fulfil the interface, found when it is loaded."""

    code = "bad_plugin"


class ToolNotFoundError(ToolchainError, FileNotFoundError):
    """The plugin found no compiler; ``fields['looked']`` lists where it looked."""

    code = "tool_not_found"

    def __str__(self) -> str:
        # FileNotFoundError.__str__ would print errno fields that are not set.
        return PtocacheError.__str__(self)


class CompileError(ToolchainError):
    """The family of compiles that gave no usable result."""

    code = "compile"


class CompileFailedError(CompileError):
    """The tool itself said no (non-zero exit). ``fields``: step, exit_code; the text is in the log."""

    code = "compile_failed"


class StepTimeoutError(CompileError, TimeoutError):
    """A step ran longer than its limit and was ended with its process group."""

    code = "step_timeout"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class StepKilledError(CompileError):
    """A step ended by a signal that ptocache did not send (out of memory, an operator)."""

    code = "step_killed"


class StepSystemError(CompileError, OSError):
    """The machine, not the tool, failed a step: no disk for inputs, no process, no permission."""

    code = "step_system"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class CancelledError(CompileError):
    """The compile was ended because nobody waits for it any more, or the daemon stops."""

    code = "cancelled"


class OutputRejectedError(CompileError, ValueError):
    """What the tool wrote is missing or not valid; nothing of it is stored."""

    code = "output_rejected"


class ElfError(OutputRejectedError):
    """An ELF image that breaks a rule. ``fields``: section (or segment), offset, size, file_size …"""

    code = "bad_elf"


class StoreError(PtocacheError, OSError):
    """The family of what can go wrong with the store's directory."""

    code = "store"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class StoreUnusableError(StoreError):
    """The store cannot be opened or written at all: permissions, a newer format, not a directory."""

    code = "store_unusable"


class StoreDamagedError(StoreError):
    """Bytes in the store are not what they were when they entered."""

    code = "store_damaged"


class StoreBusyError(StoreError, BlockingIOError):
    """Another process holds ``daemon.lock``: a daemon already serves this store."""

    code = "store_busy"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        PtocacheError.__init__(self, message, hint=hint, **fields)


class WireError(PtocacheError, ConnectionError):
    """The family of what can go wrong between client and daemon."""

    code = "wire"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class FrameError(WireError):
    """Bytes that are not a frame or not a message of this protocol; the connection ends."""

    code = "bad_frame"


class ProtocolMismatchError(WireError):
    """The peer speaks another protocol version. ``fields``: ours, theirs."""

    code = "protocol_mismatch"


class PeerRefusedError(WireError, PermissionError):
    """The peer, or the place of the socket, belongs to somebody else."""

    code = "peer_refused"


class DaemonUnavailableError(WireError):
    """No daemon answers and none could be started."""

    code = "no_daemon"


class UnknownEntryError(PtocacheError, KeyError):
    """No entry has this key, or the given prefix names several."""

    code = "unknown_entry"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class LoadError(PtocacheError, OSError):
    """An artifact that its loader refuses, also after it was compiled again; its cause is the loader's own
    exception. ``fields``: output, digest, key, verdict, rebuilt, same_bytes (docs/reference/client.md)."""

    code = "load_failed"

    def __str__(self) -> str:
        return PtocacheError.__str__(self)


class PtocacheWarning(UserWarning):
    """Said once per client and cause: ptocache stepped aside and the caller compiled by itself, or a
    toolchain that is not identified is compiled with and nothing is stored."""


def _family(root: type[PtocacheError]) -> dict[str, type[PtocacheError]]:
    # A class elsewhere that only refines one of these shares its code, and must not stand for it.
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, kind in _family(child).items():
            found.setdefault(code, kind)
    return found


def from_wire(document: Mapping[str, Any]) -> PtocacheError:
    """The error that a peer sent. A code of a newer peer becomes a plain :class:`PtocacheError`."""
    kind = _family(PtocacheError).get(str(document.get("code")), PtocacheError)
    fields = document.get("fields")
    error = kind(str(document.get("message", "")), hint=str(document.get("hint", "")))
    # Not as arguments: a peer may use any name, those of our parameters too.
    error.fields = {str(k): v for k, v in fields.items()} if isinstance(fields, dict) else {}
    return error
