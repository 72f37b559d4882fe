"""The least time that a layer can take on a GPU: its fewest bytes at the rate of a copy, its work at a stated rate."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import calls
from benchmarks.layers import Layer
from gpuconv.cuda.plan import floor

# layers.json's names of dtypes, in the order in which they are measured
DTYPES = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "fp64": "float64",
    "c64": "complex64",
}
# Operations per second of one H200, as measured there: float64 as float32; TF32 by the datasheet half as fast as 16
# bits, three products of it for one of 3xTF32. The floor that `gpuconv.explain` prints is another, the datasheet's.
_HALF, _SINGLE = 790e12, 60e12  # matrix products of 16 bits, and of float32 without tensor cores
COPY = 4.3e12  # bytes per second of a copy, read and written
RATES = {
    "bfloat16": _HALF,
    "float16": _HALF,
    "float32": _SINGLE,
    "float64": _SINGLE,
    "tf32": _HALF / 2,
    "3xtf32": _HALF / 2 / 3,
    "complex64": _SINGLE,
}
RATES_OF = "NVIDIA H200"


@dataclass(frozen=True, slots=True)
class Floor:
    """What a layer cannot do without.

    Attributes
    ----------
    nbytes : int
        Every element that matters read once, every result written once.
    flops : int
        None of pools' count: their comparisons and sums hide behind memory.
    memory_seconds, math_seconds : float
    """

    nbytes: int
    flops: int
    memory_seconds: float
    math_seconds: float

    @property
    def seconds(self) -> float:
        """The larger of the two times."""
        return max(self.memory_seconds, self.math_seconds)

    @property
    def bound(self) -> str:
        """Which of the two it is."""
        return "math" if self.math_seconds > self.memory_seconds else "memory"


def label(dtype: str, precision: str) -> str:
    """Return the name of a dtype, of float32 in another precision than IEEE's that of the precision."""
    return dtype if precision == "ieee" else precision


def of(layer: Layer, dtype: str, bandwidth: float, precision: str = "ieee") -> Floor:
    """Return the floor of a layer in a dtype; ``bandwidth`` counts bytes read and bytes written, per second."""
    least = work(layer, dtype)
    seconds = least.flops / rate(layer, label(dtype, precision)) if least.flops else 0.0
    return Floor(least.bytes, least.flops, least.bytes / bandwidth, seconds)


def work(layer: Layer, dtype: str) -> floor.Work:
    """Return the least arithmetic and the fewest bytes of a layer in a dtype."""
    call = calls.of(layer)
    return floor.work(
        call.geometry,
        dtype,
        bias="b" in call.inputs,
        residual=call.residual is not None,
        indices=layer.indices,
        backwards=layer.call == "grad",
    )


def rate(layer: Layer, label: str) -> float:
    """Return the operations per second of a dtype or precision."""
    return RATES["float32"] if alone(layer) and label != "float64" else RATES[label]


def alone(layer: Layer) -> bool:
    """Tell whether matrix units have nothing to multiply."""
    return floor.is_depthwise(calls.of(layer).geometry)
