"""On a device: packed weights, a model, and the command that checks an installation."""

from __future__ import annotations

import numpy as np
import pytest

import gpuconv
from gpuconv.cli.main import main
from gpuconv.rules import cases
from gpuconv.rules.cases import Case
from tests.gpu.on_device import imported, moved, returned
from tests.harness import cuda_device
from tests.oracle.case_rows import one_dtype_a_case
from tests.oracle.oracle import assert_same

pytestmark = [pytest.mark.gpu, cuda_device.sampled(40)]


@one_dtype_a_case("conv", "conv_transpose")
def test_packed_weights_give_the_same_each_time(case: Case, dtype: str) -> None:
    arrays = cases.inputs(case, dtype)
    on_device = dict(zip(arrays, moved(list(arrays.values())), strict=True))
    on_device["w"] = gpuconv.pack(on_device["w"], operator=case.op)
    for _ in range(2):
        (result,) = returned(getattr(gpuconv, case.op)(**on_device, **case.attributes))
        assert_same(result, cases.expected(case, dtype)[0], bits=False)


@cuda_device.thorough_if_emulated()
def test_the_check_command_passes_on_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--backend", "cuda"])
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, ""), shown.out[-2000:]
    assert "checks passed" in shown.out.splitlines()[-1]


def test_a_model_runs_on_cuda_as_on_the_cpu() -> None:
    onnx = imported("onnx")
    from gpuconv.onnx import backend

    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 22]>
    net (float[N, 3, H, W] x, float[8, 3, 3, 3] w, float[8, 4, 2, 2] v) => (float[A, B, C, D] y, int64[A, B, C, D] i) {
        c = Conv <pads = [1, 0, 1, 2], strides = [2, 1]> (x, w)
        r = Relu (c)
        t = ConvTranspose <strides = [2, 3]> (r, v)
        y, i = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (t)
    }""")
    random = np.random.default_rng(3)
    shapes = {"x": (2, 3, 20, 17), "w": (8, 3, 3, 3), "v": (8, 4, 2, 2)}
    inputs = {name: random.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    assert backend.supports_device("CUDA")
    expected = backend.prepare(model).run(inputs)
    for result, wanted in zip(backend.prepare(model, "CUDA").run(inputs), expected, strict=True):
        assert type(result) is np.ndarray
        assert_same(result, wanted, bits=False)
