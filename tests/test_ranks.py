"""Up to 62 spatial axes, which are all that NumPy's arrays have room for: every operator, against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import emulated
import gradients
import ml_dtypes
import numpy as np
import oracle
import pytest
from emulator import emulated_cuda
from oracle import assert_same, round_to
from strategies import Axis, Problem, transposed_axis, window_axis

import gpuconv
from gpuconv import ArgumentError, _geometry, _gradients
from gpuconv._operators import OPERATORS

Array = np.ndarray[Any, Any]
RANKS = (31, 61, 62)  # from where the quick ways have too many axes: with wide kernels, with any, and the last one
BOTH = ("conv", "conv_transpose")
every_rank = pytest.mark.parametrize("rank", RANKS)
every_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def _one(random: Random) -> tuple[Axis, int]:
    """An axis of one element."""
    return Axis(1, 1, random.randint(1, 3), random.randint(1, 3), 0, 0), 0


def _over_padding(random: Random, operator: str) -> tuple[Axis, int]:
    """An axis of one element under a kernel of two or three, all of whose taps but one, or all, meet no input."""
    k, d, s = random.choice((2, 3)), random.randint(1, 2), random.randint(1, 2)
    begin = random.randrange(k) * d
    if operator == "conv_transpose":  # then the pads are what is cropped
        return Axis(1, k, s, d, begin, (k - 1) * d - begin), 0
    return Axis(1, k, s, d, begin, (k - 1) * d - begin + random.randint(0, 1)), 0


def _axes(random: Random, operator: str, rank: int) -> tuple[list[Axis], list[int]]:
    """Two axes as of any problem, four of one element over which the kernel is wide, and many of one; mixed."""
    if operator == "conv_transpose":
        usual = [transposed_axis(random, 3) for _ in range(2)]
    else:
        usual = [(window_axis(random, 3), 0) for _ in range(2)]
    axes = [*usual, *(_over_padding(random, operator) for _ in range(4))]
    axes += [_one(random) for _ in range(rank - len(axes))]
    random.shuffle(axes)
    return [axis for axis, _ in axes], [more for _, more in axes]


def _problem(random: Random, operator: str, rank: int) -> Problem:
    axes, more = _axes(random, operator, rank)
    group = random.choice((1, 2))
    attributes: dict[str, Any] = {
        "dilations": [axis.d for axis in axes],
        "pads": [*(axis.begin for axis in axes), *(axis.end for axis in axes)],
        "strides": [axis.s for axis in axes],
    }
    x_shape, kernel = (2, 2 * group, *(axis.n for axis in axes)), tuple(axis.k for axis in axes)
    if operator == "max_pool":
        attributes |= {"ceil_mode": random.randint(0, 1), "kernel_shape": kernel}
        return Problem(operator, x_shape, attributes=attributes)
    attributes["group"] = group
    if operator == "conv_transpose":
        attributes["output_padding"] = more
        return Problem(operator, x_shape, (2 * group, 3, *kernel), (3 * group,), attributes)
    return Problem(operator, x_shape, (3 * group, 2, *kernel), (3 * group,), attributes)


def _integers(random: Random, shape: Sequence[int], dtype: str = "float32") -> Array:
    return np.random.default_rng(random.getrandbits(32)).integers(-4, 5, shape).astype(dtype)


def _in(layout: str, array: Array) -> Array:
    """The same activation with its channels where the layout says, in memory too."""
    return array if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _back(layout: str, array: Array) -> Array:
    return array if layout == "NCHW" else np.moveaxis(array, -1, 1)


def _shape_in(layout: str, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if layout == "NCHW" else (shape[0], *shape[2:], shape[1])


# ---------------------------------------------------------------- the operators


@pytest.mark.parametrize("operator", BOTH)
@every_rank
@every_layout
def test_convolutions(operator: str, rank: int, layout: str) -> None:
    random = Random(rank)
    for _ in range(3):
        problem = _problem(random, operator, rank)
        x, w, b = (_integers(random, shape or ()) for shape in problem.shapes)
        expected = round_to(getattr(oracle, operator)(x, w, b, **problem.attributes).value, x.dtype)
        y = getattr(gpuconv, operator)(_in(layout, x), w, b, layout=layout, **problem.attributes)
        assert_same(_back(layout, y), expected, bits=False)


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_convolutions_in_every_dtype(operator: str, dtype: str) -> None:
    random, kind = Random(8), np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    problem = _problem(random, operator, 62)
    x, w = (_integers(random, shape or ()) for shape in problem.shapes[:2])
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
    problem = _problem(random, operator, rank)
    x, w, b = (_integers(random, shape or ()) for shape in problem.shapes)
    value = getattr(oracle, operator)(x, w, b, **problem.attributes).value
    residual, function = _integers(random, value.shape), getattr(gpuconv, operator)
    out = np.full((*value.shape[:-1], 2 * value.shape[-1]), np.nan, np.float32)[..., ::2]
    y = function(x, w, b, residual=residual, activation="relu", out=out, **problem.attributes)
    assert y is out
    assert (y == np.maximum(value + residual, 0)).all()


@every_rank
def test_an_infinite_weight_on_padding_adds_nothing(rank: int) -> None:
    random = Random(11)
    x, w = _integers(random, (1, 2, *(1,) * (rank - 1), 5)), _integers(random, (3, 2, *(1,) * (rank - 2), 3, 2))
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
    problem = _problem(random, "max_pool", rank)
    attributes = {**problem.attributes, "storage_order": storage_order}
    x = _integers(random, problem.x_shape, dtype)
    if dtype != "int8":
        x.reshape(-1)[::5] = np.nan
    values, places = oracle.max_pool(x, **attributes)
    y, indices = gpuconv.max_pool(_in(layout, x), layout=layout, return_indices=True, **attributes)
    assert_same(_back(layout, y), values)
    assert_same(_back(layout, indices), places)
    assert_same(_back(layout, gpuconv.max_pool(_in(layout, x), layout=layout, **attributes)), values, bits=False)


# ---------------------------------------------------------------- gradients, and what goes back by Indices


@pytest.mark.parametrize("operator", BOTH)
@every_rank
@every_layout
def test_gradients_of_convolutions(operator: str, rank: int, layout: str) -> None:
    random = Random(rank)
    problem = _problem(random, operator, rank)
    x, w = (_integers(random, shape or ()) for shape in problem.shapes[:2])
    dy = _integers(random, gradients.shape_of_result(problem))
    own = {**problem.attributes, "layout": layout}
    x_shape, of_layout = _shape_in(layout, x.shape), _in(layout, dy)
    dx = getattr(gpuconv, f"{operator}_input_grad")(of_layout, w, x_shape, **own)
    assert (_back(layout, dx) == gradients.input_grad(problem, dy, w).value).all()
    dw = getattr(gpuconv, f"{operator}_weight_grad")(_in(layout, x), of_layout, w.shape, **own)
    assert (dw == gradients.weight_grad(problem, x, dy).value).all()
    db = getattr(gpuconv, f"{operator}_bias_grad")(of_layout, layout=layout)
    assert (db == gradients.bias_grad(dy).value).all()


@every_rank
@every_layout
@pytest.mark.parametrize("storage_order", [0, 1])
def test_the_gradient_of_max_pool(rank: int, layout: str, storage_order: int) -> None:
    random = Random(rank)
    problem = _problem(random, "max_pool", rank)
    attributes = {**problem.attributes, "storage_order": storage_order}
    indices = oracle.max_pool(_integers(random, problem.x_shape), **attributes)[1]
    dy = _integers(random, indices.shape)
    expected = gradients.max_pool_grad(dy, indices, problem.x_shape, storage_order).value
    x_shape = _shape_in(layout, problem.x_shape)
    dx = gpuconv.max_pool_grad(_in(layout, dy), _in(layout, indices), x_shape, layout=layout, **attributes)
    assert (_back(layout, dx) == expected).all()


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
    y = _integers(random, shape)
    for output_shape, result in ((None, numbered), (larger, (2, 3, *larger))):
        expected = gradients.max_unpool(y, indices, numbered, result)
        x = gpuconv.max_unpool(
            *(_in(layout, array) for array in (y, indices)),
            output_shape,
            kernel_shape=kernel,
            strides=strides,
            layout=layout,
        )
        assert_same(_back(layout, x), expected)


# ---------------------------------------------------------------- many axes that are not of one element, or taps


def test_twelve_axes_of_two_elements() -> None:
    random = Random(1)
    spatial, kernel, pads = [1] * 62, [1] * 62, [0] * 124
    for axis in range(0, 60, 5):
        spatial[axis] = 2
    for axis in (0, 5, 31, 61):
        kernel[axis], pads[62 + axis] = 2, 1
    x, w = _integers(random, (1, 2, *spatial)), _integers(random, (3, 2, *kernel))
    assert (gpuconv.conv(x, w, pads=pads) == oracle.conv(x, w, pads=pads).value).all()
    y, indices = gpuconv.max_pool(x, kernel_shape=kernel, pads=pads, return_indices=True)
    values, places = oracle.max_pool(x, kernel_shape=kernel, pads=pads)
    assert_same(y, values)
    assert_same(indices, places)


@pytest.mark.parametrize("operator", BOTH)
def test_taps_that_meet_nothing_take_no_time(operator: str) -> None:
    rank = 58
    x = np.full((1, 1, *(1,) * rank), 3, np.float32)
    w = np.broadcast_to(np.float32(2), (1, 1, *(2,) * rank))  # more taps than could ever be counted
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


# ---------------------------------------------------------------- CUDA


@pytest.mark.emulator
@pytest.mark.parametrize("operator", BOTH)
def test_convolutions_on_cuda(operator: str) -> None:
    random = Random(8)
    problem = _problem(random, operator, 62)
    x, w, b = (_integers(random, shape or ()) for shape in problem.shapes)
    value = getattr(oracle, operator)(x, w, b, **problem.attributes).value
    residual, dy = _integers(random, value.shape), _integers(random, value.shape)
    with emulated_cuda() as device:
        y = getattr(gpuconv, operator)(x, w, b, residual=residual, activation="relu", **problem.attributes)
        dx = getattr(gpuconv, f"{operator}_input_grad")(dy, w, x.shape, **problem.attributes)
        dw = getattr(gpuconv, f"{operator}_weight_grad")(x, dy, w.shape, **problem.attributes)
    assert value.any()
    assert device.launches
    assert (y == np.maximum(value + residual, 0)).all()
    assert (dx == gradients.input_grad(problem, dy, w).value).all()
    assert (dw == gradients.weight_grad(problem, x, dy).value).all()


@pytest.mark.emulator
def test_pools_on_cuda() -> None:
    random = Random(5)
    problem = _problem(random, "max_pool", 62)
    x = _integers(random, problem.x_shape)
    values, places = oracle.max_pool(x, **problem.attributes)
    dy = _integers(random, values.shape)
    ones = {"kernel_shape": [1] * 62}
    with emulated_cuda():
        y, indices = gpuconv.max_pool(x, return_indices=True, **problem.attributes)
        dx = gpuconv.max_pool_grad(dy, places, x.shape, **problem.attributes)
        unpooled = gpuconv.max_unpool(x, np.arange(x.size).reshape(x.shape)[::-1], **ones)
    assert_same(y, values)
    assert_same(indices, places)
    assert (dx == gradients.max_pool_grad(dy, places, x.shape, 0).value).all()
    assert_same(unpooled, x[::-1])


@pytest.mark.parametrize("operator", [*BOTH, "max_pool", "conv_weight_grad", "max_pool_grad", "max_unpool"])
def test_axes_of_one_element_take_no_other_kernels(operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    ones, x, w = (1,) * 59, (2, 8, 9, 10, 11), (8, 8, 3, 3, 3)
    shapes = [x] if "max" in operator else [x, w]
    few: dict[str, Any] = {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 1, 0]}
    many: dict[str, Any] = {"strides": [1, *ones, 2, 1], "pads": [0] * 60 + [1] + [0] * 61 + [1, 0]}
    if len(shapes) == 1:
        few["kernel_shape"], many["kernel_shape"] = w[2:], (3, *ones, 3, 3)
    expected = gpuconv.explain(operator, *shapes, **few)
    found = gpuconv.explain(operator, *((*shape[:3], *ones, *shape[3:]) for shape in shapes), **many)
    assert found.launches == expected.launches
    assert capsys.readouterr().out


def test_more_axes_than_parameters_have_room_for(capsys: pytest.CaptureFixture[str]) -> None:
    def explained(rank: int) -> gpuconv.Plan:
        """Explain an output of one element, the input of which is cropped, along each of many axes."""
        attributes = {"dilations": [2] * rank, "output_padding": [1] * rank, "pads": [1] * rank + [0] * rank}
        return gpuconv.explain("conv_transpose", (1, 1, *(1,) * rank), (1, 1, *(1,) * rank), **attributes)

    assert max(len(launch.parameters) for launch in explained(51).launches) <= 4096
    sentence = (
        "conv_transpose: 52 spatial axes, those of one element left out, make 4120 bytes of parameters, "
        "more than the 4096 of one CUDA launch; pass NumPy arrays"
    )
    with pytest.raises(ArgumentError, match=f"^{sentence}$"):
        explained(52)
    capsys.readouterr()


@pytest.mark.parametrize("operator", OPERATORS)
def test_32_axes_fit_into_the_parameters_of_every_call(operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_weights = operator in OPERATORS and "pool" not in operator and "bias" not in operator
    for dtype in ("float32", "complex64") if has_weights else ("float32",):
        rank = 31 if dtype == "complex64" else 32
        shapes = [(1, 1, *(1,) * rank)] * (2 if has_weights else 1)
        attributes: dict[str, Any] = {"strides": [2] * rank, "pads": [1] * rank + [0] * rank}
        if "transpose" in operator:
            attributes = {"dilations": [2] * rank, "output_padding": [1] * rank, "pads": attributes["pads"]}
        elif operator == "max_unpool":
            attributes = {"kernel_shape": [2] * rank}
        elif "pool" in operator:
            attributes["kernel_shape"] = [1] * rank
        if "bias" in operator:
            attributes, shapes = {}, [(1, 1, *(2,) * rank)]
        with emulated.indices(wide=True):
            plan = gpuconv.explain(operator, *shapes, dtype=dtype, **attributes)
        assert max(len(launch.parameters) for launch in plan.launches) <= 4096
        assert any("wide" in launch.variant.name for launch in plan.launches)
    capsys.readouterr()


# ---------------------------------------------------------------- beyond


ONES = (1,) * 65


@pytest.mark.parametrize(
    ("array", "geometry"),
    [
        ("conv: x", lambda: _geometry.conv(ONES, ONES)),
        ("conv_transpose: x", lambda: _geometry.conv_transpose(ONES, ONES)),
        ("max_pool: x", lambda: _geometry.max_pool(ONES, kernel_shape=ONES[2:])),
        ("max_unpool: y", lambda: _gradients.max_unpool(ONES, ONES, kernel_shape=ONES[2:])),
        ("conv_bias_grad: dy", lambda: _gradients.conv_bias_grad(ONES)),
        ("conv_input_grad: x", lambda: _gradients.conv_input_grad(ONES, ONES, x_shape=ONES)),
    ],
)
def test_the_first_rank_that_no_array_has(array: str, geometry: Callable[[], Any]) -> None:
    sentence = f"^{array} has 63 spatial axes, but beside batch and channels an array has at most 62$"
    with pytest.raises(ArgumentError, match=sentence):
        geometry()
