"""Tracking of the batch axis during a batch-invariant run (``invariant="batch"``).

:class:`Images` maps each value to its batch axis as nodes run. Operators whose sums could depend on the batch size are
computed image by image. The rules per operator are in :mod:`gpuconv.onnx.batch.axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto

from gpuconv.onnx import operators
from gpuconv.onnx.batch import axes
from gpuconv.onnx.batch.axes import LOST, Axis, BatchPlan, Node
from gpuconv.onnx.operators.form import namespace


@dataclass(frozen=True, slots=True)
class Images:
    """The number of images in a run, and the batch axis of each value in one graph.

    Attributes
    ----------
    count : int
    axes : dict of str to int
        Batch axis by the value's name. Values independent of the batch are absent; LOST marks values that depend on it
        without being divisible into images along an axis.
    tell : callable
        Called with each node in which one image may influence another.
    """

    count: int
    axes: dict[str, int]
    tell: Callable[[NodeProto], None] = field(repr=False)

    def plan(self, node: NodeProto, opset: int, inputs: Sequence[Any], linked: Mapping[str, Any]) -> BatchPlan:
        """Return how to compute a node so that images stay independent: all at once, image by image, or not
        possible.
        """
        input_axes = [self.axes.get(name) for name in node.input]
        if all(axis is None for axis in input_axes):
            return axes.INDEPENDENT
        if node.domain not in ("", "com.microsoft", "gpuconv"):
            return axes.MIXES_IMAGES
        seen = Node({**_attributes(node, opset), **linked}, opset, inputs, input_axes, self.count)
        return axes.plan(node.op_type, seen)

    def record(self, names: Iterable[str], outputs: Sequence[Any], plan: BatchPlan) -> None:
        """Record the batch axes of a node's outputs."""
        for number, (name, value) in enumerate(zip(names, outputs, strict=False)):
            is_array = hasattr(value, "ndim")
            self.set(name, plan.output_axis(value, number) if is_array else None if plan is axes.INDEPENDENT else LOST)

    def set(self, name: str, axis: Axis) -> None:
        """Record a value's batch axis, or None for no dependence on the batch; loops record names repeatedly."""
        self.axes.pop(name, None)
        if axis is not None:
            self.axes[name] = axis

    def inside(self, given: Mapping[str, Axis]) -> Images:
        """Return the Images of a subgraph or function, with the batch axes that its values have at the start."""
        return Images(self.count, {name: axis for name, axis in given.items() if axis is not None}, self.tell)

    def compute_per_image(
        self, names: Sequence[str], values: Mapping[str, Any], plan: BatchPlan, compute: Callable[[dict[str, Any]], Any]
    ) -> list[Any]:
        """Compute a node once per image, on C-contiguous copies of the image's slices, and concatenate the outputs."""
        slice_axes = {name: axis for name, axis in zip(names, plan.slice_axes or (), strict=False) if axis is not None}
        parts = [
            compute({name: _image_slice(values[name], axis, image, self.count) for name, axis in slice_axes.items()})
            for image in range(self.count)
        ]
        if self.count == 1:
            return list(parts[0])
        return [
            _concatenated(several, plan.output_axis(several[0], at))
            for at, several in enumerate(zip(*parts, strict=True))
        ]


def images_of_inputs(values: Mapping[str, Any], tell: Callable[[NodeProto], None]) -> Images | None:
    """Return the Images of a model's inputs: axis 0 of each input whose extent there is that of the first input.

    Returns None if the first input with axes has no images.
    """
    extents = {name: value.shape[0] for name, value in values.items() if getattr(value, "ndim", 0) > 0}
    count = next(iter(extents.values()), 0)
    if not count:
        return None
    return Images(count, {name: 0 for name, extent in extents.items() if extent == count}, tell)


def _attributes(node: NodeProto, opset: int) -> Mapping[str, Any]:
    """Return a node's attributes, completed with their defaults."""
    if node.domain in ("", "com.microsoft"):
        return operators.form_of(node, opset).attributes
    return operators.own(node)[1].attributes if node.op_type in operators.TABLE else {}


def _image_slice(value: Any, axis: int, image: int, count: int) -> Any:
    """Return a C-contiguous copy of one image's slice along the batch axis."""
    rows = value.shape[axis] // count
    part = value[(*(slice(None),) * axis, slice(image * rows, (image + 1) * rows))]
    return namespace(part).ascontiguousarray(part)


def _concatenated(parts: Sequence[Any], axis: Axis) -> Any:
    """Concatenate the outputs of all images along the batch axis; without such an axis, return the first image's."""
    if parts[0] is None or axis is None or axis == LOST:
        return parts[0]
    return namespace(parts[0]).concatenate(parts, axis=axis)
