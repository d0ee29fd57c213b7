"""Each integration in each situation: which test shows the right result and the outcome in the statistics.

The table below is the whole of it; the test looks that each cell names a test that is there.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SITUATIONS = (
    "cold", "warm, same process", "warm, fresh process", "toolchain changed", "flags changed",
    "daemon absent", "daemon killed in mid-request",
)  # fmt: skip
C, ASCEND = "frameworks/test_tilelang.py", "frameworks/test_tilelang_ascend.py"
TUNER = "frameworks/test_tilelang_tuner.py"
TRITON, CLAIMS = "frameworks/test_triton.py", "frameworks/test_triton_claims.py"
WRAP, DEVICES = "system/test_wrap.py", "system/test_wrap_devices.py"
MATRIX: dict[str, tuple[tuple[str, str], ...]] = {
    "TileLang, target c": (
        (C, "test_kernel_is_loaded_in_a_fresh_process_without_a_compiler"),
        (C, "test_kernel_is_the_same_object_in_the_same_process"),
        (C, "test_kernel_is_loaded_in_a_fresh_process_without_a_compiler"),
        (C, "test_another_toolchain_is_another_kernel_in_a_fresh_process"),
        (C, "test_other_flags_or_sizes_are_another_kernel"),
        (C, "test_without_a_daemon_each_process_builds_and_says_so_once"),
        (C, "test_daemon_that_is_killed_while_a_kernel_is_built_breaks_nothing"),
    ),
    "TileLang, target ascend": (
        (ASCEND, "test_kernel_is_loaded_in_a_fresh_process_without_a_tool"),
        (ASCEND, "test_kernel_is_the_same_object_in_the_same_process"),
        (ASCEND, "test_kernel_is_loaded_in_a_fresh_process_without_a_tool"),
        (ASCEND, "test_tool_replaced_in_place_makes_another_kernel"),
        (ASCEND, "test_other_flags_make_another_kernel"),
        (ASCEND, "test_without_a_daemon_the_process_compiles_through_the_toolchain"),
        (ASCEND, "test_daemon_that_is_killed_while_the_device_compiler_runs_breaks_nothing"),
    ),
    "TileLang's autotuner": (
        (TUNER, "test_result_is_that_of_the_tuner_and_its_kernel_that_of_ptocache"),
        (TUNER, "test_result_is_the_same_in_the_same_process"),
        (TUNER, "test_result_is_that_of_the_tuner_and_its_kernel_that_of_ptocache"),
        (TUNER, "test_kernel_of_an_old_result_is_compiled_by_the_present_toolchain"),
        (TUNER, "test_flags_that_the_tuners_key_lacks_make_another_kernel"),
        (TUNER, "test_without_a_daemon_the_kernel_of_a_result_is_compiled"),
        (TUNER, "test_daemon_that_is_killed_while_configurations_are_built_breaks_nothing"),
    ),
    "Triton": (
        (TRITON, "test_kernel_is_the_same_in_a_fresh_process_without_ptxas"),
        (TRITON, "test_kernel_is_a_hit_in_the_same_process"),
        (TRITON, "test_kernel_is_the_same_in_a_fresh_process_without_ptxas"),
        (TRITON, "test_another_ptxas_of_the_same_version_is_another_kernel"),
        (TRITON, "test_variable_of_the_compiler_is_in_the_key"),
        (TRITON, "test_process_without_a_daemon_uses_the_cache_of_triton"),
        (TRITON, "test_daemon_killed_while_a_kernel_is_built_breaks_nothing"),
    ),
    # A process a command: there is no second one in the same process.
    "a wrapped compiler": (
        (WRAP, "test_a_command_gives_what_it_gives_without_the_cache"),
        (WRAP, "test_a_command_gives_what_it_gives_without_the_cache"),
        (WRAP, "test_a_command_gives_what_it_gives_without_the_cache"),
        (WRAP, "test_a_changed_compiler_compiles_again"),
        (WRAP, "test_changed_flags_sources_and_headers_give_their_own_results"),
        (WRAP, "test_without_a_daemon_the_compiler_itself_runs_and_nothing_is_said"),
        (WRAP, "test_a_daemon_that_is_killed_in_mid_request_costs_nothing_but_time"),
    ),
    "a wrapped device compiler": (
        (DEVICES, "test_the_command_of_a_framework_gives_what_it_gives_without_the_cache"),
        (DEVICES, "test_the_command_of_a_framework_gives_what_it_gives_without_the_cache"),
        (DEVICES, "test_the_command_of_a_framework_gives_what_it_gives_without_the_cache"),
        (DEVICES, "test_a_changed_tool_compiles_again"),
        (DEVICES, "test_changed_flags_compile_again"),
        (DEVICES, "test_without_a_daemon_the_tools_themselves_run"),
        (
            DEVICES,
            "test_a_daemon_that_is_killed_while_the_device_compiler_runs_costs_nothing_but_time",
        ),
    ),
}


@pytest.mark.parametrize("integration", MATRIX)
def test_each_situation_has_its_test(integration: str) -> None:
    cells = MATRIX[integration]
    assert len(cells) == len(SITUATIONS)
    for situation, (file, name) in zip(SITUATIONS, cells, strict=True):
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{integration}, {situation}"
