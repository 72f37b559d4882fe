"""The problem that Conv and ConvTranspose both come down to: a correlation, in phases where strides part its outputs.

Letters: M output channels (``filters``) and C input channels of one group, K = (tap, channel) the rows of the GEMM.
Strides of arrays count elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple

from gpuconv.cuda.build import params
from gpuconv.cuda.plan import RANK
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

_SECTOR = 32  # bytes that cross the memory bus together
_FARTHEST = 2**30  # coordinates and extents of kernels that find taps by tables are below


# The fields that have a number for each axis, in the order of those of `Axis`, and how many numbers stand before these.
_BEFORE = {"x_shape": 2, "y_shape": 2, "x_strides": 2, "y_strides": 2, "w_strides": 3}
_FIELDS = ("taps", *_BEFORE, "columns", "column_strides", "dilations", "pads", "phases", "strides")
_BY_AXIS = {name: _BEFORE.get(name, 0) for name in _FIELDS}


class Axis(NamedTuple):
    """One spatial axis of a problem: a number of each field of :class:`Problem` that has one per axis."""

    taps: int = 1
    x: int = 1
    y: int = 1
    x_stride: int = 0
    y_stride: int = 0
    w_stride: int = 0
    columns: int = 1
    column_stride: int = 1
    dilation: int = 1
    pad: int = 0
    phases: int = 1
    stride: int = 1


@dataclass(frozen=True)
class Problem:
    """One call of Conv or ConvTranspose, for arrays of these strides."""

    operator: str  # "conv" or "conv_transpose"
    dtype: str
    precision: str  # "ieee", "tf32" or "3xtf32": of float32 products
    group: int
    channels: int  # of one group
    filters: int  # of one group
    taps: Ints  # the kernel's extents
    batch: int
    x_shape: Ints
    y_shape: Ints
    x_strides: Ints
    y_strides: Ints
    w_strides: Ints  # those of group, filter, channel and taps
    b_stride: int | None  # None without a bias
    columns: Ints  # output pixels per axis; of ConvTranspose those of the fullest phase
    column_strides: Ints  # input coordinates from one column to the next
    dilations: Ints
    pads: Ints  # at the beginnings
    phases: Ints  # of ConvTranspose's outputs per axis; empty for Conv, which has one
    strides: Ints  # of ConvTranspose; empty for Conv, whose strides are those of the columns
    backwards: bool = False  # of Conv: the first tap meets the last input of a window

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element of x, w and y."""
        return dtypes.entry(self.dtype).itemsize

    @cached_property
    def accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.entry(self.dtype).accumulator

    @cached_property
    def fused(self) -> str:
        """The instruction that multiplies and adds to a sum, without tensor cores."""
        return "DFMA" if self.accumulator == "float64" else "FFMA"

    @cached_property
    def word(self) -> int:
        """Bytes of a sum."""
        return dtypes.sums(self.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Sums in 16 bytes."""
        return 16 // self.word

    @property
    def w_steps(self) -> dict[str, int]:
        """Strides of w from one group, filter and channel to the next, as the kernels' structs name them."""
        group, filters, channel, *_ = self.w_strides
        return {"w_group": group, "w_filter": filters, "w_channel": channel}

    @cached_property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.taps)

    @cached_property
    def rows(self) -> int:
        """K."""
        return prod(self.taps) * self.channels

    @cached_property
    def most_taps(self) -> Ints:
        """Of each axis, those that the outputs of its fullest phase meet."""
        return tuple(-(-axis.taps // (axis.stride // gcd(axis.stride, axis.dilation))) for axis in self.axes)

    @cached_property
    def most_rows(self) -> int:
        """K of the fullest phase."""
        return prod(self.most_taps) * self.channels

    @cached_property
    def pixels(self) -> int:
        """Columns of the GEMM, of one phase."""
        return self.batch * prod(self.columns)

    def tiles(self, block_m: int, block_n: int) -> tuple[int, int]:
        """Return the tiles along M and along N, of one group and phase."""
        return -(-self.filters // block_m), -(-self.pixels // block_n)

    def blocks(self, block_m: int, block_n: int) -> int:
        """Return the tiles of all groups and phases."""
        return prod(self.tiles(block_m, block_n)) * prod(self.phases) * self.group

    @cached_property
    def bytes(self) -> int:
        """Of all arrays, each once."""
        weights = self.group * self.filters * self.rows
        return self.itemsize * (prod(self.x_shape) + weights + prod(self.y_shape))

    @cached_property
    def bytes_by_phase(self) -> int:
        """Of all arrays, where each phase is written alone: every stride-th element of a row, in whole sectors.

        Where channels are neighbours instead, a row's elements share no sectors.
        """
        sharing = _SECTOR // (self.itemsize * (abs(self.y_strides[-1]) or 1))  # neighbours of a row, a sector
        apart = max(1, min(self.phases[-1], sharing)) if self.phases else 1
        return self.bytes + (apart - 1) * self.itemsize * prod(self.y_shape)

    @cached_property
    def lines(self) -> int:
        """Lines of 128 bytes that 32 neighbouring columns meet in x through one tap and channel: 32 if far apart."""
        step = abs(self.x_strides[-1] * self.column_strides[-1]) * self.itemsize
        return min(32, -(-32 * step // 128)) if self.columns[-1] > 1 and step else 1

    @cached_property
    def y_column_strides(self) -> Ints:
        """Strides of y from one column to the next: ConvTranspose's columns lie a stride apart."""
        return tuple(step_between(axis.columns, axis.stride * axis.y_stride) for axis in self.axes)

    @cached_property
    def coordinates(self) -> Ints:
        """A bound of the input coordinates on each axis, also of those outside of x, and of their parts."""
        reaches = [(axis.taps - 1) * axis.dilation for axis in self.axes]
        if self.phases:
            axes = zip(self.axes, reaches, strict=True)
            return tuple(axis.columns + axis.stride + axis.pad + 2 * reach for axis, reach in axes)
        lasts = ((axis.columns - 1) * axis.column_stride for axis in self.axes)
        parts = zip(lasts, self.pads, reaches, strict=True)
        return tuple(max(last, pad, reach, last - pad + reach) for last, pad, reach in parts)

    @cached_property
    def _magnitudes(self) -> list[int]:
        """What indices are to hold: offsets count elements, pointers move by them in 64 bits."""
        reach = [max(at + 1, extent) for at, extent in zip(self.coordinates, self.x_shape[2:], strict=True)]
        return [
            params.span((*self.x_shape[:2], *reach), self.x_strides),
            params.span(self.y_shape, self.y_strides),
            params.span((self.group, self.filters, self.channels, *self.taps), self.w_strides),
            self.filters * self.group * abs(self.b_stride or 0),
            self.pixels,
            *reach,
            *(s * max(s, d) for s, d in zip(self.strides, self.dilations, strict=False)),  # none for Conv
        ]

    def wide(self, packed: int = 0) -> bool:
        """Tell whether anything, also ``packed`` weights, needs 64-bit indices; ArgumentError if 64 are too few."""
        return params.needs_wide(self.operator, [*self._magnitudes, packed])

    def far(self) -> bool:
        """Tell whether kernels that find taps by tables have too few bits: 30 for coordinates, 32 for all else."""
        return max((*self.coordinates, *self.x_shape[2:])) >= _FARTHEST or self.wide()

    # ------------------------------------------------------------ views

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes; those of Conv have one phase and stride."""
        ones = (1,) * self.rank
        return tuple(map(Axis, *(getattr(self, name)[before:] or ones for name, before in _BY_AXIS.items())))

    def with_axes(self, axes: Iterable[Axis]) -> Problem:
        """Return the problem with these spatial axes in place of its own."""
        fields = ((name, getattr(self, name), before) for name, before in _BY_AXIS.items())
        columns = zip(fields, zip(*axes, strict=True), strict=True)
        changes: dict[str, Any] = {name: own and (*own[:before], *column) for (name, own, before), column in columns}
        return replace(self, **changes)

    def in_axes(self, rank: int) -> Problem:
        """Return the problem with at least so many spatial axes, those added outside being of one element.

        Where x has one element along an axis it has no stride there: taps in the padding then lie where others do, and
        are as well aligned.
        """
        own = (axis if axis.x > 1 else axis._replace(x_stride=0) for axis in self.axes)
        return self.with_axes((*(Axis(),) * (rank - self.rank), *own))

    @cached_property
    def lifted(self) -> Problem:
        """The problem with three spatial axes at least."""
        return self.in_axes(RANK)

    @cached_property
    def pointwise(self) -> bool:
        """Whether every pixel of x makes the column in its place, by one tap."""
        moves = any(self.pads) or set(self.column_strides) != {1}
        return prod(self.taps) == 1 and self.columns == self.x_shape[2:] and not moves

    @cached_property
    def met(self) -> Problem:
        """A Conv of those pixels of x alone that outputs meet, where strides leave some out; others as they are."""
        return self if self.phases else self.with_axes(map(_met, self.axes))

    @cached_property
    def flat(self) -> Problem | None:
        """A pointwise Conv with all pixels of an image along one axis, or None if x or y has them in no such order."""
        if self.operator != "conv" or not self.pointwise:
            return None
        x_step, y_step = (merged_stride(self.columns, strides[2:]) for strides in (self.x_strides, self.y_strides))
        if x_step is None or y_step is None:
            return None
        pixels = prod(self.columns)
        return self.with_axes([Axis(x=pixels, y=pixels, x_stride=x_step, y_stride=y_step, columns=pixels)])


def _met(axis: Axis) -> Axis:
    """Return an axis with the pixels that a single tap meets, if all of these are in x."""
    if axis.taps > 1 or axis.pad or (axis.columns - 1) * axis.column_stride >= axis.x:
        return axis
    return axis._replace(x=axis.columns, x_stride=axis.x_stride * axis.column_stride, column_stride=1)


def of(
    geometry: ConvGeometry | ConvTransposeGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    precision: str = "ieee",
) -> Problem:
    """Return the problem of one call, for arrays of these strides in elements; ``b_stride`` is None without a bias."""
    g, (out_channels, *out) = geometry, geometry.y_shape[1:]
    filters, own = out_channels // g.group, dict[str, Any]()
    if isinstance(g, ConvTransposeGeometry):
        channels = g.w_shape[0] // g.group
        strides = tuple(1 if size <= 1 else s for size, s in zip(g.x_shape[2:], g.strides, strict=True))
        w_group = step_between(g.group, channels * w_strides[0])
        own["w_strides"] = (w_group, w_strides[1], w_strides[0], *w_strides[2:])
        own["columns"] = tuple(-(-size // s) for size, s in zip(out, strides, strict=True))
        own["column_strides"] = (1,) * len(out)
        own["phases"] = tuple(min(size, s) for size, s in zip(out, strides, strict=True))
    else:
        channels, strides = g.w_shape[1], ()
        own["w_strides"] = (step_between(g.group, filters * w_strides[0]), *w_strides)
        own["columns"] = tuple(out)
        own["column_strides"] = tuple(1 if q == 1 else s for q, s in zip(out, g.strides, strict=True))
        own["phases"] = ()
    return Problem(
        operator="conv_transpose" if isinstance(g, ConvTransposeGeometry) else "conv",
        dtype=dtype,
        precision=precision if dtype == "float32" else "ieee",
        group=g.group,
        channels=channels,
        filters=filters,
        taps=g.kernel_shape,
        batch=g.x_shape[0],
        x_shape=g.x_shape,
        y_shape=g.y_shape,
        x_strides=x_strides,
        y_strides=y_strides,
        b_stride=b_stride,
        # A single tap has no distance to another.
        dilations=tuple(1 if k == 1 else d for k, d in zip(g.kernel_shape, g.dilations, strict=True)),
        pads=g.pads_begin,
        strides=strides,
        **own,
    )


def step_between(count: int, step: int) -> int:
    """Return the step from one of so many to the next: where there is one it is never taken, and too long a one is 0.

    Arrays whose offsets fit into 32 bits so have steps that do.
    """
    return 0 if count == 1 and abs(step) >= params.INDEX_LIMIT else step


def as_conv(problem: Problem) -> Problem | None:
    """Return a Conv as it is, or the one that a ConvTranspose of stride 1 is but for the order of its taps, or None."""
    if problem.operator == "conv":
        return problem
    if any(stride != 1 for stride in problem.strides):
        return None
    pads = tuple((axis.taps - 1) * axis.dilation - axis.pad for axis in problem.axes)
    return replace(problem, operator="conv", pads=pads, phases=(), strides=())


def backwards(problem: Problem) -> Problem | None:
    """Return the Conv that a ConvTranspose of stride 1 is, with its taps in their order; None where it is none."""
    conv = as_conv(problem) if problem.operator == "conv_transpose" else None
    return None if conv is None or min(conv.pads) < 0 else replace(conv, backwards=True)


def merged_stride(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of the one axis that these axes are together, or None where their elements leave gaps."""
    axes = [(extent, stride) for extent, stride in zip(extents, strides, strict=True) if extent != 1]
    if any(outer != extent * stride for (_, outer), (extent, stride) in pairwise(axes)):
        return None
    return axes[-1][1] if axes else 1
