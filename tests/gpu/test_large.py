"""On a device: problems of several blocks, and arrays of more than 2**31 elements and 2**32 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.gpu.on_device import cupy, moved, pattern, require_room, returned
from tests.harness import cuda_device
from tests.oracle import large
from tests.oracle.oracle import assert_same

pytestmark = [pytest.mark.gpu, cuda_device.sampled(8)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("operator", "name"), large.CALLS)
def test_convolutions_across_blocks_are_exact(operator: str, name: str, dtype: str) -> None:
    arrays, attributes, expected = large.convolution(operator, name, named(dtype))
    (y,) = returned(getattr(gpuconv, operator)(*moved(arrays), **attributes))
    assert_same(y, expected, bits=False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("name", large.POOLS)
def test_maxima_across_blocks_are_exact(name: str, dtype: str) -> None:
    x, attributes, (y, indices) = large.pool(name, dtype)
    found_y, found_indices = returned(gpuconv.max_pool(gpuconv.to_device(x), **attributes, return_indices=True))
    assert_same(found_y, y, bits=False)
    assert_same(found_indices, indices)


def named(dtype: str) -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


# ---------------------------------------------------------------- beyond 32 bits, compared on the device


def test_a_result_of_more_than_2_31_elements() -> None:
    require_room(30 * 10**9)
    x = pattern((1, 1, 32768, 32800), "float16")
    w = np.array([2, -1, 1, 3], np.float16).reshape(2, 1, 1, 2)
    y = gpuconv.conv(x, gpuconv.to_device(w), pads=[0, 0, 0, 1])
    assert y.size > 2**31
    for m, (first, second) in enumerate(w.reshape(2, 2).tolist()):
        whole = x[0, 0] * np.float16(first)
        whole[:, :-1] += x[0, 0, :, 1:] * np.float16(second)
        assert bool((y[0, m] == whole).all())
        del whole


def test_an_input_of_more_than_2_31_elements() -> None:
    require_room(20 * 10**9)
    x = pattern((1, 1, 46500, 46502), "float16")
    assert x.size > 2**31
    w = np.array([[1, 2], [-3, 4]], np.float16)
    y = gpuconv.conv(x, gpuconv.to_device(w[None, None]), strides=[2, 2])
    parts = [x[0, 0, i::2, j::2] * w[i, j] for i in (0, 1) for j in (0, 1)]
    assert bool((y[0, 0] == sum(parts[1:], parts[0])).all())


def test_a_transposed_result_of_more_than_2_32_bytes() -> None:
    require_room(25 * 10**9)
    x = pattern((1, 1, 17000, 17002), "float32")
    w, b = np.array([[1, 2], [-3, 4]], np.float32), np.array([5], np.float32)
    y = gpuconv.conv_transpose(x, *moved([w[None, None], b]), strides=[2, 2])
    assert y.nbytes > 2**32
    for i in (0, 1):
        for j in (0, 1):
            assert bool((y[0, 0, i::2, j::2] == x[0, 0] * w[i, j] + np.float32(5)).all())


def test_maxima_of_more_than_2_31_elements_and_their_indices() -> None:
    require_room(45 * 10**9)
    xp = cupy()
    x = pattern((3, 1, 27000, 27002), "int8", low=-128, count=251)
    assert x.size > 2**31
    y, indices = gpuconv.max_pool(x, kernel_shape=[2, 2], strides=[2, 2], return_indices=True)
    rows, columns = (xp.arange(size, dtype=np.int64) for size in (27000, 27002))
    for image in range(3):
        best = x[image, 0, ::2, ::2]
        place = image * 27000 * 27002 + rows[::2, None] * 27002 + columns[None, ::2]
        found = place
        for i, j in ((0, 1), (1, 0), (1, 1)):
            seen = x[image, 0, i::2, j::2]
            found = xp.where(seen > best, place + i * 27002 + j, found)
            best = xp.maximum(seen, best)
        assert bool((y[image, 0] == best).all())
        assert bool((indices[image, 0] == found).all())
    assert int(indices.max()) > 2**31
    assert bool((gpuconv.max_pool(x, kernel_shape=[2, 2], strides=[2, 2]) == y).all())


def test_a_tiny_window_far_inside_of_a_large_array() -> None:
    """A view more than 2**32 bytes after its array's beginning: only its address is large."""
    require_room(6 * 10**9)
    whole = cupy().zeros(2**32 + 2**20, np.uint8)
    x = whole[2**32 :].reshape(1, 1, 1024, 1024)
    x[0, 0, 1000, 1001] = 7
    y, indices = gpuconv.max_pool(x, kernel_shape=[1024, 1024], return_indices=True)
    assert (int(y[0, 0, 0, 0]), int(indices[0, 0, 0, 0])) == (7, 1000 * 1024 + 1001)
