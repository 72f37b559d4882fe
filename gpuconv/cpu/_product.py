"""Products of matrices that are added to what is there, by the BLAS that NumPy is linked with.

NumPy's own product overwrites: a bias, or the products that are added up, would take passes over the results.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, Ints

_NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_")  # all integers of those with this suffix have 64 bits
_TYPES: dict[str, tuple[str, Any]] = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # of CBLAS
MOST = 8  # products, for each of which BLAS has to be called


def add(a: Array, b: Array, c: Array, onto: bool = True) -> None:
    """Add ``a[g] @ b[g]`` to every ``c[g]``, or overwrite it; matrices that :func:`adds` was asked about."""
    function, item = _functions()[a.dtype.char], a.itemsize
    (_, rows, depth), columns = a.shape, b.shape[2]
    (flip_a, lda), (flip_b, ldb) = (_order(matrix.shape[1:], matrix.strides[1:], item) or (0, 0) for matrix in (a, b))
    ldc = c.strides[1] // item if rows > 1 else columns
    places = [(matrix.ctypes.data, matrix.strides[0]) for matrix in (a, b, c)]
    for group in range(a.shape[0]):
        at_a, at_b, at_c = (first + group * step for first, step in places)
        function(_ROW_MAJOR, flip_a, flip_b, rows, columns, depth, 1.0, at_a, lda, at_b, ldb, float(onto), at_c, ldc)


def available(dtype: Any) -> bool:
    """Tell whether matrices of a type are multiplied, if :func:`adds` has nothing against their shapes."""
    kind = np.dtype(dtype)
    return kind.isnative and kind.char in _functions()


def adds(a: Array, b: Array, c: Array) -> bool:
    """Tell whether :func:`add` takes a (G, M, K), b (G, K, N) and c (G, M, N).

    Not other types than float32 and float64 of this machine, many groups, matrices off the alignment of their type or
    with gaps in both directions, nor a c with gaps within rows; and nothing where BLAS cannot be called.
    """
    if a.shape[0] > MOST or not a.dtype == b.dtype == c.dtype or not available(a.dtype):
        return False
    if not (a.flags.aligned and b.flags.aligned and c.flags.aligned):
        return False
    orders = [_order(matrix.shape[1:], matrix.strides[1:], a.itemsize) for matrix in (a, b, c)]
    return None not in orders and orders[2][0] == _AS_IT_IS  # type: ignore[index]


@lru_cache(maxsize=4096)
def _order(shape: Ints, strides: Ints, item: int) -> tuple[int, int] | None:
    """Return whether BLAS takes a matrix as it is or as another one's transpose, and the step between its rows.

    None where neither rows nor columns are without gaps, or they overlap.
    """
    (rows, columns), (row, column) = shape, strides
    if (column == item or columns == 1) and (rows == 1 or (row >= columns * item and row % item == 0)):
        return _AS_IT_IS, columns if rows == 1 else row // item
    if (row == item or rows == 1) and (columns == 1 or (column >= rows * item and column % item == 0)):
        return _TRANSPOSED, rows if columns == 1 else column // item
    return None


@lru_cache(maxsize=1)
def _functions() -> dict[str, Any]:
    """Return BLAS's products by type code, looked up through the NumPy module that is linked with it."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return {}
    functions = {}
    for kind, (letter, number) in _TYPES.items():
        for name in _NAMES:
            function = getattr(library, name.format(letter), None)
            if function is not None:
                flag, size, place = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
                function.restype = None
                function.argtypes = (
                    *(flag, flag, flag, size, size, size),
                    *(number, place, size, place, size),
                    *(number, place, size),
                )
                functions[kind] = function
                break
    return functions
