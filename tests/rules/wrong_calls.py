"""Every wrong call of a public function, with the exact type of its error and the whole message."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError
from tests.rules.refusals import REFUSALS, Refusal

ONE_LIBRARY = "move them to one side with gpuconv.to_device or gpuconv.to_host"
FLOATS = "float16, bfloat16, float32, float64"
NUMBERS = f"{FLOATS}, complex64, complex128"


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
CUPY_X = elsewhere("cupy", 1, 4, 5, 6)
SWAPPED = np.dtype(np.float32).newbyteorder("S")


def with_cupy(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function while CUPY_X is of the class that CuPy, which seems to be imported, has for its arrays.

    `mock.patch.dict` would copy all of `sys.modules`: memory that calls are measured by.
    """
    imported = sys.modules.get("cupy")
    sys.modules["cupy"] = SimpleNamespace(ndarray=type(CUPY_X))  # type: ignore[assignment]
    try:
        return function(*arguments, **keywords)
    finally:
        if imported is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = imported


class Foreign:
    """Another library's array."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@dataclass(frozen=True)
class Wrong:
    """A call that must raise, the exact type of its error, and the message."""

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    message: str


def _refused(row: Refusal) -> Wrong:
    arrays = [None if shape is None else array(*shape) for shape in row.problem.shapes]
    error = ArgumentError if row.kind == "value" else ArgumentTypeError

    def call() -> Any:
        return getattr(gpuconv, row.problem.operator)(*arrays, **row.problem.attributes)

    return Wrong(row.name, call, error, row.message)


def _no_array(name: str, thing: Any, kind: str, advice: str = "") -> list[Wrong]:
    def refused(suffix: str, call: Callable[[], Any], function: str, argument: str) -> Wrong:
        message = f"{function}: {argument} must be a NumPy or CuPy array, not {kind}{advice.format(argument)}"
        return Wrong(f"{name} {suffix}", call, ArgumentTypeError, message)

    return [
        refused("for x", lambda: gpuconv.conv(thing, W), "conv", "x"),
        refused("for w", lambda: gpuconv.conv_transpose(X, thing), "conv_transpose", "w"),
        refused("to pool", lambda: gpuconv.max_pool(thing, kernel_shape=[1]), "max_pool", "x"),
        refused("to the device", lambda: gpuconv.to_device(thing), "to_device", "a"),
        refused("to the host", lambda: gpuconv.to_host(thing), "to_host", "a"),
    ]


WHOSE_MASK = ", whose mask would play no part; pass {0}.filled(…), or {0}.data if the mask does not matter"


NO_ARRAYS = [
    *_no_array("a list", [[[1.0]]], "builtins.list"),
    *_no_array("a number", 1.0, "builtins.float"),
    *_no_array("a NumPy scalar", np.float32(1), "numpy.float32"),
    *_no_array("a masked array", np.ma.zeros((1, 4, 5, 6)), "numpy.ma.MaskedArray", WHOSE_MASK),
    *_no_array("a torch tensor", elsewhere("torch", 1, 4, 5, 6, name="Tensor"), "torch.Tensor"),
    *_no_array("an ndarray of another library", elsewhere("cupyx", 1, 4, 5, 6), "cupyx.ndarray"),
    *_no_array("a sparse matrix of CuPy's", elsewhere("cupy.sparse", 1, 4, name="csr"), "cupy.sparse.csr"),
    Wrong("a list for b", lambda: gpuconv.conv(X, W, [0.0] * 4), ArgumentTypeError,
        "conv: b must be a NumPy or CuPy array, not builtins.list"),
    Wrong("a list for out", lambda: gpuconv.conv(X, W, out=[]), ArgumentTypeError,
        "conv: out must be a NumPy or CuPy array, not builtins.list"),
    Wrong("a pair for out without indices", lambda: gpuconv.max_pool(X, kernel_shape=[3, 2], out=(None, None)),
        ArgumentTypeError, "max_pool: out must be a NumPy or CuPy array, not builtins.tuple"),
]  # fmt: skip

LIBRARIES = [
    Wrong("CuPy's x and NumPy's w", lambda: with_cupy(gpuconv.conv, CUPY_X, W), ArgumentTypeError,
        f"conv: x is a CuPy array, w is a NumPy array; {ONE_LIBRARY}"),
    Wrong("NumPy's x and w and CuPy's b", lambda: with_cupy(gpuconv.conv_transpose, X, W, CUPY_X), ArgumentTypeError,
        f"conv_transpose: x is a NumPy array, w is a NumPy array, b is a CuPy array; {ONE_LIBRARY}"),
    Wrong("CuPy's out for NumPy's x", lambda: with_cupy(gpuconv.max_pool, X, kernel_shape=[3, 2], out=CUPY_X),
        ArgumentTypeError, f"max_pool: out is a CuPy array, x is a NumPy array; {ONE_LIBRARY}"),
    Wrong("another library's out", lambda: gpuconv.conv(X, W, out=Foreign()), ArgumentTypeError,
        "conv: out must be a NumPy array, not tests.rules.wrong_calls.Foreign; "
        "pass numpy.from_dlpack(out), which shares its memory"),
]  # fmt: skip


def _dtype(operator: str, dtype: Any, shown: str) -> Wrong:
    x, w = array(1, 4, 5, 6, dtype=dtype), array(4, 4, 3, 2, dtype=dtype)
    if operator == "max_pool":
        message = f"max_pool: x has dtype {shown}, but must be one of {FLOATS}, int8, uint8"
        return Wrong(
            f"{shown} for max_pool", lambda: gpuconv.max_pool(x, kernel_shape=[1, 1]), ArgumentTypeError, message
        )
    message = f"{operator}: x has dtype {shown}, but must be one of {NUMBERS}"
    return Wrong(f"{shown} for {operator}", lambda: getattr(gpuconv, operator)(x, w), ArgumentTypeError, message)


DTYPES = [
    *(
        _dtype(operator, dtype, dtype)
        for operator in ("conv", "conv_transpose", "max_pool")
        for dtype in ("int32", "int64", "bool", "object", "datetime64[s]")
    ),
    _dtype("max_pool", "complex64", "complex64"),
    *(_dtype(operator, dtype, dtype) for operator in ("conv", "conv_transpose") for dtype in ("int8", "uint8")),
    Wrong("w of another dtype", lambda: gpuconv.conv(X, array(4, 4, 3, 2, dtype=np.float64)), ArgumentTypeError,
        "conv: w has dtype float64, but x has float32; all arrays must share one dtype"),
    Wrong("b of another dtype", lambda: gpuconv.conv_transpose(X, W, array(4, dtype=np.float16)), ArgumentTypeError,
        "conv_transpose: b has dtype float16, but x has float32; all arrays must share one dtype"),
    Wrong("the byte order of another machine", lambda: gpuconv.max_pool(X.astype(SWAPPED), kernel_shape=[1, 1]),
        ArgumentTypeError,
        f"max_pool: x has the byte order of another machine ({SWAPPED.str}); pass x.astype(x.dtype.newbyteorder('='))"),
    Wrong("two byte orders", lambda: gpuconv.conv(X, W.astype(SWAPPED)), ArgumentTypeError,
        f"conv: w has dtype {SWAPPED}, but x has float32; all arrays must share one dtype"),
]  # fmt: skip


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
    _out("of another shape", np.zeros((1, 4, 5, 3), np.float32),
        "must have the result's shape (1, 4, 3, 5), not (1, 4, 5, 3)"),
    _out("of another rank", np.zeros(60, np.float32), "must have the result's shape (1, 4, 3, 5), not (60,)"),
    _out("of another dtype", np.zeros(Y), "must have the result's dtype float32, not float64", ArgumentTypeError),
    _out("in another byte order", np.zeros(Y, SWAPPED), f"must have the result's dtype float32, not {SWAPPED}",
        ArgumentTypeError),
    _out("that is read-only", np.asarray(np.zeros(Y, np.float32).data.toreadonly()),
        "is read-only; pass a writeable array"),
    _out("that repeats its memory", np.lib.stride_tricks.as_strided(BUFFER, Y, (0, 4, 0, 16)),
        "repeats its own memory (strides (0, 4, 0, 16)); pass an array of its own"),
    _out("whose rows overlap", np.lib.stride_tricks.as_strided(BUFFER, Y, (240, 60, 16, 4)),
        "repeats its own memory (strides (240, 60, 16, 4)); pass an array of its own"),
    _out("that is part of x", BUFFER[:60].reshape(Y), "shares memory with x; pass an array of its own",
        x=_shared(BUFFER)),
    _pair("that is one array", np.zeros(Y, np.float32), PAIR, ArgumentTypeError),
    _pair("of three", (None, None, None), PAIR, ArgumentTypeError),
    _pair("that is a list", [None, None], PAIR, ArgumentTypeError),
    _pair("with y of another dtype", (LONGS, None), "out[0] must have the result's dtype float32, not int64",
        ArgumentTypeError),
    _pair("with indices of another dtype", (None, LONGS.astype(np.int32)),
        "out[1] must have the result's dtype int64, not int32", ArgumentTypeError),
    _pair("with indices of another shape", (None, LONGS[0]),
        "out[1] must have the result's shape (1, 4, 3, 5), not (4, 3, 5)"),
    _pair("of two views of one memory", (LONGS.view(np.float32)[..., ::2], LONGS),
        "out[1] shares memory with y; pass an array of its own"),
]  # fmt: skip

PRECISIONS = "ieee, tf32, 3xtf32"
PACKED = gpuconv.pack(np.zeros((4, 4, 3, 2), np.float32))
TRANSPOSED = gpuconv.pack(np.zeros((4, 4, 3, 2), np.float32), operator="conv_transpose")
X_LAST = array(1, 5, 6, 4)
MODES = [
    Wrong("a word for invariant that is none", lambda: gpuconv.conv(X, W, invariant="images"), ArgumentError,
        "conv: invariant must be \"batch\" or None, not 'images'"),
    Wrong("a truth for invariant", lambda: gpuconv.conv_transpose(X, W, invariant=True), ArgumentTypeError,
        'conv_transpose: invariant must be "batch" or None, not bool'),
    Wrong("a precision with a typo", lambda: gpuconv.conv(X, W, precision="tf23"), ArgumentError,
        f"conv: precision must be one of {PRECISIONS}, not 'tf23'"),
    Wrong("a number for precision", lambda: gpuconv.conv_transpose(X, W, precision=3), ArgumentTypeError,
        "conv_transpose: precision must be a string, not int"),
    Wrong("a list for precision", lambda: gpuconv.conv(X, W, precision=["tf32"]), ArgumentTypeError,
        "conv: precision must be a string, not list"),
    Wrong("a precision of a context with a typo", lambda: gpuconv.precision("TF32"), ArgumentError,
        f"precision: precision must be one of {PRECISIONS}, not 'TF32'"),
    Wrong("no precision for a context", lambda: gpuconv.precision(None), ArgumentTypeError,
        "precision: precision must be a string, not NoneType"),
    Wrong("out of the other layout", lambda: gpuconv.conv(X_LAST, W, layout="NHWC", out=np.zeros(Y, np.float32)),
        ArgumentError, "conv: out must have the result's shape (1, 3, 5, 4), not (1, 4, 3, 5)"),
    Wrong("a pair of the other layout",
        lambda: gpuconv.max_pool(X_LAST, kernel_shape=[3, 2], layout="NHWC", return_indices=True, out=(None, LONGS)),
        ArgumentError, "max_pool: out[1] must have the result's shape (1, 3, 5, 4), not (1, 4, 3, 5)"),
    Wrong("weights packed for ConvTranspose", lambda: gpuconv.conv(X, TRANSPOSED), ArgumentError,
        "conv: w was packed for conv_transpose; pack it with gpuconv.pack(w, operator='conv')"),
    Wrong("weights packed for Conv", lambda: gpuconv.conv_transpose(X, gpuconv.pack(W)), ArgumentError,
        "conv_transpose: w was packed for conv; pack it with gpuconv.pack(w, operator='conv_transpose')"),
    Wrong("packed weights of another dtype", lambda: gpuconv.conv(array(1, 4, 5, 6, dtype=np.float16), gpuconv.pack(W)),
        ArgumentTypeError, "conv: w has dtype float32, but x has float16; all arrays must share one dtype"),
    Wrong("packed weights of another shape", lambda: gpuconv.conv(array(1, 3, 5, 6), gpuconv.pack(W)), ArgumentError,
        "conv: x has 3 channels, but w expects 4 per group x group 1 = 4 (x.shape=(1, 3, 5, 6), w.shape=(4, 4, 3, 2))"),
    Wrong("packed weights of NumPy's for CuPy's x", lambda: with_cupy(gpuconv.conv, CUPY_X, PACKED), ArgumentTypeError,
        f"conv: x is a CuPy array, w is a NumPy array; {ONE_LIBRARY}"),
    Wrong("packed weights for x", lambda: gpuconv.conv(PACKED, W), ArgumentTypeError,
        "conv: x must be a NumPy or CuPy array, not gpuconv._packed.PackedWeights"),
    Wrong("packing for MaxPool", lambda: gpuconv.pack(W, operator="max_pool"), ArgumentError,
        "pack: operator must be conv or conv_transpose, not 'max_pool'"),
    Wrong("packing a list", lambda: gpuconv.pack([[[1.0]]]), ArgumentTypeError,
        "pack: w must be a NumPy or CuPy array, not builtins.list"),
    Wrong("packing integers", lambda: gpuconv.pack(array(4, 4, 3, dtype=np.int8)), ArgumentTypeError,
        f"conv: w has dtype int8, but must be one of {NUMBERS}"),
    Wrong("packing a matrix", lambda: gpuconv.pack(array(4, 4)), ArgumentError,
        "pack: w must have two axes of channels and at least one spatial axis, but w.shape=(4, 4)"),
    Wrong("pickling packed weights", lambda: pickle.dumps(PACKED), ArgumentTypeError,
        "PackedWeights cannot be pickled or copied; keep w, and pack it where it is needed"),
]  # fmt: skip

RESIDUAL = array(*Y)


def _activation(name: str, given: Any, message: str, error: type[Exception] = ArgumentTypeError) -> Wrong:
    return Wrong(f"activation: {name}", lambda: gpuconv.conv(X, W, activation=given), error, f"conv: {message}")


NAMES = "activation must be one of relu, leaky_relu, clip, not"
FORMS = "activation must be a name, or a tuple of a name and its arguments as ('leaky_relu', 0.1), not"
FUSED = [
    _activation("another case", "ReLU", f"{NAMES} 'ReLU'", ArgumentError),
    _activation("no name", "", f"{NAMES} ''", ArgumentError),
    _activation("an unknown name with arguments", ("elu", 1.0), f"{NAMES} 'elu'", ArgumentError),
    _activation("a list", ["clip", 0, 6], f"{FORMS} list"),
    _activation("a function", np.tanh, f"{FORMS} ufunc"),
    _activation("bytes", b"relu", f"{FORMS} bytes"),
    _activation("an empty tuple", (), f"{FORMS} a tuple of nothing"),
    _activation("arguments alone", (0, 6.0), f"{FORMS} a tuple of int, float"),
    _activation("relu of something", ("relu", 6), "activation relu takes no arguments, but the tuple has 1 of them"),
    _activation("no alpha", ("leaky_relu",), "activation leaky_relu takes alpha, but the tuple has 0 of them"),
    _activation("two alphas", ("leaky_relu", 0, 1), "activation leaky_relu takes alpha, but the tuple has 2 of them"),
    _activation("half a clip", ("clip", 0), "activation clip takes low and high, but the tuple has 1 of them"),
    _activation("text for alpha", ("leaky_relu", "0.1"), "alpha of activation leaky_relu must be a number, not str"),
    _activation("None for alpha", ("leaky_relu", None),
        "alpha of activation leaky_relu must be a number, not NoneType"),
    _activation("truth for a bound", ("clip", True, 6), "low of activation clip must be a number or None, not bool"),
    _activation("a complex bound", ("clip", 0, 6j), "high of activation clip must be a number or None, not complex"),
    _activation("a bound that is NaN", ("clip", float("nan"), 1), "low of activation clip is NaN", ArgumentError),
    _activation("a bound past all floats", ("clip", None, 10**400),
        "high of activation clip does not fit into a float64", ArgumentError),
    Wrong("an activation of complex numbers",
        lambda: gpuconv.conv(X.astype("complex64"), W.astype("complex64"), activation="relu"), ArgumentTypeError,
        "conv: x has dtype complex64, but an activation compares real numbers; pass none"),
    Wrong("a residual of x's shape", lambda: gpuconv.conv(X, W, residual=X), ArgumentError,
        "conv: residual must have the result's shape (1, 4, 3, 5), not (1, 4, 5, 6)"),
    Wrong("a residual to broadcast", lambda: gpuconv.conv_transpose(X, W, residual=array(1, 4, 1, 1)), ArgumentError,
        "conv_transpose: residual must have the result's shape (1, 4, 7, 7), not (1, 4, 1, 1)"),
    Wrong("a residual of the other layout", lambda: gpuconv.conv(X_LAST, W, layout="NHWC", residual=RESIDUAL),
        ArgumentError, "conv: residual must have the result's shape (1, 3, 5, 4), not (1, 4, 3, 5)"),
    Wrong("a residual of another dtype", lambda: gpuconv.conv(X, W, residual=RESIDUAL.astype(np.float64)),
        ArgumentTypeError, "conv: residual has dtype float64, but x has float32; all arrays must share one dtype"),
    Wrong("a list for residual", lambda: gpuconv.conv(X, W, residual=[0.0]), ArgumentTypeError,
        "conv: residual must be a NumPy or CuPy array, not builtins.list"),
    Wrong("NumPy's residual for CuPy's x and w", lambda: with_cupy(gpuconv.conv, CUPY_X, CUPY_X, residual=RESIDUAL),
        ArgumentTypeError, f"conv: x is a CuPy array, residual is a NumPy array; {ONE_LIBRARY}"),
    Wrong("an out that is the residual", lambda: gpuconv.conv(X, W, residual=(own := BUFFER[:60].reshape(Y)), out=own),
        ArgumentError, "conv: out shares memory with residual; pass an array of its own"),
]  # fmt: skip


def _keyword(operator: str, theirs: str, value: Any, message: str) -> Wrong:
    """Return a call with another library's name of an argument, and without the argument itself."""
    arrays = (X,) if operator == "max_pool" else (X, W)
    return Wrong(
        f"{operator} with {theirs}={value}",
        lambda: getattr(gpuconv, operator)(*arrays, **{theirs: value}),
        ArgumentTypeError,
        f"{operator}: {message}",
    )


def _named_as_in_pytorch(operator: str) -> list[Wrong]:
    names = {"stride": "strides", "padding": "pads", "dilation": "dilations", "kernel_size": "kernel_shape"}
    more = {} if operator == "max_pool" else {"groups": "group", "bias": "b"}
    return [
        _keyword(operator, theirs, 2, f"{theirs} is called {ours} here{'' if ours == 'b' else ', as in ONNX'}")
        for theirs, ours in (names | more).items()
    ]


CONV_TAKES = (
    "x, w, b, auto_pad, dilations, group, kernel_shape, pads, strides, layout, precision, invariant, "
    "activation, residual"
)
POOL_TAKES = (
    "x, kernel_shape, auto_pad, ceil_mode, dilations, pads, storage_order, strides, layout, return_indices, indices_in"
)
KEYWORDS = [
    *(wrong for operator in ("conv", "conv_transpose", "max_pool") for wrong in _named_as_in_pytorch(operator)),
    _keyword("conv", "padding", "same", "padding='same' is a matter of auto_pad here, as in ONNX"),
    _keyword("conv", "autopad", 1,
        f"there is no argument 'autopad' (did you mean auto_pad?); it takes {CONV_TAKES}, out"),
    _keyword("conv", "return_indices", 1, f"there is no argument 'return_indices'; it takes {CONV_TAKES}, out"),
    _keyword("max_pool", "groups", 1, f"there is no argument 'groups'; it takes {POOL_TAKES}, out"),
    _keyword("max_pool", "group", 1, f"there is no argument 'group'; it takes {POOL_TAKES}, out"),
    Wrong("MaxPool without a kernel", lambda: gpuconv.max_pool(X), ArgumentTypeError,
        "max_pool: kernel_shape is required, one integer per spatial axis or one for all of them"),
    Wrong("a keyword of two lines", lambda: gpuconv.conv_transpose(X, W, **{"two\nlines": 1}), ArgumentTypeError,
        r"conv_transpose: there is no argument 'two\nlines'; it takes x, w, b, auto_pad, dilations, group, "
        "kernel_shape, output_padding, output_shape, pads, strides, layout, precision, invariant, activation, "
        "residual, out"),
]  # fmt: skip

WRONGS = [*map(_refused, REFUSALS), *NO_ARRAYS, *LIBRARIES, *DTYPES, *OUTS, *MODES, *FUSED, *KEYWORDS]
