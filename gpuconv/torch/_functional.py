"""Convolution and pooling with the signatures of ``torch.nn.functional``, computed by gpuconv.

Functions whose names end in 1d, 2d or 3d take what PyTorch's do, also without a batch. Those without a number take any
spatial rank: ``conv`` and ``conv_transpose`` that of the weights, pools that of a list for ``kernel_size``. All take
tensors on the CPU and CUDA tensors, and compute first and second derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.torch import _convolutions, _pools
from gpuconv.torch._arguments import Sizes, conv_pads, covering_pads, per_axis, pool_pads, unpool_extents

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]


def conv(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolve as ``torch.nn.functional.conv2d`` does, with as many spatial axes as the weights have.

    Parameters
    ----------
    input : tensor (N, C, D1, …, Dn), or without N
        float16, bfloat16, float32, float64, complex64 or complex128.
    weight : tensor (M, C/groups, k1, …, kn)
    bias : tensor (M,), optional
    stride, dilation : int, or one for each spatial axis
    padding : int, one for each spatial axis, "valid", or "same", which needs a stride of 1
    groups : int

    Returns
    -------
    tensor (N, M, Q1, …, Qn), or without N
        Channels last in memory if ``input`` is.
    """
    return _conv("conv", weight.dim() - 2, input, weight, bias, stride, padding, dilation, groups)


def _conv(
    name: str, axes: int, x: Any, w: Any, b: Any, stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int
) -> Any:
    _refuse_tangents(name, x, w, b)
    x, is_single = _batched(name, x, axes)
    if w.dim() != axes + 2:
        raise ArgumentError(f"{name}: weight must have {axes + 2} axes, but its shape is {tuple(w.shape)}")
    strides, dilations = per_axis(name, "stride", stride, axes), per_axis(name, "dilation", dilation, axes)
    pads = conv_pads(name, padding, w.shape[2:], strides, dilations)
    return _unbatched(_convolutions.conv(x, w, b, strides, pads, dilations, groups), is_single)


def conv_transpose(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """Compute what ``torch.nn.functional.conv_transpose2d`` does, with as many spatial axes as the weights have.

    Parameters
    ----------
    input : tensor (N, C, D1, …, Dn), or without N
        Of a dtype that :func:`conv` takes.
    weight : tensor (C, M/groups, k1, …, kn)
    bias : tensor (M,), optional
    stride, padding, output_padding, dilation : int, or one for each spatial axis
    groups : int

    Returns
    -------
    tensor (N, M, Q1, …, Qn), or without N
    """
    axes = weight.dim() - 2
    return _transposed("conv_transpose", axes, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _transposed(
    name: str,
    axes: int,
    x: Any,
    w: Any,
    b: Any,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Any:
    _refuse_tangents(name, x, w, b)
    x, is_single = _batched(name, x, axes)
    if w.dim() != axes + 2:
        raise ArgumentError(f"{name}: weight must have {axes + 2} axes, but its shape is {tuple(w.shape)}")
    attributes = (
        per_axis(name, "stride", stride, axes),
        per_axis(name, "padding", padding, axes) * 2,
        per_axis(name, "dilation", dilation, axes),
        per_axis(name, "output_padding", output_padding, axes),
    )
    return _unbatched(_convolutions.conv_transpose(x, w, b, *attributes, groups), is_single)


def max_pool(
    input: Any,  # noqa: A002
    kernel_size: Sequence[int],
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    indices_in: str = "plane",
) -> Any:
    """Take the maximum of every window as ``torch.nn.functional.max_pool2d`` does, at any spatial rank.

    Parameters
    ----------
    input : tensor (N, C, D1, …, Dn), or without N
        float16, bfloat16, float32, float64, int8 or uint8.
    kernel_size : sequence of int, one for each spatial axis
    stride : int, or one for each spatial axis, default the kernel
    padding, dilation : int, or one for each spatial axis
    ceil_mode : bool
        Round the number of windows up, and drop a last one that would start in the padding at the end.
    return_indices : bool
        Also return Indices.
    indices_in : {"plane", "tensor"}
        Whether Indices count within each plane, as PyTorch's do, or through the whole tensor, as ONNX's do.

    Returns
    -------
    tensor (N, C, Q1, …, Qn), or without N; or a pair of it and of an int64 tensor of its shape
        Among equal maxima, the first one in row-major order has the index. In a window with NaN, the first NaN has it;
        PyTorch returns the last.
    """
    if indices_in not in ("plane", "tensor"):
        raise ArgumentError(f'max_pool: indices_in must be "plane" or "tensor", not {indices_in!r}')
    axes = len(kernel_size)
    is_onnx = indices_in == "tensor"
    return _max("max_pool", axes, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, is_onnx)


def _max(
    name: str,
    axes: int,
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
    is_onnx: bool = False,
) -> Any:
    _refuse_tangents(name, x)
    x, is_single = _batched(name, x, axes)
    kernel, strides = _windows(name, kernel_size, stride, axes)
    dilations = per_axis(name, "dilation", dilation, axes)
    pads = pool_pads(name, padding, kernel, dilations)
    y, indices = _pools.max_pool(x, kernel, strides, pads, dilations, ceil_mode, is_onnx)
    if not return_indices:
        return _unbatched(y, is_single)
    return _unbatched(y, is_single), _unbatched(indices, is_single)


def avg_pool(
    input: Any,  # noqa: A002
    kernel_size: Sequence[int],
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Take the mean of every window as ``torch.nn.functional.avg_pool2d`` does, at any spatial rank.

    Parameters
    ----------
    input : tensor (N, C, D1, …, Dn), or without N
        Of a dtype that :func:`conv` takes.
    kernel_size : sequence of int, one for each spatial axis
    stride, padding, ceil_mode
        As in :func:`max_pool`.
    count_include_pad : bool
        Whether elements of the padding count. What ``ceil_mode`` lets the last window have beyond it never does.
    divisor_override : int, optional
        What sums of windows are divided by instead.

    Returns
    -------
    tensor (N, C, Q1, …, Qn), or without N
    """
    arguments = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    return _average("avg_pool", len(kernel_size), input, *arguments)


def _average(
    name: str,
    axes: int,
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Any:
    _refuse_tangents(name, x)
    x, is_single = _batched(name, x, axes)
    kernel, strides = _windows(name, kernel_size, stride, axes)
    pads = pool_pads(name, padding, kernel)
    if divisor_override is None:
        y = _pools.average_pool(x, kernel, strides, pads, ceil_mode, count_include_pad)
    elif divisor_override == 0:
        raise ArgumentError(f"{name}: divisor_override must not be 0")
    else:
        y = _window_sums(x, kernel, strides, pads[:axes], ceil_mode, divisor_override)
    return _unbatched(y, is_single)


def _window_sums(x: Any, kernel: list[int], strides: list[int], pads: list[int], ceil_mode: bool, divisor: int) -> Any:
    """Return sums of windows over a divisor: a convolution of every channel with ones, in the type of the sums."""
    rows = zip(x.shape[2:], kernel, strides, pads, strict=True)
    begins, ends = zip(*(covering_pads(*row, ceil_mode) for row in rows), strict=True)
    sums = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    planes = sums.reshape(-1, 1, *x.shape[2:])
    with torch.autocast(x.device.type, enabled=False):
        y = _convolutions.conv(
            planes, planes.new_ones((1, 1, *kernel)), None, strides, [*begins, *ends], [1] * len(kernel), 1
        )
    return (y / divisor).to(x.dtype).view(*x.shape[:2], *y.shape[2:])


def _unpooled(
    name: str,
    axes: int,
    x: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
) -> Any:
    _refuse_tangents(name, x)
    x, is_single = _batched(name, x, axes)
    indices, _ = _batched(name, indices, axes)
    kernel, strides = _windows(name, kernel_size, stride, axes)
    pads = per_axis(name, "padding", padding, axes) * 2
    extents = unpool_extents(name, x.shape[2:], kernel, strides, pads, output_size)
    return _unbatched(_pools.max_unpool(x, indices, extents, kernel, strides, pads), is_single)


def _windows(name: str, kernel_size: Sizes, stride: Sizes | None, axes: int) -> tuple[list[int], list[int]]:
    """Return kernel and strides with one entry per spatial axis; no stride, or an empty one, is the kernel."""
    kernel = per_axis(name, "kernel_size", kernel_size, axes)
    is_given = stride is not None and (isinstance(stride, int) or len(stride) > 0)
    return kernel, per_axis(name, "stride", stride, axes) if is_given and stride is not None else kernel


def _refuse_tangents(name: str, *tensors: Any) -> None:
    """Raise ArgumentTypeError for a tensor with a forward-mode derivative, which would be lost without a word."""
    if torch.compiler.is_compiling():
        return
    if any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ArgumentTypeError(f"{name}: has no forward-mode derivative; use reverse mode, as by torch.autograd.grad")


def _batched(name: str, x: Any, axes: int) -> tuple[Any, bool]:
    """Return a tensor with a batch, and whether it had none."""
    if x.dim() == axes + 1:
        return x.unsqueeze(0), True
    if x.dim() != axes + 2:
        raise ArgumentError(
            f"{name}: input must have {axes + 2} axes, or {axes + 1} without a batch, not the shape {tuple(x.shape)}"
        )
    return x, False


def _unbatched(y: Any, is_single: bool) -> Any:
    return y.squeeze(0) if is_single else y


def conv1d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolve as ``torch.nn.functional.conv1d`` does: :func:`conv` with one spatial axis."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """Compute ``torch.nn.functional.conv_transpose1d``: :func:`conv_transpose` with one spatial axis."""
    name = "conv_transpose1d"
    return _transposed(name, 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def max_pool1d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute ``torch.nn.functional.max_pool1d``: :func:`max_pool` with one spatial axis."""
    name = "max_pool1d"
    return _max(name, 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool1d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Compute ``torch.nn.functional.avg_pool1d``: :func:`avg_pool` with one spatial axis."""
    name = "avg_pool1d"
    return _average(name, 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def max_unpool1d(
    input: Any,  # noqa: A002
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Compute ``torch.nn.functional.max_unpool1d``: put maxima back where Indices of ``max_pool1d`` say.

    Where several elements have the same index, the last one in row-major order stays.
    """
    return _unpooled("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


def conv2d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolve as ``torch.nn.functional.conv2d`` does: :func:`conv` with two spatial axes."""
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose2d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """Compute ``torch.nn.functional.conv_transpose2d``: :func:`conv_transpose` with two spatial axes."""
    name = "conv_transpose2d"
    return _transposed(name, 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def max_pool2d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute ``torch.nn.functional.max_pool2d``: :func:`max_pool` with two spatial axes."""
    name = "max_pool2d"
    return _max(name, 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool2d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Compute ``torch.nn.functional.avg_pool2d``: :func:`avg_pool` with two spatial axes."""
    name = "avg_pool2d"
    return _average(name, 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def max_unpool2d(
    input: Any,  # noqa: A002
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Compute ``torch.nn.functional.max_unpool2d``: put maxima back where Indices of ``max_pool2d`` say.

    Where several elements have the same index, the last one in row-major order stays.
    """
    return _unpooled("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


def conv3d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolve as ``torch.nn.functional.conv3d`` does: :func:`conv` with three spatial axes."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose3d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Any:
    """Compute ``torch.nn.functional.conv_transpose3d``: :func:`conv_transpose` with three spatial axes."""
    name = "conv_transpose3d"
    return _transposed(name, 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def max_pool3d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute ``torch.nn.functional.max_pool3d``: :func:`max_pool` with three spatial axes."""
    name = "max_pool3d"
    return _max(name, 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool3d(
    input: Any,  # noqa: A002
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Compute ``torch.nn.functional.avg_pool3d``: :func:`avg_pool` with three spatial axes."""
    name = "avg_pool3d"
    return _average(name, 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def max_unpool3d(
    input: Any,  # noqa: A002
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Compute ``torch.nn.functional.max_unpool3d``: put maxima back where Indices of ``max_pool3d`` say.

    Where several elements have the same index, the last one in row-major order stays.
    """
    return _unpooled("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)
