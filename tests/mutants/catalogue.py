"""All mutants."""

from __future__ import annotations

from tests.mutants import keys, life, store

MUTANTS = (*keys.MUTANTS, *store.MUTANTS, *life.MUTANTS)
