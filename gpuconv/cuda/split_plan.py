"""Conv where tiles are too few for the multiprocessors: several blocks share each one's K (``conv_split.cu``).

The launch that packs the weights also sets the tickets to zero by which blocks learn that they are the last of a tile,
so that two launches are enough. Calls that share packed weights have no such launch: their second one adds up the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpuconv import _dtypes
from gpuconv._geometry import Ints
from gpuconv.cuda import gemm_plan, gemm_structs, model, params
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.gemm_plan import Tile
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of splits
_ALL, _SUMS, _TOTALS = range(3)  # of what a launch makes, as in split_k.cuh
_RANKS = (1, 2, 3)
_TILES: dict[str, Tile] = {
    "float16": gemm_plan._MIDDLE_HALF,
    "bfloat16": gemm_plan._MIDDLE_HALF,
    "float32": gemm_plan._MIDDLE,
    "float64": gemm_plan._MIDDLE_DOUBLE,
}


# ---------------------------------------------------------------- plans


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield one candidate, with as many splits as the model takes for best, unless there are tiles enough."""
    tile = _TILES[problem.dtype]
    accepted = problem.operator == "conv" and problem.rank in _RANKS and problem.precision == "ieee"
    if not accepted or problem.channels == 0 or problem.channels % tile.block_k:
        return
    room = tile.shared_bytes(gemm_plan.accumulator(problem)) <= limits.shared_bytes_per_block
    few = gemm_plan.blocks(problem, tile) <= limits.multiprocessors
    counts = [count for count in _COUNTS if count <= _slices(problem, tile)]
    if not (room and few and counts) or problem.wide(problem.group * problem.rows * gemm_plan.pitch(problem)):
        return
    seconds = {count: _seconds(problem, tile, count, limits) for count in counts}
    best = min(counts, key=seconds.__getitem__)
    name = variant(problem.dtype, problem.rank, tile).name
    yield Candidate(name, seconds[best], partial(_plan, problem, tile, best, limits))


def _slices(problem: Problem, tile: Tile) -> int:
    return problem.rows // tile.block_k


def _sums_bytes(problem: Problem, tile: Tile) -> int:
    """Of one split of a tile."""
    return tile.block_m * tile.block_n * _dtypes.entry(gemm_plan.accumulator(problem)).itemsize


def _seconds(problem: Problem, tile: Tile, count: int, limits: Limits) -> float:
    """Model the time: each block's share of K, and the last one's adding up."""
    tiles = gemm_plan.blocks(problem, tile)
    multiplications = tile.block_m * tile.block_n * tile.block_k * -(-_slices(problem, tile) // count)
    busy = model.arithmetic(tiles * count, multiplications, gemm_plan.accumulator(problem), tile.efficiency, limits)
    left, read = (-(-number // limits.multiprocessors) for number in (tiles * count, tiles))
    adding = model.adding_up((left + read * count) * _sums_bytes(problem, tile), limits)
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + adding + model.LAUNCH


def _plan(problem: Problem, tile: Tile, count: int, limits: Limits) -> Plan:
    tiles = gemm_plan.blocks(problem, tile)
    tickets = -(-tiles // 4) * 16
    all_at_once = (gemm_plan.packing(problem, False, tiles), _launch(problem, tile, count, _ALL))
    sharing = (
        gemm_plan.packing(problem, False),
        _launch(problem, tile, count, _SUMS),
        _launch(problem, tile, count, _TOTALS),
    )
    reasons = (
        f"each tile's K in {count} splits: {tiles} tiles are few for {limits.multiprocessors} multiprocessors",
        *gemm_plan.reasons(problem, tile, uniform=True, wide=False),
    )
    size = tickets + tiles * count * _sums_bytes(problem, tile)
    packed = gemm_plan.packed_bytes(problem)
    return Plan(problem.operator, all_at_once, size, "sums of the splits", reasons, packed, sharing)


def _launch(problem: Problem, tile: Tile, count: int, part: int) -> Launch:
    chosen = variant(problem.dtype, problem.rank, tile)
    tiles = gemm_plan.blocks(problem, tile)
    fields = {
        **gemm_plan.fields(problem, tile, False),
        "splits": {"count": params.division(count, False), "ticket_bytes": -(-tiles // 4) * 16, "part": part},
    }
    roles = {"x": "x", "weights": "packed", "y": "y"}
    if problem.b_stride is not None:
        roles["b"] = "b"
    pointers = (
        *params.pointers(gemm_structs.correlation(False, problem.rank), roles),
        *params.pointers(gemm_structs.splits(), {"workspace": "workspace"}, _offset(chosen, "splits")),
    )
    blocks = tiles if part == _TOTALS else tiles * count
    shared = tile.shared_bytes(gemm_plan.accumulator(problem))
    return Launch(chosen, (blocks, 1, 1), shared, params.pack(chosen.layout, fields), pointers)


def _offset(chosen: Variant, field: str) -> int:
    assert chosen.layout.fields is not None
    return int(chosen.layout.fields[field][1])


# ---------------------------------------------------------------- variants


def variant(dtype: str, rank: int, tile: Tile) -> Variant:
    """Return the kernel of one tile, with 32-bit indices."""
    whole = gemm_plan.variant("conv", dtype, False, rank, tile, True)
    return replace(
        whole,
        name=f"conv_split_{dtype}_{rank}d_{tile}",
        source="conv_split.cu",
        function="conv_split",
        arguments=whole.arguments[:-1],
        parameter=f"ConvSplitParams<int, {rank}>",
        layout=gemm_structs.split_operands(rank),
    )


def variants(ranks: Ints = _RANKS) -> Iterator[Variant]:
    """Yield every variant that a plan of these spatial ranks can name."""
    for dtype, tile in _TILES.items():
        for rank in ranks:
            yield variant(dtype, rank, tile)
