"""Plans of the gradient of weights in large tiles, of tensor cores or of FFMA (``weight_grad/tiles.cu``).

Kernels have three spatial axes and 32-bit indices: problems with fewer axes get some of one element in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm.fragments import Arithmetic
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan import launching
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.numbers import RANK, whole
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.weight_grad import tiles_cost
from gpuconv.cuda.weight_grad.problem import OPERATOR, Problem
from gpuconv.cuda.weight_grad.tiles_cost import Tile
from gpuconv.rules import dtypes

NAME = "large tiles"
_FARTHEST = 2**30  # coordinates and extents of tables are below
_APART = 2**31  # bytes from one channel of x to the next are fewer
_COORDINATES = 12 + 4  # bytes of an entry


def _refusal(problem: Problem) -> str | None:
    """Return why no large tile takes a problem, or None."""
    rank = len(problem.geometry.kernel_shape)
    if problem.result != problem.dtype:
        return f"products of parts of {problem.result} are added up apart"
    if rank > RANK:
        return f"{rank} spatial axes are more than {RANK}"
    if problem.pixels == 0 or 0 in problem.geometry.x_shape:
        return "there is nothing to multiply"
    if problem.wide() or max((*problem.reach(), *problem.geometry.x_shape[2:])) >= _FARTHEST:
        return "offsets or coordinates need 64-bit indices"
    apart = abs(problem.x_strides[1]) * dtypes.entry(problem.dtype).itemsize
    if problem.geometry.w_shape[1] > 1 and apart >= _APART:
        return f"channels of x are {apart} bytes apart, not fewer than {_APART}"
    return None


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every tile that takes the problem."""
    why = _refusal(problem)
    if why is not None:
        yield Refusal(why)
        return
    arithmetic = tiles_cost.arithmetic_of(problem)
    chunks = tiles_cost.has_chunks(problem)
    for tile in tiles_cost.TILES[arithmetic.cuda]:
        room = shared_bytes(problem.dtype, tile) <= limits.shared_bytes_per_block
        if room and (chunks or tile.gather == "pixels"):
            parts, seconds = tiles_cost.parts(problem, tile, arithmetic, limits)
            name = variant(problem.dtype, arithmetic, tile).name
            yield Candidate(name, seconds, partial(_plan, problem, tile, arithmetic, parts))


def shared_bytes(dtype: str, tile: Tile) -> int:
    """Return the bytes of the slices and of the tables."""
    size = dtypes.entry(dtype).itemsize
    if tile.gather == "channels":
        more = 0 if size == 2 else 32
        stage = tile.block_k * ((tile.block_m + tile.block_n) * size + 2 * more)
    else:
        stage = (tile.block_m + tile.block_n) * (tile.block_k * size + (32 if size == 8 else 0))
    units = tile.block_n // tiles_cost.UNIT
    pixels = tile.stages * tile.block_k
    return tile.stages * stage + whole((pixels + units) * (_COORDINATES + 4), 16)


def _plan(problem: Problem, tile: Tile, arithmetic: Arithmetic, parts: int) -> Plan:
    g, chosen = problem.geometry, variant(problem.dtype, arithmetic, tile)
    tiles, each = tiles_cost.tiles(problem, tile), tiles_cost.each(problem, tile, parts)
    common: dict[str, Any] = problem.fields(RANK, tiles, each)
    # Where x has one element along an axis, taps in the padding lie where others do, and are as well aligned.
    common["x_stride"] = [s if n > 1 else 0 for s, n in zip(common["x_stride"], common["x_extent"], strict=True)]
    fields = {
        "common": common,
        "channels": whole(g.w_shape[1], tiles_cost.UNIT),
        "image": prod(g.y_shape[2:]),
        "dy_rows": tiles_cost.dy_in_rows(problem),
        "x_rows": tiles_cost.x_in_rows(problem),
        "dy_chunks": tiles_cost.dy_in_chunks(problem),
    }
    roles = {"common.x": "x", "common.dy": "dy", "common.sums": "workspace"}
    blocks, shared = prod(tiles) * g.group * parts, shared_bytes(problem.dtype, tile)
    launch = launching.of_blocks(OPERATOR, chosen, blocks, fields, roles, shared)
    reason = f"{problem.pixels} pixels in {parts} parts of {each}"
    # The sums of a filter have their channels innermost.
    filters, channels, *taps = g.w_shape
    of_filter, of_channel, *of_taps = problem.w_strides
    shape, strides = (filters, *taps, channels), (of_filter, *of_taps, of_channel)
    return sums.plan(OPERATOR, launch, parts, shape, strides, problem.result, reason)


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("weight_grad/tiles.cu", "conv_weight_grad_mma", "WeightGradTileParams", name="conv_weight_grad")
_FFMA = replace(_KERNEL, function="conv_weight_grad_ffma")


def variant(dtype: str, arithmetic: Arithmetic, tile: Tile) -> Variant:
    """Return the kernel of a tile."""
    own = arithmetic is tiles_cost.OWN
    of_warp = () if own else (tile.warp_m, tile.warp_n)
    slices = f"{tile.gather.capitalize()[:-1]}Slices"
    return (_FFMA if own else _KERNEL).over(
        *(dtype, RANK, arithmetic.label, tile.shape),
        types=() if own else (arithmetic.cuda,),
        sizes=(tile.block_m, tile.block_n, tile.block_k, *of_warp, tile.stages, slices),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype, arithmetic, tile in tiles_cost.kernels():
        yield variant(dtype, arithmetic, tile)
