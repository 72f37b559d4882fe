"""Random problems of ConvTranspose in small integers, and their results by the definition.

Small integers are exact in every order and dtype, so that results can be compared as equal numbers.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

Ints = tuple[int, ...]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64]
NAMES = "group", "strides", "dilations", "pads", "output_padding"  # names of attributes in the order of `transposed`


def integers(random: Random, shape: Ints, dtype: Any) -> Any:
    """Return an array of -1, 0 and 1, most of them 0; the same for the parts of complex numbers."""
    draw = np.random.default_rng(random.getrandbits(32))
    values = draw.integers(-1, 2, shape) * (draw.random(shape) < 0.3)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * draw.integers(-1, 2, shape)
    return values.astype(dtype)


def wide(array: Any) -> Any:
    """Return an array in float64 or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def transposed(x: Any, w: Any, b: Any, group: int, strides: Ints, dilations: Ints, pads: Ints, more: Ints) -> Any:
    """Compute ConvTranspose by its definition, one product of matrices for every tap and group."""
    x, w = wide(x), wide(w)
    rank, channels, rows = x.ndim - 2, x.shape[1] // group, w.shape[1]
    axes = list(zip(x.shape[2:], w.shape[2:], strides, dilations, more, strict=True))
    y = np.zeros((len(x), rows * group, *((n - 1) * s + (k - 1) * d + 1 + m for n, k, s, d, m in axes)), x.dtype)
    for tap, g in product(product(*map(range, w.shape[2:])), range(group)):
        of_group = slice(g * channels, (g + 1) * channels)
        place = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, (n, _, s, d, _) in zip(tap, axes, strict=True))
        products = np.tensordot(w[(of_group, slice(None), *tap)], x[:, of_group], axes=(0, 1)).swapaxes(0, 1)
        y[(slice(None), slice(g * rows, (g + 1) * rows), *place)] += products
    y = y[(..., *(slice(a, n - b) for a, b, n in zip(pads[:rank], pads[rank:], y.shape[2:], strict=True)))]
    return y if b is None else y + wide(b).reshape(-1, *(1,) * rank)


def drawn(random: Random, dtype: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return x, w, b and attributes of a random ConvTranspose."""
    rank, group = random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3))
    most = {1: 50, 2: 8, 3: 4}[rank]
    kernel, extents = ([random.randint(1, most) for _ in range(rank)] for _ in range(2))
    strides = [random.choice((1, 2, 3, 16, 30) if rank < 3 else (1, 2, 3)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    axes = zip(extents, kernel, strides, dilations, strict=True)
    pads = [random.randint(0, ((n - 1) * s + (k - 1) * d) // 3) for n, k, s, d in axes] * 2
    channels, rows = random.choice((1, 2, 40) if rank > 1 else (1, 7, 300)), random.choice((1, 2, 9))
    x = integers(random, (random.choice((1, 2, 5)), channels * group, *extents), dtype)
    w = integers(random, (channels * group, rows, *kernel), dtype)
    b = integers(random, (rows * group,), dtype) if random.random() < 0.5 else None
    more = [random.randint(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)]
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more}
    return x, w, b, attributes
