"""TileLang's autotuner: its results stay in a cache of its own, the kernels that belong to them come from ptocache.

A result on TileLang's disk is the best configuration, its time, and the finished kernel, under a key that
knows neither the toolchain nor the flags. Of it, the configuration and the time are used. The kernel is
compiled from them in the way of the tuner, which is a hit in ptocache where nothing has changed.
"""

from __future__ import annotations

import inspect
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PASS_CONFIGS = "pass_configs"


def wrapped_load(original: Any, is_enabled: Callable[[], bool]) -> Any:
    """``AutoTuner._load_result_from_disk`` (seen in TileLang 0.1.15) in this way while ``is_enabled()``."""

    def _load_result_from_disk(self: Any, key: str) -> Any:
        if not is_enabled():
            return original(self, key)
        found = _tuned(os.path.join(str(self.cache_dir), key))
        if found is None:
            return None
        config, latency, ref_latency = found
        try:
            kernel = _compiled(self, config)
        except Exception:
            # What was the best with another toolchain does not compile with this one: tuned anew.
            return None
        return _result(kernel, config, latency, ref_latency)

    return _load_result_from_disk


def _tuned(place: str) -> tuple[dict[str, Any], Any, Any] | None:
    """Configuration and times of a result; ``None`` if there is none that is whole."""
    try:
        with open(os.path.join(place, "best_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        with open(os.path.join(place, "latency.json"), encoding="utf-8") as file:
            times = json.load(file)
        return dict(config), times["latency"], times["ref_latency"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _compiled(tuner: Any, config: dict[str, Any]) -> Any:
    """The kernel of a configuration, as the tuner itself would compile it."""
    from tilelang.autotuner.tuner import _PASS_CONFIGS_KEY

    compile_function, _ = tuner._ensure_jit_functions()
    names = inspect.signature(tuner.fn).parameters
    arguments = {name: config[name] for name in names if name in config}
    return compile_function(**arguments, **{_PASS_CONFIGS_KEY: config.get(_PASS_CONFIGS)})


def _result(kernel: Any, config: dict[str, Any], latency: Any, ref_latency: Any) -> Any:
    from tilelang.autotuner.param import AutotuneResult

    kernel = kernel.update_tuner_result(latency=latency, config=config, ref_latency=ref_latency)
    return AutotuneResult(
        latency=latency, config=config, ref_latency=ref_latency,
        libcode=kernel.get_kernel_source(), func=kernel.prim_func, kernel=kernel,
    )  # fmt: skip
