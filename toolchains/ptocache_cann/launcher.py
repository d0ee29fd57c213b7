"""What stands where a tool should: a program, or a script, and where that script leads.

Followed are: scripts in a tree that belongs to the tool as a whole, to the interpreters that they start;
and the launchers that pip writes, to the package that they start and the interpreter that they name. Any
other script may lead anywhere, and is not identified.

A script that is followed is run once, with ``--version``, while the dynamic loader (glibc) tells of each
program that it starts and each library that these load: one that leads out of its tree, to anything but
Python and the system's own utilities, is not identified either.
"""

from __future__ import annotations

import glob
import json
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import ToolNotFoundError
from ptocache.model import ToolFile, Tree
from ptocache.toolchain import COMPILE_PATH
from ptocache_cfamily.programs import is_shim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ptocache.toolchain import Probe

_HEAD_BYTES = 1 << 14
# The two first lines that pip writes: a plain one, and one for paths with blanks or too long for the
# kernel; and the import of the function that the launcher calls.
_EXEC_LINE = re.compile(r"^'''exec' \"?([^\"\n]+?)\"? \"\$0\"")
_ENTRY = re.compile(r"^from ([A-Za-z_][\w.]*) import \w+(?: as \w+)?$", re.MULTILINE)
_CALL = re.compile(r"^\s+(?:raise SystemExit|sys\.exit)\(\w[\w.]*\(\)\)$", re.MULTILINE)
# Nothing else may stand in one: what a hand has changed may lead anywhere.
_LINES = re.compile(
    r"""\s*(?:\#.*|'''exec'.*|'\x20'''|import\x20(?:re|sys)|if\x20__name__\x20==\x20['"]__main__['"]:
    |(?:el)?if\x20sys\.argv\[0\]\.endswith\(['"][\w.-]+['"]\):
    |sys\.argv\[0\]\x20=\x20(?:re\.sub\([^;]*\)|sys\.argv\[0\][^;()]*|sys\.argv\[0\]\.removesuffix\([^;()]*\))
    )?\s*""",
    re.VERBOSE,
)
_PYTHON_NAME = re.compile(r"^(?:python|pypy)[\d.]*$")
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
# One line a program, in the words of the loader.
_STARTED = re.compile(r"^\s*\d+:\s+initialize program: (\S+)$", re.MULTILINE)
_LOADED = re.compile(r"^\s*\d+:\s+calling init: (/\S+)$", re.MULTILINE)
_LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc"})

# Run by the interpreter in question: where its own library and the package with all that it requires
# lie, without importing any of it.
_ASK = """
import importlib.machinery, importlib.metadata, importlib.util, json, os, re, sys, sysconfig
def place(name):
    spec = importlib.util.find_spec(name)
    if spec is None: return []
    if spec.submodule_search_locations: return list(spec.submodule_search_locations)
    return [spec.origin] if spec.origin else []
def named(dist):
    text = dist.read_text("top_level.txt") or ""
    names = {line.strip() for line in text.splitlines() if line.strip()}
    for file in dist.files or []:
        head = str(file).split("/")[0]
        if head.endswith(".libs"): names.add(head)
        elif not head.endswith((".dist-info", ".pth", "..")): names.add(head.split(".")[0])
    return names
tops, dists, found = list(sys.argv[1:]), {}, {}
try:
    owners = importlib.metadata.packages_distributions()
except AttributeError:
    owners = {}
    for dist in importlib.metadata.distributions():
        for name in named(dist): owners.setdefault(name, []).append(dist.metadata["Name"])
while tops:
    name = tops.pop()
    if name in found: continue
    found[name] = []
    if name.endswith(".libs"):
        found[name] = [p for p in (os.path.join(d, name) for d in sys.path) if os.path.isdir(p)]
        continue
    try: found[name] = place(name)
    except (ImportError, ValueError, AttributeError): pass
    for owner in owners.get(name, []):
        if owner in dists: continue
        try: dist = importlib.metadata.distribution(owner)
        except importlib.metadata.PackageNotFoundError: continue
        dists[owner] = dist.version
        tops += [item for item in named(dist)]
        for text in dist.requires or []:
            if "extra ==" in text: continue
            wanted = re.match(r"[A-Za-z0-9._-]+", text)
            try: tops += [item for item in named(importlib.metadata.distribution(wanted.group(0)))]
            except importlib.metadata.PackageNotFoundError: pass
print(json.dumps({
    "executable": sys.executable, "version": sys.version.split()[0],
    "search": [item for item in sys.path if os.path.isabs(item)],
    "library": [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")],
    "customized": place("sitecustomize"),
    "places": {name: paths for name, paths in found.items() if paths}, "versions": dists,
}))
"""
_NOT_LIBRARY = ("site-packages", "dist-packages", "test", "idlelib", "turtledemo")


class Lead(NamedTuple):
    """Where a tool leads besides its own file."""

    followed: bool
    """False if it may lead anywhere."""
    files: tuple[ToolFile, ...] = ()
    trees: tuple[Tree, ...] = ()
    libraries: tuple[str, ...] = ()
    """What the programs that it starts load, wherever it lies."""
    directories: tuple[str, ...] = ()
    """What comes and goes there may change where it leads."""


class Python(NamedTuple):
    """An interpreter, its own library, and packages with all that they require."""

    executable: str
    version: str
    search: tuple[str, ...]
    """Where it looks for modules, in order."""
    libraries: tuple[str, ...]
    packages: tuple[str, ...]
    """Directories and module files."""
    versions: tuple[tuple[str, str], ...]
    """(distribution, version), sorted."""
    customized: tuple[str, ...] = ()
    """Module files that it imports at each start (``sitecustomize``)."""


def is_cache(path: str) -> bool:
    """True for another cache that stands in a compiler's place under its name."""
    return os.path.basename(os.path.realpath(path)) in _LAUNCHERS or is_shim(path)


def is_script(path: str) -> bool:
    """True if the system would start it through another program."""
    return _head(path).startswith("#!")


def follow(path: str, home: str, probe: Probe, env: Mapping[str, str] = {}) -> Lead:
    """Where the tool at ``path`` leads. ``home``: the tree that belongs to it as a whole; empty if
    there is none. ``env``: what the tool is started with."""
    try:
        return _followed(path, home, probe, env)
    except ToolNotFoundError:
        return Lead(False)


def _followed(path: str, home: str, probe: Probe, env: Mapping[str, str]) -> Lead:
    text = _head(path)
    if not text.startswith("#!"):
        return Lead(True)
    interpreter = _interpreter(text)
    if home and _inside(path, home):
        return _follow_in_tree(path, interpreter, home, probe, env)
    entry = _pip_entry(text)
    if not (entry and interpreter and _is_python(interpreter)):
        return Lead(False)
    python = ask(interpreter, (entry,), probe)
    if not python.packages:
        return Lead(False)
    started = _started(path, probe, env)
    homes = (*python.packages, *_homes(interpreter), *_homes(python.executable))
    others = [item for item in started.programs if not _is_one_of(item, homes)]
    if any(_is_python(program) or not _is_utility(program) for program in others):
        return Lead(False)
    files, trees = parts_of(python)
    files = tuple(_numbered([*files, *site_files(python), *map(_utility, others)]))
    return Lead(True, files, trees, started.libraries, site_directories(python))


def ask(interpreter: str, names: tuple[str, ...], probe: Probe, path: str = "") -> Python:
    """What an interpreter is, and where the packages called ``names`` lie. ``path``: PYTHONPATH.

    Raises :class:`~ptocache.errors.ToolNotFoundError` with the reason if it does not say.
    """
    env = {"PYTHONPATH": path} if path else {}
    said = ""
    try:
        answer = probe((interpreter, *(() if path else ("-I",)), "-c", _ASK, *names), env)
        said = answer.stderr.strip().rpartition("\n")[2]
        found = json.loads(answer.stdout)
        places = {item for paths in found["places"].values() for item in paths}
        return Python(
            executable=str(found["executable"]),
            version=str(found["version"]),
            search=tuple(map(str, found["search"])),
            libraries=tuple(dict.fromkeys(found["library"])),
            packages=tuple(sorted(item for item in places if os.path.exists(item))),
            versions=tuple(sorted(found["versions"].items())),
            customized=tuple(found["customized"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolNotFoundError(
            f"{interpreter} does not work as a Python: {said or error}",
            path=interpreter,
            looked=[interpreter],
        ) from error


def parts_of(python: Python) -> tuple[tuple[ToolFile, ...], tuple[Tree, ...]]:
    """The files and trees that make an interpreter and its packages."""
    files = [ToolFile("python", python.executable, True)]
    trees = [
        Tree(f"tree:python library {number}", path, _NOT_LIBRARY)
        for number, path in enumerate(python.libraries)
        if os.path.isdir(path)
    ]
    for path in python.packages:
        name = os.path.basename(path)
        if os.path.isdir(path):
            trees.append(Tree(f"tree:package {name}", path))
        else:
            files.append(ToolFile(f"module {name}", path, False))
    files += (ToolFile("sitecustomize", path, False) for path in python.customized)
    return tuple(files), tuple(trees)


def site_files(python: Python) -> tuple[ToolFile, ...]:
    """The files that decide where an interpreter looks for modules."""
    home = os.path.dirname(os.path.dirname(python.executable))
    names = [os.path.join(home, "pyvenv.cfg")]
    for directory in site_directories(python):
        names += sorted(glob.glob(os.path.join(glob.escape(directory), "*.pth")))
    return tuple(
        ToolFile(f"site {os.path.basename(path)}", path, False)
        for path in names
        if os.path.isfile(path)
    )


def site_directories(python: Python) -> tuple[str, ...]:
    """Where packages are installed for an interpreter."""
    return tuple(item for item in python.search if item.rstrip("/").endswith("-packages"))


def _pip_entry(text: str) -> str:
    """The package that a launcher of pip's form starts; empty if it has another form."""
    entry, call = _ENTRY.search(text), _CALL.search(text)
    if not (entry and call):
        return ""
    other = (line for line in text.splitlines() if not _LINES.fullmatch(line))
    if any(line not in (entry.group(0), call.group(0).strip("\n")) for line in other):
        return ""
    return entry.group(1).split(".")[0]


def _follow_in_tree(
    path: str, interpreter: str, home: str, probe: Probe, env: Mapping[str, str]
) -> Lead:
    if not interpreter or not os.path.isfile(interpreter):
        return Lead(False)
    started = _started(path, probe, env)
    files: dict[str, ToolFile] = {}
    trees: dict[str, Tree] = {}
    for program in dict.fromkeys((interpreter, *started.programs)):
        if _is_python(program):
            more_files, more_trees = parts_of(ask(program, (), probe))
            for tree in more_trees:
                trees.setdefault(tree.path, tree._replace(role=f"tree:python library {len(trees)}"))
        elif _inside(program, home):
            continue
        elif _is_utility(program):
            more_files = (_utility(program),)
        else:
            return Lead(False)
        files.update((file.path, file) for file in more_files if file.path not in files)
    kept = [file for file in files.values() if not _inside(file.path, home) or file.principal]
    apart = [tree for tree in trees.values() if not _inside(tree.path, home)]
    return Lead(True, tuple(_numbered(kept)), tuple(apart), started.libraries)


def _numbered(files: list[ToolFile]) -> Iterator[ToolFile]:
    """Each with a role of its own."""
    met: dict[str, int] = {}
    for file in files:
        met[file.role] = met.get(file.role, 0) + 1
        count = met[file.role]
        yield file if count == 1 else file._replace(role=f"{file.role} {count}")


class _Started(NamedTuple):
    programs: tuple[str, ...]
    libraries: tuple[str, ...]


def _started(path: str, probe: Probe, env: Mapping[str, str]) -> _Started:
    """What runs, and is loaded, when a launcher is asked for its version; nothing if the loader does
    not tell (programs without one are out of its sight)."""
    try:
        text = probe((path, "--version"), {**env, "LD_DEBUG": "files"}).stderr
    except (OSError, TimeoutError):
        return _Started((), ())
    programs = (_on_compile_path(name) for name in _STARTED.findall(text))
    return _Started(
        tuple(dict.fromkeys(name for name in programs if name)),
        tuple(dict.fromkeys(_LOADED.findall(text))),
    )


def _on_compile_path(name: str) -> str:
    """A program as the tool finds it: on the constant path of every compile."""
    if "/" in name:
        return name
    for folder in COMPILE_PATH.split(os.pathsep):
        place = os.path.join(folder, name)
        if os.access(place, os.X_OK):
            return place
    return ""


def _homes(interpreter: str) -> tuple[str, str]:
    return interpreter, os.path.realpath(interpreter)


def _is_one_of(program: str, places: Iterable[str]) -> bool:
    return any(program == place or _inside(program, place) for place in places)


def _is_utility(program: str) -> bool:
    return os.path.dirname(program) in _SYSTEM_FOLDERS


def _utility(program: str) -> ToolFile:
    return ToolFile(f"utility {os.path.basename(program)}", program, False)


def _interpreter(text: str) -> str:
    """Absolute path of the interpreter that a script's head names; empty if it cannot be told."""
    lines = text.splitlines()
    words = lines[0][2:].split()
    if not words:
        return ""
    if len(lines) > 1 and os.path.basename(words[0]) == "sh":
        handed_on = _EXEC_LINE.match(lines[1])
        if handed_on:
            return handed_on.group(1)
    if os.path.basename(words[0]) != "env":
        return words[0] if os.path.isabs(words[0]) else ""
    names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _on_compile_path(names[0]) if names else ""


def _is_python(path: str) -> bool:
    return bool(_PYTHON_NAME.match(os.path.basename(path)))


def _inside(path: str, home: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(home).rstrip("/") + "/")


def _head(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
