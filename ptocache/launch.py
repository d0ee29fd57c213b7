"""An artifact as the launch path wants it: a buffer, a path that a loader accepts, and loaded once.

``load`` keeps what a loader returned, per process, artifact, loader and device: asking again gives the
same handle. ``load_or_remake`` does the same with what a client gives, and has an artifact that its loader
refuses reported, dropped and made again, once. ``Client.load`` is that for a compile.

No two artifacts of a process ever have the same path, however many are closed meanwhile: a dynamic loader
knows libraries by their names, and would take a name that comes again for what it has already.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

from .errors import BadRequestError, ElfError, LoadError, PtocacheError
from .handles import HandleTable
from .outcome import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from .client import Client
    from .result import Result, ResultOutput

T = TypeVar("T")

WAYS = ("path", "buffer", "file")
"""What a loader can be given: see :func:`load`."""
_REL_SECTION = "__aicore_rel_binary"
"""Where an object that is still to be linked has its device images."""
_MOST_WORDS = 1000
_numbers = itertools.count(1)


class OpenArtifact:
    """An artifact that is held open, wherever its bytes lie; use as a context manager or close it.

    What is held stays as it is when its entry is evicted, invalidated or replaced, and when the daemon or
    the store goes.
    """

    __slots__ = ("_fd", "_folder", "_output", "_path", "_pid", "digest", "name", "size")

    def __init__(self, output: ResultOutput) -> None:
        """Raises :class:`OSError` if there is no room for another file."""
        self.name = output.name
        self.digest = output.digest
        self.size = output.size
        self._output = output
        self._pid = os.getpid()
        self._folder = ""
        if output.file is not None:
            self._fd = os.dup(output.file.fileno())
        else:
            self._fd = _anonymous(output.buffer, output.digest)
        self._path = f"/proc/self/fd/{_spelling(next(_numbers))}{self._fd}"

    @property
    def path(self) -> str:
        """A path that names the artifact in this process for as long as it is held. It costs nothing, and
        leads through ``/proc/self/fd``: another process cannot follow it, and it has no suffix."""
        self._require()
        return self._path

    @property
    def file(self) -> str:
        """A path that any loader, and any process of this user, accepts for as long as it is held: that of a
        copy with the output's own name, in a folder of this process. Written when first asked for.

        Raises :class:`OSError` if it cannot be written.
        """
        self._require()
        if not self._folder:
            from .integrations.shelf import shelf

            folder = shelf.place()
            place = os.path.join(folder, self.name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            self._output.write(place)
            self._folder = folder
        return os.path.join(self._folder, self.name)

    @property
    def buffer(self) -> memoryview:
        """The bytes, read-only, without a copy; they stay for as long as anybody holds this view."""
        self._require()
        return self._output.buffer

    def symbols(self) -> tuple[str, ...]:
        """Names of its kernels: see :func:`symbols`."""
        self._require()
        return symbols(self._output)

    def fileno(self) -> int:
        """The descriptor: a file that is only read, whose offset may be shared with others."""
        self._require()
        return self._fd

    def _require(self) -> None:
        if self._fd < 0:
            raise ValueError("the artifact is closed")

    def close(self) -> None:
        """Give it up; its paths must not be used any more. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        os.close(fd)
        if self._folder and self._pid == os.getpid():
            from shutil import rmtree

            rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> OpenArtifact:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At the end of the interpreter modules may be gone, and the system closes what is open.
        if getattr(self, "_fd", -1) >= 0:
            with suppress(Exception):
                self.close()


def _spelling(number: int) -> str:
    """A way to spell a folder's end that is another one for each number: ``./`` and ``/`` lead nowhere."""
    return "".join("./" if digit == "1" else "/" for digit in f"{number:b}")


def symbols(output: ResultOutput) -> tuple[str, ...]:
    """Names of the kernels in an artifact, sorted: what its ELF image defines, and, for one that holds or
    consists of device images, what those define.

    Raises :class:`~ptocache.errors.ElfError` for what is no ELF image, or a broken one.
    """
    from . import elf

    data = output.buffer
    if not elf.is_elf(data):
        raise ElfError(
            f"the output {output.name} is no ELF image, so that it has no symbols",
            hint="ask for an output that is one: an object, a shared object or a device image",
            rule="magic",
        )
    image = elf.inspect(data)
    held = (image.section(name) for name in (elf.FAT_SECTION, _REL_SECTION))
    section = next((item.name for item in held if item is not None and item.size), "")
    found: set[str] = set()
    nested: tuple[elf.Nested, ...] = ()
    if section:
        nested = elf.nested_images(data, section)
    elif image.machine == elf.AICORE_MACHINE and elf.is_followed(data, image):
        nested = elf.check_images(data)
    if section or not nested:
        found.update(elf.entry_symbols(data))
    for item in nested:
        with data[item.offset : item.offset + item.size] as one:
            found.update(elf.entry_symbols(one))
    return tuple(sorted(found))


def address(buffer: memoryview | bytes) -> int:
    """Where a buffer's bytes lie in memory, for a loader in C that takes a pointer and a length; valid for
    as long as the buffer is held."""
    import ctypes

    class PyBuffer(ctypes.Structure):
        # docs.python.org/3/c-api/buffer.html: only the first field is looked at.
        _fields_ = (("buf", ctypes.c_void_p), ("rest", ctypes.c_void_p * 15))

    found = PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(found), 0)
    try:
        return int(found.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))


# --- handles


def _let_go(keeper: OpenArtifact | memoryview) -> None:
    if isinstance(keeper, OpenArtifact):
        keeper.close()


_handles = HandleTable(_let_go)
os.register_at_fork(after_in_child=lambda: _handles.after_fork())


def load(
    output: ResultOutput, loader: Callable[[Any], T], device: Hashable = 0, *, by: str = "path"
) -> T:
    """What ``loader`` returns for this artifact, loaded once per process, loader and device.

    ``by`` is what the loader is given: ``path`` (``ctypes.CDLL``, a path in this process), ``buffer`` (a
    read-only ``memoryview``, as a device's loader of bytes wants it) or ``file`` (the path of a real file
    with the output's name, for a loader that resolves paths, looks at suffixes or asks another process).
    All three stay for as long as the handle is kept: until :func:`forget`, or the end of the process.

    Raises what the loader raises; the next call then tries again. Raises
    :class:`~ptocache.errors.LoadError` for a loader that asks for its own artifact, and
    :class:`~ptocache.errors.BadRequestError` for another ``by``.
    """
    if by not in WAYS:
        raise BadRequestError(
            f"an artifact cannot be loaded by {by!r}", hint=f"one of {', '.join(WAYS)}"
        )

    key = (output.digest, by, loader, device)

    def make() -> tuple[T, OpenArtifact | memoryview]:
        if by == "buffer":
            return loader(output.buffer), output.buffer
        # What a dynamic loader had in the parent it has in the child, under the same name.
        inherited = _handles.inherited(key) if by == "path" else None
        artifact = inherited or OpenArtifact(output)
        try:
            return loader(artifact.path if by == "path" else artifact.file), artifact
        except BaseException:
            if artifact is not inherited:
                artifact.close()
            raise

    return cast(T, _handles.get(key, make))


def forget(device: Hashable = 0, unload: Callable[[Any], object] | None = None) -> int:
    """Give up the handles of a device, as after its reset, when they are worth nothing: the next ``load``
    loads anew. Returns how many.

    ``unload`` is called with each. What it raises is raised when all are given up, the first of several.
    """
    gone = _handles.forget(lambda key: key[3] == device)
    errors: list[Exception] = []
    for handle, keeper in gone:
        try:
            if unload is not None:
                unload(handle)
        except Exception as error:
            errors.append(error)
        finally:
            _let_go(keeper)
    if errors:
        raise errors[0]
    return len(gone)


# --- an artifact that its loader refuses


class Verdict(NamedTuple):
    """What became of a report."""

    word: str
    """``dropped``, ``replaced``, ``same_bytes``, ``given_up``, ``read_only`` or ``store_failed``
    (docs/reference/wire.md); empty if nobody could be told."""
    detail: str
    """The same in words."""

    @property
    def again(self) -> bool:
        """True if asking again may give other bytes."""
        return self.word in (Reason.DROPPED.label, Reason.REPLACED.label)


def reject(client: Client, result: Result, error: BaseException | str, output: str = "") -> Verdict:
    """Report that a result cannot be loaded, for the reason ``error``: its entry is dropped if it still
    holds these bytes, and they have not been made again already. Never raises for a daemon that has gone.

    ``output``: the one that cannot be loaded; by default the result as a whole.
    """
    if not result.key:
        return Verdict("", "it was compiled without the daemon")
    if client.settings["request.mode"] == "read-only":
        return Verdict(Reason.READ_ONLY.label, "the mode is read-only: nothing is dropped")
    names = [_chosen(result, output).name] if output else list(result.outputs)
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    try:
        found = client.call(
            "reject",
            key=result.key,
            outputs={name: result.outputs[name].digest for name in names},
            detail=text.encode("utf-8", "replace").decode()[:_MOST_WORDS],
        )
    except (PtocacheError, OSError) as trouble:
        return Verdict("", f"no daemon could be told: {trouble}")
    return Verdict(str(found.get("verdict", "")), str(found.get("detail", "")))


def load_or_remake(
    client: Client,
    make: Callable[[], Result],
    loader: Callable[[Any], T],
    *,
    output: str = "",
    device: Hashable = 0,
    by: str = "path",
) -> T:
    """:func:`load` of what ``make()``, which asks ``client``, gives; if its loader refuses it, it is
    reported (:func:`reject`), made again and loaded, once.

    ``output``: which one; may be left out if there is only one. The other parameters are those of
    :func:`load`. An error of ptocache's own inside the loader, a ``MemoryError``, and what is no
    ``Exception`` say nothing of the artifact, and pass through.

    Raises what ``make`` raises, :class:`~ptocache.errors.BadRequestError` for an output that is not
    there, and :class:`~ptocache.errors.LoadError`, with the loader's own exception as its cause, if the
    artifact cannot be loaded.
    """
    result = make().check()
    first = _chosen(result, output)
    try:
        return load(first, loader, device, by=by)
    except (PtocacheError, MemoryError):
        raise
    except Exception as error:
        verdict = reject(client, result, error, first.name)
        if not verdict.again:
            raise _refused(first, result, verdict, error) from error
    result = make().check()
    second = _chosen(result, first.name)
    try:
        return load(second, loader, device, by=by)
    except (PtocacheError, MemoryError):
        raise
    except Exception as error:
        same = second.digest == first.digest
        raise _refused(second, result, verdict, error, rebuilt=True, same_bytes=same) from error


def _chosen(result: Result, output: str) -> ResultOutput:
    names = ", ".join(result.outputs)
    if not output and len(result.outputs) == 1:
        return next(iter(result.outputs.values()))
    if not output:
        raise BadRequestError(
            f"the result has {len(result.outputs)} outputs: {names}", hint="say which one to load"
        )
    if output not in result.outputs:
        raise BadRequestError(f"the result has no output {output!r}", hint=f"it has {names}")
    return result.outputs[output]


def _refused(
    output: ResultOutput,
    result: Result,
    verdict: Verdict,
    error: Exception,
    *,
    rebuilt: bool = False,
    same_bytes: bool = False,
) -> LoadError:
    if verdict.word == Reason.SAME_BYTES.label:
        rebuilt = same_bytes = True
    which = "the same bytes" if same_bytes else "other bytes, which cannot be loaded either"
    more = f"made again, it had {which}" if rebuilt else verdict.detail
    return LoadError(
        f"the output {output.name} cannot be loaded: {type(error).__name__}: {error}; {more}",
        hint="look at what the loader says, at the device and its driver, and at the libraries that the"
        " artifact needs",
        output=output.name,
        digest=output.digest,
        key=result.key,
        verdict=verdict.word,
        rebuilt=rebuilt,
        same_bytes=same_bytes,
    )


def _anonymous(data: memoryview, digest: str) -> int:
    fd = os.memfd_create(f"ptocache-{digest[:16]}", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BaseException:
        os.close(fd)
        raise
    return fd
