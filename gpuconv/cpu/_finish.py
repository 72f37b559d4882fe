"""The epilogue of a convolution: residual and activation, applied to the sums in the accumulator's type.

Each algorithm calls it on the sums of one block, which are still in cache, before they are rounded to y's type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, boxes, limit, shrink
from gpuconv.rules.activation import Activation


@dataclass(frozen=True, slots=True)
class Finish:
    """The epilogue of some outputs: a residual (N, M, Q1, …) of their shape and an activation, or None for either."""

    residual: Array | None = None
    activation: Activation | None = None

    def __bool__(self) -> bool:
        return self.residual is not None or self.activation is not None

    def at(self, place: Any) -> Finish:
        """Return the epilogue of a part of the outputs, given as an index of them."""
        return self if self.residual is None else Finish(self.residual[place], self.activation)

    @property
    def passes(self) -> int:
        """Number of passes over the sums that :meth:`apply` makes, including those over temporaries."""
        does = self.activation
        return (self.residual is not None) + (0 if does is None else 1 if does.slope == 1 else 3)

    def apply(self, values: Array) -> None:
        """Add the residual to ``values`` and apply the activation, in place."""
        if self.residual is not None:
            values += self.residual.astype(values.dtype, copy=False)
        if self.activation is not None:
            _activate(values, self.activation)


PLAIN = Finish()


def _activate(values: Array, activation: Activation) -> None:
    """Apply the activation in place, by minimum and maximum if possible: masks of random signs mispredict branches."""
    slope, low, high = _numbers(activation, values.dtype)
    if activation.slope != 1:
        if 0 < slope < np.inf:  # max(v * slope, v), or min, equals the formula, and 0 * inf cannot occur
            (np.maximum if slope < 1 else np.minimum)(values * slope, values, out=values)
        else:
            _replace(values, values < 0, values * slope)
    if activation.low != -np.inf or activation.high != np.inf:
        values.clip(low, high, out=values)  # with both bounds, clip treats -0.0 as the formula does


@lru_cache(maxsize=256)
def _numbers(activation: Activation, dtype: Any) -> tuple[Any, Any, Any]:
    """Return slope, low and high rounded to a type; the cache tells 0.0 and -0.0 apart by the activation's text."""
    slope, low, high = np.array([activation.slope, activation.low, activation.high]).astype(dtype)
    return slope, low, high


def _replace(values: Array, chosen: Array, others: Array) -> None:
    """Do ``copyto(values, others, where=chosen)`` by bit operations: ten times as fast for masks without long runs."""
    integers = np.dtype(f"i{values.itemsize}")
    kept, bits, new = chosen.astype(integers), values.view(integers), others.view(integers)
    kept -= 1  # 0 or all bits
    bits &= kept
    np.invert(kept, out=kept)
    kept &= new
    bits |= kept


def fill(y: Array, b: Array | None, finish: Finish, accumulator: str) -> None:
    """Set y (N, M, …) to the result of an empty sum: the bias (or 0) after the epilogue."""
    bias = None if b is None else b.reshape(-1, *(1,) * (y.ndim - 2))
    if not finish:
        y[...] = 0 if bias is None else bias
        return
    chunk = shrink(y.shape, limit() // (4 * np.dtype(accumulator).itemsize))
    for box in boxes(y.shape, chunk):
        place = tuple(slice(*span) for span in box)
        values = np.zeros(y[place].shape, accumulator)
        if bias is not None:
            values[...] = bias[place[1]]
        finish.at(place).apply(values)
        y[place] = values
