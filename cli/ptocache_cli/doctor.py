"""``doctor``: what is found and where, what is short, and what to do about it.

The daemon is asked first and started if need be; what this process can see by itself is looked at in
any case. Every line has a verdict: ``ok``, ``note`` (works, but know this) or ``problem``.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ptocache import __version__, paths
from ptocache.config import TABLE
from ptocache.errors import PtocacheError
from ptocache.model import select

from . import exits, render, screen
from .session import (
    AsJson,
    SocketPath,
    StoreDirectory,
    ask,
    examples,
    settings_of,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ptocache.config import Settings

SCHEMA = 1
OK, NOTE, PROBLEM = "ok", "note", "problem"
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"}
    | {"glusterfs", "orangefs", "ocfs2", "gfs2", "virtiofs"}
)
_LOCAL = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs-3g"})
_PASSING = frozenset({"tmpfs", "ramfs"})
_SCARCE_BYTES = 64 << 20
_NEARLY = 0.9
_LISTED = 8
_EVERYBODYS = frozenset({"PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"})
"""Variables that are set for other reasons than a toolchain."""
_FURTHER_VARIABLES = frozenset(
    {"PTOCACHE_SOCKET", "PTOCACHE_CONFIG", "PTOCACHE_TRACEBACK", "PTOCACHE_PYTHON"}
)
_INOTIFY = "/proc/sys/fs/inotify"


class Line(NamedTuple):
    """One thing looked at."""

    name: str
    verdict: str
    text: str
    hint: str = ""
    """What to do; empty if there is nothing."""
    more: tuple[str, ...] = ()
    """Further lines for people; ``--json`` has them as data."""


class Section(NamedTuple):
    """Lines that belong together."""

    name: str
    lines: tuple[Line, ...]


class _Found(NamedTuple):
    """What the daemon said; ``error`` if there is none."""

    status: Mapping[str, Any] | None
    toolchains: Sequence[Mapping[str, Any]]
    error: PtocacheError | None


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=examples("ptocache doctor", "ptocache doctor --json | jq .verdict"))(doctor)


def doctor(
    as_json: AsJson = False, directory: StoreDirectory = None, socket: SocketPath = None
) -> None:
    """Check the store, the daemon, the machine's limits and every toolchain.

    The exit code is 1 if there is a problem. A daemon is started if none serves the store; if none can
    be started, that is one of the problems, and the rest is checked without it.
    """
    try:
        settings = settings_of(directory, socket)
    except PtocacheError as error:
        found = _Found(None, (), error)
        sections = [
            Section("settings", (Line("settings", PROBLEM, error.message, error.hint),)),
            Section("limits", tuple(_limits(None))),
        ]
    else:
        found = _ask(settings)
        sections = [
            Section("store", tuple(_store(settings))),
            Section("daemon", tuple(_daemon(settings, found))),
            Section("limits", tuple(_limits(found.status))),
            Section("toolchains", tuple(_toolchains(found))),
            Section("settings", tuple(_settings(settings, os.environ, _declared(found)))),
        ]
    worst = verdict_of(sections)
    screen.say(render.to_json(_plain(sections, worst, found)) if as_json else text(sections, worst))
    if worst == PROBLEM:
        raise typer.Exit(exits.FAILED)


def verdict_of(sections: Sequence[Section]) -> str:
    """The worst verdict of all lines."""
    found = {line.verdict for section in sections for line in section.lines}
    return next((verdict for verdict in (PROBLEM, NOTE) if verdict in found), OK)


def _plain(sections: Sequence[Section], worst: str, found: _Found) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": worst,
        "sections": [
            {
                "name": section.name,
                "lines": [
                    {"name": x.name, "verdict": x.verdict, "text": x.text, "hint": x.hint}
                    for x in section.lines
                ],
            }
            for section in sections
        ],
        "daemon": found.status,
        "toolchains": list(found.toolchains),
    }


def text(sections: Sequence[Section], worst: str) -> str:
    """The whole for people."""
    width = max(len(line.name) for section in sections for line in section.lines)
    lines: list[str] = []
    for section in sections:
        lines += [section.name] if section.lines else []
        for line in section.lines:
            lines.append(f"  {line.verdict:<7}  {line.name:<{width}}  {_one_line(line.text)}")
            lines += [f"  {'':<7}  {'':<{width}}  {_one_line(item)}" for item in line.more]
            if line.hint:
                lines.append(f"  {'':<7}  {'':<{width}}  → {_one_line(line.hint)}")
        lines.append("")
    count = sum(line.verdict == PROBLEM for section in sections for line in section.lines)
    lines.append(render.count(count, "problem") if worst == PROBLEM else "no problem")
    return "\n".join(lines)


def _one_line(words: str) -> str:
    return " ".join(words.split())


# --- the daemon


def _ask(settings: Settings) -> _Found:
    try:
        status: dict[str, Any] = ask(settings, "status", start=True)
        variables = status.get("variables")
        if variables is None:
            return _Found(status, (), None)
        patterns = {pattern for names in variables.values() for pattern in names}
        env = dict(select(sorted(patterns), os.environ))
        answer: dict[str, Any] = ask(settings, "identify", start=False, env=env)
        # Asked again: what was found is watched from now on.
        status = ask(settings, "status", start=False)
        return _Found(status, answer["toolchains"], None)
    except PtocacheError as error:
        return _Found(None, (), error)


def _daemon(settings: Settings, found: _Found) -> Iterator[Line]:
    length = len(os.fsencode(settings.socket))
    yield Line("socket", OK, f"{settings.socket} ({length} of {paths.SOCKET_PATH_LIMIT} bytes)")
    yield _socket_directory(settings.socket)
    status = found.status
    if status is None:
        assert found.error is not None
        hint = found.error.hint or "start one in the foreground to see why: ptocache serve"
        yield Line("daemon", PROBLEM, found.error.message, hint)
        return
    about = f"pid {status['pid']}, version {status['version']}"
    if status["version"] == __version__:
        up = render.duration(status["uptime_s"])
        yield Line("daemon", OK, f"{about}, up {up}")
    else:
        yield Line(
            "daemon", NOTE, f"{about}; this command has version {__version__}",
            "ptocache stop: the next request starts one of the new version",
        )  # fmt: skip
    if "guard" in status:
        yield _guard(status["guard"])
        yield _watch(status["watch"], settings["daemon.rescan"])
    if status.get("journal"):
        yield judge_journal(status["journal"])
    if status.get("health"):
        yield judge_health(status["health"])


def _socket_directory(socket: str) -> Line:
    directory = os.path.dirname(socket)
    try:
        paths.verify_socket_directory(socket)
    except FileNotFoundError:
        return Line("socket directory", NOTE, f"{directory} is not there yet; a daemon makes it")
    except PtocacheError as error:
        return Line("socket directory", PROBLEM, error.message, error.hint)
    except OSError as error:
        return Line(
            "socket directory", PROBLEM, f"{directory}: {error.strerror}",
            "set PTOCACHE_SOCKET to a path in a private directory",
        )  # fmt: skip
    return Line("socket directory", OK, f"{directory} is yours and private")


def _guard(guard: Mapping[str, Any]) -> Line:
    if guard["alive"]:
        return Line("guard", OK, f"pid {guard['pid']} ends the tools if the daemon dies")
    return Line(
        "guard", PROBLEM, "the process that ends the tools if the daemon dies has gone",
        "ptocache stop: the next request starts a daemon with a new one",
    )  # fmt: skip


def judge_health(health: Mapping[str, Any]) -> Line:
    """What the disk refused since the daemon started."""
    last = health["last_failure"]
    if health["read_only"]:
        why = f"; {render.failure(last)}" if last else ""
        return Line(
            "writing", PROBLEM, f"the store is only read: hits, and nothing new is stored{why}",
            "make room or make it writable, then restart the daemon: ptocache stop",
        )  # fmt: skip
    if last:
        counts = ", ".join(f"{name} {count}" for name, count in health["failures"].items())
        return Line(
            "writing", NOTE, f"the disk refused {counts}; {render.failure(last)}",
            "see the daemon's log; storing resumes by itself when the cause is gone",
        )  # fmt: skip
    return Line("writing", OK, "the disk has refused nothing")


def judge_journal(mode: str) -> Line:
    """How the index writes: by write-ahead logging, unless its file system cannot do that."""
    if mode == "wal":
        return Line("journal", OK, "the index uses write-ahead logging")
    return Line(
        "journal", NOTE,
        f"the file system cannot do write-ahead logging; the index keeps a journal ({mode})",
        "nothing is wrong; PTOCACHE_DIR on a local file system is faster",
    )  # fmt: skip


def _watch(watch: Mapping[str, Any], rescan_s: float) -> Line:
    about = ", ".join(
        render.count(watch[name], noun, plural)
        for name, noun, plural in (
            ("directories", "directory", "directories"), ("trees", "whole tree", "whole trees"),
        )
    )  # fmt: skip
    if not watch["trouble"]:
        return Line("watch", OK, about)
    return Line(
        "watch", NOTE,
        f"{about}; not watched, so looked at every {render.duration(rescan_s)}: {watch['trouble']}",
        f"raise {_INOTIFY}/max_user_watches and max_user_instances, if these are the reason",
    )  # fmt: skip


# --- the store


def _store(settings: Settings) -> Iterator[Line]:
    store = store_of(settings)
    place = _existing(store.root)
    try:
        info = os.stat(place)
        space = os.statvfs(place)
    except OSError as error:
        yield Line("place", PROBLEM, f"{place}: {error.strerror}", _ELSEWHERE)
        return
    there = place == store.root
    source = settings.source("store.root")
    yield Line("place", OK, f"{store.root} ({source}){'' if there else ', not made yet'}")
    yield judge_access(place, info, there=there, writable=os.access(place, os.W_OK | os.X_OK))
    yield judge_file_system(file_system(place, _read("/proc/self/mountinfo")))
    index, used = _index(store, there)
    yield judge_space(space.f_bavail * space.f_frsize, settings["store.max_size"], used)
    yield index


_ELSEWHERE = "choose another place with PTOCACHE_DIR"


def _existing(path: str) -> str:
    """The path itself, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def judge_access(place: str, info: os.stat_result, *, there: bool, writable: bool) -> Line:
    """Owner and permissions of the store, or of the folder in which it will be made."""
    mode = stat.S_IMODE(info.st_mode)
    about = f"user {info.st_uid}, mode {mode:04o}"
    if not stat.S_ISDIR(info.st_mode):
        return Line("access", PROBLEM, f"{place} is not a directory", _ELSEWHERE)
    if not writable:
        return Line("access", PROBLEM, f"{place} cannot be written to ({about})", _ELSEWHERE)
    if not there:
        return Line("access", OK, f"{place} can be written to")
    if info.st_uid != os.geteuid():
        return Line("access", PROBLEM, f"belongs to user {info.st_uid}, not to you", _ELSEWHERE)
    if mode & 0o002:
        return Line("access", PROBLEM, f"everybody can write to it ({about})", f"chmod 700 {place}")
    if mode & 0o077:
        return Line("access", NOTE, f"open to others ({about})", f"chmod 700 {place}")
    return Line("access", OK, f"yours alone ({about})")


def file_system(path: str, mounts: str) -> str:
    """Type of the file system that holds ``path``, by the text of ``/proc/self/mountinfo``
    (proc_pid_mountinfo(5)); empty if that does not tell."""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        words, after = head.split(" "), tail.split(" ")
        if len(words) < 5 or not after[0]:
            continue
        point = _unescaped(words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # The later of two mounts on one place is the one that is seen.
        if inside and len(point) >= len(best):
            best, kind = point, after[0]
    return kind


def _unescaped(word: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        word = word.replace(code, character)
    return word


def judge_file_system(kind: str) -> Line:
    """Where a store works well, and where it merely works."""
    if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL):
        return Line(
            "file system", NOTE, f"{kind}: over the network, hits from disk are slow there",
            "a store belongs on a local disk: " + _ELSEWHERE,
        )  # fmt: skip
    if kind in _PASSING:
        return Line("file system", NOTE, f"{kind}: in memory, gone with the next start", _ELSEWHERE)
    return Line("file system", OK, kind or "unknown")


def judge_space(free: int, limit: int, used: int) -> Line:
    """Free bytes against what the store may still grow by."""
    growth = max(0, limit - used)
    about = f"{render.size(free)} free; {render.size(used)} of {render.size(limit)} used"
    if free < min(_SCARCE_BYTES, growth):
        return Line("space", PROBLEM, about, "make room, or " + _ELSEWHERE)
    if free < growth:
        return Line(
            "space", NOTE, f"{about}: the disk is full before the limit is reached",
            "lower PTOCACHE_MAX_SIZE",
        )  # fmt: skip
    return Line("space", OK, about)


def _index(store: paths.StorePaths, there: bool) -> tuple[Line, int]:
    """The verdict on the index, and the bytes on disk that it knows of."""
    if not there or not os.path.lexists(store.index):
        return Line("index", OK, "not made yet"), 0
    from ptocache.control import StoreAtRest

    try:
        with StoreAtRest(store) as found:
            entries, used = found.index.totals()
            schema = found.index.schema
    except PtocacheError as error:
        return Line("index", PROBLEM, error.message, error.hint or _REBUILD), 0
    counted = render.count(entries, "entry", "entries")
    return Line("index", OK, f"schema {schema}, {counted}"), used


_REBUILD = "stop the daemon: the next one puts it aside and builds it anew from the entries"


# --- limits


def _limits(status: Mapping[str, Any] | None) -> Iterator[Line]:
    yield judge_open_files(_open_files(status))
    watches, instances = inotify_use()
    for name, used, what in (
        ("max_user_watches", watches, "inotify watches"),
        ("max_user_instances", instances, "inotify instances"),
    ):
        yield judge_inotify(name, what, used, _read(f"{_INOTIFY}/{name}").strip())
    if status is not None and "aslr_can_be_off" in status:
        yield judge_addresses(status["aslr_can_be_off"])


def _open_files(status: Mapping[str, Any] | None) -> Mapping[str, int]:
    if status is not None and "limits" in status:
        found: Mapping[str, int] = status["limits"]
        return found
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"open_files": 0, "soft": soft, "hard": hard}


def judge_open_files(found: Mapping[str, int]) -> Line:
    """The daemon's open files against its limit (-1: none)."""
    soft, hard = ("none" if found[name] < 0 else str(found[name]) for name in ("soft", "hard"))
    about = f"{found['open_files']} of the daemon's; limit {soft}, at most {hard}"
    if 0 <= found["soft"] < max(256, found["open_files"] / _NEARLY):
        return Line(
            "open files", PROBLEM, about, "raise it: ulimit -n, or LimitNOFILE= of the unit"
        )
    return Line("open files", OK, about)


def judge_inotify(name: str, what: str, used: int, limit: str) -> Line:
    """What this user's processes use of a limit of the kernel."""
    if not limit.isdigit():
        return Line(what, NOTE, "the kernel tells no limit", "only the re-scan notices changes")
    about = f"{used} of {limit} used by your processes"
    if used > _NEARLY * int(limit):
        return Line(what, NOTE, about, f"raise it: sysctl fs.inotify.{name}={int(limit) * 4}")
    return Line(what, OK, about)


def inotify_use(proc: str = "/proc") -> tuple[int, int]:
    """(watches, instances) of this user's processes, as far as they can be seen."""
    watches = instances = 0
    for name in filter(str.isdigit, _names(proc)):
        for fd in _names(f"{proc}/{name}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"{proc}/{name}/fd/{fd}") == "anon_inode:inotify":
                    instances += 1
                    watches += _read(f"{proc}/{name}/fdinfo/{fd}").count("inotify wd:")
    return watches, instances


def judge_addresses(can_be_off: bool) -> Line:
    """Whether tools can be run without address-space randomisation."""
    if can_be_off:
        return Line("addresses", OK, "randomisation is off while tools run")
    return Line(
        "addresses", NOTE,
        "randomised while tools run: some (ptoas) then give other bytes each time",
        "allow personality(2), which the container's seccomp profile forbids",
    )  # fmt: skip


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


# --- toolchains


def _toolchains(found: _Found) -> Iterator[Line]:
    if found.status is None:
        yield from _installed()
    nowhere = leading_nowhere(found.toolchains)
    for item in found.toolchains:
        yield judge_toolchain(item, nowhere)


def leading_nowhere(toolchains: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The variables that are set for a toolchain and lead to no component of any: CANN without ptoas
    is nothing wrong, a folder without CANN is."""
    values = {
        name: value
        for item in toolchains
        for name, value in item["variables"].items()
        if value and name not in _EVERYBODYS
    }
    places = {
        part[key]
        for item in toolchains
        for part in item["components"]
        for key in ("path", "canonical")
    }
    return frozenset(name for name in values if not _leads(values[name], places))


def _leads(value: str, places: AbstractSet[str]) -> bool:
    if os.path.isabs(value):
        roots = {value.rstrip("/"), os.path.realpath(value)}
        return any(
            place == root or place.startswith(root + "/") for place in places for root in roots
        )
    return bool(set(value.split()) & {os.path.basename(place) for place in places})


def _installed() -> Iterator[Line]:
    """The plugins, without a daemon to ask them anything."""
    from ptocache.toolchain import Registry

    try:
        names = Registry.discover().names()
    except PtocacheError as error:
        yield Line("plugins", PROBLEM, error.message, error.hint)
        return
    for name in names:
        yield Line(name, NOTE, "installed; not looked at, because no daemon answers")


def judge_toolchain(found: Mapping[str, Any], nowhere: AbstractSet[str] = frozenset()) -> Line:
    """One toolchain and flavour of an ``identify``; ``nowhere``: variables that lead nowhere."""
    name = " ".join(part for part in (found["toolchain"], found["flavour"]) if part)
    took = render.duration(found["ms"] / 1000)
    error = found["error"]
    if error is not None:
        return _not_found(name, found, error, nowhere)
    parts = tuple(_component(item) for item in found["components"][:_LISTED])
    rest = found["components_total"] - len(parts)
    more = (*parts, f"and {rest} more (--json lists them)") if rest > 0 else parts
    banner = found["banner"].split("\n", 1)[0] or "found"
    about = f"{banner}; identity {found['identity'][: render.KEY_DIGITS]} in {took}"
    if found["uncertain"]:
        return Line(
            name, PROBLEM, f"{about}; not identified, so nothing is stored: {found['uncertain']}",
            "put the tool itself first, or name a wrapper that you vouch for in "
            "PTOCACHE_TRUST_SCRIPTS", more,
        )  # fmt: skip
    return Line(name, OK, about, "", more)


def _component(item: Mapping[str, Any]) -> str:
    real = f" → {item['canonical']}" if item["canonical"] != item["path"] else ""
    return f"{item['role']}  {item['path']}{real}  {item['digest'][: render.KEY_DIGITS]}"


def _not_found(
    name: str, found: Mapping[str, Any], error: Mapping[str, Any], nowhere: AbstractSet[str]
) -> Line:
    looked = list(dict.fromkeys(error.get("fields", {}).get("looked") or ()))
    # The hint of an error that stands alone ends with the same places.
    hint = (
        re.sub(r"(^|; )looked at.*", "", error["hint"], flags=re.DOTALL)
        if looked
        else error["hint"]
    )
    more = tuple(f"looked at {place}" for place in looked[:_LISTED])
    if len(looked) > len(more):
        more += (f"and at {len(looked) - len(more)} more places (--json lists them)",)
    meant = sorted(nowhere & set(found["variables"]))
    if error["code"] != "tool_not_found" or meant:
        about = f" (set: {', '.join(meant)})" if meant else ""
        hint = hint or (f"correct or unset {' and '.join(meant)}" if meant else "")
        return Line(name, PROBLEM, error["message"] + about, hint, more)
    return Line(name, NOTE, f"not installed: {error['message']}", hint, more)


# --- settings


def _declared(found: _Found) -> frozenset[str]:
    """The variables that toolchains read."""
    variables = found.status.get("variables", {}) if found.status is not None else {}
    return frozenset(name for names in variables.values() for name in names)


def _settings(
    settings: Settings, env: Mapping[str, str], declared: frozenset[str]
) -> Iterator[Line]:
    for name, setting in settings.items():
        if setting.source != "default":
            about = f"{setting.value} ({setting.source})"
            if name == "request.mode" and setting.value in ("bypass", "read-only"):
                yield Line(name, NOTE, f"{about}: nothing new is stored")
            else:
                yield Line(name, OK, about)
    known = {row.variable for row in TABLE} | _FURTHER_VARIABLES | declared
    for name in sorted(env):
        if name.startswith("PTOCACHE_") and name not in known:
            yield Line(name, NOTE, "no such setting", "ptocache reads no variable of this name")
