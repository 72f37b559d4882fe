"""Implicit GEMM with FFMA (float32) or DFMA (float64) on CUDA cores. It accepts every Conv and ConvTranspose.

Two launches: pack the weights, then compute one output tile per block. It is chosen where tensor cores do not apply:
float32 in IEEE precision, strides that no other family takes, 64-bit indices.

float32 tiles with one tap per slice of K also come as split-K. For few filters, some tiles have several rows of M per
filter (``conv/gemm/tap_rows.cu``, ``phase_rows.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import copies, filter_rows, split
from gpuconv.cuda.conv.gemm.base import LARGE, MIDDLE, TILES, GemmTile
from gpuconv.cuda.conv.gemm.filter_rows import FilterRows
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Candidate, Limits, Offer, Plan, model
from gpuconv.cuda.plan.numbers import empty_rows
from gpuconv.rules import dtypes

NAME = "implicit GEMM by FFMA"


# ---------------------------------------------------------------- accepted problems


_WIDE_RANK = 4  # spatial axes of the 64-bit kernels; problems with fewer axes are padded to this rank


# ---------------------------------------------------------------- tiles


_DIVISIBLE = {"conv": (LARGE, MIDDLE), "conv_transpose": (MIDDLE,)}
# float32 tiles instantiated with several GEMM rows per filter, and whether every slice of K has a single tap
ROWS = {"conv": ((LARGE, True), (MIDDLE, True), (MIDDLE, False)), "conv_transpose": ((LARGE, True),)}


def _splits(operator: str, dtype: str, wide: bool, rank: int, tile: GemmTile, uniform: bool) -> bool:
    """Return whether the variant supports split-K."""
    return (dtype, wide, rank, uniform) == ("float32", False, RANK, True) and tile in _DIVISIBLE[operator]


# ---------------------------------------------------------------- shared memory


def _shared_bytes(problem: Problem, tile: GemmTile, wide: bool) -> int:
    """Return the bytes of shared memory: pipeline stages, and for ConvTranspose one phase's taps."""
    taps = gemm_base.taps_bytes(problem.rank, wide) if problem.phases else 0
    return tile.shared_bytes(problem.word) + taps


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, tile: GemmTile, uniform: bool, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    busy = partial(_busy, problem, tile, uniform, limits)
    mean, most = (rows / tile.block_k for rows in (problem.rows / prod(problem.phases), problem.most_rows))
    busiest = max(busy(problem.blocks(tile.block_m, tile.block_n), mean), busy(1, most))
    memory = model.memory(problem.bytes_by_phase, limits)
    return model.overlapped(busiest, memory) + (limits.rates.launch if problem.rows else 0.0)


def _busy(
    problem: Problem, tile: GemmTile, uniform: bool, limits: Limits, blocks: int, slices: float, _others: int = 0
) -> float:
    """Model the seconds of ``blocks`` blocks with ``slices`` slices of K each: the larger of arithmetic and x loads."""
    rows = slices * tile.block_k
    multiplications = tile.block_m * tile.block_n * rows
    efficiency = gemm_base.efficiency(tile, uniform)
    return max(
        model.arithmetic(blocks, multiplications, problem.accumulator, efficiency, limits),
        model.gathering(blocks, tile.block_n * rows, problem.lines, limits),
    )


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that fits, and split-K candidates where they pay off."""
    yield from _with_copies(problem, _of_tiles, limits)


def offers_in_order(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield batch-invariant candidates: each tile with every fixed number of K segments, whatever the batch."""
    yield from _with_copies(problem, _in_order_of_tiles, limits)


def _with_copies(problem: Problem, of_tiles: Callable[..., Iterator[Candidate]], limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates that read x in place, then those that read a channels-last copy with padded channels."""
    yield from of_tiles(problem, limits)
    slices = {tile.block_k for tile in TILES[problem.dtype] if tile.uniform}
    if problem.rank <= RANK and problem.rows and any(problem.channels % size for size in slices):
        copied = copies.of(problem.lifted, max(slices))
        if copied is not None:
            yield from copies.candidates(copied, of_tiles(copied.problem, limits, uniform=True), limits)


def _in_order_of_tiles(problem: Problem, limits: Limits, uniform: bool = False) -> Iterator[Candidate]:
    """Yield the batch-invariant candidates for a problem, without copies."""
    yield from _whole(problem, limits, uniform)
    divisible, rows = _divisible_tiles(problem, limits, uniform)
    yield from split.whole(rows, limits)
    yield from split.in_segments((*divisible, *rows), limits)


def _of_tiles(problem: Problem, limits: Limits, uniform: bool = False) -> Iterator[Candidate]:
    """Yield the candidates for a problem; with ``uniform``, only those with one tap per slice of K."""
    yield from _whole(problem, limits, uniform)
    divisible, rows = _divisible_tiles(problem, limits, uniform)
    yield from split.whole(rows, limits)
    exact = problem.precision == "ieee"  # with TF32 allowed, tensor cores are faster: no split-K by FFMA
    yield from split.candidates((*divisible, *rows) if exact else (), limits)


def _divisible_tiles(
    problem: Problem, limits: Limits, uniform: bool
) -> tuple[list[split.Divisible], list[split.Divisible]]:
    """Return the split-K capable tiles: with one GEMM row per filter, and with several."""
    if problem.dtype != "float32" or problem.rank > RANK or problem.rows == 0 or _wide(problem):
        return [], []
    return list(_divisible(problem.lifted, limits)), list(_of_rows(problem.lifted, limits, uniform))


def _wide(problem: Problem) -> bool:
    """Return whether the problem with its packed weights needs 64-bit indices."""
    return problem.wide(problem.group * problem.rows * gemm_base.pitch(problem))


def _whole(problem: Problem, limits: Limits, uniform: bool = False) -> Iterator[Candidate]:
    """Yield the candidates with one block per tile and one GEMM row per filter."""
    wide = _wide(problem)
    lifted = problem.in_axes(_WIDE_RANK) if wide else problem.lifted
    for tile in TILES[problem.dtype]:
        room, form = _shared_bytes(lifted, tile, wide) <= limits.shared_bytes_per_block, tile.form_of(problem.channels)
        if room and form in tile.forms and (tile.wide or not wide) and form >= uniform:
            kernel = variant(problem.operator, problem.dtype, wide, lifted.rank, tile, form)
            make = partial(_plan, lifted, tile, form, wide)
            order = gemm_base.order(problem, tile.block_k)
            yield Candidate(kernel.name, _seconds(lifted, tile, form, limits), make, order)


def _divisible(problem: Problem, limits: Limits) -> Iterator[split.Divisible]:
    """Yield the float32 tiles with one tap per slice of K, described for the split-K planner."""
    for tile in _DIVISIBLE[problem.operator]:
        if tile.form_of(problem.channels):
            yield split.Divisible(
                variant=variant(problem.operator, "float32", False, RANK, tile, True),
                order=gemm_base.order(problem, tile.block_k),
                shared_bytes=_shared_bytes(problem, tile, False),
                tiles=problem.blocks(tile.block_m, tile.block_n),
                slices=problem.rows / prod(problem.phases) / tile.block_k,
                most_slices=problem.most_rows // tile.block_k,
                slice_rows=tile.block_k,
                sums_bytes=tile.block_m * tile.block_n * problem.word,
                bytes=problem.bytes_by_phase,
                phased=bool(problem.phases),
                busy=partial(_busy, problem, tile, True, limits),
                packing=partial(gemm_base.packing, problem, False),
                plan=partial(_plan, problem, tile, True, False),
            )


def _of_rows(problem: Problem, limits: Limits, uniform: bool) -> Iterator[split.Divisible]:
    """Yield tiles whose M enumerates (filter, phase) or (filter, tap along W), described for the split-K planner."""
    for tile, form in ROWS[problem.operator]:
        rows_gemm = filter_rows.of(problem, tile)
        if rows_gemm is None or tile.form_of(problem.channels) != form or form < uniform or _wide(rows_gemm.gemm):
            continue
        slices = -(-rows_gemm.gemm.rows // tile.block_k)
        yield split.Divisible(
            variant=rows_variant(problem.operator, tile, form),
            order=gemm_base.order(problem, tile.block_k) + rows_gemm.order,
            shared_bytes=rows_gemm.shared_bytes(tile.shared_bytes(problem.word)),
            tiles=rows_gemm.blocks,
            slices=slices,
            most_slices=slices,
            slice_rows=tile.block_k,
            sums_bytes=tile.block_m * tile.block_n * problem.word,
            bytes=problem.bytes,
            phased=False,
            busy=partial(_busy, rows_gemm.gemm, tile, form, limits),
            packing=partial(gemm_base.packing, problem, False, rows_per_filter=rows_gemm.rows_per_filter),
            plan=partial(_plan_of_rows, rows_gemm, tile, form),
            writing=model.instructions(rows_gemm.instructions, limits),
        )


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: GemmTile, uniform: bool, wide: bool) -> Plan:
    """Return the plan of this candidate."""
    width = f"{64 if wide else 32}-bit indices: offsets and coordinates {'reach' if wide else 'are below'} 2**31"
    reasons = (gemm_base.tap_reason(problem, tile, uniform), *empty_rows(problem.filters, tile.block_m), width)
    kind = problem.operator, problem.dtype, wide, problem.rank, tile, uniform
    extra_fields = {"splits": split.splits(problem.blocks(tile.block_m, tile.block_n))} if _splits(*kind) else {}
    weights, shared = gemm_base.packed_weights(problem), _shared_bytes(problem, tile, wide)
    launch = gemm_base.launch(problem, variant(*kind), tile, weights, shared, extra_fields)
    return gemm_base.with_packing(problem, wide, launch, reasons)


def _plan_of_rows(rows_gemm: FilterRows, tile: GemmTile, uniform: bool) -> Plan:
    """Return the plan of a candidate with several GEMM rows per filter."""
    problem = rows_gemm.problem
    chosen, shared = (
        rows_variant(problem.operator, tile, uniform),
        rows_gemm.shared_bytes(tile.shared_bytes(problem.word)),
    )
    launch = rows_gemm.launch(chosen, gemm_base.packed_weights(rows_gemm.gemm), shared)
    reasons = (*rows_gemm.reasons, gemm_base.tap_reason(problem, tile, uniform))
    return gemm_base.with_packing(problem, False, launch, reasons, rows_gemm.rows_per_filter)


_KERNELS = gemm_base.kernels("ffma", "{index}, {rank}")
_ROWS_KERNELS = {operator: filter_rows.kernel(operator, "ffma") for operator in ROWS}


def rows_variant(operator: str, tile: GemmTile, uniform: bool) -> Variant:
    """Return the kernel variant of a tile with several GEMM rows per filter."""
    return gemm_base.tile_variant(_ROWS_KERNELS[operator], "float32", RANK, tile, uniform)


def variant(operator: str, dtype: str, wide: bool, rank: int, tile: GemmTile, uniform: bool) -> Variant:
    """Return the kernel variant with these template arguments."""
    kernel = _KERNELS[operator, _splits(operator, dtype, wide, rank, tile, uniform)]
    return gemm_base.tile_variant(kernel, dtype, rank, tile, uniform, wide)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan with one to four spatial axes can use."""
    for dtype, (rank, wide) in product(dtypes.CONV_DTYPES, ((RANK, False), (_WIDE_RANK, False), (_WIDE_RANK, True))):
        yield gemm_base.packing_variant(dtype, wide, rank)
        for tile in TILES[dtype]:
            for uniform, operator in product(tile.forms, ("conv", "conv_transpose")):
                if tile.wide or not wide:
                    yield variant(operator, dtype, wide, rank, tile, uniform)
    yield gemm_base.packing_variant("float32", False, RANK, rows_per_filter=True)
    for operator, forms in ROWS.items():
        yield from (rows_variant(operator, *form) for form in forms)
