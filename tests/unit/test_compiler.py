"""Running steps with real tools: what they see, what they may take, and that nothing is left of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import compiler
from ptocache.compiler import (
    Cancel,
    Limits,
    Ran,
    ToolFailedError,
    Workspace,
    environment,
    probe,
    run,
)
from ptocache.errors import (
    BadRequestError,
    CancelledError,
    CompileFailedError,
    OutputRejectedError,
    StepKilledError,
    StepSystemError,
    StepTimeoutError,
)
from ptocache.model import Log, Output, Step
from tests.harness import DEADLINE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SH = "/bin/sh"
ENV = shutil.which("env") or "/usr/bin/env"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(str(tmp_path)) as made:
        yield made


def sh(script: str, *creates: str, name: str = "step", depfile: str = "") -> Step:
    return Step(name, (SH, "-c", script), creates, depfile)


def run_sh(
    workspace: Workspace,
    *steps: Step | str,
    wanted: Mapping[str, str] = {},
    env: Mapping[str, str] = {},
    limits: Limits = Limits(),
    cancel: Cancel | None = None,
) -> Ran:
    made = tuple(sh(step) if isinstance(step, str) else step for step in steps)
    return run(made, wanted, workspace, env, limits, cancel)


def is_running(pid: int) -> bool:
    """True unless the process is gone, or dead and only not yet collected."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def pid_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), f"a pid in {path}")
    return int(path.read_text())


def assert_ends(pid: int) -> None:
    wait_for(lambda: not is_running(pid), f"the end of process {pid}")


# --- what a tool sees


def seen_environment(workspace: Workspace, env: Mapping[str, str]) -> dict[str, str]:
    log = run((Step("env", (ENV,), ()),), {}, workspace, env, Limits()).log
    return dict(line.split("=", 1) for line in log.stdout.decode().splitlines())


def test_a_tool_sees_the_declared_variables_and_constants_and_nothing_else(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET", "CPATH", "LD_LIBRARY_PATH", "GCC_EXEC_PREFIX"):
        monkeypatch.setenv(name, "of the daemon")
    assert seen_environment(workspace, {"PTO_FLAGS": "-x"}) == {
        "PTO_FLAGS": "-x",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C",
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "TZ": "UTC0",
        "TMPDIR": workspace.tmp,
    }


def test_no_declared_variable_replaces_a_constant(workspace: Workspace) -> None:
    forged = dict.fromkeys(("PATH", "HOME", "TMPDIR", "LC_ALL", "TZ"), "/of/the/caller")
    assert seen_environment(workspace, forged) == environment({}, workspace.tmp)


def test_a_tool_runs_in_a_private_directory_with_the_inputs_alone(
    workspace: Workspace, tmp_path: Path
) -> None:
    workspace.materialise("k.c", b"int k;\n", 0)
    workspace.materialise("include/deep/a.h", b"int a;\n", 0)
    log = run_sh(workspace, 'pwd -P; find . | sort; ls -A "$TMPDIR"').log
    assert log.stdout.decode().splitlines() == [
        workspace.work, ".", "./include", "./include/deep", "./include/deep/a.h", "./k.c",
    ]  # fmt: skip
    assert Path(workspace.root).parent == tmp_path
    for folder in (workspace.root, workspace.work, workspace.tmp):
        assert os.stat(folder).st_mode & 0o077 == 0


def test_two_workspaces_never_meet(tmp_path: Path) -> None:
    with Workspace(str(tmp_path)) as one, Workspace(str(tmp_path)) as other:
        assert one.root != other.root


def test_a_workspace_below_a_link_is_known_by_its_canonical_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Workspace(str(tmp_path / "link")) as workspace:
        assert workspace.root.startswith(str(tmp_path / "real"))
        assert run_sh(workspace, "pwd -P").log.stdout.decode().strip() == workspace.work


def test_a_tool_reads_nothing_and_holds_no_file_of_ours(workspace: Workspace) -> None:
    ours = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        listing = Step("list", (shutil.which("ls") or "/bin/ls", "/proc/self/fd"), ())
        log = run_sh(workspace, "cat", listing).log
    finally:
        os.close(ours)
    # The fourth is the folder that is being listed.
    assert log.stdout.split() == [b"0", b"1", b"2", b"3"]


def test_a_tool_has_a_session_and_a_umask_of_its_own(workspace: Workspace) -> None:
    before = os.umask(0o077)
    try:
        log = run_sh(workspace, "umask; cut -d' ' -f6 /proc/$$/stat; echo $$").log
    finally:
        os.umask(before)
    umask, session, pid = log.stdout.decode().split()
    assert umask == "0022"
    assert session == pid


def test_a_tool_dies_of_a_broken_pipe_and_of_an_interrupt_as_usual(workspace: Workspace) -> None:
    # Python ignores SIGPIPE for itself; a tool must not inherit that.
    ignored = run_sh(workspace, "grep SigIgn /proc/$$/status").log.stdout.split()[1]
    assert not int(ignored, 16) & (1 << (signal.SIGPIPE - 1))


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    int here;
    void *map = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%s %p %p %p %p\n", argv[0], (void *)&here, map, malloc(1), (void *)main);
    return argc > 9;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints its name and where its stack, a mapping, its heap and its code lie."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "show.c").write_text(PROGRAM)
    subprocess.run(["cc", "-fPIE", "-pie", "-o", "show", "show.c"], cwd=folder, check=True)
    return folder / "show"


def test_without_randomisation_two_runs_lie_at_the_same_addresses(
    workspace: Workspace, program: Path
) -> None:
    step = Step("show", (str(program),), ())
    runs = [run((step,), {}, workspace, {}, Limits()) for _ in range(3)]
    system = Path("/proc/sys/kernel/randomize_va_space")
    random_here = system.exists() and system.read_text().strip() != "0"
    # Where it could not be switched off, the entry must say so.
    same = len({ran.log.stdout for ran in runs}) == 1
    assert same == (runs[0].aslr_off or not random_here)


def test_the_daemons_own_thread_keeps_its_randomisation(workspace: Workspace) -> None:
    def personality() -> int:
        return int(Path("/proc/thread-self/personality").read_text(), 16)

    before = personality()
    ran = run_sh(workspace, "cat /proc/self/personality")
    assert personality() == before
    inside = int(ran.log.stdout, 16)
    assert bool(inside & 0x0040000) == (ran.aslr_off or bool(before & 0x0040000))


def test_a_tool_is_called_by_the_name_under_which_it_was_found(
    workspace: Workspace, program: Path, tmp_path: Path
) -> None:
    alias = tmp_path / "clang++"
    alias.symlink_to(program)
    log = run((Step("show", (str(alias),), ()),), {}, workspace, {}, Limits()).log
    assert log.stdout.split()[0].decode() == str(alias)


# --- inputs


def test_an_input_has_its_bytes_and_a_constant_time(workspace: Workspace) -> None:
    path = workspace.materialise("a/k.c", b"int k;\n", 1_700_000_000)
    assert path == os.path.join(workspace.work, "a", "k.c")
    assert Path(path).read_bytes() == b"int k;\n"
    assert os.stat(path).st_mtime == 1_700_000_000


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_two_inputs_that_cannot_both_be_there_are_a_bad_request(
    first: str, second: str, workspace: Workspace
) -> None:
    workspace.materialise(first, b"", 0)
    with pytest.raises(BadRequestError, match="cannot both lie"):
        workspace.materialise(second, b"", 0)


def test_a_time_that_no_file_can_have_is_a_bad_request(workspace: Workspace) -> None:
    with pytest.raises(BadRequestError, match="no file can have the time"):
        workspace.materialise("k.c", b"", 10**30)


def test_an_input_that_the_disk_cannot_take_is_the_machines_fault(workspace: Workspace) -> None:
    with pytest.raises(StepSystemError, match="cannot be written"):
        workspace.materialise("x" * 300, b"", 0)


def test_without_a_place_for_it_there_is_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(StepSystemError, match="no private directory") as caught:
        Workspace(str(tmp_path / "none"))
    assert caught.value.fields["path"] == str(tmp_path / "none")


# --- outputs and logs


def test_outputs_come_with_their_bytes_and_permissions(workspace: Workspace) -> None:
    ran = run_sh(
        workspace,
        sh("printf data > a.o; chmod 640 a.o", "a.o", name="compile"),
        sh("cat a.o a.o > b.so; chmod 755 b.so", "b.so", name="link"),
        wanted={"shared": "b.so", "object": "a.o"},
    )
    assert ran.outputs == (Output("shared", b"datadata", 0o755), Output("object", b"data", 0o640))
    assert not ran.missing_depfiles
    assert ran.compile_ms >= 0


def test_a_log_is_the_exact_bytes_of_all_steps_in_order(workspace: Workspace) -> None:
    ran = run_sh(workspace, r"printf 'one\377\n'; printf 'w1\n' >&2", "printf two; printf w2 >&2")
    assert ran.log == Log(b"one\xff\ntwo", b"w1\nw2")


@pytest.mark.parametrize(
    ("limit", "stdout"),
    [
        (0, b"\n[ptocache: cut, 10 more bytes]\n"),
        (1, b"0\n[ptocache: cut, 9 more bytes]\n"),
        (9, b"012345678\n[ptocache: cut, 1 more bytes]\n"),
        (10, b"0123456789"),
        (11, b"0123456789"),
    ],
)
def test_a_log_is_cut_at_its_limit_with_a_note_of_what_is_missing(
    limit: int, stdout: bytes, workspace: Workspace
) -> None:
    ran = run_sh(workspace, "printf 01234", "printf 56789", limits=Limits(log_bytes=limit))
    assert ran.log == Log(stdout, b"")


def test_much_text_on_both_streams_stops_nobody(workspace: Workspace) -> None:
    script = "head -c 1000000 /dev/zero & head -c 700000 /dev/zero >&2; wait"
    ran = run_sh(workspace, script, limits=Limits(log_bytes=1000))
    assert ran.log.stdout == b"\0" * 1000 + b"\n[ptocache: cut, 999000 more bytes]\n"
    assert ran.log.stderr == b"\0" * 1000 + b"\n[ptocache: cut, 699000 more bytes]\n"


def test_a_dependency_file_is_read_as_the_names_of_files(workspace: Workspace) -> None:
    step = sh(r"printf 'k.o: \377.h' > k.d", name="compile", depfile="k.d")
    ran = run_sh(workspace, step)
    assert ran.depfiles == {"compile": "k.o: \udcff.h"}
    assert not ran.missing_depfiles


def test_a_dependency_file_that_was_not_written_is_noticed(workspace: Workspace) -> None:
    ran = run_sh(workspace, sh("true", name="compile", depfile="k.d"))
    assert ran.depfiles == {"compile": ""}
    assert ran.missing_depfiles


# --- failures


@pytest.mark.parametrize("code", [1, 2, 127, 255])
def test_a_tools_own_no_is_told_with_its_exit_code_and_its_text(
    code: int, workspace: Workspace
) -> None:
    step = sh(f"echo out; echo wrong >&2; echo 'k.o: k.c' > k.d; exit {code}", depfile="k.d")
    with pytest.raises(ToolFailedError) as caught:
        run_sh(workspace, "echo before", step, "touch never")
    error = caught.value
    assert isinstance(error, CompileFailedError)
    assert (error.exit_code, error.fields["exit_code"], error.fields["step"]) == (
        code,
        code,
        "step",
    )
    assert error.log == Log(b"before\nout\n", b"wrong\n")
    assert error.depfiles == {"step": "k.o: k.c\n"}
    assert error.complete
    assert not os.path.exists(os.path.join(workspace.work, "never"))


def test_a_failure_without_its_dependency_file_is_not_complete(workspace: Workspace) -> None:
    with pytest.raises(ToolFailedError) as caught:
        run_sh(workspace, sh("exit 1", depfile="k.d"))
    assert not caught.value.complete


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_a_step_ended_by_a_signal_names_it(number: signal.Signals, workspace: Workspace) -> None:
    with pytest.raises(StepKilledError, match=number.name) as caught:
        run_sh(workspace, f"kill -{int(number)} $$")
    assert caught.value.fields["signal"] == number


@pytest.mark.parametrize("script", ["true", "mkdir out.o", "ln -s nowhere out.o", "mkfifo out.o"])
def test_a_step_that_did_not_make_its_file_is_rejected(script: str, workspace: Workspace) -> None:
    with pytest.raises(OutputRejectedError, match=r"did not write out\.o"):
        run_sh(workspace, sh(script, "out.o"), wanted={"object": "out.o"})


def test_a_wanted_output_that_no_step_made_is_rejected(workspace: Workspace) -> None:
    with pytest.raises(OutputRejectedError, match="cannot be read"):
        run_sh(workspace, "true", wanted={"object": "out.o"})


@pytest.mark.parametrize("name", ["none", "folder", "no-program", "no-permission"])
def test_a_tool_that_cannot_be_started_is_the_machines_fault(
    name: str, workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for made, mode in (("no-program", 0o755), ("no-permission", 0o644)):
        (tmp_path / made).write_bytes(b"\x00\x01no format\n")
        (tmp_path / made).chmod(mode)
    with pytest.raises(StepSystemError, match="cannot be started"):
        run((Step("step", (str(tmp_path / name),), ()),), {}, workspace, {}, Limits())


# --- limits

HOLD = "sleep 300 & echo $! > child; "
"""A child that holds both streams open, and its pid."""


def child_of(workspace: Workspace) -> int:
    return pid_in(Path(workspace.work, "child"))


def test_a_step_beyond_its_time_ends_with_its_whole_group(workspace: Workspace) -> None:
    with pytest.raises(StepTimeoutError, match="longer than 1 s") as caught:
        run_sh(workspace, HOLD + "sleep 300", limits=Limits(step_timeout_s=1.0))
    assert caught.value.fields["step"] == "step"
    assert_ends(child_of(workspace))


def test_a_step_beyond_its_time_takes_what_left_its_session_with_it(workspace: Workspace) -> None:
    script = (
        "setsid sh -c 'echo $$ > child; sleep 300' & while ! test -s child; do :; done; sleep 300"
    )
    with pytest.raises(StepTimeoutError):
        run_sh(workspace, script, limits=Limits(step_timeout_s=1.0))
    assert_ends(child_of(workspace))


def test_a_tool_that_ignores_signals_ends_all_the_same(workspace: Workspace) -> None:
    script = "trap '' TERM INT HUP; echo $$ > child; while :; do sleep 300; done"
    with pytest.raises(StepTimeoutError):
        run_sh(workspace, script, limits=Limits(step_timeout_s=1.0))
    assert_ends(child_of(workspace))


def test_a_child_that_holds_the_streams_does_not_hold_up_a_finished_step(
    workspace: Workspace,
) -> None:
    ran = run_sh(workspace, HOLD + "echo done", limits=Limits(step_timeout_s=120))
    assert ran.log.stdout == b"done\n"
    assert_ends(child_of(workspace))


def test_a_child_that_closed_the_streams_ends_with_the_step_too(workspace: Workspace) -> None:
    run_sh(workspace, "sleep 300 >/dev/null 2>&1 & echo $! > child")
    assert_ends(child_of(workspace))


def test_what_a_failed_step_left_running_ends_with_it(workspace: Workspace) -> None:
    with pytest.raises(ToolFailedError):
        run_sh(workspace, HOLD + "exit 3")
    assert_ends(child_of(workspace))


def test_a_tool_that_closed_its_streams_is_waited_for(workspace: Workspace) -> None:
    ran = run_sh(
        workspace, sh("exec >&- 2>&-; sleep 0.1; echo x > out", "out"), wanted={"o": "out"}
    )
    assert ran.outputs[0].data == b"x\n"


def test_without_process_descriptors_the_end_is_noticed_too(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_pidfd", lambda _pid: -1)
    assert run_sh(workspace, HOLD + "echo done").log.stdout == b"done\n"
    assert_ends(child_of(workspace))
    with pytest.raises(StepTimeoutError):
        run_sh(workspace, "sleep 300", limits=Limits(step_timeout_s=0.1))


# --- cancel


def test_another_thread_ends_a_running_compile(workspace: Workspace) -> None:
    cancel = Cancel()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            run_sh(workspace, HOLD + "sleep 300", "touch never", cancel=cancel)
        except CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    child = child_of(workspace)
    cancel.cancel()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert_ends(child)
    assert not os.path.exists(os.path.join(workspace.work, "never"))


def test_a_compile_cancelled_before_it_began_starts_nothing(workspace: Workspace) -> None:
    cancel = Cancel()
    cancel.cancel()
    with pytest.raises(CancelledError):
        run_sh(workspace, "touch never", cancel=cancel)
    assert os.listdir(workspace.work) == []


def test_a_cancel_between_two_steps_starts_no_other(workspace: Workspace) -> None:
    class Later(Cancel):
        """Asked for as soon as the first step has ended."""

        @contextlib.contextmanager
        def watching(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
            with super().watching(process):
                yield
            self.requested = True

    with pytest.raises(CancelledError):
        run_sh(workspace, "touch first", "touch never", cancel=Later())
    assert os.listdir(workspace.work) == ["first"]


def test_cancelling_what_has_ended_does_nothing(workspace: Workspace) -> None:
    cancel = Cancel()
    run_sh(workspace, "true", cancel=cancel)
    cancel.cancel()
    assert cancel.requested


# --- nothing is left

LEAVINGS = [
    "touch file; mkdir -p a/b/c; touch a/b/c/file; ln -s / root; mkfifo pipe",
    "mkdir -p a/b; touch a/b/file; chmod 000 a/b; chmod 000 a",
    "mkdir -p a/b; touch a/file; chmod 500 a; chmod 000 a/file",
    'mkdir "$TMPDIR/x"; touch "$TMPDIR/x/y"; chmod 000 "$TMPDIR/x"; chmod 000 "$TMPDIR" .',
]


@pytest.mark.parametrize("script", LEAVINGS)
def test_nothing_of_a_compile_stays_whatever_the_tool_made(script: str, tmp_path: Path) -> None:
    with Workspace(str(tmp_path)) as workspace:
        workspace.materialise("k.c", b"", 0)
        run_sh(workspace, script)
    assert os.listdir(tmp_path) == []


def test_nothing_stays_after_a_failure_either(tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError), Workspace(str(tmp_path)) as workspace:
        run_sh(workspace, "mkdir x; exit 1")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_a_link_leads_to_is_neither_opened_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"")
    outside.chmod(0o555)
    (tmp_path / "scratch").mkdir()
    remove, calls = shutil.rmtree, []

    def fail_once(path: str, ignore_errors: bool) -> None:
        # As an unprivileged user meets it with a folder that allows nothing.
        calls.append(path)
        if len(calls) > 1:
            remove(path, ignore_errors=ignore_errors)

    with Workspace(str(tmp_path / "scratch")) as workspace:
        run_sh(workspace, f"ln -s {outside} link")
        monkeypatch.setattr(shutil, "rmtree", fail_once)
    assert len(calls) == 2
    assert os.listdir(tmp_path / "scratch") == []
    assert outside.stat().st_mode & 0o777 == 0o555
    assert (outside / "precious").exists()


def test_no_descriptor_stays_open(workspace: Workspace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run_sh(workspace, HOLD + "true")
    for script in ("exit 1", "kill -9 $$"):
        with pytest.raises((ToolFailedError, StepKilledError)):
            run_sh(workspace, script)
    assert len(os.listdir("/proc/self/fd")) == before


# --- probes


def test_a_probe_tells_what_a_tool_answered() -> None:
    answer = probe((SH, "-c", r"printf 'out\377'; echo err >&2; exit 3"))
    assert answer == (3, "out\ufffd", "err\n")


def test_a_probe_runs_in_our_environment_and_nothing_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "of the daemon")
    answer = probe((ENV,), {"EXTRA": "1"}, scratch=str(tmp_path))
    seen = dict(line.split("=", 1) for line in answer.stdout.splitlines())
    place = seen["TMPDIR"]
    assert seen == environment({"EXTRA": "1"}, place)
    assert Path(place).parent == tmp_path
    assert os.listdir(tmp_path) == []


def test_a_probe_of_nothing_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        probe(("/nonexistent/tool", "--version"))


def test_a_probe_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_PROBE_TIMEOUT_S", 1.0)
    with pytest.raises(TimeoutError, match="did not answer"):
        probe((SH, "-c", f"cd {tmp_path}; {HOLD} sleep 300"))
    assert_ends(pid_in(tmp_path / "child"))


def test_a_probe_does_not_wait_for_a_child_that_left_its_session_with_its_streams(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    leave = f"setsid sh -c 'echo $$ > {pid}; exec sleep 60' &"
    answer = probe((SH, "-c", f"{leave} while [ ! -s {pid} ]; do sleep 0.01; done; echo said"))
    assert answer.stdout == "said\n"
    child = int(pid.read_text())
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_a_probe_goes_on_in_the_spare_place_if_its_own_refuses(tmp_path: Path) -> None:
    said: list[Exception] = []

    def spare(error: Exception) -> str:
        said.append(error)
        return str(tmp_path)

    answer = probe((SH, "-c", "pwd"), scratch=str(tmp_path / "missing"), spare=spare)
    assert answer.stdout.startswith(f"{tmp_path}/probe-")
    assert [type(error) for error in said] == [FileNotFoundError]
    assert os.listdir(tmp_path) == []


def test_what_a_tool_says_or_what_the_disk_says_tells_of_a_refusal(tmp_path: Path) -> None:
    with Workspace(str(tmp_path)) as workspace:
        assert workspace.refused(b"error: expected ';'") == ""
        assert workspace.refused(b"k.s: No space left on device") == "No space left on device"
        shutil.rmtree(workspace.root)
        assert workspace.refused() == "No such file or directory"
