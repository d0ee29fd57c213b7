"""``wrap`` and ``shims``: compilers through the cache, one command or all of a folder's names."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from typing import Annotated, NamedTuple

import typer

import ptocache
from ptocache.errors import BadRequestError

from . import exits, screen
from .passing import PassedOn, passed_on
from .session import examples

LAUNCHER = ".ptocache-shim"
"""The one file of a folder of shims; every other name in it is a link to this."""
_SHEBANG_LIMIT = 127
"""Longest first line that every Linux kernel reads (execve(2))."""
_PYTHON = """{shebang}
# ptocache-shim: made by `ptocache shims`; it stands for the compiler of its name.
import sys

sys.path += {places!r}
# A daemon that has to be started needs all that is installed there.
sys.executable = {python!r}
try:
    from ptocache.integrations.wrap import shim
except ImportError:
    # ptocache is gone: the compiler itself is not.
    import os

    name = os.path.basename(sys.argv[0])
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        place = os.path.join(folder or ".", name)
        try:
            with open(place, "rb") as file:
                ours = b"ptocache-shim" in file.read(1024)
        except OSError:
            continue
        if not ours and os.access(place, os.X_OK):
            os.execv(place, [place, *sys.argv[1:]])
    sys.exit("ptocache: " + name + ": command not found")
shim(sys.argv)
"""
# Read by a shell and by Python, for an interpreter whose path is too long for the first line, or has blanks.
_SHELL = "#!/bin/sh\n'''exec' {python} -IS \"$0\" \"$@\"\n' '''"


class _Shim(NamedTuple):
    name: str
    tool: str
    """The program that it stands for at this moment; empty if there is none."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "wrap",
        cls=PassedOn,
        epilog=examples(
            "ptocache wrap -- gcc -O2 -c saxpy.c -o saxpy.o",
            "ptocache wrap -- bisheng -xcce --npu-arch=dav-2201 -fPIC -shared k.cpp -o k.so",
        ),
    )(wrap)
    app.command(
        "shims",
        epilog=examples(
            'ptocache shims ~/.ptocache/bin && export PATH="$HOME/.ptocache/bin:$PATH"',
            "ptocache shims build/shims --names gcc,g++",
            "ptocache shims build/shims --all      also for compilers that are not there yet",
        ),
    )(make_shims)


def wrap(ctx: typer.Context) -> None:
    """Run one compiler command through the cache.

    What it prints, writes and returns is what the compiler itself would. A command that is not
    understood for sure is run by the compiler itself.
    """
    from ptocache.integrations import wrap as wrapper

    words = passed_on(ctx)
    if not words:
        screen.complain("give a command behind --")
        raise typer.Exit(exits.WRONG_USE)
    screen.flush()
    raise typer.Exit(wrapper.wrap(words))


def make_shims(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The folder to make, or to renew.")
    ],
    names: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Only these (default: all compilers found on PATH)."),
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="For every known name, whether it is on PATH or not.")
    ] = False,
) -> None:
    """Make a folder of compilers that go through the cache, to put first on PATH.

    Each is a link to one small launcher, named as the compiler: bisheng, ccec, ptoas, gcc, clang …
    The real one is looked for on PATH each time, behind this folder.
    """
    from ptocache.integrations import commandline
    from ptocache.integrations import wrap as wrapper

    if names and everything:
        screen.complain("give --names or --all, not both")
        raise typer.Exit(exits.WRONG_USE)
    place = os.path.abspath(directory)
    wanted = [name for name in names.split(",") if name] or list(commandline.TOOLS)
    path = os.environ.get("PATH", os.defpath)
    shims = []
    for name in wanted:
        if not commandline.tool_kind(name) or "/" in name:
            raise BadRequestError(
                f"{name} is no compiler that can be wrapped",
                hint=f"{', '.join(commandline.TOOLS)}, with a version or a target in the name too",
            )
        found = wrapper.find(name, path)
        if found or names or everything:
            shims.append(_Shim(name, found[0] if found else ""))
    if not shims:
        screen.complain("no compiler was found on PATH; --all makes shims all the same")
        raise typer.Exit(exits.FAILED)
    _write(place, [item.name for item in shims])
    for item in shims:
        screen.say(f"{item.name:<12}{item.tool or 'not on PATH now'}")
    screen.say(f"export PATH={shlex.quote(place)}:$PATH")


def launcher_text() -> str:
    """The launcher, for the interpreter that runs this."""
    import msgpack

    python = os.path.realpath(sys.executable)
    shebang = f"#!{python} -IS"
    if len(os.fsencode(shebang)) > _SHEBANG_LIMIT or any(char.isspace() for char in python):
        shebang = _SHELL.format(python=shlex.quote(python))
    files = (ptocache.__file__, msgpack.__file__)
    places = [os.path.dirname(os.path.dirname(os.path.abspath(str(file)))) for file in files]
    return _PYTHON.format(
        shebang=shebang, places=list(dict.fromkeys(places)), python=sys.executable
    )


def _write(place: str, names: list[str]) -> None:
    """Make the folder; raises :class:`OSError`, and :class:`~ptocache.errors.BadRequestError` for a name
    that something else has there."""
    os.makedirs(place, exist_ok=True)
    for name in names:
        path = os.path.join(place, name)
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == LAUNCHER):
            raise BadRequestError(
                f"{path} is there already and is no shim", hint="choose another folder", path=path
            )
    draft = os.path.join(place, f"{LAUNCHER}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(launcher_text())
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)
    # Builds may be running through it at this moment.
    os.replace(draft, os.path.join(place, LAUNCHER))
    for name in names:
        path = os.path.join(place, name)
        if not os.path.lexists(path):
            os.symlink(LAUNCHER, path)
