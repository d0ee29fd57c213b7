"""The start-up hook: an integration is installed right after its framework was imported.

Armed by ``ptocache run`` (through :mod:`ptocache.integrations.startup`), or by hand::

    from ptocache.integrations import hook
    hook.arm()

A framework is switched on by its variable (``PTOCACHE_TILELANG=1``). A process that never imports one pays
for a look-up per imported module. Whatever goes wrong, the import of the framework goes on: with one
warning, and without ptocache. Imports nothing but ``os`` and ``sys``, so that it also works as a file by
itself, where ptocache is not installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FRAMEWORKS = {
    "tilelang": ("PTOCACHE_TILELANG", "ptocache.integrations.tilelang"),
    "triton": ("PTOCACHE_TRITON", "ptocache.integrations.triton"),
}
"""Module that is waited for → (variable that switches it on, module whose ``install()`` is called)."""
_ON = frozenset({"1", "true", "yes", "on"})


class Finder:
    """On ``sys.meta_path``: finds nothing by itself, and watches the import of some modules."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self.wanted = dict(wanted)
        """Module that is waited for → module whose ``install()`` is called."""
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, made to install the integration when it was run."""
        if name not in self.wanted or self._searching:
            return None
        self._searching = True
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._searching = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._watch(spec)
        return spec

    def _watch(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        assert loader is not None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Of the loader itself: who asks a module for its loader later sees what it always was.
            del loader.__dict__["exec_module"]
            run(module)
            install(spec.name, self.wanted[spec.name])

        try:
            loader.__dict__["exec_module"] = exec_module
        except (AttributeError, TypeError) as error:
            say(spec.name, error)


def _found_by_others(
    own: Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is own or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def install(framework: str, integration: str) -> None:
    """Call the ``install()`` of an integration; what goes wrong is said, and no more."""
    try:
        __import__(integration)
        sys.modules[integration].install()
    except Exception as error:
        say(framework, error)


def say(framework: str, error: Exception) -> None:
    """One warning, which cannot become an error."""
    text = f"ptocache: {framework} goes on without it: {type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("ptocache"):
        text = f"ptocache is not installed for {sys.executable}: {framework} goes on without it"
    tell(text, RuntimeWarning)


def tell(text: str, category: type[Warning]) -> None:
    """A warning that cannot become an error: where warnings are, it is a line."""
    import warnings

    try:
        warnings.warn(text, category, stacklevel=3)
    except category:
        print(text, file=sys.stderr)


def arm(env: Mapping[str, str] | None = None) -> Finder | None:
    """Wait for the frameworks that ``env`` (default: this process's environment) switches on. One that is
    imported already is installed into at once. A second call waits for the same ones."""
    env = os.environ if env is None else env
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder
    wanted: dict[str, str] = {}
    for framework, (variable, integration) in FRAMEWORKS.items():
        if env.get(variable, "").strip().lower() not in _ON:
            continue
        if framework in sys.modules:
            install(framework, integration)
        else:
            wanted[framework] = integration
    if not wanted:
        return None
    found = Finder(wanted)
    sys.meta_path.insert(0, found)
    return found
