"""Which library an array is from, found by its type and without importing CuPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError, ArgumentTypeError


def backend_of(operator: str, **arrays: Any) -> str:
    """Return "numpy" or "cuda", the one library that all given arrays are from; None stands for an absent bias."""
    present = {name: array for name, array in arrays.items() if array is not None or name != "b"}
    found = {name: _library(operator, name, array) for name, array in present.items()}
    if len(set(found.values())) > 1:
        kinds = ", ".join(f"{name} is a {_LABEL[library]} array" for name, library in found.items())
        raise ArgumentTypeError(f"{operator}: {kinds}; move them to one side with gpuconv.to_device or gpuconv.to_host")
    return next(iter(found.values()))


_LABEL = {"numpy": "NumPy", "cuda": "CuPy"}


def _library(operator: str, name: str, array: Any) -> str:
    if isinstance(array, np.ndarray) and not _is_masked(array):
        return "numpy"
    if is_cupy(array):
        return "cuda"
    kind = type(array)
    raise ArgumentTypeError(
        f"{operator}: {name} must be a NumPy or CuPy array, not {kind.__module__}.{kind.__qualname__}"
    )


def _is_masked(array: Any) -> bool:
    """Tell whether a mask comes with an array; where numpy.ma is not imported, and it takes its time, none can."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


def is_cupy(array: Any) -> bool:
    """Tell whether an object is a CuPy array, without importing CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy" and type(array).__name__ == "ndarray"


def check_out(operator: str, out: Any, shape: tuple[int, ...], dtype: Any, name: str = "out", **inputs: Any) -> None:
    """Refuse an ``out`` that the result does not fit into, or that shares memory with an input."""
    backend_of(operator, **{name: out}, **inputs)
    if out.shape != shape:
        raise ArgumentError(f"{operator}: {name} must have the result's shape {shape}, not {out.shape}")
    if out.dtype != dtype:
        raise ArgumentTypeError(f"{operator}: {name} must have the result's dtype {np.dtype(dtype)}, not {out.dtype}")
    if isinstance(out, np.ndarray):
        _check_host_memory(operator, name, out, inputs)


def _check_host_memory(operator: str, name: str, out: np.ndarray[Any, Any], inputs: dict[str, Any]) -> None:
    if not out.flags.writeable:
        raise ArgumentError(f"{operator}: {name} is read-only; pass a writeable array")
    if _repeats_itself(out):
        raise ArgumentError(
            f"{operator}: {name} repeats its own memory (strides {out.strides}); pass an array of its own"
        )
    for other, array in inputs.items():
        if array is not None and _overlap(out, array):
            raise ArgumentError(f"{operator}: {name} shares memory with {other}; pass an array of its own")


def _repeats_itself(array: np.ndarray[Any, Any]) -> bool:
    """Tell whether steps along some axis are shorter than what the axes inside of it span."""
    span = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in axes if size > 1 and array.size):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


def _overlap(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
