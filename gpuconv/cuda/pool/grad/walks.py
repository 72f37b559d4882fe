"""The gradient of MaxPool down the columns of x, for windows of few rows.

The kernel is in ``kernels_cu/pool/grad/walks.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch, seconds
from gpuconv.cuda.pool.problem import MISSING, PoolAxis, PoolView
from gpuconv.rules import dtypes

NAME = "walks"
_THREADS = 256
_NAMED = tuple(structs.constant(f"kMost{axis}", "pool/grad/walks.cu") for axis in ("Windows", "Columns", "Rows"))
_WALKS = (32, 16, 8, 4, 2, 1)  # rows of windows
WINDOWS_WANTED = 2048  # that threads of each multiprocessor load at a time; for fewer of them, shorter walks
_OF_ANY = 55  # instructions of each row of windows besides, where the stride is any; counted
_NONE = 2**31  # from a number to one that no element has
_ONE = replace(MISSING, stride=1)


# ---------------------------------------------------------------- what it sees


def _accepted(problem: PoolGradProblem) -> tuple[WalkView, WalkForm] | str:
    axes = problem.forward.axes
    if problem.forward.averages:
        return "averages"
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    if any(axis.dilation > 1 for axis in axes):
        return "dilated windows"
    columns = columns_of(problem)
    form = next(filter(columns.accepts, _FORMS), None)
    if form is None:
        return f"windows of {columns.height.reach} rows"
    wide = params.needs_wide(problem.operator, [*columns.magnitudes, *problem.spans])
    return "64-bit indices" if wide or columns.items(form, 1) > MOST_BLOCKS else (columns, form)


def columns_of(problem: PoolGradProblem) -> WalkView:
    """Return a problem of up to three axes as the kernel sees it.

    The columns of one axis go along it where channels lie closest together, else from channel to channel.
    """
    image, channel, *spatial = problem.forward.all_axes
    depth, height, width = (*[_ONE] * (3 - len(spatial)), *spatial)
    view = WalkView(image, channel, depth, height, width, channels_last=problem.forward.channels_last)
    if len(spatial) > 1:
        return view if _met(depth) == 1 else replace(view, depth=height, height=depth)
    if view.channels_last:
        return replace(view, height=width, width=height)
    return replace(view, channel=_ONE, height=channel)


def _met(axis: PoolAxis) -> int:
    """Return how many windows of an axis reach an element at most."""
    return min(-(-axis.reach // max(axis.stride, 1)), axis.windows)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class WalkForm:
    """The windows that one form of the kernel makes."""

    rows: int  # of windows
    stride: int  # of the windows' rows and, for several columns, of both axes; 0: any
    columns: int  # of a thread
    across: int  # windows beside one another that can meet those, of one slice; 0: any, of any number of slices
    walk: int  # instructions of a thread; counted, as those below
    # Of each of its rows of windows, or parts of one, for elements of 16 bits, float32 and float64
    windows: tuple[int, int, int]
    row: int = 0  # of each row of x where the stride is any
    part: int = 0  # windows that are loaded at a time where it is


# The first that do are taken.
_FORMS = (
    WalkForm(1, 1, 1, 1, 200, (26, 18, 19)),
    WalkForm(2, 2, 2, 1, 200, (46, 37, 41)),
    WalkForm(3, 2, 2, 2, 240, (83, 70, 103)),
    WalkForm(3, 1, 2, 4, 260, (125, 108, 152)),
    WalkForm(5, 0, 1, 0, 260, (43, 42, 65), 14, 2),
    WalkForm(13, 0, 1, 0, 260, (153, 150, 260), 25, 4),
)


@dataclass(frozen=True, slots=True)
class WalkView(PoolView):
    """A problem as the kernel sees it: x and y are dx and dy, windows may be empty.

    Its columns go along the height: where windows overlap in depth that changes places with it, so that each element's
    windows come in row-major order.
    """

    channels_last: bool

    @property
    def magnitudes(self) -> Iterator[int]:
        """What must fit into 32 bits beside the arrays; numbers with the rows around them."""
        for axis in self.axes:
            yield from axis.coordinates
            yield axis.extent + abs(axis.pad)
        yield self.numbers + 2 * (self.height.reach + abs(self.height.pad)) * self.height.place

    @property
    def numbers(self) -> int:
        """Elements of x."""
        return self.planes * prod(axis.extent for axis in self.axes)

    def accepts(self, form: WalkForm) -> bool:
        """Tell whether the windows are those of a kernel."""
        height = self.height
        strided = (height, self.width) if form.columns > 1 else (height,)
        strides = {axis.stride for axis in strided if axis.windows > 1}
        if height.reach > form.rows or (form.stride > 0 and not strides <= {form.stride}):
            return False
        return form.across == 0 or (_met(self.depth) == 1 and self.met(form) <= form.across)

    def left(self, form: WalkForm) -> int:
        """Return the first window of a row that can meet the first of several columns."""
        width = self.width
        return (width.pad - width.reach) // form.stride + 1

    def met(self, form: WalkForm) -> int:
        """Return how many windows of a row can meet a thread's columns."""
        width = self.width
        if form.columns == 1:
            return _met(width)
        return (form.columns - 1 + width.pad) // form.stride - self.left(form) + 1

    def named(self, form: WalkForm) -> list[list[list[int]]]:
        """Return the struct's field: what each window can name, by columns and rows."""
        windows, columns, rows = _NAMED
        height, width, named = self.height, self.width, np.full(_NAMED, _NONE)
        for window, column, row in product(range(windows), range(columns), range(min(rows, height.reach))):
            begin = 0 if form.columns == 1 else (self.left(form) + window) * form.stride - width.pad
            if 0 <= column - begin < width.reach or form.columns == 1:
                named[window, column, row] = row * height.place + column * width.place
        numbers: list[list[list[int]]] = named.tolist()
        return numbers

    def step(self, form: WalkForm) -> int:
        """Return the rows of x from one row of windows to the next."""
        return form.stride or max(self.height.stride, 1)

    def first(self, form: WalkForm) -> int:
        """Return which row of windows the first walk begins with: the last one that begins where x does, or above."""
        return self.height.pad // self.step(form)

    def steps(self, form: WalkForm) -> int:
        """Return how many rows of windows all walks down a column make."""
        height, step = self.height, self.step(form)
        return -(-(height.extent + height.pad - self.first(form) * step) // step)

    def halo(self, form: WalkForm) -> int:
        """Return how many rows of windows above a walk can reach into it."""
        return -(-self.height.reach // self.step(form)) - 1

    def items(self, form: WalkForm, walk: int) -> int:
        """Return how many walks of so many rows of windows there are."""
        return self.planes * self.depth.extent * -(-self.width.extent // form.columns) * -(-self.steps(form) // walk)

    def walk(self, form: WalkForm, limits: Limits) -> int:
        """Return how many rows of windows a thread makes: as many as leave every multiprocessor enough to do."""
        steps, wanted = self.steps(form), WINDOWS_WANTED * limits.multiprocessors
        longest = next((walk for walk in _WALKS if self.items(form, walk) * self.met(form) >= wanted), 1)
        return -(-steps // -(-steps // longest))


# ---------------------------------------------------------------- cost


def _instructions(columns: WalkView, form: WalkForm, dtype: str, limits: Limits) -> float:
    """Return how many instructions all threads execute."""
    walk, size = columns.walk(form, limits), dtypes.entry(dtype).itemsize
    steps, of_windows = walk + columns.halo(form), form.windows[size // 4]
    of_rows = (_OF_ANY + form.row * columns.step(form)) * steps if form.stride == 0 else 0
    if form.across == 0:
        steps = min(steps, columns.height.windows)
        of_windows *= _met(columns.depth) * -(-columns.met(form) // form.part)
    return columns.items(form, walk) * (form.walk + of_rows + of_windows * steps)


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    accepted = _accepted(problem)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    columns, form = accepted
    kernel = variant(problem.dtype, form)
    time = seconds(problem, _instructions(columns, form, problem.dtype, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, columns, form, kernel, limits))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, columns: WalkView, form: WalkForm, kernel: Variant, limits: Limits) -> Plan:
    walk = columns.walk(form, limits)
    items = columns.items(form, walk)
    *others, step = columns.strides("x")
    pairs = step == 1 and not any(stride % form.columns for stride in others)
    fields: dict[str, Any] = {
        "numbers": columns.numbers,
        "items": items,
        "walk": walk,
        "first": columns.first(form),
        "halo": columns.halo(form),
        "left": columns.left(form) if form.columns > 1 else 0,
        "rows": columns.height.extent,
        "columns": columns.width.extent,
        "pairs": pairs,
        "y_extent": [axis.windows for axis in columns.axes],
        "pad": [axis.pad for axis in columns.axes],
        "kernel": [axis.reach for axis in columns.axes],
        "named": columns.named(form),
        "stride": [axis.stride for axis in columns.axes],
        "channels": columns.channel.extent,
        "groups": -(-columns.width.extent // form.columns),
        "walks": -(-columns.steps(form) // walk),
        "depths": columns.depth.extent,
        "channels_last": columns.channels_last,
    }
    for name, array in (("dx", "x"), ("dy", "y"), ("indices", "indices"), ("place", "place")):
        fields |= params.array_fields(name, columns.strides(array))
    reason = (
        f"{'channels last: ' * columns.channels_last}{form.columns} columns of {walk * columns.step(form)} elements "
        "a thread"
    )
    return one_launch(problem, kernel, items, fields, reason)


_KERNEL = Kernel("pool/grad/walks.cu", "max_pool_grad_walks", "WalkPoolGradParams", _THREADS, name="max_pool_grad")


def variant(dtype: str, form: WalkForm) -> Variant:
    label, sizes = f"walks_{form.rows}x{form.stride or 'any'}", (form.rows, form.stride, form.columns, form.across)
    return _KERNEL.over(dtype, 3, label, types=types(dtype), sizes=sizes, blocks_per_sm=_blocks_per_sm(dtype, form))


def _blocks_per_sm(dtype: str, form: WalkForm) -> int:
    """Return the blocks that leave a thread its registers: 64, 80 with more windows, or 128 with many wide sums."""
    if form.rows > 5 and dtypes.entry(dtype).itemsize == 8:
        return 2
    return 4 if form.across < 4 else 3


def variants() -> list[Variant]:
    return [variant(dtype, form) for dtype, form in product(dtypes.CONV_DTYPES, _FORMS)]
