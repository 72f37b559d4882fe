"""Time only the matrix product inside a dense Conv: a lower bound on the layer's time by GEMM."""

from __future__ import annotations

import time
from math import prod
from statistics import median

import numpy as np

from benchmarks.layers import Layer

_ELEMENTS = 2**24  # of the im2col matrix; of a larger one only a part of the columns is timed
_ROUNDS = 7


def seconds(layer: Layer) -> float:
    """Return the median seconds of ``np.matmul`` on prepared matrices (M, K) and (K, positions), by BLAS's threads."""
    rows, depth = layer.k_out, layer.x[1] * prod(layer.kernel)
    positions = prod(layer.y_shape) // rows
    part = min(positions, max(512, _ELEMENTS // depth))
    weights, columns = np.ones((rows, depth), np.float32), np.ones((depth, part), np.float32)
    result = np.empty((rows, part), np.float32)
    samples = []
    for _ in range(_ROUNDS):
        np.matmul(weights, columns, out=result)
        start = time.perf_counter()
        np.matmul(weights, columns, out=result)
        samples.append(time.perf_counter() - start)
    return median(samples) * positions / part
