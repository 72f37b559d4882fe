"""MaxPool's Indices: which elements they number, and which of these each window can have taken its maximum from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules import layout as layouts

Ints = tuple[int, ...]
IndicesIn = Literal["tensor", "plane"]  # what Indices count the elements of: ONNX's whole tensor, or each (n, c) plane
_CHOICES: tuple[str, ...] = get_args(IndicesIn)


@dataclass(frozen=True, slots=True)
class IndexWindows:
    """The elements that each index may name, for an array of Indices (N, C, Q1, …).

    Attributes
    ----------
    shape : tuple of int
        (N, C, Q1, …), that of the Indices.
    numbered : tuple of int
        (N, C, D1, …), that of the array whose elements they number.
    in_planes : bool
        Whether the first element of each plane has the number 0, not only that of the first plane.
    storage_order : int
        0 where the last spatial axis is numbered fastest, 1 where the first one is.
    strides, pads, reach, dilations : tuple of int
        Per spatial axis: window q may name the coordinates ``q * stride - pad + i`` inside the array, for multiples i
        of the dilation from 0 to below the reach. None is larger than its effect: the stride of a single window is 0.
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
        """Return what the attributes of a call come to."""
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
        """Elements of a plane."""
        return prod(self.numbered[2:])

    @property
    def count(self) -> int:
        """Numbers that elements can have: from 0 to below this."""
        return self.plane if self.in_planes else prod(self.numbered)

    @property
    def fastest_first(self) -> range:
        """The spatial axes in the order of numbering, the one whose neighbours have neighbouring numbers first."""
        rank = len(self.strides)
        return range(rank) if self.storage_order else range(rank - 1, -1, -1)


def parse_indices_in(name: str, value: Any) -> str:
    """Return a value of the argument ``indices_in``; raise ArgumentError or ArgumentTypeError for any other."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}: indices_in must be a string, not {shown(value)}")
    if value not in _CHOICES:
        raise ArgumentError(f"{name}: indices_in must be one of {', '.join(_CHOICES)}, not {shown(value)}")
    return value


def largest_reach(extent: int, windows: int, kernel: int, stride: int, pads: int) -> int:
    """Return how far from a window's first coordinate its maximum may be, plus 1, where the dilation is not known.

    MaxUnpool is told neither the dilation nor the ceil_mode of the MaxPool that it inverts. An input of ``extent`` and
    a dilated kernel of ``ek`` elements give ``windows`` outputs with ceil_mode only if
    ``extent + pads - ek > stride * (windows - 2)``, and without it only if they do with it or ``ek`` is smaller still.
    """
    largest = extent + pads - stride * (windows - 2) - 1
    return (kernel - 1) * max(1, (largest - 1) // max(1, kernel - 1)) + 1


def refuse(name: str, index: int, place: Ints, windows: IndexWindows, layout: str) -> None:
    """Raise ArgumentError for an index at a place (n, c, q1, …) that the forward call cannot have returned."""
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
    """Return what to do about an index that may count in the other way, which is the same in the first plane."""
    within = 0 <= index < windows.plane
    if not any(place[:2]) or within == windows.in_planes or index < 0:
        return ""
    if windows.in_planes:
        return "; if they count through the whole tensor, as in ONNX, leave indices_in='plane' out"
    return (
        f"; if they count within each plane, as PyTorch's do, pass indices_in='plane', or add "
        f"{windows.plane} * (n * {windows.numbered[1]} + c)"
    )
