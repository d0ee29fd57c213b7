"""C and C++ through the machine's own compiler: the embedded default, real everywhere."""

from .toolchain import HostToolchain

__all__ = ["HostToolchain"]
