"""ResNet-50 in QDQ form: QuantizeLinear and DequantizeLinear around every layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from benchmarks.architectures.building import Building

# Weights have 7 bits, as ONNX Runtime recommends: its uint8 x int8 sums saturate on CPUs without VNNI otherwise.
_LARGEST = 63
_RANGE = 6.0  # quantized range of activations, whose mean square is about 1


class Quantized(NamedTuple):
    """The output of a DequantizeLinear, and its scale."""

    name: str
    scale: float


def resnet50_int8(size: int = 224, part: float = 1.0) -> ModelProto:
    """ResNet-50 (He and others, 2015): int8 weights with a scale per filter, uint8 activations."""
    g = Building("resnet50_int8", part)
    channels = g.width(64)
    y = _conv(g, _quantized(g, "x", 2 * _RANGE, 128), 3, channels, 7, 2, "Relu")
    y = _quantized(g, g.node("MaxPool", y.name, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = g.width(64 * 2**stage)
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            z = _conv(g, y, channels, middle, 1, 1, "Relu")
            z = _conv(g, _conv(g, z, middle, middle, 3, stride, "Relu"), middle, 4 * middle, 1, 1, "")
            shortcut = y if block else _conv(g, y, channels, 4 * middle, 1, stride, "")
            y, channels = _quantized(g, g.node("Relu", g.node("Add", z.name, shortcut.name))), 4 * middle
    y = _quantized(g, g.node("GlobalAveragePool", y.name))
    y = _quantized(g, g.node("Flatten", y.name))
    operands = _weights(g, y, g.filters((1000, channels), ""))
    y = _quantized(g, g.node("Gemm", y.name, *operands, transB=1), 2 * _RANGE, 128)
    return g.model({"x": (1, 3, size, size)}, [y.name])


def _conv(g: Building, x: Quantized, c_in: int, c_out: int, taps: int, stride: int, activation: str) -> Quantized:
    operands = _weights(g, x, g.filters((c_out, c_in, taps, taps), activation))
    pads = [taps // 2] * 4
    y = g.node("Conv", x.name, *operands, kernel_shape=[taps] * 2, strides=[stride] * 2, pads=pads)
    return _quantized(g, g.activate(y, activation), *(() if activation else (2 * _RANGE, 128)))


def _weights(g: Building, x: Quantized, w: Any) -> tuple[str, str]:
    """Add int8 weights and an int32 bias, and return their DequantizeLinear outputs."""
    scales = np.abs(w).reshape(len(w), -1).max(axis=1) / _LARGEST
    whole = g.constant(np.rint(w / scales.reshape(-1, *[1] * (w.ndim - 1))), np.int8)
    bias = g.constant(np.rint(g.random(len(w), variance=0.01) / (x.scale * scales)), np.int32)
    zero, zero_of_sums = (g.constant(np.zeros(len(w)), dtype) for dtype in (np.int8, np.int32))
    return (
        g.node("DequantizeLinear", whole, g.constant(scales), zero, axis=0),
        g.node("DequantizeLinear", bias, g.constant(x.scale * scales), zero_of_sums, axis=0),
    )


def _quantized(g: Building, x: str, extent: float = _RANGE, zero: int = 0) -> Quantized:
    """Add QuantizeLinear to uint8 with a range of ``extent``, and DequantizeLinear."""
    scale, zero_point = g.constant(extent / 255), g.constant(zero, np.uint8)
    rounded = g.node("QuantizeLinear", x, scale, zero_point)
    return Quantized(g.node("DequantizeLinear", rounded, scale, zero_point), extent / 255)
