"""A C++ project through wrapped compilers, against no cache and, if it is there, ccache; and what one hit costs.

Compiles alone are measured (``make objects``): a linker runs each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common import Spread, finish, interleaved, private_daemon, show
from tests.projects import kit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 3
HITS = 20


def main() -> None:
    """Build in turn, and print."""
    place = Path(tempfile.mkdtemp(prefix="ptb-wrap-"))
    try:
        with private_daemon() as client:
            _measure(place, client.settings["store.root"], client.settings.socket)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure(place: Path, root: str, socket: str) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PTOCACHE_")}
    wrapped = {**plain, "PTOCACHE_DIR": root, "PTOCACHE_SOCKET": socket}
    subprocess.run(
        [sys.executable, "-m", "ptocache_cli", "shims", str(place / "shims")],
        env=wrapped, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wrapped["PATH"] = f"{place / 'shims'}:{plain['PATH']}"
    ways: dict[str, Mapping[str, str]] = {"no cache": plain, "ptocache": wrapped}
    ccache = shutil.which("ccache")
    if ccache:
        links = place / "links"
        links.mkdir()
        for name in ("gcc", "g++"):
            (links / name).symlink_to(ccache)
        own = {"CCACHE_DIR": str(place / "ccache"), "PATH": f"{links}:{plain['PATH']}"}
        ways["ccache"] = {**plain, **own}
    project = kit.write(place / "kit", heavy=True)
    cold = {name: [_build(project, env)] for name, env in ways.items()}
    # Without a cache every build is a first one, and they take long.
    cached = {name: env for name, env in ways.items() if name != "no cache"}
    seconds: dict[str, list[float]] = {f"{name}, second": [] for name in cached}
    for _ in range(ROUNDS):
        for name, env in cached.items():
            seconds[f"{name}, second"].append(_build(project, env))
    spreads = {f"{name}, first": Spread.of(found) for name, found in cold.items()}
    spreads |= {name: Spread.of(found) for name, found in seconds.items()}
    title = f"{kit.SOURCES} compiles by make -j{_jobs()}"
    document = {"builds": show(title, spreads, "ptocache, second")}
    document["hits"] = _hits(project, ways)
    finish({"bench": "wrap", "results": document})


def _hits(project: Path, ways: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """One small compile as a process of its own."""
    (project / "small.c").write_text("int small(int x) { return x; }\n")
    words = ["gcc", "-c", "small.c", "-o", "small.o"]

    def once(env: Mapping[str, str]) -> None:
        subprocess.run(words, cwd=project, env=dict(env), check=True)

    def bare() -> None:
        subprocess.run([os.path.realpath(sys.executable), "-IS", "-c", "pass"], check=True)

    for env in ways.values():
        once(env)
    actions: dict[str, Callable[[], object]] = {
        name: partial(once, env) for name, env in ways.items()
    }
    actions["bare interpreter (-I -S)"] = bare
    return show("one small C file", interleaved(actions, HITS // 4, 4), "bare interpreter (-I -S)")


def _build(project: Path, env: Mapping[str, str]) -> float:
    """Seconds of the compiles of a clean build."""
    shutil.rmtree(project / "build", ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(
        ["make", "-s", f"-j{_jobs()}", "objects"], cwd=project, env=dict(env), check=True
    )
    return time.perf_counter() - start


def _jobs() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
