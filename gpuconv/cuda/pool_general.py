"""MaxPool with one output a thread: the kernel that accepts every problem.

The kernel is in ``kernels_cu/max_pool.cu``; strides count elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from gpuconv import _dtypes
from gpuconv.cuda import params, structs
from gpuconv.cuda.launching import MOST_BLOCKS
from gpuconv.cuda.offers import Candidate, Offer
from gpuconv.cuda.plan import Launch, Limits, Plan
from gpuconv.cuda.pool_problem import (
    OPERATOR,
    Problem,
    roles,
    seconds,
    used,
)
from gpuconv.cuda.variant import Kernel, Variant

NAME = "one output a thread"
_THREADS = 256
_BATCH = structs.constant("kBatch", "max_pool.cu")  # numbers of places run up to so many taps past a window
_RANKS = (1, 2, 3, 4)
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
    kernel = variant(problem.dtype, wide, len(problem.axes), problem.indices_strides is not None)
    each, row, batch = _INSTRUCTIONS[problem.indices_strides is not None]
    *rows, taps = problem.geometry.kernel_shape
    instructions = prod(problem.geometry.y_shape) * (each + prod(rows) * (row + batch * -(-taps // _BATCH)))
    time = seconds(problem, instructions, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, kernel, wide))


def needs_wide(problem: Problem) -> bool:
    """Tell whether the kernel needs 64-bit indices; those for rows of neighbours compute with no larger numbers."""
    return params.needs_wide(OPERATOR, [_largest(problem)])


def _largest(problem: Problem) -> int:
    return max(_magnitudes(problem, _fields(problem)))


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("max_pool.cu", "max_pool", "MaxPoolParams<{index}, {rank}>", _THREADS)


def variant(dtype: str, wide: bool, ndim: int, indices: bool) -> Variant:
    """Return the kernel for a dtype, an index width, a number of spatial axes, with indices or without."""
    element, form, blocks = _dtypes.entry(dtype).cuda, "indices" * indices, _blocks_per_sm(wide, ndim)
    return _KERNEL.over(dtype, ndim, form, types=(element,), sizes=(indices,), wide=wide, blocks_per_sm=blocks)


def _blocks_per_sm(wide: bool, ndim: int) -> int:
    """As many as leave a thread the registers that it uses: every axis has its strides, steps and window."""
    few_axes = ndim <= 3
    if wide:
        return 4 if few_axes else 2  # 64 or 128 registers a thread
    return 6 if few_axes else 4  # 40 or 64


def variants() -> list[Variant]:
    """Return every kernel that a plan can name, for one to four spatial axes."""
    flags = (False, True)
    return [variant(*row) for row in product(_dtypes.MAX_POOL_DTYPES, flags, _RANKS, flags)]


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, kernel: Variant, wide: bool) -> Plan:
    outputs = prod(problem.geometry.y_shape)
    blocks = -(-outputs // _THREADS)
    across = min(blocks, MOST_BLOCKS)
    launch = Launch(
        variant=kernel,
        grid=(across, -(-blocks // across), 1),
        shared_bytes=0,
        fields=_fields(problem) | _dividers(problem),
        roles=roles(problem),
    )
    reason = (
        f"{kernel.name}: {'channels last: ' * problem.channels_last}one output a thread, "
        f"{outputs} outputs in {blocks} blocks of {_THREADS} threads; "
        f"{64 if wide else 32}-bit indices, the largest number being {_largest(problem)}"
    )
    return Plan(OPERATOR, (launch,), (reason,))


def _fields(problem: Problem) -> dict[str, Any]:
    """Return the struct's numbers but for its divisors."""
    geometry, axes = problem.geometry, problem.axes
    x_strides = used(geometry.x_shape, problem.x_strides)
    places = problem.place_strides
    fields: dict[str, Any] = {
        "plane": prod(geometry.x_shape[2:]),
        "outputs": prod(geometry.y_shape),
        "x_extent": [axis.extent for axis in axes],
        "stride": [axis.stride for axis in axes],
        "pad": [axis.pad for axis in axes],
        "reach": [axis.reach for axis in axes],
        "channels_last": problem.channels_last,
        "place_stride": list(places),
        "x_step": [axis.step * stride for axis, stride in zip(axes, x_strides[2:], strict=True)],
        "place_step": [axis.step * stride for axis, stride in zip(axes, places, strict=True)],
    }
    arrays = {"x": x_strides, "y": used(geometry.y_shape, problem.y_strides)}
    arrays["indices"] = used(geometry.y_shape, problem.indices_strides or (0,) * len(geometry.y_shape))
    for name, strides in arrays.items():
        fields |= params.array_fields(name, strides)
    return fields


def _dividers(problem: Problem) -> dict[str, Any]:
    return {
        "dilation": [axis.dilation for axis in problem.axes],
        "y_extent": problem.geometry.y_shape[2:],
        "channels": problem.geometry.y_shape[1],
    }


def _magnitudes(problem: Problem, fields: dict[str, Any]) -> Iterator[int]:
    """Yield what must fit into an index.

    Offsets count elements, not bytes: the kernel adds them to pointers, which is done in 64 bits. A broadcast array has
    more elements than memory, and what counts there are their numbers within a plane (and ``plane``, always 64 bits).
    """
    geometry = problem.geometry
    yield fields["outputs"]
    for axis in problem.axes:
        yield from axis.coordinates
    yield params.span(geometry.x_shape, problem.x_strides)
    yield params.span(geometry.y_shape, problem.y_strides)
    yield from (abs(step) for step in fields["x_step"])
    if problem.indices_strides is not None:
        yield params.span(geometry.y_shape, problem.indices_strides)
        yield fields["plane"] + _BATCH * max(fields["place_step"])
