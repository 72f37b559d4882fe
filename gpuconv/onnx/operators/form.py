"""What an operator of the table is, and what it gets of a node beside the arrays."""

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
DTYPES = frozenset((*_SHORT, *_INTEGERS, "bool", "float32", "float64"))  # that the functions compute
NARROW = frozenset(  # that ml_dtypes brings to NumPy, but not to CuPy: arrays of these stay on the host
    (
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
    )
)


@dataclass(frozen=True, slots=True)
class Form:
    """A node without its inputs.

    Attributes
    ----------
    opset : int
        Of the default domain.
    attributes : dict of str to value
        Those of the opset's form of the operator, with its defaults where the node gives none and there are any.
    outputs : tuple of bool
        Which outputs are wanted.
    inputs : tuple of bool
        Which inputs are given.
    """

    opset: int
    attributes: Mapping[str, Any]
    outputs: tuple[bool, ...] = (True,)
    inputs: tuple[bool, ...] = (True,)

    def get(self, name: str) -> Any:
        """Return an attribute's value; None where the node gives none and there is no default."""
        return self.attributes.get(name)

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return those of some attributes that have a value."""
        return {name: value for name in names if (value := self.get(name)) is not None}


@dataclass(frozen=True, slots=True)
class Schema:
    """What a node may hold of an operator that onnx has no schema of.

    Attributes
    ----------
    inputs : tuple of str
        Names in order. A "?" at the end marks an optional input, a "*" one of any number of further inputs.
    attributes : dict of str to value or type
        The default of each attribute, or its type (int, float, str or list) where it has no default.
    required : tuple of str
        Attributes that a node must give.
    """

    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    required: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of those attributes that have one."""
        return {name: default for name, default in self.attributes.items() if not isinstance(default, type)}

    def fault(self, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        """Return what is wrong with a node's input names and attribute values, or ""."""
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
    """Return how many elements all inputs have once they are broadcast; before opset 7 by an axis that a node names."""
    arrays = [np.shape(value) for value in inputs if value is not None]
    if form.opset < 7:
        return prod(map(prod, arrays))
    ndim = max(map(len, arrays), default=0)
    return prod(map(max, zip(*((1,) * (ndim - len(shape)) + shape for shape in arrays), strict=True)))


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of ONNX, at all opsets and for arrays of either library.

    Attributes
    ----------
    function : callable
        Takes a Form, then the node's inputs, None for one that is absent; returns an array or a tuple of arrays.
    on_host : frozenset of int
        Positions of inputs that say what to compute, such as shapes and axes: always NumPy arrays.
    serves : callable
        Tells by its Form whether a node is one that the function computes.
    cost : callable
        Takes what the function takes, and returns how many elements it makes or reads at most; may raise anything for
        inputs that the function refuses. A constant is computed ahead only where that is few.
    dtypes : frozenset of str
        Names of the element types that it takes.
    prepare : callable, optional
        Takes a Form and the node's inputs, None for those that are not constant, and returns by position what the
        function takes in place of some of these; called once.
    by_kernels : bool
        Whether a device computes it even where all inputs come from the host, as integers do.
    collections : bool
        Whether inputs may be sequences and maps, lists and dicts, beside arrays of these types.
    into : callable, optional
        Does what the function does to float32 and float64 arrays of NumPy, and writes to one more, the last.
    schema : Schema, optional
        What a node may hold, for operators that onnx has no schema of.
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
    """Return the library that an array is from: NumPy or CuPy."""
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules["cupy"]


@lru_cache(maxsize=64)
def name_of(dtype: Any) -> str:
    """Return an element type's name, which NumPy puts together anew each time, for longer than a small node takes."""
    return str(dtype.name)


def wide(array: Any) -> Any:
    """Return float16 and bfloat16 as float32, in which they are computed; everything else as it is."""
    return array.astype(np.float32) if name_of(array.dtype) in _SHORT else array


def is_float(array: Any) -> bool:
    """Tell whether an array's elements are floating-point numbers."""
    return bool(array.dtype.kind == "f" or name_of(array.dtype) == "bfloat16")


def saturated(array: Any, dtype: Any) -> Any:
    """Return floating-point numbers as integers: towards zero, and those that the type has not as its ends."""
    xp, ends = namespace(array), np.iinfo(dtype)
    last = float(ends.max) if float(ends.max) <= ends.max else np.nextafter(float(ends.max), 0)
    return xp.minimum(xp.maximum(array, float(ends.min)), last).astype(dtype)


def ints(array: Any) -> list[int]:
    """Return the integers of an input that came on the host, or of an attribute."""
    return list(map(int, np.asarray(array).reshape(-1).tolist()))


def only_int(name: str, array: Any) -> int:
    """Return the only number of an input that came on the host, as an integer; the name is for the error."""
    if np.size(array) != 1:
        raise ArgumentError(f"{name} must have one element, not the shape {np.shape(array)}")
    return int(np.asarray(array).reshape(())[()])


def blocks_of_channels(x: Any, elements: int) -> list[tuple[int, slice]]:
    """Return places in x (N, C, D1, …, Dn) that are all of it: channels of an image, with about so many elements."""
    step = max(1, elements // max(1, prod(x.shape[2:])))
    return [(image, slice(low, low + step)) for image in range(x.shape[0]) for low in range(0, x.shape[1], step)]
