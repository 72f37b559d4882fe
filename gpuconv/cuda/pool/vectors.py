"""MaxPool and AveragePool with 2 × 2 or 3 × 3 windows over contiguous rows of whole vectors (``pool/vectors.cu``).

The common windows of networks: 2 × 2 with stride 2, 3 × 3 with stride 1 or 2. A thread loads 16-byte vectors of a strip
of rows and exchanges columns with neighbouring lanes by shuffles. So every element is loaded once per strip, and memory
bandwidth is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal, model
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import PoolProblem, PoolView, blocks_of, one_launch, rows_of
from gpuconv.rules import dtypes

NAME = "vectors"
_THREADS, _LANES = 128, 32
STRIPS = {(2, 2): 4, (3, 2): 4, (3, 1): 4}  # (window size, stride) → rows of y per thread
_BLOCKS_PER_SM = {False: 4, True: 5}  # by Indices: 128 or 96 registers per thread; 128 for 1-byte elements
# Instructions by Indices: per thread, and per vector it loads (estimated). 1-byte elements without Indices differ.
_INSTRUCTIONS = {False: (120, 35), True: (200, 85)}
_OF_BYTES = 95
_OF_AVERAGES = {2: (330, 60), 4: (240, 34), 8: (260, 60)}  # bytes per element → the same for averages (estimated)


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolProblem) -> PoolView | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    rows = rows_of(problem)
    if isinstance(rows, str):
        return rows
    height, width = rows.height, rows.width
    square = (height.reach, height.stride) == _window(rows)
    if not square or _window(rows) not in STRIPS or width.pad > width.reach - width.stride:
        return (
            f"windows of {height.reach} x {width.reach}, {height.stride} x {width.stride} apart, padded by {width.pad}"
        )
    vector = _vector(problem, rows)
    if any(number % vector for number in (width.extent, *rows.strides("x")[:-1])):
        return f"rows are not made of whole vectors of {vector} elements"
    if general.needs_wide(problem) or _blocks(rows, vector) > MOST_BLOCKS:
        return "64-bit indices"
    return rows


# ---------------------------------------------------------------- tiles


def _vector(problem: PoolProblem, rows: PoolView) -> int:
    """Return the elements per vector: 16 bytes, or with Indices the columns of two outputs."""
    most = 16 // problem.itemsize
    return min(2 * rows.width.stride, most) if problem.named else most


def _window(rows: PoolView) -> tuple[int, int]:
    """Return the window's size and stride along W."""
    return rows.width.reach, rows.width.stride


def _vectors(rows: PoolView, vector: int) -> int:
    """Return the vectors per row that some output reads, or that outputs are numbered by."""
    width = rows.width
    end = (width.windows - 1) * width.stride - width.pad + width.reach
    return -(-max(width.windows * width.stride, min(end, width.extent)) // vector)


def _items(rows: PoolView, vector: int) -> int:
    """Return the threads with outputs: strips × vectors of all rows."""
    strips = -(-rows.height.windows // STRIPS[_window(rows)])
    return rows.planes * rows.depth.windows * strips * _vectors(rows, vector)


def _blocks(rows: PoolView, vector: int) -> int:
    """Return the blocks of the launch."""
    width = rows.width
    # lanes per warp that only pass columns to their neighbours
    helping = (width.pad > 0) + (width.reach - width.stride > width.pad)
    warps = -(-_items(rows, vector) // (_LANES - helping))
    return -(-warps // (_THREADS // _LANES))


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel for the window's size and stride, or why it does not accept the problem."""
    rows = _accepted(problem)
    if isinstance(rows, str):
        yield Refusal(rows)
        return
    threads = _blocks(rows, _vector(problem, rows)) * _THREADS
    if problem.averages:
        kernel, (thread, vector) = average_variant(problem.dtype, *_window(rows)), _OF_AVERAGES[problem.itemsize]
    else:
        kernel, (thread, vector) = variant(problem.dtype, problem.named, *_window(rows)), _INSTRUCTIONS[problem.named]
    if problem.itemsize == 1 and not problem.named:
        vector = _OF_BYTES
    height = rows.height
    loads = (STRIPS[_window(rows)] * height.stride + height.reach - height.stride) * rows.depth.reach
    blocks = blocks_of(kernel, threads, threads * (thread + vector * loads), rows.depth.reach, limits)
    time = model.streaming(blocks, problem.bytes, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, rows: PoolView, kernel: Variant) -> Plan:
    """Return the plan of this candidate."""
    vector, strip = _vector(problem, rows), STRIPS[_window(rows)]
    fields = rows.fields(kernel) | {
        "items": _items(rows, vector),
        "kernel": rows.depth.reach,
        "stride": rows.depth.stride,
        "vectors": _vectors(rows, vector),
        "strips": -(-rows.height.windows // strip),
        "depths": rows.depth.windows,
    }
    blocks = _blocks(rows, vector)
    reason = (
        f"{vector // rows.width.stride} x {strip} outputs a thread, from rows of {_vectors(rows, vector)} "
        f"vectors; {prod(problem.geometry.y_shape)} outputs in {blocks} blocks of {_THREADS} threads"
    )
    return one_launch(problem, kernel, blocks, 0, fields, reason)


_KERNEL = Kernel("pool/vectors.cu", "max_pool_vectors", "VectorPoolParams", _THREADS, name="max_pool")
_AVERAGE = replace(_KERNEL, function="average_pool_vectors", parameter="AverageVectorPoolParams", name="average_pool")
_PAIRS = replace(_KERNEL, function="max_pool_pairs")  # the form with Indices


def variant(dtype: str, indices: bool, size: int, stride: int) -> Variant:
    """Return the MaxPool variant for a dtype, with or without Indices, and for a window's size and stride."""
    return (_PAIRS if indices else _KERNEL).over(
        *(dtype, 3, f"vectors_{size}x{stride}", "indices" * indices),
        types=(dtypes.entry(dtype).cuda,),
        sizes=(size, stride, STRIPS[size, stride]),
        blocks_per_sm=_BLOCKS_PER_SM[indices and dtypes.entry(dtype).itemsize > 1],
    )


def average_variant(dtype: str, size: int, stride: int) -> Variant:
    """Return the AveragePool variant for a dtype and a window's size and stride."""
    return _AVERAGE.over(
        *(dtype, 3, f"vectors_{size}x{stride}"),
        types=types(dtype),
        sizes=(size, stride, STRIPS[size, stride]),
        blocks_per_sm=_BLOCKS_PER_SM[False],
    )


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    maxima = product(dtypes.MAX_POOL_DTYPES, (False, True), STRIPS)
    averages = product(dtypes.CONV_DTYPES, STRIPS)
    return [
        *(variant(dtype, indices, *window) for dtype, indices, window in maxima),
        *(average_variant(dtype, *window) for dtype, window in averages),
    ]
