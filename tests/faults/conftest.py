"""The fault layer, built once, and one for each daemon that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.faultlayer import FaultLayer, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preload library."""
    return build(tmp_path_factory.mktemp("faultlayer"))


@pytest.fixture
def make_layer(fault_library: Path, tmp_path: Path) -> Iterator[Callable[..., FaultLayer]]:
    """Make layers for calls below a directory (default: the store of this test)."""
    made: list[FaultLayer] = []

    def make(below: Path | None = None) -> FaultLayer:
        place = tmp_path / f"layer-{len(made)}"
        made.append(FaultLayer(fault_library, place, below or tmp_path / "store"))
        return made[-1]

    yield make
    for layer in made:
        layer.close()


@pytest.fixture
def layer(make_layer: Callable[..., FaultLayer]) -> FaultLayer:
    """One layer."""
    return make_layer()
