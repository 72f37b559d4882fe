"""The gradient of AveragePool along the columns of x: its forms, their cost, and windows at the borders."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool.grad import averages, base, families
from gpuconv.rules import dtypes, geometry
from tests.cuda.pool.problems import lying
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import any_cuda, indices, long_walks, preferred
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import gradients
from tests.oracle.oracle import assert_close

Ints = tuple[int, ...]
LIMITS = representative("sm_90a").limits
LARGE = (32, 64, 112, 112)


def plan(x: Ints, dtype: str = "float32", last: bool = False, **attributes: Any) -> Any:
    forward = geometry.average_pool(x, **attributes)
    of_dy, of_dx = lying(forward.y_shape, last), lying(x, last)
    return families.for_average_pool_grad(forward, dtype, of_dy, of_dx, LIMITS)


# ---------------------------------------------------------------- which there are


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kernel", "steps", "name"),
    [
        ([2, 2], [2, 2], "walks_1x1"),
        ([3, 3], [4, 5], "walks_1x1"),
        ([112, 112], [1, 1], "walks_1x1"),
        ([2, 2], [1, 1], "strips_2s1"),
        ([3, 3], [2, 2], "strips_3s2"),
        ([2, 4], [2, 2], "strips_4s2"),
        ([2, 3], [1, 1], "strips_3s1"),
        ([5, 5], [1, 1], "strips_5s1"),
        ([7, 7], [1, 1], "strips_7s1"),
        ([8, 7], [2, 2], "strips_7s2"),
        ([2, 1], [1, 1], "walks_5xany"),
        ([2, 4], [1, 1], "walks_5xany"),
        ([4, 3], [1, 1], "walks_5xany"),
        ([2, 30], [2, 1], "walks_5xany"),
        ([13, 3], [1, 1], "walks_13xany"),
    ],
)
def test_windows_have_the_kernel_for_as_many_as_reach_an_element(
    kernel: list[int], steps: list[int], name: str, last: bool
) -> None:
    found = plan(LARGE, "bfloat16", last, kernel_shape=kernel, strides=steps)
    assert found.kernel == found.launches[0].variant.name == f"average_pool_grad_bfloat16_3d_{name}"


def test_numbers_beyond_32_bits_are_refused() -> None:
    with indices(wide=True):
        found = plan((2, 3, 8, 8), kernel_shape=[2, 2], strides=[2, 2])
    assert found.kernel == "average_pool_grad_float32_4d_wide"
    assert "not by walks of averages: 64-bit indices" in found.reasons


def test_one_long_column_is_not_for_one_thread() -> None:
    assert plan((1, 2, 3000, 3), kernel_shape=[3000, 3]).kernel == "average_pool_grad_float32_3d"


# ---------------------------------------------------------------- what they cost


def taken(kernel: str, shape: Ints, size: int, stride: int, counted: int) -> tuple[float, Any, Any, Any, int]:
    """Return a thread's instruction count in the emulator, the problem, its view, the kernel's form and the walk
    length."""
    attributes: dict[str, Any] = {
        "kernel_shape": [size, size],
        "strides": [stride, stride],
        "pads": [size // 2] * 4,
        "count_include_pad": counted,
    }
    dy = np.ones(geometry.average_pool(shape, **attributes).y_shape, np.float32)
    device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
    accept = averages._accepted if kernel == "walks" else averages._accepted_strip
    with long_walks(True), preferred(kernel), device as emulated:
        gpuconv.average_pool_grad(dy, shape, **attributes)
        problem = plan(shape, **attributes).problem
        view = base.walked(problem)
        assert not isinstance(view, str)
        accepted = accept(problem, view)
        assert not isinstance(accepted, str)
        walk = averages._walk(problem, *accepted, LIMITS)
    (counters,) = emulated.counters().values()
    view, form = accepted
    return counters.total["instructions"] * 32 / view.items(form, walk), problem, view, form, walk


@pytest.mark.emulator
@pytest.mark.kernels("pool/grad/averages.cu")
@pytest.mark.parametrize("counted", [0, 1], ids=["borders", "everywhere"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1), (5, 1), (9, 1)])
def test_threads_take_about_as_many_instructions_as_the_plan_takes_them_to(
    size: int, stride: int, counted: int
) -> None:
    """PTX has one instruction for a division, and more than one where machine code merges two."""
    found, problem, view, form, walk = taken("walks", (4, 16, 63, 64), size, stride, counted)
    assert found == pytest.approx(averages._instructions(problem, view, form, walk), rel=0.25)


@pytest.mark.emulator
@pytest.mark.kernels("pool/grad/averages.cu")
@pytest.mark.parametrize("counted", [0, 1], ids=["borders", "everywhere"])
@pytest.mark.parametrize(("size", "stride"), averages._SIZES)
def test_threads_of_several_columns_take_about_as_many(size: int, stride: int, counted: int) -> None:
    """Except for divisions, which are 17 instructions of SASS and one of PTX."""
    found, _, view, form, walk = taken("strips", (2, 16, 63, 64), size, stride, counted)
    few = averages._of_strip(view, form, walk, bool(counted))
    divided = walk * stride * form.columns if counted else (walk + view.halo(form)) * form.windows
    in_ptx = few - divided * (averages._DIVISION - 1 if counted else averages._STRIP_DIVISION - 1)
    assert found == pytest.approx(in_ptx, rel=0.25)


@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_no_register_goes_to_memory(dtype: str) -> None:
    for form in averages._FORMS:
        body = machine_code.code(averages.variant(dtype, form))
        assert not sass.names(body, range(len(body)), "LDL", "STL")


# ---------------------------------------------------------------- what they make


@pytest.mark.gpu
@pytest.mark.kernels("pool/grad/averages.cu")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 5, 6), {"kernel_shape": [2, 2], "pads": [2, 3, 2, 2]}),  # windows of only padding
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [4, 5], "count_include_pad": 1}),
        ((1, 2, 4, 3, 5), {"kernel_shape": [2, 2, 3], "strides": [1, 3, 1], "pads": [1, 0, 2, 0, 1, 2]}),
        ((2, 4, 7, 6), {"kernel_shape": [3, 2], "strides": [5, 4], "ceil_mode": 1}),  # elements outside all windows
        ((3, 5, 6, 7), {"kernel_shape": [6, 7]}),
    ],
    ids=str,
)
def test_windows_at_the_borders(shape: Ints, attributes: dict[str, Any], layout: str) -> None:
    """An infinite dy of a window without valid elements has no effect; elements covered by no window are 0."""
    dy = np.random.default_rng(1).integers(-4, 5, geometry.average_pool(shape, **attributes).y_shape)
    dy = dy.astype(np.float32)
    dy.reshape(-1)[::7] = np.inf
    expected = gradients.average_pool_grad(dy, shape, **attributes)
    given, x_shape = dy, shape
    if layout == "NHWC":
        given, x_shape = np.moveaxis(dy, 1, -1), (shape[0], *shape[2:], shape[1])
    with preferred("walks"), any_cuda():
        found = gpuconv.average_pool_grad(given, x_shape, layout=layout, **attributes)
    dx = np.moveaxis(found, -1, 1) if layout == "NHWC" else found
    assert_close(np.ascontiguousarray(dx), expected, "float32")
