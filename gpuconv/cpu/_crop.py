"""Kernels cropped to the taps that meet an input: padding can exceed x, and a kernel can exceed both.

Taps before the first and after the last one that any output meets an input through add nothing. Without them the
problem is a smaller one with other pads, negative ones too: Conv, ConvTranspose and gradients of weights are cropped
before it is decided how to compute them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gpuconv.cpu._workspace import Array, last_axes, limit
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

_MUCH = 8  # times what is left, of weights
_AnyGeometry = TypeVar("_AnyGeometry", ConvGeometry, ConvTransposeGeometry)


def crop(w: Array, geometry: _AnyGeometry) -> tuple[Array, _AnyGeometry]:
    """Return weights (…, k_1, …) without outer taps that meet nothing, a view, and the geometry of the rest.

    Where no tap of an axis meets an input the view is empty, and the geometry is the one given. Weights that are too
    large to be copied without gaps are cropped only where that leaves little of them.
    """
    if not (any(geometry.pads_begin) or any(geometry.pads_end)):
        return w, geometry  # every tap of Conv meets an input, and every tap of ConvTranspose an output
    taps, cropped = _cropped(geometry)
    if taps is None:
        return w, geometry
    rest: Array = w[taps]
    has_room = rest.nbytes <= limit() // 8 or w.size >= _MUCH * rest.size
    return (rest, cropped) if has_room else (w, geometry)


def contiguous(w: Array) -> Array:
    """Return cropped weights without gaps, as all ways read them fastest, where the workspace has room for a copy."""
    return w if w.flags.c_contiguous or w.nbytes > limit() // 8 else np.ascontiguousarray(w)


@lru_cache(maxsize=1024)
def _cropped(geometry: _AnyGeometry) -> tuple[Any, _AnyGeometry]:
    """Return the index of the taps to keep, None for all, and the geometry of these."""
    ends = [(met[0], met[-1] + 1) if met else (0, 0) for met in geometry.met]
    taps = last_axes(slice(*span) for span in ends)
    kernel: Ints = tuple(last - first for first, last in ends)
    if kernel == geometry.kernel_shape:
        return None, geometry
    if 0 in kernel:
        return taps, geometry
    axes = zip(ends, geometry.kernel_shape, geometry.dilations, geometry.pads_begin, geometry.pads_end, strict=True)
    pads = [(begin - first * d, end - (k - last) * d) for (first, last), k, d, begin, end in axes]
    begin, end = zip(*pads, strict=True)
    w_shape = (*geometry.w_shape[:2], *kernel)
    return taps, replace(geometry, kernel_shape=kernel, pads_begin=begin, pads_end=end, w_shape=w_shape)
