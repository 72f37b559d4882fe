"""MaxPool with one output a thread: the kernel that accepts every problem.

The kernel is in ``kernels_cu/pool/general.cu``; strides count elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan.launch import Launch, Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer
from gpuconv.cuda.plan.strided import array_fields, axes, filled
from gpuconv.cuda.pool.problem import OPERATOR, Problem, roles, seconds, used, used_strides
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "one output a thread"
_THREADS = 256
_BATCH = structs.constant("kBatch", "pool/general.cu")  # numbers of places run up to so many taps past a window
_AHEAD = (3, 4)  # axes of kernels that are built ahead: with 32-bit indices, and with 64-bit ones
# Instructions, with Indices or without: of an output, of each of its rows, of each of their batches; counted, in PTX.
_INSTRUCTIONS = {False: (100, 13, 19), True: (100, 13, 37)}


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the one kernel.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices.
    """
    wide = needs_wide(problem)
    ndim = axes(len(problem.axes), wide, _AHEAD)
    kernel = variant(problem.dtype, wide, ndim, problem.indices_strides is not None)
    each, row, batch = _INSTRUCTIONS[problem.indices_strides is not None]
    *rows, taps = problem.geometry.kernel_shape
    instructions = prod(problem.geometry.y_shape) * (each + prod(rows) * (row + batch * -(-taps // _BATCH)))
    time = seconds(problem, instructions, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, kernel, wide, ndim))


def needs_wide(problem: Problem) -> bool:
    """Tell whether the kernel needs 64-bit indices; those for rows of neighbours compute with no larger numbers."""
    return params.needs_wide(OPERATOR, [_largest(problem)])


def _largest(problem: Problem) -> int:
    return max(_magnitudes(problem))


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/general.cu", "max_pool", "MaxPoolParams<{index}, {rank}>", _THREADS)


def variant(dtype: str, wide: bool, ndim: int, indices: bool) -> Variant:
    """Return the kernel for a dtype, an index width, a number of spatial axes, with indices or without."""
    element, form, blocks = dtypes.entry(dtype).cuda, "indices" * indices, _blocks_per_sm(wide, ndim)
    return _KERNEL.over(dtype, ndim, form, types=(element,), sizes=(indices,), wide=wide, blocks_per_sm=blocks)


def _blocks_per_sm(wide: bool, ndim: int) -> int:
    """As many as leave a thread the registers that it uses: every axis has its strides, steps and window."""
    if wide:
        return 2  # 128 registers a thread
    return 6 if ndim <= 3 else 4  # 40 or 64


def variants() -> list[Variant]:
    """Return the kernels that are built ahead; those for more axes are compiled when first needed."""
    widths = ((False, _AHEAD[0]), (False, _AHEAD[1]), (True, _AHEAD[1]))
    kinds = product(dtypes.MAX_POOL_DTYPES, widths, (False, True))
    return [variant(dtype, wide, ndim, indices) for dtype, (wide, ndim), indices in kinds]


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, kernel: Variant, wide: bool, ndim: int) -> Plan:
    outputs = prod(problem.geometry.y_shape)
    blocks = -(-outputs // _THREADS)
    across = min(blocks, MOST_BLOCKS)
    launch = Launch(
        variant=kernel,
        grid=(across, -(-blocks // across), 1),
        shared_bytes=0,
        fields=_fields(problem, ndim),
        roles=roles(problem),
    )
    reason = (
        f"{kernel.name}: {'channels last: ' * problem.channels_last}one output a thread, "
        f"{outputs} outputs in {blocks} blocks of {_THREADS} threads; "
        f"{64 if wide else 32}-bit indices, the largest number being {_largest(problem)}"
    )
    return Plan(OPERATOR, (launch,), (reason,))


def _fields(problem: Problem, ndim: int) -> dict[str, Any]:
    """Return the struct's numbers, for so many axes: those added in front have one element."""
    geometry, own = problem.geometry, problem.axes
    x_steps, place_steps = _steps(problem)
    return {
        "plane": prod(geometry.x_shape[2:]),
        "outputs": prod(geometry.y_shape),
        "x_extent": filled([axis.extent for axis in own], ndim, 1),
        "stride": filled([axis.stride for axis in own], ndim, 0),
        "pad": filled([axis.pad for axis in own], ndim, 0),
        "reach": filled([axis.reach for axis in own], ndim, 1),
        **array_fields(dict(zip(("x", "y", "indices"), used_strides(problem), strict=True)), ndim),
        "place_stride": filled(problem.place_strides, ndim, 0),
        "x_step": filled(x_steps, ndim, 0),
        "place_step": filled(place_steps, ndim, 0),
        "dilation": filled([axis.dilation for axis in own], ndim, 1),
        "y_extent": filled(geometry.y_shape[2:], ndim, 1),
        "channels": geometry.y_shape[1],
        "channels_last": problem.channels_last,
    }


def _steps(problem: Problem) -> tuple[Ints, Ints]:
    """Return the steps from one tap to the next on each spatial axis: in x, and of the numbers of its elements."""
    steps = [axis.step for axis in problem.axes]
    x_strides = used(problem.geometry.x_shape, problem.x_strides)[2:]
    x, places = (
        tuple(step * stride for step, stride in zip(steps, strides, strict=True))
        for strides in (x_strides, problem.place_strides)
    )
    return x, places


def _magnitudes(problem: Problem) -> Iterator[int]:
    """Yield what must fit into an index.

    Offsets count elements, not bytes: the kernel adds them to pointers, which is done in 64 bits. A broadcast array has
    more elements than memory, and what counts there are their numbers within a plane (and ``plane``, always 64 bits).
    """
    geometry = problem.geometry
    x_steps, place_steps = _steps(problem)
    yield prod(geometry.y_shape)
    for axis in problem.axes:
        yield from axis.coordinates
    yield params.span(geometry.x_shape, problem.x_strides)
    yield params.span(geometry.y_shape, problem.y_strides)
    yield from (abs(step) for step in x_steps)
    if problem.indices_strides is not None:
        yield params.span(geometry.y_shape, problem.indices_strides)
        yield prod(geometry.x_shape[2:]) + _BATCH * max(place_steps)
