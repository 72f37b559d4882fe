"""Products by NumPy's BLAS, each on one thread: BLAS's own threads are held back meanwhile, where that can be set.

Large products are cut into blocks that run side by side on threads of ours. They also share out the copying around the
products, and do not wait for each other at every product, as threads inside BLAS do: those wait without sleeping, so
that on a machine with other work each product takes as long as the system's turns, and a network many times as long.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from enum import Enum
from functools import lru_cache
from math import prod
from threading import Lock, get_ident
from typing import Any, TypeVar

import numpy as np

from gpuconv import _environment
from gpuconv.cpu import _threads
from gpuconv.cpu._workspace import INVARIANT, Array, Partition
from gpuconv.rules.invariance import CURRENT

Item = TypeVar("Item")
Result = TypeVar("Result")

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
_TINY, _TINY_THIN = 2**19, 2**14  # operations for which BLAS uses one thread itself, the second with a vector
_COMPLEX = 16  # operations of a complex product and its addition, as OpenBLAS's limits have them
_SMALL = 4e7  # operations: some half a millisecond, several times what it takes to wake threads
_PART = 5e7  # operations of an image that are worth a part of their own, where nothing else may decide
_LONG = 0.5  # seconds after which it is worth looking whether a call has ended without a word
_held: ContextVar[_Held | None] = ContextVar("gpuconv.held", default=None)


class Workers(Enum):
    """Who computes a product."""

    CALLER = "the calling thread"
    ONE = "one thread, with BLAS held back"
    POOL = "our threads, with BLAS held back"


def operations(products: int, dtype: Any) -> int:
    """Return what so many products that are added up count for; BLAS uses its threads earlier for complex ones."""
    return products * (_COMPLEX if np.dtype(dtype).kind == "c" else 2)


def workers_for(operations: int, threads: int, thin: bool = False) -> Workers:
    """Tell who computes a product of so many operations; ``thin`` ones are of a matrix and a vector.

    Where BLAS cannot be told, it does as it likes.
    """
    if operations <= (_TINY_THIN if thin else _TINY) or _functions() is None:
        return Workers.CALLER
    return Workers.ONE if threads < 2 or operations < _SMALL else Workers.POOL


def parts(operations: int, partition: Partition, thin: bool = False) -> int:
    """Return for how many threads to cut so many operations for each image that the problem is cut for."""
    if partition.invariant:
        return int(min(partition.threads, max(1, operations // _PART)))
    return (
        partition.threads if workers_for(operations * partition.images, partition.threads, thin) is Workers.POOL else 1
    )


def run(function: Callable[[Item], None], items: Sequence[Item], workers: Workers, most: int | None = None) -> None:
    """Do items that are mostly a product, with at most so many threads if told."""
    within = None if _may_begin(workers) or _HOLD.threads() < 2 else _HOLD.at_one
    _threads.run(function, items, side_by_side=workers is Workers.POOL, most=most, within=within)


def _may_begin(workers: Workers) -> bool:
    """Tell whether a product is tiny, or BLAS is held for the whole call that it is part of."""
    if workers is Workers.CALLER:
        return True
    held = _held.get()
    return held is not None and held.begin()


def matmul(a: Array, b: Array) -> Array:
    """Return what ``numpy.matmul`` does, large products by our threads; cut alike for any number of them if asked."""
    shape = a.shape[:-2]
    if shape != b.shape[:-2]:
        shape = np.broadcast_shapes(shape, b.shape[:-2]) if min(a.ndim, b.ndim) > 1 else ()
    plain = a.dtype == b.dtype and a.dtype.kind in "fc" and min(a.ndim, b.ndim) > 1 and a.shape[-1] == b.shape[-2]
    rows, columns = (a.shape[-2], b.shape[-1]) if plain else (0, 0)
    threads = _threads.count() if CURRENT.get() is None else INVARIANT.threads
    count = operations(prod(shape) * rows * columns * a.shape[-1], a.dtype)
    workers = workers_for(count, threads, min(rows, columns) == 1)
    if not plain or (workers is not Workers.POOL and _may_begin(workers)):
        product: Array = np.matmul(a, b)
        return product
    y: Array = np.empty((*shape, rows, columns), a.dtype)
    axis, size = max(enumerate(y.shape), key=lambda pair: pair[1] if pair[0] in (0, y.ndim - 2, y.ndim - 1) else 0)
    parts = threads if workers is Workers.POOL else 1
    spans = [slice(size * n // parts, size * (n + 1) // parts) for n in range(parts)]

    def compute(span: slice) -> None:
        place = (*(slice(None),) * axis, span)
        ours = _part(a, y.ndim, axis, span, fixed=y.ndim - 1), _part(b, y.ndim, axis, span, fixed=y.ndim - 2)
        np.matmul(*ours, out=y[place])

    run(compute, spans, workers)
    return y


def _part(matrices: Array, ndim: int, axis: int, span: slice, fixed: int) -> Array:
    """Return what a part of the result is made of; an axis that is summed over, or repeated, is whole."""
    own = axis - ndim + matrices.ndim
    if axis == fixed or own < 0 or matrices.shape[own] == 1:
        return matrices
    part: Array = matrices[(*(slice(None),) * own, span)]
    return part


def holding(function: Callable[[], Result]) -> Result:
    """Call a function of many products one after the other: the first that is not tiny holds BLAS for all of them.

    A thread that no interrupt reaches holds it. Where an interrupt keeps this one from telling it that the call has
    ended, it finds this function no more among those that the thread is in. Variables of the environment are read once.
    """
    if _held.get() is not None:
        return function()
    held = _Held()
    try:
        return copy_context().run(_within, held, function)
    finally:
        held.ended.release()


def _within(held: _Held, function: Callable[[], Result]) -> Result:
    """Call a function in a context of its own, which is gone with the call however that ends."""
    _held.set(held)
    return _environment.steady(function)


class _Held:
    """What holds BLAS for one call of :func:`holding`, from its first product that asks for that to its end."""

    def __init__(self) -> None:
        self.ended = allocate_lock()
        self.ended.acquire()
        self._thread = get_ident()
        self._has_begun = _functions() is None or _HOLD.threads() < 2  # nothing is to be done then

    def begin(self) -> bool:
        """Hold BLAS; return False where the system has no more threads: then each product asks for itself."""
        if self._has_begun:
            return True
        began = allocate_lock()
        began.acquire()
        try:
            start_new_thread(_hold, (self._thread, began, self.ended))
        except RuntimeError:
            return False
        began.acquire()
        self._has_begun = True
        return True


def _hold(thread: int, began: Any, ended: Any) -> None:
    """Hold BLAS at one thread until a call of another thread has ended."""
    with _HOLD.at_one():
        began.release()
        while not ended.acquire(timeout=_LONG):
            if not _is_in(thread, holding):
                return
    ended.release()  # after an interrupt there may be two of these


def _is_in(thread: int, function: Callable[..., object]) -> bool:
    """Tell whether a thread is in a function."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class _Hold:
    """BLAS's number of threads, while somebody needs it to be one, and otherwise.

    The setting is the process's; threads that call BLAS themselves are held too. An interrupt reaches :meth:`threads`
    only, which takes no lock: everything else is for threads that no interrupt reaches.
    """

    def __init__(self) -> None:
        self._before = 1
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._setting, self._changes, self.inside = Lock(), 0, 0

    def _forked(self) -> None:
        """Go on in a child process, which has none of the threads that were inside."""
        functions, held = _functions(), self.inside > 0
        self._start()
        if held and functions is not None:
            functions[1](self._before)

    def threads(self) -> int:
        """Return BLAS's own number of threads, held or not."""
        functions = _functions()
        while True:
            changes, held = self._changes, self.inside > 0
            now = self._before if functions is None or held else functions[0]()
            if changes == self._changes:
                return now

    @contextmanager
    def at_one(self) -> Iterator[None]:
        """Hold BLAS at one thread; the last one to leave gives it back its threads."""
        functions = _functions()
        if functions is None:
            yield
            return
        get, put = functions
        with self._setting:
            if not self.inside:
                self._before = get()
            self.inside += 1
            self._changes += 1
            put(1)
        try:
            yield
        finally:
            with self._setting:
                if self.inside == 1:
                    put(self._before)
                self.inside -= 1
                self._changes += 1


_HOLD = _Hold()


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
