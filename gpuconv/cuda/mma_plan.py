"""Conv and ConvTranspose as implicit GEMM on tensor cores: float16, bfloat16, float64, and float32 in TF32 or 3xTF32.

Two launches, one that packs the weights as fragments and one that makes the tiles. The kernels have three spatial axes:
problems with fewer get axes of one element in front. Indices have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from gpuconv.cuda import correlation, gemm_fields, gemm_structs, model, params, runs
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.gemm_fields import Divisible, Interleavable, PackedWeights
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant
from gpuconv.cuda.runs import Runs

RANK = 3
_FARTHEST = 2**30  # coordinates and extents are below
_TABLE_ROWS = 1024  # rows of K that fit the table of the form that finds the tap of every row
_TAPS = 64  # of a block of pack_fragments.cu
_FRAGMENT = 16 * 32  # bytes: 16 output channels by 32 bytes of K
_STANDING = 16  # bytes of an entry of a table
_INTERLEAVED_BELOW = 128  # channels of a tile


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One way to multiply.

    Attributes
    ----------
    label : str
        In names of kernels.
    cuda : str
        The class in ``fragments.cuh``.
    lanes : int
        Which of the device's rates is its own.
    products : int
        Multiplications on tensor cores for one of the problem's.
    parts : int
        Fragments that make up one of weights.
    """

    label: str
    cuda: str
    lanes: int
    products: int = 1
    parts: int = 1


_ARITHMETIC = {
    ("float16", "ieee"): Arithmetic("mma", "HalfProducts", 0),
    ("bfloat16", "ieee"): Arithmetic("mma", "Bfloat16Products", 0),
    ("float32", "tf32"): Arithmetic("tf32", "Tf32Products", 1),
    ("float32", "3xtf32"): Arithmetic("3xtf32", "Tf32x3Products", 1, products=3, parts=2),
    ("float64", "ieee"): Arithmetic("mma", "DoubleProducts", 2),
}


def arithmetic_of(dtype: str, precision: str) -> Arithmetic:
    """Return how elements of a type are multiplied in a precision."""
    return _ARITHMETIC[dtype, precision]


def operands() -> Iterator[tuple[str, str]]:
    """Yield every dtype and precision that tensor cores take."""
    yield from _ARITHMETIC


@dataclass(frozen=True, slots=True)
class Form:
    """How a tile's inputs come into shared memory.

    Attributes
    ----------
    gather : {"vector", "scalar", "rowwise", "chunks", "halves"}
        16 bytes of channels that lie side by side, single elements, or single elements that each have their own tap;
        or 16 or 8 bytes of channels that each have their own tap.
    block_k, stages : int
        Rows of a slice of K, and slices in shared memory.
    issued : float
        Instructions of a warp in the main loop for every one that multiplies fragments.
    """

    gather: str
    block_k: int
    stages: int
    issued: float

    @property
    def rowwise(self) -> bool:
        """K is filled up to whole slices as a whole, not tap by tap."""
        return self.gather in ("rowwise", "chunks", "halves")

    @property
    def copied(self) -> int:
        """Bytes of channels that lie side by side and are copied at once, or 0: single elements are."""
        return {"vector": 16, "chunks": 16, "halves": 8}.get(self.gather, 0)

    def entries(self, rows: int, itemsize: int) -> int:
        """Return the entries of the table for so many rows of K: none for slices of one tap each."""
        return rows // max(1, self.copied // itemsize) if self.rowwise else 0


@dataclass(frozen=True, slots=True)
class Tile:
    """The outputs of a block and of a warp, and the forms that the kernel comes in.

    Attributes
    ----------
    block_m, block_n, warp_m, warp_n : int
    blocks_per_sm : int
        That the kernel's registers leave room for.
    forms : tuple of Form
    """

    block_m: int
    block_n: int
    warp_m: int
    warp_n: int
    blocks_per_sm: int
    forms: tuple[Form, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.warp_m) * (self.block_n // self.warp_n) * 32


_SQUARE_OF_HALF = (
    Form("vector", 64, 3, 2.9),
    Form("chunks", 64, 3, 4.0),
    Form("halves", 64, 3, 5.1),
    Form("scalar", 32, 4, 6.4),
    Form("rowwise", 32, 4, 16.0),
)
_HALF = (
    Tile(128, 128, 64, 64, 2, (Form("vector", 64, 2, 1.7), Form("chunks", 64, 2, 2.2), Form("scalar", 32, 3, 3.1))),
    Tile(64, 256, 64, 64, 2, (Form("vector", 64, 2, 1.8), Form("chunks", 64, 2, 2.7))),
    Tile(64, 64, 32, 32, 4, _SQUARE_OF_HALF),
    Tile(16, 128, 16, 32, 4, (Form("vector", 64, 3, 5.2), Form("chunks", 64, 3, 8.8), Form("scalar", 32, 4, 17.0))),
)
_SQUARE_OF_SINGLE = (
    Form("vector", 32, 3, 4.9),
    Form("chunks", 32, 3, 6.0),
    Form("scalar", 16, 4, 6.7),
    Form("rowwise", 16, 4, 11.2),
)
_SINGLE = (
    Tile(128, 128, 64, 64, 2, (Form("vector", 32, 2, 2.7), Form("chunks", 32, 2, 3.2), Form("scalar", 16, 3, 3.3))),
    Tile(64, 256, 64, 64, 2, (Form("vector", 32, 2, 2.8),)),
    Tile(64, 64, 32, 32, 4, _SQUARE_OF_SINGLE),
)
_SQUARE_OF_SPLIT = (
    Form("vector", 16, 4, 3.2),
    Form("chunks", 16, 4, 3.5),
    Form("scalar", 16, 4, 3.4),
    Form("rowwise", 16, 4, 4.8),
)
_SPLIT = (
    Tile(128, 128, 64, 64, 2, (Form("vector", 16, 3, 1.9), Form("chunks", 16, 3, 2.1), Form("scalar", 16, 3, 2.0))),
    Tile(64, 64, 32, 32, 3, _SQUARE_OF_SPLIT),
)
_DOUBLE = (Tile(64, 64, 32, 32, 3, (Form("scalar", 16, 3, 16.5), Form("rowwise", 16, 3, 25.5))),)
_TILES = {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT}
_TILES["DoubleProducts"] = _DOUBLE


# ---------------------------------------------------------------- what they accept


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield a candidate for every form of every tile that takes the problem."""
    if refusal(problem) is not None:
        return
    lifted = correlation.in_three_axes(problem)
    for tile, form in _kernels(_arithmetic(problem)):
        seen = _as_seen(lifted, tile, form)
        if seen is not None and _shared_bytes(seen.gathered, tile, form) <= limits.shared_bytes_per_block:
            name = variant(problem.operator, problem.dtype, problem.precision, tile, form).name
            yield Candidate(name, _seconds(seen.gathered, tile, form, limits), partial(_plan, seen, tile, form))


def divisible(problem: Problem, limits: Limits) -> Iterator[Divisible]:
    """Yield plans for tiles that several blocks could make."""
    if refusal(problem) is not None:
        return
    lifted = correlation.in_three_axes(problem)
    for tile, form in _divisible_kernels(_arithmetic(problem)):
        seen = _as_seen(lifted, tile, form)
        if seen is None:
            continue
        gathered = seen.gathered
        yield Divisible(
            variant=variant(problem.operator, problem.dtype, problem.precision, tile, form),
            shared_bytes=_shared_bytes(gathered, tile, form),
            tiles=_blocks(gathered, tile),
            slices=_slices(gathered, form) / prod(gathered.phases),
            most_slices=_most_slices(gathered, form),
            sums_bytes=tile.block_m * tile.block_n * (8 if problem.dtype == "float64" else 4),
            busy=_busy_with(gathered, tile, form, limits),
            packing=partial(_packing, seen.packed, tile, form),
            plan=partial(_plan, seen, tile, form),
        )


def interleavable(problem: Problem, limits: Limits) -> Iterator[Interleavable]:
    """Yield plans for tiles whose sums of several phases fit into shared memory, of inputs that lie by rows."""
    if not problem.phases or refusal(problem) is not None:
        return
    lifted, arithmetic = correlation.in_three_axes(problem), _arithmetic(problem)
    for tile, form in _interleavable_kernels(arithmetic):
        seen = _as_seen(lifted, tile, form)
        if seen is None:
            continue
        slices = _slices(lifted, form) / prod(lifted.phases)
        tile_of_phase = tile.block_m * tile.block_n * form.block_k * arithmetic.products * slices
        accumulator = "float64" if problem.dtype == "float64" else "float32"
        yield Interleavable(
            plan=_plan(seen, tile, form),
            sums=tile.block_m * tile.block_n // 32 * _pitch_of_sums(problem.dtype),
            accumulator=accumulator,
            busy=partial(_busy, tile_of_phase, arithmetic.lanes, _besides(lifted, tile, form), limits),
        )


def _interleavable_kernels(arithmetic: Arithmetic) -> Iterator[tuple[Tile, Form]]:
    for tile, form in _kernels(arithmetic):
        if tile.block_m < _INTERLEAVED_BELOW and form.gather == "scalar":
            yield tile, form


def _pitch_of_sums(dtype: str) -> int:
    """Return the elements from one row of 32 sums to the next: ``kPitch`` of ``mma.cuh`` in the scalar form."""
    if dtype in ("float16", "bfloat16"):
        return 32 + 8
    return 32 + (2 if dtype == "float64" else 4)


def _busy_with(problem: Problem, tile: Tile, form: Form, limits: Limits) -> Callable[[int, float], float]:
    """Return what takes a number of blocks and the slices of each, and returns the modelled seconds of these."""
    arithmetic = _arithmetic(problem)
    slice_of_tile = tile.block_m * tile.block_n * form.block_k * arithmetic.products
    return partial(_busy, slice_of_tile, arithmetic.lanes, _besides(problem, tile, form), limits)


def _busy(slice_of_tile: float, lanes: int, besides: float, limits: Limits, blocks: int, slices: float) -> float:
    return model.tensor(blocks, slices * slice_of_tile, lanes, besides, limits)


def _divisible_kernels(arithmetic: Arithmetic) -> Iterator[tuple[Tile, Form]]:
    """Yield the square tiles; in 3xTF32, whose multiplications take all the time, large ones are no quicker."""
    for tile, form in _kernels(arithmetic):
        square = tile.block_m == tile.block_n and form.gather not in ("rowwise", "halves")
        if square and (tile.block_m == 64 or (arithmetic.products == 1 and not form.rowwise)):
            yield tile, form


def _kernels(arithmetic: Arithmetic) -> Iterator[tuple[Tile, Form]]:
    for tile in _TILES[arithmetic.cuda]:
        for form in tile.forms:
            yield tile, form


def refusal(problem: Problem) -> str | None:
    """Return why no kernel of tensor cores takes a problem, or None."""
    if (problem.dtype, problem.precision) not in _ARITHMETIC:
        return f"no tensor cores: {problem.dtype} products are those of IEEE arithmetic unless precision is lower"
    if problem.rank > RANK:
        return f"no tensor cores: {problem.rank} spatial axes are more than {RANK}"
    if problem.rows == 0:
        return "no tensor cores: there is nothing to multiply"
    far = max((*problem.coordinates(), *problem.x_shape[2:])) >= _FARTHEST
    if far or problem.wide():
        return "no tensor cores: offsets or coordinates need 64-bit indices"
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
    if seen is None or not accepts(seen.gathered, form) or seen.gathered.wide(_packed_bytes(problem, tile, form)):
        return None
    return seen


def _arithmetic(problem: Problem) -> Arithmetic:
    return arithmetic_of(problem.dtype, problem.precision)


# ---------------------------------------------------------------- plans


def _plan(seen: Runs, tile: Tile, form: Form) -> Plan:
    problem = seen.gathered
    launches = (_packing(seen.packed, tile, form), _gemm(problem, tile, form))
    size = _packed_bytes(problem, tile, form)
    return Plan(problem.operator, launches, 0, "", (_reason(seen, form),), packed_bytes=size)


def _reason(seen: Runs, form: Form) -> str:
    problem = seen.gathered
    if form.rowwise and form.copied:
        what = f"{problem.channels} channels per group"
        if problem is not seen.packed:
            what = f"runs of {prod(problem.taps[2:]) * problem.channels} elements of x for the taps along W"
        return f"a tap for every {form.copied} bytes of K: {what}, slices of {form.block_k}"
    if form.rowwise:
        return f"taps found row by row: {problem.channels} channels per group, slices of {form.block_k}"
    filled = f"{problem.channels} channels of a group, filled up to {_channels_of_tap(problem, form)}"
    copied = f"{form.copied} bytes" if form.copied else "one element"
    return f"one tap per slice of K: {filled}; {copied} of x a copy"


def _seconds(problem: Problem, tile: Tile, form: Form, limits: Limits) -> float:
    busy = _busy_with(problem, tile, form, limits)
    mean = _slices(problem, form) / prod(problem.phases)
    busiest = max(busy(_blocks(problem, tile), mean), busy(1, _most_slices(problem, form)))
    return model.overlapped(busiest, model.memory(problem.bytes_by_phase, limits)) + model.LAUNCH


def _besides(problem: Problem, tile: Tile, form: Form) -> float:
    """Cycles of a multiprocessor for all else that goes with one multiplication; four warps issue at a time."""
    return max(form.issued / 4, _wavefronts(problem, tile, form))


def _wavefronts(problem: Problem, tile: Tile, form: Form) -> float:
    """128 bytes that go to or from shared memory, or to L1, for every instruction that multiplies fragments."""
    arithmetic = _arithmetic(problem)
    pixels, elements = tile.block_n / 8, 32 / problem.itemsize  # fragments; rows of K of each
    loaded = (4 * arithmetic.parts * tile.warp_m / 16 + 2 * tile.warp_n / 8) / (tile.warp_m / 16 * tile.warp_n / 8)
    filled = (4 * arithmetic.parts * tile.block_m / 16 + 2 * pixels) / (tile.block_m / 16 * pixels)
    gathered = 0.0 if form.copied else elements / 4 / (tile.block_m / 16) * problem.lines  # of 32 pixels
    depths = 4 if arithmetic.cuda == "DoubleProducts" else 1  # of one instruction
    return (loaded + filled + gathered) * depths / arithmetic.products


def _counts(problem: Problem, tile: Tile) -> tuple[int, int]:
    return -(-problem.filters // tile.block_m), -(-problem.pixels // tile.block_n)


def _blocks(problem: Problem, tile: Tile) -> int:
    return prod(_counts(problem, tile)) * prod(problem.phases) * problem.group


def _channels_of_tap(problem: Problem, form: Form) -> int:
    """Rows of the GEMM from one tap to the next: whole slices, or no more than there are channels."""
    return problem.channels if form.rowwise else -(-problem.channels // form.block_k) * form.block_k


def _slices(problem: Problem, form: Form) -> int:
    return -(-prod(problem.taps) * _channels_of_tap(problem, form) // form.block_k)


def _most_slices(problem: Problem, form: Form) -> int:
    """Slices of the phase whose outputs meet the most taps."""
    if form.rowwise:
        return _slices(problem, form)
    return problem.most_rows // problem.channels * (_channels_of_tap(problem, form) // form.block_k)


def _depths(problem: Problem, form: Form) -> int:
    """Fragments along K of a slice."""
    return form.block_k * problem.itemsize // 32


def _columns(problem: Problem, tile: Tile) -> int:
    """Fragments along M, in whole tiles."""
    return _counts(problem, tile)[0] * tile.block_m // 16


def _weights(problem: Problem, tile: Tile, form: Form) -> PackedWeights:
    """Slices, their bytes from one to the next."""
    fragments = _columns(problem, tile) * _depths(problem, form)
    pitch = fragments * _arithmetic(problem).parts * _FRAGMENT
    return PackedWeights(pitch, _slices(problem, form), _channels_of_tap(problem, form))


def _packed_bytes(problem: Problem, tile: Tile, form: Form) -> int:
    weights = _weights(problem, tile, form)
    return problem.group * weights.all_rows * weights.pitch


def _shared_bytes(problem: Problem, tile: Tile, form: Form) -> int:
    """Return the bytes of the slices, the table of pixels, that of rows, and the taps of a phase."""
    size = problem.itemsize
    weights = tile.block_m * form.block_k * size * _arithmetic(problem).parts
    pixelwise = size == 2 or form.copied > 0
    inputs = tile.block_n * form.block_k * size + (0 if pixelwise else 32 * form.block_k)
    entries = form.entries(_slices(problem, form) * form.block_k, size)
    taps = gemm_structs.taps(False, RANK).itemsize if problem.phases else 0
    return form.stages * (weights + inputs) + (tile.block_n + entries) * _STANDING + taps


def _gemm(problem: Problem, tile: Tile, form: Form) -> Launch:
    blocks = _blocks(problem, tile)
    gemm_fields.check_grid(problem.operator, blocks)
    chosen = variant(problem.operator, problem.dtype, problem.precision, tile, form)
    fields = gemm_fields.operands(problem, _counts(problem, tile), _weights(problem, tile, form), False)
    pointers = params.pointers(gemm_structs.correlation(False, RANK), gemm_fields.roles(problem))
    shared = _shared_bytes(problem, tile, form)
    return Launch(chosen, (blocks, 1, 1), shared, params.pack(chosen.layout, fields), pointers)


def _packing(problem: Problem, tile: Tile, form: Form, tickets: int = 0) -> Launch:
    chosen = packing_variant(problem.dtype, problem.precision)
    weights, depths, columns = _weights(problem, tile, form), _depths(problem, form), _columns(problem, tile)
    taps = 1 if form.rowwise else prod(problem.taps)
    rows, parts = weights.all_rows * depths // taps, -(-taps // _TAPS)
    blocks = problem.group * columns * rows * parts
    gemm_fields.check_grid(problem.operator, blocks)
    w_group, w_filter, w_channel, *w_stride = problem.w_strides
    fields = {
        "filters": problem.filters,
        "channels": problem.channels,
        "taps": prod(problem.taps),
        "w_group": w_group,
        "w_filter": w_filter,
        "w_channel": w_channel,
        "w_stride": w_stride,
        "tap_parts": params.division(parts, False),
        "rows": params.division(rows, False),
        "columns": params.division(columns, False),
        "depths": params.division(depths, False),
        "by_channel": params.division(weights.channels, False),
        "extent": params.divisions(problem.taps, False),
        "outer_taps": taps,
    }
    return gemm_fields.packing_launch(chosen, blocks, fields, tickets)


# ---------------------------------------------------------------- variants


def variant(operator: str, dtype: str, precision: str, tile: Tile, form: Form) -> Variant:
    """Return the tile kernel of one operator."""
    arithmetic = _ARITHMETIC[dtype, precision]
    sizes = (tile.block_m, tile.block_n, form.block_k, tile.warp_m, tile.warp_n, form.stages)
    struct, source = ("ConvParams", "conv_implicit_gemm") if operator == "conv" else ("ConvTransposeParams", operator)
    shape = f"{tile.block_m}x{tile.block_n}x{form.block_k}"
    return Variant(
        name=f"{operator}_{dtype}_{RANK}d_{arithmetic.label}_{shape}_{form.gather}",
        source=f"{source}.cu",
        function=f"{operator}_mma",
        arguments=(arithmetic.cuda, *map(str, sizes), f"Gather::k{form.gather.capitalize()}"),
        parameter=f"{struct}<int, {RANK}>",
        layout=gemm_structs.operands(operator, False, RANK),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def packing_variant(dtype: str, precision: str) -> Variant:
    """Return the kernel that packs weights as fragments."""
    arithmetic = _ARITHMETIC[dtype, precision]
    return Variant(
        name=f"pack_fragments_{dtype}_{RANK}d_{arithmetic.label}",
        source="pack_fragments.cu",
        function="pack_fragments",
        arguments=(arithmetic.cuda,),
        parameter=f"PackFragmentsParams<{RANK}>",
        layout=gemm_structs.fragments(),
        threads=256,
        blocks_per_sm=4,
    )


def interleavable_forms() -> Iterator[tuple[str, str, Tile, Form]]:
    """Yield dtype, precision, tile and form of the plans whose blocks could make all phases along W."""
    for (dtype, precision), arithmetic in _ARITHMETIC.items():
        for tile, form in _interleavable_kernels(arithmetic):
            yield dtype, precision, tile, form


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for (dtype, precision), arithmetic in _ARITHMETIC.items():
        yield packing_variant(dtype, precision)
        for tile, form in _kernels(arithmetic):
            yield variant("conv", dtype, precision, tile, form)
            if not form.rowwise:
                yield variant("conv_transpose", dtype, precision, tile, form)


def divisible_variants() -> Iterator[Variant]:
    """Yield the kernels of plans that several blocks could make."""
    for (dtype, precision), arithmetic in _ARITHMETIC.items():
        for operator, (tile, form) in product(("conv", "conv_transpose"), _divisible_kernels(arithmetic)):
            if operator == "conv" or not form.rowwise:
                yield variant(operator, dtype, precision, tile, form)
