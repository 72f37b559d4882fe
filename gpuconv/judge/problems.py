"""A test as one model: a case at one opset and in one type, its operands, expected outputs and error bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gpuconv.judge import definition, rulings
from gpuconv.judge.definition import Array
from gpuconv.rules import cases as named
from gpuconv.rules.cases import Case

KINDS = {
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "max_pool": "MaxPool",
    "average_pool": "AveragePool",
    "max_unpool": "MaxUnpool",
}
NAMES = {"x": "X", "w": "W", "b": "B", "indices": "I", "output_shape": "output_shape"}
_CONSTANT = ("w", "b", "output_shape")  # initializers of the model, as exporters write them
_ONNX_TYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}
_SCHEMAS = (1, 7, 8, 9, 10, 11, 12, 19, 22)  # opsets in which one of the operators changed

# Cases that are asked of every schema in every type: they have no attribute that came later.
_OF_SCHEMAS = {f"{op}/2d/plain" for op in KINDS if op != "max_pool"} | {"max_pool/2d/kernel 2, stride 2"}

# Rules of MaxPool that show in its Indices only, and those that show in both of its outputs.
_OF_INDICES = {named._INDICES, named._COLUMNS, named._TIES, named._ZEROS, named._BITS, named._TINY}
_OF_BOTH = {named._NAN, named._NO_ELEMENT, named._MINUS_INF}
# Rules about values, which each type has its own way to break.
_OF_TYPES = {named._ONCE, named._SUBNORMAL, named._OVERFLOW, named._NAN, named._NO_ELEMENT, named._MINUS_INF}
_OF_TYPES.add(rulings.OVERFLOWING)


@dataclass(frozen=True)
class Problem:
    """A case in one type, at one opset.

    Attributes
    ----------
    case : Case
    dtype : str
        One of ``case.dtypes``.
    opset : int
        Of the model: the one that introduced this version of the operator.
    indices : bool
        Whether MaxPool has its second output.
    arrays : mapping, optional
        The operands, if they are not those of the case.
    """

    case: Case
    dtype: str
    opset: int
    indices: bool = False
    arrays: Mapping[str, Array] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the test's folder, in the style of ONNX's own tests."""
        words = re.sub(r"[^a-z0-9]+", "_", self.case.name.replace("-", " minus ").lower()).strip("_")
        return f"test_{words}{'_with_indices' * self.indices}_{self.dtype}_opset{self.opset}"

    @property
    def bits(self) -> bool:
        """Whether outputs must agree in every bit, including the sign of zeros and the payload of NaN."""
        return self.indices and self.case.rule == named._BITS


@dataclass(frozen=True)
class Answer:
    """The expected outputs, and the error bound of each element in float64.

    Attributes
    ----------
    outputs, bounds : tuple of array
        A bound is infinite where a sum may overflow, so that any result is right.
    looser : mapping of str to tuple of array
        Bounds for less precise ways to compute: "wide" (16-bit types summed in themselves), "tf32" (float32 with
        factors rounded or truncated to TF32), "transform" (as precise as Winograd's algorithm) and "narrow" (float64
        computed in float32).
    """

    outputs: tuple[Array, ...]
    bounds: tuple[Array, ...]
    looser: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)


# ---------------------------------------------------------------- the problems of a case


@cache
def _schemas(op: str) -> tuple[Any, ...]:
    found = {}
    for opset in _SCHEMAS:
        with suppress(onnx.defs.SchemaError):  # opset 1 has no MaxUnpool
            schema = onnx.defs.get_schema(KINDS[op], opset, "")
            found[schema.since_version] = schema
    return tuple(found.values())


def opsets(case: Case, dtype: str, indices: bool) -> list[int]:
    """List the opsets whose operator supports the type, the attributes and the outputs of a case, the newest last."""
    given = {name for name, value in case.attributes.items() if value is not None and name != "output_shape"}
    if case.op == "conv_transpose" and "output_shape" in case.attributes:
        given.add("output_shape")
    kind = f"tensor({_ONNX_TYPES.get(dtype, dtype)})"
    return [
        schema.since_version
        for schema in _schemas(case.op)
        if given <= set(schema.attributes)
        and kind in schema.type_constraints[0].allowed_type_strs
        and len(schema.outputs) > indices
    ]


def of_case(case: Case, number: int) -> Iterator[Problem]:
    """Yield the problems of a case: float32 at the newest opset, then one or all other types, at varying opsets."""
    if case.name in _OF_SCHEMAS:
        yield from _of_schemas(case)
        return
    for indices in _outputs(case):
        for turn, dtype in enumerate(_dtypes(case, number)):
            found = opsets(case, dtype, indices)
            yield Problem(case, dtype, found[-1] if turn == 0 else found[(number + turn) % len(found)], indices)


def _of_schemas(case: Case) -> Iterator[Problem]:
    for indices in (False, True) if case.op == "max_pool" else (False,):
        for dtype in case.dtypes:
            for opset in opsets(case, dtype, indices):
                yield Problem(case, dtype, opset, indices)


def _outputs(case: Case) -> tuple[bool, ...]:
    if case.op != "max_pool":
        return (False,)
    return (False, True) if case.rule in _OF_BOTH else (case.rule in _OF_INDICES,)


def _dtypes(case: Case, number: int) -> list[str]:
    first = "float32" if "float32" in case.dtypes else case.dtypes[0]
    others = [dtype for dtype in case.dtypes if dtype != first]
    if case.rule in _OF_TYPES or len(others) < 2:
        return [first, *others]
    return [first, others[number % len(others)]]


# ---------------------------------------------------------------- operands and models


def operands(problem: Problem) -> dict[str, Array]:
    """Return the operands in the order of the operator's inputs, by gpuconv's names for them."""
    case = problem.case
    if problem.arrays is not None:
        return dict(problem.arrays)
    if case.op != "max_unpool":
        return named.inputs(case, problem.dtype)
    attributes = {name: value for name, value in case.attributes.items() if name != "output_shape"}
    x, indices = definition.max_pool(named.inputs(case, problem.dtype)["x"], **attributes)
    made = {"x": x, "indices": indices}
    if "output_shape" in case.attributes:
        made["output_shape"] = np.array(case.attributes["output_shape"], np.int64)
    return made


def attributes(problem: Problem) -> dict[str, Any]:
    """Return the node's attributes: those of the case, and kernel_shape, which exporters always write."""
    case = problem.case
    given = {name: value for name, value in case.attributes.items() if value is not None}
    if case.op == "max_unpool":
        given.pop("output_shape", None)
    if case.w_shape is not None and "missing" not in case.name:
        given.setdefault("kernel_shape", list(case.w_shape[2:]))
    return given


def model(problem: Problem) -> Any:
    """Build the model of one node; weights, biases and shapes are its initializers."""
    arrays = operands(problem)
    tensors = {name: tensor(array, NAMES[name]) for name, array in arrays.items()}
    inputs = [
        helper.make_tensor_value_info(NAMES[name], tensors[name].data_type, array.shape)
        for name, array in arrays.items()
        if name not in _CONSTANT
    ]
    constants = [tensors[name] for name in arrays if name in _CONSTANT]
    rank = len(problem.case.x_shape)
    outputs = [helper.make_tensor_value_info("Y", tensors["x"].data_type, [None] * rank)]
    if problem.indices:
        outputs.append(helper.make_tensor_value_info("Indices", onnx.TensorProto.INT64, [None] * rank))
    node = helper.make_node(
        KINDS[problem.case.op],
        [NAMES[name] for name in arrays],
        [output.name for output in outputs],
        **attributes(problem),
    )
    graph = helper.make_graph([node], problem.name, inputs, outputs, constants)
    imports = [helper.make_opsetid("", problem.opset)]
    made = helper.make_model(graph, opset_imports=imports, producer_name="gpuconv")
    made.ir_version = max(4, helper.find_min_ir_version_for(imports, True))
    return made


def tensor(array: Array, name: str) -> Any:
    """Convert an array to a TensorProto without changing its bytes."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def fed_by_name(problem: Problem) -> dict[str, Array]:
    """Return the operands that are inputs of the model."""
    return {name: array for name, array in operands(problem).items() if name not in _CONSTANT}


def fed(problem: Problem) -> list[Array]:
    """Return the inputs of the model: the operands that are not initializers."""
    return [*fed_by_name(problem).values()]


def stored(problem: Problem) -> dict[str, Array]:
    """Return the operands that are initializers of the model."""
    return {name: array for name, array in operands(problem).items() if name in _CONSTANT}


# ---------------------------------------------------------------- answers


def answer(
    problem: Problem, changed: Mapping[str, Any] | None = None, arrays: Mapping[str, Any] | None = None
) -> Answer:
    """Compute the expected outputs by the definition of the operator.

    Parameters
    ----------
    problem : Problem
    changed : mapping, optional
        Attributes to replace, to compute what another rule gives.
    arrays : mapping, optional
        Operands that replace the problem's.
    """
    given = {**operands(problem), **(arrays or {})}
    keywords = {**attributes(problem), **(changed or {})}
    op = problem.case.op
    if op == "max_pool":
        y, places = definition.max_pool(given["x"], **keywords)
        return _taken((y, places) if problem.indices else (y,), problem)
    if op == "max_unpool":
        wanted = given.get("output_shape")
        y = definition.max_unpool(given["x"], given["indices"], None if wanted is None else wanted.tolist(), **keywords)
        return _taken((y,), problem)
    taps = math.prod(keywords["kernel_shape"]) if op == "average_pool" else 1  # its magnitudes are divided by them
    exact = getattr(definition, op)(**given, **keywords)
    found = rounded(exact, problem.dtype, taps)
    looser = {name: (limits,) for name, limits in _looser(op, exact, found.outputs[0], given, keywords)}
    found = Answer(found.outputs, found.bounds, {**found.looser, **looser})
    if problem.dtype != "float64" or not np.isinf(exact.value).any():
        return found
    # Magnitudes of sums that overflow float64 are computed from operands scaled by 2^-64.
    smaller = {name: array * 2.0**-64 if name in ("x", "b") else array for name, array in given.items()}
    scaled = getattr(definition, op)(**smaller, **keywords)
    largest = definition.FORMATS["float64"][2] * 2.0**-64
    anything = np.isinf(exact.value) & np.isfinite(scaled.value) & (_other_sign(scaled) * taps >= largest / 2)
    limits = {name: (np.where(anything, np.inf, bounds),) for name, (bounds,) in found.looser.items()}
    return Answer(found.outputs, (np.where(anything, np.inf, found.bounds[0]),), limits)


def _taken(outputs: tuple[Array, ...], problem: Problem) -> Answer:
    """Return elements of the input as the answer: exact, with a bound for float64 that is computed in float32."""
    exactly = tuple(np.zeros(each.shape) for each in outputs)
    if problem.dtype != "float64" or problem.bits:
        return Answer(outputs, exactly)
    return Answer(outputs, exactly, {"narrow": (_in_float32(outputs[0], np.abs(outputs[0])), *exactly[1:])})


def _in_float32(y: Array, magnitude: Array, slack: Array | float = 0.0) -> Array:
    """Bound float64 results that are computed in float32: infinite where that type's range does not suffice."""
    with np.errstate(all="ignore"):
        beyond = np.isfinite(y) & (magnitude > definition.FORMATS["float32"][2])
        limit = np.where(np.isfinite(y), slack + 2.0**-24 * np.abs(y) + 2.0**-149, 0.0)
    return np.where(beyond, np.inf, limit)


_TRANSFORM = 32.0  # factor of the rounding unit for Winograd's transforms


def _looser(
    op: str, exact: definition.Exact, y: Array, given: Mapping[str, Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, Array]]:
    """Yield the bounds for TF32, for transforms, and for float64 computed in float32."""
    kind, sums = y.dtype, op != "average_pool"
    with np.errstate(all="ignore"):
        if kind == np.float32 and sums:
            # Twice the tensor cores' rounding of factors: they may be truncated.
            slack = definition.accumulation_bound(exact, kind, "tf32") + 2 * 2.0**-11 * exact.magnitude
            yield "tf32", _limit(exact, y, slack)
        if sums and math.prod(given["w"].shape[2:]) > 1 and given["x"].size and given["w"].size:
            unit = 2.0**-53 if kind == np.float64 else 2.0**-24
            reach = np.where(
                np.isfinite(exact.magnitude), _largest_products(op, exact, given, keywords), exact.magnitude
            )
            yield "transform", _limit(exact, y, _TRANSFORM * unit * exact.terms * reach)
        if kind == np.float64:
            partial = exact.magnitude if exact.partial is None else exact.partial
            used = _beyond_float32(op, given, keywords)
            slack = (exact.terms + 1) * 2.0**-24 * exact.magnitude + exact.terms * 2.0**-149
            yield "narrow", _in_float32(y, np.where(used, np.inf, partial), slack)


def _largest_products(op: str, exact: definition.Exact, given: Mapping[str, Any], keywords: Mapping[str, Any]) -> Array:
    """Multiply the largest finite x of an image and group by the largest finite weight of a filter; add the bias."""
    x, w = (np.nan_to_num(np.abs(given[name].astype(np.float64)), posinf=0.0, neginf=0.0) for name in "xw")
    group = keywords.get("group", 1)
    spatial = (1,) * (x.ndim - 2)
    images = x.reshape(x.shape[0], group, -1).max(axis=2, initial=0)
    if op == "conv":
        filters = w.reshape(group, w.shape[0] // group, -1).max(axis=2, initial=0)
    else:
        filters = w.reshape(group, w.shape[0] // group, w.shape[1], -1).max(axis=(1, 3), initial=0)
    products = (images[:, :, None] * filters[None]).reshape(x.shape[0], -1, *spatial)
    bias = np.abs(given["b"].astype(np.float64)).reshape(1, -1, *spatial) if "b" in given else 0.0
    return np.broadcast_to(products + bias, exact.value.shape)


def _beyond_float32(op: str, given: Mapping[str, Any], keywords: Mapping[str, Any]) -> Array | bool:
    """Return a mask of the results with an input that is finite, but not in float32."""
    large = np.isfinite(given["x"]) & (np.abs(given["x"]) > definition.FORMATS["float32"][2])
    if not large.any():
        return False
    ones = {"w": np.ones_like(given["w"])} if "w" in given else {}
    found = getattr(definition, op)(x=large.astype(np.float64), **ones, **keywords)
    return np.asarray(found.value > 0)


def rounded(exact: definition.Exact, dtype: str, taps: int = 1) -> Answer:
    """Round exact sums once; bound sums in float32 (for float64 in float64), and sums in a 16-bit type itself."""
    kind = named._type(dtype)
    y = definition.round_to(exact.value, kind)
    limit = _limit(exact, y, definition.accumulation_bound(exact, kind, "ieee"))
    largest = definition.FORMATS["float64" if dtype == "float64" else "float32"][2]
    limit = np.where(_undetermined(exact, limit, y, largest, taps), np.inf, limit)
    if dtype not in ("float16", "bfloat16"):
        return Answer((y,), (limit,))
    own = 2.0 ** -definition.FORMATS[dtype][0]
    with np.errstate(all="ignore"):
        wide = _limit(exact, y, (exact.terms + 1) * own * exact.magnitude)
    wide = np.where(_undetermined(exact, wide, y, definition.FORMATS[dtype][2], taps), np.inf, wide)
    return Answer((y,), (limit,), {"wide": (wide,)})


def _undetermined(exact: definition.Exact, limit: Array, y: Array, largest: float, taps: int) -> Array:
    """Return a mask of the sums that may overflow in some order of their terms, so that any result is right.

    Where the total overflows, and the terms of the opposite sign cannot overflow by themselves, every order gives
    infinity.
    """
    with np.errstate(all="ignore"):
        may = np.isfinite(exact.value) & (exact.magnitude * taps > largest)
        certain = np.isinf(y.astype(np.float64)) & (limit == 0) & (_other_sign(exact) * taps < largest / 2)
        return np.asarray(may & ~certain)


def _other_sign(exact: definition.Exact) -> Array:
    """Return the magnitude of the terms whose sign is opposite to that of the sum."""
    with np.errstate(all="ignore"):
        return np.asarray((exact.magnitude - np.abs(exact.value)) / 2)


def _limit(exact: definition.Exact, y: Array, slack: Array) -> Array:
    """Bound the distance from y: the error of the sum, one rounding, and the error of y itself."""
    bits, smallest, _ = definition.FORMATS[y.dtype.name]
    with np.errstate(all="ignore"):
        off = np.abs(y.astype(np.float64) - exact.value)
        ends = [definition.round_to(exact.value + sign * slack, y.dtype).astype(np.float64) for sign in (-1, 1)]
        last = (2.0**-bits if bits < 24 else 0.0) * np.abs(exact.value) + 2.0 ** (smallest - 1)
        limit = np.where(np.isfinite(y.astype(np.float64)), slack + last + off, 0.0)
        either = np.isfinite(exact.value) & np.isfinite(slack) & (np.isinf(ends[0]) | np.isinf(ends[1]))
    return np.asarray(np.where(either & ~(np.isinf(ends[0]) & np.isinf(ends[1])), np.inf, limit))
