"""ConvTranspose on NumPy arrays."""
from __future__ import annotations
from itertools import product
from typing import Any
import numpy as np
from gpuconv._geometry import ConvTransposeGeometry, tap_range


def conv_transpose(x: Any, w: Any, b: Any, y: Any, g: ConvTransposeGeometry) -> None:
    """Placeholder by taps."""
    acc = np.float32 if x.dtype.itemsize < 8 else np.float64
    c = g.x_shape[1]; m = g.y_shape[1]; G = g.group
    t = np.zeros(g.y_shape, acc)
    with np.errstate(all="ignore"):
        if b is not None: t += b.astype(acc).reshape((-1,) + (1,) * len(g.kernel_shape))
        for tap in product(*map(range, g.kernel_shape)):
            src, dst = [], []
            for a, k in enumerate(tap):
                s = g.strides[a]; off = k * g.dilations[a] - g.pads_begin[a]
                lo, hi = tap_range(g.x_shape[2 + a], g.y_shape[2 + a], s, off)
                src.append(slice(lo, hi)); dst.append(slice(lo * s + off, hi * s + off if hi > lo else lo * s + off, s))
            if any(d.start >= d.stop for d in src): continue
            for j in range(G):
                xs = x[(slice(None), slice(j * c // G, (j + 1) * c // G), *src)].astype(acc)
                ws = w[(slice(j * c // G, (j + 1) * c // G), slice(None), *tap)].astype(acc)
                t[(slice(None), slice(j * m // G, (j + 1) * m // G), *dst)] += np.moveaxis(np.tensordot(ws, xs, (0, 1)), 0, 1)
        y[...] = t.astype(y.dtype)
