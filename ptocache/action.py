"""A request turned into its key.

The *action* is a canonical document of everything that can change a compile's output, and of nothing
else; its key is the SHA-256 of the document's canonical encoding (see :mod:`ptocache.digest`). The
document is stored with the entry, so that two keys can be compared field by field.

    schema          number of this grammar
    kind            "binary" or "kernel"
    toolchain       name of the plugin
    plugin          the plugin's own version
    identity        digest of the toolchain (:mod:`ptocache.identity`)
    arch            target
    options         ordered
    env             map of the declared variables
    inputs          map name → {sha256, size}
    outputs         ordered names
    symbols         sorted names
    keyed           map of further facts that the plugin names
    salt            the configured salt and the request's

History
    1   the first form.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, NewType

from .digest import canonical
from .model import Dependency, Prepared
from .outcome import Cache

SCHEMA = 1
_DOMAIN = b"ptocache action\n"
_ENTRY_DOMAIN = b"ptocache entry\n"

ActionKey = NewType("ActionKey", str)
"""SHA-256 hex of an action; made only here."""
EntryKey = NewType("EntryKey", str)
"""SHA-256 hex of an action and the discovered inputs it held with; made only here."""


class Action(NamedTuple):
    """The document and its key."""

    document: dict[str, Any]
    key: ActionKey


class Difference(NamedTuple):
    """One field in which two actions differ, in words that a person reads."""

    field: str
    old: str
    new: str


def binary_action(
    prepared: Prepared, *, plugin_version: str, identity: str, salt: tuple[str, str] = ("", "")
) -> Action:
    """The action of a compile. ``salt`` is (the daemon's setting, the request's)."""
    job = prepared.job
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": Cache.BINARY.label,
        "toolchain": job.toolchain,
        "plugin": plugin_version,
        "identity": identity,
        "arch": job.arch,
        "options": list(job.options),
        "env": dict(job.env),
        "inputs": {
            item.name: {"sha256": item.digest.sha256, "size": item.digest.size}
            for item in job.inputs
        },
        "outputs": list(job.outputs),
        "symbols": sorted(set(job.symbols)),
        "keyed": dict(prepared.keyed),
        "salt": list(salt),
    }
    return Action(document, ActionKey(_hash(_DOMAIN, document)))


def entry_key(
    key: ActionKey, dependencies: tuple[Dependency, ...], source_dir: str = ""
) -> EntryKey:
    """The key of one entry of an action: the action plus what its discovered inputs held, and the
    source directory if the entry is bound to it."""
    document = [key, sorted(list(item) for item in dependencies)]
    if source_dir:
        document.append(source_dir)
    return EntryKey(_hash(_ENTRY_DOMAIN, document))


def key_of_document(document: dict[str, Any]) -> ActionKey:
    """The key that a stored document has; lets a reader check that an entry is what it says."""
    return ActionKey(_hash(_DOMAIN, document))


def differences(old: dict[str, Any], new: dict[str, Any]) -> tuple[Difference, ...]:
    """The fields in which two action documents differ, in the order of the grammar."""
    found: list[Difference] = []
    for field in sorted(set(old) | set(new)):
        before, after = old.get(field), new.get(field)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            for name in sorted(set(before) | set(after)):
                if before.get(name) != after.get(name):
                    found.append(
                        Difference(
                            f"{field}.{name}", _words(before.get(name)), _words(after.get(name))
                        )
                    )
        else:
            found.append(Difference(field, _words(before), _words(after)))
    return tuple(found)


def _words(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, dict) and "sha256" in value:
        return f"{str(value['sha256'])[:12]} ({value.get('size')} bytes)"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "(none)"
    return str(value) or "(empty)"


def _hash(domain: bytes, value: Any) -> str:
    return hashlib.sha256(domain + canonical(value)).hexdigest()
