"""Functions that CuPy no longer has, and a client that used them, on both backends."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.compat import cudnn
from tests.compat import sigpy_client
from tests.harness.emulated import any_cuda
from tests.oracle.oracle import assert_same

OPTIONS = {"auto_tune": True, "tensor_core": "auto"}
Backend = Callable[[], AbstractContextManager[Any]]
Move = Callable[[Any], Any]


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return any_cuda if request.param == "cuda" else nullcontext


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def move(request: pytest.FixtureRequest) -> Move:
    """Return a function that moves arrays to the memory where they are used."""
    return gpuconv.to_device if request.param == "cuda" else np.copy


def integers(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


# ---------------------------------------------------------------- cupy.cudnn's functions


def test_constants_are_those_of_cudnn_s_header() -> None:
    assert (cudnn.CUDNN_TENSOR_NCHW, cudnn.CUDNN_TENSOR_NHWC) == (0, 1)  # cudnnTensorFormat_t
    modes = ("MAX", "AVERAGE_COUNT_INCLUDE_PADDING", "AVERAGE_COUNT_EXCLUDE_PADDING", "MAX_DETERMINISTIC")
    assert [getattr(cudnn, f"CUDNN_POOLING_{mode}") for mode in modes] == [0, 1, 2, 3]  # cudnnPoolingMode_t


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_write_into_the_arrays_that_they_get(move: Move, last: bool, bias: bool) -> None:
    x, w, gy = integers(0, 2, 4, 7, 6), integers(1, 6, 2, 3, 2), integers(2, 2, 6, 4, 4)
    at = {"pads": [1, 0, 1, 0], "strides": [2, 1], "dilations": [1, 2], "group": 2}
    expected = [
        gpuconv.conv(x, w, integers(3, 6) if bias else None, **at),
        gpuconv.conv_input_grad(gy, w, x.shape, **at) + (integers(4, 1, 4, 1, 1) if bias else 0),
        gpuconv.conv_weight_grad(x, gy, w.shape, **at),
    ]
    turn = (lambda a: np.ascontiguousarray(np.moveaxis(a, 1, -1))) if last else (lambda a: a)
    results = [move(np.full_like(turn(a), np.nan)) for a in expected]
    layouts = {"d_layout": int(last), "w_layout": int(last)}
    where = ((1, 0), (2, 1), (1, 2), 2)
    x, w, gy = (move(turn(a)) for a in (x, w, gy))
    b = move(integers(3, 1, 6, 1, 1)) if bias else None
    assert cudnn.convolution_forward(x, w, b, results[0], *where, **OPTIONS, **layouts) is None
    more = {**OPTIONS, **layouts, "deterministic": True}
    b = move(integers(4, 4)) if bias else None
    assert cudnn.convolution_backward_data(w, gy, b, results[1], *where, **more) is None
    assert cudnn.convolution_backward_filter(x, gy, results[2], *where, **more) is None
    for result, value in zip(results, expected, strict=True):
        assert_same(gpuconv.to_host(result), turn(value))


@pytest.mark.parametrize("windows", [(4, 3), (3, 3)], ids=["as many as begin", "as many as fit"])
def test_pooling_gives_y_and_the_gradient_of_x(move: Move, windows: tuple[int, int]) -> None:
    x, gy = integers(0, 2, 3, 7, 6, dtype=np.float64), integers(1, 2, 3, *windows, dtype=np.float64)
    at = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": int(windows == (4, 3))}
    expected, indices = gpuconv.max_pool(x, **at, return_indices=True)
    y, there = move(np.full_like(expected, np.nan)), move(x)
    assert cudnn.pooling_forward(there, y, (2, 2), (2, 2), (0, 0), cudnn.CUDNN_POOLING_MAX) is y
    gx = cudnn.pooling_backward(there, y, move(gy), (2, 2), (2, 2), (0, 0), cudnn.CUDNN_POOLING_MAX_DETERMINISTIC)
    assert_same(gpuconv.to_host(y), expected)
    assert_same(gpuconv.to_host(gx), gpuconv.max_pool_grad(gy, indices, x.shape, **at))


@pytest.mark.parametrize("windows", [(4, 4), (4, 3)], ids=["as many as begin", "as many as fit"])
@pytest.mark.parametrize("counted", [0, 1])
def test_both_averages_and_their_gradients(move: Move, windows: tuple[int, int], counted: int) -> None:
    x, gy = integers(0, 2, 3, 7, 6, dtype=np.float64), integers(1, 2, 3, *windows, dtype=np.float64)
    at = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": int(windows == (4, 4))}
    mode = cudnn.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
    if counted:
        mode = cudnn.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING
    expected = gpuconv.average_pool(x, **at, count_include_pad=counted)
    y, there = move(np.full_like(expected, np.nan)), move(x)
    assert cudnn.pooling_forward(there, y, (3, 3), (2, 2), (1, 1), mode) is y
    gx = cudnn.pooling_backward(there, y, move(gy), (3, 3), (2, 2), (1, 1), mode)
    assert_same(gpuconv.to_host(y), expected, bits=False)
    wanted = gpuconv.average_pool_grad(gy, x.shape, **at, count_include_pad=counted)
    np.testing.assert_allclose(gpuconv.to_host(gx), wanted, rtol=0, atol=1e-13)
    assert counted or gpuconv.to_host(y)[0, 0, 0, 0] == x[0, 0, :2, :2].mean()


def test_an_integer_stands_for_every_axis(move: Move) -> None:
    """Disjoint windows of two, from the padding before (3, 4) elements to the elements' end or past it."""
    shapes = (3, 4), (2, 2), (2, 3)
    x, w, gy = (move(np.ones((1, 1, *shape), np.float32)) for shape in shapes)
    gx, gw, y = (move(np.zeros((1, 1, *shape), np.float32)) for shape in shapes)
    more = {**OPTIONS, "deterministic": True}
    cudnn.convolution_forward(x, w, None, y, 1, 2, 1, 1, **OPTIONS)
    cudnn.convolution_backward_filter(x, gy, gw, 1, 2, 1, 1, **more)
    assert y[0, 0].tolist() == [[1, 2, 1], [2, 4, 2]]
    assert gw[0, 0].tolist() == [[2, 2], [4, 4]]
    for bias in (None, move(np.full(1, 5, np.float32))):
        cudnn.convolution_backward_data(w, gy, bias, gx, 1, 2, 1, 1, **more)
        assert (gpuconv.to_host(gx) == (1 if bias is None else 6)).all()


@pytest.mark.parametrize("rows", [2, 3], ids=["as many as fit", "as many as begin"])
def test_an_integer_stands_for_every_axis_of_a_pooling(move: Move, rows: int) -> None:
    """Windows of three with stride 2, from one before (4, 5) elements; a third row of them begins inside."""
    x, y = move(np.arange(20.0).reshape(1, 1, 4, 5)), move(np.zeros((1, 1, rows, 3)))
    gy = move(np.arange(1.0, 3 * rows + 1).reshape(y.shape))
    assert cudnn.pooling_forward(x, y, 3, 2, 1, cudnn.CUDNN_POOLING_MAX) is y
    gx = gpuconv.to_host(cudnn.pooling_backward(x, y, gy, 3, 2, 1, cudnn.CUDNN_POOLING_MAX))
    assert y[0, 0].tolist() == [[6, 8, 9], [16, 18, 19], [16, 18, 19]][:rows]
    last = [4, 5, 6] if rows == 2 else [4 + 7, 5 + 8, 6 + 9]
    assert gx[gx != 0].tolist() == [1, 2, 3, *last]
    turned = move(np.zeros((1, 1, 3, rows)))
    cudnn.pooling_forward(x.swapaxes(2, 3), turned, 3, 2, 1, cudnn.CUDNN_POOLING_MAX)
    assert (gpuconv.to_host(turned) == gpuconv.to_host(y).swapaxes(2, 3)).all()


X, W, Y = integers(0, 1, 2, 4), integers(1, 3, 2, 2), np.zeros((1, 3, 3), np.float32)


WINDOW = ((1,), (1,), (0,))
MODES = "mode must be one of cuDNN's pooling modes, from 0 to 3, not"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: cudnn.pooling_backward(X, X, X, *WINDOW, 7), f"pooling_backward: {MODES} 7"),
    (lambda: cudnn.pooling_forward(X, Y, (2,), (1,), (0,), 0),
        "max_pool: out must have the result's shape (1, 2, 3), not (1, 3, 3)"),
    (lambda: cudnn.pooling_forward(X, X, 2, (1, 1), 0, 0),
        "max_pool: strides must have 1 entries (one per spatial axis), not 2: (1, 1)"),
    (lambda: cudnn.convolution_forward(X, W, None, Y, (0,), (1,), (1,), 1, auto_tune=False, tensor_core="yes"),
        "convolution_forward: tensor_core must be one of always, auto, never, not 'yes'"),
    (lambda: cudnn.convolution_forward(X, W, None, Y, (0,), (1,), (1,), 1, **OPTIONS, d_layout=2),
        "convolution_forward: d_layout must be CUDNN_TENSOR_NCHW (0) or CUDNN_TENSOR_NHWC (1), not 2"),
    (lambda: cudnn.convolution_forward(X, W, None, Y[:, :, 1:], (0,), (1,), (1,), 1, **OPTIONS),
        "conv: out must have the result's shape (1, 3, 3), not (1, 3, 2)"),
    (
        lambda: cudnn.convolution_backward_data(
            W, Y, X[0, :, 0], np.zeros_like(X), (0, 0), (1,), (1,), 1, **OPTIONS, deterministic=True
        ),
        "conv_transpose: pads must have 2 entries (two per spatial axis: all beginnings, then all ends), "
        "not 4: (0, 0, 0, 0)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_served_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(gpuconv.ArgumentError) as raised:
        call()
    assert str(raised.value) == message


def test_what_is_no_integer_is_refused_by_the_name_that_it_has_there() -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"^pooling_forward: pad must be an integer or a sequence of"):
        cudnn.pooling_forward(X, Y, 2, 2, 1.0, 0)  # type: ignore[arg-type]
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"^convolution_forward: pad must be an integer or a sequence"):
        cudnn.convolution_forward(X, W, None, Y, "1", 1, 1, 1, **OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["softmax_forward", "create_tensor_descriptor", "get_handle", "CUDNN_ACTIVATION_RELU"])
def test_other_functions_are_refused_by_name(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^gpuconv.compat.cudnn has no {name}: it has convolution_backward_data"):
        getattr(cudnn, name)


# ---------------------------------------------------------------- a client


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_adjoints_of_a_client_s_convolutions(backend: Backend, rank: int, dtype: Any) -> None:
    """<A x, y> = <x, A* y>, with conjugates; on integers, so that nothing is rounded."""
    generator = np.random.default_rng(rank)

    def drawn(*shape: int) -> Any:
        numbers = generator.integers(-3, 4, shape)
        if np.dtype(dtype).kind == "c":
            numbers = numbers + 1j * generator.integers(-3, 4, shape)
        return numbers.astype(dtype)

    for mode, multi_channel in product(("full", "valid"), (False, True)):
        strides = (2, 1, 2, 1)[:rank]
        batch, extents, kernel = (2,), (6, 5, 3, 2)[:rank], (3, 2, 2, 2)[:rank]
        data = drawn(*batch, *((3,) if multi_channel else ()), *extents)
        filt = drawn(*((4, 3) if multi_channel else ()), *kernel)
        how = (mode, strides, multi_channel)
        with backend():
            output = sigpy_client.convolve(data, filt, *how)
            like = drawn(*output.shape)
            of_data = sigpy_client.data_adjoint(like, filt, data.shape, *how)
            of_filter = sigpy_client.filter_adjoint(like, data, filt.shape, *how)
        expected = np.vdot(output, like)
        assert np.vdot(data, of_data) == expected
        assert np.vdot(filt, of_filter) == expected


@pytest.mark.parametrize("mode", ["full", "valid"])
def test_a_client_s_convolution_is_numpy_s(mode: str) -> None:
    data, filt = integers(0, 9, dtype=np.float64), integers(1, 4, dtype=np.float64)
    assert (sigpy_client.convolve(data, filt, mode, (1,), False) == np.convolve(data, filt, mode)).all()


def test_clients_that_look_for_cupy_s_module_find_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lines that the documentation has for users of SigPy."""
    page = (Path(__file__).parents[2] / "docs" / "from-cupy-cudnn.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    for name in ("cupy.cudnn", "cupy.cuda.cudnn"):
        monkeypatch.setitem(sys.modules, name, None)
    exec(lines, {})
    assert importlib.util.find_spec("cupy.cuda.cudnn") is not None
    found: dict[str, Any] = {}
    exec("from cupy import cudnn", found)
    assert found["cudnn"] is cudnn
