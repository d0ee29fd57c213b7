"""Many compiles at once: their order, their number of messages, and how a batch is given up."""

from __future__ import annotations

import gc
import os
import pty
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import batch as batch_module
from ptocache.batch import WINDOW
from ptocache.connection import Connection
from ptocache.errors import BadRequestError, PtocacheWarning
from ptocache.outcome import Outcome, Reason
from tests.harness import (
    DEADLINE_S,
    DaemonProcess,
    Gate,
    LoggingCompiler,
    alive,
    compile_directly,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptocache.client import Client
    from ptocache.pending import Pending
    from ptocache.result import Result

ENV = {"PATH": os.environ.get("PATH", "")}


def job(client: Client, text: str, **more: Any) -> Pending:
    """A request for an object."""
    more.setdefault("env", ENV)
    return client.job("host", {"k.c": text}, outputs=["object"], **more)


def jobs(client: Client, count: int, **more: Any) -> list[Pending]:
    return [job(client, f"int n{number};\n", **more) for number in range(count)]


class Held:
    """A daemon whose compiler waits at a gate, those with -DSLOW or all."""

    def __init__(
        self, make: Callable[..., DaemonProcess], place: Path, *, only: str = "", **settings: Any
    ) -> None:
        self.gate = Gate(place / "gate")
        script = f'case " $* " in *"{only}"*) {self.gate.script} ;; esac'
        self.compiler = LoggingCompiler(place / "cc", before=script)
        settings.setdefault("jobs", 1)
        self.daemon = make(trust_scripts=self.compiler.trust, **settings).start()

    @property
    def env(self) -> dict[str, str]:
        return self.compiler.env

    def status(self, name: str) -> int:
        with self.daemon.client() as client:
            return int(client.call("status")[name])

    def is_quiet(self) -> bool:
        """True if nothing is compiled, and nobody waits."""
        return self.status("waiting") == 0 and self.status("compiling") == 0


def add_up(daemon: DaemonProcess) -> bool:
    """True if every request has ended as exactly one thing."""
    found = daemon.stats()
    names = ("memory_hit", "disk_hit", "remote_hit", "joined", "miss", "bypass", "failure")
    return bool(found["requests"] == sum(found[name] for name in names))


# --- asking


def test_results_come_as_they_finish(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path, only="-DSLOW", jobs=2)
    with held.daemon.client() as client:
        asked = [job(client, "int slow;\n", options=["-DSLOW"], env=held.env)]
        asked += jobs(client, 3, env=held.env)
        results = client.compile_many(asked)
        first = [next(results)[0] for _ in range(3)]
        held.gate.open()
        assert sorted(first) == [1, 2, 3]
        assert [number for number, _ in results] == [0]


def test_a_batch_is_one_message(
    shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = Connection.send

    def noted(self: Connection, message: Any) -> None:
        sent.append(message["type"])
        send(self, message)

    with shared_daemon.client() as client:
        asked = jobs(client, 4)
        list(client.compile_many(asked))
        monkeypatch.setattr(Connection, "send", noted)
        results = list(client.compile_many(asked * 50))
    assert len(results) == 200
    assert sent == ["batch"]


def test_jobs_may_come_from_a_generator_of_which_little_is_held(
    shared_daemon: DaemonProcess,
) -> None:
    answered = 0
    most = 0

    def made(client: Client) -> Iterator[Pending]:
        nonlocal most
        for number in range(3000):
            most = max(most, number - answered)
            yield job(client, f"int lazy{number % 3};\n")

    with shared_daemon.client() as client:
        batch = client.compile_many(made(client))
        assert batch.progress.total is None
        seen = set()
        for number, result in batch:
            assert result.ok
            seen.add(number)
            answered += 1
    assert seen == set(range(3000))
    assert WINDOW < most <= 2 * WINDOW
    assert batch.progress.total == batch.progress.done == 3000


def test_first_compile_of_a_generator_begins_before_its_last_job_is_made(
    shared_daemon: DaemonProcess,
) -> None:
    made = 0

    def slowly(client: Client) -> Iterator[Pending]:
        nonlocal made
        for number in range(100):
            made += 1
            yield job(client, f"int early{number % 2};\n")

    with shared_daemon.client() as client, client.compile_many(slowly(client)) as batch:
        next(batch)
        assert made < 100


def test_what_is_asked_twice_in_a_batch_is_compiled_once(
    make_daemon: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=4).start()
    with daemon.client() as client:
        one = job(client, "int twin;\n", env=logging_compiler.env)
        same = job(client, "int twin;\n", env=logging_compiler.env)
        results = dict(client.compile_many([one, one, same]))
        outcomes = Counter(result.outcome for result in results.values())
    assert len(logging_compiler.compiles()) == 1
    assert outcomes[Outcome.MISS] == 1
    assert sum(outcomes.values()) == 3
    assert outcomes[Outcome.BYPASS] == outcomes[Outcome.FAILURE] == 0


def test_what_is_asked_twice_is_compiled_once_without_a_daemon_too(
    make_daemon: Callable[..., DaemonProcess], logging_compiler: LoggingCompiler
) -> None:
    nobody = make_daemon()
    with nobody.client(client_require=False) as client:
        twins = [job(client, "int twin;\n", env=logging_compiler.env) for _ in range(3)]
        with pytest.warns(PtocacheWarning):
            results = dict(client.compile_many(twins))
    assert len(logging_compiler.compiles()) == 1
    assert {bytes(results[n].outputs["object"].buffer) for n in range(3)} == {
        bytes(results[0].outputs["object"].buffer)
    }


def test_a_job_can_be_asked_for_again_after_its_entry_has_gone(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        again = job(client, "int again;\n")
        for _ in range(2):
            # It counts what is waited for now, however long ago the job was made.
            again.started -= 1000.0
            ((_, result),) = client.compile_many([again])
            assert result.outcome is Outcome.MISS, result.why
            assert result.total_ms < 900_000
            client.call("invalidate", all=True)


def test_what_no_message_can_carry_fails_alone(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        asked = jobs(client, 3)
        asked.insert(1, job(client, "int x;\n" + " " * (65 << 20)))
        asked.insert(2, job(client, "int y;\n", options=["-D\ud800"]))
        asked.append(job(client, "int z;\n", options=["-D" + "x" * (65 << 20)]))
        results = dict(client.compile_many(asked))
        # Room that the daemon kept for the long one has been given back.
        ((_, last),) = client.compile_many([job(client, "int last;\n")])
    assert last.outcome is Outcome.MISS
    for number, length in ((1, 6), (2, 0), (5, 6)):
        assert results[number].reason is Reason.BAD_REQUEST
        assert isinstance(results[number].error, BadRequestError)
        assert "longer than the limit" in results[number].why or not length
    assert [results[number].outcome for number in (0, 3, 4)] == [Outcome.MISS] * 3
    assert add_up(daemon)


def test_what_no_message_can_carry_is_an_answer_on_a_used_connection_too(
    daemon: DaemonProcess,
) -> None:
    source = "int x;\n" + " " * (65 << 20)
    with daemon.client() as client:
        assert client.compile("host", {"k.c": "int y;\n"}, env=ENV, outputs=["object"]).ok
        result = client.compile("host", {"k.c": source}, env=ENV, outputs=["object"], check=False)
        assert result.reason is Reason.BAD_REQUEST
        assert "longer than the limit" in result.why
        with pytest.raises(BadRequestError, match="longer than the limit"):
            client.compile("host", {"k.c": source}, env=ENV, outputs=["object"])
    assert add_up(daemon)
    assert daemon.stats()["failure"] == 2


def test_jobs_that_are_added_to_the_list_meanwhile_are_asked_for_too(
    shared_daemon: DaemonProcess,
) -> None:
    with shared_daemon.client() as client:
        asked = jobs(client, 2)
        seen = []
        batch = client.compile_many(asked)
        for number, result in batch:
            assert result.ok
            seen.append(number)
            if len(asked) < 6:
                asked += jobs(client, 2)
            # On the connection that the batch has given back, or on another one.
            assert client.compile("host", {"k.c": "int n0;\n"}, env=ENV, outputs=["object"]).ok
    assert sorted(seen) == list(range(6))
    assert (batch.progress.done, batch.progress.total) == (6, 6)


class Miscounted(list["Pending"]):
    """Says that it has one item."""

    def __len__(self) -> int:
        return 1


def test_a_wrong_number_of_jobs_loses_none(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.client() as client:
        results = dict(client.compile_many(Miscounted(jobs(client, 3))))
        assert sorted(results) == [0, 1, 2]
        assert all(result.ok for result in results.values())


def test_what_is_no_job_is_told_after_the_results_before_it(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.client() as client:
        asked: list[Any] = [*jobs(client, 2), "int k;"]
        seen = []
        with pytest.raises(BadRequestError, match="job number 2"):
            for number, result in client.compile_many(asked):
                assert result.ok
                seen.append(number)
        assert sorted(seen) == [0, 1]


def test_an_error_of_the_callers_generator_comes_after_the_results_before_it(
    shared_daemon: DaemonProcess,
) -> None:
    def made(client: Client) -> Iterator[Pending]:
        yield from jobs(client, 3)
        raise LookupError("no more tiles")

    with shared_daemon.client() as client:
        seen = []
        with pytest.raises(LookupError, match="no more tiles"):
            for number, result in client.compile_many(made(client)):
                assert result.ok
                seen.append(number)
        assert sorted(seen) == [0, 1, 2]
        assert client.compile("host", {"k.c": "int n0;\n"}, env=ENV, outputs=["object"]).ok


def test_what_a_person_waits_for_overtakes_a_running_sweep_of_the_same_client(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path)
    ended: list[str] = []
    with held.daemon.client() as client:

        def sweep() -> None:
            for number, _ in client.compile_many(jobs(client, 5, env=held.env)):
                ended.append(f"sweep {number}")

        def person() -> None:
            client.compile("host", {"p.c": "int p;\n"}, env=held.env, outputs=["object"])
            ended.append("person")

        threads = [threading.Thread(target=sweep)]
        threads[0].start()
        wait_for(lambda: held.status("waiting") == 5, "the sweep to stand in the queue")
        threads.append(threading.Thread(target=person))
        threads[1].start()
        wait_for(lambda: held.status("waiting") == 6, "the person to stand in the queue")
        held.gate.open()
        for thread in threads:
            thread.join(30)
    assert len(ended) == 6
    # In which order the threads note their answers is the machine's business.
    begun = [" -c p.c " in run for run in held.compiler.compiles()]
    assert begun.index(True) <= 2


# --- giving up


def given_up(held: Held, client: Client) -> None:
    """What holds after a batch of 5 was given up while its first compile ran."""
    wait_for(held.is_quiet, "the compiles that nobody waits for to end")
    (pid,) = held.gate.arrivals()
    wait_for(lambda: not alive(pid), "the compiler to end")
    assert add_up(held.daemon)
    held.gate.open()
    again = client.compile("host", {"k.c": "int n1;\n"}, env=held.env, outputs=["object"])
    assert again.outcome is Outcome.MISS
    assert held.daemon.stats()["miss"] == 1


def test_cancel_from_another_thread_ends_what_nobody_else_waits_for(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path)
    with held.daemon.client() as client:
        with client.compile_many(jobs(client, 5, env=held.env)) as batch:
            reader = threading.Thread(target=lambda: [None for _ in batch])
            reader.start()
            wait_for(held.gate.arrivals, "the first compile to begin")
            batch.cancel()
            reader.join(30)
            assert not reader.is_alive()
        assert batch.cancelled
        assert batch.progress.done == 0
        assert list(batch) == []
        given_up(held, client)


def test_a_signals_handler_may_cancel_while_a_cancel_is_under_way(
    shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with shared_daemon.client() as client:
        batch = client.compile_many(jobs(client, 3))
        interrupt = Connection.interrupt

        def interrupted(self: Connection) -> None:
            if not told:
                told.append("in the middle")
                # As a second signal does, in the same thread.
                batch.cancel()
            interrupt(self)

        monkeypatch.setattr(Connection, "interrupt", interrupted)
        next(batch)
        thread = threading.Thread(target=batch.cancel, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert told
        assert list(batch) == []


def test_a_forked_child_shows_nothing_of_its_parents_batch(
    shared_daemon: DaemonProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    with shared_daemon.client() as client:
        batch = client.compile_many(jobs(client, 200), progress=True)
        next(batch)
        capfd.readouterr()
        child = os.fork()
        if not child:
            batch.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert capfd.readouterr().err == ""
        assert len(list(batch)) == 199


def test_a_loop_that_is_left_for_an_exception_gives_the_batch_up(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    # A slot for each: which of a batch has one first is nobody's promise.
    held = Held(make_daemon, tmp_path, only="-DSLOW", jobs=4)
    with held.daemon.client() as client:
        asked = [job(client, "int fast;\n", env=held.env)]
        asked += jobs(client, 3, env=held.env, options=["-DSLOW"])
        # Nobody may have to wait for the collector of circles.
        gc.disable()
        try:
            with pytest.raises(ZeroDivisionError):
                for _ in client.compile_many(asked):
                    wait_for(held.gate.arrivals, "the next compile to begin")
                    raise ZeroDivisionError
            wait_for(held.is_quiet, "the compiles that nobody waits for to end")
        finally:
            gc.enable()
        assert add_up(held.daemon)
        held.gate.open()
        assert [r.outcome for _, r in client.compile_many(asked[:1])] == [Outcome.MEMORY_HIT]


def test_an_interrupted_batch_is_given_up(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path)

    def interrupt() -> None:
        wait_for(held.gate.arrivals, "the first compile to begin")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with held.daemon.client() as client:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            for _ in client.compile_many(jobs(client, 5, env=held.env)):
                pass
        thread.join(30)
        given_up(held, client)


def test_a_compile_that_somebody_else_waits_for_goes_on_when_its_batch_is_given_up(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path)
    found: list[Result] = []
    with held.daemon.client() as client, held.daemon.client() as other:
        batch = client.compile_many(jobs(client, 3, env=held.env))
        reader = threading.Thread(target=lambda: [None for _ in batch])
        reader.start()
        wait_for(held.gate.arrivals, "the first compile to begin")

        def wait() -> None:
            found.append(
                other.compile("host", {"k.c": "int n0;\n"}, env=held.env, outputs=["object"])
            )

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_for(lambda: held.status("waiting") == 4, "somebody else to wait for it")
        batch.cancel()
        reader.join(30)
        wait_for(lambda: held.status("waiting") == 1, "the batch to be given up")
        held.gate.open()
        waiter.join(30)
    assert [result.outcome for result in found] == [Outcome.JOINED]
    assert len(held.compiler.compiles()) == 1
    assert add_up(held.daemon)


def test_a_compile_without_a_daemon_ends_when_the_batch_is_cancelled(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    nobody = make_daemon()
    gate = Gate(tmp_path / "gate")
    compiler = LoggingCompiler(tmp_path / "cc", before=gate.script)
    with nobody.client(client_require=False) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", PtocacheWarning)
        batch = client.compile_many(jobs(client, 3, env=compiler.env))
        reader = threading.Thread(target=lambda: [None for _ in batch])
        reader.start()
        wait_for(gate.arrivals, "the first compile to begin")
        batch.cancel()
        reader.join(30)
    assert not reader.is_alive()
    assert batch.progress.done == 0
    assert len(gate.arrivals()) == 1
    assert not alive(gate.arrivals()[0])


def test_a_cancel_after_the_last_result_disturbs_nobody(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.client() as client:
        batch = client.compile_many(jobs(client, 2))
        assert len(list(batch)) == 2
        batch.cancel()
        ((_, result),) = client.compile_many(jobs(client, 1))
        assert result.outcome is Outcome.MEMORY_HIT


def test_a_batch_belongs_to_the_process_that_began_it(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    held = Held(make_daemon, tmp_path, only="-DSLOW", jobs=2)
    with held.daemon.client() as client:
        asked = [job(client, "int slow;\n", options=["-DSLOW"], env=held.env)]
        batch = client.compile_many([*asked, *jobs(client, 1, env=held.env)])
        next(batch)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                batch.cancel()
                next(batch)
            except BadRequestError:
                batch.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        held.gate.open()
        ((number, result),) = batch
    assert (number, result.outcome) == (0, Outcome.MISS)
    assert len(held.gate.arrivals()) == 1, "nobody hung up on the parent's daemon"


# --- a daemon that goes


def test_a_daemon_killed_in_mid_batch_is_started_again_and_finishes_it(
    make_daemon: Callable[..., DaemonProcess],
    logging_compiler: LoggingCompiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    daemon = make_daemon(trust_scripts=logging_compiler.trust, jobs=2).start()
    # For the one that the client starts.
    for name in ("PTOCACHE_TRUST_SCRIPTS", "PTOCACHE_JOBS", "PTOCACHE_FSYNC"):
        monkeypatch.setenv(name, daemon.env[name])
    results: dict[int, Result] = {}
    with daemon.client(client_autostart=True) as client:
        for number, result in client.compile_many(jobs(client, 12, env=logging_compiler.env)):
            assert number not in results
            results[number] = result
            if len(results) == 4:
                daemon.kill()
        with client.compile_many(jobs(client, 12, env=logging_compiler.env)) as again:
            assert all(result.outcome.is_hit for _, result in again)
        client.call("stop")
    assert sorted(results) == list(range(12))
    assert {result.reason for result in results.values()} == {Reason.NONE}
    wanted = compile_directly(b"int n7;\n", "k.c", [], tmp_path / "direct")
    assert bytes(results[7].outputs["object"].buffer) == wanted


def test_a_batch_without_a_daemon_meets_the_one_that_comes(
    make_daemon: Callable[..., DaemonProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "_ASIDE_S", 0.0)
    daemon = make_daemon()
    reasons = []
    with daemon.client(client_require=False) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", PtocacheWarning)
        for _, result in client.compile_many(jobs(client, 4)):
            reasons.append(result.reason)
            if len(reasons) == 2:
                daemon.start()
    assert reasons == [Reason.NO_DAEMON, Reason.NO_DAEMON, Reason.NONE, Reason.NONE]


# --- what is shown

SCRIPT = """
import ptocache, sys
with ptocache.connect() as client:
    jobs = [client.job("host", {"k.c": f"int shown{n};"}, outputs=["object"]) for n in range(3)]
    for _ in client.compile_many(jobs, **eval(sys.argv[1])):
        pass
"""


def shown(daemon: DaemonProcess, arguments: str, *, terminal: bool) -> str:
    """What a batch of three writes to standard error."""
    words = [sys.executable, "-c", SCRIPT, arguments]
    env = {**daemon.env, "TERM": "xterm", "COLUMNS": "100"}
    if not terminal:
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == ""
        return done.stderr
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(words, env=env, stderr=theirs, stdout=subprocess.PIPE) as process:
            os.close(theirs)
            said = b""
            while True:
                try:
                    piece = os.read(ours, 1 << 16)
                except OSError:
                    break
                if not piece:
                    break
                said += piece
            assert process.stdout is not None
            assert process.stdout.read() == b""
        assert process.returncode == 0, said
    finally:
        os.close(ours)
    return said.decode()


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(shared_daemon: DaemonProcess) -> None:
    shown(shared_daemon, "{}", terminal=False)
    assert shown(shared_daemon, "{}", terminal=False) == ""
    said = shown(shared_daemon, "{}", terminal=True)
    assert "3/3: 3 hits, 0 misses" in said
    assert "s saved" in said
    assert said.count("\x1b[?25h") >= said.count("\x1b[?25l"), "the cursor is shown again"
    assert shown(shared_daemon, "{'progress': False}", terminal=True) == ""


def test_lines_are_written_where_a_bar_is_asked_for_and_cannot_be(
    shared_daemon: DaemonProcess,
) -> None:
    said = shown(shared_daemon, "{'progress': True}", terminal=False)
    assert said.splitlines()[-1].startswith("ptocache: 3/3: ")
