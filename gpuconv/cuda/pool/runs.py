"""WindowRuns of windows of a line, which a thread takes at once, as tiles and patches have them (``pool/runs.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuconv.cuda.pool.problem import PoolProblem

# What short elements take beside others, with Indices or without, by their bytes: instructions that unpack; counted.
_SHORT = {(False, 1): 1.35, (True, 2): 1.2}


@dataclass(frozen=True, slots=True)
class WindowRuns:
    """Windows of a line of outputs, so many of them for a thread at once.

    ``step`` is from one window of a run to the next where they share all taps but one; 0 where they do not, and windows
    of a run are neighbours.
    """

    count: int
    step: int
    outputs: int  # that all runs cover


def runs_of(count: int, taps: int, stride: int, dilation: int, run: int) -> WindowRuns:
    """Return the runs of so many windows of a line."""
    step = dilation // stride if dilation % stride == 0 and taps >= run - 1 else 0
    apart = max(step, 1)
    runs = -(-count // (run * apart)) * apart
    return WindowRuns(runs, step, runs * run)


def taken(taps: int, runs: WindowRuns, run: int) -> tuple[int, int]:
    """Return the elements that a run of windows loads, and how many comparisons it makes."""
    return (taps + run - 1, taps + 3 * run) if runs.step else (taps * run, taps * run)


def longest(work: Sequence[int], items: Sequence[int], instructions: Sequence[float], threads: int) -> float:
    """Return how many instructions the busiest thread of a block executes for the work of all.

    ``items`` are what each kind of work is divided by among the threads: of few, some threads have one and others none.
    """
    return sum(
        count * each * -(-number // threads) / max(number, 1)
        for count, number, each in zip(work, items, instructions, strict=True)
    )


def of_short(problem: PoolProblem) -> float:
    """Return how many times as many instructions elements take as those of four bytes, which need no unpacking."""
    return _SHORT.get((problem.named, problem.itemsize), 1.0)
