"""What the structs of Conv and ConvTranspose hold, whichever kernel multiplies: ``conv/problem.cuh``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Variant, index_name
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.rules.geometry import Ints


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """How a kernel finds its weights.

    Attributes
    ----------
    pitch : int
        From one row to the next, in the kernel's own units.
    all_rows : int
        Rows of one group.
    channels : int
        Rows of the GEMM from one tap to the next.
    """

    pitch: int
    all_rows: int
    channels: int

    def tap_rows(self, taps: Ints) -> Ints:
        """Rows of the GEMM from one tap to the next, axis by axis."""
        return tuple(self.channels * prod(taps[axis + 1 :]) for axis in range(len(taps)))


@dataclass(frozen=True, slots=True)
class Divisible:
    """Tiles that several blocks each could make.

    Attributes
    ----------
    variant : Variant
        The kernel with a block for each tile.
    shared_bytes : int
        That it asks for.
    tiles : int
    slices : float
        Of K, of each tile; the mean of those of ConvTranspose's phases.
    most_slices : int
        Of the tile that has the most.
    sums_bytes : int
        Of a tile's sums.
    busy : callable
        Takes a number of blocks and the slices of each, returns the modelled seconds of their arithmetic.
    packing : callable
        Takes a number of tickets, returns the launch that packs the weights and sets these to zero.
    plan : callable
        Returns the plan with a block for each tile: a launch that packs the weights, and one that makes the tiles.
    """

    variant: Variant
    shared_bytes: int
    tiles: int
    slices: float
    most_slices: int
    sums_bytes: int
    busy: Callable[[int, float], float]
    packing: Callable[[int], Launch]
    plan: Callable[[], Plan]


# By operator and whether kernels also make a share of a tile: the file, the kernel by FFMA, the struct.
SOURCES = {
    ("conv", False): ("conv/gemm/conv.cu", "conv_implicit_gemm", "ConvParams"),
    ("conv", True): ("conv/gemm/split.cu", "conv_split", "ConvSplitParams"),
    ("conv_transpose", False): ("conv/gemm/conv_transpose.cu", "conv_transpose", "ConvTransposeParams"),
    ("conv_transpose", True): ("conv/gemm/split_transpose.cu", "conv_transpose_split", "ConvTransposeSplitParams"),
}
ALL, SUMS, TOTALS = range(3)  # of what a launch of conv/gemm/split_k.cuh makes


def splits(tiles: int, divided: int = 0, count: int = 1, part: int = ALL) -> Mapping[str, Any]:
    """Return the fields of ``Splits``: the last ``divided`` of the tiles are made in so many splits each."""
    return {
        "count": count,
        "whole": tiles - divided,
        "ticket_bytes": ticket_bytes(divided),
        "part": part,
    }


def ticket_bytes(divided: int) -> int:
    """Return the bytes of the tickets of so many tiles, before their sums."""
    return -(-divided // 4) * 16


def packing_launch(operator: str, chosen: Variant, blocks: int, fields: Mapping[str, Any], tickets: int) -> Launch:
    """Return a launch that packs weights and sets tickets at the workspace's beginning, if there are any, to zero."""
    roles = {"w": "w", "packed": "packed"} | ({"tickets.first": "workspace"} if tickets else {})
    return launching.of_blocks(operator, chosen, blocks, {**fields, "tickets": {"count": tickets}}, roles)


def operands(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``ConvParams`` or ``ConvTransposeParams``; ``tiles`` counts those along M and the pixels."""
    shared = common(problem, tiles, weights)
    if problem.operator == "conv":
        return {"common": shared, "taps": taps(problem, weights)}
    axes = [_axis(problem, axis, weights) for axis in range(problem.rank)]
    return {"common": shared, "axes": axes, "phases": prod(problem.phases)}


def roles(problem: Problem, place: str = "common") -> dict[str, str]:
    """Return the array that each pointer of the ``Correlation`` at a place leads to, of those that there are."""
    found = {f"{place}.x": "x", f"{place}.y": "y"}
    if problem.rows:
        found[f"{place}.weights"] = "packed"
    if problem.b_stride is not None:
        found[f"{place}.b"] = "b"
    return found


def taps_bytes(rank: int, wide: bool = False) -> int:
    """Return the bytes of the taps of a phase, as blocks of ConvTranspose keep them in shared memory."""
    return structs.layout(f"Taps<{index_name(wide)}, {rank}>", "conv/problem.cuh").itemsize


def common(problem: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``Correlation``."""
    return {
        "channels": problem.channels,
        "filters": problem.filters,
        "pixels": problem.pixels,
        "pitch": weights.pitch,
        "all_rows": weights.all_rows,
        "x_batch": problem.x_strides[0],
        "x_channel": problem.x_strides[1],
        "x_extent": problem.x_shape[2:],
        "x_stride": problem.x_strides[2:],
        "y_batch": problem.y_strides[0],
        "y_channel": problem.y_strides[1],
        "y_stride": problem.y_column_strides,
        "b_stride": problem.b_stride or 0,
        "stride": problem.column_strides,
        "extent": problem.columns,
        "by_channel": problem.channels,
        "m_tiles": tiles[0],
        "n_tiles": tiles[1],
    }


def taps(problem: Problem, weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``Taps`` of a single phase."""
    return {
        "start": [-pad for pad in problem.pads],
        "advance": problem.dilations,
        "row": weights.tap_rows(problem.taps),
        "count": problem.taps,
        "first_row": 0,
        "rows": problem.rows,
        "limit": problem.columns,
        "y_first": 0,
    }


def backwards(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of ``Taps`` with the weights' taps in the opposite order."""
    last = sum((count - 1) * row for count, row in zip(found["count"], found["row"], strict=True))
    return {**found, "row": tuple(-row for row in found["row"]), "first_row": last}


def _axis(problem: Problem, axis: int, weights: PackedWeights) -> Mapping[str, Any]:
    stride, dilation = problem.strides[axis], problem.dilations[axis]
    common = gcd(stride, dilation)
    return {
        "stride": stride,
        "pad": problem.pads[axis],
        "dilation": dilation,
        "kernel": problem.taps[axis],
        "common": common,
        "inverse": pow(dilation // common, -1, stride // common),
        "extent": problem.y_shape[2 + axis],
        "row": weights.tap_rows(problem.taps)[axis],
        "y_stride": problem.y_strides[2 + axis],
        "phases": problem.phases[axis],
    }
