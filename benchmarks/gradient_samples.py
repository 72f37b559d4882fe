"""Exact values of sampled elements of gradients and MaxUnpool, computed in float64 from their definitions.

As in `benchmarks.samples`, arrays are only indexed, so they may be on a GPU. Indices are ONNX's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from benchmarks import samples
from benchmarks.layers import Layer
from benchmarks.samples import Sums, Take

At = tuple[Any, ...]


def sums(layer: Layer, take: Take, arrays: dict[str, Any], at: At) -> Sums:
    """Return the values of a gradient or of MaxUnpool at these positions; ``arrays`` by gpuconv's argument names."""
    if layer.call == "input_grad":
        return samples.sums(adjoint(layer), take, arrays["dy"], arrays["w"], None, at)
    if layer.call == "weight_grad":
        return _weight_sums(layer, take, arrays["x"], arrays["dy"], at)
    if layer.call == "bias_grad":
        return _bias_sums(layer, take, arrays["dy"], at)
    if layer.op == "AveragePool":
        return _average_sums(layer, take, arrays["dy"], at)
    return _sums_by_indices(layer, take, arrays["dy" if layer.call == "grad" else "y"], arrays["indices"], at)


def adjoint(layer: Layer) -> Layer:
    """Return the adjoint of a Conv: the ConvTranspose that maps its outputs to its inputs with the same weights; or
    reverse."""
    turned = replace(layer, x=layer.y_shape, k_out=layer.x[1], call="", output_padding=())
    if layer.op == "ConvTranspose":
        return replace(turned, op="Conv")
    turned = replace(turned, op="ConvTranspose", output_padding=(0,) * len(layer.kernel))
    missing = (n - made for n, made in zip(layer.x[2:], turned.y_shape[2:], strict=True))
    return replace(turned, output_padding=tuple(missing))


def _weight_sums(layer: Layer, take: Take, x: Any, dy: Any, at: At) -> Sums:
    if layer.op == "ConvTranspose":
        return _weight_sums(adjoint(layer), take, dy, x, at)
    filters, depth, outputs = layer.k_out // layer.group, layer.x[1] // layer.group, layer.y_shape
    found = []
    for m, c, *taps in zip(*at, strict=True):
        axes = [_positions_and_inputs(layer, axis, tap, outputs[2 + axis]) for axis, tap in enumerate(taps)]
        images, channel = np.arange(layer.x[0]), m // filters * depth + c
        seen = take(x, np.ix_(images, [channel], *(inputs for _, inputs in axes)))
        found.append(seen * take(dy, np.ix_(images, [m], *(places for places, _ in axes))))
    return _summed(found, outputs[0] * prod(outputs[2:]))


def _positions_and_inputs(layer: Layer, axis: int, tap: int, extent: int) -> tuple[Any, Any]:
    """Return the output positions of an axis whose ``tap`` lies in bounds, and the input positions it reads there."""
    places = np.arange(extent)
    inputs = places * layer.strides[axis] + tap * layer.dilations[axis] - layer.pads[axis]
    inside = (inputs >= 0) & (inputs < layer.x[2 + axis])
    return places[inside], inputs[inside]


def _bias_sums(layer: Layer, take: Take, dy: Any, at: At) -> Sums:
    images, extents = layer.y_shape[0], layer.y_shape[2:]
    spatial = [np.arange(extent) for extent in extents]
    return _summed((take(dy, np.ix_(np.arange(images), [m], *spatial)) for m in at[0]), images * prod(extents))


def _summed(terms: Iterable[Any], count: int) -> Sums:
    pairs = [(each.sum(), abs(each).sum()) for each in terms]
    values, magnitudes = (np.array(column) for column in zip(*pairs, strict=True))
    return Sums(values, magnitudes, count)


def _average_sums(layer: Layer, take: Take, dy: Any, at: At) -> Sums:
    """Sum the shares of all windows that cover each element; windows without any valid element must not occur."""
    image, channel, *places = at
    coordinates, inside = samples.windows(replace(layer, op="ConvTranspose", x=layer.y_shape), places)
    shares = take(dy, (image[:, None], channel[:, None], *coordinates)) / samples.divisors(layer, coordinates)
    terms = np.where(inside, shares, 0.0)
    return Sums(terms.sum(1), abs(terms).sum(1), terms.shape[1] + 1)


def _sums_by_indices(layer: Layer, take: Take, values: Any, indices: Any, at: At) -> Sums:
    """Sum the values of the windows whose Indices name each element; the candidates are those that ConvTranspose would
    read."""
    image, channel, *places = at
    coordinates, inside = samples.windows(replace(layer, op="ConvTranspose", x=layer.y_shape), places)
    where = (image[:, None], channel[:, None], *coordinates)
    number = np.ravel_multi_index(at, layer.x)
    chosen = inside & (take(indices, where) == number[:, None])
    terms = np.where(chosen, take(values, where), 0.0)
    return Sums(terms.sum(1), abs(terms).sum(1), terms.shape[1])
