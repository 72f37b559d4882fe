"""Compute a layer or its gradient by PyTorch, converting ONNX's attributes to PyTorch's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from benchmarks import gpu_arrays
from benchmarks.layers import Ints, Layer

LAYOUTS = ("NCHW", "channels_last")
Call = Callable[..., list[Any]]  # from the arrays of OPERANDS to the layer's results
# By the kind of call: PyTorch's backward functions take all arrays of the forward call, even those they do not read.
OPERANDS = {
    "": ("x", "w", "b"),  # w and b are None for pools
    "input_grad": ("dy", "w", "x"),
    "weight_grad": ("x", "dy", "w"),
    "bias_grad": ("dy",),
    "grad": ("dy", "indices", "x"),
    "unpool": ("y", "indices"),
    "fused": ("x", "w", "b", "residual"),
}


def names(layer: Layer) -> tuple[str, ...]:
    """Return the names of a layer's operands in PyTorch's order."""
    return ("dy", "x") if layer.kind == "AveragePool gradient" else OPERANDS[layer.call]


def layouts(layer: Layer) -> tuple[str, ...]:
    """Return the memory layouts that PyTorch supports for a layer."""
    return LAYOUTS if len(layer.kernel) in (2, 3) else LAYOUTS[:1]


def memory_format(torch: Any, layer: Layer, layout: str) -> Any:
    """Return PyTorch's memory format of the layer's arrays in a layout."""
    if layout == "NCHW":
        return torch.contiguous_format
    return torch.channels_last if len(layer.kernel) == 2 else torch.channels_last_3d


def split_pads(layer: Layer) -> tuple[Ints, Ints]:
    """Split ONNX pads into PyTorch's symmetric ``padding`` and the remaining (begin, end) pairs, last axis first.

    For Conv and pools the remaining pads go to ``F.pad`` before the call, which is timed too. For ConvTranspose they
    are cropped from the result. PyTorch's pools accept at most half of the kernel as padding.
    """
    rank = len(layer.kernel)
    begins, ends = layer.pads[:rank], layer.pads[rank:]
    if layer.op == "ConvTranspose":
        least = tuple(map(min, begins, ends))
        return least, _remaining(begins, ends, least)
    narrow = layer.op == "Conv" or all(2 * pad <= k for pad, k in zip(begins, layer.kernel, strict=True))
    if begins == ends and narrow:
        return begins, (0,) * 2 * rank
    nothing = (0,) * rank
    return nothing, _remaining(begins, ends, nothing)


def _remaining(begins: Ints, ends: Ints, taken: Ints) -> Ints:
    pairs = [(begin - t, end - t) for begin, end, t in zip(begins, ends, taken, strict=True)]
    return tuple(pad for pair in reversed(pairs) for pad in pair)


def peer(torch: Any, layer: Layer) -> Call:
    """Return a function of OPERANDS that computes the layer by ``torch.nn.functional`` or ATen's backward operators."""
    calls = {"input_grad": _input_grad, "weight_grad": _weight_grad, "bias_grad": _bias_grad}
    calls |= {"unpool": _unpool, "fused": _eager}
    calls["grad"] = _pool_grad if layer.op == "MaxPool" else _average_grad
    plain = {"Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool, "AveragePool": _average_pool}
    return calls[layer.call](torch, layer) if layer.call else plain[layer.op](torch, layer)


def others(torch: Any, layer: Layer) -> dict[str, Call]:
    """Return PyTorch's other ways to compute the same, by name.

    "deterministic" is cuDNN restricted to bits that never change from run to run, as gpuconv's; "fused" is its fusion.
    """
    if layer.call == "fused":
        return {"fused": _fused(torch, layer)}
    if layer.call not in ("input_grad", "weight_grad"):
        return {}
    call = peer(torch, layer)

    def held(*operands: Any) -> list[Any]:
        with _temporarily(torch.backends.cudnn, "deterministic", True):
            return call(*operands)

    return {"deterministic": held}


def _conv(torch: Any, layer: Layer) -> Call:
    functional = torch.nn.functional
    function = getattr(functional, f"conv{len(layer.kernel)}d")
    padding, more = split_pads(layer)

    def call(x: Any, w: Any, b: Any) -> list[Any]:
        padded = functional.pad(x, more) if any(more) else x
        return [function(padded, w, b, layer.strides, padding, layer.dilations, layer.group)]

    return call


def _conv_transpose(torch: Any, layer: Layer) -> Call:
    function = getattr(torch.nn.functional, f"conv_transpose{len(layer.kernel)}d")
    padding, crop = split_pads(layer)
    rank = len(layer.kernel)
    extra = layer.output_padding or (0,) * rank

    def call(x: Any, w: Any, b: Any) -> list[Any]:
        y = function(x, w, b, layer.strides, padding, extra, layer.group, layer.dilations)
        for axis in range(rank):
            begin, end = crop[2 * (rank - 1 - axis) : 2 * (rank - axis)]
            y = y.narrow(2 + axis, begin, y.shape[2 + axis] - begin - end)
        return [y]

    return call


def _max_pool(torch: Any, layer: Layer) -> Call:
    functional = torch.nn.functional
    function = getattr(functional, f"max_pool{len(layer.kernel)}d")
    padding, more = split_pads(layer)

    def call(x: Any, w: None, b: None) -> list[Any]:
        padded = functional.pad(x, more, value=_lowest_value(torch, x.dtype)) if any(more) else x
        shape = (layer.kernel, layer.strides, padding, layer.dilations, bool(layer.ceil_mode))
        result = function(padded, *shape, return_indices=layer.indices)
        return list(result) if layer.indices else [result]

    return call


def _average_pool(torch: Any, layer: Layer) -> Call:
    function, shape = getattr(torch.nn.functional, f"avg_pool{len(layer.kernel)}d"), _averaged(layer)
    return lambda x, w, b: [function(x, *shape)]


def _averaged(layer: Layer) -> tuple[Any, ...]:
    """Return PyTorch's arguments of AveragePool that follow the array."""
    padding, more = split_pads(layer)
    if any(more) or max(layer.dilations) > 1:
        raise NotImplementedError(f"PyTorch cannot average with pads {layer.pads}, dilations {layer.dilations}")
    return layer.kernel, layer.strides, padding, bool(layer.ceil_mode), bool(layer.count_include_pad)


def _convolution_backward(torch: Any, layer: Layer, wanted: int, dy: Any, x: Any, w: Any) -> list[Any]:
    """Return the gradient of x (``wanted`` is 0) or of w (1)."""
    padding, more = split_pads(layer)
    if any(more):
        raise NotImplementedError(f"PyTorch pads both ends of an axis alike, not by {layer.pads}")
    transposed = layer.op == "ConvTranspose"
    extra = layer.output_padding or (0,) * len(layer.kernel)
    shape = (layer.strides, padding, layer.dilations, transposed, extra, layer.group)
    mask = [number == wanted for number in range(3)]
    return [torch.ops.aten.convolution_backward(dy, x, w, None, *shape, mask)[wanted]]


def _input_grad(torch: Any, layer: Layer) -> Call:
    return lambda dy, w, x: _convolution_backward(torch, layer, 0, dy, x, w)


def _weight_grad(torch: Any, layer: Layer) -> Call:
    return lambda x, dy, w: _convolution_backward(torch, layer, 1, dy, x, w)


def _eager(torch: Any, layer: Layer) -> Call:
    """Separate operations, in place, as a PyTorch model runs them for inference."""
    conv = _conv(torch, layer)
    return lambda x, w, b, residual: [conv(x, w, b)[0].add_(residual).relu_()]


def _fused(torch: Any, layer: Layer) -> Call:
    padding, more = split_pads(layer)
    if any(more):
        raise NotImplementedError(f"cuDNN pads both ends of an axis alike, not by {layer.pads}")
    shape = (layer.strides, padding, layer.dilations, layer.group)
    return lambda x, w, b, residual: [torch.cudnn_convolution_add_relu(x, w, residual, 1.0, b, *shape)]


def _bias_grad(torch: Any, layer: Layer) -> Call:
    axes = [0, *range(2, 2 + len(layer.kernel))]
    return lambda dy: [dy.sum(axes)]


def _pool_grad(torch: Any, layer: Layer) -> Call:
    padding, more = split_pads(layer)
    function = getattr(torch.ops.aten, f"max_pool{len(layer.kernel)}d_with_indices_backward")
    shape = (layer.kernel, layer.strides, padding, layer.dilations, bool(layer.ceil_mode))
    if any(more):
        raise NotImplementedError(f"Indices would count padding of {layer.pads}")
    return lambda dy, indices, x: [function(dy, x, *shape, indices)]


def _average_grad(torch: Any, layer: Layer) -> Call:
    function, shape = getattr(torch.ops.aten, f"avg_pool{len(layer.kernel)}d_backward"), _averaged(layer)
    return lambda dy, x: [function(dy, x, *shape, None)]


def _unpool(torch: Any, layer: Layer) -> Call:
    function = getattr(torch.nn.functional, f"max_unpool{len(layer.kernel)}d")
    shape = (layer.kernel, layer.strides, layer.pads[: len(layer.kernel)], layer.x)
    return lambda y, indices: [function(y, indices, *shape)]


def _lowest_value(torch: Any, dtype: Any) -> float:
    return -float("inf") if dtype.is_floating_point else int(torch.iinfo(dtype).min)


@contextmanager
def tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Allow or forbid cuDNN's TF32 for float32 convolutions while the context is open."""
    with _temporarily(torch.backends.cudnn, "allow_tf32", allowed):
        yield


@contextmanager
def _temporarily(settings: Any, name: str, value: bool) -> Iterator[None]:
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)


def by_name(torch: Any, layer: Layer, operands: tuple[Any, ...]) -> dict[str, Any]:
    """Return operands by name, with Indices converted to ONNX's."""
    named = dict(zip(names(layer), operands, strict=True))
    if "indices" in named:
        named["indices"] = onnx_indices(torch, layer, named["indices"])
    return named


def onnx_indices(torch: Any, layer: Layer, indices: Any) -> Any:
    """Convert PyTorch's positions within a plane to ONNX's Indices, positions within all of x.

    Not for a MaxPool that needed ``F.pad``: its positions count the padding.
    """
    planes = torch.arange(prod(layer.x[:2]), device=indices.device).reshape(*layer.x[:2], *[1] * len(layer.kernel))
    return indices + planes * prod(layer.x[2:])


def operands(torch: Any, layer: Layer, dtype: str, layout: str, device: str, seed: int = 0) -> tuple[Any, ...]:
    """Return new OPERANDS: normal numbers, or for integer dtypes numbers of their whole range."""
    generator = torch.Generator(device=device).manual_seed(seed)
    kind, form = getattr(torch, dtype), memory_format(torch, layer, layout)
    if not (kind.is_floating_point or kind.is_complex):
        limits = torch.iinfo(kind)
        x = torch.empty(layer.x, dtype=kind, device=device, memory_format=form)
        return x.random_(limits.min, limits.max + 1, generator=generator), None, None

    def normal(shape: Ints, form: Any, scale: float = 1.0) -> Any:
        array = torch.empty(shape, dtype=kind, device=device, memory_format=form)
        return array.normal_(0.0, scale, generator=generator)

    x = normal(layer.x, form)
    if layer.pools:
        return _pool_operands(torch, layer, x, partial(normal, form=form))
    made = {"x": x, "w": normal(layer.w_shape, form, gpu_arrays.scale(layer, "w"))}
    made["b"] = normal((layer.k_out,), torch.contiguous_format)
    if layer.call == "fused":
        made["residual"] = normal(layer.y_shape, form)
    elif layer.call:
        made["dy"] = normal(layer.y_shape, form, gpu_arrays.scale(layer, "dy"))
    return tuple(made[name] for name in OPERANDS[layer.call])


def _pool_operands(torch: Any, layer: Layer, x: Any, normal: Call) -> tuple[Any, ...]:
    """Return the operands of a pool on x, of its gradient or of MaxUnpool."""
    if not layer.call:
        return x, None, None
    if layer.op == "AveragePool":
        return normal(layer.y_shape), x
    y, indices = _max_pool(torch, replace(layer, indices=True))(x, None, None)
    return (y, indices) if layer.call == "unpool" else (normal(layer.y_shape), indices, x)
