"""The call of gpuconv that a layer stands for: the public function, its arrays' shapes and its keywords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.layers import Ints, Layer
from gpuconv.rules import layout as layouts
from gpuconv.rules.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes
    ----------
    operator : str
        The function's name.
    inputs : dict of str to tuple
        Shapes of the arrays that it takes, in its order and in the layout.
    keywords : dict
        Attributes and the layout; no precision.
    residual : tuple or None
        Shape of a residual, which is added before relu.
    """

    operator: str
    inputs: dict[str, Ints]
    keywords: dict[str, Any]
    residual: Ints | None = None

    @property
    def arrays(self) -> dict[str, Ints]:
        """Shapes of all arrays that the function takes, by their names."""
        return self.inputs if self.residual is None else self.inputs | {"residual": self.residual}

    @property
    def geometry(self) -> Any:
        """What the backends compute by."""
        return OPERATORS[self.operator].geometry(*self.inputs.values(), **self.keywords)

    @property
    def result_shape(self) -> Ints:
        """Shape of the first result, in the order N, C, D1, …, or of weights."""
        return OPERATORS[self.operator].result(self.geometry)


def of(layer: Layer, layout: str = "NCHW") -> Call:
    """Return the call of a layer whose activations have this layout; Conv and ConvTranspose have a bias."""
    called = OPERATORS[layer.operator]
    x, y = (layouts.as_given(layout, shape) for shape in (layer.x, layer.y_shape))
    shapes = {"x": x, "w": layer.w_shape, "b": (layer.k_out,), "dy": y, "y": y, "indices": y}
    inputs = {name: shapes[name] for name in called.inputs}
    given = layer.attributes() | {"x_shape": x, "w_shape": layer.w_shape}
    if layer.call == "unpool":
        given["output_shape"] = layer.x[2:]
    keywords = {name: given[name] for name in called.attributes if name in given}
    return Call(layer.operator, inputs, keywords | {"layout": layout}, y if layer.call == "fused" else None)
