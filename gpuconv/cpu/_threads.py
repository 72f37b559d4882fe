"""Threads for the work that BLAS does not parallelise by itself.

An interrupt (Ctrl-C) raises an exception in the main thread between any two of its instructions, in a ``finally`` too.
Whatever outlasts a call is therefore changed by threads of the pool, which no interrupt reaches, or repaired by one, as
BLAS's number of threads is (`gpuconv.cpu._blas`). A thread that waits for the pool only makes single calls into C that
cannot be cut in two: it puts jobs into a queue and waits for a lock. Handing a job over takes about a tenth of a
millisecond each way, more on virtual machines whose idle processors sleep, so a single thread is always the caller's.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from gpuconv import _environment

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])
Around = Callable[[], AbstractContextManager[object]]
_WORTH_WAKING = 8 * 2**20
_UNBOUNDED = 2**31
_MOST = 9999  # threads that somebody may ask for
_LOST = 5.0  # seconds after which it is worth looking whether there still are threads that could do a job
_single_threaded: ContextVar[bool] = ContextVar("gpuconv.single_threaded", default=False)


def count() -> int:
    """Return how many threads to use: ``GPUCONV_NUM_THREADS``, or the processors this process may run on.

    Where that is not set, a caller inside :func:`single_threaded` has its own thread only, and a cgroup's quota of
    processor time, rounded up, is an upper bound.
    """
    return _environment.once(_count)


def _count() -> int:
    number = _environment.integer("GPUCONV_NUM_THREADS", least=1, most=_MOST)
    if number is None:
        return 1 if _single_threaded.get() else min(len(_processors()), _quota())
    return number


def pays(nbytes: int) -> bool:
    """Tell whether so much input, read a few times from a core's cache, is worth waking other threads for.

    That takes a tenth of a millisecond or more, where processors sleep in between several.
    """
    return nbytes >= _WORTH_WAKING


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let operators work on the calling thread: for callers that have a thread for every processor already."""
    token = _single_threaded.set(True)
    try:
        yield
    finally:
        _single_threaded.reset(token)


def quietly(function: Function) -> Function:
    """Let a function run without NumPy's floating-point warnings.

    In a context of its own, which is gone with the call however that ends; an interrupt between the two instructions
    that change and restore the caller's would leave them off.
    """

    def quiet(*args: Any, **options: Any) -> Any:
        np.seterr(all="ignore")
        return function(*args, **options)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return copy_context().run(quiet, *args, **options)

    return call  # type: ignore[return-value]


# ---------------------------------------------------------------- processors


def _processors() -> tuple[int, ...]:
    """Return the processors that this thread may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@lru_cache(maxsize=1)
def _quota(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return how many processors' time the process's cgroups grant it, rounded up; looked at once."""
    groups = [line.split(":", 2) for line in _lines(Path(proc)) if line.count(":") >= 2]
    quotas = [_UNBOUNDED]
    for _, controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = Path(root, controllers)  # of version 2, whose only group has no controllers named, the root itself
        group = top / path.lstrip("/")
        quotas += [_granted(folder) for folder in (group, *group.parents) if folder == top or top in folder.parents]
    return min(quotas)


def _granted(folder: Path) -> int:
    """Return the quota over the period of one cgroup, of version 2 or 1, rounded up."""
    words = " ".join(_lines(folder / "cpu.max")).split() or [
        word for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for word in _lines(folder / name)
    ]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or no such files
        return _UNBOUNDED
    return -(-quota // period) if quota > 0 and period > 0 else _UNBOUNDED


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError):
        return []


# ---------------------------------------------------------------- jobs


def run(
    function: Callable[[Item], None],
    items: Iterable[Item],
    *,
    side_by_side: bool = True,
    most: int | None = None,
    within: Around | None = None,
) -> None:
    """Call ``function`` on every item, by several threads if ``side_by_side``; items must write to different places.

    At most ``most`` threads do, if given; a single one is the caller's.

    ``within`` makes a context that is entered before the first item and left after the last: on a thread of the pool if
    there are several, else by the caller, which an interrupt may keep from leaving it. NumPy's loops release the
    interpreter lock. After an error, or an exception in the thread that waits, no item is started; it is raised once
    those that were have ended. Only a second interrupt ends that wait, and items may then still be at work.
    """
    work = deque(items)
    threads = min(count(), len(work), most or len(work)) if side_by_side else 1
    if threads > 1:
        _Job(function, work, within or nullcontext).run(threads)
    elif work:
        with (within or nullcontext)():
            while work:
                function(work.popleft())


class _Job:
    """The items of one call, done by threads that come for them."""

    def __init__(self, function: Callable[[Any], None], items: deque[Any], within: Around) -> None:
        self._function = function
        self._items = items
        self._within = within()
        self._context = copy_context()  # NumPy's errstate goes along
        self._lock = threading.Lock()  # of the pool's threads
        self._working = 0
        self._error: BaseException | None = None
        self._is_over = False
        self._over = threading.Lock()  # given back when all is done
        self._over.acquire()

    def run(self, threads: int) -> None:
        """Have the items done, and raise what one of them has raised."""
        pool = _pool(count())
        try:
            pool.put(self, threads)
            self._wait(pool)
        except BaseException:  # an interrupt: what has begun is waited for, so that nothing is written after this call
            self._items.clear()
            pool.put(self, 1)  # it may have come before any thread was called
            self._wait(pool)
            raise
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback holds this frame

    def _wait(self, pool: _Pool) -> None:
        while not self._is_over and not self._over.acquire(timeout=_LOST):
            if pool.is_deserted():
                self.take_part()

    def take_part(self) -> None:
        """Do items until none is left."""
        with self._lock:
            if self._is_over:
                return
            self._working += 1
            if self._working == 1:
                self._guarded(self._within.__enter__)
        self._context.copy().run(self._guarded, self._drain)
        with self._lock:
            self._working -= 1
            if not self._working:
                self._guarded(self._within.__exit__, None, None, None)
                self._is_over = True
                self._over.release()

    def _drain(self) -> None:
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                return
            self._function(item)

    def _guarded(self, function: Callable[..., object], *args: object) -> None:
        """Call a function; after an error, whose first is kept, there are no items left."""
        try:
            function(*args)
        except BaseException as error:
            self._items.clear()
            self._error = error if self._error is None else self._error


# ---------------------------------------------------------------- the pool

_Key = tuple[int, int, tuple[int, ...]]


class _Pool:
    """Threads that do jobs. They end when nothing refers to the pool any more: they know its queue only."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._end = ref(self, self._queue.put)  # this very reference comes through the queue then
        self._lock = threading.Lock()  # of threads that start others
        self._is_started = False
        self._threads: list[threading.Thread] = []

    def is_deserted(self) -> bool:
        """Tell whether no thread could be started."""
        return self._is_started and not any(thread.is_alive() for thread in self._threads)

    def put(self, job: _Job, times: int) -> None:
        """Call so many threads for a job."""
        for _ in range(times):
            self._queue.put(job)
        if not self._is_started:
            try:
                start_new_thread(self._start, ())  # starting a thread of `threading` could be interrupted half-way
            except RuntimeError:  # the system has no more threads: then this one does the work
                job.take_part()

    def _start(self) -> None:
        with self._lock:
            if self._is_started:
                return
            for processor in self._places():
                thread = threading.Thread(target=_serve, args=(self._queue, self._end, processor), daemon=True)
                thread.name = f"gpuconv-{self.key[0]}"
                with suppress(RuntimeError):  # fewer will do
                    thread.start()
                    self._threads.append(thread)
            self._is_started = True

    def _places(self) -> list[int | None]:
        """Return for every thread the processor that is its own, if any.

        Where there is a thread for every processor, each has its own, as in other libraries with threads of theirs.
        Otherwise systems may wake a thread on the processor of the one that woke it, where it waits for a turn.
        """
        _, threads, processors = self.key
        own = threads == len(processors) > 1 and hasattr(os, "sched_setaffinity")
        return list(processors) if own else [None] * threads


def _serve(queue: SimpleQueue[Any], end: object, processor: int | None) -> None:
    if processor is not None:
        with suppress(OSError):  # the process may have been confined to fewer processors meanwhile
            os.sched_setaffinity(threading.get_native_id(), {processor})
    while (job := queue.get()) is not end:
        job.take_part()
        del job  # and with it the arrays
    queue.put(end)  # for the next one


_current: _Pool | None = None


def _pool(threads: int) -> _Pool:
    """Return the pool; another one than before where the number of threads or the processors have changed.

    The process's number keeps a forked child from waiting for its parent's threads.
    """
    global _current
    key = (os.getpid(), threads, _processors())
    pool = _current
    if pool is None or pool.key != key:
        pool = _current = _Pool(key)
    return pool
