"""Map a benchmark layer to the gpuconv call that computes it: public function, array shapes and keywords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.layers import Ints, Layer
from gpuconv.rules import layout as layouts
from gpuconv.rules.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a public function.

    Attributes
    ----------
    operator : str
        Name of the function.
    inputs : dict of str to tuple
        Shapes of its array arguments in positional order, in the layout of ``keywords``.
    keywords : dict
        ONNX attributes and the layout, without the precision.
    residual : tuple or None
        Shape of the residual that is added before ReLU, if any.
    """

    operator: str
    inputs: dict[str, Ints]
    keywords: dict[str, Any]
    residual: Ints | None = None

    @property
    def arrays(self) -> dict[str, Ints]:
        """Shapes of all array arguments by name, the residual included."""
        return self.inputs if self.residual is None else self.inputs | {"residual": self.residual}

    @property
    def geometry(self) -> Any:
        """The validated geometry that the backends take."""
        return OPERATORS[self.operator].geometry(*self.inputs.values(), **self.keywords)

    @property
    def result_shape(self) -> Ints:
        """Shape of the first result: N, C, D1, … for activations, the weights' own order for their gradient."""
        return OPERATORS[self.operator].result(self.geometry)


def of(layer: Layer, layout: str = "NCHW") -> Call:
    """Return the call of a layer with activations in this layout; Conv and ConvTranspose get a bias."""
    called = OPERATORS[layer.operator]
    x, y = (layouts.as_given(layout, shape) for shape in (layer.x, layer.y_shape))
    shapes = {"x": x, "w": layer.w_shape, "b": (layer.k_out,), "dy": y, "y": y, "indices": y}
    inputs = {name: shapes[name] for name in called.inputs}
    given = layer.attributes() | {"x_shape": x, "w_shape": layer.w_shape}
    if layer.call == "unpool":
        given["output_shape"] = layer.x[2:]
    keywords = {name: given[name] for name in called.attributes if name in given}
    return Call(layer.operator, inputs, keywords | {"layout": layout}, y if layer.call == "fused" else None)
