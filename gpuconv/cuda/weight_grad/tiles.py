"""Weight gradient as a tiled GEMM on tensor cores, or with FFMA for float32 (``weight_grad/tiles.cu``).

M = filters, N = (tap, channel), K = output pixels, split into parts (split-K) that a second launch adds. By the cost
model it is the fastest family for dense layers. Slices are gathered as 16-byte vectors of channels ("channels") or as
adjacent pixels ("pixels"). Three spatial axes (shorter problems get leading axes of one element), 32-bit indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.gemm.fragments import Arithmetic, WarpTile
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan import Candidate, Launch, Limits, Offer, Plan, Refusal, model, strided
from gpuconv.cuda.plan.numbers import RANK, empty_columns, empty_rows, whole
from gpuconv.cuda.weight_grad import copies
from gpuconv.cuda.weight_grad.problem import OPERATOR, WeightGradProblem, pixels_of_part
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "large tiles"
UNIT = 4  # channels of a tap are padded to a multiple of this
_FARTHEST = 2**30  # exclusive bound on coordinates and extents in tables
_APART = 2**31  # exclusive bound on bytes between adjacent channels of x
_COORDINATES = 12 + 4  # bytes per table entry
_ROUNDS = 8  # most waves of blocks
_BEGINNING = 2500  # cycles from a block's start to its first product, and from its last product to its end (assumed)
_LATENCY = 700  # cycles of global load latency (assumed)
_LINE = 128
_TURNED = 2  # shared and global accesses of a lane per element, when 16-byte vectors are transposed
_LANES = 128  # thread instructions that an SM issues per cycle


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: WeightGradProblem) -> str | None:
    """Return why no large tile accepts the problem; None if one does."""
    rank = len(problem.geometry.kernel_shape)
    if problem.result != problem.dtype:
        return f"products of parts of {problem.result} are added up apart"
    if rank > RANK:
        return f"{rank} spatial axes are more than {RANK}"
    if problem.pixels == 0 or 0 in problem.geometry.x_shape:
        return "there is nothing to multiply"
    if problem.wide() or max((*problem.reach(), *problem.geometry.x_shape[2:])) >= _FARTHEST:
        return "offsets or coordinates need 64-bit indices"
    apart = abs(problem.x_strides[1]) * problem.itemsize
    if problem.geometry.w_shape[1] > 1 and apart >= _APART:
        return f"channels of x are {apart} bytes apart, not fewer than {_APART}"
    return None


def x_in_chunks(problem: WeightGradProblem) -> bool:
    """Return whether pixels of x consist of whole chunks of channels."""
    g = problem.geometry
    return _in_chunks(problem, g.x_shape, problem.x_strides, g.w_shape[1])


def dy_in_chunks(problem: WeightGradProblem) -> bool:
    """Return whether pixels of dy consist of whole chunks of channels."""
    return _in_chunks(problem, problem.geometry.y_shape, problem.dy_strides, problem.filters)


def _in_chunks(problem: WeightGradProblem, shape: Ints, strides: Ints, channels: int) -> bool:
    """Return whether an array's pixels consist of whole 16-byte chunks of a group's contiguous channels."""
    chunk = 16 // problem.itemsize
    batch, _, *extents = shape
    image, channel, *steps = strides
    apart = [step for step, n in zip((image, *steps), (batch, *extents), strict=True) if n > 1]
    return channel == 1 and channels % chunk == 0 and not any(step % chunk for step in apart)


def contiguous(extents: Ints, strides: Ints) -> bool:
    """Return whether an image's pixels are contiguous."""
    lie, steps = strided.collapsed(extents, strides)
    return len(lie) == 0 or (len(lie) == 1 and steps == [1])


def dy_in_rows(problem: WeightGradProblem) -> bool:
    """Return whether the pixels of one image and filter of dy are contiguous."""
    return contiguous(problem.geometry.y_shape[2:], problem.dy_strides[2:])


def x_in_rows(problem: WeightGradProblem) -> bool:
    """Return whether output and input pixels coincide (1 × 1 kernel) and x's are contiguous per image and channel."""
    g = problem.geometry
    alone = prod(g.kernel_shape) == 1 and not any(g.pads_begin) and g.x_shape[2:] == g.y_shape[2:]
    strides = all(s == 1 or q == 1 for s, q in zip(g.strides, g.y_shape[2:], strict=True))
    return alone and strides and contiguous(g.x_shape[2:], problem.x_strides[2:])


def width(problem: WeightGradProblem, strides: Ints) -> int:
    """Return the bytes per copy of adjacent pixels (at most 16), for arrays with contiguous pixels."""
    bits = problem.itemsize * (prod(problem.geometry.y_shape[2:]) | strides[0] | strides[1]) | 16
    return bits & -bits


def copied(problem: WeightGradProblem) -> bool:
    """Return whether several adjacent pixels of dy are copied at once."""
    return dy_in_rows(problem) and width(problem, problem.dy_strides) >= max(8, 2 * problem.itemsize)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class WeightGradTile(WarpTile):
    """A tile: the sums of one block and of one warp, and how slices of pixels are loaded."""

    # "channels" (16 bytes of contiguous channels) or "pixels" (adjacent pixels of each channel)
    gather: str
    block_k: int
    stages: int
    # issued, issued_in_rows: main-loop instructions of a warp per mma, where x is loaded pixel by pixel, and where
    # several pixels are copied at once
    issued: float
    issued_in_rows: float

    @property
    def shape(self) -> str:
        """Part of the kernel's name."""
        return f"{self.block_m}x{self.block_n}x{self.block_k}_{self.gather}"


_HALF = (
    WeightGradTile(128, 128, 64, 64, 2, "channels", 64, 2, 3.4, 3.4),
    WeightGradTile(64, 64, 32, 32, 4, "channels", 64, 3, 6.1, 6.1),
    WeightGradTile(32, 128, 32, 32, 4, "channels", 64, 3, 7.0, 7.0),
    WeightGradTile(128, 128, 64, 64, 2, "pixels", 32, 3, 6.1, 3.4),
    WeightGradTile(64, 64, 32, 32, 4, "pixels", 32, 4, 15.8, 9.1),
)
_SINGLE = (
    WeightGradTile(128, 128, 64, 64, 2, "channels", 32, 2, 5.0, 5.0),
    WeightGradTile(64, 64, 32, 32, 4, "channels", 32, 3, 9.8, 9.8),
    WeightGradTile(32, 128, 32, 32, 4, "channels", 32, 3, 10.9, 10.9),
    WeightGradTile(128, 128, 64, 64, 2, "pixels", 32, 2, 6.6, 4.7),
    WeightGradTile(64, 64, 32, 32, 4, "pixels", 32, 3, 12.8, 10.7),
)
_SPLIT = (
    WeightGradTile(64, 64, 32, 32, 3, "channels", 32, 3, 4.6, 4.6),
    WeightGradTile(32, 128, 32, 32, 3, "channels", 32, 3, 5.0, 5.0),
    WeightGradTile(64, 64, 32, 32, 3, "pixels", 32, 3, 5.6, 4.9),
)
_DOUBLE = (
    WeightGradTile(64, 64, 32, 32, 2, "channels", 16, 3, 28.3, 28.3),
    WeightGradTile(64, 64, 32, 32, 2, "pixels", 16, 3, 28.5, 24.6),
)
_FFMA = (
    WeightGradTile(64, 128, 32, 64, 3, "channels", 16, 3, 1.2, 1.2),
    WeightGradTile(128, 128, 32, 64, 2, "pixels", 32, 2, 1.18, 1.15),
    WeightGradTile(64, 128, 32, 64, 3, "pixels", 32, 2, 1.27, 1.16),
)
# FFMA on CUDA cores: every instruction is one product per thread.
OWN = Arithmetic("ffma", "", 0, "FFMA")
TILES = {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT}
TILES |= {"DoubleProducts": _DOUBLE, OWN.cuda: _FFMA}


ARITHMETICS = {**fragments.ARITHMETICS, ("float32", "ieee"): OWN}


def kernels() -> Iterator[tuple[str, Arithmetic, WeightGradTile]]:
    """Yield (dtype, arithmetic, tile) of every kernel variant."""
    for (dtype, _), arithmetic in ARITHMETICS.items():
        for tile in TILES[arithmetic.cuda]:
            yield dtype, arithmetic, tile


def of_tap(problem: WeightGradProblem, tile: WeightGradTile) -> int:
    """Return the columns of N per tap: channels, padded to whole units or whole copies."""
    unit = 16 // problem.itemsize if tile.gather == "channels" else UNIT
    return whole(problem.geometry.w_shape[1], max(unit, UNIT))


def columns(problem: WeightGradProblem, tile: WeightGradTile) -> int:
    """Return the columns of N per group."""
    return prod(problem.geometry.w_shape[2:]) * of_tap(problem, tile)


def grid(problem: WeightGradProblem, tile: WeightGradTile) -> tuple[int, int]:
    """Return the tiles along M and along N, for one group."""
    return -(-problem.filters // tile.block_m), -(-columns(problem, tile) // tile.block_n)


def parts(
    problem: WeightGradProblem, tile: WeightGradTile, arithmetic: Arithmetic, limits: Limits
) -> tuple[int, float]:
    """Return the number of parts with the least modelled time, and that time."""
    slices = -(-problem.pixels // tile.block_k)
    of_part = prod(grid(problem, tile)) * problem.geometry.group
    room = sums.most_parts(prod(problem.geometry.w_shape), problem.dtype)
    wanted = {1, *(rounds * limits.multiprocessors // of_part for rounds in range(1, _ROUNDS + 1))}
    counts = {max(1, min(count, room, slices)) for count in wanted}
    needed = sorted({-(-slices // -(-slices // count)) for count in counts})  # numbers for which every part has pixels
    timed = [(seconds(problem, tile, arithmetic, count, limits), count) for count in needed]
    time, count = min(timed)
    return count, time


# ---------------------------------------------------------------- shared memory


def shared_bytes(dtype: str, tile: WeightGradTile) -> int:
    """Return the bytes of shared memory: slices and tables."""
    size = dtypes.entry(dtype).itemsize
    if tile.gather == "channels":
        more = 0 if size == 2 else 32
        stage = tile.block_k * ((tile.block_m + tile.block_n) * size + 2 * more)
    else:
        stage = (tile.block_m + tile.block_n) * (tile.block_k * size + (32 if size == 8 else 0))
    units = tile.block_n // UNIT
    pixels = tile.stages * tile.block_k
    return tile.stages * stage + whole((pixels + units) * (_COORDINATES + 4), 16)


# ---------------------------------------------------------------- cost


def seconds(
    problem: WeightGradProblem, tile: WeightGradTile, arithmetic: Arithmetic, count: int, limits: Limits
) -> float:
    """Model the seconds of the tiles with ``count`` parts, and of adding the parts."""
    blocks = prod(grid(problem, tile)) * problem.geometry.group * count
    pixels = pixels_of_part(problem.pixels, tile.block_k, count)
    products = tile.block_m * tile.block_n * pixels * arithmetic.products
    if arithmetic is OWN:
        issued = model.busy(blocks, products * _issued(problem, tile) / _LANES, limits)
        busy = max(model.arithmetic(blocks, products, "float32", 1.0, limits), issued)
        busy = max(busy, model.busy(blocks, _gathered(problem, tile) * pixels / 32, limits))
    else:
        residence = tile.residence(shared_bytes(problem.dtype, tile), limits)
        more = cycles_per_mma(problem, tile, arithmetic)
        busy = model.tensor(blocks, products, arithmetic.lanes, more, limits, residence)
    busy += model.busy(blocks, _BEGINNING, limits)
    copied = (tile.block_m + tile.block_n) * pixels * problem.itemsize
    busy = max(busy, model.cached(blocks, copied, limits))
    sums_bytes = 2 * sums.workspace_bytes(count, prod(problem.geometry.w_shape), problem.dtype)
    return model.overlapped(busy, model.memory(problem.bytes + sums_bytes, limits)) + limits.rates.launch


def cycles_per_mma(problem: WeightGradProblem, tile: WeightGradTile, arithmetic: Arithmetic) -> float:
    """Return the SM cycles per mma for everything else; four warps issue per cycle."""
    size = problem.itemsize
    depth = 16 if arithmetic.cuda == "DoubleProducts" else 32 // size  # pixels per mma
    fragments_of = (tile.block_m // 16) * (tile.block_n // 8)
    warp = (tile.warp_m // 16) * (tile.warp_n // 8)
    loaded = depth * size * (tile.warp_m + tile.warp_n) / _LINE / warp
    filled = depth * size * (tile.block_m + tile.block_n) / _LINE / fragments_of
    gathered = depth / 32 * _gathered(problem, tile) / fragments_of
    waits = _waits(problem, tile) * depth / tile.block_k / fragments_of
    return max(_issued(problem, tile) / 4, (loaded + filled + gathered + waits) / arithmetic.products)


def _issued(problem: WeightGradProblem, tile: WeightGradTile) -> float:
    """Return the main-loop instructions of a warp per mma."""
    return tile.issued_in_rows if x_in_rows(problem) else tile.issued


def _gathered(problem: WeightGradProblem, tile: WeightGradTile) -> float:
    """Return the L1 lines that 32 pixels of all rows without wider copies touch."""
    g, lines = problem.geometry, 0.0
    if tile.gather == "channels":
        return lines
    step = 1 if g.y_shape[-1] == 1 else g.strides[-1]
    if not x_in_rows(problem):
        lines += tile.block_n * _lines(problem, problem.x_strides[-1] * step)
    if not copied(problem):
        chunks = _TURNED * problem.itemsize
        lines += tile.block_m * (chunks if dy_in_chunks(problem) else _lines(problem, problem.dy_strides[-1]))
    return lines


def _lines(problem: WeightGradProblem, step: int) -> int:
    """Return the L1 lines that 32 elements with this stride occupy."""
    return min(32, max(1, -(-32 * abs(step) * problem.itemsize // _LINE)))


def _waits(problem: WeightGradProblem, tile: WeightGradTile) -> float:
    """Return the cycles per slice that an SM stalls for elements of dy that are not copied asynchronously."""
    size, held = problem.itemsize, (tile.block_m, tile.block_n) == (64, 64)
    if tile.gather == "channels" or copied(problem):
        return 0.0
    turned = 0 if held and size <= 4 else 2
    waits = turned if dy_in_chunks(problem) else int(size == 2)
    return waits * _LATENCY / tile.blocks_per_sm


# ---------------------------------------------------------------- offers


def offers(problem: WeightGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that accepts the problem, in place or on copies."""
    if why := _refusal(problem):
        yield Refusal(why)
        return
    chunks = x_in_chunks(problem), dy_in_chunks(problem)
    yield from _of_tiles(problem, ("channels", "pixels") if all(chunks) else ("pixels",), limits)
    copied = None if all(chunks) else copies.of(problem, *chunks)
    if copied is not None:
        before = copied.seconds(limits)
        for candidate in _of_tiles(copied.problem, ("channels",), limits):
            yield Candidate(
                f"{candidate.name}_of_copy", before + candidate.seconds, partial(copied.plan, candidate.make)
            )


def _of_tiles(problem: WeightGradProblem, gathers: tuple[str, ...], limits: Limits) -> Iterator[Candidate]:
    """Yield a candidate for each tile with one of these ways to gather slices."""
    arithmetic = ARITHMETICS[problem.dtype, problem.precision]
    for tile in TILES[arithmetic.cuda]:
        room = shared_bytes(problem.dtype, tile) <= limits.shared_bytes_per_block
        if room and tile.gather in gathers:
            count, time = parts(problem, tile, arithmetic, limits)
            name = variant(problem.dtype, arithmetic, tile).name
            yield Candidate(name, time, partial(_plan, problem, tile, arithmetic, count))


# ---------------------------------------------------------------- launch


def _plan(problem: WeightGradProblem, tile: WeightGradTile, arithmetic: Arithmetic, parts: int) -> Plan:
    """Return the plan of this candidate."""
    g, kernel = problem.geometry, variant(problem.dtype, arithmetic, tile)
    chunk = 16 // problem.itemsize if tile.gather == "channels" else 1
    tiles, pixels = grid(problem, tile), pixels_of_part(problem.pixels, tile.block_k, parts)
    common = problem.fields(RANK, tiles, pixels)
    # Where x has one element along an axis, stride 0 gives out-of-bounds taps in-bounds, equally aligned addresses.
    common["x_stride"] = [s if n > 1 else 0 for s, n in zip(common["x_stride"], common["x_extent"], strict=True)]
    fields = {
        "common": common,
        "channels": of_tap(problem, tile),
        "x_group": problem.x_strides[1] * whole(g.w_shape[1], chunk),  # copies have zeros between groups
        "dy_group": problem.dy_strides[1] * whole(problem.filters, chunk),
        "image": prod(g.y_shape[2:]),
        "dy_rows": dy_in_rows(problem),
        "x_rows": x_in_rows(problem),
        "dy_chunks": dy_in_chunks(problem),
    }
    x, dy = problem.roles
    roles = {"common.x": x, "common.dy": dy, "common.sums": "workspace"}
    blocks, shared = prod(tiles) * g.group * parts, shared_bytes(problem.dtype, tile)
    launch = Launch.of_blocks(OPERATOR, kernel, blocks, fields, roles, shared)
    reasons = (
        f"{problem.pixels} pixels in {parts} parts of {pixels}",
        *empty_rows(problem.filters, tile.block_m),
        *empty_columns(g.w_shape[1], prod(g.w_shape[2:]), of_tap(problem, tile), tile.block_n),
    )
    # The partial sums of a filter have channels innermost.
    filters, channels, *taps = g.w_shape
    of_filter, of_channel, *of_taps = problem.w_strides
    shape, strides = (filters, *taps, channels), (of_filter, *of_taps, of_channel)
    return sums.plan(OPERATOR, launch, parts, shape, strides, problem.result, "; ".join(reasons))


_KERNEL = Kernel("weight_grad/tiles.cu", "conv_weight_grad_mma", "WeightGradTileParams", name="conv_weight_grad")
_FFMA_KERNEL = replace(_KERNEL, function="conv_weight_grad_ffma")


def variant(dtype: str, arithmetic: Arithmetic, tile: WeightGradTile) -> Variant:
    """Return the kernel variant with these template arguments."""
    on_cuda_cores = arithmetic is OWN
    of_warp = () if on_cuda_cores else (tile.warp_m, tile.warp_n)
    slices = f"{tile.gather.capitalize()[:-1]}Slices"
    return (_FFMA_KERNEL if on_cuda_cores else _KERNEL).over(
        *(dtype, RANK, arithmetic.label, tile.shape),
        types=() if on_cuda_cores else (arithmetic.cuda,),
        sizes=(tile.block_m, tile.block_n, tile.block_k, *of_warp, tile.stages, slices),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for dtype, arithmetic, tile in kernels():
        yield variant(dtype, arithmetic, tile)
