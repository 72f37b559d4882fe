"""A strict fake of CuPy, as far as whole models need it: like CuPy's, its arrays do not mix with NumPy's.

with device_arrays() as device:
    y = backend.prepare(model, "CUDA").run([x])
print(device.to_host)  # the shapes that were copied to the host

Functions compute by NumPy behind the signatures of CuPy 14 (onnx/test_cupy_functions.py compares these with CuPy, where
it is installed); gpuconv's operators run on its CPU backend.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import gpuconv
from gpuconv import cuda
from gpuconv.rules.operators import OPERATORS

UFUNCS = [
    *("abs", "ceil", "exp", "expm1", "floor", "fmax", "fmin", "left_shift", "log", "log1p", "maximum", "minimum"),
    *("power", "right_shift", "rint", "sqrt", "square", "tanh"),
]
FUNCTIONS: dict[str, str] = {  # CuPy's signatures
    "arange": "start, stop=None, step=1, dtype=None",
    "argmax": "a, axis=None, dtype=None, out=None, keepdims=False",
    "argmin": "a, axis=None, dtype=None, out=None, keepdims=False",
    "argsort": "a, axis=-1, kind=None",
    "asarray": "a, dtype=None, order=None, *, copy=None, blocking=False",
    "ascontiguousarray": "a, dtype=None",
    "broadcast_to": "array, shape",
    "concatenate": "tup, axis=0, out=None, *, dtype=None, casting='same_kind'",
    "expand_dims": "a, axis",
    "full": "shape, fill_value, dtype=None, order='C'",
    "matmul": "",
    "max": "a, axis=None, out=None, keepdims=False",
    "mean": "a, axis=None, dtype=None, out=None, keepdims=False",
    "min": "a, axis=None, out=None, keepdims=False",
    "ones": "shape, dtype=float, order='C'",
    "pad": "array, pad_width, mode='constant', **kwargs",
    "prod": "a, axis=None, dtype=None, out=None, keepdims=False",
    "repeat": "a, repeats, axis=None",
    "sum": "a, axis=None, dtype=None, out=None, keepdims=False",
    "take": "a, indices, axis=None, out=None",
    "take_along_axis": "a, indices, axis",
    "tile": "A, reps",
    "where": "condition, x=None, y=None",
    "zeros": "shape, dtype=float, order='C'",
}
METHODS = ["astype", "copy", "reshape", "swapaxes", "transpose"]
_FROM_HOST = ("asarray",)  # the only function that accepts NumPy arrays


class ndarray:  # noqa: N801  # CuPy's name
    """An array on the device; implicit conversion to NumPy is an error."""

    __module__ = "cupy"
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: Any) -> None:
        self._host = np.asarray(host)

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    T = property(lambda self: ndarray(self._host.T))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __bool__(self) -> bool:
        raise AssertionError("the host would wait for the device")

    __float__ = __int__ = __index__ = __iter__ = __bool__  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        return ndarray(self._host[_unwrapped(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[_unwrapped(key)] = _unwrapped(value)


def _method(name: str) -> Callable[..., Any]:
    def method(self: ndarray, *arguments: Any, **keywords: Any) -> Any:
        result = getattr(self._host, name)(*map(_unwrapped, arguments), **keywords)
        return result if result is NotImplemented else ndarray(result)

    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: ndarray, other: Any) -> Any:
        getattr(self._host, name)(_unwrapped(other))
        return self

    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or")
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
for _name in (*METHODS, "__neg__", "__invert__", *(f"__{name}__" for name in (*_ARITHMETIC, *_COMPARISONS))):
    setattr(ndarray, _name, _method(_name))
for _name in _ARITHMETIC:
    setattr(ndarray, f"__r{_name}__", _method(f"__r{_name}__"))
    setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__"))


def _unwrapped(value: Any) -> Any:
    """Return a device array's memory; like CuPy, refuse NumPy arrays but not NumPy scalars."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(map(_unwrapped, value))
    return value


def _function(name: str, signature: inspect.Signature | None) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        if signature is not None:
            signature.bind(*arguments, **keywords)
        if name in _FROM_HOST:
            arguments = tuple(map(_memory, arguments))
        else:
            arguments = tuple(map(_unwrapped, arguments))
            keywords = {key: _unwrapped(value) for key, value in keywords.items()}
        if name == "where" and any(getattr(one, "dtype", None) == "bfloat16" for one in arguments):
            raise TypeError("CuPy 14 has no such loop")
        return ndarray(getattr(np, name)(*arguments, **keywords))

    return call


def _signature(parameters: str) -> inspect.Signature | None:
    return inspect.signature(eval(f"lambda {parameters}: None")) if parameters else None


def _cupy() -> Any:
    module = types.ModuleType("cupy")
    module.ndarray = ndarray  # type: ignore[attr-defined]
    for name in UFUNCS:
        setattr(module, name, _function(name, None))
    for name, parameters in FUNCTIONS.items():
        setattr(module, name, _function(name, _signature(parameters)))
    return module


def _memory(value: Any) -> Any:
    return value._host if isinstance(value, ndarray) else value


@contextmanager
def device_arrays() -> Iterator[Any]:
    """Replace CuPy by this fake for gpuconv.

    Yields a record: ``to_device`` and ``to_host``, the shapes of copied arrays; ``computed``, the operators that ran on
    the device; ``array`` makes a device array, ``memory`` returns the memory of one.
    """
    record = SimpleNamespace(to_device=[], to_host=[], computed=[], array=ndarray, memory=_memory)

    def to_device(array: Any) -> Any:
        record.to_device.append(array.shape)
        return ndarray(np.array(array))

    def to_host(array: Any) -> Any:
        record.to_host.append(array.shape)
        return array._host.copy()

    def empty(*_: Any) -> None:
        raise gpuconv.OutOfDeviceMemory("there are no kernels that would want memory")

    runtime = SimpleNamespace(
        unavailable_reason=lambda: None,
        empty=empty,
        array_type=lambda: ndarray,
        current_device=lambda: 0,
        is_capturing=lambda: False,
        device_of=lambda _: 0,
        to_device=to_device,
        to_host=to_host,
        copied=lambda array, _: ndarray(array._host.copy()),
    )
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, cupy=_cupy()))
        stack.enter_context(mock.patch.object(cuda, "runtime", runtime))
        stack.enter_context(mock.patch.object(cuda, "check_place", return_value=None))
        stack.enter_context(mock.patch.object(cuda, "complete", lambda _, copy: copy()))
        stack.enter_context(mock.patch.object(cuda, "run", partial(_run, record)))
        yield record


def _run(
    record: Any,
    operator: str,
    inputs: tuple[ndarray, ...],
    outs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    layout: str,
    precision: str = "ieee",
    packed: Any = None,
    activation: Any = None,
    residual: bool = False,
    invariant: str | None = None,
) -> list[ndarray]:
    """Replace gpuconv.cuda.run: accept only device arrays, and compute on their memory with the CPU backend."""
    assert outs == (None,) * len(outs)
    assert all(type(array) is ndarray for array in inputs)
    record.computed.append(operator)
    keywords = dict(zip(OPERATORS[operator].attributes, attributes, strict=True))
    if operator == "max_pool":
        keywords["return_indices"] = len(outs) == 2
    if activation is not None:
        clips = activation.slope == 1
        keywords["activation"] = (
            ("clip", activation.low, activation.high) if clips else ("leaky_relu", activation.slope)
        )
    if operator in ("conv", "conv_transpose"):
        keywords["invariant"] = invariant
    arrays = [array._host for array in inputs]
    if residual:
        keywords["residual"] = arrays.pop()
    result = getattr(gpuconv, operator)(*arrays, layout=layout, **keywords)
    return list(map(ndarray, result)) if isinstance(result, tuple) else [ndarray(result)]
