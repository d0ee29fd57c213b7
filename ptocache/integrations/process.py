"""What an integration has once in a process: a client, a lock, and one warning.

The lock is a new one in a forked child, which must not wait for a lock that a thread of its parent held;
the client minds forks by itself.
"""

from __future__ import annotations

import os
import threading

from ptocache.client import Client, connect
from ptocache.errors import PtocacheError, PtocacheWarning, WireError

from .hook import tell


class Process:
    """The part of one framework in this process; lives as long as the process does."""

    def __init__(self, framework: str) -> None:
        """``framework``: its name for people."""
        self.lock = threading.RLock()
        self._framework = framework
        self._client: Client | None = None
        self._warned = False
        os.register_at_fork(after_in_child=self._after_fork)

    def client(self) -> Client:
        """The client, made when it is first asked for.

        Raises :class:`~ptocache.errors.ConfigError` for settings that cannot be used.
        """
        with self.lock:
            if self._client is None:
                self._client = connect()
            return self._client

    def digests(self, meant: list[list[object]]) -> object:
        """What the daemon says of files (the message ``digests``); an empty list if it says nothing."""
        try:
            return self.client().call("digests", files=meant)
        except (PtocacheError, OSError):
            # Said where the kernel is asked for.
            return []

    def warn(self, text: str, *, again: bool = False) -> None:
        """One warning a process (``again``: and this one besides), which cannot become an error."""
        if self._warned and not again:
            return
        self._warned = self._warned or not again
        tell(f"ptocache and {self._framework}: {text}", PtocacheWarning)

    def step_aside(self, error: Exception) -> None:
        """Let the framework go on in its own way, after one warning; raises ``error`` if it is one of the
        daemon and the settings require a daemon."""
        client = self._client
        if (
            isinstance(error, WireError)
            and client is not None
            and client.settings["client.require"]
        ):
            raise error
        self.warn(f"{self._framework} goes on in its own way: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Close the client and forget what was said; the next who asks begins anew."""
        with self.lock:
            client, self._client, self._warned = self._client, None, False
        if client is not None:
            client.close()

    def _after_fork(self) -> None:
        self.lock = threading.RLock()
