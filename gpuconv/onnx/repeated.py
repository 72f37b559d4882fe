"""Conv on NumPy arrays of shapes and types that the public function has accepted before: without checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuconv import cpu
from gpuconv.rules import activation as activations
from gpuconv.rules import geometry as geometries
from gpuconv.rules.invariance import CURRENT


class RepeatedConv:
    """One node's convolution; the layers of a network at batch 1 take less time than looking at their arguments.

    Parameters
    ----------
    keywords : mapping
        Attributes of :func:`gpuconv.conv`.
    activation : None, str or tuple
        As :func:`gpuconv.conv` takes it.
    """

    def __init__(self, keywords: Mapping[str, Any], activation: Any = None) -> None:
        self._keywords, self._activation = keywords, activations.parse("conv", activation)
        self._accepted: tuple[list[Any], Any, Any] | None = None  # kinds, and for them the geometry and constant facts
        self._constant: Any = None

    def keep(self, w: Any) -> None:
        """Take an array for weights that nobody changes: what is seen of it once is not looked at again."""
        self._constant = w

    def call(self, compute: Callable[[], tuple[Any, ...]], *operands: Any, out: Any = None) -> tuple[Any, ...]:
        """Return the result for operands of accepted kinds; otherwise what ``compute`` returns, and accept them."""
        y = self.run(*operands, out=out)
        if y is not None:
            return (y,)
        outputs = compute()
        self.accept(*operands)
        return outputs

    def accept(self, x: Any, w: Any, b: Any = None, residual: Any = None) -> None:
        """Take the kinds of these operands for good: the public function has computed them."""
        kinds = _kinds(x, w, b, residual)
        if kinds is not None:
            bias = None if b is None else b.shape
            geometry = geometries.conv(x.shape, w.shape, bias, **self._keywords)
            self._accepted = kinds, geometry, cpu.known_weights(w) if w is self._constant else None

    def run(self, x: Any, w: Any, b: Any = None, residual: Any = None, *, out: Any = None) -> Any:
        """Return the result, or None where operands of these kinds were not the last that were accepted.

        The result is in ``out``, which no operand may overlap, if that is of its shape and type.
        """
        if self._accepted is None:
            return None
        kinds, geometry, facts = self._accepted
        if _kinds(x, w, b, residual) != kinds:
            return None
        fits = out is not None and out.shape == geometry.y_shape and out.dtype == x.dtype
        y = out if fits else np.empty(geometry.y_shape, x.dtype)
        finish = cpu.Finish(residual, self._activation)
        alone = "NCHW" if CURRENT.get() else None
        cpu.conv(x, w, b, y, geometry, finish, facts if w is self._constant else None, alone=alone)
        return y


def _kinds(*operands: Any) -> list[Any] | None:
    """Return shapes and types of plain NumPy arrays; None where there are others."""
    kinds: list[Any] = []
    for operand in operands:
        if operand is not None and type(operand) is not np.ndarray:
            return None
        kinds.append(operand if operand is None else (operand.shape, operand.dtype))
    return kinds
