"""Two callables measured in turns, each starting from an idle process."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]
_MIN_ROUNDS, _MAX_ROUNDS = 5, 25
MIN_TURN = 0.004  # seconds: calls shorter than this are repeated within a turn
_SETTLE = 0.1  # seconds: about what settle takes, on average of both sides


def alternate(ours: Call, peer: Call, seconds: float) -> tuple[list[float], list[float]]:
    """Return seconds per call of both, one sample a round: peer, ours, peer, ours …, all already warm."""
    peer_repeats, peer_turn = _calibrate(peer)
    our_repeats, our_turn = _calibrate(ours)
    rounds = min(max(_MIN_ROUNDS, int(seconds / (peer_turn + our_turn))), _MAX_ROUNDS)
    our_samples, peer_samples = [], []
    for _ in range(rounds):
        peer_samples.append(turn(peer, peer_repeats))
        our_samples.append(turn(ours, our_repeats))
    return our_samples, peer_samples


def repeated(call: Call, seconds: float) -> list[float]:
    """Return the seconds of every call for about so long, five of them at least."""
    samples: list[float] = []
    while sum(samples) < seconds or len(samples) < _MIN_ROUNDS:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def once(call: Call) -> float:
    """Return the seconds of a call, from an idle process on."""
    settle()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm(call: Call) -> float:
    """Return the seconds of a call, the mean of a few after one that is not timed, from an idle process on."""
    return turn(call, 3)


def extra_memory(call: Call) -> tuple[Any, int]:
    """Return the call's result and the most bytes it held at once on top of what it returned."""
    tracemalloc.start()
    try:
        result = call()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, peak - kept


def _calibrate(call: Call) -> tuple[int, float]:
    """Return the calls of one turn, and the seconds that the turn takes."""
    seconds = turn(call, 1)
    repeats = max(1, round(MIN_TURN / seconds))
    return repeats, seconds * (repeats + 1) + _SETTLE


def turn(call: Call, repeats: int) -> float:
    settle()
    call()  # wakes this side's threads and brings the operands into the caches, as the layer before it would
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def settle(step: float = 0.02, limit: float = 0.5) -> None:
    """Wait until this process uses no CPU.

    After a call, the worker threads of OpenBLAS (for about 0.1 s) and of ONNX Runtime (for up to 0.04 s) spin in
    wait of more work, which makes whoever runs next on the same cores up to twice as slow. Systems account CPU time
    in ticks of up to 10 ms; a step is longer than two of them.
    """
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(step)
        if time.process_time() - used < step / 10:
            return
