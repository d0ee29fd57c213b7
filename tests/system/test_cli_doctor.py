"""``ptocache doctor``: with a daemon, without one, and with something wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import __version__
from ptocache.errors import BadRequestError, FrameError
from tests.harness import DaemonProcess, LoggingCompiler, alive, daemons_of, wait_for
from tests.simcann.tree import SimCann
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERDICTS = {"ok", "note", "problem"}
HOST = {"c", "c++", "c,link", "c++,link"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("doctor") / "store").start()
    yield daemon
    daemon.clean_up()


def examined(
    env: Mapping[str, str], code: int, *words: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The whole document, and its lines by ``section/name``."""
    done = ptocache("doctor", "--json", *words, env=env)
    assert done.code == code, done.out + done.err
    found: dict[str, Any] = done.json()
    lines = {
        f"{section['name']}/{line['name']}": line
        for section in found["sections"]
        for line in section["lines"]
    }
    assert (found["verdict"] == "problem") == (code == 1)
    return found, lines


def test_a_healthy_machine_has_no_problem_and_everything_is_named(served: DaemonProcess) -> None:
    found, lines = examined(served.env, 0)
    assert set(found) == {"schema", "verdict", "sections", "daemon", "toolchains"}
    assert found["schema"] == 1
    assert [section["name"] for section in found["sections"]] == [
        "store", "daemon", "limits", "toolchains", "settings",
    ]  # fmt: skip
    for line in lines.values():
        assert set(line) == {"name", "verdict", "text", "hint"}
        assert line["verdict"] in VERDICTS
        assert line["text"]
    for name in ("place", "access", "file system", "space", "index"):
        assert f"store/{name}" in lines
    assert str(served.root) in lines["store/place"]["text"]
    assert f"version {__version__}" in lines["daemon/daemon"]["text"]
    assert lines["daemon/guard"]["verdict"] == "ok"
    assert "of 107 bytes" in lines["daemon/socket"]["text"]
    assert lines["settings/store.fsync"]["text"] == "False (PTOCACHE_FSYNC)"
    assert found["daemon"]["pid"] == served.pid
    assert found["daemon"]["watch"]["directories"] > 0


def test_every_flavour_is_identified_as_a_compile_identifies_it(served: DaemonProcess) -> None:
    found, _ = examined(served.env, 0)
    host = {item["flavour"]: item for item in found["toolchains"] if item["toolchain"] == "host"}
    assert set(host) == HOST
    with served.client() as client:
        result = client.compile("host", {"k.c": "int x;\n"}, outputs=["object"])
    assert host["c"]["identity"] == result.identity
    assert host["c"]["banner"]
    assert host["c"]["ms"] >= 0
    compiler = next(item for item in host["c"]["components"] if item["role"] == "c")
    assert set(compiler) == {"role", "path", "canonical", "digest", "size"}
    assert compiler["canonical"] == os.path.realpath(compiler["path"])
    assert len(host["c"]["components"]) == host["c"]["components_total"]


def test_the_text_names_the_tools_and_their_places(served: DaemonProcess) -> None:
    done = ptocache("doctor", env=served.env)
    assert done.code == 0
    assert done.out.startswith("store\n")
    assert done.out.endswith("no problem\n")
    for flavour in HOST:
        assert f"host {flavour} " in done.out
    assert "cc1 " in done.out


def test_a_daemon_is_started_if_none_serves_the_store(tmp_path: Path) -> None:
    env = {"PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_IDLE_TIMEOUT": "60s"}
    try:
        found, lines = examined(env, 0)
        assert lines["daemon/daemon"]["verdict"] == "ok"
        # A tool that it starts at this moment is still called like it.
        served = found["daemon"]["pid"]
        wait_for(lambda: daemons_of(tmp_path / "store") == [served], "it to be the only daemon")
    finally:
        assert ptocache("stop", env=env).code == 0


def test_a_compiler_that_the_variables_name_and_that_is_not_there_is_a_problem(
    served: DaemonProcess, tmp_path: Path
) -> None:
    found, lines = examined({**served.env, "CC": str(tmp_path / "no-cc")}, 1)
    assert lines["toolchains/host c"]["verdict"] == "problem"
    assert "(set: CC)" in lines["toolchains/host c"]["text"]
    assert lines["toolchains/host c"]["hint"]
    (told,) = [item for item in found["toolchains"] if item["flavour"] == "c"]
    assert told["error"]["code"] == "tool_not_found"
    assert told["error"]["fields"]["looked"]


def test_a_machine_without_a_compiler_is_fine(served: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    _, lines = examined({**served.env, "PATH": str(tmp_path / "bin")}, 0)
    assert lines["toolchains/host c"]["verdict"] == "note"
    assert lines["toolchains/host c"]["text"].startswith("not installed: ")


def test_a_compiler_that_is_not_identified_is_a_problem(
    served: DaemonProcess, logging_compiler: LoggingCompiler
) -> None:
    _, lines = examined({**served.env, **logging_compiler.env}, 1)
    line = lines["toolchains/host c"]
    assert line["verdict"] == "problem"
    assert f"{logging_compiler.path} (c) is a script" in line["text"]
    assert "PTOCACHE_TRUST_SCRIPTS" in line["hint"]


def test_a_cann_installation_is_told_and_one_that_is_not_there_is_a_problem(
    served: DaemonProcess, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann", version="8.5.0", ptoas="bin")
    found, lines = examined({**served.env, **cann.env()}, 0)
    for name in ("ascendc", "ascendc link", "pto ptoas", "pto bisheng,ptoas"):
        assert lines[f"toolchains/{name}"]["verdict"] == "ok"
        assert "CANN 8.5.0" in lines[f"toolchains/{name}"]["text"]
    told = next(item for item in found["toolchains"] if item["toolchain"] == "ascendc")
    compiler = next(item for item in told["components"] if item["role"] == "bisheng")
    assert compiler["path"] == str(cann.tool("bisheng"))
    assert compiler["canonical"] == os.path.realpath(cann.tool("bisheng"))

    (tmp_path / "nothing").mkdir()
    env = {**served.env, **cann.env(), "PATH": "/usr/bin:/bin"}
    env["ASCEND_HOME_PATH"] = env["ASCEND_TOOLKIT_HOME"] = str(tmp_path / "nothing")
    found, lines = examined(env, 1)
    line = lines["toolchains/ascendc"]
    assert line["verdict"] == "problem"
    assert "(set: ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME)" in line["text"]
    told = next(item for item in found["toolchains"] if item["toolchain"] == "ascendc")
    looked = told["error"]["fields"]["looked"]
    assert any(place.startswith(str(tmp_path / "nothing")) for place in looked)


def test_a_guard_that_has_gone_is_a_problem(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        guard = client.call("status")["guard"]
    assert guard["alive"]
    os.kill(guard["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(guard["pid"]), "the guard to end")
    _, lines = examined(daemon.env, 1)
    assert lines["daemon/guard"]["verdict"] == "problem"


def test_without_a_daemon_what_can_be_seen_is_checked_and_that_is_said(tmp_path: Path) -> None:
    env = {
        "PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_AUTOSTART": "0",
        "PTOCACHE_SOCKET": str(tmp_path / "private" / "s"),
    }  # fmt: skip
    (tmp_path / "private").mkdir(mode=0o755)
    found, lines = examined(env, 1)
    assert found["daemon"] is None
    assert lines["daemon/daemon"]["verdict"] == "problem"
    assert "is open to others" in lines["daemon/daemon"]["text"]
    assert lines["daemon/socket directory"]["verdict"] == "problem"
    assert "not made yet" in lines["store/place"]["text"]
    assert lines["store/access"]["verdict"] == "ok"
    assert "limits/inotify watches" in lines
    assert "no daemon answers" in lines["toolchains/host"]["text"]
    assert not (tmp_path / "store").exists()


def test_a_place_that_can_be_no_store_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {"PTOCACHE_DIR": str(tmp_path / "file"), "PTOCACHE_SOCKET": str(tmp_path / "s")}
    _, lines = examined(env, 1)
    assert lines["store/access"]["verdict"] == "problem"
    assert lines["daemon/daemon"]["verdict"] == "problem"


def test_a_damaged_index_is_a_problem_until_a_daemon_builds_it_anew(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "index.sqlite").write_bytes(b"no database" * 99)
    env = {"PTOCACHE_DIR": str(store), "PTOCACHE_AUTOSTART": "0"}
    _, lines = examined(env, 1)
    assert lines["store/index"]["verdict"] == "problem"
    assert "the next one puts it aside" in lines["store/index"]["hint"]


def test_settings_that_cannot_be_used_are_a_problem_and_the_limits_are_told() -> None:
    found, lines = examined({"PTOCACHE_MAX_SIZE": "many"}, 1)
    assert found["daemon"] is None
    assert "PTOCACHE_MAX_SIZE" in lines["settings/settings"]["text"]
    assert "limits/open files" in lines


def test_a_variable_that_nobody_reads_and_a_mode_that_stores_nothing_get_a_note(
    served: DaemonProcess,
) -> None:
    env = {**served.env, "PTOCACHE_MAXSIZE": "1G", "PTOCACHE_MODE": "read-only"}
    _, lines = examined(env, 0)
    assert lines["settings/PTOCACHE_MAXSIZE"]["verdict"] == "note"
    assert lines["settings/request.mode"]["verdict"] == "note"


@pytest.mark.parametrize("env", [None, [], {"A": 1}, {1: "A"}])
def test_identify_refuses_what_is_no_environment(served: DaemonProcess, env: object) -> None:
    with served.client() as client, pytest.raises((BadRequestError, FrameError)):
        client.call("identify", env=env)
