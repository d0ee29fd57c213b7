"""The parts of a test with the real Triton, compiled for a GPU that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.frameworks.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.frameworks.zygote import Child

MANAGER = "ptocache.integrations.triton:CacheManager"
TOLD = "compile_told()\n"
LOGGING = """\
#!/bin/sh
case " $* " in *" -o "*) ;; *) exec "{real}" "$@" ;; esac
echo "$*" >> "{log}"
n=0; while [ -e "{hold}" ] && [ $n -lt 3000 ]; do sleep 0.02; n=$((n+1)); done
exec "{real}" {extra} "$@"
"""


def _ptxas() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


class TritonRig(Rig):
    """With a ptxas that logs its runs in the place of a C++ compiler."""

    def write_compiler(self, extra: str = "") -> None:
        self.compiler.parent.mkdir(exist_ok=True)
        self.compiler.write_text(
            LOGGING.format(
                real=_ptxas(), log=self.compiler_log, hold=self.compiler_log.parent / "hold",
                extra=extra,
            )
        )  # fmt: skip
        self.compiler.chmod(0o755)

    def env(self, **more: str) -> dict[str, str]:
        own = {
            "CXX": "", "TRITON_PTXAS_PATH": str(self.compiler), "TRITON_CACHE_MANAGER": MANAGER,
            "TRITON_CACHE_DIR": str(self.place / "triton"),
        }  # fmt: skip
        return super().env(**{**own, **more})

    def start(
        self, code: str, *, installed: bool = True, env: Mapping[str, str] | None = None
    ) -> Child:
        text = "from tests.frameworks.triton_kernels import *\n" + code
        child = self._zygote.start(text, self.env(**(env or {})))
        self._children.append(child)
        return child

    def told(self, code: str = TOLD, **env: str) -> Any:
        told = self.run(code, **env).told()
        assert told["elf"]
        return told
