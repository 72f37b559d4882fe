"""Long kernels, wide windows and few channels on the CPU, compared exactly, on small integers, with float64 loops."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _scatter, _taps
from gpuconv.rules import geometry as geometries
from tests.oracle.every_row import every_row

pytestmark = pytest.mark.slow

Ints = tuple[int, ...]
gradients = import_module("gpuconv.cpu.weight_grad")  # the package has its function by this name
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def _integers(seed: int, *shapes: Ints, dtype: Any = np.float32) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [(draw.integers(-1, 2, shape) * (draw.random(shape) < 0.4)).astype(dtype) for shape in shapes]


def _windows(x: Any, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, fill: float = 0) -> Any:
    """Return the windows (N, C, Q1, …, k_1, …) of x with its padding."""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    every = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    return every[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


# ---------------------------------------------------------------- gradients of weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("x", "filters", "kernel", "strides", "dilations", "pads", "group"),
    [
        ((2, 3, 300), 5, (120,), (7,), (1,), (0, 0), 1),
        ((5, 4, 40), 6, (9,), (1,), (3,), (12, 12), 2),
        ((1, 6, 20, 17), 4, (5, 3), (1, 2), (2, 1), (4, 1, 3, 0), 1),
        ((3, 8, 12, 12), 8, (4, 4), (4, 4), (1, 1), (0, 0, 0, 0), 8),
        ((2, 3, 7, 6, 8), 4, (3, 2, 3), (1, 1, 2), (1, 2, 1), (1, 0, 1, 1, 1, 0), 1),
    ],
)
def test_gradients_of_weights(
    x: Ints,
    filters: int,
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    group: int,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (given,) = _integers(1, x, dtype=dtype)
    seen = _windows(given.astype(np.float64), kernel, strides, dilations, pads)
    rank = len(kernel)
    (dy,) = _integers(2, (x[0], filters, *seen.shape[2 : 2 + rank]), dtype=dtype)
    shape = (filters, x[1] // group, *kernel)
    expected = np.concatenate(
        [
            np.tensordot(of_dy, of_x, axes=([0, *range(2, 2 + rank)],) * 2)
            for of_dy, of_x in zip(
                np.split(dy.astype(np.float64), group, axis=1), np.split(seen, group, axis=1), strict=True
            )
        ]
    )
    more: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    with mock.patch.object(gradients, "_by_taps", side_effect=AssertionError), every_row() as row:
        for workspace, threads in product(("16384", "200000", ""), "13"):
            monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
            monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
            with row(f"{workspace} bytes, {threads} threads"):
                dw = gpuconv.conv_weight_grad(given, dy, shape, **more)
                assert np.array_equal(dw.astype(np.float64), expected.astype(dtype).astype(np.float64))


@pytest.mark.parametrize(
    ("x", "filters", "kernel", "strides", "pads", "group", "in_phases"),
    [
        ((3, 240, 20, 17), 2, (3, 4), (1, 1), (1, 0, 1, 2), 2, False),
        ((1, 120, 20, 17), 2, (3, 4), (1, 1), (1, 0, 1, 2), 1, False),
        ((3, 240, 33, 30), 2, (5, 4), (2, 3), (1, 2, 0, 1), 2, True),
    ],
)
def test_gradients_of_few_filters_gather_dy(
    x: Ints, filters: int, kernel: Ints, strides: Ints, pads: Ints, group: int, in_phases: bool
) -> None:
    (given,) = _integers(1, x)
    seen = _windows(given.astype(np.float64), kernel, strides, (1, 1), pads)
    (dy,) = _integers(2, (x[0], filters, *seen.shape[2:4]))
    parts = zip(np.split(dy.astype(np.float64), group, axis=1), np.split(seen, group, axis=1), strict=True)
    expected = np.concatenate([np.tensordot(of_dy, of_x, axes=([0, 2, 3],) * 2) for of_dy, of_x in parts])
    shape = (filters, x[1] // group, *kernel)
    with mock.patch.object(gradients, "_exchanged", wraps=gradients._exchanged) as exchanged:
        dw = gpuconv.conv_weight_grad(given, dy, shape, strides=strides, pads=pads, group=group)
    assert exchanged.call_count == (6 if in_phases else 1)
    np.testing.assert_array_equal(dw, expected.astype(np.float32))


def test_padding_does_not_meet_a_gradient_that_is_not_finite() -> None:
    """The first of four windows of three ones has its first tap in the padding, the last one its last tap."""
    x, dy = np.ones((1, 1, 4), np.float32), np.array([[[np.inf, 1, 1, np.nan]]], np.float32)
    dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 3), pads=[1, 1])[0, 0]
    assert np.isnan(dw[:2]).tolist() == [True, True]
    dy[0, 0, 3] = 1
    dw = gpuconv.conv_weight_grad(x, dy, (1, 1, 3), pads=[1, 1])[0, 0]
    assert dw.tolist() == [3, np.inf, np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("x", "kernel", "strides", "dilations", "pads"),
    [
        ((3, 2, 7), (90,), (20,), (1,), (89, 70)),
        ((3, 2, 5), (30,), (20,), (3,), (80, 60)),
        ((2, 3, 3, 2), (20, 12), (5, 2), (1, 2), (19, 20, 11, 13)),
    ],
)
def test_gradients_of_kernels_longer_than_images_add_products(
    x: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, dtype: Any
) -> None:
    (given,) = _integers(1, x, dtype=dtype)
    rank, seen = len(kernel), _windows(given.astype(np.float64), kernel, strides, dilations, pads)
    (dy,) = _integers(2, (x[0], 4, *seen.shape[2 : 2 + rank]), dtype=dtype)
    expected = np.tensordot(dy.astype(np.float64), seen, axes=([0, *range(2, 2 + rank)],) * 2)
    with (
        mock.patch.object(gradients, "_by_windows", return_value=False),
        mock.patch.object(gradients, "_by_taps", side_effect=AssertionError),
    ):
        dw = gpuconv.conv_weight_grad(given, dy, (4, x[1], *kernel), strides=strides, dilations=dilations, pads=pads)
    assert np.array_equal(dw.astype(np.float64), expected.astype(dtype).astype(np.float64))


@pytest.mark.parametrize(("channels", "threads", "parts"), [(64, 2, 2), (64, 3, 3), (12, 2, 3), (3, 2, 3)])
def test_threads_get_as_many_sums_of_weight_gradients(channels: int, threads: int, parts: int) -> None:
    """With 3x3 taps; too few channels for the threads are divided by rows of taps."""
    geometry = geometries.conv((4, channels, 56, 56), (64, channels, 3, 3), None, pads=[1] * 4)
    piece = gradients.plan(geometry, threads, 2**24)
    assert piece is not None
    assert gradients._jobs(geometry, piece.rows, piece.channels, piece.taps) == parts


def test_kernels_that_mostly_meet_padding_are_not_gathered() -> None:
    g = geometries.conv((1, 1, 3), (1, 1, 4000), None, pads=[3999, 3999])
    x, dy = np.ones((1, 1, 3), np.float32), np.ones(g.y_shape, np.float32)
    assert gpuconv.conv_weight_grad(x, dy, (1, 1, 4000), pads=[3999, 3999]).tolist() == [[[3.0] * 4000]]
    wide = geometries.conv((1, 1, 3), (1, 1, 3), None, pads=[2**20, 2**20], dilations=[2**20])
    assert gradients.plan(wide, 1, 2**12) is None


# ---------------------------------------------------------------- pools


@pytest.mark.parametrize("dtype", DTYPES)
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
    keywords = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    rank = len(kernel)
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    seen = _windows(given.astype(np.float64), kernel, strides, dilations, pads, -np.inf)
    numbers = _windows(np.arange(given.size).reshape(x), kernel, strides, dilations, pads, -1)
    assert np.array_equal(gpuconv.max_pool(given, **keywords).astype(np.float64), seen.max(axes))
    y, indices = gpuconv.max_pool(given, **keywords, return_indices=True)
    flat = (*seen.shape[: 2 + rank], -1)
    first = seen.reshape(flat).argmax(-1)[..., None]
    assert np.array_equal(indices, np.take_along_axis(numbers.reshape(flat), first, -1)[..., 0])
    counts = (numbers >= 0).sum(axes)
    (dy,) = _integers(4, y.shape, dtype=np.float64)
    expected = np.zeros(given.size)
    np.add.at(
        expected,
        numbers[numbers >= 0],
        np.broadcast_to((dy / counts).reshape(*dy.shape, *(1,) * rank), numbers.shape)[numbers >= 0],
    )
    found = gpuconv.average_pool_grad(dy, x, **keywords)
    assert np.allclose(found.reshape(-1), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
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
    keywords = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "storage_order": order,
    }
    y, indices = gpuconv.max_pool(given, **keywords, return_indices=True)
    (dy,) = _integers(6, y.shape, dtype=dtype)
    plane = x[2:]
    expected = np.zeros((x[0] * x[1], int(np.prod(plane))))
    np.add.at(expected.reshape(-1), indices.reshape(-1), dy.astype(np.float64).reshape(-1))
    expected = np.stack([row.reshape(plane, order="F" if order else "C") for row in expected]).reshape(x)
    found = gpuconv.max_pool_grad(dy, indices, x, **keywords)
    assert np.array_equal(found.astype(np.float64), expected.astype(dtype).astype(np.float64))


# ---------------------------------------------------------------- few input channels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("extents", "kernel", "dilations", "pads"),
    [((50,), (12,), (1,), (0, 4)), ((9, 8), (3, 2), (2, 1), (1, 0, 0, 1)), ((4, 5, 4), (2, 3, 2), (1, 1, 2), (0,) * 6)],
)
def test_transposed_convolutions_of_few_channels_are_gathered(
    extents: Ints, kernel: Ints, dilations: Ints, pads: Ints, group: int, dtype: Any
) -> None:
    x, w, b = _integers(7, (2, 2 * group, *extents), (2 * group, 9, *kernel), (9 * group,), dtype=dtype)
    axes = list(zip(extents, kernel, dilations, strict=True))
    full = np.zeros((2, 9 * group, *(n + (k - 1) * d for n, k, d in axes)))
    for tap, g in product(product(*map(range, kernel)), range(group)):
        place = tuple(slice(t * d, t * d + n) for t, (n, _, d) in zip(tap, axes, strict=True))
        of_group = slice(2 * g, 2 * g + 2)
        products = np.tensordot(x[:, of_group].astype(float), w[(of_group, slice(None), *tap)].astype(float), (1, 0))
        full[(slice(None), slice(9 * g, 9 * g + 9), *place)] += np.moveaxis(products, -1, 1)
    rank = len(kernel)
    cropped = full[(..., *(slice(a, n - e) for a, e, n in zip(pads[:rank], pads[rank:], full.shape[2:], strict=True)))]
    expected = cropped + b.astype(float).reshape(-1, *(1,) * rank)
    with mock.patch.object(_scatter, "run", side_effect=AssertionError):
        y = gpuconv.conv_transpose(x, w, b, dilations=dilations, pads=pads, group=group)
    assert np.array_equal(y.astype(float), expected.astype(dtype).astype(float))


def test_narrow_blocks_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 KiB, a block of 60 channels and 9 taps would have at most a few columns."""
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", "16384")
    x, w = _integers(8, (1, 60, 9, 8), (2, 60, 3, 3))
    expected = np.einsum("ncpqab,mcab->nmpq", _windows(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)), w)
    with mock.patch.object(_taps, "conv", side_effect=AssertionError):
        assert np.array_equal(gpuconv.conv(x, w, pads=1, invariant="batch"), expected)
