"""Kernel time on a GPU: both sides captured as graphs by PyTorch and replayed in turns, from inputs not in any cache.

A graph's launches follow each other without the host, so its time is the kernels'. PyTorch captures both sides: it
alone can give a capture memory of its own for PyTorch's results, while CuPy works on any stream that it is told. Thus
one mechanism, one stream and one pair of events time everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

CACHES = 3  # between two uses of the same input, this many times the L2 cache is read and written
_MOST_SETS = 512
_LEAST_REPLAY, _MOST_REPLAY = 2e-3, 60e-3  # seconds of one replay
_ROUNDS = 7
_LEAST_ROUNDS = 5
_MOST_MEASURED = 1.5  # seconds of all rounds of one side: fewer rounds beyond it
_HOST_CALLS, _HOST_SECONDS = 50, 0.05

Call = Callable[..., Any]


def sets(nbytes: int, cache_bytes: int) -> int:
    """Return how many sets of operands and results, of so many bytes each, to go round through."""
    return min(_MOST_SETS, max(1, ceil(CACHES * cache_bytes / max(1, nbytes))))


def calls(sets: int, seconds: float) -> int:
    """Return how many calls to capture: whole rounds of all sets, unless that takes too long."""
    if sets * seconds > _MOST_REPLAY:
        return max(1, min(sets, int(_MOST_REPLAY / seconds)))
    return sets * max(1, ceil(_LEAST_REPLAY / (sets * seconds)))


def rounds(replay_seconds: float) -> int:
    """Return how often to replay a graph: never less than five times."""
    return min(_ROUNDS, max(_LEAST_ROUNDS, int(_MOST_MEASURED / max(replay_seconds, 1e-9))))


@dataclass
class Replay:
    """One side, ready to be timed.

    Attributes
    ----------
    run : callable
        Enqueues all its calls.
    calls : int
    how : str
        "graph", or "eager" with the reason why it could not be captured.
    kept : list
        What the graph reads and writes.
    """

    run: Call
    calls: int
    how: str
    kept: list[Any]


def seconds_of(torch: Any, run: Call, repeats: int = 1) -> float:
    """Return the time on the device of one of ``repeats`` runs on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def prepare(
    torch: Any,
    call: Call,
    operands: Sequence[Any],
    seconds: float,
    memory: AbstractContextManager[Any] | None = None,
) -> Replay:
    """Capture calls on the sets of operands in turn; ``memory`` is where the results come from, if not PyTorch's.

    As many results as sets are kept at a time, so that results too are written to memory that is in no cache.
    """
    count = calls(len(operands), seconds)
    results: deque[Any] = deque(maxlen=len(operands))

    def enqueue() -> None:
        for number in range(count):
            results.append(call(*operands[number % len(operands)]))

    with memory or nullcontext():
        try:
            graph = captured(torch, enqueue)
        except Exception as error:  # an operation that waits for the device, say
            text = (str(error).splitlines() or [""])[0]
            return Replay(enqueue, count, f"eager ({type(error).__name__}: {text[:120]})", [results])
    return Replay(graph.replay, count, "graph", [graph, results, memory])


def captured(torch: Any, enqueue: Call) -> Any:
    """Return the graph of what a function enqueues on the current stream, which is not the default one."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="relaxed")  # CuPy may ask for more memory meanwhile
    try:
        enqueue()
    except BaseException:
        with suppress(Exception):  # the capture is broken; the first error is the one that counts
            graph.capture_end()
        raise
    graph.capture_end()
    return graph


def alternate(torch: Any, sides: Sequence[Replay]) -> list[list[float]]:
    """Return each side's seconds per call, one a round, sides in turn, after a replay of each that does not count."""
    estimates = [seconds_of(torch, side.run) for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds(sum(estimates))):
        for side, found in zip(sides, samples, strict=True):
            found.append(seconds_of(torch, side.run) / side.calls)
    return samples


def host_seconds(torch: Any, run: Call, device_seconds: float) -> float:
    """Return the time that a call takes on the host: median of batches that each start with an empty queue."""
    count = max(3, min(_HOST_CALLS, int(_HOST_SECONDS / max(device_seconds, 1e-9))))
    samples = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        samples.append((time.perf_counter() - start) / count)
    torch.cuda.synchronize()
    return median(samples)
