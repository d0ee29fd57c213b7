"""A compiler's own command line, run as it was written: for callers who must get the same bytes as from it.

A job whose outputs are :data:`COMMAND` (the file that the command makes) and perhaps :data:`DEPFILE` (the
dependency file that it asked for) holds a command in its options: fields ``name=value``, then ``--``, then
the words of the command without the tool, in which :data:`SOURCE`, :data:`OUTPUT` and :data:`DEPENDENCIES`
stand for the three files.

    tool=PATH         the tool that the caller would run; it must be the one that the plugin finds. Not keyed
    language=NAME     c, c++, asc, cce or pto
    source=PATH       the source as the command spells it; empty if its place is of no account
    suffix=TEXT       suffix of the output's name: some drivers look at it
    target=TEXT       what a dependency file calls its target, unless the words say
    lists=no          the dependency file leaves some headers out: they are found out by a run of their own
    env:NAME=VALUE    variables that decide how messages are written

It runs in the caller's directory, on the caller's source, so that every name in the output is what it would
be without a cache; only what it writes goes to the private directory. What is read there counts by its
content: the source is an input and a dependency as well, and a change while the tool runs keeps the result
from being stored. A source whose place is of no account is compiled out of the private directory, and a
result that shows that place is not stored.

Source: the option summaries of the GCC and Clang manuals.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ptocache import elf
from ptocache.errors import BadRequestError, OutputRejectedError
from ptocache.includes import parse_depfile
from ptocache.model import ABSOLUTE_BASE, SOURCE_BASE, Discovery, Prepared, Step
from ptocache.outcome import Reason
from ptocache.toolchain import judge_each

from .discovery import (
    INCLUDE_VARIABLES,
    Looked,
    Places,
    discovery,
    earlier_libraries,
    looked_at,
    path_list,
    search_path,
)
from .options import NO_OPTIONS, is_unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ptocache.includes import SearchPath
    from ptocache.model import Job, Output
    from ptocache.toolchain import Files

COMMAND = "command"
DEPFILE = "depfile"
SOURCE = "{source}"
OUTPUT = "{output}"
DEPENDENCIES = "{depfile}"
TEXT_LANGUAGE = "pto"
"""What is made of it is text, and nothing but the source is read."""

_SEPARATOR = "--"
_VARIABLE = "env:"
_STEP, _LISTING_STEP = "command", "list headers"
_OUTPUT_FILE, _DEPFILE_FILE, _HEADERS_FILE, _LINK_FILE = "output", "asked.d", "headers.d", "link.d"
_MESSAGE_VARIABLES = frozenset({"LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"})
_BITCODE = b"BC\xc0\xde"
_NO_DEBUG = frozenset({"-g0", "-grecord-gcc-switches", "-gno-record-gcc-switches"})
# Refused where a compile runs in a private directory, and as good as any other option here.
_PLAIN = (
    "-ffile-prefix-map=", "-fdebug-prefix-map=", "-fmacro-prefix-map=", "-Wp,-D", "-Wp,-U", "-Wl,",
    "--npu-arch=", "--cce-", "--pto-", "--enable-", "--disable-", "--emit-", "--mlir-", "--plan-memory",
)  # fmt: skip
_PLAIN_WORDS = frozenset(
    {"--shared", "--param", "-Wa,--noexecstack", "-Wa,--execstack", "--cce-aicore-only"}
)
_DIRECTORIES = ("-iquote", "-isystem", "-idirafter", "-I", "-L")
# The longer ones first: -include begins like -I does not, but -isystem and -iquote do like each other.
_OPERANDS = ("-include", "-imacros", *_DIRECTORIES, "-l", "-D", "-U")


class Tool(NamedTuple):
    """What a plugin knows of the tool that a command runs."""

    path: str
    """As the plugin found it."""
    include_dirs: tuple[str, ...] = ()
    library_dirs: tuple[str, ...] = ()
    default_libraries: tuple[str, ...] = ()
    lists_linked: bool = False
    """True if its linker can list what it opens."""
    quiet: tuple[str, ...] = ()
    """Options with which a run that only lists headers says nothing."""
    env: tuple[tuple[str, str], ...] = ()
    covered: Callable[[str], bool] = lambda _: False
    """True for what the identity holds already."""


class Command(NamedTuple):
    """A command as a job holds it."""

    fields: Mapping[str, str]
    words: tuple[str, ...]

    @property
    def language(self) -> str:
        """``c``, ``c++``, ``asc``, ``cce`` or ``pto``."""
        return self.fields.get("language", "")

    @property
    def tool(self) -> str:
        """The path of the tool that the caller would run."""
        return self.fields.get("tool", "")

    @property
    def source(self) -> str:
        """The source as the command spells it; empty if its place is of no account."""
        return self.fields.get("source", "")

    @property
    def links(self) -> bool:
        """True if it runs the linker."""
        return "-shared" in self.words or "--shared" in self.words

    @property
    def reads_headers(self) -> bool:
        """True if it may read more than its source."""
        return self.language != TEXT_LANGUAGE

    @property
    def lists_all(self) -> bool:
        """True if the dependency file that it asks for names every header."""
        return self.fields.get("lists") != "no"

    def listed(self, asked: bool) -> str:
        """The dependency file, in the private directory, with every header that its run reads; empty if
        there is none. ``asked``: it asks for one of its own."""
        if not self.reads_headers or (asked and not self.lists_all):
            return ""
        return _DEPFILE_FILE if asked else _HEADERS_FILE

    @property
    def output(self) -> str:
        """The output's name in the private directory."""
        return _OUTPUT_FILE + self.fields.get("suffix", "")


def is_command(job: Job) -> bool:
    """True for a job that holds a command."""
    return COMMAND in job.outputs


def runs_on_source(job: Job) -> bool:
    """True for a command that is run on the caller's own source, with all that lies beside it."""
    return is_command(job) and bool(read(job).source)


def read(job: Job) -> Command:
    """The command in a job.

    Raises :class:`~ptocache.errors.BadRequestError` for options of another form.
    """
    words = job.options
    end = words.index(_SEPARATOR) if _SEPARATOR in words else -1
    fields = [word.partition("=") for word in words[: max(end, 0)]]
    if end < 0 or not all(separator for _, separator, _ in fields):
        raise BadRequestError("the options hold no command: fields, then --, then its words")
    return Command({name: value for name, _, value in fields}, words[end + 1 :])


def prepare(
    job: Job,
    tool: Tool,
    env_names: Iterable[str],
    *,
    arch: str = "",
    native: str = "",
) -> Prepared:
    """The job in normal form. ``native``: what ``native`` stands for here, empty if that is not known.

    Raises :class:`~ptocache.errors.BadRequestError` for a command whose result would not be that of the
    tool: another one was found, or an option may write more than is asked for.
    """
    command = read(job)
    if len(job.inputs) != 1 or set(job.outputs) - {COMMAND, DEPFILE}:
        raise BadRequestError(f"a command has one input and the outputs {COMMAND} and {DEPFILE}")
    if os.path.realpath(tool.path) != os.path.realpath(command.tool):
        raise BadRequestError(
            f"the command runs {command.tool}, and the toolchain {job.toolchain} finds {tool.path}",
            hint="let the variables that name an installation agree with PATH",
        )
    if not job.cwd or not job.source_dir:
        raise BadRequestError("a command needs the directories that it runs in and on")
    hidden = next((word for word in command.words if _is_hidden(word)), "")
    if hidden:
        # It may write files that nobody would get.
        raise BadRequestError(f"the option {hidden} has no place in a command for the cache")
    bypass, detail = Reason.NONE, ""
    if command.links and not tool.lists_linked:
        bypass, detail = Reason.NO_DEPENDENCIES, "the linker does not list the files it opens"
    keyed: dict[str, str] = {}
    if any(word.endswith("=native") for word in command.words):
        keyed["native"] = native
        if not native:
            bypass, detail = Reason.UNSUPPORTED_OPTION, "native cannot be resolved"
    wanted = set(env_names)
    env = tuple((name, value) for name, value in job.env if name in wanted and value)
    if _moves(command):
        # Two places are all that relative names count from: with one way between them they are one.
        keyed["way"] = _way(job)
    if _debugs(command.words) or (not _moves(command) and _counts_from_cwd(command, env)):
        keyed["cwd"] = job.cwd
    return Prepared(
        job._replace(
            arch=arch,
            options=_normal(command),
            outputs=tuple(sorted(set(job.outputs))),
            env=env,
        ),
        tuple(sorted(keyed.items())),
        bypass,
        detail,
        # The tool and the source were looked at.
        looked=True,
    )


def _normal(command: Command) -> tuple[str, ...]:
    """The options as they enter the key: without the tool, which is in the identity."""
    fields = sorted(f"{name}={value}" for name, value in command.fields.items() if name != "tool")
    return (*fields, _SEPARATOR, *command.words)


def _moves(command: Command) -> bool:
    """True if the source is named relative to the command's directory: then they move together."""
    return bool(command.source) and not os.path.isabs(command.source)


def _way(job: Job) -> str:
    """How the command's directory is reached from the source's."""
    return os.path.relpath(os.path.realpath(job.cwd), job.source_dir)


def _counts_from_cwd(command: Command, env: Iterable[tuple[str, str]]) -> bool:
    """True if something besides the source may be named relative to the command's directory."""
    if not command.reads_headers:
        return False
    given = _Given.of(command.words, "")
    named = [path for paths in given.directories.values() for path in paths]
    listed = [
        item
        for name, value in env
        if name in (*INCLUDE_VARIABLES, "LIBRARY_PATH")
        for item in value.split(os.pathsep)
    ]
    return bool(given.forced) or not all(map(os.path.isabs, (*named, *listed)))


def _is_hidden(word: str) -> bool:
    if word in _PLAIN_WORDS or word.startswith(_PLAIN):
        return False
    return is_unseen(word)


def _debugs(words: Iterable[str]) -> bool:
    return any(word.startswith("-g") and word not in _NO_DEBUG for word in words)


def _spelled(job: Job, command: Command, workdir: str) -> str:
    """The source as the tool is told of it."""
    return command.source or os.path.join(workdir, job.inputs[0].name)


def plan(prepared: Prepared, tool: Tool, workdir: str) -> tuple[Step, ...]:
    """The command, and where its own dependency file would not do, a run that lists the headers."""
    job = prepared.job
    command = read(job)
    asked = DEPFILE in job.outputs
    places = {
        SOURCE: _spelled(job, command, workdir),
        OUTPUT: os.path.join(workdir, command.output),
        DEPENDENCIES: os.path.join(workdir, _DEPFILE_FILE),
    }
    listing = ("-MF", os.path.join(workdir, _HEADERS_FILE))
    words = [places.get(word, word) for word in command.words]
    if command.links and tool.lists_linked:
        words.append(f"-Wl,--dependency-file={os.path.join(workdir, _LINK_FILE)}")
    if "target" in command.fields:
        words += ("-MQ", command.fields["target"])
    if not asked and command.reads_headers:
        words += ("-MD", *listing)
    env = _environment(job, command, tool)
    creates = (command.output, *((_DEPFILE_FILE,) if asked else ()))
    steps = [Step(_STEP, (tool.path, *words), creates, command.listed(asked), env, job.cwd)]
    if asked and not command.lists_all:
        again = [places.get(word, word) for word in _preprocessing(command.words)]
        argv = (tool.path, *again, *tool.quiet, "-M", *listing)
        steps.append(Step(_LISTING_STEP, argv, (_HEADERS_FILE,), _HEADERS_FILE, env, job.cwd))
    return tuple(steps)


def _preprocessing(words: Iterable[str]) -> Iterable[str]:
    """The words of a command without what it writes."""
    rest = iter(words)
    for word in rest:
        if word in ("-o", "-MF", "-MT", "-MQ"):
            next(rest, None)
        elif word not in ("-c", "-shared", "--shared", "-MD", "-MMD", "-MP"):
            yield word


def _environment(job: Job, command: Command, tool: Tool) -> tuple[tuple[str, str], ...]:
    # Compilers write $PWD into debug information if it is the directory that they run in.
    env = {**dict(tool.env), "PWD": job.cwd}
    for name, value in command.fields.items():
        variable = name.removeprefix(_VARIABLE)
        if variable != name and variable in _MESSAGE_VARIABLES:
            env[variable] = value
    return tuple(sorted(env.items()))


def collect(prepared: Prepared) -> Mapping[str, str]:
    """Where the outputs lie."""
    files = {COMMAND: read(prepared.job).output, DEPFILE: _DEPFILE_FILE}
    return {name: files[name] for name in prepared.job.outputs}


class _Places(Places):
    """Where files lie: names that the command spells relative to its directory count relative to the
    source's, if that is spelled so too."""

    def __init__(self, job: Job, command: Command, workdir: str, files: Files) -> None:
        super().__init__(job, workdir, files)
        self._private = _private_root(workdir) + "/"
        self._moves = _moves(command)
        self._cwd = job.cwd.rstrip("/") + "/"
        self._way = _way(job)
        self._source = job.source_dir.rstrip("/") + "/"

    def of(self, path: str) -> tuple[str, str] | None:
        """(base, path) of a dependency; ``None`` for an input, and for what the command made itself."""
        if path.startswith(self._inside):
            return super().of(path)
        if path.startswith(self._private):
            return None
        if self._moves and path.startswith(self._cwd):
            inside = path[len(self._cwd) :]
            return SOURCE_BASE, inside if self._way == "." else os.path.join(self._way, inside)
        if path.startswith(self._source):
            return SOURCE_BASE, path[len(self._source) :]
        return ABSOLUTE_BASE, path


def discover(
    prepared: Prepared, tool: Tool, depfiles: Mapping[str, str], files: Files, workdir: str
) -> Discovery:
    """The source, headers and libraries, and the places where they might have been."""
    job = prepared.job
    command = read(job)
    place = _Places(job, command, workdir, files)
    source = os.path.join(job.cwd, _spelled(job, command, workdir))
    if not command.reads_headers:
        return discovery(job, [Looked((source,), ())], place, tool.covered)
    given = _Given.of(command.words, job.cwd)
    step = _STEP if command.listed(DEPFILE in job.outputs) else _LISTING_STEP
    search = given.search(job, command.language, tool)
    looked = [looked_at(source, depfiles.get(step, ""), search, place, job.cwd)]
    forced = [os.path.join(job.cwd, name) for name in given.forced]
    looked.append(Looked((), tuple(path for path in forced if not place.exists(path))))
    if command.links:
        listed = _text_of(os.path.join(workdir, _LINK_FILE))
        if not listed:
            return Discovery(bypass=Reason.NO_DEPENDENCIES, detail="the linker listed nothing")
        looked.append(_linked(job, given, tool, listed, place))
    return discovery(job, looked, place, tool.covered)


def _linked(job: Job, given: _Given, tool: Tool, listed: str, place: Places) -> Looked:
    libraries = [os.path.join(job.cwd, path) for path in parse_depfile(listed)]
    opened = dict.fromkeys(path for path in libraries if place.of(path) is not None)
    absent: dict[str, None] = {}
    directories = (
        *given.library_dirs,
        *path_list(dict(job.env).get("LIBRARY_PATH", "")),
        *tool.library_dirs,
    )
    names = (*given.names, *tool.default_libraries)
    for path in earlier_libraries(names, directories, opened):
        # One that exists was passed over, or has come since: whoever asks for it will see.
        (opened if place.exists(path) else absent)[path] = None
    return Looked(tuple(opened), tuple(absent))


class _Given(NamedTuple):
    """What the words of a command say of places; directories as spelled, from the command's own one."""

    directories: Mapping[str, tuple[str, ...]]
    """By the option that names them."""
    names: tuple[str, ...]
    """Operands of ``-l``."""
    forced: tuple[str, ...]
    """Operands of ``-include`` and ``-imacros``."""
    no_system: bool

    @classmethod
    def of(cls, words: Iterable[str], cwd: str) -> _Given:
        directories: dict[str, list[str]] = {name: [] for name in _DIRECTORIES}
        names: list[str] = []
        forced: list[str] = []
        no_system = False
        rest = iter(words)
        for word in rest:
            name = next((item for item in _OPERANDS if word.startswith(item)), "")
            if not name:
                no_system = no_system or word.startswith("-nostdinc")
                continue
            operand = word[len(name) :] or next(rest, "")
            if name in directories:
                directories[name].append(os.path.join(cwd, operand))
            elif name == "-l":
                names.append(operand)
            elif name in ("-include", "-imacros"):
                forced.append(operand)
        found = {name: tuple(items) for name, items in directories.items()}
        return cls(found, tuple(names), tuple(forced), no_system)

    @property
    def library_dirs(self) -> tuple[str, ...]:
        """Operands of ``-L``."""
        return self.directories["-L"]

    def search(self, job: Job, language: str, tool: Tool) -> SearchPath:
        """The directories in which the command looks for headers."""
        variable = "C_INCLUDE_PATH" if language == "c" else "CPLUS_INCLUDE_PATH"
        env = {
            name: os.pathsep.join(os.path.join(job.cwd, item) for item in path_list(value))
            for name, value in job.env
            if name in INCLUDE_VARIABLES
        }
        where = self.directories
        options = NO_OPTIONS._replace(
            quote=where["-iquote"], angle=where["-I"], system=where["-isystem"],
            after=where["-idirafter"], no_system=self.no_system,
        )  # fmt: skip
        return search_path(options, env, variable, tool.include_dirs)


def validate(prepared: Prepared, outputs: tuple[Output, ...]) -> None:
    """Whole files: an ELF image of whatever machine, bitcode, or text where the tool writes text."""
    text = read(prepared.job).language == TEXT_LANGUAGE

    def judge(output: Output) -> None:
        data = bytes(output.data)
        if not data.strip():
            raise OutputRejectedError("an empty file")
        if output.name == COMMAND and not text and not data.startswith(_BITCODE):
            if not elf.is_elf(data):
                raise OutputRejectedError("neither an ELF image nor bitcode")
            elf.check_any(data)

    judge_each(outputs, judge)


def _private_root(workdir: str) -> str:
    """The directory of a compile, in which its working directory lies some folders deep."""
    root = workdir.rstrip("/")
    while os.path.basename(root) == "d":
        root = os.path.dirname(root)
    return root


def _text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
