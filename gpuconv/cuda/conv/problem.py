"""The normalised problem of Conv and ConvTranspose that all kernel families plan from.

Both operators are a correlation. A ConvTranspose with strides is split into *phases*: output positions that are
congruent modulo the stride and therefore use the same taps. Each phase is one implicit GEMM.

M counts output channels (``filters``) of one group, N the output pixels (``pixels``) of one phase, K = taps × C the
pairs (tap, input channel), called ``rows``. Array strides are in elements.
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

_SECTOR = 32  # bytes of one DRAM/L2 sector, the smallest unit of memory traffic
_FARTHEST = 2**30  # exclusive bound on coordinates and extents for kernels that use tables of taps (30 bits)


# Fields of `Problem` that hold one number per spatial axis, in the order of `Axis`. The value is how many leading
# non-spatial entries (batch, channel, …) the field has.
_BEFORE = {"x_shape": 2, "y_shape": 2, "x_strides": 2, "y_strides": 2, "w_strides": 3}
_FIELDS = ("taps", *_BEFORE, "columns", "column_strides", "dilations", "pads", "phases", "strides")
_BY_AXIS = {name: _BEFORE.get(name, 0) for name in _FIELDS}


class Axis(NamedTuple):
    """One spatial axis of a :class:`Problem`: its entry of each field that has one number per axis."""

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
    """One call of Conv or ConvTranspose: geometry, dtype and the strides of its arrays."""

    operator: str  # "conv" or "conv_transpose"
    dtype: str
    precision: str  # "ieee", "tf32" or "3xtf32": how float32 products are computed
    group: int
    channels: int  # input channels per group
    filters: int  # output channels per group (M)
    taps: Ints  # the kernel's extents, one per spatial axis
    batch: int
    x_shape: Ints
    y_shape: Ints
    x_strides: Ints
    y_strides: Ints
    w_strides: Ints  # strides of w: group, filter, channel, then one per tap axis
    b_stride: int | None  # None without a bias
    columns: Ints  # output pixels per axis; for ConvTranspose, those of the largest phase
    # input elements between adjacent columns of the GEMM: the stride for Conv, 1 for ConvTranspose
    column_strides: Ints
    dilations: Ints
    pads: Ints  # pads at the beginning of each axis
    phases: Ints  # phases per axis for ConvTranspose; empty for Conv, which has a single phase
    strides: Ints  # strides of ConvTranspose; empty for Conv, whose strides are in ``column_strides``
    backwards: bool = False  # Conv only: walk taps in reverse, so the first tap reads a window's last input

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element of x, w and y."""
        return dtypes.entry(self.dtype).itemsize

    @cached_property
    def accumulator(self) -> str:
        """Name of the dtype in which sums are accumulated."""
        return dtypes.entry(self.dtype).accumulator

    @cached_property
    def fused(self) -> str:
        """Name of the fused multiply-add instruction used without tensor cores: DFMA or FFMA."""
        return "DFMA" if self.accumulator == "float64" else "FFMA"

    @cached_property
    def word(self) -> int:
        """Bytes per accumulator."""
        return dtypes.sums(self.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Accumulators per 16-byte vector."""
        return 16 // self.word

    @property
    def w_steps(self) -> dict[str, int]:
        """Strides of w between groups, filters and channels, keyed as in the kernels' parameter structs."""
        group, filters, channel, *_ = self.w_strides
        return {"w_group": group, "w_filter": filters, "w_channel": channel}

    @cached_property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.taps)

    @cached_property
    def rows(self) -> int:
        """K of the GEMM, over all taps: taps × input channels per group."""
        return prod(self.taps) * self.channels

    @cached_property
    def most_taps(self) -> Ints:
        """Taps per axis that contribute to an output of the phase with the most taps."""
        return tuple(-(-axis.taps // (axis.stride // gcd(axis.stride, axis.dilation))) for axis in self.axes)

    @cached_property
    def most_rows(self) -> int:
        """K of the phase with the most taps."""
        return prod(self.most_taps) * self.channels

    @cached_property
    def pixels(self) -> int:
        """N of the GEMM of one phase: batch × output pixels."""
        return self.batch * prod(self.columns)

    def tiles(self, block_m: int, block_n: int) -> tuple[int, int]:
        """Return the number of output tiles along M and along N, for one group and one phase."""
        return -(-self.filters // block_m), -(-self.pixels // block_n)

    def blocks(self, block_m: int, block_n: int) -> int:
        """Return the number of output tiles over all groups and phases."""
        return prod(self.tiles(block_m, block_n)) * prod(self.phases) * self.group

    @cached_property
    def bytes(self) -> int:
        """Bytes of x, w and y, each counted once: the minimum memory traffic."""
        weights = self.group * self.filters * self.rows
        return self.itemsize * (prod(self.x_shape) + weights + prod(self.y_shape))

    @cached_property
    def bytes_by_phase(self) -> int:
        """Memory traffic in bytes when each phase of ConvTranspose is written separately.

        Each phase writes every stride-th element of a row of y, and a partly written sector costs a whole one. With
        channels innermost, elements of different phases share no sector, so nothing is added.
        """
        # adjacent elements of a row of y per sector
        sharing = _SECTOR // (self.itemsize * (abs(self.y_strides[-1]) or 1))
        apart = max(1, min(self.phases[-1], sharing)) if self.phases else 1
        return self.bytes + (apart - 1) * self.itemsize * prod(self.y_shape)

    @cached_property
    def lines(self) -> int:
        """Lines of 128 bytes of x that a warp touches when it loads 32 adjacent columns at one tap and channel."""
        step = abs(self.x_strides[-1] * self.column_strides[-1]) * self.itemsize
        return min(32, -(-32 * step // 128)) if self.columns[-1] > 1 and step else 1

    @cached_property
    def y_column_strides(self) -> Ints:
        """Strides of y between adjacent columns of a phase: ConvTranspose's outputs are its stride apart."""
        return tuple(step_between(axis.columns, axis.stride * axis.y_stride) for axis in self.axes)

    @cached_property
    def coordinates(self) -> Ints:
        """Upper bound, per axis, on input coordinates as kernels compute them, out-of-bounds ones included."""
        reaches = [(axis.taps - 1) * axis.dilation for axis in self.axes]
        if self.phases:
            axes = zip(self.axes, reaches, strict=True)
            return tuple(axis.columns + axis.stride + axis.pad + 2 * reach for axis, reach in axes)
        lasts = ((axis.columns - 1) * axis.column_stride for axis in self.axes)
        parts = zip(lasts, self.pads, reaches, strict=True)
        return tuple(max(last, pad, reach, last - pad + reach) for last, pad, reach in parts)

    @cached_property
    def _magnitudes(self) -> list[int]:
        """Upper bounds on all values that kernels hold in an index; pointers themselves advance in 64 bits."""
        reach = [max(at + 1, extent) for at, extent in zip(self.coordinates, self.x_shape[2:], strict=True)]
        return [
            params.span((*self.x_shape[:2], *reach), self.x_strides),
            params.span(self.y_shape, self.y_strides),
            params.span((self.group, self.filters, self.channels, *self.taps), self.w_strides),
            self.filters * self.group * abs(self.b_stride or 0),
            self.pixels,
            *reach,
            *(s * max(s, d) for s, d in zip(self.strides, self.dilations, strict=False)),  # empty for Conv
        ]

    def wide(self, packed: int = 0) -> bool:
        """Return whether any index, including offsets into ``packed`` elements of weights, needs 64 bits.

        Raises ArgumentError if 64 bits do not suffice.
        """
        return params.needs_wide(self.operator, [*self._magnitudes, packed])

    def far(self) -> bool:
        """Return whether the problem exceeds kernels with tap tables: 30 bits per coordinate, 32 per index."""
        return max((*self.coordinates, *self.x_shape[2:])) >= _FARTHEST or self.wide()

    # ------------------------------------------------------------ views

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes as :class:`Axis` tuples; for Conv, phases and strides are 1."""
        ones = (1,) * self.rank
        return tuple(map(Axis, *(getattr(self, name)[before:] or ones for name, before in _BY_AXIS.items())))

    def with_axes(self, axes: Iterable[Axis]) -> Problem:
        """Return the problem with its spatial axes replaced by these."""
        fields = ((name, getattr(self, name), before) for name, before in _BY_AXIS.items())
        columns = zip(fields, zip(*axes, strict=True), strict=True)
        changes: dict[str, Any] = {name: own and (*own[:before], *column) for (name, own, before), column in columns}
        return replace(self, **changes)

    def in_axes(self, rank: int) -> Problem:
        """Return the problem with at least ``rank`` spatial axes, prepending axes of one element.

        Where x has one element along an axis, its stride becomes 0. Out-of-bounds taps then get in-bounds, equally
        aligned addresses.
        """
        inner = (axis if axis.x > 1 else axis._replace(x_stride=0) for axis in self.axes)
        return self.with_axes((*(Axis(),) * (rank - self.rank), *inner))

    @cached_property
    def lifted(self) -> Problem:
        """The problem with at least three spatial axes, as most kernels are instantiated for."""
        return self.in_axes(RANK)

    @cached_property
    def pointwise(self) -> bool:
        """Whether this is a 1 × 1 convolution without stride or padding: output pixel i reads input pixel i only."""
        moves = any(self.pads) or set(self.column_strides) != {1}
        return prod(self.taps) == 1 and self.columns == self.x_shape[2:] and not moves

    @cached_property
    def without_unread_pixels(self) -> Problem:
        """The equivalent Conv on a strided view of x that holds only the pixels that outputs read.

        Applies to axes with a single tap and a stride. Other axes, and ConvTranspose, are unchanged.
        """
        return self if self.phases else self.with_axes(map(_without_unread, self.axes))

    @cached_property
    def flat(self) -> Problem | None:
        """A pointwise Conv with an image's pixels merged into one axis; None if x or y has no uniform pixel stride."""
        if self.operator != "conv" or not self.pointwise:
            return None
        x_step, y_step = (merged_stride(self.columns, strides[2:]) for strides in (self.x_strides, self.y_strides))
        if x_step is None or y_step is None:
            return None
        pixels = prod(self.columns)
        return self.with_axes([Axis(x=pixels, y=pixels, x_stride=x_step, y_stride=y_step, columns=pixels)])


def _without_unread(axis: Axis) -> Axis:
    """Return the axis restricted to the pixels that a single unpadded tap reads; unchanged if it does not apply."""
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
    """Return the problem of one call.

    Strides are in elements; ``b_stride`` is None without a bias. ``precision`` matters for float32 only.
    """
    g, (out_channels, *out) = geometry, geometry.y_shape[1:]
    filters, differing = out_channels // g.group, dict[str, Any]()
    if isinstance(g, ConvTransposeGeometry):
        channels = g.w_shape[0] // g.group
        strides = tuple(1 if size <= 1 else s for size, s in zip(g.x_shape[2:], g.strides, strict=True))
        w_group = step_between(g.group, channels * w_strides[0])
        differing["w_strides"] = (w_group, w_strides[1], w_strides[0], *w_strides[2:])
        differing["columns"] = tuple(-(-size // s) for size, s in zip(out, strides, strict=True))
        differing["column_strides"] = (1,) * len(out)
        differing["phases"] = tuple(min(size, s) for size, s in zip(out, strides, strict=True))
    else:
        channels, strides = g.w_shape[1], ()
        differing["w_strides"] = (step_between(g.group, filters * w_strides[0]), *w_strides)
        differing["columns"] = tuple(out)
        differing["column_strides"] = tuple(1 if q == 1 else s for q, s in zip(out, g.strides, strict=True))
        differing["phases"] = ()
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
        # The dilation of a single tap is irrelevant: use 1, so that equal problems compare equal.
        dilations=tuple(1 if k == 1 else d for k, d in zip(g.kernel_shape, g.dilations, strict=True)),
        pads=g.pads_begin,
        strides=strides,
        **differing,
    )


def step_between(count: int, step: int) -> int:
    """Return ``step``, or 0 if ``count`` is 1 and the step would need more than 32 bits.

    A stride that is never taken may be arbitrarily large; it must not force 64-bit indices.
    """
    return 0 if count == 1 and abs(step) >= params.INDEX_LIMIT else step


def as_conv(problem: Problem) -> Problem | None:
    """Return a Conv with the same receptive fields, or None if a ConvTranspose has a stride other than 1.

    For ConvTranspose of stride 1, the Conv returned has its taps in the opposite order; pads become (k − 1)·d − pad.
    """
    if problem.operator == "conv":
        return problem
    if any(stride != 1 for stride in problem.strides):
        return None
    pads = tuple((axis.taps - 1) * axis.dilation - axis.pad for axis in problem.axes)
    return replace(problem, operator="conv", pads=pads, phases=(), strides=())


def backwards(problem: Problem) -> Problem | None:
    """Return ConvTranspose of stride 1 as a Conv that walks its taps in reverse, with w unchanged.

    None for Conv, for other strides, and where the Conv would have negative padding.
    """
    conv = as_conv(problem) if problem.operator == "conv_transpose" else None
    return None if conv is None or min(conv.pads) < 0 else replace(conv, backwards=True)


def merged_stride(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of the axis that these axes merge into, or None if they cannot be merged."""
    axes = [(extent, stride) for extent, stride in zip(extents, strides, strict=True) if extent != 1]
    if any(outer != extent * stride for (_, outer), (extent, stride) in pairwise(axes)):
        return None
    return axes[-1][1] if axes else 1
