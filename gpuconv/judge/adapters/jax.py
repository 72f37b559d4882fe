"""JAX, by direct calls of jax.lax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from gpuconv.judge.adapters.node import Node, read

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
