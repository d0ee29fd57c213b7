"""What the commands share: which store is meant, and asking its daemon."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptocache import paths
from ptocache.client import Client
from ptocache.config import load, parse_age, parse_size
from ptocache.errors import DaemonUnavailableError, PtocacheError

if TYPE_CHECKING:
    import subprocess

    from ptocache.config import Settings

_POLL_S = 0.01

StoreDirectory = Annotated[
    str | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The store's directory (default: PTOCACHE_DIR, else what the settings say).",
    ),
]
SocketPath = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", help="The daemon's socket (default: one made from --dir)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be removed; remove nothing.")
]


def examples(*lines: str) -> str:
    """The end of a help text, kept as it is."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def size_option(text: str) -> int:
    """Bytes; refuses what is no size as wrong use."""
    try:
        return parse_size(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is not a size (such as 500M or 10GiB)") from error


def age_option(text: str) -> float:
    """Seconds; refuses what is no time as wrong use."""
    try:
        return parse_age(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is not a time (such as 90s, 12h or 7d)") from error


def settings_of(
    directory: str | None, socket: str | None, *, reachable: bool = True, **overrides: object
) -> Settings:
    """The settings for the store that is meant; overrides are named with ``_`` for ``.``.
    ``reachable``: false for a command that goes on where no daemon's socket can be.

    Raises :class:`~ptocache.errors.ConfigError`, :class:`~ptocache.errors.BadRequestError`.
    """
    env = dict(os.environ)
    named = {name.replace("_", ".", 1): value for name, value in overrides.items()}
    if directory is not None:
        named["store.root"] = os.path.abspath(directory)
        # A socket that the environment names belongs to the store that the environment names.
        if not _same_place(env.get("PTOCACHE_DIR", ""), directory):
            env.pop("PTOCACHE_SOCKET", None)
    if socket is not None:
        env["PTOCACHE_SOCKET"] = os.path.abspath(socket)
    found = load(env, named)
    if reachable:
        _ = found.socket
    return found


def _same_place(one: str, other: str) -> bool:
    return bool(one) and os.path.realpath(one) == os.path.realpath(other)


def store_of(settings: Settings) -> paths.StorePaths:
    """Where everything of the store lies."""
    return paths.StorePaths(os.path.realpath(settings["store.root"]))


def ask(settings: Settings, kind: str, *, start: bool, **fields: Any) -> Any:
    """The daemon's answer to one administrative request; ``start`` allows to start a daemon for it.

    Raises the daemon's error, and :class:`~ptocache.errors.DaemonUnavailableError`.
    """
    with Client(settings) as client:
        try:
            return client.call(kind, start=start, **fields)
        except PtocacheError:
            raise
        except OSError as error:
            raise DaemonUnavailableError(
                f"the daemon at {settings.socket} cannot be reached: {error.strerror or error}",
                path=settings.socket,
            ) from error


def ask_if_served(settings: Settings, kind: str, **fields: Any) -> Any:
    """The same, or ``None`` if no daemon serves the store; starts nothing."""
    try:
        return ask(settings, kind, start=False, **fields)
    except DaemonUnavailableError as error:
        # One that does not answer in time is there all the same.
        if isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError)):
            return None
        raise


def wait_until_served(
    settings: Settings, process: subprocess.Popen[bytes], patience_s: float
) -> dict[str, Any] | None:
    """The status of the daemon that answers; ``None`` if ``process`` ended without one.

    Raises :class:`~ptocache.errors.DaemonUnavailableError` if none answers within ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        # Looked at before asking: one that ended after it was asked is met in the next round.
        ended = process.poll() is not None
        status: dict[str, Any] | None = ask_if_served(settings, "status")
        if status is not None:
            return status
        if ended:
            return None
        time.sleep(_POLL_S)
    raise DaemonUnavailableError(
        f"the daemon did not answer within {patience_s:g} s",
        hint=f"its log is {store_of(settings).log}",
    )
