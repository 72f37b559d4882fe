"""A fast path for repeated Conv calls on the CPU: no argument checks for shapes and dtypes seen before.

For the layers of a network at batch 1, validation can take longer than the convolution itself. The first call goes
through :func:`gpuconv.conv`; later calls with the same shapes and dtypes go straight to :func:`gpuconv.cpu.conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuconv import cpu
from gpuconv.rules import activation as activations
from gpuconv.rules import geometry as geometries
from gpuconv.rules.invariance import CURRENT


class RepeatedConv:
    """The convolution of one node, which remembers the shapes and dtypes accepted last.

    Parameters
    ----------
    keywords : mapping
        Attributes of :func:`gpuconv.conv`.
    activation : None, str or tuple
        As :func:`gpuconv.conv` takes it.
    """

    def __init__(self, keywords: Mapping[str, Any], activation: Any = None) -> None:
        self._keywords, self._activation = keywords, activations.parse("conv", activation)
        # shapes and dtypes of the operands, with the geometry and the facts about constant weights that belong to them
        self._accepted: tuple[list[Any], Any, Any] | None = None
        self._constant: Any = None

    def keep(self, w: Any) -> None:
        """Register constant weights: facts about them, such as whether all are finite, are then computed only once."""
        self._constant = w

    def call(self, compute: Callable[[], tuple[Any, ...]], *operands: Any, out: Any = None) -> tuple[Any, ...]:
        """Return the outputs by the fast path if possible; otherwise by ``compute()``, and accept these operands from
        now on.
        """
        y = self.run(*operands, out=out)
        if y is not None:
            return (y,)
        outputs = compute()
        self.accept(*operands)
        return outputs

    def accept(self, x: Any, w: Any, b: Any = None, residual: Any = None) -> None:
        """Remember shapes and dtypes of these operands; the public function must have accepted them."""
        kinds = _kinds(x, w, b, residual)
        if kinds is not None:
            bias = None if b is None else b.shape
            geometry = geometries.conv(x.shape, w.shape, bias, **self._keywords)
            self._accepted = kinds, geometry, cpu.known_weights(w) if w is self._constant else None

    def run(self, x: Any, w: Any, b: Any = None, residual: Any = None, *, out: Any = None) -> Any:
        """Return the result, or None if the shapes or dtypes differ from the last accepted ones.

        The result is stored in ``out``, which no operand may overlap, if ``out`` has the right shape and dtype.
        """
        if self._accepted is None:
            return None
        kinds, geometry, facts = self._accepted
        if _kinds(x, w, b, residual) != kinds:
            return None
        fits = out is not None and out.shape == geometry.y_shape and out.dtype == x.dtype
        y = out if fits else np.empty(geometry.y_shape, x.dtype)
        finish = cpu.Finish(residual, self._activation)
        invariant_layout = "NCHW" if CURRENT.get() else None
        cpu.conv(
            x, w, b, y, geometry, finish, facts if w is self._constant else None, invariant_layout=invariant_layout
        )
        return y


def _kinds(*operands: Any) -> list[Any] | None:
    """Return shape and dtype of each operand (None for absent ones); None if one is not a plain NumPy array."""
    kinds: list[Any] = []
    for operand in operands:
        if operand is not None and type(operand) is not np.ndarray:
            return None
        kinds.append(operand if operand is None else (operand.shape, operand.dtype))
    return kinds
