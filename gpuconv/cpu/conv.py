"""Conv on NumPy arrays: which way to compute it."""

from __future__ import annotations

import numpy as np

from gpuconv import _dtypes
from gpuconv._geometry import ConvGeometry
from gpuconv.cpu import _gather, _taps
from gpuconv.cpu._workspace import Array


def conv(x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry) -> None:
    """Write Conv of x and w, plus b, into y."""
    if y.size == 0:
        return
    accumulator = _dtypes.check("conv", x=x).accumulator
    with np.errstate(all="ignore"):
        if not _gather.conv(x, w, b, y, geometry, accumulator):
            _taps.conv(x, w, b, y, geometry, accumulator)
