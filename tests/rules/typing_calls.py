"""Calls that a type checker must accept, with the types of what comes back; nothing here is run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import gpuconv


class Tensor:
    """Another library's array."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class OnDevice:
    """An array of a library that supports only CUDA's array interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def calls(
    x: NDArray[np.float32],
    w: NDArray[np.float32],
    half: NDArray[np.float16],
    any_array: Any,
    tensor: Tensor,
    flag: bool,
) -> None:
    indices = np.zeros((1, 4, 5, 6), np.int64)

    # A NumPy array in, one of its dtype out.
    assert_type(gpuconv.conv(x, w), NDArray[np.float32])
    assert_type(gpuconv.conv(half, half, half, strides=2, pads=[1, 1, 1, 1], auto_pad="NOTSET"), NDArray[np.float16])
    assert_type(gpuconv.conv(x, gpuconv.pack(w), None, residual=x, activation=("clip", 0, 6)), NDArray[np.float32])
    assert_type(gpuconv.conv_transpose(x, w, output_padding=1, strides=(2, 2), layout="NHWC"), NDArray[np.float32])
    assert_type(gpuconv.conv(x, w, precision="tf32", auto_pad=b"VALID", out=x), NDArray[np.float32])
    assert_type(gpuconv.conv_input_grad(x, w, x.shape, dilations=2, out=x), NDArray[np.float32])
    assert_type(gpuconv.conv_weight_grad(x, x, w.shape, group=2), NDArray[np.float32])
    assert_type(gpuconv.conv_bias_grad(half, layout="NHWC"), NDArray[np.float16])
    assert_type(gpuconv.conv_transpose_input_grad(x, w, x.shape), NDArray[np.float32])
    assert_type(gpuconv.conv_transpose_weight_grad(x, x, w.shape), NDArray[np.float32])
    assert_type(gpuconv.conv_transpose_bias_grad(x), NDArray[np.float32])
    assert_type(gpuconv.max_pool_grad(x, indices, x.shape, kernel_shape=[3, 3]), NDArray[np.float32])
    assert_type(gpuconv.max_unpool(x, indices, (6, 7), kernel_shape=2, strides=2), NDArray[np.float32])
    assert_type(gpuconv.max_pool_grad(x, x, (6, 7), kernel_shape=2, indices_in="plane"), NDArray[np.float32])
    assert_type(gpuconv.to_host(x), NDArray[np.float32])

    # NumPy integers, and iterables of integers.
    assert_type(gpuconv.conv(x, w, pads=np.int64(1), strides=(n for n in (1, 1))), NDArray[np.float32])
    assert_type(gpuconv.conv(x, w, strides=np.array([1, 1]).tolist()), NDArray[np.float32])

    # One array or two.
    assert_type(gpuconv.max_pool(x, 2), NDArray[np.float32])
    assert_type(gpuconv.max_pool(x, kernel_shape=[3, 2], return_indices=False, out=x), NDArray[np.float32])
    y, places = gpuconv.max_pool(x, 2, return_indices=True, out=(None, indices))
    assert_type(y, NDArray[np.float32])
    assert_type(places, NDArray[np.int64])
    assert_type(gpuconv.max_pool(x, 2, return_indices=flag), Any)

    # CuPy's arrays are not typed; results for those of other libraries are CuPy's or NumPy's.
    assert_type(gpuconv.conv(any_array, any_array), Any)
    assert_type(gpuconv.conv(tensor, tensor, tensor), Any)
    assert_type(gpuconv.conv(tensor, w, out=OnDevice()), Any)
    assert_type(gpuconv.max_pool(OnDevice(), 2, return_indices=True), tuple[Any, Any])
    assert_type(gpuconv.to_device(tensor), Any)
    assert_type(gpuconv.to_host(tensor), NDArray[Any])
    assert_type(gpuconv.to_device(gpuconv.pack(tensor)), gpuconv.PackedWeights)

    with gpuconv.precision("3xtf32"):
        gpuconv.explain("conv", x.shape, w.shape, pads=1, layout="NHWC", precision="tf32")
