"""Content-addressed files: written aside, made visible by a rename, checked when first read.

A blob is immutable, mode 0400, and named by the SHA-256 of its bytes. Nothing here knows of entries.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128_digest

from ..digest import Digest, is_sha256
from ..errors import StoreDamagedError
from ..model import Descriptor
from ..outcome import Reason
from ..signature import Signature, of_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..paths import StorePaths

_BLOCK = 4096
QUARANTINE_LIMIT = 64
"""Damaged files kept for inspection; the oldest go first."""


class DamagedBlobError(StoreDamagedError):
    """A blob that is not what entered; ``reason`` says in which way."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message, reason=reason.label)
        self.reason = reason


class Pending(NamedTuple):
    """A blob that is written and not yet visible."""

    path: str
    digest: Digest
    checksum: bytes
    disk: int


class Opened(NamedTuple):
    """A verified blob: its descriptor and the signature under which it was verified."""

    file: Descriptor
    signature: Signature


def checksum(data: bytes | memoryview) -> bytes:
    """XXH3-128 of ``data``, 16 bytes, big-endian (the canonical form of the xxHash specification)."""
    return xxh3_128_digest(data)


def disk_bytes(size: int) -> int:
    """Bytes that a file of this size takes on disk, in whole blocks."""
    return (size + _BLOCK - 1) // _BLOCK * _BLOCK


class Blobs:
    """The files below ``blobs/``, ``tmp/`` and ``quarantine/``."""

    def __init__(self, paths: StorePaths, *, fsync: bool = True) -> None:
        self._paths = paths
        self._fsync = fsync
        self._left: set[str] = set()
        """Unfinished files that could not be removed yet (a network file system may be busy)."""

    def write(self, data: bytes | memoryview) -> Pending:
        """Write ``data`` aside; :meth:`place` makes it visible, :meth:`discard` undoes it.

        Raises :class:`OSError`; then nothing is left behind.
        """
        path = os.path.join(self._paths.tmp, f"blob-{secrets.token_hex(8)}")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fchmod(fd, 0o400)
                if self._fsync:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = path
            self._unlink(path)
            raise
        return Pending(path, Digest.of(data), checksum(data), disk_bytes(len(data)))

    def place(self, pending: Pending) -> None:
        """Make a blob visible under its name, replacing what stands there. Atomic."""
        target = self._paths.blob(pending.digest.sha256)
        folder = os.path.dirname(target)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except FileExistsError:
            # Something that is no folder stands in a folder's place.
            self._set_aside(folder, f"{os.path.basename(folder)}.{Reason.NOT_A_FILE.label}")
            os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            os.rename(pending.path, target)
        except (IsADirectoryError, NotADirectoryError, FileExistsError):
            # Something that is no blob stands at the blob's name; it is kept aside, not destroyed.
            self.quarantine(pending.digest.sha256, Reason.NOT_A_FILE)
            os.rename(pending.path, target)

    def discard(self, pending: Pending) -> None:
        """Remove a blob that was never made visible."""
        self._unlink(pending.path)

    def read(self, digest: Digest, expected: bytes) -> bytes:
        """The verified bytes of a blob. Raises :class:`DamagedBlobError`, or :class:`OSError`."""
        fd = self._open(digest)
        try:
            data = bytearray()
            while chunk := os.read(fd, 1 << 20):
                data += chunk
        finally:
            os.close(fd)
        if len(data) != digest.size:
            raise DamagedBlobError(f"blob {digest.sha256} changed its size", Reason.TRUNCATED)
        found = bytes(data)
        if checksum(found) != expected:
            raise DamagedBlobError(
                f"blob {digest.sha256} does not match its checksum", Reason.CHECKSUM
            )
        return found

    def open(self, digest: Digest, expected: bytes) -> Opened:
        """A verified, open blob. Raises :class:`DamagedBlobError`, or :class:`OSError`.

        Reads instead of mapping, so that a file cut meanwhile is an error and not a signal.
        """
        from xxhash import xxh3_128

        file = Descriptor(self._open(digest))
        running = xxh3_128()
        offset = 0
        while chunk := os.pread(file.fileno(), 1 << 20, offset):
            running.update(chunk)
            offset += len(chunk)
        if offset != digest.size:
            raise DamagedBlobError(f"blob {digest.sha256} changed its size", Reason.TRUNCATED)
        if running.digest() != expected:
            raise DamagedBlobError(
                f"blob {digest.sha256} does not match its checksum", Reason.CHECKSUM
            )
        return Opened(file, of_descriptor(file.fileno()))

    def _open(self, digest: Digest) -> int:
        path = self._paths.blob(digest.sha256)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise DamagedBlobError(f"blob {digest.sha256} is missing", Reason.MISSING) from error
        except NotADirectoryError as error:
            raise DamagedBlobError(
                f"the folder of blob {digest.sha256} is no folder", Reason.NOT_A_FILE
            ) from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise DamagedBlobError(
                    f"blob {digest.sha256} is not a file", Reason.NOT_A_FILE
                ) from error
            raise
        try:
            self._verify_file(fd, digest)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @staticmethod
    def _verify_file(fd: int, digest: Digest) -> None:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise DamagedBlobError(f"blob {digest.sha256} is not a file", Reason.NOT_A_FILE)
        if info.st_size != digest.size:
            raise DamagedBlobError(
                f"blob {digest.sha256} has {info.st_size} bytes, not {digest.size}",
                Reason.TRUNCATED,
            )

    def quarantine(self, sha256: str, reason: Reason) -> None:
        """Take what stands at a blob's name out of the way; keeps the last few for inspection."""
        self._set_aside(self._paths.blob(sha256), f"{sha256}.{reason.label}")

    def _set_aside(self, path: str, name: str) -> None:
        target = os.path.join(self._paths.quarantine, f"{name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.makedirs(self._paths.quarantine, mode=0o700, exist_ok=True)
            os.rename(path, target)
        self.trim_quarantine()

    def trim_quarantine(self) -> None:
        """Keep at most :data:`QUARANTINE_LIMIT` damaged files."""
        try:
            with os.scandir(self._paths.quarantine) as found:
                items = sorted(
                    (item.stat(follow_symlinks=False).st_ctime, item.path) for item in found
                )
        except OSError:
            return
        for _, path in items[:-QUARANTINE_LIMIT]:
            remove_tree(path)

    def remove(self, sha256: str) -> None:
        """Remove a blob; fine if it is gone. Raises :class:`OSError` otherwise."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._paths.blob(sha256))

    def walk(self) -> Iterator[tuple[str, int]]:
        """Every blob on disk as (SHA-256, size); stray files are passed over."""
        for folder in _names(self._paths.blobs):
            for name in _names(os.path.join(self._paths.blobs, folder)):
                if is_sha256(name) and name.startswith(folder):
                    with contextlib.suppress(OSError):
                        info = os.lstat(self._paths.blob(name))
                        if stat.S_ISREG(info.st_mode):
                            yield name, info.st_size

    def tidy(self) -> None:
        """Try once more to remove what could not be removed."""
        for path in tuple(self._left):
            self._left.discard(path)
            self._unlink(path)

    def _unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError:
            self._left.add(path)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def remove_tree(path: str) -> None:
    """Remove a file or a folder with all that it holds, as far as it can be removed."""
    import shutil

    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
