"""What the tasks of a graph do, in whichever thread or process they run."""

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
from gpuconv.cpu._threads import alone
from gpuconv.rules import layout
from gpuconv.rules.geometry import MaxPoolGeometry
from gpuconv.rules.strictness import relaxed

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How pieces of several blocks make the input of one call.

    ``empty`` is an array without elements, from the library of the blocks, for a window that has no pieces.
    """

    shape: tuple[int, ...]
    places: tuple[Slices, ...]
    empty: Any

    def assemble(self, pieces: Sequence[Any]) -> Any:
        """Return the array that the pieces make; one alone is it already."""
        if len(pieces) == 1:
            return pieces[0]
        whole = np.empty_like(plain(pieces[0] if pieces else self.empty), order="C", shape=self.shape)
        for place, piece in zip(self.places, pieces, strict=True):
            whole[place] = plain(piece)
        return whole


class SharedWeights:
    """Packed weights in a graph: as they are for threads of this process, packed anew where another one uses them."""

    __slots__ = ("_operator", "_packed", "_w")

    def __init__(self, operator: str, w: Any, packed: PackedWeights | None = None) -> None:
        self._operator, self._w, self._packed = operator, w, packed

    def packed(self) -> PackedWeights:
        """Return the weights for calls in this process."""
        if self._packed is None:  # not where they are unpickled: that may be a scheduler without a device
            self._packed = pack(self._w, self._operator)
        return self._packed

    def __reduce__(self) -> Any:
        return SharedWeights, (self._operator, self._w)


def cut(part: Slices, block: Any) -> Any:
    """Return a part of a block; a small one is copied, for it would keep the whole block in memory."""
    piece = plain(block)[part]
    return piece.copy() if 2 * piece.size <= block.size else piece


def convolve(
    operator: str,
    window: Window,
    parts: dict[str, slice],
    attributes: dict[str, Any],
    pieces: Sequence[Any],
    *others: Any,
) -> Any:
    """Make one block of Conv or ConvTranspose.

    ``parts`` has the names of the other arrays in order, and what of each the block's groups have.
    """
    arrays = {
        name: array.packed() if isinstance(array, SharedWeights) else plain(array)[part]
        for (name, part), array in zip(parts.items(), others, strict=True)
    }
    with alone(), relaxed():
        return getattr(_conv, operator)(window.assemble(pieces), **arrays, **attributes)


def pool(operator: str, window: Window, attributes: dict[str, Any], pieces: Sequence[Any]) -> Any:
    """Make one block of MaxPool or AveragePool."""
    with alone(), relaxed():
        return getattr(_pooling, operator)(window.assemble(pieces), **attributes)


def pool_with_indices(
    window: Window,
    attributes: dict[str, Any],
    origin: tuple[int, ...],
    steps: tuple[int, ...],
    pieces: Sequence[Any],
) -> tuple[Any, Any]:
    """Make one block of MaxPool and its Indices, which count elements of the whole array or of its planes.

    Parameters
    ----------
    origin : tuple of int
        Where the window begins in the whole array, in the order N, C, D1, …
    steps : tuple of int
        What :func:`steps_of` returns for the whole array.
    """
    x = window.assemble(pieces)
    with alone(), relaxed():
        y, indices = _pooling.max_pool(x, return_indices=True, **attributes)
    shape = layout.channels_second(attributes["layout"], x.shape)
    whole, rest = np.zeros_like(indices), indices
    for size, start, step in reversed(list(zip(shape, origin, steps, strict=True))):
        rest, position = np.divmod(rest, max(size, 1))
        whole += (position + start) * step
    whole[indices < 0] = -1  # windows without any element
    return y, whole


def steps_of(geometry: MaxPoolGeometry) -> tuple[int, ...]:
    """Return by how much MaxPool's Indices grow for one step along each axis of x: N, C, D1, …."""
    shape, storage_order, plane_step = geometry.x_shape, geometry.storage_order, geometry.plane_step
    sizes, axes = shape[2:], range(len(shape) - 2)
    along = [prod(sizes[:axis] if storage_order else sizes[axis + 1 :]) for axis in axes]
    return shape[1] * plane_step, plane_step, *along
