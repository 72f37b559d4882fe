"""jax.lax 0.10.2: AveragePool: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 1] is 0.0, expected 2.7550648847397363e-40 (2 of 6 elements differ, by up to 9.62 times the bound)

Test test_average_pool_1d_sweep_19_bfloat16_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from ml_dtypes import bfloat16

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], dilations=[2], kernel_shape=[1], pads=[2, 2], strides=[3])
CONSTANTS = [
]
INPUTS = [
    np.array([-6.428484731059385e-40, 2.7550648847397363e-40, -4.5917748078995606e-40, -1.8367099231598242e-40, -4.5917748078995606e-40, -3.6734198463196485e-40]).astype(bfloat16).reshape((1, 2, 3)),
]
EXPECTED = [
    np.array([nan, 2.7550648847397363e-40, nan, nan, -4.5917748078995606e-40, nan]).astype(bfloat16).reshape((1, 2, 3)),
]
BOUNDS = [
    np.array([0.0, 4.69939945639962e-41, 0.0, 0.0, 4.771149222066327e-41, 0.0]).astype('float64').reshape((1, 2, 3)),
]
inputs = [
    helper.make_tensor_value_info("X", 16, [1, 2, 3]),
]
outputs = [
    helper.make_tensor_value_info("Y", 16, [None, None, None]),
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

from collections.abc import Sequence
from typing import Any
import jax
import numpy as np
from jax import lax


jax.config.update("jax_enable_x64", True)


def version(option: str) -> str:
    """Name JAX's version."""
    return f"jax.lax {jax.__version__}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Call the functions that the model's node stands for."""
    node = read(model, inputs)
    node.need(node.op in _CALLS, node.op)
    node.need(node.outputs == 1, "Indices")
    node.need(not node.attributes.get("ceil_mode"), "ceil_mode")
    operands = [None if array is None else jax.numpy.asarray(array) for array in node.operands]
    return [np.asarray(_CALLS[node.op](node, *operands))]


def _padding(node: Node) -> Any:
    named = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER"}
    return named.get(node.auto_pad) or list(zip(node.begins, node.ends, strict=True))


def _with(y: Any, b: Any) -> Any:
    return y if b is None else y + b.reshape(1, -1, *[1] * (y.ndim - 2))


def _conv(node: Node, x: Any, w: Any, b: Any = None) -> Any:
    settings = {"rhs_dilation": node.dilations, "feature_group_count": node.group}
    return _with(lax.conv_general_dilated(x, w, node.strides, _padding(node), **settings), b)


def _conv_transpose(node: Node, x: Any, w: Any, b: Any = None) -> Any:
    """The gradient of Conv, as JAX writes it: Conv with gaps in x and the kernel turned round."""
    node.explicit()
    node.need("output_shape" not in node.attributes, "output_shape")
    more = node.attributes.get("output_padding", [0] * node.rank)
    reach = [(k - 1) * d for k, d in zip(node.kernel, node.dilations, strict=True)]
    padding = [(r - p, r - q + o) for r, p, q, o in zip(reach, node.begins, node.ends, more, strict=True)]
    parts = w.reshape(node.group, -1, *w.shape[1:]).swapaxes(1, 2)
    turned = jax.numpy.flip(parts.reshape(-1, *parts.shape[2:]), range(2, w.ndim))
    settings = {"lhs_dilation": node.strides, "rhs_dilation": node.dilations, "feature_group_count": node.group}
    return _with(lax.conv_general_dilated(x, turned, [1] * node.rank, padding, **settings), b)


def _reduced(node: Node, x: Any, first: Any, function: Any, padding: Any) -> Any:
    window, strides, dilations = ((1, 1, *each) for each in (node.kernel, node.strides, node.dilations))
    if not isinstance(padding, str):
        padding = [(0, 0), (0, 0), *padding]
    return lax.reduce_window(x, first, function, window, strides, padding, window_dilation=dilations)


def _max_pool(node: Node, x: Any) -> Any:
    lowest = -np.inf if x.dtype.kind != "i" and x.dtype.kind != "u" else np.iinfo(x.dtype).min
    return _reduced(node, x, np.array(lowest).astype(x.dtype), lax.max, _padding(node))


def _average_pool(node: Node, x: Any) -> Any:
    zero = np.array(0).astype(x.dtype)
    sums = _reduced(node, x, zero, lax.add, _padding(node))
    if node.attributes.get("count_include_pad"):
        return sums / np.array(np.prod(node.kernel)).astype(x.dtype)
    return sums / _reduced(node, jax.numpy.ones_like(x), zero, lax.add, _padding(node))


_CALLS: dict[str, Any] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
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
