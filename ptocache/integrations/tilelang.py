"""TileLang: whole kernels and device binaries from ptocache.

    import ptocache.integrations.tilelang
    ptocache.integrations.tilelang.install()

or no code at all: ``ptocache run -- python train.py``.

Two places of TileLang (seen in 0.1.15) are hooked:

- ``KernelCache``: what its ``cached`` asks its own disk cache for is asked of the daemon instead, with the
  framework's own key as a part of the key. One process builds while the others wait. TileLang's memory
  cache stays, under ptocache's key.
- ``tilelang_callback_ascend_compile`` and ``tilelang_callback_pto_compile``: device sources go through
  the toolchains ``ascendc`` and ``pto``.

With TileLang's cache switched off nothing is asked. Whatever goes wrong in here, TileLang goes on in its
own way, after one warning.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import threading
from typing import NamedTuple

from ptocache.digest import canonical
from ptocache.errors import CompileFailedError, StepTimeoutError
from ptocache.launch import reject
from ptocache.outcome import Outcome, Reason
from ptocache.result import Result

from . import files
from .process import Process
from .shelf import shelf
from .tilelang_tuner import wrapped_load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ptocache.kernel import Lease

ASCEND_CALLBACK = "tilelang_callback_ascend_compile"
PTO_CALLBACK = "tilelang_callback_pto_compile"
_CALLBACKS = {ASCEND_CALLBACK: "ascendc", PTO_CALLBACK: "pto"}
"""Global function → the toolchain that does its work."""
_POSTPROCESSORS = tuple(
    f"tilelang_callback_{kind}_postproc" for kind in ("c", "c_host", "ascend", "pto")
)
# What TileLang's own process hands on to compilers, and its own key does not have; what a toolchain
# declares is added by the daemon.
_DEVICE_VARIABLES = ("PTO_FLAGS", "TL_PTO_DEBUG", "TL_RUN_MODE")
_HOST_VARIABLES = ("COMPILER_PATH", "GCC_EXEC_PREFIX")
_INCLUDE_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_TEMPLATES = {"host": ("cpp", "cpu"), "ascendc": ("ascend",), "pto": ("ascend", "pto")}
"""Toolchain → folders of ``tl_templates`` that its kernels include."""
_ABSOLUTE_INCLUDE = re.compile(r'#\s*include\s*\\*["<]/')
_KERNEL_NAME = re.compile(r"__global__[^;{(]*?\b(\w+)\s*\(")
_PYTHON = re.compile(r"^\s*(?:import|from|def|@)\b", re.MULTILINE)
_CPP = re.compile(r"^\s*#\s*include\b|__global__|__aicore__", re.MULTILINE)


# --- installing


class _Patch(NamedTuple):
    """An attribute of a class that was replaced."""

    owner: type
    name: str
    before: Any
    """As it stands in the class (a ``staticmethod`` included)."""
    after: Any


class _State:
    """What is installed in this process."""

    def __init__(self) -> None:
        self.active = False
        self.patches: list[_Patch] = []
        self.callbacks: dict[str, tuple[Any, Any]] = {}
        """Name → the global function before, and ours."""


_state = _State()
_process = Process("TileLang")
_local = threading.local()


def install() -> None:
    """Let TileLang get its kernels from ptocache. A second call changes nothing.

    Raises :class:`ImportError` if there is no TileLang. What this version of TileLang does not have is
    left alone, with one warning.
    """
    import tilelang

    with _process.lock:
        if _state.active:
            return
        _state.active = True
        env = getattr(tilelang, "env", None)
        if env is not None and env.is_light_import():
            # Nothing is compiled in such a process.
            return
        for patch, title in ((_patch_kernel_cache, "kernel cache"), (_patch_tuner, "autotuner")):
            try:
                patch()
            except (ImportError, AttributeError) as error:
                _process.warn(f"the {title} of this TileLang is another one than it knows: {error}")
        _hook_callbacks()


def uninstall() -> None:
    """Take everything back. What somebody else has replaced since is left as it is, and works without
    ptocache."""
    with _process.lock:
        _state.active = False
        for patch in reversed(_state.patches):
            if patch.owner.__dict__.get(patch.name) is patch.after:
                setattr(patch.owner, patch.name, patch.before)
        _state.patches.clear()
        for name, (before, ours) in _state.callbacks.items():
            now = _global_function(name)
            if now is not None and now.same_as(ours):
                _register(name, before)
        _state.callbacks.clear()
        _places.clear()
        _process.end()


def _patch_kernel_cache() -> None:
    from tilelang.cache.kernel_cache import KernelCache

    wrappers: dict[str, Callable[[Any], Any]] = {
        "cached": _cached,
        "_generate_key": _generate_key,
        "_load_kernel_from_disk": _load_kernel,
        "_save_kernel_to_disk": _save_kernel,
        "_get_cache_path": _cache_path,
        "_get_staging_root": _staging_root,
        "_clear_disk_cache": _clear_disk_cache,
    }
    _patch(KernelCache, wrappers)


def _patch_tuner() -> None:
    from tilelang.autotuner.tuner import AutoTuner

    def load(original: Any) -> Any:
        return wrapped_load(original, _is_enabled)

    _patch(AutoTuner, {"_load_result_from_disk": load})


def _patch(owner: type, wrappers: Mapping[str, Callable[[Any], Any]]) -> None:
    """Replace attributes of a class, all of them or none.

    Raises :class:`AttributeError` if the class does not have one.
    """
    before = {name: owner.__dict__.get(name) for name in wrappers}
    missing = sorted(name for name, original in before.items() if original is None)
    if missing:
        raise AttributeError(f"{owner.__name__} has no {', '.join(missing)}")
    for name, wrapper in wrappers.items():
        original: Any = before[name]
        if isinstance(original, staticmethod):
            after: Any = staticmethod(_like(original.__func__, wrapper(original.__func__)))
        else:
            after = _like(original, wrapper(original))
        setattr(owner, name, after)
        _state.patches.append(_Patch(owner, name, original, after))


def _like(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(wrapper, original)
    return wrapper


def _hook_callbacks() -> None:
    """Put ours in the place of the compile callbacks that are registered by now."""
    with _process.lock:
        for name, toolchain in _CALLBACKS.items():
            if name in _state.callbacks:
                continue
            try:
                before = _global_function(name)
                if before is not None:
                    _register(name, _callback(toolchain, before))
                    _state.callbacks[name] = (before, _global_function(name))
            except Exception as error:
                _process.warn(f"{name} cannot be hooked: {error}")


def _global_function(name: str) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func(name, allow_missing=True)


def _register(name: str, function: Any) -> None:
    import tvm_ffi

    tvm_ffi.register_global_func(name, f=function, override=True)


# --- common


def _is_enabled() -> bool:
    from tilelang import env

    return bool(_state.active and env.is_cache_enabled())


# --- device binaries


def _callback(toolchain: str, before: Any) -> Callable[..., Any]:
    compile_source = {"ascendc": _compile_ascendc, "pto": _compile_pto}[toolchain]

    def compile_device(code: Any, target: Any, *more: Any) -> Any:
        try:
            if _is_enabled() and isinstance(code, str):
                config = more[0] if more else None
                return bytearray(_binary(compile_source, str(code), target, config))
        except (CompileFailedError, StepTimeoutError) as error:
            raise RuntimeError(_failure_text(error, str(code))) from error
        except Exception as error:
            _process.step_aside(error)
            for session in _sessions():
                session.doubt = f"its device binary was made without ptocache: {error}"
        return before(code, target, *more)

    return compile_device


def _binary(compile_source: Callable[..., Result], code: str, target: Any, config: Any) -> Any:
    from tilelang import env
    from tilelang.contrib import bisheng
    from tilelang.transform import PassConfigKey

    flags = bisheng.normalize_options((config or {}).get(PassConfigKey.TL_DEVICE_COMPILE_FLAGS))
    found = compile_source(code, bisheng.get_target_npu_arch(target), flags)
    if env.get_default_verbose():
        for text in (found.log.stdout, found.log.stderr):
            if text:
                print(text.decode(errors="replace"))
    return found.outputs["aibin"].buffer


def _compile_ascendc(code: str, arch: str, flags: list[str]) -> Result:
    """The flags are those of TileLang: the ones that it always gives are the toolchain's own."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    return _process.client().compile(
        "ascendc", {"tl_kernel.asc": code}, arch=arch, env=_device_environment(),
        options=[f"-I{TILELANG_TEMPLATE_PATH}", *flags], outputs=["aibin"],
        kernel=_kernel_name(code),
    )  # fmt: skip


def _compile_pto(code: str, arch: str, flags: list[str]) -> Result:
    # Python of PTO-DSL, a PTO text, or C++ that ptoas has made: the toolchain goes by the suffix.
    suffix = ".cpp" if _CPP.search(code) else ".py" if _PYTHON.search(code) else ".pto"
    return _process.client().compile(
        "pto", {f"tl_kernel{suffix}": code}, arch=arch, env=_device_environment(), options=flags,
        outputs=["aibin"], kernel=_kernel_name(code),
    )  # fmt: skip


def _kernel_name(code: str) -> str:
    found = _KERNEL_NAME.search(code)
    return found[1] if found else ""


def _failure_text(error: Exception, code: str) -> str:
    """As TileLang words it."""
    result = getattr(error, "result", None)
    output = b"" if result is None else result.log.stdout + result.log.stderr
    said = output.decode(errors="replace")
    return f"Ascend device compilation failed.\n{error}\nCompiler output:\n{said}\nSource:\n{code}"


def _device_environment() -> dict[str, str]:
    """This process's environment, in which the toolchain finds the bisheng that TileLang would run.

    TileLang looks in ``BISHENG_HOME`` and then on ``PATH``; the toolchain looks in the CANN folders
    before ``PATH``.

    Raises :class:`LookupError` if the toolchain would take another ``ld.lld``.
    """
    from tilelang.contrib import bisheng

    env = dict(os.environ)
    tool = files.behind_shims(bisheng.find_bisheng_path(), env.get("PATH", ""))
    if not tool:
        return env
    linker = ""
    with contextlib.suppress(RuntimeError):
        linker = bisheng.find_ld_lld_path()
    home = env.get("BISHENG_HOME", "")
    if home and tool == os.path.join(home, "bin", "bisheng"):
        env["BISHENG_HOME"] = os.path.abspath(home)
        return env
    roots = [env[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if env.get(name)]
    if not home and all(_is_below(tool, root) for root in roots):
        return env
    folder = os.path.dirname(os.path.abspath(tool))
    inside = os.path.basename(folder) == "bin"
    env["BISHENG_HOME"] = os.path.dirname(folder) if inside else folder
    beside = os.path.join(folder, "ld.lld")
    if linker and os.path.exists(beside) and not os.path.samefile(beside, linker):
        raise LookupError(f"bisheng is {tool}, and ld.lld {linker} of another installation")
    return env


def _is_below(path: str, root: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)


# --- whole kernels

_places: dict[str, str] = {}
"""Key → where the files of a kernel of this process lie."""
_renewed: set[str] | None = None
"""After ``clear_cache``: what was built anew since; all else is built again when it is asked for."""


class _Question(NamedTuple):
    """What a kernel is asked for with."""

    toolchain: str
    material: dict[str, bytes | str]
    arch: str
    env: dict[str, str]
    kernel: str
    storable: bool
    """False if something makes the kernel that no key can name."""

    @property
    def digest(self) -> str:
        """Tells questions apart in this process."""
        env = {name: self.env.get(name, "") for name in _DEVICE_VARIABLES + _INCLUDE_VARIABLES}
        return hashlib.sha256(
            canonical([self.toolchain, self.arch, self.material, env])
        ).hexdigest()


class _Session:
    """A kernel on its way through ``KernelCache.cached``, in one thread."""

    def __init__(self, cache: Any, context: Any) -> None:
        self.cache = cache
        self.context = context
        self.question: _Question | None = None
        self.key = ""
        """What the methods of the cache know the kernel by; empty while they go their own way."""
        self.result: Result | None = None
        self.lease: Lease | None = None
        self.place = ""
        self.staging = ""
        self.doubt = ""
        """Why the kernel that is built must not be stored."""
        self.moved = False
        """The kernel that is built is not the one that was asked for: it must not be remembered."""

    def ask(self, question: _Question) -> str:
        """Ask for the kernel; gives the key that stands for it."""
        self.question = question
        self._ask(self._mode(question))
        found = self.result if self.result is not None else self.lease
        assert found is not None
        self.key = found.key or question.digest
        return self.key

    def _mode(self, question: _Question) -> str:
        renewed = _renewed
        if not question.storable or any(other.lease is not None for other in _sessions()):
            # Who builds one kernel and waits for another may wait for who waits for the first.
            return "bypass"
        return "" if renewed is None or question.digest in renewed else "refresh"

    def _ask(self, mode: str) -> None:
        question = self.question
        assert question is not None
        found = _process.client().kernel(
            question.toolchain, question.material, arch=question.arch, env=question.env,
            kernel=question.kernel, mode=mode,
        )  # fmt: skip
        if isinstance(found, Result):
            self.result, self.lease = found, None
            self._remember()
        else:
            self.result, self.lease = None, found

    def _remember(self) -> None:
        if _renewed is not None and self.question is not None:
            _renewed.add(self.question.digest)

    def load(self, load: Callable[[], Any]) -> Any:
        """The kernel of the answer; ``None`` if it is to be built."""
        if self.result is None:
            return None
        for is_last in (False, True):
            kernel, why = self._loaded(load)
            if kernel is not None:
                return kernel
            if is_last:
                _process.warn("the kernel that was built anew cannot be loaded either", again=True)
                self.moved = True
                return None
            self._drop(why)
            if self.result is None:
                return None
        return None

    def _loaded(self, load: Callable[[], Any]) -> tuple[Any, str]:
        """The kernel, or why it cannot be loaded."""
        assert self.result is not None
        try:
            self.place = shelf.place()
            for name, output in self.result.outputs.items():
                path = os.path.join(self.place, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                output.write(path)
            kernel = load()
        except OSError:
            # Of this machine's disk: nothing is wrong with the kernel.
            raise
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if kernel is None:
            return None, "TileLang refuses it; its log has more"
        _places[self.key] = self.place
        return kernel, ""

    def _drop(self, why: str) -> None:
        """Report a kernel that cannot be loaded, drop it, and ask for one that is built anew."""
        assert self.result is not None
        name = self.question.kernel if self.question is not None else ""
        key = self.result.key
        verdict = reject(_process.client(), self.result, why)
        text = f"the stored kernel {name} cannot be loaded, and is built again: {why}"
        self.place = ""
        if verdict.word and not verdict.again:
            # It would be answered once more.
            _process.warn(f"{text}; it stays in the store: {verdict.detail}", again=True)
            self.result = None
            self.moved = True
            return
        _process.warn(text, again=True)
        self._ask("")
        found = self.result if self.result is not None else self.lease
        self.moved = found is not None and bool(found.key) and found.key != key

    def save(self, save: Callable[[], Any]) -> None:
        """End the lease with the kernel that was built."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        with lease:
            if self.doubt:
                lease.abandon(self.doubt)
                return
            if not lease.stored:
                # Exporting it would start a compiler for nothing.
                self._ended(lease.put({"nothing": b""}))
                return
            place = shelf.place()
            self.staging = os.path.join(place, "staging")
            self.place = os.path.join(place, "kernel")
            os.mkdir(self.staging)
            save()
            if not os.path.isdir(self.place):
                lease.abandon("TileLang could not save the kernel; its log has more")
                return
            _places[self.key] = self.place
            self._ended(lease.put(_files_of(self.place)))

    def _ended(self, result: Result) -> None:
        if result.outcome is Outcome.MISS:
            self._remember()
        self.moved = self.moved or result.reason is Reason.TOOLCHAIN_CHANGED

    def end(self, error: BaseException | None) -> None:
        """Nothing of the session outlives it."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.abandon("" if error is None else f"{type(error).__name__}: {error}")
        if self.moved and self.key:
            self.cache._memory_cache.pop(self.key, None)


def _files_of(place: str) -> dict[str, bytes | str | os.PathLike[str]]:
    found: dict[str, bytes | str | os.PathLike[str]] = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, place)] = file.read()
    return found


def _sessions() -> list[_Session]:
    found: list[_Session] | None = getattr(_local, "sessions", None)
    if found is None:
        found = _local.sessions = []
    return found


def _session(key: str | None = None) -> _Session | None:
    """The innermost session of this thread, if it is (still) ptocache's business; with ``key``: if it is
    for that kernel."""
    sessions = _sessions()
    if not sessions or not sessions[-1].key or (key is not None and sessions[-1].key != key):
        return None
    return sessions[-1]


@contextlib.contextmanager
def _new_session(cache: Any, context: Any) -> Iterator[_Session]:
    session = _Session(cache, context)
    _sessions().append(session)
    error: BaseException | None = None
    try:
        yield session
    except BaseException as caught:
        error = caught
        raise
    finally:
        _sessions().remove(session)
        try:
            session.end(error)
        except Exception as trouble:
            _process.warn(f"TileLang goes on in its own way: {trouble}")


def _cached(original: Any) -> Any:
    def cached(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _state.active:
            return original(self, *args, **kwargs)
        _hook_callbacks()
        with _new_session(self, kwargs.get("backend_context")) as session:
            kernel = original(self, *args, **kwargs)
            if session.lease is not None:
                # It was in TileLang's memory, and is not in the store any more.
                self._save_kernel_to_disk(session.key, kernel)
            return kernel

    return cached


def _generate_key(original: Any) -> Any:
    def _generate_key(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = original(self, *args, **kwargs)
        sessions = _sessions()
        if not _state.active or not sessions or sessions[-1].question is not None:
            return own
        session = sessions[-1]
        try:
            question = _question(self, session.context, own, *args, **kwargs)
            return own if question is None else session.ask(question)
        except Exception as error:
            session.key = ""
            _process.step_aside(error)
            return own

    return _generate_key


def _load_kernel(original: Any) -> Any:
    def _load_kernel_from_disk(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        session = _session(key)
        if session is None:
            return original(self, key, *args, **kwargs)
        try:
            return session.load(lambda: original(self, key, *args, **kwargs))
        except Exception as error:
            _process.step_aside(error)
            return None

    return _load_kernel_from_disk


def _save_kernel(original: Any) -> Any:
    def _save_kernel_to_disk(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        session = _session(key)
        if session is None:
            return original(self, key, *args, **kwargs)
        try:
            return session.save(lambda: original(self, key, *args, **kwargs))
        except Exception as error:
            _process.step_aside(error)
            return None

    return _save_kernel_to_disk


def _cache_path(original: Any) -> Any:
    def _get_cache_path(self: Any, key: str) -> Any:
        session = _session(key)
        place = session.place if session is not None else ""
        return place or _places.get(key) or original(self, key)

    return _get_cache_path


def _staging_root(original: Any) -> Any:
    def _get_staging_root() -> Any:
        session = _session()
        return (session.staging if session is not None else "") or original()

    return _get_staging_root


def _clear_disk_cache(original: Any) -> Any:
    def _clear_disk_cache(self: Any) -> Any:
        global _renewed
        if _state.active:
            # Of a store that is everybody's, no more is dropped than what this process would use.
            _renewed = set()
        return original(self)

    return _clear_disk_cache


# --- the key of a whole kernel


def _question(
    cache: Any,
    context: Any,
    own_key: str,
    func: Any = None,
    out_idx: Any = None,
    execution_backend: str = "",
    args: Any = None,
    target: Any = None,
    target_host: Any = None,
    pass_configs: Mapping[str, Any] | None = None,
    compile_flags: Any = None,
) -> _Question | None:
    """What to ask the daemon; ``None`` for a kernel whose compilers ptocache does not know. The
    parameters from ``func`` on are those of ``KernelCache._generate_key``."""
    import tilelang
    from tilelang.transform import PassConfigKey
    from tilelang.utils.language import get_prim_func_name

    toolchain = _toolchain_of(context, target)
    if not toolchain or not _has_our_callback(toolchain):
        return None
    configs = dict(pass_configs or {})
    flags = _words(configs.get(PassConfigKey.TL_DEVICE_COMPILE_FLAGS)) + _words(compile_flags)
    brought = files.brought(flags, [os.environ.get(name, "") for name in _INCLUDE_VARIABLES])
    source = func.script(show_meta=True)
    material: dict[str, bytes | str] = {
        "compile flags": shlex.join(flags),
        "execution backend": execution_backend,
        "function": source.encode(),
        "outputs": repr(out_idx),
        "pass configuration": json.dumps(configs, sort_keys=True, default=repr),
        "target": str(target),
        "templates": _templates(toolchain),
        "tilelang": tilelang.__version__,
        "tilelang key": own_key,
    }
    if brought.digest:
        material["files of the flags"] = brought.digest
    env = dict(os.environ)
    arch = ""
    compiler = _host_compiler(execution_backend)
    if toolchain == "host":
        if compiler:
            env["CXX"] = shlex.quote(compiler)
        _add_variables(material, _HOST_VARIABLES)
    else:
        from tilelang.contrib import bisheng

        arch = bisheng.get_target_npu_arch(target)
        env = _device_environment()
        material["host compiler"] = files.digest_of_program(compiler, env.get("PATH", ""))
        _add_variables(material, _DEVICE_VARIABLES + _HOST_VARIABLES)
    return _Question(
        toolchain,
        material,
        arch,
        env,
        str(get_prim_func_name(func, "")),
        brought.known and not _ABSOLUTE_INCLUDE.search(source) and not _is_rewritten(),
    )


def _toolchain_of(context: Any, target: Any) -> str:
    kind = str(getattr(getattr(target, "kind", None), "name", target))
    name = str(getattr(getattr(context, "module", None), "name", kind))
    for text in (name, kind):
        if "pto" in text:
            return "pto"
    if name in ("cpu", "c", "llvm"):
        return "host"
    return "ascendc" if name == "ascend" else ""


def _has_our_callback(toolchain: str) -> bool:
    """False if somebody's own function makes the device binary: no key can name what it does."""
    names = [name for name, own in _CALLBACKS.items() if own == toolchain]
    pairs = [(_global_function(name), _state.callbacks.get(name)) for name in names]
    return all(now is None or (ours is not None and now.same_as(ours[1])) for now, ours in pairs)


def _is_rewritten() -> bool:
    """True if somebody's own function rewrites the code that is generated: no key can name what it does."""
    return any(_global_function(name) is not None for name in _POSTPROCESSORS)


def _words(flags: Any) -> list[str]:
    if not flags:
        return []
    texts = [flags] if isinstance(flags, str) else [str(item) for item in flags]
    return [word for text in texts for word in shlex.split(text)]


def _add_variables(material: dict[str, bytes | str], names: tuple[str, ...]) -> None:
    material.update((name, os.environ[name]) for name in names if os.environ.get(name))


def _templates(toolchain: str) -> str:
    """Digest of the headers that come with TileLang and are compiled into a kernel."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    root = os.path.join(TILELANG_TEMPLATE_PATH, "tl_templates")
    found = files.digest_of_folders([os.path.join(root, name) for name in _TEMPLATES[toolchain]])
    return found or "unknown"


def _host_compiler(execution_backend: str) -> str:
    """What TileLang would compile host code with; empty if there is none."""
    from tilelang.contrib import cc

    find = cc.get_cplus_compiler if execution_backend == "cython" else cc.get_cc
    return files.behind_shims(str(find() or ""), os.environ.get("PATH", ""))
