"""What counts in a key and what does not: the same request is the same key, everything else another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.client import Client
from ptocache.outcome import Outcome
from ptocache.result import Result
from tests.harness import DEADLINE_S, DaemonProcess, LoggingCompiler

if TYPE_CHECKING:
    from collections.abc import Iterator

    MakeDaemon = Callable[..., DaemonProcess]

HEADER = "#define VALUE 7\n"
SOURCE = '#include "h.h"\n#include <far.h>\nint answer(void) { return VALUE + FAR; }\n'

ASK = """
import json, os, sys
from ptocache.client import connect
ask = json.loads(sys.argv[1])
with connect() as client:
    result = client.compile("host", {"k.c": ask["source"]}, **ask["request"])
print(result.outcome.label, result.key)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source's folder with a header, and an include directory."""
    (tmp_path / "src").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "src" / "h.h").write_text(HEADER)
    (tmp_path / "include" / "far.h").write_text("#define FAR 1\n")
    return tmp_path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("keys") / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    yield daemon
    daemon.clean_up()


def request(tree: Path, **more: Any) -> dict[str, Any]:
    return {
        "options": ["-O1", "-I", str(tree / "include")],
        "source_dir": str(tree / "src"),
        "outputs": ["object"],
        **more,
    }


def ask(client: Client, tree: Path, source: str = SOURCE, **more: Any) -> Result:
    fields = {"env": {"PATH": os.environ["PATH"]}, **request(tree, **more)}
    return client.compile("host", {"k.c": source}, **fields)


# --- what does not count


def ask_elsewhere(
    daemon: DaemonProcess, tree: Path, env: dict[str, str], cwd: Path
) -> tuple[str, str]:
    """(outcome, key) as another process gets them, whose environment is the request's."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps({"source": SOURCE, "request": request(tree)})],
        env={**daemon.env, **env}, cwd=cwd, capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    outcome, key = done.stdout.split()
    return outcome, key


def test_who_asks_from_where_and_with_what_around_it_does_not_count(
    served: DaemonProcess, tree: Path
) -> None:
    with served.client() as client:
        first = ask(client, tree)
    places = []
    for number in range(4):
        places.append(tree / f"cwd{number}")
        places[-1].mkdir()
    around: list[dict[str, str]] = [
        {},
        {"LANG": "de_DE.UTF-8", "LC_ALL": "zh_CN.UTF-8", "LANGUAGE": "fi", "TZ": "Asia/Tokyo"},
        {
            "HOME": str(tree), "TMPDIR": str(tree), "PWD": "/elsewhere", "USER": "someone",
            "XDG_CACHE_HOME": str(tree), "OLDPWD": "/",
        },
        {
            "RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "16", "MASTER_PORT": "29500",
            "CUDA_VISIBLE_DEVICES": "3", "PYTHONHASHSEED": "77", "UNRELATED": "x" * 1000,
            "CFLAGS": "-DVALUE2", "GCC_COLORS": "error=01;31", "COLUMNS": "33",
        },
    ]  # fmt: skip
    answers = [
        ask_elsewhere(served, tree, env, place) for env, place in zip(around, places, strict=True)
    ]
    assert answers == [("memory_hit", first.key)] * 4


def touch_headers(tree: Path) -> None:
    for path in (tree / "src" / "h.h", tree / "include" / "far.h"):
        os.utime(path, (1, 1))


def rewrite_headers_with_the_same_bytes(tree: Path) -> None:
    for path in (tree / "src" / "h.h", tree / "include" / "far.h"):
        text = path.read_text()
        path.unlink()
        path.write_text(text)


def chmod_headers(tree: Path) -> None:
    os.chmod(tree / "src" / "h.h", 0o600)


def unrelated_files_come(tree: Path) -> None:
    (tree / "src" / "other.h").write_text("#error never read\n")
    (tree / "include" / "other.h").write_text("#error never read\n")


@pytest.mark.parametrize(
    "change",
    [touch_headers, rewrite_headers_with_the_same_bytes, chmod_headers, unrelated_files_come],
)
def test_change_that_no_compiler_sees_is_a_hit(
    served: DaemonProcess, tree: Path, change: Callable[[Path], None]
) -> None:
    with served.client() as client:
        first = ask(client, tree)
        change(tree)
        again = ask(client, tree)
    assert again.outcome is Outcome.MEMORY_HIT
    assert again.key == first.key


def test_spelling_of_a_path_does_not_count(served: DaemonProcess, tree: Path) -> None:
    (tree / "link").symlink_to(tree / "include")
    spellings = [
        ["-O1", "-I", f"{tree}/include"],
        ["-O1", f"-I{tree}/include"],
        ["-O1", f"-I{tree}/include/"],
        ["-O1", f"-I{tree}/src/../include"],
        ["-O1", f"-I{tree}//include/."],
        ["-O1", f"-I{tree}/link"],
        ["-O1", "-I", os.path.relpath(tree / "include")],
    ]
    with served.client() as client:
        results = [ask(client, tree, options=options) for options in spellings]
        assert len({item.key for item in results}) == 1
        assert {item.outcome for item in results[1:]} == {Outcome.MEMORY_HIT}
        (tree / "other").symlink_to(tree / "src")
        again = ask(client, tree, source_dir=str(tree / "other"))
    assert again.outcome is Outcome.MEMORY_HIT


def test_order_of_what_has_no_order_does_not_count(served: DaemonProcess, tree: Path) -> None:
    inputs = {"a.c": "int a;\n", "b.h": "", "c.c": "int c;\n"}
    env = {"PATH": os.environ["PATH"], "CPATH": str(tree), "C_INCLUDE_PATH": str(tree)}
    with served.client() as client:
        first = client.compile("host", inputs, env=env, symbols=["a", "c"])
        again = client.compile(
            "host", dict(reversed(inputs.items())), env=dict(reversed(env.items())),
            symbols=["c", "a", "c"],
        )  # fmt: skip
    assert again.outcome is Outcome.MEMORY_HIT
    assert again.key == first.key


def test_name_for_people_does_not_count(served: DaemonProcess, tree: Path) -> None:
    with served.client() as client:
        first = ask(client, tree, kernel="one")
        assert ask(client, tree, kernel="two").key == first.key
        assert ask(client, tree, kernel="two").outcome is Outcome.MEMORY_HIT


# --- what counts

Change = dict[str, Any]

COUNTS: dict[str, Change] = {
    "source": {"source": SOURCE + "\n"},
    "option": {"options": ["-O2"]},
    "option's order": {"options": ["-DX=1", "-O1", "-DY=2"]},
    "option's order, reversed": {"options": ["-DY=2", "-O1", "-DX=1"]},
    "same option twice": {"options": ["-O1", "-O1"]},
    "define": {"options": ["-O1", "-DNDEBUG"]},
    "declared variable": {"env": {"SOURCE_DATE_EPOCH": "1"}},
    "its value": {"env": {"SOURCE_DATE_EPOCH": "2"}},
    "output": {"outputs": ["shared"]},
    "both outputs": {"outputs": ["shared", "object"]},
    "symbol": {"symbols": ["answer"]},
    "salt": {"salt": "pepper"},
    "compiler": {"env": {"CC": "gcc"}},
    "compiler's options": {"env": {"CC": "cc -fno-ident"}},
    "input's name": {"name": "other.c"},
    "language": {"name": "k.cc"},
}


def test_everything_that_counts_is_a_miss_once_and_a_hit_when_it_comes_back(
    served: DaemonProcess, tree: Path
) -> None:
    include = ["-I", str(tree / "include")]

    def one(client: Client, change: Change) -> Result:
        fields = request(tree, **{k: v for k, v in change.items() if k not in ("source", "name")})
        fields["options"] = [*change.get("options", ["-O1"]), *include]
        fields["env"] = {"PATH": os.environ["PATH"], **change.get("env", {})}
        inputs = {change.get("name", "k.c"): change.get("source", SOURCE + "/* counts */\n")}
        return client.compile("host", inputs, **fields)

    with served.client() as client:
        first = one(client, {})
        assert first.outcome is Outcome.MISS
        keys = {first.key: "nothing"}
        for name, change in COUNTS.items():
            found = one(client, change)
            assert found.outcome is Outcome.MISS, name
            assert found.key not in keys, (name, keys.get(found.key))
            keys[found.key] = name
            assert one(client, change).outcome is Outcome.MEMORY_HIT, name
        back = one(client, {})
    assert back.outcome is Outcome.MEMORY_HIT
    assert back.key == first.key
    assert back.outputs["object"].digest == first.outputs["object"].digest


@pytest.mark.parametrize("place", ["src/h.h", "include/far.h"])
def test_headers_content_counts_and_each_old_state_hits_again(
    served: DaemonProcess, tree: Path, place: str
) -> None:
    header = tree / place
    name = header.read_text().split()[1]
    digests = {}
    with served.client() as client:
        for value in (1, 2, 3):
            header.write_text(f"#define {name} {value}\n")
            found = ask(client, tree, SOURCE + f"/* {place} */\n")
            assert found.outcome is Outcome.MISS
            digests[value] = found.outputs["object"].digest
        assert len(set(digests.values())) == 3
        for value in (2, 1, 3):
            header.write_text(f"#define {name} {value}\n")
            found = ask(client, tree, SOURCE + f"/* {place} */\n")
            assert found.outcome is Outcome.MEMORY_HIT
            assert found.outputs["object"].digest == digests[value]


def test_a_miss_says_what_differs(served: DaemonProcess, tree: Path) -> None:
    with served.client() as client:
        ask(client, tree, SOURCE + "/* why */\n", kernel="why")
        other = ask(client, tree, SOURCE + "/* why */\n", kernel="why", salt="other")
        assert other.why.startswith("salt: ")
        (tree / "src" / "h.h").write_text("#define VALUE 8\n")
        header = ask(client, tree, SOURCE + "/* why */\n", kernel="why", salt="other")
    assert header.outcome is Outcome.MISS
    assert header.why == "header h.h changed"


def test_compilers_content_counts(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tree: Path
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    keys = []
    with daemon.client() as client:
        for extra in ("-DA", "-DB", "-DA"):
            logging_compiler.write(extra=extra)
            found = ask(client, tree, env=logging_compiler.env)
            keys.append((found.outcome, found.key))
    assert keys[0][0] is keys[1][0] is Outcome.MISS
    assert keys[2] == (Outcome.MEMORY_HIT, keys[0][1])
    assert keys[0][1] != keys[1][1]


# --- what reaches the compiler


def test_only_declared_variables_and_constants_reach_the_compiler(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tree: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    logging_compiler.write(before=f'env > "{seen}.$$"; pwd > "{seen}.cwd.$$"')
    daemon = make_daemon(trust_scripts=logging_compiler.trust)
    daemon.env.update(DAEMON_SECRET="1", CPATH="/nowhere/of/the/daemon", LANG="de_DE.UTF-8")
    daemon.start()
    env = {
        **logging_compiler.env, "SOURCE_DATE_EPOCH": "5", "CLIENT_SECRET": "1", "RANK": "3",
        "LD_PRELOAD": "/nowhere.so", "GCC_EXEC_PREFIX": "/nowhere/", "COMPILER_PATH": "/nowhere",
        "HOME": "/root", "LC_ALL": "zh_CN.UTF-8", "TMPDIR": "/nowhere",
    }  # fmt: skip
    with daemon.client() as client:
        assert ask(client, tree, env=env).outcome is Outcome.MISS
    told = [path.read_text() for path in tmp_path.glob("seen.[0-9]*")]
    assert len(told) > 2, "questions and compiles"
    allowed = {"PATH", "LANG", "LC_ALL", "HOME", "TZ", "TMPDIR", "SOURCE_DATE_EPOCH", "PWD"}
    # What the shell of the wrapper adds by itself.
    allowed |= {"OLDPWD", "SHLVL", "_"}
    for text in told:
        variables = dict(line.split("=", 1) for line in text.splitlines())
        assert set(variables) <= allowed
        assert variables["PATH"] == "/usr/local/bin:/usr/bin:/bin"
        assert variables["LC_ALL"] == "C"
        assert variables["HOME"] != "/root"
        assert variables["TMPDIR"].startswith(str(daemon.root))
    compiles = [text for text in told if "SOURCE_DATE_EPOCH=5" in text]
    assert len(compiles) >= 1
    directories = {path.read_text().strip() for path in tmp_path.glob("seen.cwd.*")}
    assert all(place.startswith(str(daemon.root / "tmp")) for place in directories)


def test_undeclared_file_beside_the_source_does_not_reach_the_compiler(
    served: DaemonProcess, tree: Path
) -> None:
    with served.client() as client:
        found = client.compile(
            "host", {"k.c": SOURCE}, env={"PATH": os.environ["PATH"]}, outputs=["object"],
            check=False,
        )  # fmt: skip
    assert found.outcome is Outcome.FAILURE
    assert b"h.h" in found.log.stderr
