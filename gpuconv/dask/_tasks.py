"""The functions that dask tasks run: assemble a block's window and call gpuconv on it.

They run in any thread or process, with gpuconv's own CPU threads turned off, because dask provides the parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuconv import _conv, _pooling
from gpuconv._arrays import plain
from gpuconv._packed import PackedWeights
from gpuconv._transfer import pack
from gpuconv.cpu._threads import single_threaded
from gpuconv.rules import layout
from gpuconv.rules.geometry import MaxPoolGeometry
from gpuconv.rules.strictness import relaxed

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How to assemble the input of one call from slices of several blocks.

    Attributes
    ----------
    shape : tuple of int
        Shape of the window.
    places : tuple of tuples of slice
        Position of each piece in the window.
    empty : array
        Without elements, in the library of the blocks; it determines the type of a window without pieces.
    """

    shape: tuple[int, ...]
    places: tuple[Slices, ...]
    empty: Any

    def assemble(self, pieces: Sequence[Any]) -> Any:
        """Return the window; a single piece is returned as it is, without a copy."""
        if len(pieces) == 1:
            return pieces[0]
        whole = np.empty_like(plain(pieces[0] if pieces else self.empty), order="C", shape=self.shape)
        for place, piece in zip(self.places, pieces, strict=True):
            whole[place] = plain(piece)
        return whole


class SharedWeights:
    """Packed weights in a graph: shared within this process, packed again in each process that unpickles them."""

    __slots__ = ("_operator", "_packed", "_w")

    def __init__(self, operator: str, w: Any, packed: PackedWeights | None = None) -> None:
        self._operator, self._w, self._packed = operator, w, packed

    def packed(self) -> PackedWeights:
        """Return the packed weights for calls in this process."""
        if self._packed is None:  # packed at first use, not when unpickled, which a scheduler without a device may do
            self._packed = pack(self._w, self._operator)
        return self._packed

    def __reduce__(self) -> Any:
        return SharedWeights, (self._operator, self._w)


def cut(part: Slices, block: Any) -> Any:
    """Return a slice of a block; a small one is copied, because a view would keep the whole block in memory."""
    piece = plain(block)[part]
    return piece.copy() if 2 * piece.size <= block.size else piece


def convolve(
    operator: str,
    window: Window,
    slices: dict[str, slice],
    attributes: dict[str, Any],
    pieces: Sequence[Any],
    *others: Any,
) -> Any:
    """Compute one block of Conv or ConvTranspose.

    Parameters
    ----------
    operator : {"conv", "conv_transpose"}
    window : Window
    slices : dict of str to slice
        Names of the other arrays in order, and the slice of axis 0 that the block's groups need.
    attributes : dict
        Keywords of the call.
    pieces : sequence of arrays
        The window's pieces.
    *others : array
        w, b, residual, as named by ``slices``.
    """
    arrays = {
        name: array.packed() if isinstance(array, SharedWeights) else plain(array)[part]
        for (name, part), array in zip(slices.items(), others, strict=True)
    }
    with single_threaded(), relaxed():
        return getattr(_conv, operator)(window.assemble(pieces), **arrays, **attributes)


def pool(operator: str, window: Window, attributes: dict[str, Any], pieces: Sequence[Any]) -> Any:
    """Compute one block of MaxPool or AveragePool."""
    with single_threaded(), relaxed():
        return getattr(_pooling, operator)(window.assemble(pieces), **attributes)


def pool_with_indices(
    window: Window,
    attributes: dict[str, Any],
    origin: tuple[int, ...],
    steps: tuple[int, ...],
    pieces: Sequence[Any],
) -> tuple[Any, Any]:
    """Compute one block of MaxPool and its Indices, which are positions in the whole array or in its planes.

    Parameters
    ----------
    window, attributes, pieces
        As in :func:`convolve`.
    origin : tuple of int
        Position of the window in the whole array, in the order N, C, D1, ...
    steps : tuple of int
        What :func:`steps_of` returns for the whole array.
    """
    x = window.assemble(pieces)
    with single_threaded(), relaxed():
        y, indices = _pooling.max_pool(x, return_indices=True, **attributes)
    shape = layout.channels_second(attributes["layout"], x.shape)
    whole, rest = np.zeros_like(indices), indices
    for size, start, step in reversed(list(zip(shape, origin, steps, strict=True))):
        rest, position = np.divmod(rest, max(size, 1))
        whole += (position + start) * step
    whole[indices < 0] = -1  # windows without an element
    return y, whole


def steps_of(geometry: MaxPoolGeometry) -> tuple[int, ...]:
    """Return the increment of MaxPool's Indices per step along each axis of x: N, C, D1, ..."""
    shape, storage_order, plane_step = geometry.x_shape, geometry.storage_order, geometry.plane_step
    sizes, axes = shape[2:], range(len(shape) - 2)
    along = [prod(sizes[:axis] if storage_order else sizes[axis + 1 :]) for axis in axes]
    return shape[1] * plane_step, plane_step, *along
