"""Plans of MaxUnpool, and of looking for Indices out of range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan import Launch, Limits, Plan, Space, kept, strided
from gpuconv.cuda.plan.strided import array_fields, collapsed, filled
from gpuconv.cuda.pool.problem import AHEAD, WIDTHS, used
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints
from gpuconv.rules.gradients import MaxUnpoolGeometry

_THREADS = 256
_BLOCKS_PER_SM = 4
_CHECKED_AXES = 6  # of Indices that are not one run
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}  # by bytes


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
    fields = {
        "numbered": prod(g.numbered_shape),
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
    spaces = kept(Space("workspace", "claims of places", size))
    return Plan(operator, launches, (reason,), spaces, kernel=kernel.name)


def for_check(limit: int, shape: Ints, strides: Ints, limits: Limits) -> Plan:
    """Plan the search for the first of Indices (in row-major order) that is not from -1 to below a limit.

    It leaves the number of elements from that one to the last, or 0, in a result of one element.
    """
    operator = "check_indices"
    if 0 in shape:
        return Plan(operator, (_clear("y", 2),), ("there is nothing to look at",))
    extents, steps = collapsed(shape, strides)
    rank = 1 if len(extents) <= 1 else max(_CHECKED_AXES, len(extents))
    kernel = _CHECK.over("", rank)
    fields = {
        "elements": prod(shape),
        "limit": limit,
        "extent": filled(extents, rank, 1),
        "stride": filled(steps, rank, 0),
    }
    blocks = min(-(-prod(shape) // _THREADS), _BLOCKS_PER_SM * limits.multiprocessors)
    launch = Launch(kernel, (blocks, 1, 1), 0, fields, {"indices": "indices", "found": "y"})
    return Plan(operator, (_clear("y", 2), launch), (f"from -1 to below {limit}",))


def _clear(role: str, words: int) -> Launch:
    blocks = max(1, min(-(-words // (4 * _THREADS)), 2**16))
    return Launch(_CLEAR.over("", 1), (blocks, 1, 1), 0, {"count": words}, {"words": role})


# ---------------------------------------------------------------- variants


_CLEAR = Kernel("pool/indices.cu", "clear", "ClearParams", _THREADS)
_CHECK = Kernel("pool/indices.cu", "check_indices", "CheckIndicesParams<{rank}>", _THREADS)
_CLAIM = Kernel("pool/unpool.cu", "max_unpool_claim", "MaxUnpoolParams<{index}, {rank}>", _THREADS)
_UNPOOL = replace(_CLAIM, function="max_unpool")


def _unpool_variant(itemsize: int, wide: bool, rank: int) -> Variant:
    """Return the kernel for elements of so many bytes, which it only moves."""
    return _UNPOOL.over(f"{8 * itemsize}bit", rank, types=(_BITS[itemsize],), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled when first needed."""
    yield _CLEAR.over("", 1)
    yield _CHECK.over("", 1)
    yield _CHECK.over("", _CHECKED_AXES)
    for wide, rank in WIDTHS:
        yield _CLAIM.over("", rank, wide=wide)
        for itemsize in _BITS:
            yield _unpool_variant(itemsize, wide, rank)
