"""What a graph declares about its inputs, and the check of what comes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ValueInfoProto

from gpuconv._errors import ArgumentError, ArgumentTypeError, listed, one_line
from gpuconv.onnx.messages import quoted
from gpuconv.onnx.model import element_type


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a graph. An empty dtype and a missing shape stand for anything."""

    name: str
    dtype: str = ""
    shape: tuple[int | str | None, ...] | None = None  # numbers, names, and None for any extent
    required: bool = True

    def __str__(self) -> str:
        known = [self.dtype] if self.dtype else []
        known += [_dims(self.shape)] if self.shape is not None else []
        return f"{quoted(self.name)} ({' '.join(known)})" if known else quoted(self.name)


def declared(graph: GraphProto) -> list[Input]:
    """Return the inputs of a graph in order; those with an initializer are not required."""
    values = {tensor.name for tensor in graph.initializer}
    return [Input(value.name, element_type(value), _shape(value), value.name not in values) for value in graph.input]


def _shape(value: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    )


def _dims(shape: tuple[int | str | None, ...]) -> str:
    text = ", ".join("?" if dim is None else one_line(str(dim), 40) for dim in shape)
    return f"({text},)" if len(shape) == 1 else f"({text})"


def bind(inputs: list[Input], given: Any, on_device: Callable[[Any], bool] = lambda _: False) -> dict[str, Any]:
    """Pair what came with the inputs by position or by name, and check it.

    ``on_device`` tells which arrays are taken beside NumPy's.

    Raises
    ------
    ArgumentError
        An input is missing or unknown, their number is wrong, or a shape is not the declared one. Dimensions of the
        same name must have the same extent.
    ArgumentTypeError
        Not an array, or not of the declared dtype.
    """
    values = dict(given) if isinstance(given, Mapping) else _by_position(inputs, given)
    by_name = {spec.name: spec for spec in inputs}
    for name in values:
        if name not in by_name:
            raise ArgumentError(f"run: there is no input {_shown(name)}; {_listing(inputs)}")
    missing = [spec for spec in inputs if spec.required and spec.name not in values]
    if missing:
        given = listed([_shown(name) for name in values]) or "nothing"
        raise ArgumentError(f"run: the input {missing[0]} is missing (given: {given}); {_listing(inputs)}")
    extents: dict[str, tuple[int, str]] = {}
    for name, value in values.items():
        if by_name[name].dtype:
            values[name] = _checked(by_name[name], value, extents, on_device(value))
    return values


def _by_position(inputs: list[Input], given: Any) -> dict[str, Any]:
    required = [spec.name for spec in inputs if spec.required]
    items = list(given) if isinstance(given, list | tuple) else [given]
    if len(items) != len(required):
        raise ArgumentError(f"run: got {len(items)} input(s), but the model takes {len(required)}; {_listing(inputs)}")
    return dict(zip(required, items, strict=True))


def _listing(inputs: list[Input]) -> str:
    required = [spec for spec in inputs if spec.required]
    return f"the inputs are {listed(list(map(str, required)))}" if required else "no inputs are needed"


def _shown(name: Any) -> str:
    """Show what the caller gave for a name, which may be no text."""
    return quoted(name if isinstance(name, str) else repr(name))


def _checked(spec: Input, value: Any, extents: dict[str, tuple[int, str]], device: bool) -> Any:
    if not device and not isinstance(value, np.ndarray | np.generic):
        kind = type(value)
        raise ArgumentTypeError(
            f"run: the input {spec} must be a NumPy array, not {kind.__module__}.{kind.__qualname__}"
        )
    text = spec.dtype == "object" and value.dtype.kind in "UST"
    if value.dtype.name != spec.dtype and not text:
        raise ArgumentTypeError(
            f"run: the input {spec} was given with dtype {value.dtype}; convert it with .astype({spec.dtype!r})"
        )
    if not value.dtype.isnative:
        raise ArgumentTypeError(f"run: the input {spec} has the byte order of another machine ({value.dtype.str})")
    if spec.shape is not None:
        _check_shape(spec, spec.shape, value.shape, extents)
    return value if device else np.asarray(value)


def _check_shape(
    spec: Input, wanted: tuple[int | str | None, ...], shape: tuple[int, ...], extents: dict[str, tuple[int, str]]
) -> None:
    if len(shape) != len(wanted):
        raise ArgumentError(f"run: the input {spec} must have {len(wanted)} axes, but was given with shape {shape}")
    for axis, (want, extent) in enumerate(zip(wanted, shape, strict=True)):
        if isinstance(want, str):
            first, where = extents.setdefault(want, (extent, f"axis {axis} of {quoted(spec.name)}"))
            if extent != first:
                raise ArgumentError(
                    f"run: the input {spec} was given with shape {shape}, but axis {axis} must be {first}, "
                    f"as {quoted(want)} is on {where}"
                )
        elif want is not None and want != extent:
            raise ArgumentError(f"run: the input {spec} was given with shape {shape}, but axis {axis} must be {want}")
