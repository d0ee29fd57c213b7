"""The version files of a CANN installation: what is certain in them, and what is not.

Forms met in the wild: ``Version=8.5.0`` or ``version=…`` with or without blanks, quotes, a byte order
mark, comments (``#``), ``[sections]`` and carriage returns; further fields such as ``version_dir``,
``innerversion``, ``timestamp``, ``package_name``, ``arch``, ``os``, ``path``.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_LIMIT_BYTES = 1 << 16
_VERSION_FIELDS = ("version", "version_dir", "innerversion")
"""In the order in which they are believed."""


class VersionFile(NamedTuple):
    """What a version file says."""

    path: str
    version: str
    """The version for people; empty if the file does not tell."""
    trouble: str
    """Why it cannot be relied on; empty if it can."""


def places(root: str) -> tuple[tuple[str, str], ...]:
    """(role, path) of the version files that an installation may have, the most telling first."""
    folders = sorted(name for name in listed(root) if name.endswith("-linux"))
    return (
        ("version.info", os.path.join(root, "version.info")),
        ("compiler/version.info", os.path.join(root, "compiler", "version.info")),
        *(
            (f"{folder}/{name}", os.path.join(root, folder, name))
            for folder in folders
            for name in ("ascend_toolkit_install.info", "version.info")
        ),
    )


def read(path: str) -> VersionFile:
    """Read one; never raises: what cannot be read or understood is its trouble."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        return VersionFile(path, "", f"{path} cannot be read: {error.strerror}")
    if not data.strip():
        return VersionFile(path, "", f"{path} is empty")
    if len(data) > _LIMIT_BYTES or b"\0" in data:
        return VersionFile(path, "", f"{path} is no text of a version")
    return _understood(path, _fields(data.decode("utf-8-sig", "replace")))


def _fields(text: str) -> dict[str, list[str]]:
    """Lower-case field name → its values, in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.lstrip().startswith("#"):
            value = value.strip().strip("\"'")
            found.setdefault(name.strip().lower(), []).append(value)
    return found


def _understood(path: str, fields: dict[str, list[str]]) -> VersionFile:
    for name in _VERSION_FIELDS:
        values = sorted(set(fields.get(name, [])))
        if len(values) > 1:
            return VersionFile(path, "", f"{path} names two versions: {', '.join(values)}")
        if values and values[0]:
            return VersionFile(path, values[0], "")
    return VersionFile(path, "", f"{path} names no version")


def listed(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
