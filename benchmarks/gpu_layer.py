"""Measure one layer or gradient in one dtype, layout and precision: check both sides, then time them.

gpuconv packs the weights in every timed call. The row also has the time with weights packed before, and the times of
PyTorch's alternatives for the same result (`gpu_peers.others`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from statistics import median
from typing import Any, NamedTuple

import gpuconv
from benchmarks import calls, floors, gpu_check, gpu_peers, gpu_timing
from benchmarks.layers import Layer
from gpuconv.rules import dtypes
from gpuconv.rules.operators import OPERATORS

Row = dict[str, Any]


class Case(NamedTuple):
    """What one row measures.

    Attributes
    ----------
    layer : Layer
    dtype : str
    layout : {"NCHW", "channels_last"}
        PyTorch's name of the layout; gpuconv calls channels_last "NHWC".
    precision : {"ieee", "tf32", "3xtf32"}
        gpuconv's precision. PyTorch may use TF32 only for "tf32".
    """

    layer: Layer
    dtype: str
    layout: str = "NCHW"
    precision: str = "ieee"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device to measure on, with both libraries on one stream.

    Attributes
    ----------
    torch, cupy : module
    device : str
        PyTorch's name of the device.
    cache_bytes : int
        Size of its L2 cache.
    bandwidth : float
        Copy bandwidth in bytes per second, read and written bytes both counted.
    """

    torch: Any
    cupy: Any
    device: str
    cache_bytes: int
    bandwidth: float

    def adopt(self, tensor: Any) -> Any:
        """Return a tensor as a CuPy array that shares its memory."""
        return None if tensor is None else self.cupy.from_dlpack(tensor)

    def pool(self) -> tuple[Any, AbstractContextManager[Any]]:
        """Return a new CuPy memory pool, and the context that allocates from it."""
        pool = self.cupy.cuda.MemoryPool()
        return pool, self.cupy.cuda.using_allocator(pool.malloc)


def ours(case: Case) -> Callable[..., list[Any]]:
    """Return a function that computes the case by gpuconv's public API, from arrays in the case's layout."""
    call = calls.of(case.layer, layout_of(case))
    keywords = dict(call.keywords)
    if call.operator == "max_pool":
        keywords["return_indices"] = case.layer.indices
    if OPERATORS[call.operator].has_weights:
        keywords["precision"] = case.precision
    if "indices" in call.inputs:
        keywords["check_indices"] = False  # the check would synchronise with the device
    function = getattr(gpuconv, call.operator)
    if call.residual is not None:
        return lambda x, w, b, residual: [function(x, w, b, residual=residual, activation="relu", **keywords)]

    def run(*arrays: Any) -> list[Any]:
        result = function(*arrays, **keywords)
        return list(result) if isinstance(result, tuple) else [result]

    return run


def layout_of(case: Case) -> str:
    """Return gpuconv's name of the case's layout."""
    return "NCHW" if case.layout == "NCHW" else "NHWC"


def packed(case: Case, w: Any) -> Any:
    """Return the weights packed for the case's operator."""
    return gpuconv.pack(w, "conv" if case.layer.op == "Conv" else "conv_transpose")


def describe(case: Case, bandwidth: float) -> Row:
    """Return the fields of a row that need no measurement."""
    floor = floors.of(case.layer, case.dtype, bandwidth, case.precision)
    return {
        "layer": asdict(case.layer),
        "class": case.layer.kind,
        "dtype": case.dtype,
        "layout": case.layout,
        "precision": case.precision,
        "y": case.layer.y_shape,
        "flops": floor.flops or case.layer.flops,
        "floor_bytes": floor.nbytes,
        "floor_seconds": floor.seconds,
        "bound": floor.bound,
        "wrong": "",
    }


def measure(machine: Machine, case: Case) -> Row:
    """Check and time a case; an error of either side becomes a field of the row."""
    with gpu_peers.tf32(machine.torch, case.precision == "tf32"):
        return _measured(machine, case)


def _measured(machine: Machine, case: Case) -> Row:
    started = time.perf_counter()
    row = describe(case, machine.bandwidth)
    operands = gpu_peers.operands(machine.torch, case.layer, case.dtype, case.layout, machine.device)
    peer = gpu_peers.peer(machine.torch, case.layer)
    try:
        expected = peer(*operands)
        machine.torch.cuda.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        expected, row["peer_error"] = None, _first_line(error)
    result = _poisoned_call(machine, case, operands)
    verdict = gpu_check.compare(machine.torch, case.layer, case.dtype, operands, result, expected, case.precision)
    row |= {name: value for name, value in asdict(verdict).items() if value not in (None, "")}
    row["wrong"] = verdict.wrong
    peers = {} if expected is None else {"peer": peer, **_others(machine, case, operands, expected[0], row)}
    del result, expected, operands
    row |= _timed(machine, case, peers)
    row["row_seconds"] = time.perf_counter() - started
    return row


def _others(machine: Machine, case: Case, operands: Any, expected: Any, row: Row) -> dict[str, gpu_peers.Call]:
    """Return PyTorch's alternatives that give the same result; record in the row why the others do not."""
    right, label = {}, floors.label(case.dtype, case.precision)
    for name, call in gpu_peers.others(machine.torch, case.layer).items():
        try:
            reason = gpu_check.differs(machine.torch, label, expected, call(*operands)[0])
        except (RuntimeError, NotImplementedError) as error:
            reason = _first_line(error)
        if reason:
            row[f"{name}_error"] = reason
        else:
            right[name] = call
    return right


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"


def given(machine: Machine, case: Case, operands: tuple[Any, ...]) -> list[Any]:
    """Return PyTorch's operands as CuPy arrays for gpuconv's call: activations in its layout, w always contiguous."""
    call, named = calls.of(case.layer, layout_of(case)), gpu_peers.by_name(machine.torch, case.layer, operands)
    called = OPERATORS[call.operator]

    def ordered(name: str) -> Any:
        if not called.follows_layout(name):
            return named[name].contiguous()
        return named[name] if case.layout == "NCHW" else named[name].movedim(1, -1).contiguous()

    return [machine.adopt(ordered(name)) for name in call.arrays]


def _poisoned_call(machine: Machine, case: Case, operands: tuple[Any, ...]) -> list[Any]:
    """Call gpuconv with results in memory filled with 0xFF (NaN or -1), so that unwritten elements show.

    Returns tensors whose axes are in NCHW order.
    """
    call = calls.of(case.layer, layout_of(case))
    arrays = given(machine, case, operands)
    poison(machine.cupy, case.layer, case.dtype)
    results = map(machine.torch.from_dlpack, ours(case)(*arrays))
    last = OPERATORS[call.operator].order("out", layout_of(case)) == "NHWC"
    return [result.movedim(-1, 1) if last else result for result in results]


def poison(cupy: Any, layer: Layer, dtype: str) -> None:
    """Fill the memory that CuPy's pool will reuse for the next results with 0xFF bytes: NaN or -1."""
    taken = []
    for itemsize in (dtypes.entry(dtype).itemsize, 8)[: 1 + (layer.indices and not layer.call)]:
        nbytes = prod(calls.of(layer).result_shape) * itemsize
        taken.append(cupy.cuda.alloc(nbytes))
        taken[-1].memset_async(0xFF, nbytes)


def _timed(machine: Machine, case: Case, peers: dict[str, gpu_peers.Call]) -> Row:
    torch, layer = machine.torch, case.layer
    itemsize = dtypes.entry(case.dtype).itemsize
    count = gpu_timing.sets(layer.nbytes(itemsize) + prod(layer.w_shape) * itemsize, machine.cache_bytes)
    tensors = [gpu_peers.operands(torch, layer, case.dtype, case.layout, machine.device, seed) for seed in range(count)]
    sides = {"our": _Side(ours(case), [given(machine, case, three) for three in tensors])}
    if "w" in calls.of(layer).inputs and not layer.call:
        shared = [[x, packed(case, w), b] for x, w, b in sides["our"].operands]
        sides["packed"] = _Side(ours(case), shared)
    sides |= {name: _Side(call, tensors) for name, call in peers.items()}
    pool, memory = machine.pool()
    row: Row = {"sets": count}
    replays = []
    for name, side in sides.items():
        once = partial(side.call, *side.operands[0])
        for operands in side.operands[1:] if name == "packed" else ():
            side.call(*operands)  # packs the weights now, so that it is not captured into the graph
        estimate = _estimate(torch, once)
        replays.append(gpu_timing.prepare(torch, side.call, side.operands, estimate, None if name in peers else memory))
        row |= {f"{name}_calls": replays[-1].calls, f"{name}_way": replays[-1].how}
        row[f"{name}_host_seconds"] = gpu_timing.host_seconds(torch, once, estimate)
    for name, seconds in zip(sides, gpu_timing.alternate(torch, replays), strict=True):
        row |= {f"{name}_seconds": seconds, f"{name}_median": median(seconds)}
    if "peer" in peers:
        row["ratio"] = row["peer_median"] / row["our_median"]
    torch.cuda.synchronize()
    del replays, sides, tensors, once, side
    pool.free_all_blocks()
    return row


class _Side(NamedTuple):
    """One side of a comparison: a function, and several sets of its operands."""

    call: Callable[..., Any]
    operands: list[Any]


def _estimate(torch: Any, run: Callable[[], Any]) -> float:
    """Return the approximate device seconds of a call, after a first one that searches the algorithm."""
    run()
    return max(1e-6, gpu_timing.seconds_of(torch, run, repeats=2))
