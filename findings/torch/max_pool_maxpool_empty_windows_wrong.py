"""PyTorch 2.13.0+cpu cpu: MaxPool: wrong (MaxPool, empty windows)

Rule (disputed): A window with no element: the dtype's lowest finite value (0 for uint8, -128 for int8), index -1.

Result: output 0[0, 0, 0] is -inf, expected -3.4028234663852886e+38 (2 of 2 elements differ)

Discussed at https://github.com/onnx/onnx/issues/1922, https://github.com/webmachinelearning/webnn/issues/935.

6 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_1d_a_dilated_window_around_the_whole_input_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], dilations=[4], kernel_shape=[2], pads=[1, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0]).astype('float32').reshape((1, 2, 3)),
]
EXPECTED = [
    np.array([-3.4028234663852886e+38, -3.4028234663852886e+38]).astype('float32').reshape((1, 2, 1)),
    np.array([-1, -1]).astype('int64').reshape((1, 2, 1)),
]
BOUNDS = [
    np.array([0.0, 0.0]).astype('float64').reshape((1, 2, 1)),
    np.array([0.0, 0.0]).astype('float64').reshape((1, 2, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 3]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
import onnx
from onnx import helper, numpy_helper


class Inexpressible(Exception):
    """The target has no call for this; the message says what is missing."""


class Crashed(Exception):
    """The target runs in a process of its own, which died."""


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

import math
from collections.abc import Sequence
from typing import Any
import ml_dtypes
import numpy as np
import torch
from torch.nn import functional


def version(option: str) -> str:
    """Name PyTorch's version and the device."""
    return f"PyTorch {torch.__version__} {option or 'cpu'}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Call the function that the model's node stands for."""
    node = read(model, inputs)
    node.need(1 <= node.rank <= 3, f"{node.rank} spatial axes")
    operands = [None if array is None else _tensor(array).to(option or "cpu") for array in node.operands]
    return [_array(output) for output in _CALLS[node.op](node, *operands)]


def _tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _array(output: Any) -> Any:
    output = output.detach().cpu()
    if output.dtype == torch.bfloat16:
        return output.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return output.numpy()


def _function(name: str, node: Node) -> Any:
    return getattr(functional, f"{name}{node.rank}d")


def _conv(node: Node, x: Any, w: Any, b: Any = None) -> list[Any]:
    same = node.auto_pad == "SAME_UPPER" and set(node.strides) == {1}
    padding = "same" if same else node.alike()
    return [_function("conv", node)(x, w, b, node.strides, padding, node.dilations, node.group)]


def _conv_transpose(node: Node, x: Any, w: Any, b: Any = None) -> list[Any]:
    node.need("output_shape" not in node.attributes, "output_shape")
    more = node.attributes.get("output_padding", [0] * node.rank)
    settings = (node.strides, node.alike(), list(more), node.group, node.dilations)
    return [_function("conv_transpose", node)(x, w, b, *settings)]


def _offsets(x: Any) -> Any:
    """Return what the indices within a plane lack: where each plane begins."""
    planes = torch.arange(math.prod(x.shape[:2]), device=x.device) * math.prod(x.shape[2:])
    return planes.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _max_pool(node: Node, x: Any) -> list[Any]:
    node.need(not node.attributes.get("storage_order"), "storage_order 1")
    ceil = bool(node.attributes.get("ceil_mode"))
    settings = (node.kernel, node.strides, node.alike(), node.dilations, ceil)
    if node.outputs == 1:
        return [_function("max_pool", node)(x, *settings)]
    y, places = _function("max_pool", node)(x, *settings, return_indices=True)
    return [y, places + _offsets(x)]


def _average_pool(node: Node, x: Any) -> list[Any]:
    node.need(set(node.dilations) == {1}, "dilations")
    ceil, counted = (bool(node.attributes.get(name)) for name in ("ceil_mode", "count_include_pad"))
    return [_function("avg_pool", node)(x, node.kernel, node.strides, node.alike(), ceil, counted)]


def _max_unpool(node: Node, x: Any, indices: Any, shape: Any = None) -> list[Any]:
    size = None if shape is None else shape.tolist()
    plain = [
        s * (q - 1) + k - 2 * p for s, q, k, p in zip(node.strides, x.shape[2:], node.kernel, node.alike(), strict=True)
    ]
    places = indices - _offsets(torch.empty(*x.shape[:2], *plain, device="meta")).to(x.device)
    return [_function("max_unpool", node)(x, places, node.kernel, node.strides, node.alike(), size)]


_CALLS: dict[str, Any] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "MaxUnpool": _max_unpool,
}

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
