"""``serve``, ``status`` and ``stop``: the life of the daemon."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptocache.errors import DaemonUnavailableError, ProtocolMismatchError, StoreBusyError

from . import exits, render, screen
from .session import (
    AsJson,
    SocketPath,
    StoreDirectory,
    age_option,
    ask,
    ask_if_served,
    examples,
    settings_of,
    size_option,
    store_of,
    wait_until_served,
)

if TYPE_CHECKING:
    from ptocache.config import Settings

_START_S = 20.0
_POLL_S = 0.02


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog=examples(
            "ptocache serve                       run here until Ctrl-C or ptocache stop",
            "ptocache serve --detach              start it and come back when it answers",
            "ptocache serve --idle-timeout 30m    end after half an hour without a request",
            "ptocache serve --dir /fast/cache --max-size 50G",
        )
    )(serve)
    app.command(epilog=examples("ptocache status", "ptocache status --json | jq .pid"))(status)
    app.command(
        epilog=examples(
            "ptocache stop          let running compiles finish, then end",
            "ptocache stop --now    end running compiles too",
        )
    )(stop)


def serve(
    detach: Annotated[
        bool,
        typer.Option(
            "--detach/--foreground", help="Start it in the background, or run here (the default)."
        ),
    ] = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=age_option, help="End after so long without a request (30m)."
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE", parser=size_option, help="Bytes on disk before eviction (10G)."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Compilers at once (one a processor).")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text or json, a line an event.")
    ] = None,
    log_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Log to a file, which is rotated.")
    ] = None,
) -> None:
    """Serve a store to this user's processes.

    Clients start a daemon by themselves; this command is for those who want to say when and how.
    The log goes to standard error, with --detach to daemon.log in the store's directory, or to
    --log-file.
    Ends with code 5 if a daemon already serves the store.
    """
    settings = settings_of(
        directory, socket, daemon_idle_timeout=idle_timeout, store_max_size=max_size,
        compile_jobs=jobs, daemon_log_level=log_level, daemon_log_format=log_format,
        daemon_log_file=os.path.abspath(log_file) if log_file else None,
    )  # fmt: skip
    if detach:
        _detach(settings)
    else:
        _run_here(settings)


def _run_here(settings: Settings) -> None:
    from ptocache import log
    from ptocache.daemon import Daemon

    log.set_up(settings)
    Daemon(settings).run()


def _detach(settings: Settings) -> None:
    from ptocache.starter import last_words, spawn
    from ptocache.store.store import prepare_root

    store = store_of(settings)
    if ask_if_served(settings, "ping") is not None:
        raise _busy(store.root)
    os.umask(0o077)
    prepare_root(store)
    _hand_over(settings)
    process = spawn(settings, store)
    status = wait_until_served(settings, process, _START_S)
    code = process.poll()
    if status is None and code != exits.ALREADY_SERVED:
        screen.complain(f"the daemon could not start: {last_words(settings, store)}")
        raise typer.Exit(code or exits.NO_DAEMON)
    if code == exits.ALREADY_SERVED or (status and status["pid"] != process.pid):
        raise _busy(store.root)
    # It lives on by itself; nobody will wait for it.
    process.returncode = 0
    screen.say(f"serving {store.root} (pid {process.pid})")


def _busy(root: str) -> StoreBusyError:
    return StoreBusyError(
        f"a daemon already serves the store {root}", hint="ptocache status tells more of it"
    )


def _hand_over(settings: Settings) -> None:
    """What the command line says reaches the daemon's process by its environment."""
    from ptocache.config import TABLE

    for row in TABLE:
        if settings.source(row.name) == "command line":
            os.environ[row.variable] = str(settings[row.name])


def status(
    directory: StoreDirectory = None, socket: SocketPath = None, as_json: AsJson = False
) -> None:
    """Say which daemon serves the store, and what it is doing.

    Starts none: ends with code 3 if none serves it.
    """
    settings = settings_of(directory, socket)
    found = _served(settings, "status")
    screen.say(render.to_json(found) if as_json else render.status(found))


def stop(
    now: Annotated[
        bool, typer.Option("--now", help="End running compiles instead of waiting for them.")
    ] = False,
    directory: StoreDirectory = None,
    socket: SocketPath = None,
) -> None:
    """End the daemon, and wait until it has ended.

    Running compiles finish first and their callers are answered. Ends with code 3 if no daemon
    serves the store.
    """
    settings = settings_of(directory, socket)
    try:
        found = _served(settings, "status")
    except ProtocolMismatchError as error:
        _stop_by_signal(error, now=now)
        return
    with _Watched(found["pid"]) as process:
        ask(settings, "stop", start=False, now=now)
        if found["compiling"] and not now:
            running = render.count(found["compiling"], "running compile")
            screen.complain(f"waiting for {running} (ptocache stop --now does not)")
        process.wait()
    screen.say(f"stopped the daemon of {found['root']} (pid {found['pid']})")


def _stop_by_signal(error: ProtocolMismatchError, *, now: bool) -> None:
    """End a daemon of another protocol: a signal is all that it understands. Who listens may also be
    the system's own service manager, which must not get one."""
    pid = int(error.fields.get("pid", 0))
    if not _is_ours(pid):
        raise error
    with _Watched(pid) as process:
        for _ in range(2 if now else 1):
            os.kill(pid, signal.SIGTERM)
        process.wait()
    screen.say(f"stopped the daemon of another version (pid {pid})")


def _is_ours(pid: int) -> bool:
    """True for a daemon that a client started, or ``ptocache serve``."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    serves = b"serve" in words and any(os.path.basename(word) == b"ptocache" for word in words)
    return serves or any(b"ptocache.daemon" in word for word in words)


def _served(settings: Settings, kind: str) -> Any:
    found = ask_if_served(settings, kind)
    if found is None:
        root = store_of(settings).root
        raise DaemonUnavailableError(
            f"no daemon serves the store {root}", hint="start one: ptocache serve --detach"
        )
    return found


class _Watched:
    """Another process of this user whose end is waited for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._fd = os.pidfd_open(pid)
        except OSError:
            # Gone already, or a system without it.
            self._fd = -1

    def wait(self) -> None:
        """Return when it has ended."""
        if self._fd >= 0:
            select.select([self._fd], [], [])
            return
        while _exists(self._pid):
            time.sleep(_POLL_S)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
