"""Recordings of what runs asked for: read, joined, and written for another machine.

docs/reference/recordings.md has the grammar. A recording is made of text, numbers and bytes; nothing in it is
run, and what its reader does not know it refuses. A *journal* is what processes append to while they run
(:mod:`ptocache.recording`); a *manifest* is what is made of it: each thing once, in an order that does not
depend on the run, without the variables that only find tools, and with names below one directory, the base,
relative to it.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from .digest import Digest
from .errors import BadRecordingError, BadRequestError
from .model import select
from .recording import FORMAT, LIMIT_BYTES, VERSION, dumped, header, input_record, name_of
from .wire import parse_request, request_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .wire import Request

    Word = str | list[str | dict[str, str]]
    """A text, or its parts: ``{"base": "/include"}`` is a path below the base."""

TOOL = "tool="
"""Begins the option of a wrapped command that says where its tool was found."""
LINE_BYTES = 128 << 20
_SEPARATORS = "=,:;\"' "
_BASE = "base"
_MORE = ("record", "files", "called", "failed")
_COUNTED = 1 << 31
_AGAIN = "record the run again: ptocache record -- COMMAND"


class Recorded(NamedTuple):
    """A compile that was asked for."""

    request: Request
    """Without the bytes of its inputs. Of its variables those that the recording holds."""
    files: tuple[tuple[str, str], ...] = ()
    """(input, absolute path), for those that were read from a file."""
    called: str = ""
    """The compiler as it was called, for a wrapped command."""
    failed: bool = False
    """True if the compile failed in the run."""


class Kernels(NamedTuple):
    """Whole kernels of one name, which only their framework can build."""

    toolchain: str
    arch: str
    kernel: str
    number: int
    """How many different ones."""


class LeftOut(NamedTuple):
    """A request that was made and is not recorded."""

    toolchain: str
    arch: str
    kernel: str
    why: str


class Recording(NamedTuple):
    """What a run, or several, asked for."""

    compiles: tuple[Recorded, ...] = ()
    inputs: Mapping[str, bytes] = {}
    """SHA-256 → bytes."""
    kernels: tuple[Kernels, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    damaged: int = 0
    """Lines of a journal that a kill or a full disk cut short."""


def read(path: str, base: str = "") -> Recording:
    """The recording in a file; ``base`` is the absolute directory that its relative places are below.

    Raises :class:`~ptocache.errors.BadRecordingError` naming the line that cannot be read and what is wrong
    with it, and :class:`OSError`.
    """
    with open(path, "rb") as file:
        return _Reader(path, base).read(iter(lambda: file.readline(LINE_BYTES), b""))


def parse(data: bytes, base: str = "", path: str = "") -> Recording:
    """The same, of bytes that are in memory."""
    return _Reader(path, base).read(iter(data.splitlines(keepends=True)))


def joined(recordings: Iterable[Recording]) -> Recording:
    """Everything in them, each thing once, in the order of a manifest."""
    compiles: dict[tuple[object, ...], Recorded] = {}
    inputs: dict[str, bytes] = {}
    kernels: dict[tuple[str, str, str], int] = {}
    left_out: dict[LeftOut, None] = {}
    damaged = 0
    for one in recordings:
        for item in one.compiles:
            name = (item.request.job, item.request.salt, item.files, item.called)
            # What one run could compile is no failure of the request.
            failed = item.failed and compiles.get(name, item).failed
            compiles[name] = item._replace(failed=failed)
        inputs.update(one.inputs)
        for kind in one.kernels:
            named = kind[:3]
            kernels[named] = max(kernels.get(named, 0), kind.number)
        left_out.update(dict.fromkeys(one.left_out))
        damaged += one.damaged
    return Recording(
        tuple(sorted(compiles.values(), key=_order)),
        dict(sorted(inputs.items())),
        tuple(Kernels(*named, number) for named, number in sorted(kernels.items())),
        tuple(sorted(left_out)),
        damaged,
    )


def without_search(recording: Recording, declared: Mapping[str, Iterable[str]]) -> Recording:
    """Only the variables that count by their values: ``declared`` (toolchain → patterns). What finds tools,
    and where they were, is taken from the environment where the recording is used."""

    def plain(item: Recorded) -> Recorded:
        job = item.request.job
        patterns = declared.get(job.toolchain)
        if patterns is None:
            return item
        kept = job._replace(env=select(patterns, dict(job.env)))
        if item.called:
            kept = kept._replace(options=without_tool(job.options))
        return item._replace(request=item.request._replace(job=kept))

    return recording._replace(compiles=tuple(map(plain, recording.compiles)))


def without_tool(options: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a wrapped command without the place of its tool."""
    end = options.index("--") if "--" in options else len(options)
    fields = (field for field in options[:end] if not field.startswith(TOOL))
    return (*fields, *options[end:])


def lines(recording: Recording, base: str = "") -> Iterator[bytes]:
    """The manifest, line by line: the same bytes for the same content. ``base``: what lies below this
    absolute directory is written relative to it."""
    recording = joined([recording])
    yield dumped(header()) + b"\n"
    used = {item.digest.sha256 for one in recording.compiles for item in one.request.job.inputs}
    for sha256, data in recording.inputs.items():
        if sha256 in used:
            yield dumped(input_record(sha256, data)) + b"\n"
    for line in sorted(dumped(_record(item, base)) for item in recording.compiles):
        yield line + b"\n"
    for kind in recording.kernels:
        yield dumped({"record": "kernel", **kind._asdict()}) + b"\n"
    for left in recording.left_out:
        yield dumped({"record": "left_out", **left._asdict()}) + b"\n"


def write(path: str, recording: Recording, base: str = "") -> None:
    """Write a manifest whole or not at all. Raises :class:`OSError`."""
    partial = f"{path}.{os.getpid():x}.part"
    try:
        with open(partial, "xb") as file:
            for line in lines(recording, base):
                file.write(line)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _order(item: Recorded) -> bytes:
    return dumped(_record(item, ""))


def _record(item: Recorded, base: str) -> dict[str, Any]:
    document = request_document(item.request)
    for field in ("mode", "bases"):
        document.pop(field, None)
    found: dict[str, Any] = {"record": "compile", **document}
    found["inputs"] = [part[:3] for part in document["inputs"]]
    found["options"] = [_relative(word, base) for word in document["options"]]
    found["env"] = {name: _relative(value, base) for name, value in document["env"].items()}
    for field in ("source_dir", "cwd"):
        found[field] = _relative(document[field], base)
    if item.files:
        found["files"] = {name: _relative(path, base) for name, path in item.files}
    if item.called:
        found["called"] = _relative(item.called, base)
    if item.failed:
        found["failed"] = True
    return found


# --- places below the base


def _relative(text: str, base: str) -> Word:
    """``text``, or its parts if a path below ``base`` stands in it."""
    if not base.strip("/") or base not in text:
        return text
    parts: list[str | dict[str, str]] = []
    done = at = 0
    while (at := text.find(base, at)) >= 0:
        end = at + len(base)
        begun = max(text.rfind(mark, 0, at) for mark in _SEPARATORS) + 1
        if "/" in text[begun:at] or (end < len(text) and text[end] not in f"/{_SEPARATORS}"):
            at = end
            continue
        stop = min((i for i in range(end, len(text)) if text[i] in _SEPARATORS), default=len(text))
        if done < at:
            parts.append(text[done:at])
        parts.append({_BASE: text[end:stop]})
        done = at = stop
    if done < len(text):
        parts.append(text[done:])
    return parts if any(isinstance(part, dict) for part in parts) else text


def _absolute(word: object, base: str) -> str:
    """The text that :func:`_relative` made ``word`` of. Raises :class:`ValueError`."""
    if isinstance(word, str):
        return word
    if not isinstance(word, list):
        raise ValueError("neither text nor a list of its parts")
    found = []
    for part in word:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict) and list(part) == [_BASE] and _is_below(part[_BASE]):
            found.append(base + part[_BASE])
        else:
            raise ValueError('a part that is neither text nor {"base": path}')
    return "".join(found)


def _is_below(part: object) -> bool:
    return isinstance(part, str) and (not part or part.startswith("/"))


# --- reading


class _Reader:
    """Reads the lines of one recording, in any order but for the first."""

    def __init__(self, path: str, base: str) -> None:
        self._path = path
        self._base = base
        self._journal = False
        self._begun = False
        self._line = 0
        self._compiles: dict[str, tuple[int, Recorded]] = {}
        self._inputs: dict[str, bytes] = {}
        self._failed: set[str] = set()
        self._materials: dict[tuple[str, str, str], set[str]] = {}
        self._kernels: list[Kernels] = []
        self._left_out: list[LeftOut] = []
        self._damaged = 0

    def read(self, found: Iterator[bytes]) -> Recording:
        """Raises :class:`~ptocache.errors.BadRecordingError`."""
        size = 0
        for line in found:
            self._line += 1
            size += len(line)
            if size > 2 * LIMIT_BYTES or len(line) >= LINE_BYTES:
                raise self._error("is too long")
            if not line.strip():
                continue
            try:
                self._take(line)
            except BadRecordingError:
                raise
            except (ValueError, TypeError, LookupError) as error:
                if not self._journal:
                    raise self._error(_words(error)) from error
                self._damaged += 1
        if not self._begun:
            raise self._no_recording()
        return self._whole()

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            if not self._begun:
                raise self._no_recording() from None
            raise ValueError("not JSON, or cut short") from None
        if not isinstance(record, dict):
            raise ValueError("not a map")
        kind = record.get("record")
        if kind == FORMAT:
            self._head(record)
            return
        if not self._begun:
            raise self._no_recording()
        readers: dict[object, Callable[[dict[str, Any], bytes], None]] = {
            "input": self._input,
            "compile": self._compile,
            "failed": self._failure,
            "kernel": self._kernel,
            "left_out": self._leave_out,
        }
        read_one = readers.get(kind) if isinstance(kind, str) else None
        if read_one is None:
            raise ValueError(f"there is no record {str(kind)[:40]!r}")
        read_one(record, line.strip())

    def _head(self, record: dict[str, Any]) -> None:
        version = record.get("version")
        if version != VERSION or isinstance(version, bool):
            raise self._error(
                f"version {str(version)[:40]} of the format, and this ptocache reads version {VERSION}",
                hint="use the ptocache that recorded it, or record the run again",
            )
        self._begun = True
        self._journal = record.get("journal") is True

    def _input(self, record: dict[str, Any], line: bytes) -> None:
        if "text" in record:
            data = _text(record, "text").encode("utf-8")
        else:
            data = binascii.a2b_base64(_text(record, "base64").encode("ascii"))
        if Digest.of(data).sha256 != record.get("sha256"):
            raise ValueError("the bytes of an input do not match their SHA-256")
        self._inputs[record["sha256"]] = data

    def _compile(self, record: dict[str, Any], line: bytes) -> None:
        base = self._base
        document = {name: value for name, value in record.items() if name not in _MORE}
        document["inputs"] = [[*_list(item), None] for item in _list(record["inputs"])]
        document["options"] = [_absolute(word, base) for word in _list(record["options"])]
        env = _map(record["env"])
        document["env"] = {name: _absolute(value, base) for name, value in env.items()}
        for field in ("source_dir", "cwd"):
            document[field] = _absolute(record[field], base)
        files = _map(record.get("files", {}))
        failed = record.get("failed", False)
        if not isinstance(failed, bool):
            raise ValueError("failed is neither true nor false")
        recorded = Recorded(
            parse_request(document),
            tuple(sorted((name, _absolute(path, base)) for name, path in files.items())),
            _absolute(record.get("called", ""), base),
            failed,
        )
        if any("\0" in text for _, text in recorded.files) or "\0" in recorded.called:
            raise ValueError("a path with a NUL")
        self._compiles[name_of(line)] = (self._line, recorded)

    def _failure(self, record: dict[str, Any], line: bytes) -> None:
        self._failed.add(_text(record, "request"))

    def _kernel(self, record: dict[str, Any], line: bytes) -> None:
        names = (_text(record, "toolchain"), _text(record, "arch"), _text(record, "kernel"))
        if "material" in record:
            self._materials.setdefault(names, set()).add(_text(record, "material"))
            return
        number = record["number"]
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < _COUNTED:
            raise ValueError("number is not a number of kernels")
        self._kernels.append(Kernels(*names, number))

    def _leave_out(self, record: dict[str, Any], line: bytes) -> None:
        self._left_out.append(LeftOut(*(_text(record, name) for name in LeftOut._fields)))

    def _whole(self) -> Recording:
        compiles = []
        for name, (number, item) in self._compiles.items():
            absent = [
                part.name
                for part in item.request.job.inputs
                if self._inputs.get(part.digest.sha256) is None
                or len(self._inputs[part.digest.sha256]) != part.digest.size
            ]
            if absent and self._journal:
                self._damaged += 1
            elif absent:
                self._line = number
                raise self._error(
                    f"the bytes of its input {absent[0]}, or as many, are not in the file"
                )
            else:
                compiles.append(item._replace(failed=item.failed or name in self._failed))
        counted = [Kernels(*names, len(found)) for names, found in self._materials.items()]
        found = Recording(
            tuple(compiles), self._inputs, (*self._kernels, *counted), tuple(self._left_out)
        )
        return joined([found._replace(damaged=self._damaged)])

    def _no_recording(self) -> BadRecordingError:
        return self._error(f"the first line is not that of a recording (format {FORMAT})")

    def _error(self, what: str, *, hint: str = _AGAIN) -> BadRecordingError:
        where = f"{self._path}: line {self._line}" if self._path else f"line {self._line}"
        return BadRecordingError(f"{where}: {what}", hint=hint, path=self._path, line=self._line)


def _words(error: Exception) -> str:
    if isinstance(error, BadRequestError):
        return error.message
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    return str(error) or type(error).__name__


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} is not text")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("something else stands where a list is needed")
    return value


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("something else stands where a map is needed")
    return value
