"""A request turned into its key.

The *action* is a canonical document of everything that can change a compile's output, and of nothing
else; its key is the SHA-256 of the document's canonical encoding (see :mod:`ptocache.digest`). The
document is stored with the entry, so that two keys can be compared field by field
(:mod:`ptocache.explain`).

    schema          number of this grammar
    kind            "binary" or "kernel"
    toolchain       name of the plugin
    plugin          the plugin's own version
    identity        digest of the toolchain (:mod:`ptocache.identity`)
    arch            target
    options         ordered; paths below a base of the request relative to it (:mod:`ptocache.bases`)
    env             map of the declared variables
    inputs          map name → {sha256, size}; of a kernel: its material that is known by digest
    outputs         ordered names
    symbols         sorted names
    keyed           map of further facts that the plugin names; of a kernel: its short texts
    salt            the configured salt and the request's

History
    1   the first form.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, NewType

from . import bases
from .digest import canonical
from .model import Bound, Dependency, Job, Prepared
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


def binary_action(
    prepared: Prepared, *, plugin_version: str, identity: str, salt: tuple[str, str] = ("", "")
) -> Action:
    """The action of a compile. ``salt`` is (the daemon's setting, the request's)."""
    prepared = bases.keyed(prepared)
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
        "inputs": _digests(job),
        "outputs": list(job.outputs),
        "symbols": sorted(set(job.symbols)),
        "keyed": dict(prepared.keyed),
        "salt": list(salt),
    }
    return Action(document, ActionKey(_hash(_DOMAIN, document)))


def kernel_action(
    job: Job,
    texts: tuple[tuple[str, str], ...],
    *,
    plugin_version: str,
    identity: str,
    salt: tuple[str, str] = ("", ""),
) -> Action:
    """The action of a kernel that a framework builds by itself: ``job.inputs`` and ``texts`` are all
    that makes it, besides the toolchain and its declared variables (``job.env``)."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": Cache.KERNEL.label,
        "toolchain": job.toolchain,
        "plugin": plugin_version,
        "identity": identity,
        "arch": job.arch,
        "options": [],
        "env": dict(job.env),
        "inputs": _digests(job),
        "outputs": [],
        "symbols": [],
        "keyed": dict(texts),
        "salt": list(salt),
    }
    return Action(document, ActionKey(_hash(_DOMAIN, document)))


def _digests(job: Job) -> dict[str, Any]:
    return {
        item.name: {"sha256": item.digest.sha256, "size": item.digest.size} for item in job.inputs
    }


def entry_key(
    key: ActionKey,
    dependencies: tuple[Dependency, ...],
    source_dir: str = "",
    bound: Bound = (),
) -> EntryKey:
    """The key of one entry of an action: the action plus what its discovered inputs held, and the
    source directory and the bases if the entry is bound to them."""
    document: list[Any] = [key, sorted(list(item) for item in dependencies)]
    if source_dir:
        document.append(source_dir)
    if bound:
        document.append([list(item) for item in bound])
    return EntryKey(_hash(_ENTRY_DOMAIN, document))


def key_of_document(document: dict[str, Any]) -> ActionKey:
    """The key that a stored document has; lets a reader check that an entry is what it says."""
    return ActionKey(_hash(_DOMAIN, document))


def _hash(domain: bytes, value: Any) -> str:
    return hashlib.sha256(domain + canonical(value)).hexdigest()
