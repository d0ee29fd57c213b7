"""Faults in files, disks and places."""

from __future__ import annotations

from tests.mutants import Mutant

BLOBS = "ptocache/store/blobs.py"
STORE = "ptocache/store/store.py"
PATHS = "ptocache/paths.py"
DAMAGED = "tests/faults/test_damage.py::test_damaged_entry_is_one_counted_miss_that_heals"
KILLED = (
    "tests/faults/test_death.py::test_incomplete_entry_after_a_kill_is_left_at_no_call_of_a_publish"
)
FULL = (
    "tests/faults/test_disk.py"
    "::test_full_disk_takes_no_answer_and_no_hit_and_storing_resumes_with_room"
)
FULL_FOR_TOOLS = (
    "tests/faults/test_disk.py"
    "::test_full_disk_on_which_a_tool_failed_is_left_for_another_place_and_forgotten"
)
GROWN = (
    "tests/system/test_eviction.py::test_unbounded_growth_ends_at_the_cap_and_what_is_read_stays"
)
GROWN_BY_BLOCKS = (
    "tests/system/test_eviction.py"
    "::test_unbounded_growth_by_small_entries_ends_as_well_since_whole_blocks_count"
)
IN_A_HOME = (
    "tests/faults/test_places.py"
    "::test_unwritable_cache_directory_in_a_home_is_one_warning_and_right_answers"
)
READ_ONLY_SYSTEM = (
    "tests/faults/test_places.py"
    "::test_unwritable_cache_directory_of_a_user_without_home_on_a_read_only_system_is_one_warning"
)
WARM = (
    "tests/faults/test_disk.py"
    "::test_unwritable_cache_directory_that_is_warm_gives_hits_and_counts_what_it_cannot_store"
)
USERS = "tests/faults/test_places.py::test_two_users_on_default_settings_have_nothing_in_common"
NETWORK = (
    "tests/faults/test_disk.py"
    "::test_network_file_system_that_is_busy_or_stale_costs_a_recompile_at_worst"
)
READ_BACK = (
    "tests/faults/test_disk.py"
    "::test_network_file_system_that_hides_what_was_just_stored_costs_a_counted_entry_at_worst"
)
DEVICES = (
    "tests/faults/test_disk.py"
    "::test_cross_device_rename_is_none_wherever_tmpdir_the_tools_and_the_outputs_are"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "damaged_entry",
        "a small file is served without a look at its checksum",
        DAMAGED,
        BLOBS,
        "        if checksum(found) != expected:\n",
        "        if len(found) != digest.size:\n",
    ),
    Mutant(
        "damaged_entry",
        "a large file is served without a look at its checksum",
        DAMAGED,
        BLOBS,
        "        if running.digest() != expected:\n",
        "        if offset != digest.size:\n",
    ),
    Mutant(
        "damaged_entry",
        "a damaged output is an error of the request, each time anew",
        DAMAGED,
        STORE,
        "        except DamagedBlobError as error:\n"
        "            self.heal(row, error.reason, str(error))\n"
        "            return None\n",
        "        except DamagedBlobError:\n            raise\n",
    ),
    Mutant(
        "incomplete_entry_after_a_kill",
        "an entry is in the index before its files are there",
        KILLED,
        STORE,
        "                for blob in pending:\n"
        "                    self.blobs.place(blob)\n"
        "                inserted = self.index.insert(row, rows, generation)\n",
        "                inserted = self.index.insert(row, rows, generation)\n"
        "                for blob in pending:\n"
        "                    self.blobs.place(blob)\n",
    ),
    Mutant(
        "incomplete_entry_after_a_kill",
        "an entry is committed before the list of its files",
        KILLED,
        "ptocache/store/index.py",
        "            entry_id = cursor.lastrowid or 0\n",
        "            entry_id = cursor.lastrowid or 0\n"
        '            connection.execute("COMMIT")\n'
        '            connection.execute("BEGIN IMMEDIATE")\n',
    ),
    Mutant(
        "full_disk",
        "a file that cannot be written is an error of the request",
        FULL,
        STORE,
        "        except (OSError, sqlite3.Error) as error:\n"
        '            self._index_failed(error, "publish"',
        '        except sqlite3.Error as error:\n            self._index_failed(error, "publish"',
    ),
    Mutant(
        "full_disk",
        "what was written of a file stays, and fills the disk",
        FULL,
        BLOBS,
        "            self._unlink(path)\n            raise\n",
        "            raise\n",
    ),
    Mutant(
        "full_disk",
        "after one failure nothing is stored any more",
        FULL,
        STORE,
        "            self.tally.event(cache, Event.STORE_FAILURE, failure_reason(error))\n",
        "            self.tally.event(cache, Event.STORE_FAILURE, failure_reason(error))\n"
        "            self.budget.limit = 0\n",
    ),
    Mutant(
        "full_disk",
        "a tool has no other place than the full disk",
        FULL_FOR_TOOLS,
        STORE,
        "        self.paths.make_aside(self.paths.spare)\n",
        "        raise error\n",
    ),
    Mutant(
        "unbounded_growth",
        "nothing is evicted",
        GROWN,
        "ptocache/store/collect.py",
        "    while excess := store.budget.excess(max_size):\n",
        "    while excess := 0:\n",
    ),
    Mutant(
        "unbounded_growth",
        "the oldest go, whoever reads them",
        GROWN,
        STORE,
        "            self.index.touch(uses)\n",
        "            self.index.touch({})\n",
    ),
    Mutant(
        "unbounded_growth",
        "files count by their lengths and not by the blocks that they take",
        GROWN_BY_BLOCKS,
        BLOBS,
        "    return (size + _BLOCK - 1) // _BLOCK * _BLOCK\n",
        "    return size\n",
    ),
    Mutant(
        "unwritable_cache_directory",
        "whoever asks where the cache lies must be able to make it",
        IN_A_HOME,
        PATHS,
        '        return os.path.join(home, ".cache", "ptocache")\n',
        '        os.makedirs(os.path.join(home, ".cache", "ptocache"), 0o700, exist_ok=True)\n'
        '        return os.path.join(home, ".cache", "ptocache")\n',
    ),
    Mutant(
        "unwritable_cache_directory",
        "a process compiles by itself only where Python finds a temporary folder",
        READ_ONLY_SYSTEM,
        "ptocache/fallback.py",
        "    with contextlib.suppress(FileNotFoundError):\n",
        "    with contextlib.nullcontext():\n",
    ),
    Mutant(
        "unwritable_cache_directory",
        "a warm store that cannot be written to is not read either",
        WARM,
        PATHS,
        "        return StorePaths(root, read_only=True)\n",
        "        return StorePaths(root)\n",
    ),
    Mutant(
        "two_users",
        "all users have the folder of their sockets in common",
        USERS,
        PATHS,
        '    return f"/tmp/ptocache-{os.geteuid()}/{name}"\n',
        '    return f"/tmp/ptocache-of-all/{name}"\n',
    ),
    Mutant(
        "two_users",
        "stored files are readable for everybody",
        USERS,
        BLOBS,
        "                os.fchmod(fd, 0o400)\n",
        "                os.fchmod(fd, 0o444)\n",
    ),
    Mutant(
        "network_file_system",
        "an unfinished file that is busy makes the publish fail",
        NETWORK,
        BLOBS,
        "        except OSError:\n            self._left.add(path)\n",
        "        except OSError:\n            self._left.add(path)\n            raise\n",
    ),
    Mutant(
        "network_file_system",
        "a private directory that is busy makes its compile fail",
        NETWORK,
        "ptocache/compiler.py",
        "    shutil.rmtree(path, ignore_errors=True)\n    if os.path.exists(path):\n",
        "    shutil.rmtree(path)\n    if os.path.exists(path):\n",
    ),
    Mutant(
        "network_file_system",
        "an output that was just stored and cannot be read back makes its compile fail",
        NETWORK,
        STORE,
        "        except OSError as error:\n"
        "            self._unreadable(row, cache, error)\n"
        "            return None\n",
        "        except OSError:\n            raise\n",
    ),
    Mutant(
        "network_file_system",
        "a document that was just stored and cannot be read back makes the publish fail",
        READ_BACK,
        STORE,
        "        except OSError as error:\n"
        "            self._unreadable(row, cache, error)\n"
        "        return None\n",
        "        except OSError:\n            raise\n        return None\n",
    ),
    Mutant(
        "network_file_system",
        "what cannot be read back is not counted as a failure of the store",
        READ_BACK,
        STORE,
        "            self.tally.event(cache, Event.STORE_FAILURE, Reason.IO_ERROR)\n"
        '            return Published(None, Reason.STORE_FAILED, "the new entry cannot be read back")\n',
        '            return Published(None, Reason.STORE_FAILED, "the new entry cannot be read back")\n',
    ),
    Mutant(
        "cross_device_rename",
        "files are finished in TMPDIR and renamed into the store",
        DEVICES,
        BLOBS,
        "        path = os.path.join(self._paths.tmp,",
        '        path = os.path.join(os.environ.get("TMPDIR", "/tmp"),',
    ),
    Mutant(
        "cross_device_rename",
        "files are copied to their places, where readers see a part of them",
        DEVICES,
        BLOBS,
        "        try:\n            os.rename(pending.path, target)\n",
        "        try:\n"
        '            with open(pending.path, "rb") as file, open(target, "wb") as copy:\n'
        "                copy.write(file.read())\n",
    ),
    Mutant(
        "cross_device_rename",
        "an output is finished in /tmp and renamed to where it was asked for",
        DEVICES,
        "ptocache/result.py",
        '        partial = f"{target}.',
        '        partial = f"/tmp/{os.path.basename(target)}.',
    ),
)
