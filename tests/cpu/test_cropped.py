"""Kernels mostly in the padding, few inputs with many taps, and few filters: sums over single elements in NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import gpuconv

CASES: list[tuple[Any, ...]] = [  # x, w, strides, dilations, pads
    ((2, 3, 3), (2, 3, 16), (1,), (3,), (20, 25)),
    ((2, 40, 9), (2, 40, 7), (1,), (1,), (3, 3)),
    ((2, 40, 9, 8), (1, 40, 3, 4), (2, 1), (1, 2), (1, 3, 1, 3)),
    ((1, 2, 1, 1), (3, 2, 5, 6), (1, 2), (2, 1), (8, 5, 9, 6)),
]


def _conv(x: Any, w: Any, strides: Any, dilations: Any, begin: Any, outputs: Any) -> Any:
    y = np.zeros((x.shape[0], w.shape[0], *outputs))
    for tap, q in product(product(*map(range, w.shape[2:])), list(product(*map(range, outputs)))):
        at = tuple(a * s + t * d - p for a, s, t, d, p in zip(q, strides, tap, dilations, begin, strict=True))
        if all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True)):
            y[(..., *q)] += x[(..., *at)] @ w[(..., *tap)].T
    return y


@pytest.mark.parametrize("workspace", ["", "16384"])
@pytest.mark.parametrize(("x_shape", "w_shape", "strides", "dilations", "pads"), CASES)
def test_values(
    x_shape: Any, w_shape: Any, strides: Any, dilations: Any, pads: Any, workspace: str, monkeypatch: Any
) -> None:
    """Gradients are linear: their products with random arrays are those of the convolution."""
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", workspace)
    random = np.random.default_rng(0)
    x, w, u, v = (random.standard_normal(shape) for shape in (x_shape, w_shape, w_shape, x_shape))
    words = {"strides": strides, "dilations": dilations, "pads": pads}
    y = gpuconv.conv(x, w, **words)
    place = strides, dilations, pads[: len(strides)], y.shape[2:]
    np.testing.assert_allclose(y, _conv(x, w, *place), atol=1e-12)
    dy = random.standard_normal(y.shape)
    dw = gpuconv.conv_weight_grad(x, dy, w_shape, **words)
    assert np.sum(dw * u) == pytest.approx(np.sum(_conv(x, u, *place) * dy), abs=1e-10)
    dx = gpuconv.conv_input_grad(dy, w, x_shape, **words)
    assert np.sum(dx * v) == pytest.approx(np.sum(_conv(v, w, *place) * dy), abs=1e-10)


def test_an_empty_input_is_not_searched_for_taps_that_meet_it() -> None:
    """The other axis has 2**40 outputs, which are not examined one by one; the result has no images."""
    x, w = np.zeros((0, 1, 0), np.float32), np.zeros((1, 1, 1), np.float32)
    y = gpuconv.conv(x, w, pads=[2**40, 0])
    assert y.shape == (0, 1, 2**40)
