"""MaxPool of dask arrays: what every block needs, and its call."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.base import tokenize

from gpuconv.dask import _checks, _spans, _tasks
from gpuconv.dask._graph import Block, Graph
from gpuconv.dask._tasks import Window
from gpuconv.rules import dtypes
from gpuconv.rules import geometry as geometries
from gpuconv.rules import layout as layouts
from gpuconv.rules.geometry import MaxPoolGeometry


def lazy(x: Array, layout: str, return_indices: bool, attributes: dict[str, Any]) -> Any:
    """Return the maxima, or the maxima and their Indices, as dask arrays."""
    _checks.arrays("max_pool", x, {})
    geometry = geometries.max_pool(x.shape, layout=layout, **attributes)
    dtypes.check("max_pool", x=x)
    token = tokenize(x.name, geometry, layout, bool(return_indices))
    chunks = layouts.channels_second(layout, x.chunks)
    axes = [*map(_spans.alike, chunks[:2])]
    axes += [_spans.spatial(geometry, axis, sizes) for axis, sizes in enumerate(chunks[2:])]
    task = partial(_task, geometry, layout, return_indices)
    result = Graph(f"max_pool-{token}", layout).array(x, axes, task, {})
    if not return_indices:
        return result
    return tuple(
        result.map_blocks(itemgetter(entry), name=f"{prefix}-{token}", dtype=dtype, meta=x._meta.astype(dtype))
        for entry, prefix, dtype in ((0, "max_pool-values", x.dtype), (1, "max_pool-indices", np.dtype(np.int64)))
    )


def _task(geometry: MaxPoolGeometry, layout: str, return_indices: bool, block: Block, window: Window) -> Any:
    attributes = {
        "dilations": geometry.dilations,
        "kernel_shape": geometry.kernel_shape,
        "layout": layout,
        "pads": [*(span.before for span in block[2:]), *(span.after for span in block[2:])],
        "strides": geometry.strides,
    }
    if not return_indices:
        return partial(_tasks.pool, window, attributes)
    origin = tuple(span.low for span in block)
    steps = _tasks.steps_of(geometry.x_shape, geometry.storage_order)
    return partial(_tasks.pool_with_indices, window, attributes, origin, steps)
