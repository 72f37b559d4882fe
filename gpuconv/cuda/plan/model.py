"""The cost model: predicts a kernel's seconds, to rank candidates that have not been measured.

It takes the longer of the busiest SM's arithmetic and of memory traffic, with imperfect overlap. Peak rates are those
of the architecture's representative device (limits.py), scaled by the fractions in limits.Rates. Only the order of
candidates has to be right.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuconv.cuda.plan.limits import Limits, described, nearest

_SCHEDULERS = 4  # warp schedulers per SM
_ENOUGH = 2  # warps per scheduler that hide latency: one issues while the other waits
_EXPOSED = 0.2  # fraction of the shorter time that does not overlap with the longer (assumed)
_ISSUED = 128  # thread instructions that an SM issues per clock


def arithmetic(blocks: int, multiplications: float, accumulator: str, efficiency: float, limits: Limits) -> float:
    """Return the seconds of the busiest SM's multiply-adds on CUDA cores.

    ``multiplications`` is the number per block, including those wasted on partial tiles. ``efficiency`` is the fraction
    of issue slots that are multiply-adds.
    """
    device = nearest(limits.architecture)
    rate = device.rate(accumulator) / device.limits.multiprocessors
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * 2 * multiplications / (rate * efficiency)


def gathering(blocks: int, elements: float, lines: int, limits: Limits) -> float:
    """Return the seconds in which the busiest SM gathers inputs through its L1 cache, one 128-byte line per clock.

    Each block loads ``elements`` elements, 32 of which occupy ``lines`` lines.
    """
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * elements / 32 * lines / nearest(limits.architecture).clock


class Residence(NamedTuple):
    """Occupancy of a kernel on one SM."""

    warps: int  # warps per block
    blocks: int  # resident blocks per SM


def tensor(
    blocks: int,
    multiplications: float,
    lanes: int,
    other_cycles: float,
    limits: Limits,
    residence: Residence | None = None,
    others: int = 0,
) -> float:
    """Return the seconds of the busiest SM's tensor-core multiply-adds, or of whatever else limits the main loop.

    ``multiplications`` as for :func:`arithmetic`. ``lanes`` selects one of the device's ``tensor_lanes``.
    ``other_cycles`` is the SM cycles per mma for everything else: issue, shared memory, L1. With a ``residence``, too
    few warps to hide latency slow it down. ``others`` are further blocks of the same kernel on the device.
    """
    device = described(limits)
    fragment = (2048, 1024, 2048)[lanes]  # multiply-adds per mma instruction
    beside_wgmma = device.limits.architecture in ("sm_90a", "sm_100a") and lanes < 2
    share = limits.rates.beside_wgmma if beside_wgmma else limits.rates.tensor
    cycles = max(fragment / (share * device.tensor_lanes[lanes]), other_cycles)
    rounds = -(-blocks // limits.multiprocessors)
    slowness = _slowness(-(-(blocks + others) // limits.multiprocessors), residence, limits) if residence else 1.0
    return rounds * multiplications / fragment * cycles / device.clock * slowness


def _slowness(rounds: int, residence: Residence, limits: Limits) -> float:
    """Return the slowdown against enough warps; the last wave of an SM's blocks has fewer."""
    full, rest = divmod(rounds, residence.blocks)
    with_others = full * residence.blocks * _latency_slowdown(residence.blocks * residence.warps, limits)
    return (with_others + rest * _latency_slowdown(rest * residence.warps, limits)) / rounds


def _latency_slowdown(warps: int, limits: Limits) -> float:
    """Return the slowdown of products with ``warps`` warps on an SM, against enough of them."""
    if warps >= _ENOUGH * _SCHEDULERS:
        return 1.0
    return limits.rates.alone * max(1.0, _SCHEDULERS / max(warps, 1))


def busy(blocks: int, cycles: float, limits: Limits) -> float:
    """Return the seconds of the busiest SM when each of its blocks takes ``cycles`` cycles."""
    return -(-blocks // limits.multiprocessors) * cycles / nearest(limits.architecture).clock


def adding_up(count: int, blocks: int, limits: Limits) -> float:
    """Return the seconds of a split-K reduction, beyond the arithmetic of the splits.

    The busiest SM stores and loads ``count`` bytes of partial sums, and starts ``blocks`` blocks for splits.
    """
    rates = limits.rates
    return rates.adding + blocks * rates.beginning + count / (rates.cached * nearest(limits.architecture).clock)


def cached(blocks: int, count: float, limits: Limits) -> float:
    """Return the seconds in which the busiest SM reads ``count`` bytes per block from the L2 cache."""
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * count / (limits.rates.cached * nearest(limits.architecture).clock)


def memory(count: float, limits: Limits) -> float:
    """Return the seconds of ``count`` bytes of DRAM traffic."""
    device = nearest(limits.architecture)
    if limits.bandwidth:
        return count / (limits.rates.bandwidth * limits.bandwidth)
    return count / (limits.rates.bandwidth * device.bandwidth * limits.multiprocessors / device.limits.multiprocessors)


class Blocks(NamedTuple):
    """The blocks of a bandwidth-bound kernel with simple instructions: a pool, or its gradient."""

    number: int
    warps: int  # warps per block that have work
    instructions: float  # thread instructions per block
    # Dependent load latencies per thread: loads in flight together count once, L1 hits do not count
    trips: float = 1.0
    resident: int = 1  # resident blocks per SM
    longest: float = 0.0  # instructions of the busiest thread, if work is uneven


def streaming(blocks: Blocks, count: float, limits: Limits) -> float:
    """Return the seconds in which ``blocks`` move ``count`` bytes, divided evenly among them.

    The busiest SM issues its blocks' instructions, at the full rate if it has enough warps. It has its share of the L2
    bandwidth, and waits for dependent loads (Little's law: bytes in flight divided by latency bound its bandwidth).
    DRAM bandwidth is shared by the whole device.
    """
    clock = nearest(limits.architecture).clock
    rounds = -(-blocks.number // limits.multiprocessors)
    together = min(rounds, blocks.resident)
    turns = rounds / together
    filled = min(1.0, together * blocks.warps / (_ENOUGH * _SCHEDULERS))
    issued = max(rounds * blocks.instructions / (_ISSUED * filled), turns * _ENOUGH * blocks.longest) / clock
    waited = turns * blocks.trips * limits.rates.latency
    moved = cached(blocks.number, count / blocks.number, limits)
    return overlapped(overlapped(issued, max(waited, moved)), memory(count, limits))


def instructions(count: float, limits: Limits) -> float:
    """Return the seconds in which all SMs together issue ``count`` thread instructions."""
    device = nearest(limits.architecture)
    return count / (_ISSUED * device.clock * limits.multiprocessors)


def overlapped(first: float, second: float) -> float:
    """Return the time of two activities that overlap imperfectly."""
    return max(first, second) + _EXPOSED * min(first, second)
