"""The gradient of MaxPool by windows that use their indices: its boxes, their cost, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool.grad import scatter
from gpuconv.rules import dtypes
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import any_cuda, boxes, preferred
from tests.harness.plans import HOPPER, fields
from tests.harness.plans import max_pool_grad as plan
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import gradients
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same

Ints = tuple[int, ...]


# ---------------------------------------------------------------- when it is taken


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("x", "kernel", "strides"),
    [
        ((32, 64, 112, 112), [13, 13], [1, 1]),
        ((32, 64, 112, 112), [13, 13], [2, 2]),
        ((32, 64, 112, 112), [5, 5], [1, 1]),
        ((32, 64, 112, 112), [40, 7], [1, 3]),
        ((2, 256, 50, 50, 50), [13, 13, 13], [1, 1, 1]),
        ((2, 256, 50, 50, 50), [1, 9, 9], [1, 1, 1]),
        ((32, 256, 5000), [13], [1]),
    ],
)
def test_large_windows_scatter(x: Ints, kernel: list[int], strides: list[int], last: bool) -> None:
    found = plan(x, "bfloat16", last, kernel_shape=kernel, strides=strides)
    assert found.kernel == found.launches[0].variant.name == "max_pool_grad_bfloat16_3d_scatter"


@pytest.mark.parametrize("kernel", [[2, 2], [3, 3]])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_small_windows_do_not(kernel: list[int], strides: list[int]) -> None:
    assert "walks" in plan((32, 64, 112, 112), "bfloat16", kernel_shape=kernel, strides=strides).kernel


def test_one_axis_has_numbers_in_either_order() -> None:
    assert plan((32, 256, 5000), kernel_shape=[13], storage_order=1).kernel.endswith("scatter")


# ---------------------------------------------------------------- boxes


def test_the_struct_and_the_launch() -> None:
    """x: 9 x 10 x 11; rows go along the depth, slices along the height."""
    attributes: dict[str, Any] = {"kernel_shape": [3, 4, 5], "strides": [1, 2, 1], "pads": [2, 1, 4, 0, 3, 2]}
    with boxes(4, 2, 5), preferred("scatter"):
        found = plan((2, 7, 9, 10, 11), "float64", **attributes)  # y: (2, 7, 9, 6, 13)
    (launch,) = found.launches
    struct = fields(launch)
    expected = {
        "walk": 5, "first": 2, "halo": 2, "extent": [10, 9, 11], "box_slices": 2, "box_columns": 4, "vectors": 0,
        "y_extent": [6, 9, 13], "pad": [1, 2, 4], "kernel": [4, 3, 5], "place_stride": [11, 110, 1], "reached": 330,
        "by_row": 110, "by_slice": 11, "slice_bytes": 2048, "row_bytes": 4096, "bytes": 3 * 4096,
        "stride": [2, 1, 1], "groups": 3, "depths": 5, "walks": 2, "items": 14 * 3 * 5 * 2,
    }  # fmt: skip
    assert {name: struct[name] for name in expected} == expected
    assert (launch.grid, launch.shared_bytes) == ((7, 1, 1), 3 * 4096)
    assert found.reasons[-1].endswith(
        "boxes of 2 x 4 elements, 5 rows of windows a thread; 12288 bytes of shared memory"
    )


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kernel", [[13, 13, 13], [150, 3, 3], [2, 2, 2]])
def test_boxes_fit_into_shared_memory(kernel: list[int], dtype: str, architecture: str) -> None:
    limits = representative(architecture).limits
    problem = plan((1, 64, 200, 40, 40), dtype, kernel_shape=kernel).problem
    accepted = scatter._accepted(problem, limits)
    assert not isinstance(accepted, str)
    _, box = accepted
    assert box.bytes == box.rows * box.slices * box.columns * 64 * (8 if dtype == "float64" else 4)
    assert box.bytes <= limits.shared_bytes_per_block


@pytest.mark.parametrize(
    ("strides", "count"),
    [
        ((192, 64, 8, 1), 4),
        ((384, 128, 16, 2), 1),
        ((216, 72, 9, 1), 1),
        ((288, 96, 12, 1), 4),
    ],
)
def test_columns_are_written_at_once_where_rows_begin_with_whole_vectors(strides: Ints, count: int) -> None:
    problem = plan((1, 3, 8, 8), kernel_shape=[3, 3]).problem
    problem = replace(problem, dx_strides=(0, *strides[1:]))
    view = scatter._view(problem)
    assert not isinstance(view, str)
    box = scatter.Box(3, 0, 4, 0, 4, 8)
    assert scatter._vector(problem, view, box) == count
    assert scatter._vector(problem, view, replace(box, columns=2)) == 1


# ---------------------------------------------------------------- what it costs


@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
def test_windows_take_as_many_instructions_as_the_plan_takes_them_to(dtype: str) -> None:
    body = machine_code.code(scatter.variant(dtype))
    parts = [loop for loop in sass.loops(body) if sass.names(body, loop, "LDG")]
    assert len(min(parts, key=len)) == pytest.approx(scatter._PART * scatter._WINDOW, rel=0.1)
    assert not sass.names(body, range(len(body)), "LDL", "STL", "LD", "ST")


@pytest.mark.emulator
@pytest.mark.kernels("pool/grad/scatter.cu")
@pytest.mark.parametrize(
    ("shape", "kernel", "box"),
    [
        ((2, 16, 63, 64), [13, 13], (8, 1, 32)),
        ((2, 16, 63, 64), [5, 5], (4, 1, 16)),
        ((2, 64, 10, 12, 12), [5, 5, 5], (4, 4, 10)),
    ],
)
def test_threads_take_about_as_many_as_well(shape: Ints, kernel: list[int], box: tuple[int, int, int]) -> None:
    """PTX has 55 instructions for a window; machine code merges products with sums, and pairs of predicates."""
    pads = [size // 2 for size in kernel] * 2
    attributes: dict[str, Any] = {"kernel_shape": kernel, "pads": pads}
    y, places = gpuconv.max_pool(np.zeros(shape, np.float32), return_indices=True, **attributes)
    device = emulated_cuda("sm_90a", counters=True, check_shared=False, check_global=False)
    with boxes(*box), preferred("scatter"), device as emulated:
        gpuconv.max_pool_grad(y, places, shape, **attributes)
        problem = plan(shape, **attributes).problem
        accepted = scatter._accepted(problem, HOPPER)
        assert not isinstance(accepted, str)
    view, taken = accepted
    counters = emulated.counters()["max_pool_grad_float32_3d_scatter"]
    found = counters.total["instructions"] * 32 / view.items(taken, taken.walk)
    work = scatter._work(problem, view, taken)
    assert found == pytest.approx(work.instructions + (55 - scatter._WINDOW) * work.windows, rel=0.25)


# ---------------------------------------------------------------- what it makes


CASES = [
    ((2, 3, 20, 24), {"kernel_shape": [5, 7], "strides": [2, 1], "pads": [4, 3, 1, 5]}, (8, 1, 4)),
    ((2, 3, 14, 13), {"kernel_shape": [13, 13], "pads": [6, 6, 6, 6]}, (4, 1, 64)),
    ((1, 2, 17, 30), {"kernel_shape": [2, 3], "strides": [5, 7]}, (4, 1, 2)),  # elements outside all windows
    ((2, 3, 5, 6), {"kernel_shape": [2, 2], "pads": [2, 3, 2, 2]}, (2, 1, 4)),  # windows of only padding
    ((2, 3, 6, 7, 9), {"kernel_shape": [3, 2, 4], "strides": [1, 2, 1], "pads": [2, 1, 0, 1, 0, 3]}, (4, 2, 3)),
    ((2, 3, 6, 7, 9), {"kernel_shape": [2, 3, 4], "strides": [3, 1, 1]}, (4, 4, 8)),  # none overlap in depth
    ((2, 3, 4, 1, 5), {"kernel_shape": [2, 1, 3], "strides": [2, 1, 1]}, (4, 1, 2)),  # a height of 1
    ((2, 3, 40), {"kernel_shape": [13], "strides": [2], "pads": [6, 6]}, (1, 1, 2)),
    ((2, 9, 40), {"kernel_shape": [4], "strides": [3], "storage_order": 1, "ceil_mode": 1}, (1, 1, 8)),
]


def _operands(shape: Ints, dtype: str, attributes: dict[str, Any]) -> tuple[Any, Any]:
    """Return random gradients with some NaN; indices of equal maxima, of other windows, and invalid ones."""
    x = values("ties", 1, shape, dtype)
    y, places = gpuconv.max_pool(x, return_indices=True, **attributes)
    random = np.random.default_rng(2)
    kinds = random.random(y.shape)
    places = np.where(kinds < 0.3, random.integers(0, x.size, y.shape), places)
    nothing = np.array([-1, x.size, x.size + 1, 2**31, 2**32, 2**32 + 3, -(2**63), 2**63 - 1])
    places = np.where(kinds > 0.8, random.choice(nothing, y.shape), places)
    dy = random.standard_normal(y.shape).astype(dtype)
    dy.reshape(-1)[::13] = np.nan
    dy.reshape(-1)[5::17] = -0.0
    return dy, places


@pytest.mark.gpu
@pytest.mark.kernels("pool/grad/scatter.cu", "pool/grad/general.cu")
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "reversed", "strided rows", "off the vectors"])
@pytest.mark.parametrize(("shape", "attributes", "box"), CASES, ids=str)
def test_bits_are_those_of_the_kernel_with_one_element_a_thread(
    shape: Ints, attributes: dict[str, Any], box: tuple[int, int, int], layout: str
) -> None:
    for dtype in dtypes.CONV_DTYPES:
        dy, places = (LAYOUTS[layout](one) for one in _operands(shape, dtype, attributes))
        made = []
        for name in ("scatter", f"max_pool_grad_{dtype}_3d"):
            out = LAYOUTS[layout](np.full(shape, 7, dtype))
            with boxes(*box), preferred(name), any_cuda() as device:
                gpuconv.max_pool_grad(dy, places, shape, out=out, check_indices=False, **attributes)
            assert {launch.variant.name for launch in device.launches} <= {
                f"max_pool_grad_{dtype}_3d_scatter" if name == "scatter" else name
            }
            made.append(out)
        assert_same(*made)


@pytest.mark.gpu
@pytest.mark.kernels("pool/grad/scatter.cu")
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", dtypes.CONV_DTYPES)
@pytest.mark.parametrize(("shape", "attributes", "box"), CASES, ids=str)
def test_elements_have_what_windows_give_that_name_them(
    shape: Ints, attributes: dict[str, Any], box: tuple[int, int, int], dtype: str, layout: str
) -> None:
    x = values("ties", 1, shape, dtype)
    y, places = gpuconv.max_pool(x, return_indices=True, **attributes)
    dy = values("integers", 2, y.shape, dtype)
    out = LAYOUTS[layout](np.full(shape, 7, dtype))
    with boxes(*box), preferred("scatter"), any_cuda():
        dx = gpuconv.max_pool_grad(LAYOUTS[layout](dy), LAYOUTS[layout](places), shape, out=out, **attributes)
    assert_close(dx, gradients.max_pool_grad(dy, places, shape, 0), dtype)
