"""The columns of x that threads of a pool's gradient walk down, from one row of windows to the next."""

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
_LONGEST = 256  # walk of any kernel: rows of windows
_WALKS = (32, 16, 8, 4, 2, 1)  # likewise
ONE = replace(MISSING, stride=1)


def walked(problem: PoolGradProblem) -> WalkView | str:
    """Return a problem as walks down columns see it, or why there are none."""
    axes = problem.forward.axes
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    if any(axis.dilation > 1 for axis in axes):
        return "dilated windows"
    return columns_of(problem)


def columns_of(problem: PoolGradProblem) -> WalkView:
    """Return a problem of up to three axes as the kernel sees it.

    The columns of one axis go along it where channels lie closest together, else from channel to channel.
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
    """Return how many windows of an axis reach so many neighbours at most."""
    return min(-(-(elements - 1 + axis.reach) // max(axis.stride, 1)), axis.windows)


@dataclass(frozen=True, slots=True)
class Form:
    """The windows that one form of a kernel makes."""

    rows: int  # of windows; of averages, that reach an element
    stride: int  # of the windows' rows and, for several columns, of both axes; 0: any
    columns: int  # of a thread
    across: int  # windows beside one another that can meet those, of one slice; 0: any, of any number of slices
    slices: int = field(default=1, kw_only=True)  # of a thread


@dataclass(frozen=True, slots=True)
class WalkView(PoolView):
    """A problem as the kernel sees it: x and y are dx and dy, windows may be empty.

    Its columns go along the height: where windows overlap in depth that changes places with it, or always, so that each
    element's windows come in row-major order.
    """

    channels_last: bool

    def wide(self, form: Form, counted: Iterable[int]) -> bool:
        """Tell whether 32 bits do not hold what a kernel counts, or arrays' spans and the like that are given too."""
        return max(*self.magnitudes(form), *counted) >= params.INDEX_LIMIT or self.items(form, 1) > MOST_BLOCKS

    def magnitudes(self, form: Form) -> Iterator[int]:
        """Coordinates, rows up to where the last walk may end, and numbers with the rows around them."""
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
        """Return the first window of a row that can meet the first of several columns; 0 for one column."""
        width = self.width
        return 0 if form.columns == 1 else (width.pad - width.reach) // form.stride + 1

    def met(self, form: Form) -> int:
        """Return how many windows of a row can meet a thread's columns."""
        width = self.width
        if form.columns == 1:
            return windows_met(width)
        return (form.columns - 1 + width.pad) // form.stride - self.left(form) + 1

    def step(self, form: Form) -> int:
        """Return the rows of x from one row of windows to the next."""
        return form.stride or max(self.height.stride, 1)

    def first(self, form: Form) -> int:
        """Return which row of windows the first walk begins with: the last one that begins where x does, or above."""
        return self.height.pad // self.step(form)

    def steps(self, form: Form) -> int:
        """Return how many rows of windows all walks down a column make."""
        height, step = self.height, self.step(form)
        return -(-(height.extent + height.pad - self.first(form) * step) // step)

    def halo(self, form: Form) -> int:
        """Return how many rows of windows above a walk can reach into it."""
        return -(-self.height.reach // self.step(form)) - 1

    def items(self, form: Form, walk: int) -> int:
        """Return how many walks of so many rows of windows there are."""
        groups = -(-self.depth.extent // form.slices) * -(-self.width.extent // form.columns)
        return self.planes * groups * -(-self.steps(form) // walk)

    def lengths(self, form: Form, walks: Ints | None = None) -> list[int]:
        """Return how many rows of windows a thread may make, about as many in all walks down a column."""
        steps = self.steps(form)
        return sorted({-(-steps // -(-steps // walk)) for walk in walks or _WALKS})

    def trips(self, form: Form, walk: int) -> float:
        """Return how often a thread waits for memory: for each row of windows, and each slice; lanes share windows.

        Threads that have up to so many windows across load those of the next row before they wait for this one's.
        """
        rows = walk + self.halo(form)
        return rows / 2 if form.across else rows * windows_met(self.depth, form.slices)

    def fields_of(self, form: Form, walk: int) -> dict[str, Any]:
        """Return what the structs of all walks of so many rows of windows have, but for the arrays."""
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
