"""A small C++ project as files: two libraries, headers, programs that test them, and a Makefile."""

from __future__ import annotations

from pathlib import Path

STATIC = (
    "add",
    "bits",
    "clamp",
    "dot",
    "even",
    "fold",
    "gcd",
    "hash",
    "index",
    "join",
    "kind",
    "lerp",
)
SHARED = ("mean", "norm", "order", "pack", "queue", "range", "sum", "table")
TESTS = ("test_static", "test_shared", "test_both", "test_table")
SOURCES = len(STATIC) + len(SHARED) + len(TESTS)
"""Compiles of one build."""

_MAKEFILE = """\
CXX      = g++
CXXFLAGS = -O2 -g -Wall -std=c++17
STATIC   = {static}
SHARED   = {shared}
TESTS    = {tests}
OBJECTS  = $(STATIC:%=build/static/%.o) $(SHARED:%=build/shared/%.o)

all: $(TESTS:%=build/%)

objects: $(OBJECTS) $(TESTS:%=build/%.o)

build/static/%.o: src/%.cpp
\t@mkdir -p $(@D)
\t$(CXX) $(CXXFLAGS) -Iinclude -MMD -MP -c $< -o $@

build/shared/%.o: src/%.cpp
\t@mkdir -p $(@D)
\t$(CXX) $(CXXFLAGS) -Iinclude -fPIC -fvisibility=hidden -MD -MF $(@:.o=.d) -c $< -o $@

build/%.o: tests/%.cpp
\t@mkdir -p $(@D)
\t$(CXX) $(CXXFLAGS) -I include -DNAME='"$*"' -c $< -o $@

build/libkit.a: $(STATIC:%=build/static/%.o)
\tar rcsD $@ $^

build/libkitx.so: $(SHARED:%=build/shared/%.o)
\t$(CXX) -shared $^ -o $@

build/%: build/%.o build/libkit.a build/libkitx.so
\t$(CXX) $< build/libkit.a -Lbuild -lkitx -Wl,-rpath,'$$ORIGIN' -o $@

check: all
\t@for name in $(TESTS); do build/$$name || exit 1; done

clean:
\trm -rf build

.SECONDARY:
-include $(OBJECTS:.o=.d)
"""
_COMMON = """\
#pragma once
{heavy}
#define KIT_API __attribute__((visibility("default")))
#define KIT_CHECK(x) do {{ if (!(x)) kit::failed(__FILE__, __LINE__); }} while (0)

namespace kit {{
[[noreturn]] inline void failed(const char *file, int line) {{
    __builtin_printf("%s:%d: failed\\n", file, line);
    __builtin_trap();
}}
template <int N> struct Power {{ static constexpr long of(long x) {{ return x * Power<N - 1>::of(x); }} }};
template <> struct Power<0> {{ static constexpr long of(long) {{ return 1; }} }};
}}
"""
_HEADER = """\
#pragma once
#include "kit/common.hpp"

namespace kit {{
KIT_API long {name}(long x);
struct {title} {{ long value; long twice() const {{ return 2 * value + {number}; }} }};
}}
"""
_SOURCE = """\
#include "kit/{name}.hpp"
{other}
namespace kit {{
static {title} kept{{{number}}};

long {name}(long x) {{
    KIT_CHECK(x >= 0);
    {body}
    return Power<{power}>::of(x % 7) + kept.twice() + {call};
}}
}}
"""
_HEAVY_INCLUDES = "#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>"
_HEAVY_BODY = """std::map<std::string, std::vector<long>> m;
    m[std::to_string(x)].push_back(x);
    for (auto &item : m) {
        std::sort(item.second.begin(), item.second.end());
        x += long(item.first.size() + item.second.size());
    }"""


def write(root: Path, *, heavy: bool = False) -> Path:
    """Write the project below ``root``. ``heavy``: with templates of the standard library, as real code."""
    names = (*STATIC, *SHARED)
    texts = {
        "Makefile": _MAKEFILE.format(
            static=" ".join(STATIC), shared=" ".join(SHARED), tests=" ".join(TESTS)
        ),
        "include/kit/common.hpp": _COMMON.format(heavy=_HEAVY_INCLUDES if heavy else ""),
    }
    for number, name in enumerate(names):
        family = STATIC if name in STATIC else SHARED
        before = family[family.index(name) - 1] if family.index(name) else ""
        fields = {
            "name": name, "title": name.title(), "number": number, "power": number % 5 + 1,
            "other": f'#include "kit/{before}.hpp"' if before else "",
            "call": f"{before}(x)" if before else "0",
            "body": _HEAVY_BODY if heavy else "",
        }  # fmt: skip
        texts[f"include/kit/{name}.hpp"] = _HEADER.format(**fields)
        texts[f"src/{name}.cpp"] = _SOURCE.format(**fields)
    used = {
        "test_static": STATIC, "test_shared": SHARED, "test_both": ("lerp", "table"),
        "test_table": ("table",),
    }  # fmt: skip
    for test, tested in used.items():
        includes = "".join(f'#include "kit/{name}.hpp"\n' for name in tested)
        checks = "".join(f"    KIT_CHECK(kit::{name}(3) == kit::{name}(3));\n" for name in tested)
        texts[f"tests/{test}.cpp"] = (
            f'{includes}\nint main() {{\n{checks}    __builtin_printf("%s passed\\n", NAME);\n}}\n'
        )
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root
