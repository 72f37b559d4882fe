"""ConvTranspose on NumPy arrays: which way to compute it."""

from __future__ import annotations

import numpy as np

from gpuconv import _dtypes
from gpuconv._geometry import ConvTransposeGeometry
from gpuconv.cpu import _taps
from gpuconv.cpu._workspace import Array


def conv_transpose(x: Array, w: Array, b: Array | None, y: Array, geometry: ConvTransposeGeometry) -> None:
    """Write ConvTranspose of x and w, plus b, into y."""
    if y.size == 0:
        return
    accumulator = _dtypes.check("conv_transpose", x=x).accumulator
    with np.errstate(all="ignore"):
        _taps.conv_transpose(x, w, b, y, geometry, accumulator)
