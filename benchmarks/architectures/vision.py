"""Networks for images: ConvNeXt, a vision transformer, U-Net, style transfer, and a detector."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from benchmarks.architectures.building import Building

_ANCHORS = (
    (8, ((10, 13), (16, 30), (33, 23))),
    (16, ((30, 61), (62, 45), (59, 119))),
    (32, ((116, 90), (156, 198), (373, 326))),
)


def convnext_tiny(size: int = 224, part: float = 1.0) -> ModelProto:
    """ConvNeXt-T (Liu and others, 2022): depthwise 7x7 convolutions, then linear layers with channels last."""
    g = Building("convnext_tiny", part)
    channels = g.width(96)
    y = _normalized(g, g.conv("x", 3, channels, 4, stride=4, pads=[0] * 4), channels)
    for stage, blocks in enumerate((3, 3, 9, 3)):
        if stage:
            y = g.conv(_normalized(g, y, channels), channels, 2 * channels, 2, stride=2, pads=[0] * 4)
            channels *= 2
        for _ in range(blocks):
            z = g.node("Transpose", g.conv(y, channels, channels, 7, group=channels), perm=[0, 2, 3, 1])
            z = g.linear(g.layer_norm(z, channels), channels, 4 * channels, activation="Gelu")
            z = g.node("Transpose", g.linear(z, 4 * channels, channels), perm=[0, 3, 1, 2])
            scale = g.constant(0.5 + g.random(channels, 1, 1, variance=0.01))
            y = g.node("Add", g.node("Mul", scale, z), y)
    y = _normalized(g, g.node("GlobalAveragePool", y), channels)
    return g.model({"x": (1, 3, size, size)}, [g.linear(g.node("Flatten", y), channels, 1000)])


def _normalized(g: Building, x: str, channels: int) -> str:
    """Add LayerNormalization over the channels of NCHW data."""
    y = g.layer_norm(g.node("Transpose", x, perm=[0, 2, 3, 1]), channels)
    return g.node("Transpose", y, perm=[0, 3, 1, 2])


def deit_tiny(size: int = 224, part: float = 1.0, depth: int = 12) -> ModelProto:
    """DeiT-Ti (Touvron and others, 2021), a vision transformer with three heads on 16x16 patches."""
    g = Building("deit_tiny", part)
    heads, channels, tokens = 3, 3 * g.width(64), (size // 16) ** 2 + 1
    y = g.conv("x", 3, channels, 16, stride=16, pads=[0] * 4)
    y = g.node("Transpose", g.node("Reshape", y, g.integers(1, channels, -1)), perm=[0, 2, 1])
    y = g.node("Concat", g.constant(g.random(1, 1, channels, variance=1)), y, axis=1)
    y = g.node("Add", y, g.constant(g.random(1, tokens, channels, variance=0.1)))
    for _ in range(depth):
        y = g.node("Add", y, _attention(g, g.layer_norm(y, channels), tokens, channels, heads))
        z = g.linear(g.layer_norm(y, channels), channels, 4 * channels, activation="Gelu")
        y = g.node("Add", y, g.linear(z, 4 * channels, channels))
    y = g.node("Gather", g.layer_norm(y, channels), g.constant(0, np.int64), axis=1)
    return g.model({"x": (1, 3, size, size)}, [g.linear(y, channels, 1000)])


def _attention(g: Building, x: str, tokens: int, channels: int, heads: int) -> str:
    each = channels // heads
    y = g.node("Reshape", g.linear(x, channels, 3 * channels), g.integers(1, tokens, 3, heads, each))
    y = g.node("Transpose", y, perm=[2, 0, 3, 1, 4])
    query, key, value = (g.node("Gather", y, g.constant(i, np.int64), axis=0) for i in range(3))
    query = g.node("Mul", query, g.constant(each**-0.5))
    weights = g.node("Softmax", g.node("MatMul", query, g.node("Transpose", key, perm=[0, 1, 3, 2])), axis=-1)
    y = g.node("Transpose", g.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return g.linear(g.node("Reshape", y, g.integers(1, tokens, channels)), channels, channels)


def unet(size: int = 256, part: float = 1.0) -> ModelProto:
    """U-Net (Ronneberger and others, 2015) with half of its channels, as used for MRI slices."""
    g = Building("unet", part)
    widths = [g.width(32 * 2**level) for level in range(5)]
    y, channels, skipped = "x", 3, []
    for level, c_out in enumerate(widths):
        if level:
            y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
        y, channels = _twice(g, y, channels, c_out), c_out
        skipped.append(y)
    for c_out, skip in zip(widths[-2::-1], skipped[-2::-1], strict=True):
        w = g.constant(g.random(channels, c_out, 2, 2, variance=1 / channels))
        y = g.node("ConvTranspose", y, w, g.bias(c_out), kernel_shape=[2, 2], strides=[2, 2])
        y, channels = _twice(g, g.node("Concat", y, skip, axis=1), 2 * c_out, c_out), c_out
    return g.model({"x": (1, 3, size, size)}, [g.node("Sigmoid", g.conv(y, channels, 1))])


def _twice(g: Building, x: str, c_in: int, c_out: int) -> str:
    return g.conv(g.conv(x, c_in, c_out, 3, activation="Relu"), c_out, c_out, 3, activation="Relu")


def style_transfer(size: int = 224, part: float = 1.0) -> ModelProto:
    """The style-transfer network of Johnson and others (2016): reflection padding, 9x9 kernels."""
    g = Building("style_transfer", part)
    narrow, middle, wide = g.width(32), g.width(64), g.width(128)
    y = _instances(g, _reflected(g, "x", 3, narrow, 9), narrow)
    y = _instances(g, _reflected(g, y, narrow, middle, 3, stride=2), middle)
    y = _instances(g, _reflected(g, y, middle, wide, 3, stride=2), wide)
    for _ in range(5):
        z = _instances(g, _reflected(g, y, wide, wide, 3), wide)
        y = g.node("Add", _instances(g, _reflected(g, z, wide, wide, 3), wide, activation=""), y)
    for c_in, c_out in ((wide, middle), (middle, narrow)):
        y = _instances(g, _reflected(g, _twice_as_large(g, y), c_in, c_out, 3), c_out)
    return g.model({"x": (1, 3, size, size)}, [_reflected(g, y, narrow, 3, 9)])


def _reflected(g: Building, x: str, c_in: int, c_out: int, taps: int, stride: int = 1) -> str:
    border = taps // 2
    y = g.node("Pad", x, g.integers(0, 0, border, border, 0, 0, border, border), mode="reflect")
    return g.conv(y, c_in, c_out, taps, stride=stride, pads=[0] * 4)


def _instances(g: Building, x: str, channels: int, activation: str = "Relu") -> str:
    scale = g.constant(1 + g.random(channels, variance=0.01))
    return g.activate(g.node("InstanceNormalization", x, scale, g.bias(channels), epsilon=1e-5), activation)


def _twice_as_large(g: Building, x: str) -> str:
    scales = g.constant([1, 1, 2, 2])
    attributes = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return g.node("Resize", x, "", scales, **attributes)


def yolov5n(size: int = 640, part: float = 1.0) -> ModelProto:
    """YOLOv5n: a feature pyramid of three scales, top-down and bottom-up, then boxes and NonMaxSuppression."""
    g = Building("yolov5n", part)
    w16, w32, w64, w128, w256 = (g.width(channels) for channels in (16, 32, 64, 128, 256))
    y = g.conv("x", 3, w16, 6, stride=2, pads=[2] * 4, activation="Silu")
    y = _cross_stage(g, g.conv(y, w16, w32, 3, stride=2, activation="Silu"), w32, w32, 1)
    fine = _cross_stage(g, g.conv(y, w32, w64, 3, stride=2, activation="Silu"), w64, w64, 2)
    middle = _cross_stage(g, g.conv(fine, w64, w128, 3, stride=2, activation="Silu"), w128, w128, 3)
    y = _cross_stage(g, g.conv(middle, w128, w256, 3, stride=2, activation="Silu"), w256, w256, 1)
    coarse = g.conv(_pyramid(g, y, w256), w256, w128, activation="Silu")
    y = g.node("Concat", _twice_as_large(g, coarse), middle, axis=1)
    middle = g.conv(_cross_stage(g, y, 2 * w128, w128, 1, residual=False), w128, w64, activation="Silu")
    y = g.node("Concat", _twice_as_large(g, middle), fine, axis=1)
    fine = _cross_stage(g, y, 2 * w64, w64, 1, residual=False)
    y = g.node("Concat", g.conv(fine, w64, w64, 3, stride=2, activation="Silu"), middle, axis=1)
    middle = _cross_stage(g, y, 2 * w64, w128, 1, residual=False)
    y = g.node("Concat", g.conv(middle, w128, w128, 3, stride=2, activation="Silu"), coarse, axis=1)
    coarse = _cross_stage(g, y, 2 * w128, w256, 1, residual=False)
    return _detections(g, ((fine, w64), (middle, w128), (coarse, w256)), size)


def _cross_stage(g: Building, x: str, c_in: int, c_out: int, blocks: int, residual: bool = True) -> str:
    half = c_out // 2
    y = g.conv(x, c_in, half, activation="Silu")
    for _ in range(blocks):
        z = g.conv(g.conv(y, half, half, activation="Silu"), half, half, 3, activation="Silu")
        y = g.node("Add", y, z) if residual else z
    y = g.node("Concat", y, g.conv(x, c_in, half, activation="Silu"), axis=1)
    return g.conv(y, 2 * half, c_out, activation="Silu")


def _pyramid(g: Building, x: str, channels: int) -> str:
    levels = [g.conv(x, channels, channels // 2, activation="Silu")]
    for _ in range(3):
        levels.append(g.node("MaxPool", levels[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    return g.conv(g.node("Concat", *levels, axis=1), 2 * channels, channels, activation="Silu")


def _detections(g: Building, features: tuple[tuple[str, int], ...], size: int) -> ModelProto:
    """Add the detection head: boxes per position and anchor, scores of 80 classes, NonMaxSuppression."""
    found = [
        _boxes(g, x, c_in, size // step, step, anchors)
        for (x, c_in), (step, anchors) in zip(features, _ANCHORS, strict=True)
    ]
    y = g.node("Concat", *found, axis=1)
    boxes, sure, classes = g.nodes(3, "Split", y, g.integers(4, 1, 80), axis=2)
    scores = g.node("Mul", sure, classes)
    limits = g.integers(100), g.constant([0.45]), g.constant([0.25])
    by_class = g.node("Transpose", scores, perm=[0, 2, 1])
    kept = g.node("NonMaxSuppression", boxes, by_class, *limits, center_point_box=1)
    return g.model({"x": (1, 3, size, size)}, [boxes, scores], [kept])


def _boxes(g: Building, x: str, c_in: int, extent: int, step: int, anchors: tuple[tuple[int, int], ...]) -> str:
    w = g.constant(1.5 * g.filters((3 * 85, c_in, 1, 1), "Silu"))
    bias = g.random(3, 85, variance=0.01) - np.float32(4) * (np.arange(85) >= 4)
    y = g.node("Conv", x, w, g.constant(bias.reshape(-1)))
    y = g.node("Reshape", y, g.integers(1, 3, 85, extent, extent))
    y = g.node("Sigmoid", g.node("Transpose", y, perm=[0, 1, 3, 4, 2]))
    centers, sizes, rest = g.nodes(3, "Split", y, g.integers(2, 2, 81), axis=4)
    rows, columns = np.mgrid[:extent, :extent].astype(np.float32)
    places = g.constant(np.stack([columns, rows], -1)[None, None] - 0.5)
    two, pixels = g.constant(2), g.constant(step)
    centers = g.node("Mul", g.node("Add", g.node("Mul", centers, two), places), pixels)
    anchor = g.constant(np.array(anchors).reshape(1, 3, 1, 1, 2))
    sizes = g.node("Mul", g.node("Pow", g.node("Mul", sizes, two), two), anchor)
    y = g.node("Concat", centers, sizes, rest, axis=4)
    return g.node("Reshape", y, g.integers(1, 3 * extent * extent, 85))
