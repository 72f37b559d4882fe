"""What kernels come to of a device's rates: the few numbers of the model that measurements tell."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconv.cuda.plan.measured_rates import MEASURED


@dataclass(frozen=True, slots=True)
class Rates:
    """All but ``wgmma`` are assumed where nothing was measured.

    Attributes
    ----------
    launch : float
        Seconds that each launch after the first adds.
    beginning : float
        Seconds from a block's start until its first product.
    adding : float
        Seconds from a block's last sum until another one reads it.
    cached : float
        Bytes of the L2 cache that a multiprocessor has per clock: 7.8 TB/s for all of an H200.
    tensor : float
        Share of the tensor cores' rate that mma.sync comes to.
    beside_wgmma : float
        That share where wgmma alone reaches the rate: 62 % of its own (arXiv:2402.13499).
    wgmma : float
        Share of it that wgmma comes to: that of matrix products of 790 TFLOP/s, as measured on an H200.
    bandwidth : float
        Share of the memory's bandwidth that a kernel without arithmetic comes to.
    """

    launch: float = 2e-6
    beginning: float = 0.5e-6
    adding: float = 1.5e-6
    cached: float = 30.0
    tensor: float = 0.6
    beside_wgmma: float = 0.46
    wgmma: float = 0.74
    bandwidth: float = 0.85


ASSUMED = Rates()


def of(name: str, architecture: str) -> Rates:
    """Return the rates measured on devices of a name, else those of its architecture, else those that are assumed."""
    found = MEASURED.get(name) or MEASURED.get(architecture)
    return Rates(**found) if found else ASSUMED
