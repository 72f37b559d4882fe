"""Gradient of MaxPool for windows of few rows: threads walk down columns of x (``pool/grad/walks.cu``).

A thread keeps the sums of the rows that the current windows cover in registers, and loads each window's index once per
walk. Chosen for undilated windows up to 13 rows high; common sizes have forms with two columns per thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal
from gpuconv.cuda.pool.grad.base import THREADS, Form, WalkView, walked, windows_met
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch, seconds
from gpuconv.rules import dtypes

NAME = "walks"
_NAMED = tuple(structs.constant(f"kMost{axis}", "pool/grad/walks.cu") for axis in ("Windows", "Columns", "Rows"))
_OF_ANY = 55  # extra instructions per row of windows, for any stride (counted)
_NONE = 2**31  # a difference of element numbers that never occurs


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolGradProblem) -> tuple[WalkView, WalkForm] | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    columns = walked(problem)
    if isinstance(columns, str):
        return columns
    form = next((form for form in _FORMS if _fits(columns, form)), None)
    if form is None:
        return f"windows of {columns.height.reach} rows"
    return "64-bit indices" if columns.wide(form, problem.spans) else (columns, form)


def _fits(columns: WalkView, form: WalkForm) -> bool:
    """Return whether a form accepts the problem's windows."""
    height = columns.height
    strided = (height, columns.width) if form.columns > 1 else (height,)
    strides = {axis.stride for axis in strided if axis.windows > 1}
    if height.reach > form.rows or (form.stride > 0 and not strides <= {form.stride}):
        return False
    return form.across == 0 or (windows_met(columns.depth) == 1 and columns.met(form) <= form.across)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class WalkForm(Form):
    """A kernel form for MaxPool."""

    walk: int  # instructions per thread (counted, as those below)
    # per row of windows or part of one, for 16-bit, float32 and float64 elements
    windows: tuple[int, int, int]
    row: int = 0  # per row of x, for any stride
    part: int = 0  # windows loaded together, for any stride


# The first form that fits is used.
_FORMS = (
    WalkForm(1, 1, 1, 1, 200, (26, 18, 19)),
    WalkForm(2, 2, 2, 1, 200, (46, 37, 41)),
    WalkForm(3, 2, 2, 2, 240, (83, 70, 103)),
    WalkForm(3, 1, 2, 4, 260, (125, 108, 152)),
    WalkForm(5, 0, 1, 0, 260, (43, 42, 65), 14, 2),
    WalkForm(13, 0, 1, 0, 260, (153, 150, 260), 25, 4),
)


# ---------------------------------------------------------------- cost


def _walk(problem: PoolGradProblem, columns: WalkView, form: WalkForm, limits: Limits) -> int:
    """Return the rows of windows per thread that take the least modelled time."""
    return min(columns.lengths(form), key=lambda walk: _seconds(problem, columns, form, walk, limits))


def _seconds(problem: PoolGradProblem, columns: WalkView, form: WalkForm, walk: int, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    kernel, threads = variant(problem.dtype, form), columns.items(form, walk)
    instructions = threads * _instructions(columns, form, problem.dtype, walk)
    return seconds(problem, kernel, threads, instructions, columns.trips(form, walk), limits)


def _instructions(columns: WalkView, form: WalkForm, dtype: str, walk: int) -> float:
    """Return the instructions per thread."""
    size = dtypes.entry(dtype).itemsize
    steps, of_windows = walk + columns.halo(form), form.windows[size // 4]
    of_rows = (_OF_ANY + form.row * columns.step(form)) * steps if form.stride == 0 else 0
    if form.across == 0:
        steps = min(steps, columns.height.windows)
        of_windows *= windows_met(columns.depth) * -(-columns.met(form) // form.part)
    return form.walk + of_rows + of_windows * steps


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not accept the problem."""
    if problem.forward.averages:
        yield Refusal("averages", plain=True)
        return
    accepted = _accepted(problem)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    columns, form = accepted
    kernel, walk = variant(problem.dtype, form), _walk(problem, columns, form, limits)
    time = _seconds(problem, columns, form, walk, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, columns, form, kernel, walk))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, columns: WalkView, form: WalkForm, kernel: Variant, walk: int) -> Plan:
    """Return the plan of this candidate."""
    fields = columns.fields_of(form, walk) | {
        "left": columns.left(form),
        "numbers": columns.numbers,
        "named": _named(columns, form),
    }
    for name, array in (("dx", "x"), ("dy", "y"), ("indices", "indices"), ("place", "place")):
        fields |= params.array_fields(name, columns.strides(array))
    reason = (
        f"{'channels last: ' * columns.channels_last}{form.columns} columns of {walk * columns.step(form)} elements "
        "a thread"
    )
    return one_launch(problem, kernel, fields["items"], fields, reason)


def _named(view: WalkView, form: WalkForm) -> list[list[list[int]]]:
    """Return the struct's table of the element numbers that each window can name, by column and row."""
    windows, columns, rows = _NAMED
    height, width, named = view.height, view.width, np.full(_NAMED, _NONE)
    for window, column, row in product(range(windows), range(columns), range(min(rows, height.reach))):
        begin = 0 if form.columns == 1 else (view.left(form) + window) * form.stride - width.pad
        if 0 <= column - begin < width.reach or form.columns == 1:
            named[window, column, row] = row * height.place + column * width.place
    numbers: list[list[list[int]]] = named.tolist()
    return numbers


_KERNEL = Kernel("pool/grad/walks.cu", "max_pool_grad_walks", "WalkPoolGradParams", THREADS, name="max_pool_grad")


def variant(dtype: str, form: WalkForm) -> Variant:
    """Return the kernel variant with these template arguments."""
    label, sizes = f"walks_{form.rows}x{form.stride or 'any'}", (form.rows, form.stride, form.columns, form.across)
    return _KERNEL.over(dtype, 3, label, types=types(dtype), sizes=sizes, blocks_per_sm=_blocks_per_sm(dtype, form))


def _blocks_per_sm(dtype: str, form: WalkForm) -> int:
    """Return the occupancy that leaves a thread its registers: 64, 80 with more windows, 128 with many 64-bit sums."""
    if form.rows > 5 and dtypes.entry(dtype).itemsize == 8:
        return 2
    return 4 if form.across < 4 else 3


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    return [variant(dtype, form) for dtype, form in product(dtypes.CONV_DTYPES, _FORMS)]
