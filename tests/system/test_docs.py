"""The documentation is true: links lead somewhere, and what it tells a reader to run does run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ptocache.config import TABLE
from tests.harness import DEADLINE_S

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUNNABLE = [
    "docs/tutorial/first-kernel.md",
    "docs/how-to/launch-a-kernel.md",
    "docs/reference/client.md",
    "README.md",
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
_BLOCK = re.compile(r"^```(\w+)?(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match) for match in _BLOCK.findall((ROOT / page).read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    broken = [
        target
        for target in _LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("page", RUNNABLE)
def test_blocks_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PTOCACHE_DIR": str(tmp_path / "store"),
        "PTOCACHE_IDLE_TIMEOUT": "60s",
    }
    work = tmp_path / "work"
    work.mkdir()
    ran = 0
    try:
        for block in blocks(page):
            if block.file:
                (work / block.file).write_text(block.text)
            command = {"sh": ["sh", "-e", "-c"], "python": [sys.executable, "-c"]}.get(
                block.language
            )
            if command:
                done = subprocess.run(
                    [*command, block.text], cwd=work, env=env, capture_output=True, text=True,
                    timeout=DEADLINE_S, check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
                ran += 1
    finally:
        subprocess.run(
            [sys.executable, "-m", "ptocache_cli", "stop"], env=env, check=False,
            capture_output=True, timeout=DEADLINE_S,
        )  # fmt: skip
    assert ran


def test_every_setting_is_documented_with_its_variable() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    missing = [row.name for row in TABLE if f"| `{row.name}` | `{row.variable}` |" not in page]
    assert not missing


def test_the_laws_name_tests_that_exist() -> None:
    page = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"`((?:tests|bench)/[\w/]+\.py)`", page))
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_plugin_of_the_how_to_compiles_and_is_cached(tmp_path: Path) -> None:
    (plugin,) = [b for b in blocks("docs/how-to/write-a-toolchain.md") if b.file]
    package = tmp_path / "site"
    info = package / "ptocache_gas-1.dist-info"
    info.mkdir(parents=True)
    (package / plugin.file).write_text(plugin.text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ptocache-gas\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[ptocache.toolchains]\ngas = ptocache_gas:GasToolchain\n"
    )
    program = (
        "import ptocache\n"
        "source = '.globl three\\nthree: .byte VALUE\\n'\n"
        "with ptocache.connect(client_require=True, daemon_idle_timeout='60s') as cache:\n"
        "    for value in (3, 3, 4):\n"
        "        result = cache.compile('gas', {'t.s': source}, symbols=['three'],"
        " options=[f'--defsym=VALUE={value}'])\n"
        "        print(result.outcome.label)\n"
        "    cache.call('stop')\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(package),
        "PTOCACHE_DIR": str(tmp_path / "store"),
        "PTOCACHE_IDLE_TIMEOUT": "60s",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False,
        timeout=DEADLINE_S, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["miss", "memory_hit", "miss"], done.stderr
