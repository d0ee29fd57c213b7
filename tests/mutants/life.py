"""Faults in processes, sockets and messages."""

from __future__ import annotations

from tests.mutants import Mutant

_STORMS = "tests/faults/test_storms.py"
_STARTS = "tests/faults/test_storm_start.py"
_FLIGHTS = "tests/system/test_single_flight.py"
_LIFE = "tests/system/test_daemon_life.py"
_PLACES = "tests/faults/test_places.py"
_LARGE = "tests/system/test_large_outputs.py"
_CANARIES = "tests/faults/test_canaries.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "compile_storm",
        "each request compiles for itself, whoever compiles the same at this moment",
        f"{_STORMS}::test_compile_storm_of_sixty_four_processes_on_one_cold_key_runs_each_tool_once",
        "ptocache/service.py",
        "flight = (question.action.key, prepared.job.source_dir, prepared.bases)\n        while True:",
        "flight = (question.action.key, f'{id(turn)}', ())\n        while True:",
    ),
    Mutant(
        "compile_storm",
        "who asks while a kernel is built gets a lease as well",
        f"{_STORMS}::test_compile_storm_of_sixty_four_processes_on_one_cold_kernel_gets_one_lease",
        "ptocache/kernels.py",
        "if not self._flights.enter(key, seat):",
        "if not self._flights.enter(key, seat) and False:",
    ),
    Mutant(
        "compile_storm",
        "different keys are compiled one after the other",
        f"{_STORMS}::test_compile_storm_of_sixteen_processes_on_sixteen_keys"
        "_runs_side_by_side_up_to_jobs",
        "ptocache/daemon.py",
        'jobs=settings["compile.jobs"],',
        "jobs=1,",
    ),
    Mutant(
        "lock_left_by_killed_process",
        "the build of a client that is gone stays the one that everybody waits for",
        f"{_FLIGHTS}::test_lock_left_by_killed_process_holds_up_nobody_who_asks_next[client]",
        "ptocache/service.py",
        "self._flights.leave(flight, ticket)\n            if not self._flights.members(flight)",
        "if self._flights.members(flight) == 1",
    ),
    Mutant(
        "lock_left_by_killed_process",
        "the build whose tool was killed never ends",
        f"{_FLIGHTS}::test_lock_left_by_killed_process_holds_up_nobody_who_asks_next[tool]",
        "ptocache/service.py",
        "result = _Result(answers.failure(error, flight[0]), None, True)",
        "return",
    ),
    Mutant(
        "lock_left_by_killed_process",
        "the daemon's lock is a file that only an orderly end removes",
        f"{_FLIGHTS}::test_lock_left_by_killed_process_holds_up_nobody_who_asks_next[daemon]",
        "ptocache/daemon.py",
        "            lock.acquire()\n",
        "            lock.acquire()\n"
        "            os.close(os.open(self.paths.lock + '.taken', os.O_CREAT | os.O_EXCL))\n"
        "            __import__('atexit').register(os.unlink, self.paths.lock + '.taken')\n",
    ),
    Mutant(
        "lock_left_by_killed_process",
        "the lease of a holder that is gone goes on to nobody",
        "tests/faults/test_leases.py"
        "::test_lock_left_by_killed_process_is_a_lease_that_goes_on_to_who_waits",
        "ptocache/kernels.py",
        "            self._pass_on(lease)\n            self._settle(_cancelled",
        "            self._settle(_cancelled",
    ),
    Mutant(
        "stale_socket_file",
        "the socket of a killed daemon is in the way of the next",
        f"{_LIFE}::test_stale_socket_file_of_a_killed_daemon_is_taken_over",
        "ptocache/server.py",
        "        if os.path.lexists(path):\n",
        "        if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):\n",
    ),
    Mutant(
        "stale_socket_file",
        "whatever stands at the socket's place is removed",
        f"{_LIFE}::test_stale_socket_file_that_is_a_regular_file_is_refused_and_left_alone",
        "ptocache/server.py",
        "    if not stat.S_ISSOCK(info.st_mode):",
        "    if stat.S_ISDIR(info.st_mode):",
    ),
    Mutant(
        "stale_socket_file",
        "a client that finds a socket nobody serves starts no daemon",
        f"{_STARTS}::test_stale_socket_file_keeps_none_of_forty_clients_from_starting_one_daemon",
        "ptocache/starter.py",
        "            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):\n"
        "                return connect()\n"
        "            if process is None",
        "            with contextlib.suppress(FileNotFoundError):\n"
        "                return connect()\n"
        "            if process is None",
    ),
    Mutant(
        "daemon_started_twice",
        "a daemon does not look whether another has the store",
        f"{_STARTS}::test_daemon_started_twice_by_forty_serves_and_forty_clients"
        "_is_one_and_losers_are_quiet",
        "ptocache/daemon.py",
        "            lock.acquire()\n",
        "            pass\n",
    ),
    Mutant(
        "daemon_started_twice",
        "a client whose own daemon came too late gives up",
        f"{_LIFE}::test_daemon_started_twice_while_one_stops_serves_who_comes_then",
        "ptocache/starter.py",
        "process.poll() == _ALREADY_SERVED:",
        "process.poll() == -_ALREADY_SERVED:",
    ),
    Mutant(
        "socket_path_too_long",
        "the default path is taken however long it is",
        f"{_PLACES}::test_socket_path_too_long_from_folders_of_200_bytes"
        "_is_one_short_path_for_both_sides",
        "ptocache/paths.py",
        "        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:\n",
        "        if path:\n",
    ),
    Mutant(
        "socket_path_too_long",
        "the short place is below TMPDIR",
        f"{_PLACES}::test_socket_path_too_long_from_folders_of_200_bytes"
        "_is_one_short_path_for_both_sides",
        "ptocache/paths.py",
        'return f"/tmp/ptocache-{os.geteuid()}/{name}"',
        "return f\"{env.get('TMPDIR', '/tmp')}/ptocache-{os.geteuid()}/{name}\"",
    ),
    Mutant(
        "socket_path_too_long",
        "an explicit path is not judged before it is used",
        f"{_PLACES}::test_socket_path_too_long_or_relative_is_one_warning_and_right_answers",
        "ptocache/paths.py",
        "        if len(os.fsencode(explicit)) > SOCKET_PATH_LIMIT:\n",
        "        if not explicit:\n",
    ),
    Mutant(
        "message_size_limit",
        "large outputs travel in the message",
        f"{_LARGE}::test_message_size_limit_is_none_for_a_compile"
        "_which_comes_back_as_the_tool_made_it",
        "ptocache/wire.py",
        "INLINE_BYTES = 128 << 10\n",
        "INLINE_BYTES = 1 << 40\n",
    ),
    Mutant(
        "message_size_limit",
        "a file goes to the daemon in one message",
        f"{_LARGE}::test_message_size_limit_is_none_for_a_kernel_which_comes_back_as_it_went",
        "ptocache/wire.py",
        "PIECE_BYTES = 8 << 20\n",
        "PIECE_BYTES = 1 << 40\n",
    ),
    Mutant(
        "message_size_limit",
        "what follows the first piece of a file is dropped without a word",
        f"{_LARGE}::test_message_size_limit_is_none_for_a_kernel_which_comes_back_as_it_went",
        "ptocache/bundle.py",
        "        if self.dropped:\n",
        "        if self.dropped or self._files[piece.name][1]:\n",
    ),
    Mutant(
        "message_size_limit",
        "a length is believed, whatever it is",
        "tests/faults/test_peers.py"
        "::test_message_size_limit_ends_the_connection_of_a_lie_which_takes_no_memory",
        "ptocache/wire.py",
        "    if not 0 < length <= limit:\n",
        "    if not 0 < length:\n",
    ),
    Mutant(
        "orphan_compilers",
        "a compile goes on when nobody waits for it any more",
        f"{_FLIGHTS}::test_orphan_compilers_end_with_all_their_children"
        "_when_the_only_client_is_interrupted",
        "ptocache/service.py",
        "                self._tasks.pop(flight).cancel()\n",
        "                pass\n",
    ),
    Mutant(
        "orphan_compilers",
        "what left the group of a cancelled tool runs on",
        f"{_FLIGHTS}::test_orphan_compilers_end_with_all_their_children"
        "_when_the_only_client_is_interrupted",
        "ptocache/compiler.py",
        "    if cancel.requested or not in_time:\n",
        "    if not in_time:\n",
    ),
    Mutant(
        "orphan_compilers",
        "a client that is interrupted takes the compile of those who wait with it",
        f"{_FLIGHTS}::test_orphan_compilers_run_on_for_who_still_waits_when_one_client_is_interrupted",
        "ptocache/service.py",
        "            if not self._flights.members(flight) and flight in self._tasks:\n",
        "            if flight in self._tasks:\n",
    ),
    Mutant(
        "orphan_compilers",
        "the tools of a killed daemon run on",
        f"{_LIFE}::test_orphan_compilers_of_a_killed_daemon_end_with_it_wherever_they_went",
        "ptocache/guard.py",
        "    if last != GOODBYE:\n",
        "    if last == b'never':\n",
    ),
    Mutant(
        "orphan_compilers",
        "a second signal is no other than the first, so that the daemon waits for its tools",
        f"{_LIFE}::test_orphan_compilers_are_not_left_by_a_second_signal_and_their_client_is_told",
        "ptocache/daemon.py",
        "self._stop_asked < 2",
        "self._stop_asked < 9",
    ),
    Mutant(
        "pickled_code",
        "a file of the store may be a pickle",
        f"{_CANARIES}::test_pickled_code_as_payload_and_document_is_damage_that_heals",
        "ptocache/store/blobs.py",
        "        if len(data) != digest.size:\n",
        "        if data[:1] == b'\\x80':\n"
        "            __import__('pickle').loads(data)\n"
        "        if len(data) != digest.size:\n",
    ),
    Mutant(
        "pickled_code",
        "the document of an entry may be a pickle",
        f"{_CANARIES}::test_pickled_code_as_payload_and_document_is_damage_that_heals",
        "ptocache/entry.py",
        "    if data[: len(MAGIC) - 1] != MAGIC[:-1]:\n",
        "    if data[:1] == b'\\x80':\n"
        "        __import__('pickle').loads(data)\n"
        "    if data[: len(MAGIC) - 1] != MAGIC[:-1]:\n",
    ),
    Mutant(
        "pickled_code",
        "what the index holds of a toolchain may be a pickle",
        f"{_CANARIES}::test_pickled_code_as_payload_and_document_is_damage_that_heals",
        "ptocache/store/index.py",
        "            record = msgpack.unpackb(",
        "            if rows[0][0][:1] == b'\\x80':\n"
        "                __import__('pickle').loads(rows[0][0])\n"
        "            record = msgpack.unpackb(",
    ),
    Mutant(
        "pickled_code",
        "a message may be a pickle",
        f"{_CANARIES}::test_pickled_code_as_a_message_is_only_bytes",
        "ptocache/wire.py",
        "    if len(data) > _UNCOUNTED_BYTES:\n",
        "    if bytes(data[:2]) in (b'\\x80\\x02', b'\\x80\\x05'):\n"
        "        __import__('pickle').loads(data)\n"
        "    if len(data) > _UNCOUNTED_BYTES:\n",
    ),
)
