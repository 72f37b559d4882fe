"""Time two callables alternately, each measurement starting from an idle process."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]
_MIN_ROUNDS, _MAX_ROUNDS = 5, 25
MIN_TURN = 0.004  # seconds; shorter calls are repeated within one measurement
_SETTLE = 0.1  # approximate seconds of `settle`, on average


def alternate(ours: Call, peer: Call, seconds: float) -> tuple[list[float], list[float]]:
    """Return seconds per call of both, one sample per round, in the order peer, ours, peer, ours …, all warmed up."""
    peer_repeats, peer_turn = _calibrate(peer)
    our_repeats, our_turn = _calibrate(ours)
    rounds = min(max(_MIN_ROUNDS, int(seconds / (peer_turn + our_turn))), _MAX_ROUNDS)
    our_samples, peer_samples = [], []
    for _ in range(rounds):
        peer_samples.append(turn(peer, peer_repeats))
        our_samples.append(turn(ours, our_repeats))
    return our_samples, peer_samples


def repeated(call: Call, seconds: float) -> list[float]:
    """Return the seconds of each of several calls, for about ``seconds`` in total and at least five calls."""
    samples: list[float] = []
    while sum(samples) < seconds or len(samples) < _MIN_ROUNDS:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def once(call: Call) -> float:
    """Return the seconds of one call, started in an idle process."""
    settle()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm(call: Call) -> float:
    """Return the mean seconds of three calls after an untimed one, started in an idle process."""
    return turn(call, 3)


def extra_memory(call: Call) -> tuple[Any, int]:
    """Return the call's result, and the peak of its allocations in bytes beyond the result."""
    tracemalloc.start()
    try:
        result = call()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, peak - kept


def _calibrate(call: Call) -> tuple[int, float]:
    """Return the number of calls per turn, and the seconds that a turn takes."""
    seconds = turn(call, 1)
    repeats = max(1, round(MIN_TURN / seconds))
    return repeats, seconds * (repeats + 1) + _SETTLE


def turn(call: Call, repeats: int) -> float:
    settle()
    call()  # wakes the worker threads and warms the caches, as a preceding layer would
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def settle(step: float = 0.02, limit: float = 0.5) -> None:
    """Wait until this process uses no CPU, at most ``limit`` seconds.

    After a call, worker threads of OpenBLAS (for about 0.1 s) and of ONNX Runtime (for up to 0.04 s) spin while they
    wait for more work, which slows whoever runs next on the same cores by up to a factor of 2. CPU time is accounted in
    ticks of up to 10 ms; a ``step`` is longer than two of them.
    """
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(step)
        if time.process_time() - used < step / 10:
            return
