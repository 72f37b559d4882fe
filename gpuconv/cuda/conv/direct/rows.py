"""Conv of few channels a group, depthwise above all, and ConvTranspose of stride 1, as a direct sum: one launch.

The kernel is in ``kernels_cu/conv/direct/rows.cu``, where the forms are explained. Axes are depth, row
and column; lower ranks are of unit depth and height. ConvTranspose of stride 1 is Conv with its taps turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct import rows_tile
from gpuconv.cuda.conv.direct.base import FORMS, GROUPED, THREADS, Form, axes_of, on_arrays, weights_of, work_of
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "direct sums"
_MOST_CHANNELS = 32  # of a group, and as many filters


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every form that takes the problem and that the device has room for."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    work = work_of(problem)
    for form in FORMS:
        if not form.takes(work):
            continue
        tile = rows_tile.best(work, form, limits)
        if tile is not None and tile.blocks <= launching.MOST_BLOCKS:
            name = variant(problem.dtype, form).name
            yield Candidate(name, _seconds(problem, tile, limits), partial(_plan, problem, tile))


def _refusal(problem: Problem) -> Refusal | None:
    """Return why no kernel of this family takes a problem; None where one does."""
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if not 1 <= problem.channels <= _MOST_CHANNELS or problem.filters > _MOST_CHANNELS:
        return Refusal(
            f"{problem.channels} channels, {problem.filters} filters a group; it takes 1 to {_MOST_CHANNELS} of both",
            plain=problem.group == 1,
        )
    if problem.group == 1 and problem.channels > 1:
        return Refusal(
            f"a single group of {problem.channels} channels; it takes several groups, or one channel", plain=True
        )
    if any(stride != 1 for stride in problem.strides):
        return Refusal(f"ConvTranspose with strides {problem.strides}; it takes those of stride 1")
    steps = ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    if any(shape[-1] > 1 and strides[-1] != 1 for shape, strides in steps):
        return Refusal("neighbours of a row do not lie next to each other in x and y")
    if 0 in problem.x_shape or 0 in problem.taps:
        return Refusal("there is nothing to sum")
    if problem.wide():
        return Refusal("it needs 64-bit indices")
    return None


def _seconds(problem: Problem, tile: rows_tile.Tile, limits: Limits) -> float:
    """Model the time: inputs that several tiles meet mostly come from the L2 cache."""
    accumulator = problem.accumulator
    busy = model.arithmetic(tile.blocks, tile.instructions, accumulator, 1.0, limits)
    return model.overlapped(busy, model.memory(problem.bytes, limits))


# ---------------------------------------------------------------- plans


def _plan(problem: Problem, tile: rows_tile.Tile) -> Plan:
    chosen, fields = variant(problem.dtype, tile.form), _fields(problem, tile)
    return on_arrays(problem, chosen, tile.blocks, fields, str(tile), tile.shared_bytes)


def _fields(problem: Problem, tile: rows_tile.Tile) -> dict[str, Any]:
    work = tile.work
    w_first, w_stride = weights_of(problem)
    x_strides, y_strides = (
        (*one[:2], *axes_of(problem, one[2:])[:2], 1) for one in (problem.x_strides, problem.y_strides)
    )
    return {
        "groups": work.groups,
        "channels": work.channels,
        "filters": work.filters,
        **params.array_fields("x", x_strides, work.x_extent),
        **params.array_fields("y", y_strides, work.y_extent),
        "w_first": w_first,
        **problem.w_steps,
        "w_stride": w_stride,
        "b_stride": problem.b_stride or 0,
        "stride": work.strides,
        "dilation": work.dilations,
        "start": [-pad for pad in (*work.pads[:2], work.pads[2] + tile.lead)],
        "x_width": gcd(_width(problem.x_shape, problem.x_strides, tile.vector), work.pads[2] + tile.lead),
        "y_width": _width(problem.y_shape, problem.y_strides, tile.vector),
        **tile.fields(),
    }


def _width(shape: Ints, strides: Ints, vector: int) -> int:
    """Return the most elements, at most a vector, in whose multiples rows begin and end, if the array does."""
    return gcd(vector, shape[-1], *(step for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent > 1))


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/direct/rows.cu", "conv_direct", "DirectParams", THREADS, name="depthwise")
_GROUPED = replace(_KERNEL, name="grouped")


def variant(dtype: str, form: Form) -> Variant:
    """Return the kernel of one form, for every rank up to three."""
    sizes = (form.filters, form.rows, form.kernel, form.stride, form.line)
    blocks = form.blocks_per_sm(dtypes.entry(dtype).accumulator)
    kernel = _GROUPED if form.filters == GROUPED else _KERNEL
    return kernel.over(dtype, 3, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype in dtypes.CONV_DTYPES:
        for form in FORMS:
            yield variant(dtype, form)
