"""On a device: arrays of other libraries, by DLPack and by ``__cuda_array_interface__``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.gpu.on_device import cupy, exposed, imported, keep_busy, moved
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

SHAPES = [(2, 6, 11, 13), (10, 6, 3, 2), (10,)]
ATTRIBUTES: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1]}


def made(dtype: Any = np.float32) -> list[Any]:
    return [values("integers", seed, shape, dtype) for seed, shape in enumerate(SHAPES)]


def expected(arrays: list[Any]) -> Any:
    return gpuconv.conv(*arrays, **ATTRIBUTES)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_of_pytorch(dtype: str) -> None:
    torch = imported("torch")
    import ml_dtypes

    arrays = made(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    tensors = [torch.from_numpy(a.astype(np.float32)).to("cuda:0", getattr(torch, dtype)) for a in arrays]
    y = gpuconv.conv(*tensors, **ATTRIBUTES)
    assert isinstance(y, cupy().ndarray)
    assert_same(gpuconv.to_host(y), expected(arrays), bits=False)
    back = torch.from_dlpack(y)
    assert (back.dtype, back.data_ptr()) == (getattr(torch, dtype), y.data.ptr)


def test_strided_tensors_of_pytorch() -> None:
    torch = imported("torch")
    arrays = made()
    x, w, b = (torch.from_numpy(a).to("cuda:0") for a in arrays)
    x = x.contiguous(memory_format=torch.channels_last)
    w = w.transpose(2, 3).contiguous().transpose(2, 3)
    assert_same(gpuconv.to_host(gpuconv.conv(x, w, b, **ATTRIBUTES)), expected(arrays), bits=False)


def test_bytes_of_pytorch() -> None:
    torch = imported("torch")
    for dtype in ("int8", "uint8"):
        x = values("any integer", 3, (2, 3, 9, 8), dtype)
        y, indices = gpuconv.max_pool(torch.from_numpy(x).cuda(), kernel_shape=[3, 2], return_indices=True)
        wanted_y, wanted_indices = gpuconv.max_pool(x, kernel_shape=[3, 2], return_indices=True)
        assert_same(gpuconv.to_host(y), wanted_y)
        assert_same(gpuconv.to_host(indices), wanted_indices)


def test_a_tensor_that_requires_gradients_is_refused() -> None:
    torch = imported("torch")
    x, w, b = (torch.from_numpy(a).to("cuda:0") for a in made())
    w.requires_grad_()
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"w \(torch.Tensor\) requires gradients"):
        gpuconv.conv(x, w, b, **ATTRIBUTES)
    assert_same(gpuconv.to_host(gpuconv.conv(x, w.detach(), b, **ATTRIBUTES)), expected(made()), bits=False)


def test_a_tensor_on_the_host_beside_one_on_the_device_is_refused() -> None:
    torch = imported("torch")
    x, w, _ = (torch.from_numpy(a) for a in made())
    with pytest.raises(gpuconv.ArgumentTypeError, match="x is a CuPy array, w is a NumPy array"):
        gpuconv.conv(x.to("cuda:0"), w, **ATTRIBUTES)


def test_the_call_waits_for_pytorch_s_stream_and_the_host_does_not() -> None:
    torch = imported("torch")
    x, w, b = made()
    there = [torch.from_numpy(a).to("cuda:0") for a in (x, w, b)]
    gpuconv.conv(*there, **ATTRIBUTES)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        event = torch.cuda.Event()
        event.record()
        there[0].add_(1)
        y = gpuconv.conv(*there, **ATTRIBUTES)
        assert not event.query(), "the call waited for the device"
    assert_same(gpuconv.to_host(y), expected([x + 1, w, b]), bits=False)


def test_the_array_interface_s_stream_comes_first_and_the_host_does_not_wait() -> None:
    x, w, b = made()
    there = moved([x, w, b])
    gpuconv.conv(*map(exposed, there), **ATTRIBUTES)
    there[0].fill(0)  # all kernels are loaded before the time of a call matters
    producer, consumer = (cupy().cuda.Stream(non_blocking=True) for _ in range(2))
    cupy().cuda.Device().synchronize()  # the consumer's stream does not wait for the copies
    with consumer:
        gpuconv.conv(*there, **ATTRIBUTES)
    cupy().cuda.Device().synchronize()
    with producer:
        before = keep_busy(0.7)
        there[0].fill(3)
    with consumer:
        y = gpuconv.conv(exposed(there[0], producer.ptr), *there[1:], **ATTRIBUTES)
        assert not before.done, "the call waited for the device"
        assert_same(gpuconv.to_host(y), expected([np.full_like(x, 3), w, b]), bits=False)


def test_numba_s_arrays() -> None:
    cuda = imported("numba.cuda")
    arrays = made()
    there = [cuda.to_device(array) for array in arrays]
    assert_same(gpuconv.to_host(gpuconv.conv(*there, **ATTRIBUTES)), expected(arrays), bits=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_round_trip_keeps_dtype_order_and_bits(layout: str, dtype: str) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    host = LAYOUTS[layout](np.arange(120).reshape(2, 3, 4, 5).astype(kind))
    there = gpuconv.to_device(host)
    assert (there.shape, there.dtype) == (host.shape, host.dtype)
    assert gpuconv.to_device(there) is there
    back = gpuconv.to_host(there)
    assert gpuconv.to_host(back) is back
    assert there.strides == back.strides == np.empty_like(host).strides
    assert_same(back, host)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0, 4)], ids=str)
def test_scalars_and_nothing_move_too(shape: tuple[int, ...]) -> None:
    host = np.full(shape, 3, np.float32)
    assert_same(gpuconv.to_host(gpuconv.to_device(host)), host)
