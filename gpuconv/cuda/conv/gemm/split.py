"""Split-K: where tiles are too few for the multiprocessors, or for the last round of them, blocks share each one's K.

The kernels are those of whole tiles, ``conv/gemm/split.cu`` and ``conv/gemm/split_transpose.cu``, and those in which
filters have several rows. Tiles that fill all multiprocessors are made by one block each.
The launch that packs the weights also sets the tickets to zero by which blocks learn that they are the last of a tile,
so that two launches are enough. Calls that share packed weights have no such launch: their second one adds up the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import Candidate, Launch, Limits, Plan, Space, model

_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)  # of splits
_ROUNDS = 4  # of whole tiles before those that are divided: after more of them, little is left to win


# ---------------------------------------------------------------- tiles


class Busy(Protocol):
    """Predicts the seconds of blocks' arithmetic."""

    def __call__(self, blocks: int, slices: float, others: int = 0, /) -> float:
        """Return those of so many blocks, by the slices of each; ``others`` run beside them."""


@dataclass(frozen=True, slots=True)
class Divisible:
    """Tiles that several blocks each can make."""

    variant: Variant  # the kernel with a block for each tile
    order: str  # in which it adds products
    shared_bytes: int  # that it asks for
    tiles: int
    slices: float  # of K, of each tile; the mean of those of ConvTranspose's phases
    most_slices: int  # of the tile that has the most
    slice_rows: int  # rows of K of each
    sums_bytes: int  # of a tile's sums
    bytes: int  # of all arrays, as they cross the memory bus
    phased: bool  # tiles are of ConvTranspose's phases, which differ in K
    busy: Busy
    # Takes a number of tickets, returns the launch that packs the weights and sets these to zero
    packing: Callable[[int], Launch]
    # Returns the plan with a block for each tile: a launch that packs the weights, and one that makes the tiles
    plan: Callable[[], Plan]
    writing: float = 0.0  # seconds that all tiles take after the main loop, where the arithmetic does not hide them


def divided(tiles: int, limits: Limits) -> int:
    """Return how many of so many tiles several blocks make: those of the last round, after a few full ones."""
    rounds, rest = divmod(tiles, limits.multiprocessors)
    return rest if rounds <= _ROUNDS else 0


def counts(most_slices: int) -> list[int]:
    """Return the numbers of splits that a tile of so many slices of K can have."""
    return [count for count in _COUNTS if count <= most_slices]


# ---------------------------------------------------------------- cost


def whole_seconds(tiling: Divisible, limits: Limits) -> float:
    """Model the time of both launches, one block to each tile."""
    busy = max(tiling.busy(tiling.tiles, tiling.slices), tiling.busy(1, tiling.most_slices))
    return model.overlapped(busy + tiling.writing, model.memory(tiling.bytes, limits)) + limits.rates.launch


def _seconds(tiling: Divisible, parted: int, count: int, limits: Limits) -> float:
    """Model the time: of the whole tiles, of each block's share of K, and of the last one's adding up."""
    left = -(-parted * count // limits.multiprocessors)
    adding = model.adding_up((left + count) * tiling.sums_bytes, left, limits)
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
    """Yield each kernel with a block for each tile."""
    for tiling in divisible:
        if tiling.shared_bytes <= limits.shared_bytes_per_block:
            yield Candidate(tiling.variant.name, whole_seconds(tiling, limits), tiling.plan, tiling.order)


def candidates(divisible: Iterable[Divisible], limits: Limits) -> Iterator[Candidate]:
    """Yield each kernel with as many splits as the model takes for best, unless there are tiles enough."""
    for tiling in divisible:
        numbers, parted = counts(tiling.most_slices), divided(tiling.tiles, limits)
        room = tiling.shared_bytes <= limits.shared_bytes_per_block
        if room and numbers and parted:
            seconds = {count: _seconds(tiling, parted, count, limits) for count in numbers}
            best = min(numbers, key=seconds.__getitem__)
            why = f"{parted} tiles are few for {limits.multiprocessors} multiprocessors"
            yield Candidate(f"{tiling.variant.name}_split", seconds[best], partial(_plan, tiling, parted, best, why))


def in_segments(divisible: Iterable[Divisible], limits: Limits) -> Iterator[Candidate]:
    """Yield each kernel with K in every number of segments, with the sums of each added up at the end."""
    for tiling in divisible:
        if tiling.shared_bytes > limits.shared_bytes_per_block:
            continue
        for count in counts(tiling.most_slices):
            seconds = _seconds(tiling, tiling.tiles, count, limits)
            make = partial(_plan, tiling, tiling.tiles, count, "every batch has the same")
            order = f"{tiling.order}; {_segments(tiling, count)}"
            yield Candidate(f"{tiling.variant.name}_split", seconds, make, order)


def _segments(tiling: Divisible, count: int) -> str:
    """Return how K is cut: of ConvTranspose's phases, each in its own way, by the count of its slices."""
    if tiling.phased:
        return f"{count} segments of slices of {tiling.slice_rows}"
    return f"segments of {-(-tiling.most_slices // count) * tiling.slice_rows}"


# ---------------------------------------------------------------- launch


ALL, SUMS, TOTALS = range(3)  # of what a launch of conv/gemm/split_k.cuh makes


def splits(tiles: int, divided: int = 0, count: int = 1, part: int = ALL) -> Mapping[str, Any]:
    """Return the fields of ``Splits``: the last ``divided`` of the tiles are made in so many splits each."""
    return {"count": count, "whole": tiles - divided, "ticket_bytes": ticket_bytes(divided), "part": part}


def ticket_bytes(divided: int) -> int:
    """Return the bytes of the tickets of so many tiles, before their sums."""
    return -(-divided // 4) * 16


def _plan(tiling: Divisible, parted: int, count: int, why: str) -> Plan:
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
    """Return the launch of the whole tiles, changed into one of splits."""
    return replace(
        launch,
        grid=(parted if part == TOTALS else tiling.tiles - parted + parted * count, 1, 1),
        fields={**launch.fields, "splits": splits(tiling.tiles, parted, count, part)},
        roles={**launch.roles, "splits.workspace": "workspace"},
    )
