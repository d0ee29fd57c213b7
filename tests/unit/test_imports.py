"""Who may import whom, as data; and what the client may not pull in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgpack
import pytest

ROOT = Path(__file__).resolve().parents[2]
TREES = {"ptocache": ROOT, "toolchains": ROOT / "toolchains", "cli": ROOT / "cli"}
"""Folder to walk → the root that its import names count from."""

VALUES = frozenset({"errors", "outcome", "digest", "model"})
PLUGIN_INTERFACE = frozenset(
    {"bases", "toolchain", "manifest", "model", "elf", "errors", "includes", "outcome"}
)

# Module of ptocache → modules of ptocache that it may import, under TYPE_CHECKING too. Order is the
# order of the house: values and pure functions at the bottom, thin shells on top.
TABLE: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "outcome": frozenset(),
    "signature": frozenset(),
    "hashing": frozenset(),
    "accounting": frozenset(),
    "inflight": frozenset(),
    "slots": frozenset(),
    "watch": frozenset(),
    "guard": frozenset(),
    "log": frozenset(),
    "digest": frozenset({"errors"}),
    "model": frozenset({"digest", "outcome", "errors"}),
    "elf.values": frozenset(),
    "elf.reading": frozenset({"errors", "elf.values"}),
    "elf.headers": frozenset({"elf.reading", "elf.values"}),
    "elf.rules": frozenset({"elf.headers", "elf.reading", "elf.values"}),
    "elf.dynamic": frozenset({"elf.reading", "elf.values"}),
    "elf.nested": frozenset({"errors", "elf.headers", "elf.reading", "elf.values"}),
    "elf.device": frozenset({"elf.nested", "elf.reading", "elf.rules", "elf.values"}),
    "elf": frozenset(
        {"errors", "elf.device", "elf.dynamic", "elf.headers", "elf.nested", "elf.reading"}
        | {"elf.rules", "elf.values"}
    ),
    "artifact": frozenset({"elf", "errors"}),
    "paths": frozenset({"errors", "hashing"}),
    "bases": VALUES,
    "config": frozenset({"errors", "paths"}),
    "tally": frozenset({"outcome"}),
    "action": VALUES | {"bases"},
    "entry": VALUES | {"action"},
    "explain": VALUES | {"entry"},
    "wire": VALUES | {"bases"},
    "toolchain": VALUES,
    "includes": VALUES | {"toolchain"},
    "contents": VALUES | {"bases", "includes", "signature", "toolchain"},
    "manifest": VALUES | {"signature"},
    "known_files": frozenset({"contents", "errors", "signature"}),
    "identity": VALUES | {"contents", "manifest", "signature", "toolchain"},
    "resolver": VALUES | {"identity", "toolchain"},
    "compiler": VALUES | {"guard", "toolchain"},
    "build": VALUES
    | {"bases", "compiler", "contents", "includes", "signature", "toolchain", "wire"},
    "store": frozenset(),
    "store.blobs": VALUES | {"paths", "signature"},
    "store.index": VALUES | {"accounting", "signature", "tally"},
    "store.health": frozenset({"outcome"}),
    # wire: for the size up to which an output travels inline, and is kept in memory, alone.
    "store.store": VALUES
    | {"accounting", "action", "contents", "entry", "paths", "signature", "tally", "toolchain"}
    | {"bases"}
    | {"store.blobs", "store.health", "store.index", "wire"},
    "store.history": VALUES | {"entry", "store.index"},
    "store.collect": VALUES | {"store.index", "store.store"},
    "store.verify": VALUES | {"store.blobs", "store.index", "store.store"},
    "bundle": VALUES | {"wire"},
    "answers": VALUES | {"build", "wire", "store.store"},
    "peer": frozenset(),
    "kernels": VALUES
    | {"action", "answers", "build", "bundle", "contents", "entry", "explain", "identity"}
    | {
        "log",
        "inflight",
        "peer",
        "resolver",
        "tally",
        "toolchain",
        "store.history",
        "store.store",
        "wire",
    },
    "service": VALUES
    | {"answers", "bases", "log"}
    | {"action", "build", "compiler", "contents", "entry", "identity", "inflight", "tally"}
    | {
        "resolver",
        "slots",
        "toolchain",
        "store.store",
        "store.index",
        "wire",
        "explain",
        "store.history",
    },
    "control": VALUES
    | {"action", "config", "entry", "identity", "paths", "server", "service", "tally", "wire"}
    | {"store.blobs", "store.collect", "store.index", "store.store", "store.verify"}
    | {"explain", "kernels", "store.history", "toolchain", "watch", "compiler"}
    | {"contents", "known_files", "rejection"},
    "server": VALUES | {"kernels", "paths", "service", "slots", "wire"},
    "daemon": VALUES
    | {"accounting", "compiler", "config", "contents", "control", "guard", "identity", "paths"}
    | {"server", "service", "signature", "store.collect", "store.index", "store.store", "tally"}
    | {"kernels", "log", "toolchain", "watch", "wire"},
    "result": VALUES,
    "connection": VALUES | {"paths", "wire"},
    "kernel": VALUES | {"connection", "result", "wire"},
    "pending": VALUES | {"connection", "wire"},
    "client": VALUES
    | {"bases", "batch", "config", "connection", "kernel", "paths", "pending", "recording"}
    | {"result", "wire"},
    "handles": frozenset({"errors"}),
    "batch": VALUES | {"connection", "pending", "progress", "result", "wire"},
    "progress": frozenset({"batch"}),
    "recording": frozenset({"outcome", "pending", "wire"}),
    "recorded": VALUES | {"recording", "wire"},
    "launch": VALUES | {"client", "handles", "result"},
    "rejection": VALUES | {"explain", "log", "store.store"},
    "starter": VALUES | {"config", "paths"},
    "fallback": VALUES
    | {"build", "compiler", "config", "contents", "identity", "toolchain", "wire"},
    # A process a compile: it does without the client and the values that are made for it.
    "integrations.commandline": frozenset(),
    "integrations.quick": frozenset({"errors", "hashing", "paths"}),
    "integrations.wrap": frozenset({"integrations.commandline"}),
    # In every Python process below `ptocache run`.
    "integrations.hook": frozenset(),
    "integrations.startup.sitecustomize": frozenset(),
    "integrations.files": frozenset({"integrations.wrap"}),
    "integrations.shelf": frozenset(),
    "integrations.process": frozenset({"client", "errors", "integrations.hook"}),
    "integrations.tilelang_tuner": frozenset(),
    "integrations.tilelang": VALUES
    | {"kernel", "result", "integrations.files", "integrations.process", "integrations.shelf"}
    | {"integrations.tilelang_tuner", "launch"},
    "integrations.triton": VALUES
    | {"kernel", "result", "integrations.files", "integrations.process", "integrations.shelf"},
    "": frozenset({"client", "kernel", "result"}),
}

LAZY: dict[str, frozenset[str]] = {
    "toolchain": frozenset({"elf"}),
    "config": frozenset({"bases"}),
    "launch": frozenset({"elf", "integrations.shelf"}),
    "client": frozenset({"launch", "starter", "fallback", "progress"}),
    "batch": frozenset({"compiler"}),
    "recording": frozenset({"hashing", "model", "toolchain", "wire"}),
    "integrations.wrap": frozenset(
        {"client", "config", "errors", "integrations.quick", "hashing", "model", "recording"}
    ),
    "integrations.startup.sitecustomize": frozenset({"integrations.hook"}),
}
"""What a module may import besides, inside the function that needs it."""

CLI = VALUES | {"client", "config", "launch", "paths", "result", "wire", "tally"}
CLI_LAZY = CLI | {"action", "entry", "elf", "toolchain", "identity", "store.index", "store.store"}
CLI_LAZY |= {"recorded", "recording", "digest", "pending"}
CLI_LAZY |= {"artifact", "integrations.wrap", "integrations.commandline"}
CLI_LAZY |= {"control"}  # to read a store that no daemon serves
SERVES = frozenset({"daemon", "log", "starter"})
"""Only the CLI's ``serve`` may reach these; nothing else outside of ptocache may."""

HEAVY = (
    "asyncio", "typer", "rich", "sqlite3", "watchdog", "pathlib", "importlib.metadata",
    "dataclasses", "inspect", "subprocess",
)  # fmt: skip


class Import(NamedTuple):
    importer: str
    """Dotted name of the importing module."""
    imported: str
    file: str
    line: int
    lazy: bool
    typed_only: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.importer} imports {self.imported}"


def module_files() -> dict[str, Path]:
    """Dotted name → file, for every module of the three trees."""
    found = {}
    for folder, root in TREES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


MODULES = module_files()


class _Collector(ast.NodeVisitor):
    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._depth = 0
        self._typed = 0
        self.found: list[Import] = []

    def _function(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        typed = "TYPE_CHECKING" in ast.dump(node.test)
        self._typed += typed
        for child in node.body:
            self.visit(child)
        self._typed -= typed
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self._package.split(".")
            parts = parts[: len(parts) - node.level + 1]
            base = ".".join([*parts, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self._note(inner if inner in MODULES else base, node.lineno)

    def _note(self, imported: str, line: int) -> None:
        file = str(self._path.relative_to(ROOT))
        lazy, typed = self._depth > 0, self._typed > 0
        self.found.append(Import(self._name, imported, file, line, lazy, typed))


def imports_of(name: str) -> list[Import]:
    path = MODULES[name]
    collector = _Collector(name, path)
    collector.visit(ast.parse(path.read_text(encoding="utf-8")))
    return collector.found


ALL_IMPORTS = [item for name in MODULES for item in imports_of(name)]


def inner_name(module: str) -> str | None:
    """``ptocache.store.blobs`` → ``store.blobs``; ``None`` for what is not of ptocache."""
    if module == "ptocache":
        return ""
    return module.removeprefix("ptocache.") if module.startswith("ptocache.") else None


def allowed_for(item: Import) -> frozenset[str]:
    inner = inner_name(item.importer)
    if inner is not None:
        if inner.startswith("integrations") and inner not in TABLE:
            return VALUES | {"client", "launch", "config", "result"}
        return TABLE[inner] | (LAZY.get(inner, frozenset()) if item.lazy else frozenset())
    if item.importer.startswith("ptocache_cli"):
        row = CLI_LAZY if item.lazy or item.typed_only else CLI
        return row | SERVES if item.importer.endswith(".serve") else row
    return PLUGIN_INTERFACE


def test_every_module_of_the_library_has_a_row_in_the_table() -> None:
    inside = {inner_name(name) for name in MODULES} - {None}
    rowless = {name for name in inside if name not in TABLE and not str(name).startswith("integr")}
    assert not rowless, "new modules: say in TABLE what they may import"


def test_every_row_of_the_table_names_a_module_that_exists() -> None:
    missing = {
        name for name in TABLE if (f"ptocache.{name}" if name else "ptocache") not in MODULES
    }
    assert not missing


def test_no_arrow_runs_back_up() -> None:
    broken = []
    for item in ALL_IMPORTS:
        inner = inner_name(item.imported)
        if inner is None or inner == "":
            continue
        if inner not in allowed_for(item):
            broken.append(str(item))
    assert not broken


def test_the_library_imports_no_plugin_and_no_command_line() -> None:
    broken = [
        str(item)
        for item in ALL_IMPORTS
        if inner_name(item.importer) is not None and item.imported.startswith("ptocache_")
    ]
    assert not broken


def test_plugins_import_no_command_line() -> None:
    broken = [
        str(item)
        for item in ALL_IMPORTS
        if not item.importer.startswith(("ptocache_cli", "ptocache."))
        and item.imported.startswith("ptocache_cli")
    ]
    assert not broken


def test_the_imports_at_run_time_make_no_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for item in ALL_IMPORTS:
        if item.imported in MODULES and not item.typed_only and not item.lazy:
            graph[item.importer].add(item.imported)
    # A package's own name stands for its version text, which is there before anything is imported.
    for targets in graph.values():
        targets.discard("ptocache")
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle: {' → '.join((*way, name))}"
        if name not in done:
            for target in sorted(graph[name]):
                walk(target, (*way, name))
            done.add(name)

    for name in graph:
        walk(name, ())


BELOW_SERVICE = (
    "build", "compiler", "identity", "contents", "store.store", "store.blobs", "store.index",
    "store.collect", "inflight", "accounting", "tally", "toolchain", "includes", "elf", "action",
    "entry", "wire", "paths", "config",
)  # fmt: skip


@pytest.mark.parametrize("name", BELOW_SERVICE)
def test_nothing_below_the_service_knows_server_daemon_or_client(name: str) -> None:
    shells = {"ptocache.server", "ptocache.daemon", "ptocache.client", "ptocache.control"}
    named = {item.imported for item in imports_of(f"ptocache.{name}")}
    assert not named & (shells | {"socket", "asyncio", "ptocache.service"})


def test_only_serve_and_the_starter_boot_the_daemon() -> None:
    importers = {
        item.importer
        for item in ALL_IMPORTS
        if item.imported == "ptocache.daemon" and not item.typed_only
    }
    spelled = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
        if any(isinstance(text, str) and "ptocache.daemon import" in text for text in texts):
            spelled.add(name)
    assert importers <= {"ptocache_cli.serve"}
    assert spelled == {"ptocache.starter"}


def test_nothing_imports_pickle_or_marshal() -> None:
    forbidden = {"pickle", "cPickle", "marshal", "shelve", "dill", "_pickle"}
    broken = [str(item) for item in ALL_IMPORTS if item.imported.split(".")[0] in forbidden]
    assert not broken


def imported_by(statement: str) -> set[str]:
    """The modules that a bare interpreter (no site, no environment) imports for ``statement``."""
    assert msgpack.__file__ is not None
    places = [str(ROOT), os.path.dirname(os.path.dirname(msgpack.__file__))]
    code = f"import sys; sys.path[:0] = {places!r}; {statement}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


def test_importing_the_client_brings_nothing_heavy() -> None:
    names = imported_by("import ptocache.client")
    assert "ptocache.client" in names
    assert "msgpack" in names, "the measurement sees third-party modules"
    assert not names & set(HEAVY)


def test_a_wrapped_compiler_starts_with_hardly_anything() -> None:
    names = imported_by("import ptocache.integrations.wrap, ptocache.integrations.quick")
    assert "ptocache.integrations.wrap" in names
    assert not names & {
        *HEAVY,
        "typing",
        "re",
        "enum",
        "socket",
        "hashlib",
        "msgpack",
        "collections",
    }
    ours = {name for name in names if name.startswith("ptocache.")}
    assert ours == {
        "ptocache.errors", "ptocache.hashing", "ptocache.integrations", "ptocache.paths",
        *(f"ptocache.integrations.{name}" for name in ("commandline", "quick", "wrap")),
    }  # fmt: skip


def test_the_start_up_hook_brings_nothing_but_itself() -> None:
    names = imported_by("import ptocache.integrations.hook; ptocache.integrations.hook.arm({})")
    ours = {"ptocache", "ptocache.integrations", "ptocache.integrations.hook"}
    assert {name for name in names if name.startswith("ptocache")} == ours
    assert not names & {*HEAVY, "typing", "re", "warnings", "importlib", "collections"}


def test_importing_the_package_alone_brings_none_of_its_modules() -> None:
    names = imported_by("import ptocache")
    assert {name for name in names if name.startswith("ptocache")} == {"ptocache"}


def test_the_heavy_list_is_seen_when_something_heavy_is_imported() -> None:
    names = imported_by("import asyncio, pathlib, sqlite3, importlib.metadata, dataclasses")
    assert {"asyncio", "pathlib", "sqlite3", "importlib.metadata", "dataclasses"} <= names
