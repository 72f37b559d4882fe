"""A valid call of every public function that computes: its arrays, and its other arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuconv

RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> Any:
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


X, W, B, DY = numbers(2, 4, 7, 6), numbers(4, 4, 3, 3), numbers(4), numbers(2, 4, 5, 4)
Y, PLACES = gpuconv.max_pool(X, 3, return_indices=True)
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "average_pool": ({"x": X}, {"kernel_shape": 3}),
    "average_pool_grad": ({"dy": DY}, {"x_shape": X.shape, "kernel_shape": 3}),
    "conv": ({"x": X, "w": W, "b": B, "residual": DY}, {"activation": "relu"}),
    "conv_bias_grad": ({"dy": DY}, {}),
    "conv_input_grad": ({"dy": DY, "w": W}, {"x_shape": X.shape}),
    "conv_transpose": ({"x": DY, "w": W, "b": B, "residual": X}, {}),
    "conv_transpose_bias_grad": ({"dy": X}, {}),
    "conv_transpose_input_grad": ({"dy": X, "w": W}, {"x_shape": DY.shape}),
    "conv_transpose_weight_grad": ({"x": DY, "dy": X}, {"w_shape": W.shape}),
    "conv_weight_grad": ({"x": X, "dy": DY}, {"w_shape": W.shape}),
    "global_average_pool": ({"x": X}, {}),
    "global_average_pool_grad": ({"dy": numbers(2, 4, 1, 1)}, {"x_shape": X.shape}),
    "max_pool": ({"x": X}, {"kernel_shape": 3}),
    "max_pool_grad": ({"dy": Y, "indices": PLACES}, {"x_shape": X.shape, "kernel_shape": 3}),
    "max_unpool": ({"y": Y, "indices": PLACES}, {"kernel_shape": 3}),
}
