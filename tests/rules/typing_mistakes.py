"""Calls that a type checker must refuse, with mypy's error code after ``# E:``; none of them is run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import gpuconv

x: NDArray[np.float32] = np.ones((1, 4, 5, 6), np.float32)
w: NDArray[np.float32] = np.ones((4, 4, 3, 2), np.float32)
places: NDArray[np.int64] = np.zeros((1, 4, 5, 6), np.int64)

# ---------------------------------------------------------------- names of modes

gpuconv.conv(x, w, layout="NCWH")  # E: call-overload
gpuconv.conv(x, w, precision="fp8")  # E: call-overload
gpuconv.conv(x, w, auto_pad="SAME")  # E: call-overload
gpuconv.conv_transpose(x, w, layout="nhwc")  # E: call-overload
gpuconv.max_pool(x, 2, auto_pad="valid")  # E: call-overload
gpuconv.max_pool(x, 2, precision="ieee")  # E: call-overload
gpuconv.conv_input_grad(x, w, x.shape, precision="half")  # E: call-overload
gpuconv.max_unpool(x, places, kernel_shape=2, layout="CHW")  # E: call-overload
gpuconv.max_pool(x, 2, indices_in="planes")  # E: call-overload
gpuconv.precision("TF32")  # E: arg-type
gpuconv.explain("conv", x.shape, w.shape, precision="half")  # E: arg-type
gpuconv.explain("conv", x.shape, w.shape, layout="CHW")  # E: arg-type
gpuconv.tune("conv", x, w, layout="CHW")  # E: arg-type

# ---------------------------------------------------------------- no arrays

gpuconv.conv(x, "w")  # E: call-overload
gpuconv.conv(x, [[[1.0]]])  # E: call-overload
gpuconv.conv([[[1.0]]], w)  # E: call-overload
gpuconv.conv(x, w, 1.0)  # E: call-overload
gpuconv.conv(x, w, residual="x")  # E: call-overload
gpuconv.max_pool(None, 2)  # E: call-overload
gpuconv.max_pool_grad(x, gpuconv.pack(w), x.shape, kernel_shape=2)  # E: call-overload
gpuconv.pack("w")  # E: arg-type
gpuconv.to_device([1.0])  # E: call-overload

# ---------------------------------------------------------------- names of arguments, and what they may be

gpuconv.conv(x, w, stride=2)  # E: call-overload
gpuconv.conv(x, w, padding=1)  # E: call-overload
gpuconv.conv(x, w, None, "SAME_UPPER")  # E: call-overload
gpuconv.conv(x, w, strides=2.0)  # E: call-overload
gpuconv.conv(x, w, strides="2")  # E: arg-type
gpuconv.conv(x, w, pads=((1, 1), (1, 1)))  # E: arg-type
gpuconv.conv_transpose(x, w, output_shape=8)  # E: call-overload
gpuconv.conv_weight_grad(x, x, w.shape, groups=2)  # E: call-overload
gpuconv.conv_bias_grad(x, strides=2)  # E: call-overload
gpuconv.max_pool(x)  # E: call-overload
gpuconv.max_pool(x, kernel_size=2)  # E: call-overload
gpuconv.max_pool_grad(x, places, x.shape)  # E: call-overload

# ---------------------------------------------------------------- what comes back

gpuconv.max_pool(x, 2, return_indices=True).sum()  # E: attr-defined
number: int = gpuconv.conv(x, w)  # E: assignment
one: NDArray[np.float32] = gpuconv.max_pool(x, 2, return_indices=True)  # E: assignment
