"""``ptocache explain``: every request that was no hit can be explained, with a daemon and without."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ptocache.outcome import Outcome
from tests.harness import ClientProcess, DaemonProcess, Gate, LoggingCompiler, RawPeer, wait_for
from tests.simcann.tree import SimCann
from tests.system.cli_runner import Done, ptocache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ptocache.client import Client
    from ptocache.result import Result

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = "int f(void) { return 0; }\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("explained") / "store").start()
    yield daemon
    daemon.clean_up()


def build(client: Client, kernel: str, source: str = SOURCE, **request: Any) -> Result:
    request.setdefault("outputs", ["object"])
    return client.compile("host", {"k.c": source}, kernel=kernel, check=False, **request)


def explain(daemon: DaemonProcess, *words: str) -> Done:
    return ptocache("explain", *words, env=daemon.env)


def told(daemon: DaemonProcess, **asked: Any) -> dict[str, Any]:
    """What the command would print as JSON, without the cost of its start."""
    with daemon.client() as client:
        found: dict[str, Any] = client.call("explain", **asked)
        return found


def test_json_keeps_its_contract(served: DaemonProcess) -> None:
    with served.client() as client:
        first = build(client, "contract")
        second = build(client, "contract", options=["-O1"])
    found = explain(served, "--last", "--json").json()
    assert found == told(served)
    assert set(found) == {"schema", "source", "request", "why", "nearest", "changes"}
    assert (found["schema"], found["source"]) == (1, "memory")
    assert set(found["request"]) == {
        "at_s", "key", "cache", "toolchain", "kernel", "arch", "outcome", "reason", "detail",
    }  # fmt: skip
    assert found["request"]["key"] == second.key
    assert found["request"]["outcome"] == "miss"
    assert set(found["nearest"]) == {"key", "entry", "kernel", "created_s"}
    assert found["nearest"]["key"] == first.key
    assert found["changes"] == [
        {"field": "options", "old": "", "new": "-O1", "words": "options: +-O1"}
    ]
    assert found["why"] == second.why == "options: +-O1"


def test_a_hit_leaves_the_miss_before_it_the_last_to_explain(served: DaemonProcess) -> None:
    with served.client() as client:
        missed = build(client, "hits", SOURCE + "// hits\n")
        assert build(client, "hits", SOURCE + "// hits\n").outcome is Outcome.MEMORY_HIT
    assert told(served)["request"]["key"] == missed.key


def test_text_says_what_differs_from_what(served: DaemonProcess) -> None:
    with served.client() as client:
        first = build(client, "words", SOURCE + "// words\n", options=["-O1"])
        second = build(client, "words", SOURCE + "// words\n", options=["-O2"], salt="s")
    lines = explain(served, second.key[:12]).out.splitlines()
    assert "outcome     miss" in lines
    assert "why         options: +-O2 -O1; salt: the request's '' → s" in lines
    assert any(line.startswith(f"nearest     {first.key[:12]} (made 20") for line in lines)
    assert "differs in  options: +-O2 -O1" in lines
    assert "            salt: the request's '' → s" in lines


def test_a_kernel_is_told_by_its_latest_request(served: DaemonProcess) -> None:
    with served.client() as client:
        for source in ("int f(void) { return 1; }\n", "int f(void) { return 2; }\n"):
            build(client, "named", source)
        build(client, "another")
    found = told(served, kernel="named")
    assert found["why"] == "source k.c changed"
    assert found["request"]["kernel"] == "named"
    assert "why         source k.c changed\n" in explain(served, "--kernel", "named").out


@pytest.mark.parametrize(
    ("source", "request_", "outcome", "reason", "said"),
    [
        (SOURCE, {"mode": "bypass"}, "bypass", "asked", "asked for"),
        ("const char *now = __TIME__;\n", {}, "bypass", "time_macro", "__TIME__ in k.c"),
        ("int f( {\n", {}, "failure", "compile_failed", ""),
        (SOURCE, {"outputs": ["hex"]}, "failure", "bad_request", "hex"),
        (SOURCE, {"mode": "refresh"}, "miss", "", "asked to compile anew"),
    ],
)
def test_what_made_no_entry_is_remembered_with_its_reason(
    served: DaemonProcess,
    source: str,
    request_: dict[str, Any],
    outcome: str,
    reason: str,
    said: str,
) -> None:
    with served.client() as client:
        result = build(client, "unstored", source, **request_)
    found = told(served, kernel="unstored")
    assert (found["request"]["outcome"], found["request"]["reason"]) == (outcome, reason)
    assert found["request"]["key"] == result.key
    assert said in found["why"]
    assert found["why"]


def test_an_unknown_toolchain_and_a_request_that_cannot_be_read_are_remembered(
    served: DaemonProcess,
) -> None:
    with served.client() as client:
        client.compile("none", {"k.c": SOURCE}, kernel="unknown", check=False)
    assert "there is no toolchain 'none'" in told(served)["why"]
    with RawPeer(served.socket) as peer:
        peer.say({"type": "compile", "id": 7, "request": b"\x80"})
        assert peer.hear()["id"] == 7
    found = told(served)
    assert (found["request"]["reason"], found["request"]["toolchain"]) == ("bad_request", "")


def test_a_header_that_is_now_found_first_is_told(served: DaemonProcess, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second" / "h.h").write_text("#define V 1\n")
    asked: dict[str, Any] = {
        "source": "#include <h.h>\nint f(void) { return V; }\n",
        "options": [f"-I{tmp_path / 'first'}", f"-I{tmp_path / 'second'}"],
    }
    with served.client() as client:
        build(client, "found", **asked)
        (tmp_path / "first" / "h.h").write_text("#define V 2\n")
        assert build(client, "found", **asked).outcome is Outcome.MISS
    done = explain(served, "--last")
    place = f"h.h has appeared, and is found first  {tmp_path / 'first' / 'h.h'}"
    assert place in done.out


def test_an_entry_that_was_invalidated_is_said_to_have_gone(served: DaemonProcess) -> None:
    with served.client() as client:
        gone = build(client, "gone")
        client.call("invalidate", keys=[gone.key])
        again = build(client, "gone")
    assert again.outcome is Outcome.MISS
    assert again.why.startswith("its entry was evicted, invalidated or damaged")


def test_the_toolchain_is_told_by_the_file_that_changed(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()
    with daemon.client() as client:
        build(client, "tools", env=logging_compiler.env)
        logging_compiler.write(before="# not the same")
        build(client, "tools", env=logging_compiler.env)
    found = told(daemon)
    assert found["why"] == "logging-cc changed (same version text)"
    assert found["changes"][0]["field"] == "identity.c"


def test_what_counts_of_a_cann_installation_is_told_in_words(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    cann = SimCann.make(tmp_path / "cann", version="8.5.0", ptoas="bin")
    source_dir = tmp_path / "src"
    source_dir.mkdir()
    (source_dir / "gemm.h").write_text("#define TILE 16\n")
    daemon = make_daemon().start()

    with daemon.client() as client:

        def compiled(arch: str = "dav-2201") -> Result:
            return client.compile(
                "ascendc", {"gemm.asc": '#include "gemm.h"\nint gemm;\n'}, arch=arch,
                env=cann.env(), source_dir=source_dir, kernel="gemm",
            )  # fmt: skip

        def why(arch: str = "dav-2201") -> str:
            result = compiled(arch)
            assert result.outcome is Outcome.MISS
            return result.why

        assert why() == "no entry of this kernel yet"
        assert why(arch="dav-3510") == "arch dav-2201 → dav-3510"
        (source_dir / "gemm.h").write_text("#define TILE 32\n")
        assert why() == "header gemm.h changed"
        cann.set_version("9.0.0")
        assert why() == "CANN 8.5.0 → 9.0.0 (version.info)"
        cann.replace_tool("bisheng", "B")
        assert why() == "bisheng changed (same version text)"
        said: list[str] = []
        cann.replace_library("runtime", "other")

        def noticed() -> bool:
            result = compiled()
            if result.outcome is Outcome.MISS:
                said.append(result.why)
            return bool(said)

        # No principal file: it hits until the event has come.
        wait_for(noticed, "a changed library to be noticed")
        assert said == [f"files of the tree {cann.root} changed"]

        def flags_why(flags: str) -> str:
            source = {"gemm.pto": "module {}\n"}
            env = cann.env(PTO_FLAGS=flags)
            return client.compile("pto", source, env=env, kernel="gemm").why

        flags_why("--pto-level=level2")
        told = flags_why("--pto-level=level2 --enable-insert-sync")
        assert told == "PTO_FLAGS: +--enable-insert-sync"


def test_who_waited_is_told_why_the_compile_was_needed_and_who_went_is_remembered(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "cc", before=gate.script)
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    request: dict[str, Any] = {"outputs": ["object"], "kernel": "gated"}

    def waiting() -> int:
        with daemon.client() as client:
            number: int = client.call("status")["waiting"]
            return number

    with ExitStack() as stack:
        clients = [ClientProcess(SOURCE, daemon.env, compiler.env, **request) for _ in range(3)]
        for one in clients:
            stack.callback(one.kill)
            one.ready().go()
            # The first leads.
            wait_for(lambda: waiting() >= 1, "somebody to wait for a compile")
        wait_for(lambda: waiting() == 3, "three to wait for one compile")
        clients.pop().kill()
        wait_for(lambda: waiting() == 2, "one to have gone")
        found = told(daemon)
        assert (found["request"]["reason"], found["request"]["kernel"]) == ("cancelled", "gated")
        gate.open()
        results = [one.result() for one in clients]
    assert {result["outcome"] for result in results} == {"miss", "joined"}
    found = told(daemon)
    assert found["why"] == "no entry of this kernel yet"
    with daemon.client() as client:
        outcomes = client.stats()["caches"]["binary"]
    assert (outcomes["joined"], outcomes["miss"]) == (1, 1)


def test_after_a_restart_the_store_explains_by_what_was_there_before(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        built = [build(client, "kept", options=[f"-O{level}"]) for level in (1, 2, 3)]
        build(client, "kept", mode="bypass")
        other = build(client, "other", SOURCE + "// other\n", options=["-O1"])
    daemon.restart()
    second = told(daemon, key=built[1].key)
    assert second["source"] == "store"
    # Not by the third, which came later.
    assert (second["why"], second["nearest"]["key"]) == ("options: +-O2 -O1", built[0].key)
    first = told(daemon, key=built[0].key)
    assert (first["why"], first["nearest"]) == ("no earlier entry of this kernel is there", None)
    assert told(daemon, kernel="kept")["request"]["key"] == built[2].key
    last = told(daemon)
    assert last["request"]["key"] == other.key
    assert last["why"].startswith("no entry of this kernel yet; from the nearest, kept: ")
    with daemon.client() as client:
        shown = client.describe(other.key)
    assert told(daemon, key=shown["entries"][0]["entry"])["request"]["key"] == other.key

    assert daemon.stop() == 0
    env = {**daemon.env, "PTOCACHE_AUTOSTART": "1"}
    at_rest = ptocache("explain", built[1].key[:12], "--json", env=env).json()
    assert at_rest == second
    assert ptocache("explain", "--last", env=env).out.startswith("request     host ")
    assert ptocache("status", env=env).code == 3, "explain starts no daemon"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one of: a key, --last, --kernel NAME"),
        (("abcd", "--last"), "give one of: a key, --last, --kernel NAME"),
        (("--last", "--kernel", "k"), "give one of: a key, --last, --kernel NAME"),
        (("no-key",), "at least 4 hexadecimal digits"),
        (("abc",), "at least 4 hexadecimal digits"),
        (("0" * 64,), f"no entry, and no request remembered, has the key {'0' * 64}"),
        (("--kernel", "nobody's"), "no entry, and no request remembered, is of nobody's"),
    ],
)
def test_what_cannot_be_explained_is_wrong_use(
    served: DaemonProcess, words: tuple[str, ...], said: str
) -> None:
    done = explain(served, *words)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_an_empty_store_has_nothing_to_explain(tmp_path: Path) -> None:
    env = {"PTOCACHE_DIR": str(tmp_path / "none"), "PTOCACHE_AUTOSTART": "0"}
    done = ptocache("explain", "--last", env=env)
    assert done.code == 2
    assert "there is no store at" in done.err
    assert not (tmp_path / "none").exists()
