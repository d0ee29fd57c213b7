"""``ptocache run``: a command with the hook of the frameworks, and what happens where ptocache is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ptocache import integrations
from tests.harness import DEADLINE_S, wait_for
from tests.system.cli_runner import finish, ptocache, start

STARTUP = Path(integrations.__file__).parent / "startup"
TOLD = (
    "import json, os, sys; "
    "print(json.dumps({'path': sys.path, 'env': dict(os.environ), 'words': sys.argv[1:]}))"
)


def python(
    code: str, *, program: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    """A Python process with the start-up folder, as ``ptocache run`` starts it."""
    return subprocess.run(
        [program, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd="/",
        env={**os.environ, "PYTHONPATH": str(STARTUP), "PTOCACHE_TILELANG": "1", **env},
    )  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with a package ``tilelang`` that has nothing of the real one."""
    package = tmp_path / "fake" / "tilelang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('imported')\n")
    return package.parent


# --- the command


def test_command_runs_with_the_hook_its_words_and_its_exit_code() -> None:
    done = ptocache("run", "--", sys.executable, "-c", TOLD, "--flag", "--", "-x")
    told = done.json()
    assert told["words"] == ["--flag", "--", "-x"]
    assert told["env"]["PTOCACHE_TILELANG"] == "1"
    assert told["env"]["PYTHONPATH"] == str(STARTUP)
    assert str(STARTUP) not in told["path"]
    assert ptocache("run", "--", "sh", "-c", "echo said >&2; exit 7") == (7, b"", b"said\n")


def test_search_path_of_the_user_stays_behind_the_hook() -> None:
    env = {"PYTHONPATH": os.pathsep.join(["/one", str(STARTUP), "/two"])}
    told = ptocache("run", "--", sys.executable, "-c", TOLD, env=env).json()
    assert told["env"]["PYTHONPATH"] == os.pathsep.join([str(STARTUP), "/one", "/two"])
    assert [item for item in told["path"] if item in ("/one", "/two")] == ["/one", "/two"]


@pytest.mark.parametrize(
    ("words", "value"), [([], "1"), (["--tilelang"], "1"), (["--no-tilelang"], "0")]
)
def test_frameworks_can_be_chosen(words: list[str], value: str) -> None:
    told = ptocache("run", *words, "--", sys.executable, "-c", TOLD).json()
    assert told["env"]["PTOCACHE_TILELANG"] == value


def test_folder_of_shims_stands_first_on_the_path(tmp_path: Path) -> None:
    missing = ptocache("run", "--shims", str(tmp_path), "--", "true")
    assert missing.code == 2
    assert f"make it: ptocache shims {tmp_path}" in missing.err
    assert ptocache("shims", str(tmp_path), "--names", "gcc").code == 0
    told = ptocache("run", "--shims", str(tmp_path), "--", sys.executable, "-c", TOLD).json()
    assert told["env"]["PATH"].split(os.pathsep)[0] == str(tmp_path)
    assert told["env"]["PTOCACHE_TILELANG"] == "1"


def test_variables_can_be_printed_for_a_shell(tmp_path: Path) -> None:
    done = ptocache("run", "--print", env={"PYTHONPATH": "/a b"})
    script = f'{done.out}\nexec "{sys.executable}" -c "$0"'
    told = subprocess.run(
        ["sh", "-c", script, TOLD], capture_output=True, text=True, check=True, env={}
    )
    env = json.loads(told.stdout)["env"]
    assert env["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/a b"
    assert env["PTOCACHE_TILELANG"] == "1"


def test_commands_that_cannot_run_end_as_in_a_shell(tmp_path: Path) -> None:
    missing = ptocache("run", "--", "no-such-command")
    assert (missing.code, missing.err) == (127, "ptocache: no-such-command: not found\n")
    (tmp_path / "file").write_text("")
    refused = ptocache("run", "--", str(tmp_path / "file"))
    assert refused.code == 126
    assert "Permission denied" in refused.err


@pytest.mark.parametrize("words", [[], ["--print", "--", "true"], ["--"]])
def test_wrong_use_is_said(words: list[str]) -> None:
    done = ptocache("run", *words)
    assert (done.code, done.out) == (2, "")
    assert "command" in done.err


def test_signals_reach_the_command_itself(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "signal.pause()\n"
    )
    process = start("run", "--", sys.executable, "-c", code)
    wait_for((tmp_path / "up").exists, "the command to be ready")
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 9


# --- the hook at the start of an interpreter


def test_process_without_a_framework_imports_next_to_nothing() -> None:
    done = python("import sys; print(sorted(n for n in sys.modules if 'ptocache' in n))")
    assert done.stdout == "['ptocache', 'ptocache.integrations', 'ptocache.integrations.hook']\n"
    assert done.stderr == ""


def test_another_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    both = os.pathsep.join([str(STARTUP), str(tmp_path)])
    done = python("import sitecustomize; print(sitecustomize.__file__)", PYTHONPATH=both)
    assert done.stdout == f"theirs\n{tmp_path / 'sitecustomize.py'}\n"


def test_another_sitecustomize_that_fails_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise LookupError('theirs')\n")
    both = os.pathsep.join([str(STARTUP), str(tmp_path)])
    done = python("print('on')", PYTHONPATH=both)
    assert done.stdout == "on\n"
    assert "LookupError: theirs" in done.stderr


def test_framework_that_ptocache_does_not_know_is_imported_with_one_warning(fake: Path) -> None:
    both = os.pathsep.join([str(STARTUP), str(fake)])
    done = python("import tilelang", PYTHONPATH=both)
    assert (done.returncode, done.stdout) == (0, "imported\n")
    assert done.stderr.count("Warning: ") == 1
    strict = python(
        "import warnings; warnings.simplefilter('error'); import tilelang", PYTHONPATH=both
    )
    assert (strict.returncode, strict.stdout) == (0, "imported\n")


def test_framework_is_imported_without_a_word_where_ptocache_was_removed_whole(
    fake: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone" / "startup"
    done = python("import tilelang", PYTHONPATH=os.pathsep.join([str(gone), str(fake)]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


def test_framework_is_imported_with_one_warning_where_ptocache_is_not_installed(
    fake: Path, tmp_path: Path
) -> None:
    # The command of one environment, the interpreter of another.
    venv.create(tmp_path / "other", with_pip=False)
    program = str(tmp_path / "other" / "bin" / "python")
    both = os.pathsep.join([str(STARTUP), str(fake)])
    silent = python("print('on')", program=program, PYTHONPATH=both)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "on\n", "")
    done = python("import tilelang", program=program, PYTHONPATH=both)
    assert (done.returncode, done.stdout) == (0, "imported\n")
    assert f"ptocache is not installed for {program}: tilelang goes on" in done.stderr
    assert done.stderr.count("Warning: ") == 1


def test_interpreter_starts_where_half_of_ptocache_is_left(fake: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(STARTUP, half / "startup")
    venv.create(tmp_path / "other", with_pip=False)
    program = str(tmp_path / "other" / "bin" / "python")
    both = os.pathsep.join([str(half / "startup"), str(fake)])
    done = python("import tilelang", program=program, PYTHONPATH=both)
    assert (done.returncode, done.stdout) == (0, "imported\n")
    assert done.stderr.count("ptocache: ") == 1
