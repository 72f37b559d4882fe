"""The CUDA backend: runs the public operators on device arrays.

A call is looked up in a dictionary by everything that its plan depends on: shapes, strides, dtypes, attributes, device.
Only on a miss are its arguments validated, its geometry and plan computed, and its kernels compiled and loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuconv._errors import CaptureError
from gpuconv.cuda.call import device
from gpuconv.rules import activation as activations
from gpuconv.rules import dtypes, invariance, memory
from gpuconv.rules import layout as layouts
from gpuconv.rules import precision as precisions
from gpuconv.rules.integers import MOST_ENTRIES, has_order
from gpuconv.rules.operators import OPERATORS, settled
from gpuconv.rules.strictness import CURRENT as STRICT

if TYPE_CHECKING:  # imported on use: the CPU backend does not need them
    from gpuconv._packed import PackedWeights
    from gpuconv.cuda.call.prepared import Prepared
    from gpuconv.rules.activation import Activation
    from gpuconv.rules.indices import IndexWindows

__all__ = ["check_place", "complete", "prepare", "run", "runtime"]

runtime: Any = device  # replaced by tests of models
_MOST_PREPARED = 4096


def run(
    operator: str,
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    layout: str,
    precision: str = "ieee",
    packed: PackedWeights | None = None,
    activation: Activation | None = None,
    residual: bool = False,
    invariant: str | None = None,
) -> list[Any]:
    """Run an operator, one of ``operators.OPERATORS``, on arrays of the current device.

    ``inputs`` are in the operator's order; trailing optional ones may be omitted, and a ``residual`` comes last.
    ``outs`` has an array to write into, or None to allocate one, for the result and, as a second entry, for Indices.

    ``attributes`` are in alphabetical order of their names, with the values that the caller gave. With ``packed``
    weights, the input ``w`` is their snapshot. ``invariant`` is the argument of the call or its context.
    """
    if STRICT.get():
        attributes = _strictly(operator, inputs[: len(inputs) - residual], attributes, layout)
    key: list[Any] = [operator, device.current_device(), layout, precision, invariant, *map(device.layout, inputs)]
    for out in outs:
        if out is not None:
            key += (device.layout(out), getattr(out.flags, "writeable", True))
        else:
            key.append(None)
    if activation is not None or residual:
        key.append((activation, residual))
    prepared: Prepared | None
    try:
        for value in attributes:
            if value is None or (kind := type(value)) is int or kind is str:
                key.append(value)
            elif kind is list or kind is tuple:
                key.append(bytes(value))  # works for small integers only, and is the fastest check for them
            else:
                raise ValueError
    except Exception:  # large integers, unusual types, values that are no integers, objects that cannot be read
        named = dict(zip(OPERATORS[operator].attributes, attributes, strict=True))
        attributes = tuple(settled(operator, named).values())
        try:
            key.append(tuple(map(_settled, attributes)))
        except Exception:  # computing the geometry raises the error for the invalid attribute
            prepared = prepare(operator, inputs, outs, attributes, layout, precision, activation, residual, invariant)
            return prepared.run(inputs, outs)
    try:
        prepared = device.prepared.get(tuple(key))
    except Exception:  # an invalid layout or precision, which is not hashable
        prepared = None
    if prepared is None:
        prepared = prepare(operator, inputs, outs, attributes, layout, precision, activation, residual, invariant)
        _keep(tuple(key), prepared)
    return prepared.run(inputs, outs) if packed is None else prepared.run_packed(packed, inputs, outs)


def _keep(key: tuple[Any, ...], prepared: Prepared) -> None:
    """Cache a prepared call; a full cache is emptied first."""
    if len(device.prepared) >= _MOST_PREPARED:
        device.prepared.clear()
    device.prepared[key] = prepared


def _strictly(operator: str, inputs: tuple[Any, ...], attributes: tuple[Any, ...], layout: str) -> tuple[Any, ...]:
    """Compute the geometry, which raises what strict mode refuses; return the attributes, safe to read again."""
    called = OPERATORS[operator]
    named = settled(operator, dict(zip(called.attributes, attributes, strict=True)))
    called.geometry(*(array.shape for array in inputs), layout=layout, **named)
    return tuple(named.values())


def check_place(operator: str, name: str, array: Any) -> None:
    """Raise DeviceError unless an array is on the current device."""
    from gpuconv.cuda.call.prepared import check_devices

    check_devices(operator, runtime.current_device(), {name: runtime.device_of(array)})


def first_impossible(operator: str, indices: Any, windows: IndexWindows, layout: str) -> tuple[int, ...] | None:
    """Return the position (N, C, Q1, …) of the first index that no forward call returns; waits for the device.

    None if all are possible. Raises DeviceError if the stream captures a graph, or the array is not on the current
    device.
    """
    from gpuconv.cuda.call.prepared import Prepared, Result, element_strides
    from gpuconv.cuda.pool import unpool

    check_place(operator, "indices", indices)
    check_no_capture(operator, "in which Indices cannot be looked at; pass check_indices=False")
    current = device.current_device()
    strides = layouts.channels_second(layout, element_strides(operator, "indices", indices))
    plan = replace(unpool.for_check(windows, strides, device.limits(current)), operator=operator)
    results = [Result("y", "out", (1,), np.dtype(np.int64))]
    search = Prepared(current, plan, {"indices": indices}, {}, results, (None,))
    from_end = int(device.to_host(search.run((indices,), (None,))[0])[0])
    if from_end == 0:
        return None
    return tuple(int(at) for at in np.unravel_index(indices.size - from_end, windows.shape))


def check_no_capture(operator: str, rule: str, does: str = "waits for the device") -> None:
    """Raise CaptureError, naming what cannot be done, if the current stream captures a graph."""
    if runtime.is_capturing():
        raise CaptureError(f"{operator}: the current stream captures a graph, {rule}", does)


def complete(operator: str, make: Callable[[], Any]) -> Any:
    """Return the copy that ``make`` creates on the current stream, once it is visible to every stream.

    Raises DeviceError if the stream captures a graph.
    """
    check_no_capture(operator, "which would copy the weights only later; call it before the capture", "packs weights")
    copy = make()
    runtime.wait()
    return copy


def _settled(value: Any) -> Any:
    """Return an attribute as it appears in the key: 1.0 equals 1 as a key, but is not a valid integer attribute."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not has_order(value):
        raise TypeError
    # a 0-d array has __iter__, but cannot be iterated
    several = hasattr(value, "__iter__") and getattr(value, "ndim", 1) > 0
    return tuple(map(index, islice(value, MOST_ENTRIES + 1))) if several else index(value)


def prepare(
    operator: str,
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    layout: str,
    precision: str,
    activation: Activation | None = None,
    residual: bool = False,
    invariant: str | None = None,
) -> Prepared:
    """Validate a call as the NumPy backend does and check its arrays' devices; then plan it and load its kernels."""
    from gpuconv.cuda import planning
    from gpuconv.cuda.call.prepared import Prepared, Result, check_devices, contiguous_strides, element_strides

    called, operand_count = OPERATORS[operator], len(inputs) - residual
    geometry: Any = called.geometry(
        *(array.shape for array in inputs[:operand_count]),
        **dict(zip(called.attributes, attributes, strict=True)),
        layout=layout,
    )
    arrays = dict(zip((*tuple(called.inputs)[:operand_count], *("residual",) * residual), inputs, strict=True))
    dtype = dtypes.check(operator, **arrays).name
    precisions.check(operator, precision)
    batch_invariant = invariance.check(operator, invariant)
    order = called.order("out", layout)
    shape = layouts.as_given(order, called.result(geometry))
    activations.check(operator, activation, arrays.get("residual"), shape, dtype)
    names = ("out",) if len(outs) == 1 else ("out[0]", "out[1]")
    given = {name: out for name, out in zip(names, outs, strict=True) if out is not None}
    current = device.current_device()
    check_devices(operator, current, {name: device.device_of(array) for name, array in {**arrays, **given}.items()})
    kinds = zip(("y", "indices"), (inputs[0].dtype, np.dtype(np.int64)), names, strict=False)
    results = [Result(role, name, shape, kind) for role, kind, name in kinds]
    for result, out in zip(results, outs, strict=True):
        if out is not None:
            memory.check_result(operator, result.name, out, result.shape, result.dtype)
    strides = {
        called.inputs.get(name, name): layouts.channels_second(
            called.order(name, layout), element_strides(operator, name, array)
        )
        for name, array in arrays.items()
    }
    for result, out in zip(results, outs, strict=True):
        result_strides = contiguous_strides(shape) if out is None else element_strides(operator, result.name, out)
        strides[result.role] = layouts.channels_second(order, result_strides)
    limits = device.limits(current)
    plan = planning.plan(
        called.kernel, geometry, dtype, strides, limits, precision, activation, invariant=batch_invariant
    )
    if called.kernel != operator:
        plan = replace(plan, operator=operator)
    return Prepared(current, plan, arrays, called.inputs, results, outs)
