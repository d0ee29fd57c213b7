"""Compiler command lines that are understood for sure: one source in, one file out. Pure, but for response
files.

What is not understood is never guessed: it gets a reason, and its tool runs as if there were no cache.

Source: the option summaries of the GCC and Clang manuals, and the usage of ptoas. A toolchain refuses what
must not be cached all the same; the lists here are for what must not even be asked, since it writes
files that nobody would get back.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE, OUTPUT, DEPENDENCIES = "{source}", "{output}", "{depfile}"
"""What stands for the three files in a command's words; as in ``ptocache_cfamily.command``."""

# Labels of ptocache.outcome.Reason; importing that costs a tenth of a hit.
NOT_A_COMPILE = "not_a_compile"
COMMAND_FORM = "command_form"
UNSUPPORTED_OPTION = "unsupported_option"

_C_DRIVERS = frozenset({"cc", "gcc", "clang"})
_CXX_DRIVERS = frozenset({"c++", "g++", "clang++"})
_DEVICE_DRIVERS = frozenset({"bisheng", "bisheng++", "ccec"})
_PTOAS = "ptoas"
TOOLS = ("bisheng", "bisheng++", "ccec", "ptoas", "cc", "c++", "gcc", "g++", "clang", "clang++")
"""The names that shims are made for."""

_LANGUAGES = {
    ".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".c++": "c++", ".C": "c++", ".CPP": "c++",
    ".cp": "c++",
}  # fmt: skip
_DEVICE_LANGUAGES = {".asc": "asc", ".cce": "cce"}
_NAMED_LANGUAGES = {"c": "c", "c++": "c++"}
_NAMED_DEVICE_LANGUAGES = {"asc": "asc", "cce": "cce", "c++": "c++"}

_OTHER_ACTIONS = frozenset(
    {"-E", "-S", "-M", "-MM", "-MG", "-v", "-###", "-V", "-fsyntax-only", "-emit-llvm", "-emit-ast",
     "--version", "--help", "-dumpversion", "-dumpmachine", "-dumpspecs", "-dumpfullversion",
     "--verbose", "--preprocess", "--assemble", "--compile", "-version", "-help", "-r", "-pie", "-N"}
)  # fmt: skip
# The operand stands behind the option or follows it.
_OPERANDS = (
    "-iquote",
    "-isystem",
    "-idirafter",
    "-include",
    "-imacros",
    "-I",
    "-L",
    "-D",
    "-U",
    "-l",
)
_SEPARATE = ("--param", "-u", "-z", "-mllvm")
_DEVICE_SEPARATE = ("--cce-aicore-input-parameter-size",)
_KNOWN = ("-O", "-g", "-f", "-m", "-W", "-std=", "--std=", "--param=", "-pedantic", "-nostdinc")
_KNOWN_WORDS = frozenset(
    {"-w", "-ansi", "-pthread", "-pipe", "-s", "-rdynamic", "-nostdlib", "-nodefaultlibs", "-undef",
     "-nostartfiles", "-nolibc", "-static-libgcc", "-shared-libgcc", "-static-libstdc++", "-symbolic",
     "--pedantic", "--ansi", "-Qunused-arguments"}
)  # fmt: skip
# Of the known forms: those that write files besides, read ones that nobody lists, or never repeat.
_UNSEEN = (
    "-fprofile", "-fauto-profile", "-fbranch-probabilities", "-ftest-coverage", "-fcoverage",
    "-fcs-profile", "-fdump-", "-fsave-", "-ftime-", "-fmem-report", "-fstack-usage", "-fplugin",
    "-fpass-plugin", "-fcallgraph-info", "-fopt-info", "-fmodule", "-fimplicit-module", "-fbuiltin-module",
    "-fprebuilt-", "-fxray", "-fembed-offload", "-fuse-ld", "-foffload", "-fopenmp-targets",
    "-fcrash-diagnostics", "-freport-bug", "-fthinlto-", "-flto-partition-cache", "-fproc-stat",
    "-fdiagnostics-format", "-fdiagnostics-add-output", "-fdiagnostics-set-output", "-fcompare-debug",
    "-fpch-", "-fworking-directory", "-fsanitize-ignorelist", "-fsanitize-blacklist", "-frecord-", "-grecord-",
    "-fsanitize-coverage-allowlist", "-fsanitize-coverage-ignorelist", "-foptimization-record",
    "-fpreprocessed", "-fdirectives-only", "-finstrument-functions-exclude-file", "-fdebug-dump",
    "-fcas", "-fdepscan", "-fapinotes", "-fapi-notes", "-ffile-compilation-dir", "-fmessage-length-file",
    "-gsplit-dwarf", "-gcc-toolchain", "-gmodules", "-mrelocatable-pch", "-fdeps-", "-fsycl", "-fhip", "-fcuda", "-fgpu",
    "-fstack-protector-file", "-fmultilib", "-fsyntax", "-fthin-link-bitcode", "-fpatchable-file",
    "-fdriver-only", "-fno-integrated-as", "-Wa,", "-Wp,", "-fsanitize-system-", "-mrecord-mcount-file",
)  # fmt: skip
_HARMLESS_ASSEMBLER = frozenset({"-Wa,--noexecstack", "-Wa,--execstack"})
# Of the linker, one dash or two; what is not here may bring in files or write them.
_LINKER_WORDS = frozenset(
    {"soname", "gc-sections", "no-gc-sections", "as-needed", "no-as-needed", "rpath", "rpath-link",
     "hash-style", "no-undefined", "Bsymbolic", "Bsymbolic-functions", "export-dynamic", "strip-all",
     "strip-debug", "enable-new-dtags", "disable-new-dtags", "build-id", "exclude-libs", "z", "h", "O",
     "O1", "O2", "relax", "no-relax", "eh-frame-hdr", "no-mmap-output-file", "mmap-output-file",
     "start-group", "end-group", "Bstatic", "Bdynamic", "defsym", "unresolved-symbols"}
)  # fmt: skip
_LINKER_OPERANDS = frozenset(
    {"soname", "rpath", "rpath-link", "exclude-libs", "z", "h", "defsym", "hash-style"}
)
_PTOAS_OPTIONS = ("--pto-", "--enable-", "--disable-", "--emit-", "--mlir-", "--plan-memory")
_PTOAS_UNSEEN = ("--pto-backend=vpto", "--mlir-timing", "--mlir-pass-statistics", "--mlir-debug")
_MADE_UP_LENGTH = len("tmp") + 8
_RESPONSE_LIMIT = 1 << 20
_RESPONSE_DEPTH = 8


class NotUnderstood(Exception):
    """A command that is not asked of the cache."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        """Label of a :class:`ptocache.outcome.Reason`."""
        self.detail = detail


class Command:
    """One compile, as its words say."""

    __slots__ = (
        "depfile", "language", "lists_all", "output", "source", "target", "toolchain", "words",
    )  # fmt: skip

    def __init__(self, toolchain: str) -> None:
        self.toolchain = toolchain
        """``host``, ``ascendc`` or ``pto``."""
        self.words: list[str] = []
        """Without the tool; the files are :data:`SOURCE`, :data:`OUTPUT` and :data:`DEPENDENCIES`."""
        self.source = ""
        self.language = ""
        self.output = ""
        """As spelled, or as the compiler would name it."""
        self.depfile = ""
        """The dependency file that is asked for; empty if there is none."""
        self.lists_all = True
        """True if that names system headers too."""
        self.target = ""
        """What the dependency file calls its target, where the words do not say."""

    @property
    def shows_places(self) -> bool:
        """True if it is asked to write down where files lie."""
        return bool(self.depfile) or any(word.startswith("-g") for word in self.words)


def tool_kind(name: str) -> str:
    """The kind of a tool by its name: ``c``, ``c++``, ``device``, ``ptoas``; empty for any other.

    A version behind the name and a target before it do not matter (``x86_64-linux-gnu-gcc-12``).
    """
    if name == _PTOAS:
        return "ptoas"
    if name in _DEVICE_DRIVERS:
        return "device"
    head, _, tail = name.rpartition("-")
    if head and tail.replace(".", "").isdigit():
        name = head
    name = name.rpartition("-")[2]
    if name in _C_DRIVERS:
        return "c"
    return "c++" if name in _CXX_DRIVERS else ""


def understand(name: str, words: list[str], cwd: str = "") -> Command:
    """The compile that a tool of this name is told to do. ``cwd``: where response files lie.

    Raises :class:`NotUnderstood`.
    """
    kind = tool_kind(name)
    if not kind:
        raise NotUnderstood(NOT_A_COMPILE, f"{name} is no compiler that is known")
    words = _expanded(words, cwd, 0)
    if kind == "ptoas":
        return _ptoas(words)
    return _Driver(kind, name, words).read()


def _ptoas(words: list[str]) -> Command:
    command = Command("pto")
    command.language = "pto"
    rest = iter(words)
    for word in rest:
        if word == "-o":
            command.output = _once(command.output, next(rest, ""), "-o")
            command.words += ("-o", OUTPUT)
        elif not word.startswith("-") or word == "-":
            command.source = _once(command.source, word, "source")
            command.words.append(SOURCE)
        elif word.startswith(_PTOAS_UNSEEN) or "/" in word:
            raise NotUnderstood(UNSUPPORTED_OPTION, word)
        elif word.startswith(_PTOAS_OPTIONS):
            command.words.append(word)
        elif word in ("--version", "--help", "-h"):
            raise NotUnderstood(NOT_A_COMPILE, word)
        else:
            raise NotUnderstood(UNSUPPORTED_OPTION, word)
    if not command.source or not command.output:
        raise NotUnderstood(COMMAND_FORM, "no source, or no output")
    return command


class _Driver:
    """Reads the words of a compiler driver."""

    def __init__(self, kind: str, name: str, words: list[str]) -> None:
        self._device = kind == "device"
        self._kind = kind
        self._name = name
        self._words = words
        self._command = Command("ascendc" if self._device else "host")
        self._object = self._shared = self._device_only = False
        self._lists = ""
        self._targets = False
        self._language = ""
        self._libraries = False

    def read(self) -> Command:
        command = self._command
        words = iter(self._words)
        for word in words:
            self._word(word, words)
        if not command.source:
            raise NotUnderstood(NOT_A_COMPILE, "no source")
        if self._object == self._shared and not (self._device_only and not self._shared):
            raise NotUnderstood(NOT_A_COMPILE, "neither an object nor a shared object is asked for")
        self._place_output()
        self._place_depfile()
        if self._device and (command.language == "cce" or self._name == "ccec"):
            command.toolchain = "pto"
        return command

    def _word(self, word: str, words: Iterable[str]) -> None:
        command = self._command
        if not word.startswith("-") or word == "-":
            self._source(word)
        elif word in _OTHER_ACTIONS or word.startswith(("-print-", "--print-", "--help", "-dump")):
            raise NotUnderstood(NOT_A_COMPILE, word)
        elif word == "-c":
            self._object = True
            command.words.append(word)
        elif word in ("-shared", "--shared"):
            self._shared = True
            command.words.append(word)
        elif word.startswith("-o"):
            command.output = _once(command.output, word[2:] or _next(word, words), "-o")
            command.words += ("-o", OUTPUT)
        elif word.startswith("-x"):
            self._tell_language(word[2:] or _next(word, words))
        elif word in ("-MD", "-MMD", "-MP") or word.startswith(("-MF", "-MT", "-MQ")):
            self._dependencies(word, words)
        else:
            self._option(word, words)

    def _source(self, word: str) -> None:
        if word == "-":
            raise NotUnderstood(COMMAND_FORM, "standard input")
        suffix = os.path.splitext(word)[1]
        if self._device:
            language = self._language or _DEVICE_LANGUAGES.get(suffix) or _LANGUAGES.get(suffix, "")
        else:
            language = self._language or _LANGUAGES.get(suffix, "")
            if language == "c" and self._kind == "c++" and not self._language:
                language = "c++"
        if not language:
            reason = COMMAND_FORM if self._command.source else NOT_A_COMPILE
            raise NotUnderstood(reason, f"{word} is no source of a known language")
        self._command.source = _once(self._command.source, word, "source")
        self._command.language = language
        self._command.words.append(SOURCE)

    def _tell_language(self, name: str) -> None:
        known = _NAMED_DEVICE_LANGUAGES if self._device else _NAMED_LANGUAGES
        if name not in known or self._command.source:
            raise NotUnderstood(UNSUPPORTED_OPTION, f"-x {name}")
        self._language = known[name]
        self._command.words.append(f"-x{name}")

    def _dependencies(self, word: str, words: Iterable[str]) -> None:
        command = self._command
        if word in ("-MD", "-MMD"):
            if self._lists:
                raise NotUnderstood(COMMAND_FORM, f"{self._lists} and {word}")
            self._lists = word
            command.lists_all = word == "-MD"
            command.words.append(word)
            return
        if word == "-MP":
            command.words.append(word)
            return
        option, operand = word[:3], word[3:] or _next(word, words)
        if option == "-MF":
            command.depfile = _once(command.depfile, operand, "-MF")
        else:
            self._targets = True
            command.words += (option, operand)

    def _option(self, word: str, words: Iterable[str]) -> None:
        command = self._command
        for name in _OPERANDS:
            if word.startswith(name) and not word.startswith("-include-pch"):
                operand = word[len(name) :] or _next(word, words)
                if operand in (SOURCE, OUTPUT, DEPENDENCIES) or operand.startswith(
                    ("=", "$SYSROOT")
                ):
                    raise NotUnderstood(UNSUPPORTED_OPTION, f"{name} {operand}")
                self._libraries = self._libraries or name == "-l"
                command.words += (
                    (name + operand,) if name in ("-D", "-U", "-l") else (name, operand)
                )
                return
        separate = (*_SEPARATE, *(_DEVICE_SEPARATE if self._device else ()))
        if word in separate:
            operand = _next(word, words)
            if word == "-mllvm" and "/" in operand:
                raise NotUnderstood(UNSUPPORTED_OPTION, f"{word} {operand}")
            command.words += (word, operand)
        elif word.startswith("-Wl,"):
            self._for_linker(word)
        elif self._is_known(word):
            self._device_only = self._device_only or word == "--cce-aicore-only"
            command.words.append(word)
        else:
            raise NotUnderstood(UNSUPPORTED_OPTION, word)

    def _is_known(self, word: str) -> bool:
        if word in _KNOWN_WORDS or word in _HARMLESS_ASSEMBLER:
            return True
        if word.startswith("-Wp,"):
            return all(item.startswith(("-D", "-U")) for item in word.split(",")[1:])
        if self._device and word.startswith(("--npu-arch=", "--cce-")):
            # What only prints or keeps files has other names there than here: nothing with a path.
            return "/" not in word
        lists_files = word.startswith("-fsanitize") and "list=" in word
        return word.startswith(_KNOWN) and not word.startswith(_UNSEEN) and not lists_files

    def _for_linker(self, word: str) -> None:
        operand = False
        for item in word.split(",")[1:]:
            if operand:
                operand = False
                continue
            name, equals, _ = item.lstrip("-").partition("=")
            if not item.startswith("-") or name not in _LINKER_WORDS:
                raise NotUnderstood(UNSUPPORTED_OPTION, word)
            operand = not equals and name in _LINKER_OPERANDS
        self._command.words.append(word)

    def _place_output(self) -> None:
        command = self._command
        if command.output:
            return
        if not self._object:
            raise NotUnderstood(COMMAND_FORM, "no output is named")
        command.output = os.path.splitext(os.path.basename(command.source))[0] + ".o"
        command.words += ("-o", OUTPUT)

    def _place_depfile(self) -> None:
        command = self._command
        if not self._lists:
            if command.depfile or self._targets:
                raise NotUnderstood(COMMAND_FORM, "a dependency file that nothing asks for")
            return
        if self._device and (not command.lists_all or self._shared):
            raise NotUnderstood(UNSUPPORTED_OPTION, self._lists)
        if not command.depfile:
            stem, suffix = os.path.splitext(command.output)
            if self._shared or suffix != ".o":
                raise NotUnderstood(COMMAND_FORM, f"{self._lists} without -MF")
            command.depfile = stem + ".d"
        command.words += ("-MF", DEPENDENCIES)
        if not self._targets:
            command.target = command.output


def _once(before: str, now: str, what: str) -> str:
    if before:
        raise NotUnderstood(COMMAND_FORM, f"more than one {what}")
    if now in ("", "-"):
        raise NotUnderstood(COMMAND_FORM, f"{what} is {now or 'nothing'!r}")
    return now


def _next(word: str, words: Iterable[str]) -> str:
    found = next(words, "")  # type: ignore[call-overload]
    if not found:
        raise NotUnderstood(COMMAND_FORM, f"{word} has no operand")
    return str(found)


def _expanded(words: list[str], cwd: str, depth: int) -> list[str]:
    """Words with those of response files in their places.

    Source: the GCC manual, "Overall Options", on ``@file``.
    """
    found: list[str] = []
    for word in words:
        if not word.startswith("@") or word == "@":
            found.append(word)
            continue
        if depth == _RESPONSE_DEPTH:
            raise NotUnderstood(COMMAND_FORM, f"{word}: too deep")
        try:
            with open(os.path.join(cwd, word[1:]), "rb") as file:
                text = os.fsdecode(file.read(_RESPONSE_LIMIT + 1))
        except OSError as error:
            raise NotUnderstood(COMMAND_FORM, f"{word}: {error.strerror}") from error
        if len(text) > _RESPONSE_LIMIT:
            raise NotUnderstood(COMMAND_FORM, f"{word} is too long")
        found += _expanded(split(text), cwd, depth + 1)
    return found


def split(text: str) -> list[str]:
    """The words of a response file: a backslash takes the next character as it is, in quotes too.

    Source: ``buildargv`` in libiberty's documentation, and the GNU form of LLVM's tokenizer.
    """
    found: list[str] = []
    word: list[str] | None = None
    quote = ""
    rest = iter(text)
    for char in rest:
        if quote == "" and char in " \t\n\r\v\f":
            if word is not None:
                found.append("".join(word))
                word = None
            continue
        word = [] if word is None else word
        if char == "\\":
            word.append(next(rest, ""))
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            word.append(char)
    if word is not None:
        found.append("".join(word))
    return found


def neutral_name(path: str, temporary: Iterable[str]) -> str:
    """The name under which a source counts whose place says nothing, because it lies below a temporary
    directory (one of ``temporary``, canonical): its own, or ``source`` for one that was made up. Empty for
    a source whose place counts."""
    directory, name = os.path.split(path)
    directory = os.path.realpath(directory)
    stem, suffix = os.path.splitext(name)
    if _is_made_up(stem) or directory in temporary:
        return "source" + suffix
    return name if any(directory.startswith(place + "/") for place in temporary) else ""


def _is_made_up(stem: str) -> bool:
    """True for a name as Python's ``tempfile`` or ``mktemp`` makes it."""
    return stem.startswith("tmp.") or (stem.startswith("tmp") and len(stem) == _MADE_UP_LENGTH)
