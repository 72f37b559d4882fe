"""Direct Conv with at most 8 output channels per group (``conv/direct/few.cu``): one launch, w read in place.

A thread computes all filters of a few pixels in registers, so x is loaded once for all filters; taps hit the L1 cache.
It takes any stride and dilation, where GEMM tiles would be nearly empty. Three spatial axes, 32-bit indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product, starmap
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Candidate, Launch, Limits, Offer, Plan, Refusal, model
from gpuconv.rules import dtypes

NAME = "few filters"
_FILTERS = (4, 8)  # most filters per group, of each kernel variant
_THREADS, _PIXELS, _TAPS = 128, 512, 32  # per block: threads and pixels; taps handled at a time
_WEIGHT_BYTES = 24 * 1024  # limit on weights in shared memory, unless one channel's need more
_BLOCKS_PER_SM = {"float16": (8, 6), "bfloat16": (8, 6), "float32": (8, 6), "float64": (4, 4)}
# Fraction of the main loop's instructions that are multiply-adds, for 4 and for 8 filters.
_EFFICIENCY = {"float16": (0.38, 0.45), "bfloat16": (0.38, 0.45), "float32": (0.42, 0.57), "float64": (0.41, 0.54)}
_SETUP = 10  # cost of locating a thread's pixels, in rows of K (estimated); one more row is added per tap


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if problem.operator != "conv" or problem.filters > _FILTERS[-1]:
        return Refusal(
            f"{problem.filters} output channels a group; it takes Conv with up to {_FILTERS[-1]}", plain=True
        )
    if problem.rank > RANK:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.rows == 0:
        return Refusal("there is nothing to sum")
    if problem.wide():
        return Refusal("it needs 64-bit indices")
    return None


# ---------------------------------------------------------------- tiles


def _tiles(problem: Problem) -> int:
    """Return the blocks along the pixels."""
    return -(-problem.pixels // _PIXELS)


# ---------------------------------------------------------------- shared memory


def _channel_bytes(problem: Problem, filters: int) -> int:
    """Return the bytes of shared memory for one channel's weights."""
    return min(prod(problem.taps), _TAPS) * filters * problem.word


def _channels_at_once(problem: Problem, filters: int) -> int:
    """Return the channels whose weights are in shared memory at a time."""
    return min(problem.channels, _WEIGHT_BYTES // _channel_bytes(problem, filters))


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, filters: int, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    efficiency = _EFFICIENCY[problem.dtype][_FILTERS.index(filters)]
    blocks = _tiles(problem) * problem.group
    multiplications = _PIXELS * filters * (problem.rows + prod(problem.taps) + _SETUP)
    busy = model.arithmetic(blocks, multiplications, problem.accumulator, efficiency, limits)
    return model.overlapped(busy, model.memory(problem.bytes, limits))


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel with the smallest sufficient number of filters."""
    if refusal := _refusal(problem):
        yield refusal
        return
    filters = next(filters for filters in _FILTERS if problem.filters <= filters)
    lifted = problem.lifted
    name = variant(problem.dtype, filters).name
    order = f"{problem.fused} over channels, taps in x, {_TAPS} at a time"
    yield Candidate(name, _seconds(problem, filters, limits), partial(_plan, lifted, filters), order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, filters: int) -> Plan:
    """Return the plan of this candidate."""
    kernel = variant(problem.dtype, filters)
    tiles, at_once = _tiles(problem), _channels_at_once(problem, filters)
    weights = gemm_base.PackedWeights(filters, problem.rows, problem.channels)
    fields = {
        **gemm_base.operands(problem, (1, tiles), weights),
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "all_taps": prod(problem.taps),
        "channels_at_once": at_once,
    }
    roles = gemm_base.roles(problem) | {"common.weights": "w"}
    shared = at_once * _channel_bytes(problem, filters)
    launch = Launch.of_blocks(problem.operator, kernel, tiles * problem.group, fields, roles, shared)
    reason = f"no GEMM: {problem.filters} output channels of a group; weights as they are, {at_once} channels at a time"
    return Plan(problem.operator, (launch,), (reason,))


_KERNEL = Kernel("conv/direct/few.cu", "conv_few", "ConvFewParams<{index}, {rank}>", _THREADS)


def variant(dtype: str, filters: int) -> Variant:
    """Return the kernel variant for up to ``filters`` output channels per group."""
    blocks = _BLOCKS_PER_SM[dtype][_FILTERS.index(filters)]
    form = f"{filters}x{_PIXELS}"
    return _KERNEL.over(dtype, RANK, form, types=types(dtype), sizes=(filters,), blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    return starmap(variant, product(dtypes.CONV_DTYPES, _FILTERS))
