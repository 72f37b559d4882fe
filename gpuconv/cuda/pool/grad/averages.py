"""Gradient of AveragePool for overlapping windows: threads walk down columns of x (``pool/grad/averages.cu``).

At each row of windows a thread adds the gradients of the windows that cover its column. So each window is loaded once
per column instead of once per element. It takes undilated windows; common sizes have *strip* forms with four adjacent
columns per thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal
from gpuconv.cuda.pool.grad.base import ONE, THREADS, Form, WalkView, walked, windows_met
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch, seconds
from gpuconv.cuda.pool.problem import counted_fields
from gpuconv.rules import dtypes

NAME = "walks of averages"
_PART = 4  # windows loaded together, in forms for any number of windows
# Instructions (counted): per thread; per row of windows; per part of a row; per window. Then, if the divisor
# varies: per row and per window. Per element of dx; per row that covers it; for its division.
_WALK, _ROW, _OF_PART, _WINDOW = 170, 32, 10, 10
# the last: per window, if its divisor along W is computed once per walk
_COUNTED_ROW, _COUNTED, _COUNTED_BEFORE = 40, 38, 12
_ELEMENT, _OF_REACHING, _DIVISION = 16, 3, 14
# The same for strips; adding a window into a column, and a row into an element, takes one instruction each.
_STRIP, _STRIP_COUNTED, _STRIP_ROW, _STRIP_COUNTED_ROW = 130, 28, 60, 25
_STRIP_WINDOW, _STRIP_DIVISION, _STRIP_ELEMENTS = 8, 17, 20


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolGradProblem, columns: WalkView) -> tuple[WalkView, Form] | str:
    """Return the view and form for threads of one column, or why there are none."""
    if columns.height.windows == 1:  # the only row of windows may have any stride: use the window's height
        columns = replace(columns, height=replace(columns.height, stride=columns.height.reach))
    form = next((form for form in _FORMS if _fits(columns, form)), None)
    if form is None:
        return f"elements that {_rows_met(columns)} rows of windows reach"
    return "64-bit indices" if _is_wide(problem, columns, form) else (columns, form)


def _accepted_strip(problem: PoolGradProblem, columns: WalkView) -> tuple[WalkView, Strip] | str:
    """Return the view and form for threads of four columns (strips), or why there are none."""
    if len(problem.forward.axes) == 1:  # a single axis becomes W
        columns = replace(columns, height=ONE, width=problem.forward.axes[0], channel=problem.forward.all_axes[1])
    form = next((form for form in _STRIPS if _fits_strip(columns, form)), None)
    if form is None:
        return f"windows of {columns.height.reach} rows and {columns.width.reach} columns"
    return "64-bit indices" if _is_wide(problem, columns, form) else (columns, form)


def _is_wide(problem: PoolGradProblem, columns: WalkView, form: Form) -> bool:
    """Return whether the form needs 64-bit indices."""
    counted = [n for axis in columns.axes for n in (abs(axis.counted.shift), axis.counted.extent, axis.counted.taps)]
    return columns.wide(form, (*counted, *problem.spans))


def _rows_met(columns: WalkView) -> int:
    """Return the most rows of windows that can cover an element."""
    return -(-columns.height.reach // max(columns.height.stride, 1))


def _fits(columns: WalkView, form: Form) -> bool:
    """Return whether a form with one column per thread accepts the windows."""
    fits = form.across == 0 or (windows_met(columns.depth) == 1 and windows_met(columns.width) <= form.across)
    return fits and _rows_met(columns) <= form.rows


def _fits_strip(columns: WalkView, form: Strip) -> bool:
    """Return whether a form with several columns per thread accepts the windows."""
    strides = {axis.stride for axis in (columns.height, columns.width) if axis.windows > 1}
    rows = -(-columns.height.reach // form.stride)
    return strides <= {form.stride} and columns.width.reach == form.kernel and rows <= form.rows


# ---------------------------------------------------------------- tiles


# The first form that fits is used.
_FORMS = (Form(1, 0, 1, 1), Form(5, 0, 1, 0), Form(13, 0, 1, 0))


@dataclass(frozen=True, slots=True)
class Strip(Form):
    """A form with several columns per thread, for windows ``kernel`` columns wide."""

    kernel: int

    @property
    def windows(self) -> int:
        """Windows per row that can cover a thread's columns."""
        return (self.columns + self.kernel - 2) // self.stride + 1


_SIZES = ((2, 1), (3, 1), (5, 1), (7, 1), (3, 2), (4, 2), (5, 2), (7, 2))  # (kernel size, stride)
_STRIPS = tuple(Strip(-(-kernel // stride), stride, 4, 0, kernel) for kernel, stride in _SIZES)


# ---------------------------------------------------------------- cost


def _walk(problem: PoolGradProblem, columns: WalkView, form: Form, limits: Limits) -> int:
    """Return the rows of windows per thread that take the least modelled time."""
    return min(columns.lengths(form), key=lambda walk: _seconds(problem, columns, form, walk, limits))


def _seconds(problem: PoolGradProblem, columns: WalkView, form: Form, walk: int, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    kernel, threads = variant(problem.dtype, form), columns.items(form, walk)
    instructions = threads * _instructions(problem, columns, form, walk)
    return seconds(problem, kernel, threads, instructions, columns.trips(form, walk), limits)


def _instructions(problem: PoolGradProblem, columns: WalkView, form: Form, walk: int) -> float:
    """Return the instructions per thread."""
    given = walk, getattr(problem.geometry, "constant", True)
    return _of_strip(columns, form, *given) if isinstance(form, Strip) else _of_walk(columns, form, *given)


def _of_walk(columns: WalkView, form: Form, walk: int, constant: bool) -> float:
    """Return the instructions of a thread with one column; ``constant`` if all windows have the same divisor."""
    windows = columns.met(form) * windows_met(columns.depth)
    loaded = form.across or -(-windows // _PART) * _PART
    row = _ROW + loaded // (form.across or _PART) * _OF_PART + loaded * _WINDOW
    row += 0 if constant else _COUNTED_ROW + windows * (_COUNTED_BEFORE if form.across else _COUNTED)
    element = _ELEMENT + _OF_REACHING * form.rows + (_DIVISION if constant and form.rows > 1 else 0)
    return _WALK + row * (walk + columns.halo(form)) + element * walk * columns.step(form)


def _of_strip(columns: WalkView, form: Strip, walk: int, constant: bool) -> float:
    """Return the instructions of a thread with several columns."""
    slices = windows_met(columns.depth)
    windows = slices * form.windows
    row = _STRIP_ROW + _STRIP_WINDOW * windows + slices * form.columns * -(-form.kernel // form.stride)
    row += form.columns * form.rows + (0 if constant else _STRIP_COUNTED_ROW + _STRIP_DIVISION * windows)
    elements = _STRIP_ELEMENTS + form.columns * (form.rows + (_DIVISION if constant else 0))
    thread = _STRIP + (0 if constant else _STRIP_COUNTED * form.windows)
    return thread + row * (walk + columns.halo(form)) + elements * walk * form.stride


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernels of both kinds, or why neither accepts the problem."""
    if not problem.forward.averages:
        yield Refusal("maxima", plain=True)
        return
    columns = walked(problem)
    if isinstance(columns, str):
        yield Refusal(columns)
        return
    refused: list[str] = []
    for accepted in (_accepted(problem, columns), _accepted_strip(problem, columns)):
        if isinstance(accepted, str):
            refused.append(accepted)
        else:
            yield _candidate(problem, *accepted, limits)
    if len(refused) == 2:
        yield Refusal(refused[0])


def _candidate(problem: PoolGradProblem, columns: WalkView, form: Form, limits: Limits) -> Candidate:
    """Return the form with its best walk as a candidate."""
    kernel, walk = variant(problem.dtype, form), _walk(problem, columns, form, limits)
    time = _seconds(problem, columns, form, walk, limits)
    return Candidate(kernel.name, time, partial(_plan, problem, columns, form, kernel, walk))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, columns: WalkView, form: Form, kernel: Variant, walk: int) -> Plan:
    """Return the plan of this candidate."""
    constant = getattr(problem.geometry, "constant", False)
    fields = columns.fields_of(form, walk) | {
        "counts": prod(problem.geometry.kernel_shape) if constant else 0,
        "left": columns.left(form),
        "late": _late(columns, form),
        "counted": counted_fields(columns.axes),
    }
    for name, array in (("dx", "x"), ("dy", "y")):
        fields |= params.array_fields(name, columns.strides(array))
    of = f"{form.columns} columns" if form.columns > 1 else "a column"
    reason = f"{'channels last: ' * columns.channels_last}{of} of {walk * columns.step(form)} elements a thread"
    return one_launch(problem, kernel, fields["items"], fields, reason)


def _late(columns: WalkView, form: Form) -> int:
    """Return the columns from a thread's first one to the end of the first window that covers it."""
    if form.columns == 1:
        return 0
    return form.stride * columns.left(form) - columns.width.pad + columns.width.reach - 1


_KERNELS = [
    Kernel("pool/grad/averages.cu", f"average_pool_grad_{name}", "AverageWalkParams", THREADS, name="average_pool_grad")
    for name in ("walks", "strips")
]


def variant(dtype: str, form: Form) -> Variant:
    """Return the kernel variant for a dtype and form."""
    wide = dtypes.entry(dtype).itemsize == 8
    sizes: tuple[int, ...]
    if isinstance(form, Strip):
        label, sizes = f"strips_{form.kernel}s{form.stride}", (form.rows, form.kernel, form.stride)
        many = form.rows * form.columns  # accumulators per thread
        blocks = (4, 3, 2)[(many > 16) + (many > 20)] // (1 + wide)
    else:
        label, sizes = f"walks_{form.rows}x{form.across or 'any'}", (form.rows, form.across)
        blocks = 4 - wide * (2 if form.rows > 5 else 1)  # 64 registers; 80 with 64-bit sums, 128 with many of them
    kernel = _KERNELS[isinstance(form, Strip)]
    return kernel.over(dtype, 3, label, types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> list[Variant]:
    """Return all variants."""
    return [variant(dtype, form) for dtype, form in product(dtypes.CONV_DTYPES, (*_FORMS, *_STRIPS))]
