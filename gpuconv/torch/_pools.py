"""Pooling and its gradients as operators of PyTorch, at every spatial rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.torch._arguments import windows
from gpuconv.torch._registration import empty, extent, operator, over_batch

_MAX = "SymInt[] kernel, SymInt[] strides, SymInt[] pads, SymInt[] dilations, bool ceil_mode, bool onnx_indices"
_AVERAGE = "SymInt[] kernel, SymInt[] strides, SymInt[] pads, bool ceil_mode, bool count_include_pad"
_UNPOOL = "SymInt[] extents, SymInt[] kernel, SymInt[] strides, SymInt[] pads"


def _shape(x: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool) -> list[Any]:
    axes = len(kernel)
    ends = zip(pads[:axes], pads[axes:], strict=True)
    rows = zip(x.shape[2:], kernel, strides, ends, dilations, strict=True)
    return [*x.shape[:2], *(extent("pool", windows(n, k, s, both, d, ceil_mode)) for n, k, s, both, d in rows)]


def _maxima(kernel: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, onnx_indices: bool) -> Any:
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil_mode": int(ceil_mode),
        "indices_in": "tensor" if onnx_indices else "plane",
    }


def _averages(kernel: Any, strides: Any, pads: Any, ceil_mode: bool, count_include_pad: bool) -> Any:
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "ceil_mode": int(ceil_mode),
        "count_include_pad": int(count_include_pad),
    }


def _max_results(x: Any, *attributes: Any) -> tuple[Any, Any]:
    shape = _shape(x, *attributes[:-1])
    return empty(x, shape), empty(x, shape, torch.int64)


def _unpool(y: Any, indices: Any, extents: Any, kernel: Any, strides: Any, pads: Any, out: Any) -> None:
    """Compute MaxUnpool; on the CPU, refuse indices outside of the plane first, as PyTorch does."""
    plane = out[0, 0].size if 0 not in out.shape else 0
    if isinstance(indices, np.ndarray) and indices.size and plane:
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= plane:
            raise ArgumentError(f"max_unpool: indices must be from 0 to {plane - 1}, not {low} to {high}")
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    gpuconv.max_unpool(y, indices, out.shape[2:], **attributes, check_indices=False, indices_in="plane", out=out)


max_pool = operator(
    "max_pool",
    f"(Tensor x, {_MAX}) -> (Tensor, Tensor)",
    _max_results,
    lambda x, *attributes: gpuconv.max_pool(x, **_maxima(*attributes[:-1]), return_indices=True, out=attributes[-1]),
)
max_pool_grad = operator(
    "max_pool_grad",
    f"(Tensor dy, Tensor indices, SymInt[] x_shape, {_MAX}) -> Tensor",
    lambda dy, indices, x_shape, *attributes: empty(dy, x_shape),
    lambda dy, indices, x_shape, *attributes: gpuconv.max_pool_grad(
        dy, indices, x_shape, **_maxima(*attributes[:-1]), check_indices=False, out=attributes[-1]
    ),
)
average_pool = operator(
    "average_pool",
    f"(Tensor x, {_AVERAGE}) -> Tensor",
    lambda x, kernel, strides, pads, ceil_mode, count: empty(
        x, _shape(x, kernel, strides, pads, [1] * len(kernel), ceil_mode)
    ),
    lambda x, *attributes: gpuconv.average_pool(x, **_averages(*attributes[:-1]), out=attributes[-1]),
)
average_pool_grad = operator(
    "average_pool_grad",
    f"(Tensor dy, SymInt[] x_shape, {_AVERAGE}) -> Tensor",
    lambda dy, x_shape, *attributes: empty(dy, x_shape),
    lambda dy, x_shape, *attributes: gpuconv.average_pool_grad(
        dy, x_shape, **_averages(*attributes[:-1]), out=attributes[-1]
    ),
)
max_unpool = operator(
    "max_unpool",
    f"(Tensor y, Tensor indices, {_UNPOOL}) -> Tensor",
    lambda y, indices, extents, *attributes: empty(y, [*y.shape[:2], *extents]),
    _unpool,
)


def _at(values: Any, indices: Any, onnx_indices: bool) -> Any:
    """Return the elements at Indices: what the gradients of MaxUnpool and of MaxPool's gradient are."""
    first = 0 if onnx_indices else 2
    return values.flatten(first).gather(min(first, 2), indices.flatten(first)).view(indices.shape)


def _max_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])
    ctx.shape, ctx.attributes = inputs[0].shape, inputs[1:]


def _max_backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
    dx = max_pool_grad(dy, ctx.saved_tensors[0], ctx.shape, *ctx.attributes)
    return dx, *(None for _ in ctx.attributes)


def _max_grad_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.onnx_indices, ctx.others = inputs[-1], len(inputs) - 1


def _max_grad_backward(ctx: Any, g: Any) -> tuple[Any, ...]:
    return _at(g, ctx.saved_tensors[0], ctx.onnx_indices), *(None for _ in range(ctx.others))


def _average_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape, ctx.attributes = inputs[0].shape, inputs[1:]


def _average_backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
    return average_pool_grad(dy, ctx.shape, *ctx.attributes), *(None for _ in ctx.attributes)


def _average_grad_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.attributes = inputs[2:]


def _average_grad_backward(ctx: Any, g: Any) -> tuple[Any, ...]:
    return average_pool(g, *ctx.attributes), None, *(None for _ in ctx.attributes)


def _unpool_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def _unpool_backward(ctx: Any, g: Any) -> tuple[Any, ...]:
    return _at(g, ctx.saved_tensors[0], False), None, None, None, None, None


max_pool.register_autograd(_max_backward, setup_context=_max_context)
max_pool_grad.register_autograd(_max_grad_backward, setup_context=_max_grad_context)
average_pool.register_autograd(_average_backward, setup_context=_average_context)
average_pool_grad.register_autograd(_average_grad_backward, setup_context=_average_grad_context)
max_unpool.register_autograd(_unpool_backward, setup_context=_unpool_context)
over_batch(max_pool, 1, unless_last=True)  # ONNX's Indices count through the whole batch
over_batch(max_pool_grad, 2, shape_at=2, unless_last=True)
over_batch(average_pool, 1)
over_batch(average_pool_grad, 1, shape_at=1)
over_batch(max_unpool, 2)
