"""Faults in what a key says, and what a toolchain is."""

from __future__ import annotations

from tests.mutants import Mutant

ACTION = "ptocache/action.py"
COMPILER = "ptocache/compiler.py"
CLIENT = "ptocache/client.py"
IDENTITY = "ptocache/identity.py"
RESOLVER = "ptocache/resolver.py"
LAUNCHER = "toolchains/ptocache_cann/launcher.py"
ASCENDC = "toolchains/ptocache_ascendc/toolchain.py"
BISHENG = "toolchains/ptocache_cann/bisheng.py"

_KEYS = "tests/system/test_device_keys.py::"
_SWAPS = "tests/system/test_toolchain_swaps.py::"
_CANN = "tests/system/test_cann_identity.py::"
FLAGS = (
    f"{_KEYS}test_stale_key_flags_with_without_and_with_again_is_two_runs_and_the_first_bytes_again"
)
LEFT = (
    f"{_KEYS}test_flags_left_behind_by_one_request_are_in_no_command_environment_or_key_of_the_next"
)
STALE = (
    f"{_KEYS}test_stale_key_source_header_arch_each_state_has_its_own_answer_and_hits_when_restored"
)
MOVED = (
    f"{_KEYS}test_a_change_misses_and_going_back_hits_the_first_entry"
    "[ascendc: folder of a relative -I]"
)
AGAIN = (
    f"{_KEYS}test_stale_key_source_header_arch_is_looked_at_for_a_request_that_was_answered_before"
)
VOLATILE = (
    f"{_KEYS}test_volatile_input_in_key_processes_that_differ_in_everything_else_share_one_run"
)
FIRST = (
    f"{_KEYS}test_environment_of_first_client_and_of_the_daemon_reach_no_later_compile"
)  # fmt: skip
SOCS = f"{_KEYS}test_arch_mixing_two_socs_and_the_default_share_nothing_however_they_are_named"
OTHER_DEVICE = (
    f"{_KEYS}test_arch_mixing_an_image_for_another_device_is_refused_and_not_stored"
)  # fmt: skip
INVALIDATED = f"{_KEYS}test_arch_mixing_invalidate_by_soc_leaves_the_other_soc_alone"
REPLACED = (
    f"{_SWAPS}test_toolchain_upgrade_in_place_of_a_tool_is_noticed_at_once_and_hits_when_taken_back"
)
SWITCHED = (
    f"{_SWAPS}test_toolchain_upgrade_in_place"
    "_by_a_variable_or_a_link_never_gives_the_bytes_of_the_other"
)
SHIM = (
    f"{_SWAPS}test_toolchain_memoised_behind_a_shim_that_never_changes_is_that_of_its_latest_target"
)
SAME_STAMPS = (
    "tests/unit/test_identity.py::test_toolchain_memoised"
    "_by_size_and_time_would_miss_a_replaced_compiler_that_has_them"
)
PROBED = (
    f"{_CANN}test_toolchain_probe_fails_for_no_launcher_shim_or_language_that_is_met_in_the_wild"
)
NAMED = f"{_CANN}test_toolchain_probe_fails_and_statistics_and_one_warning_name_the_reason"
COST = (
    f"{_CANN}test_cost_of_fingerprinting_is_paid_once_a_daemon_and_a_changed_file_is_noticed"
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "stale_key_flags",
        "options are not in the key",
        FLAGS,
        ACTION,
        '        "options": list(job.options),\n',
        '        "options": [],\n',
    ),
    Mutant(
        "stale_key_flags",
        "the client knows a request again without its options",
        FLAGS,
        CLIENT,
        "_cwd(), tuple(options), *inputs.items())\n",
        "_cwd(), *inputs.items())\n",
    ),
    Mutant(
        "stale_key_flags",
        "the client knows a request again without its variables",
        FLAGS,
        "ptocache/pending.py",
        "        if known is None or known[0] != _variables_of(env):\n",
        "        if known is None:\n",
    ),
    Mutant(
        "flags_left_behind",
        "variables of a request stay in the environment of all tools",
        LEFT,
        COMPILER,
        '    return {**declared, **_CONSTANTS, **more, "TMPDIR": tmp}\n',
        "    kept = {k: v for k, v in declared.items() if not k.startswith('LD_')}\n"
        "    _CONSTANTS.update({**kept, **_CONSTANTS})\n"
        '    return {**declared, **_CONSTANTS, **more, "TMPDIR": tmp}\n',
    ),
    Mutant(
        "flags_left_behind",
        "flags of a request stay for the next",
        LEFT,
        "toolchains/ptocache_pto/options.py",
        "    return (*bisheng.flags_of(VARIABLE, dict(job.env)), *job.options)\n",
        '    left = words_of.__dict__.setdefault("left", [])\n'
        "    given = bisheng.flags_of(VARIABLE, dict(job.env))\n"
        "    left += [word for word in given if word not in left]\n"
        "    return (*left, *job.options)\n",
    ),
    Mutant(
        "toolchain_upgrade_in_place",
        "what a tool holds is not in the identity",
        REPLACED,
        IDENTITY,
        "                item.digest.sha256,\n",
        '                "",\n',
    ),
    Mutant(
        "toolchain_upgrade_in_place",
        "an installation that was found is never looked at again",
        REPLACED,
        IDENTITY,
        "        for path, signature in known.principals:\n            if not unmoved(",
        "        if known.principals:\n            return True\n"
        "        for path, signature in known.principals:\n            if not unmoved(",
    ),
    Mutant(
        "toolchain_upgrade_in_place",
        "an installation is not looked at for a request that was answered before",
        REPLACED,
        "ptocache/service.py",
        "        if not self._resolver.stands(standing):\n",
        "        if not standing:\n",
    ),
    Mutant(
        "toolchain_upgrade_in_place",
        "the installation that was found first is everybody's",
        SWITCHED,
        RESOLVER,
        "        known = self._whoms.get(job)\n",
        "        known = self._whoms.get(job) or next(iter(self._whoms.values()), None)\n",
    ),
    Mutant(
        "toolchain_memoised",
        "a script is taken for what it was when it was first seen",
        SHIM,
        IDENTITY,
        '                return opened.read(2) != b"#!"\n',
        "                return True\n",
    ),
    Mutant(
        "toolchain_memoised",
        "a tool is known by its size and its time",
        SAME_STAMPS,
        "ptocache/signature.py",
        "        and info.st_ctime_ns == known.ctime_ns\n",
        "",
    ),
    Mutant(
        "stale_key_source_header_arch",
        "sources are not in the key",
        STALE,
        ACTION,
        '        "inputs": _digests(job),\n        "outputs": list(job.outputs),\n',
        '        "inputs": {},\n        "outputs": list(job.outputs),\n',
    ),
    Mutant(
        "stale_key_source_header_arch",
        "a header that is still there counts as unchanged",
        STALE,
        "ptocache/contents.py",
        "            if sha256(path) != digest:\n",
        "            if not sha256(path):\n",
    ),
    Mutant(
        "stale_key_source_header_arch",
        "headers are not looked at for a request that was answered before",
        AGAIN,
        "ptocache/store/store.py",
        "            return None\n        return self._used(entry_id, contents, source_dir, bases)\n",
        "            return None\n        return self._hot.get(entry_id)\n",
    ),
    Mutant(
        "stale_key_source_header_arch",
        "the client knows a request again without its directory",
        MOVED,
        CLIENT,
        "    return (*words, _cwd(), tuple(options)",
        "    return (*words, tuple(options)",
    ),
    Mutant(
        "stale_key_source_header_arch",
        "the platform is not in the key",
        STALE,
        ACTION,
        '        "arch": job.arch,\n        "options": list(job.options),\n',
        '        "arch": "",\n        "options": list(job.options),\n',
    ),
    Mutant(
        "volatile_input_in_key",
        "the caller's directory is in the key",
        VOLATILE,
        ACTION,
        '        "keyed": dict(prepared.keyed),\n',
        '        "keyed": {**dict(prepared.keyed), "cwd": job.cwd},\n',
    ),
    Mutant(
        "volatile_input_in_key",
        "a port that differs in each run is taken for a variable of the compiler",
        f"{VOLATILE}[ascendc]",
        BISHENG,
        "ENV = (EPOCH, *PATH_LISTS)\n",
        'ENV = (EPOCH, *PATH_LISTS, "VLLM_NIXL_SIDE_CHANNEL_PORT")\n',
    ),
    Mutant(
        "toolchain_probe_fails",
        "a link to another cache is taken for the compiler",
        PROBED,
        LAUNCHER,
        "    return os.path.basename(os.path.realpath(path)) in _LAUNCHERS",
        "    return os.path.basename(os.path.realpath(path)) in ()",
    ),
    Mutant(
        "toolchain_probe_fails",
        "the launcher that pip writes is not understood",
        PROBED,
        LAUNCHER,
        '    return entry.group(1).split(".")[0]\n',
        '    return ""\n',
    ),
    Mutant(
        "toolchain_probe_fails",
        "a tool that exits with 1 when asked for its version is of no use",
        PROBED,
        "toolchains/ptocache_cann/installation.py",
        "        if answer.exit_code == _CANNOT_START:\n",
        "        if answer.exit_code:\n",
    ),
    Mutant(
        "toolchain_probe_fails",
        "a tool is asked in the language of the daemon's shell",
        PROBED,
        COMPILER,
        "            env=environment(env, directory),\n",
        "            env={\n"
        '                **environment(env, directory), "LC_ALL": os.environ.get("LANG", "C")\n'
        "            },\n",
    ),
    Mutant(
        "toolchain_probe_fails",
        "a toolchain that is not identified is compiled with, and nobody is told",
        NAMED,
        CLIENT,
        "        if answer.reason is Reason.UNIDENTIFIED_TOOLCHAIN:\n",
        "        if answer.reason is Reason.NO_DAEMON:\n",
    ),
    Mutant(
        "environment_of_first_client",
        "tools run in the environment of the daemon",
        FIRST,
        COMPILER,
        '    return {**declared, **_CONSTANTS, **more, "TMPDIR": tmp}\n',
        '    return {**os.environ, **declared, **_CONSTANTS, **more, "TMPDIR": tmp}\n',
    ),
    Mutant(
        "environment_of_first_client",
        "the toolchain is the one of the daemon's variables",
        FIRST,
        IDENTITY,
        "    return select(toolchain.SEARCH, env)\n",
        "    return select(toolchain.SEARCH, {**env, **os.environ})\n",
    ),
    Mutant(
        "environment_of_first_client",
        "relative paths count from the directory of the daemon",
        FIRST,
        "ptocache/wire.py",
        '            cwd=_directory(message, "cwd"),\n',
        '            cwd=__import__("os").getcwd(),\n',
    ),
    Mutant(
        "arch_mixing",
        "SoCs of one architecture share a key",
        f"{SOCS}[ascendc]",
        ASCENDC,
        "                arch=device.name,\n",
        "                arch=device.device,\n",
    ),
    Mutant(
        "arch_mixing",
        "SoCs of one architecture share a key of PTO",
        f"{SOCS}[pto]",
        "toolchains/ptocache_pto/toolchain.py",
        "                arch=device.name,\n",
        "                arch=device.device,\n",
    ),
    Mutant(
        "arch_mixing",
        "nobody asks which device an image is for",
        OTHER_DEVICE,
        ASCENDC,
        "elf.check_device(output.data, arch=device, symbols=job.symbols)",
        "elf.check_device(output.data, symbols=job.symbols)",
    ),
    Mutant(
        "arch_mixing",
        "an invalidate of one SoC takes them all",
        INVALIDATED,
        "ptocache/store/index.py",
        '                parts.append(f"{column} = ?")\n',
        '                parts.append(f"{column} = ? OR 1")\n',
    ),
    Mutant(
        "cost_of_fingerprinting",
        "each request looks at the whole tree",
        COST,
        RESOLVER,
        "        standing = self._identities.standing(*whom)\n",
        "        standing = None\n",
    ),
    Mutant(
        "cost_of_fingerprinting",
        "one changed file has the whole tree read again",
        COST,
        "ptocache/manifest.py",
        "            if known is not None and known[0] == thing.signature:\n",
        "            if known is thing:\n",
    ),
    Mutant(
        "cost_of_fingerprinting",
        "what changes in a tree is not noticed",
        COST,
        IDENTITY,
        "            if touched or path in known.absent or _in_trees(path, known.trees):\n",
        "            if touched or path in known.absent:\n",
    ),
)
