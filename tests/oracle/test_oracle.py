"""The oracle compared with hand-computed numbers, the specification's examples, and peers where they are reliable."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from gpuconv.judge import definition
from gpuconv.rules import cases
from tests.oracle import make_expected, oracle
from tests.oracle.case_rows import every_case
from tests.oracle.every_row import every_row
from tests.oracle.oracle import BFLOAT16

pytestmark = pytest.mark.slow

POOL_TYPES = ("float16", BFLOAT16, "float32", "float64", "int8", "uint8")
NAN, INF = np.nan, np.inf


def line(*values: float, dtype: Any = np.float32) -> oracle.Array:
    """Return an array with one batch entry, one channel and one axis."""
    return np.array(values, dtype=dtype).reshape(1, 1, -1)


def plane(*rows: list[float], dtype: Any = np.float32) -> oracle.Array:
    """Return an array with one batch entry, one channel and two axes."""
    return np.array(rows, dtype=dtype).reshape(1, 1, len(rows), -1)


def sums(exact: oracle.Exact) -> list[float]:
    """Return all values in row-major order."""
    return [float(v) for v in exact.value.ravel()]


# ---------------------------------------------------------------- Conv by hand


def test_conv_of_a_stride_a_dilation_and_one_sided_pads() -> None:
    # ek = 3, starts at -1 and 1: 10*(padding) + 1*x[1] = 2; 10*x[1] + 1*x[3] = 24
    y = oracle.conv(line(1, 2, 3, 4), line(10, 1), pads=[1, 0], strides=[2], dilations=[2])
    assert sums(y) == [2, 24]


def test_conv_of_a_plane() -> None:
    # 3x3 ones over 0..8 with a border of one: the corner sums 0+1+3+4 = 8, the middle all 36
    x = plane([0, 1, 2], [3, 4, 5], [6, 7, 8])
    y = oracle.conv(x, np.ones((1, 1, 3, 3), np.float32), pads=[1, 1, 1, 1])
    assert sums(y) == [8, 15, 12, 21, 36, 27, 20, 33, 24]


def test_conv_puts_pads_of_four_sizes_where_they_belong() -> None:
    # pads = [top, left, bottom, right] = [1, 0, 0, 2], a 1x1 kernel of one: the padded plane itself
    y = oracle.conv(plane([1, 2]), plane([1]), pads=[1, 0, 0, 2])
    assert y.value.tolist() == [[[[0, 0, 0, 0], [1, 2, 0, 0]]]]


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "size"),
    [
        (2, 3, 2, 0),  # floor(-1/2) + 1 = 0; truncation would give 1
        (2, 4, 2, 0),  # floor(-2/2) + 1 = 0
        (0, 3, 3, 0),  # floor(-3/3) + 1 = 0
        (5, 3, 9, 1),  # floor(2/9) + 1 = 1
        (7, 2, 3, 2),  # floor(5/3) + 1 = 2
    ],
)
def test_conv_sizes(n: int, kernel: int, stride: int, size: int) -> None:
    y = oracle.conv(np.zeros((1, 1, n)), np.zeros((1, 1, kernel)), strides=[stride])
    assert y.value.shape == (1, 1, size)


@pytest.mark.parametrize(("n", "kernel", "stride"), [(1, 3, 1), (0, 3, 2), (2, 9, 3)])
def test_a_negative_size_is_an_error(n: int, kernel: int, stride: int) -> None:
    # floor(-2/1) + 1 = -1, floor(-3/2) + 1 = -1, floor(-7/3) + 1 = -2
    with pytest.raises(ValueError, match="negative size"):
        oracle.conv(np.zeros((1, 1, n)), np.zeros((1, 1, kernel)), strides=[stride])
    with pytest.raises(ValueError, match="negative size"):
        oracle.max_pool(np.zeros((1, 1, n)), kernel_shape=[kernel], strides=[stride])


@pytest.mark.parametrize(
    ("auto_pad", "dilation", "expected"),
    [
        # total = 3 + 2 - 4 = 1. UPPER: x[o] + 10 x[o+1]. LOWER: x[o-1] + 10 x[o]
        ("SAME_UPPER", 1, [21, 32, 43, 4]),
        ("SAME_LOWER", 1, [10, 21, 32, 43]),
        # ek = 4, total = 3 + 4 - 4 = 3. UPPER, one before: x[o-1] + 10 x[o+2]. LOWER, two before: x[o-2] + 10 x[o+1]
        ("SAME_UPPER", 3, [30, 41, 2, 3]),
        ("SAME_LOWER", 3, [20, 30, 41, 2]),
        (b"SAME_LOWER", 3, [20, 30, 41, 2]),
    ],
)
def test_same_with_an_odd_total(auto_pad: str | bytes, dilation: int, expected: list[float]) -> None:
    y = oracle.conv(line(1, 2, 3, 4), line(1, 10), auto_pad=auto_pad, dilations=[dilation])
    assert sums(y) == expected


def test_same_with_a_stride_above_the_kernel() -> None:
    # out = ceil(4/3) = 2, total = max(0, 3 + 1 - 4) = 0: x[0] and x[3]
    assert sums(oracle.conv(line(1, 2, 3, 4), line(1), auto_pad="SAME_LOWER", strides=[3])) == [1, 4]
    # out = ceil(3/5) = 1, total = 0 + 4 - 3 = 1, at the beginning: padding, then 10*1 + 100*2 + 1000*3
    assert sums(oracle.conv(line(1, 2, 3), line(1, 10, 100, 1000), auto_pad="SAME_LOWER", strides=[5])) == [3210]


def test_padding_is_never_multiplied() -> None:
    # o = 0: inf is over padding, so the sum is 1*1; o = 1: inf*1 + 1*2
    assert sums(oracle.conv(line(1, 2), line(INF, 1), pads=[1, 0])) == [1, INF]
    # inf*0 inside the input is NaN
    assert np.isnan(oracle.conv(line(0, 2), line(INF, 1), pads=[1, 0]).value[0, 0, 1])
    # inf*1 + (-inf)*1 is NaN, -inf*1 + 2*1 is -inf
    assert np.isnan(oracle.conv(line(INF, -INF), line(1, 1)).value).all()
    assert sums(oracle.conv(line(-INF, 2), line(1, 1))) == [-INF]


def test_conv_groups() -> None:
    x = np.array([1.0, 10.0, 100.0, 1000.0]).reshape(1, 4, 1)
    # two channels a group, outputs 0 and 1 of the first, 2 and 3 of the second
    assert sums(oracle.conv(x, np.ones((4, 2, 1)), group=2)) == [11, 11, 1100, 1100]
    # depthwise with two outputs a channel: the output channels of one input channel are adjacent
    w = np.array([1.0, 2, 3, 4]).reshape(4, 1, 1)
    assert sums(oracle.conv(x[:, :2], w, group=2)) == [1, 2, 30, 40]


def test_a_sum_over_nothing_is_the_bias() -> None:
    b = np.array([3.0, 4.0])
    assert sums(oracle.conv(np.zeros((1, 0, 2)), np.zeros((2, 0, 1)), b)) == [3, 3, 4, 4]
    assert sums(oracle.conv(np.zeros((1, 1, 0)), np.ones((2, 1, 3)), b, pads=[2, 2])) == [3, 3, 4, 4]
    assert oracle.conv(np.zeros((0, 1, 4)), np.ones((2, 1, 3)), b).value.shape == (0, 2, 2)
    assert oracle.conv(np.zeros((1, 1, 4)), np.ones((0, 1, 3)), b[:0]).value.shape == (1, 0, 2)


def test_sums_are_exact() -> None:
    ones = np.ones((1, 1, 3))
    assert sums(oracle.conv(line(2.0**60, 1, -(2.0**60), dtype=np.float64), ones)) == [1]
    # 10e308 - 10e308 + 1, though neither product is a float64
    y = oracle.conv(line(1e308, -1e308, 1, dtype=np.float64), line(10, 10, 1, dtype=np.float64))
    assert sums(y) == [1]
    # far beyond float64
    assert sums(oracle.conv(line(-1e308, dtype=np.float64), line(1e308, dtype=np.float64))) == [-INF]
    # 0.5 * 2^-1074 is a tie, to even: 0. Three of them are 1.5 * 2^-1074, to even: 2 * 2^-1074
    tiny = line(5e-324, dtype=np.float64)
    assert sums(oracle.conv(tiny, line(0.5, dtype=np.float64))) == [0]
    assert sums(oracle.conv(np.repeat(tiny, 3, axis=2), ones * 0.5)) == [1e-323]
    # 0.1 and 0.3 as float64, the product and the sum rounded once together: checked with whole numbers
    assert sums(oracle.conv(line(0.1, 0.1, dtype=np.float64), line(3, -3, dtype=np.float64))) == [0]


def test_magnitude_and_terms() -> None:
    y = oracle.conv(np.array([[[-1.0], [2.0]]]), np.array([[[3.0], [-4.0]]]), np.array([-5.0]))
    # -3 - 8 - 5, 3 + 8 + 5, two products and the bias
    assert (sums(y), y.magnitude.ravel().tolist(), y.terms) == ([-16], [16], 3)


# ---------------------------------------------------------------- sums of products


@pytest.mark.parametrize(("bits", "kind"), [(1, object), (22, object), (70, object), (1000, object), (27, np.int64)])
def test_products_of_whole_numbers_are_exact(bits: int, kind: Any) -> None:
    random = Random(bits)
    x, w = (
        np.array([[random.randint(-(2**bits), 2**bits) for _ in range(9)] for _ in range(count)], kind)
        for count in (4, 3)
    )
    expected = [[sum(int(a) * int(b) for a, b in zip(row, weights, strict=True)) for weights in w] for row in x]
    assert definition._whole_product(x, w).tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 5])
def test_products_with_nan_and_infinities_are_those_of_ieee_arithmetic(count: int) -> None:
    numbers = np.random.default_rng(count)
    x, w = (numbers.choice([0.0, -0.0, 1.0, -2.0, 3.0, np.inf, -np.inf, np.nan], (30, count)) for _ in range(2))
    found = definition._special_product(x, w)
    for row, column in np.ndindex(found.shape):
        pairs = zip(x[row].tolist(), w[column].tolist(), strict=True)
        total = sum((a * b for a, b in pairs if not (np.isfinite(a) and np.isfinite(b))), start=0.0)
        np.testing.assert_equal(found[row, column], total)


# ---------------------------------------------------------------- ConvTranspose by hand and from the specification

NINE = plane([0, 1, 2], [3, 4, 5], [6, 7, 8])
ONES = np.ones((1, 2, 3, 3), np.float32)


def twice(*rows: Any) -> list[Any]:
    """Return nested lists of two equal output channels, as in the specification's examples."""
    return [[list(rows), list(rows)]]


def test_transposed_default_example() -> None:
    assert oracle.conv_transpose(NINE, ONES).value.tolist() == twice(
        [0, 1, 3, 3, 2], [3, 8, 15, 12, 7], [9, 21, 36, 27, 15], [9, 20, 33, 24, 13], [6, 13, 21, 15, 8]
    )


_STRIDED = [[0, 0, 1, 1, 3, 2, 2, 0], [3, 3, 7, 4, 9, 5, 5, 0], [6, 6, 13, 7, 15, 8, 8, 0]]


@pytest.mark.parametrize("attributes", [{"output_shape": [10, 8]}, {"output_padding": [1, 1]}])
def test_transposed_attributes_example(attributes: dict[str, Any]) -> None:
    rows = [row for row in _STRIDED for _ in range(3)]
    y = oracle.conv_transpose(NINE, ONES, strides=[3, 2], **attributes)
    assert y.value.tolist() == twice(*rows, [0] * 8)


def test_transposed_dilations_example() -> None:
    y = oracle.conv_transpose(plane([3, 8, 1], [9, 5, 7], [3, 2, 6]), plane([7, 2], [1, 9]), dilations=[2, 2])
    assert y.value[0, 0].tolist() == [
        [21, 56, 13, 16, 2],
        [63, 35, 67, 10, 14],
        [24, 22, 76, 76, 21],
        [9, 5, 88, 45, 63],
        [3, 2, 33, 18, 54],
    ]


def test_transposed_same_upper_example() -> None:
    assert oracle.conv_transpose(NINE, ONES, auto_pad="SAME_UPPER", strides=[2, 2]).value.tolist() == twice(
        [0, 0, 1, 1, 3, 2],
        [0, 0, 1, 1, 3, 2],
        [3, 3, 8, 5, 12, 7],
        [3, 3, 7, 4, 9, 5],
        [9, 9, 20, 11, 24, 13],
        [6, 6, 13, 7, 15, 8],
    )


def test_transposed_pads_example() -> None:
    # of the 9 rows and 7 columns of the plain result, one row each side and two columns each side are cut
    rows = [row[2:5] for row in _STRIDED for _ in range(3)][1:-1]
    y = oracle.conv_transpose(NINE, ONES, strides=[3, 2], pads=[1, 2, 1, 2])
    assert y.value.tolist() == twice(*rows)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        # x = 1 2 3, w = 1 10: the canvas is 1, 10+2, 20+3, 30
        ({}, [1, 12, 23, 30]),
        ({"pads": [1, 2]}, [12]),
        # a total of 1: only SAME_UPPER has its larger half at the end
        ({"output_shape": [3]}, [12, 23, 30]),
        ({"output_shape": [3], "auto_pad": "VALID"}, [12, 23, 30]),
        ({"output_shape": [3], "auto_pad": "SAME_LOWER"}, [12, 23, 30]),
        ({"output_shape": [3], "auto_pad": "SAME_UPPER"}, [1, 12, 23]),
        ({"auto_pad": "SAME_LOWER"}, [12, 23, 30]),
        ({"auto_pad": "SAME_UPPER"}, [1, 12, 23]),
        # pads are ignored, N and C as well
        ({"output_shape": [3], "pads": [0, 1]}, [12, 23, 30]),
        ({"output_shape": [1, 1, 3]}, [12, 23, 30]),
        ({"output_shape": [8, 9, 2]}, [12, 23]),
        # a total of 3, two of them before: smaller than the input
        ({"output_shape": [1]}, [23]),
        # the excess is at the end, for any auto_pad
        ({"output_shape": [6]}, [1, 12, 23, 30, 0, 0]),
        ({"output_shape": [6], "auto_pad": "SAME_LOWER"}, [1, 12, 23, 30, 0, 0]),
        # stride 3: 1 10 . 2 20 . 3 30, natural 8, SAME 9
        ({"strides": [3]}, [1, 10, 0, 2, 20, 0, 3, 30]),
        ({"strides": [3], "auto_pad": "SAME_LOWER"}, [1, 10, 0, 2, 20, 0, 3, 30, 0]),
        ({"strides": [3], "output_padding": [2]}, [1, 10, 0, 2, 20, 0, 3, 30, 0, 0]),
        # with output_padding a total of 10 - 8 = 2 is cut, one each side: output_padding moves the crop
        ({"strides": [3], "output_padding": [2], "output_shape": [8]}, [10, 0, 2, 20, 0, 3, 30, 0]),
        # dilation 2: 1 2 3+10 20 30
        ({"dilations": [2]}, [1, 2, 13, 20, 30]),
    ],
)
def test_transposed_lines(attributes: dict[str, Any], expected: list[float]) -> None:
    y = oracle.conv_transpose(line(1, 2, 3), line(1, 10), np.array([0.5]), **attributes)
    assert sums(y) == [v + 0.5 for v in expected]


def test_transposed_groups() -> None:
    x = np.array([2.0, 3.0]).reshape(1, 2, 1)
    w = np.array([1.0, 10.0, 100.0, 1000.0]).reshape(2, 2, 1)
    assert sums(oracle.conv_transpose(x, w, group=2)) == [2, 20, 300, 3000]
    assert sums(oracle.conv_transpose(x, w)) == [302, 3020]


def test_transposed_empty_axis_and_sizes() -> None:
    nothing, b = np.zeros((1, 1, 0)), np.array([7.0])
    # 1*(0-1) + 3 = 2 outputs of bias; 2*(0-1) + 3 = 1; 2*(0-1) + 2 = 0
    assert sums(oracle.conv_transpose(nothing, np.ones((1, 1, 3)), b)) == [7, 7]
    assert sums(oracle.conv_transpose(nothing, np.ones((1, 1, 3)), b, strides=[2])) == [7]
    assert sums(oracle.conv_transpose(nothing, np.ones((1, 1, 2)), b, strides=[2])) == []
    # 3*(0-1) + 1 = -2
    with pytest.raises(ValueError, match="negative size"):
        oracle.conv_transpose(nothing, np.ones((1, 1, 1)), b, strides=[3])
    # 1*(1-1) + 1 - 2 = -1
    with pytest.raises(ValueError, match="negative size"):
        oracle.conv_transpose(line(1), line(1), pads=[1, 1])


def test_transposed_is_the_gradient_of_conv() -> None:
    random = np.random.default_rng(5)
    x, w = random.integers(-4, 5, (2, 4, 9, 8)), random.integers(-4, 5, (6, 2, 3, 2))
    keywords: dict[str, Any] = {"group": 2, "strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    y = oracle.conv(x, w, **keywords).value
    g = random.integers(-4, 5, y.shape)
    # <conv(x), g> = <x, transposed(g)>: 9 = 2*(h-1) + 3 - 3 + op, h = (9+3-3)//2+1 = 5, op = 1; width likewise op = 0
    back = oracle.conv_transpose(g, w, output_padding=[1, 0], **keywords).value
    assert back.shape == x.shape
    assert (y * g).sum() == (x * back).sum()


# ---------------------------------------------------------------- MaxPool by hand and from the specification

FIVE = np.arange(1, 26).reshape(1, 1, 5, 5)


@pytest.mark.parametrize("dtype", POOL_TYPES)
def test_pool_examples(dtype: Any) -> None:
    x = FIVE.astype(dtype)
    y, z = oracle.max_pool(x, kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    rows = [[13, 14, 15, 15, 15], [18, 19, 20, 20, 20], *[[23, 24, 25, 25, 25]] * 3]
    assert y.dtype == x.dtype
    assert y[0, 0].astype(int).tolist() == rows
    assert z[0, 0].tolist() == [[v - 1 for v in row] for row in rows]
    y, z = oracle.max_pool(x, kernel_shape=[2, 2], strides=[2, 2], storage_order=1)
    assert (y[0, 0].astype(int).tolist(), z[0, 0].tolist()) == ([[7, 9], [17, 19]], [[6, 16], [8, 18]])
    y, _ = oracle.max_pool(x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    assert y[0, 0].astype(int).tolist() == [[7, 9, 10], [17, 19, 20], [22, 24, 25]]
    sixteen = np.arange(1, 17).reshape(1, 1, 4, 4).astype(dtype)
    for keywords in (
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "dilations": [2, 2]},
    ):
        y, _ = oracle.max_pool(sixteen, **keywords)
        assert y[0, 0].astype(int).tolist() == [[11, 12], [15, 16]]


@pytest.mark.parametrize(
    ("n", "size", "keywords"),
    [
        (6, 3, {"kernel_shape": [3], "strides": [2]}),  # ceil(3/2) + 1 = 3, start 4 < 6
        (3, 1, {"kernel_shape": [1], "strides": [3]}),  # ceil(2/3) + 1 = 2, start 3 >= 3: dropped
        (4, 2, {"kernel_shape": [2], "strides": [2], "pads": [0, 1]}),  # ceil(3/2) + 1 = 3, start 4 >= 4: dropped
        (4, 3, {"kernel_shape": [2], "strides": [2], "pads": [1, 0]}),  # ceil(3/2) + 1 = 3, start 4 < 4 + 1: kept
        (2, 3, {"kernel_shape": [2], "strides": [2], "pads": [0, 6]}),  # ceil(6/2) + 1 = 4, start 6 >= 2: one dropped
        (2, 1, {"kernel_shape": [3], "strides": [2]}),  # ceil(-1/2) + 1 = 1, start 0 < 2
        (0, 0, {"kernel_shape": [1], "strides": [2]}),  # ceil(-1/2) + 1 = 1, start 0 >= 0: dropped
        (6, 3, {"kernel_shape": [3], "strides": [2], "auto_pad": "VALID"}),  # as without
        (7, 4, {"kernel_shape": [4], "strides": [2], "auto_pad": "SAME_UPPER"}),  # ceil(7/2), no more
    ],
)
def test_ceil_mode(n: int, size: int, keywords: dict[str, Any]) -> None:
    y, indices = oracle.max_pool(np.zeros((1, 1, n)), ceil_mode=1, **keywords)
    assert y.shape == indices.shape == (1, 1, size)


LOWEST = (-65504, -(2 - 2**-7) * 2.0**127, -(2 - 2**-23) * 2.0**127, -(2 - 2**-52) * 2.0**1023, -128, 0)


@pytest.mark.parametrize(("dtype", "lowest"), list(zip(POOL_TYPES, LOWEST, strict=True)))
def test_a_window_with_no_element(dtype: Any, lowest: float) -> None:
    y, indices = oracle.max_pool(line(5, dtype=dtype), kernel_shape=[1], pads=[1, 1])
    assert y.ravel().astype(float).tolist() == [lowest, 5, lowest]
    assert indices.ravel().tolist() == [-1, 0, -1]
    # taps at -1 and 3 of three elements: the window reaches around the input
    y, indices = oracle.max_pool(line(5, 6, 7, dtype=dtype), kernel_shape=[2], dilations=[4], pads=[1, 1])
    assert (y.ravel().astype(float).tolist(), indices.ravel().tolist()) == ([lowest], [-1])
    # the lowest value itself has an index
    y, indices = oracle.max_pool(line(lowest, lowest, dtype=dtype), kernel_shape=[2])
    assert (y.ravel().astype(float).tolist(), indices.ravel().tolist()) == ([lowest], [0])


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ([1, NAN, NAN], 1),
        ([NAN, 5, NAN], 0),
        ([-INF, NAN, INF], 1),
        ([-INF, -INF, -INF], 0),
        ([-0.0, 0.0, -1], 0),
        ([0.0, -0.0, -1], 0),
        ([2, 7, 7], 1),
        ([0.0, 5e-324, 1e-323], 2),
    ],
)
def test_which_element_a_window_gives(values: list[float], index: int) -> None:
    x = line(*values, dtype=np.float64)
    y, indices = oracle.max_pool(x, kernel_shape=[3])
    assert indices.ravel().tolist() == [index]
    assert y.tobytes() == x[0, 0, index].tobytes()


def test_ties_are_decided_in_row_major_order_and_numbered_in_storage_order() -> None:
    x = plane([0, 5, 0], [5, 0, 0])
    # (0, 1) comes first: row-major 0*3 + 1, column-major 0 + 1*2
    assert oracle.max_pool(x, kernel_shape=[2, 3])[1].tolist() == [[[[1]]]]
    assert oracle.max_pool(x, kernel_shape=[2, 3], storage_order=1)[1].tolist() == [[[[2]]]]


def test_indices_count_the_planes_before() -> None:
    x = np.zeros((2, 3, 2, 2), np.int8)
    x[..., 1, 0] = 1  # row-major 2, column-major 1
    assert oracle.max_pool(x, kernel_shape=[2, 2])[1].ravel().tolist() == [2, 6, 10, 14, 18, 22]
    assert oracle.max_pool(x, kernel_shape=[2, 2], storage_order=1)[1].ravel().tolist() == [1, 5, 9, 13, 17, 21]
    cube = np.zeros((1, 1, 2, 3, 4), np.int8)
    cube[0, 0, 1, 2, 3] = 1  # d + h*D + w*D*H = 1 + 2*2 + 3*2*3
    assert oracle.max_pool(cube, kernel_shape=[2, 3, 4], storage_order=1)[1].ravel().tolist() == [23]
    cube[0, 0, 0, 2, 1] = 2  # 0 + 2*2 + 1*2*3
    assert oracle.max_pool(cube, kernel_shape=[2, 3, 4], storage_order=1)[1].ravel().tolist() == [10]


def test_payloads_of_nan_are_kept() -> None:
    bits = np.array([0x7FC01234, 0xFFC00001], dtype=np.uint32)
    y, _ = oracle.max_pool(bits.view(np.float32).reshape(1, 1, 2), kernel_shape=[1])
    assert y.view(np.uint32).ravel().tolist() == bits.tolist()


# ---------------------------------------------------------------- rounding and comparing


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float16", 2049, 2048),  # ties to even
        ("float16", 2051, 2052),
        ("float16", 65519.999, 65504),
        ("float16", 65520, INF),  # half a step beyond the largest is a tie, to the even neighbour, 65536
        ("float16", -65520, -INF),
        ("float16", 2.0**-25, 0),
        ("float16", 2.0**-25 * 1.0001, 2.0**-24),
        ("float16", 1.5 * 2.0**-24, 2.0**-23),
        (BFLOAT16, 257, 256),
        (BFLOAT16, 259, 260),
        (BFLOAT16, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),  # via float32 it would be a tie, rounded to 1
        (BFLOAT16, 3.4e38, INF),
        (BFLOAT16, 2.0**-134, 0),
        ("float32", 2.0**24 + 1, 2.0**24),
        ("float32", 1e39, INF),
        ("float32", 1.5 * 2.0**-149, 2.0**-148),
        ("float64", 0.1, 0.1),
    ],
)
def test_round_to(dtype: Any, value: float, expected: float) -> None:
    rounded = oracle.round_to(np.array([value]), dtype)
    assert rounded.dtype == np.dtype(dtype)
    assert rounded.astype(np.float64).tolist() == [expected]


def exact_of(value: float, magnitude: float = 0.0, terms: int = 3) -> oracle.Exact:
    """Return one exact sum."""
    return oracle.Exact(np.array([value]), np.array([magnitude]), terms)


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "expected"),
    [
        # K = 3, S = 8, y* = -2
        ("float16", "ieee", 4 * 2.0**-24 * 8 + 2.0**-11 * 2 + 2.0**-25),
        (BFLOAT16, "ieee", 4 * 2.0**-24 * 8 + 2.0**-8 * 2 + 2.0**-134),
        ("float32", "ieee", 4 * 2.0**-24 * 8 + 2.0**-150),
        ("float64", "ieee", 4 * 2.0**-53 * 8),
        ("float32", "tensor cores", 4 * 2.0**-23 * 8 + 2.0**-150),
        ("float32", "tf32", 4 * 2.0**-23 * 8 + 2 * 2.0**-11 * 8 + 2.0**-150),
    ],
)
def test_bound(dtype: Any, arithmetic: str, expected: float) -> None:
    assert oracle.bound(exact_of(-2, 8), dtype, arithmetic).tolist() == [expected]


@pytest.mark.parametrize(
    ("dtype", "value", "magnitude", "actual"),
    [
        ("float32", 1, 1, 1 + 2.0**-22),  # 4 u
        ("float16", NAN, INF, NAN),
        ("float16", INF, INF, INF),
        ("float16", 65519.99, 65519.99, INF),  # the accumulator may have been 65520
        ("float16", 65520.01, 65520.01, 65504),
        ("float32", 1, 1e39, INF),  # a partial sum may have overflowed
    ],
)
def test_assert_close_accepts(dtype: Any, value: float, magnitude: float, actual: float) -> None:
    oracle.assert_close(np.array([actual], dtype=dtype), exact_of(value, magnitude), dtype)


@pytest.mark.parametrize(
    ("dtype", "value", "magnitude", "actual"),
    [
        ("float32", 1, 1, 1 + 2.0**-21),  # 8 u
        ("float16", NAN, INF, 0),
        ("float16", NAN, INF, INF),
        ("float16", INF, INF, -INF),
        ("float16", INF, INF, 65504),
        ("float16", 65000, 65000, INF),
        ("float16", 66000, 66000, 65504),
        ("float16", 1, 1, NAN),
    ],
)
def test_assert_close_refuses(dtype: Any, value: float, magnitude: float, actual: float) -> None:
    with pytest.raises(AssertionError, match=r"1 of 1 elements are wrong; the worst, at \(0,\)"):
        oracle.assert_close(np.array([actual], dtype=dtype), exact_of(value, magnitude), dtype)


def test_assert_close_names_the_worst_element_and_checks_the_form() -> None:
    exact = oracle.Exact(np.zeros((2, 3)), np.ones((2, 3)), 3)
    wrong = np.array([[0, 1, 0], [0, 0, 2]], dtype=np.float32)
    with pytest.raises(AssertionError, match=r"2 of 6 .* worst, at \(1, 2\): got .*2.0.*, error 2, bound 2.38"):
        oracle.assert_close(wrong, exact, np.float32)
    with pytest.raises(AssertionError, match="shape"):
        oracle.assert_close(wrong[:1], exact, np.float32)
    with pytest.raises(AssertionError, match="dtype"):
        oracle.assert_close(wrong.astype(np.float64), exact, np.float32)


def test_assert_same_in_both_meanings() -> None:
    zeros, signs = np.array([0.0, 1.0], np.float16), np.array([-0.0, 1.0], np.float16)
    nan = np.array([0x7E00, 0x7E01], np.uint16).view(np.float16)
    oracle.assert_same(signs, zeros, bits=False)
    oracle.assert_same(nan, nan[::-1], bits=False)
    for left, right in ((signs, zeros), (nan, nan[::-1])):
        with pytest.raises(AssertionError, match=r"of 2 elements differ; the first, at \(0,\)"):
            oracle.assert_same(left, right)
    with pytest.raises(AssertionError, match="1 of 2"):
        oracle.assert_same(np.array([1, 2], np.uint8), np.array([1, 3], np.uint8), bits=False)
    with pytest.raises(AssertionError, match="dtype"):
        oracle.assert_same(zeros, zeros.astype(np.float32), bits=False)


# ---------------------------------------------------------------- third parties


def model_of(operator: str, arrays: dict[str, oracle.Array], outputs: list[str], **attributes: Any) -> onnx.ModelProto:
    """Return a model of one float32 node."""
    node = helper.make_node(operator, list(arrays), outputs, **attributes)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, a.shape) for name, a in arrays.items()]
    types = [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, types, strict=False)]
    graph = helper.make_graph([node], "one", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run_onnxruntime(model: onnx.ModelProto, arrays: dict[str, oracle.Array]) -> list[oracle.Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, arrays)]


def normal(seed: int, *shapes: tuple[int, ...]) -> dict[str, Any]:
    """Return float32 inputs x, w and b of the given shapes."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(s).astype(np.float32) for name, s in zip("xwb", shapes, strict=False)}


def ordinary_axes(random: Random, rank: int) -> dict[str, Any]:
    """Draw attributes with an undisputed meaning: explicit pads smaller than the kernel, and windows that fit."""
    kernel = [random.randint(1, 3) for _ in range(rank)]
    return {
        "kernel_shape": kernel,
        "pads": [random.randrange(k) for k in kernel * 2],
        "strides": [random.randint(1, 3) for _ in range(rank)],
        "dilations": [random.randint(1, 2) for _ in range(rank)],
    }


def ordinary_conv(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    random = Random(seed)
    rank, group = random.randint(1, 3), random.randint(1, 3)
    attributes = ordinary_axes(random, rank)
    c, m = random.randint(1, 3), random.randint(1, 3)
    spatial = tuple(random.randint(5, 8) for _ in range(rank))
    w_shape = (m * group, c, *attributes["kernel_shape"])
    return normal(seed, (2, c * group, *spatial), w_shape, (m * group,)), {**attributes, "group": group}


@pytest.mark.parametrize("seed", range(40))
def test_conv_agrees_with_onnxruntime_and_the_onnx_reference(seed: int) -> None:
    arrays, attributes = ordinary_conv(seed)
    exact = oracle.conv(**arrays, **attributes)
    model = model_of("Conv", arrays, ["y"], **attributes)
    oracle.assert_close(run_onnxruntime(model, arrays)[0], exact, np.float32)
    results: Any = ReferenceEvaluator(model).run(None, arrays)
    oracle.assert_close(results[0], exact, np.float32)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("seed", range(6))
def test_conv_with_auto_pad_agrees_with_onnxruntime(seed: int, auto_pad: str) -> None:
    arrays, attributes = ordinary_conv(seed)
    attributes.update(auto_pad=auto_pad, dilations=None, pads=None)
    given = {name: value for name, value in attributes.items() if value is not None}
    (y,) = run_onnxruntime(model_of("Conv", arrays, ["y"], **given), arrays)
    oracle.assert_close(y, oracle.conv(**arrays, **given), np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_transposed_agrees_with_onnxruntime(seed: int) -> None:
    random = Random(seed)
    rank, group = random.randint(1, 3), random.randint(1, 3)
    attributes = ordinary_axes(random, rank)
    attributes["output_padding"] = [random.randrange(s) for s in attributes["strides"]]
    c, m = random.randint(1, 3), random.randint(1, 3)
    spatial = tuple(random.randint(3, 5) for _ in range(rank))
    arrays = normal(seed, (2, c * group, *spatial), (c * group, m, *attributes["kernel_shape"]), (m * group,))
    attributes["group"] = group
    (y,) = run_onnxruntime(model_of("ConvTranspose", arrays, ["y"], **attributes), arrays)
    oracle.assert_close(y, oracle.conv_transpose(**arrays, **attributes), np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_pool_agrees_with_onnxruntime(seed: int) -> None:
    random = Random(seed)
    rank = random.randint(1, 3)
    attributes = ordinary_axes(random, rank)
    attributes.update(ceil_mode=random.randint(0, 1), storage_order=random.randint(0, 1))
    arrays = normal(seed, (2, 3, *(random.randint(5, 8) for _ in range(rank))))
    arrays["x"] = np.round(arrays["x"])  # to make ties
    y, indices = run_onnxruntime(model_of("MaxPool", arrays, ["y", "i"], **attributes), arrays)
    expected = oracle.max_pool(arrays["x"], **attributes)
    oracle.assert_same(y, expected[0])
    oracle.assert_same(indices, expected[1])


@pytest.mark.parametrize("seed", range(40))
def test_averages_agree_with_onnxruntime(seed: int) -> None:
    random = Random(seed)
    rank = random.randint(1, 3)
    attributes = ordinary_axes(random, rank)
    attributes.update(ceil_mode=random.randint(0, 1), count_include_pad=random.randint(0, 1))
    arrays = normal(seed, (2, 3, *(random.randint(5, 8) for _ in range(rank))))
    (y,) = run_onnxruntime(model_of("AveragePool", arrays, ["y"], **attributes), arrays)
    oracle.assert_close(y, oracle.average_pool(arrays["x"], **attributes), np.float32)


def test_the_sum_of_an_average_may_overflow_where_the_mean_does_not() -> None:
    x = np.full((1, 1, 3), 0.75 * np.finfo(np.float32).max, np.float32)
    for pads, actual in (([0, 0], INF), ([1, 1], 0.0)):  # of three elements, and of two, whose sum overflows as well
        mean = oracle.average_pool(x, kernel_shape=[3], pads=pads)
        oracle.assert_close(np.full(mean.value.shape, actual, np.float32), mean, np.float32)
    alone = oracle.average_pool(x, kernel_shape=[3], pads=[2, 2])  # the first and last windows have one
    with pytest.raises(AssertionError, match="2 of 5 elements"):
        oracle.assert_close(np.full(alone.value.shape, INF, np.float32), alone, np.float32)


def test_the_definition_of_an_average_s_count() -> None:
    count = oracle.counted_taps((6,), (3,), strides=(2,), ceil_mode=1)
    assert count.tolist() == [3, 3, 2]
    assert oracle.counted_taps((6,), (3,), strides=(2,), ceil_mode=1, count_include_pad=1).tolist() == [3, 3, 2]
    assert oracle.counted_taps((6,), (3,), strides=(3,), pads=(1, 1), ceil_mode=1).tolist() == [2, 3, 1]
    padded = oracle.counted_taps((6,), (3,), strides=(3,), pads=(1, 1), ceil_mode=1, count_include_pad=1)
    assert padded.tolist() == [3, 3, 2]
    assert oracle.counted_taps((3,), (2,), dilations=(4,), pads=(1, 1)).tolist() == [0]
    same = oracle.counted_taps((7,), (4,), strides=(2,), auto_pad="SAME_LOWER", count_include_pad=1)
    assert same.tolist() == [4, 4, 4, 4]


def _check_rows(seen: list[str]) -> None:
    with every_row("x of shape (2,)") as row:
        for name in "abcd":
            with row(name):
                seen.append(name)
                assert name != "b", "b is wrong"
                if name == "c":
                    pytest.fail("nothing was raised")
                assert name != "d" or {}[name]


def test_every_row_is_checked_and_all_that_fail_are_reported() -> None:
    seen: list[str] = []
    with pytest.raises(AssertionError) as caught:
        _check_rows(seen)
    assert seen == list("abcd")
    first, *rows = str(caught.value).split("\n\n")
    assert first == "3 of 4 rows failed: x of shape (2,)"
    for text, beginning in zip(
        rows, ("b: AssertionError: b is wrong", "c: Failed: nothing", "d: KeyError"), strict=True
    ):
        assert text.startswith(beginning)
    assert "b is wrong" in str(caught.value.__cause__)
    with pytest.raises(AssertionError, match="no row was checked"), every_row():
        pass


# ---------------------------------------------------------------- the stored expectations


def test_the_stored_file_is_small_and_has_one_entry_for_each_case() -> None:
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    assert make_expected.PATH.stat().st_size < 300_000
    with np.load(make_expected.PATH) as archive:
        assert archive.files == names


def test_inputs_are_what_they_were() -> None:
    first, second = (cases.inputs(case, "float16") for case in cases.CASES[:2])
    assert {name: a.ravel().tolist() for name, a in first.items()} == {"x": [-7], "w": [-2]}
    assert second["x"].ravel()[:12].tolist() == [-7, 3, -5, -2, -5, -4, -4, 1, 7, -5, -5, 3]
    assert second["w"].ravel()[:12].tolist() == [-2, 6, -8, -1, 7, -5, 7, -4, 3, 5, 6, -3]


@pytest.fixture(scope="module")
def stored() -> Iterator[Any]:
    with np.load(make_expected.PATH) as archive:
        yield archive


@every_case()
def test_stored_expectations_are_what_the_oracle_gives(case: cases.Case, stored: Any) -> None:
    with every_row(case) as row:
        for dtype in case.dtypes:
            with row(dtype):
                np.testing.assert_array_equal(make_expected.compute(case, dtype), stored[case.name])
                check_expected(case, dtype)


def check_expected(case: cases.Case, dtype: str) -> None:
    """Compare a case's expected values with the definition of its operator."""
    found = cases.expected(case, dtype)
    if case.op == "max_pool":
        y, indices = oracle.max_pool(cases.inputs(case, dtype)["x"], **case.attributes)
        oracle.assert_same(found[0], y)
        oracle.assert_same(found[1], indices)
    else:
        exact = make_expected.exact(case, dtype)
        oracle.assert_same(found[0], oracle.round_to(exact.value, dtype), bits=False)
        oracle.assert_close(found[0], exact, dtype)


def test_every_partial_sum_of_small_integers_is_exact() -> None:
    with every_row() as row:
        for case in cases.CASES:
            if case.values != "integers" or case.op == "max_pool":
                continue
            with row(case):
                for array in cases.inputs(case, "float32").values():
                    assert np.abs(array).max(initial=0) <= 8
                exact = make_expected.exact(case, "float32")
                there = ~np.isnan(exact.value)  # except for averages of no elements
                assert exact.magnitude[there].max(initial=0) <= 2.0**24
                assert np.abs(exact.value[there]).max(initial=0) < 65504
