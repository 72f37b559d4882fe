"""Shared parts of the implicit-GEMM families: parameter structs, FFMA tiles, and the kernel that packs weights.

The structs are those of ``conv/problem.cuh``. A family combines a tile, a packed layout of the weights and these fields
into a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, NamedTuple

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, index_name, types
from gpuconv.cuda.conv.problem import Axis, Problem
from gpuconv.cuda.plan import Launch, Plan, Space, nonempty
from gpuconv.cuda.plan.numbers import whole
from gpuconv.rules.geometry import Ints


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Layout of packed weights: a matrix with one row per (tap, channel), in the order of K."""

    pitch: int  # distance between rows, in units that the kernel defines
    all_rows: int  # rows per group
    channels: int  # rows per tap: input channels, rounded up where slices of K must not cross taps

    def tap_rows(self, taps: Ints) -> Ints:
        """Return, per axis, the distance in rows between adjacent taps."""
        return tuple(self.channels * prod(taps[axis + 1 :]) for axis in range(len(taps)))


# ---------------------------------------------------------------- structs


_SOURCES = {  # (operator, has split-K) → (source file, struct of its parameters)
    ("conv", False): ("conv/gemm/conv.cu", "ConvParams"),
    ("conv", True): ("conv/gemm/split.cu", "ConvSplitParams"),
    ("conv_transpose", False): ("conv/gemm/conv_transpose.cu", "ConvTransposeParams"),
    ("conv_transpose", True): ("conv/gemm/split_transpose.cu", "ConvTransposeSplitParams"),
}


def kernels(multiplier: str, template: str) -> dict[tuple[str, bool], Kernel]:
    """Return the kernels for ``multiplier`` ("ffma" or "mma"), by operator and whether they support split-K."""
    return {
        (operator, split): Kernel(
            source, f"{operator}{'_split' if split else ''}_{multiplier}", f"{struct}<{template}>", name=operator
        )
        for (operator, split), (source, struct) in _SOURCES.items()
    }


def packing_launch(operator: str, chosen: Variant, blocks: int, fields: Mapping[str, Any], tickets: int) -> Launch:
    """Return the launch that packs weights, and zeroes ``tickets`` split-K counters at the workspace's start."""
    roles = {"w": "w", "packed": "packed"} | ({"tickets.first": "workspace"} if tickets else {})
    return Launch.of_blocks(operator, chosen, blocks, {**fields, "tickets": {"count": tickets}}, roles)


def operands(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``ConvParams`` or ``ConvTransposeParams``; ``tiles`` counts the tiles along M and N."""
    shared = common(problem, tiles, weights)
    if not problem.phases:
        return {"common": shared, "taps": taps(problem, weights)}
    rows = weights.tap_rows(problem.taps)
    axes = [_phased(axis, row) for axis, row in zip(problem.axes, rows, strict=True)]
    return {"common": shared, "axes": axes, "phases": prod(problem.phases)}


def launch(
    problem: Problem,
    chosen: Variant,
    tile: BlockTile,
    weights: PackedWeights,
    shared_bytes: int,
    more: Mapping[str, Any],
    source: str = "packed",
) -> Launch:
    """Return the GEMM launch, one block per tile; ``more`` are further struct fields, ``source`` the weights' role."""
    fields = {**operands(problem, problem.tiles(tile.block_m, tile.block_n), weights), **more}
    blocks = problem.blocks(tile.block_m, tile.block_n)
    return Launch.of_blocks(problem.operator, chosen, blocks, fields, roles(problem, weights=source), shared_bytes)


def roles(problem: Problem, place: str = "common", weights: str = "packed") -> dict[str, str]:
    """Return which array each pointer of the ``Correlation`` struct at ``place`` refers to."""
    pointers = {f"{place}.x": "x", f"{place}.y": "y"}
    if problem.rows:
        pointers[f"{place}.weights"] = weights
    if problem.b_stride is not None:
        pointers[f"{place}.b"] = "b"
    return pointers


def taps_bytes(rank: int, wide: bool = False) -> int:
    """Return the bytes of shared memory for one phase's ``Taps`` struct, which ConvTranspose computes per block."""
    return structs.layout(f"Taps<{index_name(wide)}, {rank}>", "conv/problem.cuh").itemsize


def common(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of the struct ``Correlation``, common to both operators."""
    return {
        **params.members(problem, "channels", "filters", "pixels"),
        **params.members(weights, "pitch", "all_rows"),
        **params.array_fields("x", problem.x_strides, problem.x_shape[2:]),
        **params.array_fields("y", (*problem.y_strides[:2], *problem.y_column_strides)),
        "b_stride": problem.b_stride or 0,
        "stride": problem.column_strides,
        "extent": problem.columns,
        "by_channel": problem.channels,
        "m_tiles": tiles[0],
        "n_tiles": tiles[1],
    }


def taps(problem: Problem, weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of the struct ``Taps`` for Conv, whose single phase is known before launch."""
    direction = -1 if problem.backwards else 1
    reaches = [(k - 1) * d for k, d in zip(problem.taps, problem.dilations, strict=True)]
    return {
        "start": [problem.backwards * reach - pad for reach, pad in zip(reaches, problem.pads, strict=True)],
        "advance": [direction * dilation for dilation in problem.dilations],
        "row": weights.tap_rows(problem.taps),
        "count": problem.taps,
        "first_row": 0,
        "rows": problem.rows,
        "limit": problem.columns,
        "y_first": 0,
    }


def backwards(forwards: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of ``Taps`` such that weights are read with their taps in the opposite order."""
    last = sum((count - 1) * row for count, row in zip(forwards["count"], forwards["row"], strict=True))
    return {**forwards, "row": tuple(-row for row in forwards["row"]), "first_row": last}


def _phased(axis: Axis, row: int) -> Mapping[str, int]:
    """Return the fields of ``TransposedAxis``, from which a block derives the taps of its phase.

    ``inverse`` is the modular inverse of dilation/g modulo stride/g, with g = gcd(stride, dilation).
    """
    common = gcd(axis.stride, axis.dilation)
    return {
        "stride": axis.stride,
        "pad": axis.pad,
        "dilation": axis.dilation,
        "kernel": axis.taps,
        "common": common,
        "inverse": pow(axis.dilation // common, -1, axis.stride // common),
        "extent": axis.y,
        "row": row,
        "y_stride": axis.y_stride,
        "phases": axis.phases,
    }


# ---------------------------------------------------------------- tiles of FFMA


_STAGES = 3  # pipeline stages: slices of K in shared memory
_ROWWISE = 0.75  # factor on a tile's efficiency when each row of K needs its own tap lookup


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The part of the output that one block computes: ``block_m`` channels × ``block_n`` pixels."""

    block_m: int
    block_n: int


@dataclass(frozen=True, slots=True)
class GemmTile(BlockTile):
    """An FFMA tile: its block and thread shape, occupancy, and the kernel forms it is instantiated in."""

    block_k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int  # occupancy allowed by the kernel's registers
    # Fraction of the main loop's instructions that are FFMA, for the form with one tap per slice if it exists
    efficiency: float
    uniform: bool = True  # instantiated for slices of K with a single tap
    rowwise: bool = True  # instantiated with a tap lookup per row of K
    wide: bool = False  # also instantiated with 64-bit indices

    @property
    def threads(self) -> int:
        """Threads per block."""
        return (self.block_m // self.thread_m) * (self.block_n // self.thread_n)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The tile's template arguments."""
        return self.block_m, self.block_n, self.block_k, self.thread_m, self.thread_n

    @property
    def forms(self) -> tuple[bool, ...]:
        """The forms that exist, as values of ``uniform``: whether every slice of K has a single tap."""
        return tuple(form for form, exists in ((False, self.rowwise), (True, self.uniform)) if exists)

    def form_of(self, channels: int) -> bool:
        """Return whether slices of K have a single tap each: ``channels`` is a multiple of ``block_k``."""
        return self.uniform and channels > 0 and channels % self.block_k == 0

    def shared_bytes(self, word: int) -> int:
        """Return the bytes of shared memory for all pipeline stages; ``word`` is the bytes per element."""
        return _STAGES * self.block_k * (self.block_m + self.block_n) * word

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}"


# The tiles; on a tie the first one wins.
LARGE = GemmTile(128, 128, 16, 8, 8, 2, 0.86, rowwise=False)
MIDDLE = GemmTile(64, 64, 16, 8, 4, 4, 0.78, wide=True)
_FLAT = GemmTile(16, 128, 16, 4, 4, 4, 0.25, uniform=False)
# aligned 16-bit channels go to tensor cores, so only the other form is needed
_MIDDLE_HALF = replace(MIDDLE, efficiency=0.53, uniform=False)
_MIDDLE_DOUBLE = GemmTile(64, 64, 16, 8, 4, 2, 0.7, wide=True)
_FLAT_DOUBLE = GemmTile(16, 128, 16, 4, 4, 3, 0.25, uniform=False)
TILES = {
    "float16": (_MIDDLE_HALF,),
    "bfloat16": (_MIDDLE_HALF,),
    "float32": (LARGE, MIDDLE, _FLAT),
    "float64": (_MIDDLE_DOUBLE, _FLAT_DOUBLE),
}


def tile_variant(
    kernel: Kernel, dtype: str, rank: int, tile: GemmTile, uniform: bool | None = None, wide: bool = False
) -> Variant:
    """Return the kernel variant for a tile; ``uniform`` is None for kernels with a single form."""
    return kernel.over(
        *(dtype, rank, str(tile), "uniform" if uniform else ""),
        types=types(dtype),
        sizes=tile.sizes if uniform is None else (*tile.sizes, uniform),
        wide=wide,
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm - wide,  # 64-bit indices take more registers, which lowers occupancy
    )


def efficiency(tile: GemmTile, uniform: bool) -> float:
    """Return the fraction of FFMA instructions, lowered if the form looks up the tap of every row."""
    return tile.efficiency if uniform or not tile.uniform else tile.efficiency * _ROWWISE


def order(problem: Problem, block_k: int) -> str:
    """Return the name of the order in which FFMA sums an output's products, which M and N of a tile do not affect."""
    filled = f", filled up to {block_k}s" if problem.channels % block_k else ""
    return f"{problem.fused} over taps, {problem.channels} channels{filled}"


def tap_reason(problem: Problem, tile: GemmTile, uniform: bool) -> str:
    """Return the reason for ``explain``: how a slice of K finds its taps, and why."""
    if uniform:
        return f"one tap per slice of K: {tile.block_k} divides the {problem.channels} channels of a group"
    return f"taps found row by row: {problem.channels} channels per group, slices of {tile.block_k}"


# ---------------------------------------------------------------- several GEMM rows per filter


class RowsPerFilter(NamedTuple):
    """Mapping for GEMMs in which M enumerates (filter, phase) or (filter, tap along W); see ``filter_rows.py``."""

    gemm: Problem
    rows: Ints  # rows per filter, for each spatial axis
    row_step: Ints  # per axis, the kernel's taps between adjacent rows of a filter,
    tap_step: Ints  # and between adjacent taps of one row
    # rows per tile and filters per tile if tiles must hold whole filters; None without that restriction
    of_tile: tuple[int, int] | None = None


_ANY = 2**30, 2**30


def of_filter(kernel: Ints, rows_per_filter: RowsPerFilter | None) -> Mapping[str, Any]:
    """Return the fields of the struct ``FilterRows`` for a kernel with these extents."""
    ones = (1,) * len(kernel)
    rows, row_step, tap_step = rows_per_filter[1:4] if rows_per_filter else (ones, ones, ones)
    tile_rows, tile_filters = rows_per_filter.of_tile or _ANY if rows_per_filter else _ANY
    steps = {"row_step": row_step, "tap_step": tap_step}
    return {"rows": rows, **steps, "kernel": kernel, "tile_rows": tile_rows, "tile_filters": tile_filters}


# ---------------------------------------------------------------- weights of FFMA


_SQUARE = structs.constant("kSquare", "conv/gemm/pack_weights.cu")
_PACKING = Kernel("conv/gemm/pack_weights.cu", "pack_weights", "PackParams<{index}, {rank}>")


def pitch(problem: Problem) -> int:
    """Return the row length of packed weights: M rounded up to 16 bytes of accumulators."""
    return whole(problem.filters, problem.vector)


def packed_weights(problem: Problem) -> PackedWeights:
    """Return the layout of FFMA's packed weights: unpadded K rows of ``pitch`` elements."""
    return PackedWeights(pitch(problem), problem.rows, problem.channels)


def packed_bytes(problem: Problem) -> int:
    """Return the bytes of packed weights, in the accumulator's type."""
    return problem.group * problem.rows * pitch(problem) * problem.word


def with_packing(
    problem: Problem, wide: bool, launch: Launch, reasons: tuple[str, ...], rows_per_filter: RowsPerFilter | None = None
) -> Plan:
    """Return the two-launch plan: pack the weights, then ``launch``; packed weights can be kept between calls."""
    gemm = problem if rows_per_filter is None else rows_per_filter.gemm
    launches = (packing(problem, wide, rows_per_filter=rows_per_filter), launch) if problem.rows else (launch,)
    return Plan(problem.operator, launches, reasons, nonempty(Space.packed(packed_bytes(gemm))))


def packing(problem: Problem, wide: bool, tickets: int = 0, rows_per_filter: RowsPerFilter | None = None) -> Launch:
    """Return the launch that packs the weights: one block per ``_SQUARE`` × ``_SQUARE`` square of the packed matrix."""
    gemm = problem if rows_per_filter is None else rows_per_filter.gemm
    squares = (-(-pitch(gemm) // _SQUARE), -(-gemm.rows // _SQUARE))
    blocks = prod(squares) * problem.group
    chosen = packing_variant(problem.dtype, wide, problem.rank, rows_per_filter=rows_per_filter is not None)
    fields = {
        "filters": problem.filters,
        "channels": problem.channels,
        "filled": problem.channels,
        "pitch": pitch(gemm),
        "rows": gemm.rows,
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "by_tap": prod(gemm.taps),
        "taps": gemm.taps,
        "m_squares": squares[0],
        "row_squares": squares[1],
        "of_filter": of_filter(problem.taps, rows_per_filter),
    }
    return packing_launch(problem.operator, chosen, blocks, fields, tickets)


def packing_variant(dtype: str, wide: bool, rank: int, *, rows_per_filter: bool = False) -> Variant:
    """Return the kernel variant that packs weights; ``rows_per_filter`` if filters have several GEMM rows."""
    return _PACKING.over(dtype, rank, "rows" * rows_per_filter, types=types(dtype), sizes=(rows_per_filter,), wide=wide)
