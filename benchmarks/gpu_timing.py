"""Time kernels on a GPU: both sides captured as CUDA graphs and replayed alternately, with cold caches.

In a graph launches follow each other without the host, so the replay time is kernel time. Operand sets rotate so that
inputs are not in the L2 cache. PyTorch captures both sides: only it can give a capture a private memory pool for its
own results, while CuPy works on any given stream. So one mechanism, stream and pair of events times both libraries.
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

CACHES = 3  # L2 cache sizes of other data that are touched between two uses of the same input
_MOST_SETS = 512
_LEAST_REPLAY, _MOST_REPLAY = 2e-3, 60e-3  # seconds of one replay
_ROUNDS = 7
_LEAST_ROUNDS = 5
_MOST_MEASURED = 1.5  # seconds for all rounds; if replays are longer, there are fewer rounds
_HOST_CALLS, _HOST_SECONDS = 50, 0.05

Call = Callable[..., Any]


def sets(nbytes: int, cache_bytes: int) -> int:
    """Return how many sets of operands and results, of ``nbytes`` bytes each, to rotate through."""
    return min(_MOST_SETS, max(1, ceil(CACHES * cache_bytes / max(1, nbytes))))


def calls(sets: int, seconds: float) -> int:
    """Return how many calls to capture: a multiple of the number of sets, or fewer if one round takes too long."""
    if sets * seconds > _MOST_REPLAY:
        return max(1, min(sets, int(_MOST_REPLAY / seconds)))
    return sets * max(1, ceil(_LEAST_REPLAY / (sets * seconds)))


def rounds(replay_seconds: float) -> int:
    """Return how often to replay a graph: 7 times, down to 5 for long replays."""
    return min(_ROUNDS, max(_LEAST_ROUNDS, int(_MOST_MEASURED / max(replay_seconds, 1e-9))))


@dataclass
class Replay:
    """One side, ready to be timed.

    Attributes
    ----------
    run : callable
        Enqueues all calls.
    calls : int
        Number of calls per run.
    how : str
        "graph", or "eager" with the reason why capturing failed.
    kept : list
        Objects that keep the graph's memory alive.
    """

    run: Call
    calls: int
    how: str
    kept: list[Any]


def seconds_of(torch: Any, run: Call, repeats: int = 1) -> float:
    """Return the device seconds per run, averaged over ``repeats`` runs on the current stream."""
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
    """Capture calls on the operand sets in rotation; ``memory`` allocates the results, if not PyTorch's own pool.

    As many results as operand sets stay alive, so that results, too, are written to memory that no cache holds.
    """
    count = calls(len(operands), seconds)
    results: deque[Any] = deque(maxlen=len(operands))

    def enqueue() -> None:
        for number in range(count):
            results.append(call(*operands[number % len(operands)]))

    with memory or nullcontext():
        try:
            graph = captured(torch, enqueue)
        except Exception as error:  # such as an operation that synchronises with the device
            text = (str(error).splitlines() or [""])[0]
            return Replay(enqueue, count, f"eager ({type(error).__name__}: {text[:120]})", [results])
    return Replay(graph.replay, count, "graph", [graph, results, memory])


def captured(torch: Any, enqueue: Call) -> Any:
    """Return a CUDA graph of what ``enqueue`` launches on the current stream, which must not be the default stream."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="relaxed")  # CuPy may allocate memory during the capture
    try:
        enqueue()
    except BaseException:
        with suppress(Exception):  # the capture is invalid; report the first error
            graph.capture_end()
        raise
    graph.capture_end()
    return graph


def alternate(torch: Any, sides: Sequence[Replay]) -> list[list[float]]:
    """Return each side's seconds per call, one sample per round, alternating sides, after a warm-up replay of each."""
    estimates = [seconds_of(torch, side.run) for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds(sum(estimates))):
        for side, found in zip(sides, samples, strict=True):
            found.append(seconds_of(torch, side.run) / side.calls)
    return samples


def host_seconds(torch: Any, run: Call, device_seconds: float) -> float:
    """Return the host seconds of a call: the median over batches that each start with an empty stream."""
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
