"""Plans whose launches also add a residual and apply an activation, before they round (``include/finish.cuh``).

Which kernel is taken does not depend on it: a plan is made as ever, then what it launches is finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuconv import _dtypes
from gpuconv._activation import Activation
from gpuconv._errors import ArgumentError
from gpuconv._geometry import Ints
from gpuconv.cuda import gemm_structs, params
from gpuconv.cuda.plan import Launch, Plan


def finished(plan: Plan, activation: Activation | None, dtype: str, shape: Ints, strides: Mapping[str, Ints]) -> Plan:
    """Return the plan of the same call with an activation, and with a residual where there are strides of one.

    Parameters
    ----------
    plan : Plan
        Of a real Conv or ConvTranspose.
    activation : Activation or None
    dtype : str
    shape : tuple of int
        Of y.
    strides : mapping of str to tuple of int
        Of the call's arrays, by role.
    """
    steps = strides.get("residual")
    if not plan.launches or (activation is None and steps is None):
        return plan
    if steps is not None and not _same(shape, steps, strides["y"]):
        raise ArgumentError(f"{plan.operator}: residual must have the result's strides")
    role = None if steps is None else "residual"
    fields = _fields(activation, _dtypes.entry(dtype).accumulator)
    launches, sharing = (
        tuple(_finished(launch, fields, role) for launch in launches) for launches in (plan.launches, plan.sharing)
    )
    return replace(plan, launches=launches, sharing=sharing)


def _same(shape: Ints, one: Ints, other: Ints) -> bool:
    """Tell whether two arrays of this shape have their elements in the same places."""
    return all(a == b for extent, a, b in zip(shape, one, other, strict=True) if extent > 1)


def _fields(activation: Activation | None, accumulator: str) -> Mapping[str, int]:
    """Return the fields of ``Finish``: numbers as the bits that they have in the type of the sums."""
    if activation is None or not activation.acts:
        return {"slope": 0, "low": 0, "high": 0, "acts": 0}
    with np.errstate(over="ignore"):  # what is beyond the type's range bounds nothing
        numbers = np.array([activation.slope, activation.low, activation.high]).astype(accumulator)
    slope, low, high = map(int, numbers.view(f"u{numbers.itemsize}"))
    return {"slope": slope, "low": low, "high": high, "acts": 1}


def _finished(launch: Launch, fields: Mapping[str, int], role: str | None) -> Launch:
    """Return a launch that finishes what it writes to y, if it does."""
    if all(name != "y" for name, _ in launch.pointers):
        return launch
    begin = _place(launch.variant.layout)
    assert begin is not None, f"{launch.variant.name} has no field for what comes after its sums"
    layout = gemm_structs.finish()
    parameters = bytearray(launch.parameters)
    parameters[begin : begin + layout.itemsize] = params.pack(layout, fields)
    found = () if role is None else params.pointers(layout, {"residual": role}, begin)
    return replace(launch, parameters=bytes(parameters), pointers=(*launch.pointers, *found))


def _place(layout: np.dtype[Any]) -> int | None:
    """Return where ``finish`` begins in a struct, or in one of those inside it."""
    for name, (inner, at, *_) in (layout.fields or {}).items():
        if name == params.FINISH:
            return int(at)
        found = _place(inner)
        if found is not None:
            return int(at) + found
    return None
