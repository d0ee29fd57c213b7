"""Simulated releases of ptoas, as an unpacked tree or installed by pip, and a PTODSL front end."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.simcann.tools import build_tool
from tests.simcann.tree import LAUNCHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Era: TypeAlias = Literal["0.30", "0.52", "0.56"]

_PYTHON_LAUNCHER = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/python/bin/python3" -I -S -B "$here/ptoas/__main__.py" "$@"
"""
_MAIN = """\
# TEST FIXTURE: runs the simulated ptoas of this package.
import os, sys
binary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", "ptoas")
os.execv(binary, [binary, *sys.argv[1:]])
"""
_BROKEN_LAUNCHER = "#!/usr/bin/env python3\nimport ptoas_needs_its_bundled_interpreter\n"
_PIP_LAUNCHER = """\
#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from ptoas.__main__ import main
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit(main())
"""
_PIP_MAIN = """\
# TEST FIXTURE: runs the simulated ptoas of this package.
import os, sys
def main():
    binary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", "ptoas")
    os.execv(binary, [binary, *sys.argv[1:]])
"""


def make_ptoas_release(
    root: Path,
    *,
    era: Era = "0.30",
    log: Path,
    knobs: Path,
    identity: str = "A",
    interpreter: Literal["link", "copy"] = "link",
) -> Path:
    """Write an unpacked release (what PTOAS_ROOT names); the path of the tool in it.

    0.30: a shell script ``ptoas`` that execs ``libexec/ptoas``. 0.52: an executable ``bin/ptoas``
    and a package directory ``ptoas``. 0.56: a shell script ``ptoas.sh`` that selects
    ``python/bin/python3`` (a link to, or a copy of, this process's interpreter), which runs
    ``ptoas/__main__.py``, which execs ``ptoas/_native/ptoas``; its ``bin/ptoas`` runs under the
    caller's ``python3`` and fails. ``log`` and ``knobs`` are those of :class:`SimCann`.
    """
    binary = root / {"0.30": "libexec", "0.52": "bin", "0.56": "ptoas/_native"}[era]
    build_tool(binary, log=log, knobs=knobs, identity=identity, name="ptoas")
    (root / "lib").mkdir()
    (root / "lib" / "VERSION").write_text(f"{era}\n")
    if era == "0.30":
        return _script(root / "ptoas", LAUNCHER.replace("{target}", "libexec/ptoas"))
    _write(root / "ptoas" / "__init__.py", f'VERSION = "{era}"\n')
    if era == "0.52":
        return root / "bin" / "ptoas"
    _write(root / "ptoas" / "__main__.py", _MAIN)
    _script(root / "bin" / "ptoas", _BROKEN_LAUNCHER)
    _interpreter(root / "python" / "bin" / "python3", interpreter)
    return _script(root / "ptoas.sh", _PYTHON_LAUNCHER)


def make_pip_ptoas(
    prefix: Path, *, log: Path, knobs: Path, identity: str = "A", python: str = sys.executable
) -> Path:
    """Write what ``pip install`` makes of a ptoas wheel; the launcher ``prefix/bin/ptoas``.

    The package is ``prefix/lib/pythonX.Y/site-packages/ptoas``, X.Y being this process's version.
    The launcher's first line names ``python``, which must find the package: make it that of a venv
    in ``prefix``, or set PYTHONPATH.
    """
    package = pip_site(prefix) / "ptoas"
    build_tool(package / "_native", log=log, knobs=knobs, identity=identity, name="ptoas")
    _write(package / "__init__.py", "")
    _write(package / "__main__.py", _PIP_MAIN)
    _write_dist_info(pip_site(prefix), "ptoas", "0.1.1")
    return _script(prefix / "bin" / "ptoas", _PIP_LAUNCHER.replace("{python}", python))


def pip_site(prefix: Path) -> Path:
    """``site-packages`` below a prefix, for this process's version of Python."""
    major, minor = sys.version_info[:2]
    return prefix / "lib" / f"python{major}.{minor}" / "site-packages"


_FRONTEND = '''\
"""TEST FIXTURE: a stand-in of the PTODSL front end. It compiles nothing."""
VERSION = "@VERSION@"


class IrModule:
    """What the decorator makes of a function; ``str()`` is PTO-like text."""

    def __init__(self, function, meta_data):
        self.name = function.__name__
        code = function.__code__
        texts = [repr(c) for c in code.co_consts if not hasattr(c, "co_code")]
        meta = meta_data() if callable(meta_data) else meta_data
        self._lines = [
            f"// ptodsl {VERSION}",
            f"// constants: {'; '.join(texts)}",
            f"// names: {' '.join(code.co_names)}",
            f"// meta_data: {sorted((meta or {}).items())}",
        ]

    def __str__(self):
        body = "".join(f"    {line}\\n" for line in self._lines)
        return f"module {{\\n  func.func @{self.name}() {{\\n{body}    return\\n  }}\\n}}\\n"


def to_ir_module(function=None, *, meta_data=None):
    """Usable as ``@to_ir_module`` and as ``@to_ir_module(meta_data=…)``."""
    if function is not None:
        return IrModule(function, meta_data)
    return lambda function: IrModule(function, meta_data)
'''


def make_frontend(site_dir: Path, version: str = "0.1.0") -> Path:
    """Write a package ``ptodsl`` into a site directory (again: another version); its directory.

    ``from ptodsl import to_ir_module``; a decorated function becomes an object whose ``str()`` is
    ``module { func.func @name() {…} }`` with the function's constants, the names that it uses, its
    meta data and the package's VERSION.
    """
    package = site_dir / "ptodsl"
    # Python takes byte code of an older text for current if size and second of both are the same.
    shutil.rmtree(package, ignore_errors=True)
    _write(package / "__init__.py", _FRONTEND.replace("@VERSION@", version))
    for old in site_dir.glob("ptodsl-*.dist-info"):
        shutil.rmtree(old)
    _write_dist_info(site_dir, "ptodsl", version)
    return package


def _write_dist_info(site: Path, name: str, version: str) -> None:
    place = site / f"{name}-{version}.dist-info"
    _write(place / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    _write(place / "INSTALLER", "pip\n")
    _write(place / "RECORD", f"{name}/__init__.py,,\n{place.name}/METADATA,,\n")


def _interpreter(path: Path, form: Literal["link", "copy"]) -> None:
    # The base interpreter: one of a venv finds itself by a file beside its link.
    target = os.path.realpath(sys.executable)
    path.parent.mkdir(parents=True)
    if form == "link":
        path.symlink_to(target)
    else:
        shutil.copy2(target, path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _script(path: Path, text: str) -> Path:
    _write(path, text)
    path.chmod(0o755)
    return path
