"""Calling bisheng: its options, its steps and what its compiles looked at.

Source: the command lines of public builds (TileLang, tilelang-ascend, pto-isa). bisheng is a clang: what
is said of options in :mod:`ptocache_cfamily.options` holds for it, with the additions here.
"""

from __future__ import annotations

import os
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ptocache import elf
from ptocache.errors import BadRequestError
from ptocache.includes import parse_depfile
from ptocache.manifest import covering
from ptocache.model import Installation, Job, Step
from ptocache.outcome import Reason
from ptocache_cfamily import command, relative
from ptocache_cfamily.discovery import (
    EPOCH,
    INCLUDE_VARIABLES,
    Looked,
    Places,
    canonical_path_list,
    discovery,
    is_led_elsewhere,
    looked_at,
    search_path,
)
from ptocache_cfamily.options import SEPARATE_TEXTS, Dialect, Options, parse

from .installation import (
    BISHENG,
    COMPILERS,
    LINKER,
    PTOAS,
    expand,
    invoked,
    shorten,
    tool_environment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ptocache.model import Discovery, Prepared
    from ptocache.toolchain import Files

PATH_LISTS = (*INCLUDE_VARIABLES, "LIBRARY_PATH")
ENV = (EPOCH, *PATH_LISTS)
"""Variables that bisheng, like any clang, reads."""
LINK = "link"
DEVICE_LINK = "device link"
"""Names of the steps that link."""
DIALECT = Dialect(
    languages=("cce", "asc", "c++"),
    separate=("-mllvm", "--cce-aicore-input-parameter-size"),
    plain=("--cce-*",),
    dropped=("--cce-aicore-only",),
)
# Of an object that is still to be linked, the device images may stand in either.
_IMAGE_SECTIONS = (elf.FAT_SECTION, "__aicore_rel_binary")
_DEVICE_LINK_WORDS = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")


_COMMAND = "command:"


def command_flavour(job: Job) -> str:
    """The flavour of a command (:mod:`ptocache_cfamily.command`): its tool alone is needed.

    Raises :class:`~ptocache.errors.BadRequestError` for a tool of another name.
    """
    name = os.path.basename(command.read(job).tool)
    if name not in (*COMPILERS, PTOAS):
        raise BadRequestError(f"{name or 'nothing'} is no tool of this toolchain")
    return _COMMAND + name


def commanded(flavour: str) -> tuple[str, ...]:
    """The tool of such a flavour; none for any other."""
    return (flavour[len(_COMMAND) :],) if flavour.startswith(_COMMAND) else ()


def command_tool(installation: Installation) -> command.Tool:
    """The tool of an installation that was located for a command."""
    roles = {file.role for file in installation.files}
    return command.Tool(
        path=installation.path(next(name for name in (*COMPILERS, PTOAS) if name in roles)),
        include_dirs=tuple(installation.local.get("include_dirs", ())),
        lists_linked=bool(installation.facts.get("linker_lists")),
        env=tool_environment(installation),
        covered=covering(installation.trees),
    )


class Source(NamedTuple):
    """A source and the files that its compile makes."""

    name: str
    object: str
    depfile: str
    step: str
    """Name of the step that compiles it."""


def flags_of(variable: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a variable of options, split as a shell does.

    Raises :class:`~ptocache.errors.BadRequestError` for an open quotation.
    """
    try:
        return _split(env.get(variable, ""))
    except ValueError as error:
        raise BadRequestError(
            f"{variable}={env[variable]!r} cannot be understood: {error}",
            hint="it is read as a shell would: close the quotation, or escape the character",
        ) from error


@lru_cache(maxsize=256)
def _split(text: str) -> tuple[str, ...]:
    # Asked for on every request, and slower than all the rest of it.
    return tuple(shlex.split(text))


def read_options(words: tuple[str, ...], installation: Installation, cwd: str) -> Options:
    """Options with the trees' roots spelled out.

    Raises as :func:`ptocache_cfamily.options.parse` does.
    """
    return parse(expand(words, installation), cwd, DIALECT)


def normal_options(options: Options, installation: Installation) -> tuple[str, ...]:
    """Options as they enter the key."""
    return shorten(options.all, installation)


def normal_env(job: Job, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The variables of ``names`` that a job has, path lists in canonical form."""
    wanted = set(names)
    return tuple(
        (name, canonical_path_list(value, job.cwd) if name in PATH_LISTS else value)
        for name, value in job.env
        if name in wanted and value
    )


def looks(options: Options, job: Job) -> bool:
    """True if the file system has a say in the normal form: something names a path."""
    return options.paths or any(name in PATH_LISTS for name, _ in job.env)


def bypass_of(options: Options, installation: Installation, *, links: bool) -> tuple[Reason, str]:
    """Why a job with these options must not be stored, if it must not."""
    if options.unseen:
        return Reason.UNSUPPORTED_OPTION, options.unseen
    if options.native:
        return Reason.UNSUPPORTED_OPTION, f"{options.native[0]} means this machine"
    if links and not installation.facts.get("linker_lists"):
        return Reason.NO_DEPENDENCIES, "bisheng's linker does not list the files it opens"
    return Reason.NONE, ""


def compile_step(
    source: Source,
    words: Iterable[str],
    installation: Installation,
    workdir: str,
    *,
    mode: tuple[str, ...] = ("-c",),
    maps: tuple[str, ...] = (),
) -> Step:
    """Compile one source to an object; ``maps``: what :func:`ptocache.bases.prefix_maps` says."""
    return Step(
        name=source.step,
        argv=(
            invoked(installation, BISHENG), *words, *maps, f"-ffile-prefix-map={workdir}=.",
            "-MD", "-MF", source.depfile, *mode, source.name, "-o", source.object,
        ),
        creates=(source.object,),
        depfile=source.depfile,
        env=tool_environment(installation),
    )  # fmt: skip


def device_link_step(
    objects: Iterable[str], out: str, options: Options, installation: Installation
) -> Step:
    """Link device objects to an executable device image."""
    libraries = [*_plain_linker_words(options.link), *_plain_linker_words(options.libraries)]
    # Only then does it open what the request did not bring.
    depfile = "device_link.d" if options.names or _hands_on_files(options) else ""
    listing = (f"--dependency-file={depfile}",) if depfile else ()
    return Step(
        name=DEVICE_LINK,
        argv=(
            invoked(installation, LINKER), *_DEVICE_LINK_WORDS, *listing, *objects, *libraries,
            "-o", out,
        ),
        creates=(out,),
        depfile=depfile,
        env=tool_environment(installation),
    )  # fmt: skip


def shared_link_step(
    objects: Iterable[str],
    out: str,
    device: str,
    options: Options,
    installation: Installation,
) -> Step:
    """Link fat objects to a shared object of the host; ``device`` is the option that names the arch."""
    depfile = "link.d" if installation.facts.get("linker_lists") else ""
    listing = (f"-Wl,--dependency-file={depfile}",) if depfile else ()
    return Step(
        name=LINK,
        argv=(
            invoked(installation, BISHENG), "-shared", "-fPIC", device, *options.link,
            "-Wl,--no-mmap-output-file", *objects, *options.libraries, *listing, "-o", out,
        ),
        creates=(out,),
        depfile=depfile,
        env=tool_environment(installation),
    )  # fmt: skip


def count_bases(
    prepared: Prepared, options: Options, installation: Installation, before: int = 0
) -> Prepared:
    """The job with the bases that count for it; ``before``: its words before those of ``options``."""
    trees = (tree.path for tree in installation.trees)
    own = (*trees, *installation.local.get("include_dirs", ()))
    return relative.count(prepared, options, own, PATH_LISTS, before=before)


def discover(
    prepared: Prepared,
    words: tuple[str, ...],
    sources: Iterable[Source],
    installation: Installation,
    depfiles: Mapping[str, str],
    files: Files,
    workdir: str,
    more: Iterable[Looked] = (),
) -> Discovery:
    """What the compiles of ``sources`` with the options ``words`` and the link looked at; what lies in
    the identified trees is covered by their manifests."""
    job, bases = prepared.job, prepared.bases
    options = read_options(words, installation, job.cwd)
    place = Places(job, workdir, files)
    own = installation.local.get("include_dirs", ())
    search = search_path(options, dict(job.env), "CPLUS_INCLUDE_PATH", own)
    looked = [
        looked_at(source.name, depfiles[source.step], search, place, workdir, bases, options.forced)
        for source in sources
        if source.step in depfiles
    ]
    looked += [
        _looked_by_linker(prepared, options, parse_depfile(depfiles[step]), files)
        for step in (DEVICE_LINK, LINK)
        if depfiles.get(step)
    ]
    found = discovery(job, [*looked, *more], place, covering(installation.trees), bases)
    return found._replace(fixed=found.fixed or relative.hides_paths(options))


def _looked_by_linker(
    prepared: Prepared, options: Options, listed: tuple[str, ...], files: Files
) -> Looked:
    job = prepared.job
    libraries = tuple(path for path in listed if os.path.isabs(path))
    known = set(libraries)
    given = dict(job.env).get("LIBRARY_PATH", "")
    directories = (*options.library_dirs, *(item for item in given.split(os.pathsep) if item))
    opened = dict.fromkeys(libraries)
    absent: dict[str, None] = {}
    for name in dict.fromkeys(options.names):
        earlier: list[str] = []
        for directory in directories:
            places = [os.path.join(directory, item) for item in _library_files(name)]
            hit = next((place for place in places if place in known), None)
            if hit is not None:
                earlier += places[: places.index(hit)]
                break
            earlier += places
        for path in earlier:
            (opened if files.exists(path) else absent)[path] = None
    fixed = is_led_elsewhere(options.names, directories, libraries, prepared.bases)
    return Looked(tuple(opened), tuple(absent), fixed)


def _library_files(name: str) -> tuple[str, ...]:
    """The file names that ``-l`` looks for, in order."""
    return (name[1:],) if name.startswith(":") else (f"lib{name}.so", f"lib{name}.a")


def _hands_on_files(options: Options) -> bool:
    """True if words for the linker may be files (``-Wl,/lib/extra.o``)."""
    words = [word for word in options.libraries if word.startswith("-Wl,")]
    return any(not item.startswith("-") for word in words for item in word.split(",")[1:])


def _plain_linker_words(words: Iterable[str]) -> list[str]:
    """What a linker called by itself is told, out of words for a driver that would call it."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word.startswith("-Wl,"):
            found += word.split(",")[1:]
        elif word in ("-L", "-z", "-u"):
            found += (word, next(rest))
        elif word in (*SEPARATE_TEXTS, *DIALECT.separate):
            # Its operand may look like a word of the linker: -mllvm -lsr-…
            next(rest)
        elif word.startswith("-l") or word == "-s":
            found.append(word)
    return found


def check_fat(data: elf.Data, *, device: str, symbols: tuple[str, ...], linked: bool) -> None:
    """Judge a host file with device images; of one that is not ``linked`` yet, they may stand in either
    section that objects have.

    Raises :class:`~ptocache.errors.OutputRejectedError`.
    """
    sections: tuple[str, ...] = _IMAGE_SECTIONS[:1]
    if not linked:
        image = elf.check(data)
        found = [item for item in map(image.section, _IMAGE_SECTIONS) if item and item.size]
        sections = tuple(item.name for item in found) or sections
    for number, section in enumerate(sections):
        elf.check_fat(data, arch=device, symbols=() if number else symbols, section=section)
