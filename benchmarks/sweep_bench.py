"""The GPU that ``benchmarks.sweep`` measures on, by CuPy only: operands, gpuconv calls, and graphs of calls.

A graph has one set of operands per call, and the L2 cache is flushed before each replay, so that calls find no inputs
cached. Timed operands are normal numbers, since a GPU may run faster on whole ones, which toggle fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from benchmarks import calls, gpu_arrays, gpu_layer, gpu_timing
from benchmarks.static_plan import Case
from gpuconv.cuda.call import device
from gpuconv.cuda.call.prepared import Prepared, Result
from gpuconv.cuda.plan.launch import Plan
from gpuconv.rules import dtypes, layout, whole_numbers
from gpuconv.rules.operators import OPERATORS

_REPLAY = 2e-4  # target seconds of one replay
_MOST_SETS = 16
_MOST_BYTES = 2**31  # most bytes of all operand sets
_MOST_KEPT = 2**34  # bytes in CuPy's pool above which it is emptied
_RELAXED = 2  # cudaStreamCaptureModeRelaxed: CuPy may allocate memory during the capture


def sets(seconds: float, nbytes: int) -> int:
    """Return how many operand sets to make for calls of ``seconds`` with arrays of ``nbytes``."""
    return max(1, min(_MOST_SETS, ceil(_REPLAY / max(seconds, 1e-7)), _MOST_BYTES // max(1, nbytes)))


@dataclass(frozen=True, slots=True)
class _Call:
    prepared: Prepared
    outs: tuple[None, ...]

    def __call__(self, operands: list[Any]) -> list[Any]:
        return self.prepared.run(operands, self.outs)


@dataclass(frozen=True, slots=True)
class _Replay:
    """A graph of several calls, with the results they write."""

    bench: DeviceBench
    graph: Any
    calls: int
    results: list[Any]

    def __call__(self) -> float:
        return self.bench.seconds(self.graph.launch) / self.calls


class DeviceBench:
    """Implements ``sweep.Bench`` on the current CUDA device."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self._here = device.current_device()
        self.limits = device.limits(self._here)
        self._flush = cupy.empty(gpu_timing.CACHES * cupy.cuda.Device().attributes["L2CacheSize"], np.int8)
        self._operands: list[list[Any]] = []
        self._exact: list[Any] = []

    def load(self, case: Case, seconds: float) -> None:
        """Make one set of whole numbers, and a set of normal numbers per call of a graph."""
        self._operands, self._exact = [], []
        self._make_room()
        self._case, self._call = case, calls.of(case.layer, case.layout)
        nbytes = case.layer.nbytes(dtypes.entry(case.dtype).itemsize)
        count = sets(seconds, nbytes)
        self._operands = [self._made(seed) for seed in range(count)]
        sizes = [prod(shape) for name, shape in self._call.inputs.items() if name != "indices"]
        most = whole_numbers.largest(case.dtype, case.precision, min(sizes[:2]))  # keeps sums of products exact
        self._exact = self._made(count, most)

    def prepare(self, plan: Plan) -> _Call:
        """Load the plan's kernels."""
        called, operator = OPERATORS[self._call.operator], self._call.operator
        shape = layout.as_given(called.order("out", self._case.layout), self._call.result_shape)
        kinds = [("y", "out", self._exact[0].dtype)]
        if self._returns_indices:
            kinds.append(("indices", "out[1]", np.dtype(np.int64)))
        results = [Result(role, name, shape, kind) for role, name, kind in kinds]
        inputs = dict(zip(self._call.inputs, self._exact, strict=True))
        outs = (None,) * len(results)
        made = replace(plan, operator=operator)
        return _Call(Prepared(self._here, made, inputs, called.inputs, results, outs), outs)

    def result(self, call: _Call) -> tuple[Any, float]:
        """Run once on whole numbers into memory filled with NaN or -1; flushing the L2 cache before hides the host's
        time."""
        gpu_layer.poison(self.cupy, self._case.layer, self._case.dtype)
        found: list[Any] = []
        seconds = self.seconds(lambda: found.extend(call(self._exact)))
        return found, seconds

    def differing(self, result: Any, reference: Any) -> tuple[int, int]:
        """Count on the device."""
        pairs = list(zip(result, reference, strict=True))
        return sum(int((a != b).sum()) for a, b in pairs), sum(a.size for a, _ in pairs)

    def replay(self, call: _Call, seconds: float) -> Callable[[], float]:
        """Capture one call per operand set, or fewer for long calls."""
        chosen = self._operands[: sets(seconds, 0)]
        kept: list[Any] = []

        def enqueue() -> None:
            kept.extend(call(operands) for operands in chosen)

        graph = captured(self.cupy, enqueue)
        graph.launch()  # the first launch also uploads the graph
        return _Replay(self, graph, len(chosen), kept)

    def alive(self) -> bool:
        """Synchronise with the device and return whether that worked."""
        try:
            self.cupy.cuda.Device().synchronize()
        except self.cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    @property
    def _returns_indices(self) -> bool:
        return self._case.layer.indices and not self._case.layer.call

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the device seconds of a run with a flushed L2 cache."""
        begin, end = (self.cupy.cuda.Event() for _ in range(2))
        self._flush.data.memset_async(0, self._flush.nbytes)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def _make_room(self) -> None:
        """Empty CuPy's memory pool if it holds more than `_MOST_KEPT` bytes."""
        pool = self.cupy.get_default_memory_pool()
        if pool.total_bytes() > _MOST_KEPT:
            pool.free_all_blocks()

    def _made(self, seed: int, most: int = 0) -> list[Any]:
        case = self._case
        return list(gpu_arrays.operands(self.cupy, case.layer, case.dtype, case.layout, seed, most).values())


@contextmanager
def opened() -> Iterator[DeviceBench]:
    """Yield a bench on the current device, on a stream that can be captured."""
    import cupy  # type: ignore[import-not-found]

    with cupy.cuda.Stream(non_blocking=True):
        yield DeviceBench(cupy)


def captured(cupy: Any, enqueue: Callable[[], Any]) -> Any:
    """Return a CUDA graph of what ``enqueue`` launches on the current stream, which must not be the default stream."""
    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    stream.begin_capture(_RELAXED)
    try:
        enqueue()
    except BaseException:
        with suppress(Exception):  # the capture is invalid; report the first error
            stream.end_capture()
        raise
    return stream.end_capture()
