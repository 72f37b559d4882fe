"""Complex Conv, ConvTranspose, AveragePool and gradients, planned as real ones with one more spatial axis.

The extra innermost axis holds the real and imaginary parts. A complex product becomes a real correlation along it: each
weight is expanded into 3 taps (4 products for the weight gradient).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import invariant as invariance
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.plan import Launch, Limits, Plan, Space, nonempty, strided
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.weight_grad import families as weight_grad_families
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import AveragePoolGeometry, Ints

# axes of the kernels that are built ahead, with 32-bit and with 64-bit indices
_EXPAND_AXES, _ADD_AXES = (1, 6), (3, 5)


def plan(
    kernel: str,
    geometry: Any,
    dtype: str,
    strides: dict[str, Ints],
    limits: Limits,
    precision: str,
    invariant: bool = False,
) -> Plan:
    """Plan Conv, ConvTranspose or the weight gradient for complex arrays with these strides in elements, by role.

    ``invariant`` as in ``planning.plan``.
    """
    real = dtypes.entry(dtype).real
    lifted: Any
    if kernel == "weight_grad":
        lifted = _lifted(geometry, kernel=4, stride=2, pad=2)
        x, dy = _of_parts(strides["x"]), _of_parts(strides["dy"])
        return weight_grad_families.for_weight_grad(lifted, real, x, dy, strides["y"], limits, result=dtype)
    lifted = _lifted(geometry, kernel=3, stride=1, pad=1)
    w = tuple(prod(lifted.w_shape[axis + 1 :]) for axis in range(len(lifted.w_shape)))
    arrays = _of_parts(strides["x"]), w, None, _of_parts(strides["y"])
    problem = correlation.of(lifted, real, *arrays, precision)
    if invariant:
        real_plan = invariance.plan(problem, limits, lambda plan, _: plan, {})
    else:
        real_plan = conv_families.plan(problem, limits)
    if not real_plan.launches:
        return replace(real_plan, operator=kernel)
    launches = [
        replace(launch, roles={name: "expanded" if role == "w" else role for name, role in launch.roles.items()})
        for launch in real_plan.launches
    ]
    expands = any(role == "expanded" for launch in launches for role in launch.roles.values())
    if expands:
        launches.insert(0, _expand(kernel, geometry.w_shape, strides["w"], dtype))
        size = prod(lifted.w_shape) * dtypes.entry(real).itemsize
        real_plan = replace(
            real_plan, spaces=nonempty(Space("expanded", "the weights' parts", size), *real_plan.spaces)
        )
    if "b" in strides or "residual" in strides:
        launches.append(_add(kernel, geometry.y_shape, strides, dtype))
    why = "complex: a real one along one more axis, of the two parts, with 3 taps for each weight"
    return replace(real_plan, launches=tuple(launches), sharing=(), reasons=(*real_plan.reasons, why))


def for_average_pool(
    geometry: AveragePoolGeometry, dtype: str, strides: dict[str, Ints], limits: Limits, invariant: bool = False
) -> Plan:
    """Plan AveragePool for complex arrays: real and imaginary parts are averaged separately."""
    x, y = _of_parts(strides["x"]), _of_parts(strides["y"])
    real = dtypes.entry(dtype).real
    return _in_parts(pool_families.for_pool(_with_parts(geometry), real, x, y, None, limits, invariant))


def for_average_pool_grad(
    geometry: AveragePoolGeometry, dtype: str, strides: dict[str, Ints], limits: Limits, invariant: bool = False
) -> Plan:
    """Plan the gradient of AveragePool for complex arrays: real and imaginary parts are computed separately."""
    dy, dx = _of_parts(strides["dy"]), _of_parts(strides["y"])
    lifted, real = _with_parts(geometry), dtypes.entry(dtype).real
    return _in_parts(pool_grad_families.for_average_pool_grad(lifted, real, dy, dx, limits, invariant))


def _in_parts(plan: Plan) -> Plan:
    """Return a real plan with the reason that its last axis holds the two parts."""
    why = "complex: a real one with one more axis, of the two parts, along which no window goes"
    return replace(plan, reasons=(*plan.reasons, why))


def _with_parts(g: AveragePoolGeometry) -> AveragePoolGeometry:
    """Return the geometry with the axis of parts appended; windows have one element along it."""
    return replace(
        g,
        x_shape=(*g.x_shape, 2),
        y_shape=(*g.y_shape, 2),
        kernel_shape=(*g.kernel_shape, 1),
        strides=(*g.strides, 1),
        dilations=(*g.dilations, 1),
        pads_begin=(*g.pads_begin, 0),
        pads_end=(*g.pads_end, 0),
    )


def _lifted(geometry: Any, kernel: int, stride: int, pad: int) -> Any:
    """Return the geometry with the axis of parts appended, with this kernel size, stride and padding."""
    g = geometry
    return replace(
        g,
        x_shape=(*g.x_shape, 2),
        y_shape=(*g.y_shape, 2),
        w_shape=(*g.w_shape, kernel),
        kernel_shape=(*g.kernel_shape, kernel),
        strides=(*g.strides, stride),
        dilations=(*g.dilations, 1),
        pads_begin=(*g.pads_begin, pad),
        pads_end=(*g.pads_end, pad),
    )


def _of_parts(strides: Ints) -> Ints:
    """Return a complex array's strides in real elements, with the axis of parts appended."""
    return (*(2 * stride for stride in strides), 1)


def _expand(operator: str, shape: Ints, strides: Ints, dtype: str) -> Launch:
    """Return the launch that expands each complex weight into 3 real taps along the axis of parts."""
    extents, steps = strided.collapsed(shape, strides)
    wide = strided.needs_wide(operator, extents, steps, [3 * prod(shape)])
    rank = strided.axes(len(extents), wide, _EXPAND_AXES)
    expand = _variant(_EXPAND, dtype, wide, rank)
    fields = {
        "elements": prod(shape),
        "extent": strided.filled(extents, rank, 1),
        "w_stride": strided.filled(steps, rank, 0),
        "transposed": operator == "conv_transpose",
    }
    return Launch.of_threads(operator, expand, prod(shape), fields, {"w": "w", "expanded": "expanded"})


def _add(operator: str, shape: Ints, strides: dict[str, Ints], dtype: str) -> Launch:
    """Return the launch that adds the bias and the residual, as far as given, to y."""
    y, b_stride = strides["y"], strides.get("b", (0,))[0]
    residual = strides.get("residual", y)
    extents, steps = strided.collapsed_together((shape[0], *shape[2:]), *((s[0], *s[2:]) for s in (y, residual)))
    wide = params.needs_wide(
        operator,
        [
            prod(shape),
            shape[1] * abs(b_stride),
            *(params.span([*extents, shape[1]], [*its, s[1]]) for its, s in zip(steps, (y, residual), strict=True)),
        ],
    )
    rank = strided.axes(len(extents), wide, _ADD_AXES)
    added = _variant(_ADD_TO, dtype, wide, rank)
    fields = {
        "elements": prod(shape),
        "b_stride": b_stride,
        "y_channel": y[1],
        "y_stride": strided.filled(steps[0], rank, 0),
        "residual_channel": residual[1],
        "residual_stride": strided.filled(steps[1], rank, 0),
        "channels": shape[1],
        "extent": strided.filled(extents, rank, 1),
    }
    roles: dict[str, str] = {role: role for role in ("b", "residual", "y") if role in strides}
    return Launch.of_threads(operator, added, prod(shape), fields, roles)


# ---------------------------------------------------------------- variants


_EXPAND = Kernel("complex.cu", "expand_complex", "ExpandComplexParams<{index}, {rank}>")
_ADD_TO = Kernel("complex.cu", "add_to_complex", "AddToComplexParams<{index}, {rank}>")


def _variant(kernel: Kernel, dtype: str, wide: bool, rank: int) -> Variant:
    """Return the kernel variant for a complex dtype."""
    return kernel.over(dtype, rank, types=(dtypes.entry(dtypes.entry(dtype).real).cuda,), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for arrays of more axes are compiled on first use."""
    for dtype in dtypes.COMPLEX_DTYPES:
        for wide in (False, True):
            yield _variant(_EXPAND, dtype, wide, _EXPAND_AXES[wide])
            yield _variant(_ADD_TO, dtype, wide, _ADD_AXES[wide])
