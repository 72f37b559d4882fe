"""What MaxPool comes down to: its axes, and which of them the kernels for rows of neighbours take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import floor, launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.rules.geometry import Ints, MaxPoolGeometry, tap_range

OPERATOR = "max_pool"


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis: window ``q`` begins at ``q * stride - pad`` and covers ``reach`` elements.

    Taps that lie outside of the input for every window are cut off, and what then has no effect (the stride of a single
    window, the dilation of a single tap) is made small, so that it asks for no wider indices.
    """

    extent: int
    windows: int
    stride: int
    pad: int
    reach: int
    dilation: int

    @property
    def step(self) -> int:
        """Elements from one tap to the next where two can lie inside the input; else no more than the axis has."""
        return min(self.dilation, self.extent)

    @property
    def coordinates(self) -> Ints:
        """The largest numbers that the kernel computes on the way to the clipped window."""
        last = (self.windows - 1) * self.stride
        return last, abs(self.pad), last - self.pad + self.reach, self.reach, self.dilation


def axis_of(extent: int, windows: int, kernel: int, stride: int, dilation: int, begin: int) -> Axis:
    last = (windows - 1) * stride
    low, high = tap_range(kernel, extent + last, dilation, last - begin)
    if extent == 0 or low == high:
        return Axis(extent, windows, 0, 0, 0, 1)
    pad = begin - low * dilation
    if high - low == 1:
        dilation = 1
    return Axis(extent, windows, stride if windows > 1 else 0, pad, (high - low - 1) * dilation + 1, dilation)


@dataclass(frozen=True)
class Problem:
    """What the families of kernels look at."""

    geometry: MaxPoolGeometry
    dtype: str
    x_strides: Ints
    y_strides: Ints
    indices_strides: Ints | None

    @cached_property
    def axes(self) -> list[Axis]:
        g = self.geometry
        columns = (g.x_shape[2:], g.y_shape[2:], g.kernel_shape, g.strides, g.dilations, g.pads_begin)
        return [axis_of(*numbers) for numbers in zip(*columns, strict=True)]

    @cached_property
    def bytes(self) -> int:
        """The least that crosses the memory bus."""
        return floor.work(self.geometry, self.dtype, indices=self.indices_strides is not None).bytes

    @property
    def channels_last(self) -> bool:
        """Whether channels lie closer together than the elements of any spatial axis, in x and in y."""
        shapes, arrays = (self.geometry.x_shape, self.geometry.y_shape), (self.x_strides, self.y_strides)
        return self.geometry.x_shape[1] > 1 and all(
            abs(strides[1]) < abs(stride)
            for shape, strides in zip(shapes, arrays, strict=True)
            for extent, stride in zip(shape[2:], strides[2:], strict=True)
            if extent > 1
        )

    @property
    def place_strides(self) -> Ints:
        """Per spatial axis, from one element's number to the next one's; zeros where no numbers are asked for."""
        extents = self.geometry.x_shape[2:]
        if self.indices_strides is None:
            return (0,) * len(extents)
        if self.geometry.storage_order:
            return tuple(prod(extents[:axis]) for axis in range(len(extents)))
        return tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))


def used(shape: Ints, strides: Ints) -> Ints:
    """Strides without those of axes that are never stepped along, which may be anything."""
    return tuple(0 if extent <= 1 else stride for extent, stride in zip(shape, strides, strict=True))


def seconds(problem: Problem, instructions: float, limits: Limits) -> float:
    """Model the time of a kernel whose threads execute so many instructions in all."""
    return model.overlapped(model.instructions(instructions, limits), model.memory(problem.bytes, limits))


def one_launch(
    problem: Problem, kernel: Variant, blocks: int, shared: int, fields: Mapping[str, Any], reason: str
) -> Plan:
    """Return the plan of a kernel with so many blocks and bytes of shared memory, and these fields in its struct."""
    launch = launching.of_blocks(OPERATOR, kernel, blocks, fields, roles(problem), shared)
    return Plan(OPERATOR, (launch,), (f"{kernel.name}: {reason}",))


def roles(problem: Problem) -> dict[str, str]:
    """Return the array that each of a kernel's pointers leads to: those have the arrays' names."""
    return {name: name for name in (("x", "y") if problem.indices_strides is None else ("x", "y", "indices"))}


# ---------------------------------------------------------------- rows of neighbours


@dataclass(frozen=True, slots=True)
class Rows:
    """A problem over rows of neighbours, as the faster kernels see it.

    Axes are depth, height and width, missing ones of one element; strides those of batch, channel, depth and height,
    the width's being 1. ``kernel`` is what windows cover, with the gaps of dilated ones. No window is empty.
    """

    x_extent: Ints
    y_extent: Ints
    kernel: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    x_strides: Ints
    y_strides: Ints
    indices_strides: Ints
    images: int
    channels: int

    @property
    def taps(self) -> Ints:
        """Elements of a window on each axis."""
        return tuple((size - 1) // step + 1 for size, step in zip(self.kernel, self.dilation, strict=True))

    @property
    def planes(self) -> int:
        """Channels of all images."""
        return self.images * self.channels

    @property
    def rows_are_neighbours(self) -> bool:
        """Whether the rows of a slice lie one after another."""
        return self.x_extent[1] == 1 or self.x_strides[3] == self.x_extent[2]

    @property
    def planes_are_neighbours(self) -> bool:
        """Whether the planes, of one slice each, lie one after another."""
        size = self.x_extent[1] * self.x_extent[2]
        return (
            self.x_extent[0] == 1
            and self.rows_are_neighbours
            and (self.channels == 1 or self.x_strides[1] == size)
            and (self.images == 1 or self.x_strides[0] == size * self.channels)
        )

    def folded(self) -> Rows:
        """Return planes of one row each as rows of one plane, where numbers allow it: the results are the same."""
        arrays, height = (self.x_strides, self.y_strides, self.indices_strides), self.planes
        if {*self.x_extent[:2], *self.y_extent[:2]} != {1} or height == 1 or height * self.x_extent[2] >= MOST_BLOCKS:
            return self
        if self.images > 1 and any(one[0] != one[1] * self.channels for one in arrays):
            height = self.channels
        x, y, places = ((one[0], 0, 0, one[1] if self.channels > 1 else one[0]) for one in arrays)
        (x_width, y_width), images = (self.x_extent[2], self.y_extent[2]), self.planes // height
        extents: Any = {"x_extent": (1, height, x_width), "y_extent": (1, height, y_width)}
        strides: Any = {"x_strides": x, "y_strides": y, "indices_strides": places}
        return replace(self, **extents, **strides, images=images, channels=1)

    def fields(self) -> dict[str, Any]:
        """Return what the structs of these kernels have in common, where they have it."""
        found: dict[str, Any] = {"planes": self.planes}
        for name in ("x_extent", "y_extent", "kernel", "stride", "pad"):
            found[name] = list(getattr(self, name))
        for name in ("x", "y", "indices"):
            found |= params.array_fields(name, getattr(self, f"{name}_strides"))
        return found


def rows_of(problem: Problem, *, dilated: bool = False) -> Rows | str:
    """Return a problem as rows of neighbours, with dilated windows or without, or why it is none."""
    geometry, why = problem.geometry, window_refusal(problem, dilated=dilated)
    if why is not None:
        return why
    strides = used_strides(problem)
    shapes = (geometry.x_shape, geometry.y_shape, geometry.y_shape)
    for shape, one in list(zip(shapes, strides, strict=True))[: 2 if problem.indices_strides is None else 3]:
        if shape[-1] > 1 and one[-1] != 1:
            return "channels last: " * problem.channels_last + f"neighbours of a row lie {one[-1]} elements apart"
    missing = 3 - len(problem.axes)
    x, y, places = ((*one[:2], *[0] * missing, *one[2:-1]) for one in strides)
    extents, windows, kernel, steps, pads = three_axes(problem)
    dilations = (*[1] * missing, *(axis.dilation for axis in problem.axes))
    return Rows(extents, windows, kernel, steps, dilations, pads, x, y, places, *geometry.x_shape[:2])


def window_refusal(problem: Problem, *, dilated: bool = False) -> str | None:
    """Return why no faster kernel makes these windows."""
    geometry, axes = problem.geometry, problem.axes
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if any(axis.reach == 0 or axis.pad >= axis.reach or _last(axis) >= axis.extent for axis in axes):
        return "some windows are empty"
    if any(axis.dilation > (axis.extent if dilated else 1) for axis in axes):  # longer steps may miss the input
        return "dilated windows"
    if any(axis.pad < 0 for axis in axes):
        return "windows that begin inside the input"
    if problem.indices_strides is not None and geometry.storage_order and sum(n > 1 for n in geometry.x_shape[2:]) > 1:
        return "column-major numbers"
    return None


def used_strides(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return the strides of x, y and the Indices that count; zeros for Indices that are not asked for."""
    x_shape, y_shape = problem.geometry.x_shape, problem.geometry.y_shape
    places = problem.indices_strides or (0,) * len(y_shape)
    return used(x_shape, problem.x_strides), used(y_shape, problem.y_strides), used(y_shape, places)


def three_axes(problem: Problem) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return extents, windows, sizes of windows, strides and pads of depth, height and width."""
    columns = [(axis.extent, axis.windows, axis.reach, max(axis.stride, 1), axis.pad) for axis in problem.axes]
    extents, windows, kernel, steps, pads = zip(*[(1, 1, 1, 1, 0)] * (3 - len(columns)), *columns, strict=True)
    return extents, windows, kernel, steps, pads


def _last(axis: Axis) -> int:
    """Where the last window begins."""
    return (axis.windows - 1) * axis.stride - axis.pad


def whole_vectors(run: int, vector: int) -> int:
    """Elements of the vectors that a run touches at most, wherever it begins."""
    return -(-(run + vector - 1) // vector) * vector
