"""The GPU that ``benchmarks.sweep`` measures on: operands by PyTorch, calls by gpuconv, graphs of calls in turns.

A graph has a set of operands for each of its calls, and other data fill the L2 cache before every replay, so that no
call finds its inputs there. Timed operands are normal numbers: a device may run faster on whole ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from benchmarks import calls, gpu_layer, gpu_peers, gpu_timing
from benchmarks.gpu_layer import Machine
from benchmarks.static_plan import Case
from gpuconv.cuda.call import device
from gpuconv.cuda.call.prepared import Prepared, Result
from gpuconv.cuda.plan.launch import Plan
from gpuconv.rules import dtypes, layout, whole_numbers
from gpuconv.rules.operators import OPERATORS

_REPLAY = 2e-4  # seconds of a replay, or one call
_MOST_SETS = 16
_MOST_BYTES = 2**31  # of all sets
_MOST_KEPT = 2**34  # bytes that PyTorch's and CuPy's pools hold together


def sets(seconds: float, nbytes: int) -> int:
    """Return how many sets of operands to make, where a call takes so long and its arrays have so many bytes."""
    return max(1, min(_MOST_SETS, ceil(_REPLAY / max(seconds, 1e-7)), _MOST_BYTES // max(1, nbytes)))


@dataclass(frozen=True, slots=True)
class _Call:
    prepared: Prepared
    outs: tuple[None, ...]

    def __call__(self, operands: list[Any]) -> list[Any]:
        return self.prepared.run(operands, self.outs)


@dataclass(frozen=True, slots=True)
class _Replay:
    """A graph of some calls, with what these write."""

    bench: DeviceBench
    graph: Any
    calls: int
    results: list[Any]

    def __call__(self) -> float:
        return self.bench.seconds(self.graph.replay) / self.calls


class DeviceBench:
    """See ``sweep.Bench``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._here = device.current_device()
        self.limits = device.limits(self._here)
        self._flush = machine.torch.empty(
            gpu_timing.CACHES * machine.cache_bytes, dtype=machine.torch.int8, device=machine.device
        )
        self._operands: list[list[Any]] = []
        self._exact: list[Any] = []

    def load(self, case: Case, seconds: float) -> None:
        """Make whole numbers, and as many sets of normal ones as a graph has calls."""
        self._operands, self._exact = [], []
        self._make_room()
        self._case, self._call = case, calls.of(case.layer, case.layout)
        nbytes = case.layer.nbytes(dtypes.entry(case.dtype).itemsize)
        count = sets(seconds, nbytes)
        self._operands = [self._given(self._normal(seed)) for seed in range(count)]
        self._exact = self._given(self._whole(self._normal(count)))

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
        """Run once on whole numbers, into memory that holds NaN or -1; the cache filled before hides the host."""
        self._poison()
        found: list[Any] = []
        seconds = self.seconds(lambda: found.extend(call(self._exact)))
        return [self._machine.torch.from_dlpack(array) for array in found], seconds

    def differing(self, result: Any, reference: Any) -> tuple[int, int]:
        """Count on the device."""
        pairs = list(zip(result, reference, strict=True))
        return sum(int((a != b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)

    def replay(self, call: _Call, seconds: float) -> Callable[[], float]:
        """Capture a call of each set of operands, or of fewer."""
        chosen = self._operands[: sets(seconds, 0)]
        kept: list[Any] = []

        def enqueue() -> None:
            kept.extend(call(operands) for operands in chosen)

        graph = gpu_timing.captured(self._machine.torch, enqueue)
        graph.replay()  # the first time it is also uploaded
        return _Replay(self, graph, len(chosen), kept)

    def alive(self) -> bool:
        """Ask the device."""
        try:
            self._machine.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    @property
    def _returns_indices(self) -> bool:
        return self._case.layer.indices and not self._case.layer.call

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the time of a run that finds other data in the L2 cache."""
        self._flush.zero_()
        return gpu_timing.seconds_of(self._machine.torch, run)

    def _make_room(self) -> None:
        """Let go of what either library keeps for later, which the other one cannot have, where that is much."""
        cuda, pool = self._machine.torch.cuda, self._machine.cupy.get_default_memory_pool()
        if cuda.memory_reserved() + pool.total_bytes() > _MOST_KEPT:
            pool.free_all_blocks()
            cuda.empty_cache()

    def _poison(self) -> None:
        """Fill memory which CuPy's pool gives to the next results."""
        taken = []
        for itemsize in (dtypes.entry(self._case.dtype).itemsize, 8)[: 1 + self._returns_indices]:
            nbytes = prod(self._call.result_shape) * itemsize
            taken.append(self._machine.cupy.cuda.alloc(nbytes))
            taken[-1].memset_async(0xFF, nbytes)

    def _normal(self, seed: int) -> tuple[Any, ...]:
        machine, case = self._machine, self._case
        return gpu_peers.operands(machine.torch, case.layer, case.dtype, "NCHW", machine.device, seed)

    def _given(self, operands: tuple[Any, ...]) -> list[Any]:
        case = gpu_layer.Case(self._case.layer, self._case.dtype, self._case.layout, self._case.precision)
        return gpu_layer.given(self._machine, case, operands)

    def _whole(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return whole numbers in place of all but integers, so large that sums of their products are exact."""
        torch, case = self._machine.torch, self._case
        sizes = [prod(shape) for name, shape in self._call.inputs.items() if name != "indices"]
        most = whole_numbers.largest(case.dtype, case.precision, min(sizes[:2]))

        return tuple(whole(torch, array, most) for array in operands)


def whole(torch: Any, array: Any, most: int) -> Any:
    """Return random whole numbers up to a largest one in place of an array that is not of integers."""
    if array is None or not (array.is_floating_point() or array.is_complex()):
        return array
    made = torch.empty_like(array)
    parts = torch.view_as_real(made) if array.is_complex() else made
    parts.copy_(torch.randint(-most, most + 1, parts.shape, device=parts.device))
    return made
