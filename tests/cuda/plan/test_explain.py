"""explain(): it prints the plan's contents; floors computed by hand; errors in one sentence."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import floor
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from tests.emulator import emulated_cuda
from tests.harness.idle_kernels import Sent


def test_every_part_of_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = gpuconv.explain("conv", (8, 64, 56, 56), (256, 64, 3, 3), pads=[1, 1, 1, 1], bias=True, arch="sm_80")
    printed = capsys.readouterr().out
    assert printed.startswith("conv float32 on sm_80: 108 multiprocessors as on A100\n")
    assert "x (8, 64, 56, 56), w (256, 64, 3, 3), b (256,) -> y (8, 256, 56, 56)" in printed
    pack, gemm = plan.launches
    assert f"launch 1   {pack.variant.name}: grid {pack.grid[0]}, {pack.variant.threads} threads\n" in printed
    assert (
        f"{gemm.variant.name}: grid {gemm.grid[0]}, {gemm.variant.threads} threads, {gemm.shared_bytes} bytes"
        in printed
    )
    assert f"workspace  {plan.bytes_of('packed')} bytes for the packed weights" in printed
    assert all(reason in printed for reason in plan.reasons)
    assert repr(plan) == f"<Plan of conv: {pack.variant.name}, {gemm.variant.name}>"


def test_the_floor_is_the_longer_of_arithmetic_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    # 2 · 8·56·56 · 64·64·9 = 1.850 GFLOP at 2 · 128 · 132 · 1.98 GHz = 66.9 TFLOP/s: 27.65 us; 12.99 MB take 2.7 us.
    gpuconv.explain("conv", (8, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1])
    assert (
        "floor      27.6 us by the datasheet: 1.85 GFLOP at 66.9 TFLOP/s, or 13.0 MB at 4.80 TB/s\n"
        in capsys.readouterr().out
    )


def test_tensor_cores_have_nothing_to_multiply_where_a_group_has_one_channel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 2 · 8·112·112 · 256·9 = 462.4 MFLOP, by the ordinary multipliers; tensor cores would reach 1070.5 TFLOP/s
    gpuconv.explain("conv", (8, 256, 112, 112), (256, 1, 3, 3), pads=[1] * 4, group=256, dtype="bfloat16")
    assert ": 0.46 GFLOP at 66.9 TFLOP/s, or " in capsys.readouterr().out


FORWARD = {"strides": [2, 1], "pads": [1, 0, 1, 0]}  # rows: (9 + 2 - 3) // 2 + 1 = 5, or (5 - 1) * 2 + 3 - 2 = 9
GROUPS = FORWARD | {"group": 2}
WINDOWS = FORWARD | {"kernel_shape": [3, 2]}
LARGE, SMALL, W = (2, 8, 9, 7), (2, 16, 5, 6), (16, 4, 3, 2)
# By operator: the shapes of the call's arrays, those that explain takes, the attributes, the result's name and shape.
CALLS: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], tuple[str, Any]]] = {
    "conv": ({"x": LARGE, "w": W}, (LARGE, W), GROUPS, ("y", SMALL)),
    "conv_transpose": ({"x": SMALL, "w": W}, (SMALL, W), GROUPS, ("y", LARGE)),
    "max_pool": ({"x": LARGE}, (LARGE,), WINDOWS, ("y", (2, 8, 5, 6))),
    "conv_input_grad": ({"dy": SMALL, "w": W}, (LARGE, W), GROUPS, ("dx", LARGE)),
    "conv_transpose_input_grad": ({"dy": LARGE, "w": W}, (SMALL, W), GROUPS, ("dx", SMALL)),
    "conv_weight_grad": ({"x": LARGE, "dy": SMALL}, (LARGE, W), GROUPS, ("dw", W)),
    "conv_transpose_weight_grad": ({"x": SMALL, "dy": LARGE}, (SMALL, W), GROUPS, ("dw", W)),
    "conv_bias_grad": ({"dy": SMALL}, (SMALL,), {}, ("db", (16,))),
    "conv_transpose_bias_grad": ({"dy": LARGE}, (LARGE,), {}, ("db", (8,))),
    "max_pool_grad": ({"dy": (2, 8, 5, 6), "indices": (2, 8, 5, 6)}, (LARGE,), WINDOWS, ("dx", LARGE)),
    "average_pool": ({"x": LARGE}, (LARGE,), WINDOWS, ("y", (2, 8, 5, 6))),
    "average_pool_grad": ({"dy": (2, 8, 5, 6)}, (LARGE,), WINDOWS, ("dx", LARGE)),
    "global_average_pool": ({"x": LARGE}, (LARGE,), {}, ("y", (2, 8, 1, 1))),
    "global_average_pool_grad": ({"dy": (2, 8, 1, 1)}, (LARGE,), {}, ("dx", LARGE)),
    "max_unpool": ({"y": (2, 8, 5, 6), "indices": (2, 8, 5, 6)}, ((2, 8, 5, 6),), WINDOWS, ("x", LARGE)),
}


def in_layout(name: str, shape: Any, layout: str) -> Any:
    last = layout == "NHWC" and name not in ("w", "dw", "db")
    return (shape[0], *shape[2:], shape[1]) if last else shape


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CALLS)
def test_what_goes_in_and_what_comes_out_has_its_name(name: str, layout: str, capsys: Any) -> None:
    arrays, shapes, attributes, (made, result) = CALLS[name]
    given = [in_layout("xw"[place], shape, layout) for place, shape in enumerate(shapes)]
    plan = gpuconv.explain(name, *given, layout=layout, **attributes)
    printed = capsys.readouterr().out
    operands = ", ".join(f"{array} {in_layout(array, shape, layout)}" for array, shape in arrays.items())
    assert printed.startswith(f"{name} float32{' NHWC' if layout == 'NHWC' else ''} on sm_90a: ")
    assert f"\n  {operands} -> {made} {in_layout(made, result, layout)}\n" in printed
    assert plan.operator == name
    assert printed.count("  launch ") == len(plan.launches) > 0
    assert all(f"workspace  {space.bytes} bytes for {space.use}\n" in printed for space in plan.spaces)
    assert plan.reasons
    assert all(reason in printed for reason in plan.reasons)


DTYPES = {"max_pool": "int8", "max_pool_grad": "float16", "max_unpool": "uint8"}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("other", [False, True], ids=["float32", "another dtype"])
@pytest.mark.parametrize("name", CALLS)
def test_the_plan_is_that_of_the_call(name: str, other: bool, layout: str, sent: Sent) -> None:
    arrays, shapes, attributes, (made, result) = CALLS[name]
    dtype = DTYPES.get(name, "complex64") if other else "float32"
    keywords: dict[str, Any] = {**attributes, "layout": layout}
    of_call = dict(keywords)
    if name.endswith(("input_grad", "weight_grad", "pool_grad")):
        of_call["w_shape" if made == "dw" else "x_shape"] = in_layout(made, result, layout)
    if "indices" in arrays:
        of_call["check_indices"] = False
    operands = [
        sent.cupy.empty(in_layout(array, shape, layout), np.int64 if array == "indices" else dtype)
        for array, shape in arrays.items()
    ]
    with mock.patch.object(device, "limits", return_value=representative("sm_90a").limits):
        assert getattr(gpuconv, name)(*operands, **of_call).shape == in_layout(made, result, layout)
    (prepared,) = device.prepared.values()
    given = [in_layout("xw"[place], shape, layout) for place, shape in enumerate(shapes)]
    assert gpuconv.explain(name, *given, dtype=dtype, **keywords) == prepared.plan


def test_the_bias_and_the_indices_are_among_the_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("conv_transpose", SMALL, W, bias=True, **GROUPS)
    assert f"\n  x {SMALL}, w {W}, b (8,) -> y {LARGE}\n" in capsys.readouterr().out
    gpuconv.explain("max_pool", LARGE, return_indices=True, **WINDOWS)
    assert f"\n  x {LARGE} -> y (2, 8, 5, 6), indices (2, 8, 5, 6)\n" in capsys.readouterr().out


def test_attributes_may_be_read_once_only(capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("max_pool_grad", LARGE, **{name: iter(value) for name, value in WINDOWS.items()})
    assert f"dy (2, 8, 5, 6), indices (2, 8, 5, 6) -> dx {LARGE}\n" in capsys.readouterr().out


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["max_pool_grad", "max_unpool"])
def test_the_search_for_indices_that_are_none_comes_before(name: str, capsys: Any) -> None:
    plan = gpuconv.explain(name, LARGE if name == "max_pool_grad" else SMALL, **WINDOWS)
    before, call = capsys.readouterr().out.split("  launch 1 ")
    assert "  before     clear_1d: grid 1, 256 threads\n" in before
    assert "             for check_indices, each in its window, or -1; the call waits for what it finds\n" in before
    assert not any("check" in launch.variant.name for launch in plan.launches)
    (indices,) = (shape for array, shape in CALLS[name][0].items() if array == "indices")
    shape = indices if name == "max_pool_grad" else SMALL
    operands = np.zeros(shape, np.float32), np.full(shape, -1)
    with emulated_cuda() as emulated:
        getattr(gpuconv, name)(*operands, **({"x_shape": LARGE} if name == "max_pool_grad" else {}), **WINDOWS)
    launched = [f"{one.variant.name}: grid {max(one.grid)}, {one.threads} threads" for one in emulated.launches]
    assert len(launched) > 2
    assert all(launch in before for launch in launched[:2])
    assert all(launch in call for launch in launched[2:])
    assert gpuconv.explain(name, LARGE, check_indices=False, **WINDOWS)
    assert "before" not in capsys.readouterr().out


def test_a_precision_is_told_where_there_are_products(capsys: pytest.CaptureFixture[str]) -> None:
    with gpuconv.precision("tf32"):
        gpuconv.explain("conv_input_grad", LARGE, W, **GROUPS)
        assert capsys.readouterr().out.startswith("conv_input_grad float32 tf32 on ")
        gpuconv.explain("max_unpool", SMALL, **WINDOWS)
        assert capsys.readouterr().out.startswith("max_unpool float32 on ")


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
        (("convolve", (1, 1, 3)), {}, gpuconv.ArgumentError, "^explain: operator must be one of conv, conv_transpose, "
         "max_pool, average_pool, global_average_pool, conv_input_grad, conv_transpose_input_grad, conv_weight_grad, "
         "conv_transpose_weight_grad, conv_bias_grad, conv_transpose_bias_grad, max_pool_grad, average_pool_grad, "
         "global_average_pool_grad, max_unpool, not 'convolve'"),
        ((["conv"], (1, 1, 3)), {}, gpuconv.ArgumentError, r"^explain: operator must be one of .*, not \['conv'\]"),
        (("conv_weight_grad", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^conv_weight_grad: w_shape is required"),
        (("conv_input_grad", 3, (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^conv_input_grad: x_shape .*, not 3$"),
        (("max_pool_grad", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^max_pool_grad: kernel_shape is required"),
        (("max_unpool", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^max_unpool: kernel_shape is required"),
        (("conv_bias_grad", (1, 3)), {}, gpuconv.ArgumentError, "^conv_bias_grad: dy must have a batch"),
        (("conv_bias_grad", (1, 1, 3)), {"pads": [1, 1]}, gpuconv.ArgumentTypeError,
         "^explain: conv_bias_grad has no attribute 'pads'; it has none"),
        (("conv_input_grad", (1, 2, 3), (1, 1, 3)), {}, gpuconv.ArgumentError,
         "^conv_input_grad: x has 2 channels, but w expects 1"),
        (("max_pool_grad", (1, 1, 3)), {"dtype": "int8"}, gpuconv.ArgumentTypeError,
         "^max_pool_grad: dtype must be one of float16, bfloat16, float32, float64, not int8"),
        (("max_unpool", (1, 1, 3)), {"dtype": "complex64"}, gpuconv.ArgumentTypeError,
         "^max_unpool: dtype must be one of .*, not complex64"),
        (("max_pool", (1, 1, 3), (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^explain: max_pool takes no w_shape"),
        (("conv_weight_grad", (1, 1, 3), (1, 1, 3)), {"bias": True}, gpuconv.ArgumentTypeError, "takes no bias"),
        (("conv_bias_grad", (1, 1, 3)), {"precision": "tf32"}, gpuconv.ArgumentTypeError, "takes no precision"),
        (("max_unpool", (1, 1, 3)), {"return_indices": True}, gpuconv.ArgumentTypeError, "takes no return_indices"),
        (("conv", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^conv: w_shape is required"),
        (("max_pool", (1, 1, 3)), {}, gpuconv.ArgumentTypeError, "^max_pool: kernel_shape is required"),
        (("max_pool", (1, 1, -3)), {"kernel_shape": [1]}, gpuconv.ArgumentError,
         r"^max_pool: x_shape must be the shape of an array, not \(1, 1, -3\)$"),
        (("max_pool", None), {"kernel_shape": [1]}, gpuconv.ArgumentError,
         "^max_pool: x_shape must be the shape of an array, not None$"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"stride": [1]}, gpuconv.ArgumentTypeError, "^explain: stride of"),
        (("conv", (1, 1, 3), (1, 2, 3)), {}, gpuconv.ArgumentError, "^conv: x has 1 channels, but w expects 2"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"dtype": "int8"}, gpuconv.ArgumentTypeError, "^conv: dtype must be one of"),
        (("conv", (1, 1, 3), (1, 1, 3)), {"arch": "sm_75"}, gpuconv.ArgumentError, "sm_80.*, not 'sm_75'"),
    ],
)  # fmt: skip
def test_errors_name_the_rule(arguments: Any, keywords: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        gpuconv.explain(*arguments, **keywords)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- work


def test_only_inputs_that_an_output_meets_count() -> None:
    # A 1x1 kernel with stride 2 over 7 x 7 reads 4 x 4 inputs.
    geometry = geometries.conv((2, 3, 7, 7), (5, 3, 1, 1), strides=[2, 2])
    assert floor.work(geometry, "float32") == floor.Work(2 * 2 * 5 * 3 * 16, 4 * (2 * 3 * 16 + 15 + 2 * 5 * 16))


def test_work_of_conv_transpose_counts_inputs_that_reach_the_output() -> None:
    # With 4 inputs, stride 3 and 2 taps, pads of 3 at the beginning crop the first one: y has 3·3 + 2 - 3 = 8.
    geometry = geometries.conv_transpose((1, 2, 4), (2, 3, 2), (3,), strides=[3], pads=[3, 0])
    assert geometry.y_shape == (1, 3, 8)
    assert floor.work(geometry, "float64", bias=True) == floor.Work(2 * 12 * 4, 8 * (2 * 3 + 12 + 3 + 24))


def test_work_of_max_pool_counts_indices_as_eight_bytes() -> None:
    geometry = geometries.max_pool((1, 2, 9), kernel_shape=[2], strides=[2])
    assert floor.work(geometry, "int8") == floor.Work(0, 16 + 8)
    assert floor.work(geometry, "int8", indices=True) == floor.Work(0, 16 + 8 + 64)


def test_gradients_of_conv_have_the_work_of_the_forward_call() -> None:
    # 7 x 7 under a 1x1 kernel with stride 2: 4 x 4 inputs count where they are read, all 7 x 7 where they are written.
    shapes, strides = {"x_shape": (2, 3, 7, 7), "w_shape": (5, 3, 1, 1)}, [2, 2]
    dy, flops = 2 * 5 * 16, 2 * 2 * 5 * 3 * 16
    dx = gradients.conv_input_grad((2, 5, 4, 4), shapes["w_shape"], x_shape=shapes["x_shape"], strides=strides)
    dw = gradients.conv_weight_grad(shapes["x_shape"], (2, 5, 4, 4), w_shape=shapes["w_shape"], strides=strides)
    assert floor.work(dx, "float64") == floor.Work(flops, 8 * (dy + 15 + 2 * 3 * 49))
    assert floor.work(dw, "float64") == floor.Work(flops, 8 * (dy + 15 + 2 * 3 * 16))
    assert floor.work(dw, "complex64") == floor.Work(4 * flops, 8 * (dy + 15 + 2 * 3 * 16))


def test_gradients_of_conv_transpose_have_the_work_of_the_forward_call() -> None:
    # With (5 - 1) * 2 - 1 + 1 = 8 outputs, a kernel of one element with stride 2 writes every second one.
    attributes: dict[str, Any] = {"strides": [2], "output_shape": [8]}
    dx = gradients.conv_transpose_input_grad((1, 3, 8), (2, 3, 1), x_shape=(1, 2, 5), **attributes)
    dw = gradients.conv_transpose_weight_grad((1, 2, 5), (1, 3, 8), w_shape=(2, 3, 1), **attributes)
    assert floor.work(dx, "float16") == floor.Work(2 * 6 * 5, 2 * (3 * 4 + 6 + 10))
    assert floor.work(dw, "float16") == floor.Work(2 * 6 * 5, 2 * (3 * 4 + 6 + 10))


def test_sums_and_what_indices_say_are_bytes_alone() -> None:
    sums = gradients.conv_bias_grad((2, 3, 5, 7))
    assert floor.work(sums, "float16") == floor.Work(0, 2 * (2 * 3 * 35 + 3))
    pool = gradients.max_pool_grad((1, 2, 3), (1, 2, 3), x_shape=(1, 2, 9), kernel_shape=[1], strides=[4])
    assert floor.work(pool, "float32", backwards=True) == floor.Work(0, 4 * (18 + 6) + 8 * 6)
    unpool = gradients.max_unpool((1, 2, 3), (1, 2, 3), kernel_shape=[2], strides=[2], output_shape=[7])
    assert floor.work(unpool, "int8") == floor.Work(0, 6 + 8 * 6 + 14)


@pytest.mark.parametrize(
    ("name", "shape", "nbytes"),
    [
        ("max_pool_grad", (64, 64, 56, 56), (64 * 64 * 56 * 56) * 4 + (64 * 64 * 28 * 28) * (4 + 8)),
        ("max_unpool", (64, 64, 28, 28), (64 * 64 * 56 * 56) * 4 + (64 * 64 * 28 * 28) * (4 + 8)),
        ("max_pool", (64, 64, 56, 56), (64 * 64 * 56 * 56) * 4 + (64 * 64 * 28 * 28) * 4),
    ],
)
def test_indices_that_go_in_count(name: str, shape: Any, nbytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain(name, shape, kernel_shape=[2, 2], strides=[2, 2])
    assert f": {nbytes / 1e6:.1f} MB at 4.80 TB/s\n" in capsys.readouterr().out


def test_huge_axes_are_not_walked() -> None:
    geometry = geometries.max_pool((1, 1, 2**40), kernel_shape=[2**20], strides=[2**20])
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
    assert ada.peak("float32", "3xtf32") == ada.rate("float32")  # whose tensor cores reach a third of 128


@pytest.mark.parametrize(
    ("operator", "x", "w", "said"),
    [
        ("conv_transpose_weight_grad", (1, 129, 55104), (129, 64, 4), "129 output channels of a group leave 33% of 3 "),
        ("conv_input_grad", (32, 65, 56, 56), (64, 65, 3, 1), "65 output channels of a group leave 49% of 1 "),
        ("conv_input_grad", (32, 64, 56, 56), (64, 64, 3, 3), ""),
        ("conv", (32, 3, 224, 224), (65, 3, 7, 7), "65 output channels of a group leave 32% of 3 tiles of 32 rows"),
        ("conv_weight_grad", (32, 65, 56, 56), (256, 65, 1, 1), "65 channels of a group leave 47% of 1 tiles of 128 "),
        ("conv_weight_grad", (32, 33, 56, 56), (256, 33, 2, 2), "33 channels of a group in 4 taps leave 44% of 2 "),
    ],
)
def test_tiles_that_are_a_quarter_empty_are_named(operator: str, x: Any, w: Any, said: str) -> None:
    attributes = {"strides": [2]} if len(x) == 3 else {"pads": [w[-1] // 2] * 4}
    plan = gpuconv.explain(operator, x, w, arch="sm_90a", **attributes)
    lines = [line for line in plan.reasons if line.endswith("empty")]
    assert bool(lines) == bool(said)
    assert all(said in line for line in lines)
