"""Conv and ConvTranspose as implicit GEMM on tensor cores: float16, bfloat16, float64, and float32 in TF32 or 3xTF32.

Two launches, one that packs the weights as fragments and one that makes the tiles. The kernels have three spatial axes:
problems with fewer get axes of one element in front. Indices have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import copies, fragments, runs, split
from gpuconv.cuda.conv.gemm.fragments import ARITHMETICS, FRAGMENT_BYTES, Arithmetic, WarpTile
from gpuconv.cuda.conv.gemm.runs import Runs
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Candidate, Launch, Limits, Offer, Plan, Refusal, Space, kept, model
from gpuconv.cuda.plan.numbers import empty_rows, whole

NAME = "implicit GEMM on tensor cores"


# ---------------------------------------------------------------- what it sees


_TABLE_ROWS = 1024  # rows of K that fit the table of the form that finds the tap of every row


def _accepts(problem: Problem, form: MmaForm) -> bool:
    """Tell whether a form takes a problem: contiguous channels, or few of them, or any."""
    if form.gather == "scalar":
        return True
    if form.rowwise:
        few = form.entries(problem.rows, problem.itemsize) <= _TABLE_ROWS and problem.channels % form.block_k != 0
        if not few or problem.operator != "conv":
            return False
    return not form.copied or fragments.has_chunks(problem, form.copied)


def _as_seen(problem: Problem, tile: MmaTile, form: MmaForm) -> Runs | None:
    """Return a problem as a form gathers its x and finds its weights, or None if the form does not take it."""
    seen: Runs | None = Runs(problem, problem)
    if form.rowwise and form.copied and not _accepts(problem, form):
        seen = runs.along_w(problem, form.copied // problem.itemsize)
    if seen is None or not _accepts(seen.gathered, form) or seen.gathered.wide(_packed_bytes(problem, tile, form)):
        return None
    return seen


def _channels_of_tap(problem: Problem, form: MmaForm) -> int:
    """Rows of the GEMM from one tap to the next: whole slices, or no more than there are channels."""
    return problem.channels if form.rowwise else -(-problem.channels // form.block_k) * form.block_k


def _multiplied(problem: Problem, form: MmaForm) -> int:
    """Rows of the GEMM of a tap that are multiplied: of its last slice, those of the steps that have channels."""
    if form.rowwise:
        return problem.channels
    return whole(problem.channels, 32 // problem.itemsize * _fragments_of_step(problem))


def _fragments_of_step(problem: Problem) -> int:
    """Fragments along K that an instruction multiplies."""
    return 4 if fragments.arithmetic(problem).cuda == "DoubleProducts" else 1


def _slices(problem: Problem, form: MmaForm) -> int:
    """Return the slices of K, of all phases together."""
    return -(-prod(problem.taps) * _channels_of_tap(problem, form) // form.block_k)


def _most_slices(problem: Problem, form: MmaForm) -> int:
    """Slices of the phase whose outputs meet the most taps."""
    if form.rowwise:
        return _slices(problem, form)
    return problem.most_rows // problem.channels * (_channels_of_tap(problem, form) // form.block_k)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class MmaForm:
    """How a tile's inputs come into shared memory."""

    # "vector", "scalar", "rowwise", "chunks" or "halves": 16 bytes of contiguous channels, single elements, or single
    # elements that each have their own tap; or 16 or 8 bytes of contiguous channels that each have their own tap
    gather: str
    block_k: int  # rows of a slice of K
    stages: int  # pipeline stages: slices in shared memory
    issued: float  # instructions of a warp in the main loop for every one that multiplies fragments

    @property
    def rowwise(self) -> bool:
        """K is filled up to whole slices as a whole, not tap by tap."""
        return self.gather in ("rowwise", "chunks", "halves")

    @property
    def copied(self) -> int:
        """Bytes of contiguous channels that are copied at once, or 0: single elements are."""
        return {"vector": 16, "chunks": 16, "halves": 8}.get(self.gather, 0)

    def entries(self, rows: int, itemsize: int) -> int:
        """Return the entries of the table for so many rows of K: none for slices of one tap each."""
        return rows // max(1, self.copied // itemsize) if self.rowwise else 0


@dataclass(frozen=True, slots=True)
class MmaTile(WarpTile):
    """The outputs of a block and of a warp, and the forms that the kernel comes in."""

    forms: tuple[MmaForm, ...]


_SQUARE_OF_HALF = (
    MmaForm("vector", 64, 3, 2.9),
    MmaForm("chunks", 64, 3, 4.0),
    MmaForm("halves", 64, 3, 5.1),
    MmaForm("scalar", 32, 4, 6.4),
    MmaForm("rowwise", 32, 4, 16.0),
)
_FLAT_OF_HALF = (MmaForm("vector", 64, 3, 5.2), MmaForm("chunks", 64, 3, 8.8), MmaForm("scalar", 32, 4, 17.0))
# Two stages of 64 x 256 and the table of its pixels are 84 KiB, for either width of elements. Two blocks have room in
# 228 KiB, one in 164 (two would need 170, or 4 bytes for each pixel in place of 16) and in 100. Registers would do for
# two. Slices of half the depth would fit twice in 100, but need a barrier for half as many products.
_HALF = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("vector", 64, 2, 1.7), MmaForm("scalar", 32, 3, 3.1))),
    MmaTile(64, 256, 64, 64, 2, (MmaForm("vector", 64, 2, 1.8), MmaForm("chunks", 64, 2, 2.7))),
    MmaTile(32, 256, 32, 64, 2, (MmaForm("vector", 64, 2, 2.6), MmaForm("chunks", 64, 2, 4.2))),
    MmaTile(64, 64, 32, 32, 4, _SQUARE_OF_HALF),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_HALF),
)
_SQUARE_OF_SINGLE = (
    MmaForm("vector", 32, 3, 4.9),
    MmaForm("chunks", 32, 3, 6.0),
    MmaForm("scalar", 16, 4, 6.7),
    MmaForm("rowwise", 16, 4, 11.2),
)
_FLAT_OF_SINGLE = (MmaForm("vector", 32, 3, 9.3), MmaForm("chunks", 32, 3, 12.9), MmaForm("scalar", 16, 4, 14.9))
_SINGLE = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("scalar", 16, 3, 3.3),)),
    MmaTile(64, 256, 64, 64, 2, (MmaForm("vector", 32, 2, 2.8),)),
    MmaTile(32, 256, 32, 64, 2, (MmaForm("vector", 32, 2, 4.6), MmaForm("chunks", 32, 2, 6.2))),
    MmaTile(64, 64, 32, 32, 4, _SQUARE_OF_SINGLE),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_SINGLE),
)
_SQUARE_OF_SPLIT = (
    MmaForm("vector", 16, 4, 3.2),
    MmaForm("chunks", 16, 4, 3.5),
    MmaForm("scalar", 16, 4, 3.4),
    MmaForm("rowwise", 16, 4, 4.8),
)
_FLAT_OF_SPLIT = (MmaForm("vector", 16, 4, 5.4), MmaForm("chunks", 16, 4, 6.5), MmaForm("scalar", 16, 4, 6.1))
_SPLIT = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("scalar", 16, 3, 2.0),)),
    MmaTile(64, 64, 32, 32, 3, _SQUARE_OF_SPLIT),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_SPLIT),
)
_DOUBLE = (MmaTile(64, 64, 32, 32, 3, (MmaForm("scalar", 16, 3, 16.5), MmaForm("rowwise", 16, 3, 25.5))),)
TILES = {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT}
TILES["DoubleProducts"] = _DOUBLE


def kernels(arithmetic: Arithmetic) -> Iterator[tuple[MmaTile, MmaForm]]:
    """Yield every form of every tile."""
    for tile in TILES[arithmetic.cuda]:
        for form in tile.forms:
            yield tile, form


def divisible(arithmetic: Arithmetic, tile: MmaTile, form: MmaForm) -> bool:
    """Tell whether several blocks could make a tile: not large ones in 3xTF32, whose products take all the time."""
    if (tile.block_m, tile.block_n) == (64, 64):
        return form.gather not in ("rowwise", "halves")
    return (tile.block_m, tile.block_n) == (128, 128) and arithmetic.products == 1


def _depths(problem: Problem, form: MmaForm) -> int:
    """Fragments along K of a slice."""
    return form.block_k * problem.itemsize // 32


def _columns(problem: Problem, tile: MmaTile) -> int:
    """Fragments along M, in whole tiles."""
    return problem.tiles(tile.block_m, tile.block_n)[0] * tile.block_m // 16


def _packed_weights(problem: Problem, tile: MmaTile, form: MmaForm) -> gemm_base.PackedWeights:
    """Return how the kernel finds them: in slices, their bytes from one to the next."""
    parts = _columns(problem, tile) * _depths(problem, form) * fragments.arithmetic(problem).parts
    pitch = parts * FRAGMENT_BYTES
    return gemm_base.PackedWeights(pitch, _slices(problem, form), _channels_of_tap(problem, form))


def _packed_bytes(problem: Problem, tile: MmaTile, form: MmaForm) -> int:
    weights = _packed_weights(problem, tile, form)
    return problem.group * weights.all_rows * weights.pitch


# ---------------------------------------------------------------- shared memory


_ENTRY = 16  # bytes, of a table


def shared_bytes(problem: Problem, tile: MmaTile, form: MmaForm) -> int:
    """Return the bytes of the pipeline's stages, the tables of pixels and of rows, and the taps of a phase."""
    size = problem.itemsize
    weights = tile.block_m * form.block_k * size * fragments.arithmetic(problem).parts
    padding = 0 if size == 2 or form.copied else 32 * form.block_k  # of rows of K, against bank conflicts
    inputs = tile.block_n * form.block_k * size + padding
    kept = form.gather == "scalar" and tile.block_n == tile.threads  # each thread has a pixel: it needs no table
    entries = (0 if kept else tile.block_n) + form.entries(_slices(problem, form) * form.block_k, size)
    taps = gemm_base.taps_bytes(RANK) if problem.phases else 0
    return form.stages * (weights + inputs) + entries * _ENTRY + taps


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, tile: MmaTile, form: MmaForm, limits: Limits) -> float:
    """Model the time of both launches, one block to each tile."""
    busy = _busy_with(problem, tile, form, limits)
    mean = _slices(problem, form) / prod(problem.phases)
    busiest = max(busy(problem.blocks(tile.block_m, tile.block_n), mean), busy(1, _most_slices(problem, form)))
    return model.overlapped(busiest, model.memory(problem.bytes_by_phase, limits)) + limits.rates.launch


def _wavefronts(problem: Problem, tile: MmaTile, form: MmaForm) -> float:
    """128 bytes that go to or from shared memory, or to L1, for every instruction that multiplies fragments."""
    arithmetic = fragments.arithmetic(problem)
    elements = 32 / problem.itemsize  # rows of K of a fragment
    gathered = 0.0 if form.copied else elements / 4 / (tile.block_m / 16) * problem.lines  # of 32 pixels
    return (tile.wavefronts(arithmetic.parts) + gathered) * _fragments_of_step(problem) / arithmetic.products


def _busy_with(problem: Problem, tile: MmaTile, form: MmaForm, limits: Limits) -> split.Busy:
    """Return what predicts the seconds of a number of blocks, by the slices of each and how many others there are."""
    arithmetic = fragments.arithmetic(problem)
    filled = _multiplied(problem, form) / _channels_of_tap(problem, form)
    slice_of_tile = tile.block_m * tile.block_n * form.block_k * arithmetic.products * filled
    # Cycles for all else that goes with one multiplication; four warps issue at a time. A slice that is filled in part
    # takes as long to fetch as any.
    besides = max(form.issued / 4, _wavefronts(problem, tile, form)) / filled
    residence = tile.residence(shared_bytes(problem, tile, form), limits)
    return lambda blocks, slices, others=0: model.tensor(
        blocks, slices * slice_of_tile, arithmetic.lanes, besides, limits, residence, others
    )


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every form of every tile that takes the problem, and for those worth splitting along K."""
    yield from _offers(problem, split.candidates, limits)


def offers_in_order(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield as :func:`offers`, but all K of every tile in each number of segments."""
    yield from _offers(problem, split.in_segments, limits)


_Way = tuple[MmaTile, MmaForm, Runs]
_Divided = Callable[[Problem, Iterable[split.Divisible], Limits], Iterator[Candidate]]


def _offers(problem: Problem, divided: _Divided, limits: Limits) -> Iterator[Offer]:
    """Yield what reads x as it lies, and then what reads a copy of it."""
    if why := fragments.refusal(problem):
        yield Refusal(why)
        return
    yield from _of_ways(problem, _ways(problem), divided, limits)
    copied = None if fragments.has_chunks(problem) else copies.of(problem.lifted, 16 // problem.itemsize)
    if copied is not None:
        ways = [way for way in _ways(copied.problem) if way[1].copied]
        yield from copies.candidates(copied, _of_ways(copied.problem, ways, divided, limits), limits)


def _ways(problem: Problem) -> list[_Way]:
    """Return every form of every tile that takes the problem, as it sees it."""
    lifted = problem.lifted
    views = ((tile, form, _as_seen(lifted, tile, form)) for tile, form in kernels(fragments.arithmetic(problem)))
    return [(tile, form, seen) for tile, form, seen in views if seen is not None]


def _of_ways(problem: Problem, ways: list[_Way], divided: _Divided, limits: Limits) -> Iterator[Candidate]:
    yield from _whole(problem, ways, limits)
    yield from divided(problem.lifted, _divisible_of(problem, ways, limits), limits)


def _whole(problem: Problem, ways: list[_Way], limits: Limits) -> Iterator[Candidate]:
    for tile, form, seen in ways:
        if shared_bytes(seen.gathered, tile, form) <= limits.shared_bytes_per_block:
            name = variant(problem.operator, problem.dtype, problem.precision, tile, form).name
            seconds = _seconds(seen.gathered, tile, form, limits)
            yield Candidate(name, seconds, partial(_plan, seen, tile, form), _order(seen, form))


def _divisible_of(problem: Problem, ways: list[_Way], limits: Limits) -> Iterator[split.Divisible]:
    arithmetic = fragments.arithmetic(problem)
    for tile, form, seen in ways:
        if divisible(arithmetic, tile, form):
            yield _divisible(seen, tile, form, limits)


def _order(seen: Runs, form: MmaForm) -> str:
    """Return how the products of an output are added: K is filled up to whole steps tap by tap, or as a whole."""
    problem = seen.gathered
    arithmetic = fragments.arithmetic(problem)
    if not form.rowwise:
        return fragments.order(arithmetic, _multiplied(problem, form), 1)
    runs_of = "" if seen.packed is problem else f" in runs of {prod(problem.taps[2:]) * problem.channels}"
    channels = f"{problem.channels} channels{runs_of}"
    return f"{arithmetic.instruction} over taps and {channels}, filled up to {_slices(problem, form) * form.block_k}"


def _filled(problem: Problem, form: MmaForm) -> str:
    """Return what segments of K depend on besides: they count the rows that a tap is filled up with."""
    rows = _channels_of_tap(problem, form)
    return f", filled up to {rows}" if rows > _multiplied(problem, form) else ""


def _divisible(seen: Runs, tile: MmaTile, form: MmaForm, limits: Limits) -> split.Divisible:
    problem = seen.gathered
    return split.Divisible(
        variant=variant(problem.operator, problem.dtype, problem.precision, tile, form),
        order=_order(seen, form) + _filled(seen.gathered, form),
        shared_bytes=shared_bytes(problem, tile, form),
        tiles=problem.blocks(tile.block_m, tile.block_n),
        slices=_slices(problem, form) / prod(problem.phases),
        most_slices=_most_slices(problem, form),
        slice_rows=form.block_k,
        sums_bytes=tile.block_m * tile.block_n * problem.word,
        busy=_busy_with(problem, tile, form, limits),
        packing=partial(_packing, seen.packed, tile, form),
        plan=partial(_plan, seen, tile, form),
    )


# ---------------------------------------------------------------- launch


def _plan(seen: Runs, tile: MmaTile, form: MmaForm) -> Plan:
    problem = seen.gathered
    launches = (_packing(seen.packed, tile, form), _gemm(problem, tile, form))
    size = _packed_bytes(problem, tile, form)
    reasons = (_reason(seen, form), *empty_rows(problem.filters, tile.block_m))
    return Plan(problem.operator, launches, reasons, kept(Space.packed(size)))


def _reason(seen: Runs, form: MmaForm) -> str:
    problem = seen.gathered
    if form.rowwise and form.copied:
        what = f"{problem.channels} channels per group"
        if problem is not seen.packed:
            what = f"runs of {prod(problem.taps[2:]) * problem.channels} elements of x for the taps along W"
        return f"a tap for every {form.copied} bytes of K: {what}, slices of {form.block_k}"
    if form.rowwise:
        return f"taps found row by row: {problem.channels} channels per group, slices of {form.block_k}"
    filled = f"{problem.channels} channels of a group, filled up to {_channels_of_tap(problem, form)}"
    if (multiplied := _multiplied(problem, form)) < _channels_of_tap(problem, form):
        filled += f", of which {multiplied} are multiplied"
    copied = f"{form.copied} bytes" if form.copied else "one element"
    return f"one tap per slice of K: {filled}; {copied} of x a copy"


def _packing(problem: Problem, tile: MmaTile, form: MmaForm, tickets: int = 0) -> Launch:
    weights, outer_taps = _packed_weights(problem, tile, form), 1 if form.rowwise else prod(problem.taps)
    return fragments.packing(problem, weights, _columns(problem, tile), _depths(problem, form), outer_taps, tickets)


def _gemm(problem: Problem, tile: MmaTile, form: MmaForm) -> Launch:
    chosen = variant(problem.operator, problem.dtype, problem.precision, tile, form)
    splits = divisible(fragments.arithmetic(problem), tile, form)
    more = {"splits": split.splits(problem.blocks(tile.block_m, tile.block_n))} if splits else {}
    weights, shared = _packed_weights(problem, tile, form), shared_bytes(problem, tile, form)
    return gemm_base.launch(problem, chosen, tile, weights, shared, more)


_KERNELS = gemm_base.kernels("mma", f"int, {RANK}")


def variant(operator: str, dtype: str, precision: str, tile: MmaTile, form: MmaForm) -> Variant:
    arithmetic = ARITHMETICS[dtype, precision]
    sizes = (tile.block_m, tile.block_n, form.block_k, tile.warp_m, tile.warp_n, form.stages)
    return _KERNELS[operator, divisible(arithmetic, tile, form)].over(
        *(dtype, RANK, arithmetic.label, f"{tile.block_m}x{tile.block_n}x{form.block_k}", form.gather),
        types=(arithmetic.cuda,),
        sizes=(*sizes, f"Gather::k{form.gather.capitalize()}"),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    for (dtype, precision), arithmetic in ARITHMETICS.items():
        yield fragments.packing_variant(dtype, precision)
        for tile, form in kernels(arithmetic):
            yield variant("conv", dtype, precision, tile, form)
            if not form.rowwise:
                yield variant("conv_transpose", dtype, precision, tile, form)
