"""Exact values of sampled outputs of a layer, computed in float64 from the operator's definition.

Arrays are only indexed, through a given function, so they may belong to any library and device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from benchmarks import calls
from benchmarks.layers import Layer

Take = Callable[[Any, tuple[Any, ...]], Any]  # (array, index arrays) -> elements as a NumPy array
# Bits of the significand, and the exponent of the smallest subnormal.
_FORMATS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}
_FORMATS["complex64"] = _FORMATS["float32"]  # real and imaginary part
_LEFT_OUT = {"tf32": 2.0**-11, "3xtf32": 2.0**-21}  # largest relative rounding of a factor, see gpuconv.precision


@dataclass(frozen=True, slots=True)
class Sums:
    """Sampled sums of a layer or gradient: exact values, sums of the terms' magnitudes, and the number of terms."""

    values: Any
    magnitudes: Any
    terms: int

    def bound(self, dtype: str, precision: str = "ieee") -> Any:
        """Return the error bound of a result: any summation order in the accumulator's dtype, then one rounding.

        Only float32 and complex64 in "ieee" avoid tensor cores, which may round float32 sums twice as coarsely. TF32
        rounds the factors. Each part of a complex result is a sum of twice as many terms.
        """
        bits, smallest = _FORMATS[dtype]
        plain = dtype in ("float32", "complex64") and precision == "ieee"
        unit = 2.0**-53 if dtype == "float64" else 2.0**-24 if plain else 2.0**-23
        factors = 2 * _LEFT_OUT.get(precision, 0.0)
        rounding = 2.0**-bits if bits < 24 else 0.0
        parts = 2 if dtype == "complex64" else 1
        sums = ((parts * self.terms + 1) * unit + factors) * self.magnitudes
        return parts**0.5 * (sums + rounding * abs(self.values) + 2.0 ** (smallest - 1))

    def with_relu(self, residual: Any) -> Sums:
        """Return max(sums + residual, 0): one more term; ReLU does not enlarge errors."""
        values = np.maximum(self.values + residual, 0.0)
        return Sums(values, self.magnitudes + abs(residual), self.terms + 1)


def positions(layer: Layer, count: int, seed: int = 0) -> tuple[Any, ...]:
    """Return index arrays of the first and last element of the result and of ``count`` random ones."""
    random, shape = np.random.default_rng(seed), calls.of(layer).result_shape
    return tuple(np.concatenate([[0, size - 1], random.integers(0, size, count)]) for size in shape)


def sums(layer: Layer, take: Take, x: Any, w: Any, b: Any, at: tuple[Any, ...]) -> Sums:
    """Return the values of Conv or ConvTranspose at these positions; ``b`` may be None."""
    image, filters, *places = at
    coordinates, inside = windows(layer, places)
    depth, width = layer.x[1] // layer.group, layer.k_out // layer.group
    channels = (filters // width * depth)[:, None] + np.arange(depth)
    taps = [t.reshape(1, 1, -1) for t in np.indices(layer.kernel)]
    seen = take(x, (image[:, None, None], channels[:, :, None], *(c[:, None] for c in coordinates)))
    if layer.op == "Conv":
        weights = take(w, (filters[:, None, None], np.arange(depth)[None, :, None], *taps))
    else:
        weights = take(w, (channels[:, :, None], (filters % width)[:, None, None], *taps))
    products = np.where(inside[:, None], seen, 0.0) * weights
    bias = 0.0 if b is None else take(b, (filters,))
    return Sums(products.sum((1, 2)) + bias, abs(products).sum((1, 2)) + abs(bias), depth * prod(layer.kernel) + 1)


def maxima(layer: Layer, take: Take, x: Any, at: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the values and Indices of MaxPool at these positions; each window must have a valid element."""
    image, channel, *places = at
    coordinates, inside = windows(layer, places)
    seen = take(x, (image[:, None], channel[:, None], *coordinates))
    first = np.where(inside, seen, -np.inf).argmax(1)[:, None]
    extents = layer.x[2:]
    plane = np.ravel_multi_index([np.take_along_axis(c, first, 1) for c in coordinates], extents)
    indices = (image * layer.x[1] + channel) * prod(extents) + plane[:, 0]
    return np.take_along_axis(seen, first, 1)[:, 0], indices


def averages(layer: Layer, take: Take, x: Any, at: tuple[Any, ...]) -> Sums:
    """Return the values of AveragePool at these positions; each window must have a valid element."""
    image, channel, *places = at
    coordinates, inside = windows(layer, places)
    seen = np.where(inside, take(x, (image[:, None], channel[:, None], *coordinates)), 0.0)
    counts = divisors(layer, places)
    return Sums(seen.sum(1) / counts, abs(seen).sum(1) / counts, prod(layer.kernel) + 1)


def divisors(layer: Layer, places: list[Any]) -> Any:
    """Return AveragePool's divisors for outputs at these coordinates: the number of taps that count."""
    counts, rank = 1, len(layer.kernel)
    for axis, place in enumerate(places):
        begin, end = layer.pads[axis], layer.pads[rank + axis]
        taps = place[..., None] * layer.strides[axis] + np.arange(layer.kernel[axis]) * layer.dilations[axis] - begin
        low, high = (-begin, layer.x[2 + axis] + end) if layer.count_include_pad else (0, layer.x[2 + axis])
        counts = counts * ((low <= taps) & (taps < high)).sum(-1)
    return counts


def windows(layer: Layer, places: list[Any]) -> tuple[list[Any], Any]:
    """Return the input coordinates of each output and tap (taps in row-major order), and a mask of the valid ones."""
    rank = len(layer.kernel)
    axes = [_axis(layer, axis, place) for axis, place in enumerate(places)]
    count, taps = len(places[0]), prod(layer.kernel)

    def spread(values: Any, axis: int) -> Any:
        shape = [count, *(size if a == axis else 1 for a, size in enumerate(layer.kernel))]
        return np.broadcast_to(values.reshape(shape), (count, *layer.kernel)).reshape(count, taps)

    coordinates = [spread(axes[axis][0], axis) for axis in range(rank)]
    return coordinates, np.logical_and.reduce([spread(axes[axis][1], axis) for axis in range(rank)])


def _axis(layer: Layer, axis: int, place: Any) -> tuple[Any, Any]:
    """Return input coordinates and the mask of valid ones along one axis, (outputs, taps); invalid ones are 0."""
    stride, pad, extent = layer.strides[axis], layer.pads[axis], layer.x[2 + axis]
    taps = np.arange(layer.kernel[axis]) * layer.dilations[axis]
    if layer.op == "ConvTranspose":
        coordinate, rest = np.divmod(place[:, None] + pad - taps, stride)
        inside = rest == 0
    else:
        coordinate = place[:, None] * stride + taps - pad
        inside = np.ones_like(coordinate, bool)
    inside = inside & (coordinate >= 0) & (coordinate < extent)
    return np.where(inside, coordinate, 0), inside
