"""Geometries of the gradients, expressed by those of the forward operators.

The gradient of Conv with respect to its input is a ConvTranspose with the same weights, and vice versa: only the roles
of input and output change. The gradient with respect to the weights sums, for each tap, the products of all pairs of
input and output that this tap connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules import geometry, strictness
from gpuconv.rules import layout as layouts
from gpuconv.rules.geometry import (
    AveragePoolGeometry,
    ConvGeometry,
    ConvTransposeGeometry,
    Ints,
    MaxPoolGeometry,
    PerAxis,
)
from gpuconv.rules.indices import IndexWindows, largest_reach, parse_indices_in
from gpuconv.rules.integers import integers, per_axis
from gpuconv.rules.strictness import CURRENT as STRICT

Geometry = TypeVar("Geometry", ConvGeometry, ConvTransposeGeometry)


@dataclass(frozen=True, slots=True)
class SumsGeometry:
    """Geometry of a bias gradient: the sum of x (N, C, D1…Dn) over all axes but channels gives y (C,)."""

    x_shape: Ints
    y_shape: Ints


@dataclass(frozen=True, slots=True)
class MaxUnpoolGeometry:
    """Geometry of MaxUnpool, which stores elements of x at the positions that Indices give.

    Attributes
    ----------
    x_shape : tuple of int
        Shape of the maxima and their Indices.
    numbered_shape : tuple of int
        Shape of the array whose elements the Indices count.
    y_shape : tuple of int
        Shape of the result, which may be larger.
    index_windows : IndexWindows
        The range of valid Indices of each window.
    """

    x_shape: Ints
    numbered_shape: Ints
    y_shape: Ints
    index_windows: IndexWindows


def conv_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    x_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvTransposeGeometry:
    """Return the geometry of the ConvTranspose that computes the gradient with respect to Conv's x from dy."""
    name = "conv_input_grad"
    forward = geometry.conv(_shape(name, "x_shape", x_shape), w_shape, layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _exchanged(forward, ConvTransposeGeometry)


def conv_transpose_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    x_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvGeometry:
    """Return the geometry of the Conv that computes the gradient with respect to ConvTranspose's x from dy."""
    name = "conv_transpose_input_grad"
    forward = geometry.conv_transpose(_shape(name, "x_shape", x_shape), w_shape, layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _exchanged(forward, ConvGeometry)


def conv_weight_grad(
    x_shape: Sequence[int],
    dy_shape: Sequence[int],
    *,
    w_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvGeometry:
    """Return the geometry of the forward Conv whose weight gradient is wanted."""
    name = "conv_weight_grad"
    forward = geometry.conv(x_shape, _shape(name, "w_shape", w_shape), layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return forward


def conv_transpose_weight_grad(
    x_shape: Sequence[int],
    dy_shape: Sequence[int],
    *,
    w_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvGeometry:
    """Return the geometry of the Conv from dy to x that has the weights of the ConvTranspose, whose gradient is
    wanted.
    """
    name = "conv_transpose_weight_grad"
    forward = geometry.conv_transpose(x_shape, _shape(name, "w_shape", w_shape), layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _exchanged(forward, ConvGeometry)


def conv_bias_grad(dy_shape: Sequence[int], *, layout: str = "NCHW") -> SumsGeometry:
    """Return the geometry of the sums over batch and space that are the gradient with respect to Conv's b."""
    return _sums("conv_bias_grad", dy_shape, layout)


def conv_transpose_bias_grad(dy_shape: Sequence[int], *, layout: str = "NCHW") -> SumsGeometry:
    """Return the geometry of the sums over batch and space that are the gradient with respect to ConvTranspose's b."""
    return _sums("conv_transpose_bias_grad", dy_shape, layout)


def max_pool_grad(
    dy_shape: Sequence[int],
    indices_shape: Sequence[int],
    *,
    x_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> MaxPoolGeometry:
    """Return the geometry of the forward MaxPool whose input gradient is wanted."""
    name = "max_pool_grad"
    forward = geometry.max_pool(_shape(name, "x_shape", x_shape), layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    _check_indices(name, "dy", dy_shape, indices_shape)
    return forward


def average_pool_grad(
    dy_shape: Sequence[int], *, x_shape: Iterable[int], layout: str = "NCHW", **attributes: Any
) -> AveragePoolGeometry:
    """Return the geometry of the forward AveragePool whose input gradient is wanted."""
    name = "average_pool_grad"
    forward = geometry.average_pool(_shape(name, "x_shape", x_shape), layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return forward


def global_average_pool_grad(
    dy_shape: Sequence[int], *, x_shape: Iterable[int], layout: str = "NCHW"
) -> AveragePoolGeometry:
    """Return the geometry of the forward GlobalAveragePool whose input gradient is wanted."""
    name = "global_average_pool_grad"
    forward = geometry.global_average_pool(_shape(name, "x_shape", x_shape), layout=layout, name=name)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return forward


def max_unpool(
    y_shape: Sequence[int],
    indices_shape: Sequence[int],
    *,
    kernel_shape: PerAxis | None,
    indices_in: str = "tensor",
    layout: str = "NCHW",
    output_shape: Iterable[int] | None = None,
    pads: PerAxis | None = None,
    strides: PerAxis | None = None,
) -> MaxUnpoolGeometry:
    """Return the geometry of MaxUnpool; the default output extent is ``s * (n - 1) + k - pads`` along each axis.

    Indices count the elements of an array with that default shape; with ``indices_in="plane"``, those of a plane of the
    result.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute or a shape breaks a rule; the message names the rule and the numbers.
    """
    name = "max_unpool"
    geometry.require_kernel(name, kernel_shape)
    _check_indices(name, "y", y_shape, indices_shape)
    in_planes = parse_indices_in(name, indices_in) == "plane"
    given = per_axis(name, "kernel_shape", kernel_shape)
    shape = layouts.channels_second(layouts.check(name, layout), tuple(y_shape))
    if len(shape) < 3:
        raise ArgumentError(
            f"{name}: y must have a batch, a channel and at least one spatial axis, but y.shape={tuple(y_shape)}"
        )
    result = integers(name, "output_shape", output_shape)
    along = per_axis(name, "pads", pads), per_axis(name, "strides", strides)
    return _max_unpool(name, shape, given, layout, *along, result, in_planes, bool(STRICT.get()))


@lru_cache(maxsize=1024)
def _max_unpool(
    name: str,
    shape: Ints,
    given: Any,
    layout: str,
    pads: Any,
    strides: Any,
    output_shape: Ints | None,
    in_planes: bool,
    is_strict: bool,
) -> MaxUnpoolGeometry:
    """Return the geometry for y (N, C, Q1, ..., Qn); the output's default extents are those of ConvTranspose."""
    kernel = geometry.positive(name, "kernel_shape", given, geometry.check_rank(name, "y", len(shape) - 2))
    single_channel = geometry.conv_transpose((1, 1, *shape[2:]), (1, 1, *kernel), pads=pads, strides=strides, name=name)
    if is_strict and output_shape is None and not any(isinstance(each, tuple) for each in (given, pads, strides)):
        strictness.check_axes(name, "y", shape, layout, f"kernel_shape=[{kernel[0]}]")
    natural = (*shape[:2], *single_channel.y_shape[2:])
    result = _unpooled(name, natural, output_shape, in_planes)
    geometry.check_size(name, "the output shape", layouts.as_given(layout, result))
    numbered = result if in_planes else natural
    return MaxUnpoolGeometry(
        shape, numbered, result, _unpooled_windows(single_channel, shape, numbered, result, in_planes)
    )


def _unpooled_windows(
    single_channel: ConvTransposeGeometry, shape: Ints, numbered: Ints, result: Ints, in_planes: bool
) -> IndexWindows:
    """Return the valid Indices of each window, assuming that the forward call's x had the shape of the result."""
    pads = [begin + end for begin, end in zip(single_channel.pads_begin, single_channel.pads_end, strict=True)]
    axes = zip(result[2:], shape[2:], single_channel.kernel_shape, single_channel.strides, pads, strict=True)
    reach = [largest_reach(*axis) for axis in axes]
    return IndexWindows.of(
        shape,
        numbered,
        in_planes,
        0,
        single_channel.strides,
        single_channel.pads_begin,
        reach,
        single_channel.dilations,
    )


def _unpooled(name: str, natural: Ints, given: Ints | None, in_planes: bool) -> Ints:
    """Return the result's shape; if Indices count the default shape, the result must not be smaller."""
    if given is None:
        return natural
    rank = len(natural) - 2
    if len(given) not in (rank, rank + 2):
        raise ArgumentError(
            f"{name}: output_shape must have one entry per spatial axis ({rank}), or N and C in front of them "
            f"({rank + 2}), not {len(given)}: {shown(given)}"
        )
    if min(given[-rank:]) < 0:
        raise ArgumentError(f"{name}: no entry of output_shape may be negative, but output_shape={shown(given)}")
    if not in_planes and any(size < needed for size, needed in zip(given[-rank:], natural[2:], strict=True)):
        raise ArgumentError(
            f"{name}: output_shape {given[-rank:]} is smaller than {natural[2:]}, which the attributes give "
            "and Indices number"
        )
    return (*natural[:2], *given[-rank:])


def _check_indices(name: str, other: str, shape: Sequence[int], indices_shape: Sequence[int]) -> None:
    if tuple(indices_shape) != tuple(shape):
        raise ArgumentError(
            f"{name}: indices must have the shape of {other} {tuple(shape)}, not {tuple(indices_shape)}"
        )


def _sums(name: str, dy_shape: Sequence[int], layout: str) -> SumsGeometry:
    """Return the geometry of a bias gradient after validation of dy's rank and layout."""
    layouts.check(name, layout)
    if len(dy_shape) < 3:
        raise ArgumentError(
            f"{name}: dy must have a batch, a channel and at least one spatial axis, but dy.shape={tuple(dy_shape)}"
        )
    geometry.check_rank(name, "dy", len(dy_shape) - 2)
    shape = layouts.channels_second(layout, tuple(dy_shape))
    geometry.check_size(name, "the output shape", shape[1:2])
    return SumsGeometry(shape, shape[1:2])


def _exchanged(g: ConvGeometry | ConvTransposeGeometry, kind: type[Geometry]) -> Geometry:
    """Return the geometry with input and output exchanged, through the same taps."""
    return kind(
        g.y_shape, g.x_shape, g.kernel_shape, g.strides, g.dilations, g.pads_begin, g.pads_end, g.w_shape, g.group
    )


def _shape(name: str, argument: str, value: Any) -> Ints:
    """Return a shape that the caller passes as an argument, after validation."""
    if value is None:
        raise ArgumentTypeError(f"{name}: {argument} is required, the shape of the array whose gradient is asked for")
    shape: Ints = integers(name, argument, value)
    if min(shape, default=0) < 0:
        raise ArgumentError(f"{name}: no entry of {argument} may be negative, but {argument}={shown(shape)}")
    geometry.check_size(name, argument, shape)
    return shape


def _check_dy(name: str, dy_shape: Sequence[int], y_shape: Ints, layout: str) -> None:
    """Raise ArgumentError unless dy has the shape of the forward call's result."""
    expected = layouts.as_given(layout, y_shape)
    if tuple(dy_shape) != expected:
        raise ArgumentError(f"{name}: dy must have the shape of the result {expected}, not {tuple(dy_shape)}")
