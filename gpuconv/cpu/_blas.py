"""How many threads NumPy's BLAS uses, where that can be set.

Large products are cut into blocks that run side by side on threads of ours, each with a product on its own thread:
they also share out the copying around the products, and do not wait for each other, as threads inside BLAS do at
every product. Small ones are left to BLAS's threads, which wait for work without sleeping for a while, so that the
parts of a product cost less to hand out than waking threads of ours costs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Condition, Lock
from typing import TypeVar

import numpy as np

from gpuconv.cpu import _threads

Item = TypeVar("Item")

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
_SMALL = 4e8  # operations for each thread: some five milliseconds


def run(function: Callable[[Item], None], items: Sequence[Item], team: bool) -> None:
    """Do items that are mostly a product: as a team one by one, on BLAS's threads, otherwise side by side on ours."""
    with _MODES.entered(team) as alone:
        _threads.run(function, items, side_by_side=alone and not team)


def team(operations: int, threads: int) -> bool:
    """Tell whether a product of so many operations is one for BLAS's own threads.

    As many as ``threads``, or whatever number they are where BLAS cannot be told.
    """
    functions = _functions()
    if functions is None:
        return True
    return threads > 1 and operations < _SMALL * threads and _MODES.threads() == threads


class _Modes:
    """Products on BLAS's threads, or each on the thread that asks for it: never both at a time.

    The setting is the process's, and results depend on it in their last bits. Who comes first has its way; the others
    wait for their turn, so that nobody waits for ever. Threads that call BLAS themselves are held too.
    """

    def __init__(self) -> None:
        self._before = 1
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._turn, self._left = Lock(), Condition()
        self._inside = {True: 0, False: 0}

    def _forked(self) -> None:
        """Go on in a child process, which has none of the threads that were inside."""
        functions, held = _functions(), self._inside[False]
        self._start()
        if held and functions is not None:
            functions[1](self._before)

    def threads(self) -> int:
        """Return BLAS's own number of threads, whatever mode it is in."""
        functions = _functions()
        with self._left:
            return self._before if functions is None or self._inside[False] else functions[0]()

    @contextmanager
    def entered(self, team: bool) -> Iterator[bool]:
        """Let BLAS use its threads, or hold it at one; yield False where this BLAS cannot be told."""
        functions = _functions()
        if functions is None:
            yield False
            return
        get, put = functions
        with self._turn, self._left:
            self._left.wait_for(lambda: not self._inside[not team])
            if not team and not self._inside[team]:
                self._before = get()
                put(1)
            self._inside[team] += 1
        try:
            yield True
        finally:
            with self._left:
                self._inside[team] -= 1
                if not team and not self._inside[team]:
                    put(self._before)
                self._left.notify_all()


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
