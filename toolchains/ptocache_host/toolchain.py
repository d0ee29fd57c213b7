"""The host toolchain: sources to an object or a shared object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ptocache import elf
from ptocache.errors import BadRequestError, OutputRejectedError
from ptocache.includes import SearchPath, absent_places, companions, parse_depfile
from ptocache.model import (
    ABSOLUTE_BASE,
    SOURCE_BASE,
    Discovery,
    Installation,
    Job,
    Output,
    Prepared,
    Step,
)
from ptocache.outcome import Reason

from . import driver
from .options import Options, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ptocache.toolchain import Files, Probe, Scan

SHARED = "shared"
OBJECT = "object"
_SUFFIXES = {
    ".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".c++": "c++", ".C": "c++", ".CPP": "c++",
}  # fmt: skip
_LINK_STEP = "link"
_LINK_DEPFILE = "link.d"
_SHARED_FILE = "out.so"
_DEFAULT_LIBRARIES = ("c", "gcc", "gcc_s", "m", "stdc++")
_EPOCH = "SOURCE_DATE_EPOCH"
_CLOCK_TOKENS = ("__DATE__", "__TIME__")
_FILE_CLOCK_TOKEN = "__TIMESTAMP__"
_UNSEEN_TOKENS = (".incbin", ".include", "computed __has_include")


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


class HostToolchain:
    """C and C++ through ``$CC``/``$CXX`` or the first of cc, gcc, clang."""

    name = "host"
    version = "1"
    ENV = (_EPOCH, "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
    SEARCH = ("PATH", "CC", "CXX")

    def flavour(self, job: Job) -> str:
        """Languages, and whether a link is needed: a C object does not depend on g++ or ld."""
        languages = {source.language for source in _sources(job)} or {"c"}
        linked = ["link"] if SHARED in (job.outputs or (SHARED,)) else []
        return ",".join([*sorted(languages), *linked])

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        """Find the driver and, by asking it, everything that it calls."""
        parts = flavour.split(",")
        languages = tuple(part for part in parts if part in driver.LANGUAGES)
        return driver.locate(languages, "link" in parts, env, probe)

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        """Options parsed and canonical, outputs and arch explicit, ``native`` resolved for the key."""
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
        return Prepared(
            job._replace(
                arch=arch,
                options=options.all,
                outputs=tuple(sorted(set(outputs))),
                env=_canonical_env(job.env, job.cwd),
            ),
            keyed,
            bypass,
            detail,
            looked=options.paths or any(name != _EPOCH for name, _ in job.env),
        )

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        """One compile a source, and a link if a shared object is wanted."""
        job = prepared.job
        options = parse(job.options, job.cwd)
        sources = _sources(job)
        steps = [_compile_step(job, source, options, installation, workdir) for source in sources]
        if SHARED in job.outputs:
            steps.append(_link_step(sources, options, installation))
        return tuple(steps)

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        """Where the outputs lie."""
        files = {SHARED: _SHARED_FILE, OBJECT: _sources(prepared.job)[0].object}
        return {name: files[name] for name in prepared.job.outputs}

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        """A source that tells the time, or reads what nobody lists, makes a bypass."""
        if prepared.bypass:
            return prepared
        clock_set = dict(prepared.job.env).get(_EPOCH, "")
        options = " ".join(prepared.job.options)
        for name, found in scans.items():
            for token in (*_CLOCK_TOKENS, _FILE_CLOCK_TOKEN):
                # An input's own time stamp is made from the same variable.
                if not clock_set and (token in found.tokens or token in options):
                    return prepared._replace(bypass=Reason.TIME_MACRO, detail=f"{token} in {name}")
            for token in _UNSEEN_TOKENS:
                if token in found.tokens:
                    return prepared._replace(
                        bypass=Reason.UNSEEN_INPUT, detail=f"{token} in {name}"
                    )
        return prepared

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        """What quoted includes find in the source's own directory."""
        directory = prepared.job.source_dir
        if not directory:
            return {}
        return companions(scans, directory, files.scan, files.exists, files.entries)

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
        options = parse(job.options, job.cwd)
        place = _Places(job, workdir, files)
        opened: dict[str, None] = {}
        absent: dict[str, None] = {}
        for source in _sources(job):
            listed = parse_depfile(depfiles.get(source.step, ""))
            read = [os.path.join(workdir, path) for path in (source.name, *listed)]
            missing, met = absent_places(
                dict.fromkeys(read), place.scan, place.exists,
                _search_path(job, source, options, installation),
            )  # fmt: skip
            opened.update(dict.fromkeys((*read, *met)))
            absent.update(dict.fromkeys(missing))
        if _LINK_STEP in depfiles:
            listed = parse_depfile(depfiles[_LINK_STEP])
            # Objects of the steps before have relative names, and are no inputs.
            libraries = tuple(path for path in listed if os.path.isabs(path))
            opened.update(dict.fromkeys(libraries))
            for path in _earlier_libraries(job, options, installation, libraries):
                # One that exists was passed over, or has come since: whoever asks for it will see.
                (opened if files.exists(path) else absent)[path] = None
        headers = [path for path in opened if place.of(path) is not None and not _is_library(path)]
        bypass, detail = _judge_headers(job, headers, place)
        return Discovery(
            present=tuple(pair for path in opened if (pair := place.of(path)) is not None),
            absent=tuple(pair for path in absent if (pair := place.of(path)) is not None),
            bypass=bypass,
            detail=detail,
        )

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """An ELF of this machine, whole, with the symbols that were asked for."""
        kinds = {SHARED: ("DYN",), OBJECT: ("REL",)}
        for output in outputs:
            try:
                elf.check(
                    output.data,
                    machine=elf.host_machine(),
                    types=kinds[output.name],
                    symbols=prepared.job.symbols,
                )
            except OutputRejectedError as error:
                error.fields["output"] = output.name
                raise


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
    job: Job, source: _Source, options: Options, installation: Installation, workdir: str
) -> Step:
    position = ("-fPIC",) if SHARED in job.outputs else ()
    return Step(
        name=source.step,
        argv=(
            *_driver(installation, source.language), *position, *options.compile,
            f"-ffile-prefix-map={workdir}=.",
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
    env = dict(job.env)
    language_variable = "CPLUS_INCLUDE_PATH" if source.language == "c++" else "C_INCLUDE_PATH"
    own = () if options.no_system else installation.facts[source.language]["include_dirs"]
    system = (
        *options.system, *_path_list(env.get(language_variable, "")), *own, *options.after,
    )  # fmt: skip
    # A directory that is also a system directory is searched among those only (GCC manual, -I).
    late = {os.path.realpath(path) for path in system}
    plain = (*options.angle, *_path_list(env.get("CPATH", "")))
    first = [path for path in plain if os.path.realpath(path) not in late]
    quote = [path for path in options.quote if os.path.realpath(path) not in late]
    return SearchPath(tuple(quote), tuple(dict.fromkeys((*first, *system))))


def _path_list(text: str) -> tuple[str, ...]:
    return tuple(item for item in text.split(os.pathsep) if item)


def _canonical_env(env: tuple[tuple[str, str], ...], cwd: str) -> tuple[tuple[str, str], ...]:
    """Path lists with canonical members; an empty or relative one counts from the caller's cwd."""
    found = []
    for name, value in env:
        if name != _EPOCH and name in HostToolchain.ENV and value:
            value = os.pathsep.join(
                os.path.realpath(os.path.join(cwd or "/", item)) for item in value.split(os.pathsep)
            )
        if name in HostToolchain.ENV and value:
            found.append((name, value))
    return tuple(found)


class _Places:
    """Where files lie: a relative name that a compiler used means an input, in the private directory,
    or a file in the source's own one."""

    def __init__(self, job: Job, workdir: str, files: Files) -> None:
        self._inside = workdir.rstrip("/") + "/"
        self._inputs = {item.name for item in job.inputs}
        self._source_dir = job.source_dir
        self._files = files

    def of(self, path: str) -> tuple[str, str] | None:
        """(base, path) of a dependency; ``None`` for an input, and for what can be nowhere else."""
        if not path.startswith(self._inside):
            return ABSOLUTE_BASE, path
        name = path[len(self._inside) :]
        if os.path.normpath(name) in self._inputs or not self._source_dir:
            return None
        return SOURCE_BASE, name

    def real(self, path: str) -> str:
        """The file behind a path as the compiler spelled it."""
        found = self.of(path)
        if found is None or found[0] == ABSOLUTE_BASE:
            return path
        return os.path.join(self._source_dir, found[1])

    def scan(self, path: str) -> Scan:
        """What the file behind a path includes."""
        return self._files.scan(self.real(path))

    def exists(self, path: str) -> bool:
        """True if there is a file behind a path."""
        return self._files.exists(self.real(path))


def _is_library(path: str) -> bool:
    return path.endswith((".so", ".a", ".o")) or ".so." in path


def _judge_headers(job: Job, headers: Iterable[str], place: _Places) -> tuple[Reason, str]:
    clock_set = dict(job.env).get(_EPOCH, "")
    for spelled in headers:
        tokens, path = place.scan(spelled).tokens, place.real(spelled)
        for token in _CLOCK_TOKENS:
            if token in tokens and not clock_set:
                return Reason.TIME_MACRO, f"{token} in {path}"
        if _FILE_CLOCK_TOKEN in tokens:
            # A header's own time stamp is not content, and no variable sets it.
            return Reason.TIME_MACRO, f"{_FILE_CLOCK_TOKEN} in {path}"
        for token in _UNSEEN_TOKENS:
            if token in tokens:
                return Reason.UNSEEN_INPUT, f"{token} in {path}"
    return Reason.NONE, ""


def _earlier_libraries(
    job: Job, options: Options, installation: Installation, opened: tuple[str, ...]
) -> Iterable[str]:
    """Places that come before the libraries that were found."""
    own = _linker(installation).get("library_dirs", [])
    assert isinstance(own, list)
    directories = (
        *options.library_dirs, *_path_list(dict(job.env).get("LIBRARY_PATH", "")), *own,
    )  # fmt: skip
    known = set(opened)
    for name in dict.fromkeys((*options.names, *_DEFAULT_LIBRARIES)):
        earlier: list[str] = []
        for directory in directories:
            places = [os.path.join(directory, f"lib{name}{suffix}") for suffix in (".so", ".a")]
            hit = next((place for place in places if place in known), None)
            if hit is not None:
                yield from (*earlier, *places[: places.index(hit)])
                break
            earlier += places
