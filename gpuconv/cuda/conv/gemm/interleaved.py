"""ConvTranspose with a stride along W, all phases of W computed by one block.

Computed separately, each phase writes every stride-th element of a row, in partial sectors. Here a block exchanges its
accumulators through shared memory and writes whole contiguous rows. FFMA, 32-bit indices, three spatial axes (the outer
ones may have one element).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm.base import TILES, GemmTile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RESERVED_BYTES, Candidate, Launch, Limits, Offer, Plan, Refusal, model

NAME = "interleaved phases"


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if not problem.phases:
        return Refusal("Conv has no phases", plain=True)
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.phases[-1] == 1:
        return Refusal("outputs of one phase are neighbours along W already")
    if problem.y_strides[-1] != 1:
        return Refusal("outputs along W are not contiguous in y")
    if problem.wide(problem.group * problem.rows * gemm_base.pitch(problem)):
        return Refusal("it needs 64-bit indices")
    return None


# ---------------------------------------------------------------- tiles


# With 128 channels per block, the accumulators exceed shared memory. Few channels per group use slices of 8.
_WIDE = GemmTile(64, 128, 16, 8, 8, 3, 0.84, rowwise=False)
_SHALLOW = GemmTile(16, 128, 8, 4, 4, 4, 0.51, rowwise=False)
# The flat tile keeps gathered elements in registers, so its slice is half as deep.
_FLAT_HALF = GemmTile(16, 128, 8, 4, 4, 4, 0.23, uniform=False)
_SHALLOW_HALF = replace(_SHALLOW, efficiency=0.41)
_SHALLOW_DOUBLE = replace(_SHALLOW, blocks_per_sm=3, efficiency=0.48)
_TILES = {
    "float16": (*TILES["float16"], _FLAT_HALF, _SHALLOW_HALF),
    "bfloat16": (*TILES["bfloat16"], _FLAT_HALF, _SHALLOW_HALF),
    "float32": (_WIDE, *TILES["float32"][1:], _SHALLOW),
    "float64": (*TILES["float64"], _SHALLOW_DOUBLE),
}


# ---------------------------------------------------------------- shared memory


_LEAST_BLOCKS = 2  # per SM, so that one multiplies while another writes


def shared_bytes(problem: Problem, tile: GemmTile) -> int:
    """Return the bytes of shared memory: pipeline stages, accumulator planes, and the taps of all phases along W."""
    phases = problem.phases[-1]
    apart = spread(phases, problem.word)
    planes = ((phases - 1) * tile.block_m * tile.block_n + phases * apart) * problem.word
    return tile.shared_bytes(problem.word) + planes + phases * gemm_base.taps_bytes(3)


def spread(parts: int, size: int) -> int:
    """Return the padding, in elements of ``size`` bytes, between rows of ``parts`` parts; ``spread`` in the kernels."""
    vector, banks = 16 // size, 128 // size
    return (banks - 1) // (parts * vector) * vector + vector


def _has_room(problem: Problem, tile: GemmTile, limits: Limits) -> bool:
    """Return whether ``_LEAST_BLOCKS`` blocks of the tile fit an SM's shared memory."""
    shared = shared_bytes(problem, tile)
    bytes_per_sm = _LEAST_BLOCKS * (shared + RESERVED_BYTES)
    return shared <= limits.shared_bytes_per_block and bytes_per_sm <= limits.shared_bytes_per_multiprocessor


# ---------------------------------------------------------------- cost


def _blocks(problem: Problem, tile: GemmTile) -> int:
    """Return the blocks of the launch: tiles × groups × phases of the outer axes."""
    return prod(problem.tiles(tile.block_m, tile.block_n)) * prod(problem.phases[:-1]) * problem.group


def _seconds(problem: Problem, tile: GemmTile, uniform: bool, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    multiplications = tile.block_m * tile.block_n * problem.rows / prod(problem.phases[:-1])
    efficiency = gemm_base.efficiency(tile, uniform)
    busy = max(
        model.arithmetic(blocks, part * multiplications, problem.accumulator, efficiency, limits)
        for blocks, part in ((_blocks(problem, tile), 1.0), (1, _fullest(problem)))
    )
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + (limits.rates.launch if problem.rows else 0.0)


def _fullest(problem: Problem) -> float:
    """Return the taps of the phase with the most taps on the outer axes, relative to the mean over phases."""
    shares = zip(problem.most_taps[:-1], problem.taps[:-1], problem.phases[:-1], strict=True)
    return prod(most * phases / taps for most, taps, phases in shares)


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile of which two blocks fit an SM's shared memory."""
    if refusal := _refusal(problem):
        yield refusal
        return
    lifted = problem.lifted
    tiles = [tile for tile in _TILES[problem.dtype] if _has_room(lifted, tile, limits)]
    if not tiles:
        phases = problem.phases[-1]
        yield Refusal(f"the sums of {phases} phases along W leave no room for a second block in shared memory")
    for tile in tiles:
        uniform = tile.form_of(problem.channels)
        if uniform in tile.forms:
            name = variant(problem.dtype, tile, uniform).name
            order, make = gemm_base.order(problem, tile.block_k), partial(_plan, lifted, tile, uniform)
            yield Candidate(name, _seconds(lifted, tile, uniform, limits), make, order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: GemmTile, uniform: bool) -> Plan:
    """Return the plan of this candidate."""
    blocks = _blocks(problem, tile)
    chosen = variant(problem.dtype, tile, uniform)
    tiles = problem.tiles(tile.block_m, tile.block_n)
    fields = {
        **gemm_base.operands(problem, tiles, gemm_base.packed_weights(problem)),
        "phases": prod(problem.phases[:-1]),
    }
    roles = gemm_base.roles(problem)
    launch = Launch.of_blocks(problem.operator, chosen, blocks, fields, roles, shared_bytes(problem, tile))
    reason = f"all {problem.phases[-1]} phases along W in one block, which writes neighbours of a row"
    return gemm_base.with_packing(problem, False, launch, (reason, gemm_base.tap_reason(problem, tile, uniform)))


_KERNEL = Kernel("conv/gemm/interleaved.cu", "conv_transpose_interleaved", "ConvTransposeParams<{index}, {rank}>")


def variant(dtype: str, tile: GemmTile, uniform: bool) -> Variant:
    """Return the kernel variant with these template arguments."""
    return gemm_base.tile_variant(_KERNEL, dtype, 3, tile, uniform)


def forms() -> Iterator[tuple[str, GemmTile, bool]]:
    """Yield (dtype, tile, one tap per slice of K) of every kernel variant."""
    for dtype, tiles in _TILES.items():
        for tile in tiles:
            for uniform in tile.forms:
                yield dtype, tile, uniform


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for dtype, tile, uniform in forms():
        yield variant(dtype, tile, uniform)
