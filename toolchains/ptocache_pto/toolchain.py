"""The PTO toolchain: front end → ptoas → bisheng → device image, as far as the outputs wanted need it.

Sources: the usage of ptoas, the samples of PTO-DSL (a kernel's ``str`` is its PTO text), and the command
lines of public builds for bisheng. The options of a request stand behind the ones that are always given.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from ptocache import bases, elf
from ptocache.errors import BadRequestError, OutputRejectedError
from ptocache.manifest import covering
from ptocache.model import Discovery, Installation, Job, Output, Prepared, Step, Tree
from ptocache.outcome import Reason
from ptocache.toolchain import judge_each
from ptocache_cann import arch, bisheng
from ptocache_cann.installation import (
    BISHENG,
    PTOAS,
    SEARCH,
    invoked,
    locate,
    tool_environment,
)
from ptocache_cfamily import command
from ptocache_cfamily.toolchain import CFamilyToolchain

from . import front
from . import options as pto_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptocache.toolchain import Files, Probe, Scan
    from ptocache_cfamily.options import Options

CPP = "cpp"
FATOBJ = "fatobj"
IMAGE = "image"
AIBIN = "aibin"
_OUTPUTS = (AIBIN, CPP, FATOBJ, IMAGE)
_ISA_VARIABLE = "PTO_ISA_ROOT"
_CPP_SUFFIXES = (".cpp", ".cc", ".cxx", ".cce", ".asc")
_ALWAYS = ("-fPIC", "-O2", "-std=c++17")
_MEMORY_MODEL = {"a3": "-DMEMORY_BASE", "a5": "-DREGISTER_BASE"}
_PTO_FILE, _CPP_FILE, _OBJECT_FILE, _IMAGE_FILE = (
    "kernel.pto",
    "kernel.cpp",
    "kernel.o",
    "kernel.so",
)


class PtoToolchain(CFamilyToolchain):
    """``cpp``: what ptoas makes of a kernel; ``fatobj``: a host object with the device images inside;
    ``image``: the shared object linked of it; ``aibin``: the device images alone (the default)."""

    name = "pto"
    version = "1"
    ENV = (pto_options.VARIABLE, arch.VARIABLE, *bisheng.ENV)
    SEARCH = (*SEARCH, *front.SEARCH, _ISA_VARIABLE)
    FLAVOURS = ("ptoas", "bisheng,ptoas", "front,ptoas")

    def flavour(self, job: Job) -> str:
        """The tools that a job needs: ``cpp`` works without bisheng, C++ without ptoas. A job without
        inputs (a kernel that its framework builds) may need either."""
        if not job.inputs:
            return "bisheng,isa,ptoas"
        if command.is_command(job):
            return bisheng.command_flavour(job)
        suffix = _suffix(job)
        parts = []
        if set(job.outputs or (AIBIN,)) - {CPP}:
            parts.append("bisheng")
        if suffix == ".py":
            parts.append("front")
        if suffix in (".py", ".pto"):
            parts.append("ptoas")
        return ",".join(parts)

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        """The tools of the flavour, with everything that belongs to them."""
        parts = flavour.split(",")
        wanted = tuple(name for name in (BISHENG, PTOAS) if name in parts)
        installation = locate(env, probe, bisheng.commanded(flavour) or wanted)
        if "front" in parts:
            installation = front.added_to(installation, env, probe)
        root = env.get(_ISA_VARIABLE, "")
        isa = os.path.join(root, "include") if os.path.isabs(root) else ""
        if "isa" in parts and isa:
            # No compile of ours lists the headers of a kernel that its framework builds.
            installation = _with_isa(installation, isa)
        return installation._replace(local={**installation.local, "isa": isa})

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        """Outputs and arch explicit, options split by their readers and canonical."""
        if command.is_command(job):
            return command.prepare(job, bisheng.command_tool(installation), bisheng.ENV)
        outputs = tuple(sorted(set(job.outputs or (AIBIN,))))
        unknown = sorted(set(outputs) - set(_OUTPUTS))
        if unknown:
            raise BadRequestError(
                f"the PTO toolchain makes no output {unknown[0]!r}", hint=", ".join(_OUTPUTS)
            )
        suffix = _suffix(job)
        device, words = pto_options.split(job)
        if suffix in _CPP_SUFFIXES:
            # PTO_FLAGS may be set for all kernels; here nobody reads these.
            words = words._replace(ptoas=(), vpto=False)
        _check(job, suffix, device, words, outputs)
        isa = str(installation.local["isa"])
        # Written out as an option, so that key, command line and the search for headers agree on it.
        given = (*words.bisheng, *(("-I", isa) if isa and not words.vpto else ()))
        options = bisheng.read_options(given, installation, job.cwd)
        _check_vpto(words, options, outputs)
        normal = (*(f"--kernel={name}" for name in words.kernels), *words.ptoas)
        env: tuple[tuple[str, str], ...] = ()
        bypass, detail = Reason.NONE, ""
        # What only bisheng reads cannot change what ptoas writes.
        if set(outputs) != {CPP}:
            normal += bisheng.normal_options(options, installation)
            env = bisheng.normal_env(job, bisheng.ENV)
            bypass, detail = bisheng.bypass_of(options, installation, links=_links(outputs))
        led = [name for name, _ in env if name in bisheng.PATH_LISTS]
        if words.vpto and led and not bypass:
            bypass = Reason.NO_DEPENDENCIES
            detail = f"--pto-backend=vpto does not list the headers to which {led[0]} leads"
        flags = bisheng.flags_of(pto_options.VARIABLE, dict(job.env))
        prepared = Prepared(
            job._replace(
                arch=device.name,
                options=normal,
                outputs=outputs,
                env=env,
                # Of no use to the front end and ptoas, and what they write lies nowhere else.
                source_dir=job.source_dir if suffix in _CPP_SUFFIXES else "",
            ),
            ((pto_options.VARIABLE, shlex.join(flags)),) if flags else (),
            bypass,
            detail,
            looked=bisheng.looks(options, job),
        )
        if suffix == ".py" or words.vpto or set(outputs) == {CPP}:
            # Modules are found by the identified interpreter, wherever a base lies; and what ptoas has
            # compiled by itself is told of no prefix.
            return prepared
        before = len(normal) - len(options.all)
        return bisheng.count_bases(prepared, options, installation, before)

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        """The steps of the chain that the outputs need, from the kind of input on."""
        job = prepared.job
        if command.is_command(job):
            return command.plan(prepared, bisheng.command_tool(installation), workdir)
        device, words = pto_options.split(job)
        suffix, source = _suffix(job), _source(job)
        steps: list[Step] = []
        if suffix == ".py":
            steps.append(front.step(source, _PTO_FILE, words.kernels, installation))
            source = _PTO_FILE
        if suffix in (".py", ".pto"):
            out = _OBJECT_FILE if words.vpto else _CPP_FILE
            steps.append(_ptoas_step(source, out, device, words, installation))
            source = _CPP_FILE
        options = bisheng.read_options(words.bisheng, installation, job.cwd)
        if set(job.outputs) - {CPP} and not words.vpto:
            said = any(word.startswith("-x") for word in options.all)
            language = () if said or source.endswith(".asc") else ("-xcce",)
            model = _MEMORY_MODEL.get(device.pto)
            steps.append(
                bisheng.compile_step(
                    _compiled(source),
                    (
                        *_ALWAYS, *language, device.option, *((model,) if model else ()),
                        *options.compile,
                    ),
                    installation,
                    workdir,
                    maps=bases.prefix_maps(prepared.bases),
                )
            )  # fmt: skip
        if _links(job.outputs):
            steps.append(
                bisheng.shared_link_step(
                    (_OBJECT_FILE,), _IMAGE_FILE, device.option, options, installation
                )
            )
        return tuple(steps)

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        """Where the outputs lie; the device images are taken out of the linked image."""
        if command.is_command(prepared.job):
            return command.collect(prepared)
        files = {CPP: _CPP_FILE, FATOBJ: _OBJECT_FILE, IMAGE: _IMAGE_FILE, AIBIN: _IMAGE_FILE}
        return {name: files[name] for name in prepared.job.outputs}

    def finish(self, prepared: Prepared, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """``aibin`` is the section of device images of the linked image."""
        return tuple(
            output._replace(data=elf.section_bytes(output.data), mode=0o644)
            if output.name == AIBIN
            else output
            for output in outputs
        )

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        """Only C++ sources are judged."""
        if _reads_headers(prepared.job):
            return super().judge_inputs(prepared, scans)
        return prepared

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        """Only C++ sources have something beside them."""
        if _reads_headers(prepared.job):
            return super().beside(prepared, scans, files)
        return {}

    def discover(
        self,
        prepared: Prepared,
        installation: Installation,
        depfiles: Mapping[str, str],
        files: Files,
        workdir: str,
    ) -> Discovery:
        """Headers, and the modules that the front end imported; ptoas opens nothing but its input."""
        job = prepared.job
        if command.is_command(job):
            tool = bisheng.command_tool(installation)
            return command.discover(prepared, tool, depfiles, files, workdir)
        _, words = pto_options.split(job)
        suffix = _suffix(job)
        source = _source(job) if suffix in _CPP_SUFFIXES else _CPP_FILE
        covered = covering(installation.trees)
        looked, unseen = front.looked_at(depfiles.get(front.STEP, ""), covered)
        found = bisheng.discover(
            prepared, words.bisheng, (_compiled(source),), installation, depfiles, files, workdir,
            looked,
        )  # fmt: skip
        if unseen and not found.bypass:
            return found._replace(bypass=Reason.UNSEEN_INPUT, detail=unseen)
        return found

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """Whole images for the device that was asked for, with the symbols that were asked for."""
        job = prepared.job
        if command.is_command(job):
            command.validate(prepared, outputs)
            return
        device = arch.understood(job.arch).device

        def judge(output: Output) -> None:
            if output.name == AIBIN:
                elf.check_images(output.data, arch=device, symbols=job.symbols)
            elif output.name != CPP:
                bisheng.check_fat(
                    output.data, device=device, symbols=job.symbols, linked=output.name == IMAGE
                )
            elif not bytes(output.data).strip():
                raise OutputRejectedError("ptoas wrote no text")

        judge_each(outputs, judge)


def _with_isa(installation: Installation, isa: str) -> Installation:
    if not os.path.isdir(isa):
        return installation._replace(absent=(*installation.absent, isa))
    return installation._replace(trees=(*installation.trees, Tree("tree:isa", isa)))


def _check(
    job: Job,
    suffix: str,
    device: arch.Arch,
    words: pto_options.PtoOptions,
    outputs: tuple[str, ...],
) -> None:
    """Raise :class:`~ptocache.errors.BadRequestError` for what this chain cannot do."""
    if suffix in (".py", ".pto") and not device.pto:
        raise BadRequestError(
            f"ptoas knows no device {device.name}", hint="dav-2201 (a3) or dav-3510 (a5)"
        )
    if CPP in outputs and suffix in _CPP_SUFFIXES:
        raise BadRequestError(f"{_source(job)} is C++ already", hint="ask for another output")
    if CPP in outputs and words.vpto:
        raise BadRequestError(
            "--pto-backend=vpto makes no C++", hint="leave the output cpp out, or the backend"
        )
    if words.kernels and suffix != ".py":
        raise BadRequestError(
            f"--kernel={words.kernels[0]} needs a Python source, and {_source(job)} is none"
        )


def _check_vpto(words: pto_options.PtoOptions, options: Options, outputs: tuple[str, ...]) -> None:
    """Raise :class:`~ptocache.errors.BadRequestError` for an option that no tool would be given."""
    if not words.vpto:
        return
    given = {*options.link, *options.libraries} if _links(outputs) else set()
    lost = [word for word in options.all if word not in given]
    if lost:
        raise BadRequestError(
            f"with --pto-backend=vpto nobody reads {lost[0]}: ptoas calls bisheng by itself",
            hint="leave the option out, or the backend",
        )


def _source(job: Job) -> str:
    """The one source among the inputs.

    Raises :class:`~ptocache.errors.BadRequestError` if there is none, or more than one.
    """
    known = (".py", ".pto", *_CPP_SUFFIXES)
    found = [item.name for item in job.inputs if item.name.endswith(known)]
    if len(found) != 1:
        raise BadRequestError(
            f"{len(found)} of the inputs are sources, and exactly one must be",
            hint=f"known suffixes: {', '.join(known)}",
        )
    return found[0]


def _reads_headers(job: Job) -> bool:
    if command.is_command(job):
        return command.read(job).reads_headers
    return _suffix(job) in _CPP_SUFFIXES


def _suffix(job: Job) -> str:
    return os.path.splitext(_source(job))[1] if job.inputs else ""


def _links(outputs: tuple[str, ...]) -> bool:
    return bool({IMAGE, AIBIN} & set(outputs))


def _compiled(source: str) -> bisheng.Source:
    return bisheng.Source(source, _OBJECT_FILE, "kernel.d", "compile")


def _ptoas_step(
    source: str,
    out: str,
    device: arch.Arch,
    words: pto_options.PtoOptions,
    installation: Installation,
) -> Step:
    return Step(
        name="ptoas",
        argv=(
            invoked(installation, PTOAS), f"--pto-arch={device.pto}", *words.ptoas, source,
            "-o", out,
        ),
        creates=(out,),
        env=tool_environment(installation),
    )  # fmt: skip
