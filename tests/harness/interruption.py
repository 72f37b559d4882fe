"""Interrupts at chosen moments, to test the state that they leave behind."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

DEADLINE = 30  # seconds for what takes milliseconds


class Interrupt(BaseException):
    """Raised by the signal handler, like KeyboardInterrupt."""


class Interrupts:
    """A signal handler that raises a given number of times."""

    def __init__(self) -> None:
        self.left = 0

    def handle(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise Interrupt

    def arm(self, times: int = 1) -> None:
        """Let the next ``times`` signals raise."""
        self.left = times

    def during(self, call: Callable[[], object], seconds: float, again: float | None = None) -> bool:
        """Call; raise after ``seconds``, and once more after ``again``. Return whether the call was interrupted."""
        with suppress(Interrupt):  # the second one, if it comes after the call
            try:
                self.arm(1 if again is None else 2)
                signal.setitimer(signal.ITIMER_REAL, seconds, again or 0)
                call()
                self.left = 0
                return False
            except Interrupt:
                self.left = 0
        return True


@contextmanager
def interrupts(times: int = 0) -> Iterator[Interrupts]:
    """Let SIGALRM raise an Interrupt in the main thread, ``times`` times or when armed.

    The handler stays installed afterwards and does nothing, since a last signal may already be pending for another
    thread. Callbacks of the garbage collector, which test libraries install, are disabled: an Interrupt in one would be
    lost.
    """
    handler, called_back = Interrupts(), gc.callbacks[:]
    handler.arm(times)
    gc.callbacks.clear()
    signal.signal(signal.SIGALRM, handler.handle)
    try:
        yield handler
    finally:
        handler.arm(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.callbacks[:] = called_back


def eventually(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Wait until ``condition`` holds, at most ``seconds``; return whether it does."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    return condition()
