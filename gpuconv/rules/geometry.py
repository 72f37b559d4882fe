"""Output shapes and attribute rules of Conv, ConvTranspose, MaxPool and AveragePool, for every backend, rank and dtype.

Functions take shapes and attributes and return frozen, hashable geometries. All arithmetic is in Python integers with
floor division. The rules are those of the ONNX operator specifications at every opset; where these are silent or
contradictory, the docstrings here decide. Symbols: input extent ``n``, kernel ``k``, stride ``s``, dilation ``d``, and
the extent of the dilated kernel, ``ek = (k - 1) * d + 1``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal, SupportsIndex, TypeVar, get_args

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules import layout as layouts
from gpuconv.rules import strictness
from gpuconv.rules.indices import IndexWindows, parse_indices_in
from gpuconv.rules.integers import integer, integers, per_axis
from gpuconv.rules.strictness import CURRENT as STRICT

Ints = tuple[int, ...]
PerAxis = SupportsIndex | Iterable[SupportsIndex]  # an integer applies to every axis, and to both of its ends
AutoPad = Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
MOST_AXES = 62  # spatial axes: NumPy arrays have at most 64 axes, two of which are batch and channels
_MOST_ELEMENTS = 2**59 - 1  # elements of an array: in complex128, the widest type, they take fewer than 2**63 bytes
_AUTO_PADS: tuple[str, ...] = get_args(AutoPad)
_AnyWindows = TypeVar("_AnyWindows", bound="Windows")
_Given = Ints | int | None  # an attribute as given for all axes, after conversion to integers


@dataclass(frozen=True, slots=True)
class Windows:
    """Base class of the geometries: shapes, and how windows of taps cover the spatial axes.

    Attributes
    ----------
    x_shape, y_shape : tuple of int
        Shapes of input and output in the order N, C, D1, ...
    kernel_shape, strides, dilations : tuple of int
        Per spatial axis.
    pads_begin, pads_end : tuple of int
        Padding before and after each spatial axis, in elements.
    """

    x_shape: Ints
    y_shape: Ints
    kernel_shape: Ints
    strides: Ints
    dilations: Ints
    pads_begin: Ints
    pads_end: Ints

    @property
    def offsets(self) -> tuple[range, ...]:
        """Per spatial axis, the offset ``t * d - pads_begin`` of every tap ``t``."""
        axes = zip(self.kernel_shape, self.dilations, self.pads_begin, strict=True)
        return tuple(range(-begin, k * d - begin, d) for k, d, begin in axes)

    @property
    def met(self) -> tuple[Ints, ...]:
        """Per spatial axis, the taps that are in bounds for at least one output."""
        axes = zip(self.y_shape[2:], self.x_shape[2:], self.strides, self.offsets, strict=True)
        return tuple(taps_met(*axis) for axis in axes)

    def of_images(self: _AnyWindows, images: int) -> _AnyWindows:
        """Return the geometry of the same call for another batch size."""
        if images == self.x_shape[0]:
            return self
        return replace(self, x_shape=(images, *self.x_shape[1:]), y_shape=(images, *self.y_shape[1:]))


@dataclass(frozen=True, slots=True)
class ConvGeometry(Windows):
    """Geometry of Conv: along each axis, output ``q`` reads input ``q * s + offset`` through the tap with that offset.

    Attributes
    ----------
    w_shape : tuple of int
        (M, C/group, k1, ..., kn).
    group : int
    """

    w_shape: Ints
    group: int


@dataclass(frozen=True, slots=True)
class ConvTransposeGeometry(Windows):
    """Geometry of ConvTranspose: input ``i`` contributes to output ``i * s + offset`` through the tap with that offset.

    Outputs that no input reaches, for example at the end of ``y_shape``, are bias only.

    Attributes
    ----------
    w_shape : tuple of int
        (C, M/group, k1, ..., kn).
    group : int
    """

    w_shape: Ints
    group: int

    @property
    def met(self) -> tuple[Ints, ...]:
        """Per spatial axis, the taps through which at least one input contributes to an output."""
        axes = zip(self.x_shape[2:], self.y_shape[2:], self.strides, self.offsets, strict=True)
        return tuple(taps_met(*axis) for axis in axes)


@dataclass(frozen=True, slots=True)
class MaxPoolGeometry(Windows):
    """Geometry of MaxPool: along each axis, window ``q`` contains the in-bounds inputs among ``q * s + offset``.

    Attributes
    ----------
    storage_order : int
        0 if Indices count the last spatial axis fastest, 1 if the first.
    indices_in : {"tensor", "plane"}
        Whether Indices count elements of the whole tensor or of each (n, c) plane.
    """

    storage_order: int
    indices_in: str = "tensor"

    @property
    def plane_step(self) -> int:
        """Difference between the Indices of the first elements of adjacent planes; 0 if Indices count within planes."""
        return prod(self.x_shape[2:]) if self.indices_in == "tensor" else 0

    @property
    def index_windows(self) -> IndexWindows:
        """The range of valid Indices of each window."""
        return _index_windows(self)


@lru_cache(maxsize=1024)
def _index_windows(pool: MaxPoolGeometry) -> IndexWindows:
    reach = tuple(_extent(k, d) for k, d in zip(pool.kernel_shape, pool.dilations, strict=True))
    windows = pool.strides, pool.pads_begin, reach, pool.dilations
    return IndexWindows.of(pool.y_shape, pool.x_shape, pool.indices_in == "plane", pool.storage_order, *windows)


@dataclass(frozen=True, slots=True)
class AveragePoolGeometry(Windows):
    """Geometry of AveragePool: the sum of a window, divided by the number of its taps that count.

    In-bounds taps count, and with ``count_include_pad`` also those in the pads. A tap beyond the pads, where ceil_mode
    may place part of the last window, never counts.

    Attributes
    ----------
    count_include_pad : int
        0 or 1.
    """

    count_include_pad: int

    @property
    def counted(self) -> tuple[tuple[int, int], ...]:
        """Per spatial axis, the half-open range of coordinates in which a tap counts."""
        axes = zip(self.x_shape[2:], self.pads_begin, self.pads_end, strict=True)
        return tuple((-begin, n + end) if self.count_include_pad else (0, n) for n, begin, end in axes)

    @property
    def constant(self) -> bool:
        """Whether all taps of every window count, so that the divisor is constant."""
        axes = zip(self.counted, self.strides, self.offsets, self.y_shape[2:], strict=True)
        return all(
            low <= offsets[0] and (windows - 1) * stride + offsets[-1] < high
            for (low, high), stride, offsets, windows in axes
        )


def tap_range(count: int, limit: int, stride: int, offset: int) -> tuple[int, int]:
    """Return the half-open range of ``q`` in ``[0, count)`` with ``0 <= q * stride + offset < limit``."""
    low = min(max(0, -(offset // stride)), count)
    high = max(low, min(count, (limit - 1 - offset) // stride + 1))
    return low, high


@lru_cache(maxsize=1024)
def taps_met(count: int, limit: int, stride: int, offsets: range) -> Ints:
    """Return the taps for which some ``q`` in ``[0, count)`` has ``0 <= q * stride + offsets[tap] < limit``.

    The cost is bounded by the smaller of the number of taps and ``count * limit``: kernels may be arbitrarily large.
    """
    if len(offsets) <= count * limit:
        return tuple(tap for tap, offset in enumerate(offsets) if range(*tap_range(count, limit, stride, offset)))
    # outputs that can read an input: none if there are no inputs, however many outputs there are
    outputs = range(count if limit else 0)
    ranges = (tap_range(len(offsets), limit, offsets.step, q * stride + offsets[0]) for q in outputs)
    return tuple(sorted({tap for some in ranges for tap in range(*some)}))


def conv(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    b_shape: Sequence[int] | None = None,
    *,
    auto_pad: str | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    layout: str = "NCHW",
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    name: str = "conv",
) -> ConvGeometry:
    """Return the geometry of Conv for x (N, C, D1…Dn), w (M, C/group, k1…kn) and b (M,).

    Only ``x_shape`` follows ``layout``; the geometry is always in the order N, C, D1…Dn. Messages begin with ``name``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute or a shape breaks a rule; the message names the rule and the numbers.
    """
    geometry = _conv(
        name,
        _shape(x_shape),
        _shape(w_shape),
        None if b_shape is None else _shape(b_shape),
        _auto_pad(name, auto_pad),
        per_axis(name, "dilations", dilations),
        integer(name, "group", group),
        per_axis(name, "kernel_shape", kernel_shape),
        layouts.check(name, layout),
        per_axis(name, "pads", pads),
        per_axis(name, "strides", strides),
    )
    if STRICT.get():
        strictness.check_kernel(name, geometry)
    return geometry


@lru_cache(maxsize=4096)
def _conv(
    name: str,
    given: Ints,
    w_shape: Ints,
    b_shape: Ints | None,
    auto_pad: str,
    dilations: _Given,
    group: int,
    kernel_shape: _Given,
    layout: str,
    pads: _Given,
    strides: _Given,
) -> ConvGeometry:
    """Return the geometry of Conv for converted arguments, cached."""
    rank = _spatial_rank(name, given, layout)
    x_shape = layouts.channels_second(layout, given)
    kernel = _kernel_of_weight(name, given, w_shape, kernel_shape)
    stride = positive(name, "strides", strides, rank)
    dilation = positive(name, "dilations", dilations, rank)
    begin, end = _explicit_pads(name, pads, auto_pad, rank)
    _check_group(name, group)
    out_channels, channels = w_shape[0], w_shape[1] * group
    if x_shape[1] != channels:
        raise ArgumentError(
            f"{name}: x has {x_shape[1]} channels, but w expects {w_shape[1]} per group x group {group} = {channels} "
            f"(x.shape={given}, w.shape={w_shape}){layouts.advice(layout, given, channels)}"
        )
    if out_channels % group:
        raise ArgumentError(
            f"{name}: w has {out_channels} output channels, which group {group} does not divide (w.shape={w_shape})"
        )
    _check_bias(name, b_shape, out_channels)
    extents = [_extent(k, d) for k, d in zip(kernel, dilation, strict=True)]
    if auto_pad.startswith("SAME"):
        begin, end, out = _same(x_shape[2:], extents, stride, auto_pad)
    else:
        out = tuple(
            (n + b + e - ek) // s + 1 for n, b, e, ek, s in zip(x_shape[2:], begin, end, extents, stride, strict=True)
        )
    y_shape = _output(name, (x_shape[0], out_channels, *out), x_shape, kernel, stride, dilation, begin, end, layout)
    return ConvGeometry(x_shape, y_shape, kernel, stride, dilation, begin, end, w_shape, group)


def conv_transpose(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    b_shape: Sequence[int] | None = None,
    *,
    auto_pad: str | bytes = "NOTSET",
    dilations: PerAxis | None = None,
    group: int = 1,
    kernel_shape: PerAxis | None = None,
    layout: str = "NCHW",
    output_padding: PerAxis | None = None,
    output_shape: Iterable[int] | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    name: str = "conv_transpose",
) -> ConvTransposeGeometry:
    """Return the geometry of ConvTranspose for x (N, C, D1…Dn), w (C, M/group, k1…kn) and b (M,).

    Only ``x_shape`` follows ``layout``; the geometry is always in the order N, C, D1…Dn. Messages begin with ``name``.

    The natural extent is ``s * (n - 1) + output_padding + ek - pads``. With ``output_shape`` the pads are ignored, and
    the total padding is the natural extent without pads minus ``output_shape``. With SAME, it is the natural extent
    without pads minus ``n * s``. SAME_UPPER puts the smaller half first, everything else the larger half. If the output
    is longer than the natural extent, the excess is at its end, at every opset.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute or a shape breaks a rule; the message names the rule and the numbers.
    """
    target = integers(name, "output_shape", output_shape)
    geometry = _conv_transpose(
        name,
        _shape(x_shape),
        _shape(w_shape),
        None if b_shape is None else _shape(b_shape),
        _auto_pad(name, auto_pad),
        per_axis(name, "dilations", dilations),
        integer(name, "group", group),
        per_axis(name, "kernel_shape", kernel_shape),
        layouts.check(name, layout),
        per_axis(name, "output_padding", output_padding),
        target,
        per_axis(name, "pads", pads),
        per_axis(name, "strides", strides),
    )
    if STRICT.get() and target is None:
        strictness.check_cropping(name, geometry)
    return geometry


@lru_cache(maxsize=4096)
def _conv_transpose(
    name: str,
    given: Ints,
    w_shape: Ints,
    b_shape: Ints | None,
    auto_pad: str,
    dilations: _Given,
    group: int,
    kernel_shape: _Given,
    layout: str,
    output_padding: _Given,
    output_shape: Ints | None,
    pads: _Given,
    strides: _Given,
) -> ConvTransposeGeometry:
    """Return the geometry of ConvTranspose for converted arguments, cached."""
    rank = _spatial_rank(name, given, layout)
    x_shape = layouts.channels_second(layout, given)
    kernel = _kernel_of_weight(name, given, w_shape, kernel_shape)
    stride = positive(name, "strides", strides, rank)
    dilation = positive(name, "dilations", dilations, rank)
    begin, end = _explicit_pads(name, pads, auto_pad, rank)
    extra = _output_padding(name, output_padding, stride, dilation)
    target = _output_shape(name, output_shape, rank)
    _check_group(name, group)
    channels, out_channels = w_shape[0], w_shape[1] * group
    if x_shape[1] != channels:
        raise ArgumentError(
            f"{name}: x has {x_shape[1]} channels, but w expects {channels} (x.shape={given}, w.shape={w_shape})"
            f"{layouts.advice(layout, given, channels)}"
        )
    if channels % group:
        raise ArgumentError(f"{name}: x has {channels} channels, which group {group} does not divide (x.shape={given})")
    _check_bias(name, b_shape, out_channels)
    natural = tuple(
        s * (n - 1) + o + _extent(k, d)
        for n, s, o, k, d in zip(x_shape[2:], stride, extra, kernel, dilation, strict=True)
    )
    if target is None and auto_pad.startswith("SAME"):
        target = tuple(n * s for n, s in zip(x_shape[2:], stride, strict=True))
    if target is None:
        target = tuple(v - b - e for v, b, e in zip(natural, begin, end, strict=True))
    else:
        begin, end = _split([v - t for v, t in zip(natural, target, strict=True)], small_first=auto_pad == "SAME_UPPER")
    y_shape = _output(name, (x_shape[0], out_channels, *target), x_shape, kernel, stride, dilation, begin, end, layout)
    return ConvTransposeGeometry(x_shape, y_shape, kernel, stride, dilation, begin, end, w_shape, group)


def max_pool(
    x_shape: Sequence[int],
    *,
    kernel_shape: PerAxis | None,
    auto_pad: str | bytes = "NOTSET",
    ceil_mode: int = 0,
    dilations: PerAxis | None = None,
    indices_in: str = "tensor",
    layout: str = "NCHW",
    pads: PerAxis | None = None,
    storage_order: int = 0,
    strides: PerAxis | None = None,
    name: str = "max_pool",
) -> MaxPoolGeometry:
    """Return the geometry of MaxPool for x (N, C, D1…Dn).

    Only ``x_shape`` follows ``layout``; the geometry is always in the order N, C, D1…Dn. Messages begin with ``name``.

    With ceil_mode, the last window is dropped if it would start beyond the input and its begin padding. ceil_mode
    applies with VALID too, and changes nothing with SAME.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute or a shape breaks a rule; the message names the rule and the numbers.
    """
    require_kernel(name, kernel_shape)
    geometry = _max_pool(
        name,
        _shape(x_shape),
        kernel := per_axis(name, "kernel_shape", kernel_shape),
        _auto_pad(name, auto_pad),
        integer(name, "ceil_mode", ceil_mode),
        dilation := per_axis(name, "dilations", dilations),
        parse_indices_in(name, indices_in),
        layouts.check(name, layout),
        both := per_axis(name, "pads", pads),
        integer(name, "storage_order", storage_order),
        stride := per_axis(name, "strides", strides),
    )
    if STRICT.get():
        strictness.check_pooling(name, geometry, layout, (kernel, dilation, both, stride))
    return geometry


@lru_cache(maxsize=4096)
def _max_pool(
    name: str,
    given: Ints,
    kernel_shape: _Given,
    auto_pad: str,
    ceil_mode: int,
    dilations: _Given,
    indices_in: str,
    layout: str,
    pads: _Given,
    storage_order: int,
    strides: _Given,
) -> MaxPoolGeometry:
    """Return the geometry of MaxPool for converted arguments, cached."""
    _check_flag(name, "storage_order", storage_order)
    windows = _pooled(name, given, kernel_shape, auto_pad, ceil_mode, dilations, layout, pads, strides)
    return MaxPoolGeometry(*windows, storage_order, indices_in)


def average_pool(
    x_shape: Sequence[int],
    *,
    kernel_shape: PerAxis | None,
    auto_pad: str | bytes = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: PerAxis | None = None,
    layout: str = "NCHW",
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
    name: str = "average_pool",
) -> AveragePoolGeometry:
    """Return the geometry of AveragePool for x (N, C, D1…Dn), with windows as in :func:`max_pool`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute or a shape breaks a rule; the message names the rule and the numbers.
    """
    require_kernel(name, kernel_shape)
    geometry = _average_pool(
        name,
        _shape(x_shape),
        kernel := per_axis(name, "kernel_shape", kernel_shape),
        _auto_pad(name, auto_pad),
        integer(name, "ceil_mode", ceil_mode),
        integer(name, "count_include_pad", count_include_pad),
        dilation := per_axis(name, "dilations", dilations),
        layouts.check(name, layout),
        both := per_axis(name, "pads", pads),
        stride := per_axis(name, "strides", strides),
    )
    if STRICT.get():
        strictness.check_pooling(name, geometry, layout, (kernel, dilation, both, stride))
    return geometry


@lru_cache(maxsize=4096)
def _average_pool(
    name: str,
    given: Ints,
    kernel_shape: _Given,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: _Given,
    layout: str,
    pads: _Given,
    strides: _Given,
) -> AveragePoolGeometry:
    """Return the geometry of AveragePool for converted arguments, cached."""
    _check_flag(name, "count_include_pad", count_include_pad)
    windows = _pooled(name, given, kernel_shape, auto_pad, ceil_mode, dilations, layout, pads, strides)
    return AveragePoolGeometry(*windows, count_include_pad)


def global_average_pool(
    x_shape: Sequence[int], *, layout: str = "NCHW", name: str = "global_average_pool"
) -> AveragePoolGeometry:
    """Return the geometry of GlobalAveragePool for x (N, C, D1…Dn): one window over each plane, even if that is
    empty.
    """
    layouts.check(name, layout)
    shape = _shape(x_shape)
    rank = _spatial_rank(name, shape, layout)
    x = layouts.channels_second(layout, shape)
    ones, zeros, kernel = (1,) * rank, (0,) * rank, tuple(max(n, 1) for n in x[2:])
    if STRICT.get():
        windowed = name.replace("global_", "")
        strictness.check_axes(name, "x", x, layout, f"the call to {windowed} with kernel_shape={list(kernel)}")
    y_shape = _output(name, (*x[:2], *ones), x, kernel, ones, ones, zeros, zeros, layout)
    return AveragePoolGeometry(x, y_shape, kernel, ones, ones, zeros, zeros, 0)


def _pooled(
    name: str,
    given: Ints,
    kernel_shape: _Given,
    auto_pad: str,
    ceil_mode: int,
    dilations: _Given,
    layout: str,
    pads: _Given,
    strides: _Given,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    """Return the fields of :class:`Windows` for pooling, in order."""
    rank = _spatial_rank(name, given, layout)
    x_shape = layouts.channels_second(layout, given)
    kernel = positive(name, "kernel_shape", kernel_shape, rank)
    stride = positive(name, "strides", strides, rank)
    dilation = positive(name, "dilations", dilations, rank)
    begin, end = _explicit_pads(name, pads, auto_pad, rank)
    _check_flag(name, "ceil_mode", ceil_mode)
    extents = [_extent(k, d) for k, d in zip(kernel, dilation, strict=True)]
    if auto_pad.startswith("SAME"):
        begin, end, out = _same(x_shape[2:], extents, stride, auto_pad)
    else:
        out = tuple(
            _windows(n, b, e, ek, s, ceil_mode)
            for n, b, e, ek, s in zip(x_shape[2:], begin, end, extents, stride, strict=True)
        )
    y_shape = _output(name, (*x_shape[:2], *out), x_shape, kernel, stride, dilation, begin, end, layout)
    return x_shape, y_shape, kernel, stride, dilation, begin, end


def _windows(n: int, begin: int, end: int, extent: int, stride: int, ceil_mode: int) -> int:
    """Return the number of windows along an axis, with ceil_mode's rule for the last one."""
    room = n + begin + end - extent
    if not ceil_mode:
        return room // stride + 1
    out = -(-room // stride) + 1
    return out - 1 if (out - 1) * stride >= n + begin else out


def _extent(kernel: int, dilation: int) -> int:
    """Return the extent of a dilated kernel, ``ek``."""
    return (kernel - 1) * dilation + 1


def _same(sizes: Ints, extents: list[int], strides: Ints, auto_pad: str) -> tuple[Ints, Ints, Ints]:
    """Return begin pads, end pads and output extents for SAME_UPPER and SAME_LOWER: ``ceil(n / s)`` outputs."""
    out = tuple(-(-n // s) for n, s in zip(sizes, strides, strict=True))
    totals = [(o - 1) * s + ek - n for o, s, ek, n in zip(out, strides, extents, sizes, strict=True)]
    begin, end = _split(totals, small_first=auto_pad == "SAME_UPPER")
    return begin, end, out


def _split(totals: list[int], *, small_first: bool) -> tuple[Ints, Ints]:
    """Split each total padding (negative ones count as 0) between the two ends of its axis."""
    small = tuple(max(0, total) // 2 for total in totals)
    large = tuple(max(0, total) - half for total, half in zip(totals, small, strict=True))
    return (small, large) if small_first else (large, small)


def _output(
    name: str,
    y_shape: Ints,
    x_shape: Ints,
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    begin: Ints,
    end: Ints,
    layout: str,
) -> Ints:
    """Return the output shape after checking that it is neither negative nor too large."""
    if min(y_shape) < 0:
        raise ArgumentError(
            f"{name}: the output would have the negative size {y_shape[2:]} for input {x_shape[2:]}, kernel {kernel}, "
            f"strides {strides}, dilations {dilations} and pads {begin} before, {end} after; "
            "pad more or shrink the kernel"
        )
    check_size(name, "the output shape", layouts.as_given(layout, y_shape))
    return y_shape


def check_size(name: str, what: str, shape: Ints) -> None:
    """Refuse a result too large for byte offsets of 64 bits in the widest dtype."""
    elements = prod(extent or 1 for extent in shape)
    if elements > _MOST_ELEMENTS:
        counted = ", an extent of 0 counted as 1" if 0 in shape else ""
        raise ArgumentError(
            f"{name}: {what} {shown(shape)} has {shown(elements)} elements{counted}, more than the {_MOST_ELEMENTS} "
            "that 64-bit byte offsets can address in every dtype"
        )


def check_rank(name: str, array: str, rank: int) -> int:
    """Return a number of spatial axes if an array can have that many; raise ArgumentError otherwise."""
    if rank > MOST_AXES:
        raise ArgumentError(
            f"{name}: {array} has {rank} spatial axes, but beside batch and channels an array has at most {MOST_AXES}"
        )
    return rank


def _shape(shape: Iterable[int]) -> Ints:
    """Return a shape as Python integers, which unlike NumPy's do not overflow."""
    return tuple(map(operator.index, shape))


def _spatial_rank(name: str, x_shape: Ints, layout: str) -> int:
    """Return the number of spatial axes of x, which must be at least 1."""
    if len(x_shape) < 3:
        if layout == "NCHW":
            needed = "a batch, a channel and at least one spatial axis (N, C, D1, …)"
        else:
            needed = "a batch, at least one spatial axis and a channel (N, D1, …, C)"
        raise ArgumentError(f"{name}: x must have {needed}, but x.shape={x_shape}")
    return check_rank(name, "x", len(x_shape) - 2)


def _kernel_of_weight(name: str, x_shape: Ints, w_shape: Ints, kernel_shape: _Given) -> Ints:
    """Return the kernel shape from w; raise ArgumentError if it contradicts kernel_shape or the rank of x."""
    if len(w_shape) != len(x_shape):
        raise ArgumentError(
            f"{name}: w must have as many axes as x, but w.shape={shown(w_shape)} has {len(w_shape)} and "
            f"x.shape={shown(x_shape)} has {len(x_shape)}"
        )
    kernel = w_shape[2:]
    if kernel_shape is not None:
        asked = positive(name, "kernel_shape", kernel_shape, len(kernel))
        if asked != kernel:
            raise ArgumentError(f"{name}: kernel_shape={asked} differs from the weight's {kernel} (w.shape={w_shape})")
    if min(kernel) < 1:
        raise ArgumentError(f"{name}: every kernel extent must be at least 1, but w.shape={w_shape}")
    return kernel


def require_kernel(name: str, kernel_shape: Any) -> None:
    """Raise ArgumentTypeError if kernel_shape is None."""
    if kernel_shape is None:
        raise ArgumentTypeError(
            f"{name}: kernel_shape is required, one integer per spatial axis or one for all of them"
        )


def _check_group(name: str, group: int) -> None:
    if group < 1:
        raise ArgumentError(f"{name}: group must be at least 1, not {group}")


def _check_bias(name: str, b_shape: Ints | None, out_channels: int) -> None:
    if b_shape is not None and b_shape != (out_channels,):
        raise ArgumentError(f"{name}: b must have shape ({out_channels},), one value per output channel, not {b_shape}")


def _check_flag(name: str, attribute: str, value: int) -> None:
    if value not in (0, 1):
        raise ArgumentError(f"{name}: {attribute} must be 0 or 1, not {value}")


def _output_padding(name: str, value: _Given, strides: Ints, dilations: Ints) -> Ints:
    """Return output_padding per axis: each must be 0, or less than the larger of stride and dilation."""
    rank = len(strides)
    extra = _nonnegative(name, "output_padding", value, rank)
    for axis, (o, s, d) in enumerate(zip(extra, strides, dilations, strict=True)):
        if o and o >= max(s, d):
            raise ArgumentError(
                f"{name}: output_padding must be 0 or less than the larger of stride and dilation, "
                f"but on spatial axis {axis} it is {o} with stride {s} and dilation {d}"
            )
    return extra


def _output_shape(name: str, value: Ints | None, rank: int) -> Ints | None:
    """Return the spatial entries of output_shape; some models also write N and C in front."""
    if value is None:
        return None
    if len(value) not in (rank, rank + 2):
        raise ArgumentError(
            f"{name}: output_shape must have one entry per spatial axis ({rank}), or N and C in front of them "
            f"({rank + 2}), not {len(value)}: {shown(value)}"
        )
    return _nonnegative(name, "output_shape", value[-rank:], rank)


def _explicit_pads(name: str, pads: _Given, auto_pad: str, rank: int) -> tuple[Ints, Ints]:
    """Return begin and end pads; raise ArgumentError for non-zero pads combined with an auto_pad."""
    both = _nonnegative(name, "pads", pads, 2 * rank)
    if any(both) and auto_pad != "NOTSET":
        raise ArgumentError(
            f"{name}: pads={both} cannot be combined with auto_pad={auto_pad!r}; give one of them, or pads of zeros"
        )
    return both[:rank], both[rank:]


def positive(name: str, attribute: str, value: _Given, length: int) -> Ints:
    """Return ``length`` numbers, 1 each for None; raise ArgumentError if one is less than 1."""
    numbers = _of_length(name, attribute, 1 if value is None else value, length)
    if min(numbers) < 1:
        raise ArgumentError(f"{name}: every entry of {attribute} must be at least 1, but {attribute}={value}")
    return numbers


def _nonnegative(name: str, attribute: str, value: _Given, length: int) -> Ints:
    """Return ``length`` numbers, 0 each for None; raise ArgumentError if one is negative."""
    numbers = _of_length(name, attribute, 0 if value is None else value, length)
    if min(numbers) < 0:
        advice = _instead_of_negative_pads(name) if attribute == "pads" else ""
        raise ArgumentError(f"{name}: no entry of {attribute} may be negative, but {attribute}={value}{advice}")
    return numbers


def _instead_of_negative_pads(name: str) -> str:
    """Return advice that ends a message about negative pads: how to get the effect they seem to ask for."""
    if "unpool" in name:
        return "; pass output_shape for a larger result"
    if "transpose" in name:
        return "; pass output_padding or output_shape for a larger result"
    return "; crop x before the call, by slicing it or by a Pad with negative pads"


def _of_length(name: str, attribute: str, value: Ints | int, length: int) -> Ints:
    """Return ``length`` numbers; a single integer is repeated."""
    if isinstance(value, int):
        return (value,) * length
    if len(value) != length:
        what = "two per spatial axis: all beginnings, then all ends" if attribute == "pads" else "one per spatial axis"
        raise ArgumentError(
            f"{name}: {attribute} must have {length} entries ({what}), not {len(value)}: {shown(value)}"
        )
    return value


def _auto_pad(name: str, value: Any) -> str:
    """Return auto_pad as one of its four values; "" stands for NOTSET, and bytes are decoded."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}: auto_pad must be a string, not {type(value).__name__}")
    if value.upper() == "SAME":
        raise ArgumentError(
            f"{name}: auto_pad must be SAME_UPPER, which puts the odd padding element at the end, or SAME_LOWER, "
            f"which puts it at the beginning, not {value!r}"
        )
    if value not in _AUTO_PADS and value != "":
        raise ArgumentError(f"{name}: auto_pad must be one of {', '.join(_AUTO_PADS)}, not {shown(value)}")
    return value or "NOTSET"
