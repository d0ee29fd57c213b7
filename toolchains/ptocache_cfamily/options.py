"""What each driver option means for a cache: its paths, its place in the plan, and what it hides.

Source: the option summaries of the GCC and Clang manuals. An option that is not listed is taken to
change the output by its text alone, which holds for -f, -m, -W, -O, -g, -std and the like.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import NamedTuple

from ptocache.errors import BadRequestError

_DIRECTORIES = ("-iquote", "-isystem", "-idirafter", "-I", "-L")
_FILES = ("-include", "-imacros")
_TEXTS = ("-D", "-U", "-l", "-x")
SEPARATE_TEXTS = ("--param", "-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xclang", "-u", "-z")

# What ptocache decides itself, or what gives no artifact at all.
_REFUSED = frozenset(
    {"-c", "-S", "-E", "-o", "-M", "-MM", "-MD", "-MMD", "-MF", "-MT", "-MQ", "-MP", "-MG", "-shared",
     "-###", "-v", "--version", "-dumpversion", "-dumpmachine", "--help", "-", "-fsyntax-only"}
)  # fmt: skip
_DROPPED = frozenset({"-pipe"})

# Options that bring in files or programs which no dependency file lists, or print what differs from
# run to run (patterns as in fnmatch).
_UNSEEN = (
    "@*", "-B*", "-specs=*", "--specs=*", "-wrapper", "-fplugin*", "-fpass-plugin*",
    "-fxray-*=*", "-fembed-offload-object*", "-fuse-ld=*", "--ld-path=*",
    "-fprofile*", "-fauto-profile*", "-fbranch-probabilities", "--coverage", "-coverage",
    "-ftest-coverage", "-gsplit-dwarf*", "-save-temps*", "-fdump-*", "-d*", "-fmodule*", "-fmodules*",
    "-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xclang", "-Wp,*", "-Wa,*", "-T*", "--sysroot*",
    "-isysroot*", "-iprefix*", "-iwithprefix*", "-imultilib*", "-fsanitize-*list=*", "-ftime-report*",
    "-fmem-report*", "-Q", "-time*", "-fstack-usage", "-fcallgraph-info*", "-fopt-info*", "-b*", "-V*",
    "-gcc-toolchain*", "--gcc-toolchain*", "-resource-dir*", "-ivfsoverlay*", "-include-pch",
    "-fdebug-prefix-map=*", "-ffile-prefix-map=*", "-fmacro-prefix-map=*", "-flto-partition-cache*",
    "-fthinlto-index=*", "-fcrash-diagnostics*", "-freport-bug", "-working-directory*", "-static-pie",
)  # fmt: skip
# Words of the linker that bring in no file; the long ones may have one dash or two.
_LINKER_LETTERS = frozenset({"-z", "-s", "-S", "-E", "-h", "-e", "-O", "-O0", "-O1", "-O2", "-O3"})
_LINKER_WORDS = frozenset(
    {"soname", "gc-sections", "no-gc-sections", "as-needed", "no-as-needed", "rpath", "rpath-link",
     "hash-style", "build-id", "no-undefined", "Bsymbolic", "Bsymbolic-functions", "Bstatic",
     "Bdynamic", "export-dynamic", "strip-all", "strip-debug", "start-group", "end-group",
     "whole-archive", "no-whole-archive", "exclude-libs", "enable-new-dtags", "disable-new-dtags",
     "icf", "relax", "no-relax", "allow-shlib-undefined", "no-allow-shlib-undefined", "sort-common",
     "defsym", "unresolved-symbols", "mmap-output-file", "no-mmap-output-file", "eh-frame-hdr", "no-eh-frame-hdr", "entry", "init", "fini"}
)  # fmt: skip
# Long spellings that change the output by their text alone. Every other one may stand for an option
# with a path or for an action: --include-directory=, --output=, --preprocess …
_LONG = (
    "--param", "--param=*", "--std=*", "--ansi", "--pedantic", "--pedantic-errors", "--optimize*",
    "--debug*", "--no-warnings", "--all-warnings", "--extra-warnings", "--warn-*", "--target=*",
)  # fmt: skip
_LINK_ONLY = frozenset(
    {"-nostdlib", "-nodefaultlibs", "-nostartfiles", "-nolibc", "-rdynamic", "-s", "-static",
     "-static-libgcc", "-shared-libgcc", "-static-libstdc++", "-symbolic", "-no-pie", "-pie"}
)  # fmt: skip


class Dialect(NamedTuple):
    """What a driver knows besides the common options."""

    languages: tuple[str, ...] = ()
    """Operands of ``-x`` that lead to no other front end than the identified one."""
    separate: tuple[str, ...] = ()
    """Options whose operand is the next word, a text."""
    plain: tuple[str, ...] = ()
    """Long options (``fnmatch`` forms) that change the output by their text alone."""
    dropped: tuple[str, ...] = ()
    """Options that the plan sets itself, whatever the request says of them."""


HOST = Dialect()


class Options(NamedTuple):
    """Options in normal form: one spelling, canonical paths, and sorted by the step they serve."""

    all: tuple[str, ...]
    """In the caller's order: what enters the key."""
    compile: tuple[str, ...]
    link: tuple[str, ...]
    """Options for the link, before the objects."""
    libraries: tuple[str, ...]
    """``-L``, ``-l`` and linker options, after the objects, in order."""
    quote: tuple[str, ...]
    angle: tuple[str, ...]
    """Directories of ``-I``."""
    system: tuple[str, ...]
    """Directories of ``-isystem``."""
    after: tuple[str, ...]
    """Directories of ``-idirafter``."""
    library_dirs: tuple[str, ...]
    names: tuple[str, ...]
    """Operands of ``-l``."""
    no_system: bool
    """``-nostdinc``: the compiler's own directories are not searched."""
    native: tuple[str, ...]
    """Options that mean "this processor"."""
    paths: bool
    """True if some option names a path."""
    unseen: str
    """The first option whose effect the key would not see; empty if there is none."""
    places: tuple[int, ...] = ()
    """Which words of ``all`` are canonical paths."""
    forced: tuple[str, ...] = ()
    """Canonical operands of ``-include`` and ``-imacros``."""


NO_OPTIONS = Options((), (), (), (), (), (), (), (), (), (), False, (), False, "")


def parse(options: tuple[str, ...], cwd: str, dialect: Dialect = HOST) -> Options:
    """Read driver options; relative paths count from ``cwd``.

    Raises :class:`~ptocache.errors.BadRequestError` for an option that has no place in a request, a
    file name among the options, a missing operand, or a relative path without ``cwd``.
    """
    reader = _Reader(options, cwd, dialect)
    reader.read()
    return reader.result()


class _Reader:
    def __init__(self, options: tuple[str, ...], cwd: str, dialect: Dialect) -> None:
        self._options = options
        self._cwd = cwd
        self._dialect = dialect
        self._separate = (*SEPARATE_TEXTS, *dialect.separate)
        self._all: list[str] = []
        self._compile: list[str] = []
        self._link: list[str] = []
        self._libraries: list[str] = []
        self._directories: dict[str, list[str]] = {name: [] for name in _DIRECTORIES}
        self._names: list[str] = []
        self._native: list[str] = []
        self._no_system = False
        self._paths = False
        self._unseen = ""
        self._places: list[int] = []
        self._forced: list[str] = []

    def read(self) -> None:
        words = iter(self._options)
        for word in words:
            name, operand = self._split(word, words)
            if name in _DIRECTORIES or name in _FILES:
                self._path(name, operand)
            elif name in _TEXTS:
                self._text(name, operand)
            else:
                self._plain(word, operand)

    def result(self) -> Options:
        where = self._directories
        return Options(
            tuple(self._all), tuple(self._compile), tuple(self._link), tuple(self._libraries),
            tuple(where["-iquote"]), tuple(where["-I"]), tuple(where["-isystem"]),
            tuple(where["-idirafter"]), tuple(where["-L"]), tuple(self._names), self._no_system,
            tuple(self._native), self._paths, self._unseen, tuple(self._places), tuple(self._forced),
        )  # fmt: skip

    def _split(self, word: str, words: object) -> tuple[str, str]:
        """The option's name and its operand, from this word or the next."""
        for name in (*_FILES, *_DIRECTORIES, *_TEXTS):
            if word == name:
                return name, self._operand(word, words)
            if word.startswith(name) and not word.startswith("-include-pch"):
                return name, word[len(name) :]
        if word in self._separate:
            return word, self._operand(word, words)
        return word, ""

    @staticmethod
    def _operand(word: str, words: object) -> str:
        found = next(words, None)  # type: ignore[call-overload]
        if not isinstance(found, str):
            raise BadRequestError(f"the option {word} has no operand")
        return found

    def _path(self, name: str, operand: str) -> None:
        self._paths = True
        if operand.startswith(("=", "$SYSROOT")):
            self._hide(name + operand)
        path = operand
        if name in _FILES and not os.path.isfile(os.path.join(self._cwd or "/", path)):
            # As the compiler has it: not in the caller's cwd, so it is looked for like any header.
            self._all += (name, operand)
            self._compile += (name, operand)
            return
        if not os.path.isabs(path):
            if not self._cwd:
                raise BadRequestError(
                    f"the path in {name} {operand} is relative and the request has no cwd",
                    hint="send an absolute path, or the directory it counts from",
                )
            path = os.path.join(self._cwd, path)
        path = os.path.realpath(path)
        if name in _DIRECTORIES:
            self._directories[name].append(path)
        else:
            self._forced.append(path)
        words = (name, path)
        self._all += words
        self._places.append(len(self._all) - 1)
        (self._libraries if name == "-L" else self._compile).extend(words)

    def _text(self, name: str, operand: str) -> None:
        word = name + operand
        self._all.append(word)
        if name == "-x" and operand not in self._dialect.languages:
            # Another language: another front end than the one that the toolchain's identity covers.
            self._hide(word)
        if name == "-l":
            self._names.append(operand)
            self._libraries.append(word)
        else:
            self._compile.append(word)

    def _plain(self, word: str, operand: str) -> None:
        if word in _REFUSED or word.startswith(("-o", "-print-")):
            raise BadRequestError(
                f"the option {word} has no place in a compile request",
                hint="name the outputs you want; ptocache adds what they need",
            )
        if not word.startswith(("-", "@")):
            raise BadRequestError(
                f"{word!r} stands among the options", hint="sources are inputs, not options"
            )
        if word in _DROPPED or any(fnmatchcase(word, item) for item in self._dialect.dropped):
            return
        words = (word, operand) if word in self._separate else (word,)
        self._all += words
        if word == "-mllvm" and "/" in operand:
            self._hide(f"{word} {operand}")
        if is_unseen(word) and not any(fnmatchcase(word, item) for item in self._dialect.plain):
            self._hide(word)
        if word.startswith("-nostdinc"):
            self._no_system = True
        if word.endswith("=native"):
            self._native.append(word)
        if word.startswith("-Wl,") or word == "-z":
            self._libraries += words
        elif word in _LINK_ONLY or word == "-u":
            self._link += words
        else:
            self._compile += words
            self._link += words

    def _hide(self, word: str) -> None:
        self._unseen = self._unseen or word


def is_unseen(word: str) -> bool:
    """True for an option that brings in files or programs which nobody lists, or that never repeats."""
    if word.startswith("-Wl,"):
        return any(_unseen_by_linker(item) for item in word.split(",")[1:])
    if word.startswith("--") and not any(fnmatchcase(word, pattern) for pattern in _LONG):
        return True
    return any(fnmatchcase(word, pattern) for pattern in _UNSEEN)


def _unseen_by_linker(item: str) -> bool:
    if not item.startswith(("-", "@")):
        return False
    name = item.split("=")[0]
    return name not in _LINKER_LETTERS and name.lstrip("-") not in _LINKER_WORDS
