"""Table of element types: which operator accepts which, and the type in which it accumulates."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpuconv._errors import ArgumentTypeError, one_line


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes
    ----------
    name : str
        NumPy's name.
    cuda : str
        Type name in CUDA C++.
    itemsize : int
        Bytes per element.
    accumulator : str
        NumPy's name of the type in which sums are accumulated.
    lowest : float
        Lowest finite value.
    convolves : bool
        Whether convolution kernels exist for this type.
    real : str
        For complex types, the type of the real and imaginary parts; else "".
    """

    name: str
    cuda: str
    itemsize: int
    accumulator: str
    lowest: float
    convolves: bool
    real: str = ""


_TABLE = {
    entry.name: entry
    for entry in (
        DType("float16", "__half", 2, "float32", -65504.0, True),
        DType("bfloat16", "__nv_bfloat16", 2, "float32", -255.0 * 2.0**120, True),
        DType("float32", "float", 4, "float32", -(2.0**128 - 2.0**104), True),
        DType("float64", "double", 8, "float64", -sys.float_info.max, True),
        DType("int8", "signed char", 1, "int8", -128, False),
        DType("uint8", "unsigned char", 1, "uint8", 0, False),
        DType("complex64", "Complex<float>", 8, "complex64", 0, False, "float32"),
        DType("complex128", "Complex<double>", 16, "complex128", 0, False, "float64"),
    )
}

CONV_DTYPES = tuple(name for name, entry in _TABLE.items() if entry.convolves)
COMPLEX_DTYPES = tuple(name for name, entry in _TABLE.items() if entry.real)
MAX_POOL_DTYPES = tuple(name for name, entry in _TABLE.items() if not entry.real)
_SUMS = CONV_DTYPES + COMPLEX_DTYPES
_ALLOWED = {"max_pool": MAX_POOL_DTYPES, "max_pool_grad": CONV_DTYPES, "max_unpool": MAX_POOL_DTYPES}


def sums(dtype: str) -> DType:
    """Return the entry of the type in which sums of a dtype are accumulated."""
    return entry(entry(dtype).accumulator)


def allowed(operator: str) -> tuple[str, ...]:
    """Return the names of the dtypes that an operator accepts."""
    return _ALLOWED.get(operator, _SUMS)


def check(operator: str, **arrays: Any) -> DType:
    """Check that all arrays share one dtype that the operator accepts, and return its entry.

    Absent optional arrays are None. The array ``indices`` must be int64 instead.

    Raises
    ------
    ArgumentTypeError
        A dtype is not accepted, dtypes differ, or the byte order is not native.
    """
    indices = arrays.pop("indices", None)
    if indices is not None and indices.dtype != "int64":
        raise ArgumentTypeError(f"{operator}: indices must have dtype int64, not {one_line(str(indices.dtype))}")
    present = {name: array.dtype for name, array in arrays.items() if array is not None}
    (first, dtype), *others = present.items()
    entry, name = _found(dtype)
    names = allowed(operator)
    if entry is None or name not in names:
        raise ArgumentTypeError(
            f"{operator}: {first} has dtype {one_line(str(dtype))}, but must be one of {', '.join(names)}"
        )
    for name, other in others:
        if other != dtype:
            raise ArgumentTypeError(
                f"{operator}: {name} has dtype {one_line(str(other))}, but {first} has {dtype}; "
                "all arrays must share one dtype"
            )
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"{operator}: {first} has the byte order of another machine ({dtype.str}); "
            f"pass {first}.astype({first}.dtype.newbyteorder('='))"
        )
    return entry


@lru_cache(maxsize=128)
def _found(dtype: Any) -> tuple[DType | None, str]:
    """Return a dtype's entry (or None) and its name, cached because NumPy computes the name at each access."""
    return _TABLE.get(dtype.name), dtype.name


def entry(name: str) -> DType:
    """Return the entry of a dtype by NumPy's name."""
    return _TABLE[name]


def accumulator(dtype: Any) -> str:
    """Return the name of the type in which sums of a dtype are accumulated."""
    return _TABLE[_found(dtype)[1]].accumulator


def lowest(dtype: Any) -> float:
    """Return the lowest finite value of a dtype: MaxPool's result for a window without elements."""
    return _TABLE[dtype.name].lowest
