"""Commands that hand on what follows ``--`` as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    import typer

_REST = "ptocache_cli.passing.rest"


class PassedOn(TyperCommand):
    """A command that keeps what follows ``--`` as it is, for the tool."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take it aside before the options are read."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_REST] = args[:at], args[at + 1 :]
        try:
            found: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "option_name") and hasattr(error, "message"):
                error.message += " (options for the tool go after --)"
            raise
        return found


def passed_on(ctx: typer.Context) -> list[str]:
    """What stood behind ``--``; empty if there was none."""
    found: list[str] = ctx.meta.get(_REST, [])
    return found
