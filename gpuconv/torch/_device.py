"""CUDA tensors as CuPy arrays, on PyTorch's current stream and with memory of PyTorch's caching allocator.

CuPy's own pool would hold memory that PyTorch cannot reuse, and a call that ``torch.cuda.graph`` captures needs
workspaces from the graph's pool.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def array(tensor: Any) -> Any:
    """Return a CuPy array on a CUDA tensor's memory; call it inside of :func:`place`."""
    return import_module("cupy").from_dlpack(tensor)


class _Stream:
    """A stream by its address, for the CUDA stream protocol."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


@contextmanager
def place(tensor: Any) -> Iterator[None]:
    """Make a tensor's device, PyTorch's current stream there, and its caching allocator CuPy's current ones."""
    cuda, cupy = sys.modules["torch"].cuda, import_module("cupy")
    device = tensor.device.index
    stream = cuda.current_stream(device)

    def allocate(nbytes: int, device_id: int) -> int:
        return int(cuda.caching_allocator_alloc(nbytes, device_id, stream)) if nbytes else 0

    def free(pointer: int, device_id: int) -> None:
        if pointer:
            cuda.caching_allocator_delete(pointer)

    allocator = cupy.cuda.PythonFunctionAllocator(allocate, free)
    with (
        cupy.cuda.Device(device),
        cupy.cuda.Stream.from_external(_Stream(stream.cuda_stream)),
        cupy.cuda.using_allocator(allocator.malloc),
    ):
        yield
