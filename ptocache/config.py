"""Settings: defaults < file < environment < command line, read once, judged as a whole.

Every setting is one row of :data:`TABLE`: its name (``section.key`` in the file), its environment
variable, how its text is understood, and its default. A value that cannot be understood is an error
that names the setting, the value and where it came from.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from . import paths
from .errors import BadRequestError, ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_AGE_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MODES = ("use", "refresh", "bypass", "read-only")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


def parse_size(text: object) -> int:
    """Bytes in ``text``: ``500M``, ``10 GiB``, ``4096``. Units are powers of 1024.

    Raises :class:`ValueError` if it is not a size.
    """
    number, unit = _split_unit(str(text))
    unit = unit.removesuffix("ib").removesuffix("b")
    if unit not in _SIZE_UNITS or number < 0:
        raise ValueError("not a size: write a number and one of K, M, G, T")
    return int(_finite(number * _SIZE_UNITS[unit]))


def parse_age(text: object) -> float:
    """Seconds in ``text``: ``90``, ``30m``, ``12h``, ``7d``, ``2w``.

    Raises :class:`ValueError` if it is not an age.
    """
    number, unit = _split_unit(str(text))
    if unit not in _AGE_UNITS or number < 0:
        raise ValueError("not a time: write a number and one of s, m, h, d, w")
    return _finite(number * _AGE_UNITS[unit])


def _split_unit(text: str) -> tuple[float, str]:
    text = text.strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    return _finite(float(digits)), text[len(digits) :].strip()


def _finite(number: float) -> float:
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("not a number, or too large a one")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True}
    known.update({"0": False, "false": False, "no": False, "off": False, "": False})
    if str(value).strip().lower() not in known:
        raise ValueError("neither true nor false")
    return known[str(value).strip().lower()]


def _count(value: object) -> int:
    number = int(str(value))
    if number < 1:
        raise ValueError("not a positive whole number")
    return number


def _fraction(value: object) -> float:
    number = float(str(value))
    if not 0.0 < number <= 1.0:
        raise ValueError("not a fraction above 0 and at most 1")
    return number


def _path(value: object) -> str:
    text = os.path.expanduser(_text(value))
    if not text.startswith("/"):
        raise ValueError("not an absolute path")
    return os.path.normpath(text)


def _path_or_none(value: object) -> str:
    return _path(value) if value != "" else ""


def _path_list(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [x for x in str(value).split(os.pathsep) if x]
    return tuple(_path(item) for item in items)


def _base_dirs(value: object) -> tuple[str, ...]:
    found = _path_list(value)
    if found:
        from . import bases

        if len(found) > bases.MOST:
            raise ValueError(f"more than {bases.MOST} directories")
        # Two slashes at the begin are as good as one.
        found = tuple(bases.judged("/" + path.lstrip("/")) for path in found)
    return found


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return str(value)

    return parse


class Row(NamedTuple):
    """One setting of the table."""

    name: str
    variable: str
    parse: Callable[[object], Any]
    default: object
    help: str


TABLE: tuple[Row, ...] = (
    Row("store.root", "PTOCACHE_DIR", _path, None, "where the store lies"),
    Row("store.max_size", "PTOCACHE_MAX_SIZE", parse_size, "10G", "bytes on disk before eviction"),
    Row("store.low_water", "PTOCACHE_LOW_WATER", _fraction, "0.9", "part kept by an eviction"),
    Row("store.max_age", "PTOCACHE_MAX_AGE", parse_age, "0", "evict entries unused for so long"),
    Row(
        "store.fsync", "PTOCACHE_FSYNC", _flag, "true", "flush blobs to disk before an entry exists"
    ),
    Row("compile.jobs", "PTOCACHE_JOBS", _count, None, "compilers at once"),
    Row("compile.step_timeout", "PTOCACHE_STEP_TIMEOUT", parse_age, "15m", "limit of one step"),
    Row("compile.negative_ttl", "PTOCACHE_NEGATIVE_TTL", parse_age, "5m", "memory of failures"),
    Row("compile.log_limit", "PTOCACHE_LOG_LIMIT", parse_size, "1M", "bytes kept of each stream"),
    Row(
        "kernel.lease_timeout",
        "PTOCACHE_LEASE_TIMEOUT",
        parse_age,
        "15m",
        "how long a kernel may be built while others wait",
    ),
    Row("daemon.idle_timeout", "PTOCACHE_IDLE_TIMEOUT", parse_age, "0", "stop after so long idle"),
    Row("daemon.memory", "PTOCACHE_MEMORY", parse_size, "64M", "bytes of hot entries in memory"),
    Row("daemon.rescan", "PTOCACHE_RESCAN", parse_age, "60s", "between re-scans of toolchains"),
    Row(
        "daemon.watch",
        "PTOCACHE_WATCH",
        _flag,
        "true",
        "let the kernel tell of changes in toolchains",
    ),
    Row("daemon.log_level", "PTOCACHE_LOG_LEVEL", _choice(*LOG_LEVELS), "info", "what is logged"),
    Row("daemon.log_format", "PTOCACHE_LOG_FORMAT", _choice(*LOG_FORMATS), "text", "how it looks"),
    Row("daemon.log_file", "PTOCACHE_LOG_FILE", _path_or_none, "", "where the log goes"),
    Row("daemon.log_size", "PTOCACHE_LOG_SIZE", parse_size, "8M", "bytes before a new log begins"),
    Row("daemon.log_count", "PTOCACHE_LOG_COUNT", _count, "3", "older logs that are kept"),
    Row("identity.relocatable", "PTOCACHE_RELOCATABLE", _flag, "false", "leave tool paths out"),
    Row("identity.trust_scripts", "PTOCACHE_TRUST_SCRIPTS", _path_list, "", "wrappers to trust"),
    Row("request.salt", "PTOCACHE_SALT", _text, "", "text that enters every key"),
    Row(
        "request.priority",
        "PTOCACHE_PRIORITY",
        _choice("", "interactive", "sweep"),
        "",
        "interactive before sweep; empty: as the call says",
    ),
    Row("request.mode", "PTOCACHE_MODE", _choice(*MODES), "use", "use, refresh, bypass, read-only"),
    Row(
        "request.base_dirs",
        "PTOCACHE_BASE_DIRS",
        _base_dirs,
        "",
        "directories that paths count relative to",
    ),
    Row("client.require", "PTOCACHE_REQUIRE", _flag, "false", "no daemon is an error"),
    Row("client.autostart", "PTOCACHE_AUTOSTART", _flag, "true", "start a daemon when none runs"),
    Row(
        "client.record",
        "PTOCACHE_RECORD",
        _path_or_none,
        "",
        "a file that requests are recorded in",
    ),
)
_BY_NAME = {row.name: row for row in TABLE}


class Setting(NamedTuple):
    """A value and where it came from (``default``, a file's path, a variable, ``command line``)."""

    value: Any
    source: str


class Settings:
    """All settings with their sources; read with ``settings["store.max_size"]``."""

    __slots__ = ("_socket", "_values")

    def __init__(self, values: Mapping[str, Setting], socket: str | BadRequestError) -> None:
        self._values = dict(values)
        self._socket = socket

    @property
    def socket(self) -> str:
        """Path of the daemon's socket.

        Raises :class:`~ptocache.errors.BadRequestError` if the one that was asked for cannot be: then
        no daemon can be reached, and all else goes on.
        """
        if isinstance(self._socket, BadRequestError):
            raise self._socket
        return self._socket

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def source(self, name: str) -> str:
        """Where the value of this setting came from."""
        return self._values[name].source

    def items(self) -> list[tuple[str, Setting]]:
        """Every setting, in the table's order."""
        return list(self._values.items())


def load(
    env: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read the settings. ``overrides`` (name → value) are the command line's; ``None`` means unset.

    Raises :class:`~ptocache.errors.ConfigError` for a value that cannot be used, an unknown setting
    in the file, or settings that contradict each other.
    """
    env = os.environ if env is None else env
    path = paths.config_file(env)
    # Most users have no file, and the TOML parser is the heaviest import of this module.
    wanted = bool(env.get("PTOCACHE_CONFIG")) or (path and os.path.exists(path))
    in_file = _read_file(path) if wanted else {}
    values: dict[str, Setting] = {}
    for row in TABLE:
        raw: object = _default(row, env)
        source = "default"
        if row.name in in_file:
            raw, source = in_file[row.name], path
        if env.get(row.variable, "") != "":
            raw, source = env[row.variable], row.variable
        if overrides and overrides.get(row.name) is not None:
            raw, source = overrides[row.name], "command line"
        values[row.name] = Setting(_understand(row, raw, source), source)
    try:
        return Settings(values, paths.socket_path(env, values["store.root"].value))
    except BadRequestError as error:
        return Settings(values, error)


def _default(row: Row, env: Mapping[str, str]) -> object:
    if row.name == "store.root":
        return paths.default_root(env)
    if row.name == "compile.jobs":
        return len(os.sched_getaffinity(0))
    return row.default


def _understand(row: Row, raw: object, source: str) -> Any:
    try:
        return row.parse(raw)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{row.name} = {raw!r} (from {source}) cannot be used: {error}",
            hint=f"{row.name}: {row.help}",
            setting=row.name,
            value=str(raw),
            source=source,
        ) from error


def _read_file(path: str) -> dict[str, object]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"the settings' file {path} cannot be read: {error.strerror}", path=path
        ) from error
    except ValueError as error:
        raise ConfigError(f"the settings' file {path} is not TOML: {error}", path=path) from error
    found: dict[str, object] = {}
    for section, content in document.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section!r} stands outside of a section", path=path)
        for key, value in content.items():
            name = f"{section}.{key}"
            if name not in _BY_NAME:
                raise ConfigError(
                    f"{path}: there is no setting {name!r}",
                    hint="docs/reference/settings.md lists them",
                    path=path,
                    setting=name,
                )
            found[name] = value
    return found
