"""Conv and ConvTranspose of dask arrays: one task per block of the result.

:func:`lazy` validates a call on the whole arrays and builds its graph. Each task calls gpuconv's function on one block,
with pads and group count adjusted to the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dask.array.core import Array
from dask.base import tokenize

from gpuconv._packed import PackedWeights
from gpuconv.dask import _checks, _spans, _tasks
from gpuconv.dask._graph import Block, Graph
from gpuconv.dask._spans import Chunks, Span
from gpuconv.dask._tasks import Window
from gpuconv.rules import activation, dtypes, invariance, precision
from gpuconv.rules import layout as layouts
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry
from gpuconv.rules.operators import OPERATORS

Geometry = ConvGeometry | ConvTransposeGeometry


def lazy(
    operator: str, x: Array, others: dict[str, Any], layout: str, settings: dict[str, Any], attributes: dict[str, Any]
) -> Array:
    """Return the result of Conv or ConvTranspose as a dask array.

    Parameters
    ----------
    operator : {"conv", "conv_transpose"}
    x : dask array
    others : dict of str to array or None
        w, b and residual.
    layout : {"NCHW", "NHWC"}
    settings : dict
        Passed on to the call for each block: activation, precision and invariant.
    attributes : dict
        Attributes that determine the geometry.
    """
    w = others["w"]
    packed = w if type(w) is PackedWeights else None
    arrays = _checks.arrays(operator, x, others if packed is None else {**others, "w": packed.array_for(operator)})
    parsed = activation.parse(operator, settings["activation"])
    residual = arrays.get("residual")
    whole_arrays = {name: array for name, array in arrays.items() if name != "residual"}
    shapes = [array.shape for array in whole_arrays.values()]
    geometry = OPERATORS[operator].geometry(x.shape, *shapes, layout=layout, **attributes)
    dtypes.check(operator, x=x, **arrays)
    if settings["precision"] is None:
        settings["precision"] = precision.CURRENT.get()
    precision.check(operator, settings["precision"])
    if settings["invariant"] is None:
        settings["invariant"] = invariance.CURRENT.get()
    invariance.check(operator, settings["invariant"])
    activation.check(operator, parsed, residual, layouts.as_given(layout, geometry.y_shape), x.dtype.name)

    text = None if parsed is None else parsed.text
    of_arrays = [(name, _token(array)) for name, array in arrays.items()]
    settings_key = settings["precision"], settings["invariant"]
    token = tokenize(x.name, of_arrays, packed is None, geometry, layout, *settings_key, text)
    if packed is not None:
        whole_arrays["w"] = _tasks.SharedWeights(operator, whole_arrays["w"], packed)
    task = partial(_task, operator, geometry, [*arrays], {**settings, "layout": layout})
    axes = _axes(geometry, layouts.channels_second(layout, x.chunks), cut_channels=packed is None)
    alongside = [] if residual is None else [residual]
    return Graph(f"{operator}-{token}", layout).array(x, axes, task, whole_arrays, alongside)


def _axes(geometry: Geometry, chunks: Sequence[Chunks], *, cut_channels: bool) -> list[list[Span]]:
    """Return the blocks of the result along each axis, in the order N, C, D1, ..."""
    return [
        _spans.alike(chunks[0]),
        _spans.channels(geometry, chunks[1] if cut_channels else [geometry.x_shape[1]]),
        *(_spans.spatial(geometry, axis, sizes) for axis, sizes in enumerate(chunks[2:])),
    ]


def _token(array: Any) -> Any:
    """Return what identifies an array in dask's task names; strides are added, because tokens ignore memory order."""
    return array.name if isinstance(array, Array) else (array, array.strides)


def _task(
    operator: str, geometry: Geometry, arrays: list[str], settings: dict[str, Any], block: Block, window: Window
) -> Any:
    """Return the callable that computes a block from the pieces of its window and the other arrays, named in order."""
    channels = block[1]
    output_channels, input_channels = slice(channels.start, channels.stop), slice(channels.low, channels.high)
    slices = {
        "w": output_channels if operator == "conv" else input_channels,
        "b": output_channels,
        "residual": slice(None),
    }
    attributes = {
        **settings,
        **_extents(geometry, block),
        "dilations": geometry.dilations,
        "group": geometry.group * (input_channels.stop - input_channels.start) // max(geometry.x_shape[1], 1)
        or geometry.group,
        "strides": geometry.strides,
    }
    return partial(_tasks.convolve, operator, window, {name: slices[name] for name in arrays}, attributes)


def _extents(geometry: Geometry, block: Block) -> dict[str, Any]:
    """Return the attributes with which the call for one block produces exactly that block's extents."""
    spans = block[2:]
    pads = [*(span.before for span in spans), *(span.after for span in spans)]
    if isinstance(geometry, ConvGeometry):
        return {"pads": pads}
    # no input contributes to the block, so it is bias only, of any size
    if any(span.low == span.high for span in spans):
        return {"output_shape": [span.stop - span.start for span in spans]}
    return {"pads": pads, "output_padding": [span.more for span in spans]}
