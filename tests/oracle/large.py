"""Larger problems that cross block boundaries, with reference results by padding, sliding windows and tensordot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.oracle.operands import filled, values
from tests.oracle.oracle import round_to

Array = np.ndarray[Any, np.dtype[Any]]


# x, w, attributes
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "many channels, one tap": ((2, 300, 20, 21), (260, 300, 1, 1), {}),
    "many pixels": ((2, 12, 150, 131), (20, 12, 3, 3), {"pads": [1, 1, 1, 1]}),
    "many small images": ((200, 10, 7, 7), (30, 10, 3, 3), {"pads": [1, 0, 1, 2]}),
    "many taps": ((1, 3, 66, 60), (5, 3, 31, 29), {"pads": [15, 14, 15, 14]}),
    "few outputs of long sums": ((1, 900, 5, 5), (10, 900, 5, 5), {}),
    "one output": ((1, 700, 9), (1, 700, 9), {}),
    "a long line": ((2, 6, 60_001), (9, 6, 7), {"dilations": [5], "strides": [2], "pads": [3, 11]}),
    "a volume": ((2, 9, 15, 17, 19), (14, 9, 3, 3, 2), {"pads": [1, 0, 1, 1, 2, 0], "strides": [1, 2, 1]}),
    "four spatial axes": ((2, 5, 7, 6, 8, 9), (6, 5, 2, 3, 2, 3), {"dilations": [2, 1, 3, 1]}),
    "groups": ((3, 96, 24, 25), (72, 16, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise": ((2, 160, 31, 30), (160, 1, 5, 5), {"group": 160, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "depthwise with three outputs each": ((2, 50, 29, 30), (150, 1, 3, 3), {"group": 50}),
    "wide strides": ((2, 16, 97, 101), (24, 16, 4, 4), {"strides": [4, 7]}),
    "more padding than image": ((2, 7, 30, 31), (11, 7, 3, 3), {"pads": [40, 9, 3, 50]}),
}


TRANSPOSED = {
    "many channels, one tap": ((2, 260, 20, 21), (260, 140, 1, 1), {}),
    "many pixels": ((2, 12, 90, 81), (12, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    "upsampling": ((2, 24, 40, 41), (24, 10, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "many small images": ((150, 10, 7, 7), (10, 12, 3, 3), {"strides": [2, 3]}),
    "many taps": ((1, 5, 40, 38), (5, 3, 31, 29), {"pads": [15, 14, 15, 14]}),
    "a long line": ((2, 6, 20_001), (6, 9, 7), {"dilations": [5], "strides": [2], "pads": [3, 11]}),
    "a volume": ((2, 9, 11, 12, 13), (9, 8, 3, 3, 2), {"strides": [1, 2, 3]}),
    "groups": ((3, 96, 20, 21), (96, 7, 3, 3), {"group": 6, "pads": [1, 0, 1, 2]}),
    "depthwise": ((2, 120, 19, 20), (120, 1, 4, 4), {"group": 120, "strides": [2, 2]}),
    "strides wider than the kernel": ((2, 12, 30, 31), (12, 14, 2, 2), {"strides": [5, 4]}),
}


POOLS = {
    "many pixels": ((2, 3, 300, 299), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "many planes": ((40, 60, 9, 8), {"kernel_shape": [2, 3]}),
    "a large window": ((1, 1, 40, 36), {"kernel_shape": [31, 27], "pads": [15, 13, 15, 13]}),
    "a global window": ((3, 50, 30, 31), {"kernel_shape": [30, 31]}),
    "a long line": ((2, 3, 50_001), {"kernel_shape": [9], "dilations": [7], "strides": [3], "pads": [4, 4]}),
    "a volume": ((2, 5, 20, 21, 22), {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "dilations": [1, 3, 2]}),
}


CALLS = [("conv", name) for name in CONVOLUTIONS] + [("conv_transpose", name) for name in TRANSPOSED]


def convolution(operator: str, name: str, dtype: Any) -> tuple[list[Array], dict[str, Any], Array]:
    """Return x, w and b of small integers, the attributes, and the exact result rounded once."""
    table, reference = (CONVOLUTIONS, conv_reference) if operator == "conv" else (TRANSPOSED, conv_transpose_reference)
    arrays, attributes = filled(operator, *table[name], dtype)
    return arrays, attributes, round_to(reference(*(array.astype(np.float64) for array in arrays), attributes), dtype)


def pool(name: str, dtype: str) -> tuple[Array, dict[str, Any], tuple[Array, Array]]:
    """Return x, the attributes, and the expected maxima with their indices."""
    shape, attributes = POOLS[name]
    x = values("any integer" if dtype == "uint8" else "integers", 5, shape, dtype)
    y, indices = max_pool_reference(x.astype(np.float64), attributes)
    return x, attributes, (y.astype(dtype), indices)


def _axes(attributes: dict[str, Any], rank: int) -> tuple[list[int], list[int], list[int]]:
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    return strides, dilations, attributes.get("pads", [0] * 2 * rank)


def _windows(x: Array, kernel: tuple[int, ...], attributes: dict[str, Any], fill: float) -> Array:
    """Return the windows of the padded input as a view, (N, C, *out, *kernel)."""
    rank = len(kernel)
    strides, dilations, pads = _axes(attributes, rank)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    return windows[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


def conv_reference(x: Array, w: Array, b: Array, attributes: dict[str, Any]) -> Array:
    rank, group = w.ndim - 2, attributes.get("group", 1)
    parts = [
        np.tensordot(_windows(xg, w.shape[2:], attributes, 0.0), wg, (_places(1, xg.ndim, rank), _places(1, 2, rank)))
        for xg, wg in zip(np.split(x, group, axis=1), np.split(w, group), strict=True)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1) + b, -1, 1)


def _places(channel: int, first: int, rank: int) -> list[int]:
    return [channel, *range(first, first + rank)]


def conv_transpose_reference(x: Array, w: Array, b: Array, attributes: dict[str, Any]) -> Array:
    """Add each input times the kernel to the canvas, then crop the pads."""
    rank, group = w.ndim - 2, attributes.get("group", 1)
    strides, dilations, pads = _axes(attributes, rank)
    canvas = [
        s * (n - 1) + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1] * group, *canvas))
    for tap in np.ndindex(w.shape[2:]):
        landing = [
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, x.shape[2:], strict=True)
        ]
        for xg, wg, yg in zip(np.split(x, group, axis=1), np.split(w, group), np.split(y, group, axis=1), strict=True):
            yg[(..., *landing)] += np.moveaxis(np.tensordot(xg, wg[(..., *tap)], (1, 0)), -1, 1)
    kept = [slice(p, size - q) for p, q, size in zip(pads[:rank], pads[rank:], canvas, strict=True)]
    return y[(..., *kept)] + b.reshape(-1, *[1] * rank)


def max_pool_reference(x: Array, attributes: dict[str, Any]) -> tuple[Array, Array]:
    """Return maxima and indices; argmax finds the first of equal elements."""
    kernel = tuple(attributes["kernel_shape"])
    numbers = np.arange(x.size, dtype=np.float64).reshape(x.shape)
    seen, places = (_windows(array, kernel, attributes, -np.inf) for array in (x, numbers))
    flat = (*seen.shape[: x.ndim], -1)
    best = seen.reshape(flat).argmax(axis=-1)[..., None]
    y, indices = (np.take_along_axis(array.reshape(flat), best, -1)[..., 0] for array in (seen, places))
    return y, indices.astype(np.int64)
