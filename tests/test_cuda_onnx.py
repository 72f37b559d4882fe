"""Whole models and ``gpuconv check`` on the CUDA backend, in the emulator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from emulator import emulated_cuda

from gpuconv.__main__ import main
from gpuconv.onnx import backend

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
    kernels = {record.variant.name.partition("_float32")[0] for record in emulated.launches}
    assert kernels >= {"pack_weights", "conv", "conv_transpose", "max_pool"}


def test_check_has_a_cuda_backend(capsys: pytest.CaptureFixture[str]) -> None:
    with emulated_cuda():
        assert main(["check", "--backend", "cuda", "--filter", "1d/stride"]) == 0
    out = capsys.readouterr().out
    assert "cuda" in out
    assert "checks passed" in out
