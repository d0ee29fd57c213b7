"""An artifact in the hands of a loader: its paths, its bytes, its symbols, and what is said when it is refused."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from ptocache import launch
from ptocache.digest import Digest
from ptocache.errors import BadRequestError, DaemonUnavailableError, ElfError, FrameError, LoadError
from ptocache.model import Answer, Artifact, Descriptor
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result, ResultOutput
from tests.elf_builder import device_image, fat_object
from tests.unit.test_imports import imported_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ptocache.client import Client

DATA = b"the bytes of an artifact"


def inline(data: bytes = DATA, name: str = "kernel.so") -> ResultOutput:
    return ResultOutput(Artifact(name, Digest.of(data), 0o755, data))


def stored(path: Path, data: bytes = DATA) -> ResultOutput:
    """An output as a large one comes: an open file of the store."""
    path.write_bytes(data)
    opened = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return ResultOutput(Artifact("kernel.so", Digest.of(data), 0o755, None, opened))


@pytest.fixture(autouse=True)
def _no_handles() -> Iterator[None]:
    launch._handles.forget(lambda key: True)
    yield
    for _, keeper in launch._handles.forget(lambda key: True):
        launch._let_go(keeper)


@pytest.fixture(params=["inline", "stored"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> ResultOutput:
    return inline() if request.param == "inline" else stored(tmp_path / "blob")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- what is held


def test_an_artifact_that_is_forgotten_leaves_nothing_open(output: ResultOutput) -> None:
    # The folder of the process is held from its first use on.
    launch.load(output, str, by="file")
    launch.forget()
    gc.collect()
    before = open_files()
    artifact = launch.OpenArtifact(output)
    copy = Path(artifact.file)
    assert copy.exists()
    del artifact
    gc.collect()
    assert open_files() == before
    assert not copy.exists()


def test_paths_and_buffer_give_the_bytes_when_the_stored_file_is_gone(
    output: ResultOutput, tmp_path: Path
) -> None:
    with launch.OpenArtifact(output) as artifact:
        (tmp_path / "blob").unlink(missing_ok=True)
        assert Path(artifact.path).read_bytes() == DATA
        assert Path(artifact.file).read_bytes() == DATA
        assert bytes(artifact.buffer) == DATA
        assert os.pread(artifact.fileno(), 100, 0) == DATA
        assert (artifact.name, artifact.size) == ("kernel.so", len(DATA))
        assert artifact.digest == Digest.of(DATA).sha256


def test_a_result_that_has_gone_takes_nothing_from_who_holds_its_artifact(tmp_path: Path) -> None:
    output = stored(tmp_path / "blob")
    artifact = launch.OpenArtifact(output)
    assert output.file is not None
    output.file.close()
    assert Path(artifact.path).read_bytes() == DATA
    artifact.close()


def test_a_view_of_the_bytes_outlives_the_artifact(output: ResultOutput) -> None:
    with launch.OpenArtifact(output) as artifact:
        view = artifact.buffer
    del output
    assert view.readonly
    assert bytes(view) == DATA


def test_no_two_artifacts_have_one_path_though_one_descriptor_follows_the_other() -> None:
    paths, numbers = [], []
    for _ in range(50):
        with launch.OpenArtifact(inline()) as artifact:
            paths.append(artifact.path)
            numbers.append(artifact.fileno())
            assert Path(artifact.path).read_bytes() == DATA
    assert len(set(paths)) == 50
    assert len(set(numbers)) == 1, "else this shows nothing"
    assert max(map(len, paths)) < 80


def test_a_file_has_its_name_its_mode_and_a_real_path_that_another_process_can_read() -> None:
    with launch.OpenArtifact(inline(name="lib/kernel.so")) as artifact:
        place = Path(artifact.file)
        assert place.name == "kernel.so"
        assert os.path.realpath(place) == str(place)
        assert place.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["cat", place], capture_output=True, check=True).stdout == DATA
        assert artifact.file == str(place)
    assert not place.exists()


def test_nothing_stays_open_or_on_disk_after_many_loads_and_closes(output: ResultOutput) -> None:
    launch.load(output, str, by="file")
    launch.forget()
    before = open_files()
    for number in range(100):
        for by in launch.WAYS:
            launch.load(output, lambda given: given, number, by=by)
    assert open_files() == before + 200
    kept = [launch.load(output, str, number, by="file") for number in range(100)]
    assert sum(launch.forget(number) for number in range(100)) == 400
    del kept
    assert open_files() == before


def test_what_is_closed_has_no_path() -> None:
    artifact = launch.OpenArtifact(inline())
    artifact.close()
    artifact.close()
    for ask in (
        lambda: artifact.path, lambda: artifact.file, lambda: artifact.buffer, artifact.fileno,
        artifact.symbols,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            ask()


def test_a_child_that_closes_leaves_the_file_of_its_parent() -> None:
    with launch.OpenArtifact(inline()) as artifact:
        place = Path(artifact.file)
        pid = os.fork()
        if pid == 0:
            artifact.close()
            os._exit(0 if place.exists() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert place.read_bytes() == DATA


def test_the_address_of_a_buffer_is_where_its_bytes_are(output: ResultOutput) -> None:
    view = output.buffer
    assert ctypes.string_at(launch.address(view), len(view)) == DATA


def test_the_launch_path_brings_nothing_heavy() -> None:
    names = imported_by("import ptocache.launch")
    assert "ptocache.launch" in names
    assert not names & {"elftools", "ctypes", "shutil", "tempfile", "pathlib", "subprocess"}
    assert not {name for name in names if name.startswith(("elftools.", "ptocache.elf"))}


# --- loading


def test_a_loader_is_given_what_it_wants(output: ResultOutput) -> None:
    read = Path.read_bytes
    assert launch.load(output, lambda path: read(Path(path))) == DATA
    assert launch.load(output, lambda path: (Path(path).suffix, read(Path(path))), by="file") == (
        ".so",
        DATA,
    )
    assert launch.load(output, bytes, by="buffer") == DATA


def test_another_way_is_a_bad_request() -> None:
    with pytest.raises(BadRequestError, match="path, buffer, file"):
        launch.load(inline(), str, by="bytes")


def test_a_handle_is_that_of_its_artifact_loader_device_and_way() -> None:
    loads: list[str] = []

    def one(given: Any) -> object:
        loads.append("one")
        return object()

    def other(given: Any) -> object:
        loads.append("other")
        return object()

    handles = [
        launch.load(inline(), one),
        launch.load(inline(), other),
        launch.load(inline(), one, 1),
        launch.load(inline(), one, ("npu", 1)),
        launch.load(inline(), one, by="buffer"),
        launch.load(inline(b"others"), one),
    ]
    assert len(set(map(id, handles))) == 6
    assert launch.load(inline(), one) is handles[0]
    assert launch.load(inline(), one, ("npu", 1)) is handles[3]
    assert loads == ["one", "other", "one", "one", "one", "one"]


@pytest.mark.parametrize("by", launch.WAYS)
@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_loader_that_raises_leaves_nothing_open_and_may_be_asked_again(
    error: BaseException, by: str
) -> None:
    launch.load(inline(), str, by=by)
    launch.forget()
    before = open_files()
    answers: list[BaseException | None] = [error, None]

    def loader(given: Any) -> str:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return "loaded"

    with pytest.raises(type(error)) as caught:
        launch.load(inline(), loader, by=by)
    assert caught.value is error
    assert open_files() == before
    assert launch.load(inline(), loader, by=by) == "loaded"


def test_a_loader_may_load_another_artifact_and_is_told_about_its_own() -> None:
    other = inline(b"needed by the first")

    def loader(given: Any) -> str:
        return launch.load(other, lambda _: "inner") + " and outer"

    assert launch.load(inline(), loader) == "inner and outer"

    def recursive(given: Any) -> str:
        return launch.load(inline(), recursive)

    with pytest.raises(LoadError, match="waits for itself"):
        launch.load(inline(), recursive)


def test_forgetting_a_device_unloads_its_handles_and_no_others() -> None:
    for device in (0, 1):
        for data in (b"a", b"b"):
            launch.load(inline(data), lambda given: given, device, by="path")
    unloaded: list[str] = []

    def unload(path: str) -> None:
        unloaded.append(Path(path).read_text())

    assert launch.forget(1, unload) == 2
    assert sorted(unloaded) == ["a", "b"], "the artifacts are held until their handles are unloaded"
    assert launch.forget(1, unload) == 0
    assert launch.forget(0) == 2


def test_every_handle_is_unloaded_and_let_go_though_one_refuses() -> None:
    before = open_files()
    for data in (b"a", b"b", b"c"):
        launch.load(inline(data), lambda given: given)
    seen: list[str] = []

    def unload(path: str) -> None:
        seen.append(path)
        raise OSError(f"number {len(seen)}")

    with pytest.raises(OSError, match="number 1"):
        launch.forget(0, unload)
    assert len(seen) == 3
    assert open_files() == before


# --- symbols


def fat(section: str, *images: bytes) -> bytes:
    return fat_object(*images, section=section)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (device_image("gemm"), ("gemm",)),
        (device_image("gemm") + device_image("add", "mul"), ("add", "gemm", "mul")),
        (fat(".aicore_binary", device_image("gemm")), ("gemm", "launch")),
        (
            fat(".aicore_binary", device_image("gemm"), device_image("add")),
            ("add", "gemm", "launch"),
        ),
        (fat("__aicore_rel_binary", device_image("gemm")), ("gemm", "launch")),
        (fat(".other", device_image("gemm")), ("launch",)),
    ],
    ids=["device image", "images in a row", "fat", "fat with two", "fat object", "host"],
)
def test_the_symbols_of_an_artifact_are_those_of_all_its_images(
    data: bytes, expected: tuple[str, ...]
) -> None:
    assert launch.symbols(inline(data)) == expected
    with launch.OpenArtifact(inline(data)) as artifact:
        assert artifact.symbols() == expected


@pytest.mark.parametrize("data", [b"", DATA, b"\x7fEL"], ids=["empty", "text", "cut"])
def test_what_is_no_elf_image_has_no_symbols_and_says_so(data: bytes) -> None:
    with pytest.raises(ElfError, match=r"kernel\.so is no ELF image"):
        launch.symbols(inline(data))


def test_a_broken_image_is_refused_by_its_rule() -> None:
    with pytest.raises(ElfError):
        launch.symbols(inline(device_image("gemm")[:80]))
    with pytest.raises(ElfError):
        launch.symbols(inline(fat(".aicore_binary", device_image("gemm")[:80])))


# --- an artifact that its loader refuses


class Daemon:
    """Stands for a client: answers reports as told, and keeps them."""

    def __init__(self, said: object, mode: str = "use") -> None:
        self.said = said
        self.settings = {"request.mode": mode}
        self.reports: list[Mapping[str, Any]] = []

    def call(self, kind: str, **fields: Any) -> Any:
        assert kind == "reject"
        self.reports.append(fields)
        if isinstance(self.said, Exception):
            raise self.said
        return {"verdict": self.said, "detail": f"it is {self.said}", "entries": 1}


KEY = "ab" * 32


def result(*outputs: tuple[str, bytes], key: str = KEY) -> Result:
    artifacts = tuple(Artifact(name, Digest.of(data), 0o644, data) for name, data in outputs)
    return Result(Answer(Outcome.MEMORY_HIT, key, artifacts=artifacts), "host", 1.0)


def refuse_bad(data: memoryview) -> bytes:
    if bytes(data).startswith(b"bad"):
        raise RuntimeError(f"cannot load {bytes(data).decode()}")
    return bytes(data)


def load(
    daemon: Daemon, *made: bytes, loader: Callable[[Any], Any] = refuse_bad, key: str = KEY
) -> tuple[Any, int]:
    """What is loaded of what is made one after the other, and how often it was made."""
    left = list(made)

    def make() -> Result:
        return result(("image", left.pop(0)), key=key)

    try:
        found = launch.load_or_remake(cast("Client", daemon), make, loader, by="buffer")
    except LoadError as error:
        found = error
    return found, len(made) - len(left)


def test_what_loads_is_not_reported() -> None:
    daemon = Daemon("dropped")
    assert load(daemon, b"good", b"good") == (b"good", 1)
    assert daemon.reports == []


@pytest.mark.parametrize("verdict", ["dropped", "replaced"])
def test_what_is_refused_is_reported_made_again_and_loaded(verdict: str) -> None:
    daemon = Daemon(verdict)
    assert load(daemon, b"bad", b"good", b"good") == (b"good", 2)
    digest = Digest.of(b"bad").sha256
    detail = "RuntimeError: cannot load bad"
    assert daemon.reports == [{"key": KEY, "outputs": {"image": digest}, "detail": detail}]


@pytest.mark.parametrize(
    ("second", "same", "words"),
    [(b"bad", True, "made again, it had the same bytes"), (b"bad 2", False, "other bytes, which")],
)
def test_what_is_refused_twice_is_one_error_with_the_loaders_own_as_its_cause(
    second: bytes, same: bool, words: str
) -> None:
    daemon = Daemon("dropped")
    error, made = load(daemon, b"bad", second, b"good")
    assert isinstance(error, LoadError)
    assert made == 2
    assert len(daemon.reports) == 1, "the second refusal drops nothing"
    assert isinstance(error.__cause__, RuntimeError)
    assert str(error.__cause__) == f"cannot load {second.decode()}"
    assert words in error.message
    assert "RuntimeError: cannot load" in error.message
    assert error.hint
    assert error.fields == {
        "output": "image", "digest": Digest.of(second).sha256, "key": KEY, "verdict": "dropped",
        "rebuilt": True, "same_bytes": same,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "verdict", "rebuilt", "words"),
    [
        ("same_bytes", "same_bytes", True, "made again, it had the same bytes"),
        ("given_up", "given_up", False, "it is given_up"),
        ("read_only", "read_only", False, "it is read_only"),
        ("store_failed", "store_failed", False, "it is store_failed"),
        ("of_tomorrow", "of_tomorrow", False, "it is of_tomorrow"),
        (FrameError("there is no request 'reject'"), "", False, "no request 'reject'"),
        (DaemonUnavailableError("gone"), "", False, "no daemon could be told: gone"),
        (BadRequestError("no"), "", False, "no daemon could be told: no"),
    ],
    ids=str,
)
def test_what_is_not_dropped_is_not_made_again(
    said: object, verdict: str, rebuilt: bool, words: str
) -> None:
    error, made = load(Daemon(said), b"bad", b"good")
    assert isinstance(error, LoadError)
    assert made == 1
    assert (error.fields["verdict"], error.fields["rebuilt"]) == (verdict, rebuilt)
    assert words in error.message


def test_a_result_without_a_key_or_a_mode_that_only_reads_is_not_reported() -> None:
    daemon = Daemon("dropped")
    error, made = load(daemon, b"bad", b"good", key="")
    assert made == 1
    assert "without the daemon" in error.message
    reader = Daemon("dropped", mode="read-only")
    error, made = load(reader, b"bad", b"good")
    assert made == 1
    assert error.fields["verdict"] == Reason.READ_ONLY.label
    assert daemon.reports == reader.reports == []


@pytest.mark.parametrize(
    "error",
    [MemoryError(), KeyboardInterrupt(), SystemExit(1), BadRequestError("no"), LoadError("inner")],
    ids=repr,
)
def test_what_says_nothing_of_the_artifact_passes_through_unreported(error: BaseException) -> None:
    daemon = Daemon("dropped")

    def loader(data: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        launch.load_or_remake(
            cast("Client", daemon), lambda: result(("image", b"good")), loader, by="buffer"
        )
    assert caught.value is error
    assert daemon.reports == []


def test_one_of_several_outputs_is_named() -> None:
    made = result(("host", b"good host"), ("device", b"good device"))

    def make() -> Result:
        return made

    client = cast("Client", Daemon("dropped"))
    found = launch.load_or_remake(client, make, refuse_bad, output="device", by="buffer")
    assert found == b"good device"
    with pytest.raises(BadRequestError, match="2 outputs: host, device"):
        launch.load_or_remake(client, make, refuse_bad, by="buffer")
    with pytest.raises(BadRequestError, match="no output 'image'"):
        launch.load_or_remake(client, make, refuse_bad, output="image", by="buffer")


def test_a_whole_result_can_be_reported_in_words_that_any_message_can_carry() -> None:
    daemon = Daemon("dropped")
    made = result(("host", b"a"), ("device", b"b"))
    verdict = launch.reject(cast("Client", daemon), made, "half a \ud800 surrogate " + "x" * 5000)
    assert verdict.again
    assert verdict.word == "dropped"
    (report,) = daemon.reports
    assert report["outputs"] == {
        "host": Digest.of(b"a").sha256, "device": Digest.of(b"b").sha256,
    }  # fmt: skip
    assert report["detail"].startswith("half a ? surrogate")
    assert len(report["detail"]) == 1000


def test_a_compile_that_fails_is_its_own_error() -> None:
    failed = Result(Answer(Outcome.FAILURE, KEY, Reason.COMPILE_FAILED, "no"), "host", 1.0)
    with pytest.raises(Exception, match="no") as caught:
        launch.load_or_remake(cast("Client", Daemon("dropped")), lambda: failed, refuse_bad)
    assert not isinstance(caught.value, LoadError)


def test_a_process_that_ends_leaves_no_file_behind(tmp_path: Path) -> None:
    code = (
        "from ptocache import launch\nfrom tests.unit.test_launch import inline\n"
        "print(launch.load(inline(), str, by='file'))\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
