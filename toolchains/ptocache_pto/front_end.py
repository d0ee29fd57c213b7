"""Runs a kernel's Python source and writes the PTO text of its kernels. A program, not a module.

    python front_end.py SOURCE OUT LOOKED [KERNEL…]

SOURCE is run as a program. With kernel names, each is looked up among its global names: what has that
name, or what it returns when called, gives the PTO text as its ``str``. Without, the program prints the
text itself. LOOKED receives what the run looked at, as JSON:

    opened      absolute paths of files that were read, modules included
    absent      absolute paths at which a file would have been read, or a module found, and was not
    listed      directories whose names were asked for, other than by the search for modules
    unseen      why the result depends on more than files; empty if it does not

It is not written if the source fails, since then a module may have been missing in ways that only the
failure shows. Only the standard library, and nothing of ptocache: the interpreter is the caller's.
"""

from __future__ import annotations

import os  # loaded at the start of every Python, so found where it should be
import sys

# The folder of this file is no place for the kernel's imports, and neither is the current one, in which
# a file may be called like the front end's package. Before any other import.
_HERE = __file__.rpartition("/")[0]
sys.path[:] = [item for item in sys.path if item not in ("", ".", os.getcwd(), _HERE)]

import io  # noqa: E402
import json  # noqa: E402
import stat  # noqa: E402
import traceback  # noqa: E402
from importlib.machinery import all_suffixes  # noqa: E402
from types import ModuleType  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_UNSEEN = {
    "subprocess.Popen": "starts a program",
    "os.system": "starts a program",
    "os.exec": "starts a program",
    "os.spawn": "starts a program",
    "os.posix_spawn": "starts a program",
    "pty.spawn": "starts a program",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "socket.connect": "opens a connection",
    "socket.getaddrinfo": "asks the network",
    "socket.gethostbyname": "asks the network",
    "socket.gethostname": "asks for the machine's name",
    "urllib.Request": "asks the network",
    "sqlite3.connect": "opens a database",
}


class _Watch:
    """Notes what a program looks at: an audit hook, and a finder of modules that finds none."""

    def __init__(self) -> None:
        self.active = True
        self.read: dict[str, None] = {}
        self.wanted: dict[str, Sequence[str] | None] = {}
        """Module → its package's search path; ``None`` for ``sys.path``."""
        self.listed: dict[str, None] = {}
        self.unseen = ""

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """See :func:`sys.addaudithook`."""
        if not self.active:
            return
        if event == "open":
            if not _only_writes(args[1], args[2]):
                self._note(self.read, args[0])
        elif event in ("os.listdir", "os.scandir"):
            self._note(self.listed, "." if args[0] is None else args[0])
        elif event == "ctypes.dlopen":
            # A library of the system, by its bare name, is as much a part of it as the loader.
            if isinstance(args[0], str) and "/" in args[0]:
                self._note(self.read, args[0])
        elif event in _UNSEEN:
            self.unseen = self.unseen or f"the front end {_UNSEEN[event]} ({event})"

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Of the protocol of ``sys.meta_path``: asked before anybody else, and finds nothing."""
        if self.active:
            self.wanted.setdefault(name, path)

    @staticmethod
    def _note(into: dict[str, None], path: object) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            into[os.path.join(os.getcwd(), os.fsdecode(path))] = None


def main(argv: list[str]) -> None:
    """See the top of this file."""
    source, out, looked, *kernels = argv
    work, driver = os.getcwd(), sys.modules["__main__"]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    watch = _Watch()
    # A class knows its module by name: looking there must not lead here.
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__["__file__"] = source
    sys.argv = [source]
    sys.addaudithook(watch.hook)
    sys.meta_path.insert(0, watch)
    try:
        result = _texts(text, source, module, kernels)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is driver.__dict__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)
    watch.active = False
    os.chdir(work)
    if not result.strip():
        sys.exit(f"{source}: printed no PTO text, and no kernel was named (--kernel=NAME)")
    with open(out, "w", encoding="utf-8") as file:
        file.write(result if result.endswith("\n") else result + "\n")
    with open(looked, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(_report(watch, work), file)


def _texts(text: str, source: str, module: ModuleType, kernels: list[str]) -> str:
    """The PTO text of a program's kernels."""
    printed = io.StringIO()
    stdout, sys.stdout = sys.stdout, (sys.stdout if kernels else printed)
    names = module.__dict__
    try:
        exec(compile(text, source, "exec", dont_inherit=True), names)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    finally:
        sys.stdout = stdout
    if not kernels:
        return printed.getvalue()
    texts: list[str] = []
    for kernel in kernels:
        if kernel not in names:
            sys.exit(f"{source}: no kernel is called {kernel!r}")
        value = names[kernel]
        found = str(value)
        # The text of a function that builds a kernel is its Python representation.
        texts.append(str(value()) if callable(value) and found.startswith("<") else found)
    return "\n".join(texts)


def _report(watch: _Watch, work: str) -> dict[str, Any]:
    # What lies here was given, or made by the program itself.
    private = tuple(
        os.path.join(os.path.realpath(item), "") for item in (work, os.environ.get("TMPDIR", work))
    )
    read = dict(watch.read)
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            read[os.path.join(work, path)] = None
    opened: dict[str, None] = {}
    absent: dict[str, None] = {}
    unseen = watch.unseen
    for path in [*read, *_earlier_places(watch)]:
        if os.path.realpath(path).startswith(private) or _is_byte_code(path):
            continue
        try:
            mode = os.stat(path).st_mode
        except OSError:
            absent[path] = None
            continue
        if stat.S_ISREG(mode):
            opened[path] = None
        elif not stat.S_ISDIR(mode):
            unseen = unseen or f"the front end reads {path}"
    own = {os.path.realpath(item) for item in _search_directories()}
    listed = sorted(
        path
        for path in map(os.path.realpath, watch.listed)
        if path not in own and not os.path.join(path, "").startswith(private)
    )
    return {
        "opened": sorted(opened),
        "absent": sorted(absent),
        "listed": listed,
        "unseen": unseen,
    }


def _search_directories() -> Iterator[str]:
    yield from sys.path
    for module in list(sys.modules.values()):
        for item in getattr(module, "__path__", ()):
            yield str(item)


def _earlier_places(watch: _Watch) -> Iterator[str]:
    """Where modules would have been found before they were, or at all."""
    for name, path in watch.wanted.items():
        module = sys.modules.get(name)
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if origin in ("built-in", "frozen"):
            continue
        file = getattr(module, "__file__", None) or origin or ""
        home, tail = os.path.dirname(file), name.rpartition(".")[2]
        if os.path.basename(file).startswith("__init__."):
            home = os.path.dirname(home)
        for directory in sys.path if path is None else list(path):
            if file and directory == home:
                break
            # A folder that is not there may come; in an archive nothing can be looked for.
            if not (os.path.isfile(directory) or directory.endswith(".zip")):
                for end in all_suffixes():
                    yield os.path.join(directory, tail + end)
                    yield os.path.join(directory, tail, "__init__" + end)


def _is_byte_code(path: str) -> bool:
    prefix = sys.pycache_prefix
    return "__pycache__" in path or bool(prefix and path.startswith(prefix + os.sep))


def _only_writes(mode: str | None, flags: int) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax") and "+" not in mode
    return bool(flags & os.O_WRONLY)


main(sys.argv[1:])
