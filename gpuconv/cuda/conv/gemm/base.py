"""What the families of implicit GEMM share: the structs of ``conv/problem.cuh``, tiles of FFMA and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, NamedTuple

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, index_name, types
from gpuconv.cuda.conv.problem import Axis, Problem
from gpuconv.cuda.plan import Launch, Plan, Space, kept
from gpuconv.cuda.plan.numbers import whole
from gpuconv.rules.geometry import Ints


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """How a kernel finds its weights."""

    pitch: int  # from one row to the next, in the kernel's own units
    all_rows: int  # rows of one group
    channels: int  # rows of the GEMM from one tap to the next

    def tap_rows(self, taps: Ints) -> Ints:
        """Rows of the GEMM from one tap to the next, axis by axis."""
        return tuple(self.channels * prod(taps[axis + 1 :]) for axis in range(len(taps)))


# ---------------------------------------------------------------- structs


_SOURCES = {  # by operator and whether kernels also make a share of a tile: the file, and the struct
    ("conv", False): ("conv/gemm/conv.cu", "ConvParams"),
    ("conv", True): ("conv/gemm/split.cu", "ConvSplitParams"),
    ("conv_transpose", False): ("conv/gemm/conv_transpose.cu", "ConvTransposeParams"),
    ("conv_transpose", True): ("conv/gemm/split_transpose.cu", "ConvTransposeSplitParams"),
}


def kernels(multiplier: str, template: str) -> dict[tuple[str, bool], Kernel]:
    """Return those of implicit GEMM on "ffma" or "mma", by operator and whether they also make a share of a tile."""
    return {
        (operator, split): Kernel(
            source, f"{operator}{'_split' if split else ''}_{multiplier}", f"{struct}<{template}>", name=operator
        )
        for (operator, split), (source, struct) in _SOURCES.items()
    }


def packing_launch(operator: str, chosen: Variant, blocks: int, fields: Mapping[str, Any], tickets: int) -> Launch:
    """Return a launch that packs weights and sets tickets at the workspace's beginning, if there are any, to zero."""
    roles = {"w": "w", "packed": "packed"} | ({"tickets.first": "workspace"} if tickets else {})
    return Launch.of_blocks(operator, chosen, blocks, {**fields, "tickets": {"count": tickets}}, roles)


def operands(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``ConvParams`` or ``ConvTransposeParams``; ``tiles`` counts those along M and the pixels."""
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
    """Return the launch of a block for every tile, with ``more`` fields than those of the operands."""
    fields = {**operands(problem, problem.tiles(tile.block_m, tile.block_n), weights), **more}
    blocks = problem.blocks(tile.block_m, tile.block_n)
    return Launch.of_blocks(problem.operator, chosen, blocks, fields, roles(problem, weights=source), shared_bytes)


def roles(problem: Problem, place: str = "common", weights: str = "packed") -> dict[str, str]:
    """Return the array that each pointer of the ``Correlation`` at a place leads to, of those that there are."""
    pointers = {f"{place}.x": "x", f"{place}.y": "y"}
    if problem.rows:
        pointers[f"{place}.weights"] = weights
    if problem.b_stride is not None:
        pointers[f"{place}.b"] = "b"
    return pointers


def taps_bytes(rank: int, wide: bool = False) -> int:
    """Return the bytes of the taps of a phase, as blocks of ConvTranspose keep them in shared memory."""
    return structs.layout(f"Taps<{index_name(wide)}, {rank}>", "conv/problem.cuh").itemsize


def common(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``Correlation``."""
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
    """Return the fields of ``Taps`` of a single phase."""
    way = -1 if problem.backwards else 1
    reaches = [(k - 1) * d for k, d in zip(problem.taps, problem.dilations, strict=True)]
    return {
        "start": [problem.backwards * reach - pad for reach, pad in zip(reaches, problem.pads, strict=True)],
        "advance": [way * dilation for dilation in problem.dilations],
        "row": weights.tap_rows(problem.taps),
        "count": problem.taps,
        "first_row": 0,
        "rows": problem.rows,
        "limit": problem.columns,
        "y_first": 0,
    }


def backwards(forwards: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of ``Taps`` with the weights' taps in the opposite order."""
    last = sum((count - 1) * row for count, row in zip(forwards["count"], forwards["row"], strict=True))
    return {**forwards, "row": tuple(-row for row in forwards["row"]), "first_row": last}


def _phased(axis: Axis, row: int) -> Mapping[str, int]:
    """Return the fields of ``TransposedAxis``."""
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


_STAGES = 3  # of the pipeline
_ROWWISE = 0.75  # of the multiplications' share, where the tap of every row must be found


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The outputs of a block."""

    block_m: int
    block_n: int


@dataclass(frozen=True, slots=True)
class GemmTile(BlockTile):
    """A tile of FFMA: the outputs of a block and of a thread, and the forms of the kernel that it comes in."""

    block_k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int  # that the kernel's registers leave room for
    # Share of multiplications among the main loop's instructions, of the form with one tap per slice if there is one
    efficiency: float
    uniform: bool = True  # comes in the form where every slice of K has one tap
    rowwise: bool = True  # comes in the form that finds the tap of every row of K
    wide: bool = False  # comes with 64-bit indices too

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.thread_m) * (self.block_n // self.thread_n)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Arguments of the kernels' templates."""
        return self.block_m, self.block_n, self.block_k, self.thread_m, self.thread_n

    @property
    def forms(self) -> tuple[bool, ...]:
        """Whether every slice of K has one tap, of each form of the kernel."""
        return tuple(form for form, exists in ((False, self.rowwise), (True, self.uniform)) if exists)

    def form_of(self, channels: int) -> bool:
        """Tell whether slices of K have one tap each, of groups of so many channels."""
        return self.uniform and channels > 0 and channels % self.block_k == 0

    def shared_bytes(self, word: int) -> int:
        """Return the bytes of the pipeline's stages in shared memory, of elements of so many."""
        return _STAGES * self.block_k * (self.block_m + self.block_n) * word

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}"


# The candidates; of equal ones the first is taken.
LARGE = GemmTile(128, 128, 16, 8, 8, 2, 0.86, rowwise=False)
MIDDLE = GemmTile(64, 64, 16, 8, 4, 4, 0.78, wide=True)
_FLAT = GemmTile(16, 128, 16, 4, 4, 4, 0.25, uniform=False)
_MIDDLE_HALF = replace(MIDDLE, efficiency=0.53, uniform=False)  # tensor cores take 16-bit channels in whole slices
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
    """Return a kernel of one tile; ``uniform`` is None where there is one form."""
    return kernel.over(
        *(dtype, rank, str(tile), "uniform" if uniform else ""),
        types=types(dtype),
        sizes=tile.sizes if uniform is None else (*tile.sizes, uniform),
        wide=wide,
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm - wide,  # 64-bit numbers take more registers
    )


def efficiency(tile: GemmTile, uniform: bool) -> float:
    """Return a tile's share of multiplications: finding taps row by row takes its share of the instructions too."""
    return tile.efficiency if uniform or not tile.uniform else tile.efficiency * _ROWWISE


def order(problem: Problem, block_k: int) -> str:
    """Return how the products of an output are added by FFMA in slices of K, whatever the tile."""
    filled = f", filled up to {block_k}s" if problem.channels % block_k else ""
    return f"{problem.fused} over taps, {problem.channels} channels{filled}"


def tap_reason(problem: Problem, tile: GemmTile, uniform: bool) -> str:
    """Say how the taps of a slice of K are found, and why."""
    if uniform:
        return f"one tap per slice of K: {tile.block_k} divides the {problem.channels} channels of a group"
    return f"taps found row by row: {problem.channels} channels per group, slices of {tile.block_k}"


# ---------------------------------------------------------------- several rows of a filter


class Several(NamedTuple):
    """Rows of a GEMM of which filters have several each."""

    gemm: Problem
    rows: Ints  # of a filter, axis by axis
    row_step: Ints  # taps of the kernel from row to row, axis by axis,
    tap_step: Ints  # and from one tap of a row to the next
    of_tile: tuple[int, int] | None = None  # rows of a tile, and the filters that it has whole; None: any tile has any


_ANY = 2**30, 2**30


def of_filter(kernel: Ints, several: Several | None) -> Mapping[str, Any]:
    """Return the fields of ``FilterRows``, of a kernel of these extents."""
    one = (1,) * len(kernel)
    rows, row_step, tap_step = several[1:4] if several else (one, one, one)
    tile_rows, tile_filters = several.of_tile or _ANY if several else _ANY
    steps = {"row_step": row_step, "tap_step": tap_step}
    return {"rows": rows, **steps, "kernel": kernel, "tile_rows": tile_rows, "tile_filters": tile_filters}


# ---------------------------------------------------------------- weights of FFMA


_SQUARE = structs.constant("kSquare", "conv/gemm/pack_weights.cu")
_PACKING = Kernel("conv/gemm/pack_weights.cu", "pack_weights", "PackParams<{index}, {rank}>")


def pitch(problem: Problem) -> int:
    """Return M rounded up to 16 bytes of the accumulator's type."""
    return whole(problem.filters, problem.vector)


def packed_weights(problem: Problem) -> PackedWeights:
    """Return how the kernel finds them."""
    return PackedWeights(pitch(problem), problem.rows, problem.channels)


def packed_bytes(problem: Problem) -> int:
    """Return the bytes of packed weights."""
    return problem.group * problem.rows * pitch(problem) * problem.word


def with_packing(
    problem: Problem, wide: bool, launch: Launch, reasons: tuple[str, ...], several: Several | None = None
) -> Plan:
    """Return the plan of a launch on packed weights, after the one that packs them."""
    gemm = problem if several is None else several.gemm
    launches = (packing(problem, wide, several=several), launch) if problem.rows else (launch,)
    return Plan(problem.operator, launches, reasons, kept(Space.packed(packed_bytes(gemm))))


def packing(problem: Problem, wide: bool, tickets: int = 0, several: Several | None = None) -> Launch:
    """Return the launch that packs the weights, of filters that may have ``several`` rows."""
    gemm = problem if several is None else several.gemm
    squares = (-(-pitch(gemm) // _SQUARE), -(-gemm.rows // _SQUARE))
    blocks = prod(squares) * problem.group
    chosen = packing_variant(problem.dtype, wide, problem.rank, several=several is not None)
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
        "of_filter": of_filter(problem.taps, several),
    }
    return packing_launch(problem.operator, chosen, blocks, fields, tickets)


def packing_variant(dtype: str, wide: bool, rank: int, *, several: bool = False) -> Variant:
    """Return the kernel that packs weights."""
    return _PACKING.over(dtype, rank, "rows" * several, types=types(dtype), sizes=(several,), wide=wide)
