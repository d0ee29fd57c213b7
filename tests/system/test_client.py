"""The client: what it does when there is no daemon, when one goes, when it forks, and with its results."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import connection as connection_module
from ptocache import wire
from ptocache.client import Client, connect
from ptocache.config import load
from ptocache.connection import Connection
from ptocache.errors import (
    BadRequestError,
    CompileFailedError,
    ConfigError,
    DaemonUnavailableError,
    OutputRejectedError,
    PtocacheWarning,
    UnknownToolchainError,
)
from ptocache.outcome import Outcome, Reason
from ptocache.wire import INLINE_BYTES
from tests.harness import (
    DEADLINE_S,
    DaemonProcess,
    Gate,
    LoggingCompiler,
    compile_directly,
    short_folder,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = b"int answer(void) { return 42; }\n"
ENV = {"PATH": os.environ.get("PATH", "")}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for the tests that do nothing to it."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("client") / "store")
    daemon.env["HOME"] = str(daemon.place)
    daemon.start()
    yield daemon
    daemon.clean_up()


def object_of(client: Client, source: bytes = SOURCE, **more: Any) -> Any:
    return client.compile("host", {"k.c": source}, env=ENV, outputs=["object"], **more)


@pytest.fixture
def direct(tmp_path: Path) -> bytes:
    """The object of SOURCE without any cache."""
    return compile_directly(SOURCE, "k.c", [], tmp_path / "direct")


def test_words_that_can_be_read_only_once_count_as_a_list_of_them(served: DaemonProcess) -> None:
    source = b"#ifdef N\nint one = N;\n#else\nint other;\n#endif\n"
    with served.client() as client:
        given = client.compile(
            "host", {"k.c": source}, env=ENV, outputs=["object"], options=["-DN=7"]
        )
        for _ in range(2):
            found = client.compile(
                "host", {"k.c": source}, env=ENV, outputs=iter(["object"]),  # type: ignore[arg-type]
                options=(word for word in ["-DN=7"]), symbols=iter(["one"]),  # type: ignore[arg-type]
            )  # fmt: skip
            assert list(found.outputs) == ["object"]
            assert found.outputs["object"].digest == given.outputs["object"].digest
        with pytest.raises(OutputRejectedError):
            object_of(client, source, options=["-DN=7"], symbols=iter(["two"]))


# --- no daemon


@pytest.fixture
def nobody(make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon that was never started."""
    return make_daemon()


def test_compiles_by_itself_with_one_warning_when_no_daemon_is_to_be_had(
    nobody: DaemonProcess, direct: bytes
) -> None:
    with (
        nobody.client(client_require=False) as client,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        results = [object_of(client) for _ in range(3)]
    assert [item.category for item in caught] == [PtocacheWarning]
    assert "no daemon" in str(caught[0].message)
    assert Path(caught[0].filename).name == Path(__file__).name, "it names the caller's own line"
    for item in results:
        assert item.outcome is Outcome.BYPASS
        assert item.reason is Reason.NO_DAEMON
        assert bytes(item.outputs["object"].buffer) == direct
    assert not nobody.root.exists(), "a client that may start nothing makes no store"


def test_compiles_many_by_itself_with_one_warning(nobody: DaemonProcess) -> None:
    with nobody.client(client_require=False) as client:
        jobs = [
            client.job("host", {"k.c": b"int n%d;\n" % n}, env=ENV, outputs=["object"])
            for n in range(4)
        ]
        jobs.append(client.job("host", {"k.c": b"int broken\n"}, env=ENV))
        with pytest.warns(PtocacheWarning) as caught:
            results = dict(client.compile_many(jobs))
    assert len(caught) == 1
    assert [results[n].reason for n in range(4)] == [Reason.NO_DAEMON] * 4
    assert results[4].reason is Reason.COMPILE_FAILED


def test_failure_without_a_daemon_is_the_same_error_as_with_one(
    nobody: DaemonProcess, served: DaemonProcess
) -> None:
    found = []
    for daemon in (nobody, served):
        with daemon.client(client_require=False) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore", PtocacheWarning)
            with pytest.raises(CompileFailedError) as failed:
                object_of(client, b"int broken(void) { return nothing; }\n")
            result = failed.value.result  # type: ignore[attr-defined]
            found.append((str(failed.value), result.log, result.exit_code))
    assert found[0] == found[1]
    assert b"nothing" in found[0][1].stderr


def test_large_output_without_a_daemon_is_whole(nobody: DaemonProcess, tmp_path: Path) -> None:
    source = b"const char big[300000] = {1};\n"
    with nobody.client(client_require=False) as client, pytest.warns(PtocacheWarning):
        found = object_of(client, source)
    wanted = compile_directly(source, "k.c", [], tmp_path / "big")
    assert bytes(found.outputs["object"].buffer) == wanted


def test_required_daemon_that_is_not_there_is_an_error(nobody: DaemonProcess) -> None:
    env = {**nobody.env, "PTOCACHE_REQUIRE": "1"}
    with connect(env=env) as client, pytest.raises(DaemonUnavailableError, match="no daemon"):
        object_of(client)


def test_something_in_the_sockets_way_is_a_warning_and_a_right_answer(
    nobody: DaemonProcess, direct: bytes
) -> None:
    nobody.socket.write_bytes(b"mine")
    env = {**nobody.env, "PTOCACHE_AUTOSTART": "1"}
    with connect(env=env) as client, pytest.warns(PtocacheWarning, match="not a socket"):
        found = object_of(client)
    assert bytes(found.outputs["object"].buffer) == direct
    assert nobody.socket.read_bytes() == b"mine"


# --- a daemon that goes


def test_daemon_killed_between_two_requests_costs_a_warning_and_no_answer(
    daemon: DaemonProcess, direct: bytes
) -> None:
    with daemon.client(client_require=False) as client:
        assert object_of(client).outcome is Outcome.MISS
        daemon.kill()
        with pytest.warns(PtocacheWarning):
            found = object_of(client)
        assert bytes(found.outputs["object"].buffer) == direct
        daemon.start()
        assert object_of(client).outcome is Outcome.DISK_HIT


def test_daemon_killed_in_mid_request_costs_a_warning_and_no_answer(
    make_daemon: MakeDaemon,
    logging_compiler: LoggingCompiler,
    tmp_path: Path,
    direct: bytes,
) -> None:
    gate = Gate(tmp_path / "gate")
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()

    def kill_and_open() -> None:
        wait_for(gate.arrivals, "the compile to begin")
        daemon.kill()
        gate.open()

    killer = threading.Thread(target=kill_and_open)
    killer.start()
    with daemon.client(client_require=False) as client, pytest.warns(PtocacheWarning):
        found = client.compile(
            "host", {"k.c": SOURCE}, env=logging_compiler.env, outputs=["object"]
        )
    killer.join()
    assert found.reason is Reason.NO_DAEMON
    assert bytes(found.outputs["object"].buffer) == direct


def test_daemon_killed_in_the_middle_of_many_requests_costs_no_answer(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.open()
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=2).start()
    sources = [b"int n%d;\n" % n for n in range(12)]
    results = {}
    with (
        daemon.client(client_require=False) as client,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        jobs = [
            client.job("host", {"k.c": text}, env=logging_compiler.env, outputs=["object"])
            for text in sources
        ]
        for number, result in client.compile_many(jobs):
            results[number] = result
            if len(results) == 4:
                daemon.kill()
    assert [item.category for item in caught] == [PtocacheWarning]
    assert len(results) == 12
    assert {Reason.NONE, Reason.NO_DAEMON} == {item.reason for item in results.values()}
    for number, text in enumerate(sources):
        wanted = compile_directly(text, "k.c", [], tmp_path / "direct")
        assert bytes(results[number].outputs["object"].buffer) == wanted


def test_daemon_told_to_stop_at_once_costs_a_warning_and_no_answer(
    make_daemon: MakeDaemon, logging_compiler: LoggingCompiler, tmp_path: Path, direct: bytes
) -> None:
    gate = Gate(tmp_path / "gate")
    logging_compiler.write(before=gate.script)
    daemon = make_daemon(trust_scripts=logging_compiler.trust).start()

    def stop_and_open() -> None:
        wait_for(gate.arrivals, "the compile to begin")
        with daemon.client() as other:
            other.call("stop", now=True)
        wait_for(lambda: not daemon.socket.exists(), "it to stop")
        gate.open()

    stopper = threading.Thread(target=stop_and_open)
    stopper.start()
    with daemon.client(client_require=False) as client, pytest.warns(PtocacheWarning):
        found = client.compile(
            "host", {"k.c": SOURCE}, env=logging_compiler.env, outputs=["object"]
        )
    stopper.join()
    assert bytes(found.outputs["object"].buffer) == direct


def test_stopped_daemon_is_given_up_and_the_answer_is_right(
    daemon: DaemonProcess, direct: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fraction of the time that a user's client gives it: it does not answer anyway.
    monkeypatch.setattr(connection_module, "LIVENESS_S", 0.5)
    with daemon.client(client_require=False) as client:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            with pytest.warns(PtocacheWarning):
                found = object_of(client)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    assert bytes(found.outputs["object"].buffer) == direct
    with daemon.client() as client:
        assert client.call("ping") == {}, "it lives on"


# --- processes and threads

FORK = """
import os, sys
from ptocache.client import connect
client = connect()
ask = lambda text: client.compile("host", {"k.c": text}, outputs=["object"])
first = ask(b"int answer;\\n")
before = sorted(os.listdir("/proc/self/fd"))
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(reader)
    again = ask(b"int answer;\\n")
    other = ask(b"int of_the_child;\\n")
    same = bytes(again.outputs["object"].buffer) == bytes(first.outputs["object"].buffer)
    client.close()
    os.write(writer, f"{again.outcome.label} {other.outcome.label} {same}".encode())
    os._exit(0)
os.close(writer)
meanwhile = [ask(b"int answer;\\n").outcome.label for _ in range(20)]
said = os.read(reader, 1000).decode()
os.close(reader)
assert os.waitpid(child, 0)[1] == 0
after = ask(b"int of_the_child;\\n").outcome.label
assert sorted(os.listdir("/proc/self/fd")) == before
print(first.outcome.label, set(meanwhile), after, "|", said)
"""


def test_parent_and_child_both_go_on_after_a_fork(daemon: DaemonProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ptocache.client.PtocacheWarning", "-c", FORK],
        env={**daemon.env, "PTOCACHE_REQUIRE": "1"},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "miss {'memory_hit'} memory_hit | memory_hit miss True"


def test_one_client_serves_many_threads(served: DaemonProcess) -> None:
    sources = [b"int thread_%d(void) { return %d; }\n" % (n, n) for n in range(10)]
    errors: list[BaseException] = []
    outcomes: Counter[Outcome] = Counter()
    seen: dict[bytes, set[str]] = {text: set() for text in sources}
    lock = threading.Lock()

    def work(start: int) -> None:
        try:
            for number in range(50):
                text = sources[(start + number) % len(sources)]
                found = object_of(client, text)
                with lock:
                    outcomes[found.outcome] += 1
                    seen[text].add(found.outputs["object"].digest)
        except BaseException as error:
            errors.append(error)

    with served.client() as client:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert errors == []
    assert sum(outcomes.values()) == 400
    assert outcomes[Outcome.MISS] == len(sources)
    # A disk hit: published by another between a look into memory and a look at the disk.
    allowed = {Outcome.MISS, Outcome.JOINED, Outcome.MEMORY_HIT, Outcome.DISK_HIT}
    assert set(outcomes) <= allowed
    assert all(len(digests) == 1 for digests in seen.values())
    assert len(set.union(*seen.values())) == len(sources)


def test_closed_client_can_be_used_again(served: DaemonProcess) -> None:
    client = served.client()
    object_of(client)
    client.close()
    client.close()
    assert object_of(client).outcome is Outcome.MEMORY_HIT
    client.close()


# --- many at once


def test_many_jobs_of_every_kind_each_get_their_own_answer(served: DaemonProcess) -> None:
    def job(number: int) -> Any:
        kind = number % 3
        text = (
            b"int hit_%d;\n" % (number % 5),
            b"int miss_%d;\n" % (number % 40),
            b"int broken_%d\n" % (number % 4),
        )[kind]
        return client.job("host", {"k.c": text}, env=ENV, outputs=["object"])

    with served.client() as client:
        for number in range(0, 15, 3):
            list(client.compile_many([job(number)]))
        before = served.stats()
        jobs = [job(number) for number in range(300)]
        results = dict(client.compile_many(jobs))
        after = served.stats()
    assert sorted(results) == list(range(300))
    for number, found in results.items():
        if number % 3 == 2:
            assert found.outcome is Outcome.FAILURE
            assert (
                b"broken_%d" % (number % 4) in found.log.stderr or b"expected" in found.log.stderr
            )
        elif number % 3 == 0:
            assert found.outcome is Outcome.MEMORY_HIT
            assert b"hit_%d" % (number % 5) in bytes(found.outputs["object"].buffer)
        else:
            assert b"miss_%d" % (number % 40) in bytes(found.outputs["object"].buffer)
    assert after["requests"] - before["requests"] == 300
    assert after["memory_hit"] - before["memory_hit"] >= 100
    assert after["failure"] - before["failure"] == 100


def test_no_jobs_need_no_daemon(nobody: DaemonProcess) -> None:
    with nobody.client() as client:
        assert list(client.compile_many([])) == []


def test_more_answers_than_the_daemon_keeps_unsent_arrive(served: DaemonProcess) -> None:
    """A client that only sent at first would wait for a daemon that waits for it to read."""
    source = b"const char big[100000] = {1};\n"
    with served.client() as client:
        object_of(client, source)
        jobs = [
            client.job("host", {"k.c": source}, env=ENV, outputs=["object"]) for _ in range(1500)
        ]
        # Inputs that must be sent while answers wait to be read.
        padding = b"/*" + b"x" * 2_000_000 + b"*/ int n%d;\n"
        jobs[200:200] = [
            client.job("host", {"k.c": padding % n}, env=ENV, outputs=["object"]) for n in range(4)
        ]
        outcomes = Counter(result.outcome for _, result in client.compile_many(jobs))
    assert outcomes == {Outcome.MEMORY_HIT: 1500, Outcome.MISS: 4}


def test_results_that_nobody_takes_leave_the_client_usable(served: DaemonProcess) -> None:
    with served.client() as client:
        jobs = [
            client.job("host", {"k.c": b"int left_%d;\n" % n}, env=ENV, outputs=["object"])
            for n in range(5)
        ]
        for _ in client.compile_many(jobs):
            break
        assert object_of(client).ok


# --- results


def sized(size: int, tmp_path: Path) -> tuple[bytes, bytes]:
    """A source whose object has exactly ``size`` bytes, and that object."""
    template = b"const char big[%d] = {1};\n"
    bulk = size - 2000
    while True:
        made = compile_directly(template % bulk, "k.c", ["-O0"], tmp_path / "sized")
        if len(made) == size:
            return template % bulk, made
        if 0 < size - len(made) < 8 and bulk % 8 == 0:
            # Sections are aligned: the rest is made up by the length of a name.
            break
        bulk += (size - len(made)) // 8 * 8 or 8
    for extra in range(1, 64):
        source = template % bulk + b"int %s;\n" % (b"n" * extra)
        made = compile_directly(source, "k.c", ["-O0"], tmp_path / "sized")
        if len(made) == size:
            return source, made
    raise AssertionError(f"no object of {size} bytes can be made")


@pytest.mark.parametrize(
    "size", [INLINE_BYTES - 8, INLINE_BYTES, INLINE_BYTES + 8, (8 << 20) + 8], ids=str
)
def test_output_of_any_size_is_equal_on_miss_and_hits(
    daemon: DaemonProcess, tmp_path: Path, size: int
) -> None:
    source, wanted = sized(size, tmp_path)
    results = []
    for round_number in range(3):
        if round_number == 2:
            daemon.restart()
        with daemon.client() as client:
            results.append(object_of(client, source, options=["-O0"]))
    daemon.stop()
    outcomes = [item.outcome for item in results]
    assert outcomes == [Outcome.MISS, Outcome.MEMORY_HIT, Outcome.DISK_HIT]
    for item in results:
        output = item.outputs["object"]
        # Client and daemon are gone, and the store with them.
        assert output.size == size
        assert (output.file is not None) == (size > INLINE_BYTES)
        assert output.buffer.readonly
        assert output.buffer == wanted


def test_buffer_outlives_the_entry_the_daemon_and_the_store(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    import shutil

    source = b"const char big[300000] = {1};\n"
    with daemon.client() as client:
        found = object_of(client, source)
        assert client.call("invalidate", all=True)["entries"] == 1
    daemon.kill()
    shutil.rmtree(daemon.root)
    wanted = compile_directly(source, "k.c", [], tmp_path / "direct")
    assert found.outputs["object"].buffer == wanted


@pytest.mark.parametrize("length", [1, 300000])
def test_written_output_has_the_tools_mode_and_takes_the_place_of_a_file(
    served: DaemonProcess, tmp_path: Path, length: int
) -> None:
    with served.client() as client:
        found = client.compile("host", {"k.c": b"const char big[%d] = {1};\n" % length}, env=ENV)
    output = found.outputs["shared"]
    target = tmp_path / "k.so"
    target.write_bytes(b"old")
    with open(target, "rb") as held:
        output.write(target)
        assert held.read() == b"old", "who reads the old file keeps it"
    assert target.read_bytes() == output.buffer
    assert stat.S_IMODE(target.stat().st_mode) == output.mode == 0o755
    assert os.listdir(tmp_path) == ["k.so"]


def test_output_that_cannot_be_written_leaves_nothing(
    served: DaemonProcess, tmp_path: Path
) -> None:
    with served.client() as client:
        output = object_of(client).outputs["object"]
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        output.write(tmp_path / "taken")
    assert os.listdir(tmp_path) == ["taken"]
    with pytest.raises(FileNotFoundError):
        output.write(tmp_path / "nowhere" / "k.o")


def test_result_says_what_it_is(served: DaemonProcess) -> None:
    text = b"int saying(int unused) { int x; return x; }\n"
    with served.client() as client:
        first = object_of(client, text, options=["-Wall"], kernel="saying")
        again = object_of(client, text, options=["-Wall"], kernel="saying")
        assert client.get(first.key) is not None
    assert first.ok
    assert first.error is None
    assert first.check() is first
    assert first.toolchain == "host"
    assert len(first.key) == len(first.identity) == 64
    assert again.key == first.key
    assert again.compile_ms == first.compile_ms
    assert again.log == first.log
    assert b"uninitialized" in first.log.stderr
    assert again.total_ms > 0


# --- bad requests


def bad(name: str, expected: str, error: type[Exception] = BadRequestError, **fields: Any) -> Any:
    return pytest.param(fields, expected, error, id=name)


BAD = [
    bad("no inputs", "without inputs", inputs={}),
    bad("input above", "not usable", inputs={"../k.c": SOURCE}),
    bad("absolute input", "not usable", inputs={"/k.c": SOURCE}),
    bad("input like an option", "not usable", inputs={"-k.c": SOURCE}),
    bad("empty name", "not usable", inputs={"": SOURCE}),
    bad("name with a NUL", "not usable", inputs={"k\0.c": SOURCE}),
    bad("no source", "no input is a C or C\\+\\+ source", inputs={"k.h": SOURCE}),
    bad("unknown output", "makes no output 'binary'", outputs=["binary"]),
    bad("object of two", "exactly one source", inputs={"a.c": b"", "b.c": b""}, outputs=["object"]),
    bad("source as option", "stands among the options", options=["other.c"]),
    bad("output option", "has no place", options=["-o", "x"]),
    bad("preprocess only", "has no place", options=["-E"]),
    bad("dangling operand", "has no operand", options=["-I"]),
    bad("other machine", "not ascend910b", arch="ascend910b"),
    bad("wrong epoch", "not a number", env={**ENV, "SOURCE_DATE_EPOCH": "soon"}),
    bad("input in an input", "lie at", inputs={"a.c": SOURCE, "a.c/b.c": SOURCE}),
    bad("unknown toolchain", "no toolchain 'cuda'", UnknownToolchainError, toolchain="cuda"),
]


@pytest.mark.parametrize(("fields", "expected", "error"), BAD)
def test_bad_request_is_told_and_counted(
    served: DaemonProcess, fields: dict[str, Any], expected: str, error: type[Exception]
) -> None:
    asked: dict[str, Any] = {"toolchain": "host", "inputs": {"k.c": SOURCE}, "env": ENV, **fields}
    toolchain, inputs = asked.pop("toolchain"), asked.pop("inputs")
    before = served.stats()
    with served.client() as client, pytest.raises(error, match=expected):
        client.compile(toolchain, inputs, **asked)
    after = served.stats()
    reason = "tool_not_found" if error is UnknownToolchainError else "bad_request"
    told = [stats["failure_reasons"].get(reason, 0) for stats in (before, after)]
    assert told[1] - told[0] == 1
    assert after["requests"] - before["requests"] == 1


@pytest.mark.parametrize(("fields", "expected", "error"), BAD)
def test_bad_request_is_told_alike_without_a_daemon(
    nobody: DaemonProcess, fields: dict[str, Any], expected: str, error: type[Exception]
) -> None:
    asked: dict[str, Any] = {"toolchain": "host", "inputs": {"k.c": SOURCE}, "env": ENV, **fields}
    toolchain, inputs = asked.pop("toolchain"), asked.pop("inputs")
    with (
        nobody.client(client_require=False) as client,
        warnings.catch_warnings(),
        pytest.raises(error, match=expected),
    ):
        warnings.simplefilter("ignore", PtocacheWarning)
        client.compile(toolchain, inputs, **asked)


def test_request_that_cannot_even_be_asked_is_told_at_once(
    nobody: DaemonProcess, tmp_path: Path
) -> None:
    with nobody.client() as client:
        with pytest.raises(BadRequestError, match="there is no mode 'always'"):
            client.job("host", {"k.c": SOURCE}, mode="always")
        with pytest.raises(BadRequestError, match="options is one text"):
            client.job("host", {"k.c": SOURCE}, options="-O2")
        with pytest.raises(BadRequestError, match="cannot be read"):
            client.job("host", {"k.c": tmp_path / "nothing.c"})


def test_input_beyond_the_protocols_limit_is_told_and_the_client_lives_on(
    served: DaemonProcess,
) -> None:
    with served.client() as client:
        with pytest.raises(BadRequestError, match="longer than the limit"):
            object_of(client, b" " * ((64 << 20) + 1))
        assert object_of(client).ok


def test_failure_is_raised_with_its_result_unless_told_not_to(served: DaemonProcess) -> None:
    with served.client() as client:
        found = object_of(client, symbols=["missing"], check=False)
        assert isinstance(found.error, OutputRejectedError)
        assert not found.ok
        with pytest.raises(OutputRejectedError, match="missing") as failed:
            found.check()
    assert failed.value.result is found  # type: ignore[attr-defined]


# --- settings


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PTOCACHE_MAX_SIZE", "5 GiB", "store.max_size", 5 << 30),
        ("PTOCACHE_LOW_WATER", "0.5", "store.low_water", 0.5),
        ("PTOCACHE_MAX_AGE", "7d", "store.max_age", 7 * 86400.0),
        ("PTOCACHE_FSYNC", "no", "store.fsync", False),
        ("PTOCACHE_JOBS", "3", "compile.jobs", 3),
        ("PTOCACHE_STEP_TIMEOUT", "90s", "compile.step_timeout", 90.0),
        ("PTOCACHE_NEGATIVE_TTL", "1m", "compile.negative_ttl", 60.0),
        ("PTOCACHE_LOG_LIMIT", "64k", "compile.log_limit", 64 << 10),
        ("PTOCACHE_IDLE_TIMEOUT", "2h", "daemon.idle_timeout", 7200.0),
        ("PTOCACHE_MEMORY", "1M", "daemon.memory", 1 << 20),
        ("PTOCACHE_RELOCATABLE", "true", "identity.relocatable", True),
        ("PTOCACHE_TRUST_SCRIPTS", "/a:/b/../c", "identity.trust_scripts", ("/a", "/c")),
        ("PTOCACHE_SALT", "x", "request.salt", "x"),
        ("PTOCACHE_MODE", "refresh", "request.mode", "refresh"),
        ("PTOCACHE_REQUIRE", "1", "client.require", True),
        ("PTOCACHE_AUTOSTART", "off", "client.autostart", False),
    ],
)
def test_variable_sets_its_setting_and_says_so(
    variable: str, text: str, name: str, value: object
) -> None:
    settings = load({variable: text})
    assert settings[name] == value
    assert settings.source(name) == variable


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PTOCACHE_MAX_SIZE", "plenty"),
        ("PTOCACHE_JOBS", "0"),
        ("PTOCACHE_MODE", "sometimes"),
        ("PTOCACHE_REQUIRE", "perhaps"),
        ("PTOCACHE_DIR", "relative/place"),
    ],
)
def test_variable_that_cannot_be_understood_is_an_error_that_names_it(
    variable: str, text: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        connect(env={variable: text})
    assert variable in str(failed.value)
    assert text in str(failed.value)


def test_variables_of_the_process_choose_store_and_salt(
    served: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PTOCACHE_DIR", "PTOCACHE_SOCKET", "PTOCACHE_AUTOSTART"):
        monkeypatch.setenv(name, served.env[name])
    keys = []
    for salt in ("", "a", "a"):
        monkeypatch.setenv("PTOCACHE_SALT", salt)
        with connect() as client:
            keys.append(object_of(client).key)
    assert keys[0] != keys[1] == keys[2]


def test_a_daemon_whose_queue_is_full_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = short_folder()
    path = str(place / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    waiting: list[socket.socket] = []
    full = False
    while not full:
        other = socket.socket(socket.AF_UNIX)
        other.setblocking(False)
        waiting.append(other)
        try:
            other.connect(path)
        except BlockingIOError:
            full = True

    tried = threading.Event()
    pause = time.sleep

    def told(seconds: float) -> None:
        tried.set()
        pause(seconds)

    def serve() -> None:
        # Those who only fill the queue say nothing.
        tried.wait(DEADLINE_S)
        heard: list[socket.socket] = []
        peers: list[socket.socket] = [listener]
        while not heard:
            for ready in select.select(peers, [], [], DEADLINE_S)[0]:
                (peers if ready is listener else heard).append(
                    listener.accept()[0] if ready is listener else ready
                )
        heard[0].recv(4096)
        heard[0].sendall(wire.pack(wire.welcome("1", 1, {"host": ["PATH"]})))
        for peer in peers[1:]:
            peer.close()

    monkeypatch.setattr(time, "sleep", told)
    monkeypatch.setattr(connection_module, "CONNECT_S", DEADLINE_S)
    server = threading.Thread(target=serve)
    server.start()
    try:
        connection = Connection(path)
        assert tried.is_set(), "there was room at once"
        assert connection.variables == {"host": ["PATH"]}
        connection.close()
    finally:
        tried.set()
        server.join(DEADLINE_S)
        for item in (*waiting, listener):
            item.close()
        shutil.rmtree(place)
