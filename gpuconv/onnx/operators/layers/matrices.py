"""Operators that generate arrays by formula (Trilu, EyeLike, AffineGrid, windows), and Det."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import DTYPES, Form, Operator, ints, namespace, only_int, wide


def _trilu(form: Form, x: Any, k: Any = None) -> Any:
    """Trilu: keep the upper or lower triangle of each matrix (..., N, M), diagonal k included; the rest is 0."""
    if x.ndim < 2:
        raise ArgumentError(f"x must have at least 2 axes, not the shape {x.shape}")
    rows, columns = x.shape[-2:]
    diagonal = 0 if k is None else max(-rows - 1, min(columns + 1, only_int("k", k)))
    ahead = np.arange(columns) - np.arange(rows)[:, None]
    kept = ahead >= diagonal if form.get("upper") else ahead <= diagonal
    xp = namespace(x)
    return xp.where(xp.asarray(kept), wide(x), xp.zeros((), wide(x).dtype)).astype(x.dtype, copy=False)


def _eye_like(form: Form, x: Any) -> Any:
    """EyeLike: ones on diagonal k of a matrix with the shape of x."""
    if x.ndim != 2:
        raise ArgumentError(f"x must have 2 axes, not the shape {x.shape}")
    number, k = form.get("dtype"), form.get("k") or 0
    kind = x.dtype if number is None else onnx.helper.tensor_dtype_to_np_dtype(number)
    ahead = np.arange(x.shape[1]) - np.arange(x.shape[0])[:, None]
    return (ahead == k).astype(kind)


def _det(_: Form, x: Any) -> Any:
    """Det: determinants of x (..., M, M), on the host."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ArgumentError(f"x must be (…, M, M), not {x.shape}")
    return np.asarray(np.linalg.det(wide(x))).astype(x.dtype, copy=False)


def _affine_grid(form: Form, theta: Any, size: Any) -> Any:
    """AffineGrid: return theta (N, 2, 3) or (N, 3, 4) applied to normalised positions, as PyTorch's affine_grid does.

    An axis with a single position has it in the middle, also with align_corners.
    """
    images, _, *extents = ints(size)
    rank = len(extents)
    if rank not in (2, 3) or theta.shape != (images, rank, rank + 1) or min(extents) < 0:
        raise ArgumentError(f"size {ints(size)} must be (N, C, H, W) or (N, C, D, H, W), and fit theta {theta.shape}")
    xp, matrix = namespace(theta), wide(theta)
    y = xp.broadcast_to(matrix[(slice(None), *(None,) * rank, slice(None), rank)], (images, *extents, rank))
    for axis, extent in enumerate(extents):
        along = np.arange(extent, dtype=np.float64)
        if form.get("align_corners"):
            places = 2 * along / (extent - 1) - 1 if extent > 1 else along
        else:
            places = (2 * along + 1) / extent - 1 if extent else along
        shaped = xp.asarray(places.astype(matrix.dtype)).reshape(-1, *(1,) * (rank - axis))
        y = y + shaped * matrix[(slice(None), *(None,) * rank, slice(None), rank - 1 - axis)]
    return y.astype(theta.dtype, copy=False)


def _affine_grid_cost(_: Form, theta: Any, size: Any) -> int:
    return prod(max(0, n) for n in ints(size)[2:]) * int(theta.size)


# Coefficients of cos(0), cos(t) and cos(2 t), where t runs over one turn.
_WINDOWS = {"BlackmanWindow": (0.42, -0.5, 0.08), "HannWindow": (0.5, -0.5), "HammingWindow": (25 / 46, -21 / 46)}


def _window(terms: tuple[float, ...]) -> Operator:
    """Make a window operator from the coefficients of its cosines, computed in float64; a window of one element is
    1.
    """

    def function(form: Form, size: Any) -> Any:
        count = only_int("size", size)
        if count < 0:
            raise ArgumentError(f"size is {count}, but a window cannot have fewer than 0 elements")
        turns = count if form.get("periodic") else count - 1
        angles = np.arange(count) * (2 * np.pi / turns) if turns > 0 else np.zeros(count)
        y = sum(term * np.cos(order * angles) for order, term in enumerate(terms))
        kind = onnx.helper.tensor_dtype_to_np_dtype(form.get("output_datatype"))
        y = np.ones(count) if turns < 1 else np.where(np.abs(y - np.rint(y)) < 1e-12, np.rint(y) + 0.0, y)
        return y.astype(kind)

    return Operator(function, frozenset({0}), cost=lambda _, size: only_int("size", size))


OPERATORS = {
    "AffineGrid": Operator(_affine_grid, frozenset({1}), cost=_affine_grid_cost),
    "Det": Operator(_det, frozenset({0})),
    "EyeLike": Operator(_eye_like, dtypes=DTYPES),
    "Trilu": Operator(_trilu, frozenset({1})),
    **{name: _window(terms) for name, terms in _WINDOWS.items()},
}
