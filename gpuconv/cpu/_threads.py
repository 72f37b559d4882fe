"""Threads for the work that BLAS does not parallelise by itself."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache
from typing import TypeVar

from gpuconv._errors import ArgumentError

Item = TypeVar("Item")
_WORTH_WAKING = 8 * 2**20
_alone: ContextVar[bool] = ContextVar("gpuconv.alone", default=False)


def count() -> int:
    """Return how many threads to use: ``GPUCONV_NUM_THREADS``, or the processors this process may run on.

    Where that is not set, a caller that is :func:`alone` has its own thread only.
    """
    text = os.environ.get("GPUCONV_NUM_THREADS", "")
    if not text:
        return 1 if _alone.get() else len(_processors())
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"GPUCONV_NUM_THREADS must be a positive integer, not {text!r}")
    return int(text)


def pays(nbytes: int) -> bool:
    """Tell whether so much input, read a few times from a core's cache, is worth waking other threads for.

    That takes a tenth of a millisecond or more, where processors sleep in between several.
    """
    return nbytes >= _WORTH_WAKING


@contextmanager
def alone() -> Iterator[None]:
    """Let operators work on the calling thread: for callers that have a thread for every processor already."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _processors() -> list[int]:
    """Return the processors that this process may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run(function: Callable[[Item], None], items: Iterable[Item], *, side_by_side: bool = True) -> None:
    """Call ``function`` on every item, side by side if told so; the items must write to different places.

    NumPy's loops release the interpreter lock. After an error no item is started; it is raised once those that
    were have ended.
    """
    work = deque(items)
    threads = min(count(), len(work)) if side_by_side else 1

    def drain() -> None:
        while True:
            try:
                item = work.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException:
                work.clear()
                raise

    if threads < 2:
        drain()
        return
    pool = _pool(count(), os.getpid())
    futures = [pool.submit(copy_context().run, drain) for _ in range(threads)]  # NumPy's errstate goes along
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise errors[0]


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """One pool per thread count; the process number keeps a forked child from waiting on its parent's threads.

    Where there is a thread for every processor, each has its own, as in other libraries with threads of theirs.
    Otherwise systems may wake a thread on the processor of the one that woke it, where it waits for a turn.
    """
    processors = _processors()
    free = processors if threads == len(processors) and hasattr(os, "sched_setaffinity") else []

    def settle() -> None:
        if free:
            with suppress(OSError):  # the process may have been confined to fewer processors meanwhile
                os.sched_setaffinity(threading.get_native_id(), {free.pop()})

    return ThreadPoolExecutor(threads, thread_name_prefix=f"gpuconv-{process}", initializer=settle)
