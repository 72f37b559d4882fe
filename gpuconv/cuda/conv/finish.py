"""The fused epilogue of Conv and ConvTranspose: add a residual and apply an activation before rounding to y's dtype.

The device side is ``conv/finish.cuh``. The epilogue does not influence which kernel is chosen: a plan is made without
it, and this module then fills in the epilogue's fields of its launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.passes import copy as copy_pass
from gpuconv.cuda.plan import Launch, Plan, Space
from gpuconv.rules import dtypes
from gpuconv.rules.activation import Activation
from gpuconv.rules.geometry import Ints


def finished(plan: Plan, activation: Activation | None, dtype: str, shape: Ints, strides: Mapping[str, Ints]) -> Plan:
    """Return the plan with its epilogue filled in: an activation, and a residual if ``strides`` has one.

    ``shape`` is that of y; ``strides`` maps each array's role to its strides in elements. A residual whose strides
    differ from y's is copied first. Real dtypes only.
    """
    steps = strides.get("residual")
    acts = activation is not None and activation.acts
    if not plan.launches or not (acts or steps is not None):
        return plan
    otherwise = plan.otherwise
    if otherwise is not None:
        plan = replace(plan, otherwise=lambda: finished(otherwise(), activation, dtype, shape, strides))
    fields = _fields(activation, dtypes.entry(dtype).accumulator)
    if steps is None or _same(shape, steps, strides["y"]):
        return _with(plan, fields, None if steps is None else "residual")
    copy = copy_pass.copy(plan.operator, dtype, shape, {"residual": steps, "copied": strides["y"]})
    with_copy = _with(plan, fields, "copied")
    return replace(
        with_copy,
        launches=_after_packing(with_copy.launches, copy),
        sharing=_after_packing(with_copy.sharing, copy) if with_copy.sharing else (),
        spaces=(*with_copy.spaces, _space(shape, strides["y"], dtypes.entry(dtype).itemsize)),
        reasons=(*with_copy.reasons, "the residual is copied first: its elements do not lie as those of the result"),
    )


def _with(plan: Plan, fields: Mapping[str, int], role: str | None) -> Plan:
    """Return the plan with the epilogue's fields in all launches that write y."""
    launches = tuple(_finished(launch, fields, role) for launch in plan.launches)
    return replace(plan, launches=launches, sharing=tuple(_finished(launch, fields, role) for launch in plan.sharing))


def _after_packing(launches: tuple[Launch, ...], copy: Launch) -> tuple[Launch, ...]:
    """Return the launches with ``copy`` inserted after those that pack weights."""
    packing = sum(launch.packs for launch in launches)
    return (*launches[:packing], copy, *launches[packing:])


def _space(shape: Ints, strides: Ints, itemsize: int) -> Space:
    """Return the buffer for a copy of the residual with y's strides, which may be negative."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    before, after = -sum(step for step in steps if step < 0), 1 + sum(step for step in steps if step > 0)
    return Space("copied", "the residual as the result lies", itemsize * (before + after), itemsize * before)


def _same(shape: Ints, residual: Ints, y: Ints) -> bool:
    """Return whether two arrays of this shape have the same strides on all axes longer than 1."""
    return all(a == b for extent, a, b in zip(shape, residual, y, strict=True) if extent > 1)


def _fields(activation: Activation | None, accumulator: str) -> Mapping[str, int]:
    """Return the fields of the struct ``Finish``; floating-point values are bit patterns of the accumulator's type."""
    if activation is None or not activation.acts:
        return {"slope": 0, "low": 0, "high": 0, "acts": 0}
    with np.errstate(over="ignore"):  # a bound that overflows to infinity clamps nothing, as intended
        numbers = np.array([activation.slope, activation.low, activation.high]).astype(accumulator)
    slope, low, high = map(int, numbers.view(f"u{numbers.itemsize}"))
    return {"slope": slope, "low": low, "high": high, "acts": 1}


def _finished(launch: Launch, fields: Mapping[str, int], role: str | None) -> Launch:
    """Return the launch with the epilogue's fields, if it writes y; other launches are unchanged."""
    if "y" not in launch.roles.values():
        return launch
    place = structs.place(launch.variant.layout, params.FINISH)
    assert place is not None, f"{launch.variant.name} has no field for what comes after its sums"
    residual = {} if role is None else {f"{place}.residual": role}
    return replace(launch, fields={**launch.fields, place: fields}, roles={**launch.roles, **residual})
