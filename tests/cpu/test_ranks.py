"""Up to 62 spatial axes, the most that NumPy's arrays can have: every operator, compared with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients as gradient_rules
from tests.oracle import gradients, oracle
from tests.oracle.high_ranks import as_given, high_problem, in_order, integers, shape_as_given
from tests.oracle.oracle import assert_same, round_to

pytestmark = pytest.mark.slow

RANKS = (31, 61, 62)  # fast methods have too many axes for wide kernels, and for any; and the largest rank
BOTH = ("conv", "conv_transpose")
every_rank = pytest.mark.parametrize("rank", RANKS)
every_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


# ---------------------------------------------------------------- the operators


@pytest.mark.parametrize("operator", BOTH)
@every_rank
@every_layout
def test_convolutions(operator: str, rank: int, layout: str) -> None:
    random = Random(rank)
    for _ in range(3):
        problem = high_problem(random, operator, rank)
        x, w, b = (integers(random, shape or ()) for shape in problem.shapes)
        expected = round_to(getattr(oracle, operator)(x, w, b, **problem.attributes).value, x.dtype)
        y = getattr(gpuconv, operator)(as_given(layout, x), w, b, layout=layout, **problem.attributes)
        assert_same(in_order(layout, y), expected, bits=False)


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_convolutions_in_every_dtype(operator: str, dtype: str) -> None:
    random, kind = Random(8), np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    problem = high_problem(random, operator, 62)
    x, w = (integers(random, shape or ()) for shape in problem.shapes[:2])
    expected = getattr(oracle, operator)(x, w, **problem.attributes).value
    assert expected.any()
    turn = 1j if kind.kind == "c" else 1
    y = getattr(gpuconv, operator)((x * turn).astype(kind), w.astype(kind), **problem.attributes)
    assert y.dtype == kind
    assert (y == (expected * turn).astype(kind)).all()


@pytest.mark.parametrize("operator", BOTH)
@every_rank
def test_what_comes_after_the_sums(operator: str, rank: int) -> None:
    random = Random(7)
    problem = high_problem(random, operator, rank)
    x, w, b = (integers(random, shape or ()) for shape in problem.shapes)
    value = getattr(oracle, operator)(x, w, b, **problem.attributes).value
    residual, function = integers(random, value.shape), getattr(gpuconv, operator)
    out = np.full((*value.shape[:-1], 2 * value.shape[-1]), np.nan, np.float32)[..., ::2]
    y = function(x, w, b, residual=residual, activation="relu", out=out, **problem.attributes)
    assert y is out
    assert (y == np.maximum(value + residual, 0)).all()


@pytest.mark.parametrize("rank", [31, 60, 61])
@pytest.mark.parametrize("taps", [1, 3, 6])
def test_a_kernel_along_the_last_axis_alone(rank: int, taps: int) -> None:
    random = Random(taps)
    x, w = integers(random, (2, 4, 2, *(1,) * (rank - 2), 9)), integers(random, (6, 2, *(1,) * (rank - 1), taps))
    attributes: dict[str, Any] = {"group": 2, "pads": [0] * (rank - 1) + [1] + [0] * (rank - 1) + [2]}
    assert (gpuconv.conv(x, w, **attributes) == oracle.conv(x, w, **attributes).value).all()


@every_rank
def test_an_infinite_weight_on_padding_adds_nothing(rank: int) -> None:
    random = Random(11)
    x, w = integers(random, (1, 2, *(1,) * (rank - 1), 5)), integers(random, (3, 2, *(1,) * (rank - 2), 3, 2))
    w[..., 0, :] = np.inf
    pads = [0] * rank * 2
    pads[rank - 2] = pads[2 * rank - 2] = 1
    expected = oracle.conv(x, np.where(np.isinf(w), 0, w), pads=pads).value
    assert (gpuconv.conv(x, w, pads=pads) == expected).all()


@every_rank
@every_layout
@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_max_pool(rank: int, layout: str, storage_order: int, dtype: str) -> None:
    random = Random(rank + storage_order)
    problem = high_problem(random, "max_pool", rank)
    attributes = {**problem.attributes, "storage_order": storage_order}
    x = integers(random, problem.x_shape, dtype)
    if dtype != "int8":
        x.reshape(-1)[::5] = np.nan
    values, places = oracle.max_pool(x, **attributes)
    y, indices = gpuconv.max_pool(as_given(layout, x), layout=layout, return_indices=True, **attributes)
    assert_same(in_order(layout, y), values)
    assert_same(in_order(layout, indices), places)
    assert_same(
        in_order(layout, gpuconv.max_pool(as_given(layout, x), layout=layout, **attributes)), values, bits=False
    )


# ---------------------------------------------------------------- gradients, and what goes back by Indices


@pytest.mark.parametrize("operator", BOTH)
@every_rank
@every_layout
def test_gradients_of_convolutions(operator: str, rank: int, layout: str) -> None:
    random = Random(rank)
    problem = high_problem(random, operator, rank)
    x, w = (integers(random, shape or ()) for shape in problem.shapes[:2])
    dy = integers(random, gradients.shape_of_result(problem))
    own = {**problem.attributes, "layout": layout}
    x_shape, of_layout = shape_as_given(layout, x.shape), as_given(layout, dy)
    dx = getattr(gpuconv, f"{operator}_input_grad")(of_layout, w, x_shape, **own)
    assert (in_order(layout, dx) == gradients.input_grad(problem, dy, w).value).all()
    dw = getattr(gpuconv, f"{operator}_weight_grad")(as_given(layout, x), of_layout, w.shape, **own)
    assert (dw == gradients.weight_grad(problem, x, dy).value).all()
    db = getattr(gpuconv, f"{operator}_bias_grad")(of_layout, layout=layout)
    assert (db == gradients.bias_grad(dy).value).all()


@every_rank
@every_layout
@pytest.mark.parametrize("storage_order", [0, 1])
def test_the_gradient_of_max_pool(rank: int, layout: str, storage_order: int) -> None:
    random = Random(rank)
    problem = high_problem(random, "max_pool", rank)
    attributes = {**problem.attributes, "storage_order": storage_order}
    indices = oracle.max_pool(integers(random, problem.x_shape), **attributes)[1]
    dy = integers(random, indices.shape)
    expected = gradients.max_pool_grad(dy, indices, problem.x_shape, storage_order).value
    x_shape = shape_as_given(layout, problem.x_shape)
    dx = gpuconv.max_pool_grad(as_given(layout, dy), as_given(layout, indices), x_shape, layout=layout, **attributes)
    assert (in_order(layout, dx) == expected).all()


@every_rank
@every_layout
def test_max_unpool(rank: int, layout: str) -> None:
    random = Random(rank)
    shape = (2, 3, *(1,) * (rank - 3), 2, 1, 3)
    strides = [*(random.randint(1, 3) for _ in range(rank - 3)), 2, 3, 1]
    kernel = [*(1,) * (rank - 3), 3, 1, 2]
    numbered = (2, 3, *(1,) * (rank - 3), 5, 1, 4)
    larger = (*(1,) * (rank - 4), 2, 5, 3, 6)
    indices = np.random.default_rng(rank).integers(-1, 2 * 3 * 5 * 4, shape)
    y = integers(random, shape)
    for output_shape, result in ((None, numbered), (larger, (2, 3, *larger))):
        expected = gradients.max_unpool(y, indices, numbered, result)
        x = gpuconv.max_unpool(
            *(as_given(layout, array) for array in (y, indices)),
            output_shape,
            kernel_shape=kernel,
            strides=strides,
            layout=layout,
            check_indices=False,
        )
        assert_same(in_order(layout, x), expected)


# ---------------------------------------------------------------- many axes that are not of one element, or taps


def test_twelve_axes_of_two_elements() -> None:
    random = Random(1)
    spatial, kernel, pads = [1] * 62, [1] * 62, [0] * 124
    for axis in range(0, 60, 5):
        spatial[axis] = 2
    for axis in (0, 5, 31, 61):
        kernel[axis], pads[62 + axis] = 2, 1
    x, w = integers(random, (1, 2, *spatial)), integers(random, (3, 2, *kernel))
    assert (gpuconv.conv(x, w, pads=pads) == oracle.conv(x, w, pads=pads).value).all()
    y, indices = gpuconv.max_pool(x, kernel_shape=kernel, pads=pads, return_indices=True)
    values, places = oracle.max_pool(x, kernel_shape=kernel, pads=pads)
    assert_same(y, values)
    assert_same(indices, places)


@pytest.mark.parametrize("operator", BOTH)
def test_taps_that_meet_nothing_take_no_time(operator: str) -> None:
    rank = 58
    x = np.full((1, 1, *(1,) * rank), 3, np.float32)
    w = np.broadcast_to(np.float32(2), (1, 1, *(2,) * rank))  # more taps than a loop could visit
    pads = [1] * rank + [0] * rank
    assert getattr(gpuconv, operator)(x, w, pads=pads).tolist() == np.full(x.shape, 6).tolist()


def test_the_gradient_of_a_window_of_2_to_the_40_taps() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2**40], "pads": [2**40, 2**39], "strides": [2**39]}
    dy, indices = np.array([[[5, 7]]], np.float32), np.array([[[-1, 7]]])
    dx = gpuconv.max_pool_grad(dy, indices, (1, 1, 8), **attributes)
    assert dx.tolist() == [[[0, 0, 0, 0, 0, 0, 0, 7]]]


def test_the_gradient_of_weights_of_which_padding_meets_most() -> None:
    x, dy = np.array([[[2, 3]]], np.float32), np.array([[[5]]], np.float32)
    dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 2**20), pads=[2**19, 2**19 - 2])
    assert np.flatnonzero(dw).tolist() == [2**19, 2**19 + 1]
    assert dw[0, 0, 2**19 : 2**19 + 2].tolist() == [10, 15]


# ---------------------------------------------------------------- beyond


ONES = (1,) * 65


@pytest.mark.parametrize(
    ("array", "geometry"),
    [
        ("conv: x", lambda: geometries.conv(ONES, ONES)),
        ("conv_transpose: x", lambda: geometries.conv_transpose(ONES, ONES)),
        ("max_pool: x", lambda: geometries.max_pool(ONES, kernel_shape=ONES[2:])),
        ("max_unpool: y", lambda: gradient_rules.max_unpool(ONES, ONES, kernel_shape=ONES[2:])),
        ("conv_bias_grad: dy", lambda: gradient_rules.conv_bias_grad(ONES)),
        ("conv_input_grad: x", lambda: gradient_rules.conv_input_grad(ONES, ONES, x_shape=ONES)),
    ],
)
def test_the_first_rank_that_no_array_has(array: str, geometry: Callable[[], Any]) -> None:
    sentence = f"^{array} has 63 spatial axes, but beside batch and channels an array has at most 62$"
    with pytest.raises(ArgumentError, match=sentence):
        geometry()
