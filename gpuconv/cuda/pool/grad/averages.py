"""The gradient of AveragePool down the columns of x.

The kernel is in ``kernels_cu/pool/grad/averages.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal
from gpuconv.cuda.pool.grad.base import THREADS, Form, WalkView, walked, windows_met
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch, seconds
from gpuconv.cuda.pool.problem import counted_fields
from gpuconv.rules import dtypes

NAME = "walks of averages"
_THREADS_WANTED = 1024  # of each multiprocessor; fewer of them take longer
_PART = 4  # windows that are loaded at once where there may be any number
# Instructions of a thread, of each of its rows of windows, of each part of one, of a window; of a row and of a window,
# more where not as many taps count in each; of an element, and more of it where it is divided. Counted.
_WALK, _ROW, _OF_PART, _WINDOW = 170, 32, 10, 10
_COUNTED_ROW, _COUNTED, _COUNTED_BEFORE = 40, 38, 12  # the last: of a window whose width is counted once for a walk
_ELEMENT, _OF_REACHING, _DIVISION = 16, 3, 14


# ---------------------------------------------------------------- what it sees


def _accepted(problem: PoolGradProblem) -> tuple[WalkView, Form] | str:
    columns = walked(problem)
    if isinstance(columns, str):
        return columns
    if columns.height.windows == 1:  # may be as far as it covers from the next one
        columns = replace(columns, height=replace(columns.height, stride=columns.height.reach))
    form = next((form for form in _FORMS if _fits(columns, form)), None)
    if form is None:
        return f"elements that {_rows_met(columns)} rows of windows reach"
    counted = [n for axis in columns.axes for n in (abs(axis.counted.shift), axis.counted.extent, axis.counted.taps)]
    wide = params.needs_wide(problem.operator, [*columns.magnitudes, *counted, *problem.spans])
    return "64-bit indices" if wide or columns.items(form, 1) > MOST_BLOCKS else (columns, form)


def _rows_met(columns: WalkView) -> int:
    """Return how many rows of windows reach an element at most, were there enough of them."""
    return -(-columns.height.reach // max(columns.height.stride, 1))


def _fits(columns: WalkView, form: Form) -> bool:
    fits = form.across == 0 or (windows_met(columns.depth) == 1 and windows_met(columns.width) <= form.across)
    return fits and _rows_met(columns) <= form.rows


# ---------------------------------------------------------------- tiles


# The first that fits is taken.
_FORMS = (Form(1, 0, 1, 1), Form(2, 0, 1, 2), Form(3, 0, 1, 4), Form(5, 0, 1, 0), Form(13, 0, 1, 0))


# ---------------------------------------------------------------- cost


def _instructions(problem: PoolGradProblem, columns: WalkView, form: Form, limits: Limits) -> float:
    """Return how many instructions all threads execute, more where these are too few to fill the device."""
    walk = columns.walk(form, limits)
    windows = columns.met(form) * windows_met(columns.depth)
    loaded = form.across or -(-windows // _PART) * _PART
    constant = getattr(problem.geometry, "constant", True)
    row = _ROW + loaded // (form.across or _PART) * _OF_PART + loaded * _WINDOW
    row += 0 if constant else _COUNTED_ROW + windows * (_COUNTED_BEFORE if form.across else _COUNTED)
    element = _ELEMENT + _OF_REACHING * form.rows + (_DIVISION if constant and form.rows > 1 else 0)
    items = columns.items(form, walk)
    thread = _WALK + row * (walk + columns.halo(form)) + element * walk * columns.step(form)
    return thread * max(items, _THREADS_WANTED * limits.multiprocessors)


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    if not problem.forward.averages:
        yield Refusal("maxima", plain=True)
        return
    accepted = _accepted(problem)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    columns, form = accepted
    kernel = variant(problem.dtype, form)
    time = seconds(problem, _instructions(problem, columns, form, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, columns, form, kernel, limits))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, columns: WalkView, form: Form, kernel: Variant, limits: Limits) -> Plan:
    walk = columns.walk(form, limits)
    items = columns.items(form, walk)
    constant = getattr(problem.geometry, "constant", False)
    fields: dict[str, Any] = {
        "counts": prod(problem.geometry.kernel_shape) if constant else 0,
        "items": items,
        "walk": walk,
        "first": columns.first(form),
        "halo": columns.halo(form),
        "rows": columns.height.extent,
        "y_extent": [axis.windows for axis in columns.axes],
        "pad": [axis.pad for axis in columns.axes],
        "kernel": [axis.reach for axis in columns.axes],
        "stride": [axis.stride for axis in columns.axes],
        "channels": columns.channel.extent,
        "columns": columns.width.extent,
        "walks": -(-columns.steps(form) // walk),
        "depths": columns.depth.extent,
        "counted": counted_fields(columns.axes),
        "channels_last": columns.channels_last,
    }
    for name, array in (("dx", "x"), ("dy", "y")):
        fields |= params.array_fields(name, columns.strides(array))
    reason = f"{'channels last: ' * columns.channels_last}a column of {walk * columns.step(form)} elements a thread"
    return one_launch(problem, kernel, items, fields, reason)


_KERNEL = Kernel(
    "pool/grad/averages.cu", "average_pool_grad_walks", "AverageWalkParams", THREADS, name="average_pool_grad"
)


def variant(dtype: str, form: Form) -> Variant:
    """Return the kernel for a dtype and for so many windows that reach an element."""
    label = f"walks_{form.rows}x{form.across or 'any'}"
    wide = dtypes.entry(dtype).itemsize == 8
    blocks = 4 - wide * (2 if form.rows > 5 else 1)  # 64 registers; 80 with wide sums, 128 with many of them
    return _KERNEL.over(dtype, 3, label, types=types(dtype), sizes=(form.rows, form.across), blocks_per_sm=blocks)


def variants() -> list[Variant]:
    """Return all variants."""
    return [variant(dtype, form) for dtype, form in product(dtypes.CONV_DTYPES, _FORMS)]
