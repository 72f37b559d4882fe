"""MaxPool on NumPy arrays."""
from __future__ import annotations
from itertools import product
from typing import Any
import numpy as np
from gpuconv._geometry import MaxPoolGeometry


def max_pool(x: Any, y: Any, indices: Any, g: MaxPoolGeometry) -> None:
    """Placeholder by windows."""
    sp = g.x_shape[2:]
    P = int(np.prod(sp))
    fl = x.dtype.kind != "i" and x.dtype.kind != "u"
    low = np.finfo(x.dtype).min if x.dtype.kind == "f" and x.dtype.name != "bfloat16" else None
    if low is None:
        import ml_dtypes
        low = ml_dtypes.finfo(x.dtype).min if x.dtype.name == "bfloat16" else np.iinfo(x.dtype).min
    for n, c in np.ndindex(*g.x_shape[:2]):
        for q in np.ndindex(*g.y_shape[2:]):
            best, at = None, -1
            for t in product(*map(range, g.kernel_shape)):
                i = tuple(a * s + b * d - p for a, s, b, d, p in zip(q, g.strides, t, g.dilations, g.pads_begin))
                if any(v < 0 or v >= m for v, m in zip(i, sp)): continue
                v = x[(n, c, *i)]
                if best is None or (best == best and (v != v or v > best)):
                    best = v
                    at = (n * g.x_shape[1] + c) * P + sum(v * m for v, m in zip(i, (np.cumprod((1,) + sp[:-1]) if g.storage_order else np.cumprod((1,) + sp[:0:-1])[::-1])))
            y[(n, c, *q)] = low if best is None else best
            if indices is not None: indices[(n, c, *q)] = at
