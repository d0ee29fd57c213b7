"""Which programs the key of a Triton kernel has, where Triton itself is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptocache.integrations.triton import _programs

if TYPE_CHECKING:
    from pathlib import Path


def program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return str(path)


def test_programs_of_triton_ascend_are_its_own_those_of_the_path_and_of_its_variable(
    tmp_path: Path,
) -> None:
    """As its public sources look for them; the package itself cannot be installed here."""
    package = tmp_path / "triton"
    adapter = program(package / "backends" / "ascend" / "triton-adapter-opt")
    bundled = program(package / "backends" / "ascend" / "bishengir" / "bin" / "bishengir-compile")
    library = program(package / "backends" / "ascend" / "bishengir" / "lib" / "ops.bc")
    mlir = program(package / "_C" / "triton-mlir-opt")
    first = program(tmp_path / "first" / "bishengir-compile")
    program(tmp_path / "second" / "bishengir-compile")
    npuc = program(tmp_path / "home" / "npuc")
    built = program(tmp_path / "build" / "bin" / "triton-mlir-opt")
    found = _programs(
        str(package),
        ["ascend"],
        {
            "PATH": f"{tmp_path}/first:{tmp_path}/second",
            "TRITON_NPU_COMPILER_PATH": f"{tmp_path}/home",
            "TRITON_BUILD_DIR": f"{tmp_path}/build",
        },
    )
    assert dict(found) == {
        "triton-adapter-opt": adapter,
        "triton-mlir-opt of Triton": mlir,
        "triton-mlir-opt of a build": built,
        "bundled bin/bishengir-compile": bundled,
        "bundled lib/ops.bc": library,
        "bishengir-compile": first,
        "npuc": npuc,
        "npuc of its variable": npuc,
    }


def test_programs_of_nvidia_are_the_bundled_and_the_chosen_ones(tmp_path: Path) -> None:
    bundled = program(tmp_path / "triton" / "backends" / "nvidia" / "bin" / "ptxas")
    chosen = program(tmp_path / "mine")
    found = _programs(str(tmp_path / "triton"), ["nvidia"], {"TRITON_PTXAS_PATH": chosen})
    assert dict(found) == {"ptxas": bundled, "ptxas chosen": chosen}
