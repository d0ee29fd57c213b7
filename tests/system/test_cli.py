"""The command line as a whole: help, versions, exit codes, errors that are one clear line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ptocache as library
from ptocache.errors import WireError
from tests.harness import wait_for
from tests.system.cli_runner import EXECUTABLE, finish, ptocache, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness import DaemonProcess

COMMANDS = (
    "compile", "run", "record", "warm", "wrap", "shims", "serve", "status", "stop", "stats", "gc", "invalidate", "show", "verify", "explain", "inspect", "doctor",
    "demo",
)  # fmt: skip
CLI_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def own_places(tmp_path: Path) -> dict[str, str]:
    """A store that nobody serves, and nobody is to serve."""
    return {
        "PTOCACHE_DIR": str(tmp_path / "store"),
        "PTOCACHE_SOCKET": str(tmp_path / "place" / "s"),
        "PTOCACHE_AUTOSTART": "0",
    }


def test_version_is_the_librarys() -> None:
    done = ptocache("--version")
    assert (done.code, done.out) == (0, f"ptocache {library.__version__}\n")


def test_help_lists_every_command_and_the_exit_codes() -> None:
    done = ptocache("--help")
    assert done.code == 0
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", done.out, re.MULTILINE)
    assert listed is not None
    assert sorted(line.split()[0] for line in listed[1].splitlines()) == sorted(COMMANDS)
    for code in range(6):
        assert re.search(rf"^ +{code}  \w", done.out, re.MULTILINE)


def answers(daemon: DaemonProcess) -> bool:
    with contextlib.suppress(WireError), daemon.client() as client:
        client.call("ping", start=False)
        return True
    return False


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples(command: str) -> None:
    done = ptocache(command, "--help")
    assert (done.code, done.err) == (0, "")
    _, _, examples = done.out.partition("Examples:\n")
    assert re.search(rf"^ +ptocache {command}\b", examples, re.MULTILINE)


def test_the_reference_page_names_every_command_and_exit_code() -> None:
    page = CLI_PAGE.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`{command}`" in page
    for code in range(6):
        assert re.search(rf"^\| {code} \|", page, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("stats", "--nonsense"),
        ("stats", "--json", "--prometheus"),
        ("gc", "--max-size", "10X"),
        ("gc", "--max-size", "1e400"),
        ("gc", "--max-age", "soon"),
        ("invalidate",),
        ("invalidate", "--all", "--kernel", "k"),
        ("show",),
        ("serve", "--jobs", "0"),
        ("serve", "--log-level", "loud"),
        ("compile",),
        ("compile", "--", "-O3"),
        ("record",),
        ("record", "true"),
        ("warm",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_use_is_exit_code_2(words: tuple[str, ...], tmp_path: Path) -> None:
    done = ptocache(*words, env=own_places(tmp_path))
    assert done.code == 2
    assert done.stdout == b""
    assert done.err
    assert not (tmp_path / "store").exists()


def test_a_size_that_is_none_is_named_with_its_option() -> None:
    done = ptocache("gc", "--max-size", "10X")
    assert "--max-size" in done.err
    assert "'10X'" in done.err


def test_a_setting_that_cannot_be_used_is_named_with_its_source(tmp_path: Path) -> None:
    done = ptocache("stats", env={**own_places(tmp_path), "PTOCACHE_MAX_SIZE": "huge"})
    assert done.code == 2
    assert "PTOCACHE_MAX_SIZE" in done.err
    assert "'huge'" in done.err
    assert done.err.count("\n") == 1


def test_a_socket_path_that_is_too_long_is_exit_code_2(tmp_path: Path) -> None:
    done = ptocache("status", "--socket", str(tmp_path / ("x" * 200)))
    assert done.code == 2
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("words", [("status",), ("stop",), ("status", "--json")], ids=" ".join)
def test_no_daemon_is_exit_code_3_and_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = ptocache(*words, env=own_places(tmp_path))
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        f"ptocache: no daemon serves the store {tmp_path / 'store'} "
        "(start one: ptocache serve --detach)\n"
    )
    assert not (tmp_path / "store").exists()


def test_a_socket_directory_open_to_others_is_exit_code_3(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o755)
    done = ptocache("status", env=own_places(tmp_path))
    assert done.code == 3
    assert str(place) in done.err
    assert "0700" in done.err


@pytest.mark.parametrize("command", [("stats",), ("stats", "--reset"), ("show", "abcd1234")])
def test_a_damaged_index_is_exit_code_4(command: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "index.sqlite").write_bytes(b"this is not a database" * 100)
    done = ptocache(*command, env=own_places(tmp_path))
    assert (done.code, done.out) == (4, "")
    assert str(store / "index.sqlite") in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("how", ["--foreground", "--detach"])
def test_a_store_of_another_version_is_exit_code_4(how: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "VERSION").write_text("99\n")
    done = ptocache("serve", how, env=own_places(tmp_path))
    assert (done.code, done.out) == (4, "")
    assert "'99'" in done.err.splitlines()[-1]


def test_a_file_where_the_store_should_be_is_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    done = ptocache("serve", env=own_places(tmp_path))
    assert done.code == 4
    assert str(tmp_path / "store") in done.err


def test_dir_leaves_the_socket_of_another_store_aside(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    assert ptocache("status", env=daemon.env).code == 0
    assert ptocache("status", "--dir", str(daemon.root), env=daemon.env).code == 0
    assert ptocache("status", "--dir", str(tmp_path / "other"), env=daemon.env).code == 3


def test_socket_names_the_daemon(daemon: DaemonProcess) -> None:
    done = ptocache("status", "--json", "--socket", str(daemon.socket))
    assert (done.code, done.json()["pid"]) == (0, daemon.pid)


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [EXECUTABLE, "stats", "--prometheus"], stdin=subprocess.DEVNULL, stdout=writer,
            stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [EXECUTABLE, "stats"], env={**os.environ, **own_places(tmp_path)},
            stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_closed_standard_output_is_survived(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" stats >&-', EXECUTABLE],
        env={**os.environ, **own_places(tmp_path)}, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_ascii_terminals_get_every_text(tmp_path: Path) -> None:
    name = "caf\N{LATIN SMALL LETTER E WITH ACUTE}.c"
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = ptocache("compile", name, env={**own_places(tmp_path), **plain})
    assert done.code == 2
    assert "cannot be read" in done.err


def test_ctrl_c_ends_a_foreground_daemon_in_order(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon()
    process = start("serve", env=daemon.env)
    try:
        wait_for(lambda: answers(daemon), "the daemon to answer")
    finally:
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert (done.code, done.out) == (0, "")
    assert not daemon.socket.exists()
