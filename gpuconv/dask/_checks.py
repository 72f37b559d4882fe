"""What the arrays of a call must be, before any task exists."""

from __future__ import annotations

import math
from typing import Any

from dask.array.core import Array

from gpuconv import _arrays
from gpuconv._errors import ArgumentError, ArgumentTypeError


def arrays(operator: str, x: Any, wholes: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays that blocks take whole: those of dask as they are, those in memory as x's library's.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        x is no dask array of NumPy or CuPy blocks, chunks have unknown sizes, a whole one is cut, libraries differ.
    """
    if not isinstance(x, Array):
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        raise ArgumentTypeError(
            f"{operator}: x must be a dask array, not {kind}; gpuconv.{operator} takes arrays in memory"
        )
    _check_sizes(operator, "x", x)
    kinds = {"x": x._meta}
    for name, array in wholes.items():
        if isinstance(array, Array):
            _check_sizes(operator, name, array)
            _check_one_chunk(operator, name, array)
        kinds[name] = array._meta if isinstance(array, Array) else array
    found = _arrays.resolve_all(operator, kinds)[1]
    return {name: array if isinstance(array, Array) else found[name] for name, array in wholes.items()}


def _check_sizes(operator: str, name: str, array: Array) -> None:
    unknown = [axis for axis, size in enumerate(array.shape) if math.isnan(size)]
    if unknown:
        raise ArgumentError(
            f"{operator}: the chunks of {name} have unknown sizes along axis {unknown[0]} "
            f"({name}.shape={array.shape}); call {name}.compute_chunk_sizes() first"
        )


def _check_one_chunk(operator: str, name: str, array: Array) -> None:
    if array.npartitions != 1:
        raise ArgumentError(
            f"{operator}: every block of x takes all of {name}, which is cut into chunks of {array.chunks}; "
            f"pass {name}.rechunk(-1)"
        )
