"""Signatures of public functions, and helpful errors for arguments that other libraries name differently.

A call such as ``conv(x, weight=w)`` fails with the name that gpuconv uses instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

from gpuconv._errors import ArgumentTypeError, shown

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")
# Names in ONNX, PyTorch, JAX, TensorFlow, SciPy, cuDNN and CuPy; if there are several of ours, the first that a
# function takes.
_OURS = {
    **dict.fromkeys(("X", "input", "inputs", "lhs", "image", "images", "in1"), ("x", "y", "dy", "a")),
    **dict.fromkeys(("W", "weight", "weights", "filter", "filters", "rhs", "kernel", "in2"), ("w", "kernel_shape")),
    **dict.fromkeys(("B", "bias"), ("b",)),
    **dict.fromkeys(("Y", "maxima"), ("y",)),
    **dict.fromkeys(("I", "index", "argmax"), ("indices",)),
    **dict.fromkeys(("dY", "grad", "gy", "dout", "grad_output", "grad_outputs", "grad_y"), ("dy",)),
    **dict.fromkeys(("input_size", "input_shape"), ("x_shape",)),
    **dict.fromkeys(("weight_size", "weight_shape", "filter_shape", "filter_size"), ("w_shape",)),
    **dict.fromkeys(("dilation", "rate", "rhs_dilation", "kernel_dilation", "dilation_rate"), ("dilations",)),
    **dict.fromkeys(("groups", "feature_group_count"), ("group",)),
    **dict.fromkeys(("kernel_size", "ksize", "pool_size", "window_shape", "size", "window"), ("kernel_shape",)),
    **dict.fromkeys(("padding", "pad"), ("pads",)),
    **dict.fromkeys(("stride", "window_strides"), ("strides",)),
    **dict.fromkeys(("output_size", "out_size"), ("output_shape",)),
    **dict.fromkeys(("data_format", "dimension_numbers", "memory_format", "data_layout", "d_layout"), ("layout",)),
    **dict.fromkeys(("return_mask", "return_index", "return_argmax"), ("return_indices",)),
    **dict.fromkeys(("add", "z", "skip"), ("residual",)),
    **dict.fromkeys(("act", "activation_fn"), ("activation",)),
    **dict.fromkeys(("array", "arr", "tensor"), ("a", "x")),
    **dict.fromkeys(("op", "op_type", "function"), ("operator",)),
}
_OF_ONNX = frozenset(
    ("dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides", "storage_order")
)


class _ByDLPack(Protocol):
    def __dlpack_device__(self) -> Any: ...


class _ByCudaInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


Array = _ByDLPack | _ByCudaInterface  # NumPy and CuPy arrays, and those of other libraries that share their memory


def public(*required: str) -> Callable[[_F], _F]:
    """Make a decorator that hides catch-all parameters from a function's signature.

    The function itself takes ``*more`` and ``**others`` and passes them to :func:`refuse`: a wrapper would cost every
    call more than these parameters do. Type checkers see overloads instead.

    Parameters
    ----------
    *required : str
        Parameters that have a default only so that wrong keywords are reported before missing ones; shown as required.
    """

    def hide(function: _F) -> _F:
        full = signature(function)
        hidden = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        named = [parameter for parameter in full.parameters.values() if parameter.kind not in hidden]
        seen = [
            parameter.replace(default=Parameter.empty) if parameter.name in required else parameter
            for parameter in named
        ]
        vars(function)["__signature__"] = full.replace(parameters=seen)
        return function

    return hide


def refusing(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function so that unknown keywords and missing arguments raise the errors of other public functions.

    This costs about a microsecond per call; functions faster than that use :func:`public` instead.
    """
    takes = signature(function).parameters
    kinds = {parameter.kind for parameter in takes.values()}
    in_order = [name for name, parameter in takes.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    needed = [name for name in in_order if takes[name].default is Parameter.empty]

    @wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
        others = {} if Parameter.VAR_KEYWORD in kinds else {k: v for k, v in keywords.items() if k not in takes}
        more = () if Parameter.VAR_POSITIONAL in kinds else args[len(in_order) :]
        missing = [name for name in needed[len(args) :] if name not in keywords]
        named = {name: value for name, value in keywords.items() if our_name(name, missing)}
        if others or more or named:
            refuse(function, others or named, more)
        if missing:
            raise ArgumentTypeError(f"{function.__name__}: {missing[0]} is required")
        return function(*args, **keywords)

    return call


def refuse(function: Callable[..., Any], others: Mapping[str, Any], more: tuple[Any, ...] = ()) -> NoReturn:
    """Raise ArgumentTypeError for keywords that a public function lacks, or for surplus positional arguments."""
    operator, takes = function.__name__, signature(function).parameters
    if not others:
        _refuse_positions(operator, takes, len(more))
    name, value = next(iter(others.items()))
    if name == "padding" and isinstance(value, str) and "auto_pad" in takes:
        raise ArgumentTypeError(f"{operator}: {name}={shown(value)} is a matter of auto_pad here, as in ONNX")
    ours = our_name(name, takes)
    if ours is not None:
        raise ArgumentTypeError(f"{operator}: {renamed(name, ours)}")
    raise ArgumentTypeError(
        f"{operator}: there is no argument {shown(name)}{suggestion(name, takes)}; it takes {', '.join(takes)}"
    )


def _refuse_positions(operator: str, takes: Mapping[str, Parameter], surplus: int) -> NoReturn:
    """Raise ArgumentTypeError for surplus positional arguments."""
    in_order = [name for name, parameter in takes.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    others = [name for name in takes if name not in in_order]
    example = "strides" if "strides" in others else next(iter(others), None)
    advice = f"; pass the others by name, as {example}=…" if example else ""
    raise ArgumentTypeError(
        f"{operator}: positional arguments are {', '.join(in_order)}, but {len(in_order) + surplus} were given{advice}"
    )


def our_name(name: str, takes: Iterable[str]) -> str | None:
    """Return the function's name for an argument that other libraries call ``name``; None if there is none."""
    names = tuple(takes)
    return next((ours for ours in _OURS.get(name, ()) if ours in names), None)


def renamed(name: str, ours: str) -> str:
    """Return the part of a message that tells what an argument is called in gpuconv."""
    return f"{name} is called {ours} here" + (", as in ONNX" if ours in _OF_ONNX else "")


def suggestion(name: str, takes: Iterable[str]) -> str:
    """Return the question "did you mean ...?" for a misspelt name; "" if no name is close."""
    close = get_close_matches(name.lower(), [*takes], 1, 0.7) if len(name) <= 40 else []
    return f" (did you mean {close[0]}?)" if close else ""
