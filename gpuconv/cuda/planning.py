"""The plan of a call, whatever its operator and dtype."""

from __future__ import annotations

from typing import Any

from gpuconv._errors import ArgumentError
from gpuconv.cuda import complex as complex_plan
from gpuconv.cuda import idle_axes
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import finish
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import unpool
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.weight_grad import families as weight_grad_families
from gpuconv.rules import dtypes
from gpuconv.rules.activation import Activation
from gpuconv.rules.geometry import Ints

_PARAMETER_BYTES = 4096  # of one launch, for every compiler and driver; the newest have room for more


def plan(
    kernel: str,
    geometry: Any,
    dtype: str,
    strides: dict[str, Ints],
    limits: Limits,
    precision: str,
    activation: Activation | None = None,
) -> Plan:
    """Plan what ``_operators.Operator.kernel`` names, for arrays of these strides in elements, by their roles.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices, more blocks than a grid has, or more axes than parameters have room
        for.
    """
    if kernel != "bias_grad":  # which makes one of all axes that lie as one
        geometry, strides = idle_axes.left_out(geometry, strides)
    found = _plan(kernel, geometry, dtype, strides, limits, precision, activation)
    size = max((launch.variant.layout.itemsize for launch in (*found.launches, *found.sharing)), default=0)
    if size > _PARAMETER_BYTES:
        raise ArgumentError(
            f"{found.operator}: {len(geometry.x_shape) - 2} spatial axes, those of one element left out, make {size} "
            f"bytes of parameters, more than the {_PARAMETER_BYTES} of one CUDA launch; pass NumPy arrays"
        )
    return found


def _plan(
    kernel: str,
    geometry: Any,
    dtype: str,
    strides: dict[str, Ints],
    limits: Limits,
    precision: str,
    activation: Activation | None,
) -> Plan:
    if kernel == "max_pool":
        return pool_families.for_max_pool(geometry, dtype, strides["x"], strides["y"], strides.get("indices"), limits)
    if kernel == "max_pool_grad":
        arrays = strides["dy"], strides["indices"], strides["y"]
        return pool_grad_families.for_max_pool_grad(geometry, dtype, *arrays, limits)
    if kernel == "max_unpool":
        return unpool.for_max_unpool(geometry, dtype, strides["x"], strides["indices"], strides["y"])
    if kernel == "bias_grad":
        return sums.for_channels(geometry, dtype, strides["x"], strides["y"], limits)
    if dtypes.entry(dtype).real:
        return complex_plan.plan(kernel, geometry, dtype, strides, limits, precision)
    if kernel == "weight_grad":
        arrays = strides["x"], strides["dy"], strides["y"]
        return weight_grad_families.for_weight_grad(geometry, dtype, *arrays, limits, precision)
    make = conv_families.for_conv if kernel == "conv" else conv_families.for_conv_transpose
    b_stride = strides["b"][0] if "b" in strides else None
    found = make(geometry, dtype, strides["x"], strides["w"], b_stride, strides["y"], limits, precision)
    return finish.finished(found, activation, dtype, geometry.y_shape, strides)
