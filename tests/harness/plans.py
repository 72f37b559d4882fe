"""Plans and problems of convolutions for tests of single families, and the fields of their launches' structs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.weight_grad.problem import WeightGradProblem
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from gpuconv.rules import layout as layouts

HOPPER = Limits("sm_90a", 132, 227 * 1024, 228 * 1024)


Ints = tuple[int, ...]


def contiguous(shape: Ints) -> Ints:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def plan(
    operator: str,
    x_shape: Ints,
    w_shape: Ints,
    *,
    dtype: str = "float32",
    bias: bool = False,
    x_strides: Ints | None = None,
    limits: Limits = HOPPER,
    **attributes: Any,
) -> Plan:
    geometry: Any = getattr(geometries, operator)(x_shape, w_shape, **attributes)
    x_strides = x_strides or contiguous(x_shape)
    b_stride = 1 if bias else None
    return conv_families.for_conv(
        geometry, dtype, x_strides, contiguous(w_shape), b_stride, contiguous(geometry.y_shape), limits
    )


def plain(struct: Any) -> Any:
    """Return a struct as dictionaries and lists, with dividers as their divisors."""
    names = struct.dtype.names
    if names is None:
        return struct.tolist()
    if "divisor" in names:
        return struct["divisor"].tolist()
    if struct.ndim:
        return [plain(entry) for entry in struct]
    return {name: plain(struct[name]) for name in names}


def fields(launch: Launch) -> dict[str, Any]:
    found: dict[str, Any] = plain(np.frombuffer(launch.parameters, launch.variant.layout)[0])
    return found


def wide(launch: Launch) -> bool:
    return "long long" in launch.variant.arguments


def channels_last(shape: Ints) -> Ints:
    batch, *spatial, channel = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return batch, channel, *spatial


def problem(
    operator: str,
    x: Ints,
    w: Ints,
    dtype: str = "float16",
    *,
    precision: str = "ieee",
    layout: str = "NCHW",
    x_strides: Ints | None = None,
    w_strides: Ints | None = None,
    **attributes: Any,
) -> Problem:
    geometry: Any = getattr(geometries, operator)(x, w, None, **attributes)
    order = channels_last if layout == "NHWC" else contiguous_strides
    x_strides, w_strides = x_strides or order(x), w_strides or contiguous_strides(w)
    return correlation.of(geometry, dtype, x_strides, w_strides, None, order(geometry.y_shape), precision)


def weight_grad(
    x: Ints, w: Ints, dtype: str = "float32", layout: str = "NCHW", *, precision: str = "ieee", **attributes: Any
) -> WeightGradProblem:
    geometry = geometries.conv(x, w, **attributes)
    lie = strides(x, layout), strides(geometry.y_shape, layout), contiguous_strides(w)
    return WeightGradProblem(geometry, dtype, *lie, dtype, precision)


def max_pool_grad(x: Ints, dtype: str = "float32", last: bool = False, **attributes: Any) -> Plan:
    y = geometries.max_pool(x, **attributes).y_shape
    geometry = gradients.max_pool_grad(y, y, x_shape=x, **attributes)
    dy, dx = map(channels_last if last else contiguous, (y, x))
    return pool_grad_families.for_max_pool_grad(geometry, dtype, dy, dy, dx, HOPPER)


def strides(shape: Ints, layout: str = "NHWC") -> Ints:
    """Return strides of a contiguous array in a layout, for the axes N, C, D1, ..."""
    return layouts.channels_second(layout, contiguous_strides(layouts.as_given(layout, shape)))


def conv_of(
    dtype: str, *, batch: int, group: int, channels: int, filters: int, x_extent: Ints, y_extent: Ints, **axes: Ints
) -> Problem:
    """Return a Conv problem with these numbers, consistent or not; ``axes``: taps, column_strides, dilations, pads."""
    arrays = {"x_shape": (batch, group * channels, *x_extent), "y_shape": (batch, group * filters, *y_extent)}
    empty: dict[str, Any] = dict.fromkeys(("x_strides", "y_strides", "w_strides", "phases", "strides"), ())
    known: dict[str, Any] = {"group": group, "channels": channels, "filters": filters, "batch": batch, **arrays, **axes}
    return Problem(operator="conv", dtype=dtype, precision="ieee", b_stride=None, columns=y_extent, **known, **empty)
