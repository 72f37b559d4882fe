"""Operands of a layer as CuPy arrays: a random pattern made on the host, repeated by copies on the device.

This needs neither cuRAND nor PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

import gpuconv
from benchmarks import calls, small_shapes
from benchmarks.layers import Ints, Layer
from gpuconv.rules import whole_numbers

_PERIOD = 65_537  # elements of the pattern; a prime, so that consecutive rows of an array differ


def operands(cupy: Any, layer: Layer, dtype: str, layout: str, seed: int = 0, most: int = 0) -> dict[str, Any]:
    """Return the operands of a layer's call as new arrays, by name.

    Floating-point values are normal with the size of a network's, or whole numbers from -``most`` to ``most`` if given;
    integers span their dtype. ``indices`` and ``y`` for MaxPool's gradient and MaxUnpool come from a forward MaxPool.
    """
    call, kind = calls.of(layer, layout), small_shapes.numpy_dtype(dtype)

    def made(number: int, name: str, shape: Ints) -> Any:
        count, first = min(prod(shape), _PERIOD), 8 * seed + number
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            pattern = np.random.default_rng(first).integers(limits.min, limits.max + 1, count, kind)
        elif most:
            pattern = whole_numbers.random(count, kind, most, first)
        else:
            pattern = (_normal(first, kind.kind == "c")[:count] * np.float32(scale(layer, name))).astype(kind)
        return repeated(cupy, pattern, shape)

    found = {
        name: made(number, name, shape) for number, (name, shape) in enumerate(call.arrays.items()) if name != "indices"
    }
    if "indices" in call.arrays:
        forward = calls.of(replace(layer, call="", indices=True), layout)
        y, found["indices"] = gpuconv.max_pool(
            made(len(found), "x", forward.inputs["x"]), return_indices=True, **forward.keywords
        )
        found |= {"y": y} if "y" in found else {}
    return {name: found[name] for name in call.arrays}


def scale(layer: Layer, name: str) -> float:
    """Return the standard deviation of an operand that keeps results near 1, so that float16 does not overflow."""
    if name == "w":
        terms = layer.w_shape[0] // layer.group if layer.op == "ConvTranspose" else layer.w_shape[1]
        return float((terms * prod(layer.kernel)) ** -0.5)
    if name == "dy" and layer.call in ("weight_grad", "bias_grad"):
        return float((prod(layer.y_shape) / layer.k_out) ** -0.5)
    return 1.0


def repeated(cupy: Any, pattern: Any, shape: Ints) -> Any:
    """Return a new array filled by repeating ``pattern``, with device copies only."""
    array = cupy.empty(shape, pattern.dtype)
    flat, done = array.reshape(-1), min(array.size, pattern.size)
    flat[:done].set(pattern[:done])
    while done < flat.size:
        count = min(done, flat.size - done)
        flat[done : done + count].data.copy_from_device(flat.data, count * flat.itemsize)
        done += count
    return array


@cache
def _normal(seed: int, paired: bool) -> Any:
    """Return `_PERIOD` standard normal numbers in float32, or in complex64 if ``paired``."""
    found = np.random.default_rng(seed).standard_normal((_PERIOD, 2 if paired else 1), np.float32)
    return found.view(np.complex64)[:, 0] if paired else found[:, 0]
