"""File systems of a test's own, where the system allows them."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def small_disk(place: Path, size: int, *options: str) -> Iterator[bool]:
    """A file system of ``size`` bytes at ``place`` where that is allowed; whether it is."""
    place.mkdir(mode=0o700)
    made = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", "mode=700", *options)), "none",
         str(place)],
        capture_output=True, check=False,
    ).returncode  # fmt: skip
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(place)], check=True)
