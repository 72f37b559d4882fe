"""Axes of strided arrays, as kernels take them: neighbours that lie as one made one, filled up in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.rules.geometry import Ints


def collapsed(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return an array's axes, row-major, without those of one element, neighbours that lie as one made one."""
    extents, (steps,) = collapsed_together(shape, strides)
    return extents, steps


def collapsed_together(shape: Sequence[int], *arrays: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return the axes of several arrays of one shape, merged as :func:`collapsed` does, and each one's strides."""
    axes: list[tuple[int, Sequence[int]]] = []
    for extent, *strides in zip(shape, *arrays, strict=True):
        if extent == 1:
            continue
        if axes and list(axes[-1][1]) == [extent * stride for stride in strides]:
            axes[-1] = axes[-1][0] * extent, strides
        else:
            axes.append((extent, strides))
    return [extent for extent, _ in axes], [[strides[array] for _, strides in axes] for array in range(len(arrays))]


def filled(entries: Sequence[int], rank: int, entry: int) -> list[int]:
    """Return what axes have, with axes of one element in front."""
    return [entry] * (rank - len(entries)) + list(entries)


def array_fields(arrays: Mapping[str, Ints], rank: int) -> dict[str, Any]:
    """Return the fields for arrays of these strides: batch, channel, and spatial axes as :func:`filled` has them."""
    fields: dict[str, Any] = {}
    for name, (batch, channel, *spatial) in arrays.items():
        fields |= params.array_fields(name, (batch, channel, *filled(spatial, rank, 0)))
    return fields


def needs_wide(operator: str, extents: Sequence[int], steps: Sequence[int], counts: Sequence[int]) -> bool:
    """Tell whether offsets in such axes, or these numbers, need 64-bit indices."""
    return params.needs_wide(operator, [params.span(extents, steps), *extents, *counts])


def axes(needed: int, wide: bool, ahead: tuple[int, ...]) -> int:
    """Return the axes of the kernel: as many as one built ahead has, or as needed."""
    *narrow, most = ahead
    enough = [count for count in narrow if count >= needed and not wide]
    return min(enough, default=max(needed, most))
