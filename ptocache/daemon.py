"""Puts the parts together, and takes them apart again. Run as a process: :func:`main`.

Start: settings → lock → guard → leftovers of a dead daemon → store → toolchains → service → socket,
which is announced last. Stop: the socket is withdrawn first → running compiles may finish → the rest
is ended and its waiters are told → answers are sent → statistics are written → the lock is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from . import __version__, guard, log, server
from .compiler import Limits, probe, tidy
from .config import Settings, load
from .contents import Contents
from .control import Controls
from .errors import PtocacheError, StoreBusyError, StoreUnusableError
from .identity import Identities, Options
from .kernels import ROOM_BYTES, Kernels
from .paths import store_at
from .service import Service
from .store.collect import collect
from .store.store import Store, prepare_root
from .tally import Tally
from .toolchain import Registry
from .watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger("ptocache.daemon")

EXIT_OK = 0
EXIT_WRONG_USE = 2
EXIT_UNUSABLE = 4
EXIT_ALREADY_SERVED = 5
# Many wait for a look at a toolchain that one of them takes; a hit on disk must not wait behind them.
_IO_THREADS = 16
_FLUSH_S = 1.0
_AGE_CHECK_S = 600.0
_SEND_PATIENCE_S = 5.0
_STOP_MARGIN_S = 30.0
_SD_LISTEN_FD = 3
_JOURNAL = "wal"


class Daemon:
    """One daemon of one store."""

    def __init__(self, settings: Settings, registry: Registry | None = None) -> None:
        self.settings = settings
        self._registry = registry
        self.paths = store_at(os.path.realpath(settings["store.root"]))
        # The spare is not followed: whoever put a link there must not choose which processes are ended.
        self._markers = (os.path.realpath(self.paths.tmp), self.paths.spare)
        self.started_s = time.monotonic()
        self._stop_asked = 0
        self._wake: asyncio.Event | None = None
        self._collecting = False

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop.

        Raises :class:`~ptocache.errors.StoreBusyError` if another daemon serves the store,
        :class:`~ptocache.errors.StoreError` and its kind if it cannot be served.
        """
        # What the store holds is nobody else's, whatever the one who started us is used to.
        os.umask(0o077)
        prepare_root(self.paths)
        # A marker file instead of a lock would outlive a killed daemon, and say nothing to another host.
        lock = FileLock(
            self.paths.lock, timeout=0, mode=0o600, thread_local=False, fallback_to_soft=False
        )
        try:
            lock.acquire()
        except NotImplementedError as error:
            raise StoreUnusableError(
                f"the file system of {self.paths.lock} has no locks",
                hint="choose a place on another one with PTOCACHE_DIR",
                path=self.paths.lock,
            ) from error
        except OSError as error:
            # Timeout is one as well.
            if not isinstance(error, Timeout):
                raise StoreUnusableError(
                    f"the lock {self.paths.lock} cannot be taken: {error.strerror or error}",
                    hint="check the permissions of the store's directory, and its free space",
                    path=self.paths.lock,
                ) from error
            raise StoreBusyError(
                f"a daemon already serves the store {self.paths.root}",
                hint="ptocache status tells more of it",
                path=self.paths.lock,
            ) from error
        try:
            asyncio.run(self._serve(on_ready))
        finally:
            lock.release()

    def ask_to_stop(self) -> None:
        """Begin to stop; a second time does not wait for running compiles."""
        self._stop_asked += 1
        if self._wake is not None:
            self._wake.set()

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        settings = self.settings
        self._wake = asyncio.Event()
        _raise_descriptor_limit()
        left = guard.end_tools(*self._markers)
        if left:
            _log.warning("ended %d tools that a dead daemon had left running", left)
        with contextlib.ExitStack() as stack:
            self.guard = stack.enter_context(_guarded(self._markers))
            self.tally = Tally()
            self.store = Store(
                self.paths,
                limit=settings["store.max_size"],
                low_water=settings["store.low_water"],
                memory=settings["daemon.memory"],
                fsync=settings["store.fsync"],
                tally=self.tally,
            )
            stack.callback(self.store.close)
            journal = self.store.index.journal
            if journal not in ("", _JOURNAL):
                _log.warning(
                    "the file system of %s cannot do write-ahead logging, so the index keeps a journal "
                    "(%s): slower, and as right", self.paths.root, journal,
                )  # fmt: skip
            self.store.sweep_unfinished()
            self.contents = contents = Contents(self.store.index)
            watcher = Watcher(
                lambda path: self.identities.hint(path), enabled=settings["daemon.watch"]
            )
            stack.callback(watcher.stop)
            self.watcher = watcher
            # Entered last, so left first: no thread outlives the store that it works on.
            io = stack.enter_context(ThreadPoolExecutor(_IO_THREADS, thread_name_prefix="io"))
            jobs = stack.enter_context(
                ThreadPoolExecutor(settings["compile.jobs"], thread_name_prefix="job")
            )
            self.identities = Identities(
                contents,
                functools.partial(
                    probe, scratch=os.path.realpath(self.paths.tmp), spare=self.store.scratch_failed
                ),
                self.store.index,
                Options(settings["identity.relocatable"], settings["identity.trust_scripts"]),
                watcher.watch,
            )
            self.registry = self._registry or Registry.discover()
            self.service = Service(
                self.registry,
                self.identities,
                contents,
                self.store,
                self.tally,
                Limits(settings["compile.step_timeout"], settings["compile.log_limit"]),
                jobs=settings["compile.jobs"],
                jobs_executor=jobs,
                io_executor=io,
                salt=settings["request.salt"],
                negative_ttl_s=settings["compile.negative_ttl"],
                mode=settings["request.mode"],
                on_published=self._published,
            )
            self.kernels = Kernels(
                self.registry,
                self.identities,
                contents,
                self.store,
                self.tally,
                self.service.memory,
                io_executor=io,
                salt=settings["request.salt"],
                mode=settings["request.mode"],
                lease_timeout_s=settings["kernel.lease_timeout"],
                room=min(ROOM_BYTES, settings["store.max_size"]),
                on_published=self._published,
            )
            self._io = io
            await self._listen(on_ready)

    async def _listen(self, on_ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        listener, owned = _activated_socket(), False
        if listener is None:
            listener, owned = server.listen(self.settings.socket), True
        place = os.lstat(self.settings.socket) if owned else None
        self.server = server.Server(
            listener, self.service, self.kernels, Controls(self).table(), self.registry.variables()
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        upkeep = [loop.create_task(work) for work in (self._flush_often(), self._look_around())]
        if not self.store.was_clean:
            loop.run_in_executor(self._io, self.store.sweep_orphans)
        self._published()
        # What is alive now stays for the daemon's life: the collector need not walk it again.
        gc.collect()
        gc.freeze()
        self.server.start()
        _log.info("serving %s on %s (pid %d)", self.paths.root, self.settings.socket, os.getpid())
        on_ready()
        try:
            assert self._wake is not None
            await self._wake.wait()
        finally:
            if place is not None:
                _withdraw(self.settings.socket, place)
            self.server.stop_accepting()
            await self._finish_running()
            # A tool that left its group, or a question to a tool, ends with the daemon as well.
            await asyncio.to_thread(guard.end_tools, *self._markers)
            for task in upkeep:
                task.cancel()
            await self.server.close(_SEND_PATIENCE_S)
            _log.info("stopped")

    async def _finish_running(self) -> None:
        """Let compiles end by themselves; a second request to stop, or the limit, ends them."""
        deadline = time.monotonic() + self.settings["compile.step_timeout"] + _STOP_MARGIN_S
        while self.server.under_way and self._stop_asked < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.service.shut_down()
        self.kernels.shut_down()
        await asyncio.to_thread(guard.end_tools, *self._markers)
        patience = time.monotonic() + _SEND_PATIENCE_S
        while self.server.under_way and time.monotonic() < patience:
            await asyncio.sleep(0.02)

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            await self.in_io(self.store.flush)
            await self.in_io(tidy)
            self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        limit_s = self.settings["daemon.idle_timeout"]
        idle_s = time.monotonic() - self.server.last_activity_s
        if limit_s and idle_s > limit_s and not self.server.under_way:
            _log.info("idle for %.0f s", idle_s)
            self.ask_to_stop()

    async def _look_around(self) -> None:
        """Re-scan toolchains (events may never come), and evict what is too old."""
        aged_s = 0.0
        while True:
            await asyncio.sleep(self.settings["daemon.rescan"])
            await self.in_io(self.identities.rescan)
            age = self.settings["store.max_age"]
            if age and time.monotonic() - aged_s > min(_AGE_CHECK_S, age):
                aged_s = time.monotonic()
                await self.in_io(_collect_old, self.store, age)

    def _published(self) -> None:
        """Evict in the background once the limit is passed."""
        if self._collecting or self.store.read_only or not self.store.budget.excess():
            return
        self._collecting = True

        def work() -> None:
            try:
                collect(self.store)
            except PtocacheError as error:
                _log.warning("an eviction failed: %s", error)
            except Exception:
                _log.exception("an eviction failed")
            finally:
                self._collecting = False

        self._io.submit(work)

    async def in_io(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something that blocks in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._io, function, *args)


def _collect_old(store: Store, age_s: float) -> None:
    if store.read_only:
        return
    try:
        collect(store, unused_since_s=time.time() - age_s)
    except PtocacheError as error:
        _log.warning("an eviction failed: %s", error)


@contextlib.contextmanager
def _guarded(markers: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that outlives this one and ends its tools, should it die."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, *markers],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(guard.GOODBYE)
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _activated_socket() -> socket.socket | None:
    """The socket that systemd hands over (sd_listen_fds(3)), if it does."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    os.set_inheritable(_SD_LISTEN_FD, False)
    return socket.socket(fileno=_SD_LISTEN_FD)


def _withdraw(path: str, place: os.stat_result) -> None:
    """Remove the socket, if it is still the one that was made."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (place.st_dev, place.st_ino):
            os.unlink(path)


def serve(settings: Settings) -> int:
    """Run a daemon to its end; returns the exit code."""
    log.set_up(settings)
    try:
        Daemon(settings).run()
    except StoreBusyError as error:
        _log.info("%s", error)
        return EXIT_ALREADY_SERVED
    except PtocacheError as error:
        _log.error("%s", error)
        return EXIT_UNUSABLE
    return EXIT_OK


def main() -> None:
    """The process that a client starts."""
    log.hold_standard_streams()
    try:
        settings = load()
        # Asked for before anything is made: a place that cannot be is wrong use.
        _ = settings.socket
    except PtocacheError as error:
        sys.stderr.write(f"ptocache daemon {__version__}: {error}\n")
        sys.exit(EXIT_WRONG_USE)
    sys.exit(serve(settings))
