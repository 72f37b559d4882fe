"""Calls that gpuconv.dask refuses: the type of the error and its whole message, before any block is computed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError
from tests.dask.in_chunks import da
from tests.oracle.every_row import every_row
from tests.rules.refusals import REFUSALS

dask_api = pytest.importorskip("gpuconv.dask")
ROOT = Path(__file__).resolve().parents[2]
W = np.zeros((4, 3, 3, 3), np.float32)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a block was made")


def lazy(*shape: int, chunks: Any = -1, dtype: Any = np.float32) -> Any:
    """Return a dask array whose blocks raise when computed."""
    sizes = da.core.normalize_chunks(chunks, shape, dtype=np.dtype(dtype))
    return da.map_blocks(never, chunks=sizes, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))


def unknown(array: Any, axis: int) -> Any:
    """Return the array with sizes along an axis that only a computation can determine."""
    sizes = [(float("nan"),) * len(along) if at == axis else along for at, along in enumerate(array.chunks)]
    return da.Array(array.dask, array.name, tuple(sizes), meta=array._meta)


def test_refusals_are_those_of_arrays_in_memory() -> None:
    with every_row() as row:
        for refusal in REFUSALS:
            problem, error = refusal.problem, ArgumentError if refusal.kind == "value" else ArgumentTypeError
            x, *others = [None if shape is None else np.broadcast_to(np.float32(0), shape) for shape in problem.shapes]
            x = da.zeros(x.shape, chunks=x.shape, dtype=x.dtype)
            with row(refusal.name):
                with pytest.raises(error) as caught:
                    getattr(dask_api, problem.operator)(x, *others, **problem.attributes)
                assert str(caught.value) == refusal.message


X = lazy(2, 3, 9, 8, chunks=(1, 3, 4, 5))
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an array in memory": (lambda: dask_api.conv(np.zeros((1, 3, 9, 8), np.float32), W), ArgumentTypeError,
        "conv: x must be a dask array, not numpy.ndarray; gpuconv.conv takes arrays in memory"),
    "a crop of a block past 64 bits": (
        lambda: dask_api.conv_transpose(
            lazy(1, 1, 2, chunks=1), np.zeros((1, 1, 3), np.float32), dilations=[2**63 - 1], output_shape=[3]
        ),
        ArgumentError,
        f"conv_transpose: a block would crop {2**63} elements along spatial axis 0, which must fit in 64 bits; "
        "pass an array in memory",
    ),
    "a list": (lambda: dask_api.max_pool([1.0], kernel_shape=[1]), ArgumentTypeError,
        "max_pool: x must be a dask array, not builtins.list; gpuconv.max_pool takes arrays in memory"),
    "an array of dask's query planning": (
        lambda: dask_api.conv(type("Array", (), {"__module__": "dask.array._array_expr._collection"})(), W),
        ArgumentTypeError,
        "conv: x must be a dask array, not dask.array._array_expr._collection.Array; "
        "dask's query planning for arrays (array.query-planning) must be off",
    ),
    "unknown sizes": (lambda: dask_api.max_pool(unknown(X, 2), kernel_shape=[3, 3]), ArgumentError,
        "max_pool: the chunks of x have unknown sizes along axis 2 (x.shape=(2, 3, nan, 8)); "
        "call x.compute_chunk_sizes() first"),
    "unknown sizes of w": (lambda: dask_api.conv(X, unknown(da.from_array(W), 0)), ArgumentError,
        "conv: the chunks of w have unknown sizes along axis 0 (w.shape=(nan, 3, 3, 3)); "
        "call w.compute_chunk_sizes() first"),
    "weights in chunks": (lambda: dask_api.conv_transpose(X, lazy(3, 4, 2, 2, chunks=(1, 4, 2, 1))), ArgumentError,
        "conv_transpose: every block of x takes all of w, which is cut into chunks of ((1, 1, 1), (4,), (2,), (1, 1)); "
        "pass w.rechunk(-1)"),
    "a bias in chunks": (lambda: dask_api.conv(X, W, lazy(4, chunks=3)), ArgumentError,
        "conv: every block of x takes all of b, which is cut into chunks of ((3, 1),); pass b.rechunk(-1)"),
    "blocks of another library": (lambda: dask_api.max_pool(da.ma.masked_equal(X, 0), kernel_shape=[2, 2]),
        ArgumentTypeError,
        "max_pool: x must be a NumPy or CuPy array, not numpy.ma.MaskedArray, whose mask would play no part; "
        "pass x.filled(…), or x.data if the mask does not matter"),
    "a w that is no array": (lambda: dask_api.conv(X, [1.0]), ArgumentTypeError,
        "conv: w must be a NumPy or CuPy array, not builtins.list"),
    "a layout of channels last for channels second": (lambda: dask_api.conv(X, W, layout="NHWC"), ArgumentError,
        "conv: x has 8 channels, but w expects 3 per group x group 1 = 3 (x.shape=(2, 3, 9, 8), w.shape=(4, 3, 3, 3)); "
        'pass layout="NCHW" if the channels of x are second'),
    "the name that another library has": (lambda: dask_api.max_pool(X, kernel_size=2), ArgumentTypeError,
        "max_pool: kernel_size is called kernel_shape here, as in ONNX"),
    "integers": (lambda: dask_api.conv(lazy(2, 3, 9, 8, dtype=np.int8), W), ArgumentTypeError,
        "conv: x has dtype int8, but must be one of float16, bfloat16, float32, float64, complex64, complex128"),
    "two dtypes": (lambda: dask_api.conv(X, W, lazy(4, dtype=np.float64)), ArgumentTypeError,
        "conv: b has dtype float64, but x has float32; all arrays must share one dtype"),
    "weights packed for the other operator": (lambda: dask_api.conv_transpose(X, gpuconv.pack(W)), ArgumentError,
        "conv_transpose: w was packed for conv; pack it with gpuconv.pack(w, operator='conv_transpose')"),
    "a residual in memory": (lambda: dask_api.conv(X, W, residual=np.zeros((2, 4, 7, 6), np.float32)),
        ArgumentTypeError,
        "conv: residual must be a dask array, not numpy.ndarray; pass dask.array.from_array(residual)"),
    "a residual of another shape": (lambda: dask_api.conv(X, W, residual=lazy(2, 4, 1, 1)), ArgumentError,
        "conv: residual must have the result's shape (2, 4, 7, 6), not (2, 4, 1, 1)"),
    "a residual in another layout": (
        lambda: dask_api.conv(lazy(2, 9, 8, 3), W, residual=lazy(2, 4, 7, 6), layout="NHWC"),
        ArgumentError,
        "conv: residual must have the result's shape (2, 7, 6, 4), not (2, 4, 7, 6)",
    ),
    "a residual of another dtype": (lambda: dask_api.conv(X, W, residual=lazy(2, 4, 7, 6, dtype=np.float16)),
        ArgumentTypeError, "conv: residual has dtype float16, but x has float32; all arrays must share one dtype"),
    "an unknown activation": (lambda: dask_api.conv(X, W, activation="gelu"), ArgumentError,
        "conv: activation must be one of relu, leaky_relu, clip, not 'gelu'"),
    "no precision": (lambda: dask_api.conv(X, W, precision=""), ArgumentError,
        "conv: precision must be one of ieee, tf32, 3xtf32, not ''"),
    "an unknown precision": (lambda: dask_api.conv(X, W, precision="fp8"), ArgumentError,
        "conv: precision must be one of ieee, tf32, 3xtf32, not 'fp8'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_error_has_its_type_and_says_what_to_do(name: str) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_an_error_in_a_block_comes_out_of_the_computation() -> None:
    y = dask_api.conv(X, W)
    with pytest.raises(AssertionError, match="a block was made"):
        y.compute(scheduler="synchronous")


def test_without_dask_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['dask'] = None; import gpuconv; import gpuconv.dask"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1].startswith("ImportError: gpuconv.dask needs dask (")
    assert done.stderr.endswith("; pip install gpuconv[dask]\n")
