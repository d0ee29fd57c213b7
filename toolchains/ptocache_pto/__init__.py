"""PTO kernels through their front end, ptoas and bisheng to C++, fat objects and device images."""

from .toolchain import PtoToolchain

__all__ = ["PtoToolchain"]
