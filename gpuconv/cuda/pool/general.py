"""MaxPool and AveragePool with one thread per output (``pool/general.cu``): the fallback that accepts every problem.

It takes any rank, strides, dilation and padding, and 64-bit indices. Windows are clipped to the input once per axis, so
taps need no bounds check. Strides are in elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Launch, Limits, Offer, Plan, model
from gpuconv.cuda.plan.strided import axes
from gpuconv.cuda.pool.problem import AHEAD, MISSING, WIDTHS, PoolProblem, blocks_of, counted_fields, fresh
from gpuconv.rules import dtypes

NAME = "one output a thread"
_THREADS = 256
# taps per batch of loads; numbers of elements may run past a window by this many
_BATCH = structs.constant("kBatch", "pool/general.cu")
# Instructions by Indices: per output, per row of its window, per batch of loads (counted in PTX).
_INSTRUCTIONS = {False: (100, 13, 19), True: (100, 13, 37)}
_OF_AVERAGES = (165, 13, 22)  # the same for averages (estimated)
_SECTOR = 32  # bytes of one DRAM/L2 sector


# ---------------------------------------------------------------- accepted problems


def needs_wide(problem: PoolProblem) -> bool:
    """Return whether the kernel needs 64-bit indices; the faster kernels compute no larger numbers."""
    return params.needs_wide(problem.operator, [_largest(problem)])


def _largest(problem: PoolProblem) -> int:
    """Return the largest value that must fit an index."""
    return max(_magnitudes(problem))


def _magnitudes(problem: PoolProblem) -> Iterator[int]:
    """Yield every value that must fit an index.

    Offsets count elements; they are added to pointers in 64 bits. For a broadcast array the numbers of elements within
    a plane count; the step between planes is always 64 bits wide.
    """
    geometry = problem.geometry
    yield prod(geometry.y_shape)
    for axis in problem.axes:
        yield from axis.coordinates
        if problem.averages:
            yield from (axis.counted.taps, abs(axis.counted.shift), axis.counted.extent, axis.counted.dilation)
    yield params.span(geometry.x_shape, problem.x_strides)
    yield params.span(geometry.y_shape, problem.y_strides)
    yield from (abs(axis.step * axis.x) for axis in problem.axes)
    if problem.indices_strides is not None:
        yield params.span(geometry.y_shape, problem.indices_strides)
        yield prod(geometry.x_shape[2:]) + _BATCH * max(axis.step * axis.place for axis in problem.axes)


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel as the only candidate."""
    wide = needs_wide(problem)
    ndim = axes(len(problem.axes), wide, AHEAD)
    if problem.averages:
        kernel, (output, row, batch) = average_variant(problem.dtype, wide, ndim), _OF_AVERAGES
    else:
        kernel, (output, row, batch) = variant(problem.dtype, wide, ndim, problem.named), _INSTRUCTIONS[problem.named]
    *rows, taps = problem.geometry.kernel_shape
    outputs = prod(problem.geometry.y_shape)
    instructions = outputs * (output + prod(rows) * (row + batch * -(-taps // _BATCH)))
    blocks = blocks_of(kernel, outputs, instructions, _trips(problem), limits)
    time = model.streaming(blocks, problem.bytes, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, kernel, wide, ndim))


def _trips(problem: PoolProblem) -> float:
    """Return the load latencies that a thread waits for, one per batch of a row; batches in one sector count once.

    Elements shared by adjacent windows hit the caches.
    """
    *rows, width = problem.axes
    apart = problem.itemsize * (abs(width.step * width.x) or 1)  # bytes between adjacent taps
    # no other lane reads the same sector
    lone = not problem.channels_last and (width.windows == 1 or width.stride * apart >= _SECTOR)
    loads = min(-(-width.taps // _BATCH), -(-width.taps * apart // _SECTOR)) if lone else -(-width.taps // _BATCH)
    return loads * fresh(width) * prod(axis.taps * fresh(axis) for axis in rows)


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, kernel: Variant, wide: bool, ndim: int) -> Plan:
    """Return the plan of this candidate."""
    outputs = prod(problem.geometry.y_shape)
    blocks = -(-outputs // _THREADS)
    across = min(blocks, MOST_BLOCKS)
    launch = Launch(
        variant=kernel,
        grid=(across, -(-blocks // across), 1),
        shared_bytes=0,
        fields={name: value for name, value in _fields(problem, ndim).items() if name in (kernel.layout.names or ())},
        roles={name: name for name in problem.arrays},
    )
    reason = (
        f"{kernel.name}: {'channels last: ' * problem.channels_last}one output a thread, "
        f"{outputs} outputs in {blocks} blocks of {_THREADS} threads; "
        f"{64 if wide else 32}-bit indices, the largest number being {_largest(problem)}"
    )
    return Plan(problem.operator, (launch,), (reason,))


def _fields(problem: PoolProblem, ndim: int) -> dict[str, Any]:
    """Return the struct's fields for ``ndim`` spatial axes; leading axes are padded with one element."""
    image, channel, *own = problem.all_axes
    axes = [MISSING] * (ndim - len(own)) + own
    fields: dict[str, Any] = {
        "plane": problem.plane_step,
        "outputs": prod(problem.geometry.y_shape),
        "x_extent": [axis.extent for axis in axes],
        "stride": [axis.stride for axis in axes],
        "pad": [axis.pad for axis in axes],
        "reach": [axis.reach for axis in axes],
        "place_stride": [axis.place for axis in axes],
        "x_step": [axis.step * axis.x for axis in axes],
        "place_step": [axis.step * axis.place for axis in axes],
        "dilation": [axis.dilation for axis in axes],
        "y_extent": [axis.windows for axis in axes],
        "channels": channel.extent,
        "channels_last": problem.channels_last,
        "counted": counted_fields(axes),
    }
    for array in ("x", "y", "indices"):
        fields |= params.array_fields(array, [getattr(axis, array) for axis in (image, channel, *axes)])
    return fields


_KERNEL = Kernel("pool/general.cu", "max_pool", "MaxPoolParams<{index}, {rank}>", _THREADS)
_AVERAGE = replace(_KERNEL, function="average_pool", parameter="AveragePoolParams<{index}, {rank}>")


def variant(dtype: str, wide: bool, ndim: int, indices: bool) -> Variant:
    """Return the MaxPool variant for a dtype, index width, number of spatial axes, with or without Indices."""
    element, form, blocks = dtypes.entry(dtype).cuda, "indices" * indices, _blocks_per_sm(wide, ndim)
    return _KERNEL.over(dtype, ndim, form, types=(element,), sizes=(indices,), wide=wide, blocks_per_sm=blocks)


def average_variant(dtype: str, wide: bool, ndim: int) -> Variant:
    """Return the AveragePool variant for a dtype, index width and number of spatial axes."""
    return _AVERAGE.over(dtype, ndim, types=types(dtype), wide=wide, blocks_per_sm=_blocks_per_sm(wide, ndim))


def _blocks_per_sm(wide: bool, ndim: int) -> int:
    """Return the occupancy that leaves a thread its registers; every axis needs some for its strides and window."""
    if wide:
        return 2  # 128 registers per thread
    return 6 if ndim <= 3 else 4  # 40 or 64 registers per thread


def variants() -> list[Variant]:
    """Return the variants that are built ahead; those for more axes are compiled on first use."""
    kinds = product(dtypes.MAX_POOL_DTYPES, WIDTHS, (False, True))
    averages = [average_variant(dtype, *width) for dtype, width in product(dtypes.CONV_DTYPES, WIDTHS)]
    return [variant(dtype, wide, ndim, indices) for dtype, (wide, ndim), indices in kinds] + averages
