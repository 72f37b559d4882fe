"""PyTorch tensors as NumPy or CuPy arrays of the same memory, without importing PyTorch.

Tensors on the CPU are viewed by their ``numpy`` method, bfloat16 as the type of ml_dtypes. CUDA tensors are viewed by
DLPack, and everything that runs on them uses PyTorch's current stream and PyTorch's caching allocator, so that
PyTorch's memory statistics and CUDA graphs see all memory. Only methods of tensors and the module ``sys.modules`` has
are used, so that this module can be imported, and tested with stand-ins, where PyTorch is not installed.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentTypeError


def array(tensor: Any) -> Any:
    """Return a NumPy array (CPU) or a CuPy array (CUDA) on a tensor's memory.

    Lazy conjugation and negation of complex tensors are computed first, into a copy.
    """
    tensor = plain(tensor)
    kind = tensor.device.type
    if kind == "cuda":
        from gpuconv.torch import _device  # only where a CUDA tensor is

        return _device.array(tensor)
    if kind != "cpu":
        raise ArgumentTypeError(f"gpuconv.torch: tensors must be on a CPU or a CUDA device, not on {tensor.device}")
    if not str(tensor.dtype).endswith("bfloat16"):
        return tensor.numpy()
    return tensor.view(sys.modules["torch"].int16).numpy().view(bfloat16())


def plain(tensor: Any) -> Any:
    """Return a tensor without its autograd history, its lazy conjugation and its lazy negation."""
    return tensor.detach().resolve_conj().resolve_neg()


def arrays(*tensors: Any) -> list[Any]:
    """Return each tensor as an array, and None as None."""
    return [None if tensor is None else array(tensor) for tensor in tensors]


def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes' bfloat16 as a dtype."""
    try:
        dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ImportError(f"bfloat16 needs ml_dtypes ({error}); pip install 'gpuconv[torch]' brings it") from error
    return dtype


def place(tensor: Any) -> AbstractContextManager[Any]:
    """Return the context in which arrays of a tensor are computed with: for CUDA, PyTorch's stream and allocator."""
    if tensor.device.type != "cuda":
        return nullcontext()
    from gpuconv.torch import _device

    return _device.place(tensor)
