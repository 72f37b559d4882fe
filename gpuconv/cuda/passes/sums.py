"""Reductions: the final sum over split parts (``add_up.cu``), and sums per channel (``channel_sums.cu``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import Launch, Limits, Plan, Space, nonempty
from gpuconv.cuda.plan.strided import axes, collapsed, filled, needs_wide
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints
from gpuconv.rules.gradients import SumsGeometry

_THREADS = 256
_LANES = 32
_BLOCKS_PER_SM = 4
_USE = "sums of parts"
_MOST_BYTES = 64 * 2**20  # bytes of partial sums, if there is more than one part
# axes of the kernels that are built ahead; the last of each has 64-bit indices
_ADD_UP_AXES, _SUMS_AXES = (1, 3, 6), (3, 5)


def workspace_bytes(parts: int, elements: int, dtype: str) -> int:
    """Return the bytes of the partial sums of all parts."""
    return parts * elements * dtypes.sums(dtype).itemsize


def most_parts(elements: int, dtype: str) -> int:
    """Return the most parts that a sum of ``elements`` results may be split into, limited by the workspace."""
    return max(1, _MOST_BYTES // workspace_bytes(1, elements, dtype))


def plan(
    operator: str, launch: Launch, parts: int, shape: Ints, strides: Ints, dtype: str, reason: str, products: int = 1
) -> Plan:
    """Return the plan of a launch that leaves partial sums of ``parts`` parts, and of one that adds them in order.

    For complex results, ``products`` may be 4: real partial sums per element, combined by passes/add_up.cu.
    """
    launches = (launch, _add_up(operator, parts, shape, strides, dtype, products))
    sums_bytes = workspace_bytes(parts, prod(shape) * products, dtypes.entry(dtype).real if products > 1 else dtype)
    return Plan(
        operator, launches, (reason,), nonempty(Space("workspace", _USE, sums_bytes)), kernel=launch.variant.name
    )


def _add_up(operator: str, parts: int, shape: Ints, strides: Ints, dtype: str, products: int) -> Launch:
    """Return the launch that adds the parts in order and rounds once."""
    extents, steps = collapsed(shape, strides)
    elements = prod(shape)
    wide = needs_wide(operator, extents, steps, [parts * elements * products])
    rank = axes(len(extents), wide, _ADD_UP_AXES)
    kernel = add_up_variant(dtype, wide, rank, products)
    fields = {
        "parts": parts,
        "elements": elements,
        "extent": filled(extents, rank, 1),
        "y_stride": filled(steps, rank, 0),
    }
    return Launch.of_threads(operator, kernel, elements, fields, {"sums": "workspace", "y": "y"})


def for_channels(geometry: SumsGeometry, dtype: str, x_strides: Ints, y_strides: Ints, limits: Limits) -> Plan:
    """Plan the sum of each channel of x (N, C, D1, …, Dn) over all other axes: the gradient of a bias."""
    operator, channels = "bias_grad", geometry.y_shape[0]
    if channels == 0:
        return Plan.of_nothing(operator)
    if 0 in geometry.x_shape:  # nothing is read: the other extents and the strides may be arbitrary
        geometry, x_strides = SumsGeometry((0, channels, 1), geometry.y_shape), (0, 0, 0)
    extents, steps = collapsed((geometry.x_shape[0], *geometry.x_shape[2:]), (x_strides[0], *x_strides[2:]))
    elements = prod(extents)
    last = channels > 1 and elements > 1 and abs(x_strides[1]) < abs(steps[-1])
    wide = needs_wide(operator, [*extents, channels], [*steps, x_strides[1]], [elements])
    rank = axes(len(extents), wide, _SUMS_AXES)
    tiles = -(-channels // _LANES) if last else channels
    least = 8 * _THREADS // (_LANES if last else 1)  # least elements per part
    parts = max(1, min(-(-elements // least), -(-limits.multiprocessors * _BLOCKS_PER_SM // tiles)))
    of_part = -(-elements // parts)
    kernel = channel_sums_variant(dtype, wide, rank, last)
    fields = {
        "channels": channels,
        "elements": elements,
        "each": of_part,
        "x_channel": x_strides[1],
        "x_stride": filled(steps, rank, 0),
        "extent": filled(extents, rank, 1),
        "tiles": tiles,
    }
    launch = Launch.of_blocks(operator, kernel, tiles * parts, fields, {"x": "x", "sums": "workspace"})
    reason = f"{elements} elements of each of {channels} channels, in {parts} parts"
    return plan(operator, launch, parts, geometry.y_shape, y_strides, dtype, reason)


# ---------------------------------------------------------------- variants


_ADD_UP = Kernel("passes/add_up.cu", "add_up", "AddUpParams<{index}, {rank}>")
_ADD_UP_COMPLEX = replace(_ADD_UP, function="add_up_complex")
_CHANNEL_SUMS = Kernel("passes/channel_sums.cu", "channel_sums", "ChannelSumsParams<{index}, {rank}>")


def add_up_variant(dtype: str, wide: bool, rank: int, products: int = 1) -> Variant:
    """Return the variant that adds parts into a result with ``rank`` axes that cannot be merged."""
    if products == 1:
        return _ADD_UP.over(dtype, rank, types=types(dtype), wide=wide)
    entry = dtypes.entry(dtype)
    return _ADD_UP_COMPLEX.over(dtype, rank, types=(entry.cuda, dtypes.entry(entry.real).cuda), wide=wide)


def channel_sums_variant(dtype: str, wide: bool, rank: int, last: bool) -> Variant:
    """Return the variant that sums over ``rank`` axes; ``last`` if channels are contiguous."""
    return _CHANNEL_SUMS.over(dtype, rank, "last" * last, types=types(dtype), sizes=(last,), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled on first use."""
    for dtype in dtypes.CONV_DTYPES + dtypes.COMPLEX_DTYPES:
        of_parts = dtype in dtypes.COMPLEX_DTYPES
        for rank in _ADD_UP_AXES:
            wide = rank == _ADD_UP_AXES[-1]
            if of_parts and rank == _ADD_UP_AXES[1]:
                continue  # (filter, tap, channel) comes from large tiles, which do not compute complex results
            yield add_up_variant(dtype, wide, rank)
            if of_parts:
                yield add_up_variant(dtype, wide, rank, products=4)
        for wide, last in product((False, True), (False, True)):
            yield channel_sums_variant(dtype, wide, _SUMS_AXES[wide], last)
