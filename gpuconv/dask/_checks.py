"""Validation of the arrays of a gpuconv.dask call, before any task is created."""

from __future__ import annotations

import math
from typing import Any

from dask.array.core import Array

from gpuconv import _arrays
from gpuconv._errors import ArgumentError, ArgumentTypeError


def arrays(operator: str, x: Any, others: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays other than x that are given; arrays in memory are converted to the library of x's blocks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        x or a residual is not a dask array of NumPy or CuPy blocks, chunk sizes are unknown, weights or bias have
        several chunks, or the libraries differ.
    """
    present = {name: array for name, array in others.items() if array is not None}
    kinds = {}
    for name, array in {"x": x, **present}.items():
        if name in ("x", "residual") or isinstance(array, Array):
            _check_dask(operator, name, array)
            _check_sizes(operator, name, array)
        if name in ("w", "b") and isinstance(array, Array):
            _check_one_chunk(operator, name, array)
        kinds[name] = array._meta if isinstance(array, Array) else array
    found = _arrays.resolve_all(operator, kinds)[1]
    return {name: array if isinstance(array, Array) else found[name] for name, array in present.items()}


def _check_dask(operator: str, name: str, array: Any) -> None:
    if not isinstance(array, Array):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        way = f"gpuconv.{operator} takes arrays in memory" if name == "x" else f"pass dask.array.from_array({name})"
        if kind.startswith("dask.array."):
            way = "dask's query planning for arrays (array.query-planning) must be off"
        raise ArgumentTypeError(f"{operator}: {name} must be a dask array, not {kind}; {way}")


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
