"""Split-K for the implicit GEMMs: several blocks share a tile's K when there are too few tiles to fill the device.

The reason may be a small output, or a last wave of tiles that leaves most SMs idle (wave quantisation); then only that
wave's tiles are split. Each block stores partial sums in a workspace. The last block to finish a tile, found by an
atomic ticket counter, adds them in a fixed order, so the bits do not depend on timing.

Kernels are in ``conv/gemm/split.cu`` and ``conv/gemm/split_transpose.cu``, and those with several GEMM rows per filter.
The launch that packs the weights also zeroes the tickets, so a call takes two launches. Without packing (shared packed
weights), a second launch adds the partial sums instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import Candidate, Launch, Limits, Plan, Space, model

_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)  # numbers of splits to consider
_ROUNDS = 4  # full waves up to which the last wave is split; beyond that it saves little


# ---------------------------------------------------------------- tiles


class Busy(Protocol):
    """Cost function of the tiles: models the seconds that blocks spend on arithmetic."""

    def __call__(self, blocks: int, slices: float, others: int = 0, /) -> float:
        """Return the seconds of ``blocks`` blocks, ``slices`` slices of K each, next to ``others`` resident blocks."""


@dataclass(frozen=True, slots=True)
class Divisible:
    """The tiles of a kernel that supports split-K, with what is needed to model and plan any number of splits."""

    variant: Variant  # the kernel, with one block per tile
    order: str  # name of its order of summation
    shared_bytes: int  # dynamic shared memory per block
    tiles: int
    slices: float  # slices of K per tile; for ConvTranspose, the mean over phases
    most_slices: int  # slices of K of the tile with the most
    slice_rows: int  # rows of K per slice
    sums_bytes: int  # bytes of partial sums per tile and split
    bytes: int  # memory traffic of all arrays, in bytes
    phased: bool  # tiles belong to ConvTranspose phases with different K
    busy: Busy
    # (number of tickets) → the launch that packs the weights and zeroes the tickets
    packing: Callable[[int], Launch]
    # () → the plan without split-K: pack the weights, then one block per tile
    plan: Callable[[], Plan]
    writing: float = 0.0  # seconds of all epilogues, where arithmetic does not hide them


def divided(tiles: int, limits: Limits) -> int:
    """Return how many tiles to split: those of the last wave, or 0 after more than ``_ROUNDS`` full waves."""
    rounds, rest = divmod(tiles, limits.multiprocessors)
    return rest if rounds <= _ROUNDS else 0


def counts(most_slices: int) -> list[int]:
    """Return the possible numbers of splits of a tile with ``most_slices`` slices of K."""
    return [count for count in _COUNTS if count <= most_slices]


# ---------------------------------------------------------------- cost


def whole_seconds(tiling: Divisible, limits: Limits) -> float:
    """Model the seconds of both launches without split-K: one block per tile."""
    busy = max(tiling.busy(tiling.tiles, tiling.slices), tiling.busy(1, tiling.most_slices))
    return model.overlapped(busy + tiling.writing, model.memory(tiling.bytes, limits)) + limits.rates.launch


def _seconds(tiling: Divisible, parted: int, count: int, limits: Limits) -> float:
    """Model the seconds with ``parted`` tiles split ``count`` ways: whole tiles, shares of K, final reduction."""
    split_blocks = -(-parted * count // limits.multiprocessors)
    adding = model.adding_up((split_blocks + count) * tiling.sums_bytes, split_blocks, limits)
    most = -(-tiling.most_slices // count)
    whole = tiling.tiles - parted
    busy = tiling.busy(parted * count, most * tiling.slices / tiling.most_slices, whole)
    if whole:
        most = tiling.most_slices
        busy += tiling.busy(whole, tiling.slices, parted * count)
    busy = max(busy, tiling.busy(1, most)) + tiling.writing
    return model.overlapped(busy, model.memory(tiling.bytes, limits)) + adding + limits.rates.launch


# ---------------------------------------------------------------- offers


def whole(divisible: Iterable[Divisible], limits: Limits) -> Iterator[Candidate]:
    """Yield each kernel without split-K, where its shared memory fits."""
    for tiling in divisible:
        if tiling.shared_bytes <= limits.shared_bytes_per_block:
            yield Candidate(tiling.variant.name, whole_seconds(tiling, limits), tiling.plan, tiling.order)


def candidates(divisible: Iterable[Divisible], limits: Limits) -> Iterator[Candidate]:
    """Yield each kernel with its best modelled number of splits, if its tiles are too few to fill the device."""
    for tiling in divisible:
        numbers, parted = counts(tiling.most_slices), divided(tiling.tiles, limits)
        room = tiling.shared_bytes <= limits.shared_bytes_per_block
        if room and numbers and parted:
            seconds = {count: _seconds(tiling, parted, count, limits) for count in numbers}
            best = min(numbers, key=seconds.__getitem__)
            why = f"{parted} tiles are few for {limits.multiprocessors} multiprocessors"
            yield Candidate(f"{tiling.variant.name}_split", seconds[best], partial(_plan, tiling, parted, best, why))


def in_segments(divisible: Iterable[Divisible], limits: Limits) -> Iterator[Candidate]:
    """Yield each kernel with every possible number of splits of all its tiles, for batch-invariant plans."""
    for tiling in divisible:
        if tiling.shared_bytes > limits.shared_bytes_per_block:
            continue
        for count in counts(tiling.most_slices):
            seconds = _seconds(tiling, tiling.tiles, count, limits)
            make = partial(_plan, tiling, tiling.tiles, count, "every batch has the same")
            order = f"{tiling.order}; {_segments(tiling, count)}"
            yield Candidate(f"{tiling.variant.name}_split", seconds, make, order)


def _segments(tiling: Divisible, count: int) -> str:
    """Return the name of the K segments.

    ConvTranspose's phases differ in K, so each phase is divided by its own number of slices.
    """
    if tiling.phased:
        return f"{count} segments of slices of {tiling.slice_rows}"
    return f"segments of {-(-tiling.most_slices // count) * tiling.slice_rows}"


# ---------------------------------------------------------------- launch


ALL, SUMS, TOTALS = range(3)  # the ``part`` field of ``Splits``: sums and their reduction, or only one of them


def splits(tiles: int, divided: int = 0, count: int = 1, part: int = ALL) -> Mapping[str, Any]:
    """Return the fields of ``Splits``: the last ``divided`` tiles are split ``count`` ways."""
    return {"count": count, "whole": tiles - divided, "ticket_bytes": ticket_bytes(divided), "part": part}


def ticket_bytes(divided: int) -> int:
    """Return the bytes of the ticket counters before the partial sums, rounded up to 16."""
    return -(-divided // 4) * 16


def _plan(tiling: Divisible, parted: int, count: int, why: str) -> Plan:
    """Return the plan with the last ``parted`` tiles split ``count`` ways."""
    plan = tiling.plan()
    pack, launch = plan.launches
    which = "each tile's K" if parted == tiling.tiles else f"K of each of the last {parted} of {tiling.tiles} tiles"
    sums = ticket_bytes(parted) + parted * count * tiling.sums_bytes
    parts = [_launch(launch, tiling, parted, count, part) for part in (ALL, SUMS, TOTALS)]
    return replace(
        plan,
        launches=(tiling.packing(parted), parts[ALL]),
        spaces=(*plan.spaces, Space("workspace", "sums of the splits", sums)),
        reasons=(f"{which} in {count} splits: {why}", *plan.reasons),
        sharing=(pack, parts[SUMS], parts[TOTALS]),
    )


def _launch(launch: Launch, tiling: Divisible, parted: int, count: int, part: int) -> Launch:
    """Return the launch of whole tiles, changed to split the last ``parted`` of them."""
    return replace(
        launch,
        grid=(parted if part == TOTALS else tiling.tiles - parted + parted * count, 1, 1),
        fields={**launch.fields, "splits": splits(tiling.tiles, parted, count, part)},
        roles={**launch.roles, "splits.workspace": "workspace"},
    )
