"""``stats``, ``gc``, ``invalidate`` and ``show``: what is in the store."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptocache.errors import BadRequestError

from . import render, screen
from .session import (
    AsJson,
    DryRun,
    SocketPath,
    StoreDirectory,
    age_option,
    ask,
    ask_if_served,
    examples,
    settings_of,
    size_option,
    store_of,
)

if TYPE_CHECKING:
    from ptocache.config import Settings


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog=examples(
            "ptocache stats",
            "ptocache stats --json | jq .caches.binary.bypass_reasons",
            "ptocache stats --prometheus > /var/lib/node_exporter/ptocache.prom",
            "ptocache stats --reset",
        )
    )(stats)
    app.command(
        epilog=examples(
            "ptocache gc                        down to the low-water mark, if over the limit",
            "ptocache gc --max-size 2G          down to 2 GiB",
            "ptocache gc --max-age 30d          what was not used for 30 days",
            "ptocache gc --max-age 7d --dry-run",
        )
    )(gc)
    app.command(
        epilog=examples(
            "ptocache invalidate 3f2a91c0d4e5",
            "ptocache invalidate --kernel saxpy --arch x86_64",
            "ptocache invalidate --toolchain host --older-than 30d --dry-run",
            "ptocache invalidate --all",
        )
    )(invalidate)
    app.command(epilog=examples("ptocache show 3f2a91c0d4e5", "ptocache show 3f2a91c0d4e5 --json"))(
        show
    )


def stats(
    as_json: AsJson = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the Prometheus text format.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Start the statistics anew; entries stay.")
    ] = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Print how requests ended since the store was made, and how full it is.

    Without a daemon the store itself is read, and none is started.
    """
    if as_json + prometheus + reset > 1:
        raise BadRequestError("--json, --prometheus and --reset exclude each other")
    settings = settings_of(directory, socket)
    if reset:
        _reset(settings)
        screen.say("the statistics start anew")
        return
    found = ask_if_served(settings, "stats")
    if found is None:
        found = {**_stats_at_rest(settings), "daemon": None}
    if as_json:
        screen.say(render.to_json(found))
    elif prometheus:
        screen.say(render.prometheus(found).rstrip("\n"))
    else:
        screen.say(render.statistics(found, store_of(settings).root))


def _stats_at_rest(settings: Settings) -> dict[str, Any]:
    from ptocache.control import StoreAtRest, stats_of_index, stats_of_nothing

    limit = settings["store.max_size"]
    if not _exists(settings):
        return stats_of_nothing(limit)
    with StoreAtRest(store_of(settings)) as store:
        return stats_of_index(store.index, limit)


def _reset(settings: Settings) -> None:
    if ask_if_served(settings, "reset-stats") is not None or not _exists(settings):
        return
    from filelock import FileLock, Timeout

    from ptocache.store.index import Index

    store = store_of(settings)
    try:
        # Held as a daemon holds it, so that none opens the store meanwhile.
        with FileLock(store.lock, timeout=0, mode=0o600):
            index = Index(store.index)
            try:
                index.clear_counts()
            finally:
                index.close()
    except Timeout:
        # A daemon that is just starting, or stopping: a moment later it answers, or nobody does.
        ask(settings, "reset-stats", start=True)


def gc(
    max_size: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE", parser=size_option, help="Evict down to this many bytes (500M)."
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=age_option, help="Evict what was not used for so long (30d)."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Evict entries, least recently used first.

    Without a limit of its own it evicts down to the low-water mark, if the store is over its limit.
    The daemon does the work; it is started if none serves the store.
    """
    settings = settings_of(directory, socket)
    found = _change(
        settings, "gc", {"entries": 0, "bytes": 0, "remaining": 0},
        max_size=max_size, max_age=max_age, dry_run=dry_run,
    )  # fmt: skip
    screen.say(render.to_json(found) if as_json else render.collected(found, dry_run=dry_run))


def invalidate(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Keys, or at least 4 digits of their beginning."),
    ] = None,
    toolchain: Annotated[str, typer.Option(metavar="NAME", help="Made by this toolchain.")] = "",
    kernel: Annotated[str, typer.Option(metavar="NAME", help="Of the kernel of this name.")] = "",
    arch: Annotated[str, typer.Option(metavar="ARCH", help="For this target.")] = "",
    older_than: Annotated[
        float | None,
        typer.Option(metavar="TIME", parser=age_option, help="Not used for so long (30d)."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entry.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Remove entries by name: those that fit every condition given.

    No compile that began before it publishes after it, and remembered failures are forgotten too.
    The daemon does the work; it is started if none serves the store.
    """
    chosen = [key.strip().lower() for key in keys or ()]
    conditions = bool(chosen or toolchain or kernel or arch or older_than)
    if everything == conditions:
        raise BadRequestError(
            "invalidate needs to know what to remove" if not conditions else
            "--all leaves nothing for another condition to choose",
            hint="give keys, --toolchain, --kernel, --arch, --older-than, or --all alone",
        )  # fmt: skip
    settings = settings_of(directory, socket)
    found = _change(
        settings, "invalidate", {"entries": 0, "bytes": 0, "removed": []},
        keys=chosen, toolchain=toolchain, kernel=kernel, arch=arch, older_than=older_than or 0,
        all=everything, dry_run=dry_run,
    )  # fmt: skip
    screen.say(render.to_json(found) if as_json else render.invalidated(found, dry_run=dry_run))


def show(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A key, or at least 4 digits of its beginning.")
    ],
    as_json: AsJson = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Print everything that is known of an entry: inputs, headers read, commands, output text.

    Without a daemon the store itself is read, and none is started.
    """
    settings = settings_of(directory, socket)
    key = key.strip().lower()
    found = ask_if_served(settings, "show", key=key)
    if found is None:
        found = _describe_at_rest(settings, key)
    screen.say(render.to_json(found) if as_json else render.entries(found, time.time()))


def _describe_at_rest(settings: Settings, key: str) -> dict[str, Any]:
    from ptocache.control import StoreAtRest, describe
    from ptocache.errors import UnknownEntryError

    if not _exists(settings):
        raise UnknownEntryError(
            f"there is no store at {store_of(settings).root}", hint="--dir names another one"
        )
    with StoreAtRest(store_of(settings)) as store:
        return describe(store, key)


def _change(settings: Settings, kind: str, nothing: dict[str, Any], **fields: Any) -> Any:
    """Let the daemon do it, and start one unless there is nothing to do it to."""
    if _exists(settings):
        return ask(settings, kind, start=True, **fields)
    found = ask_if_served(settings, kind, **fields)
    return nothing if found is None else found


def _exists(settings: Settings) -> bool:
    return os.path.lexists(store_of(settings).index)
