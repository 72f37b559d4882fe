"""How many threads NumPy's BLAS uses, where that can be set.

Blocks that run side by side on threads of ours, each with a product on its own thread, also share out the copying
around the products, and do not wait for each other; threads inside BLAS meet at every product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TypeVar

import numpy as np

from gpuconv.cpu import _threads

Item = TypeVar("Item")

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
_lock = Lock()
_users = 0
_before = 1


def run(function: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Do items that are mostly a product side by side; too few for all threads: one by one, on BLAS's threads."""
    if 2 * len(items) <= _threads.count():
        _threads.run(function, items, side_by_side=False)
        return
    with single_threaded() as alone:
        _threads.run(function, items, side_by_side=alone)


@contextmanager
def single_threaded() -> Iterator[bool]:
    """Hold BLAS at one thread; yield False where this BLAS cannot be told.

    The setting is the process's: other threads that call BLAS meanwhile are held too, the results stay right.
    The last of several overlapping holders sets back what the first one found.
    """
    global _users, _before
    functions = _functions()
    if functions is None:
        yield False
        return
    get, put = functions
    with _lock:
        if _users == 0:
            _before = get()
            put(1)
        _users += 1
    try:
        yield True
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                put(_before)


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
