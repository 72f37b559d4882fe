"""Control flow: If, Loop, Scan and SequenceMap.

These functions decide how often a subgraph runs and with which inputs, and collect its outputs. The subgraphs
themselves are run by an evaluator, behind :class:`Body`. Conditions and trip counts are read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ValueInfoProto

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, ints, namespace
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.shaping import axis_of


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph of a control-flow node.

    Attributes
    ----------
    node : str
        How messages refer to the node.
    run : callable
        Takes the values of the subgraph's inputs, in order, and returns those of its outputs.
    outputs : sequence of ValueInfoProto
        Declarations of the subgraph's outputs.
    """

    node: str
    run: Callable[[Sequence[Any]], list[Any]]
    outputs: Sequence[ValueInfoProto]


Bodies = Mapping[str, Body]  # by attribute name


def _if(_: Form, bodies: Bodies, condition: Any) -> list[Any]:
    """If: run the branch that the condition selects."""
    branch = "then_branch" if _truth(bodies["then_branch"], "cond", condition) else "else_branch"
    return bodies[branch].run(())


def _loop(_: Form, bodies: Bodies, trips: Any = None, condition: Any = None, *carried: Any) -> list[Any]:
    """Loop: run the body until the trip count is reached or its condition is false.

    Without a condition input, the body's condition output is ignored.
    """
    body, values = bodies["body"], list(carried)
    trip_limit = None if trips is None else _single(body, "M", trips)
    going, trip = condition is None or _truth(body, "cond", condition), 0
    collected: list[list[Any]] = [[] for _ in body.outputs[1 + len(values) :]]
    while going and (trip_limit is None or trip < trip_limit):
        outputs = body.run([np.array(trip, np.int64), np.array(going), *values])
        going = condition is None or _truth(body, "cond", outputs[0])
        values = outputs[1 : 1 + len(values)]
        _append(collected, outputs[1 + len(values) :])
        trip += 1
    return values + [_stacked(body, at - len(collected), each, 0) for at, each in enumerate(collected)]


def _scan(form: Form, bodies: Bodies, *inputs: Any) -> list[Any]:
    """Scan: run the body once per element along an axis of the scanned inputs; other inputs are initial states."""
    if form.opset < 9:
        return _scan_of_batch(form, bodies["body"], *inputs)
    first = len(inputs) - form.get("num_scan_inputs")
    axes = form.get("scan_input_axes") or [0] * (len(inputs) - first)
    scanned = [(x, axis_of(axis, x.ndim)) for x, axis in zip(inputs[first:], axes, strict=True)]
    return _scanned(form, bodies["body"], list(inputs[:first]), scanned, form.get("scan_input_directions"))


def _scan_of_batch(form: Form, body: Body, lengths: Any, *inputs: Any) -> list[Any]:
    """Scan of opset 8, which scans each batch entry separately; outputs beyond an entry's length are 0."""
    first, steps = len(inputs) - form.get("num_scan_inputs"), inputs[-1].shape[1]
    ends = [steps] * inputs[-1].shape[0] if lengths is None else ints(_on_host(lengths))
    batch = []
    for entry, end in enumerate(ends):
        states = [x[entry, ...] for x in inputs[:first]]
        scanned = [(x[entry, :end], 0) for x in inputs[first:]]
        outputs = _scanned(form, body, states, scanned, form.get("directions"))
        batch.append(outputs[:first] + [_zero_padded(y, steps) for y in outputs[first:]])
    return [_stack_arrays(list(values), 0) for values in zip(*batch, strict=True)]


def _scanned(
    form: Form, body: Body, states: list[Any], scanned: list[tuple[Any, int]], directions: list[int] | None
) -> list[Any]:
    """Run a Scan's body for each step; return the final states and the stacked outputs."""
    steps = {x.shape[axis] for x, axis in scanned}
    if len(steps) != 1:
        raise ArgumentError(f"{body.node}: its scanned inputs must have one length, not {sorted(steps)}")
    (count,) = steps
    backwards = directions or [0] * len(scanned)
    collected: list[list[Any]] = [[] for _ in body.outputs[len(states) :]]
    for step in range(count):
        at = [count - 1 - step if back else step for back in backwards]
        elements = [x[(*(slice(None),) * axis, t, ...)] for (x, axis), t in zip(scanned, at, strict=True)]
        outputs = body.run([*states, *elements])
        states = outputs[: len(states)]
        _append(collected, outputs[len(states) :])
    axes = form.get("scan_output_axes") or [0] * len(collected)
    prepended = form.get("scan_output_directions") or [0] * len(collected)
    ordered = [each[::-1] if back else each for each, back in zip(collected, prepended, strict=True)]
    outputs_with_axes = zip(ordered, axes, strict=True)
    return states + [
        _stacked(body, at - len(collected), each, axis) for at, (each, axis) in enumerate(outputs_with_axes)
    ]


def _sequence_map(_: Form, bodies: Bodies, sequence: Any, *more_inputs: Any) -> list[Any]:
    """SequenceMap: run the body per element of a sequence; further sequences advance along, arrays are passed whole."""
    body = bodies["body"]
    lengths = {len(value) for value in (sequence, *more_inputs) if isinstance(value, list)}
    if not isinstance(sequence, list) or len(lengths) != 1:
        raise ArgumentError(f"{body.node}: its sequences must have one length, not {sorted(lengths)}")
    collected: list[list[Any]] = [[] for _ in body.outputs]
    for at, element in enumerate(sequence):
        extra = [value[at] if isinstance(value, list) else value for value in more_inputs]
        _append(collected, list(map(_on_host, body.run([element, *extra]))))
    return list(collected)


def _append(series: list[list[Any]], values: list[Any]) -> None:
    for each, value in zip(series, values, strict=True):
        each.append(value)


def _stacked(body: Body, output: int, values: list[Any], axis: int) -> Any:
    """Return collected values stacked along a new axis; without values, an empty array of the declared type."""
    if values:
        shapes = {value.shape for value in values}
        if len(shapes) > 1:
            raise ArgumentError(f"{body.node}: the shapes of what it collects differ: {sorted(shapes)[:2]}")
        return _stack_arrays(values, axis_of(axis, values[0].ndim + 1))
    kind = body.outputs[output].type.tensor_type
    if not kind.elem_type:
        raise ArgumentError(f"{body.node}: it runs no time, and its graph does not say what type its output has")
    extents = [dim.dim_value for dim in kind.shape.dim]
    extents.insert(axis_of(axis, len(extents) + 1), 0)
    return np.zeros(extents, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _stack_arrays(values: list[Any], axis: int) -> Any:
    """Stack arrays along a new axis, on the device if any of them is there."""
    if any(map(on_device, values)):
        values = [gpuconv.to_device(value) for value in values]
    xp = namespace(values[0])
    return xp.concatenate([xp.expand_dims(value, axis) for value in values], axis=axis)


def _zero_padded(y: Any, steps: int) -> Any:
    """Pad an array with zeros along axis 0 to length ``steps``."""
    xp = namespace(y)
    return xp.concatenate([y, xp.zeros((steps - y.shape[0], *y.shape[1:]), y.dtype)])


def _on_host(value: Any) -> Any:
    return gpuconv.to_host(value) if on_device(value) else value


def _single(body: Body, name: str, value: Any) -> Any:
    """Return the only element of an array, copied to the host."""
    array = np.asarray(_on_host(value))
    if array.size != 1:
        raise ArgumentError(f"{body.node}: {name} must have a single element, but has the shape {array.shape}")
    return array.reshape(())[()]


def _truth(body: Body, name: str, value: Any) -> bool:
    return bool(_single(body, name, value))


CONTROL: dict[str, Callable[..., list[Any]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
