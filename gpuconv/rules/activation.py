"""The functions that a convolution can apply to its sums before it rounds them, all of them by one formula."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from numbers import Real
from typing import Any

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line, shown
from gpuconv.rules import dtypes

_ARGUMENTS = {"relu": (), "leaky_relu": ("alpha",), "clip": ("low", "high")}
_ALPHA = 0.01  # of ONNX LeakyRelu by default


@dataclass(frozen=True, slots=True)
class Activation:
    """``v = v < 0 ? v * slope : v``, then ``v = v < low ? low : v``, then ``v = v > high ? high : v``.

    No comparison holds for NaN, so a NaN stays one, as -0.0 stays -0.0 where low is 0.0. The numbers are rounded to the
    type of the sums.

    Attributes
    ----------
    text : str
        Name and arguments, for people; also tells numbers apart that are equal, as 0.0 and -0.0.
    slope, low, high : float
    """

    text: str
    slope: float = 1.0
    low: float = -inf
    high: float = inf

    @property
    def acts(self) -> bool:
        """Whether any number becomes another one."""
        return (self.slope, self.low, self.high) != (1.0, -inf, inf)


_BARE = {
    "relu": Activation("relu", low=0.0),
    "leaky_relu": Activation(f"leaky_relu({_ALPHA})", slope=_ALPHA),
    "clip": Activation("clip"),
}


def parse(operator: str, given: Any) -> Activation | None:
    """Return what a call gives as its activation: None, a name, or a tuple of the name and all its arguments.

    Raises
    ------
    ArgumentError
        There is no such function, or an argument is NaN or no float64.
    ArgumentTypeError
        Something else is given, or arguments that the function does not take.
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


def _number(operator: str, name: str, of: str, value: Any) -> float:
    """Return an argument as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        kinds = "a number" if name == "leaky_relu" else "a number or None"
        raise ArgumentTypeError(f"{operator}: {of} of activation {name} must be {kinds}, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentError(f"{operator}: {of} of activation {name} does not fit into a float64") from None
    except Exception as error:  # of a class of the caller's
        raise ArgumentTypeError(
            f"{operator}: {of} of activation {name} cannot be read ({type(error).__name__}: {one_line(str(error))})"
        ) from error
    if isnan(number):
        raise ArgumentError(f"{operator}: {of} of activation {name} is NaN")
    return number


def check(operator: str, activation: Activation | None, residual: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an activation of complex numbers, and a residual that is not of the result's shape.

    That a residual has the dtype of the other arrays is checked with these.
    """
    if activation is not None and dtypes.entry(dtype).real:
        raise ArgumentTypeError(f"{operator}: x has dtype {dtype}, but an activation compares real numbers; pass none")
    if residual is not None and residual.shape != shape:
        raise ArgumentError(f"{operator}: residual must have the result's shape {shape}, not {residual.shape}")
