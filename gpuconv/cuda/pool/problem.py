"""The normalised pooling problem: a tuple of axes, and views of it for the kernels with 32-bit indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import MOST_BLOCKS, Launch, Limits, Plan, floor, model
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import AveragePoolGeometry, Ints, MaxPoolGeometry, tap_range

Geometry = MaxPoolGeometry | AveragePoolGeometry
_ARRAYS = ("x", "y", "indices")
AHEAD = (3, 4)  # spatial axes of the general kernels that are built ahead, with 32-bit and with 64-bit indices
_WARP = 32
WIDTHS = ((False, AHEAD[0]), (False, AHEAD[1]), (True, AHEAD[1]))


# ---------------------------------------------------------------- axes


@dataclass(frozen=True, slots=True)
class Counted:
    """Which taps of a window count for the average.

    Tap t of window q counts if its coordinate ``stride * q - shift + t * dilation`` is in [0, ``extent``). ``taps``
    leaves out those that count for no window.
    """

    taps: int = 1
    shift: int = 0
    extent: int = 1
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class PoolAxis:
    """One axis of a pooling problem: window ``q`` starts at ``q * stride - pad`` and spans ``reach`` elements.

    Taps that are out of bounds for every window are removed. Values without effect (the stride of a single window, the
    dilation of a single tap) are normalised, so that they do not ask for wider indices.

    ``x``, ``y`` and ``indices`` are these arrays' strides in elements, 0 for axes of length 1. ``place`` is the
    difference of Indices between adjacent elements. ``counted`` is used by averages only.
    """

    extent: int
    windows: int
    stride: int
    pad: int
    reach: int
    dilation: int
    x: int = 0
    y: int = 0
    indices: int = 0
    place: int = 0
    counted: Counted = Counted()

    @property
    def taps(self) -> int:
        """Taps per window."""
        return (self.reach - 1) // self.dilation + 1

    @property
    def step(self) -> int:
        """Elements between adjacent taps; limited to the axis's length where no two taps can be in bounds."""
        return min(self.dilation, self.extent)

    @property
    def coordinates(self) -> Ints:
        """The largest values that the kernel computes while it clips a window to the input."""
        last = (self.windows - 1) * self.stride
        return last, abs(self.pad), last - self.pad + self.reach, self.reach, self.dilation


def count_of(axis: PoolAxis, kernel: int, dilation: int, low: int, high: int, begin: int) -> Counted:
    """Return which taps of an axis's windows count for the average, in coordinates from ``low`` to before ``high``."""
    if (low, high) == (0, axis.extent):  # taps that are never in bounds are removed
        return Counted(axis.taps if axis.reach else 0, axis.pad, axis.extent, axis.dilation)
    most = (high - low - 1) // dilation + 1
    taps = max(0, min(kernel, most))
    return Counted(taps, begin + low, high - low, dilation if taps > 1 else 1)


MISSING = PoolAxis(1, 1, 0, 0, 1, 1)  # an axis of one element, prepended to problems with fewer axes than a kernel


def axis_of(extent: int, windows: int, kernel: int, stride: int, dilation: int, begin: int) -> PoolAxis:
    """Return an axis with its out-of-bounds taps removed and values without effect normalised."""
    last = (windows - 1) * stride
    low, high = tap_range(kernel, extent + last, dilation, last - begin)
    if extent == 0 or low == high:
        return PoolAxis(extent, windows, 0, 0, 0, 1)
    pad = begin - low * dilation
    if high - low == 1:
        dilation = 1
    return PoolAxis(extent, windows, stride if windows > 1 else 0, pad, (high - low - 1) * dilation + 1, dilation)


def used(shape: Ints, strides: Ints) -> Ints:
    """Return strides with those of axes of length 1, which may be arbitrary, set to 0."""
    return tuple(0 if extent <= 1 else stride for extent, stride in zip(shape, strides, strict=True))


@dataclass(frozen=True)
class PoolProblem:
    """One pooling call: geometry, dtype, and the strides of its arrays in elements."""

    geometry: Geometry
    dtype: str
    x_strides: Ints
    y_strides: Ints
    indices_strides: Ints | None

    @cached_property
    def all_axes(self) -> tuple[PoolAxis, ...]:
        """All axes: batch, channel, then the spatial ones."""
        g, shape = self.geometry, self.geometry.x_shape
        columns = (shape[2:], g.y_shape[2:], g.kernel_shape, g.strides, g.dilations, g.pads_begin)
        axes = [PoolAxis(extent, extent, 1, 0, 1, 1) for extent in shape[:2]]
        axes += [axis_of(*numbers) for numbers in zip(*columns, strict=True)]
        if isinstance(g, AveragePoolGeometry):
            axes[:2] = (replace(axis, counted=Counted(extent=axis.extent)) for axis in axes[:2])
            others = zip(axes[2:], g.kernel_shape, g.dilations, g.counted, g.pads_begin, strict=True)
            axes[2:] = [replace(axis, counted=count_of(axis, k, d, *limits, b)) for axis, k, d, limits, b in others]
        strides = (
            used(shape, self.x_strides),
            used(g.y_shape, self.y_strides),
            used(g.y_shape, self.indices_strides or (0,) * len(shape)),
            (shape[1] * self.plane_step, self.plane_step, *self.place_strides),
        )
        return tuple(
            replace(axis, x=x, y=y, indices=indices, place=place)
            for axis, x, y, indices, place in zip(axes, *strides, strict=True)
        )

    @property
    def axes(self) -> tuple[PoolAxis, ...]:
        """The spatial axes."""
        return self.all_axes[2:]

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays: x, y and, if asked for, indices."""
        return _ARRAYS if self.named else _ARRAYS[:2]

    @property
    def averages(self) -> bool:
        """Whether the operator is AveragePool."""
        return isinstance(self.geometry, AveragePoolGeometry)

    @property
    def operator(self) -> str:
        """Name of the public function."""
        return "average_pool" if self.averages else "max_pool"

    @property
    def named(self) -> bool:
        """Whether Indices are asked for."""
        return self.indices_strides is not None

    @property
    def column_major(self) -> bool:
        """Whether Indices are asked for with storage_order=1 (column-major)."""
        return self.named and isinstance(self.geometry, MaxPoolGeometry) and bool(self.geometry.storage_order)

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element."""
        return dtypes.entry(self.dtype).itemsize

    @cached_property
    def bytes(self) -> int:
        """Minimum memory traffic in bytes."""
        return floor.work(self.geometry, self.dtype, indices=self.named).bytes

    @property
    def channels_last(self) -> bool:
        """Whether channels have a smaller stride than every spatial axis, in x and in y."""
        _, channel, *spatial = self.all_axes
        steps = [(channel.x, axis.x) for axis in spatial if axis.extent > 1]
        steps += [(channel.y, axis.y) for axis in spatial if axis.windows > 1]
        return channel.extent > 1 and all(abs(nearer) < abs(farther) for nearer, farther in steps)

    @property
    def plane_step(self) -> int:
        """Difference of Indices between adjacent planes; 0 if each plane is numbered from 0."""
        if self.named and isinstance(self.geometry, MaxPoolGeometry):
            return self.geometry.plane_step
        return prod(self.geometry.x_shape[2:])

    @property
    def place_strides(self) -> Ints:
        """Difference of Indices between adjacent elements, per spatial axis; zeros without Indices."""
        extents = self.geometry.x_shape[2:]
        if not self.named:
            return (0,) * len(extents)
        if self.column_major:
            return tuple(prod(extents[:axis]) for axis in range(len(extents)))
        return tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))


def counted_fields(axes: Iterable[PoolAxis]) -> dict[str, list[int]]:
    """Return the struct's fields that say which taps count for averages."""
    counted = [axis.counted for axis in axes]
    return {name: [getattr(each, name) for each in counted] for name in ("taps", "shift", "extent", "dilation")}


def blocks_of(
    kernel: Variant,
    threads: int,
    instructions: float,
    trips: float,
    limits: Limits,
    shared_bytes: int = 0,
    longest: float = 0.0,
) -> model.Blocks:
    """Return the launch, for the cost model, of ``threads`` threads that share ``instructions`` evenly.

    ``instructions`` counts those of all threads. ``trips`` (at least 1) and ``longest`` are as in
    :class:`model.Blocks`.
    """
    number = -(-threads // kernel.threads)
    warps = -(-min(threads, kernel.threads) // _WARP)
    resident = min(kernel.blocks_per_sm, limits.blocks_of(shared_bytes))
    return model.Blocks(number, warps, instructions / number, max(trips, 1.0), resident, longest)


def fresh(axis: PoolAxis) -> float:
    """Return the fraction of a window's elements along an axis that the previous window does not have."""
    return min(1.0, axis.stride / max(axis.reach, 1)) if axis.windows > 1 else 1.0


def one_launch(
    problem: PoolProblem, kernel: Variant, blocks: int, shared: int, fields: Mapping[str, Any], reason: str
) -> Plan:
    """Return the plan of a single launch with ``blocks`` blocks and ``shared`` bytes of shared memory each."""
    roles = {name: name for name in problem.arrays}
    launch = Launch.of_blocks(problem.operator, kernel, blocks, fields, roles, shared)
    return Plan(problem.operator, (launch,), (f"{kernel.name}: {reason}",))


# ---------------------------------------------------------------- views


@dataclass(frozen=True, slots=True)
class PoolView:
    """A problem with three spatial axes (leading ones may have one element) and no empty windows."""

    image: PoolAxis
    channel: PoolAxis
    depth: PoolAxis
    height: PoolAxis
    width: PoolAxis

    @property
    def axes(self) -> tuple[PoolAxis, PoolAxis, PoolAxis]:
        """The spatial axes."""
        return self.depth, self.height, self.width

    @property
    def planes(self) -> int:
        """Number of planes: batch × channels."""
        return self.image.extent * self.channel.extent

    def strides(self, array: str) -> Ints:
        """Return the strides of "x", "y" or "indices", or of Indices themselves ("place"); W is last."""
        return tuple(getattr(axis, array) for axis in (self.image, self.channel, *self.axes))

    def contiguous(self, array: str, planes: int) -> bool:
        """Return whether the rows of a slice are contiguous in an array, and ``planes`` planes of one slice each."""
        depth, rows, columns = (axis.extent if array == "x" else axis.windows for axis in self.axes)
        image, channel, _, row, _ = self.strides(array)
        size = rows * columns
        if rows > 1 and row != columns:
            return False
        return planes == 1 or (
            depth == 1
            and (self.channel.extent == 1 or channel == size)
            and (self.image.extent == 1 or image == size * self.channel.extent)
        )

    def folded(self) -> PoolView:
        """Return planes of a single row as rows of a single plane, if Indices allow it; results are the same."""
        flat = {self.depth.extent, self.depth.windows, self.height.extent, self.height.windows} == {1}
        if not flat or self.planes == 1 or self.planes * self.width.extent >= MOST_BLOCKS or self.channel.place == 0:
            return self
        rows, (image, channel) = self.planes, (self.image, self.channel)
        if image.extent > 1 and any(getattr(image, a) != getattr(channel, a) * channel.extent for a in _ARRAYS):
            rows = channel.extent
        height = replace(
            channel if channel.extent > 1 else image, extent=rows, windows=rows, counted=Counted(extent=rows)
        )
        image = replace(image, extent=self.planes // rows, place=rows * self.width.extent)
        return replace(self, image=image, channel=MISSING, height=height)

    def fields(self, kernel: Variant) -> dict[str, Any]:
        """Return the struct's fields for the axes; structs of kernels for contiguous rows have no stride along W."""
        members: dict[str, Any] = {
            "planes": self.planes,
            "plane": (self.channel if self.channel.extent > 1 else self.image).place,
            "channels": self.channel.extent,
            "x_extent": [axis.extent for axis in self.axes],
            "y_extent": [axis.windows for axis in self.axes],
            "kernel": [axis.taps for axis in self.axes],
            "stride": [axis.stride for axis in self.axes],
            "dilation": [axis.dilation for axis in self.axes],
            "pad": [axis.pad for axis in self.axes],
            "counted": counted_fields(self.axes),
        }
        struct = kernel.layout
        for array in _ARRAYS:
            image, channel, *spatial = self.strides(array)
            spatial = spatial[: struct[f"{array}_stride"].shape[0]]
            members |= params.array_fields(array, (image, channel, *spatial))
        return {name: value for name, value in members.items() if name in (struct.names or ())}


def view_of(problem: PoolProblem) -> PoolView:
    """Return the three-axis view of a problem with up to three spatial axes; a single window gets stride 1."""
    image, channel, *spatial = problem.all_axes
    spatial = [replace(axis, stride=max(axis.stride, 1)) for axis in (*[MISSING] * (3 - len(spatial)), *spatial)]
    return PoolView(image, channel, *spatial)


def rows_of(problem: PoolProblem, *, dilated: bool = False) -> PoolView | str:
    """Return the view if rows are contiguous (W innermost) in all arrays, else why it does not apply."""
    why = window_refusal(problem, dilated=dilated)
    if why is not None:
        return why
    for array in problem.arrays:
        width = problem.axes[-1]
        step = getattr(width, array)
        if (width.extent if array == "x" else width.windows) > 1 and step != 1:
            return "channels last: " * problem.channels_last + f"neighbours of a row lie {step} elements apart"
    return view_of(problem)


def pixels_of(problem: PoolProblem, *, dilated: bool = False) -> PoolView | str:
    """Return the view if channels are contiguous in all arrays, else why it does not apply."""
    _, channel, *_ = problem.all_axes
    if any(getattr(channel, array) != 1 for array in problem.arrays):
        return "channels are not neighbours"
    why = window_refusal(problem, dilated=dilated)
    return view_of(problem) if why is None else why


def vectors_of(problem: PoolProblem) -> int:
    """Return the vectors per pixel's channels, the last one possibly partial."""
    return -(-problem.all_axes[1].extent // channels_of_vector(problem))


def in_vectors(problem: PoolProblem) -> bool:
    """Return whether all pixels of x consist of whole vectors of channels, given an aligned x."""
    image, channel, *spatial = problem.all_axes
    count = channels_of_vector(problem)
    return channel.extent % count == 0 and not any(axis.x % count for axis in (image, *spatial))


def why_singly(problem: PoolProblem) -> str:
    """Return the reason, for ``explain``, why channels are loaded one by one; empty if they are not."""
    if in_vectors(problem):
        return ""
    return f"; channels one by one: pixels are not made of whole vectors of {channels_of_vector(problem)} channels"


def channels_of_vector(problem: PoolProblem) -> int:
    """Return the channels per vector: 16 bytes of them, or two with Indices."""
    return 2 if problem.named else 16 // problem.itemsize


def window_refusal(problem: PoolProblem, *, dilated: bool = False) -> str | None:
    """Return why the faster kernels reject these windows; None if they do not."""
    axes = problem.axes
    if len(axes) > 3:
        return f"{len(axes)} spatial axes"
    if has_empty_windows(axes):
        return "some windows are empty"
    if any(axis.dilation > (axis.extent if dilated else 1) for axis in axes):  # larger steps could skip the whole input
        return "dilated windows"
    if any(axis.pad < 0 for axis in axes):
        return "windows that begin inside the input"
    if problem.column_major and sum(axis.extent > 1 for axis in axes) > 1:
        return "column-major numbers"
    return None


def has_empty_windows(axes: Iterable[PoolAxis]) -> bool:
    """Return whether some window lies entirely before or after the input along an axis."""
    return any(axis.reach == 0 or axis.pad >= axis.reach or _last(axis) >= axis.extent for axis in axes)


def _last(axis: PoolAxis) -> int:
    """Return the coordinate at which the last window starts."""
    return (axis.windows - 1) * axis.stride - axis.pad
