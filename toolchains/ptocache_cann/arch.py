"""What a device is called: by its architecture, by its SoC, or by the generation that ptoas knows.

The name that a request gives is what the key holds; two SoCs never share an entry, even where the
compiler is called alike for both.

Sources: the options ``--npu-arch`` and ``--cce-aicore-arch`` as public builds of kernels use them
(TileLang, tilelang-ascend, pto-isa), and ``--pto-arch`` of ptoas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "ASCEND_NPU_ARCH"
DEFAULT = "dav-3510"
_OPTIONS = ("--npu-arch=", "--cce-aicore-arch=")
_ARCH = re.compile(r"^dav-[a-z0-9][a-z0-9-]*$")
# SoC → architecture; the longest beginning decides.
_SOCS = {
    "Ascend910_93": "dav-2201",
    "Ascend910_95": "dav-3510",
    "Ascend910B": "dav-2201",
    "Ascend950": "dav-3510",
    "Ascend310P": "dav-2002",
}
_GENERATIONS = {"a2": "dav-2201", "a3": "dav-2201", "a2a3": "dav-2201", "a5": "dav-3510"}
_PTO = {"dav-2201": "a3", "dav-c220": "a3", "dav-3510": "a5", "dav-c310": "a5"}


class Arch(NamedTuple):
    """A device as the tools are told of it."""

    name: str
    """As it was asked for: what counts."""
    option: str
    """The option for bisheng, with its value."""
    device: str
    """The architecture without the part of a core (``dav-c220-vec`` → ``dav-c220``)."""

    @property
    def pto(self) -> str:
        """The value of ``--pto-arch``; empty for a device that ptoas does not know."""
        return _PTO.get(self.device, "")


def choose(
    wanted: str, options: tuple[str, ...], env: Mapping[str, str]
) -> tuple[Arch, tuple[str, ...]]:
    """The device of a request, and its options without those that name one: from the request, else its
    options, else ``$ASCEND_NPU_ARCH``, else :data:`DEFAULT`.

    Raises :class:`~ptocache.errors.BadRequestError` for an unknown name or a contradiction.
    """
    named = [word for word in options if word.startswith(_OPTIONS)]
    rest = tuple(word for word in options if not word.startswith(_OPTIONS))
    values = {word.partition("=")[2] for word in named}
    if len(values) > 1:
        raise BadRequestError(f"the options name two devices: {', '.join(sorted(values))}")
    from_options = next(iter(values), "")
    # The whole value: an option that also names a part of a core must not be lost.
    if wanted and from_options and understood(wanted).option != understood(from_options).option:
        raise BadRequestError(
            f"the request is for {wanted} and its options for {from_options}",
            hint="leave one of them out",
        )
    return understood(wanted or from_options or env.get(VARIABLE, "") or DEFAULT), rest


def understood(name: str) -> Arch:
    """The device of that name. Raises :class:`~ptocache.errors.BadRequestError` for an unknown one."""
    value = _GENERATIONS.get(name.lower(), "")
    if _ARCH.match(name):
        value = name
    for soc in sorted(_SOCS, key=len, reverse=True):
        if not value and name.startswith(soc):
            value = _SOCS[soc]
    if not value:
        raise BadRequestError(
            f"no device is called {name!r}",
            hint="dav-2201, dav-3510, …; a2, a3, a5; or a SoC: "
            + ", ".join(f"{soc}…" for soc in _SOCS),
        )
    parts = value.split("-")
    old_style = re.match(r"^[cm]\d", parts[1]) is not None
    option = f"{_OPTIONS[1] if old_style else _OPTIONS[0]}{value}"
    return Arch(name, option, "-".join(parts[:2]))
