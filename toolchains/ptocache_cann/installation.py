"""Which CANN installation is meant, where its tools are, and everything that makes it what it is.

Tools are looked for in this order; a place that holds nothing is remembered, since a tool that comes
there later would be found first:

    bisheng, ld.lld     $BISHENG_HOME, $ASCEND_HOME_PATH, $ASCEND_TOOLKIT_HOME (each in the folders of
                        ``_FOLDERS``), ld.lld then beside bisheng, PATH
    ptoas               $PTOAS_ROOT alone, if it is set; else PATH, then the installation

A relative path in a variable is no place: nobody knows relative to what.

Each root that is found belongs to the identity as a whole tree, with what its links lead to. What is
kept of a tool besides: its own file under the name by which it is invoked, the version files, and the
libraries that it loads from elsewhere.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.errors import ToolNotFoundError
from ptocache.manifest import covering, holds
from ptocache.model import Installation, ToolFile, Tree
from ptocache_cfamily.programs import is_program, loaded_libraries, on_path

from . import launcher, version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ptocache.toolchain import Probe

ROOT_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
SEARCH = (*ROOT_VARIABLES, "BISHENG_HOME", "PTOAS_ROOT", "PATH")
"""The variables on which finding an installation depends."""
BISHENG = "bisheng"
LINKER = "ld.lld"
PTOAS = "ptoas"
COMPILERS = (BISHENG, "bisheng++", "ccec")
"""The names under which the compiler is met."""
CANN_TREE = "tree:cann"

# Folders of a root in which tools are met, in the layouts of the wild.
_FOLDERS = (
    "bin",
    "",
    "compiler/ccec_compiler/bin",
    "ccec_compiler/bin",
    "tools/bisheng_compiler/bin",
    "compiler/bin",
    "{arch}-linux/ccec_compiler/bin",
    "{arch}-linux/bin",
)
# Neither compiled against nor linked: operator packages are data of the runtime, and the rest is written
# to while the device works.
_NOT_COMPILER = ("opp", "var", "log", "logs")
# Touched whenever the system's loader is told of other libraries.
_LOADER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.preload")
_CANNOT_START = 127
_SYSTEM_PREFIXES = frozenset({"/", "/usr", "/usr/local", "/opt", "/home", "/root", "/tmp", "/var"})
_LIBRARY_FOLDERS = ("lib64", "lib", "{arch}-linux/lib64")
# For launchers that are, or start, Python: byte code may be older than the source that is identified, and
# the order of sets must not differ from run to run.
_PYTHON_ENV = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/nonexistent",
    "PYTHONHASHSEED": "0",
}
# Of a launcher that pip wrote; what lies beside it must not stand in for a module. One in a release may
# count on what lies beside it.
_PIP_ENV = {"PYTHONSAFEPATH": "1"}
_KIND = {True: "directory", False: "absolute path"}
# Of the family that a compiler driver starts from its own folder.
_FAMILY = re.compile(r"^(?:bisheng|ccec|cce|clang|lld|ld\.|llvm-|llc$|opt$)")
_SEARCH_TITLE = "#include <...> search starts here:"


class Tool(NamedTuple):
    """A tool on disk and the tree that belongs to it."""

    path: str
    home: str
    """Absolute path of the tree; empty if there is none."""


def locate(env: Mapping[str, str], probe: Probe, wanted: tuple[str, ...]) -> Installation:
    """The installation, with the tools ``wanted`` out of :data:`COMPILERS`, :data:`LINKER` and
    :data:`PTOAS`.

    Raises :class:`~ptocache.errors.ToolNotFoundError` with every place that was looked at.
    """
    search = _Search(env, probe)
    for name in wanted:
        search.find(name)
    return search.result()


def invoked(installation: Installation, role: str) -> str:
    """The path by which a tool is started: its own name in its canonical folder, so that no spelling of
    a link on the way reaches the tool."""
    path = installation.path(role)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def tool_environment(installation: Installation) -> tuple[tuple[str, str], ...]:
    """The variables that the tools of an installation are given."""
    return tuple(sorted((str(k), str(v)) for k, v in installation.local["env"].items()))


class _Search:
    def __init__(self, env: Mapping[str, str], probe: Probe) -> None:
        self._env = env
        self._probe = probe
        self._looked: list[str] = []
        self._absent: list[str] = []
        self._stamped: list[str] = list(_LOADER_FILES)
        self._files: dict[str, ToolFile] = {}
        self._trees: dict[str, Tree] = {}
        self._banner: list[str] = []
        self._facts: dict[str, Any] = {}
        self._local: dict[str, Any] = {"env": {}}
        self._trouble = ""
        named = [env[name] for name in ROOT_VARIABLES if os.path.isabs(env.get(name, ""))]
        self._roots = [root for root in dict.fromkeys(named) if os.path.isdir(root)]
        self._absent += (root for root in named if not os.path.lexists(root))
        self._libraries: list[str] = []
        self._silent = False

    def find(self, name: str) -> None:
        """Find one tool with all that belongs to it."""
        tool = self._find_ptoas() if name == PTOAS else self._find_in_cann(name)
        if _is_everything(tool.home):
            tool = tool._replace(home="")
        # What only ptoas compiles does not depend on CANN, unless it is CANN's own.
        if self._roots and (name != PTOAS or tool.home in self._roots):
            self._add_root(self._roots[0])
        script = launcher.is_script(tool.path)
        # A ptoas outside of a release opens nothing but its input and its libraries.
        self._add_home(name, tool.home or ("" if script or name == PTOAS else _own_home(tool.path)))
        if script:
            self._local["env"].update(_PYTHON_ENV if tool.home else {**_PYTHON_ENV, **_PIP_ENV})
        lead = launcher.follow(tool.path, tool.home, self._probe, self._local["env"])
        self._files[name] = ToolFile(name, tool.path, True, followed=script and lead.followed)
        for file in lead.files:
            self._add_file(file._replace(role=f"{name} {file.role}"))
        for tree in lead.trees:
            role = tree.role.replace("tree:", f"tree:{name} ", 1)
            self._trees[role] = tree._replace(role=role)
        self._libraries += lead.libraries
        self._stamped += lead.directories
        # What does not answer to --version may well compile.
        answer = self._ask((invoked_of(tool.path), "--version"))
        self._banner.append(f"{name} {_version_of(name, answer)}")
        if name != PTOAS:
            self._add_config_files(name, tool.path)
            self._add_family(tool.path)
        if name in COMPILERS:
            self._describe_compiler(tool.path)

    def result(self) -> Installation:
        covered = covering(tuple(self._trees.values()))
        for tool in [file for file in self._files.values() if file.principal]:
            self._libraries += loaded_libraries(tool.path, self._probe, self._local["env"])
        for path in dict.fromkeys(self._libraries):
            if not covered(path) and os.path.isfile(path):
                self._add_file(ToolFile(f"lib:{os.path.basename(path)}", path, False))
        self._local["roots"] = {
            role: os.path.realpath(tree.path) for role, tree in self._trees.items()
        }
        return Installation(
            banner="; ".join(self._banner),
            files=tuple(self._files.values()),
            absent=tuple(dict.fromkeys(self._absent)),
            trees=tuple(self._trees.values()),
            directories=tuple(dict.fromkeys(self._stamped)),
            facts=self._facts,
            local=self._local,
            uncertain=self._trouble,
        )

    def _add_file(self, file: ToolFile) -> None:
        """Under a role of its own: two tools may load two libraries of one name."""
        role, number = file.role, 1
        while self._files.get(role, file).path != file.path:
            number += 1
            role = f"{file.role} {number}"
        self._files[role] = file._replace(role=role)

    # --- the installation as a whole

    def _add_root(self, root: str) -> None:
        if CANN_TREE in self._trees:
            return
        real = os.path.realpath(root)
        if not _is_everything(root):
            self._trees[CANN_TREE] = Tree(CANN_TREE, root, _NOT_COMPILER)
        self._local["env"].update(dict.fromkeys(ROOT_VARIABLES, real))
        self._add_library_path(real)
        for role, path in version.places(root):
            if not os.path.lexists(path):
                self._absent.append(path)
                continue
            found = version.read(path)
            if found.trouble:
                self._doubt(found.trouble)
            elif not any(part.startswith("CANN ") for part in self._banner):
                self._banner.append(f"CANN {found.version}")
            if os.path.exists(path):
                self._files[role] = ToolFile(role, path, True)
            else:
                self._absent.append(path)

    def _doubt(self, why: str) -> None:
        self._trouble = self._trouble or why

    def _add_home(self, name: str, home: str) -> None:
        """The tree of a tool, unless it lies in one that is known."""
        role = f"tree:{name}"
        real = os.path.realpath(home) if home else ""
        if real and not covering(tuple(self._trees.values()))(real):
            self._trees.setdefault(role, Tree(role, home, _NOT_COMPILER))
            self._add_library_path(real)
        if name == PTOAS and real and self._env.get("PTOAS_ROOT"):
            self._local["env"]["PTOAS_ROOT"] = real
        if name == BISHENG and real and self._env.get("BISHENG_HOME"):
            self._local["env"]["BISHENG_HOME"] = real

    def _add_library_path(self, root: str) -> None:
        """Tools find their libraries as they do behind the vendor's set_env.sh."""
        env = self._local["env"]
        own = [os.path.join(root, _with_arch(folder)) for folder in _LIBRARY_FOLDERS]
        known = [item for item in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if item]
        places = [*known, *(path for path in own if os.path.isdir(path))]
        if places:
            env["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys(places))

    # --- tools

    def _find_in_cann(self, name: str) -> Tool:
        for home in (self._env.get("BISHENG_HOME", ""), *self._roots):
            if not os.path.isabs(home):
                continue
            for folder in _FOLDERS:
                place = os.path.join(home, _with_arch(folder), name)
                if self._is_tool(place):
                    return Tool(place, home)
        if name == LINKER and BISHENG in self._files:
            beside = os.path.join(os.path.dirname(invoked_of(self._files[BISHENG].path)), name)
            if self._is_tool(beside):
                return Tool(beside, "")
        for place in on_path(name, self._env.get("PATH", "")):
            if self._is_tool(place):
                return Tool(place, "")
        raise self._not_found(
            name, "install CANN and source its set_env.sh, or set BISHENG_HOME or ASCEND_HOME_PATH"
        )

    def _find_ptoas(self) -> Tool:
        root = self._env.get("PTOAS_ROOT", "")
        if root and not os.path.isabs(root):
            raise self._not_found(PTOAS, "PTOAS_ROOT must be an absolute path")
        if root:
            # By era of the release: ptoas.sh brings its own Python, bin/ptoas stands beside a package
            # directory called ptoas, and before that ptoas itself is the tool.
            for name in ("ptoas.sh", "bin/ptoas", "ptoas"):
                place = os.path.join(root, name)
                if self._is_tool(place):
                    return Tool(place, root)
            raise self._not_found(PTOAS, "PTOAS_ROOT must name an unpacked release of ptoas")
        places = [
            *on_path(PTOAS, self._env.get("PATH", "")),
            *(os.path.join(home, "bin", PTOAS) for home in self._roots),
        ]
        for place in places:
            if self._is_tool(place):
                inside = any(place.startswith(home.rstrip("/") + "/") for home in self._roots)
                return Tool(place, self._roots[0] if inside else "")
        raise self._not_found(PTOAS, "set PTOAS_ROOT, or put ptoas on PATH")

    def _is_tool(self, place: str) -> bool:
        self._looked.append(place)
        if is_program(place) and not launcher.is_cache(place):
            return True
        if os.path.exists(place):
            self._stamped.append(place)
        else:
            self._absent.append(place)
        return False

    def _not_found(self, name: str, hint: str) -> ToolNotFoundError:
        named = [
            f"{variable}={self._env[variable]} is no {_KIND[os.path.isabs(self._env[variable])]}"
            for variable in (*ROOT_VARIABLES, "BISHENG_HOME", "PTOAS_ROOT")
            if self._env.get(variable) and not _is_folder(self._env[variable])
        ]
        places = [place for place in self._looked if os.path.basename(place).startswith(name)]
        looked = ", ".join(places) or "nothing: no variable is set and PATH is empty"
        return ToolNotFoundError(
            f"{name} was not found" + "".join(f"; {item}" for item in named),
            hint=f"{hint}; looked at: {looked}",
            looked=places,
        )

    # --- asking

    def _ask(self, argv: tuple[str, ...]) -> str:
        """What a tool prints, on whichever stream; empty if it cannot be asked."""
        if self._silent:
            return ""
        try:
            answer = self._probe(argv, self._local["env"])
        except OSError as error:
            # Only people miss it: the first request need not wait for the others as well.
            self._silent = isinstance(error, TimeoutError)
            return ""
        if answer.exit_code == _CANNOT_START:
            # Perhaps it can tomorrow, and nothing that is looked at will have changed.
            self._doubt(f"{argv[0]} cannot start: {answer.stderr.strip()}")
            return ""
        return answer.stdout.strip() or answer.stderr.strip()

    def _add_config_files(self, name: str, path: str) -> None:
        """Options that a clang takes from files beside it, called after its name."""
        folder = os.path.dirname(os.path.realpath(path))
        for stem in dict.fromkeys((name, os.path.basename(os.path.realpath(path)), "clang")):
            place = os.path.join(folder, f"{stem}.cfg")
            if os.path.isfile(place):
                self._files[f"config {stem}.cfg"] = ToolFile(f"config {stem}.cfg", place, True)
            else:
                self._absent.append(place)

    def _add_family(self, path: str) -> None:
        """Programs that one may start from its own folder, where that is no part of a tree."""
        folder = os.path.dirname(os.path.realpath(path))
        if covering(tuple(self._trees.values()))(os.path.join(folder, "x")):
            return
        self._stamped.append(folder)
        for name in sorted(version.listed(folder)):
            place = os.path.join(folder, name)
            if _FAMILY.match(name) and is_program(place) and place != path:
                self._add_file(ToolFile(f"beside {name}", place, False))

    def _describe_compiler(self, path: str) -> None:
        """Where it looks for headers, and whether its linker lists what it opens."""
        asked = (invoked_of(path), "-x", "c++", "-E", "-v", "/dev/null")
        try:
            text = self._probe(asked, self._local["env"]).stderr
            options = self._probe((invoked_of(path), "-Wl,--help"), self._local["env"]).stdout
        except (OSError, TimeoutError) as error:
            self._doubt(f"{path} does not say where it looks for headers: {error}")
            text = options = ""
        if _SEARCH_TITLE not in text:
            self._doubt(f"{path} does not say where it looks for headers")
        _, _, tail = text.partition(_SEARCH_TITLE)
        lines = tail.partition("End of search list.")[0].splitlines()
        directories = [os.path.normpath(line.strip()) for line in lines if line.strip()]
        self._local["include_dirs"] = directories
        missing = re.findall(r'^ignoring nonexistent directory "(/.*)"$', text, re.MULTILINE)
        self._absent += missing
        covered = covering(tuple(self._trees.values()))
        # By their place in the tree, so that the same tree elsewhere is the same toolchain.
        self._facts["include_dirs"] = [
            os.path.relpath(os.path.realpath(item), os.path.realpath(path))
            if covered(item)
            else item
            for item in directories
        ]
        self._facts["linker_lists"] = "--dependency-file" in options


def invoked_of(path: str) -> str:
    """``path`` with its folder in canonical form."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _own_home(path: str) -> str:
    """The tree that a program brings: what its ``bin`` lies in, unless that is the whole system."""
    real = os.path.dirname(os.path.realpath(path))
    if os.path.basename(real) != "bin":
        return ""
    home = os.path.dirname(real)
    if not _is_everything(home) and not _holds_python(home):
        return home
    resources = os.path.join(home, "lib", "clang")
    return resources if os.path.isdir(resources) else ""


def _is_everything(home: str) -> bool:
    """True for a place that holds much besides a toolchain: the system, a home."""
    if not home:
        return False
    real = os.path.realpath(home)
    return (
        real in _SYSTEM_PREFIXES
        or os.path.dirname(real) == "/home"
        or real == os.path.realpath(os.path.expanduser("~"))
    )


def _holds_python(home: str) -> bool:
    """True for an environment of Python, ``~/.local`` included. Only where nobody names it as a root:
    a release may bring its own Python."""
    return any(name.startswith("python") for name in version.listed(os.path.join(home, "lib")))


def _version_of(name: str, answer: str) -> str:
    """The version in the first line of what a tool prints; the whole line where it has another form."""
    line = answer.splitlines()[0].strip() if answer else "of unknown version"
    # A build stamp before the words is no version.
    line = re.sub(r"^\d{4}-\d\d-\d\dT\S+\s+", "", line)
    return line.removeprefix(name).strip()


def _with_arch(folder: str) -> str:
    return folder.replace("{arch}", os.uname().machine)


def _is_folder(path: str) -> bool:
    return os.path.isabs(path) and os.path.isdir(path)


def shorten(words: Iterable[str], installation: Installation) -> tuple[str, ...]:
    """Options with the roots of the installation's trees as ``{role}``: their content is identified, so
    where they lie says nothing more."""
    roots: dict[str, str] = installation.local["roots"]
    skipped = {tree.role: tree.skip for tree in installation.trees}

    def short(word: str) -> str:
        for role, root in roots.items():
            inside = word == root or holds(Tree(role, root, skipped.get(role, ())), word)
            if inside and ".." not in word:
                return f"{{{role}}}{word[len(root) :]}"
        return word

    return tuple(short(word) for word in words)


def expand(words: Iterable[str], installation: Installation) -> tuple[str, ...]:
    """The inverse of :func:`shorten`."""
    roots: dict[str, str] = installation.local["roots"]

    def full(word: str) -> str:
        for role, root in roots.items():
            if word.startswith(f"{{{role}}}"):
                return root + word[len(role) + 2 :]
        return word

    return tuple(full(word) for word in words)
