"""Runs of windows that one thread pools at once along a line, for the tiles and patches kernels (``pool/runs.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuconv.cuda.pool.problem import PoolProblem

# (Indices, bytes per element) → extra instructions for unpacking short elements, as a factor (counted).
_SHORT = {(False, 1): 1.35, (True, 2): 1.2}


@dataclass(frozen=True, slots=True)
class WindowRuns:
    """How the outputs of a line are divided into runs of windows, one run per thread.

    ``step`` is the distance between adjacent windows of a run that share all taps but one. It is 0 if they share none;
    the windows of a run are then adjacent.
    """

    count: int
    step: int
    outputs: int  # outputs covered by all runs


def runs_of(count: int, taps: int, stride: int, dilation: int, run: int) -> WindowRuns:
    """Return the runs for ``count`` windows of a line, ``run`` windows each."""
    step = dilation // stride if dilation % stride == 0 and taps >= run - 1 else 0
    apart = max(step, 1)
    runs = -(-count // (run * apart)) * apart
    return WindowRuns(runs, step, runs * run)


def taken(taps: int, runs: WindowRuns, run: int) -> tuple[int, int]:
    """Return the (loads, comparisons) of one run of windows."""
    return (taps + run - 1, taps + 3 * run) if runs.step else (taps * run, taps * run)


def longest(work: Sequence[int], items: Sequence[int], instructions: Sequence[float], threads: int) -> float:
    """Return the instructions of a block's busiest thread.

    ``items`` is how many units of each kind of work are divided among the threads; with few units, some threads get one
    and others none.
    """
    return sum(
        count * each * -(-number // threads) / max(number, 1)
        for count, number, each in zip(work, items, instructions, strict=True)
    )


def of_short(problem: PoolProblem) -> float:
    """Return the factor on instructions for unpacking short elements; 1.0 for four-byte elements."""
    return _SHORT.get((problem.named, problem.itemsize), 1.0)
