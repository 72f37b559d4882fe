"""Conv on NumPy arrays."""
from __future__ import annotations
from itertools import product
from typing import Any
import numpy as np
from gpuconv._geometry import ConvGeometry, tap_range


def conv(x: Any, w: Any, b: Any, y: Any, g: ConvGeometry) -> None:
    """Placeholder by taps."""
    acc = np.float32 if x.dtype.itemsize < 8 else np.float64
    n, c = g.x_shape[:2]; m = g.w_shape[0]; G = g.group
    t = np.zeros(g.y_shape, acc)
    with np.errstate(all="ignore"):
        if b is not None: t += b.astype(acc).reshape((-1,) + (1,) * len(g.kernel_shape))
        for tap in product(*map(range, g.kernel_shape)):
            src, dst = [], []
            for a, k in enumerate(tap):
                s = g.strides[a]; off = k * g.dilations[a] - g.pads_begin[a]
                lo, hi = tap_range(g.y_shape[2 + a], g.x_shape[2 + a], s, off)
                dst.append(slice(lo, hi)); src.append(slice(lo * s + off, hi * s + off if hi > lo else lo * s + off, s))
            if any(d.start >= d.stop for d in dst): continue
            for j in range(G):
                xs = x[(slice(None), slice(j * c // G, (j + 1) * c // G), *src)].astype(acc)
                ws = w[(slice(j * m // G, (j + 1) * m // G), slice(None), *tap)].astype(acc)
                t[(slice(None), slice(j * m // G, (j + 1) * m // G), *dst)] += np.moveaxis(np.tensordot(ws, xs, (1, 1)), 0, 1)
        y[...] = t.astype(y.dtype)
