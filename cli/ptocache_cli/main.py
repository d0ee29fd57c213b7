"""The ``ptocache`` command: its parts, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ptocache import __version__

from . import compile as compile_command
from . import demo, doctor, exits, explain, record, screen, serve, shims, store, verify, warm
from . import inspect as inspect_command
from . import run as run_command

_HELP = """A cache for compiled kernels, served by one small daemon of your own.

Compile through it, look into it, tidy it up. The first request starts the daemon by itself.
"""
_EPILOG = """\b
Exit codes:
  0  done
  1  the compile failed; warm: not all is stored; inspect: rejected; doctor: there is a problem
  2  wrong use
  3  no daemon, or it cannot be reached
  4  the store is damaged or unusable
  5  serve: a daemon already serves the store

\b
Examples:
  ptocache demo
  ptocache compile saxpy.c -- -O3 -march=native
  ptocache stats
"""


class _Commands(TyperGroup):
    """Ends quietly when the reader has gone or the user wants no more."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            screen.flush()
        except BrokenPipeError:
            screen.give_up(sys.stdout)
            raise typer.Exit(exits.NOBODY_READS) from None
        except KeyboardInterrupt:
            screen.complain("interrupted")
            raise typer.Exit(exits.INTERRUPTED) from None
        return result


app = typer.Typer(
    name="ptocache",
    cls=_Commands,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        screen.say(f"ptocache {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


for _part in (
    compile_command, run_command, record, warm, shims, serve, store, verify, explain, inspect_command, doctor, demo,
):  # fmt: skip
    _part.register(app)


def run() -> int:
    """The entry point: run the command that ``sys.argv`` names; returns the exit code."""
    screen.set_up()
    _plain_warnings()
    try:
        app(prog_name="ptocache")
    except SystemExit as stop:
        return _ended(stop.code)
    except Exception as error:
        if os.environ.get("PTOCACHE_TRACEBACK"):
            import traceback

            traceback.print_exc()
        screen.complain(exits.text_of(error))
        return _ended(exits.code_of(error))
    return _ended(exits.DONE)


def _ended(code: int | str | None) -> int:
    try:
        screen.flush()
    except BrokenPipeError:
        return exits.NOBODY_READS
    except OSError as error:
        screen.complain(f"the output cannot be written: {error.strerror}")
        return exits.FAILED
    return code if isinstance(code, int) else exits.DONE


def _plain_warnings() -> None:
    """A warning is a line for the user, not a place in our source."""
    import warnings

    def show(message: Warning | str, *_: object, **__: object) -> None:
        screen.complain(f"warning: {message}")

    warnings.showwarning = show
