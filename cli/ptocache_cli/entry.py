"""Where the command ``ptocache`` begins: a wrapped compiler must not wait for what other commands need."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command that ``sys.argv`` names; returns the exit code."""
    if sys.argv[1:2] == ["wrap"]:
        from ptocache.integrations.wrap import wrap

        return wrap(sys.argv[2:])
    from .main import run as run_command

    return run_command()
