"""What plans must know of a device; and one well-known device per architecture, for where no device is asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpuconv._errors import ArgumentError, shown, text_of
from gpuconv.cuda.plan import measured_rates
from gpuconv.rules import dtypes

RESERVED_BYTES = 1024  # of a multiprocessor's shared memory that go with each block
_REGISTERS = 65536  # of a multiprocessor


def blocks_by_registers(registers: int, accumulator: str, threads: int) -> int:
    """Return how many blocks leave each thread so many registers, and half as many again where sums are not float32."""
    registers = registers * (2 if accumulator == "float32" else 3) // 2
    return _REGISTERS // (registers * threads)


@dataclass(frozen=True, slots=True)
class Rates:
    """What kernels come to of a device's rates: the few numbers of the model that measurements tell.

    All but ``wgmma`` are assumed where nothing was measured.
    """

    launch: float = 2e-6  # seconds that each launch after the first adds
    beginning: float = 0.5e-6  # seconds from a block's start until its first product
    adding: float = 1.5e-6  # seconds from a block's last sum until another one reads it
    cached: float = 30.0  # bytes of the L2 cache that a multiprocessor has per clock: 7.8 TB/s for all of an H200
    latency: float = 0.6e-6  # seconds from a load until memory answers it, under load
    tensor: float = 0.6  # share of the tensor cores' rate that mma.sync comes to
    # That share where wgmma, or tcgen05, alone reaches the rate: 62 % of wgmma's own (arXiv:2402.13499)
    beside_wgmma: float = 0.46
    alone: float = 1.4  # times as long that mma.sync takes where a scheduler has one warp, and nothing hides its waits
    # Share of it that wgmma comes to: that of matrix products of 790 TFLOP/s, as measured on an H200
    wgmma: float = 0.74
    bandwidth: float = 0.85  # share of the memory's bandwidth that a kernel without arithmetic comes to


ASSUMED = Rates()
_BESIDE_TCGEN05 = 0.23  # with it mma.sync is as fast on a multiprocessor of sm_100a as on one of sm_90a; assumed


def rates_of(name: str, architecture: str) -> Rates:
    """Return the rates measured on devices of a name, else those of its architecture, else those that are assumed."""
    measured = measured_rates.MEASURED.get(name) or measured_rates.MEASURED.get(architecture)
    if measured:
        return Rates(**measured)
    return replace(ASSUMED, beside_wgmma=_BESIDE_TCGEN05) if architecture.startswith("sm_10") else ASSUMED


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must know of a device."""

    architecture: str  # as NVRTC names it: ``sm_80``, ``sm_90a``
    multiprocessors: int
    shared_bytes_per_block: int  # dynamic shared memory that a block can ask for
    shared_bytes_per_multiprocessor: int
    name: str = ""  # of the device, as the driver says; empty where none is asked
    rates: Rates = ASSUMED  # by which times are predicted
    # Of the memory, in bytes per second; 0 where it is not known: then that of the architecture's well-known device, by
    # the multiprocessors
    bandwidth: float = 0.0
    # Returns the name of the kernel that was measured to be the quickest for a problem on this device, if one was
    measured: Callable[[Any], str | None] | None = field(default=None, compare=False, repr=False)

    def blocks_of(self, shared_bytes: int) -> int:
        """Return how many blocks with so many bytes a multiprocessor's shared memory has room for, at least one."""
        return max(1, self.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_BYTES))


@dataclass(frozen=True, slots=True)
class Representative:
    """A device by its datasheet."""

    name: str
    limits: Limits
    clock: float  # boost clock of the multiprocessors, in Hz
    lanes: int  # multiply-adds of a multiprocessor per clock, in float32 without tensor cores
    double_lanes: int  # in float64
    bandwidth: float  # of the memory, in bytes per second
    # Multiply-adds of a multiprocessor per clock on tensor cores, dense, with sums as wide as float32 or the factors:
    # of 16-bit, of TF32 and of float64 factors
    tensor_lanes: tuple[int, int, int]

    def rate(self, accumulator: str) -> float:
        """Return the floating-point operations per second of the cores' own multipliers, two per multiply-add."""
        lanes = self.double_lanes if accumulator == "float64" else self.lanes
        return 2 * lanes * self.clock * self.limits.multiprocessors

    def peak(self, dtype: str, precision: str = "ieee") -> float:
        """Return the most operations per second that any of its units comes to, of factors of a dtype and precision."""
        half, single, double = self.tensor_lanes
        dtype = dtypes.entry(dtype).real or dtype
        own = {"float64": self.double_lanes}.get(dtype, self.lanes)
        tensor = {"float16": half, "bfloat16": half, "float64": double}.get(dtype, 0)
        if dtype == "float32":
            tensor = {"ieee": 0, "tf32": single, "3xtf32": single // 3}[precision]
        return 2 * max(own, tensor) * self.clock * self.limits.multiprocessors


def _limits(architecture: str, multiprocessors: int, kilobytes: int) -> Limits:
    """Shared memory of a multiprocessor in KiB; a block gets all of it but one."""
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


_HALVED = ("sm_86", "sm_89", "sm_120", "sm_120a")  # where GeForce cards add up in float32 at half the rate of others
_HALVED_CARDS = "GeForce"


def described(limits: Limits) -> Representative:
    """Return what stands for a device: that of its architecture; professional cards have the whole rate of theirs."""
    return _described(limits.architecture, limits.name)


@cache
def _described(architecture: str, name: str) -> Representative:
    device = nearest(architecture)
    if architecture not in _HALVED or not name or _HALVED_CARDS in name:
        return device
    half, single, double = device.tensor_lanes
    return replace(device, tensor_lanes=(2 * half, 2 * single, double))


@cache
def nearest(architecture: str) -> Representative:
    """Return the device of an architecture; of one that has none, as ``sm_103a``, that of the next lower one."""
    number = int("".join(filter(str.isdigit, architecture)))
    return _TABLE[max((known for known in _TABLE if known <= number), default=min(_TABLE))]


def representative(architecture: str) -> Representative:
    """Return the device that stands for an architecture: ``sm_90``, ``sm_90a``, ``90``.

    An ArgumentError for one that has none lists those that have.
    """
    match = re.fullmatch(r"(?:sm_)?([0-9]{1,4})[af]?", text_of(architecture))
    device = _TABLE.get(int(match[1])) if match else None
    if device is None:
        known = ", ".join(f"sm_{number}" for number in _TABLE)
        raise ArgumentError(f"explain: arch must be one of {known}, not {shown(architecture)}")
    return device
