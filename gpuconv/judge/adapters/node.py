"""A model of one node, read for targets that are called directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper, numpy_helper


class Inexpressible(Exception):
    """The target has no call for this; the message says what is missing."""


class Crashed(Exception):
    """The target runs in a process of its own, which died."""


class WrongKind(Exception):
    """The target returned something other than arrays of numbers; the message says what."""


@dataclass(frozen=True)
class Node:
    """The operator, its operands in order (None for one that is left out), and its attributes with their defaults."""

    op: str
    operands: list[Any]
    rank: int
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]
    ends: list[int]
    group: int
    auto_pad: str
    attributes: dict[str, Any]
    outputs: int

    def need(self, holds: bool, what: str) -> None:
        """Raise Inexpressible unless something holds."""
        if not holds:
            raise Inexpressible(f"cannot express {what}")

    def explicit(self) -> None:
        """Ask for padding that is given in numbers."""
        self.need(self.auto_pad in ("NOTSET", "VALID"), self.auto_pad)

    def alike(self) -> list[int]:
        """Return the padding, which must be the same at both ends."""
        self.explicit()
        self.need(self.begins == self.ends, "unequal pads")
        return self.begins


def read(model: onnx.ModelProto, inputs: Sequence[Any]) -> Node:
    """Read the node of a model, with the values of its inputs."""
    node = model.graph.node[0]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    fed = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    operands: list[Any] = [{**constants, **fed}.get(name) for name in node.input]
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    rank = operands[0].ndim - 2
    weights = operands[1].shape[2:] if node.op_type in ("Conv", "ConvTranspose") else ()
    auto_pad = given.get("auto_pad", b"").decode() or "NOTSET"
    pads = given.get("pads", [0] * 2 * rank) if auto_pad == "NOTSET" else [0] * 2 * rank
    return Node(
        node.op_type,
        operands,
        rank,
        list(given.get("kernel_shape", weights)),
        list(given.get("strides", [1] * rank)),
        list(given.get("dilations", [1] * rank)),
        list(pads[:rank]),
        list(pads[rank:]),
        given.get("group", 1),
        auto_pad,
        given,
        len(node.output),
    )
