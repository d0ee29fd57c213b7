"""The kinds of fault that public reports tell of caches like this one, each with its sources.

A test that shows a kind to be impossible here is marked ``@pytest.mark.kind(NAME)``, and its own name
begins with ``test_NAME``; :mod:`tests.mutants` holds versions of the product that have the fault, on which
that test must fail.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    fact: str
    """What happened to somebody."""
    sources: tuple[str, ...]
    """The reports, as ``owner/repository#number``."""


KINDS = (
    Kind(
        "stale_key_flags",
        "fast and strict builds of one kernel share an entry, since the flags are not in the key",
        ("tile-ai/tilelang#2459",),
    ),
    Kind(
        "flags_left_behind",
        "the flags of one kernel stay in the environment, and every later kernel gets them",
        ("tile-ai/tilelang-ascend#1389",),
    ),
    Kind(
        "toolchain_upgrade_in_place",
        "another toolkit is chosen by a variable or a link, and nothing is compiled again",
        ("flashinfer-ai/flashinfer#3229",),
    ),
    Kind(
        "toolchain_memoised",
        "the daemon remembers a compiler by path and time; behind a shim it is another one",
        ("mozilla/sccache#663", "mozilla/sccache#87", "mozilla/sccache#856"),
    ),
    Kind(
        "stale_key_source_header_arch",
        "an object that exists is reused, whatever its source, its headers and its platform are now",
        ("hw-native-sys/pypto#990",),
    ),
    Kind(
        "volatile_input_in_key",
        "a variable that differs in each run is in the key, so that nothing ever hits",
        ("ai-dynamo/dynamo#10695",),
    ),
    Kind(
        "toolchain_probe_fails",
        "a launcher, a shim or a foreign locale makes the look at the tool fail, and the cache is off",
        ("hw-native-sys/pypto#2833", "hw-native-sys/pypto#2831"),
    ),
    Kind(
        "compile_storm",
        "sixteen ranks compile one kernel sixteen times, and race to publish it",
        (
            "flashinfer-ai/flashinfer#4062",
            "flashinfer-ai/flashinfer#4136",
            "sgl-project/sglang#36231",
        ),
    ),
    Kind(
        "lock_left_by_killed_process",
        "a killed builder leaves its lock, and every later run waits for ever",
        ("pytorch/pytorch#189245", "sgl-project/sglang#35989", "microsoft/onnxruntime#7740"),
    ),
    Kind(
        "stale_socket_file",
        "a killed daemon leaves its socket, and the next cannot start",
        ("kenn-io/kata#22", "Giammarco-Ferranti/deja#6"),
    ),
    Kind(
        "daemon_started_twice",
        "all clients of a parallel build start the daemon; one wins, the others fail",
        ("mozilla/sccache#340", "mozilla/sccache#824", "mozilla/sccache#1153"),
    ),
    Kind(
        "environment_of_first_client",
        "the daemon compiles with the environment and in the directory in which it was started",
        ("mozilla/sccache#363", "mozilla/sccache#48", "mozilla/sccache#96"),
    ),
    Kind(
        "damaged_entry",
        "a file of the cache that was cut raises in each run, and is never made again",
        ("numba/numba#10434", "pocl/pocl#534"),
    ),
    Kind(
        "incomplete_entry_after_a_kill",
        "what a killed process had written of an entry is taken for all of it",
        ("tenstorrent/tt-metal#19567",),
    ),
    Kind(
        "full_disk",
        "a full disk makes a build fail whose compile was good",
        ("NixOS/nixpkgs#453992", "buchgr/bazel-remote#788"),
    ),
    Kind(
        "unbounded_growth",
        "nothing is ever deleted, until the disk is full for everybody",
        ("tenstorrent/tt-metal#51424", "tenstorrent/tt-metal#51393"),
    ),
    Kind(
        "unwritable_cache_directory",
        "a process without a place that it can write to crashes at the import",
        ("LMCache/LMCache#4597", "numba/numba#7248", "numba/numba#1771"),
    ),
    Kind(
        "two_users",
        "a user's client finds the daemon of another user, and fails on files it cannot read",
        ("mozilla/sccache#1435",),
    ),
    Kind(
        "network_file_system",
        "a handle is stale or a folder busy after a rename, and a good compile fails in its clean-up",
        ("triton-lang/triton#11512", "pytorch/pytorch#173679", "tenstorrent/tt-metal#40446"),
    ),
    Kind(
        "socket_path_too_long",
        "a long TMPDIR leaves no room for the path of a socket",
        ("mozilla/sccache#2541", "mozilla/sccache#2590"),
    ),
    Kind(
        "cross_device_rename",
        "a file is finished in a folder of another device, and cannot be renamed into the cache",
        ("fsspec/filesystem_spec#322", "alex/rply#69"),
    ),
    Kind(
        "arch_mixing",
        "a kernel for one SoC is stored under the key of another",
        ("sgl-project/sgl-kernel-npu#480",),
    ),
    Kind(
        "message_size_limit",
        "a result larger than the channel's limit is dropped, or never arrives",
        ("msgpack/msgpack-python#503", "msgpack/msgpack-python#360", "mozilla/sccache#459"),
    ),
    Kind(
        "orphan_compilers",
        "the build was ended, and the compilers of the daemon run on",
        ("scylladb/scylladb#30552", "JuliaLang/julia#12853"),
    ),
    Kind(
        "pickled_code",
        "the cache unpickles what it finds, so that who can write there runs code in its readers",
        ("grantjenks/python-diskcache#357", "grantjenks/python-diskcache#362", "OSIPI/osipy#171"),
    ),
    Kind(
        "cost_of_fingerprinting",
        "each process hashes the whole toolchain before its first warm look-up",
        ("hw-native-sys/pypto#2881", "hw-native-sys/pypto#2732", "hw-native-sys/pypto#2822"),
    ),
)
