"""The real TileLang, CPU target: right results, and the outcome that each situation should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness import wait_for
from tests.kernel_process import until_waiting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.frameworks.rig import Rig

BUILD = "compile_c()\n"
TOLD = "with Warned() as warned:\n    compile_c()\ntell(warnings=warned.texts)\n"


@pytest.fixture
def warm(rig: Rig) -> Rig:
    """A rig whose daemon has the kernel; its compiler ran once."""
    rig.daemon.start()
    rig.build(BUILD)
    assert (len(rig.compiles()), rig.counts("kernel")) == (1, {"miss": 1})
    return rig


# --- cold, warm, changed


def test_kernel_is_loaded_in_a_fresh_process_without_a_compiler(warm: Rig) -> None:
    warm.build(BUILD)
    warm.daemon.restart()
    warm.build(BUILD)
    assert len(warm.compiles()) == 1
    assert warm.counts("kernel") == {"miss": 1, "memory_hit": 1, "disk_hit": 1}
    assert warm.counts("binary") == {}


def test_kernel_is_the_same_object_in_the_same_process(warm: Rig) -> None:
    told = warm.run("tell(same=compile_c() is compile_c())\n").told()
    assert told == {"same": True}
    assert len(warm.compiles()) == 1
    assert warm.counts("kernel") == {"miss": 1, "memory_hit": 2}


def test_another_toolchain_is_another_kernel_in_a_fresh_process(warm: Rig) -> None:
    warm.write_compiler("-DANOTHER")
    warm.build(BUILD)
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2}


def test_another_toolchain_is_another_kernel_in_the_same_process(warm: Rig) -> None:
    ended = warm.run(
        "first = compile_c()\n"
        "path = os.environ['CXX']\n"
        "text = open(path).read()\n"
        "open(path, 'w').write(text.replace('exec', 'export X=1; exec'))\n"
        "tell(same=compile_c() is first)\n"
    )
    assert ended.told() == {"same": False}
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


@pytest.mark.parametrize(
    "change",
    ["compile_flags=['-DONE']", "pass_configs={'tl.disable_vectorize_256': True}", "size=128"],
)
def test_other_flags_or_sizes_are_another_kernel(warm: Rig, change: str) -> None:
    warm.build(f"compile_c({change})\n")
    warm.build(f"compile_c({change})\n")
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


def test_header_in_a_folder_of_the_flags_is_in_the_key(rig: Rig) -> None:
    rig.daemon.start()
    own = rig.place / "own"
    own.mkdir()
    code = f"compile_c(compile_flags=['-I{own}'])\n"
    rig.build(code)
    rig.build(code)
    (own / "half.hpp").write_text("#pragma once\n")
    rig.build(code)
    assert rig.counts("kernel") == {"miss": 2, "memory_hit": 1}


def test_flags_that_bring_in_what_nobody_lists_are_a_bypass(rig: Rig) -> None:
    rig.daemon.start()
    code = "compile_c(compile_flags=['-lm'])\n"
    rig.build(code)
    rig.build(code)
    assert len(rig.compiles()) == 2
    assert rig.counts("kernel") == {"bypass asked": 2}


def test_kernel_whose_host_code_somebody_rewrites_is_a_bypass(warm: Rig) -> None:
    code = (
        "from tilelang.engine import register_c_postproc\n"
        "register_c_postproc(lambda code, target: code)\n"
    )
    for count in (1, 2):
        warm.build(code + BUILD)
        assert warm.counts("kernel") == {"miss": 1, "bypass asked": count}
    assert len(warm.compiles()) == 3


def test_header_of_tilelang_itself_is_in_the_key(warm: Rig) -> None:
    code = (
        "import importlib, shutil\n"
        "names = ('tilelang.env', 'tilelang.jit.adapter.libgen')\n"
        "modules = [importlib.import_module(name) for name in names]\n"
        "shutil.copytree(modules[0].TILELANG_TEMPLATE_PATH + '/tl_templates', 'src/tl_templates')\n"
        "for module in modules:\n"
        "    module.TILELANG_TEMPLATE_PATH = os.path.abspath('src')\n"
    )
    warm.build(code + BUILD)
    warm.build(code + "open('src/tl_templates/cpp/common.h', 'a').write('//')\n" + BUILD)
    # The copy with the same bytes, wherever it lies, is the same.
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 1}


# --- who builds


def test_one_of_four_processes_builds_and_the_others_join(rig: Rig) -> None:
    rig.daemon.start()
    rig.hold()
    children = [rig.start(BUILD) for _ in range(4)]
    until_waiting(rig.daemon, 4)
    rig.let_go()
    ended = [child.wait() for child in children]
    assert [item.code for item in ended] == [0] * 4, ended
    assert len(rig.compiles()) == 1
    assert rig.counts("kernel") == {"miss": 1, "joined": 3}


def test_next_process_builds_when_the_builder_is_killed(rig: Rig) -> None:
    rig.daemon.start()
    rig.hold()
    first = rig.start(BUILD)
    wait_for(rig.compiles, "the first process to compile")
    second = rig.start(BUILD)
    until_waiting(rig.daemon, 2)
    first.kill()
    rig.let_go()
    assert second.wait().code == 0
    assert rig.counts("kernel") == {"failure cancelled": 1, "miss": 1}


def test_threads_of_one_process_build_different_kernels_at_once(rig: Rig) -> None:
    rig.daemon.start()
    rig.build(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(compile_c, [32, 64, 32, 64]))\n",
    )
    assert len(rig.compiles()) == 2
    found = rig.counts("kernel")
    assert found.pop("miss") == 2
    assert sum(found.values()) == 2
    assert set(found) <= {"joined", "memory_hit"}


def test_build_that_fails_is_the_frameworks_own_error_and_blocks_nobody(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "try:\n    compile_c(compile_flags=['-Dint32_t=?'])\n"
        "except RuntimeError as error:\n    tell(error=str(error)[:19])\n"
    )
    for _ in range(2):
        assert rig.run(code).told() == {"error": "Compilation Failed!"}
    assert rig.counts("kernel") == {"failure compile_failed": 2}
    rig.build(BUILD)


# --- without a daemon


def test_without_a_daemon_each_process_builds_and_says_so_once(rig: Rig) -> None:
    for number in (1, 2):
        told = rig.run(
            "with Warned() as warned:\n    compile_c()\n    compile_c(128)\ntell(w=warned.texts)"
        )
        (warning,) = told.told()["w"]
        assert "without its daemon" in warning
        assert len(rig.compiles()) == 2 * number
    rig.daemon.start()
    assert rig.counts("kernel") == {}


def test_without_a_daemon_no_older_kernel_of_tilelang_is_used(rig: Rig) -> None:
    rig.build(BUILD)
    rig.write_compiler("-DANOTHER")
    rig.build(BUILD)
    assert len(rig.compiles()) == 2
    assert not list((rig.place / "tilelang").rglob("*.so"))


def test_same_process_without_a_daemon_has_the_same_object(rig: Rig) -> None:
    assert rig.run("tell(same=compile_c() is compile_c())\n").told() == {"same": True}
    assert len(rig.compiles()) == 1


def test_required_daemon_that_is_absent_is_an_error(rig: Rig) -> None:
    ended = rig.run(BUILD, PTOCACHE_REQUIRE="1")
    assert ended.code == 1
    assert "DaemonUnavailableError" in ended.err
    assert not rig.compiles()


def test_daemon_that_is_killed_while_a_kernel_is_built_breaks_nothing(rig: Rig) -> None:
    rig.daemon.start()
    rig.hold()
    child = rig.start(TOLD)
    wait_for(rig.compiles, "the process to compile")
    rig.daemon.kill()
    rig.let_go()
    (warning,) = child.wait().told()["warnings"]
    assert "without its daemon" in warning
    rig.daemon.start()
    rig.build(BUILD)
    assert len(rig.compiles()) == 2
    assert rig.counts("kernel") == {"miss": 1}


def test_daemon_that_is_killed_while_a_process_waits_breaks_nothing(rig: Rig) -> None:
    rig.daemon.start()
    rig.hold()
    children = [rig.start(BUILD) for _ in range(2)]
    until_waiting(rig.daemon, 2)
    rig.daemon.kill()
    rig.let_go()
    assert [child.wait().code for child in children] == [0, 0]
    assert len(rig.compiles()) == 2


# --- a kernel that cannot be loaded

BREAK = (
    "from ptocache.kernel import Lease\n"
    "put = Lease.put\n"
    "Lease.put = lambda self, files: put(self, {**files, 'params.json': b'{'})\n"
)


def test_kernel_that_cannot_be_loaded_is_reported_dropped_and_built_once(rig: Rig) -> None:
    rig.daemon.start()
    rig.build(BREAK + BUILD)
    (warning,) = rig.run(TOLD).told()["warnings"]
    assert "add_c cannot be loaded, and is built again" in warning
    assert len(rig.compiles()) == 2
    assert rig.run(TOLD).told() == {"warnings": []}
    assert len(rig.compiles()) == 2
    # Each was answered as stored, the broken one too; then it was built.
    assert rig.counts("kernel") == {"miss": 2, "memory_hit": 2}


def test_kernel_that_is_broken_again_and_again_is_built_by_each_process(rig: Rig) -> None:
    rig.daemon.start()
    rig.build(BREAK + BUILD)
    for number in (2, 3):
        assert len(rig.run(BREAK + TOLD).told()["warnings"]) == 1
        assert len(rig.compiles()) == number


# --- what TileLang promises by itself


@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("", {"TILELANG_DISABLE_CACHE": "1"}),
        ("tilelang.disable_cache()\n", {}),
    ],
)
def test_tilelangs_switch_off_is_respected(rig: Rig, code: str, env: dict[str, str]) -> None:
    rig.daemon.start()
    for _ in range(2):
        rig.build(code + BUILD, **env)
    assert len(rig.compiles()) == 2
    assert rig.counts("kernel") == {}
    rig.build("tilelang.disable_cache()\ncompile_c()\ntilelang.enable_cache()\ncompile_c()\n")
    assert rig.counts("kernel") == {"miss": 1}


def test_jit_functions_and_compiled_ones_share_their_kernels(rig: Rig) -> None:
    rig.daemon.start()
    rig.build("kernel = tilelang.jit(add, target='c')(256, 1.0)\nassert is_right(kernel)\n")
    rig.build(BUILD)
    assert rig.counts("kernel") == {"miss": 1, "memory_hit": 1}


def test_parallel_compile_gives_each_kernel_in_its_place(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "sizes = [16, 32, 48]\n"
        "kernels = tilelang.par_compile([add(n) for n in sizes], target='c')\n"
        "assert all(is_right(k, n) for k, n in zip(kernels, sizes))\n"
    )
    rig.build(code)
    rig.build(code)
    assert rig.counts("kernel") == {"miss": 3, "memory_hit": 3}


def test_loaded_kernel_has_its_sources_its_files_and_its_keywords(warm: Rig) -> None:
    code = (
        "import torch\n"
        "kernel = compile_c()\n"
        "a = torch.ones(256); c = torch.zeros(256)\n"
        "kernel(a, a, c, stream=0, skip_tensor_validation=True)\n"
        "assert float(c.sum()) == 512\n"
        "tell(source=kernel.get_kernel_source(), lib=os.path.exists(kernel.adapter.libpath),\n"
        "     files=sorted(os.listdir(kernel._tilelang_cache_path)))\n"
    )
    loaded = warm.run(code).told()
    built = warm.plain(code).told()
    assert loaded == built
    assert "add_c" in loaded["source"]
    assert "kernel_lib.so" in loaded["files"]


def test_clearing_tilelangs_cache_makes_this_process_build_again(warm: Rig) -> None:
    code = (
        "from tilelang.cache import _dispatch_map\n"
        "compile_c()\n"
        "_dispatch_map['cython'].clear_cache()\n"
        "first = compile_c()\n"
        "assert compile_c() is first\n"
    )
    warm.build(code)
    assert len(warm.compiles()) == 2
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 2}


def test_clearing_the_memory_alone_loads_from_the_store(warm: Rig) -> None:
    warm.build(
        "from tilelang.cache import _dispatch_map\n"
        "first = compile_c()\n"
        "_dispatch_map['cython']._memory_cache.clear()\n"
        "assert compile_c() is not first\n",
    )
    assert len(warm.compiles()) == 1


def test_entry_that_was_dropped_is_stored_again_from_the_memory(warm: Rig) -> None:
    code = (
        "import ptocache\n"
        "first = compile_c()\n"
        "with ptocache.connect() as client:\n    client.call('invalidate', all=True)\n"
        "assert compile_c() is first\n"
    )
    warm.build(code)
    warm.build(BUILD)
    assert len(warm.compiles()) == 1
    assert warm.counts("kernel") == {"miss": 2, "memory_hit": 2}


def test_forked_child_uses_its_parents_kernels_and_its_own(rig: Rig) -> None:
    rig.daemon.start()
    rig.build(
        "kernel = compile_c(16)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    fine = is_right(kernel, 16) and bool(compile_c(32)) and compile_c(16) is kernel\n"
        "    os._exit(0 if fine else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert os.path.exists(kernel.adapter.libpath)\n"
        "compile_c(32)\n",
    )
    assert len(rig.compiles()) == 2


# --- installing


def test_uninstalling_restores_everything(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "import tvm_ffi\n"
        "from tilelang.cache.kernel_cache import KernelCache\n"
        "import ptocache.integrations.tilelang as own\n"
        "def seen():\n"
        "    callback = tvm_ffi.get_global_func('tilelang_callback_ascend_compile')\n"
        "    return dict(vars(KernelCache)), callback\n"
        "before, callback = seen()\n"
        "own.install(); own.install()\n"
        "assert seen()[0] != before and not seen()[1].same_as(callback)\n"
        "own.uninstall()\n"
        "assert seen()[0] == before and seen()[1].same_as(callback)\n"
        "compile_c()\n"
        "own.uninstall(); own.install(); own.install()\n"
        "from tilelang.cache import _dispatch_map\n"
        "_dispatch_map['cython']._memory_cache.clear()\n"
        "compile_c()\n"
    )
    ended = rig.plain(code)
    assert ended.code == 0, ended.err
    assert rig.counts("kernel") == {"miss": 1}
    assert len(list((rig.place / "tilelang").rglob("kernel_lib.so"))) == 1


def test_settings_that_cannot_be_used_let_tilelang_go_its_own_way_with_one_warning(
    rig: Rig,
) -> None:
    code = "with Warned() as warned:\n    compile_c()\n    compile_c(128)\ntell(w=warned.texts)\n"
    (warning,) = rig.run(code, PTOCACHE_MODE="nonsense").told()["w"]
    assert "TileLang goes on in its own way" in warning
    assert len(rig.compiles()) == 2
    rig.build(BUILD, PTOCACHE_MODE="nonsense")
    assert len(rig.compiles()) == 2, "its own cache on disk"


def test_tilelang_whose_cache_is_another_one_is_left_alone_with_one_warning(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "from tilelang.cache.kernel_cache import KernelCache\n"
        "KernelCache._save_another_way = KernelCache._clear_disk_cache\n"
        "del KernelCache._clear_disk_cache\n"
        "with Warned() as warned:\n    install()\n    compile_c()\ntell(w=warned.texts)\n"
    )
    (warning,) = rig.plain(code).told()["w"]
    assert "KernelCache has no _clear_disk_cache" in warning
    assert rig.counts("kernel") == {}


def test_fault_of_ptocache_is_one_warning_even_where_warnings_are_errors(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "import ptocache.integrations.tilelang as own, warnings\n"
        "warnings.simplefilter('error')\n"
        "own._question = None\n"
    )
    ended = rig.run(code + BUILD + "compile_c(128)\n")
    assert ended.code == 0, ended.err
    assert ended.err.count("ptocache") == 1


def test_kernels_for_targets_that_ptocache_does_not_know_are_left_alone(rig: Rig) -> None:
    rig.daemon.start()
    code = (
        "import ptocache.integrations.tilelang as own\n"
        "own._toolchain_of = lambda context, target: ''\n"
    )
    rig.build(code + BUILD)
    assert rig.counts("kernel") == {}
    assert list((rig.place / "tilelang").rglob("kernel_lib.so"))


def test_process_leaves_no_files_and_takes_away_those_of_a_killed_one(rig: Rig) -> None:
    rig.daemon.start()

    def left() -> list[Path]:
        return list(rig.temporary.glob("ptocache-kernels-*"))

    rig.build(BUILD)
    assert not left()
    rig.hold()
    child = rig.start("compile_c()\nprint('loaded', flush=True)\ncompile_c(64)\n")
    wait_for(lambda: len(rig.compiles()) == 2, "the second kernel to be compiled")
    assert left()
    child.kill()
    rig.let_go()
    rig.build(BUILD)
    assert not left()
