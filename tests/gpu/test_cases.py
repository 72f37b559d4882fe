"""On a device: every named case in every dtype, with both widths of indices, and through the tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cli.main import main
from gpuconv.rules import cases
from gpuconv.rules.cases import Case
from tests.gpu.on_device import imported, index_width, moved, returned
from tests.harness import cuda_device
from tests.oracle import oracle
from tests.oracle.case_rows import case_rows, one_row_a_case
from tests.oracle.operands import complex_integers
from tests.oracle.oracle import assert_same

pytestmark = [pytest.mark.gpu, cuda_device.sampled(40)]

widths = pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])


def computed(case: Case, dtype: str, wide: bool, **more: Any) -> list[Any]:
    if wide and len(case.x_shape) > 6 and dtype not in ("float32", "uint8"):
        pytest.skip("a kernel for five axes and 64-bit indices takes its time to compile: two dtypes will do")
    arrays = cases.inputs(case, dtype)
    on_device = dict(zip(arrays, moved(list(arrays.values())), strict=True))
    with index_width(wide):
        return returned(getattr(gpuconv, case.op)(**on_device, **case.attributes, **more))


@widths
@pytest.mark.parametrize(("case", "dtype"), case_rows("conv", "conv_transpose"))
def test_sums_are_exact_up_to_their_one_rounding(case: Case, dtype: str, wide: bool) -> None:
    (expected,) = cases.expected(case, dtype)
    (actual,) = computed(case, dtype, wide)
    assert_same(actual, expected, bits=False)


@widths
@pytest.mark.parametrize(("case", "dtype"), case_rows("max_pool"))
def test_maxima_and_their_indices_agree_bit_for_bit(case: Case, dtype: str, wide: bool) -> None:
    y, indices = computed(case, dtype, wide, return_indices=True)
    expected_y, expected_indices = cases.expected(case, dtype)
    assert_same(y, expected_y)
    assert_same(indices, expected_indices)


@widths
@pytest.mark.parametrize(("case", "dtype"), case_rows("max_pool"))
def test_maxima_alone_are_equal_as_values(case: Case, dtype: str, wide: bool) -> None:
    (y,) = computed(case, dtype, wide)
    assert_same(y, cases.expected(case, dtype)[0], bits=False)


@pytest.mark.parametrize(("case", "dtype"), one_row_a_case())
def test_channels_last_give_the_same(case: Case, dtype: str) -> None:
    arrays = cases.inputs(case, dtype)
    arrays["x"] = np.ascontiguousarray(np.moveaxis(arrays["x"], 1, -1))
    on_device = dict(zip(arrays, moved(list(arrays.values())), strict=True))
    more = {"return_indices": True} if case.op == "max_pool" else {}
    results = returned(getattr(gpuconv, case.op)(**on_device, **case.attributes, **more, layout="NHWC"))
    for result, expected in zip(results, cases.expected(case, dtype), strict=True):
        assert_same(np.moveaxis(result, -1, 1), expected, bits=case.op == "max_pool")


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@pytest.mark.parametrize("complex_x", [True, False], ids=["complex x", "complex w"])
def test_parts_of_complex_arrays_are_views_of_them(operator: str, complex_x: bool) -> None:
    x, w, b = complex_integers(0, (2, 4, 6, 7), "complex64"), complex_integers(1, (4, 4, 3, 2), "complex64"), None
    x, w = (x, w.real) if complex_x else (x.real, w)
    pairs = ((x.real, w), (x.imag, w)) if complex_x else ((x, w.real), (x, w.imag))
    real, imag = (getattr(oracle, operator)(*pair, b, pads=[1, 0, 1, 1]).value for pair in pairs)
    on_device = moved([x, w])
    out = moved([np.zeros((*real.shape, 2), np.complex64)])[0][..., 1]
    for options in ({}, {"out": out}):
        (y,) = returned(getattr(gpuconv, operator)(*on_device, pads=[1, 0, 1, 1], **options))
        assert (y == real + 1j * imag).all()


@pytest.mark.parametrize(("case", "dtype"), one_row_a_case("conv", "conv_transpose"))
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
