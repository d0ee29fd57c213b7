"""``demo``: real kernels, compiled cold, served warm, and every artifact run and checked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ptocache.client import Client
from ptocache.config import load
from ptocache.errors import PtocacheError
from ptocache.outcome import Outcome
from ptocache.paths import SOCKET_PATH_LIMIT

from . import exits, render, screen
from .session import AsJson, ask, examples, wait_until_served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptocache.config import Settings

    from .demo_run import Run

_HEADER = "tile.h"
_EDIT = "\n/* Edited: the same code, but nobody can know that without compiling. */\n"
_START_S = 20.0
_STOP_S = 20.0
_PREFIX = "ptocache-demo-"
_SOCKET_TAIL = f"/{_PREFIX}01234567/socket"
_OTHERS = ("disk_hit", "joined", "bypass", "failure")


class Step(NamedTuple):
    """One row of the demonstration."""

    name: str
    run: Run


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog=examples(
            "ptocache demo",
            "ptocache demo --json | jq '{cold_s, warm_s, wrong_results}'",
            "ptocache demo --dir /tmp/look && ptocache stats --dir /tmp/look",
        )
    )(demo)
    app.command("demo-run", hidden=True)(demo_run)


def demo(
    as_json: AsJson = False,
    directory: Annotated[
        str | None,
        typer.Option(
            "--dir", metavar="DIR", help="Keep the store there (default: a temporary one)."
        ),
    ] = None,
) -> None:
    """Show on real kernels what the cache does.

    Compiles 24 kernels with this machine's compiler; asks again from a fresh process, then after
    touching the header they share, after editing it, and after restoring it. Every artifact is
    loaded, run and compared with a plain reference. A daemon of its own serves it and ends with it:
    your own cache is left alone. Ends with code 1 if a result is wrong.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    with _place() as place, _served(place, directory) as settings:
        sources = _copy_sources(place)
        steps = _steps(settings, place, sources)
        toolchain = _toolchain(settings)
    found = summary(steps, toolchain, directory)
    screen.say(render.to_json(found) if as_json else text(steps, found))
    if found["wrong_results"]:
        raise typer.Exit(exits.FAILED)


def demo_run(sources: str) -> None:
    """Compile and check every kernel once; prints how it went as JSON. A part of ``demo``."""
    from . import demo_run as work

    with Client(load()) as client:
        screen.say(render.to_json(work.run(client, sources)._asdict(), indent=None))


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


# --- the parts


@contextlib.contextmanager
def _place() -> Iterator[str]:
    """A private directory, removed afterwards."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base + _SOCKET_TAIL)) > SOCKET_PATH_LIMIT:
        base = "/tmp"
    place = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _served(place: str, directory: str | None) -> Iterator[Settings]:
    """The settings of a daemon that serves this demonstration alone; it ends afterwards."""
    os.environ.update(_own_environment(place, directory))
    settings = load()
    log_path = os.path.join(place, "daemon.log")
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ptocache_cli", "serve"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place, start_new_session=True,
        )  # fmt: skip
    try:
        if wait_until_served(settings, process, _START_S) is None:
            with open(log_path, encoding="utf-8", errors="replace") as log_text:
                sys.stderr.write(log_text.read())
            raise typer.Exit(process.returncode or exits.NO_DAEMON)
        yield settings
    finally:
        _finish(process)


def _own_environment(place: str, directory: str | None) -> dict[str, str]:
    """What this process, the daemon and the fresh process see instead of the user's settings."""
    return {
        "PTOCACHE_DIR": os.path.abspath(directory) if directory else os.path.join(place, "store"),
        "PTOCACHE_SOCKET": os.path.join(place, "socket"),
        "PTOCACHE_MODE": "use",
        "PTOCACHE_MAX_SIZE": "10G",
        "PTOCACHE_REQUIRE": "1",
        "PTOCACHE_AUTOSTART": "0",
        # Should this process be killed, its daemon does not stay for ever.
        "PTOCACHE_IDLE_TIMEOUT": "10m",
    }


def _finish(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _copy_sources(place: str) -> str:
    """A copy of the kernels to touch and edit; the package's own files stay as they are."""
    from . import demo_kernels

    target = os.path.join(place, "kernels")
    os.mkdir(target)
    for path in demo_kernels.sources().iterdir():
        if path.suffix in (".c", ".h"):
            shutil.copyfile(path, os.path.join(target, path.name))
    return target


def _steps(settings: Settings, place: str, sources: str) -> list[Step]:
    from . import demo_run as work

    header = os.path.join(sources, _HEADER)
    with open(header, encoding="utf-8") as file:
        original = file.read()
    steps = []
    with Client(settings) as client:
        with screen.progress("cold", len(work.jobs())) as progress:
            steps.append(Step("cold", work.run(client, sources, progress.advance)))
        steps.append(Step("warm, in a fresh process", _run_afresh(place, sources)))
        _touch(header)
        steps.append(Step("header touched", work.run(client, sources)))
        _write(header, original + _EDIT)
        steps.append(Step("header edited", work.run(client, sources)))
        _write(header, original)
        steps.append(Step("header restored", work.run(client, sources)))
    return steps


def _run_afresh(place: str, sources: str) -> Run:
    from .demo_run import Run

    # In a session of its own: a Ctrl-C is ours to handle, and ends it.
    done = subprocess.run(
        [sys.executable, "-m", "ptocache_cli", "demo-run", sources],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=place, start_new_session=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise PtocacheError(f"the fresh process ended with exit code {done.returncode}")
    return Run(**json.loads(done.stdout))


def _touch(path: str) -> None:
    """Another time of change, and the same content."""
    info = os.stat(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1_000_000_000))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _toolchain(settings: Settings) -> dict[str, Any]:
    for item in ask(settings, "status", start=False)["toolchains"]:
        found: dict[str, Any] = item
        return found
    return {}


# --- telling


def summary(steps: list[Step], toolchain: dict[str, Any], directory: str | None) -> dict[str, Any]:
    """``demo --json``: the first five keys are a contract."""
    cold, warm = steps[0].run, steps[1].run
    return {
        "kernels": cold.kernels,
        "cold_s": cold.seconds,
        "warm_s": warm.seconds,
        "warm_hits": sum(warm.outcomes[outcome.label] for outcome in Outcome if outcome.is_hit),
        "wrong_results": sum(len(step.run.wrong) for step in steps),
        "steps": [{"name": step.name, **step.run._asdict()} for step in steps],
        "toolchain": toolchain,
        "store": os.path.abspath(directory) if directory else None,
    }


def text(steps: list[Step], found: dict[str, Any]) -> str:
    """``demo`` for people."""
    others = [label for label in _OTHERS if any(step.run.outcomes[label] for step in steps)]
    labels = ["memory_hit", "miss", *others]
    header = ["", "time", *(label.replace("_", " ") for label in labels), "saved", "wrong"]
    rows = [
        [
            step.name,
            render.duration(step.run.seconds),
            *(str(step.run.outcomes[label]) for label in labels),
            render.duration(step.run.saved_ms / 1000) if step.run.saved_ms else "-",
            str(len(step.run.wrong)),
        ]
        for step in steps
    ]
    lines = [
        f"{found['kernels']} kernels, {' '.join(steps[0].run.options)}",
        str(found["toolchain"].get("banner", "")).split("\n", 1)[0],
        "",
        render.table(header, rows),
        "",
        _comparison(found),
        _verdict(steps, found),
    ]
    reasons = sorted({reason for step in steps for reason in step.run.reasons})
    lines += [f"not stored: {reason}" for reason in reasons]
    if found["store"]:
        lines.append(f"the store stays: ptocache stats --dir {found['store']}")
    return "\n".join(lines)


def _comparison(found: dict[str, Any]) -> str:
    cold, warm = found["cold_s"], found["warm_s"]
    times = f", {cold / warm:.0f} times less" if warm and cold > warm else ""
    return (
        f"The fresh process waited {render.duration(warm)} for what took "
        f"{render.duration(cold)} to compile{times}."
    )


def _verdict(steps: list[Step], found: dict[str, Any]) -> str:
    wrong = [f"{step.name}: {name}" for step in steps for name in step.run.wrong]
    checked = found["kernels"] * len(steps)
    if not wrong:
        return f"All {checked} artifacts were loaded, run and found right."
    return f"{len(wrong)} of {checked} results are WRONG: {', '.join(wrong)}"
