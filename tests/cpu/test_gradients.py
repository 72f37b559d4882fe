"""Gradients on both backends compared with their definition, with adjoints and with differences."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.rules import gradients as gradient_rules
from gpuconv.rules.precision import PRECISIONS
from tests.cpu.conftest import Backend
from tests.harness.emulated import any_cuda
from tests.oracle import gradients
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same, round_to
from tests.oracle.strategies import GENERATORS, Problem, checked, problems

seeds = st.integers(0, 2**32 - 1)
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
memory = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned"}))
whole_memory = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned", "broadcast"}))  # in which Indices do not change
# Sums of gradients have other operands; partial sums of large ones would overflow.
KINDS = [kinds for kinds in CONV_KINDS if not {"large", "overflowing"} & set(kinds)]


def gradients_of(problem: Problem, x: Any, w: Any, dy: Any, layout: str = "NCHW") -> tuple[Any, Any, Any]:
    """dx, dw and db by the library, all with their channels second."""
    last = layout == "NHWC"
    x, dy = (np.moveaxis(a, 1, -1) if last else a for a in (x, dy))
    name, attributes = problem.operator, {**problem.attributes, "layout": layout}
    dx = getattr(gpuconv, f"{name}_input_grad")(dy, w, x.shape, **attributes)
    dw = getattr(gpuconv, f"{name}_weight_grad")(x, dy, w.shape, **attributes)
    return np.moveaxis(dx, -1, 1) if last else dx, dw, getattr(gpuconv, f"{name}_bias_grad")(dy, layout=layout)


def bound_of(dtype: Any, precision: str = "ieee") -> str:
    """Return the name of the bound: for 16-bit numbers that of tensor cores, which may sum them."""
    return "tensor cores" if np.dtype(dtype).itemsize == 2 else precision if dtype == np.float32 else "ieee"


@operators
@dtypes
@checked(0.4)
@given(
    data=st.data(),
    kinds=st.sampled_from(KINDS),
    seed=seeds,
    layout=memory,
    order=st.sampled_from(["NCHW", "NHWC"]),
)
def test_gradients_are_what_their_definition_says(
    backend: Backend, operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, order: str
) -> None:
    problem = data.draw(problems(operator))
    shapes = problem.x_shape, problem.w_shape, gradients.shape_of_result(problem)
    x, w, dy = (
        LAYOUTS[layout](values(kind, seed + i, s, dtype)) for i, (kind, s) in enumerate(zip(kinds, shapes, strict=True))
    )
    with backend(dtype, problem.rank, seed):
        dx, dw, db = gradients_of(problem, x, w, dy, order)
    assert_close(dx, gradients.input_grad(problem, dy, w), dtype)
    assert_close(dw, gradients.weight_grad(problem, x, dy), dtype, bound_of(dtype))
    assert_close(db, gradients.bias_grad(dy), dtype)


@operators
@dtypes
@checked(0.15)
@given(random=st.randoms(use_true_random=False), seed=seeds)
def test_weights_of_many_channels_and_parts_of_many_pixels(
    backend: Backend, operator: str, dtype: Any, random: Any, seed: int
) -> None:
    rank = random.choice((1, 2, 2, 3))
    small = GENERATORS[operator](random, rank)
    group = random.choice((1, 1, 2, 9))
    c, m = (random.choice((1, 3, 24, 70, 72)) // group or 1 for _ in range(2))
    assert small.w_shape is not None
    extents = [min(n + random.randint(0, 12 // rank), 20) for n in small.x_shape[2:]]
    pair = (m * group, c) if operator == "conv" else (c * group, m)
    attributes = {**small.attributes, "group": group, "output_shape": None}
    if operator == "conv":
        del attributes["output_shape"]
    problem = Problem(
        operator, (random.choice((1, 4)), c * group, *extents), (*pair, *small.w_shape[2:]), None, attributes
    )
    kind, layout = random.choice(("integers", "normal", "nonfinite")), random.choice(("contiguous", "channels last"))
    x, dy = (
        LAYOUTS[layout](values(kind, seed + i, s, dtype))
        for i, s in enumerate((problem.x_shape, gradients.shape_of_result(problem)))
    )
    precision = random.choice(PRECISIONS)
    with backend(dtype, rank, seed), gpuconv.precision(precision):
        dw = getattr(gpuconv, f"{operator}_weight_grad")(x, dy, problem.w_shape, **attributes)
        again = getattr(gpuconv, f"{operator}_weight_grad")(x, dy, problem.w_shape, **attributes)
    assert_close(dw, gradients.weight_grad(problem, x, dy), dtype, bound_of(dtype, precision))
    assert_same(again, dw)


def _configurations(operator: str, count: int) -> Iterator[tuple[Problem, np.random.Generator]]:
    for seed in range(count):
        yield GENERATORS[operator](Random(seed)), np.random.default_rng(seed)


@operators
def test_adjoint_identities_hold_for_500_configurations(operator: str) -> None:
    """<y(x, w), dy> = <x, dx> = <w, dw> and <b, db> = <y(b), dy>: of integers, so that nothing is rounded."""
    for problem, generator in _configurations(operator, 500):
        x, w = (generator.integers(-9, 10, shape).astype(np.float64) for shape in problem.shapes[:2])
        y = getattr(gpuconv, operator)(x, w, **problem.attributes)
        dy = generator.integers(-9, 10, y.shape).astype(np.float64)
        dx, dw, db = gradients_of(problem, x, w, dy)
        b = generator.integers(-9, 10, y.shape[1:2]).astype(np.float64)
        with_b = getattr(gpuconv, operator)(x, w, b, **problem.attributes)
        assert (y * dy).sum() == (x * dx).sum() == (w * dw).sum(), problem
        assert ((with_b - y) * dy).sum() == (b * db).sum(), problem


@operators
def test_differences_of_the_result_are_as_the_gradients_say(operator: str) -> None:
    """For sum(y**2) / 2, whose gradient with respect to y is y itself, at random points in random directions."""
    for problem, generator in _configurations(operator, 40):
        x, w = (generator.normal(size=shape) for shape in problem.shapes[:2])
        call = getattr(gpuconv, operator)
        y = call(x, w, **problem.attributes)
        dx, dw, _ = gradients_of(problem, x, w, y)
        along_x, along_w = (generator.normal(size=a.shape) for a in (x, w))
        step = 1e-6
        ahead, behind = (
            float((call(x + t * along_x, w + t * along_w, **problem.attributes) ** 2).sum() / 2) for t in (step, -step)
        )
        difference = (ahead - behind) / (2 * step)
        slope = float((dx * along_x).sum() + (dw * along_w).sum())
        assert abs(difference - slope) <= 1e-7 * (1 + abs(slope) + float((y**2).sum())), problem


@dtypes
@checked(0.4)
@given(data=st.data(), seed=seeds, layout=whole_memory, order=st.sampled_from(["NCHW", "NHWC"]))
def test_maxima_get_the_gradients_of_their_windows(
    backend: Backend, dtype: Any, data: Any, seed: int, layout: str, order: str
) -> None:
    problem = data.draw(problems("max_pool"))
    x = values("ties", seed, problem.x_shape, dtype)
    y, indices = gpuconv.max_pool(x, return_indices=True, **problem.attributes)
    kind = data.draw(st.sampled_from(["integers", "normal", "nonfinite", "subnormal"]))
    dy, indices = LAYOUTS[layout](values(kind, seed, y.shape, dtype)), LAYOUTS[layout](indices)
    last = order == "NHWC"
    turn = (lambda a: np.moveaxis(a, 1, -1)) if last else (lambda a: a)
    with backend(dtype, problem.rank, seed):
        dx = gpuconv.max_pool_grad(turn(dy), turn(indices), turn(x).shape, layout=order, **problem.attributes)
    expected = gradients.max_pool_grad(dy, indices, x.shape, problem.attributes.get("storage_order", 0))
    assert_close(np.moveaxis(dx, -1, 1) if last else dx, expected, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "kernel", "strides"),
    [
        ((2, 3, 41), [3], [1]),
        ((2, 3, 14, 17), [3, 3], [1, 1]),
        ((2, 3, 13, 18), [3, 3], [2, 2]),
        ((1, 2, 12, 19), [9, 7], [1, 1]),
        ((1, 2, 9, 8, 7), [3, 3, 3], [1, 1, 1]),
        ((1, 2, 8, 9, 9), [2, 3, 3], [2, 1, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_every_kernel_adds_windows_up_in_the_same_order(
    shape: tuple[int, ...], kernel: list[int], strides: list[int], order: str
) -> None:
    """With normal numbers, whose sums depend on the order; most maxima have many windows."""
    x = np.random.default_rng(0).random(shape, np.float32) ** 9
    if order == "NHWC":
        x = np.moveaxis(x, 1, -1).copy()
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "layout": order}
    y, indices = gpuconv.max_pool(x, return_indices=True, **attributes)
    dy = np.random.default_rng(1).standard_normal(y.shape, np.float32)
    found = []
    for turn in offers.every_candidate():
        with turn, any_cuda():
            found.append(gpuconv.max_pool_grad(dy, indices, x.shape, **attributes))
    assert len(found) == 3
    for one in found[1:]:
        assert_same(one, found[0])


@pytest.mark.parametrize("dtype", [*CONV_DTYPES, np.dtype("int8"), np.dtype("uint8")], ids=str)
@checked(0.4)
@given(random=st.randoms(use_true_random=False), seed=seeds, layout=memory, order=st.sampled_from(["NCHW", "NHWC"]))
def test_unpooling_puts_every_element_where_its_index_says_the_last_of_several(
    backend: Backend, dtype: Any, random: Any, seed: int, layout: str, order: str
) -> None:
    rank = random.choice((1, 1, 2, 2, 3, 4))
    kernel, strides = ([random.randint(1, 3) for _ in range(rank)] for _ in range(2))
    extents = [random.randint(0 if random.random() < 0.05 else 1, 5) for _ in range(rank)]
    numbered = (2, 3, *(max(0, s * (n - 1) + k) for n, k, s in zip(extents, kernel, strides, strict=True)))
    if any(s * (n - 1) + k < 0 for n, k, s in zip(extents, kernel, strides, strict=True)):
        return
    shape = (*numbered[:2], *(n + random.choice((0, 0, 1, 3)) for n in numbered[2:]))
    generator = np.random.default_rng(seed)
    y = LAYOUTS[layout](
        values("integers" if dtype.kind != "u" and dtype != "int8" else "any integer", seed, (2, 3, *extents), dtype)
    )
    indices = LAYOUTS[layout](generator.integers(-1, max(1, int(np.prod(numbered))), y.shape))
    if 0 in numbered:
        indices = np.full(y.shape, -1)
    last = order == "NHWC"
    turn = (lambda a: np.moveaxis(a, 1, -1)) if last else (lambda a: a)
    wanted = None if shape == numbered else random.choice((shape, shape[2:]))
    with backend(dtype, rank, seed):
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "layout": order}
        x = gpuconv.max_unpool(turn(y), turn(indices), wanted, check_indices=False, **attributes)
    assert_same(np.moveaxis(x, -1, 1) if last else x, gradients.max_unpool(y, indices, numbered, shape))


def test_results_go_where_out_says(backend: Backend) -> None:
    x, w = values("integers", 0, (2, 4, 9), np.float32), values("integers", 1, (6, 2, 3), np.float32)
    y = gpuconv.conv(x, w, group=2)
    with backend(x.dtype, 1, 0):
        expected = gradients_of(Problem("conv", x.shape, w.shape, None, {"group": 2}), x, w, y)
        outs = [np.full((*a.shape, 2), np.nan, np.float32)[..., 0] for a in expected]
        results = (
            gpuconv.conv_input_grad(y, w, x.shape, group=2, out=outs[0]),
            gpuconv.conv_weight_grad(x, y, w.shape, group=2, out=outs[1]),
            gpuconv.conv_bias_grad(y, out=outs[2]),
        )
    for result, out, value in zip(results, outs, expected, strict=True):
        assert result is out
        assert_same(np.ascontiguousarray(out), value)


def test_sums_that_the_accumulator_holds_are_rounded_once(backend: Backend) -> None:
    """Sums of 2048 and ones: sums in half precision would lose the ones."""
    x, dy = np.ones((1, 1, 2049), np.float16), np.ones((1, 1, 2049), np.float16)
    x[0, 0, 0] = 2048
    with backend(x.dtype, 1, 5):
        dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 1))
        db = gpuconv.conv_bias_grad(x)
    assert_same(dw.reshape(-1), round_to(np.array([4096.0]), np.float16))
    assert_same(db, round_to(np.array([4096.0]), np.float16))


def test_attributes_of_what_indices_say_may_be_read_once_only(backend: Backend) -> None:
    y, indices = np.float32([[[5, 6]]]), np.int64([[[1, 2]]])
    with backend(np.float32, 1, 0):
        dx = gpuconv.max_pool_grad(y, indices, iter([1, 1, 5]), kernel_shape=iter([2]), strides=iter([2]))
        x = gpuconv.max_unpool(y, indices, iter([5]), kernel_shape=iter([2]), strides=iter([2]))
    assert_same(dx, np.float32([[[0, 5, 6, 0, 0]]]))
    assert_same(x, np.float32([[[0, 5, 6, 0, 0]]]))


def test_channels_are_second_where_no_layout_is_given() -> None:
    x, w, dy, pooled = (2, 3, 5, 6), (4, 3, 2, 2), (2, 4, 4, 5), (2, 3, 4, 5)
    turned = (3, 4, 2, 2)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (gradient_rules.conv_input_grad, (dy, w), {"x_shape": x}),
        (gradient_rules.conv_weight_grad, (x, dy), {"w_shape": w}),
        (gradient_rules.conv_transpose_input_grad, ((2, 4, 6, 7), turned), {"x_shape": x}),
        (gradient_rules.conv_transpose_weight_grad, (x, (2, 4, 6, 7)), {"w_shape": turned}),
        (gradient_rules.conv_bias_grad, (dy,), {}),
        (gradient_rules.conv_transpose_bias_grad, (dy,), {}),
        (gradient_rules.max_pool_grad, (pooled, pooled), {"x_shape": x, "kernel_shape": [2, 2]}),
    ]
    for function, shapes, attributes in calls:
        found = function(*shapes, **attributes)
        assert found == function(*shapes, **attributes, layout="NCHW")
    assert gradient_rules.conv_bias_grad(dy).y_shape == (4,)
    assert gradient_rules.conv_transpose_bias_grad(dy).y_shape == (4,)
