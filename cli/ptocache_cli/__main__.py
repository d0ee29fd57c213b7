"""``python -m ptocache_cli`` is ``ptocache``."""

from __future__ import annotations

import sys

from .main import run

sys.exit(run())
