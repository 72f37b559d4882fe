"""MaxPool and AveragePool with one output a thread: the kernels that accept every problem.

The kernel is in ``kernels_cu/pool/general.cu``; strides count elements.
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
_BATCH = structs.constant("kBatch", "pool/general.cu")  # numbers of places run up to so many taps past a window
# Instructions, with Indices or without: of an output, of each of its rows, of each of their batches; counted, in PTX.
_INSTRUCTIONS = {False: (100, 13, 19), True: (100, 13, 37)}
_OF_AVERAGES = (165, 13, 22)  # estimated
_SECTOR = 32  # bytes that memory is read in


# ---------------------------------------------------------------- what it sees


def needs_wide(problem: PoolProblem) -> bool:
    """Tell whether the kernel needs 64-bit indices; those for rows of neighbours compute with no larger numbers."""
    return params.needs_wide(problem.operator, [_largest(problem)])


def _largest(problem: PoolProblem) -> int:
    return max(_magnitudes(problem))


def _magnitudes(problem: PoolProblem) -> Iterator[int]:
    """Yield what must fit into an index.

    Offsets count elements, not bytes: the kernel adds them to pointers, which is done in 64 bits. A broadcast array has
    more elements than memory, and what counts there are their numbers within a plane (and ``plane``, always 64 bits).
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
    """Return how often a thread waits for memory: once for a batch of a row, or for all batches that one sector has.

    What neighbouring windows have in common comes from the caches.
    """
    *rows, width = problem.axes
    apart = problem.itemsize * (abs(width.step * width.x) or 1)  # bytes from tap to tap
    lone = not problem.channels_last and (width.windows == 1 or width.stride * apart >= _SECTOR)  # no lane shares it
    loads = min(-(-width.taps // _BATCH), -(-width.taps * apart // _SECTOR)) if lone else -(-width.taps // _BATCH)
    return loads * fresh(width) * prod(axis.taps * fresh(axis) for axis in rows)


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, kernel: Variant, wide: bool, ndim: int) -> Plan:
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
    """Return the struct's numbers, for so many axes: those added in front have one element."""
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
    """Return the kernel for a dtype, an index width, a number of spatial axes, with indices or without."""
    element, form, blocks = dtypes.entry(dtype).cuda, "indices" * indices, _blocks_per_sm(wide, ndim)
    return _KERNEL.over(dtype, ndim, form, types=(element,), sizes=(indices,), wide=wide, blocks_per_sm=blocks)


def average_variant(dtype: str, wide: bool, ndim: int) -> Variant:
    """Return the kernel of averages for a dtype, an index width and a number of spatial axes."""
    return _AVERAGE.over(dtype, ndim, types=types(dtype), wide=wide, blocks_per_sm=_blocks_per_sm(wide, ndim))


def _blocks_per_sm(wide: bool, ndim: int) -> int:
    """Return the blocks that leave a thread the registers that it uses: every axis has its strides and window."""
    if wide:
        return 2  # 128 registers a thread
    return 6 if ndim <= 3 else 4  # 40 or 64


def variants() -> list[Variant]:
    """Return the kernels that are built ahead; those for more axes are compiled when first needed."""
    kinds = product(dtypes.MAX_POOL_DTYPES, WIDTHS, (False, True))
    averages = [average_variant(dtype, *width) for dtype, width in product(dtypes.CONV_DTYPES, WIDTHS)]
    return [variant(dtype, wide, ndim, indices) for dtype, (wide, ndim), indices in kinds] + averages
