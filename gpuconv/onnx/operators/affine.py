"""The fused operator Affine: a per-channel factor and shift, with an optional activation.

Folding creates it for BatchNormalization and similar nodes that no convolution in front can absorb. On the CPU it makes
one pass over x, in cache-sized blocks of channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._finish import Finish
from gpuconv.onnx.operators.form import blocks_of_channels, namespace
from gpuconv.rules import activation as activations
from gpuconv.rules.activation import Activation

_BLOCK = 2**15  # elements per block


def affine(x: Any, factor: Any, shift: Any, activation: Any = None) -> Any:
    """Return ``activation(x * factor + shift)``, computed per channel.

    Parameters
    ----------
    x : array (N, C, D1, ..., Dn)
        float32 or float64.
    factor, shift : array (C,), or (1,)
        In the dtype and library of x.
    activation : None or tuple
        As :func:`gpuconv.conv` takes it.
    """
    ones = (1,) * (x.ndim - 2)
    parameters = factor.reshape(-1, *ones), shift.reshape(-1, *ones), activations.parse("activation", activation)
    # broadcasting may turn one channel into several
    if not isinstance(x, np.ndarray) or x.shape[1] != factor.size != 1:
        return _computed(x, *parameters)
    y = np.empty(x.shape, x.dtype)
    _threads.run(
        lambda place: _compute_into(y[place], x[place], place[1], *parameters),
        blocks_of_channels(x, _BLOCK),
        side_by_side=_threads.pays(x.nbytes),
    )
    return y


def _compute_into(y: Any, x: Any, channels: slice, factor: Any, shift: Any, parsed: Activation | None) -> None:
    """Compute a block of channels of one image into y; the caller controls NumPy's warnings."""
    np.multiply(x, factor[channels] if factor.size > 1 else factor[0], out=y)
    y += shift[channels] if shift.size > 1 else shift[0]
    if parsed is not None:
        Finish(activation=parsed).apply(y)


def _computed(x: Any, factor: Any, shift: Any, parsed: Activation | None) -> Any:
    """Compute the result for whole arrays of either library."""
    y = x * factor
    y += shift
    return y if parsed is None else _acted(y, parsed)


def activated(y: Any, activation: Any) -> Any:
    """Apply an activation, given as for :func:`gpuconv.conv`; y may be overwritten."""
    parsed = activations.parse("activation", activation)
    if parsed is not None and isinstance(y, np.ndarray):
        Finish(activation=parsed).apply(y)
        return y
    return y if parsed is None else _acted(y, parsed)


def _acted(y: Any, parsed: Activation) -> Any:
    """Apply a parsed activation to an array of either library."""
    xp = namespace(y)
    if parsed.slope != 1:
        y = xp.where(y < 0, y * parsed.slope, y)
    if parsed.low > -np.inf:
        y = xp.maximum(parsed.low, y)
    return xp.minimum(parsed.high, y) if parsed.high < np.inf else y
