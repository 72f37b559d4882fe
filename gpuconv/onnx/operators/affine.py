"""What folding leaves where no convolution takes it: a factor and a shift for each channel, and an activation."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._finish import Finish
from gpuconv.onnx.operators.form import blocks_of_channels, namespace
from gpuconv.rules import activation as activations
from gpuconv.rules.activation import Activation

_BLOCK = 2**15  # elements


def affine(x: Any, factor: Any, shift: Any, activation: Any = None) -> Any:
    """Return ``activation(x * factor + shift)``.

    Parameters
    ----------
    x : array (N, C, D1, …, Dn)
        float32 or float64.
    factor, shift : array (C,), or (1,)
        Of x's dtype and library.
    activation : None or tuple
        As :func:`gpuconv.conv` takes it.
    """
    ones = (1,) * (x.ndim - 2)
    parts = factor.reshape(-1, *ones), shift.reshape(-1, *ones), activations.parse("activation", activation)
    if not isinstance(x, np.ndarray) or x.shape[1] != factor.size != 1:  # one channel may become several
        return _computed(x, *parts)
    y = np.empty(x.shape, x.dtype)
    _threads.run(
        lambda place: _compute_into(y[place], x[place], place[1], *parts),
        blocks_of_channels(x, _BLOCK),
        side_by_side=_threads.pays(x.nbytes),
    )
    return y


def _compute_into(y: Any, x: Any, channels: slice, factor: Any, shift: Any, does: Activation | None) -> None:
    """Compute the channels of an image that stay in a processor's cache; NumPy's messages are the caller's choice."""
    np.multiply(x, factor[channels] if factor.size > 1 else factor[0], out=y)
    y += shift[channels] if shift.size > 1 else shift[0]
    if does is not None:
        Finish(activation=does).apply(y)


def _computed(x: Any, factor: Any, shift: Any, does: Activation | None) -> Any:
    y = x * factor
    y += shift
    return y if does is None else _acted(y, does)


def activated(y: Any, activation: Any) -> Any:
    """Apply an activation as :func:`gpuconv.conv` takes it; y may be written."""
    does = activations.parse("activation", activation)
    if does is not None and isinstance(y, np.ndarray):
        Finish(activation=does).apply(y)
        return y
    return y if does is None else _acted(y, does)


def _acted(y: Any, does: Activation) -> Any:
    xp = namespace(y)
    if does.slope != 1:
        y = xp.where(y < 0, y * does.slope, y)
    if does.low > -np.inf:
        y = xp.maximum(does.low, y)
    return xp.minimum(does.high, y) if does.high < np.inf else y
