"""How many threads NumPy's BLAS uses, where that can be set.

Large products are cut into blocks that run side by side on threads of ours, each with a product on its own thread:
they also share out the copying around the products, and do not wait for each other, as threads inside BLAS do at
every product. Small ones are left to BLAS's threads, which wait for work without sleeping for a while, so that the
parts of a product cost less to hand out than waking threads of ours costs.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, get_ident
from typing import TypeVar

import numpy as np

from gpuconv.cpu import _threads

Item = TypeVar("Item")

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
_SMALL = 4e8  # operations for each thread: some five milliseconds
_PAUSE = 2e-4  # seconds between two looks at whether others have left
_LONG = 0.5  # seconds after which it is worth looking whether they are there at all


def run(function: Callable[[Item], None], items: Sequence[Item], team: bool) -> None:
    """Do items that are mostly a product: as a team one by one, on BLAS's threads, otherwise side by side on ours."""
    if _functions() is None:
        _threads.run(function, items, side_by_side=False)
    elif not team:
        within = _MODES.held_at_one if _MODES.threads() > 1 else None
        _threads.run(function, items, within=within)
    elif not _done_at_once(function, items):
        _threads.run(function, items, side_by_side=False, within=_MODES.teamed)


def team(operations: int, threads: int) -> bool:
    """Tell whether a product of so many operations is one for BLAS's own threads.

    As many as ``threads``, or whatever number they are where BLAS cannot be told.
    """
    functions = _functions()
    if functions is None:
        return True
    return threads > 1 and operations < _SMALL * threads and _MODES.threads() == threads


def _done_at_once(function: Callable[[Item], None], items: Sequence[Item]) -> bool:
    """Do items as a team on the calling thread; return False, with nothing done, where BLAS is held at one thread.

    An interrupt may prevent the stay from being struck out: whoever waits for it looks for this function among those
    that its thread is in.
    """
    stay = _Stay()
    try:
        if not _MODES.joined(stay):
            return False
        for item in items:
            function(item)
        return True
    finally:
        _MODES.inside.pop(stay, None)


class _Stay:
    """A team at work on the thread that called."""

    def __init__(self) -> None:
        self.thread = get_ident()

    def is_over(self) -> bool:
        """Tell whether the thread has left :func:`_done_at_once`, or is gone."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame.f_code is not _done_at_once.__code__:
            frame = frame.f_back
        return frame is None


class _Modes:
    """Products on BLAS's threads, or each on the thread that asks for it: never both at a time.

    The setting is the process's, and results depend on it in their last bits. Who comes first has its way; the others
    wait for their turn, so that nobody waits for ever. Threads that call BLAS themselves are held too.

    An interrupt reaches :meth:`joined` and :meth:`threads` only, which take no lock: everything else is for threads
    that no interrupt reaches. Every stay is in one dictionary, whose changes have one order: of two that come at the
    same time at least one sees the other, gives way, or waits.
    """

    def __init__(self) -> None:
        self._before = 1
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._turn, self._setting, self._changes = Lock(), Lock(), 0
        self.inside: dict[object, bool] = {}  # every stay, and whether it is a team's

    def _forked(self) -> None:
        """Go on in a child process, which has none of the threads that were inside."""
        functions, held = _functions(), self._is_held()
        self._start()
        if held and functions is not None:
            functions[1](self._before)

    def _is_held(self) -> bool:
        return False in self.inside.copy().values()

    def threads(self) -> int:
        """Return BLAS's own number of threads, whatever mode it is in."""
        functions = _functions()
        while True:
            changes, held = self._changes, self._is_held()
            now = self._before if functions is None or held else functions[0]()
            if changes == self._changes:
                return now

    def joined(self, stay: _Stay) -> bool:
        """Enter as a team, to be struck out by the caller; return False where BLAS is held at one, or about to be."""
        self.inside[stay] = True
        return not self._is_held()

    @contextmanager
    def teamed(self) -> Iterator[None]:
        """Let BLAS use its threads, after those who hold it at one."""
        stay = object()
        with self._turn:
            self._wait_for(team=False)
            self.inside[stay] = True
        try:
            yield
        finally:
            del self.inside[stay]

    @contextmanager
    def held_at_one(self) -> Iterator[None]:
        """Hold BLAS at one thread, after teams that are at work; the last one to leave gives it back its threads."""
        functions, stay = _functions(), object()
        if functions is None:
            yield
            return
        get, put = functions
        with self._turn:
            with self._setting:
                if not self._is_held():
                    self._before = get()
                self.inside[stay] = False  # from here on no team enters
                self._changes += 1
            self._wait_for(team=True)
            put(1)
        try:
            yield
        finally:
            with self._setting:
                if list(self.inside.values()).count(False) == 1:
                    put(self._before)
                del self.inside[stay]
                self._changes += 1

    def _wait_for(self, team: bool) -> None:
        """Wait until nobody is inside in a mode."""
        began = time.monotonic()
        while others := [stay for stay, mode in self.inside.copy().items() if mode is team]:
            time.sleep(_PAUSE)
            if time.monotonic() - began > _LONG:
                for stay in others:
                    if isinstance(stay, _Stay) and stay.is_over():
                        self.inside.pop(stay, None)


_MODES = _Modes()


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return OpenBLAS's getter and setter, looked up through the NumPy module that is linked with it."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if get is not None and put is not None:
            put.argtypes, put.restype, get.restype = [ctypes.c_int], None, ctypes.c_int
            return get, put
    return None
