"""Activations that Conv and ConvTranspose apply in the epilogue, before results are rounded: relu, leaky_relu and clip.

All are instances of one formula with a slope and two bounds, so kernels need only one code path.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from numbers import Real
from typing import Any

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line, shown
from gpuconv.rules import dtypes

_ARGUMENTS = {"relu": (), "leaky_relu": ("alpha",), "clip": ("low", "high")}
_ALPHA = 0.01  # default of ONNX's LeakyRelu


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation: ``v = v < 0 ? v * slope : v``, then ``v = v < low ? low : v``, then ``v = v > high ? high : v``.

    Comparisons with NaN are false, so NaN is unchanged, and so is -0.0 if low is 0.0. The parameters are rounded to the
    accumulator's type.

    Attributes
    ----------
    text : str
        Name and arguments for display. It also distinguishes equal numbers such as 0.0 and -0.0 when instances are
        compared.
    slope, low, high : float
    """

    text: str
    slope: float = 1.0
    low: float = -inf
    high: float = inf

    @property
    def acts(self) -> bool:
        """Whether the activation changes any number."""
        return (self.slope, self.low, self.high) != (1.0, -inf, inf)


_BARE = {
    "relu": Activation("relu", low=0.0),
    "leaky_relu": Activation(f"leaky_relu({_ALPHA})", slope=_ALPHA),
    "clip": Activation("clip"),
}


def parse(operator: str, given: Any) -> Activation | None:
    """Parse the argument ``activation`` of a call: None, a name, or a tuple of a name and all its arguments.

    Raises
    ------
    ArgumentError
        The name is unknown, or an argument is NaN or exceeds the range of float64.
    ArgumentTypeError
        The argument is of another type, or has the wrong number of arguments.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return _bare(operator, given)
    if not isinstance(given, tuple) or not given or not isinstance(given[0], str):
        kind = f"a tuple of {_types(given)}" if isinstance(given, tuple) else type(given).__name__
        raise ArgumentTypeError(
            f"{operator}: activation must be a name, or a tuple of a name and its arguments as ('leaky_relu', 0.1), "
            f"not {kind}"
        )
    name, *arguments = given
    bare, names = _bare(operator, name), _ARGUMENTS[name]
    if len(arguments) != len(names):
        takes = " and ".join(names) or "no arguments"
        raise ArgumentTypeError(
            f"{operator}: activation {name} takes {takes}, but the tuple has {len(arguments)} of them"
        )
    if not names:
        return bare
    if name == "leaky_relu":
        slope = _number(operator, name, "alpha", arguments[0])
        return Activation(f"leaky_relu({slope})", slope=slope)
    low, high = (
        bound if value is None else _number(operator, name, of, value)
        for of, value, bound in zip(names, arguments, (-inf, inf), strict=True)
    )
    return Activation(f"clip({low}, {high})", low=low, high=high)


def _types(values: tuple[Any, ...]) -> str:
    return ", ".join(type(value).__name__ for value in values) or "nothing"


def _bare(operator: str, name: str) -> Activation:
    activation = _BARE.get(name)
    if activation is None:
        raise ArgumentError(f"{operator}: activation must be one of {', '.join(_ARGUMENTS)}, not {shown(name)}")
    return activation


def _number(operator: str, name: str, parameter: str, value: Any) -> float:
    """Return an argument of an activation as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        kinds = "a number" if name == "leaky_relu" else "a number or None"
        raise ArgumentTypeError(
            f"{operator}: {parameter} of activation {name} must be {kinds}, not {type(value).__name__}"
        )
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentError(f"{operator}: {parameter} of activation {name} does not fit into a float64") from None
    except Exception as error:  # raised by a user-defined number class
        raise ArgumentTypeError(
            f"{operator}: {parameter} of activation {name} cannot be read "
            f"({type(error).__name__}: {one_line(str(error))})"
        ) from error
    if isnan(number):
        raise ArgumentError(f"{operator}: {parameter} of activation {name} is NaN")
    return number


def check(operator: str, activation: Activation | None, residual: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an activation of complex numbers, and a residual whose shape differs from the result's.

    The residual's dtype is checked together with those of the other arrays.
    """
    if activation is not None and dtypes.entry(dtype).real:
        raise ArgumentTypeError(f"{operator}: x has dtype {dtype}, but an activation compares real numbers; pass none")
    if residual is not None and residual.shape != shape:
        raise ArgumentError(f"{operator}: residual must have the result's shape {shape}, not {residual.shape}")
