"""The NumPy backend uses no more extra memory than its workspace for any problem."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.oracle.operands import filled, values

pytestmark = pytest.mark.slow

# For each of these, the matrix of all windows is many times the limit.
LIMIT = 2**21
HUNGRY: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "many channels": ((1, 128, 64, 64), (64, 128, 3, 3), {"pads": [1, 1, 1, 1]}),
    "many images": ((60, 32, 16, 16), (32, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    "many taps": ((1, 8, 64, 64), (8, 8, 21, 21), {"pads": [10, 10, 10, 10]}),
    "depthwise": ((2, 128, 64, 64), (128, 1, 5, 5), {"group": 128}),
    "large weights": ((1, 256, 12, 12), (512, 256, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one tap": ((4, 256, 40, 40), (128, 256, 1, 1), {}),
    "a line": ((1, 16, 40_000), (16, 16, 15), {}),
}


def _extra_bytes(call: Any) -> int:
    """Return the peak of what NumPy and Python allocate during a call, without its results."""
    tracemalloc.start()
    try:
        result = call()
        results = result if isinstance(result, tuple) else (result,)
        return tracemalloc.get_traced_memory()[1] - sum(array.nbytes for array in results)
    finally:
        tracemalloc.stop()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(LIMIT))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", HUNGRY)
def test_a_convolution_stays_within_its_workspace(name: str, dtype: str) -> None:
    arrays, attributes = filled("conv", *HUNGRY[name], dtype)
    assert _extra_bytes(lambda: gpuconv.conv(*arrays, **attributes)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", HUNGRY)
def test_a_transposed_convolution_stays_within_its_workspace(name: str, dtype: str) -> None:
    x, w, attributes = HUNGRY[name]
    weights = w if attributes.get("group") else (w[1], w[0], *w[2:])
    attributes = {**attributes, "strides": [2] * (len(x) - 2)}
    arrays, attributes = filled("conv_transpose", x, weights, attributes, dtype)
    assert _extra_bytes(lambda: gpuconv.conv_transpose(*arrays, **attributes)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("invariant", [None, "batch"])
def test_a_long_kernel_stays_within_its_workspace(invariant: Any, dtype: str) -> None:
    """The weights of one output channel are larger than the limit, as in an inverse transform of sound."""
    x, w = (values("ties", seed, shape, dtype) for seed, shape in ((1, (1, 900, 40)), (2, (900, 1, 1024))))
    assert _extra_bytes(lambda: gpuconv.conv_transpose(x, w, strides=[256], invariant=invariant)) <= LIMIT
    dy = values("ties", 3, (1, 900, 37), dtype)
    assert _extra_bytes(lambda: gpuconv.conv_weight_grad(x[:, :3], dy, (900, 3, 4))) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("with_indices", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_pooling_stays_within_its_workspace(dtype: str, with_indices: bool) -> None:
    x = values("ties", 3, (4, 64, 96, 96), np.float32).astype(dtype)
    pooled = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "return_indices": with_indices}
    assert _extra_bytes(lambda: gpuconv.max_pool(x, **pooled)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_stay_within_their_workspace(dtype: str) -> None:
    x, w = values("ties", 1, (2, 64, 40, 40), dtype), (96, 64, 3, 3)
    dy = values("ties", 2, (2, 96, 38, 38), dtype)
    assert _extra_bytes(lambda: gpuconv.conv_weight_grad(x, dy, w)) <= LIMIT
    y, indices = gpuconv.max_pool(x, kernel_shape=[3, 3], strides=[2, 2], return_indices=True)
    many, numbers = np.tile(y, (8, 1, 1, 1)), np.concatenate([indices + n * x.size for n in range(8)])
    pooled = {"kernel_shape": [3, 3], "strides": [2, 2]}
    assert _extra_bytes(lambda: gpuconv.max_pool_grad(many, numbers, (16, *x.shape[1:]), **pooled)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((4, 64, 96, 96), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
        ((1, 2, 900, 700), {"kernel_shape": [500, 400], "strides": [3, 2]}),
        ((2, 512, 9, 9), {"kernel_shape": [40, 40], "pads": [39, 39, 39, 39]}),  # more outputs than inputs
        ((3, 8, 50_000), {"kernel_shape": [50], "strides": [54], "dilations": [12]}),
    ],
    ids=str,
)
def test_averages_stay_within_their_workspace(shape: tuple[int, ...], window: dict[str, Any], dtype: str) -> None:
    x = values("ties", 1, shape, dtype)
    assert _extra_bytes(lambda: gpuconv.average_pool(x, **window)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_maxima_are_put_back_within_the_workspace(layout: str) -> None:
    shape = (4, 64, 96, 96) if layout == "NCHW" else (4, 96, 96, 64)
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "layout": layout}
    y, indices = gpuconv.max_pool(values("ties", 3, shape, np.float32), return_indices=True, **window)
    assert _extra_bytes(lambda: gpuconv.max_unpool(y, indices, **window)) <= LIMIT
    assert _extra_bytes(lambda: gpuconv.max_pool_grad(y, indices, shape, **window)) <= LIMIT


@pytest.mark.usefixtures("little_memory")
def test_sums_over_no_channels_stay_within_their_workspace() -> None:
    x, w, b = np.zeros((2, 0, 200, 200), np.float16), np.zeros((32, 0, 1, 1), np.float16), np.ones(32, np.float16)
    residual = np.ones((2, 32, 200, 200), np.float16)
    assert _extra_bytes(lambda: gpuconv.conv(x, w, b, residual=residual, activation=("leaky_relu", -1))) <= LIMIT


@pytest.mark.usefixtures("little_memory")
def test_weights_that_are_not_finite_cost_no_more_memory() -> None:
    arrays, attributes = filled("conv", *HUNGRY["many channels"], "float32")
    arrays[1][0, 0, 0, 0] = np.inf
    assert _extra_bytes(lambda: gpuconv.conv(*arrays, **attributes)) <= LIMIT


@pytest.mark.parametrize("text", ["1 MiB", "-1", "0", "16383", "1e9"])
def test_a_workspace_that_is_no_plain_number_or_too_small_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", text)
    arrays, attributes = filled("conv", (1, 2, 9), (2, 2, 3), {}, "float32")
    message = f"GPUCONV_WORKSPACE_BYTES must be an integer from 16384 to 9223372036854775807, not {text!r}"
    with pytest.raises(gpuconv.ArgumentError) as caught:
        gpuconv.conv(*arrays, **attributes)
    assert str(caught.value) == message
