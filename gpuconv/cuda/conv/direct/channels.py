"""Conv of one channel a group (depthwise) with channels last, as a direct sum: one launch, which reads w as it is.

The kernel is in ``kernels_cu/conv/direct/channels.cu``, where the forms are explained. Lower ranks
are of unit depth and height. ConvTranspose of stride 1 is Conv with its taps turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct import base as direct_base
from gpuconv.cuda.conv.direct import channels_tile
from gpuconv.cuda.conv.direct.base import on_arrays
from gpuconv.cuda.conv.direct.channels_tile import FORMS, THREADS, Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules import dtypes

NAME = "direct sums of neighbouring channels"
_MOST_FILTERS = 4  # of a channel


# ---------------------------------------------------------------- candidates


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every form that takes the problem."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    work, whole = direct_base.work_of(problem), channels_tile.in_vectors(problem)
    for form in FORMS:
        if form[0] in (0, work.strides[2] // gcd(work.strides[2], work.dilations[2])):
            tile = channels_tile.best(work, form, whole, limits)
            if tile is not None:
                seconds = model.overlapped(tile.seconds(limits), model.memory(problem.bytes, limits))
                yield Candidate(variant(problem.dtype, form).name, seconds, partial(_plan, problem, tile))


def _refusal(problem: Problem) -> Refusal | None:
    """Return why no kernel of this family takes a problem; None where one does."""
    if problem.group == 1 or problem.x_strides[1] != 1 or problem.y_strides[1] != 1:
        return Refusal("channels do not lie next to each other in x and y", plain=True)
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.channels != 1 or problem.filters > _MOST_FILTERS:
        return Refusal(
            f"{problem.channels} channels and {problem.filters} filters a group; it takes 1 and up to {_MOST_FILTERS}"
        )
    if any(stride != 1 for stride in problem.strides):
        return Refusal(f"ConvTranspose with strides {problem.strides}; it takes those of stride 1")
    if 0 in problem.x_shape or 0 in problem.taps:
        return Refusal("there is nothing to sum")
    if problem.wide() or _far(problem):
        return Refusal("it needs 64-bit indices")
    return None


def _far(problem: Problem) -> bool:
    """Tell whether the bytes from one input of a window to the next need 64 bits."""
    step = max(problem.column_strides[-1], problem.dilations[-1]) * problem.x_strides[-1] * problem.itemsize
    return abs(step) >= params.INDEX_LIMIT


# ---------------------------------------------------------------- plans


def _plan(problem: Problem, tile: Tile) -> Plan:
    chosen, fields = variant(problem.dtype, tile.form), _fields(problem, tile)
    return on_arrays(problem, chosen, tile.blocks, fields, str(tile), tile.shared_bytes)


def _fields(problem: Problem, tile: Tile) -> dict[str, Any]:
    work = tile.work
    w_group, w_filter, *_ = problem.w_strides
    w_first, w_stride = direct_base.weights_of(problem)
    channel_blocks, column_blocks, row_blocks = tile.blocks_by_axis
    x_strides, y_strides = (
        (*one[:2], *direct_base.axes_of(problem, one[2:])) for one in (problem.x_strides, problem.y_strides)
    )
    return {
        "channels": tile.filters,
        **params.array_fields("x", x_strides, work.x_extent),
        **params.array_fields("y", y_strides, work.y_extent),
        "w_first": w_first,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_stride": w_stride,
        "b_stride": problem.b_stride or 0,
        "stride": work.strides,
        "dilation": work.dilations,
        "start": [-pad for pad in work.pads],
        "taps": work.taps,
        "step": tile.step,
        "row_advance": tile.advance,
        "window_step": work.dilations[2] if tile.form[0] else work.strides[2],
        "pitch": tile.pitch,
        "in_vectors": tile.whole,
        "filters": problem.filters,
        "vectors": tile.vectors,
        "columns": tile.columns,
        "rows": tile.rows,
        "walk": tile.walk,
        "channel_blocks": channel_blocks,
        "column_blocks": column_blocks,
        "row_blocks": row_blocks,
        "depths": work.y_extent[0],
        "apart": tile.apart,
        "step_taps": tile.step * work.taps[2],
        "row_taps": work.taps[2],
        "row_parts": tile.parts,
        "parts": tile.parts * work.taps[0],
    }


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/direct/channels.cu", "conv_channels", "ConvChannelsParams", THREADS, name="depthwise")


def variant(dtype: str, form: tuple[int, int, int]) -> Variant:
    """Return the kernel of one form, for every rank up to three."""
    stride, taps, _ = form
    label = f"channels_{taps}s{stride}" if stride else "channels_taps"
    return _KERNEL.over(dtype, 3, label, types=types(dtype), sizes=form, blocks_per_sm=3 if stride else 4)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype in dtypes.CONV_DTYPES:
        for form in FORMS:
            yield variant(dtype, form)
