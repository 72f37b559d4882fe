"""Networks for audio and for lines of text: 1-D convolutions and LSTM."""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.architectures.building import Building

_WAV2VEC = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # kernel size, stride


def wav2vec2_features(size: int = 16000, part: float = 1.0) -> ModelProto:
    """The feature extractor of wav2vec 2.0 (Baevski and others, 2020) on one second of audio."""
    g = Building("wav2vec2_features", part)
    channels, y, c_in = g.width(512), "x", 1
    for layer, (taps, stride) in enumerate(_WAV2VEC):
        w = g.constant(g.filters((channels, c_in, taps), "Gelu"))
        y, c_in = g.node("Conv", y, w, kernel_shape=[taps], strides=[stride]), channels
        y = g.activate(y if layer else _group_norm(g, y, channels, channels), "Gelu")
    y = g.layer_norm(g.node("Transpose", y, perm=[0, 2, 1]), channels, epsilon=1e-5)
    return g.model({"x": (1, 1, size)}, [g.linear(y, channels, g.width(768))])


def conv_tasnet(size: int = 8000, part: float = 1.0, repeats: int = 3) -> ModelProto:
    """Conv-TasNet (Luo and Mesgarani, 2019), which separates two speakers: dilated depthwise convolutions."""
    g = Building("conv_tasnet", part)
    filters, narrow, wide, frames = g.width(512), g.width(128), g.width(512), size // 8 - 1
    w = g.constant(g.random(filters, 1, 16, variance=1 / 8))
    sound = g.node("Relu", g.node("Conv", "x", w, kernel_shape=[16], strides=[8]))
    y, total = _conv(g, _group_norm(g, sound, filters), filters, narrow), ""
    for dilation in [2**i for i in range(8)] * repeats:
        z = _group_norm(g, _prelu(g, _conv(g, y, narrow, wide)), wide)
        z = _conv(g, z, wide, wide, kernel_shape=[3], dilations=[dilation], pads=[dilation] * 2, group=wide)
        z = _group_norm(g, _prelu(g, z), wide)
        y, skip = g.node("Add", y, _conv(g, z, wide, narrow)), _conv(g, z, wide, narrow)
        total = g.node("Add", total, skip) if total else skip
    masks = g.node("Sigmoid", _conv(g, _prelu(g, total), narrow, 2 * filters))
    masks = g.node("Reshape", masks, g.integers(1, 2, filters, frames))
    y = g.node("Mul", masks, g.node("Unsqueeze", sound, g.integers(1)))
    y = g.node("Reshape", y, g.integers(2, filters, frames))
    w = g.constant(g.random(filters, 1, 16, variance=1 / filters))
    y = g.node("ConvTranspose", y, w, kernel_shape=[16], strides=[8])
    return g.model({"x": (1, 1, size)}, [g.node("Reshape", y, g.integers(1, 2, -1))])


def _conv(g: Building, x: str, c_in: int, c_out: int, group: int = 1, **attributes: object) -> str:
    attributes = {"kernel_shape": [1], **attributes}
    w = g.constant(g.filters((c_out, c_in // group, *attributes["kernel_shape"]), ""))
    return g.node("Conv", x, w, g.bias(c_out), group=group, **attributes)


def _prelu(g: Building, x: str) -> str:
    return g.node("PRelu", x, g.constant([[0.25]]))


def _group_norm(g: Building, x: str, channels: int, groups: int = 1) -> str:
    """Add group normalization as exporters write it before opset 21."""
    y = g.node("Reshape", x, g.integers(0, groups, -1))
    y = g.node("InstanceNormalization", y, g.constant([1] * groups), g.constant([0] * groups), epsilon=1e-5)
    y = g.node("Reshape", y, g.node("Shape", x))
    scale, shift = (g.random(channels, 1, variance=0.01) for _ in range(2))
    return g.node("Add", g.node("Mul", y, g.constant(1 + scale)), g.constant(shift))


def crnn(size: int = 100, part: float = 1.0) -> ModelProto:
    """CRNN (Shi and others, 2015), which reads a line of text: convolutions, then bidirectional LSTM."""
    g = Building("crnn", part)
    w64, w128, w256, w512 = (g.width(channels) for channels in (64, 128, 256, 512))
    y = g.conv("x", 1, w64, 3, activation="Relu")
    y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = g.conv(y, w64, w128, 3, activation="Relu")
    y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = g.conv(g.conv(y, w128, w256, 3, activation="Relu"), w256, w256, 3, activation="Relu")
    y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])
    y = g.conv(g.conv(y, w256, w512, 3, activation="Relu"), w512, w512, 3, activation="Relu")
    y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])
    y = g.conv(y, w512, w512, 2, pads=[0] * 4, activation="Relu")
    y = g.node("Transpose", g.node("Squeeze", y, g.integers(2)), perm=[2, 0, 1])
    y = g.linear(_lstm(g, y, w512, w256), 2 * w256, w256)
    return g.model({"x": (1, 1, 32, size)}, [g.linear(_lstm(g, y, w256, w256), 2 * w256, 37)])


def _lstm(g: Building, x: str, c_in: int, hidden: int) -> str:
    """Add a bidirectional LSTM; both directions are concatenated in the last axis."""
    w = g.constant(g.random(2, 4 * hidden, c_in, variance=1 / c_in))
    r = g.constant(g.random(2, 4 * hidden, hidden, variance=1 / hidden))
    b = g.constant(g.random(2, 8 * hidden, variance=0.01))
    y = g.node("LSTM", x, w, r, b, hidden_size=hidden, direction="bidirectional")
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    return g.node("Reshape", y, g.integers(0, 0, 2 * hidden))
