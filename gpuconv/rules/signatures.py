"""What public functions show of their parameters, and what a call hears that names an argument as others do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

from gpuconv._errors import ArgumentTypeError, shown

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")
_OURS = {  # by PyTorch's names
    "bias": "b",
    "dilation": "dilations",
    "groups": "group",
    "kernel_size": "kernel_shape",
    "padding": "pads",
    "stride": "strides",
}


class _ByDLPack(Protocol):
    def __dlpack_device__(self) -> Any: ...


class _ByCudaInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


Array = _ByDLPack | _ByCudaInterface  # NumPy's, CuPy's, and those of others that share their memory


def public(*required: str) -> Callable[[_F], _F]:
    """Make a decorator that hides the keywords that a function takes only to refuse them.

    The function itself takes them, as ``**others``, and calls :func:`refuse`: another function around it would cost
    every call more than that does. Type checkers see the overloads.

    Parameters
    ----------
    *required : str
        Parameters that have a default only so that a call without them hears of the others first.
    """

    def hide(function: _F) -> _F:
        full = signature(function)
        named = [parameter for parameter in full.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        seen = [
            parameter.replace(default=Parameter.empty) if parameter.name in required else parameter
            for parameter in named
        ]
        vars(function)["__signature__"] = full.replace(parameters=seen)
        return function

    return hide


def refusing(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function refuse keywords that it does not take as the other public ones do."""
    takes = signature(function).parameters

    @wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
        others = {name: value for name, value in keywords.items() if name not in takes}
        if others:
            refuse(function, others)
        return function(*args, **keywords)

    return call


def refuse(function: Callable[..., Any], others: Mapping[str, Any]) -> NoReturn:
    """Raise ArgumentTypeError for keywords that a public function does not take."""
    operator, takes = function.__name__, signature(function).parameters
    name, value = next(iter(others.items()))
    if name == "padding" and isinstance(value, str) and "auto_pad" in takes:
        raise ArgumentTypeError(f"{operator}: {name}={shown(value)} is a matter of auto_pad here, as in ONNX")
    ours = our_name(name, takes)
    if ours is not None:
        raise ArgumentTypeError(f"{operator}: {name} is called {ours} here, as in ONNX")
    raise ArgumentTypeError(f"{operator}: there is no argument {shown(name)}; it takes {', '.join(takes)}")


def our_name(name: str, takes: Iterable[str]) -> str | None:
    """Return what a function calls the argument that has this name in PyTorch, or None."""
    ours = _OURS.get(name)
    return ours if ours is not None and ours in takes else None
