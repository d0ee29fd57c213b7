"""The plugin interface: what a toolchain is, how one is found, and the check when it is loaded.

A toolchain is one object. It starts no process, touches no cache and no socket: the daemon, the
client's fallback and the tests all drive the same object. What it needs of the world is handed in:
:class:`Probe` asks a tool a question (the answer is remembered with the identity), :class:`Files`
looks at headers (digests and scans are remembered by stat signature).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .errors import OutputRejectedError, PluginError, UnknownToolchainError
from .model import Discovery, Installation, Job, Output, Prepared, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

GROUP = "ptocache.toolchains"
"""The entry-point group: ``name = module:object_or_class``."""

COMPILE_PATH = "/usr/local/bin:/usr/bin:/bin"
"""``PATH`` of every compile and probe: a constant, so that nobody's own can count."""

_CHECKED = object()


class ProbeResult(NamedTuple):
    """What a tool answered."""

    exit_code: int
    stdout: str
    stderr: str


class Probe(Protocol):
    """Run a tool once, in an environment of our own, to learn something about it."""

    def __call__(self, argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
        """Run ``argv``; ``env`` is added to the constants. An answer is text, errors replaced.

        Raises :class:`OSError` if it cannot be started, :class:`TimeoutError` if it does not end.
        """


class Scan(NamedTuple):
    """What a look at a source file found (see :mod:`ptocache.includes`)."""

    quoted: tuple[str, ...]
    """Operands of ``#include "…"`` and of ``__has_include("…")``."""
    angled: tuple[str, ...]
    """The same with angle brackets."""
    tokens: frozenset[str]
    """Which of the words that decide cacheability occur: see ``includes.TOKENS``."""


class Files(Protocol):
    """A view of source files, memoised by stat signature."""

    def exists(self, path: str) -> bool:
        """True if ``path`` is a file."""

    def scan(self, path: str) -> Scan:
        """The scan of that file; an empty one if it cannot be read."""

    def sha256(self, path: str) -> str:
        """SHA-256 hex of that file; empty if it cannot be read."""

    def entries(self, directory: str) -> Iterable[str]:
        """The names in a directory; none if it cannot be read."""


class CheckedOutputs:
    """Outputs that passed a toolchain's validation; only :func:`validate` and
    :func:`check_bundle` can make them."""

    __slots__ = ("outputs",)

    def __init__(self, outputs: tuple[Output, ...], token: object) -> None:
        if token is not _CHECKED:
            raise TypeError("only ptocache.toolchain makes CheckedOutputs")
        self.outputs = outputs


class Toolchain(Protocol):
    """What a plugin provides."""

    name: str
    version: str
    """Enters every key: raise it when the plugin plans other commands than before."""
    ENV: tuple[str, ...]
    """Declared variables (names or ``fnmatch`` patterns): they reach the compiler and the key."""
    SEARCH: tuple[str, ...]
    """Variables that :meth:`locate` reads: what they lead to is in the identity."""

    FLAVOURS: tuple[str, ...]
    """The flavours that a diagnosis asks for, see :meth:`flavour`."""

    def flavour(self, job: Job) -> str:
        """Which part of the toolchain a job needs; empty if it is one whole. Cheap: every request
        asks."""

    def locate(self, env: Mapping[str, str], probe: Probe, flavour: str) -> Installation:
        """Find the tools. ``env`` holds the variables of ``SEARCH`` and no other.

        Raises :class:`~ptocache.errors.ToolNotFoundError` with where it looked.
        """

    def prepare(self, job: Job, installation: Installation) -> Prepared:
        """Bring a job into normal form: canonical paths, explicit defaults, one spelling.

        Raises :class:`~ptocache.errors.BadRequestError` for what this toolchain cannot do.
        """

    def plan(
        self, prepared: Prepared, installation: Installation, workdir: str
    ) -> tuple[Step, ...]:
        """The steps to run in ``workdir``, where the inputs lie under their names."""

    def collect(self, prepared: Prepared) -> Mapping[str, str]:
        """Output name → file in the private directory, for every output wanted."""

    def discover(
        self,
        prepared: Prepared,
        installation: Installation,
        depfiles: Mapping[str, str],
        files: Files,
        workdir: str,
    ) -> Discovery:
        """What the compile looked at, out of its dependency files (step name → text)."""

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        """The same job, marked as a bypass if the scans of its inputs ask for it."""

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        """Name in the private directory → file to be found there, for what the tools look for beside
        the inputs. They are linked, not copied: what was opened is found out afterwards."""

    def finish(self, prepared: Prepared, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """The outputs wanted, out of the files of :meth:`collect`: where one is a part of a file.

        Raises :class:`~ptocache.errors.OutputRejectedError` if that part is not there.
        """

    def validate(self, prepared: Prepared, outputs: tuple[Output, ...]) -> None:
        """Raise :class:`~ptocache.errors.OutputRejectedError` for an output that is not valid."""


class BaseToolchain:
    """What most toolchains have in common; a plugin may derive from it and write the rest."""

    SEARCH: tuple[str, ...] = ()
    FLAVOURS: tuple[str, ...] = ("",)

    def flavour(self, job: Job) -> str:
        """One whole."""
        return ""

    def judge_inputs(self, prepared: Prepared, scans: Mapping[str, Scan]) -> Prepared:
        """Nothing in an input keeps a result from being stored."""
        return prepared

    def beside(
        self, prepared: Prepared, scans: Mapping[str, Scan], files: Files
    ) -> Mapping[str, str]:
        """Nothing is looked for beside the inputs."""
        return {}

    def finish(self, prepared: Prepared, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """Every output is a whole file."""
        return outputs


_METHODS = (
    "flavour",
    "locate",
    "prepare",
    "plan",
    "collect",
    "discover",
    "judge_inputs",
    "beside",
    "finish",
    "validate",
)


def validate(
    toolchain: Toolchain, prepared: Prepared, outputs: tuple[Output, ...]
) -> CheckedOutputs:
    """Let the toolchain judge its outputs; the result is what the store publishes."""
    toolchain.validate(prepared, outputs)
    return CheckedOutputs(outputs, _CHECKED)


def judge_each(outputs: tuple[Output, ...], judge: Callable[[Output], None]) -> None:
    """Let ``judge`` see each output; what it refuses is named in the error, in the field ``output``.

    Raises what ``judge`` does: :class:`~ptocache.errors.OutputRejectedError`.
    """
    for output in outputs:
        try:
            judge(output)
        except OutputRejectedError as error:
            error.fields["output"] = output.name
            raise


def check_bundle(outputs: tuple[Output, ...]) -> CheckedOutputs:
    """Judge the files of a kernel that a framework built by itself: what is an ELF image must be a
    whole one, with the device images in it; anything else goes.

    Raises :class:`~ptocache.errors.OutputRejectedError`.
    """
    from .elf import check_any

    if not outputs:
        raise OutputRejectedError("a kernel without files")
    for output in outputs:
        try:
            check_any(output.data)
        except OutputRejectedError as error:
            error.message = f"{output.name}: {error.message}"
            raise
    return CheckedOutputs(outputs, _CHECKED)


class Registry:
    """The toolchains of this installation, by name."""

    def __init__(self, toolchains: Iterable[Toolchain] = ()) -> None:
        self._toolchains: dict[str, Toolchain] = {}
        for toolchain in toolchains:
            self.add(toolchain, source="the caller")

    @classmethod
    def discover(cls) -> Registry:
        """Every plugin that the installed distributions name.

        Raises :class:`~ptocache.errors.PluginError` naming the distribution of a plugin that
        cannot be loaded or does not fulfil the interface.
        """
        from importlib.metadata import entry_points

        registry = cls()
        for point in entry_points(group=GROUP):
            source = f"{point.dist.name if point.dist else 'unknown'}: {point.name} = {point.value}"
            try:
                loaded = point.load()
            except Exception as error:
                raise PluginError(
                    f"the toolchain plugin {source} cannot be imported: {error}",
                    hint="reinstall or uninstall that distribution",
                ) from error
            registry.add(loaded() if isinstance(loaded, type) else loaded, source=source)
        return registry

    def add(self, toolchain: Toolchain, *, source: str) -> None:
        """Check a plugin and take it in.

        Raises :class:`~ptocache.errors.PluginError` for one that misses a part of the interface.
        """
        for attribute, kind in (
            ("name", str), ("version", str), ("ENV", tuple), ("SEARCH", tuple), ("FLAVOURS", tuple),
        ):  # fmt: skip
            if not isinstance(getattr(toolchain, attribute, None), kind):
                raise PluginError(
                    f"the toolchain plugin {source} has no {attribute} of type {kind.__name__}",
                    hint="docs/how-to/write-a-toolchain.md shows the interface",
                )
        for method in _METHODS:
            if not callable(getattr(toolchain, method, None)):
                raise PluginError(
                    f"the toolchain plugin {source} has no method {method}()",
                    hint="docs/how-to/write-a-toolchain.md shows the interface",
                )
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", toolchain.name):
            raise PluginError(f"the toolchain plugin {source} has an unusable name")
        if toolchain.name in self._toolchains:
            raise PluginError(f"two toolchain plugins are called {toolchain.name!r}: {source}")
        self._toolchains[toolchain.name] = toolchain

    def get(self, name: str) -> Toolchain:
        """The plugin of this name; raises :class:`~ptocache.errors.UnknownToolchainError`."""
        found = self._toolchains.get(name)
        if found is None:
            raise UnknownToolchainError(
                f"there is no toolchain {name!r}",
                hint=f"installed: {', '.join(sorted(self._toolchains)) or 'none'}",
            )
        return found

    def all(self) -> list[Toolchain]:
        """Every plugin, by name."""
        return [self._toolchains[name] for name in self.names()]

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._toolchains)

    def variables(self) -> dict[str, list[str]]:
        """Name → patterns of the variables that a client must send along."""
        return {
            name: [*toolchain.ENV, *toolchain.SEARCH]
            for name, toolchain in sorted(self._toolchains.items())
        }
