"""Direct depthwise ConvTranspose with strides (``conv/direct/transpose.cu``): one launch, w read in place.

An output has at most two taps per axis (no dilation, kernel up to twice the stride). A thread computes outputs of one
column a stride apart, which share the same taps, so its weights stay in registers. One or two spatial axes; one input
channel per group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct.base import on_arrays, unfit
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal, model, numbers
from gpuconv.cuda.plan.strided import array_fields, filled
from gpuconv.rules import dtypes

NAME = "depthwise transpose"
_THREADS = 256
_WALKS = (64, 32, 16, 8, 4, 2, 1)  # outputs per thread to try
_WANTED = 1024  # threads wanted per SM; with fewer, a thread gets fewer outputs
# Instructions per output, counted in SASS for sm_90a; per thread, estimated.
_OUTPUT, _REST = 28, 200


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if not problem.phases:
        return Refusal("Conv has no phases", plain=True)
    if problem.rank > 2:
        return Refusal(f"{problem.rank} spatial axes; it has two", plain=problem.group == 1)
    if problem.channels != 1:
        return Refusal(f"{problem.channels} channels a group; it takes one", plain=problem.group == 1)
    steps = zip(problem.taps, problem.strides, problem.dilations, strict=True)
    if any(d > 1 or k > 2 * s for k, s, d in steps):
        return Refusal(f"more than two taps a phase, or dilated ones: {problem.taps} with strides {problem.strides}")
    far = _items(problem, 1) >= params.INDEX_LIMIT
    return unfit(problem) or (Refusal("it needs 64-bit indices") if far else None)


# ---------------------------------------------------------------- tiles


def _rows(problem: Problem) -> tuple[int, int]:
    """Return the phases along H, and the rows of y per phase, which are a stride apart."""
    return filled(problem.phases, 2, 1)[0], filled(problem.columns, 2, 1)[0]


def _items(problem: Problem, walk: int) -> int:
    """Return the threads of the launch when each computes ``walk`` outputs."""
    phases, columns = _rows(problem)
    channels, *spatial = problem.y_shape[1:]
    return problem.batch * channels * spatial[-1] * phases * -(-columns // walk)


def _walk(problem: Problem, limits: Limits) -> int:
    """Return the most outputs per thread that still leave enough threads per SM."""
    enough = (walk for walk in _WALKS if _items(problem, walk) >= _WANTED * limits.multiprocessors)
    return min(next(enough, 1), _rows(problem)[1])


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, walk: int, limits: Limits) -> float:
    """Model the seconds: the larger of instruction issue and of L1 traffic, line by line.

    Each lane loads up to four weights, and two inputs per output.
    """
    items = numbers.whole(_items(problem, walk), _THREADS)
    blocks = items // _THREADS
    rounds = numbers.whole(blocks, limits.multiprocessors)
    issued = model.instructions(rounds * _THREADS * (_REST + walk * _OUTPUT), limits)
    products = model.arithmetic(blocks, _THREADS * walk * 4, problem.accumulator, 1.0, limits)
    channels_first = _channels_first(problem)
    step = abs(problem.x_strides[1] if channels_first else problem.x_strides[-1])
    neighbours = 32 if channels_first else -(-32 // problem.strides[-1]) + 1  # inputs that a warp reads
    lines = min(neighbours, -(-neighbours * step * problem.itemsize // 128) + 1)
    written = abs(problem.y_strides[1] if channels_first else problem.y_strides[-1])
    lines = 2 * lines + min(32, -(-32 * written * problem.itemsize // 128))
    met = model.gathering(blocks, _THREADS * walk, lines, limits)
    # weights of adjacent channels are far apart in w
    weights = model.gathering(blocks, _THREADS * 4, 32 if channels_first else 2, limits)
    return max(issued, products, met + weights)


def _channels_first(problem: Problem) -> bool:
    """Return whether lanes run along channels, which are contiguous in y."""
    return problem.y_strides[1] == 1 and problem.y_strides[-1] != 1


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel if it accepts the problem."""
    if refusal := _refusal(problem):
        yield refusal
        return
    walk = _walk(problem, limits)
    busy = _seconds(problem, walk, limits)
    seconds = model.overlapped(busy, model.memory(problem.bytes, limits))
    yield Candidate(
        variant(problem.dtype).name, seconds, partial(_plan, problem, walk), f"{problem.fused} over taps, columns first"
    )


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, walk: int) -> Plan:
    """Return the plan of this candidate."""
    kernel, items = variant(problem.dtype), _items(problem, walk)
    reason = f"direct: {walk} outputs of a thread, a stride apart in a column; 32-bit indices"
    return on_arrays(problem, kernel, -(-items // _THREADS), _fields(problem, walk, items), reason)


def _fields(problem: Problem, walk: int, items: int) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    phases, columns = _rows(problem)
    w_group, w_filter, _, *w_stride = problem.w_strides
    return {
        "items": items,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_stride": filled(w_stride, 2, 0),
        "b_stride": problem.b_stride or 0,
        "pad": filled(problem.pads, 2, 0),
        "taps": filled(problem.taps, 2, 1),
        "walk": walk,
        "channels_first": _channels_first(problem),
        "stride": filled(problem.strides, 2, 1),
        "channels": problem.y_shape[1],
        "columns": problem.y_shape[-1],
        "rows": phases,
        "walks": -(-columns // walk),
        "filters": problem.filters,
        **array_fields({"x": problem.x_strides, "y": problem.y_strides}, 2),
        "x_extent": filled(problem.x_shape[2:], 2, 1),
        "y_extent": filled(problem.y_shape[2:], 2, 1),
    }


_KERNEL = Kernel(
    "conv/direct/transpose.cu", "conv_transpose_depthwise", "DepthwiseTransposeParams", _THREADS, blocks_per_sm=5
)


def variant(dtype: str) -> Variant:
    """Return the kernel variant for a dtype, for one and two axes."""
    return _KERNEL.over(dtype, 2, types=types(dtype))


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    return map(variant, dtypes.CONV_DTYPES)
