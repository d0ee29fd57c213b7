"""Arms ptocache's import hook at the start of an interpreter, then runs the ``sitecustomize`` that would have
run without this folder.

It runs in every Python process below ``ptocache run``: it imports next to nothing, says nothing, and leaves
the module search path as it would have been.
"""

from __future__ import annotations

import os
import sys


def _arm() -> None:
    try:
        from ptocache.integrations import hook
    except ImportError:
        # ptocache is not installed for this interpreter: the hook says so if a framework comes by.
        name = "_ptocache_hook"
        path = os.path.join(os.path.dirname(_HERE), "hook.py")
        with open(path, encoding="utf-8") as file:
            code = compile(file.read(), path, "exec")
        module = type(sys)(name)
        exec(code, module.__dict__)
        sys.modules[name] = module
        module.arm()
    else:
        hook.arm()


def _go_on() -> None:
    """Run the next ``sitecustomize`` of the search path, if there is one."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [item for item in sys.path if os.path.abspath(item or os.curdir) != _HERE]
try:
    _arm()
except Exception as error:
    print(f"ptocache: frameworks go on without it: {error!r}", file=sys.stderr)
_go_on()
