"""Axes of strided arrays as kernels take them: contiguous axes merged, leading axes added up to the kernel's rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.rules.geometry import Ints


def collapsed(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return (extents, strides) in row-major order, without axes of one element and with contiguous axes merged."""
    extents, (steps,) = collapsed_together(shape, strides)
    return extents, steps


def collapsed_together(shape: Sequence[int], *arrays: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return the merged extents of several arrays of one shape, and each one's strides; as :func:`collapsed`."""
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
    """Return ``entries`` padded in front to ``rank`` axes with ``entry``."""
    return [entry] * (rank - len(entries)) + list(entries)


def array_fields(arrays: Mapping[str, Ints], rank: int) -> dict[str, Any]:
    """Return the struct fields of arrays with these strides: batch, channel, spatial axes padded to ``rank``."""
    fields: dict[str, Any] = {}
    for name, (batch, channel, *spatial) in arrays.items():
        fields |= params.array_fields(name, (batch, channel, *filled(spatial, rank, 0)))
    return fields


def needs_wide(operator: str, extents: Sequence[int], steps: Sequence[int], counts: Sequence[int]) -> bool:
    """Return whether offsets in such axes, or these counts, need 64-bit indices."""
    return params.needs_wide(operator, [params.span(extents, steps), *extents, *counts])


def axes(needed: int, wide: bool, ahead: tuple[int, ...]) -> int:
    """Return the kernel's number of axes: the smallest that is built ahead and suffices, else ``needed``."""
    *narrow, most = ahead
    enough = [count for count in narrow if count >= needed and not wide]
    return min(enough, default=max(needed, most))
