"""What planning needs to know about a device; one representative device per architecture for planning without one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpuconv._errors import ArgumentError, shown, text_of
from gpuconv.cuda.plan import measured_rates
from gpuconv.rules import dtypes

RESERVED_BYTES = 1024  # shared memory that the driver reserves per block
_REGISTERS = 65536  # registers per SM


def blocks_by_registers(registers: int, accumulator: str, threads: int) -> int:
    """Return the blocks per SM that registers allow; ``registers`` per thread, 1.5 times as many if not float32."""
    registers = registers * (2 if accumulator == "float32" else 3) // 2
    return _REGISTERS // (registers * threads)


@dataclass(frozen=True, slots=True)
class Rates:
    """Fractions of peak rates, and latencies, that kernels reach: the cost model's tunable constants.

    Assumed unless measured, except ``wgmma``.
    """

    launch: float = 2e-6  # seconds added by each launch after the first
    beginning: float = 0.5e-6  # seconds from a block's start to its first product
    adding: float = 1.5e-6  # seconds from a block's last partial sum until another block has read it
    cached: float = 30.0  # L2 bytes per SM and clock: 7.8 TB/s for an H200 as a whole
    latency: float = 0.6e-6  # seconds of load latency from DRAM, under load
    tensor: float = 0.6  # fraction of the tensor-core peak that mma.sync reaches
    # that fraction where only wgmma or tcgen05 reach the peak: 62 % of wgmma's own (arXiv:2402.13499)
    beside_wgmma: float = 0.46
    alone: float = 1.4  # slowdown of mma.sync with one warp per scheduler, which leaves latencies exposed
    # fraction of the peak that wgmma reaches: matrix products of 790 TFLOP/s measured on an H200
    wgmma: float = 0.74
    bandwidth: float = 0.85  # fraction of the memory bandwidth that a kernel without arithmetic reaches


ASSUMED = Rates()
_BESIDE_TCGEN05 = 0.23  # assumed: mma.sync on sm_100a is then as fast per SM as on sm_90a


def rates_of(name: str, architecture: str) -> Rates:
    """Return the rates measured for a device name, else for its architecture, else the assumed ones."""
    measured = measured_rates.MEASURED.get(name) or measured_rates.MEASURED.get(architecture)
    if measured:
        return Rates(**measured)
    return replace(ASSUMED, beside_wgmma=_BESIDE_TCGEN05) if architecture.startswith("sm_10") else ASSUMED


@dataclass(frozen=True, slots=True)
class Limits:
    """The properties of a device that plans depend on."""

    architecture: str  # NVRTC's name, such as ``sm_80`` or ``sm_90a``
    multiprocessors: int
    shared_bytes_per_block: int  # most dynamic shared memory per block (opt-in)
    shared_bytes_per_multiprocessor: int
    name: str = ""  # the device's name; empty when planning without a device
    rates: Rates = ASSUMED  # constants of the cost model
    # memory bandwidth in bytes per second; 0 if unknown: then the representative device's, scaled by SMs
    bandwidth: float = 0.0
    # problem → name of the kernel that ``tune`` measured to be fastest on this device, or None
    measured: Callable[[Any], str | None] | None = field(default=None, compare=False, repr=False)

    def blocks_of(self, shared_bytes: int) -> int:
        """Return how many blocks fit on one SM, limited by shared memory (at least 1)."""
        return max(1, self.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_BYTES))


@dataclass(frozen=True, slots=True)
class Representative:
    """A device by its datasheet, representative of its architecture."""

    name: str
    limits: Limits
    clock: float  # boost clock in Hz
    lanes: int  # float32 multiply-adds per SM and clock, without tensor cores
    double_lanes: int  # float64 multiply-adds per SM and clock
    bandwidth: float  # memory bandwidth in bytes per second
    # dense tensor-core multiply-adds per SM and clock for 16-bit, TF32 and float64, with accumulators of float32 or the
    # factors' width
    tensor_lanes: tuple[int, int, int]

    def rate(self, accumulator: str) -> float:
        """Return the peak FLOP/s of CUDA cores, counting two per multiply-add."""
        lanes = self.double_lanes if accumulator == "float64" else self.lanes
        return 2 * lanes * self.clock * self.limits.multiprocessors

    def peak(self, dtype: str, precision: str = "ieee") -> float:
        """Return the peak FLOP/s of the device's fastest unit for this dtype and precision."""
        half, single, double = self.tensor_lanes
        dtype = dtypes.entry(dtype).real or dtype
        own = {"float64": self.double_lanes}.get(dtype, self.lanes)
        tensor = {"float16": half, "bfloat16": half, "float64": double}.get(dtype, 0)
        if dtype == "float32":
            tensor = {"ieee": 0, "tf32": single, "3xtf32": single // 3}[precision]
        return 2 * max(own, tensor) * self.clock * self.limits.multiprocessors


def _limits(architecture: str, multiprocessors: int, kilobytes: int) -> Limits:
    """Return the limits for ``kilobytes`` KiB of shared memory per SM, of which a block gets all but one."""
    shared_bytes = kilobytes * 1024
    rates = rates_of("", architecture)
    return Limits(architecture, multiprocessors, shared_bytes - 1024, shared_bytes, rates=rates)


_TABLE = {
    80: Representative("A100", _limits("sm_80", 108, 164), 1.41e9, 64, 32, 2.04e12, (1024, 512, 64)),
    86: Representative("RTX 3090", _limits("sm_86", 82, 100), 1.695e9, 128, 2, 0.936e12, (256, 128, 2)),
    87: Representative("Jetson AGX Orin", _limits("sm_87", 16, 164), 1.3e9, 128, 2, 0.205e12, (1024, 512, 2)),
    89: Representative("RTX 4090", _limits("sm_89", 128, 100), 2.52e9, 128, 2, 1.008e12, (256, 128, 2)),
    90: Representative("H200", _limits("sm_90a", 132, 228), 1.98e9, 128, 64, 4.8e12, (2048, 1024, 128)),
    100: Representative("B200", _limits("sm_100a", 148, 228), 1.965e9, 128, 64, 8.0e12, (4096, 2048, 64)),
    120: Representative("RTX 5090", _limits("sm_120a", 170, 100), 2.407e9, 128, 2, 1.792e12, (256, 128, 2)),
}


# architectures whose GeForce cards accumulate in float32 at half the rate of professional ones
_HALVED = ("sm_86", "sm_89", "sm_120", "sm_120a")
_HALVED_CARDS = "GeForce"


def described(limits: Limits) -> Representative:
    """Return the representative of a device's architecture, at the full tensor rate for professional cards."""
    return _described(limits.architecture, limits.name)


@cache
def _described(architecture: str, name: str) -> Representative:
    """Return the representative for an architecture and device name."""
    device = nearest(architecture)
    if architecture not in _HALVED or not name or _HALVED_CARDS in name:
        return device
    half, single, double = device.tensor_lanes
    return replace(device, tensor_lanes=(2 * half, 2 * single, double))


@cache
def nearest(architecture: str) -> Representative:
    """Return the representative of an architecture, or of the next lower one if it has none (``sm_103a``)."""
    number = int("".join(filter(str.isdigit, architecture)))
    return _TABLE[max((known for known in _TABLE if known <= number), default=min(_TABLE))]


def representative(architecture: str) -> Representative:
    """Return the device that represents an architecture: ``sm_90``, ``sm_90a`` or ``90``.

    An ArgumentError for an unknown one lists those that are known.
    """
    match = re.fullmatch(r"(?:sm_)?([0-9]{1,4})[af]?", text_of(architecture))
    device = _TABLE.get(int(match[1])) if match else None
    if device is None:
        known = ", ".join(f"sm_{number}" for number in _TABLE)
        raise ArgumentError(f"explain: arch must be one of {known}, not {shown(architecture)}")
    return device
