"""Plans of MaxUnpool, and of the device-side check of its Indices.

MaxUnpool takes two passes: each element claims its output with an atomic maximum of its own number, then each output
takes the element that claimed it. So of duplicate Indices the last in row-major order wins, deterministically.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan import Launch, Limits, Plan, Space, nonempty, strided
from gpuconv.cuda.plan.strided import array_fields, filled
from gpuconv.cuda.pool.problem import AHEAD, WIDTHS, used
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints
from gpuconv.rules.gradients import MaxUnpoolGeometry
from gpuconv.rules.indices import IndexWindows

_THREADS = 256
_BLOCKS_PER_SM = 4
# bytes per element → unsigned type with which elements are moved
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}


def for_max_unpool(
    geometry: MaxUnpoolGeometry, dtype: str, x_strides: Ints, indices_strides: Ints, y_strides: Ints
) -> Plan:
    """Plan MaxUnpool for arrays with these strides in elements."""
    operator, g = "max_unpool", geometry
    if 0 in g.y_shape:
        return Plan.of_nothing(operator)
    of_x, of_indices = used(g.x_shape, x_strides), used(g.x_shape, indices_strides)
    of_y = used(g.y_shape, y_strides)
    elements, places = prod(g.x_shape), prod(g.y_shape)
    spans = (params.span(g.x_shape, of_x), params.span(g.x_shape, of_indices), params.span(g.y_shape, of_y))
    wide = params.needs_wide(operator, [elements, places, *spans])
    rank = strided.axes(len(g.x_shape) - 2, wide, AHEAD)
    last = g.y_shape[1] > 1 and all(
        abs(of_y[1]) < abs(step) for n, step in zip(g.y_shape[2:], of_y[2:], strict=True) if n > 1
    )
    windows = g.index_windows
    fields = {
        "numbered": windows.count,
        "plane_step": windows.plane if windows.in_planes else 0,
        "elements": elements,
        "places": places,
        **array_fields({"x": of_x, "indices": of_indices, "y": of_y}, rank),
        "channels": g.x_shape[1],
        "x_extent": filled(g.x_shape[2:], rank, 1),
        "y_extent": filled(g.y_shape[2:], rank, 1),
        "numbered_extent": filled(g.numbered_shape[2:], rank, 1),
        "channels_last": last,
    }
    size = places * (8 if wide else 4)
    roles = {"x": "x", "indices": "indices", "y": "y", "claims": "workspace"}
    kernel = _unpool_variant(dtypes.entry(dtype).itemsize, wide, rank)
    launches = (
        _clear("workspace", size // 4),
        *([Launch.of_threads(operator, _CLAIM.over("", rank, wide=wide), elements, fields, roles)] if elements else []),
        Launch.of_threads(operator, kernel, places, fields, roles),
    )
    reason = "every element claims its place, then every place takes the last one that has claimed it"
    spaces = nonempty(Space("workspace", "claims of places", size))
    return Plan(operator, launches, (reason,), spaces, kernel=kernel.name)


def for_check(windows: IndexWindows, strides: Ints, limits: Limits) -> Plan:
    """Plan the search for the first index, in row-major order, that no forward call can have returned.

    ``strides`` are those of Indices (N, C, Q1, …), in elements. The result, one element, is the number of elements from
    that index to the end, or 0 if there is none.
    """
    operator, shape = "check_indices", windows.shape
    if 0 in shape:
        return Plan(operator, (_clear("y", 2),), ("there is nothing to look at",))
    elements, of_indices = prod(shape), used(shape, strides)
    blocks = min(-(-elements // _THREADS), _BLOCKS_PER_SM * limits.multiprocessors)
    magnitudes = [*_magnitudes(windows), elements + blocks * _THREADS, params.span(shape, of_indices)]
    wide = params.needs_wide(operator, magnitudes)
    rank = strided.axes(len(shape) - 2, wide, AHEAD)
    kernel = _CHECK.over("", rank, wide=wide)
    fields = {
        "plane": windows.plane,
        "plane_step": 0 if windows.in_planes else windows.plane,
        "elements": elements,
        **array_fields({"indices": of_indices}, rank),
        "stride": filled(windows.strides, rank, 0),
        "pad": filled(windows.pads, rank, 0),
        "reach": filled(windows.reach, rank, 1),
        "channels": shape[1],
        "windows": filled(shape[2:], rank, 1),
        "extent": filled(windows.numbered[2:], rank, 1),
        "dilation": filled(windows.dilations, rank, 1),
        "column_major": windows.storage_order,
    }
    launch = Launch(kernel, (blocks, 1, 1), 0, fields, {"indices": "indices", "found": "y"})
    return Plan(operator, (_clear("y", 2), launch), ("each in its window, or -1",))


def _magnitudes(windows: IndexWindows) -> Iterator[int]:
    """Yield the values, other than numbers of elements, that the check computes."""
    yield windows.plane
    axes = zip(windows.shape[2:], windows.strides, windows.pads, windows.numbered[2:], strict=True)
    for count, stride, pad, extent in axes:
        yield from ((count - 1) * stride, extent + pad)


def _clear(role: str, words: int) -> Launch:
    """Return the launch that zeroes ``words`` 4-byte words of an array."""
    blocks = max(1, min(-(-words // (4 * _THREADS)), 2**16))
    return Launch(_CLEAR.over("", 1), (blocks, 1, 1), 0, {"count": words}, {"words": role})


# ---------------------------------------------------------------- variants


_CLEAR = Kernel("pool/indices.cu", "clear", "ClearParams", _THREADS)
_CHECK = Kernel("pool/indices.cu", "check_indices", "CheckIndicesParams<{index}, {rank}>", _THREADS)
_CLAIM = Kernel("pool/unpool.cu", "max_unpool_claim", "MaxUnpoolParams<{index}, {rank}>", _THREADS)
_UNPOOL = replace(_CLAIM, function="max_unpool")


def _unpool_variant(itemsize: int, wide: bool, rank: int) -> Variant:
    """Return the variant for elements of ``itemsize`` bytes, which are moved without interpretation."""
    return _UNPOOL.over(f"{8 * itemsize}bit", rank, types=(_BITS[itemsize],), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled on first use."""
    yield _CLEAR.over("", 1)
    for wide, rank in WIDTHS:
        yield _CHECK.over("", rank, wide=wide)
        yield _CLAIM.over("", rank, wide=wide)
        for itemsize in _BITS:
            yield _unpool_variant(itemsize, wide, rank)
