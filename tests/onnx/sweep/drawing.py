"""Random nodes of ONNX's operators, each with its result by the specification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NEWEST = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": 5, "ai.onnx.preview": 1}
_NAMES = {"float": "float32", "double": "float64"}

# Largest relative error of an operator of one step.
CLOSE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-46}


@dataclass
class Trial:
    """A node, its inputs and what it should give.

    Attributes
    ----------
    inputs : list of arrays, lists and None
        A list is a sequence; None is an optional input that is absent.
    attributes : dict
    expected : list of arrays and lists
        By the specification, computed in float64 by NumPy or in plain loops, then rounded to the type; of other types
        than floating-point numbers it is exact.
    loose : float
        How many times as far off as an operator of one step a result may be: sums have many.
    """

    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    expected: list[Any] = field(default_factory=list)
    loose: float = 1.0


@dataclass
class Draw:
    """Random choices for one node of an operator at an opset."""

    rng: np.random.Generator
    op_type: str
    domain: str
    opset: int

    def __post_init__(self) -> None:
        self.schema = onnx.defs.get_schema(self.op_type, self.opset, self.domain)

    def one(self, *choices: Any) -> Any:
        """Return one of some choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def int(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def maybe(self, share: float = 0.5) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < share)

    def types(self, parameter: str = "T", among: Sequence[str] = (*FLOATS, *INTS, "bool")) -> list[str]:
        """Return the NumPy names of a type parameter's element types at this opset."""
        allowed = next(c.allowed_type_strs for c in self.schema.type_constraints if c.type_param_str == parameter)
        names = [text.removeprefix("tensor(").removesuffix(")") for text in allowed]
        return [name for name in (_NAMES.get(name, name) for name in names) if name in among]

    def type(self, parameter: str = "T", among: Sequence[str] = (*FLOATS, *INTS, "bool")) -> Any:
        """Return one of a type parameter's element types."""
        return dtype(self.one(*self.types(parameter, among)))

    def shape(self, low: int = 0, high: int = 4, least: int = 0, most: int = 5) -> tuple[int, ...]:
        """Return a shape; an extent of 0 is rare."""
        extents = [self.int(max(1, least), most) for _ in range(self.int(low, high))]
        if least == 0 and extents and self.maybe(0.05):
            extents[self.int(0, len(extents) - 1)] = 0
        return tuple(extents)

    def array(self, kind: Any, shape: Sequence[int], scale: float = 3.0, special: bool = False) -> Any:
        """Return an array of a type; with special, floats have some infinities, NaN, zeros and ties."""
        kind = dtype(kind)
        if kind == np.bool_:
            return self.rng.random(shape) < 0.5
        if not is_float(kind):
            info = np.iinfo(kind)
            if special and self.maybe(0.3):
                return self.rng.integers(info.min, info.max, shape, kind, endpoint=True)
            return self.rng.integers(max(info.min, -9), min(info.max, 9), shape, endpoint=True).astype(kind)
        values = self.rng.standard_normal(shape) * scale
        if self.maybe(0.3):
            values = np.round(values)
        if special and self.maybe(0.4) and values.size:
            picks = self.rng.random(shape) < 0.2
            values = np.where(picks, self.rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 0.5, 1.0], shape), values)
        return values.astype(kind)

    def axis(self, ndim: int) -> int:
        """Return an axis, counted from either end."""
        return self.int(-ndim, ndim - 1)

    def text(self, shape: Sequence[int], words: Sequence[str]) -> Any:
        """Return an array of text."""
        return self.rng.choice(np.array(words, object), shape)

    def given(self, **attributes: Any) -> dict[str, Any]:
        """Return a random subset of these attributes; the others keep their defaults."""
        return {name: value for name, value in attributes.items() if self.maybe(0.7)}


Maker = Callable[[Draw], Trial]
MAKERS: dict[tuple[str, str], Maker] = {}


def node_of(*op_types: str, domain: str = "") -> Callable[[Maker], Maker]:
    """Register a function that makes random nodes of operators."""

    def register(maker: Maker) -> Maker:
        for op_type in op_types:
            MAKERS[domain, op_type] = maker
        return maker

    return register


def dtype(name: Any) -> Any:
    """Return a NumPy type, bfloat16 included."""
    return helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16) if name == "bfloat16" else np.dtype(name)


def is_float(kind: Any) -> bool:
    """Return whether a type is a floating-point type."""
    return bool(np.dtype(kind).kind == "f" or np.dtype(kind).name == "bfloat16")


def wide(array: Any) -> Any:
    """Return floating-point numbers as float64, other types unchanged."""
    return array.astype(np.float64) if is_float(array.dtype) else array


def number(kind: Any) -> int:
    """Return ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


@lru_cache
def span(op_type: str, domain: str) -> tuple[int, int]:
    """Return the first and the last opset that has an operator."""
    schemas = onnx.defs.get_all_schemas_with_history()
    found = [s for s in schemas if (s.name, s.domain) == (op_type, domain)]
    ends = [s.since_version - 1 for s in found if s.deprecated]
    return min(s.since_version for s in found), min(ends, default=NEWEST[domain])
