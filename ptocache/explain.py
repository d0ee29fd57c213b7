"""Why a request was no hit: the nearest earlier entry, and what differs from it, in words. Pure.

The *new* side is a request or an entry, the *old* sides are entries that were there before it. The
nearest is the one with the fewest differing fields, the newest of several. A field is one of the action
document (:mod:`ptocache.action`; a variable or an input is one of its own), the toolchain as a whole, or
the discovered inputs as a whole. :class:`Memory` keeps what cannot be found in the store again: requests
that made no entry, and the explanations of those that did.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .model import ABSOLUTE_BASE, SOURCE_BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .entry import Entry
    from .model import Answer, Bound, Component, Dependency, Job
    from .outcome import Cache

FIRST = "no entry of this kernel yet"
TREE_ROLE = "tree:"
"""A component whose role begins so stands for every file below its path."""
MEMORY = 256
_SHOWN = 3
_VALUE_LIMIT = 80
_WORDS_LIMIT = 400
_LISTS = frozenset({"options", "outputs", "symbols"})
_LIST_SUFFIX = "FLAGS"
_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".inc", ".inl", ".ipp", ".tcc", "")
_LIBRARIES = (".a", ".o", ".so")
_UNSET = "(not set)"
_VERSION_FILE = "version.info"


class Side(NamedTuple):
    """What is known of one of the two; ``None`` where nothing is."""

    action: Mapping[str, Any]
    dependencies: tuple[Dependency, ...] | None = None
    components: tuple[Component, ...] | None = None
    banner: str = ""
    """Parts separated by ``; ``, each a name and a version text."""
    source_dir: str = ""
    bases: Bound = ()
    """Of a request, all that count; of an entry, those that it holds for alone."""


class Change(NamedTuple):
    """One difference."""

    field: str
    """``options``, ``env.PTO_FLAGS``, ``inputs.gemm.cpp``, ``identity.bisheng``,
    ``dependencies./opt/include/gemm.h`` …"""
    old: str
    new: str
    words: str
    """The difference in one line."""


class Nearest(NamedTuple):
    """The entry that something is compared with."""

    key: str
    """Of its action, 64 hex digits."""
    entry: str
    """Of the entry itself."""
    kernel: str
    created_s: int


class Explanation(NamedTuple):
    """Why something was no hit."""

    words: str
    nearest: Nearest | None = None
    changes: tuple[Change, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The map that the wire and ``--json`` carry: ``why``, ``nearest``, ``changes``."""
        return {
            "why": self.words,
            "nearest": self.nearest._asdict() if self.nearest else None,
            "changes": [item._asdict() for item in self.changes],
        }


def side_of(entry: Entry) -> Side:
    """An entry as one side."""
    return Side(
        entry.action,
        entry.dependencies,
        entry.provenance.components,
        entry.provenance.banner,
        entry.source_dir,
        entry.bound,
    )


def explain(
    new: Side,
    candidates: Iterable[Entry],
    kernel: str = "",
    *,
    refresh: bool = False,
    stored_before: bool = False,
) -> Explanation:
    """Compare with the nearest of ``candidates``, which come newest first and are read no further than
    needed. ``refresh``: the request asked to compile anew; ``stored_before``: its key had an entry."""
    best: tuple[tuple[int, bool, int], Entry, tuple[Change, ...]] | None = None
    met = False
    for entry in candidates:
        found = changes(side_of(entry), new)
        same = entry.action == new.action
        met = met or same
        distance = (len({_group(item.field) for item in found}), not same, len(found))
        if best is None or distance < best[0]:
            best = (distance, entry, found)
        if len(found) <= 1:
            # Older ones cannot be nearer.
            break
    if best is None:
        words = "asked to compile anew" if refresh else _GONE if stored_before else FIRST
        return Explanation(words)
    _, entry, found = best
    nearest = Nearest(entry.action_key, entry.key, entry.kernel, entry.created_s)
    words = _sentence(found) if found else _NOTHING
    if refresh:
        words = "asked to compile anew" + (f"; {words}" if found else "")
    elif stored_before and not met:
        words = f"{_GONE}; from the nearest other entry: {words}"
    elif kernel and entry.kernel != kernel and found:
        words = f"{FIRST}; from the nearest, {_short(entry.kernel) or 'unnamed'}: {words}"
    return Explanation(_cut(words, _WORDS_LIMIT), nearest, found)


_GONE = "its entry was evicted, invalidated or damaged since it was stored"
_NOTHING = (
    "nothing differs: at that moment the entry was evicted, invalidated, damaged, not stored yet, "
    "or held for another source directory"
)


def changes(old: Side, new: Side) -> tuple[Change, ...]:
    """Every difference, the most telling first; what only follows from others comes last."""
    found = list(_plain_fields(old.action, new.action, ("schema", "kind", "toolchain", "plugin")))
    found += _toolchain(old, new)
    found += _plain_fields(old.action, new.action, ("arch",))
    found += _inputs(old.action, new.action)
    told, following = _dependencies(old.dependencies, new.dependencies)
    found += told
    variables = [
        *_variables("env", old.action, new.action),
        *_variables("keyed", old.action, new.action),
    ]
    for item in _list_field("options", old.action.get("options"), new.action.get("options")):
        # A toolchain that takes options from a variable has them in both: the variable is the cause.
        said = item.words.removeprefix("options: ")
        if all(said != other.words.partition(": ")[2] for other in variables):
            found.append(item)
    found += variables
    for field in ("outputs", "symbols"):
        found += _list_field(field, old.action.get(field), new.action.get(field))
    found += _salt(old.action.get("salt"), new.action.get("salt"))
    rest = sorted((set(old.action) | set(new.action)) - _KNOWN)
    found += _plain_fields(old.action, new.action, rest)
    if old.source_dir and new.source_dir and old.source_dir != new.source_dir:
        words = f"the entry holds for the source directory {_short(old.source_dir)} only"
        found.append(Change("source_dir", old.source_dir, new.source_dir, words))
    found += _bonds(old.bases, new.bases)
    return tuple(found + following)


def _bonds(old: Bound, new: Bound) -> Iterator[Change]:
    """Bases that the old side is bound to and that lie elsewhere on the new one."""
    now = dict(new)
    for position, directory in old:
        here = now.get(position, directory)
        if here != directory:
            words = f"the entry holds for the base directory {_short(directory)} only"
            yield Change(f"base_dirs.{position}", directory, here, words)


_KNOWN = frozenset(
    {"schema", "kind", "toolchain", "plugin", "identity", "arch", "options", "env", "inputs"}
    | {"outputs", "symbols", "keyed", "salt"}
)


def _sentence(found: Sequence[Change]) -> str:
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return "; ".join(item.words for item in found[:_SHOWN]) + more


def _group(field: str) -> str:
    head = field.partition(".")[0]
    return head if head in ("identity", "dependencies") else field


# --- fields of the action


_TITLES = {"schema": "key schema", "plugin": "plugin version"}


def _plain_fields(
    old: Mapping[str, Any], new: Mapping[str, Any], fields: Iterable[str]
) -> Iterator[Change]:
    for field in fields:
        before, after = old.get(field), new.get(field)
        if before != after:
            title = _TITLES.get(field, field)
            yield _arrow(field, _text(before), _text(after), title + " ")


def _inputs(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    noun = "input" if new.get("kind") == "kernel" else "source"
    before, after = _map(old.get("inputs")), _map(new.get("inputs"))
    gone = {name: before[name] for name in before if name not in after}
    found = []
    for name in sorted(after):
        if name not in before:
            was = next((other for other in gone if gone[other] == after[name]), None)
            if was is not None:
                del gone[was]
                words = f"{noun} {_short(was)} → {_short(name)} (same bytes)"
                found.append(Change(f"inputs.{name}", was, name, words))
                continue
            words = f"{noun} {_short(name)} is new"
        elif before[name] != after[name]:
            words = f"{noun} {_short(name)} changed"
        else:
            continue
        found.append(Change(f"inputs.{name}", _text(before.get(name)), _text(after[name]), words))
    for name in gone:
        words = f"{noun} {_short(name)} is gone"
        found.append(Change(f"inputs.{name}", _text(before[name]), _text(None), words))
    return found


def _variables(field: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = _map(old.get(field)), _map(new.get(field))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield _variable(f"{field}.{name}", str(name), before.get(name), after.get(name))


def _variable(field: str, name: str, old: Any, new: Any) -> Change:
    was, now = _text(old), _text(new)
    if name.upper().endswith(_LIST_SUFFIX):
        words = _word_change(_split(old), _split(new))
        if words:
            return Change(field, was, now, f"{name}: {words}")
    return _arrow(field, was, now, f"{name}: ")


def _split(text: Any) -> list[str] | None:
    """The words as a shell splits them; ``None`` for what a shell would not accept."""
    try:
        return shlex.split("" if text is None else str(text))
    except ValueError:
        return None


def _list_field(field: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    before, after = _words_of(old), _words_of(new)
    words = _word_change(before, after)
    yield Change(field, shlex.join(before), shlex.join(after), f"{field}: {words or 'differ'}")


def _words_of(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _word_change(old: Sequence[str] | None, new: Sequence[str] | None) -> str:
    """``+added -removed``; empty if the words are the same, or one side has none to compare."""
    if old is None or new is None or list(old) == list(new):
        return ""
    added = list((Counter(new) - Counter(old)).elements())
    removed = list((Counter(old) - Counter(new)).elements())
    if not added and not removed:
        return "order changed"
    shown = [f"+{_quoted(word)}" for word in added]
    # An option has its own dash: a second one would make it another option.
    shown += [_quoted(word) if word.startswith("-") else f"-{_quoted(word)}" for word in removed]
    return _cut(" ".join(shown), 2 * _VALUE_LIMIT)


def _salt(old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    before, after = [*_words_of(old), "", ""][:2], [*_words_of(new), "", ""][:2]
    parts = [
        f"{whose} {_quoted(was)} → {_quoted(now)}"
        for whose, was, now in zip(("the daemon's", "the request's"), before, after, strict=True)
        if was != now
    ]
    yield Change("salt", shlex.join(before), shlex.join(after), "salt: " + ", ".join(parts))


# --- the toolchain


def _toolchain(old: Side, new: Side) -> list[Change]:
    was, now = old.action.get("identity"), new.action.get("identity")
    if was == now:
        return []
    if old.components is None or new.components is None:
        return [_arrow("identity", _text(was)[:12], _text(now)[:12], "toolchain identity ")]
    before, after = _by_role(old.components), _by_role(new.components)
    moved = {role for role in before.keys() & after.keys() if _differ(before[role], after[role])}
    found, said, same_text = _banner(old.banner, new.banner, {r: after[r] for r in moved})
    places: list[tuple[str, Component, Component]] = []
    for role in sorted(moved - said - _implied(moved, before, after)):
        one, other = before[role], after[role]
        if one.digest == other.digest:
            places.append((role, one, other))
        else:
            found.append(_content(role, one, other, same_text(other)))
    for role in sorted(after.keys() - before.keys()):
        words = f"{_name(after[role])} is part of the toolchain now"
        found.append(Change(f"identity.{role}", _UNSET, after[role].path, words))
    for role in sorted(before.keys() - after.keys()):
        words = f"{_name(before[role])} is no part of the toolchain any more"
        found.append(Change(f"identity.{role}", before[role].path, _UNSET, words))
    found += _moves(places)
    if not found:
        words = "the toolchain's own answers changed (its files did not)"
        found.append(Change("identity", _text(was)[:12], _text(now)[:12], words))
    return found


def _implied(
    moved: set[str], before: Mapping[str, Component], after: Mapping[str, Component]
) -> set[str]:
    """Trees that differ because of a file that is told by itself."""
    changed = {role for role in moved if before[role].digest != after[role].digest}
    trees = {role for role in changed if after[role].role.startswith(TREE_ROLE)}
    files = [after[role].canonical for role in changed - trees]
    return {
        role
        for role in trees
        if any(path.startswith(after[role].canonical.rstrip("/") + "/") for path in files)
    }


def _by_role(components: Iterable[Component]) -> dict[str, Component]:
    found: dict[str, Component] = {}
    for item in components:
        role, number = item.role, 2
        while role in found:
            role, number = f"{item.role}#{number}", number + 1
        found[role] = item
    return found


def _differ(one: Component, other: Component) -> bool:
    """As the identity counts, see :func:`ptocache.identity.identity_digest`: the spelling of the folder
    does not, nor does the name of a tree."""
    if (one.digest, one.canonical) != (other.digest, other.canonical):
        return True
    named = not one.role.startswith(TREE_ROLE)
    return named and os.path.basename(one.path) != os.path.basename(other.path)


def _content(role: str, old: Component, new: Component, same_text: bool) -> Change:
    if new.role.startswith(TREE_ROLE):
        words = f"files of the tree {_short(new.path)} changed"
    else:
        words = f"{_name(new)} changed" + (" (same version text)" if same_text else "")
    return Change(f"identity.{role}", old.digest.sha256, new.digest.sha256, words)


def _moves(places: Sequence[tuple[str, Component, Component]]) -> list[Change]:
    if len(places) > _SHOWN:
        was = _common(one.canonical for _, one, _ in places)
        now = _common(other.canonical for _, _, other in places)
        words = f"{len(places)} files of the toolchain moved: {_short(was)} → {_short(now)}"
        return [Change("identity.places", was, now, words)]
    return [_move(*place) for place in places]


def _move(role: str, old: Component, new: Component) -> Change:
    field = f"identity.{role}"
    if old.canonical == new.canonical:
        tail = " (the same program by another name)"
        return _arrow(field, os.path.basename(old.path), os.path.basename(new.path), "", tail)
    return _arrow(field, old.canonical, new.canonical, f"{_name(new)} moved: ")


def _common(paths: Iterable[str]) -> str:
    try:
        return os.path.commonpath(list(paths))
    except ValueError:
        return ""


def _name(item: Component) -> str:
    if item.role.startswith(TREE_ROLE):
        return f"the tree {_short(item.path)}"
    return _short(os.path.basename(item.path) or item.role)


def _banner(
    old: str, new: str, moved: Mapping[str, Component]
) -> tuple[list[Change], set[str], Callable[[Component], bool]]:
    """Version texts that differ; the roles that they speak for; and whether the text that speaks for a
    component is the same on both sides."""
    before, after = _parts(old), _parts(new)
    found: list[Change] = []
    said: set[str] = set()
    differing: set[str] = set()
    gone = [name for name in before if name not in after]
    for name in after:
        was = name if name in before else gone.pop(0) if gone else None
        if was is not None and (was, before[was]) == (name, after[name]):
            continue
        spoken = {role for role, item in moved.items() if _speaks(name, item)}
        said |= spoken
        differing.add(name)
        labels = dict.fromkeys(_name(moved[role]) for role in sorted(spoken))
        labels.pop(name, None)
        if _VERSION_FILE in labels:
            labels = {_VERSION_FILE: None}
        where = f" ({', '.join(labels)})" if labels else ""
        found.append(_version(name, was, before.get(was or ""), after[name], where))
    for name in gone:
        differing.add(name)
        text = f"{name} {before[name]}".strip()
        found.append(Change(f"identity.{name}", text, _UNSET, f"{_short(text)} is gone"))

    def same_text(item: Component) -> bool:
        own = [name for name in after if _speaks(name, item)]
        return not (set(own) if own else differing) & differing

    return found, said, same_text


def _version(name: str, was: str | None, old: str | None, new: str, where: str) -> Change:
    if was is None or old is None:
        text = f"{name} {new}".strip()
        return Change(f"identity.{name}", _UNSET, text, f"{_short(text)} has appeared{where}")
    if was != name:
        return _arrow(f"identity.{name}", f"{was} {old}", f"{name} {new}", "", where)
    # "bisheng clang version 15 → 16": the words in front of the number need no saying twice.
    before, after = old.split(" "), new.split(" ")
    same = 0
    while same < min(len(before), len(after)) - 1 and before[same] == after[same]:
        same += 1
    lead = " ".join([name, *after[:same]])
    one, other = " ".join(before[same:]), " ".join(after[same:])
    return Change(f"identity.{name}", old, new, f"{lead} {_short(one)} → {_short(other)}{where}")


def _parts(banner: str) -> dict[str, str]:
    """Name → version text of every part."""
    found: dict[str, str] = {}
    for part in banner.split("\n", 1)[0].split("; "):
        name, _, text = part.strip().partition(" ")
        if name:
            found.setdefault(name, text.strip())
    return found


def _speaks(name: str, item: Component) -> bool:
    """True if a part of the banner is the version text of this component."""
    if item.role.startswith(TREE_ROLE):
        return False
    wanted = name.casefold()
    names = [item.role, os.path.basename(item.path), os.path.basename(item.canonical)]
    if any(n.casefold() == wanted or n.casefold().startswith(wanted + "-") for n in names):
        return True
    return wanted == "cann" and any(n.endswith(".info") for n in names)


# --- discovered inputs


def _dependencies(
    old: Sequence[Dependency] | None, new: Sequence[Dependency] | None
) -> tuple[list[Change], list[Change]]:
    """What was found with another content or in another place; and what was read on one side only."""
    if old is None or new is None:
        return [], []
    before = {(item.base, item.path): item.sha256 for item in old}
    after = {(item.base, item.path): item.sha256 for item in new}
    told: list[Change] = []
    read: list[str] = []
    for place, now in after.items():
        was = before.get(place)
        if was is None:
            if now:
                read.append(_where(place))
        elif was != now:
            told.append(_dependency(place, was, now))
    unread = [_where(place) for place, was in before.items() if was and place not in after]
    following = [
        *_listed("newly read", unread=(), read=read),
        *_listed("no longer read", unread=unread, read=()),
    ]
    return told, following


def _dependency(place: tuple[str, str], was: str, now: str) -> Change:
    name = _short(place[1] if place[0] == SOURCE_BASE else os.path.basename(place[1]))
    if not was:
        words = f"{name} has appeared, and is found first"
    elif not now:
        words = f"{name} is gone"
    else:
        words = f"{_noun(place[1])} {name} changed"
    return Change(f"dependencies.{_where(place)}", was or _UNSET, now or _UNSET, words)


def _listed(title: str, *, unread: Sequence[str], read: Sequence[str]) -> list[Change]:
    paths = [*unread, *read]
    if not paths:
        return []
    names = ", ".join(_short(os.path.basename(path)) for path in paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return [Change("dependencies", "\n".join(unread), "\n".join(read), f"{title}: {names}{more}")]


def _noun(path: str) -> str:
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _LIBRARIES or ".so." in name:
        return "library"
    return "header" if suffix in _HEADERS else "file"


def _where(place: tuple[str, str]) -> str:
    base, path = place
    return path if base in (SOURCE_BASE, ABSOLUTE_BASE) else f"{base}/{path}"


# --- texts


def _arrow(field: str, old: str, new: str, lead: str, tail: str = "") -> Change:
    return Change(field, old, new, f"{lead}{_short(old)} → {_short(new)}{tail}")


def _text(value: Any) -> str:
    if value is None:
        return _UNSET
    if isinstance(value, dict) and "sha256" in value:
        return f"{str(value['sha256'])[:12]} ({value.get('size')} bytes)"
    if isinstance(value, (list, tuple)):
        return shlex.join(str(item) for item in value) or "(none)"
    return str(value) or "(empty)"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _quoted(word: str) -> str:
    return _short(shlex.quote(word))


def _short(text: str) -> str:
    return _cut(" ".join(text.split()), _VALUE_LIMIT)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- memory


class Asked(NamedTuple):
    """A request that was no hit."""

    at_s: float
    """Seconds since the epoch, when it was answered."""
    key: str
    """Of its action; empty if it was never keyed."""
    cache: str
    """``binary`` or ``kernel``."""
    toolchain: str
    kernel: str
    arch: str
    outcome: str
    reason: str
    detail: str
    explanation: Explanation | None = None
    """For a miss, and for who joined one."""

    @classmethod
    def of(cls, cache: Cache, job: Job | None, answer: Answer, at_s: float) -> Asked:
        """What is remembered of an answer; ``job`` is ``None`` for a request that could not be read."""
        toolchain, kernel, arch = (job.toolchain, job.kernel, job.arch) if job else ("", "", "")
        return cls(
            at_s, answer.key, cache.label, toolchain, kernel, arch, answer.outcome.label,
            answer.reason.label, answer.detail,
        )  # fmt: skip


class Memory:
    """The latest requests that were no hits, bounded. Not thread-safe: the loop's thread alone."""

    def __init__(self, limit: int = MEMORY) -> None:
        self._asked: deque[Asked] = deque(maxlen=limit)
        self._explained: OrderedDict[str, Explanation] = OrderedDict()
        self._rejected: OrderedDict[str, str] = OrderedDict()
        self._limit = limit

    def explained(self, key: str, explanation: Explanation) -> None:
        """Keep why the compile of this action was needed, for the requests that wait for it."""
        self._rejected.pop(key, None)
        self._explained[key] = explanation
        self._explained.move_to_end(key)
        while len(self._explained) > self._limit:
            self._explained.popitem(last=False)

    def rejected(self, key: str, words: str) -> None:
        """Keep why the entry of this action was dropped, until it is made again."""
        self._rejected[key] = words
        self._rejected.move_to_end(key)
        while len(self._rejected) > self._limit:
            self._rejected.popitem(last=False)

    def cause(self, key: str, found: Explanation) -> Explanation:
        """Why there is no entry of this action: ``found``, unless a loader refused the last one."""
        words = self._rejected.get(key)
        return found if words is None else Explanation(_cut(words, _WORDS_LIMIT))

    def note(self, asked: Asked) -> None:
        """Remember a request; a miss or a join takes over the explanation of its key."""
        if asked.explanation is None and asked.outcome in ("miss", "joined"):
            asked = asked._replace(explanation=self._explained.get(asked.key))
        self._asked.append(asked)

    def was_stored(self, key: str) -> bool:
        """True if an entry of this action is known to have been made."""
        return key in self._explained

    def last(self) -> Asked | None:
        """The latest."""
        return self._asked[-1] if self._asked else None

    def of_kernel(self, kernel: str) -> Asked | None:
        """The latest of this kernel."""
        return next((item for item in reversed(self._asked) if item.kernel == kernel), None)

    def of_key(self, prefix: str) -> list[Asked]:
        """The latest of every action whose key begins so."""
        found: dict[str, Asked] = {}
        for item in self._asked:
            if item.key.startswith(prefix):
                found[item.key] = item
        return list(found.values())
