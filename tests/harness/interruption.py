"""Interrupts at chosen instants, for tests of what they leave behind."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

DEADLINE = 30  # seconds for what takes milliseconds


class Interrupt(BaseException):
    """What the signal handler raises, as the usual one raises KeyboardInterrupt."""


class Interrupts:
    """The signal handler; it raises as often as told, then no more."""

    def __init__(self) -> None:
        self.left = 0

    def handle(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise Interrupt

    def arm(self, times: int = 1) -> None:
        """Let the next signals raise."""
        self.left = times

    def during(self, call: Callable[[], object], seconds: float, again: float | None = None) -> bool:
        """Call; raise so long after the beginning, and ``again`` after that. Tell whether the call was cut short."""
        with suppress(Interrupt):  # the second, where it comes after the call
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
    """Let SIGALRM raise an Interrupt in the main thread, so often or when told so.

    The handler stays afterwards and does nothing: another thread may have been given a last signal already. Meanwhile
    the garbage collector calls nobody back, as test libraries ask it to: an Interrupt there would reach no call.
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
    """Wait until something holds; tell whether it does."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    return condition()
