"""Locks with a timeout, for optional mutual exclusion that can never deadlock.

An interrupt may arrive after a lock is acquired and before the ``finally`` that releases it. So a lock only guards work
that may safely be done twice, at the price of time. Whoever waits proceeds without it after a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


@contextmanager
def turn(lock: Lock, seconds: float) -> Iterator[None]:
    """Acquire ``lock``, or continue without it after ``seconds``."""
    held = False
    try:
        held = lock.acquire(timeout=seconds)
        yield
    finally:
        if held:
            lock.release()
