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
_TEAM_OPERATIONS = 4e8  # a thread: some five milliseconds
_lock = Lock()
_users = 0
_before = 1


def run(function: Callable[[Item], None], items: Sequence[Item], team: bool) -> None:
    """Do items that are mostly a product: as a team one by one, on BLAS's threads, otherwise side by side on ours."""
    if team:
        _threads.run(function, items, side_by_side=False)
        return
    with single_threaded() as alone:
        _threads.run(function, items, side_by_side=alone)


def team(operations: int, threads: int) -> bool:
    """Tell whether a product of so many operations is one for BLAS's own threads, with the copying around it on ours.

    They wait for work without sleeping for a while, so that the parts of a small product cost less to hand out than
    waking threads of ours costs; a large one is cut into blocks whose copying is shared out too. As a team also where
    BLAS cannot be told how many threads to use.
    """
    functions = _functions()
    if functions is None or threads == 1:
        return functions is None
    return operations < _TEAM_OPERATIONS * threads and functions[0]() == threads


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
