"""Spatial axes along which one element meets another, and no kernel has anything to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuconv.rules.geometry import Ints

_BUILT_AHEAD = 4  # spatial axes up to which there are kernels that are built ahead
_SHAPES = ("x_shape", "y_shape", "w_shape", "numbered_shape")
_PER_AXIS = ("kernel_shape", "strides", "dilations", "pads_begin", "pads_end")


def left_out(geometry: Any, strides: dict[str, Ints]) -> tuple[Any, dict[str, Ints]]:
    """Return the same problem without its idle axes, where it has more axes than usual; one axis stays in any case."""
    rank = len(geometry.x_shape) - 2
    if rank <= _BUILT_AHEAD:
        return geometry, strides
    kept = [axis for axis in range(rank) if not _is_idle(geometry, axis)] or [0]

    def of_array(entries: Ints) -> Ints:
        return (*entries[:2], *(entries[2 + axis] for axis in kept))

    changed = {name: of_array(getattr(geometry, name)) for name in _SHAPES if hasattr(geometry, name)}
    for name in _PER_AXIS:
        if hasattr(geometry, name):
            entries = getattr(geometry, name)
            changed[name] = tuple(entries[axis] for axis in kept)
    return replace(geometry, **changed), {role: s if role == "b" else of_array(s) for role, s in strides.items()}


def _is_idle(geometry: Any, axis: int) -> bool:
    """Tell whether all arrays have one element along an axis, and its one tap does not lie in the padding."""
    extents = [getattr(geometry, name)[2 + axis] for name in _SHAPES if hasattr(geometry, name)]
    if hasattr(geometry, "kernel_shape"):
        extents += [geometry.kernel_shape[axis], 1 + geometry.pads_begin[axis]]
    return set(extents) == {1}
