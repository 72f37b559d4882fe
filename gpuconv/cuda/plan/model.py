"""Predicted times of kernels, for choosing among them: arithmetic of the busiest multiprocessor, or memory.

Peaks are those of the well-known device of the architecture (limits.py), the shares of them that kernels come to those
of the device (limits.Rates). A model orders candidates, no more.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuconv.cuda.plan.limits import Limits, described, nearest

_SCHEDULERS = 4  # of a multiprocessor
_ENOUGH = 2  # warps of a scheduler, of which one multiplies, or issues instructions, while another one waits
_EXPOSED = 0.2  # share of the shorter one that does not hide behind the longer one; assumed
_ISSUED = 128  # instructions, counted by thread, that a multiprocessor issues in one clock


def arithmetic(blocks: int, multiplications: float, accumulator: str, efficiency: float, limits: Limits) -> float:
    """Return the seconds of the busiest multiprocessor's multiply-adds on the cores' own multipliers.

    ``multiplications`` are those of each block, with those that its tile makes in vain; ``efficiency`` is the share of
    the multipliers' cycles that the kernel fills.
    """
    device = nearest(limits.architecture)
    rate = device.rate(accumulator) / device.limits.multiprocessors
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * 2 * multiplications / (rate * efficiency)


def gathering(blocks: int, elements: float, lines: int, limits: Limits) -> float:
    """Return the seconds in which the busiest multiprocessor reads inputs one by one, a line of its L1 cache per clock.

    Each block reads so many ``elements``, of which 32 lie in so many ``lines``.
    """
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * elements / 32 * lines / nearest(limits.architecture).clock


class Residence(NamedTuple):
    """What of a kernel a multiprocessor has room for: its occupancy."""

    warps: int  # of a block
    blocks: int  # at a time


def tensor(
    blocks: int,
    multiplications: float,
    lanes: int,
    besides: float,
    limits: Limits,
    residence: Residence | None = None,
    others: int = 0,
) -> float:
    """Return the seconds of the busiest multiprocessor's multiply-adds on tensor cores, or of what goes with them.

    ``multiplications`` as for :func:`arithmetic`; ``lanes`` is which of the device's rates (``tensor_lanes``) is
    theirs; ``besides`` are the cycles of a multiprocessor for anything else that goes with an instruction that
    multiplies. Too few warps, by ``residence`` or because there are not more blocks, take longer; without it there are
    enough. ``others`` are blocks of the same kernel that the multiprocessors have besides.
    """
    device = described(limits)
    fragment = (2048, 1024, 2048)[lanes]  # multiply-adds of an instruction
    beside_wgmma = device.limits.architecture in ("sm_90a", "sm_100a") and lanes < 2
    share = limits.rates.beside_wgmma if beside_wgmma else limits.rates.tensor
    cycles = max(fragment / (share * device.tensor_lanes[lanes]), besides)
    rounds = -(-blocks // limits.multiprocessors)
    slowness = _slowness(-(-(blocks + others) // limits.multiprocessors), residence, limits) if residence else 1.0
    return rounds * multiplications / fragment * cycles / device.clock * slowness


def _slowness(rounds: int, residence: Residence, limits: Limits) -> float:
    """Return how many times as long a multiprocessor's blocks take as with warps enough; the last ones are fewer."""
    full, rest = divmod(rounds, residence.blocks)
    with_others = full * residence.blocks * _alone(residence.blocks * residence.warps, limits)
    return (with_others + rest * _alone(rest * residence.warps, limits)) / rounds


def _alone(warps: int, limits: Limits) -> float:
    """Return how many times as long products take with so many warps of a multiprocessor as with enough of them."""
    if warps >= _ENOUGH * _SCHEDULERS:
        return 1.0
    return limits.rates.alone * max(1.0, _SCHEDULERS / max(warps, 1))


def busy(blocks: int, cycles: float, limits: Limits) -> float:
    """Return the seconds of the busiest multiprocessor, each of whose blocks takes it so many cycles."""
    return -(-blocks // limits.multiprocessors) * cycles / nearest(limits.architecture).clock


def adding_up(count: int, blocks: int, limits: Limits) -> float:
    """Return the seconds that adding up takes beside the arithmetic of the splits.

    The busiest multiprocessor leaves and reads ``count`` bytes of sums, and begins so many blocks for splits of tiles.
    """
    rates = limits.rates
    return rates.adding + blocks * rates.beginning + count / (rates.cached * nearest(limits.architecture).clock)


def cached(blocks: int, count: float, limits: Limits) -> float:
    """Return the seconds in which the busiest multiprocessor reads from the L2 cache so many bytes for each block."""
    rounds = -(-blocks // limits.multiprocessors)
    return rounds * count / (limits.rates.cached * nearest(limits.architecture).clock)


def memory(count: float, limits: Limits) -> float:
    """Return the seconds in which so many bytes cross the memory bus, of a device with these limits."""
    device = nearest(limits.architecture)
    if limits.bandwidth:
        return count / (limits.rates.bandwidth * limits.bandwidth)
    return count / (limits.rates.bandwidth * device.bandwidth * limits.multiprocessors / device.limits.multiprocessors)


class Blocks(NamedTuple):
    """Blocks of a kernel that moves data past simple instructions: a pool, or its gradient."""

    number: int
    warps: int  # of a block, those that have something to do
    instructions: float  # of a block, counted by thread
    # Loads of a thread that memory answers one after another; those in flight together are one, those that the L1 cache
    # answers are none
    trips: float = 1.0
    resident: int = 1  # that a multiprocessor has room for at a time
    longest: float = 0.0  # instructions of the thread that executes most, where some have more to do than others


def streaming(blocks: Blocks, count: float, limits: Limits) -> float:
    """Return the seconds in which blocks move ``count`` bytes, each of them as many, however few blocks there are.

    The busiest multiprocessor issues its blocks' instructions, at the full rate if it has warps enough to hide those
    that wait for a result; it has its share of the L2 cache's bandwidth; and its threads wait for memory as often as
    one load depends on another (Little's law: bytes in flight over the latency bound its bandwidth). The whole device
    has the bandwidth of its memory.
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
    """Return the seconds in which the multiprocessors issue so many instructions, counted by thread."""
    device = nearest(limits.architecture)
    return count / (_ISSUED * device.clock * limits.multiprocessors)


def overlapped(first: float, second: float) -> float:
    """Return the time of two things that go on together, not perfectly."""
    return max(first, second) + _EXPOSED * min(first, second)
