"""Long kernels, wide windows and few channels on the CPU, by their definition; small integers, so exactly."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from math import prod
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _scatter, _taps
from gpuconv.rules import geometry as geometries
from tests.oracle import gradients, oracle
from tests.oracle.every_row import every_row
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.slow

Ints = tuple[int, ...]
weight_grad = import_module("gpuconv.cpu.weight_grad")  # the package has its function by this name
over_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])


def _integers(seed: int, *shapes: Ints, dtype: Any = np.float32) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [(draw.integers(-1, 2, shape) * (draw.random(shape) < 0.4)).astype(dtype) for shape in shapes]


def _assert_equal(found: Any, exact: oracle.Exact) -> None:
    assert np.array_equal(found.astype(np.float64), exact.value.astype(found.dtype).astype(np.float64))


# ---------------------------------------------------------------- gradients of weights


class Weights:
    """A gradient of the weights of a Conv: its arrays, and what it is by the definition."""

    def __init__(self, x: Ints, filters: int, kernel: Ints, dtype: Any = np.float32, **attributes: Any) -> None:
        self.shape, self.attributes = (filters, x[1] // attributes.get("group", 1), *kernel), attributes
        problem = Problem("conv", x, self.shape, None, attributes)
        self.x, self.dy = _integers(1, x, gradients.shape_of_result(problem), dtype=dtype)
        self.exact = gradients.weight_grad(problem, self.x, self.dy)

    def check(self) -> None:
        _assert_equal(gpuconv.conv_weight_grad(self.x, self.dy, self.shape, **self.attributes), self.exact)


@over_dtypes
@pytest.mark.parametrize(
    ("x", "filters", "kernel", "attributes"),
    [
        ((2, 3, 300), 5, (120,), {"strides": (7,)}),
        ((5, 4, 40), 6, (9,), {"dilations": (3,), "pads": (12, 12), "group": 2}),
        ((1, 6, 20, 17), 4, (5, 3), {"strides": (1, 2), "dilations": (2, 1), "pads": (4, 1, 3, 0)}),
        ((3, 8, 12, 12), 8, (4, 4), {"strides": (4, 4), "group": 8}),
        (
            *((2, 3, 7, 6, 8), 4, (3, 2, 3)),
            {"strides": (1, 1, 2), "dilations": (1, 2, 1), "pads": (1, 0, 1, 1, 1, 0)},
        ),
    ],
)
def test_gradients_of_weights(
    x: Ints, filters: int, kernel: Ints, attributes: dict[str, Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Weights(x, filters, kernel, dtype, **attributes)
    with mock.patch.object(weight_grad, "_by_taps", side_effect=AssertionError), every_row() as row:
        for workspace, threads in product(("16384", "200000", ""), "13"):
            monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
            monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
            with row(f"{workspace} bytes, {threads} threads"):
                call.check()


@pytest.mark.parametrize(
    ("x", "kernel", "strides", "pads", "group", "in_phases"),
    [
        ((3, 240, 20, 17), (3, 4), (1, 1), (1, 0, 1, 2), 2, False),
        ((1, 120, 20, 17), (3, 4), (1, 1), (1, 0, 1, 2), 1, False),
        ((3, 240, 33, 30), (5, 4), (2, 3), (1, 2, 0, 1), 2, True),
    ],
)
def test_gradients_of_few_filters_gather_dy(
    x: Ints, kernel: Ints, strides: Ints, pads: Ints, group: int, in_phases: bool
) -> None:
    call = Weights(x, 2, kernel, strides=strides, pads=pads, group=group)
    with mock.patch.object(weight_grad, "_exchanged", wraps=weight_grad._exchanged) as exchanged:
        call.check()
    assert exchanged.call_count == (6 if in_phases else 1)


def test_padding_does_not_meet_a_gradient_that_is_not_finite() -> None:
    """The first of four windows of three ones has its first tap in the padding, the last one its last tap."""
    x, dy = np.ones((1, 1, 4), np.float32), np.array([[[np.inf, 1, 1, np.nan]]], np.float32)
    dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 3), pads=[1, 1])[0, 0]
    assert np.isnan(dw[:2]).tolist() == [True, True]
    dy[0, 0, 3] = 1
    dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 3), pads=[1, 1])[0, 0]
    assert dw.tolist() == [3, np.inf, np.inf]


@over_dtypes
@pytest.mark.parametrize(
    ("x", "kernel", "attributes"),
    [
        ((3, 2, 7), (90,), {"strides": (20,), "pads": (89, 70)}),
        ((3, 2, 5), (30,), {"strides": (20,), "dilations": (3,), "pads": (80, 60)}),
        ((2, 3, 3, 2), (20, 12), {"strides": (5, 2), "dilations": (1, 2), "pads": (19, 20, 11, 13)}),
    ],
)
def test_gradients_of_kernels_longer_than_images_add_products(
    x: Ints, kernel: Ints, attributes: dict[str, Any], dtype: Any
) -> None:
    call = Weights(x, 4, kernel, dtype, **attributes)
    with (
        mock.patch.object(weight_grad, "_by_windows", return_value=False),
        mock.patch.object(weight_grad, "_by_taps", side_effect=AssertionError),
    ):
        call.check()


@pytest.mark.parametrize(("channels", "threads", "parts"), [(64, 2, 2), (64, 3, 3), (12, 2, 3), (3, 2, 3)])
def test_threads_get_as_many_sums_of_weight_gradients(channels: int, threads: int, parts: int) -> None:
    """With 3x3 taps; too few channels for the threads are divided by rows of taps."""
    geometry = geometries.conv((4, channels, 56, 56), (64, channels, 3, 3), None, pads=[1] * 4)
    piece = weight_grad.plan(geometry, threads, 2**24)
    assert piece is not None
    assert weight_grad._jobs(geometry, piece.rows, piece.channels, piece.taps) == parts


def test_kernels_that_mostly_meet_padding_are_not_gathered() -> None:
    g = geometries.conv((1, 1, 3), (1, 1, 4000), None, pads=[3999, 3999])
    x, dy = np.ones((1, 1, 3), np.float32), np.ones(g.y_shape, np.float32)
    assert gpuconv.conv_weight_grad(x, dy, (1, 1, 4000), pads=[3999, 3999]).tolist() == [[[3.0] * 4000]]
    wide = geometries.conv((1, 1, 3), (1, 1, 3), None, pads=[2**20, 2**20], dilations=[2**20])
    assert weight_grad.plan(wide, 1, 2**12) is None


# ---------------------------------------------------------------- pools


def _shares(dy: Any, x: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints) -> Any:
    """The gradient of AveragePool, window by window: each gives the same to all elements that its taps meet."""
    dx = np.zeros(x)
    for place in np.ndindex(*dy.shape[2:]):
        axes = zip(place, x[2:], kernel, strides, dilations, pads, strict=False)
        taps = [[at for at in range(q * s - p, q * s - p + k * d, d) if 0 <= at < n] for q, n, k, s, d, p in axes]
        dx[(..., *np.ix_(*taps))] += (dy[(..., *place)] / prod(map(len, taps)))[(..., *[None] * len(taps))]
    return dx


@over_dtypes
@pytest.mark.parametrize(
    ("x", "kernel", "strides", "dilations", "pads"),
    [
        ((2, 3, 400), (97,), (100,), (1,), (0, 0)),
        ((2, 3, 60), (13,), (20,), (4,), (7, 9)),
        ((2, 3, 40, 5), (30, 2), (9, 1), (1, 2), (4, 1, 3, 0)),
        ((2, 3, 9, 8, 4), (9, 8, 2), (1, 1, 1), (1, 1, 1), (0, 0, 0, 0, 0, 0)),
    ],
)
def test_windows_of_few_outputs(x: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, dtype: Any) -> None:
    (given,) = _integers(3, x, dtype=dtype)
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    maxima, numbers = oracle.max_pool(given, **window)
    oracle.assert_same(gpuconv.max_pool(given, **window), maxima, bits=False)
    y, indices = gpuconv.max_pool(given, **window, return_indices=True)
    oracle.assert_same(y, maxima, bits=False)
    assert np.array_equal(indices, numbers)
    (dy,) = _integers(4, y.shape, dtype=np.float64)
    found = gpuconv.average_pool_grad(dy, x, **window)
    assert np.allclose(found, _shares(dy, x, kernel, strides, dilations, pads), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", [0, 1])
@over_dtypes
@pytest.mark.parametrize(
    ("x", "kernel", "strides", "dilations", "pads"),
    [
        ((2, 3, 200), (40,), (7,), (1,), (3, 5)),
        ((2, 3, 20, 15), (5, 4), (2, 1), (1, 2), (2, 3, 1, 0)),
        ((2, 2, 6, 7, 5), (3, 3, 3), (1, 2, 1), (1, 1, 2), (1, 1, 1, 1, 1, 1)),
    ],
)
def test_gradients_go_to_the_elements_of_wide_windows(
    x: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, dtype: Any, order: int
) -> None:
    (given,) = _integers(5, x, dtype=dtype)
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    y, indices = oracle.max_pool(given, **window, storage_order=order)
    (dy,) = _integers(6, y.shape, dtype=dtype)
    dx = gpuconv.max_pool_grad(dy, indices, x, **window, storage_order=order)
    _assert_equal(dx, gradients.max_pool_grad(dy, indices, x, order))


# ---------------------------------------------------------------- few input channels


@over_dtypes
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("extents", "kernel", "dilations", "pads"),
    [((50,), (12,), (1,), (0, 4)), ((9, 8), (3, 2), (2, 1), (1, 0, 0, 1)), ((4, 5, 4), (2, 3, 2), (1, 1, 2), (0,) * 6)],
)
def test_transposed_convolutions_of_few_channels_are_gathered(
    extents: Ints, kernel: Ints, dilations: Ints, pads: Ints, group: int, dtype: Any
) -> None:
    arrays = _integers(7, (2, 2 * group, *extents), (2 * group, 9, *kernel), (9 * group,), dtype=dtype)
    attributes: dict[str, Any] = {"dilations": dilations, "pads": pads, "group": group}
    with mock.patch.object(_scatter, "run", side_effect=AssertionError):
        _assert_equal(gpuconv.conv_transpose(*arrays, **attributes), oracle.conv_transpose(*arrays, **attributes))


def test_narrow_blocks_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 KiB, a block of 60 channels and 9 taps would have at most a few columns."""
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", "16384")
    x, w = _integers(8, (1, 60, 9, 8), (2, 60, 3, 3))
    with mock.patch.object(_taps, "conv", side_effect=AssertionError):
        _assert_equal(gpuconv.conv(x, w, pads=1, invariant="batch"), oracle.conv(x, w, pads=[1] * 4))
