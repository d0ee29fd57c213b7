"""Folders for the files of kernels: one a process, gone with it, and never taken from who still uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ptocache.integrations import shelf
from tests.harness import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(place: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import os\nfrom ptocache.integrations.shelf import shelf\n{code}"],
        env={**os.environ, "TMPDIR": str(place)}, cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def left(place: Path) -> list[Path]:
    return list(place.glob("ptocache-kernels-*"))


def test_folders_are_new_private_and_gone_at_the_end(place: Path) -> None:
    told = run(
        place,
        "one, two = shelf.place(), shelf.place()\n"
        "print(one != two, os.listdir(one), oct(os.stat(one).st_mode), one.startswith(os.environ['TMPDIR']))",
    )
    assert told == "True [] 0o40700 True\n"
    assert not left(place)


def test_folder_of_a_killed_process_is_removed_by_the_next(place: Path) -> None:
    run(place, "shelf.place()\nos._exit(0)")
    assert len(left(place)) == 1
    run(place, "shelf.place()")
    assert not left(place)


def test_folder_in_use_is_not_removed(place: Path) -> None:
    used = shelf.Shelf()
    kept = used.place()
    run(place, "shelf.place()\nos._exit(0)")
    shelf.sweep()
    assert os.path.isdir(kept)
    assert left(place) == [Path(kept).parent]


def test_forked_child_keeps_what_its_parent_made_and_has_its_own(place: Path) -> None:
    told = run(
        place,
        "import sys\n"
        "first = shelf.place()\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.close(w)\n"
        "    os.read(r, 1)\n"
        "    from ptocache.integrations.shelf import sweep\n"
        "    sweep()\n"
        "    own = shelf.place()\n"
        "    print(os.path.isdir(first), os.path.dirname(own) != os.path.dirname(first), flush=True)\n"
        "    sys.exit()\n",
    )
    assert told == "True True\n"
    # That of the parent was still held when it ended.
    shelf.sweep()
    assert not left(place)


def test_folder_that_is_open_to_others_is_not_touched(place: Path) -> None:
    strange = place / f"ptocache-kernels-{os.geteuid()}-x"
    strange.mkdir()
    strange.chmod(0o777)
    link = place / f"ptocache-kernels-{os.geteuid()}-y"
    link.symlink_to(place)
    shelf.sweep()
    assert strange.is_dir()
    assert link.is_symlink()
