"""MaxPool over rows of whole vectors: the windows of nearly every network.

The kernel is in ``kernels_cu/pool/vectors.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import Problem, Rows, one_launch, rows_of, seconds
from gpuconv.rules import dtypes

NAME = "vectors"
_THREADS, _LANES = 128, 32
STRIPS = {(2, 2): 4, (3, 2): 4, (3, 1): 4}  # rows of y that a thread makes, by the window's size and stride
_BLOCKS_PER_SM = {False: 4, True: 5}  # with Indices or without: 128 or 96 registers a thread; of bytes 128
# Instructions, with Indices or without: of a thread, and of each of its vectors (of bytes: without Indices); estimated.
_INSTRUCTIONS = {False: (120, 35), True: (200, 85)}
_OF_BYTES = 95


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel for the window, if there is one."""
    rows = _accepted(problem)
    if isinstance(rows, str):
        yield Refusal(rows)
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices, *_window(rows))
    threads = _blocks(rows, _vector(problem, rows)) * _THREADS
    each, vector = _INSTRUCTIONS[indices]
    if dtypes.entry(problem.dtype).itemsize == 1 and not indices:
        vector = _OF_BYTES
    loads = (STRIPS[_window(rows)] * rows.stride[1] + rows.kernel[1] - rows.stride[1]) * rows.kernel[0]
    time = seconds(problem, threads * (each + vector * loads), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, kernel))


def _accepted(problem: Problem) -> Rows | str:
    rows = rows_of(problem)
    if isinstance(rows, str):
        return rows
    (_, height, width), (_, stride, across), pad = rows.kernel, rows.stride, rows.pad[2]
    if height != width or stride != across or (height, stride) not in STRIPS or pad > width - across:
        return f"windows of {height} x {width}, {stride} x {across} apart, padded by {pad}"
    vector = _vector(problem, rows)
    if rows.x_extent[2] % vector or any(one % vector for one in rows.x_strides):
        return f"rows are not made of whole vectors of {vector} elements"
    if general.needs_wide(problem) or _blocks(rows, vector) > MOST_BLOCKS:
        return "64-bit indices"
    return rows


def _vector(problem: Problem, rows: Rows) -> int:
    """Elements of a vector: of 16 bytes or, with Indices, those of two outputs."""
    most = 16 // dtypes.entry(problem.dtype).itemsize
    return most if problem.indices_strides is None else min(2 * rows.stride[2], most)


def _window(rows: Rows) -> tuple[int, int]:
    return rows.kernel[2], rows.stride[2]


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/vectors.cu", "max_pool_vectors", "VectorPoolParams", _THREADS, name="max_pool")
_PAIRS = replace(_KERNEL, function="max_pool_pairs")  # with Indices


def variant(dtype: str, indices: bool, size: int, stride: int) -> Variant:
    """Return the kernel for a dtype, with indices or without, for a window's height and width, and its stride."""
    return (_PAIRS if indices else _KERNEL).over(
        *(dtype, 3, f"vectors_{size}x{stride}", "indices" * indices),
        types=(dtypes.entry(dtype).cuda,),
        sizes=(size, stride, STRIPS[size, stride]),
        blocks_per_sm=_BLOCKS_PER_SM[indices and dtypes.entry(dtype).itemsize > 1],
    )


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [
        variant(dtype, indices, *window)
        for dtype, indices, window in product(dtypes.MAX_POOL_DTYPES, (False, True), STRIPS)
    ]


# ---------------------------------------------------------------- launches


def _vectors(rows: Rows, vector: int) -> int:
    """Vectors of a row that an output is made from, or is numbered by."""
    size, stride = _window(rows)
    outputs, end = rows.y_extent[2], (rows.y_extent[2] - 1) * stride - rows.pad[2] + size
    return -(-max(outputs * stride, min(end, rows.x_extent[2])) // vector)


def _items(rows: Rows, vector: int) -> int:
    strips = -(-rows.y_extent[1] // STRIPS[_window(rows)])
    return rows.planes * rows.y_extent[0] * strips * _vectors(rows, vector)


def _blocks(rows: Rows, vector: int) -> int:
    size, stride = _window(rows)
    helping = (rows.pad[2] > 0) + (size - stride > rows.pad[2])  # lanes of each warp
    warps = -(-_items(rows, vector) // (_LANES - helping))
    return -(-warps // (_THREADS // _LANES))


def _plan(problem: Problem, rows: Rows, kernel: Variant) -> Plan:
    fields, layout, vector = rows.fields(), kernel.layout, _vector(problem, rows)
    strip = STRIPS[_window(rows)]
    chosen = {name: fields[name] for name in fields if name in (layout.names or ())}
    chosen |= {
        "plane": prod(rows.x_extent),
        "items": _items(rows, vector),
        "kernel": rows.kernel[0],
        "stride": rows.stride[0],
        "vectors": _vectors(rows, vector),
        "strips": -(-rows.y_extent[1] // strip),
        "depths": rows.y_extent[0],
        "channels": rows.channels,
    }
    blocks = _blocks(rows, vector)
    reason = (
        f"{vector // rows.stride[2]} x {strip} outputs a thread, from rows of {_vectors(rows, vector)} "
        f"vectors; {prod(problem.geometry.y_shape)} outputs in {blocks} blocks of {_THREADS} threads"
    )
    return one_launch(problem, kernel, blocks, 0, chosen, reason)
