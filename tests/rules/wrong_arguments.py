"""Wrong calls whose arguments are odd objects, have other names, or mean what strict mode refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError
from tests.rules.wrong_calls import W, Wrong, X, array

INTEGERS = "must be an integer or a sequence of integers such as [1, 1]"


class Breaks:
    """An object that raises on every operation of Python."""

    def _raise(self, *_: Any) -> Any:
        raise ZeroDivisionError("out of order")

    __index__ = __len__ = __float__ = __iter__ = __bool__ = __repr__ = _raise


class Real(float):
    """A number that cannot be read."""

    def __float__(self) -> float:
        raise ZeroDivisionError("out of order")


class Elsewhere:
    """An array of another library that raises when asked for its device."""

    @property
    def __dlpack_device__(self) -> Any:
        raise ZeroDivisionError("out of order")


def _broken() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("out of order")


def _type(name: str, call: Callable[[], Any], message: str) -> Wrong:
    return Wrong(name, call, ArgumentTypeError, message)


def _value(name: str, call: Callable[[], Any], message: str) -> Wrong:
    return Wrong(name, call, ArgumentError, message)


READ = "cannot be read (ZeroDivisionError: out of order)"
PLACES = np.zeros((1, 4, 5, 6), np.int64)
OBJECTS = [
    _type("an integer that breaks", lambda: gpuconv.conv(X, W, group=Breaks()), f"conv: group {READ}"),
    _type("a sequence that breaks", lambda: gpuconv.conv(X, W, pads=Breaks()), f"conv: pads {READ}"),
    _type("an entry that breaks", lambda: gpuconv.conv(X, W, pads=[1, Breaks()]), f"conv: pads {READ}"),
    _type("an iterator that breaks", lambda: gpuconv.max_pool(X, kernel_shape=_broken()),
        f"max_pool: kernel_shape {READ}"),
    _type("an iterator that breaks, of a gradient", lambda: gpuconv.max_pool_grad(X, PLACES, _broken(), kernel_shape=1),
        f"max_pool_grad: x_shape {READ}"),
    _type("a flag that breaks", lambda: gpuconv.max_pool(X, 1, return_indices=Breaks()),
        f"max_pool: return_indices {READ}"),
    _type(
        "an array for a flag",
        lambda: gpuconv.max_pool(X, 1, return_indices=np.ones(2)),  # type: ignore[call-overload]
        "max_pool: return_indices must be True or False, not an array of shape (2,)",
    ),
    _type(
        "an empty array for a flag",
        lambda: gpuconv.max_pool_grad(X, PLACES, X.shape, kernel_shape=1, check_indices=np.ones((0, 3))),  # type: ignore[call-overload]
        "max_pool_grad: check_indices must be True or False, not an array of shape (0, 3)",
    ),
    _type(
        "an array for whether there is a bias",
        lambda: gpuconv.explain("conv", X.shape, W.shape, bias=np.ones(4)),  # type: ignore[arg-type]
        "explain: bias must be True or False, not an array of shape (4,)",
    ),
    _type("a number that breaks", lambda: gpuconv.conv(X, W, activation=("leaky_relu", Real(1.0))),
        f"conv: alpha of activation leaky_relu {READ}"),
    _type("another library's array that breaks", lambda: gpuconv.conv(Elsewhere(), W),
        f"conv: x ({__name__}.Elsewhere) cannot be read in place: out of order"),
    _value("a thousand million pads", lambda: gpuconv.conv(X, W, pads=range(10**9)),
        "conv: pads has 1000000000 entries, but never takes more than 124: range(0, 1000000000)"),
    _value("strides without an end", lambda: gpuconv.conv(X, W, strides=repeat(1)),
        "conv: strides has over 124 entries, but never takes more than 124: repeat(1)"),
    _value("more extents than can be counted", lambda: gpuconv.conv_input_grad(X, W, range(10**30)),
        f"conv_input_grad: x_shape has over 124 entries, but never takes more than 124: range(0, {10**30})"),
    _type("a set of extents", lambda: gpuconv.conv_input_grad(X, W, {1, 2}),
        "conv_input_grad: x_shape must be a sequence of integers such as [1, 1], not {1, 2}, a set, whose entries have "
        "no order"),
    _value("an index into nothing",
        lambda: gpuconv.max_unpool(array(1, 1, 1), np.zeros((1, 1, 1), np.int64), kernel_shape=2, pads=1),
        "max_unpool: indices hold 0 at (0, 0, 0), but (1, 1, 0) (N, C, D1, …) has no elements, so that all must be -1"),
    _value("negative pads of MaxUnpool", lambda: gpuconv.max_unpool(X, PLACES, kernel_shape=2, pads=-1),
        "max_unpool: no entry of pads may be negative, but pads=-1; pass output_shape for a larger result"),
]  # fmt: skip


def _required(call: Callable[[], Any], function: str, name: str, what: str = ", a NumPy or CuPy array") -> Wrong:
    return _type(f"{function} without {name}", call, f"{function}: {name} is required{what}")


OF_A_GRADIENT = ", the shape of the array whose gradient is asked for"
MISSING = [
    _required(lambda: gpuconv.conv(), "conv", "x"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.conv(X), "conv", "w"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.conv_transpose(w=W), "conv_transpose", "x"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.max_pool(kernel_shape=1), "max_pool", "x"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.global_average_pool(), "global_average_pool", "x"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.max_unpool(X, kernel_shape=1), "max_unpool", "indices"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.conv_input_grad(X, W), "conv_input_grad", "x_shape", OF_A_GRADIENT),  # type: ignore[call-overload]
    _required(lambda: gpuconv.to_device(None), "to_device", "a"),
    _required(lambda: gpuconv.to_host(), "to_host", "a"),  # type: ignore[call-overload]
    _required(lambda: gpuconv.pack(), "pack", "w", ""),  # type: ignore[call-arg]
    _required(lambda: gpuconv.explain(), "explain", "operator", ""),  # type: ignore[call-arg]
    _required(lambda: gpuconv.explain("conv"), "explain", "x_shape", ""),  # type: ignore[call-arg]
]


def _called(function: str, theirs: str, ours: str, *arrays: Any) -> Wrong:
    """Return a call with another library's name of an argument instead of ours."""
    onnx = ", as in ONNX" if ours in ("pads", "strides", "kernel_shape", "output_shape", "group", "dilations") else ""
    return _type(
        f"{theirs} of {function}",
        lambda: getattr(gpuconv, function)(*arrays, **{theirs: 2}),
        f"{function}: {theirs} is called {ours} here{onnx}",
    )


NAMES = [
    *(_called("conv", theirs, "x") for theirs in ("input", "X", "lhs", "in1")),
    *(_called("conv", theirs, "w", X) for theirs in ("weight", "W", "filters", "rhs", "kernel")),
    *(_called("conv", theirs, "pads", X, W) for theirs in ("pad",)),
    *(_called("conv", theirs, "dilations", X, W) for theirs in ("dilation", "rate", "rhs_dilation")),
    *(_called("conv", theirs, "group", X, W) for theirs in ("groups", "feature_group_count")),
    *(_called("conv", theirs, "layout", X, W) for theirs in ("data_format", "memory_format")),
    *(_called("max_pool", theirs, "kernel_shape", X) for theirs in ("kernel_size", "ksize", "pool_size", "kernel")),
    *(_called("average_pool", theirs, "strides", X, 2) for theirs in ("stride", "window_strides")),
    _called("max_pool", "return_mask", "return_indices", X, 2),
    _called("conv_transpose", "output_size", "output_shape", X, W),
    _called("max_unpool", "output_size", "output_shape", X, PLACES),
    _called("max_unpool", "input", "y"),
    _called("conv_input_grad", "grad_output", "dy"),
    _called("conv_input_grad", "input_size", "x_shape", X, W),
    _called("conv_weight_grad", "weight_size", "w_shape", X, X),
    _called("conv_bias_grad", "input", "dy"),
    _called("pack", "weight", "w"),
    _called("to_host", "array", "a"),
    _called("explain", "input_shape", "x_shape", "conv"),
    _type(
        "a misspelt attribute",
        lambda: gpuconv.global_average_pool(X, layuot="NHWC"),  # type: ignore[call-overload]
        "global_average_pool: there is no argument 'layuot' (did you mean layout?); it takes x, layout, out",
    ),
    _type("a misspelt attribute to explain", lambda: gpuconv.explain("conv", X.shape, W.shape, stridse=2),
        "explain: conv has no attribute 'stridse' (did you mean strides?); it has auto_pad, dilations, group, "
        "kernel_shape, pads, strides"),
    _type("a layout by another name to explain", lambda: gpuconv.explain("conv", X.shape, W.shape, data_format="NHWC"),
        "explain: data_format of conv is called layout here"),
    _type(
        "strides by position",
        lambda: gpuconv.max_pool(X, 3, 2),  # type: ignore[call-overload]
        "max_pool: positional arguments are x, kernel_shape, but 3 were given; pass the others by name, as strides=…",
    ),
    _type(
        "two arrays to move",
        lambda: gpuconv.to_host(X, X),  # type: ignore[call-overload]
        "to_host: positional arguments are a, but 2 were given",
    ),
    _type(
        "a precision by name",
        lambda: gpuconv.precision(precision="ieee"),  # type: ignore[call-arg]
        "precision: there is no argument 'precision'; it takes value",
    ),
]  # fmt: skip


def _strictly(call: Callable[[], Any]) -> Callable[[], Any]:
    def strict() -> Any:
        with gpuconv.strict():
            return call()

    return strict


IMAGE, MAXIMA = array(3, 8, 9), np.zeros((3, 8, 4), np.int64)
STRICT = "in strict mode"


def _open(name: str, call: Callable[[], Any], function: str, array_is: str, advice: str) -> Wrong:
    message = f"{function}: {STRICT} {array_is} must not leave open whether it is {{}} or one image {{}}; pass {advice}"
    nhwc = "NHWC" in name
    message = message.format(*(("(N, L, C)", "(H, W, C)") if nhwc else ("(N, C, L)", "(C, H, W)")))
    return _value(name, _strictly(call), message)


SHORT = "kernel_shape=[2] for the first, x[None] for the second"
STRICTLY = [
    _open("an image to pool", lambda: gpuconv.max_pool(IMAGE, 2, strides=2), "max_pool", "x.shape=(3, 8, 9)", SHORT),
    _open("an image to pool, NHWC", lambda: gpuconv.average_pool(array(8, 9, 3), 2, layout="NHWC"), "average_pool",
        "x.shape=(8, 9, 3)", SHORT),
    _open("an image to average", lambda: gpuconv.global_average_pool(IMAGE), "global_average_pool", "x.shape=(3, 8, 9)",
        "the call to average_pool with kernel_shape=[9] for the first, x[None] for the second"),
    _open("maxima of an image to put back",
        lambda: gpuconv.max_unpool(array(3, 8, 4), MAXIMA, kernel_shape=2, strides=2), "max_unpool",
        "y.shape=(3, 8, 4)", "kernel_shape=[2] for the first, y[None] for the second"),
    _open("the gradient of an image's pooling",
        lambda: gpuconv.max_pool_grad(array(3, 8, 4), MAXIMA, (3, 8, 9), kernel_shape=2, strides=2), "max_pool_grad",
        "x.shape=(3, 8, 9)", SHORT),
    _open("an image's pooling to explain", lambda: gpuconv.explain("max_pool", (3, 8, 9), kernel_shape=2), "max_pool",
        "x.shape=(3, 8, 9)", SHORT),
    _value("a kernel longer than x", _strictly(lambda: gpuconv.conv(array(1, 4, 2, 6), W)),
        f"conv: {STRICT} the result must not be empty, but on spatial axis 0 the kernel covers 3 elements, and x has 2 "
        "with pads of 0 before and 0 after; pad more or shrink the kernel"),
    _value("a dilated window longer than x",
        _strictly(lambda: gpuconv.max_pool(X, 3, dilations=3, pads=[0, 0, 1, 1], strides=2)),
        f"max_pool: {STRICT} the result must not be empty, but on spatial axis 0 the kernel covers 7 elements, and x "
        "has 5 with pads of 0 before and 1 after; pad more or shrink the kernel"),
    _value("pads that crop all", _strictly(lambda: gpuconv.conv_transpose(X, W, pads=[3, 0, 4, 0])),
        f"conv_transpose: {STRICT} the result must not be empty, but on spatial axis 0 pads of 3 before and 4 after "
        "crop all of 7 outputs; pass smaller pads"),
    _value("pads as long as the kernel", _strictly(lambda: gpuconv.average_pool(X, 3, pads=[0, 0, 0, 3])),
        f"average_pool: {STRICT} pads must be shorter than the kernel, but on spatial axis 1 they have 0 before and 3 "
        "after, and the kernel covers 3, so that a window could hold padding only; pass smaller pads"),
    _type(
        "strict without parentheses",
        lambda: gpuconv.strict(len),  # type: ignore[arg-type]
        "strict: value must be True or False, not builtin_function_or_method; write gpuconv.strict()",
    ),
]  # fmt: skip

ARGUMENTS = [*OBJECTS, *MISSING, *NAMES, *STRICTLY]
