"""Conv and ConvTranspose of dask arrays: what every block needs, and its call."""

from __future__ import annotations

from functools import partial
from typing import Any

from dask.array.core import Array
from dask.base import tokenize

from gpuconv import _dtypes, _layout, _precision
from gpuconv._geometry import ConvGeometry, ConvTransposeGeometry
from gpuconv._operators import OPERATORS
from gpuconv._packed import PackedWeights
from gpuconv.dask import _checks, _spans, _tasks
from gpuconv.dask._graph import Block, Graph
from gpuconv.dask._tasks import Window

Geometry = ConvGeometry | ConvTransposeGeometry


def lazy(
    operator: str, x: Array, w: Any, b: Any, layout: str, precision: str | None, attributes: dict[str, Any]
) -> Array:
    """Return the result of an operator as a dask array."""
    packed = w if type(w) is PackedWeights else None
    given = {"w": w if packed is None else packed.array_for(operator), "b": b}
    wholes = _checks.arrays(operator, x, {name: array for name, array in given.items() if array is not None})
    shapes = [array.shape for array in wholes.values()]
    geometry = OPERATORS[operator].geometry(x.shape, *shapes, layout=layout, **attributes)
    _dtypes.check(operator, x=x, **wholes)
    precision = _precision.check(operator, _precision.CURRENT.get() if precision is None else precision)
    token = tokenize(x.name, *map(_token, wholes.values()), packed is None, geometry, layout, precision)
    if packed is not None:
        wholes["w"] = _tasks.SharedWeights(operator, wholes["w"], packed)
    chunks = _layout.channels_second(layout, x.chunks)
    axes = [_spans.alike(chunks[0]), _spans.channels(geometry, chunks[1], whole=packed is not None)]
    axes += [_spans.spatial(geometry, axis, sizes) for axis, sizes in enumerate(chunks[2:])]
    task = partial(_task, operator, geometry, {"layout": layout, "precision": precision})
    return Graph(f"{operator}-{token}", layout).array(x, axes, task, wholes)


def _token(array: Any) -> Any:
    """Return what dask tells arrays apart by: for it one in Fortran order is the same as another with its memory."""
    return array.name if isinstance(array, Array) else (array, array.strides)


def _task(operator: str, geometry: Geometry, settings: dict[str, Any], block: Block, window: Window) -> Any:
    channels = block[1]
    made, taken = slice(channels.start, channels.stop), slice(channels.low, channels.high)
    of_w = made if operator == "conv" else taken
    attributes = {
        **settings,
        **_extents(geometry, block),
        "dilations": geometry.dilations,
        "group": geometry.group * (taken.stop - taken.start) // max(geometry.x_shape[1], 1) or geometry.group,
        "strides": geometry.strides,
    }
    return partial(_tasks.convolve, operator, window, of_w, made, attributes)


def _extents(geometry: Geometry, block: Block) -> dict[str, Any]:
    """Return the attributes that give a block's own call as many outputs along each spatial axis as the block has."""
    spans = block[2:]
    pads = [*(span.before for span in spans), *(span.after for span in spans)]
    if isinstance(geometry, ConvGeometry):
        return {"pads": pads}
    if any(span.low == span.high for span in spans):  # nothing reaches the block: it is bias of any size
        return {"output_shape": [span.stop - span.start for span in spans]}
    return {"pads": pads, "output_padding": [span.more for span in spans]}
