"""The problem that Conv and ConvTranspose both come down to: a correlation, in phases where strides part its outputs.

Letters: M output channels (``filters``) and C input channels of one group, K = (tap, channel) the rows of the GEMM.
Strides of arrays count elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

_SECTOR = 32  # bytes that cross the memory bus together
_FARTHEST = 2**30  # coordinates and extents of kernels that find taps by tables are below
Geometry = ConvGeometry | ConvTransposeGeometry


@dataclass(frozen=True)
class Problem:
    """One call of Conv or ConvTranspose, for arrays of these strides.

    Attributes
    ----------
    operator : {"conv", "conv_transpose"}
    dtype : str
    precision : {"ieee", "tf32", "3xtf32"}
        Of float32 products.
    group, channels, filters, batch : int
        Channels and filters are those of one group.
    taps : tuple of int
        The kernel's extents.
    x_shape, y_shape, x_strides, y_strides : tuple of int
    w_strides : tuple of int
        Those of group, filter, channel and taps.
    b_stride : int or None
        None without a bias.
    columns : tuple of int
        Output pixels per axis; of ConvTranspose those of the fullest phase.
    column_strides : tuple of int
        Input coordinates from one column to the next.
    dilations, pads : tuple of int
        ``pads`` at the beginnings.
    phases : tuple of int
        Of ConvTranspose's outputs per axis; empty for Conv, which has one.
    strides : tuple of int
        Of ConvTranspose; empty for Conv, whose strides are those of the columns.
    """

    operator: str
    dtype: str
    precision: str
    group: int
    channels: int
    filters: int
    taps: Ints
    batch: int
    x_shape: Ints
    y_shape: Ints
    x_strides: Ints
    y_strides: Ints
    w_strides: Ints
    b_stride: int | None
    columns: Ints
    column_strides: Ints
    dilations: Ints
    pads: Ints
    phases: Ints
    strides: Ints

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element of x, w and y."""
        return dtypes.entry(self.dtype).itemsize

    @cached_property
    def accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.entry(self.dtype).accumulator

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
        strides = self.strides or (1,) * self.rank
        axes = zip(self.taps, strides, self.dilations, strict=True)
        return tuple(-(-k // (stride // gcd(stride, d))) for k, stride, d in axes)

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

    @property
    def multiplications(self) -> int:
        """Of the whole call, with those that meet the padding. Each tap of ConvTranspose belongs to one phase."""
        return self.group * self.filters * self.rows * self.pixels

    @cached_property
    def bytes(self) -> int:
        """Of all arrays, each once."""
        weights = self.group * self.filters * self.rows
        return self.itemsize * (prod(self.x_shape) + weights + prod(self.y_shape))

    @cached_property
    def bytes_by_phase(self) -> int:
        """The same where each phase is written alone: every stride-th element of a row, in whole sectors.

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
        steps = self.strides or (1,) * self.rank
        return tuple(step * stride for step, stride in zip(steps, self.y_strides[2:], strict=True))

    @cached_property
    def coordinates(self) -> Ints:
        """A bound of the input coordinates on each axis, also of those outside of x, and of their parts."""
        if self.phases:
            axes = zip(self.columns, self.strides, self.pads, self.taps, self.dilations, strict=True)
            return tuple(q + s + pad + 2 * (k - 1) * d for q, s, pad, k, d in axes)
        axes = zip(self.columns, self.column_strides, self.pads, self.taps, self.dilations, strict=True)
        parts = (((q - 1) * s, pad, (k - 1) * d) for q, s, pad, k, d in axes)
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
        """Tell whether anything needs 64-bit indices.

        ``packed`` is the number of elements that the weights have where a kernel packs them.

        Raises
        ------
        ArgumentError
            Even 64 bits are not enough.
        """
        return params.needs_wide(self.operator, [*self._magnitudes, packed])

    def far(self) -> bool:
        """Tell whether kernels that find taps by tables have too few bits: 30 for coordinates, 32 for all else."""
        return max((*self.coordinates, *self.x_shape[2:])) >= _FARTHEST or self.wide()

    @cached_property
    def lifted(self) -> Problem:
        """The problem with three spatial axes at least."""
        return in_axes(self, RANK)


def of_conv(
    geometry: ConvGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    precision: str = "ieee",
) -> Problem:
    """Return the problem of one Conv."""
    out_channels, *out = geometry.y_shape[1:]
    filters = out_channels // geometry.group
    return Problem(
        operator="conv",
        channels=geometry.w_shape[1],
        filters=filters,
        w_strides=(w_strides[0] * filters, *w_strides),
        columns=tuple(out),
        column_strides=tuple(1 if q == 1 else s for q, s in zip(out, geometry.strides, strict=True)),
        phases=(),
        strides=(),
        **_shared(geometry, dtype, x_strides, b_stride, y_strides, precision),
    )


def of_conv_transpose(
    geometry: ConvTransposeGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    precision: str = "ieee",
) -> Problem:
    """Return the problem of one ConvTranspose."""
    out_channels, *out = geometry.y_shape[1:]
    channels = geometry.w_shape[0] // geometry.group
    strides = tuple(1 if size <= 1 else s for size, s in zip(geometry.x_shape[2:], geometry.strides, strict=True))
    return Problem(
        operator="conv_transpose",
        channels=channels,
        filters=out_channels // geometry.group,
        w_strides=(w_strides[0] * channels, w_strides[1], w_strides[0], *w_strides[2:]),
        columns=tuple(-(-size // s) for size, s in zip(out, strides, strict=True)),
        column_strides=(1,) * len(out),
        phases=tuple(min(size, s) for size, s in zip(out, strides, strict=True)),
        strides=strides,
        **_shared(geometry, dtype, x_strides, b_stride, y_strides, precision),
    )


def as_conv(problem: Problem) -> Problem | None:
    """Return a Conv as it is, or the one that a ConvTranspose of stride 1 is but for the order of its taps, or None."""
    if problem.operator == "conv":
        return problem
    if any(stride != 1 for stride in problem.strides):
        return None
    axes = zip(problem.taps, problem.dilations, problem.pads, strict=True)
    pads = tuple((k - 1) * d - pad for k, d, pad in axes)
    return replace(problem, operator="conv", pads=pads, phases=(), strides=())


def in_three_axes(problem: Problem) -> Problem:
    """Return a problem of up to three spatial axes with three of them, as :func:`in_axes` makes them."""
    return problem.lifted


def in_axes(problem: Problem, rank: int) -> Problem:
    """Return a problem with at least so many spatial axes, those added outside being of one element.

    Where x has one element along an axis it has no stride there: taps in the padding then lie where others do, and are
    as well aligned.
    """
    more = max(0, rank - problem.rank)
    ones, zeros = (1,) * more, (0,) * more
    steps = (stride if n > 1 else 0 for n, stride in zip(problem.x_shape[2:], problem.x_strides[2:], strict=True))
    return replace(
        problem,
        taps=ones + problem.taps,
        x_shape=(*problem.x_shape[:2], *ones, *problem.x_shape[2:]),
        y_shape=(*problem.y_shape[:2], *ones, *problem.y_shape[2:]),
        x_strides=(*problem.x_strides[:2], *zeros, *steps),
        y_strides=(*problem.y_strides[:2], *zeros, *problem.y_strides[2:]),
        w_strides=(*problem.w_strides[:3], *zeros, *problem.w_strides[3:]),
        columns=ones + problem.columns,
        column_strides=ones + problem.column_strides,
        dilations=ones + problem.dilations,
        pads=zeros + problem.pads,
        phases=problem.phases and ones + problem.phases,
        strides=problem.strides and ones + problem.strides,
    )


def _shared(
    geometry: Geometry, dtype: str, x_strides: Ints, b_stride: int | None, y_strides: Ints, precision: str
) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "precision": precision if dtype == "float32" else "ieee",
        "group": geometry.group,
        "taps": geometry.kernel_shape,
        "batch": geometry.x_shape[0],
        "x_shape": geometry.x_shape,
        "y_shape": geometry.y_shape,
        "x_strides": x_strides,
        "y_strides": y_strides,
        "b_stride": b_stride,
        # A single tap has no distance to another.
        "dilations": tuple(1 if k == 1 else d for k, d in zip(geometry.kernel_shape, geometry.dilations, strict=True)),
        "pads": geometry.pads_begin,
    }
