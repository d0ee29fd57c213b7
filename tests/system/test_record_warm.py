"""``ptocache record`` and ``ptocache warm``: what a run asked for, compiled beforehand somewhere else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import recorded
from ptocache.digest import Digest
from ptocache.errors import PtocacheWarning
from ptocache.model import Input, Job
from ptocache.outcome import Outcome
from ptocache.wire import Request
from tests.harness import Gate, LoggingCompiler, wait_for
from tests.simcann import KERNEL, SimCann
from tests.system.cli_runner import finish, ptocache, start
from tests.system.page import run_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness import DaemonProcess

    MakeDaemon = Callable[..., DaemonProcess]

PROGRAM = """
import os, pathlib, sys
import ptocache

def sweep(client, tiles):
    jobs = [
        client.job("host", {"k.c": pathlib.Path("src/k.c")}, source_dir="src", outputs=["object"],
                   options=[f"-DTILE={tile}", f"-I{os.getcwd()}/include"])
        for tile in tiles
    ]
    found = dict(client.compile_many(jobs, progress=False))
    return [found[number].outcome.label for number in range(len(jobs))]

with ptocache.connect() as client:
    print(*sweep(client, eval(sys.argv[1])))
"""


class Project:
    """A checkout with a kernel, its headers and a program that compiles it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "src").mkdir(parents=True)
        (place / "include").mkdir()
        (place / "src" / "k.c").write_text(
            '#include "own.h"\n#include <shared.h>\nint k[TILE * OWN * SHARED];\n'
        )
        (place / "src" / "own.h").write_text("#define OWN 2\n")
        (place / "include" / "shared.h").write_text("#define SHARED 3\n")
        (place / "run.py").write_text(PROGRAM)

    def copied(self, place: Path) -> Project:
        """The same checkout elsewhere."""
        shutil.copytree(self.place, place)
        found = object.__new__(Project)
        found.place = place
        return found

    def run(self, env: dict[str, str], tiles: str = "[1, 2, 3]") -> list[str]:
        """How the program's requests ended."""
        done = subprocess.run(
            [sys.executable, "run.py", tiles], cwd=self.place, env=env, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def record(self, env: dict[str, str], tiles: str = "[1, 2, 3]", *options: str) -> Path:
        """Record the program; the manifest."""
        words = ["record", *options, "--", sys.executable, "run.py", tiles]
        done = ptocache(*words, env=env, cwd=self.place)
        assert done.code == 0, done.err
        return self.place / "ptocache.jsonl"

    def warm(self, env: dict[str, str], *options: str) -> Any:
        """Warm with its manifest: (exit code, the JSON)."""
        done = ptocache("warm", "ptocache.jsonl", "--json", *options, env=env, cwd=self.place)
        assert done.err == ""
        return done.code, done.json()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "here" / "project")


def read(path: Path, base: Path) -> recorded.Recording:
    return recorded.read(str(path), str(base))


# --- record


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_exit_code_is_the_commands(
    shared_daemon: DaemonProcess, tmp_path: Path, script: str, code: int
) -> None:
    words = ("record", "--", "sh", "-c", f"echo out; {script}")
    done = ptocache(*words, env=shared_daemon.env, cwd=tmp_path)
    assert (done.code, done.out) == (code, "out\n")
    assert done.err == "ptocache: recorded 0 requests in ptocache.jsonl\n"
    assert [path.name for path in tmp_path.iterdir()] == ["ptocache.jsonl"]


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 2), (("--", "no-such-command"), 127), (("--", "/etc/passwd"), 126),
     (("-o", "/no/such/place/m", "--", "true"), 1), (("-o", "/", "--", "true"), 2)],
)  # fmt: skip
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    done = ptocache("record", *words, cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_has_the_descriptors_and_the_ignored_signals_of_its_caller(
    tmp_path: Path,
) -> None:
    script = f"trap '' HUP; exec {sys.executable} -m ptocache_cli record -- sh -c 'cat <&9; kill -HUP $$; echo lives'"
    (tmp_path / "nine").write_text("nine\n")
    done = subprocess.run(
        ["sh", "-c", f"{script} 9<nine"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "nine\nlives\n"), done.stderr


def test_a_manifest_takes_the_place_of_files_only(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    done = ptocache("record", "-o", "pipe", "--", "echo", "ran", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert pipe.is_fifo()
    link.symlink_to("behind")
    done = ptocache("record", "-o", "link", "--", "echo", "ran", cwd=tmp_path)
    assert (done.code, done.out) == (0, "ran\n")
    assert done.err == "ptocache: recorded 0 requests in link\n"
    assert link.is_symlink()
    assert read(tmp_path / "behind", tmp_path).compiles == ()


def test_a_signal_to_record_reaches_the_command(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    script = "trap 'echo told; exit 7' TERM; : > ready; while :; do sleep 0.02; done"
    process = start("record", "--", "sh", "-c", script, env=shared_daemon.env, cwd=tmp_path)
    wait_for((tmp_path / "ready").exists, "the command to run")
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert (done.code, done.out) == (7, "told\n")


def test_manifest_has_everything_that_makes_a_request_and_no_more(
    daemon: DaemonProcess, project: Project
) -> None:
    env = {**daemon.env, "TOKEN": "secret", "CPATH": "/opt/include"}
    path = project.record(env)
    text = path.read_text()
    for word in ("secret", os.environ["PATH"], str(project.place), str(daemon.root)):
        assert word not in text
    found = read(path, project.place)
    assert len(found.compiles) == 3
    item = found.compiles[0]
    job = item.request.job
    assert job.toolchain == "host"
    assert job.options == ("-DTILE=1", f"-I{project.place}/include")
    assert job.env == (("CPATH", "/opt/include"),)
    assert job.outputs == ("object",)
    assert job.source_dir == str(project.place / "src")
    assert job.cwd == str(project.place)
    assert job.kernel == "k"
    assert item.files == (("k.c", str(project.place / "src" / "k.c")),)
    (data,) = found.inputs.values()
    assert data == (project.place / "src" / "k.c").read_bytes()


def test_two_recordings_of_a_run_are_the_same_file(
    daemon: DaemonProcess, project: Project, tmp_path: Path
) -> None:
    other = project.copied(tmp_path / "there" / "elsewhere")
    first = project.record(daemon.env, "[1, 2, 3]").read_bytes()
    assert other.record(daemon.env, "[3, 2, 1, 2]").read_bytes() == first


def test_a_second_run_can_be_added(daemon: DaemonProcess, project: Project) -> None:
    project.record(daemon.env, "[1, 2]")
    path = project.record(daemon.env, "[2, 5]", "--append")
    assert len(read(path, project.place).compiles) == 3
    project.record(daemon.env, "[2]")
    assert len(read(path, project.place).compiles) == 1


def test_a_manifest_that_cannot_be_read_is_known_before_the_run(
    shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "ptocache.jsonl").write_text("nonsense\n")
    words = ("record", "--append", "--", "touch", "ran")
    done = ptocache(*words, env=shared_daemon.env, cwd=tmp_path)
    assert done.code == 2
    assert "line 1" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["ptocache.jsonl"]


FAMILY = """
import os, signal, subprocess, sys
import ptocache

def ask(number):
    with ptocache.connect() as client:
        client.compile("host", {"k.c": f"int of_{number};"}, outputs=["object"])

if sys.argv[1:]:
    ask(int(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)
client = ptocache.connect()
client.compile("host", {"k.c": "int of_0;"}, outputs=["object"])
child = os.fork()
if child == 0:
    client.compile("host", {"k.c": "int of_1;"}, outputs=["object"])
    os._exit(0)
os.waitpid(child, 0)
assert subprocess.run([sys.executable, sys.argv[0], "2"]).returncode == -9
client.kernel_or_build("host", {"source": "secret"}, lambda: {"k.so": b"x"}, kernel="whole")
client.compile("host", {"k.c": "int broken"}, outputs=["object"], check=False)
os.execv(sys.executable, [sys.executable, sys.argv[0], "3"])
"""


def test_forked_killed_and_replaced_processes_are_recorded(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(FAMILY)
    done = ptocache("record", "--", sys.executable, "run.py", env=daemon.env, cwd=tmp_path)
    assert done.code == 137
    assert done.err == (
        "ptocache: recorded 5 requests, 1 of them failed, 1 kernel that only the framework itself "
        "can build in ptocache.jsonl\n"
    )
    found = read(tmp_path / "ptocache.jsonl", tmp_path)
    assert set(found.inputs.values()) == {
        *(b"int of_%d;" % number for number in range(4)), b"int broken",
    }  # fmt: skip
    assert [item.failed for item in found.compiles].count(True) == 1
    assert found.kernels == (recorded.Kernels("host", "", "whole", 1),)
    assert "secret" not in (tmp_path / "ptocache.jsonl").read_text()


def test_a_run_without_a_daemon_is_recorded(make_daemon: MakeDaemon, project: Project) -> None:
    nobody = make_daemon()
    words = ("record", "--", sys.executable, "-W", "ignore", "run.py", "[1]")
    done = ptocache(*words, env={**nobody.env, "CPATH": "/opt/x"}, cwd=project.place)
    assert (done.code, done.out) == (0, "bypass\n")
    (item,) = read(project.place / "ptocache.jsonl", project.place).compiles
    assert dict(item.request.job.env) == {"CPATH": "/opt/x"}


def test_a_place_that_takes_no_recording_costs_one_warning_and_no_request(
    shared_daemon: DaemonProcess,
) -> None:
    with (
        shared_daemon.client(client_record="/dev/full") as client,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for number in range(3):
            result = client.compile("host", {"k.c": f"int full{number};"}, outputs=["object"])
            assert result.outcome is Outcome.MISS
    assert [item.category for item in caught] == [PtocacheWarning]
    assert "records nothing more" in str(caught[0].message)
    assert Path(caught[0].filename).name == Path(__file__).name


def test_a_command_that_is_killed_with_its_recorder_leaves_a_journal_to_warm_from(
    daemon: DaemonProcess, project: Project
) -> None:
    script = f'{sys.executable} run.py "[1, 2]" && : > ready && exec sleep 600'
    process = start("record", "--", "sh", "-c", script, env=daemon.env, cwd=project.place)
    wait_for((project.place / "ready").exists, "the run to ask")
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    os.kill(int(child), signal.SIGKILL)
    process.communicate()
    (journal,) = project.place.glob("*.journal")
    done = ptocache("warm", str(journal), "--json", env=daemon.env, cwd=project.place)
    assert done.code == 0
    assert done.json()["hits"] == 2


# --- warm


def test_a_store_is_warmed_for_a_checkout_elsewhere(
    make_daemon: MakeDaemon, project: Project, tmp_path: Path
) -> None:
    first, second = (make_daemon(tmp_path / name).start() for name in ("store1", "store2"))
    project.record(first.env)
    other = project.copied(tmp_path / "there" / "elsewhere")
    code, found = other.warm(second.env)
    assert (code, found["whole"]) == (0, True)
    assert (found["requests"], found["compiled"], found["hits"]) == (3, 3, 0)
    assert other.run(second.env) == ["memory_hit"] * 3
    code, found = other.warm(second.env)
    assert (code, found["compiled"], found["hits"]) == (0, 0, 3)


def test_check_says_what_would_be_a_hit_and_does_nothing(
    daemon: DaemonProcess, project: Project
) -> None:
    project.record(daemon.env, "[1, 2]")
    with daemon.client() as client:
        client.call("invalidate", all=True)
    project.run(daemon.env, "[1]")
    before = daemon.stats()
    code, found = project.warm(daemon.env, "--check")
    assert (code, found["hits"], found["to_compile"], found["whole"]) == (1, 1, 1, False)
    assert daemon.stats() == before
    assert project.warm(daemon.env)[0] == 0
    code, found = project.warm(daemon.env, "--check")
    assert (code, found["hits"], found["to_compile"], found["whole"]) == (0, 2, 0, True)


def test_what_is_told_to_people(daemon: DaemonProcess, project: Project) -> None:
    path = project.record(daemon.env, "[1, 2, '+']")
    with path.open("a") as file:
        more = {"arch": "", "kernel": "gemm", "number": 3, "record": "kernel", "toolchain": "pto"}
        file.write(json.dumps(more) + "\n")
    (project.place / "src" / "own.h").write_text("#error own\n")
    done = ptocache("warm", "ptocache.jsonl", env=daemon.env, cwd=project.place)
    lines = done.out.splitlines()
    assert done.code == 1
    assert lines[0].startswith(
        "ptocache.jsonl: 3 requests: 0 were there, 0 compiled, 1 failed when recorded"
    )
    assert len(lines) == 4
    for line in lines[1:3]:
        assert line.startswith("  k (host): failed (compile_failed): ")
        assert "own.h" in line or "k.c" in line
    assert lines[3] == "  gemm (pto): needs the framework itself (3 different)"


def test_kernels_of_a_framework_count_unless_they_are_left_aside(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    recorded.write(
        str(tmp_path / "m"), recorded.Recording(kernels=(recorded.Kernels("host", "", "k", 2),))
    )
    for options, code in (((), 1), (("--without-kernels",), 0)):
        done = ptocache("warm", "m", "--json", *options, env=daemon.env, cwd=tmp_path)
        assert done.code == code
        assert done.json()["kernels"] == [
            {"toolchain": "host", "arch": "", "kernel": "k", "number": 2,
             "why": "needs the framework itself"},
        ]  # fmt: skip


def test_a_source_that_has_changed_since_is_not_warmed(
    daemon: DaemonProcess, project: Project
) -> None:
    project.record(daemon.env, "[1]")
    source = project.place / "src" / "k.c"
    source.write_text(source.read_text() + "int more;\n")
    before = daemon.stats()
    code, found = project.warm(daemon.env)
    assert code == 1
    assert [item["why"] for item in found["problems"]] == [
        f"the source {source} has changed since: record the run again"
    ]
    assert daemon.stats() == before
    source.unlink()
    code, found = project.warm(daemon.env)
    assert (code, found["hits"]) == (0, 1), "the manifest holds the source itself"


@pytest.mark.parametrize("kind", ["endless", "fifo", "empty", "longer"])
def test_whatever_a_manifest_names_as_a_source_is_not_waited_for(
    shared_daemon: DaemonProcess, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "odd.c"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "endless":
        place.symlink_to("/dev/zero")
    else:
        place.write_text("" if kind == "empty" else "int odd;\nint more;\n")
    source = b"" if kind == "longer" else b"int odd;\n"
    digest = Digest.of(source)
    job = Job("host", "", (), (), (Input("k.c", digest),), ("object",), kernel="k")
    item = recorded.Recorded(Request(job, {}), (("k.c", str(place)),))
    recorded.write(
        str(tmp_path / "m"), recorded.Recording((item,), {digest.sha256: source}), str(tmp_path)
    )
    done = ptocache("warm", "m", env=shared_daemon.env, cwd=tmp_path)
    assert done.err == ""
    changed = f"the source {place} has changed since" in done.out
    assert (done.code, changed) == ((1, True) if place.is_file() else (0, False)), done.out


def test_tools_are_those_of_the_place_where_the_store_is_warmed(
    make_daemon: MakeDaemon, project: Project, tmp_path: Path
) -> None:
    here, there = (LoggingCompiler(tmp_path / name) for name in ("cc1", "cc2"))
    daemon = make_daemon(trust_scripts=f"{here.trust}:{there.trust}").start()
    project.record({**daemon.env, **here.env})
    code, found = project.warm({**daemon.env, **there.env})
    assert (code, found["compiled"]) == (0, 3)
    assert len(here.compiles()) == len(there.compiles()) == 3
    assert project.run({**daemon.env, **there.env}) == ["memory_hit"] * 3


def test_a_toolchain_that_is_not_here_is_named(daemon: DaemonProcess, project: Project) -> None:
    path = project.record(daemon.env, "[1]")
    env = {**daemon.env, "CC": "/no/such/cc"}
    for options in ((), ("--check",)):
        code, found = project.warm(env, *options)
        assert code == 1
        why = found["problems"][0]["why"]
        assert why.startswith("toolchain not found here: no C compiler was found (")
    path.write_text(path.read_text().replace('"toolchain":"host"', '"toolchain":"metal"'))
    code, found = project.warm(daemon.env)
    assert code == 1
    assert "no plugin for the toolchain 'metal'" in found["problems"][0]["why"]


def test_an_installation_elsewhere_is_found_by_its_own_variables(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    places = [SimCann.make(tmp_path / name) for name in ("cann1", "cann2")]
    program = (
        "import ptocache, sys\n"
        "with ptocache.connect() as client:\n"
        f"    result = client.compile('ascendc', {{'k.asc': {KERNEL!r}}})\n"
        "    print(result.outcome.label)\n"
    )
    for number, words in enumerate((("record", "--"), ())):
        env = {**daemon.env, **places[number].env()}
        if words:
            done = ptocache(*words, sys.executable, "-c", program, env=env, cwd=tmp_path)
            assert (done.code, done.out) == (0, "miss\n")
            assert str(tmp_path / "cann1") not in (tmp_path / "ptocache.jsonl").read_text()
            continue
        done = ptocache("warm", "ptocache.jsonl", env=env, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        ran = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "memory_hit\n"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [(None, 2, "cannot be read"), (b"\x7fELF", 2, "line 1"), (b"", 2, "line 0")],
)
def test_a_manifest_that_is_none_is_wrong_use(
    shared_daemon: DaemonProcess, tmp_path: Path, content: bytes | None, code: int, words: str
) -> None:
    if content is not None:
        (tmp_path / "m").write_bytes(content)
    done = ptocache("warm", "m", env=shared_daemon.env, cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert "ptocache record" in done.err
    assert done.err.count("\n") == 1


def test_without_a_daemon_nothing_is_warmed(
    make_daemon: MakeDaemon, daemon: DaemonProcess, project: Project, tmp_path: Path
) -> None:
    project.record(daemon.env, "[1]")
    nobody = make_daemon(tmp_path / "none")
    for option in ("--json", "--check"):
        done = ptocache("warm", "ptocache.jsonl", option, env=nobody.env, cwd=project.place)
        assert (done.code, done.out) == (3, "")


# --- wrapped compilers


class Make:
    """A checkout that is built by a compiler behind shims."""

    def __init__(self, place: Path, shims: Path) -> None:
        self.place = place
        self.shims = shims

    def env(self, daemon: DaemonProcess) -> dict[str, str]:
        path = f"{self.shims}:{os.environ['PATH']}"
        return {**daemon.env, "PATH": path, "PWD": str(self.place)}

    def build(self, daemon: DaemonProcess, *record: str) -> None:
        script = "for f in a b; do gcc -O2 -I include -c src/$f.c -o $f.o; done"
        words = ("sh", "-e", "-c", script)
        if record:
            done = ptocache(*record, "--", *words, env=self.env(daemon), cwd=self.place)
            assert (done.code, done.out) == (0, "")
        else:
            subprocess.run(words, cwd=self.place, env=self.env(daemon), check=True)


def test_wrapped_compilers_are_recorded_and_warmed_elsewhere(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    shims = tmp_path / "shims"
    assert ptocache("shims", str(shims), "--names", "gcc").code == 0
    here = Make(tmp_path / "here", shims)
    for name in ("src", "include"):
        (here.place / name).mkdir(parents=True)
    for name in "ab":
        (here.place / "src" / f"{name}.c").write_text(f"#include <n.h>\nint {name} = N;\n")
    (here.place / "include" / "n.h").write_text("#define N 3\n")
    there = Make(tmp_path / "else" / "there", shims)
    shutil.copytree(here.place, there.place)
    first, second = (make_daemon(tmp_path / name).start() for name in ("store1", "store2"))
    here.build(first, "record", "-o", str(there.place / "m.jsonl"))
    assert str(here.place) not in (there.place / "m.jsonl").read_text()

    def warm(*options: str) -> Any:
        words = ("warm", "m.jsonl", "--json", *options)
        done = ptocache(*words, env=there.env(second), cwd=there.place)
        return done.code, done.json()

    code, found = warm()
    assert (code, found["compiled"], found["problems"]) == (0, 2, [])
    there.build(second)
    numbers = second.stats()
    assert (numbers["miss"], numbers["memory_hit"]) == (2, 2)
    assert warm("--check")[0] == 0
    (there.place / "src" / "a.c").write_text("int a;\n")
    (there.place / "src" / "b.c").unlink()
    code, found = warm()
    assert code == 1
    assert [item["why"].split(":")[0] for item in found["problems"]] == [
        f"the source {there.place}/src/a.c has changed since",
        f"the source {there.place}/src/b.c is not there",
    ]


def test_the_first_wrapped_command_of_a_daemon_is_recorded_too(tmp_path: Path) -> None:
    from tests.harness import DaemonProcess

    daemon = DaemonProcess(tmp_path / "store", autostart="1", idle_timeout="60s")
    (tmp_path / "k.c").write_text("int k;\n")
    try:
        words = ("record", "--", "ptocache", "wrap", "--", "gcc", "-c", "k.c")
        env = {**daemon.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = ptocache(*words, env=env, cwd=tmp_path)
        assert done.code == 0, done.err
        (item,) = read(tmp_path / "ptocache.jsonl", tmp_path).compiles
        assert item.called == "gcc"
        with daemon.client() as client:
            environ = Path(f"/proc/{client.call('status')['pid']}/environ").read_bytes()
        assert b"PTOCACHE_DIR=" in environ
        assert b"PTOCACHE_RECORD=" not in environ
    finally:
        ptocache("stop", env=daemon.env)
        daemon.clean_up()


def test_a_manifest_names_compilers_only(daemon: DaemonProcess, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\n: > {ran}\n")
    evil.chmod(0o755)
    (tmp_path / "k.c").write_text("int k;\n")
    assert ptocache("shims", str(tmp_path / "shims"), "--names", "gcc").code == 0
    env = {**daemon.env, "PATH": f"{tmp_path}/shims:{os.environ['PATH']}", "PWD": str(tmp_path)}
    done = ptocache("record", "--", "gcc", "-c", "k.c", env=env, cwd=tmp_path)
    assert done.code == 0
    manifest = tmp_path / "ptocache.jsonl"
    text = manifest.read_text()
    assert '"called":"gcc"' in text
    manifest.write_text(text.replace('"called":"gcc"', f'"called":"{evil}"'))
    done = ptocache("warm", "ptocache.jsonl", env=env, cwd=tmp_path)
    assert done.code == 1
    assert f"toolchain not found here: no {evil}" in done.out
    assert not ran.exists()


def test_a_gate_is_no_obstacle_to_a_recording_of_what_was_never_answered(
    make_daemon: MakeDaemon, project: Project, tmp_path: Path
) -> None:
    """What is killed in the middle of a compile has been written down already."""
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "cc", before=gate.script)
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    script = f'{sys.executable} run.py "[1]" & child=$!; while [ ! -s {gate._arrivals} ]; do sleep 0.02; done; kill -9 $child'
    done = ptocache(
        "record", "--", "sh", "-c", script, env={**daemon.env, **compiler.env}, cwd=project.place
    )
    assert done.code == 0
    gate.open()
    assert len(read(project.place / "ptocache.jsonl", project.place).compiles) == 1


# --- the pages


@pytest.mark.parametrize("page", ["tune-and-warm", "container-images-and-ci"])
def test_how_to_works_as_it_is_written(page: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    env = {
        **os.environ, "PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_IDLE_TIMEOUT": "60s",
        "PTOCACHE_FSYNC": "0",
    }  # fmt: skip
    roots = [tmp_path / "store", *(work / name for name in ("baked", "elsewhere", "ci-cache"))]
    try:
        run_page(f"docs/how-to/{page}.md", work, env)
    finally:
        for root in filter(Path.exists, roots):
            ptocache("stop", "--dir", str(root), env=env)
