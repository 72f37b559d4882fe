"""Roofline bounds: the least arithmetic and memory traffic that a problem requires on a device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda.plan.limits import Representative
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import (
    AveragePoolGeometry,
    ConvGeometry,
    ConvTransposeGeometry,
    MaxPoolGeometry,
    tap_range,
)
from gpuconv.rules.gradients import MaxUnpoolGeometry, SumsGeometry

_Pooling = MaxPoolGeometry | AveragePoolGeometry
_Windows = ConvGeometry | ConvTransposeGeometry | _Pooling
Geometry = _Windows | MaxUnpoolGeometry | SumsGeometry
_INDEX = 8  # bytes per index
_MOST_PAIRS = 10**6  # (output, tap) pairs of an axis up to which covered inputs are counted exactly


@dataclass(frozen=True, slots=True)
class Work:
    """The minimum work of a problem, whatever the kernel."""

    # floating-point operations: 2 per multiply-add, 8 for complex numbers, out-of-bounds taps included; comparisons and
    # pure sums count as none
    flops: int
    # bytes of memory traffic: inputs that some output reads, weights, bias, residual, outputs and Indices, each once
    bytes: int

    def seconds(self, rate: float, bandwidth: float) -> float:
        """Return the roofline bound in seconds, for a rate of operations and a bandwidth in bytes, both per second."""
        return max(self.flops / rate, self.bytes / bandwidth)


def work(
    geometry: Geometry,
    dtype: str,
    *,
    bias: bool = False,
    residual: bool = False,
    indices: bool = False,
    backwards: bool = False,
) -> Work:
    """Return the minimum work of one call of any operator; ``backwards`` for the gradient of a pool.

    A weight gradient has the work of the Conv with its geometry.
    """
    size = dtypes.entry(dtype).itemsize
    elements, outputs = prod(geometry.x_shape), prod(geometry.y_shape)
    if isinstance(geometry, SumsGeometry):
        return Work(0, size * (elements + outputs))
    if isinstance(geometry, MaxUnpoolGeometry):
        return Work(0, size * (elements + outputs) + _INDEX * elements)
    if backwards:
        return Work(0, size * (elements + outputs) + _INDEX * outputs * isinstance(geometry, MaxPoolGeometry))
    inputs = prod(geometry.x_shape[:2]) * prod(_met(geometry, axis) for axis in range(len(geometry.kernel_shape)))
    if isinstance(geometry, _Pooling):
        return Work(0, size * (inputs + outputs) + _INDEX * outputs * indices)
    weights = prod(geometry.w_shape) + geometry.y_shape[1] * bias
    # Each weight is used per output pixel in Conv, per input pixel in ConvTranspose.
    pixels = geometry.y_shape if isinstance(geometry, ConvGeometry) else geometry.x_shape
    flops = (8 if dtypes.entry(dtype).real else 2) * prod(geometry.w_shape) * pixels[0] * prod(pixels[2:])
    return Work(flops, size * (inputs + weights + outputs * (1 + residual)))


def is_depthwise(geometry: Geometry) -> bool:
    """Return whether each of several groups has one input channel (depthwise), which leaves tensor cores no K."""
    group = getattr(geometry, "group", 1)
    return bool(1 < group == geometry.x_shape[1])


def rate(geometry: Geometry, dtype: str, precision: str, device: Representative) -> float:
    """Return the operations per second that a device's datasheet allows for a problem."""
    return device.rate(dtypes.entry(dtype).accumulator) if is_depthwise(geometry) else device.peak(dtype, precision)


def _met(geometry: _Windows, axis: int) -> int:
    """Return how many coordinates of an input axis contribute to some output."""
    n, out, stride = geometry.x_shape[2 + axis], geometry.y_shape[2 + axis], geometry.strides[axis]
    offsets = geometry.offsets[axis]
    if 0 in (n, out):
        return 0
    if isinstance(geometry, ConvTransposeGeometry):
        if n * len(offsets) > _MOST_PAIRS:
            return n
        return sum(any(0 <= i * stride + offset < out for offset in offsets) for i in range(n))
    if out * len(offsets) > _MOST_PAIRS:
        return n
    met: set[int] = set()
    for offset in offsets:
        low, high = tap_range(out, n, stride, offset)
        met.update(range(low * stride + offset, high * stride + offset, stride))
    return len(met)
