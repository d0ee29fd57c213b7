"""The front end as a part of the toolchain: who it is, how it is run, and what its runs looked at.

It runs in the Python of the caller (``front_end.py`` is the program), so that Python belongs to the
identity: the interpreter, where it looks for modules, and the installed front end with all that it
requires.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from ptocache.errors import ToolNotFoundError
from ptocache.model import Step, ToolFile
from ptocache_cann import launcher
from ptocache_cann.installation import invoked, invoked_of
from ptocache_cfamily.discovery import Looked
from ptocache_cfamily.programs import is_program, loaded_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ptocache.model import Installation, Tree
    from ptocache.toolchain import Probe

STEP = "front end"
SEARCH = ("PTOCACHE_PYTHON", "PYTHONPATH")
"""The variables on which it depends: interpreter and search path for modules."""
_PACKAGES = ("ptodsl", "mlir")
_LOOKED_FILE = "front_end.json"
_DRIVER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "front_end.py")
_HASH_SEED = ("PYTHONHASHSEED", "0")
# Byte code may be older than the source that is identified: two versions of one size within a second.
_NO_BYTE_CODE = "pycache_prefix=/nonexistent"


def added_to(installation: Installation, env: Mapping[str, str], probe: Probe) -> Installation:
    """The installation with the front end in it.

    Raises :class:`~ptocache.errors.ToolNotFoundError`.
    """
    # By their own names, so that no spelling of them reaches the program.
    path = os.pathsep.join(map(os.path.realpath, _module_path(env)))
    python = _python(env, path, probe)
    files, trees = _parts(python, _module_path(env), probe)
    with open(_DRIVER, "rb") as file:
        driver = hashlib.sha256(file.read()).hexdigest()
    facts: dict[str, Any] = {
        **installation.facts,
        "front_end": {
            "driver": driver,
            "packages": [list(item) for item in python.versions],
            # A module may be anywhere in it: another order is another kernel.
            "search": [os.path.realpath(item) for item in python.search],
        },
    }
    return installation._replace(
        banner="; ".join(
            (installation.banner, f"Python {python.version}", *map(" ".join, python.versions))
        ),
        files=(*installation.files, *files),
        trees=(*installation.trees, *trees),
        # A package that is installed anew is another folder of the same name.
        directories=(
            *installation.directories,
            *launcher.site_directories(python),
            *_module_path(env),
            *(os.path.dirname(package) for package in python.packages),
        ),
        facts=facts,
        local={**installation.local, "module_path": path},
    )


def step(source: str, out: str, kernels: tuple[str, ...], installation: Installation) -> Step:
    """Run a Python source for the PTO text of its kernels."""
    path = str(installation.local["module_path"])
    return Step(
        name=STEP,
        argv=(
            invoked(installation, f"{STEP} python"), "-B", "-s", "-X", _NO_BYTE_CODE,
            _DRIVER, source, out, _LOOKED_FILE, *kernels,
        ),
        creates=(out,),
        depfile=_LOOKED_FILE,
        # Without isolation, which would forget these two; nothing else of a caller's is there.
        env=(("PYTHONPATH", path), _HASH_SEED) if path else (_HASH_SEED,),
    )  # fmt: skip


def looked_at(text: str, covered: Callable[[str], bool]) -> tuple[tuple[Looked, ...], str]:
    """What a run looked at, out of its report, and why that is not all; see ``front_end.py``.
    ``covered``: true for paths in the identified trees."""
    if not text:
        return (), ""
    try:
        found = json.loads(text)
        looked = Looked(tuple(map(str, found["opened"])), tuple(map(str, found["absent"])))
        listed = [str(path) for path in found["listed"] if not covered(str(path))]
        unseen = str(found["unseen"])
    except (ValueError, KeyError, TypeError) as error:
        return (), f"what the front end looked at cannot be read: {error}"
    if listed and not unseen:
        unseen = f"the front end lists the directory {listed[0]}"
    return (looked,), unseen


def _python(env: Mapping[str, str], path: str, probe: Probe) -> launcher.Python:
    variable = SEARCH[0]
    interpreter = env.get(variable, "")
    if not os.path.isabs(interpreter) or not is_program(interpreter):
        raise ToolNotFoundError(
            f"no Python for the front end: {variable}={interpreter!r}",
            hint=f"set {variable} to the interpreter that has the front end installed",
            looked=[interpreter] if interpreter else [],
        )
    python = launcher.ask(invoked_of(interpreter), _PACKAGES, probe, path)
    if not python.packages:
        raise ToolNotFoundError(
            f"{interpreter} finds none of the front ends {', '.join(_PACKAGES)}",
            hint="install one there, or put it on PYTHONPATH",
            looked=[interpreter, *_module_path(env)],
        )
    return python._replace(executable=interpreter)


def _parts(
    python: launcher.Python, module_path: list[str], probe: Probe
) -> tuple[tuple[ToolFile, ...], tuple[Tree, ...]]:
    files, trees = launcher.parts_of(python)
    # Looked at on every request, by the names that were given: another package or another environment
    # may have come behind them, around the same interpreter.
    homes = {
        os.path.realpath(home): home
        for home in (*map(os.path.dirname, python.packages), *reversed(module_path))
    }
    heads = [
        ToolFile(f"package {name}", os.path.join(home, name, "__init__.py"), True)
        for home in homes.values()
        for name in _PACKAGES
        if os.path.isfile(os.path.join(home, name, "__init__.py"))
    ]
    site = [
        file._replace(principal=file.path.endswith("pyvenv.cfg"))
        for file in launcher.site_files(python)
    ]
    libraries = (
        ToolFile(f"lib:{os.path.basename(path)}", path, False)
        for path in loaded_libraries(python.executable, probe)
    )
    # A launcher of ptoas may have brought another interpreter, with the same parts.
    return (
        tuple(
            file._replace(role=f"{STEP} {file.role}")
            for file in (*files, *heads, *site, *libraries)
        ),
        tuple(tree._replace(role=tree.role.replace(":", f":{STEP} ", 1)) for tree in trees),
    )


def _module_path(env: Mapping[str, str]) -> list[str]:
    """PYTHONPATH without the entries that mean the caller's current directory."""
    return [item for item in env.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(item)]
