"""Conv of one tap on tensor cores, as a plain matrix product (``conv/gemm/matrix.cu``).

One launch, which reads w as it is: float16, bfloat16, and float32 in TF32 or 3xTF32. Of x it takes channels whose
pixels lie behind each other, every one beginning on 4 bytes or more, with stride 1 and no padding; or, in 16 bits,
pixels whose channels lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd, prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, mma
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.gemm.fragments import Arithmetic
from gpuconv.cuda.conv.gemm.pointwise import step
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules import dtypes

NAME = "conv_matrix"
_CHUNK = 16  # bytes of a copy, where rows begin on so many
_LEAST = 4  # bytes of an asynchronous copy
_SLICE = 128  # bytes of K
_STANDING = 16  # bytes of an entry of the table of pixels


@dataclass(frozen=True, slots=True)
class Tile:
    """The outputs of a block and of a warp.

    Attributes
    ----------
    block_m, block_n, warp_m, warp_n, stages : int
        Stages are slices of K in shared memory.
    blocks_per_sm : int
        That the kernel's registers leave room for.
    issued : float
        Instructions of a warp in the main loop for every one that multiplies fragments, with copies of 16 bytes.
    copies : float
        Those that copies of half as much come to besides.
    """

    block_m: int
    block_n: int
    warp_m: int
    warp_n: int
    stages: int
    blocks_per_sm: int
    issued: float
    copies: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.warp_m) * (self.block_n // self.warp_n) * 32

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}"


_HALF = (
    Tile(64, 128, 32, 64, 2, 4, 2.3, 0.28),
    Tile(64, 64, 32, 32, 3, 4, 3.3, 0.31),
)
_SINGLE = (
    Tile(64, 128, 32, 64, 2, 4, 5, 0.28),
    Tile(64, 64, 32, 32, 3, 4, 7.3, 0.3),
)
_SPLIT = (Tile(64, 64, 32, 32, 3, 3, 3.8, 0.1),)
_CHANNELS = (
    Tile(64, 128, 32, 64, 2, 4, 2.3, 0),
    Tile(64, 64, 32, 32, 3, 4, 3.3, 0),
)
TILES: Mapping[str, Mapping[str, tuple[Tile, ...]]] = {  # by what lies side by side in x
    "pixels": {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT},
    "channels": {"HalfProducts": _CHANNELS, "Bfloat16Products": _CHANNELS},
}


# ---------------------------------------------------------------- what they accept


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that the device has room for."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    for inputs, taken in (("pixels", of_pixels(problem)), ("channels", of_channels(problem))):
        if taken is None:
            continue
        for tile in TILES[inputs].get(fragments.arithmetic(problem).cuda, ()):
            if shared_bytes(taken, inputs, tile) <= limits.shared_bytes_per_block:
                name = variant(problem.dtype, problem.precision, inputs, tile).name
                yield Candidate(name, _seconds(taken, inputs, tile, limits), partial(_plan, taken, inputs, tile))


def _refusal(problem: Problem) -> Refusal | None:
    if problem.operator != "conv" or prod(problem.taps) != 1:
        return Refusal("several taps, or ConvTranspose", plain=True)
    if mma.refusal(problem) is not None or problem.dtype == "float64":
        return Refusal("no tensor cores for these types", plain=True)
    w_group, w_filter, w_channel, *_ = problem.w_strides
    chunk = _CHUNK // problem.itemsize
    if w_channel != 1 or problem.channels % chunk or w_filter % chunk:
        return Refusal(f"{problem.channels} channels of a filter are not whole 16 bytes")
    if problem.wide(problem.group * abs(w_group) * problem.itemsize):
        return Refusal("w needs 64-bit indices")
    if of_pixels(problem) is None and of_channels(problem) is None:
        return Refusal(
            "neither pixels nor channels of x lie side by side and begin on 4 bytes, or 16, without strides and padding"
        )
    return None


def of_pixels(problem: Problem) -> Problem | None:
    """Return the problem in three axes, if pixels lie behind each other, an output for each."""
    every = problem.columns == problem.x_shape[2:] and not any(problem.pads)
    if not every or set(problem.column_strides) != {1} or step(problem.x_shape[2:], problem.x_strides[2:]) != 1:
        return None
    images = problem.x_strides[0] if problem.batch > 1 else 0
    lifted = correlation.in_three_axes(replace(problem, x_strides=(images, *problem.x_strides[1:])))
    return lifted if _at_once(lifted) >= _LEAST else None


def of_channels(problem: Problem) -> Problem | None:
    """Return the problem in three axes, if pixels have whole chunks of channels that lie side by side."""
    lifted = correlation.in_three_axes(problem)
    return lifted if mma.has_chunks(lifted) else None


def _at_once(problem: Problem) -> int:
    """Return the bytes of a copy of pixels that lie behind each other, if x begins on 16 bytes."""
    batch, channel, *_ = problem.x_strides
    return gcd(_CHUNK, problem.itemsize * gcd(prod(problem.columns), channel, batch))


# ---------------------------------------------------------------- plans


def shared_bytes(problem: Problem, inputs: str, tile: Tile, weight_rows: bool = False) -> int:
    """Return the bytes of the slices, side by side or in rows that lie somewhat apart, and of the table of pixels."""

    def side(count: int, rows: bool) -> int:
        pitch = count * problem.itemsize + (16 if problem.itemsize == 2 else 32)
        return _SLICE // problem.itemsize * pitch if rows else count * _SLICE

    table = 0 if inputs == "pixels" else tile.block_n * _STANDING
    return tile.stages * (side(tile.block_m, weight_rows) + side(tile.block_n, inputs == "pixels")) + table


def _seconds(problem: Problem, inputs: str, tile: Tile, limits: Limits) -> float:
    blocks = prod(problem.tiles(tile.block_m, tile.block_n)) * problem.group
    return model.overlapped(busy(problem, inputs, tile, blocks, limits), model.memory(problem.bytes, limits))


def busy(problem: Problem, inputs: str, tile: Tile, blocks: int, limits: Limits, after: float = 0.0) -> float:
    """Return the modelled seconds of the busiest multiprocessor's multiplications and what goes with them.

    ``after`` are a block's instructions after the main loop, counted by warp.
    """
    own = fragments.arithmetic(problem)
    depth = _SLICE // problem.itemsize
    rows = -(-problem.channels // depth) * depth
    multiplications = tile.block_m * tile.block_n * rows * own.products
    fragment = 32 * 1024 // problem.itemsize // 8  # multiplications of an instruction
    issued = (
        tile.issued
        + tile.copies * (_CHUNK // _copied_at_once(problem, inputs) - 1)
        + after / (multiplications / fragment)
    )
    besides = max(issued / 4, _wavefronts(tile, own))
    return model.tensor(blocks, multiplications, own.lanes, besides, limits)


def _wavefronts(tile: Tile, arithmetic: Arithmetic) -> float:
    """128 bytes that go to or from shared memory for every instruction that multiplies fragments."""
    fragments_m, fragments_n = tile.warp_m / 16, tile.warp_n / 8
    loaded = (4 * fragments_m + 2 * fragments_n) / (fragments_m * fragments_n)
    filled = (4 * tile.block_m / 16 + 2 * tile.block_n / 8) / (tile.block_m / 16 * tile.block_n / 8)
    return (loaded + filled) / arithmetic.products


def _plan(problem: Problem, inputs: str, tile: Tile) -> Plan:
    blocks = prod(problem.tiles(tile.block_m, tile.block_n)) * problem.group
    chosen = variant(problem.dtype, problem.precision, inputs, tile)
    weights = PackedWeights(problem.w_strides[1] * problem.itemsize, problem.filters, problem.channels)
    fields = gemm_base.operands(problem, problem.tiles(tile.block_m, tile.block_n), weights)
    roles = gemm_base.roles(problem) | {"common.weights": "w"}
    shared = shared_bytes(problem, inputs, tile)
    launch = launching.of_blocks(problem.operator, chosen, blocks, fields, roles, shared)
    reason = "a product of matrices on tensor cores: one tap, weights as they are"
    return Plan(problem.operator, (launch,), (f"{reason}; {copied(problem, inputs)}",))


def copied(problem: Problem, inputs: str) -> str:
    """Say how x is copied."""
    return f"{_copied_at_once(problem, inputs)} bytes of {inputs} a copy"


def _copied_at_once(problem: Problem, inputs: str) -> int:
    return _at_once(problem) if inputs == "pixels" else _CHUNK


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/gemm/matrix.cu", NAME, "ConvMatrixParams")


def variant(dtype: str, precision: str, inputs: str, tile: Tile) -> Variant:
    """Return the kernel of one tile."""
    return of_tile(_KERNEL, dtype, precision, tile, inputs, (inputs == "pixels",))


def of_tile(
    kernel: Kernel, dtype: str, precision: str, tile: Tile, form: str = "", flags: tuple[bool, ...] = ()
) -> Variant:
    """Return a kernel that multiplies by one of these tiles."""
    arithmetic = fragments.arithmetic_of(dtype, precision)
    block_k = _SLICE // dtypes.entry(dtype).itemsize
    return kernel.over(
        *(dtype, RANK, arithmetic.label, f"{tile}x{block_k}", form),
        types=(arithmetic.cuda,),
        sizes=(tile.block_m, tile.block_n, block_k, tile.warp_m, tile.warp_n, tile.stages, *flags),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def forms() -> Iterator[tuple[str, str, str, Tile]]:
    """Yield dtype, precision, what lies side by side in x, and tile of every kernel."""
    for (dtype, precision), inputs in product(fragments.operands(), TILES):
        for tile in TILES[inputs].get(fragments.arithmetic_of(dtype, precision).cuda, ()):
            yield dtype, precision, inputs, tile


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for form in forms():
        yield variant(*form)
