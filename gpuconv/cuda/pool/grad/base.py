"""Shared view of the pooling-gradient kernels whose threads walk down columns of x, one row of windows per step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.plan import MOST_BLOCKS
from gpuconv.cuda.pool.grad.problem import PoolGradProblem
from gpuconv.cuda.pool.problem import MISSING, PoolAxis, PoolView
from gpuconv.rules.geometry import Ints

THREADS = 256
_LONGEST = 256  # most rows of windows per walk, over all kernels
_WALKS = (32, 16, 8, 4, 2, 1)  # rows of windows per walk to try
ONE = replace(MISSING, stride=1)


def walked(problem: PoolGradProblem) -> WalkView | str:
    """Return the view of a problem for walks down columns, or why there is none."""
    axes = problem.forward.axes
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    if any(axis.dilation > 1 for axis in axes):
        return "dilated windows"
    return columns_of(problem)


def columns_of(problem: PoolGradProblem) -> WalkView:
    """Return the view of a problem with up to three axes.

    A 1-D problem walks along its only axis with channels last, otherwise from channel to channel.
    """
    image, channel, *spatial = problem.forward.all_axes
    depth, height, width = (*[ONE] * (3 - len(spatial)), *spatial)
    view = WalkView(image, channel, depth, height, width, channels_last=problem.forward.channels_last)
    if len(spatial) > 1:
        return view if windows_met(depth) == 1 else replace(view, depth=height, height=depth)
    if view.channels_last:
        return replace(view, height=width, width=height)
    return replace(view, channel=ONE, height=channel)


def windows_met(axis: PoolAxis, elements: int = 1) -> int:
    """Return the most windows along an axis that cover ``elements`` adjacent elements."""
    return min(-(-(elements - 1 + axis.reach) // max(axis.stride, 1)), axis.windows)


@dataclass(frozen=True, slots=True)
class Form:
    """The windows that one kernel form handles."""

    rows: int  # rows per window; for averages, rows of windows that cover an element
    stride: int  # stride of the windows along H, and along W for several columns; 0: any
    columns: int  # columns per thread
    across: int  # adjacent windows of one slice that can cover them; 0: any number, in any number of slices
    slices: int = field(default=1, kw_only=True)  # slices per thread


@dataclass(frozen=True, slots=True)
class WalkView(PoolView):
    """The problem as the kernel sees it; x is dx and y is dy, and windows may be empty.

    Threads walk along ``height``. Where windows overlap in depth, or always in some kernels, depth and height are
    exchanged, so that an element's windows are added in row-major order.
    """

    channels_last: bool

    def wide(self, form: Form, counted: Iterable[int]) -> bool:
        """Return whether the kernel, or any of the ``counted`` numbers, exceeds 32-bit indices."""
        return max(*self.magnitudes(form), *counted) >= params.INDEX_LIMIT or self.items(form, 1) > MOST_BLOCKS

    def magnitudes(self, form: Form) -> Iterator[int]:
        """Yield the largest coordinates, rows up to the end of the last walk, and element numbers around x."""
        for axis in self.axes:
            yield from axis.coordinates
            yield axis.extent + abs(axis.pad)
        steps = self.steps(form)
        yield (self.first(form) + steps + min(_LONGEST, steps) + 1) * self.step(form)
        yield self.numbers + 2 * (self.height.reach + abs(self.height.pad)) * self.height.place

    @property
    def numbers(self) -> int:
        """Elements of x."""
        return self.planes * prod(axis.extent for axis in self.axes)

    def left(self, form: Form) -> int:
        """Return the first window of a row that can cover the first of several columns; 0 for one column."""
        width = self.width
        return 0 if form.columns == 1 else (width.pad - width.reach) // form.stride + 1

    def met(self, form: Form) -> int:
        """Return the windows of a row that can cover a thread's columns."""
        width = self.width
        if form.columns == 1:
            return windows_met(width)
        return (form.columns - 1 + width.pad) // form.stride - self.left(form) + 1

    def step(self, form: Form) -> int:
        """Return the rows of x between adjacent rows of windows."""
        return form.stride or max(self.height.stride, 1)

    def first(self, form: Form) -> int:
        """Return the row of windows that walks start with: the last one that starts at or above x's first row."""
        return self.height.pad // self.step(form)

    def steps(self, form: Form) -> int:
        """Return the rows of windows down a column, over all its walks."""
        height, step = self.height, self.step(form)
        return -(-(height.extent + height.pad - self.first(form) * step) // step)

    def halo(self, form: Form) -> int:
        """Return the rows of windows above a walk that can cover some of its elements."""
        return -(-self.height.reach // self.step(form)) - 1

    def items(self, form: Form, walk: int) -> int:
        """Return the number of walks of ``walk`` rows of windows: the threads of the launch."""
        groups = -(-self.depth.extent // form.slices) * -(-self.width.extent // form.columns)
        return self.planes * groups * -(-self.steps(form) // walk)

    def lengths(self, form: Form, walks: Ints | None = None) -> list[int]:
        """Return the rows of windows per thread to try, each dividing a column evenly among its walks."""
        steps = self.steps(form)
        return sorted({-(-steps // -(-steps // walk)) for walk in walks or _WALKS})

    def trips(self, form: Form, walk: int) -> float:
        """Return the load latencies that a thread waits for: one per row of windows and slice.

        Forms with a limited number of windows across prefetch the next row, which halves them.
        """
        rows = walk + self.halo(form)
        return rows / 2 if form.across else rows * windows_met(self.depth, form.slices)

    def fields_of(self, form: Form, walk: int) -> dict[str, Any]:
        """Return the struct fields that all walking kernels have, without those of the arrays."""
        *others, step = self.strides("x")
        return {
            "items": self.items(form, walk),
            "walk": walk,
            "first": self.first(form),
            "halo": self.halo(form),
            "rows": self.height.extent,
            "columns": self.width.extent,
            "vectors": step == 1 and not any(stride % form.columns for stride in others),
            "y_extent": [axis.windows for axis in self.axes],
            "pad": [axis.pad for axis in self.axes],
            "kernel": [axis.reach for axis in self.axes],
            "stride": [axis.stride for axis in self.axes],
            "channels": self.channel.extent,
            "groups": -(-self.width.extent // form.columns),
            "walks": -(-self.steps(form) // walk),
            "depths": -(-self.depth.extent // form.slices),
            "channels_last": self.channels_last,
        }
