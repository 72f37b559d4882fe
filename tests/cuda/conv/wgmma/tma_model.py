"""TMA in NumPy, by the PTX manual: what a tensor map's boxes and columns hold, and what the driver refuses to encode.

Arrays lie in flat memory; reads outside of it raise IndexError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv.cuda.plan.launch import TensorMap

_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
_CORNER = {3: 2**15, 4: 2**7, 5: 2**4}
_OFFSET = {3: 2**16, 4: 2**8, 5: 2**5}


def check(tensor_map: TensorMap) -> None:
    """Raise AssertionError where the driver would not encode a map."""
    rank, itemsize = len(tensor_map.sizes), _ITEMSIZE[tensor_map.dtype]
    assert len(tensor_map.strides) == rank - 1
    assert all(0 < size <= 2**32 for size in tensor_map.sizes)
    assert all(stride % 16 == 0 and 0 < stride < 2**40 for stride in tensor_map.strides)
    inner = tensor_map.sizes[0] * itemsize
    for stride in tensor_map.strides:
        assert stride >= inner
    assert all(b % a == 0 for a, b in zip(tensor_map.strides, tensor_map.strides[1:], strict=False))
    assert len(tensor_map.steps) == rank
    assert all(1 <= step <= 8 for step in tensor_map.steps)
    if tensor_map.box:
        assert len(tensor_map.box) == rank
        assert all(1 <= size <= 256 for size in tensor_map.box)
        assert tensor_map.box[0] * itemsize % 16 == 0
        assert not tensor_map.swizzle or tensor_map.box[0] * itemsize <= tensor_map.swizzle
        return
    assert 3 <= rank <= 5
    assert len(tensor_map.lower) == len(tensor_map.upper) == rank - 2
    assert all(-_CORNER[rank] <= corner < _CORNER[rank] for corner in (*tensor_map.lower, *tensor_map.upper))
    corners = zip(tensor_map.sizes[1:-1], tensor_map.lower, tensor_map.upper, strict=True)
    assert all(lower < size + upper for size, lower, upper in corners), "a box without area"
    assert 0 < tensor_map.channels <= 256
    assert 0 < tensor_map.pixels <= 1024
    assert tensor_map.channels * itemsize <= tensor_map.swizzle


def _read(tensor_map: TensorMap, memory: Any, places: Sequence[Any]) -> Any:
    """Return the elements at these coordinates, innermost axis first; zeros for what is not in the array."""
    itemsize = _ITEMSIZE[tensor_map.dtype]
    steps = (1, *(stride // itemsize for stride in tensor_map.strides))
    places = np.broadcast_arrays(*places)
    inside = np.all([(at >= 0) & (at < size) for at, size in zip(places, tensor_map.sizes, strict=True)], axis=0)
    index = sum(at * step for at, step in zip(places, steps, strict=True))[inside]
    if index.size and (index.min() < 0 or index.max() >= memory.size):
        raise IndexError("a map leads out of its array")
    result = np.zeros(inside.shape, memory.dtype)
    result[inside] = memory[index]
    return result


def box(tensor_map: TensorMap, memory: Any, at: Sequence[int]) -> Any:
    """Return a box from these coordinates, innermost axis first; the box's axes outermost first."""
    ranges = [np.arange(n) + a for n, a in zip(tensor_map.box, at, strict=True)]
    axes = np.meshgrid(*ranges[::-1], indexing="ij")
    return _read(tensor_map, memory, axes[::-1])


def columns(tensor_map: TensorMap, memory: Any, at: Sequence[int], offsets: Sequence[int]) -> Any:
    """Return pixels by channels, from the column at (channel, W, H, D, n) on, each so far from it as offsets say.

    A column walks with the element strides inside of the box from ``lower`` to the size plus ``upper``, W fastest.
    """
    rank = len(tensor_map.sizes)
    assert all(0 <= offset < _OFFSET[rank] for offset in offsets)
    channel, *base = map(int, at)
    walk = _walk(tensor_map, tuple(base)) + np.array([*offsets, 0])
    return _read(tensor_map, memory, [channel + np.arange(tensor_map.channels), *walk.T[:, :, None]])


@lru_cache(maxsize=1024)
def _walk(tensor_map: TensorMap, start: tuple[int, ...]) -> Any:
    *base, image = start
    found = []
    for _ in range(tensor_map.pixels):
        found.append([*base, image])
        for k in range(len(base)):
            base[k] += tensor_map.steps[1 + k]
            if base[k] < tensor_map.sizes[1 + k] + tensor_map.upper[k]:
                break
            base[k] = tensor_map.lower[k]
        else:
            image += 1
    return np.array(found)
