"""One layer in one dtype and memory layout: both sides checked, then timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from statistics import median
from typing import Any

import gpuconv
from benchmarks import floors, gpu_check, gpu_peers, gpu_timing
from benchmarks.layers import Layer
from gpuconv import _dtypes

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to measure: both libraries on one stream of one device.

    Attributes
    ----------
    torch, cupy : module
    device : str
        PyTorch's name of it.
    cache_bytes : int
        Of its L2 cache.
    bandwidth : float
        Of a copy, in bytes read and bytes written per second.
    """

    torch: Any
    cupy: Any
    device: str
    cache_bytes: int
    bandwidth: float

    def adopt(self, tensor: Any) -> Any:
        """Return a tensor as a CuPy array of the same memory."""
        return None if tensor is None else self.cupy.from_dlpack(tensor)

    def pool(self) -> tuple[Any, AbstractContextManager[Any]]:
        """Return a new pool of CuPy's, and the context in which results come from it."""
        pool = self.cupy.cuda.MemoryPool()
        return pool, self.cupy.cuda.using_allocator(pool.malloc)


def ours(layer: Layer) -> Callable[..., list[Any]]:
    """Return the layer as a function of x, w, b and ``out``, by gpuconv's public functions."""
    attributes = layer.attributes()

    def pool(x: Any, w: None, b: None, out: Any = None) -> list[Any]:
        result = gpuconv.max_pool(x, return_indices=layer.indices, out=out, **attributes)
        return list(result) if layer.indices else [result]

    if layer.op == "MaxPool":
        return pool
    function = gpuconv.conv if layer.op == "Conv" else gpuconv.conv_transpose
    return lambda x, w, b, out=None: [function(x, w, b, out=out, **attributes)]


def describe(layer: Layer, dtype: str, layout: str, bandwidth: float) -> Row:
    """Return the part of a row that needs no measurement."""
    floor = floors.of(layer, dtype, bandwidth)
    return {
        "layer": asdict(layer),
        "class": layer.kind,
        "dtype": dtype,
        "layout": layout,
        "y": layer.y_shape,
        "flops": layer.flops,
        "floor_bytes": floor.nbytes,
        "floor_seconds": floor.seconds,
        "bound": floor.bound,
        "wrong": "",
    }


def measure(machine: Machine, layer: Layer, dtype: str, layout: str) -> Row:
    """Check and time a layer; what goes wrong on either side is in the row."""
    started = time.perf_counter()
    row = describe(layer, dtype, layout, machine.bandwidth)
    operands = gpu_peers.operands(machine.torch, layer, dtype, layout, machine.device)
    peer = gpu_peers.peer(machine.torch, layer)
    try:
        expected = peer(*operands)
        machine.torch.cuda.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        expected, row["peer_error"] = None, _first_line(error)
    result = _poisoned_call(machine, layer, dtype, layout, operands)
    verdict = gpu_check.compare(machine.torch, layer, dtype, operands, result, expected)
    row |= {name: value for name, value in asdict(verdict).items() if value not in (None, "")}
    row["wrong"] = verdict.wrong
    del result, expected, operands
    row |= _timed(machine, layer, dtype, layout, with_peer="peer_error" not in row)
    row["row_seconds"] = time.perf_counter() - started
    return row


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"


def _outs(machine: Machine, layer: Layer, dtype: str, layout: str) -> Any:
    """Return channels_last arrays for our results, which otherwise are new and C-contiguous."""
    if layout == "NCHW":
        return None
    torch = machine.torch
    form = gpu_peers.memory_format(torch, layer, layout)
    kinds = (getattr(torch, dtype), torch.int64)[: 1 + layer.indices]
    arrays = [torch.empty(layer.y_shape, dtype=kind, device=machine.device, memory_format=form) for kind in kinds]
    outs = tuple(map(machine.adopt, arrays))
    return outs if layer.indices else outs[0]


def _poisoned_call(machine: Machine, layer: Layer, dtype: str, layout: str, operands: tuple[Any, ...]) -> list[Any]:
    """Call ours in memory of ones (NaN, or -1), so that what is not written shows; return tensors."""
    outs = _outs(machine, layer, dtype, layout)
    taken = []
    for number, itemsize in enumerate((_dtypes.entry(dtype).itemsize, 8)[: 1 + layer.indices]):
        nbytes = prod(layer.y_shape) * itemsize
        if outs is None:
            taken.append(machine.cupy.cuda.alloc(nbytes))
        else:
            taken.append((outs[number] if layer.indices else outs).data)
        taken[-1].memset_async(0xFF, nbytes)
    del taken  # where there is no out, CuPy's pool gives this memory to the results next
    results = ours(layer)(*map(machine.adopt, operands), outs)
    return [machine.torch.from_dlpack(result) for result in results]


def _timed(machine: Machine, layer: Layer, dtype: str, layout: str, with_peer: bool) -> Row:
    torch = machine.torch
    itemsize = _dtypes.entry(dtype).itemsize
    count = gpu_timing.sets(layer.nbytes(itemsize) + prod(layer.w_shape) * itemsize, machine.cache_bytes)
    tensors = [gpu_peers.operands(torch, layer, dtype, layout, machine.device, seed) for seed in range(count)]
    outs = [_outs(machine, layer, dtype, layout) for _ in range(count)]
    arrays = [(*map(machine.adopt, three), out) for three, out in zip(tensors, outs, strict=True)]
    call, peer = ours(layer), gpu_peers.peer(torch, layer)
    pool, memory = machine.pool()
    once = partial(call, *arrays[0])
    estimate = _estimate(torch, once)
    sides = [gpu_timing.prepare(torch, call, arrays, estimate, memory)]
    row: Row = {"sets": count, "our_calls": sides[0].calls, "our_way": sides[0].how}
    row["our_host_seconds"] = gpu_timing.host_seconds(torch, once, estimate)
    if with_peer:
        peer_once = partial(peer, *tensors[0])
        peer_estimate = _estimate(torch, peer_once)
        sides.insert(0, gpu_timing.prepare(torch, peer, tensors, peer_estimate))
        row |= {"peer_calls": sides[0].calls, "peer_way": sides[0].how}
        row["peer_host_seconds"] = gpu_timing.host_seconds(torch, peer_once, peer_estimate)
    *peer_times, our_times = gpu_timing.alternate(torch, sides)
    row |= {"our_seconds": our_times, "our_median": median(our_times)}
    if with_peer:
        row |= {"peer_seconds": peer_times[0], "peer_median": median(peer_times[0])}
        row["ratio"] = row["peer_median"] / row["our_median"]
    torch.cuda.synchronize()
    del sides, arrays, outs, once
    pool.free_all_blocks()
    return row


def _estimate(torch: Any, run: Callable[[], Any]) -> float:
    """Return about how long a call takes on the device; the first one, which finds the algorithm, does not count."""
    run()
    return max(1e-6, gpu_timing.seconds_of(torch, run, repeats=2))
