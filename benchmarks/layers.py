"""The benchmark layers of layers.json: shapes, work, class, and the rule that scales them down for a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from gpuconv.rules import geometry as geometries

Ints = tuple[int, ...]
CLASSES = (
    *("dense Conv", "depthwise Conv", "grouped Conv", "ConvTranspose", "MaxPool values", "MaxPool with Indices"),
    *("input gradient", "strided input gradient", "depthwise input gradient", "ConvTranspose input gradient"),
    *("weight gradient", "depthwise weight gradient", "ConvTranspose weight gradient", "bias gradient"),
    *("MaxPool gradient", "MaxUnpool", "AveragePool", "AveragePool gradient", "complex Conv", "fused Conv"),
)
_FUNCTIONS = {"Conv": "conv", "ConvTranspose": "conv_transpose", "MaxPool": "max_pool", "AveragePool": "average_pool"}
_DERIVED_DTYPES = ("bf16", "fp32")  # training dtypes, for gradients


@dataclass(frozen=True)
class Layer:
    """One node of a network; fields as in layers.json, axes in ONNX's order.

    ``call`` selects what is computed instead of the node's own result: "input_grad", "weight_grad" or "bias_grad" of
    Conv and ConvTranspose, "grad" of a pool, "unpool" of MaxPool; "fused" is Conv with residual and ReLU.
    """

    id: str
    net: str
    op: str
    x: Ints
    kernel: Ints
    strides: Ints
    pads: Ints
    dilations: Ints
    dtypes: tuple[str, ...]
    k_out: int = 0
    group: int = 1
    output_padding: Ints = ()
    ceil_mode: int = 0
    count_include_pad: int = 0
    indices: bool = False
    note: str = ""
    call: str = ""

    @property
    def operator(self) -> str:
        """Name of gpuconv's public function for this layer."""
        if self.call == "unpool":
            return "max_unpool"
        own = _FUNCTIONS[self.op]
        return own if self.call in ("", "fused") else f"{own}_{self.call}"

    @property
    def kind(self) -> str:
        """The class that this layer's results are averaged in, one of `CLASSES`."""
        if self.call:
            return self._kind_of_call()
        if self.dtypes == ("c64",):
            return "complex Conv"
        if self.op == "MaxPool":
            return "MaxPool with Indices" if self.indices else "MaxPool values"
        if self.op in ("ConvTranspose", "AveragePool"):
            return self.op
        if self.group == 1:
            return "dense Conv"
        return "depthwise Conv" if self.group == self.x[1] else "grouped Conv"

    def _kind_of_call(self) -> str:
        alone = {"bias_grad": "bias gradient", "unpool": "MaxUnpool", "fused": "fused Conv"}
        alone["grad"] = f"{self.op} gradient"
        if self.call in alone:
            return alone[self.call]
        what = self.call.replace("_grad", " gradient")
        if self.op == "ConvTranspose":
            return f"ConvTranspose {what}"
        if self.group == self.x[1] > 1:
            return f"depthwise {what}"
        return f"strided {what}" if self.call == "input_grad" and max(self.strides) > 1 else what

    @property
    def pools(self) -> bool:
        """Whether the operator is a pool: no weights, channels independent."""
        return self.op in ("MaxPool", "AveragePool")

    @property
    def multiplies(self) -> bool:
        """Whether it computes products, so that ``precision`` matters."""
        return not self.pools and self.call != "bias_grad"

    @property
    def w_shape(self) -> Ints:
        """Shape of the weights; () for pools."""
        channels = self.x[1]
        if self.pools:
            return ()
        if self.op == "ConvTranspose":
            return (channels, self.k_out // self.group, *self.kernel)
        return (self.k_out, channels // self.group, *self.kernel)

    @property
    def geometry(self) -> Any:
        """Validated geometry of the node's forward operator."""
        keywords = self.attributes()
        if self.op == "MaxPool":
            return geometries.max_pool(self.x, **keywords)
        if self.op == "AveragePool":
            return geometries.average_pool(self.x, **keywords)
        if self.op == "ConvTranspose":
            return geometries.conv_transpose(self.x, self.w_shape, None, **keywords)
        return geometries.conv(self.x, self.w_shape, None, **keywords)

    @property
    def y_shape(self) -> Ints:
        """Shape of the node's output."""
        shape: Ints = self.geometry.y_shape
        return shape

    @property
    def flops(self) -> int:
        """Real multiplications and additions, padding taps included; pools count one operation per tap."""
        if self.call == "bias_grad":
            return prod(self.y_shape)
        taps = prod(self.kernel)
        if self.pools:
            return prod(self.y_shape) * taps
        if self.op == "ConvTranspose":
            return 2 * prod(self.x) * (self.k_out // self.group) * taps
        return 2 * prod(self.y_shape) * (self.x[1] // self.group) * taps

    def nbytes(self, itemsize: int = 4) -> int:
        """Bytes of x and of the outputs, Indices included; weights do not shrink with the layer and are not counted."""
        y = prod(self.y_shape)
        counted = self.indices or (self.op == "MaxPool" and self.call)
        return (prod(self.x) + y) * itemsize + (8 * y if counted else 0)

    def attributes(self) -> dict[str, Any]:
        """The node's ONNX attributes, which are also gpuconv's keywords."""
        result: dict[str, Any] = {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "pads": self.pads,
            "dilations": self.dilations,
        }
        if self.op == "AveragePool":
            result["count_include_pad"] = self.count_include_pad
        if self.pools:
            return {**result, "ceil_mode": self.ceil_mode}
        if self.op == "ConvTranspose":
            result["output_padding"] = self.output_padding
        return {**result, "group": self.group}


def load() -> list[Layer]:
    """Read the nodes of layers.json."""
    return [_layer(entry) for entry in _read()["layers"]]


def load_derived() -> list[Layer]:
    """Read gradients and other calls on these nodes, named as ``resnet50.conv1/weight_grad``, and complex layers."""
    content = _read()
    known = {layer.id: layer for layer in load()}
    calls = [
        replace(known[name], id=f"{name}/{call}", call=call, dtypes=_DERIVED_DTYPES)
        for call, names in content["calls"].items()
        for name in names
    ]
    return [*calls, *map(_layer, content["complex"])]


def _read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / "layers.json").read_text(encoding="utf-8"))
    return content


def select(layers: list[Layer], name: str = "", op: str | None = None) -> list[Layer]:
    """Return the layers whose id contains ``name`` and, if ``op`` is given, that have this operator."""
    return [layer for layer in layers if name in layer.id and op in (None, layer.op)]


def scaled(layer: Layer, flops: float = 2e9, nbytes: float = 32e6) -> Layer:
    """Scale a layer down for a CPU.

    While its work exceeds ``flops``, or x and the outputs exceed ``nbytes``: halve the batch; once that is 1, halve
    (rounding up) every spatial extent that stays at least four times its `reach`; stop if nothing can be halved.
    Channels, kernel, strides, dilations, pads and group never change. Beyond about 32 MB the system maps an array's
    memory anew in every call, and its time would dominate both sides.
    """
    while layer.flops > flops or layer.nbytes() > nbytes:
        smaller = _halved(layer)
        if smaller == layer:
            break
        layer = smaller
    return layer


def _layer(entry: dict[str, Any]) -> Layer:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in entry.items()}
    return Layer(**fields)


def _halved(layer: Layer) -> Layer:
    batch, channels, *extents = layer.x
    if batch > 1:
        return replace(layer, x=(batch // 2, channels, *extents))
    halves = [-(-extent // 2) for extent in extents]
    kept = [h if h >= 4 * r else e for e, h, r in zip(extents, halves, reach(layer), strict=True)]
    return replace(layer, x=(1, channels, *kept))


def reach(layer: Layer) -> list[int]:
    """Return the receptive field of one output along each axis, in inputs, or the stride if that is larger."""
    windows = [(k - 1) * d + 1 for k, d in zip(layer.kernel, layer.dilations, strict=True)]
    if layer.op == "ConvTranspose":
        return [-(-window // s) for window, s in zip(windows, layer.strides, strict=True)]
    return [max(window, s) for window, s in zip(windows, layer.strides, strict=True)]
