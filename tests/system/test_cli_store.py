"""``stats``, ``show``, ``gc`` and ``invalidate``, with a daemon and without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.outcome import Outcome, Reason
from tests.harness import DaemonProcess
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable

OUTCOMES = {outcome.label for outcome in Outcome}
COUNTED = OUTCOMES | {"requests", "corrupt", "rejected", "store_failure", "saved_ms"}
EXPLAINED = ("bypass", "failure", "corrupt", "rejected", "store_failure")
STATISTICS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "statistics.md"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> DaemonProcess:
    """The environment of a store that no daemon serves: 3 misses, 1 hit, 1 failure, 1 bypass."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("filled") / "store")
    daemon.start()
    try:
        with daemon.client() as client:
            for number in (0, 1, 2):
                client.compile(
                    "host", {"k.c": f"int f{number}(void) {{ return 0; }}\n"}, options=["-O1"],
                    outputs=["object"], kernel=f"kernel{number}",
                )  # fmt: skip
            again = {"k.c": "int f2(void) { return 0; }\n"}
            client.compile("host", again, options=["-O1"], outputs=["object"])
            client.compile("host", {"k.c": "int f( {"}, outputs=["object"], check=False)
            client.compile("host", again, outputs=["object"], mode="bypass")
    finally:
        assert daemon.stop() == 0
        daemon.clean_up()
    return daemon


def keys_of(env: dict[str, str]) -> list[str]:
    done = ptocache("invalidate", "--all", "--dry-run", "--json", env=env)
    return [item["key"] for item in done.json()["removed"]]


# --- stats


def test_stats_json_keeps_its_contract(daemon: DaemonProcess) -> None:
    found = ptocache("stats", "--json", env=daemon.env).json()
    assert {"schema", "caches", "store", "daemon"} <= set(found)
    assert found["schema"] == 1
    assert set(found["caches"]) == {"binary", "kernel"}
    for cache in found["caches"].values():
        assert set(cache) >= COUNTED | {f"{name}_reasons" for name in EXPLAINED}
    assert set(found["store"]) >= {"entries", "bytes", "limit", "evicted"}
    assert set(found["daemon"]) >= {"pid", "version", "uptime_s"}
    assert found["daemon"]["pid"] == daemon.pid


def test_stats_without_a_daemon_reads_the_store_and_starts_none(filled: DaemonProcess) -> None:
    env = {**filled.env, "PTOCACHE_AUTOSTART": "1"}
    found = ptocache("stats", "--json", env=env).json()
    binary = found["caches"]["binary"]
    assert found["daemon"] is None
    assert found["store"]["entries"] == 3
    assert found["store"]["bytes"] > 0
    assert {name: binary[name] for name in ("miss", "memory_hit", "failure", "bypass")} == {
        "miss": 3, "memory_hit": 1, "failure": 1, "bypass": 1,
    }  # fmt: skip
    assert binary["requests"] == sum(binary[outcome] for outcome in OUTCOMES) == 6
    assert binary["failure_reasons"] == {"compile_failed": 1}
    assert binary["bypass_reasons"] == {"asked": 1}
    assert ptocache("status", env=env).code == 3


def test_stats_are_the_same_with_and_without_the_daemon(
    filled: DaemonProcess, make_daemon: Callable[..., DaemonProcess]
) -> None:
    without = ptocache("stats", "--json", env=filled.env).json()
    served = make_daemon(filled.root).start()
    with_daemon = ptocache("stats", "--json", env=served.env).json()
    assert with_daemon.pop("daemon")["pid"] == served.pid
    assert without.pop("daemon") is None
    assert with_daemon == without


def test_stats_of_a_store_that_does_not_exist_are_zero_and_make_none(tmp_path: Path) -> None:
    done = ptocache("stats", "--json", "--dir", str(tmp_path / "none"))
    assert done.code == 0
    assert done.json()["store"]["entries"] == 0
    assert done.json()["caches"]["binary"]["requests"] == 0
    assert done.json()["daemon"] is None
    assert not (tmp_path / "none").exists()


def test_stats_for_people_show_what_was_counted(filled: DaemonProcess) -> None:
    text = ptocache("stats", env=filled.env).out
    assert re.search(r"^miss +3 +0$", text, re.MULTILINE)
    assert re.search(r"^  compile_failed +1 +0$", text, re.MULTILINE)
    assert re.search(r"^daemon +none$", text, re.MULTILINE)
    assert re.search(r"^hit rate +25\.0 % +-$", text, re.MULTILINE)


def test_reset_without_a_daemon_starts_none_and_keeps_entries(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        client.compile("host", {"k.c": "int f(void) { return 0; }\n"}, outputs=["object"])
    daemon.stop()
    env = {**daemon.env, "PTOCACHE_AUTOSTART": "1"}
    assert ptocache("stats", "--reset", env=env).code == 0
    found = ptocache("stats", "--json", env=env).json()
    assert found["caches"]["binary"]["requests"] == 0
    assert found["store"]["entries"] == 1
    assert ptocache("status", env=env).code == 3


def test_reset_with_a_daemon_starts_its_numbers_anew(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.compile("host", {"k.c": "int f(void) { return 0; }\n"}, outputs=["object"])
    assert daemon.stats()["miss"] == 1
    assert ptocache("stats", "--reset", env=daemon.env).code == 0
    assert daemon.stats()["requests"] == 0


METRIC = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(\w+="[^"\\\n]*"(?:,\w+="[^"\\\n]*")*)\})? (\S+)$')


def parse_prometheus(text: str) -> dict[tuple[str, str], float]:
    """Sample name and labels → value; fails on a line that is not of the format."""
    types: dict[str, str] = {}
    samples: dict[tuple[str, str], float] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            _, keyword, name, rest = line.split(" ", 3)
            assert keyword in ("HELP", "TYPE")
            if keyword == "TYPE":
                assert rest in ("counter", "gauge")
                assert name not in types, "each metric has one TYPE"
                types[name] = rest
            continue
        match = METRIC.match(line)
        assert match is not None, line
        assert match[1] in types, "a sample follows its TYPE"
        sample = (match[1], match[2] or "")
        assert sample not in samples
        samples[sample] = float(match[3])
    for name, kind in types.items():
        assert name.endswith("_total") == (kind == "counter")
    return samples


def test_prometheus_text_parses_and_tells_the_same(filled: DaemonProcess) -> None:
    samples = parse_prometheus(ptocache("stats", "--prometheus", env=filled.env).out)
    found = ptocache("stats", "--json", env=filled.env).json()
    for cache in ("binary", "kernel"):
        for outcome in OUTCOMES:
            labels = f'cache="{cache}",outcome="{outcome}"'
            assert samples["ptocache_requests_total", labels] == found["caches"][cache][outcome]
    reason = 'cache="binary",of="failure",reason="compile_failed"'
    assert samples["ptocache_reasons_total", reason] == 1
    assert samples["ptocache_store_bytes", ""] == found["store"]["bytes"]
    assert samples["ptocache_up", ""] == 0


def test_prometheus_tells_of_the_daemon(daemon: DaemonProcess) -> None:
    samples = parse_prometheus(ptocache("stats", "--prometheus", env=daemon.env).out)
    assert samples["ptocache_up", ""] == 1
    assert samples["ptocache_daemon_uptime_seconds", ""] > 0
    assert any(name == "ptocache_daemon_info" for name, _ in samples)


def test_the_reference_page_lists_every_metric_name_and_reason(daemon: DaemonProcess) -> None:
    page = STATISTICS_PAGE.read_text(encoding="utf-8")
    samples = parse_prometheus(ptocache("stats", "--prometheus", env=daemon.env).out)
    names = {name for name, _ in samples} | COUNTED
    names |= {reason.label for reason in Reason if reason.label}
    assert not {name for name in names if f"`{name}`" not in page}


# --- show


def test_show_is_the_same_with_and_without_the_daemon(
    filled: DaemonProcess, make_daemon: Callable[..., DaemonProcess]
) -> None:
    served = make_daemon(filled.root).start()
    key = keys_of(served.env)[0]
    with_daemon = ptocache("show", key, "--json", env=served.env)
    served.stop()
    without = ptocache("show", key, "--json", env={**filled.env, "PTOCACHE_AUTOSTART": "1"})
    assert (with_daemon.code, without.code) == (0, 0)
    assert without.json() == with_daemon.json()
    assert ptocache("status", env=filled.env).code == 3


def test_show_takes_the_beginning_of_a_key_and_tells_what_was_compiled(
    daemon: DaemonProcess,
) -> None:
    with daemon.client() as client:
        made = client.compile(
            "host", {"k.c": '#warning "mind"\nint f(void) { return 0; }\n'},
            options=["-O2"], outputs=["object"], kernel="mine",
        )  # fmt: skip
    found = ptocache("show", made.key[:12].upper(), "--json", env=daemon.env).json()
    assert found["key"] == made.key
    (entry,) = found["entries"]
    assert entry["kernel"] == "mine"
    assert entry["action"]["options"] == ["-O2"]
    assert entry["outputs"][0]["digest"] == made.outputs["object"].digest
    assert "mind" in entry["stderr"]
    text = ptocache("show", made.key[:12], env=daemon.env).out
    for part in (made.key, "mine", "-O2", made.outputs["object"].digest, "mind", " -c k.c "):
        assert part in text


@pytest.mark.parametrize("key", ["0000000000", "xyz", "abc"])
def test_show_of_a_key_that_names_nothing_is_exit_code_2(key: str, filled: DaemonProcess) -> None:
    done = ptocache("show", key, env=filled.env)
    assert (done.code, done.out) == (2, "")
    assert key in done.err
    assert done.err.count("\n") == 1


# --- gc and invalidate


@pytest.fixture
def three(daemon: DaemonProcess) -> DaemonProcess:
    """A daemon with three entries, least recently used first: kernel0, kernel1, kernel2."""
    with daemon.client() as client:
        for number in (0, 1, 2):
            client.compile(
                "host", {"k.c": f"int f{number}(void) {{ return 0; }}\n"}, outputs=["object"],
                kernel=f"kernel{number}",
            )  # fmt: skip
    return daemon


def entries_of(daemon: DaemonProcess) -> int:
    found: int = ptocache("stats", "--json", env=daemon.env).json()["store"]["entries"]
    return found


def test_gc_evicts_down_to_a_size_and_a_dry_run_evicts_nothing(three: DaemonProcess) -> None:
    size = ptocache("stats", "--json", env=three.env).json()["store"]["bytes"]
    limit = str(size - 1)
    dry = ptocache("gc", "--max-size", limit, "--dry-run", "--json", env=three.env).json()
    assert dry["entries"] == 1
    assert entries_of(three) == 3
    done = ptocache("gc", "--max-size", limit, "--json", env=three.env).json()
    assert done["entries"] == 1
    assert done["remaining"] < size
    left = ptocache("invalidate", "--all", "--dry-run", "--json", env=three.env).json()["removed"]
    assert [item["kernel"] for item in left] == ["kernel1", "kernel2"]
    assert ptocache("stats", "--json", env=three.env).json()["store"]["evicted"] == 1


def test_gc_by_age_keeps_what_was_used_since(three: DaemonProcess) -> None:
    assert ptocache("gc", "--max-age", "1d", "--json", env=three.env).json()["entries"] == 0
    done = ptocache("gc", "--max-age", "0s", env=three.env)
    assert (done.code, entries_of(three)) == (0, 0)
    assert re.fullmatch(r"removed 3 entries \([\d.]+ KiB\); 0 B remain\n", done.out)


CONDITIONS: dict[tuple[str, ...], list[str]] = {
    ("--kernel", "kernel1"): ["kernel1"],
    ("--kernel", "nobody"): [],
    ("--toolchain", "host"): ["kernel0", "kernel1", "kernel2"],
    ("--toolchain", "host", "--kernel", "kernel2"): ["kernel2"],
    ("--arch", "none"): [],
    ("--older-than", "1d"): [],
    ("--all",): ["kernel0", "kernel1", "kernel2"],
}


def test_a_dry_run_of_invalidate_lists_what_fits_every_condition(three: DaemonProcess) -> None:
    for words, kernels in CONDITIONS.items():
        found = ptocache("invalidate", *words, "--dry-run", "--json", env=three.env).json()
        assert [item["kernel"] for item in found["removed"]] == kernels, words
        assert found["entries"] == len(kernels)
    assert entries_of(three) == 3


def test_invalidate_removes_what_its_dry_run_lists(three: DaemonProcess) -> None:
    words = ("invalidate", "--toolchain", "host", "--kernel", "kernel1")
    done = ptocache(*words, env=three.env)
    assert re.match(r"removed 1 entry \([\d.]+ KiB\)\n  [0-9a-f]{12}  host \w+ kernel1  ", done.out)
    assert entries_of(three) == 2
    assert ptocache(*words, "--json", env=three.env).json()["entries"] == 0


def test_invalidate_by_keys_and_their_beginnings(three: DaemonProcess) -> None:
    first, second, third = keys_of(three.env)
    done = ptocache("invalidate", first, second[:12].upper(), env=three.env)
    assert done.code == 0
    assert done.out.startswith("removed 2 entries (")
    assert keys_of(three.env) == [third]


def test_invalidate_with_something_that_is_no_key_is_exit_code_2(three: DaemonProcess) -> None:
    done = ptocache("invalidate", "saxpy", env=three.env)
    assert (done.code, entries_of(three)) == (2, 3)
    assert "hexadecimal" in done.err


@pytest.mark.parametrize("words", [("gc", "--max-age", "0s"), ("invalidate", "--all")])
def test_a_change_starts_a_daemon_if_none_serves_the_store(
    words: tuple[str, ...], three: DaemonProcess
) -> None:
    three.stop()
    assert ptocache(*words, env=three.env).code == 3, "auto-start is off in this environment"
    env = {**three.env, "PTOCACHE_AUTOSTART": "1"}
    try:
        done = ptocache(*words, "--json", env=env)
        assert (done.code, done.json()["entries"]) == (0, 3)
        assert ptocache("status", env=env).code == 0
    finally:
        ptocache("stop", env=env)


@pytest.mark.parametrize("words", [("gc", "--max-age", "0s"), ("invalidate", "--all")])
def test_a_change_of_a_store_that_does_not_exist_starts_nothing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = ptocache(*words, "--json", "--dir", str(tmp_path / "none"))
    assert (done.code, done.json()["entries"]) == (0, 0)
    assert not (tmp_path / "none").exists()
