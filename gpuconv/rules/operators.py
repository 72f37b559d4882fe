"""Table of gpuconv's operators: their arrays, their attributes, and the geometry function of each.

The public functions, ``explain``, ``tune``, gpuconv.dask and the CUDA backend look operators up here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from gpuconv.rules.geometry import Ints
from gpuconv.rules.integers import held
from gpuconv.rules.signatures import our_name, renamed, suggestion

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_TRANSPOSE = (
    *("auto_pad", "dilations", "group", "kernel_shape"),
    *("output_padding", "output_shape", "pads", "strides"),
)
_MAX_POOL = ("auto_pad", "ceil_mode", "dilations", "indices_in", "kernel_shape", "pads", "storage_order", "strides")
_AVERAGE_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


@dataclass(frozen=True, slots=True)
class Operator:
    """Description of one public function, independent of the backend.

    Attributes
    ----------
    inputs : dict of str to str
        Array arguments in order: name in the public function, and role in the kernel that computes it.
    attributes : tuple of str
        In alphabetical order.
    geometry : callable
        Takes the inputs' shapes, the attributes and the layout; returns a geometry.
    result : callable
        Takes a geometry; returns the result's shape in the order N, C, D1, ...
    kernel : str
        Name of the backend function that computes it.
    weights : frozenset of str
        Arrays to which the layout does not apply; "out" stands for the result.
    made : str
        Name of the result.
    forward : callable or None
        For gradients, the geometry function of the forward call, whose result has the shape of dy; None for others.
    """

    inputs: dict[str, str]
    attributes: tuple[str, ...]
    geometry: Callable[..., Any]
    result: Callable[[Any], Ints]
    kernel: str
    weights: frozenset[str] = frozenset("wb")
    made: str = "y"
    forward: Callable[..., Any] | None = None

    def follows_layout(self, name: str) -> bool:
        """Return whether the layout applies to an array."""
        return name not in self.weights

    @property
    def has_weights(self) -> bool:
        """Whether the operator multiplies with weights, so that ``precision`` applies."""
        return "w" in self.inputs or "w_shape" in self.attributes

    def order(self, name: str, layout: str) -> str:
        """Return the layout of an array, given that of the activations."""
        return layout if self.follows_layout(name) else "NCHW"


def _y_shape(geometry: Any) -> Ints:
    return tuple(geometry.y_shape)


def _x_shape(geometry: Any) -> Ints:
    return tuple(geometry.x_shape)


def _w_shape(geometry: Any) -> Ints:
    return tuple(geometry.w_shape)


def named(caller: str, operator: Any) -> Operator:
    """Return an operator's entry; raise ArgumentError, listing all operators, if there is none."""
    entry = OPERATORS.get(operator) if isinstance(operator, str) else None
    if entry is None:
        raise ArgumentError(f"{caller}: operator must be one of {', '.join(OPERATORS)}, not {shown(operator)}")
    return entry


def check_names(caller: str, operator: str, given: Iterable[str], more: Iterable[str] = ()) -> None:
    """Raise ArgumentTypeError for keywords that are not attributes of an operator.

    ``more`` are further parameters of the caller, for suggestions of what was meant.
    """
    names = OPERATORS[operator].attributes
    unknown = sorted(set(given) - set(names))
    if unknown:
        ours = our_name(unknown[0], (*names, *more))
        if ours is not None:
            raise ArgumentTypeError(f"{caller}: {renamed(f'{unknown[0]} of {operator}', ours)}")
        has, meant = ", ".join(names) or "none", suggestion(unknown[0], (*names, *more))
        raise ArgumentTypeError(f"{caller}: {operator} has no attribute {shown(unknown[0])}{meant}; it has {has}")


def settled(caller: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes with iterators replaced by tuples, so that they can be read repeatedly."""
    return {name: held(caller, name, value) for name, value in attributes.items()}


def _gradient_of_weights(
    attributes: tuple[str, ...], geometry: Callable[..., Any], forward: Callable[..., Any], dy: str, x: str
) -> Operator:
    """Return the entry of a weight gradient.

    ``dy`` and ``x`` name the arguments that play the roles of output gradient and input in the equivalent Conv.
    """
    roles = {dy: "dy", x: "x"}
    inputs = {name: roles[name] for name in ("x", "dy")}
    named = tuple(sorted((*attributes, "w_shape")))
    return Operator(inputs, named, geometry, _w_shape, "weight_grad", frozenset(("out",)), "dw", forward)


def _gradient_of_bias(geometry: Callable[..., Any]) -> Operator:
    return Operator({"dy": "x"}, (), geometry, _y_shape, "bias_grad", frozenset(("out",)), "db")


def _gradient_of_input(
    attributes: tuple[str, ...], geometry: Callable[..., Any], forward: Callable[..., Any], kernel: str
) -> Operator:
    named = tuple(sorted((*attributes, "x_shape")))
    return Operator({"dy": "x", "w": "w"}, named, geometry, _y_shape, kernel, made="dx", forward=forward)


def _gradient_of_average(
    attributes: tuple[str, ...], geometry: Callable[..., Any], forward: Callable[..., Any]
) -> Operator:
    named = tuple(sorted((*attributes, "x_shape")))
    return Operator({"dy": "dy"}, named, geometry, _x_shape, "average_pool_grad", made="dx", forward=forward)


OPERATORS = {
    "conv": Operator({"x": "x", "w": "w", "b": "b"}, _CONV, geometries.conv, _y_shape, "conv"),
    "conv_transpose": Operator(
        {"x": "x", "w": "w", "b": "b"}, _TRANSPOSE, geometries.conv_transpose, _y_shape, "conv_transpose"
    ),
    "max_pool": Operator({"x": "x"}, _MAX_POOL, geometries.max_pool, _y_shape, "max_pool"),
    "average_pool": Operator({"x": "x"}, _AVERAGE_POOL, geometries.average_pool, _y_shape, "average_pool"),
    "global_average_pool": Operator({"x": "x"}, (), geometries.global_average_pool, _y_shape, "average_pool"),
    "conv_input_grad": _gradient_of_input(_CONV, gradients.conv_input_grad, geometries.conv, "conv_transpose"),
    "conv_transpose_input_grad": _gradient_of_input(
        _TRANSPOSE, gradients.conv_transpose_input_grad, geometries.conv_transpose, "conv"
    ),
    "conv_weight_grad": _gradient_of_weights(_CONV, gradients.conv_weight_grad, geometries.conv, "dy", "x"),
    "conv_transpose_weight_grad": _gradient_of_weights(
        _TRANSPOSE, gradients.conv_transpose_weight_grad, geometries.conv_transpose, "x", "dy"
    ),
    "conv_bias_grad": _gradient_of_bias(gradients.conv_bias_grad),
    "conv_transpose_bias_grad": _gradient_of_bias(gradients.conv_transpose_bias_grad),
    "max_pool_grad": Operator(
        {"dy": "dy", "indices": "indices"},
        tuple(sorted((*_MAX_POOL, "x_shape"))),
        gradients.max_pool_grad,
        _x_shape,
        "max_pool_grad",
        made="dx",
        forward=geometries.max_pool,
    ),
    "average_pool_grad": _gradient_of_average(_AVERAGE_POOL, gradients.average_pool_grad, geometries.average_pool),
    "global_average_pool_grad": _gradient_of_average(
        (), gradients.global_average_pool_grad, geometries.global_average_pool
    ),
    "max_unpool": Operator(
        {"y": "x", "indices": "indices"},
        ("indices_in", "kernel_shape", "output_shape", "pads", "strides"),
        gradients.max_unpool,
        _y_shape,
        "max_unpool",
        made="x",
    ),
}
