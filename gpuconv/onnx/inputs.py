"""Declared inputs of a graph, and the validation of the values that a caller passes for them.

:func:`declared` reads names, dtypes and shapes from a model. :func:`bind` matches the caller's arrays with them at
every run and raises errors that name the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ValueInfoProto

from gpuconv import _arrays
from gpuconv._errors import ArgumentError, ArgumentTypeError, listed, one_line
from gpuconv.onnx.messages import quoted, reason, warn
from gpuconv.onnx.model import element_type

# where ONNX Runtime's type names differ from NumPy's
_RUNTIME_NAMES = {"float32": "float", "float64": "double", "object": "string"}
_UNKNOWN = re.compile(r"None|unk__\d+")  # names that converters give to unrelated axes


@dataclass(frozen=True, slots=True)
class Input:
    """A declared input or output of a graph.

    Attributes
    ----------
    name : str
    dtype : str
        NumPy's name; "" accepts any type.
    shape : tuple of int, str or None, optional
        Per axis: its extent, a symbolic name, or None for any extent. None for the whole accepts any shape.
    required : bool
        False if an initializer provides a default.
    """

    name: str
    dtype: str = ""
    shape: tuple[int | str | None, ...] | None = None  # extents, symbolic names, and None for any extent
    required: bool = True

    def __str__(self) -> str:
        described = [self.dtype] if self.dtype else []
        described += [_dims(self.shape)] if self.shape is not None else []
        return f"{quoted(self.name)} ({' '.join(described)})" if described else quoted(self.name)


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it.

    Attributes
    ----------
    name : str
    shape : list of int, str or None
        Per axis: its extent, a symbolic name, or None for any extent. Empty if no shape is declared.
    type : str
        For example "tensor(float)"; "" if it is not a tensor, or has no declared type.
    """

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, spec: Input) -> NodeArg:
        """Return the description of a declared input or output."""
        name = _RUNTIME_NAMES.get(spec.dtype, spec.dtype)
        return cls(spec.name, list(spec.shape or ()), f"tensor({name})" if name else "")


def declared(values: Iterable[ValueInfoProto], constants: Container[str] = ()) -> list[Input]:
    """Return a graph's inputs or outputs in order; inputs that have an initializer are marked as not required."""
    return [Input(value.name, element_type(value), _shape(value), value.name not in constants) for value in values]


def _shape(value: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """Return the declared shape of a value; None if it declares none."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else _symbol(dim.dim_param)
        for dim in tensor.shape.dim
    )


def _symbol(name: str) -> str | None:
    """Return a symbolic dimension name, or None for placeholders of converters, such as "?" and "None"."""
    return name if name.isidentifier() and not _UNKNOWN.fullmatch(name) else None


def _dims(shape: tuple[int | str | None, ...]) -> str:
    text = ", ".join("?" if dim is None else one_line(str(dim), 40) for dim in shape)
    return f"({text},)" if len(shape) == 1 else f"({text})"


def bind(
    inputs: list[Input],
    given: Any,
    on_device: Callable[[Any], bool] = lambda _: False,
    warned: set[str] | None = None,
) -> dict[str, Any]:
    """Match the caller's values with the inputs, by position or by name, and validate them.

    Parameters
    ----------
    inputs : list of Input
    given : sequence of arrays, dict of str to array, or one array
        Arrays of other libraries are converted without a copy, if they support it.
    on_device : callable
        Returns whether a value is acceptable although it is not a NumPy array.
    warned : set of str, optional
        What was warned about already. Shapes that contradict the model's symbolic names, but can be computed, cause one
        warning each.

    Returns
    -------
    dict of str to value

    Raises
    ------
    ArgumentError
        An input is missing or unknown, the number of inputs is wrong, or a shape differs from the declared one.
    ArgumentTypeError
        A value is not an array, or not of the declared dtype.
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
    for name, value in values.items():
        title = quoted(name)[1:-1]
        is_sequence = isinstance(value, list)  # a value of an ONNX sequence type
        arrays = [_arrays.adopted("run", title, each) for each in (value if is_sequence else [value])]
        values[name] = arrays if is_sequence else arrays[0]
        if by_name[name].dtype:
            values[name] = _checked(by_name[name], values[name], on_device(values[name]))
    _warn_of_shapes(
        [spec for spec in inputs if spec.dtype and spec.name in values], values, set() if warned is None else warned
    )
    return values


def as_arrays(inputs: list[Input], feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input feed with lists of numbers converted to arrays of the declared dtype, as ONNX Runtime does.

    Raises
    ------
    ArgumentTypeError
        The feed is not a mapping, or a list cannot be converted.
    """
    if not isinstance(feed, Mapping):
        raise ArgumentTypeError(f"run: input_feed must be a dict of names to arrays, not {type(feed).__name__}")
    dtypes = {spec.name: spec.dtype for spec in inputs if spec.dtype}
    arrays = dict(feed)
    for name, value in feed.items():
        if isinstance(value, list) and name in dtypes:
            try:
                arrays[name] = np.array(value, dtypes[name])
            except (TypeError, ValueError, OverflowError) as error:
                raise ArgumentTypeError(f"run: the input {_shown(name)}: {reason(error)}") from None
    return arrays


def _by_position(inputs: list[Input], values: Any) -> dict[str, Any]:
    """Match a sequence of values with the required inputs, in order."""
    required = [spec.name for spec in inputs if spec.required]
    items = list(values) if isinstance(values, list | tuple) else [values]
    if len(items) != len(required):
        raise ArgumentError(f"run: got {len(items)} input(s), but the model takes {len(required)}; {_listing(inputs)}")
    return dict(zip(required, items, strict=True))


def _listing(inputs: list[Input]) -> str:
    required = [spec for spec in inputs if spec.required]
    return f"the inputs are {listed(list(map(str, required)))}" if required else "no inputs are needed"


def _shown(name: Any) -> str:
    """Quote what the caller passed as a name, which need not be a string."""
    return quoted(name if isinstance(name, str) else repr(name))


def _checked(spec: Input, value: Any, device: bool) -> Any:
    """Return a value as an array of the declared dtype and shape, or raise an error that names the input."""
    if not device and not isinstance(value, np.ndarray | np.generic):
        kind = type(value)
        advice = "; pass it through gpuconv.to_host, or prepare the model for 'CUDA'" if hasattr(value, "shape") else ""
        raise ArgumentTypeError(
            f"run: the input {spec} must be a NumPy array, not {kind.__module__}.{kind.__qualname__}{advice}"
        )
    text = spec.dtype == "object" and value.dtype.kind in "UST"
    if value.dtype.name != spec.dtype and not text:
        raise ArgumentTypeError(
            f"run: the input {spec} was given with dtype {value.dtype}; convert it with .astype({spec.dtype!r})"
        )
    if not value.dtype.isnative:
        raise ArgumentTypeError(f"run: the input {spec} has the byte order of another machine ({value.dtype.str})")
    if spec.shape:
        _check_shape(spec, spec.shape, value.shape)
    return value if device else np.asarray(value)


def _check_shape(spec: Input, declared_shape: tuple[int | str | None, ...], shape: tuple[int, ...]) -> None:
    """Raise ArgumentError if an array has another rank, or another extent, than declared."""
    if len(shape) != len(declared_shape):
        raise ArgumentError(
            f"run: the input {spec} must have {len(declared_shape)} axes, but was given with shape {shape}"
        )
    for axis, (expected, extent) in enumerate(zip(declared_shape, shape, strict=True)):
        if isinstance(expected, int) and expected != extent:
            raise ArgumentError(
                f"run: the input {spec} was given with shape {shape}, but axis {axis} must be {expected}"
            )


def _warn_of_shapes(inputs: Iterable[Input], values: Mapping[str, Any], warned: set[str]) -> None:
    """Warn once about each shape that contradicts the model: a non-scalar for a scalar, or a name with two extents."""
    extents: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        shape = values[spec.name].shape
        if spec.shape == () and shape:
            _warn_once(warned, spec.name, f"the input {spec} was given with shape {shape}, which is taken as it is")
        for axis, (name, extent) in enumerate(zip(spec.shape or (), shape, strict=False)):
            if not isinstance(name, str):
                continue
            here = f"axis {axis} of {quoted(spec.name)}"
            first, there = extents.setdefault(name, (extent, here))
            if extent != first:
                both = f"{here} is {extent} and {there} is {first}"
                _warn_once(warned, name, f"{both}, but the model names both {quoted(name)}; it is run all the same")


def _warn_once(warned: set[str], about: str, message: str) -> None:
    """Warn about a subject, unless that was done before."""
    if about not in warned:
        warned.add(about)
        warn(f"run: {message}")
