"""The images of one run: the axis that every value has them along, and nodes that are computed image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto

from gpuconv.onnx import operators
from gpuconv.onnx.batch import axes
from gpuconv.onnx.batch.axes import LOST, Axis, Node, Way
from gpuconv.onnx.operators.form import namespace


@dataclass(frozen=True, slots=True)
class Images:
    """How many images there are, and which axis of a graph's values is theirs, by name.

    Attributes
    ----------
    count : int
    axes : dict of str to int
        Without values that do not depend on the batch; LOST for those that have no such axis.
    tell : callable
        Hears of every node in which images meet.
    """

    count: int
    axes: dict[str, int]
    tell: Callable[[NodeProto], None] = field(repr=False)

    def way(self, node: NodeProto, opset: int, inputs: Sequence[Any], linked: Mapping[str, Any]) -> Way:
        """Return how a node is computed."""
        of_inputs = [self.axes.get(name) for name in node.input]
        if all(axis is None for axis in of_inputs):
            return axes.FREE
        if node.domain not in ("", "com.microsoft", "gpuconv"):
            return axes.MEETS
        seen = Node({**_attributes(node, opset), **linked}, opset, inputs, of_inputs, self.count)
        return axes.way(node.op_type, seen)

    def note(self, names: Iterable[str], outputs: Sequence[Any], way: Way) -> None:
        """Remember the axes of a node's outputs."""
        for number, (name, value) in enumerate(zip(names, outputs, strict=False)):
            is_array = hasattr(value, "ndim")
            self.set(name, way.made(value, number) if is_array else None if way is axes.FREE else LOST)

    def set(self, name: str, axis: Axis) -> None:
        """Remember a value's axis, or that it has none; names may come again in loops."""
        self.axes.pop(name, None)
        if axis is not None:
            self.axes[name] = axis

    def inside(self, given: Mapping[str, Axis]) -> Images:
        """Return the images of a graph inside, whose values have these axes at first."""
        return Images(self.count, {name: axis for name, axis in given.items() if axis is not None}, self.tell)

    def apart(
        self, names: Sequence[str], values: Mapping[str, Any], way: Way, compute: Callable[[dict[str, Any]], Any]
    ) -> list[Any]:
        """Compute a node image by image, from C-contiguous copies, and put the outputs together."""
        cuts = {name: axis for name, axis in zip(names, way.cuts or (), strict=False) if axis is not None}
        parts = [
            compute({name: _part(values[name], axis, image, self.count) for name, axis in cuts.items()})
            for image in range(self.count)
        ]
        if self.count == 1:
            return list(parts[0])
        return [_together(several, way.made(several[0], at)) for at, several in enumerate(zip(*parts, strict=True))]


def of_inputs(values: Mapping[str, Any], tell: Callable[[NodeProto], None]) -> Images | None:
    """Return the images of a model's inputs: axis 0 of all that have the first one's extent; None for no images."""
    extents = {name: value.shape[0] for name, value in values.items() if getattr(value, "ndim", 0) > 0}
    count = next(iter(extents.values()), 0)
    if not count:
        return None
    return Images(count, {name: 0 for name, extent in extents.items() if extent == count}, tell)


def _attributes(node: NodeProto, opset: int) -> Mapping[str, Any]:
    """Return a node's attributes with their defaults."""
    if node.domain in ("", "com.microsoft"):
        return operators.form_of(node, opset).attributes
    return operators.own(node)[1].attributes if node.op_type in operators.TABLE else {}


def _part(value: Any, axis: int, image: int, count: int) -> Any:
    rows = value.shape[axis] // count
    part = value[(*(slice(None),) * axis, slice(image * rows, (image + 1) * rows))]
    return namespace(part).ascontiguousarray(part)


def _together(parts: Sequence[Any], axis: Axis) -> Any:
    if parts[0] is None or axis is None or axis == LOST:
        return parts[0]
    return namespace(parts[0]).concatenate(parts, axis=axis)
