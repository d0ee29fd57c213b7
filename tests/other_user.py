"""Processes of another user than the one who runs the tests, which root alone can have.

The interpreter may lie where nobody else can reach it (below root's home, say): then the other user
gets a copy, made once. (Links would change the stamps of the original, which other tests look at.)
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness import DEADLINE_S

ROOT = Path(__file__).resolve().parents[1]
TREES = (ROOT, ROOT / "toolchains", ROOT / "cli")
_LEFT_OUT = (
    "test", "site-packages", "idlelib", "tkinter", "turtledemo", "ensurepip", "config-*",
    "distutils", "lib2to3", "pydoc_data", "unittest", "*.opt-?.pyc",
)  # fmt: skip
_FIRST_UID = 23_000


def is_root() -> bool:
    """True if there can be somebody else."""
    return os.geteuid() == 0


class Python(NamedTuple):
    """An interpreter for everybody, and the variables that it needs."""

    executable: str
    env: dict[str, str]


class Somebody(NamedTuple):
    """A user without a name: no entry in the password file, no home of its own."""

    uid: int
    python: Python

    def run(
        self, *words: str, env: dict[str, str], **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the interpreter with ``words`` as this user; ``env`` is the whole environment."""
        return subprocess.run(
            [self.python.executable, *words], env={**env, **self.python.env}, cwd="/",
            user=self.uid, group=self.uid, extra_groups=[], capture_output=True, timeout=DEADLINE_S,
            check=False, **options,
        )  # fmt: skip

    def own(self, path: Path, mode: int = 0o700) -> Path:
        """Make a folder of this user's."""
        path.mkdir(exist_ok=True)
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)
        return path


def somebody(number: int = 0) -> Somebody:
    """One of several; tests that run at the same time get different ones."""
    uid = _FIRST_UID + 10 * (os.getpid() % 3_000) + number
    with contextlib.suppress(KeyError):
        raise AssertionError(f"there is a user {pwd.getpwuid(uid).pw_name}")
    return Somebody(uid, _python())


@functools.cache
def _python() -> Python:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    found = [str(tree) for tree in TREES] + packages
    env = {"PYTHONPATH": os.pathsep.join(found), "PYTHONDONTWRITEBYTECODE": "1"}
    real = os.path.realpath(sys.executable)
    if _reachable(real) and _reachable(os.__file__):
        return Python(real, env)
    home = _copied(Path(real))
    env["LD_LIBRARY_PATH"] = str(home / "lib")
    return Python(str(home / "bin" / Path(real).name), env)


def _reachable(path: str) -> bool:
    """True if everybody can read it."""
    above = [str(folder) for folder in Path(path).parents]
    return all(os.stat(item).st_mode & stat.S_IXOTH for item in above) and bool(
        os.stat(path).st_mode & stat.S_IROTH
    )


def _copied(executable: Path) -> Path:
    home = Path(tempfile.gettempdir()) / f"ptocache-python-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    library = Path(os.__file__).parent
    # Whatever the one who runs the tests is used to, others are to read it.
    umask = os.umask(0o022)
    try:
        shutil.copytree(
            library, home / "lib" / library.name, symlinks=True,
            ignore=shutil.ignore_patterns(*_LEFT_OUT),
        )  # fmt: skip
        for shared in library.parent.glob("libpython*"):
            shutil.copy(shared, str(home / "lib" / shared.name))
        (home / "bin").mkdir()
        shutil.copy(executable, str(home / "bin" / executable.name))
    finally:
        os.umask(umask)
    return home


def forget_python() -> None:
    """Remove what was made for others."""
    if _python.cache_info().currsize:
        home = Path(_python().executable).parents[1]
        _python.cache_clear()
        if home.name.startswith("ptocache-python-"):
            shutil.rmtree(home, ignore_errors=True)
