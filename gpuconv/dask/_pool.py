"""MaxPool and AveragePool of dask arrays: one task per block of the result.

Each task pools the block's window, halo included, with pads adjusted to the block. Indices are converted from positions
in the window to positions in the whole array.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.base import tokenize

from gpuconv._arrays import plain
from gpuconv.dask import _checks, _spans, _tasks
from gpuconv.dask._graph import Block, Graph
from gpuconv.dask._spans import Span
from gpuconv.dask._tasks import Window
from gpuconv.rules import dtypes
from gpuconv.rules import geometry as geometries
from gpuconv.rules import layout as layouts
from gpuconv.rules.geometry import AveragePoolGeometry, MaxPoolGeometry, Windows
from gpuconv.rules.integers import flag


def lazy(x: Array, layout: str, return_indices: bool, attributes: dict[str, Any]) -> Any:
    """Return MaxPool, or the tuple of MaxPool and its Indices, as dask arrays."""
    _checks.arrays("max_pool", x, {})
    return_indices = flag("max_pool", "return_indices", return_indices)
    geometry = geometries.max_pool(x.shape, layout=layout, **attributes)
    dtypes.check("max_pool", x=x)
    token = tokenize(x.name, geometry, layout, return_indices)
    task = partial(_task, geometry, layout, return_indices)
    result = Graph(f"max_pool-{token}", layout).array(x, _axes(geometry, layout, x), task, {})
    if not return_indices:
        return result
    return tuple(
        result.map_blocks(itemgetter(entry), name=f"{prefix}-{token}", dtype=dtype, meta=plain(x._meta).astype(dtype))
        for entry, prefix, dtype in ((0, "max_pool-values", x.dtype), (1, "max_pool-indices", np.dtype(np.int64)))
    )


def lazy_averages(x: Array, layout: str, attributes: dict[str, Any]) -> Any:
    """Return AveragePool as a dask array."""
    _checks.arrays("average_pool", x, {})
    geometry = geometries.average_pool(x.shape, layout=layout, **attributes)
    dtypes.check("average_pool", x=x)
    token = tokenize(x.name, geometry, layout)
    task = partial(_task_of_averages, geometry, layout)
    return Graph(f"average_pool-{token}", layout).array(x, _axes(geometry, layout, x), task, {})


def _axes(geometry: Windows, layout: str, x: Array) -> list[list[Span]]:
    chunks = layouts.channels_second(layout, x.chunks)
    spatial = [_spans.spatial(geometry, axis, sizes) for axis, sizes in enumerate(chunks[2:])]
    return [*map(_spans.alike, chunks[:2]), *spatial]


def _attributes(geometry: Windows, layout: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return the attributes of pooling for one block; its pads are those of its spans."""
    return {
        "dilations": geometry.dilations,
        "kernel_shape": geometry.kernel_shape,
        "layout": layout,
        "pads": [*(span.before for span in spans), *(span.after for span in spans)],
        "strides": geometry.strides,
    }


def _task_of_averages(geometry: AveragePoolGeometry, layout: str, block: Block, window: Window) -> Any:
    spans, ceil_mode = list(block[2:]), 0
    if geometry.count_include_pad and 0 not in geometry.y_shape:
        spans = [_spans.cropped(geometry, axis, span) for axis, span in enumerate(spans)]
        ceil_mode = int(spans != list(block[2:]))
    more = {"ceil_mode": ceil_mode, "count_include_pad": geometry.count_include_pad}
    return partial(_tasks.pool, "average_pool", window, _attributes(geometry, layout, spans) | more)


def _task(geometry: MaxPoolGeometry, layout: str, return_indices: bool, block: Block, window: Window) -> Any:
    attributes = _attributes(geometry, layout, block[2:])
    if not return_indices:
        return partial(_tasks.pool, "max_pool", window, attributes)
    origin = tuple(span.low for span in block)
    steps = _tasks.steps_of(geometry)
    return partial(_tasks.pool_with_indices, window, attributes, origin, steps)
