"""Whole models and ``gpuconv check`` on the CUDA backend, in the emulator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from gpuconv.cli.main import main
from gpuconv.onnx import backend
from tests.emulator import emulated_cuda

pytestmark = pytest.mark.emulator

MODEL = """<ir_version: 10, opset_import: ["" : 22]>
net (float[N, 2, 6, 5] x, float[3, 2, 3, 2] w, float[3] b) => (float[N, 3, H, W] y, int64[N, 3, H, W] indices) {
    c = Conv <pads = [1, 0, 1, 1]> (x, w, b)
    r = Relu (c)
    t = ConvTranspose <strides = [2, 1]> (r, v)
    y, indices = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (t)
}"""


@pytest.mark.usefixtures("general_kernels")
def test_run_model_on_cuda() -> None:
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(7)
    shapes = {"x": (2, 2, 6, 5), "w": (3, 2, 3, 2), "b": (3,), "v": (3, 3, 2, 2)}
    values = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.append(onnx.numpy_helper.from_array(values.pop("v"), "v"))
    expected = backend.run_model(model, values, device="CPU")
    with emulated_cuda() as emulated:
        assert backend.supports_device("CUDA")
        results = backend.run_model(model, values, device="CUDA")
    for result, wanted in zip(results, expected, strict=True):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, wanted)
    sources = {record.variant.source.partition("/")[0] for record in emulated.launches}
    assert sources >= {"conv", "pool"}
    assert any(record.variant.name.startswith("conv_transpose") for record in emulated.launches)


def test_check_has_a_cuda_backend(capsys: pytest.CaptureFixture[str]) -> None:
    with emulated_cuda():
        assert main(["check", "--backend", "cuda", "--filter", "1d/stride"]) == 0
    out = capsys.readouterr().out
    assert "cuda" in out
    assert "checks passed" in out


AROUND = """<ir_version: 10, opset_import: ["" : 22]>
net (float[2, 4, 6, 6] x, float[5, 4] w, float[5] b, float[2, 5, 3] v) => (float[2, 2, 3] y) {
    a = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0], ceil_mode = 1> (x)
    g = GlobalMaxPool (a)
    f = Flatten (g)
    h = Gemm <transB = 1> (f, w, b)
    axes = Constant <value_ints = [1]> ()
    r = Unsqueeze (h, axes)
    t = Concat <axis = 1> (r, r)
    y = MatMul (t, v)
}"""


@pytest.mark.usefixtures("general_kernels")
def test_pools_and_products_around_ours_run_our_kernels() -> None:
    model = onnx.parser.parse_model(AROUND)
    rng = np.random.default_rng(7)
    shapes = {"x": (2, 4, 6, 6), "w": (5, 4), "b": (5,), "v": (2, 5, 3)}
    values = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    expected = backend.run_model(model, values)[0]
    with emulated_cuda() as emulated:
        (y,) = backend.run_model(model, values, device="CUDA")
    np.testing.assert_allclose(y, expected, rtol=1e-6)  # for quotients of integers; the sums are exact
    names = [record.variant.name for record in emulated.launches]
    assert sum("conv" in name for name in names) >= 2
    assert any("average_pool" in name for name in names)
