"""Everything that is refused: the type of the error, its whole message, and nothing allocated or written before it."""

from __future__ import annotations

import ast
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from refusals import REFUSALS, Refusal

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError, DeviceError, _api, _arrays, _dtypes, _geometry
from gpuconv.cuda import device

ONE_LIBRARY = "move them to one side with gpuconv.to_device or gpuconv.to_host"
FLOATS = "float16, bfloat16, float32, float64"


def array(*shape: int, dtype: Any = np.float32) -> Any:
    """An array of any size that takes the memory of one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def elsewhere(module: str, *shape: int, name: str = "ndarray") -> Any:
    """An object that another library might hand in as its array."""
    members = {
        "__module__": module,
        "shape": shape,
        "dtype": np.dtype(np.float32),
        "__array__": lambda *_: np.zeros(shape),
    }
    return type(name, (), members)()


X, W, Y = array(1, 4, 5, 6), array(4, 4, 3, 2), (1, 4, 3, 5)
CUPY_X, CUPY_W = elsewhere("cupy", 1, 4, 5, 6), elsewhere("cupy.ndarray", 4, 4, 3, 2)
SWAPPED = np.dtype(np.float32).newbyteorder("S")


@dataclass(frozen=True)
class Wrong:
    """A call that must raise, the exact type of its error, and the message."""

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    message: str


def _refused(row: Refusal) -> Wrong:
    arrays = [None if shape is None else array(*shape) for shape in row.problem.shapes]
    function = getattr(gpuconv, row.problem.operator)
    error = ArgumentError if row.kind == "value" else ArgumentTypeError
    return Wrong(row.name, lambda: function(*arrays, **row.problem.attributes), error, row.message)


def _no_array(name: str, thing: Any, kind: str) -> list[Wrong]:
    rest = f"must be a NumPy or CuPy array, not {kind}"
    return [
        Wrong(f"{name} for x", lambda: gpuconv.conv(thing, W), ArgumentTypeError, f"conv: x {rest}"),
        Wrong(
            f"{name} for w", lambda: gpuconv.conv_transpose(X, thing), ArgumentTypeError, f"conv_transpose: w {rest}"
        ),
        Wrong(
            f"{name} to pool",
            lambda: gpuconv.max_pool(thing, kernel_shape=[1]),
            ArgumentTypeError,
            f"max_pool: x {rest}",
        ),
        Wrong(f"{name} to the device", lambda: gpuconv.to_device(thing), ArgumentTypeError, f"to_device: a {rest}"),
        Wrong(f"{name} to the host", lambda: gpuconv.to_host(thing), ArgumentTypeError, f"to_host: a {rest}"),
    ]


NO_ARRAYS = [
    *_no_array("a list", [[[1.0]]], "builtins.list"),
    *_no_array("a number", 1.0, "builtins.float"),
    *_no_array("None", None, "builtins.NoneType"),
    *_no_array("a NumPy scalar", np.float32(1), "numpy.float32"),
    *_no_array("a masked array", np.ma.zeros((1, 4, 5, 6)), "numpy.ma.MaskedArray"),
    *_no_array("a torch tensor", elsewhere("torch", 1, 4, 5, 6, name="Tensor"), "torch.Tensor"),
    *_no_array("an ndarray of another library", elsewhere("cupyx", 1, 4, 5, 6), "cupyx.ndarray"),
    *_no_array("a sparse matrix of CuPy's", elsewhere("cupy.sparse", 1, 4, name="csr"), "cupy.sparse.csr"),
    Wrong(
        "a list for b",
        lambda: gpuconv.conv(X, W, [0.0] * 4),
        ArgumentTypeError,
        "conv: b must be a NumPy or CuPy array, not builtins.list",
    ),
    Wrong(
        "a list for out",
        lambda: gpuconv.conv(X, W, out=[]),
        ArgumentTypeError,
        "conv: out must be a NumPy or CuPy array, not builtins.list",
    ),
    Wrong(
        "a pair for out without indices",
        lambda: gpuconv.max_pool(X, kernel_shape=[3, 2], out=(None, None)),
        ArgumentTypeError,
        "max_pool: out must be a NumPy or CuPy array, not builtins.tuple",
    ),
]

LIBRARIES = [
    Wrong(
        "CuPy's x and NumPy's w",
        lambda: gpuconv.conv(CUPY_X, W),
        ArgumentTypeError,
        f"conv: x is a CuPy array, w is a NumPy array; {ONE_LIBRARY}",
    ),
    Wrong(
        "NumPy's x and w and CuPy's b",
        lambda: gpuconv.conv_transpose(X, W, CUPY_X),
        ArgumentTypeError,
        f"conv_transpose: x is a NumPy array, w is a NumPy array, b is a CuPy array; {ONE_LIBRARY}",
    ),
    Wrong(
        "CuPy's out for NumPy's x",
        lambda: gpuconv.max_pool(X, kernel_shape=[3, 2], out=CUPY_X),
        ArgumentTypeError,
        f"max_pool: out is a CuPy array, x is a NumPy array; {ONE_LIBRARY}",
    ),
    *(
        Wrong(
            f"CuPy arrays for {operator}",
            call,
            DeviceError,
            f"{operator}: this version computes on the CPU only; pass NumPy arrays, or move CuPy arrays with gpuconv.to_host",
        )
        for operator, call in (
            ("conv", lambda: gpuconv.conv(CUPY_X, CUPY_W)),
            ("conv_transpose", lambda: gpuconv.conv_transpose(CUPY_X, CUPY_W)),
            ("max_pool", lambda: gpuconv.max_pool(CUPY_X, kernel_shape=[1, 1])),
        )
    ),
]


def _dtype(operator: str, dtype: Any, shown: str) -> Wrong:
    x, w = array(1, 4, 5, 6, dtype=dtype), array(4, 4, 3, 2, dtype=dtype)
    if operator == "max_pool":
        message = f"max_pool: x has dtype {shown}, but must be one of {FLOATS}, int8, uint8"
        return Wrong(
            f"{shown} for max_pool", lambda: gpuconv.max_pool(x, kernel_shape=[1, 1]), ArgumentTypeError, message
        )
    message = f"{operator}: x has dtype {shown}, but must be one of {FLOATS}"
    return Wrong(f"{shown} for {operator}", lambda: getattr(gpuconv, operator)(x, w), ArgumentTypeError, message)


DTYPES = [
    *(
        _dtype(operator, dtype, dtype)
        for operator in ("conv", "conv_transpose", "max_pool")
        for dtype in ("complex64", "int32", "int64", "bool", "object", "longdouble", "datetime64[s]")
        if dtype != "longdouble"
    ),
    *(_dtype(operator, dtype, dtype) for operator in ("conv", "conv_transpose") for dtype in ("int8", "uint8")),
    Wrong(
        "w of another dtype",
        lambda: gpuconv.conv(X, array(4, 4, 3, 2, dtype=np.float64)),
        ArgumentTypeError,
        "conv: w has dtype float64, but x has float32; all arrays must share one dtype",
    ),
    Wrong(
        "b of another dtype",
        lambda: gpuconv.conv_transpose(X, W, array(4, dtype=np.float16)),
        ArgumentTypeError,
        "conv_transpose: b has dtype float16, but x has float32; all arrays must share one dtype",
    ),
    Wrong(
        "the byte order of another machine",
        lambda: gpuconv.max_pool(X.astype(SWAPPED), kernel_shape=[1, 1]),
        ArgumentTypeError,
        f"max_pool: x has the byte order of another machine ({SWAPPED.str}); pass x.astype(x.dtype.newbyteorder('='))",
    ),
    Wrong(
        "two byte orders",
        lambda: gpuconv.conv(X, W.astype(SWAPPED)),
        ArgumentTypeError,
        f"conv: w has dtype {SWAPPED}, but x has float32; all arrays must share one dtype",
    ),
]


def _shared(out: Any) -> Any:
    return out.reshape(-1)[: X.size].reshape(X.shape)


def _out(name: str, out: Any, message: str, error: type[Exception] = ArgumentError, x: Any = X) -> Wrong:
    return Wrong(f"out {name}", lambda: gpuconv.conv(x, W, out=out), error, f"conv: out {message}")


def _pair(name: str, out: Any, message: str, error: type[Exception] = ArgumentError) -> Wrong:
    def call() -> Any:
        return gpuconv.max_pool(X, kernel_shape=[3, 2], return_indices=True, out=out)

    return Wrong(f"the pair {name}", call, error, f"max_pool: {message}")


BUFFER = np.zeros(200, np.float32)
PAIR = "with return_indices=True, out must be a pair (y, indices)"
LONGS = np.zeros(Y, np.int64)
OUTS = [
    _out(
        "of another shape",
        np.zeros((1, 4, 5, 3), np.float32),
        "must have the result's shape (1, 4, 3, 5), not (1, 4, 5, 3)",
    ),
    _out("of another rank", np.zeros(60, np.float32), "must have the result's shape (1, 4, 3, 5), not (60,)"),
    _out("of another dtype", np.zeros(Y), "must have the result's dtype float32, not float64", ArgumentTypeError),
    _out(
        "in another byte order",
        np.zeros(Y, SWAPPED),
        f"must have the result's dtype float32, not {SWAPPED}",
        ArgumentTypeError,
    ),
    _out(
        "that is read-only",
        np.asarray(np.zeros(Y, np.float32).data.toreadonly()),
        "is read-only; pass a writeable array",
    ),
    _out(
        "that repeats its memory",
        np.lib.stride_tricks.as_strided(BUFFER, Y, (0, 4, 0, 16)),
        "repeats its own memory (strides (0, 4, 0, 16)); pass an array of its own",
    ),
    _out(
        "that is part of x", BUFFER[:60].reshape(Y), "shares memory with x; pass an array of its own", x=_shared(BUFFER)
    ),
    _pair("that is one array", np.zeros(Y, np.float32), PAIR, ArgumentTypeError),
    _pair("of three", (None, None, None), PAIR, ArgumentTypeError),
    _pair("that is a list", [None, None], PAIR, ArgumentTypeError),
    _pair(
        "with y of another shape",
        (LONGS, None),
        "out[0] must have the result's dtype float32, not int64",
        ArgumentTypeError,
    ),
    _pair(
        "with indices of another dtype",
        (None, LONGS.astype(np.int32)),
        "out[1] must have the result's dtype int64, not int32",
        ArgumentTypeError,
    ),
    _pair(
        "with indices of another shape",
        (None, LONGS[0]),
        "out[1] must have the result's shape (1, 4, 3, 5), not (4, 3, 5)",
    ),
    _pair(
        "of two views of one memory",
        (LONGS.view(np.float32)[..., ::2], LONGS),
        "out[1] shares memory with y; pass an array of its own",
    ),
]

WRONGS = [*map(_refused, REFUSALS), *NO_ARRAYS, *LIBRARIES, *DTYPES, *OUTS]
every_wrong_call = pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.name)


@every_wrong_call
def test_the_error_has_its_type_and_names_the_rule_and_the_numbers(wrong: Wrong) -> None:
    with pytest.raises(wrong.error) as caught:
        wrong.call()
    assert type(caught.value) is wrong.error
    assert str(caught.value) == wrong.message


@every_wrong_call
def test_nothing_is_allocated_before_the_error(wrong: Wrong) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(wrong.error):
            wrong.call()
        assert tracemalloc.get_traced_memory()[1] < 2**17
    finally:
        tracemalloc.stop()


def test_the_names_of_the_wrong_calls_are_unique() -> None:
    assert len({wrong.name for wrong in WRONGS}) == len(WRONGS)


# ---------------------------------------------------------------- no raise without a test


def _raise_statements(module: ModuleType) -> set[tuple[str, int, int]]:
    path = str(module.__file__)
    nodes = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    return {(path, node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, ast.Raise)}


def _raised_at(wrong: Wrong) -> tuple[str, int]:
    with pytest.raises(wrong.error) as caught:
        wrong.call()
    innermost = caught.traceback[-1]
    return str(innermost.path), innermost.lineno + 1


@pytest.mark.parametrize("module", [_api, _arrays, _dtypes, _geometry], ids=lambda module: module.__name__)
def test_every_raise_statement_is_reached_by_a_wrong_call(module: ModuleType) -> None:
    reached = [_raised_at(wrong) for wrong in WRONGS]
    missed = {
        f"{Path(path).name}:{first}"
        for path, first, last in _raise_statements(module)
        if not any(path == where and first <= line <= last for where, line in reached)
    }
    assert missed == set()


# ---------------------------------------------------------------- what Python itself refuses


@pytest.mark.parametrize("typo", ["stride", "padding", "groups", "dilation", "autopad", "return_indices", "ceil_mode"])
def test_a_misspelt_attribute_of_conv_is_an_error(typo: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
        gpuconv.conv(X, W, **{typo: 1})


@pytest.mark.parametrize("typo", ["group", "kernel", "stride", "output_shape", "indices"])
def test_a_misspelt_attribute_of_max_pool_is_an_error(typo: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
        gpuconv.max_pool(X, kernel_shape=[1, 1], **{typo: 1})


def test_attributes_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.conv(X, W, None, "SAME_UPPER")  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional argument"):
        gpuconv.max_pool(X, [3, 2])  # type: ignore[misc]
    with pytest.raises(TypeError, match="kernel_shape"):
        gpuconv.max_pool(X)  # type: ignore[call-arg]


# ---------------------------------------------------------------- out, and the device


def test_an_out_stays_as_it_was_where_the_call_is_refused() -> None:
    out = np.full((1, 4, 3, 5), 7, np.float32)
    for arguments in ({"strides": [0, 0]}, {"b": array(3)}, {"group": 3}):
        with pytest.raises(ArgumentError):
            gpuconv.conv(X, W, out=out, **arguments)
    with pytest.raises(ArgumentTypeError):
        gpuconv.max_pool(X, kernel_shape=[3, 2], return_indices=True, out=(out, LONGS.astype(np.int8)))
    assert (out == 7).all()


def test_an_out_is_refused_where_sharing_cannot_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_hard(*_: Any, **__: Any) -> bool:
        raise np.exceptions.TooHardError("too hard")

    monkeypatch.setattr(np, "shares_memory", too_hard)
    with pytest.raises(ArgumentError, match="out shares memory with x"):
        gpuconv.conv(X, W, out=np.zeros(Y, np.float32))


@pytest.mark.skipif(device.unavailable_reason() is None, reason="there is a CUDA device")
@pytest.mark.parametrize("move", [lambda: gpuconv.to_device(X), lambda: gpuconv.to_host(CUPY_X)], ids=["there", "back"])
def test_moving_without_a_device_says_why(move: Callable[[], Any]) -> None:
    with pytest.raises(DeviceError) as caught:
        move()
    reason = re.escape(str(device.unavailable_reason()))
    assert re.fullmatch(
        rf"no CUDA device was found \({reason}\); pass NumPy arrays to run on the CPU", str(caught.value)
    )


def test_errors_are_the_usual_ones_too() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    assert issubclass(DeviceError, RuntimeError)
    assert issubclass(gpuconv.OutOfDeviceMemory, (DeviceError, MemoryError))
    assert issubclass(gpuconv.CompileError, DeviceError)
    assert all(issubclass(error, gpuconv.GpuconvError) for error in (ArgumentError, ArgumentTypeError, DeviceError))
