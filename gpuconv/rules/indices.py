"""Indices of MaxPool: what they count, and which values each window can have returned.

MaxUnpool and MaxPool's gradient use this to reject Indices that do not belong to the forward call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules import layout as layouts

Ints = tuple[int, ...]
# what Indices count: elements of the whole tensor, as in ONNX, or of each (n, c) plane
IndicesIn = Literal["tensor", "plane"]
_CHOICES: tuple[str, ...] = get_args(IndicesIn)


@dataclass(frozen=True, slots=True)
class IndexWindows:
    """The valid Indices of each window, for an array of Indices (N, C, Q1, ...).

    Attributes
    ----------
    shape : tuple of int
        (N, C, Q1, ...), the shape of the Indices.
    numbered : tuple of int
        (N, C, D1, ...), the shape of the array whose elements they count.
    in_planes : bool
        Whether counting restarts at 0 in each (n, c) plane.
    storage_order : int
        0 if the last spatial axis counts fastest, 1 if the first.
    strides, pads, reach, dilations : tuple of int
        Per spatial axis: window q may name the in-bounds coordinates ``q * stride - pad + i``, where i is a multiple of
        the dilation in ``[0, reach)``. Values are reduced to what has an effect: the stride of a single window is 0.
    """

    shape: Ints
    numbered: Ints
    in_planes: bool
    storage_order: int
    strides: Ints
    pads: Ints
    reach: Ints
    dilations: Ints

    @classmethod
    def of(
        cls,
        shape: Ints,
        numbered: Ints,
        in_planes: bool,
        storage_order: int,
        strides: Ints,
        pads: Ints,
        reach: Iterable[int],
        dilations: Ints,
    ) -> IndexWindows:
        """Return the valid Indices for a call, with strides, reach and dilations reduced to what has an effect."""
        seen = tuple(min(r, n + pad) for r, n, pad in zip(reach, numbered[2:], pads, strict=True))
        return cls(
            shape,
            numbered,
            in_planes,
            storage_order,
            tuple(s if q > 1 else 0 for s, q in zip(strides, shape[2:], strict=True)),
            pads,
            seen,
            tuple(max(1, min(d, r)) for d, r in zip(dilations, seen, strict=True)),
        )

    @property
    def plane(self) -> int:
        """Number of elements per plane."""
        return prod(self.numbered[2:])

    @property
    def count(self) -> int:
        """Number of valid non-negative Indices: they are in ``[0, count)``."""
        return self.plane if self.in_planes else prod(self.numbered)

    @property
    def fastest_first(self) -> range:
        """The spatial axes, fastest-counting first."""
        rank = len(self.strides)
        return range(rank) if self.storage_order else range(rank - 1, -1, -1)


def parse_indices_in(name: str, value: Any) -> str:
    """Return the argument ``indices_in`` if it is valid; raise ArgumentError or ArgumentTypeError otherwise."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}: indices_in must be a string, not {shown(value)}")
    if value not in _CHOICES:
        raise ArgumentError(f"{name}: indices_in must be one of {', '.join(_CHOICES)}, not {shown(value)}")
    return value


def largest_reach(extent: int, windows: int, kernel: int, stride: int, pads: int) -> int:
    """Return an upper bound of a window's dilated extent, if the dilation is unknown.

    MaxUnpool knows neither dilation nor ceil_mode of the MaxPool that it inverts. With ceil_mode, an input of
    ``extent`` and a dilated kernel of ``ek`` elements give ``windows`` outputs only if ``extent + pads - ek > stride *
    (windows - 2)``. Without ceil_mode, ``ek`` must satisfy the same condition or be smaller still.
    """
    largest = extent + pads - stride * (windows - 2) - 1
    return (kernel - 1) * max(1, (largest - 1) // max(1, kernel - 1)) + 1


def refuse(name: str, index: int, place: Ints, windows: IndexWindows, layout: str) -> None:
    """Raise ArgumentError for an index at position (n, c, q1, ...) that the forward call cannot have returned."""
    hold = f"{name}: indices hold {index} at {layouts.as_given(layout, place)}"
    of = f"a plane {windows.numbered[2:]}" if windows.in_planes else f"{windows.numbered} (N, C, D1, …)"
    if windows.count == 0:
        raise ArgumentError(f"{hold}, but {of} has no elements, so that all must be -1")
    if not -1 <= index < windows.count:
        raise ArgumentError(
            f"{hold}, but the elements of {of} have the numbers 0 to {windows.count - 1}, and -1 stands for none"
            f"{_cure(index, place, windows)}"
        )
    cure = _cure(index, place, windows) or "; pass the Indices and the attributes of the forward call"
    raise ArgumentError(f"{hold}, the number of an element of {of} outside that window{cure}")


def _cure(index: int, place: Ints, windows: IndexWindows) -> str:
    """Return advice if the index seems to count the other way (tensor or plane); both are the same in the first
    plane.
    """
    within = 0 <= index < windows.plane
    if not any(place[:2]) or within == windows.in_planes or index < 0:
        return ""
    if windows.in_planes:
        return "; if they count through the whole tensor, as in ONNX, leave indices_in='plane' out"
    return (
        f"; if they count within each plane, as PyTorch's do, pass indices_in='plane', or add "
        f"{windows.plane} * (n * {windows.numbered[1]} + c)"
    )
