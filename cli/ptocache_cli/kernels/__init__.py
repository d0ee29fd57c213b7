"""C sources of the demonstration kernels, shipped as package data.

Nothing here is imported at run time: the package exists so that installers carry the
``.c`` and ``.h`` files along.  `ptocache_cli.demo_kernels` says how to call each kernel.
"""
