"""Matrix products: Gemm, MatMul and STFT. NumPy computes them on the host, gpuconv's 1x1 convolutions on a device.

A GEMM is a convolution with a kernel of one tap, so no cuBLAS is needed: a matrix product maps rows to positions, and a
stack of products maps to groups.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _blas
from gpuconv.onnx.operators.form import Form, Operator, ints, namespace, wide
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.rules import dtypes


def product(a: Any, b: Any) -> Any:
    """Multiply matrices, or stacks of them that broadcast, as ``numpy.matmul`` does.

    Parameters
    ----------
    a : array (..., M, K)
    b : array (..., K, N)
        In the dtype and library of a.

    Returns
    -------
    array (..., M, N)
        Floating-point arrays on a device are multiplied by gpuconv's kernels, without cuBLAS. float16 and bfloat16 are
        summed in float32.
    """
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(f"the product of shapes {a.shape} and {b.shape} sums over {a.shape[-1]} and {b.shape[-2]}")
    if not on_device(a) or a.dtype.name not in dtypes.CONV_DTYPES:
        multiply = _blas.matmul if isinstance(a, np.ndarray) else namespace(a).matmul
        if a.ndim < 4 or b.ndim > 2:
            return multiply(wide(a), wide(b)).astype(a.dtype, copy=False)
        # One product per element of the first axis, rather than one per row of each image, which would reread all of b.
        rows = a.reshape(a.shape[0], prod(a.shape[1:-1]), a.shape[-1])
        return multiply(wide(rows), wide(b)).astype(a.dtype, copy=False).reshape(*a.shape[:-1], b.shape[-1])
    if b.ndim == 2:
        return _of_rows(a.reshape(prod(a.shape[:-1]), a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count, xp = prod(stack), namespace(a)
    a = xp.broadcast_to(a, (*stack, *a.shape[-2:])).reshape(count, *a.shape[-2:])
    b = xp.broadcast_to(b, (*stack, *b.shape[-2:])).reshape(count, *b.shape[-2:])
    return _of_stacks(a, b).reshape(*stack, a.shape[-2], b.shape[-1])


def _of_rows(a: Any, b: Any, bias: Any = None) -> Any:
    """Multiply (M, K) by (K, N) as an NHWC convolution: M positions with K channels, and N filters of one tap."""
    if 0 in (*a.shape, *b.shape):
        y = namespace(a).zeros((a.shape[0], b.shape[1]), a.dtype)
        return y if bias is None else y + bias
    return gpuconv.conv(a[None], b.T[:, :, None], bias, layout="NHWC")[0]


def _of_stacks(a: Any, b: Any) -> Any:
    """Multiply (S, M, K) by (S, K, N) as a grouped convolution: S groups of K channels, N positions, M filters each."""
    stack, rows, inner = a.shape
    if 0 in (*a.shape, *b.shape):
        return namespace(a).zeros((stack, rows, b.shape[-1]), a.dtype)
    x, w = b.reshape(1, stack * inner, b.shape[-1]), a.reshape(stack * rows, inner, 1)
    return gpuconv.conv(x, w, group=stack).reshape(stack, rows, b.shape[-1])


def matmul(a: Any, b: Any, multiply: Callable[[Any, Any], Any] = product) -> Any:
    """Multiply matrices, stacks or vectors by ``multiply``: a 1-D first factor is a row, a 1-D second factor a
    column.
    """
    if 0 in (a.ndim, b.ndim):
        raise ArgumentError(f"the factors must have at least one axis, but have the shapes {a.shape} and {b.shape}")
    row, column = a.ndim == 1, b.ndim == 1
    y = multiply(a[None] if row else a, b[:, None] if column else b)
    shape = list(y.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 - (not column)]
    return y.reshape(shape)


def _matmul(_: Form, a: Any, b: Any) -> Any:
    """MatMul, as numpy.matmul."""
    return matmul(a, b)


def _gemm(form: Form, a: Any, b: Any, c: Any = None) -> Any:
    """Gemm: return ``alpha * op(A) @ op(B) + beta * C``; op transposes if transA or transB is set.

    A C of one row becomes the bias of the convolution.
    """
    a, b = a.T if form.get("transA") else a, b.T if form.get("transB") else b
    alpha, beta = form.get("alpha"), form.get("beta")
    if alpha == 1 and c is None:
        return product(a, b)
    plain = alpha == beta == 1 and on_device(a) and a.dtype.name in dtypes.CONV_DTYPES
    if plain and a.shape[1] == b.shape[0] and _is_row(c, b.shape[1]):
        return _of_rows(a, b, c.reshape(-1))
    y = product(wide(a), wide(b))
    if alpha != 1:
        y = y * alpha
    if c is not None:
        y = y + (wide(c) if beta == 1 else wide(c) * beta)
    return y.astype(a.dtype, copy=False)


def _is_row(c: Any, columns: int) -> bool:
    return bool(c.size == columns == c.shape[-1]) if c.ndim else False


def _cost(form: Form, a: Any, b: Any, c: Any = None) -> int:
    """Return an upper bound of the multiplications, and of the elements after broadcasting with C."""
    inner: int = a.shape[0 if form.get("transA") else -1]
    size = int(a.size) * int(b.size) // max(1, inner)
    return size if c is None else max(size, int(c.size)) * max(1, int(c.size))


# --- short-time Fourier transforms ------------------------------------------------------------------------------------


def _stft(form: Form, signal: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """STFT: transform frames of a signal (N, L, 1 or 2), or (N, L) as in ONNX Runtime, to (N, frames, bins, 2)."""
    values = wide(signal)
    values = values.reshape(*values.shape, 1) if values.ndim == 2 else values
    hop, size = _frames(values, step, window, length)
    if form.get("onesided") and values.shape[2] == 2:
        raise ArgumentError("onesided must be 0 where the signal is complex")
    count = (values.shape[1] - size) // hop + 1
    places = np.arange(count)[:, None] * hop + np.arange(size)
    xp = namespace(values)
    frames = xp.take(values, xp.asarray(places), axis=1)
    if window is not None:
        frames = frames * wide(window).astype(values.dtype, copy=False).reshape(-1, 1)
    bins = size // 2 + 1 if form.get("onesided") else size
    transform = _by_fft if isinstance(values, np.ndarray) else _by_matrix
    return transform(frames, bins).astype(signal.dtype, copy=False)


def _frames(signal: Any, step: Any, window: Any, length: Any) -> tuple[int, int]:
    """Return the hop between frames and their length, in samples, after validation."""
    (hop,), given = ints(step), None if length is None else ints(length)[0]
    size = given if window is None else int(window.shape[0])
    if signal.ndim != 3 or signal.shape[2] not in (1, 2):
        raise ArgumentError(f"signal must be (N, L, 1) or (N, L, 2), not {signal.shape}")
    if size is None or given not in (None, size):
        raise ArgumentError(
            f"frame_length is {given}, and window has {size} elements: one must be given, or both alike"
        )
    if hop < 1 or not 1 <= size <= signal.shape[1]:
        raise ArgumentError(f"frame_step {hop} and frame_length {size} do not fit a signal of {signal.shape[1]}")
    return hop, size


def _by_fft(frames: Any, bins: int) -> Any:
    """Transform frames by NumPy's FFT."""
    real = frames.shape[3] == 1 and bins < frames.shape[2]
    numbers = frames[..., 0] if frames.shape[3] == 1 else frames[..., 0] + 1j * frames[..., 1]
    y = np.fft.rfft(numbers) if real else np.fft.fft(numbers)
    return np.stack([y.real, y.imag], axis=-1)


def _by_matrix(frames: Any, bins: int) -> Any:
    """Transform frames by a product with the DFT matrix, which needs no cuFFT."""
    *batch, size, parts = frames.shape
    angles = np.outer(np.arange(size), np.arange(bins)) % size * (2 * np.pi / size)
    cosines, sines = np.cos(angles), np.sin(angles)
    of_parts = [np.stack(pair, axis=-1) for pair in ((cosines, -sines), (sines, cosines))][:parts]
    matrix = np.stack(of_parts, axis=1).reshape(size * parts, bins * 2).astype(frames.dtype)
    rows = frames.reshape(prod(batch), size * parts)
    return product(rows, namespace(frames).asarray(matrix)).reshape(*batch, bins, 2)


def _stft_cost(_: Form, signal: Any, step: Any, window: Any = None, length: Any = None) -> int:
    values = signal.reshape(*signal.shape, 1) if signal.ndim == 2 else signal
    hop, size = _frames(values, step, window, length)
    return int(values.shape[0] * ((values.shape[1] - size) // hop + 1) * size * 2)


OPERATORS = {
    "Gemm": Operator(_gemm, cost=_cost),
    "MatMul": Operator(_matmul, cost=_cost),
    "STFT": Operator(_stft, frozenset({1, 3}), cost=_stft_cost),
}
