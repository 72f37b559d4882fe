"""Networks for mobile devices: depthwise 3x3 and 5x5 convolutions, grouped ones, squeeze-and-excite."""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.architectures.building import Building

# kernel size, expanded channels, output channels, squeeze-and-excite, activation, stride
_MOBILENET_V3_LARGE = (
    (3, 16, 16, False, "Relu", 1),
    (3, 64, 24, False, "Relu", 2),
    (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2),
    (5, 120, 40, True, "Relu", 1),
    (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2),
    (3, 200, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1),
    (3, 480, 112, True, "HardSwish", 1),
    (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2),
    (5, 960, 160, True, "HardSwish", 1),
    (5, 960, 160, True, "HardSwish", 1),
)
# kernel size, expansion factor, output channels, blocks, stride of the first block
_EFFICIENTNET_B0 = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
_REGNET_Y_400MF = ((48, 1), (104, 3), (208, 6), (440, 6))  # output channels, blocks


def mobilenet_v3(size: int = 224, part: float = 1.0) -> ModelProto:
    """MobileNetV3-Large (Howard and others, 2019)."""
    g = Building("mobilenet_v3", part)
    channels = g.width(16)
    y = g.conv("x", 3, channels, 3, stride=2, activation="HardSwish")
    for taps, middle, c_out, squeeze, activation, stride in _MOBILENET_V3_LARGE:
        middle, c_out = g.width(middle), g.width(c_out)
        z = y if middle == channels else g.conv(y, channels, middle, activation=activation)
        z = g.conv(z, middle, middle, taps, stride=stride, group=middle, activation=activation)
        if squeeze:
            z = g.squeezed(z, middle, g.width(middle // 4), "Relu", "HardSigmoid")
        z = g.conv(z, middle, c_out)
        y, channels = g.node("Add", z, y) if stride == 1 and c_out == channels else z, c_out
    y = g.conv(y, channels, g.width(960), activation="HardSwish")
    y = g.node("Flatten", g.node("GlobalAveragePool", y))
    y = g.linear(y, g.width(960), g.width(1280), activation="HardSwish")
    return g.model({"x": (1, 3, size, size)}, [g.linear(y, g.width(1280), 1000)])


def efficientnet_b0(size: int = 224, part: float = 1.0) -> ModelProto:
    """EfficientNet-B0 (Tan and Le, 2019)."""
    g = Building("efficientnet_b0", part)
    channels = g.width(32)
    y = g.conv("x", 3, channels, 3, stride=2, activation="Silu")
    for taps, expansion, wide, blocks, first_stride in _EFFICIENTNET_B0:
        for stride in (first_stride, *[1] * (blocks - 1)):
            middle, c_out = channels * expansion, g.width(wide)
            z = g.conv(y, channels, middle, activation="Silu") if expansion > 1 else y
            z = g.conv(z, middle, middle, taps, stride=stride, group=middle, activation="Silu")
            z = g.squeezed(z, middle, max(1, channels // 4), "Silu", "Sigmoid")
            z = g.conv(z, middle, c_out)
            y, channels = g.node("Add", z, y) if stride == 1 and c_out == channels else z, c_out
    y = g.conv(y, channels, g.width(1280), activation="Silu")
    return g.model({"x": (1, 3, size, size)}, [g.classified(y, g.width(1280))])


def regnet_y_400mf(size: int = 224, part: float = 1.0) -> ModelProto:
    """RegNetY-400MF (Radosavovic and others, 2020): groups of eight channels, squeeze-and-excite."""
    g = Building("regnet_y_400mf", part)
    channels = g.width(32)
    y = g.conv("x", 3, channels, 3, stride=2, activation="Relu")
    for c_out, blocks in _REGNET_Y_400MF:
        c_out = g.width(c_out)
        for stride in (2, *[1] * (blocks - 1)):
            z = g.conv(y, channels, c_out, activation="Relu")
            z = g.conv(z, c_out, c_out, 3, stride=stride, group=c_out // 8, activation="Relu")
            z = g.squeezed(z, c_out, max(1, channels // 4), "Relu", "Sigmoid")
            z = g.conv(z, c_out, c_out)
            shortcut = y if stride == 1 else g.conv(y, channels, c_out, stride=stride)
            y, channels = g.node("Relu", g.node("Add", shortcut, z)), c_out
    return g.model({"x": (1, 3, size, size)}, [g.classified(y, channels)])


def shufflenet_v2(size: int = 224, part: float = 1.0) -> ModelProto:
    """ShuffleNetV2 x1.0 (Ma and others, 2018): half of the channels bypass each block; then channels are shuffled."""
    g = Building("shufflenet_v2", part)
    channels, extent = 24, size // 4
    y = g.conv("x", 3, channels, 3, stride=2, activation="Relu")
    y = g.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for wide, blocks in ((116, 4), (232, 8), (464, 4)):
        half, extent = g.width(wide) // 2, extent // 2
        past = g.conv(g.conv(y, channels, channels, 3, stride=2, group=channels), channels, half, activation="Relu")
        y = _shuffled(g, past, _shuffle_branch(g, y, channels, half, 2), 2 * half, extent)
        for _ in range(blocks - 1):
            past, z = g.nodes(2, "Split", y, axis=1, num_outputs=2)
            y = _shuffled(g, past, _shuffle_branch(g, z, half, half, 1), 2 * half, extent)
        channels = 2 * half
    y = g.conv(y, channels, g.width(1024), activation="Relu")
    return g.model({"x": (1, 3, size, size)}, [g.classified(y, g.width(1024))])


def _shuffle_branch(g: Building, x: str, c_in: int, c_out: int, stride: int) -> str:
    y = g.conv(x, c_in, c_out, activation="Relu")
    return g.conv(g.conv(y, c_out, c_out, 3, stride=stride, group=c_out), c_out, c_out, activation="Relu")


def _shuffled(g: Building, left: str, right: str, channels: int, extent: int) -> str:
    y = g.node("Reshape", g.node("Concat", left, right, axis=1), g.integers(1, 2, channels // 2, extent, extent))
    return g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3, 4]), g.integers(1, channels, extent, extent))
