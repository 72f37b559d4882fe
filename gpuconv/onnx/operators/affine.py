"""What folding leaves where no convolution takes it: a factor and a shift for each channel, and an activation."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv import _activation
from gpuconv.onnx.operators.form import namespace


def affine(x: Any, factor: Any, shift: Any, activation: Any = None) -> Any:
    """Return ``activation(x * factor + shift)``.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        float32 or float64.
    factor, shift : array (C,)
        Of x's dtype and library.
    activation : None or tuple
        As :func:`gpuconv.conv` takes it.
    """
    ones = (1,) * (x.ndim - 2)
    y = x * factor.reshape(-1, *ones)
    y += shift.reshape(-1, *ones)
    return activated(y, activation)


def activated(y: Any, activation: Any) -> Any:
    """Apply an activation as :func:`gpuconv.conv` takes it; y may be written."""
    does = _activation.parse("activation", activation)
    if does is None:
        return y
    xp = namespace(y)
    if does.slope != 1:
        y = xp.where(y < 0, y * does.slope, y)
    if does.low > -np.inf:
        xp.maximum(does.low, y, out=y)
    if does.high < np.inf:
        xp.minimum(does.high, y, out=y)
    return y
