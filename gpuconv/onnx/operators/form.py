"""Common definitions of all operators.

An :class:`Operator` describes an implementation, a :class:`Form` the settings of one node. Helpers for array libraries
and dtypes are here too: :func:`namespace`, :func:`wide`, :func:`saturated`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.messages import quoted

_SHORT = ("float16", "bfloat16")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = frozenset((*_SHORT, *_INTEGERS, "bool", "float32", "float64"))  # dtypes that all functions support
NARROW = frozenset(  # types that ml_dtypes adds to NumPy, but not to CuPy; such arrays stay on the host
    (
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
    )
)


@dataclass(frozen=True, slots=True)
class Form:
    """Everything about a node except the values of its inputs.

    Attributes
    ----------
    opset : int
        Version of the default domain.
    attributes : dict of str to value
        The node's attributes, completed by the defaults of this opset.
    outputs : tuple of bool
        Whether each output is used; an omitted one has the name "".
    inputs : tuple of bool
        Whether each input is present.
    """

    opset: int
    attributes: Mapping[str, Any]
    outputs: tuple[bool, ...] = (True,)
    inputs: tuple[bool, ...] = (True,)

    def get(self, name: str) -> Any:
        """Return an attribute's value; None if it is absent and has no default."""
        return self.attributes.get(name)

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return those of the named attributes that have a value."""
        return {name: value for name in names if (value := self.get(name)) is not None}


@dataclass(frozen=True, slots=True)
class Schema:
    """Inputs and attributes of an operator for which onnx has no schema.

    Attributes
    ----------
    inputs : tuple of str
        Names in order. A trailing "?" marks an optional input, "*" any number of further inputs.
    attributes : dict of str to value or type
        The default of each attribute, or its type (int, float, str or list) if it has no default.
    required : tuple of str
        Attributes that must be present.
    """

    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    required: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the attributes that have one, by name."""
        return {name: default for name, default in self.attributes.items() if not isinstance(default, type)}

    def fault(self, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        """Return the first error in a node's input names and attribute values; "" if there is none."""
        names = [name.rstrip("?*") for name in self.inputs]
        least = max((at for at, name in enumerate(self.inputs, 1) if name[-1] not in "?*"), default=0)
        most = math.inf if self.inputs[-1][-1] == "*" else len(names)
        if not least <= len(inputs) <= most:
            return f"has {len(inputs)} inputs, but needs {least} to {most} ({', '.join(names)})"
        for name, given in zip(self.inputs, inputs, strict=False):
            if not given and name[-1] not in "?*":
                return f"input {name} is required and cannot be left out"
        for name in self.required:
            if name not in attributes:
                return f"attribute {name} is required"
        for name, given in attributes.items():
            if name not in self.attributes:
                return (
                    f"{quoted(name)} is no attribute that gpuconv knows of it, which are {', '.join(self.attributes)}"
                )
            kind = self.attributes[name] if isinstance(self.attributes[name], type) else type(self.attributes[name])
            if not isinstance(given, kind):
                return f"attribute {name} must be of type {kind.__name__}, not {type(given).__name__}"
        return ""


def _always(_: Form) -> bool:
    return True


def broadcast_cost(form: Form, *inputs: Any) -> int:
    """Return the number of elements after broadcasting all inputs; an upper bound before opset 7."""
    arrays = [np.shape(value) for value in inputs if value is not None]
    if form.opset < 7:
        return prod(map(prod, arrays))
    ndim = max(map(len, arrays), default=0)
    return prod(map(max, zip(*((1,) * (ndim - len(shape)) + shape for shape in arrays), strict=True)))


@dataclass(frozen=True, slots=True)
class Operator:
    """The implementation of one ONNX operator, for all opsets, on NumPy and CuPy arrays.

    Attributes
    ----------
    function : callable
        Takes a Form, then the node's inputs (None for absent ones). Returns an array or a tuple of arrays.
    on_host : frozenset of int
        Positions of inputs that parameterise the operator, such as shapes and axes. They are always NumPy arrays.
    serves : callable
        Takes a Form; returns whether the function supports it.
    cost : callable
        Takes the same arguments as the function; returns an upper bound of the elements that it reads or computes. It
        may raise anything for inputs that the function refuses. Constant folding uses it.
    dtypes : frozenset of str
        Names of the element types that all array inputs must have.
    prepare : callable, optional
        Called once with a Form and the node's inputs, None for those that are not constant. Returns, by position,
        faster forms of constant inputs that the function accepts in their place.
    by_kernels : bool
        Whether a device computes it even if all inputs come from the host, as integers do.
    collections : bool
        Whether inputs may also be sequences (lists) and maps (dicts).
    into : callable, optional
        Like the function, for float32 and float64 NumPy arrays, with an output array as last argument.
    schema : Schema, optional
        Allowed inputs and attributes, for operators without a schema in onnx.
    """

    function: Callable[..., Any]
    on_host: frozenset[int] = frozenset()
    serves: Callable[[Form], bool] = _always
    cost: Callable[..., int] = broadcast_cost
    dtypes: frozenset[str] = DTYPES
    prepare: Callable[[Form, tuple[Any, ...]], Mapping[int, Any]] | None = None
    by_kernels: bool = False
    collections: bool = False
    into: Callable[..., None] | None = None
    schema: Schema | None = None


def namespace(array: Any) -> Any:
    """Return the array library of an array: numpy or cupy."""
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules["cupy"]


@lru_cache(maxsize=64)
def name_of(dtype: Any) -> str:
    """Return a dtype's name, cached: NumPy computes it at each access, which takes longer than a small node."""
    return str(dtype.name)


def wide(array: Any) -> Any:
    """Return float16 and bfloat16 arrays as float32, the type they are computed in; others unchanged."""
    return array.astype(np.float32) if name_of(array.dtype) in _SHORT else array


def is_float(array: Any) -> bool:
    """Return whether an array has a floating-point dtype, bfloat16 included."""
    return bool(array.dtype.kind == "f" or name_of(array.dtype) == "bfloat16")


def saturated(array: Any, dtype: Any) -> Any:
    """Convert floating-point numbers to an integer dtype: truncated towards zero and saturated to its range."""
    xp, ends = namespace(array), np.iinfo(dtype)
    last = float(ends.max) if float(ends.max) <= ends.max else np.nextafter(float(ends.max), 0)
    return xp.minimum(xp.maximum(array, float(ends.min)), last).astype(dtype)


def ints(array: Any) -> list[int]:
    """Return a host input or an attribute as a flat list of int."""
    return list(map(int, np.asarray(array).reshape(-1).tolist()))


def only_int(name: str, array: Any) -> int:
    """Return the only element of a host input as an int; ``name`` is for the error message."""
    if np.size(array) != 1:
        raise ArgumentError(f"{name} must have one element, not the shape {np.shape(array)}")
    return int(np.asarray(array).reshape(())[()])


def blocks_of_channels(x: Any, elements: int) -> list[tuple[int, slice]]:
    """Split x (N, C, D1, ..., Dn) into blocks of about ``elements`` elements: (image, slice of its channels)."""
    step = max(1, elements // max(1, prod(x.shape[2:])))
    return [(image, slice(low, low + step)) for image in range(x.shape[0]) for low in range(0, x.shape[1], step)]
