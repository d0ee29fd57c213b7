"""Frames and messages of both directions; pure: bytes in, values out.

    frame   = length (4 bytes, little-endian, of the body alone) body
    body    = one msgpack map; text is UTF-8 (lone surrogates stand for undecodable bytes of a path)

A frame may be accompanied by descriptors (SCM_RIGHTS) that travel with its first byte; its map then
holds ``fds``, their number. Each side's first frame is a greeting: ``hello`` from the client,
``welcome`` from the daemon. Requests carry an ``id`` of the client's choice and their answers repeat
it; answers come in any order. docs/reference/wire.md has every message with an example.

A request for a finished kernel (``kernel``) may be answered with a lease: the peer then builds, sends
the bundle's files in pieces (``put``), and ends the lease (``finish`` or ``abandon``).

History
    1   the first form.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from . import bases
from .digest import Digest, is_sha256
from .errors import BadRequestError, FrameError
from .model import Answer, Artifact, Descriptor, Input, Job, Log
from .outcome import OUTCOME_BY_LABEL, REASON_BY_LABEL, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, TypeGuard

PROTOCOL = 1
KERNELS = "kernels"
"""The capability to answer for finished kernels, with leases."""
BASE_DIRS = "base-dirs"
"""The capability to count paths relative to the bases of a request (:mod:`ptocache.bases`)."""
CAPABILITIES = ("batch", "descriptors", "inputs-on-demand", KERNELS, BASE_DIRS)
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
PRIORITIES = ("interactive", "sweep")
"""What somebody waits for, and what is prepared for later: in this order compiles are begun."""
MAX_BATCH = 4096
MAX_ITEMS = 4096
MAX_TEXT = 1 << 20
MAX_VALUES = 1 << 17
"""Most values in one body or document, nested ones included: a byte of it can stand for a hundred of
memory, so that they are counted before any is made."""
_UNCOUNTED_BYTES = 256 << 10
"""Shorter ones cannot hold enough of them to matter."""
MAX_SHORT_TEXT = 256
"""Longest text (characters) of a kernel's material that travels and is stored as it is."""
PIECE_BYTES = 8 << 20
"""Most bytes of a file in one ``put``."""
MAX_FILES = MAX_DESCRIPTORS
"""Most files of a bundle: each may have to travel as a descriptor."""
MAX_MS = 1 << 40
_MAX_NAME = 1024


class Request(NamedTuple):
    """A compile request as it stands on the wire."""

    job: Job
    data: Mapping[str, bytes]
    """Bytes of the inputs that came along, by name; checked against their digests by the reader."""
    mode: str = "use"
    salt: str = ""


class KernelRequest(NamedTuple):
    """A request for a finished kernel, as it stands on the wire."""

    job: Job
    """Toolchain, arch, env and kernel; its inputs are the material that is known by digest."""
    texts: tuple[tuple[str, str], ...]
    """The material that is known by its text, sorted by name."""
    mode: str = "use"
    salt: str = ""


class Piece(NamedTuple):
    """A part of a file of a bundle."""

    lease: int
    name: str
    mode: int
    """Permission bits."""
    data: bytes
    more: bool
    """True if another piece of the same file follows."""


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
    if len(data) > _UNCOUNTED_BYTES:
        _count_values(data)
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


def _skips() -> list[tuple[int, int, int]]:
    """For each first byte of a msgpack value (github.com/msgpack/msgpack/blob/master/spec.md):
    how many bytes of length or count follow, how many bytes besides, how many values a counted
    one stands for (0: the count is one of bytes)."""
    table = [(0, 0, 0)] * 256
    for first, length_bytes, more in (
        (0xC4, 1, 0), (0xC5, 2, 0), (0xC6, 4, 0), (0xC7, 1, 1), (0xC8, 2, 1), (0xC9, 4, 1),
        (0xCA, 0, 4), (0xCB, 0, 8), (0xCC, 0, 1), (0xCD, 0, 2), (0xCE, 0, 4), (0xCF, 0, 8),
        (0xD0, 0, 1), (0xD1, 0, 2), (0xD2, 0, 4), (0xD3, 0, 8), (0xD4, 0, 2), (0xD5, 0, 3),
        (0xD6, 0, 5), (0xD7, 0, 9), (0xD8, 0, 17), (0xD9, 1, 0), (0xDA, 2, 0), (0xDB, 4, 0),
    ):  # fmt: skip
        table[first] = (length_bytes, more, 0)
    for first, length_bytes, values in ((0xDC, 2, 1), (0xDD, 4, 1), (0xDE, 2, 2), (0xDF, 4, 2)):
        table[first] = (length_bytes, 0, values)
    for first in range(0xA0, 0xC0):
        table[first] = (0, first - 0xA0, 0)
    return table


_SKIPS = _skips()


def _count_values(data: bytes | bytearray | memoryview) -> None:
    """Raises :class:`~ptocache.errors.FrameError` for more than :data:`MAX_VALUES`; what is not
    msgpack is for the parser to find out."""
    at, end, seen, announced = 0, len(data), 0, 1
    while seen < announced and at < end:
        first = data[at]
        seen += 1
        if 0x80 <= first < 0xA0:
            announced += first - 0x90 if first >= 0x90 else 2 * (first - 0x80)
            at += 1
        else:
            length_bytes, more, values = _SKIPS[first]
            start = at + 1
            at = start + length_bytes + more
            if length_bytes:
                count = int.from_bytes(data[start : start + length_bytes], "big")
                announced += count * values
                at += 0 if values else count
        if announced > MAX_VALUES:
            raise FrameError(f"a frame of more than {MAX_VALUES} values")


class Reader:
    """Cuts a stream of bytes into messages. ``limit`` bounds the next body."""

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self.limit = limit

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what arrived."""
        self._buffer += data

    def take(self, data: memoryview) -> dict[str, Any] | None:
        """What :meth:`feed` and :meth:`next` would give. A message that came alone, as nearly each does,
        is read where it is."""
        if (
            not self._buffer
            and len(data) > HEADER_BYTES
            and len(data) == HEADER_BYTES + body_length(data, self.limit)
        ):
            return unpack(data[HEADER_BYTES:])
        self.feed(data)
        return self.next()

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


def compile_message(request_id: int, request: Request, priority: int = 0) -> dict[str, Any]:
    """A compile request; :func:`parse_compile` is its inverse. ``priority``: an index into
    :data:`PRIORITIES`.

    The request itself is one byte string inside the message: equal requests are equal bytes, so that
    a daemon need not read again what it has read before.
    """
    message = {
        "type": "compile",
        "id": request_id,
        "request": pack_document(request_document(request)),
    }
    return {**message, "priority": priority} if priority else message


def priority_of(message: Mapping[str, Any]) -> int:
    """The priority of a compile message; what is no priority counts as the last one."""
    priority = message.get("priority", 0)
    known = isinstance(priority, int) and 0 <= priority < len(PRIORITIES)
    return priority if known else len(PRIORITIES) - 1


def request_document(request: Request) -> dict[str, Any]:
    """The map inside a compile message."""
    job = request.job
    document = {
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
    return {**document, "bases": list(job.bases)} if job.bases else document


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
        if not is_file_name(name):
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
            env=_variables(message),
            inputs=tuple(sorted(inputs)),
            outputs=_texts(message, "outputs"),
            symbols=_texts(message, "symbols"),
            source_dir=_directory(message, "source_dir"),
            cwd=_directory(message, "cwd"),
            kernel=_text(message, "kernel"),
            bases=bases_of(message),
        ),
        data=data,
        mode=_mode(message),
        salt=_text(message, "salt"),
    )


def kernel_message(request_id: int, request: KernelRequest) -> dict[str, Any]:
    """A request for a finished kernel; :func:`parse_kernel` is its inverse."""
    job = request.job
    document = {
        "toolchain": job.toolchain,
        "arch": job.arch,
        "env": dict(job.env),
        "texts": dict(request.texts),
        "digests": [[item.name, item.digest.sha256, item.digest.size] for item in job.inputs],
        "kernel": job.kernel,
        "mode": request.mode,
        "salt": request.salt,
    }
    return {"type": "kernel", "id": request_id, "request": pack_document(document)}


def parse_kernel(message: Mapping[str, Any]) -> KernelRequest:
    """Read and check the request in a kernel message.

    Raises :class:`~ptocache.errors.BadRequestError` naming the field that is wrong.
    """
    document = message.get("request")
    if not isinstance(document, bytes):
        raise BadRequestError("a kernel message without a request")
    try:
        found = _unpack(document)
    except FrameError as error:
        raise BadRequestError(f"a kernel request that cannot be read: {error.message}") from error
    if not isinstance(found, dict):
        raise BadRequestError("a kernel request that is not a map")
    digests = tuple(sorted(_material(item) for item in _list(found, "digests")))
    texts = _pairs(found, "texts")
    names = [item.name for item in digests] + [name for name, _ in texts]
    if not names:
        raise BadRequestError("a kernel request without material")
    if len(set(names)) != len(names):
        raise BadRequestError("two parts of the material have the same name")
    if any(len(name) > _MAX_NAME for name in names):
        raise BadRequestError(f"a name in the material is longer than {_MAX_NAME} characters")
    if any(len(text) > MAX_SHORT_TEXT for _, text in texts):
        raise BadRequestError(f"a text of the material is longer than {MAX_SHORT_TEXT} characters")
    job = Job(
        toolchain=_text(found, "toolchain"),
        arch=_text(found, "arch"),
        options=(),
        env=_variables(found),
        inputs=digests,
        outputs=(),
        kernel=_text(found, "kernel"),
    )
    return KernelRequest(job, texts, _mode(found), _text(found, "salt"))


def _material(item: object) -> Input:
    if not isinstance(item, list) or len(item) != 3:
        raise BadRequestError("a part of the material is not [name, sha256, size]")
    name, sha256, size = item
    if not is_sha256(sha256) or not _is_count(size):
        raise BadRequestError(f"the material {name!r} has no SHA-256 and size")
    if not isinstance(name, str) or not name or "\0" in name:
        raise BadRequestError("a part of the material has no name")
    return Input(name, Digest(sha256, size))


def lease_message(
    request_id: int, lease: int, key: str, *, wanted: bool, why: str
) -> dict[str, Any]:
    """A lease: the peer builds the kernel of ``key``. Its files are of use only if ``wanted``;
    ``why`` says why this was no hit, or why nothing is stored."""
    return {
        "type": "lease", "id": request_id, "lease": lease, "key": key, "wanted": wanted, "why": why,
    }  # fmt: skip


def put_messages(
    lease: int, name: str, mode: int, data: bytes | memoryview
) -> Iterator[dict[str, Any]]:
    """The messages that carry a file of a bundle; :func:`parse_put` reads one. They have no answer."""
    view = memoryview(data)
    for start in range(0, max(1, len(view)), PIECE_BYTES):
        piece = view[start : start + PIECE_BYTES]
        more = start + len(piece) < len(view)
        yield {
            "type": "put", "id": 0, "lease": lease, "name": name, "mode": mode,
            "data": bytes(piece), "more": more,
        }  # fmt: skip


def parse_put(message: Mapping[str, Any]) -> Piece:
    """Raises :class:`~ptocache.errors.BadRequestError` naming the field that is wrong."""
    name, mode, data = message.get("name"), message.get("mode"), message.get("data")
    if not is_file_name(name):
        raise BadRequestError(f"the file name {name!r} is not usable")
    if not _is_count(mode) or mode > 0o777:
        raise BadRequestError("the mode of a file is not permission bits")
    if not isinstance(data, bytes) or len(data) > PIECE_BYTES:
        raise BadRequestError(f"a piece is not at most {PIECE_BYTES} bytes")
    more = message.get("more")
    if not isinstance(more, bool) or (more and not data):
        raise BadRequestError("a piece that is empty and not the last")
    return Piece(lease_of(message), name, mode, data, more)


def finish_message(request_id: int, lease: int, compile_ms: int) -> dict[str, Any]:
    """The end of a lease that gave a bundle; ``compile_ms`` is what building it cost."""
    return {"type": "finish", "id": request_id, "lease": lease, "compile_ms": compile_ms}


def parse_finish(message: Mapping[str, Any]) -> tuple[int, int]:
    """(lease, compile_ms); raises :class:`~ptocache.errors.BadRequestError`."""
    cost_ms = message.get("compile_ms")
    if not _is_count(cost_ms) or cost_ms > MAX_MS:
        raise BadRequestError("compile_ms is not a number of milliseconds")
    return lease_of(message), cost_ms


def abandon_message(request_id: int, lease: int, error: str) -> dict[str, Any]:
    """The end of a lease that gave nothing, with the reason in words."""
    return {"type": "abandon", "id": request_id, "lease": lease, "error": error}


def parse_abandon(message: Mapping[str, Any]) -> tuple[int, str]:
    """(lease, error); raises :class:`~ptocache.errors.BadRequestError`."""
    return lease_of(message), _text(message, "error")


def lease_of(message: Mapping[str, Any]) -> int:
    """The number of the lease; raises :class:`~ptocache.errors.BadRequestError` if there is none."""
    lease = message.get("lease")
    if not _is_count(lease):
        raise BadRequestError("a message without the number of its lease")
    return lease


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


def answer_frame(request_id: int, answer: Answer) -> tuple[bytes, tuple[Descriptor, ...]]:
    """The frame of :func:`answer_message`, and its descriptors. One whose map is packed already is put
    around it: to pack it as a value would copy all of it twice more."""
    fds = descriptors_of(answer)
    inner = answer.packed
    length = _ANSWER_BYTES + len(inner)
    one_byte_each = 0 <= request_id < _FIXINT and len(fds) < _FIXINT
    if not inner or not one_byte_each or length > MAX_FRAME_BYTES:
        message, fds = answer_message(request_id, answer)
        return pack(message), fds
    return b"".join(
        (
            length.to_bytes(HEADER_BYTES, "little"),
            _ANSWER_HEAD,
            _ONE_BYTE[request_id],
            _ANSWER_FIELD,
            len(inner).to_bytes(4, "big"),
            inner,
            _ANSWER_FDS,
            _ONE_BYTE[len(fds)],
        )
    ), fds


# The bytes of msgpack (github.com/msgpack/msgpack/blob/master/spec.md) around an answer's map: a map of
# four, a number below 128 as itself, and a byte string with a length of four bytes (bin 32).
_FIXINT = 128
_ONE_BYTE = tuple(bytes((number,)) for number in range(_FIXINT))
_ANSWER_HEAD = b"\x84\xa4type\xa6answer\xa2id"
_ANSWER_FIELD = b"\xa6answer\xc6"
_ANSWER_FDS = b"\xa3fds"
_ANSWER_BYTES = len(_ANSWER_HEAD) + 1 + len(_ANSWER_FIELD) + 4 + len(_ANSWER_FDS) + 1


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
        artifacts = tuple(_artifact(item, waiting) for item in document["artifacts"])
        answer = Answer(
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
        _check_answer(answer)
        return answer
    except (LookupError, ValueError, TypeError) as error:
        raise FrameError(f"an answer that cannot be read: {error!r}") from error


def _artifact(item: Any, waiting: list[Descriptor]) -> Artifact:
    name, sha256, size, mode, data = item
    if not (isinstance(name, str) and isinstance(sha256, str) and _is_count(size)):
        raise ValueError("an output without a name, a digest and a size")
    if not _is_count(mode) or not (data is None or isinstance(data, bytes)):
        raise ValueError(f"the output {name!r} has no mode or no bytes")
    if data is not None and len(data) != size:
        raise ValueError(f"the output {name!r} has {len(data)} bytes, not {size}")
    return Artifact(
        name, Digest(sha256, size), mode, data, None if data is not None else waiting.pop()
    )


def _check_answer(answer: Answer) -> None:
    for text in (answer.key, answer.detail, answer.identity):
        if not isinstance(text, str):
            raise TypeError("a text that is none")
    if not (isinstance(answer.log.stdout, bytes) and isinstance(answer.log.stderr, bytes)):
        raise TypeError("output that is no bytes")
    if not (isinstance(answer.exit_code, int) and isinstance(answer.compile_ms, int)):
        raise TypeError("a number that is none")
    if not (answer.error is None or isinstance(answer.error, dict)):
        raise TypeError("an error that is no map")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_file_name(name: object) -> TypeGuard[str]:
    """True for a relative path with ``/`` and without empty, ``.`` or ``..`` parts, which no tool
    takes for an option."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or "\0" in name or "\\" in name:
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
    if not all(name for name, _ in pairs):
        raise BadRequestError(f"{field} has an empty name")
    return tuple(sorted(pairs))


def _variables(message: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(message, "env")
    if any("=" in name for name, _ in pairs):
        raise BadRequestError("env has a name that no variable can have")
    return pairs


def _mode(message: Mapping[str, Any]) -> str:
    value = _text(message, "mode") or MODES[0]
    if value not in MODES:
        raise BadRequestError(f"there is no mode {value!r}", hint=f"one of {', '.join(MODES)}")
    return value


def effective_mode(own: str, asked: str) -> str:
    """The mode of a request to a daemon whose own mode is ``own``: that of the daemon, unless it is the
    plain one; who asks for a bypass always gets it."""
    return asked if own == MODES[0] or asked == "bypass" else own


def bases_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The bases of a request; raises :class:`~ptocache.errors.BadRequestError` for one that cannot be."""
    found = _texts(message, "bases")
    if len(found) > bases.MOST:
        raise BadRequestError(f"more than {bases.MOST} base directories")
    try:
        return tuple(map(bases.judged, found))
    except ValueError as error:
        raise BadRequestError(f"a base directory cannot be used: {error}") from error


def _directory(message: Mapping[str, Any], field: str) -> str:
    value = _text(message, field)
    if value and not value.startswith("/"):
        raise BadRequestError(f"{field} is not an absolute path")
    return value
