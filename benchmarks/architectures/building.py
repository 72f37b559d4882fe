"""A builder for ONNX graphs with seeded weights, by which the networks of this folder are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

OPSET = 18
_BLOCK = 1_000_003  # a prime, so that rows of a large matrix differ
_SPREAD = {"": 1.0, "Relu": 2.0, "Silu": 2.1, "HardSwish": 2.2, "Gelu": 2.3}  # weight variance times fan-in


def normal(generator: np.random.Generator, shape: Sequence[int], variance: float) -> Any:
    """Return normal numbers with this variance; large arrays repeat a block."""
    block = generator.standard_normal(min(int(np.prod(shape)), _BLOCK), np.float32)
    return np.resize(block * np.float32(np.sqrt(variance)), shape)


class Building:
    """An ONNX graph under construction.

    Parameters
    ----------
    name : str
        Name of the graph; also the seed of its weights.
    part : float
        Factor of all channel counts: 1 is the real network, less is a small one for tests.
    """

    def __init__(self, name: str, part: float = 1.0) -> None:
        self.name, self._part = name, part
        self._nodes: list[Any] = []
        self._weights: list[TensorProto] = []
        self._generator = np.random.default_rng(list(name.encode()))

    def width(self, channels: int) -> int:
        """Return a channel count scaled by ``part``, as a multiple of eight."""
        return channels if self._part == 1 else max(8, round(channels * self._part / 8) * 8)

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        return self.nodes(1, op_type, *inputs, **attributes)[0]

    def nodes(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with ``count`` outputs, and return their names."""
        outputs = [f"{op_type.lower()}{len(self._nodes)}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(op_type, inputs, outputs, **attributes))
        return outputs

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add an initializer, and return its name."""
        name = f"constant{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of int64 (axes, shapes, bounds), and return its name."""
        return self.constant(values, np.int64)

    def random(self, *shape: int, variance: float) -> Any:
        """Return normal numbers with this variance."""
        return normal(self._generator, shape, variance)

    def filters(self, shape: Sequence[int], activation: str) -> Any:
        """Return weights that preserve the variance of values through the layer and its activation."""
        return self.random(*shape, variance=_SPREAD[activation] / np.prod(shape[1:]))

    def bias(self, channels: int) -> str:
        """Add a bias of small random numbers, one per channel."""
        return self.constant(self.random(channels, variance=0.01))

    def conv(
        self,
        x: str,
        c_in: int,
        c_out: int,
        kernel: int | tuple[int, ...] = 1,
        *,
        stride: int | tuple[int, ...] = 1,
        group: int = 1,
        activation: str = "",
        **attributes: Any,
    ) -> str:
        """Add a 2-D Conv, by default padded to keep the extents, and its activation."""
        kernel, stride = (n if isinstance(n, tuple) else (n, n) for n in (kernel, stride))
        attributes.setdefault("pads", [n // 2 for n in kernel] * 2)
        w = self.constant(self.filters((c_out, c_in // group, *kernel), activation))
        y = self.node("Conv", x, w, self.bias(c_out), kernel_shape=kernel, strides=stride, group=group, **attributes)
        return self.activate(y, activation)

    def linear(self, x: str, c_in: int, c_out: int, activation: str = "") -> str:
        """Add a MatMul over the last axis, its bias and its activation."""
        w = self.constant(self.filters((c_out, c_in), activation).T)
        return self.activate(self.node("Add", self.bias(c_out), self.node("MatMul", x, w)), activation)

    def classified(self, x: str, c_in: int, classes: int = 1000) -> str:
        """Add global average pooling and a fully connected layer to ``classes`` outputs."""
        x = self.node("Flatten", self.node("GlobalAveragePool", x))
        w = self.constant(self.filters((classes, c_in), ""))
        return self.node("Gemm", x, w, self.bias(classes), transB=1)

    def activate(self, x: str, activation: str) -> str:
        """Add an activation as PyTorch's exporter writes it."""
        if activation == "Silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if activation == "Gelu":
            erf = self.node("Erf", self.node("Div", x, self.constant(2**0.5)))
            return self.node("Mul", self.node("Mul", x, self.node("Add", erf, self.constant(1))), self.constant(0.5))
        return self.node(activation, x) if activation else x

    def layer_norm(self, x: str, channels: int, epsilon: float = 1e-6) -> str:
        """Add LayerNormalization over the last axis."""
        scale = self.constant(1 + self.random(channels, variance=0.01))
        return self.node("LayerNormalization", x, scale, self.bias(channels), epsilon=epsilon)

    def squeezed(self, x: str, channels: int, squeezed: int, activation: str, gate: str) -> str:
        """Add squeeze-and-excite: each channel is scaled by a gate computed from all channels' means."""
        y = self.node("ReduceMean", x, self.integers(2, 3), keepdims=1)
        y = self.conv(y, channels, squeezed, activation=activation)
        attributes = {"alpha": 1 / 6} if gate == "HardSigmoid" else {}
        y = self.node("Add", self.conv(y, squeezed, channels), self.constant(2))  # most gates are nearly open
        return self.node("Mul", x, self.node(gate, y, **attributes))

    def model(
        self, inputs: dict[str, Sequence[int]], outputs: Sequence[str], indices: Sequence[str] = ()
    ) -> ModelProto:
        """Return the model with float32 ``outputs`` and int64 ``indices``; shapes are inferred."""
        types = {**dict.fromkeys(outputs, TensorProto.FLOAT), **dict.fromkeys(indices, TensorProto.INT64)}
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, dtype, None) for name, dtype in types.items()],
            self._weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
        return shape_inference.infer_shapes(model, data_prop=True)
