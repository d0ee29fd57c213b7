"""The host toolchain: sources to an object or a shared object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ptocache import bases, elf
from ptocache.errors import BadRequestError
from ptocache.includes import parse_depfile
from ptocache.model import Discovery, Installation, Job, Output, Prepared, Step
from ptocache.outcome import Reason
from ptocache.toolchain import COMPILE_PATH, judge_each
from ptocache_cfamily import command, relative
from ptocache_cfamily.discovery import (
    EPOCH,
    INCLUDE_VARIABLES,
    Looked,
    Places,
    canonical_path_list,
    discovery,
    earlier_libraries,
    is_led_elsewhere,
    looked_at,
    path_list,
    search_path,
)
from ptocache_cfamily.options import Options, parse
from ptocache_cfamily.toolchain import CFamilyToolchain

from . import driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ptocache.includes import SearchPath
    from ptocache.toolchain import Files, Probe

SHARED = "shared"
OBJECT = "object"
_SUFFIXES = {
    ".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".c++": "c++", ".C": "c++", ".CPP": "c++",
}  # fmt: skip
_COMMAND = "command"
_LINK_STEP = "link"
_LINK_DEPFILE = "link.d"
_SHARED_FILE = "out.so"
_DEFAULT_LIBRARIES = ("c", "gcc", "gcc_s", "m", "stdc++")
_PATH_LISTS = (*INCLUDE_VARIABLES, "LIBRARY_PATH")


class _Source(NamedTuple):
    name: str
    language: str
    seed: str
    """Makes the compiler's "random" names the same for the same bytes."""
    object: str
    depfile: str

    @property
    def step(self) -> str:
        return f"compile {self.name}"


class HostToolchain(CFamilyToolchain):
    """C and C++ through ``$CC``/``$CXX`` or the first of cc, gcc, clang."""

    name = "host"
    version = "1"
    ENV = (EPOCH, *_PATH_LISTS)
    SEARCH = ("PATH", "CC", "CXX")
    FLAVOURS = ("c", "c++", "c,link", "c++,link")

    def flavour(self, job: Job) -> str:
        """Languages, and whether a link is needed: a C object does not depend on g++ or ld. A job without
        inputs is a kernel that its framework builds: with the C++ compiler, if the framework names one."""
        if command.is_command(job):
            asked = command.read(job)
            return ",".join([_COMMAND, asked.language, *(["link"] if asked.links else [])])
        unnamed = "c++" if not job.inputs and dict(job.env).get("CXX") else "c"
        languages = {source.language for source in _sources(job)} or {unnamed}
        linked = ["link"] if SHARED in (job.outputs or (SHARED,)) else []
        return ",".join([*sorted(languages), *linked])

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        """Find the driver and, by asking it, everything that it calls."""
        parts = flavour.split(",")
        languages = tuple(part for part in parts if part in driver.LANGUAGES)
        # A command finds its assembler and linker where its caller does.
        path = env.get("PATH", "") if _COMMAND in parts else COMPILE_PATH
        return driver.locate(languages, "link" in parts, env, probe, path)

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        """Options parsed and canonical, outputs and arch explicit, ``native`` resolved for the key."""
        if command.is_command(job):
            tool = _tool(job, installation)
            return command.prepare(
                job, tool, self.ENV, arch=_target(installation), native=_native(installation)
            )
        outputs = job.outputs or (SHARED,)
        unknown = sorted(set(outputs) - {SHARED, OBJECT})
        if unknown:
            raise BadRequestError(
                f"the host toolchain makes no output {unknown[0]!r}", hint=f"{SHARED} or {OBJECT}"
            )
        sources = _sources(job)
        if not sources:
            raise BadRequestError(
                "no input is a C or C++ source", hint=f"known suffixes: {', '.join(_SUFFIXES)}"
            )
        if OBJECT in outputs and len(sources) != 1:
            raise BadRequestError("an object is made of exactly one source")
        options = parse(job.options, job.cwd)
        arch = _target(installation).split("-")[0]
        if job.arch not in ("", arch):
            raise BadRequestError(
                f"this machine's compiler targets {arch}, not {job.arch}",
                hint="leave arch out, or use the toolchain of that device",
            )
        bypass, detail = Reason.NONE, ""
        keyed: tuple[tuple[str, str], ...] = ()
        if options.native:
            native = _native(installation)
            keyed = (("native", native),)
            if not native:
                bypass, detail = (
                    Reason.UNSUPPORTED_OPTION,
                    f"{options.native[0]} cannot be resolved",
                )
        if options.unseen:
            bypass, detail = Reason.UNSUPPORTED_OPTION, options.unseen
        if SHARED in outputs and not _linker(installation).get("dependency_file"):
            bypass, detail = Reason.NO_DEPENDENCIES, "the linker does not list the files it opens"
        prepared = Prepared(
            job._replace(
                arch=arch,
                options=options.all,
                outputs=tuple(sorted(set(outputs))),
                env=_canonical_env(job.env, job.cwd),
            ),
            keyed,
            bypass,
            detail,
            looked=options.paths or any(name != EPOCH for name, _ in job.env),
        )
        return relative.count(prepared, options, _own_directories(installation), _PATH_LISTS)

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        """One compile a source, and a link if a shared object is wanted."""
        job = prepared.job
        if command.is_command(job):
            return command.plan(prepared, _tool(job, installation), workdir)
        options = parse(job.options, job.cwd)
        sources = _sources(job)
        steps = [
            _compile_step(prepared, source, options, installation, workdir) for source in sources
        ]
        if SHARED in job.outputs:
            steps.append(_link_step(sources, options, installation))
        return tuple(steps)

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        """Where the outputs lie."""
        if command.is_command(prepared.job):
            return command.collect(prepared)
        files = {SHARED: _SHARED_FILE, OBJECT: _sources(prepared.job)[0].object}
        return {name: files[name] for name in prepared.job.outputs}

    def discover(
        self,
        prepared: Prepared,
        installation: Installation,
        depfiles: Mapping[str, str],
        files: Files,
        workdir: str,
    ) -> Discovery:
        """Headers, and the places where they might have been; libraries, and the same for them."""
        job = prepared.job
        if command.is_command(job):
            return command.discover(prepared, _tool(job, installation), depfiles, files, workdir)
        options = parse(job.options, job.cwd)
        place = Places(job, workdir, files)
        looked = [
            looked_at(
                source.name, depfiles.get(source.step, ""),
                _search_path(job, source, options, installation), place, workdir,
                prepared.bases, options.forced,
            )
            for source in _sources(job)
        ]  # fmt: skip
        if _LINK_STEP in depfiles:
            looked.append(
                _looked_by_linker(prepared, options, installation, depfiles[_LINK_STEP], files)
            )
        found = discovery(job, looked, place, bases=prepared.bases)
        return found._replace(fixed=found.fixed or relative.hides_paths(options))

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """An ELF of this machine, whole, with the symbols that were asked for."""
        if command.is_command(prepared.job):
            command.validate(prepared, outputs)
            return
        kinds = {SHARED: ("DYN",), OBJECT: ("REL",)}

        def judge(output: Output) -> None:
            elf.check(
                output.data,
                machine=elf.host_machine(),
                types=kinds[output.name],
                symbols=prepared.job.symbols,
            )

        judge_each(outputs, judge)


def _tool(job: Job, installation: Installation) -> command.Tool:
    language = command.read(job).language
    facts, linker = installation.facts[language], _linker(installation)
    library_dirs = linker.get("library_dirs", ())
    assert isinstance(library_dirs, (list, tuple))
    return command.Tool(
        path=installation.path(language),
        include_dirs=tuple(facts["include_dirs"]),
        library_dirs=tuple(library_dirs),
        default_libraries=_DEFAULT_LIBRARIES,
        lists_linked=bool(linker.get("dependency_file")),
        quiet=("-Qunused-arguments",) if facts["family"] == "clang" else (),
        env=(("PATH", str(installation.local[language]["path"])),),
    )


def _sources(job: Job) -> tuple[_Source, ...]:
    found: list[_Source] = []
    for item in job.inputs:
        language = _SUFFIXES.get(os.path.splitext(item.name)[1])
        if language:
            number = len(found)
            found.append(
                _Source(item.name, language, item.digest.sha256, f"{number}.o", f"{number}.d")
            )
    return tuple(found)


def _compile_step(
    prepared: Prepared,
    source: _Source,
    options: Options,
    installation: Installation,
    workdir: str,
) -> Step:
    job, maps = prepared.job, bases.prefix_maps(prepared.bases)
    if maps and installation.facts[source.language]["family"] == "gcc":
        # It would call a header of -isystem by where a link leads to, if that is shorter.
        maps += ("-fno-canonical-system-headers",)
    position = ("-fPIC",) if SHARED in job.outputs else ()
    return Step(
        name=source.step,
        argv=(
            *_driver(installation, source.language), *position, *options.compile,
            *maps, f"-ffile-prefix-map={workdir}=.",
            f"-frandom-seed={source.seed}", "-MD", "-MF", source.depfile, "-c", source.name,
            "-o", source.object,
        ),
        creates=(source.object,),
        depfile=source.depfile,
    )  # fmt: skip


def _link_step(sources: tuple[_Source, ...], options: Options, installation: Installation) -> Step:
    language = "c++" if any(source.language == "c++" for source in sources) else "c"
    listing: tuple[str, ...] = ()
    if _linker(installation).get("dependency_file"):
        listing = (f"-Wl,--dependency-file={_LINK_DEPFILE}",)
    without_includes = _without_preprocessing(options.link)
    return Step(
        name=_LINK_STEP,
        argv=(
            *_driver(installation, language), "-shared", *without_includes,
            *(source.object for source in sources), *options.libraries, *listing, "-o", _SHARED_FILE,
        ),
        creates=(_SHARED_FILE,),
        depfile=_LINK_DEPFILE if listing else "",
    )  # fmt: skip


def _without_preprocessing(options: Iterable[str]) -> list[str]:
    return [word for word in options if not word.startswith(("-std=", "-nostdinc", "-W"))]


def _driver(installation: Installation, language: str) -> tuple[str, ...]:
    return (installation.path(language), *installation.facts[language]["prefix"])


def _target(installation: Installation) -> str:
    return str(next(iter(installation.facts.values()))["target"])


def _native(installation: Installation) -> str:
    return " ".join(item["native"] for item in installation.local.values())


def _linker(installation: Installation) -> Mapping[str, object]:
    for facts in installation.facts.values():
        linker = facts.get("linker")
        if isinstance(linker, dict):
            return linker
    return {}


def _search_path(
    job: Job, source: _Source, options: Options, installation: Installation
) -> SearchPath:
    language_variable = "CPLUS_INCLUDE_PATH" if source.language == "c++" else "C_INCLUDE_PATH"
    own = installation.facts[source.language]["include_dirs"]
    return search_path(options, dict(job.env), language_variable, own)


def _canonical_env(env: tuple[tuple[str, str], ...], cwd: str) -> tuple[tuple[str, str], ...]:
    found = []
    for name, value in env:
        if name in _PATH_LISTS and value:
            value = canonical_path_list(value, cwd)
        if name in HostToolchain.ENV and value:
            found.append((name, value))
    return tuple(found)


def _looked_by_linker(
    prepared: Prepared, options: Options, installation: Installation, depfile: str, files: Files
) -> Looked:
    job = prepared.job
    # Objects of the steps before have relative names, and are no inputs.
    libraries = tuple(path for path in parse_depfile(depfile) if os.path.isabs(path))
    opened = dict.fromkeys(libraries)
    absent: dict[str, None] = {}
    for path in _earlier_libraries(job, options, installation, libraries):
        # One that exists was passed over, or has come since: whoever asks for it will see.
        (opened if files.exists(path) else absent)[path] = None
    names, directories = _searched_by_linker(job, options, installation)
    fixed = is_led_elsewhere(names, directories, libraries, prepared.bases)
    return Looked(tuple(opened), tuple(absent), fixed)


def _earlier_libraries(
    job: Job, options: Options, installation: Installation, opened: tuple[str, ...]
) -> Iterable[str]:
    """Places that come before the libraries that were found."""
    return earlier_libraries(*_searched_by_linker(job, options, installation), opened)


def _searched_by_linker(
    job: Job, options: Options, installation: Installation
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of libraries, and the directories, in order."""
    own = _linker(installation).get("library_dirs", [])
    assert isinstance(own, list)
    directories = (
        *options.library_dirs, *path_list(dict(job.env).get("LIBRARY_PATH", "")), *own,
    )  # fmt: skip
    return (*options.names, *_DEFAULT_LIBRARIES), directories


def _own_directories(installation: Installation) -> tuple[str, ...]:
    """Where the tools look by themselves."""
    found: dict[str, None] = {}
    for facts in installation.facts.values():
        found.update(dict.fromkeys(map(os.path.normpath, facts["include_dirs"])))
        found.update(dict.fromkeys(facts["include_dirs"]))
    own = _linker(installation).get("library_dirs", [])
    assert isinstance(own, list)
    return (*found, *own, *map(os.path.normpath, own))
