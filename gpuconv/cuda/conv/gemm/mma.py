"""Conv and ConvTranspose as implicit GEMM on tensor cores: float16, bfloat16, float64, and float32 in TF32 or 3xTF32.

Two launches, one that packs the weights as fragments and one that makes the tiles. The kernels have three spatial axes:
problems with fewer get axes of one element in front. Indices have 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv import runs
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, mma_tile
from gpuconv.cuda.conv.gemm.base import Divisible
from gpuconv.cuda.conv.gemm.mma_tile import Form, Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.runs import Runs
from gpuconv.cuda.plan import launching
from gpuconv.cuda.plan.launch import Launch, Limits, Plan, Space, kept
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules import dtypes

NAME = "tensor cores"
_TABLE_ROWS = 1024  # rows of K that fit the table of the form that finds the tap of every row


# ---------------------------------------------------------------- what they accept


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every form of every tile that takes the problem."""
    why = refusal(problem)
    if why is not None:
        yield Refusal(why)
        return
    lifted = correlation.in_three_axes(problem)
    for tile, form in mma_tile.kernels(fragments.arithmetic(problem)):
        seen = _as_seen(lifted, tile, form)
        if seen is not None and mma_tile.shared_bytes(seen.gathered, tile, form) <= limits.shared_bytes_per_block:
            name = variant(problem.operator, problem.dtype, problem.precision, tile, form).name
            yield Candidate(name, mma_tile.seconds(seen.gathered, tile, form, limits), partial(_plan, seen, tile, form))


def divisible(problem: Problem, limits: Limits) -> Iterator[Divisible]:
    """Yield plans for tiles that several blocks could make."""
    if refusal(problem) is not None:
        return
    lifted = correlation.in_three_axes(problem)
    for tile, form in mma_tile.divisible_kernels(fragments.arithmetic(problem)):
        seen = _as_seen(lifted, tile, form)
        if seen is None:
            continue
        gathered = seen.gathered
        yield Divisible(
            variant=variant(problem.operator, problem.dtype, problem.precision, tile, form),
            shared_bytes=mma_tile.shared_bytes(gathered, tile, form),
            tiles=mma_tile.blocks(gathered, tile),
            slices=mma_tile.slices(gathered, form) / prod(gathered.phases),
            most_slices=mma_tile.most_slices(gathered, form),
            sums_bytes=tile.block_m * tile.block_n * dtypes.sums(problem.dtype).itemsize,
            busy=mma_tile.busy_with(gathered, tile, form, limits),
            packing=partial(_packing, seen.packed, tile, form),
            plan=partial(_plan, seen, tile, form),
        )


def refusal(problem: Problem) -> str | None:
    """Return why no kernel of tensor cores takes a problem, or None."""
    if (problem.dtype, problem.precision) not in fragments.operands():
        return f"{problem.dtype} products are those of IEEE arithmetic unless precision is lower"
    if problem.rank > RANK:
        return f"{problem.rank} spatial axes are more than {RANK}"
    if problem.rows == 0:
        return "there is nothing to multiply"
    if problem.far():
        return "offsets or coordinates need 64-bit indices"
    return None


def accepts(problem: Problem, form: Form) -> bool:
    """Tell whether a form takes a problem: channels side by side in memory, or few of them, or any."""
    if form.gather == "scalar":
        return True
    if form.rowwise:
        few = form.entries(problem.rows, problem.itemsize) <= _TABLE_ROWS and problem.channels % form.block_k != 0
        if not few or problem.operator != "conv":
            return False
    return not form.copied or has_chunks(problem, form.copied)


def has_chunks(problem: Problem, size: int = 16) -> bool:
    """Tell whether every pixel of x consists of whole chunks, of so many bytes of channels side by side."""
    chunk = size // problem.itemsize
    batch, channel, *spatial = problem.x_strides
    steps = [batch, *(s for s, n in zip(spatial, problem.x_shape[2:], strict=True) if n > 1)]
    return channel == 1 and problem.channels % chunk == 0 and all(step % chunk == 0 for step in steps)


def _as_seen(problem: Problem, tile: Tile, form: Form) -> Runs | None:
    """Return a problem as a form gathers its x and finds its weights, or None if the form does not take it."""
    seen: Runs | None = Runs(problem, problem)
    if form.rowwise and form.copied and not accepts(problem, form):
        seen = runs.along_w(problem, form.copied // problem.itemsize)
    if (
        seen is None
        or not accepts(seen.gathered, form)
        or seen.gathered.wide(mma_tile.packed_bytes(problem, tile, form))
    ):
        return None
    return seen


# ---------------------------------------------------------------- plans


def _plan(seen: Runs, tile: Tile, form: Form) -> Plan:
    problem = seen.gathered
    launches = (_packing(seen.packed, tile, form), _gemm(problem, tile, form))
    size = mma_tile.packed_bytes(problem, tile, form)
    return Plan(problem.operator, launches, (_reason(seen, form),), kept(Space.packed(size)))


def _reason(seen: Runs, form: Form) -> str:
    problem = seen.gathered
    if form.rowwise and form.copied:
        what = f"{problem.channels} channels per group"
        if problem is not seen.packed:
            what = f"runs of {prod(problem.taps[2:]) * problem.channels} elements of x for the taps along W"
        return f"a tap for every {form.copied} bytes of K: {what}, slices of {form.block_k}"
    if form.rowwise:
        return f"taps found row by row: {problem.channels} channels per group, slices of {form.block_k}"
    filled = f"{problem.channels} channels of a group, filled up to {mma_tile.channels_of_tap(problem, form)}"
    copied = f"{form.copied} bytes" if form.copied else "one element"
    return f"one tap per slice of K: {filled}; {copied} of x a copy"


def _packing(problem: Problem, tile: Tile, form: Form, tickets: int = 0) -> Launch:
    weights, columns = mma_tile.packed_weights(problem, tile, form), mma_tile.columns(problem, tile)
    outer_taps = 1 if form.rowwise else prod(problem.taps)
    return fragments.packing(problem, weights, columns, mma_tile.depths(problem, form), outer_taps, tickets)


def _gemm(problem: Problem, tile: Tile, form: Form) -> Launch:
    chosen = variant(problem.operator, problem.dtype, problem.precision, tile, form)
    fields = gemm_base.operands(
        problem, problem.tiles(tile.block_m, tile.block_n), mma_tile.packed_weights(problem, tile, form)
    )
    if mma_tile.divisible(fragments.arithmetic(problem), tile, form):
        fields = {**fields, "splits": gemm_base.splits(mma_tile.blocks(problem, tile))}
    shared = mma_tile.shared_bytes(problem, tile, form)
    roles = gemm_base.roles(problem)
    return launching.of_blocks(problem.operator, chosen, mma_tile.blocks(problem, tile), fields, roles, shared)


# ---------------------------------------------------------------- variants


_KERNELS = {
    (operator, splits): Kernel(
        source, f"{operator}_split_mma" if splits else f"{operator}_mma", f"{struct}<int, {RANK}>", name=operator
    )
    for (operator, splits), (source, _, struct) in gemm_base.SOURCES.items()
}


def variant(operator: str, dtype: str, precision: str, tile: Tile, form: Form) -> Variant:
    """Return the tile kernel of one operator."""
    arithmetic = fragments.arithmetic_of(dtype, precision)
    sizes = (tile.block_m, tile.block_n, form.block_k, tile.warp_m, tile.warp_n, form.stages)
    return _KERNELS[operator, mma_tile.divisible(arithmetic, tile, form)].over(
        *(dtype, RANK, arithmetic.label, f"{tile.block_m}x{tile.block_n}x{form.block_k}", form.gather),
        types=(arithmetic.cuda,),
        sizes=(*sizes, f"Gather::k{form.gather.capitalize()}"),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype, precision, arithmetic in fragments.arithmetics():
        yield fragments.packing_variant(dtype, precision)
        for tile, form in mma_tile.kernels(arithmetic):
            yield variant("conv", dtype, precision, tile, form)
            if not form.rowwise:
                yield variant("conv_transpose", dtype, precision, tile, form)
