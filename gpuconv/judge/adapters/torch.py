"""PyTorch, by direct calls of torch.nn.functional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

from gpuconv.judge.adapters.node import Node, read


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
