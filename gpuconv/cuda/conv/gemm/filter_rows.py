"""GEMMs in which a filter has several rows, so that few filters fill tiles, and x is fetched once for all of them.

ConvTranspose makes blocks of outputs as large as its stride (``conv/gemm/depth_to_space.cuh``). Where the kernel is its
stride, without dilation, rows are output channels and taps: outputs do not overlap, the kernel scatters them. An axis
of x with a single element has blocks of any size there. Where it is larger, rows are output channels and phases, of
which each has taps. Of Conv, rows are output channels and taps along W, or runs of these, whose sums are added up
(``conv/gemm/tap_rows.cu``). In 32-bit indices and three spatial axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import split
from gpuconv.cuda.conv.problem import Axis, Problem, merged_stride
from gpuconv.cuda.plan import Launch
from gpuconv.cuda.plan.numbers import empty_rows

ROW_BYTES = 32  # of OutputRow
WRITING = 20  # instructions of a warp for 32 outputs after the main loop, which padding does not cut off; counted
_MOST_PHASES = 32  # along W, that lanes share the columns of a chunk out to


# ---------------------------------------------------------------- one tap


def unfit(problem: Problem) -> str | None:
    """Return why a ConvTranspose is not one GEMM whose outputs lie apart; None where it is."""
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    if any(axis.dilation != 1 or (axis.x != 1 and axis.taps != axis.stride) for axis in problem.axes):
        numbers = f"{problem.taps} taps, strides {problem.strides}, dilations {problem.dilations}"
        return f"{numbers}: the outputs of neighbours overlap or lie apart"
    if any(axis.y > axis.x * axis.taps - axis.pad for axis in problem.axes):
        return "y has outputs that no tap reaches"
    if problem.taps[-1] > _MOST_PHASES:
        return f"{problem.taps[-1]} taps along W; it takes up to {_MOST_PHASES}"
    if _w_step(problem) is None:
        return "the taps of a channel are not contiguous in w"
    rows = problem.filters * prod(problem.taps) + gemm_base.pitch(problem)
    weights, pixels = problem.group * problem.channels * rows, problem.batch * prod(problem.x_shape[2:])
    blocks = [axis.x * axis.taps for axis in problem.axes]
    if problem.wide() or max(_reach(problem, blocks), weights, pixels) >= params.INDEX_LIMIT:
        return "it needs 64-bit indices"
    return None


def _w_step(problem: Problem) -> int | None:
    """Return the stride of w from one row to the next, rows being channels and taps; None where there is not one."""
    return merged_stride((problem.filters, *problem.taps), (problem.w_strides[1], *problem.w_strides[3:]))


def _reach(problem: Problem, extents: Sequence[int]) -> int:
    """Return the largest offset, also of outputs that the padding cuts off: blocks have these extents together."""
    sizes = (*problem.y_shape[:2], *extents)
    return sum(size * abs(stride) for size, stride in zip(sizes, problem.y_strides, strict=True))


def rows_of(problem: Problem) -> Problem:
    """Return the GEMM as the problem of one tap: output channels and taps are its filters, input pixels its columns."""
    w_group, _, w_channel, *_ = problem.w_strides
    return replace(
        problem.with_axes(
            axis._replace(taps=1, w_stride=1, columns=axis.x, pad=0, stride=axis.taps) for axis in problem.axes
        ),
        filters=problem.filters * prod(problem.taps),
        w_strides=(w_group, _w_step(problem) or 0, w_channel, *(1,) * problem.rank),
        phases=(),
    )


# ---------------------------------------------------------------- several rows of a filter


# Instructions of a thread after the main loop: of blocks of outputs, those with one phase along W; of outputs that are
# sums along W, of those that are neighbours of several filters, of one, and of each of its taps. Counted.
_BLOCK, _NEIGHBOURS, _OUTPUT, _TAP = 95, 55, 60, 4.5
_SPREAD = 64  # bytes from a row of sums to the next besides them


@dataclass(frozen=True)
class FilterRows(ABC):
    """A problem whose filters have several rows of a GEMM, in tiles of one size."""

    problem: Problem
    tile: gemm_base.BlockTile

    order: ClassVar[str]  # of an output's sums besides that of the GEMM's, in words

    @property
    @abstractmethod
    def gemm(self) -> Problem:
        """The GEMM as a Conv: its filters are rows."""

    @property
    @abstractmethod
    def several(self) -> gemm_base.Several:
        """The rows that weights are packed as."""

    @property
    @abstractmethod
    def tiles(self) -> tuple[int, int]:
        """Tiles along M and along N, of one group."""

    @property
    @abstractmethod
    def instructions(self) -> float:
        """How many the threads of all tiles execute after the main loop."""

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Any]:
        """The fields of the kernel's struct besides those of the GEMM."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """What rows are, and how many of them are of no filter, for people."""

    @property
    def blocks(self) -> int:
        """Tiles of all groups."""
        return prod(self.tiles) * self.problem.group

    def shared_bytes(self, stages: int) -> int:
        """Return the bytes of shared memory of stages of so many, in whose place all sums are laid out."""
        return max(stages, self.tile.block_m * (self.tile.block_n * self.problem.word + _SPREAD))

    def launch(self, chosen: Variant, weights: gemm_base.PackedWeights, shared_bytes: int) -> Launch:
        """Return the launch that multiplies packed weights and writes outputs."""
        fields = {
            **gemm_base.operands(self.gemm, self.tiles, weights),
            **self.fields,
            "splits": split.splits(self.blocks),
        }
        roles = gemm_base.roles(self.gemm)
        return Launch.of_blocks(self.problem.operator, chosen, self.blocks, fields, roles, shared_bytes)


def of(problem: Problem, tile: gemm_base.BlockTile) -> FilterRows | None:
    """Return a problem so: rows are phases of ConvTranspose, or taps along W of Conv; None if it cannot be."""
    return TapRows.of(problem, tile) if problem.operator == "conv" else PhaseRows.of(problem, tile)


def kernel(operator: str, multiplier: str) -> Kernel:
    """Return the kernel of an operator in which filters have several rows, on "ffma" or "mma"."""
    name, source, struct = {
        "conv": ("conv_tap_rows", "conv/gemm/tap_rows.cu", "TapRowsParams"),
        "conv_transpose": ("conv_transpose_phase_rows", "conv/gemm/phase_rows.cu", "PhaseRowsParams"),
    }[operator]
    return Kernel(source, f"{name}_{multiplier}", struct, name=name)


# ---------------------------------------------------------------- phases


class PhaseRows(FilterRows):
    """A ConvTranspose whose phases are rows: a GEMM that makes blocks, with taps that run backwards.

    Its filters are output channels and phases, its columns the blocks that have outputs.
    """

    order = ", of all phases together"

    @classmethod
    def of(cls, problem: Problem, tile: gemm_base.BlockTile) -> PhaseRows | None:
        """Return a problem so; None where it has no strides, or is dilated where it has, or needs 64-bit indices."""
        apart = any(axis.dilation != 1 and axis.stride != 1 for axis in problem.axes)
        if apart or all(stride == 1 for stride in problem.strides) or problem.strides[-1] > _MOST_PHASES:
            return None
        if prod(problem.strides) * problem.filters >= params.INDEX_LIMIT:
            return None
        way = cls(problem, tile)
        blocks = [columns * stride for columns, stride in zip(way.gemm.columns, problem.strides, strict=True)]
        return None if way.gemm.far() or _reach(problem, blocks) >= params.INDEX_LIMIT else way

    @cached_property
    def gemm(self) -> Problem:
        return replace(
            self.problem.with_axes(map(_of_blocks, self.problem.axes)),
            operator="conv",
            filters=self.problem.filters * prod(self.problem.strides),
            phases=(),
            strides=(),
            backwards=True,
        )

    @property
    def several(self) -> gemm_base.Several:
        strides = self.problem.strides
        return gemm_base.Several(self.gemm, strides, (1,) * len(strides), strides)

    @property
    def tiles(self) -> tuple[int, int]:
        return self.gemm.tiles(self.tile.block_m, self.tile.block_n)

    @property
    def instructions(self) -> float:
        rows = min(self.tile.block_m, self.gemm.filters)
        of_column = self.problem.strides[-1] * _BLOCK + rows * WRITING
        return self.blocks * self.tile.block_n * of_column

    @property
    def fields(self) -> Mapping[str, Any]:
        return fields(self.problem, several=True)

    @property
    def reasons(self) -> tuple[str, ...]:
        phases = f"{prod(self.problem.strides)} phases of each filter, in {prod(self.gemm.taps)} taps"
        rows = f"{self.gemm.filters} rows of one GEMM are the {phases}"
        empty = empty_rows(self.problem.filters, self.tile.block_m, prod(self.problem.strides))
        return f"{rows}: x is fetched once for all", *empty

    def shared_bytes(self, stages: int) -> int:
        """Return those of the table of rows besides."""
        return super().shared_bytes(stages) + self.tile.block_m * ROW_BYTES


def _of_blocks(axis: Axis) -> Axis:
    taps, skipped = -(-axis.taps // axis.stride), axis.pad // axis.stride  # blocks that the padding cuts off
    columns = -(-(axis.y + axis.pad) // axis.stride) - skipped
    return axis._replace(taps=taps, columns=columns, pad=(taps - 1) * axis.dilation - skipped)


# ---------------------------------------------------------------- taps along W


class TapRows(FilterRows):
    """A Conv whose taps along W are rows of a GEMM, in tiles that have whole filters.

    With a stride along W, rows are runs of as many taps. Columns are the pixels along W, or runs of them, that outputs
    meet.
    """

    order = ", then over taps along W"

    @classmethod
    def of(cls, problem: Problem, tile: gemm_base.BlockTile) -> TapRows | None:
        """Return a problem so; None where filters have one row, or taps do not make runs, or a tile has no room."""
        width, way = problem.axes[-1], cls(problem, tile)
        if width.column_stride > 1 and (width.dilation > 1 or problem.backwards):
            return None
        if way.rows == 1 or way.filters == 0 or 2 * way.reach > tile.block_n:
            return None
        return None if way.gemm.far() else way

    @property
    def width(self) -> Axis:
        """The axis whose taps are rows."""
        return self.problem.axes[-1]

    @property
    def run(self) -> int:
        """Taps along W of a row."""
        return self.width.column_stride

    @property
    def rows(self) -> int:
        """Rows of a filter."""
        return -(-self.width.taps // self.run)

    @property
    def reach(self) -> int:
        """Columns that an output meets beyond its first one."""
        return (self.rows - 1) * self.width.dilation

    @property
    def filters(self) -> int:
        """Filters of a tile."""
        return self.tile.block_m // self.rows

    @property
    def outputs(self) -> int:
        """Columns of a tile that outputs begin at."""
        return self.tile.block_n - self.reach

    @cached_property
    def gemm(self) -> Problem:
        *outer, width = self.problem.axes
        rows = -(-self.problem.filters // self.filters) * self.tile.block_m
        columns = width._replace(taps=self.run, columns=width.columns + self.reach)
        return replace(self.problem.with_axes((*outer, columns)), filters=rows)

    @property
    def several(self) -> gemm_base.Several:
        outer = (1,) * (self.problem.rank - 1)
        of_tile = self.tile.block_m, self.filters
        return gemm_base.Several(self.gemm, (*outer, self.rows), (*outer, self.run), (*outer, 1), of_tile)

    @property
    def tiles(self) -> tuple[int, int]:
        return self.gemm.filters // self.tile.block_m, -(-self.gemm.pixels // self.outputs)

    @property
    def instructions(self) -> float:
        filters = min(self.filters, self.problem.filters)
        return self.blocks * self.outputs * (_NEIGHBOURS + filters * (_OUTPUT + _TAP * self.rows))

    @property
    def fields(self) -> Mapping[str, Any]:
        backwards, dilation = self.problem.backwards, self.width.dilation
        return {
            "filters": self.problem.filters,
            "of_tile": self.filters,
            "along": self.rows,
            "run": self.run,
            "kernel": self.width.taps,
            "first": self.reach if backwards else 0,
            "step": -dilation if backwards else dilation,
            "outputs": self.outputs,
            "width": self.width.columns,
        }

    @property
    def reasons(self) -> tuple[str, ...]:
        taps = f"{self.width.taps} taps along W"
        taps = taps if self.run == 1 else f"{self.rows} runs of {taps}, {self.run} each,"
        rows = f"{taps} are rows of {self.filters} filters a tile"
        empty = empty_rows(self.problem.filters, self.tile.block_m, self.rows, self.tiles[0])
        return f"{rows}: x is fetched once for all of them", *empty


# ---------------------------------------------------------------- launch


def fields(problem: Problem, several: bool = False) -> Mapping[str, Any]:
    """Return the fields of ``DepthToSpaceParams`` besides those of the GEMM, of blocks of one tap or of several."""
    return {"axes": [_fields(axis, several) for axis in problem.lifted.axes], "out_channels": problem.filters}


def _fields(axis: Axis, several: bool) -> Mapping[str, int]:
    phases, pad = (axis.stride, axis.pad % axis.stride) if several else (axis.taps, axis.pad)
    return {"pad": pad, "extent": axis.y, "y_stride": axis.y_stride, "kernel": axis.taps, "phases": phases}
