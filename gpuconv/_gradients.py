"""Geometries of gradients: those of the operators themselves, the other way round.

With respect to its input, Conv has ConvTranspose for a gradient and the other way round: output ``q`` of Conv meets
input ``q * s + offset``, input ``i`` of ConvTranspose reaches output ``i * s + offset``. With respect to the weights
both sum the products of what meets through a tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuconv import _geometry, _layout
from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv._geometry import ConvGeometry, ConvTransposeGeometry, Ints


@dataclass(frozen=True, slots=True)
class SumsGeometry:
    """The sums over all but the channels: x (N, C, D1…Dn) gives y (C,)."""

    x_shape: Ints
    y_shape: Ints


def conv_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    x_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvTransposeGeometry:
    """Return the ConvTranspose that takes dy to the gradient of Conv's x."""
    name = "conv_input_grad"
    forward = _geometry.conv(_shape(name, "x_shape", x_shape), w_shape, layout=layout, name=name, **attributes)
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _transposed(forward)


def conv_transpose_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    x_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvGeometry:
    """Return the Conv that takes dy to the gradient of ConvTranspose's x."""
    name = "conv_transpose_input_grad"
    forward = _geometry.conv_transpose(
        _shape(name, "x_shape", x_shape), w_shape, layout=layout, name=name, **attributes
    )
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _straight(forward)


def conv_weight_grad(
    x_shape: Sequence[int],
    dy_shape: Sequence[int],
    *,
    w_shape: Iterable[int],
    layout: str = "NCHW",
    **attributes: Any,
) -> ConvGeometry:
    """Return the Conv whose weights' gradient is asked for."""
    name = "conv_weight_grad"
    forward = _geometry.conv(x_shape, _shape(name, "w_shape", w_shape), layout=layout, name=name, **attributes)
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
    """Return the Conv from dy to x, whose weights are the same."""
    name = "conv_transpose_weight_grad"
    forward = _geometry.conv_transpose(
        x_shape, _shape(name, "w_shape", w_shape), layout=layout, name=name, **attributes
    )
    _check_dy(name, dy_shape, forward.y_shape, layout)
    return _straight(forward)


def conv_bias_grad(dy_shape: Sequence[int], *, layout: str = "NCHW") -> SumsGeometry:
    """Return the sums over batch and space that are the gradient of Conv's b."""
    return _sums("conv_bias_grad", dy_shape, layout)


def conv_transpose_bias_grad(dy_shape: Sequence[int], *, layout: str = "NCHW") -> SumsGeometry:
    """Return the sums over batch and space that are the gradient of ConvTranspose's b."""
    return _sums("conv_transpose_bias_grad", dy_shape, layout)


def _sums(name: str, dy_shape: Sequence[int], layout: str) -> SumsGeometry:
    _layout.check(name, layout)
    if len(dy_shape) < 3:
        raise ArgumentError(
            f"{name}: dy must have a batch, a channel and at least one spatial axis, but dy.shape={tuple(dy_shape)}"
        )
    shape = _layout.channels_second(layout, tuple(dy_shape))
    return SumsGeometry(shape, shape[1:2])


def _transposed(g: ConvGeometry) -> ConvTransposeGeometry:
    return ConvTransposeGeometry(
        g.y_shape, g.x_shape, g.kernel_shape, g.strides, g.dilations, g.pads_begin, g.pads_end, g.w_shape, g.group
    )


def _straight(g: ConvTransposeGeometry) -> ConvGeometry:
    return ConvGeometry(
        g.y_shape, g.x_shape, g.kernel_shape, g.strides, g.dilations, g.pads_begin, g.pads_end, g.w_shape, g.group
    )


def _shape(name: str, argument: str, value: Any) -> Ints:
    """Return a shape that is given in words, not as an array's."""
    if value is None:
        raise ArgumentTypeError(f"{name}: {argument} is required, the shape of the array whose gradient is asked for")
    shape: Ints = _geometry.integers(name, argument, value)
    if min(shape, default=0) < 0:
        raise ArgumentError(f"{name}: no entry of {argument} may be negative, but {argument}={shape}")
    return shape


def _check_dy(name: str, dy_shape: Sequence[int], y_shape: Ints, layout: str) -> None:
    expected = _layout.as_given(layout, y_shape)
    if tuple(dy_shape) != expected:
        raise ArgumentError(f"{name}: dy must have the shape of the result {expected}, not {tuple(dy_shape)}")
