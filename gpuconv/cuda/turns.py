"""Taking turns without waiting for ever.

An interrupt may come after a lock is taken and before anything sees to its release. So a lock guards only what may be
done twice at a time, at the price of time or of a choice, and whoever waits goes on after a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


@contextmanager
def turn(lock: Lock, seconds: float) -> Iterator[None]:
    """Hold a lock if it can be had in so many seconds; go on without it if not."""
    held = False
    try:
        held = lock.acquire(timeout=seconds)
        yield
    finally:
        if held:
            lock.release()
