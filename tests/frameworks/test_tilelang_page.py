"""The page of the documentation, run line by line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.page import run_page

if TYPE_CHECKING:
    from tests.frameworks.rig import Rig


def test_page_of_tilelang_runs_line_by_line(rig: Rig) -> None:
    work = rig.place / "work"
    work.mkdir()
    env = rig.env(PTOCACHE_AUTOSTART="1", PTOCACHE_TRUST_SCRIPTS=str(rig.compiler))
    try:
        run_page("docs/how-to/tilelang.md", work, env)
    finally:
        command = Path(sys.executable).with_name("ptocache")
        subprocess.run(
            [command, "stop"], env={**os.environ, **env}, check=True, capture_output=True
        )
    # Once with ptocache, once without.
    assert len(rig.compiles()) == 2
