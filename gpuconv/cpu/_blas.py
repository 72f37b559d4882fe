"""Products by NumPy's BLAS, each on one thread: BLAS's own threads are held back meanwhile, where that can be set.

Large products are cut into blocks that run side by side on threads of ours. They also share out the copying around the
products, and do not wait for each other at every product, as threads inside BLAS do: those wait without sleeping, so
that on a machine with other work each product takes as long as the system's turns, and a network many times as long.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from enum import Enum
from functools import lru_cache
from math import prod
from threading import Lock, get_ident, main_thread
from time import sleep
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
_LONG, _QUIET = 0.5, 20  # seconds between looks for calls that an interrupt has ended, and looks that find nothing
_held: ContextVar[_Held | None] = ContextVar("gpuconv.held", default=None)


class Workers(Enum):
    """Who computes a product."""

    CALLER = "the calling thread"
    ONE = "the calling thread, with BLAS held at one thread"
    POOL = "threads of the pool, with BLAS held at one thread each"


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
    workers = workers_for(operations * partition.images, partition.threads, thin)
    return partition.threads if workers is Workers.POOL else 1


def equal_slices(size: int, parts: int) -> list[slice]:
    """Divide an axis of ``size`` elements into so many slices, whose lengths differ by at most one."""
    return [slice(size * n // parts, size * (n + 1) // parts) for n in range(parts)]


def run(function: Callable[[Item], None], items: Sequence[Item], workers: Workers, most: int | None = None) -> None:
    """Do items that are mostly a product, with at most so many threads if told."""
    within = None if _may_begin(workers) or _HOLD.threads() < 2 else _HOLD.at_one
    _threads.run(function, items, side_by_side=workers is Workers.POOL, most=most, within=within)


def _may_begin(workers: Workers) -> bool:
    """Tell whether a product is tiny, or BLAS is held for the whole call that it is part of."""
    if workers is Workers.CALLER:
        return True
    held = _held.get()
    if held is not None:
        held.begin()
    return held is not None


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
    spans = equal_slices(size, parts)

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
    """Call a function that computes many products; the first one that is not tiny holds BLAS until the function ends.

    Environment variables are read once for the whole call.
    """
    if _held.get() is not None:
        return function()
    held = _Held()
    try:
        return copy_context().run(_within, held, function)
    finally:
        _HOLD.leave(held)


def _within(held: _Held, function: Callable[[], Result]) -> Result:
    """Call a function in a context of its own, which is gone with the call however that ends."""
    _held.set(held)
    return _environment.steady(function)


class _Held:
    """One call of :func:`holding`, which holds BLAS from its first product that is not tiny on."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._has_begun = _functions() is None or _HOLD.threads() < 2  # nothing is to be done then

    def begin(self) -> None:
        """Hold BLAS until the call ends."""
        if not self._has_begun:
            _HOLD.enter(self, self._thread, holding)
            self._has_begun = True


class _Hold:
    """Limits BLAS to one thread as long as anybody holds it. The setting is the process's: it also limits other users.

    An interrupt (Ctrl-C) may end a call of the main thread between any two instructions, thus also between
    :meth:`enter` and the ``try`` whose ``finally`` calls :meth:`leave`. A thread of its own therefore looks twice a
    second for holders that are no longer in their function. (Python takes and releases a lock by ``with`` in a way that
    no interrupt can cut in two.)
    """

    def __init__(self) -> None:
        self._before = 1  # BLAS's own number of threads, while somebody holds it
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._setting, self._changes, self._is_guarded = Lock(), 0, False
        self._holders: dict[object, tuple[int, Callable[..., object]] | None] = {}

    def _forked(self) -> None:
        """Restore BLAS's threads in a child process, which has none of the holders."""
        functions, held = _functions(), bool(self._holders)
        self._start()
        if held and functions is not None:
            functions[1](self._before)

    @property
    def inside(self) -> int:
        """Number of holders."""
        return len(self._holders)

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
        """Hold BLAS at one thread inside the context, which only :func:`_threads.run` may enter."""
        if _functions() is None:
            yield
            return
        holder = object()
        self.enter(holder, get_ident(), _threads.run)
        try:
            yield
        finally:
            self.leave(holder)

    def enter(self, holder: object, thread: int, function: Callable[..., object]) -> None:
        """Hold BLAS at one thread until ``leave(holder)``, at most as long as the main thread is in the function."""
        get, put = _functions() or (int, int)
        is_main = thread == main_thread().ident
        if is_main and not self._is_guarded:
            with suppress(RuntimeError):  # the system has no more threads: only an interrupt would need this one
                start_new_thread(self._guard, ())
        with self._setting:
            if not self._holders:
                self._before = get()
            self._holders[holder] = (thread, function) if is_main else None
            self._changes += 1
            put(1)

    def leave(self, holder: object) -> None:
        """Hold BLAS no more; the last holder restores its threads. Nothing happens for who does not hold it."""
        with self._setting:
            if self._holders.keys() == {holder}:
                (_functions() or (int, int))[1](self._before)
            self._holders.pop(holder, None)
            self._changes += 1

    def _guard(self) -> None:
        """Let holders leave whose function an interrupt has ended; end after a while in which nobody held BLAS."""
        if self._is_guarded:
            return
        self._is_guarded, quiet, changes = True, 0, -1
        while quiet <= _QUIET:
            quiet = quiet + 1 if changes == self._changes and not self._holders else 0
            changes, self._is_guarded = self._changes, quiet < _QUIET  # one more look after others start another one
            sleep(_LONG)
            for holder, place in [*self._holders.items()]:
                if place is not None and not _is_in(*place):
                    self.leave(holder)


def _is_in(thread: int, function: Callable[..., object]) -> bool:
    """Tell whether a thread is in a function."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


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
