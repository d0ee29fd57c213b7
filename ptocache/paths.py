"""The only file that spells a name on disk or a socket's place.

<root>/CACHEDIR.TAG  VERSION  daemon.lock  start.lock  daemon.log  index.sqlite
<root>/blobs/ab/abcdef…      immutable, mode 0400, named by the SHA-256 of their bytes
<root>/tmp/<name>            unfinished blobs and the private directories of running compiles
<root>/quarantine/<name>     damaged blobs, bounded

<aside>/tmp/<name>           private directories of compiles for which the root has no room
<aside>/daemon.lock …        everything that is written, if the root is read-only; <aside> is
                             /tmp/ptocache-<uid>/<id>, private, <id> as in the socket's name
"""

from __future__ import annotations

import os
import stat

from .errors import BadRequestError, PeerRefusedError
from .hashing import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_PATH_LIMIT = 107
"""Bytes that fit into ``sun_path`` on Linux, without its closing NUL."""

INDEX_PATH_LIMIT = 504
"""Bytes of a path that SQLite opens (its MAX_PATHNAME of 512 on Unix, less room for ``-journal``)."""

_PASSING_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory holds a cache made by ptocache; its content can be made again.
# For information about cache directory tags see https://bford.info/cachedir/
"""


class StorePaths:
    """Every name below a store's root."""

    __slots__ = (
        "blobs",
        "cachedir_tag",
        "index",
        "lock",
        "log",
        "quarantine",
        "root",
        "start_lock",
        "tmp",
        "version",
    )

    def __init__(self, root: str, *, read_only: bool = False) -> None:
        self.root = root
        own = self.aside if read_only else root
        self.blobs = os.path.join(root, "blobs")
        self.tmp = os.path.join(own, "tmp")
        self.quarantine = os.path.join(root, "quarantine")
        self.index = os.path.join(root, "index.sqlite")
        self.lock = os.path.join(own, "daemon.lock")
        self.start_lock = os.path.join(own, "start.lock")
        self.log = os.path.join(own, "daemon.log")
        self.version = os.path.join(root, "VERSION")
        self.cachedir_tag = os.path.join(root, "CACHEDIR.TAG")

    def blob(self, sha256: str) -> str:
        """Where the blob with this SHA-256 (hex) lies."""
        return os.path.join(self.blobs, sha256[:2], sha256)

    def blob_directory(self, sha256: str) -> str:
        """The folder of that blob."""
        return os.path.join(self.blobs, sha256[:2])

    @property
    def read_only(self) -> bool:
        """True if nothing below the root is to be written."""
        return os.path.dirname(self.lock) != self.root

    @property
    def aside(self) -> str:
        """This user's own folder for what cannot lie below the root."""
        place = next((p for p in _PASSING_PLACES if _usable(p)), _PASSING_PLACES[0])
        return f"{os.path.realpath(place)}/ptocache-{os.geteuid()}/{_id(self.root)}"

    @property
    def spare(self) -> str:
        """Where a compile's private directory goes if :attr:`tmp` cannot take it."""
        return os.path.join(self.aside, "tmp")

    def make_aside(self, *folders: str) -> None:
        """Create :attr:`aside` and these folders of it, private to this user.

        Raises :class:`~ptocache.errors.PeerRefusedError` if somebody else's stands there, and
        :class:`OSError` if it cannot be made.
        """
        make_socket_directory(self.aside)
        for directory in (self.aside, *folders):
            os.makedirs(directory, 0o700, exist_ok=True)
            verify_socket_directory(os.path.join(directory, "x"))

    def owns_aside(self) -> bool:
        """True if :attr:`aside` is there and leads nowhere else: before that nothing below it may be
        removed, since anybody can make a link in its place."""
        try:
            verify_socket_directory(self.aside)
            verify_socket_directory(self.spare)
        except OSError:
            return False
        return True

    @property
    def tag_bytes(self) -> bytes:
        """What ``CACHEDIR.TAG`` holds (the Cache Directory Tagging Specification)."""
        return _TAG


def store_at(root: str) -> StorePaths:
    """The names of the store at ``root`` as this process can use it: a warm one that cannot be written
    to (a read-only mount, other permissions) is read, and what must be written lies elsewhere."""
    found = StorePaths(root)
    if os.path.isfile(found.index) and not all(
        os.access(path, os.W_OK) for path in (root, found.index, found.tmp) if os.path.exists(path)
    ):
        return StorePaths(root, read_only=True)
    return found


def _usable(directory: str) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def _id(root: str) -> str:
    return sha256_hex(os.fsencode(os.path.realpath(root)))[:16]


def default_root(env: Mapping[str, str]) -> str:
    """Where the store lies unless something else is said: ``$XDG_CACHE_HOME/ptocache``, else
    ``~/.cache/ptocache``; without a usable home a folder of this user's under ``/var/tmp``."""
    base = env.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return os.path.join(base, "ptocache")
    home = env.get("HOME", "")
    if home.startswith("/") and home.rstrip("/"):
        return os.path.join(home, ".cache", "ptocache")
    return f"/var/tmp/ptocache-{os.geteuid()}"


def config_file(env: Mapping[str, str]) -> str:
    """Where the settings' file lies; the empty string if there is no home to hold one."""
    explicit = env.get("PTOCACHE_CONFIG", "")
    if explicit:
        return explicit
    base = env.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):
        return os.path.join(base, "ptocache", "config.toml")
    home = env.get("HOME", "")
    if home.startswith("/") and home.rstrip("/"):
        return os.path.join(home, ".config", "ptocache", "config.toml")
    return ""


def socket_path(env: Mapping[str, str], root: str) -> str:
    """The socket of the daemon that serves the store at ``root``.

    ``$PTOCACHE_SOCKET``, else ``$XDG_RUNTIME_DIR/ptocache/<id>.sock``, else
    ``/tmp/ptocache-<uid>/<id>.sock``; ``<id>`` names the store, so that two stores never share a
    daemon. A default place that would not fit into a socket address becomes the last of these.

    Raises :class:`~ptocache.errors.BadRequestError` if an explicit path does not fit or is relative.
    """
    explicit = env.get("PTOCACHE_SOCKET", "")
    if explicit:
        if len(os.fsencode(explicit)) > SOCKET_PATH_LIMIT:
            raise BadRequestError(
                f"PTOCACHE_SOCKET is {len(os.fsencode(explicit))} bytes long; "
                f"a socket's path has at most {SOCKET_PATH_LIMIT}",
                hint="choose a shorter path",
                path=explicit,
            )
        if not explicit.startswith("/"):
            # The daemon runs in "/": a relative path would be another place for it.
            raise BadRequestError(
                f"PTOCACHE_SOCKET is {explicit!r}, which is not an absolute path",
                hint="write the whole path",
                path=explicit,
            )
        return explicit
    name = _id(root) + ".sock"
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime):
        path = os.path.join(runtime, "ptocache", name)
        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
            return path
    return f"/tmp/ptocache-{os.geteuid()}/{name}"


def verify_socket_directory(path: str) -> None:
    """Check that the folder of the socket is this user's own, private, and no link.

    Raises :class:`~ptocache.errors.PeerRefusedError` with what is wrong with it, and
    :class:`FileNotFoundError` if it does not exist.
    """
    directory = os.path.dirname(path) or "."
    info = os.lstat(directory)
    wrong = ""
    if stat.S_ISLNK(info.st_mode):
        wrong = "is a symbolic link"
    elif not stat.S_ISDIR(info.st_mode):
        wrong = "is not a directory"
    elif info.st_uid != os.geteuid():
        wrong = f"belongs to user {info.st_uid}, not to {os.geteuid()}"
    elif stat.S_IMODE(info.st_mode) & 0o077:
        wrong = f"is open to others (mode {stat.S_IMODE(info.st_mode):04o}, wanted 0700)"
    if wrong:
        raise PeerRefusedError(
            f"the socket's directory {directory} {wrong}",
            hint="remove it, or set PTOCACHE_SOCKET to a path in a private directory",
            path=directory,
        )


def make_socket_directory(path: str) -> None:
    """Create the folder of the socket with mode 0700 and check it."""
    directory = os.path.dirname(path) or "."
    try:
        os.makedirs(os.path.dirname(directory) or ".", exist_ok=True)
        os.mkdir(directory, 0o700)
        os.chmod(directory, 0o700)
    except FileExistsError:
        pass
    verify_socket_directory(path)
