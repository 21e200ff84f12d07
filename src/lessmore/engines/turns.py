"""Who may use a method now: one caller at a time, in the process that made it."""

from __future__ import annotations

import os
import threading

from lessmore.errors import ConfigError


class Turns:
    """A lock that a thread may take again, and that refuses a forked process.

    In a fork another thread may have been in the middle of a step, and what computes in threads does not survive it.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                "this adapter was made in another process, of which this one is a fork; make one in every process, "
                "and go on from a saved state with restore()"
            )
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
