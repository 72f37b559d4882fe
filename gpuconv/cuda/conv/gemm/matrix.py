"""1 × 1 Conv, and ConvTranspose whose kernel equals its stride, as a plain tensor-core GEMM without weight packing.

A single launch reads w in place (``conv/gemm/matrix.cu``, ``conv/gemm/depth_to_space_matrix.cu``) for float16,
bfloat16, and float32 as TF32 or 3xTF32. It saves the packing launch of the general tensor-core GEMM, which matters for
small problems.

Each channel's pixels must be contiguous and start at a multiple of 4 bytes, without stride or padding. Conv in 16 bits
also accepts contiguous channels in 16-byte chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import filter_rows, fragments
from gpuconv.cuda.conv.gemm.fragments import ARITHMETICS, WarpTile
from gpuconv.cuda.conv.problem import Problem, merged_stride
from gpuconv.cuda.plan import RANK, Candidate, Limits, Offer, Plan, Refusal, model, numbers
from gpuconv.rules import dtypes

NAME = "plain GEMM on tensor cores"
_CHUNK = 16  # bytes per asynchronous copy, if rows are aligned to 16 bytes
_LEAST = 4  # smallest asynchronous copy in bytes


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True, slots=True)
class Product:
    """A problem seen as one GEMM."""

    problem: Problem  # the call's problem
    gemm: Problem  # the GEMM, as a problem with one tap and three spatial axes
    inputs: str  # "pixels" or "channels": which of them is contiguous in x

    @property
    def form(self) -> str:
        """Name of the kernel form: "pixels", "channels" or "depth_to_space"."""
        return "depth_to_space" if self.problem.phases else self.inputs

    @property
    def copied(self) -> int:
        """Bytes of x per asynchronous copy."""
        return _at_once(self.gemm) if self.inputs == "pixels" else _CHUNK


def _products(problem: Problem) -> list[Product] | Refusal:
    """Return the possible GEMMs of a problem, one per supported order of x, or the reason why there is none."""
    refusal = _unfit_transpose(problem) if problem.phases else _unfit(problem)
    if refusal is not None:
        return refusal
    if problem.wide(problem.group * abs(problem.w_strides[0]) * problem.itemsize):
        return Refusal("w needs 64-bit indices")
    if problem.phases:
        views = [("pixels", of_pixels(filter_rows.rows_of(problem.lifted)))]
    else:
        views = [("pixels", of_pixels(problem)), ("channels", of_channels(problem))]
    products = [Product(problem, gemm, inputs) for inputs, gemm in views if gemm is not None]
    why = "pixels of a channel of x are not contiguous, or begin on less than 4 bytes"
    if not problem.phases:
        why += ", or there are strides or padding; nor are channels contiguous from 16 bytes on"
    return products or Refusal(why)


def _unfit(problem: Problem) -> Refusal | None:
    """Return why a Conv's taps, dtype or weights rule this family out; None if they do not."""
    if prod(problem.taps) != 1:
        return Refusal("several taps", plain=True)
    if fragments.refusal(problem) is not None or problem.dtype == "float64":
        return Refusal("no tensor cores for these types", plain=True)
    _, w_filter, w_channel, *_ = problem.w_strides
    chunk = _CHUNK // problem.itemsize
    if w_channel != 1 or problem.channels % chunk or w_filter % chunk:
        return Refusal(f"{problem.channels} channels of a filter are not whole 16 bytes")
    return None


def _unfit_transpose(problem: Problem) -> Refusal | None:
    """Return why a ConvTranspose's dtype, weights or output strides rule this family out; None if they do not."""
    why = filter_rows.unfit(problem) or fragments.refusal(problem)
    if why is not None:
        return Refusal(why)
    if problem.dtype == "float64":
        return Refusal("it has no float64")
    gemm = filter_rows.rows_of(problem.lifted)
    _, w_row, w_channel, *_ = gemm.w_strides
    if w_row != 1 or w_channel * gemm.itemsize % 4 or gemm.filters * gemm.itemsize % 4:
        return Refusal("output channels and taps of an input channel are not contiguous in w, from 4 bytes on")
    if problem.y_strides[-1] != 1:
        return Refusal("outputs along W are not contiguous")
    return None


def of_pixels(problem: Problem) -> Problem | None:
    """Return the three-axis problem if each channel's pixels are contiguous and aligned for async copies, else None."""
    if not problem.pointwise or merged_stride(problem.columns, problem.x_strides[2:]) != 1:
        return None
    images = problem.x_strides[0] if problem.batch > 1 else 0
    gemm = replace(problem, x_strides=(images, *problem.x_strides[1:])).lifted
    return gemm if _at_once(gemm) >= _LEAST else None


def of_channels(problem: Problem) -> Problem | None:
    """Return the three-axis problem if x has contiguous 16-bit channels in whole 16-byte chunks, else None."""
    return problem.lifted if problem.itemsize == 2 and fragments.has_chunks(problem.lifted) else None


def _at_once(problem: Problem) -> int:
    """Return the bytes per copy (a power of two, at most 16) that the strides allow if x is aligned to 16 bytes."""
    batch, channel, *_ = problem.x_strides
    return gcd(_CHUNK, problem.itemsize * gcd(prod(problem.columns), channel, batch))


# ---------------------------------------------------------------- tiles


_SLICE = 128  # bytes along K per pipeline stage


@dataclass(frozen=True, slots=True)
class MatrixTile(WarpTile):
    """A tile: the outputs of one block and of one warp, its stages and instruction counts."""

    stages: int  # pipeline stages: slices of K in shared memory
    # main-loop instructions of a warp per mma instruction, with 16-byte copies
    issued: float
    copies: float  # instructions added per mma each time the copy size is halved

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}"


_HALF = (MatrixTile(64, 128, 32, 64, 4, 2, 2.3, 0.28), MatrixTile(64, 64, 32, 32, 4, 3, 3.3, 0.31))
_CHANNELS = (MatrixTile(64, 128, 32, 64, 4, 2, 2.3, 0), MatrixTile(64, 64, 32, 32, 4, 3, 3.3, 0))
TILES: Mapping[str, Mapping[str, tuple[MatrixTile, ...]]] = {  # form → arithmetic → tiles
    "pixels": {
        "HalfProducts": _HALF,
        "Bfloat16Products": _HALF,
        "Tf32Products": (MatrixTile(64, 128, 32, 64, 4, 2, 5, 0.28), MatrixTile(64, 64, 32, 32, 4, 3, 7.3, 0.3)),
        "Tf32x3Products": (MatrixTile(64, 64, 32, 32, 3, 3, 3.8, 0.1),),
    },
    "channels": {"HalfProducts": _CHANNELS, "Bfloat16Products": _CHANNELS},
    "depth_to_space": {
        "HalfProducts": _HALF[:1],
        "Bfloat16Products": _HALF[:1],
        "Tf32Products": (MatrixTile(128, 128, 64, 64, 2, 2, 3.8, 0.14),),
        "Tf32x3Products": (MatrixTile(128, 128, 64, 64, 2, 2, 2.3, 0.05),),
    },
}


# ---------------------------------------------------------------- shared memory


_ENTRY = 16  # bytes per entry of the pixel table
_SUMS = 4  # bytes per accumulator


def shared_bytes(product: Product, tile: MatrixTile) -> int:
    """Return the bytes of shared memory: pipeline stages, and the table of pixels or of depth-to-space rows."""
    scattered, pixels = bool(product.problem.phases), product.inputs == "pixels"
    itemsize = product.gemm.itemsize
    weights, inputs = _stage_bytes(tile.block_m, itemsize, scattered), _stage_bytes(tile.block_n, itemsize, pixels)
    slices = tile.stages * (weights + inputs)
    if scattered:
        sums = tile.block_m * (tile.block_n * _SUMS + 64)  # the epilogue stages accumulators where the slices were
        return max(slices, sums) + tile.block_m * filter_rows.ROW_BYTES
    return slices + (0 if pixels else tile.block_n * _ENTRY)


def _stage_bytes(count: int, itemsize: int, rows: bool) -> int:
    """Return the bytes of one operand's slice; rows of K are padded against bank conflicts."""
    pitch = count * itemsize + (16 if itemsize == 2 else 32)
    return _SLICE // itemsize * pitch if rows else count * _SLICE


# ---------------------------------------------------------------- cost


_IN_PAIRS = 13  # instructions per warp to write 32 depth-to-space outputs in pairs (counted)


def _seconds(product: Product, tile: MatrixTile, limits: Limits) -> float:
    """Model the seconds: the maximum of tensor-core time and memory time, partly overlapped."""
    gemm, arithmetic = product.gemm, fragments.arithmetic(product.gemm)
    rows = numbers.whole(gemm.channels, _SLICE // gemm.itemsize)
    multiplications = tile.block_m * tile.block_n * rows * arithmetic.products
    fragment = 32 * 1024 // gemm.itemsize // 8  # multiply-adds per mma instruction
    after = _writing(product, tile) / (multiplications / fragment)
    issued = tile.issued + tile.copies * (_CHUNK // product.copied - 1) + after
    other_cycles = max(issued / 4, tile.wavefronts(1) / arithmetic.products)
    blocks, residence = gemm.blocks(tile.block_m, tile.block_n), tile.residence(shared_bytes(product, tile), limits)
    busy = model.tensor(blocks, multiplications, arithmetic.lanes, other_cycles, limits, residence)
    return model.overlapped(busy, model.memory(product.problem.bytes, limits))


def _writing(product: Product, tile: MatrixTile) -> float:
    """Return the instructions of a block's epilogue for depth-to-space outputs, counted per warp; 0 for Conv."""
    problem = product.problem
    if not problem.phases:
        return 0.0
    pairs = problem.taps[-1] == 2 and not any(number % 2 for number in (*problem.y_strides[:-1], problem.pads[-1]))
    return tile.block_m * tile.block_n / 32 * (_IN_PAIRS if pairs else filter_rows.WRITING)


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that fits the device's shared memory."""
    products = _products(problem)
    if isinstance(products, Refusal):
        yield products
        return
    arithmetic = fragments.arithmetic(problem)
    options = [(view, tile) for view in products for tile in TILES[view.form][arithmetic.cuda]]
    fitting = [(view, tile) for view, tile in options if shared_bytes(view, tile) <= limits.shared_bytes_per_block]
    if not fitting:
        yield Refusal(f"{limits.shared_bytes_per_block} bytes of shared memory have no room for a tile")
    for view, tile in fitting:
        name = variant(problem.dtype, problem.precision, view.form, tile).name
        # Weights read in place are rounded in the kernel, so the values may differ from packed ones.
        how = ", of w as it is" if problem.itemsize == 4 else ""
        order = fragments.order(arithmetic, problem.channels, _SLICE // problem.itemsize, how)
        yield Candidate(name, _seconds(view, tile, limits), partial(_plan, view, tile), order)


# ---------------------------------------------------------------- launch


def _plan(product: Product, tile: MatrixTile) -> Plan:
    """Return the plan of this candidate."""
    problem, gemm = product.problem, product.gemm
    _, w_filter, w_channel, *_ = gemm.w_strides
    weights = gemm_base.PackedWeights(w_filter * gemm.itemsize, gemm.filters, gemm.channels)
    extra_fields: Mapping[str, Any] = {}
    reason = "one plain GEMM on tensor cores: one tap, weights as they are"
    if problem.phases:
        weights = gemm_base.PackedWeights(w_channel * gemm.itemsize, gemm.channels, gemm.channels)
        extra_fields = filter_rows.fields(problem)
        reason = f"one GEMM of {gemm.filters} rows, channels and taps, on tensor cores; weights as they are"
    chosen = variant(problem.dtype, problem.precision, product.form, tile)
    launch = gemm_base.launch(gemm, chosen, tile, weights, shared_bytes(product, tile), extra_fields, "w")
    return Plan(problem.operator, (launch,), (f"{reason}; {product.copied} bytes of {product.inputs} a copy",))


_CONV = Kernel("conv/gemm/matrix.cu", "conv_matrix", "ConvParams<int, 3>")
_TRANSPOSE = Kernel("conv/gemm/depth_to_space_matrix.cu", "conv_transpose_matrix", "DepthToSpaceParams<int, 3>")


def variant(dtype: str, precision: str, form: str, tile: MatrixTile) -> Variant:
    """Return the kernel variant with these template arguments."""
    arithmetic = ARITHMETICS[dtype, precision]
    block_k, scattered = _SLICE // dtypes.entry(dtype).itemsize, form == "depth_to_space"
    sizes = (tile.block_m, tile.block_n, block_k, tile.warp_m, tile.warp_n, tile.stages)
    return (_TRANSPOSE if scattered else _CONV).over(
        *(dtype, RANK, arithmetic.label, f"{tile}x{block_k}", "" if scattered else form),
        types=(arithmetic.cuda,),
        sizes=sizes if scattered else (*sizes, form == "pixels"),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def forms() -> Iterator[tuple[str, str, str, MatrixTile]]:
    """Yield (dtype, precision, form, tile) for every kernel variant."""
    for (dtype, precision), form in product(ARITHMETICS, TILES):
        for tile in TILES[form].get(ARITHMETICS[dtype, precision].cuda, ()):
            yield dtype, precision, form, tile


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for form in forms():
        yield variant(*form)
