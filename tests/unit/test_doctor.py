"""What ``doctor`` makes of what it finds: pure judgements, on values made up here."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import __version__
from ptocache.config import load
from ptocache_cli import doctor
from ptocache_cli.doctor import NOTE, OK, PROBLEM, Line, Section

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /home rw - nfs4 server:/home rw
24 23 0:22 / /home/me/a\\040b rw,nosuid master:2 shared:3 - tmpfs tmpfs rw
25 22 0:23 / /twice rw - ext4 /dev/sdb1 rw
26 25 0:24 / /twice rw - xfs /dev/sdc1 rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/cache/ptocache", "ext4"),
        ("/home/me/store", "nfs4"),
        ("/home", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/me/a b/store", "tmpfs"),
        ("/twice/store", "xfs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert doctor.file_system(path, MOUNTS) == kind


def test_without_a_table_of_mounts_the_file_system_is_unknown() -> None:
    assert doctor.file_system("/x", "") == ""
    assert doctor.judge_file_system("") == Line("file system", OK, "unknown")


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("ext4", OK), ("overlay", OK), ("fuseblk", OK), ("fuse.fuse-overlayfs", OK),
        ("nfs4", NOTE), ("fuse.sshfs", NOTE), ("lustre", NOTE), ("tmpfs", NOTE),
    ],
)  # fmt: skip
def test_a_file_system_over_the_network_or_in_memory_gets_a_note(kind: str, verdict: str) -> None:
    found = doctor.judge_file_system(kind)
    assert found.verdict == verdict
    assert bool(found.hint) == (verdict != OK)


@pytest.mark.parametrize(
    ("free", "limit", "used", "verdict"),
    [
        (10 << 30, 10 << 30, 0, OK),
        (5 << 30, 10 << 30, 6 << 30, OK),
        (5 << 30, 10 << 30, 4 << 30, NOTE),
        (1 << 20, 10 << 30, 4 << 30, PROBLEM),
        (1 << 20, 10 << 20, 10 << 20, OK),
        (1 << 20, 10 << 20, 11 << 20, OK),
    ],
)
def test_free_space_is_judged_by_what_the_store_may_still_grow(
    free: int, limit: int, used: int, verdict: str
) -> None:
    assert doctor.judge_space(free, limit, used).verdict == verdict


def info(mode: int, uid: int = -1) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, os.geteuid() if uid < 0 else uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "uid", "there", "writable", "verdict"),
    [
        (stat.S_IFDIR | 0o700, -1, True, True, OK),
        (stat.S_IFDIR | 0o755, -1, True, True, NOTE),
        (stat.S_IFDIR | 0o777, -1, True, True, PROBLEM),
        (stat.S_IFDIR | 0o700, 12345, True, True, PROBLEM),
        (stat.S_IFDIR | 0o500, -1, True, False, PROBLEM),
        (stat.S_IFREG | 0o600, -1, True, False, PROBLEM),
        # The folder in which a store will be made may well be everybody's.
        (stat.S_IFDIR | 0o1777, 12345, False, True, OK),
        (stat.S_IFDIR | 0o755, 12345, False, False, PROBLEM),
    ],
)
def test_owner_and_permissions_are_judged(
    mode: int, uid: int, there: bool, writable: bool, verdict: str
) -> None:
    found = doctor.judge_access("/s", info(mode, uid), there=there, writable=writable)
    assert found.verdict == verdict
    assert bool(found.hint) == (verdict != OK)


@pytest.mark.parametrize(
    ("used", "soft", "verdict"), [(20, 65536, OK), (20, -1, OK), (20, 255, PROBLEM), (980, 1024, PROBLEM)]
)  # fmt: skip
def test_a_scarce_limit_of_open_files_is_a_problem(used: int, soft: int, verdict: str) -> None:
    found = doctor.judge_open_files({"open_files": used, "soft": soft, "hard": soft})
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("used", "limit", "verdict"), [(0, "128", OK), (116, "128", NOTE), (3, "", NOTE)]
)
def test_inotify_is_judged_by_what_is_used_of_it(used: int, limit: str, verdict: str) -> None:
    found = doctor.judge_inotify("max_user_instances", "inotify instances", used, limit)
    assert found.verdict == verdict
    assert bool(found.hint) == (verdict != OK)


def test_inotify_use_is_counted_over_processes(tmp_path: Path) -> None:
    for pid, watches in (("10", 2), ("11", 3)):
        for name in ("fd", "fdinfo"):
            (tmp_path / pid / name).mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to("anon_inode:inotify")
        (tmp_path / pid / "fd" / "4").symlink_to("/dev/null")
        text = "pos:\t0\n" + "inotify wd:1 ino:2\n" * watches
        (tmp_path / pid / "fdinfo" / "3").write_text(text)
    (tmp_path / "self").mkdir()
    (tmp_path / "12").mkdir()
    assert doctor.inotify_use(str(tmp_path)) == (5, 2)


def test_randomised_addresses_get_a_note() -> None:
    assert doctor.judge_addresses(True).verdict == OK
    assert doctor.judge_addresses(False).verdict == NOTE


# --- toolchains


def found(**changed: Any) -> dict[str, Any]:
    return {
        "toolchain": "pto", "version": "1", "flavour": "", "variables": {}, "known": False,
        "identity": "a" * 64, "banner": "CANN 8.5.0", "uncertain": "", "ms": 12.0,
        "components": [], "components_total": 0, "error": None, **changed,
    }  # fmt: skip


def missing(code: str = "tool_not_found", **fields: Any) -> dict[str, Any]:
    return {"code": code, "message": "no bisheng", "hint": "install CANN", "fields": fields}


def test_a_toolchain_is_told_with_its_components_and_their_places() -> None:
    part = {"role": "bisheng", "path": "/a", "canonical": "/b", "digest": "d" * 64, "size": 1}
    same = {**part, "role": "ptoas", "canonical": "/a"}
    line = doctor.judge_toolchain(found(components=[part, same], components_total=2))
    assert line == Line(
        "pto", OK, "CANN 8.5.0; identity aaaaaaaaaaaa in 12 ms", "",
        ("bisheng  /a → /b  dddddddddddd", "ptoas  /a  dddddddddddd"),
    )  # fmt: skip
    line = doctor.judge_toolchain(found(components=[part] * 20, components_total=3000))
    assert line.more[-1] == "and 2992 more (--json lists them)"


def test_a_toolchain_that_is_not_identified_is_a_problem_with_its_reason() -> None:
    line = doctor.judge_toolchain(found(uncertain="/x/bisheng is a script"))
    assert line.verdict == PROBLEM
    assert "/x/bisheng is a script" in line.text
    assert line.hint


@pytest.mark.parametrize(
    ("error", "variables", "verdict"),
    [
        (missing(), {}, NOTE),
        (missing(), {"PATH": "/bin"}, NOTE),
        (missing(), {"ASCEND_HOME_PATH": "/x"}, PROBLEM),
        (missing(), {"ASCEND_HOME_PATH": ""}, NOTE),
        (missing("error"), {}, PROBLEM),
    ],
)
def test_what_is_not_installed_is_a_note_unless_a_variable_says_that_it_is(
    error: dict[str, Any], variables: dict[str, str], verdict: str
) -> None:
    item = found(error=error, variables=variables)
    line = doctor.judge_toolchain(item, doctor.leading_nowhere([item]))
    assert line.verdict == verdict
    assert "no bisheng" in line.text
    assert line.hint == "install CANN"


@pytest.mark.parametrize(
    ("value", "leads"),
    [
        ("/opt/cann", True), ("/opt/cann/", True), ("/opt/cann/bin/bisheng", True),
        ("/opt/can", False), ("/opt/other", False), ("bisheng", True), ("wrap bisheng", True),
        ("clang", False),
    ],
)  # fmt: skip
def test_a_variable_leads_somewhere_if_some_toolchain_was_found_by_it(
    value: str, leads: bool
) -> None:
    tool = "/opt/cann/bin/bisheng"
    part = {"role": "bisheng", "path": tool, "canonical": tool, "digest": "d" * 64, "size": 1}
    variables = {"BISHENG_HOME": value, "PATH": "/nowhere"}
    items = [
        found(variables=variables, components=[part]),
        found(variables=variables, error=missing()),
    ]
    assert doctor.leading_nowhere(items) == (frozenset() if leads else {"BISHENG_HOME"})


def test_a_variable_that_leads_nowhere_is_to_be_corrected() -> None:
    error = missing(looked=["/x"]) | {"hint": "looked at: /x"}
    line = doctor.judge_toolchain(found(error=error, variables={"CC": "x"}), {"CC"})
    assert line.text == "no bisheng (set: CC)"
    assert line.hint == "correct or unset CC"


def test_the_places_looked_at_are_listed() -> None:
    looked = ["/opt/0", *(f"/opt/{number}" for number in range(10))]
    error = missing(looked=looked) | {"hint": f"install CANN; looked at: {', '.join(looked)}"}
    line = doctor.judge_toolchain(found(error=error))
    assert line.hint == "install CANN"
    assert line.more[:2] == ("looked at /opt/0", "looked at /opt/1")
    assert line.more[-1] == "and at 2 more places (--json lists them)"


# --- the whole


def test_a_daemon_of_another_version_gets_a_note(tmp_path: Path) -> None:
    settings = load({"HOME": str(tmp_path), "PTOCACHE_SOCKET": str(tmp_path / "s")})
    status = {
        "pid": 7, "version": __version__ + "x", "uptime_s": 1.0,
        "guard": {"pid": 8, "alive": False},
        "watch": {"directories": 1, "trees": 2, "trouble": "/opt: no space left"},
    }  # fmt: skip
    lines = {line.name: line for line in doctor._daemon(settings, doctor._Found(status, (), None))}
    assert lines["daemon"].verdict == NOTE
    assert "ptocache stop" in lines["daemon"].hint
    assert lines["guard"].verdict == PROBLEM
    assert lines["watch"].verdict == NOTE
    assert "/opt: no space left" in lines["watch"].text


def test_the_worst_line_decides() -> None:
    for verdicts, worst in (((OK, OK), OK), ((OK, NOTE), NOTE), ((PROBLEM, NOTE), PROBLEM)):
        lines = [Section("s", (Line("l", verdict, "text"),)) for verdict in verdicts]
        assert doctor.verdict_of(lines) == worst


def test_the_text_says_what_to_do_and_how_many_problems_there_are() -> None:
    sections = [
        Section("store", (Line("place", OK, "/a\nb"), Line("space", PROBLEM, "full", "make room"))),
        Section("empty", ()),
    ]
    assert doctor.text(sections, PROBLEM).splitlines() == [
        "store",
        "  ok       place  /a b",
        "  problem  space  full",
        "                  → make room",
        "",
        "",
        "1 problem",
    ]
