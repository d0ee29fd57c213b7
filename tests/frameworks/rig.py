"""The parts of a test with a real framework: a daemon, compilers that log, processes that use the framework."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness import DaemonProcess
from tests.simcann import SimCann

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.frameworks.zygote import Child, Ended, Zygote

PRELUDE = "from tests.frameworks.tilelang_kernels import *\nimport os\n"
INSTALL = "install()\n"
HEADERS = (
    "acl/acl.h", "c_api/asc_simd.h", "simt_api/asc_bf16.h", "simt_api/asc_fp16.h",
    "simt_api/asc_fp8.h", "simt_api/asc_simt.h", "bit", "type_traits",
)  # fmt: skip
"""Of CANN and of the C++ library, which TileLang's templates include and the simulated CANN lacks."""
OUTCOMES = ("memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure")


def add_headers(cann: SimCann) -> None:
    """Empty ones, which is all that a simulated compiler needs."""
    for name in HEADERS:
        path = cann.root / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n")


COMPILER = """\
#!/bin/sh
case " $* " in *" -o "*) ;; *) exec {real} {extra} "$@" ;; esac
echo "$*" >> "{log}"
n=0; while [ -e "{hold}" ] && [ $n -lt 3000 ]; do sleep 0.02; n=$((n+1)); done
source= out= flags= before=
for word; do
  case "$before $word" in
    "-o "*) out=$word ;;
    *.cpp) source="$source $word" ;;
    *) flags="$flags $word" ;;
  esac
  before=$word
done
[ -f "${{source# }}" ] || exec {real} {extra} "$@"
# TileLang's headers take a second: the same source with the same flags is compiled once a session.
made="{memo}/$( (echo "$flags {extra}"; cat $source) | sha256sum | cut -c1-40)"
if [ ! -e "$made" ]; then
  {real} {extra} "$@" || exit
  cp "$out" "$made.$$" && mv "$made.$$" "$made"
fi
cp "$made" "$out"
"""


class Rig:
    """Everything below one folder; :meth:`close` it."""

    def __init__(self, zygote: Zygote, memo: Path) -> None:
        self._zygote = zygote
        self._memo = memo
        self.place = Path(tempfile.mkdtemp(prefix="ptc-fw-"))
        self.compiler = self.place / "compiler" / "logging-c++"
        self.compiler_log = self.place / "logs" / "runs"
        self._hold = self.place / "logs" / "hold"
        self.compiler_log.parent.mkdir()
        self.write_compiler()
        self.daemon = DaemonProcess(self.place / "store", trust_scripts=self.compiler)
        self._cann: SimCann | None = None
        self._children: list[Child] = []

    # --- compilers

    def write_compiler(self, extra: str = "") -> None:
        """(Re)write the C++ compiler that TileLang is told of: the machine's own behind a log."""
        self.compiler.parent.mkdir(exist_ok=True)
        self.compiler.write_text(
            COMPILER.format(
                log=self.compiler_log, hold=self._hold, real=shutil.which("c++"), extra=extra,
                memo=self._memo,
            )
        )  # fmt: skip
        self.compiler.chmod(0o755)

    def hold(self) -> None:
        """Let compiles begin and not go on until :meth:`let_go`."""
        self._hold.touch()

    def let_go(self) -> None:
        self._hold.unlink(missing_ok=True)

    def compiles(self) -> list[str]:
        """The runs of the C++ compiler that made something, as command lines."""
        try:
            return self.compiler_log.read_text().splitlines()
        except FileNotFoundError:
            return []

    @property
    def cann(self) -> SimCann:
        """A simulated CANN, made when it is first asked for."""
        if self._cann is None:
            self._cann = SimCann.make(self.place / "cann", ptoas="bin")
            add_headers(self._cann)
        return self._cann

    def device_runs(self) -> list[str]:
        """Names of the device tools in the order in which they ran."""
        return [run.tool for run in self.cann.runs()]

    # --- processes

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a process."""
        own = {
            name: value for name, value in self.daemon.env.items() if name.startswith("PTOCACHE_")
        }
        path = [os.path.dirname(sys.executable), "/usr/bin", "/bin"]
        cann = self._cann.env() if self._cann is not None else {}
        if self._cann is not None:
            path = [*cann["PATH"].split(os.pathsep)[:-2], *path]
        return {
            **cann,
            **own,
            "PATH": os.pathsep.join(path),
            "HOME": str(self.place),
            "CXX": str(self.compiler),
            "TILELANG_CACHE_DIR": str(self.place / "tilelang"),
            "TMPDIR": str(self.temporary),
            **more,
        }

    @property
    def temporary(self) -> Path:
        found = self.place / "tmp"
        found.mkdir(exist_ok=True)
        return found

    def start(
        self, code: str, *, installed: bool = True, env: Mapping[str, str] | None = None
    ) -> Child:
        """A process that runs ``code``, with ptocache installed into TileLang."""
        text = PRELUDE + (INSTALL if installed else "") + code
        child = self._zygote.start(text, self.env(**(env or {})))
        self._children.append(child)
        return child

    def run(self, code: str, **env: str) -> Ended:
        """The same, until its end."""
        return self.start(code, env=env).wait()

    def plain(self, code: str, **env: str) -> Ended:
        """The same, without ptocache."""
        return self.start(code, installed=False, env=env).wait()

    def build(self, code: str, **env: str) -> None:
        """The same, which must end well."""
        ended = self.run(code, **env)
        assert ended.code == 0, ended.err

    # --- numbers

    def counts(self, cache: str) -> dict[str, int]:
        """The outcomes of a cache that are not zero, bypasses and failures with their reasons; they must
        add up."""
        with self.daemon.client() as client:
            found: dict[str, Any] = client.stats()["caches"][cache]
        assert found["requests"] == sum(found[name] for name in OUTCOMES)
        told = {name: found[name] for name in OUTCOMES if found[name]}
        for name in {"bypass", "failure"} & set(told):
            del told[name]
            told |= {f"{name} {why}": count for why, count in found[f"{name}_reasons"].items()}
        return told

    def close(self) -> None:
        self.let_go()
        for child in self._children:
            child.kill()
        self.daemon.clean_up()
