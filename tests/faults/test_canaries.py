"""Things that act when they are loaded lie wherever ptocache looks: none of them is ever touched.

Each planted thing makes a file, the canary, if anybody unpickles, imports, executes or links it; that
each really does is a test of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from ptocache.outcome import Outcome
from ptocache.store.blobs import checksum
from tests.harness import BOOT, DEADLINE_S, DaemonProcess, RawPeer, daemons_of, wait_for
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = "int answer(void) { return 42; }\n"
BIG = "const char big[200000] = {1};\n"
ENV = {"PATH": os.environ.get("PATH", "")}
MODULES = (
    "sitecustomize", "usercustomize", "ptocache", "ptocache_host", "ptocache_cli", "msgpack",
    "sqlite3", "json", "tomllib", "filelock", "watchdog", "encodings", "conftest",
)  # fmt: skip
PROGRAMS = ("cc", "gcc", "as", "ld", "cc1", "collect2", "python3", "ptocache", "ptoas", "bisheng")


class Boom:
    """Its pickle opens a file for writing when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (self._path, os.O_CREAT | os.O_WRONLY)


class Canaries:
    """The file that tells, and everything that would make it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.told = directory / "told"
        self.pickles = [pickle.dumps(Boom(self.told), protocol) for protocol in (0, 2, 5)]
        self.python = f"open({str(self.told)!r}, 'w').close()\n".encode()
        self.pth = f"import os; open({str(self.told)!r}, 'w').close()\n".encode()
        self.program = f"#!/bin/sh\ntouch '{self.told}'\n".encode()
        code = directory / "sing.c"
        code.write_text(
            "#include <fcntl.h>\n__attribute__((constructor)) static void sing(void)"
            f' {{ open("{self.told}", O_CREAT | O_WRONLY, 0600); }}\n'
            "void PyInit_msgpack(void) { sing(); }\n"
        )
        library = directory / "sing.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True)
        self.library = library.read_bytes()
        self.payloads = [*self.pickles, self.python, self.pth, self.library, self.program]

    def form(self, name: str) -> bytes:
        """One of them, as the bytes of a file."""
        return {
            "pickle": self.pickles[1], "library": self.library, "python": self.python, "pth": self.pth,
        }[name]  # fmt: skip

    def plant(self, folder: Path) -> None:
        """Put one of each kind into a folder, under the names that are looked for."""
        for name in MODULES:
            (folder / f"{name}.py").write_bytes(self.python)
        for name in ("canary.pth", "__init__.py", "index.pth"):
            (folder / name).write_bytes(self.pth)
        for name in ("_cffi_backend.so", "libsqlite3.so.0", "libc.so.6", "xxhash.so"):
            (folder / name).write_bytes(self.library)
        for name in PROGRAMS:
            (folder / name).write_bytes(self.program)
            (folder / name).chmod(0o755)
        for number, data in enumerate(self.pickles):
            (folder / f"cache-{number}.pkl").write_bytes(data)
        package = folder / "ptocache_pto"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_bytes(self.python)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Canaries:
    """One cage for all: whoever makes one of them sing has to hush it again."""
    return Canaries(tmp_path_factory.mktemp("aviary") / "canaries")


def daemon_in(daemon: DaemonProcess, folder: Path) -> None:
    """Start a daemon whose working directory is ``folder``."""
    with open(daemon.log_path, "ab") as log:
        daemon.process = subprocess.Popen(
            [sys.executable, "-c", BOOT],
            env=daemon.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    daemon.until_it_answers()


def folders_of(root: Path) -> list[Path]:
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


def fill(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        for source in (SOURCE, BIG):
            found = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
            assert found.outcome is Outcome.MISS


# --- each canary sings


def test_each_planted_thing_would_tell(canaries: Canaries, tmp_path: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    canaries.plant(folder)
    words = {
        "pickle": ["import pickle, sys; pickle.load(open(sys.argv[1] + '/cache-1.pkl', 'rb'))"],
        "old pickle": ["import pickle, sys; pickle.load(open(sys.argv[1] + '/cache-0.pkl', 'rb'))"],
        "module": ["import sys; sys.path.insert(0, sys.argv[1]); import sitecustomize"],
        "package": ["import sys; sys.path.insert(0, sys.argv[1]); import ptocache_pto"],
        "pth": ["import site, sys; site.addsitedir(sys.argv[1])"],
        "library": ["import ctypes, sys; ctypes.CDLL(sys.argv[1] + '/xxhash.so')"],
        "program": ["import subprocess, sys; subprocess.run([sys.argv[1] + '/cc'])"],
    }
    for name, code in words.items():
        subprocess.run([sys.executable, "-I", "-S", "-c", *code, str(folder)], check=True)
        assert canaries.told.exists(), name
        canaries.told.unlink()


# --- nobody wakes them

COMMANDS = f"""
import sys
from ptocache_cli.main import run
from ptocache.client import connect
for line in sys.stdin.read().splitlines():
    sys.argv = ["ptocache", *line.split()]
    print(line, run())
with connect() as client:
    print(client.compile("host", {{"k.c": {SOURCE!r}}}, outputs=["object"]).outcome.label)
"""


def commands(daemon: DaemonProcess, folder: Path, code: Path, *lines: str) -> dict[str, int]:
    """Run commands and a compile in a process whose working directory is ``folder``; how each ended."""
    done = subprocess.run(
        [sys.executable, code], env=daemon.env, cwd=folder, input="\n".join(lines),
        capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    ends = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return {words: int(code) for words, _, code in ends if words in lines}


@pytest.mark.kind("pickled_code")
def test_pickled_code_and_other_in_a_store_or_beside_its_socket_is_loaded_by_nobody(
    make_daemon: MakeDaemon, canaries: Canaries, tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    root = daemon.root
    fill(daemon)
    daemon.stop()
    for folder in (*folders_of(root), daemon.place):
        canaries.plant(folder)
    code = tmp_path / "commands.py"
    code.write_text(COMMANDS)
    # One time the executable itself, which is found and started as a user does it.
    assert ptocache("stats", env=daemon.env, cwd=root).code == 0
    daemon_in(daemon, root)
    lines = [
        "status", "stats", "explain --last", "verify", "doctor", "gc", "show 0000",
        "compile cache-0.pkl", f"inspect {root}/xxhash.so", f"inspect {root}/cache-2.pkl",
    ]  # fmt: skip
    ends = commands(daemon, root, code, *lines)
    assert set(ends) == set(lines), "each came to an end"
    assert (ends["status"], ends["stats"], ends["gc"]) == (0, 0, 0)
    with daemon.client() as client:
        for source in (SOURCE, BIG):
            again = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
            assert again.outcome.is_hit
    assert daemon.stop() == 0
    commands(daemon, root, code, "stats", "show 0000", "verify")
    assert not canaries.told.exists()
    assert (root / "sitecustomize.py").exists(), "strays are left alone"


def forge(root: Path, sha256: str, planted: bytes) -> None:
    """Make the index say that a blob is what was planted there, and that a toolchain is it as well."""
    with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as index, index:
        changed = index.execute(
            "UPDATE blobs SET size = ?, checksum = ? WHERE sha256 = ?",
            (len(planted), checksum(planted), sha256),
        )
        assert changed.rowcount == 1
        changed = index.execute("UPDATE installations SET record = ?", (planted,))
        assert changed.rowcount == 1


@pytest.mark.kind("pickled_code")
@pytest.mark.parametrize("forged", [False, True])
def test_pickled_code_as_payload_and_document_is_damage_that_heals(
    forged: bool, make_daemon: MakeDaemon, canaries: Canaries
) -> None:
    """``forged``: the index has the checksums of what was planted, and a pickle of its own."""
    daemon = make_daemon().start()
    fill(daemon)
    daemon.stop()
    blobs = [path for path in (daemon.root / "blobs").rglob("*") if path.is_file()]
    assert len(blobs) == 4, "two outputs and two documents"
    forms = ["pickle"] * 4 if forged else ["pickle", "library", "python", "pth"]
    for blob, form in zip(blobs, forms, strict=True):
        data = canaries.form(form)
        blob.chmod(0o700)
        # As long as what stood there, so that it is not known by its size. A pickle ends where it ends.
        planted = data.ljust(blob.stat().st_size, b"\n")
        blob.write_bytes(planted)
        if forged:
            forge(daemon.root, blob.name, planted)
    daemon_in(daemon, daemon.root)
    with daemon.client() as client:
        for source in (SOURCE, BIG):
            again = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
            assert again.outcome is Outcome.MISS
            assert bytes(again.outputs["object"].buffer[:4]) == b"\x7fELF"
    assert daemon.stats()["corrupt"] == 2
    assert daemon.stop() == 0
    assert not canaries.told.exists()


@pytest.mark.kind("pickled_code")
@pytest.mark.parametrize("form", ["pickle", "library", "python", "pth"])
def test_pickled_code_as_index_or_side_file_is_no_index(
    form: str, make_daemon: MakeDaemon, canaries: Canaries
) -> None:
    daemon = make_daemon().start()
    fill(daemon)
    daemon.stop()
    data = canaries.form(form)
    for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-journal", "daemon.lock"):
        (daemon.root / name).write_bytes(data)
    (daemon.root / "CACHEDIR.TAG").write_bytes(data)
    daemon_in(daemon, daemon.root)
    with daemon.client() as client:
        for source in (SOURCE, BIG):
            again = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
            assert again.ok
            assert bytes(again.outputs["object"].buffer[:4]) == b"\x7fELF"
    assert daemon.stop() == 0
    assert not canaries.told.exists()


def test_canary_as_version_of_the_store_is_refused(
    make_daemon: MakeDaemon, canaries: Canaries
) -> None:
    daemon = make_daemon()
    daemon.root.mkdir(mode=0o700)
    for data in (canaries.pickles[1], canaries.python, canaries.library):
        (daemon.root / "VERSION").write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-c", BOOT], env=daemon.env, cwd=daemon.root,
            capture_output=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 4
        assert b"this ptocache knows" in done.stderr
        assert len(done.stderr) < 1000, "what stands there is not repeated at length"
    assert not canaries.told.exists()


def messages(data: bytes) -> Iterator[bytes]:
    """What a peer could send ``data`` as."""
    yield data
    yield len(data).to_bytes(4, "little") + data
    for message in (
        {"type": "compile", "id": 1, "request": data},
        {"type": "compile", "id": 1, "request": msgpack.ExtType(5, data)},
        {"type": "kernel", "id": 1, "request": data},
        {"type": "finish", "id": 1, "lease": data, "outputs": data},
        {"type": "put", "id": 1, "lease": 1, "name": data, "data": data},
        {"type": "show", "id": 1, "key": data},
        {"type": "identify", "id": 1, "env": data},
        {"type": data, "id": 1},
        {data: data},
    ):
        body: bytes = msgpack.packb(message)
        yield len(body).to_bytes(4, "little") + body


@pytest.mark.kind("pickled_code")
def test_pickled_code_as_a_message_is_only_bytes(
    make_daemon: MakeDaemon, canaries: Canaries
) -> None:
    daemon = make_daemon()
    daemon.root.mkdir(mode=0o700)
    daemon_in(daemon, daemon.root)
    for data in canaries.payloads:
        for message in messages(data):
            for greet in (True, False):
                with RawPeer(daemon.socket, greet=greet) as peer:
                    peer.send(message)
    # What came is answered in order of arrival: whoever is served now comes after all of them.
    with daemon.client() as client:
        wait_for(lambda: client.call("status")["connections"] == 1, "the others to be forgotten")
        found = client.compile("host", {"k.c": SOURCE}, env=ENV, outputs=["object"])
        assert found.outcome is Outcome.MISS
    assert daemon.stop() == 0
    assert not canaries.told.exists()
    assert "Traceback" not in daemon.log()


def test_daemon_that_a_client_starts_from_within_the_store_loads_nothing_of_it(
    make_daemon: MakeDaemon, canaries: Canaries, tmp_path: Path
) -> None:
    daemon = make_daemon()
    daemon.env["PTOCACHE_AUTOSTART"] = "1"
    daemon.root.mkdir(mode=0o700)
    canaries.plant(daemon.root)
    code = tmp_path / "ask.py"
    code.write_text(COMMANDS)
    try:
        assert commands(daemon, daemon.root, code, "status") == {"status": 3}
        wait_for(lambda: len(daemons_of(daemon.root)) == 1, "one daemon to serve")
        (pid,) = daemons_of(daemon.root)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    finally:
        for pid in daemons_of(daemon.root):
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not daemons_of(daemon.root), "the daemon to end")
    assert not canaries.told.exists()
