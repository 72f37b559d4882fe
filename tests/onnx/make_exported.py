"""Make the models in tests/onnx/exported: networks of PyTorch's, exported by torch.onnx.export, without their weights.

python -m tests.onnx.make_exported  # needs torch, onnx and onnxscript; torch 2.13 and onnxscript 0.7.2 made them

Floating-point initializers that are vectors or have more than 64 elements become ConstantOfShape, as in the networks
of the onnx package: `onnx_networks.with_random_weights` gives seeded values to both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent / "exported"
_SMALL = 64


def _conv(before: int, after: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


class UNet(nn.Module):
    """Two levels down by MaxPool, up by ConvTranspose and by bilinear interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(_conv(3, 16), nn.ReLU(), _conv(16, 16), nn.ReLU())
        self.second = nn.Sequential(_conv(16, 32), nn.ReLU(), _conv(32, 32), nn.ReLU())
        self.bottom = nn.Sequential(_conv(32, 64), nn.LeakyReLU(0.1), nn.Conv2d(64, 64, 3, padding=2, dilation=2))
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.third = nn.Sequential(_conv(64, 32), nn.ReLU6())
        self.last = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1), nn.PReLU(16), nn.Conv2d(16, 2, 1))

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(functional.max_pool2d(a, 2))
        c = self.up(self.bottom(functional.max_pool2d(b, 2)))
        d = self.third(torch.cat([b, c], 1))
        up = functional.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.last(torch.cat([a, up], 1)))


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(before, after, 3, stride), nn.ReLU(), _conv(after, after))
        self.aside = _conv(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.aside(x))


class ResNet(nn.Module):
    """ResNet-18 with a quarter of its channels."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for before, after, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 2)):
            blocks += [Residual(before, after, stride), Residual(after, after, 1)]
        self.stem = nn.Sequential(_conv(3, 16, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        return self.head(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class ConvNeXt(nn.Module):
    """A patch embedding and one block: depthwise 7x7, LayerNorm, two Linear layers with GELU, a scale, the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, stride=4)
        self.depthwise = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(32, eps=1e-6)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class SuperResolution(nn.Module):
    """Upsampling by 2 along each axis by PixelShuffle, added to an interpolated image; with hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 5, padding=2)
        self.gate = nn.Conv2d(32, 32, 1)
        self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(32, 32, 3), nn.Hardswish())
        self.last = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.first(x))
        y = self.body(y) * functional.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        up = functional.interpolate(x, scale_factor=2, mode="nearest")
        return (functional.pixel_shuffle(self.last(y), 2) + up).clamp(0, 1)


NETWORKS = {
    "unet": (UNet, (1, 3, 64, 64)),
    "resnet": (ResNet, (2, 3, 64, 64)),
    "convnext": (ConvNeXt, (1, 3, 64, 64)),
    "superresolution": (SuperResolution, (1, 1, 48, 48)),
}


def without_weights(model: onnx.ModelProto) -> None:
    """Replace large initializers by nodes of ConstantOfShape."""
    graph = model.graph
    kept, made, shapes = [], [], []
    for tensor in graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or (np.prod(tensor.dims) <= _SMALL and len(tensor.dims) != 1):
            kept.append(tensor)
            continue
        shape = f"{tensor.name}/shape"
        shapes.append(numpy_helper.from_array(np.array(tensor.dims, np.int64), shape))
        made.append(helper.make_node("ConstantOfShape", [shape], [tensor.name]))
    nodes = [*made, *graph.node]
    for field, items in (("initializer", [*kept, *shapes]), ("node", nodes), ("value_info", [])):
        graph.ClearField(field)
        getattr(graph, field).extend(items)
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")


def main() -> None:
    """Write all models, each also with the exporter based on TorchScript."""
    torch.manual_seed(0)  # for the few small weights that are kept
    for name, (network, shape) in NETWORKS.items():
        for dynamo in (True, False):
            path = FOLDER / f"{name}{'' if dynamo else '_torchscript'}.onnx"
            options: dict[str, Any] = {"optimize": False} if dynamo else {"opset_version": 13}
            with torch.no_grad():
                torch.onnx.export(
                    network().eval(), (torch.zeros(shape),), path, dynamo=dynamo, external_data=False, **options
                )
            model = onnx.load(path)
            without_weights(model)
            onnx.save(model, path)


if __name__ == "__main__":
    main()
