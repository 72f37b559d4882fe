"""Fuzz the public functions on NumPy arrays.

Half of the calls are valid: their arrays hold small integers, so that sums are exact and the definition gives the
result. The others are valid calls with some arguments replaced. They may be accepted only if they can be read as valid
calls, and then their results are checked, too.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import gpuconv
from gpuconv.rules.operators import OPERATORS
from tests.fuzz import hostile
from tests.fuzz.frame import LIMITS_MEMORY, LONGEST, Fuzzer, Wrong
from tests.fuzz.hostile import Planted, fresh
from tests.oracle import oracle
from tests.oracle.finish import ACTIVATIONS, accumulator, finished
from tests.oracle.gradients import average_pool_grad, bias_grad, input_grad, max_pool_grad, max_unpool, weight_grad
from tests.oracle.operands import LAYOUTS
from tests.oracle.oracle import round_to
from tests.oracle.peers import geometry_of
from tests.oracle.strategies import GENERATORS, Problem

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_REAL = (*map(np.dtype, ("float16", "float32", "float64")), _BFLOAT16)
_SUMS = (*_REAL, np.dtype("complex64"), np.dtype("complex128"))
_POOLED = (*_REAL, np.dtype("int8"), np.dtype("uint8"))
_POOL = np.random.default_rng(0).integers(-4, 5, 2**15)
_WRITEABLE = tuple(name for name in LAYOUTS if name not in ("read-only", "broadcast"))
_MOST_WORK = 2e6  # calls with more multiplications are not made
_MOST_BYTES = 2**30  # largest result in bytes that the worker can hold
_SEVERAL = 2**18  # larger arrays are not compared

_ARRAYS = ("x", "w", "b", "dy", "y", "indices", "residual", "out")
_PER_AXIS = ("dilations", "kernel_shape", "pads", "strides", "output_padding")  # accept one integer for all axes
_INTS = (*_PER_AXIS, "output_shape", "x_shape", "w_shape")
_NUMBERS = ("group", "ceil_mode", "count_include_pad", "storage_order")
_FLAGS = ("return_indices", "check_indices", "bias")


@dataclass(frozen=True)
class Call:
    """One call, with all arguments by name.

    ``workspace`` is the value of GPUCONV_WORKSPACE_BYTES, ``rank`` the number of spatial axes of the original call.
    ``known`` is False if values in its arrays make the result unpredictable.
    """

    function: str
    arguments: dict[str, Any]
    packed: bool = False
    workspace: str = ""
    known: bool = True
    rank: int = 2
    replaced: tuple[str, ...] = field(default=(), compare=False)


# ---------------------------------------------------------------- valid calls


def _filled(random: Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of small integers in a random memory layout."""
    size, start = math.prod(shape), random.randrange(2**14)
    flat = _POOL[start : start + size] if size <= 2**14 else np.resize(_POOL, size)
    flat = np.abs(flat) if dtype.kind == "u" else flat
    array = flat.reshape(shape).astype(dtype)
    if dtype.kind == "c":
        array.imag = np.roll(flat, 1).reshape(shape)
    layout = random.choice(("contiguous", *LAYOUTS)) if random.random() < 0.5 else "contiguous"
    return LAYOUTS[layout](array) if array.ndim else array


def _last(layout: str, array: Any) -> Any:
    return np.moveaxis(array, 1, -1) if layout == "NHWC" else array


def _last_of(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if layout == "NHWC" else shape


def _out(random: Random, shape: tuple[int, ...], dtype: Any) -> Any:
    return LAYOUTS[random.choice(_WRITEABLE)](np.full(shape, 3, dtype))


def _call_of(
    random: Random,
    name: str,
    arguments: dict[str, Any],
    layout: str,
    rank: int,
    out: tuple[tuple[int, ...], Any] | None = None,
) -> Call:
    """Return a call with its layout, and now and then with an ``out`` of a shape and a dtype."""
    if layout == "NHWC":
        arguments["layout"] = layout
    if out is not None and random.random() < 0.2:
        arguments["out"] = _out(random, *out)
    return Call(name, arguments, rank=rank)


def _conv(random: Random, name: str) -> Call:
    problem, dtype = GENERATORS[name](random), random.choice(_SUMS)
    layout = random.choice(("NCHW", "NCHW", "NHWC"))
    x, w = _filled(random, problem.x_shape, dtype), _filled(random, problem.w_shape, dtype)
    arguments: dict[str, Any] = {"x": _last(layout, x), "w": w, **problem.attributes}
    if problem.b_shape is not None:
        arguments["b"] = _filled(random, problem.b_shape, dtype)
    shape = _last_of(layout, geometry_of(problem).y_shape)
    if layout == "NHWC" or random.random() < 0.1:
        arguments["layout"] = layout
    if random.random() < 0.15:
        arguments["residual"] = _filled(random, shape, dtype)
    if random.random() < 0.2 and dtype.kind != "c":
        arguments["activation"] = random.choice(tuple(ACTIVATIONS))
    if random.random() < 0.2:
        arguments["out"] = _out(random, shape, dtype)
    if random.random() < 0.05:
        arguments["precision"] = random.choice(("ieee", "tf32", "3xtf32", None))
    return Call(name, arguments, packed=random.random() < 0.1, rank=problem.rank)


def _gradient(random: Random, name: str) -> Call:
    forward = "conv_transpose" if "transpose" in name else "conv"
    problem, dtype = GENERATORS[forward](random), random.choice(_SUMS)
    layout, y_shape = random.choice(("NCHW", "NCHW", "NHWC")), geometry_of(problem).y_shape
    arguments: dict[str, Any] = {} if name.endswith("bias_grad") else dict(problem.attributes)
    arguments["dy"] = _last(layout, _filled(random, y_shape, dtype))
    shape: tuple[int, ...] = (y_shape[1],)
    if name.endswith("input_grad"):
        arguments["w"] = _filled(random, problem.w_shape, dtype)
        arguments["x_shape"] = shape = _last_of(layout, problem.x_shape)
    elif name.endswith("weight_grad"):
        arguments["x"] = _last(layout, _filled(random, problem.x_shape, dtype))
        arguments["w_shape"] = shape = problem.w_shape
    return _call_of(random, name, arguments, layout, problem.rank, (shape, dtype))


def _max_pool(random: Random, name: str) -> Call:
    problem, dtype = GENERATORS["max_pool"](random), random.choice(_POOLED)
    layout = random.choice(("NCHW", "NCHW", "NHWC"))
    arguments: dict[str, Any] = {"x": _last(layout, _filled(random, problem.x_shape, dtype)), **problem.attributes}
    shape = _last_of(layout, geometry_of(problem).y_shape)
    if layout == "NHWC":
        arguments["layout"] = layout
    if random.random() < 0.5:
        arguments["return_indices"] = True
        if random.random() < 0.3:
            outs = _out(random, shape, dtype), _out(random, shape, np.dtype(np.int64))
            arguments["out"] = tuple(random.choice((out, out, None)) for out in outs)
    elif random.random() < 0.3:
        arguments["out"] = _out(random, shape, dtype)
    return Call(name, arguments, rank=problem.rank)


def _max_pool_grad(random: Random, name: str) -> Call:
    problem, dtype = GENERATORS["max_pool"](random), random.choice(_REAL)
    layout = random.choice(("NCHW", "NCHW", "NHWC"))
    x = _filled(random, problem.x_shape, dtype)
    indices = oracle.max_pool(x, **problem.attributes)[1]
    arguments: dict[str, Any] = {
        "dy": _last(layout, _filled(random, indices.shape, dtype)),
        "indices": _last(layout, indices),
        "x_shape": _last_of(layout, problem.x_shape),
        **problem.attributes,
    }
    if random.random() < 0.2:
        arguments["check_indices"] = random.choice((True, False))
    return _call_of(random, name, arguments, layout, problem.rank, (arguments["x_shape"], dtype))


def _average_pool(random: Random, name: str) -> Call:
    problem, dtype = GENERATORS["average_pool"](random), random.choice(_SUMS)
    attributes, layout = dict(problem.attributes), random.choice(("NCHW", "NCHW", "NHWC"))
    y_shape = geometry_of(problem).y_shape
    if name.startswith("global"):
        attributes, y_shape = {}, (*problem.x_shape[:2], *[1] * problem.rank)
    shapes = {"x": problem.x_shape, "dy": y_shape}
    given, made = ("dy", "x") if name.endswith("_grad") else ("x", "dy")
    arguments: dict[str, Any] = {given: _last(layout, _filled(random, shapes[given], dtype)), **attributes}
    if given == "dy":
        arguments["x_shape"] = _last_of(layout, problem.x_shape)
    return _call_of(random, name, arguments, layout, problem.rank, (_last_of(layout, shapes[made]), dtype))


def _max_unpool(random: Random, name: str) -> Call:
    rank, dtype = random.choice((1, 2, 2, 3, 4)), random.choice(_POOLED)
    layout = random.choice(("NCHW", "NCHW", "NHWC"))
    kernel, strides = ([random.randint(1, 3) for _ in range(rank)] for _ in range(2))
    spatial = [random.choice((1, 2, 2, 3, 4)) for _ in range(rank)]
    pads = [random.randint(0, (k - 1) // 2) for k in kernel * 2]
    numbered = [s * (q - 1) + k - b - e for s, q, k, b, e in zip(strides, spatial, kernel, pads, pads[rank:])]  # noqa: B905
    y_shape = (random.choice((1, 2, 0)), random.choice((1, 3)), *spatial)
    count = math.prod((*y_shape[:2], *numbered))
    indices = np.array([random.randrange(-1, count) if count else -1 for _ in range(math.prod(y_shape))], np.int64)
    arguments: dict[str, Any] = {
        "y": _last(layout, _filled(random, y_shape, dtype)),
        "indices": _last(layout, indices.reshape(y_shape)),
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "check_indices": False,
    }
    if random.random() < 0.4:
        larger = [n + random.choice((0, 0, 1, 3)) for n in numbered]
        arguments["output_shape"] = random.choice(([], [1, 1])) + larger
    return _call_of(random, name, arguments, layout, rank)


# ---------------------------------------------------------------- other functions


def _about_arrays(random: Random, name: str) -> Call:
    shape = tuple(random.choice((0, 1, 2, 3)) for _ in range(random.randint(0, 5)))
    array = _filled(random, shape, random.choice((*_SUMS, *_POOLED)))
    if name == "pack":
        return Call(name, {"w": array, "operator": random.choice(("conv", "conv_transpose"))})
    return Call(name, {"a": array})


def _about_shapes(random: Random, name: str) -> Call:
    """Return a call of `explain` for a random operator."""
    of = random.choice(tuple(OPERATORS))
    forward = next(each for each in ("average_pool", "conv_transpose", "max_", "conv") if each in of)
    problem = GENERATORS["max_pool" if forward == "max_" else forward](random)
    arguments = {**problem.attributes, "operator": of, "x_shape": problem.x_shape}
    if OPERATORS[of].has_weights:
        arguments["w_shape"] = problem.w_shape
    names = {*OPERATORS[of].attributes, "operator", "x_shape", "w_shape"}
    return Call(name, {key: value for key, value in arguments.items() if key in names}, rank=problem.rank)


def _about_settings(random: Random, name: str) -> Call:
    return Call(name, {"value": random.choice(("ieee", "tf32", "3xtf32"))})


def _tune(random: Random, name: str) -> Call:
    call = _conv(random, random.choice(("conv", "conv_transpose")))
    return Call(name, {**call.arguments, "operator": call.function}, rank=call.rank)


_AVERAGES = tuple(name for name in OPERATORS if "average" in name)
_GRADIENTS = tuple(name for name in OPERATORS if name.startswith("conv") and name.endswith("_grad"))
_MAKERS: tuple[tuple[int, tuple[str, ...], Callable[[Random, str], Call]], ...] = (
    (40, ("conv", "conv_transpose"), _conv),
    (20, ("max_pool",), _max_pool),
    (20, _GRADIENTS, _gradient),
    (16, _AVERAGES, _average_pool),
    (6, ("max_pool_grad",), _max_pool_grad),
    (6, ("max_unpool",), _max_unpool),
    (4, ("pack", "to_host", "to_device"), _about_arrays),
    (1, ("explain",), _about_shapes),
    (2, ("precision",), _about_settings),
    (1, ("tune",), _tune),
)
_WEIGHTS = [weight for weight, _, _ in _MAKERS]
_PARAMETERS = {
    name: tuple(inspect.signature(getattr(gpuconv, name)).parameters) for _, names, _ in _MAKERS for name in names
}


def _with_integers(random: Random, call: Call) -> Call:
    """Sometimes replace a list of equal integers by one integer."""
    alike = [name for name in _PER_AXIS if len(set(call.arguments.get(name) or ())) == 1]
    chosen = {name: call.arguments[name][0] for name in alike if random.random() < 0.3}
    return replace(call, arguments={**call.arguments, **chosen})


# ---------------------------------------------------------------- hostile calls


def _with_replaced(random: Random, call: Call) -> Call:
    """Replace or add some arguments."""
    arguments, known = dict(call.arguments), call.known
    names = [*_PARAMETERS[call.function], *(call.arguments if call.function in ("explain", "tune") else ())]
    chosen = random.sample(names, min(len(names), random.choice((1, 1, 1, 2, 3))))
    for name in chosen:
        if name in ("arguments", "keywords", "attributes"):
            continue
        arguments[name] = _another(random, call, name)
        known = known and name != "indices" and not (call.function == "max_pool_grad" and name != "out")
    return replace(call, arguments=arguments, known=known, replaced=tuple(chosen))


def _another(random: Random, call: Call, name: str) -> Any:
    valid = call.arguments.get(name)
    if name in _FLAGS or (name == "residual" and call.function == "explain"):
        return random.choice((True, False, 0, 1, 2, None, "", "x", [], [1], 1.5, object(), np.True_))
    if name in ("out", "residual"):
        return _another_result(random, call, valid)
    if name in _ARRAYS or name in ("a", "w"):
        likely = isinstance(valid, np.ndarray) and random.random() < 0.9
        array = valid if likely else np.ones((1,) * random.randint(0, 5), random.choice(_SUMS))
        return hostile.instead_of(array, random)
    if name in _INTS:
        return hostile.sequence(random, valid, call.rank * (2 if name == "pads" else 1))
    if name in _NUMBERS:
        return hostile.number(random)
    if name == "activation":
        return hostile.activation(random)
    return hostile.text(random)


def _another_result(random: Random, call: Call, valid: Any) -> Any:
    """Return an ``out`` or residual of another kind, or one that shares memory with an input."""
    arrays = [value for value in call.arguments.values() if isinstance(value, np.ndarray)]
    array = valid if isinstance(valid, np.ndarray) else random.choice(arrays or [np.ones((1, 1, 3), np.float32)])
    turn = random.random()
    if turn < 0.2:
        return array
    if turn < 0.3:
        return random.choice(((array, array), (array, None), [array, array], (array,), (None, None), (array, 5), ()))
    return hostile.instead_of(array, random)


def _with_large_axis(random: Random, call: Call) -> Call:
    """Give x a huge axis with stride 0, and strides and dilations to match."""
    x = call.arguments["x"]
    axis = random.randrange(call.rank)
    shape = list(x.shape)
    shape[axis + (1 if call.arguments.get("layout") == "NHWC" else 2)] = extent = 2 ** random.choice((20, 31, 33, 40))
    try:
        arguments = {**call.arguments, "x": np.broadcast_to(np.ones((), x.dtype), shape)}
    except ValueError:
        return call
    for name in ("auto_pad", "pads", "out", "residual"):
        arguments.pop(name, None)
    arguments["strides"] = [extent // random.choice((1, 2, 3)) if a == axis else 1 for a in range(call.rank)]
    return replace(call, arguments=arguments, known=False)


# ---------------------------------------------------------------- expected results


def _plain(name: str, value: Any) -> Any:
    """Convert an argument for the oracle; raises TypeError if that is impossible."""
    if name in _PER_AXIS:
        with contextlib.suppress(TypeError):
            return operator.index(value)
    if name in _INTS:
        return None if value is None else [operator.index(each) for each in value]
    if name in _NUMBERS:
        return operator.index(value)
    if name == "auto_pad":
        return bytes(value).decode() if isinstance(value, bytes | bytearray) else str(value)
    return value


class _Unknown(Exception):
    """The result of a call cannot be determined in a short time."""


def _expected(call: Call, given: dict[str, Any]) -> list[Any]:
    """Return the results of a call on these arguments, by definition."""
    try:
        attributes = {name: _plain(name, given[name]) for name in (*_INTS, *_NUMBERS, "auto_pad") if name in given}
    except TypeError as error:
        raise Wrong(f"{call.function} accepts what is no integer", str(error)) from error
    if not call.known or _largest(attributes) > 64:
        raise _Unknown
    layout = given.get("layout", "NCHW")
    arrays = {name: _first(name, layout, value) for name, value in given.items() if name in _ARRAYS and name != "out"}
    rank = next(array.ndim for array in arrays.values() if array is not None) - 2
    for name in _PER_AXIS:
        if isinstance(attributes.get(name), int):
            attributes[name] = [attributes[name]] * (2 * rank if name == "pads" else rank)
    shapes = [array.shape for array in arrays.values() if array is not None]
    if sum(map(math.prod, shapes)) > 2**13 or max(map(sum, shapes)) > 2**10:
        raise _Unknown
    results = _DEFINITIONS[call.function](call.function, arrays, attributes, given)
    keeps = call.function.endswith(("bias_grad", "weight_grad"))
    return [result if keeps else _last(layout, result) for result in results]


def _largest(attributes: dict[str, Any]) -> int:
    """Return the largest magnitude among the attributes; shapes are bounded by the arrays."""
    numbers = [0]
    for value in attributes.values():
        numbers += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return max(map(abs, numbers))


def _first(name: str, layout: str, value: Any) -> Any:
    """Return an array as a NumPy array with channels second."""
    if value is None:
        return None
    array = np.asarray(value.array if isinstance(value, hostile.Shares) else value)
    return np.moveaxis(array, -1, 1) if layout == "NHWC" and name not in ("w", "b") and array.ndim > 2 else array


def _by_parts(function: Callable[..., Any], first: Any, second: Any) -> Any:
    """Return the exact value of a bilinear function; complex arrays are split into real and imaginary parts."""
    if first.dtype.kind != "c":
        return function(first, second).value
    real = function(first.real, second.real).value - function(first.imag, second.imag).value
    return real + 1j * (function(first.real, second.imag).value + function(first.imag, second.real).value)


def _rounded(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if dtype.kind == "c" else round_to(value, dtype)


def _of_conv(name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    x, w, b = arrays["x"], arrays["w"], arrays.get("b")
    value = _by_parts(lambda x, w: getattr(oracle, name)(x, w, None, **attributes), x, w)
    if b is not None:
        value = value + b.astype(np.complex128 if b.dtype.kind == "c" else np.float64).reshape(-1, *[1] * (x.ndim - 2))
    residual, activation = arrays.get("residual"), given.get("activation")
    if residual is None and activation is None:
        return [_rounded(value, x.dtype)]
    if x.dtype.kind == "c":
        return [(value + residual).astype(x.dtype)]
    if type(activation) is tuple and not all(type(each) in (str, int, float, type(None)) for each in activation):
        raise _Unknown
    if activation not in ACTIVATIONS:
        raise _Unknown
    return [finished(value.astype(accumulator(x.dtype)), residual, activation).astype(x.dtype)]


def _of_max_pool(name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    y, indices = oracle.max_pool(arrays["x"], **attributes)
    return [y, indices] if given.get("return_indices") else [y]


def _forward(name: str, arrays: dict[str, Any], attributes: dict[str, Any], layout: str) -> Problem:
    attributes = dict(attributes)
    x_shape, w_shape = attributes.pop("x_shape", None), attributes.pop("w_shape", None)
    if x_shape is not None:
        x_shape = (x_shape[0], x_shape[-1], *x_shape[1:-1]) if layout == "NHWC" else x_shape
    x_shape = tuple(arrays["x"].shape if x_shape is None else x_shape)
    w_shape = tuple(arrays["w"].shape if w_shape is None else w_shape)
    return Problem("conv_transpose" if "transpose" in name else "conv", x_shape, w_shape, attributes=attributes)


def _of_gradient(name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    dy = arrays["dy"]
    if name.endswith("bias_grad"):
        parts = [bias_grad(part).value for part in ((dy.real, dy.imag) if dy.dtype.kind == "c" else (dy,))]
        return [_rounded(parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0], dy.dtype)]
    problem = _forward(name, arrays, attributes, given.get("layout", "NCHW"))
    if math.prod(problem.x_shape[2:]) * math.prod(problem.w_shape[2:]) > 2**12:  # type: ignore[index]
        raise _Unknown
    if name.endswith("input_grad"):
        return [_rounded(_by_parts(lambda dy, w: input_grad(problem, dy, w), dy, arrays["w"]), dy.dtype)]
    return [_rounded(_by_parts(lambda x, dy: weight_grad(problem, x, dy), arrays["x"], dy), dy.dtype)]


def _of_max_pool_grad(
    name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]
) -> list[Any]:
    x_shape = tuple(attributes["x_shape"])
    if given.get("layout") == "NHWC":
        x_shape = (x_shape[0], x_shape[-1], *x_shape[1:-1])
    dy = arrays["dy"]
    exact = max_pool_grad(dy, arrays["indices"], x_shape, attributes.get("storage_order", 0))
    return [round_to(exact.value, dy.dtype)]


def _of_average(name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    (array,) = arrays.values()
    attributes = dict(attributes)
    x_shape = tuple(attributes.pop("x_shape", array.shape))
    if given.get("layout") == "NHWC" and name.endswith("_grad"):
        x_shape = (x_shape[0], x_shape[-1], *x_shape[1:-1])
    if name.startswith("global"):
        attributes = {"kernel_shape": [max(n, 1) for n in x_shape[2:]]}
        if 0 in x_shape:  # there may still be outputs
            raise _Unknown
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    if not name.endswith("_grad"):
        values = [oracle.average_pool(part, **attributes).value for part in parts]
    else:
        counts = oracle.counted_taps(x_shape[2:], **attributes)
        if math.prod(x_shape) > 2**10 or (counts & (counts - 1)).any():  # divisors that are not powers of two
            raise _Unknown
        values = [average_pool_grad(part, x_shape, **attributes).value for part in parts]
    return [_rounded(values[0] + 1j * values[1] if len(parts) == 2 else values[0], array.dtype)]


def _of_max_unpool(name: str, arrays: dict[str, Any], attributes: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    y, rank = arrays["y"], arrays["y"].ndim - 2
    kernel, strides = attributes["kernel_shape"], attributes.get("strides") or [1] * rank
    pads = attributes.get("pads") or [0] * 2 * rank
    axes = zip(strides, y.shape[2:], kernel, pads[:rank], pads[rank:], strict=True)
    numbered = tuple(s * (q - 1) + k - b - e for s, q, k, b, e in axes)
    wanted = attributes.get("output_shape")
    spatial = numbered if wanted is None else tuple(wanted[-rank:])
    return [max_unpool(y, arrays["indices"], (*y.shape[:2], *numbered), (*y.shape[:2], *spatial))]


_DEFINITIONS: dict[str, Callable[..., list[Any]]] = {
    "conv": _of_conv,
    "conv_transpose": _of_conv,
    "max_pool": _of_max_pool,
    "max_pool_grad": _of_max_pool_grad,
    "max_unpool": _of_max_unpool,
    **dict.fromkeys(_AVERAGES, _of_average),
    **dict.fromkeys(_GRADIENTS, _of_gradient),
}


# ---------------------------------------------------------------- the work of a call


def _too_long(call: Call, given: dict[str, Any]) -> bool:
    """Return whether a call would compute for long; calls that fail, even for lack of memory, do not."""
    if call.function not in OPERATORS:
        return False
    entry = OPERATORS[call.function]
    try:
        shapes = [tuple(given[name].shape) for name in entry.inputs if given.get(name) is not None]
        attributes = {name: _plain(name, given[name]) for name in entry.attributes if name in given}
        geometry = entry.geometry(*shapes, layout=given.get("layout", "NCHW"), **attributes)
        made = math.prod(entry.result(geometry))
    except Exception:  # the call itself must report what is wrong
        return False
    taps = math.prod(getattr(geometry, "kernel_shape", ()))
    channels = geometry.w_shape[1] if hasattr(geometry, "w_shape") else 1
    read = max((math.prod(shape) for shape in shapes), default=0)
    per_element = taps * max(1, channels)
    if entry.kernel in ("weight_grad", "bias_grad", "max_pool_grad", "max_unpool"):
        work = max(read, made) * max(1, per_element)
    else:
        work = made * max(1, per_element)
    fails = LIMITS_MEMORY and made > 2 * _MOST_BYTES  # the result cannot be allocated in any dtype
    return work > _MOST_WORK and not fails


# ---------------------------------------------------------------- the check


def _state(value: Any) -> Any:
    """Return the parts of an argument that a call must not change."""
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        content = value.tobytes() if value.size <= _SEVERAL and not value.dtype.hasobject else b""
        return value.shape, value.strides, value.flags.writeable, content
    if isinstance(value, list) and len(value) < 100:
        return [id(each) for each in value]
    if isinstance(value, tuple):
        return [_state(each) for each in value]
    return None


def _results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


class FUZZER(Fuzzer):  # __main__ imports this name
    """Calls the public functions."""

    def case(self, random: Random) -> Call:
        _, names, make = random.choices(_MAKERS, _WEIGHTS)[0]
        call = _with_integers(random, make(random, random.choice(names)))
        if random.random() < 0.2:
            call = replace(call, workspace=str(random.choice((2**14, 2**14, 2**15, 2**18))))
        if random.random() < 0.5:
            return call
        if call.function in ("conv", "max_pool") and random.random() < 0.05:
            return _with_large_axis(random, call)
        return _with_replaced(random, call)

    def check(self, case: Call) -> str:
        if case.workspace:
            os.environ["GPUCONV_WORKSPACE_BYTES"] = case.workspace
        else:
            os.environ.pop("GPUCONV_WORKSPACE_BYTES", None)
        given = self._given(case)
        if _too_long(case, self._given(case)):
            return "too long"
        before = {name: _state(value) for name, value in given.items()}
        try:
            result = _call(case, given)
        except gpuconv.GpuconvError as error:
            _check_error(case, given, error)
            outcome, changes = type(error).__name__, set()
        except MemoryError as error:
            if not _is_large(self._given(case)):
                raise Wrong(f"{case.function}: MemoryError of a small call", str(error)) from error
            return "MemoryError"
        except Planted:
            return "the caller's own error"
        else:
            if (
                case.packed
                and isinstance(given.get("out"), np.ndarray)
                and np.may_share_memory(given["out"], given["w"])
            ):
                return "result into weights"  # the call used a snapshot of the packed weights
            outcome, changes = "result", {"out"}
            self._check_result(case, given, result)
        for name, value in given.items():
            if name not in changes and _state(value) != before[name]:
                raise Wrong(f"{case.function} has changed its argument {name}")
        return outcome

    def _given(self, call: Call) -> dict[str, Any]:
        return {name: fresh(value) for name, value in call.arguments.items()}

    def _check_result(self, call: Call, given: dict[str, Any], result: Any) -> None:
        if call.function not in OPERATORS:
            return
        results = _results(result)
        outs = given.get("out")
        for each, out in zip(results, _results(outs) if outs is not None else [None] * len(results), strict=True):
            if out is not None and each is not out:
                raise Wrong(f"{call.function} does not return its out")
            if out is None and (type(each) is not np.ndarray or not each.flags.c_contiguous):
                raise Wrong(f"{call.function} returns no plain contiguous array", str(type(each)))
        self._compare_again(call, results)
        try:
            with np.errstate(all="ignore"):
                expected = _expected(call, self._given(call))
        except _Unknown:
            return
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"{call.function} accepts what its definition does not", f"{error}") from error
        _compare(call.function, results, expected)

    def _compare_again(self, call: Call, results: list[Any]) -> None:
        if sum(each.size for each in results) > _SEVERAL:
            return
        before = [each.tobytes() for each in results]
        again = _results(_call(call, self._given(call)))
        if [each.tobytes() for each in again] != before:
            raise Wrong(f"{call.function} gives other bits when it is called again")

    def show(self, case: Call) -> str:
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in case.arguments.items())
        packed = "  # w packed" if case.packed else ""
        workspace = f"  # GPUCONV_WORKSPACE_BYTES={case.workspace}" if case.workspace else ""
        return f"gpuconv.{case.function}({arguments}){packed}{workspace}"

    def smaller(self, case: Call) -> Iterator[Call]:
        if case.packed or case.workspace:
            yield replace(case, packed=False, workspace="")
        for name in case.arguments:
            if name not in ("x", "w", "dy", "indices", "y", "kernel_shape"):
                yield replace(case, arguments={key: value for key, value in case.arguments.items() if key != name})


def _call(call: Call, given: dict[str, Any]) -> Any:
    given = dict(given)
    if call.packed and isinstance(given.get("w"), np.ndarray):
        given["w"] = gpuconv.pack(given["w"], call.function)
    arguments = [given.pop("operator")] if call.function in ("explain", "tune") and "operator" in given else []
    with contextlib.redirect_stdout(io.StringIO()) if call.function == "explain" else contextlib.nullcontext():
        return getattr(gpuconv, call.function)(*arguments, **given)


def _is_large(given: dict[str, Any]) -> bool:
    """Return whether a call may need more memory than there is."""
    for name, value in given.items():
        if isinstance(value, np.ndarray) and max(value.shape, default=0) > 2**16:
            return True
        with contextlib.suppress(TypeError, ValueError, Planted):
            if name in (*_INTS, *_NUMBERS) and _largest({name: _plain(name, value)}) > 2**16:
                return True
    return False


_PREFIXES = (
    *OPERATORS, *(entry.kernel for entry in OPERATORS.values()), "pack", "to_host", "to_device", "precision", "explain",
    "tune",
)  # fmt: skip


def _check_error(call: Call, given: dict[str, Any], error: gpuconv.GpuconvError) -> None:
    message = str(error)
    devices = call.function in ("to_device", "tune") or any(
        isinstance(value, hostile.BadInterface | hostile.BadDlpack) for value in given.values()
    )
    allowed = (gpuconv.ArgumentError, gpuconv.ArgumentTypeError, *((gpuconv.DeviceError,) if devices else ()))
    if type(error) not in allowed:
        raise Wrong(f"{call.function} raises {type(error).__name__}", message) from error
    if len(message) > LONGEST:
        raise Wrong("a message of too many characters", f"{len(message)}: {message[:200]}") from error
    if not message.isprintable():
        raise Wrong("a message that is no line of printable characters", repr(message)) from error
    if not devices and not message.startswith(tuple(f"{name}: " for name in _PREFIXES)):
        raise Wrong("a message that names no function", message) from error


def _compare(name: str, results: list[Any], expected: list[Any]) -> None:
    for got, want in zip(map(np.asarray, results), expected, strict=True):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise Wrong(
                f"{name} gives another shape or dtype", f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
            )
        with np.errstate(all="ignore"):
            wrong = ~((got == want) | ((got != got) & (want != want)))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise Wrong(f"{name} gives another value", f"{got[at]!r} at {at}, not {want[at]!r}")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 6:
        strides = "" if value.flags.c_contiguous else f", strides {value.strides}"
        writeable = "" if value.flags.writeable else ", read-only"
        kind = "" if type(value) is np.ndarray else f"{type(value).__name__} "
        return f"<{kind}{value.dtype} {value.shape}{strides}{writeable}>"
    return hostile.shown(value)
