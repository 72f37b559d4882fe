"""Implicit GEMM with mma.sync on tensor cores: float16, bfloat16, float64, and float32 as TF32 or 3xTF32.

Two launches: pack the weights into mma fragments, then compute one output tile per block. This is the general
tensor-core family, chosen where no specialised one is faster.

Kernels have three spatial axes (shorter problems get leading axes of one element) and 32-bit indices. For
ConvTranspose, a block computes outputs of one phase (``conv/gemm/conv_transpose.cu``). With few filters, M enumerates
(filter, phase) (``conv/gemm/phase_rows.cu``), or (filter, tap along W) for Conv (``conv/gemm/tap_rows.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import copies, filter_rows, fragments, mma_tile, runs, split
from gpuconv.cuda.conv.gemm.filter_rows import FilterRows
from gpuconv.cuda.conv.gemm.fragments import ARITHMETICS
from gpuconv.cuda.conv.gemm.mma_tile import MmaForm, MmaTile, divisible, kernels
from gpuconv.cuda.conv.gemm.runs import Runs
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Candidate, Launch, Limits, Offer, Plan, Refusal, Space, model, nonempty
from gpuconv.cuda.plan.numbers import empty_rows

NAME = "implicit GEMM on tensor cores"


# ---------------------------------------------------------------- accepted problems


_TABLE_ROWS = 1024  # capacity, in entries, of the table of the forms that look up the tap of every row of K


def _accepts(problem: Problem, form: MmaForm) -> bool:
    """Return whether a form accepts the problem's channels: contiguous chunks, few channels (table of taps), or any."""
    if form.gather == "scalar":
        return True
    if form.rowwise:
        few = form.entries(problem.rows, problem.itemsize) <= _TABLE_ROWS and problem.channels % form.block_k != 0
        if not few or problem.operator != "conv":
            return False
    return not form.copied or fragments.has_chunks(problem, form.copied)


def _as_seen(problem: Problem, tile: MmaTile, form: MmaForm) -> Runs | None:
    """Return the problem as a form gathers x and finds its weights, or None if the form does not accept it."""
    seen: Runs | None = Runs(problem, problem)
    if form.rowwise and form.copied and not _accepts(problem, form):
        seen = runs.along_w(problem, form.copied // problem.itemsize)
    if (
        seen is None
        or not _accepts(seen.gathered, form)
        or seen.gathered.wide(mma_tile.packed_bytes(problem, tile, form))
    ):
        return None
    return seen


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, tile: MmaTile, form: MmaForm, limits: Limits) -> float:
    """Model the seconds of both launches, with one block per tile."""
    busy = mma_tile.busy_with(problem, tile, form, limits)
    mean = mma_tile.slices(problem, form) / prod(problem.phases)
    busiest = max(busy(problem.blocks(tile.block_m, tile.block_n), mean), busy(1, mma_tile.most_slices(problem, form)))
    return model.overlapped(busiest, model.memory(problem.bytes_by_phase, limits)) + limits.rates.launch


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each accepting form of each tile, and split-K candidates where they pay off."""
    yield from _offers(problem, split.candidates, limits)


def offers_in_order(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield batch-invariant candidates: each tile with every fixed number of K segments, whatever the batch."""
    yield from _offers(problem, split.in_segments, limits)


_Tiling = tuple[MmaTile, MmaForm, Runs]
_Divided = Callable[[Iterable[split.Divisible], Limits], Iterator[Candidate]]


def _offers(problem: Problem, divided: _Divided, limits: Limits) -> Iterator[Offer]:
    """Yield the candidates that read x in place, then those that read a channels-last copy."""
    if why := fragments.refusal(problem):
        yield Refusal(why)
        return
    yield from _of_tilings(problem, _tilings(problem), divided, limits)
    yield from _of_rows(problem.lifted, divided, limits)
    copied = None if fragments.has_chunks(problem) else copies.of(problem.lifted, 16 // problem.itemsize)
    if copied is not None:
        tilings = [tiling for tiling in _tilings(copied.problem) if tiling[1].copied]
        yield from copies.candidates(copied, _of_tilings(copied.problem, tilings, divided, limits), limits)
        yield from copies.candidates(copied, _of_rows(copied.problem, divided, limits), limits)


def _tilings(problem: Problem) -> list[_Tiling]:
    """Return every (tile, form) that accepts the problem, with the problem as that form reads it."""
    lifted = problem.lifted
    views = ((tile, form, _as_seen(lifted, tile, form)) for tile, form in kernels(fragments.arithmetic(problem)))
    return [(tile, form, seen) for tile, form, seen in views if seen is not None]


def _of_tilings(problem: Problem, tilings: list[_Tiling], divided: _Divided, limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates for these tiles and forms, without and with split-K."""
    yield from _whole(problem, tilings, limits)
    yield from divided(_divisible_of(problem, tilings, limits), limits)


def _whole(problem: Problem, tilings: list[_Tiling], limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates with one block per tile."""
    for tile, form, seen in tilings:
        if mma_tile.shared_bytes(seen.gathered, tile, form) <= limits.shared_bytes_per_block:
            name = variant(problem.operator, problem.dtype, problem.precision, tile, form).name
            seconds = _seconds(seen.gathered, tile, form, limits)
            yield Candidate(name, seconds, partial(_plan, seen, tile, form), _order(seen, form))


def _divisible_of(problem: Problem, tilings: list[_Tiling], limits: Limits) -> Iterator[split.Divisible]:
    """Yield the tiles that support split-K, described for its planner."""
    arithmetic = fragments.arithmetic(problem)
    for tile, form, seen in tilings:
        if divisible(arithmetic, tile, form):
            yield _divisible(seen, tile, form, limits)


def _of_rows(problem: Problem, divided: _Divided, limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates with several GEMM rows per filter, without and with split-K."""
    rows = list(_divisible_rows(problem, limits))
    yield from split.whole(rows, limits)
    yield from divided(rows, limits)


def _divisible_rows(problem: Problem, limits: Limits) -> Iterator[split.Divisible]:
    """Yield tiles whose M enumerates (filter, phase) or (filter, tap along W), described for the split-K planner."""
    arithmetic, operator = fragments.arithmetic(problem), problem.operator
    for tile, form in mma_tile.of_rows(arithmetic, operator):
        rows_gemm = filter_rows.of(problem, tile)
        if rows_gemm is None or _as_seen(rows_gemm.gemm, tile, form) is None:
            continue
        slices, shared = (
            mma_tile.slices(rows_gemm.gemm, form),
            rows_gemm.shared_bytes(mma_tile.shared_bytes(rows_gemm.gemm, tile, form)),
        )
        order = fragments.order(arithmetic, mma_tile.multiplied(rows_gemm.gemm, form), 1, rows_gemm.order)
        yield split.Divisible(
            variant=rows_variant(operator, problem.dtype, problem.precision, tile, form),
            order=order + _filled(rows_gemm.gemm, form),
            shared_bytes=shared,
            tiles=rows_gemm.blocks,
            slices=slices,
            most_slices=slices,
            slice_rows=form.block_k,
            sums_bytes=tile.block_m * tile.block_n * problem.word,
            bytes=problem.bytes,
            phased=False,
            busy=mma_tile.busy_with(rows_gemm.gemm, tile, form, limits, shared),
            packing=partial(_packing_of_rows, rows_gemm, tile, form),
            plan=partial(_plan_of_rows, rows_gemm, tile, form, shared),
            writing=model.instructions(rows_gemm.instructions, limits),
        )


def _order(seen: Runs, form: MmaForm) -> str:
    """Return the name of the order of summation: K is padded to whole mma steps per tap, or once as a whole."""
    problem = seen.gathered
    arithmetic = fragments.arithmetic(problem)
    if not form.rowwise:
        return fragments.order(arithmetic, mma_tile.multiplied(problem, form), 1)
    runs_of = "" if seen.packed is problem else f" in runs of {prod(problem.taps[2:]) * problem.channels}"
    channels = f"{problem.channels} channels{runs_of}"
    rows = mma_tile.slices(problem, form) * form.block_k
    return f"{arithmetic.instruction} over taps and {channels}, filled up to {rows}"


def _filled(problem: Problem, form: MmaForm) -> str:
    """Return a suffix for the order of split-K: segment boundaries also depend on each tap's padding rows."""
    rows = mma_tile.channels_of_tap(problem, form)
    return f", filled up to {rows}" if rows > mma_tile.multiplied(problem, form) else ""


def _divisible(seen: Runs, tile: MmaTile, form: MmaForm, limits: Limits) -> split.Divisible:
    """Describe a tile for the split-K planner."""
    problem = seen.gathered
    return split.Divisible(
        variant=variant(problem.operator, problem.dtype, problem.precision, tile, form),
        order=_order(seen, form) + _filled(seen.gathered, form),
        shared_bytes=mma_tile.shared_bytes(problem, tile, form),
        tiles=problem.blocks(tile.block_m, tile.block_n),
        slices=mma_tile.slices(problem, form) / prod(problem.phases),
        most_slices=mma_tile.most_slices(problem, form),
        slice_rows=form.block_k,
        sums_bytes=tile.block_m * tile.block_n * problem.word,
        bytes=problem.bytes_by_phase,
        phased=bool(problem.phases),
        busy=mma_tile.busy_with(problem, tile, form, limits),
        packing=partial(_packing, seen.packed, tile, form),
        plan=partial(_plan, seen, tile, form),
    )


# ---------------------------------------------------------------- launch


def _plan(seen: Runs, tile: MmaTile, form: MmaForm) -> Plan:
    """Return the plan of this candidate."""
    problem = seen.gathered
    launches = (_packing(seen.packed, tile, form), _gemm(problem, tile, form))
    size = mma_tile.packed_bytes(problem, tile, form)
    reasons = (_reason(seen, form), *empty_rows(problem.filters, tile.block_m))
    return Plan(problem.operator, launches, reasons, nonempty(Space.packed(size)))


def _reason(seen: Runs, form: MmaForm) -> str:
    """Return the reason for ``explain``: how slices of K find their taps, and how they are copied."""
    problem = seen.gathered
    if form.rowwise and form.copied:
        what = f"{problem.channels} channels per group"
        if problem is not seen.packed:
            what = f"runs of {prod(problem.taps[2:]) * problem.channels} elements of x for the taps along W"
        return f"a tap for every {form.copied} bytes of K: {what}, slices of {form.block_k}"
    if form.rowwise:
        return f"taps found row by row: {problem.channels} channels per group, slices of {form.block_k}"
    filled = f"{problem.channels} channels of a group, filled up to {mma_tile.channels_of_tap(problem, form)}"
    if (multiplied := mma_tile.multiplied(problem, form)) < mma_tile.channels_of_tap(problem, form):
        filled += f", of which {multiplied} are multiplied"
    copied = f"{form.copied} bytes" if form.copied else "one element"
    return f"one tap per slice of K: {filled}; {copied} of x a copy"


def _packing(problem: Problem, tile: MmaTile, form: MmaForm, tickets: int = 0) -> Launch:
    """Return the launch that packs the weights as fragments."""
    weights, outer_taps = mma_tile.packed_weights(problem, tile, form), 1 if form.rowwise else prod(problem.taps)
    return fragments.packing(
        problem, weights, mma_tile.columns(problem, tile), mma_tile.depths(problem, form), outer_taps, tickets
    )


def _gemm(problem: Problem, tile: MmaTile, form: MmaForm) -> Launch:
    """Return the launch of the GEMM, one block per tile."""
    chosen = variant(problem.operator, problem.dtype, problem.precision, tile, form)
    splits = divisible(fragments.arithmetic(problem), tile, form)
    extra_fields = {"splits": split.splits(problem.blocks(tile.block_m, tile.block_n))} if splits else {}
    weights, shared = mma_tile.packed_weights(problem, tile, form), mma_tile.shared_bytes(problem, tile, form)
    return gemm_base.launch(problem, chosen, tile, weights, shared, extra_fields)


def _packing_of_rows(rows_gemm: FilterRows, tile: MmaTile, form: MmaForm, tickets: int = 0) -> Launch:
    """Return the launch that packs the weights for several GEMM rows per filter."""
    weights, outer_taps = mma_tile.packed_weights(rows_gemm.gemm, tile, form), prod(rows_gemm.gemm.taps)
    columns, depths = mma_tile.columns(rows_gemm.gemm, tile), mma_tile.depths(rows_gemm.gemm, form)
    return fragments.packing(
        rows_gemm.problem, weights, columns, depths, outer_taps, tickets, rows_gemm.rows_per_filter
    )


def _plan_of_rows(rows_gemm: FilterRows, tile: MmaTile, form: MmaForm, shared_bytes: int) -> Plan:
    """Return the plan of a candidate with several GEMM rows per filter."""
    problem, weights = rows_gemm.problem, mma_tile.packed_weights(rows_gemm.gemm, tile, form)
    chosen = rows_variant(problem.operator, problem.dtype, problem.precision, tile, form)
    launches = _packing_of_rows(rows_gemm, tile, form), rows_gemm.launch(chosen, weights, shared_bytes)
    return Plan(
        problem.operator,
        launches,
        rows_gemm.reasons,
        nonempty(Space.packed(mma_tile.packed_bytes(rows_gemm.gemm, tile, form))),
    )


_KERNELS = gemm_base.kernels("mma", f"int, {RANK}")
_ROWS_KERNELS = {operator: filter_rows.kernel(operator, "mma") for operator in ("conv", "conv_transpose")}


def variant(operator: str, dtype: str, precision: str, tile: MmaTile, form: MmaForm) -> Variant:
    """Return the kernel variant with these template arguments."""
    return _over(_KERNELS[operator, divisible(ARITHMETICS[dtype, precision], tile, form)], dtype, precision, tile, form)


def rows_variant(operator: str, dtype: str, precision: str, tile: MmaTile, form: MmaForm) -> Variant:
    """Return the kernel variant of a tile with several GEMM rows per filter."""
    return _over(_ROWS_KERNELS[operator], dtype, precision, tile, form)


def _over(kernel: Kernel, dtype: str, precision: str, tile: MmaTile, form: MmaForm) -> Variant:
    """Return the variant of a kernel for a tile and form."""
    arithmetic = ARITHMETICS[dtype, precision]
    sizes = (tile.block_m, tile.block_n, form.block_k, tile.warp_m, tile.warp_n, form.stages)
    return kernel.over(
        *(dtype, RANK, arithmetic.label, f"{tile.block_m}x{tile.block_n}x{form.block_k}", form.gather),
        types=(arithmetic.cuda,),
        sizes=(*sizes, f"Gather::k{form.gather.capitalize()}"),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for (dtype, precision), arithmetic in ARITHMETICS.items():
        yield fragments.packing_variant(dtype, precision)
        for tile, form in kernels(arithmetic):
            yield variant("conv", dtype, precision, tile, form)
            if not form.rowwise:
                yield variant("conv_transpose", dtype, precision, tile, form)
        for operator in _ROWS_KERNELS:
            for tile, form in mma_tile.of_rows(arithmetic, operator):
                yield rows_variant(operator, dtype, precision, tile, form)
