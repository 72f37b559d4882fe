"""Tiles that are too few for the multiprocessors, or for the last round of them: several blocks share each one's K.

The kernels are those of whole tiles, ``conv/gemm/split.cu`` and ``conv/gemm/split_transpose.cu``. Tiles that fill all
multiprocessors are made by one block each.
The launch that packs the weights also sets the tickets to zero by which blocks learn that they are the last of a tile,
so that two launches are enough. Calls that share packed weights have no such launch: their second one adds up the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma, mma
from gpuconv.cuda.conv.gemm.base import ALL, SUMS, TOTALS, Divisible
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model
from gpuconv.cuda.plan.launch import Launch, Limits, Plan, Space
from gpuconv.cuda.plan.offers import Candidate, Offer

NAME = "splits of K"
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)  # of splits
_ROUNDS = 4  # of whole tiles before those that are divided: after more of them, little is left to win


# ---------------------------------------------------------------- plans


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield kernels with as many splits each as the model takes for best, unless there are tiles enough."""
    for family in (ffma, mma):
        for whole in family.divisible(problem, limits):
            counts = [count for count in _COUNTS if count <= whole.most_slices]
            room = whole.shared_bytes <= limits.shared_bytes_per_block
            if not (room and counts and _divided(whole, limits)):
                continue
            seconds = {count: _seconds(problem, whole, count, limits) for count in counts}
            best = min(counts, key=seconds.__getitem__)
            yield Candidate(f"{whole.variant.name}_split", seconds[best], partial(_plan, whole, best, limits))


def _divided(whole: Divisible, limits: Limits) -> int:
    """Return how many tiles several blocks make: those of the last round, after a few full ones."""
    rounds, rest = divmod(whole.tiles, limits.multiprocessors)
    return rest if rounds <= _ROUNDS else 0


def _seconds(problem: Problem, whole: Divisible, count: int, limits: Limits) -> float:
    """Model the time: of the whole tiles, of each block's share of K, and of the last one's adding up."""
    divided = _divided(whole, limits)
    left = -(-divided * count // limits.multiprocessors)
    adding = model.adding_up((left + count) * whole.sums_bytes, left, limits)
    most = -(-whole.most_slices // count)
    busy = whole.busy(divided * count, most * whole.slices / whole.most_slices)
    if divided < whole.tiles:
        most = whole.most_slices
        busy += whole.busy(whole.tiles - divided, whole.slices)
    memory = model.memory(problem.bytes_by_phase, limits)
    return model.overlapped(max(busy, whole.busy(1, most)), memory) + adding + limits.rates.launch


def _plan(whole: Divisible, count: int, limits: Limits) -> Plan:
    plan, divided = whole.plan(), _divided(whole, limits)
    pack, launch = plan.launches
    few = f"{divided} tiles are few for {limits.multiprocessors} multiprocessors"
    which = "each tile's K" if divided == whole.tiles else f"K of each of the last {divided} of {whole.tiles} tiles"
    sums = gemm_base.ticket_bytes(divided) + divided * count * whole.sums_bytes
    parts = [_launch(launch, whole, divided, count, part) for part in (ALL, SUMS, TOTALS)]
    return replace(
        plan,
        launches=(whole.packing(divided), parts[ALL]),
        spaces=(*plan.spaces, Space("workspace", "sums of the splits", sums)),
        reasons=(f"{which} in {count} splits: {few}", *plan.reasons),
        sharing=(pack, parts[SUMS], parts[TOTALS]),
    )


def _launch(launch: Launch, whole: Divisible, divided: int, count: int, part: int) -> Launch:
    """Return the launch of the whole tiles, changed into one of splits."""
    kept = whole.tiles - divided
    splits = gemm_base.splits(whole.tiles, divided, count, part)
    return replace(
        launch,
        grid=(divided if part == TOTALS else kept + divided * count, 1, 1),
        fields={**launch.fields, "splits": splits},
        roles={**launch.roles, "splits.workspace": "workspace"},
    )


def variants() -> tuple[()]:
    """Return no kernels of its own: it launches those of whole tiles."""
    return ()
