"""``verify``: is everything in the store what it was when it entered?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptocache.client import Client

from . import exits, render, screen
from .session import AsJson, DryRun, SocketPath, StoreDirectory, examples, settings_of, store_of

if TYPE_CHECKING:
    from ptocache.config import Settings


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog=examples(
            "ptocache verify",
            "ptocache verify --fast                  sizes and index only",
            "ptocache verify --dry-run --json        report, and leave everything as it is",
        )
    )(verify)


def verify(
    fast: Annotated[
        bool, typer.Option("--fast", help="Compare sizes and the index; read no blob.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Read everything in the store and compare it with what entered.

    What is damaged goes to the quarantine, and is made again when it is next asked for; --dry-run only
    reports. Exit code 0 if all is whole, 4 if damage was found. The daemon does the work, a page at a
    time, and serves meanwhile; it is started if none serves the store.
    """
    found = _verified(settings_of(directory, socket), fast=fast, dry_run=dry_run)
    screen.say(render.to_json(found) if as_json else render.verified(found))
    if found["damaged"]:
        raise typer.Exit(exits.BAD_STORE)


def _verified(settings: Settings, *, fast: bool, dry_run: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "entries": 0, "bytes": 0, "damaged": [], "fast": fast, "healed": not dry_run,
    }  # fmt: skip
    if not os.path.lexists(store_of(settings).index):
        return found
    after: int | None = 0
    with Client(settings) as client:
        total = client.stats()["store"]["entries"]
        with screen.progress("verifying", total) as bar:
            while after is not None:
                page = client.call("verify", after=after, fast=fast, dry_run=dry_run)
                found["entries"] += page["entries"]
                found["bytes"] += page["bytes"]
                found["damaged"] += page["damaged"]
                after = page["after"]
                bar.advance("", count=page["entries"])
    return found
