"""AscendC sources through bisheng and ld.lld to device executables, objects and shared objects."""

from .toolchain import AscendCToolchain

__all__ = ["AscendCToolchain"]
