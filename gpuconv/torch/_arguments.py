"""PyTorch's arguments of convolution and pooling as gpuconv's: one entry per spatial axis, and pads for both ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuconv._errors import ArgumentError

Sizes = int | Sequence[int]


def per_axis(name: str, argument: str, value: Any, axes: int) -> list[int]:
    """Return an argument with one entry per spatial axis; an int, or a list of one, applies to every axis."""
    entries = [value] if isinstance(value, int) else list(value)
    if len(entries) == 1:
        entries *= axes
    if len(entries) != axes:
        raise ArgumentError(f"{name}: {argument} must be an int or have {axes} entries, not {len(entries)}")
    return entries


def conv_pads(
    name: str, padding: Sizes | str, kernel: Sequence[int], stride: list[int], dilation: list[int]
) -> list[int]:
    """Return pads, all beginnings before all ends, for PyTorch's ``padding`` of a convolution.

    "same" pads ``dilation * (kernel - 1)`` elements in total, the odd one at the end, and needs a stride of 1.
    """
    axes = len(stride)
    if isinstance(padding, str):
        if padding == "valid":
            return [0] * (2 * axes)
        if padding != "same":
            raise ArgumentError(f'{name}: padding must be "same", "valid", an int or {axes} ints, not {padding!r}')
        if any(step != 1 for step in stride):
            raise ArgumentError(f'{name}: padding="same" needs a stride of 1, not {stride}')
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
    return per_axis(name, "padding", padding, axes) * 2


def pool_pads(name: str, padding: Sizes, kernel: list[int], dilation: list[int] | None = None) -> list[int]:
    """Return pads of a pool for both ends; as in PyTorch, at most half of the dilated kernel."""
    pads = per_axis(name, "padding", padding, len(kernel))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation or [1] * len(kernel), strict=True)]
    if any(pad < 0 or 2 * pad > extent for pad, extent in zip(pads, extents, strict=True)):
        raise ArgumentError(f"{name}: padding must be at most half of the dilated kernel {extents}, not {pads}")
    return pads * 2


def windows(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool) -> int:
    """Return the number of windows along an axis; with ``ceil_mode`` the last one must start before the end padding."""
    room = size + sum(pads) - (kernel - 1) * dilation - 1
    if not ceil_mode:
        return room // stride + 1
    number = -(-room // stride) + 1
    return number - 1 if (number - 1) * stride >= size + pads[0] else number


def covering_pads(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> tuple[int, int]:
    """Return the pads of a convolution that has the windows of a pool, also those that ``ceil_mode`` adds."""
    number = windows(size, kernel, stride, (pad, pad), 1, ceil_mode)
    return pad, max(pad, (number - 1) * stride + kernel - size - pad)


def unpool_extents(
    name: str, given: Sequence[int], kernel: list[int], stride: list[int], pads: list[int], size: Sequence[int] | None
) -> list[int]:
    """Return the spatial extents of a MaxUnpool: those asked for, less than a stride from what the windows span."""
    axes = len(kernel)
    spans = [s * (q - 1) + k - 2 * p for q, k, s, p in zip(given, kernel, stride, pads[:axes], strict=True)]
    if size is None:
        return spans
    extents = list(size)[-axes:] if len(size) == axes + 2 else list(size)
    if len(extents) != axes:
        raise ArgumentError(f"{name}: output_size must have {axes} or {axes + 2} entries, not {len(size)}")
    if any(not span - s < extent < span + s for extent, span, s in zip(extents, spans, stride, strict=True)):
        raise ArgumentError(f"{name}: output_size must be less than a stride {stride} from {spans}, not {extents}")
    return extents
