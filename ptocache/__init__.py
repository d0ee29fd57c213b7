"""ptocache: a content-addressed artifact cache with a pluggable toolchain, served by one local daemon.

    import ptocache
    with ptocache.connect() as cache:
        result = cache.compile("host", {"saxpy.c": source}, options=["-O3"])
        result.outputs["shared"].buffer

Importing this package is cheap on purpose: what a hit does not need is imported when it is used.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client import Client as Client
    from .client import connect as connect
    from .kernel import Lease as Lease
    from .result import Result as Result

_LAZY = {"Client": "client", "Lease": "kernel", "Result": "result", "connect": "client"}

__all__ = ["Client", "Lease", "Result", "__version__", "connect"]


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ptocache' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ptocache.{module}"), name)
