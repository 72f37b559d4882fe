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
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.pool.grad.problem import OPERATOR, Problem, one_launch, seconds
from gpuconv.cuda.pool.problem import Axis
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "walks"
_THREADS = 256
_NAMED = tuple(structs.constant(f"kMost{each}", "pool/grad/walks.cu") for each in ("Windows", "Columns", "Rows"))
_WALKS = (32, 16, 8, 4, 2, 1)  # rows of windows
WINDOWS_WANTED = 2048  # that threads of each multiprocessor load at a time; for fewer of them, shorter walks
_OF_ANY = 55  # instructions of each row of windows besides, where the stride is any; counted
_NONE = 2**31  # from a number to one that no element has
_ONE = Axis(1, 1, 1, 0, 1, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is for.

    Attributes
    ----------
    rows, stride : int
        Of windows; the stride is that of their rows and, for several columns, of both axes; 0: any.
    columns, across : int
        Of a thread, and windows beside one another that can meet those, of one slice; 0: any, of any number of slices.
    walk : int
        Instructions of a thread.
    windows : tuple of int
        Those of each of its rows of windows, or parts of one, for elements of 16 bits, float32 and float64.
    row, part : int
        Where the stride is any: those of each row of x; windows that are loaded at a time. Instructions are counted.
    """

    rows: int
    stride: int
    columns: int
    across: int
    walk: int
    windows: tuple[int, int, int]
    row: int = 0
    part: int = 0


# The first that do are taken.
_SHAPES = (
    Shape(1, 1, 1, 1, 200, (26, 18, 19)),
    Shape(2, 2, 2, 1, 200, (46, 37, 41)),
    Shape(3, 2, 2, 2, 240, (83, 70, 103)),
    Shape(3, 1, 2, 4, 260, (125, 108, 152)),
    Shape(5, 0, 1, 0, 260, (43, 42, 65), 14, 2),
    Shape(13, 0, 1, 0, 260, (153, 150, 260), 25, 4),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """A problem as the kernel sees it: with depth, height and width, missing axes of one element.

    Its columns go along the height: where windows overlap in depth that changes places with it, so that each element's
    windows come in row-major order. Strides are those of batch, channel, depth, height and width; ``places`` those of
    the elements' numbers.
    """

    axes: tuple[Axis, Axis, Axis]
    images: int
    channels: int
    dx: Ints
    dy: Ints
    indices: Ints
    places: Ints
    channels_last: bool

    @property
    def magnitudes(self) -> Iterator[int]:
        """What must fit into 32 bits beside the arrays; numbers with the rows around them."""
        for axis in self.axes:
            yield from axis.coordinates
            yield axis.extent + abs(axis.pad)
        height = self.axes[1]
        yield self.numbers + 2 * (height.reach + abs(height.pad)) * self.places[3]

    @property
    def numbers(self) -> int:
        """Elements of x."""
        return self.images * self.channels * prod(axis.extent for axis in self.axes)

    def accepts(self, shape: Shape) -> bool:
        """Tell whether the windows are those of a kernel."""
        depth, height, width = self.axes
        strided = (height, width) if shape.columns > 1 else (height,)
        strides = {axis.stride for axis in strided if axis.windows > 1}
        if height.reach > shape.rows or (shape.stride > 0 and not strides <= {shape.stride}):
            return False
        return shape.across == 0 or (_met(depth) == 1 and self.met(shape) <= shape.across)

    def left(self, shape: Shape) -> int:
        """Return the first window of a row that can meet the first of several columns."""
        width = self.axes[2]
        return (width.pad - width.reach) // shape.stride + 1

    def met(self, shape: Shape) -> int:
        """Return how many windows of a row can meet a thread's columns."""
        width = self.axes[2]
        if shape.columns == 1:
            return _met(width)
        return (shape.columns - 1 + width.pad) // shape.stride - self.left(shape) + 1

    def named(self, shape: Shape) -> list[list[list[int]]]:
        """Return the struct's field: what each window can name, by columns and rows."""
        windows, columns, rows = _NAMED
        (_, height, width), found = self.axes, np.full(_NAMED, _NONE)
        for window, column, row in product(range(windows), range(columns), range(min(rows, height.reach))):
            begin = 0 if shape.columns == 1 else (self.left(shape) + window) * shape.stride - width.pad
            if 0 <= column - begin < width.reach or shape.columns == 1:
                found[window, column, row] = row * self.places[3] + column * self.places[4]
        numbers: list[list[list[int]]] = found.tolist()
        return numbers

    def step(self, shape: Shape) -> int:
        """Return the rows of x from one row of windows to the next."""
        return shape.stride or max(self.axes[1].stride, 1)

    def first(self, shape: Shape) -> int:
        """Return which row of windows the first walk begins with: the last one that begins where x does, or above."""
        return self.axes[1].pad // self.step(shape)

    def steps(self, shape: Shape) -> int:
        """Return how many rows of windows all walks down a column make."""
        height, step = self.axes[1], self.step(shape)
        return -(-(height.extent + height.pad - self.first(shape) * step) // step)

    def halo(self, shape: Shape) -> int:
        """Return how many rows of windows above a walk can reach into it."""
        return -(-self.axes[1].reach // self.step(shape)) - 1

    def items(self, shape: Shape, walk: int) -> int:
        """Return how many walks of so many rows of windows there are."""
        depth, _, width = self.axes
        planes = self.images * self.channels * depth.extent
        return planes * -(-width.extent // shape.columns) * -(-self.steps(shape) // walk)

    def walk(self, shape: Shape, limits: Limits) -> int:
        """Return how many rows of windows a thread makes: as many as leave every multiprocessor enough to do."""
        steps, wanted = self.steps(shape), WINDOWS_WANTED * limits.multiprocessors
        longest = next((walk for walk in _WALKS if self.items(shape, walk) * self.met(shape) >= wanted), 1)
        return -(-steps // -(-steps // longest))


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    accepted = _accepted(problem)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    columns, shape = accepted
    kernel = variant(problem.dtype, shape)
    time = seconds(problem, _instructions(columns, shape, problem.dtype, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(columns, shape, kernel, limits))


def _accepted(problem: Problem) -> tuple[Columns, Shape] | str:
    axes = problem.axes
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    if any(axis.dilation > 1 for axis in axes):
        return "dilated windows"
    columns = columns_of(problem)
    shape = next(filter(columns.accepts, _SHAPES), None)
    if shape is None:
        return f"windows of {columns.axes[1].reach} rows"
    spans = [params.span(problem.shapes[name], strides) for name, strides in problem.arrays.items()]
    wide = params.needs_wide(OPERATOR, [*columns.magnitudes, *spans])
    return "64-bit indices" if wide or columns.items(shape, 1) > MOST_BLOCKS else (columns, shape)


def columns_of(problem: Problem) -> Columns:
    """Return a problem of up to three axes as the kernel sees it.

    The columns of one axis go along it where channels lie closest together, else from channel to channel.
    """
    g, axes = problem.geometry, problem.axes
    plane, missing = prod(g.x_shape[2:]), 3 - len(axes)
    images, channels = g.x_shape[:2]
    places = (channels * plane, plane, *problem.place_strides)
    dx, dy, indices, numbers = (
        (*one[:2], *[0] * missing, *one[2:])
        for one in (problem.dx_strides, problem.dy_strides, problem.indices_strides, places)
    )
    depth, height, width = (*[_ONE] * missing, *axes)
    found = Columns((depth, height, width), images, channels, dx, dy, indices, numbers, problem.channels_last)
    if len(axes) > 1:
        return found if _met(depth) == 1 else _turned(found, 0)
    return _turned(found, 2) if found.channels_last else _folded(found)


def _turned(columns: Columns, axis: int) -> Columns:
    """Return the problem with its height in the place of another axis, and that in the height's."""
    order = [1, 0, 2] if axis == 0 else [0, 2, 1]
    depth, height, width = (columns.axes[at] for at in order)
    dx, dy, indices, places = (
        (*one[:2], *(one[2 + at] for at in order)) for one in (columns.dx, columns.dy, columns.indices, columns.places)
    )
    return replace(columns, axes=(depth, height, width), dx=dx, dy=dy, indices=indices, places=places)


def _folded(columns: Columns) -> Columns:
    """Return the channels of an image, of one row each, as the rows of one channel."""
    depth, _, width = columns.axes
    height = Axis(columns.channels, columns.channels, 1, 0, 1, 1)
    dx, dy, indices, places = (
        (one[0], 0, 0, one[1], one[4]) for one in (columns.dx, columns.dy, columns.indices, columns.places)
    )
    return replace(columns, axes=(depth, height, width), channels=1, dx=dx, dy=dy, indices=indices, places=places)


def _met(axis: Axis) -> int:
    """Return how many windows of an axis reach an element at most."""
    return min(-(-axis.reach // max(axis.stride, 1)), axis.windows)


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/grad/walks.cu", "max_pool_grad_walks", "WalkPoolGradParams", _THREADS, name="max_pool_grad")


def variant(dtype: str, shape: Shape) -> Variant:
    """Return the kernel for a dtype and a shape of windows."""
    form, sizes = f"walks_{shape.rows}x{shape.stride or 'any'}", (shape.rows, shape.stride, shape.columns, shape.across)
    return _KERNEL.over(dtype, 3, form, types=types(dtype), sizes=sizes, blocks_per_sm=_blocks_per_sm(dtype, shape))


def _blocks_per_sm(dtype: str, shape: Shape) -> int:
    """As many as leave a thread the registers that it uses: 64, 80 with more windows, or 128 with many wide sums."""
    if shape.rows > 5 and dtypes.entry(dtype).itemsize == 8:
        return 2
    return 4 if shape.across < 4 else 3


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(dtype, shape) for dtype, shape in product(dtypes.CONV_DTYPES, _SHAPES)]


# ---------------------------------------------------------------- launches


def _instructions(columns: Columns, shape: Shape, dtype: str, limits: Limits) -> float:
    """Of all threads."""
    walk, size = columns.walk(shape, limits), dtypes.entry(dtype).itemsize
    steps, of_windows = walk + columns.halo(shape), shape.windows[size // 4]
    of_rows = (_OF_ANY + shape.row * columns.step(shape)) * steps if shape.stride == 0 else 0
    if shape.across == 0:
        steps = min(steps, columns.axes[1].windows)
        of_windows *= _met(columns.axes[0]) * -(-columns.met(shape) // shape.part)
    return columns.items(shape, walk) * (shape.walk + of_rows + of_windows * steps)


def _plan(columns: Columns, shape: Shape, kernel: Variant, limits: Limits) -> Plan:
    walk, (depth, height, width) = columns.walk(shape, limits), columns.axes
    items = columns.items(shape, walk)
    whole = columns.dx[4] == 1 and not any(step % shape.columns for step in columns.dx[:4])
    fields: dict[str, Any] = {
        "numbers": columns.numbers,
        "items": items,
        "walk": walk,
        "first": columns.first(shape),
        "halo": columns.halo(shape),
        "left": columns.left(shape) if shape.columns > 1 else 0,
        "rows": height.extent,
        "columns": width.extent,
        "pairs": whole,
        "y_extent": [axis.windows for axis in columns.axes],
        "pad": [axis.pad for axis in columns.axes],
        "kernel": [axis.reach for axis in columns.axes],
        "named": columns.named(shape),
        "stride": [axis.stride for axis in columns.axes],
        "channels": columns.channels,
        "groups": -(-width.extent // shape.columns),
        "walks": -(-columns.steps(shape) // walk),
        "depths": depth.extent,
        "channels_last": columns.channels_last,
    }
    arrays = {"dx": columns.dx, "dy": columns.dy, "indices": columns.indices, "place": columns.places}
    for name, strides in arrays.items():
        fields |= params.array_fields(name, strides)
    reason = (
        f"{'channels last: ' * columns.channels_last}{shape.columns} columns of {walk * columns.step(shape)} elements "
        "a thread"
    )
    return one_launch(kernel, items, fields, reason)
