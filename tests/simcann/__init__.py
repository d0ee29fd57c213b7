"""A simulated CANN for tests: real executables, whole trees, a run log and knobs.

Use::

    cann = SimCann.make(tmp_path / "cann")     # fast: compiled once, then patched
    subprocess.run([cann.tool("bisheng"), "-xcce", "--npu-arch=dav-2201", "-shared", "-fPIC",
                    "k.cpp", "-o", "k.so"], env=cann.env(), check=True)
    assert len(cann.runs("bisheng")) == 1                    # what ran: argv, cwd, env, pid
    cann.knob("bisheng.sleep-ms", "300")                     # each run now takes 0.3 s
    cann.replace_tool("bisheng", "B")                        # in place, same size, older mtime
    assert "identity=B" in depends_of(Path("k.so").read_bytes())     # after another run

A ptoas comes in the tree (``ptoas="bin"`` …) or as a release of its own that shares the log::

    tool = make_ptoas_release(tmp_path / "pto", era="0.56", log=cann.log, knobs=cann.knobs)
    env = cann.env(PTOAS_ROOT=str(tmp_path / "pto"))

Every output names all that its run depended on, in text: :func:`depends_of` reads it, of ELF files
from section ``.sim.depends`` (device images have their own). So a test for a wrong hit compares
bytes, and a failing one says in words what differs. ``simcann.c`` is the program; its first
comment says what each tool accepts.

Knobs are files ``<tool>.<knob>``, or ``all.<knob>``, in ``cann.knobs``; they are read at each run
that compiles, links or extracts (not by ``--version`` and ``-E -v`` probes):

    sleep-ms N              before the work
    hold                    waits until the knob is taken back (or 5 minutes)
    hang                    sleeps 5 minutes (so that nothing is left for ever)
    child [setsid]          leaves a child that sleeps 5 minutes and holds stdout open; its run is
                            logged as ``<tool>:child`` (see :meth:`SimCann.children`)
    exit CODE               fails with that code, writing nothing
    nothing                 exit 0, writing nothing
    stderr-bytes N          prints N bytes
    nonce TEXT              the text goes into the output
    output-bytes N          pads ``.data`` to N bytes (C++ of ptoas: the text)
    fail-if-contains TEXT   exit 1 if an input or a header contains it
    env-names "A B"         the values of these variables go into the output
    damage KIND             truncate, empty, not-elf, section-out-of-bounds, wrong-machine,
                            no-aicore (host forms), wrong-arch (device flags of another arch)
                            (``all.damage`` hits each step; name the tool of the step that is meant;
                            ptoas with vpto leaves its output to bisheng)
    version-to-stderr, version-exit CODE, version-sleep-ms N     for ``--version`` alone
"""

from __future__ import annotations

from tests.simcann.releases import make_frontend, make_pip_ptoas, make_ptoas_release
from tests.simcann.tools import Run, build_tool, depends_of, read_log, rebake
from tests.simcann.tree import SimCann

__all__ = [
    "KERNEL",
    "PTO",
    "Run",
    "SimCann",
    "build_tool",
    "depends_of",
    "make_frontend",
    "make_pip_ptoas",
    "make_ptoas_release",
    "read_log",
    "rebake",
]

KERNEL = """\
#include "kernel_operator.h"
extern "C" __global__ __aicore__ void gemm(void *a, void *b) {}
"""
"""A device source with one kernel, ``gemm``, and headers of the tree."""
PTO = "module {\n  func.func @gemm() {\n    return\n  }\n}\n"
"""A PTO text with one kernel, ``gemm``."""
