"""The launch path with real shared objects and simulated device images: loaded once, and what is refused
is dropped and made again once, for all processes together."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import elf, launch
from ptocache.client import connect
from ptocache.errors import CompileFailedError, LoadError, PtocacheWarning
from ptocache.outcome import Outcome
from ptocache.result import Result
from tests.faults.fake_daemon import FakeDaemon, Side
from tests.harness import DEADLINE_S, DaemonProcess, LoggingCompiler, RawPeer, wait_for
from tests.simcann import KERNEL, SimCann
from tests.system.cli_runner import ptocache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ptocache.client import Client
    from ptocache.kernel import Lease

    MakeDaemon = Callable[..., DaemonProcess]

SOURCE = """\
int missing(void);
#ifdef UNLOADABLE
int answer(void) { return missing(); }
#else
int answer(void) { return 42; }
#endif
"""
"""Where UNLOADABLE is defined, the dynamic loader refuses what the compiler and the linker accept."""
BAD = "#define UNLOADABLE\n" + SOURCE
LARGE = SOURCE + f"const char data[{1 << 19}] = {{1}};\n"


@pytest.fixture(scope="module")
def client(shared_daemon: DaemonProcess) -> Iterator[Client]:
    """A client of the module's daemon."""
    with shared_daemon.client() as found:
        yield found


class Moody:
    """A compiler whose output depends on what no key sees: the words in a file."""

    def __init__(self, compiler: LoggingCompiler, place: Path) -> None:
        self._compiler = compiler
        self._words = place / "words"
        self.says("")
        compiler.write(extra=f'$(cat "{self._words}")')
        self.env = compiler.env
        self.trust = compiler.trust

    def says(self, words: str) -> None:
        """From now on, compile with these options as well."""
        self._words.write_text(words)

    def compiles(self) -> int:
        return len(self._compiler.compiles())


@pytest.fixture
def moody(logging_compiler: LoggingCompiler, tmp_path: Path) -> Moody:
    return Moody(logging_compiler, tmp_path)


@pytest.fixture
def own(make_daemon: MakeDaemon, moody: Moody) -> DaemonProcess:
    """A daemon of its own that trusts the moody compiler."""
    return make_daemon(trust_scripts=moody.trust).start()


def unloadable(daemon: DaemonProcess, cache: str = "binary") -> dict[str, int]:
    with daemon.client() as client:
        found = client.stats()["caches"][cache]
    assert found["unloadable"] == sum(found["unloadable_reasons"].values())
    return dict(found["unloadable_reasons"])


def file_of(library: ctypes.CDLL) -> str:
    return str(library._name)


# --- what loads


def test_a_compile_is_loaded_and_loaded_once(client: Client) -> None:
    ask: dict[str, Any] = {
        "inputs": {"once.c": SOURCE}, "loader": ctypes.CDLL, "options": ["-O1"],
    }  # fmt: skip
    library: ctypes.CDLL = client.load("host", **ask)
    assert library.answer() == 42
    assert client.load("host", **ask) is library
    other: ctypes.CDLL = client.load("host", **ask, device=1)
    assert other is not library
    assert other.answer() == 42


@pytest.mark.parametrize("source", [SOURCE, LARGE], ids=["inline", "descriptor"])
@pytest.mark.parametrize("by", ["path", "file"])
def test_a_dynamic_loader_takes_either_path(client: Client, source: str, by: str) -> None:
    library = client.load("host", {"either.c": source}, loader=ctypes.CDLL, by=by)
    assert library.answer() == 42


def test_libraries_that_follow_each_other_under_one_descriptor_are_not_mixed_up(
    client: Client,
) -> None:
    numbers = []
    for answer in (1, 2, 3):
        text = f"int answer(void) {{ return {answer}; }}\n"
        result = client.compile("host", {"follow.c": text})
        with launch.OpenArtifact(result.outputs["shared"]) as artifact:
            numbers.append(artifact.fileno())
            library = ctypes.CDLL(artifact.path)
        assert library.answer() == answer
    assert len(set(numbers)) == 1, "else this shows nothing"


def test_sixteen_threads_load_once(client: Client) -> None:
    loads: list[str] = []

    def loader(path: str) -> ctypes.CDLL:
        loads.append(path)
        return ctypes.CDLL(path)

    found: list[ctypes.CDLL] = []
    together = threading.Barrier(16)

    def ask() -> None:
        together.wait(DEADLINE_S)
        found.append(client.load("host", {"threads.c": SOURCE}, loader=loader))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(loads) == 1
    assert len(set(map(id, found))) == 1
    assert len(found) == 16


@pytest.mark.parametrize("source", [SOURCE, LARGE], ids=["inline", "descriptor"])
def test_what_is_held_stays_when_its_entry_and_its_daemon_go(
    make_daemon: MakeDaemon, source: str
) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        result = client.compile("host", {"held.c": source})
        artifact = launch.OpenArtifact(result.outputs["shared"])
        client.call("invalidate", all=True)
        assert client.get(result.key) is None
    daemon.kill()
    with artifact:
        assert ctypes.CDLL(artifact.path).answer() == 42
        assert ctypes.CDLL(artifact.file).answer() == 42
        assert bytes(artifact.buffer) == Path(artifact.path).read_bytes()
        assert "answer" in artifact.symbols()


FORK = """
import ctypes, os, sys
from ptocache.client import connect
loads = []
def loader(path):
    loads.append(path)
    return ctypes.CDLL(path)
source = "const char data[%s] = {1}; int counter; int count(void) { return ++counter; }" % sys.argv[1]
with connect() as client:
    ask = lambda: client.load("host", {"fork.c": source}, loader=loader)
    library = ask()
    assert library.count() == 1
    child = os.fork()
    again = ask()
    counted = again.count(), again.count()
    if child == 0:
        client.close()
        os._exit(0 if counted == (2, 3) and len(loads) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert again is library and counted == (2, 3) and len(loads) == 1
"""


@pytest.mark.parametrize("size", [1, 1 << 19], ids=["inline", "descriptor"])
def test_parent_and_child_load_each_for_itself_after_a_fork(
    shared_daemon: DaemonProcess, size: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(size)], env={**shared_daemon.env, "PTOCACHE_REQUIRE": "1"},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --- what is refused


def test_what_the_loader_refuses_is_dropped_compiled_again_and_loaded(
    own: DaemonProcess, moody: Moody
) -> None:
    moody.says("-DUNLOADABLE")
    with own.client() as client:
        ask: dict[str, Any] = {"inputs": {"k.c": SOURCE}, "env": moody.env, "kernel": "answer"}
        bad = client.compile("host", **ask)
        moody.says("")
        library = client.load("host", loader=ctypes.CDLL, **ask)
        assert library.answer() == 42
        again = client.compile("host", **ask)
        told = client.call("explain", kernel="answer")
    assert again.outcome is Outcome.MEMORY_HIT
    assert again.key == bad.key
    assert moody.compiles() == 2
    assert unloadable(own) == {"dropped": 1}
    assert own.stats()["miss"] == 2
    assert "a loader refused it: OSError" in told["why"]
    assert "undefined symbol: missing" in told["why"]
    (line,) = [line for line in own.log().splitlines() if "could not be loaded" in line]
    assert bad.key[:12] in line
    assert "verdict=dropped" in line
    text = ptocache("stats", env=own.env).out
    assert [line.split() for line in text.splitlines() if "unloadable" in line] == [
        ["unloadable", "1", "0"]
    ]
    metrics = ptocache("stats", "--prometheus", env=own.env).out
    assert 'ptocache_events_total{cache="binary",event="unloadable"} 1' in metrics.splitlines()
    assert (
        'ptocache_reasons_total{cache="binary",of="unloadable",reason="dropped"} 1'
        in metrics.splitlines()
    )


def test_what_the_compiler_makes_the_same_again_is_compiled_twice_and_never_more(
    own: DaemonProcess, moody: Moody
) -> None:
    moody.says("-DUNLOADABLE")
    verdicts = []
    for _ in range(5):
        with own.client() as client, pytest.raises(LoadError) as caught:
            client.load("host", {"k.c": SOURCE}, loader=ctypes.CDLL, env=moody.env)
        assert isinstance(caught.value.__cause__, OSError)
        assert "undefined symbol: missing" in str(caught.value.__cause__)
        assert "made again, it had the same bytes" in str(caught.value)
        assert caught.value.fields["same_bytes"]
        verdicts.append(caught.value.fields["verdict"])
    assert verdicts == ["dropped"] + ["same_bytes"] * 4
    assert moody.compiles() == 2
    assert unloadable(own) == {"dropped": 1, "same_bytes": 4}
    with own.client() as client:
        client.call("invalidate", all=True)
        moody.says("")
        assert client.load("host", {"k.c": SOURCE}, loader=ctypes.CDLL, env=moody.env).answer()


def test_a_compiler_that_makes_other_bad_bytes_each_time_makes_no_storm(
    own: DaemonProcess, moody: Moody
) -> None:
    text = f"#define NUMBER WORD\n{BAD}int number = NUMBER;\n"
    words = itertools.count()

    def loader(path: str) -> ctypes.CDLL:
        moody.says(f"-DWORD={next(words)}")
        return ctypes.CDLL(path)

    moody.says("-DWORD=100")
    for _ in range(10):
        with own.client() as client, pytest.raises(LoadError):
            client.load("host", {"k.c": text}, loader=loader, env=moody.env)
    assert moody.compiles() == 4, "one, and three anew"
    assert unloadable(own)["given_up"] == 7


class Rank:
    """A process that loads one kernel when it is told to; ``bad`` is what it gets before the others load."""

    CODE = """
import ctypes, json, sys
from ptocache import launch
from ptocache.client import connect
from ptocache.errors import LoadError
ask = json.loads(sys.stdin.readline())
client = connect()
first = client.compile("host", **ask)
made = [first]
print("holds", first.outputs["shared"].digest, flush=True)
sys.stdin.readline()
def make():
    return made.pop() if made else client.compile("host", **ask)
try:
    said = launch.load_or_remake(client, make, ctypes.CDLL).answer()
except LoadError as error:
    said = {**error.fields, "cause": str(error.__cause__)}
print(json.dumps(said), flush=True)
"""

    def __init__(self, daemon: DaemonProcess, ask: Mapping[str, object]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE], env={**daemon.env, "PTOCACHE_REQUIRE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        self._say(json.dumps(ask))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def holds(self) -> str:
        """Wait until it has its artifact; the digest."""
        assert self.process.stdout is not None
        word, digest = self.process.stdout.readline().split()
        assert word == "holds"
        return digest

    def go(self) -> None:
        self._say("go")

    def said(self) -> Any:
        out, _ = self.process.communicate(timeout=2 * DEADLINE_S)
        return json.loads(out)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def ranks(
    count: int, daemon: DaemonProcess, ask: Mapping[str, object], then: Callable[[], None]
) -> list[Any]:
    """What so many processes say that all hold the same artifact before one loads it."""
    found = [Rank(daemon, ask) for _ in range(count)]
    try:
        assert len({rank.holds() for rank in found}) == 1
        then()
        for rank in found:
            rank.go()
        return [rank.said() for rank in found]
    finally:
        for rank in found:
            rank.end()


def test_sixteen_processes_that_refuse_one_artifact_cause_one_compile(
    own: DaemonProcess, moody: Moody
) -> None:
    moody.says("-DUNLOADABLE")
    ask = {"inputs": {"k.c": SOURCE}, "env": moody.env}
    said = ranks(16, own, ask, lambda: moody.says(""))
    assert said == [42] * 16
    assert moody.compiles() == 2
    counted = unloadable(own)
    assert counted["dropped"] == 1
    assert sum(counted.values()) == 16
    assert "same_bytes" not in counted


def test_processes_whose_artifact_is_the_same_again_cause_one_compile(
    own: DaemonProcess, moody: Moody
) -> None:
    moody.says("-DUNLOADABLE")
    said = ranks(4, own, {"inputs": {"k.c": SOURCE}, "env": moody.env}, lambda: None)
    assert all(item["same_bytes"] and "undefined symbol" in item["cause"] for item in said)
    assert moody.compiles() == 2
    assert unloadable(own)["dropped"] == 1


def test_a_compile_that_fails_the_second_time_is_its_own_error(
    own: DaemonProcess, moody: Moody
) -> None:
    moody.says("-DUNLOADABLE")
    with own.client() as client:
        ask: dict[str, Any] = {"inputs": {"k.c": SOURCE}, "env": moody.env}
        client.compile("host", **ask)
        moody.says("-fno-such-option")
        with pytest.raises(CompileFailedError):
            client.load("host", loader=ctypes.CDLL, **ask)


def test_a_program_that_shares_the_blob_under_another_key_keeps_its_entry(client: Client) -> None:
    plain = client.compile("host", {"twin.c": SOURCE}, outputs=["object"])
    salted = client.compile("host", {"twin.c": SOURCE}, outputs=["object"], salt="another")
    assert plain.key != salted.key
    assert plain.outputs["object"].digest == salted.outputs["object"].digest
    assert launch.reject(client, plain, "refused").word == "dropped"
    assert client.get(plain.key) is None
    kept = client.get(salted.key)
    assert kept is not None
    assert kept.outcome is Outcome.MEMORY_HIT


# --- whole kernels


def test_a_whole_kernel_that_does_not_load_is_built_again_under_the_lease(
    shared_daemon: DaemonProcess, client: Client
) -> None:
    good, bad = (
        bytes(client.compile("host", {"k.c": text}).outputs["shared"].buffer)
        for text in (SOURCE, BAD)
    )
    before = unloadable(shared_daemon, "kernel").get("dropped", 0)
    built = [bad, good, good]

    def build() -> dict[str, bytes | str | os.PathLike[str]]:
        return {"lib/kernel.so": built.pop(0), "params.json": b"{}"}

    def make() -> Result:
        return client.kernel_or_build("host", {"source": "T.gemm"}, build, kernel="gemm")

    make()
    library = launch.load_or_remake(client, make, ctypes.CDLL, output="lib/kernel.so")
    assert library.answer() == 42
    assert built == [good]
    assert make().outcome is Outcome.MEMORY_HIT
    assert unloadable(shared_daemon, "kernel")["dropped"] == before + 1


def test_who_asks_for_a_rejected_kernel_has_the_lease_and_the_reason(client: Client) -> None:
    material = {"source": "T.copy"}
    result = client.kernel_or_build("host", material, lambda: {"k.so": b"machine code"})
    assert launch.reject(client, result, "the device says 507011").again
    found: Result | Lease = client.kernel("host", material)
    assert not isinstance(found, Result)
    with found as lease:
        assert lease.why == "its entry was dropped, a loader refused it: the device says 507011"
        lease.put({"k.so": b"other machine code"})
    assert launch.reject(client, result, "late").word == "replaced"
    assert client.get(result.key) is not None


# --- without a daemon that can be told


def test_without_a_daemon_it_loads_and_what_is_refused_is_an_error(tmp_path: Path) -> None:
    env = {**os.environ, "PTOCACHE_DIR": str(tmp_path / "store"), "PTOCACHE_AUTOSTART": "0"}
    with connect(env=env) as alone:
        with pytest.warns(PtocacheWarning, match="without its daemon"):
            assert alone.load("host", {"k.c": SOURCE}, loader=ctypes.CDLL).answer() == 42
        with pytest.raises(LoadError, match="compiled without the daemon") as caught:
            alone.load("host", {"k.c": BAD}, loader=ctypes.CDLL)
    assert isinstance(caught.value.__cause__, OSError)
    assert not caught.value.fields["rebuilt"]
    assert not (tmp_path / "store").exists()


def test_a_daemon_that_has_gone_before_the_report_makes_an_error(daemon: DaemonProcess) -> None:
    def loader(path: str) -> ctypes.CDLL:
        daemon.kill()
        return ctypes.CDLL(path)

    with daemon.client() as client, pytest.raises(LoadError, match="no daemon could be told"):
        client.load("host", {"k.c": BAD}, loader=loader)


def test_a_daemon_that_knows_no_reports_makes_an_error(client: Client) -> None:
    made = client.compile("host", {"k.c": BAD}, kernel="older")

    def older(side: Side) -> None:
        side.greet()
        message = side.hear()
        assert message["type"] == "reject"
        side.say(
            {"type": "error", "id": 0, "error": {"code": "bad_frame", "message": "no request"}}
        )

    with (
        FakeDaemon(older) as fake,
        fake.client() as asker,
        pytest.raises(LoadError, match="no daemon could be told: no request"),
    ):
        launch.load_or_remake(asker, lambda: made, ctypes.CDLL)


def test_a_daemon_that_only_reads_keeps_the_entry(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        key = client.compile("host", {"k.c": BAD}).key
    daemon.stop()
    reader = make_daemon(mode="read-only").start()
    with reader.client(request_mode="use") as client, pytest.raises(LoadError) as caught:
        client.load("host", {"k.c": BAD}, loader=ctypes.CDLL)
    assert caught.value.fields["verdict"] == "read_only"
    assert unloadable(reader) == {"read_only": 1}
    with reader.client() as client:
        assert client.get(key) is not None


# --- the wire


def test_a_report_on_the_wire(shared_daemon: DaemonProcess, client: Client) -> None:
    result = client.compile("host", {"wire.c": SOURCE})
    outputs = {"shared": result.outputs["shared"].digest}
    report = {"type": "reject", "key": result.key, "outputs": outputs, "detail": "no"}
    with RawPeer(shared_daemon.socket) as peer:
        peer.say({**report, "id": 1})
        found = peer.hear()
        assert (found["type"], found["id"]) == ("result", 1)
        value = found["value"]
        assert (value["verdict"], value["entries"]) == ("dropped", 1)
        peer.say({**report, "id": 2})
        assert peer.hear()["value"]["verdict"] == "replaced"
        peer.say({**report, "id": 3, "outputs": {}})
        assert peer.hear()["error"]["code"] == "bad_request"


# --- device images


class Device:
    """Stands for a device's loader of bytes: it reads the image, and finds kernels by their names."""

    def __init__(self, refuses: Callable[[bytes], bool] = lambda data: False) -> None:
        self.refuses = refuses
        self.loads = 0

    def load(self, data: memoryview) -> dict[str, int]:
        """A map of kernel → handle, as ``aclrtBinaryLoadFromData`` and ``aclrtBinaryGetFunction`` give."""
        self.loads += 1
        copied = ctypes.string_at(launch.address(data), len(data))
        if self.refuses(copied):
            raise RuntimeError("aclrtBinaryLoadFromData: 107000")
        elf.check_device(copied)
        return {name: number for number, name in enumerate(elf.entry_symbols(copied), start=1)}


NPU, OTHER = ("npu", 0), ("npu", 1)


@pytest.fixture(scope="module")
def cann(tmp_path_factory: pytest.TempPathFactory) -> SimCann:
    return SimCann.make(tmp_path_factory.mktemp("launch") / "cann")


def test_a_device_image_is_loaded_from_its_bytes_once_a_device(
    client: Client, cann: SimCann
) -> None:
    device = Device()
    ask: dict[str, Any] = {
        "inputs": {"k.asc": KERNEL}, "env": cann.env(), "loader": device.load, "by": "buffer",
    }  # fmt: skip
    first = client.load("ascendc", **ask, device=NPU)
    assert "gemm" in first
    assert client.load("ascendc", **ask, device=NPU) is first
    assert client.load("ascendc", **ask, device=OTHER) is not first
    assert device.loads == 2
    assert launch.forget(OTHER) == 1, "the device was reset"
    assert client.load("ascendc", **ask, device=NPU) is first
    client.load("ascendc", **ask, device=OTHER)
    assert device.loads == 3
    result = client.compile("ascendc", ask["inputs"], env=ask["env"])
    (output,) = result.outputs.values()
    assert "gemm" in launch.symbols(output)


def test_a_device_image_that_is_refused_once_is_compiled_again(
    client: Client, cann: SimCann
) -> None:
    refusals = [True, False]
    device = Device(lambda data: refusals.pop(0))
    cann.clear_log()
    handles = client.load(
        "ascendc", {"k.asc": KERNEL + "// refused once\n"}, env=cann.env(), loader=device.load,
        by="buffer",
    )  # fmt: skip
    assert "gemm" in handles
    assert len([run for run in cann.runs("bisheng") if "--cce-aicore-only" in run.argv]) == 2


def test_an_evicted_entry_is_no_reason_to_lose_a_handle(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(max_size="1M").start()
    with daemon.client() as client:
        library = client.load("host", {"k.c": LARGE}, loader=ctypes.CDLL)
        for number in range(4):
            client.compile("host", {"k.c": LARGE + f"int n{number};\n"})
        wait_for(lambda: client.stats()["store"]["evicted"] >= 1, "an eviction")
        assert library.answer() == 42
        assert Path(file_of(library)).stat().st_size > 1 << 19
        assert client.load("host", {"k.c": LARGE}, loader=ctypes.CDLL) is library
