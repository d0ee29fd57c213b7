"""Triton and Triton-Ascend: compiled kernels from ptocache.

No code at all: ``ptocache run -- python train.py``. Or one line, ``ptocache.integrations.triton.install()``.
Or one variable, which Triton itself reads::

    TRITON_CACHE_MANAGER=ptocache.integrations.triton:CacheManager

What Triton compiles is a *group* of files (source, each level of IR, binary, metadata): one entry of the
kernel cache. The first who asks for a group gets the lease, and builds while others wait; it ends with
``put_group``. Single files (launchers, results of tuning), dumps and overrides stay in Triton's own cache.

The interface is that of ``triton/runtime/cache.py`` (seen in 3.9.0). Whatever goes wrong in here, and where
there is no daemon, Triton goes on with its own cache, after one warning.
"""

from __future__ import annotations

import json
import os
import threading
import weakref

from ptocache.result import Result

from . import files
from .process import Process
from .shelf import shelf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ptocache.kernel import Lease

_MANIFEST = "__grp__"
"""What Triton puts before the name of a group's list of files."""
_PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "AMDGCN_", "BISHENGIR_")
_NAMES = (
    "DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "ENABLE_PRINT_UB_BITS", "ENABLE_UNPUBLISHED_FEATURE",
    "PTXAS_OPTIONS",
)  # fmt: skip
# What cannot change a kernel, or counts by the content of what it names.
_WITHOUT_EFFECT = (
    "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_", "TRITON_CUDACRT_", "TRITON_CUDART_", "TRITON_CUPTI_",
    "TRITON_CUOBJDUMP_", "TRITON_DUMP_", "TRITON_HOME", "TRITON_HSA_", "TRITON_LIBCUDA_",
    "TRITON_LIBDEVICE_PATH", "TRITON_LIBHIP_PATH", "TRITON_NPU_COMPILER_PATH", "TRITON_NVDISASM_",
    "TRITON_OVERRIDE_DIR", "TRITON_PRINT_", "TRITON_PROTON_", "TRITON_PTXAS_", "TRITON_REDIS_",
    "TRITON_REMOTE_", "TRITON_ROCPROFILER_", "TRITON_ROCTRACER_", "TRITON_ROCTX_",
)  # fmt: skip
# What brings in files that no key of Triton's has.
_UNKNOWN = (
    "LLVM_PASS_PLUGIN_PATH", "TRITON_AMD_CODEGEN_PATH", "TRITON_KERNEL_OVERRIDE",
    "TRITON_PLUGIN_PATHS", "TRITON_SWAP_MIR", "USE_IR_LOC",
)  # fmt: skip
_OFF = frozenset({"", "0", "false", "off", "no", "n"})
_NPU_TOOLS = (
    "bishengir-compile", "bishengir-opt", "hivmc", "bisheng", "ccec", "npuc", "triton-mlir-opt",
)  # fmt: skip


_process = Process("Triton")
_places: dict[str, str] = {}
"""Action key → folder with the files of a kernel that was answered."""
_local = threading.local()
_KNOB = "manager_class"
_before: dict[str, Any] = {}
"""What the program had set the knob to before; empty if it had set nothing."""


def install() -> None:
    """Let Triton get its kernels from ptocache, unless another cache manager is chosen already.

    Raises :class:`ImportError` if there is no Triton, or one without knobs (before 3.4): set
    ``TRITON_CACHE_MANAGER`` there.
    """
    from triton import knobs

    if knobs.cache.manager_class is None:
        _before.clear()
        _before.update((name, value) for name, value in vars(knobs.cache).items() if name == _KNOB)
        knobs.cache.manager_class = CacheManager


def uninstall() -> None:
    """Take it back; a manager that somebody has chosen since is left as it is."""
    from triton import knobs

    own = vars(knobs.cache)
    if own.get(_KNOB) is CacheManager:
        del own[_KNOB]
        own.update(_before)
    _places.clear()
    _process.end()


# --- the key


def _backends() -> frozenset[str]:
    from triton.backends import backends

    return frozenset(backends)


def _material(backends: Iterable[str]) -> tuple[dict[str, bytes | str], bool]:
    """What decides a kernel and Triton's own key lacks, and whether all of it can be named."""
    import triton

    material: dict[str, bytes | str] = {"triton": triton.__version__}
    known = True
    variables = _variables()
    for name, value in variables.items():
        if name in _UNKNOWN:
            known = known and value.strip().lower() in _OFF
        elif name in _NAMES or (
            name.startswith(_PREFIXES) and not name.startswith(_WITHOUT_EFFECT)
        ):
            material[f"variable {name}"] = value
    programs = _programs(os.path.dirname(triton.__file__), backends, variables)
    files.learn((path for _, path in programs), _process.digests)
    for title, path in programs:
        digest = files.digest_of_program(path, "")
        known = known and bool(digest) and not _leads_elsewhere(path)
        material[f"tool {title}"] = digest
    return material, known


def _variables() -> dict[str, str]:
    """The environment as Triton goes by it: a knob that the program has set counts, and not its variable."""
    found = dict(os.environ)
    try:
        from triton import knobs
    except ImportError:
        return found
    for group in vars(knobs).values():
        descriptors = getattr(group, "knob_descriptors", None)
        if not isinstance(descriptors, dict):
            continue
        for name, knob in descriptors.items():
            if name not in vars(group):
                continue
            value = vars(group)[name]
            found.pop(knob.key, None)
            if value is not None:
                text = str(int(value)) if isinstance(value, bool) else str(_path_of(value))
                found[knob.key] = text
    return found


def _path_of(value: Any) -> Any:
    """A tool's path, where that is what a knob holds."""
    return getattr(value, "path", value)


def _programs(
    package: str, backends: Iterable[str], variables: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(name, path) of the programs that Triton may run; a variable's program is followed by the one that
    Triton takes in its place if it does not work."""
    found = []
    if "nvidia" in backends:
        for tool in ("ptxas", "ptxas-blackwell"):
            bundled = os.path.join(package, "backends", "nvidia", "bin", tool)
            chosen = variables.get(f"TRITON_{tool.upper().replace('-', '_')}_PATH", "")
            found += [(f"{tool} chosen", chosen), (tool, bundled)]
    if "ascend" in backends:
        found += _npu_programs(package, variables)
    return [(name, path) for name, path in found if path and os.path.exists(path)]


def _npu_programs(package: str, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those of Triton-Ascend (read in its public sources, 2026): what it brings itself, with all that lies
    beside it; else what is first on ``PATH``; else what ``TRITON_NPU_COMPILER_PATH`` has."""
    own = os.path.join(package, "backends", "ascend")
    path = variables.get("PATH", "")
    home = variables.get("TRITON_NPU_COMPILER_PATH", "")
    build = variables.get("TRITON_BUILD_DIR", "")
    found = [
        ("triton-adapter-opt", os.path.join(own, "triton-adapter-opt")),
        ("triton-mlir-opt of Triton", os.path.join(package, "_C", "triton-mlir-opt")),
        ("triton-mlir-opt of a build", os.path.join(build, "bin", "triton-mlir-opt")),
    ]
    bundled = os.path.join(own, "bishengir")
    for folder, _, names in sorted(os.walk(bundled)):
        paths = [os.path.join(folder, name) for name in sorted(names)]
        found += [(f"bundled {os.path.relpath(item, bundled)}", item) for item in paths]
    for tool in _NPU_TOOLS:
        for place, folders in (("", [*path.split(os.pathsep), home]), (" of its variable", [home])):
            paths = [os.path.join(item, tool) for item in folders if item]
            first = next((item for item in paths if os.access(item, os.X_OK)), "")
            found.append((tool + place, files.behind_shims(first, path)))
    return found


def _leads_elsewhere(path: str) -> bool:
    """True for a script that the settings do not trust: what it starts is out of sight."""
    with open(path, "rb") as file:
        if file.read(2) != b"#!":
            return False
    trusted = _process.client().settings["identity.trust_scripts"]
    return not {os.path.abspath(path), os.path.realpath(path)} & set(trusted)


# --- a group


class _Group:
    """The files of one kernel on their way, in one thread."""

    def __init__(self, key: str) -> None:
        self._own_key = key
        self._name = ""
        self._material: dict[str, bytes | str] = {}
        self._lease: Lease | None = None
        self.result: Result | None = None

    @property
    def is_building(self) -> bool:
        return self._lease is not None

    def ask(self, name: str) -> bool:
        """Ask for the group; gives its ``result``, or (``is_building``) the duty to build it. False if no
        daemon answers."""
        _end_earlier()
        backends = _backends()
        material, known = _material(backends)
        self._name, self.result = name, None
        self._material = {**material, "triton key": self._own_key, "group": name}
        again = _variables().get("TRITON_ALWAYS_COMPILE", "").strip().lower() not in _OFF
        found = _process.client().kernel(
            "ascendc" if "ascend" in backends else "host",
            self._material,
            kernel=name.removesuffix(".json"),
            mode="bypass" if not known else "refresh" if again else "",
        )
        if isinstance(found, Result):
            self.result = found
            return True
        if not found.is_held:
            return False
        self._lease = found
        _local.group = weakref.ref(self)
        return True

    def put(self, group: dict[str, bytes]) -> None:
        """End the lease with the files that were built."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        with lease:
            why = self._doubt(group)
            if why:
                lease.abandon(why)
            else:
                lease.put(group)

    def _doubt(self, group: dict[str, bytes]) -> str:
        """Why what was built must not be stored."""
        metadata = json.loads(group.get(self._name, b"{}"))
        if isinstance(metadata, dict) and metadata.get("ir_override"):
            return "a file takes the place of a level of its IR (ir_override)"
        now, _ = _material(_backends())
        if any(self._material.get(name) != value for name, value in now.items()):
            return "Triton's tools or variables have changed meanwhile"
        return ""

    def end(self, why: str) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abandon(why)


def _end_earlier() -> None:
    """A thread compiles one kernel at a time: what it still holds is of a compile that failed. Asking
    while holding could wait for who waits for us."""
    held = getattr(_local, "group", None)
    earlier = held() if held is not None else None
    _local.group = None
    if earlier is not None:
        earlier.end("the compile failed")


# --- what Triton sees


class CacheManager:
    """Triton's cache manager of one key; Triton looks at the name of the class, not at its bases."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key
        self._more = {"override": override, "dump": dump}
        self._file_manager: Any = None
        self._group = _Group(key)
        self._is_ours = not override and not dump
        self._place = ""

    def get_file(self, filename: str) -> str | None:
        """The path of a file that is there."""
        path = os.path.join(self._place, filename)
        if self._place and os.path.exists(path):
            return path
        found: str | None = self._own().get_file(filename)
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file; gives its path, which stays readable until the process ends."""
        if self._group.is_building:
            try:
                return self._put(data, filename)
            except OSError as error:
                self._give_up(error)
        found: str = self._own().put(data, filename, binary=binary)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Name → path of the files of a kernel; ``None`` if it is to be built."""
        if self._is_ours:
            try:
                if self._group.ask(filename):
                    result = self._group.result
                    return None if result is None else self._written(result)
            except Exception as error:
                self._give_up(error)
        self._is_ours = False
        found: dict[str, str] | None = self._own().get_group(filename)
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> Any:
        """The kernel is built, and consists of these files."""
        if not self._group.is_building:
            # Answered or given up: what was written since lies in Triton's own cache.
            return self._own().put_group(filename, group)
        try:
            self._group.put({name: _read(path) for name, path in group.items()})
        except Exception as error:
            self._give_up(error)
        return None

    def _put(self, data: Any, filename: str) -> str:
        if not self._place:
            self._place = shelf.place()
        path = os.path.join(self._place, filename)
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else str(data).encode())
        return path

    def _written(self, result: Result) -> dict[str, str]:
        place = _places.get(result.key, "")
        paths = {name: os.path.join(place, name) for name in result.outputs}
        if not place or not all(os.path.exists(path) for path in paths.values()):
            place = shelf.place()
            paths = {name: os.path.join(place, name) for name in result.outputs}
            for name, output in result.outputs.items():
                output.write(paths[name])
            _places[result.key] = place
        self._place = place
        return paths

    def _give_up(self, error: Exception) -> None:
        self._is_ours = False
        self._group.end(f"{type(error).__name__}: {error}")
        _process.step_aside(error)

    def _own(self) -> Any:
        if self._file_manager is None:
            from triton.runtime.cache import FileCacheManager

            self._file_manager = FileCacheManager(self.key, **self._more)
        return self._file_manager


class RemoteCacheBackend:
    """For ``TRITON_CACHE_MANAGER=triton.runtime.cache:RemoteCacheManager`` with
    ``TRITON_REMOTE_CACHE_BACKEND=ptocache.integrations.triton:RemoteCacheBackend``: the same entries, whose
    files Triton writes into its own cache folder."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._group = _Group(key)
        self._built: dict[str, bytes] = {}

    def get(self, filenames: Iterable[str]) -> dict[str, bytes]:
        """Name → content of what is there."""
        names = list(filenames)
        if len(names) == 1 and names[0].startswith(_MANIFEST):
            try:
                if self._group.ask(names[0].removeprefix(_MANIFEST)):
                    result = self._group.result
                    if result is None:
                        return {}
                    listed = json.dumps({"child_paths": sorted(result.outputs)})
                    return {names[0]: listed.encode()}
            except Exception as error:
                self._group.end(str(error))
                _process.step_aside(error)
        result = self._group.result
        if result is not None and set(names) <= set(result.outputs):
            return {name: bytes(result.outputs[name].buffer) for name in names}
        return self._local(names)

    def put(self, filename: str, data: bytes) -> None:
        """Triton keeps its own copy; the group is stored with its manifest, which comes last."""
        if not self._group.is_building:
            return
        if not filename.startswith(_MANIFEST):
            self._built[filename] = data
            return
        try:
            names = json.loads(data)["child_paths"]
            self._group.put({name: self._built[name] for name in names})
        except Exception as error:
            self._group.end(str(error))
            _process.step_aside(error)

    def _local(self, names: list[str]) -> dict[str, bytes]:
        from triton.runtime.cache import FileCacheManager

        own = FileCacheManager(self._key)
        paths = {name: own.get_file(name) for name in names}
        return {name: _read(path) for name, path in paths.items() if path is not None}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
