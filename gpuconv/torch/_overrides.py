"""The operators of PyTorch that batch invariance replaces, with PyTorch's schemas, below autograd and autocast.

Anything that gpuconv has no dtype for, such as integers, whose sums have no order, goes to the previous kernel.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from gpuconv.torch import _convolutions, _pools, _products, _state, _tensors
from gpuconv.torch._arguments import covering_pads

DEVICES = ("CPU", "CUDA")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_lock = threading.Lock()
_libraries: list[Any] = []


def install() -> None:
    """Register the kernels; from the second call on, do nothing."""
    with _lock:
        if _libraries:
            return
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*[Oo]verrid", UserWarning)  # PyTorch's, of kernels that are replaced
            for name, function in KERNELS.items():
                for device in DEVICES:
                    with suppress(RuntimeError):  # builds of PyTorch without CUDA lack some of its kernels
                        previous = torch.library.get_kernel(f"aten::{name}", device)
                        library.impl(name, _kernel(function, previous), device, with_keyset=True)
        _libraries.append(library)


def _kernel(function: Callable[..., Any], previous: Any) -> Callable[..., Any]:
    """Return a kernel that calls ``function`` if batch invariance is on, and the previous kernel otherwise."""

    def kernel(keys: Any, first: Any, *arguments: Any, **named: Any) -> Any:
        if first.dtype not in DTYPES or not _state.is_on():
            return previous.call_boxed(keys, first, *arguments, **named)
        result = function(first, *arguments, **named)
        return previous.call_boxed(keys, first, *arguments, **named) if result is None else result

    return kernel


def _into(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``out`` form of an operator, whose last arguments are what it writes into."""

    def kernel(*arguments: Any, **named: Any) -> Any:
        outs = [named.pop(name) for name in ("out", "grad_input", "indices") if name in named]
        results = function(*arguments, **named)
        if results is None:
            return None
        for out, result in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
            if out.dtype != result.dtype:
                raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead")
            if out.shape != result.shape:
                out.resize_(result.shape)
            out.copy_(result)
        return tuple(outs) if len(outs) > 1 else outs[0]

    return kernel


# Convolution


def _convolution(
    x: Any,
    w: Any,
    b: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    axes = w.dim() - 2
    strides, pads, dilations, more = (_spread(value, axes) for value in (stride, padding, dilation, output_padding))
    if transposed:
        y = _convolutions.conv_transpose(x, w, b, strides, pads * 2, dilations, more, groups)
    else:
        y = _convolutions.conv(x, w, b, strides, pads * 2, dilations, groups)
    if axes == 1:
        return y
    backend = torch._C._select_conv_backend(
        x,
        w,
        bias=b,
        stride=strides,
        padding=pads,
        dilation=dilations,
        transposed=transposed,
        output_padding=more,
        groups=groups,
        bias_sizes=None if b is None else b.shape,
    )  # the format of PyTorch's own result, which is that of the kernel it would choose
    return y.contiguous(memory_format=torch._C._conv_determine_backend_memory_format(x, w, backend))


def _spread(value: Any, axes: int) -> list[int]:
    return list(value) * axes if len(value) == 1 else list(value)


def _convolution_backward(
    dy: Any,
    x: Any,
    w: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> Any:
    axes = w.dim() - 2
    strides, pads, dilations, more = (_spread(value, axes) for value in (stride, padding, dilation, output_padding))
    by_x: Any = _convolutions.conv_transpose_input_grad if transposed else _convolutions.conv_input_grad
    by_w: Any = _convolutions.conv_transpose_weight_grad if transposed else _convolutions.conv_weight_grad
    attributes = (strides, pads * 2, dilations, *((more,) if transposed else ()), groups)
    return (
        by_x(dy, w.conj(), x.shape, *attributes) if mask[0] else None,
        by_w(x.conj(), dy, w.shape, *attributes) if mask[1] else None,
        _convolutions.conv_bias_grad(dy) if mask[2] else None,
    )


# Pooling


def _max_pools(axes: int) -> dict[str, Callable[..., Any]]:
    """Return MaxPool with so many spatial axes, and its gradient."""

    def forward(
        x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: Any = False
    ) -> Any:
        sizes = _windows(axes, kernel, stride, padding)
        y, indices = _pools.max_pool(_batch(x, axes), *sizes, _spread(dilation, axes), ceil, False)
        return (y.squeeze(0), indices.squeeze(0)) if x.dim() == axes + 1 else (y, indices)

    def backward(
        dy: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any, indices: Any
    ) -> Any:
        sizes, shape = _windows(axes, kernel, stride, padding), _batch(x, axes).shape
        pair = _batch(dy, axes), _batch(indices, axes)
        dx = _pools.max_pool_grad(*pair, shape, *sizes, _spread(dilation, axes), ceil, False)
        return dx.squeeze(0) if x.dim() == axes + 1 else dx

    def backward_out(*arguments: Any, grad_input: Any) -> Any:  # Indices are no result of it
        return _into(backward)(*arguments, grad_input=grad_input)

    return {
        f"max_pool{axes}d_with_indices": forward,
        f"max_pool{axes}d_with_indices.out": _into(forward),
        f"max_pool{axes}d_with_indices_backward": backward,
        f"max_pool{axes}d_with_indices_backward.grad_input": backward_out,
    }


def _average_pools(axes: int) -> dict[str, Callable[..., Any]]:
    """Return AveragePool with so many spatial axes, adaptive too, and its gradients."""

    def forward(
        x: Any,
        kernel: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil: Any = False,
        count_include_pad: Any = True,
        divisor: Any = None,
    ) -> Any:
        sizes, batch = _windows(axes, kernel, stride, padding), _batch(x, axes)
        if divisor is None:
            y = _pools.average_pool(batch, *sizes, ceil, count_include_pad)
        else:
            y = _quotient(batch, *sizes, ceil, divisor)
        return y.squeeze(0) if x.dim() == axes + 1 else y

    def backward(
        dy: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: Any, count_include_pad: Any, divisor: Any
    ) -> Any:
        sizes, batch, gradient = _windows(axes, kernel, stride, padding), _batch(x, axes), _batch(dy, axes)
        if divisor is None:
            dx = _pools.average_pool_grad(gradient, batch.shape, *sizes, ceil, count_include_pad)
        else:
            dx = _quotient_grad(gradient, batch, *sizes, ceil, divisor)
        return dx.squeeze(0) if x.dim() == axes + 1 else dx

    def adaptive(x: Any, extents: Any) -> Any:
        sizes = _equal_windows(x.shape[-axes:], extents)
        return None if sizes is None else forward(x, sizes, sizes)

    def adaptive_backward(dy: Any, x: Any) -> Any:
        sizes = _equal_windows(x.shape[-axes:], dy.shape[-axes:])
        return None if sizes is None else backward(dy, x, sizes, sizes, [0], False, True, None)

    return {
        f"avg_pool{axes}d": forward,
        f"avg_pool{axes}d.out": _into(forward),
        f"avg_pool{axes}d_backward": backward,
        f"avg_pool{axes}d_backward.grad_input": _into(backward),
        f"_adaptive_avg_pool{axes}d": adaptive,
        f"_adaptive_avg_pool{axes}d_backward": adaptive_backward,
    }


def _windows(axes: int, kernel: Any, stride: Any, padding: Any) -> tuple[list[int], list[int], list[int]]:
    """Return kernel, strides and pads with one entry per spatial axis and, for pads, per side."""
    sizes = _spread(kernel, axes)
    return sizes, _spread(stride, axes) if stride else sizes, _spread(padding, axes) * 2


def _equal_windows(sizes: Any, extents: Any) -> list[int] | None:
    """Return the windows of adaptive pooling; None if they differ, or there are none."""
    if any(not q or n % q for n, q in zip(sizes, extents, strict=True)):
        return None
    return [n // q for n, q in zip(sizes, extents, strict=True)]


def _batch(x: Any, axes: int) -> Any:
    return x.unsqueeze(0) if x.dim() == axes + 1 else x


def _sums(x: Any, kernel: list[int], strides: list[int], pads: list[int], ceil: bool) -> tuple[Any, ...]:
    """Return the convolution that sums windows: the type of the sums, a kernel of ones, and attributes."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    rows = zip(x.shape[2:], kernel, strides, pads[: len(kernel)], strict=True)
    begins, ends = zip(*(covering_pads(*row, ceil) for row in rows), strict=True)
    ones = torch.ones((1, 1, *kernel), dtype=dtype, device=x.device)
    return dtype, ones, (strides, [*begins, *ends], [1] * len(kernel), 1)


def _quotient(x: Any, kernel: Any, strides: Any, pads: Any, ceil: bool, divisor: int) -> Any:
    dtype, ones, attributes = _sums(x, kernel, strides, pads, ceil)
    y = _convolutions.conv(x.to(dtype).reshape(-1, 1, *x.shape[2:]), ones, None, *attributes)
    return (y / divisor).to(x.dtype).view(*x.shape[:2], *y.shape[2:])


def _quotient_grad(dy: Any, x: Any, kernel: Any, strides: Any, pads: Any, ceil: bool, divisor: int) -> Any:
    dtype, ones, attributes = _sums(x, kernel, strides, pads, ceil)
    shares = (dy.to(dtype) / divisor).reshape(-1, 1, *dy.shape[2:])
    dx = _convolutions.conv_input_grad(shares, ones, [shares.shape[0], 1, *x.shape[2:]], *attributes)
    return dx.to(dy.dtype).view(x.shape)


def _mean(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the mean over the last axes, as of adaptive pooling to one element; None for other axes."""
    axes = sorted(axis % x.dim() for axis in dim or ()) if x.dim() else []
    if (
        not axes
        or axes != list(range(axes[0], x.dim()))
        or not axes[0]
        or not x.numel()
        or dtype not in (None, x.dtype)
    ):
        return None
    planes = x.reshape(-1, 1, x[(0,) * axes[0]].numel())
    y = _pools.average_pool(planes, [planes.shape[2]], [1], [0, 0], False, True)
    return y.view(*x.shape[: axes[0]], *((1,) * len(axes) if keepdim else ()))


# Products


def _product(a: Any, b: Any, added: Any = None, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return ``beta * added + alpha * (a @ b)``, rounded once; where beta is 0, ``added`` is not read."""
    if a.dtype != b.dtype or (added is not None and added.dtype != a.dtype):
        return None  # the previous kernel says what is wrong
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    with _tensors.place(out), np.errstate(all="ignore"):
        y = _products.matmul(*_tensors.arrays(a, b))
        if alpha != 1:
            y = y * y.dtype.type(alpha)
        if added is not None and beta != 0:
            more = _tensors.array(added).astype(y.dtype)
            y = y + (more if beta == 1 else more * y.dtype.type(beta))
        _tensors.array(out)[...] = y
    return out


def _mm(a: Any, b: Any) -> Any:
    return _product(a, b)


def _added(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _product(a, b, c, beta, alpha)


def _mv(a: Any, v: Any) -> Any:
    y = _product(a, v.unsqueeze(1))
    return None if y is None else y.squeeze(1)


def _addmv(c: Any, a: Any, v: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    y = _product(a, v.unsqueeze(1), c.expand(a.shape[0]).unsqueeze(1), beta, alpha)
    return None if y is None else y.squeeze(1)


def _dot(a: Any, b: Any) -> Any:
    y = _product(a.unsqueeze(0), b.unsqueeze(1))
    return None if y is None else y.reshape(())


def _vdot(a: Any, b: Any) -> Any:
    return _dot(a.conj(), b)


def _with_out(**functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return functions | {f"{name}.out": _into(function) for name, function in functions.items()}


KERNELS: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **_max_pools(2),
    **_max_pools(3),
    **_average_pools(2),
    **_average_pools(3),
    "mean.dim": _mean,
    "mean.out": _into(_mean),
    **_with_out(mm=_mm, bmm=_mm, addmm=_added, baddbmm=_added, mv=_mv, addmv=_addmv, dot=_dot, vdot=_vdot),
}
