"""Matrix products whose elements have the same bits in every product of the same K: invariant in M and N.

On the CPU every element is one dot product by BLAS, of a row and a column that both are contiguous in memory. Its bits
depend on these and on K only, whatever else is in the product; threads share out elements. On CUDA devices, rows are
the images of a batch-invariant convolution with kernels of one element. Its filters are blocks of columns of one fixed
size, the last one filled up with zeros, so that the layer, and with it the order of a sum, does not depend on N.

float16 and bfloat16 are summed in float32 and rounded once. PyTorch is not needed here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import gpuconv
from gpuconv.cpu import _blas, _threads

COLUMNS = 64  # filters of each convolution on a CUDA device
_WIDE = {"float16": np.float32, "bfloat16": np.float32}


def matmul(a: Any, b: Any) -> Any:
    """Return the product of a (…, M, K) and b (…, K, N) with equal leading axes, in the type of the sums.

    That type is float32 for float16 and bfloat16 on the CPU, and the operands' type otherwise.
    """
    return _on_cpu(a, b) if isinstance(a, np.ndarray) else _on_device(a, b)


def _on_cpu(a: Any, b: Any) -> Any:
    wide = _WIDE.get(a.dtype.name, a.dtype)
    rows = np.ascontiguousarray(a, dtype=wide)
    columns = np.ascontiguousarray(b.swapaxes(-1, -2), dtype=wide)
    if rows.dtype.kind == "c":
        rows = rows.conj()  # vecdot conjugates it back
    shape = (*rows.shape[:-1], columns.shape[-2])
    if rows.shape[-1] == 0:
        return np.zeros(shape, wide)
    y: Any = np.empty(shape, wide)
    work = _blas.operations(y.size * rows.shape[-1], wide)
    workers = _blas.workers_for(work, _threads.count(), thin=True)  # one BLAS thread per long dot product
    axis = max(range(y.ndim), key=y.shape.__getitem__)
    parts = _threads.count() if workers is _blas.Workers.POOL else 1
    spans = _blas.equal_slices(y.shape[axis], parts)
    by_row, by_column = rows[..., :, None, :], columns[..., None, :, :]

    def compute(span: slice) -> None:
        place = (*(slice(None),) * axis, span)
        left = by_row if axis == y.ndim - 1 else by_row[place]
        right = by_column if axis == y.ndim - 2 else by_column[place]
        np.vecdot(left, right, out=y[place])

    _blas.run(compute, spans, workers)
    return y


def _on_device(a: Any, b: Any) -> Any:
    arrays = sys.modules[type(a).__module__.partition(".")[0]]  # CuPy
    if a.ndim > 2:
        flat = [
            _on_device(*pair) for pair in zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
        ]
        y = arrays.stack(flat) if flat else arrays.zeros((0, a.shape[-2], b.shape[-1]), a.dtype)
        return y.reshape(*a.shape[:-1], b.shape[-1])
    blocks = -(-b.shape[1] // COLUMNS)
    filters = arrays.zeros((blocks * COLUMNS, b.shape[0], 1), b.dtype)
    filters[: b.shape[1], :, 0] = b.T
    y = arrays.empty((a.shape[0], blocks * COLUMNS), a.dtype)
    for first in range(0, blocks * COLUMNS, COLUMNS):
        block = filters[first : first + COLUMNS]
        y[:, first : first + COLUMNS] = gpuconv.conv(a[:, :, None], block, invariant="batch")[:, :, 0]
    return y[:, : b.shape[1]]
