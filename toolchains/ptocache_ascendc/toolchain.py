"""The AscendC toolchain.

Source: the command lines of TileLang 0.1.15 for one kernel; the options of a request stand behind the
ones that are always given, so that they win.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ptocache import bases, elf
from ptocache.errors import BadRequestError
from ptocache.model import Discovery, Installation, Job, Output, Prepared, Step
from ptocache.toolchain import judge_each
from ptocache_cann import arch, bisheng
from ptocache_cann.installation import BISHENG, LINKER, SEARCH, locate
from ptocache_cfamily import command
from ptocache_cfamily.toolchain import CFamilyToolchain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptocache.toolchain import Files, Probe

AIBIN = "aibin"
OBJECT = "object"
SHARED = "shared"
_SUFFIXES = (".asc", ".cpp", ".cc", ".cxx", ".cce")
_ALWAYS = ("-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false")
_AIBIN_FILE = "kernel.aibin"
_SHARED_FILE = "kernel.so"


class AscendCToolchain(CFamilyToolchain):
    """``aibin``: an executable device image (the default); ``object`` and ``shared``: fat files of the
    host with the device images inside."""

    name = "ascendc"
    version = "1"
    ENV = (*bisheng.ENV, arch.VARIABLE)
    SEARCH = SEARCH
    FLAVOURS = ("", "link")

    def flavour(self, job: Job) -> str:
        """Only a device executable needs ld.lld."""
        if command.is_command(job):
            return bisheng.command_flavour(job)
        return "link" if AIBIN in (job.outputs or (AIBIN,)) else ""

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        """bisheng, and ld.lld for a link, with their installation."""
        wanted = bisheng.commanded(flavour)
        return locate(env, probe, wanted or ((BISHENG, LINKER) if flavour else (BISHENG,)))

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        """Outputs and arch explicit, options parsed and canonical."""
        if command.is_command(job):
            return command.prepare(job, bisheng.command_tool(installation), bisheng.ENV)
        outputs = tuple(sorted(set(job.outputs or (AIBIN,))))
        unknown = sorted(set(outputs) - {AIBIN, OBJECT, SHARED})
        if unknown:
            raise BadRequestError(
                f"the AscendC toolchain makes no output {unknown[0]!r}",
                hint=f"{AIBIN}, {OBJECT} or {SHARED}",
            )
        sources = _sources(job)
        if len(sources) != 1:
            raise BadRequestError(
                f"{len(sources)} of the inputs are sources, and exactly one must be",
                hint=f"known suffixes: {', '.join(_SUFFIXES)}; other inputs are headers",
            )
        device, rest = arch.choose(job.arch, job.options, dict(job.env))
        options = bisheng.read_options(rest, installation, job.cwd)
        bypass, detail = bisheng.bypass_of(options, installation, links=SHARED in outputs)
        prepared = Prepared(
            job._replace(
                arch=device.name,
                options=bisheng.normal_options(options, installation),
                outputs=outputs,
                env=bisheng.normal_env(job, bisheng.ENV),
            ),
            bypass=bypass,
            detail=detail,
            looked=bisheng.looks(options, job),
        )
        return bisheng.count_bases(prepared, options, installation)

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        """A device compile and its link, a host compile and its link: those that are wanted."""
        job = prepared.job
        if command.is_command(job):
            return command.plan(prepared, bisheng.command_tool(installation), workdir)
        options = bisheng.read_options(job.options, installation, job.cwd)
        device = arch.understood(job.arch).option
        words = (*_ALWAYS, device, *_language(job), *options.compile)
        maps = bases.prefix_maps(prepared.bases)
        steps: list[Step] = []
        if AIBIN in job.outputs:
            source = _device_source(job)
            steps += (
                bisheng.compile_step(
                    source, words, installation, workdir, mode=("--cce-aicore-only",), maps=maps
                ),
                bisheng.device_link_step((source.object,), _AIBIN_FILE, options, installation),
            )
        if OBJECT in job.outputs or SHARED in job.outputs:
            host = _host_source(job)
            steps.append(bisheng.compile_step(host, words, installation, workdir, maps=maps))
            if SHARED in job.outputs:
                steps.append(
                    bisheng.shared_link_step(
                        (host.object,), _SHARED_FILE, device, options, installation
                    )
                )
        return tuple(steps)

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        """Where the outputs lie."""
        if command.is_command(prepared.job):
            return command.collect(prepared)
        files = {
            AIBIN: _AIBIN_FILE,
            OBJECT: _host_source(prepared.job).object,
            SHARED: _SHARED_FILE,
        }
        return {name: files[name] for name in prepared.job.outputs}

    def discover(
        self,
        prepared: Prepared,
        installation: Installation,
        depfiles: Mapping[str, str],
        files: Files,
        workdir: str,
    ) -> Discovery:
        """Headers outside of the installation, and the places where they might have been."""
        job = prepared.job
        if command.is_command(job):
            tool = bisheng.command_tool(installation)
            return command.discover(prepared, tool, depfiles, files, workdir)
        sources = (_device_source(job), _host_source(job))
        return bisheng.discover(
            prepared, job.options, sources, installation, depfiles, files, workdir
        )

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """Whole images for the device that was asked for, with the symbols that were asked for."""
        job = prepared.job
        if command.is_command(job):
            command.validate(prepared, outputs)
            return
        device = arch.understood(job.arch).device

        def judge(output: Output) -> None:
            if output.name == AIBIN:
                elf.check_device(output.data, arch=device, symbols=job.symbols)
            else:
                bisheng.check_fat(
                    output.data, device=device, symbols=job.symbols, linked=output.name == SHARED
                )

        judge_each(outputs, judge)


def _sources(job: Job) -> list[str]:
    return [item.name for item in job.inputs if os.path.splitext(item.name)[1] in _SUFFIXES]


def _language(job: Job) -> tuple[str, ...]:
    """Bisheng picks the language by the suffix ``.asc``; another one must be told."""
    told = any(word.startswith("-x") for word in job.options)
    return () if told or _sources(job)[0].endswith(".asc") else ("-xasc",)


def _device_source(job: Job) -> bisheng.Source:
    return bisheng.Source(_sources(job)[0], "kernel.rel.o", "kernel.rel.d", "device compile")


def _host_source(job: Job) -> bisheng.Source:
    return bisheng.Source(_sources(job)[0], "kernel.o", "kernel.d", "host compile")
