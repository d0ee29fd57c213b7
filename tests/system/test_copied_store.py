"""A warm store that was copied somewhere else, as into an image or out of a CI cache, gives hits there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.outcome import Outcome
from tests.harness import compile_directly
from tests.other_user import forget_python, is_root, somebody
from tests.simcann import KERNEL, SimCann

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptocache.result import Result
    from tests.harness import DaemonProcess

    MakeDaemon = Callable[..., DaemonProcess]

SOURCES = [b"int small;\n", b"const char large[200000] = {1};\n"]
LONG_AGO = 1_000_000_000


def ask(daemon: DaemonProcess, source: bytes) -> Result:
    with daemon.client() as client:
        return client.compile("host", {"k.c": source}, outputs=["object"])


def fill(daemon: DaemonProcess) -> None:
    """Compile the sources and stop the daemon."""
    daemon.start()
    for source in SOURCES:
        assert ask(daemon, source).outcome is Outcome.MISS
    assert daemon.stop() == 0


def plainly(source: Path, target: Path) -> None:
    """``cp -r``: other inodes and times, modes as the umask has them."""
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)


def with_other_times(source: Path, target: Path) -> None:
    """As the layers of an image: permissions are kept, times are all one."""
    subprocess.run(["cp", "-rp", str(source), str(target)], check=True)
    for path in [target, *target.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def without_modes(source: Path, target: Path) -> None:
    """As an archive that keeps none."""
    plainly(source, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("copy", [plainly, with_other_times, without_modes])
def test_a_copied_store_gives_hits(
    make_daemon: MakeDaemon, tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    first = make_daemon(tmp_path / "store")
    fill(first)
    assert not list(first.root.glob("index.sqlite-*")), "a stopped store is whole in its files"
    copy(first.root, tmp_path / "copy")
    shutil.rmtree(first.root)
    second = make_daemon(tmp_path / "copy").start()
    for source in SOURCES:
        result = ask(second, source)
        assert result.outcome is Outcome.DISK_HIT, result.why
        wanted = compile_directly(source, "k.c", [], tmp_path / "direct")
        assert bytes(result.outputs["object"].buffer) == wanted
    more = ask(second, b"int more;\n")
    assert more.outcome is Outcome.MISS
    assert second.stats()["corrupt"] == 0


def test_a_store_and_a_toolchain_with_other_inodes_and_times_give_hits(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann")
    first = make_daemon(tmp_path / "store").start()
    with first.client() as client:
        client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env())
    first.stop()
    with_other_times(cann.root, tmp_path / "layer")
    with_other_times(first.root, tmp_path / "baked")
    shutil.rmtree(cann.root)
    (tmp_path / "layer").rename(cann.root)
    cann.clear_log()
    second = make_daemon(tmp_path / "baked").start()
    with second.client() as client:
        result = client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env())
    assert result.outcome is Outcome.DISK_HIT, result.why
    assert cann.runs() == []


@pytest.mark.parametrize("relocatable", [True, False])
def test_a_toolchain_at_another_place_is_the_same_one_if_tools_may_move(
    make_daemon: MakeDaemon, tmp_path: Path, relocatable: bool
) -> None:
    cann = SimCann.make(tmp_path / "cann")
    found = []
    for number in range(2):
        daemon = make_daemon(tmp_path / f"store{number}", relocatable=relocatable).start()
        with daemon.client() as client:
            result = client.compile("ascendc", {"k.asc": KERNEL}, env=cann.env())
            found.append(result.outcome)
        daemon.stop()
        if number == 0:
            with_other_times(daemon.root, tmp_path / "store1")
            (tmp_path / "opt").mkdir()
            cann.root.rename(tmp_path / "opt" / "cann")
            cann = cann._replace(root=tmp_path / "opt" / "cann")
    assert found == [Outcome.MISS, Outcome.DISK_HIT if relocatable else Outcome.MISS]


def test_a_copy_of_a_store_in_use_is_right_but_may_lack_entries(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    first = make_daemon(tmp_path / "store").start()
    for source in SOURCES:
        ask(first, source)
    plainly(first.root, tmp_path / "copy")
    # What an archive caught of the index alone: the rest of it stands in the log beside it.
    for path in (tmp_path / "copy").glob("index.sqlite-*"):
        path.unlink()
    second = make_daemon(tmp_path / "copy").start()
    for source in SOURCES:
        result = ask(second, source)
        assert result.outcome in (Outcome.DISK_HIT, Outcome.MISS)
        wanted = compile_directly(source, "k.c", [], tmp_path / "direct")
        assert bytes(result.outputs["object"].buffer) == wanted
    assert first.process is not None
    assert first.process.poll() is None


def test_a_store_that_root_has_baked_is_read_by_another_user_once_everybody_may(
    make_daemon: MakeDaemon,
) -> None:
    place = Path(tempfile.mkdtemp(prefix="ptc-", dir="/tmp"))
    place.chmod(0o755)
    first = make_daemon(place / "store")
    program = (
        "import ptocache\n"
        "with ptocache.connect(client_require=True) as client:\n"
        f"    for source in {SOURCES!r}:\n"
        "        print(client.compile('host', {'k.c': source}, outputs=['object']).outcome.label)\n"
        "    client.call('stop')\n"
    )
    env = {"PATH": os.environ["PATH"], "PTOCACHE_DIR": str(place / "store")}
    try:
        fill(first)
        subprocess.run(["chmod", "-R", "a+rX", str(first.root)], check=True)
        if is_root():
            done = somebody(7).run("-c", program, env=env)
        else:
            # Nobody else is to be had.
            words = [sys.executable, "-c", program]
            done = subprocess.run(words, env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.split() == [b"disk_hit"] * 2
    finally:
        forget_python()
        shutil.rmtree(place, ignore_errors=True)
