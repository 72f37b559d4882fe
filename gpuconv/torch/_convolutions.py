"""Conv, ConvTranspose and their gradients as operators of PyTorch, at every spatial rank.

Each of these operators is linear in each of two tensors, so that every derivative is another one of them, and second
derivatives need nothing more. Gradients of complex tensors are taken with the conjugate, as everywhere in PyTorch.
"""

from __future__ import annotations

from typing import Any

import gpuconv
from gpuconv.torch._registration import autocast, empty, extent, one_by_one, operator, over_batch

_ATTRIBUTES = "SymInt[] strides, SymInt[] pads, SymInt[] dilations, SymInt group"
_TRANSPOSED = "SymInt[] strides, SymInt[] pads, SymInt[] dilations, SymInt[] output_padding, SymInt group"


def _named(attributes: tuple[Any, ...]) -> dict[str, Any]:
    """Return an operator's last arguments by gpuconv's names."""
    names: tuple[str, ...] = ("strides", "pads", "dilations", "group")
    if len(attributes) == 5:
        names = ("strides", "pads", "dilations", "output_padding", "group")
    return dict(zip(names, attributes, strict=True))


def _conv_shape(x: Any, w: Any, strides: Any, pads: Any, dilations: Any) -> list[Any]:
    axes = len(strides)
    ends = zip(pads[:axes], pads[axes:], strict=True)
    rows = zip(x.shape[2:], w.shape[2:], strides, ends, dilations, strict=True)
    extents = [extent("conv", (n + begin + end - d * (k - 1) - 1) // s + 1) for n, k, s, (begin, end), d in rows]
    return [x.shape[0], w.shape[0], *extents]


def _transposed_shape(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, more: Any, group: Any) -> list[Any]:
    axes = len(strides)
    ends = zip(pads[:axes], pads[axes:], strict=True)
    rows = zip(x.shape[2:], w.shape[2:], strides, ends, dilations, more, strict=True)
    extents = [
        extent("conv_transpose", s * (n - 1) + d * (k - 1) + 1 + o - begin - end)
        for n, k, s, (begin, end), d, o in rows
    ]
    return [x.shape[0], w.shape[1] * group, *extents]


conv = operator(
    "conv",
    f"(Tensor x, Tensor w, Tensor? b, {_ATTRIBUTES}) -> Tensor",
    lambda x, w, b, strides, pads, dilations, group: empty(x, _conv_shape(x, w, strides, pads, dilations)),
    lambda x, w, b, *attributes: gpuconv.conv(x, w, b, **_named(attributes[:-1]), out=attributes[-1]),
)
conv_input_grad = operator(
    "conv_input_grad",
    f"(Tensor dy, Tensor w, SymInt[] x_shape, {_ATTRIBUTES}) -> Tensor",
    lambda dy, w, x_shape, *attributes: empty(dy, x_shape),
    lambda dy, w, x_shape, *attributes: gpuconv.conv_input_grad(
        dy, w, x_shape, **_named(attributes[:-1]), out=attributes[-1]
    ),
)
conv_weight_grad = operator(
    "conv_weight_grad",
    f"(Tensor x, Tensor dy, SymInt[] w_shape, {_ATTRIBUTES}) -> Tensor",
    lambda x, dy, w_shape, *attributes: x.new_empty(w_shape),
    lambda x, dy, w_shape, *attributes: gpuconv.conv_weight_grad(
        x, dy, w_shape, **_named(attributes[:-1]), out=attributes[-1]
    ),
)
conv_bias_grad = operator(
    "conv_bias_grad",
    "(Tensor dy) -> Tensor",
    lambda dy: dy.new_empty((dy.shape[1],)),
    lambda dy, out: gpuconv.conv_bias_grad(dy, out=out),
)
conv_transpose = operator(
    "conv_transpose",
    f"(Tensor x, Tensor w, Tensor? b, {_TRANSPOSED}) -> Tensor",
    lambda x, w, b, *attributes: empty(x, _transposed_shape(x, w, *attributes)),
    lambda x, w, b, *attributes: gpuconv.conv_transpose(x, w, b, **_named(attributes[:-1]), out=attributes[-1]),
)
conv_transpose_input_grad = operator(
    "conv_transpose_input_grad",
    f"(Tensor dy, Tensor w, SymInt[] x_shape, {_TRANSPOSED}) -> Tensor",
    lambda dy, w, x_shape, *attributes: empty(dy, x_shape),
    lambda dy, w, x_shape, *attributes: gpuconv.conv_transpose_input_grad(
        dy, w, x_shape, **_named(attributes[:-1]), out=attributes[-1]
    ),
)
conv_transpose_weight_grad = operator(
    "conv_transpose_weight_grad",
    f"(Tensor x, Tensor dy, SymInt[] w_shape, {_TRANSPOSED}) -> Tensor",
    lambda x, dy, w_shape, *attributes: x.new_empty(w_shape),
    lambda x, dy, w_shape, *attributes: gpuconv.conv_transpose_weight_grad(
        x, dy, w_shape, **_named(attributes[:-1]), out=attributes[-1]
    ),
)


def _remember(tensors: tuple[int, int], attributes: int) -> Any:
    """Return what stores the two tensors that an operator is linear in, and its attributes from a place on."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*(inputs[place] for place in tensors))
        ctx.attributes = inputs[attributes:]

    return setup_context


def _forward_derivative(input_grad: Any, weight_grad: Any) -> Any:
    """Return the derivative of a convolution of x, w and b."""

    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        dx = input_grad(dy, w.conj(), x.shape, *ctx.attributes) if ctx.needs_input_grad[0] else None
        dw = weight_grad(x.conj(), dy, w.shape, *ctx.attributes) if ctx.needs_input_grad[1] else None
        db = conv_bias_grad(dy) if ctx.needs_input_grad[2] else None
        return dx, dw, db, *(None for _ in ctx.attributes)

    return backward


def _input_grad_derivative(forward: Any, weight_grad: Any) -> Any:
    """Return the derivative of an input gradient of dy and w."""

    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        dy, w = ctx.saved_tensors
        by_dy = forward(g, w.conj(), None, *ctx.attributes) if ctx.needs_input_grad[0] else None
        by_w = weight_grad(g, dy.conj(), w.shape, *ctx.attributes) if ctx.needs_input_grad[1] else None
        return by_dy, by_w, None, *(None for _ in ctx.attributes)

    return backward


def _weight_grad_derivative(forward: Any, input_grad: Any) -> Any:
    """Return the derivative of a weight gradient of x and dy."""

    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        x, dy = ctx.saved_tensors
        by_x = input_grad(dy.conj(), g, x.shape, *ctx.attributes) if ctx.needs_input_grad[0] else None
        by_dy = forward(x.conj(), g, None, *ctx.attributes) if ctx.needs_input_grad[1] else None
        return by_x, by_dy, None, *(None for _ in ctx.attributes)

    return backward


def _remember_shape(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape = inputs[0].shape


def _over_dy(ctx: Any, g: Any) -> Any:
    """Return the derivative of a bias gradient: every element of a channel has the channel's gradient."""
    return g.view(-1, *(1 for _ in ctx.shape[2:])).expand(ctx.shape)


for _forward, _by_x, _by_w in (
    (conv, conv_input_grad, conv_weight_grad),
    (conv_transpose, conv_transpose_input_grad, conv_transpose_weight_grad),
):
    _forward.register_autograd(_forward_derivative(_by_x, _by_w), setup_context=_remember((0, 1), 3))
    _by_x.register_autograd(_input_grad_derivative(_forward, _by_w), setup_context=_remember((0, 1), 3))
    _by_w.register_autograd(_weight_grad_derivative(_forward, _by_x), setup_context=_remember((0, 1), 3))
    autocast(_forward, 3)
    over_batch(_forward, 1)
    over_batch(_by_x, 1, shape_at=2)
    _by_w.register_vmap(one_by_one(_by_w))
conv_bias_grad.register_autograd(_over_dy, setup_context=_remember_shape)
conv_bias_grad.register_vmap(one_by_one(conv_bias_grad))
