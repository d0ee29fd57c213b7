"""What the toolchains of C-family sources have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptocache.includes import companions
from ptocache.toolchain import BaseToolchain

from .command import runs_on_source
from .discovery import judge_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptocache.model import Prepared
    from ptocache.toolchain import Files, Scan


class CFamilyToolchain(BaseToolchain):
    """A toolchain whose inputs are sources and headers."""

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        """A source that tells the time, or reads what nobody lists, makes a bypass."""
        return judge_sources(prepared, scans)

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        """What quoted includes find in the source's own directory."""
        directory = prepared.job.source_dir
        if not directory or runs_on_source(prepared.job):
            return {}
        return companions(scans, directory, files.scan, files.exists, files.entries)
