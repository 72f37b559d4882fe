"""Planning: dispatches a call to the planner of its operator and dtype, and returns the launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuconv._errors import ArgumentError
from gpuconv.cuda import complex as complex_plan
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import finish
from gpuconv.cuda.conv import invariant as invariance
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import unpool
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.weight_grad import families as weight_grad_families
from gpuconv.rules import dtypes
from gpuconv.rules.activation import Activation
from gpuconv.rules.geometry import Ints

_PARAMETER_BYTES = 4096  # per launch, with every compiler and driver (recent ones allow more)
_BUILT_AHEAD = 4  # most spatial axes of the kernels that are built ahead
_SHAPES = ("x_shape", "y_shape", "w_shape", "numbered_shape")
_PER_AXIS = ("kernel_shape", "strides", "dilations", "pads_begin", "pads_end")


def plan(
    kernel: str,
    geometry: Any,
    dtype: str,
    strides: dict[str, Ints],
    limits: Limits,
    precision: str,
    activation: Activation | None = None,
    invariant: bool = False,
) -> Plan:
    """Plan the computation ``kernel`` (``operators.Operator.kernel``); ``strides`` maps roles to strides in elements.

    With ``invariant``, the order of summation of an image does not depend on the rest of the batch. Gradients of
    weights and biases, which sum over images, ignore it.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices, more blocks than a grid allows, or more axes than fit the kernel
        parameters.
    """
    if kernel != "bias_grad":  # bias_grad merges contiguous axes itself
        geometry, strides = _without_idle_axes(geometry, strides)
    planned = _plan(kernel, geometry, dtype, strides, limits, precision, activation, invariant)
    size = max((launch.variant.layout.itemsize for launch in (*planned.launches, *planned.sharing)), default=0)
    if size > _PARAMETER_BYTES:
        raise ArgumentError(
            f"{planned.operator}: {len(geometry.x_shape) - 2} spatial axes, those of one element left out, make {size} "
            f"bytes of parameters, more than the {_PARAMETER_BYTES} of one CUDA launch; pass NumPy arrays"
        )
    return planned


def _plan(
    kernel: str,
    geometry: Any,
    dtype: str,
    strides: dict[str, Ints],
    limits: Limits,
    precision: str,
    activation: Activation | None,
    invariant: bool,
) -> Plan:
    """Dispatch to the planner of the computation and dtype."""
    if kernel == "average_pool" and dtypes.entry(dtype).real:
        return complex_plan.for_average_pool(geometry, dtype, strides, limits, invariant)
    if kernel in ("max_pool", "average_pool"):
        x, y, indices = strides["x"], strides["y"], strides.get("indices")
        return pool_families.for_pool(geometry, dtype, x, y, indices, limits, invariant)
    if kernel == "average_pool_grad":
        if dtypes.entry(dtype).real:
            return complex_plan.for_average_pool_grad(geometry, dtype, strides, limits, invariant)
        return pool_grad_families.for_average_pool_grad(geometry, dtype, strides["dy"], strides["y"], limits, invariant)
    if kernel == "max_pool_grad":
        arrays = strides["dy"], strides["indices"], strides["y"]
        return pool_grad_families.for_max_pool_grad(geometry, dtype, *arrays, limits, invariant)
    if kernel == "max_unpool":
        return unpool.for_max_unpool(geometry, dtype, strides["x"], strides["indices"], strides["y"])
    if kernel == "bias_grad":
        return sums.for_channels(geometry, dtype, strides["x"], strides["y"], limits)
    if dtypes.entry(dtype).real:
        return complex_plan.plan(kernel, geometry, dtype, strides, limits, precision, invariant)
    if kernel == "weight_grad":
        arrays = strides["x"], strides["dy"], strides["y"]
        return weight_grad_families.for_weight_grad(geometry, dtype, *arrays, limits, precision)
    b_stride = strides["b"][0] if "b" in strides else None
    x, w, y = (strides[role] for role in ("x", "w", "y"))
    if not invariant:
        planned = conv_families.for_conv(geometry, dtype, x, w, b_stride, y, limits, precision)
        return finish.finished(planned, activation, dtype, geometry.y_shape, strides)

    def finished(plan: Plan, problem: Problem) -> Plan:
        """Return the plan with its epilogue."""
        return finish.finished(plan, activation, dtype, problem.y_shape, {**strides, "y": problem.y_strides})

    steps = {"residual": strides["residual"][0]} if "residual" in strides else {}
    problem = correlation.of(geometry, dtype, x, w, b_stride, y, precision)
    return invariance.plan(problem, limits, finished, steps)


def _without_idle_axes(geometry: Any, strides: dict[str, Ints]) -> tuple[Any, dict[str, Ints]]:
    """Drop the axes along which nothing happens, if the problem has more axes than the kernels built ahead.

    At least one spatial axis is kept.
    """
    rank = len(geometry.x_shape) - 2
    if rank <= _BUILT_AHEAD:
        return geometry, strides
    busy_axes = [axis for axis in range(rank) if not _is_idle(geometry, axis)] or [0]

    def of_array(entries: Ints) -> Ints:
        """Return an array's entries for batch, channels and the axes that are kept."""
        return (*entries[:2], *(entries[2 + axis] for axis in busy_axes))

    changed = {name: of_array(getattr(geometry, name)) for name in _SHAPES if hasattr(geometry, name)}
    for name in _PER_AXIS:
        if hasattr(geometry, name):
            entries = getattr(geometry, name)
            changed[name] = tuple(entries[axis] for axis in busy_axes)
    return replace(geometry, **changed), {role: s if role == "b" else of_array(s) for role, s in strides.items()}


def _is_idle(geometry: Any, axis: int) -> bool:
    """Return whether all arrays have one element along an axis, and its only tap is in bounds."""
    extents = [getattr(geometry, name)[2 + axis] for name in _SHAPES if hasattr(geometry, name)]
    if hasattr(geometry, "kernel_shape"):
        extents += [geometry.kernel_shape[axis], 1 + geometry.pads_begin[axis]]
    return set(extents) == {1}
