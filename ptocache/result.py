"""How a compile request ended, as a caller sees it."""

from __future__ import annotations

import os
import time

from .errors import CompileFailedError, from_wire
from .outcome import Outcome, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .errors import PtocacheError
    from .model import Answer, Artifact, Descriptor, Log

DAEMON_TROUBLE = frozenset({Reason.CANCELLED, Reason.SYSTEM, Reason.INTERNAL})
"""Failures that are the daemon's own and not the compile's: the client may well succeed."""


class ResultOutput:
    """One output of a compile."""

    __slots__ = ("_artifact", "_view")

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._view: memoryview | None = None

    @property
    def name(self) -> str:
        """The name under which it was wanted."""
        return self._artifact.name

    @property
    def size(self) -> int:
        """Bytes."""
        return self._artifact.digest.size

    @property
    def digest(self) -> str:
        """SHA-256, lower-case hex."""
        return self._artifact.digest.sha256

    @property
    def mode(self) -> int:
        """Permission bits that the tool gave the file."""
        return self._artifact.mode

    @property
    def buffer(self) -> memoryview:
        """The bytes, read-only and without a copy: inline ones, or a mapping of the stored file."""
        if self._view is None:
            if self._artifact.data is not None:
                self._view = memoryview(self._artifact.data)
            else:
                import mmap

                assert self._artifact.file is not None
                mapped = mmap.mmap(self._artifact.file.fileno(), self.size, access=mmap.ACCESS_READ)
                self._view = memoryview(mapped)
        return self._view

    @property
    def file(self) -> Descriptor | None:
        """The open file of a large output; ``None`` for one that came inline."""
        return self._artifact.file

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to ``path`` with the tool's permission bits, whole or not at all.

        Raises :class:`OSError`.
        """
        target = os.fspath(path)
        partial = f"{target}.{os.getpid()}-{time.monotonic_ns():x}.part"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self.buffer)
                os.fchmod(file.fileno(), self.mode)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise


class Result:
    """How a compile request ended."""

    __slots__ = ("_answer", "outputs", "toolchain", "total_ms")

    def __init__(self, answer: Answer, toolchain: str, total_ms: float) -> None:
        self._answer = answer
        self.toolchain = toolchain
        """Name of the toolchain that was asked."""
        self.total_ms = total_ms
        """What the caller waited, in milliseconds."""
        self.outputs: dict[str, ResultOutput] = {
            item.name: ResultOutput(item) for item in answer.artifacts
        }
        """Output name → output; empty for a failure."""

    @property
    def outcome(self) -> Outcome:
        """Memory hit, disk hit, miss, …"""
        return self._answer.outcome

    @property
    def reason(self) -> Reason:
        """Why this was a bypass or a failure."""
        return self._answer.reason

    @property
    def why(self) -> str:
        """The reason in words; for a miss, what differs from the latest entry of the kernel."""
        return self._answer.detail

    @property
    def ok(self) -> bool:
        """True if there are outputs."""
        return self._answer.outcome is not Outcome.FAILURE

    @property
    def key(self) -> str:
        """The action key (hex); empty if the request was never keyed."""
        return self._answer.key

    @property
    def log(self) -> Log:
        """What the tools printed, now or when the entry was made."""
        return self._answer.log

    @property
    def exit_code(self) -> int:
        """The tool's exit code."""
        return self._answer.exit_code

    @property
    def compile_ms(self) -> int:
        """What the compile cost when it ran."""
        return self._answer.compile_ms

    @property
    def identity(self) -> str:
        """Digest of the toolchain that made it."""
        return self._answer.identity

    @property
    def error(self) -> PtocacheError | None:
        """What went wrong, for a failure."""
        if self.ok:
            return None
        if self._answer.error is not None:
            return from_wire(self._answer.error)
        return CompileFailedError(self._answer.detail or "the compile failed")

    def check(self) -> Result:
        """This result; raises its :attr:`error`, with the result as ``error.result``, for a failure."""
        if self.ok:
            return self
        error = self.error
        if error is not None:
            error.result = self  # type: ignore[attr-defined]
            raise error
        return self
