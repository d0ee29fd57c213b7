"""Versions of the product that have a fault, each with the test that must fail on it.

They are kept as replacements of a few lines, and applied to a copy of the checkout by
``python -m tests.mutants.run`` (``make mutants``).
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One version with a fault."""

    kind: str
    """The name of a kind of :mod:`tests.kinds`."""
    fault: str
    """What this version does wrong."""
    test: str
    """The test that fails on it: ``path::name``, as pytest takes it."""
    file: str
    """The file of the product that is changed."""
    before: str
    """Lines that occur once in it …"""
    after: str
    """… and what stands there in the version with the fault."""
