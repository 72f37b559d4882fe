"""explain(): what it prints is what the plan holds, floors by hand, errors in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import _geometry
from gpuconv.cuda import floor
from gpuconv.cuda.limits import representative


def test_every_part_of_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = gpuconv.explain("conv", (8, 64, 56, 56), (256, 64, 3, 3), pads=[1, 1, 1, 1], bias=True, arch="sm_80")
    printed = capsys.readouterr().out
    assert printed.startswith("conv float32 on sm_80: 108 multiprocessors as on A100\n")
    assert "x (8, 64, 56, 56), w (256, 64, 3, 3) -> y (8, 256, 56, 56)" in printed
    pack, gemm = plan.launches
    assert f"launch 1   {pack.variant.name}: grid {pack.grid[0]}, {pack.variant.threads} threads\n" in printed
    assert (
        f"{gemm.variant.name}: grid {gemm.grid[0]}, {gemm.variant.threads} threads, {gemm.shared_bytes} bytes"
        in printed
    )
    assert f"workspace  {plan.packed_bytes} bytes for the packed weights" in printed
    assert all(reason in printed for reason in plan.reasons)
    assert repr(plan) == f"<Plan of conv: {pack.variant.name}, {gemm.variant.name}>"


def test_the_floor_is_the_longer_of_arithmetic_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    # 2 · 8·56·56 · 64·64·9 = 1.850 GFLOP at 2 · 128 · 132 · 1.98 GHz = 66.9 TFLOP/s: 27.65 us; 12.99 MB take 2.7 us.
    gpuconv.explain("conv", (8, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1])
    assert "floor      27.6 us: 1.85 GFLOP at 66.9 TFLOP/s, or 13.0 MB at 4.80 TB/s\n" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", np.float64, np.dtype("float32")])
def test_dtypes_are_named_in_any_way(dtype: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("conv_transpose", (1, 4, 9), (4, 2, 3), dtype=dtype, arch="sm_120")
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    assert capsys.readouterr().out.startswith(f"conv_transpose {name} on sm_120a: ")


def test_an_empty_result_launches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpuconv.explain("max_pool", (0, 3, 8), kernel_shape=[2]).launches == ()
    assert "nothing is launched" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("convolve", (1, 1, 3)), {}, gpuconv.ArgumentError, "operator must be one of conv, conv_transpose, max_pool"),
        (("conv", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^conv: w_shape is required"),
        (("max_pool", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^max_pool: kernel_shape is required"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"stride": [1]}, gpuconv.ArgumentTypeError, "'stride'"),
        (("conv", (1, 1, 3), (1, 2, 3)), {}, gpuconv.ArgumentError, "^conv: x has 1 channels, but w expects 2"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"dtype": "int8"}, gpuconv.ArgumentTypeError, "^conv: dtype must be one of"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"arch": "sm_75"}, gpuconv.ArgumentError, "sm_80.*, not 'sm_75'"),
    ],
)
def test_errors_name_the_rule(arguments: Any, keywords: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        gpuconv.explain(*arguments, **keywords)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- work


def test_only_inputs_that_an_output_meets_count() -> None:
    # A 1x1 kernel with stride 2 over 7 x 7 meets 4 x 4 inputs.
    geometry = _geometry.conv((2, 3, 7, 7), (5, 3, 1, 1), strides=[2, 2])
    assert floor.work(geometry, "float32") == floor.Work(2 * 2 * 5 * 3 * 16, 4 * (2 * 3 * 16 + 15 + 2 * 5 * 16))


def test_work_of_conv_transpose_counts_inputs_that_reach_the_output() -> None:
    # Of 4 inputs with stride 3 and 2 taps, pads of 3 at the beginning cut off the first one: y has 3·3 + 2 - 3 = 8.
    geometry = _geometry.conv_transpose((1, 2, 4), (2, 3, 2), (3,), strides=[3], pads=[3, 0])
    assert geometry.y_shape == (1, 3, 8)
    assert floor.work(geometry, "float64", bias=True) == floor.Work(2 * 12 * 4, 8 * (2 * 3 + 12 + 3 + 24))


def test_work_of_max_pool_counts_indices_as_eight_bytes() -> None:
    geometry = _geometry.max_pool((1, 2, 9), kernel_shape=[2], strides=[2])
    assert floor.work(geometry, "int8") == floor.Work(0, 16 + 8)
    assert floor.work(geometry, "int8", indices=True) == floor.Work(0, 16 + 8 + 64)


def test_huge_axes_are_not_walked() -> None:
    geometry = _geometry.max_pool((1, 1, 2**40), kernel_shape=[2**20], strides=[2**20])
    assert floor.work(geometry, "int8").bytes == 2**40 + 2**20


def test_rates_follow_from_clock_and_lanes() -> None:
    hopper = representative("sm_90a")
    assert hopper.rate("float32") == pytest.approx(66.9e12, rel=1e-3)
    assert hopper.rate("float64") == hopper.rate("float32") / 2
    assert representative("90") is hopper


def test_the_peak_is_that_of_the_quickest_unit() -> None:
    hopper, ada = representative("90"), representative("89")
    assert hopper.peak("float32") == hopper.rate("float32")
    assert hopper.peak("bfloat16") == 16 * hopper.rate("float32")  # 2048 multiply-adds a clock for 128
    assert hopper.peak("float32", "tf32") == 8 * hopper.rate("float32")
    assert hopper.peak("float32", "3xtf32") == pytest.approx(8 / 3 * hopper.rate("float32"), rel=1e-2)
    assert hopper.peak("float64") == 2 * hopper.rate("float64")
    assert ada.peak("float32", "3xtf32") == ada.rate("float32")  # whose tensor cores make a third of 128
