"""Conv where tiles are too few for the multiprocessors: several blocks share each one's K (``conv_split.cu``).

The launch that packs the weights also sets the tickets to zero by which blocks learn that they are the last of a tile,
so that two launches are enough. Calls that share packed weights have no such launch: their second one adds up the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpuconv.cuda import gemm_plan, gemm_structs, mma_plan, model, params
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.gemm_fields import Divisible
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of splits
_ALL, _SUMS, _TOTALS = range(3)  # of what a launch makes, as in split_k.cuh


# ---------------------------------------------------------------- plans


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield kernels with as many splits each as the model takes for best, unless there are tiles enough."""
    for family in (gemm_plan, mma_plan):
        for whole in family.divisible(problem, limits):
            counts = [count for count in _COUNTS if count <= whole.slices]
            room = whole.plan.launches[-1].shared_bytes <= limits.shared_bytes_per_block
            if not (room and counts and whole.tiles <= limits.multiprocessors):
                continue
            seconds = {count: _seconds(problem, whole, count, limits) for count in counts}
            best = min(counts, key=seconds.__getitem__)
            name = variant(whole.plan.launches[-1].variant).name
            yield Candidate(name, seconds[best], partial(_plan, whole, best, limits))


def _seconds(problem: Problem, whole: Divisible, count: int, limits: Limits) -> float:
    """Model the time: each block's share of K, and the last one's adding up."""
    blocks = whole.tiles * count
    left, read = (-(-number // limits.multiprocessors) for number in (blocks, whole.tiles))
    adding = model.adding_up((left + read * count) * whole.sums_bytes, limits)
    busy = whole.busy(blocks, -(-whole.slices // count))
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + adding + model.LAUNCH


def _plan(whole: Divisible, count: int, limits: Limits) -> Plan:
    pack, _ = whole.plan.launches
    few = f"{whole.tiles} tiles are few for {limits.multiprocessors} multiprocessors"
    return replace(
        whole.plan,
        launches=(whole.packing(whole.tiles), _launch(whole, count, _ALL)),
        workspace_bytes=_ticket_bytes(whole) + whole.tiles * count * whole.sums_bytes,
        workspace_use="sums of the splits",
        reasons=(f"each tile's K in {count} splits: {few}", *whole.plan.reasons),
        sharing=(pack, _launch(whole, count, _SUMS), _launch(whole, count, _TOTALS)),
    )


def _ticket_bytes(whole: Divisible) -> int:
    return -(-whole.tiles // 4) * 16


def _launch(whole: Divisible, count: int, part: int) -> Launch:
    """Return the launch of the whole tiles, changed into one of splits: its struct is the same up to these."""
    launch = whole.plan.launches[-1]
    chosen = variant(launch.variant)
    begin = params.offset(chosen.layout, "splits")
    fields = {"count": params.division(count, False), "ticket_bytes": _ticket_bytes(whole), "part": part}
    return Launch(
        chosen,
        (whole.tiles * (1 if part == _TOTALS else count), 1, 1),
        launch.shared_bytes,
        launch.parameters.ljust(begin, b"\0") + params.pack(gemm_structs.splits(), fields),
        (*launch.pointers, *params.pointers(gemm_structs.splits(), {"workspace": "workspace"}, begin)),
    )


# ---------------------------------------------------------------- variants


def variant(whole: Variant) -> Variant:
    """Return the kernel that makes a part of a tile, of one that makes all of it."""
    return replace(
        whole,
        name=whole.name.replace("conv_", "conv_split_", 1),
        source="conv_split.cu",
        function="conv_split_mma" if whole.function == "conv_mma" else "conv_split",
        parameter=whole.parameter.replace("ConvParams", "ConvSplitParams"),
        layout=_layout(whole.layout),
    )


def _layout(whole: np.dtype[Any]) -> np.dtype[Any]:
    assert whole.fields is not None
    assert whole.names is not None
    return params.layout([*((name, whole.fields[name][0]) for name in whole.names), ("splits", gemm_structs.splits())])


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for family in (gemm_plan, mma_plan):
        yield from map(variant, family.divisible_variants())
