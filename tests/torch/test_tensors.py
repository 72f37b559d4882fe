"""Tensors as arrays, with stand-ins for tensors: PyTorch is not needed here."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv.torch import _tensors


class Tensor:
    """What of a tensor the adapter uses, on a NumPy or CuPy array."""

    def __init__(self, values: Any, dtype: str, device: str = "cpu", conjugate: bool = False) -> None:
        self.values, self.dtype, self.conjugate = values, f"torch.{dtype}", conjugate
        self.device = SimpleNamespace(type=device, index=0)

    def detach(self) -> Tensor:
        return self

    def resolve_conj(self) -> Tensor:
        return Tensor(self.values.conj(), self.dtype[6:]) if self.conjugate else self

    def resolve_neg(self) -> Tensor:
        return self

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.values.view(dtype), dtype)

    def numpy(self) -> Any:
        assert self.values.dtype != ml_dtypes.bfloat16  # PyTorch refuses it
        return self.values


@pytest.fixture
def bfloat16_by_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(int16="int16"))


@pytest.mark.usefixtures("bfloat16_by_view")
def test_bfloat16_is_seen_by_its_bits_and_written_in_place() -> None:
    values = np.arange(12, dtype=ml_dtypes.bfloat16).reshape(3, 4)[:, ::2]
    seen = _tensors.array(Tensor(values, "bfloat16"))
    assert seen.dtype == ml_dtypes.bfloat16
    assert seen.strides == values.strides
    seen[1, 1] = 100
    assert values[1, 1] == 100


def test_lazy_conjugates_are_computed() -> None:
    assert _tensors.array(Tensor(np.array([1 + 2j]), "complex128", conjugate=True))[0] == 1 - 2j


def test_other_devices_are_refused() -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match="CPU or a CUDA device"):
        _tensors.array(Tensor(np.ones(1), "float64", device="mps"))


def test_on_the_cpu_no_stream_is_taken() -> None:
    assert isinstance(_tensors.place(Tensor(np.ones(1), "float64")), nullcontext)


@pytest.mark.gpu
def test_a_device_computes_on_the_stream_and_with_the_allocator_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a call allocates is asked of PyTorch, on its stream, and given back."""
    import cupy

    pool, held, streams = cupy.cuda.MemoryPool(), {}, []

    def allocate(nbytes: int, device: int, stream: Any) -> int:
        assert device == 0
        memory = pool.malloc(nbytes)
        held[memory.ptr] = memory
        streams.append(stream)
        return int(memory.ptr)

    stream = cupy.cuda.Stream(non_blocking=True)
    current = SimpleNamespace(cuda_stream=stream.ptr)
    cuda = SimpleNamespace(
        current_stream=lambda device: current,
        caching_allocator_alloc=allocate,
        caching_allocator_delete=lambda pointer: held.pop(pointer),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    x, w = cupy.arange(2 * 3 * 5 * 5, dtype="f").reshape(2, 3, 5, 5), cupy.ones((4, 3, 3, 3), "f")
    cupy.cuda.get_current_stream().synchronize()  # another stream reads x and w
    before = cupy.cuda.get_current_stream().ptr
    with _tensors.place(Tensor(x, "float32", "cuda")):
        assert cupy.cuda.get_current_stream().ptr == stream.ptr
        y = gpuconv.conv(x, w)
        assert held
        assert set(map(id, streams)) == {id(current)}
    assert cupy.cuda.get_current_stream().ptr == before
    stream.synchronize()
    assert cupy.asnumpy(y).tolist() == gpuconv.conv(cupy.asnumpy(x), cupy.asnumpy(w)).tolist()
    del y
    assert not held
