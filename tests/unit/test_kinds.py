"""Each kind of fault has a test named after it, and a version of the product on which that test fails."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kinds import KINDS
from tests.mutants.catalogue import MUTANTS

if TYPE_CHECKING:
    from tests.mutants import Mutant

ROOT = Path(__file__).parents[2]
NAMES = [kind.name for kind in KINDS]


def _kind_of(decorator: ast.expr) -> str | None:
    """The kind that a decorator names: ``pytest.mark.kind("…")``."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.kind":
        (name,) = decorator.args
        return str(ast.literal_eval(name))
    return None


def _marked() -> dict[str, str]:
    """``path::name`` of each test that shows a kind → the kind."""
    found = {}
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    if kind := _kind_of(decorator):
                        found[f"{path.relative_to(ROOT)}::{node.name}"] = kind
    return found


MARKED = _marked()


@pytest.mark.parametrize("name", NAMES)
def test_kind_has_a_test_that_is_named_after_it(name: str) -> None:
    assert [test for test, kind in MARKED.items() if kind == name]


@pytest.mark.parametrize(("test", "kind"), sorted(MARKED.items()))
def test_test_of_a_kind_bears_its_name(test: str, kind: str) -> None:
    assert kind in NAMES
    assert test.split("::")[1].startswith(f"test_{kind}")


def test_page_on_reliability_names_each_test_of_a_kind() -> None:
    page = (ROOT / "docs" / "explanation" / "reliability.md").read_text()
    assert [test for test in MARKED if f"`{test.split('::')[1]}`" not in page] == []
    assert f"keeps {len(MUTANTS)} such versions" in page


@pytest.mark.parametrize("name", NAMES)
def test_kind_has_a_mutant_for_its_test(name: str) -> None:
    tests = {mutant.test.partition("[")[0] for mutant in MUTANTS if mutant.kind == name}
    assert tests & {test for test, kind in MARKED.items() if kind == name}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault.replace(" ", "-"))
def test_mutant_fits_the_product(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
