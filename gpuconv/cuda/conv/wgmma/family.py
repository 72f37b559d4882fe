"""Conv and ConvTranspose on Hopper with wgmma and TMA: float16, bfloat16, and float32 as TF32 or 3xTF32.

Persistent, warp-specialised implicit GEMM: a producer warpgroup loads by TMA, two consumer warpgroups multiply. By the
cost model it is the fastest family on sm_90a for dense layers with at least 32 filters per group.

Three kernels. ``conv/wgmma/slices.cu`` loads each tap's columns by im2col tensor maps, from x or a channels-last copy
of it. In ``conv/wgmma/strips.cu`` the taps along H share one strip of x (Conv, or ConvTranspose of stride 1). In
``conv/wgmma/pixels.cu`` float32 x passes through registers, where it is rounded to TF32. Weights are packed first
unless they can be fetched in place. Too few tiles, or a partial last wave, are split along K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, split
from gpuconv.cuda.conv.wgmma import cost, operands, sources, tiles
from gpuconv.cuda.conv.wgmma import pixels as wgmma_pixels
from gpuconv.cuda.conv.wgmma import strips as wgmma_strips
from gpuconv.cuda.conv.wgmma.cost import WgmmaWork
from gpuconv.cuda.conv.wgmma.tiles import SLICE_BYTES, STEP_BYTES, PixelsTile, StripsTile, WgmmaTile
from gpuconv.cuda.plan import RANK, Candidate, Launch, Limits, Offer, Plan, Refusal, Space, nonempty
from gpuconv.cuda.plan.numbers import empty_rows

NAME = "wgmma"
ARCHITECTURE = "sm_90a"
_CLASSES = {"float16": "WgmmaHalf", "bfloat16": "WgmmaBfloat16", "float32": "WgmmaTf32"}


# ---------------------------------------------------------------- offers


def offers(problem: correlation.Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile and source of x, and its split-K version where there are too few tiles."""
    if refusal := _refusal(problem, limits):
        yield refusal
        return
    for source in sources.sources(problem):
        for whole in _undivided(source, limits):
            if tiles.shared_bytes(problem, whole.tile) <= limits.shared_bytes_per_block:
                yield from (_candidate(work, limits) for work in (whole, *_divided(whole, limits)))


def offers_in_order(problem: correlation.Problem, limits: Limits) -> Iterator[Offer]:
    """Yield batch-invariant candidates: strips for every order of summation, K in every number of segments."""
    if refusal := _refusal(problem, limits):
        yield refusal
        return
    for source in sources.sources(problem):
        for whole in _every_strip(source, limits):
            if tiles.shared_bytes(problem, whole.tile) <= limits.shared_bytes_per_block:
                for count in (0, *split.counts(whole.most_steps)):
                    work = replace(whole, divided=whole.tiles, splits=count) if count else whole
                    yield _candidate(work, limits)


def _candidate(work: WgmmaWork, limits: Limits) -> Candidate:
    """Return a piece of work as a candidate."""
    return Candidate(_name(work), cost.seconds(work, limits), partial(_plan, work, limits), _order(work))


def _order(work: WgmmaWork) -> str:
    """Return the name of the order in which an output's products are summed."""
    source = work.source
    strips = ""
    if isinstance(work.strips, wgmma_pixels.PixelStrips):
        strips = f", the innermost {work.strips.inner_h} x {work.strips.inner_w} taps last"
    elif work.inner > 1:
        strips = f", the {work.inner} taps along H last"
    if source.in_registers:
        n, factors = work.tile.block_m, source.parts
    else:
        n, factors = work.tile.block_n, source.products
    slices = f"{source.channel_slices * source.block_k} channels in slices of {source.block_k}"
    whole = f"{factors} x " * (factors > 1) + f"wgmma m64n{n} of {source.problem.dtype} over taps, {slices}{strips}"
    return f"{whole}; {work.splits} segments" if work.divided else whole


def _every_strip(source: sources.Source, limits: Limits) -> Iterator[WgmmaWork]:
    """Yield the work for each tile and, with pixels in registers, for each number of taps that share a strip."""
    if not (source.in_strips and source.in_registers):
        yield from _undivided(source, limits)
        return
    for pixels in (tile for tile in tiles.PIXELS if tile.rows == (source.form == "rows")):
        by_taps: dict[tuple[int, int], list[WgmmaWork]] = {}
        for strips in wgmma_pixels.of(source.seen, pixels):
            work = WgmmaWork(source, pixels, strips)
            by_taps.setdefault((strips.inner_h, strips.inner_w), []).append(work)
        for works in by_taps.values():
            yield min(works, key=lambda work: (cost.seconds(work, limits), work.strip_bytes))


def _refusal(problem: correlation.Problem, limits: Limits) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if limits.architecture != ARCHITECTURE:
        return Refusal(f"it needs {ARCHITECTURE}", plain=True)
    if why := fragments.refusal(problem):
        return Refusal(why, plain=True)
    if problem.dtype not in _CLASSES:
        return Refusal(f"it does not multiply {problem.dtype}", plain=True)
    if why := sources.refusal(problem):
        return Refusal(why)
    least = min(tiles.shared_bytes(problem, tile) for tile in tiles.TILES)
    if least > limits.shared_bytes_per_block:
        return Refusal(f"a block takes {least} bytes of shared memory, there are {limits.shared_bytes_per_block}")
    return None


def _undivided(source: sources.Source, limits: Limits) -> Iterator[WgmmaWork]:
    """Yield the work for each tile of the kernels that can use this source, without split-K."""
    if not source.in_strips:
        for tile in tiles.TILES:
            yield WgmmaWork(source, tile)
        return
    seen, rows = source.seen, source.form == "rows"
    if source.in_registers:
        for pixels in (tile for tile in tiles.PIXELS if tile.rows == rows):
            works = [WgmmaWork(source, pixels, strips) for strips in wgmma_pixels.of(seen, pixels)]
            if works:
                yield min(works, key=lambda work: (cost.seconds(work, limits), work.strip_bytes))
        return
    for tile in tiles.STRIPS:
        if (tile.rows, tile.slice_bytes) == (rows, source.slice_bytes):
            strips = wgmma_strips.of(seen, tile)
            if strips is not None:
                yield WgmmaWork(source, tile, strips)


def _divided(whole: WgmmaWork, limits: Limits) -> Iterator[WgmmaWork]:
    """Yield the work with its best modelled number of splits, if there are tiles to split."""
    divided, counts = split.divided(whole.tiles, limits), split.counts(whole.most_steps)
    if divided and counts:
        yield cost.in_best_splits(replace(whole, divided=divided), counts, limits)


def _name(work: WgmmaWork) -> str:
    """Return the candidate's name: the kernel, with suffixes for a source read in place and for split-K."""
    chosen = _variant(work).name
    form = "_direct" if work.source.form == "direct" else ""
    return f"{chosen}{form}{'_split' if work.divided else ''}"


# ---------------------------------------------------------------- launch


def _plan(work: WgmmaWork, limits: Limits) -> Plan:
    """Return the plan: launches that pack the weights and copy x where needed, then the GEMM.

    With split-K, one of the earlier launches zeroes the counters ("tickets") by which the last block of a tile adds its
    partial sums. If there is no earlier launch, a second launch after the GEMM adds them.
    """
    source, tickets = work.source, work.divided
    copying: tuple[Launch, ...] = ()
    if source.form == "copied":
        copying = (operands.of_x(source.problem, source.x_channels, source.parts, tickets),)
    before = (*_packing(source, 0 if copying else tickets), *copying)
    apart = [_launch(work, part, limits) for part in (split.SUMS, split.TOTALS)] if tickets else []
    shares = bool(apart) and source.form != "copied" and source.packed
    return Plan(
        source.problem.operator,
        (*before, *([_launch(work, split.ALL, limits)] if before or not apart else apart)),
        tuple(_reasons(work, limits)),
        nonempty(
            Space.packed(source.packed_bytes),
            Space("x_last", "x with its channels last", source.x_last_bytes),
            Space("workspace", "sums of the splits", work.workspace_bytes),
        ),
        sharing=(*_packing(source, 0), *apart) if shares else (),
        alignment=source.aligned,
        otherwise=partial(_of_copies, work, limits) if source.aligned else None,
    )


def _of_copies(work: WgmmaWork, limits: Limits) -> Plan:
    """Return the fallback plan on copies, for addresses that TMA cannot fetch from."""
    source = sources.of_copies(work.source.problem)
    copies = min((WgmmaWork(source, tile) for tile in tiles.TILES), key=partial(cost.seconds, limits=limits))
    return replace(_plan(copies, limits), problem=work.source.problem, kernel=_name(copies))


def _reasons(work: WgmmaWork, limits: Limits) -> Iterator[str]:
    """Yield the reasons for ``explain``."""
    source, tile = work.source, work.tile
    if work.divided:
        all_tiles = f"each of the last {work.divided} of {work.tiles} tiles"
        which = "each tile's K" if work.divided == work.tiles else f"K of {all_tiles}"
        few = f"{work.divided} tiles are few for {limits.multiprocessors} multiprocessors"
        yield f"{which} in {work.splits} splits: {few}"
    count = source.channel_slices
    filled = f"{source.problem.channels} channels of a group in {count} slices of {source.block_k}"
    if source.last_steps < (steps := source.slice_bytes // STEP_BYTES):
        filled += f", the last one in {source.last_steps} of {steps} steps"
    how = "make tiles in turns (ping-pong)" if tile.ping_pong else "make a tile together (cooperative)"
    yield f"one tap per slice of K: {filled}; two warpgroups {how}"
    yield from empty_rows(source.problem.filters, tile.block_m)
    if source.form == "copied":
        fetched = "x is copied first, channels last"
        conv = correlation.as_conv(source.problem)
        if conv is not None:
            why = sources.no_rows(conv)
            fetched += f", since {why or 'its rows are predicted to be slower'}"
    elif source.form == "direct":
        fetched = "x is fetched as it is: its channels are contiguous"
    else:
        fetched = f"x is fetched as it is: {_row(work)} pixels of its rows at once"
    yield fetched + _sharing(work)
    if not source.packed:
        yield "w is fetched as it is: its channels are contiguous"
    if work.resident:
        yield "each block fetches its weights once: all tiles have the same, and there is room for them"


def _sharing(work: WgmmaWork) -> str:
    """Return the part of a reason that says which taps share a strip; empty if none do."""
    if work.inner == 1:
        return ""
    axes = "H and W" if isinstance(work.strips, wgmma_pixels.PixelStrips) else "H"
    return f"; {work.inner} taps along {axes} share {'patches' if work.source.patches else 'them'}"


def _row(work: WgmmaWork) -> int:
    """Return the pixels of a row that one TMA copy fetches."""
    return work.strips.box[1] if isinstance(work.strips, wgmma_pixels.PixelStrips) else wgmma_strips.ROW


def _packing(source: sources.Source, tickets: int) -> tuple[Launch, ...]:
    """Return the launch that packs the weights; empty if w is fetched in place."""
    if not source.packed:
        return ()
    return (operands.of_weights(source.problem, source.w_channels, source.parts, tickets),)


def _launch(work: WgmmaWork, part: int, limits: Limits) -> Launch:
    """Return the kernel's launch for ``part``: everything, only partial sums of split tiles, or their reduction."""
    source, tile, chosen = work.source, work.tile, _variant(work)
    lifted = source.seen.lifted
    items = work.divided if part == split.TOTALS else work.items
    problem = gemm_base.operands(lifted, work.counts, source.weights())
    if lifted.operator != source.problem.operator:
        problem = {**problem, "taps": gemm_base.backwards(problem["taps"])}
    fields = {
        "problem": problem,
        "loading": sources.loading(source),
        "splits": split.splits(work.tiles, work.divided, work.splits, part),
        "items": items,
        **_strips(work),
    }
    return Launch(
        chosen,
        (min(items, limits.multiprocessors), 1, 1),
        tiles.shared_bytes(lifted, tile),
        fields,
        _roles(work),
        sources.maps(source, tile, work.strips),
    )


def _strips(work: WgmmaWork) -> Mapping[str, Mapping[str, Any]]:
    """Return the struct fields of the strips; empty without strips."""
    if work.strips is None:
        return {}
    resident = {"resident": int(work.resident)} if isinstance(work.strips, wgmma_strips.Strips) else {}
    return {"strips": {**work.strips.fields(), **resident}}


def _roles(work: WgmmaWork) -> Mapping[str, str]:
    """Return the array that each pointer of the kernel's struct refers to."""
    roles = gemm_base.roles(work.source.problem, "problem.common", "packed" if work.source.packed else "w")
    return roles | {"splits.workspace": "workspace"} if work.divided else roles


# ---------------------------------------------------------------- kernels


_SLICES = Kernel(
    "conv/wgmma/slices.cu",
    "conv_wgmma",
    f"WgmmaParams<ConvParams<int, {RANK}>>",
    threads=tiles.THREADS,
    blocks_per_sm=1,
    name="conv",
    architectures=(ARCHITECTURE,),
    least_registers=tiles.LAUNCH_REGISTERS,
)
_KERNELS = {
    "conv": _SLICES,
    "conv_transpose": replace(
        _SLICES,
        function="conv_transpose_wgmma",
        parameter=f"WgmmaParams<ConvTransposeParams<int, {RANK}>>",
        name="conv_transpose",
    ),
}
_STRIPS = replace(_SLICES, source="conv/wgmma/strips.cu", function="conv_wgmma_strips", parameter="WgmmaStripsParams")
_PIXELS = replace(_SLICES, source="conv/wgmma/pixels.cu", function="conv_wgmma_pixels", parameter="WgmmaPixelsParams")


def variant(operator: str, dtype: str, tile: WgmmaTile) -> Variant:
    """Return the kernel variant; float32 is multiplied as TF32."""
    form = f"{'tf32_' * (dtype == 'float32')}wgmma_{tile.block_m}x{tile.block_n}"
    kernel, sizes = _KERNELS[operator], (tile.block_m, tile.block_n, tile.stages)
    form_sizes: tuple[int, ...] = (tile.ping_pong,)
    if isinstance(tile, PixelsTile):
        kernel, form_sizes = _PIXELS, (tile.x_bytes, tile.rows)
        form += f"_pixel_{'rows' if tile.rows else 'patches'}"
    elif isinstance(tile, StripsTile):
        kernel, form_sizes = _STRIPS, (tile.x_bytes, tile.ping_pong, tile.slice_bytes, tile.rows)
        form += f"{'' if tile.slice_bytes == SLICE_BYTES else 'x32'}_{'rows' if tile.rows else 'patches'}"
    return kernel.over(dtype, RANK, form, types=(_CLASSES[dtype],), sizes=(*sizes, *form_sizes))


def _variant(work: WgmmaWork) -> Variant:
    """Return the kernel variant of a piece of work."""
    return variant(work.source.seen.operator, work.source.problem.dtype, work.tile)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for dtype in _CLASSES:
        for operator, tile in product(("conv", "conv_transpose"), tiles.TILES):
            yield variant(operator, dtype, tile)
        if dtype == "float32":
            for pixels in tiles.PIXELS:
                yield variant("conv", dtype, pixels)
        for strips in tiles.STRIPS:
            if dtype != "float32" or not (strips.rows or strips.slice_bytes != SLICE_BYTES):
                yield variant("conv", dtype, strips)
    yield from operands.variants()
