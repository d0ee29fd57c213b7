"""Frameworks that get their kernels from ptocache: one module a framework.

``ptocache run -- python train.py`` switches them on for one command; each has an ``install()`` besides.
Nothing here imports a framework before it is installed into.
"""
