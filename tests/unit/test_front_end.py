"""The program that runs a kernel's Python source: what it writes, and what it says it looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ptocache_pto
from tests.harness import DEADLINE_S
from tests.simcann import make_frontend

DRIVER = Path(ptocache_pto.__file__).with_name("front_end.py")
# Of every version that is installed beside this one, as managers of versions lay them out.
OTHERS = sorted(Path(sys.base_prefix).parent.glob("3.1[0-9].*/bin/python3"))
# Not that of an environment, which would read what is installed there at each start.
PYTHON = os.path.realpath(sys.executable)
PYTHONS = list(dict.fromkeys([PYTHON, *map(os.path.realpath, OTHERS)]))


class Ran(NamedTuple):
    code: int
    text: str
    looked: dict[str, Any]
    out: str
    err: str


class Bench:
    """A private directory like that of a step, and folders of a user around it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.work = place / "private" / "work"
        self.tmp = place / "private" / "tmp"
        self.site = place / "site"
        for folder in (self.work, self.tmp, self.site):
            folder.mkdir(parents=True)

    def run(self, source: str, *kernels: str, python: str = PYTHON, **env: str) -> Ran:
        (self.work / "k.py").write_text(source)
        argv = [python, "-B", "-s", "-X", "pycache_prefix=/nonexistent", str(DRIVER)]
        done = subprocess.run(
            [*argv, "k.py", "out.pto", "looked.json", *kernels],
            cwd=self.work, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
            env={"TMPDIR": str(self.tmp), "PYTHONPATH": str(self.site), "LC_ALL": "C", **env},
        )  # fmt: skip
        out, looked = self.work / "out.pto", self.work / "looked.json"
        return Ran(
            done.returncode,
            out.read_text() if out.exists() else "",
            json.loads(looked.read_text()) if looked.exists() else {},
            done.stdout,
            done.stderr,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- the text


@pytest.mark.parametrize("python", PYTHONS, ids=range(len(PYTHONS)))
def test_kernel_by_name_is_its_text(bench: Bench, python: str) -> None:
    make_frontend(bench.site)
    source = (
        "from ptodsl import to_ir_module\n"
        "@to_ir_module(meta_data=lambda: {'dtype': 'f16'})\n"
        "def gemm():\n    return 41\n"
        "print('chatter')\n"
    )
    ran = bench.run(source, "gemm", python=python)
    assert ran.code == 0, ran.err
    assert "func.func @gemm" in ran.text
    assert "'dtype', 'f16'" in ran.text
    assert ran.out == "chatter\n"
    assert ran.looked["unseen"] == ""


@pytest.mark.parametrize(
    ("source", "kernels", "text"),
    [
        ("print('one')\nprint('two')\n", (), "one\ntwo\n"),
        ("a = 'A'\nb = 'B'\n", ("b", "a"), "B\nA\n"),
        ("def build():\n    return 'built'\n", ("build",), "built\n"),
        ("class K:\n    def __str__(self): return 'text'\nk = K()\n", ("k",), "text\n"),
        ("print('text')\nraise SystemExit(0)\n", (), "text\n"),
        ("import sys\nprint('text')\nsys.exit()\n", (), "text\n"),
        ("if __name__ == '__main__':\n    print(__file__)\n", (), "k.py\n"),
        ("import sys\nprint(sys.argv)\n", (), "['k.py']\n"),
        ("print('f\\u00fc\\u540d')\n", (), "f\u00fc\u540d\n"),
        ("import os\nos.chdir('/')\nprint('moved')\n", (), "moved\n"),
    ],
)
def test_text_is_what_is_printed_or_what_has_the_name(
    bench: Bench, source: str, kernels: tuple[str, ...], text: str
) -> None:
    ran = bench.run(source, *kernels)
    assert (ran.code, ran.text) == (0, text), ran.err


def test_program_finds_itself_as_its_main_module(bench: Bench) -> None:
    source = (
        "from __future__ import annotations\n"
        "import dataclasses, inspect, sys, typing\n"
        "@dataclasses.dataclass\n"
        "class Shape:\n    rows: typing.ClassVar[int] = 3\n    columns: Int = 4\n"
        "Int = int\n"
        "assert typing.get_type_hints(Shape)['columns'] is int\n"
        "assert sys.modules['__main__'].Shape is Shape\n"
        "def f(): return 1\n"
        "print(inspect.getsource(f))\n"
    )
    ran = bench.run(source)
    assert (ran.code, ran.text.strip()) == (0, "def f(): return 1"), ran.err


# --- isolation


@pytest.mark.parametrize("entry", ["", "."])
def test_current_folder_is_no_place_for_modules(bench: Bench, entry: str) -> None:
    make_frontend(bench.site)
    for name in ("ptodsl.py", "json.py", "stat.py"):
        (bench.work / name).write_text("raise RuntimeError('shadowed')\n")
    path = f"{entry}:{bench.site}"
    ran = bench.run("import ptodsl\nprint(ptodsl.VERSION)\n", PYTHONPATH=path)
    assert (ran.code, ran.text) == (0, "0.1.0\n"), ran.err


def test_drivers_own_folder_is_no_place_for_modules(bench: Bench) -> None:
    ran = bench.run("import toolchain\n")
    assert ran.code == 1
    assert "No module named 'toolchain'" in ran.err


# --- failures


@pytest.mark.parametrize(
    ("source", "kernels", "words"),
    [
        ("x = 1\n", (), "k.py: printed no PTO text, and no kernel was named (--kernel=NAME)"),
        ("x = 1\n", ("gemm",), "k.py: no kernel is called 'gemm'"),
        ("print(' ')\n", (), "printed no PTO text"),
        ("x = (\n", (), "SyntaxError"),
        ("raise SystemExit('told so')\n", (), "told so"),
        ("def k(a): pass\n", ("k",), "TypeError: k() missing 1 required positional argument"),
    ],
)
def test_failure_says_why_and_writes_nothing(
    bench: Bench, source: str, kernels: tuple[str, ...], words: str
) -> None:
    ran = bench.run(source, *kernels)
    assert ran.code == 1
    assert words in ran.err
    assert (ran.text, ran.looked) == ("", {})


@pytest.mark.parametrize("python", PYTHONS, ids=range(len(PYTHONS)))
def test_traceback_begins_in_the_source_and_names_no_private_path(
    bench: Bench, python: str
) -> None:
    ran = bench.run("def f():\n    return 1 // 0\nf()\n", python=python)
    assert ran.code == 1
    assert 'File "k.py", line 3, in <module>' in ran.err
    assert 'File "k.py", line 2, in f' in ran.err
    assert "return 1 // 0" in ran.err
    assert "ZeroDivisionError" in ran.err
    assert "front_end.py" not in ran.err
    assert str(bench.place) not in ran.err


# --- what it looked at


def test_modules_and_data_that_were_read_are_listed(bench: Bench) -> None:
    data = bench.place / "table.txt"
    data.write_text("7")
    (bench.site / "pkg").mkdir()
    (bench.site / "pkg" / "__init__.py").write_text("")
    (bench.site / "pkg" / "part.py").write_text("from helper import X\n")
    (bench.site / "helper.py").write_text("X = 1\n")
    source = f"import os, pkg.part\nprint(os.read(os.open({str(data)!r}, os.O_RDONLY), 9))\n"
    opened = bench.run(source).looked["opened"]
    mine = [path for path in opened if path.startswith(str(bench.place))]
    assert mine == sorted(
        str(path)
        for path in (
            data, bench.site / "helper.py", bench.site / "pkg" / "__init__.py",
            bench.site / "pkg" / "part.py",
        )
    )  # fmt: skip


def test_inputs_and_own_temporary_files_are_not_listed(bench: Bench) -> None:
    (bench.work / "input.txt").write_text("1")
    source = (
        "import tempfile\n"
        "open('input.txt').read()\n"
        "with tempfile.NamedTemporaryFile('w+') as f:\n    f.write('x')\n"
        "open(tempfile.gettempdir() + '/kept', 'w').write('x')\n"
        "open(tempfile.gettempdir() + '/kept').read()\n"
        "print(1)\n"
    )
    looked = bench.run(source).looked
    private = str(bench.place / "private")
    assert not [p for p in (*looked["opened"], *looked["absent"]) if p.startswith(private)]


def test_earlier_places_of_a_module_are_absent_ones(bench: Bench) -> None:
    first, second = bench.place / "first", bench.place / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / "helper.py").write_text("")
    path = f"{first}:{second}:{bench.site}"
    absent = bench.run("import helper\nprint(1)\n", PYTHONPATH=path).looked["absent"]
    assert {f"{first}/helper.py", f"{first}/helper/__init__.py"} <= set(absent)
    assert not [item for item in absent if item.startswith((f"{second}/helper", str(bench.site)))]


@pytest.mark.parametrize("made", [True, False])
def test_folder_above_that_of_a_module_is_an_earlier_place_and_so_is_a_missing_one(
    bench: Bench, made: bool
) -> None:
    earlier = bench.site.parent if made else bench.place / "later"
    (bench.site / "helper.py").write_text("")
    absent = bench.run("import helper\nprint(1)\n", PYTHONPATH=f"{earlier}:{bench.site}")
    assert f"{earlier}/helper.py" in absent.looked["absent"]


@pytest.mark.parametrize(
    "look",
    [
        "try:\n    import fast\nexcept ImportError:\n    fast = None\n",
        "import importlib.util\nassert importlib.util.find_spec('fast') is None\n",
        "import importlib\ntry:\n    importlib.import_module('fast')\nexcept ImportError:\n    pass\n",
    ],
)
def test_module_that_was_looked_for_in_vain_is_absent_everywhere(bench: Bench, look: str) -> None:
    absent = bench.run(look + "print(1)\n").looked["absent"]
    assert {f"{bench.site}/fast.py", f"{bench.site}/fast/__init__.py"} <= set(absent)


def test_missing_part_of_a_package_is_absent(bench: Bench) -> None:
    (bench.site / "pkg").mkdir()
    (bench.site / "pkg" / "__init__.py").write_text("")
    source = "try:\n    import pkg.part\nexcept ImportError:\n    pass\nprint(1)\n"
    assert f"{bench.site}/pkg/part.py" in bench.run(source).looked["absent"]


def test_file_that_was_not_there_is_absent(bench: Bench) -> None:
    missing = bench.place / "missing.cfg"
    source = f"try:\n    open({str(missing)!r})\nexcept OSError:\n    pass\nprint(1)\n"
    assert str(missing) in bench.run(source).looked["absent"]


def test_file_that_is_only_written_is_not_read(bench: Bench) -> None:
    target = bench.place / "target"
    looked = bench.run(f"open({str(target)!r}, 'w').write('x')\nprint(1)\n").looked
    assert str(target) not in looked["opened"]


@pytest.mark.parametrize(
    "call", ["os.listdir", "list(map(str, pathlib.Path({}).iterdir()))", "glob.glob({} + '/*')"]
)
def test_folder_whose_names_were_asked_for_is_listed(bench: Bench, call: str) -> None:
    folder = bench.place / "tables"
    folder.mkdir()
    asked = call.format(repr(str(folder))) if "{}" in call else f"{call}({str(folder)!r})"
    looked = bench.run(f"import glob, os, pathlib\n{asked}\nprint(1)\n").looked
    assert looked["listed"] == [str(folder)]


def test_search_for_modules_lists_no_folder(bench: Bench) -> None:
    make_frontend(bench.site)
    assert bench.run("import ptodsl, json, email.message\nprint(1)\n").looked["listed"] == []


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("import subprocess\nsubprocess.run(['/bin/true'])\n", "starts a program"),
        ("import os\nos.system('true')\n", "starts a program"),
        ("import os\nos.fork() or os._exit(0)\nos.wait()\n", "starts a process"),
        ("import socket\nsocket.socket().connect_ex(('127.0.0.1', 1))\n", "opens a connection"),
        ("import socket\nsocket.gethostname()\n", "asks for the machine's name"),
        ("open('/dev/zero', 'rb').read(1)\n", "reads /dev/zero"),
        ("import sqlite3\nsqlite3.connect('tuned.db')\n", "opens a database"),
    ],
)
def test_what_no_list_of_files_covers_is_said(bench: Bench, act: str, words: str) -> None:
    ran = bench.run(act + "print(1)\n")
    assert ran.code == 0, ran.err
    assert words in ran.looked["unseen"]


def test_two_runs_are_equal_to_the_byte(bench: Bench) -> None:
    make_frontend(bench.site)
    source = "import ptodsl\nprint(list({'a', 'b', 'c', 'd', 'e', 'f'}))\n"
    first = bench.run(source, PYTHONHASHSEED="0")
    again = bench.run(source, PYTHONHASHSEED="0")
    assert first == again


def test_nothing_is_left_beside_the_modules(bench: Bench) -> None:
    make_frontend(bench.site)
    before = sorted(os.walk(bench.site))
    bench.run("import ptodsl\nprint(1)\n")
    assert sorted(os.walk(bench.site)) == before
