"""``ptocache run`` with the real TileLang, in interpreters that start from nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ptocache import integrations
from tests.frameworks.rig import PRELUDE

if TYPE_CHECKING:
    from tests.frameworks.rig import Rig

PROGRAM = "from pathlib import Path\n" + PRELUDE + "compile_c()\ntell(done=True)\n"


def run(rig: Rig, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, sys.executable, "-c", PROGRAM], env=rig.env(**env), cwd=rig.place, check=False,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_compilers_behind_shims_are_what_the_keys_of_kernels_have(rig: Rig) -> None:
    shims = rig.place / "shims"
    command = str(Path(sys.executable).with_name("ptocache"))
    subprocess.run([command, "shims", str(shims)], env=rig.env(), check=True, capture_output=True)
    rig.daemon.start()
    assert rig.cann
    behind = {"PATH": f"{shims}:{rig.env()['PATH']}", "CXX": ""}
    code = "compile_c(); compile_npu()\n"
    rig.build(code, **behind)
    assert rig.counts("kernel") == {"miss": 2}
    rig.build(code, CXX="")
    assert rig.counts("kernel") == {"miss": 2, "memory_hit": 2}


def test_variables_that_are_still_set_break_nothing_where_ptocache_was_removed(rig: Rig) -> None:
    removed = rig.place / "removed"
    removed.mkdir()
    (removed / "ptocache.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'ptocache'\", name='ptocache')\n"
    )
    startup = Path(integrations.__file__).parent / "startup"
    done = run(rig, PYTHONPATH=f"{startup}:{removed}", PTOCACHE_TILELANG="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ptocache is not installed for") == 1
    assert len(rig.compiles()) == 1
    assert list((rig.place / "tilelang").rglob("*.so"))
