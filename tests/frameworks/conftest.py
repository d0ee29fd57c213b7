"""What tests with real frameworks need: run by ``make test-frameworks``, which sets up their environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.rig import Rig
from tests.frameworks.triton_rig import TritonRig
from tests.frameworks.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say what is wrong if the frameworks are not there."""
    missing = [
        name for name in ("tilelang", "torch", "triton") if not importlib.util.find_spec(name)
    ]
    if missing:
        pytest.exit(f"{', '.join(missing)}: not installed here; run make test-frameworks", 3)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A process that has imported TileLang and the tests' kernels."""
    place = tmp_path_factory.mktemp("zygote")
    env = {
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(place),
        "TILELANG_CACHE_DIR": str(place / "imported"),
    }
    found = Zygote(["torch", "tests.frameworks.tilelang_kernels"], env, place)
    yield found
    found.close()


@pytest.fixture(scope="session")
def memo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiler of the tests keeps what it has compiled."""
    return tmp_path_factory.mktemp("memo")


@pytest.fixture
def rig(zygote: Zygote, memo: Path) -> Iterator[Rig]:
    """A daemon, a compiler that logs its runs, and processes with TileLang."""
    # Not pytest's own folder: a socket's path is short.
    found = Rig(zygote, memo)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(found.place, ignore_errors=True)


@pytest.fixture(scope="session")
def triton_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A process that has imported Triton and the tests' kernels."""
    place = tmp_path_factory.mktemp("triton-zygote")
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    found = Zygote(["tests.frameworks.triton_kernels"], {"PATH": path, "HOME": str(place)}, place)
    yield found
    found.close()


@pytest.fixture
def triton_rig(triton_zygote: Zygote, tmp_path: Path) -> Iterator[TritonRig]:
    """A daemon, a ptxas that logs its runs, and processes with Triton."""
    found = TritonRig(triton_zygote, tmp_path)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(found.place, ignore_errors=True)
