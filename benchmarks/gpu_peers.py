"""A layer by PyTorch: its functions take ONNX's attributes only after some conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from benchmarks.layers import Ints, Layer

LAYOUTS = ("NCHW", "channels_last")
Call = Callable[..., list[Any]]  # of x, w and b (None for MaxPool) to the layer's results


def layouts(layer: Layer) -> tuple[str, ...]:
    """Return the memory layouts that PyTorch has for a layer."""
    return LAYOUTS if len(layer.kernel) in (2, 3) else LAYOUTS[:1]


def memory_format(torch: Any, layer: Layer, layout: str) -> Any:
    """Return PyTorch's object for a layout of the layer's arrays."""
    if layout == "NCHW":
        return torch.contiguous_format
    return torch.channels_last if len(layer.kernel) == 2 else torch.channels_last_3d


def split_pads(layer: Layer) -> tuple[Ints, Ints]:
    """Return what PyTorch takes as ``padding``, and the pads that remain: begin and end of each axis, last axis first.

    What remains is for ``F.pad``, which comes before Conv or MaxPool and is part of their time; for ConvTranspose it is
    what is cut off its result. MaxPool pads itself by no more than half of its kernel.
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
    """Return the layer as a function of x, w and b, by ``torch.nn.functional``."""
    return {"Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool}[layer.op](torch, layer)


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
        padded = functional.pad(x, more, value=_lowest(torch, x.dtype)) if any(more) else x
        shape = (layer.kernel, layer.strides, padding, layer.dilations, bool(layer.ceil_mode))
        result = function(padded, *shape, return_indices=layer.indices)
        return list(result) if layer.indices else [result]

    return call


def _lowest(torch: Any, dtype: Any) -> float:
    return -float("inf") if dtype.is_floating_point else int(torch.iinfo(dtype).min)


@contextmanager
def tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Let PyTorch multiply float32 by TF32, or not."""
    cudnn = torch.backends.cudnn
    before, cudnn.allow_tf32 = cudnn.allow_tf32, allowed
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


def onnx_indices(torch: Any, layer: Layer, indices: Any) -> Any:
    """Return PyTorch's positions within a plane as ONNX's Indices, positions within x; MaxPool without ``F.pad``."""
    planes = torch.arange(prod(layer.x[:2]), device=indices.device).reshape(*layer.x[:2], *[1] * len(layer.kernel))
    return indices + planes * prod(layer.x[2:])


def operands(torch: Any, layer: Layer, dtype: str, layout: str, device: str, seed: int = 0) -> tuple[Any, ...]:
    """Return new x, w and b (None for MaxPool) of normal numbers; of any numbers where the dtype is of integers."""
    generator = torch.Generator(device=device).manual_seed(seed)
    kind, form = getattr(torch, dtype), memory_format(torch, layer, layout)
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        x = torch.empty(layer.x, dtype=kind, device=device, memory_format=form)
        return x.random_(limits.min, limits.max + 1, generator=generator), None, None

    def normal(shape: Ints, form: Any, scale: float = 1.0) -> Any:
        array = torch.empty(shape, dtype=kind, device=device, memory_format=form)
        return array.normal_(0.0, scale, generator=generator)

    x = normal(layer.x, form)
    if layer.op == "MaxPool":
        return x, None, None
    # Weights of this size keep the results near 1, as a network's are: float16 does not overflow.
    terms = layer.w_shape[0] // layer.group if layer.op == "ConvTranspose" else layer.w_shape[1]
    scale = (terms * prod(layer.kernel)) ** -0.5
    return x, normal(layer.w_shape, form, scale), normal((layer.k_out,), torch.contiguous_format)
