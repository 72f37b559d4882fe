"""Whole calls on Hopper's tensor cores in the emulator: every kernel, layout, dtype, residual and split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.cuda.conv.gemm.tensor_cores import assert_within
from tests.emulator import emulated_cuda
from tests.harness.sources_of_kernels import WGMMA
from tests.oracle import oracle
from tests.oracle.finish import ACTIVATIONS, finished
from tests.oracle.operands import BFLOAT16, CONV_KINDS, LAYOUTS, operands, values
from tests.oracle.strategies import Problem, checked

pytestmark = [pytest.mark.emulator, pytest.mark.kernels(*WGMMA)]

ARITHMETIC = [
    (np.dtype("float16"), "ieee"),
    (BFLOAT16, "ieee"),
    (np.dtype("float32"), "tf32"),
    (np.dtype("float32"), "3xtf32"),
]
over_arithmetic = pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=lambda value: str(value))
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
layouts = st.sampled_from(
    ("contiguous", "channels last", "channels last", "reversed", "strided", "off the vectors", "pixels off the vectors")
)
seeds = st.integers(0, 2**32 - 1)


@contextmanager
def hopper(precision: str, seed: int, wanted: str = "wgmma") -> Iterator[Any]:
    """Emulate a device; candidate, schedule, the time of copies and the multiprocessors follow the seed."""
    random = Random(seed)
    number = random.randrange(2520)

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        found = [one for one in candidates if wanted in one.name]
        return found[number % len(found)]

    device = emulated_cuda(
        seed=seed,
        async_order=random.choice(("late", "at once", "random")),
        multiprocessors=random.choice((None, 1, 3, 5)),
    )
    with offers.picking(pick), gpuconv.precision(precision), device as emulated:
        yield emulated


def some_problem(random: Random, operator: str) -> Problem:
    """Return a problem whose channels may fill slices or not, with several tiles and unequal attributes of the axes."""
    group, c = random.choice((1, 1, 1, 2)), random.choice((3, 8, 24, 40, 64, 72, 130))
    m = random.choice((64, 72, 130, 200))
    spatial = random.choice(((37,), (200,), (7, 9), (17, 16), (1, 40), (3, 4, 6), (2, 5, 8)))
    rank = len(spatial)
    kernel = [random.choice((1, 1, 2, 3)) for _ in spatial]
    pads = [random.randrange(3) for _ in range(2 * rank)]
    strides, dilations = ([random.choice((1, 1, 2, 3)) for _ in spatial] for _ in range(2))
    if random.random() < 0.3:  # one tap: weights need not be packed
        kernel, pads, strides = [1] * rank, [0] * 2 * rank, [1] * rank
    attributes: dict[str, Any] = {"group": group, "pads": pads, "strides": strides, "dilations": dilations}
    if operator == "conv":
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        sizes = zip(spatial, pads[:rank], pads[rank:], reach, strict=True)
        spatial = tuple(max(n, r - before - after) for n, before, after, r in sizes)
        w_shape = (m * group, c, *kernel)
    else:
        sizes = zip(spatial, pads[:rank], pads[rank:], strides, strict=True)
        spatial = tuple(max(n, 1 + -(-(before + after) // s)) for n, before, after, s in sizes)
        w_shape = (c * group, m, *kernel)
    return Problem(operator, (random.choice((1, 2)), c * group, *spatial), w_shape, (m * group,), attributes)


@operators
@over_arithmetic
@checked(0.5)
@given(random=st.randoms(use_true_random=False), seed=seeds, layout=layouts)
def test_integers_are_exact(operator: str, dtype: Any, precision: str, random: Random, seed: int, layout: str) -> None:
    """Sometimes with packed weights, a residual and an activation."""
    problem = some_problem(random, operator)
    x, w, b = operands(problem, ("integers", "integers", "integers"), seed, dtype, layout)
    exact = getattr(oracle, operator)(x, w, b, **problem.attributes).value
    activation = random.choice((None, None, "relu", ("leaky_relu", -2), ("clip", -1.5, 6)))
    assert activation in ACTIVATIONS
    residual = random.choice((None, None, "contiguous", "channels last"))
    added = None if residual is None else LAYOUTS[residual](values("integers", seed, exact.shape, dtype))
    with hopper(precision, seed) as emulated:
        weights = gpuconv.pack(w, operator) if random.random() < 0.3 else w
        out = LAYOUTS[random.choice(("contiguous", "channels last", "strided"))](np.zeros(exact.shape, dtype))
        given_out = out if random.random() < 0.5 else None
        y = getattr(gpuconv, operator)(
            x, weights, b, **problem.attributes, activation=activation, residual=added, out=given_out
        )
    assert "wgmma" in emulated.launches[-1].variant.name
    expected = finished(exact.astype(np.float32), added, activation).astype(dtype)
    np.testing.assert_array_equal(y, expected)


@operators
@over_arithmetic
@checked(0.4)
@given(random=st.randoms(use_true_random=False), kinds=st.sampled_from(CONV_KINDS), seed=seeds, layout=layouts)
def test_sums_of_every_kind(
    operator: str, dtype: Any, precision: str, random: Random, kinds: Any, seed: int, layout: str
) -> None:
    problem = some_problem(random, operator)
    if kinds[0] in ("overflowing", "large") and precision != "ieee":
        kinds = ("large", "small", "normal")  # partial sums do not overflow
    arrays = operands(problem, kinds, seed, dtype, layout)
    with hopper(precision, seed):
        y = getattr(gpuconv, operator)(*arrays, **problem.attributes)
    assert_within(y, arrays, problem, precision)


X, W = (2, 72, 9, 8), (130, 72, 3, 3)


def integers(*shape: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def turns(call: Any, wanted: str = "wgmma", **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the result and the launches of a call by each candidate of this name."""
    number, count = 0, 1

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        nonlocal count
        found = [one for one in candidates if wanted in one.name]
        count = len(found)
        return found[number]

    while number < count:
        with offers.picking(pick), emulated_cuda(seed=number, **options) as emulated:
            yield call(), emulated.launches
        number += 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_candidate_makes_the_same(layout: str) -> None:
    x, w, b = integers(*X), integers(*W), integers(130)
    expected = oracle.conv(x, w, b, pads=[1, 0, 2, 1]).value.astype(np.float16)
    given_x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "NHWC" else x
    names = []
    for y, launches in turns(lambda: gpuconv.conv(given_x, w, b, pads=[1, 0, 2, 1], layout=layout), multiprocessors=3):
        names.append(launches[-1].variant.name)
        np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if layout == "NHWC" else y, expected)
    assert len(set(names)) >= (4 if layout == "NHWC" else 5)


def test_pixels_that_no_output_meets_are_not_copied() -> None:
    x, w = integers(2, 18, 9, 30), integers(130, 18, 1, 1)
    expected = oracle.conv(x, w, None, strides=[2, 3]).value.astype(np.float16)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    for y, launches in turns(lambda: gpuconv.conv(last, w, strides=[2, 3], layout="NHWC"), multiprocessors=3):
        np.testing.assert_array_equal(np.moveaxis(y, -1, 1), expected)
        assert any(launch.variant.name.startswith("channels_last") for launch in launches)


def test_views_that_tma_cannot_fetch_are_copied_after_all() -> None:
    """Channels are contiguous, but x does not start at a multiple of 16 bytes: the same plan, other launches."""
    w = integers(*W)
    memory = integers(2 * 9 * 8 * 72 + 1)
    views = [memory[k : memory.size - 1 + k].reshape(2, 9, 8, 72) for k in (0, 1, 0, 1)]
    for wanted in ("_direct", "_direct_split"):
        with hopper("ieee", 0, wanted) as emulated:
            for x in views:
                y = gpuconv.conv(x, w, layout="NHWC")
                expected = oracle.conv(np.moveaxis(x, -1, 1), w).value.astype(np.float16)
                np.testing.assert_array_equal(np.moveaxis(y, -1, 1), expected)
            assert sum("channels_last" in launch.variant.name for launch in emulated.launches) == 2
            weights = gpuconv.pack(w)
            for x in views:
                y = gpuconv.conv(x, weights, layout="NHWC")
                expected = oracle.conv(np.moveaxis(x, -1, 1), w).value.astype(np.float16)
                np.testing.assert_array_equal(np.moveaxis(y, -1, 1), expected)


def test_weights_that_tma_cannot_fetch_are_packed_after_all() -> None:
    x = integers(2, 9, 8, 72)
    memory = integers(130 * 72 + 1)
    for k in (0, 1):
        w = memory[k : memory.size - 1 + k].reshape(130, 72, 1, 1)
        expected = oracle.conv(np.moveaxis(x, -1, 1), w).value.astype(np.float16)
        for share in (False, True):
            with hopper("ieee", 0, "_direct") as emulated:
                y = gpuconv.conv(x, gpuconv.pack(w) if share else w, layout="NHWC")
            np.testing.assert_array_equal(np.moveaxis(y, -1, 1), expected)
            packs = [launch.variant.name for launch in emulated.launches if "pack_rows" in launch.variant.name]
            assert len(packs) == (k and not share)


@pytest.mark.parametrize(("operator", "precision"), [("conv", "ieee"), ("conv_transpose", "3xtf32")])
def test_the_gradient_with_respect_to_x_is_made_alike(operator: str, precision: str) -> None:
    dtype = np.float16 if precision == "ieee" else np.float32
    x_shape, w_shape, attributes = (2, 70, 9, 8), (64, 70, 3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}
    if operator == "conv_transpose":
        x_shape, w_shape = (2, 64, 5, 8), (64, 70, 3, 2)
    w = integers(*w_shape, dtype=dtype)
    y_shape = getattr(gpuconv, operator)(np.zeros(x_shape, dtype), w, **attributes).shape
    dy = integers(*y_shape, dtype=dtype)
    name = f"{operator}_input_grad"
    expected = getattr(gpuconv, name)(dy, w, x_shape, **attributes)
    for seed in range(3):
        with hopper(precision, seed) as emulated:
            dx = getattr(gpuconv, name)(dy, w, x_shape, **attributes)
        assert "wgmma" in emulated.launches[-1].variant.name
        np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("wanted", ["_direct", "_rows"])
def test_arrays_may_be_freed_and_their_addresses_used_again(wanted: str) -> None:
    w = integers(*W)
    with hopper("ieee", 0, wanted):
        for turn in range(6):
            x = np.ascontiguousarray(integers(1 + turn % 2, 9, 8, 72) + np.float16(turn))
            seen = np.moveaxis(x, -1, 1)
            if wanted == "_rows":
                seen = np.ascontiguousarray(seen)
            expected = oracle.conv(seen, w).value.astype(np.float16)
            given_x, layout = (seen, "NCHW") if wanted == "_rows" else (x, "NHWC")
            y = gpuconv.conv(given_x, w, layout=layout)
            np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if layout == "NHWC" else y, expected)
            del x, seen, given_x
