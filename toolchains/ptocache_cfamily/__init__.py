"""What C-family compiler drivers have in common: their options, and what a compile looked at.

Shared by the toolchains of the host and of the devices; it is no toolchain itself.
"""
