"""Runs the blocks of a page of the documentation, in an environment that has what the page asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)?(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: str, work: Path, env: Mapping[str, str]) -> None:
    """Write its files and run its ``sh`` and ``python`` blocks in ``work``, in order; all must succeed.

    ``env`` is extended by the place of the ``ptocache`` command.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    ran = 0
    for language, file, text in _BLOCK.findall((ROOT / page).read_text()):
        if file:
            (work / file).write_text(text)
            continue
        command = {"sh": ["sh", "-e", "-c"], "python": [sys.executable, "-c"]}.get(language)
        if command:
            done = subprocess.run(
                [*command, text], cwd=work, env={**env, "PATH": path}, capture_output=True,
                text=True, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran
