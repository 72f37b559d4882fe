"""Interrupt calls by a signal at a random moment, and check what must hold afterwards.

A timer signal simulates Ctrl-C: its handler raises KeyboardInterrupt wherever the call is. Later calls must be right
and must not wait for lost work, BLAS must have its number of threads back, and an ``out`` array belongs to the caller
again as soon as the interrupted call has raised.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

import gpuconv
from gpuconv.cpu import _blas
from tests.fuzz.frame import Fuzzer, Wrong, _module
from tests.harness.interruption import eventually
from tests.oracle import oracle
from tests.oracle.gradients import bias_grad

_MOST_THREADS = 40  # more than the thread pools of all sizes used here keep
_SENTINEL = 77


@dataclass(frozen=True)
class Interrupt:
    """One interrupted call: the name of its problem, and when it is interrupted.

    ``at`` is the fraction of the call's duration, ``again`` the seconds from the first interrupt to a second one.
    """

    problem: str
    threads: str
    at: float
    again: float | None
    given_out: bool
    pause: float
    company: bool


@dataclass(frozen=True)
class Problem:
    """A call that takes an ``out`` array or None, and its expected result."""

    call: Callable[[Any], Any]
    expected: Any


# ---------------------------------------------------------------- the calls

_SIZES = {
    "small": ((1, 3, 9, 8), (4, 3, 3, 3)),
    "medium": ((2, 24, 26, 25), (32, 24, 3, 3)),
    "large": ((4, 64, 48, 48), (64, 64, 3, 3)),
    "wide": ((16, 16, 60, 60), (16, 16, 1, 1)),
}
_KINDS = ("conv", "grouped", "finished", "transposed", "input_grad", "weight_grad", "bias_grad", "pool", "indices")
_KINDS = (*_KINDS, "pool_grad", "unpool", "packed", "double", "half")
_NAMES = tuple(f"{size} {kind}" for size in _SIZES for kind in _KINDS)
_WEIGHTS = [{"small": 100, "medium": 10, "large": 0.5, "wide": 0.5}[name.split()[0]] for name in _NAMES]


def _integers(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


@lru_cache(maxsize=64)
def _problem(name: str) -> Problem:
    size, kind = name.split()
    x_shape, w_shape = _SIZES[size]
    dtype = {"double": np.float64, "half": np.float16}.get(kind, np.float32)
    x, w = _integers(1, x_shape, dtype), _integers(2, w_shape, dtype)
    return _pooling(kind, x) if "pool" in kind or kind == "indices" else _sums(kind, x, w)


def _sums(kind: str, x: Any, w: Any) -> Problem:
    dtype = x.dtype
    if kind == "grouped":
        group = 3 if x.shape[1] == 3 else 4
        w = np.ascontiguousarray(w[: len(w) // group * group, : x.shape[1] // group])
        value = oracle.conv(x, w, group=group).value
        return Problem(lambda out: gpuconv.conv(x, w, group=group, out=out), value.astype(dtype))
    y = oracle.conv(x, w).value
    if kind == "finished":
        residual = _integers(3, y.shape, dtype)
        call = lambda out: gpuconv.conv(x, w, residual=residual, activation="relu", out=out)  # noqa: E731
        return Problem(call, np.maximum(y + residual, 0).astype(dtype))
    if kind == "packed":
        packed = gpuconv.pack(w)
        return Problem(lambda out: gpuconv.conv(x, packed, out=out), y.astype(dtype))
    if kind in ("transposed", "input_grad"):
        dy = _integers(4, y.shape, dtype)
        dx = oracle.conv_transpose(dy, w).value.astype(dtype)
        if kind == "transposed":
            return Problem(lambda out: gpuconv.conv_transpose(dy, w, out=out), dx)
        return Problem(lambda out: gpuconv.conv_input_grad(dy, w, x.shape, out=out), dx)
    if kind == "weight_grad":
        dy = _integers(4, y.shape, dtype)
        dw = _weight_grad(x, dy, w.shape).astype(dtype)
        return Problem(lambda out: gpuconv.conv_weight_grad(x, dy, w.shape, out=out), dw)
    if kind == "bias_grad":
        return Problem(lambda out: gpuconv.conv_bias_grad(x, out=out), bias_grad(x).value.astype(dtype))
    return Problem(lambda out: gpuconv.conv(x, w, out=out), oracle.round_to(y, dtype))


def _weight_grad(x: Any, dy: Any, shape: tuple[int, ...]) -> Any:
    """Return dw: per tap, the sum of products of dy and the inputs that it reads."""
    dw, extents = np.empty(shape), dy.shape[2:]
    for tap in np.ndindex(*shape[2:]):
        met = x[(..., *(slice(t, t + extent) for t, extent in zip(tap, extents, strict=True)))]
        dw[(..., *tap)] = np.tensordot(dy.astype(np.float64), met.astype(np.float64), ((0, 2, 3), (0, 2, 3)))
    return dw


def _pooling(kind: str, x: Any) -> Problem:
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    x = np.ascontiguousarray(x[(..., *(slice(0, extent // 2 * 2) for extent in x.shape[2:]))])
    y, indices = oracle.max_pool(x, **window)
    if kind == "pool":
        return Problem(lambda out: gpuconv.max_pool(x, **window, out=out), y)
    if kind == "indices":
        both = lambda out: gpuconv.max_pool(x, **window, return_indices=True, out=(None, out))  # noqa: E731
        return Problem(lambda out: both(out)[1], indices)
    scattered = np.zeros(x.size, x.dtype)
    scattered[indices.reshape(-1)] = y.reshape(-1)  # windows do not overlap, so indices are distinct
    expected = scattered.reshape(x.shape)
    if kind == "unpool":
        return Problem(lambda out: gpuconv.max_unpool(y, indices, **window, out=out), expected)
    return Problem(lambda out: gpuconv.max_pool_grad(y, indices, x.shape, **window, out=out), expected)


# ---------------------------------------------------------------- interrupts


class _Timer:
    """Interrupts code inside gpuconv once or twice, and counts the interrupts."""

    def __init__(self) -> None:
        self.left, self.hits, self._again = 0, 0, None
        signal.signal(signal.SIGALRM, self._ring)

    def start(self, delay: float, again: float | None) -> None:
        self.hits, self._again = 0, again
        self.left = 1 if again is None else 2
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))

    def stop(self) -> None:
        self.left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _: int, frame: Any) -> None:
        if self.left == 0 or not _is_inside(frame):
            return
        self.left -= 1
        self.hits += 1
        if self.left and self._again is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._again, 1e-6))
        raise KeyboardInterrupt


def _is_inside(frame: Any) -> bool:
    """Return whether a function of gpuconv is on the stack."""
    while frame is not None:
        if _module(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


class FUZZER(Fuzzer):
    """Interrupts calls."""

    limit = 10.0

    def __init__(self) -> None:
        self._timer: _Timer | None = None
        self._seconds: dict[tuple[str, str], float] = {}

    def case(self, random: Random) -> Interrupt:
        again = random.choice((0.0, 2e-5, 1e-4, 1e-3)) * (0.5 + random.random()) if random.random() < 0.3 else None
        return Interrupt(
            problem=random.choices(_NAMES, _WEIGHTS)[0],
            threads=random.choice(("1", "2", "2", "3", "")),
            at=random.random() * 1.05,
            again=again,
            given_out=random.random() < 0.8,
            pause=random.random() * 0.02 if random.random() < 0.05 else 0.0,
            company=random.random() < 0.03,
        )

    def check(self, case: Interrupt) -> str:
        if self._timer is None:
            self._timer = _Timer()
        self.spoiled = True  # until the case has ended without a finding
        outcome = self._check(case)
        self.spoiled = False
        return outcome

    def _check(self, case: Interrupt) -> str:
        os.environ["GPUCONV_NUM_THREADS"] = case.threads
        problem = _problem(case.problem)
        seconds = self._usual(case, problem)
        before = _blas_threads()
        with _company(case.company):
            out = np.full_like(problem.expected, _SENTINEL) if case.given_out else None
            raised = self._interrupted(problem, out, case.at * seconds, case.again)
            if raised and not case.company and case.again is None and _blas_threads() != before:
                raise Wrong("an interrupted call leaves BLAS another number of threads")
            if raised and out is not None and case.again is None:
                out.fill(_SENTINEL)
                time.sleep(case.pause)
            result = problem.call(None)
        if not np.array_equal(result, problem.expected):
            raise Wrong("a call gives another value after an interrupted one", case.problem)
        if raised and out is not None and case.again is None and not (out == _SENTINEL).all():
            raise Wrong("a call writes into its out after it has raised", case.problem)
        if not raised and out is not None and not np.array_equal(out, problem.expected):
            raise Wrong("a call that returns gives another value", case.problem)
        if not eventually(lambda: _blas_threads() == before, 0.0 if case.again is None else 2.0):
            raise Wrong("BLAS has another number of threads after an interrupted call")
        if threading.active_count() > _MOST_THREADS:
            raise Wrong("threads are left over", f"{threading.active_count()}")
        assert self._timer is not None
        return ("not interrupted", "interrupted", "interrupted twice")[self._timer.hits]

    def _usual(self, case: Interrupt, problem: Problem) -> float:
        """Return the duration of an uninterrupted call, in seconds."""
        key = case.problem, case.threads
        if key not in self._seconds:
            problem.call(None)
            start = time.perf_counter()
            problem.call(None)
            self._seconds[key] = time.perf_counter() - start
        return self._seconds[key]

    def _interrupted(self, problem: Problem, out: Any, delay: float, again: float | None) -> bool:
        """Make a call and interrupt it; return whether it raised."""
        timer = self._timer
        assert timer is not None
        timer.start(delay, again)
        try:
            problem.call(out)
        except KeyboardInterrupt:
            return True
        finally:
            timer.stop()
        if timer.hits:
            raise Wrong("a call swallows an interrupt")
        return False

    def smaller(self, case: Interrupt) -> Iterator[Interrupt]:
        return iter(())  # findings depend on timing and may not repeat


def _blas_threads() -> int:
    """Return the number of threads of NumPy's BLAS, or 0 if unknown."""
    functions = _blas._functions()
    return 0 if functions is None else functions[0]()


@contextlib.contextmanager
def _company(wanted: bool) -> Iterator[None]:
    """Make calls in another thread meanwhile, which no signal interrupts."""
    if not wanted:
        yield
        return
    problem, wrong = _problem("medium conv"), []

    def work() -> None:
        wrong.extend(not np.array_equal(problem.call(None), problem.expected) for _ in range(3))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join()
    if any(wrong) or len(wrong) != 3:
        raise Wrong("a call during an interrupted one returns another value")
