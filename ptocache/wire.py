"""Frames and messages of both directions; pure: bytes in, values out.

    frame   = length (4 bytes, little-endian, of the body alone) body
    body    = one msgpack map; text is UTF-8 (lone surrogates stand for undecodable bytes of a path)

A frame may be accompanied by descriptors (SCM_RIGHTS) that travel with its first byte; its map then
holds ``fds``, their number. Each side's first frame is a greeting: ``hello`` from the client,
``welcome`` from the daemon. Requests carry an ``id`` of the client's choice and their answers repeat
it; answers come in any order. docs/reference/wire.md has every message with an example.

History
    1   the first form.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from .digest import Digest, is_sha256
from .errors import BadRequestError, FrameError
from .model import Answer, Artifact, Descriptor, Input, Job, Log
from .outcome import OUTCOME_BY_LABEL, REASON_BY_LABEL, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PROTOCOL = 1
CAPABILITIES = ("batch", "descriptors", "inputs-on-demand")
HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
"""Longest body that either side accepts."""
MAX_GREETING_BYTES = 4096
"""Longest body of a client's first frame: nothing large is read from a peer not yet known."""
INLINE_BYTES = 128 << 10
"""Outputs up to this size travel in the message, larger ones as descriptors."""
MAX_DESCRIPTORS = 64
"""Most descriptors with one frame (Linux allows 253)."""
MODES = ("use", "refresh", "bypass", "read-only")
"""The same as in :mod:`ptocache.config`."""
MAX_BATCH = 4096
MAX_ITEMS = 4096
MAX_TEXT = 1 << 20


class Request(NamedTuple):
    """A compile request as it stands on the wire."""

    job: Job
    data: Mapping[str, bytes]
    """Bytes of the inputs that came along, by name; checked against their digests by the reader."""
    mode: str = "use"
    salt: str = ""


def pack(message: Mapping[str, Any]) -> bytes:
    """The frame of a message.

    Raises :class:`~ptocache.errors.BadRequestError` if it is longer than the protocol allows.
    """
    body = pack_document(message)
    if len(body) > MAX_FRAME_BYTES:
        raise BadRequestError(
            f"a message of {len(body)} bytes is longer than the limit of {MAX_FRAME_BYTES}",
            hint="send fewer or smaller inputs in one request",
        )
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def body_length(header: bytes | bytearray | memoryview, limit: int = MAX_FRAME_BYTES) -> int:
    """The length that a header announces; raises :class:`~ptocache.errors.FrameError` beyond
    ``limit``, before anything is allocated for it."""
    length = int.from_bytes(header[:HEADER_BYTES], "little")
    if not 0 < length <= limit:
        raise FrameError(f"a frame of {length} bytes (allowed: 1 to {limit})")
    return length


def unpack(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The message in a body; raises :class:`~ptocache.errors.FrameError` for anything but a map
    with text keys and a text ``type``."""
    message = _unpack(body)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise FrameError("a frame that is not a message: no map with a type")
    if not all(isinstance(key, str) for key in message):
        raise FrameError("a frame that is not a message: a key that is not text")
    return message


def pack_document(document: Mapping[str, Any]) -> bytes:
    """The bytes of a map that travels inside a message.

    Raises :class:`~ptocache.errors.BadRequestError` for text with a surrogate that stands for no byte.
    """
    try:
        packed: bytes = msgpack.packb(document, use_bin_type=True, unicode_errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"a text that no file or variable can have: {error.object!r}"
        ) from error
    return packed


def _unpack(data: bytes | bytearray | memoryview) -> object:
    try:
        found: object = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_ext_len=0,
            unicode_errors="surrogateescape",
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise FrameError(f"a frame that is not msgpack: {error}") from error
    return found


class Reader:
    """Cuts a stream of bytes into messages. ``limit`` bounds the next body."""

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self.limit = limit

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what arrived."""
        self._buffer += data

    def next(self) -> dict[str, Any] | None:
        """The next whole message, or ``None``; raises :class:`~ptocache.errors.FrameError`."""
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + body_length(buffer, self.limit)
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            message = unpack(view[HEADER_BYTES:end])
        del buffer[:end]
        return message

    @property
    def pending(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._buffer)


def hello(version: str, pid: int) -> dict[str, Any]:
    """The client's greeting."""
    return {"type": "hello", "protocol": PROTOCOL, "version": version, "pid": pid}


def welcome(version: str, pid: int, variables: Mapping[str, list[str]]) -> dict[str, Any]:
    """The daemon's greeting; ``variables`` tells per toolchain which environment to send along."""
    return {
        "type": "welcome",
        "protocol": PROTOCOL,
        "version": version,
        "pid": pid,
        "capabilities": list(CAPABILITIES),
        "variables": {name: list(patterns) for name, patterns in variables.items()},
    }


def compile_message(request_id: int, request: Request) -> dict[str, Any]:
    """A compile request; :func:`parse_compile` is its inverse.

    The request itself is one byte string inside the message: equal requests are equal bytes, so that
    a daemon need not read again what it has read before.
    """
    return {
        "type": "compile",
        "id": request_id,
        "request": pack_document(request_document(request)),
    }


def request_document(request: Request) -> dict[str, Any]:
    """The map inside a compile message."""
    job = request.job
    return {
        "toolchain": job.toolchain,
        "arch": job.arch,
        "options": list(job.options),
        "env": dict(job.env),
        "inputs": [
            [item.name, item.digest.sha256, item.digest.size, request.data.get(item.name)]
            for item in job.inputs
        ],
        "outputs": list(job.outputs),
        "symbols": list(job.symbols),
        "source_dir": job.source_dir,
        "cwd": job.cwd,
        "kernel": job.kernel,
        "mode": request.mode,
        "salt": request.salt,
    }


def parse_compile(message: Mapping[str, Any]) -> Request:
    """Read and check the request in a compile message.

    Raises :class:`~ptocache.errors.BadRequestError` naming the field that is wrong, input bytes
    that do not match their digest included.
    """
    document = message.get("request")
    if not isinstance(document, bytes):
        raise BadRequestError("a compile message without a request")
    try:
        return parse_request(_unpack(document))
    except FrameError as error:
        raise BadRequestError(f"a compile request that cannot be read: {error.message}") from error


def parse_request(message: object) -> Request:
    """Read and check the map inside a compile message; raises as :func:`parse_compile` does."""
    if not isinstance(message, dict):
        raise BadRequestError("a compile request that is not a map")
    inputs: list[Input] = []
    data: dict[str, bytes] = {}
    for item in _list(message, "inputs"):
        if not isinstance(item, list) or len(item) != 4:
            raise BadRequestError("an input is not [name, sha256, size, bytes or nothing]")
        name, sha256, size, content = item
        if not _is_input_name(name):
            raise BadRequestError(
                f"the input name {name!r} is not usable",
                hint="use a relative path with / and without . or .. parts",
            )
        if not is_sha256(sha256) or not _is_count(size):
            raise BadRequestError(f"the input {name} has no SHA-256 and size")
        digest = Digest(sha256, size)
        if content is not None:
            if not isinstance(content, bytes) or Digest.of(content) != digest:
                raise BadRequestError(f"the bytes of input {name} do not match their digest")
            data[name] = content
        inputs.append(Input(name, digest))
    if not inputs:
        raise BadRequestError("a compile request without inputs")
    if len({item.name for item in inputs}) != len(inputs):
        raise BadRequestError("two inputs have the same name")
    return Request(
        job=Job(
            toolchain=_text(message, "toolchain"),
            arch=_text(message, "arch"),
            options=_texts(message, "options"),
            env=_pairs(message, "env"),
            inputs=tuple(sorted(inputs)),
            outputs=_texts(message, "outputs"),
            symbols=_texts(message, "symbols"),
            source_dir=_directory(message, "source_dir"),
            cwd=_directory(message, "cwd"),
            kernel=_text(message, "kernel"),
        ),
        data=data,
        mode=_mode(message),
        salt=_text(message, "salt"),
    )


def answer_message(
    request_id: int, answer: Answer
) -> tuple[dict[str, Any], tuple[Descriptor, ...]]:
    """An answer and the descriptors that go with it, in the order of their artifacts."""
    fds = descriptors_of(answer)
    return {
        "type": "answer",
        "id": request_id,
        "answer": answer.packed or pack_answer(answer),
        "fds": len(fds),
    }, fds


def descriptors_of(answer: Answer) -> tuple[Descriptor, ...]:
    """The descriptors that go with an answer."""
    return tuple(item.file for item in answer.artifacts if item.file is not None)


def pack_answer(answer: Answer) -> bytes:
    """The map inside an answer's message: the same bytes whoever asks."""
    return pack_document(
        {
            "outcome": answer.outcome.label,
            "reason": answer.reason.label,
            "detail": answer.detail,
            "key": answer.key,
            "artifacts": [
                [item.name, item.digest.sha256, item.digest.size, item.mode, item.data]
                for item in answer.artifacts
            ],
            "stdout": answer.log.stdout,
            "stderr": answer.log.stderr,
            "exit_code": answer.exit_code,
            "compile_ms": answer.compile_ms,
            "identity": answer.identity,
            "error": answer.error,
        }
    )


def parse_answer(message: Mapping[str, Any], fds: list[Descriptor]) -> Answer:
    """Read an answer; ``fds`` are the descriptors that came with its frame.

    Raises :class:`~ptocache.errors.FrameError` for a map that is no answer.
    """
    try:
        document: Any = _unpack(message["answer"])
        waiting = fds[::-1]
        artifacts = tuple(
            Artifact(
                name,
                Digest(sha256, size),
                mode,
                data,
                None if data is not None else waiting.pop(),
            )
            for name, sha256, size, mode, data in document["artifacts"]
        )
        return Answer(
            outcome=OUTCOME_BY_LABEL[document["outcome"]],
            key=document["key"],
            reason=REASON_BY_LABEL.get(document["reason"], Reason.NONE),
            detail=document["detail"],
            artifacts=artifacts,
            log=Log(document["stdout"], document["stderr"]),
            exit_code=document["exit_code"],
            compile_ms=document["compile_ms"],
            identity=document["identity"],
            error=document["error"],
        )
    except (LookupError, ValueError, TypeError) as error:
        raise FrameError(f"an answer that cannot be read: {error!r}") from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_input_name(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= 1024 or "\0" in name or "\\" in name:
        return False
    return all(part not in ("", ".", "..") and not part.startswith("-") for part in name.split("/"))


def _list(message: Mapping[str, Any], field: str) -> list[Any]:
    value = message.get(field, [])
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise BadRequestError(f"{field} is not a list of at most {MAX_ITEMS} items")
    return value


def _text(message: Mapping[str, Any], field: str) -> str:
    return _checked_text(field, message.get(field, ""))


def _checked_text(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise BadRequestError(f"{field} is not text")
    return value


def _texts(message: Mapping[str, Any], field: str) -> tuple[str, ...]:
    return tuple(_checked_text(field, item) for item in _list(message, field))


def _pairs(message: Mapping[str, Any], field: str) -> tuple[tuple[str, str], ...]:
    value = message.get(field, {})
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise BadRequestError(f"{field} is not a map of at most {MAX_ITEMS} items")
    pairs = [
        (_checked_text(field, name), _checked_text(field, text)) for name, text in value.items()
    ]
    if any("=" in name or not name for name, _ in pairs):
        raise BadRequestError(f"{field} has a name that no variable can have")
    return tuple(sorted(pairs))


def _mode(message: Mapping[str, Any]) -> str:
    value = _text(message, "mode") or MODES[0]
    if value not in MODES:
        raise BadRequestError(f"there is no mode {value!r}", hint=f"one of {', '.join(MODES)}")
    return value


def _directory(message: Mapping[str, Any], field: str) -> str:
    value = _text(message, field)
    if value and not value.startswith("/"):
        raise BadRequestError(f"{field} is not an absolute path")
    return value
