"""What comes after the sums of a convolution, in their type: a residual is added, an activation applied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, boxes, limit, shrink
from gpuconv.rules.activation import Activation


@dataclass(frozen=True, slots=True)
class Finish:
    """The residual (N, M, Q1, …) of some outputs, and the activation of all of them; either may be None."""

    residual: Array | None = None
    activation: Activation | None = None

    def __bool__(self) -> bool:
        return self.residual is not None or self.activation is not None

    def at(self, place: Any) -> Finish:
        """Return the residual at an index of the outputs, and the activation."""
        return self if self.residual is None else Finish(self.residual[place], self.activation)

    @property
    def passes(self) -> int:
        """How often applying it goes over the sums, temporary ones included."""
        does = self.activation
        return (self.residual is not None) + (0 if does is None else 1 if does.slope == 1 else 3)

    def apply(self, values: Array) -> None:
        """Finish sums in place."""
        if self.residual is not None:
            values += self.residual.astype(values.dtype, copy=False)
        if self.activation is not None:
            _activate(values, self.activation)


PLAIN = Finish()


def _activate(values: Array, activation: Activation) -> None:
    """Apply the formula, without masks where it can be: no processor foresees random signs."""
    slope, low, high = _numbers(activation, values.dtype)
    if activation.slope != 1:
        if 0 < slope < np.inf:  # then one of the two is what the formula gives, and no product is a new NaN
            (np.maximum if slope < 1 else np.minimum)(values * slope, values, out=values)
        else:
            _replace(values, values < 0, values * slope)
    if activation.low != -np.inf or activation.high != np.inf:
        values.clip(low, high, out=values)  # with both bounds it compares as the formula does, zeros included


@lru_cache(maxsize=256)
def _numbers(activation: Activation, dtype: Any) -> tuple[Any, Any, Any]:
    """Return slope, low and high rounded to a type; the activation's text tells its zeros apart."""
    slope, low, high = np.array([activation.slope, activation.low, activation.high]).astype(dtype)
    return slope, low, high


def _replace(values: Array, chosen: Array, others: Array) -> None:
    """Do what ``copyto`` does with a mask, by bits: ten times as quick where a mask has no long runs."""
    integers = np.dtype(f"i{values.itemsize}")
    kept, bits, new = chosen.astype(integers), values.view(integers), others.view(integers)
    kept -= 1  # 0 or all bits
    bits &= kept
    np.invert(kept, out=kept)
    kept &= new
    bits |= kept


def fill(y: Array, b: Array | None, finish: Finish, accumulator: str) -> None:
    """Set y (N, M, …) to what a sum over nothing gives: the bias, finished."""
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
