"""Encode gpuconv's description of a tensor map for the emulator."""

from __future__ import annotations

from emulated_cuda.emulator.memory import encode_map
from gpuconv.cuda.plan.launch import TensorMap
from gpuconv.rules import dtypes


def encoded(described: TensorMap, address: int) -> bytes:
    """Return the 128 bytes of a tensor map of the array at an address; ValueError if the driver would refuse it."""
    corners = (described.lower, described.upper, described.channels, described.pixels)
    return encode_map(
        address,
        dtypes.entry(described.dtype).itemsize,
        described.sizes,
        described.strides,
        described.steps,
        (0, 32, 64, 128).index(described.swizzle),
        described.box,
        None if described.box else corners,
    )
