"""The table of operators: the arrays and attributes that each takes, and whose geometry it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuconv import _geometry, _gradients
from gpuconv._geometry import Ints

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_TRANSPOSE = (
    *("auto_pad", "dilations", "group", "kernel_shape"),
    *("output_padding", "output_shape", "pads", "strides"),
)
_MAX_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides")


@dataclass(frozen=True, slots=True)
class Operator:
    """What sets one of the public functions apart, on every backend.

    Attributes
    ----------
    inputs : dict of str to str
        The arrays as the function names them, in order, and the role that each plays in the computation.
    attributes : tuple of str
        In alphabetical order.
    geometry : callable
        Takes the inputs' shapes, the attributes and the layout; returns what the backends compute by.
    result : callable
        Takes a geometry, returns the result's shape, in the order N, C, D1, …
    kernel : str
        Of the function that the backends have for it.
    weights : frozenset of str
        Names of arrays that have no layout; "out" for the result.
    """

    inputs: dict[str, str]
    attributes: tuple[str, ...]
    geometry: Callable[..., Any]
    result: Callable[[Any], Ints]
    kernel: str
    weights: frozenset[str] = frozenset("wb")

    def follows_layout(self, name: str) -> bool:
        """Tell whether an array has its channels where the layout says."""
        return name not in self.weights


def _y_shape(geometry: Any) -> Ints:
    return tuple(geometry.y_shape)


def _x_shape(geometry: Any) -> Ints:
    return tuple(geometry.x_shape)


def _w_shape(geometry: Any) -> Ints:
    return tuple(geometry.w_shape)


def _gradient_of_weights(attributes: tuple[str, ...], geometry: Callable[..., Any], dy: str, x: str) -> Operator:
    """``dy`` and ``x`` name the arrays that stand one for each output of a Conv, and for its inputs."""
    roles = {dy: "dy", x: "x"}
    inputs = {name: roles[name] for name in ("x", "dy")}
    named = tuple(sorted((*attributes, "w_shape")))
    return Operator(inputs, named, geometry, _w_shape, "weight_grad", frozenset(("out",)))


def _gradient_of_bias(geometry: Callable[..., Any]) -> Operator:
    return Operator({"dy": "x"}, (), geometry, _y_shape, "bias_grad", frozenset(("out",)))


def _gradient_of_input(attributes: tuple[str, ...], geometry: Callable[..., Any], kernel: str) -> Operator:
    named = tuple(sorted((*attributes, "x_shape")))
    return Operator({"dy": "x", "w": "w"}, named, geometry, _y_shape, kernel)


OPERATORS = {
    "conv": Operator({"x": "x", "w": "w", "b": "b"}, _CONV, _geometry.conv, _y_shape, "conv"),
    "conv_transpose": Operator(
        {"x": "x", "w": "w", "b": "b"}, _TRANSPOSE, _geometry.conv_transpose, _y_shape, "conv_transpose"
    ),
    "max_pool": Operator({"x": "x"}, _MAX_POOL, _geometry.max_pool, _y_shape, "max_pool"),
    "conv_input_grad": _gradient_of_input(_CONV, _gradients.conv_input_grad, "conv_transpose"),
    "conv_transpose_input_grad": _gradient_of_input(_TRANSPOSE, _gradients.conv_transpose_input_grad, "conv"),
    "conv_weight_grad": _gradient_of_weights(_CONV, _gradients.conv_weight_grad, "dy", "x"),
    "conv_transpose_weight_grad": _gradient_of_weights(_TRANSPOSE, _gradients.conv_transpose_weight_grad, "x", "dy"),
    "conv_bias_grad": _gradient_of_bias(_gradients.conv_bias_grad),
    "conv_transpose_bias_grad": _gradient_of_bias(_gradients.conv_transpose_bias_grad),
    "max_pool_grad": Operator(
        {"dy": "dy", "indices": "indices"},
        tuple(sorted((*_MAX_POOL, "x_shape"))),
        _gradients.max_pool_grad,
        _x_shape,
        "max_pool_grad",
    ),
    "max_unpool": Operator(
        {"y": "x", "indices": "indices"},
        ("kernel_shape", "output_shape", "pads", "strides"),
        _gradients.max_unpool,
        _y_shape,
        "max_unpool",
    ),
}
