"""Values into text or JSON. Pure: nothing here asks, writes or looks at a clock."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any

from ptocache.outcome import Event, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ptocache.result import Result

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_EVENTS = (Event.CORRUPT, Event.REJECTED, Event.STORE_FAILURE, Event.UNLOADABLE)
_WITH_REASONS = (
    Outcome.BYPASS.label,
    Outcome.FAILURE.label,
    *(event.label for event in _EVENTS),
)
KEY_DIGITS = 12
"""Digits of a key in a line for people; enough to name it in ``show`` and ``invalidate``."""
_LISTED = 20
_SECTIONS_LISTED = 64
_VISIBLE = 200
_MANY = 8


# --- units


def size(count: int) -> str:
    """Bytes for people: ``512 B``, ``1.5 KiB``, ``10 GiB``."""
    number = float(count)
    for unit in _SIZE_UNITS:
        if number < 1024 or unit == _SIZE_UNITS[-1]:
            break
        number /= 1024
    if unit == "B" or number >= 100 or number == int(number):
        return f"{number:.0f} {unit}"
    return f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people: ``0.40 ms``, ``12 ms``, ``2.31 s``, ``12 min``, ``5.0 h``, ``3.0 d``."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.01:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def moment(at_s: float, now_s: float) -> str:
    """A time for people: ``2026-02-03 04:05:06 UTC (12 min ago)``."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
    return f"{text} ({duration(max(0.0, now_s - at_s))} ago)"


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


# --- shapes


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """JSON, ASCII alone. Bytes become text: what is not UTF-8 in them becomes lone surrogates, which
    ``surrogateescape`` turns back."""
    return json.dumps(_plain(value), indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def fields(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns; a value of several lines stays in its column."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *more = value.split("\n")
        lines.append(f"{name:<{width}}  {first}".rstrip())
        lines += [" " * (width + 2) + line for line in more]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns: the first to the left, the others to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# --- compile


def compiled(file: str, result: Result, paths: Mapping[str, str]) -> dict[str, Any]:
    """The object of one file in ``compile --json``; ``paths``: output name → where it was written."""
    found: dict[str, Any] = {"file": file, "key": result.key, "outcome": result.outcome.label}
    if result.outcome in (Outcome.BYPASS, Outcome.FAILURE):
        found["reason"] = result.reason.label
    found |= {
        "outputs": [
            {"name": name, "path": paths[name], "size": item.size, "digest": item.digest}
            for name, item in result.outputs.items()
            if name in paths
        ],
        "compile_ms": result.compile_ms,
        "total_ms": round(result.total_ms, 3),
        "toolchain": {"name": result.toolchain, "identity": result.identity},
        "why": result.why,
        "exit_code": result.exit_code,
    }
    return found


def compiled_line(file: str, result: Result, paths: Mapping[str, str]) -> str:
    """The same in one line: file, outcome, beginning of the key, time, where the outputs are."""
    reason = f" ({result.reason.label})" if result.reason.label else ""
    words = [f"{file}: {result.outcome.label}{reason}"]
    if result.key:
        words.append(result.key[:KEY_DIGITS])
    words.append(duration(result.total_ms / 1000))
    if paths:
        words.append("-> " + ", ".join(paths.values()))
    return "  ".join(words)


def explained(result: Result) -> str:
    """Why it ended so, indented to follow :func:`compiled_line`."""
    rows = [("outcome", _because(result))]
    if result.key:
        rows.append(("key", result.key))
    if result.identity:
        rows.append(("toolchain", f"{result.toolchain} {result.identity}"))
    if result.outcome.is_hit or result.outcome is Outcome.JOINED:
        rows.append(("saved", f"{duration(result.compile_ms / 1000)} of compiling"))
    elif result.ok:
        rows.append(("compiled", f"in {duration(result.compile_ms / 1000)}"))
    return "\n".join("    " + line for line in fields(rows).split("\n"))


def _because(result: Result) -> str:
    known = {
        Outcome.MEMORY_HIT: "the daemon held it in memory, and nothing that it depends on changed",
        Outcome.DISK_HIT: "it was in the store, and nothing that it depends on changed",
        Outcome.REMOTE_HIT: "another machine had compiled it",
        Outcome.JOINED: "another request was compiling the same",
    }
    return f"{result.outcome.label}: {result.why or known.get(result.outcome, 'compiled')}"


# --- statistics


def statistics(stats: Mapping[str, Any], root: str) -> str:
    """``stats`` for people."""
    store, daemon = stats["store"], stats["daemon"]
    limit = store["limit"]
    share = f" ({100 * store['bytes'] / limit:.1f} %)" if limit else ""
    head = [
        ("store", root),
        ("entries", f"{store['entries']}, and {store['evicted']} evicted"),
        ("size", f"{size(store['bytes'])} of {size(limit)}{share}"),
        ("daemon", _daemon(daemon) if daemon else "none"),
        *_trouble(daemon.get("health") if daemon else None),
    ]
    return f"{fields(head)}\n\n{_caches(stats['caches'])}"


def _daemon(daemon: Mapping[str, Any]) -> str:
    return f"pid {daemon['pid']}, version {daemon['version']}, up {duration(daemon['uptime_s'])}"


def _trouble(health: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the disk refused, if it did."""
    found = []
    if health and health["read_only"]:
        found.append(("writing", "no: the store is only read"))
    if health and health["last_failure"]:
        counts = ", ".join(f"{name} {count}" for name, count in health["failures"].items())
        found.append(("failures", f"{counts}; {failure(health['last_failure'])}"))
    return found


def failure(last: Mapping[str, Any]) -> str:
    """``last_failure`` in words."""
    place = f" in {last['place']}" if last["place"] else ""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last["at_s"]))
    return f"the last was {last['error']}{place} ({last['doing']}), {at}"


def _caches(caches: Mapping[str, Any]) -> str:
    names = list(caches)
    rows: list[list[str]] = []

    def row(label: str, cells: Iterable[str]) -> None:
        rows.append([label, *cells])

    row("requests", (str(caches[name]["requests"]) for name in names))
    for label in (*(o.label for o in Outcome), *(e.label for e in _EVENTS)):
        row(label.replace("_", " "), (str(caches[name][label]) for name in names))
        if label in _WITH_REASONS:
            parts = {name: caches[name][f"{label}_reasons"] for name in names}
            for reason in sorted({reason for part in parts.values() for reason in part}):
                row(f"  {reason}", (str(parts[name].get(reason, 0)) for name in names))
    row("hit rate", (_hit_rate(caches[name]) for name in names))
    row("time saved", (duration(caches[name]["saved_ms"] / 1000) for name in names))
    return table(["", *names], rows)


def _hit_rate(cache: Mapping[str, int]) -> str:
    spared = sum(cache[o.label] for o in Outcome if o.is_hit) + cache[Outcome.JOINED.label]
    asked = spared + cache[Outcome.MISS.label]
    return f"{100 * spared / asked:.1f} %" if asked else "-"


_Sample = tuple[dict[str, str], float]
"""Labels and value of one line."""


def prometheus(stats: Mapping[str, Any]) -> str:
    """``stats`` in the Prometheus text format, version 0.0.4; docs/reference/statistics.md lists it."""
    text: list[str] = []

    def metric(name: str, kind: str, about: str, samples: Iterable[_Sample]) -> None:
        text.append(f"# HELP ptocache_{name} {about}")
        text.append(f"# TYPE ptocache_{name} {kind}")
        for labels, value in samples:
            inner = ",".join(f'{key}="{_escaped(item)}"' for key, item in labels.items())
            text.append(f"ptocache_{name}{'{' + inner + '}' if inner else ''} {value}")

    caches, store, daemon = stats["caches"], stats["store"], stats["daemon"]
    metric(
        "requests_total", "counter", "Requests, by how they ended.",
        (({"cache": name, "outcome": outcome.label}, cache[outcome.label])
         for name, cache in caches.items() for outcome in Outcome),
    )  # fmt: skip
    metric(
        "events_total", "counter", "What else happened.",
        (({"cache": name, "event": event.label}, cache[event.label])
         for name, cache in caches.items() for event in _EVENTS),
    )  # fmt: skip
    metric(
        "reasons_total", "counter", "Bypasses, failures and events, by reason.",
        (({"cache": name, "of": label, "reason": reason}, number)
         for name, cache in caches.items() for label in _WITH_REASONS
         for reason, number in cache[f"{label}_reasons"].items()),
    )  # fmt: skip
    metric(
        "saved_seconds_total", "counter", "Compile time that hits and joins did not pay for.",
        (({"cache": name}, cache["saved_ms"] / 1000) for name, cache in caches.items()),
    )  # fmt: skip
    metric("store_entries", "gauge", "Entries in the store.", [({}, store["entries"])])
    metric("store_bytes", "gauge", "Bytes on disk.", [({}, store["bytes"])])
    metric("store_limit_bytes", "gauge", "Bytes before eviction.", [({}, store["limit"])])
    metric(
        "store_evicted_total", "counter", "Entries removed for a limit.", [({}, store["evicted"])]
    )
    metric("up", "gauge", "1 if a daemon serves the store.", [({}, 1 if daemon else 0)])
    if daemon:
        metric(
            "daemon_uptime_seconds", "gauge", "Since the daemon started.",
            [({}, daemon["uptime_s"])],
        )  # fmt: skip
        metric(
            "daemon_info", "gauge", "The daemon's version.", [({"version": daemon["version"]}, 1)]
        )
    return "\n".join(text) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --- the daemon and the store


def status(found: Mapping[str, Any]) -> str:
    """``status`` for people. The request that asked is not told of."""
    rows = [
        ("daemon", _daemon(found)),
        ("store", found["root"]),
        ("index", _journal(found.get("journal", ""))),
        ("socket", found["socket"]),
        ("mode", found["mode"]),
        ("compiling", f"{found['compiling']} (at most {found['jobs']} at once)"),
        ("requests", f"{max(0, found['under_way'] - 1)} under way"),
        ("clients", f"{max(0, found['connections'] - 1)} connected"),
    ]
    for item in found["toolchains"]:
        rows.append(("toolchain", f"{item['name']} {item['identity'][:KEY_DIGITS]}"))
        rows.append(("", str(item["banner"]).split("\n", 1)[0]))
        if item["uncertain"]:
            rows.append(("", f"not identified, so nothing is stored: {item['uncertain']}"))
    return fields(row for row in rows if row[1])


def _journal(mode: str) -> str:
    return f"journal mode {mode}: no write-ahead logging here" if mode not in ("", "wal") else ""


def collected(found: Mapping[str, Any], *, dry_run: bool) -> str:
    """``gc`` for people."""
    verb = "would remove" if dry_run else "removed"
    removed = count(found["entries"], "entry", "entries")
    left = f"{size(found['remaining'])} {'would remain' if dry_run else 'remain'}"
    return f"{verb} {removed} ({size(found['bytes'])}); {left}"


def invalidated(found: Mapping[str, Any], *, dry_run: bool) -> str:
    """``invalidate`` for people: what went, and the first of them by name."""
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {count(found['entries'], 'entry', 'entries')} ({size(found['bytes'])})"]
    for item in found["removed"][:_LISTED]:
        about = " ".join(part for part in (item["toolchain"], item["arch"], item["kernel"]) if part)
        lines.append(f"  {item['key'][:KEY_DIGITS]}  {about}  {size(item['bytes'])}")
    more = found["entries"] - len(lines) + 1
    if more > 0:
        lines.append(f"  and {more} more")
    return "\n".join(lines)


def verified(found: Mapping[str, Any]) -> str:
    """What ``verify`` prints."""
    looked = f"{count(found['entries'], 'entry', 'entries')}, {size(found['bytes'])}"
    damaged = found["damaged"]
    if not damaged:
        return f"{looked}: all whole"
    lines = [f"{item['key'][:12]}  {item['kernel']}: {item['detail']}" for item in damaged]
    ending = (
        "taken out; they are made again when they are next asked for"
        if found["healed"]
        else "left as they are"
    )
    return "\n".join([*lines, f"{looked}: {len(damaged)} damaged, {ending}"])


def entries(found: Mapping[str, Any], now_s: float) -> str:
    """``show`` for people."""
    return "\n\n".join(
        fields([("key", found["key"]), *_entry(entry, now_s)]) for entry in found["entries"]
    )


def _entry(entry: Mapping[str, Any], now_s: float) -> list[tuple[str, str]]:
    action = entry["action"]
    read = [item for item in entry["dependencies"] if item["sha256"]]
    looked = len(entry["dependencies"]) - len(read)
    built = action["kind"] == "kernel"
    how = "by its framework" if built else f"by ptocache {entry['ptocache']}"
    rows = [
        ("entry", entry["entry"]),
        ("kernel", entry["kernel"]),
        ("toolchain", f"{entry['toolchain']} {action['identity']}"),
        ("", entry["banner"].split("\n", 1)[0]),
        ("arch", entry["arch"]),
        ("options", shlex.join(action["options"])),
        ("variables", "\n".join(f"{name}={value}" for name, value in action["env"].items())),
        ("inputs", "\n".join(f"{n}  {i['sha256']}" for n, i in action["inputs"].items())),
        ("keyed", "\n".join(f"{name}={value}" for name, value in action["keyed"].items())),
        (
            "outputs",
            "\n".join(f"{o['name']}  {size(o['size'])}  {o['digest']}" for o in entry["outputs"]),
        ),
        ("created", moment(entry["created_s"], now_s)),
        ("used", _uses(entry, now_s)),
        ("compiled", f"in {duration(entry['compile_ms'] / 1000)} {how}"),
        ("read", _listing([item["path"] for item in read])),
        ("not there", f"{count(looked, 'earlier place')} of a search" if looked else ""),
        ("commands", "\n".join(shlex.join(command) for command in entry["commands"])),
        ("addresses", "" if built or entry["aslr_off"] else "randomised while it was compiled"),
        ("stdout", _printed(entry["stdout"])),
        ("stderr", _printed(entry["stderr"])),
    ]
    shown = []
    for name, value in rows:
        if value:
            shown.append((name, value))
    return shown


def _uses(entry: Mapping[str, Any], now_s: float) -> str:
    if not entry["hits"]:
        return "not yet"
    return f"{count(entry['hits'], 'hit')}, last {moment(entry['last_s'], now_s)}"


def _listing(paths: Sequence[str]) -> str:
    shown = list(paths[:_MANY])
    if len(paths) > len(shown):
        shown.append(f"and {len(paths) - len(shown)} more (--json lists them)")
    return "\n".join(shown)


def _printed(data: bytes | str) -> str:
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    return text.rstrip("\n")


# --- inspect


def inspected(file: str, found: Mapping[str, Any]) -> str:
    """``inspect`` for people: what it is, its sections, its device images, the verdict."""
    reason = f": {visible(found['reason'])}" if found["reason"] else ""
    verdict = f"verdict  {found['verdict']}{reason}"
    rows = [("file", visible(file)), ("size", f"{size(found['size'])} ({found['size']} bytes)")]
    blocks = []
    if found["kind"] == "unknown":
        rows.append(("kind", "no ELF image, or none that can be read"))
    else:
        rows += _image_rows(found)
        blocks = [_sections(found["sections"]), _nested_images(found["nested_images"])]
    return "\n\n".join(block for block in (fields(rows), *blocks, verdict) if block)


def _image_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = f"{found['machine_name']} (0x{found['machine']:x}), {found['byte_order']}-endian"
    rows = [
        ("kind", f"{found['kind']} {found['form']}"),
        ("machine", machine),
        ("flags", f"0x{found['flags']:x}"),
        ("segments", str(len(found["segments"]))),
    ]
    symbols = [visible(name) for name in found["entry_symbols"]]
    if symbols:
        title = "entry symbols" if found["kind"] == "device" else "functions"
        rows.append((title, _listing(symbols)))
    return rows


def _sections(sections: Sequence[Mapping[str, Any]]) -> str:
    if not sections:
        return "no sections"
    rows = [
        [visible(item["name"]) or "-", item["type"], f"0x{item['offset']:x}", str(item["size"])]
        for item in sections[:_SECTIONS_LISTED]
    ]
    text = table(["section", "type", "offset", "size"], rows)
    more = len(sections) - len(rows)
    return f"{text}\nand {more} more (--json lists them)" if more else text


def _nested_images(images: Sequence[Mapping[str, Any]]) -> str:
    if not images:
        return ""
    rows = [
        [
            f"{number} {_few(item['entry_symbols'])}",
            item["form"],
            f"0x{item['offset']:x}",
            str(item["size"]),
            f"0x{item['flags']:x}",
        ]
        for number, item in enumerate(images[:_SECTIONS_LISTED])
    ]
    text = table(["device image", "form", "offset", "size", "flags"], rows)
    more = len(images) - len(rows)
    return f"{text}\nand {more} more (--json lists them)" if more else text


def _few(names: Sequence[str]) -> str:
    if not names:
        return "(no entry symbol)"
    more = len(names) - 3
    return ", ".join(map(visible, names[:3])) + (f" and {more} more" if more > 0 else "")


def visible(text: str) -> str:
    """A name from a file that nobody vouches for: no control sequence reaches the terminal."""
    cut = text if len(text) <= _VISIBLE else text[:_VISIBLE] + "…"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut
    )
