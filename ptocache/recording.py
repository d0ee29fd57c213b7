"""Writes down what a run asks for: one line of JSON a request, appended to a file that many processes share.

The grammar of the lines is in docs/reference/recordings.md; :mod:`ptocache.recorded` reads them. Part of the
light client, and of wrapped compilers: nothing is imported before something is recorded.

A request that this process has recorded costs nothing more. Another costs one append, in one write, which the
kernel keeps apart from everybody else's. What a kill cut short is the only thing lost: each append begins with
the end of a line. Nothing that goes wrong here reaches the run, except as one warning.
"""

from __future__ import annotations

import os
from stat import S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from .outcome import Reason
    from .pending import Pending
    from .wire import KernelRequest

FORMAT = "ptocache-recording"
VERSION = 1
LIMIT_BYTES = 1 << 30
"""A longer recording takes nothing more."""
REQUEST_BYTES = 64 << 20
"""Most bytes of inputs of one request: no message carries more."""
LOST_MODE = 0o700
"""Mode of a file to which something could not be appended: to say so in it might need room on the disk."""
MODE = 0o600
_HEADER_BYTES = 256
_NOT_RECORDED = ("mode", "bases")
"""What is a matter of this machine and this run: it is as the settings say where the recording is used."""


def dumped(record: Mapping[str, Any]) -> bytes:
    """The line of a record, without its end: the same bytes for the same record."""
    import json

    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")


def header(**more: object) -> dict[str, object]:
    """The first record."""
    return {"record": FORMAT, "version": VERSION, **more}


def input_record(sha256: str, data: bytes) -> dict[str, object]:
    """The bytes of an input: as text if they are text, so that people can read them."""
    try:
        return {"record": "input", "sha256": sha256, "text": data.decode("utf-8")}
    except UnicodeDecodeError:
        import binascii

        encoded = binascii.b2a_base64(data, newline=False).decode("ascii")
        return {"record": "input", "sha256": sha256, "base64": encoded}


def name_of(line: bytes) -> str:
    """What a request is called within a recording."""
    from .hashing import sha256_hex

    return sha256_hex(line)


class Recorder:
    """Appends to one recording. Thread-safe, and goes on in forked children.

    ``say(cause, text)`` warns, once for each cause.
    """

    def __init__(self, path: str, say: Callable[[str, str], None]) -> None:
        self._path = path
        self._say = say
        self._off = False
        self._is_ours = False
        self._inputs: set[str] = set()
        self._known: set[str] = set()

    def compile(self, pending: Pending, declared: Iterable[str] | None) -> None:
        """Record a request. ``declared``: patterns of the variables that count for its toolchain; ``None`` if
        no daemon said so."""
        if self._off or pending.recorded:
            return
        try:
            from .model import select
            from .wire import request_document

            job = pending.request.job
            patterns = wanted(job.toolchain) if declared is None else declared
            job = job._replace(env=select(patterns, pending.env))
            document = request_document(pending.request._replace(job=job, data={}))
            texts = {item.digest.sha256: pending.data[item.name] for item in job.inputs}
            pending.recorded = self.request(document, texts, files=pending.files)
        except Exception as error:
            self._give_up(f"a fault: {error!r}")

    def request(
        self,
        document: Mapping[str, Any],
        texts: Mapping[str, bytes],
        *,
        files: Mapping[str, str] = {},
        called: str = "",
    ) -> str:
        """Record a request as its fields (the map inside a compile message), with the bytes of its inputs
        by digest; its name, which is empty if it could not be recorded."""
        try:
            return self._request(document, texts, files, called)
        except Exception as error:
            self._give_up(f"a fault: {error!r}")
            return ""

    def _request(
        self,
        document: Mapping[str, Any],
        texts: Mapping[str, bytes],
        files: Mapping[str, str],
        called: str,
    ) -> str:
        record = {"record": "compile", **document}
        for field in _NOT_RECORDED:
            record.pop(field, None)
        record["inputs"] = [item[:3] for item in document["inputs"]]
        if files:
            record["files"] = dict(files)
        if called:
            record["called"] = called
        line = dumped(record)
        name = name_of(line)
        if name in self._known:
            return name
        self._known.add(name)
        if sum(map(len, texts.values())) > REQUEST_BYTES:
            why = f"its inputs are longer than {REQUEST_BYTES} bytes"
            left = {name: str(document[name]) for name in ("toolchain", "arch", "kernel")}
            self._append([dumped({"record": "left_out", "why": why, **left})])
            return name
        new = {sha256: data for sha256, data in texts.items() if sha256 not in self._inputs}
        self._inputs.update(new)
        inputs = [dumped(input_record(sha256, data)) for sha256, data in sorted(new.items())]
        self._append([*inputs, line])
        return name

    def failed(self, pending: Pending, reason: Reason) -> None:
        """The compile of a recorded request failed, by no fault of the machine."""
        if pending.recorded and reason.label in FAILED_REASONS:
            self.failure(pending.recorded)

    def failure(self, name: str) -> None:
        """The compile of the request of this name failed."""
        if not self._off and f"failed {name}" not in self._known:
            self._known.add(f"failed {name}")
            self._append([dumped({"record": "failed", "request": name})])

    def kernel(self, request: KernelRequest) -> None:
        """Record that a whole kernel was asked for: its name, and what tells it from others of that name."""
        if self._off:
            return
        try:
            job = request.job
            material = repr((job.inputs, request.texts, request.salt)).encode("utf-8", "replace")
            line = dumped(
                {
                    "record": "kernel", "toolchain": job.toolchain, "arch": job.arch,
                    "kernel": job.kernel, "material": name_of(material),
                }
            )  # fmt: skip
            name = name_of(line)
            if name not in self._known:
                self._known.add(name)
                self._append([line])
        except Exception as error:
            self._give_up(f"a fault: {error!r}")

    def _append(self, lines: list[bytes]) -> None:
        if self._off:
            return
        try:
            fd = self._open()
        except OSError as error:
            if self._is_ours and isinstance(error, FileNotFoundError):
                # The recording has ended, and this process goes on: nobody waits for what it asks.
                self._off = True
                return
            self._give_up(f"{self._path}: {error.strerror}")
            return
        try:
            why = self._written(fd, lines)
            if why:
                self._give_up(why, fd)
        finally:
            os.close(fd)

    def _open(self) -> int:
        """Open for each append: a number that is kept may be another file's once the program has closed it.
        Not created: after the end of the recording there is none, whoever still runs."""
        flags = os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(self._path, flags | (os.O_WRONLY if self._is_ours else os.O_RDWR))

    def _written(self, fd: int, lines: list[bytes]) -> str:
        """Append; why that was not possible, or nothing."""
        try:
            found = os.fstat(fd)
            if not self._is_ours and not _is_recording(fd, found):
                return f"{self._path} is no recording"
            self._is_ours = True
            if found.st_size > LIMIT_BYTES:
                return f"{self._path} is longer than {LIMIT_BYTES} bytes"
            first = [] if found.st_size else [dumped(header(journal=True))]
            data = b"\n".join([b"", *first, *lines, b""])
            if os.write(fd, data) != len(data):
                return f"{self._path} was cut short: is the disk full?"
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        return ""

    def _give_up(self, why: str, fd: int = -1) -> None:
        self._off = True
        if fd >= 0 and self._is_ours:
            try:
                os.fchmod(fd, LOST_MODE)
            except OSError:
                why = f"{why} (and that is written down nowhere)"
        self._say("recording", f"ptocache records nothing more of this process: {why}")


def _is_recording(fd: int, found: os.stat_result) -> bool:
    """True for an empty file, and for one that begins as a recording does: whatever else the setting
    names is somebody's own."""
    if not S_ISREG(found.st_mode):
        return False
    return not found.st_size or f'"{FORMAT}"'.encode() in os.pread(fd, _HEADER_BYTES, 0)


FAILED_REASONS = frozenset(
    {"compile_failed", "remembered_failure", "output_rejected", "bad_request"}
)
"""Failures that would repeat themselves."""


def wanted(toolchain: str) -> list[str]:
    """The patterns of the variables that a daemon would ask for."""
    from .toolchain import Registry

    return Registry.discover().variables().get(toolchain, [])
