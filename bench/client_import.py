"""What importing the client costs a fresh process, beside a bare interpreter and ``import asyncio``."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.common import Spread, finish, show

RUNS = 15
STATEMENTS = {
    "bare interpreter": "pass",
    "import ptocache.client": "import ptocache.client",
    "import asyncio": "import asyncio",
    "import typer": "import typer",
}


def main() -> None:
    """Measure whole processes in turn, and print."""
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(RUNS):
        for name, statement in STATEMENTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            seconds[name].append(time.perf_counter() - start)
    spreads = {name: Spread.of(found) for name, found in seconds.items()}
    document = show("a fresh process that imports", spreads, "bare interpreter")
    finish({"bench": "client_import", "results": document})


if __name__ == "__main__":
    main()
