"""Variants of a MaxPool problem with other extents or strides on several axes at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuconv.cuda.pool.problem import PoolView

_AXES = ("image", "channel", "depth", "height", "width")
_FIELDS = {
    "x_extent": ("extent", _AXES[2:]),
    "y_extent": ("windows", _AXES[2:]),
    "stride": ("stride", _AXES[2:]),
    "x_strides": ("x", _AXES),
    "y_strides": ("y", _AXES),
    "indices_strides": ("indices", _AXES),
    "images": ("extent", _AXES[:1]),
    "channels": ("extent", _AXES[1:2]),
}


def changed(view: PoolView, **more: tuple[int, ...]) -> PoolView:
    """Return the view with these extents of x and y, strides along axes, or array strides from the batch axis on."""
    found: Any = {name: getattr(view, name) for name in _AXES}
    for what, values in more.items():
        field, names = _FIELDS[what]
        for name, value in zip(names, values, strict=False):
            found[name] = replace(found[name], **{field: value})
    return replace(view, **found)
