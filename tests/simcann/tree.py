"""Whole simulated CANN installations, in the layouts that exist in the wild."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ptocache import elf
from tests.elf_builder import DYN, Sec, Sym, build
from tests.simcann.tools import Run, build_tool, read_log, rebake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeAlias

    Layout: TypeAlias = Literal["new", "old"]
    PtoasForm: TypeAlias = Literal["bin", "plain", "launcher"]

TOOLS = ("bisheng", "ld.lld", "ccec", "llvm-objcopy")
LIBRARIES = ("runtime", "ascendcl", "tiling_api", "platform", "c_sec")
"""Of ``lib64``, as ``lib<name>.so``: those that frameworks link against."""
KNOBS = frozenset({
    "sleep-ms", "hold", "hang", "child", "exit", "nothing", "stderr-bytes", "nonce", "output-bytes",
    "fail-if-contains", "env-names", "damage", "version-to-stderr", "version-exit",
    "version-sleep-ms",
})  # fmt: skip

LAUNCHER = '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexec "$here/{target}" "$@"\n'
"""A release's shell launcher; ``{target}`` is relative to it."""

_ARCH = f"{os.uname().machine}-linux"
_FILES_A_FOLDER = 64
_STUBS = ("stddef.h", "stdint.h", "stdio.h", "string.h", "cstddef", "cstdint", "cstdio", "cstring")
_HEADERS = {
    "kernel_operator.h": '#pragma once\n#include "kernel_tensor.h"\n#include "ascendc/basic.h"\n',
    "kernel_tensor.h": "#pragma once\n#define SIM_TENSOR 1\n",
    "ascendc/basic.h": "#ifndef SIM_BASIC_H\n#define SIM_BASIC_H\n#define __aicore__\n#endif\n",
    "pto/pto-inst.hpp": "#pragma once\n#define SIM_PTO_INST 1\n",
}
_HOUR_NS = 3600 * 10**9


class SimCann(NamedTuple):
    """An installation; make one with :meth:`make`. All paths are absolute.

    ``log`` and ``knobs`` are outside the tree (beside it, in ``<root>.sim``), so that a run or a
    knob changes nothing in it.
    """

    root: Path
    """What ASCEND_HOME_PATH names."""
    layout: Layout
    bin: Path
    """Where the tools are invoked: of the new layout links, of the old one the files themselves."""
    compiler: Path
    """What BISHENG_HOME would name: its ``bin`` holds the files."""
    log: Path
    knobs: Path
    ptoas: Path | None
    """As invoked."""
    ptoas_binary: Path | None
    """What a launcher execs; else the same as ``ptoas``."""

    @classmethod
    def make(
        cls,
        root: Path,
        *,
        version: str = "8.5.0",
        identity: str = "A",
        layout: Layout = "new",
        arch_folder: bool = True,
        tools: Sequence[str] = TOOLS,
        ptoas: PtoasForm | None = None,
        files: int = 0,
        multicall: bool = False,
        log: Path | None = None,
        knobs: Path | None = None,
    ) -> SimCann:
        """Write a tree below ``root`` (must not exist, or be empty).

        new: ``version.info``, ``bin/*`` → ``tools/bisheng_compiler/bin/*``, ``compiler/version.info``.
        old: ``compiler/version.info``, ``compiler/ccec_compiler/bin/*``.
        Both: ``include``, ``lib64`` (with ``arch_folder`` links into ``<arch>-linux``, which also
        holds ``ascend_toolkit_install.info``), a clang resource directory beside the tools.

        ``multicall``: the tools are links of one file ``clang-15``, which knows them by name.
        ``ptoas``: a file ``bin/ptoas``, a file ``ptoas``, or a shell script ``bin/ptoas`` that
        execs ``libexec/ptoas``. ``files``: adds that many small headers in folders of 64 below
        ``include/generated``. ``log`` and ``knobs`` join another tree's.
        """
        place = root.with_name(root.name + ".sim")
        log, knobs = log or place / "log", knobs or place / "knobs"
        for folder in (root, log.parent, knobs):
            folder.mkdir(parents=True, exist_ok=True)
        compiler = root / _compiler_folder(layout)
        found = cls(
            root, layout, root / "bin" if layout == "new" else compiler / "bin", compiler, log,
            knobs, *_ptoas_places(root, ptoas),
        )  # fmt: skip
        found._write_tools(tools, identity, multicall)
        found._write_ptoas(identity)
        _write_headers(found, arch_folder)
        _write_libraries(found)
        _write_files(root / "include" / "generated", files)
        found.set_version(version)
        return found

    def tool(self, name: str) -> Path:
        """A tool's path as it is invoked."""
        return self.bin / name

    def env(self, **more: str) -> dict[str, str]:
        """The variables that CANN's ``set_env.sh`` sets, and the system's PATH behind its own."""
        own = [self.bin, *([self.ptoas.parent] if self.ptoas else [])]
        path = ":".join([*dict.fromkeys(map(str, own)), "/usr/bin", "/bin"])
        root = str(self.root)
        return {"ASCEND_HOME_PATH": root, "ASCEND_TOOLKIT_HOME": root, "PATH": path, **more}

    def runs(self, tool: str | None = None, *, probes: bool = False) -> list[Run]:
        """The runs (of one tool) in the order in which they started.

        Without ``probes`` (``--version`` and ``-E``) and without the children that a knob leaves.
        """
        return [
            run
            for run in read_log(self.log)
            if tool in (None, run.tool) and not run.tool.endswith(":child")
            if probes or not {"--version", "-E", "-Wl,--help"} & set(run.argv)
        ]

    def children(self) -> list[int]:
        """Pids of the children that the knob ``child`` left."""
        return [run.pid for run in read_log(self.log) if run.tool.endswith(":child")]

    def clear_log(self) -> None:
        """Forget all runs."""
        self.log.unlink(missing_ok=True)

    def knob(self, name: str, value: str | int | None = None) -> None:
        """Set ``<tool>.<knob>`` or ``all.<knob>``; raises :class:`ValueError` for an unknown one."""
        (self.knobs / _known_knob(name)).write_text("" if value is None else str(value))

    def unknob(self, name: str | None = None) -> None:
        """Take back one knob, or all of them; fine if it is not set."""
        names = [_known_knob(name)] if name else os.listdir(self.knobs)
        for each in names:
            (self.knobs / each).unlink(missing_ok=True)

    def replace_tool(self, name: str, identity: str) -> None:
        """Another build of a tool (or ``ptoas``) in place: same inode, same size, older mtime.

        Of a multi-call tree this changes all of them.
        """
        path = self.ptoas_binary if name == "ptoas" else self.tool(name)
        assert path is not None
        rebake(path, identity)

    def replace_library(self, name: str, seed: str) -> None:
        """Another ``lib64/lib<name>.so`` in place: same inode, same size, older mtime."""
        path = self.root / "lib64" / f"lib{name}.so"
        before = path.stat()
        with open(path, "r+b") as file:
            file.write(_library(name, seed))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - _HOUR_NS))

    def set_version(self, version: str) -> None:
        """Write all version files of the tree for this version, as real ones are written."""
        for path in self.version_files():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_version_text(path, version))

    def version_files(self) -> list[Path]:
        """``version.info`` of the root (new layout) and of ``compiler``; the arch folder's file."""
        found = [self.root / "compiler" / "version.info"]
        if self.layout == "new":
            found.insert(0, self.root / "version.info")
        if (self.root / _ARCH).is_dir():
            found.append(self.root / _ARCH / "ascend_toolkit_install.info")
        return found

    def _write_tools(self, tools: Sequence[str], identity: str, multicall: bool) -> None:
        files = self.compiler / "bin"
        files.mkdir(parents=True)
        self.bin.mkdir(exist_ok=True)
        if multicall:
            self._build(files / "clang-15", identity)
        for name in tools:
            if multicall:
                (files / name).symlink_to("clang-15")
            else:
                self._build(files / name, identity)
            if self.bin != files:
                (self.bin / name).symlink_to(Path("..", _compiler_folder(self.layout), "bin", name))

    def _write_ptoas(self, identity: str) -> None:
        if self.ptoas is None or self.ptoas_binary is None:
            return
        self._build(self.ptoas_binary, identity)
        if self.ptoas != self.ptoas_binary:
            self.ptoas.parent.mkdir(exist_ok=True)
            self.ptoas.write_text(LAUNCHER.replace("{target}", "../libexec/ptoas"))
            self.ptoas.chmod(0o755)

    def _build(self, path: Path, identity: str) -> None:
        build_tool(path.parent, log=self.log, knobs=self.knobs, identity=identity, name=path.name)


def _compiler_folder(layout: Layout) -> str:
    return "tools/bisheng_compiler" if layout == "new" else "compiler/ccec_compiler"


def _ptoas_places(root: Path, form: PtoasForm | None) -> tuple[Path | None, Path | None]:
    if form is None:
        return None, None
    invoked = root / "ptoas" if form == "plain" else root / "bin" / "ptoas"
    return invoked, root / "libexec" / "ptoas" if form == "launcher" else invoked


def _known_knob(name: str) -> str:
    owner, _, knob = name.rpartition(".")
    if owner not in (*TOOLS, "ptoas", "all") or knob not in KNOBS:
        raise ValueError(f"no knob is called {name!r}: say <tool>.<knob> or all.<knob>")
    return name


def _write_headers(cann: SimCann, arch_folder: bool) -> None:
    for name in ("include", "lib64"):
        if arch_folder:
            (cann.root / _ARCH / name).mkdir(parents=True)
            (cann.root / name).symlink_to(Path(_ARCH, name))
        else:
            (cann.root / name).mkdir()
    resources = cann.compiler / "lib" / "clang" / "15.0.5" / "include"
    texts = {resources / name: "#pragma once\n" for name in _STUBS}
    texts |= {cann.root / "include" / name: text for name, text in _HEADERS.items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _write_libraries(cann: SimCann) -> None:
    for name in LIBRARIES:
        (cann.root / "lib64" / f"lib{name}.so").write_bytes(_library(name, "A"))


def _library(name: str, seed: str) -> bytes:
    return build(
        machine=elf.host_machine(),
        file_type=DYN,
        sections=(Sec(".text", seed.encode().ljust(256, b"\0"), align=16),),
        dynamic_symbols=[Sym(f"sim_{name}")],
    )


def _write_files(place: Path, count: int) -> None:
    for number in range(count):
        folder = place / f"f{number // _FILES_A_FOLDER:03}"
        if number % _FILES_A_FOLDER == 0:
            folder.mkdir(parents=True)
        # Not pathlib: twenty thousand of them are to take a second.
        file = os.open(f"{folder}/h{number:05}.h", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, b"#define SIM_H%05d %d\n" % (number, number))
        os.close(file)


def _version_text(path: Path, version: str) -> str:
    if path.name == "version.info":
        return f"Version={version}\nversion_dir={version}\ntimestamp=20260509_124509000\n"
    return (
        f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion=V100R001C{version}\n"
        f"arch={os.uname().machine}\nos=linux\n"
    )
