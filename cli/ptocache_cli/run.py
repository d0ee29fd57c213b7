"""``run``: one command with the frameworks below it getting their kernels from ptocache."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any, NamedTuple

import typer

import ptocache
from ptocache.errors import BadRequestError

from . import exits, screen
from .passing import PassedOn, passed_on
from .session import examples
from .shims import LAUNCHER

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""As a shell says it."""


class Part(NamedTuple):
    """A framework that can be switched on."""

    variable: str
    """Of its hook, which is set to 1."""
    module: str
    """The integration, relative to the package; without it there is nothing to switch on."""


PARTS = {
    "tilelang": Part("PTOCACHE_TILELANG", "integrations/tilelang.py"),
    "triton": Part("PTOCACHE_TRITON", "integrations/triton.py"),
}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "run",
        cls=PassedOn,
        options_metavar="[OPTIONS] -- COMMAND...",
        epilog=examples(
            "ptocache run -- python train.py",
            "ptocache run -- torchrun --nproc-per-node 8 train.py",
            'eval "$(ptocache run --print)"      for all that follows in this shell',
        ),
    )(run)


def run(
    ctx: typer.Context,
    tilelang: Annotated[
        bool | None, typer.Option("--tilelang/--no-tilelang", help="TileLang's kernels.")
    ] = None,
    triton: Annotated[
        bool | None, typer.Option("--triton/--no-triton", help="Triton's kernels.")
    ] = None,
    shims: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Compilers too: a folder that `ptocache shims` has made."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the variables for a shell; run nothing.")
    ] = False,
) -> None:
    """Run a command whose frameworks get their kernels from ptocache.

    Which ones: those that are named; without a name all that are there. The command itself needs no
    change, and goes on without ptocache if it is not installed where the command runs.
    """
    command = passed_on(ctx)
    if show == bool(command):
        screen.complain("give a command behind --" if not show else "--print takes no command")
        raise typer.Exit(exits.WRONG_USE)
    wanted = {"tilelang": tilelang, "triton": triton}
    variables = variables_for(wanted, os.environ.get("PYTHONPATH", ""))
    if shims is not None:
        variables["PATH"] = _with_shims(shims, os.environ.get("PATH", os.defpath))
    if show:
        for name, value in variables.items():
            screen.say(f"export {name}={shlex.quote(value)}")
        return
    screen.flush()
    _become(command, {**os.environ, **variables})


def variables_for(wanted: dict[str, bool | None], python_path: str) -> dict[str, str]:
    """What must be set for the parts that are ``wanted`` (``None``: if no other one is named)."""
    package = os.path.dirname(os.path.abspath(ptocache.__file__))
    named = any(wanted.values())
    found = {}
    for name, part in PARTS.items():
        choice = wanted.get(name)
        there = os.path.exists(os.path.join(package, part.module))
        on = there and (choice if choice is not None else not named)
        found[part.variable] = "1" if on else "0"
    startup = os.path.join(package, "integrations", "startup")
    rest = [item for item in python_path.split(os.pathsep) if item and item != startup]
    return {**found, "PYTHONPATH": os.pathsep.join([startup, *rest])}


def _with_shims(folder: str, path: str) -> str:
    """``PATH`` with a folder of shims in front."""
    place = os.path.abspath(folder)
    if not os.path.exists(os.path.join(place, LAUNCHER)):
        raise BadRequestError(
            f"{folder} is no folder of shims", hint=f"make it: ptocache shims {folder}", path=folder
        )
    return os.pathsep.join([place, *(item for item in path.split(os.pathsep) if item != place)])


def _become(command: list[str], env: dict[str, str]) -> Any:
    """Run the command in the place of this process, which hands on signals and the exit code."""
    try:
        os.execvpe(command[0], command, env)
    except FileNotFoundError:
        screen.complain(f"{command[0]}: not found")
        raise typer.Exit(NOT_FOUND) from None
    except OSError as error:
        screen.complain(f"{command[0]}: {error.strerror}")
        raise typer.Exit(NOT_EXECUTABLE) from None
