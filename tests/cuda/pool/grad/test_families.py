"""Kernels for the gradient of MaxPool: accepted problems, and reasons for refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv.cuda.call import tuned
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.pool.grad import base, walks
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from tests.harness.emulated import indices, long_walks, preferred
from tests.harness.plans import HOPPER, fields
from tests.harness.plans import max_pool_grad as plan

LARGE = (32, 64, 112, 112)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kernel", "strides", "name"),
    [
        ([2, 2], [2, 2], "2x2"),
        ([3, 3], [2, 2], "3x2"),
        ([3, 2], [2, 2], "3x2"),
        ([3, 3], [1, 1], "3x1"),
        ([2, 2], [1, 1], "3x1"),
        ([1, 1], [1, 2], "1x1"),
        ([3, 3], [3, 3], "5xany"),
        ([5, 5], [2, 1], "5xany"),
        ([3, 9], [2, 1], "5xany"),
        ([13, 40], [1, 1], "13xany"),
    ],
)
def test_windows_have_the_kernel_for_their_size(kernel: list[int], strides: list[int], name: str, last: bool) -> None:
    with preferred("walks"):
        found = plan(LARGE, "bfloat16", last, kernel_shape=kernel, strides=strides)
    assert found.kernel == found.launches[0].variant.name == f"max_pool_grad_bfloat16_3d_walks_{name}"
    assert found.reasons[0].startswith("max_pool_grad_bfloat16_3d: predicted ")
    assert not any(reason.startswith("not by") for reason in found.reasons)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_other_ranks_have_them_too(axes: int, last: bool) -> None:
    found = plan((256, 128, *[40] * axes), last=last, kernel_shape=[2] * axes, strides=[2] * axes)
    names = {(1, False): "1x1", (1, True): "2x2"}
    assert found.kernel.endswith(names.get((axes, last), "2x2"))


def test_columns_go_along_the_depth_where_windows_overlap_there() -> None:
    sizes: dict[str, Any] = {"kernel_shape": [3, 14, 3], "strides": [2, 1, 2]}
    with preferred("walks"):
        assert plan((8, 16, 40, 40, 40), **sizes).kernel.endswith("5xany")


def test_the_struct_of_the_general_kernel() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [1, 2], "pads": [1, 2, 0, 1]}
    found = plan((2, 3, 7, 9), **attributes)  # y: (2, 3, 4, 5)
    (launch,) = found.launches
    numbers = fields(launch)
    expected = {
        "plane": 63, "elements": 2 * 3 * 63, "y_extent": [1, 4, 5], "pad": [0, 1, 2], "reach": [1, 5, 4],
        "x_extent": [1, 7, 9], "stride": [1, 1, 2], "dilation": [1, 2, 3], "channels": 3, "channels_last": 0,
        "place_stride": [0, 9, 1],
    }  # fmt: skip
    assert {name: numbers[name] for name in expected} == expected


def test_what_must_fit_into_32_bits() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}
    problem = plan((2, 3, 20, 30), **attributes).problem
    view = base.columns_of(problem)
    depth, height, width = [0, 0, 1, 1, 1, 1], [18, 1, 18 - 1 + 3, 3, 1, 20 + 1], [27, 0, 27 + 2, 2, 1, 30]
    around = 2 * (3 + 1) * 30  # the rows of a window and of the padding, on both sides
    beyond = (
        0 + 11 + 11 + 1
    ) * 2  # 11 rows of windows; a walk of as many rows that begins with the last one, and its next row
    form = next(form for form in walks._FORMS if form.stride == 0)
    assert list(view.magnitudes(form)) == [*depth, *height, *width, beyond, 2 * 3 * 20 * 30 + around]


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((1, 1, 30, 256), {"kernel_shape": [20, 2], "strides": [2**55, 1], "pads": [2**55, 0, 20, 0]}),
        ((1, 1, 30, 256), {"kernel_shape": [2, 2], "strides": [2**55, 1], "pads": [2**55, 0, 2, 0]}),
        ((1, 1, 30, 16, 16), {"kernel_shape": [2] * 3, "strides": [2**55, 1, 1], "pads": [2**55, 0, 0, 2, 0, 0]}),
        ((1, 1, 2 * 10**9, 1), {"kernel_shape": [3, 1], "strides": [3 * 5 * 10**8, 1]}),
    ],
    ids=["rows around a window", "of a small one", "in depth", "where the last walk may end"],
)
def test_what_walks_count_beyond_32_bits_is_left_to_the_general_kernel(x: Any, attributes: dict[str, Any]) -> None:
    found = plan(x, **attributes)
    assert found.kernel.startswith(("max_pool_grad_float32_3d", "max_pool_grad_float32_4d"))
    assert not any(name in found.kernel for name in ("walks", "scatter"))
    assert found.reasons[-1].endswith("scatter: 64-bit indices")


def test_numbers_beyond_32_bits_are_refused() -> None:
    with indices(wide=True):
        found = plan((2, 3, 8, 8), kernel_shape=[2, 2], strides=[2, 2])
    assert (found.kernel, found.reasons[-1]) == (
        "max_pool_grad_float32_4d_wide",
        "not by walks, scatter: 64-bit indices",
    )


def test_walks_are_long_where_there_are_many() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    with preferred("walks"):
        short, far = plan((1, 2, 64, 64), **attributes), plan((128, 64, 64, 64), **attributes)
        with long_walks(True):
            longest = plan((1, 2, 64, 64), **attributes)
    assert short.launches[0].grid == (2 * 32 * 32 // 256, 1, 1)  # two columns and two rows a thread
    rows = 128 * 64 * 32 * 32 // 256  # blocks, if a walk had one row
    assert far.launches[0].grid[0] in [rows // walk for walk in (4, 8, 16, 32)]
    assert longest.launches[0].grid == (1, 1, 1)
    assert "2 columns of 2 elements a thread" in short.reasons[-1]


def test_choices_are_kept_apart_from_those_of_the_forward_call() -> None:
    key = tuned.key(plan((1, 2, 6, 6), kernel_shape=[2, 2]).problem)
    assert "dy_strides" in key
    assert "x_strides" not in key.replace("dx_strides", "")


@pytest.mark.parametrize(
    ("x", "strides", "pairs"),
    [
        ((2, 3, 8, 8), (192, 64, 8, 1), True),
        ((2, 3, 8, 8), (193, 64, 8, 1), False),
        ((2, 3, 8, 8), (194, 65, 8, 1), False),
        ((2, 3, 8, 8), (216, 72, 9, 1), False),
        ((2, 3, 8, 8), (194, 64, 10, 1), True),
        ((1, 3, 8, 8), (193, 64, 8, 1), True),  # with a single image, its stride does not matter
        ((2, 3, 8, 8), (384, 128, 16, 2), False),
        ((2, 3, 8, 7), (168, 56, 7, 1), False),
    ],
)
def test_two_columns_are_written_at_once_where_all_rows_begin_with_whole_pairs(
    x: tuple[int, ...], strides: tuple[int, ...], pairs: bool
) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y = geometries.max_pool(x, **attributes).y_shape
    geometry = gradients.max_pool_grad(y, y, x_shape=x, **attributes)
    dy = contiguous_strides(y)
    made = pool_grad_families.for_max_pool_grad(geometry, "float32", dy, dy, strides, HOPPER)
    assert made.kernel is not None
    assert "walks_2x2" in made.kernel
    assert fields(made.launches[0])["vectors"] == pairs


def test_as_many_windows_beside_one_another_meet_the_columns_of_a_thread() -> None:
    """Two columns with a stride of two touch equal numbers of windows, starting at equal offsets."""
    for form in walks._FORMS:
        assert form.columns % max(form.stride, 1) == 0 or form.columns == 1
        if form.across:
            assert form.across == (form.rows - 1 + form.columns) // form.stride
        else:
            assert (form.stride, form.columns) == (0, 1)
            assert form.part > 1
