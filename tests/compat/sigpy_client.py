"""Convolutions as a library of linear operators for image reconstruction uses them, written against gpuconv.

True convolutions (the filter is flipped) of data (batch …, [channels,] D1 … Dn) with filters ([out, in,] k1 … kn), in
the modes "full" and "valid", with strides, and the adjoints with respect to either, where complex operands are
conjugated.
"""

from __future__ import annotations

from math import prod
from typing import Any

import gpuconv


def convolve(data: Any, filt: Any, mode: str, strides: tuple[int, ...], multi_channel: bool) -> Any:
    x, w, batch = _arranged(data, filt, multi_channel)
    y = gpuconv.conv(x, _flipped(w), **_attributes(w, mode, strides))
    return y.reshape(batch + y.shape[1 if multi_channel else 2 :])


def data_adjoint(
    output: Any, filt: Any, data_shape: tuple[int, ...], mode: str, strides: tuple[int, ...], multi_channel: bool
) -> Any:
    w = filt if multi_channel else filt[None, None]
    rank = w.ndim - 2
    dy = output.reshape(-1, w.shape[0], *output.shape[-rank:])
    x_shape = (len(dy), w.shape[1], *data_shape[-rank:])
    return gpuconv.conv_input_grad(dy, _flipped(w).conj(), x_shape, **_attributes(w, mode, strides)).reshape(data_shape)


def filter_adjoint(
    output: Any, data: Any, filt_shape: tuple[int, ...], mode: str, strides: tuple[int, ...], multi_channel: bool
) -> Any:
    w_shape = filt_shape if multi_channel else (1, 1, *filt_shape)
    rank = len(w_shape) - 2
    dy = output.reshape(-1, w_shape[0], *output.shape[-rank:])
    x = data.reshape(-1, w_shape[1], *data.shape[-rank:])
    pads = [k - 1 for k in w_shape[2:]] * 2 if mode == "full" else [0] * 2 * rank
    return _flipped(gpuconv.conv_weight_grad(x.conj(), dy, w_shape, strides=strides, pads=pads)).reshape(filt_shape)


def _arranged(data: Any, filt: Any, multi_channel: bool) -> tuple[Any, Any, tuple[int, ...]]:
    w = filt if multi_channel else filt[None, None]
    rank = w.ndim - 2
    batch = data.shape[: -rank - multi_channel]
    return data.reshape(prod(batch), w.shape[1], *data.shape[-rank:]), w, batch


def _flipped(w: Any) -> Any:
    return w[(slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))]


def _attributes(w: Any, mode: str, strides: tuple[int, ...]) -> dict[str, Any]:
    begin = [k - 1 if mode == "full" else 0 for k in w.shape[2:]]
    return {"strides": strides, "pads": begin * 2}
