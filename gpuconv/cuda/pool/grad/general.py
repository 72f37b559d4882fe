"""Gradients of MaxPool and AveragePool with one thread per element of dx: the fallback that accepts every problem.

A gather: each thread visits the windows that can cover its element, in row-major order (``pool/grad/general.cu``). Any
rank, strides and dilation, 64-bit indices. Strides are in elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan
from gpuconv.cuda.plan.strided import array_fields, axes, filled
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch, seconds
from gpuconv.cuda.pool.problem import AHEAD, MISSING, WIDTHS, counted_fields
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import AveragePoolGeometry

NAME = "one element a thread"
# Instructions (counted): per element; per window along the last axis; per window along each other axis.
_INSTRUCTIONS = (165, 36, 48)
_OF_AVERAGES = (150, 34, 48)  # the same for averages (estimated)
_DIVISION = 30  # extra per window whose divisor varies (estimated)


# ---------------------------------------------------------------- accepted problems


def needs_wide(problem: PoolGradProblem) -> bool:
    """Return whether the kernel needs 64-bit indices."""
    g = problem.geometry
    reach = _reach(problem)
    ends = [n + begin for n, begin in zip(g.x_shape[2:], g.pads_begin, strict=True)]
    magnitudes = [prod(g.x_shape), *g.y_shape, *reach, *ends, *g.strides, *g.dilations, *problem.spans]
    for axis in problem.forward.axes:
        magnitudes += [axis.counted.taps, abs(axis.counted.shift), axis.counted.extent, axis.counted.dilation]
    return params.needs_wide(problem.operator, magnitudes)


def _rank(problem: PoolGradProblem, wide: bool) -> int:
    """Return the kernel's number of spatial axes: at least that of one that is built ahead."""
    return axes(len(problem.geometry.kernel_shape), wide, AHEAD)


def _reach(problem: PoolGradProblem) -> list[int]:
    """Return the elements that a window spans along each axis."""
    g = problem.geometry
    return [(k - 1) * d + 1 for k, d in zip(g.kernel_shape, g.dilations, strict=True)]


# ---------------------------------------------------------------- cost


def _instructions(problem: PoolGradProblem) -> float:
    """Return the instructions of all threads; dilated windows also cost at elements between two of their taps."""
    g = problem.geometry
    element, last, others = _OF_AVERAGES if problem.forward.averages else _INSTRUCTIONS
    if not getattr(g, "constant", True):
        last += _DIVISION
    windows_met = [
        q * min(reach, n) / n for q, n, reach in zip(g.y_shape[2:], g.x_shape[2:], _reach(problem), strict=True)
    ]
    rows, count = 1.0, float(element)
    for windows in windows_met[:-1]:
        rows *= windows
        count += rows * others
    return prod(g.x_shape) * (count + rows * windows_met[-1] * last)


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel as the only candidate."""
    wide = needs_wide(problem)
    kernel = variant(problem.dtype, wide, _rank(problem, wide), averages=problem.forward.averages)
    trips = 1 if problem.forward.averages else 2  # loads of an index, then of dy; adjacent threads share windows
    time = seconds(problem, kernel, prod(problem.geometry.x_shape), _instructions(problem), trips, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, kernel, wide))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, kernel: Variant, wide: bool) -> Plan:
    """Return the plan of this candidate."""
    g, ndim = problem.geometry, _rank(problem, wide)
    elements = prod(g.x_shape)
    axes_of_windows = [MISSING] * (ndim - len(problem.forward.axes)) + list(problem.forward.axes)
    constant = isinstance(g, AveragePoolGeometry) and g.constant
    fields = {
        "counts": prod(g.kernel_shape) if constant else 0,
        "counted": counted_fields(axes_of_windows),
        "plane": problem.forward.plane_step,
        "elements": elements,
        "y_extent": filled(g.y_shape[2:], ndim, 1),
        "pad": filled(g.pads_begin, ndim, 0),
        "reach": filled(_reach(problem), ndim, 1),
        "place_stride": filled(problem.forward.place_strides, ndim, 0),
        "x_extent": filled(g.x_shape[2:], ndim, 1),
        "stride": filled(g.strides, ndim, 1),
        "dilation": filled(g.dilations, ndim, 1),
        "channels": g.x_shape[1],
        "channels_last": problem.forward.channels_last,
        **array_fields(problem.arrays, ndim),
    }
    fields = {name: value for name, value in fields.items() if name in (kernel.layout.names or ())}
    return one_launch(problem, kernel, elements, fields, "every element looks at the windows that can reach it")


_KERNEL = Kernel("pool/grad/general.cu", "max_pool_grad", "MaxPoolGradParams<{index}, {rank}>")


_AVERAGE = replace(_KERNEL, function="average_pool_grad", parameter="AveragePoolGradParams<{index}, {rank}>")


def variant(dtype: str, wide: bool, ndim: int, *, averages: bool = False) -> Variant:
    """Return the kernel variant for a dtype, index width and number of spatial axes."""
    blocks = _KERNEL.blocks_per_sm - wide * (1 + averages)  # 64-bit indices take more registers
    blocks -= averages and dtype == "float64"
    return (_AVERAGE if averages else _KERNEL).over(dtype, ndim, types=types(dtype), wide=wide, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled on first use."""
    for dtype, (wide, ndim), averages in product(dtypes.CONV_DTYPES, WIDTHS, (False, True)):
        yield variant(dtype, wide, ndim, averages=averages)
