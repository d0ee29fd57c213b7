"""``explain``: why a request was no hit."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptocache.errors import BadRequestError

from . import render, screen
from .session import (
    AsJson,
    SocketPath,
    StoreDirectory,
    ask_if_served,
    examples,
    settings_of,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptocache.config import Settings


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog=examples(
            "ptocache explain --last",
            "ptocache explain 3f2a91c0d4e5",
            "ptocache explain --kernel gemm --json",
        )
    )(explain)


def explain(
    key: Annotated[
        str,
        typer.Argument(metavar="[KEY]", help="A key, or at least 4 digits of its beginning."),
    ] = "",
    last: Annotated[
        bool, typer.Option("--last", help="The latest request that was no hit.")
    ] = False,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="The latest of the kernel of this name.")
    ] = "",
    as_json: AsJson = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """Say why a request was a miss, a bypass or a failure.

    A miss is compared with the nearest earlier entry. The daemon remembers its latest requests; what
    it does not remember is looked for in the store, which is read without a daemon too.
    """
    key = key.strip().lower()
    if bool(key) + last + bool(kernel) != 1:
        raise BadRequestError(
            "explain needs to know which request is meant",
            hint="give one of: a key, --last, --kernel NAME",
        )
    settings = settings_of(directory, socket)
    found = ask_if_served(settings, "explain", key=key, kernel=kernel)
    if found is None:
        found = _at_rest(settings, key, kernel)
    screen.say(render.to_json(found) if as_json else text(found, time.time()))


def _at_rest(settings: Settings, key: str, kernel: str) -> dict[str, Any]:
    from ptocache.control import StoreAtRest, explain_at_rest
    from ptocache.errors import UnknownEntryError

    store = store_of(settings)
    if not os.path.lexists(store.index):
        raise UnknownEntryError(
            f"there is no store at {store.root}", hint="--dir names another one"
        )
    with StoreAtRest(store) as found:
        return explain_at_rest(found, key, kernel)


def text(found: Mapping[str, Any], now_s: float) -> str:
    """An explanation for people."""
    asked, nearest = found["request"], found["nearest"]
    reason = f" ({asked['reason']})" if asked["reason"] else ""
    about = (asked["toolchain"], asked["arch"], asked["kernel"])
    rows = [
        ("request", " ".join(part for part in about if part)),
        ("when", render.moment(asked["at_s"], now_s)),
        ("key", asked["key"]),
        ("outcome", f"{asked['outcome']}{reason}"),
        ("why", found["why"]),
        ("nearest", _nearest(nearest, asked, now_s) if nearest else ""),
        ("differs in", "\n".join(_difference(item) for item in found["changes"])),
    ]
    return render.fields((name, value) for name, value in rows if value)


def _nearest(nearest: Mapping[str, Any], asked: Mapping[str, Any], now_s: float) -> str:
    name = f"{nearest['kernel']} " if nearest["kernel"] != asked["kernel"] else ""
    same = "same key, " if nearest["key"] == asked["key"] else ""
    digits = nearest["entry" if same else "key"][: render.KEY_DIGITS]
    return f"{name}{digits} ({same}made {render.moment(nearest['created_s'], now_s)})"


def _difference(item: Mapping[str, Any]) -> str:
    """The words, with the whole path of what they name by its last part alone."""
    head, _, path = item["field"].partition(".")
    where = f"  {path}" if head == "dependencies" and path.startswith("/") else ""
    return f"{item['words']}{where}"
