"""Crop kernels to their valid taps: those that have an in-bounds input for at least one output.

With large pads or dilations, outer taps can lie in the padding for every output, and contribute nothing. Cropping them
gives an equivalent, smaller problem with adjusted pads, which may be negative. Conv, ConvTranspose and weight gradients
are cropped before an algorithm is chosen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gpuconv.cpu._workspace import Array, last_axes, limit
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

_MUCH = 8  # ratio of all weights to the valid ones from which large weights are cropped too
_AnyGeometry = TypeVar("_AnyGeometry", ConvGeometry, ConvTransposeGeometry)


def crop(w: Array, geometry: _AnyGeometry) -> tuple[Array, _AnyGeometry]:
    """Return a view of weights (…, k_1, …) without invalid outer taps, and the geometry of the cropped kernel.

    If no tap along an axis is valid, the view is empty and the geometry unchanged. Weights that are too large for a
    contiguous copy in the workspace are cropped only if at most one eighth of them remains.
    """
    if not (any(geometry.pads_begin) or any(geometry.pads_end)):
        return w, geometry  # without padding, every tap is valid
    taps, cropped = _cropped(geometry)
    if taps is None:
        return w, geometry
    rest: Array = w[taps]
    has_room = rest.nbytes <= limit() // 8 or w.size >= _MUCH * rest.size
    return (rest, cropped) if has_room else (w, geometry)


def contiguous(w: Array) -> Array:
    """Return cropped weights, copied to contiguous memory if an eighth of the workspace suffices for the copy."""
    return w if w.flags.c_contiguous or w.nbytes > limit() // 8 else np.ascontiguousarray(w)


@lru_cache(maxsize=1024)
def _cropped(geometry: _AnyGeometry) -> tuple[Any, _AnyGeometry]:
    """Return the index of the valid taps (None if all are), and the geometry of the kernel that they form."""
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
