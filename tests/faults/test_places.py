"""Places that are missing, full, odd, shared or somebody else's: a right answer and one warning."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ptocache import fallback, paths
from ptocache.client import connect
from ptocache.config import load
from ptocache.control import StoreAtRest, stats_of_index
from ptocache.errors import BadRequestError, PtocacheWarning, StepSystemError
from ptocache.outcome import Outcome, Reason
from ptocache.store.index import Index
from tests import other_user
from tests.harness import (
    BOOT,
    DEADLINE_S,
    ClientProcess,
    DaemonProcess,
    LoggingCompiler,
    at_once,
    compile_directly,
    daemons_of,
    raised,
    start_in_vain,
    wait_for,
)
from tests.other_user import Somebody, is_root, somebody
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

UID = os.geteuid()
SOURCE = "int answer(void) { return 42; }\n"
ENV = {"PATH": os.environ.get("PATH", "")}
OBJECT: dict[str, Any] = {"env": ENV, "outputs": ["object"]}

# Three compiles in one process: what was warned of, and whether the third was known already.
THREE = """
import json, sys, warnings
from ptocache.client import connect
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with connect() as client:
        found = [client.compile("host", {"k.c": f"int a{n};"}, outputs=["object"]) for n in (1, 2, 1)]
        status = None
        if not caught:
            status = client.call("status")
print(json.dumps({
    "outcomes": [item.outcome.label for item in found], "status": status,
    "warnings": [str(item.message) for item in caught],
    "sizes": [item.outputs["object"].size for item in found],
}))
"""
MARK = "MARK_OF_A_TEST"
CACHED = ["miss", "miss", "memory_hit"]
ALONE = ["bypass", "bypass", "bypass"]


class Asked(NamedTuple):
    """What a process got for :data:`THREE`."""

    outcomes: list[str]
    warnings: list[str]
    status: dict[str, Any] | None


def understood(done: subprocess.CompletedProcess[bytes]) -> Asked:
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    found = json.loads(done.stdout)
    assert all(found["sizes"])
    return Asked(found["outcomes"], found["warnings"], found["status"])


def three(env: dict[str, str], who: Somebody | None = None, **options: Any) -> Asked:
    """Compile in a process of its own, which starts a daemon if it can; that is ended again."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    env = {**ENV, "PTOCACHE_FSYNC": "0", **env, MARK: mark}
    words = [sys.executable, "-c", THREE]
    try:
        if who is not None:
            return understood(who.run("-c", THREE, env=env, **options))
        options.update(env=env, cwd="/", capture_output=True, timeout=DEADLINE_S, check=False)
        return understood(subprocess.run(words, **options))
    finally:
        end_daemons(mark)


def end_daemons(mark: str) -> None:
    """End the daemons that were started by a process whose environment has this mark."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not marked(mark), "the daemons to end")


def marked(mark: str) -> list[int]:
    needle = f"{MARK}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            if needle in variables and b"ptocache.daemon" in words:
                found.append(int(name))
    return found


@pytest.fixture(scope="module", autouse=True)
def _python_for_others() -> Iterator[None]:
    yield
    other_user.forget_python()


@pytest.fixture
def place(make_daemon: MakeDaemon) -> Path:
    """A short folder that everybody may enter; it is removed."""
    found = make_daemon().place
    found.chmod(0o755)
    return found


@pytest.fixture
def nobody() -> Iterator[Somebody | None]:
    """A user without a name, whose default places are removed; ``None`` if the tests are not root's."""
    if not is_root():
        yield None
        return
    found = somebody()
    # A run that was killed may have left those of a process of our own number.
    remove_defaults(found)
    yield found
    remove_defaults(found)


def remove_defaults(who: Somebody) -> None:
    """Its default places, whoever made them, and whatever else it made beside them."""
    for base in (Path("/tmp"), Path("/var/tmp")):
        for folder in base.glob("ptocache-*"):
            with contextlib.suppress(FileNotFoundError):
                if folder.name == f"ptocache-{who.uid}" or folder.lstat().st_uid == who.uid:
                    shutil.rmtree(folder)


def tree_of(root: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder → owner and mode."""
    found = {}
    for path in [root, *root.rglob("*")]:
        info = path.lstat()
        found[str(path.relative_to(root))] = (info.st_uid, stat.S_IMODE(info.st_mode))
    return found


# --- home


@pytest.mark.parametrize("home", [None, "/"], ids=repr)
def test_without_a_usable_home_the_store_is_this_users_own_below_var_tmp(
    home: str | None, nobody: Somebody | None
) -> None:
    env = {} if home is None else {"HOME": home}
    if nobody is None:
        assert paths.default_root(env) == f"/var/tmp/ptocache-{UID}"
        return
    found = three(env, nobody)
    assert (found.outcomes, found.warnings) == (CACHED, [])
    assert found.status is not None
    root = Path(f"/var/tmp/ptocache-{nobody.uid}")
    assert found.status["root"] == str(root)
    assert found.status["socket"].startswith(f"/tmp/ptocache-{nobody.uid}/")
    for folder in (root, Path(found.status["socket"]).parent):
        assert tree_of(folder)["."] == (nobody.uid, 0o700)


@pytest.mark.kind("unwritable_cache_directory")
@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_unwritable_cache_directory_in_a_home_is_one_warning_and_right_answers(
    home: str, place: Path, nobody: Somebody | None
) -> None:
    folder = place / home
    if home == "read-only":
        folder.mkdir(mode=0o555)
    if nobody is None:
        # Below a file there is no home for anybody.
        (place / "file").touch()
        folder = place / "file" / home
    found = three({"HOME": str(folder)}, nobody)
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    assert f"the store {folder}/.cache/ptocache cannot be used" in warning
    assert not (folder / ".cache").exists()


def test_place_below_var_tmp_that_somebody_else_made_first_is_not_used(
    nobody: Somebody | None, place: Path
) -> None:
    squatted = f"/var/tmp/ptocache-{nobody.uid}" if nobody else str(place / "store")
    env = {} if nobody else {"PTOCACHE_DIR": squatted}
    os.mkdir(squatted)
    # Where there is nobody else, a folder that everybody can write to is as bad.
    os.chmod(squatted, 0o777)
    found = three(env, nobody)
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    assert f"the store {squatted} " in warning
    wrong = f"belongs to user {UID}, not to" if nobody else "can be written to by everybody"
    assert wrong in warning
    assert "PTOCACHE_DIR" in warning, "what to do"
    assert set(os.listdir(squatted)) <= {"daemon.log", "start.lock"}


@pytest.mark.kind("unwritable_cache_directory")
def test_unwritable_cache_directory_is_said_by_serve_with_what_to_do(
    nobody: Somebody | None, place: Path
) -> None:
    (place / "shut").mkdir(mode=0o555)
    (place / "file").touch()
    root = place / ("shut" if nobody else "file") / "store"
    env = {**ENV, "PTOCACHE_DIR": str(root), "PTOCACHE_SOCKET": "/tmp/none/s"}
    if nobody is None:
        done = ptocache("serve", env=env)
        code, said = done.code, done.err
    else:
        ran = nobody.run("-m", "ptocache_cli", "serve", env=env)
        code, said = ran.returncode, ran.stderr.decode()
    assert code == 4
    why = "Permission denied" if nobody else "Not a directory"
    assert said == (
        f"ptocache: the store {root} cannot be used: {why} "
        "(check its permissions, or choose another place with PTOCACHE_DIR)\n"
    )


# As a container with a read-only root: nothing but /dev/shm takes a file. $1 is the user.
READ_ONLY_SYSTEM = """
for place in /tmp /var/tmp; do
    mount --bind $place $place && mount -o remount,bind,ro $place || exit 97
done
mount -o remount,bind,ro / || exit 97
user=$1; shift
exec setpriv --reuid $user --regid $user --clear-groups "$@"
"""


def can_have_mounts_of_its_own() -> bool:
    if not is_root() or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return False
    words = ["unshare", "-m", "sh", "-c", READ_ONLY_SYSTEM, "sh", "0", "true"]
    return not subprocess.run(words, capture_output=True, check=False).returncode


@pytest.mark.kind("unwritable_cache_directory")
def test_unwritable_cache_directory_of_a_user_without_home_on_a_read_only_system_is_one_warning(
    nobody: Somebody | None,
) -> None:
    if nobody is None or not can_have_mounts_of_its_own():
        # Where nobody can make anything, root neither.
        found = three({"PTOCACHE_DIR": "/proc/store", "PTOCACHE_SOCKET": "/proc/run/s"})
        assert found.outcomes == ALONE
        assert len(found.warnings) == 1
        return
    words = ["unshare", "-m", "sh", "-c", READ_ONLY_SYSTEM, "sh", str(nobody.uid)]
    env = {**ENV, **nobody.python.env}

    def run(*more: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*words, nobody.python.executable, *more], env=env, cwd="/", capture_output=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    found = understood(run("-c", THREE))
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    root = f"/var/tmp/ptocache-{nobody.uid}"
    assert f"the store {root} cannot be used: Read-only file system" in warning
    served = run("-m", "ptocache_cli", "serve")
    assert served.returncode == 4
    assert served.stderr.decode() == (
        f"ptocache: the store {root} cannot be used: Read-only file system "
        "(check its permissions, or choose another place with PTOCACHE_DIR)\n"
    )


@pytest.mark.kind("unwritable_cache_directory")
def test_unwritable_cache_directory_and_no_other_place_at_all_is_a_failure_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_places", lambda: iter(["/proc"]))
    env = {"PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_AUTOSTART": "0"}
    with connect(env=env) as client, pytest.warns(PtocacheWarning):
        found = client.compile("host", {"k.c": SOURCE}, **OBJECT, check=False)
    error = raised(found, StepSystemError)
    assert error.message.startswith("no private directory can be made in /proc: ")
    assert "make room" in error.hint


# --- XDG


def test_absolute_xdg_variables_place_store_and_socket(place: Path) -> None:
    cache, runtime = place / "cache", place / "run"
    runtime.mkdir(mode=0o700)
    env = {"XDG_CACHE_HOME": str(cache), "XDG_RUNTIME_DIR": str(runtime), "HOME": "/"}
    found = three(env)
    assert (found.outcomes, found.warnings) == (CACHED, [])
    assert found.status is not None
    assert found.status["root"] == str(cache / "ptocache")
    assert Path(found.status["socket"]).parent == runtime / "ptocache"


def test_relative_xdg_variables_are_ignored_as_their_specification_says(place: Path) -> None:
    env = {
        "XDG_CACHE_HOME": "cache", "XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "config",
        "HOME": str(place),
    }  # fmt: skip
    found = three(env)
    assert (found.outcomes, found.warnings) == (CACHED, [])
    assert found.status is not None
    assert found.status["root"] == str(place / ".cache" / "ptocache")
    assert Path(found.status["socket"]).parent == Path(f"/tmp/ptocache-{UID}")


@pytest.mark.kind("socket_path_too_long")
def test_socket_path_too_long_from_folders_of_200_bytes_is_one_short_path_for_both_sides(
    place: Path,
) -> None:
    long = place / ("x" * 200)
    long.mkdir(mode=0o700)
    env = {name: str(long) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")}
    found = three(env)
    assert (found.outcomes, found.warnings) == (CACHED, [])
    assert found.status is not None
    assert found.status["socket"] == load(env).socket
    assert Path(found.status["socket"]).parent == Path(f"/tmp/ptocache-{UID}")


@pytest.mark.kind("socket_path_too_long")
@pytest.mark.parametrize("socket", ["/tmp/" + "x" * 103, "relative.sock"], ids=["long", "relative"])
def test_socket_path_too_long_or_relative_is_one_warning_and_right_answers(
    socket: str, place: Path
) -> None:
    root = place / "store"
    found = three({"PTOCACHE_DIR": str(root), "PTOCACHE_SOCKET": socket})
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    wrong = "108 bytes long; a socket's path has at most 107" if len(socket) > 50 else "absolute"
    assert wrong in warning
    assert not root.exists()


@pytest.mark.kind("socket_path_too_long")
def test_socket_path_too_long_is_wrong_use_of_serve_and_an_error_where_one_is_required(
    place: Path,
) -> None:
    env = {"PTOCACHE_DIR": str(place / "store"), "PTOCACHE_SOCKET": "/tmp/" + "x" * 103}
    done = ptocache("serve", env=env)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "at most 107" in done.err
    with pytest.raises(BadRequestError, match="at most 107"):
        _ = load({**env, "HOME": "/"}).socket
    done = ptocache("stats", env=env)
    assert (done.code, done.err.count("\n")) == (2, 1)
    (place / "k.c").write_text(SOURCE)
    done = ptocache("compile", "k.c", env={**env, "PTOCACHE_REQUIRE": "1"}, cwd=place)
    assert done.code == 3
    assert "at most 107" in done.err
    done = ptocache("compile", "k.c", env=env, cwd=place)
    assert done.code == 0
    assert done.err.count("at most 107") == 1


# --- the socket's folder


def _everybodys(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _anothers(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    # Where nobody else is to be had, a folder that a group can enter stands for it.
    if is_root():
        os.chown(folder, 12_345, 12_345)
    else:
        folder.chmod(0o750)


def _link(folder: Path) -> None:
    folder.with_name("elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.with_name("elsewhere"))


def _file(folder: Path) -> None:
    folder.write_bytes(b"mine")
    folder.chmod(0o600)


SQUATTERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "open to everybody": (_everybodys, "is open to others"),
    "of another user": (_anothers, "belongs to user 12345" if is_root() else "is open to others"),
    "a link": (_link, "is a symbolic link"),
    "a file": (_file, "is not a directory"),
}


@pytest.mark.parametrize("how", SQUATTERS)
def test_squatted_socket_folder_is_refused_and_left_as_it_was(
    how: str, place: Path, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    make, wrong = SQUATTERS[how]
    folder = place / "run"
    make(folder)
    before = tree_of(place)
    daemon = make_daemon()
    env = {**daemon.env, "PTOCACHE_SOCKET": str(folder / "s"), "PTOCACHE_AUTOSTART": "1"}
    done = start_in_vain(env)
    assert done.returncode == 4
    said = done.stderr.decode()
    assert f"the socket's directory {folder} {wrong}" in said
    assert "PTOCACHE_SOCKET" in said, "what to do"
    with connect(env=env) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            found = client.compile("host", {"k.c": SOURCE}, **OBJECT)
            assert (found.outcome, found.reason) == (Outcome.BYPASS, Reason.NO_DAEMON)
    (warning,) = caught
    assert warning.category is PtocacheWarning
    assert wrong in str(warning.message)
    assert tree_of(place) == before


def test_default_socket_folder_that_somebody_else_made_first_is_refused(
    nobody: Somebody | None, place: Path
) -> None:
    if nobody is None:
        folder = place / "ptocache"
        folder.mkdir(mode=0o700)
        folder.chmod(0o755)
        env = {"XDG_RUNTIME_DIR": str(place), "PTOCACHE_DIR": str(place / "store")}
        wrong = "is open to others"
    else:
        folder = Path(f"/tmp/ptocache-{nobody.uid}")
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        env = {"PTOCACHE_DIR": str(nobody.own(place / "own") / "store")}
        wrong = f"belongs to user {UID}, not to {nobody.uid}"
    found = three(env, nobody)
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    assert f"{folder} {wrong}" in warning
    assert os.listdir(folder) == []


# --- two users

PRY = """
import os, sys
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
for path in sys.argv[2:]:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        print(path)
    except PermissionError:
        pass
"""


@pytest.mark.kind("two_users")
def test_two_users_on_default_settings_have_nothing_in_common(place: Path) -> None:
    if not is_root():
        # One user's view of the rule: both defaults carry the user, or lie in what is the user's.
        assert f"ptocache-{UID}" in paths.default_root({})
        assert f"ptocache-{UID}" in paths.socket_path({}, paths.default_root({}))
        return
    users = [somebody(1), somebody(2)]
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    homes = [str(who.own(place / str(who.uid), 0o755)) for who in users]
    running = [
        subprocess.Popen(
            [who.python.executable, "-c", ClientProcess.CODE],
            env={**ENV, **who.python.env, "HOME": home, MARK: mark}, cwd="/", user=who.uid, group=who.uid,
            extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, umask=0o000,
        )
        for who, home in zip(users, homes, strict=True)
    ]  # fmt: skip
    try:
        ask = json.dumps({"source": SOURCE, "request": {"outputs": ["object"]}}).encode()
        for one in running:
            assert one.stdin is not None
            one.stdin.write(ask + b"\ngo\n")
            one.stdin.flush()
        answers = [one.communicate(timeout=DEADLINE_S)[0] for one in running]
        found = [json.loads(text.splitlines()[-1]) for text in answers]
        assert [(one["outcome"], one["warnings"]) for one in found] == [("miss", [])] * 2
        assert found[0]["outputs"] == found[1]["outputs"]
        wait_for(lambda: len(marked(mark)) == 2, "a daemon for each")
        for who, other, home in zip(users, reversed(users), homes, strict=True):
            secret = Path(home, ".cache", "ptocache")
            runtime = Path(f"/tmp/ptocache-{who.uid}")
            assert len(list(runtime.glob("*.sock"))) == 1
            things = [
                str(path) for root in (secret, runtime) for path in (root, *root.rglob("*"))
                if not path.is_socket()
            ]  # fmt: skip
            assert any("/blobs/" in path for path in things)
            seen = subprocess.run(
                [sys.executable, "-c", PRY, str(other.uid), *things],
                capture_output=True, text=True, timeout=DEADLINE_S, check=True,
            )  # fmt: skip
            assert seen.stdout == ""
            # Not the folders alone protect: their content does so as well.
            below = {**tree_of(secret), **tree_of(runtime)}
            assert {uid for uid, _ in below.values()} == {who.uid}
            assert not {name: oct(mode) for name, (_, mode) in below.items() if mode & 0o077}
    finally:
        end_daemons(mark)
        for who in users:
            remove_defaults(who)


# --- umask


def test_modes_of_a_store_do_not_depend_on_the_umask(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    seen = []
    for umask in (0o000, 0o077):
        home = make_daemon().place
        env = {
            "PTOCACHE_DIR": str(home / "store"), "PTOCACHE_SOCKET": str(home / "run" / "s"),
            "HOME": "/",
        }  # fmt: skip
        found = three(env, umask=umask)
        assert (found.outcomes, found.warnings) == (CACHED, [])
        modes = tree_of(home / "store") | {"run": tree_of(home / "run")["."]}
        # What names a blob is its content, which is the same each time, but for the entry's times.
        by_kind: dict[str, set[int]] = {}
        for name, (_, mode) in modes.items():
            by_kind.setdefault(re.sub(r"[0-9a-f]{64}|/[0-9a-f]{2}\b", "*", name), set()).add(mode)
        seen.append(by_kind)
    assert seen[0] == seen[1]
    assert not {kind: modes for kind, modes in seen[0].items() if any(m & 0o077 for m in modes)}


# --- temporary folders


def small_mount(where: Path) -> bool:
    """A file system of a few KiB that runs nothing, if the system lets us."""
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,noexec", "none", str(where)],
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


@pytest.fixture
def useless(tmp_path: Path) -> Iterator[Path]:
    """A TMPDIR that is full and noexec; one that cannot be written to where none can be mounted."""
    where = tmp_path / "useless"
    mounted = small_mount(where)
    if mounted:
        with contextlib.suppress(OSError), open(where / "full", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    else:
        where.chmod(0o500)
    yield where
    if mounted:
        subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.parametrize("how", ["useless", "missing"])
def test_compile_works_in_the_store_whatever_tmpdir_is(
    how: str, useless: Path, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    seen = tmp_path / "seen"
    compiler = LoggingCompiler(
        tmp_path / "cc", before=f'case " $* " in *" -c "*" -o "*) pwd >> "{seen}"; '
        f'echo "$TMPDIR" >> "{seen}" ;; esac',
    )  # fmt: skip
    tmpdir = useless if how == "useless" else tmp_path / "missing"
    daemon = make_daemon(trust_scripts=compiler.trust)
    daemon.env["TMPDIR"] = str(tmpdir)
    before = os.listdir(useless)
    daemon.start()
    with daemon.client() as client:
        found = client.compile("host", {"k.c": SOURCE}, env=compiler.env, outputs=["object"])
    assert found.outcome is Outcome.MISS
    work, tmp = map(Path, seen.read_text().splitlines())
    assert daemon.root / "tmp" in work.parents
    assert daemon.root / "tmp" in tmp.parents
    assert os.listdir(useless) == before
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("how", ["useless", "missing"])
def test_compile_without_a_daemon_works_whatever_tmpdir_is(
    how: str, useless: Path, tmp_path: Path
) -> None:
    tmpdir = useless if how == "useless" else tmp_path / "missing"
    env = {
        "TMPDIR": str(tmpdir), "PTOCACHE_AUTOSTART": "0", "PTOCACHE_DIR": str(tmp_path / "store")
    }  # fmt: skip
    found = three(env)
    assert found.outcomes == ALONE
    assert len(found.warnings) == 1


# --- odd names

ODD = {
    "text": 'a store\'s "place" #1?%20\nlarger: größer/キャッシュ/🚀'.encode(),
    "no text": b"caf\xe9\xff",
}


@pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
def test_store_at_an_odd_path_works_like_any_other(
    name: bytes, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    root = tmp_path / os.fsdecode(name)
    daemon = make_daemon(root).start()
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MISS
        assert client.call("status")["root"] == str(root)
    assert daemon.stop() == 0
    assert all(line.isprintable() for line in daemon.log().splitlines())
    with StoreAtRest(paths.StorePaths(str(root))) as store:
        assert stats_of_index(store.index, 0)["store"]["entries"] == 1
    daemon.start()
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.DISK_HIT


def test_commands_speak_of_a_store_whose_name_is_no_text(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(tmp_path / os.fsdecode(b"caf\xe9\n\xff")).start()
    for line in ("status", "status --json", "doctor", "doctor --json", "stop"):
        done = ptocache(*line.split(), env=daemon.env)
        # The doctor may find something wrong with the machine.
        assert done.code == 0 or line.startswith("doctor"), done.err
        assert b"caf" in done.stdout
        assert b"the plugin failed" not in done.stdout
    done = ptocache("stats", env=daemon.env)
    assert done.code == 0, done.err


def deep(base: Path, length: int) -> Path:
    """A path below ``base`` of so many bytes."""
    text = str(base)
    while len(text) < length:
        room = length - len(text) - 1
        # Never a rest of one byte, for which there would be a separator and no name.
        text += "/" + "x" * (room if room <= 200 else min(200, room - 2))
    return Path(text)


def test_store_at_the_longest_path_works_and_at_a_longer_one_is_refused_with_the_limit(
    tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    longest = paths.INDEX_PATH_LIMIT - len("/index.sqlite")
    daemon = make_daemon(deep(tmp_path, longest)).start()
    with daemon.client() as client:
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.MISS
    assert daemon.stop() == 0
    beyond = deep(tmp_path / "beyond", longest + 1)
    refused = make_daemon(beyond)
    done = start_in_vain(refused.env)
    assert done.returncode == 4
    said = done.stderr.decode()
    assert f"505 bytes, the limit is {paths.INDEX_PATH_LIMIT}" in said
    assert "shorter path with PTOCACHE_DIR" in said
    assert not beyond.exists()
    with (
        connect(env={**refused.env, "PTOCACHE_AUTOSTART": "1"}) as client,
        pytest.warns(PtocacheWarning, match="the limit is 504"),
    ):
        assert client.compile("host", {"k.c": SOURCE}, **OBJECT).outcome is Outcome.BYPASS


# --- file systems that lack something

# SQLite's own "unix-dotfile" needs nothing of a file system, and cannot do WAL for want of shared memory.
NO_WAL = """
import sqlite3
from urllib.parse import quote
real = sqlite3.connect
def connect(path, **options):
    if not options.pop("uri", False):
        path = "file:" + quote(path) + "?"
    return real(path + "&vfs=unix-dotfile", uri=True, **options)
sqlite3.connect = connect
"""


def start_without_wal(daemon: DaemonProcess) -> None:
    with open(daemon.log_path, "ab") as log:
        daemon.process = subprocess.Popen(
            [sys.executable, "-c", NO_WAL + BOOT],
            env=daemon.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
        )  # fmt: skip
    daemon.until_it_answers()


def test_store_where_write_ahead_logging_cannot_work_is_right_and_says_so_once(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon()
    start_without_wal(daemon)
    sources = [f"int a{number};\n" for number in range(6)]
    results = at_once(
        [ClientProcess(text, daemon.env, ENV, outputs=["object"]) for text in sources[:3] * 2]
    )
    assert sorted(str(item["outcome"]) for item in results).count("miss") == 3
    assert len({str(item["outputs"]) for item in results}) == 3
    with daemon.client() as client:
        assert client.call("status")["journal"] == "delete"
    assert "journal mode delete" in ptocache("status", env=daemon.env).out
    found = ptocache("doctor", env=daemon.env)
    assert re.search(r"note +journal +the file system cannot do write-ahead logging", found.out)
    assert daemon.stop() == 0
    assert daemon.log().count("cannot do write-ahead logging") == 1
    start_without_wal(daemon)
    with daemon.client() as client:
        for text in sources[:3]:
            again = client.compile("host", {"k.c": text}, **OBJECT)
            assert again.outcome is Outcome.DISK_HIT
        assert client.stats()["caches"]["binary"]["miss"] == 3


def test_index_without_write_ahead_logging_is_flushed_with_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect

    def without(path: str, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = real(f"file:{path}?vfs=unix-dotfile", uri=True, **options)
        return made

    levels = {}
    for mode in ("wal", "delete"):
        index = Index(str(tmp_path / mode))
        assert index.journal == mode
        levels[mode] = index._writer.execute("PRAGMA synchronous").fetchone()[0]
        index.close()
        monkeypatch.setattr(sqlite3, "connect", without)
    normal, full = 1, 2
    assert levels == {"wal": normal, "delete": full}


def test_write_ahead_logging_is_used_where_it_works_and_nothing_is_said(
    daemon: DaemonProcess,
) -> None:
    with daemon.client() as client:
        assert client.call("status")["journal"] == "wal"
    assert "journal" not in ptocache("status", env=daemon.env).out
    assert "write-ahead" not in daemon.log()


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK"])
def test_file_system_without_locks_is_said_at_once_and_each_compiles_by_itself(
    error: str, place: Path, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import errno, fcntl, os\n"
        "def flock(fd, operation):\n"
        f"    raise OSError(errno.{error}, os.strerror(errno.{error}))\n"
        "fcntl.flock = flock\n"
    )
    root = place / "store"
    env = {"PTOCACHE_DIR": str(root), "PYTHONPATH": str(hook), "HOME": "/"}
    found = three(env)
    assert found.outcomes == ALONE
    (warning,) = found.warnings
    assert f"{root}/daemon.lock" in warning
    assert "lock" in warning.replace("daemon.lock", "")
    assert "did not answer" not in warning, "it is not waited for what cannot come"
    assert daemons_of(root) == []


# --- the daemon's own surroundings


def test_daemon_keeps_nothing_of_the_surroundings_in_which_it_was_started(
    make_daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, value in (("daemons", 1), ("clients", 2)):
        (tmp_path / folder / "inc").mkdir(parents=True)
        (tmp_path / folder / "inc" / "which.h").write_text(f"int which = {value};\n")
    first, second = LoggingCompiler(tmp_path / "a"), LoggingCompiler(tmp_path / "b")
    (tmp_path / "a" / "cc").symlink_to(first.path)
    daemon = make_daemon(trust_scripts=f"{first.path}:{second.path}")
    daemon.env.update(
        PATH=f"{tmp_path / 'a'}:{daemon.env['PATH']}", CC=str(first.path),
        CPATH=str(tmp_path / "daemons" / "inc"), CFLAGS="-DNEVER", PWD=str(tmp_path / "daemons"),
    )  # fmt: skip
    with open(daemon.log_path, "ab") as log:
        daemon.process = subprocess.Popen(
            [sys.executable, "-c", BOOT], env=daemon.env, stderr=log, cwd=tmp_path / "daemons"
        )
    daemon.until_it_answers()
    monkeypatch.chdir(tmp_path / "clients")
    with daemon.client() as client:
        found = client.compile(
            "host", {"k.c": '#include "which.h"\n'}, options=["-Iinc"], env=second.env,
            outputs=["object"],
        )  # fmt: skip
    assert found.outcome is Outcome.MISS
    assert first.starts() == []
    assert len(second.compiles()) == 1
    inc = str(tmp_path / "clients" / "inc")
    wanted = compile_directly(b'#include "which.h"\n', "k.c", [f"-I{inc}"], tmp_path / "direct")
    assert bytes(found.outputs["object"].buffer) == wanted
