"""The floor of a layer on a GPU: a roofline bound from its fewest bytes and its arithmetic.

It is the larger of two times: every needed byte read or written once at the measured copy bandwidth, and all FLOPs at
the rates below. Benchmarks divide measured times by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import calls
from benchmarks.layers import Layer
from gpuconv.cuda.plan import floor

# The dtype names of layers.json, in the order of measurement
DTYPES = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "fp64": "float64",
    "c64": "complex64",
}
# Operations per second of one H200. The 16-bit and float32 rates were measured. float64 is taken to equal float32; TF32
# runs at half the 16-bit rate by the datasheet, and 3xTF32 needs three TF32 products for each of its own.
# `gpuconv.explain` prints another floor, by the datasheet's rates.
_HALF, _SINGLE = 790e12, 60e12  # 16-bit matrix products, and float32 without tensor cores
COPY = 4.3e12  # bytes per second of a copy, counting bytes read and bytes written
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
    """The roofline bound of a layer.

    Attributes
    ----------
    nbytes : int
        Bytes to move if each needed element is read once and each result written once.
    flops : int
        Operations; 0 for pools, whose comparisons and additions hide behind memory traffic.
    memory_seconds, math_seconds : float
        Time of the bytes and of the operations, each taken by itself.
    """

    nbytes: int
    flops: int
    memory_seconds: float
    math_seconds: float

    @property
    def seconds(self) -> float:
        """The floor: the larger of the two times."""
        return max(self.memory_seconds, self.math_seconds)

    @property
    def bound(self) -> str:
        """ "math" if arithmetic takes longer than memory traffic, else "memory"."""
        return "math" if self.math_seconds > self.memory_seconds else "memory"


def label(dtype: str, precision: str) -> str:
    """Return the name of a dtype, or of its precision where that is not "ieee"."""
    return dtype if precision == "ieee" else precision


def of(layer: Layer, dtype: str, bandwidth: float, precision: str = "ieee") -> Floor:
    """Return the floor of a layer in a dtype; ``bandwidth`` is in bytes per second, counting bytes read and written."""
    least = work(layer, dtype)
    seconds = least.flops / rate(layer, label(dtype, precision)) if least.flops else 0.0
    return Floor(least.bytes, least.flops, least.bytes / bandwidth, seconds)


def work(layer: Layer, dtype: str) -> floor.Work:
    """Return the least arithmetic and the fewest bytes that a layer needs in a dtype."""
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
    """Return the FLOP/s of a dtype or precision for this layer; depthwise layers cannot use tensor cores."""
    return RATES["float32"] if alone(layer) and label != "float64" else RATES[label]


def alone(layer: Layer) -> bool:
    """Return whether a layer is depthwise, so that tensor cores have no matrices to multiply."""
    return floor.is_depthwise(calls.of(layer).geometry)
