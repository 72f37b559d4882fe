"""On a device: memory layouts, ``out``, and insufficient memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.gpu.on_device import ON_DEVICE, cupy, laid_out, moved, returned
from tests.oracle.operands import CONV_DTYPES, POOL_DTYPES, values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

layouts = pytest.mark.parametrize("layout", ON_DEVICE)
WINDOW: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1]}
# operator: shapes of x, w and b, attributes
CALLS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "conv": ([(2, 6, 11, 13), (10, 3, 3, 2), (10,)], {**WINDOW, "group": 2}),
    "conv_transpose": ([(2, 6, 11, 13), (6, 5, 3, 2), (10,)], {**WINDOW, "group": 2}),
    "max_pool": ([(2, 6, 11, 13)], {**WINDOW, "kernel_shape": [3, 2], "return_indices": True}),
}
operators = pytest.mark.parametrize("operator", CALLS)


def call(operator: str, arrays: list[Any], **more: Any) -> Any:
    return getattr(gpuconv, operator)(*arrays, **CALLS[operator][1], **more)


def made(operator: str, dtype: Any = np.float32) -> list[Any]:
    return [values("integers", seed, shape, dtype) for seed, shape in enumerate(CALLS[operator][0])]


@layouts
@operators
def test_inputs_in_every_layout_and_dtype(operator: str, layout: str) -> None:
    for dtype in POOL_DTYPES if operator == "max_pool" else CONV_DTYPES:
        kind = "any integer" if np.dtype(dtype).kind in "iu" else "integers"
        pairs = [laid_out(values(kind, i, shape, dtype), layout) for i, shape in enumerate(CALLS[operator][0])]
        before = [bits(there) for there, _ in pairs]
        result = returned(call(operator, [there for there, _ in pairs]))
        for found, wanted in zip(result, listed(call(operator, [here for _, here in pairs])), strict=True):
            assert_same(found, wanted, bits=False)
        assert [bits(there) for there, _ in pairs] == before


def bits(array: Any) -> bytes:
    return bytes(array.view(f"u{array.dtype.itemsize}").tobytes())


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def test_layouts_of_x_w_and_b_may_differ() -> None:
    arrays = made("conv")
    kinds = ("strided", "reversed", "strided")
    there = [laid_out(array, layout)[0] for array, layout in zip(arrays, kinds, strict=True)]
    assert_same(*returned(call("conv", there)), call("conv", arrays), bits=False)


@pytest.mark.parametrize("form", ["contiguous", "channels last", "every second", "backwards"])
@operators
def test_out_is_written_and_nothing_beside_it(operator: str, form: str) -> None:
    arrays = made(operator)
    expected = listed(call(operator, arrays))
    wholes, outs = zip(*(room_for(result, form) for result in expected), strict=True)
    given = outs if len(outs) > 1 else outs[0]
    results = listed(call(operator, moved(arrays), out=given))
    assert all(result is out for result, out in zip(results, outs, strict=True))
    for out, whole, wanted in zip(outs, wholes, expected, strict=True):
        assert_same(gpuconv.to_host(out), wanted, bits=False)
        untouched = int((whole == 99).sum())
        assert untouched == whole.size - int((wanted != 99).sum())


def room_for(result: Any, form: str) -> tuple[Any, Any]:
    """Return an array full of 99 and a view of it for a result."""
    xp = cupy()
    n, c, h, w = result.shape
    if form == "contiguous":
        whole = xp.full((n * c * h * w + 64,), 99, result.dtype)
        return whole, whole[32:-32].reshape(result.shape)
    if form == "channels last":
        whole = xp.full((n, h, w, c + 3), 99, result.dtype)
        return whole, whole[..., :c].transpose(0, 3, 1, 2)
    whole = xp.full((n, c, 2 * h, 2 * w), 99, result.dtype)
    return whole, whole[:, :, 1::2, ::2] if form == "every second" else whole[:, :, -1::-2, -1::-2]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_packed_weights_of_every_width_keep_their_values(dtype: str) -> None:
    x, w = (values("integers", seed, shape, np.dtype(dtype)) for seed, shape in enumerate([(1, 4, 5, 6), (3, 4, 2, 3)]))
    packed = gpuconv.pack(gpuconv.to_device(w))
    assert (gpuconv.to_host(gpuconv.conv(gpuconv.to_device(x), packed)) == gpuconv.conv(x, w)).all()


def test_one_of_a_pair_may_be_left_to_the_call() -> None:
    (x,) = made("max_pool")
    y, indices = gpuconv.max_pool(x, **CALLS["max_pool"][1])
    there = cupy().empty(y.shape, np.int64)
    found_y, found_indices = call("max_pool", moved([x]), out=(None, there))
    assert found_indices is there
    assert_same(gpuconv.to_host(found_y), y)
    assert_same(gpuconv.to_host(there), indices)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, y: y[..., 1:], r"must have the result's shape \(2, 10, 6, 13\), not \(2, 10, 6, 12\)"),
        (lambda x, y: y.astype(np.float16), "must have the result's dtype float32, not float16"),
        (lambda x, y: cupy().broadcast_to(y[:1], y.shape), "repeats its own memory"),
    ],
    ids=["shape", "dtype", "broadcast"],
)
def test_an_out_that_cannot_be_is_refused(make: Callable[[Any, Any], Any], text: str) -> None:
    arrays = moved(made("conv"))
    y = call("conv", arrays)
    with pytest.raises(gpuconv.GpuconvError, match=f"^conv: out {text}"):
        call("conv", arrays, out=make(arrays[0], y))
    assert_still_works()


def assert_still_works() -> None:
    arrays = made("conv")
    assert_same(*returned(call("conv", moved(arrays))), call("conv", arrays), bits=False)


# ---------------------------------------------------------------- too little memory


def test_after_a_result_that_does_not_fit_the_next_call_works() -> None:
    x, w = moved([np.ones((1, 1, 1, 1), np.float32), np.ones((64, 1, 1, 1), np.float32)])
    nbytes = 4 * 64 * (2**18 + 1) ** 2
    shape = (1, 64, 2**18 + 1, 2**18 + 1)
    text = f"conv: y of shape {shape} needs {nbytes} bytes, which do not fit on device 0 (Out of memory allocating "
    with pytest.raises(gpuconv.OutOfDeviceMemory, match=f"^{re.escape(text)}"):
        gpuconv.conv(x, w, pads=[2**17] * 4)
    with pytest.raises(MemoryError):
        gpuconv.max_pool(x, kernel_shape=[2**18, 2**18], pads=[2**18] * 4, strides=[1, 1], return_indices=True)
    assert_still_works()


def test_after_a_workspace_that_does_not_fit_the_next_call_works() -> None:
    pool = cupy().get_default_memory_pool()
    pool.free_all_blocks()
    x, w = cupy().zeros((1, 4096, 1, 1), np.float32), cupy().zeros((4096, 4096, 1, 1), np.float32)
    text = r"^conv: the workspace \(the packed weights.*\) needs [6-9]\d{7} bytes, which do not fit on device 0 \("
    pool.set_limit(size=pool.used_bytes() + 2**20)
    try:
        with pytest.raises(gpuconv.OutOfDeviceMemory, match=text):
            gpuconv.conv(x, w)
    finally:
        pool.set_limit(size=0)
    assert_still_works()


def test_a_copy_that_does_not_fit_says_so() -> None:
    pool = cupy().get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + 2**20)
    text = "to_device: a copy of an array of shape (1048576,) needs 4194304 bytes, which do not fit on device 0 "
    try:
        with pytest.raises(gpuconv.OutOfDeviceMemory, match=f"^{re.escape(text)}"):
            gpuconv.to_device(np.zeros(2**20, np.float32))
    finally:
        pool.set_limit(size=0)
    assert_still_works()
