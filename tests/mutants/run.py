"""Runs each mutant's test on a copy of the checkout that has its fault, where it must fail.

Each test must pass on an unchanged copy first: one that fails anyway shows nothing. A line a mutant; the
last line is the account as one JSON object. Exits 1 if a fault was not caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.catalogue import MUTANTS

if TYPE_CHECKING:
    from tests.mutants import Mutant

ROOT = Path(__file__).parents[2]
ROOTS = (".", "toolchains", "cli")
_LIMIT_S = 600
_DEADLINE_S = 30
"""On a mutant many a wait is in vain."""
_TESTS_FAILED = 1
"""What pytest exits with when tests failed; anything else is no verdict."""


def copy_of_checkout(place: Path) -> Path:
    """A copy of what the product and its tests consist of."""
    for name in ("ptocache", "toolchains", "cli", "tests", "docs", "bench"):
        shutil.copytree(
            ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
        shutil.copy2(path, place)
    _make_environment(place)
    return place


def _make_environment(place: Path) -> None:
    """An environment whose every process imports from the copy, whatever variables a test gives it."""
    prefix = place / ".venv"
    venv.create(prefix, symlinks=True)
    (site,) = (prefix / "lib").glob("python3*/site-packages")
    originals = [path for path in sys.path if path.endswith("site-packages")]
    roots = [str(place / root) for root in ROOTS]
    # A mutant lives for seconds: bytecode of its neighbour could pass for its own.
    quiet = "import sys; sys.dont_write_bytecode = True"
    (site / "roots.pth").write_text("\n".join([*roots, *originals, quiet, ""]))
    command = Path(sys.executable).with_name("ptocache").read_text().splitlines(keepends=True)
    copied = prefix / "bin" / "ptocache"
    copied.write_text("".join([f"#!{prefix / 'bin' / 'python'}\n", *command[1:]]))
    copied.chmod(0o755)
    # Downloads that tests read lie below the environment.
    (prefix / "wheels").symlink_to(ROOT / ".venv" / "wheels")


def verdict(checkout: Path, test: str) -> tuple[int, str]:
    """pytest's exit code for one test on a copy, and what it said."""
    command = [
        str(checkout / ".venv" / "bin" / "python"), "-m", "pytest", "-q", "-x", "--no-header",
        "-p", "no:cacheprovider", test,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, timeout=_LIMIT_S,
            env={**os.environ, "PTOCACHE_TEST_DEADLINE_S": str(_DEADLINE_S)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _TESTS_FAILED, f"no end within {_LIMIT_S} s"
    return done.returncode, done.stdout + done.stderr


def with_fault(checkout: Path, mutant: Mutant) -> tuple[int, str]:
    """The verdict on a copy while it has the fault."""
    path = checkout / mutant.file
    text = path.read_text()
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        return verdict(checkout, mutant.test)
    finally:
        path.write_text(text)


def judge(checkout: Path, mutant: Mutant, sound: dict[str, bool]) -> str:
    """``caught``, or what is wrong: ``missed``, ``stale`` or ``unsound``."""
    if (checkout / mutant.file).read_text().count(mutant.before) != 1:
        return "stale"
    if mutant.test not in sound:
        code, said = verdict(checkout, mutant.test)
        sound[mutant.test] = code == 0
        if code:
            sys.stderr.write(said)
    if not sound[mutant.test]:
        return "unsound"
    code, said = with_fault(checkout, mutant)
    if code == _TESTS_FAILED:
        return "caught"
    sys.stderr.write(said)
    return "missed"


def main() -> int:
    """Run, and print the account."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kinds", nargs="*", help="only these kinds")
    wanted = parser.parse_args().kinds
    place = Path(tempfile.mkdtemp(prefix="ptocache-mutants-"))
    # Some tests have processes of other users, which import from here as well.
    place.chmod(0o755)
    # Tests with several users run the copy as other ones too.
    place.chmod(0o755)
    sound: dict[str, bool] = {}
    counts: dict[str, int] = {}
    try:
        checkout = copy_of_checkout(place)
        for mutant in MUTANTS:
            if wanted and mutant.kind not in wanted:
                continue
            said = judge(checkout, mutant, sound)
            counts[said] = counts.get(said, 0) + 1
            print(f"{said:8}{mutant.kind}: {mutant.fault}", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(json.dumps({"mutants": sum(counts.values()), "tests": len(sound), **counts}))
    return 0 if set(counts) <= {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
