"""The little world that the state machine compiles: folders, headers, sources, and their variants.

Every header defines a symbol that names its place and its variant, so that an object tells exactly
which headers were read, in which order.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROOTS = ("A", "B")
"""Two checkouts of one project: the folder of the source, for either of two requests."""
FOLDERS = (*ROOTS, "quo", "A-inc", "inc", "sys", "envinc", "after")
"""``A-inc`` begins with the name of ``A`` and does not lie in it."""
NAMES = ("a.h", "b.h", "opt.h", "sub/n.h", "sub/b.h")
SPOTS = tuple(f"{folder}/{name}" for folder in FOLDERS for name in NAMES)
UNRELATED = ("A/unrelated.h", "inc/unrelated.h")
"""Headers that no source and no header ever names."""
LIBRARIES = ("lib1/libq.so", "lib1/libq.a", "lib2/libq.so", "lib2/libq.a")
LINK = "link"
"""A symbolic link to one of two folders."""
LINK_TARGETS = ("A-inc", "inc")

HEADER_KINDS = (
    "plain", "quote", "angle", "up", "next", "next b", "has", "has angle", "has next", "file", "warn",
    "error", "macro quote", "macro angle", "comment", "digraph", "spliced", "computed has", "clock",
    "std",
)  # fmt: skip
KEPT_KINDS = tuple(
    kind for kind in HEADER_KINDS if kind not in ("error", "up", "next", "computed has", "clock")
)
"""Those with which most sources compile and are stored."""
_BODIES = {
    "plain": "",
    "quote": '#include "b.h"',
    "angle": "#include <b.h>",
    "up": '#include "../b.h"',
    "next": "#include_next <{name}>",
    "next b": "#include_next <b.h>",
    "has": '#if __has_include("opt.h")\nint has_{id} = 1;\n#endif',
    "has angle": "#if __has_include(<opt.h>)\nint has_{id} = 1;\n#endif",
    "has next": "#if __has_include_next(<{name}>)\n# include_next <{name}>\n#endif",
    "file": "const char *file_{id} = __FILE__;",
    "warn": "#warning w{n}",
    "error": "#error e{n}",
    "macro quote": '#define MQ_{id} "b.h"\n#include MQ_{id}',
    "macro angle": "#define MA_{id} <b.h>\n#include MA_{id}",
    "comment": "/* why */ # /**/ include /* what */ <b.h>",
    "digraph": "%:include <b.h>",
    "spliced": "#inc\\\nlude <b\\\n.h>",
    "computed has": "#define MH_{id} <opt.h>\n#if __has_include(MH_{id})\nint has_{id} = 1;\n#endif",
    "clock": "const char *clock_{id} = __DATE__;",
    "std": "#include <stddef.h>\nsize_t size_{id} = {n};",
}

SOURCE_NAMES = ("k.c", "k.c", "k.c", "sub/k.c", "k.cpp")
SOURCE_KINDS = (
    "nothing", "quote", "angle", "both", "nested", "nested angle", "has", "has angle", "macro quote",
    "macro angle", "macro deep", "macro after angle", "option", "warning", "error", "file", "up", "clock",
    "computed has", "large", "std", "absolute",
)  # fmt: skip
_SOURCES = {
    "nothing": "",
    "quote": '#include "a.h"',
    "angle": "#include <a.h>",
    "both": '#include <a.h>\n#include "b.h"\n#include "a.h"',
    "nested": '#include "sub/n.h"',
    "nested angle": "#include <sub/n.h>",
    "has": '#if __has_include("opt.h")\n# include "opt.h"\n#endif',
    "has angle": "#if __has_include(<opt.h>)\nint has_opt = 1;\n#endif",
    "macro quote": '#define M "a.h"\n#include M',
    "macro angle": "#define M <a.h>\n#include M",
    "macro deep": '#define M "sub/n.h"\n#include M',
    "macro after angle": '#include <b.h>\n#define M "b.h"\n#include M',
    "option": "#ifdef PICK\n#include PICK\n#endif",
    "warning": '#include "a.h"\nint f{n}(void) {{ int unused; return 1; }}',
    "error": '#include "a.h"\nint f{n}(void) {{ return missing; }}',
    "file": '#include "a.h"\nconst char *file_k = __FILE__;',
    "up": '#include "../inc/a.h"',
    "clock": '#include "a.h"\nconst char *clock_k = __DATE__ __TIME__ __TIMESTAMP__;',
    "computed has": '#define H "opt.h"\n#if __has_include(H)\nint has_opt = 1;\n#endif',
    "large": '#include "a.h"\nconst unsigned char large_k[200000] = {{{n}, 1}};',
    "std": '#include <limits.h>\nint most_k = INT_MAX;\n#include "b.h"',
    "absolute": '#include "{base}/A/a.h"',
}

DIRECTORIES = (
    ("-I", "A-inc", "-I", "inc", "-iquote", "quo", "-isystem", "sys"),
    ("-I", "inc", "-I", "A-inc", "-iquote", "quo", "-isystem", "sys"),
    ("-isystem", "sys", "-I", "sys", "-I", "inc"),
    ("-I", "inc", "-I", "A-inc", "-isystem", "inc"),
    ("-iquote", "sys", "-iquote", "quo", "-I", "inc", "-isystem", "sys"),
    ("-I", "A", "-I", "inc"),
    ("-I", "A/sub", "-I", "inc"),
    ("-I", ".", "-I", "inc", "-I", "A"),
    ("-I", "B", "-I", "A", "-idirafter", "after"),
    ("-I", "link", "-I", "sys", "-idirafter", "after"),
    ("-I", "gone", "-I", "inc/sub", "-I", "inc"),
    ("-idirafter", "inc", "-isystem", "sys"),
    ("-I", "quo", "-I", "A-inc", "-I", "inc"),
)
EXTRAS = (
    (), ("-Wall",), ("-g",), ("-include", "inc/b.h"), ("-DPICK=<a.h>",), ('-DPICK="b.h"',),
    ("-DPICK=<sub/n.h>", "-Wall"), ("-g", "-Wall"),
)  # fmt: skip
LEVELS = ("-O0", "-O2")
DEFINES = ((), ("-DD=1",), ("-DD=2",), ("-DD=1", "-UD"))
SEARCHED: tuple[dict[str, tuple[str, ...]], ...] = (
    {}, {"C_INCLUDE_PATH": ("envinc",)}, {"CPATH": ("envinc", "inc")},
    {"C_INCLUDE_PATH": ("sys", "envinc"), "CPATH": ("after",)},
)  # fmt: skip
EPOCHS = ("", "0", "86400", "1700000000")
LIBRARY_OPTIONS = ((), ("-L", "lib1", "-L", "lib2", "-lq"), ("-L", "lib2", "-L", "lib1", "-lq"))

_CLOCKS = (b"__DATE__", b"__TIME__", b"__TIMESTAMP__")


def header(spot: str, kind: str, number: int) -> bytes:
    """The text of a header; it depends on the spot but not on which checkout it lies in."""
    folder, _, name = spot.partition("/")
    label = "src" if folder in ROOTS else folder
    identifier = re.sub(r"\W", "_", f"{label}_{name}")
    body = _BODIES[kind].format(name=name, id=identifier, n=number)
    return (
        f"#ifndef G_{identifier}\n#define G_{identifier}\n"
        f"int d_{identifier}_{number} = {number};\n{body}\n#endif\n"
    ).encode()


def source(kind: str, number: int, base: Path) -> bytes:
    """The text of the source."""
    body = _SOURCES[kind].format(n=number, base=base)
    return (
        f"{body}\nint k_{number}(void) {{ return {number}; }}\n"
        "#ifdef VARIANT\nint variant_k = VARIANT;\n#endif\n#ifdef D\nint d_k = D;\n#endif\n"
    ).encode()


def library(number: int) -> bytes:
    """A library that is a linker script: cheap to make, and visible in what is linked."""
    return f"q_symbol = {number};\n".encode()


def tells_time(text: bytes) -> bool:
    """True if the text names the clock."""
    return any(token in text for token in _CLOCKS)


def is_unseen(text: bytes) -> bool:
    """True if the text asks for a file by a name that a macro built."""
    return b"computed" in text or re.search(rb"__has_include\(M?H", text) is not None


def write(path: Path, data: bytes, how: str) -> None:
    """Write a file in one of the ways in which editors and build systems do it.

    ``replace``: another file takes its place. ``in place``: the same file. ``backdated``: the same
    file, and its modification time is set back to what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    if how == "replace" or before is None:
        part = path.with_name(path.name + ".part")
        part.write_bytes(data)
        part.chmod(before.st_mode if before else 0o644)
        part.replace(path)
    else:
        with open(path, "r+b") as file:
            file.write(data)
            file.truncate()
    if how == "backdated" and before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
